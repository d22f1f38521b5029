"""Arrays on the bytes of files: maps that keep no file open. A store may have more arrays than a process may open."""

from __future__ import annotations

import ctypes
import functools
import math
import mmap
import os
import sys
from collections.abc import Callable
from typing import IO, Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

_MAP_FIXED = 0x10  # of Linux and macOS
#: Bytes that the system is asked to read with one call. Linux reads no more than the disk's own limit, which is seldom
#: less than this, and leaves the rest out without a word.
STEP_NBYTES = 128 * 1024


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


# --- advice on maps ---------------------------------------------------------------------------------------------


def read_randomly(array: NDArray[Any]) -> None:
    """Tell the system that a mapped array is read in random order.

    It then reads a missing page without its neighbors, otherwise with as many as the read-ahead of the disk.
    """
    _advise(array.ctypes.data, array.nbytes, "MADV_RANDOM")


def will_need(array: NDArray[Any], begins: NDArray[np.int64], ends: NDArray[np.int64]) -> tuple[int, int]:
    """Ask the system to read bytes [begin, end) of a mapped array into the page cache, without waiting for them.

    Args:
        begins, ends: (n,) int64, the begins in ascending order.

    Returns:
        Bytes of the pages, and the number of their ranges, of which no two touch.
    """
    start = array.ctypes.data
    return ask(begins + start, ends + start, functools.partial(_advise, advice="MADV_WILLNEED"))


def ask(begins: NDArray[np.int64], ends: NDArray[np.int64], call: Callable[[int, int], object]) -> tuple[int, int]:
    """Call a function with position and size of whole pages, until all bytes [begin, end) are in some; as `will_need`.

    Pages that touch are asked for together, up to `STEP_NBYTES`.
    """
    first, last = begins // mmap.PAGESIZE * mmap.PAGESIZE, -(-ends // mmap.PAGESIZE) * mmap.PAGESIZE
    last = np.maximum.accumulate(last)
    at = np.flatnonzero(np.append(True, first[1:] > last[:-1])[: len(first)])
    first, last = first[at], last[np.append(at, len(last))[1:] - 1]
    for begin, end in zip(first.tolist(), last.tolist(), strict=True):
        for position in range(begin, end, STEP_NBYTES):
            call(position, min(STEP_NBYTES, end - position))
    return int((last - first).sum()), len(first)


def _advise(address: int, nbytes: int, advice: str) -> None:
    """Give advice, on systems that know it, about the pages with some mapped bytes."""
    if nbytes and hasattr(mmap, advice):
        page = address // mmap.PAGESIZE * mmap.PAGESIZE
        _c_madvise()(page, address - page + nbytes, getattr(mmap, advice))


@functools.cache
def _c_madvise() -> Any:
    function = ctypes.CDLL(None).madvise
    function.argtypes = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
    return function
