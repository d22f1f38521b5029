"""NumPy's .npy and .npz files."""

from __future__ import annotations

import io
import pickle
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st
from hypothesis.extra import numpy as npst
from numpy.typing import NDArray

from labelling_files import classes
from tensorstore_ds.errors import SourceError
from tensorstore_ds.format.schema import ArraySpec
from tensorstore_ds.sources.arrays.numpy_files import ArraysSource
from tensorstore_ds.sources.arrays.source import NPY_HEAD, ArrayFile, read_npy_header
from tensorstore_ds.sources.base import Contents, Source, SourceOptions

GRAY = np.arange(6 * 5 * 7, dtype=np.uint8).reshape(6, 5, 7)
COLOR = np.arange(6 * 5 * 7 * 3, dtype=np.uint8).reshape(6, 5, 7, 3)
Y = np.array([0, 1, 2, 1, 0, 2])


def save(root: Path, **arrays: NDArray[Any]) -> Path:
    for name, array in arrays.items():
        file = root / f"{name.replace('__', '/')}.npy"
        file.parent.mkdir(parents=True, exist_ok=True)
        np.save(file, array)
    return root


def scan(path: Path, **options: object) -> tuple[ArraysSource, Contents]:
    source = ArraysSource(path, SourceOptions(**options))  # type: ignore[arg-type]
    contents = source.contents()
    if any(path.rglob("*.npz")) or path.suffix == ".npz":
        return source, contents  # the temporary files go with it
    return pickle.loads(pickle.dumps(source)), contents  # noqa: S301  our own bytes


def images(source: ArraysSource, contents: Contents, split: str = "train") -> NDArray[Any]:
    return np.stack([source.read(split, i).image for i in contents.splits[split]])


@pytest.mark.parametrize(
    "array",
    [
        GRAY,
        COLOR,
        COLOR[..., :1],
        COLOR[..., :2],
        np.asfortranarray(COLOR),
        COLOR.astype(">u2"),
        GRAY.astype("<f4"),
        GRAY > 100,
        GRAY.astype("float64"),
    ],
)
def test_one_npy_file(tmp_path: Path, array: NDArray[Any]) -> None:
    np.save(tmp_path / "photos.npy", array)
    source, contents = scan(tmp_path / "photos.npy")
    assert isinstance(source, Source)
    assert contents.fields == {}
    assert contents.labels is None
    np.testing.assert_array_equal(images(source, contents), array)
    assert source.read("train", 3).key == "train/00003"
    assert (source.files(3), source.common_files()) == ((), (tmp_path / "photos.npy",))


@pytest.mark.parametrize("channels", [1, 3])
def test_channels_first_become_last(tmp_path: Path, channels: int) -> None:
    first = np.ascontiguousarray(COLOR[..., :channels].transpose(0, 3, 1, 2))
    np.save(tmp_path / "x.npy", first)
    source, contents = scan(tmp_path / "x.npy")
    np.testing.assert_array_equal(images(source, contents), COLOR[..., :channels])


@pytest.mark.parametrize("names", [("images", "labels"), ("X", "y"), ("data", "targets"), ("image", "label")])
@pytest.mark.parametrize("kind", ["folder", "npz", "npz_compressed"])
def test_images_labels_and_other_fields(tmp_path: Path, names: tuple[str, str], kind: str) -> None:
    meta = np.arange(12, dtype=">f4").reshape(6, 2)
    arrays = {
        names[0]: COLOR,
        names[1]: Y,
        "Meta Data": meta,
        "flag": Y > 1,
        "mean": np.zeros(3),
        "scale": np.float64(2),
    }
    path = tmp_path / "d.npz"
    if kind == "folder":
        path = save(tmp_path / "d", **arrays)
    else:
        (np.savez if kind == "npz" else np.savez_compressed)(path, **arrays)
    assert ArraysSource.detect(path)
    source, contents = scan(path)
    assert classes(contents) == ("0", "1", "2")
    assert contents.fields["meta_data"].arrays[""] == ArraySpec("float32", (2,))
    assert contents.fields["flag"].arrays[""] == ArraySpec("uint8")
    assert set(contents.fields) == {"label", "meta_data", "flag"}
    assert len(contents.left_out) == 2
    assert contents.labels is not None
    np.testing.assert_array_equal(contents.labels["train"], Y.astype(np.int64), strict=True)
    np.testing.assert_array_equal(images(source, contents), COLOR)
    samples = [source.read("train", i) for i in contents.splits["train"]]
    assert [s.label for s in samples] == Y.tolist()
    for sample, row in zip(samples, meta, strict=True):
        np.testing.assert_array_equal(sample.arrays["meta_data"], row.astype(np.float32), strict=True)
    np.testing.assert_array_equal(samples[2].arrays["flag"], np.array(1, np.uint8), strict=True)


