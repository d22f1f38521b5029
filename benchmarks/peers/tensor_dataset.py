"""torch's `TensorDataset` of the whole data set in memory, with torch's `DataLoader`.

Modes: ``0 workers`` and ``2 workers``: as torch's tutorials use them, sample by sample; ``whole batches, 0 workers``:
what torch's page on `torch.utils.data` has under "Disable automatic batching": a `BatchSampler` as sampler and
``batch_size=None``, so that a batch is one index operation, which uses as many threads as torch likes.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, TensorDataset

from benchmarks.checksums import Columns
from benchmarks.peers import workers
from benchmarks.samples import open_arrays


def write(source: Path, target: Path, mode: str) -> None:
    """Nothing: the data set is held in memory."""


def load(source: Path, target: Path, batch: int, mode: str) -> Iterable[Any]:
    """Images (N, C, H, W) and labels."""
    images, labels = open_arrays(source)
    n, h, w, c = images.shape
    tensor = torch.empty((n, c, h, w), dtype=torch.uint8)
    for start in range(0, n, 1000):  # a piece at a time: there is memory for one of these, not for two
        tensor[start : start + 1000] = torch.from_numpy(images[start : start + 1000].copy()).permute(0, 3, 1, 2)
    dataset = TensorDataset(tensor, torch.from_numpy(labels))
    count = workers(mode)
    if mode.startswith("whole batches"):
        sampler = BatchSampler(RandomSampler(dataset), batch, drop_last=False)
        return DataLoader(dataset, batch_size=None, sampler=sampler, num_workers=count)
    return DataLoader(dataset, batch, shuffle=True, num_workers=count, persistent_workers=count > 0)


def columns(batch: Any) -> Columns:
    """As they are."""
    return Columns(*batch)
