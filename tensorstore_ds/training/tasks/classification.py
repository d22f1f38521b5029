"""One label per image."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn import functional

from tensorstore_ds.training.tasks.base import Batch, Sums, Task, largest, objects_of, pick, ratio

#: Of a target that is absent; torch's cross entropy leaves it out.
ABSENT = -100
#: Confusion matrices are kept up to this many classes: 8 MB of counts.
MAX_CONFUSION = 1000


@dataclass(frozen=True)
class Classification(Task):
    """One label per image, or the label of its largest object: cross entropy, accuracy."""

    name: ClassVar[str] = "classification"
    metric: ClassVar[str] = "accuracy"

    def targets(self, batch: Batch) -> Tensor:
        """(B,) int64: the class, or `ABSENT`."""
        if self.label_field:
            labels: Tensor = batch[self.label_field]
            return labels
        objects = objects_of(batch, self.objects_field)
        return pick(objects.values["labels"], largest(objects), ABSENT)

    def loss(self, outputs: Tensor, targets: Tensor, *, label_smoothing: float = 0.0) -> Tensor:
        """Cross entropy; of (B, classes) targets too, as mixup computes them."""
        outputs = outputs.float()
        if targets.is_floating_point():
            return functional.cross_entropy(outputs, targets, label_smoothing=label_smoothing)
        losses = functional.cross_entropy(outputs, targets, reduction="none", label_smoothing=label_smoothing)
        return losses.sum() / (targets != ABSENT).sum().clamp(min=1)  # 0, not NaN, where all are absent

    def sums(self, outputs: Tensor, targets: Tensor, *, detailed: bool = False) -> Sums:
        """Counts of samples and of right answers; `confusion` (classes, classes): a row per true class."""
        labels = targets.argmax(1) if targets.is_floating_point() else targets
        known, predicted = labels != ABSENT, outputs.argmax(1)
        sums = {"labelled": known.sum(), "correct": (predicted == labels).sum()}
        classes = len(self.classes)
        if detailed and classes <= MAX_CONFUSION:
            pairs = torch.where(known, labels * classes + predicted, classes**2)  # what is absent is counted beyond
            counts = torch.zeros(classes**2 + 1, dtype=torch.int64, device=outputs.device)
            counts.scatter_add_(0, pairs, torch.ones_like(pairs))
            sums["confusion"] = counts[:-1].view(classes, classes)
        return sums

    def metrics(self, sums: Mapping[str, Tensor]) -> dict[str, float]:
        """`accuracy`; and `balanced_accuracy`, the mean of the classes' own, where there is a confusion matrix."""
        metrics = {"accuracy": ratio(sums["correct"], sums["labelled"])}
        if "confusion" in sums:
            samples = sums["confusion"].sum(1)
            some = samples > 0
            recall = sums["confusion"].diag()[some] / samples[some]
            metrics["balanced_accuracy"] = float(recall.mean()) if len(recall) else math.nan
        return metrics

    def predictions(self, outputs: Tensor, image_size: tuple[int, int]) -> list[dict[str, Any]]:
        """The `class`, its `probability`, and the `best` five."""
        probabilities, order = outputs.float().softmax(1).topk(min(5, len(self.classes)))
        best = [
            [{"class": self.classes[i], "probability": p} for i, p in zip(*row, strict=True)]
            for row in zip(order.tolist(), probabilities.tolist(), strict=True)
        ]
        return [{**classes[0], "best": classes} for classes in best]
