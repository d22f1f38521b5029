"""`DataLoader`: every sample, in order, once; held batches stay; nothing is left behind."""

import functools
import gc
import subprocess
import sys
import threading
import weakref
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch.utils import data
from torch.utils.data import BatchSampler, RandomSampler, Subset, TensorDataset, WeightedRandomSampler
from torch.utils.data.distributed import DistributedSampler

from stores import detections, store_of
from tensorstore_ds.errors import OptionError, ResidencyError
from tensorstore_ds.loading import epoch as loading
from tensorstore_ds.loading.augment.geometry import RandomCrop
from tensorstore_ds.loading.block_shuffle import BlockShuffleSampler
from tensorstore_ds.loading.collate import PADDED_LABEL
from tensorstore_ds.loading.dataset import StoreDataset
from tensorstore_ds.loading.device import DevicePrefetcher, with_index
from tensorstore_ds.loading.loader import DataLoader
from tensorstore_ds.loading.mixed import MixedDataset
from tensorstore_ds.loading.resident import choose
from tensorstore_ds.loading.samplers import ShuffleSampler

ROWS = 103
SAMPLES = [{"image": np.full((8, 6, 3), i, np.uint8), "label": i % 7} for i in range(ROWS)]
CLASSES = list("abcdefg")


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return store_of(tmp_path_factory.mktemp("l") / "s.tsds", SAMPLES, CLASSES, shard_nbytes=40 * 144).path


@pytest.fixture(scope="module")
def objects(tmp_path_factory):
    return store_of(tmp_path_factory.mktemp("o") / "s.tsds", detections(11), ["ant", "bee"]).path


def rows(batches):
    return [int(v) for batch in batches for v in batch["image"][:, 0, 0, 0]]


def loader_threads():
    return [t for t in threading.enumerate() if t.name.startswith("tsds-loader")]


def test_batches_are_the_samples_in_order(path):
    for batch in (found := list(DataLoader(StoreDataset(path), 10, num_threads=3))):
        assert batch["image"].dtype == torch.uint8
        assert batch["image"].is_contiguous(memory_format=torch.channels_last)
        assert (batch["image"] == batch["image"][:, :1, :1, :1]).all()
        assert torch.equal(batch["label"], batch["image"][:, 0, 0, 0].long() % 7)
    assert rows(found) == list(range(ROWS))
    assert [len(b["label"]) for b in found] == [10] * 10 + [3]
    assert len(DataLoader(StoreDataset(path), 10)) == 11
    assert rows(DataLoader(StoreDataset(path), 10, drop_last=True)) == list(range(100))
    assert len(DataLoader(StoreDataset(path), 10, drop_last=True)) == 10


@settings(max_examples=25, deadline=None)
@given(
    batch_size=st.integers(1, 120),
    threads=st.integers(1, 4),
    prefetch=st.integers(1, 3),
    group=st.sampled_from([1, 500, 10**6]),
)
def test_shuffled_every_sample_once_whatever_the_threads(path, batch_size, threads, prefetch, group):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loading, "GROUP_NBYTES", group)
        loader = DataLoader(
            StoreDataset(path), batch_size, shuffle=True, num_threads=threads, prefetch_factor=prefetch, seed=3
        )
        first, second = rows(loader), rows(loader)
    assert sorted(first) == sorted(second) == list(range(ROWS))
    assert first != second
    assert first == ShuffleSampler(ROWS, seed=3).rows().tolist()


def test_held_batches_never_change(path):
    loader = DataLoader(StoreDataset(path), 10, shuffle=True, num_threads=2)
    held = [(batch["image"], batch["image"].clone(), batch["image"][2:3]) for _ in range(3) for batch in loader]
    for _ in range(3):
        for _ in loader:
            pass
    for image, copy, view in held:
        assert torch.equal(image, copy)
        assert torch.equal(view, copy[2:3])


