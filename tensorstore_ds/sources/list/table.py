"""A list as rows of cells, what its columns mean, and a row as one compact string."""

from __future__ import annotations

import csv
import io
import itertools
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from tensorstore_ds.errors import Problem, SourceError
from tensorstore_ds.format.schema import Keypoints
from tensorstore_ds.regular_files import encoding_of, open_file, os_errors, read_head
from tensorstore_ds.sources.base import IMAGE_SUFFIXES
from tensorstore_ds.sources.forms import FormError
from tensorstore_ds.sources.samples import TEXT_NAMES

LIST_SUFFIXES = frozenset({".csv", ".jsonl", ".tsv", ".txt"})
#: Names of the column that makes a first line a header, in lower case and with ``_`` for spaces.
PATH_NAMES = frozenset(
    {"path", "file", "filename", "file_name", "filepath", "file_path", "files", "filenames", "filepaths"}
    | {"image", "image_path", "image_name", "image_file", "image_filename", "images", "imagename", "imagepath"}
    | {"img", "img_path", "img_name", "img_file", "image_index"}
)
#: Names of the column of the images where no column has one of `PATH_NAMES`.
ID_NAMES = ("image_id", "imageid", "img_id", "id", "id_code", "isic_id", "name")
LABEL_NAMES = frozenset(
    {"label", "labels", "class", "category", "target", "targets", "classes", "categories", "tag", "tags"}
    | {f"{what}{_}{of}" for what in ("label", "class", "category") for of in ("name", "id") for _ in ("_", "")}
    | {"class_label", "classlabel", "finding_labels"}
)
_PLURAL = frozenset({"labels", "classes", "categories", "tags", "targets", "finding_labels"})
SPLIT_COLUMN_NAMES = frozenset({"split", "subset"})
#: Columns of a box: two corners, a corner and a size, or the center and a size. ``x_1`` is compared as ``x1``. Beside
#: ``w`` and ``h``, ``width`` and ``height`` are the image's.
CORNERS = (
    *(("x1", "y1", "x2", "y2"), ("xmin", "ymin", "xmax", "ymax"), ("x_min", "y_min", "x_max", "y_max")),
    *(("min_x", "min_y", "max_x", "max_y"), ("left", "top", "right", "bottom"), ("x0", "y0", "x1", "y1")),
    ("roi.x1", "roi.y1", "roi.x2", "roi.y2"),
    ("left_x", "top_y", "right_x", "bottom_y"),
)
SIZED = tuple(
    (*corner, *size)
    for size in (("w", "h"), ("width", "height"))
    for corner in (("x", "y"), ("x1", "y1"), ("xmin", "ymin"), ("x_min", "y_min"), ("left", "top"))
)
CENTERED = tuple(
    (*center, *size)
    for size in (("w", "h"), ("width", "height"))
    for center in (("x_center", "y_center"), ("center_x", "center_y"), ("xc", "yc"), ("cx", "cy"))
)
_FORMS: tuple[tuple[tuple[tuple[str, ...], ...], Literal["corners", "sized", "centered"]], ...] = (
    (CORNERS, "corners"),
    (SIZED, "sized"),
    (CENTERED, "centered"),
)
#: Columns whose cells have all four numbers of a box.
BOX_TEXTS = frozenset({"bbox", "box", "bounding_box", "bndbox", "objects.bbox"})
#: Columns of lists for RetinaNet, which have no header; SKU-110K's have the last two.
_RETINANET = ("path", "x1", "y1", "x2", "y2", "class", "width", "height")
#: Columns of the text files for YOLO of Keras, and the objects at the end of a line: x1,y1,x2,y2,class.
_KERAS = (*_RETINANET[:5], "objects.category")
_KERAS_BOX = re.compile(r"[0-9.]+(?:,[0-9.]+){3},[0-9]+")
_LOOKED_AT = 100  # lines, because an image may have no objects
_MOST_DIGITS = 9  # of a number of faces
#: Columns of WIDER FACE's text files, which have lines of a path, a number of faces, and these for each face.
_WIDER = ("path", "x", "y", "w", "h", "blur", "expression", "illumination", "invalid", "occlusion", "pose")
#: Before the names of columns that hold what the objects in JSON Lines have.
_OF_OBJECTS = "objects."

