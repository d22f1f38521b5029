"""Data frames, such as pandas', with a row for each image: formats/sources/list.md.

They are detected by their methods: no library of frames is imported.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from tensorstore_ds.errors import Problem, SourceError
from tensorstore_ds.sources.base import SourceOptions
from tensorstore_ds.sources.list.images import ListedImages
from tensorstore_ds.sources.list.source import ListSource
from tensorstore_ds.sources.list.table import Table, is_header
from tensorstore_ds.sources.splits import notes_of_renamed, split_names

_NAME = "<dataframe>"


def has_frames(source: object) -> bool:
    """Whether `source` is a data frame, or has one for each split."""
    frames = list(source.values()) if isinstance(source, Mapping) else [source]
    have = (hasattr(each, "columns") and (hasattr(each, "__dataframe__") or hasattr(each, "dtypes")) for each in frames)
    return bool(frames) and all(have)


class FrameSource(ListSource):
    """A list from data frames, one or one per split. Paths begin in the option `images`, else in the current folder."""

    name: ClassVar[str] = "dataframe"

    def __init__(self, frames: Any, options: SourceOptions) -> None:
        super().__init__(Path(_NAME), options)
        self.images = options.images or Path.cwd()
        self._images = ListedImages(options.images)  # the current folder may be a large one
        self._is_named = isinstance(frames, Mapping)
        self._frames: Mapping[str, Any] = frames if isinstance(frames, Mapping) else {"train": frames}

    def tables(self) -> list[tuple[Table, str]]:
        names = split_names(self._frames)
        self._notes += notes_of_renamed(names)
        single = len(names) == 1
        return [(_table(frame, _NAME if single else text), names[text]) for text, frame in self._frames.items()]

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_frames": {}}  # references hold all that is read of them


@dataclass(frozen=True)
class FrameTable(Table):
    """A data frame as a list. Rows are numbered from 0."""

    columns: tuple[list[Any], ...] = ()

    def rows(self) -> Iterator[tuple[int, list[str]]]:
        for row, values in enumerate(zip(*self.columns, strict=True)):
            yield row, [_cell(value) for value in values]


def _table(frame: Any, where: str) -> FrameTable:
    names = list(getattr(frame, "column_names", None) or frame.columns)  # pyarrow's columns are the data
    header = tuple(map(str, names))
    if not is_header(header):
        message = f"expected a column named path, found {', '.join(header)[:200] or 'none'}."
        raise SourceError(Problem(where, "list-line", message), "Rename the column of the images.")
    if len(set(header)) < len(header):
        raise SourceError(
            Problem(where, "list-line", "expected columns whose names differ, found others."), "Rename one."
        )
    return FrameTable(
        Path(where), where, True, None, header, len(header), columns=tuple(_values(frame[name]) for name in names)
    )


def _values(column: Any) -> list[Any]:
    """Values of a column of pyarrow, pandas, Polars, NumPy or similar."""
    for name in ("to_pylist", "to_list", "tolist"):
        if hasattr(column, name):
            return list(getattr(column, name)())
    return list(column)


def _cell(value: Any) -> str:
    """A value as text, as in a list: empty for a missing value, and whole numbers without decimals."""
    if hasattr(value, "tolist"):  # NumPy's, and so of any number of dimensions
        value = value.tolist()
    if isinstance(value, set | frozenset):
        value = sorted(value, key=str)  # the order of a set differs between processes
    if isinstance(value, list | tuple):
        return json.dumps(list(value), ensure_ascii=False, default=_plain)
    if value is None or type(value).__name__ in ("NAType", "NaTType") or value != value:
        return ""
    if isinstance(value, float) and value.is_integer() and math.isfinite(value):
        return str(int(value))
    return str(value).strip()


def _plain(value: Any) -> Any:
    """What a NumPy array, number or tensor within a list holds, and anything else as text."""
    return value.tolist() if hasattr(value, "tolist") else str(value)
