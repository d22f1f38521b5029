"""Prepare images for a model: place, decode, augment and normalize them on its device.

Pixels of one size are gathered as they are, and batches of them are resized and augmented on the device. Other images
are placed by a decode plan, so that little more is decoded than the model sees; the rest happens on the device as well.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import nn

from tensorstore_ds.annex.augment.affine import RandomAffine
from tensorstore_ds.annex.augment.color import ColorJitter
from tensorstore_ds.annex.augment.mosaic import Mosaic
from tensorstore_ds.annex.training.options import DetectorOptions, ModelOptions, TrainOptions
from tensorstore_ds.errors import OptionError
from tensorstore_ds.format.kinds import ObjectsField
from tensorstore_ds.format.kinds.base import named
from tensorstore_ds.loading.augment.compose import Compose
from tensorstore_ds.loading.augment.fitting import Fitting, Letterbox, Resize
from tensorstore_ds.loading.augment.geometry import Geometry, RandomCrop, RandomHorizontalFlip, RandomResizedCrop
from tensorstore_ds.loading.augment.normalize import Normalize
from tensorstore_ds.loading.batches import TransformsBatches
from tensorstore_ds.loading.fields import is_decoded
from tensorstore_ds.reading.store import Split

#: Ratio of an image's side to `light`'s shift: 3 pixels for 28, 28 for 224.
SHIFT = 8
#: Smallest and largest share of an image that `strong` enlarges.
SHARES = (0.35, 1.0)
#: Of detectors: how much images are enlarged by `light` and `strong`, their largest move in shares of the image, and
#: the share of a box that must be seen.
ZOOMS = {"light": (0.8, 1.25), "strong": (0.5, 1.5)}
MOVE, VISIBLE = 0.1, 0.25
#: Color outside of the image.
GRAY = 114
#: Mean and standard deviation of ImageNet, which torchvision's models use.
PHOTOGRAPHS = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


class RandomStretchedCrop(RandomResizedCrop):
    """`RandomResizedCrop` with a `ratio` relative to the image's own, because `Resize` also stretches whole images."""

    def _ratios(self, aspects: NDArray[np.float64]) -> tuple[ArrayLike, ArrayLike]:
        return self.ratio[0] * aspects, self.ratio[1] * aspects


