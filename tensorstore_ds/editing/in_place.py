"""Change a store in place: new shards, and after them the manifest that lists them, in one step.

No file of a shard is changed: a shard with other samples, or with more fields, is a new one with a number of its own.
Those that it replaces stay for readers that have the store open, until the store is changed once more.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tensorstore_ds.conversion.history import with_step
from tensorstore_ds.conversion.result import OnProgress, Progress
from tensorstore_ds.conversion.skipped import MoreSkipped, skipped_bytes, skipped_lines
from tensorstore_ds.durable import partial_of, sync, write_file
from tensorstore_ds.editing.rows import Piece, count_rows, pixels_of, pooled_channels, shards_of, write_shard
from tensorstore_ds.errors import ConversionError
from tensorstore_ds.format.arrays import GROUP, dump_json
from tensorstore_ds.format.joining import Numbers
from tensorstore_ds.format.kinds import ImageField, ObjectsField
from tensorstore_ds.format.kinds.base import ArrayField, Field, first_of_kind
from tensorstore_ds.format.manifest import File, Manifest, Shard, SplitEntry, dump, shard_path
from tensorstore_ds.format.root import change_root
from tensorstore_ds.format.statistics import Statistics, join_summaries
from tensorstore_ds.reading.store import Store
from tensorstore_ds.reading.store_files import SKIPPED

#: A split and a row of it.
Place = tuple[str, int]


@dataclass
class Changes:
    """What becomes of a store.

    Attributes:
        added: for each split rows of that split of the store of new samples, which come to its end.
        replaced: for each split and field, by row, where in the store of known samples its value is taken from.
    """

    added: dict[str, list[int]] = field(default_factory=dict)
    replaced: dict[str, dict[str, dict[int, Place]]] = field(default_factory=dict)

    @property
    def is_empty(self) -> bool:
        """Whether nothing changes."""
        return not self.added and not self.replaced


class InPlace:
    """A store that is changed.

    Args:
        own: the store, which is locked, and the new numbers of its classes.
        sources: the same of the store of ``new`` samples, and of that of ``known`` ones.
        fields: of all of them.
        skipped: what its ``skipped.jsonl`` gets.
    """

    def __init__(
        self,
        own: tuple[Store, Numbers],
        sources: Mapping[str, tuple[Store, Numbers]],
        fields: Mapping[str, Field],
        changes: Changes,
        notify: OnProgress,
        skipped: MoreSkipped,
    ) -> None:
        (self._store, self._numbers), self._sources = own, sources
        self._fields, self._changes, self._notify, self._skipped = fields, changes, notify, skipped
        store, before = self._store, self._store.manifest.fields
        self._reshaped = [n for n, f in fields.items() if n not in before or before[n].arrays != f.arrays]
        self._made: list[Path] = []
        self._done, self._total = 0, sum(map(len, changes.added.values())) + sum(len(store[name]) for name in store)

    def run(self, step: Mapping[str, Any]) -> Manifest:
        """Write what is new, and replace the manifest last.

        Args:
            step: for the provenance: ``command`` and what it did.

        Raises:
            ConversionError: there is something in the store that is not of it.
        """
        store, manifest = self._store, self._store.manifest
        root = store.path / "zarr.json"
        entries, files, before = dict(manifest.splits), dict(manifest.files), root.read_bytes()
        try:
            for name in dict.fromkeys((*store, *self._changes.added)):
                files |= self._split_folder(name)
                entries[name] = self._split(name)
                sync(store.path / name)
            files |= self._skipped_file()
            changed = replace(manifest, fields=self._fields, splits=entries, files=files)
            data = change_root(before, partial(_change, changed, step, self._skipped.counts))
            write_file(root, data)
        except BaseException:
            with suppress(OSError):  # what cannot be removed now is removed by the next call
                if root.read_bytes() == before:  # else what was made belongs to the store
                    for folder in self._made:
                        shutil.rmtree(folder, ignore_errors=True)
                    _cut_skipped(store.path, manifest)
            raise
        return changed

    def _split(self, name: str) -> SplitEntry:
        """A split with what is new of it."""
        before = self._store.manifest.splits.get(name, SplitEntry(()))
        shards, gone, first = list[Shard](), list[int](), 0
        free = max((*before.numbers, *before.replaced), default=-1) + 1
        for place, (shard, number) in enumerate(zip(before.shards, before.numbers, strict=True)):
            rows = np.arange(first, first + shard.rows)
            changed = self._changed(name, rows)
            if changed:
                piece = Piece(self._store, name, rows, self._numbers)
                shards.append(self._write(name, place, free, [piece], changed))
                gone.append(number)
                free += 1
            else:
                shards.append(shard)
                self._advance(shard.rows)
            first += shard.rows
        if added := self._added(name):
            most = max(shard.rows for shard in added.store.manifest.splits[name].shards)
            for group in shards_of([added], max(1, most)):
                shards.append(self._write(name, len(shards), free, group, {}))
                free += 1
        return SplitEntry(tuple(shards), self._statistics(name, before), tuple(gone))

    def _write(
        self, name: str, place: int, number: int, pieces: Sequence[Piece], changed: Mapping[str, Sequence[Piece]]
    ) -> Shard:
        folder = self._store.path / shard_path(name, number)
        self._made.append(folder)  # before anything is in it
        args = folder, pieces, self._fields, self._store, Statistics(), self._advance, self._fields
        shard = write_shard(*args, changed=changed)
        return replace(shard, number=None if number == place else number)

    def _changed(self, name: str, rows: NDArray[np.int64]) -> dict[str, list[Piece]]:
        """The pieces of the fields that are not those of before in some of these rows, which follow one another."""
        replaced = self._changes.replaced.get(name, {})
        first, last = int(rows[0]) if len(rows) else 0, int(rows[-1]) + 1 if len(rows) else 0
        found = {}
        for each in self._fields:
            some = [row for row in replaced.get(each, {}) if first <= row < last]
            if some or each in self._reshaped:
                found[each] = list(self._pieces(name, each, first, last))
        return found

    def _pieces(self, name: str, each: str, first: int, last: int) -> Iterator[Piece]:
        """Where the values of a field come from, for the rows ``[first, last)``."""
        taken = self._changes.replaced.get(name, {}).get(each, {})
        for row in sorted(row for row in taken if first <= row < last):
            if first < row:
                yield Piece(self._store, name, np.arange(first, row), self._numbers)
            split, own = taken[row]
            store, numbers = self._sources["known"]
            yield Piece(store, split, np.array([own]), numbers)
            first = row + 1
        if first < last:
            yield Piece(self._store, name, np.arange(first, last), self._numbers)

    def _statistics(self, name: str, before: SplitEntry) -> dict[str, Any]:
        """Of all samples of a split; of images and masks that stay as they are, from those of before."""
        added, taken = self._added(name), self._changes.replaced.get(name, {})
        counted = {n: f for n, f in self._fields.items() if isinstance(f, ArrayField | ObjectsField)}
        image = first_of_kind(self._fields, ImageField) or ""
        known = dict(before.statistics)
        if before.rows and (taken or self._reshaped):
            again = {n: f for n, f in counted.items() if n != image or n in taken}
            sums = Statistics()
            for each in again:
                sums.add(count_rows(list(self._pieces(name, each, 0, before.rows)), {each: again[each]}))
            channels = known.get("channels")
            if image in taken and image not in again:
                channels = pooled_channels(list(self._pieces(name, image, 0, before.rows)))
            known = {**({"channels": channels} if channels else {}), **sums.summary()}
        if added:
            split = added.store[name]
            channels = split.statistics.get("channels")  # of image files, which are not decoded
            new = {**({"channels": channels} if channels else {}), **count_rows([added], counted).summary()}
            if before.rows:
                own = self._store[name]
                known = join_summaries((known, len(own), pixels_of(own)), (new, len(split), pixels_of(split)))
            else:
                known = new
        for counts, each in (("class_counts", "label"), ("object_counts", "objects")):
            if counts in known and each in self._fields:
                missing = len(self._fields[each].classes) - len(known[counts])
                known[counts] = [*known[counts], *[0] * missing]
        return known

    def _added(self, name: str) -> Piece | None:
        """The rows that come to the end of a split."""
        if not (rows := self._changes.added.get(name)):
            return None
        store, numbers = self._sources["new"]
        return Piece(store, name, np.array(rows, np.int64), numbers)

    def _skipped_file(self) -> dict[str, File]:
        """``skipped.jsonl`` with more lines, behind those that readers of the store as it was go on to see."""
        if not self._skipped.lines:
            return {}
        data = skipped_bytes(self._store) + skipped_lines(self._skipped.lines)
        write_file(self._store.path / SKIPPED, data)
        return {SKIPPED: File(len(data), hashlib.sha256(data).hexdigest())}

    def _advance(self, rows: int) -> None:
        self._done += rows
        self._notify(Progress("copy", self._done, self._total))

    def _split_folder(self, name: str) -> dict[str, File]:
        """The metadata of a split's folder, which is made if it is new."""
        listed = f"{name}/zarr.json"
        if listed in self._store.manifest.files:
            return {}
        folder = self._store.path / name
        if os.path.lexists(folder):
            expected = "expected no such name, found something that is not of the store. Remove it."
            raise ConversionError(f"{folder}: {expected}")
        self._made.append(folder)
        folder.mkdir()
        data = dump_json(GROUP)
        write_file(folder / "zarr.json", data)
        return {listed: File(len(data), hashlib.sha256(data).hexdigest())}


