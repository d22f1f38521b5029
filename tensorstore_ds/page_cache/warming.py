"""Read a store into the page cache, and wait for it, or do so in the background while training starts.

Small columns are read first and images last. A budget that is too small for everything then still covers labels and
boxes.
"""

from __future__ import annotations

import atexit
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from tensorstore_ds.errors import FormatError, OptionError, Problem
from tensorstore_ds.page_cache.residency import DataFile, Names, data_files, requirement, select_columns
from tensorstore_ds.page_cache.system_calls import resident_nbytes
from tensorstore_ds.progress import notebook_bytes
from tensorstore_ds.reading.store import Store
from tensorstore_ds.reading.store_files import size_of, start_of

#: Bytes that the system is asked to read with one call, which keeps a disk busy. Pieces that are resident are skipped.
PIECE_NBYTES = 8 * 1024**2
#: Bytes read at a time, into a buffer that fits into a processor's cache. Warming can be stopped between two reads.
_STEP_NBYTES = 1024**2

Progress = Callable[[int, int], None]


class Piece(NamedTuple):
    """Consecutive bytes of a file: ``[start, stop)``."""

    path: str
    start: int
    stop: int


def warm(
    store: Store,
    *,
    splits: Names = None,
    fields: Names = None,
    budget: int | None = None,
    threads: int = 2,
    progress: Progress | None = None,
) -> int:
    """Read a store's bytes into the page cache, which all processes of the machine share.

    Bytes that are in memory already are skipped.

    >>> store = tsds.open("photos.tsds")
    >>> nbytes = tsds.warm(store, splits="train", fields=["image", "label"])
    >>> tsds.warm(store, splits="train", fields=["image", "label"])  # all bytes are in memory now
    0

    Args:
        store: an open store. If it was opened by URL, the files that are needed are downloaded completely first.
        splits, fields: one name, or several names. None takes all.
        budget: largest number of bytes of the store to have in memory. Small columns are read first, then images in the
            order of `splits`. None takes the bytes that this process may use (`memory_limit`).
        threads: number of threads that read.
        progress: function that is called with (bytes done, total bytes) from these threads, one call at a time. The
            number of bytes done never decreases. None shows a bar in a notebook.

    Returns:
        Number of bytes read. A piece of 8 MiB is skipped if all of it is in memory, and else read completely.

    Raises:
        OptionError: the store has no such split or field, `budget` is negative, or `threads` is below 1.
        FormatError: a file is missing, shorter than in the manifest, or cannot be read.
    """
    told = progress or notebook_bytes("Warming")
    warming = warm_in_background(store, splits=splits, fields=fields, budget=budget, threads=threads, progress=told)
    with warming:
        warming.wait()
    return warming.nbytes_read


def warm_in_background(
    store: Store,
    *,
    splits: Names = None,
    fields: Names = None,
    budget: int | None = None,
    threads: int = 2,
    progress: Progress | None = None,
) -> Warming:
    """Start to `warm` a store and return immediately. The arguments and errors are as in `warm`.

    >>> store = tsds.open("photos.tsds")
    >>> with tsds.page_cache.warm_in_background(store) as warming:
    ...     rows = store["train"]["image"].take([0, 1])  # leaving the block ends the reading

    Returns:
        A handle. Its `wait` raises errors of the threads, and so does the end of its ``with`` block.
    """
    columns = select_columns(store, splits, fields)
    if budget is None:
        budget = min(requirement(store, columns)[1].values())
    if budget < 0:
        raise OptionError(f"`budget`: expected 0 or more bytes, found {budget}. Leave it out to use what is available.")
    if threads < 1:
        raise OptionError(f"`threads`: expected 1 or more, found {threads}.")
    return Warming(store, list(_pieces(_in_order(store, columns), budget)), threads, progress)