_MAX_LINE = 1 << 20
_SUFFIXES = tuple(IMAGE_SUFFIXES)
#: Between the parts of a packed row; a path cannot hold it.
_MARK = "\0"
#: The label of rows whose list has no column of labels, as `Columns.pack` writes it.
NO_COLUMN = "\x1f"
#: Cells that say that a class applies, or does not.
TRUE, FALSE = frozenset({"1", "1.0", "true", "yes"}), frozenset({"0", "0.0", "false", "no"})
MINUS = frozenset({"-1", "-1.0"})
_FOREIGN = re.compile(r"/|[A-Za-z]:/")
_BOX_PREFIX = re.compile(r"(?:bbox|box|bndbox|bb|face|object|rect|roi)_(?=.)")
#: Names of 2 points that are opposite corners of a box, without words such as corner.
_OPPOSITE = {
    "begin": "end", "lefttop": "rightbottom", "lt": "rb", "min": "max", "start": "end", "tl": "br", "top": "bottom",
    "topleft": "bottomright", "ul": "lr", "upperleft": "lowerright",
}  # fmt: skip
_NO_NAME = re.compile("[^a-z]|corner|bbox|box")
_NUMBERED = re.compile(r"([xy])[\s_.-]?([0-9]{1,6})", re.I)  # x1, X_1
_CLICK = re.compile(r"xclick[1-4][xy]", re.I)  # of Open Images: where a box was drawn
#: Other spellings of the x and y of a keypoint: nose_x, x_nose, p0x, noseX.
_POINTS = (
    re.compile(r"(?P<name>.+)[\s_.-](?P<axis>[xy])", re.I),
    re.compile(r"(?P<axis>[xy])[\s_.-](?P<name>.+)", re.I),
    re.compile(r"(?P<name>.*[0-9])(?P<axis>[xy])", re.I),
    re.compile(r"(?P<name>.*[a-z])(?P<axis>[XY])"),
)


@dataclass(frozen=True, slots=True)
class Table:
    """A list. Only its first line has been read."""

    file: Path
    where: str  #: name in messages
    quoted: bool  #: cells may be quoted, as in CSV; else a line is divided at the last `separator`
    separator: str | None  #: between cells; None is any run of white space
    header: tuple[str, ...] = ()  #: the names of the columns, as they are written, or as they are known without
    width: int = 1  #: cells of every row
    folder: str = ""  #: that paths begin in, with a slash at its end
    is_headed: bool = True  #: whether the header is the first line
    begin: int = 1  #: lines of the header

    def rows(self) -> Iterator[tuple[int, list[str]]]:
        """Line number (from 1) and stripped cells of each row that is not blank."""
        rows = self._quoted_rows() if self.quoted else self._plain_rows()
        return itertools.islice(rows, self.begin, None) if self.header and self.is_headed else rows

    def _wider_rows(self) -> Iterator[tuple[int, list[str]]]:
        path, left, number = "", 0, 0  # the image, and its faces that follow
        for number, line in lines_of(self.file, self.where):
            cells = line.split()
            if left:
                left -= 1
                yield number, [path, *cells]
            elif len(cells) == 1 and cells[0].isdecimal() and path:
                if len(cells[0]) > _MOST_DIGITS:
                    raise bad_line(self.where, number, f"expected a number of faces, found {len(cells[0]):,} digits.")
                left = int(cells[0])
                if not left:
                    yield number, [path, *[""] * (len(_WIDER) - 1)]
            elif set(cells) != {"0"}:  # which follow a number of 0
                path = line.strip()
        if left:
            raise bad_line(self.where, number, f"expected {left:,} more faces of {path}, found the end of the file.")

    def _plain_rows(self) -> Iterator[tuple[int, list[str]]]:
        if self.header == _WIDER and not self.is_headed:
            yield from self._wider_rows()
            return
        for number, line in lines_of(self.file, self.where):
            if not self.is_headed:
                boxes = _keras_boxes(line)
                path = line.rsplit(None, len(boxes))[0].strip()
                yield from ((number, [path, *box]) for box in boxes or [[""] * 5])
                continue
            yield number, [cell.strip() for cell in line.strip().rsplit(self.separator, self.width - 1)]

    def _quoted_rows(self) -> Iterator[tuple[int, list[str]]]:
        lines = (line for _, line in lines_of(self.file, self.where, blank=True))
        reader = csv.reader(lines, delimiter=self.separator or ",", strict=True, skipinitialspace=True)
        number = 1
        try:
            for row in reader:
                cells = [cell.strip() for cell in row]
                if any(cells):
                    yield number, cells
                number = reader.line_num + 1
        except csv.Error as error:
            raise bad_line(self.where, number, f"cannot be read as CSV: {error}.") from error


