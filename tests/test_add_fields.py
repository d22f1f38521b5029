"""Fields that are added to a store that is there, and dropped: the oracle is NumPy, and the other files stay."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import tensorstore_ds as tsds
from tensorstore_ds import durable

CLASSES = ("cat", "dog")
ROWS = {"train": 9, "val": 4, "test": 2}
RNG = np.random.default_rng(7)
IMAGES = {split: RNG.integers(0, 256, (rows, 12, 10, 3), np.uint8) for split, rows in ROWS.items()}


@pytest.fixture(scope="module", params=["memmap", "zarr"])
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three splits with labels, objects and keys, the first one in several shards."""
    path = tmp_path_factory.mktemp("made") / "s.tsds"
    with tsds.Writer(path, classes=CLASSES, layout=request.param, shard_nbytes=1500) as writer:
        for split, images in IMAGES.items():
            for i, image in enumerate(images):
                boxes = np.array([[1, 2, 5, 6]] * (i % 3), np.float32).reshape(-1, 4)
                values = {"boxes": boxes, "labels": np.zeros(len(boxes), np.int64)}
                writer.append(split, image=image, label=i % 2, **values, key=f"{split}/{i}.png")
    return path


@pytest.fixture
def store(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made, tmp_path / "s.tsds"))


def numbers(dtype: str, shape: tuple[int, ...] = ()) -> dict[str, NDArray[Any]]:
    rng = np.random.default_rng(3)
    return {split: rng.integers(0, 100, (rows, *shape)).astype(dtype) for split, rows in ROWS.items()}


def inodes(path: Path) -> dict[str, int]:
    return {p.relative_to(path).as_posix(): p.stat().st_ino for p in path.rglob("*") if p.is_file()}


def data_inodes(store: tsds.Store, field: str) -> list[int]:
    """Of the data files of a field, over all shards."""
    return [
        path.stat().st_ino
        for split in store
        for shard in store[split].shard_paths
        for path in sorted((store.path / shard / field).rglob("*"))
        if path.is_file() and path.name != "zarr.json"
    ]


# --- what is added ----------------------------------------------------------------------------------------------


@pytest.mark.drawn(3)
@pytest.mark.parametrize(
    ("dtype", "shape"),
    [("uint8", ()), ("<i2", (2, 4, 1)), (">i8", (3,)), ("float16", (2, 4, 1)), (">f4", ()), ("f8", (3,))],
)
def test_numbers_of_every_split(store: Path, dtype: str, shape: tuple[int, ...]) -> None:
    values = numbers(dtype, shape)
    done = tsds.editing.add_fields(store, {"values": values})
    opened = tsds.open(store)
    for split, rows in values.items():
        column = opened[split].column("values")
        assert column.dtype == np.dtype(dtype).newbyteorder("=") and column.shape == rows.shape
        assert np.array_equal(np.asarray(column), rows)
        assert np.array_equal(np.asarray(opened[split]["image"]), IMAGES[split])
    assert done.rows == ROWS and done.nbytes == opened.nbytes and list(done.fields) == ["values"]
    assert tsds.verify(store) == []


def test_one_array_has_the_rows_of_all_splits_in_their_order(store: Path) -> None:
    values = np.arange(sum(ROWS.values()), dtype=np.float32)
    tsds.editing.add_fields(store, {"loss": values, "hard": values > 5})
    opened = tsds.open(store)
    assert list(opened) == list(ROWS)
    assert np.array_equal(np.concatenate([opened[split]["loss"][:] for split in opened]), values)
    flags = np.concatenate([opened[split]["hard"][:] for split in opened])
    assert flags.dtype == np.uint8 and np.array_equal(flags, values > 5)


def test_a_list_and_a_tensor(store: Path) -> None:
    import torch

    tsds.editing.add_fields(store, {"a": [1.5] * 15, "b": torch.arange(15, dtype=torch.int32)})
    split = tsds.open(store)["val"]
    assert split["a"][:].tolist() == [1.5] * 4 and split["b"][:].tolist() == [9, 10, 11, 12]
    assert (split.column("a").dtype, split.column("b").dtype) == (np.float64, np.int32)


