from __future__ import annotations

import errno
import gc
import os
from collections.abc import Callable
from pathlib import Path

import pytest

import tensorstore_ds as tsds
from cold_stores import linux, make_cold, make_store
from small_stores import VALID
from tensorstore_ds.errors import FormatError, OptionError, ResidencyError
from tensorstore_ds.page_cache import residency as module, system_calls
from tensorstore_ds.page_cache.residency import (
    Eviction,
    Residency,
    evict,
    fits,
    residency,
    select_columns,
    total_residency,
)
from tensorstore_ds.page_cache.system_calls import mincore_nbytes, resident_nbytes
from tensorstore_ds.page_cache.warming import warm

pytestmark = pytest.mark.slow

PAGE = os.sysconf("SC_PAGE_SIZE")


@linux
@pytest.mark.parametrize("count", [resident_nbytes, mincore_nbytes])
@pytest.mark.parametrize("window", [system_calls._WINDOW, 16 * PAGE])
def test_pages_that_were_written_are_resident(
    count: Callable[..., int], window: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(system_calls, "_WINDOW", window)
    with (tmp_path / "sparse").open("w+b") as file:
        file.truncate(1000 * PAGE + 1)
        for page in (0, 7, 15, 16, 500, 999, 1000):
            os.pwrite(file.fileno(), b"x", page * PAGE)
        assert count(file.fileno(), 1000 * PAGE + 1) == 7 * PAGE
        assert count(file.fileno(), 16 * PAGE) == 3 * PAGE
        assert count(file.fileno(), 10 * PAGE, 7 * PAGE) == 3 * PAGE
        assert count(file.fileno(), 100 * PAGE + 1, 900 * PAGE) == 2 * PAGE
        assert count(file.fileno(), 0) == 0


@linux
def test_an_older_kernel_is_asked_another_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(system_calls, "_CACHESTAT", 100_000)  # no such system call
    with (tmp_path / "file").open("w+b") as file:
        file.write(bytes(3 * PAGE))
        file.flush()
        assert resident_nbytes(file.fileno(), 3 * PAGE) == 3 * PAGE


@linux
def test_files_of_others_are_not_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(system_calls, "_CACHESTAT", 100_000)
    monkeypatch.setattr("os.geteuid", lambda: 12345)
    monkeypatch.setattr("os.access", lambda *_: False)
    found = residency(tsds.open(VALID / "minimal.tsds"))["train/image"]
    assert found.resident is None and found.share is None
    assert "belongs to another user" in found.reason


@linux
def test_columns_of_a_store() -> None:
    store = tsds.open(VALID / "shards.tsds")
    for path in VALID.joinpath("shards.tsds").rglob("*"):
        if path.is_file():
            path.read_bytes()
    found = residency(store)
    assert list(found) == [f"{s}/{f}" for s in ("train", "val", "test-0") for f in ("image", "label", "objects", "key")]
    # train/objects: in two shards offsets, in the first one boxes and labels of 3 objects; a file ends with 24 bytes.
    assert found["train/objects"].nbytes == (4 + 3) * 8 + 3 * 16 + 3 * 8 + 4 * 24
    assert found["val/image"] == Residency(0, 0)
    assert {r.share for r in found.values()} == {1.0}


def test_other_systems_do_not_tell(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.platform", "darwin")
    found = residency(tsds.open(VALID / "minimal.tsds"))["train/image"]
    assert found == Residency(2 * 16 + 24, None, "not available on darwin")


def test_several_columns_as_one() -> None:
    assert total_residency({"a": Residency(10, 4), "b": Residency(30, 0)}) == Residency(40, 4)
    assert total_residency({}) == Residency(0, 0)
    unknown = {"a": Residency(10, 4), "b": Residency(30, None, "not here")}
    assert total_residency(unknown) == Residency(40, None, "not here")


# --- a part of a store ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("splits", "fields", "expected"),
    [
        ("val", "label", [("val", "label")]),
        (["val", "train", "val"], ["label"], [("val", "label"), ("train", "label")]),
        ("val", None, [("val", f) for f in ("image", "label", "objects", "key")]),
        (None, "key", [(s, "key") for s in ("train", "val", "test-0")]),
        ([], None, []),
    ],
)
def test_columns_are_chosen_by_name(
    splits: str | list[str] | None, fields: str | list[str] | None, expected: list[tuple[str, str]]
) -> None:
    assert select_columns(tsds.open(VALID / "shards.tsds"), splits, fields) == expected


def test_names_that_a_store_does_not_have() -> None:
    store = tsds.open(VALID / "shards.tsds")
    with pytest.raises(OptionError, match=r"expected one of the splits train, val, test-0, found 'nope'\.$"):
        select_columns(store, ["train", "nope"], None)
    with pytest.raises(OptionError, match=r"expected one of the fields image, label, objects, key, found 'i'\.$"):
        select_columns(store, None, "i")


def test_a_store_fits_or_not(monkeypatch: pytest.MonkeyPatch) -> None:
    store = tsds.open(VALID / "minimal.tsds")
    nbytes = sum(r.nbytes for r in residency(store).values())
    limits = {"machine": nbytes + 1000, "/sys/fs/cgroup": nbytes}
    resident = 0
    monkeypatch.setattr(module, "memory_limits", lambda: limits)
    monkeypatch.setattr(module, "resident_nbytes", lambda descriptor, size, start: min(resident, size))
    assert fits(store)
    limits["/sys/fs/cgroup"] -= 1
    assert not fits(store)
    assert fits(store, fields=[])
    resident = nbytes  # locked by another process, or in a file system in memory
    assert fits(store)
    with pytest.raises(OptionError):
        fits(store, splits="nope")


# --- eviction ---------------------------------------------------------------------------------------------------


@linux
def test_a_store_that_was_just_written(disk_path: Path) -> None:
    store = make_store(disk_path / "s.tsds")  # its pages wait to be written to disk
    assert {r.share for r in residency(store).values()} == {1.0}
    make_cold(store)
    assert {r.share for r in residency(store).values()} == {0.0}
    total = warm(store)
    done = evict(store)
    assert (done.dropped, done.left) == (total, 0)
    assert {r.share for r in done.before.values()} == {1.0}
    assert done.after == residency(store)


@linux
def test_a_part_of_a_store_is_dropped(cold: tsds.Store) -> None:
    warm(cold)
    assert list(evict(cold, splits="val").after) == ["val/image", "val/label"]
    evict(cold, fields="label")
    shares = {column: found.share for column, found in residency(cold).items()}
    assert shares == {"train/image": 1, "train/label": 0, "val/image": 0, "val/label": 0}


@linux
def test_pages_that_are_mapped_and_used_stay(cold: tsds.Store) -> None:
    warm(cold)
    store = tsds.open(cold.path)
    column = store["train"]["image"]
    first = int(column[0].sum())
    done = evict(store)
    assert 256 * 256 * 3 <= (done.left or 0) < 4_000_000  # the row, and what the system has mapped around it
    assert done.after["val/image"].resident == 0
    assert int(column[0].sum()) == first
    del column, store
    gc.collect()  # a split and its columns know each other
    assert evict(cold).left == 0


@linux
def test_a_read_only_file_system_has_nothing_to_write(monkeypatch: pytest.MonkeyPatch) -> None:
    store = tsds.open(VALID / "minimal.tsds")
    number = errno.EINVAL

    def refuse(descriptor: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr("os.fdatasync", refuse)
    evict(store)
    number = errno.EIO
    with pytest.raises(OSError, match=os.strerror(errno.EIO)):
        evict(store)


def test_what_is_not_known_is_not_claimed() -> None:
    known, unknown = {"train/image": Residency(9, 9)}, {"train/image": Residency(9, None, "belongs to another user")}
    assert Eviction(known, known).dropped == 0
    assert (Eviction(known, unknown).dropped, Eviction(known, unknown).left) == (None, None)
    assert (Eviction(unknown, known).dropped, Eviction(unknown, known).left) == (None, 9)


def test_elsewhere_nothing_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.platform", "win32")
    with pytest.raises(ResidencyError, match=r"minimal\.tsds: expected Linux .*, found win32\.$"):
        evict(tsds.open(VALID / "minimal.tsds"))


@linux
def test_what_cannot_be_evicted(tmp_path: Path) -> None:
    store = make_store(tmp_path / "s.tsds")
    with pytest.raises(OptionError, match="found 'nope'"):
        evict(store, fields="nope")
    (store.path / "val/00000/label/c/0").unlink()
    with pytest.raises(FormatError, match="cannot be opened"):
        evict(store)
