"""Trials: a fault at one operation on files, and what must hold afterwards.

A *trial* is one command with one fault, and the same command again without. After the first there is no store, or a
whole one; after the second there is one whose every byte is that of an undisturbed conversion, and nothing beside it.
"""

from __future__ import annotations

import hashlib
import os
import random
import re
import shutil
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from faults.harness import EXTENT, Action, Fault, Result, Server


def snapshot(path: Path) -> dict[str, str]:
    """SHA-256 of each file below a folder, by its relative path; of folders too, so that an empty one counts.

    Of a file, its own.
    """
    if path.is_file():
        return {".": hashlib.sha256(path.read_bytes()).hexdigest()}
    found = {}
    for item in sorted(path.rglob("*")):
        data = b"a folder" if item.is_dir() else item.read_bytes()
        found[item.relative_to(path).as_posix()] = hashlib.sha256(data).hexdigest()
    return found


def differences(found: dict[str, str], expected: dict[str, str]) -> str:
    """The names that are not in both, or not the same; empty if all are."""
    return ", ".join(sorted(name for name in found.keys() | expected.keys() if found.get(name) != expected.get(name)))


def unexpected(result: Result, fault: Fault) -> Iterator[str]:
    """What is wrong with how a command ended."""
    if result.outcome not in ("done", "refused", "killed", "interrupted"):
        yield f"{result.outcome}: {result.last_line}"
    if fault.action is Action.SIGNAL and result.fired and result.code != 128 + fault.error:
        yield f"expected exit status {128 + fault.error}, found {result.code}: {result.last_line}"


@dataclass(frozen=True)
class Case:
    """A command of server.py that makes a store: ``OUT`` in its words is where, `source` is what it reads.

    Without `makes_store`, it makes a folder of other files, in the same one step. What does not go on from what it
    finished (`goes_on`) leaves nothing of it. What has notes (`has_notes`) names what it could not remove.
    """

    name: str
    source: Path
    words: tuple[str, ...]
    makes_store: bool = True
    goes_on: bool = True
    has_notes: bool = True

    def argv(self, out: Path) -> list[str]:
        """The command for a store at `out`."""
        return [str(out) if word == "OUT" else word for word in self.words]


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


def site(operation: str) -> str:
    """Where the code does an operation, as far as its path tells: the same for all shards and their arrays."""
    name, _, path = operation.partition(" ")
    path = re.sub(r"\w*\d\w*|\b\w\b", "#", path)  # numbers of shards, names of samples, digests
    return f"{name.removesuffix('64')} {re.sub('[^/]+/#[^/]*/.*', '#', path)}"


