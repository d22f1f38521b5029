"""Write a store of the rows of others: what they hold is copied, and classes get other numbers where asked."""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, BinaryIO, Protocol

import numpy as np
from numpy.typing import NDArray

from tensorstore_ds.annex.editing.behind import Behind
from tensorstore_ds.annex.editing.tombstones import Tombstones
from tensorstore_ds.conversion.blocks import raw_path
from tensorstore_ds.conversion.build import Build, one_line_for_failures
from tensorstore_ds.conversion.history import with_step
from tensorstore_ds.conversion.plan import ShardName
from tensorstore_ds.conversion.result import OnProgress, Progress, Summary
from tensorstore_ds.conversion.shard_writer import COPY_NBYTES, FinishedShard, complete_shard
from tensorstore_ds.durable import copied, linked, sync, write_all
from tensorstore_ds.errors import OptionError, one_line
from tensorstore_ds.format.arrays import CHUNK_SIZE, array_paths, shard_arrays
from tensorstore_ds.format.joining import Numbers
from tensorstore_ds.format.kinds.base import ArrayField, Field, TableField
from tensorstore_ds.format.manifest import Shard, SplitEntry, shard_path
from tensorstore_ds.format.schema import ArraySpec, Layout
from tensorstore_ds.format.statistics import Statistics, Sums, join_summaries, parse_summary
from tensorstore_ds.reading.columns import Column, RaggedColumn, spans
from tensorstore_ds.reading.store import Store, open as open_store
from tensorstore_ds.reading.verification import require_whole

#: Runs of rows: (n, 2) first row, and the row after the last.
Runs = NDArray[np.int64]
#: Rows that are written together, which limits the memory for their metadata.
_ROWS = 10_000
#: Maximum bytes of a file that are not yet synced.
_UNSYNCED = 256 * 1024**2


class StoreRows(Protocol):
    """Values of some rows to append to a shard: a `Piece` of a store, or given values."""

    def __len__(self) -> int: ...

    def part(self, start: int, stop: int) -> StoreRows:
        """Rows ``[start, stop)`` of these."""

    def append(self, writer: FieldWriter, names: Iterable[str]) -> None:
        """Write the values of some fields."""


@dataclass(frozen=True)
class Piece:
    """Some rows of a split of a store."""

    store: Store
    split: str
    rows: NDArray[np.int64]  #: (n,) in the order of writing
    classes: Numbers = field(default_factory=dict)
    prefix: str = ""  #: of keys

    def __len__(self) -> int:
        return len(self.rows)

    def part(self, start: int, stop: int) -> Piece:
        """Rows ``[start, stop)`` of these."""
        return replace(self, rows=self.rows[start:stop])

    def append(self, writer: FieldWriter, names: Iterable[str]) -> None:
        """Write the values of some fields; those that the store lacks are unknown."""
        rows = _PieceRows(writer, self)
        for name in names:
            rows.append(name, writer.fields[name])


def write_store(
    out: Path,
    splits: Mapping[str, Sequence[Piece]],
    fields: Mapping[str, Field],
    step: Mapping[str, Any],
    notify: OnProgress,
    tombstones: Tombstones | None = None,
) -> Summary:
    """Write a store whose splits are the pieces in order, after verifying their stores.

    `step` goes into the provenance. If `tombstones` is None, the tombstones of all source stores are joined.
    """
    stores = {piece.store.sha256: piece.store for pieces in splits.values() for piece in pieces}
    build = Build(out, notify, "copy")
    build.total = sum(len(piece) for pieces in splits.values() for piece in pieces)
    if not build.total:
        raise OptionError(f"{out}: expected rows for the new store, found none. Nothing was written.")
    build.check_free()
    for store in stores.values():
        store._check_rewritable()
        require_whole(store, "Copy the store again; no store is made of a damaged one.", reading_progress(notify))
    first = next(iter(stores.values()))
    with one_line_for_failures(out), build:
        most = max(
            shard.rows for store in stores.values() for s in store.manifest.splits.values() for shard in s.shards
        )
        shards = {name: list(shards_of(pieces, max(1, most))) for name, pieces in splits.items()}
        known = {name: _known_statistics(pieces, fields) for name, pieces in splits.items()}
        entries = write_splits(build, shards, fields, first.layout, known)
        before = first.manifest.provenance if len(stores) == 1 else {"tool": "tensorstore-ds"}
        if tombstones is None:
            tombstones = Tombstones(*(store.manifest.provenance for store in stores.values()))
        manifest = replace(
            first.manifest,
            chunk_size=CHUNK_SIZE,
            fields=fields,
            splits=entries,
            provenance=tombstones.noted(with_step(before, **step, sha256=list(stores))),
            **{name: _common(stores, name, build) for name in ("license", "citation")},
        )
        return build.commit(manifest, check_keys="key" in fields)


