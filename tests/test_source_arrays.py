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

from labelling_files import Found, Has, agrees, found, npy, npz, refused, refusing, write
from tensorstore_ds.annex.sources.arrays.numpy_files import ArraysSource
from tensorstore_ds.annex.sources.arrays.source import NPY_HEAD, ArrayFile, read_npy_header
from tensorstore_ds.errors import SourceError
from tensorstore_ds.format.schema import ArraySpec

GRAY = np.arange(6 * 5 * 7, dtype=np.uint8).reshape(6, 5, 7)
COLOR = np.arange(6 * 5 * 7 * 3, dtype=np.uint8).reshape(6, 5, 7, 3)
Y = np.array([0, 1, 2, 1, 0, 2])
NONE = np.array([1, -1, 0, 1, -1, -1], np.int8)
Arrays = dict[str, NDArray[Any]]


def save(root: Path, arrays: Arrays, packed: str = "") -> Path:
    """A file for each array, or an archive of all of them."""
    return write(
        root, {packed: npz(**arrays)} if packed else {f"{name}.npy": npy(each) for name, each in arrays.items()}
    )


def scan(path: Path, **options: object) -> Found:
    return found(path, "arrays", **options)


def images(got: Found, split: str = "train") -> NDArray[Any]:
    return np.stack([each.image for each in got.samples[split]])


@pytest.mark.parametrize(
    "array",
    [
        *(GRAY, COLOR, COLOR[..., :1], COLOR[..., :2], np.asfortranarray(COLOR), COLOR.astype(">u2")),
        *(GRAY.astype("<f4"), GRAY > 100, GRAY.astype("float64")),
    ],
)
def test_one_npy_file(tmp_path: Path, array: NDArray[Any]) -> None:
    np.save(tmp_path / "photos.npy", array)
    got = scan(tmp_path / "photos.npy")
    assert (got.fields, got.contents.labels, got.keys["train"][3]) == ([], None, "train/00003")
    np.testing.assert_array_equal(images(got), array)
    assert (got.source.files(3), got.source.common_files()) == ((), (tmp_path / "photos.npy",))


@pytest.mark.parametrize("channels", [1, 3])
def test_channels_first_become_last(tmp_path: Path, channels: int) -> None:
    array = np.ascontiguousarray(COLOR[..., :channels].transpose(0, 3, 1, 2))
    np.testing.assert_array_equal(images(scan(write(tmp_path, {"x.npy": npy(array)}))), COLOR[..., :channels])


@pytest.mark.parametrize("names", [("images", "labels"), ("X", "y"), ("data", "targets"), ("image", "label")])
@pytest.mark.parametrize("save", [save, np.savez, np.savez_compressed])
def test_images_labels_and_other_fields(tmp_path: Path, names: tuple[str, str], save: Any) -> None:
    meta = np.arange(12, dtype=">f4").reshape(6, 2)
    arrays: Arrays = {names[0]: COLOR, names[1]: Y, "Meta Data": meta, "flag": Y > 1}
    arrays |= {"mean": np.zeros(3), "scale": np.float64(2)}  # type: ignore[dict-item]
    path = tmp_path / ("d" if save.__name__ == "save" else "d.npz")
    save(path, arrays) if save.__name__ == "save" else save(path, **arrays)
    assert ArraysSource.detect(path)
    got = scan(path)
    specs = {name: each.arrays[""] for name, each in got.contents.fields.items() if name != "label"}
    assert specs == {"meta_data": ArraySpec("float32", (2,)), "flag": ArraySpec("uint8")}
    assert (got.classes, got.labels, len(got.left_out)) == (["0", "1", "2"], {"train": Y.tolist()}, 2)
    np.testing.assert_array_equal(images(got), COLOR)
    for sample, row, flag in zip(got.samples["train"], meta, Y > 1, strict=True):
        np.testing.assert_array_equal(sample.arrays["meta_data"], row.astype(np.float32), strict=True)
        np.testing.assert_array_equal(sample.arrays["flag"], np.array(flag, np.uint8), strict=True)


@pytest.mark.parametrize(
    "names",
    [
        ["train_images", "train_labels", "test_images", "test_labels"],
        ["x_train", "y_train", "x_test", "y_test"],
        ["images_train", "targets_train", "images_test", "targets_test"],
        ["train/images", "train/labels", "Test/images", "Test/labels"],
    ],
)
def test_splits(tmp_path: Path, names: list[str]) -> None:
    arrays: Arrays = dict(zip(names, [COLOR, Y, COLOR[:3], Y[:3]], strict=True))
    packed = [save(tmp_path, arrays | {"note": np.arange(4)}, "one.npz") / "one.npz"] * ("/" not in names[0])
    for path in (save(tmp_path / "folder", arrays), *packed):
        got = scan(path)
        assert got.keys == {split: [f"{split}/{i:05d}" for i in range(n)] for split, n in (("train", 6), ("test", 3))}
        np.testing.assert_array_equal(images(got, "test"), COLOR[:3])
        assert got.left_out == ([("one.npz:note.npy", "not-listed")] if path.suffix else [])


