"""Recycle the memory of batches once nothing refers to the old batch.

A fresh 50 MB array costs more than the copy into it: its pages are allocated one by one, at 2.6 GB/s, and a used array
is filled at 16 GB/s. A buffer is recycled after the tensor made of it, and all its views, are gone, so a batch that you
keep never changes.
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

#: Number of unused buffers to keep; others are given back to the system.
KEPT = 8
#: Pinned memory for the batches of a loader until they are on their device; at least one is always allocated.
PINNED_NBYTES = 1024**3
#: Smaller pieces of pinned memory are allocated separately.
_SHARED_NBYTES = 1024**2


class BufferPool:
    """Allocate tensors in recycled memory, for any number of threads.

    Pinned memory is from torch's caching host allocator, which recycles by itself and waits for pending copies to the
    device. It rounds every allocation up to a power of two. Therefore, several large buffers share one.
    """

    def __init__(self, *, pinned: bool = False) -> None:
        self.pinned = pinned
        # A deque's own operations are atomic. A lock could be held across a fork, and a finalizer, which runs in
        # whatever thread drops the last reference, could wait for it.
        self._free: deque[NDArray[np.uint8]] = deque(maxlen=KEPT)
        self._rest = torch.empty(0, dtype=torch.uint8)  # rest of the last allocation of pinned memory
        self._lock = threading.Lock()  # for pinned memory only, which no forked child can use

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle as an empty pool."""
        return functools.partial(BufferPool, pinned=self.pinned), ()

    def empty(self, rows: int, spec: ArraySpec) -> tuple[torch.Tensor, NDArray[Any]]:
        """Return an uninitialized tensor (rows, ...), and the array over the same memory to fill it through."""
        shape, dtype = (rows, *spec.shape), np.dtype(spec.dtype)
        nbytes = math.prod(shape) * dtype.itemsize
        if self.pinned:
            flat = self.empty_bytes(nbytes)
            tensor = flat.view(torch_dtype(spec.dtype)).view(shape)
            return tensor, tensor.numpy()
        if nbytes < LARGE_NBYTES:  # the C library's allocator is as fast below this size
            array = np.empty(shape, dtype)
            return torch.from_numpy(array), array
        buffer = self._take(nbytes)
        # Only the tensor keeps this array alive: the array ends with the tensor's storage.
        held = np.ndarray(shape, dtype, buffer)
        weakref.finalize(held, self._free.append, buffer).atexit = False
        return torch.from_numpy(held), held

    def empty_bytes(self, nbytes: int) -> torch.Tensor:
        """Return uninitialized (nbytes,) uint8, pinned if the pool is."""
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
                buffer = self._free.pop()  # the most recently used one may still be in the caches
            except IndexError:
                break
            if nbytes <= len(buffer) <= 2 * nbytes:
                return buffer
            self._free.appendleft(buffer)
        return aligned_empty((nbytes,), np.uint8)


def shared_nbytes(nbytes: int) -> int:
    """Return the smallest power of two that pieces of `nbytes` fill to at least 3/4."""
    whole: int = 1 << (nbytes - 1).bit_length()
    while whole % nbytes > whole // 4:
        whole *= 2
    return whole


def pinned(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor in pinned memory: the tensor itself if it is there, or on a device."""
    return tensor.pin_memory() if tensor.device.type == "cpu" else tensor


def on_device(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Copy numbers to a batch's device without waiting. From pageable memory, CUDA may wait for its stream."""
    return pinned(tensor).to(device, non_blocking=True) if device.type == "cuda" else tensor.to(device)


def torch_dtype(dtype: str) -> torch.dtype:
    """Return torch's dtype with this name."""
    of_torch: torch.dtype = getattr(torch, dtype)
    return of_torch