@pytest.mark.parametrize("how", ["list", "padded", "packed"])
def test_objects(objects, how):
    samples = detections(11)
    for number, batch in enumerate(DataLoader(StoreDataset(objects), 4, collate=how, num_threads=2)):
        expected = samples[4 * number : 4 * number + 4]
        found = batch["objects"]
        if how == "list":
            for one, sample in zip(found, expected, strict=True):
                np.testing.assert_allclose(one["boxes"], sample["boxes"], rtol=1e-6)
        elif how == "padded":
            assert found["mask"].sum(1).tolist() == [len(s["labels"]) for s in expected]
            assert (found["labels"][~found["mask"]] == PADDED_LABEL).all()
        else:
            np.testing.assert_allclose(found["boxes"], np.concatenate([s["boxes"] for s in expected]), rtol=1e-6)


def test_tuples(path, objects):
    image, label = next(iter(DataLoader(StoreDataset(path, return_as="tuple"), 5)))
    assert image.shape == (5, 3, 8, 6)
    assert label.tolist() == [0, 1, 2, 3, 4]
    images, targets = next(iter(DataLoader(StoreDataset(objects, return_as="tuple"), 4)))
    assert images.shape == (4, 3, 12, 10)
    assert [len(t["boxes"]) for t in targets] == [0, 1, 2, 3]


@pytest.mark.parametrize("fields", [["label"], ["key", "label"], ["label", "image"]])
def test_tuples_have_the_fields_that_are_loaded(path, fields):
    dataset = StoreDataset(path, fields=fields, return_as="tuple")
    batch = next(iter(DataLoader(dataset, 5)))
    for i in range(5):
        for values, value in zip(batch, dataset[i], strict=True):
            assert np.array_equal(values[i], value)


def test_a_collate_fn_gets_a_list_of_samples(path):
    seen = []

    def collate(samples):
        seen.append(type(samples))
        return [int(s["label"]) for s in samples]

    found = [label for batch in DataLoader(StoreDataset(path), 10, collate_fn=collate) for label in batch]
    assert found == [i % 7 for i in range(ROWS)]
    assert set(seen) == {list}


@pytest.mark.parametrize(
    "sampler",
    [
        lambda n: RandomSampler(range(n), generator=torch.Generator().manual_seed(1)),
        lambda n: WeightedRandomSampler([1.0] * n, 50, generator=torch.Generator().manual_seed(1)),
        lambda n: DistributedSampler(range(n), num_replicas=2, rank=1, seed=4),
        lambda n: BlockShuffleSampler(n, block_rows=8, window_blocks=3),
        lambda n: list(range(0, n, 2)),
    ],
)
def test_samplers_of_all_kinds(path, sampler):
    expected = list(sampler(ROWS))
    assert rows(DataLoader(StoreDataset(path), 10, sampler=sampler(ROWS), num_threads=2)) == expected


@pytest.mark.parametrize("residency", ["page-cache", "device"])
@pytest.mark.parametrize(
    "drawing",
    [
        lambda: {"shuffle": True, "generator": torch.Generator().manual_seed(3)},
        lambda: {"sampler": RandomSampler(range(ROWS), generator=torch.Generator().manual_seed(3))},
        lambda: {"sampler": WeightedRandomSampler([1.0] * ROWS, 50)},
    ],
)
def test_what_torch_draws_is_drawn_in_its_order(path, drawing, residency):
    orders = []
    for loader in (data.DataLoader, functools.partial(DataLoader, residency=residency, device="cpu")):
        torch.manual_seed(5)
        made = loader(StoreDataset(path), 10, **drawing())
        orders.append([rows(made), rows(made), int(torch.randint(0, 2**20, ()))])
    assert orders[0] == orders[1]


def test_a_batch_sampler(path):
    batches = [[5, 1], [7], [2, 2, 9]]
    found = list(DataLoader(StoreDataset(path), batch_sampler=batches))
    assert [b["image"][:, 0, 0, 0].tolist() for b in found] == batches
    sampler = BatchSampler(RandomSampler(range(ROWS)), 9, drop_last=True)
    assert len(list(DataLoader(StoreDataset(path), batch_sampler=sampler))) == 11


