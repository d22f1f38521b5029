"""LitData: `optimize` into chunks of 64 MB, `StreamingDataset(shuffle=True)` and `StreamingDataLoader`, two workers.

Samples are tensors (C, H, W): of the lossless types the one that its documentation names first.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from litdata import StreamingDataLoader, StreamingDataset, optimize

from benchmarks.peers import WORKERS, workers
from benchmarks.samples import Arrays


def write(source: Path, target: Path, mode: str) -> None:
    """Chunks, and their index."""
    # `optimize` begins by deleting these folders, which are /tmp/chunks and /tmp/data where nothing else is said.
    os.environ["DATA_OPTIMIZER_CACHE_FOLDER"] = str(target / "cache" / "chunks")
    os.environ["DATA_OPTIMIZER_DATA_CACHE_FOLDER"] = str(target / "cache" / "data")
    optimize(
        functools.partial(_sample, source),
        list(range(len(Arrays(source)))),
        str(target / "data"),
        chunk_bytes="64MB",
        num_workers=WORKERS,
    )


def _sample(source: Path, index: int) -> dict[str, Any]:
    image, label = Arrays(source)[index]
    return {"image": torch.from_numpy(image.transpose(2, 0, 1).copy()), "label": label}


def load(source: Path, target: Path, batch: int, mode: str) -> Iterable[Any]:
    dataset = StreamingDataset(str(target / "data"), shuffle=True, drop_last=False)
    return StreamingDataLoader(  # type: ignore[no-any-return]
        dataset, batch_size=batch, num_workers=workers(mode), persistent_workers=True
    )