@pytest.mark.parametrize(
    "names",
    [
        ["train_images", "train_labels", "test_images", "test_labels"],
        ["x_train", "y_train", "x_test", "y_test"],
        ["images_train", "targets_train", "images_test", "targets_test"],
        ["train__images", "train__labels", "Test__images", "Test__labels"],
    ],
)
def test_splits(tmp_path: Path, names: list[str]) -> None:
    arrays = dict(zip(names, [COLOR, Y, COLOR[:3], Y[:3]], strict=True))
    source, contents = scan(save(tmp_path / "folder", **arrays))
    assert {split: len(rows) for split, rows in contents.splits.items()} == {"train": 6, "test": 3}
    np.testing.assert_array_equal(images(source, contents, "test"), COLOR[:3])
    assert source.read("test", 1).key == "test/00001"
    if "__" not in names[0]:
        np.savez(tmp_path / "one.npz", **arrays, note=np.arange(4))
        source, contents = scan(tmp_path / "one.npz")
        assert {split: len(rows) for split, rows in contents.splits.items()} == {"train": 6, "test": 3}
        assert [(p.where, p.reason) for p in contents.left_out] == [("one.npz:note.npy", "not-listed")]


def test_npz_files_named_after_splits(tmp_path: Path) -> None:
    np.savez(tmp_path / "train.npz", x=COLOR, y=Y)
    np.savez(tmp_path / "val.npz", x=COLOR[:2], y=Y[:2])
    source, contents = scan(tmp_path)
    assert {split: len(rows) for split, rows in contents.splits.items()} == {"train": 6, "val": 2}
    np.testing.assert_array_equal(images(source, contents, "val"), COLOR[:2])


def test_files_named_only_after_a_split_are_images(tmp_path: Path) -> None:
    _, contents = scan(save(tmp_path, train=COLOR, test=COLOR[:2]))
    assert {split: len(rows) for split, rows in contents.splits.items()} == {"train": 6, "test": 2}


def test_labels_of_other_shapes(tmp_path: Path) -> None:
    _, contents = scan(save(tmp_path / "column", images=GRAY, labels=Y[:, None]))
    assert contents.labels is not None
    assert contents.labels["train"].tolist() == Y.tolist()
    _, contents = scan(save(tmp_path / "many", images=GRAY, labels=np.eye(6, dtype=np.uint8)))
    assert contents.labels is None
    assert contents.fields["labels"].arrays[""] == ArraySpec("uint8", (6,))
    _, contents = scan(save(tmp_path / "numbers", images=GRAY, y=Y / 2))
    assert contents.fields["y"].arrays[""] == ArraySpec("float64")
    _, contents = scan(save(tmp_path / "named", images=GRAY, y=Y + 1), classes=("a", "b", "c", "d"))
    assert classes(contents) == ("a", "b", "c", "d")


