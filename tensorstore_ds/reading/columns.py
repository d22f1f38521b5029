"""Columns and tables, which are the arrays of a split's fields over all shards. NumPy only."""

from __future__ import annotations

import bisect
import functools
import math
import mmap
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, overload

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from tensorstore_ds import native
from tensorstore_ds.errors import FormatError, Problem
from tensorstore_ds.format.kinds.base import ListField, TableField
from tensorstore_ds.format.schema import ArraySpec
from tensorstore_ds.machine import check_fits
from tensorstore_ds.reading.checks import offsets_problem
from tensorstore_ds.reading.mapping import MAPS, read_randomly, will_need
from tensorstore_ds.reading.mirror_file import MirroredPart, pool
from tensorstore_ds.reading.zarr_part import LocalPart, ZarrPart

#: Arrays of at least this size begin at a page.
LARGE_NBYTES = 64 * 1024
#: Rows of at least this size are copied one by one if they are in several shards.
LARGE_ROW_NBYTES = 4096
#: Values with many elements in each row, such as the bytes of files.
_RUNS = frozenset(("bytes", "pixels"))


class Column:
    """One array of a split, over all its shards. Axis 0 counts rows, or the values of a table.

    >>> images = tsds.open("photos.tsds")["train"]["image"]
    >>> images.shape, images.dtype
    ((8, 32, 32, 3), dtype('uint8'))
    >>> images[0].shape, images[2:4].shape  # read-only views of the mapped file
    ((32, 32, 3), (2, 32, 32, 3))
    >>> images.take([7, 3, 3]).shape  # a copy; so is images[[7, 3, 3]]
    (3, 32, 32, 3)
    >>> np.asarray(images).mean(axis=(0, 1, 2)).shape
    (3,)

    Attributes:
        spec: dtype and shape of a row.
        dtype: the NumPy data type.
    """

    def __init__(
        self,
        name: str,
        spec: ArraySpec,
        lengths: Sequence[int],
        load: Callable[[int], ColumnPiece],
        *,
        is_remote: bool = False,
    ) -> None:
        self.spec = spec
        self.dtype: np.dtype[Any] = np.dtype(spec.dtype)
        self._is_remote = is_remote  # whether rows may have to be fetched
        self._name = name
        self._starts = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])
        self._edges: list[int] = self._starts.tolist()
        self._load = load
        self._parts: dict[int, ColumnPiece] = {}
        self._earlier: dict[int, ColumnPiece] = {}  # those that were not used since the last `let_go`
        self._table: Any = None  # of the compiled kernels: where the rows of each shard are
        self.is_random = False  # whether its maps are advised so, see `read_randomly`
        MAPS.add(self)

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the column, ``(rows, *row_shape)``."""
        return (len(self), *self.spec.shape)

    @property
    def nbytes(self) -> int:
        """Number of bytes of all rows, uncompressed."""
        return len(self) * self.spec.row_nbytes

    @property
    def shards(self) -> int:
        """Number of shards."""
        return len(self._starts) - 1

    @property
    def starts(self) -> NDArray[np.int64]:
        """(shards + 1,) int64, the first row of each shard, followed by the number of rows."""
        return self._starts

    def _owners(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the shard of each row, (n,) int64. A row at the end of the column belongs to the last shard."""
        return (self._starts.searchsorted(rows, "right") - 1).clip(0, self.shards - 1)

    def __len__(self) -> int:
        return self._edges[-1]

    def __repr__(self) -> str:
        return f"<Column {self._name!r} {self.shape} {self.dtype}>"

    def part(self, shard: int) -> ColumnPiece:
        """Return the array of one shard, a read-only memory map, or an object that decompresses or downloads rows.

        It is checked and mapped when it is first used.
        """
        part = self._parts.get(shard)
        if part is None:
            part = self._earlier.get(shard)
            if part is None:
                part = self._load(shard)
                if self.is_random:
                    self._advise(part)
            self._parts[shard] = part
        if isinstance(part, MirroredPart) and part.is_whole:
            part = self._parts[shard] = part.local
        return part

    def _let_go(self) -> None:
        """Drop the maps that were not used since the last call; `part` makes them again."""
        self._earlier, self._parts, self._table = self._parts, {}, None

    def _mapped(self, shard: int) -> NDArray[Any] | None:
        """Return the map of one shard, with holes where rows were not downloaded yet, or None if it is compressed."""
        part = _local(self.part(shard))
        return part if isinstance(part, np.ndarray) else None

    def fetch(self, starts: NDArray[np.int64], stops: NDArray[np.int64]) -> None:
        """Download the rows [start, stop) of each pair, (n,) each, if the store was opened by URL and they are missing.

        All ranges are downloaded together.

        Raises:
            FormatError, RemoteError, OutputError: see `tensorstore_ds.open`.
        """
        if not self._is_remote:
            return
        some = starts < stops  # a row of a table may be empty, and so may all of them
        starts, stops = starts[some], stops[some]
        if not len(starts):
            return
        first = self._starts.searchsorted(starts, "right") - 1
        last = self._starts.searchsorted(stops, "left") - 1

        def fetch(shard: int) -> None:
            part, begin = self.part(shard), self._edges[shard]
            if isinstance(part, MirroredPart):
                inside = (first <= shard) & (shard <= last)
                end = self._edges[shard + 1] - begin
                part.fetch((starts[inside] - begin).clip(0, end), (stops[inside] - begin).clip(0, end))

        shards = np.unique(first) if (first == last).all() else np.arange(first.min(), last.max() + 1)
        missing = [i for i in shards.tolist() if isinstance(self._parts.get(i), MirroredPart | None)]
        if len(missing) == 1:
            fetch(missing[0])
        elif missing:
            _ = list(pool("shards").map(fetch, missing))
        parts = [*self._parts.values()]  # once: another thread may let go of them, or of one
        if len(parts) == self.shards and all(part.is_whole for part in parts if isinstance(part, MirroredPart)):
            self._is_remote = False

    def _read_randomly(self) -> None:
        """Tell the system that rows are read in random order, so that it reads no others with them."""
        self.is_random = True
        for part in (*self._parts.values(), *self._earlier.values()):
            self._advise(part)

    @staticmethod
    def _advise(part: ColumnPiece) -> None:
        if isinstance(array := _local(part), np.ndarray):
            read_randomly(array)

    def _will_need(self, starts: NDArray[np.int64], stops: NDArray[np.int64]) -> tuple[int, int]:
        """Ask the system to read the rows [start, stop) of each pair, (n,) each and in one shard, without waiting.

        Returns the bytes that the disk is asked for, in whole pages, and the number of requests.
        """
        order = np.argsort(starts, kind="stable")
        starts, stops = starts[order], stops[order]
        bounds = starts.searchsorted(self._starts)
        nbytes = requests = 0
        for shard in np.flatnonzero(np.diff(bounds)).tolist():
            here, edge = slice(bounds[shard], bounds[shard + 1]), self._edges[shard]
            part, begins, ends = _local(self.part(shard)), starts[here] - edge, stops[here] - edge
            if isinstance(part, ZarrPart):
                asked = part._will_need(begins, ends)
            else:
                asked = will_need(part, begins * self.spec.row_nbytes, ends * self.spec.row_nbytes)
            nbytes, requests = nbytes + asked[0], requests + asked[1]
        return nbytes, requests

    def _ranges(self, rows: NDArray[np.int64]) -> Iterator[tuple[Column, NDArray[np.int64], NDArray[np.int64]]]:
        """Return the arguments of `fetch` and `will_need` for some rows, after the column itself."""
        yield self, rows, rows + 1

    @overload
    def __getitem__(self, item: int | np.integer[Any]) -> Any: ...
    @overload
    def __getitem__(self, item: slice | Sequence[int] | NDArray[np.integer[Any]]) -> NDArray[Any]: ...
    def __getitem__(self, item: Any) -> Any:
        """Return one row, the rows of a slice, or `take` of a list of rows.

        A row, or a slice with step 1 that one shard contains, is a read-only view of the map, or decompressed if the
        store is compressed. Other results are new arrays.
        """
        if isinstance(item, slice):
            start, stop, step = item.indices(len(self))
            return self._slice(start, stop) if step == 1 else self.take(np.arange(start, stop, step))
        if isinstance(item, int | np.integer):
            row = _checked_row(item, len(self), self._name)
            shard = bisect.bisect_right(self._edges, row) - 1
            return self.part(shard)[row - self._edges[shard]]
        return self.take(item)

    def take(self, rows: ArrayLike, out: NDArray[Any] | None = None) -> NDArray[Any]:
        """Copy rows, in any order and with repetitions, with one gather, like `numpy.take` along axis 0.

        >>> labels = tsds.open("photos.tsds")["train"]["label"]
        >>> out = np.empty(3, labels.dtype)
        >>> labels.take([7, 0, 0], out=out) is out
        True
        >>> out.tolist()
        [1, 0, 0]

        Args:
            rows: integers in [-len, len), of any shape, such as (n,), or () for one row.
            out: array to fill, with the shape of `rows` followed by the shape of a row, the column's dtype, and
                C-contiguous. None allocates a new array. Reusing an array is several times faster, because the system
                need not provide new pages. Best reuse an array that `take` returned, because large ones begin at a
                page. On some processors (AMD Zen 3), copying to an array from `numpy.empty` is 4x slower.

        Returns:
            `out`, never a view of the map.

        Raises:
            IndexError: a row is out of range.
            ValueError: `out` has a different shape or dtype, or is not C-contiguous.
        """
        rows = np.asarray(rows)
        if self._is_remote or rows.dtype != np.int64:
            rows = checked_rows(rows, len(self), self._name)
        shape = (*rows.shape, *self.spec.shape)
        if out is None:
            out = aligned_empty(shape, self.dtype)
        elif out.shape != shape or out.dtype != self.dtype or not out.flags.c_contiguous:
            raise ValueError(
                f"{self._name}: expected out of shape {shape}, {self.dtype}, C-contiguous, "
                f"found {out.shape}, {out.dtype}."
            )
        flat, target = rows.ravel(), out.reshape(rows.size, *self.spec.shape)
        if self._is_remote:
            self.fetch(flat, flat + 1)
        if self._by_kernel(flat, lambda table: native.core.gather(table, flat, target)):
            return out
        flat = checked_rows(flat, len(self), self._name)
        if self.shards == 1:
            _take(_local(self.part(0)), flat, target)
        elif rows.size:
            self._take_from_shards(flat, target)
        return out

    def __array__(self, dtype: DTypeLike | None = None, copy: bool | None = None) -> NDArray[Any]:
        """Return the whole column, a read-only view of the map if the split has one uncompressed shard, else a copy."""
        array = self._slice(0, len(self))
        if dtype is not None and np.dtype(dtype) != array.dtype:
            if copy is False:
                raise ValueError(f"{self._name}: {array.dtype} cannot become {np.dtype(dtype)} without a copy.")
            return array.astype(dtype)
        return array.copy() if copy else array

    def _by_kernel(self, rows: NDArray[np.int64], call: Callable[[Any], int]) -> bool:
        """Let a compiled kernel process rows, (n,) in [-len, len), that are on this disk. Returns whether it did all.

        `call` calls the kernel with the table of the column, and returns the number of rows processed. It is below the
        number of `rows` if a row is out of range (`IndexError`), or in a shard that is not in the table yet. False if
        kernels are missing, rows must be decompressed, or they are in more shards than can be mapped at the same time.
        """
        if native.core is None:
            return False
        table = self._table  # this one to the end of the call: another thread may let go of it
        if table is None:
            if not self.spec.row_nbytes or not self.shards:
                return False
            table = self._table = native.core.table(self._starts, self.spec.row_nbytes)
        if call(table) == len(rows):
            return True
        owners = self._starts.searchsorted(checked_rows(rows, len(self), self._name), "right") - 1
        shards = np.unique(owners)
        if len(shards) > MAPS.most_together:
            return False
        arrays = {shard: self._mapped(shard) for shard in shards.tolist()}
        for shard, array in arrays.items():
            if array is not None:
                native.core.add(table, shard, array)
        return all(array is not None for array in arrays.values()) and call(table) == len(rows)

    def _piece(self, shard: int, start: int, stop: int) -> NDArray[Any]:
        edge = self._edges[shard]
        return self.part(shard)[max(start - edge, 0) : stop - edge]

    def _slice(self, start: int, stop: int) -> NDArray[Any]:
        if stop <= start:
            return np.empty((0, *self.spec.shape), self.dtype)
        shards = range(bisect.bisect_right(self._edges, start) - 1, bisect.bisect_right(self._edges, stop - 1))
        if len(shards) > 1:
            check_fits(self._name, (stop - start) * self.spec.row_nbytes)
        if self._is_remote:
            self.fetch(np.array([start]), np.array([stop]))
        if len(shards) == 1:
            return self._piece(shards[0], start, stop)
        out, done = aligned_empty((stop - start, *self.spec.shape), self.dtype), 0
        for shard in shards:  # one at a time: there may be more than the system lets a process map
            piece = self._piece(shard, start, stop)
            out[done : done + len(piece)] = piece
            done += len(piece)
        return out

    def _take_from_shards(self, rows: NDArray[np.int64], out: NDArray[Any]) -> None:
        owners = self._starts.searchsorted(rows, "right") - 1
        order = np.argsort(owners, kind="stable")
        for where in np.split(order, np.flatnonzero(np.diff(owners[order])) + 1):
            shard = int(owners[where[0]])
            part = _local(self.part(shard))
            local = rows[where] - self._starts[shard]
            if isinstance(part, np.ndarray) and self.spec.row_nbytes >= LARGE_ROW_NBYTES:
                for target, row in zip(where.tolist(), local.tolist(), strict=True):
                    out[target] = part[row]  # one copy of a large row beats two by a gather
            else:
                buffer = aligned_empty((len(where), *self.spec.shape), self.dtype)
                _take(part, local, buffer)
                out[where] = buffer


