"""From gathered columns or samples to the batch for the training script, also in torch's worker processes."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils import data

from tensorstore_ds.loading.augment.base import OfBatches
from tensorstore_ds.loading.collate import Collate, PackedObjects, collate_objects, defer_objects, pack_objects
from tensorstore_ds.loading.crew import alone
from tensorstore_ds.loading.fields import as_detection, as_tuple
from tensorstore_ds.loading.padding import PackedPatches, Pad, PaddedImages
from tensorstore_ds.loading.samples import Batch, Samples, divided

#: Type of `batch_transform`, such as `Compose`: called with a batch, the rows of its samples in the
#: split, (B,) int64, and the epoch.
TransformsBatches = Callable[[Any, NDArray[np.int64], int], Any]


@dataclass(frozen=True)
class StoreCollate:
    """The `collate_fn` for batches of a store. It pickles, with the data set as its path, for worker processes."""

    how: Collate
    dataset: Samples
    collate_fn: Callable[[Any], Any] | None = None  #: the user's own, which gets a list of samples
    #: For other loaders, which reuse this collate_fn (Accelerate): applied where the batch is made, on the CPU.
    batch_transform: TransformsBatches | None = None
    sampler: Any = None  #: has the epoch for `batch_transform`, set by the code that iterates
    pad: Pad | None = None  #: pads or cuts images, or None to leave them as they are
    defers: bool = False  #: whether parts of a batch are `Deferred` until it is on its device, for our loader only
    keeps_rows: bool = False  #: whether our loader gets the rows of a batch, to transform it itself

    def __call__(self, batch: Any) -> Any:
        """Collate a `Batch`, or a list of samples, and transform it, except for this library's loader."""
        if isinstance(batch, Batch) and batch.is_of_loader:
            return self.for_loader(batch, [len(batch)])[0]
        collated = self.collate(batch)
        if self.batch_transform is None:
            return collated
        return self.batch_transform(collated, batch.rows, getattr(self.sampler, "epoch", 0))

    def for_loader(self, whole: Batch, lengths: Sequence[int]) -> list[Any]:
        """Divide what this library's loader gathered into batches with these lengths, and collate each.

        Each is a pair with its samples' rows if a transform follows.
        """
        if len(lengths) == 1 or not self._keeps_columns(whole):
            parts = whole.parts(lengths)
            return [(self.collate(part), part.rows) if self.keeps_rows else self.collate(part) for part in parts]
        columns = self.collate(whole)  # once, because many small batches cost more than their rows
        values = columns if isinstance(columns, tuple) else columns.values()
        batches: Iterable[Any] = zip(*(divided(value, lengths) for value in values), strict=True)
        if not isinstance(columns, tuple):
            batches = [dict(zip(columns, each, strict=True)) for each in batches]
        return list(zip(batches, divided(whole.rows, lengths), strict=True) if self.keeps_rows else batches)

    def _keeps_columns(self, batch: Batch) -> bool:
        """Whether collating returns the columns of a batch, one or more, as they are."""
        objects = any(isinstance(value, PackedObjects) for value in batch.columns.values())
        return bool(batch.columns) and self._keeps_values and not objects

    def commutes_with(self, transform: TransformsBatches) -> bool:
        """Whether transforming before collating gives the same result, so that any thread may do it."""
        return isinstance(transform, OfBatches) and transform._has_no_state and self._keeps_values

    @property
    def _keeps_values(self) -> bool:
        """Whether collating changes no images and no values of a target."""
        by_user = self.collate_fn is not None or self.dataset._by_sample
        return not by_user and self.pad is None and self.dataset.return_as != "torchvision"

    def collate(self, batch: Any) -> Any:
        """Collate a `Batch`, or a list of transformed samples."""
        if self.collate_fn is not None or self.dataset._by_sample or not isinstance(batch, Batch):
            samples = batch.finished() if isinstance(batch, Batch) else list(batch)
            if self.collate_fn is not None:
                with alone():
                    return self.collate_fn(samples)
            return collate_samples(samples, self.how) if self.pad is None else self._pad_samples(samples, self.pad)
        columns: dict[str, Any] = dict(batch.columns)
        if self.pad is not None:
            columns = self.pad(columns, self.dataset.schema, self.dataset.image_names)
        if self.dataset.return_as == "torchvision":
            return as_detection(columns, self.dataset.schema, batch.rows, self.how, defers=self.defers)
        for name, value in batch.columns.items():
            if isinstance(value, PackedObjects):
                columns[name] = (defer_objects if self.defers else collate_objects)(value, self.how)
        if batch.dropped is not None and self.dataset.return_as == "dict":
            columns["objects_dropped"] = batch.dropped
        if self.dataset.return_as == "tuple":
            return as_tuple(columns, self.dataset.schema)
        return columns if self.pad is None else _with_members(columns)

    def _pad_samples(self, samples: list[Any], pad: Pad) -> Any:
        """Collate samples with images as `PaddedImages`, in dicts by the field's name, in tuples first."""
        first, fields, images = samples[0], self.dataset.schema, self.dataset.image_names
        if isinstance(first, tuple):
            others = [name for name in self.dataset.fields if name != "image"]
            count = len(first) - len(images)
            names = others if len(others) == count else [f"value {i}" for i in range(1, count + 1)]
            columns = dict(zip([*images, *names], map(list, zip(*samples, strict=True)), strict=True))
        elif isinstance(first, Mapping) and first.keys() >= set(images):
            columns = {name: [sample[name] for sample in samples] for name in first}
        else:
            found = f"a {type(first).__name__}"
            wanted = f'collate_images="padded": expected samples with the member {images[0]}'
            raise ValueError(f"{wanted}, found {found}.")
        padded = pad(columns, fields, images)
        collated = {n: collate_samples(v, self.how) if v is columns[n] else v for n, v in padded.items()}
        return tuple(collated.values()) if isinstance(first, tuple) else _with_members(collated)


