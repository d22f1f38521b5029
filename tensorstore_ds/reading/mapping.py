"""Arrays on the bytes of files: maps that keep no file open. A store may have more arrays than a process may open."""

from __future__ import annotations

import ctypes
import functools
import math
import mmap
import os
import sys
from typing import IO, Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

_MAP_FIXED = 0x10  # of Linux and macOS


def map_array(file: IO[bytes], dtype: DTypeLike, shape: tuple[int, ...], offset: int = 0) -> NDArray[Any]:
    """A read-only array on an open file's bytes from `offset`, which all processes of the machine share.

    The array keeps no descriptor, and `file` may be closed. Its pages are read when they are first used.

    Raises:
        ValueError: the file ends before the array does.
        OSError: the system has no room for one more map.
    """
    nbytes = math.prod(shape) * np.dtype(dtype).itemsize
    if os.fstat(file.fileno()).st_size < offset + nbytes:
        raise ValueError(f"expected {offset + nbytes} bytes to map, found fewer")
    if not nbytes:
        return np.empty(shape, dtype)
    before = offset % mmap.ALLOCATIONGRANULARITY
    mapped = _map(file.fileno(), before + nbytes, offset - before)
    # Not np.memmap: its own indexing is several times slower than that of a plain array.
    return np.ndarray(shape, dtype, mapped, before)


def _map(descriptor: int, nbytes: int, offset: int) -> mmap.mmap:
    """A read-only map. An `mmap` duplicates the descriptor for itself, but for the options of Python 3.13."""
    if sys.version_info >= (3, 13):
        return mmap.mmap(descriptor, nbytes, access=mmap.ACCESS_READ, offset=offset, trackfd=False)
    if sys.platform not in ("linux", "darwin") or sys.maxsize < 2**32:
        return mmap.mmap(descriptor, nbytes, access=mmap.ACCESS_READ, offset=offset)
    # A map of no file owns the addresses, and unmaps them at its end; the file is laid over them.
    mapped = mmap.mmap(-1, nbytes, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, mmap.PROT_READ)
    address = np.frombuffer(mapped, np.uint8).ctypes.data
    if _c_mmap()(address, nbytes, mmap.PROT_READ, mmap.MAP_SHARED | _MAP_FIXED, descriptor, offset) != address:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return mapped


@functools.cache
def _c_mmap() -> Any:
    function = ctypes.CDLL(None, use_errno=True).mmap
    function.argtypes = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_int64
    function.restype = ctypes.c_void_p
    return function
