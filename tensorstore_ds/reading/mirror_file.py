"""One data file of a store by URL, downloaded chunk by chunk into a file of the same bytes on this disk.

The file has its whole length at once, with holes where nothing was downloaded. A map that all processes share has one
byte for each chunk, which is set after the chunk was compared with its checksum and written. A mark is only a hint:
each process compares a chunk with its checksum before it reads it for the first time. So chunks that were emptied, cut,
overwritten or did not survive a power loss are downloaded again.

The map begins with the time of the last change of the complete file, after its SHA-256 was compared and it was synced.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import mmap
import os
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import IO, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from tensorstore_ds.durable import sync, write_at
from tensorstore_ds.errors import FormatError, OutputError, Problem, TsdsError
from tensorstore_ds.format.arrays import ArrayGeometry
from tensorstore_ds.format.manifest import File
from tensorstore_ds.reading.mapping import map_file
from tensorstore_ds.reading.store_files import open_file
from tensorstore_ds.reading.zarr_part import LocalPart, read_edges
from tensorstore_ds.remote.location import Found
from tensorstore_ds.remote.server import Server

#: Largest gap between chunks of one request: bytes cost less than another request.
GAP_NBYTES = 1024**2
#: Largest number of bytes of a request, unless one chunk has more.
REQUEST_NBYTES = 8 * 1024**2
#: Files up to this size are fetched whole.
SMALL_NBYTES = 4 * 1024**2
_REQUESTS = 16
#: The version of the complete file, or 0, and the CRC of its end; before the marks.
_HEADER = np.dtype([("complete", "V8"), ("end", "<u4")])


class Home(Protocol):
    """What a file needs of its mirror."""

    server: Server
    folder: Path  #: of the store's files

    def read(self, name: str, start: int, stop: int, *, etag: str | None = None) -> tuple[memoryview, Found]:
        """Read bytes from the server."""

    def check_root(self, name: str) -> None:
        """Raise `RemoteError` if a file no longer belongs to this store."""

    def file_is_whole(self) -> None:
        """Called when a file has become complete."""


class MirroredFile:
    """A data file with downloaded and missing chunks, safe for threads, and after a fork in each process.

    The file `marks` keeps the state. Raises `FormatError` if the end, with the checksums and the index, is damaged on
    the server, `RemoteError` if the server fails or has a different store by now, and `OutputError` for a full disk.
    """

    def __init__(self, home: Home, name: str, geometry: ArrayGeometry, file: File, marks: Path) -> None:
        self.path, self.rows = home.folder / name, geometry.rows
        self._home, self._name, self._geometry, self._file = home, name, geometry, file
        self._path_of_marks = marks
        self._etag: str | None = None
        self._damage: FormatError | None = None
        self.after_fork()
        with kept_in(home.folder):
            inode = was_whole(home.folder, name, marks, file)
            self.is_whole = inode is not None
            if inode is None:
                (home.folder / "zarr.json").unlink(missing_ok=True)  # a file with holes belongs to no store
                self._open()
            else:
                self._inode = inode
        forked.add(self)

    def after_fork(self) -> None:
        """Forget the threads and their requests, which do not exist in the child."""
        self._lock = threading.Lock()
        self._coming: dict[int, Future[None]] = {}  # by chunk
        self._is_ending = False
        self._ending = threading.Lock()

    def fetch(self, chunks: NDArray[np.int64]) -> None:
        """Download the missing ones of these chunks, together; raises `FormatError` for damage on the server."""
        if self.is_whole:
            return
        missing = chunks[(self._marks[chunks] & self._sound[chunks]) == 0]
        if missing.size:
            for future in self._begin(self._lost(np.unique(missing))):
                future.result()
        if self._damage is not None:
            raise self._damage

    def fetch_rows(self, starts: NDArray[np.int64], stops: NDArray[np.int64]) -> None:
        """Download the rows [start, stop) of each pair if they are missing; raises as `fetch`."""
        if self.is_whole:
            return
        rows = self._geometry.chunk_rows
        some = starts < stops
        first, last = starts[some] // rows, (stops[some] - 1) // rows
        if (first == last).all():
            self.fetch(first)
        else:
            self.fetch(np.unique(np.concatenate([np.arange(a, b + 1) for a, b in zip(first, last, strict=True)])))

    def fetch_bytes(self, part: slice) -> None:
        """Download the bytes of a slice without step if they are missing; raises as `fetch`."""
        if self.is_whole:
            return
        start, stop, _ = part.indices(self._file.size)
        first, last = int(self._edges.searchsorted(start, "right")) - 1, int(self._edges.searchsorted(stop, "left"))
        self.fetch(np.arange(first, min(last, self._geometry.chunks) if start < stop else first))

    def fetch_all(self) -> None:
        """Download all that is missing and compare the SHA-256; raises as `fetch`."""
        for _ in range(2):  # chunks that the disk has lost meanwhile are fetched once more
            if self.is_whole:
                return
            with self._lock:
                self._is_ending = True  # in this thread: one that was queued would keep the store open for longer
            try:
                self.fetch(np.arange(self._geometry.chunks))
            finally:
                self._end()
            if self._damage is not None:
                raise self._damage
        if not self.is_whole:
            what = "expected the bytes that were written, found others twice"
            raise OutputError(f"{self.path}: {what}. Check this disk, or choose another folder: `cache_dir`.")

    def open(self) -> IO[bytes]:
        """Open the file for reading; raises `OutputError` if a different file has replaced it."""
        try:
            file = open_file(self._home.folder, self._name)
        except FormatError as error:
            raise gone(self.path) from error
        try:
            with kept_in(self._home.folder):
                if _inode(os.fstat(file.fileno())) != self._inode:
                    raise gone(self.path)
        except BaseException:
            file.close()
            raise
        return file

    # --- what is there

    def _open(self) -> None:
        """Make the file and its marks, and read its end."""
        descriptor = _made(self.path)
        try:
            status = os.fstat(descriptor)
            self._inode = _inode(status)
            self._map_marks()
            if status.st_size != self._file.size:
                self._marks[:] = 0  # first, for all processes: what the file gains now are holes
                os.ftruncate(descriptor, self._file.size)
        except OSError as error:
            raise unwritable(self.path, error) from error
        finally:
            os.close(descriptor)
        if int(self._header["end"]) != _crc(self._tail()):
            self._header["end"] = self._fetch_end()
        self._read_end()
        if self._marks.all():
            self._end_later()

    def _map_marks(self) -> None:
        """Map the header and the marks; without them, each chunk may be there."""
        nbytes = _HEADER.itemsize + self._geometry.chunks
        descriptor = _made(self._path_of_marks)
        try:
            is_new = os.fstat(descriptor).st_size < nbytes
            if is_new:
                # Allocated now: a later write through a map would end the process if the disk is full.
                if hasattr(os, "posix_fallocate"):
                    os.posix_fallocate(descriptor, 0, nbytes)
                else:
                    os.ftruncate(descriptor, nbytes)
            shared = map_file(descriptor, nbytes, 0, mmap.ACCESS_WRITE)
        finally:
            os.close(descriptor)
        self._header = np.frombuffer(shared, _HEADER, 1)[0]
        self._marks = np.frombuffer(shared, np.uint8, offset=_HEADER.itemsize)
        self._sound = np.zeros_like(self._marks)  # whether this process has compared it
        if is_new:
            self._marks[:] = 1

    def _tail(self) -> bytes:
        with self.open() as file:
            file.seek(-self._geometry.tail_nbytes, os.SEEK_END)
            return file.read()

    def _fetch_end(self) -> int:
        """Download the checksums and the index; returns their CRC."""
        size = self._file.size
        data, found = self._home.read(self._name, size - self._geometry.tail_nbytes, size)
        if found.nbytes != size:
            message = f"expected {size} bytes, found {found.nbytes}."
            raise FormatError(Problem(self._name, "file-size", message), self._advice)
        self._etag = found.etag
        self._home.check_root(self._name)
        self._write(data, size - len(data))
        return _crc(data)

    def _read_end(self) -> None:
        """Read the positions of the chunks and their checksums."""
        geometry = self._geometry
        try:
            with self.open() as file:
                self._edges = read_edges(file, self._name, geometry)
            self._crcs = np.frombuffer(self._tail(), "<u4", geometry.chunks)
        except FormatError as error:
            self._header["end"] = 0  # fetched again next time
            raise FormatError(error.problems, self._advice) from error

    def _lost(self, chunks: NDArray[np.int64]) -> NDArray[np.int64]:
        """Those of these chunks that are not there: marked ones are compared with their checksums."""
        lost: NDArray[np.bool_] = self._marks[chunks] == 0
        if lost.all():
            return chunks
        with self.open() as file:
            for i in np.flatnonzero(~lost):
                start, stop = self._edges[chunks[i] : chunks[i] + 2].tolist()
                file.seek(start)
                is_sound = self._is_sound(chunks[i], file.read(stop - start))
                self._sound[chunks[i]] = self._marks[chunks[i]] = is_sound
                lost[i] = not is_sound
        return chunks.compress(lost)

    # --- fetching

    def _begin(self, missing: NDArray[np.int64]) -> Iterable[Future[None]]:
        """Request chunks that this process has not requested yet; returns the futures to wait for."""
        with self._lock:
            asked = [c for c in missing.tolist() if c not in self._coming and not (self._marks[c] & self._sound[c])]
            for first, last in self._runs(asked):
                future = pool("requests", _REQUESTS).submit(self._fetch_run, first, last)
                self._coming.update(dict.fromkeys(range(first, last), future))
            return {self._coming[c] for c in missing.tolist() if c in self._coming}

    def _runs(self, chunks: list[int]) -> list[tuple[int, int]]:
        """[first, last) of chunks that one request downloads."""
        runs: list[tuple[int, int]] = []
        for chunk in chunks:
            if runs:
                first, last = runs[-1]
                gap, nbytes = self._edges[chunk] - self._edges[last], self._edges[chunk + 1] - self._edges[first]
                # Missing chunks between them are fetched for later, but none that exist or were requested.
                is_missing = not any(self._marks[c] or c in self._coming for c in range(last, chunk))
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
                        self._home.check_root(self._name)
                        self._header["end"] = 0  # or the checksums are wrong: fetched again next time
                        message = f"chunk {chunk} does not agree with its checksum, fetched twice from {self._url}."
                        raise FormatError(Problem(self._name, "checksum", message), self._advice)
                self._write(part, start)
                self._sound[chunk] = self._marks[chunk] = 1
        finally:
            with self._lock:
                for chunk in range(first, last):
                    self._coming.pop(chunk, None)
        if self._marks.all():
            self._end_later()

    def _read(self, start: int, stop: int) -> memoryview:
        data, found = self._home.read(self._name, start, stop, etag=self._etag)
        self._etag = self._etag or found.etag
        return data

    def _is_sound(self, chunk: int, data: bytes | memoryview) -> bool:
        return _crc(data) == int(self._crcs[chunk])

    def _write(self, data: memoryview, offset: int) -> None:
        try:
            write_at(self.path, data, offset)
            if _inode(os.lstat(self.path)) != self._inode:
                raise gone(self.path)
        except FileNotFoundError as error:
            raise gone(self.path) from error
        except OSError as error:
            raise unwritable(self.path, error) from error

    # --- the end

    def _end_later(self) -> None:
        """Call `_end` in a thread, because it takes seconds for a large file."""
        with self._lock:
            if self._is_ending:
                return
            self._is_ending = True
        pool("endings", 4).submit(self._end)  # one that waits for a server that does not answer holds up no other

    def _end(self) -> None:
        """Compare the complete file with the list."""
        with self._ending, kept_in(self._home.folder):
            self._is_ending = False
            if self.is_whole or self._damage is not None or not self._marks.all():
                return
            with self.open() as file:
                before: str | None = None
                found = ""
                while found != before:  # a reader may have mended a chunk while it was hashed
                    before, version = found, _version(os.fstat(file.fileno()))  # a write after the sync changes it
                    with contextlib.suppress(FileNotFoundError):  # it is removed: no matter then
                        sync(self.path)
                    file.seek(0)
                    found = sha256_of(file)
                    if found == self._file.sha256:
                        break
                    if self._lost(np.arange(self._geometry.chunks)).size or not self._marks.all():
                        return  # the disk has lost something, which is no fault of the server: it is fetched again
            if found != self._file.sha256:
                self._marks[:] = 0
                message = f"expected SHA-256 {self._file.sha256[:12]}..., {self._url} has {found[:12]}...."
                self._damage = FormatError(Problem(self._name, "checksum", message), self._advice)
                return
            self._header["complete"] = version
            with contextlib.suppress(FileNotFoundError):
                sync(self._path_of_marks)  # before the root appears
            self.is_whole = True
        self._home.file_is_whole()

    @property
    def _url(self) -> str:
        return f"{self._home.server.url}/{self._name}"

    @property
    def _advice(self) -> str:
        return f"The store at {self._home.server.url} is damaged, or was replaced. Have it written there again."


class MirroredPart:
    """One shard's part of an array of a store by URL. Only downloaded rows of `local` may be read."""

    def __init__(self, file: MirroredFile, local: LocalPart) -> None:
        self.local = local
        self._file = file

    @property
    def is_whole(self) -> bool:
        """Whether all of `local` may be read."""
        return self._file.is_whole

    def fetch(self, starts: NDArray[np.int64], stops: NDArray[np.int64]) -> None:
        """Download the rows [start, stop) of each pair if they are missing; raises as `MirroredFile.fetch`."""
        self._file.fetch_rows(starts, stops)

    def __getitem__(self, item: int | slice) -> Any:
        """A row in [0, rows), or rows of a slice without step, as `local` gives them."""
        start, stop = item.indices(self._file.rows)[:2] if isinstance(item, slice) else (item, item + 1)
        self.fetch(np.array([start]), np.array([stop]))
        return self.local[item]


