"""Memory for batches, used again when nothing holds the last batch in it any more.

A fresh 50 MB array costs more than the copy into it: its pages are handed out one by one, at 2.6 GB/s, where a used
one fills at 16 GB/s. A buffer comes back when the tensor made of it, and every view of that tensor, is gone; a batch
that is held never changes.
"""

from __future__ import annotations

import functools
import math
import mmap
import threading
import weakref
from collections import deque
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from tensorstore_ds.format.schema import ArraySpec
from tensorstore_ds.reading.columns import LARGE_NBYTES, aligned_empty

#: Buffers that wait to be used again; more are given back to the system.
KEPT = 8
#: Pinned memory that the batches of a loader may take, until they are on their device; one at least is always made.
PINNED_NBYTES = 1024**3
#: Smaller pieces of pinned memory are allocated for themselves.
_SHARED_NBYTES = 1024**2


class BufferPool:
    """Hands out tensors over recycled memory; one pool serves any number of threads.

    Args:
        pinned: pinned memory, from torch's caching host allocator, which recycles by itself and waits for copies to the
            device that are under way. It rounds every allocation up to a power of two. Therefore, several large buffers
            share one.
    """

    def __init__(self, *, pinned: bool = False) -> None:
        self.pinned = pinned
        # A deque's own operations are atomic. A lock would be one more thing that a fork could leave held, or that a
        # finalizer, which runs wherever the last reference dies, could wait for.
        self._free: deque[NDArray[np.uint8]] = deque(maxlen=KEPT)
        self._rest = torch.empty(0, dtype=torch.uint8)  # of the pinned memory that was allocated last
        self._lock = threading.Lock()  # for pinned memory alone, which no forked child can use

    def __reduce__(self) -> tuple[Any, ...]:
        """Where it is sent to, a pool begins empty."""
        return functools.partial(BufferPool, pinned=self.pinned), ()

    def empty(self, rows: int, spec: ArraySpec) -> tuple[torch.Tensor, NDArray[Any]]:
        """A tensor (rows, ...), and the array over the same memory to fill it through; its contents are undefined."""
        shape, dtype = (rows, *spec.shape), np.dtype(spec.dtype)
        nbytes = math.prod(shape) * dtype.itemsize
        if self.pinned:
            flat = self.empty_bytes(nbytes)
            tensor = flat.view(torch_dtype(spec.dtype)).view(shape)
            return tensor, tensor.numpy()
        if nbytes < LARGE_NBYTES:  # below this the C library's own allocator is as quick
            array = np.empty(shape, dtype)
            return torch.from_numpy(array), array
        buffer = self._take(nbytes)
        # The tensor keeps this very array alive, and nothing else does: its end is the end of the tensor's storage.
        held = np.ndarray(shape, dtype, buffer)
        weakref.finalize(held, self._free.append, buffer).atexit = False
        return torch.from_numpy(held), held

    def empty_bytes(self, nbytes: int) -> torch.Tensor:
        """(nbytes,) uint8, whose contents are undefined; pinned if the pool is."""
        if not self.pinned:
            return torch.empty(nbytes, dtype=torch.uint8)
        if nbytes < _SHARED_NBYTES:
            return torch.empty(nbytes, dtype=torch.uint8, pin_memory=True)
        size = -(-nbytes // mmap.PAGESIZE) * mmap.PAGESIZE
        with self._lock:
            if len(self._rest) < size:
                self._rest = torch.empty(shared_nbytes(size), dtype=torch.uint8, pin_memory=True)
            taken, self._rest = self._rest[:nbytes], self._rest[size:]
        return taken

    def _take(self, nbytes: int) -> NDArray[np.uint8]:
        for _ in range(len(self._free)):
            try:
                buffer = self._free.pop()  # the one that was used last: the caches may still have it
            except IndexError:
                break
            if nbytes <= len(buffer) <= 2 * nbytes:
                return buffer
            self._free.appendleft(buffer)
        return aligned_empty((nbytes,), np.uint8)


def shared_nbytes(nbytes: int) -> int:
    """The smallest power of two of which pieces of `nbytes` leave at most a quarter unused.

    >>> [shared_nbytes(37 * 2**20) // 2**20, shared_nbytes(64 * 2**20) // 2**20]
    [128, 64]
    """
    whole: int = 1 << (nbytes - 1).bit_length()
    while whole % nbytes > whole // 4:
        whole *= 2
    return whole


def pinned(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor in pinned memory; as it is, if it is there, or on a device."""
    return tensor.pin_memory() if tensor.device.type == "cpu" else tensor


def torch_dtype(dtype: str) -> torch.dtype:
    """torch's type of the same name."""
    of_torch: torch.dtype = getattr(torch, dtype)
    return of_torch
