"""Threads that make batches, and together finish the oldest one first.

::

    task     a batch, or a group of small ones: planned by one thread, in the order in which they are asked for
    loop     rows of a task that are decoded, copied or transformed one by one: all threads that are free take from it

A thread leaves a loop when an older one begins, so the oldest batch has all threads, however many are begun. Threads
sleep on a `SimpleQueue`, whose `put` a finalizer may call, and a task is waited for by a lock that it releases.
"""

from __future__ import annotations

import contextlib
import functools
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from queue import SimpleQueue
from typing import Any

import numpy as np
import torch
from threadpoolctl import ThreadpoolController

#: All threads of this library have names that begin so.
OUR_THREADS = "tsds-"
_NONE_OLDER = np.zeros(1, np.int64)

#: Of a thread of a crew: `crew`, `task`, `is_alone` where it shares nothing, and `row`, the one that it took last.
_here = threading.local()


class Loop:
    """Numbers from 0 to `total` that several threads take, one after the other.

    Kernels add to `taken`, and end when `oldest` is below `number`, the number of the loop's task.
    """

    __slots__ = (
        *("_body", "_errors", "_gate", "_lock", "_running", "_task", "is_ended"),
        *("number", "oldest", "seconds", "taken", "total"),
    )

    def __init__(
        self, body: Callable[[Loop], None], total: int, task: Task | None = None, oldest: Any = _NONE_OLDER
    ) -> None:
        self._body, self.total, self._task, self.oldest = body, total, task, oldest
        self.number = 0 if task is None else task.number
        self.taken = np.zeros(1, np.int64)
        self.is_ended = False  #: so that no thread takes a number any more
        self.seconds = 0.0  # of all threads
        self._running, self._errors = 0, list[tuple[int, BaseException]]()
        self._lock, self._gate = threading.Lock(), threading.Lock()
        self._gate.acquire()

    @property
    def is_open(self) -> bool:
        """Whether there are numbers that no thread has taken."""
        return not self.is_ended and bool(self.taken[0] < self.total)

    def __iter__(self) -> Iterator[int]:
        """Take numbers until there is none, or until an older loop wants this thread."""
        while self.oldest[0] >= self.number and not self.is_ended:
            with self._lock:
                _here.row = row = int(self.taken[0])
                self.taken[0] += 1
            if row >= self.total:
                return
            yield row

    def work(self) -> bool:
        """Take numbers in this thread of a crew. False if there was none."""
        with self._lock:
            if not self.is_open:
                return False
            self._running += 1
        began, task = time.perf_counter(), _here.task
        _here.task, _here.is_alone, _here.row = self._task, True, 0
        failed: BaseException | None = None
        try:
            self._body(self)
        except BaseException as error:
            failed = error
        _here.task, _here.is_alone = task, False
        with self._lock:
            self.seconds += time.perf_counter() - began
            if failed is not None:
                self._errors.append((_here.row, failed))
                self.end()
                failed = None
            self._running -= 1
            if not self._running and not self.is_open:
                self._gate.release()
        return True

    def end(self) -> None:
        """Leave the numbers that no thread has taken. A finalizer may call this in any thread."""
        self.is_ended = True
        self.taken[0] = self.total  # for kernels

    def wait(self) -> None:
        """Wait for the numbers that other threads have taken, and raise the error of the first one."""
        with self._lock:
            is_running = self._running > 0
        if is_running:
            self._gate.acquire()
        errors, self._errors = sorted(self._errors, key=lambda each: each[0]), []
        if errors:
            try:
                raise errors[0][1]
            finally:
                del errors  # whose tracebacks refer to this frame


def share(total: int, body: Callable[[Loop], None]) -> None:
    """Call `body` with the numbers up to `total`: in a task of a crew, in all of its threads that are free.

    Each call takes numbers of its loop until there is none. Raises the error of the first one.
    """
    crew: Crew | None = getattr(_here, "crew", None)
    if crew is None or crew.width == 1 or total < 2 or _here.is_alone or crew.process != os.getpid():
        with alone():
            body(Loop(body, total))
        return
    task: Task = _here.task
    began = time.perf_counter()
    loop = Loop(body, 0 if task.is_dropped else total, task, crew.oldest)
    crew.finish(loop)
    loop.wait()
    if task.is_dropped:
        raise _DroppedError
    task.shared += loop.seconds
    task.seconds += loop.seconds - (time.perf_counter() - began)


