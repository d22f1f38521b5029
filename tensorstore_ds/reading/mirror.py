"""A store by URL: its files are cached on this disk as they are needed, for all processes of the machine.

Nothing is downloaded twice. When everything is downloaded, the folder of files is an ordinary store.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import math
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import IO

import numpy as np

from tensorstore_ds.errors import FormatError, Problem, RemoteError
from tensorstore_ds.format.arrays import ArrayGeometry
from tensorstore_ds.format.manifest import File, Shard
from tensorstore_ds.format.root import check_meant, parse_listing, parse_root
from tensorstore_ds.progress import adding
from tensorstore_ds.reading.checks import check_listing
from tensorstore_ds.reading.columns import ColumnPiece
from tensorstore_ds.reading.mirror_cache import STORE, Cache, Mirrored
from tensorstore_ds.reading.mirror_file import (
    REQUEST_NBYTES,
    SMALL_NBYTES,
    MirroredFile,
    MirroredPart,
    forked,
    gone,
    keep,
    kept_in,
    pool,
    sha256_of,
    was_whole,
)
from tensorstore_ds.reading.store_files import (
    MANIFEST_MAX_NBYTES,
    StoreFiles,
    data_files_of,
    open_file,
    read_slice,
    shards_of,
)
from tensorstore_ds.reading.zarr_part import open_part
from tensorstore_ds.remote.location import Found
from tensorstore_ds.remote.server import Server

#: Seconds between two checks of the root.
_ROOT_SECONDS = 5.0


class Mirror(StoreFiles):
    """The files of a store by URL, each downloaded when it is opened, or chunk by chunk as an array."""

    def __init__(self, server: Server, mirrored: Mirrored, root: bytes, etag: str | None) -> None:
        self.server = server
        self.folder = self.path = mirrored.folder / STORE
        self.manifest, self.sha256 = parse_root(root)
        self._mirrored, self.root, self._etag = mirrored, root, etag
        self._root_seen = time.monotonic()
        self._is_changed = False  # whether the root was another one when it was looked at last
        self._confirmed: set[str] = set()  # folders of shards that were the same ones then
        self._listings: dict[str, Mapping[str, File]] = {}
        self._files: dict[str, MirroredFile] = {}
        self._complete = 0  #: number of the shard that was found incomplete last
        self._sound: set[str] = set()  # small files that this process has compared with their SHA-256
        self.after_fork()
        forked.add(self)

    def after_fork(self) -> None:
        """Forget the threads, which do not exist in the child."""
        self._lock = threading.Lock()
        self._locks: dict[str, threading.Lock] = {}

    @property
    def is_whole(self) -> bool:
        """Whether all files are here, as far as is known. Files that are lost are downloaded again."""
        return (self.folder / "zarr.json").exists()

    def open(self, name: str) -> IO[bytes]:
        """Open one of the files, after downloading the whole file if it is missing.

        Raises `FormatError` if it is not listed or damaged on the server, `RemoteError` and `OutputError`.
        """
        if name == "zarr.json":
            return open_file(self._mirrored.folder, name)
        self._fetch(name)
        return open_file(self.folder, name)

    def read_part(self, name: str, part: slice) -> bytes:
        """Read some bytes; of a large file, only the chunks with these bytes are downloaded."""
        mirrored = None if name == "zarr.json" else self._fetch_unless_large(name)
        if mirrored is None:
            return super().read_part(name, part)
        mirrored.fetch_bytes(part)
        with mirrored.open() as file:
            return read_slice(file, part)

    def listing(self, split: str, index: int) -> dict[str, File]:
        """Read the list of a shard's files, which is also compared with the manifest."""
        directory = self.manifest.shard_path(split, index)
        with self._lock_of(directory), kept_in(self.folder):
            if directory not in self._listings:
                self._listings[directory] = self._fetch_listing(split, index)
            return dict(self._listings[directory])

    def part(self, split: str, index: int, array: str, geometry: ArrayGeometry) -> ColumnPiece:
        """One shard's part of an array, whose rows are downloaded as they are read; raises as `open`."""
        if not geometry.rows:
            return np.empty(geometry.shape, geometry.spec.dtype)
        path = f"{array}/{geometry.data_path}"
        name, file = f"{self.manifest.shard_path(split, index)}/{path}", self.listing(split, index)[path]
        mirrored = None
        if file.size <= SMALL_NBYTES:
            self._fetch_small(name, file)
        else:
            mirrored = self._file(name, geometry, file)
        open_data = functools.partial(open_file, self.folder, name) if mirrored is None else mirrored.open
        with kept_in(self.folder):
            part = open_part(name, geometry, open_data)
        return part if mirrored is None else MirroredPart(mirrored, part)

    def fetch_all(self, progress: Callable[[int, int], None] | None = None) -> None:
        """Download all that is missing, which makes the folder a store; raises as `open`."""
        advance = adding(self.manifest.nbytes, progress or (lambda done, total: None))
        for _, _, folder, shard in shards_of(self.manifest):
            for path in data_files_of(self.manifest, shard):
                self._fetch(f"{folder}/{path}")
            advance(shard.nbytes)
        with kept_in(self.folder):
            self._check_data()
        self._fetch_metadata()

    def read(self, name: str, start: int, stop: int, *, etag: str | None = None) -> tuple[memoryview, Found]:
        """Read bytes from the server; raises as `check_root` if the file no longer exists."""
        with self._explained(name):
            return self.server.read(name, start, stop, etag=etag)

    def check_root(self, name: str) -> None:
        """Raise `RemoteError` if a file no longer belongs to this store; the server is asked at most every few seconds.

        Another store may have replaced this one. If it has only grown or was updated, a shard with the same list of
        files is unchanged, because its files never change.
        """
        if time.monotonic() - self._root_seen >= _ROOT_SECONDS:
            self._root_seen = time.monotonic()
            self._look_at_root()
        shard = "/".join(name.split("/")[:2])
        if self._is_changed and shard not in self._confirmed:
            if not self._is_there(shard):
                what = f"the store has changed since it was opened, and {shard} is gone"
                raise RemoteError(f"{self.server.url}: {what}. Open it again.", "replaced")
            self._confirmed.add(shard)

    def file_is_whole(self) -> None:
        """Download the little that remains once all data files are complete."""
        with kept_in(self.folder), contextlib.suppress(RemoteError):  # fetched when it is asked for
            # Usually the next one is incomplete as well. All are checked in the end, because some may be lost by then.
            self._complete, name = next(self._lost(self._complete), (0, ""))
            if not name and next(self._lost(), None) is None:
                self._fetch_metadata()

    # ---

    def _look_at_root(self) -> None:
        if self._etag is not None:
            with contextlib.suppress(RemoteError):
                self.server.read("zarr.json", 0, 1, etag=self._etag)
                return
        data, self._etag = self.server.read_all("zarr.json", MANIFEST_MAX_NBYTES)
        self._is_changed = data != self.root
        self._confirmed.clear()

    def _is_there(self, shard: str) -> bool:
        """Whether the server has a shard of this store."""
        with contextlib.suppress(KeyError):
            split, index = self.manifest.shard_at(shard)
            try:
                data, _ = self.server.read_all(f"{shard}/zarr.json", MANIFEST_MAX_NBYTES)
            except RemoteError as error:
                if error.reason != "missing":
                    raise
                return False
            return hashlib.sha256(data).hexdigest() == self.manifest.splits[split].shards[index].sha256
        return False

    @contextlib.contextmanager
    def _explained(self, name: str) -> Iterator[None]:
        """Raise as `check_root` if the server no longer has a file, or a different one."""
        try:
            yield
        except (RemoteError, FormatError) as error:
            if isinstance(error, FormatError) or error.reason == "missing":
                self._root_seen = -math.inf
                self.check_root(name)
            raise

    def _lost(self, first: int = 0) -> Iterator[tuple[int, str]]:
        """Names of data files that are not all here, with the number of their shard, from the `first` on.

        No list of a shard is fetched before all of its files exist.
        """
        for number in range(first, len(self._shards)):
            split, index, folder, shard = self._shards[number]
            names = {f"{folder}/{path}": path for path in data_files_of(self.manifest, shard)}
            yield from ((number, name) for name in names if not (self.folder / name).exists())
            listing = self.listing(split, index)
            yield from ((number, name) for name, path in names.items() if not self._is_here(name, listing[path]))

    @functools.cached_property
    def _shards(self) -> list[tuple[str, int, str, Shard]]:
        return list(shards_of(self.manifest))

    def _check_data(self) -> None:
        """Raise `OutputError` if data files were lost since this process found them complete, and forget these."""
        lost = [name for _, name in self._lost()]
        for name in lost:
            self._files.pop(name, None)
        if lost:
            raise gone(self.folder / lost[0])

    def _is_here(self, name: str, file: File) -> bool:
        if file.size <= SMALL_NBYTES:
            return _has_size(self.folder / name, file.size)
        return was_whole(self.folder, name, self._mirrored.marks(name), file) is not None

    def _fetch_listing(self, split: str, index: int) -> dict[str, File]:
        name, shard = f"{self.manifest.shard_path(split, index)}/zarr.json", self.manifest.splits[split].shards[index]
        try:
            files = parse_listing((self.folder / name).read_bytes(), name, shard)
        except (FileNotFoundError, FormatError):  # not fetched; or cut by somebody since
            data = self._mirrored.take_over(name, shard)
            is_new = data is None
            with self._explained(name):
                data = data or self.server.read_all(name, MANIFEST_MAX_NBYTES)[0]
                files = parse_listing(data, name, shard)
            if is_new:
                self._mirrored.take_files(name.removesuffix("/zarr.json"), files)
            self._keep(name, data)
        problems = check_listing(self.manifest, split, index, files)
        if problems:
            raise FormatError(problems)
        return files

    def _fetch_small(self, name: str, file: File) -> None:
        """Download a whole file, and compare its SHA-256."""
        is_unreadable = name.split("/")[2:3] and name.split("/")[2] in self.manifest.unreadable
        if is_unreadable and file.size > MANIFEST_MAX_NBYTES:  # its chunks are not known, and it is held in memory
            message = f"expected a file of at most {MANIFEST_MAX_NBYTES} bytes, found {file.size}. Use tsds pull."
            raise FormatError(Problem(name, "unreadable-field", message))
        with self._lock_of(name), self._explained(name):
            if self._is_sound(name, file):
                return
            for attempt in range(2):
                data = bytearray()
                while len(data) < file.size:
                    stop = min(file.size, len(data) + REQUEST_NBYTES)
                    data += self.server.read(name, len(data), stop)[0]
                found = hashlib.sha256(data).hexdigest()
                if found == file.sha256:
                    break
                if attempt:
                    url = f"{self.server.url}/{name}"
                    message = f"expected SHA-256 {file.sha256[:12]}..., {url} has {found[:12]}..., fetched twice."
                    raise FormatError(Problem(name, "checksum", message), "Have the store written there again.")
            self._keep(name, bytes(data))
            self._sound.add(name)

    def _is_sound(self, name: str, file: File) -> bool:
        """Whether a small file is there; its SHA-256 is compared at its first use."""
        if not _has_size(self.folder / name, file.size):
            return False
        if name not in self._sound:
            with kept_in(self.folder), contextlib.suppress(FormatError), open_file(self.folder, name) as opened:
                if sha256_of(opened) == file.sha256:
                    self._sound.add(name)
        return name in self._sound

    def _fetch_unless_large(self, name: str) -> MirroredFile | None:
        """Download a whole file, or return it if it is downloaded in chunks. The root must not be passed."""
        folder = "/".join(name.split("/")[:2])
        if name in self.manifest.files:
            self._fetch_small(name, self.manifest.files[name])
            return None
        missing = FormatError(Problem(name, "missing-file", "the store lists no such file."))
        try:
            split, index = self.manifest.shard_at(folder)
        except KeyError:
            raise missing from None
        listing = self.listing(split, index)
        path = name.removeprefix(f"{folder}/")
        if path == "zarr.json":
            return None
        if path not in listing:
            raise missing
        geometry = data_files_of(self.manifest, self.manifest.splits[split].shards[index]).get(path)
        if geometry is not None and listing[path].size > SMALL_NBYTES:
            return self._file(name, geometry, listing[path])
        self._fetch_small(name, listing[path])
        return None

    def _fetch(self, name: str) -> None:
        """Download a whole file. The root must not be passed."""
        if (mirrored := self._fetch_unless_large(name)) is not None:
            mirrored.fetch_all()

    def _fetch_metadata(self) -> None:
        """Download all files that are not data, the root last."""
        wanted: list[tuple[str, File]] = list(self.manifest.files.items())
        for split, index, folder, shard in shards_of(self.manifest):
            data, listing = data_files_of(self.manifest, shard), self.listing(split, index)
            wanted += [(f"{folder}/{path}", file) for path, file in listing.items() if path not in data]
        for _ in pool("requests").map(lambda each: self._fetch_small(*each), wanted):
            pass
        if not self.is_whole:
            self._keep("zarr.json", self.root)

    def _file(self, name: str, geometry: ArrayGeometry, file: File) -> MirroredFile:
        with self._lock_of(name):
            if name not in self._files:
                self._files[name] = MirroredFile(self, name, geometry, file, self._mirrored.marks(name))
            return self._files[name]

    def _keep(self, name: str, data: bytes) -> None:
        keep(self.folder / name, data, self._mirrored.temporary)

    def _lock_of(self, name: str) -> threading.Lock:
        with self._lock:
            return self._locks.setdefault(name, threading.Lock())


