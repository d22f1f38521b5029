"""``python -m benchmarks.soak``: the loader over many epochs, under many readers, and dropped in odd ways.

Nothing is timed. It ends with status 1 where a bound is exceeded.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import psutil

import tensorstore_ds as tsds
from benchmarks.measure import (
    FIGURE_HEAD,
    ROOT,
    Figure,
    Settings,
    as_result,
    command_of,
    figures_of,
    in_fresh_process,
    table,
    write_result,
)
from benchmarks.photographs.drawing import write_class_folders
from benchmarks.samples import STORE, make_noise
from benchmarks.soak_processes import run_drops, run_epochs, run_readers, run_sizes
from tensorstore_ds.annex.measuring.system import own_nbytes

#: Own memory that a process may gain from its 100th epoch on.
GROWTH_LIMIT = 5  # MB
#: And with images of differing sizes, of which some MB are in memory at a time, never the same ones.
SIZES_LIMIT = 20  # MB
#: Maps that it may gain: the C library's allocator maps its arenas as it likes.
MAPS_LIMIT = 10
#: Private memory of a reader. The store has to be larger than that of all of them together.
PRIVATE_LIMIT = 24  # MB
#: Copies of the store in memory: `Pss` of all readers, added up, in sizes of its images.
COPIES_LIMIT = 1.02
#: Own memory that a process with a loader may have more on a store that is about a GB larger.
LOADER_LIMIT = 10  # MB
SMALL_ROWS, SMALL_SHAPE = 1024, (32, 32, 3)
LARGE_SHAPE = (256, 256, 3)
LOADERS = 8
#: Rows of the smaller store: an epoch of more batches than a loader ever holds, so that its buffers are all there.
FEW_ROWS = 625
#: Photographs of differing sizes, and their longer side.
DIFFERING, LONG_SIDE = 192, 200
_HELD = {"threads": "threads", "files": "open files", "children": "child processes", "shared": "shared memory"}
METHODS = {"fork": "forked", "spawn": "spawned"}


def measure_epochs(store: Path, epochs: int) -> list[Figure]:
    """One loader in one process."""
    seen: list[dict[str, int]] = in_fresh_process(run_epochs, store, epochs)
    first = next((one for one in seen if one["epoch"] == 100), seen[0])
    last = seen[-1]
    name = f"{epochs:,} epochs with one loader, from epoch {first['epoch']:,} on"
    growth = (last["own"] - first["own"]) / 1000
    note = ", ".join(f"{one['own'] / 1000:.1f} MB after {one['epoch']:,}" for one in seen) + f"; {last['seconds']} s"
    others = (("threads", "threads", 0), ("files", "open files", 0), ("maps", "maps", MAPS_LIMIT))
    return [
        Figure(f"{name}: additional private memory", growth, GROWTH_LIMIT, "MB", 1, note=note),
        *(Figure(f"{name}: {what} more", last[key] - first[key], limit, decimals=0) for key, what, limit in others),
    ]


def measure_sizes(store: Path, epochs: int) -> list[Figure]:
    """Images of differing sizes in one process: buffers of all sizes come and go."""
    first, *_, last = in_fresh_process(run_sizes, store, epochs)
    name = f"{epochs:,} epochs of images of differing sizes, as lists, padded and cropped"
    note = f"{first['own'] / 1000:.1f} MB after {first['epoch']:,}, {last['own'] / 1000:.1f} MB at the end"
    growth = (last["own"] - first["own"]) / 1000
    return [Figure(f"{name}: additional private memory", growth, SIZES_LIMIT, "MB", 1, note=note)]


def measure_readers(store: Path, nbytes: int, count: int) -> list[Figure]:
    """So many processes on one store, forked and spawned."""
    figures: list[Figure] = []
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


def measure_loaders(small: Path, large: Path, more: int, count: int) -> list[Figure]:
    """So many processes with a loader each, after an epoch, on a store and on one that is `more` bytes larger."""
    fewer, all_ = (_with_readers(store, "spawn", count, own_nbytes, loading=True) for store in (small, large))
    note = f"{max(fewer) / 1e6:.0f} MB each on the smaller one, {max(all_) / 1e6:.0f} MB on the larger one"
    name = f"{count} loaders in {count} processes, a store {more / 1e6:,.0f} MB larger: additional private memory"
    return [Figure(name, (max(all_) - max(fewer)) / 1e6, LOADER_LIMIT, "MB", 1, note=note)]


def _readers(store: Path, method: str, count: int) -> tuple[int, int, list[int]]:
    """`Rss` and `Pss` of the store in all readers, and each one's private memory, in bytes."""

    def look(pid: int) -> tuple[int, int, int]:
        process = psutil.Process(pid)
        maps = [one for one in process.memory_maps() if one.path.startswith(str(store))]
        return sum(one.rss for one in maps), sum(one.pss for one in maps), process.memory_full_info().uss

    rss, pss, private = zip(*_with_readers(store, method, count, look), strict=True)
    return sum(rss), sum(pss), list(private)


