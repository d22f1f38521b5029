"""The cache folder of stores by URL: its contents, their last use, and what is evicted when it is full.

::

    CACHE/
      urls/HASH.json        which store was at a URL last
      DIGEST/zarr.json      the root of a store, as soon as it was opened
      DIGEST/origin.json    where it came from
      DIGEST/lock           locked by the processes that have it open; its time is the last use
      DIGEST/marks/...      which chunks of a file are there
      DIGEST/store.tsds/    its files; it has a zarr.json, and is a store, when all is there
      removed-RANDOM/       what was a DIGEST/, and is being removed: renamed under its lock
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import shutil
import stat
import sys
import time
import weakref
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from tensorstore_ds import words
from tensorstore_ds.durable import linked, lock
from tensorstore_ds.errors import FormatError, OptionError, OutputError
from tensorstore_ds.format.history import states_before_erasure
from tensorstore_ds.format.manifest import File, Manifest, Shard
from tensorstore_ds.format.root import parse_listing, parse_root
from tensorstore_ds.format.strict_json import load_object
from tensorstore_ds.options import user_path
from tensorstore_ds.reading.mirror_file import keep, unwritable
from tensorstore_ds.reading.store_files import check_outside_stores, shards_of

#: Folder of a store's files inside the folder of its mirror.
STORE = "store.tsds"
#: Number of attempts to get a lock that another process holds, and seconds between them.
_LOCK_ATTEMPTS, _LOCK_PAUSE = 600, 0.05
#: After a folder has vanished this many times, it cannot be created.
_FOLDER_ATTEMPTS = 40
_REMOVED = re.compile(r"removed-[0-9a-f]{16}")
#: Largest number of URLs that are recorded for a store.
_URLS = 100
_DIGEST = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class CachedStore:
    """A store that was opened by URL, in the cache on this disk.

    Attributes:
        url: URL by which the store was last opened, without user, password and query.
        sha256: digest of the store.
        path: path of the store's files. You can open the store by this path if `is_whole`.
        nbytes: number of bytes of all files.
        nbytes_there: number of bytes that are on this disk.
        is_whole: whether all files are on this disk.
        is_open: whether a process has the store open.
        last_used: time when the store was last opened, in seconds since 1970.
        urls: all URLs by which the store was opened, the most recent one last.
    """

    url: str
    sha256: str
    path: Path
    nbytes: int
    nbytes_there: int
    is_whole: bool
    is_open: bool
    last_used: float
    urls: tuple[str, ...] = ()


class Mirrored:
    """A store's folder in the cache, which cannot be evicted while this object lives."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.temporary = folder / "temporary"
        self._known: dict[tuple[str, str, File], tuple[Path, str]] | None = None
        path, vanished = folder / "lock", 0
        for _ in range(_LOCK_ATTEMPTS):
            try:
                folder.mkdir(parents=True, exist_ok=True, mode=0o700)
                descriptor = _opened(path)
                with contextlib.ExitStack() as opened:
                    opened.callback(os.close, descriptor)
                    if _has_locked(descriptor, path, shared=True):
                        with contextlib.suppress(OSError):
                            os.utime(path)
                        weakref.finalize(self, opened.pop_all().close)
                        return
            except FileNotFoundError as error:  # it was removed just now, or no folder can be made there
                vanished += 1
                if vanished == _FOLDER_ATTEMPTS:
                    raise unwritable(folder, error) from error
            except OSError as error:
                raise unwritable(folder, error) from error
            time.sleep(_LOCK_PAUSE)
        what = "found it locked by a process that removes it"
        raise OutputError(f"{folder}: expected to use the store's cache here, {what}. Try again.")

    def marks(self, name: str) -> Path:
        """Path of the marks of a data file, for `MirroredFile`."""
        return self.folder / "marks" / name

    def take_over(self, name: str, shard: Shard) -> bytes | None:
        """Link the files of a shard from another cached store, such as this one before it grew.

        Returns the list of the shard's files, whose path is `name`, or None if no store has it.
        """
        for other in _folders(self.folder.parent):
            with contextlib.suppress(OSError, FormatError):
                data = (other / STORE / name).read_bytes()
                for path, file in parse_listing(data, name, shard).items():
                    same = str(Path(name).parent / path)
                    self._link(other, same, same, file)
                return data
        return None

    def take_files(self, folder: str, files: Mapping[str, File]) -> None:
        """Link files of a new shard from earlier states of this store; `files` are relative to `folder`."""
        if self._known is None:
            self._known = self._files_before()
        split = folder.partition("/")[0]
        for path, file in files.items():
            if (found := self._known.get((split, path, file))) is not None:
                self._link(*found, f"{folder}/{path}", file)

    def _files_before(self) -> dict[tuple[str, str, File], tuple[Path, str]]:
        """Files of the stores from the same URLs, last used first, by (split, path in the shard, size and SHA-256)."""
        found: dict[tuple[str, str, File], tuple[Path, str]] = {}
        own = {*_urls(_read_json(self.folder / "origin.json"))}
        for other in sorted(_folders(self.folder.parent), key=lambda each: -(_last_used(each) or 0)):
            if other == self.folder or not own & {*_urls(_read_json(other / "origin.json"))}:
                continue
            with contextlib.suppress(OSError, FormatError):
                manifest, _ = parse_root((other / "zarr.json").read_bytes())
                for split, _, folder, shard in shards_of(manifest):
                    with contextlib.suppress(FileNotFoundError):
                        data = (other / STORE / folder / "zarr.json").read_bytes()
                        for path, file in parse_listing(data, folder, shard).items():
                            found.setdefault((split, path, file), (other, f"{folder}/{path}"))
        return found

    def forget_erased(self, manifest: Manifest) -> None:
        """Remove what only earlier states of this store have, if samples were erased in between.

        Shards that this state also has are kept for `take_over`. Readers of the earlier states keep their maps.
        """
        kept = {shard.sha256 for _, _, _, shard in shards_of(manifest)}
        own = {*_urls(_read_json(self.folder / "origin.json"))}
        for other in _folders(self.folder.parent) if (states := states_before_erasure(manifest.provenance)) else ():
            if other.name not in states or not own & {*_urls(_read_json(other / "origin.json"))}:
                continue
            for split in _subfolders(other / STORE):
                for shard in _subfolders(split):
                    with contextlib.suppress(OSError):
                        if hashlib.sha256((shard / "zarr.json").read_bytes()).hexdigest() in kept:
                            continue
                    for folder in (shard, other / "marks" / split.name / shard.name):
                        _remove_tree(folder)
            for file in (*_entries(other / STORE), other / "zarr.json"):
                if not file.is_dir():
                    file.unlink(missing_ok=True)

    def _link(self, other: Path, name: str, own: str, file: File) -> None:
        """Link the file `name` of another store as `own` if it has its whole length, and copy its marks.

        The marks are read afterwards, so they belong to the linked file and do not include its holes.
        """
        source, target = other / STORE / name, self.folder / STORE / own
        with contextlib.suppress(OSError):
            target.parent.mkdir(parents=True, exist_ok=True)
            status = os.lstat(source)
            is_whole = stat.S_ISREG(status.st_mode) and status.st_size == file.size
            if is_whole and linked(source, target, status):
                keep(self.marks(own), (other / "marks" / name).read_bytes(), self.temporary)


