"""Stores made of stores: compared, row by row, with what NumPy takes of the stores that they were made of."""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import json
import os
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from PIL import Image

import tensorstore_ds as tsds
from small_stores import VALID, tsds as command
from stores import store_of
from tensorstore_ds.annex.editing import rows as rows_module
from tensorstore_ds.annex.editing.expression import Condition
from tensorstore_ds.annex.editing.rows import Piece, joined_statistics, rows_of, runs_of, shards_of
from tensorstore_ds.format.kinds import RawImageField
from tensorstore_ds.format.kinds.base import equal as are_equal
from tensorstore_ds.format.schema import ArraySpec

CLASSES = ("cat", "dog", "bird")
NBYTES, LAYOUTS = st.integers(2500, 9000), st.sampled_from(["memmap", "zarr"])


def samples(count: int, seed: int = 0, *, outlines: bool = True) -> list[dict[str, Any]]:
    rng = np.random.default_rng(seed)
    made = []
    for i in range(count):
        m = int(rng.integers(0, 4))
        corner = rng.uniform(0, 5, (m, 2))
        objects: dict[str, Any] = {
            "boxes": np.concatenate([corner, corner + rng.uniform(1, 6, (m, 2))], axis=1),
            "labels": rng.integers(0, 3, m),
        }
        if outlines:
            objects["polygons"] = [rng.uniform(0, 9, (int(rng.integers(0, 5)), 2)) for _ in range(m)]
        image = rng.integers(0, 256, (12, 14, 3), np.uint8)
        made.append({"image": image, "label": int(i % 3), "age": float(i), "objects": objects})
    return made


def store(path: Path, count: int = 20, seed: int = 0, **options: Any) -> tsds.Store:
    return store_of(path, samples(count, seed), CLASSES, **options)


def photos(root: Path, names: Sequence[str] = ("train", "test"), count: int = 9) -> Path:
    """Folders of JPEG files of differing sizes."""
    rng = np.random.default_rng(len(names))
    for split in names:
        for i in range(count):
            path = root / split / ("ant", "bee")[i % 2] / f"{i}.jpg"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(rng.integers(0, 256, (20 + i, 30, 3), np.uint8)).save(path)
    return root


def plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: plain(each) for name, each in value.items()}
    if isinstance(value, list):
        return [plain(each) for each in value]
    return value.tolist() if isinstance(value, np.ndarray | np.generic) else value


def row(split: tsds.Split, number: int) -> dict[str, Any]:
    return {name: plain(split[name][number]) for name in split.fields}


def assert_rows(made: tsds.Split, whole: tsds.Split, rows: Sequence[int]) -> None:
    assert len(made) == len(rows)
    for i, number in enumerate(rows):
        assert row(made, i) == row(whole, number)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tsds.Store:
    return store(tmp_path_factory.mktemp("whole") / "a.tsds")


@pytest.fixture(scope="module")
def thirty(tmp_path_factory: pytest.TempPathFactory) -> tsds.Store:
    return store(tmp_path_factory.mktemp("thirty") / "a.tsds", 30)


@pytest.fixture(scope="module")
def wholes(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[int, str], tsds.Store]:
    """Stores of 20 samples by the bytes of a shard and the layout: a row a shard, some rows, and all."""
    folder, cases = tmp_path_factory.mktemp("wholes"), itertools.product((60, 2000, 1 << 20), ("memmap", "zarr"))
    return {(n, layout): store(folder / f"{n}.{layout}", shard_nbytes=n, layout=layout) for n, layout in cases}


@pytest.mark.slow
@settings(max_examples=12, deadline=None)
@given(
    st.lists(st.integers(0, 19), unique=True, min_size=1),
    st.sampled_from([60, 2000, 1 << 20]),
    st.sampled_from(["memmap", "zarr"]),
)
def test_any_rows(
    wholes: dict[tuple[int, str], tsds.Store],
    tmp_path_factory: pytest.TempPathFactory,
    dropped: list[int],
    nbytes: int,
    layout: Any,
) -> None:
    """Also where rows come from several shards, in either layout."""
    folder, whole = tmp_path_factory.mktemp("rows"), wholes[nbytes, layout]
    kept = sorted({*range(20)} - {*dropped})
    if not kept:
        with pytest.raises(tsds.OptionError, match="expected rows for the new store, found none"):
            tsds.editing.filter_store(whole.path, folder / "b.tsds", drop={"train": dropped})
        return
    summary = tsds.editing.filter_store(whole.path, folder / "b.tsds", drop={"train": dropped})
    assert summary.rows == {"train": len(kept)}
    assert tsds.verify(folder / "b.tsds") == []
    made = tsds.open(folder / "b.tsds")
    assert made.layout == layout
    assert_rows(made["train"], whole["train"], kept)
    expected = store_of(folder / "c.tsds", [samples(20)[i] for i in kept], CLASSES, layout=layout)
    assert list(made["train"].statistics) == ["image", "label", "objects", "size"]
    for name, found in made["train"].statistics.items():
        assert found == expected["train"].statistics[name], name


