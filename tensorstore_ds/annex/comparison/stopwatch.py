"""The time that an epoch takes: of whole epochs, or reckoned from a part of one.

In a part, one batch is one period of the steady state: the step on a batch, and the wait for the next. It begins when
the first batch is there. Worker processes finish their batches about together, so that a part has a multiple of their
number of batches, unless the step is what takes the time.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

#: An epoch of which more than this share is done is finished.
NEARLY = 0.75
#: Waiting for less than this share of the time, a step is what takes it.
LITTLE = 0.1
#: Seconds: an epoch that takes less is always timed as a whole, and again.
SHORT = 1.0
#: Very short ones are repeated so often, at most.
MOST = 50

Step = Callable[[Any], int]


@dataclass(frozen=True, slots=True)
class Timing:
    """What was timed."""

    epochs: tuple[float, ...]  #: Seconds of each whole epoch; or of one, reckoned from a part.
    batches: int  #: That were timed, of each epoch.
    of: int  #: Batches in an epoch.
    samples: int  #: That those batches held.


@dataclass(frozen=True, slots=True)
class Clock:
    """How epochs are timed."""

    samples: int  #: Of an epoch.
    of: int  #: Batches of an epoch.
    workers: int = 0  #: Processes that load.
    settle: Callable[[], None] = lambda: None  #: Waits for what a step has begun and not ended, as on a GPU.
    parts: bool = True  #: Whether a part of an epoch may do.

    def time_epochs(self, loader: Iterable[Any], step: Step, seconds: float, *, fresh: bool = False) -> Timing:
        """Whole epochs for about so many seconds; a part of one, if it takes longer.

        Args:
            loader: each iteration is an epoch.
            step: what is done with a batch; returns the number of its samples.
            seconds: in which to be ready, but for the least part that says something.
            fresh: the loader was never used: its first epoch, in which workers start and memory is new, does not
                count, unless it is a long one.
        """
        begun = time.perf_counter()
        first = self._epoch(loader, step, begun + seconds if self.parts else None)
        if first.batches < first.of:
            return first
        epochs = [] if fresh and first.epochs[0] < SHORT else list(first.epochs)
        while not epochs or (time.perf_counter() - begun + min(epochs) < seconds and len(epochs) < MOST):
            epochs += self._epoch(loader, step, None).epochs
        return Timing(tuple(epochs), self.of, self.of, first.samples)

    def _epoch(self, loader: Iterable[Any], step: Step, deadline: float | None) -> Timing:
        begun = asked = ready = time.perf_counter()
        number = samples = 0
        waited = 0.0
        for number, item in enumerate(loader, 1):
            now = time.perf_counter()
            if number == 1:
                ready = now
            else:
                waited += now - asked
                enough = self._is_enough(number - 1, now - ready, waited, ready - begun)
                if deadline is not None and now > deadline and enough:
                    return self._ended(ready, number - 1, samples)
            samples += step(item)
            asked = time.perf_counter()
        return self._ended(begun, number, samples, whole=True)

    def _is_enough(self, batches: int, elapsed: float, waited: float, first: float) -> bool:
        """Whether a part of so many batches and seconds is enough; `waited` of these for batches.

        The `first` batch was there after so many seconds, with its workers' start.
        """
        if batches < least_batches(self.workers) or batches + 1 == self.of:  # the last one may be smaller
            return False
        if batches >= NEARLY * self.of or elapsed * self.of < SHORT * batches:
            return False
        steps_take_the_time = waited < LITTLE * elapsed and elapsed / batches * self.workers >= first
        return steps_take_the_time or batches % max(1, self.workers) == 0

    def time_first(self, loader: Iterable[Any], step: Step, seconds: float) -> Timing:
        """One epoch from its very beginning, workers' start included; a part of it, if it takes longer."""
        begun = time.perf_counter()
        number = samples = 0
        for number, item in enumerate(loader, 1):
            samples += step(item)
            over = time.perf_counter() - begun > seconds
            if over and number < NEARLY * self.of and number % max(1, self.workers) == 0:
                return self._ended(begun, number, samples)
        return self._ended(begun, number, samples, whole=True)

    def _ended(self, begun: float, batches: int, samples: int, *, whole: bool = False) -> Timing:
        self.settle()
        seconds = time.perf_counter() - begun
        if whole:
            return Timing((seconds,), batches, batches, samples)
        return Timing((seconds * self.samples / samples,), batches, self.of, samples)


def least_batches(workers: int) -> int:
    """Batches in the least part of an epoch; with workers, one alone says little: it may have been ready."""
    return 2 if workers else 1
