"""A way of loading in a process of its own, and what its measurements say."""

from __future__ import annotations

import json
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import Any

import tensorstore_ds
from tensorstore_ds.comparison.processes import shared_nbytes, tree_nbytes
from tensorstore_ds.comparison.ways import Way
from tensorstore_ds.errors import one_line

#: Memory is looked at so often, in seconds.
LOOK = 0.05
#: And what its workers share is looked at so often, when no clock runs.
WEIGH = 0.3
#: A process whose output has ended does so, too, within these seconds, or is killed.
_GOODBYE = 5.0

Answer = dict[str, Any]


class Lane:
    """The process of one way. A context manager; the process ends with it, whatever it is doing.

    Args:
        way: what it measures.
        assignment: what it is told, as JSON.
        scratch: a folder for its log.

    Attributes:
        reason: why it can measure nothing, or nothing any more; empty while it can.
        refused: the reason is an option that nobody can be measured with.
        ready: its first answer.
    """

    def __init__(self, way: Way, assignment: Mapping[str, Any], scratch: Path) -> None:
        self.way = way
        self.reason = ""
        self.refused = False
        self.ready: Answer = {}
        self._assignment = json.dumps({**assignment, "way": asdict(way)})
        self._log = scratch / f"{way.name}.log"
        self._process: subprocess.Popen[bytes] | None = None
        self._unread = b""
        self._shared = 0

    def __enter__(self) -> Lane:
        package = str(Path(tensorstore_ds.__file__).parents[1])
        paths = [package, *filter(None, [os.environ.get("PYTHONPATH")])]
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "tensorstore_ds.comparison.runner", self._assignment],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
                start_new_session=True,  # Ctrl-C is for the parent alone, and its workers can be ended with it
            )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        process = self._process
        if process is None:
            return
        self._kill()  # it has nothing to save
        if process.stdin is not None:
            with suppress(BrokenPipeError):  # something was still to be told
                process.stdin.close()
        if process.stdout is not None:
            process.stdout.close()

    def begin(self, patience: float) -> None:
        """Wait until it is ready."""
        self.ready = self._answer(patience)

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
            raise RuntimeError(f"{self.way.name}: expected a process. Enter the lane first.")
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
                    self.reason = f"no answer in {patience:.0f} s"
                    return {"state": "failed", "reason": self.reason}
                if weigh and time.monotonic() > next_weighing:
                    self._shared = shared_nbytes(process.pid) or self._shared
                    next_weighing = time.monotonic() + WEIGH
                peak = max(filter(None, (peak, tree_nbytes(process.pid, self._shared))), default=None)
        line, _, self._unread = self._unread.partition(b"\n")
        answer: Answer = json.loads(line)
        if not self.ready and answer["state"] != "ok":
            self.reason, self.refused = answer["reason"], answer["state"] == "refused"
        return {**answer, "memory": peak, "before": before}

    def _ended(self) -> Answer:
        """It is gone: by a signal, or with a last word in its log."""
        self._wait(_GOODBYE)
        code = self._kill()
        lines = [line for line in self._log.read_text(errors="replace").splitlines() if line.strip()]
        if code < 0:
            name = signal.Signals(-code).name
            self.reason = f"its process was ended by {name}" + (": out of memory?" if name == "SIGKILL" else "")
        else:
            self.reason = one_line(lines[-1].strip()) if lines else f"its process ended with status {code}"
        return {"state": "failed", "reason": self.reason}

    def _wait(self, seconds: float) -> None:
        """Give it time to end."""
        deadline = time.monotonic() + seconds
        while not self._has_ended() and time.monotonic() < deadline:
            time.sleep(LOOK / 5)

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