def test_a_split_alone_leaves_the_others_unknown_and_a_second_call_fills_them(store: Path) -> None:
    values = numbers("float32")
    done = tsds.editing.add_fields(store, {"loss": values["train"], "n": values["train"].astype(int)}, split="train")
    assert "loss is not known in val, test: stored there as nan." in done.notes
    opened = tsds.open(store)
    assert np.array_equal(opened["train"]["loss"][:], values["train"]) and np.isnan(opened["val"]["loss"][:]).all()
    assert (opened["test"]["n"][:] == np.iinfo(np.int64).min).all()
    before = opened["train"].shard_paths
    tsds.editing.add_fields(store, {"loss": {"val": values["val"]}}, replace=True)
    opened = tsds.open(store)
    assert opened["train"].shard_paths == before  # not listed anew
    assert np.array_equal(opened["train"]["loss"][:], values["train"])
    assert np.array_equal(opened["val"]["loss"][:], values["val"])
    assert tsds.verify(store) == []


def test_texts(store: Path) -> None:
    texts = ["", "naïve 火", None, ["a", "b"], []] * 3
    tsds.editing.add_fields(store, {"tags": texts, "name": np.array([f"n{i}" for i in range(15)])})
    opened = tsds.open(store)
    expected = [[""], ["naïve 火"], [], ["a", "b"], []] * 3
    assert [row for split in opened for row in opened[split]["tags"][:]] == expected
    assert [row for split in opened for row in opened[split]["name"][:]] == [[f"n{i}"] for i in range(15)]
    assert tsds.verify(store) == []


def test_labels_of_numbers_and_of_names(store: Path) -> None:
    names = ["good", "bad", None, "good", "bad"] * 3
    index = [1, 0, -1, 1, 0] * 3
    classes = {"quality": ("bad", "good"), "grade": ["bad", "good"]}
    tsds.editing.add_fields(store, {"quality": names, "grade": np.array(index, np.int16)}, classes=classes)
    opened = tsds.open(store)
    for field in classes:
        assert [n for split in opened for n in opened[split][field][:].tolist()] == index
        assert opened["train"].class_counts[field] == {
            "bad": index[:9].count(0),
            "good": index[:9].count(1),
        }
    assert tsds.verify(store) == []


def test_objects_are_a_second_field_with_scores(store: Path) -> None:
    rng = np.random.default_rng(0)
    rows: list[Any] = []
    for i in range(15):
        corner = rng.uniform(0, 4, (i % 4, 2))
        boxes = np.concatenate([corner, corner + 3], axis=1).astype(np.float32)
        rows.append({"boxes": boxes, "labels": [i % 2] * (i % 4), "scores": rng.random(i % 4, np.float32)})
    rows[3] = None
    tsds.editing.add_fields(store, {"predictions": rows})
    opened = tsds.open(store)
    assert opened["train"].fields["predictions"].classes == CLASSES  # those of the objects of the store
    found = [row for split in opened for row in opened[split]["predictions"][:]]
    for row, expected in zip(found, rows, strict=True):
        for name in ("boxes", "labels", "scores"):
            assert np.array_equal(row[name], [] if expected is None else expected[name]) or not len(row[name])
            assert len(row[name]) == (0 if expected is None else len(expected[name]))
    counts = [0 if row is None else len(row["boxes"]) for row in rows[:9]]
    assert opened["train"].statistics_of("predictions")["total"] == sum(counts)
    assert len(opened["train"]["objects"][1]["boxes"]) == 1  # as before
    assert tsds.verify(store) == []


def test_outlines_and_keypoints_of_objects(store: Path) -> None:
    polygon = np.array([[1, 1], [5, 1], [5, 5]], np.float32)
    row = {"boxes": [[1, 1, 5, 5]] * 2, "polygons": [polygon, []], "keypoints": np.ones((2, 3, 2))}
    tsds.editing.add_fields(store, {"found": [row, None, row] * 5})
    opened = tsds.open(store)
    found = opened["train"]["found"][2]
    assert np.array_equal(found["polygons"][0], polygon) and len(found["polygons"][1]) == 0
    assert found["keypoints"].shape == (2, 3, 2) and opened["train"].fields["found"].keypoints == ("0", "1", "2")
    assert tsds.verify(store) == []


def test_a_mapped_array_in_fortran_order_is_read_in_parts(store: Path, tmp_path: Path) -> None:
    values = np.asfortranarray(np.random.default_rng(0).random((15, 7)))
    np.save(tmp_path / "v.npy", values)
    mapped = np.load(tmp_path / "v.npy", mmap_mode="r")
    assert mapped.flags.f_contiguous
    tsds.editing.add_fields(store, {"v": mapped})
    opened = tsds.open(store)
    assert np.array_equal(np.concatenate([opened[split]["v"][:] for split in opened]), values)