def keep(path: Path, data: bytes | memoryview, temporary: Path) -> None:
    """Write a small file atomically, even if others write the same; raises `OutputError`."""
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
    """The error for a mirror that cannot be written."""
    reason = error.strerror or str(error)
    room = "Make room with tsds cache clear, or choose" if error.errno in (errno.ENOSPC, errno.EDQUOT) else "Choose"
    advice = f"{room} another folder: `cache_dir`, or TSDS_CACHE_DIR."
    return OutputError(f"{path}: expected to keep what was fetched, found: {reason}. {advice}")


def gone(path: Path) -> OutputError:
    """The error for a file of the mirror that was removed or replaced while it was in use."""
    what = "expected the file that was opened here, found it removed or replaced"
    return OutputError(f"{path}: {what}. Open the store again: it is fetched again.")


@contextlib.contextmanager
def kept_in(folder: Path) -> Iterator[None]:
    """Turn errors of the mirror's disk into `OutputError`."""
    try:
        yield
    except TsdsError:
        raise
    except OSError as error:
        where, reason = error.filename if isinstance(error.filename, str) else folder, error.strerror or str(error)
        advice = "Check this disk and who may use it, or choose another folder: `cache_dir`, or TSDS_CACHE_DIR."
        raise OutputError(f"{where}: expected to use the cache of a store by URL, found: {reason}. {advice}") from error


