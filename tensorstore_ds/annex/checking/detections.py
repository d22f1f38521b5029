"""Boxes and classes of objects that the detections of a model contradict."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tensorstore_ds.imaging.boxes import box_intersections, box_ious

#: A detection and an object whose boxes overlap less than this have nothing to do with each other.
_APART = 0.1
#: A detection of which this share lies in an ignored object is none.
_INSIDE = 0.5


class Boxes(NamedTuple):
    """Objects or detections of an image."""

    boxes: NDArray[np.float64]  #: (m, 4) x1 y1 x2 y2 in pixels.
    labels: NDArray[np.int64]  #: (m,) classes from 0.
    #: (m,) of detections the score; of objects whether they count, 0 for those that are ignored.
    scores: NDArray[np.float64]


class ObjectIssue(NamedTuple):
    """A detection that contradicts the objects of an image."""

    why: str  #: ``overlooked``, ``misplaced`` or ``swapped``.
    object: int | None  #: The object, None if it was overlooked.
    detection: int
    iou: float  #: With the object; with the nearest one if it was overlooked.


def object_issues(objects: Boxes, detections: Boxes, *, min_iou: float) -> Iterator[ObjectIssue]:
    """Compare the objects of an image with detections; low scores must be filtered out before.

    Detections and objects are paired, those with the largest IoU first, in three steps: of the same class with at least
    `min_iou`, which agree; of different classes with at least `min_iou`, ``swapped``; of the same class with an IoU of
    at least 0.1, ``misplaced``. A remaining detection is ``overlooked``, unless it has `min_iou` with an object, or
    half of it lies in an ignored object.

    The three kinds are those of ObjectLab (U. Tkachenko, A. Thyagarajan, J. Mueller, ObjectLab: Automated Diagnosis of
    Mislabeled Images in Object Detection Data, 2023). ObjectLab computes scores of images. These are rules for objects.
    """
    ious = box_ious(detections.boxes, objects.boxes)
    is_same = detections.labels[:, None] == objects.labels
    counts = objects.scores > 0
    free = np.ones(ious.shape, np.bool_) & counts
    is_left = np.ones(len(ious), np.bool_)
    steps = (("", is_same, min_iou), ("swapped", ~is_same, min_iou), ("misplaced", is_same, _APART))
    for why, possible, least in steps:
        for detection, number in _paired(np.where(free & possible, ious, 0), least):
            free[detection] = free[:, number] = is_left[detection] = False
            if why:
                yield ObjectIssue(why, number, detection, float(ious[detection, number]))
    areas = (detections.boxes[:, 2:] - detections.boxes[:, :2]).prod(axis=1)
    inside = box_intersections(detections.boxes, objects.boxes[~counts]).max(axis=1, initial=0)
    nearest = ious.max(axis=1, initial=0)
    for detection in np.flatnonzero(is_left & (nearest < min_iou) & (inside < _INSIDE * areas)).tolist():
        yield ObjectIssue("overlooked", None, detection, float(nearest[detection]))


def _paired(ious: NDArray[Any], least: float) -> Iterator[tuple[int, int]]:
    """Pairs with at least an IoU, the largest first; each row and each column occurs once."""
    ious = ious.copy()
    while ious.size and ious.max() >= max(least, 1e-9):
        row, column = divmod(int(ious.argmax()), ious.shape[1])
        yield row, column
        ious[row], ious[:, column] = 0, 0
