"""What a check finds in labels and objects: boxes, keypoints and classes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tensorstore_ds.annex.checking.findings import AbsentKeypoints, CheckedSample, FewSamples, OddBox
from tensorstore_ds.annex.checking.options import CheckOptions
from tensorstore_ds.format.kinds import LabelField, LabelsField, ObjectsField
from tensorstore_ds.format.kinds.base import image_of, of_kind
from tensorstore_ds.imaging.oriented import oriented_to_corners
from tensorstore_ds.reading.store import Split, Store
from tensorstore_ds.reading.verification import image_sizes

_BLOCK = 8192  # objects that are judged at a time


def sample_of(split: Split, row: int) -> CheckedSample:
    """A sample as findings name it."""
    label = None
    for name, field in [*of_kind(split.fields, LabelField).items()][:1]:
        index = int(split[name][row])
        label = field.classes[index] if 0 <= index < len(field.classes) else None
    for name, several in [*of_kind(split.fields, LabelsField).items()][:1] if label is None else ():
        label = ", ".join(several.names_of(split[name][row])) or None
    return CheckedSample(split.name, row, split.key(row), label)


def odd_boxes(split: Split, options: CheckOptions) -> Iterator[OddBox]:
    """Objects of a split with implausible boxes."""
    for name, field in of_kind(split.fields, ObjectsField).items():
        table = split.table(name)
        if "boxes" not in table.values:
            continue
        boxes = table["boxes"]
        for start in range(0, len(boxes), _BLOCK):
            some = np.asarray(boxes[start : start + _BLOCK], np.float64)
            rows = np.searchsorted(table.offsets, np.arange(start, start + len(some)), "right") - 1
            sides, sizes = some[:, 2:] - some[:, :2], image_sizes(split, image_of(field), rows)
            share = sides.prod(axis=1) / sizes.prod(axis=1)
            is_apart = np.zeros(len(some), np.bool_)
            if "oriented_boxes" in table.values:
                oriented = np.asarray(table["oriented_boxes"][start : start + _BLOCK], np.float64)
                sides = np.where(np.isnan(oriented[:, 2:4]), sides, oriented[:, 2:4])
                is_apart = _overlap(some, oriented, sizes) < options.min_overlap
            checks = {
                "small": sides.min(axis=1) < options.min_box,
                "large": share > options.max_box,
                "long": sides.max(axis=1) > options.max_aspect * sides.min(axis=1),
                "apart": is_apart,
            }
            for i in np.flatnonzero(np.logical_or.reduce(list(checks.values()))).tolist():
                row = int(rows[i])
                why = next(name for name, found in checks.items() if found[i])
                x1, y1, x2, y2 = some[i].tolist()
                yield OddBox(sample_of(split, row), start + i - int(table.offsets[row]), (x1, y1, x2, y2), why)


def absent_keypoints(split: Split, options: CheckOptions) -> Iterator[AbsentKeypoints]:
    """Objects of a split that have some of their keypoints, but not all."""
    for name, field in of_kind(split.fields, ObjectsField).items():
        if "keypoints" not in field.values or not options.absent_keypoints:
            continue
        table = split.table(name)
        keypoints, offsets = table["keypoints"], table.offsets
        for start in range(0, len(keypoints), _BLOCK):
            absent = np.isnan(keypoints[start : start + _BLOCK]).any(axis=2)
            for i in np.flatnonzero(absent.any(axis=1) & ~absent.all(axis=1)).tolist():
                row = int(np.searchsorted(offsets, start + i, "right")) - 1
                names = tuple(field.keypoints[k] for k in np.flatnonzero(absent[i]).tolist())
                yield AbsentKeypoints(sample_of(split, row), start + i - int(offsets[row]), names)


def _overlap(boxes: NDArray[Any], oriented: NDArray[Any], sizes: NDArray[Any]) -> NDArray[np.float64]:
    """(n,) IoU of boxes and of the hulls, clipped to the image, of oriented boxes; NaN without one."""
    corners, edge = oriented_to_corners(oriented), sizes[:, ::-1]
    low, high = (np.clip(each, 0, edge) for each in (corners.min(1), corners.max(1)))
    inside = np.minimum(high, boxes[:, 2:]) - np.maximum(low, boxes[:, :2])
    both = inside.clip(0).prod(axis=1)
    areas = (high - low).prod(axis=1) + (boxes[:, 2:] - boxes[:, :2]).prod(axis=1)
    overlap: NDArray[np.float64] = both / (areas - both)
    return overlap


def few_samples(store: Store, least: int) -> Iterator[FewSamples]:
    """Classes with fewer samples, or objects, than `least` in a split."""
    for name, field in store.manifest.fields.items():
        if not field.joins_classes or not field.classes:
            continue
        for split in (store[each] for each in store if len(store[each])):
            _, labels = field.class_rows(split[name])
            known = labels[(labels >= 0) & (labels < len(field.classes))]
            counts = np.bincount(known, minlength=len(field.classes))
            for text, count in zip(field.classes, counts.tolist(), strict=True):
                if count < least:
                    yield FewSamples(name, text, split.name, count)
