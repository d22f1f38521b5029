"""The time of an epoch, on a clock that is moved by hand: loaders and steps take exactly as long as they say."""

from __future__ import annotations

import math
from collections.abc import Iterator

import pytest
from hypothesis import given, strategies as st

from tensorstore_ds.annex.comparison import stopwatch
from tensorstore_ds.annex.comparison.stopwatch import Clock


class Simulation:
    """A loader whose `workers` each take `load` seconds a batch, and a step that takes `step` seconds.

    Each iteration is an epoch of `of` batches of ten samples, before which workers need `start` seconds once.
    """

    def __init__(self, *, of: int, workers: int, load: float, step: float = 0.0, start: float = 0.0) -> None:
        self.of, self.workers, self.load, self.step_seconds, self.start = of, workers, load, step, start
        self.now = 0.0
        self.epochs = 0

    def __iter__(self) -> Iterator[int]:
        self.epochs += 1
        self.now += self.start
        self.start = 0.0
        begun = self.now
        for number in range(self.of):
            if self.workers:
                self.now = max(self.now, begun + self.load * (number // self.workers + 1))
            else:
                self.now += self.load
            yield number

    def step(self, item: int) -> int:
        self.now += self.step_seconds
        return 10

    def clock(self, monkeypatch: pytest.MonkeyPatch) -> Clock:
        monkeypatch.setattr(stopwatch.time, "perf_counter", lambda: self.now)
        return Clock(samples=10 * self.of, of=self.of, workers=self.workers)


def test_whole_epochs_as_many_as_there_is_time_for(monkeypatch: pytest.MonkeyPatch) -> None:
    loader = Simulation(of=4, workers=0, load=0.5)
    timing = loader.clock(monkeypatch).time_epochs(loader, loader.step, 7)
    assert timing.epochs == (2, 2, 2) and (timing.batches, timing.of, timing.samples) == (4, 4, 40)


def test_an_epoch_that_is_longer_is_reckoned_from_a_part(monkeypatch: pytest.MonkeyPatch) -> None:
    loader = Simulation(of=100, workers=0, load=0.5, step=0.25)
    timing = loader.clock(monkeypatch).time_epochs(loader, loader.step, 3)
    assert timing.epochs == pytest.approx((75,))
    assert timing.batches == 4 and timing.of == 100 and loader.epochs == 1


def test_even_one_batch_that_takes_all_the_time_is_timed_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    loader = Simulation(of=100, workers=0, load=5, step=5)
    timing = loader.clock(monkeypatch).time_epochs(loader, loader.step, 1)
    assert timing.epochs == pytest.approx((1000,)) and timing.batches == 1


def test_what_is_nearly_done_is_finished(monkeypatch: pytest.MonkeyPatch) -> None:
    loader = Simulation(of=10, workers=0, load=1)
    timing = loader.clock(monkeypatch).time_epochs(loader, loader.step, 8.5)
    assert timing.batches == 10 and timing.epochs == (10,)


def test_the_last_batch_which_may_be_small_is_no_end_of_a_part(monkeypatch: pytest.MonkeyPatch) -> None:
    loader = Simulation(of=3, workers=2, load=4)
    timing = loader.clock(monkeypatch).time_epochs(loader, loader.step, 1)
    assert timing.batches == 3 and timing.epochs == (8,)


def test_short_epochs_are_whole_and_the_first_of_a_fresh_loader_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    loader = Simulation(of=5, workers=1, load=0.02, start=0.5)
    clock = loader.clock(monkeypatch)
    timing = clock.time_epochs(loader, loader.step, 0.01, fresh=True)
    assert timing.epochs == pytest.approx((0.1,)) and loader.epochs == 2
    loader.start = 0.5
    assert clock.time_epochs(loader, loader.step, 0.01).epochs == pytest.approx((0.6,))


def test_a_long_first_epoch_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    loader = Simulation(of=2, workers=1, load=1, start=0.5)
    timing = loader.clock(monkeypatch).time_epochs(loader, loader.step, 1, fresh=True)
    assert timing.epochs == (2.5,) and loader.epochs == 1


def test_a_first_epoch_is_timed_from_the_start_of_its_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = Simulation(of=4, workers=2, load=1, start=3)
    assert whole.clock(monkeypatch).time_first(whole, whole.step, 10).epochs == (5,)
    part = Simulation(of=100, workers=2, load=1, start=3)
    timing = part.clock(monkeypatch).time_first(part, part.step, 3.5)
    assert timing.batches == 2 and timing.epochs == pytest.approx((4 * 100 / 2,))


def test_what_a_step_has_begun_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    loader = Simulation(of=4, workers=0, load=1)

    def settle() -> None:
        loader.now += 100

    clock = Clock(40, 4, 0, settle) if loader.clock(monkeypatch) else None
    assert clock is not None and clock.time_epochs(loader, loader.step, 1000).epochs[0] == 104
    many = Simulation(of=50, workers=0, load=1)
    monkeypatch.setattr(stopwatch.time, "perf_counter", lambda: many.now + (loader.now - 104))
    assert Clock(500, 50, 0, settle).time_epochs(many, many.step, 1.5).epochs[0] > 50


@given(
    of=st.integers(30, 200),
    workers=st.integers(0, 8),
    load=st.floats(0.05, 5),
    step=st.floats(0, 5),
    seconds=st.floats(0.1, 20),
)
def test_a_part_says_what_the_steady_state_takes(
    of: int, workers: int, load: float, step: float, seconds: float
) -> None:
    loader = Simulation(of=of, workers=workers, load=load, step=step)
    with pytest.MonkeyPatch.context() as monkeypatch:
        timing = loader.clock(monkeypatch).time_epochs(loader, loader.step, seconds)
    period = load + step if workers == 0 else max(load / workers, step)
    if timing.batches < timing.of:
        assert timing.epochs[0] == pytest.approx(of * period, rel=0.12)
    else:
        first = load if workers else 0.0  # nothing is there when an epoch begins
        rounds = math.ceil(of / max(1, workers)) * max(1, workers)
        assert of * period - 1e-9 <= timing.epochs[0] + 1e-6
        assert timing.epochs[0] <= rounds * period + first + step + load + 1e-6
