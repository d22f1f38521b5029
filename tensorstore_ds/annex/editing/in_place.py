"""Change a store in place: write new shards, then replace the manifest that lists them in one step.

No file of a shard is changed: a shard with other samples or fields gets a new number. Files that stay equal are
hard-linked where the file system supports it. Replaced shards stay for readers that have the store open, until the next
change. `erase` and `drop_fields` remove them at once.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import count, pairwise, takewhile
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from tensorstore_ds import words
from tensorstore_ds.annex.editing.rows import (
    FieldWriter,
    Piece,
    ShardRows,
    StoreRows,
    count_changed,
    count_rows,
    reading_progress,
    shards_of,
    weight_of,
)
from tensorstore_ds.annex.editing.skipped import MoreSkipped, skipped_bytes
from tensorstore_ds.conversion.build import one_line_for_failures, skipped_lines
from tensorstore_ds.conversion.history import note_state, with_step
from tensorstore_ds.conversion.result import OnProgress, Progress, Summary
from tensorstore_ds.durable import locked_folder, own_nbytes, partial_of, sync, write_file
from tensorstore_ds.errors import ConversionError, FormatError, OptionError, OutputError, Problem
from tensorstore_ds.format.arrays import CHUNK_SIZE, GROUP, dump_json
from tensorstore_ds.format.joining import Numbers
from tensorstore_ds.format.kinds.base import Field
from tensorstore_ds.format.manifest import File, Manifest, Shard, SplitEntry, dump, shard_path
from tensorstore_ds.format.root import change_root, parse_root
from tensorstore_ds.format.statistics import join_summaries
from tensorstore_ds.reading.store import Store, open as open_store
from tensorstore_ds.reading.store_files import SKIPPED
from tensorstore_ds.reading.verification import require_whole_shards
from tensorstore_ds.regular_files import tidied
from tensorstore_ds.remote.location import is_url

#: A split and a row of it.
Place = tuple[str, int]
#: What ``skipped.jsonl`` is to be, while its lines are removed. Until then the manifest lists both, and of
#: ``skipped.jsonl`` only the lines that stay at its beginning: each state of the disk is a valid store.
REST = "skipped-rest"
_NO_ROWS = np.empty(0, np.int64)

S = TypeVar("S", bound=Summary)


class Replaced:
    """Rows of a split in which some fields get the values of rows of another store, `others` by split."""

    def __init__(self, rows: int, others: Sequence[Piece]) -> None:
        self.others = others
        self.owners = np.full(rows, -1, np.int32)  # numbers of these, -1 for rows that stay
        self.rows = np.zeros(rows, np.int64)  # rows there
        self.fields = dict[str, NDArray[np.bool_]]()  # which rows get each field

    def put(self, row: int, place: tuple[int, int], fields: Sequence[str]) -> None:
        """Take these fields of a row from a split, by number, and row of the other store."""
        self.owners[row], self.rows[row] = place
        for name in fields:
            self.fields.setdefault(name, np.zeros(len(self.rows), np.bool_))[row] = True

    def places(self, name: str) -> Iterator[Place]:
        """Sources of the values of a field."""
        for row in np.flatnonzero(self.fields.get(name, ())).tolist():
            yield self.others[self.owners[row]].split, int(self.rows[row])


@dataclass(frozen=True)
class Patched:
    """Rows of a store in which a field gets the `replaced` values."""

    own: Piece
    replaced: Replaced
    name: str

    def __len__(self) -> int:
        return len(self.own)

    @property
    def taken(self) -> NDArray[np.bool_]:
        """(n,) which rows get a new value."""
        return self.replaced.fields[self.name][self.own.rows]

    def part(self, start: int, stop: int) -> Patched:
        """Rows ``[start, stop)`` of these."""
        return replace(self, own=self.own.part(start, stop))

    def pieces(self, *, all_rows: bool = True) -> Iterator[Piece]:
        """These rows in order, as pieces of both stores; without `all_rows`, only the rows of the other store."""
        rows, replaced = self.own.rows, self.replaced
        owners = np.where(self.taken, replaced.owners[rows], -1)
        for first, last in pairwise([0, *(np.flatnonzero(np.diff(owners)) + 1).tolist(), len(owners)]):
            if owners[first] >= 0:
                yield replace(replaced.others[owners[first]], rows=replaced.rows[rows[first:last]])
            elif all_rows:
                yield self.own.part(first, last)

    def append(self, writer: FieldWriter, names: Iterable[str]) -> None:
        """Write the values of the field."""
        for piece in self.pieces():
            piece.append(writer, names)


@dataclass
class Changes:
    """The changes of a store, by split. A split with `erased` rows has no `replaced` values."""

    added: dict[str, Piece] = field(default_factory=dict)  #: rows to append
    replaced: dict[str, Replaced] = field(default_factory=dict)  #: sources of new values
    erased: dict[str, NDArray[np.int64]] = field(default_factory=dict)  #: sorted rows to remove
    given: Mapping[str, Mapping[str, StoreRows]] = field(default_factory=dict)  #: values of all rows, by field first

    @property
    def is_empty(self) -> bool:
        """Whether nothing changes."""
        return not self.added and not self.replaced and not self.erased and not self.given


@dataclass
class InPlace:
    """A store that is being changed; raises `FormatError` if a file whose values are written again is damaged."""

    store: Store
    fields: Mapping[str, Field]  #: after the change
    changes: Changes
    notify: OnProgress
    skipped: MoreSkipped = field(default_factory=MoreSkipped)
    numbers: Numbers = field(default_factory=dict)  #: of the classes of the store

    def __post_init__(self) -> None:
        before = self.store.manifest.fields
        self._reshaped = [n for n, f in self.fields.items() if n not in before or before[n].arrays != f.arrays]
        self._drops = not before.keys() <= self.fields.keys()
        self._made: list[Path] = []
        self._total = sum(map(len, self.changes.added.values())) + sum(len(self.store[name]) for name in self.store)
        self._done = 0
        advice = "Nothing was changed: a damaged shard would get new checksums. "
        advice += "Copy the store again, or convert it anew."
        require_whole_shards(self.store, dict(self._rewritten()), advice, reading_progress(self.notify))

    def run(self, step: Mapping[str, Any], edited: Callable[[dict[str, Any]], dict[str, Any]] = dict) -> Manifest:
        """Write the new files, and replace the manifest last, with `step` in the provenance that `edited` returns."""
        store, manifest = self.store, self.store.manifest
        root = store.path / "zarr.json"
        entries, files, before = dict(manifest.splits), dict(manifest.files), root.read_bytes()
        try:
            for name in dict.fromkeys((*store, *self.changes.added)):
                files |= self._split_folder(name)
                entries[name] = self._split(name)
                sync(store.path / name)
            files |= self._skipped_file()
            changed = replace(manifest, fields=self.fields, splits=entries, files=files)
            counts = self.skipped.counts
            data = change_root(
                before,
                partial(
                    _change,
                    changed,
                    lambda known: with_step({**edited(known), **counts}, **step, before=[store.sha256]),
                ),
            )
            parse_root(data)  # never write a manifest that cannot be opened
            write_file(root, data)
        except BaseException:
            with suppress(OSError):  # the next call removes the rest
                if root.read_bytes() == before:  # else the new files belong to the store
                    for folder in self._made:
                        shutil.rmtree(folder, ignore_errors=True)
                    _cut_skipped(store.path, manifest)
                    _remove_rest(store.path, manifest)
            raise
        return changed

    def _rewritten(self) -> Iterator[tuple[tuple[str, int], list[str]]]:
        """Each shard, as split and position, with rewritten values, and the fields of these."""
        for name in self.store:
            for index, shard in enumerate(self._shards(name)):
                if shard is not None and len(shard):
                    known = {*shard.kept(self.fields, self.store.layout).names, *self._given(name)}
                    if read := [each for each in self.fields if each not in known]:
                        yield (name, index), read

    def _shards(self, name: str) -> Iterator[ShardRows | None]:
        """The rows that replace each shard of a split; None for a shard that stays."""
        own = self._own(name)
        sources, erased = self._rows_of(own), self.changes.erased.get(name, _NO_ROWS)
        for first, last in pairwise(self.store[name].starts.tolist()):
            gone = erased[slice(*erased.searchsorted([first, last]))]
            rows = {each: source.part(first, last) for each, source in sources.items()}
            changed = {
                each: some
                for each, some in rows.items()
                if not isinstance(some, Patched) or some.taken.any() or each in self._reshaped
            }
            if changed or self._drops or len(gone):
                kept = np.delete(own.rows[first:last], gone - first)
                yield ShardRows([replace(own, rows=kept)], changed)
            else:
                yield None

    def _rows_of(self, own: Piece) -> dict[str, StoreRows]:
        """By field with new values or arrays, the rows of a split after the change."""
        found: dict[str, StoreRows] = dict.fromkeys(self._reshaped, own) | self._given(own.split)
        if (replaced := self.changes.replaced.get(own.split)) is not None:
            found |= {each: Patched(own, replaced, each) for each in replaced.fields}
        return found

    def _given(self, name: str) -> dict[str, StoreRows]:
        """The given rows of a split, by field."""
        return {each: given[name] for each, given in self.changes.given.items() if name in given}

    def _own(self, name: str) -> Piece:
        """All rows of a split before the change."""
        return Piece(self.store, name, np.arange(len(self.store[name])), self.numbers)

    def _split(self, name: str) -> SplitEntry:
        """Metadata of a split with its changes."""
        before = self.store.manifest.splits.get(name, SplitEntry(()))
        shards, gone = list[Shard](), list[int]()
        numbers = count(max((*before.numbers, *before.replaced), default=-1) + 1)
        after = self._shards(name) if before.shards else ()
        for shard, number, changed in zip(before.shards, before.numbers, after, strict=True):
            if changed is None:
                shards.append(replace(shard, number=None if number == len(shards) else number))
            else:
                gone.append(number)
                if len(changed):
                    shards.append(self._write(name, len(shards), next(numbers), changed))
            self._advance(shard.rows - len(changed or ()))
        if added := self.changes.added.get(name):
            most = max(shard.rows for shard in added.store.manifest.splits[name].shards)
            for group in shards_of([added], max(1, most)):
                shards.append(self._write(name, len(shards), next(numbers), group))
        entry = SplitEntry(tuple(shards), self._statistics(name, before), tuple(gone))
        # numbers are never reused, not even that of an emptied last shard
        last = max((*entry.numbers, *gone), default=-1)
        there = (n for n in before.replaced if n > last or (self.store.path / shard_path(name, n)).is_dir())
        return replace(entry, replaced=(*gone, *there))

    def _write(self, name: str, place: int, number: int, rows: ShardRows) -> Shard:
        folder = self.store.path / shard_path(name, number)
        self._made.append(folder)  # before anything is in it
        shard, _ = rows.write(folder, self.fields, self.store.layout, self._advance, self.fields)
        return replace(shard, number=None if number == place else number)

    def _advance(self, rows: int) -> None:
        self._done += rows
        self.notify(Progress("copy", self._done, self._total))

    def _statistics(self, name: str, before: SplitEntry) -> dict[str, Any]:
        """Statistics of all samples of a split; a field without changes is not counted again."""
        added, own = self.changes.added.get(name), self._own(name) if before.rows else None
        sources = self._rows_of(own) if own else {}
        found: dict[str, Any] = {}
        for each, kind in self.fields.items():
            known = before.statistics.get(each)
            if own and (each in sources or name in self.changes.erased):
                known = self._counted(known, own, each, sources.get(each))
            if added:
                parts = [(known, weight_of(own, each, kind))] if own else []
                parts += [(count_rows([added], each, kind), weight_of(added, each, kind))]
                known = join_summaries(kind.kind, parts)
            if isinstance(known, Mapping) and isinstance(known.get("class_counts"), list):
                missing = len(kind.classes) - len(known["class_counts"])
                known = {**known, "class_counts": [*known["class_counts"], *[0] * missing]}
            found |= {each: known} if known else {}
        return found

    def _counted(self, known: object, own: Piece, each: str, source: StoreRows | None) -> dict[str, Any]:
        """Statistics of a field with new values, from a `source`, or erased rows."""
        field, gone = self.fields[each], self.changes.erased.get(own.split)
        rows = own if source is None else source
        after: Iterable[StoreRows] = [rows if gone is None else replace(own, rows=np.delete(own.rows, gone))]
        come: Iterable[StoreRows] = ()
        if isinstance(source, Patched):
            gone, come, after = np.flatnonzero(source.taken), source.pieces(all_rows=False), source.pieces()
        if gone is not None and (source is None or isinstance(source, Patched)) and each not in self._reshaped:
            found = count_changed(known, own, replace(own, rows=gone), come, each, field)
            if found is not None:
                return found
        return count_rows(after, each, field)

    def _skipped_file(self) -> dict[str, File]:
        """Write ``skipped.jsonl`` with more lines after the listed ones, which readers of the old store still use.

        To remove lines, list only those before the first removed one, and keep the others in a separate file.
        """
        if self.skipped.left is not None:
            left, before = self.skipped.left, skipped_bytes(self.store)
            lines = zip(before.splitlines(keepends=True), left.splitlines(keepends=True), strict=False)
            first = b"".join(line for line, _ in takewhile(lambda pair: pair[0] == pair[1], lines))
            if first == left:
                return {SKIPPED: _listed(left)}
            write_file(self.store.path / REST, left)
            return {SKIPPED: _listed(first), REST: _listed(left)}
        if not self.skipped.lines:
            return {}
        data = skipped_bytes(self.store) + skipped_lines(self.skipped.lines)
        write_file(self.store.path / SKIPPED, data)
        return {SKIPPED: _listed(data)}

    def _split_folder(self, name: str) -> dict[str, File]:
        """Metadata of a split's folder, which is created if it is new."""
        listed = f"{name}/zarr.json"
        if listed in self.store.manifest.files:
            return {}
        folder = self.store.path / name
        if os.path.lexists(folder):
            expected = "expected no such name, found something that is not of the store. Remove it."
            raise ConversionError(f"{folder}: {expected}")
        self._made.append(folder)
        folder.mkdir()
        data = dump_json(GROUP)
        write_file(folder / "zarr.json", data)
        return {listed: _listed(data)}


