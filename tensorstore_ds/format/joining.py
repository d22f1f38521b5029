"""Join the fields of several sources or stores. Values that one of them lacks are unknown. No input or output.

``formats/v1/spec.md`` section 6.6 says what stands for an unknown value.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from tensorstore_ds.format.kinds import LabelsField
from tensorstore_ds.format.kinds.base import APART, Field, FieldsDifferError, of_kind, some_of
from tensorstore_ds.format.kinds.labels import NOT_KNOWN

__all__ = ["FieldsDifferError", "JoinedFields", "Numbers", "Side", "class_numbers", "join_fields"]

#: By field with classes, the new number of each class, (n,) int64, or -1 for dropped classes.
Numbers = dict[str, NDArray[np.int64]]


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

    >>> from tensorstore_ds.format.kinds import LabelField
    >>> class_numbers({"label": LabelField(classes=("cat",))}, {"label": LabelField(classes=("dog", "cat"))}, {})
    {'label': array([1])}
    """
    numbers = Numbers()
    for name, field in own.items():
        if field.joins_classes and field.classes:
            places = {each: i for i, each in enumerate(joined[name].classes)}
            new = (class_map.get(each, each) for each in field.classes)
            numbers[name] = np.array([places.get(each, -1) for each in new], np.int64)
    return numbers


def _joined(name: str, own: Sequence[Field | None], class_map: Mapping[str, str]) -> Field:
    first = next(field for field in own if field is not None)
    for side, field in enumerate(own):
        if field is None:
            if not first.absent_as:
                advice = "Make it again with this field." if name == "size" else APART
                raise FieldsDifferError(side, f"expected {name} ({first.describe()}), found none.", advice)
        elif field.likeness() != first.likeness():
            message = f"expected {name} to be {first.describe()}, found {field.describe()}."
            raise FieldsDifferError(side, message, first.advice_to_join(field))
    return first.joined(name, own, class_map)


def _notes(sides: Sequence[Side], fields: Mapping[str, Field], class_map: Mapping[str, str]) -> Iterator[str]:
    for side in sides:
        to = f"the {side.samples:,} sample{'' if side.samples == 1 else 's'} of {side.name}"
        for name, field in fields.items():
            own = side.fields.get(name)
            gaps = [(f"{name} to", field.absent_as)] if own is None else field.gaps(name, own, class_map)
            for what, said in gaps:
                yield f"adds {what} {to}: {said}."
    first = sides[0]
    for name, own in first.fields.items():
        for what in ("classes", "keypoints") if own.names else ():
            known = [class_map.get(each, each) for each in own.names.get(what, ())]
            new = [each for each in fields[name].names.get(what, ()) if each not in known]
            if known and new:
                yield f"adds the {what} {some_of(new)} to {name} of {first.name}."
