"""Stores that are pulled: whole and in part, through all that goes wrong on the way."""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st

import tensorstore_ds as tsds
from remote.conftest import set_credentials
from remote.fault_proxy import Fault, Proxy, proxy_for
from remote.servers import nginx
from small_stores import relist, sealed, tsds as command
from stores import Samples, files_of, interrupted, no_room
from tensorstore_ds.format.manifest import File
from tensorstore_ds.format.root import dump_root, parse_root
from tensorstore_ds.reading.mirror import no_store
from tensorstore_ds.remote.location import Location
from tensorstore_ds.sharing import receiving
from tensorstore_ds.sharing.received import UNIT_NBYTES, Received


@pytest.fixture
def pushed(store: tsds.Store, bucket: str, proxy: Proxy, monkeypatch: pytest.MonkeyPatch) -> str:
    """The URL of the store in S3, behind the proxy."""
    tsds.push(store.path, f"{bucket}/s.tsds")
    set_credentials(monkeypatch, proxy.url)
    return f"{bucket}/s.tsds"


@pytest.fixture(params=["s3", "http"])
def faulty(request: pytest.FixtureRequest, store: tsds.Store, tmp_path: Path) -> Iterator[tuple[str, Proxy]]:
    """The URL of the store behind a proxy, which is in front of S3 or of nginx."""
    if request.param == "s3":
        yield request.getfixturevalue("pushed"), request.getfixturevalue("proxy")
        return
    with nginx(store.path.parent, tmp_path / "nginx") as url, proxy_for(url) as made:
        yield f"{made.url}/s.tsds", made


# --- all of it, and parts of it ---------------------------------------------------------------------------------


@pytest.mark.parametrize("update", [False, True])
def test_a_copy_that_is_there_is_verified(store: tsds.Store, tmp_path: Path, update: bool) -> None:
    tsds.pull(store.path, tmp_path / "p.tsds")
    file = next(path for path in (tmp_path / "p.tsds/train/00000/image").rglob("c/**/*") if path.is_file())
    file.write_bytes(bytes([file.read_bytes()[0] ^ 1]) + file.read_bytes()[1:])
    assert tsds.pull(store.path, tmp_path / "p.tsds", update=update).was_there
    with pytest.raises(tsds.FormatError, match=r"image.*Remove .*p\.tsds and run the same command again"):
        tsds.pull(store.path, tmp_path / "p.tsds", verify=True)
    shutil.rmtree(tmp_path / "p.tsds")
    assert not tsds.pull(store.path, tmp_path / "p.tsds", update=update, verify=True).was_there
    assert tsds.pull(store.path, tmp_path / "p.tsds", update=update, verify=True).was_there


