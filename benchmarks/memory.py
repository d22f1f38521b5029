"""Memory of a conversion: the parent's and each worker's, whatever the size of the data set."""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from pathlib import Path

import tensorstore_ds as tsds
from benchmarks.digits import link_digits
from benchmarks.measure import Figure, Settings, children, own_nbytes

LIMIT = 300  # MB
MANY = 1_000_000
WORKERS = 2
_PAUSE = 0.01  # seconds between two looks


def measure(settings: Settings) -> list[Figure]:
    """Peaks while the digits are converted, and while a million files are."""
    store = settings.scratch / "memory.tsds"
    many = settings.scratch / "many"
    link_digits(many, MANY)
    figures = []
    for source, name in ((settings.digits, "70,000 PNG files"), (many, f"{MANY:,} PNG files")):
        parent, worker, seconds = peaks_of_conversion(source, store)
        shutil.rmtree(store)
        note = f"{seconds:.0f} s"
        figures.append(Figure(f"convert {name}: own memory of the parent", parent / 1e6, LIMIT, "MB", 0, note=note))
        figures.append(Figure(f"convert {name}: own memory of the largest worker", worker / 1e6, LIMIT, "MB", 0))
    shutil.rmtree(many)
    return figures


def peaks_of_conversion(source: Path, store: Path) -> tuple[int, int, float]:
    """Convert in another process, and look at it and at its workers a hundred times a second.

    Returns:
        The most bytes seen of the parent and of any worker (0 if none was seen), and the seconds that it took.

    Raises:
        RuntimeError: the conversion failed; its own words are on the standard error.
    """
    begun = time.perf_counter()
    parent = worker = 0
    with subprocess.Popen([sys.executable, "-m", "benchmarks.memory", str(source), str(store)]) as process:
        while process.poll() is None:
            parent = max(parent, _own_nbytes(process.pid))
            worker = max([worker, *map(_own_nbytes, children(process.pid))])
            time.sleep(_PAUSE)
    if process.returncode:
        raise RuntimeError(f"{source}: the conversion failed with status {process.returncode}")
    return parent, worker, time.perf_counter() - begun


def _own_nbytes(process: int) -> int:
    try:
        return own_nbytes(process)
    except ProcessLookupError:  # ended meanwhile
        return 0


if __name__ == "__main__":
    tsds.convert(sys.argv[1], sys.argv[2], tsds.ConvertOptions(workers=WORKERS))
