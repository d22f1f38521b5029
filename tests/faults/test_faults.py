"""A fault at each operation on files: OUT is absent or whole, and the same command again ends well."""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path

import pytest

import tensorstore_ds
from faults.bench import Bench, Case, Sweep, chosen
from faults.cases import EDITS, EXPORTS, REPLACING, case_of, conversion, replacing
from faults.checkpoints import value_of
from faults.disk import read_log
from faults.harness import EXTENT, FAULTS, LONGEST, Action, Class, Fault, Result, Server
from faults.replacing import Trials

pytestmark = pytest.mark.timeout(LONGEST)

ALL = ("raw-memmap", "raw-zarr", "jpeg-memmap")
CONVERSIONS = (*ALL, "writer", "tasks")
REPACKS, COPIES = ("repack to zarr", "repack to memmap"), ("pull", "pack", "unpack")
READING = "EIO when reading"


def commands(cases: Iterable[str], *faults: str) -> list[object]:
    """Parameters of sweeps: case and fault."""
    return [pytest.param(case, fault, id=f"{case}, {fault}") for fault in faults for case in cases]


def swept(bench: Bench, sweep: Sweep, case: Case, fault: Fault, *, prefix: Path | None = None) -> None:
    """Trials with a fault at the operations that are chosen of those below a folder, which is OUT's if not given."""
    for operation in chosen(sweep, bench.operations(case, fault, prefix)):
        bench.trial(case, fault, operation, sweep, prefix)
    assert sweep.trials
    sweep.check()


@pytest.mark.parametrize(
    ("name", "fault"),
    [
        *commands((*ALL, "writer", "tasks", *REPACKS, *COPIES, "copy"), "SIGKILL", "EIO", "half a write, SIGKILL"),
        *commands((*ALL, "writer", "tasks", *REPACKS, *COPIES), "ENOSPC from there on"),
        *commands(ALL, "EIO from there on", "SIGINT", "SIGTERM"),
        *commands((*REPACKS, *COPIES), READING),
    ],
)
def test_changes(bench: Bench, root: Path, sweep: Sweep, name: str, fault: str) -> None:
    swept(bench, sweep, case_of(name, root), FAULTS[fault])
    if name in CONVERSIONS and FAULTS[fault].action is not Action.FAIL_FROM:  # a full disk lets names be removed
        assert not any("not met" in outcome for outcome in sweep.outcomes)


@pytest.mark.parametrize("fault", ["SIGKILL", "SIGKILL of one process", "EIO", "ENOSPC from there on", "SIGTERM"])
@pytest.mark.parametrize("name", ALL)
def test_changes_with_two_workers(bench: Bench, root: Path, sweep: Sweep, name: str, fault: str) -> None:
    sweep.name = f"{name}, {fault}, 2 workers"
    swept(bench, sweep, conversion(name, root, 2), FAULTS[fault])


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("name", ALL)
def test_every_write_takes_half(bench: Bench, root: Path, sweep: Sweep, name: str, workers: int) -> None:
    sweep.name = f"{name}, every write takes half, {workers} workers"
    bench.trial(conversion(name, root, workers), FAULTS["short writes"], 0, sweep)
    sweep.check()
    assert sweep.outcomes == {"done": 1}


@pytest.mark.parametrize("looked", [False, True], ids=["reads", "looks"])
@pytest.mark.parametrize("name", ALL)
def test_reading_what_was_written(bench: Bench, root: Path, sweep: Sweep, name: str, looked: bool) -> None:
    """Opens, reads and maps; and, of stat and listings, which are many, some."""
    sweep.name = f"{name}, EIO at stat and listing in OUT.partial" if looked else f"{name}, EIO at reads in OUT.partial"
    fault = dataclasses.replace(FAULTS[READING], counted=Class.LOOK if looked else Class.READ)
    swept(bench, sweep, conversion(name, root, 0), fault)


@pytest.mark.parametrize("errno", ["EIO", "EMFILE", "ENOMEM"])
@pytest.mark.parametrize(("name", "workers"), [("raw-memmap", 0), ("raw-memmap", 2), ("voc-jpeg-zarr", 0)])
def test_reading_the_source(bench: Bench, root: Path, sweep: Sweep, name: str, workers: int, errno: str) -> None:
    """A machine that fails is never the sample's fault: nothing is skipped because of it."""
    sweep.name = f"{name}, {errno} in the source, {workers} workers"
    case = conversion(name, root, workers)
    swept(bench, sweep, case, FAULTS[f"{errno} when reading"], prefix=case.source)
    assert sweep.outcomes["refused"] or EXTENT == "quick"  # it can do without some of these files


