"""Commands, run with a fault at one of their operations on files: faultfs.c and server.py, as Python sees them."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import IntEnum, IntFlag
from pathlib import Path

HERE = Path(__file__).parent
#: Seconds after which a command counts as hanging: they take a tenth of one, on a busy machine some.
LIMIT = 300.0
#: Which operations of a command meet a fault: one of each site, drawn by TSDS_DRAW, or its first and its last one
#: (``full``); one of one site in 40 (``quick``); all, which takes hours (``every``).
EXTENT = os.environ.get("TSDS_FAULTS", "")
#: Seconds that a test may take. One that is ended within a sweep leaves files, with which the next ones fail.
LONGEST = 7200 if EXTENT == "every" else 1200


class Class(IntFlag):
    """Classes of operations, as in faultfs.c."""

    DATA, CREATE, SYNC, NAME, READ, LOOK, LOCK = 1, 2, 4, 8, 16, 32, 64
    CHANGES = DATA | CREATE | SYNC | NAME
    READS = READ | LOOK
    #: What a full disk refuses.
    GROWTH = DATA | CREATE | SYNC


class Action(IntEnum):
    """What happens at the n-th operation, as in faultfs.c."""

    PASS, FAIL_ONCE, FAIL_FROM, KILL_ALL, KILL_ONE, TEAR, SHORT, SIGNAL, TRACE = range(9)


@dataclass(frozen=True)
class Fault:
    """One kind of fault; `counted` says which operations are numbered, `failing` which fail of those.

    `error` is the number of the error, or of the signal.
    """

    action: Action = Action.PASS
    counted: Class = Class.CHANGES
    error: int = 0
    failing: Class = Class.CHANGES


FAULTS = {
    "SIGKILL": Fault(Action.KILL_ALL),
    "SIGKILL of one process": Fault(Action.KILL_ONE),
    "half a write, SIGKILL": Fault(Action.TEAR, Class.DATA),
    "short writes": Fault(Action.SHORT, Class.DATA),
    "EIO": Fault(Action.FAIL_ONCE, error=errno.EIO),
    "EIO from there on": Fault(Action.FAIL_FROM, error=errno.EIO),
    "ENOSPC from there on": Fault(Action.FAIL_FROM, error=errno.ENOSPC, failing=Class.GROWTH),
    "SIGINT": Fault(Action.SIGNAL, error=signal.SIGINT),
    "SIGTERM": Fault(Action.SIGNAL, error=signal.SIGTERM),
    "EIO when reading": Fault(Action.FAIL_ONCE, Class.READS, errno.EIO),
    "EMFILE when reading": Fault(Action.FAIL_ONCE, Class.READS, errno.EMFILE),
    "ESTALE when reading": Fault(Action.FAIL_ONCE, Class.READS, errno.ESTALE),
    "ENOMEM when reading": Fault(Action.FAIL_ONCE, Class.READS, errno.ENOMEM),
}


@dataclass(frozen=True)
class Result:
    """How a command ended.

    Attributes:
        code: exit status, negative for a signal.
        hung: it, or a process that it started, had to be killed.
        text: stdout and stderr.
        count, fired: operations numbered, and faults among them.
        what: the first operation that met the fault, with its path from the prefix on.
    """

    code: int
    hung: bool
    text: str
    count: int
    fired: int
    what: str

    @property
    def outcome(self) -> str:
        """How it ended, where that is allowed.

        ``done``, ``refused`` (one line besides notes, status 1), ``interrupted`` (a line, 130 or 143; what was
        told before may be complete) or ``killed``; anything else should not be.
        """
        lines = [line for line in self.text.splitlines() if line.strip() and not line.startswith("note: ")]
        if self.hung:
            return "hung"
        if "Traceback" in self.text or "Exception ignored" in self.text:
            return "traceback"
        if self.code == 0:
            return "done"
        if self.code < 0:
            return "killed"
        expected = {1: "refused", 128 + signal.SIGINT: "interrupted", 128 + signal.SIGTERM: "interrupted"}
        outcome = expected.get(self.code)
        if outcome and lines and lines[-1].startswith("tsds: ") and (len(lines) == 1 or outcome == "interrupted"):
            return outcome
        return f"status {self.code}, {len(lines)} lines"

    @property
    def last_line(self) -> str:
        return self.text.strip().splitlines()[-1][:200] if self.text.strip() else ""


def compile_shim(folder: Path) -> Path:
    """faultfs.c as a shared library."""
    library = folder / "faultfs.so"
    options = "-O2 -U_FORTIFY_SOURCE -shared -fPIC"  # fortified headers have an `open` of their own
    command = ["gcc", *options.split(), "-o", str(library), str(HERE / "faultfs.c"), "-ldl"]
    subprocess.run(command, check=True)
    return library


class Server:
    """A process of server.py; a context manager that ends it."""

    def __init__(self, library: Path, folder: Path) -> None:
        environment = {
            **os.environ,
            "LD_PRELOAD": str(library),
            "TSDS_FAULTS_CONTROL": str(folder / "control"),
            "PYTHONPATH": os.pathsep.join([str(HERE.parent), *sys.path]),
            "OMP_NUM_THREADS": "1",  # a process with one thread may be forked
            "OPENBLAS_NUM_THREADS": "1",
        }
        command = [sys.executable, str(HERE / "server.py")]
        self._process = subprocess.Popen(
            command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self._log = folder / "operations.log"
        #: Where the clock stands still, so that stores of one source have the same bytes; not before the sources.
        self._clock = int(time.time()) + 1

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *error: object) -> None:
        self._process.communicate()

    def run(
        self,
        argv: Sequence[str],
        fault: Fault | None = None,
        at: int = 0,
        prefix: Path | str = "",
        log: Path | str = "",
    ) -> Result:
        """Run a command, with a fault at the `at`-th operation below `prefix`; changes there are appended to `log`."""
        fault = fault or Fault()
        request = {
            **{name: int(getattr(fault, name)) for name in ("action", "counted", "error", "failing")},
            **{"argv": list(argv), "at": at, "prefix": str(prefix), "log": str(log)},
            **{"clock": self._clock, "limit": LIMIT},
        }
        if self._process.stdin is None or self._process.stdout is None:
            raise RuntimeError("the server has no pipes")
        print(json.dumps(request), file=self._process.stdin, flush=True)
        answer = self._process.stdout.readline()
        if not answer:
            raise RuntimeError(f"the server ended with status {self._process.wait()}")
        return Result(**json.loads(answer))

    def operations(self, argv: Sequence[str], fault: Fault, prefix: Path) -> list[str]:
        """What a command does undisturbed below `prefix`, of what the fault counts: in this order, with its paths."""
        self._log.unlink(missing_ok=True)
        result = self.run(argv, replace(fault, action=Action.TRACE), prefix=prefix, log=self._log)
        assert result.outcome == "done", result
        lines = self._log.read_text().splitlines() if self._log.exists() else []
        numbered = sorted((int(number), what) for number, what in (line.split("\t") for line in lines))
        assert [number for number, _ in numbered] == list(range(1, result.count + 1))
        return [what for _, what in numbered]

    def warm(self, argv: Sequence[str]) -> None:
        """Let the server import what a command imports."""
        result = self.run(["modules", *argv])
        assert result.code == 0, result.text
