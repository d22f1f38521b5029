from __future__ import annotations

import threading

import pytest

from tensorstore_ds.annex.editing.behind import Behind


def test_calls_are_made_in_order_by_one_other_thread() -> None:
    made: list[tuple[int, int]] = []
    with Behind() as behind:
        for number in range(20):
            behind.do(lambda n: made.append((n, threading.get_ident())), number)
    assert [number for number, _ in made] == list(range(20))
    assert len({thread for _, thread in made} - {threading.get_ident()}) == 1
    assert not behind.is_stopped


def test_a_call_that_fails_is_noticed_by_a_later_one_or_at_the_end() -> None:
    def fail() -> None:
        raise OSError("the disk is full")

    with pytest.raises(OSError, match="the disk is full"), Behind() as behind:
        behind.do(fail)
    made: list[int] = []
    with pytest.raises(OSError, match="the disk is full"), Behind() as behind:
        behind.do(fail)
        for number in range(20):
            behind.do(made.append, number)
    assert behind.is_stopped and len(made) < 20


def test_the_caller_waits_where_too_many_calls_do() -> None:
    begin, made = threading.Event(), list[int]()
    with Behind() as behind:
        behind.do(begin.wait, 60)
        for number in range(3):
            behind.do(made.append, number)
        assert made == []  # this thread did not wait so far
        begin.set()
        for number in range(3, 30):
            behind.do(made.append, number)
            assert len(behind._waiting) == 4


def test_stop_drops_what_was_not_begun() -> None:
    begun, end, made = threading.Event(), threading.Event(), list[int]()

    def slow() -> None:
        begun.set()
        end.wait(60)
        made.append(0)

    behind = Behind()
    behind.do(slow)
    behind.do(made.append, 1)
    dropped = threading.Event()
    behind._waiting[1].add_done_callback(lambda _: dropped.set())
    assert begun.wait(60)
    stopping = threading.Thread(target=behind.stop)
    stopping.start()
    assert dropped.wait(60)
    assert behind.is_stopped and made == []
    end.set()
    stopping.join()
    assert made == [0]
