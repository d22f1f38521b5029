"""One iteration of a loader. It owns the position in an epoch, and returns batches that threads gather ahead.

Threads are used instead of processes, because NumPy's `take` and Pillow's decoders release the GIL. Processes would add
a second copy through shared memory and a pipe.
"""

from __future__ import annotations

import functools
import operator
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from threadpoolctl import ThreadpoolController
from torch import Tensor

from tensorstore_ds.loading.batches import TransformsBatches
from tensorstore_ds.loading.device import IdleTime
from tensorstore_ds.loading.fields import is_decoded
from tensorstore_ds.loading.samples import Samples
from tensorstore_ds.loading.static_batch import StaticBatch

#: Batches of indices that one task gathers.
Group = list[NDArray[np.int64]]

#: Batches smaller than this are gathered several at a time and then divided, because each gather has a fixed cost.
GROUP_NBYTES = 2 * 1024**2
_OUR_THREADS = "tsds-"
_THREAD_NAME = f"{_OUR_THREADS}loader"


@dataclass(slots=True)
class Position:
    """Position of an iteration in an epoch."""

    epoch: int = 0
    batch: int = 0  #: number of batches that were returned, or skipped by a resumed iteration
    start: int = 0  #: number of samples, all ranks together, that another number of ranks used before batch 0
    drawn: Tensor | None = None  #: state of the sampler's generator, if any, before this epoch's order was drawn
    begun: bool = False  #: whether an iterator uses it, so that the next iterator begins with the next epoch
    ended: bool = False  #: whether there are no more batches


@dataclass(slots=True)
class LoaderStats:
    """Time that a loader spent on each task, in seconds, since the loader was created.

    >>> loader = tsds.DataLoader(tsds.StoreDataset("photos.tsds", "train"), batch_size=2)
    >>> before = loader.stats()
    >>> for batch in loader:
    ...     pass
    >>> (loader.stats() - before).batches
    4
    """

    batches: int = 0  #: number of batches that were returned
    wait: float = 0.0  #: seconds in which the host waited for batches and blocking copies, not for batch transforms
    gather: float = 0.0  #: seconds in which threads gathered, transformed and collated, the sum of all threads
    copy: float = 0.0  #: seconds of copies to a GPU, which run on a separate stream; 0 on other devices
    ready: int = 0  #: number of finished tasks (batches, or groups of small ones) at each request, summed up
    requests: int = 0  #: number of requests for a task
    replaced: int = 0  #: number of damaged images that this process has replaced with other samples
    #: seconds in which a GPU was idle because the next batch was not ready; 0 on other devices. The host may wait
    #: while the GPU still works.
    idle: float = 0.0

    @property
    def depth(self) -> float:
        """Mean number of tasks that were ready when the loader asked for one. Below 1, the threads are too slow."""
        return self.ready / self.requests if self.requests else 0.0

    def __sub__(self, earlier: LoaderStats) -> LoaderStats:
        """Return the difference to earlier statistics, for example of an epoch or of 100 steps."""
        return LoaderStats(*(getattr(self, f.name) - getattr(earlier, f.name) for f in fields(self)))


class Epoch(Iterator[Any]):
    """Iterator over the batches of one epoch, for one thread at a time, in the process that created it.

    It starts when you request the first batch. After StopIteration, another exception or `close`, every further `next`
    raises StopIteration and changes nothing. `begin` returns the position and the batches from there on, as pairs of a
    batch and its rows if there is a `transform`. `static` are tensors that all batches are copied into.
    """

    def __init__(
        self,
        begin: Callable[[], tuple[Position, Iterator[Any]]],
        stats: LoaderStats,
        transform: TransformsBatches | None,
        count: Callable[[], int],
        idle: IdleTime | None = None,
        static: StaticBatch | None = None,
    ) -> None:
        self._begin, self._stats, self._transform, self._count = begin, stats, transform, count
        self._idle, self._static = idle, static
        self._process = os.getpid()
        self._busy = threading.Lock()
        self._position = Position()
        self._batches: Iterator[Any] | None = None
        self._over = False

    def __next__(self) -> Any:
        """Return the next batch. Raises RuntimeError in a different process, or while it serves another thread."""
        if os.getpid() != self._process:
            raise RuntimeError(
                f"loader: expected next() in process {self._process}, which made this iterator and has its threads or "
                f"workers, found process {os.getpid()}. Make an iterator here: iter(loader)."
            )
        if not self._busy.acquire(blocking=False):
            raise RuntimeError(
                "loader: expected one thread that asks for batches, found two. Use one loader for each thread."
            )
        try:
            if self._over:
                raise StopIteration
            return self._next()
        except BaseException:
            self.close()
            raise
        finally:
            self._busy.release()

    def __len__(self) -> int:
        """Number of batches of the whole epoch. Raises TypeError if it is unknown."""
        return self._count()

    def __getattr__(self, name: str) -> Any:
        """Attributes of torch's own iterator, such as its worker processes, after the first batch."""
        if name.startswith("__") or self.__dict__.get("_batches") is None:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return getattr(self._batches, name)

    def close(self) -> None:
        """Stop the threads and processes now. Otherwise, they end with the last reference to the iterator."""
        self._over, self._batches = True, None

    def _next(self) -> Any:
        began = time.perf_counter()
        asked = None if self._idle is None else self._idle.ask()
        if self._batches is None:
            self._position, self._batches = self._begin()
        try:
            batch = next(self._batches)
        except StopIteration:
            self._position.ended = True
            raise
        if self._idle is not None and asked is not None:
            self._idle.hand_over(asked)
        self._stats.wait += time.perf_counter() - began
        self._stats.batches += 1
        if self._transform is not None:
            collated, rows = batch
            batch = self._transform(collated, rows, self._position.epoch)
        if self._static is not None:
            batch = self._static.fill(batch)
        self._position.batch += 1
        return batch


