"""Tasks, each with its targets from a batch, its loss, and the sums from which metrics follow.

Sums are added up over batches and ranks. `data.py` finds the tasks that a store supports.
"""

from __future__ import annotations

import dataclasses
import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from tensorstore_ds.annex.training.coco_map import Precision, coco_map
from tensorstore_ds.format.kinds.label import UNLABELLED
from tensorstore_ds.format.kinds.objects import IGNORED
from tensorstore_ds.loading.buffers import on_device
from tensorstore_ds.loading.collate import PackedObjects, collate_objects, map_tensors

Batch = Mapping[str, Any]
Sums = dict[str, Tensor]

#: The class of an absent target, which torch's cross entropy ignores.
ABSENT = -100
#: Confusion matrices are kept up to this many classes: 8 MB of counts.
MAX_CONFUSION = 1000
#: Sums that are rows, which are concatenated instead of added.
ROWS = ("detections", "objects", "decisions")
#: Areas of boxes of one size differ by less than this share, once the boxes are moved and resized.
ROUNDING = 1e-4
#: Where the loss of a keypoint changes from quadratic to linear, relative to the image's sides.
SMOOTH = 0.02


@dataclass(frozen=True)
class Task(ABC):
    """A task to learn. Two tasks with the same attributes are equal."""

    classes: tuple[str, ...] = ()  #: Names of the classes, in the order of the labels.
    keypoints: tuple[str, ...] = ()  #: Names of the keypoints, in stored order.
    label_field: str = ""  #: Name of the field of labels; empty if objects have the labels.
    objects_field: str = ""  #: Name of the field of objects; empty if none is needed.

    name: ClassVar[str]  #: Name as in `TrainOptions.task`.
    needs: ClassVar[str]  #: Data that a store must contain for this task, in words.
    metric: ClassVar[str]  #: Metric that selects the best epoch.
    higher_is_better: ClassVar[bool] = True  #: Whether a higher value of `metric` is better.
    has_eval_loss: ClassVar[bool] = True  #: Whether `terms` also accepts the outputs of an evaluation.

    @property
    def outputs(self) -> int:
        """Number of outputs per image, which are a logit per class, followed by x and y per keypoint."""
        return len(self.classes) + 2 * len(self.keypoints)

    @property
    def fields(self) -> tuple[str, ...]:
        """Names of the fields of a store that the task needs."""
        return tuple(name for name in ("image", self.label_field, self.objects_field) if name)

    @abstractmethod
    def targets(self, batch: Batch) -> Any:
        """Return the targets of a batch: tensors on its device, computed without waiting for the device."""

    def run(self, model: nn.Module, images: Tensor, targets: Any) -> Any:
        """Return the outputs of the model for images, (B, `outputs`)."""
        return model(images)

    def first(self, targets: Any, count: int) -> Any:
        """Return the targets of the first `count` images."""
        return map_tensors(targets, lambda tensor: tensor[:count])

    def terms(self, outputs: Any, targets: Any, *, label_smoothing: float = 0.0) -> Sums:
        """Return the sum of each term of the loss over images, `loss` (T,), and the number of images, `learned` (T,).

        An image with some of its targets is a part of an image.
        """
        losses, known = self._each_loss(outputs, targets, label_smoothing)
        size = losses[0].numel()  # of an image
        return {"loss": losses.sum().expand(1) / size, "learned": known.sum().expand(1) / size}

    def loss(self, outputs: Any, targets: Any, *, label_smoothing: float = 0.0) -> Tensor:
        """Return the mean loss of outputs (B, `outputs`), a scalar; 0 without targets."""
        return mean_loss(self.terms(outputs, targets, label_smoothing=label_smoothing))

    def losses(self, outputs: Any, targets: Any) -> Tensor:
        """Return the loss of each image, (B,), NaN if it has no target."""
        losses, known = (each.flatten(1).sum(1) for each in self._each_loss(outputs, targets, 0.0))
        return losses / known

    def _each_loss(self, outputs: Any, targets: Any, smoothing: float) -> tuple[Tensor, Tensor]:
        """Return the loss of each target, (B, ...), 0 if unknown, and whether it is known, or which share of it."""
        raise NotImplementedError

    @abstractmethod
    def sums(self, outputs: Any, targets: Any, *, detailed: bool = False) -> Sums:
        """Return tensors to add up over batches, from which `metrics` are computed.

        With `detailed`, the result contains everything for an evaluation.
        """

    def evaluated(self, sums: Mapping[str, Tensor]) -> Sums:
        """Return the sums of a whole evaluation, with the results that take long to compute."""
        return dict(sums)

    @abstractmethod
    def metrics(self, sums: Mapping[str, Tensor]) -> dict[str, float]:
        """Return metrics by name, computed from added `sums`. Metrics without data are NaN."""

    @abstractmethod
    def predictions(self, outputs: Any, image_size: tuple[int, int]) -> list[dict[str, Any]]:
        """Return the predictions for each image from outputs (B, `outputs`).

        Keypoints are in pixels of an image of `image_size` (height, width).
        """

    def as_data(self) -> dict[str, Any]:
        """Return the task as plain values, for a checkpoint."""
        return {"name": self.name, **dataclasses.asdict(self)}


