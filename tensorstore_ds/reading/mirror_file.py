"""One data file of a store by URL: fetched chunk by chunk, as it is needed, into a file of the same bytes on this disk.

The file has its whole length at once, with holes where nothing was fetched. Which chunks are there is kept beside it,
a byte for each, in a map that all processes share: it is set after the chunk was compared with its checksum and
written. A hole would read as zeros, so nothing is read that has no such byte.
"""

from __future__ import annotations

import hashlib
import mmap
import os
import threading
import weakref
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from tensorstore_ds.durable import sync, write_at
from tensorstore_ds.errors import FormatError, OutputError, Problem
from tensorstore_ds.format.arrays import CRC_NBYTES, ArrayGeometry
from tensorstore_ds.format.manifest import File
from tensorstore_ds.machine import read_system_file
from tensorstore_ds.reading.zarr_part import read_index
from tensorstore_ds.remote.server import Server

#: Chunks that are fetched with one request lie no further apart than this: bytes cost less than another request.
GAP_NBYTES = 1024**2
#: Bytes of a request, at most, where one chunk has no more.
REQUEST_NBYTES = 8 * 1024**2
#: Files up to this size are fetched whole.
SMALL_NBYTES = 4 * 1024**2
_REQUESTS = 16
_BOOT = 36  # characters of the system's boot id


class Home(Protocol):
    """What a file needs of the mirror that it belongs to."""

    server: Server
    folder: Path  #: of the store's files

    def check_root(self) -> None:
        """Raise `RemoteError` if another store has taken the place of this one."""

    def file_is_whole(self) -> None:
        """Told when a file has become whole."""


