"""`DataLoader` as a feed: every batch once and in order, whatever makes it, and a state goes on with the next batch."""

from __future__ import annotations

import gc
import itertools
import json
import os
import signal
import subprocess
import sys
import threading
import time
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils import data
from torch.utils.data import RandomSampler, Sampler, SubsetRandomSampler, WeightedRandomSampler
from torch.utils.data.distributed import DistributedSampler

import tensorstore_ds as tsds
from stores import numbered, png_bytes, store_of
from tensorstore_ds.loading import feed
from tensorstore_ds.loading.crew import Task
from tensorstore_ds.loading.epoch import Epoch
from tensorstore_ds.reading.mirror_file import pool
from waiting import wait_for

ROWS, BATCH = 61, 8
BATCHES = -(-ROWS // BATCH)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return numbered(tmp_path_factory.mktemp("feed") / "s.tsds", ROWS, classes=7, shard_nbytes=40 * 144).path


@pytest.fixture
def dataset(path: Path) -> tsds.StoreDataset:
    return tsds.StoreDataset(path)


def tagged(batch: dict[str, Any], rows: Any, epoch: int) -> dict[str, Any]:
    return {**batch, "rows": torch.as_tensor(rows), "epoch": epoch}


def rows(batches: Iterable[Any], epoch: int | None = None) -> list[list[int]]:
    """The rows of each batch, whose other values agree with them."""
    found = []
    for batch in batches:
        image, label = torch.atleast_3d(batch["image"]), batch["label"].reshape(-1)
        image = image if image.ndim == 4 else image[None]
        of_batch = image[:, 0, 0, 0].long()
        assert image.dtype == torch.uint8 and (image == image[:, :1, :1, :1]).all() and torch.equal(label, of_batch % 7)
        if "rows" in batch:
            assert torch.equal(batch["rows"], of_batch) and (epoch is None or batch["epoch"] == epoch)
        found.append(of_batch.tolist())
    return found


def flat(batches: Iterable[Any]) -> list[int]:
    return [*itertools.chain(*rows(batches))]


def order(epoch: int, size: int = ROWS, **options: Any) -> list[int]:
    sampler = tsds.ShuffleSampler(size, **{"seed": 3, "rank": 0, "num_replicas": 1, **options})
    sampler.set_epoch(epoch)
    return list(sampler)


def place(loader: tsds.DataLoader[Any]) -> tuple[int, int]:
    """The epoch and the batch of a loader's state."""
    state = loader.state_dict()
    return state["epoch"], state["batch"]


def loader_threads() -> list[threading.Thread]:
    return [each for each in threading.enumerate() if each.name.startswith("tsds-loader")]


# --- every batch once, in order -----------------------------------------------------------------------------------


class ByEpoch(Sampler[list[int]]):
    """A batch sampler of a user, whose order follows from its epoch."""

    def __init__(self) -> None:
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[list[int]]:
        order = np.random.default_rng(self.epoch).permutation(ROWS).tolist()
        return (order[i : i + BATCH] for i in range(0, ROWS, BATCH))

    def __len__(self) -> int:
        return BATCHES


def generator() -> torch.Generator:
    return torch.Generator().manual_seed(7)


Arguments = Callable[[], dict[str, Any]]


def sampled(make: Callable[[], Any]) -> Arguments:
    return lambda: {"batch_size": BATCH, "sampler": make()}


SIZES = np.random.default_rng(0).integers(4, 20, (ROWS, 2))
WEIGHTS = np.linspace(1, 9, ROWS).tolist()
BY_SEED: dict[str, Arguments] = {
    "in order": lambda: {"batch_size": BATCH},
    "shuffle": lambda: {"batch_size": BATCH, "shuffle": True, "seed": 3},
    "drop_last": lambda: {"batch_size": BATCH, "shuffle": True, "drop_last": True},
    "one by one": lambda: {"batch_size": None, "shuffle": True},
    "ShuffleSampler of a rank": sampled(lambda: tsds.ShuffleSampler(ROWS, rank=1, num_replicas=2)),
    "feistel": sampled(lambda: tsds.ShuffleSampler(ROWS, algorithm="feistel", seed=3)),
    "WeightedSampler": sampled(lambda: tsds.WeightedSampler(WEIGHTS)),
    "SubsetSampler": sampled(lambda: tsds.loading.SubsetSampler(np.arange(0, ROWS, 2))),
    "BlockShuffleSampler": sampled(lambda: tsds.BlockShuffleSampler(ROWS, block_rows=5, window_blocks=3)),
    "sizes": lambda: {"batch_sampler": tsds.SizeBucketSampler(SIZES, BATCH, seed=3)},
    "sizes of a rank": lambda: {"batch_sampler": tsds.SizeBucketSampler(SIZES, pixels=900, rank=1, num_replicas=2)},
    "a list": sampled(lambda: list(range(ROWS))[::-1]),
    "batch sampler by epoch": lambda: {"batch_sampler": ByEpoch()},
    "DistributedSampler": sampled(lambda: DistributedSampler(range(ROWS), num_replicas=2, rank=1)),
}


def by_torch(generator: Callable[[], Any]) -> dict[str, Arguments]:
    """Orders that torch draws."""
    drawn = RandomSampler, {"replacement": True, "num_samples": 100}
    return {
        "RandomSampler": sampled(lambda: RandomSampler(range(ROWS), generator=generator())),
        "replacement": sampled(lambda: drawn[0](range(ROWS), **drawn[1], generator=generator())),
        "WeightedRandomSampler": sampled(lambda: WeightedRandomSampler(WEIGHTS, 50, generator=generator())),
        "SubsetRandomSampler": sampled(lambda: SubsetRandomSampler(range(5, ROWS), generator=generator())),
    }


BY_GENERATOR = {f"{name}, generator": make for name, make in by_torch(generator).items()} | {
    "shuffle, generator": lambda: {"batch_size": BATCH, "shuffle": True, "generator": generator()},
    "one by one, generator": lambda: {"batch_size": None, "shuffle": True, "generator": generator()},
    "BatchSampler, generator": lambda: {
        "batch_sampler": data.BatchSampler(RandomSampler(range(ROWS), generator=generator()), BATCH, drop_last=True)
    },
}
GLOBAL = by_torch(lambda: None)
KEPT = BY_SEED | BY_GENERATOR
ORDERS = KEPT | GLOBAL


def expected(name: str, epochs: int, *, are_set: bool = False) -> list[list[list[int]]]:
    """The batches of each epoch, by torch's own loader; a script sets those of samplers that are not ours."""
    arguments = ORDERS[name]()
    seed = arguments.pop("seed", 0)
    if not arguments.keys() & {"sampler", "batch_sampler", "generator"}:
        shuffle = arguments.pop("shuffle", False)
        arguments["sampler"] = tsds.ShuffleSampler(ROWS, shuffle=shuffle, seed=seed)
    loader = data.DataLoader(range(ROWS), **arguments)  # type: ignore[arg-type]
    found = []
    for epoch in range(epochs):
        for each in (loader.sampler, loader.batch_sampler):
            if hasattr(each, "set_epoch") and (are_set or type(each).__module__.startswith("tensorstore_ds.")):
                each.set_epoch(epoch)
        found.append([torch.atleast_1d(torch.as_tensor(batch)).tolist() for batch in loader])
    return found


WAYS: dict[str, dict[str, Any]] = {
    "threads": {"num_threads": 3, "batch_transform": tagged},
    "one thread": {"num_threads": 1, "prefetch_factor": 1},
    "to a device": {"device": "cpu", "batch_transform": tagged},
    "resident": {"device": "cpu", "residency": "device", "batch_transform": tagged},
    "a worker": {"num_workers": 1, "batch_transform": tagged},
    "persistent workers": {"num_workers": 2, "persistent_workers": True},
}
IN_PROCESSES = "a worker", "persistent workers"
CASES = [
    (name, way)
    for name, way in itertools.product(ORDERS, WAYS)
    if (name in ("shuffle", "batch sampler by epoch", "RandomSampler, generator") or way not in IN_PROCESSES)
    and ("one by one" not in name or way == "one thread")
]


@pytest.mark.drawn(25)
@pytest.mark.parametrize(("name", "way"), CASES)
def test_every_batch_comes_once_and_in_order(dataset: tsds.StoreDataset, name: str, way: str) -> None:
    torch.manual_seed(5)
    theirs, next_drawn = expected(name, 3), torch.rand(())
    torch.manual_seed(5)
    loader = tsds.DataLoader(dataset, **ORDERS[name](), **WAYS[way])
    assert len(loader) == len(theirs[0])
    assert [rows(loader, epoch) for epoch in range(3)] == theirs
    if name not in BY_SEED and way not in IN_PROCESSES:
        assert torch.rand(()) == next_drawn  # torch's generator is where torch's loader leaves it


def test_held_batches_never_change(dataset: tsds.StoreDataset) -> None:
    loader = tsds.DataLoader(dataset, 10, shuffle=True, num_threads=2)
    held = [(batch["image"], batch["image"].clone(), batch["image"][2:3]) for _ in range(3) for batch in loader]
    for _ in range(3):
        list(loader)
    for image, copy, view in held:
        assert image.is_contiguous(memory_format=torch.channels_last)
        assert torch.equal(image, copy) and torch.equal(view, copy[2:3])


def test_subsets_and_data_sets_without_samples(dataset: tsds.StoreDataset) -> None:
    subset = dataset.subset([9, 3, 50, 51])
    blocks = tsds.BlockShuffleSampler(4, block_rows=2, window_blocks=1)
    for options in ({"shuffle": True}, {"sampler": blocks}):
        assert sorted(flat(tsds.DataLoader(subset, 3, **options))) == [3, 9, 50, 51]
    for shuffle in (False, True):
        assert list(tsds.DataLoader(dataset.subset([]), 4, shuffle=shuffle)) == []
    assert flat(tsds.DataLoader(dataset, 4, sampler=data.SequentialSampler(range(6)))) == [*range(6)]
    loader = tsds.DataLoader(dataset, 4, sampler=tsds.ShuffleSampler(6, shuffle=False))
    assert [*itertools.chain(*loader.batch_sampler)] == flat(loader) == [*range(6)]  # as Accelerate takes it


def as_rank(monkeypatch: pytest.MonkeyPatch, rank: int, world: int) -> None:
    for name, value in {"is_initialized": True, "get_rank": rank, "get_world_size": world}.items():
        monkeypatch.setattr(torch.distributed, name, lambda value=value: value)


@pytest.mark.parametrize("workers", [0, 1])
def test_ranks_share_an_epoch(dataset: tsds.StoreDataset, monkeypatch: pytest.MonkeyPatch, workers: int) -> None:
    whole, found = order(0), []
    for rank in range(2):
        loader = tsds.DataLoader(dataset, 10, shuffle=True, seed=3, num_workers=workers)
        as_rank(monkeypatch, rank, 2)  # the process group comes after the loader, as it often does
        assert len(loader) == 4
        found.append(flat(loader))
        # Accelerate takes the batch sampler out, and divides the order of all ranks itself.
        assert [*itertools.chain(*tsds.DataLoader(dataset, 10, shuffle=True, seed=3).batch_sampler)] == whole
    assert found == [whole[::2], [*whole[1::2], whole[0]]]


# --- transforms of samples ----------------------------------------------------------------------------------------


def noisy(sample: dict[str, Any], *, generator: torch.Generator) -> dict[str, Any]:
    return {**sample, "noise": torch.rand((), generator=generator)}


def noise(batches: Iterable[Any]) -> dict[int, float]:
    return {int(i): float(n) for b in batches for i, n in zip(b["image"][:, 0, 0, 0], b["noise"], strict=True)}


def test_what_a_transform_draws_follows_from_seed_epoch_and_row(path: Path) -> None:
    def loader(batch_size: int = 7, **options: Any) -> tsds.DataLoader[Any]:
        return tsds.DataLoader(tsds.StoreDataset(path, transform=noisy), batch_size, shuffle=True, **options)

    first = loader(num_threads=1, prefetch_factor=1)
    epochs = [noise(first) for _ in range(2)]
    assert len({*epochs[0].values(), *epochs[1].values()}) == 2 * ROWS
    assert noise(loader(seed=1)) != epochs[0]
    for other in (loader(20, num_threads=4), loader(num_workers=1), loader(num_workers=2, persistent_workers=True)):
        assert [noise(other) for _ in range(2)] == epochs
    first.set_epoch(0)
    assert noise(first) == epochs[0]
    pair = loader()
    assert [noise(each) for each in zip(*zip(pair, pair, strict=True), strict=True)] == epochs
    batches = iter(begun := loader())
    seen = noise(itertools.islice(batches, 4))
    (resumed := loader(num_threads=2)).load_state_dict(begun.state_dict())
    assert seen | noise(resumed) == epochs[0] and noise(resumed) == epochs[1]


@pytest.mark.filterwarnings("ignore:The given buffer is not writable:UserWarning")
def test_single_samples_and_subsets_of_mixtures_are_drawn_anew_in_every_epoch(path: Path) -> None:
    dataset = tsds.StoreDataset(path, transform=noisy)
    expected = tsds.DataLoader(dataset, 7, shuffle=True, seed=2)
    epochs = [noise(expected) for _ in range(2)]
    views = tsds.StoreDataset(path, transform=noisy, zero_copy=True)
    several: list[Any] = [
        (views, {}),
        *((dataset, each) for each in ({}, {"num_workers": 1, "persistent_workers": True})),
    ]
    for each, options in several:
        alone = tsds.DataLoader(each, None, shuffle=True, seed=2, **options)
        found = [{int(one["image"][0, 0, 0]): float(one["noise"]) for one in alone} for _ in range(2)]
        assert found == epochs
    for workers in (0, 1):
        mixed = data.Subset(tsds.MixedDataset([path], transform=noisy), range(ROWS))
        loader = tsds.DataLoader(mixed, 7, shuffle=True, seed=2, num_workers=workers)
        assert [noise(loader) for _ in range(2)] == epochs


def test_a_collate_fn_gets_a_list_of_samples(dataset: tsds.StoreDataset) -> None:
    def collate(samples: Any) -> tuple[type, list[int]]:
        return type(samples), [int(sample["label"]) for sample in samples]

    def with_length(batch: Any, rows: Any, epoch: int) -> Any:
        return (*batch, len(rows))

    found = list(tsds.DataLoader(dataset, 10, collate_fn=collate, batch_transform=with_length))
    assert [label for _, labels, _ in found for label in labels] == [i % 7 for i in range(ROWS)]
    assert [(kind, length) for kind, _, length in found] == [(list, 10)] * 6 + [(list, 1)]


def test_transformed_batches_wait_for_no_others(path: Path) -> None:
    """Small batches are gathered together, but not where each takes its time."""
    made: list[int] = []

    def slow(sample: dict[str, Any]) -> dict[str, Any]:
        made.append(int(sample["label"]))
        return sample

    batches = iter(tsds.DataLoader(tsds.StoreDataset(path, transform=slow), 5, num_threads=1, prefetch_factor=1))
    next(batches)
    assert len(made) <= 15  # this batch and those ahead, not the 13 of a group
    del batches


def test_encoded_batches_wait_for_no_others(tmp_path: Path) -> None:
    """A row of such a store is a few bytes, and the work is in the decoding."""
    samples = [{"image": png_bytes(np.full((9, 7, 3), i, np.uint8))} for i in range(40)]
    store_of(tmp_path / "s.tsds", samples, encoding="source")
    decoded: list[int] = []
    with pytest.MonkeyPatch.context() as patch:
        decode = tsds.loading.decoding.ImageReader.images

        def counted(self: Any, rows: Any, *args: Any, stack: bool) -> Any:
            decoded.append(len(rows))
            return decode(self, rows, *args, stack=stack)

        patch.setattr(tsds.loading.decoding.ImageReader, "images", counted)
        loader = tsds.DataLoader(tsds.StoreDataset(tmp_path / "s.tsds"), 2, num_threads=1, prefetch_factor=1)
        batches = iter(loader)
        assert len(next(batches)["image"]) == 2
        assert set(decoded) == {2} and len(decoded) <= 2  # this one, and one that is prefetched
        assert 1 + len(list(batches)) == len(decoded) == 20


# --- the next epoch -----------------------------------------------------------------------------------------------


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> Counter[int]:
    """Counts the rows that are gathered for each epoch."""
    counts, gather = Counter[int](), tsds.StoreDataset.gather

    def counted(self: tsds.StoreDataset, rows: Any, pool: Any, draw: tuple[int, int], **options: Any) -> Any:
        counts[draw[1]] += len(rows)
        return gather(self, rows, pool, draw, **options)

    monkeypatch.setattr(tsds.StoreDataset, "gather", counted)
    return counts


def used_but_not_ended(loader: tsds.DataLoader[Any]) -> Iterator[Any]:
    """An iterator whose batches were all taken, and which has not said so."""
    batches = iter(loader)
    assert sum(len(batch["label"]) for batch in itertools.islice(batches, len(loader))) == ROWS
    return batches


def to_batch(loader: tsds.DataLoader[Any], batch: int) -> None:
    loader.load_state_dict({**loader.state_dict(), "epoch": 0, "batch": batch})


#: What a script does at the end of epoch 0, the epoch that it then gets, and the rows.
BETWEEN: dict[str, tuple[Callable[[tsds.DataLoader[Any]], object], int, list[int]]] = {
    "nothing": (lambda loader: None, 1, order(1)),
    "the same epoch": (lambda loader: loader.set_epoch(1), 1, order(1)),
    "another epoch": (lambda loader: loader.set_epoch(5), 5, order(5)),
    "this epoch again": (lambda loader: loader.set_epoch(0), 0, order(0)),
    "a state": (lambda loader: to_batch(loader, 3), 0, order(0)[3 * BATCH :]),
    "another seed": (lambda loader: setattr(loader._ranked_sampler, "seed", 4), 1, order(1, seed=4)),
    "rows in order": (lambda loader: setattr(loader._ranked_sampler, "shuffle", False), 1, [*range(ROWS)]),
    "a broken loop": (lambda loader: next(iter(loader)), 2, order(2)),
}


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("name", BETWEEN)
def test_the_next_epoch_is_made_while_the_last_batches_are_used(
    dataset: tsds.StoreDataset, made: Counter[int], name: str, threads: int
) -> None:
    loader = tsds.DataLoader(dataset, BATCH, shuffle=True, seed=3, num_threads=threads)
    ending = used_but_not_ended(loader)
    assert wait_for(lambda: made[1] > 0)
    assert made[0] == ROWS and made[1] <= ROWS
    change, epoch, expected = BETWEEN[name]
    change(loader)
    assert flat(loader) == expected
    if name in ("nothing", "the same epoch"):
        assert made[1] == ROWS  # what was made was used
    assert next(ending, None) is None and (epoch + 1, 0) == place(loader)


#: Options of data sets and loaders whose next epoch is not known, the same as this one, or up to functions of the user.
UNKNOWN: dict[str, Callable[[], tuple[dict[str, Any], dict[str, Any]]]] = {
    "in order": lambda: ({}, {}),
    "a generator": lambda: ({}, {"shuffle": True, "generator": torch.Generator().manual_seed(0)}),
    "a transform": lambda: ({"transform": dict}, {"shuffle": True}),
    "a collate_fn": lambda: ({}, {"shuffle": True, "collate_fn": data.default_collate}),
    "a last epoch": lambda: ({}, {"shuffle": True}),
    "a sampler of a user": lambda: ({}, {"sampler": Reversed(ROWS)}),
}


class Reversed(tsds.ShuffleSampler):
    """A sampler that says nothing of what its order depends on."""

    def _order(self) -> Any:
        return super()._order()[::-1]


@pytest.mark.parametrize("name", UNKNOWN)
def test_an_epoch_that_is_not_known_is_not_begun(path: Path, made: Counter[int], name: str) -> None:
    of_dataset, of_loader = UNKNOWN[name]()
    loader = tsds.DataLoader(tsds.StoreDataset(path, **of_dataset), BATCH, **of_loader)
    loader.last_epoch = 0 if name == "a last epoch" else None
    before = torch.random.get_rng_state()
    ending = used_but_not_ended(loader)
    assert next(ending, None) is None and loader._feed is not None and loader._feed._next is None
    assert dict(made) == {0: ROWS} and torch.equal(before, torch.random.get_rng_state())
    assert sorted(flat(loader)) == [*range(ROWS)] and made[1] == ROWS


class Curriculum(tsds.ShuffleSampler):
    """Reads the rows of each epoch, of epoch 1 in vain at first."""

    is_there = False

    def signature(self) -> str:
        return "curriculum"

    def pieces(self, first: int = 0, nrows: int = 0) -> Iterator[Any]:
        for row in range(first, ROWS, BATCH):
            if self.epoch == 1 and row == 40 and not self.is_there:
                raise OSError("epoch 1 cannot be read")
            yield np.arange(row, min(row + BATCH, ROWS))


@pytest.mark.parametrize("device", [None, "cpu"])
def test_an_error_of_the_next_epoch_comes_with_it(dataset: tsds.StoreDataset, device: str | None) -> None:
    sampler = Curriculum(ROWS)
    loader = tsds.DataLoader(dataset, BATCH, sampler=sampler, num_threads=1, device=device)
    assert flat(loader) == [*range(ROWS)]
    found: list[int] = []
    with pytest.raises(OSError, match="epoch 1 cannot be read"):
        for batch in loader:
            found += flat([batch])
    assert found == [*range(len(found))] and len(found) <= 40
    sampler.is_there = True
    loader.set_epoch(1)
    assert flat(loader) == [*range(ROWS)]


def mixed(path: Path) -> tuple[Any, Callable[[], object]]:
    parts = [tsds.StoreDataset(path, decode=tsds.transforms.CenterCrop(4)) for _ in range(2)]
    data_set = tsds.MixedDataset(parts)
    return {"dataset": data_set}, lambda: setattr(data_set.parts[1].decode, "size", (6, 6))


def composed(path: Path) -> tuple[Any, Callable[[], object]]:
    augment = tsds.Compose([tsds.RandomHorizontalFlip(), tsds.RandomCrop(8, padding=4)])
    return {"dataset": tsds.StoreDataset(path), "batch_transform": augment}, lambda: setattr(augment, "seed", 9)


def subset(path: Path) -> tuple[Any, Callable[[], object]]:
    sampler = tsds.loading.SubsetSampler(range(40), seed=3)
    return {"dataset": tsds.StoreDataset(path), "sampler": sampler}, lambda: sampler.subset.__setitem__(slice(20), 50)


class MyCrop(tsds.transforms.CenterCrop):
    """A plan of a user, which may depend on anything."""


def planned(path: Path) -> tuple[Any, Callable[[], object]]:
    plan = MyCrop(4)
    return {"dataset": tsds.StoreDataset(path, decode=plan)}, lambda: setattr(plan, "size", (6, 6))


@pytest.mark.parametrize("make", [mixed, composed, subset, planned])
def test_what_is_changed_between_epochs_holds_from_the_first_batch_on(
    path: Path, make: Callable[[Path], tuple[Any, Callable[[], object]]]
) -> None:
    found = []
    for ends_before in (False, True):
        options, change = make(path)
        loader = tsds.DataLoader(batch_size=BATCH, shuffle=None if "sampler" in options else True, seed=3, **options)
        loader.last_epoch = 0 if ends_before else None
        ending = iter(loader)
        list(itertools.islice(ending, len(loader)))
        time.sleep(0.05)
        change()
        found.append([batch["image"] for batch in loader])
        del ending
    assert all(
        len(a) == len(b) and all(map(torch.equal, a, b)) if isinstance(a, list) else torch.equal(a, b)
        for a, b in zip(*found, strict=True)
    )


def test_a_collate_fn_may_hold_a_lock_that_the_transform_takes(path: Path, tmp_path: Path) -> None:
    """While it reads other data, which is shared by threads elsewhere, no sample of another batch is transformed."""
    large = [{"image": np.full((1024, 1024, 3), i, np.uint8), "label": 0} for i in range(4)]
    other, lock = tsds.StoreDataset(store_of(tmp_path / "large.tsds", large, ["a"])), threading.Lock()

    def transform(sample: dict[str, Any]) -> dict[str, Any]:
        time.sleep(0.02 if not sample["label"] else 0)
        with lock:
            return sample

    def collate(samples: list[Any]) -> int:
        with lock:
            other.__getitems__(range(4))
        return len(samples)

    dataset = tsds.StoreDataset(path, transform=transform)
    assert sum(tsds.DataLoader(dataset, BATCH, collate_fn=collate, num_threads=3)) == ROWS


@pytest.mark.parametrize("threads", [1, 3])
def test_a_batch_that_does_not_come_in_time_is_an_error(path: Path, threads: int) -> None:
    go = threading.Event()

    def late(sample: dict[str, Any]) -> dict[str, Any]:
        assert int(sample["image"][0, 0, 0]) < 2 * BATCH or go.wait(30)
        return sample

    loader = tsds.DataLoader(tsds.StoreDataset(path, transform=late), BATCH, num_threads=threads, timeout=0.5)
    batches = iter(loader)
    assert flat(itertools.islice(batches, 2)) == [*range(2 * BATCH)]
    with pytest.raises(RuntimeError, match=r"^loader: expected a batch in 0.5 seconds, its `timeout`, found none\.$"):
        next(batches)  # and the transform goes on waiting
    assert next(batches, None) is None and place(loader) == (0, 2)
    again = iter(loader)
    assert flat(itertools.islice(again, 2)) == [*range(2 * BATCH)]
    go.set()  # before an iterator ends, its running tasks do


def test_a_thread_that_is_stuck_does_not_hold_up_the_end(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begun, go, ended = threading.Event(), threading.Event(), list[bool]()

    def stuck(sample: dict[str, Any]) -> dict[str, Any]:
        begun.set()
        ended.append(go.wait(30))
        return sample

    def interrupted(*_: object) -> bool:
        assert begun.wait(30)
        raise KeyboardInterrupt

    monkeypatch.setattr(feed, "PATIENCE", 0.01)
    loader = tsds.DataLoader(tsds.StoreDataset(path, transform=stuck), BATCH, num_threads=1)
    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(Task, "wait", interrupted)
        next(iter(loader))
    del loader
    assert ended == []
    go.set()


def test_an_interrupt_at_any_line_of_next_leaves_the_iterator_to_its_thread(dataset: tsds.StoreDataset) -> None:
    code, loader = Epoch.__next__.__code__, tsds.DataLoader(dataset, BATCH)
    lines = sorted({line for *_, line in code.co_lines() if line is not None and line > code.co_firstlineno})
    met = 0
    for interrupted in lines:

        def trace(frame: FrameType, event: str, _: object, at: int = interrupted) -> Any:
            if event == "line" and frame.f_lineno == at:
                raise KeyboardInterrupt
            return trace if frame.f_code is code else None

        batches, before = iter(loader), sys.gettrace()
        sys.settrace(trace)
        try:
            next(batches)
        except KeyboardInterrupt:
            met += 1
        finally:
            sys.settrace(before)
        next(batches, None)  # the first batch, or the end
    assert met >= 5


# --- ends ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", ["threads", "resident", *IN_PROCESSES])
def test_an_iterator_that_has_ended_stays_so(dataset: tsds.StoreDataset, way: str) -> None:
    loader = tsds.DataLoader(dataset, BATCH, shuffle=True, seed=3, **WAYS[way])
    batches = iter(loader)
    assert flat(itertools.islice(batches, BATCHES)) == order(0)
    assert place(loader) == (1, 0)  # before the loader has said that there are no more
    for _ in range(3):
        assert next(batches, None) is None
        assert place(loader) == (1, 0)
    assert flat(loader) == order(1)
    assert next(batches, None) is None


class FailsLate:
    """Raises an error for a row of the third batch, as a transform of samples or of batches."""

    def __init__(self, row: int) -> None:
        self.row = row

    def __call__(self, values: dict[str, Any], *_: Any) -> dict[str, Any]:
        if bool((values["image"] == self.row).any()):
            raise ArithmeticError("too much")
        return values


@pytest.mark.parametrize("of", ["samples", "batches"])
def test_an_iterator_that_raised_is_over_and_no_batch_is_counted(path: Path, of: str) -> None:
    fail = FailsLate(order(0)[20])
    dataset = tsds.StoreDataset(path, transform=fail if of == "samples" else None)
    late: Any = (lambda batch, rows, epoch: fail(batch)) if of == "batches" else None
    loader = tsds.DataLoader(dataset, BATCH, shuffle=True, seed=3, batch_transform=late)
    batches = iter(loader)
    assert flat(itertools.islice(batches, 2)) == order(0)[:16]
    with pytest.raises(ArithmeticError, match="too much") as caught:
        next(batches)
    assert of == "batches" or f"train/{fail.row:05d}" in caught.value.__notes__[0]
    assert next(batches, None) is None
    assert place(loader) == (0, 2)  # the batch that failed is the next one


def test_tasks_that_have_failed_keep_nothing(path: Path) -> None:
    """Until a garbage collection, which may come late: a traceback holds the batches of its thread."""
    dataset = tsds.StoreDataset(path, transform=FailsLate(0))
    alive = weakref.ref(dataset)
    gc.disable()
    try:
        with pytest.raises(ArithmeticError):
            list(tsds.DataLoader(dataset, 3, num_threads=2))
        del dataset
        assert alive() is None
    finally:
        gc.enable()


def test_threads_live_as_long_as_their_loader(dataset: tsds.StoreDataset) -> None:
    before = set(loader_threads())
    loader = tsds.DataLoader(dataset, 2, shuffle=True, seed=3, num_threads=3)
    for _ in loader:
        assert 1 <= len(set(loader_threads()) - before) <= 3
        break
    with pytest.raises(KeyError):
        for _ in loader:
            raise KeyError
    gc.collect()
    batches = iter(loader)
    assert next(batches)["image"][:, 0, 0, 0].tolist() == order(2)[:2]  # after a break the next epoch comes
    for _ in range(2):
        batches.close()  # type: ignore[attr-defined]
        assert next(batches, None) is None and place(loader) == (2, 1)
    assert 1 <= len(set(loader_threads()) - before) <= 3
    del batches, loader
    assert not set(loader_threads()) - before


@pytest.mark.parametrize("waits", [False, True])
def test_an_iterator_whose_last_reference_dies_in_one_of_its_threads(path: Path, waits: bool) -> None:
    """As when a garbage collection runs there, or in a thread it waits for, which fetches from a store by URL."""
    held: list[Any] = []
    dropped, go = threading.Event(), threading.Event()

    def drop(sample: dict[str, Any]) -> dict[str, Any]:
        if int(sample["label"]) == 3:  # in the second batch
            go.wait(30)
            pool("requests").submit(held.clear).result(30) if waits else held.clear()
            dropped.set()
        return sample

    before = set(loader_threads())
    batches = iter(tsds.DataLoader(tsds.StoreDataset(path, transform=drop), 3, num_threads=1))
    next(batches)
    held.append(batches)
    del batches
    go.set()
    assert dropped.wait(20)
    for thread in set(loader_threads()) - before:
        thread.join(30)
        assert not thread.is_alive()


def test_persistent_workers_go_with_their_loader(dataset: tsds.StoreDataset) -> None:
    """Not with the next garbage collection."""
    loader = tsds.DataLoader(dataset, 50, **WAYS["persistent workers"])
    assert rows(loader) == rows(loader)
    iterator = weakref.ref(loader._iterator)
    gc.disable()
    try:
        del loader
        assert iterator() is None
    finally:
        gc.enable()


# --- several at once ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", ["threads", "a worker", "resident"])
def test_two_iterators_at_once_are_two_epochs(dataset: tsds.StoreDataset, way: str) -> None:
    loader = tsds.DataLoader(dataset, BATCH, shuffle=True, seed=3, **WAYS[way])
    for epoch, batches in enumerate(zip(*zip(loader, loader, strict=True), strict=True)):
        assert [*itertools.chain(*rows(batches, epoch))] == order(epoch)
    assert place(loader) == (2, 0)
    assert flat(loader) == order(2)


def test_the_state_is_that_of_the_iterator_which_began_last(dataset: tsds.StoreDataset) -> None:
    def make() -> tsds.DataLoader[Any]:
        return tsds.DataLoader(dataset, 10, shuffle=True, seed=3)

    loader = make()
    first, second = iter(loader), iter(loader)
    assert flat(itertools.islice(second, 1)) == order(0)[:10]  # who is asked first has the first epoch
    assert flat(itertools.islice(first, 3)) == order(1)[:30]
    assert flat(second) == order(0)[10:]
    assert place(loader) == (1, 3)
    (resumed := make()).load_state_dict(loader.state_dict())
    assert flat(resumed) == flat(first) == order(1)[30:]
    assert place(loader) == (2, 0)
    live = iter(loader)
    next(live)
    loader.load_state_dict({**loader.state_dict(), "epoch": 7, "batch": 2, "sampler_epoch": 7})
    next(live)
    assert place(loader) == (7, 2)
    assert flat(live) == order(2)[20:]
    assert place(loader) == (7, 2)
    assert flat(loader) == order(7)[20:]
    next(live := iter(loader))
    loader.set_epoch(5)
    assert place(loader) == (5, 0)
    assert flat(live) == order(8)[10:]
    assert flat(loader) == order(5)


def test_persistent_workers_serve_the_iterator_that_began_last(dataset: tsds.StoreDataset) -> None:
    loader = tsds.DataLoader(dataset, 10, shuffle=True, seed=3, **WAYS["persistent workers"])
    first, second = iter(loader), iter(loader)
    next(first)
    assert flat(itertools.islice(second, 1)) == order(1)[:10]
    with pytest.raises(RuntimeError, match=r"persistent_workers=False"):
        next(first)
    assert next(first, None) is None
    assert flat(second) == order(1)[10:]
    assert place(loader) == (2, 0)


def test_two_threads_on_one_loader_are_refused(path: Path) -> None:
    begun, may_end = threading.Event(), threading.Event()

    def slow(sample: Any) -> Any:
        begun.set()
        assert may_end.wait(60)
        return sample

    batches = iter(tsds.DataLoader(tsds.StoreDataset(path, transform=slow), 1, num_threads=1))
    waiting = threading.Thread(target=next, args=(batches,))
    waiting.start()
    assert begun.wait(60)
    with pytest.raises(RuntimeError, match="one loader for each thread"):
        next(batches)
    may_end.set()
    waiting.join()


# --- resuming -----------------------------------------------------------------------------------------------------


def stopped(loader: tsds.DataLoader[Any], epochs: int, batches: int) -> tuple[Any, dict[str, Any]]:
    """The rest of an iteration, and the state of its loader as it comes from a file."""
    for _ in range(epochs):
        list(loader)
    iterator = iter(loader)
    for _ in range(batches):
        next(iterator)
    return iterator, json.loads(json.dumps(loader.state_dict()))


#: Of the orders, one of each kind: processes get the rows of any of them in the same way.
BY_PROCESSES = "shuffle", "one by one", "sizes", "batch sampler by epoch", "RandomSampler, generator"


@pytest.mark.drawn(10)
@pytest.mark.parametrize(
    ("name", "workers", "later"),
    [
        *((name, 0, 0) for name in KEPT),
        *(
            pytest.param(name, workers, later, marks=pytest.mark.slow)
            for name, (workers, later) in itertools.product(BY_PROCESSES, [(1, 0), (2, 2)])
        ),
    ],
)
def test_the_very_next_batch_comes_and_then_the_same_epochs(
    dataset: tsds.StoreDataset, name: str, workers: int, later: int
) -> None:
    whole = expected(name, 5)
    end = [] if name == "one by one, generator" else [len(whole[0])]  # RandomSampler draws once more at its very end
    everywhere = itertools.product((0, 1, 2), (0, 1, 3, *end))
    for epochs, batches in [(1, 3), (2, 0)] if workers else everywhere:
        first = tsds.DataLoader(dataset, num_workers=workers, **KEPT[name]())
        rest, state = stopped(first, epochs, batches)
        second = tsds.DataLoader(dataset, num_workers=later, **KEPT[name]())
        second.load_state_dict(state)
        left = [each for each in (whole[epochs][batches:], *whole[epochs + 1 : epochs + 3]) if each]
        assert [rows(second) for _ in left] == left
        assert rows(rest) == whole[epochs][batches:] and rows(first) == whole[epochs + 1]


@pytest.mark.parametrize(
    ("name", "way"),
    [
        *((name, "one thread") for name in KEPT),
        *(
            pytest.param(name, "persistent workers", marks=[pytest.mark.slow, pytest.mark.drawn(2)])
            for name in BY_PROCESSES
        ),
    ],
)
def test_a_loop_that_sets_every_epoch_keeps_the_position(dataset: tsds.StoreDataset, name: str, way: str) -> None:
    def make() -> tsds.DataLoader[Any]:
        return tsds.DataLoader(dataset, **WAYS[way], **KEPT[name]())

    first, uninterrupted, whole = make(), make(), []
    for epoch in range(4):
        uninterrupted.set_epoch(epoch)
        whole.append(rows(uninterrupted))
    if way == "one thread":  # workers draw their seeds from the generator as well
        assert whole == expected(name, 4, are_set=True)
    for epoch in (0, 1):
        first.set_epoch(epoch)
        assert rows(first) == whole[epoch]
    first.set_epoch(2)
    _, state = stopped(first, 0, 3)
    for states in ([state], [{**state, "batch": 1}, state]):
        second = make()
        for each in states:
            second.load_state_dict(each)
        for epoch, left in ((2, whole[2][3:]), (3, whole[3])):  # the loop that everybody writes
            second.set_epoch(epoch)
            assert rows(second) == left
    second.load_state_dict(state)
    second.set_epoch(2)
    second.set_epoch(2)
    assert second.state_dict() == state
    for _ in range(2):  # another one begins at its beginning, and so does one that has begun
        second.set_epoch(3)
        assert len(rows(second)) == len(whole[3])


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("name", GLOBAL)
def test_what_torchs_global_generator_drew_comes_back(dataset: tsds.StoreDataset, name: str, workers: int) -> None:
    torch.manual_seed(5)
    rest, state = stopped(tsds.DataLoader(dataset, num_workers=workers, **GLOBAL[name]()), 1, 3)
    second = tsds.DataLoader(dataset, num_workers=workers, **GLOBAL[name]())
    second.load_state_dict(state)
    torch.manual_seed(99)
    assert rows(second) == rows(rest)
    after = torch.get_rng_state()
    torch.manual_seed(99)
    if not workers:  # torch draws a seed for them
        assert torch.equal(after, torch.get_rng_state())
    assert sorted(map(len, rows(second))) == sorted(map(len, rows(tsds.DataLoader(dataset, **GLOBAL[name]()))))


def test_epochs_of_torchs_sampler_that_a_script_sets(dataset: tsds.StoreDataset) -> None:
    def make() -> tuple[tsds.DataLoader[Any], DistributedSampler[Any]]:
        sampler: DistributedSampler[Any] = DistributedSampler(range(ROWS), num_replicas=2, rank=0)
        return tsds.DataLoader(dataset, BATCH, sampler=sampler), sampler

    first, sampler = make()
    sampler.set_epoch(5)
    rest, state = stopped(first, 0, 2)
    assert state["epoch"] == 5
    second, sampler = make()
    second.load_state_dict(state)
    sampler.set_epoch(5)  # as torch's documentation has it, at the beginning of every epoch
    assert rows(second) == rows(rest)
    sampler.set_epoch(6)
    assert second.state_dict()["epoch"] == 6


TWICE = {"shuffle": None, "sampler": tsds.ShuffleSampler(2 * ROWS, rank=0, num_replicas=2)}
FEISTEL = {"shuffle": None, "sampler": tsds.ShuffleSampler(ROWS, algorithm="feistel")}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"batch_size": 4}, "batch_size 4, found 8"),
        ({"drop_last": True}, "batches 7, found 8"),
        ({"seed": 1}, "seed 1, found 0"),
        ({"shuffle": False}, "sampler 'ShuffleSampler, in order', found 'ShuffleSampler'"),
        (TWICE, f"samples {2 * ROWS}, found {ROWS}"),
        ({"shuffle": None, "sampler": tsds.ShuffleSampler(ROWS, seed=4)}, "sampler_seed 4, found 0"),
        (FEISTEL, "sampler 'ShuffleSampler, feistel', found 'ShuffleSampler'"),
        (None, "seed 0, found none"),
    ],
)
def test_the_state_of_another_loader_is_refused(
    dataset: tsds.StoreDataset, change: dict[str, Any] | None, message: str
) -> None:
    given = {"batch_size": BATCH, "shuffle": True}
    _, state = stopped(tsds.DataLoader(dataset, **given), 0, 2)
    state = {"epoch": 0, "batch": 2} if change is None else state
    with pytest.raises(tsds.OptionError, match=f"expected the state of a loader with {message}"):
        tsds.DataLoader(dataset, **given | (change or {})).load_state_dict(state)


