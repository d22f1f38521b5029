"""What a trained model says about the samples of a store: metrics, and predictions and losses of each row as fields."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from tensorstore_ds.annex.editing.add import FieldsSummary, add_fields
from tensorstore_ds.annex.editing.edit import chosen_splits
from tensorstore_ds.annex.editing.in_place import check_in_place
from tensorstore_ds.annex.training.checkpoint import ModelCard, load_model
from tensorstore_ds.annex.training.detections import StoreDetections, predict_store, stored_size
from tensorstore_ds.annex.training.prediction import check_classes, model_for, stored_batches
from tensorstore_ds.annex.training.process import Ranks, Tally, device_of
from tensorstore_ds.annex.training.tasks import Detection, Task
from tensorstore_ds.conversion.result import OnProgress
from tensorstore_ds.errors import OptionError, TrainingError
from tensorstore_ds.format.kinds import LabelField, ObjectsField
from tensorstore_ds.format.kinds.base import named
from tensorstore_ds.options import refusal
from tensorstore_ds.reading.store import Split, Store, open as open_store

Columns = dict[str, NDArray[Any]]


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Result of `evaluate`."""

    split: str  #: Name of the split.
    samples: int  #: Number of samples in the split.
    metrics: Mapping[str, float]  #: Metrics by name, as in `EpochRecord.eval`. Metrics without data are NaN.


def evaluate(
    checkpoint: str | os.PathLike[str],
    store: str | os.PathLike[str],
    *,
    split: str | None = None,
    device: str | None = None,
) -> Evaluation:
    """Compute the metrics of a model on a split, as the evaluation of `train` does.

    >>> found = tsds.training.evaluate("photos.run/best.pt", "photos.tsds", split="val", device="cpu")
    >>> found.split, found.samples, sorted(found.metrics)
    ('val', 4, ['accuracy', 'balanced_accuracy', 'loss'])

    Args:
        checkpoint: path of `best.pt` or `last.pt` of a run. For a detector, use `predict_store`.
        store: path of the store.
        split: name of the split. None uses the first of val, valid, validation and test, else the first split.
        device: device to compute on, such as ``cuda`` or ``cpu``. None uses a GPU if there is one.

    Raises:
        TrainingError: the checkpoint is damaged or a detector, or its model returns NaN.
        OptionError: the store does not contain the split or the fields of the task, or has different channels,
            classes or keypoints than the model.
        FormatError: the store is damaged.
    """
    model, card, opened, chosen, _ = model_for(checkpoint, store, split, device)
    where, task, tally = os.fspath(checkpoint), card.task, Tally()
    if isinstance(task, Detection):
        raise TrainingError(f"{where}: expected a model for another task, found a detector. Use `predict_store`.")
    if absent := _absent(task, chosen):
        advice = "Give image files, or a store with this field."
        raise OptionError(f"{chosen.name}: expected {task.needs} in the field {absent!r}, found none. {advice}")
    for outputs, targets in outputs_of(model, card, opened, chosen, where):
        tally.add(len(outputs), task.terms(outputs, targets) | task.sums(outputs, targets, detailed=True))
    return Evaluation(chosen.name, len(chosen), tally.over_ranks(Ranks(0, 1, device_of(device))).metrics(task))


def add_predictions(
    checkpoint: str | os.PathLike[str],
    store: str | os.PathLike[str],
    *,
    splits: Collection[str] | None = None,
    prefix: str = "",
    replace: bool = False,
    score: float = 0.0,
    device: str | None = None,
    progress: OnProgress | None = None,
) -> FieldsSummary:
    """Add the predictions of a model for each sample to a store, with `add_fields`.

    >>> tsds.training.add_predictions("photos.run/best.pt", "photos.tsds", splits=["val"], device="cpu").fields
    {'prediction': 'int64 · 2 classes', 'confidence': 'float32', 'loss': 'float32'}
    >>> tsds.open("photos.tsds")["val"]["prediction"].shape
    (4,)

    =================  =======================================================================
    model for          fields
    =================  =======================================================================
    classification     `prediction` and its `confidence`, a float32 in [0, 1]
    several labels     `probabilities`, (N, classes) float32
    keypoints          `keypoints`, (N, K, 2) float32, x y in pixels of the stored image
    detection          `predictions`, objects with `boxes`, `labels` and `scores`
    all but detection  `loss`, float32, as in training; NaN if the sample has no target
    =================  =======================================================================

    `prediction` contains labels if the store has labels, else the indices of classes (int64).

    Args:
        checkpoint: path of `best.pt` or `last.pt` of a run.
        store: path of a store, a folder.
        splits: names of the splits. None uses all. In other splits, values of new fields are unknown, and values of
            existing fields do not change.
        prefix: prefix of the names of the fields, such as ``vit_``.
        replace: whether to replace the values of existing fields.
        score: minimum score of detections. A detector of torchvision returns detections with a score of at least 0.05.
        device: device to compute on, such as ``cuda`` or ``cpu``. None uses a GPU if there is one.
        progress: function that is called with the progress, as in `convert`.

    Raises:
        TrainingError: the checkpoint is damaged, or its model returns NaN.
        OptionError: the store does not contain a split, or has different channels, classes or keypoints than the model;
            or as in `add_fields`.
        FormatError, OutputError, ConversionError: as in `add_fields`.
    """
    opened = open_store(check_in_place(store, "add the predictions"))
    names = [name for name in chosen_splits(opened, splits) if len(opened[name])]
    if not 0 <= score <= 1:
        raise refusal("score", "a number from 0 to 1", score)
    model, card = load_model(checkpoint, device=device_of(device))
    if score and not isinstance(card.task, Detection):
        raise refusal("score", f"none for {card.task.name}, whose predictions are all added", score)
    found: dict[str, dict[str, Any]] = {}
    for name in names:
        if isinstance(card.task, Detection):
            objects = _objects(predict_store(checkpoint, store, split=name, device=device), score)
            found.setdefault("predictions", {})[name] = objects
            continue
        for field, values in _predicted(model, card, opened, opened[name], os.fspath(checkpoint)).items():
            found.setdefault(field, {})[name] = values
    has_labels = named(opened.manifest.fields, card.task.label_field, LabelField) is not None
    classed = "prediction" if has_labels else "predictions"
    return add_fields(
        store,
        {f"{prefix}{name}": values for name, values in found.items()},
        classes={f"{prefix}{name}": card.task.classes for name in found if name == classed},
        replace=replace,
        progress=progress,
    )


