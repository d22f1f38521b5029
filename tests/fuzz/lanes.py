"""Cases in processes of their own, so that one that crashes, hangs or eats memory is a result, not the end.

A batch of cases of one door runs in a forked child. It writes a line after every case, so that the case during which it
died is known; inputs follow from (door, seed, number), so that none has to be handed over.
"""

from __future__ import annotations

import dataclasses
import itertools
import os
import resource
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Iterable, Iterator
from multiprocessing.connection import Connection, Pipe, wait
from pathlib import Path
from random import Random

from fuzz.door import Door, attempt
from fuzz.doors import DOORS
from fuzz.limits import CPU_SECONDS, WALL_SECONDS, TooSlow, limited_memory, limited_time

#: Folders on a disk in memory, where there is one.
SCRATCH = Path("/dev/shm") if Path("/dev/shm").is_dir() else None  # noqa: S108


@dataclasses.dataclass(frozen=True, slots=True)
class Batch:
    """Cases ``[first, first + count)`` of a door."""

    door: str
    seed: int
    first: int
    count: int


@dataclasses.dataclass(slots=True)
class Tally:
    """What became of the cases of a door.

    Attributes:
        slowest: seconds of the slowest case that was no failure.
        nbytes: most memory that a batch took beyond what its process had before.
        failures: how often what failed, by where and how; with one input each.
    """

    cases: int = 0
    accepted: int = 0
    refused: int = 0
    seconds: float = 0.0
    slowest: float = 0.0
    nbytes: int = 0
    failures: dict[str, int] = dataclasses.field(default_factory=dict)
    inputs: dict[str, bytes] = dataclasses.field(default_factory=dict)

    def take(self, outcome: str, seconds: float, nbytes: int, data: bytes) -> None:
        """Count a case: accepted, refused, or how it failed; of the inputs of a failure the first is kept."""
        self.cases += 1
        self.seconds += seconds
        self.nbytes = max(self.nbytes, nbytes)
        if outcome in ("accepted", "refused"):
            self.accepted += outcome == "accepted"
            self.refused += outcome == "refused"
            self.slowest = max(self.slowest, seconds)
            return
        self.failures[outcome] = self.failures.get(outcome, 0) + 1
        self.inputs.setdefault(outcome, data)

    def add(self, other: Tally) -> None:
        """Add the cases of another batch; of the inputs of a failure the shortest is kept."""
        for name in ("cases", "accepted", "refused", "seconds"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.slowest, self.nbytes = max(self.slowest, other.slowest), max(self.nbytes, other.nbytes)
        for what, count in other.failures.items():
            self.failures[what] = self.failures.get(what, 0) + count
            self.inputs[what] = min(self.inputs.get(what, other.inputs[what]), other.inputs[what], key=len)


def input_of(door: Door, batch: Batch, number: int) -> bytes:
    """The input of a case."""
    random = Random(f"{batch.door} {batch.seed} {number}")
    return door.mutate(random, random.choice(door.goods))


# --- a child ------------------------------------------------------------------------------------------------------


def _try_cases(batch: Batch, folder: Path, results: Connection) -> None:
    """Run a batch in this process; after each case send what `Tally.take` takes."""
    warnings.simplefilter("ignore")
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 2)  # decoders written in C complain there
    door = DOORS[batch.door](folder)
    with limited_memory():
        before = _peak()
        for number in range(batch.first, batch.first + batch.count):
            data = input_of(door, batch, number)
            began = time.perf_counter()
            try:
                with limited_time(CPU_SECONDS, WALL_SECONDS):
                    outcome = "accepted" if attempt(door, data) else "refused"
            except BaseException as error:
                outcome = _signature(error)
            failed = outcome not in ("accepted", "refused")
            results.send((outcome, time.perf_counter() - began, _peak() - before, data if failed else b""))


def _peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _signature(error: BaseException) -> str:
    """What was raised and where: alike for inputs that meet the same defect."""
    frames = traceback.extract_tb(error.__traceback__)
    ours = [f for f in frames if "tensorstore_ds" in f.filename or "tsds_cli" in f.filename] or list(frames)
    at = f"{Path(ours[-1].filename).name}:{ours[-1].lineno}" if ours else "nowhere"
    text = str(error).split("\n")[0][:60] if isinstance(error, TooSlow | AssertionError) else ""
    return f"{type(error).__name__} at {at}{': ' if text else ''}{text}"


# --- all of them --------------------------------------------------------------------------------------------------


class _Lane:
    """A child at work on a batch, and what it has told so far."""

    def __init__(self, batch: Batch) -> None:
        self.batch = batch
        self.tally = Tally()
        self.heard = time.monotonic()
        self.folder = tempfile.TemporaryDirectory(prefix="tsds-fuzz-", dir=SCRATCH)
        self.results, sender = Pipe(duplex=False)
        sys.stdout.flush()
        self.pid = os.fork()
        if self.pid == 0:
            status = 1
            try:
                self.results.close()
                _try_cases(batch, Path(self.folder.name), sender)
                status = 0
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(status)
        sender.close()

    def listen(self) -> bool:
        """Take in what was sent; whether the child still runs."""
        self.heard = time.monotonic()
        try:
            self.tally.take(*self.results.recv())
        except EOFError:
            return False
        return True

    def end(self) -> Batch | None:
        """Wait for the child; what is left to do after the case that killed it."""
        _, status = os.waitpid(self.pid, 0)
        self.results.close()
        left = self.batch.count - self.tally.cases
        if left:
            how = f"killed by signal {os.WTERMSIG(status)}" if os.WIFSIGNALED(status) else "the process ended"
            with tempfile.TemporaryDirectory(dir=SCRATCH) as folder:
                door = DOORS[self.batch.door](Path(folder))
                data = input_of(door, self.batch, self.batch.first + self.tally.cases)
            self.tally.take(how, 0.0, 0, data)
            left -= 1
        self.folder.cleanup()
        first = self.batch.first + self.batch.count - left
        return dataclasses.replace(self.batch, first=first, count=left) if left else None

    def kill(self) -> None:
        """End the child whatever it does."""
        os.kill(self.pid, signal.SIGKILL)

    def discard(self) -> None:
        """End the child, and forget what it did."""
        self.kill()
        os.waitpid(self.pid, 0)
        self.results.close()
        self.folder.cleanup()


def run(batches: Iterable[Batch], processes: int) -> Iterator[tuple[Batch, Tally]]:
    """Run batches, some at a time; after each batch, what became of its cases.

    A batch whose child dies goes on in another one after the case that killed it.
    """
    waiting = iter(batches)
    lanes: dict[Connection, _Lane] = {}
    try:
        while True:
            while len(lanes) < processes and (batch := next(waiting, None)) is not None:
                lane = _Lane(batch)
                lanes[lane.results] = lane
            if not lanes:
                return
            for results in wait(list(lanes), timeout=WALL_SECONDS):
                lane = lanes[results]  # type: ignore[index]
                if not lane.listen():
                    del lanes[lane.results]
                    left = lane.end()
                    yield lane.batch, lane.tally
                    waiting = itertools.chain([left] if left else [], waiting)
            for lane in lanes.values():
                if time.monotonic() - lane.heard > 2 * WALL_SECONDS:
                    lane.kill()
    finally:
        for lane in lanes.values():
            lane.discard()
