"""A store by URL has the bytes of the store on disk: however it is read, by whomever, and whatever fails meanwhile."""

from __future__ import annotations

import errno
import gc
import json
import os
import pickle
import shutil
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

import tensorstore_ds as tsds
from remote.servers_mirror import FaultyServer, Request, faulty_server
from small_stores import VALID, tsds as command
from stores import contents, detections, no_room, store_of
from tensorstore_ds.format.kinds.base import TableField
from tensorstore_ds.reading import mirror, mirror_file
from tensorstore_ds.reading.store import Split
from waiting import wait_for

pytestmark = pytest.mark.usefixtures("cache", "in_chunks")

ROWS = 260
KINDS = {
    "raw": {},
    "jpeg": {"encoding": "jpeg"},
    "zarr": {"layout": "zarr"},
    "zarr-jpeg": {"layout": "zarr", "encoding": "jpeg"},
    "shards": {"shard_nbytes": 400_000},
}


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Stores of a few MB, by the names of `KINDS`."""
    root = tmp_path_factory.mktemp("stores")
    samples = detections(ROWS, shape=(64, 64, 3))
    for name, options in KINDS.items():
        store_of(root / f"{name}.tsds", samples, ["a", "b"], **options)
    return root


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def taken(split: Split, rows: Any) -> dict[str, Any]:
    """All fields of some rows, as plain bytes."""
    found = {}
    for name, field in split.fields.items():
        if isinstance(field, TableField):
            ragged = split.table(name).take(rows)
            found[name] = [ragged.offsets.tolist(), *(values.tobytes() for values in ragged.values.values())]
        else:
            found[name] = [split.column(name).take(rows).tobytes()]
    return found


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rows=st.lists(st.integers(0, ROWS - 1), min_size=1, max_size=40), fresh=st.booleans())
def test_rows_are_those_of_the_store(
    server: FaultyServer, stores: Path, cache: Path, kind: str, rows: list[int], fresh: bool
) -> None:
    folder = cache / str(len(server.requests)) if fresh else cache
    local = tsds.open(stores / f"{kind}.tsds")["train"]
    remote = tsds.open(f"{server.url}/{kind}.tsds", cache_dir=folder)["train"]
    assert taken(remote, rows) == taken(local, rows)
    start, stop = min(rows), max(rows) + 1
    for name in local.fields:
        one, other = remote[name][rows[0]], local[name][rows[0]]
        assert one.keys() == other.keys() if isinstance(one, dict) else np.array_equal(one, other)
    if "jpeg" not in kind:
        assert np.array_equal(remote["image"][start:stop], local["image"][start:stop])


@pytest.mark.parametrize("num_workers", [1, 2])
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_worker_processes_of_torch(server: FaultyServer, stores: Path, num_workers: int) -> None:
    found = []
    for place in (f"{stores}/raw.tsds", f"{server.url}/raw.tsds"):
        dataset = tsds.StoreDataset(place)
        loader = tsds.DataLoader(dataset, batch_size=32, shuffle=True, seed=1, num_workers=num_workers)
        found.append([batch["image"].numpy().tobytes() for batch in loader])
    assert found[0] == found[1]


def test_rows_that_count_from_the_end(server: FaultyServer, stores: Path) -> None:
    found = []
    for place, residency in ((stores, "page-cache"), (stores, "device"), (server.url, "page-cache")):
        options: Any = {"sampler": [-1, 3], "collate": "padded", "device": "cpu", "residency": residency}
        dataset = tsds.StoreDataset(f"{place}/shards.tsds", fields=["image", "objects"])
        (batch,) = tsds.DataLoader(dataset, 2, **options)
        found.append([batch["image"].tolist(), batch["objects"]["labels"].tolist()])
        with pytest.raises(IndexError, match=rf"^shards\.tsds, train: row {ROWS} is outside of \[0, {ROWS}\)"):
            list(tsds.DataLoader(dataset, 2, **options | {"sampler": [ROWS]}))
    assert found[0] == found[1] == found[2]


def test_a_forked_process_reads_on(server: FaultyServer, stores: Path) -> None:
    store = tsds.open(f"{server.url}/raw.tsds")
    store["train"]["image"].take([0])  # the library that talks to servers has threads now, which a child has not
    expected = tsds.open(stores / "raw.tsds")["train"].column("image").take(range(ROWS)).tobytes()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            signal.alarm(60)
            status = 0 if store["train"].column("image").take(range(ROWS)).tobytes() == expected else 2
        finally:
            os._exit(status)
    assert os.waitpid(child, 0)[1] == 0
    assert store["train"].column("image").take(range(ROWS)).tobytes() == expected


def test_a_forked_process_reads_on_after_the_one_that_reads_for_it_was_killed(server: FaultyServer) -> None:
    store = tsds.open(f"{server.url}/shards.tsds")
    expected = store["train"].column("image").take([0]).tobytes()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            signal.alarm(60)
            again = tsds.open(f"{server.url}/raw.tsds")
            found = again["train"].column("image").take([0]).tobytes()
            os.kill(again._files.server._location._child.pid, signal.SIGKILL)  # type: ignore[union-attr]
            again["train"].column("image").take([ROWS - 1])
            reader = again._files.server._location._child  # type: ignore[union-attr]
            del again
            gc.collect()
            ended = wait_for(lambda: reader.poll() is not None)  # with the store
            status = 0 if found == expected and ended else 2
        finally:
            os._exit(status)
    assert os.waitpid(child, 0)[1] == 0


def test_it_pickles_and_opens_without_a_request(server: FaultyServer) -> None:
    store = tsds.open(f"{server.url}/raw.tsds")
    dataset = tsds.StoreDataset(store)
    store["train"]["image"][5]
    before = len(server.requests)
    copies = pickle.loads(pickle.dumps((store, store["train"], dataset)))  # noqa: S301  # our own
    assert np.array_equal(copies[0]["train"]["image"][5], copies[1]["image"][5])
    assert copies[2].split.fields.keys() == store["train"].fields.keys()
    assert len(server.requests) == before


def test_threads_share_what_one_of_them_asked_for(server: FaultyServer) -> None:
    server.latency = 0.05
    column = tsds.open(f"{server.url}/raw.tsds")["train"].column("image")
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda _: column.take([1]), range(8)))
    spans = [(r.start, r.stop) for r in server.of("image/c")]
    assert len(spans) == len(set(spans)) == 2  # its end, and the chunk


def test_how_many_requests_it_takes(server: FaultyServer) -> None:
    store = tsds.open(f"{server.url}/raw.tsds")
    assert [r.path for r in server.requests] == ["raw.tsds/zarr.json"]
    store["train"]["image"][0]
    assert [r.path.rpartition("/")[2] for r in server.requests[1:]] == ["zarr.json", "0", "0"]
    before = len(server.requests)
    store["train"]["image"][ROWS - 1]
    assert len(server.requests) == before + 1


@pytest.mark.parametrize("first", [0, ROWS // 2])
def test_neighboring_chunks_come_with_one_request(server: FaultyServer, stores: Path, first: int) -> None:
    column = tsds.open(f"{server.url}/raw.tsds")["train"].column("image")
    rows = range(first, ROWS)
    assert np.array_equal(column.take(rows), tsds.open(stores / "raw.tsds")["train"].column("image").take(rows))
    assert len(server.of("image/c")) == 2  # its end, and the chunks


@pytest.mark.parametrize("between", [1, 2])
def test_chunks_at_most_1_mib_apart_come_with_one_request(server: FaultyServer, between: int) -> None:
    column = tsds.open(f"{server.url}/raw.tsds")["train"].column("image")
    part: Any = column.part(0)
    edges, rows = part._file._edges, part._file._geometry.chunk_rows
    assert edges[2] - edges[1] <= 1024**2 < edges[3] - edges[1]
    before = len(server.of("image/c"))
    column.take([0, (between + 1) * rows])
    found = sorted((each.start, each.stop) for each in server.of("image/c")[before:])
    assert found == ([(0, edges[3])] if between == 1 else [(0, edges[1]), (edges[3], edges[4])])


def test_what_is_whole_is_a_plain_map(server: FaultyServer) -> None:
    column = tsds.open(f"{server.url}/raw.tsds")["train"].column("image")
    column.take(np.arange(ROWS))
    assert wait_for(lambda: isinstance(column.part(0), np.ndarray))


def test_it_becomes_the_store(server: FaultyServer, stores: Path, kind: str) -> None:
    store = tsds.open(f"{server.url}/{kind}.tsds")
    store["train"]["image"][0]
    assert not (store.path / "zarr.json").exists()  # nobody may take it for a store: it has holes
    largest = "train/00000/image/" + ("bytes/c/0" if "jpeg" in kind else "c/0/0/0/0")
    with store.open_file(largest) as file:
        assert file.read() == (stores / f"{kind}.tsds" / largest).read_bytes()
    with pytest.raises(tsds.FormatError, match="not a store"):
        tsds.open(store.path)
    assert tsds.verify(f"{server.url}/{kind}.tsds") == []
    assert contents(store.path) == contents(stores / f"{kind}.tsds")
    before = len(server.requests)
    again = tsds.open(f"{server.url}/{kind}.tsds", sha256=store.sha256)
    assert taken(again["train"], [3, 1]) == taken(tsds.open(store.path)["train"], [3, 1])
    assert len(server.requests) == before
    assert again.place == f"{server.url}/{kind}.tsds"


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="lists its open files elsewhere")
def test_its_files_take_no_descriptors(server: FaultyServer, cache: Path) -> None:
    """A store may have more of them than a process may have open."""
    store = tsds.open(f"{server.url}/shards.tsds")
    store["train"].column("image").take([0, ROWS - 1])
    opened = [os.path.realpath(each) for each in Path("/proc/self/fd").iterdir()]
    assert [path for path in opened if path.startswith(str(cache)) and not path.endswith("/lock")] == []


def test_progress_of_a_fetch(server: FaultyServer) -> None:
    store, seen = tsds.open(f"{server.url}/shards.tsds"), list[tuple[int, int]]()
    store.fetch(lambda *each: seen.append(each))
    nbytes = [shard.nbytes for shard in store.manifest.splits["train"].shards]
    assert len(nbytes) > 1
    assert seen == [(sum(nbytes[: i + 1]), store.nbytes) for i in range(len(nbytes))]


def test_two_that_fetch_all_of_the_same_store(server: FaultyServer) -> None:
    """The first of the two notes that a file is complete."""
    one, other = (tsds.open(f"{server.url}/raw.tsds") for _ in range(2))
    for store in (one, other):
        store["train"]["image"][0]
    one.fetch()
    other.fetch()
    assert tsds.verify(one.path) == []


def test_the_end_of_a_file_is_looked_at_once(server: FaultyServer, monkeypatch: pytest.MonkeyPatch) -> None:
    queued: list[object] = []

    class Pool:
        def submit(self, *call: object) -> None:
            queued.append(call)

    monkeypatch.setattr(mirror_file, "_pools", {"endings": Pool()})
    column = tsds.open(f"{server.url}/raw.tsds")["train"].column("image")
    column.take(range(ROWS))
    part: Any = column.part(0)
    part._file._end_later()  # as by another thread that fetched the last chunk at the same time
    assert len(queued) == 1


def test_it_becomes_the_store_by_being_read(server: FaultyServer) -> None:
    store = tsds.open(f"{server.url}/shards.tsds")
    taken(store["train"], np.arange(ROWS))
    assert wait_for((store.path / "zarr.json").exists)
    assert tsds.verify(store.path) == []


# --- what fails ---------------------------------------------------------------------------------------------------


#: Of a URL with a signature, whose requests this library makes itself.
signed = pytest.mark.parametrize("query", ["", "?X-Amz-Signature=very-secret"], ids=["plain", "signed"])


@signed
@pytest.mark.parametrize("fault", [503, "cut", "wrong"])
def test_a_fault_that_passes_is_not_noticed(server: FaultyServer, stores: Path, fault: int | str, query: str) -> None:
    store = tsds.open(f"{server.url}/raw.tsds{query}")
    store["train"]["image"][0]
    faults = iter([fault, fault] if fault == 503 else [fault])
    server.fault = lambda request: next(faults, None)
    rows = np.arange(ROWS)
    found = store["train"].column("image").take(rows)
    assert np.array_equal(found, tsds.open(stores / "raw.tsds")["train"].column("image").take(rows))


def test_a_server_that_restarts_is_waited_for(server: FaultyServer, stores: Path) -> None:
    store, begun = tsds.open(f"{server.url}/raw.tsds"), time.monotonic()
    server.fault = lambda request: 503 if time.monotonic() < begun + 8 else None
    assert np.array_equal(store["train"]["image"][0], tsds.open(stores / "raw.tsds")["train"]["image"][0])


@signed
def test_an_answer_without_end_is_not_read(server: FaultyServer, query: str) -> None:
    """It would take all memory."""
    store = tsds.open(f"{server.url}/raw.tsds{query}")
    store["train"]["image"][0]
    server.fault = lambda request: "more"
    with pytest.raises(tsds.RemoteError, match=r"expected bytes \d+ to \d+, the server sent"):
        store["train"]["image"][ROWS - 1]


@signed
def test_a_server_whose_entity_tags_are_weak(server: FaultyServer, stores: Path, query: str) -> None:
    server.weak = True
    store = tsds.open(f"{server.url}/raw.tsds{query}")
    assert taken(store["train"], [0, ROWS - 1]) == taken(tsds.open(stores / "raw.tsds")["train"], [0, ROWS - 1])


def test_wrong_bytes_that_stay_wrong(server: FaultyServer) -> None:
    store = tsds.open(f"{server.url}/raw.tsds")
    column = store["train"].column("image")
    good = column[0].tobytes()
    server.fault = lambda request: "wrong"
    with pytest.raises(tsds.FormatError, match=r"train/00000/image/c/0/0/0/0: chunk \d+ .* fetched twice") as caught:
        column.take([ROWS - 1])
    assert caught.value.reason == "checksum"
    assert column[0].tobytes() == good
    server.fault = lambda request: None
    column.take([ROWS - 1])  # nothing of it was kept


@pytest.mark.parametrize("name", ["zarr.json", "00000/zarr.json", "image/c/0/0/0/0"])
def test_wrong_metadata(server: FaultyServer, name: str) -> None:
    server.fault = lambda request: "wrong" if request.path.endswith(name) else None
    with pytest.raises(tsds.FormatError):
        tsds.open(f"{server.url}/raw.tsds")["train"]["image"][0]


@signed
def test_another_store_in_its_place(stores: Path, tmp_path: Path, query: str) -> None:
    shutil.copytree(stores / "raw.tsds", tmp_path / "a.tsds")
    with faulty_server(tmp_path) as server:
        store = tsds.open(f"{server.url}/a.tsds{query}")
        store["train"]["image"][0]
        shutil.rmtree(tmp_path / "a.tsds")
        store_of(tmp_path / "a.tsds", detections(ROWS, seed=5, shape=(64, 64, 3)), ["a", "b"])
        with pytest.raises(tsds.RemoteError, match=r"replaced by another\. Open the store again") as caught:
            store["train"]["image"][ROWS - 1]
        assert caught.value.reason == "replaced"
        again = tsds.open(f"{server.url}/a.tsds{query}")
        assert again.sha256 != store.sha256
        assert np.array_equal(again["train"]["image"][7], tsds.open(tmp_path / "a.tsds")["train"]["image"][7])


def test_the_same_bytes_copied_there_again(stores: Path, tmp_path: Path) -> None:
    shutil.copytree(stores / "raw.tsds", tmp_path / "a.tsds")
    with faulty_server(tmp_path) as server:
        tsds.open(f"{server.url}/a.tsds")["train"]["image"][0]
        for path in (tmp_path / "a.tsds").rglob("*"):
            os.utime(path)  # and with it the entity tag
        again = tsds.open(f"{server.url}/a.tsds")["train"]
        assert np.array_equal(again["image"][ROWS - 1], tsds.open(stores / "raw.tsds")["train"]["image"][ROWS - 1])


def test_without_network(stores: Path, impatient: None) -> None:
    with faulty_server(stores) as server:
        url = f"{server.url}/raw.tsds"
        expected = tsds.open(url)["train"]["image"][0]
    with pytest.warns(UserWarning, match="The store that was there last is used"):
        store = tsds.open(url)
    assert np.array_equal(store["train"]["image"][0], expected)
    with pytest.raises(tsds.RemoteError, match=r"raw\.tsds/train/00000/image/c/0/0/0/0: the server cannot be reached"):
        store["train"]["image"][ROWS - 1]
    with pytest.raises(tsds.RemoteError, match="cannot be reached"):
        tsds.open(f"{url}x")


def test_a_full_disk(server: FaultyServer, monkeypatch: pytest.MonkeyPatch) -> None:
    store = tsds.open(f"{server.url}/raw.tsds")
    store["train"]["image"][0]

    monkeypatch.setattr("tensorstore_ds.reading.mirror_file.write_at", no_room)
    with pytest.raises(tsds.errors.OutputError, match=r"No space left on device.*tsds cache clear"):
        store["train"]["image"][ROWS - 1]
    monkeypatch.undo()
    store["train"]["image"][ROWS - 1]


@pytest.mark.parametrize("broken", ["mirror_cache._urls", "mirror_cache._nbytes_on_disk"])
@pytest.mark.parametrize("code", [errno.EIO, errno.EACCES])
def test_a_cache_disk_that_fails_is_one_typed_error(
    server: FaultyServer, cache: Path, monkeypatch: pytest.MonkeyPatch, broken: str, code: int
) -> None:
    """Whatever it is that the system refuses: what is kept is looked at in many places."""
    url = f"{server.url}/raw.tsds"
    tsds.open(url).fetch()

    def fail(*_: object) -> None:
        raise OSError(code, os.strerror(code), str(cache / "there"))

    monkeypatch.setattr(f"tensorstore_ds.reading.{broken}", fail)
    with pytest.raises(
        tsds.errors.OutputError, match=rf"{cache}/there: .*{os.strerror(code)}\. .*another folder: `cache_dir`"
    ):
        tsds.open(url, cache_limit=1)
    done = command("info", url)
    assert (done.exit_code, done.stderr.count("\n")) == (0 if "nbytes" in broken else 1, int("nbytes" not in broken))
    monkeypatch.undo()
    monkeypatch.setenv("TSDS_CACHE_DIR", str(cache))
    assert len(tsds.open(url)["train"]) == ROWS


def test_a_chunk_that_is_there_is_compared_once_by_each_opening(
    server: FaultyServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    tsds.open(f"{server.url}/raw.tsds")["train"].column("image").take([0])
    compared: list[int] = []
    compare = mirror_file.MirroredFile._is_sound
    monkeypatch.setattr(
        mirror_file.MirroredFile, "_is_sound", lambda self, *each: (compared.append(each[0]), compare(self, *each))[1]
    )
    before = len(server.of("image/c"))
    for _ in range(2):
        column = tsds.open(f"{server.url}/raw.tsds")["train"].column("image")
        for _ in range(3):
            column.take([0, 1])
    assert compared == [0, 0]
    assert len(server.of("image/c")) == before


def test_a_large_file_of_an_unreadable_field_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its chunks are not known, and so it would be held in memory."""
    with faulty_server(VALID) as server:
        store = tsds.open(f"{server.url}/unreadable-fields.tsds")
        store["train"][0]  # the list of the shard's files is here
        monkeypatch.setattr(mirror, "MANIFEST_MAX_NBYTES", 1)
        with pytest.raises(tsds.FormatError, match="of at most 1 bytes") as caught:
            store.fetch()
        assert caught.value.reason == "unreadable-field"
        assert caught.value.problems[0].where.split("/")[2] in store.manifest.unreadable
        monkeypatch.undo()
        store.fetch()
        assert tsds.verify(store.path) == tsds.verify(VALID / "unreadable-fields.tsds")


