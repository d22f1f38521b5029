"""Memory maps of files that keep no file open, and no more maps than the system allows.

A store may have more arrays than a process may have open files, 1,024 on most systems, or maps, 65,530 on Linux.
"""

from __future__ import annotations

import ctypes
import errno
import functools
import math
import mmap
import os
import sys
import threading
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any, Protocol

import numpy as np
from numpy.typing import DTypeLike, NDArray

from tensorstore_ds.archives import Identity, identity_of
from tensorstore_ds.errors import Problem, ResourceError

_MAP_FIXED = 0x10  # of Linux and macOS
#: Bytes that the system is asked to read with one call. Linux reads no more than the disk's own limit, which is seldom
#: less than this, and silently ignores the rest.
STEP_NBYTES = 128 * 1024
_SHORT = (errno.ENOMEM, errno.EAGAIN, errno.EMFILE, errno.ENFILE)
_PIECE = 64 * 1024


class Holder(Protocol):
    """Something that keeps maps and can make them again."""

    def _let_go(self) -> None:
        """Drop the maps that were not used since the last call."""


class Maps:
    """Keeps the number of this process's maps below `limit`, the system's largest number, or None.

    Other libraries map files as well, so all maps of the process are counted, but only once for many new ones. If they
    are more than 3/4 of the limit, holders drop their maps that were not used recently. A map ends with the
    last array on it, so arrays of the user stay valid. One call uses at most `most_together` maps at the same time.
    """

    def __init__(self, limit: int | None) -> None:
        self.limit = limit
        self._most = sys.maxsize if limit is None else max(4, limit * 3 // 4)
        self._step = self._most // 4
        self.most_together = self._step
        self._left = self._step
        self._holders: weakref.WeakSet[Holder] = weakref.WeakSet()
        self._turn = threading.Lock()  # nobody waits for it: a thread that waited might hold what the other one needs

    def add(self, holder: Holder) -> None:
        """Register a holder."""
        self._holders.add(holder)

    def before_one_more(self) -> None:
        """Let go of maps if there are too many. Called before each new map."""
        self._left -= 1
        if self._left < 0 and self._turn.acquire(blocking=False):
            try:
                self._left = self._step
                if self.count() > self._most // 2:
                    self._age()
                if self.count() > self._most - self._step:
                    self._age()
            finally:
                self._turn.release()

    def let_go(self) -> None:
        """Let go of all maps that are not in use."""
        self._age()
        self._age()

    def count(self) -> int:
        """Number of maps of this process, or 0 if the system cannot tell."""
        try:
            with open("/proc/self/maps", "rb", buffering=0) as file:
                return sum(piece.count(b"\n") for piece in iter(functools.partial(file.read, _PIECE), b""))
        except OSError:
            return 0

    def after_fork(self) -> None:
        """Replace the lock in the child, because the thread that held it does not exist there."""
        self._turn = threading.Lock()

    def _age(self) -> None:
        while True:
            try:
                holders = list(self._holders)
                break
            except RuntimeError:  # another thread has just added one
                continue
        for holder in holders:
            holder._let_go()


def maps_limit() -> int | None:
    """The largest number of maps of a process, or None if this system has no such limit."""
    try:
        return int(Path("/proc/sys/vm/max_map_count").read_bytes())
    except (OSError, ValueError):
        return None


def note_of_maps(split: str, files: int) -> list[str]:
    """A note for the user if a split has more files of uncompressed arrays than a process may map."""
    limit = MAPS.limit
    if limit is None or files <= limit * 3 // 4:
        return []
    found = f"{split} has {files:,} files of arrays, and this system lets a process map {limit:,} (vm.max_map_count)"
    advice = "Convert with a larger `shard_nbytes`, or raise the limit with sysctl"
    return [f"{found}. Epochs in random order open files again and again, which is slower. {advice}."]


MAPS = Maps(maps_limit())
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=lambda: MAPS.after_fork())

_whole: weakref.WeakValueDictionary[Identity, mmap.mmap] = weakref.WeakValueDictionary()


def map_array(file: IO[bytes], dtype: DTypeLike, shape: tuple[int, ...], offset: int = 0) -> NDArray[Any]:
    """A read-only array on an open file's bytes from `offset`, which all processes of the machine share.

    A file is mapped once: its arrays share the map, which ends with the last of them. The array keeps no descriptor, so
    `file` may be closed. Raises `ValueError` if the file ends before the array, and `ResourceError` if no map is left.
    """
    nbytes = math.prod(shape) * np.dtype(dtype).itemsize
    status = os.fstat(file.fileno())
    if status.st_size < offset + nbytes:
        raise ValueError(f"expected {offset + nbytes} bytes to map, found fewer")
    if not nbytes:
        return np.empty(shape, dtype)
    identity, start = identity_of(status), 0
    mapped = _whole.get(identity)
    if mapped is None:
        MAPS.before_one_more()
        try:
            mapped = map_file(file.fileno(), status.st_size, 0)
        except OSError as error:
            start = offset - offset % mmap.ALLOCATIONGRANULARITY
            mapped = _map_after_all(file.fileno(), offset + nbytes - start, start, error)
        else:
            if status.st_ino:  # some network drives number no files
                _whole[identity] = mapped
    # Not np.memmap: its own indexing is several times slower than a plain array's.
    return np.ndarray(shape, dtype, mapped, offset - start)


