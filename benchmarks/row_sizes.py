"""Gathering random rows of many sizes, into an aligned and a misaligned buffer, against copying them in one piece."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.measure import Figure, Settings, alternate, as_result, ratio_of_medians, seconds_of
from tensorstore_ds.format.schema import ArraySpec
from tensorstore_ds.reading.columns import Column, aligned_empty

#: Bytes of a row: 64 bytes to 4 MB.
ROW_NBYTES = tuple(4**power for power in range(3, 12))
#: Of all rows, and of those that are taken at a time: more than the processor's caches hold.
NBYTES, TAKEN_NBYTES = 512 * 1024**2, 32 * 1024**2
#: Where `malloc` begins large arrays, after a page.
MALLOC_OFFSET = 16
LIMIT, LIMIT_FROM = 0.85, 64 * 1024
#: A timing is the best of so many copies: what else the machine does can only make one slower.
_BEST_OF = 3


def measure(settings: Settings) -> dict[str, Any]:
    """`Column.take` in one thread, for each size of rows; a row each, with rates in bytes per second."""
    source = aligned_empty((NBYTES,), np.uint8)
    source.view(np.uint64)[...] = np.arange(NBYTES // 8)
    memory = aligned_empty((TAKEN_NBYTES + 4096,), np.uint8)
    memory.fill(1)
    sizes = [measure_size(source, memory, nbytes, settings.repeat) for nbytes in ROW_NBYTES]
    large = [size for size in sizes if size["row_nbytes"] >= LIMIT_FROM]
    share = min(size["aligned_share"] for size in large)
    what = "take random rows of 64 KiB to 4 MiB, aligned buffer: speed of the slowest size, relative to memcpy"
    figures = [Figure(what, share, LIMIT, "x", at_least=True, note="1 thread")]
    return as_result(figures, sizes=sizes)


def measure_size(
    source: NDArray[np.uint8], memory: NDArray[np.uint8], row_nbytes: int, repeat: int
) -> dict[str, int | float]:
    """Rates for rows of one size, `memory` being at least 16 bytes longer than what is taken at a time."""
    rows = source[: len(source) // row_nbytes * row_nbytes].reshape(-1, row_nbytes)
    count = max(1, (len(memory) - MALLOC_OFFSET) // row_nbytes)
    column = Column("rows", ArraySpec("uint8", (row_nbytes,)), [len(rows)], lambda _: rows)
    outs = [memory[start:][: count * row_nbytes].reshape(count, row_nbytes) for start in (0, MALLOC_OFFSET)]
    rng = np.random.default_rng(0)

    def taking(out: NDArray[np.uint8]) -> float:
        chosen = rng.integers(0, len(rows), count)
        took = best(partial(column.take, chosen, out=out))
        if not np.array_equal(out[-1], rows[chosen[-1]]):
            raise RuntimeError(f"rows of {row_nbytes} bytes: one that was taken is not the one that is stored")
        return took

    def copying() -> float:
        first = int(rng.integers(0, len(rows) - count + 1))
        return best(partial(np.copyto, outs[0], rows[first : first + count]))

    memcpy, aligned, misaligned = alternate([copying, *(partial(taking, out) for out in outs)], repeat)
    result: dict[str, int | float] = {"row_nbytes": row_nbytes}
    for name, seconds in (("memcpy", memcpy), ("aligned", aligned), ("misaligned", misaligned)):
        result[name] = round(count * row_nbytes / statistics.median(seconds))
    for name, seconds in (("aligned", aligned), ("misaligned", misaligned)):
        result[f"{name}_share"] = round(ratio_of_medians(memcpy, seconds), 4)
    return result


def best(copy: Callable[[], object]) -> float:
    """Seconds of the quickest of a few calls."""
    return min(seconds_of(copy) for _ in range(_BEST_OF))
