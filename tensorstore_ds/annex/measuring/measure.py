"""Take batches for some seconds: bench, doctor and the project's benchmarks time loaders and steps with `measure`."""

from __future__ import annotations

import itertools
import math
import os
import time
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from tensorstore_ds.annex.measuring.system import tree
from tensorstore_ds.errors import OptionError

if TYPE_CHECKING:
    import torch

T = TypeVar("T")
K = TypeVar("K", bound=Hashable)
#: Does something with a batch, and returns the number of its samples.
Step = Callable[[Any], int]


@dataclass(frozen=True, slots=True)
class Timing:
    """Result of `measure`."""

    samples: int
    batches: int
    seconds: float  #: By the clock.
    cpu: float  #: CPU seconds of this process, its threads and all processes below it.
    ended: bool  #: Whether the feed ended before the time was over.

    @property
    def rate(self) -> float:
        """Samples per second."""
        return self.samples / self.seconds


def measure(
    feed: Iterable[Any], seconds: float, step: Step, *, wave: int = 1, device: torch.device | None = None
) -> Timing:
    """Take batches of a feed, or of an iterator of epochs, for some seconds, at least one, and do a step with each.

    An iterator continues where the last call stopped. The last batch and `device` are waited for. The number of batches
    is a multiple of `wave`, because workers that began together are ready together.
    """
    samples = batches = 0
    ended = True
    cpu, begun = cpu_seconds(), time.perf_counter()
    for item in feed:
        samples += step(item)
        batches += 1
        del item
        if batches % max(1, wave) == 0 and time.perf_counter() - begun >= seconds:
            ended = False
            break
    finish(device)
    spent = time.perf_counter() - begun
    return Timing(samples, batches, spent, cpu_seconds() - cpu, ended)


def endless(loader: Iterable[T]) -> Iterator[T]:
    """Repeat epochs endlessly."""
    for empty in itertools.repeat(True):
        for batch in loader:
            empty = False
            yield batch
        if empty:
            message = "expected a loader that gives batches each time it is iterated, found none."
            raise OptionError(f"`loader`: {message} An iterator ends after one epoch: pass the loader itself.")


def ready(loader: Any) -> int:
    """Maximum number of prefetched batches of torch's or this project's loader, skipped before a measurement."""
    workers = getattr(loader, "num_workers", 0) or getattr(loader, "num_threads", 0) or 0
    return int(workers) * int(getattr(loader, "prefetch_factor", None) or 0)


def in_turns(works: Mapping[K, Callable[[], T]], rounds: int, seconds: float = math.inf) -> dict[K, list[T]]:
    """Call each work once per round, in alternating order, so that other programs disturb all of them.

    There is at least one round; no round starts after `seconds`.

    >>> in_turns({"a": lambda: 1, "b": lambda: 2}, rounds=2)
    {'a': [1, 1], 'b': [2, 2]}
    """
    found: dict[K, list[T]] = {name: [] for name in works}
    end = time.perf_counter() + seconds
    for number in range(rounds):
        if number and time.perf_counter() >= end:
            break
        for name in list(works)[:: -1 if number % 2 else 1]:
            found[name].append(works[name]())
    return found


def finish(device: torch.device | None) -> None:
    """Wait for pending work of a device."""
    if device is not None and device.type != "cpu":
        import torch

        torch.accelerator.synchronize(device)


def cpu_seconds() -> float:
    """CPU time of this process and all its descendants, running, or ended and waited for.

    >>> before = cpu_seconds()
    >>> cpu_seconds() >= before
    True
    """
    _, *running = tree(os.getpid())
    ended = os.times()
    return time.process_time() + ended.children_user + ended.children_system + sum(map(_cpu_seconds_of, running))


def _cpu_seconds_of(process: int) -> float:
    try:
        return time.clock_gettime(~process << 3 | 2)  # Linux: of all its threads, those that ended too
    except OSError:  # ended since
        return 0.0
