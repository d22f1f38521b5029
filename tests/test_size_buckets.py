"""`SizeBucketSampler`: all images, batches that fit, ranks, and less padding than at random."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from numpy.typing import NDArray

import tensorstore_ds as tsds
from stores import store_of
from tensorstore_ds.errors import OptionError
from tensorstore_ds.loading.size_buckets import SizeBucketSampler

quick = settings(max_examples=60, deadline=None)
many_sizes = st.lists(st.tuples(st.integers(1, 30), st.integers(1, 30)), max_size=60).map(
    lambda sizes: np.array(sizes, np.int64).reshape(-1, 2)
)
ranks = st.integers(1, 5)


def photographs(count: int = 2000) -> NDArray[np.int64]:
    """Landscapes and portraits, most of them in a few sizes, some in any."""
    rng = np.random.default_rng(0)
    usual = np.array([[375, 500], [500, 375], [333, 500]])[rng.integers(0, 3, count)]
    drawn = np.exp(rng.normal(6, 0.4, (count, 2))).astype(np.int64)
    sizes = np.where(rng.random((count, 1)) < 0.6, usual, drawn)
    return sizes


def epoch_of(sizes: Any, replicas: int, epoch: int = 0, **options: Any) -> list[list[list[int]]]:
    """All batches of every rank."""
    samplers = [SizeBucketSampler(sizes, rank=rank, num_replicas=replicas, **options) for rank in range(replicas)]
    for sampler in samplers:
        sampler.set_epoch(epoch)
    batches = [list(sampler) for sampler in samplers]
    assert [len(each) for each in batches] == [len(sampler) for sampler in samplers]
    assert len({len(each) for each in batches}) == 1
    every = [batch for each in batches for batch in each]
    count = sum(map(len, every))
    if count == len(sizes) or (count and options.get("drop_last") and "batch_size" in options):  # each batch comes once
        assert samplers[0].padding_waste == pytest.approx(waste(sizes, every, options.get("size_divisor", 1)))
    return batches


def padded_pixels(sizes: NDArray[np.int64], batch: list[int], divisor: int = 1) -> int:
    height, width = -(-sizes[batch].max(0) // divisor) * divisor
    return int(height * width) * len(batch)


def waste(sizes: NDArray[np.int64], batches: list[list[int]], divisor: int = 1) -> float:
    if not batches:
        return 0.0
    true = sum(int(sizes[batch].prod(1).sum()) for batch in batches)
    return 1 - true / sum(padded_pixels(sizes, batch, divisor) for batch in batches)


@quick
@given(many_sizes, st.integers(1, 9), ranks, st.booleans(), st.booleans(), st.integers(1, 8), st.integers(1, 7))
def test_every_image_once_in_batches_of_one_size(
    sizes: NDArray[np.int64],
    batch_size: int,
    replicas: int,
    drop_last: bool,
    shuffle: bool,
    buckets: int,
    divisor: int,
) -> None:
    options = {"batch_size": batch_size, "drop_last": drop_last, "shuffle": shuffle, "buckets": buckets}
    batches = epoch_of(sizes, replicas, size_divisor=divisor, **options)
    seen = [row for each in batches for batch in each for row in batch]
    lengths = sorted({len(batch) for each in batches for batch in each})
    if drop_last:
        assert lengths in ([], [batch_size]) and len(set(seen)) == len(seen)
        assert len(seen) == len(sizes) // (batch_size * replicas) * batch_size * replicas
    else:
        assert set(seen) == set(range(len(sizes)))
        assert len(seen) == -(-len(sizes) // replicas) * replicas  # as torch's DistributedSampler repeats them
        if replicas <= len(sizes):
            assert max(np.bincount(seen)) <= 2
        assert len(lengths) <= 2 and all(n <= batch_size for n in lengths)
    steps = [{len(batch) for batch in step} for step in zip(*batches, strict=True)]
    assert all(len(each) == 1 for each in steps) and sum(each != {batch_size} for each in steps) <= 1
    assert 1 <= SizeBucketSampler(sizes, batch_size, buckets=buckets, size_divisor=divisor).buckets <= buckets


@quick
@given(many_sizes, st.integers(1, 3000), ranks, st.booleans(), st.integers(1, 8), st.integers(1, 7))
def test_no_batch_is_larger_than_pixels(
    sizes: NDArray[np.int64], pixels: int, replicas: int, drop_last: bool, buckets: int, divisor: int
) -> None:
    options = {"pixels": pixels, "drop_last": drop_last, "buckets": buckets, "size_divisor": divisor}
    batches = epoch_of(sizes, replicas, **options)
    seen = sorted(row for each in batches for batch in each for row in batch)
    if any(len(batch) > 1 for each in batches for batch in each):
        assert seen == list(range(len(sizes)))
    else:  # no batch could be made smaller so that the ranks divide them
        found = len(sizes) // replicas if drop_last else -(-len(sizes) // replicas)
        assert len(seen) == found * replicas and (drop_last or set(seen) == set(range(len(sizes))))
    for each in batches:
        for batch in each:
            assert len(batch) == 1 or padded_pixels(sizes, batch, divisor) <= pixels
    groups = {tuple(size): {tuple(size)} for size in sizes.tolist()}  # a batch is of one bucket: sizes that meet in one
    for batch in (batch for each in batches for batch in each):
        together = set().union(*(groups[tuple(size)] for size in sizes[batch].tolist()))
        groups |= dict.fromkeys(together, together)
    found = SizeBucketSampler(sizes, pixels=pixels, buckets=buckets, size_divisor=divisor).buckets
    assert 1 <= found <= buckets and (not groups or len({id(group) for group in groups.values()}) >= found)


@pytest.mark.parametrize("options", [{"batch_size": 16}, {"pixels": 16 * 500 * 500}, {"batch_size": 7, "seed": 3}])
def test_there_is_less_padding_than_in_random_batches(options: dict[str, Any]) -> None:
    sizes = photographs()
    if "pixels" in options:
        sizes[7] = 4000, 6000  # alone in its batch
    sampler = SizeBucketSampler(sizes, **options)
    found = waste(sizes, list(sampler))
    rows = tsds.ShuffleSampler(len(sizes)).rows().tolist()
    size = options.get("batch_size", 16)
    random = waste(sizes, [rows[i : i + size] for i in range(0, len(rows), size)])
    assert found < random / 3
    if "batch_size" in options:
        alone = SizeBucketSampler(sizes, buckets=1, **options)
        assert alone.buckets == 1 and alone.padding_waste == pytest.approx(random, abs=0.1)
    assert f"{sampler.buckets} buckets, {100 * found:.1f} % padding>" in repr(sampler)
    (first, *_), (second, *_) = (epoch_of(sizes, 2, **options)[rank] for rank in range(2))
    assert padded_pixels(sizes, first) == pytest.approx(padded_pixels(sizes, second), rel=0.5)  # of one step


def test_the_divisor_counts_as_padding() -> None:
    sizes = np.full((8, 2), 33)
    assert SizeBucketSampler(sizes, 4).padding_waste == 0
    assert SizeBucketSampler(sizes, 4, size_divisor=32).padding_waste == pytest.approx(1 - (33 / 64) ** 2)


def test_an_epoch_follows_from_seed_and_epoch() -> None:
    sizes = photographs(300)
    for options in ({"batch_size": 8}, {"pixels": 2_000_000}):
        first = epoch_of(sizes, 2, **options)
        assert first == epoch_of(sizes, 2, **options)
        others = [epoch_of(sizes, 2, 1, **options), epoch_of(sizes, 2, seed=1, **options)]
        assert first not in others
        still = epoch_of(sizes, 2, shuffle=False, **options)
        assert still == epoch_of(sizes, 2, 5, shuffle=False, **options)
        sampler = pickle.loads(pickle.dumps(SizeBucketSampler(sizes, rank=1, num_replicas=2, **options)))  # noqa: S301
        assert list(sampler) == first[1]
        sampler.load_state_dict({"epoch": 1})
        assert (sampler.state_dict(), list(sampler)) == ({"epoch": 1}, others[0][1])
        areas = [sizes[batch].prod(1).max() for batch in first[0]]
        assert areas != sorted(areas)  # batches come in random order


def test_orders_stay_what_they_are() -> None:
    """A run that goes on under another NumPy, or another version of this library, must not change its order."""
    sizes = np.array([[4, 6], [6, 4]] * 6)
    assert list(SizeBucketSampler(sizes, 4, seed=7)) == [[9, 6, 2, 1], [8, 5, 10, 0], [4, 7, 11, 3]]
    assert list(SizeBucketSampler(sizes, pixels=100, seed=7)) == [[4, 7], [11, 3], [8, 5], [9, 6], [2, 1], [10, 0]]


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Gray images whose pixels are their row."""
    rng = np.random.default_rng(0)
    samples = [{"image": np.full((*rng.integers(8, 90, 2), 1), row, np.uint8)} for row in range(90)]
    return store_of(tmp_path_factory.mktemp("buckets") / "s.tsds", samples, encoding="jpeg").path


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("options", [{"batch_size": 8}, {"pixels": 40_000}])
def test_a_loader_takes_it(path: Path, workers: int, options: dict[str, Any]) -> None:
    dataset = tsds.StoreDataset(path).subset(np.arange(1, 90, 2))
    sizes = tsds.open(path)["train"].image_shapes[1::2, :2].astype(np.int64)

    sampler = tsds.SizeBucketSampler(dataset, size_divisor=16, **options)
    padded: dict[str, Any] = {"num_workers": workers, "collate_images": "padded", "size_divisor": 16}
    ours = tsds.DataLoader(dataset, batch_sampler=sampler, **padded)
    epochs = [[batch["image"][:, 0, 0, 0].tolist() for batch in ours] for _ in range(2)]
    for epoch, found in enumerate(epochs):
        expected = epoch_of(sizes, 1, epoch, size_divisor=16, **options)[0]
        assert found == [[2 * row + 1 for row in batch] for batch in expected]
    assert epochs[0] != epochs[1]
    other = tsds.SizeBucketSampler(dataset, shuffle=False, size_divisor=16, **options)
    with pytest.raises(OptionError, match=r"state: expected the state of a loader with"):
        tsds.DataLoader(dataset, batch_sampler=other).load_state_dict(ours.state_dict())
    if not workers:
        turned = tsds.SizeBucketSampler(sizes[::-1], size_divisor=16, **options)  # as many batches
        next(iter(ours))
        with pytest.raises(OptionError, match=r"expected the state of a loader with order"):
            tsds.DataLoader(dataset, batch_sampler=turned, **padded).load_state_dict(ours.state_dict())