@dataclass(frozen=True)
class Classification(Task):
    """One label per image, or the label of its largest object: cross entropy.

    Metrics: `accuracy`, and `balanced_accuracy`, the mean accuracy over classes, if there is a confusion matrix.
    """

    name: ClassVar[str] = "classification"
    needs: ClassVar[str] = "a label per image"
    metric: ClassVar[str] = "accuracy"

    def targets(self, batch: Batch) -> Tensor:
        """(B,) int64: the class, or `ABSENT`."""
        if self.label_field:
            labels: Tensor = batch[self.label_field]
            return labels.masked_fill(labels == UNLABELLED, ABSENT)
        objects = objects_of(batch, self.objects_field)
        return pick(objects.values["labels"], largest(objects), ABSENT)

    def _each_loss(self, outputs: Tensor, targets: Tensor, smoothing: float) -> tuple[Tensor, Tensor]:
        outputs = outputs.float()
        if targets.is_floating_point():  # (B, classes), as `blendable` targets are blended
            shares = targets.sum(1)  # share of each image that has a label
            targets = targets / shares.clamp(min=torch.finfo(targets.dtype).tiny)[:, None]
        else:
            shares = (targets != ABSENT).float()
        losses = functional.cross_entropy(outputs, targets, reduction="none", label_smoothing=smoothing)
        return (losses * shares)[:, None], shares[:, None]

    def blendable(self, targets: Tensor) -> Tensor:
        """One-hot `targets` (B, classes) float32 for mixup and cutmix; zeros if the class is absent."""
        return (targets[:, None] == torch.arange(len(self.classes), device=targets.device)).float()

    def sums(self, outputs: Tensor, targets: Tensor, *, detailed: bool = False) -> Sums:
        labels = targets.argmax(1).where(targets.sum(1) > 0, ABSENT) if targets.is_floating_point() else targets
        known, predicted = labels != ABSENT, outputs.argmax(1)
        sums = {"labelled": known.sum(), "correct": (predicted == labels).sum()}
        classes = len(self.classes)
        if detailed and classes <= MAX_CONFUSION:
            pairs = torch.where(known, labels * classes + predicted, classes**2)  # what is absent is counted beyond
            counts = torch.zeros(classes**2 + 1, dtype=torch.int64, device=outputs.device)
            counts.scatter_add_(0, pairs, torch.ones_like(pairs))
            sums["confusion"] = counts[:-1].view(classes, classes)  # a row per true class
        return sums

    def metrics(self, sums: Mapping[str, Tensor]) -> dict[str, float]:
        metrics = {"accuracy": ratio(sums["correct"], sums["labelled"])}
        if "confusion" in sums:
            samples = sums["confusion"].sum(1)
            some = samples > 0
            recall = sums["confusion"].diag()[some] / samples[some]
            metrics["balanced_accuracy"] = float(recall.mean()) if len(recall) else math.nan
        return metrics

    def predictions(self, outputs: Tensor, image_size: tuple[int, int]) -> list[dict[str, Any]]:
        probabilities, order = outputs.float().softmax(1).topk(min(5, len(self.classes)))
        best = [
            [{"class": self.classes[i], "probability": p} for i, p in zip(*row, strict=True)]
            for row in zip(order.tolist(), probabilities.tolist(), strict=True)
        ]
        return [{**classes[0], "best": classes} for classes in best]


