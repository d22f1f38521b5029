"""Check every byte of a store against what its manifest says."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from threading import Lock

import numpy as np
from numpy.typing import NDArray

from tensorstore_ds.checks import check_listing, check_sizes, read_manifest
from tensorstore_ds.columns import RaggedColumn
from tensorstore_ds.errors import FormatError, Problem, SourceError
from tensorstore_ds.layout import ArrayGeometry, decode_index, shard_arrays
from tensorstore_ds.manifest import File, Manifest, shard_path
from tensorstore_ds.schema import ArrayField, TableField
from tensorstore_ds.store import Split, Store
from tensorstore_ds.writer import digest

#: Rows looked at together when values are checked.
_ROWS = 100_000


def verify(
    path: str | os.PathLike[str],
    *,
    threads: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> list[Problem]:
    """Check every file of a store: its size, its SHA-256, its index, and the values that training relies on.

    Args:
        path: of the store.
        threads: that read and hash; None for one a core.
        progress: called with (bytes read, bytes in all), from these threads, one at a time.

    Returns:
        Every problem found; none for a good store. What cannot be opened is a problem too, not an exception.
    """
    root = Path(path).absolute()
    try:
        manifest = read_manifest(root)
    except FormatError as error:
        return list(error.problems)
    problems = check_listing(manifest) + check_sizes(root, manifest) + list(_unlisted(root, manifest))
    if problems:
        return problems
    damaged = _check_digests(root, manifest, threads, progress)
    # Bytes that are not the writer's need no further judgement; what the writer itself got wrong is found here.
    return damaged or [*_check_indices(root, manifest), *_check_values(Store(root, manifest))]


def _unlisted(root: Path, manifest: Manifest) -> Iterator[Problem]:
    listed = {*manifest.all_files(), "zarr.json"}
    for directory, folders, names in os.walk(root):
        place = Path(directory)
        links = [name for name in folders if (place / name).is_symlink()]
        for name in [*names, *links]:
            path = (place / name).relative_to(root).as_posix()
            if path not in listed:
                yield Problem(path, "unlisted-file", "this file is not listed in the manifest. Remove it.")


def _check_digests(
    root: Path, manifest: Manifest, threads: int | None, progress: Callable[[int, int], None] | None
) -> list[Problem]:
    files = manifest.all_files()
    total = sum(file.size for file in files.values())
    done = 0
    lock = Lock()

    def advance(nbytes: int) -> None:
        nonlocal done
        with lock:
            done += nbytes
            if progress is not None:
                progress(done, total)

    def check(item: tuple[str, File]) -> Problem | None:
        path, file = item
        try:
            found = digest(root / path, advance)
        except OSError as error:
            return Problem(path, "missing-file", f"this file cannot be read ({error.strerror}).")
        if found == file.sha256:
            return None
        return Problem(path, "checksum", f"expected SHA-256 {file.sha256[:12]}..., found {found[:12]}....")

    with ThreadPoolExecutor(threads or os.cpu_count()) as pool:  # hashing releases the GIL
        # Large files first, so that no thread is left alone with one at the end.
        ordered = sorted(files.items(), key=lambda item: -item[1].size)
        return sorted((p for p in pool.map(check, ordered) if p is not None), key=lambda p: p.where)


def _check_indices(root: Path, manifest: Manifest) -> Iterator[Problem]:
    """Zarr readers trust the index at the end of a file; ours need none, so that only this looks at it."""
    for name, split in manifest.splits.items():
        for i, shard in enumerate(split.shards):
            for array, geometry in shard_arrays(manifest.fields, shard.rows, shard.lengths).items():
                path = f"{shard_path(name, i)}/{array}/{geometry.data_path}"
                if geometry.rows:
                    message = index_problem(root / path, geometry, manifest.layout == "memmap")
                    if message is not None:
                        yield Problem(path, "shard-index", message)


def index_problem(path: Path, geometry: ArrayGeometry, is_memmap: bool) -> str | None:
    """What is wrong with the index of a data file, or with the filling of its last chunk, if anything is."""
    size = path.stat().st_size
    if size < geometry.index_nbytes:
        return f"expected an index of {geometry.index_nbytes} bytes, found a file of {size}."
    with path.open("rb") as file:
        file.seek(size - geometry.index_nbytes)
        entries = decode_index(file.read())
        if entries is None:
            return "the index does not agree with its checksum."
        offsets, lengths = entries.T
        if (lengths > size).any():  # so that their sum cannot wrap around
            return f"expected chunks inside of {size} bytes, found a longer one."
        ends = np.cumsum(lengths)
        if (offsets != ends - lengths).any() or int(ends[-1]) != size - geometry.index_nbytes:
            return "expected chunks back to back from byte 0 to the index, found others."
        if not is_memmap:
            return None
        if (lengths != geometry.chunk_nbytes).any():
            return f"expected chunks of {geometry.chunk_nbytes} bytes, found others."
        file.seek(geometry.nbytes)
        if file.read(geometry.chunks * geometry.chunk_nbytes - geometry.nbytes).strip(b"\0"):
            return "expected the last chunk to be filled up with zeros, found other bytes."
    return None


# --- values -----------------------------------------------------------------------------------------------------


def _check_values(store: Store) -> Iterator[Problem]:
    for name in store:
        split = store[name]
        for field_name, field in split.fields.items():
            where = f"{name}/{field_name}"
            try:
                column = split[field_name]
                if isinstance(field, ArrayField):
                    for part in range(column.shards):
                        column.part(part)  # compares the metadata
                    if field.kind == "label":
                        yield from _check_range(where, np.asarray(column), len(field.classes), "labels")
                else:
                    _ = column.offsets
                    yield from _check_table(where, split, field_name, field)
            except (FormatError, SourceError) as error:
                yield from error.problems


def _check_table(where: str, split: Split, name: str, field: TableField) -> Iterator[Problem]:
    table = split[name]
    for value in table.values.values():
        for part in range(value.shards):
            value.part(part)
    if field.kind == "key":
        yield from _check_keys(where, table)
    if "labels" in field.values:
        yield from _check_range(where, np.asarray(table["labels"]), len(field.classes), "labels")
    if "boxes" in field.values:
        yield from _check_boxes(where, split, name)


def _check_range(where: str, labels: NDArray[np.int64], classes: int, what: str) -> Iterator[Problem]:
    wrong = np.flatnonzero((labels < 0) | (labels >= classes))
    if wrong.size:
        row = int(wrong[0])
        message = f"expected {what} in [0, {classes}), found {int(labels[row])} at {row} ({wrong.size} in all)."
        yield Problem(where, "label-range", message)


def _check_boxes(where: str, split: Split, name: str) -> Iterator[Problem]:
    table = split[name]
    for start in range(0, len(split), _ROWS):
        rows = np.arange(start, min(start + _ROWS, len(split)))
        taken = table.take(rows)
        sizes = np.repeat(_image_sizes(split, rows), np.diff(taken.offsets), axis=0)
        x1, y1, x2, y2 = taken["boxes"].T
        good = (x1 >= 0) & (x1 < x2) & (x2 <= sizes[:, 1]) & (y1 >= 0) & (y1 < y2) & (y2 <= sizes[:, 0])
        if not good.all():
            wrong = int(np.flatnonzero(~good)[0])
            row = start + int(np.searchsorted(taken.offsets, wrong, "right")) - 1
            box = ", ".join(f"{v:g}" for v in taken["boxes"][wrong])
            height, width = sizes[wrong]
            message = f"expected boxes with an area inside of {height}x{width}, found ({box}) in row {row}."
            yield Problem(where, "box-range", message)
            return


def _image_sizes(split: Split, rows: NDArray[np.int64]) -> NDArray[np.int64]:
    """(n, 2) height and width of the stored images, as they are shown; without bound where there are none."""
    image = split.fields.get("image")
    if image is None:
        return np.full((len(rows), 2), np.iinfo(np.int64).max)
    if isinstance(image, ArrayField):
        return np.tile(np.array(image.spec.shape[:2], np.int64), (len(rows), 1))
    from tensorstore_ds.encode import open_image, oriented_size  # Pillow, only for stores of encoded images

    names = [(int(row), f"{split.name}/image {row}") for row in rows]
    sizes = [oriented_size(open_image(split["image"][row], key=name), name) for row, name in names]
    return np.array(sizes, np.int64).reshape(-1, 2)


def _check_keys(where: str, table: RaggedColumn) -> Iterator[Problem]:
    offsets = table.offsets
    digests = bytearray()  # 16 bytes a key, so that millions of them fit in memory
    for start in range(0, len(table), _ROWS):
        ends = offsets[start : start + _ROWS + 1].tolist()
        data = table["bytes"][ends[0] : ends[-1]].tobytes()
        for row, (begin, end) in enumerate(pairwise(ends), start):
            key = data[begin - ends[0] : end - ends[0]]
            try:
                key.decode("utf-8")
            except UnicodeDecodeError:
                yield Problem(where, "key-text", f"expected UTF-8, found other bytes at row {row}.")
                return
            digests += hashlib.blake2b(key, digest_size=16).digest()
    halves = np.frombuffer(bytes(digests), np.uint64).reshape(-1, 2)
    if len(np.unique(halves, axis=0)) != len(halves):
        yield Problem(where, "key-text", "expected keys that differ, found one twice.")
