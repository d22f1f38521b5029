"""How much time and memory one case may take."""

from __future__ import annotations

import resource
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

#: Most that one case may take: seconds of a processor, seconds, and bytes of memory beyond those of the process.
CPU_SECONDS = 2.0
WALL_SECONDS = 30.0
NBYTES = 1 << 30


class TooSlow(BaseException):
    """A case took longer than it may. No library may catch it."""


@contextmanager
def limited_memory(nbytes: int = NBYTES) -> Iterator[None]:
    """Let this process have so many bytes more than it has now; asked for more, it meets a `MemoryError`."""
    before = resource.getrlimit(resource.RLIMIT_AS)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + nbytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


@contextmanager
def limited_time(cpu_seconds: float = CPU_SECONDS, wall_seconds: float = 0.0) -> Iterator[None]:
    """Raise `TooSlow` after so many seconds of a processor, or of any clock unless 0."""
    timers = {signal.ITIMER_PROF: (signal.SIGPROF, cpu_seconds), signal.ITIMER_REAL: (signal.SIGALRM, wall_seconds)}
    chosen = {timer: entry for timer, entry in timers.items() if entry[1]}
    handlers = {number: signal.signal(number, _too_slow) for number, _ in chosen.values()}
    for timer, (_, seconds) in chosen.items():
        signal.setitimer(timer, seconds, seconds)  # again and again: the first may come where nothing can be raised
    try:
        yield
    finally:
        for timer in chosen:
            signal.setitimer(timer, 0)
        for number, handler in handlers.items():
            signal.signal(number, handler)


def _too_slow(number: int, frame: FrameType | None) -> None:
    raise TooSlow("too many seconds of a processor" if number == signal.SIGPROF else "too many seconds")
