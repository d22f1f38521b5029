"""Gathering random rows into a buffer that is used again, against copying as many bytes that lie in one piece."""

from __future__ import annotations

import itertools
import shutil
import statistics
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

import tensorstore_ds as tsds
from benchmarks.measure import Figure, Settings, alternate, as_result, rates, ratio_of_medians, seconds_of

ROWS, BATCH, SHAPE = 5000, 256, (256, 256, 3)
LIMIT = 0.85
_ROUNDS = 20  # for each of the settings' rounds: one takes a few milliseconds


class RandomImages(Sequence[NDArray[np.uint8]]):
    """A data set of noise: each image from its number, so that nothing but the store lies on disk."""

    def __len__(self) -> int:
        return ROWS

    def __getitem__(self, index: Any) -> Any:
        return np.random.default_rng(index).integers(0, 256, SHAPE, np.uint8)


def measure(settings: Settings) -> dict[str, Any]:
    """`Column.take` relative to memcpy: `np.copyto` of a contiguous array of the same size, in one thread as well.

    Copied are consecutive rows of an array in anonymous memory that is as large as the whole column, another place
    each time: warm, and no more in the processor's caches than the rows that are taken at random. The target buffer is
    the same. Every page of the map has been touched before.
    """
    path = settings.scratch / "noise.tsds"
    tsds.convert(RandomImages(), path, workers=2)
    column = tsds.open(path)["train"]["image"]
    memory = column.take(np.arange(ROWS))
    out = column.take(np.arange(BATCH))
    rng = np.random.default_rng(0)
    batches = itertools.cycle([rng.choice(ROWS, BATCH, replace=False) for _ in range(50)])
    starts = itertools.cycle(rng.integers(0, ROWS - BATCH, 50).tolist())

    def taking() -> float:
        rows = next(batches)
        took = seconds_of(lambda: column.take(rows, out=out))
        if not np.array_equal(out[-1], memory[rows[-1]]):
            raise RuntimeError(f"{path}: a row that was taken is not the one that is stored")
        return took

    def copying() -> float:
        source = memory[(start := next(starts)) : start + BATCH]
        return seconds_of(lambda: np.copyto(out, source))

    ours, memcpy = alternate([taking, copying], settings.repeat * _ROUNDS)
    shutil.rmtree(path)
    gigabytes = out.nbytes / 1e9
    note = (
        f"{rates(gigabytes, ours, 1)} against {rates(gigabytes, memcpy, 1)} GB/s, "
        f"{BATCH / statistics.median(ours):,.0f} rows/s"
    )
    what = f"take {BATCH} random rows of 256x256x3 out of {ROWS:,}, buffer reused: speed, relative to memcpy"
    return as_result([Figure(what, ratio_of_medians(memcpy, ours), LIMIT, "x", at_least=True, note=note)])
