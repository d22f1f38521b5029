"""Whether other threads get the interpreter in time: how long one waits for the global lock (GIL)."""

from __future__ import annotations

import statistics
import threading
import time
from types import TracebackType

#: A thread that only computes in Python gives the lock away between samples, when torch slices the next one, and after
#: `sys.getswitchinterval`, 5 ms, at the latest. Who waits for it then waits for half a sample's time or more, where a
#: thread that copies or decodes lets him go on at once. Less than the least is not told from the system's delays.
HELD_SHARE, HELD_LEAST, HELD_MOST = 0.25, 0.0002, 0.002
_NAP = 0.001


def is_held(wait: float, sample: float) -> bool:
    """Whether threads hold the GIL, by the seconds that another one waits for it, and that they take for a sample.

    >>> is_held(0.006, 0.05), is_held(0.0007, 0.001), is_held(0.00004, 0.002), is_held(0.0001, 0.0001)
    (True, True, False, False)
    """
    return wait >= max(HELD_LEAST, min(HELD_MOST, HELD_SHARE * sample))


class GilProbe:
    """A thread that sleeps and wakes, over and over, and notes how late it is each time. A context manager.

    After it has woken it needs the GIL to go on: so late is whoever else wants it, such as the training loop between
    two calls of torch.
    """

    def __init__(self) -> None:
        self._late: list[float] = []
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="tsds-doctor-gil", daemon=True)

    @property
    def wait(self) -> float:
        """Seconds that it was late, the median; 0 before it has slept."""
        return statistics.median(self._late) if self._late else 0.0

    def __enter__(self) -> GilProbe:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stopping.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stopping.is_set():
            began = time.perf_counter()
            time.sleep(_NAP)
            self._late.append(time.perf_counter() - began - _NAP)
