"""The number of torch's threads: compared by steps whose time depends on it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

import tensorstore_ds as tsds
from stores import store_of
from tensorstore_ds.annex.training import torch_threads
from tensorstore_ds.annex.training.checkpoint import load
from tensorstore_ds.annex.training.torch_threads import choose_threads, halves, quickest, time_threads
from training_stores import patterns, small

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def threads_kept() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def step(seconds: Callable[[int], float]) -> Callable[..., None]:
    """One that takes a time that depends on the number of torch's threads."""
    return lambda *_: time.sleep(seconds(torch.get_num_threads()))


def test_the_times_of_steps() -> None:
    torch.set_num_threads(3)
    times = time_threads(step(lambda n: 0.02 * n * n), halves(4), seconds=0.3)
    assert list(times) == [4, 2, 1] and torch.get_num_threads() == 3
    assert all(seconds >= 0.02 * n * n for n, seconds in times.items())
    assert quickest(times, 4) == 1


def test_the_number_stays_unless_another_one_is_clearly_quicker() -> None:
    assert quickest({4: 1.0, 2: 0.95, 1: 0.9}, 4) == 4
    assert quickest({4: 1.0, 2: 0.5, 1: 0.9}, 4) == 2
    assert quickest({4: 0.5, 2: 1.0, 1: 2.0}, 1) == 4


class Clock:
    """A clock that only `sleep` moves: a busy machine disturbs no comparison."""

    def __init__(self) -> None:
        self.now = 0.0

    def perf_counter(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def test_a_run_changes_to_a_quicker_number(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    monkeypatch.setattr(torch_threads, "time", clock)
    torch.set_num_threads(2)
    shares: list[float] = []

    def crowded(share: float) -> None:
        shares.append(share)
        clock.sleep(0.05 if torch.get_num_threads() == 2 else 0.001)

    chosen, line = choose_threads(crowded, 2, seconds=0.5, left=500)
    assert chosen == torch.get_num_threads() == 1
    assert line.startswith("torch computes with 1 thread from now on, ") and "`torch_threads`" in line
    assert set(shares) == {0.5}  # a step of 0.25 s
    assert choose_threads(lambda _: clock.sleep(0.01), 2, seconds=0.5, left=500) == (2, "")


def test_a_measurement_takes_a_small_share_of_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[float] = []
    monkeypatch.setattr(torch_threads, "time_threads", lambda *_, seconds: given.append(seconds) or {2: 1.0, 1: 1.0})
    for left in (1000, 20, 8):
        assert choose_threads(step(lambda _: 0), 2, seconds=0.2, left=left) == (2, "")
    assert given == [torch_threads.SECONDS, torch_threads.MOST_COST * 20]  # 8 seconds are not worth one


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return store_of(tmp_path_factory.mktemp("d") / "s.tsds", patterns(48), ["a", "b", "c"]).path


@pytest.mark.parametrize("more", [{}, {"accumulate": 2, "dropout": 0.2, "mix": "mixup", "ema": 0.9}], ids=["", "all"])
def test_measuring_changes_no_result(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, more: dict[str, object]
) -> None:
    """A run that chose its threads has the bits of one that was given them."""
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(torch_threads, "SECONDS", 0.05)
    monkeypatch.setattr(torch_threads, "SHORT", 0.0)
    measured = []
    monkeypatch.setattr(
        torch_threads, "time_threads", lambda *a, **k: measured.append(time_threads(*a, **k)) or {2: 1}
    )  # it stays
    weights = {}
    for name, given in (("measured", None), ("given", 2)):
        torch.set_num_threads(2)
        tsds.train(store, small(epochs=1, torch_threads=given, **more), out=tmp_path / name)
        state = load(tmp_path / name / "last.pt")[1]
        assert state["torch_threads"] == 2
        weights[name] = state["learner"]["model"]
    assert [sorted(times) for times in measured] == [[1, 2]]
    assert all(torch.equal(value, weights["given"][key]) for key, value in weights["measured"].items())


def test_a_run_goes_on_with_the_number_of_its_checkpoint(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tsds.train(store, small(epochs=1, torch_threads=2), out=tmp_path / "run")
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    torch.set_num_threads(3)
    seen: list[int] = []
    listeners = tsds.training.Listeners(epoch=lambda _: seen.append(torch.get_num_threads()))
    tsds.train(store, small(epochs=1), out=tmp_path / "run", resume=True, listeners=listeners)
    assert seen == [2] and torch.get_num_threads() == 3
