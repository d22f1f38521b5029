"""A class and keypoints at once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor

from tensorstore_ds.training.tasks.base import Batch, Sums, Task
from tensorstore_ds.training.tasks.classification import Classification
from tensorstore_ds.training.tasks.keypoints import Keypoints


@dataclass(frozen=True)
class ClassificationKeypoints(Task):
    """A class and keypoints: the sum of both losses, the metrics of both; the best epoch has the best accuracy."""

    name: ClassVar[str] = "classification+keypoints"
    metric: ClassVar[str] = "accuracy"

    @property
    def both(self) -> tuple[Classification, Keypoints]:
        """The two tasks; outputs of the first come first."""
        labels = Classification(self.classes, (), self.label_field, "" if self.label_field else self.objects_field)
        return labels, Keypoints((), self.keypoints, "", self.objects_field)

    def targets(self, batch: Batch) -> tuple[Any, Any]:
        """Those of both."""
        labels, keypoints = self.both
        return labels.targets(batch), keypoints.targets(batch)

    def loss(self, outputs: Tensor, targets: tuple[Any, Any], *, label_smoothing: float = 0.0) -> Tensor:
        """Cross entropy and smooth L1."""
        first, second = (
            task.loss(part, target, label_smoothing=label_smoothing)
            for task, part, target in self._each(outputs, targets)
        )
        return first + second

    def sums(self, outputs: Tensor, targets: tuple[Any, Any], *, detailed: bool = False) -> Sums:
        """Those of both."""
        first, second = (
            task.sums(part, target, detailed=detailed) for task, part, target in self._each(outputs, targets)
        )
        return first | second

    def metrics(self, sums: Mapping[str, Tensor]) -> dict[str, float]:
        """Those of both."""
        labels, keypoints = self.both
        return labels.metrics(sums) | keypoints.metrics(sums)

    def predictions(self, outputs: Tensor, image_size: tuple[int, int]) -> list[dict[str, Any]]:
        """What both say."""
        each = self._each(outputs, (None, None))
        first, second = (task.predictions(part, image_size) for task, part, _ in each)
        return [labels | keypoints for labels, keypoints in zip(first, second, strict=True)]

    def _each(self, outputs: Tensor, targets: tuple[Any, Any]) -> Iterable[tuple[Task, Tensor, Any]]:
        """Each task with its part of the outputs, and its targets."""
        sizes = [task.outputs for task in self.both]
        return zip(self.both, outputs.split(sizes, dim=1), targets, strict=True)  # type: ignore[no-untyped-call]
