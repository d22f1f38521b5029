"""Check every byte of a store against its manifest."""

from __future__ import annotations

import functools
import hashlib
import itertools
import os
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from tensorstore_ds.errors import FormatError, Problem, SourceError
from tensorstore_ds.format.arrays import CRC_NBYTES, ArrayGeometry
from tensorstore_ds.format.chunks import chunk_crcs
from tensorstore_ds.format.kinds import EncodedImageField
from tensorstore_ds.format.kinds.base import Finding, image_of, pieces
from tensorstore_ds.format.manifest import File, shard_path
from tensorstore_ds.format.schema import SIGNATURE
from tensorstore_ds.machine import check_resource, map_in_threads, threads_within
from tensorstore_ds.progress import adding, notebook_bytes
from tensorstore_ds.reading.checks import (
    SIGNATURE_MAX_NBYTES,
    check_group,
    check_root_files,
    check_root_group,
    check_shard,
    check_sizes,
    size_problems,
)
from tensorstore_ds.reading.columns import Column, RaggedColumn, array_columns
from tensorstore_ds.reading.packed_files import find_files
from tensorstore_ds.reading.store import Split, Store, open as open_store
from tensorstore_ds.reading.store_files import StoreFiles, damage, data_files_of, shards_of
from tensorstore_ds.reading.zarr_part import ZarrPart, read_edges
from tensorstore_ds.regular_files import tidied
from tensorstore_ds.remote.location import is_url

T = TypeVar("T")

#: Number of bytes read at a time.
_READ_NBYTES = 8 * 1024**2
#: A file of a shard or a list of skipped samples, as an interrupted command leaves some that no root lists.
INTERRUPTED = re.compile(r"[^/]+/[0-9]{5}(\.partial)?/|skipped(\.jsonl|-rest)")
_NOT_ZERO = "expected the last chunk to be filled up with zeros, found other bytes."


def verify(
    path: str | os.PathLike[str],
    *,
    sha256: str | None = None,
    threads: int | None = None,
    progress: Callable[[int, int], None] | None = None,
    cache_dir: str | os.PathLike[str] | None = None,
) -> list[Problem]:
    """Check every file of a store: its size, its SHA-256, its chunks, and the values that training relies on.

    >>> tsds.verify("photos.tsds")  # no problem
    []
    >>> with open("photos.tsds/val/00000/image/c/0/0/0/0", "r+b") as file:
    ...     length = file.write(b"damage")
    >>> [(problem.where, problem.reason) for problem in tsds.verify("photos.tsds")]
    [('val/00000/image/c/0/0/0/0', 'checksum')]

    Args:
        path: path of the store, or its URL. Files that are not on this disk are downloaded first.
        sha256: the expected `Store.sha256` or `Store.content_sha256`. None accepts any store.
        threads: number of threads that read and hash. None takes one for each core, and fewer to unpack chunks that are
            large for the memory.
        progress: function that is called with (bytes read, total bytes) from these threads, one call at a time. None
            shows a bar in a notebook.
        cache_dir: folder of stores by URL, as in `open`.

    Returns:
        A list of every problem that was found, empty for a good store. A store that cannot be opened is also a problem
        in this list, not an exception.

    Raises:
        RemoteError, OutputError: for a store by URL, see `tensorstore_ds.open`.
    """
    told = progress or notebook_bytes("Checking")
    try:
        if is_url(path):
            store = open_store(path, sha256=sha256, cache_dir=cache_dir)
            store.fetch(told)
            path = store.path
        files = find_files(tidied(path), sha256)
        listed, problems = listed_files(files)
    except FormatError as error:
        return list(error.problems)
    if problems:
        return problems
    damaged = _check_digests(files, listed, threads, told)
    # Only bytes of the writer are checked further, for errors of the writer itself.
    return damaged or [*_check_groups(files), *_check_chunks(files, threads), *_check_values(Store(files))]


def find_damage(path: Path, progress: Callable[[int, int], None]) -> list[Problem]:
    """Verify a store on this disk by the checksums of the chunks instead of the SHA-256 of data files.

    This is several times faster and finds damage equally well, but not data that were changed with their checksums.
    """
    try:
        files = find_files(path, None)
        listed, problems = listed_files(files)
    except FormatError as error:
        return list(error.problems)
    if problems:
        return problems
    data = {name for name, _ in _data_files(files)}
    damaged = _check_digests(files, {name: file for name, file in listed.items() if name not in data}, None, progress)
    damaged = damaged or _check_chunks(files, None, progress)
    return damaged or [*_check_groups(files), *_check_values(Store(files))]


