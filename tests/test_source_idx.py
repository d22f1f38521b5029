"""IDX files, the format of MNIST."""

from __future__ import annotations

import gc
import gzip
import multiprocessing
import pickle
import shutil
import struct
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from labelling_files import classes, refused
from tensorstore_ds.errors import ConversionError
from tensorstore_ds.sources import scratch
from tensorstore_ds.sources.arrays.idx import IdxSource
from tensorstore_ds.sources.base import Contents, Source, SourceOptions

IMAGES = np.arange(5 * 3 * 4, dtype=np.uint8).reshape(5, 3, 4)
LABELS = np.array([2, 0, 1, 1, 2], np.uint8)
CODES = {"uint8": 0x08, "int8": 0x09, "int16": 0x0B, "int32": 0x0C, "float32": 0x0D, "float64": 0x0E}


def idx(array: NDArray[np.generic]) -> bytes:
    """The bytes of an IDX file, written from the description of the format."""
    header = struct.pack(f">BBBB{array.ndim}I", 0, 0, CODES[array.dtype.name], array.ndim, *array.shape)
    return header + array.astype(array.dtype.newbyteorder(">")).tobytes()


def write(root: Path, **files: bytes) -> Path:
    root.mkdir(parents=True, exist_ok=True)
    for name, data in files.items():
        name = name.replace("__", ".").replace("_", "-")
        (root / name).write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    return root


def scan(path: Path, **options: object) -> tuple[IdxSource, Contents]:
    source = IdxSource(path, SourceOptions(**options))  # type: ignore[arg-type]
    return source, source.contents()


def test_the_literal_bytes_of_a_file(tmp_path: Path) -> None:
    images = b"\0\0\x08\x03" + b"\0\0\0\x02" + b"\0\0\0\x01" + b"\0\0\0\x02" + b"\x0a\x0b\x0c\x0d"
    labels = b"\0\0\x08\x01" + b"\0\0\0\x02" + b"\x01\x00"
    source, contents = scan(write(tmp_path, train_images_idx3_ubyte=images, train_labels_idx1_ubyte=labels))
    assert isinstance(source, Source)
    assert classes(contents) == ("0", "1")
    assert list(contents.splits["train"]) == [0, 1]
    sample = source.read("train", 1)
    np.testing.assert_array_equal(sample.image, np.array([[12, 13]], np.uint8), strict=True)
    assert (sample.key, sample.label) == ("train/00001", 0)
    assert source.files(1) == ()
    assert source.common_files() == (tmp_path / "train-images-idx3-ubyte", tmp_path / "train-labels-idx1-ubyte")


@pytest.mark.parametrize("gz", ["", "__gz"])
@pytest.mark.parametrize("dot", ["_", "__"])
@pytest.mark.parametrize("prefix", ["", "emnist_letters_"])
def test_names(tmp_path: Path, gz: str, dot: str, prefix: str) -> None:
    test = "test" if prefix else "t10k"
    names = {f"{prefix}{s}_{w}{dot}idx{d}_ubyte{gz}": idx(a)
             for s in ("train", test) for w, d, a in (("images", 3, IMAGES), ("labels", 1, LABELS))}  # fmt: skip
    source, contents = scan(write(tmp_path, **names))
    assert IdxSource.detect(tmp_path)
    assert set(contents.splits) == {"train", "test"}
    assert contents.labels is not None
    np.testing.assert_array_equal(contents.labels["test"], LABELS.astype(np.int64), strict=True)
    samples = [source.read("test", i) for i in contents.splits["test"]]
    np.testing.assert_array_equal(np.stack([s.image for s in samples]), IMAGES, strict=True)
    assert [s.label for s in samples] == LABELS.tolist()


@pytest.mark.parametrize("dtype", CODES)
@pytest.mark.parametrize("gz", ["", "__gz"])
def test_types_are_read_as_numbers_of_this_machine(tmp_path: Path, dtype: str, gz: str) -> None:
    images = (np.arange(24).reshape(2, 3, 4) * 5 - 7).astype(dtype)
    source, _ = scan(write(tmp_path, **{f"train_images_idx3_x{gz}": idx(images)}))
    np.testing.assert_array_equal(source.read("train", 1).image, images[1])
    labels = np.array([1, 0], dtype)
    write(tmp_path, train_labels_idx1_x=idx(labels))
    if labels.dtype.kind == "f":
        assert refused(tmp_path, "idx") == "array-shape"
    else:
        source, contents = scan(tmp_path)
        assert classes(contents) == ("0", "1")
        assert [source.read("train", i).label for i in (0, 1)] == [1, 0]


def test_images_without_labels_and_with_channels(tmp_path: Path) -> None:
    images = np.arange(2 * 5 * 6 * 3, dtype=np.uint8).reshape(2, 5, 6, 3)
    source, contents = scan(write(tmp_path / "a", train_images_idx4_ubyte=idx(images)))
    assert contents.fields == {}
    assert contents.labels is None
    np.testing.assert_array_equal(source.read("train", 1).image, images[1], strict=True)
    source, _ = scan(write(tmp_path / "b", test_images_idx4_ubyte=idx(images.transpose(0, 3, 1, 2))))
    np.testing.assert_array_equal(source.read("test", 1).image, images[1], strict=True)


