"""Splits and shards, before anything is converted."""

import hashlib
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, strategies as st

from tensorstore_ds.conversion.plan import (
    BLOCK_ROWS,
    ChosenRows,
    block_rows,
    in_order,
    plan_blocks,
    plan_shards,
    plan_splits,
    share_rows,
)
from tensorstore_ds.errors import OptionError
from tensorstore_ds.sources.base import Contents, SourceOptions
from tensorstore_ds.sources.imglab import ImglabSource
from tensorstore_ds.sources.voc.source import VocSource


def contents(n, labels=None, name="train", **others):
    splits = {name: [f"{i}.png" for i in range(n)], **others}
    return Contents({}, splits, None if labels is None else {name: np.asarray(labels)})


def plan(found, fractions, seed):
    return plan_splits(found, fractions, seed, lambda split, reference: reference)


@pytest.mark.parametrize("name", ["train", "training"])
def test_train_is_divided_where_there_is_a_test_split(name):
    splits = plan(contents(10, name=name, test=["t.png"]), {"train": 0.5, "val": 0.5}, 0)
    assert list(splits) == ["train", "val", "test"]
    assert splits["val"].source_split == name
    assert list(splits["test"]) == ["t.png"]


@pytest.mark.parametrize(
    ("fractions", "message"),
    [
        ({"train": 0.5, "val": 0.4}, "add up to 1, found 0.9"),
        ({"train": 80, "val": 20}, r"add up to 1, found 100\. Write 80 percent as 0\.8"),
        ({"train": 1.5, "val": -0.5}, "add up to 1"),
        ({"Train": 1.0}, "names of a-z"),
        ({"train": 0.5, "test": 0.5}, "choose other names"),
        ({"train": 0.001, "val": 0.999}, "expected a sample for train, found none: 0.001 of 10 in train"),
    ],
)
def test_divisions_that_are_refused(fractions, message):
    with pytest.raises(OptionError, match=message):
        plan(contents(10, test=["t.png"]), fractions, 0)


def test_classes_of_few_samples_are_named_as_the_reason():
    labelled = contents(200, labels=np.repeat(np.arange(100), 2))
    with pytest.raises(OptionError, match="of each class in train, of at most 2 samples"):
        plan(labelled, {"train": 0.9, "val": 0.1}, 0)
    assert len(plan(labelled, {"train": 0.5, "val": 0.5}, 0)["val"]) == 100


def test_splits_stand_in_the_order_of_use():
    splits = plan(contents(1, test=["t"], extra=["e"], val=["v"]), None, 0)
    assert list(splits) == ["train", "val", "test", "extra"]


