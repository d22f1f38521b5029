"""What can be learned from a store: a file per task, and here which task a store's fields are good for.

A task computes targets from a batch, the loss, and sums from which metrics follow, over batches and ranks.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from tensorstore_ds.errors import FormatError, OptionError, Problem
from tensorstore_ds.format.kinds import LabelField, ObjectsField
from tensorstore_ds.format.schema import Field, of_kind
from tensorstore_ds.reading.store import Split
from tensorstore_ds.training.options import Task as TaskName
from tensorstore_ds.training.tasks.base import Task
from tensorstore_ds.training.tasks.classification import Classification
from tensorstore_ds.training.tasks.classification_keypoints import ClassificationKeypoints
from tensorstore_ds.training.tasks.keypoints import Keypoints
from tensorstore_ds.training.tasks.multilabel import MultiLabel

TASKS: Mapping[str, type[Task]] = {
    task.name: task for task in (Classification, MultiLabel, Keypoints, ClassificationKeypoints)
}
#: What a store must have for a task.
_NEEDED = {
    "classification": "a label per image",
    "multilabel": "objects with classes",
    "keypoints": "objects with keypoints",
    "classification+keypoints": "objects with keypoints, and labels",
}


def task_from_data(data: Mapping[str, Any]) -> Task:
    """The inverse of `Task.as_data`.

    Raises:
        ValueError, TypeError, KeyError: it is none.
    """
    texts = [data["label_field"], data["objects_field"], *data["classes"], *data["keypoints"]]
    if not all(isinstance(text, str) for text in texts):
        raise ValueError("task: expected names, found something else")
    task = TASKS[data["name"]](tuple(data["classes"]), tuple(data["keypoints"]), *texts[:2])
    if (bool(task.classes), bool(task.keypoints)) != (task.name != "keypoints", "keypoints" in task.name):
        raise ValueError(f"task: expected classes and keypoints as {task.name} has them, found others")
    return task


def task_of(split: Split, task: TaskName = "auto", *, eval_split: Split | None = None) -> Task:
    """The task that a store's fields are good for.

    Args:
        split: to be trained on.
        task: its name; ``auto``: labels if there are any, else keypoints, else the classes of objects.
        eval_split: to be evaluated on; its labels are checked too.

    Raises:
        OptionError: the store has no field for the task, or one class only.
        FormatError: a label is not the index of a class.
    """
    possible = _possible_tasks(split.fields)
    if not possible or (task != "auto" and task not in possible):
        raise OptionError(_impossible(split, task, possible))
    chosen = possible[task] if task != "auto" else next(iter(possible.values()))
    if len(chosen.classes) < 2 and not isinstance(chosen, Keypoints):
        names = f"one, {chosen.classes[0]!r}" if chosen.classes else "none"
        other = ", or use `task=keypoints`" if "keypoints" in possible else ""
        raise OptionError(
            f"{split.name}: expected two classes or more to tell apart, found {names}. "
            f"Convert samples of other classes, too{other}."
        )
    for checked in (split, eval_split):
        if checked is not None:
            class_counts(chosen, checked)
    return chosen


def _possible_tasks(fields: Mapping[str, Field]) -> dict[str, Task]:
    """The tasks that fields are good for, by name; the first one is that of ``auto``."""
    label = next(iter(of_kind(fields, LabelField)), "")
    table = fields.get("objects")  # other names are not moved by transforms
    values = table.values if isinstance(table, ObjectsField) else {}
    keypoints = table.keypoints if isinstance(table, ObjectsField) and "keypoints" in values else ()
    object_classes = table.classes if isinstance(table, ObjectsField) and "labels" in values else ()
    classes = fields[label].classes if label else object_classes
    possible: dict[str, Task] = {}
    if label:
        possible["classification"] = Classification(classes, label_field=label)
    if keypoints:
        possible["keypoints"] = Keypoints(keypoints=keypoints, objects_field="objects")
    if "labels" in values:
        possible["multilabel"] = MultiLabel(object_classes, objects_field="objects")
    if keypoints and classes:
        possible["classification+keypoints"] = ClassificationKeypoints(classes, keypoints, label, "objects")
    return possible


def class_counts(task: Task, split: Split) -> Any:
    """(classes,) int64: how many labels a split has of each class of the task.

    Raises:
        FormatError: a label is not the index of a class.
    """
    classes = len(task.classes)
    if not classes:
        return np.zeros(0, np.int64)
    labels = np.asarray(
        split.column(task.label_field) if task.label_field else split.table(task.objects_field)["labels"]
    )
    if labels.size and not 0 <= labels.min() <= labels.max() < classes:
        where = f"{split.name}/{task.label_field or task.objects_field + '/labels'}"
        message = f"expected labels in [0, {classes}), found {labels.min()} to {labels.max()}."
        raise FormatError(Problem(where, "label-range", message), "Convert again.")
    return np.bincount(labels, minlength=classes)


def _impossible(split: Split, task: str, possible: Mapping[str, Task]) -> str:
    fields = ", ".join(f"{name} ({field.kind})" for name, field in split.fields.items())
    if not possible:
        return (
            f"{split.name}: expected labels, keypoints or objects with classes to learn from, found {fields}. "
            "Convert images in class folders, or with annotations."
        )
    others = " or ".join(f"`task={name}`" for name in possible)
    return f"{split.name}: expected {_NEEDED[task]} for `task={task}`, found {fields}. Use {others}."
