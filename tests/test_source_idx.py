"""IDX files, the format of MNIST."""

from __future__ import annotations

import gc
import gzip
import multiprocessing
import pickle
import shutil
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

import labelling_files
from labelling_files import IDX_CODES, Found, found, idx, refused
from tensorstore_ds.annex.sources import scratch
from tensorstore_ds.annex.sources.arrays.idx import IdxSource
from tensorstore_ds.errors import ConversionError
from tensorstore_ds.sources.base import SourceOptions

IMAGES = np.arange(5 * 3 * 4, dtype=np.uint8).reshape(5, 3, 4)
LABELS = np.array([2, 0, 1, 1, 2], np.uint8)
COLOR = np.arange(2 * 5 * 6 * 3, dtype=np.uint8).reshape(2, 5, 6, 3)
I3, I4, L1 = "train-images-idx3-ubyte", "train-images-idx4-ubyte", "train-labels-idx1-ubyte"


def write(root: Path, files: dict[str, bytes]) -> Path:
    return labelling_files.write(
        root, {name: gzip.compress(data) if name.endswith(".gz") else data for name, data in files.items()}
    )


def scan(path: Path, files: dict[str, bytes] | None = None, **options: object) -> Found:
    return found(write(path, files or {}), "idx", **options)


def test_the_literal_bytes_of_a_file(tmp_path: Path) -> None:
    images = b"\0\0\x08\x03" + b"\0\0\0\x02" + b"\0\0\0\x01" + b"\0\0\0\x02" + b"\x0a\x0b\x0c\x0d"
    got = scan(tmp_path, {I3: images, L1: b"\0\0\x08\x01" + b"\0\0\0\x02" + b"\x01\x00"})
    assert (got.classes, got.keys, got.labels) == (
        ["0", "1"],
        {"train": ["train/00000", "train/00001"]},
        {"train": [1, 0]},
    )
    np.testing.assert_array_equal(got.pictures[1], np.array([[12, 13]], np.uint8), strict=True)
    assert (got.source.files(1), got.source.common_files()) == ((), (tmp_path / I3, tmp_path / L1))


@pytest.mark.parametrize("gz", ["", ".gz"])
@pytest.mark.parametrize("dot", ["-", "."])
@pytest.mark.parametrize("prefix", ["", "emnist-letters-"])
def test_names(tmp_path: Path, gz: str, dot: str, prefix: str) -> None:
    files = {
        f"{prefix}{split}-{what}{dot}idx{d}-ubyte{gz}": idx(array)
        for split in ("train", "test" if prefix else "t10k")
        for what, d, array in (("images", 3, IMAGES), ("labels", 1, LABELS))
    }
    got = scan(tmp_path, files)
    assert IdxSource.detect(tmp_path)
    assert got.labels == dict.fromkeys(("train", "test"), LABELS.tolist())
    np.testing.assert_array_equal(np.stack(got.pictures), np.concatenate([IMAGES, IMAGES]), strict=True)


@pytest.mark.parametrize("dtype", IDX_CODES)
@pytest.mark.parametrize("gz", ["", ".gz"])
def test_types_are_read_as_numbers_of_this_machine(tmp_path: Path, dtype: str, gz: str) -> None:
    images = (np.arange(24).reshape(2, 3, 4) * 5 - 7).astype(dtype)
    np.testing.assert_array_equal(scan(tmp_path, {f"train-images-idx3-x{gz}": idx(images)}).pictures, images)
    write(tmp_path, {"train-labels-idx1-x": idx(np.array([1, 0], dtype))})
    if dtype.startswith("float"):
        assert refused(tmp_path, "idx") == "array-shape"
    else:
        got = scan(tmp_path)
        assert (got.classes, got.labels) == (["0", "1"], {"train": [1, 0]})


@pytest.mark.parametrize("array", [COLOR, COLOR.transpose(0, 3, 1, 2)])
def test_images_without_labels_and_with_channels(tmp_path: Path, array: NDArray[np.uint8]) -> None:
    got = scan(tmp_path, {I4: idx(array)})
    assert (got.fields, got.contents.labels) == ([], None)
    np.testing.assert_array_equal(np.stack(got.pictures), COLOR, strict=True)


