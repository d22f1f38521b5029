"""What is learned from a store: targets from a batch, loss, and metrics that can be added up over batches and ranks."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from tensorstore_ds.errors import FormatError, OptionError, Problem
from tensorstore_ds.format.schema import Field, TableField
from tensorstore_ds.loading.augment.base import on_device
from tensorstore_ds.reading.store import Split
from tensorstore_ds.training.options import Task as TaskName
from tensorstore_ds.training.task_base import Batch, Sums, Task, largest, objects_of, pick

#: Of a target that is absent; torch's cross entropy leaves it out.
ABSENT = -100
#: Confusion matrices are kept up to this many classes: 8 MB of counts.
MAX_CONFUSION = 1000
#: Where the loss of a landmark turns from a square to a line, in sides of the image.
SMOOTH = 0.02


@dataclass(frozen=True)
class Classification(Task):
    """One label an image: cross entropy, accuracy."""

    name: ClassVar[str] = "classification"
    metric: ClassVar[str] = "accuracy"

    @property
    def outputs(self) -> int:
        """A logit a class."""
        return len(self.classes)

    def targets(self, batch: Batch) -> Tensor:
        """(B,) int64: the class, or `ABSENT`."""
        if self.label_field:
            labels: Tensor = batch[self.label_field]
            return labels
        objects = objects_of(batch, self.objects_field)
        return pick(objects.values["labels"], largest(objects), ABSENT)

    def loss(self, outputs: Tensor, targets: Tensor, *, label_smoothing: float = 0.0) -> Tensor:
        """Cross entropy; of (B, classes) targets too, as mixup makes them."""
        outputs = outputs.float()
        if targets.is_floating_point():
            return functional.cross_entropy(outputs, targets, label_smoothing=label_smoothing)
        losses = functional.cross_entropy(outputs, targets, reduction="none", label_smoothing=label_smoothing)
        return losses.sum() / (targets != ABSENT).sum().clamp(min=1)  # 0, not NaN, where all are absent

    def sums(self, outputs: Tensor, targets: Tensor, *, detailed: bool = False) -> Sums:
        """Counts of samples and of right answers; `confusion` (classes, classes): a row a true class."""
        labels = targets.argmax(1) if targets.is_floating_point() else targets
        known, predicted = labels != ABSENT, outputs.argmax(1)
        sums = {"labelled": known.sum(), "correct": (predicted == labels).sum()}
        classes = self.outputs
        if detailed and classes <= MAX_CONFUSION:
            pairs = torch.where(known, labels * classes + predicted, classes**2)  # what is absent is counted beyond
            counts = torch.zeros(classes**2 + 1, dtype=torch.int64, device=outputs.device)
            counts.scatter_add_(0, pairs, torch.ones_like(pairs))
            sums["confusion"] = counts[:-1].view(classes, classes)
        return sums

    def metrics(self, sums: Mapping[str, Tensor]) -> dict[str, float]:
        """`accuracy`; and `balanced_accuracy`, the mean of the classes' own, where there is a confusion matrix."""
        found = {"accuracy": _ratio(sums["correct"], sums["labelled"])}
        if "confusion" in sums:
            samples = sums["confusion"].sum(1)
            some = samples > 0
            recall = sums["confusion"].diag()[some] / samples[some]
            found["balanced_accuracy"] = float(recall.mean()) if len(recall) else math.nan
        return found

    def predictions(self, outputs: Tensor, image_size: tuple[int, int]) -> list[dict[str, Any]]:
        """The `class`, its `probability`, and the `best` five."""
        chances, order = outputs.float().softmax(1).topk(min(5, self.outputs))
        best = [
            [{"class": self.classes[i], "probability": p} for i, p in zip(*row, strict=True)]
            for row in zip(order.tolist(), chances.tolist(), strict=True)
        ]
        return [{**names[0], "best": names} for names in best]


