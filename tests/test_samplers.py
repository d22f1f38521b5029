"""Samplers: all ranks together, epochs, states; torch's own samplers and DataLoader say what is right."""

import itertools
import json
import pickle
import tracemalloc
from collections import Counter

import numpy as np
import pytest
import torch.distributed
from hypothesis import given, strategies as st
from torch.utils.data import DistributedSampler

from tensorstore_ds.loading.block_shuffle import BlockShuffleSampler
from tensorstore_ds.loading.samplers import RowSampler, ShuffleSampler, SubsetSampler
from tensorstore_ds.loading.weighted import WeightedSampler

SUBSET = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5]
WEIGHTS = [1, 2, 0, 3, 4, 0.5, 0, 1, 2, 6, 1, 1]

#: Each makes a sampler of 11 or 12 rows an epoch, and takes rank, num_replicas, drop_last and seed.
DEALT = {
    "shuffle": lambda **options: ShuffleSampler(12, **options),
    "stored order": lambda **options: ShuffleSampler(11, shuffle=False, **options),
    "feistel": lambda **options: ShuffleSampler(12, algorithm="feistel", **options),
    "subset by feistel": lambda **options: SubsetSampler(SUBSET, algorithm="feistel", **options),
    "subset": lambda **options: SubsetSampler(SUBSET, **options),
    "weighted": lambda **options: WeightedSampler(WEIGHTS, **options),
    "weighted, without replacement": lambda **options: WeightedSampler(WEIGHTS, 10, replacement=False, **options),
}
EVERY = DEALT | {"blocks": lambda **options: BlockShuffleSampler(11, block_rows=2, window_blocks=2, **options)}
RANDOM = {name: make for name, make in EVERY.items() if name != "stored order"}


def ranks(make, replicas, **options):
    return [make(rank=rank, num_replicas=replicas, **options) for rank in range(replicas)]


@pytest.mark.parametrize(
    ("sampler", "expected"),
    [
        (ShuffleSampler(5, shuffle=False), [0, 1, 2, 3, 4]),
        (ShuffleSampler(12, seed=7), [6, 11, 1, 0, 2, 7, 8, 10, 3, 4, 9, 5]),
        (ShuffleSampler(12, seed=7, algorithm="feistel"), [7, 0, 8, 4, 11, 10, 9, 1, 3, 6, 2, 5]),
        (SubsetSampler([3, 1, 4, 1, 5, 9, 2, 6], seed=7), [1, 2, 3, 6, 4, 5, 1, 9]),
        (BlockShuffleSampler(12, block_rows=3, window_blocks=2, seed=7), [1, 8, 2, 6, 7, 0, 9, 3, 10, 11, 4, 5]),
        (WeightedSampler([1, 2, 3, 4, 0], 10, seed=7), [1, 0, 3, 2, 3, 2, 0, 0, 3, 2]),
        (WeightedSampler([1, 2, 3, 4, 0], seed=7, replacement=False), [2, 3, 1, 0]),
    ],
)
def test_orders_stay_what_they_are(sampler, expected):
    """A run that goes on under another NumPy, or another version of this library, must not change its order."""
    sampler.set_epoch(2)
    assert sampler.rows().tolist() == expected


@given(size=st.integers(0, 40), replicas=st.integers(1, 9), drop_last=st.booleans())
def test_ranks_are_padded_and_cut_as_torchs(size, replicas, drop_last):
    for rank in range(replicas):
        ours = ShuffleSampler(size, shuffle=False, rank=rank, num_replicas=replicas, drop_last=drop_last)
        if size:
            torchs = DistributedSampler(range(size), replicas, rank, shuffle=False, drop_last=drop_last)
            assert list(ours) == list(torchs)
            assert (len(ours), ours.num_samples, ours.total_size) == (
                len(torchs),
                torchs.num_samples,
                torchs.total_size,
            )
        else:
            assert list(ours) == []
            assert len(ours) == 0


