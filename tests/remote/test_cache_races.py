"""Many processes that open stores with a limit, evict them, clear the folder, or remove it: no wrong byte, no crash."""

from __future__ import annotations

import contextlib
import errno
import gc
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tensorstore_ds as tsds
from remote.servers_mirror import FaultyServer
from stores import detections, store_of
from tensorstore_ds.reading import mirror_cache

ROWS = 30


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("stores")
    for seed in range(3):
        store_of(root / f"{seed}.tsds", detections(ROWS, seed=seed, shape=(64, 64, 3)), ["a", "b"])
    return root


def kept(url: str) -> tsds.Store:
    store = tsds.open(url)
    store["train"]["image"][0]
    return store


def test_a_store_that_is_opened_while_it_is_evicted_is_fetched_anew(
    server: FaultyServer, stores: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"{server.url}/0.tsds"
    kept(url)
    gc.collect()
    opened: list[tsds.Store] = []
    real = shutil.rmtree

    def slow(path: Any, *arguments: Any) -> None:
        opened.append(tsds.open(url))
        opened[0]["train"]["image"][0]
        real(path, *arguments)

    monkeypatch.setattr(mirror_cache.shutil, "rmtree", slow)
    tsds.reading.clear_cache()
    monkeypatch.undo()
    monkeypatch.setenv("TSDS_CACHE_DIR", str(cache))
    assert [each.is_open for each in tsds.reading.cached_stores()] == [True]
    expected = tsds.open(stores / "0.tsds")["train"].column("image").take(range(ROWS))
    assert np.array_equal(opened[0]["train"].column("image").take(range(ROWS)), expected)
    assert [path.name for path in cache.iterdir() if path.name.startswith("removed-")] == []


def test_two_evictors(server: FaultyServer, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept(f"{server.url}/0.tsds")
    gc.collect()
    real, inside = shutil.rmtree, []

    def twice(path: Any, *arguments: Any) -> None:
        if not inside:
            inside.append(tsds.reading.clear_cache())
        real(path, *arguments)

    monkeypatch.setattr(mirror_cache.shutil, "rmtree", twice)
    assert len(tsds.reading.clear_cache()[0]) == 1
    assert inside == [([], [])]
    assert tsds.reading.cached_stores() == []


def test_a_store_that_another_process_has_evicted_is_gone(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mirrored = mirror_cache.Mirrored(cache / ("1" * 64))
    assert mirror_cache.Cache(cache).evict("0" * 64) is True
    monkeypatch.setattr(mirror_cache, "_folders", lambda _: [cache / ("0" * 64)])  # it was listed before
    assert mirrored._files_before() == {} and tsds.reading.cached_stores() == []


@pytest.mark.skipif(sys.platform != "linux", reason="open files are listed in /proc/self/fd")
def test_a_file_system_without_locks_keeps_no_file_open(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any, **__: Any) -> bool:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(mirror_cache, "lock", fail)
    with pytest.raises(tsds.errors.OutputError, match="No locks available"):
        mirror_cache.Mirrored(cache / ("1" * 64))
    assert not any(
        os.path.realpath(f"/proc/self/fd/{name}").startswith(str(cache)) for name in os.listdir("/proc/self/fd")
    )


def test_what_a_killed_evictor_left_is_removed(server: FaultyServer, cache: Path) -> None:
    kept(f"{server.url}/0.tsds")
    (cache / "removed-0123456789abcdef" / "store.tsds").mkdir(parents=True)
    gc.collect()
    tsds.reading.clear_cache()
    assert sorted(path.name for path in cache.iterdir()) == ["urls"]


def test_a_folder_that_is_not_ours_is_left(server: FaultyServer, cache: Path) -> None:
    kept(f"{server.url}/0.tsds")
    gc.collect()
    for name in ("mine", "urls.txt", "removed-things"):
        (cache / name).mkdir()
    (cache / ("a" * 64)).symlink_to(cache / "mine")
    tsds.reading.clear_cache()
    assert {path.name for path in cache.iterdir()} == {"mine", "urls.txt", "removed-things", "urls", "a" * 64}


@pytest.mark.parametrize("seconds", [0, 2**33])
def test_a_clock_that_jumps(server: FaultyServer, stores: Path, cache: Path, in_chunks: None, seconds: int) -> None:
    """Times of files decide only what is evicted first: what is read stays right, and is not fetched again."""
    url, expected = f"{server.url}/0.tsds", tsds.open(stores / "0.tsds")["train"].column("image")[:]
    store = kept(url)
    store["train"].column("image").take(range(ROWS))
    asked = len(server.of("image/c"))
    for _ in range(2):  # while the store is open, and when it is opened again
        for path in [*cache.rglob("*")]:
            with contextlib.suppress(FileNotFoundError):  # chunks are kept under other names until they are whole
                os.utime(path, (seconds, seconds))
        assert np.array_equal(store["train"].column("image")[:], expected)
        store = tsds.open(url)
    assert np.array_equal(store["train"].column("image")[:], expected)
    assert len(server.of("image/c")) == asked
    del store
    gc.collect()
    assert [each.urls for each in tsds.reading.clear_cache()[0]] == [(url,)]


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="a folder in which none can be made")
def test_a_folder_that_cannot_be_made(server: FaultyServer) -> None:
    with pytest.raises(tsds.errors.OutputError, match=r"^/proc/none/.*Choose another folder") as caught:
        tsds.open(f"{server.url}/0.tsds", cache_dir="/proc/none")
    assert "locked" not in str(caught.value)


_WORKER = """
import gc, json, random, shutil, sys, time
import numpy as np
import tensorstore_ds as tsds
from tensorstore_ds.reading import mirror
mirror.SMALL_NBYTES = 0
role, seed, stores, server, rounds = sys.argv[1], int(sys.argv[2]), sys.argv[3], sys.argv[4], int(sys.argv[5])
cache, rng, failures = sys.argv[6], random.Random(seed), []
local = [tsds.open(f"{stores}/{i}.tsds")["train"].column("image").take(range(30)) for i in range(3)]
for _ in range(rounds):
    try:
        if role == "clear":
            tsds.reading.clear_cache()
            time.sleep(rng.random() * 0.05)
        elif role == "remove":
            shutil.rmtree(cache, ignore_errors=True)
            time.sleep(rng.random() * 0.2)
        else:
            i = rng.randrange(3)
            store = tsds.open(f"{server}/{i}.tsds", cache_limit=rng.choice([1, 300_000]))
            rows = [rng.randrange(30) for _ in range(4)]
            if not np.array_equal(store["train"].column("image").take(rows), local[i][rows]):
                failures.append("WRONG")
            del store
            gc.collect()
    except tsds.TsdsError as error:
        failures.append(f"error {error}")
    except BaseException as error:
        import traceback
        failures.append(f"CRASH {error!r} {traceback.format_exc()[-600:]}")
print(json.dumps(failures))
"""


@pytest.mark.slow
@pytest.mark.parametrize("remover", ["", "remove"])
def test_ranks_and_evictors_at_once(server: FaultyServer, stores: Path, cache: Path, remover: str) -> None:
    roles = ["read"] * 4 + ["clear"] * 2 + ([remover] if remover else [])
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", _WORKER, role, str(seed), str(stores), server.url, "40", str(cache)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for seed, role in enumerate(roles)
    ]
    found = [failure for process in processes for failure in json.loads(process.communicate()[0].splitlines()[-1])]
    if remover:  # who has a store open finds its files gone, and is told
        assert all("\n" not in each for each in found)
        found = [each for each in found if not each.startswith("error")]
    assert found == []
