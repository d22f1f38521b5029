"""The lines of a list as rows of cells: separators, headers and encoding. What the columns mean, `columns` says."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tensorstore_ds.errors import Problem, SourceError
from tensorstore_ds.regular_files import open_file, os_errors, read_head
from tensorstore_ds.sources.base import IMAGE_SUFFIXES

LIST_SUFFIXES = frozenset({".csv", ".tsv", ".txt"})
#: Names of the column that makes a first line a header, in lower case and with ``_`` for spaces.
PATH_NAMES = frozenset(
    {"path", "file", "filename", "file_name", "filepath", "file_path"}
    | {"image", "image_path", "image_name", "img", "img_path", "img_name"}
)

_MAX_LINE = 1 << 20
_NAMES_IMAGE = re.compile(rf"(?:{'|'.join(re.escape(s) for s in sorted(IMAGE_SUFFIXES))})[\"']?\s*(?:[\s,;]|$)", re.I)
_SUFFIXES = tuple(IMAGE_SUFFIXES)


@dataclass(frozen=True, slots=True)
class Table:
    """A list, of which only the first line has been read."""

    file: Path
    where: str  #: how messages name it
    quoted: bool  #: cells may be quoted, as in CSV; else a line is divided at the last `separator`
    separator: str | None  #: between cells; None is any run of white space
    header: tuple[str, ...] = ()  #: the names of the columns, as they are written
    width: int = 1  #: cells of every row

    def rows(self) -> Iterator[tuple[int, list[str]]]:
        """The number of the line (from 1) and the cells, without white space around, of each row that is not blank.

        Raises:
            SourceError: `unreadable-file`; `list-line` where the rest cannot be read: another encoding, an open quote.
        """
        rows = self._quoted_rows() if self.quoted else self._plain_rows()
        if self.header:
            next(rows, None)
        return rows

    def _plain_rows(self) -> Iterator[tuple[int, list[str]]]:
        for number, line in _lines(self.file, self.where):
            yield number, [cell.strip() for cell in line.strip().rsplit(self.separator, self.width - 1)]

    def _quoted_rows(self) -> Iterator[tuple[int, list[str]]]:
        lines = (line for _, line in _lines(self.file, self.where, blank=True))
        reader = csv.reader(lines, delimiter=self.separator or ",", strict=True, skipinitialspace=True)
        number = 1
        try:
            for row in reader:
                cells = [cell.strip() for cell in row]
                if any(cells):
                    yield number, cells
                number = reader.line_num + 1
        except csv.Error as error:
            raise _bad_line(self.where, number, f"cannot be read as CSV: {error}.") from error


def open_table(file: Path, where: str) -> Table:
    """Look at the first line of a list, to tell its separator and whether it is a header.

    Raises:
        SourceError: `empty-source`, `unreadable-file`, or `list-line` for a first line that makes no sense.
    """
    number, first = next(_lines(file, where), (0, ""))
    if file.suffix.lower() == ".txt" and first:
        return _open_text(file, where, number, first.strip())
    separator = "\t" if file.suffix.lower() == ".tsv" else ";" if ";" in first and "," not in first else ","
    number, cells = next(Table(file, where, True, separator).rows(), (0, []))
    if not PATH_NAMES.isdisjoint(map(column_name, cells)):
        return Table(file, where, True, separator, tuple(cells), len(cells))
    if not cells:
        raise SourceError(Problem(where, "empty-source", "expected lines that name images, found none."))
    if len(cells) <= 2:
        return Table(file, where, True, separator, (), len(cells))
    message = f"expected a path and a label, or a header with a column named path, found {len(cells)} columns."
    raise _bad_line(where, number, message)


def _open_text(file: Path, where: str, number: int, first: str) -> Table:
    separators = (*(separator for separator in "\t,;" if separator in first), None)
    for separator in separators:
        header = tuple(cell.strip() for cell in first.split(separator))
        if not PATH_NAMES.isdisjoint(map(column_name, header)):
            return Table(file, where, separator is not None, separator, header, len(header))
    if first.lower().endswith(_SUFFIXES):
        return Table(file, where, False, None)
    for separator in separators:
        if first.rsplit(separator, 1)[0].strip().lower().endswith(_SUFFIXES):
            return Table(file, where, False, separator, (), 2)
    message = "expected the path of an image and perhaps a label, or a header with a column named path."
    raise _bad_line(where, number, message)


def column_name(text: str) -> str:
    """A header's cell as names are compared: lower case, ``_`` for spaces.

    >>> column_name("Image Path")
    'image_path'
    """
    return re.sub(r"\s+", "_", text.strip().lower())


def names_images(file: Path) -> bool:
    """Whether a file looks like a list: an image's suffix is in all of its first lines but a header."""
    if file.suffix.lower() not in LIST_SUFFIXES:
        return False
    lines = read_head(file, 4096).decode("utf-8-sig", "replace").splitlines(keepends=True)
    named = [bool(_NAMES_IMAGE.search(line)) for line in lines if line.strip()][:6]
    return any(named) and all(named[1:-1])  # the first may be a header, and the last was perhaps cut


def _lines(file: Path, where: str, *, blank: bool = False) -> Iterator[tuple[int, str]]:
    """Numbered lines with their ends, those that are blank only if asked for; none may fill the memory."""
    number = 1
    try:
        with os_errors(where), io.TextIOWrapper(open_file(file, where), "utf-8-sig", newline="") as stream:
            while line := stream.readline(_MAX_LINE + 1):
                if len(line) > _MAX_LINE:
                    raise _bad_line(where, number, f"expected a line of at most {_MAX_LINE:,} characters.")
                if blank or line.strip():
                    yield number, line
                number += 1
    except UnicodeDecodeError as error:
        raise _bad_line(where, number, "expected UTF-8, found other bytes in this line or soon after.") from error


def _bad_line(where: str, number: int, message: str) -> SourceError:
    return SourceError(Problem(f"{where}:{number}", "list-line", message), "Correct the list.")
