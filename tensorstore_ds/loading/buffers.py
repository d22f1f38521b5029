"""Memory for batches, used again when nothing holds the last batch in it any more.

A fresh 50 MB array costs more than the copy into it: its pages are handed out one by one, at 2.6 GB/s, where a used
one fills at 16 GB/s. A buffer comes back when the tensor made of it, and every view of that tensor, is gone; a batch
that is held never changes.
"""

from __future__ import annotations

import functools
import math
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


class BufferPool:
    """Hands out tensors over recycled memory; one pool serves any number of threads.

    Args:
        pinned: page-locked memory, from torch's caching host allocator, which recycles by itself and waits for copies
            to the device that are under way.
    """

    def __init__(self, *, pinned: bool = False) -> None:
        self.pinned = pinned
        # A deque's own operations are atomic. A lock would be one more thing that a fork could leave held, or that a
        # finalizer, which runs wherever the last reference dies, could wait for.
        self._free: deque[NDArray[np.uint8]] = deque(maxlen=KEPT)

    def __reduce__(self) -> tuple[Any, ...]:
        """Where it is sent to, a pool begins empty."""
        return functools.partial(BufferPool, pinned=self.pinned), ()

    def empty(self, rows: int, spec: ArraySpec) -> tuple[torch.Tensor, NDArray[Any]]:
        """A tensor (rows, ...), and the array over the same memory to fill it through; its contents are undefined."""
        shape = (rows, *spec.shape)
        if self.pinned:
            tensor = torch.empty(shape, dtype=torch_dtype(spec.dtype), pin_memory=True)
            return tensor, tensor.numpy()
        nbytes = math.prod(shape) * np.dtype(spec.dtype).itemsize
        if nbytes < LARGE_NBYTES:  # below this the C library's own allocator is as quick
            array = np.empty(shape, spec.dtype)
            return torch.from_numpy(array), array
        buffer = self._take(nbytes)
        # The tensor keeps this very array alive, and nothing else does: its end is the end of the tensor's storage.
        held = buffer[:nbytes].view(spec.dtype).reshape(shape)
        weakref.finalize(held, self._free.append, buffer).atexit = False
        return torch.from_numpy(held), held

    def _take(self, nbytes: int) -> NDArray[np.uint8]:
        for _ in range(len(self._free)):
            try:
                buffer = self._free.popleft()
            except IndexError:
                break
            if nbytes <= len(buffer) <= 2 * nbytes:
                return buffer
            self._free.append(buffer)
        return aligned_empty((nbytes,), np.uint8)


def pinned(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor in pinned memory; as it is, if it is there, or on a device."""
    return tensor.pin_memory() if tensor.device.type == "cpu" else tensor


def torch_dtype(dtype: str) -> torch.dtype:
    """torch's type of the same name."""
    of_torch: torch.dtype = getattr(torch, dtype)
    return of_torch