class Ahead(Iterable[Any]):
    """The batches that `make` returns for each group, in order. `width` threads work up to `depth()` groups ahead."""

    def __init__(
        self,
        make: Callable[[Group], list[Any]],
        groups: Iterable[Group],
        stats: LoaderStats,
        *,
        width: int,
        depth: Callable[[], int],
    ) -> None:
        self._make, self._groups, self._stats = make, groups, stats
        self._width, self._depth = width, depth
        self._waiting: deque[Future[tuple[list[Any], float]]] = deque()
        self._made: Iterator[Any] = iter([])  # the rest of the current task

    def ready(self) -> bool:
        """Whether the next batch is ready, so that a request does not wait."""
        return operator.length_hint(self._made) > 0 or (bool(self._waiting) and self._waiting[0].done())

    def __iter__(self) -> Iterator[Any]:
        process = os.getpid()
        threads = ThreadPoolExecutor(self._width, thread_name_prefix=_THREAD_NAME, initializer=_compute_alone)
        try:
            for group in self._groups:
                self._waiting.append(threads.submit(self._timed, group))
                while len(self._waiting) > self._depth():
                    yield from self._oldest()
            while self._waiting:
                yield from self._oldest()
        finally:
            if os.getpid() == process:  # a forked child has none of these threads
                # Garbage collection may run this in one of these threads, which cannot wait for itself, or in a
                # thread of this library that they may wait for, such as one that fetches.
                inside = threading.current_thread().name.startswith(_OUR_THREADS)
                threads.shutdown(wait=not inside, cancel_futures=True)
            self._waiting.clear()  # the traceback of a failed task refers to this object and would keep batches alive

    def _timed(self, group: Group) -> tuple[list[Any], float]:
        began = time.perf_counter()
        return self._make(group), time.perf_counter() - began

    def _oldest(self) -> Iterator[Any]:
        """Return the batches of the oldest task."""
        self._stats.requests += 1
        self._stats.ready += sum(future.done() for future in self._waiting)
        batches, seconds = self._waiting.popleft().result()
        self._stats.gather += seconds  # added in this thread, because concurrent additions would lose some
        self._made = iter(batches)
        return self._made


@functools.cache
def _libraries() -> ThreadpoolController:
    return ThreadpoolController()


def _compute_alone() -> None:
    """Limit OpenMP to 1 thread in this thread, as torch does in workers, because more would compete for the cores."""
    torch.get_num_threads()  # torch sets its default when a thread asks for the first time
    _libraries().limit(limits=1, user_api="openmp")


def grouped(batches: Iterable[NDArray[np.int64]], dataset: Samples, *, mixed: bool = False) -> Iterator[Group]:
    """Group small batches of indices.

    Decoded or transformed samples stay one batch per group, so that no batch waits for slow ones, however few bytes it
    has in the store. So do batches whose samples are `mixed`. The first groups are small, so that the first batch is
    ready soon.
    """
    decoded = dataset.decode is not None or any(is_decoded(dataset.schema[name]) for name in dataset.fields)
    alone = decoded or mixed or dataset.transform is not None
    row_nbytes = dataset.row_nbytes
    group: Group = []
    rows, least = 0, 0.0
    for batch in batches:
        group.append(batch)
        rows += len(batch)
        if alone or rows * row_nbytes >= min(least, GROUP_NBYTES):
            yield group
            group, rows, least = [], 0, 2 * rows * row_nbytes
    if group:
        yield group
