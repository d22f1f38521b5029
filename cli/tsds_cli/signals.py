"""Handle Ctrl-C and SIGTERM from the start of the program. Only a small part of Python is imported here."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any, NoReturn

#: The signal that interrupted the command: Ctrl-C, or SIGTERM, with which schedulers end a job.
number = signal.SIGINT
_is_active = False

#: The functions of threading that wait; and others that an exception must not end, or that lose it.
_LONG = ("wait", "join", "_wait_for_tstate_lock")
_BRIEF = {("concurrent.futures.thread", "submit"), ("weakref", "remove"), (__name__, "unraisable")}


@contextmanager
def terminable() -> Iterator[None]:
    """Let Ctrl-C and SIGTERM interrupt the block: incomplete output is removed, and one line reports this.

    A signal is raised again where Python cannot raise it, in a finalizer or in a callback of its imports, after what
    would keep a lock, and after an import or in click, which make another error of it; at the latest when the block
    ends. If nothing of the library has begun, an import ends the process.
    """
    global _is_active
    defaults: dict[signal.Signals, Any] = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: signal.SIG_DFL}
    handled = [each for each, action in defaults.items() if signal.getsignal(each) == action]  # or others have plans
    if _is_active or not handled or threading.current_thread() is not threading.main_thread():
        yield
        return
    report, timer, is_due = sys.unraisablehook, threading.Timer(0, lambda: None), False
    send = getattr(signal, "pthread_kill", lambda _, number: signal.raise_signal(number))  # Windows has none

    def interrupt(received: int, frame: FrameType | None) -> None:
        global number
        nonlocal is_due
        number, is_due = signal.Signals(received), False
        if _is_brief(frame):
            once_more()
            return
        has_to_wait, has_begun = _at(frame)
        if has_to_wait and not has_begun:
            end()
        if has_to_wait:
            once_more()
            return
        if received == signal.SIGTERM:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)  # a second one would stop the removing
        raise KeyboardInterrupt

    def unraisable(what: Any) -> None:
        if not issubclass(what.exc_type, KeyboardInterrupt):
            report(what)
            return
        signal.signal(number, interrupt)
        once_more()

    def once_more() -> None:
        nonlocal timer, is_due
        is_due = True
        timer = threading.Timer(0.001, send, (threading.main_thread().ident, number))
        timer.start()

    for each in handled:
        signal.signal(each, interrupt)
    sys.unraisablehook, _is_active = unraisable, True
    try:
        yield
    except SystemExit:
        if not is_due:
            raise
    finally:
        timer.cancel()
        sys.unraisablehook, _is_active = report, False
        for each in handled:
            signal.signal(each, defaults[each])
    if is_due:
        raise KeyboardInterrupt


def end() -> NoReturn:
    """End the process at once, with the line and the status of an interrupted command."""
    with suppress(OSError, ValueError, AttributeError):  # a closed stream is None
        sys.stdout.flush()
    with suppress(OSError):
        os.write(2, b"tsds: interrupted\n")
    os._exit(128 + number)


def _at(frame: FrameType | None) -> tuple[bool, bool]:
    """Whether it comes in an import or in click, and whether something of the library has begun before that."""
    has_to_wait = has_begun = is_caught = False
    while frame is not None and (name := str(frame.f_globals.get("__name__"))) != "tsds_cli.program":
        place = frame.f_code.co_name
        is_caught |= name == "tsds_cli.main" and place in ("make_context", "_invoke")
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            has_to_wait, has_begun = True, False
        elif (name, place) == ("click.core", "main") and not is_caught:
            has_to_wait = has_begun = True
        elif name.startswith("tensorstore_ds."):
            has_begun = True
        frame = frame.f_back
    return has_to_wait, has_begun


def _is_brief(frame: FrameType | None) -> bool:
    """Whether it comes where a lock may be held that would then be held for ever, by an executor above all."""
    name = frame and frame.f_globals.get("__name__")
    if frame is not None and name == "threading" and frame.f_code.co_name not in _LONG:
        return True
    while frame is not None:
        if (frame.f_globals.get("__name__"), frame.f_code.co_name) in _BRIEF:
            return True
        frame = frame.f_back
    return False