@pytest.mark.parametrize("filled", [False, True], ids=["empty", "filled"])
@pytest.mark.parametrize("errno", ["EIO", "ESTALE"])
def test_a_cache_that_fails(bench: Bench, root: Path, sweep: Sweep, errno: str, filled: bool) -> None:
    """Reads of what is kept of a store by URL: one line or the right images, and the next reader gets them all."""
    sweep.name = f"store by URL, {errno} in a cache that is {'filled' if filled else 'empty'}"
    store, fault = root / "raw-zarr.tsds", FAULTS[f"{errno} when reading"]

    def read(cache: Path, fault: Fault | None = None, at: int = 0) -> Result:
        return bench.server.run(["read", url, str(cache), str(store)], fault, at, cache)

    def fresh() -> Path:
        cache = bench.fresh() / "cache"
        if filled:
            assert read(cache).outcome == "done"
        return cache

    with tensorstore_ds.serve(store) as url:
        bench.server.warm(["read", url, str(root / "cache-warm"), str(store)])
        cache = fresh()
        operations = bench.server.operations(["read", url, str(cache), str(store)], fault, cache)
        for at in chosen(sweep, operations):
            cache = fresh()
            result = read(cache, fault, at)
            sweep.trials += 1
            sweep.outcomes[result.outcome] += 1
            if result.outcome not in ("done", "refused") or "WRONG DATA" in result.text:
                sweep.failures.append(f"operation {at}, {result.what}: {result.outcome}: {result.last_line}")
            if (again := read(cache)).outcome != "done":
                sweep.failures.append(f"operation {at}, {result.what}, again: {again.last_line}")
    sweep.check()


CHANGING = ("SIGKILL", "EIO", "ENOSPC from there on", "half a write, SIGKILL", "SIGINT", "SIGTERM")


@pytest.mark.parametrize("fault", CHANGING)
@pytest.mark.parametrize("name", [*EDITS, *(f"export to {name}" for name in EXPORTS)])
def test_edits_and_exports(bench: Bench, root: Path, sweep: Sweep, name: str, fault: str) -> None:
    sweep.name = f"{name}, {fault}"
    swept(bench, sweep, case_of(name, root), FAULTS[fault])


@pytest.mark.parametrize("errno", ["EIO", "ESTALE"])
@pytest.mark.parametrize("names", [EDITS, [f"export to {name}" for name in EXPORTS]], ids=["edits", "exports"])
def test_reading_a_store(bench: Bench, root: Path, sweep: Sweep, names: Sequence[str], errno: str) -> None:
    """A failing disk, or network drive, under the store that is read: one line, and no half of a result."""
    sweep.name = f"{'edits' if names is EDITS else 'exports'}, {errno} in the store that is read"
    for name in names:
        case = case_of(name, root)
        swept(bench, sweep, case, FAULTS[f"{errno} when reading"], prefix=case.source)
    assert sweep.outcomes["refused"] or EXTENT == "quick"  # it can do without some of these files


@pytest.mark.parametrize("name", REPACKS)
def test_repack_reading_the_store(bench: Bench, root: Path, sweep: Sweep, name: str) -> None:
    sweep.name = f"{name}, EIO in the store that is read"
    case = case_of(name, root)
    swept(bench, sweep, case, FAULTS[READING], prefix=case.source)
    assert sweep.outcomes["refused"] or EXTENT == "quick"  # it can do without some of these files


@pytest.mark.parametrize("fault", [*CHANGING, "EIO from there on", "EIO when reading"])
@pytest.mark.parametrize("name", REPLACING)
def test_what_is_there_already(bench: Bench, root: Path, sweep: Sweep, name: str, fault: str) -> None:
    sweep.name = f"{name}, {fault}"
    trials = Trials(bench, replacing(name, root), FAULTS[fault])
    for at in chosen(sweep, trials.operations):
        trials.trial(at, sweep)
    sweep.check()


# --- the shim itself --------------------------------------------------------------------------------------------------


