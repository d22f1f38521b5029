"""HTTP answers with the files of a store and of `Pages`: an application of starlette, run by uvicorn."""

from __future__ import annotations

import asyncio
import functools
import hmac
import logging
import re
import socket
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from http import HTTPStatus
from typing import IO, Any

import h11
import uvicorn
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.types import Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from tensorstore_ds.annex.serving.served_files import PUT_NBYTES, Content, Made, Pages, ServedFiles
from tensorstore_ds.errors import FormatError, Problem
from tensorstore_ds.format.manifest import File
from tensorstore_ds.reading.store_files import size_of

#: Connections at a time. One more is answered 503, as is one beyond 3/4 of them from one address.
CONNECTIONS = 256
#: Bytes of a request, with all its headers.
REQUEST_NBYTES = 16 * 1024
#: Within so many seconds a request has to come, and the client has to take a piece of the answer.
SECONDS = 20
_PIECE_NBYTES = 256 * 1024
_THREADS = 64
_FULL = b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\nRetry-After: 1\r\nConnection: close\r\n\r\n"
_RANGE = re.compile(r"bytes=([0-9]{0,18})-([0-9]{0,18})")
_TAG = re.compile(r'(?:W/)?"[^"]*"')
_OWN_URL = r"https?://(localhost|127(\.[0-9]{1,3}){3}|\[::1\])(:[0-9]{1,5})?"
_SILENT = logging.Logger("tensorstore_ds.serve", logging.CRITICAL + 1)


