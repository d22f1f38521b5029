"""Opening a store of 50 GB, and one of 10,000 shards: sparse files, as opening reads no data."""

from __future__ import annotations

import hashlib
import os
import shutil
import statistics
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.measure import Figure, Settings, as_result, in_fresh_process
from benchmarks.open_store import open_and_read
from tensorstore_ds.conversion.options import ConvertOptions
from tensorstore_ds.format.arrays import (
    CHUNK_SIZE,
    CRC_NBYTES,
    GROUP,
    ArrayGeometry,
    dump_json,
    shard_arrays,
    shard_files,
)
from tensorstore_ds.format.kinds import KeyField, LabelField, RawImageField, SizeField
from tensorstore_ds.format.kinds.base import Field, TableField, of_kind
from tensorstore_ds.format.manifest import File, Manifest, Shard, SplitEntry, shard_path
from tensorstore_ds.format.root import dump_listing, dump_root
from tensorstore_ds.format.schema import ArraySpec

MILLISECONDS, MEGABYTES = 50, 30
SECONDS, ROOT_MEGABYTES = 1, 2
#: Of an image that is kept as a file.
FILE_NBYTES = 50_000
_ROUNDS = 5  # for each of the settings' rounds: one takes a fraction of a second
_ROWS = {"train": 300_000, "val": 20_000, "test": 15_000}
_SHARDS = 10_000  # of a row each
_CLASSES = 1000
_VALUES = {"key": 32, "image": FILE_NBYTES}  # bytes of each sample's, where they are a table
FIELDS: dict[str, Field] = {
    "image": RawImageField(ArraySpec("uint8", (224, 224, 3))),
    "label": LabelField(classes=tuple(f"n{i:08d}" for i in range(_CLASSES))),
    "size": SizeField(),
    "key": KeyField(),
}


def measure(settings: Settings) -> dict[str, Any]:
    """Time and memory of `tensorstore_ds.open`, each time in a fresh process, after the import."""
    large = settings.scratch / "large.tsds"
    per_shard = ConvertOptions().shard_nbytes // FIELDS["image"].arrays[""].row_nbytes
    write_sparse_store(large, _ROWS, per_shard)
    median = _opened(large, settings.repeat * _ROUNDS)
    size = f"{median['nbytes'] / 1e9:.0f} GB in {median['files']:.0f} files"
    note = f"{size}; and read the last row of all {median['splits']:.0f} splits: {median['read_seconds'] * 1e3:.0f} ms"
    grown = f"and read the last rows: {median['read_grown'] / 1e6:.1f} MB"
    figures = [
        Figure("open a store of 50 GB: time", median["seconds"] * 1e3, MILLISECONDS, "ms", 1, note=note),
        Figure(
            "open a store of 50 GB: additional private memory", median["grown"] / 1e6, MEGABYTES, "MB", 1, note=grown
        ),
    ]
    shutil.rmtree(large)
    many = settings.scratch / "many.tsds"
    write_sparse_store(many, {"train": _SHARDS}, 1)
    median = _opened(many, settings.repeat)
    root = (many / "zarr.json").stat().st_size / 1e6
    note = f"{median['files']:.0f} files; and read the last row: {median['read_seconds']:.2f} s"
    figures += [
        Figure(f"open a store of {_SHARDS:,} shards: time", median["seconds"], SECONDS, "s", note=note),
        Figure(f"the root's zarr.json of {_SHARDS:,} shards", root, ROOT_MEGABYTES, "MB"),
    ]
    return as_result(figures)


def _opened(store: Path, times: int) -> dict[str, float]:
    """The median of each number of `open_store`; the first time is left out."""
    opened = [in_fresh_process(open_and_read, store) for _ in range(times + 1)][1:]
    return {name: statistics.median(run[name] for run in opened) for name in opened[0]}


# --- the store --------------------------------------------------------------------------------------------------


def write_sparse_store(
    root: Path, all_rows: Mapping[str, int], per_shard: int, fields: Mapping[str, Field] = FIELDS
) -> None:
    """A store as a conversion of so many images would leave it, but for the data: all zeros, and wrong digests."""
    root.mkdir()
    splits = {}
    for split, rows in all_rows.items():
        sizes = [min(per_shard, rows - first) for first in range(0, rows, per_shard)]
        shards = tuple(_write_shard(root / shard_path(split, i), n, fields) for i, n in enumerate(sizes))
        splits[split] = SplitEntry(shards, {"label": {"class_counts": [rows // _CLASSES] * _CLASSES}})
    files = {}
    for split in splits:
        (root / split / "zarr.json").write_bytes(dump_json(GROUP))
        files[f"{split}/zarr.json"] = _listed(root / split / "zarr.json")
    (root / "zarr.json").write_bytes(dump_root(Manifest("memmap", CHUNK_SIZE, fields, splits, files)))


def _write_shard(directory: Path, rows: int, fields: Mapping[str, Field]) -> Shard:
    tables = of_kind(fields, TableField)
    lengths = {name: rows * _VALUES[name] for name in tables}
    arrays = shard_arrays(fields, rows, lengths, "memmap", CHUNK_SIZE)
    data = {f"{name}/{array.data_path}": (name, array) for name, array in arrays.items()}
    files = shard_files(fields, arrays)
    for path in files:
        file = directory / path
        file.parent.mkdir(parents=True, exist_ok=True)
        if path in data:
            array, geometry = data[path]
            table, _, part = array.partition("/")
            _write_sparse(file, geometry, np.arange(rows + 1) * _VALUES[table] if part == "offsets" else None)
        else:
            described = arrays.get(path.removesuffix("/zarr.json"))
            file.write_bytes(dump_json(GROUP if described is None else described.metadata()))
    listed = {path: _listed(directory / path) for path in sorted(files, key=lambda path: path.split("/"))}
    listing = dump_listing(listed)
    (directory / "zarr.json").write_bytes(listing)
    nbytes = len(listing) + sum(file.size for file in listed.values())
    return Shard(rows, lengths, nbytes, hashlib.sha256(listing).hexdigest())


def _write_sparse(path: Path, geometry: ArrayGeometry, values: np.ndarray | None) -> None:
    """An array's file of the right size with its index; only `values`, if any, and the index take room."""
    path.touch()
    os.truncate(path, geometry.chunks * (geometry.chunk_nbytes + CRC_NBYTES))
    with path.open("r+b") as file:
        if values is not None:
            file.write(values.astype("<i8").tobytes())
        file.seek(0, os.SEEK_END)
        file.write(geometry.index())


def _listed(path: Path) -> File:
    return File(path.stat().st_size, "0" * 64)
