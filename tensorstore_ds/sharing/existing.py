"""What is at a URL already, where a store is to be."""

from __future__ import annotations

from tensorstore_ds.errors import FormatError, RemoteError, StoreExistsError
from tensorstore_ds.format.root import parse_root
from tensorstore_ds.reading.store_files import MANIFEST_MAX_NBYTES
from tensorstore_ds.remote.location import Location


def store_at(place: Location) -> str | None:
    """The digest of the store at a place; None if there is none.

    Raises:
        StoreExistsError: there is something else.
    """
    try:
        data, _ = place.read_all("zarr.json", MANIFEST_MAX_NBYTES)
    except RemoteError as error:
        if error.reason == "missing":
            return None
        raise
    try:
        return parse_root(data)[1]
    except FormatError as error:
        text = f"{place.url}: expected nothing, or the same store, found another zarr.json. Choose another URL."
        raise StoreExistsError(text) from error


def other_store(url: str, found: str) -> StoreExistsError:
    """What to raise where another store is."""
    text = f"expected nothing, or the same store, found the store {found[:12]}.... Choose another URL"
    return StoreExistsError(f"{url}: {text}, or remove that one first.")
