"""The rows of lists in the order of reading."""

from __future__ import annotations

from array import array
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from tensorstore_ds.errors import Problem
from tensorstore_ds.format.kinds.label import UNLABELLED
from tensorstore_ds.sources.files import PackedStrings
from tensorstore_ds.sources.list.table import NO_COLUMN, join_rows


class ListRows:
    """Rows of all lists in reading order, for finding repeated ones. A million take 100 MB.

    `packed` are rows from `Columns.pack`. `splits` and `labels` are distinct names and texts by first occurrence.
    """

    def __init__(self) -> None:
        self.packed = PackedStrings()
        self.splits: dict[str, int] = {}
        self.labels: dict[str, int] = {}
        self._lists: dict[str, int] = {}
        self._split, self._label, self._hash, self._list, self._line = (array("q") for _ in range(5))

    def add(self, packed: str, split: str, where: str, line: int) -> None:
        """Add a row from line `line` (from 1) of the list `where`."""
        path, label = packed.split("\0", 2)[:2]
        self.packed.extend((packed,))
        self._split.append(self.splits.setdefault(split, len(self.splits)))
        self._label.append(self.labels.setdefault(label, len(self.labels)))
        self._hash.append(hash(path))
        self._list.append(self._lists.setdefault(where, len(self._lists)))
        self._line.append(line)

    @property
    def hashes(self) -> NDArray[np.int64]:
        """Hash of the path of each row: (rows,) int64."""
        return np.asarray(self._hash, np.int64)

    def paths(self) -> Iterator[str]:
        """Path of each row."""
        return (row.partition("\0")[0] for row in self.packed)

    def in_split(self, split: str) -> NDArray[np.bool_]:
        """Mask of the rows of a split: (rows,) bool."""
        chosen: NDArray[np.bool_] = np.asarray(self._split, np.int64) == self.splits[split]
        return chosen

    def count(self, label: str, keep: NDArray[np.bool_]) -> int:
        """Number of selected rows with a label."""
        return int(np.count_nonzero(keep & (np.asarray(self._label) == self.labels.get(label, -1))))

    def of_split(self, split: str, keep: NDArray[np.bool_]) -> tuple[PackedStrings, NDArray[np.int64]]:
        """The rows of a split, and the index of each label in `labels`: (n,) int64."""
        chosen = keep & self.in_split(split)
        rows = self.packed if chosen.all() else PackedStrings(self.packed[int(i)] for i in np.flatnonzero(chosen))
        return rows, np.asarray(self._label, np.int64)[chosen]

    def joined(self, split: str, keep: NDArray[np.bool_], firsts: NDArray[np.int64]) -> PackedStrings:
        """The rows of a split, grouped by image, in the order of the first row of each."""
        chosen = np.flatnonzero(keep & self.in_split(split))
        chosen = chosen[np.argsort(firsts[chosen], kind="stable")]
        images = np.split(chosen, np.flatnonzero(np.diff(firsts[chosen])) + 1) if len(chosen) else []
        return PackedStrings(join_rows(self.packed[row] for row in image.tolist()) for image in images)

    def firsts(self, keep: NDArray[np.bool_]) -> NDArray[np.int64]:
        """For each row, the first kept row with the same path: (rows,) int64."""
        firsts = np.arange(len(self.packed))
        rows = np.flatnonzero(keep)
        order = rows[np.argsort(self.hashes[rows], kind="stable")]
        same = np.flatnonzero(self.hashes[order][1:] == self.hashes[order][:-1])
        for before, row in zip(order[same].tolist(), order[same + 1].tolist(), strict=True):
            if self._path(before) == self._path(row):  # and not only its hash
                firsts[row] = firsts[before]
        return firsts

    def unusable(
        self,
        firsts: NDArray[np.int64],
        keep: NDArray[np.bool_],
        repeated: NDArray[np.int64],
        has_labels: bool,
        is_merged: bool,
        numbers: int,
    ) -> Iterator[tuple[int, Problem]]:
        """Rows that cannot be used, with problems: repeated ones, or objects that do not fit the others.

        `repeated` are rows of images that an earlier row has. `is_merged` allows several rows per image. `numbers` is
        the count of numbers of the object in each row, 0 if rows are images.
        """
        for row in repeated.tolist():
            first = int(firsts[row])
            if not is_merged:
                message = f"expected each image once, found {self._path(row)} in {self._place(first)} already."
                yield row, Problem(self._place(row), "duplicate-key", message)
            elif self._split[row] != self._split[first]:
                message = f"expected {self._path(row)} in one split, found another in {self._place(first)}."
                yield row, Problem(self._place(row), "duplicate-key", message)
            elif not numbers and self._label[row] != self._label[first]:
                message = f"expected one label of {self._path(row)}, found another in {self._place(first)}."
                yield row, Problem(self._place(row), "duplicate-key", message)
        if numbers and has_labels:
            unlabelled = [self.labels[text] for text in ("", NO_COLUMN, str(UNLABELLED)) if text in self.labels]
            for row in np.flatnonzero(keep & np.isin(np.asarray(self._label), unlabelled)).tolist():
                if any(self.packed[row].split("\0")[2 : 2 + numbers]):
                    message = "expected a label for the object, found none."
                    yield row, Problem(self._place(row), "list-line", message)

    def _path(self, row: int) -> str:
        return self.packed[row].partition("\0")[0]

    def _place(self, row: int) -> str:
        return f"{list(self._lists)[self._list[row]]}:{self._line[row]}"
