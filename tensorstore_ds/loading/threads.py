"""Batches gathered ahead by threads, in order.

Threads, not processes: NumPy's take and Pillow's decoders release the GIL, and processes would add a second copy
through shared memory and a pipe.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tensorstore_ds.loading.dataset import StoreDataset
from tensorstore_ds.loading.epoch import LoaderStats
from tensorstore_ds.loading.fields import is_decoded

#: Batches of indices that one task gathers together.
Group = list[NDArray[np.int64]]

#: Batches smaller than this are gathered several at a time and cut apart: a gather has a cost of its own.
GROUP_NBYTES = 1024**2
_THREAD_NAME = "tsds-loader"


def ahead(
    make: Callable[[Group], list[Any]], groups: Iterable[Group], stats: LoaderStats, *, width: int, depth: int
) -> Iterator[Any]:
    """The batches that `make` makes of each group, in order, while `width` threads work up to `depth` groups ahead.

    The threads begin with the first batch that is asked for, and end with this iterator.
    """

    def timed(group: Group) -> tuple[list[Any], float]:
        began = time.perf_counter()
        return make(group), time.perf_counter() - began

    def oldest() -> list[Any]:
        stats.requests += 1
        stats.ready += sum(future.done() for future in waiting)
        batches, seconds = waiting.popleft().result()
        stats.gather += seconds  # added by this thread: the others would lose some of each other's
        return batches

    process = os.getpid()
    waiting: deque[Future[tuple[list[Any], float]]] = deque()
    threads = ThreadPoolExecutor(width, thread_name_prefix=_THREAD_NAME)
    try:
        for group in groups:
            waiting.append(threads.submit(timed, group))
            if len(waiting) > depth:
                yield from oldest()
        while waiting:
            yield from oldest()
    finally:
        if os.getpid() == process:  # a forked child has none of them
            # A garbage collection, and with it this, may run in one of them, which cannot wait for itself.
            inside = threading.current_thread().name.startswith(_THREAD_NAME)
            threads.shutdown(wait=not inside, cancel_futures=True)


def grouped(batches: Iterable[NDArray[np.int64]], dataset: StoreDataset) -> Iterator[Group]:
    """Batches of indices, small ones several at a time.

    If samples are decoded or transformed, each is alone: what takes long should wait for no other, however few bytes it
    has in the store.
    """
    alone = dataset.transform is not None or any(is_decoded(dataset.split.fields[name]) for name in dataset.fields)
    nbytes = dataset.nbytes
    group: Group = []
    rows = 0
    for batch in batches:
        group.append(batch)
        rows += len(batch)
        if alone or rows * nbytes >= GROUP_NBYTES * len(dataset.split):
            yield group
            group, rows = [], 0
    if group:
        yield group
