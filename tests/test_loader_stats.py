"""What `DataLoader.stats` tells a training script: where the time went."""

from __future__ import annotations

import time

import numpy as np
import pytest
import torch

from stores import store_of
from tensorstore_ds.loading import feed
from tensorstore_ds.loading.dataset import StoreDataset
from tensorstore_ds.loading.device import DevicePrefetcher, IdleTime
from tensorstore_ds.loading.epoch import Epoch, LoaderStats, Position
from tensorstore_ds.loading.loader import DataLoader

ROWS, NAP = 24, 0.004


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    samples = [{"image": np.full((8, 6, 3), i, np.uint8), "label": i % 7} for i in range(ROWS)]
    return store_of(tmp_path_factory.mktemp("l") / "s.tsds", samples, list("abcdefg")).path


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
    kept = LoaderStats(before.batches, before.wait, before.gather, before.copy, before.ready, before.requests)
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


def test_idle_time_is_from_asking_for_a_batch_until_it_is_handed_over():
    events = []

    def begin():
        events.append("begun")
        return Position(), (events.append("made") or (batch, None) for batch in range(2))

    epoch = Epoch(begin, LoaderStats(), lambda *_: events.append("transformed"), lambda: 2, Idle(events))
    list(epoch)
    each = ["made", "handed over, asked at {}", "transformed"]
    expected = ["asked", "begun", *each, "asked", *each, "asked"]
    assert events == [text.format(1 if place < 5 else 6) for place, text in enumerate(expected)]


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