def _listed(data: bytes) -> File:
    return File(len(data), hashlib.sha256(data).hexdigest())


def _change(changed: Manifest, provenance: Callable[[dict[str, Any]], dict[str, Any]], data: dict[str, Any]) -> None:
    """Change a JSON manifest; members that this version does not know stay."""
    dumped = dump(changed)
    for name in ("fields", "splits", "files"):
        data[name] = dumped[name]
    data["provenance"] = provenance(data.get("provenance", {}))


def check_in_place(store: str | os.PathLike[str], what: str) -> Path:
    """Path of a store that can be changed in place; `what` is for the advice, such as "erase the samples"."""
    if is_url(store):
        advice = f"Pull it, {what}, and push it again."
        raise OptionError(f"{words.shown_path(store)}: expected a store on this disk, found a URL. {advice}")
    path = tidied(store)
    if path.is_file():
        opened = open_store(path)  # says what is wrong if it is no store
        advice = f"Unpack it with tsds unpack, {what}, and pack it again."
        raise OptionError(f"{opened.path}: expected a store that is a folder, found a packed one. {advice}")
    with one_line_for_failures(path, is_unchanged=lambda: True):
        if path.is_dir() and (chunk_size := open_store(path).manifest.chunk_size) != CHUNK_SIZE:
            raise OptionError(f"{path}: expected chunks of {CHUNK_SIZE} bytes, found {chunk_size}. Repack the store.")
    return path