@pytest.mark.parametrize("name", ["blocks", "weights", "rows", "shares"])
def test_another_order_of_as_many_samples_is_begun_between_epochs_alone(dataset: tsds.StoreDataset, name: str) -> None:
    def make(number: int) -> tsds.DataLoader[Any]:
        if name == "shares":
            shares = {dataset: 1.0, dataset.subset(range(9)): float(number)}
            return tsds.DataLoader(tsds.MixedDataset(shares, epoch_length=ROWS), BATCH, shuffle=True)
        sampler = {
            "blocks": tsds.BlockShuffleSampler(ROWS, block_rows=2, window_blocks=number),
            "weights": tsds.WeightedSampler([number, *[1] * (ROWS - 1)], replacement=np.True_),
            "rows": tsds.loading.SubsetSampler([number, *range(1, ROWS)], shuffle=np.True_),
        }[name]
        return tsds.DataLoader(dataset, BATCH, sampler=sampler)

    rest, state = stopped(make(2), 0, 2)
    with pytest.raises(tsds.OptionError, match="expected the state of a loader with order"):
        make(3).load_state_dict(state)
    (second := make(2)).load_state_dict(json.loads(json.dumps(state)))
    assert flat(second) == flat(rest)
    _, state = stopped(make(2), 1, 0)
    (third := make(3)).load_state_dict(state)
    (whole := make(3)).set_epoch(1)
    assert flat(third) == flat(whole)


