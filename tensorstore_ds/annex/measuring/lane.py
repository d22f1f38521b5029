"""A lane: the process of one way, which answers one measurement request at a time.

A process gets its assignment as an argument, and a connection, on which each message is JSON, as its standard input. It
answers each message, and ends with the connection. A failure is an answer as well: ``{"state": "failed", "reason":
...}``.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import tensorstore_ds
from tensorstore_ds.annex.measuring.measure import in_turns
from tensorstore_ds.annex.measuring.system import shared_nbytes, tree_nbytes
from tensorstore_ds.errors import OptionError, TsdsError, one_line
from tensorstore_ds.words import unfit_torchvision

#: Memory is looked at so often, in seconds.
LOOK = 0.05
#: And what its workers share is looked at so often, when no clock runs.
WEIGH = 0.3
#: A process whose connection has ended does so, too, within these seconds, or is killed.
_GOODBYE = 5.0

Answer = dict[str, Any]


class Lane:
    """A context manager that ends the process and its workers, whatever they are doing.

    `module` calls `serve`. `assignment` is passed as JSON. The log is in `scratch`. `environment` overrides variables.
    """

    def __init__(
        self, name: str, module: str, assignment: Mapping[str, Any], scratch: Path, environment: Mapping[str, str] = {}
    ) -> None:
        self.name = name
        self.reason = ""  #: Why it can measure nothing, or nothing any more; empty while it can.
        self.refused = False  #: The reason is an option that nobody can be measured with.
        self.ready: Answer = {}  #: Its first answer.
        self._killed = False
        self._shared = 0
        self._log = scratch / f"{name}.log"
        variables = {**os.environ, **environment}
        paths = [str(Path(tensorstore_ds.__file__).parents[1]), *filter(None, [variables.get("PYTHONPATH")])]
        self._connection, theirs = Pipe()
        with theirs, self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", module, json.dumps(assignment)],
                stdin=theirs.fileno(),
                stdout=log,
                stderr=log,
                env={**variables, "PYTHONPATH": os.pathsep.join(paths)},
                start_new_session=True,  # Ctrl-C is for the parent alone, and its workers can be ended with it
            )

    def __enter__(self) -> Lane:
        return self

    def __exit__(self, *_: object) -> None:
        self._kill()  # it has nothing to save
        self._connection.close()

    def begin(self, patience: float) -> None:
        """Wait until the process is ready."""
        self.ready = self._answer(patience)
        if self.ready["state"] != "ok":
            self.reason, self.refused = self.ready["reason"], self.ready["state"] == "refused"

    def ask(self, verb: str, patience: float, *, weigh: bool = False, **details: Any) -> Answer:
        """Ask for one measurement by the runner's method `verb`; the process is ended after `patience` seconds.

        With `weigh`, no clock runs: the lane learns how much memory its workers share with it, which counts once from
        then on. The answer's ``state`` is ``ok``, or ``failed`` with a ``reason``. ``memory`` is the peak of private
        memory, ``before`` that of the beginning, in bytes, None if the system does not report it.
        """
        if self.reason:
            return self._failed(self.reason)
        try:
            self._connection.send_bytes(json.dumps({"do": verb, **details}).encode())
        except OSError:
            return self._ended()
        return self._answer(patience, weigh=weigh)

    def _answer(self, patience: float, *, weigh: bool = False) -> Answer:
        process, begun = self._process.pid, time.monotonic()
        before = peak = tree_nbytes(process, self._shared)
        next_weighing = begun + WEIGH
        while True:
            answered = self._connection.poll(LOOK)
            peak = max(filter(None, (peak, tree_nbytes(process, self._shared))), default=None)
            if answered:
                break
            if self._process.poll() is not None:  # a forked worker may hold the connection open
                return self._ended()
            if time.monotonic() > begun + patience:
                self._kill()
                return self._failed(f"no answer in {patience:.0f} s")
            if weigh and time.monotonic() > next_weighing:
                self._shared = shared_nbytes(process) or self._shared
                next_weighing = time.monotonic() + WEIGH
        try:
            answer = json.loads(self._connection.recv_bytes())
        except (EOFError, OSError):
            return self._ended()
        return {**answer, "memory": peak, "before": before}

    def _ended(self) -> Answer:
        """The answer of an ended process: its signal, or the last line of its log."""
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_GOODBYE)
        code = self._kill()
        lines = [line for line in self._log.read_text(errors="replace").splitlines() if line.strip()]
        if code < 0:
            name = signal.Signals(-code).name
            return self._failed(f"its process was ended by {name}" + (": out of memory?" if name == "SIGKILL" else ""))
        return self._failed(one_line(lines[-1].strip()) if lines else f"its process ended with status {code}")

    def _failed(self, reason: str) -> Answer:
        self.reason = reason
        return {"state": "failed", "reason": reason}

    def _kill(self) -> int:
        """Kill the process and its workers, and return its status."""
        if not self._killed:  # its number may be another's later
            with suppress(ProcessLookupError, PermissionError):  # macOS: of a group that has ended, EPERM
                os.killpg(self._process.pid, signal.SIGKILL)
        self._killed = True
        return self._process.wait()


def take_turns(
    lanes: Sequence[Lane],
    answers: Mapping[str, list[Answer]],
    *,
    rounds: int,
    seconds: float,
    ask: Callable[[Lane], Answer],
) -> None:
    """Ask each lane once per round, until an answer fails or the time is over; answers are added to `answers`."""

    def turn(lane: Lane) -> None:
        own = answers[lane.name]
        if all(one["state"] == "ok" for one in own) and sum(one.get("seconds", 0.0) for one in own) < seconds:
            own.append(ask(lane))

    in_turns({lane.name: partial(turn, lane) for lane in lanes}, rounds)


# --- in the process ------------------------------------------------------------------------------------------------


def serve(assignment: str, start: Callable[[Mapping[str, Any]], tuple[object, Answer]]) -> None:
    """Answer until the connection ends. `start` makes what has a method for each verb, and the first answer."""
    connection, runner = Connection(0), object()

    def begin() -> Answer:
        nonlocal runner
        runner, facts = start(json.loads(assignment))
        return facts

    with suppress(EOFError, OSError):  # whoever asks is gone
        connection.send_bytes(json.dumps(answered(begin)).encode())
        while True:
            asked = json.loads(connection.recv_bytes())
            work = partial(getattr(runner, asked.pop("do")), **asked)
            connection.send_bytes(json.dumps(answered(work)).encode())


def answered(work: Callable[[], Answer]) -> Answer:
    """The result of a measurement, or the reason of its failure in one line; the traceback goes to stderr."""
    try:
        return {"state": "ok", **work()}
    except OptionError as error:
        return {"state": "refused", "reason": str(error)}
    except TsdsError as error:
        return {"state": "failed", "reason": str(error)}
    except Exception as error:  # told to whoever asked: one way that fails costs one row
        traceback.print_exc()
        lines = str(error).splitlines() or [""]
        reason = unfit_torchvision(error) or one_line(f"{type(error).__name__}: {lines[0]}")
        return {"state": "failed", "reason": reason}
