"""Labels and objects of the rows of packed data sets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tensorstore_ds.format.kinds import OBJECT_VALUES
from tensorstore_ds.format.kinds.label import UNLABELLED
from tensorstore_ds.sources.base import FLAGS, Objects
from tensorstore_ds.sources.forms import FormError, kind
from tensorstore_ds.sources.samples import object_values

#: A class as a data set has it: its number, or its name.
Label = int | str

#: Members of Hugging Face's objects that are their classes.
CATEGORY_NAMES = ("category", "categories", "category_id", "label", "labels")

#: Members of Hugging Face's objects that are read, except their classes.
STRUCT_MEMBERS = frozenset({"bbox", "oriented_boxes", "keypoints", "visibility", "area", "rle", "polygons", *FLAGS})

_UNSURE = 20  # boxes of which one at least would show that they are no corners


@dataclass(frozen=True, slots=True)
class RowObjects:
    """Objects of a row: `values` as `Objects` without labels, empty without objects, and a label for each."""

    values: Objects
    labels: Sequence[Label] | None
    names: tuple[str, ...]  #: of all the values that there are, though they be empty

    def __len__(self) -> int:
        return next((len(each) for each in self.values.values()), 0)


def row_objects(members: Mapping[str, Any], labels: Sequence[Label] | None) -> RowObjects:
    """Objects from lists by the names of `OBJECT_VALUES`, with NaN for None; other members are ignored.

    Raises `FormError` unless each has M values.
    """
    given = {name: _with_nan(members[name]) for name in OBJECT_VALUES if members.get(name) is not None}
    given.pop("labels", None)
    around = ["boxes"] * ("oriented_boxes" in given and "boxes" not in given)  # their hulls
    names = (*around, *given, *(["labels"] if labels is not None else []))
    if any(not isinstance(each, list) for each in given.values()):
        raise FormError(f"expected lists of {', '.join(given)}, found something else")
    if not any(given.values()) and not labels:
        return RowObjects({}, labels, names)
    try:
        values = object_values(given)
    except ValueError as error:
        raise FormError(str(error)) from error
    count = len(next(iter(values.values())))
    if labels is not None and len(labels) != count:
        raise FormError(f"expected a label for each of {count} objects, found {len(labels)}")
    return RowObjects(values, labels, names)


def struct_objects(value: Any, *, corners: bool = False) -> RowObjects:
    """Objects of a row: lists in a struct, or a list of structs, with `bbox` x y width height.

    With `corners`, `bbox` is x1 y1 x2 y2. `polygons` are lists of corners x y, any number for each object. Raises
    `FormError` for null or a different form.
    """
    if value is None:
        raise FormError("expected objects, found null")
    if isinstance(value, list):
        if any(each is None for each in value):
            raise FormError("expected objects, found null among them")
        value = {name: [each[name] for each in value] for name in (value[0] if value else {})}
    boxes = value.get("bbox")
    members = {
        name: value[name]
        for name in ("oriented_boxes", "keypoints", "visibility", "area", "rle", *FLAGS)
        if value.get(name) is not None
    }
    members |= {
        name: [int(each) if isinstance(each, bool) else each for each in members[name]]
        for name in FLAGS
        if name in members
    }
    if boxes is not None:
        if any(each is None or len(each) != 4 or None in each for each in boxes):
            raise FormError("expected bbox with x, y, width and height, found others")
        members["boxes"] = boxes if corners else [[x, y, x + width, y + height] for x, y, width, height in boxes]
    if (polygons := value.get("polygons")) is not None:
        members["polygons"] = [_joined(each) for each in polygons] if isinstance(polygons, list) else polygons
    category = next((name for name in CATEGORY_NAMES if value.get(name) is not None), None)
    labels: list[Label] | None = None
    if category is not None:
        found = [label_of(each, category) for each in value[category]]
        labels = [each for each in found if each is not None and each != UNLABELLED]
        if len(labels) != len(found):
            raise FormError(f"expected a {category} for each object, found none")
    return row_objects(members, labels)


def _joined(polygons: Any) -> list[list[float | None]]:
    """Corners of an object's polygons, with one of None between 2 polygons."""
    if not isinstance(polygons, list) or not all(isinstance(each, list) for each in polygons):
        raise FormError(f"expected polygons, lists of corners x y, found {kind(polygons)}")
    gap: list[float | None] = [None, None]
    return [corner for i, polygon in enumerate(polygons) for corner in ([gap] * (i > 0) + polygon)]


