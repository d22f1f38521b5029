"""What must hold before a store's bytes are trusted; opening a store and verifying it both ask here.

A file shorter than its map kills the process that reads it (SIGBUS), so that sizes are compared when a store is opened
and again when a file is mapped. ``formats/v1/spec.md`` says what is checked when.
"""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from tensorstore_ds import manifest as manifests
from tensorstore_ds.errors import FormatError, Problem
from tensorstore_ds.layout import ArrayGeometry, shard_files
from tensorstore_ds.manifest import Manifest, shard_path
from tensorstore_ds.schema import Layout

#: Refuse a root ``zarr.json`` larger than this before reading it, and an array's larger than the second.
MANIFEST_MAX_NBYTES = 256 * 1024**2
METADATA_MAX_NBYTES = 1024**2


def read_manifest(root: Path) -> Manifest:
    """The manifest of the store at `root`; raises `FormatError`."""
    try:
        status = os.lstat(root / "zarr.json")
        if stat.S_ISLNK(status.st_mode):
            raise FormatError(Problem("zarr.json", "symlink", "expected a file, found a symbolic link."))
        if not stat.S_ISREG(status.st_mode):  # a pipe would be waited for
            raise FormatError(Problem(str(root), "not-a-store", "expected a file zarr.json, found something else."))
        with open(root / "zarr.json", "rb") as file:
            size = os.fstat(file.fileno()).st_size
            if size > MANIFEST_MAX_NBYTES:
                raise FormatError(
                    Problem(
                        "zarr.json", "manifest-json", f"expected at most {MANIFEST_MAX_NBYTES} bytes, found {size}."
                    )
                )
            text = file.read()
    except OSError as error:
        what = "there is no such store" if not root.exists() else f"this is not a store ({error.strerror}: zarr.json)"
        raise FormatError(Problem(str(root), "not-a-store", f"{what}.")) from error
    data = _load_json("zarr.json", text)
    attributes = data.get("attributes")
    if data.get("zarr_format") != 3 or data.get("node_type") != "group" or not isinstance(attributes, dict):
        raise FormatError(
            Problem("zarr.json", "not-a-store", "expected the metadata of a Zarr v3 group, found other JSON.")
        )
    if "tsds" not in attributes:
        raise FormatError(
            Problem(str(root), "not-a-store", "a Zarr group, but not of tensorstore-ds: no attribute tsds.")
        )
    return manifests.parse(attributes["tsds"])


def check_listing(manifest: Manifest) -> list[Problem]:
    """Whether every shard lists just the files that its rows and lengths imply, each of the right size."""
    problems = []
    for name, split in manifest.splits.items():
        for i, shard in enumerate(split.shards):
            where = shard_path(name, i)
            expected = shard_files(manifest.fields, shard.rows, shard.lengths)
            for path in sorted(expected.keys() ^ shard.files.keys()):
                what = "is not listed" if path in expected else "is listed but does not belong to this shard"
                problems.append(Problem(f"{where}/{path}", "manifest", f"this file {what} in the manifest."))
            for path in expected.keys() & shard.files.keys():
                size = expected[path]
                if manifest.layout == "memmap" and size is not None and shard.files[path].size != size:
                    message = f"expected a listed size of {size}, found {shard.files[path].size}."
                    problems.append(Problem(f"{where}/{path}", "file-size", message))
    return problems


def check_sizes(root: Path, manifest: Manifest) -> list[Problem]:
    """Whether every listed file is a regular file of the listed size, with no symlink on the way to it."""
    problems = []
    directories = {parent for path in manifest.all_files() for parent in Path(path).parents} - {Path()}
    for directory in sorted(directories):
        if (root / directory).is_symlink():
            problems.append(Problem(str(directory), "symlink", "expected a directory, found a symbolic link."))
    for path, file in manifest.all_files().items():
        try:
            status = os.lstat(root / path)
        except OSError as error:
            problems.append(Problem(path, "missing-file", f"this file cannot be found ({error.strerror})."))
            continue
        if stat.S_ISLNK(status.st_mode):
            problems.append(Problem(path, "symlink", "expected a file, found a symbolic link."))
        elif not stat.S_ISREG(status.st_mode):
            problems.append(Problem(path, "missing-file", "expected a file, found something else."))
        elif status.st_size != file.size:
            problems.append(Problem(path, "file-size", f"expected {file.size} bytes, found {status.st_size}."))
    return problems


def check_metadata(root: Path, directory: str, geometry: ArrayGeometry, layout: Layout) -> None:
    """Whether an array's ``zarr.json`` says what the manifest implies; raises `FormatError`."""
    name = f"{directory}/zarr.json"
    with open_file(root, name) as file:
        if os.fstat(file.fileno()).st_size > METADATA_MAX_NBYTES:
            raise FormatError(Problem(name, "array-metadata", f"expected at most {METADATA_MAX_NBYTES} bytes."))
        found = _load_json(name, file.read(), "array-metadata")
    expected = geometry.metadata(layout)
    for member, value in expected.items():
        if member != "attributes" and _without_level(found.get(member)) != _without_level(value):
            message = f"expected {member} {json.dumps(value)}, found {json.dumps(found.get(member))}."
            raise FormatError(Problem(name, "array-metadata", message))


def offsets_problem(offsets: NDArray[np.int64], length: int) -> str | None:
    """What is wrong with a shard's offsets into `length` values, if anything is."""
    if int(offsets[0]) != 0:
        return f"expected offsets from 0, found {int(offsets[0])} first."
    if int(offsets[-1]) != length:
        return f"expected offsets to end at {length}, found {int(offsets[-1])}."
    falls = np.flatnonzero(offsets[1:] < offsets[:-1])
    return f"expected offsets that never fall, found a fall after row {int(falls[0])}." if falls.size else None


def _without_level(value: Any) -> Any:
    """Metadata without the compression level, which a writer may choose."""
    if isinstance(value, dict):
        return {k: _without_level(v) for k, v in value.items() if k != "level"}
    return [_without_level(v) for v in value] if isinstance(value, list) else value


def open_file(root: Path, name: str) -> IO[bytes]:
    """Open a file of the store for reading; a symlink in its place is refused."""
    try:
        return open(root / name, "rb", opener=_open_no_follow)
    except OSError as error:
        reason = "symlink" if (root / name).is_symlink() else "missing-file"
        raise FormatError(Problem(name, reason, f"this file cannot be opened ({error.strerror}).")) from error


def _open_no_follow(path: str, flags: int) -> int:
    return os.open(path, flags | getattr(os, "O_NOFOLLOW", 0))


def _load_json(name: str, text: bytes, reason: str = "manifest-json") -> dict[str, Any]:
    def refuse(constant: str) -> float:
        raise ValueError(f"{constant} is not JSON")

    try:
        value = json.loads(text.decode("utf-8"), parse_constant=refuse)
    except (ValueError, RecursionError) as error:
        raise FormatError(Problem(name, reason, f"expected JSON, found something else ({error}).")) from error
    if not isinstance(value, dict):
        raise FormatError(Problem(name, reason, f"expected a JSON object, found a {type(value).__name__}."))
    return value
