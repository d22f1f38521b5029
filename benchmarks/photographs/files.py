"""The files themselves: torchvision's `ImageFolder` or `VOCDetection`, its transforms v2, torch's `DataLoader`.

In the mode ``decode_jpeg``, torchcodec decodes a file to a tensor, and the transforms work on tensors.
"""

from __future__ import annotations

import functools
import importlib
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from torch.utils.data import DataLoader, Dataset
from torchvision.datasets import ImageFolder, VOCDetection
from torchvision.transforms import v2

from benchmarks.photographs import RESIZED, SIDE
from benchmarks.samples import with_objects
from tensorstore_ds.annex.measuring.files import voc_target


def load(task: str, source: Path, target: Path, batch: int, mode: str, threads: int) -> Iterable[Any]:
    collate = _listed if task == "detect" else None
    shuffle = task != "validate"
    return DataLoader(
        dataset_of(task, source, mode),
        batch,
        shuffle,
        num_workers=threads,
        persistent_workers=threads > 0,
        collate_fn=collate,
    )


def dataset_of(task: str, source: Path, mode: str = "") -> Dataset[Any]:
    """Its samples: images (C, H, W) uint8, and labels or objects."""
    if task == "detect":
        annotations = (file.read_text() for file in source.glob("VOCdevkit/VOC2007/Annotations/*.xml"))
        names = {name for text in annotations for name in re.findall("<object><name>([^<]*)", text)}
        target = functools.partial(voc_target, classes=tuple(sorted(names)))
        return VOCDetection(str(source), "2007", "train", transform=v2.PILToTensor(), target_transform=target)
    crops: list[Any] = [v2.RandomResizedCrop(SIDE, antialias=True)]
    if task == "validate":
        crops = [v2.Resize(RESIZED, antialias=True), v2.CenterCrop(SIDE)]
    if mode == "decode_jpeg":
        decode_jpeg: Callable[[str], Any] = importlib.import_module("torchcodec.decoders").decode_jpeg
        return ImageFolder(str(source), v2.Compose(crops), loader=decode_jpeg)
    return ImageFolder(str(source), v2.Compose([*crops, v2.PILToTensor()]))


def _listed(samples: list[Any]) -> tuple[list[Any], ...]:
    return tuple(map(list, zip(*samples, strict=True)))


def columns(batch: Any) -> dict[str, Any]:
    """Images of differing sizes come as a list, objects as a list, too."""
    images, others = batch
    if not isinstance(others, list):
        return {"image": images, "label": others}
    return with_objects(images, others)
