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

from labelling_files import Found, bad, found, refused, write
from mds_files import COLUMNS, image_bytes, row, shard, write_mds
from tensorstore_ds.sources import open_source
from tensorstore_ds.sources.base import Source


def scan(path: Path, **options: object) -> Found:
    return found(path, "mds", **options)


def described(columns: dict[str, Any], nbytes: int, samples: int) -> str:
    """An index of one shard, as a writer in the library writes it."""
    raw = {"basename": "shard.00000.mds", "bytes": nbytes, "hashes": {}}
    entry = {**columns, "compression": None, "format": "mds", "samples": samples, "version": 2, "raw_data": raw}
    more = {"hashes": [], "size_limit": 67108864, "zip_data": None}
    return json.dumps({"version": 2, "shards": [entry | more]})


def test_the_literal_bytes_of_a_shard(tmp_path: Path) -> None:
    image = image_bytes(7)
    data = b"\1\0\0\0" + struct.pack("<2I", 16, 32 + len(image)) + b"conf"
    data += struct.pack("<I", len(image)) + image + b"\2\0\0\0\0\0\0\0" + b"\0\0\0\0"
    columns = {"column_names": ["x", "y", "z"], "column_encodings": ["jpeg", "int", "float32"]}
    index = described({**columns, "column_sizes": [None, 8, 4]}, len(data), 1)
    got = scan(write(tmp_path, {"shard.00000.mds": data, "index.json": index}), classes=("a", "b", "c"))
    assert (got.keys, got.labels, got.pictures, got.z) == ({"train": ["train/00000"]}, {"train": [2]}, [image], [0])


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
    index = described({**columns, "column_sizes": [None, None, None, 8, 4]}, 542, 2)
    got = scan(write(tmp_path, {"shard.00000.mds": WRITTEN, "index.json": index}))
    assert ([where for where, _ in got.left_out], got.labels, got.z) == (["n", "p"], {"train": [0, 1]}, [0, 0.5])
    for i, file in enumerate(got.pictures):
        pixels = np.asarray(Image.open(io.BytesIO(file)))
        np.testing.assert_array_equal(pixels, np.full((2, 3, 3), (i, 2, 3), np.uint8), strict=True)


@pytest.mark.parametrize("compression", ["", "gz", "bz2", "zstd"])
def test_shards_of_two_splits(tmp_path: Path, compression: str) -> None:
    write_mds(tmp_path / "train", COLUMNS, [row(0), row(1)], [], [row(2), row(3), row(4)], compression=compression)
    write_mds(tmp_path / "val", COLUMNS, [row(5)], compression=compression)
    got = scan(tmp_path)
    assert (open_source(tmp_path).name, got.labels) == ("mds", {"train": [0, 1, 2, 0, 1], "val": [2]})
    assert {name: field.describe() for name, field in got.contents.fields.items()} == {
        "label": "int64 · 3 classes", "grid": "float32 2 x 3", "weight": "float32",
    }  # fmt: skip
    assert [where for where, _ in got.left_out] == ["note", "state"]
    assert (got.pictures, got.weight) == ([image_bytes(10 * i) for i in range(6)], [i / 2 for i in range(6)])
    for number, sample in enumerate([*got.samples["train"], *got.samples["val"]]):
        np.testing.assert_array_equal(sample.arrays["grid"], np.full((2, 3), number, np.float32), strict=True)
    assert (got.source.files(0), len(got.source.common_files())) == ((), 5)


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
    got = scan(write_mds(tmp_path / "a", {"image": encoding}, [{"image": data}]))
    np.testing.assert_array_equal(got.pictures[0], expected, strict=True)
    cut = opened(write_mds(tmp_path / "b", {"image": encoding}, [{"image": data[:-1]}]))
    assert bad(cut, "train", 0) == "array-file"


def opened(path: Path) -> Source:
    source = open_source(path, "mds")
    source.contents()
    return source


JPEG = image_bytes(4, "JPEG")
LIST = struct.pack("<II", 1, len(JPEG)) + JPEG


@pytest.mark.parametrize(
    ("name", "encoding", "data", "expected"),
    [
        ("a", "png", image_bytes(3), image_bytes(3)),
        ("a", "jpeg", JPEG, JPEG),
        ("a", "jpeg_array", LIST, JPEG),
        ("image", "bytes", image_bytes(3), image_bytes(3)),
        ("a", "jpegarray", struct.pack("<III", 2, 1, 1) + b"ab", "array-file"),
        *(("a", "jpegarray", data, "array-file") for data in (b"", LIST[:-1], struct.pack("<II", 1, 5))),
        *(("a", "pil", pil(Image.new(mode, (8, 6))), "unsupported-depth") for mode in ("P", "1", "CMYK")),
        ("a", "pil", b"", "unsupported-depth"),
    ],
)
def test_other_images(tmp_path: Path, name: str, encoding: str, data: bytes, expected: bytes | str) -> None:
    source = opened(write_mds(tmp_path, {name: encoding, "text": "str"}, [{name: data, "text": b"caf"}]))
    if isinstance(expected, str):
        assert bad(source, "train", 0) == expected
    else:
        assert source.read("train", 0).image == expected


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
    got = scan(write_mds(tmp_path, columns, [{"image": image_bytes(1), "thumb": b"-"}]))
    assert (got.pictures, [where for where, _ in got.left_out]) == ([image_bytes(1)], ["thumb"])


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
    assert scan(tmp_path).labels == {"train": [0]}


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
    source = opened(tmp_path)
    assert source.read("train", 1).image == image_bytes(10)
    assert bad(source, "train", 0) == "array-file"