class Cache:
    """The cache folder, by default `TSDS_CACHE_DIR` or the user's, and its limit in bytes, `TSDS_CACHE_LIMIT`."""

    def __init__(self, folder: str | os.PathLike[str] | None = None, limit: int | None = None) -> None:
        given = folder if folder is not None else os.environ.get("TSDS_CACHE_DIR")
        self.folder = user_path(given).absolute() if given else _usual_folder()
        self.limit = _limit() if limit is None else limit

    def root(self, sha256: str) -> bytes | None:
        """The root of a store that was opened before, or None."""
        if not _DIGEST.fullmatch(sha256):
            return None
        with contextlib.suppress(OSError):
            return (self.folder / sha256 / "zarr.json").read_bytes()
        return None

    def last_digest(self, url: str) -> str | None:
        """The digest of the store that was last opened at a URL, or None."""
        found = _read_json(self._url_path(url)).get("sha256")
        return found if isinstance(found, str) and _DIGEST.fullmatch(found) else None

    def use(self, sha256: str, url: str, root: bytes, nbytes: int) -> Mirrored:
        """Make room and return the folder of a store; raises `OptionError` inside a store, and `OutputError`."""
        check_outside_stores(self.folder / "urls")
        mirrored = Mirrored(self.folder / sha256)
        urls = _urls(_read_json(mirrored.folder / "origin.json"))
        urls = [*(each for each in urls if each != url), url][-_URLS:]
        origin: dict[str, object] = {"url": url, "nbytes": nbytes, "urls": urls}
        for path, data in (
            (mirrored.folder / "zarr.json", root),
            (mirrored.folder / "origin.json", _json(origin)),
            (self._url_path(url), _json({"url": url, "sha256": sha256})),
        ):
            with contextlib.suppress(OSError):
                if path.read_bytes() == data:
                    continue
            keep(path, data, mirrored.temporary)
        if self.limit is not None:
            self.shrink(self.limit)
        return mirrored

    def shrink(self, limit: int) -> None:
        """Evict stores that no process has open, least recently used first, until at most `limit` bytes remain."""
        stores = sorted(self.stores(), key=lambda store: store.last_used)
        taken = sum(store.nbytes_there for store in stores)
        for store in stores:
            if taken <= limit:
                return
            if self.evict(store.sha256):
                taken -= store.nbytes_there

    def evict(self, sha256: str) -> bool:
        """Remove a store; False if a process has it open. Raises `OutputError`.

        It is renamed while it is locked, then removed, so that a process that opens the store meanwhile gets a new
        folder.
        """
        folder, removed = self.folder / sha256, self.folder / f"removed-{os.urandom(8).hex()}"
        try:
            descriptor = _opened(folder / "lock")
            try:
                if not _has_locked(descriptor, folder / "lock", shared=False):
                    return False
                if os.name != "nt":
                    folder.rename(removed)
            finally:
                os.close(descriptor)
            if os.name == "nt":  # nothing can be renamed there while one of its files is open
                try:
                    folder.rename(removed)
                except PermissionError:
                    return False
        except FileNotFoundError:
            return True  # another process was quicker
        except OSError as error:
            raise _unremovable(folder, error) from error
        self._forget_urls(sha256)
        self._sweep()
        return True

    def _sweep(self) -> None:
        """Remove renamed folders of this process and of killed ones."""
        for path in _entries(self.folder):
            if _REMOVED.fullmatch(path.name):
                _remove_tree(path)

    def _forget_urls(self, sha256: str) -> None:
        for path in (self.folder / "urls").glob("*.json"):
            if _read_json(path).get("sha256") == sha256:
                with contextlib.suppress(OSError):
                    path.unlink()

    def stores(self) -> Iterator[CachedStore]:
        """Iterate over all stores in the cache."""
        for folder in _folders(self.folder):
            origin = _read_json(folder / "origin.json")
            nbytes = origin.get("nbytes")
            if (last_used := _last_used(folder)) is not None:
                yield CachedStore(
                    url=str(origin.get("url", "?")),
                    sha256=folder.name,
                    path=folder / STORE,
                    nbytes=nbytes if isinstance(nbytes, int) else 0,
                    nbytes_there=_nbytes_on_disk(folder / STORE),
                    is_whole=(folder / STORE / "zarr.json").exists(),
                    is_open=_is_locked(folder / "lock"),
                    last_used=last_used,
                    urls=tuple(_urls(origin)),
                )

    def _url_path(self, url: str) -> Path:
        return self.folder / "urls" / f"{hashlib.sha256(url.encode()).hexdigest()}.json"


