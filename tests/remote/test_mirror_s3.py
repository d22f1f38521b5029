"""A store in a bucket: a real S3 server, with credentials that no message tells."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import tensorstore_ds as tsds
from stores import detections, store_of


@pytest.fixture
def bucket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A store on disk, which is also `s3://data/a/raw.tsds`."""
    boto3 = pytest.importorskip("boto3")
    server_module = pytest.importorskip("moto.server")
    server = server_module.ThreadedMotoServer(port=0)
    server.start()
    host, port = server.get_host_and_port()
    url = f"http://{host}:{port}"
    settings = {"ACCESS_KEY_ID": "me", "SECRET_ACCESS_KEY": "hidden-key", "ENDPOINT": url, "REGION": "us-east-1"}
    for name, value in {**settings, "ALLOW_HTTP": "true"}.items():
        monkeypatch.setenv(f"AWS_{name}", value)
    monkeypatch.setenv("TSDS_CACHE_DIR", str(tmp_path / "cache"))
    store = tmp_path / "raw.tsds"
    store_of(store, detections(60, shape=(64, 64, 3)), ["a", "b"])
    client = boto3.client("s3", endpoint_url=url, region_name="us-east-1")
    client.create_bucket(Bucket="data")
    for path in store.rglob("*"):
        if path.is_file():
            client.upload_file(str(path), "data", f"a/raw.tsds/{path.relative_to(store).as_posix()}")
    yield store
    server.stop()


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("small", [0, 4 * 1024**2])
def test_a_store_in_a_bucket(bucket: Path, small: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tensorstore_ds.reading.mirror.SMALL_NBYTES", small)
    remote, local = tsds.open("s3://data/a/raw.tsds")["train"], tsds.open(bucket)["train"]
    rows = np.random.default_rng(0).permutation(60)
    assert np.array_equal(remote.column("image").take(rows), local.column("image").take(rows))
    assert [remote["key"][row] for row in (5, 0)] == [local["key"][row] for row in (5, 0)]
    assert tsds.verify("s3://data/a/raw.tsds") == []
    with pytest.raises(tsds.FormatError, match="s3://data/none: this is not a store") as caught:
        tsds.open("s3://data/none")
    assert "hidden" not in str(caught.value)