@dataclass(frozen=True)
class MultiLabel(Task):
    """Any number of classes per image: its labels, or the classes of its objects. Binary cross entropy of each.

    Metrics: `map`, the mean average precision over classes; at a probability of 0.5 `f1` of all decisions, `macro_f1`,
    the mean over existing classes, and `exact`, the share of images without a wrong decision. Unknown labels are
    neither learned nor counted.
    """

    name: ClassVar[str] = "multilabel"
    needs: ClassVar[str] = "labels of several classes, or objects with classes"
    metric: ClassVar[str] = "map"

    def targets(self, batch: Batch) -> Tensor:
        """(B, classes) float32: 1 if the class or an object of it is in the image; NaN if unknown."""
        if self.label_field:
            rows: Tensor = batch[self.label_field]
            return rows
        objects = objects_of(batch, self.objects_field)
        labels = objects.values["labels"]
        hot = torch.zeros(len(objects), len(self.classes), device=labels.device)
        return hot.index_put_((objects.image_index, labels), hot.new_ones(()))

    def _each_loss(self, outputs: Tensor, targets: Tensor, smoothing: float) -> tuple[Tensor, Tensor]:
        known = ~targets.isnan()
        soft = (targets * (1 - smoothing) + smoothing / 2).nan_to_num(0.0).float()
        return functional.binary_cross_entropy_with_logits(outputs.float(), soft, reduction="none") * known, known

    def blendable(self, targets: Tensor) -> Tensor:
        """(B, classes) float32 for mixup and cutmix: the targets themselves."""
        return targets

    def sums(self, outputs: Tensor, targets: Tensor, *, detailed: bool = False) -> Sums:
        known = ~targets.isnan()
        predicted, present = (outputs > 0) & known, targets > 0.5
        sums = {
            "images": known.any(1).sum(),
            "exact": ((predicted == present).all(1) & known.any(1)).sum(),
            "predicted": predicted.sum(0),  # (classes,), as those that follow
            "present": present.sum(0),
            "right": (predicted & present).sum(0),
        }
        if detailed:  # -1 where it is unknown
            sums["decisions"] = torch.cat([outputs.float(), targets.nan_to_num(-1.0).float()], 1)
        return sums

    def metrics(self, sums: Mapping[str, Tensor]) -> dict[str, float]:
        both = sums["predicted"] + sums["present"]
        some = both > 0
        metrics = {
            "f1": ratio(2 * sums["right"].sum(), both.sum()),
            "macro_f1": float(self.f1(sums)[some].mean()) if bool(some.any()) else math.nan,
            "exact": ratio(sums["exact"], sums["images"]),
        }
        if "decisions" in sums:
            precisions = [each for each in self.average_precisions(sums) if not math.isnan(each)]
            metrics = {"map": sum(precisions) / len(precisions) if precisions else math.nan, **metrics}
        return metrics

    def f1(self, sums: Mapping[str, Tensor]) -> Tensor:
        """(classes,) F1 of the decisions about each class, 0 without decisions."""
        return 2 * sums["right"] / (sums["predicted"] + sums["present"]).clamp(min=1)

    def average_precisions(self, sums: Mapping[str, Tensor]) -> list[float]:
        """Average precision of each class; NaN for a class that applies to no image."""
        scores, truth = sums["decisions"].cpu().double().chunk(2, dim=1)
        return [
            average_precision(score[known], applies[known] > 0)
            for score, applies, known in zip(scores.T, truth.T, (truth >= 0).T, strict=True)
        ]

    def predictions(self, outputs: Tensor, image_size: tuple[int, int]) -> list[dict[str, Any]]:
        rows = outputs.float().sigmoid().tolist()
        named = [dict(zip(self.classes, row, strict=True)) for row in rows]
        return [{"classes": [n for n, p in row.items() if p > 0.5], "probabilities": row} for row in named]


def average_precision(scores: Tensor, truth: Tensor) -> float:
    """The sum over thresholds of the precision times the rise of the recall, as scikit-learn defines it.

    >>> average_precision(torch.tensor([0.1, 0.4, 0.35, 0.8]), torch.tensor([False, False, True, True]))
    0.8333333333333333

    NaN if none of `truth`, (n,) bool, is true.
    """
    scores, order = scores.sort(descending=True)
    found = truth[order].cumsum(0)
    last = torch.cat([scores[1:] != scores[:-1], truth.new_ones(min(1, len(truth)))])  # of equal scores
    found, seen = found[last].double(), last.nonzero()[:, 0] + 1
    risen = torch.diff(found, prepend=found.new_zeros(1))
    return ratio((risen * found / seen).sum(), truth.sum())