def test_a_subset(path):
    dataset = StoreDataset(path).subset([9, 3, 50, 51])
    assert sorted(rows(DataLoader(dataset, 3, shuffle=True))) == [3, 9, 50, 51]
    sampler = BlockShuffleSampler(4, block_rows=2, window_blocks=1)
    assert sorted(rows(DataLoader(dataset, 3, sampler=sampler))) == [3, 9, 50, 51]


def test_no_batches(path):
    assert list(DataLoader(StoreDataset(path).subset([]), 4)) == []
    assert list(DataLoader(StoreDataset(path).subset([]), 4, shuffle=True)) == []


@pytest.mark.parametrize("workers", [1, 2])
def test_worker_processes(path, objects, workers):
    loader = DataLoader(StoreDataset(path), 10, shuffle=True, num_workers=workers, seed=3)
    assert rows(loader) == ShuffleSampler(ROWS, seed=3).rows().tolist()
    batch = next(iter(DataLoader(StoreDataset(objects), 4, num_workers=workers, collate="padded")))
    assert batch["objects"]["mask"].sum(1).tolist() == [0, 1, 2, 3]


def test_any_other_data_set():
    assert [b.tolist() for b in DataLoader(range(5), 2)] == [[0, 1], [2, 3], [4]]
    assert sorted(v for b in DataLoader(range(5), 2, shuffle=True) for v in b.tolist()) == [0, 1, 2, 3, 4]


# --- ranks ------------------------------------------------------------------------------------------------------


def as_rank(monkeypatch, rank, world):
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "get_rank", lambda: rank)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: world)


@pytest.mark.parametrize("workers", [0, 1])
def test_ranks_share_an_epoch(path, monkeypatch, workers):
    order = ShuffleSampler(ROWS, seed=3, rank=0, num_replicas=1).rows().tolist()
    found = []
    for rank in range(2):
        loader = DataLoader(StoreDataset(path), 10, shuffle=True, seed=3, num_workers=workers)
        as_rank(monkeypatch, rank, 2)  # the process group comes after the loader, as it often does
        assert len(loader) == 6
        found.append(rows(loader))
    assert found[0] == order[::2]
    assert found[1] == [*order[1::2], order[0]]


def test_who_takes_the_batch_sampler_out_finds_the_order_of_all_ranks(path, monkeypatch):
    as_rank(monkeypatch, 1, 2)
    loader = DataLoader(StoreDataset(path), 10, shuffle=True, seed=3)
    taken = [row for batch in loader.batch_sampler for row in batch]
    assert taken == ShuffleSampler(ROWS, seed=3, rank=0, num_replicas=1).rows().tolist()


# --- transforms -------------------------------------------------------------------------------------------------


def noisy(sample, *, generator):
    return {**sample, "noise": torch.rand((), generator=generator)}


def noise(loader):
    return {int(i): float(n) for b in loader for i, n in zip(b["image"][:, 0, 0, 0], b["noise"], strict=True)}


def test_what_a_transform_draws_follows_from_seed_epoch_and_row(path):
    def drawn(**options):
        return noise(DataLoader(StoreDataset(path, transform=noisy), shuffle=True, **options))

    one = drawn(batch_size=7, num_threads=1)
    assert drawn(batch_size=20, num_threads=4) == one
    assert len(set(one.values())) == ROWS
    assert drawn(batch_size=7, seed=1) != one
    loader = DataLoader(StoreDataset(path, transform=noisy), 7, shuffle=True)
    assert noise(loader) == one
    assert noise(loader) != one
    loader.set_epoch(0)
    assert noise(loader) == one


