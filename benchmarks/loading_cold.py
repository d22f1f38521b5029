"""The first epoch of a store that is on disk alone, shuffled by blocks, against reading its files from end to end."""

from __future__ import annotations

import mmap
import os
import statistics
import time
from pathlib import Path
from typing import Any

import numpy as np

import tensorstore_ds as tsds
from benchmarks.loading import BATCH, ROWS, SHAPE
from benchmarks.measure import Figure, Settings, alternate, as_result, in_fresh_process, ratio_of_medians, spread
from benchmarks.samples import STORE, make_noise
from tensorstore_ds.page_cache.residency import data_files

LIMIT = 0.9
#: 64 rows of 192 KiB are 12 MiB, and a window of 8 such blocks 96 MiB.
BLOCK_ROWS, WINDOW_BLOCKS = 64, 8
_PIECE = 8 * 1024**2
#: No disk answers in less, seconds; what does is memory: of the disk itself, or of the machine that lends it.
_NO_DISK = 50e-6
#: Reading the same file again takes at most so many times as long, on a disk that nobody else uses or limits.
_STEADY = 2


def measure(settings: Settings) -> dict[str, Any]:
    """Each in a fresh process, because pages that a process has mapped stay."""
    source = settings.scratch / "noise"
    make_noise(source, ROWS, SHAPE)
    os.sync()
    answers: list[dict[str, Any]] = []

    def run(what: str) -> float:
        answers.append(in_fresh_process(load, what, source))
        return float(answers[-1]["seconds"])

    ours, reading = alternate([lambda: run("epoch"), lambda: run("read")], settings.repeat)
    nbytes = max(answer["nbytes"] for answer in answers)
    warm = max(answer["resident"] for answer in answers)
    latency = probe_latency(source)
    note = (
        f"{spread([nbytes / s / 1e9 for s in ours])} against {spread([nbytes / s / 1e9 for s in reading])} GB/s; "
        f"{warm / 1e6:.0f} MB of {nbytes / 1e6:.0f} MB were in the page cache at the start; "
        f"a random 4 KiB takes {latency * 1e6:.0f} us"
    )
    if latency < _NO_DISK or max(reading) > _STEADY * min(reading):
        note += ". A disk is slower or steadier, so a cache or a limit influenced this figure"
    what = f"first epoch of {ROWS:,} images of 256x256x3 from a cold cache, BlockShuffleSampler: speed, relative to"
    ratio = ratio_of_medians(reading, ours)
    return as_result([Figure(f"{what} reading the files in order", ratio, LIMIT, "x", at_least=True, note=note)])


def probe_latency(source: Path) -> float:
    """Median time of reading 4 KiB at a random place past the page cache, in seconds."""
    path = files_of(source)[0]
    buffer = mmap.mmap(-1, 4096)  # aligned, as direct reads have to be
    file = os.open(path, os.O_RDONLY | os.O_DIRECT)
    try:
        places = np.random.default_rng(0).integers(0, path.stat().st_size // 4096 - 1, 300) * 4096
        taken = []
        for place in places.tolist():
            begun = time.perf_counter()
            os.preadv(file, [buffer], place)
            taken.append(time.perf_counter() - begun)
    finally:
        os.close(file)
    return statistics.median(taken)


def files_of(source: Path) -> list[Path]:
    """Files with the images."""
    store = tsds.open(source / STORE)
    return [store.path / file.path for file in data_files(store, "train", "image")]


def read_in_order(source: Path) -> int:
    """Read the files with the images, 8 MiB at a time; the system reads ahead. Returns bytes."""
    buffer = memoryview(bytearray(_PIECE))
    total = 0
    for path in files_of(source):
        with path.open("rb", buffering=0) as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_SEQUENTIAL)
            while read := file.readinto(buffer):
                total += read
    return total


def load(what: str, source: Path) -> dict[str, Any]:
    """Evict, then read or load everything once, in this process."""
    if what == "epoch":
        _ = tsds.DataLoader, tsds.BlockShuffleSampler  # imported before the clock runs, and torch with them
    resident = tsds.evict(tsds.open(source / STORE)).left
    begun = time.perf_counter()
    if what == "epoch":
        dataset = tsds.StoreDataset(source / STORE, "train")
        sampler = tsds.BlockShuffleSampler(dataset, block_rows=BLOCK_ROWS, window_blocks=WINDOW_BLOCKS)
        loader = tsds.DataLoader(dataset, BATCH, sampler=sampler, num_threads=2)
        nbytes = sum(batch["image"].nbytes for batch in loader)
    else:
        nbytes = read_in_order(source)
    return {"seconds": time.perf_counter() - begun, "nbytes": nbytes, "resident": resident or 0}