@dataclass(frozen=True)
class Keypoints(Task):
    """K keypoints of an image's largest object: smooth L1 of their places (Girshick, Fast R-CNN, ICCV 2015).

    The metric `nme`, normalized mean error, is the mean distance of predicted and true keypoints, relative to
    ``sqrt(w * h)`` of the object's box (Bulat and Tzimiropoulos, How far are we from solving the 2D & 3D face alignment
    problem, ICCV 2017); of the image where objects have no boxes. Absent keypoints (NaN) count nowhere.
    """

    name: ClassVar[str] = "keypoints"
    needs: ClassVar[str] = "objects with keypoints"
    metric: ClassVar[str] = "nme"
    higher_is_better: ClassVar[bool] = False

    def targets(self, batch: Batch) -> dict[str, Tensor]:
        """`keypoints` (B, K, 2) float32, x y in sides of the image from its middle, NaN where absent; `side` (B, 2).

        `side` is the image's width and height in units of the error, such as the square root of the box's area. The
        image is the stored one if the batch has its size, and else the one of the model, whose shape may differ.
        """
        objects = objects_of(batch, self.objects_field)
        height, width = batch["image"].shape[-2:]
        chosen = largest(objects)
        keypoints = pick(objects.values["keypoints"], chosen, math.nan)
        sides = on_device(torch.tensor([width, height], dtype=keypoints.dtype), keypoints.device)
        stored = batch["stored"].flip(1).to(keypoints.dtype) if "stored" in batch else sides.expand(len(keypoints), 2)
        unit = stored.prod(1).sqrt()
        if "boxes" in objects.values:
            box = pick(objects.values["boxes"], chosen, math.nan).view(-1, 2, 2) / sides
            unit = unit * (box[:, 1] - box[:, 0]).prod(1).sqrt()
        return {"keypoints": keypoints / sides - 0.5, "side": stored / unit[:, None]}

    def _each_loss(self, outputs: Tensor, targets: Mapping[str, Tensor], smoothing: float) -> tuple[Tensor, Tensor]:
        keypoints = targets["keypoints"]
        present = keypoints.isfinite()
        losses = functional.smooth_l1_loss(
            outputs.float().view_as(keypoints), keypoints.nan_to_num(0.0), beta=SMOOTH, reduction="none"
        )
        return losses * present, present

    def sums(self, outputs: Tensor, targets: Mapping[str, Tensor], *, detailed: bool = False) -> Sums:
        keypoints = targets["keypoints"]
        error = (outputs.float().view_as(keypoints) - keypoints) * targets["side"][:, None]
        distances = error.norm(dim=2)  # (B, K) in units of the box
        present = distances.isfinite()
        return {
            "distances": distances.where(present, 0.0).sum(0, dtype=_widest(distances.device)),
            "present": present.sum(0),
        }

    def metrics(self, sums: Mapping[str, Tensor]) -> dict[str, float]:
        return {"nme": ratio(sums["distances"].sum(), sums["present"].sum())}

    def predictions(self, outputs: Tensor, image_size: tuple[int, int]) -> list[dict[str, Any]]:
        height, width = image_size
        places = (outputs.float().view(len(outputs), -1, 2) + 0.5) * outputs.new_tensor([width, height]).float()
        return [{"keypoints": dict(zip(self.keypoints, rows, strict=True))} for rows in places.tolist()]


