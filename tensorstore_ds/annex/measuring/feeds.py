"""The ways of loading, each set up as its own documentation advises.

torch's DataLoader keeps its workers between epochs, and pins its batches if there is a GPU, so that copies do not wait.
All ways deliver shuffled batches of uint8 images with their labels or objects.
"""

from __future__ import annotations

import functools
import gc
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch.utils import data
from torch.utils.data import BatchSampler, RandomSampler, TensorDataset

from tensorstore_ds.annex.measuring.bench_results import Way
from tensorstore_ds.annex.measuring.delivery import Columns
from tensorstore_ds.annex.measuring.files import open_files
from tensorstore_ds.annex.measuring.system import drop_files
from tensorstore_ds.annex.training.crops import How, Size, decode_plan, how_of
from tensorstore_ds.errors import ResidencyError
from tensorstore_ds.loading.augment.compose import Compose
from tensorstore_ds.loading.batches import collate_samples
from tensorstore_ds.loading.collate import PackedObjects, collate_objects, pack_objects
from tensorstore_ds.loading.dataset import StoreDataset
from tensorstore_ds.loading.device import move
from tensorstore_ds.loading.loader import DataLoader
from tensorstore_ds.machine import memory_limit
from tensorstore_ds.page_cache.residency import evict
from tensorstore_ds.reading.columns import Column
from tensorstore_ds.reading.store import Split, open as open_store

Batch = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Subject:
    """What to load, and the device."""

    store: str  #: Its path.
    split: str
    fields: Mapping[str, str]  #: Name of the field of each kind: ``image``, and ``label`` or ``objects``, if any.
    device: torch.device  #: Where batches shall arrive.
    raw: str | None  #: The source, if it is known.
    scratch: str  #: A folder for links.
    memory: int | None  #: Bytes that a copy in memory may take; None: what this process may use.
    seed: int  #: Of orders.
    image_size: Size | None = None  #: Of crops; None: images are loaded as they are stored.
    crop: Literal["random", "center"] = "random"  #: Which part of an image they are.

    @property
    def plan(self) -> Compose | None:
        """The decode plan."""
        return decode_plan(self.image_size, self.how, seed=self.seed)

    @property
    def how(self) -> How:
        """How images are resized."""
        return how_of(self.crop, objects="objects" in self.fields)

    def open(self) -> Split:
        """Open the split anew, so that its maps end with it."""
        return open_store(self.store)[self.split]


class Feed(ABC):
    """One way to load: opened once, then a loader for each batch size."""

    #: What reads, where the way leaves it open.
    reader = ""
    dataset: Any = None

    @property
    def samples(self) -> int:
        """Number of samples of an epoch."""
        return len(self.dataset)

    def open(self) -> None:
        """Do the setup before the first epoch."""
        if self.dataset is None:
            self.dataset = self._dataset()

    def close(self) -> None:
        """Close all files and maps."""
        self.dataset = None
        gc.collect()

    @abstractmethod
    def _dataset(self) -> Any: ...

    @abstractmethod
    def loader(self, batch_size: int) -> Iterable[Any]:
        """A loader, each iteration of which is a shuffled epoch."""

    @abstractmethod
    def count(self, item: Any) -> int:
        """Number of samples in a batch of the loader, once it is on the device."""

    @abstractmethod
    def columns(self, item: Any, *, pixels: bool, boxes: bool) -> Columns:
        """A batch of the loader as columns for `delivery.marks_of`."""


class SplitFeed(Feed):
    """A way to load a split of a store, or its source."""

    #: Makes a batch of samples with objects; none is needed where they are padded.
    collate: Any = None

    def __init__(self, way: Way, subject: Subject) -> None:
        self.way = way
        self.subject = subject

    def batch(self, item: Any) -> Batch:
        """A batch of the loader as a dict by field on the device, with packed objects."""
        names = [self.subject.fields[kind] for kind in ("image", "label", "objects") if kind in self.subject.fields]
        named = dict(item) if isinstance(item, Mapping) else dict(zip(names, self._values(item), strict=True))
        moved: Batch = move(named, self.subject.device)
        return moved

    def _values(self, item: Any) -> Sequence[Any]:
        """The existing ones of image, label and objects, in this order."""
        return item if isinstance(item, list | tuple) else [item]

    def count(self, item: Any) -> int:
        return len(self.batch(item)[self.subject.fields["image"]])

    def columns(self, item: Any, *, pixels: bool, boxes: bool) -> Columns:
        batch, fields = self.batch(item), self.subject.fields
        images = batch[fields["image"]]
        columns = {"image": images.permute(0, 2, 3, 1).cpu().numpy() if pixels else np.empty(len(images))}
        if "label" in fields:
            columns["label"] = batch[fields["label"]].cpu().numpy()
        if "objects" in fields:
            objects = batch[fields["objects"]]
            names = ("offsets", "labels", "boxes") if boxes else ("offsets", "labels")
            columns.update({name: objects[name].cpu().numpy() for name in names if name in objects})
        return columns

    def evict(self) -> int | None:
        """Evict the files from the page cache; returns the bytes that stay, None if unknown."""
        fields = list(self.subject.fields.values())
        return evict(open_store(self.subject.store), splits=self.subject.split, fields=fields).left

    def loader(self, batch_size: int) -> Iterable[Any]:
        """torch's loader, which has no collate function for objects."""
        workers = self.way.workers
        return data.DataLoader(
            self.dataset,
            batch_size,
            shuffle=True,
            num_workers=workers,
            collate_fn=self.collate if "objects" in self.subject.fields else None,
            pin_memory=self.subject.device.type == "cuda",
            persistent_workers=workers > 0,
        )


