"""Objects: any number of boxes, class labels, keypoints and flags per sample."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from tensorstore_ds.format.kinds.base import (
    APART,
    Field,
    FieldsDifferError,
    Finding,
    ImageSizes,
    StoredRows,
    StoredTable,
    TableField,
    counted,
    equal,
    image_of,
    joined_classes,
    pieces,
    unknown_number,
)
from tensorstore_ds.format.kinds.label import check_labels
from tensorstore_ds.format.manifest_values import ManifestValues
from tensorstore_ds.format.schema import ArraySpec, EncodedSample
from tensorstore_ds.format.statistics import ObjectSums, Sums

#: Flags of objects that are not learned and do not count.
IGNORED = ("difficult", "iscrowd")
#: The values that have a meaning, and their type for one object, or for one element of its list where they are among
#: `LISTS`; K is the number of keypoints.
OBJECT_VALUES: Mapping[str, tuple[str, tuple[int | str, ...]]] = {
    "boxes": ("float32", (4,)),
    "oriented_boxes": ("float32", (5,)),
    "labels": ("int64", ()),
    "keypoints": ("float32", ("K", 2)),
    "visibility": ("uint8", ("K",)),
    "difficult": ("uint8", ()),
    "truncated": ("uint8", ()),
    "occluded": ("uint8", ()),
    "iscrowd": ("uint8", ()),
    "area": ("float32", ()),
    "polygons": ("float32", (2,)),
    "rle": ("uint32", ()),
}
#: The largest angle of an oriented box, in radians: pi as the nearest float32, which is a little more.
PI = np.float32(np.pi)
#: Those of them of which each object has a list of any length: corners of polygons, with a row of NaN between two
#: polygons; and the lengths of runs of background and object in turn, down the columns of the image, as COCO has them.
LISTS = ("polygons", "rle")
#: Those of them that are 0 or 1.
FLAGS = ("difficult", "truncated", "occluded", "iscrowd")
#: Class of objects without labels, if others have labels.
UNKNOWN_CLASS = "unknown"
#: Values of objects without an unknown value: an object that lacks one cannot be stored with others.
_NEEDED = ("boxes",)


@dataclass(frozen=True)
class ObjectsField(TableField):
    """A table of objects, with `OBJECT_VALUES` or others.

    `keypoints` are the K names in the order of the value `keypoints`. `flip_pairs` are pairs of keypoint indices that a
    left-right mirror swaps, and `skeleton` those that a drawing connects. `image` is the field of images of the
    coordinates; None means `image`.
    """

    kind: ClassVar[str] = "objects"
    moves: ClassVar[bool] = True
    joins_classes: ClassVar[bool] = True
    is_counted: ClassVar[bool] = True
    class_value: ClassVar[str] = "labels"
    classes: tuple[str, ...] = ()
    keypoints: tuple[str, ...] = ()
    flip_pairs: tuple[tuple[int, int], ...] = ()
    skeleton: tuple[tuple[int, int], ...] = ()
    image: str | None = None

    @classmethod
    def of(
        cls,
        *values: str,
        classes: tuple[str, ...] = (),
        keypoints: tuple[str, ...] = (),
        flip_pairs: tuple[tuple[int, int], ...] = (),
        skeleton: tuple[tuple[int, int], ...] = (),
    ) -> ObjectsField:
        """Create the field with some of `OBJECT_VALUES`.

        >>> ObjectsField.of("boxes", "keypoints", keypoints=("left", "right")).values["keypoints"].shape
        (2, 2)
        """
        specs = {name: _spec(name, len(keypoints)) for name in values}
        return cls(specs, classes, keypoints, flip_pairs, skeleton)

    def dump(self) -> dict[str, Any]:
        data = {**super().dump(), "classes": list(self.classes), "keypoints": list(self.keypoints)}
        data["flip_pairs"] = [list(pair) for pair in self.flip_pairs]
        data |= {"skeleton": [list(pair) for pair in self.skeleton]} if self.skeleton else {}
        return data if self.image is None else {**data, "image": self.image}

    @property
    def absent_as(self) -> str:
        return "" if self.per_row else "their images are stored as images without any objects"

    def is_known(self, value: Any, own: Field, known: Any) -> bool:
        count = len(next(iter(value.values())))
        if len(next(iter(known.values()), ())) != count:
            return False
        known = known if "labels" in known else {**known, "labels": np.full(count, -1)}
        return all(equal(self.value_of(name, own, known, count), each) for name, each in value.items())

    @property
    def names(self) -> dict[str, tuple[str, ...]]:
        return {"values": tuple(self.values), "classes": self.classes, "keypoints": self.keypoints}

    def likeness(self) -> dict[str, Any]:
        known = {value: spec.dump() for value, spec in self.per_row.items()}
        return {"kind": self.kind, "per_row": known, "image": image_of(self)}

    def joined(self, name: str, own: Sequence[Self | None], class_map: Mapping[str, str]) -> Self:
        """Return the field with all values, classes and keypoints."""
        fields = {side: field for side, field in enumerate(own) if field is not None}
        values: dict[str, ArraySpec] = {}
        keypoints = tuple(dict.fromkeys(each for field in fields.values() for each in field.keypoints))
        specs = ObjectsField.of("keypoints", "visibility", keypoints=keypoints).values
        for side, field in fields.items():
            for value, spec in field.values.items():
                spec = replace(specs[value], layout=spec.layout) if value in specs else spec
                if values.setdefault(value, spec) != spec:
                    message = f"expected {name}.{value} to be {values[value]}, found {spec}."
                    raise FieldsDifferError(side, message, APART)
        for side, field in fields.items():
            if missing := [value for value in _NEEDED if value in values and value not in field.values]:
                message = f"expected {name} with {missing[0]}, as others have them, found {name} without."
                raise FieldsDifferError(side, message, APART)
        classes = joined_classes(own, class_map)
        if "labels" in values and any("labels" not in field.values for field in fields.values()):
            classes = tuple(dict.fromkeys((*classes, UNKNOWN_CLASS)))
        places = {each: i for i, each in enumerate(keypoints)}
        pairs, skeleton = dict[tuple[int, int], None](), dict[tuple[int, int], None]()
        for field in fields.values():
            new = [places[each] for each in field.keypoints]
            pairs |= dict.fromkeys((new[a], new[b]) for a, b in field.flip_pairs if (new[b], new[a]) not in pairs)
            skeleton |= dict.fromkeys((new[a], new[b]) for a, b in field.skeleton)
        flat = [place for pair in pairs for place in pair]
        if len(set(flat)) != len(flat):
            message = f"expected the same pairs of keypoints in {name}, found others."
            raise FieldsDifferError(max(fields), message, "Name them with `keypoints`.")
        return replace(
            self, values=values, classes=classes, keypoints=keypoints, flip_pairs=(*pairs,), skeleton=(*skeleton,)
        )

    def gaps(self, name: str, own: Self, class_map: Mapping[str, str]) -> Iterator[tuple[str, str]]:
        for value, spec in self.values.items():
            if value in own.values:
                continue
            said = f"unknown, stored as {0 if value in FLAGS else unknown_number(spec)}"
            if spec.is_ragged:
                said = "unknown, stored as empty"
            elif value == "visibility":
                said = "2 where a keypoint is known, else 0"
            elif value == "labels":
                said = f"unknown, stored as the class {UNKNOWN_CLASS}"
            yield f"{name}.{value} to", said

    def made_of(self, value: str, own: Field) -> tuple[str, ...]:
        stored = own.values if isinstance(own, ObjectsField) else {}
        is_same = value in stored and own.names["keypoints"] == self.keypoints
        if value not in ("keypoints", "visibility") or is_same:
            return ()
        return tuple(each for each in (value, "keypoints") if each in stored)[:1]

    def value_of(self, value: str, own: Field | None, stored: Mapping[str, Any], count: int) -> Any:
        """Return a value of `count` objects of the field `own` as this field has it, unknown where `own` lacks it.

        Keypoints are in the order of this field, and visible if they have coordinates and no known visibility.
        """
        if value not in ("keypoints", "visibility"):
            return stored[value] if value in stored else self._unknown_value(value, count)
        filled, names = self._unknown_value(value, count), getattr(own, "keypoints", ())
        both = [name for name in names if name in self.keypoints]
        to, places = [self.keypoints.index(name) for name in both], [names.index(name) for name in both]
        if value in stored:
            known = np.asarray(stored[value])
            filled = filled.astype(np.result_type(filled, known), copy=False)
            filled[:, to] = known[:, places]
        elif value == "visibility" and "keypoints" in stored:
            filled[:, to] = 2 * ~np.isnan(np.asarray(stored["keypoints"])[:, places]).any(axis=2)
        return filled

    def _unknown_value(self, value: str, count: int) -> Any:
        spec = self.values[value]
        if spec.is_ragged:
            return [np.empty((0, *spec.shape), spec.dtype)] * count
        unknown = unknown_number(spec)
        if value == "labels":
            unknown = self.classes.index(UNKNOWN_CLASS) if count else 0
        elif value == "visibility" or value in FLAGS:
            unknown = 0
        return np.full((count, *spec.shape), unknown, spec.dtype)

    @classmethod
    def parse(cls, values: ManifestValues, where: str, data: dict[str, Any]) -> Field:
        specs, per_row = values.table(where, data)
        classes = values.names(f"{where}.classes", data.get("classes"))
        keypoints = values.names(f"{where}.keypoints", data.get("keypoints"))
        for name in specs.keys() & OBJECT_VALUES.keys():
            expected, spec = _spec(name, len(keypoints)), specs[name]
            if replace(spec, layout=None) != expected:
                values.wrong(where, f"{name}: expected {_shown(expected)}, found {_shown(spec)}.")
        pairs = _pairs(values, f"{where}.flip_pairs", data.get("flip_pairs"), len(keypoints))
        flat = [i for pair in pairs for i in pair]
        if len(set(flat)) != len(flat):
            values.wrong(f"{where}.flip_pairs", "expected each keypoint in at most one pair, found one in two.")
        lines = _pairs(values, f"{where}.skeleton", data.get("skeleton", []), len(keypoints))
        image = values.image(where, data)
        return cls(specs, classes, keypoints, pairs, lines, image, per_row=per_row)

    def describe(self) -> str:
        named = (self.classes, "class", "es"), (self.keypoints, "keypoint", "s")
        return " · ".join([", ".join(self.values), *(counted(*each) for each in named if each[0])])

    def rows(self, name: str, samples: Sequence[EncodedSample]) -> tuple[NDArray[np.int64], dict[str, NDArray[Any]]]:
        counts = [len(next(iter(sample.objects.values()), ())) for sample in samples]
        fixed = [value for value in self.values if value not in self.ragged]
        values = {name: self._joined(name, (each.objects[name] for each in samples if each.objects)) for name in fixed}
        return np.array(counts, np.int64), values

    def lists(
        self, name: str, samples: Sequence[EncodedSample]
    ) -> dict[str, tuple[NDArray[np.int64], dict[str, NDArray[Any]]]]:
        every = {value: [each for sample in samples for each in sample.objects.get(value, ())] for value in self.ragged}
        return {
            value: (np.array([len(each) for each in lists], np.int64), {"items": self._joined(value, lists)})
            for value, lists in every.items()
        }

    def _joined(self, value: str, arrays: Iterable[NDArray[Any]]) -> NDArray[Any]:
        spec = self.values[value]
        return np.concatenate([np.empty((0, *spec.shape), spec.dtype), *arrays], dtype=spec.dtype)

    def sums(self, lengths: NDArray[np.int64], values: Mapping[str, NDArray[Any]]) -> Sums:
        return ObjectSums.of_objects(lengths, values.get("labels"), len(self.classes), values.get("keypoints"))

    def check(self, table: StoredTable, image_sizes: ImageSizes) -> Iterator[Finding]:
        if "labels" in self.values:
            yield from check_labels(table["labels"], len(self.classes))
        if "boxes" in self.values:
            yield from _check_boxes(table, image_sizes)
        if "oriented_boxes" in self.values:
            yield from _check_oriented(table["oriented_boxes"])
        if "keypoints" in self.values:
            yield from _check_points(table["keypoints"], "keypoint-range", "object")
        if "polygons" in self.values:
            yield from _check_points(table.lists["polygons"]["items"], "polygon-range", "corner")
        if "rle" in self.values:
            yield from _check_runs(table, image_sizes)
        for flag, most in {**dict.fromkeys(FLAGS, 1), "visibility": 2}.items():
            for start, values in pieces(table[flag]) if flag in self.values else ():
                if values.size and values.max() > most:
                    expected = "0 or 1" if most == 1 else "0, 1 or 2"
                    yield "flag-range", f"expected {expected} in {flag}, found {values.max()} behind object {start}."
                    break


def _check_oriented(boxes: StoredRows) -> Iterator[Finding]:
    for start, rows in pieces(boxes):
        absent = np.isnan(rows).all(axis=1)
        with np.errstate(invalid="ignore"):
            good = np.isfinite(rows).all(axis=1) & (rows[:, 2:4] > 0).all(axis=1) & (np.abs(rows[:, 4]) <= PI)
        wrong = np.flatnonzero(~(good | absent))
        if wrong.size:
            found = ", ".join(f"{v:g}" for v in rows[wrong[0]])
            expected = "cx, cy, w > 0, h > 0 and an angle in [-pi, pi], or five NaN"
            yield "oriented-range", f"expected {expected}, found ({found}) in object {start + int(wrong[0])}."
            return


def _check_points(stored: StoredRows, code: str, what: str) -> Iterator[Finding]:
    """Yield the first row with a point (..., 2) of which one coordinate is missing or infinite."""
    for start, points in pieces(stored):
        wrong = np.isinf(points).any(axis=-1) | (np.isnan(points[..., 0]) != np.isnan(points[..., 1]))
        if wrong.any():
            first = start + int(np.argwhere(wrong)[0, 0])
            yield code, f"expected two finite numbers or two NaN, found others in {what} {first}."
            return


def _check_runs(table: StoredTable, image_sizes: ImageSizes) -> Iterator[Finding]:
    """Yield objects whose runs do not add up to the pixels of their image."""
    runs = table.lists["rle"]
    ends = np.asarray(runs.offsets)
    totals = np.zeros(len(ends), np.int64)  # total of all runs before each object
    before = 0
    for start, lengths in pieces(runs["items"]):
        sums = np.cumsum(lengths, dtype=np.int64) + before
        first, last = np.searchsorted(ends, [start, start + len(lengths)], "right")
        totals[first:last] = sums[ends[first:last] - start - 1]
        totals[last:] = before = int(sums[-1])
    rows = np.repeat(np.arange(len(table)), np.diff(table.offsets))
    samples, places = np.unique(rows, return_inverse=True)
    pixels = image_sizes(samples).prod(axis=1)[places]
    sums = np.diff(totals)
    wrong = np.flatnonzero((np.diff(ends) > 0) & np.isfinite(pixels) & (sums != pixels))
    if wrong.size:
        at = int(wrong[0])
        found = f"runs of {sums[at]} in object {at}, row {rows[at]}"
        yield "rle-range", f"expected runs that add up to the {pixels[at]:.0f} pixels of the image, found {found}."


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
    """Return dtype and shape of one object's `name`, a member of `OBJECT_VALUES`."""
    dtype, shape = OBJECT_VALUES[name]
    return ArraySpec(dtype, tuple(keypoints if n == "K" else int(n) for n in shape), is_ragged=name in LISTS)


def _shown(spec: ArraySpec) -> str:
    return f"{'lists of ' if spec.is_ragged else ''}{spec.dtype} {list(spec.shape)}"


def _pairs(values: ManifestValues, where: str, data: Any, keypoints: int) -> tuple[tuple[int, int], ...]:
    pairs = []
    for i, item in enumerate(values.list_at(where, data)):
        pair = [values.integer(f"{where}[{i}]", n) for n in values.list_at(f"{where}[{i}]", item)]
        if len(pair) == 2 and max(pair) < keypoints:
            pairs.append((pair[0], pair[1]))
        else:
            values.wrong(f"{where}[{i}]", f"expected two indices in [0, {keypoints}), found {repr(item)[:60]}.")
    return tuple(pairs)
