"""Common parts of all kinds of fields: arrays, manifest entry, rows, statistics and check."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Protocol, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from tensorstore_ds.errors import Problem, SourceError, one_line
from tensorstore_ds.format.manifest_values import ManifestValues
from tensorstore_ds.format.schema import DTYPES, LAYOUTS, ArraySpec, EncodedSample
from tensorstore_ds.format.statistics import Sums

#: A fault that a check finds: a reason code, and a message.
Finding = tuple[str, str]
#: (n, 2) height and width of the stored images of some rows, (n,) int64, infinite without images.
ImageSizes = Callable[[NDArray[np.int64]], NDArray[np.float64]]

_OFFSETS = ArraySpec("int64")
#: The one value of a table of bytes.
BYTES = ArraySpec("uint8")

#: Rows and bytes that a check reads at a time.
_ROWS = 100_000
_NBYTES = 64 * 1024**2


class StoredRows(Protocol):
    """What a check reads of a column, with one row per sample, or one value of a table."""

    @property
    def spec(self) -> ArraySpec:
        """dtype and shape of one row."""

    def __len__(self) -> int: ...
    def __getitem__(self, rows: slice, /) -> NDArray[Any]: ...


class StoredTable(Protocol):
    """What a check reads of a table."""

    @property
    def offsets(self) -> NDArray[np.int64]:
        """Offsets (n + 1,): the values of row i are ``[offsets[i], offsets[i + 1])``."""

    @property
    def per_row(self) -> Mapping[str, Any]:
        """Arrays and tables that have one row per sample."""

    @property
    def lists(self) -> Mapping[str, Any]:
        """The table of items of each ragged value."""

    def __len__(self) -> int: ...
    def __getitem__(self, name: str, /) -> StoredRows: ...


#: Advice if fields cannot be joined.
APART = "Keep two stores, and load them together with tsds.MixedDataset."


class FieldsDifferError(Exception):
    """Fields that cannot be joined. `side` is the number of the side that differs from those before it."""

    def __init__(self, side: int, message: str, advice: str) -> None:
        super().__init__(message)
        self.side, self.message, self.advice = side, message, advice


class Field:
    """One field of a store. A kind is a class that derives from `ArrayField` or from `TableField`.

    Attributes:
        kind: its name in the manifest.
        joins_classes: whether fields with different classes can be joined: the kind has `with_classes`, and its rows
            or its `class_value` contain class numbers.
        class_value: the value with class numbers in tables of a kind that has one.
        is_key: whether it names samples, so that commands can find them.
        moves: whether values have places in an image, and are transformed with it.
        is_counted: whether statistics follow from the stored rows alone.
        is_large: whether rows are so large that known statistics are joined where possible, instead of counted.
    """

    kind: ClassVar[str]
    joins_classes: ClassVar[bool] = False
    class_value: ClassVar[str] = ""
    is_key: ClassVar[bool] = False
    moves: ClassVar[bool] = False
    is_counted: ClassVar[bool] = False
    is_large: ClassVar[bool] = False

    @property
    def classes(self) -> tuple[str, ...]:
        """Class names, where the field has some."""
        return ()

    @property
    def arrays(self) -> dict[str, ArraySpec]:
        """The arrays that hold the field, by their path below the field's name."""
        raise NotImplementedError

    def array_rows(self, name: str, path: str, rows: int, lengths: Mapping[str, int]) -> int:
        """Rows of one of the `arrays` in a shard of `rows` samples with tables of these lengths."""
        return rows

    def groups(self, name: str) -> list[str]:
        """Paths of the groups that the arrays lie in, in a shard."""
        return []

    @property
    def unknown(self) -> int | float | None:
        """The number that stands for an unknown value in a field of fixed shape; None if there is none."""
        return None

    def dump(self) -> dict[str, Any]:
        """The field as the manifest has it."""
        raise NotImplementedError

    @property
    def unknown_row(self) -> NDArray[Any] | None:
        """The row of a sample whose value is unknown; None in tables, where such a sample has no values."""
        spec, number = self.arrays.get(""), 0 if self.unknown is None else self.unknown
        return None if spec is None else np.full(spec.shape, number, spec.dtype)

    @property
    def encoding(self) -> str:
        """Encoding of images; empty if the field contains none."""
        return ""

    @property
    def dtype(self) -> str:
        """Data type of images that are stored as pixels; empty if the field contains none."""
        return ""

    @property
    def one_shape(self) -> tuple[int, ...] | None:
        """(height, width, channels) of images that are stored as pixels of one shape."""
        return None

    @property
    def absent_as(self) -> str:
        """How a sample without the field is stored among others that have it, in words; empty if it cannot be."""
        return "" if self.unknown is None else f"unknown, stored as {self.unknown}"

    @property
    def is_number(self) -> bool:
        """Whether a sample has one number."""
        return "" in self.arrays and not self.arrays[""].shape

    @property
    def names(self) -> dict[str, tuple[str, ...]]:
        """Names of values, classes and keypoints that other fields of this kind may lack, by what they name."""
        return {}

    def likeness(self) -> dict[str, Any]:
        """What must be equal in fields that become one field: `dump` without the members that may differ."""
        same = {name: value for name, value in self.dump().items() if name != "max_pixels"}
        return {**same, "classes": []} if self.joins_classes else same

    def advice_to_join(self, other: Field) -> str:
        """What to do about a field of the same name that is not alike."""
        return APART

    def joined(self, name: str, own: Sequence[Self | None], class_map: Mapping[str, str]) -> Self:
        """Return one field for the samples of all sides. This field is the first in `own` that is not None.

        `class_map` maps classes to their new names, and dropped classes to "". Raises `FieldsDifferError`.
        """
        return self.with_classes(joined_classes(own, class_map)) if self.joins_classes else self

    def gaps(self, name: str, own: Self, class_map: Mapping[str, str]) -> Iterator[tuple[str, str]]:
        """What a joined field adds to the samples of one of its sides, in words, and how it is stored there."""
        return iter(())

    def with_classes(self, classes: tuple[str, ...]) -> Self:
        """The field with other classes, of a kind whose classes can be joined."""
        return replace(self, classes=classes)  # type: ignore[type-var]

    def united(self, other: Field) -> Self:
        """The field with the classes of another one in addition, in which values of both can be compared."""
        return self.with_classes(joined_classes((self, other), {})) if self.joins_classes else self

    def renumbered(self, rows: Any, numbers: NDArray[np.int64]) -> Any:
        """Rows (n, ...), or values of a table, of a field whose classes have new numbers in this field.

        Args:
            numbers: the new number of each old class, (n,) int64; -1 for a class that is gone.
        """
        raise NotImplementedError

    def class_rows(self, stored: Any) -> tuple[NDArray[np.int64] | None, NDArray[np.int64]]:
        """Return the row of each class number in a column or a table, None if each row has one, and all of them (n,).

        Only kinds whose classes can be joined have it.
        """
        raise NotImplementedError

    def is_unknown(self, value: Any) -> bool:
        """Whether the value of a sample is the one that stands for unknown."""
        return equal(value, self.unknown_row)

    def is_known(self, value: Any, own: Field, known: Any) -> bool:
        """Whether a value of this field equals the `known` value of the field `own`, as far as this field has one."""
        return equal(value, known)

    @classmethod
    def parse(cls, values: ManifestValues, where: str, data: dict[str, Any]) -> Field:
        """The field at a place of the manifest; what is wrong is noted in `values`."""
        raise NotImplementedError

    def describe(self) -> str:
        """What it holds, in a few words."""
        raise NotImplementedError

    def fitted(self, first: EncodedSample) -> Self:
        """The field with what only the first sample tells, such as the size of images."""
        return self

    def rows(self, name: str, samples: Sequence[EncodedSample]) -> Any:
        """The stored rows of some samples: an array (n, ...), or the lengths and the values of a table."""
        raise NotImplementedError

    def sums(self, *rows: Any, **others: Any) -> Sums | None:
        """The sums for the statistics of at least one row, or None if the kind has no statistics."""
        return None

    def check(self, stored: Any, image_sizes: ImageSizes) -> Iterator[Finding]:
        """Yield the faults in the values of a split, `StoredRows` or a `StoredTable` whose offsets are sound."""
        return iter(())