def require_whole(store: Store, advice: str, progress: Callable[[int, int], None] = lambda done, total: None) -> None:
    """Raise `FormatError`, with `advice`, for what `find_damage` finds. By URL, each download is checked."""
    if not store.is_remote and (problems := find_damage(store.path, progress)):
        raise damage(problems, advice)


def require_whole_shards(
    store: Store,
    shards: Mapping[tuple[str, int], Collection[str]],
    advice: str,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> None:
    """Raise `FormatError`, with `advice`, if a file of these fields, by (split, shard), fails its SHA-256."""
    files = find_files(store.path, store.sha256)
    listed, problems = dict[str, File](), list[Problem]()
    for (split, index), names in shards.items():
        listing = files.listing(split, index)  # has the digest that the manifest lists
        problems += check_shard(files, split, index, listing)
        own = {path: file for path, file in listing.items() if path.partition("/")[0] in names}
        listed |= {f"{files.manifest.shard_path(split, index)}/{path}": file for path, file in own.items()}
    if problems := problems or _check_digests(files, listed, None, progress):
        raise damage(problems, advice)


def listed_files(files: StoreFiles) -> tuple[dict[str, File], list[Problem]]:
    """Every file but the root's ``zarr.json``, by path, and the problems of the lists and of unlisted files."""
    manifest = files.manifest
    problems = check_root_files(manifest) + check_sizes(files, {n: file.size for n, file in manifest.files.items()})
    listed, unknown = dict(manifest.files), []
    for split, index, directory, shard in shards_of(manifest):
        try:
            listing = files.listing(split, index)
        except FormatError as error:
            problems += error.problems
            unknown.append(f"{directory}/")  # which files belong to it is not known
            continue
        problems += check_shard(files, split, index, listing)
        listed |= {f"{directory}/{path}": file for path, file in listing.items()}
        own_nbytes = shard.nbytes - sum(file.size for file in listing.values())
        listed[f"{directory}/zarr.json"] = File(own_nbytes, shard.sha256)
    replaced = {shard_path(name, number) for name, entry in manifest.splits.items() for number in entry.replaced}
    for path in files.names():
        if path == SIGNATURE:
            problems += size_problems(files, path, 0, SIGNATURE_MAX_NBYTES)
            continue
        if "/".join(path.split("/")[:2]) in replaced:  # it stays for readers that have the store open
            continue
        if path not in listed and path != "zarr.json" and not path.startswith(tuple(unknown)):
            advice = (
                "Run the tsds append, update, add, erase or drop again that was interrupted, or remove it."
                if INTERRUPTED.match(path)
                else "Remove it."
            )
            problems.append(Problem(path, "unlisted-file", f"this file is not listed. {advice}"))
    return listed, problems


def _check_digests(
    files: StoreFiles, listed: Mapping[str, File], threads: int | None, progress: Callable[[int, int], None]
) -> list[Problem]:
    advance = adding(sum(file.size for file in listed.values()), progress)

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
            check_resource(path, error)
            return Problem(path, "missing-file", f"this file cannot be read ({error.strerror}).")
        found = sha256.hexdigest()
        if found == file.sha256:
            return None
        return Problem(path, "checksum", f"expected SHA-256 {file.sha256[:12]}..., found {found[:12]}....")

    # Large files first, so that no thread is left alone with one at the end.
    ordered = sorted(listed.items(), key=lambda item: -item[1].size)
    return sorted(_problems(check, ordered, threads), key=lambda p: p.where)


def _problems(check: Callable[[T], Problem | None], items: Iterable[T], threads: int | None) -> list[Problem]:
    """Problems that `check` finds in each item. Threads help, because hashing and decompressing release the GIL."""
    return [problem for problem in map_in_threads(check, items, threads) if problem is not None]


def _check_groups(files: StoreFiles) -> Iterator[Problem]:
    manifest = files.manifest
    tables = ["", *(f"/{table}" for name, field in manifest.fields.items() for table in field.groups(name))]
    shards = (folder + table for _, _, folder, _ in shards_of(manifest) for table in tables)
    for group in ("", *manifest.splits, *shards):
        try:
            check_group(files, group) if group else check_root_group(files)
        except FormatError as error:
            yield from error.problems


# --- chunks -----------------------------------------------------------------------------------------------------


def _data_files(files: StoreFiles) -> list[tuple[str, ArrayGeometry]]:
    return [
        (f"{folder}/{path}", geometry)
        for _, _, folder, shard in shards_of(files.manifest)
        for path, geometry in data_files_of(files.manifest, shard).items()
    ]


def _check_chunks(
    files: StoreFiles, threads: int | None, progress: Callable[[int, int], None] = lambda done, total: None
) -> list[Problem]:
    """Check every chunk of every array: other Zarr readers read the layout memmap by chunks, we read one map."""
    arrays = sorted(_data_files(files), key=lambda item: -item[1].nbytes)  # no thread is left with a large one
    advance = adding(sum(geometry.nbytes for _, geometry in arrays), progress)

    def check(item: tuple[str, ArrayGeometry]) -> Problem | None:
        problem = _chunk_problem(files, *item)
        advance(item[1].nbytes)
        return problem

    largest = max((geometry.chunk_nbytes for _, geometry in arrays if geometry.layout == "zarr"), default=0)
    width = threads or threads_within(2 * largest)  # a chunk is read, and unpacked
    return sorted(_problems(check, arrays, width), key=lambda problem: problem.where)


def _chunk_problem(files: StoreFiles, name: str, geometry: ArrayGeometry) -> Problem | None:
    """What is wrong with a data file: its index, the checksums, or the chunks, decompressed one at a time."""
    try:
        with files.open(name) as file:
            edges = read_edges(file, name, geometry)
            end = int(edges[-1])
            file.seek(end)
            stored = file.read(geometry.chunks * CRC_NBYTES)
            file.seek(0)
            if chunk_crcs(file, np.diff(edges).tolist()) != stored:
                return Problem(name, "shard-index", "the chunks do not agree with their checksums.")
            if geometry.layout == "memmap":
                file.seek(geometry.nbytes)
                pieces = range(end - geometry.nbytes, 0, -_READ_NBYTES)
                is_filled = not any(file.read(min(left, _READ_NBYTES)).strip(b"\0") for left in pieces)
            else:
                part = ZarrPart(name, geometry, lambda: files.open(name))
                for i in range(geometry.chunks):
                    chunk = part.chunk(file, i)
                rows = geometry.rows - (geometry.chunks - 1) * geometry.chunk_rows
                is_filled = not chunk[rows:].any()
    except FormatError as error:
        return error.problems[0]
    return None if is_filled else Problem(name, "shard-index", _NOT_ZERO)


# --- values -----------------------------------------------------------------------------------------------------


def _check_values(store: Store) -> Iterator[Problem]:
    for name in store:
        split = store[name]
        for field_name, field in split.fields.items():
            where = f"{name}/{field_name}"
            try:
                sizes = functools.partial(image_sizes, split, image_of(field))
                stored = split[field_name]
                if isinstance(stored, RaggedColumn):
                    for each in (stored, *stored.lists.values(), *stored.per_row.values()):
                        _ = each.offsets if isinstance(each, RaggedColumn) else None
                findings = field.check(stored, sizes)
                if isinstance(field, EncodedImageField):  # the format alone cannot decode files
                    findings = itertools.chain(findings, _check_files(split, field_name, field))
                for column in array_columns(field_name, stored).values():
                    for part in range(column.shards):
                        column.part(part)  # compares the metadata; values are looked at when findings are asked for
                yield from (Problem(where, reason, message) for reason, message in findings)
            except (FormatError, SourceError) as error:
                yield from error.problems


def image_sizes(split: Split, name: str, rows: NDArray[np.int64]) -> NDArray[np.float64]:
    """(n, 2) height and width of the stored images as shown; infinite where there is no image."""
    image = split.fields.get(name)
    if image is None or not image.encoding:
        return np.full((len(rows), 2), np.inf)
    if image.one_shape is not None:
        return np.tile(np.array(image.one_shape[:2], np.float64), (len(rows), 1))
    shapes = cast(Column, split.table(name).per_row["shape"])
    return shapes.take(rows)[:, :2].astype(np.float64)


def _check_files(split: Split, name: str, field: EncodedImageField) -> Iterator[Finding]:
    """Whether stored image files, above all their headers, match the stored facts about them."""
    from tensorstore_ds.imaging.jpeg import wrong_entries  # Pillow, only where it is needed
    from tensorstore_ds.reading.stored_images import check_file, stored_shape

    table = split.table(name)
    lists = table.per_row.get("entries")
    for start, shapes in pieces(cast(Column, table.per_row["shape"])):
        for row, stored in enumerate(shapes.tolist(), start):
            data, key = table[row], f"{split.name}/{name} {row}"
            check_file(data, field.encoding, key=key)
            found = stored_shape(data, key=key)
            if stored != list(found) or stored[0] * stored[1] > field.max_pixels:
                limit = f" of at most {field.max_pixels} pixels"
                yield "image-shape", f"expected {found} in the file of row {row}{limit}, found {tuple(stored)}."
                return
            entries = lists[row] if isinstance(lists, RaggedColumn) else None
            if entries is not None and len(entries) and (wrong := wrong_entries(data, entries)):
                yield "image-entries", f"{wrong}, in row {row}."
                return