def collate_files(samples: list[Any]) -> tuple[Any, ...]:
    """Collate samples of files: images and labels stacked, objects packed."""
    columns = list(zip(*samples, strict=True))
    stacked = [data.default_collate(list(column)) for column in columns[:-1]]
    return (*stacked, collate_objects(pack_objects(columns[-1]), "packed"))


class FilesFeed(SplitFeed):
    """The source files, through torchvision."""

    collate = staticmethod(collate_files)

    def _dataset(self) -> Any:
        if self.subject.raw is None:
            raise ValueError("`raw`: expected a folder, found None.")
        subject, store = self.subject, open_store(self.subject.store)
        paths = Path(self.subject.raw), Path(subject.scratch)
        files = open_files(
            store, store[subject.split], subject.fields, *paths, size=subject.image_size, how=subject.how
        )
        self.reader, self.folder = files.reader, files.folder
        return files.dataset

    def evict(self) -> int | None:
        self.open()
        self.close()
        return drop_files(self.folder)


class TensorsFeed(SplitFeed):
    """A TensorDataset of all samples: images (N, C, H, W); objects padded to the largest number in an image."""

    def _dataset(self) -> TensorDataset:
        split, fields = self.subject.open(), self.subject.fields
        field = split.fields[fields["image"]]
        if self.subject.image_size is not None:
            raise ResidencyError("expected pixels of one size to hold, found crops, which differ in each epoch")
        if field.one_shape is None:
            raise ResidencyError(f"expected images kept as pixels of one size, found {field.describe()}")
        needed, limit = tensors_nbytes(split, fields), self.subject.memory
        if limit is None:
            # The store has to stay in the page cache beside it, or the other ways would be measured on a disk.
            limit = memory_limit() - split[fields["image"]].nbytes
        if needed > limit:
            raise ResidencyError(f"expected {max(0, limit):,} bytes at most, found {needed:,}: it does not fit")
        tensors = [copy_of_images(split.column(fields["image"]))]
        rows = np.arange(len(split))
        if "label" in fields:
            tensors.append(torch.from_numpy(split.column(fields["label"]).take(rows)))
        self._plain, self._names = len(tensors), tuple[str, ...]()
        if "objects" in fields:
            objects = split.table(fields["objects"]).take(rows)
            values = {name: torch.from_numpy(value) for name, value in objects.values.items()}
            padded = collate_objects(PackedObjects(torch.from_numpy(objects.offsets), values), "padded")
            self._names = tuple(padded)
            tensors += padded.values()
        return TensorDataset(*tensors)

    def loader(self, batch_size: int) -> Iterable[Any]:
        if self.way.name != "tensors-whole":
            return super().loader(batch_size)
        # As torch's page has it under "Disable automatic batching".
        sampler = BatchSampler(RandomSampler(self.dataset), batch_size, drop_last=False)
        pinned = self.subject.device.type == "cuda"
        return data.DataLoader(self.dataset, batch_size=None, sampler=sampler, pin_memory=pinned)

    def _values(self, item: Any) -> Sequence[Any]:
        plain, padded = item[: self._plain], dict(zip(self._names, item[self._plain :], strict=True))
        return [*plain, unpad(padded)] if padded else plain


class PlainFeed(SplitFeed):
    """The store, through torch's DataLoader."""

    collate = staticmethod(functools.partial(collate_samples, how="packed"))

    def _dataset(self) -> StoreDataset:
        subject = self.subject
        fields = list(subject.fields.values())
        return StoreDataset(subject.store, subject.split, fields=fields, decode=subject.plan)


class StoreFeed(PlainFeed):
    """The store, through this library's DataLoader."""

    def loader(self, batch_size: int) -> Iterable[Any]:
        device = self.subject.device
        return DataLoader(
            self.dataset,
            batch_size,
            shuffle=True,
            collate="packed",
            device=device if device.type == "cuda" else None,
            residency="device" if self.way.group == "device" else "page-cache",
            seed=self.subject.seed,
        )


FEEDS: Mapping[str, type[SplitFeed]] = {
    "files": FilesFeed,
    "tensors": TensorsFeed,
    "plain": PlainFeed,
    **dict.fromkeys(("store", "device"), StoreFeed),
}


def unpad(padded: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Packed objects from padded ones with a ``mask`` (B, N)."""
    mask = padded["mask"]
    offsets = torch.nn.functional.pad(mask.sum(1).cumsum(0), (1, 0))
    return {"offsets": offsets, **{name: value[mask] for name, value in padded.items() if name != "mask"}}


def tensors_nbytes(split: Split, fields: Mapping[str, str]) -> int:
    """Bytes of a `TensorsFeed`'s tensors."""
    total = sum(split[fields[kind]].nbytes for kind in ("image", "label") if kind in fields)
    if "objects" in fields:
        objects = split.table(fields["objects"])
        most = int(np.diff(objects.offsets).max(initial=0))
        total += len(split) * most * (1 + sum(value.spec.row_nbytes for value in objects.values.values()))
    return total


def copy_of_images(images: Column) -> torch.Tensor:
    """Copy images (N, H, W, C) to (N, C, H, W) in pieces, so that memory holds one copy, not two."""
    samples, height, width, channels = images.shape
    copy = torch.empty((samples, channels, height, width), dtype=torch.from_numpy(images[:1].copy()).dtype)
    for start in range(0, samples, 1000):
        piece = torch.from_numpy(images[start : start + 1000].copy())
        copy[start : start + 1000] = piece.permute(0, 3, 1, 2)
    return copy
