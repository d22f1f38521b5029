"""What a fast GPU notices of a loader, measured without one.

- *first*: time to the first batch of an epoch, in units of a batch's share of the whole epoch. Ideal is 1.
- *waiting*: share of its time that a script waits, if each step takes 1.3 times as long as the loader needs per batch,
  over epochs of a few batches. Ideal is 0.
- *disturbed*: how much longer steps of pure launching take (Python, and small calls of torch, as in eager training of a
  small model on a GPU) than with one batch that is kept. Ideal is 1. torch's loader with two workers stands beside it.

*Simulated* rows sleep for 1 ms instead of being decoded, so that cores are no limit.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch.utils import data

import tensorstore_ds as tsds
from benchmarks.measure import Figure, Settings, alternate, as_result, seconds_of, spread
from benchmarks.photographs.race import folder_of_photographs
from tensorstore_ds.annex.training.process import torch_settings
from tensorstore_ds.loading import feed
from tensorstore_ds.loading.crew import share

#: Threads of a loader, and the largest time to the first batch of photographs.
THREADS = {8: 2.0, 2: 1.4}
#: Steps take so many times as long as the loader needs for a batch.
NEED = 1.3
NAP = 0.001

Loaders = Callable[[int], Iterable[Any]]  # from a number of batches


@contextmanager
def simulated() -> Iterator[None]:
    """Let each row of a batch take the time that it would take to decode, without a core."""
    gather, group = tsds.StoreDataset.gather, feed.GROUP_NBYTES

    def slowly(self: tsds.StoreDataset, rows: Any, *others: Any, **options: Any) -> Any:
        share(len(rows), lambda loop: [time.sleep(NAP) for _ in loop])  # type: ignore[arg-type, return-value]
        return gather(self, rows, *others, **options)

    tsds.StoreDataset.gather = slowly  # type: ignore[method-assign]
    feed.GROUP_NBYTES = 1  # so that each batch is a task
    try:
        yield
    finally:
        tsds.StoreDataset.gather, feed.GROUP_NBYTES = gather, group  # type: ignore[method-assign]


def epoch_of(batches: Iterable[Any], step: Callable[[], object] = lambda: None) -> float:
    """Time of an epoch."""
    return seconds_of(lambda: [step() for _ in batches])


def first(loaders: Loaders, count: int) -> float:
    """Time to the first batch of a new loader, relative to a batch's share of the epoch."""
    begin = time.perf_counter()
    batches = iter(loaders(count))
    next(batches)
    after = time.perf_counter() - begin
    return after / ((after + epoch_of(batches)) / count)


def waiting(loaders: Loaders, per_batch: float, count: int, epochs: int = 6) -> float:
    """Share of the time that is waited in epochs of `count` batches, after a first one."""
    loader = loaders(count)
    epoch_of(loader)
    step = NEED * per_batch
    whole = sum(epoch_of(loader, lambda: time.sleep(step)) for _ in range(epochs))
    slept = epoch_of(range(epochs * count), lambda: time.sleep(step))
    return 1 - slept / whole


def launching() -> None:
    """Launch 2,500 small operations."""
    small = torch.zeros(64)
    for _ in range(2500):
        small.add_(1)


def disturbed(digits: tsds.StoreDataset, threads: int, repeat: int) -> list[list[float]]:
    """How much longer steps take with this loader, and with torch's and two workers, in each round."""
    (whole,) = tsds.DataLoader(digits, len(digits))
    tensors = data.TensorDataset(whole["image"], whole["label"])
    ours = tsds.DataLoader(digits, 500, shuffle=True, num_threads=threads)
    theirs = data.DataLoader(tensors, 500, shuffle=True, num_workers=2, persistent_workers=True)
    ways: list[Iterable[Any]] = [[0] * len(ours), ours, theirs]
    kept, *others = alternate([partial(epoch_of, way, launching) for way in ways], repeat)
    return [[a / b for a, b in zip(each, kept, strict=True)] for each in others]


def measure(settings: Settings) -> dict[str, Any]:
    """Photographs, small images and simulated rows, with more threads than most machines have cores, and with two."""
    files, name = folder_of_photographs(settings, 3)
    options = tsds.ConvertOptions(encoding="source")
    images = tsds.StoreDataset(tsds.convert(files, settings.scratch / "photographs.tsds", options).path, "train")
    path = tsds.convert(settings.digits, settings.scratch / "digits.tsds").path
    digits = tsds.StoreDataset(path, "train", fields=["image", "label"])
    with torch_settings("fp32", threads=1):
        figures = [figure for threads in THREADS for figure in _of(settings.repeat, threads, images, digits)]
    return as_result(figures, photographs=name)


def _of(repeat: int, threads: int, images: tsds.StoreDataset, digits: tsds.StoreDataset) -> Iterator[Figure]:
    options: dict[str, Any] = {"shuffle": True, "drop_last": True, "num_threads": threads}
    crop, numbers = tsds.RandomResizedCrop(224), tsds.StoreDataset(digits.path, "train", fields=["label"])

    def photographs(count: int) -> Iterable[Any]:
        return tsds.DataLoader(images.subset(range(count * 32)), 32, decode=crop, **options)

    def naps(count: int) -> Iterable[Any]:
        return tsds.DataLoader(numbers.subset(range(count * 256)), 256, **options)

    def figure(what: str, values: Sequence[float], limit: float, unit: str = "x", more: str = "") -> Figure:
        note = f"{spread(values, decimals=3)}, {repeat} rounds{more}"
        return Figure(f"{what}, {threads} threads", statistics.median(values), limit, unit, 3, note=note)

    batches = len(images) // 32
    per_batch = statistics.median(epoch_of(photographs(batches)) for _ in range(3)) / batches
    yield figure(
        "photographs, batch 32: the first batch, relative to a batch's share of the epoch",
        [first(photographs, batches) for _ in range(repeat)],
        THREADS[threads],
    )
    yield figure(
        "photographs, epochs of 8 batches: share of the time that the script waits",
        [waiting(photographs, per_batch, min(8, batches)) for _ in range(repeat)],
        *(0.05, ""),
    )
    with simulated():
        yield figure(
            "rows that sleep 1 ms: the first batch, relative to a batch's share of the epoch",
            [first(naps, 30) for _ in range(repeat)],
            THREADS[threads],
        )
        yield figure(
            "rows that sleep 1 ms, epochs of 8 batches: share of the time that the script waits",
            [waiting(naps, 256 / threads * NAP, 8) for _ in range(repeat)],
            *(0.02, ""),
        )
    values, theirs = disturbed(digits.subset(range(len(digits) // 2)), threads, repeat)
    yield figure(
        "MNIST, batch 500: steps of 2,500 small operations, relative to steps with one kept batch",
        *(values, 1.05, "x", f"; TensorDataset with 2 workers: {spread(theirs, decimals=3)}"),
    )
