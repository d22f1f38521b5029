"""Receive a store from a URL, or a path, into a folder that appears in one step.

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
import hashlib
import os
from collections.abc import Iterator
from pathlib import Path
from threading import Lock

from tensorstore_ds.conversion.partial import Partial, already_exists, check_new
from tensorstore_ds.durable import check_room, partial_of, sync, write_all, write_at
from tensorstore_ds.errors import FormatError, OptionError, RemoteError
from tensorstore_ds.format.history import states_of
from tensorstore_ds.format.manifest import File
from tensorstore_ds.format.root import parse_listing, parse_root
from tensorstore_ds.reading.store import open as open_store
from tensorstore_ds.reading.store_files import MANIFEST_MAX_NBYTES
from tensorstore_ds.reading.verification import verify as verify_store
from tensorstore_ds.sharing.crew import Crew
from tensorstore_ds.sharing.origin import Origin, Remote
from tensorstore_ds.sharing.received import Received
from tensorstore_ds.sharing.selection import Content, FileSelection
from tensorstore_ds.sharing.transfer import Counter, Transfer

#: Bytes of one request.
PART_NBYTES = 16 * 1024**2
#: Attempts of a request that returns nothing, and seconds between them.
ATTEMPTS, PAUSE = 4, 0.5
#: Bytes in addition to the files: metadata of the file system.
_SPARE_NBYTES = 1024**2
_READ_NBYTES = 1024**2
_Span = tuple[int, int]


class _Arrival:
    """A file in transfer. It is hashed up to its first gap, so that little remains at its end."""

    def __init__(self, name: str, file: File, parts: list[_Span]) -> None:
        self.name, self.file, self.parts = name, file, parts
        self.waiting = {start for start, _ in parts}  # of those that are outstanding
        self.hashed, self.sha256 = 0, hashlib.sha256()
        self.hashing = Lock()  # held by the thread that hashes


class Pull:
    """One copy."""

    def __init__(
        self, origin: Origin, out: Path, selection: FileSelection, counter: Counter, workers: int, verify: bool
    ) -> None:
        self.origin, self.out, self.selection = origin, out, selection
        self.verifies = verify  # chunks and values
        self._counter = counter
        self._crew = Crew(workers)
        self.work = partial_of(out)
        self.store = self.work / "store"
        self._is_of_another = False  # what the work folder holds
        self.folder = Partial(self.work, "copy", keeps=lambda: self._is_of_another or has_parts(out))
        self._received: Received
        self._lock = Lock()

    def run(self) -> Transfer:
        """Copy to a new path."""
        if os.path.lexists(self.out):
            if not self.selection.is_part:
                return self._same(self.selection.sha256, 0)
            content = self.selection.content(self.read_lists(None))  # which say what store the part will be
            return self._same(content.sha256, content.nbytes)
        check_new(self.out)
        with self.folder:
            self.begin()
            content = self.selection.content(self.read_lists(self.work / "lists"))
            content = self.selection.signed(content, self.origin)
            self.fetch(content)
            self.complete(content)
            self.folder.put_store(self.out)
        return self.transfer(content)

    def transfer(self, content: Content, *, was_there: bool = False) -> Transfer:
        """The result of the call."""
        counter = self._counter
        return Transfer(str(self.out), content.sha256, content.nbytes, counter.moved, counter.seconds, was_there)

    def _same(self, sha256: str, nbytes: int) -> Transfer:
        """Return the store that already is at `out`; raises `StoreExistsError` if it is a different one."""
        try:
            store = open_store(self.out)
        except FormatError:
            store = None
        if store is None or store.sha256 != sha256:
            found, advice = "another store" if store else None, "Choose another path, or remove this one first."
            if store is not None and store.sha256 in states_of(self.selection.whole.provenance):
                advice = "Update it with tsds pull and `update=True`."
                if self.out.is_file():
                    advice = "Unpack it with tsds unpack, and update that folder with tsds pull and `update=True`."
                found = "an earlier state of it"
            raise already_exists(self.out, "a new path or a copy of this store", found, advice)
        advice = f"Remove {self.out} and run the same command again"
        self.verify(self.out, f"{advice}." if self.out.is_file() else f"{advice}, or mend it with `update=True`.")
        self.folder.remove_leftover()
        with contextlib.suppress(FileNotFoundError):
            nbytes = nbytes or store.nbytes + (self.out / "zarr.json").stat().st_size
        return Transfer(str(self.out), sha256, nbytes, 0, self._counter.seconds, was_there=True)

    # --- the work folder ---

    def begin(self, before: str = "") -> None:
        """Record what is copied, or compare it with the record of an interrupted run.

        `before` is the digest of an earlier state that is updated. Its work is dropped if another state was copied.
        """
        selection = self.selection
        names = {"splits": [*selection.manifest.splits], "fields": [*selection.fields]}
        plan = {"copy of": selection.sha256, **names, **({"update of": before} if before else {})}
        begun = self.folder.read("plan.json")
        if before and begun is not None and begun != plan and "update of" in begun:
            begun = None
        journal = self.work / "journal"
        if (begun is not None and begun != plan) or (journal.is_dir() and any(journal.iterdir())):
            self._is_of_another = True
            advice = "Repeat that command to continue it, or remove this directory."
            raise OptionError(f"{self.work}: parts of another copy or conversion are kept here. {advice}")
        if begun is None:
            self.folder.remove_all_but(set())
            self.folder.write("plan.json", plan)
        for name in ("lists", "store"):
            self.folder.make_folder(name)

    def read_lists(self, kept: Path | None, store: Path | None = None) -> dict[str, bytes]:
        """The shards' lists of the whole store, by name. Those of an earlier run are in `kept`, others in `store`."""
        lists: dict[str, bytes] = {}
        shards = self.selection.lists()

        def read(name: str) -> None:
            file = kept / name.replace("/", ".") if kept else None
            for there in (file, store / name if store else None):
                if there is not None and there.is_file():
                    lists[name] = there.read_bytes()
                    with contextlib.suppress(FormatError):
                        parse_listing(lists[name], name, shards[name])
                        return
            attempt = 0
            while True:
                self._crew.check()
                try:
                    data = self.origin.read(name, min(MANIFEST_MAX_NBYTES, shards[name].nbytes))
                    parse_listing(data, name, shards[name])
                    break
                except (RemoteError, FormatError) as error:
                    attempt += _attempts(error)
                    if attempt >= ATTEMPTS or not _may_pass(error):
                        raise self._explained(error) from error
                    self._crew.wait(PAUSE)
            self._counter.moved += len(data)
            lists[name] = data
            if file is not None:
                file.write_bytes(data)

        self._crew.run(read, shards)
        return lists

    # --- fetching ---

    def fetch(self, content: Content) -> None:
        """Receive the files into the work folder."""
        more = sum(map(len, content.lists.values())) + len(content.root) + _SPARE_NBYTES
        least = sum(file.size for name, file in content.files.items() if not self._is_begun(name, file))
        check_room(self.out, least + more)  # before the record, which takes memory by the listed sizes
        descriptor = self.folder.open_file("received", os.O_RDWR | os.O_CREAT)
        with contextlib.closing(Received(descriptor, content.files)) as self._received:
            arrivals = [_Arrival(name, file, self._missing(name, file)) for name, file in content.files.items()]
            nbytes = sum(stop - start for arrival in arrivals for start, stop in arrival.parts)
            check_room(self.out, nbytes + more)
            total = sum(file.size for file in content.files.values())
            self._counter.begin(total - nbytes, total)
            self._crew.run(self._part, self._parts(arrivals))

    def _is_begun(self, name: str, file: File) -> bool:
        """Whether an interrupted copy has a file of this size, perhaps with holes."""
        path = self.store / name
        return path.is_file() and path.stat().st_size == file.size

    def _missing(self, name: str, file: File) -> list[_Span]:
        """The missing parts of a file, one for each request; an empty one if it only has to be checked."""
        step = PART_NBYTES
        if not self._is_begun(name, file):
            self._received.forget(name)
        if self._received.is_whole(name):
            return []
        gaps = self._received.missing(name)
        if gaps and not self.origin.has_ranges:
            gaps, step = [(0, file.size)], file.size
        parts = [(at, min(at + step, stop)) for start, stop in gaps for at in range(start, stop, step)]
        return parts or [(file.size, file.size)]

    def _parts(self, arrivals: list[_Arrival]) -> Iterator[tuple[_Arrival, int, int]]:
        """The missing parts; each file is created here before its first part."""
        for arrival in arrivals:
            if not arrival.parts:
                continue
            path = self.store / arrival.name
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
        with open(self.store / arrival.name, "rb", buffering=0) as file:
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
                for piece in self.origin.pieces(name, at, stop):
                    self._crew.check()
                    write_at(self.store / name, piece, at)
                    at += len(piece)
                    self._received.add(name, start, at)
                    self._counter.add(len(piece))
            except RemoteError as error:
                attempt += _attempts(error)
                if at > before and self.origin.has_ranges:
                    attempt = 0
                if attempt >= ATTEMPTS or not _may_pass(error):
                    raise self._explained(error) from error
                if not self.origin.has_ranges:  # the file comes from its beginning again
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
            advice = "This store is damaged: make it again, or copy it from where it is whole."
            if isinstance(self.origin, Remote):
                advice = "This file is damaged there: tell its owner."
            if has_parts(self.out):
                advice += f" To copy a different store to {self.out}, remove {self.work} first."
            raise self._explained(RemoteError(f"{self.origin.url}/{name}: {message}. {advice}"))
        sync(self.store / name)
        self._received.add_whole(name)

    def _explained(self, error: RemoteError | FormatError) -> RemoteError | FormatError:
        """The error, or if the store was replaced meanwhile, an error that gives this as the cause."""
        if getattr(error, "reason", "") in ("refused", "unreachable"):
            return error
        with contextlib.suppress(RemoteError, FormatError):
            if parse_root(self.origin.root())[1] != self.selection.sha256:
                advice = f"Remove {self.work} and run the same command again."
                text = f"{self.origin.url}: the store was replaced by another while it was copied. {advice}"
                return RemoteError(text, "replaced")
        return error

    # --- the end ---

    def complete(self, content: Content) -> None:
        """Write the lists and the root, and open the store."""
        for name, data in {**content.lists, "zarr.json": content.root}.items():
            path = self.store / name
            path.parent.mkdir(parents=True, exist_ok=True)
            with open(path, "wb", buffering=0) as file:
                write_all(file, data)
                os.fsync(file.fileno())
        for folder, _, _ in os.walk(self.store, topdown=False):
            sync(Path(folder))
        open_store(self.store, sha256=content.sha256)
        self.verify(self.store, f"The store at {self.origin.url} is damaged: tell its owner.")

    def verify(self, store: Path, advice: str) -> None:
        """Check chunks and values of the copy, if this was asked for."""
        if self.verifies and (problems := verify_store(store)):
            raise FormatError(problems, advice)


def _attempts(error: RemoteError | FormatError) -> int:
    """Number of attempts that an error counts for: a server that does not answer was already asked for a minute."""
    return 2 if error.reason == "unreachable" else 1


def _may_pass(error: RemoteError | FormatError) -> bool:
    """Whether the same request may succeed the next time."""
    return error.reason not in ("missing", "no-bucket", "refused", "replaced", "unsafe-path", "symlink", "missing-file")


def has_parts(out: Path) -> bool:
    """Whether the next run can use received parts."""
    received = partial_of(out) / "received"
    return received.is_file() and any(received.read_bytes())
