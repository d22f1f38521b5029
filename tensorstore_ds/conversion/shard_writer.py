"""Write a shard: rows into place, then metadata and indices, synced, checked in, renamed.

A shard is written in its own folder, ``NAME.partial``, and appears under its name when it is complete. The process that
converts a block writes its rows of fixed fields into place; values of tables are appended in order.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import shutil
import uuid
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import BinaryIO

import numpy as np

from tensorstore_ds.conversion.blocks import BlockResult, data_of, raw_path
from tensorstore_ds.durable import sync, write_all
from tensorstore_ds.errors import ConversionError, Problem
from tensorstore_ds.format.arrays import CHUNK_SIZE, GROUP, ArrayGeometry, array_paths, dump_json, shard_arrays
from tensorstore_ds.format.chunks import compress_array, seal_array
from tensorstore_ds.format.kinds.base import ArrayField, Field, of_kind
from tensorstore_ds.format.manifest import File, Shard
from tensorstore_ds.format.root import dump_listing
from tensorstore_ds.format.schema import Layout
from tensorstore_ds.format.statistics import Statistics
from tensorstore_ds.machine import usable_cores

COPY_NBYTES = 8 * 1024**2
#: Attempts to rename, because other processes may put the same shard into place meanwhile.
_ATTEMPTS = 20


@dataclass(frozen=True, slots=True)
class FinishedShard:
    """A shard on disk, and its record."""

    shard: Shard
    fields: Mapping[str, Field]  #: of the store
    statistics: Statistics
    skipped: tuple[Problem, ...]  #: samples left out and boxes dropped
    samples: int  #: how many went into it, with those that were left out
    #: Digest of its origin. If it is equal, the shard need not be made again. Empty if unknown.
    origin: str
    left_out: tuple[Problem, ...] = ()  #: what the samples have that is not stored
    first: int = 0  #: samples of its split that came before it, where they come one at a time
    run: str = ""  #: the run that has noted it last, as `Build.run`


class FinishedSplit:
    """Sums over the finished shards of a split. The records of the shards take much more memory."""

    def __init__(self) -> None:
        self.shards: list[Shard] = []
        self.fields: Mapping[str, Field] = {}  #: of the shards, which have the same
        self.statistics = Statistics()
        self.skipped: list[Problem] = []
        self.left_out: dict[Problem, None] = {}

    def add(self, shard: FinishedShard) -> None:
        """Add the next shard."""
        self.shards.append(shard.shard)
        self.fields = shard.fields
        self.statistics.add(shard.statistics)
        self.skipped += shard.skipped
        self.left_out.update(dict.fromkeys(shard.left_out))


class ShardWriter:
    """One shard, written in `partial` until it appears as `directory`; a context manager that closes its files.

    `partial` is a folder without other writers, perhaps on another disk; None takes one next to `directory`.
    """

    def __init__(self, directory: Path, fields: Mapping[str, Field], partial: Path | None = None) -> None:
        self.directory = directory
        self.fields = fields
        self.partial = partial or directory.with_name(directory.name + ".partial")
        self._files: dict[str, BinaryIO] = {}
        self._lengths = {group: 0 for name, field in fields.items() for group in field.groups(name)}
        self._runs: list[tuple[int, int]] = []
        self._statistics = Statistics()
        self._skipped: list[Problem] = []
        self._left_out: dict[Problem, None] = {}

    def __enter__(self) -> ShardWriter:
        """Create the folder and the empty files of all arrays, after removing those of an earlier attempt."""
        if self.partial.exists():
            shutil.rmtree(self.partial)
        self.directory.parent.mkdir(exist_ok=True)  # not what is above: a work folder that is gone stays away
        self.partial.mkdir()
        for name, field in self.fields.items():
            for path in array_paths(name, field):
                target = raw_path(self.partial, path)
                target.parent.mkdir(parents=True, exist_ok=True)
                if field.groups(name):
                    # Without a buffer, which a forked child would write when it ends.
                    self._files[path] = target.open("wb", buffering=0)
                else:
                    target.touch()
            for group in field.groups(name):
                write_all(self._files[f"{group}/offsets"], bytes(8))
        return self

    def __exit__(self, *error: object) -> None:
        for file in self._files.values():
            file.close()

    def append(self, block: BlockResult) -> None:
        """Add a block, in order; skipped samples of earlier blocks may have left a gap."""
        self._runs.append((block.first_row, block.rows))
        self._statistics.add(block.statistics)
        self._skipped += block.skipped
        self._left_out.update(dict.fromkeys(block.left_out))
        for name, (lengths, values) in block.tables.items():
            ends = self._lengths[name] + np.cumsum(lengths, dtype=np.int64)
            write_all(self._files[f"{name}/offsets"], ends.astype("<i8").tobytes())
            for value, array in values.items():
                for data in data_of(array):
                    write_all(self._files[f"{name}/{value}"], data)
            self._lengths[name] += int(lengths.sum())

    def finish(
        self, layout: Layout, samples: int, origin: str, lengths: Mapping[str, int] = MappingProxyType({})
    ) -> FinishedShard:
        """Complete the shard, sync it and let it appear; `lengths` are those of tables that were put into place."""
        self.__exit__()
        self._lengths |= lengths
        for name, field in of_kind(self.fields, ArrayField).items():
            self._close_gaps(raw_path(self.partial, name), field.spec.row_nbytes)
        rows = sum(n for _, n in self._runs)
        shard = complete_shard(self.partial, self.fields, rows, self._lengths, layout, CHUNK_SIZE)
        put_folder(self.partial, self.directory)
        skipped, left_out = tuple(self._skipped), tuple(self._left_out)
        return FinishedShard(shard, self.fields, self._statistics, skipped, samples, origin, left_out)

    def _close_gaps(self, path: Path, row_nbytes: int) -> None:
        """Move blocks down over planned rows that were skipped."""
        target = 0
        with path.open("r+b") as file:
            for first_row, rows in self._runs:
                source, nbytes = first_row * row_nbytes, rows * row_nbytes
                for done in range(0, nbytes if source != target else 0, COPY_NBYTES):
                    file.seek(source + done)
                    data = file.read(min(COPY_NBYTES, nbytes - done))
                    file.seek(target + done)
                    file.write(data)
                target += nbytes
            file.truncate(target)


def complete_shard(
    directory: Path,
    fields: Mapping[str, Field],
    rows: int,
    lengths: Mapping[str, int],
    layout: Layout,
    chunk_size: int,
    digests: Mapping[str, hashlib._Hash] = MappingProxyType({}),
    in_place: Mapping[str, str] = MappingProxyType({}),
) -> Shard:
    """Make a shard of a folder with the bytes of all arrays, and sync it.

    `in_place` has the SHA-256 of complete data files, by path. `digests` has the SHA-256 of arrays of the layout
    `memmap` whose files need not be read again.
    """
    for name, field in fields.items():
        for group in field.groups(name):
            (directory / group / "zarr.json").write_bytes(dump_json(GROUP))
    known = dict(in_place)
    for array, geometry in shard_arrays(fields, rows, lengths, layout, chunk_size).items():
        (directory / array / "zarr.json").write_bytes(geometry.metadata_bytes())
        data_file = f"{array}/{geometry.data_path}"
        if data_file in in_place or not (geometry.rows or raw_path(directory, array).exists()):
            continue
        tail = _put_in_place(raw_path(directory, array), directory / array, geometry)
        if array in digests and geometry.rows:
            digests[array].update(tail)
            known[data_file] = digests[array].hexdigest()
    files = check_in(directory, known)
    listing = directory / "zarr.json"
    listing.write_bytes(dump_listing(files))
    own = check_in_file(listing)
    sync(directory)
    return Shard(rows, dict(lengths), own.size + sum(file.size for file in files.values()), own.sha256)


def _put_in_place(raw: Path, directory: Path, geometry: ArrayGeometry) -> bytes:
    """Turn the file of an array's bytes into its data file; returns the data that follow the bytes, if uncompressed."""
    if (found := raw.stat().st_size) != geometry.nbytes:  # it would be cut, or filled up with zeros
        raise ConversionError(f"{raw.parent}: expected {geometry.nbytes:,} bytes, found {found:,}. Check the source.")
    if geometry.rows == 0:
        raw.unlink()
        return b""
    target = directory / geometry.data_path
    target.parent.mkdir(parents=True, exist_ok=True)
    if geometry.layout == "zarr":
        compress_array(raw, target, geometry)
        raw.unlink()
        return b""
    tail = seal_array(raw, geometry)
    raw.rename(target)
    return tail