@pytest.mark.parametrize("by_torch", [False, True])
def test_a_state_of_a_store_that_has_grown_is_taken_between_epochs_alone(
    dataset: tsds.StoreDataset, by_torch: bool
) -> None:
    """As many batches, in another order: samples would be repeated and left out."""

    def make(samples: int) -> tsds.DataLoader[Any]:
        some = dataset.subset(range(samples))
        own = {"sampler": RandomSampler(some, generator=torch.Generator())} if by_torch else {"shuffle": True}
        return tsds.DataLoader(some, BATCH, **own)

    _, state = stopped(make(ROWS - 1), 0, 2)
    with pytest.raises(tsds.OptionError, match=f"(samples|num_rows) {ROWS}, found {ROWS - 1}"):
        make(ROWS).load_state_dict(state)
    _, state = stopped(make(ROWS - 1), 1, 0)
    (second := make(ROWS)).load_state_dict(state)
    assert sorted(flat(second)) == list(range(ROWS))


@pytest.mark.parametrize(
    "change",
    [
        *({"batch": batch} for batch in (-3, BATCHES + 1, 1.7, "2", None, True)),
        *({"epoch": epoch} for epoch in (-1, "x", 0.5)),
        *({"drawn_from": drawn} for drawn in ("", "?", "é", "AAAA", 5)),
        {"sampler_epoch": "x"},
        {"start": ROWS + 1},
    ],
)
def test_a_state_that_makes_no_sense_changes_nothing(dataset: tsds.StoreDataset, change: dict[str, Any]) -> None:
    name = "shuffle, generator" if "drawn_from" in change else "shuffle"
    _, state = stopped(tsds.DataLoader(dataset, **KEPT[name]()), 1, 2)
    loader = tsds.DataLoader(dataset, **KEPT[name]())
    with pytest.raises(tsds.OptionError, match=r"^state: expected"):
        loader.load_state_dict(state | change)
    assert rows(loader) == expected(name, 1)[0]


