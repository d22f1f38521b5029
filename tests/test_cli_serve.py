from __future__ import annotations

import contextlib
import json
import signal
import socket
import subprocess
import sys
import urllib.request
from urllib.parse import urlsplit

import pytest

from small_stores import VALID, tsds

pytestmark = pytest.mark.slow

STORE = VALID / "classification.tsds"
DATA = "train/00000/image/c/0/0/0/0"


@pytest.mark.skipif(sys.platform == "win32", reason="Ctrl-C, as POSIX sends it")
@pytest.mark.parametrize("arguments", [[], ["--json"], ["--token", "a-token-of-the-tests"]])
def test_it_serves_until_ctrl_c(arguments: list[str]) -> None:
    words = [sys.executable, "-m", "tsds_cli", "serve", STORE, "--port", "0", *arguments]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        if "--json" in arguments:
            lines = [process.stdout.readline() for _ in range(4)]
            url = json.loads("".join(lines))["url"]
        else:
            first = process.stdout.readline()
            url = first.split()[-1]
            assert first == f"serving {STORE} at {url}\n"
            assert process.stdout.readline().endswith(f"info {url}\n")
        assert url.endswith("/a-token-of-the-tests") == ("--token" in arguments)
        with urllib.request.urlopen(f"{url}/{DATA}", timeout=30) as answer:  # noqa: S310
            assert answer.read() == (STORE / DATA).read_bytes()
        parts = urlsplit(url)
        request = f"GET {parts.path}/{DATA} HTTP/1.1\r\nHost: localhost\r\n".encode()
        with contextlib.ExitStack() as held:  # of what a client sends, and leaves open, nothing is printed
            for rest in (
                *(b"", b"\0\r\n\r\n", b"\r\nGET junk" * 9, b"Transfer-Encoding: chunked\r\n\r\nzz\r\n"),
                *(
                    b"Content-Length: " + b"9" * 6000 + b"\r\n\r\n",
                    b"Connection: Upgrade\r\nUpgrade: websocket\r\n\r\n",
                ),
            ):
                client = held.enter_context(socket.create_connection((parts.hostname, parts.port), timeout=0.2))
                client.sendall(request + rest)
                with contextlib.suppress(OSError):
                    client.recv(100)
            process.send_signal(signal.SIGINT)
            out, err = process.communicate(timeout=60)
    assert (process.returncode, out, err) == (0, "" if "--json" in arguments else "stopped\n", "")


def test_a_port_that_is_taken_is_one_line() -> None:
    with socket.socket() as used:
        used.bind(("127.0.0.1", 0))
        used.listen()
        port = used.getsockname()[1]
        done = tsds("serve", STORE, "--port", port)
    assert (done.exit_code, done.stdout) == (1, "")
    assert done.stderr == (
        f"tsds: --port: expected to listen at 127.0.0.1, port {port}, found: Address already in use. "
        "Choose another port or host.\n"
    )


@pytest.mark.parametrize("name", ["starlette", "uvicorn"])
def test_without_the_extra(name: str) -> None:
    code = f"import sys; sys.modules[{name!r}] = None\nfrom tsds_cli.program import main\nsys.exit(main())"
    for command in ("serve", "view"):
        done = subprocess.run([sys.executable, "-c", code, command, STORE], capture_output=True, text=True)
        assert (done.returncode, done.stdout) == (1, "")
        assert done.stderr == (
            "tsds: to serve a store, starlette and uvicorn are needed: pip install '.[serve]' in a clone of "
            "tensorstore-ds\n"
        )
