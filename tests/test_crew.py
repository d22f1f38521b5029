"""Threads that share the rows of the oldest task: each row once, whatever fails, ends or waits."""

from __future__ import annotations

import gc
import threading
import time
import weakref
from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from tensorstore_ds import native
from tensorstore_ds.loading.crew import Crew, Loop, share, when_used
from waiting import wait_for


@pytest.fixture
def crew(request: pytest.FixtureRequest) -> Iterator[Crew]:
    made = Crew(getattr(request, "param", 4))
    yield made
    made.stop()
    assert not any(thread.is_alive() for thread in made._threads)


@pytest.mark.parametrize("crew", [1, 2, 7], indirect=True)
@pytest.mark.parametrize("total", [0, 1, 2, 50, 501])
def test_every_row_is_taken_once(crew: Crew, total: int) -> None:
    seen, threads = Counter[tuple[int, int]](), set[str]()

    def make(number: int) -> str:
        def body(loop: Loop) -> None:
            for row in loop:
                seen[number, row] += 1
                threads.add(threading.current_thread().name)
                time.sleep(0)

        share(total, body)
        return f"task {number}"

    tasks = [crew.submit(lambda number=number: make(number)) for number in range(20)]
    assert [task.wait() and task.result() for task in tasks] == [f"task {number}" for number in range(20)]
    assert seen == {(number, row): 1 for number in range(20) for row in range(total)}
    assert len(threads) <= crew.width and all(name.startswith("tsds-loader") for name in threads)


def test_free_threads_help_the_oldest_loop_and_leave_younger_ones(crew: Crew) -> None:
    """A younger task has begun its loop before an older one does, and all of its threads go there."""
    begin_older, hold = threading.Event(), threading.Event()
    where: list[tuple[str, str]] = []

    def rows(name: str, *, until: threading.Event | None = None) -> None:
        def body(loop: Loop) -> None:
            for _ in loop:
                where.append((name, threading.current_thread().name))
                if until is not None:
                    until.wait(0.02)

        share(40 if name == "older" else 400, body)

    def older() -> None:
        begin_older.wait(30)
        rows("older", until=hold)

    tasks = [crew.submit(older), crew.submit(lambda: rows("younger", until=hold))]
    assert wait_for(lambda: len({thread for _, thread in where}) == crew.width - 1)  # all but the one that waits
    begin_older.set()
    assert wait_for(lambda: len({thread for name, thread in where if name == "older"}) == crew.width)
    first = next(i for i, (name, _) in enumerate(where) if name == "older")
    assert wait_for(lambda: sum(name == "older" for name, _ in where) == 40)
    last = max(i for i, (name, _) in enumerate(where) if name == "older")
    between = [name for name, _ in where[first : last + 1] if name == "younger"]
    assert len(between) <= 2 * crew.width  # rows that they were at, and those after the last older one was taken
    hold.set()
    for task in tasks:
        assert task.wait(30)


def test_the_error_of_the_first_row_is_raised_and_the_others_are_left(crew: Crew) -> None:
    barrier, done = threading.Barrier(3), list[int]()

    def body(loop: Loop) -> None:
        for row in loop:
            if row in (2, 3, 4):
                barrier.wait(30)  # all three are under way
                raise ValueError(f"row {row}")
            done.append(row)

    task = crew.submit(lambda: share(1_000_000, body))
    assert task.wait(30)
    with pytest.raises(ValueError, match="row 2"):
        task.result()
    assert len(done) < 1_000_000


def test_a_loop_inside_of_another_is_done_by_its_thread(crew: Crew) -> None:
    found = []

    def inner(loop: Loop) -> None:
        found.extend((threading.get_ident(), row) for row in loop)

    def outer(loop: Loop) -> None:
        for _ in loop:
            before = threading.get_ident()
            share(3, inner)
            assert threading.get_ident() == before

    task = crew.submit(lambda: share(10, outer))
    assert task.wait(30) and task.result() is None
    assert Counter(row for _, row in found) == {0: 10, 1: 10, 2: 10}


def test_outside_of_a_crew_the_caller_does_all() -> None:
    rows: list[tuple[int, int]] = []
    share(5, lambda loop: rows.extend((row, threading.get_ident()) for row in loop))
    assert rows == [(row, threading.get_ident()) for row in range(5)]


def test_dropped_tasks_end_soon_and_those_that_were_not_begun_never_run(crew: Crew) -> None:
    rows, begun, ran = list[int](), threading.Event(), list[int]()

    def body(loop: Loop) -> None:
        for row in loop:
            rows.append(row)
            begun.set()
            time.sleep(0.001)

    tasks = [crew.submit(lambda: share(10**6, body)) for _ in range(crew.width)]
    tasks.append(crew.submit(lambda: ran.append(1)))
    assert begun.wait(30)
    crew.drop(tasks)
    assert all(task.is_done for task in tasks) and not ran and len(rows) < 10**5
    count = len(rows)
    time.sleep(0.01)
    assert len(rows) == count
    again = crew.submit(lambda: "works")
    assert again.wait(30) and again.result() == "works"