def _keras_boxes(line: str) -> list[list[str]]:
    """The objects at the end of a line of YOLO's text files for Keras, behind the path."""
    last = itertools.takewhile(_KERAS_BOX.fullmatch, reversed(line.split()[1:]))
    return [box.split(",") for box in last][::-1]


def open_table(file: Path, where: str) -> Table:
    """Open a list; detects the separator and the header in its first line."""
    number, first = next(lines_of(file, where), (0, ""))
    if not first:
        raise SourceError(Problem(where, "empty-source", "expected lines that name images, found none."))
    if file.suffix.lower() == ".txt":
        return _open_text(file, where, number, first.strip())
    separator = _separator(first.strip(), file.suffix.lower())
    number, cells = next(Table(file, where, True, separator).rows(), (0, []))
    if is_header(cells):
        return Table(file, where, True, separator, tuple(cells), len(cells))
    if not cells:
        raise SourceError(Problem(where, "empty-source", "expected lines that name images, found none."))
    if len(cells) <= 2:
        return Table(file, where, True, separator, (), len(cells))
    if (
        len(cells) in (6, 8)
        and cells[0].lower().endswith(_SUFFIXES)
        and _is_box(cells[1:5])
        and not is_number(cells[5])
    ):
        return Table(file, where, True, separator, _RETINANET[: len(cells)], len(cells), is_headed=False)
    raise _no_header(where, number, len(cells), separator)


def is_header(cells: Iterable[str]) -> bool:
    """Whether cells are a header, with a column of images."""
    names = set(map(column_name, cells))
    may_be = ID_NAMES if len(names) > 1 else set(ID_NAMES) - {"id", "name"}  # which may be names of images
    return not names.isdisjoint(PATH_NAMES) or not names.isdisjoint(may_be)


def _is_box(cells: Sequence[str]) -> bool:
    return all(map(is_number, cells)) or not any(cells)


def _separator(first: str, suffix: str) -> str:
    """Separator of a CSV or TSV file, from its first line."""
    usual = "\t" if suffix == ".tsv" else ";" if ";" in first and "," not in first else ","
    found: list[tuple[str, list[str]]] = [
        (each, [cell.strip(" \"'") for cell in first.split(each)]) for each in (usual, *",;\t|")
    ]
    if headers := [each for each in found if len(each[1]) > 1 and is_header(each[1])]:
        return max(headers, key=lambda each: len(each[1]))[0]
    return next((each for each, cells in found if len(cells) > 1 and cells[0].lower().endswith(_SUFFIXES)), usual)


