"""From a batch of stored images to what a model takes: augmented, resized, normalized, on its device."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray
from torch import nn

from tensorstore_ds.errors import OptionError
from tensorstore_ds.format.kinds import ObjectsField
from tensorstore_ds.format.statistics import channel_moments
from tensorstore_ds.loading.augment.base import Compose
from tensorstore_ds.loading.augment.color import ColorJitter, Normalize
from tensorstore_ds.loading.augment.geometry import RandomCrop, RandomHorizontalFlip, RandomResizedCrop, Resize
from tensorstore_ds.reading.store import Split
from tensorstore_ds.training.options import TrainOptions, ViTOptions

#: Sides of an image to each pixel of `light`'s shift: 3 pixels of 28, 28 of 224.
SHIFT = 8


class RandomStretchedCrop(RandomResizedCrop):
    """`RandomResizedCrop` whose `ratio` is relative to the image's own: `Resize` stretches whole images, too."""

    def _ratios(self, aspects: NDArray[np.float64]) -> tuple[ArrayLike, ArrayLike]:
        return self.ratio[0] * aspects, self.ratio[1] * aspects


def train_transform(split: Split, options: TrainOptions, vit: ViTOptions) -> Compose:
    """What batches of a training split go through: ``transform(batch, rows, epoch)``.

    ``light``: shifted by up to an eighth of the image, and brightness and contrast changed by a fifth. ``strong``:
    parts of a third of the image or more, enlarged; brightness, contrast and saturation changed by two fifths.
    """
    height, width = vit.image_size
    color = vit.channels in (1, 3)
    steps: list[nn.Module] = []
    if options.augment == "strong":
        steps.append(RandomStretchedCrop(vit.image_size, scale=(0.35, 1.0)))
        steps += [ColorJitter(0.4, 0.4, 0.4 if vit.channels == 3 else None)] if color else []
    else:
        steps.append(Resize(vit.image_size))
        if options.augment == "light":
            # Continued by the pixels at the edge: black is up to ten standard deviations away in bright, even images.
            padding = (width // SHIFT, height // SHIFT)
            steps.append(RandomCrop(vit.image_size, padding=padding, padding_mode="edge"))
            steps += [ColorJitter(0.2, 0.2)] if color else []
    if options.flip:
        has_objects = isinstance(split.fields.get("objects"), ObjectsField)
        steps.append(RandomHorizontalFlip.from_split(split) if has_objects else RandomHorizontalFlip())
    return Compose([*steps, normalize(split)], seed=options.seed)


def eval_transform(split: Split, options: TrainOptions, vit: ViTOptions) -> Compose:
    """What batches of an evaluation go through: resized, and normalized as in training; `split` is that of training."""
    return Compose([Resize(vit.image_size), normalize(split)], seed=options.seed)


def normalize(split: Split) -> Normalize:
    """By the split's mean and standard deviation; a channel that is constant is only moved to 0."""
    channels = channel_moments(split.statistics)
    if channels is None:  # the store keeps none of images with different numbers of channels
        raise OptionError(
            f"{split.name}: expected images of one number of channels, found none in the statistics. "
            'Convert with `color="gray"` or `color="rgb"`.'
        )
    mean, std, _ = channels
    return Normalize(mean, [deviation or 1.0 for deviation in std])
