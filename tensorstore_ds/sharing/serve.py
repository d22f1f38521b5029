"""A store over HTTP: read-only, by ranges, and nothing but its files.

A token is the first part of every path (``/TOKEN/zarr.json``), because every client of ranges can be given a URL, and
few can be given headers. Without one, only this machine is served: no other host name is answered, so that no page
of a stranger reads the store through the user's browser.
"""

from __future__ import annotations

import functools
import hmac
import io
import ipaddress
import os
import re
import secrets
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socketserver import TCPServer
from typing import IO, Any, ClassVar, Protocol

from tensorstore_ds.errors import FormatError, OptionError, Problem
from tensorstore_ds.format.manifest import File
from tensorstore_ds.reading.store_files import size_of, start_of
from tensorstore_ds.sharing.served_files import Content, ServedFiles

#: Connections at a time; each has a thread. One more is answered 503, as is one beyond 3/4 of them from one address.
CONNECTIONS = 256
#: Bytes of a request, with all its headers.
REQUEST_NBYTES = 16 * 1024
#: Within so many seconds a request has to come, and the client has to take some of the answer.
SECONDS = 20
#: Bytes that a client has to take in a second, after a minute.
_SLOWEST = 16 * 1024
_PIECE_NBYTES = 4 * 1024**2
_DIGITS = 20  # of the length of a body; Python reads no number of more than 4,300
_FULL = b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\nRetry-After: 1\r\nConnection: close\r\n\r\n"

_TOKEN = re.compile(r"[A-Za-z0-9_-]{16,128}")
_RANGE = re.compile(r"bytes=([0-9]{0,18})-([0-9]{0,18})")
_TAG = re.compile(r'(?:W/)?"[^"]*"')
_ORIGIN = re.compile(r"https?://([a-z0-9.-]+|\[[0-9a-f:.]+\])(?::[0-9]{1,5})?")

Notify = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Page:
    """A file that is served in addition to a store.

    Attributes:
        data: its bytes.
        media_type: for the header Content-Type.
        compressed: the same bytes compressed with gzip, for clients that accept it; None if there are none.
        headers: further headers of the answer.
    """

    data: bytes
    media_type: str
    compressed: bytes | None = None
    headers: tuple[tuple[str, str], ...] = ()


class Pages(Protocol):
    """Files that are served in addition to a store, which is then below ``store/``."""

    def find(self, name: str) -> Page | None:
        """The file of a path; None if there is none."""

    def put(self, name: str, data: bytes) -> bool:
        """Keep a file; False if it may not be written, or is not valid."""


#: Bytes of a file that a client may write.
PUT_NBYTES = 16 * 1024**2


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
    """As `serve`, with `pages` in addition to the store, which may be None. With pages, no other origin may read."""
    files = None if store is None else ServedFiles(store, sha256)
    if token is None and (pages is not None or not _is_own(host)):
        token = secrets.token_urlsafe(24)
    if token is not None and not _TOKEN.fullmatch(token):
        raise OptionError("`token`: expected 16 to 128 letters, digits, - and _, found another text.")
    with _server(files, host, port, token, notify, pages) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, name="tsds-serve")
        thread.start()
        try:
            name = f"[{host}]" if ":" in host else host
            yield f"http://{name}:{server.server_port}" + (f"/{token}" if token else "")
        finally:
            server.shutdown()
            thread.join()
            server.hang_up()