def test_what_is_noted_for_a_result_happens_when_it_is_asked_for(crew: Crew) -> None:
    noted: list[str] = []
    when_used(lambda: noted.append("at once"))
    tasks = [crew.submit(lambda name=name: when_used(lambda: noted.append(name))) for name in "ab"]
    assert all(task.wait(30) for task in tasks) and noted == ["at once"]
    tasks[1].result()
    assert noted == ["at once", "b"]


@pytest.mark.skipif(native.core is None, reason="the kernels are not compiled")
@pytest.mark.parametrize(
    "shared", [(np.zeros(1, np.int32), np.zeros(1), 0), (np.zeros(2, np.int64), np.zeros(1, np.int64), 0)]
)
def test_the_kernel_takes_one_number_each(shared: tuple[Any, ...]) -> None:
    jobs, out, status = np.zeros(1, native.JOB), np.zeros((1, 2, 2, 3), np.uint8), np.zeros(1, np.int32)
    with pytest.raises(ValueError, match="one int64 each"):
        native.core.crops(native.own_context(), ((b"", b"", b""),), jobs, out, 2, 2, 3, status, *shared)


@pytest.mark.skipif(native.core is None, reason="the kernels are not compiled")
def test_the_kernel_takes_what_is_left_unless_an_older_loop_waits() -> None:
    jobs, out = np.zeros(4, native.JOB), np.zeros((4, 2, 2, 3), np.uint8)
    for taken, oldest, number, expected in [(0, 5, 5, 4), (0, 4, 5, 0), (3, 9, 5, 1), (4, 5, 5, 0), (-1, 5, 5, 0)]:
        status, counter = np.full(4, -7, np.int32), np.array([taken])
        shared = counter, np.array([oldest]), number
        native.core.crops(native.own_context(), ((b"", b"", b""),), jobs, out, 2, 2, 3, status, *shared)
        assert (status != -7).sum() == expected


def test_a_first_thread_that_cannot_be_started(monkeypatch: pytest.MonkeyPatch) -> None:
    crew = Crew(2)

    def fail(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", fail)
    with pytest.raises(RuntimeError, match="can't start new thread"):
        crew.submit(lambda: 0)
    crew.stop()
    with pytest.raises(RuntimeError, match="expected an iteration before the interpreter ends"):
        crew.submit(lambda: 0)


def test_an_interrupt_in_a_wait_does_not_close_the_gate(crew: Crew) -> None:
    task = crew.submit(lambda: 1)
    assert task.wait(30)
    task._gate.acquire()  # as an interrupt would leave it
    assert task.wait(30) and task.result() == 1


def test_dropped_loops_wake_nobody(crew: Crew) -> None:
    for _ in range(50):
        begun = threading.Event()
        task = crew.submit(lambda begun=begun: begun.set() or time.sleep(0.001) or share(9, lambda loop: [*loop]))
        assert begun.wait(30)
        crew.drop([task])
    assert wait_for(lambda: crew._sleeping == len(crew._threads))
    time.sleep(0.05)
    assert crew._sleeping == len(crew._threads)


def test_a_stopped_crew_keeps_no_error(crew: Crew) -> None:
    begun, hold = threading.Event(), threading.Event()

    def fail() -> None:
        begun.set()
        assert hold.wait(30)
        raise ValueError("of a task that is asked for no more")

    gc.disable()
    try:
        task = crew.submit(fail)
        made = weakref.ref(fail)
        del fail
        assert begun.wait(30)
        crew.stop(patience=0)
        hold.set()
        assert task.wait(30)
        assert wait_for(lambda: task._error is None and made() is None)
        assert task._error is None and made() is None
    finally:
        gc.enable()


def test_no_thread_begins_after_the_end() -> None:
    for _ in range(20):
        crew = Crew(32)
        crew.submit(lambda: share(64, lambda loop: [time.sleep(0.0002) for _ in loop])).wait(30)
        crew.stop()
        assert not any(thread.is_alive() for thread in [*crew._threads])


def test_a_thread_that_cannot_be_started_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    crew, start = Crew(2), threading.Thread.start
    assert crew.submit(lambda: 0).wait(30)
    assert wait_for(lambda: crew._sleeping == 1)

    def fail(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", fail)
    tasks = [crew.submit(lambda: time.sleep(0.01)) for _ in range(3)]
    assert all(task.wait(30) for task in tasks) and len(crew._threads) == 1
    monkeypatch.setattr(threading.Thread, "start", start)
    both = threading.Barrier(2)
    tasks = [crew.submit(lambda: both.wait(30)) for _ in range(2)]
    assert all(task.wait(30) for task in tasks) and len(crew._threads) == 2
    crew.stop()
