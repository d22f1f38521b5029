"""A store as the data module of Lightning: the loaders of this library for `fit`, `validate`, `test` and `predict`."""

from __future__ import annotations

import inspect
import os
import warnings
from collections.abc import Callable
from typing import Any, Literal

from numpy.typing import ArrayLike

from tensorstore_ds.annex.adapters.framework import imported
from tensorstore_ds.loading.batches import TransformsBatches
from tensorstore_ds.loading.dataset import StoreDataset
from tensorstore_ds.loading.decoding import Decode
from tensorstore_ds.loading.loader import DataLoader
from tensorstore_ds.loading.weighted import WeightedSampler
from tensorstore_ds.options import refusal, unknown_name
from tensorstore_ds.reading.store import Split, Store, open as open_store

with imported("lightning"):
    from lightning import LightningDataModule

#: Versions of Lightning with which the tests of this module pass.
TESTED = "~=2.6"
#: Splits that are used where none is named, in the order in which they are looked for.
_USUAL = {"train": ("train",), "val": ("val", "valid", "validation"), "test": ("test",), "predict": ()}
_OF_DATASET, _OF_LOADER = (
    inspect.signature(each).parameters.keys()
    - {"self", "path", "split", "dataset", "batch_size", "shuffle", "sampler", "batch_sampler", "generator"}
    for each in (StoreDataset.__init__, DataLoader.__init__)
)
_OF_DATASET -= _OF_LOADER


