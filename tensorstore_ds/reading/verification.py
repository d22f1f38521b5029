"""Check every byte of a store against what its manifest says."""

from __future__ import annotations

import functools
import hashlib
import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Lock
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from tensorstore_ds.errors import FormatError, Problem, SourceError
from tensorstore_ds.format.arrays import ArrayGeometry, decode_index, shard_arrays
from tensorstore_ds.format.kinds import EncodedImageField, RawImageField
from tensorstore_ds.format.kinds.base import ArrayField, TableField
from tensorstore_ds.format.manifest import File, Manifest, shard_path
from tensorstore_ds.machine import usable_cores
from tensorstore_ds.progress import notebook_bytes
from tensorstore_ds.reading.checks import check_group, check_listing, check_sizes
from tensorstore_ds.reading.columns import array_columns
from tensorstore_ds.reading.store import Split, Store
from tensorstore_ds.reading.store_files import StoreFiles
from tensorstore_ds.reading.zarr_part import ZarrPart
from tensorstore_ds.regular_files import tidied

T = TypeVar("T")

#: Bytes looked at together.
_READ_NBYTES = 8 * 1024**2
_NOT_ZERO = "expected the last chunk to be filled up with zeros, found other bytes."


def verify(
    path: str | os.PathLike[str],
    *,
    sha256: str | None = None,
    threads: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> list[Problem]:
    """Check every file of a store: its size, its SHA-256, its chunks, and the values that training relies on.

    Args:
        path: of the store.
        sha256: the store that is meant, by its `Store.sha256`; None for whichever is there.
        threads: that read and hash; None for one a core.
        progress: called with (bytes read, bytes in all), from these threads, one at a time. None: a notebook shows a
            bar.

    Returns:
        Every problem found; none for a good store. What cannot be opened is a problem too, not an exception.
    """
    root = tidied(path)
    try:
        files = StoreFiles(root, sha256)
    except FormatError as error:
        return list(error.problems)
    manifest = files.manifest
    problems = check_listing(manifest) + check_sizes(root, manifest) + list(_unlisted(root, manifest))
    if problems:
        return problems
    damaged = _check_digests(files, threads, progress or notebook_bytes("Checking"))
    # Bytes that are not the writer's need no further judgement; what the writer itself got wrong is found here.
    return damaged or [*_check_groups(files), *_check_chunks(files, threads), *_check_values(Store(files))]


def _unlisted(root: Path, manifest: Manifest) -> Iterator[Problem]:
    listed = {*manifest.all_files(), "zarr.json"}
    for directory, folders, names in os.walk(root):
        place = "" if directory == str(root) else Path(directory).relative_to(root).as_posix() + "/"
        links = [name for name in folders if os.path.islink(f"{directory}/{name}")]  # noqa: PTH114  # a Path takes longer
        for name in [*names, *links]:
            path = place + name
            if path not in listed:
                yield Problem(path, "unlisted-file", "this file is not listed in the manifest. Remove it.")


def _check_digests(files: StoreFiles, threads: int | None, progress: Callable[[int, int], None]) -> list[Problem]:
    listed = files.manifest.all_files()
    total = sum(file.size for file in listed.values())
    done = 0
    lock = Lock()

    def advance(nbytes: int) -> None:
        nonlocal done
        with lock:
            done += nbytes
            progress(done, total)

    def check(item: tuple[str, File]) -> Problem | None:
        path, file = item
        sha256 = hashlib.sha256()
        try:
            with files.open(path) as opened:
                while data := opened.read(_READ_NBYTES):
                    sha256.update(data)
                    advance(len(data))
        except FormatError as error:
            return error.problems[0]
        except OSError as error:
            return Problem(path, "missing-file", f"this file cannot be read ({error.strerror}).")
        found = sha256.hexdigest()
        if found == file.sha256:
            return None
        return Problem(path, "checksum", f"expected SHA-256 {file.sha256[:12]}..., found {found[:12]}....")

    # Large files first, so that no thread is left alone with one at the end.
    ordered = sorted(listed.items(), key=lambda item: -item[1].size)
    return sorted(_problems(check, ordered, threads), key=lambda p: p.where)


def _problems(check: Callable[[T], Problem | None], items: Iterable[T], threads: int | None) -> list[Problem]:
    """What `check` says of each item; in threads, as hashing and unpacking release the GIL."""
    width = threads or usable_cores()
    if width == 1:
        found = list(map(check, items))
    else:
        with ThreadPoolExecutor(width) as pool:
            found = list(pool.map(check, items))
    return [problem for problem in found if problem is not None]


def _check_groups(files: StoreFiles) -> Iterator[Problem]:
    manifest = files.manifest
    for name, split in manifest.splits.items():
        groups = [name]
        for i, shard in enumerate(split.shards):
            groups += [shard_path(name, i), *(f"{shard_path(name, i)}/{table}" for table in shard.lengths)]
        for group in groups:
            try:
                check_group(files, group)
            except FormatError as error:
                yield from error.problems


# --- chunks -----------------------------------------------------------------------------------------------------


def _check_chunks(files: StoreFiles, threads: int | None) -> list[Problem]:
    """Every chunk of every array: ours read those of the layout memmap as one map, and other Zarr readers do not."""
    manifest = files.manifest
    arrays = [
        (f"{shard_path(name, i)}/{array}/{geometry.data_path}", geometry)
        for name, split in manifest.splits.items()
        for i, shard in enumerate(split.shards)
        for array, geometry in shard_arrays(manifest.fields, shard.rows, shard.lengths).items()
        if geometry.rows
    ]
    check = _memmap_problem if manifest.layout == "memmap" else _zarr_problem
    return _problems(lambda item: check(files, *item), arrays, threads)


def _memmap_problem(files: StoreFiles, name: str, geometry: ArrayGeometry) -> Problem | None:
    try:
        with files.open(name) as file:
            file.seek(geometry.file_nbytes - geometry.index_nbytes)
            message = index_problem(file.read(), geometry)
            file.seek(geometry.nbytes)
            left = geometry.file_nbytes - geometry.index_nbytes - geometry.nbytes
            while message is None and left > 0:
                data = file.read(min(left, _READ_NBYTES))
                left -= len(data) or left
                if data.strip(b"\0"):
                    message = _NOT_ZERO
    except FormatError as error:
        return error.problems[0]
    return None if message is None else Problem(name, "shard-index", message)


def index_problem(index: bytes, geometry: ArrayGeometry) -> str | None:
    """What is wrong with the index of a data file of the layout `memmap`, if anything is."""
    entries = decode_index(index)
    if entries is None:
        return "the index does not agree with its checksum."
    expected = np.arange(geometry.chunks, dtype=np.uint64) * np.uint64(geometry.chunk_nbytes)
    if len(entries) != geometry.chunks or (entries[:, 0] != expected).any():
        return "expected chunks back to back from byte 0 to the index, found others."
    if (entries[:, 1] != geometry.chunk_nbytes).any():
        return f"expected chunks of {geometry.chunk_nbytes} bytes, found others."
    return None


def _zarr_problem(files: StoreFiles, name: str, geometry: ArrayGeometry) -> Problem | None:
    """Unpack every chunk, one at a time."""
    try:
        part = ZarrPart(name, geometry, lambda: files.open(name))
        with files.open(name) as file:
            offsets, lengths = part.entries.T
            ends = np.cumsum(lengths)
            end = os.fstat(file.fileno()).st_size - geometry.index_nbytes
            if (offsets != ends - lengths).any() or int(ends[-1]) != end:
                message = "expected chunks back to back from byte 0 to the index, found others."
                return Problem(name, "shard-index", message)
            for i in range(geometry.chunks):
                chunk = part.chunk(file, i)
        rows = geometry.rows - (geometry.chunks - 1) * geometry.chunk_rows
        return Problem(name, "shard-index", _NOT_ZERO) if chunk[rows:].any() else None
    except FormatError as error:
        return error.problems[0]


# --- values -----------------------------------------------------------------------------------------------------


def _check_values(store: Store) -> Iterator[Problem]:
    for name in store:
        split = store[name]
        for field_name, field in split.fields.items():
            where = f"{name}/{field_name}"
            try:
                if isinstance(field, ArrayField):
                    findings = field.check(split.column(field_name))
                elif isinstance(field, TableField):
                    _ = split.table(field_name).offsets
                    findings = field.check(split.table(field_name), functools.partial(_image_sizes, split))
                for column in array_columns(field_name, split[field_name]).values():
                    for part in range(column.shards):
                        column.part(part)  # compares the metadata; values are looked at when findings are asked for
                yield from (Problem(where, reason, message) for reason, message in findings)
            except (FormatError, SourceError) as error:
                yield from error.problems


def _image_sizes(split: Split, rows: NDArray[np.int64]) -> NDArray[np.float64]:
    """(n, 2) height and width of the stored images, as they are shown; infinite where there are none."""
    image = split.fields.get("image")
    if isinstance(image, RawImageField):
        return np.tile(np.array(image.spec.shape[:2], np.float64), (len(rows), 1))
    if not isinstance(image, EncodedImageField):
        return np.full((len(rows), 2), np.inf)
    from tensorstore_ds.reading.stored_images import stored_size  # Pillow, only for stores of encoded images

    sizes = [stored_size(split["image"][int(row)], key=f"{split.name}/image {row}") for row in rows]
    return np.array(sizes, np.float64).reshape(-1, 2)
