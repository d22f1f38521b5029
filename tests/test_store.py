"""Stores answer as NumPy would, in both layouts, from one shard or many."""

import mmap
import os
import pickle
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

import tensorstore_ds as tsds
from small_stores import VALID, image_field, write_store
from stores import detections, store_of
from tensorstore_ds import machine as memory
from tensorstore_ds.format.kinds import ImageField, KeyField, MaskField, ObjectsField
from tensorstore_ds.loading.dataset import StoreDataset
from tensorstore_ds.reading import columns

SAMPLES = detections(11)
IMAGES = np.stack([s["image"] for s in SAMPLES])
ROW_NBYTES = IMAGES[0].nbytes


@pytest.fixture(scope="module", params=["memmap", "zarr", "memmap in shards", "zarr in shards"])
def split(request, tmp_path_factory):
    layout, *shards = request.param.split()
    shard_nbytes = 3 * ROW_NBYTES if shards else 2**30
    path = tmp_path_factory.mktemp("store") / "s.tsds"
    return store_of(path, SAMPLES, ["ant", "bee"], layout=layout, shard_nbytes=shard_nbytes)["train"]


def expected_objects(name):
    return [np.asarray(s[name]) for s in SAMPLES]


def test_rows_slices_and_the_whole(split):
    column = split["image"]
    assert len(split) == len(column) == 11
    assert column.shape == (11, 12, 10, 3)
    assert column.dtype == np.uint8
    assert column.nbytes == IMAGES.nbytes
    np.testing.assert_array_equal(column[4], IMAGES[4])
    np.testing.assert_array_equal(column[-1], IMAGES[-1])
    np.testing.assert_array_equal(np.asarray(column), IMAGES)
    np.testing.assert_array_equal(np.asarray(column, dtype=np.float32), IMAGES.astype(np.float32))
    assert split["size"][3].tolist() == [12, 10]


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_any_slice_and_any_rows_are_numpys(split, data):
    column = split["image"]
    item = data.draw(st.slices(11))
    np.testing.assert_array_equal(column[item], IMAGES[item])
    rows = data.draw(st.lists(st.integers(-11, 10), max_size=20))
    table = split["objects"]
    taken = table.take(rows)
    for name in ("boxes", "labels", "keypoints"):
        values = expected_objects(name)
        joined = [values[r] for r in rows]
        assert np.diff(taken.offsets).tolist() == [len(v) for v in joined]
        if rows:
            np.testing.assert_allclose(taken[name], np.concatenate(joined), rtol=1e-6)
    keys = split["key"].take(rows)
    assert bytes(keys["bytes"]).decode() == "".join(split["key"][r] for r in rows)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_take_answers_as_numpys_for_rows_of_any_shape(split, data):
    shape = data.draw(st.lists(st.integers(0, 3), max_size=3).map(tuple))
    count = int(np.prod(shape))
    rows = np.array(data.draw(st.lists(st.integers(-11, 10), min_size=count, max_size=count)), int).reshape(shape)
    for name, values in (("image", IMAGES), ("size", np.tile(np.int32([12, 10]), (11, 1)))):
        expected = np.take(values, rows, axis=0)
        taken = split[name].take(rows)
        assert (taken.shape, taken.dtype) == (expected.shape, expected.dtype)
        np.testing.assert_array_equal(taken, expected)
        out = np.full_like(expected, 9)
        assert split[name].take(rows, out=out) is out
        np.testing.assert_array_equal(out, expected)
    if len(shape) != 1:
        with pytest.raises(ValueError, match=r"expected rows of shape \(n,\)"):
            split["objects"].take(rows)


def test_tables(split):
    table = split["objects"]
    counts = [len(s["labels"]) for s in SAMPLES]
    assert table.offsets.tolist() == [0, *np.cumsum(counts)]
    assert table["boxes"].shape == (sum(counts), 4)
    row = table[3]
    assert set(row) == {"boxes", "labels", "keypoints"}
    np.testing.assert_allclose(row["keypoints"], SAMPLES[3]["keypoints"], rtol=1e-6)
    assert row["labels"].tolist() == list(SAMPLES[3]["labels"])
    assert table[4]["boxes"].shape == (0, 4)
    assert table.field.classes == ("ant", "bee")
    assert [split["key"][i] for i in (0, 10)] == ["train/00000", "train/00010"]


@pytest.mark.parametrize("bad", [11, -12])
def test_rows_outside_are_an_index_error(split, bad):
    for column in (split["image"], split["objects"]):
        with pytest.raises(IndexError, match=str(bad)):
            column[bad]
        with pytest.raises(IndexError, match=str(bad)):
            column.take([0, bad])