@pytest.mark.parametrize(
    ("arrays", "reason"),
    [
        ({}, "unknown-format"),
        ({"deep__er__images": GRAY}, "unknown-format"),
        ({"labels": Y, "features": Y}, "no-image"),
        ({"train_x": GRAY, "test_y": Y}, "no-image"),
        ({"images": GRAY, "labels": Y[:4]}, "array-shape"),
        ({"images": GRAY, "labels": Y + 1}, "unknown-class"),
        ({"images": GRAY, "labels": Y - 2}, "unknown-class"),
        ({"images": GRAY, "labels": Y * 0 - 1}, "unknown-class"),
        ({"images": GRAY, "labels": Y.astype(np.uint64) + np.uint64(2**63)}, "array-shape"),
        ({"images": GRAY[0]}, "array-shape"),
        ({"images": GRAY[:, :0]}, "array-shape"),
        ({"images": np.zeros((2, 6, 5, 8), np.uint8)}, "array-shape"),
        ({"images": np.zeros((2, 80, 70, 65), np.uint8)}, "array-shape"),
        ({"images": np.zeros((2, 5, 7, 5), np.uint8)}, "array-shape"),
        ({"images": np.zeros((2, 3, 7, 3), np.uint8)}, "array-shape"),
        ({"images": np.zeros((2, 2, 2, 2, 3), np.uint8)}, "array-shape"),
        ({"images": GRAY[:0]}, "empty-source"),
        ({"images": GRAY, "x": GRAY}, "array-file"),
        ({"images": GRAY, "size": Y}, "array-file"),
        ({"images": GRAY, "empty": np.zeros((6, 0))}, "array-shape"),
        ({"images": GRAY, "labels": Y.astype(str)}, "array-file"),
        ({"train_x": GRAY * 1j}, "array-file"),
        ({"train_x": GRAY, "test_x": GRAY, "test_y": Y}, "array-shape"),
        ({"train_x": GRAY, "train_y": Y, "test_x": GRAY}, "array-shape"),
        ({"train_x": GRAY, "train_z": Y, "test_x": GRAY, "test_z": Y / 2}, "array-shape"),
        ({"train__test_x": GRAY}, "split-name"),
    ],
)
def test_what_is_refused(tmp_path: Path, arrays: dict[str, NDArray[Any]], reason: str) -> None:
    with pytest.raises(SourceError) as error:
        scan(save(tmp_path, **arrays))
    assert error.value.reason == reason
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("packed", [False, True])
def test_arrays_of_something_else_than_numbers_are_not_read(tmp_path: Path, packed: bool) -> None:
    others = {"words": Y.astype(str), "complex": Y * 1j, "records": np.zeros(6, [("a", "i4")])}
    save(tmp_path / "src", images=GRAY, labels=Y, **others)
    if packed:
        (tmp_path / "packed").mkdir()
        np.savez(tmp_path / "packed" / "d.npz", images=GRAY, labels=Y, **others)
    source, contents = scan(tmp_path / ("packed" if packed else "src"))
    np.testing.assert_array_equal(images(source, contents), GRAY)
    prefix = "d.npz:" if packed else ""
    names = sorted(each.where for each in contents.left_out)
    assert names == sorted(f"{prefix}{name}.npy" for name in others)
    assert all(each.message.startswith("not read: expected numbers") for each in contents.left_out)
    assert contents.labels is not None and contents.labels["train"].tolist() == Y.tolist()


def test_labels_of_minus_one_are_no_labels(tmp_path: Path) -> None:
    labels = np.array([1, -1, 0, 1, -1, -1], np.int8)
    source, contents = scan(save(tmp_path, train_x=GRAY, train_y=labels, test_x=GRAY, test_y=labels * 0 - 1))
    assert contents.fields["label"].classes == ("0", "1")  # type: ignore[union-attr]
    assert contents.labels is not None
    assert contents.labels["train"].tolist() == labels.tolist() and set(contents.labels["test"].tolist()) == {-1}
    assert [source.read("train", i).label for i in contents.splits["train"]] == labels.tolist()
    _, contents = scan(save(tmp_path / "named", x=GRAY, y=labels * 0 - 1), classes=("cat", "dog"))
    assert contents.fields["label"].classes == ("cat", "dog")  # type: ignore[union-attr]


class Trap:
    """Its unpickling would be noticed."""

    def __reduce__(self) -> tuple[Any, ...]:
        return (pytest.fail, ("unpickled",))


def test_python_objects_are_never_unpickled(tmp_path: Path) -> None:
    objects = np.array([Trap()] * 6, object)
    np.save(tmp_path / "images.npy", objects, allow_pickle=True)
    np.savez(tmp_path / "d.npz", images=objects)
    (tmp_path / "p.npy").write_bytes(pickle.dumps(Trap()))
    for path in (tmp_path / "images.npy", tmp_path / "d.npz", tmp_path / "p.npy"):
        with pytest.raises(SourceError) as error:
            scan(path)
        assert error.value.reason == "array-file"


def npy(array: NDArray[Any]) -> bytes:
    stream = io.BytesIO()
    np.save(stream, array)
    return stream.getvalue()


HUGE = npy(GRAY).replace(b"(6, 5, 7), }" + b" " * 30, b"(99999999999, 99999999, 9999999), }       ")


def test_the_huge_header_is_what_it_should_be() -> None:
    assert len(HUGE) == len(npy(GRAY))
    assert b"9999999), }" in HUGE


