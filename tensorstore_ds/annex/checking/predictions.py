"""Predictions of a model, as a check takes them: arrays, fields, .npy files and COCO's results."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tensorstore_ds.annex.checking.annotations import sample_of
from tensorstore_ds.annex.checking.boxes import box_intersections, box_ious
from tensorstore_ds.annex.checking.findings import SuspectLabel, SuspectObject
from tensorstore_ds.annex.checking.options import CheckOptions
from tensorstore_ds.annex.sources.arrays.source import NPY_HEAD, read_npy_header
from tensorstore_ds.annex.sources.json_files import finite, read_list
from tensorstore_ds.errors import OptionError
from tensorstore_ds.format.kinds import LabelField, ObjectsField
from tensorstore_ds.format.kinds.base import ArrayField, of_kind
from tensorstore_ds.format.kinds.objects import IGNORED
from tensorstore_ds.options import unknown_name, user_path
from tensorstore_ds.reading.columns import Column
from tensorstore_ds.reading.store import Split, Store
from tensorstore_ds.regular_files import open_file, os_errors
from tensorstore_ds.sources.forms import FormError

#: What `check_store` takes: the name of a field, or by split an array, a file or a list of COCO's results.
Given = str | Mapping[str, ArrayLike | str | os.PathLike[str] | Sequence[Mapping[str, Any]]]

_RESULTS_LIMIT, _RESULTS_VALUES = 1 << 30, 1 << 26  # bytes and values of a JSON file
_BLOCK = 1 << 22  # probabilities that are checked at a time
#: How far probabilities of 16 bits may add up to another number than 1.
_TOLERANCE = 0.02
#: A detection and an object whose boxes overlap less than this have nothing to do with each other.
_APART = 0.1
#: A detection with this share of its area in an ignored object does not count.
_INSIDE = 0.5


@dataclass(frozen=True)
class Predictions:
    """Predictions by split.

    `probabilities` are (n, K) for the classes of the first field of labels: an array, a map or a column. `detections`
    are (M, 7) float64, in the order of rows: row, class, score, and box x1 y1 x2 y2.
    """

    probabilities: dict[str, Any] = field(default_factory=dict)
    detections: dict[str, NDArray[np.float64]] = field(default_factory=dict)


def read_predictions(store: Store, given: Given | None) -> Predictions:
    """Read predictions for a store, and check that they fit it."""
    read = Predictions()
    if given is None:
        return read
    by_split: Mapping[str, Any] = _of_field(store, given) if isinstance(given, str) else given
    for name, values in by_split.items():
        if name not in store:
            raise unknown_name(store.path, "split", name, store)
        where, split = f"predictions for {name}", store[name]
        if isinstance(values, str | os.PathLike):
            path = user_path(values)
            where, values = str(path), _read(path)
        if isinstance(values, Sequence) and all(isinstance(each, Mapping) for each in values):
            read.detections[name] = _checked_results(values, split, where)
        else:
            read.probabilities[name] = _checked_probabilities(values, split, where)
    return read


def _of_field(store: Store, name: str) -> dict[str, Any]:
    arrays = [each for each, found in store.manifest.fields.items() if type(found) is ArrayField]
    if name not in arrays:
        advice = "" if arrays else " Give files by split, such as {'train': 'probabilities.npy'}."
        raise OptionError(f"{unknown_name(store.path, 'array field', name, arrays)}{advice}")
    return {each: store[each][name] for each in store if len(store[each])}


def _read(path: Path) -> Any:
    if path.suffix.lower() == ".json":
        return read_list(path, str(path), _RESULTS_LIMIT, _RESULTS_VALUES)
    if path.suffix.lower() != ".npy":
        raise OptionError(
            f"{path}: expected probabilities in a .npy file, or COCO's results in a .json file, found another name. "
            "Choose such a file."
        )
    with os_errors(str(path)), open_file(path, str(path)) as stream:
        header = read_npy_header(stream.read(NPY_HEAD), str(path), path)
    return header.map()


# --- labels -----------------------------------------------------------------------------------------------------


def _label_field(split: Split) -> tuple[str, LabelField]:
    for name, found in of_kind(split.fields, LabelField).items():
        return name, found
    raise OptionError(
        f"{split.name}: expected a field of labels to compare probabilities with, found none. For boxes, give COCO's "
        "results."
    )


def _checked_probabilities(values: Any, split: Split, where: str) -> Any:
    _cleanlab()  # before every image is read
    name, found = _label_field(split)
    array = values if isinstance(values, Column) else np.asarray(values)
    shape, expected = tuple(array.shape), (len(split), len(found.classes))
    if shape != expected or array.dtype.kind != "f":
        raise OptionError(
            f"{where}: expected floats of shape {expected}, for each sample of {split.name} the probability of each "
            f"class of {name}, found {array.dtype} of shape {shape}. Predict all rows of this split."
        )
    step = max(1, _BLOCK // expected[1])
    for start in range(0, len(array), step):
        block = np.asarray(array[start : start + step], np.float64)
        sums, known = block.sum(axis=1), ~np.isnan(block).any(axis=1)
        wrong = known & ~((np.abs(sums - 1) <= _TOLERANCE) & (block >= 0).all(axis=1))
        if wrong.any():
            row = int(wrong.argmax())
            raise OptionError(
                f"{where}: expected probabilities from 0 to 1 that add up to 1, found {sums[row]:g} in row "
                f"{start + row}. Apply softmax to what the model returns."
            )
    return array


def _cleanlab() -> Any:
    try:
        import cleanlab.filter
        import cleanlab.rank
    except ModuleNotFoundError as error:
        if str(error.name).partition(".")[0] != "cleanlab":
            raise
        advice = "pip install '.[clean]' in a clone of tensorstore-ds"
        raise OptionError(f"to find labels that are probably wrong, cleanlab is needed: {advice}") from None
    return cleanlab


def suspect_labels(split: Split, probabilities: Any) -> Iterator[SuspectLabel]:
    """Labels that probabilities (n, K), NaN where unknown, contradict according to cleanlab, smallest margin first."""
    name, found = _label_field(split)
    labels, values = np.asarray(split[name][:], np.int64), np.asarray(probabilities[:])
    rows = np.flatnonzero((labels >= 0) & (labels < len(found.classes)) & ~np.isnan(values).any(axis=1))
    labels, values = labels[rows], values[rows].astype(np.promote_types(values.dtype, np.float32)).clip(0, 1)
    if len(np.unique(labels)) < 2:  # which cleanlab refuses
        return
    cleanlab = _cleanlab()
    is_issue = cleanlab.filter.find_label_issues(labels, values, filter_by="confident_learning", n_jobs=1)
    own = cleanlab.rank.get_self_confidence_for_each_label(labels, values)
    margins = 2 * cleanlab.rank.get_normalized_margin_for_each_label(labels, values) - 1
    for i in sorted(np.flatnonzero(is_issue).tolist(), key=lambda i: (margins[i], i)):
        sample, suggested = sample_of(split, int(rows[i])), found.classes[int(values[i].argmax())]
        yield SuspectLabel(sample, str(sample.label), suggested, round(float(own[i]), 5), round(float(margins[i]), 5))


# --- objects ----------------------------------------------------------------------------------------------------


def _objects_field(split: Split) -> tuple[str, ObjectsField]:
    for name, found in of_kind(split.fields, ObjectsField).items():
        if {"boxes", "labels"} <= found.values.keys():
            return name, found
    raise OptionError(
        f"{split.name}: expected objects with boxes and classes to compare detections with, found none. For labels, "
        "give probabilities."
    )


def _checked_results(results: Sequence[Mapping[str, Any]], split: Split, where: str) -> NDArray[np.float64]:
    """(M, 7) detections from COCO results, in the order of rows."""
    limits = {"image_id": len(split), "category_id": len(_objects_field(split)[1].classes)}
    rows = np.empty((len(results), 7))
    for i, result in enumerate(results):
        try:
            row, label = (_number(result.get(name), name, most) for name, most in limits.items())
            box = result.get("bbox")
            if not isinstance(box, Sequence) or len(box) != 4:
                raise FormError("expected bbox, a list of 4 numbers, found another value")
            x, y, width, height = (finite(each, "bbox") for each in box)
            if min(width, height) < 0:
                raise FormError(f"expected bbox with sides of 0 or more, found {min(width, height):g}")
            if not np.isfinite([x + width, y + height]).all():
                raise FormError("expected a bbox that ends at finite numbers, found larger ones")
            score = finite(result.get("score"), "score")
            if not 0 <= score <= 1:
                raise FormError(f"expected a score of 0 to 1, found {score:g}")
            rows[i] = row - 1, label - 1, score, x, y, x + width, y + height
        except FormError as error:
            advice = f"Ids count from 1: images of {split.name} in the order of rows, and classes."
            raise OptionError(f"{where}, result {i + 1}: {error}. {advice}") from error
    return rows[np.argsort(rows[:, 0], kind="stable")]


def _number(value: object, name: str, most: int) -> int:
    if isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= most:
        return value
    raise FormError(f"expected {name}, 1 to {most}, found {str(value)[:40]}")


def suspect_objects(split: Split, detections: NDArray[np.float64], options: CheckOptions) -> Iterator[SuspectObject]:
    """Objects of a split that detections (M, 7) contradict, in the order of rows."""
    name, found = _objects_field(split)
    table, classes = split.table(name), found.classes
    sure = detections[detections[:, 2] >= options.prediction_score]
    for row in np.unique(sure[:, 0]).astype(int).tolist():
        own = sure[sure[:, 0].searchsorted(row) : sure[:, 0].searchsorted(row, "right")]
        start, stop = table.offsets[row : row + 2].tolist()
        names = [each for each in ("boxes", "labels", *IGNORED) if each in table.values]
        boxes, labels, *ignored = (np.asarray(table[each][start:stop]) for each in names)
        counts = ~np.any([np.zeros(len(boxes)), *ignored], axis=0)
        objects = np.column_stack([labels, counts, boxes])
        for why, number, detection, iou in object_issues(objects, own[:, 1:], min_iou=options.prediction_iou):
            given = None if number is None else classes[int(labels[number])]
            label, score, *box = own[detection, 1:].tolist()
            x1, y1, x2, y2 = (round(each, 2) for each in box)
            found_as = (given, classes[int(label)], round(score, 5), round(iou, 3), (x1, y1, x2, y2))
            yield SuspectObject(sample_of(split, row), number, why, *found_as)


def object_issues(
    objects: NDArray[np.float64], detections: NDArray[np.float64], *, min_iou: float
) -> Iterator[tuple[str, int | None, int, float]]:
    """Compare the objects of an image, (N, 6) class, 0 if it is ignored, and box, with detections (M, 6).

    Detections are class, score and box; low scores must be filtered out before. Yields ``overlooked``, ``misplaced`` or
    ``swapped``, the object (None if it was overlooked), the detection, and its IoU with the object or the nearest one.

    Detections and objects are paired, those with the largest IoU first, in three steps: of the same class with at least
    `min_iou`, which agree; of different classes with at least `min_iou`, ``swapped``; of the same class with an IoU of
    at least 0.1, ``misplaced``. A remaining detection is ``overlooked``, unless it has `min_iou` with an object, or
    half of it lies in an ignored object.

    ObjectLab defines the three kinds (U. Tkachenko, A. Thyagarajan, J. Mueller, ObjectLab: Automated Diagnosis of
    Mislabeled Images in Object Detection Data, 2023). ObjectLab computes scores of images. These are rules for objects.
    """
    boxes, seen, counts = objects[:, 2:], detections[:, 2:], objects[:, 1] > 0
    ious = box_ious(seen, boxes)
    is_same = detections[:, 0][:, None] == objects[:, 0]
    free = np.ones(ious.shape, np.bool_) & counts
    is_left = np.ones(len(ious), np.bool_)
    steps = (("", is_same, min_iou), ("swapped", ~is_same, min_iou), ("misplaced", is_same, _APART))
    for why, possible, least in steps:
        for detection, number in _paired(np.where(free & possible, ious, 0), least):
            free[detection] = free[:, number] = is_left[detection] = False
            if why:
                yield why, number, detection, float(ious[detection, number])
    areas = (seen[:, 2:] - seen[:, :2]).prod(axis=1)
    inside = box_intersections(seen, boxes[~counts]).max(axis=1, initial=0)
    nearest = ious.max(axis=1, initial=0)
    for detection in np.flatnonzero(is_left & (nearest < min_iou) & (inside < _INSIDE * areas)).tolist():
        yield "overlooked", None, detection, float(nearest[detection])


def _paired(ious: NDArray[Any], least: float) -> Iterator[tuple[int, int]]:
    """Pairs with at least an IoU, the largest first; each row and each column occurs once."""
    ious = ious.copy()
    while ious.size and ious.max() >= max(least, 1e-9):
        row, column = divmod(int(ious.argmax()), ious.shape[1])
        yield row, column
        ious[row], ious[:, column] = 0, 0