def test_an_exception_in_a_transform_names_the_sample(path):
    def fail(sample):
        if int(sample["image"][0, 0, 0]) == 42:
            raise ArithmeticError("too much")
        return sample

    loader = DataLoader(StoreDataset(path, transform=fail), 10, num_threads=2)
    with pytest.raises(ArithmeticError, match="too much") as caught:
        list(loader)
    assert "train/00042" in caught.value.__notes__[0]
    assert not loader_threads()


# --- ends -------------------------------------------------------------------------------------------------------


def test_leaving_the_loop_ends_the_threads(path):
    loader = DataLoader(StoreDataset(path), 2, num_threads=3)
    for _ in loader:
        assert loader_threads()
        break
    assert not loader_threads()
    with pytest.raises(KeyError):
        for _ in loader:
            raise KeyError
    gc.collect()
    assert not loader_threads()


def test_after_a_break_the_next_epoch_comes(path):
    loader = DataLoader(StoreDataset(path), 10, shuffle=True, seed=3)
    for _ in loader:
        break
    assert rows(loader)[:10] != ShuffleSampler(ROWS, seed=3).rows()[:10].tolist()


def test_several_loaders_at_once(path):
    loaders = [DataLoader(StoreDataset(path), 9, shuffle=True, seed=s, num_threads=2) for s in range(3)]
    found = [[], [], []]
    for batches in zip(*loaders, strict=True):
        for one, batch in zip(found, batches, strict=True):
            one.append(batch)
    for seed, one in enumerate(found):
        assert rows(one) == ShuffleSampler(ROWS, seed=seed).rows().tolist()


def test_two_threads_on_one_loader_are_refused(path):
    begun, may_end = threading.Event(), threading.Event()

    def slow(sample):
        begun.set()
        assert may_end.wait(60)
        return sample

    batches = iter(DataLoader(StoreDataset(path, transform=slow), 1, num_threads=1))
    waiting = threading.Thread(target=next, args=(batches,))
    waiting.start()
    assert begun.wait(60)
    with pytest.raises(RuntimeError, match="one loader for each thread"):
        next(batches)
    may_end.set()
    waiting.join()


def test_fork_after_use(path):
    """In a process of its own, which is single-threaded when it forks."""
    code = (
        "import os\n"
        "from tensorstore_ds.loading.loader import DataLoader\n"
        "from tensorstore_ds.loading.dataset import StoreDataset\n"
        f"loader = DataLoader(StoreDataset({str(path)!r}), 10, num_threads=2)\n"
        "count = lambda: sum(len(b['label']) for b in loader)\n"
        "assert count() == 103\n"
        "if os.fork() == 0:\n"
        "    os._exit(0 if count() == 103 else 1)\n"
        "assert os.waitstatus_to_exitcode(os.wait()[1]) == 0\n"
        "print('well')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == "well", done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("end", ["sys.exit(0)", "1 / 0", "os.kill(os.getpid(), signal.SIGINT)"])
def test_the_interpreter_ends_in_the_middle_of_an_epoch(path, end):
    code = (
        "import os, signal, sys\n"
        "from tensorstore_ds.loading.loader import DataLoader\n"
        "from tensorstore_ds.loading.dataset import StoreDataset\n"
        f"for batch in DataLoader(StoreDataset({str(path)!r}), 1, num_threads=2):\n"
        f"    {end}\n"
    )
    run = subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.DEVNULL)
    run.wait(60)
    assert (run.returncode == 0) == ("exit(0)" in end)
    assert not list(Path("/dev/shm").glob(f"torch_{run.pid}_*"))  # noqa: S108


# --- resume -----------------------------------------------------------------------------------------------------


@settings(max_examples=20, deadline=None)
@given(stop=st.integers(0, 10), threads=st.integers(1, 3), epoch=st.integers(0, 2))
def test_a_new_loader_goes_on_with_the_very_next_batch(path, stop, threads, epoch):
    def loader(threads):
        return DataLoader(StoreDataset(path, transform=noisy), 10, shuffle=True, num_threads=threads)

    first = loader(2)
    for _ in range(epoch):
        list(first)
    batches = iter(first)
    for _ in range(stop):
        next(batches)
    state = first.state_dict()
    expected = [(b["label"].tolist(), b["noise"].tolist()) for b in batches]
    second = loader(threads)
    second.load_state_dict(state)
    assert [(b["label"].tolist(), b["noise"].tolist()) for b in second] == expected
    assert [b["label"].tolist() for b in second] == [b["label"].tolist() for b in first]


