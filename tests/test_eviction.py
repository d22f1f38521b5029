from __future__ import annotations

import errno
import gc
import os
from pathlib import Path

import pytest

import tensorstore_ds as tsds
from cold_stores import linux, make_cold, make_store
from small_stores import VALID
from tensorstore_ds.errors import FormatError, OptionError, ResidencyError
from tensorstore_ds.page_cache.eviction import Eviction, evict
from tensorstore_ds.page_cache.residency import Residency, residency
from tensorstore_ds.page_cache.warming import warm


@linux
def test_a_store_that_was_just_written(tmp_path: Path) -> None:
    store = make_store(tmp_path / "s.tsds")  # its pages wait to be written to disk
    assert {r.share for r in residency(store).values()} == {1.0}
    make_cold(store)
    assert {r.share for r in residency(store).values()} == {0.0}
    total = warm(store)
    done = evict(store)
    assert (done.dropped, done.left) == (total, 0)
    assert {r.share for r in done.before.values()} == {1.0}
    assert done.after == residency(store)


@linux
def test_a_part_of_a_store(tmp_path: Path) -> None:
    store = make_cold(make_store(tmp_path / "s.tsds"))
    warm(store)
    assert list(evict(store, splits="val").after) == ["val/image", "val/label"]
    evict(store, fields="label")
    shares = {column: found.share for column, found in residency(store).items()}
    assert shares == {"train/image": 1, "train/label": 0, "val/image": 0, "val/label": 0}


@linux
def test_pages_that_are_mapped_and_used_stay(tmp_path: Path) -> None:
    store = make_cold(make_store(tmp_path / "s.tsds"))
    warm(store)
    column = store["train"]["image"]
    first = int(column[0].sum())
    done = evict(store)
    assert 256 * 256 * 3 <= (done.left or 0) < 4_000_000  # the row, and what the system has mapped around it
    assert done.after["val/image"].resident == 0
    assert int(column[0].sum()) == first
    del column, store
    gc.collect()  # a split and its columns know each other
    assert evict(tsds.open(tmp_path / "s.tsds")).left == 0


@linux
def test_values_are_the_same_after(tmp_path: Path) -> None:
    store = make_store(tmp_path / "s.tsds")
    expected = store["val"]["image"].take([5, 7])
    evict(store)
    assert (tsds.open(store.path)["val"]["image"].take([5, 7]) == expected).all()


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
    known, unknown = {"train/image": Residency(9, 9)}, {"train/image": Residency(9, None, "somebody else's")}
    assert Eviction(known, known).dropped == 0
    assert (Eviction(known, unknown).dropped, Eviction(known, unknown).left) == (None, None)
    assert (Eviction(unknown, known).dropped, Eviction(unknown, known).left) == (None, 9)


def test_elsewhere_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.platform", "win32")
    with pytest.raises(ResidencyError, match=r"minimal\.tsds: expected Linux .*, found win32\.$"):
        evict(tsds.open(VALID / "minimal.tsds"))


@linux
def test_what_cannot_be_evicted(tmp_path: Path) -> None:
    store = make_store(tmp_path / "s.tsds")
    with pytest.raises(OptionError, match="there is no field nope"):
        evict(store, fields="nope")
    (store.path / "val/00000/label/c/0").unlink()
    with pytest.raises(FormatError, match="cannot be opened"):
        evict(store)