# --- the folder ---------------------------------------------------------------------------------------------------


def test_the_command_shows_and_clears(server: FaultyServer, cache: Path) -> None:
    url = f"{server.url}/raw.tsds"
    store = tsds.open(url.replace("http://", "http://me:secret@"))
    store["train"]["image"][0]
    shown = command("cache").output
    assert url in shown
    assert "open now" in shown
    assert "secret" not in shown + "".join(path.read_text("utf-8") for path in cache.rglob("*.json"))
    (kept,) = tsds.reading.cached_stores()
    assert (kept.sha256, kept.is_whole, kept.is_open) == (store.sha256, False, True)
    assert 0 < kept.nbytes_there < kept.nbytes == store.nbytes + (kept.path.parent / "zarr.json").stat().st_size
    assert "open, and left" in command("cache", "clear", "--all").output
    for words in (("--json", "clear"), ("clear", "--json")):
        assert len(json.loads(command("cache", *words, "--all").output)["left"]) == 1
    del store
    gc.collect()
    assert "removed" in command("cache", "clear", url).output
    assert tsds.reading.cached_stores() == []
    assert command("cache", "clear", url).exit_code == 1


def test_a_store_is_found_by_each_url_that_it_was_read_from(server: FaultyServer, stores: Path) -> None:
    urls = [f"{server.url}/raw.tsds", (stores / "raw.tsds").as_uri()]
    for wanted in urls:
        for url in urls:
            tsds.open(url)
        gc.collect()
        assert [each.urls for each in tsds.reading.cached_stores()] == [tuple(urls)]
        assert "removed" in command("cache", "clear", wanted).output
        assert tsds.reading.cached_stores() == []