@pytest.mark.parametrize("name", DEALT)
@given(replicas=st.integers(1, 15), drop_last=st.booleans(), seed=st.integers(0, 2**70), epoch=st.integers(0, 2**40))
def test_the_order_of_all_ranks_together_does_not_depend_on_their_number(name, replicas, drop_last, seed, epoch):
    alone, *several = [DEALT[name](seed=seed), *ranks(DEALT[name], replicas, seed=seed, drop_last=drop_last)]
    for sampler in (alone, *several):
        sampler.set_epoch(epoch)
    order = alone.rows()
    assert {len(sampler.rows()) for sampler in several} == {len(several[0])}
    together = np.stack([sampler.rows() for sampler in several], axis=1).reshape(-1)
    total = len(order) // replicas * replicas if drop_last else -(-len(order) // replicas) * replicas
    assert together.tolist() == np.resize(order, total).tolist()


@pytest.mark.parametrize("name", RANDOM)
def test_epoch_and_seed_change_the_order_and_nothing_else_does(name):
    orders = set()
    for seed in range(6):
        for epoch in range(6):  # torch adds seed and epoch: its seed 1 repeats all but the first order of seed 0
            sampler = RANDOM[name](seed=seed)
            sampler.set_epoch(epoch)
            assert sampler.rows().tolist() == sampler.rows().tolist()
            orders.add(tuple(sampler))
    assert len(orders) == 36


@given(size=st.integers(0, 40), other=st.integers(1, 9), start=st.integers(0, 45))
def test_what_is_left_of_an_uneven_epoch_is_divided_anew(size, other, start):
    uneven = {"even_batches": False, "seed": 3}
    whole = ShuffleSampler(size, seed=3).rows()[start:]
    rest = [ShuffleSampler(size, rank=r, num_replicas=other, **uneven).after(min(start, size)) for r in range(other)]
    rows = [sampler.rows() for sampler in rest]
    assert [len(each) for each in rows] == [len(sampler) for sampler in rest]
    assert [rows[i % other][i // other] for i in range(len(whole))] == whole.tolist()


@pytest.mark.parametrize("name", DEALT)
@given(replicas=st.integers(1, 5), drop_last=st.booleans(), first=st.integers(0, 14), nrows=st.integers(1, 5))
def test_an_order_can_be_had_by_pieces_from_any_row_on(name, replicas, drop_last, first, nrows):
    for sampler in ranks(DEALT[name], replicas, drop_last=drop_last, seed=3):
        pieces = [piece.tolist() for piece in sampler.pieces(first, nrows)]
        assert [*itertools.chain(*pieces)] == sampler.rows()[first:].tolist() == list(sampler)[first:]
        if name in ("stored order", "feistel", "subset by feistel"):
            assert {len(piece) for piece in pieces[:-1]} <= {nrows}


def test_a_hundred_million_rows_need_no_array_of_them():
    tracemalloc.start()
    sampler = ShuffleSampler(10**8, algorithm="feistel", rank=3, num_replicas=8)
    rows = next(sampler.after(8 * 10**6).pieces(5 * 10**6))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2 * 10**6 and len(set(rows.tolist())) == len(rows) and 0 <= rows.min() < rows.max() < 10**8
    one = ShuffleSampler(10**8, algorithm="feistel").pieces((6 * 10**6) * 8 + 3, 1)
    assert next(one)[0] == rows[0]


def test_every_order_is_equally_likely():
    sampler = ShuffleSampler(4)
    counts = Counter()
    for epoch in range(4800):
        sampler.set_epoch(epoch)
        counts[tuple(sampler.rows().tolist())] += 1
    assert len(counts) == 24
    assert sum((n - 200) ** 2 / 200 for n in counts.values()) < 49.73  # chi-square, 23 degrees of freedom, 0.999


@pytest.mark.parametrize("name", EVERY)
def test_a_new_array_of_int64_every_time(name):
    sampler = EVERY[name](seed=0)
    assert isinstance(sampler, DistributedSampler)  # Lightning and others do not divide it again
    assert {type(row) for row in sampler} == {int} and EVERY[name]().rows().tolist() == list(sampler)
    rows = sampler.rows()
    assert (rows.dtype, rows.shape) == (np.int64, (len(sampler),))
    before = rows.tolist()
    rows[:] = -1
    assert sampler.rows().tolist() == before


def test_an_iteration_that_has_begun_stays_in_its_epoch():
    sampler = ShuffleSampler(10_001)
    expected = list(sampler)
    iteration = iter(sampler)
    sampler.set_epoch(1)
    assert list(iteration) == expected != list(sampler)


@pytest.mark.parametrize("name", EVERY)
def test_pickled_and_loaded(name):
    sampler = EVERY[name](rank=1, num_replicas=2, drop_last=True, seed=5)
    sampler.set_epoch(3)
    copy = pickle.loads(pickle.dumps(sampler))  # noqa: S301
    assert copy.rows().tolist() == sampler.rows().tolist()
    state = json.loads(json.dumps(sampler.state_dict()))
    other = EVERY[name](rank=1, num_replicas=2, drop_last=True, seed=5)
    other.load_state_dict(state)
    assert other.rows().tolist() == sampler.rows().tolist()
    assert other.state_dict() == {"epoch": 3}


@pytest.mark.parametrize("name", EVERY)
def test_ranks_come_from_torch_distributed_once_it_is_there(name, monkeypatch):
    sampler = EVERY[name]()
    fixed = EVERY[name](rank=0, num_replicas=1)
    assert (sampler.rank, sampler.num_replicas) == (0, 1)
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "get_rank", lambda: 2)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 4)
    assert (sampler.rank, sampler.num_replicas) == (2, 4)
    expected = EVERY[name](rank=2, num_replicas=4)
    assert list(sampler) == list(expected)
    assert len(sampler) == len(expected) == 3
    assert (fixed.rank, fixed.num_replicas) == (0, 1)


