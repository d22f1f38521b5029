"""What `DataLoader.stats` tells a training script: where the time went."""

from __future__ import annotations

import threading
import time
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from stores import numbered
from tensorstore_ds.loading import crew, epoch as epochs, feed
from tensorstore_ds.loading.dataset import StoreDataset
from tensorstore_ds.loading.device import DevicePrefetcher, IdleTime
from tensorstore_ds.loading.epoch import Epoch, LoaderStats, Position
from tensorstore_ds.loading.loader import DataLoader

ROWS, NAP = 24, 0.004


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return numbered(tmp_path_factory.mktemp("l") / "s.tsds", ROWS).path


def slowly(sample):
    time.sleep(NAP)
    return sample


def one_by_one(path, monkeypatch, **options):
    monkeypatch.setattr(feed, "GROUP_NBYTES", 1)
    return DataLoader(StoreDataset(path, transform=slowly), 4, **options)


@pytest.mark.parametrize("threads", [1, 4])
def test_the_work_of_all_threads_is_summed_up(path, monkeypatch, threads):
    loader = one_by_one(path, monkeypatch, num_threads=threads, device="cpu")
    list(loader)
    stats = loader.stats()
    assert stats.batches == stats.requests == 6
    assert stats.gather >= ROWS * NAP  # each sample slept, whichever thread it was in
    assert stats.wait > 0
    assert stats.copy == stats.idle == 0
    assert DevicePrefetcher([torch.zeros(3)], "cpu").timer.seconds() == 0


def test_the_depth_of_the_queue(path, monkeypatch):
    late = one_by_one(path, monkeypatch, num_threads=1)
    list(late)
    assert late.stats().depth < 1  # every batch is asked for before it is ready
    early = one_by_one(path, monkeypatch, num_threads=4, prefetch_factor=2)
    for _ in early:
        time.sleep(30 * NAP)
    assert early.stats().depth > 2
    assert DataLoader(StoreDataset(path), 4).stats().depth == 0


def test_small_batches_are_asked_for_together_but_for_the_first(path):
    """The first batch waits for no other one, and then twice as many are asked for each time."""
    loader = DataLoader(StoreDataset(path), 4)
    list(loader)
    assert (loader.stats().batches, loader.stats().requests) == (6, 3)


def test_stats_are_a_copy_and_can_be_subtracted(path):
    loader = DataLoader(StoreDataset(path), 4)
    list(loader)
    before = loader.stats()
    kept = replace(before)
    list(loader)
    list(loader)
    assert before == kept
    since = loader.stats() - before
    assert since.batches == 12
    assert since.wait == loader.stats().wait - before.wait
    assert since - since == LoaderStats()


class Event:
    """Stands for a CUDA event, which this machine may not have."""

    def __init__(self, at: float, *, done: bool = True) -> None:
        self.at, self.done = at, done

    def query(self) -> bool:
        return self.done

    def elapsed_time(self, end: Event) -> float:
        return end.at - self.at


def test_a_copy_counts_once_it_is_done():
    from tensorstore_ds.loading.device import GpuTimer

    timer = GpuTimer()
    timer.add(Event(0), Event(250))
    late = Event(700, done=False)
    timer.add(Event(300), late)
    timer.add(Event(700), Event(750))
    assert timer.seconds() == 0.25  # and the third is not looked at before the second
    late.done = True
    assert timer.seconds() == pytest.approx(0.7)
    assert timer.seconds() == pytest.approx(0.7)


class Idle:
    """Stands for `IdleTime`: notes what it is told."""

    def __init__(self, events):
        self.events = events

    def ask(self):
        self.events.append("asked")
        return len(self.events)

    def hand_over(self, asked):
        self.events.append(f"handed over, asked at {asked}")
        return asked == 1


def test_idle_time_is_from_asking_for_a_batch_until_it_is_handed_over():
    events = []

    def begin():
        events.append("begun")
        return Position(), (events.append("made") or (batch, None) for batch in range(2))

    stats = LoaderStats()
    epoch = Epoch(begin, stats, lambda *_: events.append("transformed"), lambda: 2, Idle(events))
    list(epoch)
    each = ["made", "handed over, asked at {}", "transformed"]
    expected = ["asked", "begun", *each, "asked", *each, "asked"]
    assert events == [text.format(1 if place < 5 else 6) for place, text in enumerate(expected)]
    assert (stats.batches, stats.drained) == (2, 1)


def test_who_waits_for_the_loader(path):
    loader = DataLoader(StoreDataset(path), 4)
    stats = LoaderStats(wait=0.5, idle=0.1)
    assert loader.starved(stats) == 0.5
    loader._idle = IdleTime(torch.device("cuda", 0))
    assert loader.starved(stats) == 0.1


@pytest.mark.gpu
@pytest.mark.parametrize("options", [{}, {"residency": "device"}, {"num_workers": 1}])
def test_the_idle_time_of_a_gpu(path, options):
    loader = DataLoader(StoreDataset(path), 4, device="cuda", **options)
    assert loader.stats().idle == 0
    list(loader)
    torch.cuda.synchronize()
    stats = loader.stats()
    assert 0 < stats.idle < 60 and loader.starved(stats) == stats.idle


@pytest.mark.gpu
def test_copies_to_a_gpu_are_timed(path):
    loader = DataLoader(StoreDataset(path), 4, device="cuda")
    for _ in range(3):
        list(loader)
    torch.cuda.synchronize()
    assert 0 < loader.stats().copy < 60
    before = loader.stats()
    list(loader)
    torch.cuda.synchronize()
    assert loader.stats().copy > before.copy


# --- the cause: by a clock that only moves where a test lets time pass ------------------------------------------