class StoreDataModule(LightningDataModule):
    """Data module of a store for Lightning's `Trainer`, tested with Lightning 2.6 (`TESTED`).

    >>> data = StoreDataModule("digits.tsds", 32, val_split="test", seed=7)             # doctest: +SKIP
    >>> lightning.Trainer(max_epochs=10).fit(model, data)                               # doctest: +SKIP

    The checkpoints of the `Trainer` contain the position of the loader, so ``fit(ckpt_path=...)`` continues with the
    very next batch. With several ranks, the samples are divided among them. On a GPU, the loader copies batches to the
    device of the `Trainer` ahead of time.

    Args:
        store: path, URL or open store.
        batch_size: samples per batch and rank, of all loaders.
        train_split, val_split, test_split, predict_split: names of splits. By default ``train`` for training, one of
            ``val``, ``valid`` and ``validation`` for validation if the store has it, and ``test`` for the test.
        transform, decode, batch_transform: arguments for training, as in `StoreDataset` and `DataLoader`.
        val_transform, val_decode, val_batch_transform: arguments for validation, test and prediction.
        weights: numbers (n,) that define how often each sample of the training split is drawn, relative to the others.
            Or a function of the split that returns them, such as `class_balanced_weights`. None uses shuffled epochs.
        options: all other options of `StoreDataset` and `DataLoader`, such as `fields`, `return_as`, `seed`,
            `num_threads` and `collate`.

    Attributes:
        store: the open store.
        hparams: arguments that are numbers or names, which Lightning logs and saves in checkpoints.

    Raises:
        UnknownNameError: the store does not contain a split, or an option does not exist. It is an `OptionError`.
    """

    def __init__(
        self,
        store: str | os.PathLike[str] | Store,
        batch_size: int = 32,
        *,
        train_split: str | None = None,
        val_split: str | None = None,
        test_split: str | None = None,
        predict_split: str | None = None,
        transform: Callable[..., Any] | None = None,
        decode: Decode | Literal["device"] | None = None,
        batch_transform: TransformsBatches | None = None,
        val_transform: Callable[..., Any] | None = None,
        val_decode: Decode | Literal["device"] | None = None,
        val_batch_transform: TransformsBatches | None = None,
        weights: ArrayLike | Callable[[Split], ArrayLike] | None = None,
        **options: Any,
    ) -> None:
        super().__init__()
        for name in options:
            if name not in _OF_DATASET | _OF_LOADER:
                raise unknown_name("StoreDataModule", "option", name, sorted(_OF_DATASET | _OF_LOADER))
        self.store = store if isinstance(store, Store) else open_store(store)
        self.batch_size, self.weights, self.options = batch_size, weights, options
        splits = {"train": train_split, "val": val_split, "test": test_split, "predict": predict_split}
        for use, split in splits.items():
            if split is not None and split not in self.store:
                raise unknown_name(f"{use}_split", "split", split, self.store.splits)
        self.splits = {
            use: split or next((name for name in _USUAL[use] if name in self.store), None)
            for use, split in splits.items()
        }
        self.transforms = {use: transform if use == "train" else val_transform for use in splits}
        self._of_training = {"decode": decode, "batch_transform": batch_transform}
        self._of_evaluation = {"decode": val_decode, "batch_transform": val_batch_transform}
        if self.splits["val"] is None:  # Lightning does not validate if this method is that of the base class
            self.val_dataloader = super().val_dataloader  # type: ignore[method-assign]
        named = {f"{use}_split": split for use, split in self.splits.items()}
        values = {"store": str(self.store.place), "batch_size": batch_size, **named, **options}
        self.save_hyperparameters(
            {n: v for n, v in values.items() if isinstance(v, str | int | float)}, ignore="weights"
        )
        # The loader has threads; worker processes would replace them and be slower.
        warnings.filterwarnings("ignore", message="The '.*_dataloader' does not have many workers")

    def setup(self, stage: str) -> None:
        """Open the splits of a stage, for which Lightning calls this; raises `OptionError` if there are none.

        Errors are raised here, because Lightning 2.6 replaces the constructors of all loaders while it calls a
        ``*_dataloader`` method, and does not restore them if this raises an error.
        """
        uses = {"fit": ("train", "val"), "validate": ("val",), "test": ("test",), "predict": ("predict",)}
        for use in uses[stage]:
            name = f"{use}_dataloader"
            if getattr(getattr(self, name), "__func__", None) is getattr(StoreDataModule, name):  # not of a subclass
                self.dataset(use)

    @property
    def classes(self) -> tuple[str, ...]:
        """Class names of the labels, or of the objects."""
        return self.dataset("train").classes

    def dataset(self, use: str) -> StoreDataset:
        """Return the samples for ``train``, ``val``, ``test`` or ``predict``, before `decode` and `batch_transform`.

        Raises:
            OptionError: there is no split for this use.
        """
        split = self.splits[use]
        if split is None:
            raise refusal(f"{use}_split", f"one of {', '.join(self.store.splits)}", "none")
        options = {name: value for name, value in self.options.items() if name in _OF_DATASET}
        return StoreDataset(self.store, split, transform=self.transforms[use], **options)

    def train_dataloader(self) -> DataLoader[Any]:
        """Return a loader with shuffled batches, or with batches drawn by `weights`."""
        dataset = self.dataset("train")
        if self.weights is None:
            return self._loader(dataset, **self._of_training, shuffle=True)
        weights = self.weights(dataset.split) if callable(self.weights) else self.weights
        sampler = WeightedSampler(weights, seed=self.options.get("seed", 0))
        return self._loader(dataset, **self._of_training, sampler=sampler)

    def val_dataloader(self) -> DataLoader[Any]:
        """Return a loader with batches in order.

        If the store has no split for validation, the `Trainer` does not validate.
        """
        return self._loader(self.dataset("val"), **self._of_evaluation)

    def test_dataloader(self) -> DataLoader[Any]:
        """Return a loader with batches in order."""
        return self._loader(self.dataset("test"), **self._of_evaluation)

    def predict_dataloader(self) -> DataLoader[Any]:
        """Return a loader with batches in order."""
        return self._loader(self.dataset("predict"), **self._of_evaluation)

    def _loader(self, dataset: StoreDataset, **options: Any) -> DataLoader[Any]:
        options |= {name: value for name, value in self.options.items() if name in _OF_LOADER}
        device = None if self.trainer is None else self.trainer.strategy.root_device
        if device is not None and device.type == "cuda":
            options.setdefault("device", device)
        # By keywords alone, which Lightning can change when it makes the loader again.
        return DataLoader(dataset=dataset, batch_size=self.batch_size, **options)
