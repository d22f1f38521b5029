"""Tables with fields for samples: CSV and Parquet, column by column."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tensorstore_ds.annex.sources.parquet import element_of, is_text, numbers_of, opened_parquet, read_group, values_of
from tensorstore_ds.errors import OptionError, Problem, SourceError
from tensorstore_ds.machine import check_fits
from tensorstore_ds.options import meant, shortened
from tensorstore_ds.sources.list.table import PATH_NAMES, SPLIT_COLUMN_NAMES, Table, column_name

#: Values of a column: an array, or a list of texts or arrays, with None for an empty cell.
Cells = NDArray[Any] | list[Any]


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

    def texts(self, column: str) -> list[str]:
        """A column as texts."""
        return self._cells[column]

    def column(self, column: str) -> tuple[Cells, NDArray[np.bool_]]:
        """The values of a column, and which of them are known; texts always are."""
        kind, cells = self._kind(column), self._cells[column]
        if kind is str:
            return [cell or None for cell in cells], np.ones(len(cells), np.bool_)
        numbers = np.array([kind(cell or 0) for cell in cells], np.int64 if kind is int else np.float64)
        return numbers, np.array([*map(bool, cells)], np.bool_)

    def _kind(self, column: str) -> type[int] | type[float] | type[str]:
        """The kind of the non-empty cells of a column; whole numbers beyond int64 are texts."""
        cells = [cell for cell in self._cells[column] if cell]
        if not cells:
            return str
        if all(re.fullmatch(r"[+-]?[0-9]+", cell) for cell in cells):
            return int if all(len(cell) < 40 and -(2**63) <= int(cell) < 2**63 for cell in cells) else str
        return float if all(map(_is_number, cells)) else str


class ParquetTable:
    """A Parquet file, read by column."""

    def __init__(self, path: Path) -> None:
        self._path, self._where = path, str(path)
        with opened_parquet(path, self._where) as parquet:
            self._schema = parquet.schema_arrow
        self.names = tuple(self._schema.names)
        if len({*self.names}) < len(self.names):
            raise OptionError(f"{path}: expected columns whose names differ, found {', '.join(self.names)[:200]}.")

    def texts(self, column: str) -> list[str]:
        """A column as texts."""
        return [str(value) for cells in self._groups(column) for value in values_of(cells)]

    def column(self, column: str) -> tuple[Cells, NDArray[np.bool_]]:
        """The values of a column, and which of them are known; texts and lists always are."""
        like = self._like(column)
        if like is None:
            dtype, shape = numbers_of(element_of(self._schema.field(column).type))
            found: list[Any] = []
            for cells in self._groups(column):
                parts = [_lists(column, chunk, dtype, shape) for chunk in cells.chunks] if dtype else [values_of(cells)]
                found += [value for part in parts for value in part]
            return found, np.ones(len(found), np.bool_)
        arrays, known, nbytes = [like], [np.empty(0, np.bool_)], 0
        for cells in self._groups(column):
            known.append(np.ones(len(cells), np.bool_))
            if cells.null_count:
                values, none = values_of(cells), np.zeros(like.shape[1:], like.dtype)
                known[-1][:] = [value is not None for value in values]
                arrays.append(np.array([none if value is None else value for value in values], like.dtype))
            else:
                arrays.append(_array(column, cells, like))
            nbytes += arrays[-1].nbytes
            check_fits(column, 2 * nbytes)  # the groups, and all of them in one array
        return np.concatenate(arrays), np.concatenate(known)

    def _groups(self, column: str) -> Iterator[Any]:
        with opened_parquet(self._path, self._where) as parquet:
            for group in range(parquet.num_row_groups):
                yield read_group(parquet, group, [column], self._where).column(column)

    def _like(self, column: str) -> NDArray[Any] | None:
        """An array of 0 rows; None for texts and lists of any length. Raises `OptionError` for all else."""
        kind = self._schema.field(column).type
        dtype, shape = numbers_of(kind)
        if dtype:
            return np.empty((0, *shape), dtype)
        if is_text(element_of(kind)) or numbers_of(element_of(kind))[0]:
            return None
        advice = "Lists in lists need a fixed size. Choose other columns with `columns`."
        raise OptionError(f"{self._path}: expected numbers or texts in {column}, found {str(kind)[:80]}. {advice}")


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