def test_what_cannot_be_sampled_is_refused(path: Path) -> None:
    dataset = tsds.StoreDataset(path)
    sizes = np.ones((4, 2), int)
    for arguments, message in (
        ({"dataset": sizes}, "`batch_size`: expected this or `pixels`, found neither"),
        ({"dataset": sizes, "batch_size": 4, "pixels": 100}, "`batch_size`: expected this or `pixels`, found both"),
        ({"dataset": sizes, "batch_size": 0}, "batch_size"),
        ({"dataset": sizes, "pixels": 0}, "pixels"),
        ({"dataset": sizes, "pixels": 9, "buckets": 0}, "buckets"),
        ({"dataset": sizes, "pixels": 9, "size_divisor": 0}, "size_divisor"),
        ({"dataset": sizes, "pixels": 9, "rank": 1}, "rank"),
        ({"dataset": 0 * sizes, "pixels": 9}, r"expected a StoreDataset, or heights and widths \(n, 2\) of 1 or more"),
        ({"dataset": [1, 2], "pixels": 9}, r"expected a StoreDataset, or heights and widths"),
        ({"dataset": dataset.split, "pixels": 9}, r"expected a StoreDataset, or heights and widths"),
    ):
        with pytest.raises(OptionError, match=message):
            SizeBucketSampler(**arguments)
    with pytest.raises(OptionError, match=r"`sampler`: expected a sampler of rows, found a SizeBucketSampler: pass it"):
        tsds.DataLoader(dataset, 4, sampler=SizeBucketSampler(dataset, 4))
    with pytest.raises(OptionError, match=r"`batch_sampler`: expected one of 90 images, found 4"):
        tsds.DataLoader(dataset, batch_sampler=SizeBucketSampler(sizes, 4))