@pytest.mark.parametrize("ranges", [True, False])
def test_from_nginx(store: tsds.Store, tmp_path: Path, ranges: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(receiving, "PART_NBYTES", 300_000)
    with nginx(store.path.parent, tmp_path / "nginx", ranges=ranges) as url:
        done = tsds.pull(f"{url}/s.tsds", tmp_path / "p.tsds", verify=True)
    assert files_of(tmp_path / "p.tsds") == files_of(store.path)
    assert (done.sha256, done.nbytes) == (store.sha256, sum(map(len, files_of(store.path).values())))
    assert {path.name for path in tmp_path.iterdir()} == {"nginx", "p.tsds"}


def test_a_part_is_a_store(store: tsds.Store, pushed: str, proxy: Proxy, tmp_path: Path) -> None:
    begun = proxy.sent
    done = tsds.pull(pushed, tmp_path / "p.tsds", fields=["objects", "key"], verify=True)
    part = tsds.open(tmp_path / "p.tsds")
    assert list(part["train"].fields) == [name for name in store["train"].fields if name in ("objects", "key")]
    assert list(part["train"].statistics) == ["objects"]
    assert part["train"].statistics["objects"] == store["train"].statistics["objects"]
    assert part.sha256 == done.sha256 != store.sha256
    np.testing.assert_array_equal(part["train"].table("objects").take([3]).values["boxes"], [[1, 2, 30, 40]])
    assert proxy.sent - begun < store.nbytes / 10
    assert tsds.pull(pushed, tmp_path / "p.tsds", fields=["key", "objects"]).was_there
    with pytest.raises(tsds.errors.StoreExistsError, match="found another store"):
        tsds.pull(pushed, tmp_path / "p.tsds", fields=["key"])
    assert tsds.pull(pushed, tmp_path / "all.tsds", fields=list(store["train"].fields)).sha256 == store.sha256


def test_some_splits(tmp_path: Path) -> None:
    with tsds.Writer(tmp_path / "s.tsds", classes=["a", "b"]) as writer:
        for split, count in (("train", 4), ("val", 2), ("test", 3)):
            for i in range(count):
                writer.append(split, image=np.full((4, 4, 1), i, np.uint8), label=i % 2)
    tsds.pull(tmp_path / "s.tsds", tmp_path / "p.tsds", splits=["val", "train"], fields="image", verify=True)
    part = tsds.open(tmp_path / "p.tsds")
    assert part.splits == ("train", "val") and list(part["val"].fields) == ["image"]
    assert list(part["train"].statistics) == ["image"]
    np.testing.assert_array_equal(part["val"]["image"][1], np.full((4, 4, 1), 1))
    with pytest.raises(tsds.OptionError, match=r"`splits`: expected some of its splits .*Did you mean train"):
        tsds.pull(tmp_path / "s.tsds", tmp_path / "q.tsds", splits=["trian"])


# --- what is at the target --------------------------------------------------------------------------------------


def test_the_target_is_never_overwritten(store: tsds.Store, other: tsds.Store, tmp_path: Path) -> None:
    tsds.copy(store.path, tmp_path / "p.tsds")
    assert tsds.copy(store.path, tmp_path / "p.tsds").was_there
    with pytest.raises(tsds.errors.StoreExistsError, match="found another store"):
        tsds.copy(other.path, tmp_path / "p.tsds")
    (tmp_path / "file").write_text("mine")
    with pytest.raises(tsds.errors.StoreExistsError, match="or a copy of this store, found a file"):
        tsds.copy(other.path, tmp_path / "file")
    assert (tmp_path / "file").read_text() == "mine"


def test_a_work_folder_of_something_else_is_left_alone(
    store: tsds.Store, other: tsds.Store, pushed: str, proxy: Proxy, tmp_path: Path, impatient: None
) -> None:
    (tmp_path / "p.tsds.partial").mkdir()
    (tmp_path / "p.tsds.partial/mine").write_text("mine")
    with pytest.raises(tsds.OptionError, match="the work folder of a copy, found a folder"):
        tsds.pull(pushed, tmp_path / "p.tsds")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "q.tsds.partial").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(tsds.OptionError, match="found something else"):
        tsds.pull(pushed, tmp_path / "q.tsds")
    assert not list((tmp_path / "elsewhere").iterdir())
    proxy.faults.append(Fault("status", status=403))
    with pytest.raises(tsds.RemoteError):
        tsds.pull(pushed, tmp_path / "r.tsds")
    assert not (tmp_path / "r.tsds.partial").exists()  # nothing had arrived
    proxy.faults.clear()

    def stop(done: int, total: int) -> None:
        if done > 0:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        tsds.pull(pushed, tmp_path / "r.tsds", workers=1, progress=stop)
    assert (tmp_path / "r.tsds.partial").stat().st_mode & 0o777 == 0o700
    with pytest.raises(tsds.OptionError, match="parts of another copy or conversion are kept here"):
        tsds.copy(other.path, tmp_path / "r.tsds")
    assert tsds.pull(pushed, tmp_path / "r.tsds", verify=True).sha256 == store.sha256


def test_finished_shards_of_a_conversion_are_not_removed(store: tsds.Store, tmp_path: Path) -> None:
    samples = [np.full((9, 9, 1), i, np.uint8) for i in range(30)]
    options = tsds.ConvertOptions(shard_nbytes=300, workers=0)
    interrupted(Samples(samples), tmp_path / "s.tsds", 20, options)
    before = files_of(tmp_path / "s.tsds.partial")
    assert any(name.startswith("journal/") for name in before)
    with pytest.raises(tsds.OptionError, match="parts of another copy or conversion"):
        tsds.copy(store.path, tmp_path / "s.tsds")
    after = files_of(tmp_path / "s.tsds.partial")
    assert {n: d for n, d in after.items() if n != "tsds.lock"} == {n: d for n, d in before.items() if n != "tsds.lock"}


