"""A place by URL: files that are read by range, and written, by name. obstore (the extra ``cloud``) does the talking.

Credentials are those that obstore and huggingface_hub find by themselves, in the environment or on the machine. They
are never asked for here, never kept, and never part of a message.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from tensorstore_ds.errors import OptionError, RemoteError, StoreExistsError

#: What a URL may begin with.
SCHEMES = ("s3", "gs", "az", "https", "http", "hf", "file")
#: Bytes of a part of an upload.
PART_NBYTES = 16 * 1024**2
_WAIT = {"connect_timeout": "10s", "timeout": "60s"}
_URL = re.compile(r"([a-z][a-z0-9+.-]*)://", re.IGNORECASE)
_STATUS = re.compile(r"\b([45]\d\d) [A-Z][a-z]+")


def is_url(place: object) -> bool:
    """Whether this is a URL, and no path."""
    return isinstance(place, str) and _URL.match(place) is not None


@dataclass(frozen=True, slots=True)
class Found:
    """A file at a place: its size in bytes, and what tells it from another of its name, if the server says that."""

    nbytes: int
    etag: str | None


class Location:
    """A folder by URL. It may be used by several threads.

    Args:
        url: of the folder.

    Attributes:
        url: as it is shown: without a user, a password or a query.

    Raises:
        OptionError: the URL cannot be used, or the package that it needs is not installed.
    """

    def __init__(self, url: str) -> None:
        self.url = shown(url)
        self._given = url
        self._store = _open(url)

    def __reduce__(self) -> tuple[type[Location], tuple[str]]:
        return Location, (self._given,)

    def __repr__(self) -> str:
        return f"<Location {self.url}>"

    def find(self, name: str) -> Found | None:
        """Size and version of a file; None if it is not there. Raises `RemoteError`."""
        import obstore

        try:
            meta = obstore.head(self._store, name)
        except FileNotFoundError:
            return None
        except Exception as error:
            raise self._error(name, error) from None
        return Found(meta["size"], meta["e_tag"])

    def read(self, name: str, start: int, stop: int, *, etag: str | None = None) -> memoryview:
        """Bytes ``[start, stop)`` of a file, exactly.

        Raises:
            RemoteError: the server cannot be reached, refuses, or sends something else; or the file has another version
                than `etag`.
        """
        return self.read_found(name, start, stop, etag=etag)[0]

    def read_found(self, name: str, start: int, stop: int, *, etag: str | None = None) -> tuple[memoryview, Found]:
        """As `read`, and what the file is that they come from."""
        import obstore

        options: Any = {"range": (start, stop), **({"if_match": etag} if etag else {})}
        try:
            result = obstore.get(self._store, name, options=options)
            begin, end = result.range
            found = Found(result.meta["size"], result.meta["e_tag"])
            data = memoryview(result.bytes())
        except Exception as error:
            raise self._error(name, error) from None
        if (begin, end) != (start, stop) or len(data) != stop - start:
            raise RemoteError(
                f"{self.url}/{name}: expected bytes {start} to {stop}, the server sent {len(data)} from {begin} on. "
                "Does it answer ranges?"
            )
        return data, found

    def read_all(self, name: str, limit: int) -> tuple[bytes, str | None]:
        """A file of at most `limit` bytes, and its version; raises `RemoteError`."""
        import obstore

        try:
            result = obstore.get(self._store, name)
            if result.meta["size"] > limit:
                raise RemoteError(f"{self.url}/{name}: expected at most {limit} bytes, found {result.meta['size']}.")
            return bytes(result.bytes()), result.meta["e_tag"]
        except RemoteError:
            raise
        except Exception as error:
            raise self._error(name, error) from None

    def write(self, name: str, data: bytes | Path) -> None:
        """Write a file, in parts if it is large, over one that is there; raises `RemoteError`."""
        import obstore

        try:
            obstore.put(self._store, name, data, chunk_size=PART_NBYTES, mode="overwrite")
        except Exception as error:
            raise self._error(name, error) from None

    def create(self, name: str, data: bytes) -> None:
        """Write a file unless there is one of this name, in one step.

        Raises:
            StoreExistsError: there is one.
            RemoteError: as of `write`.
        """
        import obstore

        try:
            obstore.put(self._store, name, data, mode="create", use_multipart=False)
        except obstore.exceptions.AlreadyExistsError:
            raise StoreExistsError(f"{self.url}/{name} is there already.") from None
        except Exception as error:
            raise self._error(name, error) from None

    def _error(self, name: str, error: Exception) -> RemoteError:
        """What to raise for what obstore raised. Its own words may hold a signed URL, so they are not passed on."""
        import obstore.exceptions as known

        where = f"{self.url}/{name}"
        status = _STATUS.search(str(error))
        if isinstance(error, FileNotFoundError):
            return RemoteError(f"{where}: there is no such file.", "missing")
        if isinstance(error, known.PreconditionError):
            return RemoteError(f"{where}: the file was replaced by another. Open the store again.", "replaced")
        if isinstance(error, known.UnauthenticatedError | known.PermissionDeniedError) or (
            status and status[1] in ("401", "403")
        ):
            return RemoteError(f"{where}: access is refused. Check the credentials, and what they allow.", "refused")
        what = f"the server answers {status[0]}" if status else "the server cannot be reached, or does not answer"
        return RemoteError(f"{where}: {what}. Check the URL and the network, and try again.", "unreachable")


def shown(url: str) -> str:
    """A URL without user, password, query and fragment, and without a slash at its end."""
    parts = urlsplit(url)
    host = parts.netloc.rpartition("@")[2]
    return urlunsplit((parts.scheme, host, parts.path.rstrip("/"), "", ""))


def _open(url: str) -> Any:
    found = _URL.match(url)
    scheme = found[1].lower() if found else ""
    if scheme not in SCHEMES:
        raise OptionError(f"{shown(url)}: expected a URL that begins with {', '.join(f'{s}://' for s in SCHEMES)}.")
    try:
        from obstore import store
    except ImportError:
        raise OptionError(f"{shown(url)}: obstore is not installed: pip install 'tensorstore-ds[cloud]'") from None
    options: Any = {**_WAIT}
    try:
        if scheme == "file":
            return store.LocalStore(urlsplit(url).path, mkdir=True)
        if scheme in ("http", "https"):
            options["allow_http"] = scheme == "http"
            return store.HTTPStore.from_url(url, client_options=options)
        plain = {"allow_http": True} if os.environ.get("AWS_ALLOW_HTTP", "").lower() in ("1", "true") else {}
        return store.from_url(url, client_options={**options, **plain})  # type: ignore[call-overload]
    except Exception as error:
        raise OptionError(f"{shown(url)}: this URL cannot be used ({type(error).__name__}).") from None
