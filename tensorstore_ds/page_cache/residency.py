"""Measure which bytes of a store are in memory, whether all of them fit, and drop them.

"In memory" means in the operating system's page cache, which all processes of a machine share. Linux can report it. On
other systems the result is None, with the reason.
"""

from __future__ import annotations

import errno
import mmap
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import IO, NamedTuple

from tensorstore_ds.errors import ResidencyError
from tensorstore_ds.format.manifest import File
from tensorstore_ds.machine import memory_limit, memory_limits
from tensorstore_ds.options import unknown_name
from tensorstore_ds.page_cache.system_calls import resident_nbytes
from tensorstore_ds.reading import checks
from tensorstore_ds.reading.store import Split, Store
from tensorstore_ds.reading.store_files import open_file, size_of, start_of

#: One name of a split or field, or several. None means all.
Names = str | Sequence[str] | None


@dataclass(frozen=True, slots=True)
class Residency:
    """The bytes of a column that are in memory."""

    nbytes: int  #: size of the column's files in bytes
    resident: int | None  #: bytes in the page cache, in whole pages, at most `nbytes`; None if unknown
    reason: str = ""  #: reason why `resident` is unknown, or empty

    @property
    def share(self) -> float | None:
        """The share of the column that is in memory, in [0, 1], or None if unknown."""
        return None if self.resident is None else self.resident / self.nbytes if self.nbytes else 1.0


@dataclass(frozen=True, slots=True)
class Eviction:
    """Result of `evict`, the bytes in memory before and after it, by column."""

    before: Mapping[str, Residency]  #: `residency` before
    after: Mapping[str, Residency]  #: `residency` after; a process has mapped or locked the remaining bytes

    @property
    def dropped(self) -> int | None:
        """Number of bytes that were dropped from memory, or None if unknown."""
        before, left = total_residency(self.before).resident, self.left
        return None if before is None or left is None else max(0, before - left)

    @property
    def left(self) -> int | None:
        """Number of bytes that are still in memory, or None if unknown."""
        return total_residency(self.after).resident


class DataFile(NamedTuple):
    """A file with a column's bytes: its path relative to the store, and its size in the manifest."""

    path: str
    nbytes: int


def residency(store: Store, *, splits: Names = None, fields: Names = None) -> dict[str, Residency]:
    """Measure how much of each column is in memory. No data is read.

    >>> store = tsds.open("photos.tsds")
    >>> found = tsds.residency(store, fields="image")
    >>> list(found)
    ['train/image', 'val/image']
    >>> found["train/image"].nbytes  # resident: the bytes in memory, or None with a reason
    24600

    Args:
        store: an open store.
        splits, fields: one name, or several names. None takes all.

    Returns:
        A dict by the path of the column, such as ``train/image``.

    Raises:
        OptionError: the store has no such split or field.
        FormatError: a file is missing, or is a symbolic link.
    """
    return residency_of(store, select_columns(store, splits, fields))


def residency_of(store: Store, columns: Iterable[tuple[str, str]]) -> dict[str, Residency]:
    """Measure these (split, field) columns."""
    found = {}
    for split, field in columns:
        nbytes = resident = 0
        reason = "" if sys.platform == "linux" else f"not available on {sys.platform}"
        for path, listed in data_files(store, split, field):
            if is_missing(store, path):
                nbytes += listed
                continue
            with _open_kept(store, path) as file:
                size = size_of(file)
                nbytes += size
                try:
                    resident += 0 if reason else min(resident_nbytes(file.fileno(), size, start_of(file)), size)
                except OSError as error:
                    reason = f"the system does not tell: {error.strerror}"
        found[f"{split}/{field}"] = Residency(nbytes, None if reason else resident, reason)
    return found


def total_residency(columns: Mapping[str, Residency]) -> Residency:
    """The sum of several columns; unknown if one of them is.

    >>> total_residency({"train/label": Residency(80, 80), "train/image": Residency(720, 120)}).share
    0.25
    """
    nbytes = sum(column.nbytes for column in columns.values())
    for column in columns.values():
        if column.resident is None:
            return Residency(nbytes, None, column.reason)
    return Residency(nbytes, sum(column.resident or 0 for column in columns.values()))


def fits(store: Store | int, *, splits: Names = None, fields: Names = None) -> bool:
    """Return whether this process can hold a store, or a number of bytes, in memory or in the page cache.

    Bytes of the store that are in memory already count as fitting. `memory_limit` returns the number of bytes that are
    available, and `memory_limits` shows which limit applies.

    >>> tsds.page_cache.fits(tsds.open("photos.tsds"))
    True
    >>> tsds.page_cache.fits(10**18)
    False

    Args:
        store: an open store, or a number of bytes.
        splits, fields: one name, or several names, of a store. None takes all.

    Raises:
        OptionError: the store has no such split or field.
    """
    if not isinstance(store, Store):
        return store <= memory_limit()
    nbytes, limits = requirement(store, select_columns(store, splits, fields))
    return nbytes <= min(limits.values())


