"""What a figure is, timings that take turns, and results as JSON. Linux only: memory is read from /proc."""

from __future__ import annotations

import json
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np

from tensorstore_ds import native
from tensorstore_ds.annex.measuring.measure import cpu_seconds, in_turns
from tensorstore_ds.annex.measuring.system import machine

#: Where ``python -m benchmarks`` finds this package.
ROOT = Path(__file__).parent.parent
RESULTS = Path(__file__).parent / "results"

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Settings:
    """What every measurement is given."""

    scratch: Path  #: An empty folder for what it writes; removed afterwards.
    digits: Path  #: 70,000 PNG files of 28x28 pixels in ``train/0`` to ``test/9``.
    digits_name: str  #: What they are, for the tables.
    repeat: int  #: Rounds of what is compared.
    voc: Path | None = None  #: Images with boxes, a VOC folder with a split ``train``; None if there are none.
    photographs: Path | None = None  #: JPEG files in class folders; None to draw some.


@dataclass(frozen=True, slots=True)
class Figure:
    """One number, with its target."""

    what: str  #: Was measured, in words.
    value: float | None  #: In `unit`; None if it was not measured, and `note` says why.
    limit: float  #: The target.
    unit: str = ""
    decimals: int = 2  #: Of both, when printed.
    at_least: bool = False  #: The target is a lower bound, not an upper one.
    note: str = ""  #: What else was seen, such as the seconds behind a ratio.

    @property
    def met(self) -> bool | None:
        """Whether the target is met; None if that is not known."""
        if self.value is None:
            return None
        return self.value >= self.limit if self.at_least else self.value <= self.limit

    @property
    def row(self) -> tuple[str, str, str, str]:
        """Of a table: what, the target, the value and whether it meets the target, and the note."""
        decimals, value = self.decimals, self.value or 0
        while not self.met and value != self.limit and f"{value:.{decimals}f}" == f"{self.limit:.{decimals}f}":
            decimals += 1  # a missed target does not read as one that is met
        shown = [f"{number:.{decimals}f} {self.unit}".rstrip() for number in (self.limit, value)]
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
    """As JSON, an entry of a list per line, so that a difference can be read; NumPy's numbers as Python's."""
    dumps, parts = partial(json.dumps, default=np.generic.item), []
    for name, value in result.items():
        lines = list(map(dumps, value)) if isinstance(value, list) else []
        parts.append(f'"{name}": ' + ("[\n " + ",\n ".join(lines) + "\n]" if lines else dumps(value)))
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("{\n" + ",\n".join(parts) + "\n}\n")


def say(text: str) -> None:
    """On the standard error."""
    print(text, file=sys.stderr, flush=True)


# --- processes ----------------------------------------------------------------------------------------------------


def command_of(function: Callable[..., object], *arguments: object) -> list[str]:
    """The command that calls a function with numbers, texts and paths, in `ROOT`, and prints its result as JSON."""
    spec, name = sys.modules[function.__module__].__spec__, function.__name__
    module = spec.name if spec else function.__module__  # not `__main__`
    lines = ["import json", "from pathlib import PosixPath", f"from {module} import {name}"]
    return [sys.executable, "-c", "\n".join([*lines, f"print(json.dumps({name}(*{arguments!r})))"])]


def in_fresh_process(function: Callable[..., object], *arguments: object) -> Any:
    """The result of a function in a process that has done nothing else, as JSON has it."""
    command = command_of(function, *arguments)
    return json.loads(subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True).stdout)


def peak_nbytes() -> int:
    """The most memory that this process had: not `ru_maxrss`, which begins with what its parent had."""
    return int(Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0]) * 1024


# --- time -------------------------------------------------------------------------------------------------------


def seconds_of(function: Callable[[], object], makes: Path | None = None) -> float:
    """Wall time of one call; the folder that it makes is removed after that."""
    begun = time.perf_counter()
    function()
    seconds = time.perf_counter() - begun
    if makes is not None:
        shutil.rmtree(makes)
    return seconds


class Spent(NamedTuple):
    """Seconds of one call."""

    wall: float  #: By the clock.
    cpu: float  #: Of CPU time: of this process, its threads and all processes below it.


def spent_on(function: Callable[[], object]) -> Spent:
    """Both kinds of seconds of one call."""
    begun, cpu = time.perf_counter(), cpu_seconds()
    function()
    return Spent(time.perf_counter() - begun, cpu_seconds() - cpu)


def spent_with(kernels: Any, function: Callable[[], object]) -> Spent:
    """`spent_on` with these compiled kernels, or without any where it is None."""
    kept, native.core = native.core, kernels
    try:
        return spent_on(function)
    finally:
        native.core = kept


def alternate(timings: Sequence[Callable[[], T]], repeat: int) -> list[list[T]]:
    """For each timing, what it returned in every round, forwards and backwards; the first one warms caches."""
    found = in_turns(dict(enumerate(timings)), repeat + 1)
    return [own[1:] for own in found.values()]


def ratio_of_medians(seconds: Sequence[float], reference: Sequence[float]) -> float:
    """The quotient of both medians, so that a reader can compute it from the medians beside it.

    >>> ratio_of_medians([3.0, 1.0, 2.0], [4.0, 9.0, 4.0])
    0.5
    """
    return statistics.median(seconds) / statistics.median(reference)


def spread(values: Sequence[float], scale: float = 1, decimals: int = 2) -> str:
    """Median and range: ``2.31 (2.20 to 2.75)``."""
    low, middle, high = (f"{scale * f(values):,.{decimals}f}" for f in (min, statistics.median, max))
    return f"{middle} ({low} to {high})"


def rates(count: float, seconds: Sequence[float], decimals: int = 0) -> str:
    """Median and range of a count per second: the rate of the median seconds, from the slowest round to the fastest.

    >>> rates(100, [1.0, 4.0, 2.0])
    '50 (25 to 100)'
    """
    return spread([count / f(seconds) for f in (min, statistics.median, max)], decimals=decimals)
