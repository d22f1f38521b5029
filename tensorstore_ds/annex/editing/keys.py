"""The samples of a store by their keys."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import repeat
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tensorstore_ds.annex.editing.expression import NoSampleError
from tensorstore_ds.annex.editing.field_tables import key_column, split_column, table_of
from tensorstore_ds.annex.editing.tombstones import key_bytes
from tensorstore_ds.errors import OptionError
from tensorstore_ds.format.kinds import KeyField
from tensorstore_ds.format.kinds.base import first_of_kind
from tensorstore_ds.format.kinds.key_index import KeyIndex, Keys, key_pieces
from tensorstore_ds.options import shortened, unknown_name
from tensorstore_ds.reading.columns import RaggedColumn
from tensorstore_ds.reading.store import Split, Store, open as open_store
from tensorstore_ds.regular_files import open_file, tidied

#: Files that are tables with a column of keys. Others list a key on each line.
TABLES = (".csv", ".tsv", ".parquet")
#: Bytes of a text file of keys at most.
_LIMIT = 1 << 28
_NAMED = 3  # keys in a message


def key_table(split: Split) -> RaggedColumn | None:
    """Keys of a split; None in a store without keys."""
    name = split.first(KeyField)
    return None if name is None else split.table(name)


def first_found(indexes: Mapping[int, KeyIndex], keys: Keys) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The number of the first index that has each key, and the row there, (n,) both, -1 if missing."""
    owners, rows = np.full(len(keys), -1, np.int64), np.full(len(keys), -1, np.int64)
    for i, index in indexes.items():
        found = index.find(keys)
        new = (owners < 0) & (found >= 0)
        owners[new], rows[new] = i, found[new]
    return owners, rows


