"""Requests and bytes that a reader over http needs: to open a store of a million rows, and for one sample.

Also the bytes of the root's ``zarr.json`` for each shard. ``formats/v1/spec.md`` quotes these numbers.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
from numcodecs import zstd

import tensorstore_ds as tsds
from benchmarks.measure import Figure, Settings, as_result
from benchmarks.open_large import FIELDS, write_sparse_store
from benchmarks.range_server import served
from tensorstore_ds.format.arrays import CHUNK_SIZE
from tensorstore_ds.format.kinds import EncodedImageField, KeyField, ObjectsField
from tensorstore_ds.format.kinds.base import Field
from tensorstore_ds.format.manifest import Manifest, Shard, SplitEntry
from tensorstore_ds.format.root import dump_root
from tensorstore_ds.format.schema import ArraySpec

ROWS, SHARDS = 1_000_000, (1, 200)
ROW = 777_777
#: What annotations of COCO make.
OUTLINED: Mapping[str, Field] = {
    "image": EncodedImageField(encoding="source"),
    "objects": ObjectsField.of("boxes", "labels", "polygons", "rle", "area", "iscrowd"),
    "key": KeyField(),
}
OUTLINED_LENGTHS = {
    "image": 612_000_000,
    "image/restarts": 40_000,
    "image/entries": 4_000_000,
    "objects": 30_000,
    "objects/polygons": 700_000,
    "objects/rle": 40_000,
    "key": 90_000,
}
_READER = Path(__file__).parents[1] / "formats/v1/examples/minimal_reader.py"


def measure(settings: Settings) -> dict[str, Any]:
    """With the reader of `formats/v1/examples`, which trusts the manifest, from a server on this machine."""
    reader, figures = _minimal_reader(), []
    for image, fields, most in (
        ("224x224x3 raw", FIELDS, 1),
        (
            "a file of 50 kB",
            {**FIELDS, "image": EncodedImageField(encoding="jpeg", per_row={"shape": ArraySpec("int32", (3,))})},
            2,
        ),
    ):
        for shards in SHARDS:
            store = settings.scratch / f"{shards}-{most}.tsds"
            write_sparse_store(store, {"train": ROWS}, -(-ROWS // shards), fields)
            with served(store) as server:
                opened = reader.Store(server.url)
                begun = len(server.requests)
                counted = {}
                for field in ("image", "label", "key"):
                    before = len(server.requests)
                    opened.sample("train", ROW, [field])
                    counted[field] = server.requests[before:]
            where = f"{ROWS:,} rows in {shards} shard{'s' if shards > 1 else ''}"
            note = f"{sum(nbytes for _, nbytes in server.requests[:begun]):,} bytes"
            figures.append(Figure(f"{where}, {image}: requests to open", begun, 1, "", 0, note=note))
            others = [f"{name}: {len(counted[name])} for {_nbytes(counted[name])}" for name in ("label", "key")]
            note, what = "; ".join([_nbytes(counted["image"]), *others]), f"{where}, {image}: requests for an image"
            figures.append(Figure(what, len(counted["image"]), most, "", 0, note=note))
    figures += _of_a_row(reader, settings.scratch)
    for name, fields, lengths in (
        ("raw images, labels, keys", FIELDS, {"key": 200_000}),
        ("image files, objects with outlines, keys", OUTLINED, OUTLINED_LENGTHS),
    ):
        nbytes = (_root_nbytes(fields, lengths, 1_001) - _root_nbytes(fields, lengths, 1)) / 1000
        figures.append(Figure(f"{name}: bytes of the root for each shard", nbytes, 300, "", 0))
    return as_result(figures)


def _of_a_row(reader: ModuleType, scratch: Path) -> list[Figure]:
    """Requests for a row of each kind, of a store that is opened, in both layouts."""
    reader.sys = SimpleNamespace(version_info=(3, 14))  # type: ignore[attr-defined]  # it unpacks by what is below
    sys.modules["compression"] = SimpleNamespace(zstd=SimpleNamespace(ZstdDecompressor=_Decompressor))  # type: ignore[assignment]
    rng, figures = np.random.default_rng(0), []
    for encoding in ("raw", "jpeg"):
        for layout in ("memmap", "zarr"):
            folder = scratch / f"{encoding}-{layout}.tsds"
            with tsds.Writer(folder, encoding=encoding, layout=layout, classes=("cat", "dog")) as writer:
                for i in range(64):
                    objects = {"boxes": [[1, 2, 30, 40], [5, 5, 60, 90]], "labels": [0, 1]}
                    image = rng.integers(0, 256, (96, 128, 3), np.uint8)
                    writer.append(
                        "train", image=image, key=f"{i}.png", objects=objects, captions=["a cat", "and a dog"]
                    )
            with served(folder) as server:
                opened, counted = reader.Store(server.url), []
                for field in ("image", "image/shape", "objects", "captions", "key"):
                    if field != "image/shape" or encoding != "raw":
                        before = len(server.requests)
                        opened.sample("train", 40, [field])
                        counted.append(f"{field} {len(server.requests) - before}")
            number = int(counted[0].split()[1])
            most = 3 if layout == "zarr" else 2
            what = f"a row of a store of {encoding} images, layout {layout}: requests for the image"
            figures.append(Figure(what, number, most, "", 0, note=", ".join(counted[1:])))
    return figures


class _Decompressor:
    """`compression.zstd.ZstdDecompressor` of Python 3.14."""

    def decompress(self, data: bytes, limit: int) -> bytes:
        return bytes(zstd.decompress(data))


def _root_nbytes(fields: Mapping[str, Field], lengths: Mapping[str, int], shards: int) -> int:
    shard = Shard(4096, lengths, 612_345_678, "0" * 64)
    manifest = Manifest("memmap", CHUNK_SIZE, fields, {"train": SplitEntry((shard,) * shards)})
    return len(dump_root(manifest))


def _nbytes(requests: list[tuple[str, int]]) -> str:
    return f"{sum(nbytes for _, nbytes in requests):,} bytes"


def _minimal_reader() -> ModuleType:
    spec = importlib.util.spec_from_file_location("minimal_reader", _READER)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