def _map_after_all(descriptor: int, nbytes: int, offset: int, error: OSError) -> mmap.mmap:
    """Try once more to map one array, after dropping the maps that are not in use."""
    if error.errno not in _SHORT:
        raise error
    MAPS.let_go()
    try:
        return map_file(descriptor, nbytes, offset)
    except OSError as again:
        count, limit = MAPS.count(), MAPS.limit
        if limit is not None and count >= limit - 16:
            found = f"{count:,} maps of files, of {limit:,} that the system allows (vm.max_map_count)"
            advice = f"Keep fewer arrays of the store, or raise the limit: sysctl -w vm.max_map_count={4 * limit}."
        else:
            found, advice = (
                str(again.strerror or again).lower(),
                "Raise the limit of addresses (ulimit -v) or of open files (ulimit -n).",
            )
        message = f"expected to map one more file of {nbytes:,} bytes, found {found}."
        raise ResourceError(Problem("this process", "no-resource", message), advice) from again


def map_file(descriptor: int, nbytes: int, offset: int, access: int = mmap.ACCESS_READ) -> mmap.mmap:
    """A map for all processes. Python 3.13 can make it without the duplicate of the descriptor that an `mmap` keeps."""
    if sys.version_info >= (3, 13) and sys.platform != "win32":
        return mmap.mmap(descriptor, nbytes, access=access, offset=offset, trackfd=False)
    if sys.platform not in ("linux", "darwin") or sys.maxsize < 2**32:
        return mmap.mmap(descriptor, nbytes, access=access, offset=offset)
    # An anonymous map owns the addresses, and unmaps them at its end; the file is mapped over it.
    use = mmap.PROT_READ | (mmap.PROT_WRITE if access == mmap.ACCESS_WRITE else 0)
    mapped = mmap.mmap(-1, nbytes, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, use)
    address = np.frombuffer(mapped, np.uint8).ctypes.data
    if _c_mmap()(address, nbytes, use, mmap.MAP_SHARED | _MAP_FIXED, descriptor, offset) != address:
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
    """Tell the system that a mapped array is read in random order, so that it reads a missing page without read-ahead.

    If the array is the larger part of its file, this covers the whole file: the system keeps parts with other advice as
    separate maps.
    """
    mapped: Any = array
    while isinstance(mapped, np.ndarray):
        mapped = mapped.base
    if isinstance(mapped, mmap.mmap):
        whole = np.frombuffer(mapped, np.uint8)
        array = whole if whole.nbytes < 2 * array.nbytes else array
        _advise(array.ctypes.data, array.nbytes, "MADV_RANDOM")


def will_need(array: NDArray[Any], begins: NDArray[np.int64], ends: NDArray[np.int64]) -> tuple[int, int]:
    """Ask the system to read bytes [begin, end), ascending (n,) int64, of a mapped array, without waiting.

    Returns the bytes of the pages, and the number of their ranges, which do not touch.
    """
    start = array.ctypes.data
    return ask(begins + start, ends + start, functools.partial(_advise, advice="MADV_WILLNEED"))


def ask(begins: NDArray[np.int64], ends: NDArray[np.int64], call: Callable[[int, int], object]) -> tuple[int, int]:
    """Call a function with position and size of whole pages with all bytes [begin, end); returns as `will_need`."""
    first, last = begins // mmap.PAGESIZE * mmap.PAGESIZE, -(-ends // mmap.PAGESIZE) * mmap.PAGESIZE
    last = np.maximum.accumulate(last)
    at = np.flatnonzero(np.append(True, first[1:] > last[:-1])[: len(first)])
    first, last = first[at], last[np.append(at, len(last))[1:] - 1]
    for begin, end in zip(first.tolist(), last.tolist(), strict=True):
        for position in range(begin, end, STEP_NBYTES):
            call(position, min(STEP_NBYTES, end - position))
    return int((last - first).sum()), len(first)


def _advise(address: int, nbytes: int, advice: str) -> None:
    """Give the system advice, if it supports it, about the pages with these mapped bytes."""
    if nbytes and hasattr(mmap, advice):
        page = address // mmap.PAGESIZE * mmap.PAGESIZE
        _c_madvise()(page, address - page + nbytes, getattr(mmap, advice))


@functools.cache
def _c_madvise() -> Any:
    function = ctypes.CDLL(None).madvise
    function.argtypes = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
    return function