def _open_text(file: Path, where: str, number: int, first: str) -> Table:
    if first.isdecimal() and len(head := list(itertools.islice(lines_of(file, where), 3))) == 3:
        names, row = (line.split() for _, line in head[1:])  # CelebA's: a number of images, and names without a path
        if len(row) - len(names) in (0, 1) and row[0].lower().endswith(_SUFFIXES):
            header = ("path", *names)[-len(row) :]
            return Table(file, where, False, None, header, len(header), begin=2)
    separators = (*(separator for separator in "\t,;|" if separator in first), None)
    for separator in separators:
        header = tuple(cell.strip() for cell in first.split(separator))
        if is_header(header):
            return Table(file, where, separator is not None, separator, header, len(header))
    if any(_keras_boxes(line) for _, line in itertools.islice(lines_of(file, where), _LOOKED_AT)):
        return Table(file, where, False, None, _KERAS, len(_KERAS), is_headed=False)
    if first.lower().endswith(_SUFFIXES):
        second = next(itertools.islice(lines_of(file, where), 1, None), (0, ""))[1].strip()
        if second.isdecimal():
            return Table(file, where, False, None, _WIDER, len(_WIDER), is_headed=False)
        return Table(file, where, False, None)
    for separator in separators:
        if first.rsplit(separator, 1)[0].strip().lower().endswith(_SUFFIXES):
            return Table(file, where, False, separator, (), 2)
    for separator in separators:  # names without suffixes
        cells = first.split(separator)
        if len(cells) > 2 and cells[0].lower().endswith(_SUFFIXES):
            raise _no_header(where, number, len(cells), separator)
        if (count := len(cells)) <= 2:
            return Table(file, where, False, separator, (), count)
    message = "expected the path of an image and perhaps a label, or a header with a column named path."
    raise bad_line(where, number, message)


def column_name(text: str) -> str:
    """Normalize a header's cell for comparison: lower case, ``_`` for spaces.

    >>> column_name("Image Path")
    'image_path'
    """
    return re.sub(r"\s+", "_", text.strip().lower())


def lines_of(file: Path, where: str, *, blank: bool = False) -> Iterator[tuple[int, str]]:
    """Numbered lines with their ends, without blank ones unless `blank`. The length of a line is limited."""
    number = 1
    try:
        encoding = encoding_of(read_head(file, 4))
        with os_errors(where), io.TextIOWrapper(open_file(file, where), encoding, newline="") as stream:
            while line := stream.readline(_MAX_LINE + 1):
                if len(line) > _MAX_LINE:
                    raise bad_line(where, number, f"expected a line of at most {_MAX_LINE:,} characters.")
                if blank or line.strip():
                    yield number, line
                number += 1
    except UnicodeError as error:
        message = f"expected {encoding.upper()}, found other bytes in this line or soon after."
        raise SourceError(Problem(f"{where}:{number}", "list-line", message), "Save the list as UTF-8.") from error


def bad_line(where: str, number: int, message: str) -> SourceError:
    """Error for a line of a list."""
    return SourceError(Problem(f"{where}:{number}", "list-line", message), "Correct the list.")


def _no_header(where: str, number: int, columns: int, separator: str | None) -> SourceError:
    message = f"expected a path and a label, or a header with a column named path, found {columns} columns."
    example = (separator or " ").join((*_RETINANET[:5], "label"))
    advice = f"Add a header that names the columns, such as {example}."
    return SourceError(Problem(f"{where}:{number}", "list-line", message), advice)


# --- columns --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Flag:
    """A column that says whether a class applies to an image."""

    name: str
    place: int
    others: Literal["0", "?"] = "?"  #: what an empty cell and -1 say: that it does not, or that this is not known

    def of(self, cells: Sequence[str]) -> str:
        """``1`` if the class applies, ``0`` if not, ``?`` if unknown."""
        text = cells[self.place].lower()
        return "1" if text in TRUE else "0" if text in FALSE else self.others