def test_only_the_stores_of_a_url_are_cleared(stores: Path, tmp_path: Path) -> None:
    for name in ("raw", "jpeg"):
        shutil.copytree(stores / f"{name}.tsds", tmp_path / f"{name}.tsds")
    urls = {name: (tmp_path / f"{name}.tsds").as_uri() for name in ("raw", "jpeg")}
    digests = {name: tsds.open(url).sha256 for name, url in urls.items()}
    shutil.rmtree(tmp_path / "raw.tsds")
    shutil.copytree(stores / "zarr.tsds", tmp_path / "raw.tsds")
    later = tsds.open(urls["raw"]).sha256
    gc.collect()
    removed, left = tsds.reading.clear_cache(urls["raw"])
    assert ({each.sha256 for each in removed}, left) == ({digests["raw"], later}, [])
    assert [each.sha256 for each in tsds.reading.cached_stores()] == [digests["jpeg"]]


def test_what_is_listed_of_a_folder_without_its_lock(server: FaultyServer) -> None:
    tsds.open(f"{server.url}/raw.tsds")["train"]["image"][0]
    gc.collect()
    lock = tsds.reading.cached_stores()[0].path.parent / "lock"
    lock.unlink()
    (kept,) = tsds.reading.cached_stores()
    assert not kept.is_open and not lock.exists()
    files = [path.stat() for path in kept.path.rglob("*") if path.is_file()]
    if hasattr(os.stat_result, "st_blocks"):  # in units of 512 bytes
        assert kept.nbytes_there == sum(min(each.st_size, each.st_blocks * 512) for each in files)