class Clock:
    """Seconds that a loader measures."""

    def __init__(self, monkeypatch):
        self.now = 0.0
        for module in (crew, feed, epochs):
            monkeypatch.setattr(module, "time", SimpleNamespace(perf_counter=lambda: self.now))

    def spend(self, seconds=1.0):
        self.now += seconds


@pytest.fixture
def clock(monkeypatch):
    return Clock(monkeypatch)


def spent(loader, step=lambda: None):
    """Seconds of an epoch: waiting, of these for batches that were not finished, batch transforms, and the script."""
    before = loader.stats()
    for _ in loader:
        step()
    stats = loader.stats() - before
    return (stats.wait, stats.late, stats.transform, stats.script), stats.cause


def test_threads_that_are_too_slow(path, clock, monkeypatch):
    asked, wait = threading.Semaphore(0), crew.Task.wait

    def noted(task, timeout=-1):
        asked.release()
        return wait(task, timeout)

    def slowly(samples):
        asked.acquire()  # no batch is begun before it is asked for
        clock.spend()
        return samples

    monkeypatch.setattr(crew.Task, "wait", noted)
    loader = DataLoader(StoreDataset(path, transform=dict), 4, num_threads=1, collate_fn=slowly)
    for _ in range(2):
        assert spent(loader) == ((6, 6, 0, 0), "loading")
    assert spent(loader, lambda: clock.spend(100)) == ((6, 6, 0, 600), "training")


def test_finished_batches_that_are_handed_over_late(path, clock, monkeypatch):
    wait = crew.Task.wait

    def woken_late(task, timeout=-1):
        is_done = wait(task, timeout)
        clock.spend()  # as by another thread that holds the GIL
        return is_done

    monkeypatch.setattr(crew.Task, "wait", woken_late)
    loader = DataLoader(StoreDataset(path, transform=dict), 4)
    assert spent(loader) == ((6, 0, 0, 0), "handover")
    assert spent(loader, lambda: clock.spend(3)) == ((6, 0, 0, 18), "handover")


def test_batches_that_are_transformed_in_the_thread_of_the_script(path, clock):
    loader = DataLoader(StoreDataset(path), 4, batch_transform=lambda *_: clock.spend())
    assert spent(loader) == ((0, 0, 6, 0), "handover")


@pytest.mark.parametrize("options", [{}, {"into": "first"}, {"residency": "device"}, {"collate": "list"}])
def test_training_that_waits_for_nothing(path, clock, options):
    loader = DataLoader(StoreDataset(path), 4, device="cpu", **options)
    assert loader.stats().cause == ""
    for _ in range(2):
        assert spent(loader, clock.spend) == ((0, 0, 0, 6), "training")
    clock.spend(100)  # between epochs
    assert loader.stats().script == 12


def test_of_batches_by_workers_it_is_only_known_that_they_are_late(path):
    loader = DataLoader(StoreDataset(path), 4, num_workers=1)
    list(loader)
    assert loader.stats().late == loader.stats().wait > 0


@pytest.mark.parametrize(
    ("stats", "cause"),
    [
        (LoaderStats(), ""),
        (LoaderStats(batches=9, wait=5.0, late=5.0, script=100.0), "training"),
        (LoaderStats(batches=9, wait=6.0, late=3.0, script=100.0), "loading"),
        (LoaderStats(batches=9, wait=6.0, late=2.9, script=100.0), "handover"),
        (LoaderStats(batches=9, wait=3.0, late=3.0, transform=4.0, script=100.0), "handover"),
        # a GPU may work while the host waits, or wait for a copy while the host does not
        (LoaderStats(batches=9, wait=60.0, late=60.0, script=40.0, idle=1.0), "training"),
        (LoaderStats(batches=9, wait=60.0, late=60.0, script=40.0, copy=0.1), "training"),
        (LoaderStats(batches=9, wait=60.0, late=60.0, script=40.0, idle=20.0, drained=2), "loading"),
        (LoaderStats(batches=9, wait=0.1, late=0.1, script=100.0, idle=20.0), "handover"),
        (LoaderStats(batches=9, wait=0.1, script=100.0, idle=0.1, drained=4), "training"),
        (LoaderStats(batches=9, wait=0.1, script=100.0, idle=0.1, drained=5), "script"),
    ],
)
def test_the_cause_by_its_numbers(stats, cause):
    assert stats.cause == cause


@pytest.mark.gpu
def test_a_gpu_that_waits_for_the_script(path, clock, monkeypatch):
    tasks, submit, ask = [], crew.Crew.submit, IdleTime.ask

    def noted(threads, make):
        tasks.append(submit(threads, make))
        return tasks[-1]

    def at_once(idle):
        event = ask(idle)
        torch.cuda.synchronize()  # a GPU that is quicker than any script
        return event

    def step():
        clock.spend(100)
        assert all(task.wait() for task in tasks)  # so that the next batch is ready

    monkeypatch.setattr(crew.Crew, "submit", noted)
    loader = DataLoader(StoreDataset(path, transform=dict), 4, device="cuda")
    spent(loader, step)
    assert loader.stats().drained <= 6
    monkeypatch.setattr(IdleTime, "ask", at_once)
    before = loader.stats()
    spent(loader, step)
    torch.cuda.synchronize()
    stats = loader.stats() - before
    assert stats.batches == 6 and 5 <= stats.drained <= 6
    assert stats.cause == "script"


@pytest.mark.gpu
def test_whether_a_gpu_has_finished_all_earlier_work():
    idle = IdleTime(torch.device("cuda", 0))
    asked = idle.ask()
    torch.cuda.synchronize()
    assert idle.hand_over(asked)