@given(st.integers(0, 5000), st.integers(1, 2000), st.integers(1, 10**7))
def test_shards_and_blocks_hold_every_reference_once_in_order(n, per_shard, row_nbytes):
    references = list(range(n))
    folder = Path("00000")
    shards = plan_shards({"train": ChosenRows("train", references, range(n))}, per_shard)
    assert list(shards) == [("train", i) for i in range(-(-n // per_shard))]
    found = []
    for shard in shards.values():
        assert len(shard) <= per_shard
        first = 0
        for block in plan_blocks(shard, block_rows(row_nbytes), folder):
            assert block.first_row == first
            assert 1 <= len(block.references) <= BLOCK_ROWS
            first += len(block.references)
            found += block.references
    assert found == references


# --- a division goes by the samples' keys, and by nothing else ----------------------------------------------------


def divided(source, seed=3, share=0.3):
    """For each sample, by its key, the split that it comes to."""
    found = source.contents()
    splits = plan_splits(found, {"train": 1 - share, "val": share}, seed, source.key)
    return {source.key(s.source_split, r): name for name, s in splits.items() for r in s}


def imglab_of(root, names, box):
    for name in names:
        (root / name).touch()
    images = "".join(f"<image file='{name}'><box top='1' left='{box}' width='9' height='9'/></image>" for name in names)
    (root / "d.xml").write_text(f"<dataset><images>{images}</images></dataset>")
    return ImglabSource(root / "d.xml", SourceOptions())


def voc_of(root, names, box):
    for name in names:
        (root / name).touch()
        corners = f"<xmin>{box}</xmin><ymin>1</ymin><xmax>{box + 9}</xmax><ymax>9</ymax>"
        found = f"<object><name>cat</name><bndbox>{corners}</bndbox></object>"
        (root / f"{name[:-4]}.xml").write_text(f"<annotation>{found}</annotation>")
    return VocSource(root, SourceOptions())


@pytest.mark.parametrize("make", [imglab_of, voc_of])
def test_an_image_more_at_the_front_moves_hardly_any(tmp_path, make):
    """imglab's references are numbers: each of them means another image then."""
    names = [f"{i:03d}.png" for i in range(200)]
    before = divided(make(tmp_path, names, 1))
    after = divided(make(tmp_path, ["---.png", *names], 1))
    assert sum(before[name] != after[name] for name in names) <= 1


def test_a_shard_ends_where_it_ends():
    shard = plan_shards({"train": ChosenRows("train", "abcdefg", range(7))}, 3)["train", 1]
    assert list(shard) == ["d", "e", "f"]
    assert (list(shard[-1:]), list(shard[1:]), list(shard[3:])) == (["f"], ["e", "f"], [])


# --- the rule itself, in plain Python ---------------------------------------------------------------------------


def hashed(key, seed):
    digest = hashlib.blake2b(key.encode(), digest_size=8, salt=seed.to_bytes(16, "little", signed=True)).digest()
    return int.from_bytes(digest, "little")


@given(
    st.integers(30, 80),
    st.integers(-(2**40), 2**40),
    st.sampled_from([(0.5, 0.25, 0.25), (0.7, 0.2, 0.1), (0.25, 0.75), (1.0,), (1.0, 0.0), (0.0, 1.0)]),
    st.integers(0, 3),
)
def test_each_class_is_ordered_by_the_hash_and_cut_at_the_fractions(count, seed, shares, classes):
    labels = None if classes == 0 else np.arange(count) % classes - 1
    keys = [f"{i}.png" for i in range(count)]
    fractions = dict(zip("abc", shares, strict=False))
    found = {name: rows.tolist() for name, rows in share_rows(fractions, keys, count, labels, seed).items()}
    expected = {name: [] for name in fractions}
    for label in {None} if labels is None else set(labels.tolist()):
        rows = [i for i in range(count) if labels is None or labels[i] == label]
        rows.sort(key=lambda i: hashed(keys[i], seed))
        first, total = 0, 0.0
        for name, share in fractions.items():
            total += share
            last = round(total * len(rows))
            expected[name] += rows[first:last]
            first = last
    assert found == {name: sorted(rows) for name, rows in expected.items()}


@given(st.integers(-(2**40), 2**40), st.sampled_from([(0.5, 0.25, 0.25), (0.6, 0.4), (1.0,)]), st.randoms())
def test_each_group_goes_where_its_middle_is(seed, shares, random):
    sizes = [random.randint(1, 6) for _ in range(40)]
    keys = [f"group {i}" for i, size in enumerate(sizes) for _ in range(size)]
    random.shuffle(keys)
    fractions = dict(zip("abc", shares, strict=False))
    found = share_rows(fractions, keys, len(keys), None, seed, are_groups=True)
    expected = {name: set() for name in fractions}
    before = 0
    for group in sorted(range(40), key=lambda i: hashed(f"group {i}", seed)):
        middle, ends = before + sizes[group] / 2, np.cumsum(shares) * len(keys)
        part = next((name for name, end in zip(fractions, ends, strict=True) if middle < end), list(fractions)[-1])
        expected[part] |= {i for i, key in enumerate(keys) if key == f"group {group}"}
        before += sizes[group]
    assert {name: set(rows.tolist()) for name, rows in found.items()} == expected
    assert all((np.diff(rows) > 0).all() for rows in found.values())


def test_a_division_without_a_group_for_a_part_says_how_many_there_are():
    for keys, groups in ((["a"] * 5, "1 group, which"), (["a", "a", "b", "b", "b"], "2 groups, which")):
        with pytest.raises(OptionError, match=f"a group for y, found none: the 5 samples in x are {groups} stay whole"):
            share_rows({"x": 0.8, "y": 0.1, "z": 0.1}, keys, 5, None, 0, " in x", are_groups=True)
    with pytest.raises(OptionError, match=r"expected a sample for z, found none: 0\.1 of 3 in x"):
        share_rows({"x": 0.8, "y": 0.1, "z": 0.1}, "abc", 3, None, 0, " in x", are_groups=True)


@pytest.mark.parametrize(("share", "fits"), [(0.5, True), (0.5 + 9e-7, True), (0.5 + 3e-6, False), (0.5 - 3e-6, False)])
def test_fractions_add_up_to_one_but_for_rounding(share, fits):
    if fits:
        assert len(share_rows({"a": 0.5, "b": share}, "abcd", 4, None, 0)["a"]) == 2
    else:
        with pytest.raises(OptionError, match="add up to 1"):
            share_rows({"a": 0.5, "b": share}, "abcd", 4, None, 0)


def test_the_order_of_all_names_that_have_one():
    names = ["b", "test", "validation", "a", "valid", "val", "train"]
    assert list(in_order(dict.fromkeys(names))) == ["train", "val", "valid", "validation", "test", "b", "a"]


def test_the_only_split_is_divided_whatever_its_name():
    splits = plan(contents(10, name="all"), {"train": 0.5, "all": 0.5}, 0)
    assert [(name, split.source_split, len(split)) for name, split in splits.items()] == [
        ("train", "all", 5),
        ("all", "all", 5),
    ]
    with pytest.raises(OptionError, match="the source has a, b, and train, val are asked for"):
        plan(contents(4, name="a", b=["b.png"]), {"train": 0.5, "val": 0.5}, 0)


@pytest.mark.parametrize("as_range", [True, False])
def test_a_selection_has_its_references_in_order(as_range):
    listed = [f"{i}.png" for i in range(4 * BLOCK_ROWS)]
    rows = range(3, 4 * BLOCK_ROWS, 3)
    selection = ChosenRows("train", listed, rows if as_range else np.array(rows))
    assert list(selection) == [listed[i] for i in rows]
    assert list(selection[5:700]) == [listed[i] for i in rows[5:700]]
    assert len(selection[5:600]) == 595


@pytest.mark.parametrize(
    ("nbytes", "rows"), [(0, 512), (1, 512), (4096, 512), (4097, 511), (2**20, 2), (2**20 + 1, 1), (2**30, 1)]
)
def test_a_block_has_two_mebibytes_or_512_rows(nbytes, rows):
    assert block_rows(nbytes) == rows


def test_blocks_say_where_they_come_from_and_go_to():
    blocks = list(plan_blocks(ChosenRows("val", "abcdefg", range(1, 7)), 4, Path("00003")))
    assert [(b.source_split, b.references, b.folder, b.first_row) for b in blocks] == [
        ("val", list("bcde"), Path("00003"), 0),
        ("val", list("fg"), Path("00003"), 4),
    ]