def test_labels_that_do_not_begin_at_0_need_names(tmp_path: Path) -> None:
    write(tmp_path, train_images_idx3_ubyte=idx(IMAGES), train_labels_idx1_ubyte=idx(LABELS + np.uint8(1)))
    assert refused(tmp_path, "idx") == "unknown-class"
    assert classes(scan(tmp_path, classes=("-", "a", "b", "c"))[1]) == ("-", "a", "b", "c")


def test_a_file_and_its_compressed_twin(tmp_path: Path) -> None:
    write(tmp_path / "raw", train_images_idx3_ubyte=idx(IMAGES), train_images_idx3_ubyte__gz=b"never read")
    assert IdxSource.detect(tmp_path)
    _, contents = scan(tmp_path)
    assert [(p.where, p.reason) for p in contents.left_out] == [("train-images-idx3-ubyte.gz", "not-listed")]


GOOD = {"train_images_idx3_ubyte": idx(IMAGES), "train_labels_idx1_ubyte": idx(LABELS)}


@pytest.mark.parametrize(
    ("files", "reason"),
    [
        ({"notes": b""}, "unknown-format"),
        ({"train_labels_idx1_ubyte": idx(LABELS)}, "no-image"),
        ({**GOOD, "t10k_images_idx3_ubyte": idx(IMAGES)}, "no-annotation"),
        ({"a_train_images_idx3_ubyte": idx(IMAGES), "b_train_labels_idx1_ubyte": idx(LABELS)}, "ambiguous-format"),
        ({**GOOD, "train_labels_idx1_ubyte": idx(LABELS[:4])}, "array-shape"),
        ({**GOOD, "train_labels_idx1_ubyte": idx(LABELS[:, None])}, "array-shape"),
        ({"train_images_idx3_ubyte": idx(IMAGES[0])}, "array-shape"),
        ({"train_images_idx3_ubyte": idx(IMAGES[:0])}, "empty-source"),
        ({"train_images_idx3_ubyte": idx(IMAGES)[:-1]}, "array-file"),
        ({"train_images_idx3_ubyte": idx(IMAGES) + b"\0"}, "array-file"),
        ({"train_images_idx3_ubyte": b"\0\0\x08"}, "array-file"),
        ({"train_images_idx3_ubyte": b"\0\0\x08\x03\0\0"}, "array-file"),
        ({"train_images_idx3_ubyte": b"\0\0\x0a" + idx(IMAGES)[3:]}, "array-file"),
        ({"train_images_idx3_ubyte": b"\0\0\x08\x05" + b"\0" * 20}, "array-file"),
        ({"train_images_idx3_ubyte": gzip.compress(idx(IMAGES))}, "array-file"),
        ({"train_images_idx3_ubyte": b"\0\0\x0e\x04" + b"\xff" * 16}, "array-file"),
        ({"train_images_idx3_ubyte__gz": b"\0\0\x0e\x04" + b"\xff" * 16}, "array-file"),
        ({"train_images_idx3_ubyte__gz": idx(IMAGES)[:-1]}, "array-file"),
        ({"train_images_idx3_ubyte__gz": idx(IMAGES) + b"\0"}, "array-file"),
    ],
)
def test_what_is_refused(tmp_path: Path, files: dict[str, bytes], reason: str) -> None:
    assert refused(write(tmp_path, **files), "idx") == reason


@pytest.mark.parametrize("cut", [5, 15, 30, -9, -1])
def test_a_truncated_gzip_file_is_refused(tmp_path: Path, cut: int) -> None:
    write(tmp_path, train_images_idx3_ubyte__gz=idx(IMAGES))
    file = tmp_path / "train-images-idx3-ubyte.gz"
    file.write_bytes(file.read_bytes()[:cut])
    assert refused(tmp_path, "idx") == "array-file"
    file.write_bytes(b"not gzip at all")
    assert refused(tmp_path, "idx") == "array-file"


def test_a_full_disk_is_said_before_anything_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, train_images_idx3_ubyte__gz=idx(IMAGES))
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=10))
    with pytest.raises(ConversionError, match="TMPDIR"):
        scan(tmp_path)


def read_elsewhere(source: IdxSource) -> NDArray[np.uint8]:
    image = np.array(source.read("train", 4).image)
    del source
    gc.collect()
    return image


def test_workers_share_the_decompressed_file_and_only_its_maker_removes_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr(scratch.tempfile, "tempdir", str(tmp_path / "tmp"))
    source, _ = scan(write(tmp_path / "data", train_images_idx3_ubyte__gz=idx(IMAGES)))
    source.read("train", 0)
    assert len(pickle.dumps(source)) < 2000  # no mapped data
    with multiprocessing.get_context("fork").Pool(1) as pool:
        for _ in range(2):
            np.testing.assert_array_equal(pool.apply(read_elsewhere, (source,)), IMAGES[4], strict=True)
    assert len(list((tmp_path / "tmp").rglob("*"))) == 2
    del source
    gc.collect()
    assert list((tmp_path / "tmp").iterdir()) == []