def _is_own(host: str) -> bool:
    """Whether an address or a name can be reached from this machine alone."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _server(
    files: ServedFiles | None, host: str, port: int, token: str | None, notify: Notify, pages: Pages | None
) -> _Server:
    if not 0 <= port < 2**16:
        raise OptionError(f"`port`: expected 0 to 65,535, found {port}.")
    try:
        return _Server(files, host, port, token, notify, pages)
    except (OSError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        message = f"`port`: expected to listen at {host}, port {port}, found: {reason}."
        raise OptionError(f"{message} Choose another port or host.") from error


class _Server(ThreadingHTTPServer):
    """The server of one store."""

    daemon_threads = False  # all have ended when it is closed
    request_queue_size = 128

    def __init__(
        self, files: ServedFiles | None, host: str, port: int, token: str | None, notify: Notify, pages: Pages | None
    ) -> None:
        self.files = files
        self.pages = pages
        self.is_own = _is_own(host)
        self.token = token
        self.notify = notify
        self._connections: dict[socket.socket, str] = {}  # with the address of the client
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        super().__init__((host, port), _Handler)

    def server_bind(self) -> None:
        """Bind to the address; http.server's own would ask a name server about it."""
        TCPServer.server_bind(self)
        self.server_name, self.server_port = "", int(self.server_address[1])

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answer a connection in a thread, if there is one left."""
        others, address = list(self._connections.values()), client_address[0]
        if len(others) >= CONNECTIONS or others.count(address) >= CONNECTIONS - CONNECTIONS // 4:
            request.settimeout(1)
            with suppress(OSError):
                request.sendall(_FULL)
            super().shutdown_request(request)
            return
        self._connections[request] = address
        try:
            super().process_request(request, client_address)
        except BaseException:  # no thread could be started
            self._connections.pop(request, None)
            raise

    def shutdown_request(self, request: Any) -> None:
        """Close a connection."""
        super().shutdown_request(request)
        self._connections.pop(request, None)

    def hang_up(self) -> None:
        """End all connections, so that their threads end."""
        for request in list(self._connections):
            with suppress(OSError):  # it ended just now
                request.shutdown(socket.SHUT_RDWR)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say what ended a connection, unless it was the client."""
        error = sys.exception()
        if not isinstance(error, ConnectionError | TimeoutError):
            self.notify(f"a request ended with {type(error).__name__}: {error}")


class _RequestTooLong(Exception):
    pass