def _with_readers(
    store: Path, method: str, count: int, look: Callable[[int], Any], *, loading: bool = False
) -> list[Any]:
    """What is seen of each process while all are there."""
    command = command_of(run_readers, store, method, count, loading)
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        if process.stdout is None or not (line := process.stdout.readline()):
            raise RuntimeError(f"{store}: the readers ended")
        seen = [look(pid) for pid in json.loads(line)]
        out, _ = process.communicate("\n")
    if set(json.loads(out)) != {0}:
        raise RuntimeError(f"{store}: expected readers that end with 0, found {out.strip()}")
    return seen


def measure_drops(store: Path, count: int) -> list[Figure]:
    """Loaders that are left in the middle, in one process."""
    before, after = in_fresh_process(run_drops, store, count)
    figures = []
    for key, what in _HELD.items():
        note = f"{before[key]} before, {after[key]} after"
        name = f"{count} loaders dropped in odd ways: {what} more"
        figures.append(Figure(name, after[key] - before[key], 0, decimals=0, note=note))
    return figures


def measure_all(scratch: Path, epochs: int, drops: int, readers: int) -> list[Figure]:
    """All five."""
    small, few, large = (scratch / name for name in ("small", "few", "large"))
    make_noise(small, SMALL_ROWS, SMALL_SHAPE)
    figures = [*measure_epochs(small / STORE, epochs), *measure_drops(small / STORE, drops)]
    write_class_folders(scratch / "photographs", DIFFERING, LONG_SIDE)
    tsds.convert(scratch / "photographs", scratch / "sizes.tsds", encoding="jpeg", workers=2)
    figures += measure_sizes(scratch / "sizes.tsds", min(100, epochs))
    row = LARGE_SHAPE[0] * LARGE_SHAPE[1] * LARGE_SHAPE[2]
    rows = max(2 * FEW_ROWS, readers * PRIVATE_LIMIT * 1_000_000 // row + 1)  # more than all readers may have
    make_noise(few, FEW_ROWS, LARGE_SHAPE)
    make_noise(large, rows, LARGE_SHAPE)
    (large / "images.npy").unlink()
    figures += measure_loaders(few / STORE, large / STORE, (rows - FEW_ROWS) * row, min(LOADERS, readers))
    return [*figures, *measure_readers(large / STORE, rows * row, readers)]


def measure(settings: Settings) -> dict[str, Any]:
    """A short one, for the page of figures."""
    return as_result(measure_all(settings.scratch, epochs=1000, drops=100, readers=40))


def main(arguments: Sequence[str] | None = None) -> int:
    """A long one, unless less is asked for."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.soak", description=__doc__)
    parser.add_argument("--epochs", type=int, default=10_000, metavar="N", help="of one loader (default: 10000)")
    parser.add_argument("--readers", type=int, default=64, metavar="N", help="processes on one store (default: 64)")
    parser.add_argument("--drops", type=int, default=300, metavar="N", help="loaders to leave (default: 300)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures here, too")
    parser.add_argument("--scratch", type=Path, metavar="DIR", help="a folder on a disk with 4 GB free")
    options = parser.parse_args(arguments)
    if min(options.epochs, options.readers, options.drops) < 1:
        parser.error("--epochs, --readers, --drops: expected at least 1")
    with tempfile.TemporaryDirectory(dir=options.scratch) as scratch:
        result = as_result(measure_all(Path(scratch), options.epochs, options.drops, options.readers))
    figures = figures_of(result)
    print("\n".join(table(FIGURE_HEAD, [figure.row for figure in figures])))
    if options.json:
        write_result(options.json, result)
    return 0 if all(figure.met for figure in figures) else 1


if __name__ == "__main__":
    sys.exit(main())
