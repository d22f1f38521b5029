"""Join the fields of several sources or stores. Values that one of them lacks are unknown. No input or output.

``formats/v1/spec.md`` section 6.6 says what stands for an unknown value.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tensorstore_ds.format.kinds import (
    EncodedImageField,
    ImageField,
    LabelField,
    LabelsField,
    MaskField,
    ObjectsField,
    RaggedImageField,
    TextField,
)
from tensorstore_ds.format.kinds.base import Field, image_of, of_kind, unknown_number
from tensorstore_ds.format.kinds.image import CRC, FILE_LISTS
from tensorstore_ds.format.kinds.labels import NOT_KNOWN
from tensorstore_ds.format.kinds.objects import FLAGS
from tensorstore_ds.format.schema import ArraySpec

#: By field with classes, the new number of each class, (n,) int64, or -1 for dropped classes.
Numbers = dict[str, NDArray[np.int64]]
#: Class of objects without labels, if others have labels.
UNKNOWN_CLASS = "unknown"
#: Values of objects without an unknown value: an object that lacks one cannot be stored with others.
_NEEDED = ("boxes",)
_APART = "Keep two stores, and load them together with tsds.MixedDataset."


class FieldsDifferError(Exception):
    """Fields that cannot be joined. `side` is the number of the side that differs from those before it."""

    def __init__(self, side: int, message: str, advice: str) -> None:
        super().__init__(message)
        self.side, self.message, self.advice = side, message, advice


@dataclass(frozen=True)
class Side:
    """One of several sources or stores, with its name in notes, its fields, and its number of samples."""

    name: str
    fields: Mapping[str, Field]
    samples: int


@dataclass(frozen=True)
class JoinedFields:
    """The joined fields of all sides.

    Classes and keypoints are those of the first side, followed by new ones. `numbers` are the new class numbers of each
    side. `notes` list values that are unknown for some samples, and the new classes and keypoints.
    """

    fields: dict[str, Field]
    numbers: list[Numbers]
    notes: tuple[str, ...]


def join_fields(
    sides: Sequence[Side], class_map: Mapping[str, str] | None = None, absent: int = NOT_KNOWN
) -> JoinedFields:
    """Unite the fields, the values of objects, the classes and the keypoints of several sides.

    `class_map` maps old class names to new ones; an empty new name drops the class. Raises FieldsDifferError if fields
    of one name cannot be joined, or a field has no value that stands for unknown.
    """
    names = dict.fromkeys(name for side in sides for name in side.fields)
    fields = {name: _joined(name, [side.fields.get(name) for side in sides], class_map or {}) for name in names}
    fields |= {name: replace(each, absent=absent) for name, each in of_kind(fields, LabelsField).items()}
    numbers = [class_numbers(side.fields, fields, class_map or {}) for side in sides]
    return JoinedFields(fields, numbers, tuple(_notes(sides, fields, class_map or {})))


def class_numbers(own: Mapping[str, Field], joined: Mapping[str, Field], class_map: Mapping[str, str]) -> Numbers:
    """Return the number in `joined` of each class of labels and objects.

    >>> class_numbers({"label": LabelField(classes=("cat",))}, {"label": LabelField(classes=("dog", "cat"))}, {})
    {'label': array([1])}
    """
    numbers = Numbers()
    for name, field in own.items():
        if isinstance(field, LabelField | LabelsField | ObjectsField) and field.classes:
            places = {each: i for i, each in enumerate(joined[name].classes)}
            new = (class_map.get(each, each) for each in field.classes)
            numbers[name] = np.array([places.get(each, -1) for each in new], np.int64)
    return numbers


def unknown_object(field: ObjectsField, value: str, count: int) -> NDArray[Any]:
    """Return the value that stands for unknown in objects that are not ragged, (count, ...)."""
    spec = field.values[value]
    if value == "labels":
        unknown: int | float = field.classes.index(UNKNOWN_CLASS) if count else 0
    elif value == "visibility" or value in FLAGS:
        unknown = 0
    else:
        unknown = unknown_number(spec)
    return np.full((count, *spec.shape), unknown, spec.dtype)


def _joined(name: str, own: Sequence[Field | None], class_map: Mapping[str, str]) -> Field:
    first = next(field for field in own if field is not None)
    for side, field in enumerate(own):
        if field is None:
            _check_known(name, side, first)
        elif _shape(field) != _shape(first):
            message = f"expected {name} to be {first.describe()}, found {field.describe()}."
            raise FieldsDifferError(side, message, _advice(first, field))
    if isinstance(first, LabelField | LabelsField):
        return first.with_classes(_classes(own, class_map))
    if isinstance(first, ObjectsField):
        return _joined_objects(name, own, class_map)
    if isinstance(first, MaskField) and first.ignored is None and None in own:
        limit = int(np.iinfo(first.spec.dtype).max)
        if len(first.classes) > limit:
            message = f"expected {name}, which others have, found none, and all of its numbers are classes."
            raise FieldsDifferError(own.index(None), message, _APART)
        return replace(first, ignored=limit)
    if isinstance(first, EncodedImageField) and any(CRC not in getattr(field, "per_row", ()) for field in own):
        first = replace(first, per_row={name: spec for name, spec in first.per_row.items() if name != CRC})
    limits = [field.max_pixels for field in own if isinstance(field, EncodedImageField | RaggedImageField)]
    return replace(first, max_pixels=max(limits)) if isinstance(first, EncodedImageField | RaggedImageField) else first


def _check_known(name: str, side: int, field: Field) -> None:
    """Raise an error unless a field that a side lacks has an unknown value."""
    is_table = isinstance(field, TextField | ObjectsField) and not field.per_row
    if not is_table and not isinstance(field, MaskField) and field.unknown is None:
        raise FieldsDifferError(side, f"expected {name} ({field.describe()}), found none.", _APART)


def _shape(field: Field) -> dict[str, Any]:
    """Return the properties that must be equal in fields that are joined."""
    data = field.likeness()
    if isinstance(field, ObjectsField):
        known = {value: spec.dump() for value, spec in field.per_row.items()}
        return {"kind": field.kind, "per_row": known, "image": image_of(field)}
    if isinstance(field, EncodedImageField):  # samples of a side that lacks these lists have empty ones
        data["per_row"] = {n: spec for n, spec in data["per_row"].items() if n not in (*FILE_LISTS, CRC)}
    return {name: value for name, value in data.items() if name != "max_pixels"}


def _advice(first: Field, field: Field) -> str:
    if isinstance(first, ImageField):
        return "Store the images of both alike, by the options `encoding`, `size` and `color`."
    if isinstance(first, MaskField) and isinstance(field, MaskField) and first.classes != field.classes:
        return "Name the same classes for both, with `classes`."
    return _APART


def _classes(own: Sequence[Field | None], class_map: Mapping[str, str]) -> tuple[str, ...]:
    every = (class_map.get(old, old) for field in own if field is not None for old in field.classes)
    return tuple(dict.fromkeys(new for new in every if new))


def _joined_objects(name: str, own: Sequence[Field | None], class_map: Mapping[str, str]) -> ObjectsField:
    fields = {side: field for side, field in enumerate(own) if isinstance(field, ObjectsField)}
    first = next(iter(fields.values()))
    values: dict[str, ArraySpec] = {}
    keypoints = tuple(dict.fromkeys(each for field in fields.values() for each in field.keypoints))
    specs = ObjectsField.of("keypoints", "visibility", keypoints=keypoints).values
    for side, field in fields.items():
        for value, spec in field.values.items():
            spec = replace(specs[value], layout=spec.layout) if value in specs else spec
            if values.setdefault(value, spec) != spec:
                message = f"expected {name}.{value} to be {values[value]}, found {spec}."
                raise FieldsDifferError(side, message, _APART)
    for side, field in fields.items():
        if missing := [value for value in _NEEDED if value in values and value not in field.values]:
            message = f"expected {name} with {missing[0]}, as others have them, found {name} without."
            raise FieldsDifferError(side, message, _APART)
    classes = _classes(own, class_map)
    if "labels" in values and any("labels" not in field.values for field in fields.values()):
        classes = tuple(dict.fromkeys((*classes, UNKNOWN_CLASS)))
    places = {each: i for i, each in enumerate(keypoints)}
    pairs, skeleton = (
        tuple(
            dict.fromkeys(
                (places[field.keypoints[a]], places[field.keypoints[b]])
                for field in fields.values()
                for a, b in (field.flip_pairs if what == "pairs" else field.skeleton)
            )
        )
        for what in ("pairs", "skeleton")
    )
    flat = [place for pair in pairs for place in pair]
    if len(set(flat)) != len(flat):
        message = f"expected the same pairs of keypoints in {name}, found others."
        raise FieldsDifferError(max(fields), message, "Name them with `keypoints`.")
    return ObjectsField(values, classes, keypoints, pairs, skeleton, first.image, per_row=first.per_row)


def _notes(sides: Sequence[Side], fields: Mapping[str, Field], class_map: Mapping[str, str]) -> Iterator[str]:
    for side in sides:
        to = f"the {side.samples:,} sample{'' if side.samples == 1 else 's'} of {side.name}"
        for name, field in fields.items():
            own = side.fields.get(name)
            if own is None:
                yield f"adds {name} to {to}: {_said(field)}."
            elif isinstance(field, ObjectsField) and isinstance(own, ObjectsField):
                for value in field.values:
                    if value not in own.values:
                        yield f"adds {name}.{value} to {to}: {_said_of_object(field, value)}."
            elif isinstance(field, LabelsField):
                known = [class_map.get(each, each) for each in own.classes]
                if missing := [each for each in field.classes if each not in known]:
                    said = "unknown, stored as -1" if field.absent == NOT_KNOWN else "stored as 0, no sample has them"
                    yield f"adds the classes {_some(missing)} to {name} of {to}: {said}."
    first = sides[0]
    for name, field in fields.items():
        own = first.fields.get(name)
        for what in ("classes", "keypoints"):
            known = [class_map.get(each, each) for each in getattr(own, what, ())]
            new = [each for each in getattr(field, what, ()) if each not in known]
            if known and new and not isinstance(field, MaskField | LabelsField):
                yield f"adds the {what} {_some(new)} to {name} of {first.name}."


#: Number of classes that a note lists.
_NAMED = 5


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:_NAMED]) + (f" and {len(names) - _NAMED:,} more" if len(names) > _NAMED else "")


def _said(field: Field) -> str:
    if isinstance(field, TextField):
        return "unknown, stored as no texts"
    if isinstance(field, ObjectsField):
        return "their images are stored as images without any objects"
    return f"unknown, stored as {field.unknown}"


def _said_of_object(field: ObjectsField, value: str) -> str:
    spec = field.values[value]
    if spec.is_ragged:
        return "unknown, stored as empty"
    if value == "visibility":
        return "2 where a keypoint is known, else 0"
    if value == "labels":
        return f"unknown, stored as the class {UNKNOWN_CLASS}"
    return f"unknown, stored as {0 if value in FLAGS else unknown_number(spec)}"