@dataclass(frozen=True)
class ArrayField(Field):
    """A field of fixed shape: one array with one row per sample. The kind ``array`` has no other meaning."""

    kind: ClassVar[str] = "array"
    is_counted: ClassVar[bool] = True
    spec: ArraySpec

    @property
    def arrays(self) -> dict[str, ArraySpec]:
        """The one array, under the field's own name."""
        return {"": self.spec}

    def dump(self) -> dict[str, Any]:
        """Kind, dtype and shape."""
        return {"kind": self.kind, **self.spec.dump()}

    @classmethod
    def parse(cls, values: ManifestValues, where: str, data: dict[str, Any]) -> Field:
        """Parse an array of any dtype and shape."""
        return cls(values.spec(where, data))

    @property
    def unknown(self) -> int | float | None:
        """NaN, the smallest signed or the largest unsigned integer, or None if that number would have a meaning."""
        return unknown_number(self.spec) if type(self) is ArrayField else None

    def describe(self) -> str:
        """Describe dtype, shape, and the number of classes if there are any."""
        return " · ".join([str(self.spec), *([counted(self.classes, "class", "es")] if self.classes else [])])

    def rows(self, name: str, samples: Sequence[EncodedSample]) -> NDArray[Any]:
        """Return the stored rows of some samples, (n, ...)."""
        values = [self.row(name, sample) for sample in samples]
        return np.array(values, self.spec.dtype).reshape(len(samples), *self.spec.shape)

    def row(self, name: str, sample: EncodedSample) -> Any:
        """Return the stored row of one sample. Raises `SourceError` for an array of other numbers or another shape."""
        row = np.asarray(sample.arrays[name])
        if row.shape != self.spec.shape or (row.dtype.kind == "f" and not self.spec.dtype.startswith("float")):
            message = f"expected {name} to be {self.spec.dtype} {self.spec.shape}, found {row.dtype} {row.shape}."
            raise SourceError(Problem(sample.key, "array-shape", message))
        return row


