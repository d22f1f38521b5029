"""FFCV, as its tuning guide advises for data that fit in memory: ``os_cache=True``, ``OrderOption.RANDOM``.

Modes: ``RGBImageField raw``: write_mode ``raw``, for images of three channels alone; ``NDArrayField``. Both decoded by
FFCV's own decoder into a tensor, and shown as (B, C, H, W) without a copy, where FFCV can.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from ffcv.fields import IntField, NDArrayField, RGBImageField
from ffcv.fields.decoders import IntDecoder, NDArrayDecoder, SimpleRGBImageDecoder
from ffcv.loader import Loader, OrderOption
from ffcv.transforms import ToTensor, ToTorchImage
from ffcv.writer import DatasetWriter

from benchmarks.peers import WORKERS
from benchmarks.samples import Arrays


def write(source: Path, target: Path, mode: str) -> None:
    """One .beton file."""
    arrays = Arrays(source)
    field = RGBImageField(write_mode="raw") if _is_image(mode) else NDArrayField(np.dtype("uint8"), arrays[0][0].shape)
    writer = DatasetWriter(str(target / "data.beton"), {"image": field, "label": IntField()}, num_workers=WORKERS)
    writer.from_indexed_dataset(arrays)


def load(source: Path, target: Path, batch: int, mode: str) -> Iterable[Any]:
    """The loader; the last batch of an epoch may be short, as everyone's."""
    image = [SimpleRGBImageDecoder(), ToTensor(), ToTorchImage()] if _is_image(mode) else [NDArrayDecoder(), ToTensor()]
    return Loader(  # type: ignore[no-any-return]
        str(target / "data.beton"),
        batch_size=batch,
        num_workers=WORKERS,
        order=OrderOption.RANDOM,
        os_cache=True,
        drop_last=False,
        pipelines={"image": image, "label": [IntDecoder(), ToTensor()]},
    )


def _is_image(mode: str) -> bool:
    return mode.startswith("RGBImageField")


def columns(batch: Any) -> dict[str, Any]:
    """Labels come as (B, 1)."""
    return {"image": batch[0], "label": batch[1][:, 0]}
