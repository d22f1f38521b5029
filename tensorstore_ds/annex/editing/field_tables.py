"""Tables with fields for samples: CSV and Parquet, column by column."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tensorstore_ds.annex.sources.parquet import element_of, is_text, numbers_of, opened_parquet, read_group, values_of
from tensorstore_ds.errors import OptionError, Problem, SourceError
from tensorstore_ds.options import meant, shortened
from tensorstore_ds.sources.list.table import PATH_NAMES, SPLIT_COLUMN_NAMES, Table, column_name

#: Values of a column for some rows of a file: an array, or a list of numbers or texts, with None for an empty cell.
Cells = NDArray[Any] | list[Any]
#: Some rows of a file: their columns.
TableRows = Mapping[str, Cells]


class CsvTable:
    """A CSV table with a header, read completely to tell numbers from texts."""

    def __init__(self, path: Path, least: int = 2) -> None:
        where, suffix = str(path), path.suffix.lower()
        for separator in ("\t",) if suffix == ".tsv" else (",", ";"):
            self.names = tuple(next(Table(path, where, True, separator).rows(), (0, []))[1])
            if len(self.names) > 1:
                break
        if len({*self.names}) < len(self.names) or len(self.names) < least:
            count, found = "two names" if least > 1 else "one name", ", ".join(self.names)[:200] or "none"
            message = f"expected a header with {count} or more that differ, found {found}."
            raise SourceError(Problem(f"{where}:1", "list-line", message), "Correct the header.")
        cells: list[list[str]] = []
        for number, row in Table(path, where, True, separator, self.names, len(self.names)).rows():
            if len(row) != len(self.names):
                message = f"expected {len(self.names)} columns, found {len(row)}."
                raise SourceError(Problem(f"{where}:{number}", "list-line", message), "Correct the line.")
            cells.append(row)
        self._cells = {name: [row[i] for row in cells] for i, name in enumerate(self.names)}

    def empty(self, column: str) -> NDArray[Any] | None:
        """An array of 0 rows with the dtype of a column; None for texts."""
        kind = self._kind(column)
        return None if kind is str else np.empty(0, np.int64 if kind is int else np.float64)

    def rows(self, named: Sequence[str], columns: Sequence[str]) -> Iterator[TableRows]:
        """All rows: texts of some columns, and the values of others."""
        found: dict[str, Cells] = {name: list(self._cells[name]) for name in named}
        for column in columns:
            kind = self._kind(column)
            found[column] = [kind(cell) if cell else None for cell in self._cells[column]]
        yield found

    def _kind(self, column: str) -> type[int] | type[float] | type[str]:
        """The kind of the non-empty cells of a column; whole numbers beyond int64 are texts."""
        cells = [cell for cell in self._cells[column] if cell]
        if not cells:
            return str
        if all(re.fullmatch(r"[+-]?[0-9]+", cell) for cell in cells):
            return int if all(len(cell) < 40 and -(2**63) <= int(cell) < 2**63 for cell in cells) else str
        return float if all(map(_is_number, cells)) else str


class ParquetTable:
    """A Parquet file, read by row group."""

    def __init__(self, path: Path) -> None:
        self._path, self._where = path, str(path)
        with opened_parquet(path, self._where) as parquet:
            self._schema = parquet.schema_arrow
        self.names = tuple(self._schema.names)
        if len({*self.names}) < len(self.names):
            raise OptionError(f"{path}: expected columns whose names differ, found {', '.join(self.names)[:200]}.")

    def empty(self, column: str) -> NDArray[Any] | None:
        """An array of 0 rows; None for texts and lists of any length. Raises `OptionError` for all else."""
        kind = self._schema.field(column).type
        dtype, shape = numbers_of(kind)
        if dtype:
            return np.empty((0, *shape), dtype)
        if is_text(element_of(kind)) or numbers_of(element_of(kind))[0]:
            return None
        advice = "Lists in lists need a fixed size. Choose other columns with `columns`."
        raise OptionError(f"{self._path}: expected numbers or texts in {column}, found {str(kind)[:80]}. {advice}")

    def rows(self, named: Sequence[str], columns: Sequence[str]) -> Iterator[TableRows]:
        """The rows of each row group."""
        with opened_parquet(self._path, self._where) as parquet:
            for group in range(parquet.num_row_groups):
                table = read_group(parquet, group, [*named, *columns], self._where)
                found: dict[str, Cells] = {name: list(map(str, values_of(table.column(name)))) for name in named}
                for column in columns:
                    like, cells = self.empty(column), table.column(column)
                    dtype, shape = numbers_of(element_of(cells.type))
                    if like is None and dtype:
                        found[column] = [row for chunk in cells.chunks for row in _lists(column, chunk, dtype, shape)]
                        continue
                    found[column] = (
                        values_of(cells) if like is None or cells.null_count else _array(column, cells, like)
                    )
                yield found


def table_of(path: Path, least: int = 2) -> CsvTable | ParquetTable:
    """The table in a file with at least so many columns, by its suffix."""
    return ParquetTable(path) if path.suffix.lower() == ".parquet" else CsvTable(path, least)


def key_column(path: Path, names: Sequence[str], key: str | None) -> str:
    """The column of keys, which may be named."""
    if key is not None:
        if key not in names:
            expected = f"a column of {path.name}: {', '.join(names)[:200]}"
            raise OptionError(f"`key`: expected {expected}, found {shortened(key)}.{meant(key, names)}")
        return key
    plain = {name: column_name(name) for name in names}
    for known in (frozenset({"key"}), PATH_NAMES):
        if found := [name for name in names if plain[name] in known]:
            return found[0]
    what = f"a column key with the keys of samples, found {', '.join(names)[:200] or 'none'}"
    raise OptionError(f"{path}: expected {what}. Rename the column of keys to key.")


def split_column(names: Sequence[str]) -> str | None:
    """The column of names of splits."""
    return next((name for name in names if column_name(name) in SPLIT_COLUMN_NAMES), None)


def _lists(name: str, chunk: Any, dtype: str, shape: tuple[int, ...]) -> Iterator[NDArray[Any] | None]:
    """The numbers (m, ...) of each list; None for null."""
    flat = chunk.values.flatten() if shape else chunk.values
    if flat.null_count:
        raise OptionError(f"{name}: expected numbers, found null in a list. Write a number there, such as NaN.")
    values = flat.to_numpy(zero_copy_only=False).astype(dtype).reshape(-1, *shape)
    offsets = chunk.offsets.to_pylist()
    for i, is_there in enumerate(chunk.is_valid().to_pylist()):
        yield values[offsets[i] : offsets[i + 1]] if is_there else None


def _array(name: str, column: Any, like: Any) -> NDArray[Any]:
    """The numbers of a column without nulls: (n, ...)."""
    flat = [each if like.ndim == 1 else each.flatten() for each in column.chunks]
    if any(each.null_count for each in flat):
        raise OptionError(f"{name}: expected numbers, found null in a list. Write a number there, such as NaN.")
    parts = [each.to_numpy(zero_copy_only=False) for each in flat]
    return np.concatenate([np.empty(0, like.dtype), *parts]).astype(like.dtype).reshape(-1, *like.shape[1:])


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return "_" not in text  # which float() would accept