@dataclass(frozen=True, slots=True)
class _Application:
    """The ASGI application; files are read in `threads`."""

    files: ServedFiles | None
    pages: Pages | None
    token: str | None
    is_own: bool  # only this machine can connect
    notify: Callable[[str], None]
    threads: ThreadPoolExecutor

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request. A request that may have a body is the last of its connection."""
        request = Request(scope, receive)
        try:
            with ExitStack() as stack:
                response = await self._answer(request, stack)
                if {"content-length", "transfer-encoding"} & set(request.headers.keys()):
                    response.headers["connection"] = "close"
                await response(scope, receive, send)
        except (ClientDisconnect, TimeoutError):
            raise
        except Exception as error:
            self.notify(f"a request ended with {type(error).__name__}: {error}")
            raise

    async def _answer(self, request: Request, stack: ExitStack) -> Response:
        if request.method == "OPTIONS":
            return Response(status_code=204)
        if request.method not in ("GET", "HEAD") and (self.pages is None or request.method != "PUT"):
            return _refusal(501)
        name = request.scope["raw_path"].decode("latin-1").removeprefix("/")
        if self.token is not None:
            given, _, name = name.partition("/")
            if not hmac.compare_digest(given.encode(), self.token.encode()):
                return _refusal(404)
        is_closed = self.token is None or (self.pages is not None and self.is_own)
        if is_closed and not re.fullmatch(_OWN_URL, f"http://{request.headers.get('host')}"):
            return _refusal(403)
        if request.method == "PUT" and self.pages is not None:
            return await self._put(request, functools.partial(self.pages.put, name))
        return await self._in_thread(self._find, request, name, stack)

    def _in_thread(self, call: Callable[..., Made], *arguments: Any) -> asyncio.Future[Made]:
        return asyncio.get_running_loop().run_in_executor(self.threads, call, *arguments)

    async def _put(self, request: Request, put: Callable[[bytes], bool]) -> Response:
        """Store a file of `Pages`. Pages of another origin may not send its content type without a preflight."""
        if request.headers.get("content-type") != "application/json":
            return _refusal(415)
        length = request.headers.get("content-length")
        if length is None or "transfer-encoding" in request.headers:
            return _refusal(411)
        if int(length) > PUT_NBYTES:
            return _refusal(413)
        async with asyncio.timeout(SECONDS):
            data = await request.body()
        return _refusal(200 if await self._in_thread(put, data) else 400)

    def _find(self, request: Request, name: str, stack: ExitStack) -> Response:
        if self.pages is not None:
            if page := self.pages.find(name):
                headers = {**dict(page.headers), "cache-control": "no-cache", "content-type": page.media_type}
                return Response(page.data, headers=headers)
            folder, _, name = name.partition("/")
            if folder != "store":
                return _refusal(404)
        answer = functools.partial(self._of_file, request, name, stack)
        try:
            return (self.files and self.files.use(name, answer)) or _refusal(404)
        except FormatError as error:
            self.notify(str(error))
            return _refusal(500)

    def _of_file(self, request: Request, name: str, stack: ExitStack, file: File, content: Content) -> Response:
        asked, tag = request.headers, f'"{file.sha256}"'
        headers = {"etag": tag, "cache-control": "no-cache"}
        if not _names(asked.get("if-match", "*"), tag):
            return _refusal(412)
        if _names(asked.get("if-none-match", "").replace("W/", ""), tag):
            return Response(status_code=304, headers=headers)
        is_range = request.method == "GET" and asked.get("if-range", tag) == tag
        span = _span(asked.get("range", ""), file.size) if is_range else None
        start, stop = span or (0, file.size)
        if span and start >= stop:
            return _refusal(416, {"content-range": f"bytes */{file.size}"})
        opened = stack.enter_context(content.open(name, file.size))
        if size_of(opened) != file.size:
            raise FormatError(Problem(name, "file-size", f"expected {file.size} bytes, found {size_of(opened)}."))
        headers["content-length"] = str(stop - start)
        headers["content-type"] = "application/" + ("json" if name.endswith(".json") else "octet-stream")
        if span:
            headers["content-range"] = f"bytes {start}-{stop - 1}/{file.size}"
        opened.seek(start)
        if request.method == "HEAD":
            return Response(headers=headers)
        if stop - start > _PIECE_NBYTES:
            return StreamingResponse(self._pieces(opened, stop - start), 206 if span else 200, headers)
        return Response(opened.read(stop - start), 206 if span else 200, headers)

    async def _pieces(self, opened: IO[bytes], left: int) -> AsyncIterator[bytes]:
        """The next bytes of a file; fewer if it was cut off, which ends the connection."""
        while left and (piece := await self._in_thread(opened.read, min(left, _PIECE_NBYTES))):
            left -= len(piece)
            yield piece


def _refusal(status: int, headers: dict[str, str] | None = None) -> Response:
    """A status and its reason."""
    return PlainTextResponse(f"{status} {HTTPStatus(status).phrase}\n", status, headers)


def _names(header: str, tag: str) -> bool:
    """Whether a header with entity tags contains this one."""
    return header.strip() == "*" or tag in _TAG.findall(header)


def _span(header: str, size: int) -> tuple[int, int] | None:
    """The bytes [start, stop) of a single range, empty if start >= stop; None for a header that is ignored.

    >>> [_span(f"bytes={range}", 10) for range in ("2-5", "2-", "-4", "-40", "10-", "5-2", "0-1,4-5")]
    [(2, 6), (2, 10), (6, 10), (0, 10), (10, 10), None, None]
    """
    match = _RANGE.fullmatch(header)
    first, last = (int(digits) if digits else None for digits in match.groups()) if match else (None, None)
    if last is None:
        return None if first is None else (first, size)
    if first is None:
        return max(0, size - last), size
    return (first, min(size, last + 1)) if first <= last else None


class _Connection(H11Protocol):
    """A connection with timeouts, because uvicorn waits for a client indefinitely."""

    def __init__(self, *arguments: Any, **keywords: Any) -> None:
        super().__init__(*arguments, **keywords)
        self.access_log = False  # a path may hold the token
        self.logger = _SILENT

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as in H11Protocol
        super().connection_made(transport)
        transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        addresses = [each.client and each.client[0] for each in self.connections if isinstance(each, _Connection)]
        if len(addresses) > CONNECTIONS or addresses.count(self.client and self.client[0]) > CONNECTIONS * 3 // 4:
            transport.write(_FULL)
            transport.close()
        self.timeout_keep_alive_task = self.loop.call_later(SECONDS, transport.abort)

    def data_received(self, data: bytes) -> None:
        """Read a request. The timer runs until it is complete."""
        try:
            self.conn.receive_data(data)
            self.handle_events()
        except (h11.ProtocolError, ValueError):  # a bad body, after the answer has begun
            self.transport.abort()

    def eof_received(self) -> bool:  # type: ignore[override]  # as asyncio has it
        """Answer a client that stops sending; uvicorn would drop it."""
        if self.cycle is None or self.cycle.response_complete:
            return False
        self.cycle.keep_alive = False
        return True

    def timeout_keep_alive_handler(self) -> None:
        """Close an idle connection, also one whose client does not read."""
        self.transport.abort()

    def pause_writing(self) -> None:
        """Abort the connection unless the client soon reads some of the answer."""
        super().pause_writing()
        self._stuck = self.loop.call_later(SECONDS, self.transport.abort)

    def resume_writing(self) -> None:
        """Continue, because the client has read some of the answer."""
        super().resume_writing()
        self._stuck.cancel()

    def shutdown(self) -> None:
        """Close the connection, even during an answer."""
        self.transport.abort()


@contextmanager
def answered(
    listener: socket.socket,
    files: ServedFiles | None,
    pages: Pages | None,
    token: str | None,
    is_own: bool,
    notify: Callable[[str], None],
) -> Iterator[None]:
    """Answer requests at a socket, in threads of this process, within the block."""
    with ThreadPoolExecutor(_THREADS, "tsds-serve") as threads:
        app: Any = _Application(files, pages, token, is_own, notify, threads)
        if pages is None:  # else the page and the store have the same origin
            app = CORSMiddleware(
                app,
                allow_origins=() if token is None else ("*",),  # who has the token may read
                allow_origin_regex=_OWN_URL,
                allow_methods=("GET", "HEAD"),
                allow_headers=("Range", "If-Match", "If-None-Match", "If-Range"),
                expose_headers=("Accept-Ranges", "Content-Length", "Content-Range", "ETag"),
                max_age=86400,
            )
        config = uvicorn.Config(
            app,
            http=_Connection,
            ws="none",
            loop="asyncio",
            lifespan="off",
            log_config=None,
            proxy_headers=False,
            server_header=False,
            headers=[("accept-ranges", "bytes"), ("x-content-type-options", "nosniff")],
            h11_max_incomplete_event_size=REQUEST_NBYTES,
            timeout_keep_alive=SECONDS,
        )
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run, args=([listener],), name="tsds-serve")
        thread.start()
        try:
            yield
        finally:
            server.should_exit = server.force_exit = True
            thread.join()
