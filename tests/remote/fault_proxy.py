"""A proxy over http that does what servers and networks do wrong: each fault some times, then it is a plain proxy."""

from __future__ import annotations

import http.client
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import Event, Lock
from urllib.parse import urlsplit

from remote.servers import Handler, running

_CHUNK = 64 * 1024
#: Headers that are the proxy's own.
_HOP = ("connection", "transfer-encoding", "server", "date", "keep-alive")


@dataclass
class Fault:
    """What goes wrong with requests whose path holds `path`, `times` times.

    `kind`: ``cut`` the answer after `nbytes` bytes; answer with `status`; ``stall`` after `nbytes` bytes; say another
    ``content-range``; send the ``whole`` file for a range; send other bytes (``flip``); ``redirect`` to `target`.
    """

    kind: str
    path: str = "image/c/"
    times: int = 10**9
    nbytes: int = 1000
    status: int = 503
    target: str = ""
    body: bytes = b""


@dataclass
class Proxy:
    """A proxy that runs.

    Attributes:
        url: in place of that of the server behind it.
        faults: that are still to come.
        requests: method, path and headers, of every request so far.
        sent: bytes of bodies that were sent.
        seconds: to wait after each 64 KiB.
    """

    url: str
    faults: list[Fault] = field(default_factory=list)
    requests: list[tuple[str, str, dict[str, str]]] = field(default_factory=list)
    sent: int = 0
    seconds: float = 0.0
    lock: Lock = field(default_factory=Lock)
    closed: Event = field(default_factory=Event)

    def next_fault(self, path: str) -> Fault | None:
        with self.lock:
            for fault in self.faults:
                if fault.times > 0 and fault.path in path:
                    fault.times -= 1
                    return fault
        return None


@contextmanager
def proxy_for(server: str) -> Iterator[Proxy]:
    """Run a proxy in front of the server at a URL without a path."""
    behind = urlsplit(server).netloc

    class Passing(Handler):
        def setup(self) -> None:
            self.request.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _CHUNK)  # what is sent, arrives
            super().setup()

        def do_GET(self) -> None:  # noqa: N802
            sent = {name.lower(): value for name, value in self.headers.items()}
            proxy.requests.append((self.command, self.path, sent))
            fault = proxy.next_fault(self.path) or Fault("")
            if fault.kind in ("status", "redirect"):
                self.send_response(fault.status if fault.kind == "status" else 302)
                if fault.target:
                    self.send_header("Location", fault.target)
                self.send_header("Content-Length", str(len(fault.body)))
                self.end_headers()
                self.wfile.write(fault.body)
                return
            body = self.rfile.read(int(sent.get("content-length", 0)))
            passed = {n: v for n, v in sent.items() if not (fault.kind == "whole" and n == "range")}
            connection = http.client.HTTPConnection(behind, timeout=20)
            connection.request(self.command, self.path, body, passed)
            answer = connection.getresponse()
            data = answer.read()
            connection.close()
            self.send_response(answer.status)
            for name, value in answer.getheaders():
                if name.lower() == "content-range" and fault.kind == "content-range":
                    value = "bytes 5-9/10"
                if name.lower() == "etag" and fault.kind == "etag":
                    value = f'"{time.time_ns()}"'
                if name.lower() not in _HOP:
                    self.send_header(name, value)
            self.end_headers()
            if fault.kind == "flip" and data:
                data = bytes([data[0] ^ 1]) + data[1:]
            self.send(data, fault)

        do_PUT = do_POST = do_HEAD = do_DELETE = do_GET  # noqa: N815

        def send(self, data: bytes, fault: Fault) -> None:
            stop = fault.nbytes if fault.kind in ("cut", "stall") else len(data)
            for start in range(0, min(stop, len(data)), _CHUNK):
                piece = data[start : min(start + _CHUNK, stop)]
                try:
                    self.wfile.write(piece)
                except OSError:  # who asked has gone
                    self.close_connection = True
                    return
                with proxy.lock:
                    proxy.sent += len(piece)
                time.sleep(proxy.seconds)
            if fault.kind == "stall":
                proxy.closed.wait(60)
            if fault.kind in ("cut", "stall"):
                self.close_connection = True

    with running(Passing) as url:
        proxy = Proxy(url)
        try:
            yield proxy
        finally:
            proxy.closed.set()