def test_at_the_end_of_an_epoch_the_next_one_comes(path):
    first = DataLoader(StoreDataset(path), 10, shuffle=True)
    list(first)
    second = DataLoader(StoreDataset(path), 10, shuffle=True)
    second.load_state_dict(first.state_dict())
    assert rows(second) == rows(first)


def test_after_the_last_batch_the_next_epoch_comes(path):
    """Saved in the loop's last round, before the loader has said that there is no more."""
    first = DataLoader(StoreDataset(path), 10, shuffle=True)
    batches = iter(first)
    for _ in range(11):
        next(batches)
    state = first.state_dict()
    assert (state["epoch"], state["batch"]) == (1, 0)


def test_resuming_with_workers_and_torchs_samplers(path):
    def loader(workers):
        sampler = DistributedSampler(range(ROWS), num_replicas=1, rank=0)
        return DataLoader(StoreDataset(path), 10, sampler=sampler, num_workers=workers)

    for workers in (0, 1):
        batches = iter(first := loader(workers))
        next(batches)
        second = loader(workers)
        second.load_state_dict(first.state_dict())
        assert rows(second) == rows(batches)


def test_a_state_of_another_seed_is_refused(path):
    state = DataLoader(StoreDataset(path), 10, shuffle=True, seed=1).state_dict()
    with pytest.raises(ValueError, match="expected the state of a loader with seed 0, found 1"):
        DataLoader(StoreDataset(path), 10, shuffle=True).load_state_dict(state)


# --- where batches come from and go -----------------------------------------------------------------------------


def test_on_the_cpu_as_a_device(path):
    loader = DataLoader(StoreDataset(path), 10, shuffle=True, device="cpu", seed=3)
    assert rows(loader) == ShuffleSampler(ROWS, seed=3).rows().tolist()
    assert loader.state_dict()["epoch"] == 1


@pytest.mark.parametrize("how", ["list", "padded", "packed"])
def test_kept_on_the_device(path, objects, how):
    loader = DataLoader(StoreDataset(path), 10, shuffle=True, device="cpu", residency="device", seed=3)
    plain = DataLoader(StoreDataset(path), 10, shuffle=True, seed=3)
    for a, b in zip(loader, plain, strict=True):
        assert torch.equal(a["image"], b["image"])
        assert torch.equal(a["label"], b["label"])
    kept = DataLoader(StoreDataset(objects), 4, shuffle=True, device="cpu", residency="device", collate=how)
    for a, b in zip(kept, DataLoader(StoreDataset(objects), 4, shuffle=True, collate=how), strict=True):
        torch.testing.assert_close(a["objects"], b["objects"], equal_nan=True)


def test_what_cannot_be_kept_on_a_device(path, monkeypatch):
    with pytest.raises(ValueError, match=r'`residency="device"`: expected a device .* Pass `device`'):
        DataLoader(StoreDataset(path), 10, residency="device")
    with pytest.raises(ValueError, match="transform batches on the device"):
        DataLoader(StoreDataset(path, transform=lambda s: s), 10, residency="device", device="cpu")
    monkeypatch.setattr("tensorstore_ds.loading.resident.free_nbytes", lambda _: 1000)
    with pytest.raises(
        ResidencyError, match=r'expected 15,656 bytes free on cpu, found 1,000.* `residency="page-cache"`'
    ):
        list(DataLoader(StoreDataset(path), 10, residency="device", device="cpu"))


