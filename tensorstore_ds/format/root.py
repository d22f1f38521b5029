"""Metadata of tsds in Zarr groups: the manifest in the root group, and the list of files in each shard.

The digest by which a store is known is a member of the file that it is made of: it is the SHA-256 of the root's
``zarr.json`` with 64 zeros in its place. ``formats/v1/spec.md`` section 4 describes all of it. No input or output.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any

from tensorstore_ds.errors import FormatError, Problem
from tensorstore_ds.format.arrays import GROUP, dump_json
from tensorstore_ds.format.manifest import CONVENTION, File, Manifest, Shard, dump
from tensorstore_ds.format.manifest_parser import check_readable, parse, parse_files
from tensorstore_ds.format.strict_json import canonical, load_object, same_json

_ZEROS = "0" * 64
_DIGEST = re.compile(r"[0-9a-f]{64}")
_DAMAGED = "Copy the store again, with its zarr.json: this one was changed after it was written."


def dump_root(manifest: Manifest) -> bytes:
    """Return the bytes of the root's ``zarr.json``, with its digest."""
    return _sealed({"zarr_conventions": [CONVENTION], "tsds_sha256": _ZEROS, "tsds": dump(manifest)})


def change_root(data: bytes, change: Callable[[dict[str, Any]], None]) -> bytes:
    """Change manifest and digest in the bytes of a valid root ``zarr.json``. Unknown members are kept."""
    attributes = load_object(data)["attributes"]
    change(attributes["tsds"])
    del attributes["tsds_sha256"]
    return _sealed({"tsds_sha256": _ZEROS, **attributes})


def _sealed(attributes: Mapping[str, Any]) -> bytes:
    """Return the bytes of a root with these attributes, whose `tsds_sha256` covers them all."""
    data = dump_json({**GROUP, "attributes": attributes})
    member = b'"tsds_sha256": "'
    # The first one: the bytes before it are ours.
    return data.replace(member + _ZEROS.encode(), member + hashlib.sha256(data).hexdigest().encode(), 1)


def parse_root(data: bytes) -> tuple[Manifest, str]:
    """Parse the manifest and digest of a root's ``zarr.json``. Raises FormatError with all problems."""
    try:
        root = load_object(data)
    except (ValueError, RecursionError) as error:
        what = f"other text ({error})" if data else "an empty file"
        raise FormatError(Problem("zarr.json", "manifest-json", f"expected JSON, found {what}."), _DAMAGED) from error
    attributes = root.get("attributes")
    if (
        not same_json(root.get("zarr_format"), 3)
        or root.get("node_type") != "group"
        or not isinstance(attributes, dict)
    ):
        raise FormatError(
            Problem("zarr.json", "not-a-store", "expected the metadata of a Zarr v3 group, found other JSON.")
        )
    if "tsds" not in attributes:
        raise FormatError(
            Problem("zarr.json", "not-a-store", "a Zarr group, but not of tensorstore-ds: no attribute tsds.")
        )
    check_readable(attributes["tsds"])  # first, because other versions may have no digest, or a different one
    if "tsds_sha256" not in attributes:
        problem = Problem("zarr.json", "manifest", "expected the attribute tsds_sha256, found none.")
        raise FormatError(problem, _DAMAGED)
    _check_digest(data, attributes["tsds_sha256"])
    return parse(attributes["tsds"]), attributes["tsds_sha256"]


class OtherStoreError(FormatError):
    """The store at a path is not the expected one."""


def content_digest(data: bytes) -> str:
    """Return the content digest of a root's ``zarr.json`` that `parse_root` accepts.

    It is the SHA-256 of the fields and the shards' digests alone. License, citation, provenance, statistics and root
    files do not change it: ``formats/v1/spec.md`` section 4.7.
    """
    manifest = load_object(data)["attributes"]["tsds"]
    shards = {name: [shard["sha256"] for shard in split["shards"]] for name, split in manifest["splits"].items()}
    return hashlib.sha256(canonical({"fields": manifest["fields"], "splits": shards})).hexdigest()


def check_meant(data: bytes, digest: str, sha256: str | None, where: str = "zarr.json") -> None:
    """Raise `OtherStoreError` unless `sha256` is None, the store's `digest`, or the content digest of `data`."""
    if sha256 is None or sha256.lower() == digest:
        return
    content = content_digest(data)
    if sha256.lower() != content:
        message = f"expected the store {sha256}, found the store {digest} of the content {content}."
        raise OtherStoreError(Problem(where, "checksum", message))


def is_root(data: bytes) -> bool:
    """Whether these are the bytes of a root's ``zarr.json``, of any version, not of a split or a shard."""
    try:
        attributes = load_object(data).get("attributes")
    except (ValueError, RecursionError):
        return False
    return isinstance(attributes, dict) and {"tsds", "tsds_sha256"} <= attributes.keys()


def dump_listing(files: Mapping[str, File]) -> bytes:
    """Return the bytes of a shard's ``zarr.json``, which lists its other files."""
    listed = {path: asdict(file) for path, file in files.items()}
    return dump_json({**GROUP, "attributes": {"tsds": {"files": listed}}})


def parse_listing(data: bytes, where: str, shard: Shard) -> dict[str, File]:
    """Return the files in a shard's ``zarr.json``, by path relative to the shard.

    `where` is the path of the file in the store, `shard` its entry in the manifest. Raises FormatError: `checksum` for
    bytes that differ from the manifest, `manifest` if they list no files, or a different number of bytes, and
    `unsafe-path`.
    """
    found = hashlib.sha256(data).hexdigest()
    if found != shard.sha256:
        message = f"expected SHA-256 {shard.sha256[:12]}..., found {found[:12]}...."
        raise FormatError(Problem(where, "checksum", message), _DAMAGED)
    files = listed_files(data, where)
    nbytes = len(data) + sum(file.size for file in files.values())
    if nbytes != shard.nbytes:
        raise FormatError(Problem(where, "manifest", f"expected files of {shard.nbytes} bytes, found {nbytes}."))
    return files


def listed_files(data: bytes, where: str) -> dict[str, File]:
    """Return the files of a shard that is in no manifest."""
    try:
        group = load_object(data)
    except (ValueError, RecursionError) as error:
        raise FormatError(Problem(where, "manifest", f"expected JSON, found other text ({error}).")) from error
    attributes = group.get("attributes")
    return parse_files(attributes.get("tsds") if isinstance(attributes, dict) else None, where)


def _check_digest(data: bytes, digest: Any) -> None:
    if not isinstance(digest, str) or not _DIGEST.fullmatch(digest) or data.count(digest.encode()) != 1:
        message = "expected an attribute tsds_sha256 of 64 hexadecimal digits that occur once, found another."
        raise FormatError(Problem("zarr.json", "checksum", message), _DAMAGED)
    found = hashlib.sha256(data.replace(digest.encode(), _ZEROS.encode())).hexdigest()
    if found != digest:
        message = f"expected SHA-256 {digest[:12]}..., found {found[:12]}...."
        raise FormatError(Problem("zarr.json", "checksum", message), _DAMAGED)
