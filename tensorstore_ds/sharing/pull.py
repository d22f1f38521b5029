"""Copy a store from a URL, or a path, into a folder that appears in one step.

::

    OUT.partial/
      tsds.lock     held while a copy runs; it also marks the folder as ours
      plan.json     the store, and the splits and fields that are copied
      received      the received parts, see received.py
      lists/        the shards' lists of the whole store
      store/        becomes OUT, by one rename
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
from collections.abc import Collection, Iterator
from pathlib import Path
from threading import Lock

from tensorstore_ds.conversion.partial import Partial, already_exists, check_new
from tensorstore_ds.durable import check_room, partial_of, sync, write_all, write_at
from tensorstore_ds.errors import (
    FormatError,
    OptionError,
    OutputError,
    RemoteError,
    StoreExistsError,
)
from tensorstore_ds.format.manifest import File
from tensorstore_ds.format.root import check_meant, parse_listing, parse_root
from tensorstore_ds.options import refusal
from tensorstore_ds.progress import notebook_bytes
from tensorstore_ds.reading.store import open as open_store
from tensorstore_ds.reading.store_files import MANIFEST_MAX_NBYTES
from tensorstore_ds.reading.verification import verify as verify_store
from tensorstore_ds.regular_files import tidied
from tensorstore_ds.sharing.crew import Crew
from tensorstore_ds.sharing.origin import Origin, origin_of
from tensorstore_ds.sharing.received import Received
from tensorstore_ds.sharing.selection import Content, FileSelection
from tensorstore_ds.sharing.transfer import Counter, OnBytes, Transfer

#: Bytes of one request.
PART_NBYTES = 16 * 1024**2
#: Attempts of a request that returns nothing, and seconds between them.
ATTEMPTS, PAUSE = 4, 0.5
#: Bytes in addition to the files: metadata of the file system.
_SPARE_NBYTES = 1024**2
_READ_NBYTES = 1024**2
_Span = tuple[int, int]
_GO_ON = "The files fetched so far are kept: run the same command again to continue."
_BEGIN = "Run the same command again."


def pull(
    url: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    splits: Collection[str] | None = None,
    fields: Collection[str] | None = None,
    sha256: str | None = None,
    verify: bool = False,
    workers: int = 8,
    progress: OnBytes | None = None,
) -> Transfer:
    """Copy the store at a URL, or a part of it, to a folder on this machine.

    >>> url = Path("photos.tsds").absolute().as_uri()  # or s3://bucket/photos.tsds
    >>> found = tsds.pull(url, "labels.tsds", fields=["label", "key"])
    >>> list(tsds.open("labels.tsds")["train"].fields)
    ['label', 'key']

    The store is written to ``OUT.partial`` and renamed to `out` in one step when it is complete. Every file is compared
    with its SHA-256, and fetched once more if it differs. If the call is interrupted, the same call fetches the missing
    parts. With `splits` or `fields`, only the files of these are copied. The result is a complete store with a new
    digest.

    Args:
        url: URL of the store: ``s3://``, ``gs://``, ``az://``, ``https://``, ``http://``, ``file://`` or
            ``hf://datasets/NAME[@REVISION][/PATH]``; or a path.
        out: path of the copy. It must not exist, or already be a copy of this store.
        splits: names of the splits. None copies all.
        fields: names of the fields. None copies all.
        sha256: the expected `Store.sha256`. None accepts any store.
        verify: also check chunks and values by the rules of the format, as `tensorstore_ds.verify` does.
        workers: number of simultaneous requests, 1 to 256.
        progress: function that is called with (bytes done, bytes in total). It is called from several threads, but
            never from two at the same time. None shows a bar in a notebook.

    Raises:
        RemoteError: the server cannot be reached, rejects a request, or sends wrong bytes.
        FormatError: there is no store, it has a different digest than `sha256`, or it is damaged.
        OptionError: the store does not contain a split or field, `workers` is out of range, or ``OUT.partial`` contains
            parts of a different copy.
        OutputError: the disk is full, or `out` cannot be written.
        StoreExistsError: `out` contains something else.
        ConversionError: a different process is copying to `out`, or the copy is complete but its folder could not be
            synced.
    """
    if isinstance(workers, bool) or not isinstance(workers, int) or not 1 <= workers <= 256:
        raise refusal("workers", "a number from 1 to 256", workers)
    target, origin = tidied(out), origin_of(url)
    counter = Counter(progress or notebook_bytes("Fetching"))
    root = origin.root()
    selection = FileSelection(root, splits, fields)
    check_meant(root, selection.sha256, sha256, origin.url)
    with _one_line(target):
        return _Pull(origin, target, selection, counter, workers, verify).run()


class _Arrival:
    """A file in transfer. It is hashed up to its first gap, so that little remains at its end."""

    def __init__(self, name: str, file: File, parts: list[_Span]) -> None:
        self.name, self.file, self.parts = name, file, parts
        self.waiting = {start for start, _ in parts}  # of those that are outstanding
        self.hashed, self.sha256 = 0, hashlib.sha256()
        self.hashing = Lock()  # held by the thread that hashes


class _Pull:
    """One copy."""

    def __init__(
        self, origin: Origin, out: Path, selection: FileSelection, counter: Counter, workers: int, verify: bool
    ) -> None:
        self._origin, self._out, self._selection = origin, out, selection
        self._counter, self._verify = counter, verify
        self._crew = Crew(workers)
        self._work = partial_of(out)
        self._store = self._work / "store"
        self._is_of_another = False  # what the work folder holds
        self._folder = Partial(self._work, "copy", keeps=lambda: self._is_of_another or _has_parts(out))
        self._received: Received
        self._lock = Lock()

    def run(self) -> Transfer:
        if os.path.lexists(self._out):
            if not self._selection.is_part:
                return self._same(self._selection.sha256, 0)
            content = self._selection.content(self._read_lists(None))  # which say what store the part will be
            return self._same(content.sha256, content.nbytes)
        check_new(self._out)
        with self._folder:
            self._begin()
            content = self._selection.content(self._read_lists(self._work / "lists"))
            content = self._selection.signed(content, self._origin)
            self._fetch(content)
            self._commit(content)
        counter = self._counter
        return Transfer(str(self._out), content.sha256, content.nbytes, counter.moved, counter.seconds)

    def _same(self, sha256: str, nbytes: int) -> Transfer:
        """Return the store that already is at `out`; raises `StoreExistsError` if it is a different one."""
        try:
            store = open_store(self._out)
        except FormatError:
            store = None
        if store is None or store.sha256 != sha256:
            raise already_exists(self._out, "a new path or a copy of this store", "another store" if store else None)
        self._folder.remove_leftover()
        with contextlib.suppress(FileNotFoundError):
            nbytes = nbytes or store.nbytes + (self._out / "zarr.json").stat().st_size
        return Transfer(str(self._out), sha256, nbytes, 0, self._counter.seconds, was_there=True)

    # --- the work folder ---

    def _begin(self) -> None:
        """Record what is copied, or compare it with the record of an interrupted run."""
        selection = self._selection
        names = {"splits": [*selection.manifest.splits], "fields": [*selection.fields]}
        plan = {"copy of": selection.sha256, **names}
        begun = self._folder.read("plan.json")
        journal = self._work / "journal"
        if (begun is not None and begun != plan) or (journal.is_dir() and any(journal.iterdir())):
            self._is_of_another = True
            advice = "Repeat that command to continue it, or remove this directory."
            raise OptionError(f"{self._work}: parts of another copy or conversion are kept here. {advice}")
        if begun is None:
            self._folder.remove_all_but(set())
            self._folder.write("plan.json", plan)
        for name in ("lists", "store"):
            self._folder.make_folder(name)

    def _read_lists(self, kept: Path | None) -> dict[str, bytes]:
        """The shards' lists of the whole store, by name; an earlier run's lists are in `kept`."""
        lists: dict[str, bytes] = {}
        shards = self._selection.lists()

        def read(name: str) -> None:
            file = kept / name.replace("/", ".") if kept else None
            if file is not None and file.is_file():
                lists[name] = file.read_bytes()
                with contextlib.suppress(FormatError):
                    parse_listing(lists[name], name, shards[name])
                    return
            for attempt in range(ATTEMPTS):
                self._crew.check()
                try:
                    data = self._origin.read(name, min(MANIFEST_MAX_NBYTES, shards[name].nbytes))
                    parse_listing(data, name, shards[name])
                    break
                except (RemoteError, FormatError) as error:
                    if attempt == ATTEMPTS - 1 or not _may_pass(error):
                        raise self._explained(error) from error
                    self._crew.wait(PAUSE)
            self._counter.moved += len(data)
            lists[name] = data
            if file is not None:
                file.write_bytes(data)

        self._crew.run(read, shards)
        return lists

    # --- fetching ---

    def _fetch(self, content: Content) -> None:
        more = sum(map(len, content.lists.values())) + len(content.root) + _SPARE_NBYTES
        least = sum(file.size for name, file in content.files.items() if not self._is_begun(name, file))
        check_room(self._out, least + more)  # before the record, which takes memory by the listed sizes
        descriptor = self._folder.open_file("received", os.O_RDWR | os.O_CREAT)
        with contextlib.closing(Received(descriptor, content.files)) as self._received:
            arrivals = [_Arrival(name, file, self._missing(name, file)) for name, file in content.files.items()]
            nbytes = sum(stop - start for arrival in arrivals for start, stop in arrival.parts)
            check_room(self._out, nbytes + more)
            total = sum(file.size for file in content.files.values())
            self._counter.begin(total - nbytes, total)
            self._crew.run(self._part, self._parts(arrivals))

    def _is_begun(self, name: str, file: File) -> bool:
        """Whether an interrupted copy has a file of this size, perhaps with holes."""
        path = self._store / name
        return path.is_file() and path.stat().st_size == file.size

    def _missing(self, name: str, file: File) -> list[_Span]:
        """The missing parts of a file, one for each request; an empty one if it only has to be checked."""
        step = PART_NBYTES
        if not self._is_begun(name, file):
            self._received.forget(name)
        if self._received.is_whole(name):
            return []
        gaps = self._received.missing(name)
        if gaps and not self._origin.has_ranges:
            gaps, step = [(0, file.size)], file.size
        parts = [(at, min(at + step, stop)) for start, stop in gaps for at in range(start, stop, step)]
        return parts or [(file.size, file.size)]

    def _parts(self, arrivals: list[_Arrival]) -> Iterator[tuple[_Arrival, int, int]]:
        """The missing parts; each file is created here before its first part."""
        for arrival in arrivals:
            if not arrival.parts:
                continue
            path = self._store / arrival.name
            path.parent.mkdir(parents=True, exist_ok=True)
            with open(path, "ab"):
                os.truncate(path, arrival.file.size)
            for start, stop in arrival.parts:
                yield arrival, start, stop

    def _part(self, item: tuple[_Arrival, int, int]) -> None:
        """Download a part, and check the file after its last one."""
        arrival, start, stop = item
        self._fetch_part(arrival.name, start, stop)
        with self._lock:
            arrival.waiting.discard(start)
            there, is_last = min(arrival.waiting, default=arrival.file.size), not arrival.waiting
        if arrival.hashing.acquire(blocking=is_last):  # if another thread hashes, a later one does the rest
            try:
                self._hash(arrival, there)
            finally:
                arrival.hashing.release()
        if is_last:
            self._finish(arrival)

    def _hash(self, arrival: _Arrival, stop: int) -> None:
        with open(self._store / arrival.name, "rb", buffering=0) as file:
            file.seek(arrival.hashed)
            while arrival.hashed < stop and (data := file.read(min(_READ_NBYTES, stop - arrival.hashed))):
                self._crew.check()
                arrival.sha256.update(data)
                arrival.hashed += len(data)

    def _fetch_part(self, name: str, start: int, stop: int) -> None:
        """Write bytes ``[start, stop)`` of a file into place. After an interruption, the rest is requested again."""
        at, attempt = start, 0
        while at < stop:
            before = at
            try:
                for piece in self._origin.pieces(name, at, stop):
                    self._crew.check()
                    write_at(self._store / name, piece, at)
                    at += len(piece)
                    self._received.add(name, start, at)
                    self._counter.add(len(piece))
            except RemoteError as error:
                # A server that does not answer was already asked for a minute.
                attempt += 2 if error.reason == "unreachable" else 1
                if at > before and self._origin.has_ranges:
                    attempt = 0
                if attempt >= ATTEMPTS or not _may_pass(error):
                    raise self._explained(error) from error
                if not self._origin.has_ranges:  # the file comes from its beginning again
                    self._counter.skip(start - at)
                    at = start
                self._crew.wait(PAUSE * attempt)

    def _finish(self, arrival: _Arrival) -> None:
        """Compare a file with its SHA-256; a wrong one is downloaded once more."""
        name, file = arrival.name, arrival.file
        found = arrival.sha256.hexdigest()
        if found != file.sha256:
            self._received.forget(name)
            self._counter.skip(-file.size)
            for start, stop in self._missing(name, file):
                self._fetch_part(name, start, stop)
            again = _Arrival(name, file, [])  # a late thread may still look at the first one
            self._hash(again, file.size)
            found = again.sha256.hexdigest()
        if found != file.sha256:
            self._received.forget(name)
            message = f"expected SHA-256 {file.sha256[:12]}..., found {found[:12]}... twice"
            error = RemoteError(f"{self._origin.url}/{name}: {message}. This file is damaged there: tell its owner.")
            raise self._explained(error)
        sync(self._store / name)
        self._received.add_whole(name)

    def _explained(self, error: RemoteError | FormatError) -> RemoteError | FormatError:
        """The error, or if the store was replaced meanwhile, an error that gives this as the cause."""
        if getattr(error, "reason", "") in ("refused", "unreachable"):
            return error
        with contextlib.suppress(RemoteError, FormatError):
            if parse_root(self._origin.root())[1] != self._selection.sha256:
                advice = f"Remove {self._work} and run the same command again."
                text = f"{self._origin.url}: the store was replaced by another while it was copied. {advice}"
                return RemoteError(text, "replaced")
        return error

    # --- the end ---

    def _commit(self, content: Content) -> None:
        """Complete the store and let it appear."""
        for name, data in {**content.lists, "zarr.json": content.root}.items():
            path = self._store / name
            path.parent.mkdir(parents=True, exist_ok=True)
            with open(path, "wb", buffering=0) as file:
                write_all(file, data)
                os.fsync(file.fileno())
        for folder, _, _ in os.walk(self._store, topdown=False):
            sync(Path(folder))
        open_store(self._store, sha256=content.sha256)
        problems = verify_store(self._store) if self._verify else []
        if problems:
            raise FormatError(problems, f"The store at {self._origin.url} is damaged: tell its owner.")
        self._folder.put_store(self._out)


def _may_pass(error: RemoteError | FormatError) -> bool:
    """Whether the same request may succeed the next time."""
    return error.reason not in ("missing", "no-bucket", "refused", "replaced", "unsafe-path", "symlink", "missing-file")


def _has_parts(out: Path) -> bool:
    """Whether the next run can use received parts."""
    received = partial_of(out) / "received"
    return received.is_file() and any(received.read_bytes())


@contextlib.contextmanager
def _one_line(out: Path) -> Iterator[None]:
    """Turn errors of the system into `OutputError`; received parts stay in ``OUT.partial``."""
    try:
        yield
    except (RemoteError, StoreExistsError):  # system errors to Python, too
        raise
    except OSError as error:
        advice = _GO_ON if _has_parts(out) else _BEGIN
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise OutputError(f"{out}: the disk is full. Make room. {advice}") from error
        raise OutputError(f"{error.filename or out}: {error.strerror or error}. {advice}") from error