def test_auto_says_what_it_picked(path, caplog):
    with caplog.at_level("INFO", "tensorstore_ds"):
        loader = DataLoader(StoreDataset(path), 10, residency="auto", device="cpu")
    assert loader.residency == "page-cache"
    assert "residency: page-cache; the split has 15656 bytes" in caplog.text
    assert rows(loader) == list(range(ROWS))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch_size": 10, "num_workers": 1}, "worker processes read the store themselves. Use `num_workers=0`"),
        ({"batch_size": None}, "only whole batches are gathered there. Pass a `batch_size`"),
    ],
)
def test_what_reads_samples_does_not_keep_the_split_on_a_device(path, monkeypatch, options, message):
    monkeypatch.setattr("tensorstore_ds.loading.resident.free_nbytes", lambda device: 10**9)
    with pytest.raises(ValueError, match=f'`residency="device"`: {message}'):
        DataLoader(StoreDataset(path), residency="device", device="cpu", **options)
    assert choose("auto", StoreDataset(path), torch.device("cuda", 0)) == "device"
    given = {"workers": options.get("num_workers", 0), "in_batches": options["batch_size"] is not None}
    assert choose("auto", StoreDataset(path), torch.device("cuda", 0), **given) == "page-cache"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"collate": "stack"}, "`collate`: expected one of list, padded, packed, found 'stack'"),
        ({"num_threads": 0}, "`num_threads`: expected an integer, at least 1, found 0"),
        (
            {"residency": "disk"},
            "`page-cache` is RAM that all processes share, found 'disk'",
        ),
        ({"shuffle": True, "sampler": [1, 2]}, "mutually exclusive"),
    ],
)
def test_arguments_that_are_refused(path, arguments, message):
    with pytest.raises(ValueError, match=message):
        DataLoader(StoreDataset(path), 10, **arguments)


def test_stats(path):
    loader = DataLoader(StoreDataset(path), 10)
    list(loader)
    assert loader.stats().batches == 11
    assert loader.stats().gather > 0
    assert loader.stats().wait >= 0


def test_only_copies_to_cuda_may_be_under_way_when_a_batch_is_handed_over(monkeypatch):
    asked = []

    def to(tensor, device, non_blocking=False):
        asked.append((device.type, non_blocking))
        return tensor

    monkeypatch.setattr(torch.Tensor, "to", to)
    for device in ("mps", "xpu", "cpu"):
        list(DevicePrefetcher([torch.zeros(3)], device))
    assert asked == [("mps", False), ("xpu", False), ("cpu", False)]


def test_a_device_without_a_number_is_the_current_one(monkeypatch):
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: torch.device("xpu"))
    monkeypatch.setattr(torch.accelerator, "current_device_index", lambda: 2)
    for name, index in (("xpu", 2), ("xpu:0", 0), ("cpu", None), ("meta", None)):
        assert with_index(torch.device(name)).index == index


@pytest.mark.gpu
def test_on_a_gpu(path, objects):
    for residency in ("page-cache", "device"):
        loader = DataLoader(StoreDataset(path), 10, shuffle=True, device="cuda", residency=residency, seed=3)
        for _ in range(3):
            held = [(b["image"], b["label"]) for b in loader]
            assert all(i.is_cuda and torch.equal(y, i[:, 0, 0, 0].long() % 7) for i, y in held)
            assert sorted(int(v) for i, _ in held for v in i[:, 0, 0, 0]) == list(range(ROWS))
    batch = next(iter(DataLoader(StoreDataset(objects), 4, collate="padded", device="cuda")))
    assert batch["objects"]["mask"].is_cuda