def _change(changed: Manifest, step: Mapping[str, Any], counts: Mapping[str, Any], data: dict[str, Any]) -> None:
    """Change a manifest, as JSON has it; members that this version does not know stay."""
    dumped = dump(changed)
    for name in ("fields", "splits", "files"):
        data[name] = dumped[name]
    data["provenance"] = with_step({**data.get("provenance", {}), **counts}, **step)


def remove_leftovers(path: Path, manifest: Manifest) -> None:
    """Remove what no manifest lists: what an interrupted call has left, and shards that were replaced before."""
    for name in ("zarr.json", SKIPPED):
        partial_of(path / name).unlink(missing_ok=True)
    _cut_skipped(path, manifest)
    for folder in [path / entry.name for entry in os.scandir(path) if entry.is_dir(follow_symlinks=False)]:
        split = manifest.splits.get(folder.name)
        entries = list(os.scandir(folder))
        shards = [entry.path for entry in entries if _is_unlisted(entry, () if split is None else split.numbers)]
        others = {entry.name for entry in entries} - {Path(shard).name for shard in shards}
        if split is None and others <= {"zarr.json", "zarr.json.partial"}:
            shutil.rmtree(folder)
        elif split is not None:
            for shard in shards:
                shutil.rmtree(shard)


def _is_unlisted(entry: os.DirEntry[str], listed: Sequence[int]) -> bool:
    """Whether an entry of a split's folder is a shard that is not listed."""
    number = entry.name.removesuffix(".partial")
    if not entry.is_dir(follow_symlinks=False) or not number.isdecimal() or len(number) < 5:
        return False
    return int(number) not in listed or entry.name != number


def _cut_skipped(path: Path, manifest: Manifest) -> None:
    """Take away the lines of ``skipped.jsonl`` that the manifest does not list."""
    if SKIPPED not in manifest.files:
        (path / SKIPPED).unlink(missing_ok=True)
    elif (path / SKIPPED).is_file() and (path / SKIPPED).stat().st_size > manifest.files[SKIPPED].size:
        os.truncate(path / SKIPPED, manifest.files[SKIPPED].size)
