"""Memory of a conversion: the parent's and each worker's, whatever the size of the data set."""

from __future__ import annotations

import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

import tensorstore_ds as tsds
from benchmarks.measure import ROOT, Figure, Settings, as_result, command_of
from benchmarks.samples import link_digits, write_photos
from tensorstore_ds.annex.measuring.system import own_nbytes, tree
from tensorstore_ds.format.schema import Encoding

LIMIT = 300  # MB
MANY = 1_000_000
PHOTOS, HEIGHT, WIDTH = 64, 3000, 4000
WORKERS = 2
_PAUSE = 0.01  # seconds between two looks


def measure(settings: Settings) -> dict[str, Any]:
    """Peaks while data sets of very different sizes are converted: small images, very many, and large ones."""
    many, photos = settings.scratch / "many", settings.scratch / "photos"
    figures = [_figure(f"convert the 70,000 PNG files of {settings.digits_name}", settings.digits, settings.scratch)]
    link_digits(many, MANY)
    figures.append(_figure(f"convert {MANY:,} PNGs of 28x28", many, settings.scratch))
    shutil.rmtree(many)
    write_photos(photos, PHOTOS, HEIGHT, WIDTH)
    what = f"convert {PHOTOS} JPEGs of {HEIGHT * WIDTH / 1e6:.0f} megapixels"
    figures.append(_figure(what, photos, settings.scratch))
    figures.append(_figure(f"{what}, kept as files", photos, settings.scratch, "source"))
    return as_result(figures)


def _figure(what: str, source: Path, scratch: Path, encoding: Encoding = "raw") -> Figure:
    store = scratch / "memory.tsds"
    parent, worker, seconds = peaks_of_conversion(source, store, encoding)
    shutil.rmtree(store)
    note = f"parent {parent / 1e6:.0f} MB, worker {worker / 1e6:.0f} MB; {seconds:.0f} s"
    return Figure(f"{what}: private memory of a process", max(parent, worker) / 1e6, LIMIT, "MB", 0, note=note)


def peaks_of_conversion(source: Path, store: Path, encoding: Encoding) -> tuple[int, int, float]:
    """Convert in another process, and look at it and at its workers a hundred times a second.

    Returns:
        The most bytes seen of the parent and of any worker (0 if none was seen), and the seconds that it took.
    """
    begun = time.perf_counter()
    parent = worker = 0
    with subprocess.Popen(command_of(convert, source, store, encoding), cwd=ROOT, stdout=subprocess.DEVNULL) as process:
        while process.poll() is None:
            own, *others = [own_nbytes(pid) or 0 for pid in tree(process.pid)]  # None of one that has ended meanwhile
            parent, worker = max(parent, own), max([worker, *others])
            time.sleep(_PAUSE)
    if process.returncode:
        raise RuntimeError(f"{source}: the conversion failed with status {process.returncode}")
    return parent, worker, time.perf_counter() - begun


def convert(source: Path, store: Path, encoding: Encoding) -> None:
    """The conversion that is looked at."""
    tsds.convert(source, store, workers=WORKERS, encoding=encoding)
