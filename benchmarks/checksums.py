"""Proof that a loader delivered every sample once, with its own label or boxes: the same digest for all loaders."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.samples import open_arrays

if TYPE_CHECKING:
    from torch import Tensor

#: The sum of a sample's pixels, and its label or its objects, sorted.
Mark = tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Columns:
    """What a batch of B samples holds.

    Attributes:
        images: (B, ...) uint8, axes in any order; or B tensors of one image each.
        labels: (B,), any integer type; empty where there are objects.
        objects: B pairs of labels (m,) and boxes (m, 4), x1 y1 x2 y2 in pixels.
    """

    images: Tensor | Sequence[Tensor]
    labels: Tensor
    objects: Sequence[tuple[Tensor, Tensor]] | None = None

    def __len__(self) -> int:
        return len(self.images)


def marks(columns: Columns, grey: bool) -> Iterable[Mark]:
    """A mark a sample.

    Args:
        columns: of a batch.
        grey: the data are of one channel: three equal ones count as one.
    """
    for i, image in enumerate(columns.images):
        channels = 3 if grey and 3 in image.shape else 1
        total = int(image.sum(dtype=_int64()))
        if total % channels:
            raise ValueError(f"expected {channels} equal channels, found a sum of {total}")
        if columns.objects is None:
            yield total // channels, int(columns.labels[i])
        else:
            labels, boxes = columns.objects[i]
            yield total, sorted(zip(labels.tolist(), boxes.round().int().tolist(), strict=True))


def digest(found: Iterable[Mark]) -> str:
    """Of any number of marks, whatever their order.

    >>> digest([(1, 2), (3, 4)]) == digest([(3, 4), (1, 2)]) != digest([(1, 2), (1, 2)])
    True
    """
    return hashlib.sha256(repr(sorted(found)).encode()).hexdigest()


def expected_digest(folder: Path) -> str:
    """Of the images and labels of a folder themselves."""
    images, labels = open_arrays(folder)
    sums = [int(image.sum(dtype=np.int64)) for image in images]
    return digest(zip(sums, labels.tolist(), strict=True))


def _int64() -> Any:
    import torch  # only the processes that load have it

    return torch.int64