def _with_nan(value: Any) -> Any:
    if isinstance(value, list):
        return [_with_nan(each) for each in value]
    return float("nan") if value is None else value


class BoxForm:
    """Possible forms of the numbers of all boxes: x y width height, as in COCO, or x1 y1 x2 y2.

    `count` is the number of boxes with 4 numbers. `not_corners` have a second corner above or left of the first.
    `not_sizes` would exceed their image as x y width height. `areas_of_*` have the `area` of one form only.
    """

    def __init__(self) -> None:
        self.count = self.not_corners = self.not_sizes = self.areas_of_sizes = self.areas_of_corners = 0

    def note(self, objects: RowObjects, size: tuple[int, int] | None) -> None:
        """Note the objects of a row, read as corners, and the (height, width) of its image."""
        boxes = np.asarray(objects.values.get("boxes", ()), np.float64).reshape(-1, 4)
        first, second = boxes[:, :2], boxes[:, 2:]
        self.count += len(boxes)
        self.not_corners += int((second < first).any(axis=1).sum())
        if size is not None:
            self.not_sizes += int((first + second > np.array(size[::-1]) + 1).any(axis=1).sum())
        if "area" in objects.values:
            area = np.asarray(objects.values["area"], np.float64)
            fits = [np.isclose(area, sides.prod(axis=1), rtol=0.02, atol=1) for sides in (second, second - first)]
            self.areas_of_sizes += int((fits[0] & ~fits[1]).sum())
            self.areas_of_corners += int((fits[1] & ~fits[0]).sum())

    @property
    def are_corners(self) -> bool:
        """Whether all can be corners, and some cannot be x y width height or have the area of corners."""
        if not self.count or self.not_corners or self.areas_of_sizes > self.areas_of_corners:
            return False
        return self.not_sizes > 0 or self.areas_of_corners > 0

    def notes(self, name: str) -> tuple[str, ...]:
        """Notes about the form of a column of boxes, unless it is clearly that of COCO."""
        if self.are_corners:
            why = f"{self.not_sizes:,} of {self.count:,} would reach beyond their image as x, y, width and height"
            if not self.not_sizes:
                why = f"the areas of {self.areas_of_corners:,} of {self.count:,} fit corners"
            return (f"{name} is read as two corners, x1 y1 x2 y2: {why}. Compare some with tsds preview.",)
        if self.count >= _UNSURE and not self.not_corners and not self.areas_of_sizes:
            both = f"all {self.count:,} boxes could also be two corners, x1 y1 x2 y2"
            return (
                f"{name} is read as x, y, width and height, as COCO has it, but {both}. Compare with tsds preview.",
            )
        return ()


def label_of(value: object, name: str) -> Label | None:
    """A label: a whole number, or a text, which may be a number too; None for None and -1.

    Raises `FormError` for other values.
    """
    if isinstance(value, bool) or not isinstance(value, int | str):
        if value is None:
            return None
        raise FormError(f"expected {name}, a number or a name, found {kind(value)}")
    text = value.strip() if isinstance(value, str) else str(value)
    if not text or "\0" in text:
        raise FormError(f"expected {name}, a number or a name, found {kind(value)}")
    if text.lstrip("-").isdecimal() and text.isascii():
        number = int(text) if len(text) < 20 else 2**63
        if not UNLABELLED <= number < 2**53:
            raise FormError(f"expected {name} from 0 up, found {text[:40]}")
        return number
    return text