@dataclass(frozen=True)
class TableField(Field):
    """A field of varying length: `offsets` and value arrays, any number of values per sample.

    `values` are the dtype and shape of one element of each value array, and `per_row` of arrays with one row per
    sample.
    """

    values: Mapping[str, ArraySpec]
    per_row: Mapping[str, ArraySpec] = field(default_factory=dict, kw_only=True)

    @property
    def arrays(self) -> dict[str, ArraySpec]:
        """Return `offsets`, then each value array, or ``offsets`` and ``items`` of a ragged one."""
        arrays = {"offsets": _OFFSETS}
        for name, spec in {**self.values, **self.per_row}.items():
            if spec.is_ragged:
                arrays |= {f"{name}/offsets": _OFFSETS, f"{name}/items": replace(spec, is_ragged=False)}
            else:
                arrays[name] = spec
        return arrays

    @property
    def ragged(self) -> list[str]:
        """Names of the ragged values."""
        return [name for name, spec in {**self.values, **self.per_row}.items() if spec.is_ragged]

    def array_rows(self, name: str, path: str, rows: int, lengths: Mapping[str, int]) -> int:
        """Return the number of rows of an array, from `rows` samples and the `lengths` of tables."""
        value, _, part = path.rpartition("/")
        if value and part == "items":  # not a value of that name
            return lengths[f"{name}/{value}"]
        if part == "offsets":
            return (lengths[name] if value in self.values else rows) + 1
        return rows if part in self.per_row else lengths[name]

    def groups(self, name: str) -> list[str]:
        """Return the groups of the table and of each ragged value. These have `lengths` in a shard."""
        return [name, *(f"{name}/{value}" for value in self.ragged)]

    def dump(self) -> dict[str, Any]:
        """Dump the kind, and dtype and shape of each array."""
        data = {"kind": self.kind, "values": {name: spec.dump() for name, spec in self.values.items()}}
        return {**data, "per_row": {n: s.dump() for n, s in self.per_row.items()}} if self.per_row else data

    def lists(
        self, name: str, samples: Sequence[EncodedSample]
    ) -> dict[str, tuple[NDArray[np.int64], dict[str, NDArray[Any]]]]:
        """Return, for each ragged value, the number of items in each list (n,), and all ``items`` back to back."""
        return {}

    def value(self, values: Mapping[str, Any], per_row: Callable[[str], Any], where: str) -> Any:
        """Return the value of one sample for a reader.

        `values` are arrays (m, ...), and lists of m arrays. `per_row` returns the sample's row of a named array.
        `where` is the sample's name in errors.
        """
        return values

    def renumbered(self, rows: Mapping[str, Any], numbers: NDArray[np.int64]) -> Mapping[str, Any]:
        """Return the values by name with new class numbers."""
        if self.class_value not in rows:
            return rows
        return {**rows, self.class_value: numbers[rows[self.class_value]]}

    def class_rows(self, stored: Any) -> tuple[NDArray[np.int64] | None, NDArray[np.int64]]:
        """Return the row of each element, and its class number."""
        lengths = np.diff(stored.offsets)
        return np.repeat(np.arange(len(lengths)), lengths), np.asarray(stored[self.class_value][:])

    def is_unknown(self, value: Any) -> bool:
        """Whether the sample has no values."""
        return not any(map(len, value.values())) if isinstance(value, Mapping) else not len(value)

    def made_of(self, value: str, own: Field) -> tuple[str, ...]:
        """Return the values of the field `own` that `value_of` needs; none if it has the value as this field has it."""
        return ()

    def value_of(self, value: str, own: Field | None, stored: Mapping[str, Any], count: int) -> Any:
        """Return a value of `count` elements of the field `own` as this field has it, unknown where `own` lacks it.

        `stored` has the values of `own` by name. Class numbers do not change.
        """
        return stored[value]


