"""Faults, one at each operation on files: what is done with them, and what must hold afterwards.

A *trial* is one command with one fault, and the same command again without. After the first there is no store, or a
whole one; after the second there is one whose every byte is that of an undisturbed conversion, and nothing beside it.
"""

from __future__ import annotations

import dataclasses
import errno
import hashlib
import json
import os
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import IntEnum, IntFlag
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
#: Seconds after which a command counts as hanging: they take a tenth of one.
LIMIT = 60.0
#: ``full`` takes every operation, also where a sweep usually takes every second or tenth; ``quick`` takes few.
EXTENT = os.environ.get("TSDS_FAULTS", "")


class Class(IntFlag):
    """Classes of operations, as in faultfs.c."""

    DATA, CREATE, SYNC, NAME, READ, LOOK, LOCK = 1, 2, 4, 8, 16, 32, 64
    CHANGES = DATA | CREATE | SYNC | NAME
    READS = READ | LOOK
    #: What a full disk refuses.
    GROWTH = DATA | CREATE | SYNC


class Action(IntEnum):
    """What happens at the n-th operation, as in faultfs.c."""

    PASS, FAIL_ONCE, FAIL_FROM, KILL_ALL, KILL_ONE, TEAR, SHORT = range(7)


@dataclass(frozen=True)
class Fault:
    """One kind of fault; `counted` says which operations are numbered, `failing` which fail of those."""

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
    "EIO when reading": Fault(Action.FAIL_ONCE, Class.READS, errno.EIO),
    "EMFILE when reading": Fault(Action.FAIL_ONCE, Class.READS, errno.EMFILE),
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
        """``done``, ``refused`` (one line, status 1), ``killed``; anything else should not be."""
        lines = [line for line in self.text.splitlines() if line.strip()]
        if self.hung:
            return "hung"
        if "Traceback" in self.text or "Exception ignored" in self.text:
            return "traceback"
        if self.code == 0:
            return "done"
        if self.code < 0:
            return "killed"
        one = self.code == 1 and len(lines) == 1 and lines[0].startswith("tsds: ")
        return "refused" if one else f"status {self.code}, {len(lines)} lines"

    @property
    def last_line(self) -> str:
        return self.text.strip().splitlines()[-1][:200] if self.text.strip() else ""


def step_of(usual: int) -> int:
    """From one operation that meets a fault to the next."""
    return {"full": 1, "quick": 12 * usual + 1}.get(EXTENT, usual)


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

    def warm(self, argv: Sequence[str]) -> None:
        """Let the server import what a command imports."""
        result = self.run(["modules", *argv])
        assert result.code == 0, result.text


# --- what is checked ----------------------------------------------------------------------------------------------


def snapshot(path: Path) -> dict[str, str]:
    """SHA-256 of each file below a folder, by its relative path; of folders too, so that an empty one counts."""
    found = {}
    for item in sorted(path.rglob("*")):
        data = b"a folder" if item.is_dir() else item.read_bytes()
        found[item.relative_to(path).as_posix()] = hashlib.sha256(data).hexdigest()
    return found


def differences(found: dict[str, str], expected: dict[str, str]) -> str:
    """The names that are not in both, or not the same; empty if all are."""
    return ", ".join(sorted(name for name in found.keys() | expected.keys() if found.get(name) != expected.get(name)))


@dataclass(frozen=True)
class Case:
    """A command that makes a store: ``OUT`` in its arguments is where, `source` is what it reads."""

    name: str
    source: Path
    arguments: tuple[str, ...]

    def argv(self, out: Path) -> list[str]:
        """The command for a store at `out`."""
        return ["tsds", *(str(out) if word == "OUT" else word for word in self.arguments)]


@dataclass
class Sweep:
    """What came of many trials.

    Attributes:
        operations: what could be met by a fault.
        reruns: how often the same command was run again, on what differed.
        resumed: those of them that used a shard of the interrupted one.
        failures: what should not be, one line each.
    """

    name: str
    operations: int = 0
    trials: int = 0
    reruns: int = 0
    resumed: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)

    def as_data(self) -> dict[str, Any]:
        """For the report."""
        return {**vars(self), "outcomes": dict(self.outcomes), "failures": len(self.failures)}

    def check(self) -> None:
        """Fail with what was found, the first thirty of it."""
        if self.failures:
            shown = "\n".join(self.failures[:30])
            raise AssertionError(f"{self.name}: {len(self.failures)} failures in {self.trials} trials\n{shown}")


