"""What is at a URL already, where a store is to be."""

from __future__ import annotations

from dataclasses import dataclass

from tensorstore_ds.conversion.history import is_earlier
from tensorstore_ds.errors import FormatError, RemoteError, StoreExistsError
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
    """The store at a place; None if there is none.

    Raises:
        StoreExistsError: there is something else.
    """
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
    """Whether the store at a URL is an earlier state of this one, rather than this one.

    Raises:
        StoreExistsError: it is another store; or it is an earlier state, and is not to be updated.
    """
    if found.sha256 == content.sha256:
        return False
    now = parse_root(content.root)[0]
    if not is_earlier(found.manifest, now) or not _fits(found.manifest, now):
        text = f"expected nothing, or the same store, found the store {found.sha256[:12]}.... Choose another URL"
        raise StoreExistsError(f"{url}: {text}, or remove that one first.")
    if not update:
        text = f"expected nothing, or the same store, found it as it was before, {found.sha256[:12]}...."
        raise StoreExistsError(f"{url}: {text} Pass `update=True` to replace it, or choose another URL.")
    return True


def _fits(before: Manifest, now: Manifest) -> bool:
    """Whether each number of a shard stands for the same shard in both."""
    for name, split in before.splits.items():
        if name not in now.splits:
            return False
        entry = now.splits[name]
        shards = dict(zip(entry.numbers, entry.shards, strict=True))
        for number, shard in zip(split.numbers, split.shards, strict=True):
            if (number not in shards and number not in entry.replaced) or (
                number in shards and shards[number].sha256 != shard.sha256
            ):
                return False
    return True
