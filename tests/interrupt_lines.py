"""A program that makes something again and again, each time interrupted at another line of the modules that make it.

``python interrupt_lines.py CALL STORE MORE NEW START STEP``: a store, with the same in one file beside it,
arrays to append to it and a folder to work in. It takes every STEP-th of the lines, the first and the second time that
each runs, prints what was left where the interrupt came, and at last how many interrupts there can be.
"""

from __future__ import annotations

import contextlib
import dis
import signal
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import tensorstore_ds as tsds

#: Where a block is entered or left Python looks for signals only in what it calls then.
OF_BLOCKS = (dis.opmap["LOAD_CONST"], dis.opmap["NOP"])
MAKING = ("conversion/partial", "conversion/build", "durable")


@dataclass(frozen=True)
class Call:
    """What is made: modules of the package, the call, and how its result is looked at."""

    watched: tuple[str, ...]
    make: Callable[[Path, Path, Path], object]  # of the store, the arrays and the path of what is made
    changes: bool = False  # a store that is there
    check: Callable[[Path], list[Any]] = tsds.verify


CALLS = {
    "filter": Call(
        (*MAKING, "annex/editing"), lambda store, _, out: tsds.editing.filter_store(store, out, "width > 0")
    ),
    "repack": Call((*MAKING, "annex/editing/repack"), lambda store, _, out: tsds.repack(store, out, layout="zarr")),
    "export": Call(
        (*MAKING, "annex/exporting"), lambda store, _, out: tsds.export(store, out, "folders"), check=lambda _: []
    ),
    "pack": Call(("sharing/pack", "durable", "progress"), lambda store, _, out: tsds.pack(store, out)),
    "unpack": Call((*MAKING, "sharing/pack"), lambda store, _, out: tsds.unpack(store.with_name("packed.tsds"), out)),
    "append": Call((*MAKING, "annex/editing"), lambda _, more, out: tsds.append(out, more, workers=0), changes=True),
    "erase": Call((*MAKING, "annex/editing"), lambda _, __, out: tsds.erase(out, rows={"train": [0]}), changes=True),
    "convert": Call(
        (*MAKING, "conversion/convert", "conversion/shard"),
        lambda _, more, out: tsds.convert(more, out, tsds.ConvertOptions(workers=0)),
    ),
}


def left(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def run(name: str, store: Path, more: Path, new: Path, at: int) -> list[str]:
    """The lines that ran, as FILE:LINE; the one with the number `at`, from 1, is interrupted."""
    call, seen = CALLS[name], list[str]()
    package = Path(tsds.__file__).parent
    watched = tuple(str(package / each) for each in call.watched)

    def trace(frame: FrameType, event: str, _: object) -> Any:
        code = frame.f_code
        if not code.co_filename.startswith(watched):
            return None
        if event == "line" and code.co_code[frame.f_lasti] not in OF_BLOCKS:
            seen.append(f"{Path(code.co_filename).name}:{frame.f_lineno}")
            if len(seen) == at:
                sys.settrace(None)
                signal.raise_signal(signal.SIGINT)
        return trace

    with tempfile.TemporaryDirectory(dir=new) as text:
        folder, out = Path(text), Path(text, "out")
        if call.changes:
            tsds.unpack(store.with_name("packed.tsds"), out)
        before = left(folder)
        sys.settrace(trace)
        try:
            with contextlib.suppress(KeyboardInterrupt):
                call.make(store, more, out)
        finally:
            sys.settrace(None)
        after = left(folder)
        if list(folder.glob("**/journal/*.json")):  # finished shards are kept: the same call goes on
            call.make(store, more, out)
            after = left(folder)
        if after not in (before, ["out"]):
            print("left", after, "at", seen[-1])
        if out.exists():
            for problem in call.check(out):
                print(problem, "at", seen[-1])
    return seen


def main() -> None:
    name, *paths, start, step = sys.argv[1:]
    store, more, new = map(Path, paths)
    times, chosen = Counter[str](), list[int]()
    for at, place in enumerate(run(name, store, more, new, 0), 1):
        times[place] += 1
        if times[place] <= 2:
            chosen.append(at)
    for at in chosen[int(start) :: int(step)]:
        run(name, store, more, new, at)
    print(len(chosen))


if __name__ == "__main__":
    main()
