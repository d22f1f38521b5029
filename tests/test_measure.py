"""Time, turns and CPU time, on a clock that is moved by hand: loaders and steps take exactly as long as they say."""

from __future__ import annotations

import itertools
import subprocess
import sys
from collections.abc import Iterator
from types import SimpleNamespace

import pytest
from hypothesis import given, strategies as st

import tensorstore_ds as tsds
from tensorstore_ds.annex.measuring import measure as module
from tensorstore_ds.annex.measuring.measure import cpu_seconds, endless, in_turns, measure, ready


class Simulation:
    """A loader whose `workers` each take `load` seconds a batch, before which they need `start` seconds once.

    Each iteration is an epoch of `of` batches of ten samples.
    """

    def __init__(self, *, of: int, workers: int = 0, load: float, step: float = 0.0, start: float = 0.0) -> None:
        self.of, self.workers, self.load, self.step_seconds, self.start = of, workers, load, step, start
        self.now = 0.0

    def __iter__(self) -> Iterator[int]:
        self.now += self.start
        self.start, begun = 0.0, self.now
        for number in range(self.of):
            if self.workers:
                self.now = max(self.now, begun + self.load * (number // self.workers + 1))
            else:
                self.now += self.load
            yield number

    def step(self, item: int) -> int:
        self.now += self.step_seconds
        return 10

    def clock(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(module.time, "perf_counter", lambda: self.now)


def test_batches_are_timed_epoch_after_epoch_from_where_the_last_call_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    loader = Simulation(of=4, load=0.5, step=0.25, start=9)
    loader.clock(monkeypatch)
    batches = endless(loader)
    assert next(batches) == 0  # its workers' start does not count
    first = measure(batches, 3, loader.step)
    assert (first.samples, first.batches, first.seconds, first.ended) == (40, 4, 3, False)
    assert first.rate == 40 / 3 and first.cpu >= 0 and next(batches) == 1
    assert measure(batches, 0, loader.step).batches == 1


def test_a_feed_that_ends_is_a_whole_epoch(monkeypatch: pytest.MonkeyPatch) -> None:
    loader = Simulation(of=4, workers=2, load=1, start=3)
    loader.clock(monkeypatch)
    whole = measure(loader, 60, loader.step)
    assert (whole.seconds, whole.samples, whole.ended) == (5, 40, True)
    epochs = measure(itertools.repeat(loader), 3, lambda epoch: sum(map(loader.step, epoch)))
    assert (epochs.samples, epochs.seconds) == (80, 4)


@given(workers=st.integers(0, 8), load=st.floats(0.05, 5), step=st.floats(0, 5), seconds=st.floats(0.1, 20))
def test_the_rate_is_that_of_the_steady_state(workers: int, load: float, step: float, seconds: float) -> None:
    loader = Simulation(of=1000, workers=workers, load=load, step=step)
    period = load + step if workers == 0 else max(load / workers, step)
    with pytest.MonkeyPatch.context() as monkeypatch:
        loader.clock(monkeypatch)
        batches = endless(loader)
        measure(batches, 0, loader.step, wave=workers)
        timing = measure(batches, seconds, loader.step, wave=workers)
    assert timing.batches % max(1, workers) == 0
    assert timing.seconds == pytest.approx(timing.batches * period, abs=load + step + 1e-6)


def test_a_loader_without_batches_is_refused() -> None:
    with pytest.raises(tsds.OptionError, match="expected a loader that gives batches each time it is iterated"):
        list(itertools.islice(endless(iter([1])), 2))
    assert ready(SimpleNamespace(num_workers=2, prefetch_factor=3)) == 6 and ready([]) == 0


def test_turns_go_forwards_and_backwards_until_the_time_is_over() -> None:
    order: list[str] = []
    works = {name: lambda name=name: order.append(name) for name in "ab"}
    assert in_turns(works, 3) == {"a": [None] * 3, "b": [None] * 3} and "".join(order) == "abbaab"
    assert in_turns(works, 3, seconds=0) == {"a": [None], "b": [None]}


def test_cpu_time_of_workers_counts_while_they_run_and_afterwards() -> None:
    burn = "import sys, time\nwhile time.process_time() < 0.3: pass\nprint(flush=True)\nsys.stdin.read()"
    before = cpu_seconds()
    with subprocess.Popen([sys.executable, "-c", burn], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as worker:
        assert worker.stdout is not None and worker.stdout.readline()
        running = cpu_seconds() - before
    assert 0.3 <= running <= cpu_seconds() - before + 0.02