@dataclass(frozen=True)
class MultiLabel(Task):
    """The classes of an image's objects, any number: binary cross entropy of each, F1."""

    name: ClassVar[str] = "multilabel"
    metric: ClassVar[str] = "f1"

    @property
    def outputs(self) -> int:
        """A logit a class."""
        return len(self.classes)

    def targets(self, batch: Batch) -> Tensor:
        """(B, classes) float32: 1 where an object of the class is in the image."""
        objects = objects_of(batch, self.objects_field)
        labels = objects.values["labels"]
        hot = torch.zeros(len(objects), self.outputs, device=labels.device)
        return hot.index_put_((objects.image_index, labels), hot.new_ones(()))

    def loss(self, outputs: Tensor, targets: Tensor, *, label_smoothing: float = 0.0) -> Tensor:
        """Binary cross entropy, the mean over classes."""
        soft = targets * (1 - label_smoothing) + label_smoothing / 2
        return functional.binary_cross_entropy_with_logits(outputs.float(), soft)

    def sums(self, outputs: Tensor, targets: Tensor, *, detailed: bool = False) -> Sums:
        """By class, (classes,): those found, those there, and those rightly found; and images all right."""
        found, there = outputs > 0, targets > 0.5
        return {
            "images": torch.full((), len(outputs), device=outputs.device),
            "exact": (found == there).all(1).sum(),
            "found": found.sum(0),
            "there": there.sum(0),
            "right": (found & there).sum(0),
        }

    def metrics(self, sums: Mapping[str, Tensor]) -> dict[str, float]:
        """`f1` of all decisions together, `macro_f1` the mean over the classes there are, `exact` share of images."""
        both = sums["found"] + sums["there"]
        of_class = 2 * sums["right"] / both.clamp(min=1)
        some = both > 0
        return {
            "f1": _ratio(2 * sums["right"].sum(), both.sum()),
            "macro_f1": float(of_class[some].mean()) if bool(some.any()) else math.nan,
            "exact": _ratio(sums["exact"], sums["images"]),
        }

    def predictions(self, outputs: Tensor, image_size: tuple[int, int]) -> list[dict[str, Any]]:
        """`classes`: those with a probability over one half; `probabilities`: of all."""
        rows = outputs.float().sigmoid().tolist()
        named = [dict(zip(self.classes, row, strict=True)) for row in rows]
        return [{"classes": [n for n, p in row.items() if p > 0.5], "probabilities": row} for row in named]


@dataclass(frozen=True)
class Landmarks(Task):
    """K points of an image's largest object: smooth L1 of their places, normalised mean error.

    The normalised mean error is the mean distance of predicted and true points, relative to ``sqrt(w * h)`` of the
    object's box (Bulat and Tzimiropoulos, How far are we from solving the 2D & 3D face alignment problem, ICCV 2017);
    of the image where objects have no boxes. Absent points (NaN) count nowhere.
    """

    name: ClassVar[str] = "landmarks"
    metric: ClassVar[str] = "nme"
    higher_is_better: ClassVar[bool] = False

    @property
    def outputs(self) -> int:
        """x and y a point."""
        return 2 * len(self.points)

    def targets(self, batch: Batch) -> dict[str, Tensor]:
        """`points` (B, K, 2) float32, x y in sides of the image from its middle, NaN where absent; `side` (B, 2).

        `side` is the image's width and height in units of the error, such as the square root of the box's area.
        """
        objects = objects_of(batch, self.objects_field)
        height, width = batch["image"].shape[-2:]
        chosen = largest(objects)
        points = pick(objects.values["keypoints"], chosen, math.nan)
        sides = on_device(torch.tensor([width, height], dtype=points.dtype), points.device)
        unit = points.new_full((len(points),), math.sqrt(width * height))
        if "boxes" in objects.values:
            box = pick(objects.values["boxes"], chosen, math.nan)
            unit = ((box[:, 2] - box[:, 0]) * (box[:, 3] - box[:, 1])).sqrt()
        return {"points": points / sides - 0.5, "side": sides / unit[:, None]}

    def loss(self, outputs: Tensor, targets: Mapping[str, Tensor], *, label_smoothing: float = 0.0) -> Tensor:
        """Smooth L1 (Girshick, Fast R-CNN, ICCV 2015), the mean over the coordinates of points that are there."""
        points = targets["points"]
        there = points.isfinite()
        losses = functional.smooth_l1_loss(
            outputs.float().view_as(points), points.nan_to_num(0.0), beta=SMOOTH, reduction="none"
        )
        return (losses * there).sum() / there.sum().clamp(min=1)

    def sums(self, outputs: Tensor, targets: Mapping[str, Tensor], *, detailed: bool = False) -> Sums:
        """By point, (K,): `distances` in units of the box, and `present`, how many there are."""
        points = targets["points"]
        away = (outputs.float().view_as(points) - points) * targets["side"][:, None]
        distances = away.norm(dim=2)
        there = distances.isfinite()
        return {"distances": distances.where(there, 0.0).double().sum(0), "present": there.sum(0)}

    def metrics(self, sums: Mapping[str, Tensor]) -> dict[str, float]:
        """`nme`: the normalised mean error over all points."""
        return {"nme": _ratio(sums["distances"].sum(), sums["present"].sum())}

    def predictions(self, outputs: Tensor, image_size: tuple[int, int]) -> list[dict[str, Any]]:
        """`points`: x and y by name, in pixels."""
        height, width = image_size
        places = (outputs.float().view(len(outputs), -1, 2) + 0.5) * outputs.new_tensor([width, height]).float()
        return [{"points": dict(zip(self.points, rows, strict=True))} for rows in places.tolist()]


