"""The parts of a .beton file: header, descriptions of fields, a row for each sample, allocations."""

from __future__ import annotations

import json
import math
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tensorstore_ds.regular_files import open_file, os_errors
from tensorstore_ds.sources.arrays.source import bad_file

#: The first bytes of a file: the version and the number of its fields, of which there are few.
VERSION = 2
_HEADER = np.dtype(
    [("version", "<u2"), ("fields", "<u2"), ("page", "<u4"), ("samples", "<u8"), ("allocations", "<u8")], align=True
)
_FIELD = np.dtype([("type", "u1"), ("name", "S16"), ("arguments", "V1024")])
_ALLOCATION = np.dtype([("sample", "<u8"), ("start", "<u8"), ("nbytes", "<u8")])
_IMAGE = np.dtype([("mode", "u1"), ("width", "<u2"), ("height", "<u2"), ("start", "<u8")])
_BYTES = np.dtype([("start", "<u8"), ("nbytes", "<u8")])
#: FFCV's types of fields by their number: what they are, and what a row has of them.
_TYPES = {
    0: ("float", np.dtype("<f8")),
    1: ("int", np.dtype("<i8")),
    2: ("image", _IMAGE),
    3: ("bytes", _BYTES),
    4: ("array", np.dtype("<u8")),
    5: ("json", _BYTES),
    6: ("array", np.dtype("<u8")),
}
_NUMBER = re.compile(r"[<>|=]?[biuf][1248]")
_FIELDS_LIMIT = 256
_AXES, _AXIS_LIMIT = 32, 1 << 40


@dataclass(frozen=True, slots=True)
class BetonField:
    """A field: its name, what it is, and for an array NumPy's type and its shape."""

    name: str
    what: str
    dtype: str = ""
    shape: tuple[int, ...] = ()

    @property
    def nbytes(self) -> int:
        """Bytes of an array."""
        return math.prod(self.shape) * np.dtype(self.dtype).itemsize


@dataclass(frozen=True, slots=True)
class Beton:
    """A file whose header was read: where its parts begin, in bytes."""

    path: Path
    where: str
    nbytes: int
    fields: tuple[BetonField, ...]
    row: np.dtype[Any]
    samples: int
    rows: int
    data: int
    allocations: int

    def open(self) -> Mapped:
        """The file, mapped; it must be as long as it was."""
        with os_errors(self.where), open_file(self.path, self.where) as file:
            found = os.fstat(file.fileno()).st_size
            if found != self.nbytes:
                raise bad_file(self.where, f"expected {self.nbytes:,} bytes as before, found {found:,}.")
            return Mapped(self, np.asarray(np.memmap(file, np.uint8, "r", 0, (self.nbytes,))))


class Mapped:
    """A mapped file: its rows, and the bytes that they name."""

    def __init__(self, beton: Beton, data: NDArray[np.uint8]) -> None:
        self._beton, self._data = beton, data
        rows = data[beton.rows : beton.rows + beton.samples * beton.row.itemsize]
        self.rows: NDArray[Any] = rows.view(beton.row)
        self._allocated: tuple[NDArray[np.uint64], NDArray[np.uint64]] | None = None  # starts in order, and lengths

    def bytes_at(self, start: int, nbytes: int, row: int) -> NDArray[np.uint8]:
        """(nbytes,) from the part of the file that holds data, a view."""
        if not self._beton.data <= start <= start + nbytes <= self._beton.allocations:
            message = f"expected data between {self._beton.data:,} and {self._beton.allocations:,}"
            raise bad_file(f"{self._beton.where}: {row}", f"{message}, found {nbytes:,} bytes at {start:,}.")
        return self._data[start : start + nbytes]

    def allocated(self, start: int, row: int) -> NDArray[np.uint8]:
        """The bytes that were allocated at this place, a view."""
        if self._allocated is None:
            table = self._data[self._beton.allocations :].view(_ALLOCATION)
            order = np.argsort(table["start"], kind="stable")
            self._allocated = table["start"][order], table["nbytes"][order]
        starts, lengths = self._allocated
        place = int(np.searchsorted(starts, np.uint64(start)))
        if place == len(starts) or int(starts[place]) != start:
            raise bad_file(f"{self._beton.where}: {row}", f"expected an allocation at {start:,}, found none.")
        return self.bytes_at(start, int(lengths[place]), row)


def read_beton(path: Path, where: str) -> Beton:
    """The parts of a file, from its header and its fields; all of them lie in the file.

    Raises:
        SourceError: `array-file`, `unreadable-file`.
    """
    with os_errors(where), open_file(path, where) as file:
        nbytes = os.fstat(file.fileno()).st_size
        head = file.read(_HEADER.itemsize)
        if len(head) < _HEADER.itemsize:
            raise bad_file(where, f"expected a .beton file, found {len(head)} bytes.")
        version, count, _, samples, allocations = np.frombuffer(head, _HEADER)[0].tolist()
        if version != VERSION or not 0 < count <= _FIELDS_LIMIT:
            message = f"expected a .beton file of version {VERSION}, found version {version} with {count} fields."
            raise bad_file(where, message)
        described = file.read(count * _FIELD.itemsize)
    if len(described) < count * _FIELD.itemsize:
        raise bad_file(where, f"expected {count} fields, found the end of the file.")
    types, fields = [], []
    for kind, name, arguments in np.frombuffer(described, _FIELD).tolist():
        text = bytes(name).partition(b"\0")[0].decode("latin-1")
        if kind not in _TYPES:
            message = f"expected fields of FFCV's own, found {text!r} of type {kind}, whose layout is unknown."
            raise bad_file(where, message)
        what, stored = _TYPES[kind]
        types.append(("", stored))
        dtype, shape = _array_of(bytes(arguments), f"{where}: {text}") if what == "array" else ("", ())
        fields.append(BetonField(text, what, dtype, shape))
    row = np.dtype(types, align=True)
    rows = _HEADER.itemsize + count * _FIELD.itemsize
    data = rows + samples * row.itemsize
    if not data <= allocations <= nbytes or (nbytes - allocations) % _ALLOCATION.itemsize:
        message = f"expected allocations behind the rows, from {data:,} on, found {allocations:,} of {nbytes:,} bytes."
        raise bad_file(where, message)
    if len({field.name for field in fields}) < len(fields):
        raise bad_file(where, "expected fields whose names differ, found others.")
    return Beton(path, where, nbytes, tuple(fields), row, samples, rows, data, allocations)


def _array_of(arguments: bytes, where: str) -> tuple[str, tuple[int, ...]]:
    """Type and shape of an array: 32 sizes, those behind the last axis 0; the length of a text; and NumPy's type."""
    sizes = np.frombuffer(arguments[: 8 * _AXES], "<u8").tolist()
    length = int.from_bytes(arguments[8 * _AXES : 8 * _AXES + 8], "little")
    shape = tuple(sizes[: next((i for i, n in enumerate(sizes) if not n), _AXES)])
    try:
        ((_, name),) = json.loads(arguments[8 * _AXES + 8 :][:length].decode("ascii"))
        dtype = np.dtype(name) if isinstance(name, str) and _NUMBER.fullmatch(name) else np.dtype("O")
    except (ValueError, TypeError, RecursionError):
        dtype = np.dtype("O")
    if dtype.kind not in "biuf" or dtype.itemsize > 8 or math.prod(shape) >= _AXIS_LIMIT or any(sizes[len(shape) :]):
        raise bad_file(where, "expected an array of numbers of at most 64 bits, found another.")
    return dtype.str, shape