def _with_members(columns: dict[str, Any]) -> dict[str, Any]:
    """Split padded images into members `image`, `image_mask` and `image_size`, for each view, and so patches."""
    added = {
        member.replace("image", name, 1): value
        for name, images in columns.items()
        if isinstance(images, PaddedImages | PackedPatches)
        for member, value in images._asdict().items()
    }
    if not added:
        return columns
    others = {name: value for name, value in columns.items() if not isinstance(value, PaddedImages | PackedPatches)}
    if taken := [name for name in added if name in others]:
        raise ValueError(f'collate_images="padded": expected no member {taken[0]}, which is added. Rename it.')
    return {**added, **others}


def collate_samples(samples: Sequence[Any], how: Collate) -> Any:
    """Collate samples one by one: stack tensors of one shape, list others, collate objects.

    Raises ValueError if images differ only in their channels, because a batch that is a list only sometimes surprises.
    """
    first = samples[0]
    if isinstance(first, Mapping):
        if {"boxes", "oriented_boxes", "keypoints"} & first.keys():
            objects = [{name: v for name, v in sample.items() if isinstance(v, torch.Tensor)} for sample in samples]
            collated = collate_objects(pack_objects(objects), how)
            return [{**a, **b} for a, b in zip(samples, collated, strict=True)] if how == "list" else collated
        return {name: collate_samples([sample[name] for sample in samples], how) for name in first}
    if isinstance(first, tuple):
        return tuple(collate_samples(list(values), how) for values in zip(*samples, strict=True))
    if isinstance(first, torch.Tensor) and len({sample.shape for sample in samples}) > 1:
        if first.ndim == 3 and len({sample.shape[1:] for sample in samples}) == 1:
            channels = ", ".join(str(len(sample)) for sample in samples[:10])
            raise ValueError(
                f"images: expected as many channels in all of a batch, found {channels}. Convert them all "
                'to one in the `transform`, or the data set with `color="rgb"`.'
            )
        return list(samples)
    if isinstance(first, str):
        return list(samples)
    return data.default_collate(list(samples))


# --- torch's worker processes ---------------------------------------------------------------------------------------


class IndexBatch(list[int]):
    """Indices of a batch for a worker, with the (seed, epoch) for random transforms."""

    def __init__(self, indices: Iterable[int], draw: tuple[int, int]) -> None:
        super().__init__(indices)
        self.draw = draw


class Index(int):
    """Index of a sample that is loaded without a batch, with the (seed, epoch) in `draw`."""

    draw: tuple[int, int]


class PersistentBatches(Iterator[Any]):
    """The batches of persistent workers. torch reuses one iterator; `serves` says whether it still serves this."""

    def __init__(self, batches: Iterator[Any], serves: Callable[[], bool]) -> None:
        self._batches, self._serves = batches, serves

    def __next__(self) -> Any:
        if not self._serves():
            raise RuntimeError(
                "loader: expected one iterator at a time, which is all that persistent workers serve, found "
                "another that began meanwhile. Use persistent_workers=False, or a loader for each."
            )
        return next(self._batches)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["_batches"], name)


#: torch's iterators with worker processes. A forked child has copies, whose end or next epoch would end
#: or confuse the workers of the parent.
with_workers: weakref.WeakSet[Any] = weakref.WeakSet()


def _leave_to_parent() -> None:
    for iterator in list(with_workers):
        iterator._shutdown = True  # torch's own mark of an iterator whose workers have ended


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_leave_to_parent)