def write_splits(
    build: Build,
    splits: Mapping[str, Sequence[ShardRows]],
    fields: Mapping[str, Field],
    layout: Layout,
    known: Mapping[str, Mapping[str, Any]],
) -> dict[str, SplitEntry]:
    """Write the shards of each split that an earlier call did not finish.

    `known` has the statistics by split and field. Others are counted.
    """
    shards = {(name, index): shard for name, some in splits.items() for index, shard in enumerate(some)}
    origins = {name: shard.origin(layout, known[name[0]]) for name, shard in shards.items()}

    def unusable(name: ShardName, finished: FinishedShard) -> str:
        is_same = finished.origin == origins.get(name) and finished.fields == fields
        return "" if is_same else "they are of other rows, stores or fields"

    def made(missing: Mapping[ShardName, ShardRows]) -> Generator[tuple[ShardName, FinishedShard]]:
        for name, shard in missing.items():
            folder = build.store / shard_path(*name)
            written, sums = shard.write(folder, fields, layout, build.advance, known[name[0]])
            sync(folder.parent)
            yield name, FinishedShard(written, fields, sums, (), written.rows, origins[name])

    # each shard records its stores
    finished = build.make({"made of": "rows of stores"}, splits, shards, made, unusable)
    summaries = {name: {**split.statistics.summary(), **known[name]} for name, split in finished.items()}
    return {
        name: SplitEntry(
            tuple(split.shards), {each: summaries[name][each] for each in fields if each in summaries[name]}
        )
        for name, split in finished.items()
    }


def _common(stores: Mapping[str, Store], name: str, build: Build) -> Any:
    """The license or citation that all stores share; None if they differ, which is noted."""
    values = dict.fromkeys(getattr(store.manifest, name) for store in stores.values())
    if len(values) == 1:
        return next(iter(values))
    said = "; ".join(one_line(value or "none")[:80] for value in values)
    build.note(f"the stores say different things of their {name} ({said}). Note with tsds annotate what holds.")
    return None


def shards_of(pieces: Sequence[Piece], most: int) -> Iterator[ShardRows]:
    """Group pieces into shards of at most so many rows; a whole shard stays one unless it is small."""
    group, room = list[Piece](), most
    for piece in pieces:
        start = 0
        for stop, is_whole in _bounds(piece):
            if is_whole and 2 * (stop - start) > most:
                if group:
                    yield ShardRows(group)
                yield ShardRows([piece.part(start, stop)])
                group, room, start = [], most, stop
            while start < stop:
                part = piece.part(start, min(stop, start + room))
                start, room = start + len(part), room - len(part)
                group.append(part)
                if not room:
                    yield ShardRows(group)
                    group, room = [], most
    if group:
        yield ShardRows(group)