@pytest.mark.parametrize(
    ("arrays", "classes", "expected"),
    [
        ({"train": COLOR, "test": COLOR[:2]}, None, {"splits": ["test", "train"], "fields": []}),
        ({"images": GRAY, "labels": Y[:, None]}, None, {"labels": {"train": Y.tolist()}}),
        ({"images": GRAY, "labels": np.eye(6, dtype=np.uint8)}, None, {"multi": np.eye(6, dtype=int).tolist()}),
        ({"images": GRAY, "y": Y / 2}, None, {"y": (Y / 2).tolist(), "fields": ["y"]}),
        ({"images": GRAY, "y": Y + 1}, ("a", "b", "c", "d"), {"classes": ["a", "b", "c", "d"]}),
        (  # -1 is no label
            {"train_x": GRAY, "train_y": NONE, "test_x": GRAY, "test_y": NONE * 0 - 1},
            None,
            {"classes": ["0", "1"], "labels": {"train": NONE.tolist(), "test": [-1] * 6}},
        ),
        ({"x": GRAY, "y": NONE * 0 - 1}, ("cat", "dog"), {"classes": ["cat", "dog"]}),
    ],
)
def test_names_and_labels(tmp_path: Path, arrays: Arrays, classes: Any, expected: dict[str, Any]) -> None:
    agrees(scan(save(tmp_path, arrays), classes=classes), expected)


@pytest.mark.parametrize(
    ("arrays", "reason"),
    [
        ({}, "unknown-format"),
        ({"deep/er/images": GRAY}, "unknown-format"),
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
        ({"train/test_x": GRAY}, "split-name"),
    ],
)
def test_what_is_refused(tmp_path: Path, arrays: Arrays, reason: str) -> None:
    assert refused(save(tmp_path, arrays), "arrays") == reason


@pytest.mark.parametrize("packed", ["", "d.npz"])
def test_arrays_of_something_else_than_numbers_are_not_read(tmp_path: Path, packed: str) -> None:
    others = {"words": Y.astype(str), "complex": Y * 1j, "records": np.zeros(6, [("a", "i4")])}
    got = scan(save(tmp_path, {"images": GRAY, "labels": Y, **others}, packed))
    np.testing.assert_array_equal(images(got), GRAY)
    prefix = "d.npz:" if packed else ""
    assert sorted(got.said) == [Has(f"{prefix}{name}.npy: not read: expected numbers") for name in sorted(others)]
    assert got.labels == {"train": Y.tolist()}


class Trap:
    """Its unpickling would be noticed."""

    def __reduce__(self) -> tuple[Any, ...]:
        return (pytest.fail, ("unpickled",))


def test_python_objects_are_never_unpickled(tmp_path: Path) -> None:
    objects = np.array([Trap()] * 6, object)
    save(tmp_path, {"images": objects}, "d.npz")
    np.save(tmp_path / "images.npy", objects, allow_pickle=True)
    (tmp_path / "p.npy").write_bytes(pickle.dumps(Trap()))
    assert {refused(tmp_path / name, "arrays") for name in ("images.npy", "d.npz", "p.npy")} == {"array-file"}


HUGE = npy(GRAY).replace(b"(6, 5, 7), }" + b" " * 30, b"(99999999999, 99999999, 9999999), }       ")


@pytest.mark.parametrize(
    "data",
    [b"", npy(GRAY)[:50], npy(GRAY)[:-1], npy(GRAY) + b"\0", HUGE, b"\x93NUMPY\x02\0\xff\xff\xff\xff" + b" " * 99],
)
def test_files_of_another_size_are_refused_before_memory_is_taken(tmp_path: Path, data: bytes) -> None:
    assert len(HUGE) == len(npy(GRAY)) and b"9999999), }" in HUGE
    write(tmp_path, {"x.npy": data})
    with zipfile.ZipFile(tmp_path / "x.npz", "w") as archive:
        archive.writestr("images.npy", data)
    assert {refused(tmp_path / name, "arrays") for name in ("x.npy", "x.npz")} == {"array-file"}


def test_what_is_no_array_in_a_zip_file_and_names_that_leave_it(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "x.npz", "w") as archive:
        for name, data in (("images.npy", npy(GRAY)), ("../../evil.npy", npy(Y)), ("readme.txt", b"text")):
            archive.writestr(name, data)
    got = scan(tmp_path / "x.npz")
    assert (got.fields, [where for where, _ in got.left_out]) == (["______evil"], ["x.npz:readme.txt"])
    assert [each.name for each in tmp_path.iterdir()] == ["x.npz"]


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


def headed(text: bytes) -> bytes:
    return b"\x93NUMPY\x01\0" + len(text).to_bytes(2, "little") + text


def test_a_header_of_python_2_is_read() -> None:
    head = headed(b"{'descr': '<i4', 'fortran_order': False, 'shape': (2L, 3L), }\n")
    assert read_npy_header(head, "x", Path("x")) == ArrayFile("x", Path("x"), "<i4", (2, 3), len(head))


@pytest.mark.parametrize(
    "text",
    [
        *(b"-" * 3900 + b"1", b"1+" * 1900 + b"1", b"[1," * 1000, b"{" * 3900),
        b"{'descr': (), 'fortran_order': False, 'shape': (1,)}",
        b"{'descr': ('<i4', (9999999999, 9999999)), 'fortran_order': False, 'shape': (1,)}",
        b"{'descr': '<i4', 'fortran_order': False, 'shape': (" + b"1," * 33 + b")}",
        b"{'descr': '<i4', 'fortran_order': False, 'shape': (-1, 0)}",
        b"{'descr': '<i4', 'fortran_order': False, 'shape': (0, 1000000000000000000)}",
    ],
)
def test_hostile_headers_are_refused(text: bytes) -> None:
    with refusing("array-file"):
        read_npy_header(headed(text), "x", Path("x"))
