"""Choose the number of torch's CPU threads by measurement, again when steps become slow.

Torch divides each operator among its threads, and waits for the last one. If other processes use the cores, one thread
has to wait for a core, and all others wait for it: fewer threads are then several times faster.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Sequence

import torch

from tensorstore_ds.words import duration, percent

#: Minimum speed-up to change the number of threads: less may be chance.
QUICKER = 1.2
#: Rounds of a comparison of thread counts, and its total seconds in a training run.
TURNS, SECONDS = 3, 2.0
#: Maximum share of the remaining time for a measurement, and the seconds below which there is none.
MOST_COST, SHORT = 0.05, 10.0
#: Batches before the first measurement; a batch is cut to make a step take about this many seconds.
FIRST_BATCHES, STEP_SECONDS = 2, 0.25
#: Minimum window of steps: seconds and batches.
WINDOW_SECONDS, WINDOW_BATCHES = 5.0, 5
#: Steps are slow from this multiple of the usual time.
SLOWER = 1.5
#: The machine is busy if the training thread has a core for less than this share of its time.
BUSY = 0.75
#: Seconds from one measurement to the next: at least, and at most while there are fewer threads than at the beginning.
PAUSE, LONGEST_PAUSE = 60.0, 600.0


def time_threads(step: Callable[[], object], counts: Sequence[int], *, seconds: float) -> dict[int, float]:
    """Median seconds of a step by number of torch's threads, which is restored afterwards.

    The counts alternate, so that other load on the machine affects all of them. There is at least one whole round.
    """
    before, times = torch.get_num_threads(), {count: list[float]() for count in counts}
    share, end = seconds / TURNS / len(counts), time.perf_counter() + seconds
    try:
        for turn in range(TURNS):
            if turn and time.perf_counter() >= end:
                break
            for count in counts[:: -1 if turn % 2 else 1]:
                torch.set_num_threads(count)
                times[count].append(_seconds_of(step, share))
    finally:
        torch.set_num_threads(before)
    return {count: statistics.median(each) for count, each in times.items()}


def _seconds_of(step: Callable[[], object], seconds: float) -> float:
    """Mean seconds of a step, without the first one, which starts threads, unless it takes the whole time."""
    began = time.perf_counter()
    step()
    first = time.perf_counter() - began
    if first >= seconds:
        return first
    began, steps = time.perf_counter(), 0
    while not steps or time.perf_counter() - began < seconds - first:
        step()
        steps += 1
    return (time.perf_counter() - began) / steps


def quickest(times: dict[int, float], used: int) -> int:
    """The number of threads to use: `used`, unless another one is `QUICKER`.

    >>> quickest({2: 1.0, 1: 0.9}, 2), quickest({2: 1.0, 1: 0.3}, 2)
    (2, 1)
    """
    best = min(times, key=times.__getitem__)
    return best if times[used] >= QUICKER * times[best] else used


def halves(count: int) -> list[int]:
    """Numbers of threads to compare.

    >>> halves(12)
    [12, 6, 3, 1]
    """
    return [count, *halves(count // 2)] if count > 1 else [1]


class TorchThreads:
    """Chooses the number of torch's threads in a training run, and detects a lack of cores on a CPU.

    `due` is true after the first batches, when steps have become slower or the training thread has no core for much of
    its time, and now and then while fewer threads compute than at the beginning. A resumed run starts with the number
    of its checkpoint. A thread that waits for a GPU needs no core.
    """

    def __init__(self, count: int, most: int, *, measures: bool, is_new: bool = True, on_cpu: bool = True) -> None:
        self.count, self._most = count, most
        self._measures = measures and most > 1
        self._is_new, self._pause = is_new, PAUSE
        self._measured = time.monotonic()
        self._batches, self._batch_seconds, self._seconds_left = 0, STEP_SECONDS, math.inf
        self._usual: float | None = None
        self._told = not on_cpu
        self._count, self._spent, self._computed = 0, 0.0, 0.0  # of a window: batches, seconds, seconds with a core
        self.due = False  #: Whether to call `measure` before the next step.

    def measure(self, step: Callable[[float], object]) -> str:
        """Choose the number of threads; returns a line if it changes. `step` trains on a share of a batch."""
        share = min(1.0, STEP_SECONDS / self._batch_seconds)
        seconds = min(SECONDS, MOST_COST * self._seconds_left)
        times = time_threads(lambda: step(share), halves(self._most), seconds=seconds)
        used, self.count = self.count, quickest(times, self.count)
        torch.set_num_threads(self.count)
        changed = self.count != used
        self._pause = PAUSE if changed else min(LONGEST_PAUSE, 2 * self._pause)
        self._measured, self._usual, self.due = time.monotonic(), None, False
        self._begin_window()
        if not changed:
            return ""
        threads = f"{self.count} thread{'s' if self.count > 1 else ''}"
        gain = f"{times[used] / times[self.count]:.1f}x faster than with {used}"
        return (
            f"torch computes with {threads} from now on, {gain}: {duration(times[self.count])} instead of "
            f"{duration(times[used])}. Choose a number with `torch_threads`"
        )

    def add(self, seconds: float, computed: float, left: int) -> str:
        """Record the seconds of a step, and those for which the training thread had a core; `left` batches follow.

        Returns a line about a busy machine once, otherwise an empty text.
        """
        self._batches += 1
        self._batch_seconds, self._seconds_left = seconds, left * seconds
        self._count, self._spent, self._computed = self._count + 1, self._spent + seconds, self._computed + computed
        if self._is_new and self._batches >= FIRST_BATCHES:
            self._is_new, self.due = False, self._measures and self._is_worth_it
        if self._count < WINDOW_BATCHES or self._spent < WINDOW_SECONDS:
            return ""
        mean, core_share = self._spent / self._count, self._computed / self._spent
        self._begin_window()
        slow = self._usual is not None and mean > SLOWER * self._usual
        self._usual = mean if self._usual is None else min(self._usual, mean)
        since = time.monotonic() - self._measured
        wanted = slow or (core_share < BUSY and self.count > 1)
        again = self.count < self._most and since >= LONGEST_PAUSE
        self.due = self.due or (self._measures and self._is_worth_it and ((wanted and since >= self._pause) or again))
        if core_share >= BUSY or self._told or self.due:
            return ""
        self._told = True
        return (
            f"this machine is busy: training has a core for {percent(core_share)} of the time of its steps. "
            "tsds doctor measures what it gets"
        )

    @property
    def _is_worth_it(self) -> bool:
        return self._seconds_left >= SHORT

    def _begin_window(self) -> None:
        self._count, self._spent, self._computed = 0, 0.0, 0.0  # batches, seconds, seconds with a core
