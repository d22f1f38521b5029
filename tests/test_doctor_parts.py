"""What a diagnosis measures with: cores, the GIL, storage, rows in memory, runs of a loader, models."""

from __future__ import annotations

import hashlib
import os
import threading
import time

import numpy as np
import pytest
import torch

import tensorstore_ds as tsds
from cold_stores import linux, make_cold, make_store
from stores import store_of
from tensorstore_ds.diagnosis import cores, storage
from tensorstore_ds.diagnosis.copies import copy_times, tensors
from tensorstore_ds.diagnosis.findings import Run
from tensorstore_ds.diagnosis.gil import GilProbe, is_held
from tensorstore_ds.diagnosis.learning import Student, fitting_batch, model_alone
from tensorstore_ds.diagnosis.options import DiagnoseOptions
from tensorstore_ds.diagnosis.rows import loadable_batch, memory_of, warmed
from tensorstore_ds.diagnosis.runs import gain_of, in_turns, loader_of, major_faults, median, run
from tensorstore_ds.diagnosis.settings import Settings
from tensorstore_ds.diagnosis.subject import subject_of
from tensorstore_ds.diagnosis.work import encoding_of
from tensorstore_ds.errors import OptionError
from tensorstore_ds.loading import epoch as loading
from tensorstore_ds.loading.dataset import StoreDataset
from tensorstore_ds.page_cache.residency import residency, total_residency

CPU = torch.device("cpu")
ROWS = 22


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    samples = [{"image": np.full((8, 6, 3), i, np.uint8), "label": i % 2} for i in range(ROWS)]
    return store_of(tmp_path_factory.mktemp("d") / "s.tsds", samples, ["ant", "bee"]).path


@pytest.fixture
def cold(tmp_path):
    return make_cold(make_store(tmp_path / "s.tsds"))


# --- cores ------------------------------------------------------------------------------------------------------


def test_the_least_quota_is_the_limit(tmp_path, monkeypatch):
    monkeypatch.setattr(cores, "cpu_quotas", lambda: {tmp_path / "two": 0.5, tmp_path: 1.5})
    found = cores.examine_cores(None, seconds=0.01)
    assert (found.allowed, found.limited_by) == (0.5, str(tmp_path / "two"))
    assert (found.measured, found.threads) == (1.0, 1)


def test_the_cores_of_this_process():
    found = cores.examine_cores(None, seconds=0.05)
    assert 0 < found.allowed <= found.machine == os.cpu_count()
    assert found.measured > 0
    assert cores.examine_cores(1, seconds=0.01).allowed == 1


# --- the GIL ----------------------------------------------------------------------------------------------------