@dataclass(frozen=True)
class ListField(TableField):
    """The lists of a ragged value: a nested table of ``items``. It has no entry in a manifest."""

    kind: ClassVar[str] = "list"

    def value(self, values: Mapping[str, Any], per_row: Callable[[str], Any], where: str) -> Any:
        """Return the items."""
        return values["items"]


@dataclass(frozen=True)
class BytesField(TableField):
    """A table of bytes, with one text or file per sample."""

    values: Mapping[str, ArraySpec] = field(default_factory=lambda: {"bytes": BYTES})

    def data(self, sample: EncodedSample) -> bytes:
        """Return the stored bytes of one sample."""
        raise NotImplementedError

    def rows(self, name: str, samples: Sequence[EncodedSample]) -> tuple[NDArray[np.int64], dict[str, NDArray[Any]]]:
        """Return lengths (n,) and all bytes back to back."""
        items = [self.data(sample) for sample in samples]
        return np.array([len(item) for item in items], np.int64), {"bytes": np.frombuffer(b"".join(items), np.uint8)}

    def value(self, values: Mapping[str, Any], per_row: Callable[[str], Any], where: str) -> Any:
        """Return the `bytes` of one sample."""
        return values["bytes"].tobytes()

    @staticmethod
    def parse_arrays(
        values: ManifestValues, where: str, data: dict[str, Any]
    ) -> tuple[dict[str, ArraySpec], dict[str, ArraySpec]]:
        """Parse arrays, and note anything but the one value `bytes` in `values`."""
        specs, per_row = values.table(where, data)
        if set(specs) != {"bytes"} or replace(specs["bytes"], layout=None) != BYTES:
            values.wrong(where, f"expected the one value bytes (uint8, []), found {sorted(specs)}.")
            specs = {"bytes": BYTES}
        return specs, per_row


@dataclass(frozen=True)
class UnreadableField:
    """A field that this version cannot read, because of `reason`. Its files are kept and hashed."""

    entry: Mapping[str, Any]
    reason: str

    def dump(self) -> dict[str, Any]:
        """Return the entry unchanged."""
        return dict(self.entry)

    def describe(self) -> str:
        """Describe the field to a user."""
        return f"this version of tensorstore-ds does not know {self.reason}"

    @staticmethod
    def reason_of(entry: Mapping[str, Any]) -> str:
        """Return the unknown data type or layout of a manifest entry, or an empty string. Only strings are checked."""
        tables = [entry[name] for name in ("values", "per_row") if isinstance(entry.get(name), dict)]
        specs = [entry, *(spec for table in tables for spec in table.values())]
        for member, noun, known in (("dtype", "data type", DTYPES), ("layout", "layout", LAYOUTS)):
            for spec in specs:
                value = spec.get(member) if isinstance(spec, dict) else None
                if isinstance(value, str) and value not in known:
                    return f"the {noun} {one_line(value)[:64]}"
        return ""


class UnknownField(Field):
    """A field of a kind that is newer than this version. Only its arrays can be read."""

    entry: Mapping[str, Any]  #: as the manifest has it

    def dump(self) -> dict[str, Any]:
        """Return the entry unchanged."""
        return dict(self.entry)

    @staticmethod
    def parse(values: ManifestValues, where: str, data: dict[str, Any]) -> Field:
        """Parse the properties that follow from the arrays alone."""
        if "values" in data:
            specs, per_row = values.table(where, data)
            return UnknownTableField(specs, data, per_row=per_row)
        return UnknownArrayField(values.spec(where, data), data)


