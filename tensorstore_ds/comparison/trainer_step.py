"""A training step, as all ways do it: the `seed` ViT on whatever was handed out."""

from __future__ import annotations

from typing import Any

import numpy as np

import tensorstore_ds as tsds
from tensorstore_ds.comparison.feeds import Batch, Feed, Subject
from tensorstore_ds.loading.device import move
from tensorstore_ds.training.augmentation import train_transform
from tensorstore_ds.training.learner import Learner
from tensorstore_ds.training.options import TrainOptions, vit_options
from tensorstore_ds.training.tasks import task_of

#: Steps that a learning rate is scheduled over: more than are ever done.
_STEPS = 10**6


class Trainer:
    """Steps of the `seed` ViT on whatever a feed hands out.

    One step is done when it is made, for all that a model does once in its life: on a processor, memory that was never
    touched makes the first one of 1000 digits take 1.6 s instead of 0.6.

    Args:
        feed: hands out the batches.
        subject: what is loaded.
        batch_size: samples of the first step.
    """

    def __init__(self, feed: Feed, subject: Subject, batch_size: int) -> None:
        split = subject.open()
        options = TrainOptions(model="seed", augment="none", device=str(subject.device), seed=subject.seed)
        height, width, channels = split.fields[subject.fields["image"]].spec.shape  # type: ignore[union-attr]
        vit = vit_options("seed", (height, width), channels)
        self._feed = feed
        self._rows = 0
        self._transform = train_transform(split, options, vit)
        self._learner = Learner(vit, task_of(split), options, device=subject.device, steps=_STEPS)
        first = tsds.StoreDataset(subject.store, subject.split, fields=list(subject.fields.values()))
        loader = tsds.DataLoader(first, min(batch_size, len(first)), collate="packed", num_threads=1)
        self._step(move(next(iter(loader)), subject.device))

    def __call__(self, item: Any) -> int:
        """One step: the number of its samples."""
        return self._step(self._feed.batch(item))

    def _step(self, batch: Batch) -> int:
        samples = len(batch["image"])
        rows = np.arange(self._rows, self._rows + samples)
        self._rows += samples
        self._learner.train_batch(self._transform(batch, rows, 0))
        return samples
