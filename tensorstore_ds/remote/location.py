"""A folder by URL, whose files are read by range and written by name, with obstore (the extra ``cloud``).

obstore and huggingface_hub find credentials themselves, in the environment or on the machine. This module never asks
for them, keeps them, or puts them into a message. They are sent to the host of the URL alone: a redirect to another
host does not include them, and one from https to http is refused. `signed_web` reads URLs with a query, because obstore
would send the query along.
"""

from __future__ import annotations

import base64
import contextlib
import os
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit, urlunsplit

from tensorstore_ds import words
from tensorstore_ds.errors import OptionError, RemoteError, StoreExistsError, TsdsError

#: Allowed schemes of a URL.
SCHEMES = ("s3", "gs", "az", "https", "http", "hf", "file")
#: Bytes of a part of an upload.
PART_NBYTES = 16 * 1024**2
#: Bytes of a piece of an answer.
PIECE_NBYTES = 128 * 1024
#: A server is silent for `read_timeout` at most; a request of a part takes `timeout` at most.
WAIT: Mapping[str, str] = {"connect_timeout": "10s", "read_timeout": "30s", "timeout": "10m"}
#: Timeout of a file that can only be read whole.
_WHOLE_TIMEOUT = "24h"
#: A server that has answered once is asked again for a minute, before that for a few seconds. The time decides, not
#: the number of attempts, since the waits between them are random.
RETRY: Mapping[str, Any] = {
    "max_retries": 1000,
    "retry_timeout": timedelta(seconds=60),
    "backoff": {"init_backoff": timedelta(seconds=0.2), "max_backoff": timedelta(seconds=10), "base": 3},
}
FIRST: Mapping[str, Any] = {**RETRY, "retry_timeout": timedelta(seconds=8)}
#: The name of a file's metadata entry with its SHA-256, where supported. Azure allows no dash.
_RECORD = "sha256"
_URL = re.compile(r"([a-z][a-z0-9+.-]*)://", re.IGNORECASE)
_STATUS = re.compile(r"\b([45]\d\d)(?: [A-Z][A-Za-z]+)+")


def is_url(place: object) -> bool:
    """Whether this is a URL, not a path."""
    return isinstance(place, str) and _URL.match(place) is not None


def check_url(url: str) -> None:
    """Raise `OptionError` for # or ?, behind which all would be dropped; only a web server gets what follows ?."""
    is_web = url.lower().startswith(("http://", "https://"))
    if "#" in url or ("?" in url and not is_web):
        what = f"found {'#' if '#' in url else '?'}, which would end its path"
        raise OptionError(f"{words.shown_path(url)}: expected a plain URL, {what}. Write %23 for #, and %3F for ?.")


@dataclass(frozen=True, slots=True)
class Found:
    """A file at a place: its size in bytes, and its version (ETag), if the server reports one to ask for it."""

    nbytes: int
    etag: str | None
    sha256: str | None = None  #: As `Location.write` has recorded it; only `Location.find` looks for it.


