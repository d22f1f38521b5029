"""The batches of a loader, made by threads ahead of the script that asks for them, epoch after epoch.

::

    order      (seed, epoch, rank) -> rows of each batch                        known for the next epoch, mostly
    source     rows -> a gathered batch                                         threads, all on the oldest batch
    finish     a gathered batch -> the script's batch, in pinned memory         threads
    device     copies on a side stream, some batches ahead                      the script's thread

While the last batches of an epoch are used, the first ones of the next are made. They are dropped if the script then
asks for a different epoch, position or order.
"""

from __future__ import annotations

import math
import os
import time
import weakref
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator
from typing import Any, Protocol, cast

import numpy as np
from numpy.typing import NDArray

from tensorstore_ds.loading.buffers import BufferPool
from tensorstore_ds.loading.crew import Crew, Task
from tensorstore_ds.loading.device import Copies, OnDevice
from tensorstore_ds.loading.epoch import LoaderStats
from tensorstore_ds.loading.fields import is_decoded
from tensorstore_ds.loading.samplers import PIECE, RowSampler
from tensorstore_ds.loading.samples import Batch, Samples

#: Batches of indices that one task gathers.
Group = list[NDArray[np.int64]]
#: Makes the batches of a group.
Make = Callable[[Group], list[Any]]

#: Batches smaller than this are gathered several at a time and then divided, because each gather has a fixed cost.
GROUP_NBYTES = 2 * 1024**2
#: Tasks ahead, at least.
LEAST_AHEAD = 3
#: Seconds to wait, at the end of a loader or of the program, for threads that may be stuck.
PATIENCE = 5.0


class Source(Protocol):
    """Gathers a batch: a data set, one with a transform or with a decoder."""

    def gather(self, indices: NDArray[np.int64], pool: BufferPool, draw: tuple[int, int]) -> Batch:
        """Return the batch of some indices in memory of `pool`. Random numbers follow from (seed, epoch)."""


def maker(
    source: Source,
    pool: BufferPool,
    draw: tuple[int, int],
    collate: Callable[[Batch, list[int]], list[Any]],
    finish: Callable[[list[Any]], list[Any]],
) -> Make:
    """Return the function that gathers the batches of a group, divides and collates them, and finishes them."""

    def make(group: Group) -> list[Any]:
        whole = source.gather(np.concatenate(group), pool, draw)
        return finish(collate(whole, [len(batch) for batch in group]))

    return make


class Run:
    """The batches of one epoch from a position on, and the tasks that make them.

    `key` is what the batches follow from, or None if this is not known. `groups` returns the rows of all batches.
    """

    def __init__(self, key: Hashable | None, make: Make, groups: Callable[[], Iterable[Group]]) -> None:
        self.key, self._make, self._draw = key, make, groups
        self._groups: Iterator[Group] | None = None
        self._ordering: Task | None = None
        self.tasks: deque[Task] = deque()
        self.finished: deque[None] = deque()  # one for each task that is done; appending is atomic
        self.batches: deque[Any] = deque()  # of the task that was asked for last
        self.copied: deque[OnDevice] = deque()
        self.error: Exception | None = None  # of the batch after these
        self.failed: Exception | None = None  # of the order, after all tasks
        self.is_whole = False  # all tasks were submitted

    def draw(self) -> None:
        """Draw the order, or wait until a thread has done so."""
        if self._ordering is not None:
            self._ordering.wait()
            self._ordering.result()
            self._ordering = None
        elif self._groups is None:
            self._groups = iter(self._draw())

    def prepare(self, crew: Crew, ahead: int) -> None:
        """Let a thread draw the order, and submit the first tasks. Until it has done so, nobody else does."""

        def begin() -> None:
            self._groups = iter(self._draw())
            while not crew.is_stopped and ahead > len(self.tasks) and self._submit(crew):
                pass

        self._ordering = crew.submit(begin)

    def submit(self, crew: Crew) -> bool:
        """Submit one more task; False if there is none, or if the order is still being drawn."""
        is_drawn = self._ordering is None or self._ordering.is_done
        return is_drawn and self._submit(crew)

    def _submit(self, crew: Crew) -> bool:
        if self._groups is None or self.is_whole:
            return False
        try:
            group = next(self._groups, None)
        except Exception as error:
            group, self.failed = None, error
        if group is None:
            self.is_whole = True
            return False
        make, finished = self._make, self.finished

        def made() -> list[Any]:
            try:
                return make(group)
            finally:
                finished.append(None)

        self.tasks.append(crew.submit(made))
        return True

    def drop(self, crew: Crew) -> None:
        """Forget all batches, and give up the tasks that were not asked for."""
        self.is_whole = True
        if self._ordering is not None:
            crew.drop([self._ordering])  # the thread that submits others
        crew.drop(self.tasks)
        for queue in (self.tasks, self.batches, self.copied):
            queue.clear()
        self.error = self.failed = None

    @property
    def is_ready(self) -> bool:
        """Whether the next batch is there, so that a request does not wait."""
        return bool(self.batches) or (bool(self.tasks) and self.tasks[0].is_done)

    @property
    def is_over(self) -> bool:
        """Whether all batches were taken."""
        return self.is_whole and not (self.tasks or self.batches or self.copied or self.error or self.failed)


