"""Write a store of the rows of others: what they hold is copied, and classes get other numbers where asked."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from tensorstore_ds.conversion.blocks import raw_path
from tensorstore_ds.conversion.result import OnProgress, Progress, Summary, now, one_line_for_failures, summarize
from tensorstore_ds.conversion.shard_writer import COPY_NBYTES, complete_shard
from tensorstore_ds.conversion.workspace import Workspace
from tensorstore_ds.durable import sync, write_all
from tensorstore_ds.errors import FormatError, OptionError, one_line
from tensorstore_ds.format.arrays import CHUNK_SIZE, array_paths
from tensorstore_ds.format.kinds import ImageField, LabelField, MaskField, ObjectsField
from tensorstore_ds.format.kinds.base import ArrayField, Field, TableField
from tensorstore_ds.format.manifest import Shard, SplitEntry, shard_path
from tensorstore_ds.format.statistics import Statistics
from tensorstore_ds.reading.columns import Column, RaggedColumn
from tensorstore_ds.reading.store import Store, open as open_store
from tensorstore_ds.reading.verification import verify
from tensorstore_ds.version import __version__

#: Runs of rows: (n, 2) first row, and the one behind the last.
Runs = NDArray[np.int64]
#: Rows that are written together, so that what is known of them needs little memory.
_ROWS = 10_000


@dataclass(frozen=True)
class Piece:
    """Some rows of a split of a store.

    Attributes:
        rows: (n,) int64, in the order in which they are written.
        classes: for each field with classes that are other ones in the new store, the new number of each, (n,) int64,
            -1 for those that are gone.
        prefix: what keys begin with in the new store.
    """

    store: Store
    split: str
    rows: NDArray[np.int64]
    classes: Mapping[str, NDArray[np.int64]] = field(default_factory=dict)
    prefix: str = ""

    def part(self, start: int, stop: int) -> Piece:
        """Rows ``[start, stop)`` of these."""
        return replace(self, rows=self.rows[start:stop])


def write_store(
    out: Path,
    splits: Mapping[str, Sequence[Piece]],
    fields: Mapping[str, Field],
    step: Mapping[str, Any],
    notify: OnProgress,
) -> Summary:
    """Write a store of rows, each split of its pieces one after the other.

    The stores that rows come from are verified before, so that damage is not given a fresh checksum.

    Args:
        fields: of the new store.
        step: what is done, for the provenance: ``command`` and its options.

    Raises:
        FormatError: a store is damaged.
        OptionError: no row is left.
        StoreExistsError: `out` exists.
        ConversionError: the disk is full.
    """
    stores = {piece.store.sha256: piece.store for pieces in splits.values() for piece in pieces}
    total = sum(len(piece.rows) for pieces in splits.values() for piece in pieces)
    if not total:
        raise OptionError(f"{out}: expected rows for the new store, found none. Nothing was written.")
    for store in stores.values():
        problems = verify(store.path, progress=lambda done, size: notify(Progress("checksum", done, size)))
        if problems:
            raise FormatError(problems, "Copy the store again; no store is made of a damaged one.")
    first = next(iter(stores.values()))
    done = 0

    def advance(rows: int) -> None:
        nonlocal done
        done += rows
        notify(Progress("copy", done, total))

    with (
        one_line_for_failures(out),
        Workspace(out, on_note=lambda note: notify(Progress("copy", 0, 0, 0, note))) as workspace,
    ):
        workspace.begin({**step, "sha256": list(stores), "rows": {name: _digest(p) for name, p in splits.items()}})
        most = max(
            shard.rows for store in stores.values() for s in store.manifest.splits.values() for shard in s.shards
        )
        entries = {}
        for name, pieces in splits.items():
            shards, statistics = [], Statistics()
            for index, group in enumerate(_shards(pieces, max(1, most))):
                folder = workspace.store / shard_path(name, index)
                shards.append(write_shard(folder, group, fields, first, statistics, advance))
                sync(folder.parent)
            summary = statistics.summary()
            if "channels" not in summary and (pooled := _pooled(pieces)) is not None:
                summary["channels"] = pooled
            entries[name] = SplitEntry(tuple(shards), summary)
        before = first.manifest.provenance if len(stores) == 1 else {"tool": "tensorstore-ds"}
        steps = before.get("edited")
        done_now = {"tool_version": __version__, "created": now().isoformat(timespec="seconds"), **step}
        edited = [*(steps if isinstance(steps, list) else []), {**done_now, "sha256": list(stores)}]
        manifest = replace(
            first.manifest,
            chunk_size=CHUNK_SIZE,
            fields=fields,
            splits=entries,
            provenance={**before, "edited": edited},
        )
        if len(stores) > 1:
            manifest = replace(manifest, **{name: _common(stores, name, workspace) for name in ("license", "citation")})
        manifest = workspace.commit(manifest, [], check_keys="key" in fields)
    return summarize(out, manifest, workspace.began, {}, (), 0, tuple(workspace.notes))


def _digest(pieces: Sequence[Piece]) -> list[list[Any]]:
    return [[piece.split, len(piece.rows), int(piece.rows.sum())] for piece in pieces]


def _common(stores: Mapping[str, Store], name: str, workspace: Workspace) -> Any:
    """What all stores say of their license or citation; None where they differ, which is told."""
    values = dict.fromkeys(getattr(store.manifest, name) for store in stores.values())
    if len(values) > 1:
        said = "; ".join(one_line(value or "none")[:80] for value in values)
        workspace.note(f"the stores say different things of their {name} ({said}). Note with tsds annotate what holds.")
    return next(iter(values)) if len(values) == 1 else None


def _shards(pieces: Sequence[Piece], most: int) -> Iterator[list[Piece]]:
    """Pieces of at most so many rows together."""
    group, room = list[Piece](), most
    for piece in pieces:
        start = 0
        while start < len(piece.rows):
            part = piece.part(start, start + room)
            start, room = start + len(part.rows), room - len(part.rows)
            group.append(part)
            if not room:
                yield group
                group, room = [], most
    if group:
        yield group


def write_shard(
    folder: Path,
    pieces: Sequence[Piece],
    fields: Mapping[str, Field],
    first: Store,
    statistics: Statistics,
    advance: Callable[[int], None],
) -> Shard:
    """Write the rows of pieces as one shard, in a folder that is not there yet, and sync it.

    Args:
        first: the store whose layout it has.
        statistics: receives the sums of its values.
        advance: called with the number of rows that were written.
    """
    files: dict[str, BinaryIO] = {}
    lengths = {group: 0 for name, each in fields.items() for group in each.groups(name)}
    try:
        for name, each in fields.items():
            for path in array_paths(name, each):
                target = raw_path(folder, path)
                target.parent.mkdir(parents=True, exist_ok=True)
                files[path] = target.open("xb", buffering=0)
            for group in each.groups(name):
                write_all(files[f"{group}/offsets"], bytes(8))
        for whole in pieces:
            for start in range(0, len(whole.rows), _ROWS):
                piece = whole.part(start, start + _ROWS)
                writer = _Writer(files, lengths, piece, statistics)
                for name, each in fields.items():
                    writer.field(name, each)
                advance(len(piece.rows))
    finally:
        for file in files.values():
            file.close()
    rows = sum(len(piece.rows) for piece in pieces)
    return complete_shard(folder, fields, rows, lengths, first.layout, CHUNK_SIZE)


class _Writer:
    """Appends the rows of a piece to the files of a shard."""

    def __init__(
        self, files: Mapping[str, BinaryIO], lengths: dict[str, int], piece: Piece, statistics: Statistics
    ) -> None:
        self._files = files
        self._lengths = lengths
        self._piece = piece
        self._split = piece.store[piece.split]
        self._runs = runs_of(piece.rows)
        self._statistics = statistics

    def field(self, name: str, each: Field) -> None:
        """All rows of a field."""
        column, numbers = self._split[name], self._piece.classes.get(name)
        if isinstance(each, ArrayField) and isinstance(column, Column):
            self._fixed(name, each, column, numbers)
        elif isinstance(each, ObjectsField) and isinstance(column, RaggedColumn):
            self._objects(name, each, column, numbers)
        elif isinstance(each, TableField) and isinstance(column, RaggedColumn):
            if name == "key" and self._piece.prefix:
                self._prefixed(name, column)
            else:
                self._table(name, column, self._runs)

    def _fixed(self, name: str, each: ArrayField, column: Column, numbers: NDArray[np.int64] | None) -> None:
        for values in _pieces(column, self._runs):
            if numbers is not None and isinstance(each, LabelField):
                values = np.where(values >= 0, numbers[values.clip(0)], values)
            elif numbers is not None and isinstance(each, MaskField):
                raise OptionError(f"{name}: expected classes of labels or objects, found those of masks. Keep them.")
            write_all(self._files[name], np.ascontiguousarray(values).reshape(-1).view(np.uint8).data)
            each.add_statistics(self._statistics, name, values)

    def _objects(self, name: str, each: ObjectsField, column: RaggedColumn, numbers: NDArray[np.int64] | None) -> None:
        """Objects whose class is gone are left out."""
        lengths = np.diff(column.offsets)[self._piece.rows]
        values = value_runs(column, self._runs)
        labels = np.concatenate([np.empty(0, np.int64), *_pieces(column["labels"], values)]) if each.classes else None
        if numbers is not None and labels is not None:
            labels = numbers[labels]
            if (labels < 0).any():
                keep = labels >= 0
                rows = np.repeat(np.arange(len(lengths)), lengths)[keep]
                lengths, labels = np.bincount(rows, minlength=len(lengths)), labels[keep]
                values = runs_of(np.concatenate([np.arange(a, b) for a, b in values.tolist()])[keep])
        self._offsets(name, lengths)
        for value, part in column.values.items():
            if value == "labels" and labels is not None:
                write_all(self._files[f"{name}/labels"], np.ascontiguousarray(labels).view(np.uint8).data)
            else:
                self._column(f"{name}/{value}", part, values)
        for value, lists in column.lists.items():
            self._table(f"{name}/{value}", lists, values)
        self._per_row(name, column)
        each.add_statistics(self._statistics, name, lengths, {} if labels is None else {"labels": labels})

    def _table(self, name: str, column: RaggedColumn, runs: Runs) -> None:
        for a, b in runs.tolist():
            self._offsets(name, np.diff(column.offsets[a : b + 1]))
        values = value_runs(column, runs)
        for value, part in column.values.items():
            self._column(f"{name}/{value}", part, values)
        for value, lists in column.lists.items():
            self._table(f"{name}/{value}", lists, values)
        self._per_row(name, column, runs)

    def _per_row(self, name: str, column: RaggedColumn, runs: Runs | None = None) -> None:
        for value, part in column.per_row.items():
            if isinstance(part, RaggedColumn):
                self._table(f"{name}/{value}", part, self._runs if runs is None else runs)
            else:
                self._column(f"{name}/{value}", part, self._runs if runs is None else runs)

    def _prefixed(self, name: str, column: RaggedColumn) -> None:
        keys = [f"{self._piece.prefix}{column[row]}".encode() for row in self._piece.rows.tolist()]
        self._offsets(name, np.array([len(key) for key in keys], np.int64))
        write_all(self._files[f"{name}/bytes"], b"".join(keys))

    def _column(self, path: str, column: Column, runs: Runs) -> None:
        for values in _pieces(column, runs):
            write_all(self._files[path], np.ascontiguousarray(values).reshape(-1).view(np.uint8).data)

    def _offsets(self, name: str, lengths: NDArray[np.int64]) -> None:
        ends = self._lengths[name] + np.cumsum(lengths, dtype=np.int64)
        write_all(self._files[f"{name}/offsets"], ends.astype("<i8").tobytes())
        self._lengths[name] += int(lengths.sum())


def runs_of(rows: NDArray[np.int64]) -> Runs:
    """(n, 2) the runs of rows that follow one another.

    >>> runs_of(np.array([3, 4, 5, 9, 2])).tolist()
    [[3, 6], [9, 10], [2, 3]]
    """
    if not len(rows):
        return np.empty((0, 2), np.int64)
    breaks = np.flatnonzero(np.diff(rows) != 1) + 1
    edges = [0, *breaks.tolist(), len(rows)]
    return np.array([(rows[a], rows[b - 1] + 1) for a, b in pairwise(edges)], np.int64)


def value_runs(column: RaggedColumn, runs: Runs) -> Runs:
    """(n, 2) the runs of values that some runs of rows have."""
    return column.offsets[runs].reshape(-1, 2)


def _pieces(column: Column, runs: Runs) -> Iterator[NDArray[Any]]:
    """The rows of runs, some at a time."""
    step = max(1, COPY_NBYTES // max(1, column.spec.row_nbytes))
    if len(runs) > 1 and (runs[:, 1] - runs[:, 0]).mean() < step / 64:  # many short ones: gathered together
        rows = np.concatenate([np.arange(a, b) for a, b in runs.tolist()])
        for start in range(0, len(rows), step):
            yield column.take(rows[start : start + step])
        return
    for first, last in runs.tolist():
        for start in range(first, last, step):
            yield column[start : min(start + step, last)]


def _pooled(pieces: Sequence[Piece]) -> dict[str, Any] | None:
    """Mean and standard deviation of the channels of image files, which are not decoded: those of where they are from.

    Each split counts as often as it has rows here. None where a split does not say, or they do not fit together.
    """
    found = []
    for piece in pieces:
        if not any(isinstance(each, ImageField) for each in piece.store[piece.split].fields.values()):
            return None
        moments = piece.store[piece.split].channel_moments
        if moments is None:
            return None
        found.append((len(piece.rows), *moments))
    if not found or len({(len(mean), scale) for _, mean, _, scale in found}) != 1:
        return None
    weights = np.array([rows for rows, *_ in found], np.float64)
    means, stds = (np.array([each[i] for each in found], np.float64) for i in (1, 2))
    if not weights.sum():
        return None
    mean = np.average(means, axis=0, weights=weights)
    variance = np.average(stds**2 + means**2, axis=0, weights=weights) - mean**2
    return {"mean": mean.tolist(), "std": np.sqrt(variance.clip(0)).tolist(), "scale": found[0][3]}


def opened_for_editing(path: str | os.PathLike[str], notify: OnProgress) -> Store:
    """A store on this disk: of one by URL, all is fetched first."""
    store = open_store(path)
    if store.is_remote:
        store.fetch(lambda done, total: notify(Progress("checksum", done, total)))
        store = open_store(store.path)
    return store
