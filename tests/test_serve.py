"""A store over HTTP: what is answered, by bytes on real sockets, and what is not."""

from __future__ import annotations

import contextlib
import hashlib
import http.client
import os
import shutil
import socket
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO, Any
from urllib.parse import urlsplit

import numpy as np
import pytest
from hypothesis import example, given, settings, strategies as st

import tensorstore_ds as tsds
from small_stores import VALID
from stores import class_folders
from tensorstore_ds.annex.serving import answers as module
from tensorstore_ds.reading.store_files import size_of

STORE = VALID / "classification.tsds"
DATA = "train/00000/image/c/0/0/0/0"
BYTES = (STORE / DATA).read_bytes()
TOKEN = "0123456789abcdef_-"  # noqa: S105


@pytest.fixture(scope="module", params=["folder", "packed"])
def place(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    if request.param == "folder":
        return STORE
    return tsds.pack(STORE, tmp_path_factory.mktemp("packed") / "x.zip").path


@pytest.fixture(scope="module")
def url(place: Path) -> Iterator[str]:
    with tsds.serve(place) as url:
        yield url


def connect(url: str) -> http.client.HTTPConnection:
    parts = urlsplit(url)
    return http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=30)


def listening(url: str) -> socket.socket:
    parts = urlsplit(url)
    return socket.create_connection((parts.hostname, parts.port), timeout=30)


def ask(url: str, method: str = "GET", **headers: str) -> tuple[int, dict[str, str], bytes]:
    """Status, headers and body of an answer, by http.client."""
    with contextlib.closing(connect(url)) as connection:
        sent = {name.replace("_", "-"): text for name, text in headers.items()}
        connection.request(method, urlsplit(url).path, headers=sent)
        answer = connection.getresponse()
        return answer.status, {name.lower(): text for name, text in answer.getheaders()}, answer.read()


def status_of(connection: http.client.HTTPConnection, path: str = "/zarr.json") -> int:
    """The status of an answer on a connection that is kept."""
    connection.request("GET", path)
    with connection.getresponse() as answer:
        answer.read()
        return answer.status


def raw(url: str, request: bytes, *, ends: bool = True) -> bytes:
    """All that comes back for these bytes, after which nothing more is sent if it `ends`."""
    with listening(url) as connection:
        answer = b""
        with contextlib.suppress(OSError):  # it is closed before all is read
            connection.sendall(request)
            if ends:
                connection.shutdown(socket.SHUT_WR)
            while piece := connection.recv(65536):
                answer += piece
        return answer


# --- what is served -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_packed", [False, True])
def test_a_signature_is_served_as_long_as_it_is_there(tmp_path: Path, is_packed: bool) -> None:
    shutil.copytree(STORE, tmp_path / "s.tsds")
    (tmp_path / "s.tsds/zarr.json.sig").write_bytes(b"signed")
    place = tsds.pack(tmp_path / "s.tsds", tmp_path / "s.zip").path if is_packed else tmp_path / "s.tsds"
    with tsds.serve(place) as url:
        assert ask(f"{url}/zarr.json.sig")[::2] == (200, b"signed")
        tsds.pull(url, tmp_path / "copy.tsds")
        assert (tmp_path / "copy.tsds/zarr.json.sig").read_bytes() == b"signed"
        if not is_packed:
            (place / "zarr.json.sig").unlink()
            assert ask(f"{url}/zarr.json.sig")[0] == 404


def test_every_file_and_its_headers(url: str) -> None:
    for path in STORE.rglob("*"):
        if path.is_file():
            name, data = path.relative_to(STORE).as_posix(), path.read_bytes()
            status, headers, body = ask(f"{url}/{name}")
            assert (status, body, headers["content-length"]) == (200, data, str(len(data))), name
            assert headers["accept-ranges"] == "bytes"
            if name != "zarr.json":
                assert headers["etag"] == f'"{hashlib.sha256(data).hexdigest()}"'
            assert ask(f"{url}/{name}", "HEAD")[::2] == (200, b"")
            assert {**ask(f"{url}/{name}", "HEAD")[1], "date": ""} == {**headers, "date": ""}
    assert ask(f"{url}/zarr.json")[1]["etag"] == f'"{tsds.open(STORE).sha256}"'


