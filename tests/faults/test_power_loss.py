"""The power goes after each change that a conversion makes: OUT is absent or whole, and the same command goes on."""

from __future__ import annotations

import hashlib
import os
import shutil
from pathlib import Path

import pytest

import tensorstore_ds
from faults.bench import Bench, Case, Sweep, chosen, differences, snapshot
from faults.cases import EDITS, case_of, replacing
from faults.checkpoints import value_of
from faults.disk import MODELS, Change, Disk, laid_out, lay_out, read_log
from faults.harness import EXTENT, LONGEST, Fault, Server
from faults.replacing import Trials

pytestmark = pytest.mark.timeout(LONGEST)

CONVERSIONS = ("raw-memmap", "raw-zarr", "jpeg-memmap", "voc-jpeg-zarr")
CASES = (*CONVERSIONS, "writer", "tasks", "repack to zarr", "repack to memmap")


def record(bench: Bench, case: Case) -> list[Change]:
    """The changes that an undisturbed command makes."""
    log = bench.folder / "changes.log"
    log.unlink(missing_ok=True)
    folder = bench.fresh()
    result = bench.server.run(case.argv(folder / "out.tsds"), prefix=folder, log=log)
    assert result.outcome == "done", result
    assert not differences(snapshot(folder / "out.tsds"), bench.reference(case))
    return read_log(log, folder)


def key(found: dict[str, bytes | None]) -> bytes:
    return hashlib.sha256(repr(sorted(found.items())).encode()).digest()


@pytest.mark.parametrize("name", CASES)
def test_power_loss(bench: Bench, root: Path, sweep: Sweep, name: str) -> None:
    """Each state of the disk that differs: strict, and the other three models in turn, or all in the full run."""
    sweep.name = f"{name}, power loss"
    case = case_of(name, root)
    reference, changes = bench.reference(case), record(bench, case)
    taken = chosen(sweep, [f"{change.operation} {change.path}" for change in changes])
    disk, seen = Disk(), set[bytes]()
    for number, change in enumerate(changes, 1):
        disk.apply(change)
        if number not in taken:
            continue
        for model in MODELS if EXTENT in ("full", "every") else ("strict", MODELS[1 + number % 3]):
            found = disk.after_power_loss(model)
            if key(found) in seen:
                continue
            seen.add(key(found))
            out = bench.fresh() / "out.tsds"
            lay_out(found, out.parent)
            sweep.trials += 1
            sweep.outcomes["OUT" if os.path.lexists(out) else "OUT.partial" if found else "nothing"] += 1
            wrong = [*bench.again(case, out, sweep)]
            if "out.tsds" in found and (bad := differences(as_found(found), reference)):
                wrong.append(f"OUT is not whole: {bad}")
            sweep.failures += [f"{model}, after {number} {change.operation} {change.path}: {text}" for text in wrong]
    assert sweep.trials
    sweep.check()


def as_found(found: dict[str, bytes | None]) -> dict[str, str]:
    """As `snapshot`."""
    inside = {name.removeprefix("out.tsds/"): data for name, data in found.items() if name.startswith("out.tsds/")}
    return {name: hashlib.sha256(data or b"a folder").hexdigest() for name, data in inside.items()}


@pytest.mark.parametrize("name", ["append", "append to jpeg"])
def test_a_store_that_grows(bench: Bench, root: Path, sweep: Sweep, name: str) -> None:
    """The store is the old one or the new one, and the same command ends the work."""
    sweep.name = f"{name}, power loss"
    case = replacing(name, root)
    trials = Trials(bench, case, Fault())
    log = bench.folder / "changes.log"
    log.unlink(missing_ok=True)
    folder = bench.fresh()
    out = case.lay_out(folder)
    disk = Disk()
    for change in laid_out(folder):
        disk.apply(change)
    roots = [(out / "zarr.json").read_bytes()]
    assert bench.server.run(case.argv(out), prefix=folder, log=log).outcome == "done"
    roots.append((out / "zarr.json").read_bytes())
    changes = read_log(log, folder)
    taken = chosen(sweep, [f"{change.operation} {change.path}" for change in changes])
    for number, change in enumerate(changes, 1):
        disk.apply(change)
        last = change.operation == "rename" and change.other == "out.tsds/zarr.json"  # the step that decides
        if number not in taken and not last:
            continue
        for model in MODELS if last else ("strict", MODELS[1 + number % 3]):
            found = disk.after_power_loss(model)
            out = bench.fresh() / "out.tsds"
            lay_out(found, out.parent)
            sweep.trials += 1
            is_new = roots.index((out / "zarr.json").read_bytes())
            sweep.outcomes["the new store" if is_new else "the old store"] += 1
            wrong = [str(each) for each in tensorstore_ds.verify(out) if each.reason != "unlisted-file"]
            wrong += trials.again(out, sweep)
            sweep.failures += [f"{model}, after {number} {change.operation} {change.path}: {text}" for text in wrong]
    assert len(sweep.outcomes) == 2
    sweep.check()


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("name", [*CASES, *EDITS])
def test_nothing_unsynced_is_renamed(bench: Bench, root: Path, name: str, workers: int) -> None:
    """What becomes a shard, a store or a journal's entry is on disk before it gets its name, and then the name is."""
    changes = record(bench, case_of(name, root, workers))
    disk = Disk()
    renames = []
    for number, change in enumerate(changes):
        if change.operation == "rename" and not change.path.endswith("/raw"):
            assert disk.unsynced(change.path) == []
            renames.append(change.other)
            folder = str(Path(change.other).parent)
            later = [c.path for c in changes[number:] if c.operation == "sync"]
            assert folder in later, f"{folder} is not synced after {change.path} was renamed to {change.other}"
        disk.apply(change)
    assert "out.tsds" in renames


