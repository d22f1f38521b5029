"""A file server over http that answers ranges, and keeps an account of what was asked for."""

from __future__ import annotations

import re
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from urllib.parse import unquote, urlsplit

_PIECE = 64 * 1024
_RANGE = re.compile(r"bytes=(\d*)-(\d*)")


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, *args: object) -> None:  # who asked has gone
        pass


@dataclass
class Served:
    """A folder that is served.

    Attributes:
        url: of the folder, without a slash at its end.
        requests: path and number of bytes of every answer so far.
        sent: bytes of files that were sent so far.
        seconds: to wait after each 64 KiB.
    """

    url: str
    requests: list[tuple[str, int]] = field(default_factory=list)
    sent: int = 0
    seconds: float = 0.0


@contextmanager
def served(folder: Path, *, ranges: bool = True) -> Iterator[Served]:
    """Serve a folder on this machine; without `ranges`, every answer is a whole file."""

    class Handler(BaseHTTPRequestHandler):
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
            self.send_header("Content-Length", str(stop - start))
            if wanted:
                self.send_header("Content-Range", f"bytes {start}-{stop - 1}/{size}")
            self.end_headers()
            account.requests.append((path, stop - start))
            with (folder / path).open("rb") as file:
                file.seek(start)
                for at in range(start, stop, _PIECE):
                    self.wfile.write(file.read(min(_PIECE, stop - at)))
                    account.sent += min(_PIECE, stop - at)
                    if account.seconds:
                        time.sleep(account.seconds)

        def setup(self) -> None:
            self.request.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _PIECE)  # what was sent has about arrived
            super().setup()

        def log_message(self, *args: object) -> None:
            pass

    with _Server(("127.0.0.1", 0), Handler) as server:
        account = Served(f"http://127.0.0.1:{server.server_port}")
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield account
        finally:
            server.shutdown()
            thread.join()


def _span(wanted: re.Match[str], size: int) -> tuple[int, int]:
    """Half open; without a first byte, a number of bytes from the end."""
    first, last = wanted.groups()
    if not first:
        return max(0, size - int(last)), size
    return int(first), min(size, int(last) + 1 if last else size)
