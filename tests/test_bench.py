"""A comparison as a whole: real processes, one of which is killed, and a user who stops it."""

from __future__ import annotations

import itertools
import json
import os
import signal
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tensorstore_ds as tsds
from global_state import global_state
from stores import class_folders
from tensorstore_ds.annex.measuring import bench as comparisons
from tensorstore_ds.annex.measuring.bench import RUNNER, BenchProgress, bench, reason_against
from tensorstore_ds.annex.measuring.bench_options import BenchOptions, middle
from tensorstore_ds.annex.measuring.bench_results import Cell, Comparison, Way, make_cell, ways_of, with_ratios
from tensorstore_ds.annex.measuring.lane import Lane
from tensorstore_ds.annex.measuring.system import own_nbytes, shared_nbytes, tree, tree_nbytes


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bench")
    tsds.convert(class_folders(folder / "raw", per_class=9), folder / "s.tsds", tsds.ConvertOptions(workers=0))
    return folder / "s.tsds"


def answer(seconds: float, samples: int = 20, **more: Any) -> dict[str, Any]:
    return {"state": "ok", "seconds": seconds, "samples": samples, "memory": None, "before": None, **more}


def test_a_first_epoch_is_cold_if_a_page_of_the_files_stays(tmp_path: Path) -> None:
    """Encoded images count: labels alone are 144 bytes here."""
    class_folders(tmp_path / "raw", per_class=9)
    path = tsds.convert(tmp_path / "raw", tmp_path / "s.tsds", encoding="jpeg", workers=0).path
    run = comparisons._Run(tsds.open(path), BenchOptions(), lambda event: None)
    run.fields = {"image": "image", "label": "label"}
    assert run._nbytes > sum(len(file) for file in run.split["image"])


# --- a real one ----------------------------------------------------------------------------------------------------


def running() -> list[int]:
    return list(tree(os.getpid()))[1:]