def test_checkpoints(torch_server: Server, root: Path, sweep: Sweep) -> None:
    sweep.name = "checkpoint, power loss"
    folder, log = root / "run", root / "checkpoints.log"
    folder.mkdir()
    path = folder / "last.pt"
    assert torch_server.run(["save", str(path), "1"], prefix=folder, log=log).outcome == "done"
    first = len(read_log(log, folder))
    assert torch_server.run(["save", str(path), "2", "3"], prefix=folder, log=log).outcome == "done"
    changes = read_log(log, folder)
    disk = Disk()
    sweep.operations = len(changes)
    for number, change in enumerate(changes, 1):
        disk.apply(change)
        for model in MODELS:
            found = disk.after_power_loss(model)
            shutil.rmtree(folder)
            folder.mkdir()
            lay_out(found, folder)
            sweep.trials += 1
            sweep.outcomes[" and ".join(sorted(found)) or "nothing"] += 1
            if path.exists():
                assert value_of(path) in (1, 2, 3)
            elif number >= first:
                sweep.failures.append(f"{model}, after {number} {change.operation} {change.path}: no checkpoint")
    sweep.check()


# --- the model of a disk ----------------------------------------------------------------------------------------------


def test_what_survives() -> None:
    disk = Disk()
    for change in (
        Change("mkdir", "d"),
        Change("sync", "."),
        Change("create", "d/a"),
        Change("write", "d/a", data=b"1234"),
        Change("sync", "d/a"),
        Change("write", "d/a", offset=2, data=b"xyzw"),
        Change("rename", "d/a", "b"),
    ):
        disk.apply(change)
    assert disk.unsynced(".") == [".", "./d", "./b"]
    assert disk.after_power_loss("strict") == {"d": None}
    assert disk.after_power_loss("names-empty") == {"d": None, "b": b"1234"}
    assert disk.after_power_loss("names-zeros") == {"d": None, "b": b"1234\0\0"}
    assert disk.after_power_loss("names-half") == {"d": None, "b": b"12x"}
    disk.apply(Change("sync", "."))
    assert disk.after_power_loss("strict") == {"d": None, "b": b"1234"}
    disk.apply(Change("sync", "b"))
    assert disk.after_power_loss("strict") == {"d": None, "b": b"12xyzw"}
    disk.apply(Change("truncate", "b", offset=3))
    disk.apply(Change("unlink", "b"))
    assert disk.after_power_loss("names-half") == {"d": None}
    with pytest.raises(ValueError, match="symlink of s: this model does not know it"):
        disk.apply(Change("symlink", "s"))


def test_a_folder_that_was_moved_has_one_name() -> None:
    disk = Disk()
    made = [Change("mkdir", "a"), Change("mkdir", "a/store"), Change("touch", "a/store/x"), Change("sync", "a/store")]
    for change in (*made, Change("sync", "a"), Change("sync", "."), Change("rename", "a/store", "out")):
        disk.apply(change)
    assert disk.after_power_loss("strict") == {"a": None, "a/store": None, "a/store/x": b""}
    assert disk.after_power_loss("names-half") == {"a": None, "out": None, "out/x": b""}
    disk.apply(Change("sync", "."))
    assert disk.after_power_loss("strict") == {"a": None, "out": None, "out/x": b""}
