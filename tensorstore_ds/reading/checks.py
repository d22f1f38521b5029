"""What must hold before a store's bytes are trusted. Opening a store and verifying it both use these checks.

A file shorter than its map kills the process that reads it (SIGBUS), so that sizes are compared when a store is opened
and again when a file is mapped. ``formats/v1/spec.md`` says what is checked when.
"""

from __future__ import annotations

import errno
import functools
import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tensorstore_ds.errors import FormatError, Problem, one_line
from tensorstore_ds.format.arrays import BEYOND, GROUP, ZSTD_LEVEL, ArrayGeometry, dump_json, shard_files
from tensorstore_ds.format.manifest import CONVENTION, File, Manifest, Shard
from tensorstore_ds.format.manifest_parser import is_safe_path
from tensorstore_ds.format.root import dump_listing
from tensorstore_ds.format.schema import SIGNATURE, Layout
from tensorstore_ds.format.strict_json import load_object, same_json
from tensorstore_ds.reading.store_files import StoreFiles

#: Refuse an array's or a group's ``zarr.json`` larger than this before reading it.
METADATA_MAX_NBYTES = 1024**2
#: Largest size of a signature.
SIGNATURE_MAX_NBYTES = 1024**2
#: Number of offsets checked at a time.
_OFFSETS = 1_000_000
_ZSTD_LEVELS = range(1, 23)
_ZEROS = "0" * 64
_LISTED = re.compile(rb'"sha256": "[0-9a-f]{64}"')
_NOT_LISTED = b'"sha256": "%b"' % _ZEROS.encode()
_GROUP_NBYTES = len(dump_json(GROUP))


def check_root_files(manifest: Manifest) -> list[Problem]:
    """Whether the manifest lists just the files that lie above its shards."""
    groups = {f"{name}/zarr.json" for name in manifest.splits}
    problems = [
        Problem(path, "manifest", "this file is not listed in the manifest.")
        for path in sorted(groups - manifest.files.keys())
    ]
    for path in sorted(manifest.files.keys() - groups):
        if "/" in path or path in ("zarr.json", SIGNATURE):
            problems.append(Problem(path, "manifest", "this file is listed but does not belong to the root."))
    return problems


def check_data_files(files: StoreFiles) -> list[Problem]:
    """Whether the files above the shards and all data files exist, with a size that their array can have."""
    manifest = files.manifest
    problems = check_sizes(files, {path: file.size for path, file in manifest.files.items()})
    for split in manifest.splits:
        for i, file, _, least, most in data_files(manifest, split, manifest.fields):
            problems += size_problems(files, f"{manifest.shard_path(split, i)}/{file}", least, most)
    return problems


def data_files(manifest: Manifest, split: str, names: Iterable[str]) -> Iterator[tuple[int, str, Layout, int, int]]:
    """Yield the shard, the path in it, the layout, and the least and most bytes of the files of these fields."""
    known: dict[tuple[str, int], tuple[str, Layout, int, int]] = {}  # most of thousands of shards have as many rows
    fields = [(name, manifest.fields[name]) for name in names]
    arrays = [(n, f, path, f"{n}/{path}" if path else n) for n, f in fields for path in f.arrays]
    for i, shard in enumerate(manifest.splits[split].shards):
        for name, field, path, array in arrays:
            rows = field.array_rows(name, path, shard.rows, shard.lengths)
            if rows and (array, rows) not in known:
                geometry = manifest.arrays(shard)[array]
                known[array, rows] = f"{array}/{geometry.data_path}", geometry.layout, *geometry.file_nbytes
            if rows:
                yield i, *known[array, rows]


def check_shard(files: StoreFiles, split: str, index: int, listing: Mapping[str, File]) -> list[Problem]:
    """Whether a shard lists just the files that follow from the manifest, and has them in the size that is listed."""
    listed = {f"{files.manifest.shard_path(split, index)}/{path}": file.size for path, file in listing.items()}
    return check_listing(files.manifest, split, index, listing) or check_sizes(files, listed)


