"""FFCV as its example for ImageNet: JPEG of quality 90, 500 pixels a side at most, ``os_cache=True``, its own decoders.

In the mode ``jpg, full size``, the sides have no limit. FFCV encodes all images again: it cannot keep a JPEG file.
The example's center crop is a share of the shorter side, 224/256, resized to 224: what resizing and cropping come to.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from ffcv.fields import IntField, RGBImageField
from ffcv.fields.decoders import IntDecoder
from ffcv.fields.rgb_image import CenterCropRGBImageDecoder, RandomResizedCropRGBImageDecoder
from ffcv.loader import Loader, OrderOption
from ffcv.transforms import ToTensor, ToTorchImage
from ffcv.writer import DatasetWriter
from torchvision.datasets import ImageFolder

from benchmarks.peers import WORKERS
from benchmarks.photographs import MAX_SIDE, QUALITY, RESIZED, SIDE

_FILE = "data.beton"


def write(task: str, source: Path, target: Path, mode: str) -> None:
    limit = MAX_SIDE if mode == "jpg" else None
    image = RGBImageField(write_mode="jpg", max_resolution=limit, jpeg_quality=QUALITY)
    writer = DatasetWriter(str(target / _FILE), {"image": image, "label": IntField()}, num_workers=WORKERS)
    writer.from_indexed_dataset(ImageFolder(str(source)))


def load(task: str, source: Path, target: Path, batch: int, mode: str, threads: int) -> Iterable[Any]:
    size = (SIDE, SIDE)
    is_training = task == "train"
    crop = RandomResizedCropRGBImageDecoder(size) if is_training else CenterCropRGBImageDecoder(size, SIDE / RESIZED)
    return Loader(  # type: ignore[no-any-return]
        str(target / _FILE),
        batch_size=batch,
        num_workers=threads,
        order=OrderOption.RANDOM if is_training else OrderOption.SEQUENTIAL,
        os_cache=True,
        drop_last=False,
        pipelines={"image": [crop, ToTensor(), ToTorchImage()], "label": [IntDecoder(), ToTensor()]},
    )


def columns(batch: Any) -> dict[str, Any]:
    """Labels come as (B, 1)."""
    return {"image": batch[0], "label": batch[1][:, 0]}
