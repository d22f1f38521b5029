"""A store by URL that is appended to or updated on its server: who has it open reads on, who opens it sees all."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

import tensorstore_ds as tsds
from remote.servers_mirror import FaultyServer, faulty_server
from tensorstore_ds.reading import mirror

pytestmark = pytest.mark.usefixtures("cache", "in_chunks")

ROWS, SIDE = 24, 160


def photographs(folder: Path, first: int, count: int, seed: int = 0) -> None:
    for i in range(first, first + count):
        Image.fromarray(photograph(i, seed)).save(folder / f"{i:03}.png")


def photograph(i: int, seed: int = 0) -> NDArray[Any]:
    return np.random.default_rng([seed, i]).integers(0, 256, (SIDE, SIDE, 3), np.uint8)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """The folder of photographs that a store is made of: two shards, of several chunks each."""
    folder = tmp_path / "photos"
    folder.mkdir()
    photographs(folder, 0, ROWS)
    (tmp_path / "served").mkdir()
    options = tsds.ConvertOptions(workers=0, encoding="raw", shard_nbytes=ROWS // 2 * SIDE**2 * 3)
    tsds.convert(folder, tmp_path / "served/s.tsds", options)
    return folder


@pytest.fixture(autouse=True)
def impatient_for_the_root(monkeypatch: pytest.MonkeyPatch) -> None:
    """The root is looked at each time."""
    monkeypatch.setattr(mirror, "_ROOT_SECONDS", -1.0)


@pytest.fixture
def served(source: Path) -> Iterator[tuple[Path, FaultyServer, str]]:
    """The store, its server and its URL."""
    folder = source.parent / "served"
    with faulty_server(folder) as server:
        yield folder / "s.tsds", server, f"{server.url}/s.tsds"


Served = tuple[Path, FaultyServer, str]


def images(store: tsds.Store, rows: Any) -> NDArray[Any]:
    return store["train"].column("image").take(rows)


def change(path: Path, source: Path, command: str) -> None:
    if command == "append":
        photographs(source, ROWS, 4)
        tsds.append(path, source, workers=0)
    else:
        photographs(source, 1, 1, seed=5)  # in the first shard
        tsds.update(path, source, workers=0)


@pytest.mark.parametrize("command", ["append", "update"])
def test_who_has_it_open_reads_on(served: Served, source: Path, command: str) -> None:
    path, _, url = served
    store = tsds.open(url)
    assert np.array_equal(images(store, [0]), [photograph(0)])
    change(path, source, command)
    for row in (1, ROWS - 1):  # of a file that is open already, and of one that was never asked for
        assert np.array_equal(images(store, [row]), [photograph(row)])
    assert [store["train"]["key"][i] for i in (0, ROWS - 1)] == ["000.png", f"{ROWS - 1:03}.png"]
    assert len(store["train"]) == ROWS
    for dataset in (tsds.StoreDataset(store), tsds.StoreDataset(tsds.open(url, sha256=store.sha256))):
        assert np.array_equal(dataset.gather([1]).columns["image"][0].permute(1, 2, 0), photograph(1))


@pytest.mark.parametrize("command", ["append", "update"])
def test_who_opens_it_anew_sees_all_and_fetches_only_what_is_new(served: Served, source: Path, command: str) -> None:
    path, server, url = served
    before = tsds.open(url)
    images(before, [0, 1, ROWS - 1])
    change(path, source, command)
    known = len(server.requests)
    store = tsds.open(url)
    assert store.sha256 != before.sha256
    expected = [photograph(0), photograph(1, seed=5 if command == "update" else 0), photograph(ROWS - 1)]
    assert np.array_equal(images(store, [0, 1, ROWS - 1]), expected)
    if command == "append":
        assert np.array_equal(images(store, [ROWS + 3]), [photograph(ROWS + 3)])
    asked = {"/".join(request.path.split("/")[2:3]) for request in server.requests[known:]}
    assert asked == {"", "00002"}  # the root, and the shard that is new
    every = np.concatenate([images(tsds.open(url), [i]) for i in range(ROWS)])
    assert np.array_equal(every, images(tsds.open(path), range(ROWS)))


def test_a_root_that_stays_is_looked_at_by_one_byte(served: Served) -> None:
    _, server, url = served
    store = tsds.open(url)
    images(store, [0])
    found = [(each.start, each.stop) for each in server.requests[1:] if each.path == "s.tsds/zarr.json"]
    assert set(found) == {(0, 1)}


@pytest.mark.parametrize("is_whole", [False, True])
def test_a_field_that_is_added_is_all_that_is_fetched(served: Served, is_whole: bool) -> None:
    path, server, url = served
    before = tsds.open(url)
    images(before, [0, 1])
    if is_whole:
        before.fetch()
    scores = np.random.default_rng(0).random((ROWS, 1000))
    tsds.editing.add_fields(path, {"score": scores})
    known = len(server.requests)
    store = tsds.open(url)
    assert np.array_equal(store["train"].column("score").take(range(ROWS)), scores)
    assert np.array_equal(images(store, [0, 1]), [photograph(0), photograph(1)])
    fetched = [request for request in server.requests[known:] if "/image/c/" in request.path]
    assert fetched == []
    assert np.array_equal(images(before, [1, ROWS - 1]), [photograph(1), photograph(ROWS - 1)])  # reads on
    known = len(server.requests)
    store.fetch()
    nbytes = sum(r.stop - r.start for r in server.requests[known:] if "/image/c/" in r.path)
    assert nbytes == 0 if is_whole else 0 < nbytes < ROWS * SIDE**2 * 3
    assert (store.path / "train/00002/image/c/0/0/0/0").stat().st_nlink == 2
    assert tsds.verify(store.path) == []
    assert np.array_equal(images(tsds.open(url), range(ROWS)), [photograph(i) for i in range(ROWS)])


def test_a_whole_store_that_grew_is_linked_and_outlives_the_one_before(served: Served, source: Path) -> None:
    path, server, url = served
    before = tsds.open(url)
    before.fetch()
    old = before.sha256
    del before
    change(path, source, "append")
    known = len(server.requests)
    store = tsds.open(url)
    store.fetch()
    asked = {request.path.split("/")[2] for request in server.requests[known:] if request.path.count("/") > 2}
    assert asked == {"00002"}
    assert (store.path / "train/00000/image/c/0/0/0/0").stat().st_nlink == 2
    gc.collect()
    tsds.reading.clear_cache(old)
    assert [kept.sha256 for kept in tsds.reading.cached_stores()] == [store.sha256]
    assert tsds.verify(store.path) == []
    assert np.array_equal(images(tsds.open(url), range(ROWS + 4)), [photograph(i) for i in range(ROWS + 4)])


def test_what_was_lost_in_the_older_store_is_fetched(served: Served, source: Path) -> None:
    """Damage of the older store's files does not become zeros in the one that takes them over."""
    path, _, url = served
    before = tsds.open(url)
    images(before, range(ROWS))
    data = before.path / "train/00000/image/c/0/0/0/0"
    with data.open("r+b") as file:
        file.truncate(1000)
    change(path, source, "append")
    assert np.array_equal(images(tsds.open(url), range(ROWS)), [photograph(i) for i in range(ROWS)])


def test_a_shard_that_is_gone_ends_with_what_to_do(served: Served, source: Path) -> None:
    path, _, url = served
    store = tsds.open(url)
    images(store, [ROWS - 1])
    change(path, source, "update")
    photographs(source, 2, 1, seed=6)
    tsds.update(path, source, workers=0)  # removes the shard that was replaced before
    message = rf"^{url}: the store has changed since it was opened, and train/00000 is gone\. Open it again\.$"
    with pytest.raises(tsds.RemoteError, match=message) as caught:
        images(store, [0])
    assert caught.value.reason == "replaced"
    assert np.array_equal(images(store, [ROWS - 2]), [photograph(ROWS - 2)])  # of a shard that is there
    expected = [photograph(0), photograph(1, seed=5), photograph(2, seed=6)]
    assert np.array_equal(images(tsds.open(url), [0, 1, 2]), expected)