@dataclass(frozen=True, slots=True)
class Ragged:
    """Values of several samples in one array. Sample i has the rows ``[offsets[i]:offsets[i + 1]]``.

    >>> objects = tsds.open("voc.tsds")["train"]["objects"].take([1, 2])  # with two and one box
    >>> objects.offsets.tolist()
    [0, 2, 3]
    >>> objects.values["boxes"].shape
    (3, 4)
    >>> start, stop = objects.offsets[1:3]
    >>> objects.values["boxes"][start:stop].tolist()  # x1, y1, x2, y2 in pixels
    [[11.0, 11.0, 30.0, 40.0]]

    Attributes:
        offsets: (n + 1,) int64, beginning with 0.
        values: arrays by name, each with ``offsets[-1]`` rows.
    """

    offsets: NDArray[np.int64]
    values: Mapping[str, NDArray[Any]]

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, name: str) -> NDArray[Any]:
        return self.values[name]


class RaggedColumn:
    """A table with any number of values for each sample, such as its boxes and labels, or the bytes of its key.

    >>> objects = tsds.open("voc.tsds")["train"]["objects"]
    >>> len(objects)
    4
    >>> {name: value.shape for name, value in objects[1].items()}
    {'boxes': (2, 4), 'labels': (2,)}
    >>> objects.field.classes
    ('cat', 'dog')
    >>> objects.take([1, 2]).offsets.tolist()
    [0, 2, 3]

    Attributes:
        field: kind, class names, keypoint names and flip pairs.
        offset_column: the stored offsets, which begin at 0 in each shard. They are not checked.
        values: the value columns, each with the values of all samples one after the other.
        lists: values that are lists of any length, one list for each element, such as the texts of captions.
        per_row: columns with one row for each sample, such as the shapes of image files.
    """

    def __init__(
        self,
        name: str,
        field: TableField,
        offsets: Column,
        values: Mapping[str, Column],
        lists: Mapping[str, RaggedColumn] = MappingProxyType({}),
        per_row: Mapping[str, Column | RaggedColumn] = MappingProxyType({}),
    ) -> None:
        self.field = field
        self._name = name
        self.offset_column = offsets
        self._starts = offsets.starts - np.arange(offsets.shards + 1)  # of the shards' rows
        self._joined: dict[str, NDArray[np.int64]] = {}  # the offsets of several shards, some of which may be missing
        self._is_missing, self._is_whole = np.ones(offsets.shards, bool), offsets.shards == 1
        self.values = values
        self.lists = lists
        self.per_row = per_row

    @classmethod
    def of(cls, name: str, field: TableField, arrays: Mapping[str, Column]) -> RaggedColumn:
        """Make a table from its arrays, by their paths below the field."""

        lists = {
            value: cls(
                f"{name}/{value}", ListField({}), arrays[f"{value}/offsets"], {"items": arrays[f"{value}/items"]}
            )
            for value in field.ragged
        }
        values = {value: arrays[value] for value in field.values if value not in lists}
        per_row = {value: lists.pop(value) if value in lists else arrays[value] for value in field.per_row}
        return cls(name, field, arrays["offsets"], values, lists, per_row)

    @functools.cached_property
    def offsets(self) -> NDArray[np.int64]:
        """(len + 1,) int64, read-only. The values of row i are ``[offsets[i], offsets[i + 1])``.

        This reads the offsets of all shards. `bounds` reads only shards with some of its rows.

        Raises:
            FormatError: a shard's offsets do not begin at 0, decrease, or do not end at the number of values.
        """
        offsets = self._checked(0) if self.offset_column.shards == 1 else self._known(np.arange(len(self._is_missing)))
        offsets = offsets[:]
        offsets.flags.writeable = False
        return offsets

    def bounds(self, rows: Any) -> tuple[Any, Any]:
        """Return the first value of each row, and the first one after it, for rows in [0, len) or one such row.

        Raises as `offsets`.
        """
        if self._is_whole:
            offsets = self.offsets
        else:
            offsets = self._known(np.unique(self._starts.searchsorted(rows, "right") - 1))
        return offsets[rows], offsets[rows + 1]

    def _known(self, shards: NDArray[np.int64]) -> NDArray[np.int64]:
        """The offsets of several shards; only the ascending `shards` are certain to be filled in."""
        column, missing = self.offset_column, shards[self._is_missing[shards]]
        if (offsets := self._joined.get("offsets")) is None:
            check_fits(self._name, 8 * (len(self) + 1))
            offsets = self._joined.setdefault("offsets", np.zeros(len(self) + 1, np.int64))  # of one thread
        column.fetch(column.starts[missing], column.starts[missing + 1])
        for shard in missing.tolist():
            first, last = self._starts[shard : shard + 2]
            offsets[first : last + 1] = self._checked(shard) + self._value_starts[shard]
            column._parts.pop(shard, None)  # which is not expected to be used again
        self._is_missing[missing] = False
        self._is_whole = not self._is_missing.any()
        return offsets

    def _checked(self, shard: int) -> NDArray[np.int64]:
        offsets = np.asarray(self.offset_column.part(shard)[:])
        length = int(self._value_starts[shard + 1] - self._value_starts[shard])
        if problem := offsets_problem(offsets, length):
            raise FormatError(Problem(f"{self._name} (shard {shard})", "offsets", problem))
        return offsets

    @functools.cached_property
    def _value_starts(self) -> NDArray[np.int64]:
        """(shards + 1,) int64, the first value of each shard, followed by the number of values."""
        if self.values:
            return next(iter(self.values.values()))._starts
        return next(iter(self.lists.values()))._starts

    @property
    def nbytes(self) -> int:
        """Number of bytes of all values and offsets, uncompressed."""
        return sum(column.nbytes for column in array_columns("", self).values())

    def __len__(self) -> int:
        return int(self._starts[-1])

    def __repr__(self) -> str:
        return f"<RaggedColumn {self._name!r} of {', '.join(self.values)}>"

    @overload
    def __getitem__(self, item: str) -> Column: ...
    @overload
    def __getitem__(self, item: int | np.integer[Any]) -> Any: ...
    @overload
    def __getitem__(self, item: slice) -> list[Any]: ...
    def __getitem__(self, item: Any) -> Any:
        """Return a value column by name, the values of one row by number, or a list of rows by slice.

        A row is a dict of (m, ...) arrays by name, with `lists` as lists of arrays and without `per_row`. A row of keys
        is `str`, and a row of image files is `bytes`. A row of images stored as pixels is an array (H, W, C), a
        read-only view of the map.
        """
        if isinstance(item, str):
            return self.values[item]
        if isinstance(item, slice):
            return [self[row] for row in range(*item.indices(len(self)))]
        row = _checked_row(item, len(self), self._name)
        start, stop = map(int, self.bounds(row))
        self._check_fits(stop - start)
        values = {name: column[start:stop] for name, column in self.values.items()}
        lists = {name: column[start:stop] for name, column in self.lists.items()}
        return self.field.value({**values, **lists}, lambda name: self.per_row[name][row], f"{self._name} (row {row})")

    def fetch(self, rows: NDArray[np.int64]) -> None:
        """Download these rows, (n,) in [0, len), if the store was opened by URL. Raises as `Column.fetch`."""
        for column, starts, stops in self._ranges(rows):
            column.fetch(starts, stops)

    def _ranges(self, rows: NDArray[np.int64]) -> Iterator[tuple[Column, NDArray[np.int64], NDArray[np.int64]]]:
        """Return the arguments of `fetch` and `will_need` for some rows, after the column, for all columns."""
        if not len(rows):
            return
        starts, stops = self.bounds(rows)
        columns: list[Column | RaggedColumn] = [*self.values.values(), *self.lists.values()]
        for column in columns:
            if isinstance(column, RaggedColumn):
                items, some = next(iter(column.values.values())), starts < stops
                yield items, column.bounds(starts[some])[0], column.bounds(stops[some] - 1)[1]
            else:
                yield column, starts, stops
        for each in self.per_row.values():
            yield from each._ranges(rows)

    def take(self, rows: ArrayLike) -> Ragged:
        """Copy the values of some rows, (n,), in any order and with repetitions. `lists` are not included.

        Raises:
            IndexError: a row is out of range.
            ValueError: `rows` does not have the shape (n,).
        """
        rows = checked_rows(rows, len(self), self._name)
        if rows.ndim != 1:
            raise ValueError(f"{self._name}: expected rows of shape (n,), found {rows.shape}.")
        starts, stops = self.bounds(rows)
        offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(stops - starts)])
        self._check_fits(int(offsets[-1]))
        if len(self.values) == 1 and self.values.keys() <= _RUNS:  # copied as such: an index a byte would be larger
            ((name, column),) = self.values.items()
            column.fetch(starts, stops)
            data = aligned_empty((int(offsets[-1]), *column.spec.shape), column.dtype)
            for i, (start, stop) in enumerate(zip(starts.tolist(), stops.tolist(), strict=True)):
                data[offsets[i] : offsets[i + 1]] = column[start:stop]
            return Ragged(offsets, {name: data})
        flat = spans(starts, stops)
        return Ragged(offsets, {name: column.take(flat) for name, column in self.values.items()})

    def _check_fits(self, values: int) -> None:
        check_fits(self._name, values * sum(column.spec.row_nbytes for column in self.values.values()))


