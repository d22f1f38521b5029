"""What a diagnosis measures of loading: the GIL, rows in memory, runs of a loader."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import tensorstore_ds as tsds
from cold_stores import linux
from stores import numbered
from tensorstore_ds.annex.measuring import measure_loading as module
from tensorstore_ds.annex.measuring.diagnosis_results import Run, Settings, TransformRun
from tensorstore_ds.annex.measuring.measure_loading import (
    disturbance,
    encoding_of,
    gain_of,
    loadable_batch,
    loader_of,
    major_faults,
    median,
    remade,
    run,
    warmed,
)
from tensorstore_ds.annex.measuring.measure_machine import measure_memory
from tensorstore_ds.annex.measuring.verdicts import holds_gil
from tensorstore_ds.loading import feed
from tensorstore_ds.loading.dataset import StoreDataset
from tensorstore_ds.page_cache.residency import residency

ROWS = 22
TRAIN = [("train", "image"), ("train", "label")]


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return numbered(tmp_path_factory.mktemp("d") / "s.tsds", ROWS).path


# --- the GIL ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wait", "sample", "held"),
    [(0.006, 0.05, True), (0.0007, 0.001, True), (0.00004, 0.002, False), (1e-4, 1e-4, False)],
)
def test_the_gil_is_held_where_others_wait_long_for_it(wait, sample, held):
    assert holds_gil(TransformRun(60000.0, 1 / sample, 1 / sample, 2, gil_wait=wait)) == held


@linux
def test_memory_and_its_limit(cold):
    dataset = StoreDataset(cold.path)
    memory = measure_memory(cold, TRAIN, None)
    assert memory.nbytes == sum(r.nbytes for name, r in residency(cold).items() if name.startswith("train/"))
    assert (memory.resident, memory.reason) == (0.0, "")
    assert memory.fits and memory.limit == pytest.approx(tsds.page_cache.memory_limit(), rel=0.2)  # others use it, too
    assert not measure_memory(cold, TRAIN, 10**6).fits
    assert warmed(cold, dataset, memory, seconds=30) is dataset
    assert measure_memory(cold, TRAIN, None).resident == 1.0


@linux
def test_as_much_is_brought_into_memory_as_there_is_room_for(cold):
    few = warmed(cold, StoreDataset(cold.path), measure_memory(cold, TRAIN, 12 * 10**6), seconds=30)
    assert 20 < len(few) < 30  # half of the limit is half of the store, and a little is left out
    assert few.rows.tolist() == list(range(len(few)))
    assert len(warmed(cold, StoreDataset(cold.path), measure_memory(cold, TRAIN, 1000), seconds=30)) >= 1
    subset = StoreDataset(cold.path).subset([59, 3, 58, 4, 2])  # as far as its rows lie
    assert warmed(cold, subset, measure_memory(cold, TRAIN, 12 * 10**6), seconds=30).rows.tolist() == [3, 4, 2]


def test_a_data_set_with_other_fields_keeps_its_arguments(path):
    dataset = StoreDataset(path, return_as="tuple", as_pil=True, transform=np.asarray, transform_of="image").subset([4])
    label, image = remade(dataset, ["label"], None), remade(dataset, ["image"], np.array)
    assert image[0][0].shape == (8, 6, 3) and image[0][0][0, 0, 0] == 4  # as_pil and transform_of
    assert label[0] == (0,) and not label._by_sample
    assert dataset.transform is np.asarray and dataset.fields == ("image", "label")
    assert encoding_of(StoreDataset(path, fields=["label"])) == "" and encoding_of(StoreDataset(path)) == "raw"


def nap(sample):
    time.sleep(0.01)
    return sample


def test_batches_are_cut_where_a_sample_takes_long(path):
    assert loadable_batch(StoreDataset(path), 20, seconds=1000) == 20
    assert loadable_batch(StoreDataset(path, transform=nap), 20, seconds=0.05) <= 5
    assert loadable_batch(StoreDataset(path, transform=nap), 20, seconds=1e-6) == 1


# --- runs -------------------------------------------------------------------------------------------------------


def test_a_run_counts_whole_epochs(path):
    seen = []
    settings = Settings(num_threads=2, prefetch_factor=3)
    loader = loader_of(StoreDataset(path), settings, 10)
    found = run(loader, settings, seconds=0.05, step=seen.append)
    assert found.batches == len(seen) - 1 > 3  # but for the first
    samples = sum(len(batch["label"]) for batch in seen[1:])
    assert samples / found.rate >= 0.05
    assert sorted(len(b["label"]) for b in seen[:3]) == [2, 10, 10]
    assert found.settings is settings and found.batch_size == 10
    assert 0 <= found.wait <= 1 and found.copy == 0 and found.busy > 0


def test_the_first_epoch_is_counted_from_its_first_batch_and_no_further(path, monkeypatch):
    loader = loader_of(StoreDataset(path), Settings(), batch_size=10)
    monkeypatch.setattr(module, "major_faults", iter([5, 12]).__next__)
    found = run(loader, Settings(), seconds=60, first_epoch=True)
    assert (found.batches, found.major_faults) == (3, 7)


def test_batches_that_are_ready_together_are_counted_together(path, monkeypatch):
    """Four threads that sleep as long: a wave of four tasks a nap, however the clock falls."""
    monkeypatch.setattr(feed, "GROUP_NBYTES", 1)
    settings = Settings(num_threads=4)
    loader = loader_of(StoreDataset(path, transform=nap).subset(np.arange(20).repeat(20)), settings, batch_size=4)
    for seconds in (0.01, 0.09):  # less than a wave, and a little more than two
        assert run(loader, settings, seconds=seconds).batches % 4 == 0


def test_settings_reach_the_loader(path):
    settings = Settings(num_threads=3, prefetch_factor=5, block_rows=4, window_blocks=2)
    loader = loader_of(StoreDataset(path), settings, 10)
    assert (loader.num_threads, loader._prefetch) == (3, 5)
    assert isinstance(loader._ranked_sampler, tsds.BlockShuffleSampler) and loader._ranked_sampler.window_rows == 8
    workers = loader_of(StoreDataset(path), Settings(num_workers=1), batch_size=10)
    assert sum(len(batch["label"]) for batch in workers) == ROWS
    workers._iterator = None  # its processes end


def test_small_operations_beside_a_loader(monkeypatch):
    """By a clock that only operations move on: they take 1 ms alone, and 2.5 ms beside a loader that works."""
    now, working = [0.0], []

    class Small:
        def add_(self, number):
            now[0] += 0.0025 if working else 0.001

    class Loader:
        batch_size, sampler = 1, range(3)

        def __iter__(self):
            working.append(True)
            try:
                yield from self.sampler
            finally:
                working.clear()

    monkeypatch.setattr(module, "torch", SimpleNamespace(zeros=lambda size: Small()))
    monkeypatch.setattr(module, "time", SimpleNamespace(perf_counter=lambda: now[0]))
    assert disturbance(Loader, seconds=20) == pytest.approx(2.5)
    assert not working  # it is not left at work


def test_a_loader_that_was_measured_beside_others_is_gone(path):
    before = set(threading.enumerate())
    assert disturbance(lambda: loader_of(StoreDataset(path), Settings(num_threads=2), 4), seconds=0.01) > 0
    assert not [each for each in set(threading.enumerate()) - before if each.name.startswith("tsds")]


def test_the_middle_of_several_runs_and_the_gain_of_turns():
    a, b = ([Run(Settings(), 1, rate, 1, 0, 0, 0, 0, 0, 0) for rate in rates] for rates in ((3, 9, 1), (4, 2, 8)))
    assert (median(a).rate, median(b).rate, median(a[:2]).rate) == (3, 4, 9)
    assert gain_of(a, b) == 1.0  # slower in the second turn
    assert gain_of(a[::2], b[::2]) == 8.0


@linux
def test_page_faults_are_those_that_the_kernel_counts():
    def counted():
        return int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[9])

    before, found = counted(), major_faults()
    assert before <= found <= counted()
