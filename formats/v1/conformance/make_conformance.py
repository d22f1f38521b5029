"""Write the conformance stores and ``cases.json``: ``python make_conformance.py OUT``.

Standard library and NumPy only; the same bytes on every machine.
"""

from __future__ import annotations

import copy
import hashlib
import json
import sys
from collections.abc import Mapping
from pathlib import Path

from invalid_stores import Case, cases
from plain_store import (
    Files,
    Json,
    Link,
    Store,
    content_digest,
    contents,
    dump_json,
    manifest,
    root,
    sealed,
    shard_folders,
    shard_groups,
)
from valid_stores import add_members, add_metadata, stores


def valid_files(store: Store, *, is_extended: bool = False) -> Files:
    """All files of a valid store.

    Args:
        is_extended: with metadata that Zarr allows to ignore.
    """
    files, members = contents(store), {}
    if is_extended:
        add_metadata(metadata := parsed(files))
        files |= {path: dump_json(value) for path, value in metadata.items()}
    files |= shard_groups(store, files)
    if is_extended:
        copies = {path.removesuffix("/zarr.json"): value for path, value in parsed(files).items()}
        members = {"consolidated_metadata": {"kind": "inline", "must_understand": False, "metadata": copies}}
    listing = manifest(store, files)
    if listing["format_version"] != "1.0":
        add_members(listing)
    return {**files, **store.unlisted, "zarr.json": sealed(dump_json({**root(listing), **members}))}


def parsed(files: Mapping[str, bytes]) -> dict[str, Json]:
    """Every ``zarr.json`` among files."""
    return {path: json.loads(data) for path, data in files.items() if path.endswith("zarr.json")}


def invalid_files(case: Case) -> Files:
    """All files of an invalid store."""
    files: Files = {**contents(case.store)}
    case.files(files)
    files |= shard_groups(case.store, plain(files))
    case.shard(files)
    listing = copy.deepcopy(manifest(case.store, plain(files)))  # cases share stores
    case.manifest(listing)
    files["zarr.json"] = sealed(dump_json(root(listing)))
    case.after(files)
    return files


def plain(files: Files) -> dict[str, bytes]:
    """Those that are no links."""
    return {path: data for path, data in files.items() if isinstance(data, bytes)}


def described(store: Store) -> Json:
    """What a reader must find in each array of a valid store, by its path."""
    return {
        f"{folder}/{path}": {
            "dtype": array.dtype.name,
            "shape": list(array.shape),
            "sha256": hashlib.sha256(array.astype(array.dtype.newbyteorder("<")).tobytes()).hexdigest(),
        }
        for name, shards in store.splits.items()
        for folder, shard in shard_folders(store, name, shards)[: len(shards)]
        for path, array in shard.arrays.items()
    }


def write(directory: Path, files: Files) -> None:
    """Write the files of a store below a directory that does not exist yet."""
    for path, data in sorted(files.items()):
        target = directory / path
        target.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(data, Link):
            target.symlink_to(data.target)
        else:
            target.write_bytes(data)


def main(out: Path) -> None:
    """Write everything below `out`."""
    listing: list[Json] = []
    for name, store in stores().items():
        files = valid_files(store, is_extended=name == "ignorable-metadata")
        write(out / "valid" / f"{name}.tsds", files)
        content = content_digest(json.loads(plain(files)["zarr.json"])["attributes"]["tsds"])
        case = {"path": f"valid/{name}.tsds", "valid": True, "content": content, "arrays": described(store)}
        listing.append(case)
    for case in cases():
        write(out / "invalid" / f"{case.name}.tsds", invalid_files(case))
        listing.append(
            {
                "path": f"invalid/{case.name}.tsds",
                "valid": False,
                "reason": case.name.split("--")[0],
                "stage": case.stage,
                "why": case.why,
            }
        )
    (out / "cases.json").write_bytes(dump_json({"format": "1.0", "cases": listing}))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