@pytest.mark.drawn(1)
@pytest.mark.parametrize("layout", ["memmap", "zarr"])
@pytest.mark.parametrize("is_packed", [False, True])
def test_whole_shards_are_copied_as_files(
    tmp_path: Path, layout: Any, is_packed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are listed with the same digests; of shards that lack a row, and of all together, the sums are counted."""
    copy, copied = rows_module._Kept.copy, set[int]()
    monkeypatch.setattr(rows_module._Kept, "copy", lambda each, *a: (copied.add(each.index), copy(each, *a)))
    whole = store(tmp_path / "a.tsds", 23, shard_nbytes=4000, layout=layout)
    counts = [shard.rows for shard in whole.manifest.splits["train"].shards]
    assert len(counts) >= 3 and min(counts[:-1]) > 1
    source = tsds.pack(whole.path, tmp_path / "packed.tsds").path if is_packed else whole.path
    tsds.editing.filter_store(source, tmp_path / "b.tsds", "age >= 0")
    made = tsds.open(tmp_path / "b.tsds")
    assert tsds.verify(made.path) == [] and made.manifest.splits == whole.manifest.splits
    assert copied == {*range(len(counts))}

    copied.clear()
    tsds.editing.filter_store(source, tmp_path / "c.tsds", drop={"train": [counts[0]]})
    made = tsds.open(tmp_path / "c.tsds")
    assert tsds.verify(made.path) == []
    rows = [i for i in range(23) if i != counts[0]]
    assert_rows(made["train"], whole["train"], rows)
    shards = made.manifest.splits["train"].shards
    assert [shard.rows for shard in shards][:2] == [counts[0], counts[1] - 1]
    assert shards[0] == whole.manifest.splits["train"].shards[0]
    assert copied == {*range(len(counts))} - {1}
    pixels = np.stack([whole["train"]["image"][i] for i in rows]) / 255
    np.testing.assert_allclose(made["train"].statistics["image"]["mean"], pixels.mean((0, 1, 2)), rtol=1e-9)
    np.testing.assert_allclose(made["train"].statistics["image"]["std"], pixels.std((0, 1, 2)), rtol=1e-9)


@pytest.mark.parametrize("kept", [[*range(0, 20, 2)], [0, *range(3, 17)]], ids=["many short runs", "long runs"])
def test_rows_are_copied_in_steps(
    whole: tsds.Store, tmp_path: Path, kept: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each once, also where many rows, or values of rows, are read in several steps."""
    monkeypatch.setattr(rows_module, "COPY_NBYTES", 4100)
    monkeypatch.setattr(rows_module, "_ROWS", 10)
    tsds.editing.filter_store(whole.path, tmp_path / "b.tsds", drop={"train": sorted({*range(20)} - {*kept})})
    assert tsds.verify(tmp_path / "b.tsds") == []
    assert_rows(tsds.open(tmp_path / "b.tsds")["train"], whole["train"], kept)


@pytest.mark.drawn(9)
@pytest.mark.parametrize("name", sorted({path.name for path in VALID.iterdir()} - {"unreadable-fields.tsds"}))
def test_all_rows_of_every_valid_store(name: str, tmp_path: Path) -> None:
    """The same shards and statistics, where the store's own are complete."""
    whole = tsds.open(VALID / name)
    tsds.editing.filter_store(whole.path, tmp_path / "b.tsds")
    made = tsds.open(tmp_path / "b.tsds")
    assert tsds.verify(made.path) == []
    assert tsds.editing.compare_stores(whole.path, made.path).is_empty
    for split in whole:
        said, counted = (store.manifest.splits[split].statistics for store in (whole, made))
        for name in counted.keys() & said.keys():
            assert isinstance(said[name], int) or counted[name].items() <= said[name].items(), name


def test_image_files_are_copied(tmp_path: Path) -> None:
    """To the byte; their mean and standard deviation are those of the split that they are from."""
    tsds.convert(photos(tmp_path / "src"), tmp_path / "a.tsds", tsds.ConvertOptions(workers=0, encoding="source"))
    whole = tsds.open(tmp_path / "a.tsds")
    tsds.editing.filter_store(whole.path, tmp_path / "b.tsds", "label == 'bee' and height > 22", splits=["train"])
    made = tsds.open(tmp_path / "b.tsds")
    assert list(made) == ["train"] and tsds.verify(made.path) == []
    rows = [i for i in range(9) if whole["train"]["label"][i] == 1 and whole["train"].image_shapes[i][0] > 22]
    assert_rows(made["train"], whole["train"], rows)
    assert made["train"].statistics["image"]["mean"] == whole["train"].statistics["image"]["mean"]
    assert made.manifest.provenance["history"][0]["command"] == "filter"
    assert made.manifest.provenance["history"][0]["sha256"] == [whole.sha256]


@pytest.mark.parametrize(
    ("where", "test"),
    [
        ("label in ('cat', 'bird') or age >= 15", lambda s, i: i % 3 != 1 or i >= 15),  # more in test_expression.py
        ("objects > 1", lambda s, i: len(s["objects"]["labels"]) > 1),
        ("'dog' in classes", lambda s, i: 1 in s["objects"]["labels"]),
        ("'cat' not in classes and width == 14", lambda s, i: 0 not in s["objects"]["labels"]),
        ("'1' in key", lambda s, i: "1" in f"train/{i:05d}"),
        ("key >= 'train/00010'", lambda s, i: i >= 10),
        ("height > width", lambda s, i: False),
    ],
)
def test_conditions(whole: tsds.Store, where: str, test: Any) -> None:
    expected = [i for i, sample in enumerate(samples(20)) if test(sample, i)]
    assert Condition(where).rows(whole["train"]).tolist() == expected


@pytest.mark.parametrize(
    ("where", "message"),
    [
        ("lable == 'cat'", "expected a column .*found lable. Did you mean label"),
        ("label == cat", r"expected a column .*found cat\. Texts, as names of classes, are in quotes\."),
        ("label = 'cat'", r"expected a condition such as .*\(to compare, write ==\)"),
        ("label", "expected a condition, which is true or false, found label"),
        ("label == 3", "expected two numbers or two texts to compare, found label and 3. Texts"),
        ("age == 'x'", "two numbers or two texts"),
        ("label and age > 3", "expected conditions beside and, or, not, found label"),
        ("__import__('os').system('true')", "expected columns, numbers, texts"),
        ("key.upper() == 'A'", "expected columns, numbers, texts"),
        ("[x for x in key]", "expected columns, numbers, texts"),
        ("(lambda: 1)()", "expected columns, numbers, texts"),
        ("age ** 9 > 1", "expected columns, numbers, texts"),
        ("label + 'x' == 'y'", "expected a number, found label"),
        ("label in (1, 3)", r"found label in \(1, 3\)\. Texts, as names of classes, are in quotes\."),
        ("age in 3", "a column in a list of values"),
        ("'a' in ('a', 'b')", "a column in a list of values"),
        ("label in 'cat'", "a column in a list of values"),
        ("age > " + "(" * 300, "expected a condition"),
        ("not " * 50 + "age > 1", "at most 50 conditions within one another"),
        ("not " * 48 + "age + 0 > 1", None),
        ("age > 1".ljust(4097), "at most 4096 characters"),
        ("age > 1".ljust(4096), None),
        ("age > 1\n", None),
        ("", "expected a condition"),
    ],
)
def test_conditions_that_are_none(whole: tsds.Store, where: str, message: str | None) -> None:
    if message is None:
        assert Condition(where).rows(whole["train"]).tolist() == [*range(2, 20)]
        return
    with pytest.raises(tsds.OptionError, match=message) as caught:
        Condition(where).rows(whole["train"])
    assert "\n" not in str(caught.value)


def test_keys_of_several_splits_are_told_apart_when_they_are_divided(tmp_path: Path) -> None:
    """As those of WebDataset, which count in each split."""
    with tsds.Writer(tmp_path / "s.tsds") as writer:
        for number, split in enumerate(("train", "val")):
            for row in range(9):
                writer.append(split, image=np.full((4, 4, 1), 9 * number + row, np.uint8), key=f"{row}.png")
    made = tsds.editing.split_store(tmp_path / "s.tsds", tmp_path / "d.tsds", {"a": 0.5, "b": 0.5})
    assert [note for note in made.notes if "keys begin with the names of their old splits" in note]
    found = {
        each.key(i): each["image"][i].max() for each in map(tsds.open(made.path).__getitem__, "ab") for i in range(9)
    }
    assert found == {f"{split}/{row}.png": 9 * i + row for i, split in enumerate(("train", "val")) for row in range(9)}
    again = tsds.editing.split_store(made.path, tmp_path / "again.tsds", {"a": 0.5, "b": 0.5})
    assert again.notes == () and tsds.open(again.path)["a"].key(0) in found  # they differ now


@pytest.mark.parametrize("row", [-1, 20, 2**63, 10**23])
def test_rows_to_drop_that_are_not_there(whole: tsds.Store, tmp_path: Path, row: int) -> None:
    (tmp_path / "drop.json").write_text(json.dumps({"drop": {"train": [0, row]}}))
    result = command("filter", whole.path, tmp_path / "b.tsds", "--without", tmp_path / "drop.json")
    assert result.exit_code == 1
    assert result.stderr.startswith(
        f"tsds: expected rows of train from 0 to 19 to leave out, found {row:,}. Are they of"
    )


@given(st.text(max_size=60))
def test_whatever_text_is_a_condition_or_is_refused(text: str) -> None:
    try:
        Condition(text)
    except tsds.OptionError as error:
        assert "\n" not in str(error)


def test_divided_anew(thirty: tsds.Store, tmp_path: Path) -> None:
    tsds.editing.split_store(thirty.path, tmp_path / "b.tsds", {"train": np.float32(0.6), "val": 0.2, "test": 0.2})
    made = tsds.open(tmp_path / "b.tsds")
    assert {name: len(made[name]) for name in made} == {"train": 18, "val": 6, "test": 6}
    for name in made:  # each class in its share
        assert np.bincount(made[name]["label"][:]).tolist() == [len(made[name]) // 3] * 3
    keys = [key for name in made for key in made[name]["key"][:]]
    assert sorted(keys) == thirty["train"]["key"][:]
    with pytest.raises(tsds.OptionError, match=r"`shares`: .* add up to 1, found 0\.6\. Write"):
        tsds.editing.split_store(thirty.path, tmp_path / "d.tsds", {"train": 0.6})


def test_divided_as_a_conversion_does(tmp_path: Path) -> None:
    source, shares = photos(tmp_path / "src", ("all",), 40) / "all", {"train": 0.7, "val": 0.3}
    options = tsds.ConvertOptions(workers=0, size=(8, 8))
    tsds.convert(source, tmp_path / "a.tsds", options)
    tsds.convert(source, tmp_path / "b.tsds", dataclasses.replace(options, split_into=shares, seed=4))
    tsds.editing.split_store(tmp_path / "a.tsds", tmp_path / "c.tsds", shares, seed=4)
    divided, made = tsds.open(tmp_path / "b.tsds"), tsds.open(tmp_path / "c.tsds")
    assert {n: made[n]["key"][:] for n in made} == {n: divided[n]["key"][:] for n in divided}


def test_divided_from_several_splits(tmp_path: Path) -> None:
    tsds.convert(photos(tmp_path / "src"), tmp_path / "a.tsds", tsds.ConvertOptions(workers=0, size=(8, 8)))
    tsds.editing.split_store(tmp_path / "a.tsds", tmp_path / "b.tsds", {"train": 0.5, "val": 0.5}, seed=3)
    whole, made = tsds.open(tmp_path / "a.tsds"), tsds.open(tmp_path / "b.tsds")
    found = {key: row(made[name], i)["image"] for name in made for i, key in enumerate(made[name]["key"][:])}
    assert found == {key: row(whole[n], i)["image"] for n in whole for i, key in enumerate(whole[n]["key"][:])}


def test_some_of_each_class(thirty: tsds.Store, tmp_path: Path) -> None:
    for out, seed in (("b", 0), ("c", 0), ("d", 1)):
        tsds.editing.sample_store(thirty.path, tmp_path / f"{out}.tsds", 4, seed=seed)
    keys = [tsds.open(tmp_path / f"{name}.tsds")["train"]["key"][:] for name in "bcd"]
    assert keys[0] == keys[1] == sorted(keys[0]) and keys[0] != keys[2]
    made = tsds.open(tmp_path / "b.tsds")["train"]
    assert np.bincount(made["label"][:]).tolist() == [4, 4, 4]


@pytest.mark.parametrize("number", [-1, 0.5, True, 2**53])
def test_numbers_that_metadata_cannot_hold_are_refused(tmp_path: Path, number: Any) -> None:
    """Before anything is written: the provenance notes them."""
    whole, out = store(tmp_path / "a.tsds", 6), tmp_path / "b.tsds"
    with pytest.raises(tsds.OptionError, match=r"^`per_class`: expected"):
        tsds.editing.sample_store(whole.path, out, number)
    with pytest.raises(tsds.OptionError, match=r"^`per_class`: expected"):
        tsds.editing.sample_store(whole.path, out, 0)
    with pytest.raises(tsds.OptionError, match=r"^`seed`: expected"):
        tsds.editing.sample_store(whole.path, out, 1, seed=number)
    with pytest.raises(tsds.OptionError, match=r"^`seed`: expected"):
        tsds.editing.split_store(whole.path, out, {"train": 0.5, "val": 0.5}, seed=number)
    assert os.listdir(tmp_path) == ["a.tsds"]
    tsds.editing.sample_store(whole.path, out, 2**53 - 1, seed=2**53 - 1)
    assert tsds.verify(out) == []


def test_other_names(whole: tsds.Store, tmp_path: Path) -> None:
    """Two classes become one, and one is removed with its objects."""
    tsds.editing.relabel_store(whole.path, tmp_path / "b.tsds", {"cat": "pet", "dog": "pet", "bird": ""})
    made = tsds.open(tmp_path / "b.tsds")
    assert tsds.verify(made.path) == []
    label, objects = made["train"].fields["label"], made["train"].fields["objects"]
    assert label.classes == objects.classes == ("pet",)
    for i in range(20):
        one, other = row(whole["train"], i), row(made["train"], i)
        assert other["label"] == (-1 if one["label"] == 2 else 0)
        kept = [k for k, number in enumerate(one["objects"]["labels"]) if number != 2]
        for name in ("boxes", "polygons"):
            assert other["objects"][name] == [one["objects"][name][k] for k in kept]
        assert other["objects"]["labels"] == [0] * len(kept)
        assert {n: v for n, v in other.items() if n not in ("label", "objects")} == {
            n: v for n, v in one.items() if n not in ("label", "objects")
        }
    assert made["train"].statistics["label"]["class_counts"] == [14]
    with pytest.raises(tsds.OptionError, match="found 'fish'"):
        tsds.editing.relabel_store(whole.path, tmp_path / "c.tsds", {"fish": "x"})
    with pytest.raises(tsds.OptionError, match="expected classes that stay"):
        tsds.editing.relabel_store(whole.path, tmp_path / "c.tsds", dict.fromkeys(CLASSES, ""))


def test_samples_without_a_label_stay_so(tmp_path: Path) -> None:
    image = np.zeros((4, 4, 3), np.uint8)
    one = store_of(tmp_path / "a.tsds", [{"image": image, "label": label} for label in (1, -1, 0)], ("cat", "dog"))
    other = store_of(tmp_path / "b.tsds", [{"image": image, "label": label} for label in (-1, 0)], ("dog", "ant"))
    tsds.editing.relabel_store(one.path, tmp_path / "c.tsds", {"cat": "pet", "dog": "hound"})
    assert tsds.open(tmp_path / "c.tsds")["train"]["label"][:].tolist() == [1, -1, 0]
    tsds.editing.merge_stores([one.path, other.path], tmp_path / "d.tsds")
    assert tsds.open(tmp_path / "d.tsds")["train"]["label"][:].tolist() == [1, -1, 0, -1, 1]


def test_put_together(tmp_path: Path) -> None:
    one = store(tmp_path / "a.tsds", 5, 1)
    other = store_of(tmp_path / "b.tsds", samples(4, 2), ("dog", "fish", "cat"))
    tsds.editing.merge_stores([one.path, other.path], tmp_path / "c.tsds")
    made = tsds.open(tmp_path / "c.tsds")
    assert tsds.verify(made.path) == []
    assert made["train"].fields["label"].classes == ("cat", "dog", "bird", "fish")
    keys = made["train"]["key"][:]
    assert keys[:2] == ["a/train/00000", "a/train/00001"] and keys[5] == "b/train/00000"
    names = made["train"].fields["label"].classes
    for i in range(9):
        source, number = (one, i) if i < 5 else (other, i - 5)
        before, after = row(source["train"], number), row(made["train"], i)
        classes = source["train"].fields["label"].classes
        assert names[after["label"]] == classes[before["label"]]
        assert [names[n] for n in after["objects"]["labels"]] == [classes[n] for n in before["objects"]["labels"]]
        assert after["objects"]["polygons"] == before["objects"]["polygons"] and after["image"] == before["image"]
    assert [each["command"] for each in made.manifest.provenance["history"]] == ["merge"]


def posed(path: Path, *names: str, images: Sequence[int] = range(3)) -> tsds.Store:
    """A store with keypoints of these names. `EARS` contains their places in each image."""
    rows = [
        {
            "image": np.full((9, 9, 3), i, np.uint8),
            "objects": {
                "boxes": [[1, 1, 5, 6]],
                "keypoints": [[EARS[i][name] for name in names]],
                "visibility": [[1 + (name == "left") for name in names]],
            },
        }
        for i in images
    ]
    return store_of(path, rows, None, keypoints=tsds.Keypoints(names))


EARS = [{name: [i + x, i + 2] for x, name in enumerate(("left", "right", "nose"))} for i in range(3)]


@pytest.mark.parametrize("way", ["merge", "append", "convert"])
def test_keypoints_in_another_order_are_put_together_by_name(way: str, tmp_path: Path) -> None:
    """There are as many, so that their arrays look the same."""
    one, other = posed(tmp_path / "a.tsds", "left", "right"), posed(tmp_path / "b.tsds", "right", "left")
    if way == "merge":
        tsds.editing.merge_stores([one.path, other.path], tmp_path / "c.tsds")
    else:
        for each in (one, other):
            tsds.export(each.path, tmp_path / f"{each.path.stem}-coco", "coco")
        first, second = tmp_path / "a-coco", tmp_path / "b-coco"
        tsds.convert(tsds.Sources(first, second) if way == "convert" else first, tmp_path / "c.tsds", workers=0)
        if way == "append":
            tsds.append(tmp_path / "c.tsds", second, key_prefix="more", workers=0)
    made = tsds.open(tmp_path / "c.tsds")["train"]
    assert made.fields["objects"].keypoints == ("left", "right")  # type: ignore[attr-defined]
    for row in range(6):
        found = made["objects"][row]
        assert found["keypoints"].tolist() == [[EARS[row % 3][name] for name in ("left", "right")]]
        assert found["visibility"].tolist() == [[2, 1]]


def test_keypoints_are_compared_by_name(tmp_path: Path) -> None:
    one, other = posed(tmp_path / "a.tsds", "left", "right"), posed(tmp_path / "b.tsds", "right", "left")
    assert tsds.editing.compare_stores(one.path, other.path).is_empty
    more = posed(tmp_path / "c.tsds", "nose", "right", "left")
    found = tsds.editing.compare_stores(one.path, more.path)
    assert found.fields == ["objects: keypoints only in the second nose"] and found.splits["train"].is_empty
    values = [
        {"image": each["image"], "objects": {**each["objects"], "key": 0}}
        for each in map(one["train"].__getitem__, range(3))
    ]
    named = store_of(tmp_path / "d.tsds", values, None, keypoints=tsds.Keypoints(("right", "left")))
    found = tsds.editing.compare_stores(one.path, named.path)
    assert found.splits["train"].fields["objects"].count == 3


def test_masks_whose_numbers_mean_other_classes_differ(tmp_path: Path) -> None:
    rows = [{"image": np.zeros((4, 4, 3), np.uint8), "mask": np.eye(4, dtype=np.uint8)}]
    one, other = (store_of(tmp_path / f"{name}.tsds", rows, classes) for name, classes in (("a", "xy"), ("b", "yx")))
    assert tsds.editing.compare_stores(one.path, other.path).fields[0].startswith("mask: classes in another order")


def test_stores_that_do_not_fit_together(tmp_path: Path) -> None:
    one = store(tmp_path / "a.tsds", 3)
    store_of(tmp_path / "b.tsds", [(np.zeros((9, 9, 3), np.uint8), 0)], CLASSES)
    with pytest.raises(tsds.OptionError, match=r"b\.tsds: expected image to be "):
        tsds.editing.merge_stores([one.path, tmp_path / "b.tsds"], tmp_path / "c.tsds")
    with pytest.raises(tsds.OptionError, match="expected two stores or more"):
        tsds.editing.merge_stores([one.path], tmp_path / "c.tsds")
    assert not (tmp_path / "c.tsds.partial").exists()


def test_image_files_of_two_stores(tmp_path: Path) -> None:
    for name, splits in (("a", ("train", "test")), ("b", ("train",))):
        options = tsds.ConvertOptions(workers=0, encoding="jpeg")
        tsds.convert(photos(tmp_path / f"{name}-src", splits), tmp_path / f"{name}.tsds", options)
    tsds.editing.merge_stores([tmp_path / "a.tsds", tmp_path / "b.tsds"], tmp_path / "c.tsds")
    made = tsds.open(tmp_path / "c.tsds")
    assert {name: len(made[name]) for name in made} == {"train": 18, "test": 9}
    assert tsds.verify(made.path) == []
    assert plain(made["train"]["image"][12]) == plain(tsds.open(tmp_path / "b.tsds")["train"]["image"][3])
    batch = next(iter(tsds.DataLoader(tsds.StoreDataset(made, "train", decode=tsds.Resize((8, 8))), batch_size=18)))
    assert batch["image"].shape[0] == 18


def test_a_damaged_store(tmp_path: Path) -> None:
    whole = store(tmp_path / "a.tsds")
    data = next(
        path for path in (whole.path / "train" / "00000" / "image").rglob("*") if path.is_file() and path.name == "0"
    )
    damaged = bytearray(data.read_bytes())
    damaged[100] ^= 1
    data.write_bytes(damaged)
    with pytest.raises(tsds.FormatError, match="no store is made of a damaged one"):
        tsds.editing.filter_store(whole.path, tmp_path / "b.tsds", "age > 3")
    with pytest.raises(tsds.FormatError, match="the chunks do not agree with their checksums"):
        tsds.editing.compare_stores(whole.path, whole.path)
    with pytest.raises(tsds.FormatError, match="the chunks do not agree with their checksums"):
        tsds.check_store(whole.path)
    with pytest.raises(tsds.FormatError, match="nothing was exported"):
        tsds.export(whole.path, tmp_path / "out", "folders")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.tsds"]


def test_a_condition_that_no_sample_meets(whole: tsds.Store, tmp_path: Path) -> None:
    with pytest.raises(tsds.OptionError, match=r"found none that do\. There is no class 'catt'\. Did you mean cat\?$"):
        tsds.editing.filter_store(whole.path, tmp_path / "b.tsds", "label == 'catt'")
    with pytest.raises(tsds.OptionError, match=r"found none that do\.$"):
        tsds.editing.filter_store(whole.path, tmp_path / "b.tsds", "age > 1e9 and 'folder' in key")


def test_a_split_that_is_not_there(whole: tsds.Store, tmp_path: Path) -> None:
    with pytest.raises(tsds.OptionError, match="found 'val'"):
        tsds.editing.filter_store(whole.path, tmp_path / "b.tsds", splits=["val"])


@given(st.lists(st.integers(0, 50)))
def test_runs(rows: list[int]) -> None:
    runs = runs_of(np.array(rows, np.int64))
    assert [number for a, b in runs.tolist() for number in range(a, b)] == rows
    assert rows_of(runs).tolist() == rows


def grouped(pieces: Sequence[Piece], most: int) -> list[list[tuple[str, int]]]:
    """What `shards_of` is to give, row by row."""
    groups: list[list[tuple[str, int]]] = []
    current: list[tuple[str, int]] = []
    for piece in pieces:
        rows, first = piece.rows.tolist(), 0
        parts = [(rows, False)]
        if rows == sorted({*rows}):
            parts = []
            for shard in piece.store.manifest.splits[piece.split].shards:
                part = [row for row in rows if first <= row < first + shard.rows]
                parts.append((part, len(part) == shard.rows))
                first += shard.rows
        for part, is_whole in parts:
            if is_whole and len(part) > most / 2:
                groups += [*([current] if current else []), [(piece.store.path.name, row) for row in part]]
                current = []
                continue
            for row in part:
                current.append((piece.store.path.name, row))
                if len(current) == most:
                    groups.append(current)
                    current = []
    return [*groups, *([current] if current else [])]


@pytest.fixture(scope="module")
def sharded(tmp_path_factory: pytest.TempPathFactory) -> list[tsds.Store]:
    """Stores with shards of several rows."""
    folder = tmp_path_factory.mktemp("sharded")
    made = [store_of(folder / f"{n}.tsds", samples(20), CLASSES, shard_nbytes=n) for n in (3500, 5000)]
    assert all(len({shard.rows for shard in each.manifest.splits["train"].shards}) > 1 for each in made)
    return made


ROWS = st.one_of(
    st.integers(0, 20).map(lambda first: [*range(first, 20)]),
    st.sets(st.integers(0, 19)).map(sorted),
    st.sets(st.integers(0, 19), max_size=4).map(lambda gone: [row for row in range(20) if row not in gone]),
    st.lists(st.integers(0, 19)),
)


@settings(max_examples=300, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 1), ROWS), max_size=3), st.integers(1, 12))
def test_whole_shards_stay_and_other_rows_fill_new_ones(
    sharded: list[tsds.Store], chosen: list[tuple[int, list[int]]], most: int
) -> None:
    pieces = [Piece(sharded[number], "train", np.array(rows, np.int64)) for number, rows in chosen]
    found = [[(p.store.path.name, n) for p in each.pieces for n in p.rows.tolist()] for each in shards_of(pieces, most)]
    assert found == grouped(pieces, most)


