"""Servers that tests talk to: a handler of ours in threads, and nginx."""

from __future__ import annotations

import os
import shutil
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

NGINX = shutil.which("nginx", path="/usr/sbin:/usr/bin:/usr/local/bin")
_CONFIG = """
daemon off; pid {folder}/pid; error_log {folder}/error.log;
events {{}}
http {{
  access_log off; types {{ text/html html; text/css css; text/javascript js; application/json json; }}
  client_body_temp_path {folder}; proxy_temp_path {folder}; fastcgi_temp_path {folder};
  uwsgi_temp_path {folder}; scgi_temp_path {folder};
  server {{ listen 127.0.0.1:{port}; root {root}; {extra} }}
}}
"""


class Handler(BaseHTTPRequestHandler):
    """Keeps its connections, and logs nothing."""

    protocol_version = "HTTP/1.1"

    def log_message(self, *args: object) -> None:
        pass


@contextmanager
def running(handler: Callable[..., Any], context: ssl.SSLContext | None = None) -> Iterator[str]:
    """Let a handler answer requests; yields the URL."""

    class Server(ThreadingHTTPServer):
        request_queue_size = 64

        def handle_error(self, *args: object) -> None:
            pass  # a client that was killed

    with Server(("127.0.0.1", 0), handler) as server:
        if context is not None:
            server.socket = context.wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


@contextmanager
def nginx(root: Path, folder: Path, *, ranges: bool = True) -> Iterator[str]:
    """Serve a folder, with or without ranges; skips the test where nginx is not installed."""
    if NGINX is None:
        pytest.skip("nginx is not installed")
    port = free_port()
    folder.mkdir(parents=True)
    extra = "" if ranges else "max_ranges 0;"
    config = folder / "nginx.conf"
    config.write_text(_CONFIG.format(folder=folder, root=root, port=port, extra=extra))
    main = [NGINX, "-p", str(folder), "-c", str(config), "-e", str(folder / "error.log")]
    if os.geteuid() == 0:  # its workers may read what only we may
        main += ["-g", "user root;"]
    process = subprocess.Popen(main, stderr=subprocess.PIPE)
    try:
        wait_for(port, process)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.communicate(timeout=10)


def wait_for(port: int, process: subprocess.Popen[bytes]) -> None:
    """Until somebody answers there."""
    for _ in range(200):
        if process.poll() is not None:
            assert process.stderr is not None
            pytest.fail(process.stderr.read().decode())
        with socket.socket() as one:
            if one.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.02)
    pytest.fail("the server does not answer")
