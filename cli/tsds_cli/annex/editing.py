"""What the commands have in common that make a store of stores, or change one."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tensorstore_ds import words
from tensorstore_ds.errors import OptionError
from tensorstore_ds.options import shortened
from tsds_cli import text
from tsds_cli.messages import interrupted, not_made
from tsds_cli.progress import ProgressBar

if TYPE_CHECKING:
    from tensorstore_ds import FieldsSummary

_LIMIT = 1 << 28  # bytes of a file that lists samples


def made(
    out: Path,
    as_json: bool,
    run: Callable[..., Any],
    *,
    again: str = "",
    told: Callable[[], None] = lambda: None,
    following: str = "",
) -> None:
    """Run a function of the library with a progress bar, and say what it has made.

    Args:
        again: what to say when it was interrupted, if not that `out` was not made.
        told: prints more of what was done.
        following: the command to run next, if not `tsds info`.
    """
    try:
        with ProgressBar() as bar:
            summary = run(progress=bar.update)
    except KeyboardInterrupt:
        raise (interrupted(f"interrupted; {again}") if again else not_made(out)) from None
    if as_json:
        text.echo_json(summary)
        return
    samples = text.count(sum(summary.rows.values()), "sample")
    done = f"{samples}, {words.size(summary.nbytes)}, {words.duration(summary.seconds)}"
    text.echo(text.Styled(str(out), bold=True), f"  {done}")
    width = max(map(len, summary.rows))
    for name, rows in summary.rows.items():
        text.echo(f"  {name:<{width}}  {rows:,}")
    told()
    text.echo(f"next: {text.program()} {following or f'info {shlex.quote(str(out))}'}")


def tell_added(summary: FieldsSummary) -> None:
    """Print which fields were added to a store."""
    for name, what in summary.fields.items():
        text.echo(f"added: {name} ({what})")


@dataclass(frozen=True, slots=True)
class ListedRows:
    """Rows of each split, and the digest of the store that they are of, if a file names it."""

    rows: dict[str, list[int]]
    sha256: str | None = None


def listed_rows(file: Path, *, may_be_lines: bool = False) -> ListedRows:
    """The rows that a file lists as JSON; or, where that is possible, each on a line: ``train 17``."""
    expected = f'{file}: expected {{"drop": {{"train": [3, 17]}}}}'
    expected += ", or a line such as train 17 for each row" if may_be_lines else ""
    data = _read(file, expected)
    if may_be_lines and not data.lstrip().startswith(b"{"):
        return ListedRows(_rows_of_lines(_lines(file, data)))
    try:
        document = json.loads(data)
        listed = {str(split): list(rows) for split, rows in document["drop"].items()}
        sha256 = document.get("sha256")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise OptionError(f"{expected}, found something else ({type(error).__name__}).") from error
    if any(type(row) is not int for rows in listed.values() for row in rows):
        raise OptionError(f"{expected}, found rows that are no whole numbers.")
    return ListedRows(listed, sha256 if isinstance(sha256, str) and sha256 else None)


def listed_keys(file: Path) -> list[str]:
    """The keys that a text file lists, each on a line; empty lines are ignored."""
    return [line for _, line in _lines(file, _read(file, f"{file}: expected a key on each line"))]


def _rows_of_lines(lines: list[tuple[str, str]]) -> dict[str, list[int]]:
    rows: dict[str, list[int]] = {}
    for where, line in lines:
        match = re.fullmatch(r"\s*(\S+)\s+(\d{1,18})\s*", line, re.ASCII)
        if match is None:
            raise OptionError(f"{where}: expected a split and a row, such as train 17, found {shortened(repr(line))}.")
        rows.setdefault(match[1], []).append(int(match[2]))
    return rows


def _lines(file: Path, data: bytes) -> list[tuple[str, str]]:
    """The lines of a text that are not empty, each with its place."""
    try:
        lines = data.decode("utf-8-sig").split("\n")
    except UnicodeDecodeError:
        raise OptionError(f"{file}: expected a text in UTF-8, found other bytes.") from None
    return [(f"{file}, line {i}", line.removesuffix("\r")) for i, line in enumerate(lines, 1) if line.strip()]


def _read(file: Path, expected: str) -> bytes:
    try:
        if file.stat().st_size > _LIMIT:
            raise OptionError(f"{expected}, found a file of more than {_LIMIT:,} bytes.")
        return file.read_bytes()
    except OSError as error:
        raise OptionError(f"{expected}, found no file that can be read: {error.strerror}.") from error