@pytest.mark.parametrize("where", ["age > 3", "age > 8"])
def test_killed_and_run_again(tmp_path: Path, where: str) -> None:
    """With the same condition, or with another one."""
    whole = store(tmp_path / "a.tsds", 20, shard_nbytes=2500)

    def kill(event: tsds.conversion.Progress) -> None:
        if event.stage == "copy" and event.done > 9:
            os.kill(os.getpid(), signal.SIGKILL)

    child = os.fork()
    if child == 0:
        tsds.editing.filter_store(whole.path, tmp_path / "b.tsds", "age > 3", progress=kill)
        os._exit(0)
    assert os.WIFSIGNALED(os.waitpid(child, 0)[1])
    assert not (tmp_path / "b.tsds").exists() and (tmp_path / "b.tsds.partial").exists()
    tsds.editing.filter_store(whole.path, tmp_path / "b.tsds", where)
    assert tsds.verify(tmp_path / "b.tsds") == []
    assert_rows(tsds.open(tmp_path / "b.tsds")["train"], whole["train"], range(4 if where == "age > 3" else 9, 20))
    assert not (tmp_path / "b.tsds.partial").exists()


def test_licenses_that_differ(tmp_path: Path) -> None:
    """Neither is noted, and that is told."""
    paths = [store(tmp_path / f"{name}.tsds", 3, license=name).path for name in ("MIT", "CC-BY-4.0")]
    events: list[tsds.conversion.Progress] = []
    notes = tsds.editing.merge_stores(paths, tmp_path / "c.tsds", progress=events.append).notes
    assert [(event.stage, event.note) for event in events if event.note] == [("copy", note) for note in notes]
    assert [note for note in notes if "license" in note] == [notes[-1]] and "license (MIT; CC-BY-4.0)" in notes[-1]
    assert tsds.open(tmp_path / "c.tsds").manifest.license is None
    tsds.editing.merge_stores([paths[0], paths[0]], tmp_path / "d.tsds")
    assert tsds.open(tmp_path / "d.tsds").manifest.license == "MIT"


