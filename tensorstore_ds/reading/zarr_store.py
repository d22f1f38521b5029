"""A read-only Zarr hierarchy, for zarr-python, of the files that the manifest lists.

zarr's own `LocalStore` and `ObjectStore` would read zeros where a file was removed, show shards that were replaced, and
warn about ``skipped.jsonl``. They can neither list a web server nor read a packed store.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from typing import Any

from zarr import Group, open_group
from zarr.abc.store import ByteRequest, OffsetByteRequest, RangeByteRequest, Store as ZarrStore, SuffixByteRequest
from zarr.core.buffer import Buffer, BufferPrototype, default_buffer_prototype

from tensorstore_ds.format.arrays import shard_files
from tensorstore_ds.format.manifest import shard_path
from tensorstore_ds.reading.store_files import StoreFiles, shards_of

_METADATA = "zarr.json"


def group_of(place: object, again: Callable[[], Group], files: StoreFiles) -> Group:
    """The root group of a store at a place; raises as reading its files. `again` is a call that returns the same."""
    return open_group(FilesStore(place, again, files), mode="r", zarr_format=3, use_consolidated=False)


class FilesStore(ZarrStore):
    """The files of a store for zarr-python. It pickles like the store, as a call that opens it `again`.

    Files that the manifest does not list are hidden. A listed file that is missing raises `FormatError`, because zarr
    reads a missing chunk as zeros.
    """

    supports_writes = False
    supports_deletes = False
    supports_listing = True
    supports_partial_writes = False

    def __init__(self, place: object, again: Callable[[], Group], files: StoreFiles) -> None:
        super().__init__(read_only=True)
        self._place, self._again, self._files = place, again, files

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, FilesStore):
            return NotImplemented
        return (self._place, self._files.sha256) == (other._place, other._files.sha256)

    def __hash__(self) -> int:
        return hash((self._place, self._files.sha256))

    def __str__(self) -> str:
        return str(self._place)

    def __repr__(self) -> str:
        return f"<FilesStore {self}>"

    def __reduce__(self) -> tuple[Callable[[Callable[[], Group]], Any], tuple[Callable[[], Group]]]:
        return _opened_again, (self._again,)

    def with_read_only(self, read_only: bool = False) -> ZarrStore:
        """Return this store, which is read-only; raises `ValueError` if it should be writable."""
        if not read_only:
            self._check_writable()
        return self

    async def get(
        self, key: str, prototype: BufferPrototype | None = None, byte_range: ByteRequest | None = None
    ) -> Buffer | None:
        """Bytes of a file; None if the store has no such file. Raises as `StoreFiles.open`."""
        if not await self.exists(key):
            return None
        part = _as_slice(byte_range)
        if key == _METADATA:  # as it was opened: the store may have grown since
            data = self._files.root[part]
        else:
            data = await asyncio.to_thread(self._files.read_part, key, part)
        return (prototype or default_buffer_prototype()).buffer.from_bytes(data)

    async def get_partial_values(
        self, prototype: BufferPrototype, key_ranges: Iterable[tuple[str, ByteRequest | None]]
    ) -> list[Buffer | None]:
        """Bytes of several files."""
        return await asyncio.gather(*(self.get(key, prototype, byte_range) for key, byte_range in key_ranges))

    async def exists(self, key: str) -> bool:
        """Whether the store has this file."""
        folder, _, name = key.rpartition("/")
        if folder.count("/") > 1:
            return key in self._shard_names("/".join(key.split("/", 2)[:2]))
        return name == _METADATA and (not folder or _METADATA in self._names_in(folder))

    async def list(self) -> AsyncIterator[str]:
        """All files."""
        async for name in self.list_prefix(""):
            yield name

    async def list_prefix(self, prefix: str) -> AsyncIterator[str]:
        """All files whose path begins with this."""
        for name in self._names(prefix):
            if name.startswith(prefix):
                yield name

    async def list_dir(self, prefix: str) -> AsyncIterator[str]:
        """Names of the files and folders in a folder."""
        for name in self._names_in(prefix.strip("/")):
            yield name

    async def set(self, *args: Any, **kwargs: Any) -> None:
        """Raise `ValueError`."""
        self._check_writable()

    delete = delete_dir = clear = set
    set_partial_values = set  # for versions of zarr before 3.1.3

    def _names(self, prefix: str) -> Iterator[str]:
        """All files, without most shards whose names cannot begin with the prefix."""
        yield _METADATA
        yield from (f"{split}/{_METADATA}" for split in self._files.manifest.splits)
        for _, _, folder, _ in shards_of(self._files.manifest):
            if f"{folder}/".startswith(prefix) or prefix.startswith(f"{folder}/"):
                yield from self._shard_names(folder)

    def _names_in(self, folder: str) -> Iterable[str]:
        """Names in a folder, each once."""
        splits = self._files.manifest.splits
        if not folder:
            return [_METADATA, *splits]
        if folder in splits:
            return [_METADATA, *(shard_path(folder, n).partition("/")[2] for n in splits[folder].numbers)]
        names = self._shard_names("/".join(folder.split("/")[:2]))
        below = (name.removeprefix(f"{folder}/") for name in names if name.startswith(f"{folder}/"))
        return dict.fromkeys(name.partition("/")[0] for name in below)

    def _shard_names(self, folder: str) -> frozenset[str]:
        """All files of the shard in a folder; none if there is no such shard."""
        manifest = self._files.manifest
        try:
            split, index = manifest.shard_at(folder)
        except KeyError:
            return frozenset()
        names = shard_files(manifest.fields, manifest.arrays(manifest.splits[split].shards[index]))
        return frozenset(f"{folder}/{name}" for name in (_METADATA, *names))


def _as_slice(byte_range: ByteRequest | None) -> slice:
    match byte_range:
        case None:
            return slice(None)
        case RangeByteRequest(start, end):
            return slice(start, end)
        case OffsetByteRequest(offset):
            return slice(offset, None)
        case SuffixByteRequest(suffix):
            return slice(-suffix, None) if suffix else slice(0)
    raise TypeError(f"expected a request of bytes that zarr has, found {byte_range!r}.")


def _opened_again(again: Callable[[], Group]) -> Any:
    return again().store
