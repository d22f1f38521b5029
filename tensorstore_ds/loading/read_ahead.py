"""Tell the system which rows a block shuffle will want next, so that the disk works while batches are gathered."""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tensorstore_ds.loading.block_shuffle import BlockShuffleSampler
from tensorstore_ds.loading.dataset import StoreDataset
from tensorstore_ds.reading.columns import Column

Group = list[NDArray[np.int64]]

#: Bytes asked for at once. Linux reads no more for one call than the disk's own limit, which is seldom less than this,
#: and leaves the rest out without a word.
STEP_NBYTES = 128 * 1024


def advise(groups: Iterator[Group], dataset: StoreDataset, sampler: Any, position: int) -> Iterator[Group]:
    """Pass groups on; before each, ask the system to read what the window after the group's own will want.

    Args:
        groups: batches of indices, in order.
        dataset: a data set of a whole split; a subset's rows lie anywhere, so that nothing is asked for it.
        sampler: only a `BlockShuffleSampler` knows what comes next.
        position: of the first group's first row in the epoch.
    """
    if not isinstance(sampler, BlockShuffleSampler) or dataset.rows is not None:
        yield from groups
        return
    plan = sampler.read_ahead()
    columns = [c for name in dataset.fields if isinstance(c := dataset.split[name], Column)]
    asked = int(plan.last.searchsorted(position, "right"))  # of the window under way too: it was left in the middle
    for group in groups:
        stop = position + sum(len(batch) for batch in group)
        until = int(plan.first.searchsorted(stop + sampler.window_rows))
        for i in range(asked, until):
            for column in columns:
                will_need(column, int(plan.starts[i]), int(plan.stops[i]))
        asked, position = max(asked, until), stop
        yield group


def will_need(column: Column, start: int, stop: int) -> None:
    """Ask the system to read rows ``[start, stop)`` of a column into the page cache; returns at once."""
    for rows in column.pieces(start, stop):
        mapped = rows
        while isinstance(mapped, np.ndarray):
            mapped = mapped.base  # type: ignore[assignment]
        if not isinstance(mapped, mmap.mmap) or not hasattr(mmap, "MADV_WILLNEED"):
            return  # compressed, or a system without such advice: rows are read when they are wanted
        first = rows.__array_interface__["data"][0] - np.frombuffer(mapped, np.uint8).__array_interface__["data"][0]
        page = first // mmap.PAGESIZE * mmap.PAGESIZE
        stop = min(first + rows.nbytes, len(mapped))
        for position in range(page, stop, STEP_NBYTES):
            mapped.madvise(mmap.MADV_WILLNEED, position, min(STEP_NBYTES, stop - position))