@dataclass(frozen=True)
class ClassificationLandmarks(Task):
    """A class and the landmarks at once: the sum of both losses; the best epoch is that of the best accuracy."""

    name: ClassVar[str] = "classification+landmarks"
    metric: ClassVar[str] = "accuracy"

    @property
    def parts(self) -> tuple[Classification, Landmarks]:
        """The two tasks; outputs of the first come first."""
        classes = Classification(self.classes, (), self.label_field, "" if self.label_field else self.objects_field)
        return classes, Landmarks((), self.points, "", self.objects_field)

    @property
    def outputs(self) -> int:
        """Logits, then x and y a point."""
        return sum(part.outputs for part in self.parts)

    def targets(self, batch: Batch) -> tuple[Any, Any]:
        """Those of both."""
        first, second = self.parts
        return first.targets(batch), second.targets(batch)

    def loss(self, outputs: Tensor, targets: tuple[Any, Any], *, label_smoothing: float = 0.0) -> Tensor:
        """Cross entropy and smooth L1."""
        losses = [
            part.loss(out, target, label_smoothing=label_smoothing)
            for part, out, target in zip(self.parts, self._divided(outputs), targets, strict=True)
        ]
        return losses[0] + losses[1]

    def sums(self, outputs: Tensor, targets: tuple[Any, Any], *, detailed: bool = False) -> Sums:
        """Those of both."""
        found: Sums = {}
        for part, out, target in zip(self.parts, self._divided(outputs), targets, strict=True):
            found |= part.sums(out, target, detailed=detailed)
        return found

    def metrics(self, sums: Mapping[str, Tensor]) -> dict[str, float]:
        """Those of both."""
        first, second = self.parts
        return {**first.metrics(sums), **second.metrics(sums)}

    def predictions(self, outputs: Tensor, image_size: tuple[int, int]) -> list[dict[str, Any]]:
        """What both say."""
        named = [
            part.predictions(out, image_size) for part, out in zip(self.parts, self._divided(outputs), strict=True)
        ]
        return [{**first, **second} for first, second in zip(*named, strict=True)]

    def _divided(self, outputs: Tensor) -> Sequence[Tensor]:
        return torch.split(outputs, [part.outputs for part in self.parts], dim=1)


TASKS: Mapping[str, type[Task]] = {
    task.name: task for task in (Classification, MultiLabel, Landmarks, ClassificationLandmarks)
}


def task_from_data(data: Mapping[str, Any]) -> Task:
    """The inverse of `Task.as_data`.

    Raises:
        ValueError, TypeError, KeyError: it is none.
    """
    texts = [data["label_field"], data["objects_field"], *data["classes"], *data["points"]]
    if not all(isinstance(text, str) for text in texts):
        raise ValueError("task: expected names, found something else")
    task = TASKS[data["name"]](tuple(data["classes"]), tuple(data["points"]), *texts[:2])
    parts = task.parts if isinstance(task, ClassificationLandmarks) else (task,)
    if not all(part.outputs for part in parts):
        raise ValueError(f"task: expected classes or points of {task.name}, found none")
    return task