@pytest.mark.slow
def test_an_array_larger_than_the_memory_that_it_may_take(tmp_path: Path) -> None:
    """A sparse file of 4 GB of which rows are read a few at a time."""
    import resource
    import subprocess
    import sys

    with tsds.Writer(tmp_path / "s.tsds") as writer:
        for i in range(2):
            writer.append("train", image=np.zeros((4, 4, 1), np.uint8), key=str(i))
    np.lib.format.open_memmap(tmp_path / "v.npy", "w+", np.uint8, (2, 2**28)).flush()
    code = (
        "import sys, numpy as np, tensorstore_ds as tsds\n"
        "tsds.editing.add_fields(sys.argv[1], {'v': np.load(sys.argv[2], mmap_mode='r')})\n"
        "import resource; print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)"
    )
    words = [sys.executable, "-c", code, str(tmp_path / "s.tsds"), str(tmp_path / "v.npy")]

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_DATA, (2**29, 2**29))  # mapped files do not count, copies do

    done = subprocess.run(words, capture_output=True, text=True, check=False, preexec_fn=limit)
    assert done.returncode == 0, done.stderr[-500:]
    assert tsds.open(tmp_path / "s.tsds")["train"].column("v").shape == (2, 2**28)


# --- nothing else is touched --------------------------------------------------------------------------------------


