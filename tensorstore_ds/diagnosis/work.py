"""What threads do for a batch besides copying rows: decode images, and transform samples."""

from __future__ import annotations

import statistics
import time

import numpy as np

from tensorstore_ds.diagnosis.cores import hashed
from tensorstore_ds.diagnosis.findings import Decoding, TransformRun
from tensorstore_ds.diagnosis.gil import GilProbe
from tensorstore_ds.diagnosis.runs import loader_of, run
from tensorstore_ds.diagnosis.settings import Settings
from tensorstore_ds.diagnosis.subject import remade
from tensorstore_ds.format.kinds import ImageField
from tensorstore_ds.loading.dataset import StoreDataset
from tensorstore_ds.loading.fields import decode_images

#: Threads that a transform is tried in, at most: more do not tell more.
MOST_THREADS = 4
#: Turns in which it is measured with and without.
ROUNDS = 3
#: Images that are decoded at a time.
_IMAGES = 4


def encoding_of(dataset: StoreDataset) -> str:
    """How images are kept; empty where none are read."""
    field = dataset.split.fields.get("image") if "image" in dataset.fields else None
    return field.encoding if isinstance(field, ImageField) else ""


def decoding_of(dataset: StoreDataset, *, seconds: float) -> Decoding | None:
    """What decoding takes in one thread; None where images are pixels."""
    if encoding_of(dataset) in ("", "raw"):
        return None
    column = dataset.split["image"]
    rows = dataset.store_rows(np.arange(len(dataset)))
    read = decode = 0.0
    images = 0
    while not images or read + decode < seconds:
        chosen = [int(rows[(images + i) % len(rows)]) for i in range(_IMAGES)]
        began = time.perf_counter()
        files = [column[row] for row in chosen]
        between = time.perf_counter()
        decode_images(files, [dataset.key(row) for row in chosen])
        read, decode = read + between - began, decode + time.perf_counter() - between
        images += _IMAGES
    return Decoding(read / images, decode / images)


def transform_of(dataset: StoreDataset, *, batch_size: int, cores: int, seconds: float) -> TransformRun | None:
    """What the data set's transform does to its loader: one thread, several, and none of it; None if it has none."""
    if dataset.transform is None:
        return None
    threads = max(2, min(MOST_THREADS, cores))
    plain = remade(dataset, None, dataset.fields)
    share = seconds / ROUNDS / 5
    without, one, several, waits, idle, speed_ups = [], [], [], [], [], []
    for _ in range(ROUNDS):
        without.append(_loaded(plain, threads, batch_size, share))
        one.append(_loaded(dataset, 1, batch_size, share))
        with GilProbe() as probe:
            several.append(_loaded(dataset, threads, batch_size, share))
        waits.append(probe.wait)
        with GilProbe() as probe:  # as many threads, which do not hold it: what is left is the system's own delay
            together = hashed(threads, seconds=share)
        idle.append(probe.wait)
        speed_ups.append(together / hashed(1, seconds=share))
    middle = statistics.median
    return TransformRun(
        without=middle(without),
        one=middle(one),
        several=middle(several),
        threads=threads,
        speed_up=max(b / a for a, b in zip(one, several, strict=True)),
        possible=min(speed_ups),
        gil_wait=max(0.0, middle(waits) - middle(idle)),
    )


def _loaded(dataset: StoreDataset, threads: int, batch_size: int, seconds: float) -> float:
    """Samples a second."""
    settings = Settings(num_threads=threads)
    return run(loader_of(dataset, settings, batch_size=batch_size), settings, seconds=seconds).rate
