"""Loaders side by side: heats in which they take turns, epoch by epoch, each in its own process."""

from __future__ import annotations

import shutil
import statistics
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.lane import Lane
from benchmarks.peers import Peer

#: Loaders of a heat beside those that run in all heats: as many as memory has room for with all their data.
HEAT = 4
#: Seconds of epochs after which a slow loader leaves the rest of the rounds out, once it has been in three.
BUDGET = 15.0
_ROUNDS_AT_LEAST = 3


@dataclass(frozen=True, slots=True)
class Entry:
    """Who takes part, and how."""

    peer: Peer
    mode: str
    batch: int


@dataclass(slots=True)
class Result:
    """What came of an entry.

    Attributes:
        state: ``ready``, ``missing`` or ``failed``.
        reason: why it is not ready.
        version: of the peer's package.
        rows: of an epoch.
        nbytes: of its own format on disk; 0 if it has none.
        seconds: an epoch, of every round of every heat.
        behind: the seconds of each round over those of the first of the fixed entries in that round.
    """

    entry: Entry
    state: str = ""
    reason: str = ""
    version: str = ""
    rows: int = 0
    nbytes: int = 0
    seconds: list[float] = field(default_factory=list)
    behind: list[float] = field(default_factory=list)

    @property
    def rate(self) -> float | None:
        """Samples a second, the median; None if there is none."""
        return self.rows / statistics.median(self.seconds) if self.seconds and self.state == "ready" else None

    @property
    def slower(self) -> float | None:
        """How many times the first entry is as fast, the median of the rounds; None if there is none."""
        return statistics.median(self.behind) if self.behind and self.state == "ready" else None


def race(
    fixed: Sequence[Entry], others: Sequence[Entry], source: Path, scratch: Path, *, repeat: int, expected: str | None
) -> list[Result]:
    """Let them take turns.

    Args:
        fixed: those that run in every heat; all are compared to the first.
        others: `HEAT` of them at a time.
        source: the folder of the data set.
        scratch: for what they convert it to; only one heat's is there at a time.
        repeat: rounds that are counted, in each heat.
        expected: digest of what has to be delivered; None for that of the first.

    Returns:
        The results, in the order of the entries.
    """
    results = {entry: Result(entry) for entry in (*fixed, *others)}
    for start in range(0, max(1, len(others)), HEAT):
        folder = scratch / f"heat-{start}"
        folder.mkdir()
        with ExitStack() as stack:
            lanes: list[Lane] = []
            for entry in (*fixed, *others[start : start + HEAT]):
                _say(f"  {entry.peer.title} {entry.mode}, batch {entry.batch}")
                lane = stack.enter_context(Lane(entry.peer, entry.mode, source, folder, entry.batch))
                lanes.append(lane)
                wanted = expected or lanes[0].digest
                if lane.state == "ready" and lane.digest != wanted:
                    lane.state, lane.reason = "failed", "what it delivered is not what is stored"
            run_rounds(lanes, repeat)
        for entry, lane in zip((*fixed, *others[start : start + HEAT]), lanes, strict=True):
            _add(results[entry], lane, lanes[0])
        shutil.rmtree(folder)
    return list(results.values())


def run_rounds(lanes: Sequence[Lane], repeat: int) -> None:
    """Rounds forwards and backwards by turns, after one that is not counted."""
    for round_ in range(repeat + 1):
        for lane in lanes if round_ % 2 else reversed(lanes):
            if lane.state != "ready" or _tired(lane, round_):
                if round_:
                    lane.skip()
                continue
            lane.run_epoch(counted=round_ > 0)


def _tired(lane: Lane, round_: int) -> bool:
    if round_ == 0:  # the epoch in which it was checked has warmed it up as well
        return lane.spent > BUDGET / _ROUNDS_AT_LEAST
    return lane.spent > BUDGET and round_ > _ROUNDS_AT_LEAST


def _add(result: Result, lane: Lane, first: Lane) -> None:
    result.state = lane.state if result.state in ("", "ready") else result.state
    result.reason, result.version, result.rows, result.nbytes = lane.reason, lane.version, lane.rows, lane.nbytes
    for seconds, reference in zip(lane.seconds, first.seconds, strict=True):
        if seconds is not None:
            result.seconds.append(seconds)
            if reference is not None:
                result.behind.append(seconds / reference)


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