@dataclass(frozen=True)
class ClassificationKeypoints(Task):
    """A class and keypoints: the sum of both losses, the metrics of both; the best epoch has the best accuracy."""

    name: ClassVar[str] = "classification+keypoints"
    needs: ClassVar[str] = "objects with keypoints, and labels"
    metric: ClassVar[str] = "accuracy"

    @property
    def both(self) -> tuple[Classification, Keypoints]:
        """The two tasks, in the order of their outputs."""
        labels = Classification(self.classes, (), self.label_field, "" if self.label_field else self.objects_field)
        return labels, Keypoints((), self.keypoints, "", self.objects_field)

    def targets(self, batch: Batch) -> tuple[Any, Any]:
        labels, keypoints = self.both
        return labels.targets(batch), keypoints.targets(batch)

    def terms(self, outputs: Tensor, targets: tuple[Any, Any], *, label_smoothing: float = 0.0) -> Sums:
        each = self._each(outputs, targets)
        first, second = (task.terms(part, target, label_smoothing=label_smoothing) for task, part, target in each)
        return {name: torch.cat([first[name], second[name]]) for name in first}

    def losses(self, outputs: Tensor, targets: tuple[Any, Any]) -> Tensor:
        losses = torch.stack([task.losses(part, target) for task, part, target in self._each(outputs, targets)])
        return losses.nansum(0).masked_fill(losses.isnan().all(0), math.nan)

    def sums(self, outputs: Tensor, targets: tuple[Any, Any], *, detailed: bool = False) -> Sums:
        each = self._each(outputs, targets)
        first, second = (task.sums(part, target, detailed=detailed) for task, part, target in each)
        return first | second

    def metrics(self, sums: Mapping[str, Tensor]) -> dict[str, float]:
        labels, keypoints = self.both
        return labels.metrics(sums) | keypoints.metrics(sums)

    def predictions(self, outputs: Tensor, image_size: tuple[int, int]) -> list[dict[str, Any]]:
        each = self._each(outputs, (None, None))
        first, second = (task.predictions(part, image_size) for task, part, _ in each)
        return [labels | keypoints for labels, keypoints in zip(first, second, strict=True)]

    def _each(self, outputs: Tensor, targets: tuple[Any, Any]) -> Iterable[tuple[Task, Tensor, Any]]:
        """Each task with its part of the outputs, and its targets."""
        sizes = [task.outputs for task in self.both]
        return zip(self.both, outputs.split(sizes, dim=1), targets, strict=True)  # type: ignore[no-untyped-call]


@dataclass(frozen=True)
class Detection(Task):
    """Boxes and classes of an image's objects, by the losses of torchvision's detectors.

    Metrics: `map` of COCO, the mean over IoU from 0.5 to 0.95, `map50`, `map75`, and `mar`, the mean recall. Objects
    that are `difficult` or `iscrowd` are not learned, and are ignored by the metrics as COCO ignores crowds.
    """

    name: ClassVar[str] = "detection"
    needs: ClassVar[str] = "objects with boxes and classes"
    metric: ClassVar[str] = "map"
    has_eval_loss: ClassVar[bool] = False

    @property
    def outputs(self) -> int:
        """Number of classes, including background, which is 0."""
        return len(self.classes) + 1

    def targets(self, batch: Batch) -> list[dict[str, Tensor]]:
        """Per image `boxes` (m, 4), `labels` (m,) from 1, `ignored` (m,) bool, and `row` (1,) if the batch has it."""
        objects = objects_of(batch, self.objects_field)
        labels = objects.values["labels"]
        ignored = torch.zeros_like(labels, dtype=torch.bool)
        for name in IGNORED:
            if name in objects.values:
                ignored = ignored | (objects.values[name] != 0)
        values = {"boxes": objects.values["boxes"], "labels": labels + 1, "ignored": ignored}
        targets: list[dict[str, Tensor]] = collate_objects(PackedObjects(objects.offsets, values), "list")
        for target, row in zip(targets, torch.split(batch["row"], 1) if "row" in batch else (), strict=False):
            target["row"] = row
        return targets

    def run(self, model: nn.Module, images: Tensor, targets: Sequence[Mapping[str, Tensor]]) -> Any:
        """Losses by name in training, else a dict of `boxes`, `scores` and `labels` from 1 for each image."""
        if not model.training:
            return model(images)
        learned = [{name: t[name][~t["ignored"]] for name in ("boxes", "labels")} for t in targets]
        return model(images, learned)

    def first(self, targets: list[dict[str, Tensor]], count: int) -> list[dict[str, Tensor]]:
        return targets[:count]

    def terms(self, outputs: Mapping[str, Tensor], targets: Any, *, label_smoothing: float = 0.0) -> Sums:
        loss = torch.stack([loss.float() for loss in outputs.values()]).sum().expand(1)
        return {"loss": loss * len(targets), "learned": torch.full_like(loss, len(targets), requires_grad=False)}

    def sums(self, outputs: Any, targets: Sequence[Mapping[str, Tensor]], *, detailed: bool = False) -> Sums:
        if isinstance(outputs, Mapping):
            images = next(iter(outputs.values())).new_full((), float(len(targets)), dtype=torch.float32)
            return {"images": images, **{f"loss of {name}": loss.float() * images for name, loss in outputs.items()}}
        found = [
            (target["row"], out["labels"] - 1, out["scores"], out["boxes"])
            for out, target in zip(outputs, targets, strict=True)
        ]
        truth = [(target["row"], target["labels"] - 1, target["ignored"], target["boxes"]) for target in targets]
        return {"detections": _rows(found), "objects": _rows(truth)}

    def evaluated(self, sums: Mapping[str, Tensor]) -> Sums:
        return {**sums, **self.precision(sums).as_sums()}

    def metrics(self, sums: Mapping[str, Tensor]) -> dict[str, float]:
        if "detections" in sums:
            return self.precision(sums).metrics
        parts = {name.removeprefix("loss of "): value for name, value in sums.items() if name.startswith("loss of ")}
        return {name: ratio(value, sums["images"]) for name, value in parts.items()}

    def precision(self, sums: Mapping[str, Tensor]) -> Precision:
        """The metrics, and the average precision of each class; computed once for the sums that `evaluated` returns."""
        if "precision" in sums:
            return Precision.of_sums(sums)
        detections, objects = (sums[name].cpu().numpy() for name in ("detections", "objects"))
        return coco_map(detections, objects, len(self.classes))

    def predictions(self, outputs: Sequence[Mapping[str, Tensor]], image_size: tuple[int, int]) -> list[dict[str, Any]]:
        return [
            {
                "objects": [
                    {"class": self.classes[label - 1], "score": score, "box": box}
                    for label, score, box in zip(
                        out["labels"].tolist(), out["scores"].tolist(), out["boxes"].tolist(), strict=True
                    )
                ]
            }
            for out in outputs
        ]


