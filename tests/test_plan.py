"""Splits and shards, before anything is converted."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensorstore_ds.errors import OptionError
from tensorstore_ds.plan import BLOCK_ROWS, PlannedSplit, plan_blocks, plan_shards, plan_splits
from tensorstore_ds.sources.base import Contents


def contents(n, labels=None, name="train", **others):
    splits = {name: [f"{i}.png" for i in range(n)], **others}
    return Contents({}, splits, None if labels is None else {name: np.asarray(labels)})


def plan(found, fractions, seed):
    return plan_splits(found, fractions, seed, lambda split, reference: reference)


@given(st.integers(1, 300), st.integers(0, 2**63), st.floats(0, 1))
def test_every_sample_is_in_just_one_split(n, seed, share):
    splits = plan(contents(n), {"train": share, "val": 1 - share}, seed)
    taken = [r for split in splits.values() for r in split.references]
    assert sorted(taken) == sorted(f"{i}.png" for i in range(n))
    assert abs(len(splits["train"].references) - share * n) <= 0.5 + 1e-9


def test_every_class_has_its_share():
    labels = np.repeat([0, 1, 2], [100, 30, 10])
    splits = plan(contents(140, labels), {"train": 0.8, "val": 0.2}, seed=3)
    found = {int(r.split(".")[0]) for r in splits["val"].references}
    assert np.bincount(labels[sorted(found)]).tolist() == [20, 6, 2]


def test_a_seed_always_gives_the_same_division_and_another_another():
    first = plan(contents(100), {"a": 0.5, "b": 0.5}, seed=1)
    again = plan(contents(100), {"a": 0.5, "b": 0.5}, seed=1)
    other = plan(contents(100), {"a": 0.5, "b": 0.5}, seed=2)
    assert list(first["a"].references) == list(again["a"].references)
    assert list(first["a"].references) != list(other["a"].references)
    # These names are literal: a change would move samples of everybody's validation set into training.
    assert list(first["b"].references)[:4] == ["0.png", "1.png", "3.png", "9.png"]


def test_a_sample_more_moves_few_others():
    before = set(plan(contents(1000), {"train": 0.9, "val": 0.1}, 0)["val"].references)
    after = set(plan(contents(1010), {"train": 0.9, "val": 0.1}, 0)["val"].references)
    assert len(before - after) <= 5


def test_train_is_divided_where_there_is_a_test_split():
    splits = plan(contents(10, test=["t.png"]), {"train": 0.5, "val": 0.5}, 0)
    assert list(splits) == ["train", "val", "test"]
    assert splits["val"].source_split == "train"
    assert list(splits["test"].references) == ["t.png"]


@pytest.mark.parametrize(
    ("fractions", "message"),
    [
        ({"train": 0.5, "val": 0.4}, "add up to 1, found 0.9"),
        ({"train": 1.5, "val": -0.5}, "add up to 1"),
        ({"Train": 1.0}, "names of a-z"),
        ({"train": 0.5, "test": 0.5}, "choose other names"),
    ],
)
def test_divisions_that_are_refused(fractions, message):
    with pytest.raises(OptionError, match=message):
        plan(contents(10, test=["t.png"]), fractions, 0)


def test_splits_stand_in_the_order_of_use():
    splits = plan(contents(1, test=["t"], extra=["e"], val=["v"]), None, 0)
    assert list(splits) == ["train", "val", "test", "extra"]


@given(st.integers(0, 5000), st.integers(1, 2000), st.integers(1, 10**7))
def test_shards_and_blocks_hold_every_reference_once_in_order(n, per_shard, row_nbytes):
    references = list(range(n))
    shards = plan_shards({"train": PlannedSplit("train", references)}, per_shard)
    assert [shard.index for shard in shards] == list(range(-(-n // per_shard)))
    found = []
    for shard in shards:
        assert len(shard.references) <= per_shard
        first = 0
        for block in plan_blocks(shard, row_nbytes):
            assert block.first_row == first
            assert 1 <= len(block.references) <= BLOCK_ROWS
            first += len(block.references)
            found += block.references
    assert found == references