class Stream(data.IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(20))


def test_an_order_that_cannot_be_computed_again_is_refused_in_the_middle_only(dataset: tsds.StoreDataset) -> None:
    class Unknown(Sampler[int]):
        def __iter__(self) -> Iterator[int]:
            return iter(np.random.default_rng().permutation(ROWS).tolist())

        def __len__(self) -> int:
            return ROWS

    makes = [lambda: tsds.DataLoader(dataset, BATCH, sampler=Unknown()), lambda: tsds.DataLoader(Stream(), BATCH)]
    for make, name in zip(makes, ("Unknown", "_InfiniteConstantSampler"), strict=True):
        _, state = stopped(make(), 0, 2)
        with pytest.raises(tsds.OptionError, match=f"batch 2: the order of {name} cannot be computed again"):
            make().load_state_dict(state)
        _, state = stopped(make(), 1, 0)
        (second := make()).load_state_dict(state)
        assert second.state_dict()["epoch"] == state["epoch"]


# --- another number of ranks ------------------------------------------------------------------------------------------


def several(dataset: tsds.StoreDataset, ranks: int, batch_size: int, **options: Any) -> list[tsds.DataLoader[Any]]:
    samplers = [tsds.ShuffleSampler(ROWS, seed=3, rank=rank, num_replicas=ranks) for rank in range(ranks)]
    return [tsds.DataLoader(dataset, batch_size, sampler=sampler, **options) for sampler in samplers]


