"""Erase a part of each image."""

from __future__ import annotations

import math
from collections.abc import Sequence
from numbers import Real
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from tensorstore_ds.annex.augment.chosen import change_some
from tensorstore_ds.loading.augment.arguments import Range, limits, probability
from tensorstore_ds.loading.augment.base import BatchTransform, Params, Size
from tensorstore_ds.loading.augment.pixels import in_one_operation
from tensorstore_ds.loading.augment.values import white_of
from tensorstore_ds.loading.buffers import BufferPool
from tensorstore_ds.options import refusal
from tensorstore_ds.seeding import GOLDEN, Bits, fold, uniforms

#: Number of random parts that are tried until one is smaller than the image, as in torchvision.
ATTEMPTS = 10
#: Step, shifts and factors of SplitMix64 as signed numbers, because torch's 64-bit integers are signed.
_STEP = int(GOLDEN) - 2**64
_ROUNDS = ((30, 0xBF58476D1CE4E5B9 - 2**64), (27, 0x94D049BB133111EB - 2**64), (31, 1))


class RandomErasing(BatchTransform):
    """Overwrite a rectangle of some images, like torchvision's `RandomErasing`.

    Zhong et al., Random Erasing Data Augmentation, 2017 (arXiv 1708.04896). Objects and masks do not change. For values
    in the unit of the model, put it after `Normalize`.

    Args:
        p: probability that an image is changed.
        scale: smallest and largest share of the image's area.
        ratio: smallest and largest height divided by width.
        value: a number, a number for each channel, or ``random`` for noise that differs by pixel and channel. Noise has
            a normal distribution in floating-point images, and a uniform distribution of all levels in others.

    >>> import tensorstore_ds as tsds
    >>> erase = tsds.transforms.RandomErasing(p=1, scale=(0.25, 0.25), ratio=(1, 1), value=7)
    >>> int((erase({"image": torch.zeros(1, 3, 8, 8)})["image"] == 7).sum())
    48
    """

    def __init__(
        self,
        p: float = 0.5,
        scale: Range = (0.02, 0.33),
        ratio: Range = (0.3, 3.3),
        value: float | Sequence[float] | Literal["random"] = 0,
        *,
        seed: int = 0,
    ) -> None:
        super().__init__(seed=seed)
        self.p = probability(p)
        self.scale = limits("scale", scale, least=0, most=1, expected="two numbers in [0, 1], the smaller first")
        expected = "two positive numbers, the smaller first"
        self.ratio = limits("ratio", ratio, least=math.ulp(0.0), expected=expected)
        values = value if isinstance(value, Sequence) else (value,)
        if value != "random" and (not values or not all(isinstance(each, Real) for each in values)):
            raise refusal("value", "a number, one for each channel, or 'random'", repr(value))
        self.value: tuple[float, ...] | None = None if value == "random" else tuple(map(float, values))

    def make_params(self, keys: Bits, size: Size) -> Params:
        """`boxes` (B, 4) int64, top, left, height and width of the part, or 0 if there is none. `noise` (B,) int64."""
        height, width = size
        share, shape, y, x = uniforms(keys, 4 * ATTEMPTS + 1)[:, 1:].reshape(-1, 4, ATTEMPTS).swapaxes(0, 1)
        area = height * width * (self.scale[0] + share * (self.scale[1] - self.scale[0]))
        low, high = np.log(self.ratio)
        shape = np.exp(low + shape * (high - low))
        part_h, part_w = np.rint(np.sqrt(area * shape)), np.rint(np.sqrt(area / shape))
        top, left = np.floor(y * (height - part_h + 1)), np.floor(x * (width - part_w + 1))
        fits = (part_h < height) & (part_w < width)
        chosen = fits.any(1) & (uniforms(keys, 1)[:, 0] < self.p)
        drawn = np.stack([top, left, part_h, part_w], 1)  # (B, 4, attempts)
        first = np.take_along_axis(drawn, fits.argmax(1)[:, None, None], 2)[:, :, 0]
        boxes = np.where(chosen[:, None], first, 0).astype(np.int64)
        noise = fold(keys, int(GOLDEN)).view(np.int64)
        return {"boxes": torch.from_numpy(boxes), "noise": torch.from_numpy(noise)}

    def transform_images(self, images: Tensor, params: Params, pool: BufferPool | None) -> Tensor:
        """Erase parts of images and keep their dtype.

        Raises `ValueError` if `value` has neither one number nor one for each channel.
        """
        if self.value is not None and len(self.value) not in (1, images.shape[1]):
            raise ValueError(
                f"RandomErasing: expected one value, or one for each of {images.shape[1]} channels, found "
                f"{len(self.value)}."
            )
        boxes = params["boxes"]
        chosen = (boxes[:, 2:] > 0).all(1)
        if self.value is not None and not in_one_operation(images):
            out = images if pool is not None else images.clone()
            value = torch.tensor(self.value).to(images.dtype)[:, None, None]
            for image, (top, left, height, width) in zip(out, boxes.tolist(), strict=True):
                image[:, top : top + height, left : left + width] = value
            return out
        return change_some(images, chosen, self._erased, boxes, params["noise"], in_place=pool is not None)

    def _erased(self, images: Tensor, boxes: Tensor, noise: Tensor) -> Tensor:
        top, left, height, width = boxes[:, :, None].unbind(1)
        y, x = (torch.arange(n, device=images.device) for n in images.shape[2:])
        rows, columns = (y >= top) & (y < top + height), (x >= left) & (x < left + width)
        inside = (rows[:, :, None] & columns[:, None])[:, None]
        if self.value is None:
            return torch.where(inside, noise_of(noise, images), images)
        out = images
        for channel, value in enumerate(self.value):
            which = slice(None) if len(self.value) == 1 else slice(channel, channel + 1)
            part = out[:, which].masked_fill(inside, value)
            out = part if len(self.value) == 1 else torch.cat([out[:, :channel], part, out[:, channel + 1 :]], 1)
        return out


def noise_of(keys: Tensor, images: Tensor) -> Tensor:
    """Return noise for images (n, C, H, W), from keys (n,) int64. Each pixel and channel has its own counter.

    SplitMix64 as in `tensorstore_ds.seeding`, on the device. Normal numbers are by Box and Muller (1958).
    """
    count = images[0].numel()
    places = torch.arange(2 * count, device=images.device)
    bits = (keys[:, None] ^ places) * _STEP  # torch.compile supports no such constants in an index
    for shift, factor in _ROUNDS:
        bits = (bits ^ ((bits >> shift) & ((1 << 64 - shift) - 1))) * factor
    if not images.is_floating_point():
        return (bits[:, :count] & white_of(images.dtype)).to(images.dtype).view(images.shape)
    uniform = ((bits >> 40) & (2**24 - 1)).to(torch.float32) * 2.0**-24 + 2.0**-25  # in (0, 1)
    radius, angle = uniform.view(len(keys), 2, count).unbind(1)
    normal = (-2 * radius.log()).sqrt() * (2 * math.pi * angle).cos()
    return normal.view(images.shape).to(images.dtype)