def test_a_connection_is_kept(url: str) -> None:
    with contextlib.closing(connect(url)) as connection:
        assert status_of(connection) == 200
        used = connection.sock
        for path, status in ((f"/{DATA}", 200), ("/nothing", 404), ("/zarr.json", 200)):
            assert (status_of(connection, path), connection.sock) == (status, used)


ENDS = st.none() | st.integers(0, len(BYTES) + 20) | st.integers(0, 10**17)


@settings(max_examples=200, deadline=None)
@given(first=ENDS, last=ENDS)
@example(0, 0)
@example(None, 0)
@example(len(BYTES), None)
@example(len(BYTES) - 1, None)
def test_ranges_are_slices(url: str, first: int | None, last: int | None) -> None:
    text = ("" if first is None else str(first)) + "-" + ("" if last is None else str(last))
    status, headers, body = ask(f"{url}/{DATA}", Range=f"bytes={text}")
    if (first is None and last is None) or (first is not None and last is not None and last < first):
        assert (status, body) == (200, BYTES)  # it means nothing
        return
    start = max(0, len(BYTES) - (last or 0)) if first is None else first
    expected = BYTES[start:] if first is None or last is None else BYTES[start : last + 1]
    if expected:
        assert (status, body) == (206, expected)
        assert headers["content-range"] == f"bytes {start}-{start + len(expected) - 1}/{len(BYTES)}"
    else:
        assert (status, headers["content-range"]) == (416, f"bytes */{len(BYTES)}")


@pytest.mark.parametrize(
    "text",
    ["bytes=0-1,3-4", "bytes=a-b", "items=0-1", "bytes=", "bytes=--4", "0-1", f"bytes=0-{'9' * 400}", "bytes=1 -2"],
)
def test_other_ranges_are_ignored(text: str, url: str) -> None:
    assert ask(f"{url}/{DATA}", Range=text)[::2] == (200, BYTES)


def test_conditions(url: str) -> None:
    tag = f'"{hashlib.sha256(BYTES).hexdigest()}"'
    path = f"{url}/{DATA}"
    for header in (tag, f"W/{tag}", f'"other", {tag}', "*"):
        status, headers, body = ask(path, If_None_Match=header)
        assert (status, headers["etag"], body) == (304, tag, b"")
    assert ask(path, If_None_Match='"other"')[0] == 200
    for header, status in ((tag, 200), ("*", 200), (f'"other",{tag}', 200), ('"other"', 412), (f"W/{tag}", 412)):
        assert ask(path, If_Match=header)[0] == status
    assert ask(path, Range="bytes=0-3", If_Range=tag)[::2] == (206, BYTES[:4])
    assert ask(path, Range="bytes=0-3", If_Range='"other"')[::2] == (200, BYTES)
    assert ask(path, Range="bytes=0-3", If_Match='"other"')[0] == 412
    assert ask(path, "HEAD", Range="bytes=0-3")[1]["content-length"] == str(len(BYTES))


def test_several_at_a_time(url: str) -> None:
    with ThreadPoolExecutor(24) as threads:
        assert [body for _, _, body in threads.map(ask, [f"{url}/{DATA}"] * 24)] == [BYTES] * 24


# --- what is not ------------------------------------------------------------------------------------------------------


OTHER_PATHS = [
    "/",
    "/train",
    "/train/",
    "/train/00000/",
    "/nothing",
    "/zarr.json/",
    "/./zarr.json",
    "/train/../zarr.json",
    "/train//zarr.json",
    "/zarr.json%00",
    "/../classification.tsds/zarr.json",
    "/%2e%2e/zarr.json",
    "/zarr%2ejson",
    "/..%2fzarr.json",
    "/\\zarr.json",
    "/zarr.json#x",
    "/etc/passwd",
    "/../../../../etc/passwd",
    "/train/0/zarr.json",
    "/train/000000/zarr.json",
    "/train/99999/zarr.json",
    "train/zarr",
    "/train/00000/../00000/zarr.json",
    "/none/00000/zarr.json",
    "/train/00000/image/c/0/0/0/1",
    "http://localhost/zarr.json",
    "*",
]


