"""Objects: for every sample any number of boxes, class labels, keypoints and flags."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from tensorstore_ds.format.kinds.base import (
    Field,
    Finding,
    ImageSizes,
    StoredRows,
    StoredTable,
    TableField,
    counted,
    pieces,
)
from tensorstore_ds.format.kinds.label import check_labels
from tensorstore_ds.format.manifest_values import ManifestValues
from tensorstore_ds.format.schema import ArraySpec, EncodedSample
from tensorstore_ds.format.statistics import Statistics

#: The value arrays that have a meaning, and their type for one object; K is the number of keypoints.
OBJECT_VALUES: Mapping[str, tuple[str, tuple[int | str, ...]]] = {
    "boxes": ("float32", (4,)),
    "labels": ("int64", ()),
    "keypoints": ("float32", ("K", 2)),
    "difficult": ("uint8", ()),
    "truncated": ("uint8", ()),
    "occluded": ("uint8", ()),
}
#: Those of them that are 0 or 1.
FLAGS = ("difficult", "truncated", "occluded")


@dataclass(frozen=True)
class ObjectsField(TableField):
    """A table of objects, with `OBJECT_VALUES` or others.

    Attributes:
        classes: the class names; `labels` are indices into them.
        keypoints: the names of the K keypoints, in the order of the value `keypoints`.
        flip_pairs: pairs of keypoint indices that change places when an image is mirrored left to right.
    """

    kind: ClassVar[str] = "objects"
    classes: tuple[str, ...] = ()
    keypoints: tuple[str, ...] = ()
    flip_pairs: tuple[tuple[int, int], ...] = ()

    @classmethod
    def of(
        cls,
        *values: str,
        classes: tuple[str, ...] = (),
        keypoints: tuple[str, ...] = (),
        flip_pairs: tuple[tuple[int, int], ...] = (),
    ) -> ObjectsField:
        """With some of `OBJECT_VALUES`.

        >>> ObjectsField.of("boxes", "keypoints", keypoints=("left", "right")).values["keypoints"].shape
        (2, 2)
        """
        specs = {name: _spec(name, len(keypoints)) for name in values}
        return cls(specs, classes, keypoints, flip_pairs)

    def dump(self) -> dict[str, Any]:
        names = {"classes": list(self.classes), "keypoints": list(self.keypoints)}
        return {**super().dump(), **names, "flip_pairs": [list(pair) for pair in self.flip_pairs]}

    @classmethod
    def parse(cls, values: ManifestValues, where: str, data: dict[str, Any]) -> Field:
        specs, per_row = values.table(where, data)
        classes = values.names(f"{where}.classes", data.get("classes"))
        keypoints = values.names(f"{where}.keypoints", data.get("keypoints"))
        for name in specs.keys() & OBJECT_VALUES.keys():
            expected, spec = _spec(name, len(keypoints)), specs[name]
            if replace(spec, layout=None) != expected:
                found = f"{'lists of ' if spec.is_ragged else ''}{spec.dtype} {list(spec.shape)}"
                values.wrong(where, f"{name}: expected {expected.dtype} {list(expected.shape)}, found {found}.")
        pairs = _flip_pairs(values, f"{where}.flip_pairs", data, len(keypoints))
        return cls(specs, classes, keypoints, pairs, per_row=per_row)

    def describe(self) -> str:
        named = (self.classes, "class", "es"), (self.keypoints, "keypoint", "s")
        return " · ".join([", ".join(self.values), *(counted(*each) for each in named if each[0])])

    def rows(self, name: str, samples: Sequence[EncodedSample]) -> tuple[NDArray[np.int64], dict[str, NDArray[Any]]]:
        counts = [len(next(iter(sample.objects.values()))) for sample in samples]
        values = {}
        for value, spec in self.values.items():
            empty = np.empty((0, *spec.shape), spec.dtype)
            values[value] = np.concatenate([empty, *(sample.objects[value] for sample in samples)])
        return np.array(counts, np.int64), values

    def add_statistics(
        self, statistics: Statistics, name: str, lengths: NDArray[np.int64], values: Mapping[str, NDArray[Any]]
    ) -> None:
        statistics.add_objects(lengths, values.get("labels"), len(self.classes))

    def check(self, table: StoredTable, image_sizes: ImageSizes) -> Iterator[Finding]:
        if "labels" in self.values:
            yield from check_labels(table["labels"], len(self.classes))
        if "boxes" in self.values:
            yield from _check_boxes(table, image_sizes)
        if "keypoints" in self.values:
            yield from _check_keypoints(table["keypoints"])
        for flag in (flag for flag in FLAGS if flag in self.values):
            for start, values in pieces(table[flag]):
                if values.max() > 1:
                    yield "flag-range", f"expected 0 or 1 in {flag}, found {values.max()} behind object {start}."
                    break


def _check_keypoints(keypoints: StoredRows) -> Iterator[Finding]:
    for start, points in pieces(keypoints):
        absent = np.isnan(points)
        wrong = np.isinf(points).any(axis=(1, 2)) | (absent[..., 0] != absent[..., 1]).any(axis=1)
        if wrong.any():
            first = start + int(np.flatnonzero(wrong)[0])
            yield "keypoint-range", f"expected two finite numbers or two NaN, found others in object {first}."
            return


def _check_boxes(table: StoredTable, image_sizes: ImageSizes) -> Iterator[Finding]:
    for start, boxes in pieces(table["boxes"]):
        rows = np.searchsorted(table.offsets, np.arange(start, start + len(boxes)), "right") - 1
        samples, places = np.unique(rows, return_inverse=True)
        sizes = image_sizes(samples)[places]
        x1, y1, x2, y2 = boxes.T
        good = (x1 >= 0) & (x1 < x2) & (x2 <= sizes[:, 1]) & (y1 >= 0) & (y1 < y2) & (y2 <= sizes[:, 0])
        good &= np.isfinite(boxes).all(axis=1)
        if not good.all():
            wrong = int(np.flatnonzero(~good)[0])
            box = ", ".join(f"{v:g}" for v in boxes[wrong])
            inside = " and no negative corner"
            if np.isfinite(sizes[wrong]).all():
                inside = f" inside of {sizes[wrong][0]:.0f}x{sizes[wrong][1]:.0f}"
            yield "box-range", f"expected boxes with an area{inside}, found ({box}) in row {int(rows[wrong])}."
            return


def _spec(name: str, keypoints: int) -> ArraySpec:
    """dtype and shape of one object's `name`, a member of `OBJECT_VALUES`, for a number of keypoints."""
    dtype, shape = OBJECT_VALUES[name]
    return ArraySpec(dtype, tuple(keypoints if n == "K" else int(n) for n in shape))


def _flip_pairs(
    values: ManifestValues, where: str, data: Mapping[str, Any], keypoints: int
) -> tuple[tuple[int, int], ...]:
    pairs = []
    for i, item in enumerate(values.list_at(where, data.get("flip_pairs"))):
        pair = [values.integer(f"{where}[{i}]", n) for n in values.list_at(f"{where}[{i}]", item)]
        if len(pair) == 2 and max(pair) < keypoints:
            pairs.append((pair[0], pair[1]))
        else:
            values.wrong(f"{where}[{i}]", f"expected two indices in [0, {keypoints}), found {repr(item)[:60]}.")
    flat = [i for pair in pairs for i in pair]
    if len(set(flat)) != len(flat):
        values.wrong(where, "expected each keypoint in at most one pair, found one in two.")
    return tuple(pairs)
