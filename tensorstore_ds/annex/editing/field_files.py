"""Fields from files: .npy in the order of rows, CSV and Parquet by key."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tensorstore_ds.annex.editing.add import BySplit, FieldsSummary, by_split, run_add
from tensorstore_ds.annex.editing.field_tables import Cells, key_column, split_column, table_of
from tensorstore_ds.annex.sources.arrays.source import NPY_HEAD, read_npy_header
from tensorstore_ds.conversion.result import OnProgress
from tensorstore_ds.errors import OptionError
from tensorstore_ds.format.kinds import KeyField
from tensorstore_ds.format.kinds.base import first_of_kind
from tensorstore_ds.machine import check_fits
from tensorstore_ds.options import meant, shortened
from tensorstore_ds.reading.store import Store
from tensorstore_ds.regular_files import open_file, os_errors, tidied
from tensorstore_ds.sources.names import field_name

#: Files of fields.
SUFFIXES = (".npy", ".csv", ".tsv", ".parquet")
_NAMED = 3  # keys in a message

#: For each split the numbers of some rows of a file, and the rows of the split that they are.
Places = Mapping[str, tuple[list[int], list[int]]]


def add_file(
    store: str | os.PathLike[str],
    file: str | os.PathLike[str],
    *,
    name: str | None = None,
    columns: Collection[str] | None = None,
    key: str | None = None,
    split: str | None = None,
    missing: float | str | None = None,
    classes: Sequence[str] | None = None,
    replace: bool = False,
    progress: OnProgress | None = None,
) -> FieldsSummary:
    """Add fields to a store in place from a file. For arrays, use `add_fields`.

    >>> np.save("losses.npy", np.zeros(12, np.float32))
    >>> tsds.editing.add_file("photos.tsds", "losses.npy", name="loss").fields
    {'loss': 'float32'}
    >>> _ = Path("tags.csv").write_text("key,tag\\ntrain/cat/0.png,blurred\\n")
    >>> tsds.editing.add_file("photos.tsds", "tags.csv", missing="").fields
    {'tag': 'texts'}

    A ``.npy`` file is mapped, so it may be larger than memory. Pickled objects in it are never read. A table (``.csv``
    or ``.tsv`` with a header, or ``.parquet``) has a column of keys, and may have a column ``split``. Its rows may be
    in any order. Numbers of CSV are stored as int64 or float64, numbers of Parquet in their dtype. Everything else is
    stored as texts, and an empty cell as no text.

    Args:
        store: path of a store, a folder.
        file: path of the file.
        name: name of the field. None uses the name of the file, or of the only column of a table.
        columns: columns of a table that become fields. None uses all except the keys and the splits.
        key: column with the keys of the samples. None uses the column ``key``, or a column whose name stands for a
            path, such as ``file_name``.
        split: as in `add_fields`. The keys of a table are looked up in this split.
        missing: value of samples that are not in the table, or whose cell has no number. By default, there must be
            none.
        classes: class names. The values are then stored as labels.
        replace: whether to replace the values of an existing field.
        progress: function that is called with the progress, as in `convert`.

    Raises:
        SourceError: the file cannot be read, is damaged, or contains pickled objects.
        OptionError: the table lacks a column or samples, or contains a sample twice or unknown keys; or as in
            `add_fields`.
        FormatError, OutputError, ConversionError: as in `add_fields`.
    """
    path = tidied(file)
    if path.suffix.lower() not in SUFFIXES:
        expected = f"a file that ends in {', '.join(SUFFIXES)}"
        raise OptionError(
            f"{path}: expected {expected}, found {path.name}. From Python, tsds.editing.add_fields takes arrays."
        )
    table = {"columns": columns, "key": key, "missing": missing}
    is_array = path.suffix.lower() == ".npy"
    if is_array and (given := [each for each, value in table.items() if value is not None]):
        raise OptionError(f"`{given[0]}`: expected a table, found {path.name}. Leave it out.")
    made: dict[str, BySplit] = {}

    def values(opened: Store) -> Mapping[str, BySplit]:
        if is_array:
            own = name or field_name(path.stem)
            made[own] = by_split(opened, own, _mapped(path), split)
        else:
            made.update(_ByKey(opened, path, split, missing).fields(name, columns, key))
        names.update(dict.fromkeys(made, tuple(classes)) if classes is not None else {})
        return made

    names: dict[str, tuple[str, ...]] = {}
    return run_add(store, values, names, is_replaced=replace, progress=progress, source=path.name)


def _mapped(path: Path) -> NDArray[Any]:
    with os_errors(str(path)), open_file(path, str(path)) as stream:
        array = read_npy_header(stream.read(NPY_HEAD), str(path), path)
    if not array.shape:
        raise OptionError(f"{path}: expected an array with a row for each sample, found a single number.")
    return array.map()


@dataclass
class _ByKey:
    """A table whose rows are matched by key with the samples of one split, or of all if `split` is None.

    Samples that the table lacks get `missing`.
    """

    store: Store
    path: Path
    split: str | None
    missing: float | str | None
    _places: dict[str, dict[str, int]] = field(default_factory=dict)
    _seen: dict[str, NDArray[np.bool_]] = field(default_factory=dict)

    def fields(self, name: str | None, columns: Collection[str] | None, key: str | None) -> dict[str, BySplit]:
        """The values of each field, in row order of each split."""
        table = table_of(self.path)
        keys, splits = key_column(self.path, table.names, key), split_column(table.names)
        others = [each for each in table.names if each not in (keys, splits)]
        chosen = others if columns is None else [self._known(each, others) for each in columns]
        if not chosen or (name is not None and len(chosen) != 1):
            found = f"found {', '.join(chosen) or 'none'}"
            raise OptionError(f"{self.path}: expected one column for a field, {found}. Choose it with `columns`.")
        names = [name] if name is not None else [field_name(each) for each in chosen]
        if len({*names}) < len(names):
            raise OptionError(f"{self.path}: expected columns whose names differ, found {', '.join(chosen)}.")
        self._learn_keys()
        sizes = {split: len(seen) for split, seen in self._seen.items()}
        made = {column: _Column(column, self.missing, table.empty(column), sizes) for column in chosen}
        for rows in table.rows([keys, splits] if splits else [keys], chosen):
            places = self._found(rows[keys], rows[splits] if splits else None)
            for column, each in made.items():
                each.put(places, rows[column])
        unseen = [(split, row) for split, seen in self._seen.items() for row in np.flatnonzero(~seen).tolist()]
        if self.missing is None:
            self._refuse(unseen + [place for each in made.values() for place in each.empty])
        return {new: each.by_split(unseen) for new, each in zip(names, made.values(), strict=True)}

    # --- columns ---

    def _known(self, column: str, names: Sequence[str]) -> str:
        if column not in names:
            expected = f"columns of {self.path.name}: {', '.join(names)[:200]}"
            raise OptionError(f"`columns`: expected {expected}, found {shortened(column)}.{meant(column, names)}")
        return column

    # --- samples ---

    def _learn_keys(self) -> None:
        store = self.store
        if first_of_kind(store.manifest.fields, KeyField) is None:
            raise OptionError(f"{store.path}: expected samples with keys, found none. Add an array in their order.")
        if self.split is not None:
            store[self.split]  # raises an error for an unknown split
        for split in store if self.split is None else (self.split,):
            self._places[split] = {store[split].key(row): row for row in range(len(store[split]))}
            self._seen[split] = np.zeros(len(store[split]), bool)

    def _found(self, keys: Cells, splits: Cells | None) -> Places:
        """The position of each key; raises `OptionError` for unknown and repeated keys."""
        found: dict[str, tuple[list[int], list[int]]] = {split: ([], []) for split in self._places}
        unknown = []
        for i, each in enumerate(keys):
            key = str(each)
            if splits is not None and self.split not in (None, splits[i]):
                continue
            places = [
                (split, rows[key])
                for split, rows in self._places.items()
                if key in rows and (splits is None or splits[i] == split)
            ]
            if len(places) > 1:
                what = f"found {key!r} in {' and '.join(split for split, _ in places)}"
                advice = "Add a column split, or name the split with `split`."
                raise OptionError(f"{self.path}: expected keys that are in one split, {what}. {advice}")
            if not places:
                unknown.append(key)
                continue
            split, row = places[0]
            if self._seen[split][row]:
                raise OptionError(f"{self.path}: expected each sample once, found {key!r} twice. Remove one.")
            self._seen[split][row] = True
            found[split][0].append(i)
            found[split][1].append(row)
        if unknown:
            some = ", ".join(map(repr, unknown[:_NAMED])) + (", ..." if len(unknown) > _NAMED else "")
            what = f"found {len(unknown):,} that no sample has, such as {some}"
            raise OptionError(f"{self.path}: expected keys of samples, {what}. Remove these rows, or check the keys.")
        return found

    def _refuse(self, lacking: Sequence[tuple[str, int]]) -> None:
        """Raise `OptionError` if samples have no value."""
        if lacking:
            some = ", ".join(repr(self.store[split].key(row)) for split, row in lacking[:_NAMED])
            total = sum(map(len, self._seen.values()))
            what = f"found none for {len(lacking):,} of {total:,}, such as {some}"
            advice = "Pass `missing` to give them a value, or `split` if the table is of one split."
            raise OptionError(f"{self.path}: expected a value for each sample, {what}. {advice}")


class _Column:
    """The values of one column, by split and row of the store; `empty` lists cells without a number."""

    def __init__(
        self, name: str, missing: float | str | None, like: NDArray[Any] | None, sizes: Mapping[str, int]
    ) -> None:
        self.empty: list[tuple[str, int]] = []
        self._name, self._missing, self._like = name, missing, like
        self._values: dict[str, Any] = {split: self._unfilled(rows) for split, rows in sizes.items()}

    def put(self, places: Places, cells: Cells) -> None:
        """Put the cells of some rows into their positions; None is an empty cell."""
        for split, (numbers, rows) in places.items():
            values = self._values[split]
            if isinstance(cells, np.ndarray):
                values[rows] = cells[numbers]
                continue
            for number, row in zip(numbers, rows, strict=True):
                if cells[number] is None and self._like is not None:
                    self.empty.append((split, row))
                else:
                    values[row] = cells[number]

    def by_split(self, unseen: Sequence[tuple[str, int]]) -> BySplit:
        """The values of each split, where samples without a value get `missing`."""
        gaps = [*unseen, *self.empty]
        stand_in = self._stand_in() if gaps else None
        for name, row in gaps:
            self._values[name][row] = stand_in
        return self._values

    def _unfilled(self, rows: int) -> Any:
        if self._like is None:
            return [None] * rows
        check_fits(self._name, rows * self._like[:1].nbytes)
        return np.zeros((rows, *self._like.shape[1:]), self._like.dtype)

    def _stand_in(self) -> Any:
        """The value of samples without one; raises `OptionError` if the dtype cannot hold it."""
        missing = self._missing
        if self._like is None:
            return None if missing == "" else str(missing)
        kind, dtype = self._like.dtype.kind, self._like.dtype
        try:
            number = float(missing)  # type: ignore[arg-type]  # it is not None where there are gaps
            fits = kind == "f" or (number.is_integer() and np.iinfo(dtype).min <= number <= np.iinfo(dtype).max)
        except (ValueError, OverflowError):
            fits = False
        if not fits:
            expected = f"a number that {self._name} ({dtype}) can hold"
            raise OptionError(f"`missing`: expected {expected}, found {shortened(str(missing))}.")
        return number if kind == "f" else int(number)
