"""Where a store's bytes are: how much of it is in memory, and whether all of it fits.

"In memory" means in the operating system's page cache, which all processes of a machine share. Linux tells; elsewhere
the answer is None, with the reason.
"""

from __future__ import annotations

import ctypes
import errno
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from tensorstore_ds.errors import OptionError
from tensorstore_ds.format.arrays import array_paths, shard_arrays
from tensorstore_ds.format.manifest import shard_path
from tensorstore_ds.machine import memory_limit as memory_limit, memory_limits
from tensorstore_ds.reading.store import Store
from tensorstore_ds.reading.store_files import open_file

_CACHESTAT = 451  # the system call's number, the same on every architecture; Linux 6.5 and later
_WINDOW = 1024**3  # bytes asked about at a time: a quarter of a million pages, one byte each
_PROT_READ, _MAP_SHARED = 1, 1  # Linux, all architectures


@dataclass(frozen=True, slots=True)
class Residency:
    """How much of a column is in memory.

    Attributes:
        nbytes: bytes of its files.
        resident: bytes of them in the page cache, in whole pages but never more than `nbytes`; None if not known.
        reason: why it is not known; empty otherwise.
    """

    nbytes: int
    resident: int | None
    reason: str = ""

    @property
    def share(self) -> float | None:
        """The part that is in memory, in [0, 1]; None if not known."""
        return None if self.resident is None else self.resident / self.nbytes if self.nbytes else 1.0


@dataclass(frozen=True, slots=True)
class DataFile:
    """A file with a column's bytes.

    Attributes:
        column: split and field: ``train/image``.
        path: relative to the store.
        nbytes: its size, as the manifest has it.
    """

    column: str
    path: str
    nbytes: int


def residency(store: Store) -> dict[str, Residency]:
    """How much of each column is in memory, by its path: ``train/image``. Reads no data.

    Raises:
        FormatError: a file is gone, or is a symbolic link.
    """
    return residency_of(store, [(split, field) for split in store.splits for field in store.manifest.fields])


def residency_of(store: Store, columns: Iterable[tuple[str, str]]) -> dict[str, Residency]:
    """The same as `residency`, of these (split, field) alone."""
    return {f"{split}/{field}": _of_files(store, data_files(store, split, field)) for split, field in columns}


def total_residency(found: Mapping[str, Residency]) -> Residency:
    """Several columns as one; not known if one of them is not.

    >>> total_residency({"train/label": Residency(80, 80), "train/image": Residency(720, 120)}).share
    0.25
    """
    nbytes = sum(r.nbytes for r in found.values())
    resident = [r.resident for r in found.values() if r.resident is not None]
    if len(resident) < len(found):
        return Residency(nbytes, None, next(r.reason for r in found.values() if r.resident is None))
    return Residency(nbytes, sum(resident))


def fits(
    store: Store | int, *, splits: str | Sequence[str] | None = None, fields: str | Sequence[str] | None = None
) -> bool:
    """Whether a store, or this many bytes, can be held in memory by this process and its page cache.

    ``memory_limit()`` says how many bytes there are, and ``memory_limits()`` who sets the limit. What is in memory
    already does fit.

    Args:
        store: a store, or a number of bytes.
        splits: only these; all if None.
        fields: only these; all if None.

    Raises:
        OptionError: the store has no such split or field.
    """
    if not isinstance(store, Store):
        return store <= memory_limit()
    nbytes, limits = requirement(store, select_columns(store, splits, fields))
    return nbytes <= min(limits.values())


def requirement(store: Store, columns: Sequence[tuple[str, str]]) -> tuple[int, dict[str, int]]:
    """Bytes that these (split, field) take, and the limits for them as `memory_limits` has them.

    No limit is below what is in memory already: such pages may be locked, lie in a file system in memory, or count for
    another container, so that they are not available, and yet need no more.
    """
    total = total_residency(residency_of(store, columns))
    return total.nbytes, {who: max(limit, total.resident or 0) for who, limit in memory_limits().items()}


def select_columns(
    store: Store, splits: str | Sequence[str] | None, fields: str | Sequence[str] | None
) -> list[tuple[str, str]]:
    """(split, field) for each of the names, all where None; raises `OptionError` for a name that the store lacks."""
    chosen = []
    for noun, wanted, known in (("split", splits, store.splits), ("field", fields, tuple(store.manifest.fields))):
        names = known if wanted is None else (wanted,) if isinstance(wanted, str) else tuple(wanted)
        for name in names:
            if name not in known:
                raise OptionError(f"{store.path}: there is no {noun} {name}. Choose one of {', '.join(known)}.")
        chosen.append(tuple(dict.fromkeys(names)))
    return [(split, field) for split in chosen[0] for field in chosen[1]]


