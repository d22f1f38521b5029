"""JSON Lines as a list: an object a line, such as in the ``metadata.jsonl`` of Hugging Face's imagefolder."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tensorstore_ds.errors import Problem, SourceError
from tensorstore_ds.sources.json_objects import parse_object
from tensorstore_ds.sources.list.table import Table, bad_line, is_header, lines_of

_OBJECTS = "objects"


@dataclass(frozen=True)
class JsonTable(Table):
    """JSON Lines as rows of cells; a line with `objects` becomes a row for each of them."""

    def rows(self) -> Iterator[tuple[int, list[str]]]:
        names = [name for name in self.header if not name.startswith(f"{_OBJECTS}.")]
        inner = [name.partition(".")[2] for name in self.header[len(names) :]]
        for number, line in lines_of(self.file, self.where):
            members = parse_object(line.encode(), f"{self.where}:{number}")
            cells = [_cell(members.get(name)) for name in names]
            objects = _objects(members.get(_OBJECTS), f"{self.where}:{number}") if inner else []
            for each in objects or [{}]:
                yield number, [*cells, *(_cell(each.get(name)) for name in inner)]


def open_json_lines(file: Path, where: str) -> JsonTable:
    """Open JSON Lines; reads all lines to collect the names of members."""
    names: dict[str, None] = {}
    inner: dict[str, None] = {}
    number = 0
    for number, line in lines_of(file, where):
        members = parse_object(line.encode(), f"{where}:{number}")
        objects = members.pop(_OBJECTS, None)
        if isinstance(objects, list | dict):
            each_of = _objects(objects, f"{where}:{number}")
            inner.update(dict.fromkeys(objects if isinstance(objects, dict) else (n for each in each_of for n in each)))
        elif objects is not None:
            members[_OBJECTS] = objects
        names.update(dict.fromkeys(members))
    if not number:
        raise SourceError(Problem(where, "empty-source", "expected lines that name images, found none."))
    if not is_header(names):
        message = f"expected a member file_name in each line, found {', '.join(names)[:200] or 'none'}."
        raise bad_line(where, 1, message)
    header = (*names, *(f"{_OBJECTS}.{name}" for name in inner))
    return JsonTable(file, where, True, None, header, len(header))


def _objects(value: Any, where: str) -> list[Mapping[str, Any]]:
    """Each object, from an object of lists or a list of objects."""
    if value is None:
        return []
    if isinstance(value, list) and all(isinstance(each, dict) for each in value):
        return value
    if not isinstance(value, dict) or not all(isinstance(each, list) for each in value.values()):
        message = "expected objects with lists such as bbox and categories, found others."
        raise SourceError(Problem(where, "list-line", message), "Correct the line.")
    if len({len(each) for each in value.values()}) > 1:
        found = ", ".join(f"{len(each)} {name}" for name, each in value.items())
        message = f"expected lists of one length in objects, found {found[:200]}."
        raise SourceError(Problem(where, "list-line", message), "Correct the line.")
    return [dict(zip(value, each, strict=True)) for each in zip(*value.values(), strict=True)]


def _cell(value: Any) -> str:
    """A value as text, as in a list."""
    if value is None or isinstance(value, bool):
        return "" if value is None else str(int(value))
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
        return str(int(value))
    return value.strip() if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