@pytest.mark.parametrize("path", [*OTHER_PATHS, f"/train/{'9' * 15}/zarr.json", f"/train/{'0' * 400}/x"])
def test_other_paths_are_not_found(path: str, url: str) -> None:
    answer = raw(url, f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n".encode())
    assert answer.startswith(b"HTTP/1.1 404 Not Found\r\n")
    assert answer.endswith(b"\r\n\r\n404 Not Found\n")


def test_a_query_means_nothing(url: str) -> None:
    answer = raw(url, f"GET /{DATA}?x=../.. HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())
    assert answer.endswith(BYTES)


def test_links_and_files_that_are_not_listed(tmp_path: Path) -> None:
    store = shutil.copytree(STORE, tmp_path / "s.tsds")
    (tmp_path / "secret").write_text("secret")
    lines: list[str] = []
    with tsds.serve(store, notify=lines.append) as url:
        (store / "notes.txt").write_text("x")
        (store / "link").symlink_to(tmp_path / "secret")
        assert ask(f"{url}/notes.txt")[0] == ask(f"{url}/link")[0] == 404
        for change in ("link", "longer", "gone"):
            path = store / DATA
            path.unlink(missing_ok=True)
            if change == "link":
                path.symlink_to(STORE / DATA)
            elif change == "longer":
                path.write_bytes(BYTES + b"x")
            status, _, body = ask(f"{url}/{DATA}")
            assert (status, body) == (500, b"500 Internal Server Error\n"), change
        assert ask(f"{url}/zarr.json")[0] == 200
        shutil.rmtree(store)
        shutil.copytree(VALID / "minimal.tsds", store)
        assert ask(f"{url}/zarr.json")[0] == 500  # another store
    assert [line.partition(":")[0] for line in lines] == [DATA, DATA, DATA, str(store)]


def test_a_store_that_grows(tmp_path: Path) -> None:
    """At every moment, what is sent belongs to its ETag; the shards that there were stay."""
    class_folders(tmp_path / "photos", per_class=2)
    path = tsds.convert(tmp_path / "photos", tmp_path / "s.tsds", tsds.ConvertOptions(workers=0)).path
    before = tsds.open(path)
    first = {name: (path / name).read_bytes() for name in ("zarr.json", "train/00000/zarr.json")}
    lines: list[str] = []
    with tsds.serve(path, notify=lines.append) as url, tsds.serve(path, sha256=before.sha256) as fixed:
        mirror = tsds.open(url, cache_dir=tmp_path / "cache")
        (tmp_path / "photos/train/ant/new.png").write_bytes((tmp_path / "photos/train/bee/0.png").read_bytes())
        tsds.append(path, tmp_path / "photos")
        after = tsds.open(path)
        new = f"train/{len(after.manifest.splits['train'].shards) - 1:05d}/zarr.json"
        assert after.sha256 != before.sha256 and new not in first

        old_tag, new_tag = f'"{before.sha256}"', f'"{after.sha256}"'
        for _ in range(2):
            status, headers, body = ask(f"{url}/zarr.json", If_None_Match=old_tag)
            assert (status, headers["etag"], body) == (200, new_tag, (path / "zarr.json").read_bytes())
        assert ask(f"{url}/zarr.json", If_None_Match=new_tag)[0] == 304
        assert ask(f"{url}/zarr.json", If_Match=old_tag)[0] == 412
        assert ask(f"{url}/zarr.json", Range="bytes=0-9", If_Range=old_tag)[::2] == (200, body)
        assert ask(f"{url}/zarr.json", Range="bytes=5-90")[::2] == (206, body[5:91])
        assert ask(f"{url}/{new}")[::2] == (200, (path / new).read_bytes())
        assert ask(f"{url}/train/00000/zarr.json")[2] == first["train/00000/zarr.json"]
        assert tsds.open(url, cache_dir=tmp_path / "cache").sha256 == after.sha256
        assert [mirror["train"]["key"][i] for i in range(4)] == [before["train"]["key"][i] for i in range(4)]

        status, headers, body = ask(f"{fixed}/zarr.json")
        assert (status, headers["etag"], body) == (200, old_tag, first["zarr.json"])
        assert ask(f"{fixed}/{new}")[0] == 404

        tsds.annotate(path, license="CC0-1.0")
        assert ask(f"{url}/zarr.json")[1]["etag"] == f'"{tsds.open(path).sha256}"'
    assert lines == []


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "PROPFIND", "TRACE", "CONNECT", "nonsense"])
def test_other_methods(method: str, url: str) -> None:
    assert raw(url, f"{method} /zarr.json HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()).startswith(b"HTTP/1.1 501 ")


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        (b"GET / HTTP/9.9\r\n\r\n", b"403"),
        (b"GET / HTTP/1.1\r\n\r\n", b"400"),
        ("GET /ä HTTP/1.1\r\nHost: localhost\r\n\r\n".encode(), b"400"),
        (b"GET /zarr.json HTTP/1.1 x\r\n\r\n", b"400"),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", b"400"),
        (b"GET /" + b"a" * 300_000 + b" HTTP/1.1\r\n\r\n", b"400"),
        (b"GET /zarr.json HTTP/1.1\r\nHost: localhost\r\nX: " + b"a" * 300_000 + b"\r\n\r\n", b"400"),
        (b"GET /zarr.json HTTP/1.1\r\nHost: localhost\r\n" + b"X: a\r\n" * 50_000 + b"\r\n", b"400"),
        (b"x" * 100_000, b"400"),
        (b"GET /zarr.json HTTP/1.1\r\nHost: localhost\r\nHost: other.example\r\n\r\n", b"400"),
    ],
)
def test_requests_that_are_none(request_bytes: bytes, status: bytes, url: str) -> None:
    answer = raw(url, request_bytes)
    assert not answer or answer.split()[1] == status  # nothing, where the connection was reset
    assert ask(f"{url}/zarr.json")[0] == 200