@dataclass(frozen=True, slots=True)
class Columns:
    """Indices of the cells of a row by meaning; None or empty for missing columns."""

    width: int  #: cells of a row
    path: int = 0
    label: int | None = None
    split: int | None = None
    box: tuple[int, ...] = ()  #: four places, or the one of a cell with all four numbers
    form: Literal["corners", "sized", "centered"] = "corners"  #: what the four numbers are
    keypoints: tuple[tuple[str, int, int], ...] = ()  #: names of keypoints and the places of their x and y
    texts: tuple[tuple[str, int], ...] = ()  #: names of fields of texts and their places
    ignored: tuple[tuple[str, int], ...] = ()  #: columns that are not read, and their places
    unread: tuple[tuple[str, int, str], ...] = ()  #: of these the ones with values, how many, and the first
    is_plural: bool = False  #: whether the column of the label is named as one of several labels
    flags: tuple[Flag, ...] = ()  #: columns that say whether a class applies
    lacks_labels: bool = False  #: whether other lists have labels, and this one has none
    are_objects: bool = False  #: whether each row is an object, though no image has several
    notes: tuple[str, ...] = ()

    @property
    def values(self) -> tuple[str, ...]:
        """Values of the rows, for comparing lists."""
        box = ("a box",) if self.box else ()
        return (*box, *(name for name, _, _ in self.keypoints), *(name for name, _ in self.texts))

    @property
    def has_labels(self) -> bool:
        """Whether a column gives the classes of a row."""
        return self.label is not None or bool(self.flags)

    @property
    def count(self) -> int:
        """Count of numbers per row: 4 of the box and 2 of each keypoint."""
        return 4 * bool(self.box) + 2 * len(self.keypoints)

    def pack(self, cells: Sequence[str], path: str | None = None) -> str:
        """Path, label, box (always 2 corners), keypoints and texts as one string, for `unpack`; needs no header.

        `path` replaces the path in the image's cell.
        """
        if len(cells) != self.width:
            raise FormError(f"expected {self.width} columns, found {len(cells)}.")
        path = clean_path(cells[self.path]) if path is None else path
        label = "" if self.label is None else cells[self.label]
        if self.flags:
            label = "".join(flag.of(cells) for flag in self.flags)
        elif self.lacks_labels:
            label = NO_COLUMN
        box = self.corners(cells)
        keypoints = [cells[place] for _, x, y in self.keypoints for place in (x, y)]
        for text in (*box, *keypoints):
            if text and not is_number(text):
                raise FormError(f"expected a number, found {text}.")
        if box and any(keypoints) and not any(box):
            raise FormError("expected a box for the keypoints, found its cells empty.")
        for (name, _, _), *pair in zip(self.keypoints, keypoints[::2], keypoints[1::2], strict=True):
            if any(pair) != all(pair):
                raise FormError(f"expected x and y of {name} or neither, found one of them empty.")
        parts = [path, label, *box, *keypoints, *(cells[place] for _, place in self.texts)]
        row = _MARK.join(parts)
        if row.count(_MARK) != len(parts) - 1:
            raise FormError("expected text, found a zero byte.")
        return row

    def corners(self, cells: Sequence[str]) -> list[str]:
        """x1 y1 x2 y2 of a row's box: 4 empty texts without a box, an empty list without columns of boxes."""
        numbers = [cells[place] for place in self.box]
        if len(numbers) == 1:
            parts = [part for part in re.split(r"[\s,;]+", numbers[0].strip("[](){} ")) if part]
            if parts and len(parts) != 4:
                raise FormError(f"expected the four numbers of a box, found {numbers[0][:80]}.")
            numbers = parts or [""] * 4
        if numbers and any(numbers) != all(numbers):
            raise FormError("expected all four cells of a box or none, found some of them empty.")
        if self.form == "corners" or not any(numbers):
            return numbers
        if wrong := next((text for text in numbers if not is_number(text)), None):
            raise FormError(f"expected a number, found {wrong}.")
        x, y, width, height = map(float, numbers)
        if self.form == "centered":
            x, y = x - width / 2, y - height / 2
            numbers[:2] = repr(x), repr(y)
        return [*numbers[:2], repr(x + width), repr(y + height)]


def is_number(text: str) -> bool:
    """Whether a text is a number."""
    try:
        float(text)
    except ValueError:
        return False
    return "_" not in text  # float() accepts it