def put_folder(folder: Path, place: Path) -> None:
    """Move a synced folder to its place, also across disks. Of equal folders of several processes, one remains."""
    for _ in range(_ATTEMPTS):
        try:
            folder.rename(place)
            break
        except OSError as error:
            if error.errno == errno.EXDEV:
                folder = _move_beside(folder, place)
            elif error.errno in (errno.ENOTEMPTY, errno.EEXIST):
                earlier = place.with_name(f"{place.name}.{uuid.uuid4().hex}.partial")
                with contextlib.suppress(FileNotFoundError):  # another process has moved it away
                    place.rename(earlier)
                    shutil.rmtree(earlier)
            else:
                raise
    else:
        raise OSError(errno.EEXIST, "other processes write this shard again and again", str(place))
    sync(place.parent)


def _move_beside(folder: Path, place: Path) -> Path:
    """Move a folder to the disk of its place, and sync it there."""
    beside = place.with_name(f"{place.name}.{uuid.uuid4().hex}.partial")
    try:
        shutil.copytree(folder, beside, copy_function=shutil.copyfile)
        for path in (*beside.rglob("*"), beside):
            sync(path)
    except BaseException:
        shutil.rmtree(beside, ignore_errors=True)
        raise
    shutil.rmtree(folder)
    return beside


# --- on disk for good -------------------------------------------------------------------------------------------


def check_in(directory: Path, known: Mapping[str, str] = MappingProxyType({})) -> dict[str, File]:
    """Sync every file and directory below `directory`; size and SHA-256 (`known`, or read) of each by its path."""
    inside = sorted(directory.rglob("*"))
    files = {path.relative_to(directory).as_posix(): path for path in inside if path.is_file()}
    with ThreadPoolExecutor(usable_cores()) as threads:  # hashing and syncing release the GIL
        checked_in = list(threads.map(lambda name: check_in_file(files[name], known.get(name)), files))
    for path in (*(path for path in inside if path.is_dir()), directory):
        sync(path)
    return dict(zip(files, checked_in, strict=True))


def check_in_file(path: Path, sha256: str | None = None) -> File:
    """Sync a file, and return its size and SHA-256, which may be known."""
    sync(path)
    if sha256 is not None:
        return File(path.stat().st_size, sha256)
    with path.open("rb", buffering=0) as file:
        return File(path.stat().st_size, hashlib.file_digest(file, "sha256").hexdigest())