def _bounds(piece: Piece) -> Iterator[tuple[int, bool]]:
    """Where to cut the rows of a piece, and whether the rows before each cut are a complete shard."""
    rows = piece.rows
    if len(rows) and (np.diff(rows) > 0).all():
        starts = piece.store[piece.split].starts
        stops = np.searchsorted(rows, starts)
        for count, (start, stop) in zip(np.diff(starts).tolist(), pairwise(stops.tolist()), strict=True):
            if start < stop:
                yield stop, stop - start == count
    else:
        yield len(rows), False


@dataclass(frozen=True)
class _Kept:
    """Fields of a shard of a store whose files are linked."""

    store: Store
    split: str
    index: int
    names: Sequence[str]

    def lengths(self) -> dict[str, int]:
        """The lengths of these fields."""
        fields, known = self.store.manifest.fields, self.store.manifest.splits[self.split].shards[self.index].lengths
        return {group: known[group] for name in self.names for group in fields[name].groups(name)}

    def files(self) -> dict[str, str]:
        """The data files of these fields, by path relative to the shard, and their SHA-256."""
        fields = {name: self.store.manifest.fields[name] for name in self.names}
        shard = self.store.manifest.splits[self.split].shards[self.index]
        arrays = shard_arrays(fields, shard.rows, shard.lengths, self.store.layout, CHUNK_SIZE)
        listing = self.store.listing(self.split, self.index) if arrays else {}
        paths = [f"{array}/{geometry.data_path}" for array, geometry in arrays.items() if geometry.rows]
        return {path: listing[path].sha256 for path in paths}

    def link(self, path: str, folder: Path) -> bool:
        """Link a file into a shard of the same store; returns False if it has to be copied."""
        name = f"{self.store.manifest.shard_path(self.split, self.index)}/{path}"
        if self.store.path not in folder.parents:
            return False
        with self.store.open_file(name) as source:  # it is still the file of this store
            return linked(self.store.path / name, folder / path, os.fstat(source.fileno()))

    def copy(self, path: str, file: BinaryIO, copying: Behind, syncing: Behind) -> None:
        """Copy a file, and sync it in the background; stops when `copying` does."""
        unsynced = 0
        with self.store.open_file(f"{self.store.manifest.shard_path(self.split, self.index)}/{path}") as source:
            for nbytes in copied(source, file):
                if copying.is_stopped:
                    return
                unsynced += nbytes
                if unsynced >= _UNSYNCED:
                    syncing.do(os.fsync, file.fileno())
                    unsynced = 0
        syncing.do(os.fsync, file.fileno())


