"""Labels and objects of the rows of packed data sets, and the fields that follow from them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tensorstore_ds.errors import FormatError, Problem, SourceError
from tensorstore_ds.format.kinds import OBJECT_VALUES, LabelField, LabelsField, ObjectsField
from tensorstore_ds.format.kinds.base import Field
from tensorstore_ds.format.kinds.label import UNLABELLED
from tensorstore_ds.format.manifest_parser import parse_fields
from tensorstore_ds.format.schema import Keypoints
from tensorstore_ds.sources.annotations import changed
from tensorstore_ds.sources.base import FLAGS, LISTS, Objects, SourceOptions
from tensorstore_ds.sources.forms import FormError
from tensorstore_ds.sources.json_files import kind
from tensorstore_ds.sources.names import number_classes, numbered_keypoints, order_classes, told_apart
from tensorstore_ds.sources.samples import object_values

#: A class as a data set has it: its number, or its name.
Label = int | str

#: Members of Hugging Face's objects that are their classes.
CATEGORY_NAMES = ("category", "categories", "category_id", "label", "labels")

#: Members of Hugging Face's objects that are read, except their classes.
STRUCT_MEMBERS = frozenset({"bbox", "oriented_boxes", "keypoints", "visibility", "area", "rle", "polygons", *FLAGS})

_UNSURE = 20  # boxes of which one at least would show that they are no corners
_NAMED_LIMIT = 1 << 20  # classes that are filled up to the largest number


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


class ClassNames:
    """Classes of labels that are numbers or names: collected by the scan, numbered by `choose`."""

    def __init__(self, names: tuple[str, ...] | None = None) -> None:
        self.given = names  #: those of the source in its own order
        self.named: dict[int, str] = {}
        self.numbers: set[int] = set()
        self.texts: set[str] = set()
        self.indices: dict[Label, int] = {}

    def note(self, label: Label, name: str | None = None) -> None:
        """Note a label, and its name if a number has one; raises `FormError` for a second name."""
        if isinstance(label, str):
            self.texts.add(label)
            return
        self.numbers.add(label)
        if name is not None and self.named.setdefault(label, name) != name:
            raise FormError(f"expected one name of class {label}, found {self.named[label]!r} and {name!r}")

    def choose(self, wanted: tuple[str, ...] | None, where: str) -> tuple[str, ...]:
        """Class names, as given or as they occur; raises as `order_classes` and `number_classes`.

        Also raises `unknown-class` for a number whose given name differs from its own.
        """
        for number, name in self.named.items() if wanted is None else ():
            if self.given and self.given[number : number + 1] not in ((), (name,)):
                message = f"expected {', '.join(self.given)[:200]} as classes, found {name} as number {number}."
                raise SourceError(
                    Problem(where, "unknown-class", message), "Correct the list: its first name is label 0."
                )
        as_texts = {str(number) for number in self.numbers - {UNLABELLED}}
        if self.texts or (wanted is not None and self.numbers and as_texts <= set(wanted)):
            classes = order_classes(self.texts | as_texts, wanted or self.given, where)
            index: dict[str, int] = {name: i for i, name in enumerate(classes)}
            self.indices.update(index)
            self.indices.update((n, index[str(n)]) for n in self.numbers if n != UNLABELLED)
            return classes
        classes = number_classes(sorted(self.numbers), wanted or self.given or self._known(), where)
        self.indices = {number: number for number in self.numbers}
        return classes

    def index(self, label: Label | None, where: str) -> int:
        """Class index of a label, `UNLABELLED` for None; raises `SourceError` for one that the scan did not see."""
        if label is None or label == UNLABELLED:
            return UNLABELLED
        if label not in self.indices:
            raise SourceError(changed(where, f"class, {label}"))
        return self.indices[label]

    def _known(self) -> tuple[str, ...] | None:
        """Names of numbers, if there are any; a number without a name is its own."""
        count = max((*self.numbers, *self.named), default=-1) + 1
        if not self.named or not 0 < count <= _NAMED_LIMIT:
            return None
        return told_apart([self.named.get(i, str(i)) for i in range(count)])


class RowTable:
    """Labels and objects of all rows, and the arrays of one row.

    `labels`, `categories` and `several` are the classes of rows, of objects, and of rows with several each. `values`
    are the names of the objects' values, and `keypoints` is their number per object.
    """

    def __init__(self) -> None:
        self.labels = ClassNames()
        self.categories, self.several = ClassNames(), ClassNames()
        self.values: dict[str, None] = {}
        self.keypoints = 0
        self.has_labels = self.has_several = self.has_objects = False
        self._labels_field = LabelsField.of(("",))
        self._keypoints: Keypoints | None = None  # as `give` has them
        self._skeleton: tuple[tuple[int, int], ...] = ()

    def give(self, data: object, where: str) -> None:
        """Use the class and keypoint names of a store's `label` and `objects`, each as its `dump` gives it.

        Raises `SourceError` `annotation` for data of a different form.
        """
        try:
            fields = parse_fields(data)
        except FormatError as error:
            first = error.problems[0]
            message = f"{first.where}: {first.message}"
            raise SourceError(Problem(where, "annotation", message), "Export again, or remove the names.") from error
        if isinstance(label := fields.get("label"), LabelField):
            self.has_labels, self.labels.given = True, label.classes or None
        if isinstance(labels := fields.get("labels"), LabelsField):
            self.has_several, self.several.given = True, labels.classes
        if isinstance(objects := fields.get("objects"), ObjectsField):
            self.has_objects, self.categories.given = True, objects.classes or None
            if objects.keypoints:
                self._keypoints = Keypoints(objects.keypoints, objects.flip_pairs)
                self._skeleton = objects.skeleton

    def note(self, objects: RowObjects) -> None:
        """Note the objects of a row, except names of labels; raises `FormError` for other numbers of keypoints."""
        self.has_objects = True
        if "keypoints" in objects.values:
            count = objects.values["keypoints"].shape[1]
            if self.keypoints and count != self.keypoints:
                raise FormError(f"expected {self.keypoints} keypoints, found {count}")
            self.keypoints = count
        for label in objects.labels or ():
            self.categories.note(label)
        self.values.update(dict.fromkeys(objects.names))

    def note_several(self, labels: object, name: str) -> None:
        """Note a row's list of labels; raises `FormError` for anything else."""
        self.has_several = True
        for label in _labels_in(labels, name) or ():
            self.several.note(label)

    def several_of(self, labels: object, name: str, where: str) -> NDArray[np.int8]:
        """A number for each class of a row's list of labels; -1, unknown, for null."""
        found = _labels_in(labels, name)
        numbers = None if found is None else [self.several.index(label, where) for label in found]
        return self._labels_field.row_of(numbers)

    def fields(self, options: SourceOptions, where: str) -> dict[str, Field]:
        """The fields of labels and objects."""
        fields: dict[str, Field] = {}
        if self.has_labels:
            fields["label"] = LabelField(classes=self.labels.choose(options.classes, where))
        if self.has_several:
            fields["labels"] = self._labels_field = LabelsField.of(self.several.choose(options.classes, where))
        if self.has_objects:
            classes = self.categories.choose(options.classes, where) if "labels" in self.values else ()
            if self._keypoints is not None and "keypoints" in self.values and not self.keypoints:
                self.keypoints = len(self._keypoints.names)  # though no object has any
            chosen = options.keypoints or self._keypoints
            if not self.keypoints:  # no object has any
                self.values = {name: None for name in self.values if name not in ("keypoints", "visibility")}
            named = numbered_keypoints(self.keypoints, chosen if self.keypoints else None, where)
            values = [name for name in OBJECT_VALUES if name in self.values] or ["boxes"]
            self.values = dict.fromkeys(values)
            lines = self._skeleton if named is self._keypoints else ()
            fields["objects"] = ObjectsField.of(
                *values, classes=classes, keypoints=named.names, flip_pairs=named.flip_pairs, skeleton=lines
            )
        return fields

    def arrays(self, objects: RowObjects | None, where: str) -> Objects | None:
        """The objects of one row, which errors call `where`; None if no row has any."""
        if not self.has_objects:
            return None
        found: dict[str, Any] = dict(objects.values) if objects is not None else {}
        if objects is not None and objects.labels is not None:
            found["labels"] = np.array([self.categories.index(label, where) for label in objects.labels], np.int64)
        count = 0 if objects is None else len(objects)
        missing = [name for name in self.values if name not in found]
        if wrong := [name for name in missing if count and name not in FLAGS]:
            message = f"expected objects with {wrong[0]}, as others have, found {', '.join(found)}."
            raise SourceError(Problem(where, "annotation", message), "Give all objects the same values.")
        return found | {name: [] if name in LISTS else self._empty(name, count) for name in missing}

    def _empty(self, name: str, count: int) -> Any:
        dtype, shape = OBJECT_VALUES[name]
        return np.zeros((count, *(self.keypoints if n == "K" else n for n in shape)), dtype)


def _labels_in(value: object, name: str) -> list[Label] | None:
    if value is None:
        return None
    if not isinstance(value, list):
        raise FormError(f"expected {name}, a list of numbers or names, found {kind(value)}")
    labels = [label_of(each, name) for each in value]
    if None in labels or UNLABELLED in labels:
        raise FormError(f"expected {name}, a list of numbers or names, found none among them")
    return [each for each in labels if each is not None]


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
