"""torchvision's `VOCDetection` with torch's `DataLoader`, two workers that stay, collated as its references do.

Its target is the XML file as a dictionary. Boxes and labels are made of it here, as every user must, and boxes without
area are left out, as the store leaves them out. Torchvision's `wrap_dataset_for_transforms_v2` would do that for the
twenty classes of VOC alone.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader
from torchvision.datasets import VOCDetection
from torchvision.transforms.v2 import PILToTensor

from benchmarks.checksums import Columns
from benchmarks.peers import workers
from benchmarks.samples import VOC_YEAR, classes_of


def write(source: Path, target: Path, mode: str) -> None:
    """Nothing: it reads the files."""


def load(source: Path, target: Path, batch: int, mode: str) -> Iterable[Any]:
    """The images of ``ImageSets/Main/train.txt``."""
    dataset = VOCDetection(
        source,
        year=VOC_YEAR,
        image_set="train",
        transform=PILToTensor(),
        target_transform=_Target({name: i for i, name in enumerate(classes_of(source))}),
    )
    count = workers(mode)
    return DataLoader(dataset, batch, True, num_workers=count, collate_fn=_collate, persistent_workers=True)


class _Target:
    """From the dictionary of an XML file to boxes and labels."""

    def __init__(self, numbers: dict[str, int]) -> None:
        self.numbers = numbers

    def __call__(self, annotation: Any) -> dict[str, torch.Tensor]:
        boxes, labels = [], []
        for found in annotation["annotation"]["object"]:
            x1, y1, x2, y2 = (float(found["bndbox"][name]) for name in ("xmin", "ymin", "xmax", "ymax"))
            if x1 < x2 and y1 < y2:
                boxes.append((x1, y1, x2, y2))
                labels.append(self.numbers[found["name"]])
        return {"boxes": torch.tensor(boxes, dtype=torch.float32).reshape(-1, 4), "labels": torch.tensor(labels)}


def _collate(samples: list[Any]) -> tuple[Any, ...]:
    return tuple(zip(*samples, strict=True))


def columns(batch: Any) -> Columns:
    """Lists of images and of targets."""
    images, targets = batch
    return Columns(images, torch.empty(0), [(target["labels"], target["boxes"]) for target in targets])
