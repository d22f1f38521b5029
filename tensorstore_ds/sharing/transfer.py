"""Result and progress of a push, a pull or a copy."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from threading import Lock

#: Called with (bytes done, bytes in all), from several threads, one at a time.
OnBytes = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class Transfer:
    """Result of `copy`, `pull` or `push`.

    Attributes:
        place: path of the copy, or its URL without user, password and query.
        sha256: digest of the store.
        nbytes: number of bytes of all its files.
        moved: number of bytes that this call transferred.
        seconds: wall time.
        was_there: whether the same store already existed, so that the call copied nothing.
    """

    place: str
    sha256: str
    nbytes: int
    moved: int
    seconds: float
    was_there: bool = False


class Counter:
    """Counts bytes for a callback, and for a `Transfer`."""

    def __init__(self, progress: OnBytes) -> None:
        self.began = time.monotonic()
        self.moved = 0
        self._progress = progress
        self._done = self._total = 0
        self._lock = Lock()

    def begin(self, done: int, total: int) -> None:
        """Report the total and the bytes that were already done."""
        self._done, self._total = done, total
        self._progress(done, total)

    def add(self, nbytes: int) -> None:
        """Count transferred bytes."""
        with self._lock:
            self.moved += nbytes
            self._advance(nbytes)

    def skip(self, nbytes: int) -> None:
        """Count bytes that already exist, or, if negative, that turned out to be invalid."""
        with self._lock:
            self._advance(nbytes)

    def _advance(self, nbytes: int) -> None:
        self._done += nbytes
        self._progress(self._done, self._total)

    @property
    def seconds(self) -> float:
        """Seconds since this object was made."""
        return time.monotonic() - self.began