def join_rows(rows: Iterable[str]) -> str:
    """Join packed rows of one image to one string, for `unpack`."""
    first, *others = rows
    return _MARK.join([first, *(row.partition(_MARK)[2] for row in others)])


def unpack(row: str, cells: int) -> tuple[str, list[list[str]]]:
    """Path, and for each row its label, its numbers and its texts, which are `cells` together.

    >>> columns = Columns(4, 0, 1, keypoints=(("nose", 2, 3),))
    >>> unpack(join_rows([columns.pack(["a.png", "cat", "1", "2.5"]), columns.pack(["a.png", "dog", "3", "4"])]), 2)
    ('a.png', [['cat', '1', '2.5'], ['dog', '3', '4']])
    """
    path, *found = row.split(_MARK)
    return path, [found[i : i + 1 + cells] for i in range(0, len(found), 1 + cells)]


def clean_path(text: str) -> str:
    """Normalize a path for the store: ``/`` between parts, no ``.`` parts."""
    path = text.replace("\\", "/")
    parts = [part for part in path.split("/") if part not in ("", ".")]
    if not parts:
        raise FormError("expected the path of an image, found none.")
    if ".." in parts or _FOREIGN.match(path):
        message = f"expected a path below the folder of the images, which `images` names, found {text}."
        raise FormError(message, "unsafe-path")
    return "/".join(parts)


def read_columns(table: Table, keypoints: Keypoints | None, label: str | None = None) -> Columns:
    """Columns from the header of a list; without one, a path and perhaps a label. `label` names a column."""
    if not table.header:
        return Columns(table.width, 0, 1 if table.width == 2 else None)
    names = [column_name(cell) for cell in table.header]
    path = _one(table, names, PATH_NAMES)
    if path is None:
        path = next((names.index(name) for name in ID_NAMES if name in names), 0)
    box, form = _box(names)
    others = [i for i in range(len(names)) if i not in (path, *box)]
    points, notes = _keypoints(table, others, keypoints)
    if not box and keypoints is None and (corners := _corners(points)):
        points, box, others = (), corners, [i for i in others if i not in corners]
        notes += (f"{table.where}: {', '.join(table.header[i] for i in corners)} are read as the corners of a box.",)
    texts = tuple((names[i], i) for i in others if names[i] in TEXT_NAMES and names.count(names[i]) == 1)
    are_objects = any(name.startswith(_OF_OBJECTS) for name in names)
    labels = LABEL_NAMES if label is None else frozenset({column_name(label)})
    category = [i for i, name in enumerate(names) if name.removeprefix(_OF_OBJECTS) in labels and "." in name]
    if not table.is_headed:
        notes = (f"{table.where}: the columns are read as {', '.join(table.header)}.",)
    columns = Columns(
        len(names),
        path,
        next(iter(category), None) if are_objects else _one(table, names, labels),
        _one(table, names, SPLIT_COLUMN_NAMES),
        box,
        form,
        points,
        texts,
        are_objects=are_objects,
        notes=notes,
    )
    columns = replace(columns, is_plural=columns.label is not None and names[columns.label] in _PLURAL)
    if not table.quoted and columns.path != 0:
        raise _bad_header(table, "expected the path in the first column, for it may hold spaces")
    used = {path, columns.label, columns.split, *box, *(i for _, i in texts), *(i for _, *each in points for i in each)}
    return replace(columns, ignored=tuple((name, i) for i, name in enumerate(table.header) if i not in used))