class Warming:
    """Threads that read files into memory. Leaving its ``with`` block stops them.

    >>> with tsds.page_cache.warm_in_background(tsds.open("photos.tsds")) as warming:
    ...     warming.wait()
    True
    >>> warming.nbytes_done == warming.nbytes
    True

    Attributes:
        nbytes: number of bytes that will be in memory at the end.
        nbytes_done: number of bytes that are in memory now.
        nbytes_read: number of these bytes that were read. The others were in memory before.
        error: error that ended a thread, or None.
    """

    def __init__(self, store: Store, pieces: Sequence[Piece], threads: int, progress: Progress | None) -> None:
        self.nbytes = sum(piece.stop - piece.start for piece in pieces)
        self.nbytes_done = 0
        self.nbytes_read = 0
        self.error: BaseException | None = None
        self._store = store
        self._pieces = iter(pieces)
        self._progress = progress
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._raised = False
        self._running = threads
        # Python waits for threads that are not daemons before `atexit`, here to the last byte of the store.
        self._threads = [threading.Thread(target=self._run, name=f"tsds-warm-{i}", daemon=True) for i in range(threads)]
        atexit.register(self.stop)
        for thread in self._threads:
            thread.start()

    @property
    def done(self) -> bool:
        """Whether reading has ended, because all bytes are in memory, it was stopped, or an error occurred."""
        return not any(thread.is_alive() for thread in self._threads)

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until reading has ended, at most `timeout` seconds, and return `done`.

        If an error ended a thread, `wait` raises it.
        """
        end = None if timeout is None else time.monotonic() + timeout
        for thread in self._threads:
            thread.join(None if end is None else max(0.0, end - time.monotonic()))
        if self.error is not None:
            self._raised = True
            raise self.error
        return self.done

    def stop(self) -> None:
        """Stop reading, and wait until the threads have ended. Bytes that were read stay in memory."""
        self._stopping.set()
        if threading.current_thread() in self._threads:
            return  # `progress` has called this: the threads end after it
        for thread in self._threads:
            thread.join()

    def __enter__(self) -> Warming:
        return self

    def __exit__(self, kind: object, error: object, traceback: object) -> None:
        self.stop()
        if self.error is not None and error is None and not self._raised:
            raise self.error

    def _run(self) -> None:
        buffer = memoryview(bytearray(_STEP_NBYTES))
        try:
            while not self._stopping.is_set():
                with self._lock:
                    piece = next(self._pieces, None)
                if piece is None:
                    return
                self._warm(piece, buffer)
        except BaseException as error:  # those of `progress` too; `wait` raises it
            self.error = self.error or error
            self._stopping.set()
        finally:
            with self._lock:
                self._running -= 1
                if not self._running:
                    atexit.unregister(self.stop)

    def _warm(self, piece: Piece, buffer: memoryview) -> None:
        with self._store.open_file(piece.path) as file:
            descriptor, nbytes = file.fileno(), piece.stop - piece.start
            start = start_of(file) + piece.start
            _check_end(piece, size_of(file))
            try:
                resident = sys.platform == "linux" and resident_nbytes(descriptor, nbytes, start) >= nbytes
            except OSError:
                resident = False  # where the system does not tell, it is read
            if resident:
                self._advance(nbytes, read=0)
                return
            if hasattr(os, "posix_fadvise"):  # all of the piece is asked for, while its beginning is waited for
                os.posix_fadvise(descriptor, start, nbytes, os.POSIX_FADV_WILLNEED)
            file.seek(piece.start)
            for position in range(piece.start, piece.stop, _STEP_NBYTES):
                step = buffer[: piece.stop - position]
                try:
                    count = file.readinto(step)  # type: ignore[attr-defined]  # IO[bytes] does not tell of it
                except OSError as error:
                    message = f"this file cannot be read ({error.strerror})."
                    raise FormatError(Problem(piece.path, "missing-file", message)) from error
                if count < len(step):  # cut off meanwhile
                    _check_end(piece, position + count)
                self._advance(count, read=count)
                if self._stopping.is_set():
                    return

    def _advance(self, done: int, *, read: int) -> None:
        with self._lock:
            if self._stopping.is_set():
                return  # after a stop or an error nobody wants to hear more
            self.nbytes_done += done
            self.nbytes_read += read
            if self._progress is not None:
                self._progress(self.nbytes_done, self.nbytes)


def _in_order(store: Store, columns: Sequence[tuple[str, str]]) -> list[DataFile]:
    """The files of these columns: the smallest column first, images last and in the order of the arguments."""
    files = {column: data_files(store, *column) for column in columns}

    def rank(column: tuple[str, str]) -> tuple[bool, int]:
        image = bool(store.manifest.fields[column[1]].encoding)
        return image, 0 if image else sum(file.nbytes for file in files[column])

    return [file for column in sorted(columns, key=rank) for file in files[column]]


def _pieces(files: Sequence[DataFile], budget: int) -> Iterator[Piece]:
    """The first `budget` bytes of these files."""
    for file in files:
        nbytes = min(file.nbytes, budget)
        budget -= nbytes
        for start in range(0, nbytes, PIECE_NBYTES):
            yield Piece(file.path, start, min(start + PIECE_NBYTES, nbytes))


def _check_end(piece: Piece, nbytes: int) -> None:
    if nbytes < piece.stop:
        message = f"expected {piece.stop} bytes or more, found {nbytes}. Open the store again to see what is wrong."
        raise FormatError(Problem(piece.path, "file-size", message))