def mean_loss(terms: Mapping[str, Tensor]) -> Tensor:
    """The mean loss, a scalar: the sum of the means of all terms that have a target."""
    learned = terms["learned"]
    return (terms["loss"] / learned.where(learned > 0, 1.0)).sum()


def _rows(images: Sequence[tuple[Tensor, Tensor, Tensor, Tensor]]) -> Tensor:
    """(M, 7) float32 of the row, classes, scores or flags, and boxes of each image. Rows are exact up to 2**24."""
    return torch.cat(
        [
            torch.cat([torch.stack([row.expand(len(labels)).float(), labels.float(), marks.float()], 1), boxes], 1)
            for row, labels, marks, boxes in images
        ]
    )


TASKS: Mapping[str, type[Task]] = {
    task.name: task for task in (Classification, MultiLabel, Keypoints, ClassificationKeypoints, Detection)
}


def task_from_data(data: Mapping[str, Any]) -> Task:
    """The inverse of `Task.as_data`; raises ValueError, TypeError or KeyError for invalid data."""
    texts = [data["label_field"], data["objects_field"], *data["classes"], *data["keypoints"]]
    if not all(isinstance(text, str) for text in texts):
        raise ValueError("task: expected names, found something else")
    task = TASKS[data["name"]](tuple(data["classes"]), tuple(data["keypoints"]), *texts[:2])
    if (bool(task.classes), bool(task.keypoints)) != (task.name != "keypoints", "keypoints" in task.name):
        raise ValueError(f"task: expected classes and keypoints as {task.name} has them, found others")
    return task


def objects_of(batch: Batch, field: str) -> PackedObjects:
    """The packed objects of a batch."""
    values = dict(batch[field])
    return PackedObjects(values.pop("offsets"), values)


def largest(objects: PackedObjects) -> Tensor:
    """(B,) int64 number of the object with the largest box in each image, the first of equals; M without objects.

    Without boxes it is the first object. Does not wait for the device.
    """
    image, total = objects.image_index, objects.total
    index = torch.arange(total, device=image.device)
    if "boxes" in objects.values:
        boxes = objects.values["boxes"]
        area = (boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1])
        most = area.new_full((len(objects),), -1.0).scatter_reduce(0, image, area, "amax")
        index = torch.where(area >= most[image] * (1 - ROUNDING), index, total)
    first = index.new_full((len(objects),), total)
    return first.scatter_reduce(0, image, index, "amin")


def pick(values: Tensor, chosen: Tensor, missing: float) -> Tensor:
    """Rows (B, ...) of `values` (M, ...) at `chosen` (B,), `missing` where it is M."""
    return torch.cat([values, values.new_full((1, *values.shape[1:]), missing)])[chosen]


def _widest(device: torch.device) -> torch.dtype:
    """The widest floating-point dtype for sums on a device; Apple's GPUs have no float64."""
    return torch.float32 if device.type == "mps" else torch.float64


def ratio(part: Tensor, whole: Tensor) -> float:
    """`part / whole`, NaN where the whole is 0."""
    return float(part) / float(whole) if float(whole) else math.nan