class Location:
    """A folder by URL, safe for threads. Its `url` is without user, password and query, for messages.

    Raises `OptionError` if the URL cannot be used or its package is missing, and `RemoteError` if a ``file://`` folder
    does not exist, or the Hub cannot be reached or shows no such data set.
    """

    def __init__(self, url: str) -> None:
        self.url = words.shown_path(url)
        self._given = url
        if self.url.lower().startswith("hf://"):
            from tensorstore_ds.remote.hub import resolved  # here, because it loads a large package

            self._given, web, headers = resolved(url)
            self._open: Callable[[str, Mapping[str, Any]], Any] = partial(_open_web, web, headers)
        else:
            self._open = partial(_open, url)
        self._store, self._has_answered = self._open(WAIT["timeout"], FIRST), False

    @property
    def resolved_url(self) -> str:
        """The URL, on the Hub with the commit of its revision when this object was made. It may contain a password."""
        return self._given

    def __repr__(self) -> str:
        return f"<Location {self.url}>"

    @contextlib.contextmanager
    def _errors(self, name: str) -> Iterator[None]:
        """Turn exceptions of obstore about a file or folder into `RemoteError`."""
        try:
            yield
        except TsdsError:
            raise
        except Exception as error:
            raise self._error(name, error) from None
        if not self._has_answered:
            self._store, self._has_answered = self._open(WAIT["timeout"], RETRY), True

    def find(self, name: str) -> Found | None:
        """Size, version and recorded SHA-256 of a file, or None if it does not exist; raises `RemoteError`."""
        with self._errors(name):
            try:
                result = _get(self._store, name, head=True)
            except FileNotFoundError:
                return None
            return Found(result.meta["size"], _version(result), result.attributes.get(_RECORD))

    def read(self, name: str, start: int, stop: int, *, etag: str | None = None) -> tuple[memoryview, Found]:
        """Bytes ``[start, stop)`` of a file, exactly, and its size and version.

        Raises `RemoteError`, also if its version is not `etag`.
        """
        with self._errors(name):
            result = _get(self._store, name, range=(start, stop), **({"if_match": etag} if etag else {}))
            data = b"".join(self._exactly(name, result, start, stop))
            return memoryview(data), Found(result.meta["size"], _version(result))

    def pieces(self, name: str, start: int, stop: int) -> Iterator[memoryview]:
        """Yield bytes ``[start, stop)`` as they arrive, in pieces of about `PIECE_NBYTES`.

        Raises as `read`, with the reason ``no-ranges`` if the server sends only whole files.
        """
        with self._errors(name):
            yield from self._exactly(name, _get(self._store, name, range=(start, stop)), start, stop)

    def whole(self, name: str, nbytes: int) -> Iterator[memoryview]:
        """A file of `nbytes` bytes as it arrives, from a server without range requests; raises `RemoteError`."""
        with self._errors(name):
            yield from self._exactly(name, _get(self._open(_WHOLE_TIMEOUT, RETRY), name), 0, nbytes)

    def _exactly(self, name: str, result: Any, start: int, stop: int) -> Iterator[memoryview]:
        """The bytes as they arrive, and no more, however many are sent: all of an endless answer would fill memory."""
        begin, end = result.range
        if (begin, end) == (start, stop):
            end = start
            for piece in result.stream(min_chunk_size=PIECE_NBYTES):
                data = memoryview(piece)
                end += len(data)
                if end > stop:
                    break
                yield data
        if (begin, end) != (start, stop):
            raise RemoteError(
                f"{self.url}/{name}: expected bytes {start} to {stop}, the server sent {begin} to {end}. "
                "Was the file replaced, or is there a proxy that changes answers?"
            )

    def read_all(self, name: str, limit: int) -> tuple[bytes, str | None]:
        """A file of at most `limit` bytes, and its version; raises `RemoteError`."""
        with self._errors(name):
            result = _get(self._store, name)
            size = result.meta["size"]
            if size > limit:
                raise RemoteError(f"{self.url}/{name}: expected at most {limit} bytes, found {size}.")
            return b"".join(self._exactly(name, result, 0, size)), _version(result)

    def write(self, name: str, data: bytes | Path | Iterator[bytes], *, sha256: str | None = None) -> None:
        """Write or replace a file, in parts if it is large; raises `RemoteError`.

        `data` are its bytes, a local file, or parts of `PART_NBYTES` bytes, of which the last may be shorter. If making
        a part raises an error, the upload is aborted, and the error is raised. `sha256` is recorded where the place
        supports this.
        """
        import obstore

        given = _Parts(data) if isinstance(data, Iterator) else None
        record: Any = {"attributes": {_RECORD: sha256}} if sha256 and self._keeps_records else {}
        try:
            obstore.put(self._store, name, given or data, chunk_size=PART_NBYTES, mode="overwrite", **record)
        except Exception as error:
            if given is not None and given.error is not None:
                raise given.error from None
            raise self._error(name, error) from None

    @property
    def _keeps_records(self) -> bool:
        return self._given.lower().startswith(("s3://", "gs://", "az://"))

    def copy(self, name: str, to: str) -> bool:
        """Let the server copy a file, over an existing one; returns whether it did."""
        import obstore

        try:
            obstore.copy(self._store, name, to)
        except Exception:  # such as one that is too large for it, or gone: it can be uploaded
            return False
        return True

    def folders(self, name: str) -> list[str]:
        """The folders in a folder, by full name; raises `RemoteError`."""
        import obstore

        with self._errors(name):
            return list(obstore.list_with_delimiter(self._store, f"{name}/")["common_prefixes"])

    def files(self, folder: str) -> list[str]:
        """The files in a folder and below it, by full name; raises `RemoteError`."""
        import obstore

        with self._errors(folder):
            return [each["path"] for part in obstore.list(self._store, f"{folder}/") for each in part]

    def remove(self, name: str) -> None:
        """Remove a file if it exists; raises `RemoteError`."""
        import obstore

        with self._errors(name), contextlib.suppress(FileNotFoundError):
            obstore.delete(self._store, name)

    def create(self, name: str, data: bytes) -> None:
        """Write a new file in one step. Raises `StoreExistsError` if it exists, or `RemoteError`."""
        import obstore

        with self._errors(name):
            try:
                obstore.put(self._store, name, data, mode="create", use_multipart=False)
            except obstore.exceptions.AlreadyExistsError:
                raise StoreExistsError(f"{self.url}/{name} is there already.") from None

    def replace(self, name: str, data: bytes, etag: str | None) -> None:
        """Replace the version `etag` of a file in one step; raises `StoreExistsError` if it has changed."""
        import obstore

        mode: Any = {"e_tag": etag} if etag else "overwrite"
        with self._errors(name):
            try:
                if etag and self._given.lower().startswith("gs://"):  # Google replaces generations, not ETags
                    there = _get(self._store, name, head=True).meta
                    if there["e_tag"] != etag:
                        raise obstore.exceptions.PreconditionError
                    mode["version"] = there["version"]
                obstore.put(self._store, name, data, mode=mode, use_multipart=False)
            except (obstore.exceptions.PreconditionError, FileNotFoundError):
                what = "was changed meanwhile. Run the same command again."
                raise StoreExistsError(f"{self.url}/{name} {what}") from None

    def _error(self, name: str, error: Exception) -> RemoteError:
        """The error for an exception of obstore, whose own message may contain a signed URL."""
        import obstore.exceptions as known

        where, text = f"{self.url}/{name}", str(error)
        status = _STATUS.search(text)
        number = status[1] if status else ""
        if "NoSuchBucket" in text:
            return RemoteError(
                f"{where}: there is no such bucket. Check the URL, or make the bucket first.", "no-bucket"
            )
        if isinstance(error, FileNotFoundError):
            return RemoteError(f"{where}: there is no such file.", "missing")
        if isinstance(error, known.PreconditionError):
            return RemoteError(f"{where}: the file was replaced by another. Open the store again.", "replaced")
        if "non-partial" in text or (isinstance(error, known.NotSupportedError) and "range" in text.lower()):
            what = "expected a server that sends ranges of bytes, found one that sends whole files"
            advice = "Copy the store with tsds pull, or have it served with tsds serve."
            return RemoteError(f"{where}: {what}. {advice}", "no-ranges")
        if isinstance(error, known.NotSupportedError):
            return RemoteError(f"{where}: the server cannot do what was asked for.", "no-ranges")
        if "MissingContentLength" in text or "without its length" in text:  # the latter by `signed_web`
            what = "expected the length of the file, the server sent none, as if it compresses files while sending them"
            return RemoteError(f"{where}: {what}. Turn that off there, or have the store served with tsds serve.")
        if "UnexpectedRange" in text:
            return RemoteError(f"{where}: the server sent another part of the file than was asked for. Try again.")
        if "ExpiredToken" in text or "RequestTimeTooSkewed" in text:
            what = "the credentials have expired, or the clock is wrong"
            return RemoteError(f"{where}: access is refused: {what}. Get new ones and try again.", "refused")
        if "http://169.254." in text:  # where machines of a cloud ask for theirs
            what = "no credentials were found, neither in the environment nor from a cloud machine"
            return RemoteError(f"{where}: {what}. Set them in the environment, or check the network.", "refused")
        refused = isinstance(error, known.UnauthenticatedError | known.PermissionDeniedError)
        if refused or number in ("401", "403"):
            return RemoteError(f"{where}: access is refused. Check the credentials and their permissions.", "refused")
        if "BadScheme" in text:
            what = "the server redirects to another protocol, such as from https to http, which is refused"
            return RemoteError(f"{where}: {what}. Use the URL to which it redirects, if you trust it.", "refused")
        what = f"the server answers {status[0]}" if status else "the server cannot be reached, or does not answer"
        return RemoteError(f"{where}: {what}. Check the URL and the network, and try again.", "unreachable")