def was_whole(root: Path, name: str, marks: Path, file: File) -> tuple[int, int] | None:
    """Device and inode of a complete file, or None.

    A file without marks, or that was copied or written to since it was noted as complete, is compared with its SHA-256
    first, for seconds if it is large.
    """
    with contextlib.suppress(FormatError), open_file(root, name) as opened, open(_made(marks), "r+b") as noted:
        status, version = os.fstat(opened.fileno()), noted.read(8)
        if status.st_size != file.size or version == bytes(8):
            return None
        if version != _version(status):
            is_sound = sha256_of(opened) == file.sha256
            noted.seek(0)
            noted.write(_version(status) if is_sound else bytes(8))
            if not is_sound:
                return None
        return _inode(status)
    return None


def _made(path: Path) -> int:
    """A descriptor of a file, which is created if it is missing; raises `OutputError`."""
    flags = os.O_RDWR | os.O_CREAT | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NOFOLLOW", 0)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        return os.open(path, flags | getattr(os, "O_BINARY", 0), 0o644)
    except OSError as error:
        raise unwritable(path, error) from error


def _inode(status: os.stat_result) -> tuple[int, int]:
    return status.st_dev, status.st_ino


def _version(status: os.stat_result) -> bytes:
    """The time of a file's last change in ns, but never 0."""
    return (status.st_mtime_ns | 1).to_bytes(8, "little", signed=True)


