"""Any number of classes per image: those of its objects."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn import functional

from tensorstore_ds.training.tasks.base import Batch, Sums, Task, objects_of, ratio


@dataclass(frozen=True)
class MultiLabel(Task):
    """The classes of an image's objects, any number: binary cross entropy of each, F1."""

    name: ClassVar[str] = "multilabel"
    metric: ClassVar[str] = "f1"

    def targets(self, batch: Batch) -> Tensor:
        """(B, classes) float32: 1 where an object of the class is in the image."""
        objects = objects_of(batch, self.objects_field)
        labels = objects.values["labels"]
        hot = torch.zeros(len(objects), len(self.classes), device=labels.device)
        return hot.index_put_((objects.image_index, labels), hot.new_ones(()))

    def loss(self, outputs: Tensor, targets: Tensor, *, label_smoothing: float = 0.0) -> Tensor:
        """Binary cross entropy, the mean over classes."""
        soft = targets * (1 - label_smoothing) + label_smoothing / 2
        return functional.binary_cross_entropy_with_logits(outputs.float(), soft)

    def sums(self, outputs: Tensor, targets: Tensor, *, detailed: bool = False) -> Sums:
        """By class, (classes,): those predicted, those there, and those rightly predicted; and images all right."""
        predicted, present = outputs > 0, targets > 0.5
        return {
            "images": torch.full((), len(outputs), device=outputs.device),
            "exact": (predicted == present).all(1).sum(),
            "predicted": predicted.sum(0),
            "present": present.sum(0),
            "right": (predicted & present).sum(0),
        }

    def metrics(self, sums: Mapping[str, Tensor]) -> dict[str, float]:
        """`f1` of all decisions together, `macro_f1` the mean over the classes there are, `exact` share of images."""
        both = sums["predicted"] + sums["present"]
        of_class = 2 * sums["right"] / both.clamp(min=1)
        some = both > 0
        return {
            "f1": ratio(2 * sums["right"].sum(), both.sum()),
            "macro_f1": float(of_class[some].mean()) if bool(some.any()) else math.nan,
            "exact": ratio(sums["exact"], sums["images"]),
        }

    def predictions(self, outputs: Tensor, image_size: tuple[int, int]) -> list[dict[str, Any]]:
        """`classes`: those with a probability over one half; `probabilities`: of all."""
        rows = outputs.float().sigmoid().tolist()
        named = [dict(zip(self.classes, row, strict=True)) for row in rows]
        return [{"classes": [n for n, p in row.items() if p > 0.5], "probabilities": row} for row in named]
