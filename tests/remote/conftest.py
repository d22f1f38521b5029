"""Servers and a store that the tests share."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import tensorstore_ds as tsds
from remote.fault_proxy import Proxy, proxy_for
from remote.servers_mirror import FaultyServer, faulty_server
from stores import store_of

pytest.importorskip("obstore")

SAMPLES, SIDE = 30, 160


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
    """The URL of an S3 server."""
    from moto.server import ThreadedMotoServer

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer("127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


@pytest.fixture
def bucket(moto: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> str:
    """The URL of an empty bucket, and credentials for it in the environment."""
    import urllib.request

    set_credentials(monkeypatch, moto)
    name = f"bucket-{abs(hash(str(tmp_path))):x}"  # the word must not be taken for that of an error
    with urllib.request.urlopen(urllib.request.Request(f"{moto}/{name}", method="PUT")):  # noqa: S310
        return f"s3://{name}"


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
