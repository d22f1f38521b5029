"""Servers that send a byte now and then, that redirect S3, or that fail while a store is pushed."""

from __future__ import annotations

import functools
import threading
from collections.abc import Iterator
from http.server import SimpleHTTPRequestHandler
from pathlib import Path

import pytest

import tensorstore_ds as tsds
from remote.conftest import set_credentials
from remote.fault_proxy import Fault, proxy_for
from remote.servers import Handler, running
from stores import files_of

pytestmark = pytest.mark.usefixtures("cache")


@pytest.fixture
def dripping() -> Iterator[str]:
    """A server that sends a space 5 times per second, for ever."""
    closed = threading.Event()

    class Dripping(Handler):
        def do_GET(self) -> None:  # noqa: N802
            self.send_response(200)
            self.send_header("Content-Length", "1000000")
            self.end_headers()
            try:
                while not closed.wait(0.2):
                    self.wfile.write(b" ")
            except OSError:
                pass

    with running(Dripping) as url:
        yield f"{url}/s.tsds"
        closed.set()


@pytest.mark.parametrize("query", ["", "?signature=s"])
def test_a_server_that_drips_is_not_waited_for(
    dripping: str, query: str, impatient: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is never silent for `read_timeout`, but its answer takes longer than `timeout`."""
    wait = {"connect_timeout": "1s", "read_timeout": "1s", "timeout": "2s"}
    monkeypatch.setattr("tensorstore_ds.remote.location.WAIT", wait)
    with pytest.raises(tsds.RemoteError, match="does not answer"):
        tsds.open(f"{dripping}{query}")


@pytest.mark.parametrize("query", ["", "?signature=s"])
def test_a_server_that_sends_no_length_is_told_from_others(query: str) -> None:
    class Chunked(Handler):
        def do_GET(self) -> None:  # noqa: N802
            self.send_response(200)
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            self.wfile.write(b"2\r\n{}\r\n0\r\n\r\n")

    with running(Chunked) as url, pytest.raises(tsds.RemoteError, match=r"the server sent none, .* compresses files"):
        tsds.open(f"{url}/s.tsds{query}")


def test_s3_that_redirects_tells_no_other_host_the_keys(
    store: tsds.Store, bucket: str, moto: str, tmp_path: Path, impatient: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    tsds.push(store.path, f"{bucket}/s.tsds")
    with proxy_for(moto) as first, proxy_for(moto) as second:
        set_credentials(monkeypatch, first.url)
        host = second.url.replace("127.0.0.1", "localhost")
        name = bucket.removeprefix("s3://")
        first.faults.append(Fault("redirect", "zarr.json", target=f"{host}/{name}/s.tsds/zarr.json"))
        try:
            tsds.open(f"{bucket}/s.tsds")
        except tsds.TsdsError as error:
            assert "\n" not in str(error)
        seen = str(second.requests)
        assert seen != "[]"
        assert not any(secret in seen for secret in ("key-id-of-the-test", "very-secret", "Signature="))


@pytest.mark.parametrize("query", ["", "?signature=s"])
def test_a_server_without_ranges_is_told_from_others(store: tsds.Store, tmp_path: Path, query: str) -> None:
    """Python's own; and what the message advises works."""

    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, *args: object) -> None:
            pass

    with running(functools.partial(Quiet, directory=str(store.path.parent))) as server:
        url = f"{server}/{store.path.name}{query}"
        with pytest.raises(tsds.RemoteError, match=r"sends whole files\. Copy the store with tsds pull, or"):
            tsds.open(url)["train"]["image"][0]
        tsds.pull(url, tmp_path / "pulled.tsds")
    assert files_of(tmp_path / "pulled.tsds") == files_of(store.path)
