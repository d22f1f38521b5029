"""What columns mean whose names do not tell: their cells are looked at."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from tensorstore_ds.errors import Problem
from tensorstore_ds.sources.ledger import NOT_READ
from tensorstore_ds.sources.list.table import Columns, RowError, Table, column_name, is_number
from tensorstore_ds.sources.row_table import BoxForm, RowObjects

#: Pairs of cells that say that a class does not apply, or does.
_FLAGS = ({"0", "1"}, {"0.0", "1.0"}, {"-1", "1"}, {"false", "true"}, {"no", "yes"})
_SHOWN = 40  # characters of a cell in a message


@dataclass(slots=True)
class _Cells:
    """The cells of a column: how many have something, one of them, and up to three that differ."""

    count: int = 0
    example: str = ""
    values: set[str] = field(default_factory=set)
    are_numbers: bool = True

    def note(self, cell: str) -> None:
        self.count += 1
        self.example = self.example or cell
        if len(self.values) < 3:
            self.values.add(cell.lower())
        self.are_numbers = self.are_numbers and is_number(cell)


def settled(tables: Sequence[Table], columns: Sequence[Columns]) -> list[Columns]:
    """The columns of lists, and among them those whose cells tell what they are.

    Columns of 0 and 1 say which classes apply to an image, if no other column does and there are two or more. One
    column of texts beside the paths is the label. The four numbers in a cell are corners if they cannot be a size.
    """
    surveys = [_survey(table, each) for table, each in zip(tables, columns, strict=True)]
    seen: dict[str, _Cells] = {}  # of each unread column in all lists
    flags: dict[str, bool] = {}
    for survey in surveys:
        for name, (cells, rows) in survey.items():
            seen.setdefault(column_name(name), cells)
            is_flag = cells.count == rows and any(cells.values <= pair for pair in _FLAGS)
            flags[column_name(name)] = is_flag and flags.get(column_name(name), True)
    chosen = {name for name, is_flag in flags.items() if is_flag}
    told = any(each.has_labels or each.box or each.texts for each in columns)
    lone = [name for name, cells in seen.items() if cells.count]
    found = []
    for table, each, survey in zip(tables, columns, surveys, strict=True):
        if not told and len(chosen) > 1:
            each = replace(each, flags=tuple(pair for pair in each.ignored if column_name(pair[0]) in chosen))
        elif not told and not each.keypoints and len(lone) == len(each.ignored) == 1 and not seen[lone[0]].are_numbers:
            name, place = each.ignored[0]
            note = f"the column {name} is read as the label of each image."
            each = replace(each, label=place, notes=(*each.notes, note))
        if len(each.box) == 1:
            each = _with_form(table, each)
        used = {each.label, *(place for _, place in each.flags)}
        ignored = tuple((name, place) for name, place in each.ignored if place not in used)
        unread = tuple((name, cells.count, cells.example) for name, _ in ignored if (cells := survey[name][0]).count)
        found.append(replace(each, ignored=ignored, unread=unread))
    return found


def unread_columns(table: Table, columns: Columns) -> list[Problem]:
    """What is said of columns that hold something and are not read."""
    found = ((name, f"a column of {count:,} values, such as {_short(text)}") for name, count, text in columns.unread)
    return [Problem(f"{table.where}: {name}", NOT_READ, f"not read: {what}.") for name, what in found]


def _short(text: str) -> str:
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


def _survey(table: Table, columns: Columns) -> Mapping[str, tuple[_Cells, int]]:
    """The cells of each column that is not read, and how many rows there are."""
    cells = [(place, _Cells()) for _, place in columns.ignored]
    rows = 0
    for _, row in table.rows() if cells else ():
        if len(row) == columns.width:  # the others are named later
            rows += 1
            for place, each in cells:
                if row[place]:
                    each.note(row[place])
    names = (name for name, _ in columns.ignored)
    return {name: (each, rows) for name, (_, each) in zip(names, cells, strict=True)}


def _with_form(table: Table, columns: Columns) -> Columns:
    """Columns with the form that the numbers in cells of boxes have."""
    names = list(map(column_name, table.header))
    sides = [names.index(name) for name in ("height", "width") if name in names]
    form, as_they_are = BoxForm(), replace(columns, form="corners")
    for _, row in table.rows():
        try:
            box = [float(text) for text in as_they_are.corners(row) if text]
            size = [int(float(row[place])) for place in sides]
        except (RowError, ValueError, OverflowError, IndexError):
            continue
        if box:
            form.note(RowObjects({"boxes": [box]}, None, ("boxes",)), (size[0], size[1]) if len(size) == 2 else None)
    name = table.header[columns.box[0]]
    notes = (*columns.notes, *form.notes(f"{table.where}: {name}"))
    return replace(columns, form="corners" if form.are_corners else "sized", notes=notes)