def test_the_next_epoch_is_whole_again_by_workers(dataset: tsds.StoreDataset) -> None:
    """tests/test_oracle_mixed.py resumes by threads, with any number of ranks."""
    loaders = several(dataset, 3, 4)
    for loader in loaders:
        list(itertools.islice(iter(loader), 2))
    (one,) = several(dataset, 1, 5, num_workers=2)
    one.load_state_dict(loaders[0].state_dict())
    assert [flat(one) for _ in range(3)] == [order(0)[24:], order(1), order(2)]
    assert len(one) == -(-ROWS // 5)
    pair = several(dataset, 2, 4, num_workers=2)
    for loader in pair:
        loader.load_state_dict(loaders[0].state_dict())
    left = order(0)[24:]
    assert [flat(loader) for loader in pair] == [left[::2], [*left[1::2], order(0)[0]]]  # 37 rows, and one once more


def test_an_order_that_depends_on_the_ranks_is_refused_within_an_epoch(dataset: tsds.StoreDataset) -> None:
    def loader(ranks: int) -> tsds.DataLoader[Any]:
        sampler = tsds.BlockShuffleSampler(ROWS, block_rows=5, window_blocks=3, rank=0, num_replicas=ranks)
        return tsds.DataLoader(dataset, BATCH, sampler=sampler)

    _, state = stopped(loader(1), 0, 1)
    with pytest.raises(tsds.OptionError, match="expected the state of a loader with"):
        loader(2).load_state_dict(state)
    _, state = stopped(loader(1), 1, 0)
    resumed, whole = loader(2), loader(2)
    resumed.load_state_dict(state)
    whole.set_epoch(1)
    assert flat(resumed) == flat(whole)
    _, state = stopped(several(dataset, 1, 4)[0], 0, 1)
    for change in ({"samples": 60}, {"start": -1}, {"start": "x"}, {"num_replicas": None}):
        with pytest.raises(tsds.OptionError, match="state: expected"):
            several(dataset, 2, 4)[0].load_state_dict(state | change)
    del state["batches"]  # which differs between numbers of ranks
    (loader_of_two := several(dataset, 2, 4)[0]).load_state_dict(state)
    assert loader_of_two.state_dict()["start"] == 4


# --- processes ----------------------------------------------------------------------------------------------------

FORK = """
import os, sys, warnings
import tensorstore_ds as tsds

warnings.filterwarnings("ignore", ".*multi-threaded.*", DeprecationWarning)  # of Python 3.12 on; it is the point here


def refused():
    try:
        next(batches)
    except RuntimeError as error:
        return str(error).startswith(f"loader: expected next() in process {{os.getppid()}}, ")


for how in {how!r}:
    options = {options!r}
    loader = tsds.DataLoader(tsds.StoreDataset({path!r}), 4, shuffle=True, num_threads=2, prefetch_factor=1, **options)
    batches = iter(loader)
    next(batches)
    child = os.fork()
    if not child:
        well = refused()
        if how == "closed":
            batches.close()
        elif how == "a new epoch":
            well = well and len(list(loader)) == 16
        elif how == "the interpreter's end":
            sys.exit(not well)
        if how != "held":
            del batches, loader
        os._exit(not well)
    status = os.waitpid(child, 0)[1]
    print(how, status, len(list(batches)), len(list(loader)), flush=True)
"""


# Not the interpreter's end with worker processes: in any child of os.fork, multiprocessing then ends the parent's.
@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="forks")
@pytest.mark.parametrize(
    ("way", "how"),
    [
        ("to a device", ["a new epoch"]),
        ("threads", ["held", "dropped", "closed", "the interpreter's end"]),
        ("a worker", ["dropped", "closed", "a new epoch"]),
        ("persistent workers", ["held", "dropped", "a new epoch"]),
    ],
)
def test_an_iterator_in_a_forked_child_is_refused(path: Path, way: str, how: list[str]) -> None:
    """And neither the child hangs, nor does the parent's iterator, nor its next epoch."""
    options = {name: value for name, value in WAYS[way].items() if name in ("num_workers", "persistent_workers")}
    code = FORK.format(path=str(path), options=options, how=how)
    pipes: Any = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "start_new_session": True}
    run = subprocess.Popen([sys.executable, "-c", code], **pipes)
    try:
        out, err = run.communicate(timeout=60)
    except subprocess.TimeoutExpired:
        os.killpg(run.pid, signal.SIGKILL)  # and its children
        pytest.fail(f"it hangs: {run.communicate()}")
    assert (run.returncode, err) == (0, "")
    assert out.splitlines() == [f"{one} 0 15 16" for one in how]


