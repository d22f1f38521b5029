"""Pulling a store: how fast, compared with obstore alone, and how many bytes if it is killed many times on the way."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import tensorstore_ds as tsds
from benchmarks.measure import ROOT, Figure, Settings, alternate, as_result, ratio_of_medians, seconds_of, spread
from benchmarks.range_server import Served, served

SHARE, AGAIN, KILLS = 0.8, 1.1, 50
_ROWS, _SHAPE, _WORKERS = 3000, (224, 224, 3), 8
_NGINX = shutil.which("nginx", path="/usr/sbin:/usr/bin")
_CONFIG = """daemon off; pid {0}/pid; error_log {0}/error.log; events {{}}
http {{ access_log off; client_body_temp_path {0}; proxy_temp_path {0}; fastcgi_temp_path {0}; uwsgi_temp_path {0};
scgi_temp_path {0}; server {{ listen 127.0.0.1:{1}; root {2}; }} }}
"""


def measure(settings: Settings) -> dict[str, Any]:
    """A store of some 450 MB, from a server on this machine."""
    root = settings.scratch / "store"
    root.mkdir()
    _write(root / "s.tsds")
    nbytes = tsds.open(root / "s.tsds").nbytes
    with _web(root, settings.scratch / "server") as (url, server):
        pulls = partial(_pull, url, settings.scratch / "pulled.tsds")
        alone = partial(_obstore, url, root / "s.tsds", settings.scratch / "alone")
        pulled, fetched = alternate([pulls, alone], settings.repeat)
    share = ratio_of_medians(fetched, pulled)
    note = f"{nbytes / 1e6:.0f} MB from {server}: {spread(pulled)} s, obstore alone {spread(fetched)} s"
    figures = [Figure("pull: speed relative to obstore alone", share, SHARE, at_least=True, note=note)]
    with served(root) as account:
        sent, kills = _killed(account, settings.scratch / "killed.tsds", nbytes)
    note = f"{kills} kills at random moments, {sent / 1e6:.0f} of {nbytes / 1e6:.0f} MB"
    figures.append(
        Figure(f"a pull killed {KILLS} times: bytes fetched, relative to the size", sent / nbytes, AGAIN, note=note)
    )
    return as_result(figures)


def _write(path: Path) -> None:
    rng = np.random.default_rng(0)
    with tsds.Writer(path, shard_nbytes=150 * 10**6) as writer:
        for _ in range(_ROWS):
            writer.append("train", image=rng.integers(0, 256, _SHAPE, np.uint8))


@contextmanager
def _web(root: Path, folder: Path) -> Iterator[tuple[str, str]]:
    """A server of the folder, and what it is: nginx where it is installed."""
    folder.mkdir()
    if _NGINX is None:
        with served(root) as account:
            yield account.url, "a server in Python"
        return
    port = 8731
    (folder / "conf").write_text(_CONFIG.format(folder, port, root))
    process = subprocess.Popen([_NGINX, "-p", str(folder), "-c", str(folder / "conf"), "-g", "user root;"])
    try:
        time.sleep(1)
        yield f"http://127.0.0.1:{port}", "nginx"
    finally:
        process.terminate()
        process.wait()


def _pull(url: str, out: Path) -> float:
    return seconds_of(lambda: tsds.pull(f"{url}/s.tsds", out, workers=_WORKERS), makes=out)


def _obstore(url: str, store: Path, out: Path) -> float:
    """The same files by as many threads, neither compared with anything nor synced."""
    import obstore
    from obstore.store import HTTPStore

    names = [path.relative_to(store).as_posix() for path in store.rglob("*") if path.is_file()]
    place = HTTPStore.from_url(f"{url}/s.tsds", client_options={"allow_http": True})

    def fetch(name: str) -> None:
        (out / name).parent.mkdir(parents=True, exist_ok=True)
        with open(out / name, "wb") as file:
            for piece in obstore.get(place, name).stream(min_chunk_size=2**20):
                file.write(piece)

    def run() -> None:
        with ThreadPoolExecutor(_WORKERS) as pool:
            list(pool.map(fetch, names))

    return seconds_of(run, makes=out)


def _killed(account: Served, out: Path, nbytes: int) -> tuple[int, int]:
    """Bytes that were sent until a pull that was killed `KILLS` times had all, and how often it was killed."""
    words = [sys.executable, "-m", "tsds_cli", "pull", f"{account.url}/s.tsds", str(out)]
    draw, kills = np.random.default_rng(0), 0
    account.seconds = 0.02  # 8 connections: about 25 MB/s, so that no run comes to its end
    while kills < KILLS and not out.exists():
        before = account.sent
        process = subprocess.Popen(words, cwd=ROOT, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
        while process.poll() is None and account.sent == before:
            time.sleep(0.005)
        time.sleep(draw.uniform(0, 0.6))
        process.send_signal(signal.SIGKILL)
        kills += process.wait() < 0
    account.seconds = 0.0
    subprocess.run(words, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    assert tsds.open(out).nbytes == nbytes
    return account.sent, kills