def array_columns(name: str, column: Column | RaggedColumn) -> dict[str, Column]:
    """The columns of a field's arrays, by path in a shard."""
    if isinstance(column, Column):
        return {name: column}
    columns = {f"{name}/offsets": column.offset_column}
    for value, each in {**column.values, **column.lists, **column.per_row}.items():
        columns |= array_columns(f"{name}/{value}", each)
    return columns


ColumnPiece = LocalPart | MirroredPart


def _local(part: ColumnPiece) -> LocalPart:
    return part.local if isinstance(part, MirroredPart) else part


def aligned_empty(shape: tuple[int, ...], dtype: DTypeLike) -> NDArray[Any]:
    """`numpy.empty` with large arrays at the beginning of a page. `malloc` begins them 16 bytes after one.

    There, the C library's ``rep movsb`` takes 4x as long on AMD Zen 3 if the source begins at a cache line.
    """
    nbytes = math.prod(shape) * np.dtype(dtype).itemsize
    if nbytes < LARGE_NBYTES:
        return np.empty(shape, dtype)
    buffer = np.empty(nbytes + mmap.PAGESIZE, np.uint8)
    start = -buffer.ctypes.data % mmap.PAGESIZE
    return buffer[start : start + nbytes].view(dtype).reshape(shape)


