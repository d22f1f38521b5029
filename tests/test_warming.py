from __future__ import annotations

import io
import os
import subprocess
import sys
import threading
import weakref
from pathlib import Path
from typing import Any

import pytest

import tensorstore_ds as tsds
from cold_stores import linux, make_cold, make_store
from tensorstore_ds.errors import FormatError, OptionError
from tensorstore_ds.page_cache import warming as module
from tensorstore_ds.page_cache.residency import residency, total_residency
from tensorstore_ds.page_cache.warming import warm, warm_in_background

pytestmark = pytest.mark.slow

MIB = 2**20


@pytest.fixture
def small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PIECE_NBYTES", MIB)
    monkeypatch.setattr(module, "_STEP_NBYTES", MIB // 16)


def shares(store: tsds.Store) -> dict[str, float | None]:
    return {column: found.share for column, found in residency(store).items()}


def warming_threads() -> list[str]:
    return [t.name for t in threading.enumerate() if t.name.startswith("tsds-warm")]


# --- what is read -----------------------------------------------------------------------------------------------


@linux
@pytest.mark.parametrize("threads", [1, 3])
def test_all_is_in_memory_afterwards(cold: tsds.Store, threads: int) -> None:
    assert set(shares(cold).values()) == {0.0}
    total = total_residency(residency(cold)).nbytes
    assert warm(cold, threads=threads) == total
    for _ in range(3):  # a kernel may take single pages back at any time
        again = warm(cold, threads=threads)
        if again == 0:
            break
    assert again == 0 and set(shares(cold).values()) == {1.0}
    assert warming_threads() == []


@linux
def test_pieces_that_are_there_are_skipped(cold: tsds.Store, small_steps: None) -> None:
    image = cold.path / "train/00000/image/c/0/0/0/0"
    with image.open("rb") as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_RANDOM)  # no read-ahead
        file.read(4 * MIB)
    assert warm(cold, splits="train", fields="image") == image.stat().st_size - 4 * MIB
    assert shares(cold)["train/image"] == 1.0


IMAGES = {"train/image": 0, "val/image": 1, "train/label": 0, "val/label": 0}
LABELS = {"train/image": 0, "val/image": 0, "train/label": 1, "val/label": 1}


@linux
@pytest.mark.parametrize(
    ("options", "columns", "expected"),
    [
        ({"splits": "val", "fields": "image"}, ["val/image"], IMAGES),
        ({}, ["train/label", "val/label"], LABELS),  # small columns come first
        ({"splits": ["val", "train"], "fields": "image"}, ["val/image"], IMAGES),  # in the order of the splits
    ],
)
def test_a_budget_takes_these_columns(
    cold: tsds.Store, options: dict[str, Any], columns: list[str], expected: dict[str, float]
) -> None:
    budget = sum(residency(cold)[column].nbytes for column in columns)
    assert warm(cold, budget=budget, **options) == budget
    assert shares(cold) == expected


@linux
def test_a_budget_is_kept(cold: tsds.Store) -> None:
    assert warm(cold, budget=9 * MIB, threads=1) == 9 * MIB
    found = residency(cold)
    assert found["train/label"].share == found["val/label"].share == 1
    assert found["val/image"].share == 0
    assert 9 * MIB - 2000 <= (total_residency(found).resident or 0) <= 9 * MIB + 8192  # whole pages
    assert warm(cold, budget=9 * MIB) == 0  # a budget is what is in memory, not what is read


@linux
def test_without_a_budget_memory_is_the_limit(cold: tsds.Store, monkeypatch: pytest.MonkeyPatch) -> None:
    limits = {"machine": 10**12, "/group": 3 * MIB}
    monkeypatch.setattr("tensorstore_ds.page_cache.residency.memory_limits", lambda: limits)
    assert warm(cold) == 3 * MIB


def test_no_budget_is_nothing_to_do(large_store: tsds.Store) -> None:
    assert warm(large_store, budget=0) == 0
    assert warm(large_store, splits=[]) == 0


def test_elsewhere_all_is_read(large_store: tsds.Store, monkeypatch: pytest.MonkeyPatch) -> None:
    total = total_residency(residency(large_store)).nbytes
    monkeypatch.setattr("sys.platform", "darwin")
    monkeypatch.delattr("os.posix_fadvise", raising=False)
    assert warm(large_store, budget=10**9) == total


