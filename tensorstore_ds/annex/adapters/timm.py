"""A store for timm: a data set for its `create_loader`, and a loader that applies its transforms in threads.

timm has no registry of data sets, so `timm.data.create_dataset` knows no store by name. In its `train.py`, replace the
two calls of `create_dataset` by `StoreImages`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal

from torch import Tensor
from torch.utils.data import Sampler

from tensorstore_ds.annex.adapters.framework import imported
from tensorstore_ds.format.kinds import LabelField
from tensorstore_ds.format.kinds.base import first_of_kind
from tensorstore_ds.loading.dataset import StoreDataset
from tensorstore_ds.loading.loader import DataLoader
from tensorstore_ds.options import refusal
from tensorstore_ds.reading.store import Store

with imported("timm"):
    from timm import data
    from timm.data.loader import PrefetchLoader

#: Versions of timm with which the tests of this module pass.
TESTED = "~=1.0.31"


class StoreImages(StoreDataset):
    """Data set of (image, label) pairs for timm's own loader, tested with timm 1.0.31 (`TESTED`).

    Samples are equal to samples of timm's `ImageDataset` over the same files: PIL images before the transform, which
    timm's `create_loader` sets, and class indices.

    >>> loader = timm.data.create_loader(StoreImages("photos.tsds"), 224, 32, is_training=True)    # doctest: +SKIP

    Args:
        path: path, URL or open store.
        split: name of the split.
        input_img_mode: as in timm's `ImageDataset`. ``RGB`` converts gray images to RGB. ``L`` is for gray images.
        options: `fields`, `decode`, `on_error` and other options of `StoreDataset`. If the store has several fields of
            labels, `fields` must name the image and one of them.
    """

    def __init__(
        self,
        path: str | os.PathLike[str] | Store,
        split: str = "train",
        *,
        input_img_mode: Literal["RGB", "L"] = "RGB",
        **options: Any,
    ) -> None:
        super().__init__(path, split, **{"return_as": "tuple", "as_pil": True, "transform_of": "image", **options})
        self.input_img_mode = input_img_mode
        if first_of_kind({name: self.schema[name] for name in self.fields}, LabelField) is None:
            raise refusal("fields", "an image and its label, for a classifier", ", ".join(self.fields))

    def finish(self, sample: dict[str, Any], row: int, seed: Callable[[], int]) -> Any:
        """Convert a gray image to RGB if required, and finish the sample as `StoreDataset` does."""
        channels, wanted = len(sample["image"]), len(self.input_img_mode)
        if channels == 1 < wanted:
            sample["image"] = sample["image"].expand(wanted, -1, -1)
        elif channels != wanted:
            raise refusal("input_img_mode", f"images of {wanted} channels for {self.input_img_mode}", channels)
        return super().finish(sample, row, seed)


class StoreLoader(PrefetchLoader):
    """timm's `PrefetchLoader` over a `DataLoader` of this library, with the settings of `prefetching`.

    Batches are (images, targets) on the device. They are normalized there, with timm's random erasing. The position can
    be saved.
    """

    def __init__(self, prefetching: PrefetchLoader, loader: DataLoader[Any]) -> None:
        self.__dict__.update(vars(prefetching), loader=loader)

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Batches of an epoch. timm's own iterator reads one batch more than it returns, so its position is wrong."""
        for images, targets in self.loader:
            images, targets = images.to(self.device), targets.to(self.device)
            images = images.to(self.img_dtype).sub_(self.mean).div_(self.std)
            yield images if self.random_erasing is None else self.random_erasing(images), targets

    @property
    def mixup_enabled(self) -> bool:
        """Whether a `FastCollateMixup` mixes images. It can be set, as timm's `train.py` does for the last epochs."""
        return bool(getattr(self.loader.collate_fn.collate_fn, "mixup_enabled", False))

    @mixup_enabled.setter
    def mixup_enabled(self, enabled: bool) -> None:
        if hasattr(self.loader.collate_fn.collate_fn, "mixup_enabled"):
            self.loader.collate_fn.collate_fn.mixup_enabled = enabled

    def state_dict(self) -> dict[str, Any]:
        """Return the position, as `DataLoader.state_dict`."""
        return self.loader.state_dict()  # type: ignore[no-any-return]

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue with the batch after this position, as `DataLoader.load_state_dict`."""
        self.loader.load_state_dict(state)


def create_loader(
    store: str | os.PathLike[str] | Store | StoreDataset,
    split: str,
    input_size: int | tuple[int, int] | tuple[int, int, int],
    batch_size: int,
    is_training: bool = False,
    *,
    sampler: Sampler[int] | None = None,
    num_threads: int | None = None,
    **options: Any,
) -> StoreLoader | DataLoader[Any]:
    """timm's `create_loader` for a split of a store, tested with timm 1.0.31 (`TESTED`).

    timm creates the transform, the sampler, the collate function and the normalization. Threads of this library read,
    transform and collate. timm's transforms use global random generators. With 1 thread (``num_threads=1``) and equal
    seeds, batches are identical to timm's loader without workers. With more threads, the order of the random numbers is
    not fixed.

    >>> loader = create_loader("photos.tsds", "train", 224, 32, is_training=True)    # doctest: +SKIP

    Args:
        store: path, URL, open store, or a `StoreImages` of the split.
        split: name of the split.
        input_size, batch_size, is_training: as in timm.
        sampler: sampler to use instead of timm's sampler, such as a `WeightedSampler`, or a `ShuffleSampler`, whose
            seed gives an interrupted run the same later epochs.
        num_threads: see `DataLoader`.
        options: options of timm's `create_loader`: transforms, `collate_fn`, `mean`, `std`, `device`, `distributed`,
            `re_prob` and others. `num_workers` starts worker processes instead of threads. Without `use_prefetcher`,
            the result is a `DataLoader`, and images are normalized on the CPU.

    Raises:
        OptionError: an option changes the data set (`num_aug_splits`, `input_size_choices`).
    """
    for name in ("num_aug_splits", "input_size_choices"):
        if options.get(name):
            found = f"{options[name]}: use `timm.data.create_loader` with StoreImages(store, split)"
            raise refusal(name, "no value, because timm replaces the data set", found)
    dataset = store if isinstance(store, StoreDataset) else StoreImages(store, split)
    options = {"num_workers": 0, **options}
    theirs = data.create_loader(dataset, input_size, batch_size, is_training, **options)
    prefetches = isinstance(theirs, PrefetchLoader)
    plain = theirs.loader if prefetches else theirs
    ours: DataLoader[Any] = DataLoader(
        dataset,
        batch_size,
        sampler=plain.sampler if sampler is None else sampler,
        drop_last=plain.drop_last,
        collate_fn=plain.collate_fn,
        num_workers=plain.num_workers,
        worker_init_fn=plain.worker_init_fn,
        persistent_workers=plain.persistent_workers,
        num_threads=num_threads,
        device=theirs.device if prefetches else None,
    )
    return StoreLoader(theirs, ours) if prefetches else ours
