"""Printed output: tables and bars for people, and JSON for programs.

Everything is printed by `echo`. Names come from untrusted stores, checkpoints and files, so characters that control a
terminal are escaped here.
"""

from __future__ import annotations

import dataclasses
import json
import os
import shlex
import shutil
import sys
import unicodedata
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path, PurePath
from typing import Any, NamedTuple

import click

#: In the `meta` of a click context: whether JSON is requested and was not printed yet.
WANTS_JSON = "tsds_cli.wants_json"
#: Also there: the command line after ``tsds``.
ARGUMENTS = "tsds_cli.arguments"


def count(n: int, noun: str) -> str:
    """A count and its noun.

    >>> count(1, "sample"), count(1200, "class"), count(4, "batch")
    ('1 sample', '1,200 classes', '4 batches')
    """
    plural = noun if n == 1 else f"{noun}es" if noun.endswith(("s", "x", "ch")) else f"{noun}s"
    return f"{n:,} {plural}"


def counts(numbers: Mapping[str, int]) -> str:
    """Names and numbers.

    >>> counts({"bad-image": 1200, "bad-box": 1})
    'bad-image 1,200, bad-box 1'
    """
    return ", ".join(f"{name} {n:,}" for name, n in numbers.items())


def some(names: Sequence[str], shown: int, count: int | None = None) -> str:
    """The first `shown` names.

    >>> some(["a", "b", "c"], 3), some(["a", "b", "c"], 2), some(["a", "b"], 2, 1200)
    ('a, b, c', 'a, b, ...', 'a, b, ...')
    """
    return ", ".join(names[:shown]) + (", ..." if (len(names) if count is None else count) > shown else "")


def bar(share: float, width: int) -> str:
    """A bar in eighths of a character; every positive share is visible.

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


def cell_width(text: str) -> int:
    """Columns that a text takes on a terminal: two for a Chinese character, none for a combining one.

    >>> cell_width("cat"), cell_width("猫")
    (3, 2)
    """
    if text.isascii():
        return len(text)
    return sum(0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in text)


def program(name: str = "tsds") -> str:
    """How to call a program of this environment: by name, or by its path if the name is not enough."""
    beside = Path(sys.executable).with_name(name)
    found = shutil.which(name)
    if not beside.exists() or (found is not None and Path(found).absolute() == beside):
        return name
    return shlex.quote(os.path.relpath(beside) if beside.is_relative_to(Path.cwd()) else str(beside))


def call(command: str, place: object) -> str:
    """How to call a command for a store."""
    return f"{program()} {command} {shlex.quote(str(place))}"


# --- the door to the terminal -----------------------------------------------------------------------------------


class Styled(NamedTuple):
    """A text in color or bold, if the output is a terminal."""

    text: str
    fg: str | None = None
    bold: bool = False


Text = str | Styled


def printable(text: Text) -> str:
    """A text without style, with escaped control characters, newlines and marks of the direction of writing.

    >>> printable("cat\\x1b[2J\\n"), printable("猫")
    ('cat\\\\x1b[2J\\\\n', '猫')
    """
    from tensorstore_ds.errors import one_line

    return one_line(text if isinstance(text, str) else text.text)


def echo(*parts: Text, err: bool = False) -> None:
    """Print a line on stdout, or on stderr."""
    click.echo("".join(map(_rendered, parts)), err=err)


def echo_lines(lines: str) -> None:
    """Print a text of several lines."""
    for line in lines.splitlines():
        echo(line)


def echo_table(rows: Iterable[Sequence[Text]], *, right: Collection[int] = (), indent: str = "  ") -> None:
    """Print rows of cells in columns as wide as their widest cell; the columns `right` are right-aligned."""
    rows = list(rows)
    widths = [max(cell_width(printable(cell)) for cell in column) for column in zip(*rows, strict=True)]
    for row in rows:
        line: list[Text] = [indent]
        for i, cell in enumerate(row):
            space = " " * (widths[i] - cell_width(printable(cell)))
            line += [space, cell, "  "] if i in right else [cell, space, "  "]
        while line and not printable(line[-1]).strip():  # no spaces at the end of a line
            line.pop()
        echo(*line)


def title(what: object, facts: str) -> None:
    """Print the subject of a result in bold, and facts next to it."""
    echo(Styled(str(what), bold=True), f"  {facts}")


def note(line: str, err: bool = False) -> None:
    """Print a note."""
    echo(Styled(f"note: {line}", fg="yellow"), err=err)


def head(title: str) -> None:
    """Print the heading of a section."""
    echo()
    echo(Styled(title, bold=True))


def echo_json(value: Any) -> None:
    """Print data as JSON: data classes as objects, paths as texts, non-ASCII characters escaped."""
    context = click.get_current_context(silent=True)
    if context is not None:
        context.meta[WANTS_JSON] = False  # it is one document: an error after it is not another
    click.echo(json.dumps(value, indent=2, default=_plain))  # which escapes all that is not ASCII


def _rendered(part: Text) -> str:
    if isinstance(part, str):
        return printable(part)
    return click.style(printable(part), fg=part.fg, bold=part.bold or None)


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value):
        return {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}
    return str(value) if isinstance(value, PurePath) else dict(value)