@pytest.mark.gpu
def test_device_memory_does_not_grow_with_epochs(path):
    loader = DataLoader(StoreDataset(path), 10, shuffle=True, device="cuda")
    assert loader.device == torch.device("cuda", torch.cuda.current_device())
    reserved = []
    for _ in range(5):
        for batch in loader:
            del batch
        torch.cuda.synchronize()
        reserved.append(torch.cuda.memory_reserved())
    assert reserved[1] == reserved[4]


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_another_gpu_than_the_current_one_leaves_that_alone(path):
    code = (
        "import sys, torch, tensorstore_ds as tsds\n"
        "loader = tsds.DataLoader(tsds.StoreDataset(sys.argv[1]), 10, device='cuda:1')\n"
        "assert all(batch['image'].device.index == 1 for batch in loader)\n"
        "assert [torch._C._cuda_hasPrimaryContext(n) for n in (0, 1)] == [False, True]\n"
    )
    subprocess.run([sys.executable, "-c", code, path], check=True)


# --- batch transforms -------------------------------------------------------------------------------------------


def tagged(batch, rows, epoch):
    return {**batch, "rows": torch.as_tensor(rows), "epoch": epoch}


@pytest.mark.parametrize(
    "options", [{}, {"num_workers": 1}, {"device": "cpu"}, {"device": "cpu", "residency": "device"}]
)
def test_batch_transforms_get_rows_and_epoch(path, options):
    loader = DataLoader(StoreDataset(path), 10, shuffle=True, batch_transform=tagged, **options)
    for epoch in range(2):
        for batch in loader:
            assert torch.equal(batch["rows"], batch["image"][:, 0, 0, 0].long())
            assert batch["epoch"] == epoch


def test_batch_transforms_after_a_collate_fn(path):
    loader = DataLoader(StoreDataset(path), 10, collate_fn=len, batch_transform=lambda b, rows, epoch: (b, len(rows)))
    assert list(loader) == [(10, 10)] * 10 + [(3, 3)]


def test_augmentation_follows_from_seed_epoch_and_row(path):
    def crops(**options):
        augment = RandomCrop((4, 4), seed=5)
        dataset = StoreDataset(path.parent / "s.tsds")
        loader = DataLoader(dataset, shuffle=True, batch_transform=augment, **options)
        return [rows(loader), rows(loader)]

    assert crops(batch_size=10, num_threads=1) == crops(batch_size=10, num_threads=3)


@pytest.mark.parametrize("workers", [1, 2])
def test_draws_in_worker_processes_are_those_in_threads(path, workers):
    def loader(**options):
        return DataLoader(StoreDataset(path, transform=noisy), 10, shuffle=True, seed=4, **options)

    threads, processes = loader(), loader(num_workers=workers, persistent_workers=True)
    first, second = noise(threads), noise(threads)
    assert noise(processes) == first
    assert noise(processes) == second
    assert first != second


@pytest.mark.parametrize("residency", ["device", "devise"])
def test_only_stores_are_resident(path, residency):
    whole = TensorDataset(torch.zeros(4)), "a TensorDataset"
    part = Subset(MixedDataset([path]), [0]), "a Subset: mix subsets"
    for dataset, found in (whole, part):
        with pytest.raises(OptionError, match=f"a StoreDataset, for `residency={residency!r}`, found {found}"):
            DataLoader(dataset, residency=residency)
        assert DataLoader(dataset, residency="auto").residency == "page-cache"
    assert DataLoader(Subset(StoreDataset(path), [0]), residency="page-cache").residency == "page-cache"


def test_persistent_workers_go_with_their_loader(path):
    """Not with the next garbage collection."""
    loader = DataLoader(StoreDataset(path), 50, num_workers=1, persistent_workers=True)
    assert rows(loader) == rows(loader)
    iterator = weakref.ref(loader._iterator)
    gc.disable()
    try:
        del loader
        assert iterator() is None
    finally:
        gc.enable()


def test_transformed_batches_wait_for_no_others(path):
    """Small batches are gathered together, but not where each takes its time."""
    made = []

    def slow(sample):
        made.append(int(sample["label"]))
        return sample

    batches = iter(DataLoader(StoreDataset(path, transform=slow), 5, num_threads=1, prefetch_factor=1))
    next(batches)
    assert len(made) <= 15  # this batch and those ahead, not the 21 of a group
    del batches
