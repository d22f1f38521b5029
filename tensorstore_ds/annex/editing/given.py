"""Values that are given for all rows of a split, as they are stored: arrays, which may be mapped files, and tables."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tensorstore_ds.annex.editing.rows import FieldWriter
from tensorstore_ds.conversion.shard_writer import COPY_NBYTES
from tensorstore_ds.format.schema import ArraySpec


@dataclass(frozen=True, eq=False)
class GivenRows:
    """Rows of fixed shape, stored as `spec`: an array (n, ...) of any byte order, read in blocks."""

    array: NDArray[Any]
    spec: ArraySpec
    rows: range

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, rows: slice) -> NDArray[Any]:
        some = self.rows[rows]
        return np.ascontiguousarray(self.array[some.start : some.stop], np.dtype(self.spec.dtype).newbyteorder("<"))

    @property
    def nbytes(self) -> int:
        """Size of the rows in bytes as stored."""
        return len(self) * self.spec.row_nbytes

    def part(self, start: int, stop: int) -> GivenRows:
        """Rows ``[start, stop)`` of these."""
        return replace(self, rows=self.rows[start:stop])

    def append(self, writer: FieldWriter, names: Iterable[str]) -> None:
        """Write the rows as the one named field."""
        step = max(1, COPY_NBYTES // max(1, self.spec.row_nbytes))
        for name in names:
            for start in range(0, len(self), step):
                values = self[start : start + step]
                writer.write(name, values)
                writer.count(name, values)


@dataclass(frozen=True, eq=False)
class GivenTable:
    """Rows of any number of values.

    `offsets` are (n + 1,) int64 from 0; the offsets of `rows` need not begin there. `values` are (M, ...) by name.
    `lists` has for each ragged value the table of its items, one row for each of the M values.
    """

    offsets: NDArray[np.int64]
    values: Mapping[str, GivenRows]
    lists: Mapping[str, GivenTable] = field(default_factory=dict)
    rows: range = range(0)
    per_row: Mapping[str, Any] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, name: str) -> GivenRows:
        return self.values[name]

    @property
    def nbytes(self) -> int:
        """Size of the rows in bytes as stored."""
        parts: list[Given] = [*self.values.values(), *self.lists.values()]
        return self.offsets.nbytes + sum(part.nbytes for part in parts)

    def part(self, start: int, stop: int) -> GivenTable:
        """Rows ``[start, stop)`` of these."""
        return replace(self, rows=self.rows[start:stop])

    def append(self, writer: FieldWriter, names: Iterable[str]) -> None:
        """Write the rows as the one named field."""
        for name in names:
            lengths = self._append(writer, name)
            value = writer.fields[name].class_value
            first, last = self._ends()
            writer.count(name, lengths, {value: self[value][first:last]} if value in self.values else {})

    def _append(self, writer: FieldWriter, name: str) -> NDArray[np.int64]:
        first, last = self._ends()
        lengths = np.diff(self.offsets[self.rows.start : self.rows.stop + 1])
        writer.offsets(name, lengths)
        for value, rows in self.values.items():
            writer.write(f"{name}/{value}", rows[first:last])
        for value, table in self.lists.items():
            table.part(first, last)._append(writer, f"{name}/{value}")
        return lengths

    def _ends(self) -> tuple[int, int]:
        return int(self.offsets[self.rows.start]), int(self.offsets[self.rows.stop])


Given = GivenRows | GivenTable


def offsets_of(lengths: Iterable[int]) -> NDArray[np.int64]:
    """(n + 1,) where each of n lists begins, and the end of the last one.

    >>> offsets_of([2, 0, 3]).tolist()
    [0, 2, 2, 5]
    """
    return np.cumsum([0, *lengths], dtype=np.int64)
