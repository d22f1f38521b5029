"""This project: `StoreDataset` and `DataLoader` over the store that is there, two threads, nothing else chosen.

Modes: ``2 threads`` for images with labels; ``list`` and ``padded`` for objects.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import tensorstore_ds as tsds
from benchmarks.peers import WORKERS
from benchmarks.samples import STORE, with_objects


def load(source: Path, target: Path, batch: int, mode: str) -> Iterable[Any]:
    dataset = tsds.StoreDataset(source / STORE, "train")
    collate: Any = mode if mode in ("list", "padded") else "list"
    return tsds.DataLoader(dataset, batch_size=batch, shuffle=True, num_threads=WORKERS, collate=collate)


def columns(batch: Any) -> dict[str, Any]:
    """Images with labels, or with objects in either form."""
    if "label" in batch:
        return {"image": batch["image"], "label": batch["label"]}
    objects = batch["objects"]
    if isinstance(objects, dict):
        objects = [{n: v[i][m] for n, v in objects.items() if n != "mask"} for i, m in enumerate(objects["mask"])]
    return with_objects(batch["image"], objects)
