"""Block shuffling: what is read when, and how well it mixes."""

import numpy as np
import pytest
from hypothesis import given, strategies as st

from tensorstore_ds.loading.block_shuffle import BlockShuffleSampler, shuffle_quality
from tensorstore_ds.loading.samplers import ShuffleSampler

SIZES = {
    "size": st.integers(0, 60),
    "block_rows": st.integers(1, 70),
    "window_blocks": st.integers(1, 9),
    "replicas": st.integers(1, 7),
    "drop_last": st.booleans(),
    "epoch": st.integers(0, 99),
}


def samplers(size, block_rows, window_blocks, replicas, drop_last, epoch):
    for rank in range(replicas):
        sampler = BlockShuffleSampler(
            size,
            block_rows=block_rows,
            window_blocks=window_blocks,
            rank=rank,
            num_replicas=replicas,
            drop_last=drop_last,
        )
        sampler.set_epoch(epoch)
        yield sampler


@given(**SIZES)
def test_every_row_once_and_ranks_of_equal_length(**sizes):
    size, replicas = sizes["size"], sizes["replicas"]
    parts = [sampler.rows() for sampler in samplers(**sizes)]
    length = size // replicas if sizes["drop_last"] else -(-size // replicas)
    assert [len(part) for part in parts] == [length] * replicas
    counts = np.bincount(np.concatenate(parts), minlength=size)
    if sizes["drop_last"]:
        assert counts.max(initial=0) <= 1
    else:
        assert counts.min(initial=1) == 1
        assert counts.sum() == length * replicas


def test_ranks_read_blocks_of_their_own():
    parts = [
        BlockShuffleSampler(1000, block_rows=10, window_blocks=4, rank=rank, num_replicas=4).rows() // 10
        for rank in range(4)
    ]
    blocks = [set(part.tolist()) for part in parts]
    assert sum(map(len, blocks)) == 100 == len(set.union(*blocks))
    within = [tuple(BlockShuffleSampler(8, block_rows=8, window_blocks=1, rank=r, num_replicas=2)) for r in (0, 1)]
    assert len({tuple(np.argsort(rows).tolist()) for rows in within}) == 2  # and mix them each in its own way


def test_a_window_holds_no_more_blocks_than_it_may():
    rows = BlockShuffleSampler(1000, block_rows=10, window_blocks=4).rows()
    windows = rows.reshape(-1, 40)
    assert {len(np.unique(window // 10)) for window in windows} == {4}
    neighbors = np.diff(windows, axis=1)
    assert (neighbors == 1).mean() < 0.1  # rows of a block do not stay in order
    assert len({tuple(window.argsort()) for window in windows}) == 25  # and no two windows are mixed alike


def test_more_than_there_is_means_all_of_it():
    sampler = BlockShuffleSampler(5, block_rows=2**60, window_blocks=2**60)
    assert (sampler.block_rows, sampler.window_blocks) == (5, 1)
    assert sorted(sampler) == [0, 1, 2, 3, 4]
    assert len(BlockShuffleSampler(0, block_rows=4, window_blocks=4).rows()) == 0


# --- how well it is mixed ---------------------------------------------------------------------------------------


def test_quality_grows_with_the_window():
    def blocks(window):
        return BlockShuffleSampler(50_000, block_rows=50, window_blocks=window).rows()

    orders = [np.arange(50_000), blocks(4), blocks(16), blocks(64), blocks(256), ShuffleSampler(50_000).rows()]
    qualities = [shuffle_quality(order) for order in orders]
    assert qualities == sorted(qualities)
    assert min(np.diff(qualities)) > 0.02
    assert qualities[0] < 0.1
    assert qualities[-1] == pytest.approx(1, abs=0.005)


@pytest.mark.parametrize(("batch_size", "parts"), [(1, 10), (16, 3), (256, 7), (100, 1000)])
def test_a_full_shuffle_is_one_whatever_the_batch(batch_size, parts):
    rows = np.random.default_rng(1).permutation(20_000)
    quality = shuffle_quality(rows, batch_size=batch_size, parts=parts)
    assert quality == pytest.approx(1, abs=0.01)


def test_quality_is_what_the_formula_says():
    # batches {0, 1}, {2, 3}, {0, 2}: entropies 0, 0, log 2. Of the 15 pairs of rows of parts a a a b b b, 9 are mixed.
    assert shuffle_quality([0, 1, 2, 3, 0, 2], batch_size=2, parts=2) == pytest.approx((1 / 3) / (9 / 15))


@pytest.mark.parametrize("dtype", [np.uint8, np.uint64])
def test_quality_of_rows_of_any_type(dtype):
    rows = np.random.default_rng(1).permutation(256)
    assert shuffle_quality(rows.astype(dtype), batch_size=16) == shuffle_quality(rows, batch_size=16)


def test_quality_by_labels():
    labels = np.repeat([0, 1], 500)
    rows = np.arange(1000)
    assert shuffle_quality(rows, batch_size=50, labels=labels) == 0
    alternating = rows.reshape(2, 500).T.reshape(-1)
    assert shuffle_quality(alternating, batch_size=50, labels=labels) == pytest.approx(1, abs=0.02)
    assert shuffle_quality(rows, labels=np.zeros(1000, int)) == 1  # one class: nothing to mix


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ({"rows": []}, "rows: expected 0 or more"),
        ({"rows": [-1]}, "rows: expected 0 or more"),
        ({"rows": [1], "batch_size": 0}, "`batch_size`, `parts`: expected 1 or more, found 0, 100"),
        ({"rows": [1], "parts": 0}, "`batch_size`, `parts`: expected 1 or more, found 256, 0"),
    ],
)
def test_what_quality_refuses(bad, message):
    with pytest.raises(ValueError, match=message):
        shuffle_quality(**bad)


def test_samples_without_a_label_are_a_part_of_their_own():
    rows, labels = np.random.default_rng(3).permutation(400), np.repeat([-1, 0, 1, 2], 100)
    assert shuffle_quality(rows, batch_size=50, labels=labels) == shuffle_quality(
        rows, batch_size=50, labels=labels + 1
    )
    assert shuffle_quality(np.arange(400), batch_size=50, labels=labels) == 0