def probed(work):
    """How long one waits for the GIL while two threads do this, each on and on."""
    stop = threading.Event()

    def on_and_on():
        while not stop.is_set():
            work()

    threads = [threading.Thread(target=on_and_on) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        with GilProbe() as probe:
            time.sleep(0.3)
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    return probe.wait


def test_the_gil_is_waited_for_when_threads_hold_it():
    block = bytes(2**20)
    held = probed(lambda: sum(range(10000)) and [i * i for i in range(20000)])
    free = probed(lambda: hashlib.sha256(block))
    assert held > free
    assert is_held(held - free, 0.001)
    assert GilProbe().wait == 0


# --- storage and memory -----------------------------------------------------------------------------------------


@linux
def test_storage_is_read_past_the_page_cache(cold):
    found = storage.read_storage(cold, [("train", "image"), ("val", "image")], seconds=5)
    if found.rate is None:
        pytest.skip(found.reason)
    assert found.nbytes == sum(r.nbytes for name, r in residency(cold).items() if name.endswith("/image"))
    assert found.rate > 0
    assert total_residency(residency(cold)).resident == 0  # nothing was brought in
    shares = []
    while len(shares) < 3 and 1 not in shares:  # a kernel may take single pages back at any time
        tsds.warm(cold)
        assert storage.read_storage(cold, [("train", "image")], seconds=5).nbytes > 10 * 2**20
        shares.append(total_residency(residency(cold)).share)
    assert 1 in shares  # nothing is dropped


@linux
def test_what_is_read_of_the_storage_is_bounded(cold, monkeypatch):
    monkeypatch.setattr(storage, "MOST_NBYTES", 2**20)
    monkeypatch.setattr(storage, "STEP_NBYTES", 2**18)
    found = storage.read_storage(cold, [("train", "image"), ("val", "image")], seconds=60)
    assert found.rate is None or found.nbytes == 2**20
    one = storage.read_storage(cold, [("train", "image")], seconds=1e-9)
    assert one.rate is None or one.nbytes == 2**18


def test_storage_that_cannot_be_measured_is_said(path, cold, monkeypatch):
    small = storage.read_storage(tsds.open(path), [("train", "image")], seconds=1)
    assert (small.rate, small.reason) == (None, "the store is too small to tell how fast its storage is")
    monkeypatch.setattr("sys.platform", "plan9")
    elsewhere = storage.read_storage(cold, [("train", "image")], seconds=1)
    assert (elsewhere.rate, elsewhere.reason) == (None, "reading past the page cache is not available on plan9")


@linux
def test_memory_and_its_limit(cold):
    subject = subject_of(cold, None, None)
    memory, unknown = memory_of(subject, None)
    assert memory.nbytes == sum(r.nbytes for name, r in residency(cold).items() if name.startswith("train/"))
    assert (memory.resident, unknown) == (0.0, "")
    assert memory.fits and memory.limit == min(tsds.memory_limits().values())
    assert not memory_of(subject, 10**6)[0].fits
    assert warmed(subject, memory, seconds=30) is subject.dataset
    assert memory_of(subject, None)[0].resident == 1.0


@linux
def test_as_much_is_brought_into_memory_as_there_is_room_for(cold):
    subject = subject_of(cold, "train", None)
    few = warmed(subject, memory_of(subject, 12 * 10**6)[0], seconds=30)
    assert 20 < len(few) < 30  # half of the limit is half of the store, and a little is left out
    assert few.rows.tolist() == list(range(len(few)))
    assert len(warmed(subject, memory_of(subject, 1000)[0], seconds=30)) >= 1


def test_a_subset_is_brought_in_as_far_as_its_rows_lie(cold):
    subject = subject_of(StoreDataset(cold.path).subset([59, 3, 58, 4, 2]), None, None)
    assert warmed(subject, memory_of(subject, 12 * 10**6)[0], seconds=30).rows.tolist() == [3, 4, 2]


def test_batches_are_cut_where_a_sample_takes_long(path):
    def nap(sample):
        time.sleep(0.01)
        return sample

    assert loadable_batch(StoreDataset(path), 20, seconds=1000) == 20
    assert loadable_batch(StoreDataset(path, transform=nap), 20, seconds=0.05) <= 5
    assert loadable_batch(StoreDataset(path, transform=nap), 20, seconds=1e-6) == 1


# --- what is examined -------------------------------------------------------------------------------------------


def test_the_split_and_the_data_set(path, cold):
    assert subject_of(path, None, None).dataset.split_name == "train"
    assert subject_of(str(cold.path), "val", None).dataset.split_name == "val"
    dataset = StoreDataset(path, fields=["label"]).subset([3, 4])
    subject = subject_of(dataset, None, None)
    assert subject.dataset is dataset and subject.path is None
    assert subject.columns == [("train", "label")]
    changed = subject_of(dataset, "train", str).dataset
    assert (changed.transform, changed.fields, changed.rows.tolist()) == (str, ("label",), [3, 4])
    assert subject.with_fields(("image",)).dataset.fields == ("image",)
    assert encoding_of(dataset) == "" and encoding_of(StoreDataset(path)) == "raw"


@pytest.mark.parametrize(
    ("split", "message"),
    [("no", "split: expected one of train, found no"), ("", "split: expected one of train, found none")],
)
def test_no_such_split(path, split, message):
    if split:
        with pytest.raises(OptionError, match=message):
            subject_of(path, split, None)
    with pytest.raises(OptionError, match=r"split: expected train, that of the data set, found val"):
        subject_of(StoreDataset(path), "val", None)
    with pytest.raises(OptionError, match="expected samples, found none"):
        subject_of(StoreDataset(path).subset([]), None, None)


@pytest.mark.parametrize(
    "options", [{"model": "huge"}, {"seconds": 0.5}, {"batch_size": 0}, {"cores": 0}, {"memory": 0}, {"num_threads": 0}]
)
def test_options_out_of_range(options):
    with pytest.raises(OptionError, match=next(iter(options))):
        DiagnoseOptions(**options)


# --- runs -------------------------------------------------------------------------------------------------------


def test_a_run_counts_whole_epochs(path):
    seen = []
    settings = Settings(num_threads=2, prefetch_factor=3)
    loader = loader_of(StoreDataset(path), settings, batch_size=10)
    found = run(loader, settings, seconds=0.05, step=seen.append)
    assert found.batches == len(seen) - 1 > 3  # but for the first
    samples = sum(len(batch["label"]) for batch in seen[1:])
    assert samples / found.rate >= 0.05
    assert sorted(len(b["label"]) for b in seen[:3]) == [2, 10, 10]
    assert found.settings is settings and found.batch_size == 10
    assert 0 <= found.wait <= 1 and found.copy == 0 and found.busy > 0


def test_the_first_epoch_is_counted_from_its_first_batch_and_no_further(path):
    loader = loader_of(StoreDataset(path), Settings(), batch_size=10)
    found = run(loader, Settings(), seconds=60, first_epoch=True)
    assert found.batches == 3
    assert found.major_faults is None or found.major_faults >= 0


def test_batches_that_are_ready_together_are_counted_together(path, monkeypatch):
    """Four threads that sleep as long: a wave of four tasks a nap, however the clock falls."""

    def nap(sample):
        time.sleep(0.01)
        return sample

    monkeypatch.setattr(loading, "GROUP_NBYTES", 1)
    settings = Settings(num_threads=4)
    loader = loader_of(StoreDataset(path, transform=nap).subset(np.arange(20).repeat(20)), settings, batch_size=4)
    for seconds in (0.01, 0.09):  # less than a wave, and a little more than two
        assert run(loader, settings, seconds=seconds).batches % 4 == 0


def test_settings_reach_the_loader(path):
    settings = Settings(num_threads=3, prefetch_factor=5, pin_memory=False, block_rows=4, window_blocks=2)
    loader = loader_of(StoreDataset(path), settings, batch_size=10)
    assert (loader.num_threads, loader._prefetch, loader.pin_memory) == (3, 5, False)
    assert isinstance(loader._dealt, tsds.BlockShuffleSampler) and loader._dealt.window_rows == 8
    workers = loader_of(StoreDataset(path), Settings(num_workers=1), batch_size=10)
    assert sum(len(batch["label"]) for batch in workers) == ROWS
    workers._iterator = None  # its processes end


def test_turns():
    order = []

    def one(name, rates):
        def measure(seconds):
            order.append((name, seconds))
            return Run(Settings(), 1, rates.pop(0), 1, 0, 0, 0, 0, 0, 0)

        return measure

    found = in_turns({"a": one("a", [3.0, 9.0, 1.0]), "b": one("b", [4.0, 2.0, 8.0])}, seconds=60, rounds=3)
    assert order == [("a", 10), ("b", 10)] * 3
    assert {name: median(runs).rate for name, runs in found.items()} == {"a": 3.0, "b": 4.0}
    assert median(found["a"][:2]).rate == 9.0
    assert gain_of(found["a"], found["b"]) == 1.0  # slower in the second turn
    assert gain_of(found["a"][::2], found["b"][::2]) == 8.0
    order.clear()
    in_turns({"a": one("a", [1.0]), "b": one("b", [1.0])}, seconds=0, rounds=3)
    assert order == [("a", 0), ("b", 0)]  # out of time after the first turn


def test_page_faults_are_counted_or_not_known():
    found = major_faults()
    assert found is None or found >= 0


# --- models -----------------------------------------------------------------------------------------------------


def test_the_batch_that_fits_into_the_time(path):
    sizes = []

    def step(batch):
        sizes.append(len(batch["label"]))
        time.sleep(0.004 * sizes[-1])

    student = Student("naps", step)
    assert fitting_batch(student, StoreDataset(path), 20, CPU, seconds=10) == (20, "")
    assert set(sizes) == {1, 4, 16, 20}
    size, why = fitting_batch(student, StoreDataset(path), 20, CPU, seconds=0.03)
    assert 1 <= size <= 7 and why.startswith("the model takes")


def test_the_batch_that_fits_into_the_memory(path):
    def step(batch):
        if len(batch["label"]) > 4:
            raise torch.OutOfMemoryError

    student = Student("glutton", step)
    assert fitting_batch(student, StoreDataset(path), 20, CPU, seconds=10) == (
        4,
        "a step of 16 does not fit into the memory of cpu",
    )


def test_the_model_alone(path):
    seen = []
    student = Student("one", seen.append, transform=lambda batch, rows, epoch: (batch, rows.tolist(), epoch))
    found = model_alone(student, StoreDataset(path), 6, CPU, seconds=0.02)
    assert (found.name, found.batch_size) == ("one", 6)
    assert found.seconds == pytest.approx(6 / found.rate)
    assert all(batch is seen[0][0] and rows == list(range(6)) for batch, rows, _ in seen)
    assert [epoch for *_, epoch in seen[:3]] == [0, 1, 2]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_copies_to_a_gpu(cold):
    device = torch.device("cuda", 0)
    student = Student("sum", lambda batch: batch["image"].float().sum())
    found = copy_times(StoreDataset(cold.path), student, 40, device, seconds=1)
    assert found.nbytes == 40 * (256 * 256 * 3 + 8)
    assert min(found.pinned, found.pinned_blocking, found.pageable, found.pageable_blocking) > 0
    assert found.ahead > 0 and found.in_turn > 0
    assert copy_times(StoreDataset(cold.path), None, 40, device, seconds=1).ahead == 0


def test_all_tensors_of_a_batch(path):
    batch = next(iter(loader_of(StoreDataset(path), Settings(), batch_size=3)))
    assert sorted(t.nbytes for t in tensors(batch)) == [24, 3 * 144]
