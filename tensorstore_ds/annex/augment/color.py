"""Batch transforms that change only colors."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from functools import partial

import numpy as np
import torch
from torch import Tensor

from tensorstore_ds.annex.augment.chosen import change_some
from tensorstore_ds.annex.augment.tones import SATURATION, autocontrast, blend, equalize, grayscale, posterize, solarize
from tensorstore_ds.loading.augment.arguments import Range, limits, number, probability
from tensorstore_ds.loading.augment.base import BatchTransform, Params, Size
from tensorstore_ds.loading.augment.pixels import in_one_operation
from tensorstore_ds.loading.augment.values import white_of
from tensorstore_ds.loading.buffers import BufferPool, on_device
from tensorstore_ds.options import refusal
from tensorstore_ds.seeding import Bits, uniforms


class ColorJitter(BatchTransform):
    """Change brightness, contrast, saturation and hue of each image, in a random order for each image.

    This is torchvision's `ColorJitter`. Brightness, contrast and saturation blend the image with a gray image,
    ``factor * image + (1 - factor) * gray``, where gray is black, the mean gray of the image, or the gray of each
    pixel. The hue is rotated in HSV. Integers are truncated after each step, as in torchvision. A product may
    round differently in the last bit, which is a difference of 1.

    Args:
        brightness, contrast, saturation: range of the factor, [max(0, 1 - b), 1 + b] for a number b, or (low, high). 0
            or None keep the images unchanged. Images of one channel have no saturation.
        hue: range of the value that is added to the hue, in turns of the color wheel, [-hue, hue] for a number, or
            (low, high) in [-0.5, 0.5]. 0 or None keep the images unchanged. Images of one channel have no hue.

    >>> import tensorstore_ds as tsds
    >>> images = torch.full((2, 3, 4, 4), 100, dtype=torch.uint8)
    >>> tsds.transforms.ColorJitter(brightness=(1.5, 1.5))({"image": images})["image"].unique().tolist()
    [150]
    """

    _of_unit_images = True

    def __init__(
        self,
        brightness: float | Range | None = None,
        contrast: float | Range | None = None,
        saturation: float | Range | None = None,
        hue: float | Range | None = None,
        *,
        seed: int = 0,
    ) -> None:
        super().__init__(seed=seed)
        self.brightness = _range("brightness", brightness)
        self.contrast = _range("contrast", contrast)
        self.saturation = _range("saturation", saturation)
        self.hue = _hue_range(hue)

    def make_params(self, keys: Bits, size: Size) -> Params:
        """`order` (B, n) int64, the steps of each sample in their order, and `factors` (B, n) float64."""
        ranges = dict(enumerate((self.brightness, self.contrast, self.saturation, self.hue)))
        used = {which: limits for which, limits in ranges.items() if limits is not None}
        low, high = np.array(list(used.values())).reshape(-1, 2).T
        drawn = uniforms(keys, 2 * len(used))
        order = drawn[:, len(used) :].argsort(1)
        factors = np.take_along_axis(low + drawn[:, : len(used)] * (high - low), order, 1)
        return {"order": torch.tensor(list(used), dtype=torch.int64)[order], "factors": torch.from_numpy(factors)}

    def transform_images(self, images: Tensor, params: Params, pool: BufferPool | None) -> Tensor:
        """Change the colors of images and keep their dtype. Raises `ValueError` if they do not have 1 or 3 channels."""
        check_colors(images, "ColorJitter")
        order, factors = params["order"], params["factors"]
        if images.shape[1] == 1:
            factors = torch.where(order == SATURATION, 1.0, factors)
        hues = self.hue is not None
        if in_one_operation(images):
            return blend(images, *(on_device(each, images.device) for each in (order, factors)), hues=hues)
        every = torch.ones(len(images), dtype=torch.bool)
        return change_some(images, every, partial(blend, hues=hues), order, factors, in_place=pool is not None)


class Sometimes(BatchTransform):
    """Base class of color changes that are applied to an image with probability `p`."""

    def __init__(self, p: float = 0.5, *, seed: int = 0) -> None:
        super().__init__(seed=seed)
        self.p = probability(p)

    def make_params(self, keys: Bits, size: Size) -> Params:
        """`chosen` (B,) bool, true for images that are changed."""
        return {"chosen": torch.from_numpy(uniforms(keys, 1)[:, 0] < self.p)}

    def transform_images(self, images: Tensor, params: Params, pool: BufferPool | None) -> Tensor:
        return change_some(images, params["chosen"], self.change, in_place=pool is not None)

    @abstractmethod
    def change(self, images: Tensor) -> Tensor:
        """Return the changed images (n, C, H, W) in new memory of the same dtype."""


class RandomGrayscale(Sometimes):
    """Convert some images to grayscale, like torchvision's `RandomGrayscale`.

    All three channels become ``0.2989 * red + 0.587 * green + 0.114 * blue``. Integers are truncated. Images of
    one channel do not change.

    >>> images = torch.tensor([200, 100, 0], dtype=torch.uint8).view(1, 3, 1, 1)
    >>> tsds.transforms.RandomGrayscale(p=1)({"image": images})["image"].flatten().tolist()
    [118, 118, 118]

    Args:
        p: probability that an image is changed.
    """

    def __init__(self, p: float = 0.1, *, seed: int = 0) -> None:
        super().__init__(p, seed=seed)

    def change(self, images: Tensor) -> Tensor:
        check_colors(images, "RandomGrayscale")
        return grayscale(images)


class Solarize(Sometimes):
    """Invert the bright values of some images, like torchvision's `RandomSolarize`.

    >>> images = torch.tensor([[[[100, 200]]]], dtype=torch.uint8)  # (B, C, H, W)
    >>> tsds.transforms.Solarize(threshold=128, p=1)({"image": images})["image"].tolist()
    [[[[100, 55]]]]

    Args:
        threshold: smallest value that is inverted, in the unit of the images. Inverting subtracts the value from 255 in
            uint8 images, from 65535 in uint16 images, and from 1 in floating-point images.
        p: probability that an image is changed.
    """

    _of_unit_images = True

    def __init__(self, threshold: float, p: float = 0.5, *, seed: int = 0) -> None:
        super().__init__(p, seed=seed)
        self.threshold = number("threshold", threshold, most=65535, expected="a number in [0, 65535]")

    def change(self, images: Tensor) -> Tensor:
        white = white_of(images.dtype)
        if self.threshold > white:
            kind = "floating-point" if white == 1 else str(images.dtype)
            expected = f"expected a threshold in [0, {white}] for {kind} images"
            raise ValueError(
                f"Solarize: {expected}, found {self.threshold:g}. Divide it by {257 if white > 1 else 255}."
            )
        return solarize(images, torch.full((len(images),), self.threshold, device=images.device))


class Posterize(Sometimes):
    """Keep the highest bits of each value of some images, like torchvision's `RandomPosterize`.

    >>> images = torch.tensor([[[[100, 200]]]], dtype=torch.uint8)  # (B, C, H, W)
    >>> tsds.transforms.Posterize(bits=2, p=1)({"image": images})["image"].tolist()
    [[[[64, 192]]]]

    Args:
        bits: number of the highest bits that are kept, of 8 or 16. Floating-point images then have ``2 ** bits``
            levels, from 0.
        p: probability that an image is changed.
    """

    _of_unit_images = True

    def __init__(self, bits: int, p: float = 0.5, *, seed: int = 0) -> None:
        super().__init__(p, seed=seed)
        if not isinstance(bits, int) or not 0 <= bits <= 8:
            raise refusal("bits", "a whole number in [0, 8]", bits)
        self.bits = bits

    def transform_images(self, images: Tensor, params: Params, pool: BufferPool | None) -> Tensor:
        if images.dtype != torch.uint8:
            return super().transform_images(images, params, pool)
        bits = on_device(torch.where(params["chosen"], self.bits, 8), images.device)  # all of 8 bits are kept
        return posterize(images, bits, in_place=pool is not None)

    def change(self, images: Tensor) -> Tensor:
        return posterize(images, torch.full((len(images),), self.bits, device=images.device))


class Equalize(Sometimes):
    """Equalize the histogram of each channel of some images, like torchvision's `RandomEqualize`.

    The formula is the same as in Pillow's `ImageOps.equalize`. Floating-point images have 256 levels afterwards. Images
    of 16 bits would lose 8 of them, so they raise a `ValueError`: use `AutoContrast`.

    >>> images = (torch.arange(1024) // 16).to(torch.uint8).view(1, 1, 32, 32)  # dark, with levels 0 to 63
    >>> int(tsds.transforms.Equalize(p=1)({"image": images})["image"].max())
    255

    Args:
        p: probability that an image is changed.
    """

    _of_unit_images = True

    def change(self, images: Tensor) -> Tensor:
        check_levels(images, "Equalize")
        return equalize(images)


class AutoContrast(Sometimes):
    """Stretch each channel of some images over all levels, like torchvision's `RandomAutocontrast`.

    The darkest value becomes black, 0, and the brightest white: 255, 65535 or 1, depending on the dtype. A channel with
    a single value does not change.

    >>> images = torch.tensor([[[[0.25, 0.5, 0.75]]]])  # (B, C, H, W)
    >>> tsds.transforms.AutoContrast(p=1)({"image": images})["image"].tolist()
    [[[[0.0, 0.5, 1.0]]]]

    Args:
        p: probability that an image is changed.
    """

    _of_unit_images = True

    def change(self, images: Tensor) -> Tensor:
        return autocontrast(images)


def check_colors(images: Tensor, who: str) -> None:
    """Raise `ValueError` for images that do not have 1 or 3 channels."""
    if images.shape[1] not in (1, 3):
        raise ValueError(f"{who}: expected images of 1 or 3 channels, found {images.shape[1]}.")


def check_levels(images: Tensor, who: str) -> None:
    """Raise `ValueError` for images of 16 bits, which a histogram of 256 levels would reduce to 8."""
    if white_of(images.dtype) > 255:
        raise ValueError(
            f"{who}: expected images of 8 bits or in [0, 1], because equalizing leaves 256 levels, found uint16. Use "
            "ColorJitter, AutoContrast and RandomAffine, or ToFloat before it to lose the other levels."
        )


def _range(name: str, value: float | Range | None) -> Range | None:
    """Return the range of a factor, or None if it is always 1."""
    if value is None:
        return None
    low, high = value if isinstance(value, Sequence) else (max(0.0, 1.0 - value), 1.0 + value)
    if not 0 <= low <= high:
        raise refusal(name, "a number of at least 0, or two, the smaller first", value)
    return None if low == high == 1 else (float(low), float(high))


def _hue_range(value: float | Range | None) -> Range | None:
    """Return the range of the shift of the hue, or None if it is always 0."""
    if value is None:
        return None
    given = value if isinstance(value, Sequence) else (-value, value)
    low, high = limits("hue", given, least=-0.5, most=0.5, expected="a number in [0, 0.5], or two in [-0.5, 0.5]")
    return None if low == high == 0 else (low, high)
