"""HDF5 files as h5py writes them: arrays and files of images, names, splits, compression, and what is refused."""

from __future__ import annotations

import os
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from labelling_files import Found, converted, found, refused
from stores import png_bytes

h5py = pytest.importorskip("h5py")

GRAY = np.random.default_rng(0).integers(0, 256, (6, 5, 7), np.uint8)
COLOR = np.random.default_rng(1).integers(0, 256, (6, 5, 7, 3), np.uint8)
Y = np.array([0, 1, 2, 1, 0, 2])


def write(path: Path, **arrays: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with h5py.File(path, "w") as file:
        for name, array in arrays.items():
            file[name.replace("__", "/")] = array
    return path


def files_of(images: np.ndarray) -> list[np.ndarray]:
    return [np.frombuffer(png_bytes(image), np.uint8) for image in images]


def encoded(file: Any, name: str, images: np.ndarray) -> None:
    dataset = file.create_dataset(name, (len(images),), h5py.vlen_dtype(np.uint8))
    for i, data in enumerate(files_of(images)):
        dataset[i] = data


def scan(path: Path, **options: Any) -> Found:
    return found(path, "hdf5", **options)


def images(got: Found, split: str = "train") -> np.ndarray:
    return np.stack([each.image for each in got.samples[split]])


@pytest.mark.parametrize("array", [GRAY, COLOR, COLOR.astype(">u2"), COLOR.astype("f4") / 7, GRAY > 90])
@pytest.mark.parametrize(
    "options", [{}, {"chunks": True, "compression": "gzip"}, {"chunks": True, "compression": "lzf", "shuffle": True}]
)
def test_arrays(tmp_path: Path, array: np.ndarray, options: dict[str, Any]) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("images", data=array, **options)
        file["labels"], file["weight"] = Y, np.arange(6) / 2
    got = scan(tmp_path / "a.h5")
    np.testing.assert_array_equal(images(got), array)
    assert (got.labels, got.classes) == ({"train": Y.tolist()}, ["0", "1", "2"])
    assert got.samples["train"][3].arrays == {"weight": 1.5}


@pytest.mark.parametrize(
    ("x", "y"),
    [("images", "labels"), ("image", "label"), ("X", "y"), ("data", "target"), ("features", "targets"), ("img", "y")],
)
def test_names(tmp_path: Path, x: str, y: str) -> None:
    assert scan(write(tmp_path / "a.hdf5", **{x: GRAY, y: Y[:, None]})).labels == {"train": Y.tolist()}


@pytest.mark.parametrize(
    "names",
    [
        ("x_train", "y_train", "x_test", "y_test"),
        ("train_images", "train_labels", "test_images", "test_labels"),
        ("train_set_x", "train_set_y", "test_set_x", "test_set_y"),
        ("train__x", "train__y", "test__x", "test__y"),
        ("Train__data", "Train__targets", "Test__data", "Test__targets"),
    ],
)
def test_splits_by_names_and_groups(tmp_path: Path, names: tuple[str, ...]) -> None:
    arrays = zip(names, (GRAY, Y, GRAY[:3] + 1, Y[:3]), strict=True)
    got = scan(write(tmp_path / "a.h5", **dict(arrays)))
    assert got.labels == {"train": Y.tolist(), "test": Y[:3].tolist()}
    np.testing.assert_array_equal(images(got, "test"), GRAY[:3] + 1)


def test_splits_by_files(tmp_path: Path) -> None:
    """As PatchCamelyon has them."""
    for split, n in {"train": 6, "valid": 2}.items():
        write(tmp_path / f"in/pcam_split_{split}_x.h5", x=COLOR[:n])
        write(tmp_path / f"in/pcam_split_{split}_y.h5", y=Y[:n].reshape(-1, 1, 1, 1))
    got = scan(tmp_path / "in")
    assert got.labels == {"train": Y.tolist(), "valid": Y[:2].tolist()}
    assert got.keys["valid"] == ["valid/00000", "valid/00001"]


def test_files_of_images(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        encoded(file, "images", COLOR)
        file["labels"] = Y
        file["labels"].attrs["class_names"] = ["ant", "bee", "cow"]
    got = scan(tmp_path / "a.h5")
    assert (got.classes, got.pictures[2]) == (["ant", "bee", "cow"], files_of(COLOR)[2].tobytes())
    train = converted(tmp_path / "a.h5", workers=2)[0]["train"]
    np.testing.assert_array_equal(np.stack([train["image"][i] for i in range(6)]), COLOR)
    assert train["label"][:].tolist() == Y.tolist()


@pytest.mark.parametrize("where", ["root", "dataset", "list_classes"])
def test_names_of_classes(tmp_path: Path, where: str) -> None:
    with h5py.File(write(tmp_path / "a.h5", x=GRAY, y=Y), "a") as file:
        if where == "list_classes":
            file[where] = np.array([b"ant", b"bee", b"cow"])
        else:
            (file if where == "root" else file["y"]).attrs["classes"] = ["ant", "bee", "cow"]
    assert scan(tmp_path / "a.h5").classes == ["ant", "bee", "cow"]
    assert scan(tmp_path / "a.h5", classes=("a", "b", "c")).classes == ["a", "b", "c"]


@pytest.mark.parametrize("names", [["dog", "cat", "ant", "cat", "dog", "ant"], [b"dog", b"cat", b"ant"] * 2])
def test_labels_that_are_texts(tmp_path: Path, names: list[Any]) -> None:
    write(tmp_path / "a.h5", images=GRAY, labels=np.array(names, dtype=object if isinstance(names[0], str) else None))
    got = scan(tmp_path / "a.h5")
    texts = [each if isinstance(each, str) else each.decode() for each in names]
    assert (got.names, got.classes) == (texts, ["ant", "cat", "dog"])


def test_a_process_opens_the_file_anew(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("x", data=COLOR, chunks=(4, 5, 7, 3), compression="gzip")
    got = scan(tmp_path / "a.h5")  # which has read all
    child = os.fork()
    if not child:
        again = [got.source.read("train", each).image for each in got.contents.splits["train"]]
        os._exit(int(not np.array_equal(again, COLOR)))
    assert os.waitpid(child, 0)[1] == 0


def test_nothing_leads_out_of_the_file(tmp_path: Path) -> None:
    write(tmp_path / "secret.h5", images=GRAY)
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["images"] = h5py.ExternalLink("secret.h5", "images")
        file["data"] = COLOR
        file["x"] = h5py.SoftLink("/images")
    got = scan(tmp_path / "a.h5")
    np.testing.assert_array_equal(images(got), COLOR)
    assert {where for where, _ in got.left_out} == {"a.h5:images", "a.h5:x"}
    layout = h5py.VirtualLayout(GRAY.shape, GRAY.dtype)
    layout[:] = h5py.VirtualSource(tmp_path / "secret.h5", "images", GRAY.shape)
    with h5py.File(tmp_path / "virtual.h5", "w") as file:
        file.create_virtual_dataset("images", layout)
    (tmp_path / "raw").write_bytes(GRAY.tobytes())
    with h5py.File(tmp_path / "external.h5", "w") as file:
        file.create_dataset("images", GRAY.shape, GRAY.dtype, external=[(str(tmp_path / "raw"), 0, GRAY.nbytes)])
    for name in ("virtual.h5", "external.h5"):
        refused(tmp_path / name, match="data are in other files")


def test_an_absent_filter(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        created = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        created.set_chunk((2, 5, 7))
        created.set_filter(32001, h5py.h5z.FLAG_OPTIONAL, (0,))  # Blosc
        space = h5py.h5s.create_simple(GRAY.shape)
        h5py.h5d.create(file.id, b"images", h5py.h5t.STD_U8LE, space, created)
    refused(tmp_path / "a.h5", match=r"number 32001\), which is not installed\. Where the filter")


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    path = write(tmp_path / "weights.h5", kernel=np.ones((3, 3)))
    refused(path, match="expected a dataset of images")
    refused(write(tmp_path / "rows.h5", x=GRAY, y=Y[:5]), "hdf5", "expected 6 rows")
    path.write_bytes(path.read_bytes()[:-1])
    refused(path, match="expected an HDF5 file, found it damaged")


def test_a_damaged_chunk_is_the_samples_fault(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        dataset = file.create_dataset("x", data=COLOR, chunks=(1, 5, 7, 3), compression="gzip", fletcher32=True)
        place = dataset.id.get_chunk_info(2).byte_offset
    data = bytearray((tmp_path / "a.h5").read_bytes())
    data[place + 20] ^= 255
    (tmp_path / "a.h5").write_bytes(data)
    summary = converted(tmp_path / "a.h5", on_error="skip")[1]
    assert (summary.rows, summary.skipped) == ({"train": 5}, {"packed-file": 1})


def test_a_row_larger_than_the_memory(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("x", (3, 1 << 22, 1 << 22), np.uint8, chunks=(1, 64, 64))
    refused(tmp_path / "a.h5", match="expected a row, a chunk or labels of at most")


def test_a_chunk_that_unpacks_to_more_than_its_data(tmp_path: Path) -> None:
    """HDF5 unpacks whatever a chunk has, here 600 times its size, and cuts it after that."""
    with h5py.File(tmp_path / "b.h5", "w") as file:
        large = file.create_dataset("images", (4, 32, 32, 3), np.uint8, chunks=(1, 32, 32, 3), compression="gzip")
        large.id.write_direct_chunk((0, 0, 0, 0), zlib.compress(bytes(range(256)) * 400_000, 1))
        file["labels"] = np.zeros(4, np.int64)
    refused(tmp_path / "b.h5", "hdf5", r"expected chunks of at most 68,992 bytes in the file, found one of \d")
    rng = np.random.default_rng(0)
    with h5py.File(tmp_path / "a.h5", "w") as file:  # noise, which no filter makes smaller
        noise = rng.integers(0, 256, (4, 64, 64, 3), np.uint8)
        file.create_dataset("images", data=noise, chunks=(1, 64, 64, 3), compression="gzip", shuffle=True)
    np.testing.assert_array_equal(images(scan(tmp_path / "a.h5")), noise)