class _Requests(io.RawIOBase):
    """What a client sends: each request of bounded size, within bounded time."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self.next()

    def next(self) -> None:
        """Begin with another request."""
        self._left = 0
        self.allow(REQUEST_NBYTES)

    def allow(self, nbytes: int) -> None:
        """Let the client send so many bytes more."""
        self._left += nbytes
        self._end = time.monotonic() + SECONDS

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        if self._left <= 0:
            raise _RequestTooLong
        left = self._end - time.monotonic()
        if left <= 0:
            raise TimeoutError
        self._connection.settimeout(left)
        count = self._connection.recv_into(memoryview(buffer)[: self._left])
        self._left -= count
        return count


class _Handler(BaseHTTPRequestHandler):
    """Requests of one connection."""

    server: _Server
    protocol_version = default_request_version = "HTTP/1.1"  # an older one has answers without headers
    disable_nagle_algorithm = True
    error_message_format = "%(code)d %(message)s\n"
    error_content_type = "text/plain; charset=utf-8"
    _cors: ClassVar[dict[str, str]] = {
        "Access-Control-Allow-Methods": "GET, HEAD, OPTIONS",
        "Access-Control-Allow-Headers": "Range, If-Match, If-None-Match, If-Range",
        "Access-Control-Expose-Headers": "Accept-Ranges, Content-Length, Content-Range, ETag",
        "Access-Control-Max-Age": "86400",
    }

    def setup(self) -> None:
        super().setup()
        self._requests = _Requests(self.connection)
        self.rfile = io.BufferedReader(self._requests)

    def handle_one_request(self) -> None:
        self._requests.next()
        self.requestline, self.request_version, self.command = "", "HTTP/1.1", ""
        try:
            super().handle_one_request()
        except _RequestTooLong:
            self.send_error(431)

    def parse_request(self) -> bool:
        """Read the request. One that may have a body is the last of its connection: what follows may be no request."""
        if not super().parse_request():
            return False
        lengths = self.headers.get_all("Content-Length", [])
        hosts = self.headers.get_all("Host", [])
        if self.headers.defects or len(lengths) > 1 or len(hosts) > 1:  # no headers; or two readers may differ
            self.send_error(400)
            return False
        self.close_connection |= bool(lengths) or "Transfer-Encoding" in self.headers
        return True

    def handle_expect_100(self) -> bool:
        """Ask for no body."""
        return True

    def do_GET(self) -> None:
        self._answer()

    def do_HEAD(self) -> None:
        self._answer()

    def do_PUT(self) -> None:
        """Keep a file of `pages`. The type of the body is one that a page of another origin may not send unasked."""
        name = self._name()
        if name is None:
            return
        length = self.headers.get("Content-Length", "")
        is_number = length.isascii() and length.isdecimal()
        if self.server.pages is None or self.headers.get("Content-Type") != "application/json":
            self._refuse(501 if self.server.pages is None else 415)
        elif is_number and len(length) > _DIGITS:
            self._refuse(400)
        elif not is_number or int(length) > PUT_NBYTES:
            self._refuse(413 if is_number else 411)
        else:
            self._requests.allow(int(length))
            data = self.rfile.read(int(length))
            kept = len(data) == int(length) and self.server.pages.put(name, data)
            self._refuse(200 if kept else 400)

    def do_OPTIONS(self) -> None:
        """What a browser asks before a page may send a header of its own."""
        self.send_response(204)
        self.end_headers()

    def _name(self) -> str | None:
        """The path that is asked for, without the token; None if the request was refused."""
        name = self.path.partition("?")[0].removeprefix("/")
        if self.server.token is not None:
            given, _, name = name.partition("/")
            if not hmac.compare_digest(given.encode(), self.server.token.encode()):
                self._refuse(404)
                return None
        is_closed = self.server.token is None or (self.server.pages is not None and self.server.is_own)
        if is_closed and not _is_own_url(f"http://{self.headers.get('Host')}"):
            self._refuse(403)
            return None
        return name

    def _answer(self) -> None:
        self.connection.settimeout(SECONDS)
        name = self._name()
        if name is None:
            return
        if self.server.pages is not None:
            page = self.server.pages.find(name)
            if page is not None:
                self._send_page(page)
                return
            folder, _, name = name.partition("/")
            if folder != "store":
                self._refuse(404)
                return
        files = self.server.files
        try:
            if files is None or not files.use(name, functools.partial(self._send, name)):
                self._refuse(404)
        except FormatError as error:  # nothing was sent yet
            self.server.notify(str(error))
            self._refuse(500)

    def _send_page(self, page: Page) -> None:
        accepted = re.split(r"[ ,;]+", self.headers.get("Accept-Encoding", ""))
        is_compressed = page.compressed is not None and "gzip" in accepted
        data = page.compressed if page.compressed is not None and is_compressed else page.data
        self.send_response(200)
        headers = (("Content-Encoding", "gzip"),) if is_compressed else ()
        for header, value in (*page.headers, *headers, ("Vary", "Accept-Encoding"), ("Cache-Control", "no-cache")):
            self.send_header(header, value)
        self.send_header("Content-Type", page.media_type)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def _send(self, name: str, file: File, content: Content) -> None:
        tag = f'"{file.sha256}"'
        if not _names(self.headers.get("If-Match", "*"), tag):
            self._refuse(412)
            return
        if _names(self.headers.get("If-None-Match", "").replace("W/", ""), tag):
            self.send_response(304)
            self.send_header("ETag", tag)
            self.end_headers()
            return
        wanted = None
        if self.command == "GET" and self.headers.get("If-Range", tag) == tag:
            wanted = _wanted(self.headers.get("Range", ""))
        span = _span(wanted, file.size) if wanted else (0, file.size)
        if span is None:
            self._refuse(416, ("Content-Range", f"bytes */{file.size}"))
            return
        start, stop = span
        with io.BytesIO(content.root) if name == "zarr.json" else content.store.open_file(name) as opened:
            if size_of(opened) != file.size:
                raise FormatError(Problem(name, "file-size", f"expected {file.size} bytes, found {size_of(opened)}."))
            self.send_response(206 if wanted else 200)
            if wanted:
                self.send_header("Content-Range", f"bytes {start}-{stop - 1}/{file.size}")
            self.send_header("Content-Type", "application/" + ("json" if name.endswith(".json") else "octet-stream"))
            self.send_header("Content-Length", str(stop - start))
            self.send_header("ETag", tag)
            self.send_header("Cache-Control", "no-cache")
            self.end_headers()
            if self.command == "GET":
                self._send_bytes(opened, start, stop - start)

    def _send_bytes(self, opened: IO[bytes], start: int, count: int) -> None:
        began, left, offset = time.monotonic(), count, start_of(opened) + start
        with opened if isinstance(opened, io.BytesIO) else open(os.dup(opened.fileno()), "rb", 0) as file:
            while left:
                file.seek(offset)  # sendfile does not, for what is no file of the system
                sent = self.connection.sendfile(file, offset, min(left, _PIECE_NBYTES))
                left, offset = left - sent, offset + sent
                if not sent or time.monotonic() - began > 60 + (count - left) / _SLOWEST:
                    self.close_connection = True  # the file was cut off, or the client takes too long
                    return

    def _refuse(self, status: int, *headers: tuple[str, str]) -> None:
        """Answer with a status and a line that says it."""
        text = f"{status} {self.responses[status][0]}\n".encode()
        self.send_response(status)
        for header, value in (*headers, ("Content-Type", self.error_content_type), ("Content-Length", str(len(text)))):
            self.send_header(header, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(text)

    def end_headers(self) -> None:
        """End the headers with those of every answer."""
        self.send_header("Accept-Ranges", "bytes")
        self.send_header("X-Content-Type-Options", "nosniff")
        if self.close_connection:
            self.send_header("Connection", "close")
        headers = getattr(self, "headers", None)
        origin = headers.get("Origin") if headers is not None else None
        if self.server.pages is not None:
            origin = None  # the page and the store have the same origin
        elif self.server.token is not None:
            origin = "*"  # who has the token may read
        elif origin is not None and not _is_own_url(origin):
            origin = None
        if origin is not None:
            self.send_header("Access-Control-Allow-Origin", origin)
            self.send_header("Vary", "Origin")
            for header, value in self._cors.items():
                self.send_header(header, value)
        super().end_headers()

    def version_string(self) -> str:
        """What the header Server says."""
        return "tsds"

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Answer a request that is none; what it was is not repeated."""
        super().send_error(code)

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing: a path may hold the token."""


def _is_own_url(url: str) -> bool:
    """Whether a URL without a path is of this machine."""
    match = _ORIGIN.fullmatch(url)
    return match is not None and _is_own(match[1].strip("[]"))


def _names(header: str, tag: str) -> bool:
    """Whether a header with entity tags names this one."""
    return header.strip() == "*" or tag in _TAG.findall(header)


def _wanted(header: str) -> tuple[int | None, int | None] | None:
    """The first and last byte of a single range; None for a header that means nothing, and that is ignored.

    >>> _wanted("bytes=2-5"), _wanted("bytes=2-"), _wanted("bytes=-4"), _wanted("bytes=5-2"), _wanted("bytes=0-1,4-5")
    ((2, 5), (2, None), (None, 4), None, None)
    """
    match = _RANGE.fullmatch(header)
    if match is None:
        return None
    first, last = (int(digits) if digits else None for digits in match.groups())
    if (first is None and last is None) or (first is not None and last is not None and last < first):
        return None
    return first, last


def _span(wanted: tuple[int | None, int | None], size: int) -> tuple[int, int] | None:
    """The bytes [start, stop) of a range; None if there are none of them in a file of so many bytes.

    >>> _span((2, 5), 10), _span((2, None), 10), _span((None, 4), 10), _span((None, 40), 10), _span((10, None), 10)
    ((2, 6), (2, 10), (6, 10), (0, 10), None)
    """
    first, last = wanted
    if first is None:
        start, stop = max(0, size - (last or 0)), size
    else:
        start, stop = first, size if last is None else min(size, last + 1)
    return (start, stop) if start < stop else None
