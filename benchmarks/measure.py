"""How the figures are measured: what a figure is, alternating timings, memory of processes, the machine's description.

Linux only: memory is read from /proc.
"""

from __future__ import annotations

import datetime
import os
import platform
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

#: Where ``python -m benchmarks`` finds this package.
ROOT = Path(__file__).parent.parent


@dataclass(frozen=True, slots=True)
class Settings:
    """What every figure is given.

    Attributes:
        scratch: an empty folder for what the figure writes; removed afterwards.
        digits: 70,000 PNG files of 28x28 pixels in ``train/0`` to ``test/9``.
        digits_name: what they are, for the table.
        repeat: rounds of each pair that is compared.
        voc: images with boxes, a VOC folder with a split ``train``; None if there are none.
        chart: where to draw the loaders' speeds; None for nowhere.
    """

    scratch: Path
    digits: Path
    digits_name: str
    repeat: int
    voc: Path | None = None
    chart: Path | None = None


@dataclass(frozen=True, slots=True)
class Figure:
    """One line of the table.

    Attributes:
        what: what was measured, in words.
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
    def target(self) -> str:
        """The target, in words."""
        return f"at {'least' if self.at_least else 'most'} {self._shown(self.limit)}"

    @property
    def measured(self) -> str:
        """The value with its unit, and whether it meets the target."""
        return "not measured" if self.value is None else f"{self._shown(self.value)}, {'met' if self.met else 'missed'}"

    def _shown(self, value: float) -> str:
        return f"{value:.{self.decimals}f} {self.unit}".rstrip()


@dataclass(frozen=True, slots=True)
class Table:
    """What is printed beside the figures: a title, the names of the columns, and rows of as many cells."""

    title: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]

    def lines(self) -> Iterator[str]:
        """As Markdown."""
        yield f"{self.title}:"
        yield ""
        for row in (self.head, ["---"] * len(self.head), *self.rows):
            yield f"| {' | '.join(row)} |"


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
    for round_ in range(repeat + 1):
        order = range(len(timings)) if round_ % 2 else reversed(range(len(timings)))
        for i in order:
            took = timings[i]()
            if round_:
                seconds[i].append(took)
    return seconds


def median_ratio(seconds: Sequence[float], reference: Sequence[float]) -> float:
    """The median of the ratios of each round; what slows a whole round down does not change its ratio."""
    return statistics.median(a / b for a, b in zip(seconds, reference, strict=True))


def spread(values: Sequence[float], scale: float = 1) -> str:
    """Median and range: ``2.31 (2.20 to 2.75)``."""
    low, middle, high = (scale * f(values) for f in (min, statistics.median, max))
    return f"{middle:.2f} ({low:.2f} to {high:.2f})"


# --- memory -----------------------------------------------------------------------------------------------------


def own_nbytes(process: int | str = "self") -> int:
    """Memory that a process holds itself, in bytes: resident anonymous and shared memory, and no page of a file.

    What a forked process still shares with its parent counts for both of them: the sum can only be too high.

    Raises:
        ProcessLookupError: the process has ended.
    """
    try:
        lines = Path(f"/proc/{process}/status").read_text().splitlines()
    except FileNotFoundError as error:
        raise ProcessLookupError(process) from error
    found = dict(line.split(":", 1) for line in lines if line.startswith(("RssAnon", "RssShmem")))
    if not found:  # a process that has ended and was not waited for has no memory
        raise ProcessLookupError(process)
    return sum(int(value.split()[0]) * 1024 for value in found.values())


def children(parent: int) -> list[int]:
    """Processes that `parent` has started and that still run."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                status = (entry / "stat").read_text()
            except (FileNotFoundError, ProcessLookupError):
                continue  # ended meanwhile
            if int(status.rpartition(")")[2].split()[1]) == parent:  # the name before it may hold anything
                found.append(int(entry.name))
    return found


# --- the machine ------------------------------------------------------------------------------------------------


def machine() -> dict[str, str]:
    """What the figures depend on, and the date."""
    from PIL import __version__ as pillow

    models = [line.partition(":")[2] for line in _lines("/proc/cpuinfo") if line.startswith("model name")]
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "cpu": models[0].strip() if models else platform.machine(),
        "cores": f"{len(os.sched_getaffinity(0))} cores",
        "memory": f"{memory / 2**30:.0f} GiB",
        "system": f"{platform.system()} {platform.release().partition('-')[0]}",
        "python": f"Python {platform.python_version()}",
        "numpy": f"NumPy {np.__version__}",
        "pillow": f"Pillow {pillow}",
        "date": datetime.datetime.now().astimezone().date().isoformat(),
    }


def _lines(path: str) -> list[str]:
    return Path(path).read_text().splitlines()
