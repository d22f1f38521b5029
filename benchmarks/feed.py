"""What a fast GPU notices of a loader, measured without one.

Run ``python -m benchmarks.feed DIGITS.tsds PHOTOGRAPHS.tsds [--threads 8]``; it prints medians with their range:

- *first*: time to the first batch of an epoch, in units of a batch's share of the whole epoch. Ideal is 1.
- *waiting*: share of its time that a script waits, if each step takes 1.3 times as long as the loader needs per batch,
  over epochs of a few batches. Ideal is 0.
- *disturbed*: how much longer steps of pure launching take (Python, and small calls of torch, as in eager training of a
  small model on a GPU) than with one batch that is kept. Ideal is 1. torch's loader with two workers stands beside it.

*Simulated* rows sleep for 1 ms instead of being decoded, so that cores are no limit.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from typing import Any

import torch
from torch.utils import data

import tensorstore_ds as tsds
from tensorstore_ds.annex.measuring.measure import cpu_seconds
from tensorstore_ds.loading import feed
from tensorstore_ds.loading.crew import share

ROUNDS = 7
#: Steps take so many times as long as the loader needs for a batch.
NEED = 1.3
NAP = 0.001

Loaders = Callable[[int], Iterable[Any]]  # from a number of batches


def simulate() -> None:
    """Let each row of a batch take the time that it would take to decode, without a core."""
    gather = tsds.StoreDataset.gather

    def slowly(self: tsds.StoreDataset, rows: Any, *others: Any, **options: Any) -> Any:
        share(len(rows), lambda loop: [time.sleep(NAP) for _ in loop])  # type: ignore[arg-type, return-value]
        return gather(self, rows, *others, **options)

    tsds.StoreDataset.gather = slowly  # type: ignore[method-assign]
    feed.GROUP_NBYTES = 1  # so that each batch is a task


def seconds_of(batches: Iterable[Any], step: Callable[[], object] = lambda: None) -> float:
    """Time of an epoch."""
    begin = time.perf_counter()
    for _ in batches:
        step()
    return time.perf_counter() - begin


def first(loaders: Loaders, count: int) -> float:
    """Time to the first batch of a new loader, relative to a batch's share of the epoch."""
    begin = time.perf_counter()
    batches = iter(loaders(count))
    next(batches)
    after = time.perf_counter() - begin
    return after / ((after + seconds_of(batches)) / count)


def waiting(loaders: Loaders, per_batch: float, count: int, epochs: int = 6) -> float:
    """Share of the time that is waited in epochs of `count` batches, after a first one."""
    loader = loaders(count)
    seconds_of(loader)
    step = NEED * per_batch
    whole = sum(seconds_of(loader, lambda: time.sleep(step)) for _ in range(epochs))
    slept = seconds_of(range(epochs * count), lambda: time.sleep(step))
    return 1 - slept / whole


def launching() -> None:
    """Launch 2,500 small operations."""
    small = torch.zeros(64)
    for _ in range(2500):
        small.add_(1)


def disturbed(digits: tsds.StoreDataset, threads: int) -> None:
    """Print how much longer steps take with each loader."""
    (whole,) = tsds.DataLoader(digits, len(digits))
    tensors = data.TensorDataset(whole["image"], whole["label"])
    ways: dict[str, Iterable[Any]] = {
        "one batch that is kept": [0] * 60,
        f"{threads} threads": tsds.DataLoader(digits, 500, shuffle=True, num_threads=threads),
        "1 thread": tsds.DataLoader(digits, 500, shuffle=True, num_threads=1),
        "TensorDataset, 2 workers": data.DataLoader(tensors, 500, shuffle=True, num_workers=2, persistent_workers=True),
    }
    found: dict[str, list[float]] = {way: [] for way in ways}
    for round_ in range(ROUNDS + 1):
        for way, loader in ways.items():
            seconds = seconds_of(islice(loader, 60), launching)
            found[way] += [seconds] if round_ else []  # the first one warms up
    kept, *others = found.items()
    for way, seconds_each in others:
        say(f"disturbed, {way}", [a / b for a, b in zip(seconds_each, kept[1], strict=True)])


def say(what: str, values: Sequence[float]) -> None:
    """Print a median and the range."""
    print(f"{what}: {statistics.median(values):.3f} ({min(values):.3f} to {max(values):.3f})", flush=True)


def main() -> None:
    """Measure all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("digits")
    parser.add_argument("photographs")
    parser.add_argument("--threads", type=int, default=8)
    options = parser.parse_args()
    torch.set_num_threads(1)
    threads: dict[str, Any] = {"shuffle": True, "drop_last": True, "num_threads": options.threads}
    images = tsds.StoreDataset(options.photographs, fields=["image"])
    numbers = tsds.StoreDataset(options.digits, "train", fields=["label"])

    def photographs(batch: int) -> Loaders:
        rows = range(len(images))
        crop = tsds.RandomResizedCrop(224)
        return lambda count: tsds.DataLoader(images.subset(rows[: count * batch]), batch, decode=crop, **threads)

    def simulated(count: int) -> Iterable[Any]:
        return tsds.DataLoader(numbers.subset(range(count * 256)), 256, **threads)

    count = len(images) // 32
    used = cpu_seconds()
    per_batch = statistics.median(seconds_of(photographs(32)(count)) for _ in range(3)) / count
    print(
        f"a batch of 32 photographs: {per_batch * 1000:.1f} ms, CPU {(cpu_seconds() - used) / 3 / count * 1000:.1f} ms"
    )
    say("first, photographs", [first(photographs(32), count) for _ in range(ROUNDS)])
    say("waiting, photographs", [waiting(photographs(32), per_batch, min(8, count)) for _ in range(ROUNDS)])
    disturbed(
        tsds.StoreDataset(options.digits, "train", fields=["image", "label"]).subset(range(30_000)), options.threads
    )
    simulate()
    say("first, simulated", [first(simulated, 40) for _ in range(ROUNDS)])
    say("waiting, simulated", [waiting(simulated, 256 * NAP / options.threads, 8) for _ in range(ROUNDS)])


if __name__ == "__main__":
    main()