class Listings:
    """Reads the sizes of a shard's files from its ``zarr.json``, and checks all that `check_shard` checks.

    A list that is byte for byte as this library writes it, except for the digests, is not parsed. This halves the time
    of a shard, and a split may have 10,000.
    """

    def __init__(self, files: StoreFiles, split: str) -> None:
        self._files, self._split = files, split
        self._formats: dict[tuple[str, ...], tuple[list[int], bytes]] = {}  # of lists, by the paths in them

    def sizes(self, index: int) -> Mapping[str, int]:
        """Sizes of all files of a shard, by path in the shard, as they are. Raises `FormatError`."""
        files, manifest = self._files, self._files.manifest
        directory, shard = manifest.shard_path(self._split, index), manifest.splits[self._split].shards[index]
        sizes = self.expected(files.listing_bytes(self._split, index), shard)
        if sizes is None:
            listing = files.listing(self._split, index)
            problems = check_shard(files, self._split, index, listing)
            sizes = {path: file.size for path, file in listing.items()}
        else:
            problems = check_sizes(files, {f"{directory}/{path}": size for path, size in sizes.items()})
        if problems:
            raise FormatError(problems)
        return sizes

    def expected(self, data: bytes, shard: Shard) -> dict[str, int] | None:
        """The sizes that follow from the manifest, or None if the list must be parsed."""
        manifest = self._files.manifest
        if manifest.unreadable or hashlib.sha256(data).hexdigest() != shard.sha256:
            return None
        sizes = {f"{group}/zarr.json": _GROUP_NBYTES for name, f in manifest.fields.items() for group in f.groups(name)}
        for path, geometry in manifest.arrays(shard).items():
            metadata_nbytes, least, most = _file_nbytes(geometry)
            if least != most:
                return None
            sizes[f"{path}/zarr.json"] = metadata_nbytes
            if geometry.rows:
                sizes[f"{path}/{geometry.data_path}"] = least
        if any(str(BEYOND) in path for path in sizes):  # it stands for each size below
            return None
        if (paths := tuple(sizes)) not in self._formats:
            order = sorted(range(len(paths)), key=lambda i: paths[i].split("/"))
            listing = dump_listing({paths[i]: File(BEYOND, _ZEROS) for i in order})
            self._formats[paths] = order, listing.replace(str(BEYOND).encode(), b"%d")
        order, text = self._formats[paths]
        found = list(sizes.values())
        is_ours = _LISTED.sub(_NOT_LISTED, data) == text % tuple(found[i] for i in order)
        return sizes if is_ours and len(data) + sum(found) == shard.nbytes else None


@functools.lru_cache(4096)
def _file_nbytes(geometry: ArrayGeometry) -> tuple[int, int, int]:
    """Bytes of an array's ``zarr.json`` as this library writes it, and the least and most of its data file."""
    return len(geometry.metadata_bytes()), *geometry.file_nbytes


def check_listing(manifest: Manifest, split: str, index: int, listing: Mapping[str, File]) -> list[Problem]:
    """Whether a shard lists just the files that follow from the manifest, in sizes that they can have."""
    directory, shard = manifest.shard_path(split, index), manifest.splits[split].shards[index]
    expected = shard_files(manifest.fields, manifest.arrays(shard))
    problems = []
    known = {path for path in listing if path.split("/")[0] not in manifest.unreadable}
    for path in sorted(expected.keys() ^ known):
        what = "is not listed" if path in expected else "is listed but does not belong to this shard"
        problems.append(Problem(f"{directory}/{path}", "manifest", f"this file {what} in {directory}/zarr.json."))
    for path in expected.keys() & known:
        geometry, size = expected[path], listing[path].size
        least, most = (0, size) if geometry is None else geometry.file_nbytes
        if not least <= size <= most:
            wanted = str(least) if least == most else f"{least} to {most} (by what Zstandard can do)"
            message = f"expected a listed size of {wanted}, found {size}."
            problems.append(Problem(f"{directory}/{path}", "file-size", message))
    return problems


def check_sizes(files: StoreFiles, sizes: Mapping[str, int]) -> list[Problem]:
    """Whether every file is a regular file of its size, with no symlink on the way to it."""
    problems = []
    for directory in sorted(_directories(sizes)):
        if files.is_link(directory):
            problems.append(Problem(directory, "symlink", "expected a directory, found a symbolic link."))
    for path, size in sizes.items():
        problems += size_problems(files, path, size, size)
    return problems


def size_problems(files: StoreFiles, path: str, least: int, most: int) -> list[Problem]:
    """What is wrong with a file that should have between `least` and `most` bytes, found without opening it.

    Raises `FormatError` if the disk fails, which says nothing of the file.
    """
    try:
        size = files.size(path)
    except FormatError as error:
        if isinstance(error.__cause__, OSError) and error.__cause__.errno in (errno.EIO, errno.ESTALE):
            raise
        return list(error.problems)
    if not least <= size <= most:
        wanted = f"{least}" if least == most else f"{least} to {most}"
        return [Problem(path, "file-size", f"expected {wanted} bytes, found {size}.")]
    return []


def _directories(paths: Iterable[str]) -> set[str]:
    """All directories on the way to these files."""
    found: set[str] = set()
    for path in paths:
        while (path := path.rpartition("/")[0]) and path not in found:
            found.add(path)
    return found


def check_metadata(files: StoreFiles, directory: str, geometry: ArrayGeometry) -> None:
    """Whether an array's ``zarr.json`` says what the manifest implies; raises `FormatError`."""
    name = f"{directory}/zarr.json"
    text = _read_metadata(files, name, "array-metadata")
    if text == geometry.metadata_bytes():  # as this library writes it: nothing is left to compare
        return
    found = _with_our_level(_parsed(text, name, "array-metadata"))
    expected = geometry.metadata()
    fill = found.get("fill_value")
    if (
        geometry.spec.dtype.startswith("float")
        and isinstance(fill, int | float)
        and not isinstance(fill, bool)
        and fill == 0
    ):
        expected["fill_value"] = fill  # 0, 0.0 or -0.0: no chunk is ever missing
    if "dimension_names" in found:
        names = found.pop("dimension_names")
        if not isinstance(names, list) or len(names) != len(geometry.shape) or not all(map(_is_label, names)):
            message = f"expected dimension_names of {len(geometry.shape)} texts or nulls, found others."
            raise FormatError(Problem(name, "array-metadata", message))
    _compare(name, "array-metadata", found, expected)


