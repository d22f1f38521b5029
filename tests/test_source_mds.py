"""MDS, the shards of MosaicML Streaming."""

from __future__ import annotations

import base64
import io
import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import tensorstore_ds as tsds
from labelling_files import refused
from mds_files import COLUMNS, image_bytes, row, shard, write_mds
from tensorstore_ds.annex.sources.mds.source import MdsSource
from tensorstore_ds.errors import SourceError
from tensorstore_ds.sources import open_source
from tensorstore_ds.sources.base import Contents, SourceOptions


def scan(path: Path, **options: object) -> tuple[MdsSource, Contents]:
    source = MdsSource(path, SourceOptions(**options))  # type: ignore[arg-type]
    return source, source.contents()


def test_the_literal_bytes_of_a_shard(tmp_path: Path) -> None:
    image = image_bytes(7)
    data = b"\1\0\0\0" + struct.pack("<2I", 16, 32 + len(image)) + b"conf"
    data += struct.pack("<I", len(image)) + image + b"\2\0\0\0\0\0\0\0" + b"\0\0\0\0"
    columns = {
        "column_names": ["x", "y", "z"],
        "column_encodings": ["jpeg", "int", "float32"],
        "column_sizes": [None, 8, 4],
    }
    raw = {"basename": "shard.00000.mds", "bytes": len(data), "hashes": {}}
    entry = {**columns, "compression": None, "format": "mds", "samples": 1, "version": 2, "raw_data": raw}
    (tmp_path / "shard.00000.mds").write_bytes(data)
    (tmp_path / "index.json").write_text(json.dumps({"version": 2, "shards": [entry]}))
    source, contents = scan(tmp_path, classes=("a", "b", "c"))
    found = source.read("train", 0)
    assert (found.key, found.label, found.image) == ("train/00000", 2, image)
    assert found.arrays["z"] == 0
    assert contents.labels is not None and contents.labels["train"].tolist() == [2]


#: What MDSWriter of mosaicml-streaming 0.13.0 has written of two images of 2 x 3 pixels (i, 2, 3), of class i.
WRITTEN = base64.b64decode(
    "AgAAAAQBAACRAQAAHgIAAHsiY29sdW1uX2VuY29kaW5ncyI6IFsicG5nIiwgIm5kYXJyYXkiLCAicGlsIiwgImludCIsICJmbG9h"
    "dDMyIl0sICJjb2x1bW5fbmFtZXMiOiBbImltYWdlIiwgIm4iLCAicCIsICJ5IiwgInoiXSwgImNvbHVtbl9zaXplcyI6IFtudWxs"
    "LCBudWxsLCBudWxsLCA4LCA0XSwgImNvbXByZXNzaW9uIjogbnVsbCwgImZvcm1hdCI6ICJtZHMiLCAiaGFzaGVzIjogW10sICJz"
    "aXplX2xpbWl0IjogNjcxMDg4NjQsICJ2ZXJzaW9uIjogMn1OAAAABgAAACEAAACJUE5HDQoaCgAAAA1JSERSAAAAAwAAAAIIAgAA"
    "ABIW8U0AAAAVSURBVHicY2RgYmZgYGBgYGBigAEAAJMACcl/OSEAAAAASUVORK5CYIIIBAMAAQIDAAAAAgAAAAMAAABSR0IAAgMA"
    "AgMAAgMAAgMAAgMAAgMAAAAAAAAAAAAAAABOAAAABgAAACEAAACJUE5HDQoaCgAAAA1JSERSAAAAAwAAAAIIAgAAABIW8U0AAAAV"
    "SURBVHicY2RkYmZgYGBgYGBigAEAAKYACgHeaC8AAAAASUVORK5CYIIIBAMAAQIDAAAAAgAAAAMAAABSR0IBAgMBAgMBAgMBAgMB"
    "AgMBAgMBAAAAAAAAAAAAAD8="
)