def test_another_store_than_was_meant(store: tsds.Store, tmp_path: Path) -> None:
    with pytest.raises(tsds.FormatError, match=f"found the store {store.sha256}"):
        tsds.pull(store.path, tmp_path / "p.tsds", sha256="0" * 64)
    assert tsds.pull(store.path, tmp_path / "p.tsds", sha256=store.sha256.upper()).sha256 == store.sha256


# --- what goes wrong on the way ---------------------------------------------------------------------------------

FAULTS = [
    Fault("cut", times=5),
    Fault("cut", times=3, nbytes=0),
    Fault("cut", times=20, nbytes=200_000),
    Fault("status", times=3),
    Fault("status", times=3, status=429),
    Fault("status", "", times=1, status=500),
    Fault("content-range", times=2),
    Fault("whole", times=2),
    Fault("etag", times=10),
    Fault("stall", times=2),
    Fault("flip", times=1),
    Fault("flip", "00001/zarr.json", times=1),
    Fault("cut", "s.tsds/train/00000/zarr.json", times=2, nbytes=10),
]


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: f"{fault.kind}-{fault.path}-{fault.times}")
def test_right_bytes_at_last(
    fault: Fault, store: tsds.Store, faulty: tuple[str, Proxy], tmp_path: Path, impatient: None, monkeypatch: Any
) -> None:
    pushed, proxy = faulty
    monkeypatch.setattr(receiving, "PART_NBYTES", 300_000)
    proxy.faults.append(Fault(**vars(fault)))
    tsds.pull(pushed, tmp_path / "p.tsds")
    assert proxy.faults[0].times < fault.times
    assert files_of(tmp_path / "p.tsds") == files_of(store.path)


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        (Fault("cut", nbytes=0), "cannot be reached"),
        (Fault("status"), "the server answers 503 Service Unavailable"),
        (Fault("status", status=403), "access is refused"),
        (Fault("status", status=404), "there is no such file"),
        (Fault("content-range"), "the server sent another part of the file"),
        (Fault("whole"), "expected a server that sends ranges of bytes, found one that sends whole files"),
        (Fault("stall", nbytes=0), "cannot be reached, or does not answer"),
        (Fault("flip"), r"expected SHA-256 \w{12}\.\.\., found .* twice\. This file is damaged there"),
        (Fault("flip", "train/00000/zarr.json"), "expected SHA-256"),
        (Fault("flip", "s.tsds/zarr.json"), "zarr.json"),
        (Fault("redirect", target="http://127.0.0.1:1/x"), "cannot be reached"),
    ],
    ids=lambda value: value.kind + value.path if isinstance(value, Fault) else "",
)
def test_one_clear_error(
    fault: Fault, words: str, store: tsds.Store, faulty: tuple[str, Proxy], tmp_path: Path, impatient: None
) -> None:
    pushed, proxy = faulty
    proxy.faults.append(Fault(**vars(fault)))
    done = command("pull", pushed, tmp_path / "p.tsds")
    assert (done.exit_code, done.stdout) == (1, "")
    assert re.search(words, done.stderr) and done.stderr.count("\n") == 1
    assert not (tmp_path / "p.tsds").exists()
    proxy.faults.clear()
    assert tsds.pull(pushed, tmp_path / "p.tsds", verify=True).sha256 == store.sha256


def test_a_store_that_is_replaced_in_the_middle(
    store: tsds.Store, other: tsds.Store, bucket: str, pushed: str, tmp_path: Path, impatient: None, monkeypatch: Any
) -> None:
    part = receiving.Pull._part
    replaced = []

    def replace(self: Any, item: Any) -> None:
        if not replaced:
            replaced.append(item)
            for name, data in files_of(other.path).items():
                Location(f"{bucket}/s.tsds").write(name, data)
        part(self, item)

    monkeypatch.setattr(receiving.Pull, "_part", replace)
    with pytest.raises(tsds.RemoteError, match="the store was replaced by another while it was copied") as caught:
        tsds.pull(pushed, tmp_path / "p.tsds")
    assert caught.value.reason == "replaced"


