"""`diagnose`: each verdict on a store or a training that is built to have that bottleneck."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import multiprocessing
import random
import threading
import time

import numpy as np
import pytest
import torch

import tensorstore_ds as tsds
from cold_stores import linux
from global_state import global_state
from stores import detections, store_of
from tensorstore_ds.annex.measuring import measure_machine
from tensorstore_ds.annex.measuring.diagnose_options import DiagnoseOptions
from tensorstore_ds.annex.measuring.diagnosis import code_of, dataset_of, diagnose
from tensorstore_ds.annex.measuring.diagnosis_results import Settings
from tensorstore_ds.annex.measuring.verdicts import BUSY, judge
from tensorstore_ds.errors import OptionError
from tensorstore_ds.loading.dataset import StoreDataset
from tensorstore_ds.page_cache.residency import residency, total_residency

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("one_thread")]
quiet = pytest.mark.quiet  # a verdict follows from how quick one thing is beside another


def noise(rows, shape):
    rng = np.random.default_rng(0)
    return [{"image": rng.integers(0, 256, shape, np.uint8), "label": i % 2} for i in range(rows)]


@pytest.fixture(scope="module")
def digits(tmp_path_factory):
    """Small gray images: a model that learns from them is quick."""
    return store_of(tmp_path_factory.mktemp("d") / "s.tsds", noise(96, (28, 28, 1)), ["ant", "bee"]).path


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    """Images of 442 kB: a batch of four is a task of its own."""
    return store_of(tmp_path_factory.mktemp("p") / "s.tsds", noise(24, (384, 384, 3)), ["ant", "bee"]).path


def found_in(store, *, seconds=1.5, model="none", **options):
    """A diagnosis, and its verdicts by their codes."""
    other = {name: options.pop(name) for name in ("transform", "step", "progress") if name in options}
    found = diagnose(store, DiagnoseOptions(model=model, seconds=seconds, device="cpu", **options), **other)
    return found, {verdict.code: verdict for verdict in found.verdicts}


# --- loading ----------------------------------------------------------------------------------------------------


@quiet
@linux
def test_a_store_that_is_not_in_memory_yet(cold):
    found, verdicts = found_in(cold.path, batch_size=16)
    assert found.verdicts[0].code == "storage-bound"
    assert "tsds warm" in verdicts["storage-bound"].change
    assert found.measured.memory.resident == 0
    assert found.measured.first_epoch.rate < found.measured.current.rate
    assert total_residency(residency(tsds.open(cold.path))).resident > 0  # it is read, as training reads it


@quiet
@linux
def test_a_store_that_is_larger_than_its_limit(large_store):
    found, verdicts = found_in(large_store.path, memory=4 * 10**6, batch_size=16)
    assert "BlockShuffleSampler" in verdicts["does-not-fit"].change
    assert verdicts["does-not-fit"].evidence["limit"] == 4 * 10**6
    assert found.measured.memory.limited_by == "the option memory"
    assert found.recommended.block_rows > 0
    assert isinstance(pasted(found).sampler, tsds.BlockShuffleSampler)


@quiet
@pytest.mark.parametrize(
    ("kept", "code", "advice"),
    [
        ({"encoding": "jpeg"}, "decode-bound", ("`size`", '`encoding="raw"`')),
        ({"layout": "zarr"}, "compressed", ("repack",)),
    ],
)
def test_a_store_that_has_to_be_decoded(tmp_path, kept, code, advice):
    path = store_of(tmp_path / "s.tsds", noise(24, (64, 64, 3)), ["ant", "bee"], **kept).path
    found, verdicts = found_in(path)
    assert all(word in verdicts[code].change for word in advice)
    kinds = kept.get("layout", "memmap"), kept.get("encoding", "raw")
    assert (found.measured.layout, found.measured.encoding) == kinds
    assert (code == "decode-bound") == (found.measured.decoding is not None)
    if found.measured.decoding is not None:
        assert ("as `decode`" in verdicts[code].change) == ("decode=" not in found.code)


def python_only(sample):
    """Holds the GIL for some milliseconds."""
    total = 0
    for number in range(60_000):
        total += number * number
    return {**sample, "total": total}


@quiet
def test_a_transform_that_holds_the_gil(photos):
    found, verdicts = found_in(photos, transform=python_only, batch_size=4, seconds=3)
    assert "num_workers" in verdicts["transform-holds-gil"].change
    transform = found.measured.transform
    assert transform.several < transform.without
    assert transform.gil_wait > 0
    assert not multiprocessing.active_children()  # what was tried is gone


def asleep(sample):
    """Waits for something else, as for a network, without the GIL."""
    time.sleep(0.004)
    return sample


@quiet
def test_too_few_threads(photos):
    before = set(threading.enumerate())
    found, verdicts = found_in(photos, transform=asleep, batch_size=4, num_threads=1, seconds=3)
    assert found.measured.current.settings == Settings(num_threads=1)
    assert found.recommended.num_threads > 1 or found.recommended.num_workers > 1
    assert found.gain > 1
    assert f"={found.recommended.num_threads or found.recommended.num_workers}" in found.code
    assert "transform-bound" in verdicts and "transform-holds-gil" not in verdicts
    assert found.recommended.num_workers or "loader-settings" in verdicts
    left = set(threading.enumerate()) - before
    assert not [thread for thread in left if thread.name.startswith("tsds")]
    assert not multiprocessing.active_children()


BLOCK = bytes(2**20)


def busy(sample):
    """Works without the GIL."""
    hashlib.sha256(BLOCK)
    return sample


def test_where_the_best_rate_was_measured(digits):
    measured = found_in(digits, seconds=1)[0].measured
    for best, words in {
        Settings(): "in the default number of threads",
        Settings(num_threads=1): "in 1 thread",
        Settings(num_threads=4): "in 4 threads",
        Settings(num_workers=2): "in 2 worker processes",
        Settings(residency="device"): "from a copy on the device",
    }.items():
        fastest = dataclasses.replace(measured.best, settings=best, rate=10 * measured.best.rate)
        verdicts = judge(dataclasses.replace(measured, layout="zarr", runs=(fastest,)))
        assert next(each.line for each in verdicts if each.code == "compressed").endswith(f"at best, {words}.")


@quiet
def test_more_work_than_cores(photos, monkeypatch):
    monkeypatch.setattr(measure_machine, "core_limits", lambda: {"quota": 1.0})
    for _ in range(5):  # where other processes have the cores, this one cannot keep one busy
        found, verdicts = found_in(photos, transform=busy, batch_size=4, seconds=3)
        if max(run.busy for run in (found.measured.current, *found.measured.runs)) >= BUSY:
            break
    assert verdicts["cores-limited"].evidence["cores"] == 1
    assert found.measured.cores.limited_by in ("quota", "")


# --- the model --------------------------------------------------------------------------------------------------


@quiet
def test_a_model_that_is_the_limit(digits):
    found, verdicts = found_in(digits, model="base", batch_size=4, seconds=2)
    assert found.verdicts[0].code == "model-bound"
    assert verdicts["model-bound"].evidence["wait"] < 0.5
    assert found.measured.model.name == "base"
    assert found.recommended == Settings() and found.gain == 1
    assert found.code.endswith("loader = tsds.DataLoader(dataset, batch_size=4, shuffle=True)")
    assert len(pasted(found)) == 24


@quiet
def test_more_threads_of_torch_than_cores(digits):
    torch.set_num_threads(32)
    try:
        found, verdicts = found_in(digits, model="seed", batch_size=4, seconds=3)
        assert torch.get_num_threads() == 32
    finally:
        torch.set_num_threads(1)
    model = found.measured.model
    assert model.threads == 32 and model.fewer_threads in (16, 8, 4, 2, 1) and model.fewer_rate > model.rate
    call = f"torch.set_num_threads({model.fewer_threads})"
    assert call in verdicts["too-many-torch-threads"].change
    assert found.code.splitlines()[0] == call


@quiet
def test_a_step_of_ones_own(photos):
    seen = []

    def step(batch):
        seen.append(len(batch["label"]))
        time.sleep(0.1)  # batches come in time on a busy machine, too

    found, verdicts = found_in(photos, step=step, batch_size=5, model="tiny", seconds=3)
    assert "model-bound" in verdicts
    assert found.measured.model.name == "the step that was given"
    assert 1 in seen and max(seen) <= 20  # tried from one sample on; four times as many as asked for at most


@quiet
@pytest.mark.parametrize(
    ("samples", "classes", "reason"),
    [
        ([{"image": np.zeros((9, 9, 3), np.uint8)}] * 5, [], "expected labels, keypoints or objects"),
        (noise(5, (9, 9, 3)), ["ant"], "labels of one class"),
    ],
)
def test_nothing_to_learn_from(tmp_path, samples, classes, reason):
    if classes:
        samples = [{**sample, "label": 0} for sample in samples]
    found, verdicts = found_in(store_of(tmp_path / "s.tsds", samples, classes).path, model="tiny")
    assert found.measured.model is None and found.measured.together is None
    assert "gather-bound" in verdicts
    assert found.not_measured[0].startswith("training: no model learns from this store")


def of_sizes(path, *sizes, **options):
    """A store of images of these heights and widths."""
    rng = np.random.default_rng(0)
    samples = [{"image": rng.integers(0, 256, (*size, 3), np.uint8), "label": i % 2} for i, size in enumerate(sizes)]
    return store_of(path, samples, ["ant", "bee"], **{"encoding": "jpeg", **options}).path


def test_images_of_many_sizes_and_objects(tmp_path):
    many = of_sizes(tmp_path / "s.tsds", *((8 + i, 9) for i in range(6)))
    objects = store_of(tmp_path / "o.tsds", detections(9), ["ant", "bee"]).path
    for path in (many, objects):
        found, _ = found_in(path, model="seed", batch_size=3, seconds=1)
        assert found.measured.model.name == "seed" and found.measured.together.batches >= 1
        assert not any(note.startswith("training") for note in found.not_measured)


def test_a_transform_whose_samples_no_model_takes_and_one_that_fails(photos):
    found, _ = found_in(photos, transform=lambda sample: {"picture": sample["image"]}, model="seed")
    start = "training: the model does not take what the transform makes"
    assert any(note.startswith(start) for note in found.not_measured) and found.measured.model is None
    with pytest.raises(ZeroDivisionError):
        found_in(photos, transform=lambda sample: 1 / 0)


# --- what is examined -------------------------------------------------------------------------------------------


def test_the_split_and_the_data_set(digits, large_store):
    assert dataset_of(digits, None, None).split_name == "train"
    assert dataset_of(str(large_store.path), "val", None).split_name == "val"
    assert dataset_of(large_store, None, None).path == large_store.path
    dataset = StoreDataset(digits, fields=["label"]).subset([3, 4])
    assert dataset_of(dataset, None, None) is dataset
    changed = dataset_of(dataset, "train", str)
    assert (changed.transform, changed.fields, changed.rows.tolist()) == (str, ("label",), [3, 4])
    for given, split, message in (
        (digits, "no", "`split`: expected one of train, found no"),
        (StoreDataset(digits), "val", "`split`: expected the data set's split train, found val"),
        (StoreDataset(digits).subset([]), None, "expected samples, found none"),
    ):
        with pytest.raises(OptionError, match=message):
            dataset_of(given, split, None)


# --- what comes out ---------------------------------------------------------------------------------------------


def pasted(found):
    """The loader that the code makes."""
    names = {"tsds": tsds, "torch": torch}
    exec(found.code, names)  # noqa: S102
    return names["loader"]


def test_the_code_to_paste(photos):
    options = {"batch_size": 3, "device": "cuda:0"}
    alone = code_of(StoreDataset(photos), None, Settings(), **options)
    assert alone == "loader = tsds.DataLoader(dataset, batch_size=3, shuffle=True, device='cuda:0')"
    dataset = dataset_of(photos, None, busy)
    made = code_of(dataset, str(photos), Settings(num_workers=2), batch_size=3, device="cpu")
    assert made == (
        f"dataset = tsds.StoreDataset({str(photos)!r}, 'train', transform=transform)\n"
        "loader = tsds.DataLoader(dataset, batch_size=3, shuffle=True, num_workers=2, persistent_workers=True)"
    )


@pytest.mark.drawn(1)
@pytest.mark.parametrize("model", ["none", "seed"])
def test_the_code_decodes_as_it_was_measured(tmp_path, model):
    path = of_sizes(tmp_path / "s.tsds", *((40 + i, 50) for i in range(8)))
    options = {"model": model, "batch_size": 4, "image_size": (32, 24), "seconds": 1}
    found, _ = found_in(path, **options)
    assert next(iter(pasted(found)))["image"].shape == (4, 3, 32, 24)
    dataset = StoreDataset(path, decode=tsds.RandomResizedCrop((32, 24), seed=3))
    assert "decode" not in found_in(dataset, **options)[0].code


@pytest.mark.parametrize(
    ("encoding", "plan", "note"),
    [
        ("jpeg", tsds.RandomResizedCrop((24, 32)), ""),
        ("raw", tsds.RandomResizedCrop((24, 32)), ""),
        ("jpeg", tsds.Resize(16), "expected a plan that makes images of one size"),
    ],
)
def test_the_model_takes_what_the_plan_of_a_data_set_makes(tmp_path, encoding, plan, note):
    sizes = [(40 + i * bool(note), 50) for i in range(8)]
    path = of_sizes(tmp_path / "s.tsds", *sizes, encoding=encoding)
    found, _ = found_in(StoreDataset(path, decode=plan), model="seed", batch_size=4, seconds=1)
    assert (found.measured.model is None) == bool(note)
    assert [note in each for each in found.not_measured if "no model learns" in each] == ([True] if note else [])


@quiet
def test_what_is_measured_is_told_and_no_longer_than_asked(digits):
    told = []
    began = time.monotonic()
    found, _ = found_in(digits, seconds=2, progress=told.append)
    assert found.seconds <= time.monotonic() - began < 20
    assert told[0] == "the loader, as the store was found" and len(told) == len(set(told)) >= 4
    assert "training: the model none was chosen, loading alone was examined" in found.not_measured
    assert found.path == str(digits) and found.device == "cpu"
    assert json.loads(json.dumps(dataclasses.asdict(found)))["measured"]["device"] == "cpu"


@quiet
def test_a_slow_model_is_measured_with_smaller_batches(digits):
    found, _ = found_in(digits, step=lambda batch: time.sleep(0.05 * len(batch["image"])), batch_size=64)
    assert found.batch_size == 64
    assert found.measured.model.batch_size < 64
    assert any(note.startswith("steps of 64 samples: steps of") for note in found.not_measured)


def test_the_scripts_random_state_and_threads_stay(digits):
    def restless(sample):
        random.random()
        np.random.random()
        return sample

    before = global_state()
    diagnosis = diagnose(digits, DiagnoseOptions(model="seed", seconds=1, device="cpu", batch_size=8))
    assert diagnosis.measured.model  # a model was made, and learned
    assert global_state() == before
    diagnose(digits, DiagnoseOptions(model="none", seconds=1, device="cpu"), transform=restless)
    assert global_state() == before
    with pytest.raises(ZeroDivisionError):
        diagnose(digits, DiagnoseOptions(model="none", seconds=1, device="cpu"), transform=lambda sample: 1 / 0)
    assert global_state() == before


# --- a GPU ------------------------------------------------------------------------------------------------------


@quiet
@pytest.mark.gpu("times")
def test_on_a_gpu(photos):
    options = DiagnoseOptions(model="tiny", seconds=6)
    found = diagnose(photos, options)
    assert found.device.startswith("cuda")
    assert any(run.settings.residency == "device" for run in found.measured.runs)
    assert found.measured.together.copy > 0
