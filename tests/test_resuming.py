"""A loader that loads the state of another goes on with the very next batch, whatever decides the order; or refuses."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch.utils.data import (
    BatchSampler,
    IterableDataset,
    RandomSampler,
    Sampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)
from torch.utils.data.distributed import DistributedSampler

import tensorstore_ds as tsds
from stores import store_of

ROWS, BATCH = 61, 8
BATCHES = -(-ROWS // BATCH)
WORKER = {"num_workers": 1, "persistent_workers": True}


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> tsds.StoreDataset:
    samples = [{"image": np.full((4, 4), i, np.uint8)} for i in range(ROWS)]
    path: Path = store_of(tmp_path_factory.mktemp("resuming") / "s.tsds", samples, shard_nbytes=40 * 16).path
    return tsds.StoreDataset(path)


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


BUCKETS = np.random.default_rng(0).integers(4, 20, (ROWS, 2))
WEIGHTS = np.linspace(1, 9, ROWS).tolist()
OURS: dict[str, Callable[[], dict[str, Any]]] = {
    "sequential": lambda: {"batch_size": BATCH},
    "shuffle": lambda: {"batch_size": BATCH, "shuffle": True, "seed": 3},
    "drop_last": lambda: {"batch_size": BATCH, "shuffle": True, "drop_last": True},
    "one by one": lambda: {"batch_size": None, "shuffle": True},
    "ShuffleSampler of a rank": lambda: {
        "batch_size": BATCH,
        "sampler": tsds.ShuffleSampler(ROWS, rank=1, num_replicas=2),
    },
    "ShuffleSampler by feistel": lambda: {
        "batch_size": BATCH,
        "sampler": tsds.ShuffleSampler(ROWS, algorithm="feistel", seed=3),
    },
    "WeightedSampler": lambda: {"batch_size": BATCH, "sampler": tsds.WeightedSampler(np.linspace(1, 9, ROWS))},
    "SubsetSampler": lambda: {"batch_size": BATCH, "sampler": tsds.loading.SubsetSampler(np.arange(0, ROWS, 2))},
    "BlockShuffleSampler": lambda: {
        "batch_size": BATCH,
        "sampler": tsds.BlockShuffleSampler(ROWS, block_rows=5, window_blocks=3),
    },
    "SizeBucketSampler": lambda: {"batch_sampler": tsds.SizeBucketSampler(BUCKETS, BATCH, seed=3)},
    "SizeBucketSampler of a rank": lambda: {
        "batch_sampler": tsds.SizeBucketSampler(BUCKETS, pixels=900, rank=1, num_replicas=2)
    },
    "a list": lambda: {"batch_size": BATCH, "sampler": list(range(ROWS))[::-1]},
    "batch sampler by epoch": lambda: {"batch_sampler": ByEpoch()},
}
TORCHS: dict[str, Callable[[], dict[str, Any]]] = {
    "RandomSampler, generator": lambda: {
        "batch_size": BATCH,
        "sampler": RandomSampler(range(ROWS), generator=generator()),
    },
    "RandomSampler, replacement": lambda: {
        "batch_size": BATCH,
        "sampler": RandomSampler(range(ROWS), replacement=True, num_samples=100, generator=generator()),
    },
    "shuffle, generator": lambda: {"batch_size": BATCH, "shuffle": True, "generator": generator()},
    "one by one, generator": lambda: {"batch_size": None, "shuffle": True, "generator": generator()},
    "WeightedRandomSampler, generator": lambda: {
        "batch_size": BATCH,
        "sampler": WeightedRandomSampler(WEIGHTS, ROWS, generator=generator()),
    },
    "SubsetRandomSampler, generator": lambda: {
        "batch_size": BATCH,
        "sampler": SubsetRandomSampler(range(5, ROWS), generator=generator()),
    },
    "BatchSampler, generator": lambda: {
        "batch_sampler": BatchSampler(RandomSampler(range(ROWS), generator=generator()), BATCH, drop_last=True)
    },
    "DistributedSampler": lambda: {
        "batch_size": BATCH,
        "sampler": DistributedSampler(range(ROWS), num_replicas=2, rank=1),
    },
}
GLOBAL: dict[str, Callable[[], dict[str, Any]]] = {
    "RandomSampler": lambda: {"batch_size": BATCH, "sampler": RandomSampler(range(ROWS))},
    "RandomSampler, replacement": lambda: {
        "batch_size": BATCH,
        "sampler": RandomSampler(range(ROWS), replacement=True, num_samples=100),
    },
    "WeightedRandomSampler": lambda: {"batch_size": BATCH, "sampler": WeightedRandomSampler(WEIGHTS, ROWS)},
    "SubsetRandomSampler": lambda: {"batch_size": BATCH, "sampler": SubsetRandomSampler(range(5, ROWS))},
}


def rows(batches: Any) -> list[list[int]]:
    return [torch.atleast_3d(batch["image"])[..., 0, 0].reshape(-1).tolist() for batch in batches]


def stopped(loader: tsds.DataLoader[Any], epochs: int, batches: int) -> tuple[Any, dict[str, Any]]:
    """The rest of an iteration, and the state of its loader as it comes from a file."""
    for _ in range(epochs):
        list(loader)
    iterator = iter(loader)
    for _ in range(batches):
        next(iterator)
    return iterator, json.loads(json.dumps(loader.state_dict()))


@pytest.mark.parametrize("workers", [0, pytest.param(2, marks=[pytest.mark.slow, pytest.mark.drawn(6)])])
@pytest.mark.parametrize("epochs", [0, 1, 2])
@pytest.mark.parametrize("name", [*OURS, *TORCHS])
def test_the_very_next_batch_comes_and_then_the_same_epochs(
    dataset: tsds.StoreDataset, name: str, epochs: int, workers: int
) -> None:
    arguments = {**OURS, **TORCHS}[name]
    for batches in (0, 1, 3, len(tsds.DataLoader(dataset, **arguments()))):
        first = tsds.DataLoader(dataset, num_workers=workers, **arguments())
        rest, state = stopped(first, epochs, batches)
        second = tsds.DataLoader(dataset, num_workers=workers, **arguments())
        second.load_state_dict(state)
        at_the_end = batches == len(first)
        expected = [] if at_the_end else [rows(rest)]
        expected += [rows(first), rows(first)]
        assert [rows(second) for _ in expected] == expected


def epochs_of(loader: tsds.DataLoader[Any], first: int) -> list[list[list[int]]]:
    """The loop that everybody writes, from an epoch to the fourth."""
    each = []
    for epoch in range(first, 4):
        loader.set_epoch(epoch)
        each.append(rows(loader))
    return each


@pytest.mark.parametrize("workers", [{}, pytest.param(WORKER, marks=[pytest.mark.slow, pytest.mark.drawn(4)])])
@pytest.mark.parametrize("name", [*OURS, *TORCHS])
def test_a_loop_that_sets_every_epoch_keeps_the_position(
    dataset: tsds.StoreDataset, name: str, workers: dict[str, Any]
) -> None:
    make = lambda: tsds.DataLoader(dataset, **workers, **{**OURS, **TORCHS}[name]())  # noqa: E731
    first, expected = make(), epochs_of(make(), 0)
    for epoch in (0, 1):
        first.set_epoch(epoch)
        assert rows(first) == expected[epoch]
    first.set_epoch(2)
    _, state = stopped(first, 0, 3)
    for states in ([state], [{**state, "batch": 1}, state]):
        second = make()
        for each in states:
            second.load_state_dict(each)
        assert epochs_of(second, state["epoch"]) == [expected[2][3:], expected[3]]
    second.load_state_dict(state)
    second.set_epoch(2)
    second.set_epoch(2)
    assert second.state_dict() == state
    second.set_epoch(3)  # another one begins at its beginning, and so does one that has begun
    assert len(rows(second)) == len(expected[3])
    second.set_epoch(3)
    assert len(rows(second)) == len(expected[3])


@pytest.mark.parametrize("workers", [0, 1])
def test_a_loop_over_several_stores_keeps_the_position(dataset: tsds.StoreDataset, workers: int) -> None:
    mixed = tsds.MixedDataset({dataset: 0.7, dataset.subset(range(20)): 0.3})
    make = lambda: tsds.DataLoader(mixed, BATCH, shuffle=True, num_workers=workers)  # noqa: E731
    expected, first, second = epochs_of(make(), 0), make(), make()
    first.set_epoch(1)
    _, state = stopped(first, 0, 2)
    second.load_state_dict(state)
    assert epochs_of(second, 1) == [expected[1][2:], *expected[2:]]


def test_torchs_loader_with_our_sampler_in_such_a_loop(dataset: tsds.StoreDataset) -> None:
    """Its state is the epoch of the sampler alone."""
    sampler, again = tsds.ShuffleSampler(ROWS), tsds.ShuffleSampler(ROWS)
    sampler.set_epoch(2)
    again.load_state_dict(sampler.state_dict())
    again.set_epoch(2)
    assert list(torch.utils.data.DataLoader(range(ROWS), 1, sampler=again)) == list(sampler)


@pytest.mark.parametrize("threads", [(1, 3), (0, 2)])
@pytest.mark.parametrize("name", TORCHS)
def test_threads_go_on_where_workers_were(dataset: tsds.StoreDataset, name: str, threads: tuple[int, int]) -> None:
    first = tsds.DataLoader(dataset, num_workers=1, **TORCHS[name]())
    rest, state = stopped(first, 1, 2)
    second = tsds.DataLoader(dataset, num_threads=2, **TORCHS[name]())
    second.load_state_dict(state)
    assert rows(second) == rows(rest)


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


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"batch_size": 4}, "expected the state of a loader with batch_size 4, found 8"),
        ({"drop_last": True}, "expected the state of a loader with batches 7, found 8"),
        ({"seed": 1}, "expected the state of a loader with seed 1, found 0"),
        (
            {"shuffle": False},
            "expected the state of a loader with sampler 'ShuffleSampler, in order', found 'ShuffleSampler'",
        ),
        (
            {"shuffle": None, "sampler": tsds.ShuffleSampler(2 * ROWS, rank=0, num_replicas=2)},
            f"expected the state of a loader with samples {2 * ROWS}, found {ROWS}",
        ),
        (
            {"shuffle": None, "sampler": tsds.ShuffleSampler(ROWS, seed=4)},
            "expected the state of a loader with sampler_seed 4, found 0",
        ),
        (
            {"shuffle": None, "sampler": tsds.ShuffleSampler(ROWS, algorithm="feistel")},
            "expected the state of a loader with sampler 'ShuffleSampler, feistel', found 'ShuffleSampler'",
        ),
    ],
)
def test_the_state_of_another_loader_is_refused(
    dataset: tsds.StoreDataset, change: dict[str, Any], message: str
) -> None:
    _, state = stopped(tsds.DataLoader(dataset, BATCH, shuffle=True), 0, 2)
    with pytest.raises(tsds.OptionError, match=message):
        tsds.DataLoader(dataset, **{"batch_size": BATCH, "shuffle": True, **change}).load_state_dict(state)
    with pytest.raises(tsds.OptionError, match="with seed 0, found none"):
        tsds.DataLoader(dataset, BATCH, shuffle=True).load_state_dict({"epoch": 0, "batch": 2})


@pytest.mark.parametrize(
    "change",
    [
        *({"batch": batch} for batch in (-3, BATCHES + 1, 1.7, "2", None, True)),
        *({"epoch": epoch} for epoch in (-1, "x", 0.5)),
        *({"sampler_epoch": "x"}, {"drawn_from": "?"}, {"drawn_from": "AAAA"}, {"drawn_from": 5}),
    ],
)
def test_a_state_that_makes_no_sense_changes_nothing(dataset: tsds.StoreDataset, change: dict[str, Any]) -> None:
    arguments = TORCHS["shuffle, generator"] if "drawn_from" in change else OURS["shuffle"]
    _, state = stopped(tsds.DataLoader(dataset, **arguments()), 1, 2)
    loader, other = (tsds.DataLoader(dataset, **arguments()) for _ in range(2))
    with pytest.raises(tsds.OptionError, match=r"^state: expected"):
        loader.load_state_dict(state | change)
    assert rows(loader) == rows(other)


def test_an_order_that_cannot_be_computed_again_is_refused_in_the_middle_only(dataset: tsds.StoreDataset) -> None:
    class Unknown(Sampler[int]):
        def __iter__(self) -> Iterator[int]:
            return iter(np.random.default_rng().permutation(ROWS).tolist())

        def __len__(self) -> int:
            return ROWS

    def make() -> tsds.DataLoader[Any]:
        return tsds.DataLoader(dataset, BATCH, sampler=Unknown())

    _, state = stopped(make(), 0, 2)
    with pytest.raises(tsds.OptionError, match="batch 2: the order of Unknown cannot be computed again"):
        make().load_state_dict(state)
    _, state = stopped(make(), 1, 0)
    (second := make()).load_state_dict(state)
    assert second.state_dict()["epoch"] == 1


def test_iterable_data_sets_begin_anew_only(dataset: tsds.StoreDataset) -> None:
    class Stream(IterableDataset[int]):
        def __iter__(self) -> Iterator[int]:
            return iter(range(20))

    iterator = iter(loader := tsds.DataLoader(Stream(), 4))
    next(iterator)
    with pytest.raises(tsds.OptionError, match="cannot be computed again"):
        tsds.DataLoader(Stream(), 4).load_state_dict(loader.state_dict())
    list(iterator)
    tsds.DataLoader(Stream(), 4).load_state_dict(loader.state_dict())


# --- another number of ranks ------------------------------------------------------------------------------------------

ELASTIC: dict[str, Callable[[int, int], Any]] = {
    "shuffle": lambda rank, ranks: tsds.ShuffleSampler(ROWS, seed=3, rank=rank, num_replicas=ranks),
    "in order": lambda rank, ranks: tsds.ShuffleSampler(ROWS, shuffle=False, rank=rank, num_replicas=ranks),
    "drop_last": lambda rank, ranks: tsds.ShuffleSampler(ROWS, rank=rank, num_replicas=ranks, drop_last=True),
    "subset": lambda rank, ranks: tsds.loading.SubsetSampler(np.arange(3, ROWS), rank=rank, num_replicas=ranks),
    "weighted": lambda rank, ranks: tsds.WeightedSampler(WEIGHTS, replacement=False, rank=rank, num_replicas=ranks),
}


def several(dataset: tsds.StoreDataset, name: str, ranks: int, batch_size: int) -> list[tsds.DataLoader[Any]]:
    return [tsds.DataLoader(dataset, batch_size, sampler=ELASTIC[name](rank, ranks)) for rank in range(ranks)]


@settings(max_examples=80, deadline=None)
@given(
    st.sampled_from(sorted(ELASTIC)),
    st.lists(st.tuples(st.integers(1, 5), st.integers(1, 7), st.integers(0, 4)), min_size=2, max_size=4),
    st.integers(0, 2),
)
def test_the_rest_of_an_epoch_on_another_number_of_ranks(
    dataset: tsds.StoreDataset, name: str, runs: list[tuple[int, int, int]], epoch: int
) -> None:
    """Runs of (ranks, batch size, batches), each but the first from the state of the one before."""
    whole = ELASTIC[name](0, 1)
    whole.set_epoch(epoch)
    order = whole.rows().tolist()
    seen: list[int] = []
    state: dict[str, Any] | None = None
    for number, (ranks, batch_size, batches) in enumerate(runs):
        loaders = several(dataset, name, ranks, batch_size)
        for loader in loaders:
            if state is None:
                loader.set_epoch(epoch)
            elif state["num_replicas"] == ranks and state["batch_size"] != batch_size:
                return  # refused, as ever
            else:
                loader.load_state_dict(state)
        iterators = [iter(loader) for loader in loaders]
        is_last = number == len(runs) - 1
        found = [rows(itertools.islice(each, None if is_last else batches)) for each in iterators]
        assert len({len(each) for each in found}) == 1
        steps = [[row for batch in step for row in batch] for step in zip(*found, strict=True)]
        seen += [row for step in steps for row in step]
        states = [json.loads(json.dumps(loader.state_dict())) for loader in loaders]
        assert all(each == states[0] for each in states)
        state = states[0]
        if state["epoch"] > epoch:
            break
    assert state is not None and state["epoch"] == epoch + 1
    if name == "drop_last":
        assert len(set(seen)) == len(seen) and len(order) - len(seen) < ranks
    else:
        assert set(seen) == set(order) and len(seen) - len(order) < ranks


def test_the_next_epoch_is_whole_again(dataset: tsds.StoreDataset) -> None:
    loaders = several(dataset, "shuffle", 3, 4)
    for loader in loaders:
        list(itertools.islice(iter(loader), 2))
    (one,) = several(dataset, "shuffle", 1, 5)
    one.load_state_dict(loaders[0].state_dict())
    order = [row for epoch in range(3) for batch in rows(one) for row in batch]
    expected = []
    for epoch in range(3):
        sampler = tsds.ShuffleSampler(ROWS, seed=3)
        sampler.set_epoch(epoch)
        expected += sampler.rows().tolist()[0 if epoch else 24 :]
    assert order == expected
    assert len(one) == -(-ROWS // 5)


@pytest.mark.parametrize("workers", [0, 2])
def test_workers_go_on_with_another_number_of_ranks(dataset: tsds.StoreDataset, workers: int) -> None:
    (one,) = several(dataset, "shuffle", 1, 6)
    rest, state = stopped(one, 1, 4)
    halves = [
        tsds.DataLoader(dataset, 3, sampler=ELASTIC["shuffle"](rank, 2), num_workers=workers) for rank in range(2)
    ]
    for loader in halves:
        loader.load_state_dict(state)
    found = [row for pair in zip(*map(rows, halves), strict=True) for batch in pair for row in batch]
    left = [row for batch in rows(rest) for row in batch]
    assert set(found[: len(left)]) == set(left) and len(found) == len(left) + len(left) % 2


def test_an_order_that_depends_on_the_ranks_is_refused(dataset: tsds.StoreDataset) -> None:
    def loader(ranks: int) -> tsds.DataLoader[Any]:
        sampler = tsds.BlockShuffleSampler(ROWS, block_rows=5, window_blocks=3, rank=0, num_replicas=ranks)
        return tsds.DataLoader(dataset, BATCH, sampler=sampler)

    _, state = stopped(loader(1), 0, 1)
    with pytest.raises(tsds.OptionError, match="expected the state of a loader with"):
        loader(2).load_state_dict(state)
    _, state = stopped(several(dataset, "shuffle", 1, 4)[0], 0, 1)
    for change in ({"samples": 60}, {"start": -1}, {"start": "x"}, {"num_replicas": None}):
        with pytest.raises(tsds.OptionError, match="state: expected"):
            several(dataset, "shuffle", 2, 4)[0].load_state_dict(state | change)