class _Parts:
    """An iterator of parts that keeps the error that ended it, because obstore replaces it."""

    def __init__(self, parts: Iterator[bytes]) -> None:
        self._parts = parts
        self.error: BaseException | None = None

    def __iter__(self) -> _Parts:
        return self

    def __next__(self) -> bytes:
        try:
            return next(self._parts)
        except StopIteration:
            raise
        except BaseException as error:
            self.error = error
            raise


def _version(result: Any) -> str | None:
    """The ETag of an answer. A weak one is none, because it matches no condition (RFC 9110, 13.1.1)."""
    etag: str | None = result.meta["e_tag"]
    return None if etag is None or etag.startswith("W/") else etag


def _get(store: Any, name: str, **options: Any) -> Any:
    from tensorstore_ds.remote.signed_web import SignedWeb  # its urllib.request takes time to import

    if isinstance(store, SignedWeb):
        return store.get(name, options)
    import obstore

    return obstore.get(store, name, options=options)  # type: ignore[arg-type]


def _open(url: str, timeout: str, retry: Mapping[str, Any]) -> Any:
    found = _URL.match(url)
    where = words.shown_path(url)
    scheme = found[1].lower() if found else ""
    if scheme not in SCHEMES:
        raise OptionError(f"{where}: expected a URL that begins with {', '.join(f'{s}://' for s in SCHEMES)}.")
    check_url(url)
    try:
        from obstore import store
    except ImportError:
        raise OptionError(
            f"{where}: obstore is not installed: pip install '.[cloud]' in a clone of tensorstore-ds"
        ) from None
    options: Any = {**WAIT, "timeout": timeout}
    try:
        if scheme == "file":
            folder = unquote(urlsplit(url).path)
            if not Path(folder).is_dir():
                raise RemoteError(f"{where}: there is no such folder.", "missing")
            return store.LocalStore(folder)
        if scheme in ("http", "https"):
            return _open_web(*_without_user(url), timeout, retry)
        plain = {"allow_http": True} if os.environ.get("AWS_ALLOW_HTTP", "").lower() in ("1", "true") else {}
        return store.from_url(url, client_options={**options, **plain}, retry_config=retry)  # type: ignore[call-overload]
    except RemoteError:
        raise
    except Exception:  # whose words may hold a password
        advice = "Check it. In a user and a password, write @, /, : and others as %40, %2F, %3A."
        raise OptionError(f"{where}: this URL cannot be used. {advice}") from None


