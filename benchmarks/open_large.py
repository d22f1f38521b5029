"""Opening a store of 50 GB: sparse files, as opening reads no data."""

from __future__ import annotations

import os
import statistics
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.measure import Figure, Settings, as_result, in_fresh_process
from tensorstore_ds.conversion.options import ConvertOptions
from tensorstore_ds.format.arrays import GROUP, ArrayGeometry, dump_json, shard_arrays, shard_files
from tensorstore_ds.format.kinds import KeyField, LabelField, RawImageField, SizeField
from tensorstore_ds.format.kinds.base import Field
from tensorstore_ds.format.manifest import File, Manifest, Shard, SplitEntry, shard_path
from tensorstore_ds.format.root import dump_root
from tensorstore_ds.format.schema import ArraySpec

MILLISECONDS, MEGABYTES = 50, 30
_ROUNDS = 5  # for each of the settings' rounds: one takes a fraction of a second
_ROWS = {"train": 300_000, "val": 20_000, "test": 15_000}
_CLASSES = 1000
_KEY_NBYTES = 32  # of each sample's key
_FIELDS: dict[str, Field] = {
    "image": RawImageField(ArraySpec("uint8", (224, 224, 3))),
    "label": LabelField(classes=tuple(f"n{i:08d}" for i in range(_CLASSES))),
    "size": SizeField(),
    "key": KeyField(),
}


def measure(settings: Settings) -> dict[str, Any]:
    """Time and memory of `tensorstore_ds.open`, each time in a fresh process, after the import."""
    store = settings.scratch / "large.tsds"
    write_sparse_store(store)
    opened = [in_fresh_process("open_store", store) for _ in range(settings.repeat * _ROUNDS + 1)][1:]
    median = {name: statistics.median(run[name] for run in opened) for name in opened[0]}
    size = f"{median['nbytes'] / 1e9:.0f} GB in {median['files']:.0f} files"
    note = f"{size}; and read the last row of all {median['splits']:.0f} splits: {median['read_seconds'] * 1e3:.0f} ms"
    grown = f"and read the last rows: {median['read_grown'] / 1e6:.1f} MB"
    figures = [
        Figure("open a store of 50 GB: time", median["seconds"] * 1e3, MILLISECONDS, "ms", 1, note=note),
        Figure("open a store of 50 GB: own memory more", median["grown"] / 1e6, MEGABYTES, "MB", 1, note=grown),
    ]
    return as_result(figures)


# --- the store --------------------------------------------------------------------------------------------------


def write_sparse_store(root: Path) -> None:
    """A store as a conversion of some 335,000 images would leave it, but for the data: all zeros, and wrong digests."""
    root.mkdir()
    splits = {}
    for split, rows in _ROWS.items():
        image = _FIELDS["image"]
        per_shard = ConvertOptions().shard_nbytes // image.arrays[""].row_nbytes
        sizes = [min(per_shard, rows - first) for first in range(0, rows, per_shard)]
        shards = tuple(_write_shard(root / shard_path(split, i), n) for i, n in enumerate(sizes))
        splits[split] = SplitEntry(shards, {"class_counts": [rows // _CLASSES] * _CLASSES})
    files = {}
    for split in splits:
        (root / split / "zarr.json").write_bytes(dump_json(GROUP))
        files[f"{split}/zarr.json"] = _listed(root / split / "zarr.json")
    (root / "zarr.json").write_bytes(dump_root(Manifest("memmap", _FIELDS, splits, files)))


def _write_shard(directory: Path, rows: int) -> Shard:
    lengths = {"key": rows * _KEY_NBYTES}
    arrays = shard_arrays(_FIELDS, rows, lengths)
    for name in shard_files(_FIELDS, rows, lengths):
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        array = next((a for a in arrays if name.startswith(f"{a}/")), None)
        if array is None:
            path.write_bytes(dump_json(GROUP))
        elif path.name == "zarr.json":
            path.write_bytes(dump_json(arrays[array].metadata("memmap")))
        else:
            _write_sparse(path, arrays[array], np.arange(rows + 1) * _KEY_NBYTES if array == "key/offsets" else None)
    return Shard(rows, lengths, {name: _listed(directory / name) for name in shard_files(_FIELDS, rows, lengths)})


def _write_sparse(path: Path, geometry: ArrayGeometry, values: np.ndarray | None) -> None:
    """An array's file of the right size with its index; only `values`, if any, and the index take room."""
    path.touch()
    os.truncate(path, geometry.chunks * geometry.chunk_nbytes)
    with path.open("r+b") as file:
        if values is not None:
            file.write(values.astype("<i8").tobytes())
        file.seek(0, os.SEEK_END)
        file.write(geometry.index())


def _listed(path: Path) -> File:
    return File(path.stat().st_size, "0" * 64)