# --- the commands -------------------------------------------------------------------------------------------------


def test_the_commands(thirty: tsds.Store, tmp_path: Path) -> None:
    names, drop = tmp_path / "names.txt", tmp_path / "drop.json"
    names.write_text("cat = pet\ndog=pet\n\nbird =\n")
    drop.write_text(json.dumps({"drop": {"train": [0, 1, 2]}}))
    runs = [
        (("filter", thirty.path, "OUT", "--where", "label == 'cat' and age > 5"), 8),
        (("filter", thirty.path, "OUT", "--without", drop), 27),
        (("split", thirty.path, "OUT", "train=0.9,val=10%"), 30),
        (("sample", thirty.path, "OUT", "--per-class", 2), 6),
        (("relabel", thirty.path, "OUT", "--class-map", names), 30),
        (("merge", thirty.path, thirty.path, "OUT"), 60),
    ]
    for i, (words, count) in enumerate(runs):
        out = tmp_path / f"{i}.tsds"
        done = command(*(out if word == "OUT" else word for word in words))
        note = "30 keys are in several stores" if words[0] == "merge" else ""
        assert done.exit_code == 0 and note in done.stderr and bool(done.stderr) == bool(note), words
        assert done.stdout.startswith(f"{out}  {count} samples, ")
        made = tsds.open(out)
        assert sum(len(made[name]) for name in made) == count
    found = json.loads(command("filter", thirty.path, tmp_path / "j.tsds", "--where", "age > 1", "--json").stdout)
    assert found["rows"] == {"train": 28}