def test_what_the_real_writer_has_written(tmp_path: Path) -> None:
    columns = {"column_names": ["image", "n", "p", "y", "z"]}
    columns["column_encodings"] = ["png", "ndarray", "pil", "int", "float32"]
    raw = {"basename": "shard.00000.mds", "bytes": 542, "hashes": {}}
    entry = {**columns, "column_sizes": [None, None, None, 8, 4], "compression": None, "format": "mds", "hashes": []}
    entry |= {"raw_data": raw, "samples": 2, "size_limit": 67108864, "version": 2, "zip_data": None}
    (tmp_path / "index.json").write_text(json.dumps({"shards": [entry], "version": 2}))
    (tmp_path / "shard.00000.mds").write_bytes(WRITTEN)
    source, contents = scan(tmp_path)
    assert [problem.where for problem in contents.left_out] == ["n", "p"]
    for i in (0, 1):
        sample = source.read("train", i)
        pixels = np.asarray(Image.open(io.BytesIO(sample.image)))
        np.testing.assert_array_equal(pixels, np.full((2, 3, 3), (i, 2, 3), np.uint8), strict=True)
        assert (sample.label, sample.arrays["z"]) == (i, i / 2)


@pytest.mark.parametrize("compression", ["", "gz", "bz2", "zstd"])
def test_shards_of_two_splits(tmp_path: Path, compression: str) -> None:
    write_mds(tmp_path / "train", COLUMNS, [row(0), row(1)], [], [row(2), row(3), row(4)], compression=compression)
    write_mds(tmp_path / "val", COLUMNS, [row(5)], compression=compression)
    source = open_source(tmp_path)
    assert isinstance(source, MdsSource)
    contents = source.contents()
    assert {split: len(rows) for split, rows in contents.splits.items()} == {"train": 5, "val": 1}
    assert {name: field.describe() for name, field in contents.fields.items()} == {
        "label": "int64 · 3 classes", "grid": "float32 2 x 3", "weight": "float32",
    }  # fmt: skip
    assert [problem.where for problem in contents.left_out] == ["note", "state"]
    for split, first in (("train", 0), ("val", 5)):
        for i in contents.splits[split]:
            found, number = source.read(split, i), first + int(i)
            assert (found.image, found.label) == (image_bytes(10 * number), number % 3)
            np.testing.assert_array_equal(found.arrays["grid"], np.full((2, 3), number, np.float32), strict=True)
            assert found.arrays["weight"] == number / 2
    assert contents.labels is not None
    assert contents.labels["train"].tolist() == [0, 1, 2, 0, 1]
    assert source.files(0) == ()
    assert len(source.common_files()) == 5 - 1 * (not compression) + (not compression)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("compression", ["", "gz"])
def test_a_conversion_keeps_the_files_and_all_fields(tmp_path: Path, compression: str, workers: int) -> None:
    write_mds(tmp_path / "src", COLUMNS, [row(0), row(1)], [row(2), row(3), row(4)], compression=compression)
    options = tsds.ConvertOptions(workers=workers, encoding="source")
    tsds.convert(tmp_path / "src", tmp_path / "out.tsds", options)
    train = tsds.open(tmp_path / "out.tsds")["train"]
    assert [bytes(train.table("image")[i]) for i in range(5)] == [image_bytes(10 * i) for i in range(5)]
    assert train.column("label")[:].tolist() == [0, 1, 2, 0, 1]
    assert train.column("weight")[:].tolist() == [0, 0.5, 1, 1.5, 2]
    assert tsds.verify(tmp_path / "out.tsds") == []


def pil(image: Image.Image) -> bytes:
    return struct.pack("<3I", *image.size, len(image.mode)) + image.mode.encode() + image.tobytes()


PIXELS = np.arange(6 * 8 * 3, dtype=np.uint8).reshape(6, 8, 3)


