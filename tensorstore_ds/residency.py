"""Where a store's bytes are: how much of it is in memory, and how much memory this process may use.

"In memory" means in the operating system's page cache, which all processes of a machine share. Linux tells; elsewhere
the answer is None, with the reason.
"""

from __future__ import annotations

import ctypes
import errno
import os
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tensorstore_ds.checks import open_file
from tensorstore_ds.layout import array_paths, shard_arrays
from tensorstore_ds.manifest import shard_path
from tensorstore_ds.store import Store

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


def residency(store: Store) -> dict[str, Residency]:
    """How much of each column is in memory, by its path: ``train/image``. Reads no data.

    Raises:
        FormatError: a file is gone, or is a symbolic link.
    """
    return {
        f"{split}/{name}": _of_files(store.path, _column_files(store, split, name))
        for split in store.splits
        for name in store.manifest.fields
    }


def _column_files(store: Store, split: str, name: str) -> Iterator[str]:
    """The data files of a field, relative to the store."""
    fields = store.manifest.fields
    for i, shard in enumerate(store.manifest.splits[split].shards):
        arrays = shard_arrays(fields, shard.rows, shard.lengths)
        for path in array_paths(name, fields[name]):
            if arrays[path].rows:
                yield f"{shard_path(split, i)}/{path}/{arrays[path].data_path}"


def _of_files(root: Path, files: Iterator[str]) -> Residency:
    nbytes = resident = 0
    reason = "" if sys.platform == "linux" else f"not available on {sys.platform}"
    for name in files:
        with open_file(root, name) as file:
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


def resident_nbytes(descriptor: int, nbytes: int) -> int:
    """Bytes of the file's first `nbytes` in the page cache, counted in whole pages.

    ``cachestat(2)`` answers for 50 GB in less than a millisecond; where it is missing, ``mincore(2)`` looks at every
    page, which takes about 15 ms a GiB.

    Raises:
        OSError: the system does not tell; EPERM for a file of somebody else's.
    """
    if not nbytes:
        return 0
    libc = ctypes.CDLL(None, use_errno=True)
    number, none = ctypes.c_long(_CACHESTAT), ctypes.c_long(0)
    whole, counts = _CacheRange(0, nbytes), _CacheStat()
    if libc.syscall(number, ctypes.c_long(descriptor), ctypes.byref(whole), ctypes.byref(counts), none) == 0:
        return int(counts.cached) * os.sysconf("SC_PAGE_SIZE")
    # An older kernel does not know the call (ENOSYS), and a container may forbid it (EPERM).
    return mincore_nbytes(descriptor, nbytes)