def _has_size(path: Path, nbytes: int) -> bool:
    with contextlib.suppress(OSError):
        return path.stat().st_size == nbytes
    return False


def no_store(url: str) -> FormatError:
    """The error for a URL without a `zarr.json` below it."""
    message = "this is not a store (it has no zarr.json). Correct the URL."
    if url.endswith(".zip"):
        message = (
            "a packed store is opened from a local disk. Download the file and open it, or unpack it on the server."
        )
    return FormatError(Problem(url, "not-a-store", message))


def open_url(url: str, sha256: str | None, cache: Cache) -> Mirror:
    """The files of the store at a URL.

    If the mirror has the root of `sha256`, the server is not asked. Raises `RemoteError` if the server refuses, or
    cannot be reached and the store was never opened, `FormatError` if there is no store or a different one,
    `OptionError` if the URL cannot be used, and `OutputError` if the mirror cannot be written.
    """
    server = Server(url)
    etag: str | None = None
    digest = None if sha256 is None else sha256.lower()
    root = None if digest is None else cache.root(digest)
    if root is None:
        try:
            root, etag = server.read_all("zarr.json", MANIFEST_MAX_NBYTES)
        except RemoteError as error:
            if error.reason == "missing":
                raise no_store(server.url) from error
            known = cache.last_digest(server.url)
            root = cache.root(known) if error.reason == "unreachable" and known is not None else None
            if root is None:
                raise
            warnings.warn(f"{error} The store that was there last is used, as far as it was fetched.", stacklevel=4)
    manifest, found = parse_root(root)
    check_meant(root, found, sha256)
    with kept_in(cache.folder):
        mirrored = cache.use(found, server.url, root, manifest.nbytes + len(root))
        mirrored.forget_erased(manifest)
        return Mirror(server, mirrored, root, etag)
