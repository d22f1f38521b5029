"""The process that reads from a location for a forked one, see `server`."""

from __future__ import annotations

import json
import threading
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection
from typing import Any

from tensorstore_ds.remote.location import Location

THREADS = 16


def main(descriptor: int) -> None:
    """Answer requests until the other end is closed."""
    connection = Connection(descriptor)
    location = Location(connection.recv_bytes().decode())
    sending = threading.Lock()

    def answer(request: dict[str, Any]) -> None:
        reply: dict[str, Any]
        try:
            reply, data = _read(location, request)
        except Exception as error:  # whatever it is: who asked waits for an answer
            reply, data = {"error": str(error), "reason": getattr(error, "reason", "wrong")}, b""
        with sending:
            connection.send_bytes(json.dumps({**reply, "number": request["number"]}).encode())
            connection.send_bytes(data)

    with ThreadPoolExecutor(THREADS) as threads:
        while True:
            try:
                request = json.loads(connection.recv_bytes())
            except (EOFError, OSError):
                return
            threads.submit(answer, request)


def _read(location: Location, request: dict[str, Any]) -> tuple[dict[str, Any], bytes | memoryview]:
    if "limit" in request:
        data, etag = location.read_all(request["name"], request["limit"])
        return {"etag": etag}, data
    part, found = location.read(request["name"], request["start"], request["stop"], etag=request["etag"])
    return {"size": found.nbytes, "etag": found.etag}, part