def test_other_files_are_the_same_ones_and_no_image_is_read(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = tsds.open(store)
    known = {field: data_inodes(before, field) for field in before["train"].fields}
    read: list[str] = []
    opened_file = tsds.Store.open_file

    def noted(self: tsds.Store, name: str) -> Any:
        file = opened_file(self, name)
        reading = file.read
        file.read = lambda *size: (read.append(name), reading(*size))[1]  # type: ignore[attr-defined]
        return file

    monkeypatch.setattr(tsds.Store, "open_file", noted)
    tsds.editing.add_fields(store, {"loss": np.zeros(15)})
    after = tsds.open(store)
    assert {field: data_inodes(after, field) for field in known} == known
    assert not [name for name in read if "/c/" in name]
    assert after.listing("train", 0)["image/c/0/0/0/0"] == before.listing("train", 0)["image/c/0/0/0/0"]


def test_statistics_of_other_fields_stay(store: Path) -> None:
    before = tsds.open(store)["train"].statistics
    tsds.editing.add_fields(store, {"quality": ["a"] * 15, "loss": np.zeros(15)}, classes={"quality": ["a"]})
    after = dict(tsds.open(store)["train"].statistics)
    assert after.pop("quality") == {"class_counts": [9]}
    assert after == before


def test_a_file_system_without_links_gets_copies(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = inodes(store)

    def refuse(*args: Any, **options: Any) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)
    tsds.editing.add_fields(store, {"loss": np.arange(15.0)})
    monkeypatch.undo()
    opened = tsds.open(store)
    assert np.array_equal(opened["train"]["loss"][:], np.arange(9.0))
    assert np.array_equal(np.asarray(opened["train"]["image"]), IMAGES["train"])
    assert not set(data_inodes(opened, "image")) & set(before.values())
    assert tsds.verify(store) == []
    tsds.editing.add_fields(store, {"score": np.arange(15.0)})  # shards that take room do not stay
    assert [tsds.open(store).manifest.splits["train"].replaced != () for _ in "1"] == [True]
    assert tsds.open(store).replaced[0] == len(opened["train"].shard_paths) + 2


def test_a_link_to_another_file_is_not_taken(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"a")
    (tmp_path / "b").write_bytes(b"b")
    status = (tmp_path / "b").stat()
    assert not durable.linked(tmp_path / "a", tmp_path / "c", status)
    assert not (tmp_path / "c").exists()


def test_the_history_and_the_digests(store: Path) -> None:
    before = tsds.open(store)
    tsds.editing.add_fields(store, {"loss": np.zeros(15)})
    after = tsds.open(store)
    assert after.sha256 != before.sha256 and after.content_sha256 != before.content_sha256
    tsds.editing.drop_fields(store, ["loss"])
    last = tsds.open(store)
    steps = last.manifest.provenance["history"]
    assert [(step["command"], step["fields"]) for step in steps] == [("add", ["loss"]), ("drop", ["loss"])]
    assert last.manifest.fields == before.manifest.fields
    own = [[shard.sha256 for shard in each.manifest.splits["train"].shards] for each in (before, last)]
    assert own[0] == own[1] and last.content_sha256 == before.content_sha256


# --- readers and other writers ------------------------------------------------------------------------------------


def everything(store: tsds.Store) -> str:
    return repr({name: store[name][:] for name in store})


def test_readers_go_on_through_any_number_of_added_fields(store: Path) -> None:
    lazy, mapped = tsds.open(store), tsds.open(store)
    expected = everything(mapped)
    for i in range(4):
        tsds.editing.add_fields(store, {f"f{i}": np.arange(15)})
        assert everything(mapped) == expected
    assert everything(lazy) == expected  # files are opened only now
    assert lazy["train"].fields.keys() == mapped["train"].fields.keys()
    shards, nbytes = tsds.open(store).replaced
    folders = [store / folder for folder in tsds.open(store)._files.replaced()]
    metadata = sum(path.stat().st_size for folder in folders for path in folder.rglob("zarr.json"))
    assert (shards, nbytes) == (
        4 * sum(len(lazy[split].shard_paths) for split in lazy),
        metadata,
    )  # data files take no room
    assert "f3" in tsds.open(store)["train"].fields


def test_a_reader_of_values_that_are_replaced_reads_the_old_ones(store: Path) -> None:
    tsds.editing.add_fields(store, {"loss": np.zeros(15)})
    reader = tsds.open(store)
    tsds.editing.add_fields(store, {"loss": np.ones(15)}, replace=True)
    assert not reader["train"]["loss"][:].any()
    assert tsds.open(store)["train"]["loss"][:].all()


def test_append_gives_unknown_values_to_new_samples(store: Path, tmp_path: Path) -> None:
    tsds.editing.add_fields(store, {"loss": np.zeros(15), "tags": ["x"] * 15})
    source = tmp_path / "more" / "train"
    from PIL import Image

    source.mkdir(parents=True)
    Image.fromarray(IMAGES["val"][0]).save(source / "new.png")
    tsds.append(store, tmp_path / "more", workers=0)
    split = tsds.open(store)["train"]
    assert np.isnan(split["loss"][9]) and split["tags"][9] == [] and split["loss"][:9].tolist() == [0] * 9
    assert tsds.verify(store) == []


# --- dropping -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("made", ["memmap"], indirect=True)
def test_dropped_files_are_gone(store: Path) -> None:
    known = data_inodes(tsds.open(store), "image")
    tsds.editing.add_fields(store, {"embedding": np.ones((15, 1000)), "loss": np.ones(15)})
    there = data_inodes(tsds.open(store), "embedding")
    reader = tsds.open(store)
    mapped = reader["train"]["image"][:].copy()
    done = tsds.editing.drop_fields(store, ["embedding"])
    assert done.fields == {"embedding": "float64 1000"} and done.removed_nbytes >= 15 * 8000
    opened = tsds.open(store)
    assert "embedding" not in opened["train"].fields and "loss" in opened["train"].fields
    assert not set(inodes(store).values()) & set(there)
    assert data_inodes(opened, "image") == known
    assert np.array_equal(reader["train"]["image"][:], mapped)
    with pytest.raises(tsds.FormatError) as caught:
        _ = reader["train"]["loss"][:]
    assert caught.value.reason == "replaced"
    assert tsds.verify(store) == [] and opened.replaced == (0, 0)


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["image"], "expected a field that can be dropped, found image: a store is one of images."),
        (["key"], "expected a field that can be dropped, found key: tsds append, update and add find samples by it."),
        (["los"], "expected one of the fields image, label, objects, size, key, loss, found 'los'. Did you mean loss?"),
        ([], "expected names of fields, found none."),
    ],
)
def test_what_cannot_be_dropped(store: Path, names: list[str], message: str) -> None:
    tsds.editing.add_fields(store, {"loss": np.zeros(15)})
    before = tsds.open(store).sha256
    with pytest.raises(tsds.OptionError) as caught:
        tsds.editing.drop_fields(store, names)
    assert message in str(caught.value)
    assert tsds.open(store).sha256 == before


def test_labels_objects_and_sizes_can_be_dropped(store: Path) -> None:
    done = tsds.editing.drop_fields(store, ["label", "objects", "size"])
    assert done.notes == ("without size, nothing can be appended to this store, or merged with it.",)
    opened = tsds.open(store)
    assert list(opened["train"].fields) == ["image", "key"] and list(opened["train"].statistics) == ["image"]
    assert np.array_equal(np.asarray(opened["train"]["image"]), IMAGES["train"])
    assert tsds.verify(store) == []