@pytest.mark.parametrize("text", ["[", "{}", '{"drop": 3}', '{"drop": {"train": [1.5]}}', '{"drop": {"train": ["a"]}}'])
def test_lists_that_are_none(whole: tsds.Store, tmp_path: Path, text: str) -> None:
    (tmp_path / "drop.json").write_text(text)
    done = command("filter", whole.path, tmp_path / "b.tsds", "--without", tmp_path / "drop.json")
    assert done.exit_code != 0 and done.stderr.count("\n") == 1 and "drop.json" in done.stderr
    assert command("filter", whole.path, tmp_path / "b.tsds").exit_code == 2
    (tmp_path / "names.txt").write_text("a\n")
    done = command("relabel", whole.path, tmp_path / "b.tsds", "--class-map", tmp_path / "names.txt")
    assert "line 1: expected old = new" in done.stderr


# --- compare ------------------------------------------------------------------------------------------------------


def test_the_same_samples_stored_otherwise(whole: tsds.Store, tmp_path: Path) -> None:
    tsds.repack(whole.path, tmp_path / "b.tsds", layout="zarr")
    found = tsds.editing.compare_stores(whole.path, tmp_path / "b.tsds")
    assert found.is_empty and not found.is_same and found.splits["train"].both == 20
    assert tsds.editing.compare_stores(whole.path, whole.path).is_same
    reordered = store_of(tmp_path / "c.tsds", samples(20), CLASSES, shard_nbytes=3000)
    assert tsds.editing.compare_stores(whole.path, reordered.path).is_empty
    done = command("compare", whole.path, tmp_path / "b.tsds")
    assert (done.exit_code, done.stdout) == (0, "the same 20 samples, stored otherwise\n")
    assert command("compare", whole.path, whole.path).stdout == "equal to the byte\n"


