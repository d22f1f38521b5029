"""Images that differ in size are compared as crops of one size: the same ones by this library and by torchvision."""

from __future__ import annotations

from typing import Any

from torchvision.transforms import v2

from tensorstore_ds.format.kinds import RawImageField
from tensorstore_ds.loading.augment.base import Compose
from tensorstore_ds.loading.augment.geometry import RandomHorizontalFlip, RandomResizedCrop, Resize
from tensorstore_ds.reading.store import Split
from tensorstore_ds.training.data import image_shape

Size = tuple[int, int]


def image_size_of(split: Split, asked: Size | None) -> Size | None:
    """(height, width) of the crops: as asked for, else that of `tsds train` if images differ in size; None: whole."""
    if asked is not None or isinstance(split.fields["image"], RawImageField):
        return asked
    sizes = split.image_shapes[:, :2]
    if (sizes == sizes[0]).all():
        return None
    height, width, _ = image_shape(split)
    return height, width


def decode_plan(size: Size | None, *, objects: bool, seed: int = 0) -> Compose | None:
    """The plan of a data set for crops of a size; images with `objects` are resized whole, so that none is cut away."""
    if size is None:
        return None
    return Compose([Resize(size)] if objects else [RandomResizedCrop(size), RandomHorizontalFlip()], seed=seed)


def torchvision_steps(size: Size, *, objects: bool) -> list[Any]:
    """The transforms of torchvision that do the same with a PIL image."""
    if objects:
        return [v2.Resize(size, antialias=True)]
    return [v2.RandomResizedCrop(size, antialias=True), v2.RandomHorizontalFlip()]


def crops_in_words(size: Size, *, objects: bool) -> str:
    """What the crops are.

    >>> crops_in_words((224, 224), objects=True)
    '224x224 by Resize'
    """
    how = "Resize" if objects else "RandomResizedCrop and RandomHorizontalFlip"
    return f"{'x'.join(map(str, size))} by {how}"
