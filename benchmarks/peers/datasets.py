"""Hugging Face datasets: an Arrow file of `Array3D`, ``with_format("torch")``, in torch's `DataLoader`, two workers.

As "Use with PyTorch" of its documentation. The format makes int64 of every integer unless it is told the type: it is.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import torch
from datasets import Array3D, Dataset, Features, Value, load_from_disk
from torch.utils.data import DataLoader

from benchmarks.peers import workers
from benchmarks.samples import Arrays


def write(source: Path, target: Path, mode: str) -> None:
    """An Arrow data set on disk; images (C, H, W)."""
    h, w, c = Arrays(source)[0][0].shape
    features = Features({"image": Array3D((c, h, w), "uint8"), "label": Value("uint8")})
    cache = str(target / "cache")
    dataset = Dataset.from_generator(_samples, features, cache_dir=cache, gen_kwargs={"source": source})
    dataset.save_to_disk(str(target / "data"))


def _samples(source: Path) -> Iterator[dict[str, Any]]:
    for image, label in Arrays(source):
        yield {"image": image.transpose(2, 0, 1), "label": label}


def load(source: Path, target: Path, batch: int, mode: str) -> Iterable[Any]:
    dataset = load_from_disk(str(target / "data")).with_format("torch", dtype=torch.uint8)
    return DataLoader(dataset, batch, True, num_workers=workers(mode), persistent_workers=True)
