"""A list as rows of cells, what its columns mean, and a row as one compact string."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from tensorstore_ds.errors import Problem, SourceError
from tensorstore_ds.format.schema import Keypoints
from tensorstore_ds.regular_files import decode_text, encoding_of, open_file, os_errors, read_head
from tensorstore_ds.sources.base import IMAGE_SUFFIXES

LIST_SUFFIXES = frozenset({".csv", ".tsv", ".txt"})
#: Names of the column that makes a first line a header, in lower case and with ``_`` for spaces.
PATH_NAMES = frozenset(
    {"path", "file", "filename", "file_name", "filepath", "file_path"}
    | {"image", "image_path", "image_name", "img", "img_path", "img_name"}
)
LABEL_NAMES = frozenset(["label", "labels", "class", "class_name", "class_id", "category", "target"])
SPLIT_COLUMN_NAMES = frozenset({"split", "subset"})
#: Columns of a box: two corners, or a corner and a size.
CORNERS = (("x1", "y1", "x2", "y2"), ("xmin", "ymin", "xmax", "ymax"))
SIZED = (("x", "y", "width", "height"), ("x", "y", "w", "h"))

_MAX_LINE = 1 << 20
_NAMES_IMAGE = re.compile(rf"(?:{'|'.join(re.escape(s) for s in sorted(IMAGE_SUFFIXES))})[\"']?\s*(?:[\s,;]|$)", re.I)
_SUFFIXES = tuple(IMAGE_SUFFIXES)
#: Between the parts of a packed row; a path cannot hold it.
_MARK = "\0"
_FOREIGN = re.compile(r"/|[A-Za-z]:/")


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
        """The number of the line (from 1) and the cells, without white space around, of each row that is not blank."""
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
    """Look at the first line of a list, to tell its separator and whether it is a header."""
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
    lines = decode_text(read_head(file, 4096), file.name, errors="replace").splitlines(keepends=True)
    named = [bool(_NAMES_IMAGE.search(line)) for line in lines if line.strip()][:6]
    return any(named) and all(named[1:-1])  # the first may be a header, and the last was perhaps cut


def _lines(file: Path, where: str, *, blank: bool = False) -> Iterator[tuple[int, str]]:
    """Numbered lines with their ends, those that are blank only if asked for; none may fill the memory."""
    number = 1
    try:
        encoding = encoding_of(read_head(file, 4))
        with os_errors(where), io.TextIOWrapper(open_file(file, where), encoding, newline="") as stream:
            while line := stream.readline(_MAX_LINE + 1):
                if len(line) > _MAX_LINE:
                    raise _bad_line(where, number, f"expected a line of at most {_MAX_LINE:,} characters.")
                if blank or line.strip():
                    yield number, line
                number += 1
    except UnicodeError as error:
        message = f"expected {encoding.upper()}, found other bytes in this line or soon after."
        raise SourceError(Problem(f"{where}:{number}", "list-line", message), "Save the list as UTF-8.") from error


def _bad_line(where: str, number: int, message: str) -> SourceError:
    return SourceError(Problem(f"{where}:{number}", "list-line", message), "Correct the list.")


# --- columns --------------------------------------------------------------------------------------------------------


class RowError(ValueError):
    """A row that cannot be used; `reason` is its code, and its text the message."""

    def __init__(self, message: str, reason: str = "list-line") -> None:
        super().__init__(message)
        self.reason = reason


@dataclass(frozen=True, slots=True)
class Columns:
    """Which cell of a row is what; None or nothing where there is no such column."""

    width: int  #: cells of a row
    path: int = 0
    label: int | None = None
    split: int | None = None
    box: tuple[int, ...] = ()  #: four places
    sized: bool = False  #: the box is a corner and a size, not two corners
    keypoints: tuple[tuple[str, int, int], ...] = ()  #: names of keypoints and the places of their x and y
    ignored: tuple[str, ...] = ()  #: columns that are not read

    @property
    def numbers(self) -> tuple[int, ...]:
        """Places of the box and of the keypoints, in this order."""
        return (*self.box, *(place for _, x, y in self.keypoints for place in (x, y)))

    def pack(self, cells: Sequence[str]) -> str:
        """Path, label, box (always two corners) and keypoints as one string, for `unpack`.

        It holds all that is known of the sample: nothing of the header is needed to read it.
        """
        if len(cells) != self.width:
            raise RowError(f"expected {self.width} columns, found {len(cells)}.")
        path = _clean_path(cells[self.path])
        label = "" if self.label is None else cells[self.label]
        numbers = [cells[place] for place in self.numbers]
        for text in numbers:
            if text and not _is_number(text):
                raise RowError(f"expected a number, found {text}.")
        box, keypoints = numbers[: len(self.box)], numbers[len(self.box) :]
        if box and any(box) != all(box):
            raise RowError("expected all four cells of a box or none, found some of them empty.")
        if box and any(keypoints) and not any(box):
            raise RowError("expected a box for the keypoints, found its cells empty.")
        for (name, _, _), *pair in zip(self.keypoints, keypoints[::2], keypoints[1::2], strict=True):
            if any(pair) != all(pair):
                raise RowError(f"expected x and y of {name} or neither, found one of them empty.")
        if self.sized and numbers[0]:
            x, y, width, height = map(float, numbers[:4])
            numbers[2:4] = repr(x + width), repr(y + height)
        row = _MARK.join([path, label, *numbers])
        if row.count(_MARK) != len(numbers) + 1:
            raise RowError("expected text, found a zero byte.")
        return row


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return "_" not in text  # which float() would take


def join_rows(rows: Iterable[str]) -> str:
    """Several rows of one image as one string, for `unpack`."""
    first, *others = rows
    return _MARK.join([first, *(row.partition(_MARK)[2] for row in others)])


def unpack(row: str, numbers: int) -> tuple[str, list[list[str]]]:
    """Path; and for each row its label, and the cells of box and keypoints in the order of `Columns.numbers`.

    >>> columns = Columns(4, 0, 1, keypoints=(("nose", 2, 3),))
    >>> unpack(join_rows([columns.pack(["a.png", "cat", "1", "2.5"]), columns.pack(["a.png", "dog", "3", "4"])]), 2)
    ('a.png', [['cat', '1', '2.5'], ['dog', '3', '4']])

    Args:
        numbers: cells of box and keypoints.
    """
    path, *cells = row.split(_MARK)
    return path, [cells[i : i + 1 + numbers] for i in range(0, len(cells), 1 + numbers)]


def _clean_path(text: str) -> str:
    """A path of a list as the store names it: ``/`` between its parts, and no ``.`` among them."""
    path = text.replace("\\", "/")
    parts = [part for part in path.split("/") if part not in ("", ".")]
    if not parts:
        raise RowError("expected the path of an image, found none.")
    if ".." in parts or _FOREIGN.match(path):
        message = f"expected a path below the folder of the images, which `images` names, found {text}."
        raise RowError(message, "unsafe-path")
    return "/".join(parts)


def read_columns(table: Table, keypoints: Keypoints | None) -> Columns:
    """What the header of a list says; without one, a path and perhaps a label."""
    if not table.header:
        return Columns(table.width, 0, 1 if table.width == 2 else None)
    names = [column_name(cell) for cell in table.header]
    box = next((box for box in (*CORNERS, *SIZED) if set(box) <= set(names)), ())
    places = tuple(map(names.index, box))
    columns = Columns(
        len(names),
        _one(table, names, PATH_NAMES) or 0,
        _one(table, names, LABEL_NAMES),
        _one(table, names, SPLIT_COLUMN_NAMES),
        places,
        box in SIZED,
        _keypoints(table, [(i, name) for i, name in enumerate(names) if i not in places], keypoints),
    )
    if not table.quoted and columns.path != 0:
        raise _bad_header(table, "expected the path in the first column, for it may hold spaces")
    used = {columns.path, columns.label, columns.split, *columns.numbers}
    return replace(columns, ignored=tuple(name for i, name in enumerate(table.header) if i not in used))


def _one(table: Table, names: list[str], wanted: frozenset[str]) -> int | None:
    places = [i for i, name in enumerate(names) if name in wanted]
    if len(places) > 1:
        both = " and ".join(table.header[i] for i in places[:2])
        raise _bad_header(table, f"expected one column of its kind, found {both}")
    return places[0] if places else None


def _keypoints(
    table: Table, columns: list[tuple[int, str]], wanted: Keypoints | None
) -> tuple[tuple[str, int, int], ...]:
    """Pairs of columns NAME_x and NAME_y, in the order of the header, or in that of `wanted`."""
    places: dict[str, dict[str, int]] = {}
    for i, name in columns:
        if name.endswith(("_x", "_y")) and len(name) > 2:
            pair = places.setdefault(table.header[i].strip()[:-2], {})
            if pair.setdefault(name[-1], i) != i:
                raise _bad_header(table, f"expected each column once, found {table.header[i]} twice")
    for name, pair in places.items():
        if len(pair) < 2:
            raise _bad_header(table, f"expected {name}_x and {name}_y, found only one of them")
    if wanted is not None and places and sorted(places) != sorted(wanted.names):
        message = f"expected the keypoints {', '.join(wanted.names)}, found {', '.join(places)}."
        raise SourceError(Problem(table.where, "keypoint-count", message), "Correct the header or the keypoint list.")
    order = wanted.names if wanted is not None and places else places
    return tuple((name, places[name]["x"], places[name]["y"]) for name in order)


def _bad_header(table: Table, message: str) -> SourceError:
    return SourceError(Problem(f"{table.where}:1", "list-line", f"{message}."), "Correct the header.")
