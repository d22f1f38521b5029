"""What the columns of a list mean, and a row of them as one compact string."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from tensorstore_ds.errors import Problem, SourceError
from tensorstore_ds.format.schema import Keypoints
from tensorstore_ds.sources.list.lines import PATH_NAMES, Table, column_name

LABEL_NAMES = frozenset(["label", "labels", "class", "class_name", "class_id", "category", "target"])
SPLIT_COLUMN_NAMES = frozenset({"split", "subset"})
#: Columns of a box: two corners, or a corner and a size.
CORNERS = (("x1", "y1", "x2", "y2"), ("xmin", "ymin", "xmax", "ymax"))
SIZED = (("x", "y", "width", "height"), ("x", "y", "w", "h"))

#: Between the parts of a packed row; a path cannot hold it.
_MARK = "\0"
_FOREIGN = re.compile(r"/|[A-Za-z]:/")


class RowError(ValueError):
    """A row that cannot be used; `reason` is its code, and its text the message."""

    def __init__(self, message: str, reason: str = "list-line") -> None:
        super().__init__(message)
        self.reason = reason


@dataclass(frozen=True, slots=True)
class Columns:
    """Which cell of a row is what.

    Attributes:
        width: cells of a row.
        path, label, split: their places; None where there is no such column.
        box: four places, or none.
        sized: the box is a corner and a size, not two corners.
        points: names of landmarks and the places of their x and y.
        ignored: columns that are not read.
    """

    width: int
    path: int = 0
    label: int | None = None
    split: int | None = None
    box: tuple[int, ...] = ()
    sized: bool = False
    points: tuple[tuple[str, int, int], ...] = ()
    ignored: tuple[str, ...] = ()

    @property
    def numbers(self) -> tuple[int, ...]:
        """Places of the box and of the landmarks, in this order."""
        return (*self.box, *(place for _, x, y in self.points for place in (x, y)))

    def pack(self, cells: Sequence[str]) -> str:
        """Path, label, box (always two corners) and landmarks as one string, for `unpack`.

        It holds all that is known of the sample: nothing of the header is needed to read it.

        Raises:
            RowError: `list-line` or `unsafe-path`: the cells are not what the columns say.
        """
        if len(cells) != self.width:
            raise RowError(f"expected {self.width} columns, found {len(cells)}.")
        path = _clean_path(cells[self.path])
        label = "" if self.label is None else cells[self.label]
        if self.label is not None and not label:
            raise RowError("expected a label, found an empty cell.")
        numbers = [cells[place] for place in self.numbers]
        if numbers:
            self._check(numbers)
        if self.sized and numbers[0]:
            x, y, width, height = map(float, numbers[:4])
            numbers[2:4] = repr(x + width), repr(y + height)
        row = _MARK.join([path, label, *numbers])
        if row.count(_MARK) != len(numbers) + 1:
            raise RowError("expected text, found a zero byte.")
        return row

    def _check(self, numbers: list[str]) -> None:
        for text in numbers:
            _check_number(text)
        given = [bool(text) for text in numbers]
        box, points = given[: len(self.box)], given[len(self.box) :]
        if box and any(box) != all(box):
            raise RowError("expected all four cells of a box or none, found some of them empty.")
        if box and any(points) and not any(box):
            raise RowError("expected a box for the landmarks, found its cells empty.")
        for i, (name, _, _) in enumerate(self.points):
            if points[2 * i] != points[2 * i + 1]:
                raise RowError(f"expected x and y of {name} or neither, found one of them empty.")


def unpack(row: str) -> tuple[str, str, list[str]]:
    """Path, label, and the cells of box and landmarks in the order of `Columns.numbers`.

    >>> unpack(Columns(4, 0, 1, points=(("nose", 2, 3),)).pack(["a.png", "cat", "1", "2.5"]))
    ('a.png', 'cat', ['1', '2.5'])
    """
    path, label, *numbers = row.split(_MARK)
    return path, label, numbers


def _clean_path(text: str) -> str:
    """A path of a list as the store names it: ``/`` between its parts, and no ``.`` among them."""
    path = text.replace("\\", "/")
    parts = [part for part in path.split("/") if part not in ("", ".")]
    if not parts:
        raise RowError("expected the path of an image, found none.")
    if ".." in parts or _FOREIGN.match(path):
        raise RowError(f"expected a path below the folder of the images, found {text}.", "unsafe-path")
    return "/".join(parts)


def read_columns(table: Table, keypoints: Keypoints | None) -> Columns:
    """What the header of a list says; without one, a path and perhaps a label.

    Raises:
        SourceError: `list-line` for a header that contradicts itself; `keypoint-count` when `keypoints` has other names
            than the header.
    """
    if not table.header:
        return Columns(table.width, 0, 1 if table.width == 2 else None)
    names = [column_name(cell) for cell in table.header]
    box, sized = _box(names)
    points = tuple(_order(_points(table, names, set(box)), keypoints, table.where))
    columns = Columns(
        len(names),
        _one(table, names, PATH_NAMES) or 0,
        _one(table, names, LABEL_NAMES),
        _one(table, names, SPLIT_COLUMN_NAMES),
        box,
        sized,
        points,
    )
    if not table.quoted and columns.path != 0:
        raise _bad_header(table, "expected the path in the first column, for it may hold spaces")
    used = {columns.path, columns.label, columns.split, *columns.numbers}
    ignored = tuple(name for i, name in enumerate(table.header) if i not in used)
    return Columns(len(names), columns.path, columns.label, columns.split, box, sized, points, ignored)


def _one(table: Table, names: list[str], wanted: frozenset[str]) -> int | None:
    places = [i for i, name in enumerate(names) if name in wanted]
    if len(places) > 1:
        both = " and ".join(table.header[i] for i in places[:2])
        raise _bad_header(table, f"expected one column of its kind, found {both}")
    return places[0] if places else None


def _box(names: list[str]) -> tuple[tuple[int, ...], bool]:
    for box in (*CORNERS, *SIZED):
        if all(name in names for name in box):
            return tuple(names.index(name) for name in box), box in SIZED
    return (), False


def _points(table: Table, names: list[str], taken: set[int]) -> list[tuple[str, int, int]]:
    """Pairs of columns NAME_x and NAME_y, in the order of the header."""
    found: dict[str, dict[str, int]] = {}
    for i, name in enumerate(names):
        if i not in taken and name.endswith(("_x", "_y")) and len(name) > 2:
            places = found.setdefault(table.header[i].strip()[:-2], {})
            if name[-1] in places:
                raise _bad_header(table, f"expected each column once, found {table.header[i]} twice")
            places[name[-1]] = i
    for name, places in found.items():
        if len(places) < 2:
            raise _bad_header(table, f"expected {name}_x and {name}_y, found only one of them")
    return [(name, places["x"], places["y"]) for name, places in found.items()]


def _order(points: list[tuple[str, int, int]], keypoints: Keypoints | None, where: str) -> list[tuple[str, int, int]]:
    if keypoints is None or not points:
        return points
    by_name = {point[0]: point for point in points}
    if sorted(by_name) != sorted(keypoints.names):
        message = f"expected the landmarks {', '.join(keypoints.names)}, found {', '.join(by_name)}."
        raise SourceError(Problem(where, "keypoint-count", message), "Correct the header or the list of landmarks.")
    return [by_name[name] for name in keypoints.names]


def _check_number(text: str) -> None:
    if "_" in text:  # float() would take it
        raise RowError(f"expected a number, found {text}.")
    try:
        float(text or "nan")
    except ValueError:
        raise RowError(f"expected a number, found {text}.") from None


def _bad_header(table: Table, message: str) -> SourceError:
    return SourceError(Problem(f"{table.where}:1", "list-line", f"{message}."), "Correct the header.")