def test_the_advice_to_pull_the_other_fields_works(store: Path, tmp_path: Path) -> None:
    with pytest.raises(tsds.OptionError) as caught:
        tsds.editing.drop_fields(store, ["key"])
    names = str(caught.value).rpartition("(")[2].partition(")")[0].split(",")
    tsds.pull(str(store), tmp_path / "other.tsds", fields=names)
    assert "key" not in tsds.open(tmp_path / "other.tsds")["train"].fields
    assert tsds.verify(tmp_path / "other.tsds") == []


# --- what is refused ----------------------------------------------------------------------------------------------

ZEROS = np.zeros(15)


@pytest.mark.slow
@pytest.mark.drawn(8)
@pytest.mark.parametrize(
    ("fields", "options", "message"),
    [
        ({"x": np.zeros(14)}, {}, "expected 15 rows (9 of train, 4 of val, 2 of test), found 14. For one split alone"),
        ({"x": {"val": np.zeros(3)}}, {}, "x: expected 4 rows of val, found 3."),
        ({"x": {"vall": ZEROS}}, {}, "expected one of the splits train, val, test, found 'vall'. Did you mean val?"),
        ({"x": {"val": np.zeros(4)}}, {"split": "val"}, "x: expected values of the split val, found a dict."),
        ({"x": np.zeros((15, 0))}, {}, "none of them 0, found the shape (9, 0)"),
        ({"x": np.zeros(15, complex)}, {}, "expected numbers (N, ...), a list of texts"),
        ({"x": np.zeros(15, np.longdouble)}, {}, "expected one of the data types uint8"),
        ({"x": np.zeros(15, "M8[s]")}, {}, "found datetime64[s] (9,)"),
        ({"x": np.array([None] * 15)}, {}, "found Python objects. Pass a list, or convert them with astype."),
        ({"x": 3}, {}, "x: expected an array or a list, found int."),
        ({"x": "abcdefghijklmno"}, {}, "x: expected an array or a list, found str."),
        ({"x": [[1], [2, 3]] + [[1]] * 13}, {}, "x: expected numbers (N, ...)"),
        ({"x": ["a", 3, *["b"] * 13]}, {}, "x: expected a text or a list of texts in row 1, found int."),
        ({"x": ["\ud800"] * 15}, {}, "x: expected Unicode texts, found a surrogate"),
        ({"X": ZEROS}, {}, "expected a name of a field: up to 64 of a-z, 0-9, _ and -, the first none of -, found"),
        ({"../x": ZEROS}, {}, "expected a name of a field"),
        ({"": ZEROS}, {}, "expected a name of a field"),
        ({3: ZEROS}, {}, "expected a name of a field"),
        ({"image": ZEROS}, {"replace": True}, "expected a name that a store does not use itself, found image."),
        ({"key": ["a"] * 15}, {"replace": True}, "expected a name that a store does not use itself, found key."),
        ({"width": ZEROS}, {}, "expected a name that a store does not use itself, found width."),
        ({"label": ZEROS}, {}, "expected a field that is not there, found label (int64 · 2 classes). Pass `replace"),
        ({"label": ZEROS}, {"replace": True}, "label: expected a field of kind label of this name, found float64."),
        ({"label": [2] * 15}, {"replace": True, "classes": {"label": CLASSES}}, "expected labels in [-1, 2), found 2"),
        ({"q": ["x"] * 15}, {"classes": {"q": ("xx", "y")}}, "expected names of its classes, found 'x'. Did you mean"),
        ({"q": ZEROS}, {"classes": {"q": ("x",)}}, "expected labels, whole numbers of shape (N,) or (N, 1), or texts"),
        ({"q": ZEROS}, {"classes": {"r": ("x",)}}, "`classes`: expected names of the new fields, found r."),
        ({}, {}, "expected values by the name of a field, found none."),
        ({"p": [{"boxes": [[1, 2, 3]]}] * 15}, {}, "p: row 0 of train: expected boxes"),
        ({"p": [{"boxes": [[1, 2, 13, 3]]}] * 15}, {}, "p of train: expected boxes with an area inside of 12x10"),
        ({"p": [{"boxes": [[1, 2, 3, 3]], "scores": [1, 2]}] * 15}, {}, "expected 1 numbers as scores, one for each"),
        ({"p": [{"boxes": [[1, 2, 3, 3]], "labels": [9]}] * 15}, {}, "p of train: expected labels in [0, 2), found 9"),
        ({"p": [{"boxes": [[1, 2, 3, 3]], "labels": ["cow"]}] * 15}, {}, "expected names of its classes, found 'cow'"),
        ({"p": [{"boxes": [[1, 2, 3, 3]]}, {"keypoints": [[[1, 2]]]}, *[None] * 13]}, {}, "expected boxes in all rows"),
        ({"p": [{"scores": [1]}] * 15}, {}, "expected objects with boxes or keypoints"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("made", ["memmap"], indirect=True)
def test_what_cannot_be_a_field(store: Path, fields: Any, options: Any, message: str) -> None:
    before = inodes(store)
    with pytest.raises(tsds.OptionError) as caught:
        tsds.editing.add_fields(store, fields, **options)
    assert message in str(caught.value)
    assert not any(each in str(caught.value) for each in ("\n", ".. ", "?.")) and not str(caught.value).endswith("..")
    assert inodes(store) == before


@pytest.mark.parametrize("made", ["memmap"], indirect=True)
def test_other_values_of_some_splits_are_refused(store: Path) -> None:
    tsds.editing.add_fields(store, {"x": {"train": np.zeros((9, 2), np.float32)}})
    message = "x: expected values of all splits, or float32 2 as in train, test, found float64."
    with pytest.raises(tsds.OptionError, match="values of all splits") as caught:
        tsds.editing.add_fields(store, {"x": {"val": np.zeros(4)}}, replace=True)
    assert message in str(caught.value)
    tsds.editing.add_fields(store, {"x": np.zeros(15, np.int8)}, replace=True)  # of all splits, they may be
    assert tsds.open(store)["test"].column("x").dtype == np.int8
    assert tsds.verify(store) == []


def test_a_full_disk_leaves_the_store_as_it_was(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = inodes(store)
    monkeypatch.setattr("shutil.disk_usage", lambda path: type("Usage", (), {"free": 10})())
    with pytest.raises(
        tsds.errors.ConversionError, match=r"expected at least 120 B free on this disk, found 10 B\. Make room"
    ):
        tsds.editing.add_fields(store, {"x": ZEROS})
    assert inodes(store) == before


# --- what the rest of the library does with them ------------------------------------------------------------------


@pytest.mark.parametrize("made", ["memmap"], indirect=True)
def test_they_are_fields_like_any_other(store: Path, tmp_path: Path) -> None:
    loss = np.arange(15, dtype=np.float32)
    tsds.editing.add_fields(store, {"loss": loss, "embedding": np.ones((15, 4), np.float32)})
    split = tsds.open(store)["train"]
    assert np.array_equal(tsds.loading.weights_from_column(split, "loss"), loss[:9])
    tsds.editing.filter_store(store, tmp_path / "hard.tsds", "loss >= 5 and label == 'dog'")
    assert tsds.open(tmp_path / "hard.tsds")["train"]["loss"][:].tolist() == [5, 7]
    batch = tsds.StoreDataset(store, "train", fields=("loss", "embedding")).gather([3, 1])
    assert batch.columns["loss"].tolist() == [3, 1] and batch.columns["embedding"].shape == (2, 4)
    tsds.export(store, tmp_path / "npy", to="npy")
    assert np.array_equal(np.load(tmp_path / "npy" / "val" / "loss.npy"), loss[9:13])
    tsds.pack(store, tmp_path / "s.zip")
    packed = tsds.open(tmp_path / "s.zip")
    assert packed["test"]["loss"][:].tolist() == [13, 14] and tsds.verify(tmp_path / "s.zip") == []
    assert tsds.check_store(store, min_class=0, near=False).sha256 == tsds.open(store).sha256
    tsds.editing.merge_stores([store, tmp_path / "hard.tsds"], tmp_path / "both.tsds")
    assert tsds.open(tmp_path / "both.tsds")["train"]["loss"][9:].tolist() == [5, 7]


@pytest.mark.parametrize("made", ["memmap"], indirect=True)
def test_an_export_counts_second_labels_and_objects_as_left_out(store: Path, tmp_path: Path) -> None:
    rows = [{"boxes": [[1, 1, 4, 4]], "labels": [0]}] * 15
    tsds.editing.add_fields(store, {"prediction": [0] * 15, "predictions": rows}, classes={"prediction": CLASSES})
    done = tsds.export(store, tmp_path / "coco", to="coco")
    assert done.left_out["predictions"] == done.left_out["prediction"] == 15
    assert "objects" not in done.left_out
    assert "prediction" not in tsds.export(store, tmp_path / "npy", to="npy").left_out
    assert np.load(tmp_path / "npy" / "val" / "prediction.npy").tolist() == [0] * 4
