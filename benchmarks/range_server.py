"""A file server over http that answers ranges, and keeps an account of what was asked for."""

from __future__ import annotations

import re
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from mimetypes import guess_type
from pathlib import Path
from threading import Lock, Thread
from urllib.parse import unquote, urlsplit

_PIECE = 64 * 1024
_RANGE = re.compile(r"bytes=(\d*)-(\d*)")


@dataclass
class Served:
    """A folder that is served.

    Attributes:
        url: of the folder, without a slash at its end.
        requests: path and number of bytes of every answer so far.
        sent: bytes of files that were sent so far.
        seconds: to wait after each 64 KiB of an answer.
    """

    url: str
    requests: list[tuple[str, int]] = field(default_factory=list)
    sent: int = 0
    seconds: float = 0.0


@contextmanager
def served(
    folder: Path, *, ranges: bool = True, latency: float = 0.0, bandwidth: float | None = None
) -> Iterator[Served]:
    """Serve a folder on this machine; without `ranges`, every answer is a whole file.

    As a network far away would: `latency` seconds before each answer, and `bandwidth` bytes a second for all together.
    """
    network = _Network(bandwidth)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            path = unquote(urlsplit(self.path).path).lstrip("/")
            if not (folder / path).is_file():
                self.send_error(404)
                return
            size = (folder / path).stat().st_size
            wanted = _RANGE.fullmatch(self.headers.get("Range", "")) if ranges else None
            start, stop = _span(wanted, size) if wanted else (0, size)
            if start >= stop:
                self.send_error(416)
                return
            self.send_response(206 if wanted else 200)
            self.send_header("Content-Type", guess_type(path)[0] or "application/octet-stream")
            self.send_header("Content-Length", str(stop - start))
            if wanted:
                self.send_header("Content-Range", f"bytes {start}-{stop - 1}/{size}")
            self.end_headers()
            account.requests.append((path, stop - start))
            time.sleep(latency)
            with (folder / path).open("rb") as file:
                for position in range(start, stop, _PIECE):
                    network.wait(min(_PIECE, stop - position))
                    self.connection.sendfile(file, position, min(_PIECE, stop - position))
                    account.sent += min(_PIECE, stop - position)
                    time.sleep(account.seconds)

        def setup(self) -> None:
            self.request.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _PIECE)  # what was sent has about arrived
            super().setup()

        def log_message(self, *args: object) -> None:
            pass

    class Server(ThreadingHTTPServer):
        daemon_threads = True  # connections that stay open are not waited for
        request_queue_size = 64

        def handle_error(self, *args: object) -> None:  # who asked has gone
            pass

    with Server(("127.0.0.1", 0), Handler) as server:
        account = Served(f"http://127.0.0.1:{server.server_port}")
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield account
        finally:
            server.shutdown()
            thread.join()


class _Network:
    """Hands out the time in which bytes may go, to one answer after the other."""

    def __init__(self, bandwidth: float | None) -> None:
        self._bandwidth, self._free, self._lock = bandwidth, 0.0, Lock()

    def wait(self, nbytes: int) -> None:
        if self._bandwidth is None:
            return
        with self._lock:
            self._free = max(self._free, time.monotonic()) + nbytes / self._bandwidth
            free = self._free
        time.sleep(max(0.0, free - time.monotonic()))


def _span(wanted: re.Match[str], size: int) -> tuple[int, int]:
    """Half open; without a first byte, a number of bytes from the end."""
    first, last = wanted.groups()
    if not first:
        return max(0, size - int(last)), size
    return int(first), min(size, int(last) + 1 if last else size)