@pytest.mark.slow
@pytest.mark.drawn(2, of="races")
def test_a_process_that_is_killed_costs_its_row_and_ctrl_c_keeps_what_was_measured(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(comparisons, "ROUNDS", 1)
    before, seen = set(running()), []
    state = global_state()

    def interfere(event: BenchProgress) -> None:
        seen.append(event)
        if event.doing == "loading, batch 5, TensorDataset":
            victim = next(pid for pid in running() if b'"tensors"' in Path(f"/proc/{pid}/cmdline").read_bytes())
            os.kill(victim, signal.SIGKILL)
        if event.doing == "training, batch 5, store, tensorstore-ds":
            raise KeyboardInterrupt

    options = BenchOptions(ways=("tensors", "store"), batch_sizes=(5, 1000), seconds=0.05, device="cpu")
    found = bench(store, options, progress=interfere)
    assert set(running()) == before
    assert global_state() == state
    assert found.interrupted and found.batch_sizes == (5, 18) and found.took > 0
    assert found.notes == ["fields that are loaded: image, label"]
    tensors, whole, ours = (found.cell(way.name, "load", 18) for way in found.ways)
    assert tensors is not None and whole is not None and ours is not None
    assert tensors.seconds is None and tensors.reason == "its process was ended by SIGKILL: out of memory?"
    assert whole.seconds and whole.ratio == 1 and ours.seconds and ours.ratio
    assert [way.correct for way in found.ways] == [True, True, True]
    stopped = found.cell("store", "train", 5)
    assert stopped is not None and stopped.reason == "stopped before it was measured"
    trained = found.cell("tensors-whole", "train", 5)
    assert trained is not None and trained.seconds and trained.memory
    assert seen[0].done == 0 and all(a.done <= b.done <= b.total for a, b in itertools.pairwise(seen))


# --- its parts -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"batch_sizes": ()}, "`batch_sizes`: expected 1 or more, found none."),
        ({"batch_sizes": (100, 0)}, "`batch_sizes`: expected 1 or more, found 0."),
        (
            {"ways": ("fast",)},
            "`ways`: expected one of files, tensors, plain, store, device, found fast.",
        ),
        ({"ways": ()}, "`ways`: expected one of files, tensors, plain, store, device, found none."),
        ({"seconds": 0.0}, "`seconds`: expected a positive number, found 0.0."),
        ({"memory": -1}, "`memory`: expected 0 or more, found -1."),
        ({"seed": -1}, "`seed`: expected 0 to 9,223,372,036,854,775,807, found -1."),
        ({"raw": Path("/nowhere")}, "`raw`: expected a folder, found /nowhere."),
    ],
)
def test_options_out_of_their_range(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(tsds.OptionError) as error:
        BenchOptions(**changes)
    assert str(error.value) == message


def test_sizes_times_and_workers_follow_from_the_data_and_the_cores() -> None:
    assert BenchOptions().sizes(60_000) == (100, 300, 500, 1000, 3000, 5000, 10000)
    assert BenchOptions(batch_sizes=(7, 300, 100)).sizes(205) == (7, 100, 205)
    assert BenchOptions().sizes(3) == (3,)
    assert middle((100, 300)) == 300 and middle((2000, 3000)) == 2000
    assert BenchOptions().time_for(1797) < BenchOptions().time_for(60_000) and BenchOptions(seconds=9).time_for(5) == 9
    assert [[way.workers for way in ways_of(("files",), n)] for n in (16, 2, 1)] == [[0, 8, 16], [0, 1, 2], [0, 1]]
    names = [way.name for way in ways_of(("device", "store", "plain", "tensors", "files"), 16)]
    assert len(set(names)) == len(names) == 9


@pytest.mark.slow
def test_what_cannot_be_compared_is_refused(store: Path, tmp_path: Path) -> None:
    with pytest.raises(tsds.OptionError, match=r"`split`: expected one of \w+, \w+, found val"):
        bench(store, BenchOptions(split="val"))
    with pytest.raises(tsds.FormatError):
        bench(tmp_path)
    with pytest.raises(tsds.OptionError, match="`device`: expected one that this machine has, found nonsense"):
        bench(store, BenchOptions(ways=("store",), device="nonsense"))


def test_a_cell_is_the_median_of_its_rounds_and_ratios_are_to_the_first_row_that_was_measured() -> None:
    answers = [answer(9.0, memory=5, device_memory=7), answer(2.0, samples=40, memory=9), answer(4.0)]
    found = make_cell("a", "load", 5, answers, samples=20)
    assert (found.seconds, found.spread, found.rate) == (4, (1, 9), 5)
    assert (found.memory, found.device_memory) == (9, 7)
    cell = make_cell("a", "load", 5, [answer(1.0), {"state": "failed", "reason": "it broke"}], samples=20)
    assert cell.seconds is None and cell.reason == "it broke"
    cells = [Cell("a", "load", 5), Cell("b", "load", 5, rate=10.0), Cell("c", "load", 5, rate=25.0)]
    cells += [Cell("a", "train", 5, rate=4.0), Cell("c", "train", 5, rate=2.0), Cell("c", "load", 9, rate=7.0)]
    assert [cell.ratio for cell in with_ratios(cells)] == [None, 1, 2.5, 1, 0.5, 1]


def test_a_batch_that_would_take_too_long_or_too_much_is_not_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    before = answer(2.0, 20_000, memory=300_000_000, before=100_000_000)
    assert reason_against(10_000, 10_000, 1.0, before) == ""
    monkeypatch.setattr("tensorstore_ds.annex.measuring.bench.memory_limit", lambda: 10**10)
    known = {**before, "size": 100}
    assert reason_against(3000, 9000, 1.0, known) == ""
    late = "a batch takes about 0 s; a larger value of `seconds` measures it"
    assert reason_against(3000, 11_000, 1.0, known) == late
    assert reason_against(6000, 6000, 1.0, known) == "it needs about 12.0 GB of memory more, 10.0 GB are left"


# --- processes -----------------------------------------------------------------------------------------------------


@pytest.mark.skipif(not Path("/proc/self/smaps_rollup").exists(), reason="memory is read from /proc")
@pytest.mark.quiet  # what other tests leave in this process changes meanwhile
def test_memory_that_a_forked_process_shares_counts_once() -> None:
    ballast = bytearray(b"\1") * 200_000_000
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.read(read, 1)
        os._exit(0)
    try:
        alone = own_nbytes(os.getpid())
        shared = shared_nbytes(os.getpid())
        assert alone is not None and shared is not None and len(ballast) <= alone
        assert shared == pytest.approx(own_nbytes(child), rel=0.2)
        twice, once = tree_nbytes(os.getpid()), tree_nbytes(os.getpid(), shared)
        assert twice is not None and once is not None
        assert twice > 1.8 * len(ballast) and once < alone + 0.4 * len(ballast)
    finally:
        os.write(write, b"x")
        os.waitpid(child, 0)
    assert own_nbytes(child) is None and tree_nbytes(child) is None


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/smaps_rollup").exists(), reason="memory is read from /proc")
def test_what_workers_share_counts_once_however_short_an_epoch_is(store: Path, tmp_path: Path) -> None:
    way = {"name": "plain-1", "title": "", "group": "plain", "workers": 1}
    assignment = {"store": str(store), "split": "train", "raw": None, "scratch": str(tmp_path), "device": "cpu"}
    np.save(tmp_path / "marks.npy", np.zeros(0, np.uint64))
    with Lane("plain-1", RUNNER, {**assignment, "memory": None, "seed": 0, "way": way}, tmp_path) as one:
        one.begin(120)
        details = {"seconds": 5.0, "marks": str(tmp_path / "marks.npy"), "pixels": False}
        assert one.ask("verify", 60, weigh=True, batch_size=9, **details)["samples"] == 18
        memory = one.ask("load", 60, batch_size=9, seconds=0.05)["memory"]
        assert memory < 1.5 * one.ready["memory"]  # of Python and torch, which the worker has as well


@pytest.mark.slow
def test_a_lane_that_does_not_answer_is_ended_with_its_workers(store: Path, tmp_path: Path) -> None:
    before = set(running())  # such as a server of forks that another test has started
    way = {"name": "plain-1", "title": "", "group": "plain", "workers": 1}
    assignment = {"store": str(store), "split": "train", "raw": None, "scratch": str(tmp_path), "device": "cpu"}
    with Lane("plain-1", RUNNER, {**assignment, "memory": None, "seed": 0, "way": way}, tmp_path) as one:
        one.begin(120)
        assert one.ready["device"] == "cpu" and one.ready["memory"] > 0
        assert one.ask("load", 60, batch_size=5, seconds=0.05)["state"] == "ok"
        started = [pid for pid in running() if pid not in before]
        assert len(started) >= 2  # it and its worker, which stays
        os.kill(started[0], signal.SIGSTOP)
        assert one.ask("load", 0.1, batch_size=5, seconds=0.05) == {"state": "failed", "reason": "no answer in 0 s"}
        assert one.ask("load", 60, batch_size=5, seconds=0.05)["reason"] == "no answer in 0 s"
    deadline = time.monotonic() + 20  # orphans are seen off by the system
    while any(Path(f"/proc/{pid}").exists() and own_nbytes(pid) for pid in started):
        assert time.monotonic() < deadline
        time.sleep(0.05)


# --- what is made of it --------------------------------------------------------------------------------------------


def cell(way: str, phase: Any, size: int, seconds: float) -> Cell:
    return Cell(way, phase, size, seconds, (seconds, seconds), 1000 / seconds, None, 5 * 10**8)


MEASURED = [
    *(cell("files-0", "load", size, 6 - size / 100) for size in (100, 300)),
    *(cell("tensors", "load", size, 0.5) for size in (100, 300)),
    *(cell("store", "load", size, size / 1e4) for size in (100, 300)),
    *(cell("store", "train", size, 1.0) for size in (100, 300)),
]


def made(cells: list[Cell], *wrong: str) -> Comparison:
    """A comparison in which some ways deliver something else than the store has."""
    ways = [Way("files-0", "files, 0 workers", "files", reader="ImageFolder")]
    ways += [Way("tensors", "TensorDataset", "tensors"), Way("store", "ours", "store", ours=True)]
    ways += [Way("device", "ours on the GPU", "device", ours=True)]
    ways = [replace(way, correct=way.name not in wrong) for way in ways]
    facts: dict[str, Any] = dict.fromkeys(("split", "device", "machine", "interrupted", "shape", "baseline", "took"))
    return Comparison("s.tsds", samples=1000, batch_sizes=(100, 300), seconds=1.0, ways=ways, cells=cells, **facts)


def test_the_advantage_is_over_the_best_way_of_a_group_that_delivers_what_is_stored(tmp_path: Path) -> None:
    found = made(MEASURED)
    assert found.advantage("load", "files") == pytest.approx((3 / 0.03, 5 / 0.01))
    assert found.advantage("load", "tensors") == pytest.approx((0.5 / 0.03, 0.5 / 0.01))
    assert found.advantage("train", "files") is None
    more = [*MEASURED, cell("device", "load", 100, 1e-6)]
    assert made(more, "device").advantage("load", "files") == found.advantage("load", "files")
    assert made(more, "tensors").advantage("load", "tensors") is None
    assert found.write(tmp_path / "new" / "folder") == tmp_path / "new" / "folder" / "bench.json"
    data = json.loads((tmp_path / "new" / "folder" / "bench.json").read_text())
    assert data == found.as_data() and len(data["cells"]) == 8