@pytest.mark.parametrize("answer", ["y", "n", None])
def test_clearing_all_lists_and_asks_on_a_terminal(server: FaultyServer, cache: Path, answer: str | None) -> None:
    import pty

    tsds.open(f"{server.url}/raw.tsds")["train"]["image"][0]
    gc.collect()
    arguments = ["-c", "from tsds_cli.main import main; main()", "cache", "clear", "--all"]
    main, terminal = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, *arguments, *(["--yes"] if answer is None else [])],
        stdin=terminal,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    if answer is not None:
        os.write(main, f"{answer}\n".encode())
    output, errors = process.communicate(timeout=120)
    os.close(main)
    os.close(terminal)
    assert f"{server.url}/raw.tsds" in output
    assert (len(tsds.reading.cached_stores()), process.returncode) == ((1, 1) if answer == "n" else (0, 0)), errors
    assert ("to be removed" in output) == (answer is not None)
    assert ("removed in all: 1 store" in output) == (answer != "n")


def test_the_limit_evicts_the_one_that_was_used_least_recently(server: FaultyServer) -> None:
    def used(name: str, limit: int | None = None) -> str:
        store = tsds.open(f"{server.url}/{name}.tsds", cache_limit=limit)
        store.fetch()
        digest = store.sha256
        del store
        gc.collect()
        return digest

    digests = {name: used(name) for name in ("raw", "jpeg", "zarr")}
    for age, name in enumerate(("jpeg", "zarr", "raw")):
        os.utime(
            next(s.path for s in tsds.reading.cached_stores() if s.sha256 == digests[name]).parent / "lock", (age, age)
        )
    most = sum(store.nbytes_there for store in tsds.reading.cached_stores()) - 1
    used("raw", most + 1)
    assert {store.sha256 for store in tsds.reading.cached_stores()} == {*digests.values()}
    used("raw", most)
    assert {store.sha256 for store in tsds.reading.cached_stores()} == {digests["raw"], digests["zarr"]}


