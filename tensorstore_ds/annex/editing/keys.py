"""The samples of a store by their keys."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from tensorstore_ds.annex.editing.tombstones import key_bytes
from tensorstore_ds.format.kinds import KeyField
from tensorstore_ds.format.kinds.key_index import KeyIndex, Keys
from tensorstore_ds.reading.columns import RaggedColumn
from tensorstore_ds.reading.store import Split, Store


def key_table(split: Split) -> RaggedColumn | None:
    """Keys of a split; None in a store without keys."""
    name = split.first(KeyField)
    return None if name is None else split.table(name)


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
        splits, rows = np.full(len(keys), -1, np.int64), np.full(len(keys), -1, np.int64)
        for i in sorted(range(len(self._indexes)), key=lambda i: self.splits[i] != split):
            left = np.flatnonzero(splits < 0)
            if not len(left):
                break
            found = self._indexes[i].find(Keys.of([key_bytes(keys[place]) for place in left.tolist()]))
            splits[left[found >= 0]], rows[left] = i, found
        return splits, rows

    def find(self, keys: Sequence[str], split: str = "") -> list[tuple[str, int]]:
        """Split name and row of one key; the name is empty if the key is missing."""
        found = zip(*(each.tolist() for each in self.places(split, keys)), strict=True)
        return [(self.splits[i] if i >= 0 else "", row) for i, row in found]