def test_a_data_set_may_grow():
    data = list(range(5))
    sampler = ShuffleSampler(data)
    assert sorted(sampler) == [0, 1, 2, 3, 4]
    data += [5, 6]
    assert sorted(sampler) == [0, 1, 2, 3, 4, 5, 6] and len(sampler) == 7
    assert len(ShuffleSampler(np.int64(3))) == 3


def test_a_subset_is_copied():
    rows = np.array([5, 6, 7])
    sampler = SubsetSampler(rows, shuffle=False)
    rows[:] = 0
    assert list(sampler) == [5, 6, 7]
    assert list(SubsetSampler([])) == []


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: ShuffleSampler(-1), ValueError, "`size`: expected 0 or more, found -1"),
        (lambda: ShuffleSampler(2.5), TypeError, "float"),
        (lambda: ShuffleSampler(3, seed=-1), ValueError, "`seed`: expected 0 or more"),
        (lambda: ShuffleSampler(3).set_epoch(-1), ValueError, "`epoch`: expected 0 or more"),
        (lambda: ShuffleSampler(3).load_state_dict({"position": 1}), ValueError, "the member epoch, found position"),
        (
            lambda: ShuffleSampler(3, rank=1),
            ValueError,
            "`rank`: expected with `num_replicas`, found 1 and None. Give both or neither",
        ),
        (lambda: ShuffleSampler(3, num_replicas=2), ValueError, "Give both or neither"),
        (lambda: ShuffleSampler(3, rank=2, num_replicas=2), ValueError, r"`rank`: expected in \[0, 2\), found 2"),
        (lambda: ShuffleSampler(3, rank=-1, num_replicas=2), ValueError, r"in \[0, 2\), found -1"),
        (lambda: ShuffleSampler(3, rank=0, num_replicas=0), ValueError, r"in \[0, 0\), found 0"),
        (lambda: SubsetSampler([True, False]), TypeError, "flatnonzero"),
        (lambda: SubsetSampler([1.0]), TypeError, "float64"),
        (lambda: SubsetSampler([[1]]), ValueError, r"shape \(m,\), found \(1, 1\)"),
        (lambda: SubsetSampler([1, -2]), ValueError, "found -2"),
        (lambda: BlockShuffleSampler(3, block_rows=0, window_blocks=1), ValueError, "`block_rows`: expected 1"),
        (lambda: BlockShuffleSampler(3, block_rows=1, window_blocks=0), ValueError, "`window_blocks`: expected 1"),
        (lambda: ShuffleSampler(3, algorithm="aes"), ValueError, "one of fisher-yates, feistel, found 'aes'"),
        (lambda: RowSampler(3), TypeError, "abstract"),
    ],
)
def test_what_is_refused(make, error, message):
    with pytest.raises(error, match=message):
        make()