@pytest.mark.slow
@pytest.mark.parametrize("end", ["sys.exit(0)", "1 / 0", "os.kill(os.getpid(), signal.SIGINT)"])
def test_the_interpreter_ends_in_the_middle_of_an_epoch(path: Path, end: str) -> None:
    loop = f"for batch in tsds.DataLoader(tsds.StoreDataset({str(path)!r}), 1, num_threads=2): {end}"
    code = f"import os, signal, sys, tensorstore_ds as tsds\n{loop}"
    run = subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.DEVNULL)
    run.wait(60)
    assert (run.returncode == 0) == ("exit(0)" in end)
    assert not list(Path("/dev/shm").glob(f"torch_{run.pid}_*"))  # noqa: S108


@pytest.mark.slow
def test_the_first_batch_does_not_wait_for_the_import_of_torchvision(path: Path) -> None:
    """It takes two seconds, and only samples with a transform of their own need it."""
    code = (
        "import sys, tensorstore_ds as tsds\n"
        "for options in ({}, {'decode': tsds.RandomResizedCrop(4)}, {'batch_transform': tsds.RandomCrop(4)}):\n"
        f"    next(iter(tsds.DataLoader(tsds.StoreDataset({str(path)!r}), 4, shuffle=True, **options)))\n"
        "    print(sorted({'torchvision', 'torch._dynamo'} & sys.modules.keys()))"
    )
    output = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert output.split() == ["[]"] * 3