def test_samples_compared_by_their_places(tmp_path: Path) -> None:
    """As those of a store and of its export, whose keys differ."""
    image = np.arange(48, dtype=np.uint8).reshape(4, 4, 3)
    one = store_of(tmp_path / "a.tsds", [{"image": image + i, "label": i} for i in range(3)], ("x", "y", "z"))
    tsds.export(one.path, tmp_path / "folders", "folders")
    tsds.convert(tmp_path / "folders", tmp_path / "b.tsds", tsds.ConvertOptions(workers=0))
    assert tsds.editing.compare_stores(one.path, tmp_path / "b.tsds").splits["train"].only_first.count == 3
    assert "--by row compares samples by their places" in command("compare", one.path, tmp_path / "b.tsds").stdout
    assert tsds.editing.compare_stores(one.path, tmp_path / "b.tsds", by="row").is_empty
    assert command("compare", one.path, tmp_path / "b.tsds", "--by", "row").exit_code == 0
    other = store_of(tmp_path / "c.tsds", [{"image": image + (i == 1), "label": 0} for i in range(2)], ("x", "y", "z"))
    found = tsds.editing.compare_stores(one.path, other.path, by="row").splits["train"]
    assert found.only_first.keys == ["row 2"] and found.fields["label"].keys == ["row 1"]
    with pytest.raises(tsds.OptionError, match="`by`: expected key or row"):
        tsds.editing.compare_stores(one.path, other.path, by="place")  # type: ignore[arg-type]


def test_objects_are_compared_by_what_both_have(tmp_path: Path) -> None:
    """An export that has no place for a flag says nothing about boxes."""
    image, boxes = np.zeros((9, 9, 3), np.uint8), {"boxes": [[1, 1, 4, 4]], "labels": [0]}
    one = store_of(tmp_path / "a.tsds", [{"image": image, "objects": {**boxes, "truncated": [1]}}], ("x",))
    other = store_of(tmp_path / "b.tsds", [{"image": image, "objects": boxes}], ("x",))
    found = tsds.editing.compare_stores(one.path, other.path)
    assert found.fields == ["objects.truncated: only in the first"] and found.splits["train"].is_empty


def test_classes_are_compared_by_name(tmp_path: Path) -> None:
    whole = store(tmp_path / "a.tsds", 6)
    changed = samples(6)
    for sample in changed:  # the same classes in another order
        sample["label"] = 2 - sample["label"]
        sample["objects"]["labels"] = 2 - sample["objects"]["labels"]
    other = store_of(tmp_path / "b.tsds", changed, CLASSES[::-1])
    assert tsds.editing.compare_stores(whole.path, other.path).is_empty