@dataclass(frozen=True)
class ShardRows:
    """The rows of a shard to be written: rows of pieces, of which some fields come from as many `changed` rows."""

    pieces: Sequence[Piece]
    changed: Mapping[str, StoreRows] = field(default_factory=dict)

    def __len__(self) -> int:
        return sum(map(len, self.pieces))

    def origin(self, layout: Layout, uncounted: Iterable[str]) -> str:
        """Digest of the inputs: the rows of each store, and the changes of their classes and keys."""
        digest = hashlib.sha256(repr((layout, sorted(uncounted))).encode())
        for piece in self.pieces:
            digest.update(repr((piece.store.sha256, piece.split, len(piece), piece.prefix)).encode())
            digest.update(np.ascontiguousarray(piece.rows).tobytes())
            for name, numbers in piece.classes.items():
                digest.update(name.encode() + numbers.tobytes())
        return digest.hexdigest()

    def kept(self, fields: Mapping[str, Field], layout: Layout) -> _Kept:
        """The fields whose files are copied: unchanged ones, if these are the rows of a shard, in order."""
        piece = self.pieces[0]
        manifest, starts = piece.store.manifest, piece.store[piece.split].starts
        names, index = list[str](), 0
        if len(self.pieces) == 1 and len(piece) and manifest.layout == layout and manifest.chunk_size == CHUNK_SIZE:
            index = int(starts.searchsorted(piece.rows[0], "right")) - 1  # of several that begin there, the filled one
            if np.array_equal(piece.rows, np.arange(*starts[index : index + 2])):
                names = [name for name in fields if name not in self.changed and _stays(name, fields[name], piece)]
        return _Kept(piece.store, piece.split, index, names)

    def write(
        self,
        folder: Path,
        fields: Mapping[str, Field],
        layout: Layout,
        advance: Callable[[int], None],
        uncounted: Collection[str] = (),
    ) -> tuple[Shard, Statistics]:
        """Write the rows as one shard in a new folder, and sync it; returns the sums of all but `uncounted` fields.

        If the rows are a complete shard, data files of unchanged fields are copied, or linked within a store if the
        file system supports it. Fields and values of objects that a piece's store lacks are unknown in its rows.
        """
        kept, statistics = self.kept(fields, layout), Statistics()
        copies = kept.files()
        sums: Mapping[str, Callable[..., Sums | None]] = {
            name: each.sums for name, each in fields.items() if each.is_counted and name not in uncounted
        }
        read = [name for name in fields if name not in kept.names or name in sums]
        is_final = {}  # by array that is written: whether its bytes are not compressed after
        for name, each in fields.items():
            for path, spec in array_paths(name, each).items():
                (folder / path).mkdir(parents=True, exist_ok=True)
                if name not in kept.names:
                    is_final[path] = (spec.layout or layout) == "memmap"
        behinds = hashing, syncing, counting, copying = [Behind() for _ in range(4)]

        def count(name: str, *values: Any) -> None:
            if name in sums:
                counting.do(lambda: statistics.add({name: sums[name](*values)}))

        with ExitStack() as stack:
            opened = {path: stack.enter_context(raw_path(folder, path).open("xb", buffering=0)) for path in is_final}
            files = {path: _File(file, is_final[path], hashing, syncing) for path, file in opened.items()}
            for path in copies:
                (folder / path).parent.mkdir(parents=True, exist_ok=True)
            rest = [path for path in copies if not kept.link(path, folder)]
            targets = {path: stack.enter_context((folder / path).open("xb", buffering=0)) for path in rest}
            for behind in behinds:  # files are closed after they are stopped
                stack.callback(behind.stop)  # if an interrupt comes while they are waited for
                stack.enter_context(behind)
            for path in rest:
                copying.do(kept.copy, path, targets[path], copying, syncing)
            writer = FieldWriter({name: fields[name] for name in read}, files, count)
            for name, own in self.changed.items():
                for part in _parts([own]):
                    part.append(writer, [name])
            for part in _parts(self.pieces):
                part.append(writer, [name for name in read if name not in self.changed])
                advance(len(part))
        lengths = kept.lengths() | writer.lengths
        digests = {path: file.sha256 for path, file in files.items() if file.is_final}
        return complete_shard(folder, fields, len(self), lengths, layout, CHUNK_SIZE, digests, copies), statistics


def count_rows(rows: Iterable[StoreRows], name: str, field: Field) -> dict[str, Any]:
    """Count a field's statistics in some rows; statistics of image files are joined instead."""
    if not field.is_counted:
        return joined_statistics([piece for piece in rows if isinstance(piece, Piece)], name, field)
    return dict(_counted(rows, name, field).summary().get(name, {}))


def count_changed(
    known: object, whole: Piece, gone: Piece, come: Iterable[StoreRows], name: str, field: Field
) -> dict[str, Any] | None:
    """Update the `known` statistics after some rows were removed and others added; None if all must be counted."""
    if not field.is_counted or 2 * len(gone) > len(whole):
        return None
    sums = parse_summary(field.kind, known, weight_of(whole, name, field))
    part = _counted([gone], name, field).get(name)
    rest = None if sums is None or part is None else sums.less(part)
    if rest is None:
        return None
    statistics = Statistics({name: rest})
    statistics.add(_counted(come, name, field))
    return dict(statistics.summary().get(name, {}))