def cached_stores(cache_dir: str | os.PathLike[str] | None = None) -> list[CachedStore]:
    """List the stores in the cache that were opened by URL, the most recently used first.

    >>> tsds.reading.cached_stores("cache")  # nothing was opened by URL with cache_dir="cache"
    []

    Args:
        cache_dir: folder of stores by URL, as in `open`.
    """
    return sorted(Cache(cache_dir).stores(), key=lambda store: -store.last_used)


def clear_cache(
    store: str | None = None, *, cache_dir: str | os.PathLike[str] | None = None
) -> tuple[list[CachedStore], list[CachedStore]]:
    """Remove stores that were opened by URL from the cache, except those that a process has open.

    Other files in the folder are not removed.

    >>> removed, kept = tsds.reading.clear_cache(cache_dir="cache")
    >>> len(removed), len(kept)
    (0, 0)

    Args:
        store: the store to remove, as a URL by which it was opened, or its digest or the beginning of the digest. None
            removes all stores.
        cache_dir: folder of stores by URL, as in `open`.

    Returns:
        The stores that were removed, and the stores that remain because a process has them open.

    Raises:
        OptionError: the cache does not contain this store.
        OutputError: files cannot be removed.
    """
    cache = Cache(cache_dir)
    stores = find_cached(store, cache_dir=cache_dir)
    removed = [each for each in stores if cache.evict(each.sha256)]
    return removed, [each for each in stores if each not in removed]


