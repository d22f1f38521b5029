"""``make fuzz``: as many cases as there is time for, at every door in turn, in two processes.

What fails is kept as a file below ``findings/DOOR/``: mend the cause, and move the file to ``corpus/DOOR/``.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import os
import random
import re
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from fuzz.doors import DOORS, share_of
from fuzz.lanes import Batch, Tally, run

FINDINGS = Path(__file__).with_name("findings")

#: Cases of a batch of a door with a share of 1: long enough that starting a process does not show.
_CASES = 40


def main(arguments: Sequence[str] | None = None) -> int:
    """Run, print the table, and say by the exit status whether something failed."""
    parser = argparse.ArgumentParser(prog="python -m fuzz", description=__doc__.split("\n")[0])
    parser.add_argument("--cases", type=int, default=50_000, help="how many, of all doors (default: 50,000)")
    parser.add_argument("--minutes", type=float, help="how long, instead of how many")
    parser.add_argument("--doors", help=f"some of them, divided by commas: {', '.join(DOORS)}")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(2**32), help="(default: any)")
    parser.add_argument("--processes", type=int, default=len(os.sched_getaffinity(0)), help="(default: one a core)")
    parser.add_argument("--findings", type=Path, default=FINDINGS, help="a folder for inputs that failed")
    given = parser.parse_args(arguments)
    names = given.doors.split(",") if given.doors else list(DOORS)
    if unknown := [name for name in names if name not in DOORS]:
        parser.error(f"--doors: expected some of {', '.join(DOORS)}, found {unknown[0]}")
    print(f"seed {given.seed}, {given.processes} processes", flush=True)
    began, tallies = time.monotonic(), {name: Tally() for name in names}
    batches = (
        cases(names, given.seed, given.cases) if given.minutes is None else rounds(names, given.seed, given.minutes)
    )
    shown = began
    with contextlib.suppress(KeyboardInterrupt):  # what was tried so far is told
        for batch, tally in run(batches, given.processes):
            for what in tally.failures.keys() - tallies[batch.door].failures.keys():
                print(f"{batch.door}: {what}", flush=True)
            tallies[batch.door].add(tally)
            if time.monotonic() - shown > 60:
                shown = time.monotonic()
                print(f"{sum(t.cases for t in tallies.values()):,} cases, {shown - began:.0f} s", flush=True)
    seconds = time.monotonic() - began
    print("\n".join(table(tallies, seconds)))
    keep(tallies, given.findings)
    return int(any(tally.failures for tally in tallies.values()))


# --- what is tried ------------------------------------------------------------------------------------------------


def cases(names: Sequence[str], seed: int, count: int) -> Iterator[Batch]:
    """So many cases, each door's share of them, the doors in turn."""
    shares = {name: share_of(name) for name in names}
    left = {name: max(1, count * share // sum(shares.values())) for name, share in shares.items()}
    left[max(left, key=lambda name: left[name])] += count - sum(left.values())
    yield from _in_turn(names, seed, left)


def rounds(names: Sequence[str], seed: int, minutes: float) -> Iterator[Batch]:
    """Cases without an end, until the time is over."""
    end = time.monotonic() + 60 * minutes
    for batch in _in_turn(names, seed, dict.fromkeys(names, sys.maxsize)):
        if time.monotonic() > end:
            return
        yield batch


def _in_turn(names: Sequence[str], seed: int, left: dict[str, int]) -> Iterator[Batch]:
    done = dict.fromkeys(names, 0)
    while any(left.values()):
        for name in names:
            count = min(left[name], _CASES * share_of(name))
            if count > 0:
                yield Batch(name, seed, done[name], count)
                left[name] -= count
                done[name] += count


# --- what is told -------------------------------------------------------------------------------------------------


def table(tallies: dict[str, Tally], seconds: float) -> Iterator[str]:
    """Lines of Markdown: a row a door, and the sum."""
    yield "| door | cases | refused | accepted | ms a case | slowest, s | peak memory, MB | failures |"
    yield "|---|--:|--:|--:|--:|--:|--:|--:|"
    total = Tally()
    for name, tally in tallies.items():
        total.add(tally)
        yield _row(name, tally)
    yield _row(f"all, in {seconds:,.0f} s", total)
    for name, tally in tallies.items():
        for what, count in tally.failures.items():
            yield f"\n{name}: {count:,} x {what}"


def _row(name: str, tally: Tally) -> str:
    each = 1000 * tally.seconds / max(1, tally.cases)
    numbers = f"{tally.cases:,} | {tally.refused:,} | {tally.accepted:,} | {each:.1f} | {tally.slowest:.2f}"
    return f"| {name} | {numbers} | {tally.nbytes / 1e6:.0f} | {sum(tally.failures.values()):,} |"


def keep(tallies: dict[str, Tally], folder: Path) -> None:
    """Write one input of each failure."""
    for name, tally in tallies.items():
        for what, data in tally.inputs.items():
            label = re.sub(r"[^\w.]+", "-", what).strip("-")[:60]
            path = folder / name / f"{label}-{hashlib.sha256(data).hexdigest()[:8]}"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
            print(f"kept {path}")


if __name__ == "__main__":
    sys.exit(main())