@settings(max_examples=100, deadline=None)
@given(st.binary(max_size=200) | st.binary(max_size=60).map(lambda tail: b"GET /zarr.json HTTP/1.1\r\n" + tail))
def test_any_bytes_leave_it_working(url: str, data: bytes) -> None:
    raw(url, data)
    assert ask(f"{url}/{DATA}", Range="bytes=0-3")[2] == BYTES[:4]


INNER = b"GET /zarr.json HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
CHUNKED = b"%x\r\n%s\r\n0\r\n\r\n" % (len(INNER), INNER)
HEAD = b"%s /" + DATA.encode() + b" HTTP/1.1\r\nHost: localhost\r\n"


@pytest.mark.parametrize("method", [b"GET", b"HEAD", b"OPTIONS", b"POST", b"nonsense"])
@pytest.mark.parametrize(
    ("headers", "is_bad"),
    [
        (b"Content-Length: %d\r\n" % len(INNER), False),
        (b"content-length: 0\r\n", False),
        (b"Content-Length: +%d\r\n" % len(INNER), True),
        (b"Content-Length: 0, %d\r\n" % len(INNER), True),
        (b"Content-Length: 0\r\nContent-Length: %d\r\n" % len(INNER), True),
        (b"Content-Length: %d\r\nContent-Length: 0\r\n" % len(INNER), True),
        (b"Content-Length : %d\r\n" % len(INNER), True),
        (b"Transfer-Encoding: chunked\r\n", False),
        (b"Transfer-Encoding: identity\r\nContent-Length: 0\r\n", True),
        (b"Transfer-Encoding : chunked\r\n", True),
        (b"no header\r\nTransfer-Encoding: chunked\r\n", True),
        (b"Expect: 100-continue\r\nContent-Length: %d\r\n" % len(INNER), False),
    ],
)
def test_what_follows_a_body_is_no_request(url: str, method: bytes, headers: bytes, is_bad: bool) -> None:
    """One that shares a connection, as a proxy does, is never given the answer to a body."""
    for body in (INNER, CHUNKED):
        answer = raw(url, HEAD % method + headers + b"\r\n" + body)
        assert answer.count(b"HTTP/1.1 ") == 1, answer
        statuses = {b"GET": b"200", b"HEAD": b"200", b"OPTIONS": b"204"}
        is_bad_body = b"chunked" in headers and body is INNER
        assert answer.split()[1] == (b"400" if is_bad or is_bad_body else statuses.get(method, b"501"))
        assert b"\r\nconnection: close\r\n" in answer.lower()


