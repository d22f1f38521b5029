"""Numbers, tables and bars as people read them, and JSON as programs do."""

from __future__ import annotations

import dataclasses
import json
import os
import shlex
import shutil
import sys
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path, PurePath
from typing import Any

import click


def size(nbytes: float) -> str:
    """A number of bytes, in decimal units.

    >>> size(999), size(1536), size(4 * 1024**3)
    ('999 B', '1.5 kB', '4.3 GB')
    """
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if nbytes < 999.5 or unit == "TB":
            break
        nbytes /= 1000
    return f"{nbytes:.0f} {unit}" if unit == "B" or nbytes >= 99.95 else f"{nbytes:.1f} {unit}"


def duration(seconds: float) -> str:
    """A time.

    >>> duration(0.034), duration(9.87), duration(75), duration(7300)
    ('34 ms', '9.9 s', '1 min 15 s', '2 h 2 min')
    """
    if seconds < 0.9995:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    minutes = round(seconds / 60)
    return (
        f"{round(seconds) // 60} min {round(seconds) % 60} s"
        if minutes < 60
        else f"{minutes // 60} h {minutes % 60} min"
    )


def number(value: int) -> str:
    """A count: ``70,000``."""
    return f"{value:,}"


def count(n: int, noun: str) -> str:
    """A count and its noun.

    >>> count(1, "sample"), count(1200, "class")
    ('1 sample', '1,200 classes')
    """
    plural = noun if n == 1 else f"{noun}es" if noun.endswith(("s", "x")) else f"{noun}s"
    return f"{n:,} {plural}"


def bar(share: float, width: int) -> str:
    """A bar of eighths of a character; anything above nothing shows.

    >>> bar(0.5, 4), bar(0.26, 4), bar(0.0001, 4)
    ('██', '█', '▏')
    """
    eighths = max(round(share * width * 8), 1 if share > 0 else 0)
    whole, rest = divmod(eighths, 8)
    return "█" * whole + " ▏▎▍▌▋▊▉"[rest].strip()


def sparkline(values: Sequence[float]) -> str:
    """A curve of one line, from 0 to the largest value.

    >>> sparkline([0.0, 0.3, 0.5, 1.0])
    '▁▃▅█'
    """
    top = max(values, default=0.0) or 1.0
    return "".join("▁▂▃▄▅▆▇█"[round(max(0.0, value) / top * 7)] for value in values)


def table(rows: Iterable[Sequence[str]], *, right: Iterable[int] = (), indent: str = "  ") -> list[str]:
    """Lines of columns that are as wide as their widest cell.

    Args:
        rows: cells; all rows have the same number.
        right: columns that are aligned to the right: numbers.
        indent: what each line begins with.
    """
    rows = [list(row) for row in rows]  # none: no lines
    widths = [max(map(cell_width, column)) for column in zip(*rows, strict=True)]
    aligned = set(right)
    lines = []
    for row in rows:
        cells = []
        for i, cell in enumerate(row):
            space = " " * (widths[i] - cell_width(cell))
            cells.append(space + cell if i in aligned else cell + space)
        lines.append((indent + "  ".join(cells)).rstrip())
    return lines


def cell_width(text: str) -> int:
    """Columns that a text takes on a terminal: two for a Chinese character, none for a combining one.

    >>> cell_width("cat"), cell_width("猫")
    (3, 2)
    """
    plain: str = click.unstyle(text)
    if plain.isascii():
        return len(plain)
    return sum(0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in plain)


def program(name: str = "tsds") -> str:
    """How a program of this environment is called from here: by name, or by its path where that is not enough."""
    beside = Path(sys.executable).with_name(name)
    found = shutil.which(name)
    if not beside.exists() or (found is not None and Path(found).absolute() == beside):
        return name
    return shlex.quote(os.path.relpath(beside) if beside.is_relative_to(Path.cwd()) else str(beside))


def head(title: str) -> None:
    """Print the head of a part."""
    click.echo()
    click.secho(title, bold=True)


def echo_json(value: Any) -> None:
    """Print data as JSON: data classes as objects, paths as texts, non-ASCII characters escaped."""
    click.echo(json.dumps(_plain(value), indent=2))


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: _plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    return str(value) if isinstance(value, PurePath) else value
