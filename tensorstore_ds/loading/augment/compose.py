"""Augmentation of whole batches, on the device that they are on.

Every sample has parameters of its own, a function of (seed, epoch, row), and all are applied by a few batched
operations. The names are those of `torchvision.transforms.v2`, the results too.

>>> import torch
>>> augment = Compose([RandomCrop(28, padding=2), RandomHorizontalFlip(), Normalize([0.5], [0.25])], seed=1)
>>> batch = {"image": torch.zeros(2, 1, 28, 28, dtype=torch.uint8), "label": torch.tensor([3, 7])}
>>> augment(batch, rows=torch.tensor([40, 41]), epoch=0)["image"].dtype
torch.float32
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from torch import nn

from tensorstore_ds.loading.augment.base import BatchTransform, Rows, check_images, check_rows, fold
from tensorstore_ds.loading.augment.color import ColorJitter, Normalize
from tensorstore_ds.loading.augment.geometry import RandomCrop, RandomHorizontalFlip, RandomResizedCrop

__all__ = [
    "BatchTransform",
    "ColorJitter",
    "Compose",
    "Normalize",
    "RandomCrop",
    "RandomHorizontalFlip",
    "RandomResizedCrop",
]


class Compose(nn.Module):
    """One batch transform after the other.

    Each is told other rows, made of (seed, place in the list, row), so that two of one kind draw different numbers.

    Args:
        transforms: modules called as `BatchTransform.forward` is.
        seed: of all of them; their own seeds count too.
    """

    def __init__(self, transforms: Sequence[nn.Module], *, seed: int = 0) -> None:
        super().__init__()
        self.transforms = nn.ModuleList(transforms)
        self.seed = seed

    def forward(self, batch: Mapping[str, Any], rows: Rows | None = None, epoch: int | None = None) -> dict[str, Any]:
        """Transform a batch, as `BatchTransform.forward`."""
        numbers = check_rows(rows, epoch, len(check_images(batch)))
        result = dict(batch)
        for place, transform in enumerate(self.transforms):
            keys = fold(self.seed, place, numbers.view(np.uint64)).view(np.int64)
            result = transform(result, keys, epoch or 0)
        return result