def test_the_limit_of_the_environment(server: FaultyServer, monkeypatch: pytest.MonkeyPatch) -> None:
    tsds.open(f"{server.url}/jpeg.tsds").fetch()
    gc.collect()
    monkeypatch.setenv("TSDS_CACHE_LIMIT", "1 kB")
    store = tsds.open(f"{server.url}/raw.tsds")
    assert [kept.sha256 for kept in tsds.reading.cached_stores()] == [store.sha256]
    monkeypatch.setenv("TSDS_CACHE_LIMIT", "much")
    with pytest.raises(tsds.OptionError, match="TSDS_CACHE_LIMIT: expected a number of bytes"):
        tsds.open(f"{server.url}/raw.tsds")


class _SlowPool(mirror_file.Pool):
    """Threads that go on with nothing after a result is known, or that begin nothing at all, until `go_on` is set."""

    def __init__(self, *, begins: bool) -> None:
        super().__init__(64)
        self.go_on = threading.Event()
        for _ in range(0 if begins else 64):
            super().submit(self.go_on.wait, 60)

    def submit(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        watched = threading.Event()

        def run() -> Any:
            assert watched.wait(60)
            return function(*args, **kwargs)

        future = super().submit(run)
        future.add_done_callback(lambda _: self.go_on.wait(60))  # by the thread, after whoever waits was told
        watched.set()
        return future


@pytest.mark.parametrize("name", ["endings", "requests", "fields"])
def test_threads_do_not_keep_a_store_open(server: FaultyServer, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    pool = _SlowPool(begins=name != "endings")
    monkeypatch.setattr(mirror_file, "_pools", {name: pool})
    try:
        store = tsds.open(f"{server.url}/raw.tsds")
        if name == "fields":
            store["train"].fetch(["image"], np.array([0]))
        else:
            store.fetch()
        assert [kept.is_open for kept in tsds.reading.cached_stores()] == [True]
        del store
        gc.collect()
        assert [kept.is_open for kept in tsds.reading.cached_stores()] == [False]
    finally:
        pool.go_on.set()
        pool.shutdown()


@pytest.mark.parametrize("arguments", [["info"], ["stats"], ["verify"], ["warm"], ["evict"], ["preview"]])
def test_commands_take_a_url(server: FaultyServer, tmp_path: Path, arguments: list[str]) -> None:
    out = ["--out", tmp_path / "p.png"] if arguments == ["preview"] else []
    result = command(*arguments, f"{server.url}/jpeg.tsds", *out)
    assert result.exit_code == 0, result.output


def test_a_quick_comparison_downloads_the_keys_of_changed_shards(
    server: FaultyServer, stores: Path, tmp_path: Path
) -> None:
    """With the root, the list of the shard, and the labels of the sample that is gone."""
    path = tmp_path / "shards.tsds"
    tsds.copy(stores / "shards.tsds", path)
    tsds.erase(path, rows={"train": [0]})
    found = tsds.editing.compare_stores(f"{server.url}/shards.tsds", path, quick=True).splits["train"]
    assert (found.only_first.keys, found.only_second.count) == ([tsds.open(stores / "shards.tsds")["train"].key(0)], 0)
    asked = {each.path.removeprefix("shards.tsds/") for each in server.requests}
    allowed = ("zarr.json", "train/00000/zarr.json", "train/00000/key/", "train/00000/objects/")
    assert "zarr.json" in asked and all(each.startswith(allowed) for each in asked)
    moved, nbytes = sum(each.stop - each.start for each in server.requests), tsds.open(stores / "shards.tsds").nbytes
    assert moved < 20_000 < nbytes / 100


def test_repack_takes_a_url(server: FaultyServer, stores: Path, tmp_path: Path) -> None:
    tsds.repack(f"{server.url}/raw.tsds", tmp_path / "z.tsds", layout="zarr")
    found, expected = (tsds.open(path)["train"] for path in (tmp_path / "z.tsds", stores / "raw.tsds"))
    assert taken(found, range(ROWS)) == taken(expected, range(ROWS))


def test_a_file_url_and_a_place_without_a_store(stores: Path) -> None:
    local, remote = (tsds.open(f"{root}/raw.tsds")["train"] for root in (stores, f"file://{stores}"))
    assert taken(remote, [5, 2]) == taken(local, [5, 2])
    with pytest.raises(tsds.FormatError, match="this is not a store"):
        tsds.open(f"file://{stores}/none.tsds")
    assert not (stores / "none.tsds").exists()


def test_small_files_come_whole(server: FaultyServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mirror, "SMALL_NBYTES", 4 * 1024**2)
    store = tsds.open(f"{server.url}/raw.tsds")
    store["train"].column("size").take([0])
    (request,) = server.of("size/c")
    assert isinstance(request, Request)
    assert request.start == 0
    assert isinstance(store["train"].column("size").part(0), np.ndarray)


def test_files_of_more_than_4_mib_come_in_chunks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mirror, "SMALL_NBYTES", mirror_file.SMALL_NBYTES)
    store_of(tmp_path / "s.tsds", [{"image": np.full((512, 1024, 3), i, np.uint8)} for i in range(3)])
    with faulty_server(tmp_path) as served:
        assert (tsds.open(f"{served.url}/s.tsds")["train"]["image"][1] == 1).all()
        nbytes = sum(request.stop - request.start for request in served.of("image/c"))
        assert 512 * 1024 * 3 < nbytes < 2 * 512 * 1024 * 3


def test_files_that_are_not_listed(server: FaultyServer) -> None:
    store = tsds.open(f"{server.url}/raw.tsds")
    for name in ("none", "zarr.json.sig", "train/00000/none", "train/00009/zarr.json", "no/00000/zarr.json", "a/x/y"):
        with pytest.raises(tsds.FormatError, match=f"{name}: the store lists no such file"):
            store.open_file(name)
        with pytest.raises(tsds.FormatError, match=f"{name}: the store lists no such file"):
            store.read_part(name, slice(0, 4))


def test_a_view_of_a_url_downloads_what_is_looked_at(server: FaultyServer, stores: Path) -> None:
    pytest.importorskip("uvicorn")
    path = "train/00000/image/c/0/0/0/0"
    data = (stores / "raw.tsds" / path).read_bytes()
    with tsds.view(f"{server.url}/raw.tsds") as url:
        for start, stop in ((70_000, 90_000), (len(data) - 100, len(data))):
            request = urllib.request.Request(f"{url}store/{path}", headers={"Range": f"bytes={start}-{stop - 1}"})  # noqa: S310
            with urllib.request.urlopen(request) as answer:  # noqa: S310
                assert answer.read() == data[start:stop]
        assert sum(each.stop - each.start for each in server.of(path)) < len(data) / 2
        with urllib.request.urlopen(f"{url}store/{path}") as answer:  # noqa: S310
            assert answer.read() == data


def test_a_file_that_is_whole_costs_no_look_at_all_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store_of(tmp_path / "s.tsds", [{"image": np.full((8, 8, 3), i, np.uint8)} for i in range(40)], shard_nbytes=200)
    looks, real = [], mirror.Mirror._is_here
    monkeypatch.setattr(mirror.Mirror, "_is_here", lambda *given: looks.append(given[1]) or real(*given))
    with faulty_server(tmp_path) as served:
        store = tsds.open(f"{served.url}/s.tsds")
        store.fetch()
    assert tsds.open(store.path).sha256 == store.sha256 and len(store.manifest.splits["train"].shards) == 40
    assert len(set(looks)) >= 40 and len(looks) < 6 * len(set(looks))


@pytest.mark.parametrize("small", [0, 4 * 1024**2])
def test_a_store_in_a_bucket(bucket: str, stores: Path, small: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mirror, "SMALL_NBYTES", small)
    tsds.push(stores / "raw.tsds", f"{bucket}/a/raw.tsds")
    rows = np.random.default_rng(0).permutation(ROWS)
    remote, local = (tsds.open(place)["train"] for place in (f"{bucket}/a/raw.tsds", stores / "raw.tsds"))
    assert taken(remote, rows) == taken(local, rows)
    assert tsds.verify(f"{bucket}/a/raw.tsds") == []
    with pytest.raises(tsds.FormatError, match=f"{bucket}/none: this is not a store") as caught:
        tsds.open(f"{bucket}/none")
    assert "very-secret" not in str(caught.value)


@pytest.mark.parametrize("inside", [".", "cache", "train/cache"])
def test_a_cache_inside_a_store(server: FaultyServer, stores: Path, tmp_path: Path, inside: str) -> None:
    store = shutil.copytree(stores / "raw.tsds", tmp_path / "s.tsds")
    with pytest.raises(tsds.OptionError, match=r"lies inside the store .*/s.tsds, .* Choose a place outside of it"):
        tsds.open(f"{server.url}/jpeg.tsds", cache_dir=store / inside)
    assert tsds.verify(store) == []