def test_the_first_batch_is_made_alone(dataset: tsds.StoreDataset, monkeypatch: pytest.MonkeyPatch) -> None:
    begun, hold = [], threading.Event()
    gather = tsds.StoreDataset.gather

    def held(self: tsds.StoreDataset, indices: Any, *others: Any, **options: Any) -> Any:
        begun.append(len(indices))
        assert hold.wait(30)
        return gather(self, indices, *others, **options)

    monkeypatch.setattr(tsds.StoreDataset, "gather", held)
    batches = iter(tsds.DataLoader(dataset, BATCH, num_threads=4, decode=tsds.RandomHorizontalFlip()))
    found: list[Any] = []
    asking = threading.Thread(target=lambda: found.append(next(batches)))
    asking.start()

    assert wait_for(lambda: begun)
    time.sleep(0.2)  # in which another one would begin
    assert begun == [BATCH]
    hold.set()
    asking.join()
    assert wait_for(lambda: len(begun) >= 4) and len(found) == 1  # later ones are made ahead, before they are asked for


def test_an_iterator_beside_one_that_exceeds_its_time(path: Path) -> None:
    hold = threading.Event()

    def wait(sample: dict[str, Any]) -> dict[str, Any]:
        if int(sample["image"][0, 0, 0]) == ROWS - 1:
            hold.wait(30)
        return sample

    loader = tsds.DataLoader(tsds.StoreDataset(path, transform=wait), 31, num_threads=1, timeout=0.5)
    one, other = iter(loader), iter(loader)
    next(one)  # the thread then waits for the last batch
    with pytest.raises(RuntimeError, match=r"in 0\.5 seconds"):
        next(other)
    hold.set()
    with pytest.raises(RuntimeError, match=r"^loader: expected a batch, found threads that were stopped, .*again\.$"):
        list(one)
    loader.timeout = 0
    assert flat(loader) == list(range(ROWS))
