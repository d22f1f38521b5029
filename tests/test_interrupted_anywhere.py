"""Ctrl-C at the lines of what makes a store, a file or an export: nothing half done is left.

The signal is a real one, which waits where signals are kept waiting. Each run is of a few rows, in one process.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import tensorstore_ds as tsds

pytestmark = pytest.mark.skipif(os.name != "posix", reason="signals of POSIX")

#: Makes what CALL makes, again and again, each time in a new folder and interrupted at another line of the modules
#: WATCHED, the first and the second time that this line runs; prints what was left and where the interrupt came, and at
#: last how many interrupts there can be.
SWEEP = """
import dis, os, signal, sys, tempfile
from collections import Counter
from pathlib import Path
import tensorstore_ds as tsds

store, more, packed, new = map(Path, sys.argv[1:5])
WATCHED = tuple(os.path.join(os.path.dirname(tsds.__file__), name) for name in {watched!r})
#: Where a block is entered or left Python looks for signals only in what it calls then.
OF_BLOCKS = (dis.opmap["LOAD_CONST"], dis.opmap["NOP"])

def left(folder):
    return sorted(path.name for path in folder.iterdir())

def run(at):
    seen, place = [], ""
    def trace(frame, event, argument):
        nonlocal place
        code = frame.f_code
        if not code.co_filename.startswith(WATCHED):
            return None
        if event == "line" and code.co_code[frame.f_lasti] not in OF_BLOCKS:
            seen.append(code.co_filename.rpartition("/")[2] + ":" + str(frame.f_lineno))
            if len(seen) == at:
                sys.settrace(None)
                place = seen[-1]
                signal.raise_signal(signal.SIGINT)
        return trace
    with tempfile.TemporaryDirectory(dir=new) as folder:
        out = Path(folder, "out")
        {prepare}
        before = left(Path(folder))
        sys.settrace(trace)
        try:
            {call}
        except KeyboardInterrupt:
            pass
        finally:
            sys.settrace(None)
        after = left(Path(folder))
        if list(Path(folder).glob("**/journal/*.json")):  # finished shards are kept: the same call goes on
            {call}
            after = left(Path(folder))
        if after not in (before, ["out"]):
            print("left", after, "at", place)
        if out.exists():
            {check}
    return seen

times, chosen = Counter(), []
for at, place in enumerate(run(0), 1):
    times[place] += 1
    if times[place] <= 2:
        chosen.append(at)
for at in chosen[{cases!r}]:
    run(at)
print(len(chosen))
"""

VERIFY = "print(*(f'{problem} at {place}\\n' for problem in tsds.verify(out)), sep='', end='')"
MAKING = ("conversion/work", "durable")

#: Modules of the package, the call, what is made before, and how the result is looked at.
CALLS = {
    "filter": ((*MAKING, "annex/editing"), "tsds.filter_store(store, out, 'width > 0')", "pass", VERIFY),
    "repack": ((*MAKING, "annex/editing/repack"), "tsds.repack(store, out, layout='zarr')", "pass", VERIFY),
    "export": ((*MAKING, "annex/exporting"), "tsds.export(store, out, 'folders')", "pass", "pass"),
    "pack": (("sharing/pack", "durable"), "tsds.pack(store, out)", "pass", "tsds.open(out)"),
    "unpack": ((*MAKING, "sharing/pack"), "tsds.unpack(packed, out)", "pass", VERIFY),
    "append": ((*MAKING, "annex/editing"), "tsds.append(out, more, workers=0)", "tsds.unpack(packed, out)", VERIFY),
    "erase": ((*MAKING, "annex/editing"), "tsds.erase(out, rows={'train': [0]})", "tsds.unpack(packed, out)", VERIFY),
    "convert": (
        (*MAKING, "conversion/convert", "conversion/shard"),
        "tsds.convert(more, out, tsds.ConvertOptions(workers=0))",
        "pass",
        VERIFY,
    ),
}
#: Of how many lines one is tried where time is short.
STRIDES = {"filter": 29, "append": 79, "erase": 29, "convert": 17, "repack": 23, "unpack": 11}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, Path]:
    """A store, arrays to append to it, and the store as one file."""
    folder = tmp_path_factory.mktemp("sweep")
    for name, count in (("first", 6), ("more", 9)):
        (folder / name).mkdir()
        images = np.random.default_rng(0).integers(0, 256, (count, 5, 4, 3), np.uint8)
        np.save(folder / name / "images.npy", images)
        np.save(folder / name / "labels.npy", np.arange(count) % 3)
    options = tsds.ConvertOptions(workers=0, split_into={"train": 0.5, "val": 0.5})
    tsds.convert(folder / "first", folder / "store.tsds", options)
    tsds.pack(folder / "store.tsds", folder / "packed.tsds")
    return folder / "store.tsds", folder / "more", folder / "packed.tsds"


def sweep(name: str, made: tuple[Path, Path, Path], new: Path, cases: slice) -> None:
    watched, call, prepare, check = CALLS[name]
    code = SWEEP.format(watched=watched, call=call, prepare=prepare, check=check, cases=cases)
    words = [sys.executable, "-c", code, *map(str, (*made, new))]
    run = subprocess.run(words, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    *found, total = run.stdout.splitlines()
    assert found == []
    assert int(total) > 100


@pytest.mark.parametrize("name", CALLS)
def test_at_some_lines(name: str, made: tuple[Path, Path, Path], tmp_path: Path) -> None:
    sweep(name, made, tmp_path, slice(None, None, STRIDES.get(name, 5)))


@pytest.mark.slow
@pytest.mark.parametrize("name", CALLS)
def test_at_every_line(name: str, made: tuple[Path, Path, Path], tmp_path: Path, eighth: slice) -> None:
    sweep(name, made, tmp_path, eighth)