class MirroredFile:
    """A data file, of which chunks are there or not. For several threads, and after a fork in each process.

    Attributes:
        path: on this disk.
        is_whole: whether all of it is there, and has the SHA-256 that is listed.

    Args:
        home: the mirror.
        name: of the file, relative to the store.
        file: as it is listed.
        marks: where it is kept what is there: this path with ``.have`` or, when it is whole, ``.whole`` added.

    Raises:
        FormatError: its end, which has the checksums and the index, is damaged on the server.
        RemoteError: the server fails; or another store is there now.
        OutputError: the disk is full.
    """

    def __init__(self, home: Home, name: str, geometry: ArrayGeometry, file: File, marks: Path) -> None:
        self.path = home.folder / name
        self._home, self._name, self._geometry, self._file = home, name, geometry, file
        self._have_path, self._whole_path = (marks.with_name(f"{marks.name}.{end}") for end in ("have", "whole"))
        self._etag: str | None = None
        self._damage: FormatError | None = None
        self.after_fork()
        self.is_whole = self._whole_path.exists() and self.path.is_file() and self.path.stat().st_size == file.size
        if not self.is_whole:
            self._open()
        _files.add(self)

    def after_fork(self) -> None:
        """Forget threads and what they were doing: none of them is here."""
        self._lock = threading.Lock()
        self._coming: dict[int, Future[None]] = {}  # by chunk
        self._is_ending = False

    def fetch(self, chunks: NDArray[np.int64]) -> None:
        """See that these chunks are there: those that are not are fetched together.

        Raises:
            FormatError: a chunk is damaged on the server, or the whole file is.
            RemoteError, OutputError: as when it was opened.
        """
        if self.is_whole:
            return
        missing = chunks[self._have[chunks] == 0]
        if missing.size:
            for future in self._begin(np.unique(missing)):
                future.result()
        if self._damage is not None:
            raise self._damage

    def fetch_rows(self, starts: NDArray[np.int64], stops: NDArray[np.int64]) -> None:
        """See that the rows [start, stop) of each pair are there; raises as `fetch`."""
        if self.is_whole:
            return
        rows = self._geometry.chunk_rows
        some = starts < stops
        first, last = starts[some] // rows, (stops[some] - 1) // rows
        if (first == last).all():
            self.fetch(first)
        else:
            self.fetch(np.unique(np.concatenate([np.arange(a, b + 1) for a, b in zip(first, last, strict=True)])))

    def fetch_all(self) -> None:
        """See that all of it is there, and has its SHA-256; raises as `fetch`."""
        if self.is_whole:
            return
        self.fetch(np.arange(self._geometry.chunks))
        self._end()
        if self._damage is not None:
            raise self._damage

    # --- what is there

    def _open(self) -> None:
        """Make the file and its marks, and read its end."""
        chunks = self._geometry.chunks
        for path in (self.path, self._have_path):
            path.parent.mkdir(parents=True, exist_ok=True)
        os.close(_with_length(self.path, self._file.size))
        marks = _with_length(self._have_path, _BOOT + chunks + 1, allocated=True)
        try:
            shared = mmap.mmap(marks, _BOOT + chunks + 1)
        finally:
            os.close(marks)
        self._have = np.frombuffer(shared, np.uint8, offset=_BOOT)
        boot = boot_id()
        is_of_this_boot = shared[:_BOOT] == boot
        if not is_of_this_boot:
            self._have[-1] = 0  # whatever was written before the power went may not have reached the disk
        if not self._have[-1]:
            self._fetch_end()
        self._read_end()
        if not is_of_this_boot:
            self._check_chunks()
            shared[:_BOOT] = boot
        if self._have.all():
            self._end_later()

    def _fetch_end(self) -> None:
        size = self._file.size
        data, found = self._home.server.read(self._name, size - self._geometry.tail_nbytes, size)
        if found.nbytes != size:
            message = f"expected {size} bytes, found {found.nbytes}."
            raise FormatError(Problem(self._name, "file-size", message), self._advice)
        self._etag = found.etag
        self._home.check_root()
        self._write(data, size - len(data))
        self._have[-1] = 1

    def _read_end(self) -> None:
        """Where chunks lie, and their checksums."""
        geometry = self._geometry
        try:
            with self.path.open("rb") as file:
                entries = read_index(file, self._name, geometry).astype(np.int64)
                file.seek(-geometry.tail_nbytes, os.SEEK_END)
                self._crcs = np.frombuffer(file.read(geometry.chunks * CRC_NBYTES), "<u4")
            self._edges = np.concatenate([np.zeros(1, np.int64), np.cumsum(entries[:, 1])])
            if (self._edges[:-1] != entries[:, 0]).any() or self._edges[-1] != self._file.size - geometry.tail_nbytes:
                message = "expected chunks back to back from byte 0 to their checksums, found others."
                raise FormatError(Problem(self._name, "shard-index", message), self._advice)
        except FormatError:
            self._have[-1] = 0  # fetched again next time
            raise

    def _check_chunks(self) -> None:
        """Forget chunks that are marked, but did not reach the disk before the machine was started again."""
        with self.path.open("rb") as file:
            for chunk in np.flatnonzero(self._have[:-1]).tolist():
                file.seek(self._edges[chunk])
                if not self._is_sound(chunk, memoryview(file.read(self._edges[chunk + 1] - self._edges[chunk]))):
                    self._have[chunk] = 0

    # --- fetching

    def _begin(self, missing: NDArray[np.int64]) -> Iterable[Future[None]]:
        """Ask for chunks that nobody in this process has asked for; what is to be waited for."""
        with self._lock:
            asked = [c for c in missing.tolist() if c not in self._coming and not self._have[c]]
            for first, last in self._runs(asked):
                future = pool("requests", _REQUESTS).submit(self._fetch_run, first, last)
                self._coming.update(dict.fromkeys(range(first, last), future))
            return {self._coming[c] for c in missing.tolist() if c in self._coming}

    def _runs(self, chunks: list[int]) -> list[tuple[int, int]]:
        """[first, last) of chunks that are fetched with one request."""
        runs: list[tuple[int, int]] = []
        for chunk in chunks:
            if runs:
                first, last = runs[-1]
                gap, nbytes = self._edges[chunk] - self._edges[last], self._edges[chunk + 1] - self._edges[first]
                # What lies between is fetched, too, for later; nothing that is there or on its way.
                is_missing = not any(self._have[c] or c in self._coming for c in range(last, chunk))
                if is_missing and gap <= GAP_NBYTES and nbytes <= REQUEST_NBYTES:
                    runs[-1] = first, chunk + 1
                    continue
            runs.append((chunk, chunk + 1))
        return runs

    def _fetch_run(self, first: int, last: int) -> None:
        try:
            begin, end = int(self._edges[first]), int(self._edges[last])
            data = self._read(begin, end)
            for chunk in range(first, last):
                start, stop = int(self._edges[chunk]), int(self._edges[chunk + 1])
                part = data[start - begin : stop - begin]
                if not self._is_sound(chunk, part):
                    part = self._read(start, stop)
                    if not self._is_sound(chunk, part):
                        self._home.check_root()
                        message = f"chunk {chunk} does not agree with its checksum, fetched twice from {self._url}."
                        raise FormatError(Problem(self._name, "checksum", message), self._advice)
                self._write(part, start)
                self._have[chunk] = 1
        finally:
            with self._lock:
                for chunk in range(first, last):
                    self._coming.pop(chunk, None)
        if self._have.all():
            self._end_later()

    def _read(self, start: int, stop: int) -> memoryview:
        data, found = self._home.server.read(self._name, start, stop, etag=self._etag)
        self._etag = self._etag or found.etag
        return data

    def _is_sound(self, chunk: int, data: memoryview) -> bool:
        import google_crc32c  # here, because reading a local store never needs it

        return int(google_crc32c.value(bytes(data))) == int(self._crcs[chunk])

    def _write(self, data: memoryview, offset: int) -> None:
        try:
            write_at(self.path, data, offset)
        except OSError as error:
            raise unwritable(self.path, error) from error

    # --- the end

    def _end_later(self) -> None:
        """In another thread: it takes seconds for a large file."""
        with self._lock:
            if self._is_ending:
                return
            self._is_ending = True
        pool("endings", 1).submit(self._end)

    def _end(self) -> None:
        """All is there: compare it with what is listed."""
        if self.is_whole or self._damage is not None:
            return
        with self.path.open("rb") as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
        if found == self._file.sha256:
            sync(self.path)
            self._whole_path.touch()
            self._have_path.unlink(missing_ok=True)  # others may have been quicker
            self.is_whole = True
            self._home.file_is_whole()
            return
        self._have[:] = 0
        message = f"expected SHA-256 {self._file.sha256[:12]}..., {self._url} has {found[:12]}...."
        self._damage = FormatError(Problem(self._name, "checksum", message), self._advice)

    @property
    def _url(self) -> str:
        return f"{self._home.server.url}/{self._name}"

    @property
    def _advice(self) -> str:
        return f"The store at {self._home.server.url} is damaged, or was replaced. Have it written there again."


