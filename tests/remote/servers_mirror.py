"""A range server with faults, and stores on it."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import unquote, urlsplit

from remote.servers import Handler, running

_RANGE = re.compile(r"bytes=(\d+)-(\d+)")


@dataclass
class Request:
    """One that was answered: bytes [start, stop) of a path."""

    path: str
    start: int
    stop: int


@dataclass
class FaultyServer:
    """A folder that is served.

    Attributes:
        url: of the folder.
        requests: those so far.
        fault: is called with each request, and says what is wrong with its answer: a status such as 503, ``cut``,
            ``wrong`` bytes, 64 MiB ``more`` and no end, or None.
        latency: seconds before each answer.
        weak: whether its entity tags are weak, which match no condition.
    """

    url: str = ""
    requests: list[Request] = field(default_factory=list)
    fault: Callable[[Request], int | str | None] = lambda request: None
    latency: float = 0.0
    weak: bool = False

    def of(self, path: str) -> list[Request]:
        """Requests of paths that contain this."""
        return [request for request in self.requests if path in request.path]


@contextmanager
def faulty_server(folder: Path) -> Iterator[FaultyServer]:
    """Serve a folder on this machine, with entity tags and If-Match."""
    account = FaultyServer()

    class Files(Handler):
        def do_GET(self) -> None:  # noqa: N802
            path = unquote(urlsplit(self.path).path).lstrip("/")
            file = folder / path
            if not file.is_file():
                self.answer(404)
                return
            size, etag = file.stat().st_size, f'"{file.stat().st_mtime_ns}-{file.stat().st_ino}"'
            etag = f"W/{etag}" if account.weak else etag
            if self.headers.get("If-Match", etag) != etag or (account.weak and "If-Match" in self.headers):
                self.answer(412)
                return
            wanted = _RANGE.fullmatch(self.headers.get("Range", ""))
            start, stop = (int(wanted[1]), min(size, int(wanted[2]) + 1)) if wanted else (0, size)
            request = Request(path, start, stop)
            account.requests.append(request)
            time.sleep(account.latency)
            fault = account.fault(request)
            if isinstance(fault, int):
                self.answer(fault)
                return
            with file.open("rb") as opened:
                opened.seek(start)
                data = opened.read(stop - start)
            if fault == "wrong":
                data = bytes(byte ^ 0xFF for byte in data)
            self.send_response(206 if wanted else 200)
            self.send_header("Content-Length", str(10**13 if fault == "more" else len(data)))
            self.send_header("ETag", etag)
            if wanted:
                self.send_header("Content-Range", f"bytes {start}-{stop - 1}/{size}")
            self.end_headers()
            if fault == "cut":
                data = data[: len(data) // 2]
                self.close_connection = True
            self.wfile.write(data)
            if fault == "more":
                self.close_connection = True
                for _ in range(64):
                    self.wfile.write(bytes(1 << 20))

        def answer(self, status: int) -> None:
            self.send_response(status)
            self.send_header("Content-Length", "0")
            self.end_headers()

    with running(Files) as account.url:
        yield account