def mincore_nbytes(descriptor: int, nbytes: int) -> int:
    """The same as `resident_nbytes`, through a read-only map and ``mincore(2)``."""
    status = os.fstat(descriptor)
    if os.geteuid() not in (0, status.st_uid) and not os.access(f"/proc/self/fd/{descriptor}", os.W_OK):
        raise PermissionError(errno.EPERM, "this file is somebody else's")  # mincore would call every page resident
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_ssize_t)
    libc.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
    libc.mincore.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p)
    address = libc.mmap(None, nbytes, _PROT_READ, _MAP_SHARED, descriptor, 0)
    if address == ctypes.c_void_p(-1).value:
        raise _last_error()
    page = os.sysconf("SC_PAGE_SIZE")
    flags = np.empty(min(nbytes, _WINDOW) // page + 1, np.uint8)
    pages = 0
    try:
        for start in range(0, nbytes, _WINDOW):
            length = min(_WINDOW, nbytes - start)
            if libc.mincore(address + start, length, flags.ctypes.data):
                raise _last_error()
            pages += int(np.count_nonzero(flags[: -(-length // page)] & 1))
    finally:
        libc.munmap(address, nbytes)
    return pages * page


def _last_error() -> OSError:
    number = ctypes.get_errno()
    return OSError(number, os.strerror(number))


# --- how much memory there is -----------------------------------------------------------------------------------


def fits(nbytes: int) -> bool:
    """Whether `nbytes` can be held in memory by this process and its page cache."""
    return nbytes <= memory_limit()


def memory_limit() -> int:
    """Bytes that this process may use now: what the machine has left, or its control groups (a container) if less."""
    machine = _read("/proc/meminfo")
    limits = [available_nbytes(machine) if machine else _physical_nbytes()]
    for directory in cgroup_directories(_read("/proc/self/cgroup"), _read("/proc/self/mountinfo")):
        left = _cgroup_nbytes(directory)
        if left is not None:
            limits.append(left)
    return max(0, min(limits))


def available_nbytes(meminfo: str) -> int:
    """``MemAvailable`` in the text of ``/proc/meminfo``, in bytes: free memory and what can be freed at once.

    >>> available_nbytes("MemTotal: 4096 kB\\nMemAvailable:    2048 kB\\n")
    2097152
    """
    sizes = dict(re.findall(r"^(\w+): +(\d+)", meminfo, re.MULTILINE))
    return int(sizes.get("MemAvailable") or sizes.get("MemFree") or 0) * 1024


def cgroup_directories(cgroup: str, mountinfo: str) -> list[Path]:
    """The memory control groups of a process, each before those that hold it, as directories that may not exist.

    Args:
        cgroup: the text of ``/proc/self/cgroup``; lines are ``number:controllers:path``, version 2 has no controllers.
        mountinfo: the text of ``/proc/self/mountinfo``: where the hierarchies are mounted, and which part of each.
    """
    groups = {}
    for line in cgroup.splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers == "" or "memory" in controllers.split(","):
            groups["cgroup" if controllers else "cgroup2"] = path
    directories = []
    for line in mountinfo.splitlines():
        mount, _, kind = line.partition(" - ")
        fields, (filesystem, _, options) = mount.split(" "), kind.split(" ", 2)
        wanted = filesystem == "cgroup2" or (filesystem == "cgroup" and "memory" in options.split(","))
        if not wanted or filesystem not in groups:
            continue
        root, top = fields[3].rstrip("/"), Path(fields[4])
        path = groups[filesystem]
        # In a container the mount may show only the part below `root`, and the path may be the host's.
        inside = path.removeprefix(root) if path == root or path.startswith(f"{root}/") else ""
        directory = top / inside.strip("/")
        directories += [directory, *(p for p in directory.parents if p.is_relative_to(top))]
    return directories


def _cgroup_nbytes(directory: Path) -> int | None:
    """Bytes left in a control group, of version 1 or 2; None if it sets no limit."""
    for limit, used, total in (
        ("memory.max", "memory.current", ""),
        ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_"),
    ):
        text = _read(directory / limit)
        if text:
            return cgroup_left(text, _read(directory / used), _read(directory / "memory.stat"), total)
    return None


def cgroup_left(limit: str, used: str, statistics: str, prefix: str = "") -> int | None:
    """Bytes that a control group may still use: its limit, less what is used and cannot be freed at once.

    >>> cgroup_left("1000\\n", "700\\n", "file 300\\nshmem 100\\n")  # of 300 cached bytes, 100 are shared memory
    500

    Args:
        limit: ``memory.max`` or ``memory.limit_in_bytes``.
        used: ``memory.current`` or ``memory.usage_in_bytes``.
        statistics: ``memory.stat``.
        prefix: of the names in `statistics`: ``total_`` in version 1.

    Returns:
        None if there is no limit: ``max``, or in version 1 a number near 2^63.
    """
    if limit.strip() == "max" or int(limit) >= 2**62:
        return None
    sizes = {name: int(value) for name, value in re.findall(r"^(\w+) (\d+)$", statistics, re.MULTILINE)}
    cached = sizes.get(f"{prefix}cache" if prefix else "file", 0) - sizes.get(f"{prefix}shmem", 0)
    return max(0, int(limit) - int(used or 0) + max(0, cached))


def _physical_nbytes() -> int:
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError):  # Windows, and systems that do not say
        return 2**63 - 1


def _read(path: str | Path) -> str:
    """The text of a system file; empty where there is none, or none for us."""
    try:
        return Path(path).read_text("utf-8", "replace")
    except OSError:
        return ""
