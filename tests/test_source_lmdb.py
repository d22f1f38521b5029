"""LMDB databases as LMDB's own library writes them: every layout, large values, damage, and Caffe's Datum."""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from labelling_files import Found, converted, found, refused
from stores import png_bytes
from tensorstore_ds.annex.sources.lmdb.database import read_entries

lmdb = pytest.importorskip("lmdb")


def write(path: Path, entries: Mapping[bytes, bytes], *, subdir: bool = True, **options: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with lmdb.open(str(path), subdir=subdir, map_size=1 << 28, **options) as env, env.begin(write=True) as transaction:
        for key, value in entries.items():
            transaction.put(key, value)
    return path


def pixels(i: int, shape: tuple[int, ...] = (10, 12, 3)) -> np.ndarray:
    return np.random.default_rng(i).integers(0, 256, shape, np.uint8)


def png(i: int, shape: tuple[int, ...] = (10, 12, 3)) -> bytes:
    return png_bytes(pixels(i, shape))


def varint(value: int) -> bytes:
    value %= 1 << 64
    return bytes([value]) if value < 128 else bytes([value & 127 | 128]) + varint(value >> 7)


def datum(array: np.ndarray | bytes, label: int | None = None, *, packed: bool = False) -> bytes:
    """A Datum as protoc's code writes it: an independent writer."""
    if isinstance(array, bytes):
        body = b"\x22" + varint(len(array)) + array
    else:
        shape = b"".join(bytes([8 * i]) + varint(n) for i, n in enumerate(array.shape, 1))
        data = array.tobytes()
        if array.dtype == np.uint8:
            body = shape + b"\x22" + varint(len(data)) + data
        elif packed:
            body = shape + b"\x32" + varint(len(data)) + data
        else:
            body = shape + b"".join(b"\x35" + data[i : i + 4] for i in range(0, len(data), 4))
    body += b"" if label is None else b"\x28" + varint(label)
    return body + (b"\x38\x01" if isinstance(array, bytes) else b"")


def scan(path: Path, entries: Mapping[bytes, bytes] | None = None, **options: Any) -> Found:
    return found(write(path, entries) if entries else path, "lmdb", **options)


def numbered(labels: list[str], first: int = 1) -> dict[bytes, bytes]:
    entries = {b"num-samples": str(len(labels)).encode()}
    for i, label in enumerate(labels, first):
        entries |= {b"image-%09d" % i: png(i), b"label-%09d" % i: label.encode()}
    return entries


@pytest.mark.parametrize("subdir", [True, False])
@pytest.mark.parametrize("count", [1, 40, 3000])
def test_entries_are_those_that_the_library_reads(tmp_path: Path, subdir: bool, count: int) -> None:
    rng = np.random.default_rng(count)
    values = {b"%d/%d" % (i % 7, i): rng.bytes(int(rng.choice([0, 1, 90, 1900, 2100, 9000]))) for i in range(count)}
    path = write(tmp_path / "a", values, subdir=subdir)
    with lmdb.open(str(path), subdir=subdir, map_size=1 << 28) as env, env.begin(write=True) as transaction:
        for key in list(values)[::3]:
            transaction.delete(key)  # pages become free
            del values[key]
        for key in list(values)[::5]:
            values[key] = rng.bytes(int(rng.choice([0, 90, 9000])))
            transaction.put(key, values[key])
    data = (path / "data.mdb" if subdir else path).read_bytes()
    found = [(key, data[start : start + nbytes]) for key, start, nbytes in read_entries(memoryview(data), "a")]
    assert found == sorted(values.items())


def test_numbered_images_with_texts(tmp_path: Path) -> None:
    entries = numbered(["hello", "Straße", "12"]) | {b"lexicon-000000001": b"x", b"lexicon-000000002": b"x"}
    got = scan(tmp_path / "words", entries)
    assert (got.fields, got.keys) == (["text"], {"train": [f"image-00000000{i}" for i in (1, 2, 3)]})
    assert got.texts == [{"text": ("hello",)}, {"text": ("Straße",)}, {"text": ("12",)}]
    assert got.pictures == [png(i) for i in (1, 2, 3)]
    assert [each.message for each in got.contents.left_out] == ["not stored: 2 entries whose keys are lexicon-...."]


def test_numbered_images_with_class_numbers_or_names(tmp_path: Path) -> None:
    got = scan(tmp_path / "numbers", numbered(["1", "0", "2", "0"], first=0))
    assert (got.classes, got.labels) == (["0", "1", "2"], {"train": [1, 0, 2, 0]})
    assert scan(tmp_path / "numbers", classes=("a", "b", "c")).labels == got.labels
    assert scan(tmp_path / "names", numbered(["dog", "cat"]), classes=("cat", "dog")).labels == {"train": [1, 0]}


def test_keys_with_folders(tmp_path: Path) -> None:
    entries = {b"cat/1.png": png(1), b"dog/2.png": png(2), b"__len__": pickle.dumps(2), b"__keys__": b"\x80\x04x"}
    got = scan(tmp_path / "in", entries)
    assert (got.classes, got.keys, got.labels) == (
        ["cat", "dog"],
        {"train": ["cat/1.png", "dog/2.png"]},
        {"train": [0, 1]},
    )
    assert not scan(tmp_path / "mixed", entries | {b"3.png": png(3)}).fields


def test_keys_that_are_no_texts_become_numbers(tmp_path: Path) -> None:
    got = scan(tmp_path / "in", {bytes([0, i]): png(i) for i in range(3)})
    assert (got.keys, got.pictures) == ({"train": [f"train/0000{i}" for i in range(3)]}, [png(i) for i in range(3)])


@pytest.mark.parametrize("names", [("a_train_lmdb", "a_val_lmdb"), ("train.lmdb", "val.lmdb"), ("x/train", "x/val")])
@pytest.mark.parametrize("subdir", [True, False])
def test_splits(tmp_path: Path, names: tuple[str, str], subdir: bool) -> None:
    if not subdir and "lmdb" not in names[0]:
        pytest.skip("a file without a suffix is read by its own name alone")
    for i, name in enumerate(names):
        name = name if subdir or name.endswith(".lmdb") else f"{name}.mdb"
        write(tmp_path / "in" / name, {b"a/0": png(i), b"b/1": png(9)}, subdir=subdir)
    got = scan(tmp_path / "in")
    assert got.keys == {"train": ["a/0", "b/1"], "val": ["a/0", "b/1"]}
    assert got.pictures == [png(0), png(9), png(1), png(9)]


def test_datum_of_caffe(tmp_path: Path) -> None:
    gray, color, floats = pixels(1, (1, 5, 4)), pixels(2, (3, 5, 4)), np.float32(pixels(3, (2, 5, 4))) / 7
    made = (datum(gray, 1), datum(color, 0), datum(floats, 2), datum(floats, 2, packed=True), datum(png(5), 1))
    got = scan(tmp_path / "in", {b"%08d.jpg" % i: each for i, each in enumerate(made)})
    assert (got.classes, got.labels, got.notes) == (["0", "1", "2"], {"train": [1, 0, 2, 2, 1]}, [])
    *arrays, file = got.pictures
    expected = gray.transpose(1, 2, 0), np.moveaxis(color, 0, 2)[:, :, ::-1], *[np.moveaxis(floats, 0, 2)] * 2
    for array, each in zip(arrays, expected, strict=True):
        np.testing.assert_array_equal(array, each)
    assert file == png(5)
    assert "BGR" in scan(tmp_path / "bgr", {b"0": datum(color, 0)}).notes[0]


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (pickle.dumps((png(1), 3)), "a pickled object, which can run any program"),
        (pickle.dumps((png(1), 3), 2), "pass the data set that reads it"),
        (b"\xff\xff\xff\xff\0\1\0\0" + bytes(90), "an object of pyarrow"),
        (bytes(28 * 28 * 3), "perhaps pixels without a shape"),
        (b"cat", "Write the bytes of image files"),
    ],
)
def test_values_that_are_no_images(tmp_path: Path, value: bytes, words: str) -> None:
    path = write(tmp_path / "in", {b"0": value, b"1": value})
    assert refused(path, match=words) == "packed-file"


