"""`Store.zarr` of a store by URL: the arrays of the store on disk, of which only what is read is fetched."""

from __future__ import annotations

import pickle
import subprocess
import sys
import urllib.request
from pathlib import Path

import numpy as np
import pytest
import zarr

import tensorstore_ds as tsds
from remote.fault_proxy import proxy_for
from remote.servers_mirror import FaultyServer, faulty_server
from stores import detections, store_of

pytestmark = pytest.mark.usefixtures("cache")

ROWS, SHAPE = 150, (96, 96, 3)
KINDS = {"raw": {}, "zarr": {"layout": "zarr"}, "jpeg": {"encoding": "jpeg"}, "shards": {"shard_nbytes": 1_300_000}}


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Stores of a few MB, by the names of `KINDS`."""
    root = tmp_path_factory.mktemp("stores")
    for name, options in KINDS.items():
        store_of(root / f"{name}.tsds", detections(ROWS, shape=SHAPE), ["a", "b"], **options)
    return root


def assert_same(remote: tsds.Store, folder: Path) -> None:
    """The members of the group by URL are those that zarr finds in the folder, values included."""
    plain = dict(zarr.open_group(str(folder), mode="r").members(max_depth=None))
    found = dict(remote.zarr().members(max_depth=None))
    assert found.keys() == plain.keys() and len(found) > 8
    for name, node in plain.items():
        assert node.metadata == found[name].metadata
        if isinstance(node, zarr.Array):
            assert found[name][:].tobytes() == node[:].tobytes(), name


@pytest.mark.parametrize("is_small", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_all_arrays(
    server: FaultyServer, stores: Path, kind: str, is_small: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not is_small:
        monkeypatch.setattr("tensorstore_ds.reading.mirror.SMALL_NBYTES", 0)
    remote = tsds.open(f"{server.url}/{kind}.tsds")
    assert_same(remote, stores / f"{kind}.tsds")
    asked = len(server.requests)
    assert_same(remote, stores / f"{kind}.tsds")
    assert len(server.requests) == asked  # nothing is fetched twice


@pytest.mark.usefixtures("in_chunks")
@pytest.mark.parametrize("kind", ["raw", "zarr"])
def test_only_the_chunks_of_some_rows_are_fetched(server: FaultyServer, stores: Path, kind: str) -> None:
    image = tsds.open(f"{server.url}/{kind}.tsds").zarr()["train/00000/image"]
    local = tsds.open(stores / f"{kind}.tsds")["train"].column("image")
    nbytes = (stores / f"{kind}.tsds/train/00000/image/c/0/0/0/0").stat().st_size
    chunk, chunks = image.chunks[0], -(-ROWS // image.chunks[0])
    assert chunks > 4
    for rows in (slice(3, 4), slice(chunk - 1, chunk + 1), slice(ROWS - 1, ROWS)):  # chunks 0, 0 to 1, the last
        before = len(server.of("/image/c/"))
        assert np.array_equal(image[rows], local[rows])
        fetched = sum(each.stop - each.start for each in server.of("/image/c/")[before:])
        assert 0 < fetched < 1.3 * nbytes / chunks  # none is fetched twice, and no other
    kept = tsds.open(f"{server.url}/{kind}.tsds").zarr()["train/00000/image"]
    before = len(server.of("/image/c/"))
    assert np.array_equal(kept[:chunk], local[:chunk]) and len(server.of("/image/c/")) == before


@pytest.mark.usefixtures("in_chunks", "impatient")
def test_wrong_bytes_and_a_server_that_is_gone(stores: Path) -> None:
    with faulty_server(stores) as server:
        store = tsds.open(f"{server.url}/raw.tsds")
        image = store.zarr()["train/00000/image"]
        chunk = image.chunks[0]
        first = image[:chunk]
        server.fault = lambda request: "wrong" if "/image/c/" in request.path else None
        with pytest.raises(tsds.FormatError, match="does not agree with its checksum"):
            image[chunk]
        server.fault = lambda request: 503
        with pytest.raises(tsds.RemoteError, match="503"):
            image[chunk]
        assert np.array_equal(image[:chunk], first)
        server.fault = lambda request: None
        assert np.array_equal(image[chunk], tsds.open(stores / "raw.tsds")["train"].column("image")[chunk])


@pytest.mark.usefixtures("in_chunks")
def test_in_another_process(server: FaultyServer, stores: Path) -> None:
    image = tsds.open(f"{server.url}/shards.tsds").zarr()["train/00001/image"]
    expected = zarr.open_group(str(stores / "shards.tsds"), mode="r")["train/00001/image"][:]
    code = "import pickle, sys; print(pickle.load(sys.stdin.buffer)[:].sum(dtype=int))"
    done = subprocess.run([sys.executable, "-c", code], input=pickle.dumps(image), capture_output=True, check=True)
    assert int(done.stdout) == expected.sum(dtype=int)
    assert image.store == pickle.loads(pickle.dumps(image)).store  # noqa: S301


def test_a_store_that_is_here_whole(server: FaultyServer, stores: Path) -> None:
    tsds.open(f"{server.url}/raw.tsds").fetch()
    again = tsds.open(f"{server.url}/raw.tsds")
    asked = len(server.requests)
    assert_same(again, stores / "raw.tsds")
    assert len(server.requests) == asked
    with pytest.raises(ValueError, match="read-only"):
        again.zarr()["train/00000/image"][0] = 0


@pytest.mark.usefixtures("in_chunks")
def test_with_a_signature(server: FaultyServer, stores: Path) -> None:
    with proxy_for(server.url) as proxy:
        store = tsds.open(f"{proxy.url}/raw.tsds?signature=very-secret")
        assert_same(store, stores / "raw.tsds")
        assert all(path.endswith("?signature=very-secret") for _, path, _ in proxy.requests) and proxy.requests
        assert "secret" not in f"{store.zarr()} {store.zarr().store!r}"


def test_by_nginx(stores: Path, tmp_path: Path) -> None:
    from remote.servers import nginx

    with nginx(stores, tmp_path / "nginx") as url:
        with pytest.raises(OSError):
            urllib.request.urlopen(f"{url}/raw.tsds/train/00000/image/")  # noqa: S310  # it lists no folders
        assert_same(tsds.open(f"{url}/raw.tsds"), stores / "raw.tsds")