def _box(names: list[str]) -> tuple[tuple[int, ...], Literal["corners", "sized", "centered"]]:
    """Indices and form of a box in a header. With x3 or x0, x1 y1 x2 y2 are not a box.

    Beside ``bbox_width``, ``width`` is the image's.
    """
    plain = [_BOX_PREFIX.sub("", name) for name in names]
    numbered = [_NUMBERED.fullmatch(name) for name in plain]
    plain = [found[1] + found[2] if found else name for name, found in zip(plain, numbered, strict=True)]
    numbers = {found[2] for found in numbered if found}
    is_row = len(numbers) > 2
    of_boxes = [name if _BOX_PREFIX.match(full) else "" for name, full in zip(plain, names, strict=True)]
    for some, (forms, form) in itertools.product((of_boxes, plain), _FORMS):
        for box in forms:
            if set(box) <= set(some) and not (is_row and _NUMBERED.fullmatch(box[0])):
                return tuple(map(some.index, box)), form
    texts = [i for i, name in enumerate(names) if name in BOX_TEXTS]
    return (texts[0],) if len(texts) == 1 else (), "sized" if texts else "corners"


def _corners(points: Sequence[tuple[str, int, int]]) -> tuple[int, ...]:
    """Indices of the box of 2 keypoints that are its corners by their names; empty if they are not."""
    places = {_NO_NAME.sub("", name.lower()): (x, y) for name, x, y in points}
    if len(points) == len(places) == 2:
        for first, second in itertools.permutations(places):
            if _OPPOSITE.get(first) == second:
                return (*places[first], *places[second])
    return ()


def _one(table: Table, names: list[str], wanted: frozenset[str]) -> int | None:
    places = [i for i, name in enumerate(names) if name in wanted]
    if len(places) > 1:
        both = " and ".join(table.header[i] for i in places[:2])
        if wanted is LABEL_NAMES:
            problem = Problem(f"{table.where}:1", "list-line", f"expected one column of labels, found {both}.")
            raise SourceError(problem, "Pass one of them as `label_from`.")
        raise _bad_header(table, f"expected one column of its kind, found {both}")
    return places[0] if places else None


def _keypoints(
    table: Table, columns: Sequence[int], wanted: Keypoints | None
) -> tuple[tuple[tuple[str, int, int], ...], tuple[str, ...]]:
    """x and y columns of keypoints, in the order of the header or of `wanted`, and notes. x1, y1, x2, ... count too."""
    places: dict[str, dict[str, int]] = {}
    sure = set[str]()  # names of which one column alone is an error
    numbered: list[str] = []
    for i in columns:
        text = table.header[i].strip()
        if _CLICK.fullmatch(text):
            continue
        if (found := _NUMBERED.fullmatch(text)) is not None:
            axis, name = found.groups()
            numbered.append(text)
            sure.add(name)
        elif match := next(filter(None, (pattern.fullmatch(text) for pattern in _POINTS)), None):
            axis, name = match["axis"], match["name"]
            sure.update([name] if match.re is _POINTS[0] else [])
        else:
            continue
        pair = places.setdefault(name, {})
        if pair.setdefault(axis.lower(), i) != i:
            raise _bad_header(table, f"expected each column once, found {text} twice")
    for name, pair in list(places.items()):
        if len(pair) < 2:
            if name in sure:
                both = f"{name}_x and {name}_y" if not name.isdecimal() else f"x{name} and y{name}"
                raise _bad_header(table, f"expected {both}, found only one of them")
            del places[name]
    if wanted is not None and places and sorted(places) != sorted(wanted.names):
        if not numbered or len(places) != len(wanted.names):
            message = f"expected the keypoints {', '.join(wanted.names)}, found {', '.join(places)}."
            advice = "Correct the header or the keypoint list."
            raise SourceError(Problem(table.where, "keypoint-count", message), advice)
        places = dict(zip(wanted.names, places.values(), strict=True))  # names for numbers, in their order
    order = wanted.names if wanted is not None and places else places
    note = (
        f"{table.where}: {numbered[0]} to {numbered[-1]} are read as {len(numbered) // 2} keypoints."
        if numbered
        else ""
    )
    return tuple((name, places[name]["x"], places[name]["y"]) for name in order), (note,) if note else ()


def _bad_header(table: Table, message: str) -> SourceError:
    return SourceError(Problem(f"{table.where}:1", "list-line", f"{message}."), "Correct the header.")