def test_labels_that_do_not_begin_at_0_need_names(tmp_path: Path) -> None:
    write(tmp_path, {I3: idx(IMAGES), L1: idx(LABELS + np.uint8(1))})
    assert refused(tmp_path, "idx") == "unknown-class"
    assert scan(tmp_path, classes=("-", "a", "b", "c")).classes == ["-", "a", "b", "c"]


def test_a_file_and_its_compressed_twin(tmp_path: Path) -> None:
    got = scan(tmp_path, {f"raw/{I3}": idx(IMAGES), f"raw/{I3}.gz": b"never read"})
    assert IdxSource.detect(tmp_path)
    assert got.left_out == [(f"{I3}.gz", "not-listed")]


GOOD = {I3: idx(IMAGES), L1: idx(LABELS)}
HUGE = b"\0\0\x0e\x04" + b"\xff" * 16


@pytest.mark.parametrize(
    ("files", "reason"),
    [
        ({"notes": b""}, "unknown-format"),
        ({L1: idx(LABELS)}, "no-image"),
        ({**GOOD, "t10k-images-idx3-ubyte": idx(IMAGES)}, "no-annotation"),
        ({f"a-{I3}": idx(IMAGES), f"b-{L1}": idx(LABELS)}, "ambiguous-format"),
        ({**GOOD, L1: idx(LABELS[:4])}, "array-shape"),
        ({**GOOD, L1: idx(LABELS[:, None])}, "array-shape"),
        ({I3: idx(IMAGES[0])}, "array-shape"),
        ({I3: idx(IMAGES[:0])}, "empty-source"),
        *(({I3: data}, "array-file") for data in (
            idx(IMAGES)[:-1], idx(IMAGES) + b"\0", b"\0\0\x08", b"\0\0\x08\x03\0\0", b"\0\0\x0a" + idx(IMAGES)[3:],
            b"\0\0\x08\x05" + b"\0" * 20, gzip.compress(idx(IMAGES)), HUGE,
        )),
        *(({f"{I3}.gz": data}, "array-file") for data in (HUGE, idx(IMAGES)[:-1], idx(IMAGES) + b"\0")),
    ],
)  # fmt: skip
def test_what_is_refused(tmp_path: Path, files: dict[str, bytes], reason: str) -> None:
    assert refused(write(tmp_path, files), "idx") == reason


@pytest.mark.parametrize(
    "data", [*(gzip.compress(idx(IMAGES), mtime=0)[:cut] for cut in (5, 15, 30, -9, -1)), b"not gzip at all"]
)
def test_a_damaged_gzip_file_is_refused(tmp_path: Path, data: bytes) -> None:
    assert refused(labelling_files.write(tmp_path, {f"{I3}.gz": data}), "idx") == "array-file"


def test_a_full_disk_is_said_before_anything_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=10))
    with pytest.raises(ConversionError, match="TMPDIR"):
        scan(tmp_path, {f"{I3}.gz": idx(IMAGES)})


def read_elsewhere(source: IdxSource) -> NDArray[np.uint8]:
    image = np.array(source.read("train", 4).image)
    del source
    gc.collect()
    return image


@pytest.mark.slow
def test_workers_share_the_decompressed_file_and_only_its_maker_removes_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr(scratch.tempfile, "tempdir", str(tmp_path / "tmp"))
    source = IdxSource(write(tmp_path / "data", {f"{I3}.gz": idx(IMAGES)}), SourceOptions())
    source.contents()
    source.read("train", 0)
    assert len(pickle.dumps(source)) < 2000  # no mapped data
    with multiprocessing.get_context("fork").Pool(1) as pool:
        for _ in range(2):
            np.testing.assert_array_equal(pool.apply(read_elsewhere, (source,)), IMAGES[4], strict=True)
    assert len(list((tmp_path / "tmp").rglob("*"))) == 2
    del source
    gc.collect()
    assert list((tmp_path / "tmp").iterdir()) == []
