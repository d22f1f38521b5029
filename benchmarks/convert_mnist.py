"""Converting 70,000 small PNG files with two workers, against the barest loop that does the same decoding."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import statistics
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

import tensorstore_ds as tsds
from benchmarks.measure import Figure, Settings, alternate, as_result, ratio_of_medians, seconds_of, spread
from benchmarks.samples import SIDE, SPLITS

WORKERS = 2
LIMIT = 1.15
_SHAPE = (sum(SPLITS.values()), SIDE, SIDE)
_PIECE = 1000  # files that a process of the bare loop gets at a time


def measure(settings: Settings) -> dict[str, Any]:
    """The ratio of `tensorstore_ds.convert`, all of it, to `bare_loop`; files and page cache warm."""
    store, bare = settings.scratch / "digits.tsds", settings.scratch / "bare.bin"
    _check_equal(settings.digits, store, bare)

    def converting() -> float:
        return seconds_of(lambda: tsds.convert(settings.digits, store, workers=WORKERS), makes=store)

    def looping() -> float:
        took = seconds_of(lambda: bare_loop(settings.digits, bare))
        bare.unlink()  # and with it what the system has yet to write, which would burden the next conversion
        return took

    ours, theirs = alternate([converting, looping], settings.repeat)
    rate = _SHAPE[0] / statistics.median(ours)
    read = sum(Path(path).stat().st_size for path in list_files(settings.digits))
    note = (
        f"{spread(ours)} s against {spread(theirs)} s; {rate:,.0f} images/s, "
        f"{read / statistics.median(ours) / 1e6:.1f} MB/s of PNG in, {rate * SIDE * SIDE / 1e6:.1f} MB/s of pixels out"
    )
    files = f"the {_SHAPE[0]:,} PNG files of {settings.digits_name}"
    what = f"convert {files} with {WORKERS} workers: time, relative to a bare Pillow loop"
    return as_result([Figure(what, ratio_of_medians(ours, theirs), LIMIT, "x", note=note)])


def bare_loop(digits: Path, target: Path) -> None:
    """List, decode in two processes, store in a memory map that they share: nothing is checked, counted or synced."""
    files = list_files(digits)
    np.memmap(target, np.uint8, "w+", shape=_SHAPE).flush()
    pieces = [(target, first, files[first : first + _PIECE]) for first in range(0, len(files), _PIECE)]
    with multiprocessing.get_context("fork").Pool(WORKERS) as pool:
        for _ in pool.imap(decode_piece, pieces):
            pass


def decode_piece(piece: tuple[Path, int, list[str]]) -> None:
    """What a process of the bare loop does with its share of the files."""
    target, first, files = piece
    images = np.memmap(target, np.uint8, "r+", shape=_SHAPE)
    for row, file in enumerate(files, first):
        with Image.open(file) as image:
            images[row] = np.asarray(image)


def list_files(digits: Path) -> list[str]:
    """Paths in the order in which a conversion stores them."""
    files = []
    for split in SPLITS:
        for label in sorted(os.listdir(digits / split)):  # bare: names, no Path objects
            folder = f"{digits}/{split}/{label}"
            files += [f"{folder}/{name}" for name in sorted(os.listdir(folder))]
    return files


def _check_equal(digits: Path, store: Path, bare: Path) -> None:
    """Both do the same work: the pixels agree."""
    tsds.convert(digits, store, workers=WORKERS)
    bare_loop(digits, bare)
    images = np.memmap(bare, np.uint8, "r", shape=_SHAPE)
    opened = tsds.open(store)
    first = 0
    for split in SPLITS:
        column = np.asarray(opened[split]["image"])
        if not np.array_equal(column[..., 0], images[first : first + len(column)]):
            raise RuntimeError(f"{digits}/{split}: the conversion and the bare loop do not agree")
        first += len(column)
    shutil.rmtree(store)
    bare.unlink()