def _counted(rows: Iterable[StoreRows], name: str, field: Field) -> Statistics:
    """The sums of a field in some rows; none if it has none."""
    statistics, sums = Statistics(), field.sums
    if type(field) is not ArrayField:
        writer = FieldWriter({name: field}, {}, lambda name, *values: statistics.add({name: sums(*values)}))
        for part in _parts(rows):
            part.append(writer, [name])
    return statistics


def _parts(pieces: Iterable[StoreRows]) -> Iterator[StoreRows]:
    for piece in pieces:
        for start in range(0, len(piece), _ROWS):
            yield piece.part(start, start + _ROWS)


def _stays(name: str, field: Field, piece: Piece) -> bool:
    """Whether the values of a field are copied unchanged."""
    numbers, own = piece.classes.get(name), piece.store.manifest.fields.get(name)
    is_same = numbers is None or np.array_equal(numbers, np.arange(len(numbers)))
    if own is None or own.names.get("keypoints") != field.names.get("keypoints"):  # the order of columns
        return False
    return is_same and own.arrays == field.arrays and not (name == "key" and piece.prefix)


def _known_statistics(pieces: Sequence[Piece], fields: Mapping[str, Field]) -> dict[str, dict[str, Any]]:
    """Statistics known without counting: of image files, and of pixels and masks if all pieces are whole splits."""
    splits = [(np.sort(piece.rows), len(piece.store[piece.split])) for piece in pieces if len(piece.rows)]
    is_whole = all(np.array_equal(rows, np.arange(count)) for rows, count in splits)
    found = {
        name: joined_statistics(pieces, name, field)
        for name, field in fields.items()
        if field.is_large and (is_whole or not field.is_counted)
    }
    return {name: known for name, known in found.items() if known}


def joined_statistics(pieces: Sequence[Piece], name: str, field: Field) -> dict[str, Any]:
    """A field's statistics, joined from the splits of the pieces; empty if one of the splits lacks them."""
    filled = [piece for piece in pieces if len(piece.rows)]
    parts = ((piece.store[piece.split].statistics.get(name), weight_of(piece, name, field)) for piece in filled)
    return join_summaries(field.kind, parts)


def weight_of(piece: Piece, name: str, field: Field) -> int:
    """Weight of a piece's rows in the statistics of a field: pixels for images, else samples."""
    if not field.encoding:
        return len(piece.rows)
    if field.one_shape is not None:
        return len(piece.rows) * math.prod(field.one_shape[:2])
    split = piece.store[piece.split]
    shape = split.table(name).per_row["shape"] if name in split.fields else None
    shapes = shape.take(piece.rows) if isinstance(shape, Column) else np.empty((0, 2))
    return int(shapes[:, :2].astype(np.int64).prod(axis=1).sum())


class _File:
    """A file that is written sequentially. If `is_final`, its bytes are hashed, which saves reading it again."""

    def __init__(self, file: BinaryIO, is_final: bool, hashing: Behind, syncing: Behind) -> None:
        self._file = file
        self._hashing, self._syncing = hashing, syncing
        self._unsynced = 0
        self.is_final = is_final
        self.sha256 = hashlib.sha256()

    def write(self, data: memoryview) -> None:
        """Write bytes; hash them and start writing them to disk in the background."""
        write_all(self._file, data)
        if self.is_final:
            self._hashing.do(self.sha256.update, data)
        self._unsynced += len(data)
        if self._unsynced >= _UNSYNCED:
            self._syncing.do(os.fsync, self._file.fileno())
            self._unsynced = 0


