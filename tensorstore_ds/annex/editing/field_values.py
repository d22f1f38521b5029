"""What a Python value means as a field of a store: numbers, texts, labels or objects, a row for each sample."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tensorstore_ds.annex.editing.given import Given, GivenRows, GivenTable, offsets_of
from tensorstore_ds.errors import OptionError
from tensorstore_ds.format.kinds import OBJECT_VALUES, LabelField, LabelsField, ObjectsField, RaggedField, TextField
from tensorstore_ds.format.kinds.base import ArrayField, Field, TableField, of_kind
from tensorstore_ds.format.kinds.label import UNLABELLED
from tensorstore_ds.format.kinds.labels import NOT_KNOWN
from tensorstore_ds.format.kinds.objects import LISTS
from tensorstore_ds.format.manifest_values import MOST_DIMENSIONS
from tensorstore_ds.format.schema import DTYPES, LIMIT, NAME, ArraySpec
from tensorstore_ds.options import meant, shortened
from tensorstore_ds.sources.names import flip_pairs
from tensorstore_ds.sources.samples import advice_on, as_array, object_values, texts_of

#: Values of a field: a NumPy array, a tensor, or a list, with a row for each sample.
Values = Any
_EXPECTED = "numbers (N, ...), a list of texts, of lists of texts, of arrays (m, ...), or of dicts of objects"


@dataclass(frozen=True)
class Known:
    """What a new field can take over from the store: its `fields`. `classes` are those given for the new field."""

    fields: Mapping[str, Field]
    classes: tuple[str, ...] | None = None

    def object_classes(self) -> tuple[str, ...]:
        """The class names that `labels` of objects are numbers of."""
        found = (each.classes for each in of_kind(self.fields, ObjectsField).values())
        return self.classes if self.classes is not None else next(filter(None, found), ())

    def keypoints(self, count: int) -> ObjectsField:
        """A field with `count` keypoint names: those of the store, or numbers."""
        for each in of_kind(self.fields, ObjectsField).values():
            if len(each.keypoints) == count:
                return ObjectsField.of(keypoints=each.keypoints, flip_pairs=each.flip_pairs, skeleton=each.skeleton)
        names = tuple(map(str, range(count)))
        return ObjectsField.of(keypoints=names, flip_pairs=flip_pairs(names))


def field_of(name: str, values: Mapping[str, Values], known: Known) -> tuple[Field, dict[str, Given]]:
    """The field for the values of some splits, and the values as stored.

    Raises `OptionError` if the values fit no kind, or if dtype or shape differ between splits.
    """
    try:
        first = next((each for each in values.values() if len(each)), next(iter(values.values())))
        if any(map(_is_ragged, values.values())):
            return _ragged(values)
        kind = _kind(first)
        if kind is None:
            raise ValueError(f"expected {_EXPECTED}, found {_shown(first)}")
        if kind == "numbers":
            return _numbers(values, known)
        if kind == "texts" and known.classes is not None:
            is_many = any(isinstance(row, list | tuple) for each in values.values() for row in each)
            numbered = _several if is_many else _numbered
            return _numbers({split: numbered(each, known.classes) for split, each in values.items()}, known)
        if kind == "texts":
            return TextField(), {split: _texts(each) for split, each in values.items()}
        return _objects(values, known)
    except ValueError as error:
        end = "" if str(error).endswith((".", "?")) else "."
        raise OptionError(f"{name}: {error}{end}") from error


def _kind(values: Values) -> str | None:
    """``numbers``, ``texts`` or ``objects``; None otherwise."""
    if isinstance(values, np.ma.MaskedArray):
        raise ValueError("expected numbers without a mask, found a masked array. Pass its `filled()` values")
    if isinstance(values, np.ndarray):
        return {"U": "texts" if values.ndim == 1 else None}.get(
            values.dtype.kind, "numbers" if values.dtype.kind in "biuf" else None
        )
    if isinstance(values, list | tuple):
        first = next((each for each in values if each is not None), None)
        if isinstance(first, Mapping):
            return "objects"
        if isinstance(first, str) or (first is None and len(values)):
            return "texts"
        if isinstance(first, list | tuple) and all(isinstance(text, str) for row in values for text in row or ()):
            return "texts"
    return "numbers" if as_array(values) is not None else None


def _is_ragged(values: Values) -> bool:
    """Whether values are arrays (m, ...) of differing lengths, and None. Lists of lists may be a mistake."""
    if not isinstance(values, list | tuple) or as_array(values) is not None:
        return False
    given = [each for each in values if each is not None]
    are_arrays = all(isinstance(each, np.ndarray) or hasattr(each, "detach") for each in given)
    return bool(given) and are_arrays and all((row := as_array(each)) is not None and row.ndim for each in given)


# --- numbers and labels -------------------------------------------------------------------------------------------


def _numbers(values: Mapping[str, Values], known: Known) -> tuple[Field, dict[str, Given]]:
    arrays = {split: _array(each) for split, each in values.items()}
    filled = {split: array for split, array in arrays.items() if len(array)} or arrays
    first, *others = filled
    spec = _spec(filled[first])
    for split in others:
        if (found := _spec(filled[split])) != spec:
            raise ValueError(f"expected rows of {spec} in {split}, as in {first}, found {found}")
    field: ArrayField = ArrayField(spec)
    if known.classes is not None and spec.shape == (len(known.classes),):
        field = LabelsField.of(known.classes)
        if wrong := [each for array in arrays.values() for each in np.unique(array) if each not in (NOT_KNOWN, 0, 1)]:
            raise ValueError(f"expected 1, 0 or -1 for each class, found {wrong[0]}")
    elif known.classes is not None:
        field = LabelField(classes=known.classes)
        if spec.shape or np.dtype(spec.dtype).kind not in "iu":
            several = f"or (N, {len(known.classes)})"
            raise ValueError(f"expected labels, whole numbers of shape (N,) {several}, or texts, found {spec}")
        if spec.dtype == "uint64" and any(len(array) and int(array.max()) >= LIMIT for array in filled.values()):
            raise ValueError(f"expected labels of {len(known.classes)} classes, found a larger number")
    given = {split: GivenRows(array, field.spec, range(len(array))) for split, array in arrays.items()}
    return field, {**given}


def _array(values: Values) -> NDArray[Any]:
    array = values if isinstance(values, np.ndarray) else as_array(values)
    if array is None or not array.ndim:
        raise ValueError(f"expected {_EXPECTED}, found {_shown(values)}")
    return array


def _spec(array: NDArray[Any]) -> ArraySpec:
    """dtype and shape of a stored row."""
    dtype = array.dtype.newbyteorder("=")
    name = "uint8" if dtype == np.bool_ else dtype.name
    if name not in DTYPES:
        raise ValueError(f"expected one of the data types {', '.join(DTYPES)}, found {name}")
    spec = ArraySpec(name, array.shape[1:])
    if len(spec.shape) > MOST_DIMENSIONS or 0 in spec.shape or spec.row_nbytes >= LIMIT:
        expected = f"rows of 1 to {MOST_DIMENSIONS} dimensions, none of them 0"
        raise ValueError(f"expected {expected}, found the shape {shortened(str(array.shape))}")
    return spec


def _numbered(texts: Values, classes: Sequence[str]) -> NDArray[np.int64]:
    """Convert class names to numbers; empty texts and None are unlabelled."""
    places = {name: i for i, name in enumerate(classes)} | {"": UNLABELLED}
    names = [_one(each) for each in texts]
    if wrong := [each for each in names if each not in places]:
        raise ValueError(f"expected names of its classes, found {shortened(repr(wrong[0]))}.{meant(wrong[0], classes)}")
    return np.array([places[each] for each in names], np.int64)


def _several(rows: Values, classes: Sequence[str]) -> NDArray[np.int8]:
    """(N, C) 1 for the classes listed in a row, else 0; -1 in all columns if the row is None."""
    field, places = LabelsField.of(classes), {name: i for i, name in enumerate(classes)}
    found = np.full((len(rows), len(classes)), NOT_KNOWN, np.int8)
    for row, names in enumerate(rows):
        if names is None:
            continue
        if wrong := [each for each in texts_of(names) or () if each not in places]:
            message = f"expected names of its classes, found {shortened(repr(wrong[0]))}"
            raise ValueError(f"{message}.{meant(wrong[0], classes)}")
        found[row] = field.row_of(places[each] for each in texts_of(names) or ())
    return found


def _one(text: object) -> str:
    if text is None or isinstance(text, str):
        return text or ""
    raise ValueError(f"expected one class name for each sample, found {_shown(text)}")


def _ragged(values: Mapping[str, Values]) -> tuple[Field, dict[str, Given]]:
    """Arrays (m, ...), one for each sample; None has no rows."""
    arrays = {split: [_array(np.empty(0) if row is None else row) for row in rows] for split, rows in values.items()}
    spec = _spec(max((row for rows in arrays.values() for row in rows), key=lambda row: (len(row), row.ndim)))
    field, made = RaggedField.of(spec), dict[str, Given]()
    for split, rows in arrays.items():
        if wrong := [i for i, row in enumerate(rows) if len(row) and _spec(row) != spec]:
            found = f"{rows[wrong[0]].dtype} {rows[wrong[0]].shape} in row {wrong[0]} of {split}"
            raise ValueError(f"expected an array (m, ...) of {spec} for each sample, found {found}")
        items = _joined([row for row in rows if len(row)], spec)
        made[split] = GivenTable(
            offsets_of(map(len, rows)), {name: _rows_of(items, spec) for name in field.values}, rows=range(len(rows))
        )
    return field, made


# --- tables -------------------------------------------------------------------------------------------------------


def _texts(values: Values) -> GivenTable:
    rows = [texts_of(each) for each in values]
    if (wrong := next((i for i, each in enumerate(rows) if each is None), None)) is not None:
        raise ValueError(f"expected a text or a list of texts in row {wrong}, found {_shown(values[wrong])}")
    try:
        encoded = [[text.encode() for text in texts or ()] for texts in rows]
    except UnicodeEncodeError as error:
        raise ValueError(f"expected Unicode texts, found a surrogate ({error.reason})") from error
    data = [text for texts in encoded for text in texts]
    joined = _rows_of(np.frombuffer(b"".join(data), np.uint8), ArraySpec("uint8"))
    items = GivenTable(offsets_of(map(len, data)), {"items": joined}, rows=range(len(data)))
    return GivenTable(offsets_of(map(len, encoded)), {}, {"text": items}, range(len(rows)))


def _objects(values: Mapping[str, Values], known: Known) -> tuple[Field, dict[str, Given]]:
    rows = {split: [_row(each, i, split, known) for i, each in enumerate(some)] for split, some in values.items()}
    every = [row for some in rows.values() for row in some if row]
    if not every:
        raise ValueError("expected objects in some rows, found none")
    names = tuple(every[0])
    for split, some in rows.items():
        if wrong := [i for i, row in enumerate(some) if row and row.keys() != every[0].keys()]:
            found = ", ".join(some[wrong[0]])
            raise ValueError(f"expected {', '.join(names)} in all rows, found {found} in row {wrong[0]} of {split}")
    specs = {name: _value_spec(name, [row[name] for row in every]) for name in names if name not in OBJECT_VALUES}
    own = [name for name in names if name in OBJECT_VALUES]
    count = next((row["keypoints"].shape[1] for row in every if "keypoints" in row), 0)
    named = known.keypoints(count) if count else ObjectsField.of()
    field = replace(
        named,
        values={**ObjectsField.of(*own, keypoints=named.keypoints).values, **specs},
        classes=known.object_classes() if "labels" in names else (),
    )
    if "labels" in names and not field.classes:
        raise ValueError("expected class names for the labels of objects, found none. Pass them as `classes`")
    return field, {split: _table(field, some) for split, some in rows.items()}


def _row(values: object, row: int, split: str, known: Known) -> Mapping[str, Any]:
    """The objects of a row by value name; none for None."""
    if values is None:
        return {}
    try:
        if not isinstance(values, Mapping):
            raise ValueError(f"expected a dict of objects or None, found {_shown(values)}")
        labels = values.get("labels")
        if isinstance(labels, list | tuple | np.ndarray) and any(isinstance(label, str) for label in labels):
            values = {**values, "labels": _numbered(labels, known.object_classes())}
        found = dict(object_values(values))
        count = len(next(iter(found.values())))
        for name in values.keys() - found.keys():
            if not isinstance(name, str) or not NAME.fullmatch(name) or name == "offsets":
                expected = "names of values: up to 64 of a-z, 0-9, _ and -, the first none of -, and none is offsets"
                raise ValueError(f"expected {expected}, found {shortened(repr(name))}")
            array = as_array(values[name])
            if array is None or array.shape[:1] != (count,):
                raise ValueError(
                    f"expected {count} numbers as {name}, one for each object, found {_shown(values[name])}"
                )
            found[str(name)] = array
        return {
            name: found[name]
            for name in (*OBJECT_VALUES, *sorted(found.keys() - OBJECT_VALUES.keys()))
            if name in found
        }
    except ValueError as error:
        raise ValueError(f"row {row} of {split}: {error}") from error


def _value_spec(name: str, arrays: Sequence[NDArray[Any]]) -> ArraySpec:
    """dtype and shape of a value without its own meaning, such as the scores of detections."""
    filled = [array for array in arrays if len(array)]
    shapes = {array.shape[1:] for array in filled} or {()}
    if len(shapes) > 1:
        raise ValueError(f"expected {name} of one shape, found {' and '.join(map(str, sorted(shapes)[:2]))}")
    kinds = {array.dtype.name for array in filled}
    dtype = np.result_type(*kinds) if kinds else np.dtype(np.float32)
    return _spec(np.empty((0, *shapes.pop()), dtype))


def _table(field: TableField, rows: Sequence[Mapping[str, Any]]) -> GivenTable:
    """Convert rows of objects to a table."""
    lengths = [len(next(iter(row.values()), ())) for row in rows]
    total = sum(lengths)
    values, lists = {}, {}
    for name, spec in field.values.items():
        parts = [row[name] for row in rows if row]
        if name in LISTS:
            each = [item for part in parts for item in part]
            items = _rows_of(_joined(each, spec), replace(spec, is_ragged=False))
            lists[name] = GivenTable(offsets_of(map(len, each)), {"items": items}, rows=range(total))
        else:
            values[name] = _rows_of(_joined(parts, spec), spec)
    return GivenTable(offsets_of(lengths), values, lists, range(len(rows)))


def _joined(arrays: Iterable[NDArray[Any]], spec: ArraySpec) -> NDArray[Any]:
    return np.concatenate([np.empty((0, *spec.shape), spec.dtype), *(a.reshape(-1, *spec.shape) for a in arrays)])


def _rows_of(array: NDArray[Any], spec: ArraySpec) -> GivenRows:
    return GivenRows(array, spec, range(len(array)))


def _shown(value: object) -> str:
    """How a message describes a value."""
    if isinstance(value, np.ndarray):
        if value.dtype == object:
            return "Python objects. Pass a list, or convert them with astype"
        return f"{value.dtype} {value.shape}"
    if advice := advice_on(value[0] if isinstance(value, list | tuple) and len(value) else value):
        return f"bfloat16{advice}"
    return type(value).__name__
