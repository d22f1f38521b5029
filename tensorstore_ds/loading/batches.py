"""From gathered columns, or from samples, to the batch that a training script gets."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils import data
from torch.utils.data import Dataset

from tensorstore_ds.loading.collate import Collate, PackedObjects, collate_objects, map_tensors, pack_objects
from tensorstore_ds.loading.dataset import Batch, StoreDataset
from tensorstore_ds.loading.fields import as_tuple


class TransformsBatches(Protocol):
    """What `DataLoader` takes as `batch_transform`, such as `Compose`."""

    def __call__(self, batch: Any, rows: NDArray[np.int64], epoch: int, /) -> Any:
        """Transform a batch of the samples in `rows` of the split, (B,) int64."""


@dataclass(frozen=True)
class ColumnCollate:
    """A batch as its columns; or of samples one by one, where a transform made them.

    Attributes:
        how: the shape of objects.
        dataset: whose batches these are; it pickles as its path, so that this can go to worker processes.
        pinned: whether small columns, which were not gathered into page-locked memory, are copied there.
    """

    how: Collate
    dataset: StoreDataset
    pinned: bool = False

    def __call__(self, batch: Any) -> Any:
        """Collate a `Batch`, or a list of samples."""
        if not isinstance(batch, Batch) or self.dataset.transform is not None:
            return collate_samples(list(batch), self.how)
        columns = {
            name: collate_objects(value, self.how) if isinstance(value, PackedObjects) else value
            for name, value in batch.columns.items()
        }
        if self.pinned:
            columns = map_tensors(columns, lambda tensor: tensor if tensor.is_pinned() else tensor.pin_memory())
        return as_tuple(columns, self.dataset.split.fields) if self.dataset.return_as == "tuple" else columns


@dataclass(frozen=True)
class SampleCollate:
    """A `collate_fn` of the user's, which gets a list of samples."""

    collate_fn: Callable[[Any], Any]

    def __call__(self, batch: Any) -> Any:
        """Collate the samples."""
        return self.collate_fn(list(batch))


@dataclass(frozen=True)
class Transformed:
    """What others than our loader see as its `collate_fn` (Accelerate): a batch transform is applied there, too.

    Attributes:
        collate: makes the batch.
        batch_transform: is applied to it where it was made: on the CPU.
        sampler: whoever iterates sets its epoch.
    """

    collate: Callable[[Any], Any]
    batch_transform: TransformsBatches
    sampler: Any

    def __call__(self, batch: Batch) -> Any:
        """Collate and transform."""
        return self.batch_transform(self.collate(batch), batch.rows, getattr(self.sampler, "epoch", 0))


def collate_for(
    dataset: Dataset[Any], collate_fn: Callable[[Any], Any] | None, how: Collate, *, pinned: bool
) -> Callable[[Any], Any] | None:
    """What collates a data set's batches; None: torch's own."""
    if not isinstance(dataset, StoreDataset):
        return collate_fn
    if isinstance(collate_fn, Transformed):  # of a loader that Lightning makes again
        collate_fn = collate_fn.collate
    if isinstance(collate_fn, ColumnCollate | SampleCollate):
        return collate_fn
    return ColumnCollate(how, dataset, pinned) if collate_fn is None else SampleCollate(collate_fn)


def collate_samples(samples: Sequence[Any], how: Collate) -> Any:
    """A batch of samples one by one: tensors of one shape are stacked, others listed, objects collated."""
    first = samples[0]
    if isinstance(first, Mapping):
        if {"boxes", "keypoints"} & first.keys():
            return collate_objects(pack_objects(list(samples)), how)
        return {name: collate_samples([sample[name] for sample in samples], how) for name in first}
    if isinstance(first, tuple):
        return tuple(collate_samples(list(values), how) for values in zip(*samples, strict=True))
    if isinstance(first, str) or (isinstance(first, torch.Tensor) and len({s.shape for s in samples}) > 1):
        return list(samples)
    return data.default_collate(list(samples))