def task_of(split: Split, task: TaskName = "auto", *, eval_split: Split | None = None) -> Task:
    """The task that a store's fields are good for.

    Args:
        split: to be trained on.
        task: its name; ``auto``: labels if there are any, else landmarks, else the classes of objects.
        eval_split: to be evaluated on; its labels are checked too.

    Raises:
        OptionError: the store has no field for the task, or one class only.
        FormatError: a label is not the index of a class.
    """
    fields = split.fields
    label = next((name for name, field in fields.items() if field.kind == "label"), "")
    objects = "objects" if "objects" in fields and fields["objects"].kind == "objects" else ""  # what transforms move
    classes = _classes(fields[label]) if label else _classes(fields[objects]) if _has(fields, objects, "labels") else ()
    points = _points(fields[objects]) if _has(fields, objects, "keypoints") else ()
    labelled_objects = objects if _has(fields, objects, "labels") else ""
    possible: dict[str, Task] = {}
    if label:
        possible["classification"] = Classification(classes, label_field=label)
    if points:
        possible["landmarks"] = Landmarks(points=points, objects_field=objects)
    if labelled_objects:
        possible["multilabel"] = MultiLabel(_classes(fields[objects]), objects_field=objects)
    if points and classes:
        possible["classification+landmarks"] = ClassificationLandmarks(classes, points, label, objects)
    if not possible or (task != "auto" and task not in possible):
        raise OptionError(_impossible(split, task, possible))
    chosen = possible[task] if task != "auto" else next(iter(possible.values()))
    if len(chosen.classes) < 2 and not isinstance(chosen, Landmarks):
        found = f"one, {chosen.classes[0]!r}" if chosen.classes else "none"
        raise OptionError(
            f"{split.name}: expected two classes or more to tell apart, found {found}. "
            f"Convert samples of other classes, too{', or use --task landmarks' if points else ''}."
        )
    for checked in (split, eval_split):
        if checked is not None:
            class_counts(chosen, checked)
    return chosen


def class_counts(task: Task, split: Split) -> Any:
    """(classes,) int64: how many labels a split has of each class of the task.

    Raises:
        FormatError: a label is not the index of a class.
    """
    classes = len(task.classes)
    if not classes:
        return np.zeros(0, np.int64)
    labels = np.asarray(split[task.label_field] if task.label_field else split[task.objects_field]["labels"])
    if labels.size and not 0 <= labels.min() <= labels.max() < classes:
        where = f"{split.name}/{task.label_field or task.objects_field + '/labels'}"
        message = f"expected labels in [0, {classes}), found {labels.min()} to {labels.max()}."
        raise FormatError(Problem(where, "label-range", message), "Convert again.")
    return np.bincount(labels, minlength=classes)


def _has(fields: Mapping[str, Field], name: str, value: str) -> bool:
    field = fields.get(name)
    return isinstance(field, TableField) and value in field.values


def _classes(field: Field) -> tuple[str, ...]:
    return field.classes


def _points(field: Field) -> tuple[str, ...]:
    return field.keypoints if isinstance(field, TableField) else ()


def _impossible(split: Split, task: str, possible: Mapping[str, Task]) -> str:
    found = ", ".join(f"{name} ({field.kind})" for name, field in split.fields.items())
    if not possible:
        return (
            f"{split.name}: expected labels, landmarks or objects with classes to learn from, found {found}. "
            "Convert images in class folders, or with annotations."
        )
    needed = {
        "classification": "a label an image",
        "multilabel": "objects with classes",
        "landmarks": "objects with landmarks",
        "classification+landmarks": "objects with landmarks, and labels",
    }[task]
    return f"{split.name}: expected {needed} for --task {task}, found {found}. Use --task {' or '.join(possible)}."


def _ratio(part: Tensor, whole: Tensor) -> float:
    return float(part) / float(whole) if float(whole) else math.nan