@contextlib.contextmanager
def alone() -> Iterator[None]:
    """Let this thread share nothing: the rows of another batch must not run amid a function of the user."""
    before = getattr(_here, "is_alone", False), getattr(_here, "row", 0)
    _here.is_alone = True
    try:
        yield
    finally:
        _here.is_alone, _here.row = before


def when_used(action: Callable[[], None]) -> None:
    """Call `action` now, or in a task of a crew when its result is asked for, which may be never."""
    task: Task | None = getattr(_here, "task", None)
    if task is None:
        action()
    else:
        task.on_result.append(action)


class _DroppedError(Exception):
    """Ends a task whose result nobody will ask for."""


class Task:
    """Something that one thread of a crew makes, with the help of others, and its result."""

    __slots__ = (
        *("_crew", "_error", "_gate", "_make", "_result", "is_done", "is_dropped"),
        *("ended", "number", "on_result", "seconds", "shared"),
    )

    def __init__(self, make: Callable[[], Any], crew: Crew) -> None:
        self._make: Callable[[], Any] | None = make
        self._crew = crew
        self.number = 0  #: counts from 1, once it is submitted
        self.is_done = False  #: whether its result is there
        self.is_dropped = False  #: so that it need not be begun, or has no result, because its crew was stopped
        self.ended = 0.0  #: when its result was there, by `time.perf_counter`
        self.seconds = self.shared = 0.0  #: of all threads; of these, in shared loops
        self.on_result: list[Callable[[], None]] = []
        self._result: Any = None
        self._error: BaseException | None = None
        self._gate = threading.Lock()
        self._gate.acquire()

    def run(self) -> None:
        """Make the result, in a thread of a crew."""
        make, self._make = self._make, None
        if make is not None and not self.is_dropped:
            _here.task, began = self, time.perf_counter()
            try:
                self._result = make()
            except BaseException as error:
                self._error = error
            self.ended = time.perf_counter()
            self.seconds += self.ended - began
            _here.task = None
        del make
        self.is_dropped = self.is_dropped or self._crew.is_stopped
        if self.is_dropped:
            self.forget()
        self.is_done = True
        self._gate.release()

    def forget(self) -> None:
        """Keep neither what it makes nor an error, whose traceback refers to this task."""
        self._make = self._result = self._error = None

    def wait(self, timeout: float = -1) -> bool:
        """Wait until it is done, at most `timeout` seconds; whether it is."""
        if not self.is_done and self._gate.acquire(timeout=timeout):  # an interrupt may leave the gate closed
            self._gate.release()
        return self.is_done

    def result(self) -> Any:
        """Return what was made, once, or raise its error."""
        error, result, self._error, self._result = self._error, self._result, None, None
        for action in self.on_result:
            action()
        if error is None:
            return result
        try:
            raise error
        finally:
            del error  # whose traceback refers to this frame