class Feed:
    """Threads and queues of a loader, which live as long as it does.

    Args:
        width: number of threads.
        most_ahead: function that returns the largest number of tasks to begin ahead of the batch that is asked for.
        least_ahead: number to begin ahead at least, up to the largest one.
        stats: statistics of the loader, which the thread that iterates changes.
        copies: copies to a device, or None to return batches of the host.
        decode: function that completes a batch in the thread that iterates, such as images decoded by a GPU.
    """

    def __init__(
        self,
        width: int,
        most_ahead: Callable[[], int],
        stats: LoaderStats,
        *,
        least_ahead: int,
        copies: Copies | None,
        decode: Callable[[Any], Any] | None,
    ) -> None:
        self.width = width
        self.timeout = 0.0  #: seconds after which a batch that does not come is an error; 0 waits for ever
        self._new_crew()
        self._most_ahead, self._stats, self._copies, self._decode = most_ahead, stats, copies, decode
        self._least_ahead = least_ahead
        # Share of a task's time that only one thread can work on it, of the last tasks. None before the first one,
        # which is alone: the serial parts of others would delay it.
        self._serial: float | None = None
        self._next: Run | None = None  # of the epoch after the one that is used

    def _new_crew(self) -> None:
        self.crew = Crew(self.width)
        self._end = weakref.finalize(self, self.crew.stop)

    @property
    def is_of_this_process(self) -> bool:
        """Whether the threads are in this process, and not in the parent of a fork."""
        return self.crew.process == os.getpid()

    def begin(self, key: Hashable | None, new: Callable[[], Run]) -> Run:
        """Return the run that was prepared if it has this key, else a new one."""
        run, self._next = self._next, None
        if run is not None and (key is None or run.key != key):
            run.drop(self.crew)
            run = None
        return new() if run is None else run

    def batches(self, run: Run, following: Callable[[], Run | None]) -> Iterator[Any]:
        """Iterate over the batches of a run. `following` returns the run to prepare after it, if there is one."""
        prepared: Run | None = None
        is_asked = is_sound = False
        is_plain = self._copies is None and self._decode is None
        asked = time.perf_counter()
        run.draw()
        self._stats.late += time.perf_counter() - asked
        try:
            while True:
                is_sound = False
                self._fill(run)
                is_sound = True
                if run.is_whole and not is_asked:
                    is_asked, prepared = True, self._prepared(run, following)
                if prepared is not self._next:  # a later iterator has it
                    prepared = None
                while prepared and self._ahead(run, prepared) <= self._depth() and prepared.submit(self.crew):
                    pass
                if run.is_over:
                    return
                yield self._taken(run) if self._copies is None else self._on_device(self._copies, run, prepared)
                while is_plain and run.batches:  # of the same task: there is none to submit for them
                    yield run.batches.popleft()
        except GeneratorExit:
            raise
        except BaseException as error:
            if not (is_sound and isinstance(error, Exception)):  # an interrupt may have come anywhere
                self._abandon(run)
            raise
        finally:
            if self.is_of_this_process:
                run.drop(self.crew)

    def _fill(self, run: Run, asked: int = 1) -> None:
        """Begin tasks ahead of the one that is asked for, if there is one."""
        while self._ahead(run) < self._depth() + asked and run.submit(self.crew):
            pass

    def _prepared(self, run: Run, following: Callable[[], Run | None]) -> Run | None:
        """Begin with the epoch after a run. What fails then fails again when that epoch is asked for."""
        try:
            prepared = following()
            if prepared is not None:
                prepared.prepare(self.crew, self._depth() + 1 - self._ahead(run))
        except Exception:
            return None
        if self._next is not None:
            self._next.drop(self.crew)
        self._next = prepared
        return prepared

    def _abandon(self, *runs: Run) -> None:
        """Leave the threads to themselves, and begin with others: these may be stuck, or not know what they are at."""
        left, prepared = self.crew, self._next
        left.stop(patience=0)
        self._end.detach()
        weakref.finalize(self, left.stop, patience=PATIENCE)
        self._next = None
        self._new_crew()
        for run in (*runs, *([prepared] if prepared else ())):
            run.drop(left)

    @staticmethod
    def _ahead(*runs: Run) -> int:
        return sum(len(run.tasks) for run in runs)

    def _depth(self) -> int:
        """Tasks to begin ahead: enough for all threads to work, which share each task as far as they can."""
        if self._serial is None:
            return 0
        return min(self._most_ahead(), max(self._least_ahead, 1 + math.ceil(self._serial * self.crew.width)))

    def _taken(self, run: Run) -> Any:
        """Return the next batch in the host's memory, or raise its error."""
        if not run.batches:
            if not run.tasks:
                raise cast(Exception, run.failed)
            self._stats.requests += 1
            self._stats.ready += len(run.finished)
            task = run.tasks[0]
            asked = None if task.is_done else time.perf_counter()
            if not task.wait(self.timeout or -1):
                self._abandon(run)
                raise RuntimeError(f"loader: expected a batch in {self.timeout:g} seconds, its `timeout`, found none.")
            if task.is_dropped:
                found = "threads that were stopped, as when another iterator is interrupted"
                raise RuntimeError(f"loader: expected a batch, found {found}. Iterate again.")
            if asked is not None:
                self._stats.late += max(0.0, task.ended - asked)
            run.tasks.popleft()
            run.finished.popleft()
            run.batches.extend(task.result())
            self._stats.gather += task.seconds
            serial = 1 - task.shared / task.seconds if task.seconds else 1.0
            if self._serial is None:
                self._serial = serial
                self._fill(run, 0)  # which has waited for this one
            self._serial += (serial - self._serial) / 4
        batch = run.batches.popleft()
        return batch if self._decode is None else self._decode(batch)

    def _on_device(self, copies: Copies, run: Run, prepared: Run | None) -> Any:
        """Return the next batch on its device, and begin the copies of later ones that are ready."""
        for each in (run, prepared):
            while each is not None and len(run.copied) + (each is prepared) * len(each.copied) <= copies.depth:
                if each.error is not None or not (each.tasks or each.batches or each.failed):
                    break
                if not each.is_ready and (each is prepared or each.copied):
                    break
                try:
                    each.copied.append(copies.begin(self._taken(each)))
                except Exception as later:  # the error is in a later batch: return the earlier ones first
                    each.error = later
        if run.copied:
            return copies.hand_over(run.copied.popleft())
        error, run.error = run.error, None
        try:
            raise cast(Exception, error)
        finally:
            del error  # whose traceback refers to this frame


def sliced(pieces: Iterable[NDArray[np.int64]], size: int, *, drop_last: bool) -> Iterator[NDArray[np.int64]]:
    """Cut the rows of an epoch into batches, which are views. Pieces but the last one are of whole batches."""
    for rows in pieces:
        stop = len(rows) // size * size if drop_last else len(rows)
        yield from (rows[first : first + size] for first in range(0, stop, size))


def row_batches(sampler: RowSampler, size: int, first: int = 0, *, drop_last: bool) -> Iterator[NDArray[np.int64]]:
    """Iterate over the rows of a sampler's batches, from a row on."""
    return sliced(sampler.pieces(first, -(-PIECE // size) * size), size, drop_last=drop_last)


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
