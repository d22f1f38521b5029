"""The process that reads for one that was forked: every request is answered."""

from __future__ import annotations

import json
import socket
import threading
from multiprocessing.connection import Connection
from typing import Any

import pytest

from tensorstore_ds.remote import server


@pytest.mark.parametrize("opens", [True, False])
def test_an_error_that_nobody_has_thought_of_is_an_answer(opens: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    class Location:
        def __init__(self, url: str) -> None:
            if not opens:
                raise MemoryError("too much")

        def read_all(self, name: str, limit: int) -> Any:
            raise MemoryError("too much")

    monkeypatch.setattr(server, "Location", Location)
    ours, theirs = socket.socketpair()
    thread = threading.Thread(target=server.answer_requests, args=(theirs.detach(),))
    thread.start()
    with Connection(ours.detach()) as connection:
        connection.send_bytes(b"https://example.org/s.tsds")
        connection.send_bytes(json.dumps({"name": "zarr.json", "limit": 9, "number": 3}).encode())
        assert connection.poll(10)
        assert json.loads(connection.recv_bytes()) == {"error": "too much", "reason": "wrong", "number": 3}
        assert connection.recv_bytes() == b""
    thread.join()
