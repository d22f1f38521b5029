"""The origin of a copied store, a folder or a URL. Both return files by name."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote, urlsplit

from tensorstore_ds import words
from tensorstore_ds.errors import FormatError, OptionError, Problem, RemoteError
from tensorstore_ds.reading.mirror import no_store
from tensorstore_ds.reading.store_files import MANIFEST_MAX_NBYTES, open_file
from tensorstore_ds.regular_files import tidied
from tensorstore_ds.remote.location import PIECE_NBYTES, Location, check_url, is_url


class Folder:
    """A store on this machine. Links in it are not followed."""

    has_ranges = True

    def __init__(self, path: Path) -> None:
        self.url = str(path)
        self._path = path

    def root(self) -> bytes:
        """Read the root's ``zarr.json``."""
        if not (self._path / "zarr.json").exists():
            what = "this is not a store (it has no zarr.json)" if self._path.exists() else "there is no such store"
            advice = "Unpack a packed store with tsds unpack." if self._path.is_file() else "Correct the path."
            raise FormatError(Problem(words.missing_path(self._path), "not-a-store", f"{what}. {advice}"))
        try:
            return self.read("zarr.json", MANIFEST_MAX_NBYTES)
        except FormatError as error:
            problem = Problem(f"{self._path}/zarr.json", error.reason, error.problems[0].message)
            raise FormatError(problem) from error

    def read(self, name: str, limit: int) -> bytes:
        """Read a file of at most `limit` bytes."""
        with open_file(self._path, name) as file:
            data = file.read(limit + 1)
        if len(data) > limit:
            raise FormatError(Problem(name, "file-size", f"expected at most {limit} bytes, found more."))
        return data

    def pieces(self, name: str, start: int, stop: int) -> Iterator[memoryview]:
        """Yield bytes ``[start, stop)`` of a file."""
        with open_file(self._path, name) as file:
            file.seek(start)
            while start < stop:
                data = file.read(min(PIECE_NBYTES, stop - start))
                if not data:
                    raise FormatError(Problem(name, "file-size", f"expected {stop} bytes, found {start}."))
                start += len(data)
                yield memoryview(data)


class Remote:
    """A store by URL."""

    def __init__(self, location: Location) -> None:
        self.url = location.url
        self.has_ranges = True
        self._location = location

    def root(self) -> bytes:
        """Read the root's ``zarr.json``."""
        try:
            data, _ = self._location.read_all("zarr.json", MANIFEST_MAX_NBYTES)
        except RemoteError as error:
            if error.reason != "missing":
                raise
            raise no_store(self.url) from error
        try:
            self._location.read("zarr.json", 1, 2)
        except RemoteError as error:
            if error.reason != "no-ranges":
                raise
            self.has_ranges = False
        return data

    def read(self, name: str, limit: int) -> bytes:
        """Read a file of at most `limit` bytes."""
        return self._location.read_all(name, limit)[0]

    def pieces(self, name: str, start: int, stop: int) -> Iterator[memoryview]:
        """Yield bytes ``[start, stop)`` of a file; the whole file if there are no ranges."""
        if self.has_ranges:
            return self._location.pieces(name, start, stop)
        return self._location.whole(name, stop)


#: A store's files; `has_ranges`, whether parts can be requested, is known after `root` was read.
Origin = Folder | Remote


def origin_of(place: str | os.PathLike[str]) -> Origin:
    """A path or a URL as an origin; raises `OptionError`."""
    path = local_path(place)
    return Remote(Location(str(place))) if path is None else Folder(path)


def local_path(place: str | os.PathLike[str]) -> Path | None:
    """The path itself, or the path of a ``file://`` URL; None for other URLs."""
    if not is_url(place):
        return tidied(place)
    if not str(place).lower().startswith("file:"):
        return None
    check_url(str(place))
    try:
        parts = urlsplit(str(place))
    except ValueError:
        raise OptionError(f"{words.shown_path(str(place))}: this URL cannot be used. Write file:///PATH.") from None
    if parts.netloc not in ("", "localhost") or not parts.path:
        raise OptionError(f"{words.shown_path(str(place))}: expected file:///PATH on this machine, found a host.")
    return tidied(unquote(parts.path))
