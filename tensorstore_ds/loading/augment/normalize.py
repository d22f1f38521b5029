"""Normalization, the last step, which converts pixels to the values that a model expects."""

from __future__ import annotations

import functools
import math
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from tensorstore_ds.errors import OptionError
from tensorstore_ds.loading.augment.base import OfBatches, Params, Rows, check_images, has_padding
from tensorstore_ds.loading.augment.pixels import empty_like
from tensorstore_ds.loading.buffers import BufferPool
from tensorstore_ds.reading.store import Split

#: Up to this many values, an image is normalized as a whole, because factors and offsets then stay in the cache.
SMALL_IMAGE = 16 * 1024
#: If the first batch's std exceeds the given std by this factor, its values have a different scale.
_MOST_DEVIATION = 3.0


class Normalize(OfBatches):
    """Normalize images with a mean and standard deviation, in the dtype of the model, like torchvision's `Normalize`.

    uint8 values are divided by 255, and floating-point values are used as they are. This takes one multiplication and
    one addition in float32, then rounds to `dtype`. On CUDA it is a single pass over the image. The memory format is
    kept.

    >>> normalize = tsds.Normalize(mean=[0.485, 0.456, 0.406], std=[0.229, 0.224, 0.225])
    >>> images = torch.full((2, 3, 8, 8), 124, dtype=torch.uint8)  # (B, C, H, W)
    >>> found = normalize({"image": images})["image"]
    >>> found.shape, found.dtype, round(float(found[0, 0, 0, 0]), 4)
    (torch.Size([2, 3, 8, 8]), torch.float32, 0.0056)

    The mean and standard deviation of the images of a store:

    >>> mean, std, scale = tsds.open("photos.tsds")["train"].channel_moments
    >>> normalize = tsds.Normalize(mean, std)

    Args:
        mean, std: mean and standard deviation of each channel, for values in [0, 1]. Divide 8-bit values by 255.
        dtype: dtype of the result.

    Raises:
        ValueError: the numbers of channels differ, or a standard deviation is not positive. When you call it, if a mean
            is above 1 for uint8 images.
    """

    def __init__(self, mean: Sequence[float], std: Sequence[float], *, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.mean, self.std = tuple(mean), tuple(std)
        self.dtype = dtype
        self._has_looked = False  # whether the values of the first batch were checked
        if len(self.mean) != len(self.std) or not self.mean or not min(self.std) > 0:
            raise ValueError(
                f"Normalize: expected a mean and a positive std for each channel, found {self.mean} and {self.std}."
            )

    @classmethod
    def from_split(cls, split: Split, *, dtype: torch.dtype = torch.float32) -> Normalize:
        """Create the transform from the split's statistics in the store. Gray images among color images count as RGB.

        Raises:
            OptionError: the store contains no statistics, because its images were not decoded or have different numbers
                of channels. Or a channel is constant.
        """
        channels = split.channel_moments
        if channels is None or not min(channels[1], default=0) > 0:
            found = f"std {channels[1]}" if channels is not None else "none in the statistics of the store"
            advice = "Use Normalize(mean, std)" + (", or convert again" if channels is None else "")
            raise OptionError(f"split {split.name!r}: expected mean and std of each channel, found {found}. {advice}.")
        return cls(channels[0], channels[1], dtype=dtype)

    def transform_batch(
        self, batch: Mapping[str, Any], rows: Rows | None, epoch: int | None, pool: BufferPool | None = None
    ) -> dict[str, Any]:
        """Return the batch with normalized images (B, C, H, W) of `dtype`. `rows` and `epoch` are not used."""
        return {**batch, **self._change_pixels(batch, {}, pool)}

    def _change_pixels(self, batch: Mapping[str, Any], params: Params, pool: BufferPool | None) -> dict[str, Any]:
        """Return the normalized images of a batch. `params` is not used."""
        images = check_images(batch)
        if images.shape[1] != len(self.mean):
            raise ValueError(f"Normalize: expected images of {len(self.mean)} channels, found {images.shape[1]}.")
        largest = 255 if images.dtype == torch.uint8 else 1
        if largest == 255 and max(self.mean) > 1:
            mean, std = (", ".join(f"{value / 255:.3g}" for value in values) for values in (self.mean, self.std))
            raise ValueError(
                "Normalize: expected a mean in [0, 1] for uint8 images, whose values are divided by 255, found "
                f"{max(self.mean):g}. Divide mean and std by 255: Normalize(({mean}), ({std}))."
            )
        if not (self._has_looked or torch.compiler.is_compiling()):
            self._has_looked = True
            self._look(images)
        if torch.compiler.is_compiling():
            scale, shift = (values.to(images.device) for values in _factors.__wrapped__(self.mean, self.std, largest))
            scaled = (images.to(torch.float32) * scale + shift).to(self.dtype)
        elif images.is_cuda:  # one kernel, which converts while it reads and writes
            scale, shift = _factors_on(images.device, self.mean, self.std, largest)
            scaled = torch.addcmul(shift, images, scale, out=torch.empty_like(images, dtype=self.dtype))
        else:  # torch converts through copies on a CPU, at half the speed for float32 and 1/3 for bfloat16
            scaled = empty_like(images, pool, dtype=torch.float32).copy_(images)
            values, pixels = scaled, 0
            if not scaled.is_contiguous():  # a small image at a time, or a line of a large one
                small = math.prod(images.shape[1:]) <= SMALL_IMAGE
                values = scaled.permute(0, 2, 3, 1).flatten(1 if small else 2)
                pixels = values.shape[-1] // len(self.mean)
            scale, shift = _factors(self.mean, self.std, largest, pixels)
            values.mul_(scale).add_(shift)
            if self.dtype != torch.float32:
                scaled = empty_like(images, pool, dtype=self.dtype).copy_(scaled)
        if has_padding(batch):
            scaled.masked_fill_(~batch["image_mask"][:, None], 0)
        return {"image": scaled}

    def _look(self, images: Tensor) -> None:
        """Warn if floating-point images have the wrong scale: values up to 255, or already normalized."""
        if not images.is_floating_point() or not images.numel():
            return
        values = images.detach().float()
        found, std = float(values.std(correction=0)), sum(self.std) / len(self.std)
        if found > _MOST_DEVIATION * std:
            low, high = (float(value) for value in values.aminmax())
            wanted = (
                f"Normalize: expected images with a std near {std:.3g}, found {found:.3g}, from {low:.3g} to {high:.3g}"
            )
            advice = "Divide values of 0 to 255 by 255, and normalize once."
            warnings.warn(f"{wanted}. {advice}", stacklevel=2)

    def levels(self) -> Tensor:
        """(C, 256), the result for each level of each channel of uint8 images."""
        every = torch.arange(256, dtype=torch.uint8).view(1, 1, 16, 16)
        levels: Tensor = self._change_pixels({"image": every.repeat(1, len(self.mean), 1, 1)}, {}, None)["image"]
        return levels.flatten(2)[0]

    def factors(self) -> Tensor:
        """(2, C) float32, the factor for uint8 values, and the offset that is added afterwards."""
        return torch.stack(_factors(self.mean, self.std, 255)).flatten(1)

    def extra_repr(self) -> str:
        return f"mean={self.mean}, std={self.std}, dtype={self.dtype}"


@functools.lru_cache(maxsize=32)
def _factors(mean: tuple[float, ...], std: tuple[float, ...], largest: int, pixels: int = 0) -> tuple[Tensor, Tensor]:
    """Return the float32 factors and offsets, (C, 1, 1), or (pixels * C,) for pixels in channels-last memory."""
    means, stds = (torch.tensor(values, dtype=torch.float64) for values in (mean, std))
    both = (1 / (stds * largest)).to(torch.float32), (-means / stds).to(torch.float32)
    scale, shift = (values.repeat(pixels) if pixels else values[:, None, None] for values in both)
    return scale, shift


@functools.cache
def _factors_on(
    device: torch.device, mean: tuple[float, ...], std: tuple[float, ...], largest: int
) -> tuple[Tensor, Tensor]:
    """Return the factors and offsets on a device, where they stay: a copy per batch may wait for the device."""
    with torch.inference_mode(False):
        scale, shift = (values.to(device) for values in _factors(mean, std, largest))
    return scale, shift