def sha256_of(file: IO[bytes]) -> str:
    """The SHA-256 of an open file."""
    return hashlib.file_digest(file, "sha256").hexdigest()  # type: ignore[arg-type]  # a file of the system


def _crc(data: bytes | memoryview) -> int:
    import google_crc32c  # here, because reading a local store never needs it

    return int(google_crc32c.value(bytes(data)))


# --- threads ------------------------------------------------------------------------------------------------------

#: Pools by name. Work in one waits only for later ones in the order "ahead", "fields", "shards", "requests".
_pools: dict[str, Pool] = {}
#: Objects whose `after_fork` is called in a child.
forked: weakref.WeakSet[Any] = weakref.WeakSet()
_making = threading.Lock()


class Pool(ThreadPoolExecutor):
    """Threads that release their arguments when the result is known, so that a store that they held can be closed."""

    def submit(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Call a function in one of the threads."""
        return super().submit(_take_and_call, [(function, args, kwargs)])


def _take_and_call(given: list[tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]]) -> Any:
    function, args, kwargs = given.pop()
    return function(*args, **kwargs)


def pool(name: str, width: int = _REQUESTS) -> Pool:
    """This process's threads of a name."""
    with _making:
        if name not in _pools:
            _pools[name] = Pool(width, thread_name_prefix=f"tsds-{name}")
        return _pools[name]


def _after_fork() -> None:
    global _making
    _making = threading.Lock()
    _pools.clear()
    for each in list(forked):
        each.after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