class Bench:
    """A server, a folder to work in, and the undisturbed stores to compare with."""

    def __init__(self, server: Server, folder: Path) -> None:
        self.server = server
        self.folder = folder
        self._references: dict[str, dict[str, str]] = {}
        self._known: dict[str, list[str]] = {}  # digest of a state of the disk -> what is wrong after the command

    def fresh(self) -> Path:
        """The folder of a trial, empty."""
        folder = self.folder / "trial"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        return folder

    def reference(self, case: Case) -> dict[str, str]:
        """The files of the store that a command makes undisturbed; it is verified once."""
        if case.name not in self._references:
            out = self.folder / f"{case.name}.tsds"
            for argv in (case.argv(out), ["tsds", "verify", str(out)]):
                result = self.server.run(argv)
                assert result.outcome == "done", result
            self._references[case.name] = snapshot(out)
        return self._references[case.name]

    def count(self, case: Case, fault: Fault, prefix: Path | None = None) -> int:
        """How many operations of the kinds that a fault counts a command does."""
        folder = self.fresh()
        fault = dataclasses.replace(fault, action=Action.PASS)
        result = self.server.run(case.argv(folder / "out.tsds"), fault, prefix=prefix or folder)
        assert result.outcome == "done", result
        return result.count

    def trial(self, case: Case, fault: Fault, at: int, sweep: Sweep, prefix: Path | None = None) -> None:
        """One fault, and the same command again."""
        folder = self.fresh()
        out = folder / "out.tsds"
        result = self.server.run(case.argv(out), fault, at, prefix or folder)
        sweep.trials += 1
        sweep.outcomes[result.outcome if result.fired else f"{result.outcome}, not met"] += 1
        found = [*self._after_fault(case, out, result), *self.again(case, out, sweep)]
        sweep.failures += [f"operation {at}, {result.what}: {text}" for text in found]

    def _after_fault(self, case: Case, out: Path, result: Result) -> Iterator[str]:
        there = os.path.lexists(out)
        if result.outcome not in ("done", "refused", "killed"):
            yield f"{result.outcome}: {result.last_line}"
        if there and (bad := differences(snapshot(out), self.reference(case))):
            yield f"OUT is not whole: {bad}"
        if result.outcome == "done":
            if not there:
                yield "success was told, but there is no OUT"
            if not result.fired and sorted(path.name for path in out.parent.iterdir()) != [out.name]:
                yield "something is left beside OUT"
        unsynced_name = result.what.endswith(" .") and "whole" in result.text  # the folder of OUT, synced at the end
        if result.outcome == "refused" and there and not unsynced_name:
            yield f"failure was told, but OUT is whole: {result.last_line}"

    def again(self, case: Case, out: Path, sweep: Sweep) -> list[str]:
        """Run the command without a fault, on what is found at `out` and beside it; what is wrong after it.

        It is not run twice on the same files: what it does follows from them.
        """
        state = hashlib.sha256(f"{case.name} {sorted(snapshot(out.parent).items())}".encode()).hexdigest()
        if state not in self._known:
            sweep.reruns += 1
            self._known[state] = list(self._run_again(case, out, sweep))
        return self._known[state]

    def _run_again(self, case: Case, out: Path, sweep: Sweep) -> Iterator[str]:
        there = os.path.lexists(out)
        result = self.server.run(case.argv(out))
        sweep.resumed += "used again" in result.text
        if there and not (result.outcome == "refused" and "exists already" in result.text):
            yield f"again, with OUT there: {result.outcome}: {result.last_line}"
        if not there and result.outcome != "done":
            yield f"again: {result.outcome}: {result.last_line}"
        if not os.path.lexists(out):
            return
        if bad := differences(snapshot(out), self.reference(case)):
            yield f"after it, OUT is not that of an undisturbed run: {bad}"
        if left := sorted(path.name for path in out.parent.iterdir() if path != out):
            yield f"after it, this is left beside OUT: {', '.join(left)}"
