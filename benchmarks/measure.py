"""What a figure is, timings that take turns, and results as JSON. Linux only: memory is read from /proc."""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tensorstore_ds.comparison.system import machine

#: Where ``python -m benchmarks`` finds this package.
ROOT = Path(__file__).parent.parent
RESULTS = Path(__file__).parent / "results"


@dataclass(frozen=True, slots=True)
class Settings:
    """What every measurement is given.

    Attributes:
        scratch: an empty folder for what it writes; removed afterwards.
        digits: 70,000 PNG files of 28x28 pixels in ``train/0`` to ``test/9``.
        digits_name: what they are, for the tables.
        repeat: rounds of what is compared.
        voc: images with boxes, a VOC folder with a split ``train``; None if there are none.
    """

    scratch: Path
    digits: Path
    digits_name: str
    repeat: int
    voc: Path | None = None


@dataclass(frozen=True, slots=True)
class Figure:
    """One number, with its target.

    Attributes:
        what: was measured, in words.
        value, limit: measured, and the target; both in `unit`. A value of None was not measured; `note` says why.
        decimals: of both, when printed.
        at_least: the target is a lower bound, not an upper one.
        note: what else was seen, such as the seconds behind a ratio.
    """

    what: str
    value: float | None
    limit: float
    unit: str = ""
    decimals: int = 2
    at_least: bool = False
    note: str = ""

    @property
    def met(self) -> bool | None:
        """Whether the target is met; None if that is not known."""
        if self.value is None:
            return None
        return self.value >= self.limit if self.at_least else self.value <= self.limit

    @property
    def row(self) -> tuple[str, str, str, str]:
        """Of a table: what, the target, the value and whether it meets the target, and the note."""
        shown = [f"{value:.{self.decimals}f} {self.unit}".rstrip() for value in (self.limit, self.value or 0)]
        measured = "not measured" if self.value is None else f"{shown[1]}, {'met' if self.met else 'missed'}"
        return self.what, f"at {'least' if self.at_least else 'most'} {shown[0]}", measured, self.note


FIGURE_HEAD = ("figure", "target", "measured", "")


def table(head: Sequence[str], rows: Sequence[Sequence[str]], right: int = 10**3) -> list[str]:
    """Lines of a Markdown table; columns from `right` on have their cells at the right."""
    rule = ["--:" if place >= right else "---" for place in range(len(head))]
    return [f"| {' | '.join(row)} |" for row in (head, rule, *rows)]


# --- results ------------------------------------------------------------------------------------------------------


def as_result(figures: Sequence[Figure], **more: Any) -> dict[str, Any]:
    """Figures, and what else was measured, with the machine and the date."""
    return {"machine": machine(), "figures": [{**asdict(one), "met": one.met} for one in figures], **more}


def figures_of(result: Mapping[str, Any]) -> list[Figure]:
    """The figures of a result."""
    return [Figure(**{name: value for name, value in one.items() if name != "met"}) for one in result["figures"]]


def write_result(file: Path, result: Mapping[str, Any]) -> None:
    """As JSON, an entry of a list per line, so that a difference can be read."""
    parts = [f'"{name}": {_lines(value)}' for name, value in result.items()]
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("{\n" + ",\n".join(parts) + "\n}\n")


def _lines(value: Any) -> str:
    if not isinstance(value, list) or not value:
        return json.dumps(value)
    return "[\n " + ",\n ".join(map(json.dumps, value)) + "\n]"


def say(text: str) -> None:
    """On the standard error."""
    print(text, file=sys.stderr, flush=True)


# --- time -------------------------------------------------------------------------------------------------------


def seconds_of(function: Callable[[], object]) -> float:
    """Wall time of one call."""
    begun = time.perf_counter()
    function()
    return time.perf_counter() - begun


def alternate(timings: Sequence[Callable[[], float]], repeat: int) -> list[list[float]]:
    """Run timings in turn, so that whatever else the machine does falls on all of them.

    The first round warms caches and is not counted. Every other round goes backwards, so that none of the timings is
    always the one that comes after another.

    Args:
        timings: each does its work once and returns the seconds that count.
        repeat: rounds that are counted.

    Returns:
        For each timing its seconds in every round.
    """
    seconds: list[list[float]] = [[] for _ in timings]
    for number in range(repeat + 1):
        order = range(len(timings)) if number % 2 else reversed(range(len(timings)))
        for i in order:
            took = timings[i]()
            if number:
                seconds[i].append(took)
    return seconds


def median_ratio(seconds: Sequence[float], reference: Sequence[float]) -> float:
    """The median of the ratios of each round; what slows a whole round down does not change its ratio."""
    return statistics.median(a / b for a, b in zip(seconds, reference, strict=True))


def spread(values: Sequence[float], scale: float = 1) -> str:
    """Median and range: ``2.31 (2.20 to 2.75)``."""
    low, middle, high = (scale * f(values) for f in (min, statistics.median, max))
    return f"{middle:.2f} ({low:.2f} to {high:.2f})"
