"""CSV files that are written: a cell that a spreadsheet would run as a formula is not."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence

from tensorstore_ds.errors import OptionError

_FORMULA = ("=", "+", "-", "@", "\t", "\r")


def csv_text(rows: Iterable[Sequence[object]], where: str, advice: str) -> str:
    """The text of a CSV file with these rows.

    A text that begins with ``=``, ``+``, ``-``, ``@``, a tab or a carriage return is refused. Spreadsheets run it as a
    formula, and a quote before it, which prevents that, would make it a different key for all other programs.

    Args:
        where: the file, for the message.
        advice: what to do.

    Raises:
        OptionError: a cell would be a formula.
    """
    text = io.StringIO(newline="")
    table = csv.writer(text, lineterminator="\n")
    for row in rows:
        for cell in row:
            if isinstance(cell, str) and cell.startswith(_FORMULA):
                expected = "expected texts that no spreadsheet runs as a formula"
                raise OptionError(f"{where}: {expected}, found {cell[:60]!r}. {advice}")
        table.writerow(row)
    return text.getvalue()
