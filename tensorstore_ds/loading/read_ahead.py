"""Request the rows of coming batches from the disk, if the system's own read-ahead cannot know them.

If samples do not fit into memory, the maps of large arrays are advised to be read randomly (`page_cache.shortage`), and
the rows of coming batches are requested, whatever their order. Stores by URL are fetched, and windows of a
`BlockShuffleSampler` are requested, also if samples fit.
"""

from __future__ import annotations

import itertools
import logging
import os
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from tensorstore_ds import words
from tensorstore_ds.loading.block_shuffle import BlockShuffleSampler
from tensorstore_ds.loading.dataset import StoreDataset
from tensorstore_ds.loading.samplers import SubsetSampler
from tensorstore_ds.loading.samples import Samples
from tensorstore_ds.machine import local_ranks
from tensorstore_ds.reading.mirror_file import pool
from tensorstore_ds.reading.store import Asked

#: Bytes of rows per request, and their share of memory. Twice as many are pending.
AHEAD_NBYTES, AHEAD_SHARE = 64 * 1024**2, 1 / 16
#: Largest share of memory for the requested windows of `BlockShuffleSampler` of all ranks. Two of each are pending.
WINDOW_SHARE = 1 / 6
#: Groups of batches of a store by URL that are fetched at the same time, and those that may be skipped.
_FETCHING, _BEGUN = 4, 256
#: Requests of at least this many bytes are about as fast in random order as in order.
_LARGE_REQUEST = 1024**2

#: Number of rows that show what an order costs.
_SEEN = 16

T = TypeVar("T")
log = logging.getLogger("tensorstore_ds")


class ReadAhead:
    """Request the rows of batches before they are gathered, and advise random reads, also in copies of the data set."""

    def __init__(self, dataset: Samples, sampler: Any, *, speaks: bool) -> None:
        self._dataset, self._speaks = dataset, speaks
        self._is_remote = any(part.split.is_remote for part in dataset.loaded)
        self._seen, self._asked = 0, Asked(0, 0, 0)
        visited = None
        if isinstance(sampler, SubsetSampler) and isinstance(dataset, StoreDataset):
            visited = dataset.subset(sampler.subset).loaded
        self.shortage = dataset._expect_epochs(visited)
        whole = not any(part.partly for part in dataset.loaded)
        self._in_blocks = isinstance(sampler, BlockShuffleSampler)
        window = sampler.window_rows if self._in_blocks and whole else 0
        allowed = np.inf if self.shortage is None else self.shortage.limit * WINDOW_SHARE / local_ranks()
        self._window = window if window * dataset.row_nbytes <= allowed else 0

    def before(self, items: Iterable[T], rows_of: Callable[[T], NDArray[np.int64]], position: int) -> Iterator[T]:
        """Pass items on after the rows of later ones were requested. `position` is the first sample's in the epoch."""
        if self._is_remote:
            return self._ask(items, rows_of, position, most=0)
        if self._window:
            return self._ask(items, rows_of, position, most=self._window)
        if self.shortage is None:
            return iter(items)
        budget = min(AHEAD_NBYTES, int(self.shortage.limit * AHEAD_SHARE))
        return self._ask(items, rows_of, position, most=max(1, int(budget / max(1, self._dataset.row_nbytes))))

    def _ask(
        self, items: Iterable[T], rows_of: Callable[[T], NDArray[np.int64]], position: int, *, most: int
    ) -> Iterator[T]:
        """Request the rows of some items together, so that neighbors are read together; hold back at most `most` rows.

        The first requests are small, so that the first batch is ready soon. Later ones have `most` rows, or a window.
        """
        every = self.shortage is None
        process = os.getpid()
        threads = pool("ahead", _FETCHING) if self._is_remote else ThreadPoolExecutor(1, thread_name_prefix="tsds-ask")
        begun: deque[Future[Asked]] = deque(maxlen=_BEGUN)
        chunk, kept, held = list[T](), deque[tuple[T, int]](), 0
        rows, count, size = list[NDArray[np.int64]](), 0, 1
        try:
            for item in itertools.chain(items, [None]):
                if item is not None:
                    chunk.append(item)
                    rows.append(rows_of(item))
                    count += len(rows[-1])
                    if count < (self._window - position % self._window if self._window else size):
                        continue
                if count:
                    begun.append(threads.submit(self._dataset._will_need, np.concatenate(rows), every=every))
                    self._tell(begun[-1], count)
                kept.extend(zip(chunk, map(len, rows), strict=True))
                held, position, size = held + count, position + count, min(2 * max(size, count), most)
                chunk, rows, count = [], [], 0
                while kept and (held > most or item is None):
                    ready, length = kept.popleft()
                    held -= length
                    yield ready
        finally:
            if os.getpid() == process:  # a forked child has no such thread, and its futures may be locked forever
                for future in begun:
                    future.cancel()
                if not self._is_remote:  # do not wait: garbage collection may end this while any lock is held
                    threads.shutdown(wait=False)

    def _tell(self, asked: Future[Asked], rows: int) -> None:
        """Tell the user once what is read, as soon as enough rows show it."""
        if self.shortage is None or not self._speaks or asked.exception() is not None:  # raised by their batch
            return
        self._seen, self._asked = self._seen + rows, Asked(*map(sum, zip(self._asked, asked.result(), strict=True)))
        if self._seen < _SEEN:
            return
        self._speaks, rows, found = False, self._seen, self._asked
        need, limit = words.size(self.shortage.nbytes), words.size(self.shortage.limit)
        text = (
            f"{self._dataset.title}: expected samples that fit into memory, found {need} and {limit} of memory. "
            f"Each epoch reads them from the disk: in this order {found.nbytes / max(1, found.used):.1f} bytes per "
            f"byte that is used, in {found.requests / rows:.2g} requests per sample."
        )
        is_scattered = found.requests > rows / 4 and found.nbytes < found.requests * _LARGE_REQUEST
        if is_scattered and not self._in_blocks:
            advice = "BlockShuffleSampler reads many neighbors with one request, which is faster."
            warnings.warn(f"{text} {advice}", stacklevel=2)
        else:
            log.info(text)