def find_cached(store: str | None, *, cache_dir: str | os.PathLike[str] | None = None) -> list[CachedStore]:
    """The stores that `clear_cache` would remove; raises `OptionError` as it does."""
    cache, stores = Cache(cache_dir), cached_stores(cache_dir)
    if store is None:
        return stores
    from tensorstore_ds.remote.location import is_url

    if is_url(store):
        wanted = words.shown_path(store)
        last = cache.last_digest(wanted)
        stores = [each for each in stores if wanted in each.urls or last == each.sha256]
    else:
        wanted = store.lower()
        stores = [each for each in stores if wanted and each.sha256.startswith(wanted)]
    if not stores:
        raise OptionError(f"{wanted}: expected a store that is kept in {cache.folder}, found none. See tsds cache.")
    return stores


def _usual_folder() -> Path:
    if sys.platform == "darwin":
        return user_path("~/Library/Caches/tensorstore-ds")
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or user_path("~/AppData/Local"), "tensorstore-ds", "Cache")
    return Path(os.environ.get("XDG_CACHE_HOME") or user_path("~/.cache"), "tensorstore-ds")


def _limit() -> int | None:
    text = os.environ.get("TSDS_CACHE_LIMIT", "").strip()
    if not text:
        return None
    limit = words.nbytes(text)
    if limit is None:
        raise OptionError(f"TSDS_CACHE_LIMIT: expected a number of bytes, such as 200GB, found {text[:40]!r}.")
    return limit


def _entries(folder: Path) -> list[Path]:
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        return sorted(folder.iterdir())
    return []


def _folders(cache: Path) -> list[Path]:
    """The folders of stores in a cache."""
    return [each for each in _subfolders(cache) if _DIGEST.fullmatch(each.name)]


def _subfolders(folder: Path) -> list[Path]:
    return [each for each in _entries(folder) if each.is_dir() and not each.is_symlink()]


def _json(value: dict[str, object]) -> bytes:
    return (json.dumps(value, ensure_ascii=False) + "\n").encode()


def _read_json(path: Path) -> dict[str, object]:
    """The JSON object in a file; empty if the file is missing or damaged."""
    with contextlib.suppress(OSError, ValueError, RecursionError):
        return load_object(path.read_bytes())
    return {}


def _nbytes_on_disk(folder: Path) -> int:
    """Bytes that files occupy on the disk, without their holes."""
    total = 0
    for directory, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(OSError):  # removed meanwhile
                status = os.lstat(f"{directory}/{name}")
                total += min(status.st_size, getattr(status, "st_blocks", status.st_size) * 512)
    return total


def _urls(origin: dict[str, object]) -> list[str]:
    urls = origin.get("urls", [origin.get("url")])
    return [url for url in urls if isinstance(url, str)] if isinstance(urls, list) else []


def _last_used(folder: Path) -> float | None:
    """The time of its lock, or of the folder if a cleaner has taken that; None if it was evicted meanwhile."""
    for path in (folder / "lock", folder):
        with contextlib.suppress(FileNotFoundError):
            return path.stat().st_mtime
    return None


def _has_locked(descriptor: int, path: Path, *, shared: bool) -> bool:
    """Lock an open file; False if another process holds the lock, or if `path` is a different file by now."""
    try:
        return lock(descriptor, shared=shared) and os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False


def _is_locked(path: Path) -> bool:
    with contextlib.suppress(OSError):
        descriptor = _opened(path, make=False)
        try:
            return not lock(descriptor)
        finally:
            os.close(descriptor)
    return False


def _opened(path: Path, *, make: bool = True) -> int:
    flags = os.O_RDWR | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NOFOLLOW", 0)
    return os.open(path, flags | (os.O_CREAT if make else 0), 0o600)


def _remove_tree(path: Path) -> None:
    """Remove a folder that other processes may be removing at the same time; raises `OutputError`."""
    while path.exists():
        try:
            shutil.rmtree(path)
        except FileNotFoundError:
            pass  # something in it, by somebody else
        except OSError as error:
            raise _unremovable(path, error) from error


def _unremovable(path: Path, error: OSError) -> OutputError:
    what = f"expected to remove it, found: {error.strerror or error}"
    return OutputError(f"{path}: {what}. Check who may write to this folder.")
