"""Find what exists at the URL of a new store."""

from __future__ import annotations

from dataclasses import dataclass

from tensorstore_ds.errors import FormatError, RemoteError, StoreExistsError
from tensorstore_ds.format.history import states_of
from tensorstore_ds.format.manifest import Manifest
from tensorstore_ds.format.root import parse_root
from tensorstore_ds.reading.store_files import MANIFEST_MAX_NBYTES
from tensorstore_ds.remote.location import Location
from tensorstore_ds.sharing.selection import Content


@dataclass(frozen=True, slots=True)
class Existing:
    """The store at a URL: its manifest, its digest, and the version of its root there."""

    manifest: Manifest
    sha256: str
    etag: str | None


def store_at(place: Location) -> Existing | None:
    """The store at a place, or None; raises `StoreExistsError` if there is something else."""
    try:
        data, etag = place.read_all("zarr.json", MANIFEST_MAX_NBYTES)
    except RemoteError as error:
        if error.reason == "missing":
            return None
        raise
    try:
        return Existing(*parse_root(data), etag)
    except FormatError as error:
        text = f"{place.url}: expected nothing, or the same store, found another zarr.json. Choose another URL."
        raise StoreExistsError(text) from error


def is_to_be_replaced(url: str, found: Existing, content: Content, *, update: bool) -> bool:
    """Whether the URL has an earlier state of this store, not this one; raises `StoreExistsError` for other stores."""
    if found.sha256 == content.sha256:
        return False
    now = parse_root(content.root)[0]
    expected = f"{url}: expected nothing, or the same store, found"
    if content.sha256 in states_of(found.manifest.provenance):
        raise StoreExistsError(f"{expected} a later state of it, {found.sha256[:12]}.... Pull that one.")
    if found.sha256 not in states_of(now.provenance):
        advice = "Choose another URL, or remove that one first."
        raise StoreExistsError(f"{expected} the store {found.sha256[:12]}.... {advice}")
    if not update:
        advice = "Replace it with tsds push and `update=True`, or choose another URL."
        raise StoreExistsError(f"{expected} it as it was before, {found.sha256[:12]}.... {advice}")
    return True
