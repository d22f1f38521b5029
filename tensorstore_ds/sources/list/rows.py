"""The rows of all lists of a source together: which of them repeat each other."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from tensorstore_ds.errors import Problem
from tensorstore_ds.sources.files import PackedStrings
from tensorstore_ds.sources.list.columns import unpack
from tensorstore_ds.sources.splits import find_unions


class Rows:
    """Rows in the order of reading. A million cost about 100 MB.

    Attributes:
        packed: each row as `Columns.pack` makes it.
        splits, labels: the names and texts that occur, in the order of their first occurrence.
    """

    def __init__(self) -> None:
        self.packed = PackedStrings()
        self.splits: dict[str, int] = {}
        self.labels: dict[str, int] = {}
        self._lists: dict[str, int] = {}
        self._split, self._label, self._hash, self._list, self._line = (array("q") for _ in range(5))

    def add(self, packed: str, split: str, where: str, line: int) -> None:
        """Add a row that stands on a line (from 1) of the list `where`."""
        path, label = packed.split("\0", 2)[:2]
        self.packed.extend((packed,))
        self._split.append(self.splits.setdefault(split, len(self.splits)))
        self._label.append(self.labels.setdefault(label, len(self.labels)))
        self._hash.append(hash(path))
        self._list.append(self._lists.setdefault(where, len(self._lists)))
        self._line.append(line)

    def in_split(self, split: str) -> NDArray[np.bool_]:
        """Which rows a split has: (rows,) bool."""
        chosen: NDArray[np.bool_] = np.asarray(self._split, np.int64) == self.splits[split]
        return chosen

    def of_split(self, split: str, keep: NDArray[np.bool_]) -> tuple[PackedStrings, NDArray[np.int64]]:
        """The rows of a split and, for each, the place of its label in `labels`: (n,) int64."""
        chosen = keep & self.in_split(split)
        rows = self.packed if chosen.all() else PackedStrings(self.packed[int(i)] for i in np.flatnonzero(chosen))
        return rows, np.asarray(self._label, np.int64)[chosen]

    def names(self, paths: Sequence[str]) -> NDArray[np.bool_]:
        """Which of the paths the rows name: (n,) bool."""
        return np.isin(np.array([hash(path) for path in paths], np.int64), np.asarray(self._hash))

    def unions(self) -> list[str]:
        """The splits that hold exactly what smaller ones hold together."""
        splits, hashes = np.asarray(self._split), np.asarray(self._hash)
        return list(find_unions({name: hashes[splits == i] for name, i in self.splits.items()}))

    def repeated(self, keep: NDArray[np.bool_]) -> list[tuple[int, Problem]]:
        """The rows, of those kept, whose path an earlier one has, each with its problem `duplicate-key`."""
        rows = np.flatnonzero(keep)
        hashes = np.asarray(self._hash)[rows]
        order = np.argsort(hashes, kind="stable")
        same = np.flatnonzero(hashes[order][1:] == hashes[order][:-1])
        repeated: list[tuple[int, Problem]] = []
        for first, second in sorted((int(rows[order[i]]), int(rows[order[i + 1]])) for i in same):
            path = unpack(self.packed[second])[0]
            if path == unpack(self.packed[first])[0]:  # and not only its hash
                message = f"expected each image once, found {path} in {self._place(first)} already."
                repeated.append((second, Problem(self._place(second), "duplicate-key", message)))
        return repeated

    def _place(self, row: int) -> str:
        return f"{list(self._lists)[self._list[row]]}:{self._line[row]}"