def test_a_body_that_comes_later_is_no_request(url: str) -> None:
    """The connection is closed before it comes."""
    answer = raw(url, HEAD % b"OPTIONS" + b"Content-Length: %d\r\n\r\n" % len(INNER), ends=False)
    assert answer.startswith(b"HTTP/1.1 204 ") and answer.endswith(b"\r\n\r\n")


def test_a_client_that_is_slow_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SECONDS", 0.3)
    with tsds.serve(STORE) as url, listening(url) as connection:
        connection.sendall(b"GET /zarr.json HT")
        assert connection.recv(10) == b""


@pytest.mark.slow
def test_a_client_that_takes_nothing_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a file larger than the buffers of both ends; a client that takes it slowly gets all of it."""
    monkeypatch.setattr(module, "SECONDS", 0.5)
    images = np.random.default_rng(0).integers(0, 256, (8, 1024, 1024, 3), np.uint8)
    store = tsds.convert([{"image": image} for image in images], tmp_path / "s.tsds", workers=0)
    request = f"GET /{DATA} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode()
    for pause in (0.0, 2.0):
        with tsds.serve(store.path) as url, socket.socket() as connection:
            connection.settimeout(60)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
            connection.connect(("127.0.0.1", urlsplit(url).port))
            connection.sendall(request)
            time.sleep(pause)
            taken = bytearray()
            with contextlib.suppress(ConnectionError):
                while piece := connection.recv(1 << 20):
                    taken += piece
                    time.sleep(0.01)
        body = taken.partition(b"\r\n\r\n")[2]
        expected = (store.path / DATA).read_bytes()
        assert expected.startswith(body) and (len(body) == len(expected)) == (pause == 0)


def test_a_file_that_is_cut_off_while_it_is_sent_ends_the_connection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_PIECE_NBYTES", 100)
    store = shutil.copytree(STORE, tmp_path / "s.tsds")
    with tsds.serve(store) as url:
        whole = size_of

        def cut(opened: IO[bytes]) -> int:
            size = whole(opened)
            os.truncate(store / DATA, 300)
            return size

        monkeypatch.setattr(module, "size_of", cut)
        with pytest.raises(http.client.IncompleteRead) as caught:
            ask(f"{url}/{DATA}")
        assert caught.value.partial == BYTES[:300]


def test_a_connection_that_is_closed_makes_room_for_another(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CONNECTIONS", 4)
    with tsds.serve(STORE) as url, contextlib.ExitStack() as stack:
        held = [stack.enter_context(contextlib.closing(connect(url))) for _ in range(3)]  # 3/4 from one address
        assert [status_of(each) for each in held] == [200] * 3
        assert ask(f"{url}/zarr.json")[0] == 503
        held[0].close()
        while ask(f"{url}/zarr.json")[0] == 503:
            pass  # until its thread has seen that


@pytest.mark.skipif(sys.platform != "linux", reason="127.0.0.2 is this machine, too")
def test_one_address_does_not_keep_out_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CONNECTIONS", 8)

    def connection(address: str) -> http.client.HTTPConnection:
        return http.client.HTTPConnection("127.0.0.1", urlsplit(url).port, timeout=30, source_address=(address, 0))

    with tsds.serve(STORE) as url, contextlib.ExitStack() as stack:
        for address, expected in (("127.0.0.2", [200] * 6 + [503] * 2), ("127.0.0.3", [200] * 2 + [503])):
            held = [stack.enter_context(contextlib.closing(connection(address))) for _ in expected]
            assert [status_of(each) for each in held] == expected


def test_it_ends_with_its_block() -> None:
    before = set(threading.enumerate())
    with tsds.serve(STORE) as url:
        kept = connect(url)
        assert status_of(kept) == 200
    assert not set(threading.enumerate()) - before
    with pytest.raises(ConnectionRefusedError):
        ask(f"{url}/zarr.json")
    kept.close()


# --- who may read -----------------------------------------------------------------------------------------------------


def test_the_token_is_the_first_part_of_the_path() -> None:
    with tsds.serve(STORE, token=TOKEN) as url:
        base = url.removesuffix(f"/{TOKEN}")
        assert url == f"{base}/{TOKEN}"
        assert ask(f"{url}/{DATA}", Host="any.example")[2] == BYTES
        for path in (DATA, f"{TOKEN[:-1]}/{DATA}", f"{TOKEN}x/{DATA}", f"/{TOKEN}/{DATA}", f"x/{TOKEN}/{DATA}", TOKEN):
            assert ask(f"{base}/{path}")[0] == 404


def test_another_host_gets_a_new_token() -> None:
    found = set()
    for _ in range(2):
        with tsds.serve(STORE, host="0.0.0.0") as url:  # noqa: S104
            parts = urlsplit(url)
            token = parts.path[1:]
            assert len(token) >= 32
            assert ask(f"http://127.0.0.1:{parts.port}/{token}/{DATA}")[2] == BYTES
            assert ask(f"http://127.0.0.1:{parts.port}/{DATA}")[0] == 404
            found.add(token)
    assert len(found) == 2


@pytest.mark.parametrize(
    ("host", "status"),
    [
        *(("127.0.0.1", 200), ("localhost:80", 200), ("[::1]:9", 200), ("127.0.0.1.evil.example", 403)),
        *(("evil.example", 403), ("localhost@evil.example", 403), ("", 403), ("evil.example:80", 403)),
    ],
)
def test_without_a_token_other_hosts_are_refused(host: str, status: int, url: str) -> None:
    """A page of a stranger whose name leads to this machine sends its own name."""
    assert ask(f"{url}/zarr.json", Host=host)[0] == status


def test_pages_of_other_origins_read_with_the_token_alone(url: str) -> None:
    for origin in ("http://localhost:3000", "http://127.0.0.1", "https://[::1]:8"):
        headers = ask(f"{url}/zarr.json", Origin=origin)[1]
        assert headers["access-control-allow-origin"] == origin
        assert "Content-Range" in headers["access-control-expose-headers"]
    for origin in ("http://evil.example", "null", "http://localhost.evil.example", "http://[", "http://localhost/\t"):
        assert "access-control-allow-origin" not in ask(f"{url}/zarr.json", Origin=origin)[1]
    with tsds.serve(STORE, token=TOKEN) as other:
        for origin in ("http://any.example", "null"):
            assert ask(f"{other}/zarr.json", Origin=origin)[1]["access-control-allow-origin"] == "*"
        for url_asked, origin, expected in (
            (other, "http://any.example", 200),
            (url, "http://localhost:3000", 200),
            (url, "http://evil.example", 400),
        ):
            status, headers, _ = ask(
                f"{url_asked}/{DATA}",
                "OPTIONS",
                Origin=origin,
                Access_Control_Request_Method="GET",
                Access_Control_Request_Headers="if-match,range",
            )
            assert status == expected
            assert ("access-control-allow-origin" in headers) == (expected == 200)
            assert "Range" in headers["access-control-allow-headers"].split(", ")


def test_what_cannot_be_listened_at() -> None:
    with tsds.serve(STORE) as url:
        port = urlsplit(url).port or 0
        cases: list[dict[str, Any]] = [{"token": token} for token in ("short", "x" * 200, "a/b" * 9, "")]
        cases += [{"port": wrong} for wrong in (port, 70_000, -1)]
        for arguments in (*cases, {"host": "256.1.1.1", "token": TOKEN}):
            with pytest.raises(tsds.OptionError) as caught, tsds.serve(STORE, **arguments):
                pass
            assert "\n" not in str(caught.value)
    for store, sha256 in ((STORE.parent, None), (STORE, "0" * 64)):
        with pytest.raises(tsds.FormatError), tsds.serve(store, sha256=sha256):
            pass


@pytest.mark.skipif(not socket.has_ipv6 or sys.platform != "linux", reason="IPv6")
def test_ipv6() -> None:
    if not Path("/proc/net/if_inet6").exists() or not Path("/proc/net/if_inet6").read_text():
        pytest.skip("no IPv6 here")
    with tsds.serve(STORE, host="::1") as url:
        assert url.startswith("http://[::1]:")
        assert ask(f"{url}/{DATA}")[2] == BYTES
