"""Fields from files: .npy in the order of rows, CSV and Parquet by key."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tensorstore_ds.annex.editing.add import BySplit, FieldsSummary, by_split, run_add
from tensorstore_ds.annex.editing.field_tables import Cells, key_column, split_column, table_of
from tensorstore_ds.annex.editing.tombstones import key_bytes
from tensorstore_ds.annex.sources.arrays.source import NPY_HEAD, read_npy_header
from tensorstore_ds.conversion.result import OnProgress
from tensorstore_ds.errors import OptionError
from tensorstore_ds.format.kinds import KeyField
from tensorstore_ds.format.kinds.base import first_of_kind
from tensorstore_ds.format.kinds.key_index import KeyIndex, Keys
from tensorstore_ds.machine import check_fits
from tensorstore_ds.options import meant, shortened
from tensorstore_ds.reading.store import Store
from tensorstore_ds.regular_files import open_file, os_errors, tidied
from tensorstore_ds.sources.names import field_name

#: Files of fields.
SUFFIXES = (".npy", ".csv", ".tsv", ".parquet")
_NAMED = 3  # keys in a message


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
            made.update(_by_key(opened, path, split, missing, name=name, columns=columns, key=key))
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


def _by_key(
    store: Store,
    path: Path,
    split: str | None,
    missing: float | str | None,
    *,
    name: str | None,
    columns: Collection[str] | None,
    key: str | None,
) -> dict[str, BySplit]:
    """The values of each field of a table, in row order of each split, or of one."""
    table = table_of(path)
    keys, splits = key_column(path, table.names, key), split_column(table.names)
    others = [each for each in table.names if each not in (keys, splits)]
    for each in columns or ():
        if each not in others:
            expected = f"columns of {path.name}: {', '.join(others)[:200]}"
            raise OptionError(f"`columns`: expected {expected}, found {shortened(each)}.{meant(each, others)}")
    chosen = others if columns is None else [*columns]
    if not chosen or (name is not None and len(chosen) != 1):
        found = f"found {', '.join(chosen) or 'none'}"
        raise OptionError(f"{path}: expected one column for a field, {found}. Choose it with `columns`.")
    names = [name] if name is not None else [field_name(each) for each in chosen]
    if len({*names}) < len(names):
        raise OptionError(f"{path}: expected columns whose names differ, found {', '.join(chosen)}.")
    places = _places(store, path, split, table.texts(keys), None if splits is None else table.texts(splits))
    cells = {column: table.column(column) for column in chosen}
    if missing is None:
        there = {each: [_known(numbers, known) for _, known in cells.values()] for each, numbers in places.items()}
        lacking = [(each, row) for each, some in there.items() for row in np.flatnonzero(~np.all(some, 0)).tolist()]
        if lacking:
            some = ", ".join(repr(store[each].key(row)) for each, row in lacking[:_NAMED])
            what = f"found none for {len(lacking):,} of {sum(map(len, places.values())):,}, such as {some}"
            advice = "Pass `missing` to give them a value, or `split` if the table is of one split."
            raise OptionError(f"{path}: expected a value for each sample, {what}. {advice}")
    return {
        new: {each: _filled(column, *cells[column], numbers, missing) for each, numbers in places.items()}
        for new, column in zip(names, chosen, strict=True)
    }


def _places(
    store: Store, path: Path, split: str | None, keys: Sequence[str], splits: Sequence[str] | None
) -> dict[str, NDArray[np.int64]]:
    """The row of the table for each row of a split, -1 for none; raises `OptionError` for unknown and repeated keys."""
    field = first_of_kind(store.manifest.fields, KeyField)
    if field is None:
        raise OptionError(f"{store.path}: expected samples with keys, found none. Add an array in their order.")
    if split is not None:
        store[split]  # raises an error for an unknown split
    found, wanted = dict[str, NDArray[np.int64]](), Keys.of([*map(key_bytes, keys)])
    for each in store if split is None else (split,):
        found[each] = KeyIndex(store[each].table(field)).find(wanted)
        if splits is not None:
            found[each][np.array(splits, object) != each] = -1
    owners = np.sum([rows >= 0 for rows in found.values()], axis=0)
    for i in np.flatnonzero(owners > 1)[:1].tolist():
        what = f"found {keys[i]!r} in {' and '.join(each for each, rows in found.items() if rows[i] >= 0)}"
        advice = "Add a column split, or name the split with `split`."
        raise OptionError(f"{path}: expected keys that are in one split, {what}. {advice}")
    places = {each: np.full(len(store[each]), -1, np.int64) for each in found}
    for each, rows in found.items():
        for i in np.flatnonzero(rows >= 0).tolist():
            if places[each][rows[i]] >= 0:
                raise OptionError(f"{path}: expected each sample once, found {keys[i]!r} twice. Remove one.")
            places[each][rows[i]] = i
    if split is not None and splits is not None:
        owners[np.array(splits, object) != split] = 1  # of other splits
    if unknown := [keys[i] for i in np.flatnonzero(owners == 0).tolist()]:
        some = ", ".join(map(repr, unknown[:_NAMED])) + (", ..." if len(unknown) > _NAMED else "")
        what = f"found {len(unknown):,} that no sample has, such as {some}"
        raise OptionError(f"{path}: expected keys of samples, {what}. Remove these rows, or check the keys.")
    return places


def _known(numbers: NDArray[np.int64], known: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Which rows have a value, given their rows of the table."""
    return np.append(known, False)[numbers]  # -1 is the last one


def _filled(
    column: str, cells: Cells, known: NDArray[np.bool_], numbers: NDArray[np.int64], missing: float | str | None
) -> Any:
    """The values of a split, where samples without a value get `missing`."""
    if isinstance(cells, list):
        stand_in = None if missing == "" else str(missing)
        return [cells[i] if i >= 0 else stand_in for i in numbers.tolist()]
    check_fits(column, len(numbers) * cells[:1].nbytes)
    values, there = np.zeros((len(numbers), *cells.shape[1:]), cells.dtype), _known(numbers, known)
    values[there] = cells[numbers[there]]
    if not there.all():
        values[~there] = _stand_in(column, cells.dtype, missing)
    return values


def _stand_in(column: str, dtype: np.dtype[Any], missing: float | str | None) -> float:
    """The number for samples without one; raises `OptionError` if the dtype cannot hold it."""
    try:
        number = float(missing)  # type: ignore[arg-type]  # it is not None where there are gaps
        fits = dtype.kind == "f" or (number.is_integer() and np.iinfo(dtype).min <= number <= np.iinfo(dtype).max)
    except (ValueError, OverflowError):
        fits = False
    if not fits:
        expected = f"a number that {column} ({dtype}) can hold"
        raise OptionError(f"`missing`: expected {expected}, found {shortened(str(missing))}.")
    return number if dtype.kind == "f" else int(number)