class StoreKeys:
    """Finds the samples of a store by their keys, in 16 bytes per row; `places` numbers its `splits`."""

    def __init__(self, store: Store) -> None:
        tables = {name: key_table(store[name]) for name in store}
        self.splits = [*store]
        self._indexes = [KeyIndex(table) for table in tables.values() if table is not None]

    def places(self, split: str, keys: Sequence[str]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The number of the split and the row of each key, (n,) both, -1 if missing.

        A key of several splits is found in `split`, else in the first of the others.
        """
        order = sorted(range(len(self._indexes)), key=lambda i: self.splits[i] != split)
        return first_found({i: self._indexes[i] for i in order}, Keys.of([*map(key_bytes, keys)]))

    def find(self, keys: Sequence[str], split: str = "") -> list[tuple[str, int]]:
        """Split name and row of one key; the name is empty if the key is missing."""
        found = zip(*(each.tolist() for each in self.places(split, keys)), strict=True)
        return [(self.splits[i] if i >= 0 else "", row) for i, row in found]


def find_keys(
    store: str | os.PathLike[str], file: str | os.PathLike[str], *, key: str | None = None
) -> dict[str, list[int]]:
    """Find the samples whose keys a file lists, for example to pass their rows to `filter_store` or `view`.

    >>> _ = Path("hard.csv").write_text("key,loss\\ntrain/dog/1.png,2.5\\ntrain/cat/0.png,1.5\\n")
    >>> tsds.editing.find_keys("photos.tsds", "hard.csv")
    {'train': [0, 5]}

    Args:
        store: path or URL of the store.
        file: table with a column ``key``, which ends in ``.csv``, ``.tsv`` or ``.parquet``, such as a result of a query
            on the file of `write_table`. If it has a column ``split``, keys are found in these splits only. Files with
            other names list a key on each line.
        key: column with the keys, as in `add_file`.

    Returns:
        The rows by split, ascending.

    Raises:
        OptionError: no sample has a key, the table has no column of keys, or the store has no keys.
        SourceError: the file cannot be read.
        FormatError: the store is damaged.
    """
    opened = open_store(store)
    found = rows_of_file(opened, [*opened], file, key)
    return {name: found[name].tolist() for name in opened if name in found}


def rows_of_file(
    store: Store, names: Sequence[str], file: str | os.PathLike[str], column: str | None = None, after: str = ""
) -> dict[str, NDArray[np.int64]]:
    """The rows of some splits with the keys that a file lists, ascending; `column` and errors as of `find_keys`."""
    wanted = dict[str | None, set[str]]()
    for split, key in _listed(tidied(file), column):
        wanted.setdefault(split, set()).add(key)
    found: dict[str, list[NDArray[np.int64]]] = {}
    for split, keys in wanted.items():
        if split is not None and split not in names:
            raise unknown_name(str(file), "split", split, names)
        for name, rows in rows_of_keys(store, names if split is None else [split], keys, after).items():
            found.setdefault(name, []).append(rows)
    return {name: np.unique(np.concatenate(rows)) for name, rows in found.items() if any(map(len, rows))}


def _listed(path: Path, column: str | None) -> Iterator[tuple[str | None, str]]:
    """Split, if the file names it, and key of each sample in a file."""
    if path.suffix.lower() in TABLES:
        table = table_of(path, least=1)
        key, split = key_column(path, table.names, column), split_column(table.names)
        splits = repeat(None) if split is None else table.texts(split)
        yield from zip(splits, table.texts(key), strict=False)
        return
    with open_file(path, str(path), limit=_LIMIT) as file:
        data = file.read()
    try:
        lines = data.decode("utf-8-sig").split("\n")  # other ends of lines may be in a key
    except UnicodeDecodeError:
        raise OptionError(f"{path}: expected a key on each line, in UTF-8, found other bytes.") from None
    yield from ((None, line.removesuffix("\r")) for line in lines if line.strip())


def rows_of_keys(store: Store, names: Sequence[str], wanted: set[str], after: str = "") -> dict[str, NDArray[np.int64]]:
    """The rows of some splits with these keys, ascending; `after` ends the message if there is no such key."""
    field = first_of_kind(store.manifest.fields, KeyField)
    if field is None:
        raise OptionError(f"{store.path}: expected samples with keys, found none. Give `rows` instead.")
    found: dict[str, NDArray[np.int64]] = {}
    keys, missing = sorted(wanted), set(wanted)
    for name in names if wanted else ():
        rows = KeyIndex(store[name].table(field)).find(Keys.of([*map(key_bytes, keys)]))
        found[name] = np.sort(rows[rows >= 0])
        missing -= {keys[i] for i in np.flatnonzero(rows >= 0).tolist()}
    if missing:
        similar = dict[str, str]()
        for key in other_keys(store, names, {}):
            if (last := key.rpartition("/")[2]) in missing:
                similar.setdefault(last, key)
        named = [shortened(repr(key)) for key in sorted(missing)]
        more = f" and {len(named) - _NAMED:,} more" if len(named) > _NAMED else ""
        hint = next((f" There is {similar[key]!r}." for key in sorted(missing) if key in similar), "")
        what = f"found {len(named):,} that no sample has: {', '.join(named[:_NAMED])}{more}"
        message = f"`keys`: expected keys of samples, {what}.{hint}{after}"
        raise (NoSampleError if missing == wanted else OptionError)(message)
    return found


def other_keys(store: Store, names: Iterable[str], rows: Mapping[str, NDArray[np.int64]]) -> Iterator[str]:
    """The keys of some splits, without these rows."""
    for name in names:
        without = rows.get(name, np.empty(0, np.int64))
        for start, keys in key_pieces(store[name].table(first_of_kind(store.manifest.fields, KeyField) or "")):
            data, ends = keys.data.tobytes(), keys.offsets.tolist()
            places = without[slice(*without.searchsorted([start, start + len(keys)]))] - start
            for place in np.delete(np.arange(len(keys)), places).tolist():
                yield data[ends[place] : ends[place + 1]].decode("utf-8", "backslashreplace")