def _take(part: LocalPart, rows: NDArray[np.int64], out: NDArray[Any]) -> None:
    if isinstance(part, np.ndarray):
        # Without a mode np.take checks every index while it copies into a buffer of its own: 5x slower.
        np.take(part, rows, axis=0, out=out, mode="clip")
    elif rows.size:
        part.take(rows, out)


def _checked_row(row: Any, length: int, name: str) -> int:
    """`row` in [0, length)."""
    if type(row) is int and 0 <= row < length:
        return row
    return int(checked_rows(row, length, name))


def spans(starts: NDArray[np.int64], stops: NDArray[np.int64]) -> NDArray[np.int64]:
    """The numbers of all spans [start, stop), one after the other."""
    ends = np.cumsum(stops - starts)
    return np.repeat(stops - ends, stops - starts) + np.arange(ends[-1] if len(ends) else 0)


def checked_rows(rows: ArrayLike, length: int, name: str) -> NDArray[np.int64]:
    """`rows` as int64 in [0, length)."""
    array = np.asarray(rows)
    if array.size == 0:
        return array.astype(np.int64)
    if array.dtype == np.int64 and array.view(np.uint64).max() < length:  # negative numbers are the largest ones
        return array
    if array.dtype.kind not in "iu":
        raise TypeError(f"{name}: expected integer rows, found {array.dtype}. For a mask use numpy.flatnonzero(mask).")
    low, high = int(array.min()), int(array.max())
    if low < -length or high >= length:
        raise IndexError(f"{name}: row {low if low < -length else high} is outside of [0, {length}).")
    array = array.astype(np.int64, copy=False)
    return np.where(array < 0, array + length, array) if low < 0 else array
