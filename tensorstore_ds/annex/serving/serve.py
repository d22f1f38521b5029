"""A store over HTTP: read-only, by ranges, and nothing but its files.

A token is the first part of every path (``/TOKEN/zarr.json``), because every HTTP client accepts a URL, and few accept
headers. Without a token, only this machine is served and no other host name is answered, so that no foreign page reads
the store through the user's browser.
"""

from __future__ import annotations

import ipaddress
import os
import re
import secrets
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from tensorstore_ds.annex.serving.served_files import Pages, ServedFiles
from tensorstore_ds.errors import OptionError

_TOKEN = re.compile(r"[A-Za-z0-9_-]{16,128}")

Notify = Callable[[str], None]


@contextmanager
def serve(
    store: str | os.PathLike[str],
    *,
    host: str = "127.0.0.1",
    port: int = 0,
    token: str | None = None,
    sha256: str | None = None,
    notify: Notify = lambda _: None,
) -> Iterator[str]:
    """Serve a store over HTTP, read-only, from threads of this process, until the block ends.

    >>> with tsds.serve("photos.tsds") as url:
    ...     store = tsds.open(url, cache_dir="cache")
    ...     store["train"]["label"].take([0, 7]).tolist()
    [0, 1]

    The server answers GET and HEAD requests for the files of the store, complete or one range, with their SHA-256 as
    ETag. It serves no other files, and lists no folders. If the store grows, is updated or annotated, the next request
    for its ``zarr.json`` returns the new file with a new ETag. If a different store replaces it, every answer is 500.

    Args:
        store: path of the store, a folder or a packed one.
        host: address or name of the server. Only this machine can reach a loopback address (``127.0.0.1``, ``::1``,
            ``localhost``). With any other host, other machines can reach the server, and its URL contains a token.
        port: port of the server. 0 uses any free port.
        token: first part of every path, 16 to 128 letters, digits, ``-`` and ``_``. None creates a new token if other
            machines can reach the server, and otherwise uses no token.
        sha256: the expected `Store.sha256`. The store is then served in this state, even if it grows. None accepts any
            store.
        notify: function that is called with a line when a file cannot be served, from the threads of the server.

    Yields:
        The URL of the store, without a slash at its end. It includes the token if there is one.

    Raises:
        FormatError: there is no such store.
        OptionError: the host, the port or the token cannot be used.
    """
    with serve_pages(store, None, host=host, port=port, token=token, sha256=sha256, notify=notify) as url:
        yield url


@contextmanager
def serve_pages(
    store: str | os.PathLike[str] | None,
    pages: Pages | None,
    *,
    host: str = "127.0.0.1",
    port: int = 0,
    token: str | None = None,
    sha256: str | None = None,
    notify: Notify = lambda _: None,
) -> Iterator[str]:
    """Like `serve`, with `pages` in addition to the store, which may be None. With pages, no other origin may read."""
    try:
        from tensorstore_ds.annex.serving.answers import answered
    except ModuleNotFoundError as error:
        if str(error.name).partition(".")[0] not in ("starlette", "uvicorn"):
            raise
        advice = "pip install '.[serve]' in a clone of tensorstore-ds"
        raise OptionError(f"to serve a store, starlette and uvicorn are needed: {advice}") from None
    files = None if store is None else ServedFiles(store, sha256)
    if token is None and (pages is not None or not _is_own(host)):
        token = secrets.token_urlsafe(24)
    if token is not None and not _TOKEN.fullmatch(token):
        raise OptionError("`token`: expected 16 to 128 letters, digits, - and _, found another text.")
    with _listener(host, port) as listener, answered(listener, files, pages, token, _is_own(host), notify):
        name = f"[{host}]" if ":" in host else host
        yield f"http://{name}:{listener.getsockname()[1]}" + (f"/{token}" if token else "")


def _is_own(host: str) -> bool:
    """Whether an address or a name is local to this machine."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _listener(host: str, port: int) -> socket.socket:
    if not 0 <= port < 2**16:
        raise OptionError(f"`port`: expected 0 to 65,535, found {port}.")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=128)
    except (OSError, UnicodeError) as error:
        reason = (getattr(error, "strerror", None) or str(error)).partition(" (while attempting")[0]
        message = f"`port`: expected to listen at {host}, port {port}, found: {reason}."
        raise OptionError(f"{message} Choose another port or host.") from error