class Crew:
    """Up to `width` threads, which begin when there is work, and end with `stop`."""

    def __init__(self, width: int) -> None:
        self.width, self.process = width, os.getpid()
        self.oldest = np.full(1, np.iinfo(np.int64).max)  #: number of the oldest open loop's task, which kernels read
        self._tokens: SimpleQueue[None] = SimpleQueue()
        self._tasks: deque[Task] = deque()
        self._loops: tuple[Loop, ...] = ()  # the oldest first; replaced as a whole
        self._lock = threading.Lock()  # of the loops, and of the four numbers below
        self._holder = 0  # thread of the script that has the lock: a finalizer in it must not wait for others
        self._begun = self._missing = self._sleeping = self._numbers = 0
        self._threads: list[threading.Thread] = []
        self.is_stopped = False
        _libraries()  # an error in a thread would be late

    def submit(self, make: Callable[[], Any]) -> Task:
        """Let a thread call `make`, after the tasks that were submitted before."""
        if self.is_stopped:
            raise RuntimeError("loader: expected an iteration before the interpreter ends, found one after it.")
        task, me = Task(make, self), threading.get_ident()
        with self._lock:
            self._holder = me  # without a call before it, in which garbage might be collected
            self._numbers += 1
            task.number = self._numbers
            self._tasks.append(task)
            self._holder = 0
        self._wake(1)
        return task

    def finish(self, loop: Loop) -> None:
        """Work on a loop of this thread's task, and on older ones, until all of its numbers are taken."""
        with self._lock:
            self._loops = tuple(sorted((*self._loops, loop), key=lambda each: each.number))
            self._note_oldest()
        try:
            self._wake(max(0, loop.total - 1))  # 0 of a task that is dropped
            while loop.is_open and self._help():
                pass
        finally:
            with self._lock:
                self._loops = tuple(each for each in self._loops if each is not loop)
                self._note_oldest()

    def drop(self, tasks: Iterable[Task]) -> None:
        """Give up tasks: those that were begun end soon, and are waited for, except in a thread of a crew."""
        dropped = list(tasks)
        for task in dropped:
            task.is_dropped = True
            task.forget()
        for loop in self._loops:
            if any(loop.number == task.number for task in dropped):
                loop.end()
        if not self.is_stopped and self._may_wait():
            for task in dropped:
                task.wait()

    def stop(self, *, patience: float | None = None) -> None:
        """End the threads after what they are at. A finalizer may call this in any thread.

        With `patience`, give up a thread that does not end within so many seconds, and those after it.
        """
        self.is_stopped = True
        if os.getpid() != self.process:  # a forked child has none of them
            return
        while self._tasks:
            with contextlib.suppress(IndexError):  # another thread took the last one
                task = self._tasks.popleft()
                task.is_dropped = True
                task.run()
        for _ in range(self.width):
            self._tokens.put(None)
        if self._may_wait():
            for thread in self._threads:  # one that it has begun meanwhile comes after it
                if thread.ident is not None:  # else it ends as soon as it has begun
                    thread.join(patience)
                    if thread.is_alive():
                        return

    def _may_wait(self) -> bool:
        """Whether no thread of a crew waits for this one, in which a finalizer may run."""
        is_ours = threading.current_thread().name.startswith(OUR_THREADS)
        return not is_ours and self._holder != threading.get_ident()

    def _note_oldest(self) -> None:
        is_open = (each.number for each in self._loops if each.is_open)
        self.oldest[0] = next(is_open, np.iinfo(np.int64).max)

    def _wake(self, wanted: int) -> None:
        """Wake threads that sleep, or begin new ones."""
        me = threading.get_ident()
        with self._lock:
            self._holder = me
            awake = min(wanted, self._sleeping)
            self._sleeping -= awake
            missing = self._missing = min(self._missing + wanted - awake, self.width - self._begun)
            self._holder = 0
        for _ in range(awake):
            self._tokens.put(None)
        if missing:
            self._begin_thread()

    def _begin_thread(self) -> None:
        """Begin a thread if some are missing. It begins the next one: a start waits until the thread has a core."""
        me = threading.get_ident()
        with self._lock:
            self._holder = me
            number, is_missing = self._begun, self._missing > 0 and not self.is_stopped
            if is_missing:
                self._begun, self._missing = number + 1, self._missing - 1
            self._holder = 0
        if not is_missing:
            return
        thread = threading.Thread(target=self._work, name=f"{OUR_THREADS}loader_{number}", daemon=True)
        self._threads.append(thread)
        try:
            thread.start()
        except RuntimeError:  # the system has no more
            self._threads.remove(thread)
            with self._lock:
                self._holder = me
                self._begun, self._missing = self._begun - 1, 0
                self._holder = 0
            if not self._threads:
                raise

    def _work(self) -> None:
        self._begin_thread()
        _compute_alone()
        _here.crew, _here.task, _here.is_alone = self, None, False
        while not self.is_stopped:
            if self._help() or self._begin():
                continue
            with self._lock:
                self._sleeping += 1
            if self._tasks or any(loop.is_open for loop in self._loops):  # since this thread looked
                with self._lock:
                    is_called, self._sleeping = not self._sleeping, max(0, self._sleeping - 1)
                if not is_called:
                    continue
            self._tokens.get()

    def _help(self) -> bool:
        """Work on the oldest open loop; whether there was one."""
        for loop in self._loops:
            if loop.work():
                with self._lock:
                    self._note_oldest()
                return True
        return False

    def _begin(self) -> bool:
        """Run the oldest task that no thread has begun; whether there was one."""
        try:
            task = self._tasks.popleft()
        except IndexError:
            return False
        task.run()
        return True


@functools.cache
def _libraries() -> ThreadpoolController:
    return ThreadpoolController()


def _compute_alone() -> None:
    """Limit OpenMP to 1 thread in this thread, as torch does in workers, because more would compete for the cores."""
    torch.get_num_threads()  # torch sets its default when a thread asks for the first time
    _libraries().limit(limits=1, user_api="openmp")
