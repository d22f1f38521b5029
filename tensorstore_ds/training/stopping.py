"""Signals that ask a run to stop are kept until it is between two steps, so that nothing it has learned is lost."""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType


class StopSignals:
    """SIGTERM (a preempted machine) and SIGINT (Ctrl-C), while the block lasts. A second Ctrl-C ends at once.

    Attributes:
        received: the signal's number, 0 so far.
    """

    def __init__(self) -> None:
        self.received = 0
        self._before: dict[int, object] = {}

    def __enter__(self) -> StopSignals:
        if threading.current_thread() is threading.main_thread():  # only there can handlers be set
            for number in (signal.SIGTERM, signal.SIGINT):
                self._before[number] = signal.signal(number, self._receive)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]

    def _receive(self, number: int, frame: FrameType | None) -> None:
        if self.received and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.received = number