@pytest.mark.parametrize(
    "data",
    [b"", npy(GRAY)[:50], npy(GRAY)[:-1], npy(GRAY) + b"\0", HUGE, b"\x93NUMPY\x02\0\xff\xff\xff\xff" + b" " * 99],
)
def test_files_of_another_size_are_refused_before_memory_is_taken(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "x.npy").write_bytes(data)
    with zipfile.ZipFile(tmp_path / "x.npz", "w") as archive:
        archive.writestr("images.npy", data)
    for name in ("x.npy", "x.npz"):
        with pytest.raises(SourceError) as error:
            scan(tmp_path / name)
        assert error.value.reason == "array-file"


def test_what_is_no_array_in_a_zip_file_and_names_that_leave_it(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "x.npz", "w") as archive:
        archive.writestr("images.npy", npy(GRAY))
        archive.writestr("../../evil.npy", npy(Y))
        archive.writestr("readme.txt", "text")
    _, contents = scan(tmp_path / "x.npz")
    assert set(contents.fields) == {"______evil"}
    assert [p.where for p in contents.left_out] == ["x.npz:readme.txt"]
    assert [p.name for p in tmp_path.iterdir()] == ["x.npz"]


@given(
    npst.arrays(npst.scalar_dtypes(), npst.array_shapes(min_dims=0, max_dims=5, min_side=0, max_side=4)),
    st.sampled_from([(1, 0), (2, 0), (3, 0)]),
    st.booleans(),
)
def test_headers_are_parsed_as_numpy_does(array: NDArray[Any], version: tuple[int, int], fortran: bool) -> None:
    stream = io.BytesIO()
    np.lib.format.write_array(stream, np.asfortranarray(array) if fortran else array, version, allow_pickle=False)
    try:
        header = read_npy_header(stream.getvalue()[:NPY_HEAD], "x.npy", Path("x.npy"))
    except SourceError:
        assert array.dtype.kind not in "biuf" or array.dtype.itemsize > 8
        return
    stream.seek(0)
    loaded = np.load(stream, allow_pickle=False)
    assert (np.dtype(header.dtype), header.shape) == (loaded.dtype, loaded.shape)
    assert len(stream.getvalue()) - header.offset == loaded.nbytes == header.nbytes
    flat = np.frombuffer(stream.getvalue()[header.offset :], header.dtype)
    np.testing.assert_array_equal(flat.reshape(header.shape, order="F" if header.fortran else "C"), loaded)


def test_a_header_of_python_2_is_read() -> None:
    text = b"{'descr': '<i4', 'fortran_order': False, 'shape': (2L, 3L), }\n"
    head = b"\x93NUMPY\x01\0" + len(text).to_bytes(2, "little") + text
    assert read_npy_header(head, "x", Path("x")) == ArrayFile("x", Path("x"), "<i4", (2, 3), len(head))


@pytest.mark.parametrize(
    "text",
    [
        b"-" * 3900 + b"1",
        b"1+" * 1900 + b"1",
        b"[1," * 1000,
        b"{" * 3900,
        b"{'descr': (), 'fortran_order': False, 'shape': (1,)}",
        b"{'descr': ('<i4', (9999999999, 9999999)), 'fortran_order': False, 'shape': (1,)}",
        b"{'descr': '<i4', 'fortran_order': False, 'shape': (" + b"1," * 33 + b")}",
        b"{'descr': '<i4', 'fortran_order': False, 'shape': (-1, 0)}",
        b"{'descr': '<i4', 'fortran_order': False, 'shape': (0, 1000000000000000000)}",
    ],
)
def test_hostile_headers_are_refused(text: bytes) -> None:
    with pytest.raises(SourceError) as error:
        read_npy_header(b"\x93NUMPY\x01\0" + len(text).to_bytes(2, "little") + text, "x", Path("x"))
    assert error.value.reason == "array-file"


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["x.npy"], True),
        (["train/x.npy"], True),
        (["x.npz"], True),
        (["x.npy", "cat/1.png"], False),
        (["x.txt"], False),
    ],
)
def test_detect(tmp_path: Path, names: list[str], expected: bool) -> None:
    for name in names:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"")
    assert ArraysSource.detect(tmp_path) is expected
    assert ArraysSource.detect(tmp_path / names[0]) is names[0].endswith(("npy", "npz"))
