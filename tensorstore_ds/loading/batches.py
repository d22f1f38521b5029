"""From gathered columns, or from samples, to the batch that a training script gets."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils import data

from tensorstore_ds.loading.collate import Collate, PackedObjects, collate_objects, pack_objects
from tensorstore_ds.loading.dataset import Batch, StoreDataset


class IndexBatch(list[int]):
    """Indices of a batch on their way to a worker, with the (seed, epoch) that random transforms follow from."""

    draw: tuple[int, int] = (0, 0)


class IndexBatches:
    """Batches of indices for torch's own machinery: tagged with (seed, epoch), from a batch on.

    Args:
        batches: torch's batch sampler, or its sampler where there is no automatic batching.
        draw: asked at the beginning of an iteration.
        start: likewise: so many batches are left out.
    """

    def __init__(self, batches: Any, draw: Callable[[], tuple[int, int]], start: Callable[[], int]) -> None:
        self._batches = batches
        self._draw = draw
        self._start = start

    def __len__(self) -> int:
        return len(self._batches)

    def __iter__(self) -> Iterator[Any]:
        draw, start = self._draw(), self._start()
        for number, batch in enumerate(self._batches):
            if number < start:
                continue
            if isinstance(batch, list):
                batch = IndexBatch(batch)
                batch.draw = draw
            yield batch


@dataclass(frozen=True)
class ColumnCollate:
    """A batch as its columns; from samples one by one, where a transform made them.

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
            columns = {name: _pinned(value) for name, value in columns.items()}
        return as_tuple(columns, self.dataset) if self.dataset.return_as == "tuple" else columns


@dataclass(frozen=True)
class SampleCollate:
    """A `collate_fn` of the user's, which gets a list of samples."""

    collate_fn: Callable[[Any], Any]

    def __call__(self, batch: Any) -> Any:
        """Collate the samples."""
        return self.collate_fn(list(batch))


@dataclass(frozen=True)
class WithRows:
    """A batch and its samples' rows, which batch transforms draw by."""

    collate: Callable[[Any], Any]

    def __call__(self, batch: Batch) -> tuple[Any, NDArray[np.int64]]:
        """Collate, and keep the rows."""
        return self.collate(batch), batch.rows


@dataclass(frozen=True)
class Transformed:
    """What others than our loader find as its `collate_fn` (Accelerate): a batch transform is applied there, too.

    Attributes:
        collate: makes the batch.
        batch_transform: is applied to it, where it was made: on the CPU.
        sampler: whoever iterates sets its epoch.
    """

    collate: Callable[[Any], Any]
    batch_transform: Callable[..., Any]
    sampler: Any

    def __call__(self, batch: Batch) -> Any:
        """Collate and transform."""
        return self.batch_transform(self.collate(batch), batch.rows, getattr(self.sampler, "epoch", 0))


def collate_samples(samples: Sequence[Any], how: Collate) -> Any:
    """Samples one by one to a batch: tensors of one shape are stacked, others listed, objects collated."""
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


def as_tuple(columns: Mapping[str, Any], dataset: StoreDataset) -> tuple[Any, ...]:
    """A batch as torchvision's: (images, labels), or (images, targets) with objects."""
    rest = dict(columns)
    image = rest.pop("image", None)
    objects = next((name for name in rest if dataset.split.fields[name].kind == "objects"), None)
    if objects is None:
        return (image, *rest.values())
    return image, rest[objects] if len(rest) == 1 else rest


def _pinned(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value if value.is_pinned() else value.pin_memory()
    if isinstance(value, dict):
        return {name: _pinned(item) for name, item in value.items()}
    return [_pinned(item) for item in value] if isinstance(value, list) else value
