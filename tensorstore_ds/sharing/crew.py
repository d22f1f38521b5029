"""Threads that do one kind of work, until all is done, one fails, or the user stops them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from threading import Event, Lock, Thread
from typing import TypeVar

from tensorstore_ds.errors import TsdsError

T = TypeVar("T")

#: Seconds to wait for a stopped thread, which may be waiting for a silent server.
_PATIENCE = 1.0


class Stopped(Exception):
    """This thread was told to stop."""


class Crew:
    """Some threads. They end with the process, even in the middle of an item."""

    def __init__(self, workers: int) -> None:
        self._workers = workers
        self._stop = Event()

    def check(self) -> None:
        """Raise `Stopped` if the work should end; the work calls it regularly."""
        if self._stop.is_set():
            raise Stopped

    def wait(self, seconds: float) -> None:
        """Sleep; raises `Stopped` as soon as the work should end."""
        if self._stop.wait(seconds):
            raise Stopped

    def run(self, work: Callable[[T], object], items: Iterable[T]) -> None:
        """Call `work` with each item, several at a time, roughly in order; the first error is raised."""
        todo, lock, errors = iter(items), Lock(), list[BaseException]()
        self._stop.clear()

        def thread() -> None:
            try:
                while not self._stop.is_set():
                    with lock:
                        item = next(todo, None)
                    if item is None:
                        return
                    work(item)
            except Stopped:
                pass
            except BaseException as error:
                errors.append(error)
                self._stop.set()

        threads = [Thread(target=thread, daemon=True) for _ in range(self._workers)]
        try:
            for each in threads:
                each.start()
            for each in threads:
                while each.is_alive() and not self._stop.is_set():
                    each.join(0.2)
        finally:
            self._stop.set()
            for each in threads:
                if each.ident is not None:
                    each.join(_PATIENCE)
        if errors:
            # Prefer an error of the library to its consequences.
            raise next((error for error in errors if isinstance(error, TsdsError)), errors[0])
