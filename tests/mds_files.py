"""Folders of MDS, written from the description of the format."""

from __future__ import annotations

import bz2
import gzip
import json
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numcodecs import zstd
from PIL import Image

from stores import image_file

SIZES = {"int": 8, "uint8": 1, "int16": 2, "float32": 4, "float64": 8, "ndarray:float32:2,3": 24}
Rows = Sequence[Mapping[str, bytes]]


def image_bytes(value: int, format: str = "PNG", size: tuple[int, int] = (8, 6)) -> bytes:
    """A file of an image of 6 x 8 pixels (height x width) of RGB."""
    return image_file(Image.new("RGB", size, (value, 2 * value, 255 - value)), format)


def sample(columns: Mapping[str, str], row: Mapping[str, bytes]) -> bytes:
    """The lengths of columns that have no size of their own, and all columns, by name."""
    names = sorted(columns)
    lengths = [len(row[name]) for name in names if columns[name] not in SIZES]
    return struct.pack(f"<{len(lengths)}I", *lengths) + b"".join(row[name] for name in names)


def shard(columns: Mapping[str, str], rows: Rows) -> bytes:
    """Number of samples, where each begins and the last ends, the configuration, the samples."""
    config = json.dumps({"column_names": sorted(columns)}).encode()
    samples = [sample(columns, row) for row in rows]
    offsets = np.cumsum([4 * (len(rows) + 2) + len(config), *map(len, samples)]).astype("<u4")
    return struct.pack("<I", len(rows)) + offsets.tobytes() + config + b"".join(samples)


def entry(columns: Mapping[str, str], name: str, data: bytes, samples: int, compression: str = "") -> dict[str, Any]:
    """A shard as the index describes it."""
    names = sorted(columns)
    files = {"raw_data": {"basename": name, "bytes": len(data), "hashes": {}}, "zip_data": None}
    if compression:
        files["zip_data"] = {"basename": f"{name}.{compression}", "bytes": 1, "hashes": {}}
    encodings = {"column_names": names, "column_encodings": [columns[name] for name in names]}
    sizes = {"column_sizes": [SIZES.get(columns[name]) for name in names]}
    rest = {"compression": compression or None, "format": "mds", "hashes": [], "samples": samples, "version": 2}
    return {**encodings, **sizes, **rest, "size_limit": 1 << 26, **files}


def write_mds(folder: Path, columns: Mapping[str, str], *shards: Rows, compression: str = "") -> Path:
    """A folder with some shards and their index."""
    folder.mkdir(parents=True, exist_ok=True)
    entries = []
    for number, rows in enumerate(shards):
        name, data = f"shard.{number:05d}.mds", shard(columns, rows)
        entries.append(entry(columns, name, data, len(rows), compression))
        compress = {"gz": gzip.compress, "bz2": bz2.compress, "zstd": zstd.compress}.get(compression, bytes)
        (folder / f"{name}.{compression}" if compression else folder / name).write_bytes(compress(data))
    (folder / "index.json").write_text(json.dumps({"shards": entries, "version": 2}, sort_keys=True))
    return folder


COLUMNS = {
    "image": "png",
    "class": "int",
    "weight": "float32",
    "note": "str",
    "state": "pkl",
    "grid": "ndarray:float32:2,3",
}


def row(number: int) -> dict[str, bytes]:
    """A sample of `COLUMNS`, of class `number` modulo 3."""
    return {
        "image": image_bytes(10 * number),
        "class": struct.pack("<q", number % 3),
        "weight": struct.pack("<f", number / 2),
        "note": b"x" * number,
        "state": b"cos\nsystem\n(S'true'\ntR.",
        "grid": np.full((2, 3), number, "<f4").tobytes(),
    }
