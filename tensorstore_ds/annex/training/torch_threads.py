"""Choose the number of torch's CPU threads by measurement.

Torch divides each operator among its threads, and waits for the last one. If other processes use the cores, one thread
has to wait for a core, and all others wait for it: fewer threads are then several times faster.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence

import torch

from tensorstore_ds.words import duration

#: Minimum speed-up to change the number of threads: less may be chance.
QUICKER = 1.2
#: Rounds of a comparison of thread counts, and its total seconds in a training run.
TURNS, SECONDS = 3, 2.0
#: Maximum share of the remaining time for a measurement, and the seconds below which there is none.
MOST_COST, SHORT = 0.05, 10.0
#: Batches before the first measurement; a batch is cut to make a step take about this many seconds.
FIRST_BATCHES, STEP_SECONDS = 2, 0.25


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


def choose_threads(step: Callable[[float], object], used: int, *, seconds: float, left: float) -> tuple[int, str]:
    """Choose the number of threads for the rest of a run, by measurement; returns a line as well if it changes.

    `step` trains on a share of a batch. A batch takes `seconds` with the threads `used`, and all that follow `left`.
    """
    if left < SHORT:
        return used, ""
    share = min(1.0, STEP_SECONDS / seconds)
    times = time_threads(lambda: step(share), halves(used), seconds=min(SECONDS, MOST_COST * left))
    chosen = quickest(times, used)
    torch.set_num_threads(chosen)
    if chosen == used:
        return used, ""
    threads = f"{chosen} thread{'s' if chosen > 1 else ''}"
    return chosen, (
        f"torch computes with {threads} from now on, {times[used] / times[chosen]:.1f}x faster than with {used}: "
        f"{duration(times[chosen])} instead of {duration(times[used])}. Choose a number with `torch_threads`"
    )
