"""Write a shard: rows into place, then metadata and indices, synced, checked in, renamed.

A shard is written in a directory of its own, ``NAME.partial``; it appears under its name when it is whole. Rows of
fixed fields are written at their place by worker processes (`write_rows`); values of tables are appended in order.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from tensorstore_ds.durable import sync as sync, write_at
from tensorstore_ds.format.arrays import GROUP, ArrayGeometry, array_paths, dump_json, shard_arrays
from tensorstore_ds.format.chunks import compress_array
from tensorstore_ds.format.manifest import File, Shard
from tensorstore_ds.format.schema import ArrayField, Field, Layout, TableField
from tensorstore_ds.machine import usable_cores

COPY_NBYTES = 8 * 1024**2
#: Bytes gathered before a table's file is written.
_BUFFER_NBYTES = 1024**2


def write_rows(path: Path, first_row: int, rows: NDArray[Any]) -> None:
    """Write rows at their place in an array's file, which exists; called in worker processes.

    With ``pwrite``, not through a map: a full disk is then an `OSError`, where a map would kill the process.
    """
    data = _bytes_of(rows)
    offset = first_row * (len(data) // len(rows)) if len(rows) else 0
    write_at(path, data, offset)


class ShardWriter:
    """One shard being written; a context manager that closes its files.

    Args:
        directory: where the shard will appear.
        fields: of the store.
    """

    def __init__(self, directory: Path, fields: Mapping[str, Field]) -> None:
        self.directory = directory
        self.fields = fields
        self._partial = directory.with_name(directory.name + ".partial")
        self._files: dict[str, IO[bytes]] = {}
        self._lengths = {name: 0 for name, field in fields.items() if isinstance(field, TableField)}
        self._runs: list[tuple[int, int]] = []

    def __enter__(self) -> ShardWriter:
        """Make the directory and the empty files of all arrays; what an earlier attempt left there is removed."""
        remove_directory(self._partial)
        for name, field in self.fields.items():
            for path in array_paths(name, field):
                target = self._raw_path(path)
                target.parent.mkdir(parents=True, exist_ok=True)
                if isinstance(field, TableField):
                    self._files[path] = target.open("wb", buffering=_BUFFER_NBYTES)
                else:
                    target.touch()
            if isinstance(field, TableField):
                self._files[f"{name}/offsets"].write(bytes(8))
        return self

    def __exit__(self, *error: object) -> None:
        for file in self._files.values():
            file.close()

    def row_paths(self) -> dict[str, Path]:
        """For each fixed field the file into which workers write rows."""
        return {name: self._raw_path(name) for name, field in self.fields.items() if isinstance(field, ArrayField)}

    def append(
        self, first_row: int, rows: int, tables: Mapping[str, tuple[NDArray[np.int64], Mapping[str, NDArray[Any]]]]
    ) -> None:
        """Take in a block, in order, whose fixed rows stand in ``[first_row, first_row + rows)``.

        Args:
            first_row: where the block's rows were written; blocks that came before may have left a gap.
            rows: how many samples the block has.
            tables: for each table the number of values of every sample, (rows,), and the values.
        """
        self._runs.append((first_row, rows))
        for name, (lengths, values) in tables.items():
            ends = self._lengths[name] + np.cumsum(lengths, dtype=np.int64)
            self._files[f"{name}/offsets"].write(ends.astype("<i8").tobytes())
            for value, array in values.items():
                self._files[f"{name}/{value}"].write(_bytes_of(array))
            self._lengths[name] += int(lengths.sum())

    def finish(self, layout: Layout) -> Shard:
        """Complete the shard, sync it and let it appear; returns what the manifest says of it."""
        rows = sum(n for _, n in self._runs)
        for file in self._files.values():
            file.close()
        for name, path in self.row_paths().items():
            self._close_gaps(path, self.fields[name].arrays[""].row_nbytes)
        shard = complete_shard(self._partial, self.fields, rows, self._lengths, layout)
        remove_directory(self.directory)
        self._partial.rename(self.directory)
        sync(self.directory.parent)
        return shard

    def _raw_path(self, path: str) -> Path:
        return raw_path(self._partial, path)

    def _close_gaps(self, path: Path, row_nbytes: int) -> None:
        """Move blocks down over rows that were planned and left out."""
        target = 0
        with path.open("r+b") as file:
            for first_row, rows in self._runs:
                if first_row != target:
                    move_down(file, first_row * row_nbytes, target * row_nbytes, rows * row_nbytes)
                target += rows
            file.truncate(target * row_nbytes)


def raw_path(directory: Path, array: str) -> Path:
    """Where the bytes of an array are gathered until the shard is completed."""
    return directory / array / "raw"


def complete_shard(
    directory: Path, fields: Mapping[str, Field], rows: int, lengths: Mapping[str, int], layout: Layout
) -> Shard:
    """Make a shard of a directory that holds the bytes of all arrays, and sync it."""
    write_json(directory / "zarr.json", GROUP)
    for name in lengths:
        write_json(directory / name / "zarr.json", GROUP)
    for array, geometry in shard_arrays(fields, rows, lengths).items():
        write_json(directory / array / "zarr.json", geometry.metadata(layout))
        seal_array(raw_path(directory, array), directory / array, geometry, layout)
    return Shard(rows, dict(lengths), check_in(directory))


def seal_array(raw: Path, directory: Path, geometry: ArrayGeometry, layout: Layout) -> None:
    """Turn the file of an array's bytes into the array's data file, with its index; an array without rows has none."""
    if geometry.rows == 0:
        raw.unlink()
        return
    target = directory / geometry.data_path
    target.parent.mkdir(parents=True, exist_ok=True)
    if layout == "zarr":
        compress_array(raw, target, geometry)
        raw.unlink()
        return
    with raw.open("r+b") as file:
        file.truncate(geometry.chunks * geometry.chunk_nbytes)  # fills up the last chunk with zeros
        file.seek(0, os.SEEK_END)
        file.write(geometry.index())
    raw.rename(target)


def _bytes_of(array: NDArray[Any]) -> memoryview:
    """The bytes of an array in C order, without a copy where they lie so."""
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data


def remove_directory(path: Path) -> None:
    """Remove a directory with all that is in it, if it exists."""
    if path.exists():
        shutil.rmtree(path)


def move_down(file: IO[bytes], source: int, target: int, nbytes: int) -> None:
    """Move a run of bytes within a file towards its beginning."""
    for done in range(0, nbytes, COPY_NBYTES):
        file.seek(source + done)
        data = file.read(min(COPY_NBYTES, nbytes - done))
        file.seek(target + done)
        file.write(data)


# --- on disk for good -------------------------------------------------------------------------------------------


def check_in(directory: Path) -> dict[str, File]:
    """Sync every file and directory below `directory`; size and SHA-256 of each file by its relative path."""
    paths = sorted(path for path in directory.rglob("*") if path.is_file())
    with ThreadPoolExecutor(usable_cores()) as threads:  # hashing and syncing release the GIL
        files = dict(
            zip((p.relative_to(directory).as_posix() for p in paths), threads.map(check_in_file, paths), strict=True)
        )
    for path in [*(p for p in directory.rglob("*") if p.is_dir()), directory]:
        sync(path)
    return files


def check_in_file(path: Path) -> File:
    """Sync a file; its size and SHA-256."""
    sync(path)
    with path.open("rb", buffering=0) as file:
        return File(path.stat().st_size, hashlib.file_digest(file, "sha256").hexdigest())


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    """Write metadata."""
    path.write_bytes(dump_json(value))