def test_sizes_that_are_lies(store: tsds.Store, pushed: str, bucket: str, tmp_path: Path, impatient: None) -> None:
    name, place = "train/00000/image/c/0/0/0/0", Location(f"{bucket}/s.tsds")
    data = (store.path / name).read_bytes()
    place.write(name, data[:-9])
    with pytest.raises(tsds.RemoteError, match=name):
        tsds.pull(pushed, tmp_path / "p.tsds")
    place.write(name, data + b"more")  # not asked for
    assert tsds.pull(pushed, tmp_path / "p.tsds").sha256 == store.sha256


@pytest.mark.parametrize("name", ["../x", "..", "a/../../x", "/etc/x", "A", "image/c/0/0/0/0\n"])
def test_names_that_lead_elsewhere(store: tsds.Store, tmp_path: Path, name: str) -> None:
    evil = tmp_path / "evil"
    shutil.copytree(store.path, evil)
    listing = json.loads((evil / "train/00000/zarr.json").read_bytes())
    files = listing["attributes"]["tsds"]["files"]
    files[name] = files.pop("image/c/0/0/0/0")
    (evil / "train/00000/zarr.json").write_text(json.dumps(listing))
    relist(evil, "train/00000/zarr.json")
    with pytest.raises(tsds.FormatError) as caught:
        tsds.pull(f"file://{evil}", tmp_path / "p.tsds")
    assert caught.value.reason == "unsafe-path"
    manifest, _ = parse_root((store.path / "zarr.json").read_bytes())
    text = dump_root(manifest).replace(b'"train"', json.dumps(name).encode())
    (evil / "zarr.json").write_bytes(
        sealed(re.sub(rb'"tsds_sha256": "\w+"', b'"tsds_sha256": "' + b"0" * 64 + b'"', text))
    )
    with pytest.raises(tsds.FormatError):
        tsds.pull(f"file://{evil}", tmp_path / "q.tsds")


def test_a_packed_store_is_named(tmp_path: Path) -> None:
    for url in ("http://127.0.0.1:9/a.tsds.zip", "https://host/a.tsds.zip"):
        assert "Download the file and open it, or unpack it on the server" in str(no_store(url))
    assert "Correct the URL" in str(no_store("http://127.0.0.1:9/a.tsds"))


# --- the disk ---------------------------------------------------------------------------------------------------


def test_too_little_room_is_said_beforehand(pushed: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=100))
    before = {*tmp_path.iterdir()}
    with pytest.raises(tsds.errors.OutputError, match="free on this disk, found 100 B"):
        tsds.pull(pushed, tmp_path / "p.tsds")
    assert {*tmp_path.iterdir()} == before


def test_room_is_looked_at_before_memory_is_taken_by_listed_sizes(
    store: tsds.Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Taken(Exception):
        """Memory is about to be taken."""

    def take(*_: object) -> None:
        raise Taken

    usage = shutil.disk_usage(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(receiving, "Received", take)
        patch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=store.nbytes - 1))
        with pytest.raises(tsds.errors.OutputError, match="free on this disk"):
            tsds.pull(store.path, tmp_path / "p.tsds")
        patch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=store.nbytes + 2 * 1024**2))
        with pytest.raises(Taken):
            tsds.pull(store.path, tmp_path / "p.tsds")
    with monkeypatch.context() as patch, pytest.raises(Taken):
        patch.setattr(receiving.Pull, "complete", take)
        tsds.pull(store.path, tmp_path / "p.tsds")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=store.nbytes // 2))
    with pytest.raises(tsds.errors.OutputError, match="free on this disk"):
        tsds.pull(store.path, tmp_path / "other.tsds")
    assert tsds.pull(store.path, tmp_path / "p.tsds").sha256 == store.sha256  # all of it is there


