"""A split of a store as a torch data set: sample by sample, or a whole batch with one gather a column."""

from __future__ import annotations

import hashlib
import inspect
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, overload

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch.utils.data import Dataset

from tensorstore_ds.format.schema import ArrayField
from tensorstore_ds.loading.buffers import BufferPool, torch_dtype
from tensorstore_ds.loading.collate import PackedObjects
from tensorstore_ds.loading.decode import decode_images
from tensorstore_ds.loading.samples import ReturnAs, as_sample
from tensorstore_ds.reading.columns import Column
from tensorstore_ds.reading.store import Split, open as open_store

Sample = Any
#: What a batch holds of a field: a tensor with a row a sample; objects; or a list, of keys or of images of any size.
Value = torch.Tensor | PackedObjects | list[Any]


class Batch(Sequence[Sample]):
    """Samples backed by whole columns: a sequence for any ``collate_fn``, and its columns for ours.

    Attributes:
        columns: by field, a row a sample. Images are (B, C, H, W), in channels-last memory.
        rows: (B,) int64, the samples' rows in the split.
        draw: (seed, epoch): with its row, what a sample's random transforms follow from.
    """

    def __init__(self, columns: Mapping[str, Value], rows: NDArray[np.int64], finish: Callable[..., Sample]) -> None:
        self.columns = columns
        self.rows = rows
        self.draw = (0, 0)
        self._finish = finish

    def __len__(self) -> int:
        return len(self.rows)

    @overload
    def __getitem__(self, item: int) -> Sample: ...
    @overload
    def __getitem__(self, item: slice) -> list[Sample]: ...
    def __getitem__(self, item: int | slice) -> Sample:
        """One sample: views of the batch's columns, through the data set's transform."""
        if isinstance(item, slice):
            return [self[i] for i in range(*item.indices(len(self)))]
        if not -len(self) <= item < len(self):
            raise IndexError(f"sample {item} is outside of a batch of {len(self)}")
        item %= len(self)
        sample = {name: value[item] for name, value in self.columns.items()}
        return self._finish(sample, int(self.rows[item]), self.draw)

    def part(self, start: int, stop: int) -> Batch:
        """Samples ``[start, stop)``: views."""
        columns = {name: _cut(value, start, stop) for name, value in self.columns.items()}
        part = Batch(columns, self.rows[start:stop], self._finish)
        part.draw = self.draw
        return part

    def __iter__(self) -> Iterator[Sample]:
        return (self[i] for i in range(len(self)))


def _cut(value: Value, start: int, stop: int) -> Value:
    if not isinstance(value, PackedObjects):
        return value[start:stop]
    first, last = value.offsets[[start, stop]].tolist()
    return PackedObjects(
        value.offsets[start : stop + 1] - first, {name: array[first:last] for name, array in value.values.items()}
    )


