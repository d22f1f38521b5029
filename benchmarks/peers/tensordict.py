"""TensorDict: a memory-mapped tensordict, as "Load data and share it between processes" of its documentation has it.

``DataLoader(data, collate_fn=lambda x: x)``: the loader asks for a whole batch with one index operation, which uses as
many threads as torch likes; no workers, as there.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from tensordict import MemoryMappedTensor, TensorDict
from torch.utils.data import DataLoader

from benchmarks.samples import open_arrays


def write(source: Path, target: Path, mode: str) -> None:
    """A folder with a file a tensor; images (N, C, H, W)."""
    images, labels = open_arrays(source)
    n, h, w, c = images.shape
    data = TensorDict(
        {
            "image": MemoryMappedTensor.empty((n, c, h, w), dtype=torch.uint8, filename=target / "image.memmap"),
            "label": torch.from_numpy(labels),
        },
        batch_size=[n],
    )
    for start in range(0, n, 1000):
        piece = torch.from_numpy(images[start : start + 1000].copy()).permute(0, 3, 1, 2)
        data["image"][start : start + 1000] = piece
    data.memmap_(target)


def load(source: Path, target: Path, batch: int, mode: str) -> Iterable[Any]:
    data = TensorDict.load_memmap(target)
    return DataLoader(data, batch, shuffle=True, collate_fn=lambda x: x)
