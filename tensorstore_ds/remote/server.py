"""Read from a location also after a fork, and retry when the network fails.

obstore's threads do not survive a fork: in a child of a process that has used it, its calls wait forever. Such a child
starts its own process that reads for it.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import json
import os
import socket
import subprocess
import sys
import threading
import time
import weakref
from concurrent.futures import Future, ThreadPoolExecutor
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from tensorstore_ds import words
from tensorstore_ds.errors import RemoteError
from tensorstore_ds.remote.location import Found, Location

#: Seconds before each further attempt, where a network or a server failed.
PAUSES = (0.2, 1.0)
_FAILED = ("unreachable", "wrong")
#: What the process that reads for a forked one runs, and its threads.
_READER = (
    "import sys; sys.path[:0] = [sys.argv[2]]; from tensorstore_ds.remote import server; "
    "server.answer_requests(int(sys.argv[1]))"
)
_THREADS = 16

_is_forked = False


class Server:
    """Reads files of a `Location` by name, in several threads and also in forked processes."""

    def __init__(self, url: str) -> None:
        self.url = words.shown_path(url)
        self._given = url
        self._lock = threading.Lock()
        self._process = os.getpid()
        self._location: Location | _Reader | None = None

    def __repr__(self) -> str:
        return f"<Server {self.url}>"

    def read(self, name: str, start: int, stop: int, *, etag: str | None = None) -> tuple[memoryview, Found]:
        """Read bytes and the version of their file, in up to three attempts; raises `RemoteError`."""
        for pause in PAUSES:
            try:
                return self._reader().read(name, start, stop, etag=etag)
            except RemoteError as error:
                if error.reason not in _FAILED:
                    raise
                time.sleep(pause)
        return self._reader().read(name, start, stop, etag=etag)

    def read_all(self, name: str, limit: int) -> tuple[bytes, str | None]:
        """Read a file of at most `limit` bytes, and its version; raises `RemoteError`."""
        return self._reader().read_all(name, limit)

    def _reader(self) -> Location | _Reader:
        if self._process != os.getpid():  # forked: a thread that is not here may have held the lock
            self._process, self._lock, self._location = os.getpid(), threading.Lock(), None
        with self._lock:
            if self._location is None or (isinstance(self._location, _Reader) and self._location.has_ended):
                self._location = _Reader(self._given) if _is_forked else Location(self._given)
                if isinstance(self._location, _Reader):
                    weakref.finalize(self, self._location.end)
            return self._location


class _Reader:
    """A process that reads from a location for this one, and ends with it."""

    def __init__(self, url: str) -> None:
        ours, theirs = socket.socketpair()
        self._url = words.shown_path(url)
        with theirs:
            root = str(Path(__file__).parents[2])
            command = [sys.executable, "-c", _READER, str(theirs.fileno()), root]
            self._child = subprocess.Popen(command, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL)
        self._socket, self._process = ours, os.getpid()
        self._connection = Connection(os.dup(ours.fileno()))
        self._connection.send_bytes(url.encode())  # not on the command line, which others see
        self._sending = threading.Lock()
        self._numbers = itertools.count()
        self._waiting: dict[int, Future[tuple[dict[str, Any], bytes]]] = {}
        threading.Thread(target=self._receive, name="tsds-reader", daemon=True).start()

    def end(self) -> None:
        """End the process, unless this is a fork of the one that started it."""
        if self._process == os.getpid():
            with contextlib.suppress(OSError):  # it has ended
                self._socket.shutdown(socket.SHUT_RDWR)

    @property
    def has_ended(self) -> bool:
        """Whether the process is gone, such as killed for its memory."""
        return self._connection.closed

    def read(self, name: str, start: int, stop: int, *, etag: str | None = None) -> tuple[memoryview, Found]:
        answer, data = self._ask({"name": name, "start": start, "stop": stop, "etag": etag})
        return memoryview(data), Found(answer["size"], answer["etag"])

    def read_all(self, name: str, limit: int) -> tuple[bytes, str | None]:
        answer, data = self._ask({"name": name, "limit": limit})
        return data, answer["etag"]

    def _ask(self, request: dict[str, Any]) -> tuple[dict[str, Any], bytes]:
        future: Future[tuple[dict[str, Any], bytes]] = Future()
        with self._sending:
            number = next(self._numbers)
            self._waiting[number] = future
            try:
                self._connection.send_bytes(json.dumps({**request, "number": number}).encode())
            except OSError:
                raise self._gone() from None
        answer, data = future.result()
        if "error" in answer:
            raise RemoteError(answer["error"], answer["reason"])
        return answer, data

    def _receive(self) -> None:
        try:
            while True:
                answer = json.loads(self._connection.recv_bytes())
                data = self._connection.recv_bytes()
                self._waiting.pop(answer["number"]).set_result((answer, data))
        except (OSError, EOFError):
            with self._sending:
                self._connection.close()
                for future in self._waiting.values():
                    future.set_exception(self._gone())
                self._waiting.clear()
            self._socket.close()
            self._child.wait()

    def _gone(self) -> RemoteError:
        return RemoteError(f"{self._url}: the process that reads it has ended. Try again.", "unreachable")


def answer_requests(descriptor: int) -> None:
    """Read from a location for a forked process, until the other end of the pipe is closed."""
    connection = Connection(descriptor)
    url = connection.recv_bytes().decode()
    location = functools.cache(lambda: Location(url))  # in each answer, which may be its error
    sending = threading.Lock()

    def answer(request: dict[str, Any]) -> None:
        reply: dict[str, Any]
        try:
            reply, data = _reply(location(), request)
        except Exception as error:  # whatever it is: who asked waits for an answer
            reply, data = {"error": str(error), "reason": getattr(error, "reason", "wrong")}, b""
        with sending:
            connection.send_bytes(json.dumps({**reply, "number": request["number"]}).encode())
            connection.send_bytes(data)

    with ThreadPoolExecutor(_THREADS) as threads:
        while True:
            try:
                request = json.loads(connection.recv_bytes())
            except (EOFError, OSError):
                return
            threads.submit(answer, request)


def _reply(location: Location, request: dict[str, Any]) -> tuple[dict[str, Any], bytes | memoryview]:
    if "limit" in request:
        data, etag = location.read_all(request["name"], request["limit"])
        return {"etag": etag}, data
    part, found = location.read(request["name"], request["start"], request["stop"], etag=request["etag"])
    return {"size": found.nbytes, "etag": found.etag}, part


def _after_fork() -> None:
    global _is_forked
    _is_forked = _is_forked or "obstore" in sys.modules


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