class StoreDataset(Dataset[Sample]):
    """The samples of one split of a store.

    It keeps the path, not the maps: they are opened in every process that uses it, and it pickles as its arguments.

    Args:
        path: of the store.
        split: its name.
        fields: those wanted; None for all but `size` and `key`.
        transform: called with every sample, in whatever thread or process makes it. If it takes a keyword `generator`,
            it gets a `torch.Generator` that follows from (seed, epoch, row) alone: what it draws does not depend
            on the number of threads or on the batch. torch's global generator is one for all threads.
        return_as: ``dict`` of fields, or torchvision's ``tuple``: (image, label), or (image, target) with objects.
        zero_copy: single samples alias the read-only map instead of a copy. Faster for large images, and dangerous:
            torch knows no read-only memory, and writing to such a tensor ends the process.
        sha256: the store that is meant, by its `Store.sha256`; None for whichever is there now. Every process that
            opens it later finds this one, or raises `FormatError`.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        split: str = "train",
        *,
        fields: Sequence[str] | None = None,
        transform: Callable[[Sample], Sample] | None = None,
        return_as: ReturnAs = "dict",
        zero_copy: bool = False,
        sha256: str | None = None,
    ) -> None:
        self.path = Path(path).absolute()
        self.split_name = split
        self.transform = transform
        self.return_as: ReturnAs = return_as
        self.zero_copy = zero_copy
        self.rows: NDArray[np.int64] | None = None
        self._draws = transform is not None and takes_generator(transform)
        self._split: Split | None = None
        self._sha256 = sha256
        self._pool = BufferPool()
        known = self.split.fields
        self.fields = tuple(name for name in known if name not in ("size", "key")) if fields is None else tuple(fields)
        unknown = [name for name in self.fields if name not in known]
        if unknown:
            raise KeyError(f"split {split!r} has no field {unknown[0]!r}, it has {', '.join(known)}")
        if return_as not in ("dict", "tuple"):
            raise ValueError(f"return_as: expected dict or tuple, found {return_as!r}.")

    @property
    def split(self) -> Split:
        """The split, opened in this process when first asked for."""
        if self._split is None:
            store = open_store(self.path, sha256=self._sha256)
            self._split, self._sha256 = store[self.split_name], store.sha256
        return self._split

    @property
    def classes(self) -> tuple[str, ...]:
        """Class names of the labels, or of the objects."""
        return next((f.classes for f in self.split.fields.values() if f.kind in ("label", "objects") and f.classes), ())

    def __len__(self) -> int:
        return len(self.split) if self.rows is None else len(self.rows)

    def __getitem__(self, index: int) -> Sample:
        """One sample: tensors of their own memory, unless `zero_copy`."""
        if not -len(self) <= index < len(self):
            raise IndexError(f"sample {index} is outside of [0, {len(self)})")
        if self.zero_copy:
            return self._alias(int(self.store_rows([index % len(self)])[0]))
        return self.__getitems__([index % len(self)])[0]

    def __getitems__(self, indices: ArrayLike) -> Batch:
        """A whole batch, one gather a column. Indices may bring their (seed, epoch) along, as `draw`."""
        batch = self.gather(indices, self._pool)
        batch.draw = getattr(indices, "draw", batch.draw)
        return batch

    def gather(self, indices: ArrayLike, pool: BufferPool) -> Batch:
        """A whole batch in memory of `pool`."""
        rows = self.store_rows(indices)
        columns = {name: self._column(name, rows, pool) for name in self.fields}
        return Batch(columns, rows, self.finish)

    def store_rows(self, indices: ArrayLike) -> NDArray[np.int64]:
        """Rows of the split that the data set's `indices` stand for, (n,) int64."""
        found = np.asarray(indices, np.int64)
        return found if self.rows is None else self.rows[found]

    def key(self, row: int) -> str:
        """What the sample of a row of the split is called in its source."""
        return str(self.split["key"][row]) if "key" in self.split.fields else f"row {row}"

    def subset(self, rows: ArrayLike) -> StoreDataset:
        """A data set of some samples, given by their index in this one, in that order."""
        chosen = np.asarray(rows)
        if chosen.dtype == np.bool_:
            chosen = np.flatnonzero(chosen)
        if chosen.size and (int(chosen.min()) < 0 or int(chosen.max()) >= len(self)):
            raise IndexError(f"subset: expected rows in [0, {len(self)}), found {int(chosen.min())} to {chosen.max()}")
        made = StoreDataset.__new__(StoreDataset)
        made.__setstate__(self.__getstate__())
        made.rows = self.store_rows(chosen)
        return made

    def filter(self, predicate: Callable[..., ArrayLike], *names: str) -> StoreDataset:
        """A data set of the samples for which `predicate` says so, asked once with whole columns.

        Args:
            predicate: given the columns `names`, as arrays (n, ...) or a `Ragged` of all samples; returns (n,) bool.
            names: fields; such as ``dataset.filter(lambda label: label == 3, "label")``.
        """
        rows = self.store_rows(np.arange(len(self)))
        mask = np.asarray(predicate(*(self.split[name].take(rows) for name in names)))
        if mask.shape != rows.shape or mask.dtype != np.bool_:
            raise ValueError(f"filter: expected ({len(rows)},) bool, found {mask.shape} {mask.dtype}.")
        return self.subset(mask)

    def __getstate__(self) -> dict[str, Any]:
        return {k: v for k, v in self.__dict__.items() if k not in ("_split", "_pool")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _split=None, _pool=BufferPool())

    def __repr__(self) -> str:
        return f"<StoreDataset {str(self.path)!r} {self.split_name!r}, {len(self)} samples of {', '.join(self.fields)}>"

    # --- columns

    def _column(self, name: str, rows: NDArray[np.int64], pool: BufferPool) -> Value:
        field, column = self.split.fields[name], self.split[name]
        if isinstance(field, ArrayField):
            return value_of(field, gather_rows(column, rows, pool))
        if field.kind == "objects":
            ragged = column.take(rows)
            values = {value: torch.from_numpy(array) for value, array in ragged.values.items()}
            return PackedObjects(torch.from_numpy(ragged.offsets), values)
        if field.kind == "key":
            return [column[row] for row in rows.tolist()]
        return decode_images([column[row] for row in rows.tolist()], [self.key(row) for row in rows.tolist()])

    def _alias(self, row: int) -> Sample:
        sample: dict[str, Any] = {}
        for name in self.fields:
            field = self.split.fields[name]
            if isinstance(field, ArrayField) and field.spec.shape:
                whole = torch.frombuffer(self.split[name][row], dtype=torch_dtype(field.spec.dtype))
                sample[name] = value_of(field, whole.view(1, *field.spec.shape))[0]
            else:
                sample[name] = self._column(name, np.array([row]), self._pool)[0]
        return self.finish(sample, row, (0, 0))

    def finish(self, sample: dict[str, Any], row: int, draw: tuple[int, int]) -> Sample:
        """A sample as it is asked for, through the transform; an exception there is told the sample's key."""
        finished = as_sample(sample, self.split.fields, self.return_as, wrap=self.transform is not None)
        if self.transform is None:
            return finished
        try:
            if self._draws:
                return self.transform(finished, generator=sample_generator(*draw, row))  # type: ignore[call-arg]
            return self.transform(finished)
        except Exception as error:
            error.add_note(f"in the transform of the sample {self.key(row)!r} of {self.path.name}, {self.split_name}")
            raise


def takes_generator(transform: Callable[..., Any]) -> bool:
    """Whether a transform has a parameter `generator`."""
    try:
        return "generator" in inspect.signature(transform).parameters
    except (TypeError, ValueError):  # a callable written in C tells nothing
        return False


def sample_generator(seed: int, epoch: int, row: int) -> torch.Generator:
    """A generator that follows from (seed, epoch, row), by a hash, so that neighbours have nothing in common."""
    digest = hashlib.blake2b(f"{seed} {epoch} {row}".encode(), digest_size=8).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest, "little", signed=True))


def gather_rows(column: Column, rows: NDArray[np.int64], pool: BufferPool) -> torch.Tensor:
    """Rows of a column in memory of `pool`, (n, ...)."""
    tensor, array = pool.empty(len(rows), column.spec)
    column.take(rows, out=array)
    return tensor


def value_of(field: ArrayField, rows: torch.Tensor) -> torch.Tensor:
    """Images as (B, C, H, W): a permutation, no copy, so that their memory is channels-last."""
    return rows.permute(0, 3, 1, 2) if field.kind == "image" else rows