@linux
def test_what_the_system_does_not_tell_is_read(large_store: tsds.Store, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> int:
        raise PermissionError

    total = total_residency(residency(large_store)).nbytes
    monkeypatch.setattr(module, "resident_nbytes", refuse)
    assert warm(large_store) == total


# --- progress ---------------------------------------------------------------------------------------------------


@linux
@pytest.mark.parametrize("threads", [1, 4])
def test_progress_only_grows_and_ends_with_all(cold: tsds.Store, threads: int, small_steps: None) -> None:
    for _ in ("cold", "warm"):
        events: list[tuple[int, int]] = []
        warm(cold, threads=threads, progress=lambda *event: events.append(event))  # noqa: B023
        total = total_residency(residency(cold)).nbytes
        assert {event[1] for event in events} == {total}
        done = [event[0] for event in events]
        assert done == sorted(set(done))
        assert done[-1] == total
        assert len(done) > 10


# --- the background ---------------------------------------------------------------------------------------------


class Gate:
    """Progress that lets nobody pass quickly: without a stop, the 250 steps of the store would take 12 seconds."""

    def __init__(self) -> None:
        self.reached = threading.Event()
        self.calls = 0
        self._closed = threading.Event()

    def __call__(self, done: int, total: int) -> None:
        self.calls += 1
        self.reached.set()
        self._closed.wait(0.05)


def test_stop_in_the_middle(large_store: tsds.Store, small_steps: None) -> None:
    gate = Gate()
    warming = warm_in_background(large_store, progress=gate, threads=2)
    assert gate.reached.wait(30)
    assert not warming.done and warming.wait(0) is False
    warming.stop()
    assert warming.done and warming.wait()
    assert 0 < warming.nbytes_done < warming.nbytes
    assert warming.error is None
    assert warming_threads() == []
    assert gate.calls <= 3


def test_leaving_the_block_stops(large_store: tsds.Store, small_steps: None) -> None:
    gate = Gate()
    with pytest.raises(ZeroDivisionError), warm_in_background(large_store, progress=gate) as warming:
        gate.reached.wait(30)
        raise ZeroDivisionError
    assert warming.nbytes_done < warming.nbytes
    assert warming_threads() == []


def test_progress_may_stop_it_within_a_piece(large_store: tsds.Store, monkeypatch: pytest.MonkeyPatch) -> None:
    reads: list[int] = []

    class CountedFile(io.BufferedReader):
        def readinto(self, buffer: Any) -> int:
            reads.append(len(buffer))
            return super().readinto(buffer)

    monkeypatch.setattr(module, "resident_nbytes", lambda *_: 0)
    monkeypatch.setattr(tsds.Store, "open_file", lambda store, name: CountedFile(io.FileIO(store.path / name)))
    known = threading.Event()

    def stop(done: int, total: int) -> None:
        known.wait(30)
        warming.stop()

    warming = warm_in_background(large_store, fields="image", progress=stop)
    known.set()
    assert warming.wait()
    assert reads in ([MIB], [MIB, MIB])  # one of each thread
    assert warming_threads() == []


def fail(done: int, total: int) -> None:
    raise LookupError("from a thread")


def test_an_error_is_raised_by_wait_and_once(large_store: tsds.Store) -> None:
    with warm_in_background(large_store, progress=fail) as warming, pytest.raises(LookupError, match="from a thread"):
        warming.wait()
    assert isinstance(warming.error, LookupError)
    assert warming.nbytes_read < warming.nbytes
    assert warming_threads() == []


@pytest.mark.parametrize(("of_block", "error"), [(False, LookupError), (True, ZeroDivisionError)])
def test_an_error_is_raised_at_the_end_of_the_block(
    large_store: tsds.Store, of_block: bool, error: type[Exception]
) -> None:
    failed = threading.Event()

    def fail_later(done: int, total: int) -> None:
        failed.set()
        raise LookupError("from a thread")

    with pytest.raises(error), warm_in_background(large_store, progress=fail_later):
        assert failed.wait(30)
        if of_block:
            raise ZeroDivisionError  # it goes first
    assert warming_threads() == []


def test_ctrl_c_while_waiting(large_store: tsds.Store, monkeypatch: pytest.MonkeyPatch, small_steps: None) -> None:
    def interrupt(self: module.Warming, timeout: float | None = None) -> bool:
        raise KeyboardInterrupt

    monkeypatch.setattr(module.Warming, "wait", interrupt)
    with pytest.raises(KeyboardInterrupt):
        warm(large_store, progress=Gate())
    assert warming_threads() == []


@pytest.mark.parametrize("cold", [True, False])
def test_a_file_that_has_become_shorter(cold: bool, disk_path: Path) -> None:
    store = make_store(disk_path / "s.tsds")
    if cold:
        make_cold(store)
    image = store.path / "val/00000/image/c/0/0/0/0"
    size = image.stat().st_size
    os.truncate(image, size - 100)
    with pytest.raises(FormatError, match=f"image/c/0/0/0/0: expected {size} bytes or more, found {size - 100}"):
        warm(store, budget=10**9)
    image.unlink()
    with pytest.raises(FormatError, match="cannot be opened"):
        warm(store, budget=10**9)


def test_wrong_arguments(large_store: tsds.Store) -> None:
    for wrong in ({"budget": -1}, {"threads": 0}, {"splits": "nope"}, {"fields": ["label", "nope"]}):
        with pytest.raises(OptionError):
            warm_in_background(large_store, **wrong)  # type: ignore[arg-type]
    assert warming_threads() == []


def test_what_has_ended_is_let_go(cold: tsds.Store) -> None:
    with warm_in_background(cold) as warming:
        assert warming.wait() and warming.done and warming.error is None
    assert warming.nbytes == warming.nbytes_done == total_residency(residency(cold)).nbytes
    warming.stop()  # once more does no harm
    warming = warm_in_background(cold, fields="label")  # nobody has to wait for it
    alive = weakref.ref(warming)
    for thread in warming._threads:
        thread.join()
    del warming, thread
    assert alive() is None


def test_the_interpreter_ends_without_reading_the_rest(large_store: tsds.Store) -> None:
    program = f"""
import atexit, threading
import tensorstore_ds as tsds
from tensorstore_ds.page_cache import warming
warming.PIECE_NBYTES, warming._STEP_NBYTES = 2**20, 2**16
reached, closed = threading.Event(), threading.Event()

def progress(done, total):
    reached.set()
    closed.wait(0.05)

@atexit.register  # called after what is registered later
def tell():
    print(handle.done, 0 < handle.nbytes_done < handle.nbytes)

handle = warming.warm_in_background(tsds.open({str(large_store.path)!r}), progress=progress)
reached.wait()
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert (done.stdout, done.stderr) == ("True True\n", "")
