"""FFCV's .beton files."""

from __future__ import annotations

import pickle
import struct
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

import tensorstore_ds as tsds
from beton_files import JPEG, PIXELS, PLACE, array_arguments, beton, row, two_images
from tensorstore_ds.errors import SourceError
from tensorstore_ds.sources import open_source
from tensorstore_ds.sources.base import Contents, SourceOptions
from tensorstore_ds.sources.beton.source import BetonSource


def written(path: Path, data: bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


def scan(path: Path, **options: object) -> tuple[BetonSource, Contents]:
    source = BetonSource(path, SourceOptions(**options))  # type: ignore[arg-type]
    return source, source.contents()


def test_the_layout_is_ffcv_s() -> None:
    """The types of ``ffcv/types.py``, aligned by NumPy, say the same sizes as these tests write."""
    image = np.dtype([("mode", "<u1"), ("width", "<u2"), ("height", "<u2"), ("data_ptr", "<u8")])
    rows = np.dtype([("", image), ("", "<i8"), ("", "<f8")], align=True)
    assert rows.itemsize == len(row(0, 0, 0, 0))
    read = np.frombuffer(row(1, 2, 3, 4.5), rows)[0].tolist()
    assert read == ((1, 8, 6, PLACE + 2), 3, 4.5)
    assert two_images()[:24] == struct.pack("<HHIQQ", 2, 3, 1 << 21, 2, 24 + 3 * 1041 + 64 + len(JPEG) + PIXELS.size)


def test_files_and_pixels(tmp_path: Path) -> None:
    source = open_source(written(tmp_path / "cats.beton", two_images()))
    assert isinstance(source, BetonSource)
    contents = source.contents()
    assert {split: list(rows) for split, rows in contents.splits.items()} == {"train": [0, 1]}
    assert contents.labels is not None and contents.labels["train"].tolist() == [0, 1]
    assert {name: field.describe() for name, field in contents.fields.items()} == {
        "label": "int64 · 2 classes", "weight": "float64",
    }  # fmt: skip
    first, second = (source.read("train", i) for i in (0, 1))
    assert (first.key, first.image, first.label, first.arrays["weight"]) == ("train/00000", JPEG, 0, 0.5)
    np.testing.assert_array_equal(second.image, PIXELS, strict=True)
    assert (second.label, second.arrays["weight"]) == (1, 1.5)
    assert scan(tmp_path, classes=("cat", "dog"))[1].fields["label"].classes == ("cat", "dog")


def test_splits_are_files(tmp_path: Path) -> None:
    for name in ("imagenet_train_500.beton", "imagenet_val_500.beton"):
        written(tmp_path / name, two_images())
    assert set(scan(tmp_path)[1].splits) == {"train", "val"}
    written(tmp_path / "train2.beton", two_images())
    with pytest.raises(SourceError) as error:
        scan(tmp_path)
    assert error.value.reason == "split-name"


@pytest.mark.parametrize("workers", [0, 2])
def test_a_conversion_keeps_raw_pixels(tmp_path: Path, workers: int) -> None:
    data = [np.full((6, 8, 3), i, np.uint8).tobytes() for i in range(5)]
    written(tmp_path / "train.beton", beton([row(1, i, i % 2, i) for i in range(5)], data))
    tsds.convert(tmp_path / "train.beton", tmp_path / "out.tsds", tsds.ConvertOptions(workers=workers))
    train = tsds.open(tmp_path / "out.tsds")["train"]
    assert train.column("image")[:].tobytes() == b"".join(data)
    assert train.column("label")[:].tolist() == [0, 1, 0, 1, 0]
    assert train.column("weight")[:].tolist() == [0, 1, 2, 3, 4]
    assert tsds.verify(tmp_path / "out.tsds") == []


def test_arrays_bytes_and_json(tmp_path: Path) -> None:
    fields = (
        ("x", 2, b""), ("a", 4, array_arguments("<i2", 2, 3)), ("t", 6, array_arguments("<f4", 2)),
        ("b", 3, b""), ("j", 5, b""),
    )  # fmt: skip
    values = np.arange(6, dtype="<i2").reshape(2, 3), np.array([0.5, 2], "<f4")
    places = [PLACE + i for i in range(5)]
    rows = struct.pack("<BHHQ3xQQQQQQ", 0, 8, 6, *places[:3], places[3], 5, places[4], 2)
    data = [JPEG, *map(bytes, values), b"hello", b"{}"]
    source, contents = scan(written(tmp_path / "a.beton", beton([rows], data, fields)))
    sample = source.read("train", 0)
    assert sample.image == JPEG
    for name, value in zip("at", values, strict=True):
        np.testing.assert_array_equal(sample.arrays[name], value, strict=True)
    assert [problem.where for problem in contents.left_out] == ["b", "j"]


@pytest.mark.parametrize(("kind", "name"), [(3, "image"), (4, "image"), (3, "Image")])
def test_images_in_other_fields(tmp_path: Path, kind: int, name: str) -> None:
    data, arguments = (JPEG, b"") if kind == 3 else (PIXELS.tobytes(), array_arguments("|u1", 6, 8, 3))
    rows = struct.pack("<QQ", PLACE, len(data))[: 16 if kind == 3 else 8]
    source, _ = scan(written(tmp_path / "a.beton", beton([rows], [data], [(name, kind, arguments)])))
    np.testing.assert_array_equal(source.read("train", 0).image, JPEG if kind == 3 else PIXELS)


GOOD = two_images()
ROWS = 24 + 3 * 1041


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "array-file"),
        (GOOD[:23], "array-file"),
        (GOOD[:1000], "array-file"),
        (GOOD[:-1], "array-file"),
        (GOOD + b"\0", "array-file"),
        (b"\1" + GOOD[1:], "array-file"),
        (GOOD[:2] + b"\0\0" + GOOD[4:], "array-file"),
        (GOOD[:2] + b"\xff\xff" + GOOD[4:], "array-file"),
        (GOOD[:8] + b"\xff" * 8 + GOOD[16:], "array-file"),
        (GOOD[:16] + b"\xff" * 8 + GOOD[24:], "array-file"),
        (GOOD[:24] + b"\xff" + GOOD[25:], "array-file"),
        (beton([], []), "empty-source"),
        (beton([b"\0" * 8], [], [("label", 1, b"")]), "no-image"),
        (beton([b"\0" * 32], [], [("a", 2, b""), ("b", 2, b"")]), "no-image"),
        (beton([b"\0" * 32], [], [("a", 2, b""), ("a", 1, b""), ("w", 0, b"")]), "array-file"),
        (beton([b"\0" * 32], [], [("a", 2, b""), ("y", 1, b""), ("label", 1, b"")]), "array-shape"),
        *((beton([b"\0" * 24], [], [("a", 2, b""), ("n", 4, arguments)]), "array-file") for arguments in (
            b"", array_arguments("|O", 2), array_arguments("<c16", 2), array_arguments("<M8[s]", 2),
            array_arguments("<f8", 1 << 60), array_arguments("<f8", 0, 2), array_arguments("u1,u2", 2),
        )),
    ],
)  # fmt: skip
def test_files_that_are_refused(tmp_path: Path, data: bytes, reason: str) -> None:
    with pytest.raises(SourceError) as error:
        scan(written(tmp_path / "a.beton", data))
    assert error.value.reason == reason
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("place", [0, ROWS, len(GOOD) - 50, len(GOOD), (1 << 64) - 1])
@pytest.mark.parametrize("mode", [0, 1, 2])
def test_places_that_lead_elsewhere(tmp_path: Path, mode: int, place: int) -> None:
    data = bytearray(GOOD)
    data[ROWS] = mode
    data[ROWS + 5 : ROWS + 13] = struct.pack("<Q", place)
    source, _ = scan(written(tmp_path / "a.beton", bytes(data)))
    assert source.read("train", 1).label == 1
    with pytest.raises(SourceError) as error:
        source.read("train", 0)
    assert error.value.reason == "array-file"


def test_a_file_that_changes_after_the_scan(tmp_path: Path) -> None:
    one = beton([row(1, 0, 0, 0)], [PIXELS.tobytes()])
    source = pickle.loads(pickle.dumps(scan(written(tmp_path / "a.beton", one))[0]))  # noqa: S301  # as in a worker
    written(tmp_path / "a.beton", GOOD)
    with pytest.raises(SourceError, match="as before"):
        source.read("train", 0)


@given(st.binary(min_size=1, max_size=12), st.one_of(st.integers(0, 40), st.integers(ROWS - 1000, len(GOOD))))
@settings(max_examples=200)
def test_any_change_gives_samples_or_one_error(tmp_path_factory: pytest.TempPathFactory, data: bytes, at: int) -> None:
    path = written(tmp_path_factory.getbasetemp() / "changed.beton", GOOD[:at] + data + GOOD[at + len(data) :])
    try:
        source, contents = scan(path)
        for reference in contents.splits["train"]:
            assert isinstance(source.read("train", reference).image, bytes | np.ndarray)
    except SourceError as error:
        assert "\n" not in str(error)