def check_group(files: StoreFiles, directory: str) -> None:
    """Whether a group's ``zarr.json`` is one; raises `FormatError`."""
    name = f"{directory}/zarr.json"
    _compare(name, "group-metadata", _load_metadata(files, name, "group-metadata"), GROUP)


def check_root_group(files: StoreFiles) -> None:
    """Whether the root's ``zarr.json`` is a group that names the convention; raises `FormatError`."""
    with files.open("zarr.json") as file:
        found = load_object(file.read())
    if _is_ignorable(found.get("consolidated_metadata")):
        _check_consolidated(files, found.pop("consolidated_metadata"))
    _compare("zarr.json", "group-metadata", found, GROUP)
    conventions = found["attributes"].get("zarr_conventions")
    if not isinstance(conventions, list) or CONVENTION not in conventions:
        message = f"expected {CONVENTION['name']} among zarr_conventions, found other conventions or none."
        raise FormatError(Problem("zarr.json", "group-metadata", message))


def _is_ignorable(value: object) -> bool:
    """Whether a Zarr reader that does not know a member with this value may ignore it."""
    return isinstance(value, dict) and value.get("must_understand") is False


def _check_consolidated(files: StoreFiles, consolidated: Mapping[str, Any]) -> None:
    """Whether metadata that the root repeats, for Zarr readers that fetch them at once, are as in their files."""
    copies = consolidated.get("metadata")
    for path, copy in copies.items() if isinstance(copies, dict) else ():
        name = f"{path}/zarr.json"
        found = _load_metadata(files, name, "group-metadata") if is_safe_path(name) else None
        if not same_json(copy, found):
            message = f"expected in consolidated_metadata what {one_line(name)[:80]} has, found other metadata."
            raise FormatError(Problem("zarr.json", "group-metadata", message))


def offsets_problem(offsets: NDArray[np.int64], length: int) -> str | None:
    """What is wrong with a shard's offsets into `length` values, or None."""
    if int(offsets[0]) != 0:
        return f"expected offsets from 0, found {int(offsets[0])} first."
    if int(offsets[-1]) != length:
        return f"expected offsets to end at {length}, found {int(offsets[-1])}."
    for start in range(0, len(offsets) - 1, _OFFSETS):
        part = offsets[start : start + _OFFSETS + 1]
        falls = np.flatnonzero(part[1:] < part[:-1])
        if falls.size:
            return f"expected offsets that never fall, found a fall after row {start + int(falls[0])}."
    return None


def _load_metadata(files: StoreFiles, name: str, reason: str) -> dict[str, Any]:
    return _parsed(_read_metadata(files, name, reason), name, reason)


def _read_metadata(files: StoreFiles, name: str, reason: str) -> bytes:
    with files.open(name) as file:
        text = file.read(METADATA_MAX_NBYTES + 1)
    if len(text) > METADATA_MAX_NBYTES:
        raise FormatError(Problem(name, reason, f"expected at most {METADATA_MAX_NBYTES} bytes."))
    return text


def _parsed(text: bytes, name: str, reason: str) -> dict[str, Any]:
    try:
        return load_object(text)
    except (ValueError, RecursionError) as error:
        raise FormatError(Problem(name, reason, f"expected JSON, found other text ({error}).")) from error


def _compare(name: str, reason: str, found: Mapping[str, Any], expected: Mapping[str, Any]) -> None:
    """Raise `FormatError` unless metadata are as expected, except for the attributes, to which everybody may add."""
    if isinstance(found.get("attributes"), dict):
        expected = {**expected, "attributes": found["attributes"]}
    for member in sorted(found.keys() - expected.keys()):
        if reason != "array-metadata" or not _is_ignorable(found[member]):
            raise FormatError(Problem(name, reason, f"expected no member {member[:40]}, found one."))
    for member, value in expected.items():
        if member not in found or not same_json(found[member], value):
            there = json.dumps(found[member])[:200] if member in found else "none"
            raise FormatError(Problem(name, reason, f"expected {member} {json.dumps(value)}, found {there}."))


def _is_label(value: object) -> bool:
    return value is None or isinstance(value, str)


def _with_our_level(metadata: dict[str, Any]) -> dict[str, Any]:
    """Metadata with the level of compression that we would write, where it is one that a writer may choose."""
    try:
        configuration = metadata["codecs"][0]["configuration"]["codecs"][1]["configuration"]
        if type(configuration["level"]) is int and configuration["level"] in _ZSTD_LEVELS:
            configuration["level"] = ZSTD_LEVEL
    except (KeyError, IndexError, TypeError):
        pass  # no level there: compared as it is
    return metadata