@contextmanager
def changing(store: str | os.PathLike[str], what: str) -> Iterator[Store]:
    """Lock a store and open it to change it in place; `what` as in `check_in_place`."""
    path = check_in_place(store, what)
    root = path / "zarr.json"
    with locked(path):
        with one_line_for_failures(path, is_unchanged=lambda: True):
            opened, before = open_store(path), root.read_bytes()
            opened._check_rewritable()
        with one_line_for_failures(path, is_unchanged=lambda: _has(root, before)):
            yield opened


def _has(file: Path, data: bytes) -> bool:
    """Whether a file has these bytes; False if it cannot be read."""
    with suppress(OSError):
        return file.read_bytes() == data
    return False


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the lock of a store; raises `ConversionError` if another process has it, `OptionError` if it is packed."""
    if not path.is_dir():
        open_store(path)  # says what is wrong with it
        raise OptionError(f"{path}: expected a store that is a folder, found a packed one. Unpack it with tsds unpack.")
    with locked_folder(path) as is_ours:
        if not is_ours:
            raise ConversionError(f"{path}: another process changes this store now. Wait until it has ended.")
        yield


@dataclass(frozen=True, slots=True)
class Leftovers:
    """Number of removed shards that no manifest lists, and their bytes."""

    shards: int = 0
    nbytes: int = 0

    def __add__(self, other: Leftovers) -> Leftovers:
        return Leftovers(self.shards + other.shards, self.nbytes + other.nbytes)


def summary_of(kind: type[S], path: Path, manifest: Manifest, began: float, notes: Iterable[str], **more: Any) -> S:
    """The summary of a change that began at this `time.monotonic` and led to this manifest. No file is read."""
    rows = {name: entry.rows for name, entry in manifest.splits.items()}
    return kind(path, rows, manifest.nbytes, time.monotonic() - began, notes=tuple(notes), **more)


def remove_leftovers(store: Store, *, all_replaced: bool = True) -> tuple[Store, Leftovers]:
    """Remove unlisted files, and return the store, reopened if its manifest was replaced, and what was removed.

    With `all_replaced=False`, replaced shards that take no room stay, for readers that opened the store before.
    """
    path = store.path
    if REST in store.manifest.files:
        _take_rest(path, store.manifest)
        store = open_store(path)
    manifest, removed = store.manifest, Leftovers()
    for name in ("zarr.json", SKIPPED, REST):
        partial_of(path / name).unlink(missing_ok=True)
    _cut_skipped(path, manifest)
    _remove_rest(path, manifest)
    for folder in [path / entry.name for entry in os.scandir(path) if entry.is_dir(follow_symlinks=False)]:
        split = manifest.splits.get(folder.name)
        entries = list(os.scandir(folder))
        listed = set[int]() if split is None else {*split.numbers}
        if split is not None and not all_replaced:
            listed |= {n for n in split.replaced if not own_nbytes(path / shard_path(folder.name, n), "zarr.json")}
        shards = [entry.path for entry in entries if _is_unlisted(entry, listed)]
        others = {entry.name for entry in entries} - {Path(shard).name for shard in shards}
        if split is None and others <= {"zarr.json", "zarr.json.partial"}:
            shutil.rmtree(folder)
        elif split is not None:
            for shard in shards:
                removed += Leftovers(1, _remove_shard(Path(shard)))
            if shards:
                sync(folder)
    return store, removed


def removed_after(path: Path, done: str) -> tuple[Store, Leftovers]:
    """Reopen a changed store, and remove what it does not list; if that fails, the error reports what is `done`."""
    try:
        store, removed = remove_leftovers(open_store(path))
        sync(path)
    except (OSError, OutputError, FormatError) as error:
        name = getattr(error, "filename", None)
        reason = f"{name}: {error.strerror}" if isinstance(error, OSError) and isinstance(name, str) else str(error)
        what = f"{done}, but their old files could not all be removed ({reason})"
        raise ConversionError(f"{path}: {what}. Run the same command again to remove them.") from error
    return store, removed


def _remove_shard(folder: Path) -> int:
    """Remove a shard and return its bytes. Its list of files goes first, which tells readers that it is gone."""
    nbytes = own_nbytes(folder)
    (folder / "zarr.json").unlink(missing_ok=True)
    shutil.rmtree(folder)
    return nbytes


def _take_rest(path: Path, manifest: Manifest) -> None:
    """Replace ``skipped.jsonl`` with the lines of `REST`."""
    data = (path / REST).read_bytes()
    if _listed(data) != manifest.files[REST]:
        raise FormatError(
            Problem(REST, "checksum", "expected the bytes that are listed, found others."), "Copy it again."
        )
    write_file(path / SKIPPED, data)

    root = (path / "zarr.json").read_bytes()

    def change(data: dict[str, Any]) -> None:
        data["files"][SKIPPED] = data["files"].pop(REST)
        note_state(data["provenance"], parse_root(root)[1])

    write_file(path / "zarr.json", change_root(root, change))


def _remove_rest(path: Path, manifest: Manifest) -> None:
    if REST not in manifest.files:
        (path / REST).unlink(missing_ok=True)


def _is_unlisted(entry: os.DirEntry[str], listed: Set[int]) -> bool:
    """Whether an entry of a split's folder is an unlisted shard."""
    number = entry.name.removesuffix(".partial")
    if not entry.is_dir(follow_symlinks=False) or not number.isdecimal() or len(number) < 5:
        return False
    return int(number) not in listed or entry.name != number


def _cut_skipped(path: Path, manifest: Manifest) -> None:
    """Remove the lines of ``skipped.jsonl`` that the manifest does not list."""
    if SKIPPED not in manifest.files:
        (path / SKIPPED).unlink(missing_ok=True)
    elif (path / SKIPPED).is_file() and (path / SKIPPED).stat().st_size > manifest.files[SKIPPED].size:
        os.truncate(path / SKIPPED, manifest.files[SKIPPED].size)
        sync(path / SKIPPED)
