"""Copy a store to a URL so that it appears complete: its root is written last, and never over a different store.

During a push, a small file ``tsds.push`` at the URL contains the digest of its store, and the root files of an earlier
state that will be removed. It is created only if it does not exist, so that two pushes of different stores never mix
their files, and removed at the end. Without it, nothing is removed at the URL.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from tensorstore_ds import words
from tensorstore_ds.errors import OptionError, RemoteError, StoreExistsError
from tensorstore_ds.format.manifest import File, shard_path
from tensorstore_ds.format.root import parse_listing, parse_root
from tensorstore_ds.format.schema import ROOT_NAME, SIGNATURE
from tensorstore_ds.options import refusal
from tensorstore_ds.progress import notebook_bytes
from tensorstore_ds.reading.store import open as open_store
from tensorstore_ds.reading.store_files import MANIFEST_MAX_NBYTES
from tensorstore_ds.remote.location import PART_NBYTES, Location, is_url
from tensorstore_ds.sharing.crew import Crew
from tensorstore_ds.sharing.existing import Existing, is_to_be_replaced, store_at
from tensorstore_ds.sharing.hub import push_to_hub
from tensorstore_ds.sharing.origin import Origin, local_path, origin_of
from tensorstore_ds.sharing.pull import pull
from tensorstore_ds.sharing.selection import Content, FileSelection, damaged
from tensorstore_ds.sharing.transfer import Counter, OnBytes, Transfer

#: Contains the digest of the store that is being pushed. No file of a store has this name.
CLAIM = "tsds.push"
_CLAIM_MAX_NBYTES = 1 << 20
_WORKERS = 8


def push(store: str | os.PathLike[str], url: str, *, update: bool = False, progress: OnBytes | None = None) -> Transfer:
    """Copy a store to a URL.

    >>> url = (Path.cwd() / "shared").as_uri()  # or s3://bucket/photos.tsds, hf://datasets/me/photos/photos.tsds
    >>> tsds.push("photos.tsds", url).was_there
    False
    >>> tsds.push("photos.tsds", url).was_there
    True

    The ``zarr.json`` of the root is written last, and only if there is none. If you find a store at the URL, it is
    complete. Every file is compared with its SHA-256 while it is read. A second push of the same store transfers
    nothing. After an interruption, the same call transfers the missing files.

    With `update`, a changed store (`append`, `add_fields`, `update`, `erase`, ...) replaces its earlier state: new
    shards are written next to the old ones, then the root is replaced in one step. Only new files are sent. Shards that
    no longer exist at the path are then removed at the URL, but not on the Hub. Readers that have the store open can
    continue, except with these shards.

    Args:
        store: path or URL of the store. With `update`, the path of a folder.
        url: URL of the new folder, with ``s3://``, ``gs://``, ``az://``, ``hf://datasets/NAME/PATH`` or ``file://``.
        update: whether the URL may contain an earlier state of this store. This does not work with ``file://``: use
            `pull`.
        progress: function that is called with (bytes done, bytes in total). It is called from several threads, but
            never from two at the same time. None shows a bar in a notebook.

    Raises:
        StoreExistsError: a different store is at the URL or is being pushed there, or an earlier state without
            `update`.
        FormatError: the store is damaged.
        RemoteError: the server cannot be reached, or rejects a request.
        OptionError: stores cannot be pushed to this URL, or cannot be updated there.
        OutputError: a folder of a ``file://`` URL cannot be written.
    """
    if not is_url(url):
        raise OptionError(f"`url`: expected a URL such as s3://bucket/photos.tsds, found {url}. To a path, use copy.")
    if update and local_path(url) is not None:
        advice = "Refresh the copy there with tsds pull and `update=True`."
        raise OptionError(f"`update`: expected a URL of a server, found {url}. {advice}")
    if update and local_path(store) is None:
        raise refusal("update", "a store at a path; pull it first", store)
    if update and Path(local_path(store) or "").is_file():
        raise refusal("update", "a store that is a folder; unpack it first", store)
    if local_path(url) is not None:
        return pull(store, local_path(url) or url, progress=progress)
    if url.lower().startswith(("http://", "https://")):
        where = words.shown_path(url)
        raise OptionError(f"{where}: a web server takes no store. Push to s3, gs, az or hf, or copy to its folder.")
    source = local_path(store)
    if source is not None:
        open_store(source)  # every file is there, and has its size
    counter = Counter(progress or notebook_bytes("Pushing"))
    origin = origin_of(store)
    content = content_of(origin)
    if url.lower().startswith("hf://"):
        return push_to_hub(source, url, content, counter, update=update)
    return _Push(origin, Location(url), content, counter, source if update else None).run()


def copy(src: str | os.PathLike[str], dst: str | os.PathLike[str], *, progress: OnBytes | None = None) -> Transfer:
    """Copy a store from a path or a URL to a path or a URL, with `pull` or `push`.

    >>> found = tsds.copy("photos.tsds", "copy.tsds")
    >>> found.was_there, tsds.copy("photos.tsds", "copy.tsds").was_there
    (False, True)

    Args:
        src: path or URL of the store.
        dst: path or URL of the copy.
        progress: as in `push`.

    Raises:
        TsdsError: as in `pull` if `dst` is a path, otherwise as in `push`.
    """
    path = local_path(dst)
    return push(src, str(dst), progress=progress) if path is None else pull(src, path, progress=progress)


def content_of(origin: Origin) -> Content:
    """All files of a store from its lists."""
    selection = FileSelection(origin.root(), None, None)
    shards = selection.lists().items()
    lists = {name: origin.read(name, min(MANIFEST_MAX_NBYTES, shard.nbytes)) for name, shard in shards}
    return selection.signed(selection.content(lists), origin)


class _Push:
    """One push to an object store. With `updated`, the path of the store, an earlier state is replaced."""

    def __init__(
        self, origin: Origin, place: Location, content: Content, counter: Counter, updated: Path | None
    ) -> None:
        self._origin, self._place, self._content, self._counter = origin, place, content, counter
        self._updated = updated
        self._before: Existing | None = None
        self._earlier: dict[File, str] = {}
        self._crew = Crew(_WORKERS)

    def run(self) -> Transfer:
        if self._is_there() or self._claim():
            if self._updated is not None or SIGNATURE in self._content.files:
                self._tidy()  # the push that put it there may have been interrupted after its root
            return self._transfer(was_there=True)
        try:
            self._send()
        except RemoteError as error:  # an equal push may have ended, and removed what this one was to copy
            if error.reason != "missing" or not self._is_there():
                raise
        self._tidy()
        return self._transfer()

    def _send(self) -> None:
        """Upload all files, the root last."""
        content = self._content
        self._counter.begin(0, content.nbytes)
        above = {name: file for name, file in content.files.items() if name.count("/") < 2 and name != SIGNATURE}
        within = {name: file for name, file in content.files.items() if name.count("/") >= 2}
        lists = {name: File(len(data), hashlib.sha256(data).hexdigest()) for name, data in content.lists.items()}
        self._read_earlier()
        for files in (within, lists, above):  # files of the root last: an earlier state has some of them, too
            self._crew.run(self._upload, files.items())
        self._commit()

    def _transfer(self, *, was_there: bool = False) -> Transfer:
        content, counter = self._content, self._counter
        nbytes, moved = content.nbytes, 0 if was_there else counter.moved
        return Transfer(self._place.url, content.sha256, nbytes, moved, counter.seconds, was_there)

    def _is_there(self) -> bool:
        """Whether this store is at the URL; raises `StoreExistsError` if a different one is."""
        found = store_at(self._place)
        if found is None:
            return False
        is_before = is_to_be_replaced(self._place.url, found, self._content, update=self._updated is not None)
        self._before = found if is_before else None
        return not is_before

    # --- the claim ---

    def _claim(self) -> bool:
        """Reserve the URL for this store. Returns whether another push has just put the same store there.

        The root is looked up again afterwards, because the push that held the claim before may have ended in between.
        """
        claim = self._own_claim()
        try:
            self._place.create(CLAIM, claim)
        except StoreExistsError:
            self._check_claim()
        try:
            is_there = self._is_there()
        except StoreExistsError:
            self._release()
            raise
        if is_there:
            self._release()
        elif self._own_claim() != claim:  # another push of this store has ended between
            self._place.write(CLAIM, self._own_claim())
        return is_there

    def _own_claim(self) -> bytes:
        """The digest of the store, and the root files that only the earlier state may have, a line each."""
        had = {*self._before.manifest.files, SIGNATURE} if self._before is not None else set[str]()
        gone = had - self._content.files.keys()
        return "\n".join([self._content.sha256, *sorted(gone), ""]).encode()

    def _read_claim(self) -> list[str]:
        """The lines of the claim; empty if there is no claim."""
        try:
            return self._place.read_all(CLAIM, _CLAIM_MAX_NBYTES)[0].decode("utf-8", "replace").splitlines()
        except RemoteError as error:
            if error.reason != "missing":
                raise
            return []

    def _check_claim(self) -> None:
        """Raise `StoreExistsError` unless the claim is this store's; the claim of a finished push is taken over."""
        found = self._read_claim()
        if found[:1] == [self._content.sha256]:
            return
        where = f"{self._place.url}/{CLAIM}"
        if not found:
            if self._is_there():
                return
            raise StoreExistsError(f"{where}: this file was removed during the push. Run the same command again.")
        if self._before is not None and found[0] == self._before.sha256:  # all of it is there; it was killed then
            self._place.remove(CLAIM)
            self._place.create(CLAIM, self._own_claim())
            return
        what = f"another store ({found[0][:12]}...) is being pushed here, or was and the push was interrupted"
        raise StoreExistsError(f"{where}: {what}. Let it end, choose another URL, or remove this file.")

    def _release(self) -> None:
        with contextlib.suppress(RemoteError):  # what is left is in nobody's way
            if self._read_claim()[:1] == [self._content.sha256]:
                self._place.remove(CLAIM)

    # --- files ---

    def _upload(self, item: tuple[str, File]) -> None:
        """Write a file, unless it is there with the same size and recorded SHA-256."""
        name, file = item
        self._crew.check()
        earlier = self._earlier.get(file)
        if self._has(name, file) or (earlier and self._place.copy(earlier, name) and self._has(name, file)):
            self._counter.skip(file.size)
            return
        parts = self._parts(name, file)
        if file.size <= PART_NBYTES:
            self._place.write(name, b"".join(parts), sha256=file.sha256)
        else:
            self._place.write(name, parts, sha256=file.sha256)

    def _has(self, name: str, file: File) -> bool:
        found = self._place.find(name)
        return found is not None and (found.nbytes, found.sha256) == (file.size, file.sha256)

    def _parts(self, name: str, file: File) -> Iterator[bytes]:
        """The bytes of a file in parts of `PART_NBYTES`; ends with an error if their SHA-256 differs."""
        data = self._content.lists.get(name)
        pieces = iter((memoryview(data),)) if data is not None else self._origin.pieces(name, 0, file.size)
        sha256, part = hashlib.sha256(), bytearray()
        for piece in pieces:
            self._crew.check()
            sha256.update(piece)
            part += piece
            while len(part) > PART_NBYTES:
                yield bytes(part[:PART_NBYTES])
                del part[:PART_NBYTES]
                self._counter.add(PART_NBYTES)
        if sha256.hexdigest() != file.sha256:
            raise damaged(name, file, sha256.hexdigest())
        yield bytes(part)
        self._counter.add(len(part))

    def _commit(self) -> None:
        """Write the root if there is none, which makes the store appear."""
        if not self._is_there():
            self._check_claim()
            try:
                if self._before is None:
                    self._place.create("zarr.json", self._content.root)
                else:
                    self._place.replace("zarr.json", self._content.root, self._before.etag)
                self._counter.add(len(self._content.root))
            except StoreExistsError:
                if not self._is_there():
                    raise

    # --- what is left of an earlier state ---

    def _tidy(self) -> None:
        """Write the store's signature, remove files of an earlier state only, and release the claim.

        While a different store is being pushed, it does nothing, because that push removes the rest.
        """
        signature = self._content.files.get(SIGNATURE)
        claim = self._read_claim()
        if not claim and (self._updated is not None or signature is not None):
            with contextlib.suppress(StoreExistsError):
                self._place.create(CLAIM, self._own_claim())
            claim = self._read_claim()
        if claim[:1] != [self._content.sha256]:
            return
        found = store_at(self._place)
        if found is not None and found.sha256 == self._content.sha256:
            if signature is not None:
                self._crew.run(self._upload, [(SIGNATURE, signature)])
            if self._updated is not None:
                self._remove_replaced(claim[1:], self._updated)
        self._release()

    def _read_earlier(self) -> None:
        """Find the files of the earlier state in replaced shards, because the server can copy equal ones."""
        if self._before is None:
            return
        now, before = parse_root(self._content.root)[0], self._before.manifest
        for split, entry in before.splits.items():
            kept = now.splits[split].numbers if split in now.splits else ()
            for number, shard in zip(entry.numbers, entry.shards, strict=True):
                if number not in kept:
                    where = f"{shard_path(split, number)}/zarr.json"
                    data, _ = self._place.read_all(where, MANIFEST_MAX_NBYTES)
                    listing = parse_listing(data, where, shard)
                    self._earlier |= {file: f"{shard_path(split, number)}/{path}" for path, file in listing.items()}

    def _remove_replaced(self, gone: Sequence[str], path: Path) -> None:
        """Remove former parts of the store that no longer exist at its `path`: shards, root files and a signature.

        `gone` are root files that the claim names; invalid names are ignored. A shard number above all former ones may
        belong to another push, of a later state, and is kept.
        """
        for name in set(gone) - self._content.files.keys():
            if ROOT_NAME.fullmatch(name) and name != "zarr.json":
                self._place.remove(name)
        for split, entry in parse_root(self._content.root)[0].splits.items():
            last = max((*entry.numbers, *entry.replaced), default=-1)
            for folder in self._place.folders(split):
                number = folder.removeprefix(f"{split}/")
                had = number.isdecimal() and int(number) <= last and int(number) not in entry.numbers
                if had and folder == shard_path(split, int(number)) and not (path / folder).is_dir():
                    self._crew.run(self._place.remove, self._place.files(folder))
