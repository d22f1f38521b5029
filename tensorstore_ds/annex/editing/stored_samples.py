"""The samples of a store as a source, so that they can be converted once more."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from tensorstore_ds.conversion.blocks import raw_path
from tensorstore_ds.conversion.plan import block_rows
from tensorstore_ds.conversion.shard_writer import COPY_NBYTES
from tensorstore_ds.format.kinds import KeyField, MaskField, ObjectsField
from tensorstore_ds.format.kinds.base import first_of_kind, of_kind
from tensorstore_ds.reading.columns import Column, array_columns
from tensorstore_ds.reading.store import Store
from tensorstore_ds.reading.stored_images import netpbm_pixels
from tensorstore_ds.sources.base import Contents, Reference, Sample, Source, SourceOptions


class StoredSamples(Source):
    """The images of a store with the `moved` fields, objects and masks that are transformed with them.

    A reference is a row. The store pickles as its path, and so does this.
    """

    name: ClassVar[str] = "store"
    is_audited: ClassVar[bool] = False

    def __init__(self, store: Store, moved: Collection[str]) -> None:
        super().__init__(store.path, SourceOptions())
        self._store = store
        self._moved = tuple(moved)
        self._piece: _Piece | None = None

    def scan(self) -> Contents:
        """All rows of all splits, and the `moved` fields."""
        fields = {name: self._store.manifest.fields[name] for name in self._moved}
        return Contents(fields, {name: range(len(self._store[name])) for name in self._store})

    def read(self, split: str, reference: Reference) -> Sample:
        """Read one sample: its image as file bytes, or as pixels."""
        row = int(reference)
        if self._piece is None or not self._piece.has(split, row):
            self._piece = _Piece(self._store, split, row, self._moved)
        return self._piece.sample(row)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_piece": None}


class _Piece:
    """Consecutive rows of a split, read at once because a compressed chunk has many rows."""

    def __init__(self, store: Store, split: str, row: int, moved: Collection[str]) -> None:
        self._name, self._split = split, store[split]
        fields, image = self._split.fields, self._split["image"]
        self._start = row
        self._stop = min(row + block_rows(image.nbytes // len(self._split)), len(self._split))
        keys = first_of_kind(fields, KeyField)
        self._keys = None if keys is None else self._split[keys][self._start : self._stop]
        # Files, and pixels of differing sizes, are never compressed; they are read one by one.
        self._images = image[self._start : self._stop] if isinstance(image, Column) else None
        self._objects = {
            name: self._split.table(name).take(np.arange(self._start, self._stop))
            for name in of_kind(fields, ObjectsField)
            if name in moved
        }
        self._masks = {
            name: self._split.column(name)[self._start : self._stop]
            for name in of_kind(fields, MaskField)
            if name in moved
        }

    def has(self, split: str, row: int) -> bool:
        """Whether a row is in the piece."""
        return split == self._name and self._start <= row < self._stop

    def sample(self, row: int) -> Sample:
        """One sample of the piece."""
        i = row - self._start
        image: Any = self._split["image"][row] if self._images is None else self._images[i]
        if isinstance(image, bytes):
            pixels = netpbm_pixels(image)
            image = image if pixels is None else pixels
        key = f"{self._name}/{row:05d}" if self._keys is None else self._keys[i]
        objects: dict[str, Any] | None = None
        for name, table in self._objects.items():
            objects = {n: values[table.offsets[i] : table.offsets[i + 1]] for n, values in table.values.items()}
            stored = self._split.table(name)
            first, last = int(stored.offsets[row]), int(stored.offsets[row + 1])
            objects |= {value: lists[first:last] for value, lists in stored.lists.items()}
        return Sample(key, image, objects=objects, masks={name: mask[i] for name, mask in self._masks.items()})


def copy_arrays(store: Store, split: str, index: int, fields: Iterable[str], folder: Path) -> None:
    """Write the bytes of all arrays of some fields, uncompressed, to where `complete_shard` expects them."""
    for field in fields:
        for array, column in array_columns(field, store[split][field]).items():
            path = raw_path(folder, array)
            path.parent.mkdir(parents=True, exist_ok=True)
            first, last = column.starts[index : index + 2].tolist()
            step = max(1, COPY_NBYTES // max(1, column.spec.row_nbytes))
            with path.open("wb") as file:
                for start in range(first, last, step):
                    file.write(column[start : min(start + step, last)].tobytes())