def test_what_differs(tmp_path: Path) -> None:
    one = samples(6)
    other = [{**sample, "objects": {**sample["objects"]}} for sample in samples(6)]
    other[1]["label"] = 2
    other[2]["image"] = other[2]["image"] ^ 1
    other[3]["objects"]["boxes"] = other[3]["objects"]["boxes"] + 0.25 if len(other[3]["objects"]["boxes"]) else []
    other[4]["age"] = np.nan
    first = store_of(tmp_path / "a.tsds", [*one, samples(7)[6]], CLASSES)
    second = store_of(tmp_path / "b.tsds", other, (*CLASSES, "fish"))
    found = tsds.editing.compare_stores(first.path, second.path)
    split = found.splits["train"]
    assert found.fields == ["label: classes only in the second fish", "objects: classes only in the second fish"]
    assert (split.both, split.only_first.keys, split.only_second.count) == (6, ["train/00006"], 0)
    expected = {"image": ["train/00002"], "label": ["train/00001"], "age": ["train/00004"]}
    if len(one[3]["objects"]["boxes"]):
        expected["objects"] = ["train/00003"]
    assert {name: each.keys for name, each in split.fields.items()} == expected
    done = command("compare", first.path, second.path)
    assert done.exit_code == 1 and "train  only in A: 1 sample: train/00006" in done.stdout.splitlines()
    done = command("compare", first.path, second.path, "--json")
    assert done.exit_code == 1
    listed = json.loads(done.stdout)
    assert listed["equal"] is False and listed["splits"]["train"]["fields"]["label"]["count"] == 1


def test_many_differences_are_counted_and_five_are_named(tmp_path: Path) -> None:
    """Each sample once, also where hundreds are compared in several steps."""
    image, count = np.zeros((1, 1, 3), np.uint8), 600
    one = store_of(tmp_path / "a.tsds", [{"image": image, "label": 0}] * count, [f"a{i}" for i in range(7)])
    other = store_of(tmp_path / "b.tsds", [{"image": image, "label": 0}] * count, [f"b{i}" for i in range(7)])
    found = tsds.editing.compare_stores(one.path, other.path)
    assert found.fields == [
        "label: classes only in the first a0, a1, a2, a3, a4; only in the second b0, b1, b2, b3, b4"
    ]
    label = found.splits["train"].fields["label"]
    assert (label.count, label.keys) == (count, [f"train/{i:05d}" for i in range(5)])


def test_values_of_other_shapes_differ_and_unknown_ones_are_equal(tmp_path: Path) -> None:
    image = np.zeros((4, 4, 3), np.uint8)
    values = {
        "none": None,
        "number": np.float64(3),
        "numbers": np.arange(3.0),
        "unknown": np.float64("nan"),
        "half": np.float32("nan"),
    }
    paths = {}
    for name, value in values.items():
        sample = {"image": image} if value is None else {"image": image, "age": value}
        paths[name] = store_of(tmp_path / f"{name}.tsds", [sample]).path
    for one, other in (("number", "numbers"), ("numbers", "number"), ("number", "unknown"), ("unknown", "half")):
        found = tsds.editing.compare_stores(paths[one], paths[other]).splits["train"].fields
        assert found.keys() == ({"age"} if one != "unknown" else set()), (one, other)
    for one, other, equal in (("none", "unknown", 1), ("none", "number", 0), ("unknown", "unknown", 1)):
        notes = tsds.editing.merge_stores([paths[one], paths[other]], tmp_path / f"{one} {other}.tsds").notes
        assert f"{equal} of them with equal samples" in notes[-1], (one, other)
    for value in ({"bytes": b""}, [0.0, 1.0, 2.0], b"012"):  # as of a kind of field that is not known
        assert not are_equal(value, np.arange(3.0)) and not are_equal(np.arange(3.0), value)


def test_files_and_their_pixels(tmp_path: Path) -> None:
    source = photos(tmp_path / "src", ("train",), 4)
    tsds.convert(source, tmp_path / "a.tsds", tsds.ConvertOptions(workers=0, encoding="source"))
    again = Image.open(source / "train" / "ant" / "0.jpg")
    again.save(source / "train" / "ant" / "0.jpg", quality=20)
    path = source / "train" / "bee" / "1.jpg"  # a comment more: the same pixels
    data = path.read_bytes()
    path.write_bytes(data[:2] + b"\xff\xfe\x00\x04hi" + data[2:])
    tsds.convert(source, tmp_path / "b.tsds", tsds.ConvertOptions(workers=0, encoding="source"))
    tsds.convert(source, tmp_path / "c.tsds", tsds.ConvertOptions(workers=0, encoding="raw"))
    fields = tsds.editing.compare_stores(tmp_path / "a.tsds", tmp_path / "b.tsds").splits["train"].fields
    assert {name: each.keys for name, each in fields.items()} == {
        "image": ["train/ant/0.jpg"],
        "image (file)": ["train/bee/1.jpg"],
    }
    assert tsds.editing.compare_stores(tmp_path / "b.tsds", tmp_path / "c.tsds").splits["train"].fields == {}


def test_recorded_digests_are_compared_instead_of_values(tmp_path: Path) -> None:
    """Rows may differ if they moved in their shard or a file has other bytes, which are hashed here."""
    first, second = grown_apart(tmp_path)
    stores = [tsds.open(path)["train"] for path in (first, second)]
    rows = [{split.key(row): row for row in range(len(split))} for split in stores]
    both = rows[0].keys() & rows[1].keys()

    def hashes(path: Path, split: Any, row: int, name: str) -> tuple[int, dict[str, str]]:
        shard = int(split.starts.searchsorted(row, "right")) - 1
        folder = path / split.shard_paths[shard] / name
        files = [file for file in folder.rglob("*") if file.is_file()]
        return row - int(split.starts[shard]), {
            str(file.relative_to(folder)): hashlib.sha256(file.read_bytes()).hexdigest() for file in files
        }

    def may_differ(key: str, name: str) -> bool:
        each = zip((first, second), stores, rows, strict=True)
        one, other = (hashes(path, split, by_key[key], name) for path, split, by_key in each)
        return one != other

    found = tsds.editing.compare_stores(first, second, quick=True)
    split = found.splits["train"]
    assert (split.both, split.fields) == (len(both), {})
    assert sorted(split.only_first.keys) == sorted(rows[0].keys() - both) == ["bee/3.png"]
    assert sorted(split.only_second.keys) == sorted(rows[1].keys() - both) == ["ant/90.png", "bee/91.png"]
    expected = {name: sum(may_differ(key, name) for key in both) for name in ("image", "label", "size")}
    assert {name: each.count for name, each in split.may_differ.items()} == {k: n for k, n in expected.items() if n}
    assert 1 < expected["image"] < len(both)
    read = tsds.editing.compare_stores(first, second).splits["train"]
    assert {name: each.keys for name, each in read.fields.items()} == {"image": ["ant/12.png"]}
    assert read.classes == {"only_first": {"bee": 1}, "only_second": {"ant": 1, "bee": 1}, "changed": {"ant": 1}}
    assert split.classes["only_second"] == read.classes["only_second"] and read.may_differ == {}

    done = command("compare", first, second, "--quick")
    lines = done.stdout.splitlines()
    assert done.exit_code == 1 and "train  only in A: 1 sample: bee/3.png" in lines
    assert "train  samples only in B, by class: ant 1, bee 1" in lines
    assert any(line.startswith(f"train  image may differ: {expected['image']} samples: ") for line in lines)
    assert json.loads(command("compare", first, second, "--quick", "--json").stdout)["equal"] is False
    assert command("compare", first, first, "--quick").stdout == "equal to the byte\n"
    assert command("compare", tmp_path / "images", second, "--quick").exit_code == 2


