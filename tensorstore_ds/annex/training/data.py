"""What a run takes from a store: its splits, its task and its batches, checked before anything is trained."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import Sampler

from tensorstore_ds.annex.editing.folds import Fold, folds
from tensorstore_ds.annex.training.coco_map import need_pycocotools
from tensorstore_ds.annex.training.options import DETECTORS, Balance, Model, Task as TaskName, TrainOptions
from tensorstore_ds.annex.training.process import Ranks
from tensorstore_ds.annex.training.tasks import (
    TASKS,
    Classification,
    ClassificationKeypoints,
    Detection,
    Keypoints,
    MultiLabel,
    Task,
)
from tensorstore_ds.errors import OptionError
from tensorstore_ds.format.kinds import LabelField, LabelsField, MaskField, ObjectsField
from tensorstore_ds.format.kinds.base import Field, first_of_kind, named, of_kind
from tensorstore_ds.format.kinds.label import UNLABELLED
from tensorstore_ds.format.kinds.objects import IGNORED
from tensorstore_ds.loading.augment.compose import Compose
from tensorstore_ds.loading.batches import TransformsBatches
from tensorstore_ds.loading.block_shuffle import BlockShuffleSampler
from tensorstore_ds.loading.dataset import StoreDataset
from tensorstore_ds.loading.decoding import Plan
from tensorstore_ds.loading.fields import is_decoded
from tensorstore_ds.loading.loader import DataLoader
from tensorstore_ds.loading.samplers import ShuffleSampler
from tensorstore_ds.loading.weighted import (
    WeightedSampler,
    checked_labels,
    checked_numbers,
    class_balanced_weights,
    repeat_factors,
)
from tensorstore_ds.machine import local_ranks, memory_limit
from tensorstore_ds.page_cache.residency import fits, requirement
from tensorstore_ds.reading.store import Split, Store

#: Some rows of a split, (n,) int64; None: all.
RowNumbers = NDArray[np.int64] | None
#: Names of the split to evaluate on, in the order in which they are looked for.
EVAL_SPLITS = ("val", "valid", "validation", "test", "testing")
#: Images with a class that is in fewer than this share of all are drawn more often by the balance `repeat`.
RARE = 0.1
#: Of neighboring rows that are read together, where a split does not fit in memory.
BLOCK_NBYTES = 8 * 1024**2
#: Sides of what a model gets of images that differ in size: at most this, and a multiple of a patch.
LARGEST_SIDE, PATCH = 224, 16


def split_of(store: Store, name: str, option: str) -> Split:
    """A split with samples; raises an `OptionError` that names the option if it is missing or empty."""
    if name not in store:
        raise OptionError(f"`{option}`: expected one of {', '.join(store.splits)}, found {name}.")
    if not len(store[name]):
        raise OptionError(f"`{option}`: expected a split with samples, found {name} with none.")
    return store[name]


def eval_split_of(store: Store, options: TrainOptions, task: Task) -> Split | None:
    """The split to evaluate on: the chosen one, which must have labels, else the first one with labels, else None."""
    if options.eval_split is not None:
        split = split_of(store, options.eval_split, "eval_split")
        if not has_labels(task, split):
            raise OptionError(
                f"`eval_split`: expected samples with a label to evaluate on, found none in {split.name}. "
                "Choose another split."
            )
        return split
    others = (store[name] for name in EVAL_SPLITS if name in store and name != options.train_split)
    return next((split for split in others if len(split) and has_labels(task, split)), None)


def fold_of(store: Store, options: TrainOptions) -> Fold | None:
    """The rows to train and to evaluate on; None without a fold. Raises the errors of `folds`."""
    number, k = options.fold_number
    if not k:
        return None
    with warnings.catch_warnings(action="ignore"):  # a run says in a note which classes are not learned
        made = folds(
            store,
            k,
            split=options.train_split,
            stratify=options.stratify,
            groups=options.groups,
            seed=options.fold_seed or 0,
        )
    return made.fold(number)


def task_of(split: Split, task: TaskName = "auto", model: Model = "auto") -> Task:
    """Return the task that a model can learn from the fields of a split.

    >>> task = tsds.training.task_of(tsds.open("photos.tsds")["train"])
    >>> task.name, task.classes, task.outputs
    ('classification', ('cat', 'dog'), 2)

    Args:
        split: split to train on.
        task: name of the task. ``auto`` chooses labels if there are any, one or several per sample, else keypoints,
            boxes or the classes of objects.
        model: model that learns the task. ``auto`` for `task` chooses a task that this model supports.

    Raises:
        OptionError: the store has no field for the task, only one class, or no labeled sample; the model does not
            support the task; or pycocotools, which computes the metrics of detection, is not installed.
        FormatError: a label is not the index of a class.
    """
    possible = _possible_tasks(split.fields)
    if not possible:
        advice = "Convert images in class folders, with annotations, or with `label_from`, which finds labels in paths."
        if of_kind(split.fields, MaskField):
            advice = "tsds train cannot train on masks yet; docs/keypoints.md#masks leads to a script that does."
        raise OptionError(
            f"{split.name}: expected labels, keypoints or objects with classes to learn from, found {_kinds(split)}. "
            f"{advice}"
        )
    if task != "auto" and task not in possible:
        others = " or ".join(f'`task="{name}"`' for name in possible)
        raise OptionError(
            f'{split.name}: expected {TASKS[task].needs} for `task="{task}"`, found {_kinds(split)}. Use {others}.'
        )
    learnable = {name: each for name, each in possible.items() if model == "auto" or _learns(model, each)}
    if task == "auto" and not learnable:
        raise OptionError(
            f"{split.name}: expected {Detection.needs} for `model={model}`, found {_kinds(split)}. "
            "Leave out `model`, or convert annotations with boxes."
        )
    chosen = next(iter(learnable.values())) if task == "auto" else possible[task]
    if model != "auto" and not _learns(model, chosen):
        expected = f"auto or one of {', '.join(DETECTORS)}" if isinstance(chosen, Detection) else "a vision transformer"
        raise OptionError(f"`model`: expected {expected} for {chosen.name}, found {model}.")
    if isinstance(chosen, Detection):
        need_pycocotools()
    other = ', or use `task="keypoints"`' if "keypoints" in possible else ""
    if len(chosen.classes) < 2 and not isinstance(chosen, Keypoints | Detection):
        names = f"one, {chosen.classes[0]!r}" if chosen.classes else "none"
        raise OptionError(
            f"{split.name}: expected two classes or more to tell apart, found {names}. "
            f"Also convert samples of other classes{other}."
        )
    if not has_labels(chosen, split):
        expected, found = "samples with a label", f"{len(split):,}. Also convert samples with labels{other}."
        if isinstance(chosen, Detection | Keypoints):
            expected = "objects with boxes" if isinstance(chosen, Detection) else "objects with keypoints"
            found = f"{len(split):,} samples. Convert images with annotations."
        raise OptionError(f"{split.name}: expected {expected} to learn from, found none in {found}")
    return chosen


def _learns(model: Model, task: Task) -> bool:
    """Whether a model supports a task."""
    return (model in DETECTORS) == isinstance(task, Detection)


def reason_for(split: Split, task: Task, asked: TaskName) -> str:
    """Why a run learns a task, in words, and how to choose a different one."""
    if asked != "auto":
        return "as asked for"
    has = "labels"
    if not task.label_field:
        has = "keypoints" if task.keypoints else "objects with classes, and neither labels nor keypoints"
        if isinstance(task, Detection):
            has = "objects with boxes and classes, and neither labels nor keypoints"
    others = [name for name in _possible_tasks(split.fields) if name != task.name]
    choice = f"; choose {' or '.join(others)} with `task`" if others else ""
    return f"because the store has {has}{choice}"


def _possible_tasks(fields: Mapping[str, Field]) -> dict[str, Task]:
    """The tasks that the fields allow, by name; ``auto`` chooses the first one."""
    label, several = first_of_kind(fields, LabelField) or "", first_of_kind(fields, LabelsField) or ""
    table = named(fields, "objects", ObjectsField) or ObjectsField({})  # other names are not moved by transforms
    values = table.values
    keypoints = table.keypoints if "keypoints" in values else ()
    object_classes = table.classes if "labels" in values else ()
    classes = fields[label].classes if label else object_classes
    possible: list[Task] = []
    if label:
        possible.append(Classification(classes, label_field=label))
    if several:
        possible.append(MultiLabel(fields[several].classes, label_field=several))
    if keypoints:
        possible.append(Keypoints(keypoints=keypoints, objects_field="objects"))
    if {"boxes", "labels"} <= values.keys() and object_classes:
        possible.append(Detection(object_classes, objects_field="objects"))
    if "labels" in values and not several:
        possible.append(MultiLabel(object_classes, objects_field="objects"))
    if keypoints and classes:
        possible.append(ClassificationKeypoints(classes, keypoints, label, "objects"))
    return {task.name: task for task in possible}


def _kinds(split: Split) -> str:
    return ", ".join(name if name == field.kind else f"{name} ({field.kind})" for name, field in split.fields.items())


def class_counts(task: Task, split: Split, rows: RowNumbers = None) -> Any:
    """(classes,) int64 numbers of labels of each class; raises `FormatError` if a label is not the index of a class."""
    classes = len(task.classes)
    if not classes:
        return np.zeros(0, np.int64)
    if not task.label_field:
        labels = split.table(task.objects_field)["labels"]
        where = f"{split.name}/{task.objects_field}/labels"
        checked = checked_labels(labels, classes, where)
        if rows is not None:
            checked = split.table(task.objects_field).take(rows)["labels"]
        return np.bincount(checked, minlength=classes)
    if isinstance(task, MultiLabel):
        return (checked_numbers(split, task.label_field, rows) > 0).sum(axis=0)
    where = f"{split.name}/{task.label_field}"
    found = checked_labels(split.column(task.label_field), classes, where, least=UNLABELLED)
    found = found if rows is None else found[rows]
    return np.bincount(found[found != UNLABELLED], minlength=classes)


def unlabelled_samples(task: Task, split: Split, rows: RowNumbers = None) -> int:
    """Number of samples without a label, for tasks with labels of samples; raises `FormatError` like `class_counts`."""
    if isinstance(task, MultiLabel) and task.label_field:
        return int((checked_numbers(split, task.label_field, rows) < 0).all(axis=1).sum())
    counts = class_counts(task, split, rows)
    samples = len(split) if rows is None else len(rows)
    return samples - int(counts.sum()) if task.label_field else 0


def has_labels(task: Task, split: Split, rows: RowNumbers = None) -> bool:
    """Whether there is a label to learn or to compare with, for tasks with labels of samples, boxes or keypoints."""
    counts = class_counts(task, split, rows)
    if isinstance(task, Keypoints):
        table = split.table(task.objects_field)
        points = (table if rows is None else table.take(rows))["keypoints"]
        return any(np.isfinite(points[start : start + 8192]).any() for start in range(0, len(points), 8192))
    return not (task.label_field or isinstance(task, Detection)) or bool(counts.any())


def image_shape(split: Split) -> tuple[int, int, int]:
    """(height, width, channels) of all images; if sizes differ, a square of 224, or less if most are smaller."""
    field = split.fields.get("image")
    if field is None or not field.encoding:
        raise OptionError(f"{split.name}: expected images in a field image, found {_kinds(split)}. Convert images.")
    if field.dtype not in ("", "uint8", "uint16", "float32", "float16"):
        expected = "expected uint8, uint16, float16 or float32"
        raise OptionError(f"{split.name}/image: {expected}, found {field.dtype}. Convert such images.")
    if field.one_shape is not None:
        height, width, channels = field.one_shape
        return height, width, channels
    shapes = split.image_shapes
    channels = int(shapes[:, 2].max())  # gray images among others are read as RGB
    if (shapes[:, :2] == shapes[0, :2]).all():
        return int(shapes[0, 0]), int(shapes[0, 1]), channels
    side = int(np.median(shapes[:, :2].min(axis=1)))
    side = max(PATCH, min(side, LARGEST_SIDE) // PATCH * PATCH)
    return side, side, channels


def predicted_dtype(store: Store, split: Split) -> str:
    """Data type of files that a model can predict, uint16 if its images have it; of stored files, the first one's."""
    found = split.fields["image"].dtype or StoreDataset(store, split.name, fields=["image"])[0]["image"].dtype
    return "uint16" if found in ("uint16", torch.uint16) else "uint8"