def train_plan(split: Split, options: TrainOptions, vit: ModelOptions) -> Compose | None:
    """The decode plan of a training split; None if its images are pixels of one size.

    ``light``: crops of 8/9 of the height and width. ``strong``: crops of at least 1/3 of the image.
    """
    if not is_decoded(split.fields["image"]):
        return None
    if isinstance(vit, DetectorOptions):
        return Compose([fitted(vit, exact=False)], seed=options.seed)
    steps: list[Geometry] = [Resize(vit.image_size, exact=False)]
    if options.augment == "strong":
        steps = [RandomStretchedCrop(vit.image_size, scale=SHARES)]
    elif options.augment == "light":
        height, width = vit.image_size
        steps = [Resize((height + height // SHIFT, width + width // SHIFT)), RandomCrop(vit.image_size)]
    return Compose(steps, seed=options.seed)


def fitted(vit: ModelOptions, *, exact: bool | None = None, gray: float = GRAY) -> Fitting:
    """The resizing of whole images to the size of a model; images with boxes keep their aspect ratio."""
    if isinstance(vit, DetectorOptions):
        return Letterbox(vit.image_size, fill=gray, exact=exact)
    return Resize(vit.image_size, exact=exact)


def gray_of(split: Split, mean: Sequence[float]) -> float:
    """The color outside of images with this mean, which it is for floating-point images, as they have any range."""
    return sum(mean) / len(mean) if is_floating(split) else GRAY


def is_floating(split: Split) -> bool:
    """Whether images are floating-point."""
    return (split.fields["image"].dtype or "").startswith("float")


def eval_plan(split: Split, vit: ModelOptions) -> Fitting | None:
    """The decode plan of an evaluation; None if images are pixels of one size."""
    return fitted(vit) if is_decoded(split.fields["image"]) else None


def train_transform(
    split: Split,
    options: TrainOptions,
    vit: ModelOptions,
    *,
    dtype: torch.dtype = torch.float32,
    fields: Collection[str] = ("objects",),
) -> Compose:
    """The transform of training batches of `fields`, ``transform(batch, rows, epoch)``, whose images plans have placed.

    ``light``: shifts by up to 1/8 of the image, brightness and contrast change by 1/5. ``strong``: enlarged crops of at
    least 1/3 of the image; brightness, contrast and saturation change by 2/5. Floating-point images outside of [0, 1]
    keep their colors. Detectors see whole images: `light` moves and scales them, `strong` also combines parts of four.
    """
    height, width = vit.image_size
    steps, normalized = list[nn.Module](), normalize(split, dtype=dtype)
    if isinstance(vit, DetectorOptions):
        gray = gray_of(split, normalized.mean)
        steps += [] if is_decoded(split.fields["image"]) else [fitted(vit, gray=gray)]
        if options.augment == "strong":
            steps.append(Mosaic(p=0.5, min_visibility=VISIBLE))
        if zoom := ZOOMS.get(options.augment):
            moves = {"interpolation": "bilinear", "fill": gray, "min_visibility": VISIBLE}
            steps.append(RandomAffine(0, (MOVE, MOVE), zoom, **moves))  # type: ignore[arg-type]
    elif not is_decoded(split.fields["image"]):
        strong = options.augment == "strong"
        steps.append(RandomStretchedCrop(vit.image_size, scale=SHARES) if strong else Resize(vit.image_size))
        if options.augment == "light":
            # Continued by the pixels at the edge: black is up to ten standard deviations away in bright, even images.
            padding = (width // SHIFT, height // SHIFT)
            steps.append(RandomCrop(vit.image_size, padding=padding, padding_mode="edge"))
    # In [0, 1] the variance is at most mean * (1 - mean) (Bhatia and Davis, 2000). Other values have no white.
    has_colors = all(std**2 <= mean * (1 - mean) for mean, std in zip(normalized.mean, normalized.std, strict=True))
    has_colors = vit.channels in (1, 3) and (has_colors or not is_floating(split))
    if has_colors and options.augment == "strong":
        steps.append(ColorJitter(0.4, 0.4, 0.4 if vit.channels == 3 else None))
    elif has_colors and options.augment == "light":
        steps.append(ColorJitter(0.2, 0.2))
    if options.flip:
        moved = "objects" in fields and named(split.fields, "objects", ObjectsField)
        steps.append(RandomHorizontalFlip.from_split(split) if moved else RandomHorizontalFlip())
    return Compose([*steps, normalized], seed=options.seed)


def eval_transform(
    split: Split, options: TrainOptions, vit: ModelOptions, *, dtype: torch.dtype = torch.float32
) -> Compose:
    """The transform of evaluation batches: resize, and normalize as in training; `split` is the training split."""
    normalized = normalize(split, dtype=dtype)
    steps = [] if is_decoded(split.fields["image"]) else [fitted(vit, gray=gray_of(split, normalized.mean))]
    return Compose([*steps, normalized], seed=options.seed)


def placed(transform: Compose, split: Split) -> TransformsBatches:
    """The transform, with the `row` of each sample (B,), and the (height, width) of its stored image, `stored`."""

    def apply(batch: Any, rows: Any, epoch: int) -> Any:
        numbers, device = np.asarray(rows), batch["image"].device
        added = {"row": torch.from_numpy(numbers), "stored": torch.from_numpy(split.image_shapes[numbers, :2].copy())}
        return {**transform(batch, numbers, epoch), **{name: value.to(device) for name, value in added.items()}}

    return apply


def normalize(split: Split, *, dtype: torch.dtype = torch.float32) -> Normalize:
    """Normalize by the split's mean and standard deviation; a constant channel is only moved to 0.

    If the store has none, because its files are gray and in color or were not decoded, use those of photographs.
    """
    channels = split.channel_moments
    if channels is None and split.fields["image"].encoding not in ("", "raw"):
        is_gray = split.image_shapes[:, 2].max() == 1
        return Normalize(*(values[1:2] if is_gray else values for values in PHOTOGRAPHS), dtype=dtype)
    if channels is None:
        raise OptionError(
            f"{split.name}: expected images of one number of channels, found none in the statistics. "
            'Convert with `color="gray"` or `color="rgb"`.'
        )
    mean, std, _ = channels
    return Normalize(mean, [deviation or 1.0 for deviation in std], dtype=dtype)