def data_files(store: Store, split: str, name: str) -> list[DataFile]:
    """The files with a field's bytes, shard by shard."""
    fields = store.manifest.fields
    files = []
    for i, shard in enumerate(store.manifest.splits[split].shards):
        arrays = shard_arrays(fields, shard.rows, shard.lengths)
        for array in array_paths(name, fields[name]):
            if arrays[array].rows:
                path = f"{array}/{arrays[array].data_path}"
                files.append(DataFile(f"{split}/{name}", f"{shard_path(split, i)}/{path}", shard.files[path].size))
    return files


def _of_files(store: Store, files: Iterable[DataFile]) -> Residency:
    nbytes = resident = 0
    reason = "" if sys.platform == "linux" else f"not available on {sys.platform}"
    for data_file in files:
        with open_file(store.path, data_file.path) as file:
            size = os.fstat(file.fileno()).st_size
            nbytes += size
            if not reason:
                try:
                    resident += min(resident_nbytes(file.fileno(), size), size)
                except OSError as error:
                    reason = f"the system does not tell: {error.strerror}"
    return Residency(nbytes, None if reason else resident, reason)


# --- Linux ------------------------------------------------------------------------------------------------------


class _CacheRange(ctypes.Structure):
    _fields_ = (("offset", ctypes.c_uint64), ("length", ctypes.c_uint64))


class _CacheStat(ctypes.Structure):
    _fields_ = tuple((name, ctypes.c_uint64) for name in ("cached", "dirty", "writeback", "evicted", "recent"))


def resident_nbytes(descriptor: int, nbytes: int, offset: int = 0) -> int:
    """How many of a file's `nbytes` bytes from `offset`, a multiple of the page size, are in the page cache.

    Counted in whole pages, so that it may be more than `nbytes`.

    ``cachestat(2)`` answers for 50 GB in less than a millisecond; where it is missing, ``mincore(2)`` looks at every
    page, which takes about 15 ms a GiB.

    Raises:
        OSError: the system does not tell; EPERM for a file of somebody else's.
    """
    if not nbytes:
        return 0
    libc = ctypes.CDLL(None, use_errno=True)
    number, none = ctypes.c_long(_CACHESTAT), ctypes.c_long(0)
    asked, counts = _CacheRange(offset, nbytes), _CacheStat()
    if libc.syscall(number, ctypes.c_long(descriptor), ctypes.byref(asked), ctypes.byref(counts), none) == 0:
        return int(counts.cached) * os.sysconf("SC_PAGE_SIZE")
    # An older kernel does not know the call (ENOSYS), and a container may forbid it (EPERM).
    return mincore_nbytes(descriptor, nbytes, offset)


def mincore_nbytes(descriptor: int, nbytes: int, offset: int = 0) -> int:
    """The same as `resident_nbytes`, through a read-only map and ``mincore(2)``."""
    status = os.fstat(descriptor)
    if os.geteuid() not in (0, status.st_uid) and not os.access(f"/proc/self/fd/{descriptor}", os.W_OK):
        raise PermissionError(errno.EPERM, "this file is somebody else's")  # mincore would call every page resident
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mincore.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p)
    page = os.sysconf("SC_PAGE_SIZE")
    flags = np.empty(min(nbytes, _WINDOW) // page + 1, np.uint8)
    pages = 0
    address = map_file(descriptor, nbytes, offset)
    try:
        for start in range(0, nbytes, _WINDOW):
            length = min(_WINDOW, nbytes - start)
            if libc.mincore(address + start, length, flags.ctypes.data):
                raise last_error()
            pages += int(np.count_nonzero(flags[: -(-length // page)] & 1))
    finally:
        unmap_file(address, nbytes)
    return pages * page


def map_file(descriptor: int, nbytes: int, offset: int = 0) -> int:
    """The address of a read-only, shared map of a file; it outlives the descriptor, and must be unmapped."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_ssize_t)
    address: int | None = libc.mmap(None, nbytes, _PROT_READ, _MAP_SHARED, descriptor, offset)
    if address is None or address == ctypes.c_void_p(-1).value:
        raise last_error()
    return address


def unmap_file(address: int, nbytes: int) -> None:
    """Undo `map_file`; what was locked through the map is unlocked."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
    if libc.munmap(address, nbytes):
        raise last_error()


def last_error() -> OSError:
    """The error that a system call of this thread has left behind."""
    number = ctypes.get_errno()
    return OSError(number, os.strerror(number))