class MirroredArray:
    """One shard's array in the layout `memmap` of a store by URL: rows are fetched before they are read from the map.

    Attributes:
        array: the map of all of it. Only what was fetched may be read.
    """

    def __init__(self, file: MirroredFile, array: NDArray[Any]) -> None:
        self.array = array
        self._file = file

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the array."""
        return self.array.shape

    @property
    def is_whole(self) -> bool:
        """Whether all of `array` may be read."""
        return self._file.is_whole

    def fetch(self, starts: NDArray[np.int64], stops: NDArray[np.int64]) -> None:
        """See that rows [start, stop) of each pair are there; raises as `MirroredFile.fetch`."""
        self._file.fetch_rows(starts, stops)

    def __getitem__(self, item: int | slice) -> Any:
        """A row in [0, rows), or rows of a slice without step: views of the map."""
        start, stop, _ = item.indices(len(self.array)) if isinstance(item, slice) else (item, item + 1, 1)
        self.fetch(np.array([start]), np.array([stop]))
        return self.array[item]

    def take(self, rows: NDArray[np.int64], out: NDArray[Any]) -> None:
        """Copy rows, (n,) in [0, rows), into `out`."""
        self.fetch(rows, rows + 1)
        np.take(self.array, rows, axis=0, out=out, mode="clip")


def keep(path: Path, data: bytes | memoryview, temporary: Path) -> None:
    """Write a small file, which is there whole or not at all, whoever else writes the same; raises `OutputError`."""
    partial = temporary / f"{os.getpid()}-{threading.get_ident()}"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.mkdir(parents=True, exist_ok=True)
        with partial.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    except OSError as error:
        raise unwritable(path, error) from error


def unwritable(path: Path, error: OSError) -> OutputError:
    """What to raise when the mirror cannot be written."""
    reason = error.strerror or str(error)
    advice = "Make room with tsds cache clear, or choose another folder: `cache_dir`, or TSDS_CACHE_DIR."
    return OutputError(f"{path}: expected to keep what was fetched, found: {reason}. {advice}")


def boot_id() -> bytes:
    """What tells this start of the system from others; different at every call where the system does not say."""
    text = read_system_file("/proc/sys/kernel/random/boot_id").strip() or os.urandom(_BOOT // 2).hex()
    return text.encode().ljust(_BOOT)[:_BOOT]


def _with_length(path: Path, nbytes: int, *, allocated: bool = False) -> int:
    """A descriptor of a file that exists from now on, with at least so many bytes; raises `OutputError`.

    Room is `allocated` for what is written through a map: where the disk is full, that would end the process.
    """
    flags = os.O_RDWR | os.O_CREAT | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NOFOLLOW", 0)
    try:
        descriptor = os.open(path, flags | getattr(os, "O_BINARY", 0), 0o644)
        if os.fstat(descriptor).st_size < nbytes:
            if allocated and hasattr(os, "posix_fallocate"):
                os.posix_fallocate(descriptor, 0, nbytes)
            else:
                os.ftruncate(descriptor, nbytes)
    except OSError as error:
        raise unwritable(path, error) from error
    return descriptor


# --- threads ------------------------------------------------------------------------------------------------------

#: Pools by name. Who works in one waits for those that come after it alone: "ahead", "fields", "shards", "requests".
_pools: dict[str, ThreadPoolExecutor] = {}
_files: weakref.WeakSet[MirroredFile] = weakref.WeakSet()
_making = threading.Lock()


def pool(name: str, width: int = _REQUESTS) -> ThreadPoolExecutor:
    """This process's threads of a name."""
    with _making:
        if name not in _pools:
            _pools[name] = ThreadPoolExecutor(width, thread_name_prefix=f"tsds-{name}")
        return _pools[name]


def _after_fork() -> None:
    global _making
    _making = threading.Lock()
    _pools.clear()
    for file in list(_files):
        file.after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
