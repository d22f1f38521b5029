"""How the work of a function grows with its input."""

from __future__ import annotations

import time
from collections.abc import Callable

#: The larger input has so many times the size of the smaller one.
TIMES = 16
#: A quadratic function needs 256x the CPU time, and n log n about 20x.
_MOST = 64


def assert_not_quadratic(prepared: Callable[[int], Callable[[], object]], small: int) -> None:
    """Compare the CPU time of two sizes.

    Args:
        prepared: called with a size; returns the work to measure. It must take milliseconds with the larger size.
        small: the smaller size.
    """
    least, most = (_seconds(prepared(size)) for size in (small, small * TIMES))
    assert most < _MOST * least, f"{TIMES}x the size takes {most / least:.0f}x the CPU time"


def _seconds(work: Callable[[], object]) -> float:
    """The least of several runs, because other processes disturb some of them."""
    taken = []
    while len(taken) < 3 or (sum(taken) < 0.02 and len(taken) < 20):
        began = time.process_time()
        work()
        taken.append(time.process_time() - began)
    return min(taken)
