"""One iteration of a loader. It owns the position in an epoch."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from typing import Any, Literal

from torch import Tensor

from tensorstore_ds.loading.batches import TransformsBatches
from tensorstore_ds.loading.device import IdleTime
from tensorstore_ds.loading.static_batch import StaticBatch

#: What limits training, in the property `LoaderStats.cause`.
Cause = Literal["", "loading", "handover", "script", "training"]
#: Share of the time from which on training counts as waiting.
WAITING = 0.05


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
    #: seconds of `wait` in which the batch was not finished, because threads or workers were too slow. In the rest,
    #: finished batches were handed over.
    late: float = 0.0
    transform: float = 0.0  #: seconds of batch transforms in the script's thread, and of copies for `into`
    script: float = 0.0  #: seconds of the script between a batch and its request for the next one
    drained: int = 0  #: number of batches that were ready, but a GPU had already finished all earlier work

    @property
    def depth(self) -> float:
        """Mean number of tasks that were ready when the loader asked for one. Below 1, the threads are too slow."""
        return self.ready / self.requests if self.requests else 0.0

    @property
    def cause(self) -> Cause:
        """What limits training, in one word.

        =========== =================================================================================================
        `loading`   Batches are not finished when the script asks for them.
        `handover`  Batches are finished, but handing them over takes long: copies to the device, batch transforms on
                    the CPU, or threads that hold the GIL.
        `script`    The GPU waits for the script, though batches are ready: the script launches its kernels too slowly,
                    or waits for the GPU in each step.
        `training`  Training waits for nothing else.
        =========== =================================================================================================

        Training counts as waiting from 5% of the time on. On a GPU, its idle time counts, otherwise `wait` and
        `transform`. The cause is empty before the first batch.

        >>> LoaderStats(batches=100, wait=4.0, late=3.9, script=6.0).cause
        'loading'
        >>> LoaderStats(batches=100, wait=4.0, late=0.1, script=6.0).cause
        'handover'
        >>> LoaderStats(batches=100, wait=0.1, idle=0.1, script=9.9, drained=98).cause
        'script'
        >>> LoaderStats(batches=100, wait=0.1, script=9.9).cause
        'training'
        """
        is_on_gpu = self.idle > 0 or self.copy > 0  # a GPU that is late has not measured its idle time yet
        lost = self.idle if is_on_gpu else self.wait + self.transform
        if lost > WAITING * (self.wait + self.transform + self.script):
            return "loading" if 2 * self.late >= lost else "handover"
        is_drained = 2 * self.drained > self.batches
        return "script" if is_drained else "training" if self.batches else ""

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
        self._busy = threading.RLock()  # an interrupt may leave it held: this thread gets it nevertheless
        self._position = Position()
        self._batches: Iterator[Any] | None = None
        self._over = False
        self._returned: float | None = None  # when the script got its last batch

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
        began, stats = time.perf_counter(), self._stats
        if self._returned is not None:
            stats.script += began - self._returned
        late = stats.late
        asked = None if self._idle is None else self._idle.ask()
        if self._batches is None:
            self._position, self._batches = self._begin()
        try:
            batch = next(self._batches)
        except StopIteration:
            self._position.ended = True
            raise
        if self._idle is not None and asked is not None:
            stats.drained += self._idle.hand_over(asked) and stats.late == late
        self._returned = time.perf_counter()
        stats.wait += self._returned - began
        stats.batches += 1
        if self._transform is not None:
            collated, rows = batch
            batch = self._transform(collated, rows, self._position.epoch)
        if self._static is not None:
            batch = self._static.fill(batch)
        if self._transform is not None or self._static is not None:
            before, self._returned = self._returned, time.perf_counter()
            stats.transform += self._returned - before
        self._position.batch += 1
        return batch
