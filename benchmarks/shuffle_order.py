"""Speed, memory and quality of the two algorithms of `ShuffleSampler`.

Run ``python -m benchmarks.shuffle_order [ROWS ...]``. Both algorithms take turns, 7 times.
"""

from __future__ import annotations

import statistics
import sys
import time
import tracemalloc
from collections import deque
from typing import get_args

import numpy as np
from numpy.typing import NDArray

import tensorstore_ds as tsds
from tensorstore_ds.loading.block_shuffle import shuffle_quality
from tensorstore_ds.loading.samplers import Algorithm

ROUNDS, CELLS = 7, 100


def cpu_seconds(sampler: tsds.ShuffleSampler) -> tuple[float, float]:
    """Until the first rows of an epoch are known, and until all are."""
    begin = time.process_time()
    pieces = sampler.pieces()
    next(pieces)
    first = time.process_time()
    deque(pieces, maxlen=0)
    return first - begin, time.process_time() - begin


def peak_nbytes(sampler: tsds.ShuffleSampler) -> int:
    """Peak memory of an epoch's order that is not kept."""
    tracemalloc.start()
    deque(sampler.pieces(), maxlen=0)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak


def deviation(numbers: NDArray[np.int64], size: int) -> float:
    """Chi-square of numbers that should be even in ``range(size)``, as standard deviations from what is expected."""
    counts = np.bincount(numbers * CELLS // size, minlength=CELLS)
    expected = len(numbers) / CELLS
    return float((((counts - expected) ** 2 / expected).sum() - (CELLS - 1)) / np.sqrt(2 * (CELLS - 1)))


def quality(rows: NDArray[np.int64]) -> tuple[float, ...]:
    """`shuffle_quality`, the deviations of displacements and of steps, and neighbors' correlation times sqrt(n)."""
    size = len(rows)
    moved, steps = (rows - np.arange(size)) % size, np.diff(rows) % size
    correlation = np.corrcoef(rows[:-1], rows[1:])[0, 1] * np.sqrt(size)
    return shuffle_quality(rows), deviation(moved, size), deviation(steps, size), float(correlation)


def main(sizes: list[int]) -> None:
    """Print a line for each number of rows and algorithm."""
    for size in sizes:
        samplers = {algorithm: tsds.ShuffleSampler(size, algorithm=algorithm) for algorithm in get_args(Algorithm)}
        times: dict[str, list[tuple[float, float]]] = {algorithm: [] for algorithm in samplers}
        measures: dict[str, list[tuple[float, ...]]] = {algorithm: [] for algorithm in samplers}
        for epoch in range(ROUNDS):
            for algorithm, sampler in samplers.items():
                sampler.set_epoch(epoch)
                times[algorithm].append(cpu_seconds(sampler))
                if size <= 2_000_000:
                    measures[algorithm].append(quality(sampler.rows()))
        for algorithm, sampler in samplers.items():
            first, whole = (statistics.median(each) for each in zip(*times[algorithm], strict=True))
            line = (
                f"{size:>11,} rows, {algorithm:12}: {whole / size * 1e9:6.1f} ns per row, first {first * 1e3:9.2f} ms"
            )
            line += f", {peak_nbytes(sampler) / 1e6:8.2f} MB"
            if measures[algorithm]:
                mixed, *others = (statistics.mean(each) for each in zip(*measures[algorithm], strict=True))
                line += f", quality {mixed:.4f}, deviations {', '.join(f'{each:+.2f}' for each in others)}"
            print(line, flush=True)


if __name__ == "__main__":
    main([int(each) for each in sys.argv[1:]] or [10_000, 1_281_167, 10_000_000])
