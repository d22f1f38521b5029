"""A lane: the process of one way, asked for one measurement after the other; and how such a process answers.

A process gets its assignment as an argument, answers each line of JSON on its standard input with one on its standard
output, and ends with its input. What fails is an answer, too: ``{"state": "failed", "reason": ...}``.
"""

from __future__ import annotations

import json
import os
import selectors
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import tensorstore_ds
from tensorstore_ds.comparison.system import shared_nbytes, tree_nbytes
from tensorstore_ds.errors import OptionError, TsdsError, one_line

#: Memory is looked at so often, in seconds.
LOOK = 0.05
#: And what its workers share is looked at so often, when no clock runs.
WEIGH = 0.3
#: A process whose output has ended does so, too, within these seconds, or is killed.
_GOODBYE = 5.0

Answer = dict[str, Any]


class Lane:
    """A context manager; the process ends with it, whatever it is doing.

    Args:
        name: of the way.
        module: that `serve` is called in.
        assignment: what it is told, as JSON.
        scratch: a folder for its log.
        environment: variables that differ from this process's.

    Attributes:
        reason: why it can measure nothing, or nothing any more; empty while it can.
        refused: the reason is an option that nobody can be measured with.
        ready: its first answer.
    """

    def __init__(
        self,
        name: str,
        module: str,
        assignment: Mapping[str, Any],
        scratch: Path,
        *,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.name = name
        self.reason = ""
        self.refused = False
        self.ready: Answer = {}
        self._command = [sys.executable, "-P", "-m", module, json.dumps(assignment)]
        self._environment = {**os.environ, **(environment or {})}
        self._log = scratch / f"{name}.log"
        self._process: subprocess.Popen[bytes] | None = None
        self._unread = b""
        self._shared = 0

    def __enter__(self) -> Lane:
        paths = [str(Path(tensorstore_ds.__file__).parents[1]), *filter(None, [self._environment.get("PYTHONPATH")])]
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env={**self._environment, "PYTHONPATH": os.pathsep.join(paths)},
                start_new_session=True,  # Ctrl-C is for the parent alone, and its workers can be ended with it
            )
        return self

    def __exit__(self, *_: object) -> None:
        process = self._process
        if process is None:
            return
        self._kill()  # it has nothing to save
        for pipe in filter(None, (process.stdin, process.stdout)):
            with suppress(BrokenPipeError):  # something was still to be told
                pipe.close()

    def begin(self, patience: float) -> None:
        """Wait until it is ready."""
        self.ready = self._answer(patience)
        if self.ready["state"] != "ok":
            self.reason, self.refused = self.ready["reason"], self.ready["state"] == "refused"

    def ask(self, verb: str, patience: float, *, weigh: bool = False, **details: Any) -> Answer:
        """One measurement.

        Args:
            verb: what to do.
            patience: seconds, after which the process is ended.
            weigh: no clock runs: learn how much memory its workers share with it, which will count once from now on.
            details: as the runner's method of that name wants them.

        Returns:
            Its answer: ``state`` is ``ok``, or ``failed`` with a ``reason``. ``memory`` is the peak of private memory,
            ``before`` that of the beginning, in bytes, None where the system does not tell.
        """
        process = self._process
        if process is None or process.stdin is None or self.reason:
            return {"state": "failed", "reason": self.reason or "it has not begun"}
        try:
            process.stdin.write(json.dumps({"do": verb, **details}).encode() + b"\n")
            process.stdin.flush()
        except BrokenPipeError:
            return self._ended()
        return self._answer(patience, weigh=weigh)

    def _answer(self, patience: float, *, weigh: bool = False) -> Answer:
        process = self._process
        if process is None or process.stdout is None:
            raise RuntimeError(f"{self.name}: expected a process. Enter the lane first.")
        deadline = time.monotonic() + patience
        before = peak = tree_nbytes(process.pid, self._shared)
        next_weighing = time.monotonic() + WEIGH
        with selectors.DefaultSelector() as selector:
            selector.register(process.stdout, selectors.EVENT_READ)
            while b"\n" not in self._unread:
                if selector.select(LOOK):
                    read = os.read(process.stdout.fileno(), 65536)
                    if not read:
                        return self._ended()
                    self._unread += read
                elif self._has_ended():  # a forked worker may hold the pipe open
                    return self._ended()
                elif time.monotonic() > deadline:
                    self._kill()
                    return self._failed(f"no answer in {patience:.0f} s")
                if weigh and time.monotonic() > next_weighing:
                    self._shared = shared_nbytes(process.pid) or self._shared
                    next_weighing = time.monotonic() + WEIGH
                peak = max(filter(None, (peak, tree_nbytes(process.pid, self._shared))), default=None)
        line, _, self._unread = self._unread.partition(b"\n")
        return {**json.loads(line), "memory": peak, "before": before}

    def _ended(self) -> Answer:
        """It is gone: by a signal, or with a last word in its log."""
        deadline = time.monotonic() + _GOODBYE
        while not self._has_ended() and time.monotonic() < deadline:
            time.sleep(LOOK / 5)
        code = self._kill()
        lines = [line for line in self._log.read_text(errors="replace").splitlines() if line.strip()]
        if code < 0:
            name = signal.Signals(-code).name
            return self._failed(f"its process was ended by {name}" + (": out of memory?" if name == "SIGKILL" else ""))
        return self._failed(one_line(lines[-1].strip()) if lines else f"its process ended with status {code}")

    def _failed(self, reason: str) -> Answer:
        self.reason = reason
        return {"state": "failed", "reason": reason}

    def _has_ended(self) -> bool:
        """Whether it has; its number stays taken, so that its group can still be told to end."""
        process = self._process
        if process is None or process.returncode is not None:
            return True
        if not hasattr(os, "waitid"):  # macOS
            return process.poll() is not None
        return os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None

    def _kill(self) -> int:
        """End it and its workers, if they run: its status."""
        process = self._process
        if process is None:
            return 0
        if process.returncode is None:
            with suppress(ProcessLookupError, PermissionError):  # macOS: of a group that has ended, EPERM
                os.killpg(process.pid, signal.SIGKILL)
        return process.wait()


# --- in the process ------------------------------------------------------------------------------------------------


def serve(assignment: str, start: Callable[[Mapping[str, Any]], tuple[object, Answer]]) -> None:
    """Answer until the input ends.

    Args:
        assignment: JSON.
        start: makes of it what has a method for each verb, and the first answer.
    """
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # whatever else is printed goes to the log
    runner: object = None

    def begin() -> Answer:
        nonlocal runner
        runner, facts = start(json.loads(assignment))
        return facts

    print(json.dumps(answered(begin)), file=answers)
    for line in sys.stdin:
        asked = json.loads(line)
        work = partial(getattr(runner, asked.pop("do")), **asked)
        print(json.dumps(answered(work)), file=answers)


def answered(work: Callable[[], Answer]) -> Answer:
    """What a measurement found, or why it failed: one line here, all of it on stderr."""
    try:
        return {"state": "ok", **work()}
    except OptionError as error:
        return {"state": "refused", "reason": str(error)}
    except TsdsError as error:
        return {"state": "failed", "reason": str(error)}
    except Exception as error:  # told to whoever asked: one way that fails costs one row
        traceback.print_exc()
        lines = str(error).splitlines() or [""]
        return {"state": "failed", "reason": one_line(f"{type(error).__name__}: {lines[0]}")}