def test_the_shim_sees_what_python_does_to_files(bench: Bench, root: Path) -> None:
    """What is not seen cannot fail: `every_call`, and what must be noted and counted of it."""
    log, folder = root / "calls.log", bench.fresh()
    counted = {}
    for kind in (Class.DATA, Class.CREATE, Class.SYNC, Class.NAME, Class.READ, Class.LOOK, Class.LOCK):
        log.unlink(missing_ok=True)
        folder = bench.fresh()
        result = bench.server.run(["calls", str(folder)], Fault(counted=kind), prefix=folder, log=log)
        assert result.outcome == "done", result
        counted[kind.name] = result.count
    assert [f"{c.operation} {c.path} {c.other}" for c in read_log(log, folder)] == [
        *("create a .", "write a .", "write a .", "sync a .", "sync a .", "truncate a .", "truncate a .", "extend a ."),
        *("write a .", "write a .", "create b .", "write b .", "write b .", "touch c ."),
        *("mkdir d .", "touch d/e .", "write d/e .", "rename d/e d/f", "link d/f d/g", "mkdir d/h .", "rmdir d/h ."),
        *("unlink d/g .", "rename d/f i", "unlink i .", "rename d j", "sync j .", "rmdir j .", "symlink k ."),
    ]
    reads, looks = counted.pop("READ"), counted.pop("LOOK")
    assert counted == {"DATA": 7, "CREATE": 11, "SYNC": 3, "NAME": 13, "LOCK": 1}
    assert (reads, looks) >= (5, 7)  # an fstat more or less is up to the version of Python


@pytest.mark.parametrize(
    ("action", "code", "text"),
    [
        (Action.FAIL_ONCE, 99, "OSError: [Errno 5] Input/output error"),
        (Action.KILL_ALL, -9, ""),
        (Action.TEAR, -9, ""),
    ],
)
def test_the_shim_does_what_it_is_told(bench: Bench, action: Action, code: int, text: str) -> None:
    folder = bench.fresh()
    result = bench.server.run(["calls", str(folder)], Fault(action, Class.DATA, error=5), 1, folder)
    assert (result.code, result.fired, result.what) == (code, 1, "write ./a")
    assert text in result.text
    assert (folder / "a").read_bytes() == (b"01234" if action is Action.TEAR else b"")


# --- checkpoints ------------------------------------------------------------------------------------------------------

CHECKPOINT_FAULTS = [name for name in FAULTS if not name.endswith(("one process", "when reading", "INT", "TERM"))]


@pytest.mark.parametrize("fault", CHECKPOINT_FAULTS, ids=lambda name: f"checkpoint, {name}")
def test_checkpoints(torch_server: Server, root: Path, sweep: Sweep, fault: str) -> None:
    """A checkpoint of ones stands where one of twos is to be written: afterwards there is one of the two, whole."""
    folder = root / "checkpoints"
    path = folder / "last.pt"
    kind = FAULTS[fault]
    sweep.operations = save(torch_server, path, dataclasses.replace(kind, action=Action.PASS), 0).count
    for at in range(1, sweep.operations + 1) if kind.action is not Action.SHORT else [0]:
        result = save(torch_server, path, kind, at)
        sweep.trials += 1
        sweep.outcomes[result.outcome] += 1
        left = sorted(item.name for item in folder.iterdir() if item != path)
        found = value_of(path)
        wrong = []
        if result.outcome not in ("done", "refused", "killed"):
            wrong.append(f"{result.outcome}: {result.last_line}")
        if result.outcome == "done" and (found != 2 or left):
            wrong.append(f"success was told, found {found} and {left}")
        if result.outcome == "refused" and left and kind.action is Action.FAIL_ONCE:
            wrong.append(f"left beside it: {left}")
        if result.outcome == "refused" and found == 2 and not result.what.startswith("fsync ."):
            wrong.append("failure was told, but the new one is there")
        again = torch_server.run(["save", str(path), "3"])
        left = sorted(item.name for item in folder.iterdir() if item != path)
        if again.outcome != "done" or value_of(path) != 3 or left:
            wrong.append(f"again: {again.outcome}, {again.last_line}, left: {left}")
        sweep.failures += [f"operation {at}, {result.what}: {text}" for text in wrong]
    assert sweep.outcomes
    sweep.check()


def save(server: Server, path: Path, fault: Fault, at: int) -> Result:
    """Write a checkpoint of twos over one of ones, with a fault."""
    shutil.rmtree(path.parent, ignore_errors=True)
    path.parent.mkdir()
    assert server.run(["save", str(path), "1"]).outcome == "done"
    return server.run(["save", str(path), "2"], fault, at, path.parent)
