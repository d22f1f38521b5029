"""Lanes that take turns, so that what else the machine does falls on all of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tensorstore_ds.comparison.lane import Answer, Lane
from tensorstore_ds.machine import memory_limit


@dataclass(slots=True)
class Expectation:
    """What a way will take at a larger batch, by what it took at a smaller one.

    Attributes:
        rate: samples per second; None if nothing was seen.
        grown: bytes that it needed for each sample of a batch.
    """

    rate: float | None = None
    grown: float = 0.0

    def learn(self, size: int, answer: Mapping[str, Any]) -> None:
        """From a lane's answer at a batch size."""
        self.rate = answer["samples"] / min(answer["epochs"])
        if answer["memory"] is not None and answer["before"] is not None:
            self.grown = max(0, answer["memory"] - answer["before"]) / size

    def reason(self, size: int, least: int, seconds: float) -> str:
        """Why a batch size is not measured; empty if it is.

        Args:
            size: samples per batch.
            least: samples in the least part of an epoch that can be measured.
            seconds: that it may take.
        """
        if self.rate is not None and least / self.rate > seconds:
            return f"a batch takes about {size / self.rate:.0f} s; a larger value of `seconds` measures it"
        needed, limit = int(self.grown * size), memory_limit()
        if needed > limit:
            return f"it needs about {needed / 1e9:.1f} GB of memory more, {limit / 1e9:.1f} GB are left"
        return ""


def take_turns(
    lanes: Sequence[Lane],
    verb: str,
    answers: Mapping[str, list[Answer]],
    *,
    rounds: int,
    seconds: float,
    ask: Callable[[Lane, str], Answer],
) -> None:
    """Ask each lane once per round, forwards and backwards by turns.

    Args:
        lanes: those that still measure something.
        verb: what to do.
        answers: of each lane, by its name; they are added. A lane with one that is not ``ok`` is asked no more.
        rounds: at most.
        seconds: in which a lane is asked again.
        ask: asks a lane for a measurement.
    """
    spent = dict.fromkeys((lane.name for lane in lanes), 0.0)
    for number in range(rounds):
        for lane in lanes if number % 2 == 0 else reversed(lanes):
            own = answers[lane.name]
            if spent[lane.name] < seconds and all(answer["state"] == "ok" for answer in own):
                own.append(ask(lane, verb))
                spent[lane.name] += own[-1].get("took", 0.0)