def _without_user(url: str) -> tuple[str, dict[str, str]]:
    """A URL without user and password, and the header with them, which obstore would drop."""
    parts = urlsplit(url)
    user, _, host = parts.netloc.rpartition("@")
    if not user:
        return url, {}
    name, _, password = user.partition(":")
    encoded = base64.b64encode(f"{unquote(name)}:{unquote(password)}".encode()).decode()
    return urlunsplit(parts._replace(netloc=host)), {"authorization": f"Basic {encoded}"}


def _open_web(url: str, headers: Mapping[str, str], timeout: str, retry: Mapping[str, Any]) -> Any:
    from obstore import store

    if urlsplit(url).query:
        from tensorstore_ds.remote.signed_web import SignedWeb

        return SignedWeb(
            url, headers, (_seconds(WAIT["read_timeout"]), _seconds(timeout)), retry["retry_timeout"].total_seconds()
        )
    options: Any = {**WAIT, "timeout": timeout, "allow_http": urlsplit(url).scheme.lower() == "http"}
    if headers:
        options["default_headers"] = dict(headers)
    return store.HTTPStore.from_url(url, client_options=options, retry_config=retry)  # type: ignore[arg-type]


def _seconds(text: str) -> float:
    """Seconds of a time such as ``10m``."""
    return float(text[:-1]) * {"s": 1, "m": 60, "h": 3600}[text[-1]]