def _objects(found: StoreDetections, score: float) -> list[dict[str, NDArray[Any]]]:
    """Detections of each row, within the stored image."""
    detections = found.detections[found.detections[:, 2] >= score]
    ends = np.searchsorted(detections[:, 0], np.arange(len(found.split) + 1))
    rows = []
    for row, (start, stop) in enumerate(pairwise(ends)):
        each, (height, width) = detections[start:stop], stored_size(found.split, row)
        boxes = each[:, 3:].clip(0, np.array([width, height, width, height], np.float32))
        some = (boxes[:, :2] < boxes[:, 2:]).all(1)
        rows.append(
            {"boxes": boxes[some], "labels": each[some, 1].astype(np.int64), "scores": each[some, 2].astype(np.float32)}
        )
    return rows


def _absent(task: Task, split: Split) -> str:
    """The first field of a split that lacks what a task compares with, or an empty text."""
    table = named(split.fields, task.objects_field, ObjectsField)
    is_bare = bool(task.keypoints) and (table is None or "keypoints" not in table.values)
    return next((name for name in task.fields if name not in split.fields), task.objects_field if is_bare else "")


def outputs_of(
    model: Any, card: ModelCard, store: Store, split: Split, where: str, rows: NDArray[np.int64] | None = None
) -> Iterator[tuple[torch.Tensor, torch.Tensor | None]]:
    """Outputs and targets of each batch of a split or of its `rows`, except for detectors; the targets may be None."""
    task = card.task
    is_compared = not _absent(task, split)
    loader = stored_batches(model, card, store, split, fields=task.fields if is_compared else ("image",), rows=rows)
    for name in {task.label_field or task.objects_field} & split.fields.keys():
        if task.classes:
            check_classes(split, split.fields[name].classes, card)
    table = named(split.fields, task.objects_field, ObjectsField)
    if is_compared and table is not None and task.keypoints not in ((), table.keypoints):
        expected, found = (", ".join(names[:5]) for names in (task.keypoints, table.keypoints))
        advice = "Use a store with these keypoints."
        raise OptionError(f"{split.name}: expected the keypoints of the model, {expected}, found {found}. {advice}")
    with torch.inference_mode():
        for batch in loader:
            outputs = model(batch["image"])
            if not bool(outputs.isfinite().all()):
                advice = "Use another checkpoint, of a run whose loss is a number."
                raise TrainingError(f"{where}: expected a model that says numbers, found NaN or infinity. {advice}")
            yield outputs, task.targets(batch) if is_compared else None


def _predicted(model: Any, card: ModelCard, store: Store, split: Split, where: str) -> Columns:
    """The predicted fields of one split, except for detectors."""
    task, parts, seen = card.task, list[Columns](), 0
    for outputs, targets in outputs_of(model, card, store, split, where):
        sizes = [stored_size(split, row) for row in range(seen, seen + len(outputs))]
        seen += len(outputs)
        columns = _columns(task.predictions(outputs, (1, 1)), sizes)
        if targets is not None:
            columns["loss"] = task.losses(outputs, targets).cpu().numpy()
        if "prediction" in columns:
            places = {name: i for i, name in enumerate(task.classes)}
            columns["prediction"] = np.array([places[name] for name in columns["prediction"]], np.int64)
        parts.append(columns)
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def _columns(says: list[dict[str, Any]], sizes: list[tuple[int, int]]) -> Columns:
    """Predictions per image, as columns; keypoints are relative to the image's sides."""
    first, columns = says[0], Columns()
    if "class" in first:
        columns["prediction"] = np.array([each["class"] for each in says])
        columns["confidence"] = np.array([each["probability"] for each in says], np.float32)
    if "probabilities" in first:
        columns["probabilities"] = np.array([_numbers(each["probabilities"]) for each in says], np.float32)
    if "keypoints" in first:
        sides = np.array(sizes, np.float32)[:, None, ::-1]
        columns["keypoints"] = np.array([_numbers(each["keypoints"]) for each in says], np.float32) * sides
    return columns


def _numbers(named: Mapping[str, Any]) -> list[Any]:
    return list(named.values())
