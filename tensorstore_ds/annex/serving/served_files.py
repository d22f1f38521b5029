"""The files of a store that others may read, and no others: by their names in the store, as it is or was just now."""

from __future__ import annotations

import functools
import hashlib
import io
import os
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import IO, Any, Protocol, TypeVar

from tensorstore_ds.errors import FormatError
from tensorstore_ds.format.history import states_of
from tensorstore_ds.format.manifest import File, shard_path
from tensorstore_ds.format.root import parse_root
from tensorstore_ds.format.schema import SIGNATURE
from tensorstore_ds.reading.checks import SIGNATURE_MAX_NBYTES
from tensorstore_ds.reading.store import Store, open as open_store
from tensorstore_ds.reading.store_files import MANIFEST_MAX_NBYTES

#: States of a store before it changed whose files are served, as long as they are there.
_EARLIER = 8
_IN_SHARD = re.compile(r"([a-z0-9_-]{1,64})/([0-9]{5,15})/(.+)")

Made = TypeVar("Made")


@dataclass(frozen=True, slots=True)
class Page:
    """A file that is served in addition to a store, with its Content-Type and further headers."""

    data: bytes
    media_type: str
    headers: tuple[tuple[str, str], ...] = ()


class Pages(Protocol):
    """Files that are served in addition to a store, whose files are then below ``store/``."""

    def find(self, name: str) -> Page | None:
        """The file at a path; None if missing."""

    def put(self, name: str, data: bytes) -> bool:
        """Store a file; returns False if this is not allowed, or if it is not valid."""


#: Bytes of a file that a client may write.
PUT_NBYTES = 16 * 1024**2


class ServedFiles:
    """The files of a store. If it grows or is updated, a request of its ``zarr.json`` gets the new one.

    With `sha256`, the store is served as it was in that state. Raises `FormatError` if it does not exist.
    """

    def __init__(self, store: Store | str | os.PathLike[str], sha256: str | None = None) -> None:
        self.content = _open(store, sha256)
        self._earlier: list[Content] = []  # the last one first

    def use(self, name: str, do: Callable[[File, Content], Made]) -> Made | None:
        """Call `do` with a file, again if the store has changed after a `FormatError`; None if the file is missing.

        Raises `FormatError` if the file is damaged, or if another store has replaced this one.
        """
        if name == "zarr.json":
            self._renew()
        try:
            return self._use(name, do)
        except FormatError:
            if not self._renew():
                raise
            return self._use(name, do)

    def _use(self, name: str, do: Callable[[File, Content], Made]) -> Made | None:
        found = self._find(name)
        return None if found is None else do(*found)

    def _renew(self) -> bool:
        """Reload the store if it has changed; raises `FormatError` if another one is in its place."""
        before = self.content
        if (now := before.now()) is before:
            return False
        self.content, self._earlier = now, [before, *self._earlier][:_EARLIER]
        return True

    def _find(self, name: str) -> tuple[File, Content] | None:
        """A file of the store as it is, or as it was before, if the file still exists."""
        file = self.content.find(name)
        if file is not None:
            return file, self.content
        for content in self._earlier:
            with suppress(FormatError):  # it is gone
                file = content.find(name)
                if file is not None:
                    content.read(name, slice(0, 1))
                    return file, content
        return None


@dataclass(frozen=True, slots=True)
class Content:
    """A store at one point in time.

    `root` are the bytes of its ``zarr.json``, `listing` is that of `Store.listing`. With `is_fixed`, only this state is
    served, even after the store has grown.
    """

    store: Store
    root: bytes
    is_fixed: bool
    listing: Callable[[str, int], Mapping[str, File]]

    def find(self, name: str) -> File | None:
        """Size and digest of a file of the store; None for every other name."""
        manifest = self.store.manifest
        if name == "zarr.json":
            return File(len(self.root), self.store.sha256)
        if name in manifest.files:
            return manifest.files[name]
        if name == SIGNATURE:  # no list contains it
            with suppress(FormatError):
                data = self.store.read_part(name, slice(SIGNATURE_MAX_NBYTES))
                return File(len(data), hashlib.sha256(data).hexdigest())
        match = _IN_SHARD.fullmatch(name)
        entry = manifest.splits.get(match[1]) if match else None
        if not match or not entry or int(match[2]) not in entry.places:
            return None
        split, number, path = match[1], int(match[2]), match[3]
        index = entry.places[number]
        if name != f"{shard_path(split, number)}/{path}":  # a zero too many
            return None
        listing = self.listing(split, index)
        if path == "zarr.json":
            shard = entry.shards[index]
            return File(shard.nbytes - sum(file.size for file in listing.values()), shard.sha256)
        return listing.get(path)

    def open(self, name: str, size: int) -> IO[bytes]:
        """Open a file of the store. By URL, only what is read of it is downloaded."""
        if name == "zarr.json":
            return io.BytesIO(self.root)
        return io.BufferedReader(_ByUrl(self, name, size)) if self.store.is_remote else self.store.open_file(name)

    def read(self, name: str, part: slice) -> bytes:
        """The bytes of a file of the store in a slice without a step."""
        return self.root[part] if name == "zarr.json" else self.store.read_part(name, part)

    def now(self) -> Content:
        """The current state of the store; raises `FormatError` if another one is in its place."""
        try:
            root = _root(self.store)
        except FormatError:  # another one, unless it was updated
            now = _open(_place(self.store), None)
            if self.store.sha256 not in states_of(now.store.manifest.provenance):
                raise
            return self if self.is_fixed else now
        return self if self.is_fixed or root == self.root else _open(_place(self.store), None)


class _ByUrl(io.RawIOBase):
    """A file of a store by URL, with its size."""

    def __init__(self, content: Content, name: str, size: int) -> None:
        self._content, self._name, self._size, self._at = content, name, size, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        self._at = offset + {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._size}[whence]
        return self._at

    def readinto(self, buffer: Any) -> int:
        data = self._content.read(self._name, slice(self._at, self._at + len(buffer)))
        buffer[: len(data)] = data
        self._at += len(data)
        return len(data)


def _open(place: Store | str | os.PathLike[str], sha256: str | None) -> Content:
    store = place if isinstance(place, Store) else open_store(place, sha256=sha256)
    while parse_root(root := _root(store))[1] != store.sha256:  # it has grown just now
        store = open_store(_place(store), sha256=sha256)
    listing = functools.lru_cache(maxsize=64)(store.listing)
    return Content(store, root, sha256 is not None, listing)


def _place(store: Store) -> str | os.PathLike[str]:
    return store.path if store.origin is None else store.origin.url


def _root(store: Store) -> bytes:
    with store.open_file("zarr.json") as file:
        return file.read(MANIFEST_MAX_NBYTES + 1)
