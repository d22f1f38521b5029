"""This project: a store of the encoding that the mode names, with its decode plan. `source` keeps files as they are."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import tensorstore_ds as tsds
from benchmarks.peers import WORKERS
from benchmarks.photographs import MAX_SIDE, QUALITY, RESIZED, SIDE
from benchmarks.samples import STORE, with_objects


def options(mode: str, **more: Any) -> tsds.ConvertOptions:
    """Of a conversion to an encoding; at most `MAX_SIDE` pixels a side, but for files that are kept."""
    if mode == "source":
        return tsds.ConvertOptions(encoding="source", workers=WORKERS, **more)
    encoding = tsds.Jpeg(quality=QUALITY) if mode == "jpeg" else tsds.conversion.Raw()
    return tsds.ConvertOptions(encoding=encoding, fit=tsds.conversion.Shrink(MAX_SIDE), workers=WORKERS, **more)


def write(task: str, source: Path, target: Path, mode: str) -> None:
    tsds.convert(source / "VOCdevkit" if task == "detect" else source, target / STORE, options(mode))


def load(task: str, source: Path, target: Path, batch: int, mode: str, threads: int) -> Iterable[Any]:
    if task == "detect":
        whole = tsds.StoreDataset(target / STORE, "train", fields=("image", "objects"))
        return tsds.DataLoader(whole, batch, shuffle=True, num_threads=threads, collate="list")
    validation = tsds.Compose([tsds.Resize(RESIZED), tsds.CenterCrop(SIDE)])
    decode = tsds.RandomResizedCrop(SIDE) if task == "train" else validation
    dataset = tsds.StoreDataset(target / STORE, "train", fields=("image", "label"), decode=decode)
    return tsds.DataLoader(dataset, batch, shuffle=task == "train", num_threads=threads)


def columns(batch: Any) -> dict[str, Any]:
    """Images of differing sizes come as a list of (C, H, W), objects as a list, too."""
    if "label" in batch:
        return {"image": batch["image"], "label": batch["label"]}
    return with_objects(batch["image"], batch["objects"])
