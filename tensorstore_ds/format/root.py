"""What tsds keeps in metadata of Zarr groups: the manifest in the root's, the list of its files in a shard's.

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
from tensorstore_ds.format.manifest_parser import parse, parse_files
from tensorstore_ds.format.strict_json import load_object

_ZEROS = "0" * 64
_DIGEST = re.compile(r"[0-9a-f]{64}")
_DAMAGED = "Copy the store again, with its zarr.json: this one was changed after it was written."


def dump_root(manifest: Manifest) -> bytes:
    """The bytes of the root's ``zarr.json``, its digest included."""
    return _sealed({"zarr_conventions": [CONVENTION], "tsds_sha256": _ZEROS, "tsds": dump(manifest)})


def change_root(data: bytes, change: Callable[[dict[str, Any]], None]) -> bytes:
    """The bytes of a root's ``zarr.json`` with another manifest, and so another digest.

    Members that this version does not know stay.

    Args:
        data: bytes that `parse_root` accepts.
        change: changes the manifest, as JSON has it.
    """
    attributes = load_object(data)["attributes"]
    change(attributes["tsds"])
    del attributes["tsds_sha256"]
    return _sealed({"tsds_sha256": _ZEROS, **attributes})


def _sealed(attributes: Mapping[str, Any]) -> bytes:
    """The bytes of a root with these attributes, of which `tsds_sha256` is made of all."""
    data = dump_json({**GROUP, "attributes": attributes})
    member = b'"tsds_sha256": "'
    # The first one: what comes before it is ours.
    return data.replace(member + _ZEROS.encode(), member + hashlib.sha256(data).hexdigest().encode(), 1)


def parse_root(data: bytes) -> tuple[Manifest, str]:
    """The manifest in the bytes of a root's ``zarr.json``, and their digest.

    Raises:
        FormatError: with every problem found.
    """
    try:
        root = load_object(data)
    except (ValueError, RecursionError) as error:
        what = f"other text ({error})" if data else "an empty file"
        raise FormatError(Problem("zarr.json", "manifest-json", f"expected JSON, found {what}."), _DAMAGED) from error
    attributes = root.get("attributes")
    if root.get("zarr_format") != 3 or root.get("node_type") != "group" or not isinstance(attributes, dict):
        raise FormatError(
            Problem("zarr.json", "not-a-store", "expected the metadata of a Zarr v3 group, found other JSON.")
        )
    if "tsds" not in attributes:
        raise FormatError(
            Problem("zarr.json", "not-a-store", "a Zarr group, but not of tensorstore-ds: no attribute tsds.")
        )
    digest = attributes.get("tsds_sha256")
    if digest is not None:
        _check_digest(data, digest)
    manifest = parse(attributes["tsds"])
    if digest is None:  # after the version was looked at: another one may have other ways
        problem = Problem("zarr.json", "manifest", "expected the attribute tsds_sha256, found none.")
        raise FormatError(problem, _DAMAGED)
    return manifest, digest


def is_root(data: bytes) -> bool:
    """Whether these are the bytes of a root's ``zarr.json``, of any version; not those of a split or a shard."""
    try:
        attributes = load_object(data).get("attributes")
    except (ValueError, RecursionError):
        return False
    return isinstance(attributes, dict) and {"tsds", "tsds_sha256"} <= attributes.keys()


def dump_listing(files: Mapping[str, File]) -> bytes:
    """The bytes of a shard's ``zarr.json``, of its other files."""
    listed = {path: asdict(file) for path, file in files.items()}
    return dump_json({**GROUP, "attributes": {"tsds": {"files": listed}}})


def parse_listing(data: bytes, where: str, shard: Shard) -> dict[str, File]:
    """The files in the bytes of a shard's ``zarr.json``, by path relative to the shard.

    Args:
        where: the path of the file in the store.
        shard: as the manifest has it.

    Raises:
        FormatError: `checksum`: they are not the bytes that the manifest says. `manifest`: they list no files, or not
            of as many bytes as the manifest says; `unsafe-path`.
    """
    found = hashlib.sha256(data).hexdigest()
    if found != shard.sha256:
        message = f"expected SHA-256 {shard.sha256[:12]}..., found {found[:12]}...."
        raise FormatError(Problem(where, "checksum", message), _DAMAGED)
    try:
        group = load_object(data)
    except (ValueError, RecursionError) as error:
        raise FormatError(Problem(where, "manifest", f"expected JSON, found other text ({error}).")) from error
    attributes = group.get("attributes")
    files = parse_files(attributes.get("tsds") if isinstance(attributes, dict) else None, where)
    nbytes = len(data) + sum(file.size for file in files.values())
    if nbytes != shard.nbytes:
        raise FormatError(Problem(where, "manifest", f"expected files of {shard.nbytes} bytes, found {nbytes}."))
    return files


def _check_digest(data: bytes, digest: Any) -> None:
    if not isinstance(digest, str) or not _DIGEST.fullmatch(digest) or data.count(digest.encode()) != 1:
        message = "expected an attribute tsds_sha256 of 64 hexadecimal digits that occur once, found another."
        raise FormatError(Problem("zarr.json", "checksum", message), _DAMAGED)
    found = hashlib.sha256(data.replace(digest.encode(), _ZEROS.encode())).hexdigest()
    if found != digest:
        message = f"expected SHA-256 {digest[:12]}..., found {found[:12]}...."
        raise FormatError(Problem("zarr.json", "checksum", message), _DAMAGED)