def fit_surely(splits: Iterable[Split]) -> bool:
    """Whether whole splits fit into memory, judged by the sizes of their shards without looking at files."""
    shards = {(split.store.path, split.name): split.store.manifest.splits[split.name].shards for split in splits}
    return sum(shard.nbytes for some in shards.values() for shard in some) <= min(memory_limits().values())


def requirement(store: Store, columns: Sequence[tuple[str, str]]) -> tuple[int, dict[str, int]]:
    """Bytes of these (split, field) columns, and the limits for them as in `memory_limits`.

    No limit is below the bytes in memory: such pages may be locked, belong to a file system in memory, or count for
    another container, so that they are not available, and yet need no more.
    """
    limits = memory_limits()
    listed = sum(file.nbytes for column in columns for file in data_files(store, *column))
    if listed <= min(limits.values()):  # without a look at each file
        return listed, limits
    total = total_residency(residency_of(store, columns))
    return total.nbytes, {who: max(limit, total.resident or 0) for who, limit in limits.items()}


def evict(store: Store, *, splits: Names = None, fields: Names = None) -> Eviction:
    """Ask the system to drop a store's bytes from the page cache. They are read again when they are needed.

    Use it to measure a cold start, or to make room for another store. Two kinds of pages stay in memory: locked pages,
    and pages that a process has mapped and used, including pages that an open store in this process has read. Bytes of
    a copy that are not on the disk yet are written first, because the system can drop only written pages.

    >>> store = tsds.open("photos.tsds")
    >>> found = tsds.evict(store, splits="val")
    >>> list(found.before) == list(found.after)
    True

    Args:
        store: an open store.
        splits, fields: one name, or several names. None takes all.

    Raises:
        OptionError: the store has no such split or field.
        FormatError: a file is missing, or is a symbolic link.
        ResidencyError: this is not Linux.
    """
    columns = select_columns(store, splits, fields)
    if sys.platform != "linux":
        raise ResidencyError(f"{store.path}: expected Linux to drop a file's pages, found {sys.platform}.")
    before = residency_of(store, columns)
    for path, _ in (file for column in columns for file in data_files(store, *column)):
        if is_missing(store, path):
            continue
        with _open_kept(store, path) as file:
            try:
                os.fdatasync(file.fileno())
            except OSError as error:
                if error.errno not in (errno.EINVAL, errno.EROFS):  # a read-only file system: there is nothing to write
                    raise
            # Up to the end of a page, because a partial page is not dropped.
            nbytes = -(-size_of(file) // mmap.PAGESIZE) * mmap.PAGESIZE
            os.posix_fadvise(file.fileno(), start_of(file), nbytes, os.POSIX_FADV_DONTNEED)
    return Eviction(before, residency_of(store, columns))


def select_columns(store: Store, splits: Names, fields: Names) -> list[tuple[str, str]]:
    """(split, field) for each of the names; raises `UnknownNameError` for a name that the store lacks."""
    chosen = []
    for noun, wanted, known in (("split", splits, store.splits), ("field", fields, tuple(store.manifest.fields))):
        names = known if wanted is None else (wanted,) if isinstance(wanted, str) else tuple(wanted)
        for name in names:
            if name not in known:
                raise unknown_name(store.path, noun, name, known)
        chosen.append(tuple(dict.fromkeys(names)))
    return [(split, field) for split in chosen[0] for field in chosen[1]]


def is_missing(store: Store, path: str) -> bool:
    """Whether a file of a store by URL is not in its cache: it was not downloaded yet, or it was removed."""
    return store.origin is not None and not (store.path / path).exists()


def _open_kept(store: Store, path: str) -> IO[bytes]:
    """Open a file as it is on this disk; nothing is downloaded."""
    return open_file(store.path, path) if store.origin is not None else store.open_file(path)


def data_files(store: Store, split: str, name: str) -> list[DataFile]:
    """The files with a field's bytes, shard by shard."""
    manifest, files = store.manifest, []
    listing: tuple[int, Mapping[str, File]] = -1, {}
    for shard, path, layout, nbytes, _ in checks.data_files(manifest, split, (name,)):
        if layout == "zarr":
            listing = listing if listing[0] == shard else (shard, store.listing(split, shard))
            nbytes = listing[1][path].size
        files.append(DataFile(f"{manifest.shard_path(split, shard)}/{path}", nbytes))
    return files
