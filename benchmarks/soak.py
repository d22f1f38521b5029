"""``python -m benchmarks.soak``: the loader over many epochs, under many readers, and dropped in odd ways.

Nothing is timed. It ends with status 1 where a bound is exceeded.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.__main__ import table
from benchmarks.loading_memory import mapped_nbytes
from benchmarks.measure import ROOT, Figure, Table, machine
from benchmarks.samples import STORE, make_noise

#: Own memory that a process may gain from its 100th epoch on.
GROWTH_LIMIT = 5  # MB
#: Maps that it may gain: the C library's allocator maps its arenas as it likes.
MAPS_LIMIT = 10
#: Private memory of a reader. The store has to be larger than that of all of them together.
PRIVATE_LIMIT = 24  # MB
#: Copies of the store in memory: `Pss` of all readers, added up, in sizes of its images.
COPIES_LIMIT = 1.02
SMALL_ROWS, SMALL_SHAPE = 1024, (32, 32, 3)
LARGE_SHAPE = (256, 256, 3)
METHODS = {"fork": "forked", "spawn": "spawned"}


def measure_epochs(store: Path, epochs: int) -> list[Figure | Table]:
    """One loader in one process."""
    seen: list[dict[str, int]] = json.loads(_run("epochs", store, epochs))
    first = next((one for one in seen if one["epoch"] == 100), seen[0])
    last = seen[-1]
    name = f"{epochs:,} epochs with one loader, from epoch {first['epoch']:,} on"
    growth = (last["own"] - first["own"]) / 1000
    rows = [
        [f"{one['epoch']:,}", f"{one['rss'] / 1000:.1f} MB", f"{one['own'] / 1000:.1f} MB"]
        + [str(one[key]) for key in ("threads", "files", "maps")]
        + [f"{one['seconds']} s"]
        for one in seen
    ]
    return [
        Figure(f"{name}: own memory more", growth, GROWTH_LIMIT, "MB", 1),
        Figure(f"{name}: threads more", last["threads"] - first["threads"], 0, decimals=0),
        Figure(f"{name}: open files more", last["files"] - first["files"], 0, decimals=0),
        Figure(f"{name}: maps more", last["maps"] - first["maps"], MAPS_LIMIT, decimals=0),
        Table("Epochs", ("epoch", "RSS", "own", "threads", "open files", "maps", "after"), rows),
    ]


def measure_readers(store: Path, nbytes: int, count: int) -> list[Figure | Table]:
    """So many processes on one store, forked and spawned."""
    figures: list[Figure | Table] = []
    for method, done in METHODS.items():
        rss, pss, private = _readers(store, method, count)
        name = f"{count} {done} readers of one store of {nbytes / 1e6:,.0f} MB"
        note = f"each has it mapped and has read it: {rss / 1e6:,.0f} MB of RSS, {pss / 1e6:,.0f} MB of PSS, added up"
        most = f"all together {sum(private) / 1e6:,.0f} MB, the median {sorted(private)[count // 2] / 1e6:.1f} MB"
        figures += [
            Figure(f"{name}: copies of it in memory", pss / nbytes, COPIES_LIMIT, decimals=3, note=note),
            Figure(f"{name}: read by all", rss / nbytes / count, 0.999, decimals=3, at_least=True),
            Figure(f"{name}: private memory of a process", max(private) / 1e6, PRIVATE_LIMIT, "MB", 1, note=most),
        ]
    return figures


def _readers(store: Path, method: str, count: int) -> tuple[int, int, list[int]]:
    """`Rss` and `Pss` of the store in all readers, and each one's private memory, in bytes."""
    with subprocess.Popen(
        _command("readers", store, method, count), cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        if process.stdout is None or not (line := process.stdout.readline()):
            raise RuntimeError(f"{store}: the readers ended")
        pids = json.loads(line)
        mapped = [mapped_nbytes(pid, str(store)) for pid in pids]
        private = [private_nbytes(pid) for pid in pids]
        out, _ = process.communicate("\n")
    if set(json.loads(out)) != {0}:
        raise RuntimeError(f"{store}: expected readers that end with 0, found {out.strip()}")
    return sum(rss for rss, _ in mapped), sum(pss for _, pss in mapped), private


def private_nbytes(pid: int) -> int:
    """Memory that no other process shares with this one."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("Private_"))


def measure_drops(store: Path, count: int) -> list[Figure | Table]:
    """Loaders that are left in the middle, in one process."""
    found: dict[str, dict[str, int]] = json.loads(_run("drops", store, count))
    before, after = found["before"], found["after"]
    names = {"threads": "threads", "files": "open files", "children": "child processes", "shared": "shared memory"}
    return [
        Figure(
            f"{count} loaders dropped in odd ways: {what} more",
            after[key] - before[key],
            0,
            decimals=0,
            note=f"{before[key]} before, {after[key]} after",
        )
        for key, what in names.items()
    ]


def _command(what: str, *arguments: object) -> list[str]:
    return [sys.executable, "-m", "benchmarks.soak_processes", what, *map(str, arguments)]


def _run(what: str, *arguments: object) -> str:
    return subprocess.run(_command(what, *arguments), cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True).stdout


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure all three."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.soak", description=__doc__)
    parser.add_argument("--epochs", type=int, default=10_000, metavar="N", help="of one loader (default: 10000)")
    parser.add_argument("--readers", type=int, default=64, metavar="N", help="processes on one store (default: 64)")
    parser.add_argument("--drops", type=int, default=300, metavar="N", help="loaders to leave (default: 300)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures here, too")
    parser.add_argument("--scratch", type=Path, metavar="DIR", help="a folder on a disk with 4 GB free")
    given = parser.parse_args(arguments)
    if min(given.epochs, given.readers, given.drops) < 1:
        parser.error("--epochs, --readers, --drops: expected at least 1")
    found: list[Any] = []
    with tempfile.TemporaryDirectory(dir=given.scratch) as scratch:
        small, large = Path(scratch, "small"), Path(scratch, "large")
        make_noise(small, SMALL_ROWS, SMALL_SHAPE)
        found += measure_epochs(small / STORE, given.epochs)
        found += measure_drops(small / STORE, given.drops)
        row = LARGE_SHAPE[0] * LARGE_SHAPE[1] * LARGE_SHAPE[2]
        rows = given.readers * PRIVATE_LIMIT * 1_000_000 // row + 1  # more than all readers may have for themselves
        make_noise(large, rows, LARGE_SHAPE)
        (large / "images.npy").unlink()
        found += measure_readers(large / STORE, rows * row, given.readers)
    figures = [item for item in found if isinstance(item, Figure)]
    tables = [item for item in found if isinstance(item, Table)]
    print("\n".join(table(figures, machine())))
    for item in tables:
        print("", *item.lines(), sep="\n")
    if given.json:
        lines = [{**asdict(figure), "met": figure.met} for figure in figures]
        content = {"machine": machine(), "figures": lines, "tables": [asdict(item) for item in tables]}
        given.json.write_text(json.dumps(content, indent=1) + "\n")
    return 0 if all(figure.met for figure in figures) else 1


if __name__ == "__main__":
    sys.exit(main())
