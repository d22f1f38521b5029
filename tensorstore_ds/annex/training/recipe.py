"""The options of a run that follow from others, where nobody gives them. docs/training.md has what was measured."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping

from tensorstore_ds.annex.training.options import Augment, ModelOptions, Optimizer, TrainOptions, ViTOptions

#: Samples per batch where nobody asks for a number, and the split has so many.
BATCH_SIZE = 128
#: The same of detectors, and their learning rates at that size.
DETECTOR_BATCH_SIZE = 8
DETECTOR_RATES: Mapping[Optimizer, float] = {"adamw": 1e-3, "sgd": 1e-2}
#: The learning rate at `BATCH_SIZE` samples per step, for a model of `WIDTH`; and the largest for that width.
RATE, WIDTH, LARGEST_RATE = 2e-3, 64, 1e-2
#: Runs of fewer epochs see each image too seldom to learn it by heart: changed images only make them slower.
FEW_EPOCHS = 10


def learning_rate(samples: int, width: int) -> float:
    """The peak learning rate for the samples per step, over all ranks and accumulated batches, and a model's width.

    It grows with the square root of the samples, as is usual for Adam (Malladi et al., On the SDEs and Scaling Rules
    for Adaptive Gradient Algorithms, NeurIPS 2022), up to a limit, and falls with the square root of the width.

    >>> [learning_rate(samples, 64) for samples in (32, 128, 512, 2048, 10_000)]
    [0.001, 0.002, 0.004, 0.008, 0.01]
    >>> learning_rate(128, 256)
    0.001
    """
    rate = min(RATE * math.sqrt(samples / BATCH_SIZE), LARGEST_RATE) * math.sqrt(WIDTH / width)
    return float(f"{rate:.3g}")  # so that it can be shown and given again


def detector_rate(samples: int, optimizer: Optimizer) -> float:
    """The peak learning rate of a detector: grows with the square root of the samples, linearly with SGD.

    >>> detector_rate(32, "adamw"), detector_rate(32, "sgd")
    (0.002, 0.04)
    """
    growth = samples / DETECTOR_BATCH_SIZE
    rate = DETECTOR_RATES[optimizer] * (growth if optimizer == "sgd" else math.sqrt(growth))
    return float(f"{rate:.3g}")


def augment(epochs: int) -> Augment:
    """Strength of augmentation by number of epochs.

    >>> augment(5), augment(20)
    ('none', 'light')
    """
    return "none" if epochs < FEW_EPOCHS else "light"


def completed(options: TrainOptions, vit: ModelOptions, *, samples: int | None = None, ranks: int = 1) -> TrainOptions:
    """The options with all defaults filled in; a batch has at most the `samples` of an epoch."""
    usual_size = BATCH_SIZE if isinstance(vit, ViTOptions) else DETECTOR_BATCH_SIZE
    batch_size = options.batch_size or max(1, usual_size if samples is None else min(usual_size, samples // ranks))
    samples = batch_size * options.accumulate * ranks
    if isinstance(vit, ViTOptions):
        usual = learning_rate(samples, vit.width)
    else:
        usual = detector_rate(samples, options.optimizer)
    return dataclasses.replace(
        options,
        batch_size=batch_size,
        learning_rate=options.learning_rate or usual,
        augment=options.augment or augment(options.epochs),
    )