def test_what_take_refuses(split):
    column = split["image"]
    with pytest.raises(TypeError, match="flatnonzero"):
        column.take(np.ones(11, bool))
    with pytest.raises(ValueError, match="expected out of shape"):
        column.take([1], out=np.empty((2, 12, 10, 3), np.uint8))
    with pytest.raises(ValueError, match="expected out of shape"):
        column.take([1], out=np.empty((1, 12, 10, 3), np.int8))


def test_nothing_can_be_written(split):
    for array in (split["image"][2], split["image"][0:2], split["objects"]["boxes"][0:2], split["objects"].offsets):
        with pytest.raises(ValueError, match="read-only"):
            array[...] = 0


def test_names_that_are_not_there(split):
    with pytest.raises(tsds.errors.UnknownNameError) as error:
        split["keys"]
    assert isinstance(error.value, KeyError)
    for wrong in ([0, 1], None, 1.5):
        with pytest.raises(TypeError, match=r"expected the name of a field, a number or a slice, .*take\(rows\)"):
            split[wrong]
    found = "expected one of the fields image, objects, size, key, found 'keys'. Did you mean key?"
    assert str(error.value) == f"split {split.name}: {found}"


def test_a_slice_is_a_list_of_samples(split):
    for part in (slice(0, 2), slice(-1, None), slice(None, None, -1), slice(5, 2), slice(1, 900)):
        expected = [split[row] for row in range(len(split))[part]]
        found = split[part]
        assert [each["key"] for each in found] == [each["key"] for each in expected]
        for one, other in zip(found, expected, strict=True):
            np.testing.assert_array_equal(one["image"], other["image"])
            np.testing.assert_array_equal(one["objects"]["boxes"], other["objects"]["boxes"])


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    return store_of(tmp_path_factory.mktemp("one") / "s.tsds", SAMPLES, ["ant", "bee"])


def test_the_whole_column_is_a_read_only_view_of_the_map(store):
    array = np.asarray(store["train"]["image"])
    base = array
    while isinstance(base.base, np.ndarray):
        base = base.base
    assert isinstance(base.base, mmap.mmap)
    assert np.shares_memory(array, np.asarray(store["train"]["image"]))
    assert not array.flags.writeable


def test_take_is_a_copy(store):
    taken = store["train"]["image"].take([0, 1])
    assert not np.shares_memory(taken, np.asarray(store["train"]["image"]))
    taken[...] = 0
    np.testing.assert_array_equal(store["train"]["image"][0], IMAGES[0])


def test_a_store_is_a_collection_of_its_splits(store):
    assert store.splits == ("train",)
    assert list(store) == ["train"]
    assert "train" in store
    assert "val" not in store
    with pytest.raises(KeyError, match=r"^s\.tsds: expected its only split train, found 'val'\.$"):
        store["val"]


def test_stores_and_splits_pickle_as_their_path_and_manifest(store):
    most = 500 + (store.path / "zarr.json").stat().st_size
    data = pickle.dumps(store)
    assert len(data) < most
    np.testing.assert_array_equal(pickle.loads(data)["train"]["image"][5], IMAGES[5])  # noqa: S301
    data = pickle.dumps(store["train"])
    assert len(data) < most
    assert len(pickle.loads(data)) == 11  # noqa: S301


def test_a_relative_path_survives_a_change_of_directory(store, tmp_path, monkeypatch):
    monkeypatch.chdir(store.path.parent)
    again = tsds.open(store.path.name)
    monkeypatch.chdir(tmp_path)
    assert again["train"]["image"].take([1]).shape == (1, 12, 10, 3)


def test_a_disk_that_fails_is_not_said_to_have_no_store(store, monkeypatch):
    def failing(path, **_):
        raise OSError(5, "Input/output error", str(path))

    monkeypatch.setattr(os, "lstat", failing)
    with pytest.raises(tsds.FormatError, match=r"zarr.json cannot be looked at \(Input/output error\). Check the disk"):
        tsds.open(store.path)


