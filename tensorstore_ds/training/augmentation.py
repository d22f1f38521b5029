"""From a batch of stored images to what a model takes: augmented, resized, normalized, on its device."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn
from torchvision.transforms.v2 import functional

from tensorstore_ds.errors import OptionError
from tensorstore_ds.format.kinds import ObjectsField
from tensorstore_ds.format.statistics import channel_moments
from tensorstore_ds.loading.augment.base import Compose, Params, Rows
from tensorstore_ds.loading.augment.color import ColorJitter, Normalize
from tensorstore_ds.loading.augment.geometry import RandomCrop, RandomHorizontalFlip, RandomResizedCrop
from tensorstore_ds.reading.store import Split
from tensorstore_ds.seeding import Bits
from tensorstore_ds.training.options import TrainOptions, ViTOptions

#: Sides of an image to each pixel of `light`'s shift: 3 pixels of 28, 28 of 224.
SHIFT = 8


class Resize(nn.Module):
    """Batches brought to one (height, width), bilinear and antialiased, with boxes and keypoints."""

    def __init__(self, size: tuple[int, int]) -> None:
        super().__init__()
        self.size = size

    def forward(self, batch: Mapping[str, Any], rows: Rows | None = None, epoch: int | None = None) -> dict[str, Any]:
        """The batch resized; `rows` and `epoch` are not needed."""
        images = batch["image"]
        height, width = images.shape[-2:]
        if (height, width) == self.size:
            return dict(batch)
        resized = {**batch, "image": functional.resize(images, list(self.size), antialias=True)}
        if "objects" in batch:
            zoom = torch.tensor([self.size[1] / width, self.size[0] / height], dtype=torch.float32)
            objects = resized["objects"] = dict(batch["objects"])
            for name, factor in {"boxes": zoom.repeat(2), "keypoints": zoom}.items():
                if name in objects:
                    objects[name] = objects[name] * factor.to(objects[name].device, non_blocking=True)
        return resized

    def extra_repr(self) -> str:
        """What it was made with."""
        return f"size={self.size}"


class RandomStretchedCrop(RandomResizedCrop):
    """`RandomResizedCrop` whose `ratio` is relative to the image's own: `Resize` stretches whole images, too."""

    def make_params(self, keys: Bits, size: tuple[int, int] | torch.Size) -> Params:
        """As `RandomResizedCrop`."""
        aspect = size[1] / size[0]
        ratio = (self.ratio[0] * aspect, self.ratio[1] * aspect)
        return RandomResizedCrop(self.size, self.scale, ratio).make_params(keys, size)


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