def test_a_full_disk(store: tsds.Store, pushed: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pwrite = os.pwrite

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", no_room)
        with pytest.raises(tsds.errors.OutputError, match=r"the disk is full. Make room. Run the same command again"):
            tsds.pull(pushed, tmp_path / "p.tsds")
        written = itertools.count()
        patch.setattr(os, "pwrite", lambda *each: no_room() if next(written) > 3 else pwrite(*each))
        with pytest.raises(tsds.errors.OutputError, match=r"the disk is full.*are kept: run the same command again"):
            tsds.pull(pushed, tmp_path / "p.tsds", workers=1)
    assert not (tmp_path / "p.tsds").exists()
    assert tsds.pull(pushed, tmp_path / "p.tsds", verify=True).sha256 == store.sha256


def test_a_folder_that_is_missing(pushed: str, tmp_path: Path) -> None:
    with pytest.raises(tsds.OptionError, match="does not exist"):
        tsds.pull(pushed, tmp_path / "no/p.tsds")


# --- interruptions ----------------------------------------------------------------------------------------------


def test_ctrl_c(pushed: str, proxy: Proxy, tmp_path: Path) -> None:
    words = [sys.executable, "-m", "tsds_cli", "pull", pushed, str(tmp_path / "p.tsds")]
    proxy.seconds, before = 0.1, proxy.sent
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    while process.poll() is None and proxy.sent < before + 300_000:
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    out, error = process.communicate(timeout=30)
    assert (process.returncode, out) == (130, "")
    assert error == "tsds: interrupted; what was transferred is kept, the same command goes on from there\n"
    proxy.seconds = 0
    assert tsds.pull(pushed, tmp_path / "p.tsds", verify=True).moved > 0


@pytest.mark.parametrize("nonsense", ["ones", "noise", "longer", "cut", "removed"])
def test_a_record_of_nonsense_costs_bytes_and_nothing_else(
    store: tsds.Store, pushed: str, proxy: Proxy, tmp_path: Path, impatient: None, nonsense: str
) -> None:
    proxy.faults.append(Fault("status", "00001/image/c/", status=403))
    with pytest.raises(tsds.RemoteError):
        tsds.pull(pushed, tmp_path / "p.tsds")
    proxy.faults.clear()
    record = tmp_path / "p.tsds.partial/received"
    data = record.read_bytes()
    changed = {"ones": b"\1" * len(data), "noise": random.Random(0).randbytes(len(data)), "longer": data + b"\1" * 99}
    if nonsense == "removed":
        record.unlink()
    else:
        record.write_bytes(changed.get(nonsense, data[: len(data) // 2]))
    assert tsds.pull(pushed, tmp_path / "p.tsds").sha256 == store.sha256
    assert files_of(tmp_path / "p.tsds") == files_of(store.path)


def test_killed_after_the_rename(store: tsds.Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr("tensorstore_ds.conversion.partial.Partial.remove", lambda _: None)
        tsds.copy(store.path, tmp_path / "p.tsds")
    assert (tmp_path / "p.tsds.partial").is_dir()
    assert tsds.copy(store.path, tmp_path / "p.tsds").was_there
    assert not (tmp_path / "p.tsds.partial").exists()


@given(spans=st.lists(st.tuples(st.integers(0, 9), st.integers(1, 9))), size=st.integers(0, 9 * UNIT_NBYTES))
def test_what_is_missing_after_a_kill(spans: list[tuple[int, int]], size: int) -> None:
    files = {name: File(size, hashlib.sha256(name.encode()).hexdigest()) for name in ("a", "b")}
    there = np.zeros(size, bool)
    with tempfile.TemporaryFile(buffering=0) as file:
        record = Received(file.fileno(), files)
        for begin, count in spans:
            start, stop = begin * UNIT_NBYTES, min(size, (begin + count) * UNIT_NBYTES)
            if start < stop:
                record.add("b", start, stop)
                there[start:stop] = True
        file.seek(0)
        again = Received(file.fileno(), files)
        found = [i for start, stop in again.missing("b") for i in range(start, stop, 4096)]
        assert found == [i for i in range(0, size, 4096) if not there[i]]
        assert again.missing("a") == ([(0, size)] if size else [])
        again.add_whole("a")
        file.seek(0)
        last = Received(file.fileno(), files)
        assert [last.is_whole(name) for name in files] == [True, False]