def stored_size(store: Store, split: Split) -> tuple[int, int] | None:
    """(height, width) of all images after the conversion; None if they have their own sizes."""
    if is_decoded(split.fields["image"]) and store.manifest.conversion_options.get("size") is None:
        return None
    return image_shape(split)[:2]


def train_loader(
    store: Store,
    task: Task,
    options: TrainOptions,
    transform: Compose,
    ranks: Ranks,
    *,
    plan: Plan | None = None,
    rows: RowNumbers = None,
    blocks: tuple[int, int] | None = None,
) -> tuple[DataLoader[Any], str]:
    """Training batches on the device, and a word on their order; `rows=None` uses the whole split.

    `blocks` are the rows of a block and the blocks of a window of a run that goes on, zeros if it shuffles all rows.
    Free memory decides them otherwise, the same for all ranks.
    """
    dataset = StoreDataset(store, options.train_split, fields=task.fields, decode=plan)
    if rows is not None:
        dataset = dataset.subset(rows)
    share = len(dataset) // ranks.size
    if options.batch_size > share:
        of_rank = f" for each of {ranks.size} ranks" if ranks.size > 1 else ""
        raise OptionError(
            f"`batch_size`: expected at most {share:,}, the samples of the split {options.train_split}{of_rank}, found "
            f"{options.batch_size:,}. Use `batch_size={max(1, share)}` or less."
        )
    sampler, order = _sampler(store, dataset, task, options, ranks, blocks)
    loader = DataLoader(
        dataset,
        options.batch_size,
        sampler=sampler,
        shuffle=sampler is None,
        collate="packed",
        seed=options.seed,
        device=ranks.device,
        num_threads=options.num_threads,
        residency=options.residency,
        batch_transform=transform,
    )
    return loader, order


