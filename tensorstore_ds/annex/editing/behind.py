"""Work that is done behind the caller's back: in a thread of its own, in order."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Self

_WAITING = 4  # calls, each with the data of one


class Behind:
    """A thread that makes calls one after the other; a context manager that ends when all are made.

    If a call raises, a later `do` or the end raises its error. Long calls check `is_stopped` to return early.
    """

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1)
        self._waiting = deque[Future[Any]]()
        self.is_stopped = False

    def do(self, call: Callable[..., object], *arguments: object) -> None:
        """Queue a call; waits while too many calls are queued."""
        self._waiting.append(self._thread.submit(call, *arguments))
        if len(self._waiting) > _WAITING:
            self._waiting.popleft().result()

    def stop(self) -> None:
        """Drop the queued calls, and wait for the running one."""
        self.is_stopped = True
        self._thread.shutdown(cancel_futures=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        self.is_stopped = kind is not None
        self._thread.shutdown(cancel_futures=self.is_stopped)
        while self._waiting and kind is None:
            self._waiting.popleft().result()