@dataclass(frozen=True)
class UnknownArrayField(UnknownField, ArrayField):
    """An unknown field of fixed shape."""

    entry: Mapping[str, Any]  #: as the manifest has it

    def describe(self) -> str:
        """Describe its arrays and its kind."""
        return f"{super().describe()} · {_shown(self.entry)}"


@dataclass(frozen=True)
class UnknownTableField(UnknownField, TableField):
    """An unknown table."""

    kind: ClassVar[str] = "table"
    entry: Mapping[str, Any]  #: as the manifest has it

    def describe(self) -> str:
        """Describe its arrays and its kind."""
        return f"{', '.join([*self.values, *self.per_row])} · {_shown(self.entry)}"


def _shown(entry: Mapping[str, Any]) -> str:
    kind = "".join(f", {name} {one_line(str(entry[name]))[:64]}" for name in ("kind", "encoding") if name in entry)
    return f"not known to this version{kind}"


def unknown_number(spec: ArraySpec) -> int | float:
    """Return the number that stands for an unknown value in an array without a known meaning.

    >>> unknown_number(ArraySpec("uint8"))
    255
    """
    dtype = np.dtype(spec.dtype)
    if dtype.kind == "f":
        return float("nan")
    return int(np.iinfo(dtype).max if dtype.kind == "u" else np.iinfo(dtype).min)


def joined_classes(own: Sequence[Field | None], class_map: Mapping[str, str]) -> tuple[str, ...]:
    """Return the classes of several fields with new names, each once."""
    every = (class_map.get(old, old) for field in own if field is not None for old in field.classes)
    return tuple(dict.fromkeys(new for new in every if new))


F = TypeVar("F", bound=Field)


def of_kind(fields: Mapping[str, Field], kind: type[F]) -> dict[str, F]:
    """Return the fields of a kind, by name."""
    return {name: field for name, field in fields.items() if isinstance(field, kind)}


def of_image(fields: Mapping[str, Field], kind: type[F], image: str = "image") -> dict[str, F]:
    """Return the fields of a kind that belong to a field of images. Those that name none belong to `image`."""
    return {name: each for name, each in of_kind(fields, kind).items() if image_of(each) == image}


def image_of(field: Field) -> str:
    """Return the name of the field of images that objects or a mask belong to."""
    return getattr(field, "image", None) or "image"


def named(fields: Mapping[str, Field], name: str, kind: type[F]) -> F | None:
    """Return the field of this name if it is of this kind."""
    field = fields.get(name)
    return field if isinstance(field, kind) else None


def first_of_kind(fields: Mapping[str, Field], kind: type[Field]) -> str | None:
    """Return the name of the first field of a kind, or None."""
    return next(iter(of_kind(fields, kind)), None)


def pieces(column: StoredRows) -> Iterator[tuple[int, NDArray[Any]]]:
    """Yield the rows of a column in pieces, each with the number of its first row."""
    step = min(_ROWS, max(1, _NBYTES // max(1, column.spec.row_nbytes)))
    for start in range(0, len(column), step):
        yield start, column[start : start + step]


def counted(names: Sequence[str], noun: str, plural: str) -> str:
    """Return the number of names in words."""
    return f"{len(names):,} {noun}{'' if len(names) == 1 else plural}"


def equal(a: Any, b: Any) -> bool:
    """Return whether two values are equal, also where both are NaN. Values of different types differ."""
    if isinstance(a, np.ndarray | np.generic) and isinstance(b, np.ndarray | np.generic):
        return np.array_equal(a, b, equal_nan=a.dtype.kind == "f" and b.dtype.kind == "f")
    if type(a) is not type(b):
        return False
    if isinstance(a, Mapping):
        return a.keys() == b.keys() and all(equal(a[name], b[name]) for name in a)
    if isinstance(a, list):
        return len(a) == len(b) and all(equal(x, y) for x, y in zip(a, b, strict=True))
    return bool(a == b)


#: Number of names that `some_of` lists.
_NAMED = 5


def some_of(names: Sequence[str]) -> str:
    """Return the first names, and the number of the others."""
    return ", ".join(names[:_NAMED]) + (f" and {len(names) - _NAMED:,} more" if len(names) > _NAMED else "")
