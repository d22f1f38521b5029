"""Detect the meaning of columns from their cells if their names are not enough."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from tensorstore_ds.errors import Problem
from tensorstore_ds.sources.forms import FormError
from tensorstore_ds.sources.ledger import NOT_READ
from tensorstore_ds.sources.list.table import FALSE, MINUS, TRUE, Columns, Flag, Table, column_name, is_number
from tensorstore_ds.sources.row_objects import BoxForm, RowObjects
from tensorstore_ds.sources.splits import SPLIT_NAMES

_MOST = 8  # different cells of a column that are remembered
_BOX = 4  # numbers in a text that is no label
_SHOWN = 40  # characters of a cell in a message


@dataclass(slots=True)
class _Cells:
    """Cells of a column: the number of non-empty ones, an example, and some distinct values."""

    count: int = 0
    example: str = ""
    values: set[str] = field(default_factory=set)
    are_texts: bool = False  #: whether some are neither numbers nor lists nor JSON nor runs (RLE) nor boxes

    def note(self, cell: str) -> None:
        self.count += 1
        self.example = self.example or cell
        if len(self.values) < _MOST:
            self.values.add(cell.lower())
        words = re.split(r"[\s;,|]+", cell)
        is_text = cell[0] not in "[{" and sum(map(is_number, words)) < min(len(words), _BOX)
        self.are_texts = self.are_texts or is_text

    def merge(self, other: _Cells) -> None:
        self.count += other.count
        self.values |= other.values
        self.are_texts = self.are_texts or other.are_texts


def settled(tables: Sequence[Table], columns: Sequence[Columns]) -> list[Columns]:
    """The columns of lists, completed by what the cells of other columns mean.

    A column of only split names is the split of an image, if no other column is. 2 or more columns of 0 and 1, perhaps
    with -1, are class flags, if no other columns are. A single column of texts next to the paths is the label. 4
    numbers in a cell are corners if they cannot be a size.
    """
    surveys = [_survey(table, each) for table, each in zip(tables, columns, strict=True)]
    seen: dict[str, _Cells] = {}  # of each unread column in all lists
    for name, cells in (pair for survey in surveys for pair in survey.items()):
        seen.setdefault(column_name(name), _Cells()).merge(cells)
    told = any(each.has_labels or each.box or each.texts for each in columns)
    widest = max(columns, key=lambda each: len(each.ignored))
    flags = {} if told else _flags(widest, seen)
    split = next((name for name, each in seen.items() if len(each.values) > 1 and each.values <= SPLIT_NAMES), None)
    lone = [name for name, cells in seen.items() if cells.count and name != split]
    is_lone = not told and len(lone) == 1 and seen[lone[0]].are_texts
    found = []
    for table, each, survey in zip(tables, columns, surveys, strict=True):
        places = {column_name(name): place for name, place in each.ignored}
        if len(flags) > 1 and flags.keys() <= places.keys():
            chosen = tuple(replace(flag, place=places[name]) for name, flag in flags.items())
            each = replace(each, flags=chosen)
        elif is_lone and not each.keypoints and places.keys() - {split} == {lone[0]}:
            each = replace(each, label=places[lone[0]], notes=(*each.notes, _note(table, places[lone[0]], "label")))
        if split in places and each.split is None:
            each = replace(each, split=places[split], notes=(*each.notes, _note(table, places[split], "split")))
        if len(each.box) == 1:
            each = _with_form(table, each)
        used = {each.label, each.split, *(flag.place for flag in each.flags)}
        ignored = tuple((name, place) for name, place in each.ignored if place not in used)
        unread = tuple(
            (name.strip() or f"column {place + 1} (without a name)", cells.count, cells.example)
            for name, place in ignored
            if (cells := survey[name]).count
        )
        found.append(replace(each, ignored=ignored, unread=unread))
    return found


def _note(table: Table, place: int, what: str) -> str:
    return f"{table.where}: the column {table.header[place].strip()} is read as the {what} of each image."


def unread_columns(table: Table, columns: Columns) -> list[Problem]:
    """Problems about columns that have values and are not read."""
    found = ((name, f"a column of {count:,} values, such as {_short(text)}") for name, count, text in columns.unread)
    return [Problem(f"{table.where}: {name}", NOT_READ, f"not read: {what}.") for name, what in found]


def _short(text: str) -> str:
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


def _survey(table: Table, columns: Columns) -> Mapping[str, _Cells]:
    """The cells of each column that is not read."""
    found = [(place, _Cells()) for _, place in columns.ignored]
    last, own = 0, [place for place, name in enumerate(table.header or ()) if "." not in name]
    for number, row in table.rows() if found else ():
        if len(row) == columns.width:  # the others are named later
            for place, each in found:
                if row[place] and (number != last or place not in own):  # a line of JSON has a row for each object
                    each.note(row[place])
        last = number
    names = (name for name, _ in columns.ignored)
    return {name: each for name, (_, each) in zip(names, found, strict=True)}


def _flags(columns: Columns, seen: Mapping[str, _Cells]) -> dict[str, Flag]:
    """Columns of class flags, in the order of a list that has all."""
    flags: dict[str, Flag] = {}
    for name, place in columns.ignored:
        cells = seen[column_name(name)]
        if cells.count and cells.values <= TRUE | FALSE | MINUS and not cells.values <= MINUS:
            others: Literal["0", "?"] = "?" if cells.values & FALSE else "0"  # 1 beside -1, or beside nothing
            flags[column_name(name)] = Flag(name.strip(), place, others)
    values = [seen[name].values for name in flags]
    is_constant = all(len(each) == 1 for each in values) and any(each & FALSE for each in values)
    return {} if is_constant else flags  # such as counts and numbers of regions, one in each image


def _with_form(table: Table, columns: Columns) -> Columns:
    """Set the form of the boxes from the numbers in cells."""
    names = list(map(column_name, table.header))
    sides = [names.index(name) for name in ("height", "width") if name in names]
    form, as_they_are = BoxForm(), replace(columns, form="corners")
    for _, row in table.rows():
        try:
            box = [float(text) for text in as_they_are.corners(row) if text]
            size = [int(float(row[place])) for place in sides]
        except (FormError, ValueError, OverflowError, IndexError):
            continue
        if box:
            form.note(RowObjects({"boxes": [box]}, None, ("boxes",)), (size[0], size[1]) if len(size) == 2 else None)
    name = table.header[columns.box[0]]
    notes = (*columns.notes, *form.notes(f"{table.where}: {name}"))
    return replace(columns, form="corners" if form.are_corners else "sized", notes=notes)