class FieldWriter:
    """Appends rows to the files of a shard by path; fields without one are only counted, with the values for `sums`."""

    def __init__(self, fields: Mapping[str, Field], files: Mapping[str, _File], count: Callable[..., None]) -> None:
        self.fields = fields
        self._files = files
        self.count = count
        self.lengths = {group: 0 for name, each in fields.items() for group in each.groups(name)}
        for group in self.lengths:
            self.write(f"{group}/offsets", bytes(8))

    def offsets(self, name: str, lengths: NDArray[np.int64]) -> None:
        """Append table rows with these numbers of values."""
        ends = self.lengths[name] + np.cumsum(lengths, dtype=np.int64)
        self.write(f"{name}/offsets", ends.astype("<i8"))
        self.lengths[name] += int(lengths.sum())

    def write(self, path: str, values: NDArray[Any] | bytes) -> None:
        """Append values of an array."""
        flat = np.frombuffer(values, np.uint8) if isinstance(values, bytes) else np.ascontiguousarray(values)
        data = flat.reshape(-1).view(np.uint8).data
        if path in self._files:
            self._files[path].write(data)


class _PieceRows:
    """Appends the rows of a piece to a shard, field by field."""

    def __init__(self, writer: FieldWriter, piece: Piece) -> None:
        self._piece = piece
        self._split = piece.store[piece.split]
        self._runs = runs_of(piece.rows)
        self._write, self._offsets, self._count = writer.write, writer.offsets, writer.count

    def append(self, name: str, each: Field) -> None:
        """Append one field."""
        if name not in self._split.fields:
            self._unknown(name, each)
            return
        column, numbers = self._split[name], self._piece.classes.get(name)
        if isinstance(column, Column):
            self._fixed(name, each, column, numbers)
        elif name == "key" and self._piece.prefix:
            self._prefixed(name, column)
        elif isinstance(each, TableField):
            self._values(name, each, column, numbers)

    def _unknown(self, name: str, each: Field) -> None:
        """Append the value for unknown of a field that the piece's store lacks."""
        rows, one = len(self._piece.rows), each.unknown_row
        if one is not None:
            step = max(1, COPY_NBYTES // max(1, one.nbytes))
            for start in range(0, rows, step):
                values = np.repeat(one[None], min(step, rows - start), axis=0)
                self._write(name, values)
                self._count(name, values)
        else:
            none = np.zeros(rows, np.int64)
            self._offsets(name, none)
            self._count(name, none, {each.class_value: np.empty(0, np.int64)} if each.classes else {})

    def _fixed(self, name: str, each: Field, column: Column, numbers: NDArray[np.int64] | None) -> None:
        for values in _pieces(column, self._runs):
            if numbers is not None:
                values = each.renumbered(values, numbers)
            self._write(name, values)
            self._count(name, values)

    def _values(self, name: str, each: TableField, column: RaggedColumn, numbers: NDArray[np.int64] | None) -> None:
        """Append the values of a table, except those whose class was removed."""
        lengths, own = np.diff(column.offsets)[self._piece.rows], column.field
        values = value_runs(column, self._runs)
        labels: NDArray[np.int64] | None = None
        if each.class_value in column.values:
            labels = np.concatenate([np.empty(0, np.int64), *_pieces(column[each.class_value], values)])
        elif each.class_value in each.values:
            labels = each.value_of(each.class_value, own, {}, int(lengths.sum()))
        if numbers is not None and labels is not None:
            labels = numbers[labels]
            if (labels < 0).any():
                keep = labels >= 0
                rows = np.repeat(np.arange(len(lengths)), lengths)[keep]
                lengths, labels = np.bincount(rows, minlength=len(lengths)), labels[keep]
                values = runs_of(rows_of(values)[keep])
        self._offsets(name, lengths)
        for value, spec in each.values.items():
            path, made_of = f"{name}/{value}", each.made_of(value, own)
            if value == each.class_value and labels is not None:
                self._write(path, labels)
            elif value in column.values and not made_of:
                self._column(path, column.values[value], values)
            elif value in column.lists:
                self._table(path, column.lists[value], values)
            elif spec.is_ragged:
                self._offsets(path, np.zeros(int(lengths.sum()), np.int64))
            else:
                rows, step = rows_of(values), _at_once(spec)
                for some in (rows[start : start + step] for start in range(0, len(rows), step)):
                    stored = {known: column.values[known].take(some) for known in made_of}
                    self._write(path, each.value_of(value, own, stored, len(some)))
        self._per_row(name, each, column)
        self._count(name, lengths, {} if labels is None else {each.class_value: labels})

    def _table(self, name: str, column: RaggedColumn, runs: Runs) -> None:
        """Append the lists of a ragged value."""
        rows = rows_of(runs)
        self._offsets(name, column.offsets[rows + 1] - column.offsets[rows])
        self._column(f"{name}/items", column["items"], value_runs(column, runs))

    def _per_row(self, name: str, each: TableField, column: RaggedColumn) -> None:
        """Append lists; those that the piece's store lacks are empty."""
        for value in each.per_row:
            part = column.per_row.get(value)
            if part is None:
                self._offsets(f"{name}/{value}", np.zeros(len(self._piece.rows), np.int64))
            elif isinstance(part, RaggedColumn):
                self._table(f"{name}/{value}", part, self._runs)
            else:
                self._column(f"{name}/{value}", part, self._runs)

    def _prefixed(self, name: str, column: RaggedColumn) -> None:
        keys = [f"{self._piece.prefix}{column[row]}".encode() for row in self._piece.rows.tolist()]
        self._offsets(name, np.array([len(key) for key in keys], np.int64))
        self._write(f"{name}/bytes", b"".join(keys))

    def _column(self, path: str, column: Column, runs: Runs) -> None:
        for values in _pieces(column, runs):
            self._write(path, values)


def runs_of(rows: NDArray[np.int64]) -> Runs:
    """(n, 2) the runs of consecutive rows.

    >>> runs_of(np.array([3, 4, 5, 9, 2])).tolist()
    [[3, 6], [9, 10], [2, 3]]
    """
    if not len(rows):
        return np.empty((0, 2), np.int64)
    edges = np.concatenate([[0], np.flatnonzero(np.diff(rows) != 1) + 1, [len(rows)]])
    return np.stack([rows[edges[:-1]], rows[edges[1:] - 1] + 1], axis=1)


def rows_of(runs: Runs) -> NDArray[np.int64]:
    """(n,) the rows of runs in order; the inverse of `runs_of`.

    >>> rows_of(np.array([[3, 6], [9, 10], [2, 3]])).tolist()
    [3, 4, 5, 9, 2]
    """
    return spans(runs[:, 0], runs[:, 1])


def value_runs(column: RaggedColumn, runs: Runs) -> Runs:
    """(n, 2) the runs of values for some runs of rows."""
    return column.offsets[runs].reshape(-1, 2)


def _at_once(spec: ArraySpec) -> int:
    """Number of rows that are copied together."""
    return max(1, COPY_NBYTES // max(1, spec.row_nbytes))


def _pieces(column: Column, runs: Runs) -> Iterator[NDArray[Any]]:
    """The rows of runs, in blocks."""
    step = _at_once(column.spec)
    if len(runs) > 1 and (runs[:, 1] - runs[:, 0]).mean() < step / 4:  # many short ones: gathered together
        rows = rows_of(runs)
        for start in range(0, len(rows), step):
            yield column.take(rows[start : start + step])
        return
    for first, last in runs.tolist():
        for start in range(first, last, step):
            yield column[start : min(start + step, last)]


def reading_progress(notify: OnProgress) -> Callable[[int, int], None]:
    """A progress callback for reading that reports bytes."""
    return lambda done, total: notify(Progress("checksum", done, total))


def opened_for_editing(path: str | os.PathLike[str], notify: OnProgress, sha256: str | None = None) -> Store:
    """Open a local store, with a digest if given; a store given by URL is fetched completely first."""
    store = open_store(path, sha256=sha256)
    if store.is_remote:
        store.fetch(reading_progress(notify))
        store = open_store(store.path)
    return store
