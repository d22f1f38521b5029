"""What all tasks have in common, and which object of each image a task is about."""

from __future__ import annotations

import dataclasses
import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from tensorstore_ds.loading.collate import PackedObjects

Batch = Mapping[str, Any]
Sums = dict[str, Tensor]


@dataclass(frozen=True)
class Task(ABC):
    """One thing to learn. Tasks are values: two with the same attributes are the same.

    Attributes:
        classes: names, in the order of the labels.
        keypoints: names, in their stored order.
        label_field: the field of labels; empty where objects have them.
        objects_field: the field of objects; empty where none is needed.
    """

    classes: tuple[str, ...] = ()
    keypoints: tuple[str, ...] = ()
    label_field: str = ""
    objects_field: str = ""

    name: ClassVar[str]
    #: The metric by which the best epoch is chosen.
    metric: ClassVar[str]
    #: Whether more of it is better.
    higher_is_better: ClassVar[bool] = True

    @property
    def outputs(self) -> int:
        """Numbers that a model computes for an image: a logit per class, then x and y per keypoint."""
        return len(self.classes) + 2 * len(self.keypoints)

    @property
    def fields(self) -> tuple[str, ...]:
        """Fields of a store that are needed."""
        return tuple(name for name in ("image", self.label_field, self.objects_field) if name)

    @abstractmethod
    def targets(self, batch: Batch) -> Any:
        """What is to be predicted: tensors on the batch's device, computed without waiting for it."""

    @abstractmethod
    def loss(self, outputs: Tensor, targets: Any, *, label_smoothing: float = 0.0) -> Tensor:
        """The mean loss, a scalar, of outputs (B, `outputs`)."""

    @abstractmethod
    def sums(self, outputs: Tensor, targets: Any, *, detailed: bool = False) -> Sums:
        """What metrics are computed from: tensors to be added up. `detailed`: all of it, for an evaluation."""

    @abstractmethod
    def metrics(self, sums: Mapping[str, Tensor]) -> dict[str, float]:
        """Metrics by name, of added `sums`; NaN of nothing."""

    @abstractmethod
    def predictions(self, outputs: Tensor, image_size: tuple[int, int]) -> list[dict[str, Any]]:
        """What outputs (B, `outputs`) say about each image; keypoints in pixels of an image (height, width)."""

    def as_data(self) -> dict[str, Any]:
        """As plain values, for a checkpoint."""
        return {"name": self.name, **dataclasses.asdict(self)}


def objects_of(batch: Batch, field: str) -> PackedObjects:
    """The packed objects of a batch."""
    values = dict(batch[field])
    return PackedObjects(values.pop("offsets"), values)


def largest(objects: PackedObjects) -> Tensor:
    """(B,) int64: the object of each image with the largest box, the first of equals; M where there is none.

    Without boxes the first. Nothing waits for the device.
    """
    image, total = objects.image_index, objects.total
    index = torch.arange(total, device=image.device)
    if "boxes" in objects.values:
        boxes = objects.values["boxes"]
        area = (boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1])
        most = area.new_full((len(objects),), -1.0).scatter_reduce(0, image, area, "amax")
        index = torch.where(area == most[image], index, total)
    first = index.new_full((len(objects),), total)
    return first.scatter_reduce(0, image, index, "amin")


def pick(values: Tensor, chosen: Tensor, missing: float) -> Tensor:
    """Rows (B, ...) of `values` (M, ...) at `chosen` (B,), `missing` where it is M."""
    return torch.cat([values, values.new_full((1, *values.shape[1:]), missing)])[chosen]


def ratio(part: Tensor, whole: Tensor) -> float:
    """`part / whole`, NaN where the whole is 0."""
    return float(part) / float(whole) if float(whole) else math.nan
