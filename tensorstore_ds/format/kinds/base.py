"""Common parts of all kinds of fields: arrays, manifest entry, rows, statistics and check."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Protocol, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from tensorstore_ds.errors import one_line
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


class Field:
    """One field of a store. A kind is a class that derives from `ArrayField` or from `TableField`.

    Attributes:
        kind: its name in the manifest.
    """

    kind: ClassVar[str]

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

    def likeness(self) -> dict[str, Any]:
        """What must be equal in fields that become one field: `dump` without the members that may differ."""
        return self.dump()

    def with_classes(self, classes: tuple[str, ...]) -> Self:
        """The field with other classes. Only kinds whose classes can be joined have it."""
        raise NotImplementedError

    def renumbered(self, rows: NDArray[Any], numbers: NDArray[np.int64]) -> NDArray[Any]:
        """Rows of a field whose classes have new numbers in this field, as this field has them.

        Args:
            numbers: the new number of each old class, (n,) int64; -1 for a class that is gone.
        """
        raise NotImplementedError

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


@dataclass(frozen=True)
class ArrayField(Field):
    """A field of fixed shape: one array with one row per sample. The kind ``array`` has no other meaning."""

    kind: ClassVar[str] = "array"
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
        """Return the stored row of one sample."""
        return sample.arrays[name]

    def sums(self, rows: NDArray[Any]) -> Sums | None:
        """Return the sums for the statistics of at least one row, or None if the kind has no statistics."""
        return None

    def check(self, column: StoredRows, image_sizes: ImageSizes) -> Iterator[Finding]:
        """Yield the faults in the values of a split."""
        return iter(())


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

    def rows(self, name: str, samples: Sequence[EncodedSample]) -> tuple[NDArray[np.int64], dict[str, NDArray[Any]]]:
        """Return the number of values of each sample (n,), all values back to back, and the arrays `per_row`."""
        raise NotImplementedError

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

    def sums(self, lengths: NDArray[np.int64], values: Mapping[str, NDArray[Any]]) -> Sums | None:
        """Return the sums for the statistics of the result of `rows`, or None if the kind has no statistics."""
        return None

    def check(self, table: StoredTable, image_sizes: ImageSizes) -> Iterator[Finding]:
        """Yield the faults in the values of a split whose offsets are sound."""
        return iter(())


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

    def dump(self) -> dict[str, Any]:
        """Return the entry unchanged."""
        return dict(self.entry)

    def describe(self) -> str:
        """Describe its arrays and its kind."""
        return f"{super().describe()} · {_shown(self.entry)}"


@dataclass(frozen=True)
class UnknownTableField(UnknownField, TableField):
    """An unknown table."""

    kind: ClassVar[str] = "table"
    entry: Mapping[str, Any]  #: as the manifest has it

    def dump(self) -> dict[str, Any]:
        """Return the entry unchanged."""
        return dict(self.entry)

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