def eval_loader(
    dataset: StoreDataset, options: TrainOptions, ranks: Ranks, *, transform: TransformsBatches | None = None
) -> tuple[DataLoader[Any], int]:
    """This rank's batches of a split, in order; each sample occurs once, on one of the ranks.

    Returns the loader, and the weight of its samples: 1, or 0 if there are more ranks than samples. Such a rank gets a
    sample of another rank, so that its sums have the same names.
    """
    own = ShuffleSampler(dataset, shuffle=False, rank=ranks.rank, num_replicas=ranks.size, even_batches=False)
    loader = DataLoader(
        dataset,
        options.batch_size,
        sampler=own if len(own) else ShuffleSampler(1, rank=0, num_replicas=1),
        collate="packed",
        device=ranks.device,
        num_threads=options.num_threads,
        batch_transform=transform,
    )
    return loader, min(1, len(own))


def _sampler(
    store: Store,
    dataset: StoreDataset,
    task: Task,
    options: TrainOptions,
    ranks: Ranks,
    blocks: tuple[int, int] | None,
) -> tuple[Sampler[Any] | None, str]:
    if options.balance != "none":
        weights = balance_weights(dataset.split, task, options.balance, dataset.rows)
        word = f"drawn by weight ({options.balance})"
        if options.balance == "repeat" and (weights == weights[0]).all():
            word += f", the same for all because each class is in {RARE:.0%} of them or more: use repeat-instance"
        return WeightedSampler(weights, seed=options.seed), word
    block, window = blocks or map(ranks.any, _blocks(store, dataset, task, options))
    if window > 0:
        sampler = BlockShuffleSampler(dataset, block_rows=block, window_blocks=window, seed=options.seed)
        return sampler, "shuffled by blocks, since they do not fit in memory"
    return None, "shuffled"