def chosen(sweep: Sweep, operations: Sequence[str]) -> list[int]:
    """The numbers, from 1 on, of the operations that meet a fault: see `EXTENT`."""
    sweep.operations = len(operations)
    if EXTENT == "every":
        return list(range(1, len(operations) + 1))
    draw = random.Random(f"{os.environ.get('TSDS_DRAW')} {sweep.name}")
    sites = defaultdict[str, list[int]](list)
    for number, operation in enumerate(operations, 1):
        sites[site(operation)].append(number)
    if EXTENT == "full":
        return sorted({number for found in sites.values() for number in (found[0], found[-1])})
    numbers = [draw.choice(found) for found in sites.values()]
    return sorted(draw.sample(numbers, -(-len(numbers) // 40)) if EXTENT == "quick" else numbers)


class Bench:
    """A server, a folder to work in, and the undisturbed stores to compare with."""

    def __init__(self, server: Server, folder: Path) -> None:
        self.server = server
        self.folder = folder
        self._references: dict[str, dict[str, str]] = {}
        self.known: dict[str, list[str]] = {}  # digest of a state of the disk -> what is wrong after the command
        self._read: dict[Path, dict[str, str]] = {}  # stores that commands read, as they were before the first one

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
            for argv in (case.argv(out), ["tsds", "verify", str(out)])[: 1 + case.makes_store]:
                result = self.server.run(argv)
                assert result.outcome == "done", result
            self._references[case.name] = snapshot(out)
        return self._references[case.name]

    def operations(self, case: Case, fault: Fault, prefix: Path | None = None) -> list[str]:
        """The operations of a command that a fault counts."""
        folder = self.fresh()
        return self.server.operations(case.argv(folder / "out.tsds"), fault, prefix or folder)

    def trial(self, case: Case, fault: Fault, at: int, sweep: Sweep, prefix: Path | None = None) -> None:
        """One fault, and the same command again."""
        folder = self.fresh()
        next(self.source_changed(case.source), None)
        out = folder / "out.tsds"
        result = self.server.run(case.argv(out), fault, at, prefix or folder)
        sweep.trials += 1
        sweep.outcomes[result.outcome if result.fired else f"{result.outcome}, not met"] += 1
        found = [
            *self._after_fault(case, out, result, fault),
            *self.again(case, out, sweep),
            *self.source_changed(case.source),
        ]
        sweep.failures += [f"operation {at}, {result.what}: {text}" for text in found]

    def source_changed(self, source: Path | None) -> Iterator[str]:
        """Of a store that was read: what is not as it was when it was first asked for."""
        if source is not None and source.suffix == ".tsds":
            found = snapshot(source)
            if bad := differences(found, self._read.setdefault(source, found)):
                yield f"the store that is read was changed: {bad}"

    def _after_fault(self, case: Case, out: Path, result: Result, fault: Fault) -> Iterator[str]:
        there = os.path.lexists(out)
        yield from unexpected(result, fault)
        if there and (bad := differences(snapshot(out), self.reference(case))):
            yield f"OUT is not whole: {bad}"
        if result.outcome == "done":
            if not there:
                yield "success was told, but there is no OUT"
            if not result.fired and sorted(path.name for path in out.parent.iterdir()) != [out.name]:
                yield "something is left beside OUT"
        left = {path.relative_to(out.parent).parts for path in out.parent.rglob("*")}
        left = {"/".join(parts) for parts in left if parts[0] != out.name}
        work = f"{out.name}.partial"
        if result.outcome == "done" and left and case.has_notes and str(out.with_name(work)) not in result.text:
            yield f"success was told, and this is left: {', '.join(sorted(left))}"
        is_once = fault.action in (Action.FAIL_ONCE, Action.SIGNAL) and not result.what.startswith(("unlink", "rmdir"))
        must_remove = result.outcome in ("refused", "interrupted") and is_once and not case.goes_on
        if must_remove and not left <= {work, f"{work}/tsds.lock"}:
            yield f"{result.outcome}, and this is left: {', '.join(sorted(left))}"
        unsynced_name = result.what.endswith(" .") and "whole" in result.text  # the folder of OUT, synced at the end
        opened = re.search(r" \./out\.tsds(/|$)", result.what)  # what is read of OUT itself, after it has appeared
        if result.outcome == "refused" and there and not unsynced_name and not opened:
            yield f"failure was told, but OUT is whole: {result.last_line}"

    def again(self, case: Case, out: Path, sweep: Sweep) -> list[str]:
        """Run the command without a fault, on what is found at `out` and beside it; what is wrong after it.

        It is not run twice on the same files: what it does follows from them.
        """
        state = hashlib.sha256(f"{case.name} {sorted(snapshot(out.parent).items())}".encode()).hexdigest()
        if state not in self.known:
            sweep.reruns += 1
            self.known[state] = list(self._run_again(case, out, sweep))
        return self.known[state]

    def _run_again(self, case: Case, out: Path, sweep: Sweep) -> Iterator[str]:
        there = os.path.lexists(out)
        result = self.server.run(case.argv(out))
        sweep.resumed += "used again" in result.text
        is_known = result.outcome == "refused" and "expected a new path, found" in result.text
        if there and not (is_known or (result.outcome == "done" and "here already" in result.text)):
            yield f"again, with OUT there: {result.outcome}: {result.last_line}"
        if not there and result.outcome != "done":
            yield f"again: {result.outcome}: {result.last_line}"
        if not os.path.lexists(out):
            return
        if bad := differences(snapshot(out), self.reference(case)):
            yield f"after it, OUT is not that of an undisturbed run: {bad}"
        if left := sorted(path.name for path in out.parent.iterdir() if path != out):
            yield f"after it, this is left beside OUT: {', '.join(left)}"