@pytest.mark.parametrize(
    ("encoding", "data", "expected"),
    [
        ("pil", pil(Image.fromarray(PIXELS)), PIXELS),
        ("pil", pil(Image.fromarray(PIXELS[:, :, 0])), PIXELS[:, :, 0]),
        ("pil", pil(Image.new("I;16", (3, 2), 700)), np.full((2, 3), 700, np.uint16)),
        ("ndarray", b"\x08\x0c\x06\x08\x03" + PIXELS.tobytes(), PIXELS),
        ("ndarray:uint16", b"\x09\x06\0\x03\0" + bytes([1, 0] * 18), np.ones((6, 3), np.uint16)),
        ("ndarray", b"\x10\x08\x02\x01" + b"\5\0\6\0", np.array([[5], [6]], np.uint16)),
    ],
)
def test_images_that_are_pixels(tmp_path: Path, encoding: str, data: bytes, expected: np.ndarray) -> None:
    source, _ = scan(write_mds(tmp_path, {"image": encoding}, [{"image": data}]))
    np.testing.assert_array_equal(source.read("train", 0).image, expected, strict=True)
    source, _ = scan(write_mds(tmp_path, {"image": encoding}, [{"image": data[:-1]}]))
    with pytest.raises(SourceError) as error:
        source.read("train", 0)
    assert error.value.reason == "array-file"


def test_other_encodings_of_images(tmp_path: Path) -> None:
    png, jpeg = image_bytes(3), image_bytes(4, "JPEG")
    one = struct.pack("<II", 1, len(jpeg)) + jpeg
    for name, encoding, data, expected in (
        ("a", "png", png, png), ("a", "jpeg", jpeg, jpeg), ("a", "jpeg_array", one, jpeg), ("image", "bytes", png, png),
    ):  # fmt: skip
        source, _ = scan(write_mds(tmp_path, {name: encoding, "text": "str"}, [{name: data, "text": b"caf"}]))
        assert source.read("train", 0).image == expected
    two = struct.pack("<III", 2, 1, 1) + b"ab"
    for data in (two, b"", one[:-1], struct.pack("<II", 1, 5)):
        source, _ = scan(write_mds(tmp_path, {"a": "jpegarray"}, [{"a": data}]))
        with pytest.raises(SourceError) as error:
            source.read("train", 0)
        assert error.value.reason == "array-file"


@pytest.mark.parametrize("mode", ["P", "1", "CMYK", ""])
def test_modes_that_are_not_pixels(tmp_path: Path, mode: str) -> None:
    data = pil(Image.new(mode, (8, 6))) if mode else b""
    source, _ = scan(write_mds(tmp_path, {"a": "pil"}, [{"a": data}]))
    with pytest.raises(SourceError) as error:
        source.read("train", 0)
    assert error.value.reason == "unsupported-depth"


@pytest.mark.parametrize(
    ("columns", "reason"),
    [
        ({"a": "int"}, "no-image"),
        ({"a": "png", "b": "jpeg"}, "no-image"),
        ({"a": "bytes"}, "no-image"),
        ({"a": "png", "y": "int", "class": "int"}, "array-shape"),
        ({"a": "png", "b": "ndarray:float32:9"}, "array-file"),
    ],
)
def test_columns_that_are_refused(tmp_path: Path, columns: dict[str, str], reason: str) -> None:
    data = dict.fromkeys(columns, b"\x00" * 8)
    assert refused(write_mds(tmp_path, columns, [data]), "mds") == reason


def test_one_of_two_images_by_its_name(tmp_path: Path) -> None:
    columns = {"image": "png", "thumb": "jpeg"}
    source, contents = scan(write_mds(tmp_path, columns, [{"image": image_bytes(1), "thumb": b"-"}]))
    assert source.read("train", 0).image == image_bytes(1)
    assert [problem.where for problem in contents.left_out] == ["thumb"]