def _blocks(store: Store, dataset: StoreDataset, task: Task, options: TrainOptions) -> tuple[int, int]:
    """Rows of a block and blocks of a window, if the samples do not fit into memory now, else zeros."""
    if options.residency != "auto" or fits(store, splits=dataset.split_name, fields=task.fields):
        return 0, 0
    nbytes, _ = requirement(store, [(dataset.split_name, name) for name in task.fields])
    return max(1, BLOCK_NBYTES * len(dataset) // nbytes), max(4, memory_limit() // (8 * local_ranks()) // BLOCK_NBYTES)


def balance_weights(split: Split, task: Task, balance: Balance, rows: RowNumbers = None) -> NDArray[np.float64]:
    """Relative frequency of each row in training, (n,) float64; raises `OptionError` if it does not fit the task."""
    if balance in ("inverse", "effective") and task.label_field:
        return class_balanced_weights(split, field=task.label_field, method=balance, rows=rows)
    of_images = isinstance(task, MultiLabel) or not task.label_field
    if balance in ("repeat", "repeat-instance") and task.classes and of_images:
        by_images = balance == "repeat"
        with warnings.catch_warnings(action="ignore"):  # a run says in a note that all factors are 1
            return repeat_factors(
                split,
                threshold=RARE if by_images else None,
                method="image" if by_images else "instance",
                field=task.label_field or task.objects_field,
                rows=rows,
            )
    possible = "inverse or effective" if task.label_field else "repeat or repeat-instance" if task.classes else "none"
    raise OptionError(f"`balance`: expected {possible} for {task.name}, found {balance}.")


def unseen_classes(task: Task, train: Split, evaluated: Split, fold: Fold | None = None) -> Sequence[str]:
    """Names of classes that occur in the evaluation only."""
    learned, tested = (None, None) if fold is None else (fold.train, fold.val)
    unseen = (class_counts(task, evaluated, tested) > 0) & (class_counts(task, train, learned) == 0)
    return [task.classes[i] for i in np.flatnonzero(unseen)]


def ignored_objects(task: Task, split: Split, rows: RowNumbers = None) -> int:
    """Number of objects that are neither learned nor counted."""
    table = split.table(task.objects_field)
    flags = [np.asarray(table[name]) != 0 for name in IGNORED if name in table.values]
    if not flags:
        return 0
    before = np.concatenate([[0], np.cumsum(np.logical_or.reduce(flags))])[table.offsets]
    counts = np.diff(before)
    return int((counts if rows is None else counts[rows]).sum())


def crowded_samples(task: Task, split: Split, rows: RowNumbers = None) -> int:
    """Number of samples with more than one object, for tasks that use one."""
    if not task.keypoints:
        return 0
    is_crowded = np.diff(split.table(task.objects_field).offsets) > 1
    return int((is_crowded if rows is None else is_crowded[rows]).sum())