def test_a_quick_comparison_reads_no_pixels(tmp_path: Path) -> None:
    """Nor keys and lists of shards that are equal."""
    first, second = grown_apart(tmp_path)
    expected = tsds.editing.compare_stores(first, second, quick=True)
    shards = [tsds.open(path).manifest.splits["train"].shards for path in (first, second)]
    same = set.intersection(*({shard.sha256 for shard in each} for each in shards))
    assert same
    for path in (first, second):
        entry = tsds.open(path).manifest.splits["train"]
        for folder, shard in zip(tsds.open(path)["train"].shard_paths, entry.shards, strict=True):
            unread = path / folder if shard.sha256 in same else path / folder / "image"
            for file in unread.rglob("c/**/0"):
                if file.is_file():
                    file.write_bytes(bytes(file.stat().st_size))
    assert tsds.editing.compare_stores(first, second, quick=True) == expected
    with pytest.raises(tsds.FormatError):
        tsds.editing.compare_stores(first, second)


def grown_apart(root: Path) -> tuple[Path, Path]:
    """A store of several shards, and a copy with an erased, a changed and two more samples."""
    rng, images, first, second = np.random.default_rng(5), root / "images", root / "a.tsds", root / "b.tsds"

    def write(*numbers: int) -> None:
        for i in numbers:
            path = images / ("ant", "bee")[i % 2] / f"{i}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(rng.integers(0, 256, (8, 9, 3), np.uint8)).save(path)

    write(*range(30))
    tsds.convert(images, first, tsds.ConvertOptions(workers=0, encoding="raw", shard_nbytes=6 * 216))
    tsds.copy(first, second)
    tsds.erase(second, keys=["bee/3.png"])
    write(12, 90, 91)
    tsds.append(second, images, update=True)
    return first, second


def test_crops_of_an_image_stay_together(tmp_path: Path) -> None:
    rng = np.random.default_rng(4)
    boxes = np.array([[i, 0, i + 3, 3] for i in range(5)], np.float64)
    samples = [
        {
            "image": rng.integers(0, 256, (8, 9, 3), np.uint8),
            "boxes": boxes,
            "labels": np.arange(5) % 2,
            "key": f"a#{i}",
        }
        for i in range(12)
    ]
    options = tsds.ConvertOptions(workers=0, classes=("x", "y"), cut=tsds.conversion.ObjectCrops(), size=(4, 4))
    tsds.convert(samples, tmp_path / "crops.tsds", options)
    tsds.editing.split_store(tmp_path / "crops.tsds", tmp_path / "out.tsds", {"train": 0.5, "val": 0.5})
    made = tsds.open(tmp_path / "out.tsds")
    keys = {name: [made[name]["key"][i] for i in range(len(made[name]))] for name in made}
    images = {name: {key.rpartition("#")[0] for key in found} for name, found in keys.items()}
    assert not images["train"] & images["val"]
    assert sum(map(len, images.values())) == 12
    assert all(len(found) == 5 * len(images[name]) for name, found in keys.items())


def pooled(*pieces: Piece) -> dict[str, Any]:
    return joined_statistics(pieces, "image", RawImageField(ArraySpec("uint8", (9, 8, 3))))


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16])
@pytest.mark.parametrize("channels", [(3, 3), (1, 3), (3, 1), (1, 1)])
def test_moments_of_files_are_pooled(tmp_path: Path, channels: tuple[int, int], dtype: Any) -> None:
    """Each split counts as often as it has rows: as the mean and the standard deviation of all their pixels."""
    rng = np.random.default_rng(3)
    pieces: list[Piece] = []
    pixels: list[Any] = []
    for number, (count, depth, low) in enumerate(zip((5, 2), channels, (0, 120), strict=True)):
        images = rng.integers(low, low + 100 + 30 * number, (count, 9, 8, depth), dtype)
        store = store_of(tmp_path / f"{number}.tsds", [{"image": image} for image in images])
        repeated = number + 1
        pieces.append(Piece(store, "train", np.tile(np.arange(count), repeated)))
        pixels.append(np.repeat(np.tile(images, (repeated, 1, 1, 1)), max(channels) // depth, axis=3))
    found = pooled(*pieces)
    values = np.concatenate(pixels).reshape(-1, max(channels)) / np.iinfo(dtype).max
    assert found["scale"] == np.iinfo(dtype).max
    np.testing.assert_allclose(found["mean"], values.mean(axis=0), rtol=1e-9)
    np.testing.assert_allclose(found["std"], values.std(axis=0), rtol=1e-9)
    assert pooled() == pooled(Piece(pieces[0].store, "train", np.arange(0))) == {}
    assert pooled(pieces[0], Piece(pieces[1].store, "train", np.arange(0))) == pooled(pieces[0])


def test_the_option_split_leads_to_the_argument(tmp_path: Path) -> None:
    samples = [{"image": np.full((4, 4), i, np.uint8), "label": i % 2} for i in range(20)]
    store, out = store_of(tmp_path / "s.tsds", samples, ["a", "b"]).path, tmp_path / "o.tsds"
    for order in ((store, out, "--split", "one=0.5,two=0.5"), ("--split=one=0.5,two=0.5", store, out)):
        result = command("split", *order)
        assert result.exit_code == 2
        assert "SHARES is an argument here, without --split: tsds split STORE OUT train=0.8,val=0.2" in result.output
    assert command("split", store, out, "one=0.5,two=0.5").exit_code == 0


def test_checksums_of_image_files_stay_only_if_every_store_has_them(tmp_path: Path) -> None:
    both = tsds.editing.merge_stores([VALID / "row-checksums.tsds"] * 2, tmp_path / "a.tsds")
    one = tsds.editing.merge_stores(
        [VALID / "row-checksums.tsds", without_labels(tmp_path / "b.tsds")], tmp_path / "c.tsds"
    )
    assert "crc32c" in tsds.open(both.path)["train"].fields["image"].per_row
    assert "crc32c" not in tsds.open(one.path)["train"].fields["image"].per_row
    assert tsds.verify(both.path) == tsds.verify(one.path) == []


def without_labels(path: Path) -> Path:
    tsds.pull(VALID / "encoded-jpeg.tsds", path, fields=["image"])
    return path