def printed(code, *arguments):
    """What a process of its own prints."""
    command = [sys.executable, "-c", code, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def test_opening_reads_no_data(store):
    """Page faults aside: after open() no file of the store but the manifest was opened."""
    code = """
import os, sys, tensorstore_ds as t
opened = []
sys.addaudithook(lambda e, a: opened.append(str(a[0])) if e == 'open' else None)
store = t.open(sys.argv[1])
print([p for p in opened if sys.argv[1] in p])
"""
    assert printed(code, store.path) == str([str(store.path / "zarr.json")])


def test_what_an_interrupted_conversion_left_is_named(tmp_path):
    (tmp_path / "s.tsds.partial").mkdir()
    for name in ("s.tsds", "s.tsds.partial"):
        with pytest.raises(
            tsds.FormatError, match=r"s\.tsds\.partial has an interrupted conversion: run its command again"
        ):
            tsds.open(tmp_path / name)
    with pytest.raises(tsds.FormatError, match="Correct the path, or run tsds convert"):
        tsds.open(tmp_path / "t.tsds")


def test_import_is_light():
    code = "import sys, tensorstore_ds; print(sorted({'torch', 'PIL', 'zarr', 'click', 'rich'} & sys.modules.keys()))"
    assert printed(code) == "[]"


def test_a_file_cut_short_after_opening_is_refused_and_not_mapped(tmp_path):
    """In a process of its own: a map that is too long would end it with SIGBUS."""
    store = store_of(tmp_path / "s.tsds", SAMPLES, ["ant", "bee"])
    file = store.path / "train/00000/image/c/0/0/0/0"
    code = """
import os, sys, tensorstore_ds as t
store = t.open(sys.argv[1])
os.truncate(sys.argv[2], 10)
try:
    print(store['train']['image'][10])
except t.FormatError as error:
    print(error)
"""
    output = printed(code, store.path, file)
    assert "train/00000/image/c/0/0/0/0: expected" in output and "found 10" in output
    with pytest.raises(tsds.FormatError, match="found 10"):
        tsds.open(store.path)


def test_what_is_no_store(tmp_path):
    with pytest.raises(tsds.FormatError, match="there is no such store"):
        tsds.open(tmp_path / "nothing")
    (tmp_path / "photos.tsds").mkdir()
    with pytest.raises(tsds.FormatError, match=r"there is no such store\. Correct .* Did you mean photos\.tsds\?"):
        tsds.open(tmp_path / "fotos.tsds")
    with pytest.raises(tsds.FormatError, match="not a store"):
        tsds.open(tmp_path)
    (tmp_path / "zarr.json").write_text('{"zarr_format": 3, "node_type": "group", "attributes": {}}')
    with pytest.raises(tsds.FormatError, match="not of tensorstore-ds"):
        tsds.open(tmp_path)
    (tmp_path / "zarr.json").unlink()
    os.mkfifo(tmp_path / "zarr.json")
    with pytest.raises(tsds.FormatError) as caught:
        tsds.open(tmp_path)
    assert caught.value.reason == "not-a-store"


@pytest.mark.parametrize("part", ["train", "train/00000", "train/00000/image"])
def test_a_part_of_a_store_names_the_store(store, part):
    with pytest.raises(tsds.FormatError, match=r"this is a part of the store .* Open that one") as caught:
        tsds.open(store.path / part)
    assert f"the store {store.path}." in str(caught.value) and "\n" not in str(caught.value)


def test_columns_name_themselves(store):
    assert repr(store["train"]["image"]) == "<Column 'train/image' (11, 12, 10, 3) uint8>"
    assert repr(store["train"]) == "<Split 'train', 11 rows of image, objects, size, key>"
    assert Path(store.path).name in repr(store)


# --- the store that was opened, and no other ----------------------------------------------------------------------


@pytest.fixture(params=["memmap", "zarr"])
def two(request, tmp_path):
    """Paths of two stores of the same shape: the second can take the first one's place."""
    paths = tmp_path / "s.tsds", tmp_path / "other.tsds"
    for path, seed in zip(paths, (0, 1), strict=True):
        store_of(path, detections(6, seed=seed), ["a", "b"], layout=request.param, shard_nbytes=3 * ROW_NBYTES)
    return paths


def replace(path, other):
    path.rename(path.with_name("away"))
    other.rename(path)


def test_the_digest_is_the_name_of_a_store(two):
    path, other = two
    store = tsds.open(path)
    assert len(store.sha256) == 64
    assert tsds.open(path, sha256=store.sha256.upper()).sha256 == store.sha256
    with pytest.raises(tsds.FormatError) as caught:
        tsds.open(other, sha256=store.sha256)
    assert caught.value.reason == "checksum"
    assert store.sha256 in str(caught.value) and tsds.open(other).sha256 in str(caught.value)
    assert [p.reason for p in tsds.verify(other, sha256=store.sha256)] == ["checksum"]
    assert tsds.verify(path, sha256=store.sha256) == []


def test_a_store_in_the_place_of_another_is_not_read(two):
    path, other = two
    store = tsds.open(path)
    split = store["train"]
    before = split["image"][0].copy()
    replace(path, other)
    for read in (
        lambda: split["image"][5],  # of a shard that was not mapped
        lambda: split["image"].take([5]),
        lambda: split["key"][0],
        lambda: split["objects"].take([1]),
    ):
        with pytest.raises(tsds.FormatError, match=r"another is in its place. Open it again") as caught:
            read()
        assert caught.value.reason == "replaced"
    if store.layout == "memmap":
        np.testing.assert_array_equal(split["image"][0], before)  # a map stays
    else:
        with pytest.raises(tsds.FormatError, match="another is in its place"):
            split["image"][0]
    assert tsds.open(path)["train"]["image"].shape == (6, 12, 10, 3)


def test_a_store_that_is_gone_says_so(two):
    split = tsds.open(two[0])["train"]
    two[0].rename(two[0].with_name("away"))
    with pytest.raises(tsds.FormatError) as caught:
        np.asarray(split["image"])
    assert caught.value.reason in ("replaced", "missing-file")


def test_the_same_store_copied_into_its_place_is_read_on(two):
    path, _ = two
    split = tsds.open(path)["train"]
    images = np.asarray(split["image"])
    copy = shutil.copytree(path, path.with_name("copy"))
    replace(path, copy)
    for column in (split["image"], split["size"]):
        assert len(np.asarray(column)) == 6
    np.testing.assert_array_equal(np.asarray(split["image"]), images)


def test_what_was_pickled_opens_no_other_store(two):
    path, other = two
    store = tsds.open(path)
    pickled = [pickle.dumps(store), pickle.dumps(store["train"]), pickle.dumps(StoreDataset(path, "train"))]
    assert len(pickle.loads(pickled[0])) == 1  # noqa: S301
    replace(path, other)
    for data in pickled:
        with pytest.raises(tsds.FormatError, match="expected the store"):
            pickle.loads(data).split  # noqa: S301, B018


def test_a_pipe_in_the_place_of_a_file_is_not_waited_for(two):
    path, _ = two
    split = tsds.open(path)["train"]
    for name in ("image/c/0/0/0/0", "size/zarr.json"):
        file = path / "train/00000" / name
        file.unlink()
        os.mkfifo(file)
    for field in ("image", "size"):
        with pytest.raises(tsds.FormatError, match="expected a file, found something else"):
            split[field][0]


# --- bounds -----------------------------------------------------------------------------------------------------


def test_a_column_is_refused_that_memory_cannot_hold(two, monkeypatch):
    split = tsds.open(two[0])["train"]
    monkeypatch.setattr(memory, "_UNASKED_NBYTES", 10)
    monkeypatch.setattr(memory, "memory_limit", lambda: 20)
    for read in (lambda: np.asarray(split["image"]), lambda: split["objects"].offsets, lambda: split["key"][0]):
        with pytest.raises(tsds.errors.ResourceError, match="20 bytes of memory") as caught:
            read()
        assert caught.value.reason == "too-large"


def test_columns_and_tables_by_name(split):
    assert isinstance(split.column("image"), tsds.Column)
    assert isinstance(split.table("key"), tsds.RaggedColumn)
    with pytest.raises(TypeError, match="use table"):
        split.column("key")
    with pytest.raises(TypeError, match="use column"):
        split.table("image")
    assert split["key"][1:3] == [split["key"][1], split["key"][2]]
    table = split.table("key")
    assert table.nbytes == table.offset_column.nbytes + len(np.asarray(table["bytes"]))


def test_a_sample_has_one_name(tmp_path):
    images, fields = np.zeros((3, 4, 4, 3), np.uint8), {"image": image_field(np.zeros((3, 4, 4, 3), np.uint8))}
    plain = tsds.open(write_store(tmp_path / "plain.tsds", fields, ("val", 3, {"image": images})))["val"]
    assert [plain.key(row) for row in range(3)] == ["val/00000", "val/00001", "val/00002"]
    assert plain.first(KeyField) is None and plain.first(ImageField) == "image"
    named = store_of(tmp_path / "named.tsds", detections(3), ["a", "b"])["train"]
    assert [named.key(row) for row in range(3)] == [named["key"][row] for row in range(3)]
    assert named.first(KeyField) == "key" and named.first(ObjectsField) == "objects" and named.first(MaskField) is None


def test_a_slice_over_shards_asks_for_the_memory_that_it_takes(monkeypatch):
    split = tsds.open(VALID / "shards.tsds")["train"]
    real, asked = columns.check_fits, []

    def check_fits(what, nbytes):
        asked.append(nbytes)
        real(what, nbytes)

    monkeypatch.setattr(columns, "check_fits", check_fits)
    whole = np.asarray(split["image"])
    assert asked == [whole.nbytes]
    part = split["image"][1:]
    np.testing.assert_array_equal(part, whole[1:])
    assert asked == [whole.nbytes, part.nbytes]
