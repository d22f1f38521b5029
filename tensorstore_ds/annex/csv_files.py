"""Write CSV files without cells that a spreadsheet would run as formulas."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence

from tensorstore_ds.errors import OptionError

_FORMULA = ("=", "+", "-", "@", "\t", "\r")


def csv_text(rows: Iterable[Sequence[object]], where: str, advice: str) -> str:
    """The text of a CSV file with these rows.

    Raises `OptionError`, with `where` and `advice`, for a text that begins with ``=``, ``+``, ``-``, ``@``, a tab or a
    carriage return. Spreadsheets run it as a formula, and a quote before it, which prevents that, would make it a
    different key for all other programs.
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
