"""The fake CUDA runtime that this process runs on, if it does: what it counts."""

from __future__ import annotations

import contextlib
import ctypes
from collections import Counter
from collections.abc import Iterator

_library = ctypes.CDLL(None)


def is_fake() -> bool:
    """Whether this process was started with the fake runtime: see build.py."""
    return hasattr(_library, "fake_cuda_count")


if is_fake():
    _library.fake_cuda_count.restype = ctypes.c_longlong
    _library.fake_cuda_last_missing.restype = ctypes.c_char_p
    _library.fake_cuda_reach.argtypes = [ctypes.c_int, ctypes.c_void_p]


def count(name: str) -> int:
    """One of the counters of runtime.cpp (COUNTERS there), such as `streams`; those of bytes go down again."""
    found: int = _library.fake_cuda_count(name.encode())
    if found < 0:
        raise KeyError(name)
    return found


@contextlib.contextmanager
def counted(*names: str) -> Iterator[Counter[str]]:
    """How much counters have grown: an empty one, filled at the end of the block."""
    before, grown = {name: count(name) for name in names}, Counter[str]()
    yield grown
    grown.update({name: count(name) - before[name] for name in names})


def contexts() -> list[int]:
    """The devices that this process has a context on."""
    return [device for device in range(16) if _library.fake_cuda_has_context(device)]


def reach(device: int, stream: int) -> None:
    """Do all work that was queued in a stream so far, without counting a wait."""
    _library.fake_cuda_reach(device, stream)


def last_missing() -> str:
    """The function of the runtime that was called last of those that the fake one has not."""
    found: bytes = _library.fake_cuda_last_missing()
    return found.decode()
