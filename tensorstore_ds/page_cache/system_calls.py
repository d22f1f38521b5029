"""Linux system calls on the page cache that Python's standard library lacks: cachestat and mincore."""

from __future__ import annotations

import ctypes
import errno
import functools
import mmap
import os
from typing import Any

import numpy as np

_CACHESTAT = 451  # the system call's number, the same on every architecture; Linux 6.5 and later
#: Most bytes per call, so that Ctrl-C works in between; mincore returns a byte per page.
_WINDOW = 256 * 1024**2


def resident_nbytes(descriptor: int, nbytes: int, offset: int = 0) -> int:
    """How many of a file's `nbytes` bytes from `offset`, a multiple of the page size, are in the page cache.

    The unit is whole pages, so the result may exceed `nbytes`. ``cachestat(2)`` answers for 50 GB in less than a
    millisecond; where it is missing, ``mincore(2)`` looks at every page, which takes about 15 ms per GiB. Raises
    `OSError` if the system does not tell, with EPERM for another user's file.
    """
    if not nbytes:
        return 0
    number, flags = ctypes.c_long(_CACHESTAT), ctypes.c_long(0)
    # struct cachestat_range: offset, length; struct cachestat: cached, dirty, writeback, evicted, recently evicted
    wanted, counts = (ctypes.c_uint64 * 2)(offset, nbytes), (ctypes.c_uint64 * 5)()
    if _function("syscall")(number, ctypes.c_long(descriptor), ctypes.byref(wanted), ctypes.byref(counts), flags) == 0:
        return counts[0] * mmap.PAGESIZE
    # An older kernel does not know the call (ENOSYS), and a container may forbid it (EPERM).
    return mincore_nbytes(descriptor, nbytes, offset)


def mincore_nbytes(descriptor: int, nbytes: int, offset: int = 0) -> int:
    """Count resident bytes through read-only maps and ``mincore(2)``."""
    status = os.fstat(descriptor)
    if os.geteuid() not in (0, status.st_uid) and not os.access(f"/proc/self/fd/{descriptor}", os.W_OK):
        raise PermissionError(
            errno.EPERM, "this file belongs to another user"
        )  # mincore would call every page resident
    pages = 0
    for start in range(0, nbytes, _WINDOW):
        with map_file(descriptor, min(_WINDOW, nbytes - start), offset + start) as mapped:
            flags = np.empty(-(-len(mapped) // mmap.PAGESIZE), np.uint8)
            _call("mincore", _address(mapped), len(mapped), flags.ctypes.data)
        pages += int(np.count_nonzero(flags & 1))
    return pages * mmap.PAGESIZE


def map_file(descriptor: int, nbytes: int, offset: int = 0) -> mmap.mmap:
    """A read-only shared map of a file, which outlives the descriptor; raises `OSError` if the file ends earlier."""
    try:
        return mmap.mmap(descriptor, nbytes, mmap.MAP_SHARED, mmap.PROT_READ, offset=offset)
    except ValueError as error:
        raise OSError(errno.EINVAL, str(error)) from error


def _address(mapped: mmap.mmap) -> int:
    return int(np.frombuffer(mapped, np.uint8).ctypes.data)


@functools.cache  # once for the thousands of files of a store
def _function(name: str) -> Any:
    """A function of the C library."""
    return getattr(ctypes.CDLL(None, use_errno=True), name)


def _call(name: str, address: int, nbytes: int, *pointers: int) -> None:
    """Call a function of the C library with an address and a size; raises `OSError` unless it returns 0."""
    if _function(name)(ctypes.c_void_p(address), ctypes.c_size_t(nbytes), *map(ctypes.c_void_p, pointers)):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