def change(index: dict[str, Any], path: str, value: object) -> None:
    *parents, last = path.split(".")
    found: Any = index
    for name in parents:
        found = found[int(name) if name.isdigit() else name]
    found[last] = value


@pytest.mark.parametrize(
    ("path", "value", "reason"),
    [
        ("version", 1, "array-file"),
        ("shards.0.format", "json", "array-file"),
        ("shards.0.samples", 3, "array-file"),
        ("shards.0.samples", -1, "array-file"),
        ("shards.0.column_names", ["a"], "array-file"),
        ("shards.0.column_names", ["a"] * 6, "array-file"),
        ("shards.0.column_sizes", [8, 24, None, None, None, 8], "array-shape"),
        ("shards.0.column_sizes", [8, 24, 0, None, None, 4], "array-file"),
        ("shards.1.column_encodings", ["int", "ndarray:float32:2,3", "png", "str", "str", "float32"], "array-shape"),
        ("shards.0.raw_data.bytes", 5, "array-file"),
        ("shards.0.raw_data.basename", "../train/shard.00000.mds", "unsafe-path"),
        ("shards.0.raw_data.basename", "/etc/passwd", "unsafe-path"),
        ("shards.0.raw_data.basename", "missing", "unreadable-file"),
        ("shards.0.raw_data", None, "array-file"),
        ("shards", [], "empty-source"),
    ],
)
def test_indexes_that_are_refused(tmp_path: Path, path: str, value: object, reason: str) -> None:
    write_mds(tmp_path, COLUMNS, [row(0)], [row(1)])
    index = json.loads((tmp_path / "index.json").read_text())
    change(index, path, value)
    (tmp_path / "index.json").write_text(json.dumps(index))
    assert refused(tmp_path, "mds") == reason


@pytest.mark.parametrize("compression", ["lz4", "snappy", "br", "zip:3"])
def test_other_compressions_are_refused_with_what_to_do(tmp_path: Path, compression: str) -> None:
    write_mds(tmp_path, COLUMNS, [row(0)], compression=compression)
    assert refused(tmp_path, "mds", "Decompress") == "array-file"
    (tmp_path / "shard.00000.mds").write_bytes(shard(COLUMNS, [row(0)]))
    assert scan(tmp_path)[0].read("train", 0).label == 0


@pytest.mark.parametrize("compression", ["gz", "bz2", "zstd"])
@pytest.mark.parametrize("damage", ["cut", "other", "longer", "claims"])
def test_damaged_compressed_shards(tmp_path: Path, compression: str, damage: str) -> None:
    write_mds(tmp_path, COLUMNS, [row(0)], compression=compression)
    file = tmp_path / f"shard.00000.mds.{compression}"
    good = file.read_bytes()
    if damage == "claims":
        index = json.loads((tmp_path / "index.json").read_text())
        index["shards"][0]["raw_data"]["bytes"] = 1 << 50
        (tmp_path / "index.json").write_text(json.dumps(index))
    file.write_bytes({"cut": good[:-9], "other": b"nothing of the kind", "longer": good + good, "claims": good}[damage])
    assert refused(tmp_path, "mds") == "array-file"


@pytest.mark.parametrize("first", [0, 5, 1 << 31])
def test_offsets_that_lead_elsewhere(tmp_path: Path, first: int) -> None:
    write_mds(tmp_path, {"image": "png"}, [row(0), row(1)])
    file = tmp_path / "shard.00000.mds"
    data = bytearray(file.read_bytes())
    data[4:8] = struct.pack("<I", first)
    file.write_bytes(data)
    source, _ = scan(tmp_path)
    assert source.read("train", 1).image == image_bytes(10)
    with pytest.raises(SourceError) as error:
        source.read("train", 0)
    assert error.value.reason == "array-file"


def test_a_folder_without_an_index(tmp_path: Path) -> None:
    assert not MdsSource.detect(tmp_path)
    assert refused(tmp_path, "mds") == "unknown-format"