def test_bad_samples(tmp_path: Path) -> None:
    entries = numbered(["a", "b", "c", "d"]) | {b"label-000000003": b"\xff", b"image-000000004": b"no image"}
    del entries[b"label-000000002"]
    path = write(tmp_path / "in", entries)
    assert scan(path).problems == [("image-000000002", "no-label"), ("image-000000003", "annotation")]
    summary = converted(path, on_error="skip")[1]
    assert (summary.rows, summary.skipped) == ({"train": 1}, {"no-label": 1, "annotation": 1, "not-an-image": 1})
    got = scan(tmp_path / "datum", {b"0": datum(pixels(1, (1, 5, 4)), 0), b"1": b"\x08"})
    assert [reason for _, reason in got.problems] == ["packed-file"]


def test_databases_that_are_not_read(tmp_path: Path) -> None:
    with lmdb.open(str(tmp_path / "named"), max_dbs=2) as env, env.begin(write=True) as transaction:
        transaction.put(b"a", png(1), db=env.open_db(b"images", transaction))
    write(tmp_path / "empty", {})
    refused(tmp_path / "named", match="a database in the database")
    refused(tmp_path / "empty", match="expected images, found none")


def test_another_version_of_the_format(tmp_path: Path) -> None:
    path = write(tmp_path / "a.mdb", {b"a": png(1)}, subdir=False)
    good = path.read_bytes()
    path.write_bytes(good[:20] + b"\2" + good[21:])
    refused(path, match="version 2")
