"""Servers and a store that the tests share."""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from threading import Thread

import certifi
import numpy as np
import pytest
from PIL import Image

import tensorstore_ds as tsds
from remote.fault_proxy import Proxy, proxy_for
from remote.servers_mirror import FaultyServer, faulty_server
from stores import store_of

pytest.importorskip("obstore")

SAMPLES, SIDE = 30, 160
ROWS = 40  # of `grown`
SECRET = 201  # the value of all pixels of one of its rows


@pytest.fixture(scope="package", autouse=True)
def quick(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Leave out what no test here is for: syncing, which tests/faults tests, and certificates of hosts elsewhere."""
    certificate, end, _ = certifi.contents().partition("-----END CERTIFICATE-----\n")
    file = tmp_path_factory.mktemp("tls") / "one.pem"
    file.write_text(certificate + end)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", os.fstat)  # a fifth of the time; the descriptor must be open
        patch.setenv("SSL_CERT_FILE", str(file))  # parsing the system's takes 15 ms for each URL
        patch.delenv("SSL_CERT_DIR", raising=False)
        yield


@pytest.fixture(scope="session")
def store(tmp_path_factory: pytest.TempPathFactory) -> tsds.Store:
    """A store of some MB in two shards, with images and objects."""
    rng = np.random.default_rng(0)
    samples = [
        {"image": rng.integers(0, 256, (SIDE, SIDE, 3), np.uint8), "boxes": [[1.0, 2.0, 30.0, 40.0]], "labels": [i % 2]}
        for i in range(SAMPLES)
    ]
    return store_of(tmp_path_factory.mktemp("store") / "s.tsds", samples, ["a", "b"], shard_nbytes=SIDE**2 * 3 * 16)


@pytest.fixture(scope="session")
def other(tmp_path_factory: pytest.TempPathFactory) -> tsds.Store:
    """Another store with files of the same names."""
    samples = [{"image": np.full((9, 9, 3), i, np.uint8), "boxes": [], "labels": []} for i in range(3)]
    return store_of(tmp_path_factory.mktemp("store") / "o.tsds", samples, ["a", "b"])


@pytest.fixture(scope="session")
def moto() -> Iterator[str]:
    """The URL of a server of S3 alone: to choose among all services takes half the time of a request."""
    from moto.moto_server.werkzeug_app import create_backend_app
    from werkzeug.serving import make_server

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = make_server("127.0.0.1", 0, create_backend_app("s3"), threaded=True)
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()


@pytest.fixture
def bucket(moto: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> str:
    """The URL of an empty bucket, and credentials for it in the environment."""
    import urllib.request

    set_credentials(monkeypatch, moto)
    name = f"bucket-{abs(hash(str(tmp_path))):x}"  # the word must not be taken for that of an error
    with urllib.request.urlopen(urllib.request.Request(f"{moto}/{name}", method="PUT")):  # noqa: S310
        return f"s3://{name}"


def write_images(folder: Path, first: int, count: int) -> None:
    for i in range(first, first + count):
        pixels = np.random.default_rng(i).integers(0, 200, (24, 24, 3), np.uint8)
        (folder / "ab"[i % 2]).mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.full_like(pixels, SECRET) if i == 7 else pixels).save(folder / "ab"[i % 2] / f"{i:03}.png")


@pytest.fixture(scope="session")
def converted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with images, and a store of them with several shards."""
    folder = tmp_path_factory.mktemp("converted")
    write_images(folder / "images", 0, ROWS)
    options = tsds.ConvertOptions(encoding="raw", layout="zarr", shard_nbytes=12 * 24**2 * 3, workers=0)
    tsds.convert(folder / "images", folder / "s.tsds", options)
    assert len(tsds.open(folder / "s.tsds").manifest.splits["train"].shards) > 2
    return folder


@pytest.fixture
def grown(converted: Path, tmp_path: Path, bucket: str) -> tuple[Path, str]:
    """The path of a copy of that store which is pushed, beside its images, and its URL."""
    shutil.copytree(converted, tmp_path, dirs_exist_ok=True)
    tsds.push(tmp_path / "s.tsds", f"{bucket}/s.tsds")
    return tmp_path / "s.tsds", f"{bucket}/s.tsds"


def set_credentials(monkeypatch: pytest.MonkeyPatch, endpoint: str) -> None:
    """Let S3 be a server of ours."""
    values = {
        "AWS_ACCESS_KEY_ID": "key-id-of-the-test",
        "AWS_SECRET_ACCESS_KEY": "very-secret",
        "AWS_ENDPOINT": endpoint,
        "AWS_ALLOW_HTTP": "true",
        "AWS_REGION": "us-east-1",
    }
    for name, value in values.items():
        monkeypatch.setenv(name, value)


@pytest.fixture
def proxy(moto: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Proxy]:
    """A proxy in front of the S3 server."""
    with proxy_for(moto) as made:
        yield made


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where stores by URL are kept, without a limit."""
    monkeypatch.setenv("TSDS_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.delenv("TSDS_CACHE_LIMIT", raising=False)
    return tmp_path / "cache"


@pytest.fixture
def in_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """All data files are fetched in chunks, as large ones are."""
    monkeypatch.setattr("tensorstore_ds.reading.mirror.SMALL_NBYTES", 0)


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Little time for servers."""
    from datetime import timedelta

    wait = {"connect_timeout": "1s", "read_timeout": "1s", "timeout": "20s"}
    monkeypatch.setattr("tensorstore_ds.remote.location.WAIT", wait)
    retry = {"max_retries": 1, "retry_timeout": timedelta(seconds=2)}
    monkeypatch.setattr("tensorstore_ds.remote.location.RETRY", retry)
    monkeypatch.setattr("tensorstore_ds.remote.location.FIRST", retry)
    monkeypatch.setattr("tensorstore_ds.sharing.receiving.PAUSE", 0.05)
    monkeypatch.setattr("tensorstore_ds.sharing.receiving.ATTEMPTS", 3)


@pytest.fixture(scope="session")
def stores(store: tsds.Store) -> Path:
    """The folder of `store`. Some test files have one of their own."""
    return store.path.parent


@pytest.fixture
def server(stores: Path) -> Iterator[FaultyServer]:
    """Serves the folder `stores` of a test file."""
    with faulty_server(stores) as server:
        yield server
