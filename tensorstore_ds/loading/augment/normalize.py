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
from tensorstore_ds.loading.augment.base import BatchTransform, OfBatches, Params, Rows, Size, check_images, has_padding
from tensorstore_ds.loading.augment.pixels import empty_like
from tensorstore_ds.loading.augment.values import unit, white_of
from tensorstore_ds.loading.buffers import BufferPool
from tensorstore_ds.options import refusal
from tensorstore_ds.reading.store import Split
from tensorstore_ds.seeding import Bits

#: Up to this many values, an image is normalized as a whole, because factors and offsets then stay in the cache.
SMALL_IMAGE = 16 * 1024
#: If the first batch's std exceeds the given std by this factor, its values have a different scale.
_MOST_DEVIATION = 3.0


class Normalize(OfBatches):
    """Normalize images with a mean and standard deviation, in the dtype of the model, like torchvision's `Normalize`.

    uint8 values are divided by 255, uint16 values by 65535, and floating-point values are used as they are. This takes
    one multiplication and one addition in float32, then rounds to `dtype`. On CUDA it is a single pass over the image.
    The memory format is kept.

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
        bits: number of bits that integers use, such as 12 in many medical images. They are divided by ``2**bits - 1``.
            None means all bits of their dtype.

    Raises:
        ValueError: the numbers of channels differ, or a standard deviation is not positive. When you call it, if a mean
            is above 1 for images of integers.
    """

    def __init__(
        self,
        mean: Sequence[float],
        std: Sequence[float],
        *,
        dtype: torch.dtype = torch.float32,
        bits: int | None = None,
    ) -> None:
        super().__init__()
        self.bits = bits
        try:
            self.mean, self.std = tuple(map(float, mean)), tuple(map(float, std))
        except (TypeError, ValueError):
            raise ValueError(
                f"Normalize: expected lists of a mean and a std for each channel, found {mean!r} and {std!r}."
            ) from None
        self.dtype = dtype
        self._has_looked = False  # whether the values of the first batch were checked
        if len(self.mean) != len(self.std) or not self.mean or not min(self.std) > 0:
            raise ValueError(
                f"Normalize: expected a mean and a positive std for each channel, found {self.mean} and {self.std}."
            )

    @classmethod
    def from_split(cls, split: Split, *, dtype: torch.dtype = torch.float32, bits: int | None = None) -> Normalize:
        """Create the transform from the split's statistics in the store. Gray images among color images count as RGB.

        With `bits`, it is also right for images that `ToFloat` has divided by ``2**bits - 1``.

        Raises:
            OptionError: the store contains no statistics, because its images were not decoded or have different numbers
                of channels. Or a channel is constant.
        """
        if not isinstance(split, Split):
            raise refusal("split", 'a split, such as dataset.split or store["train"]', f"a {type(split).__name__}")
        channels = split.channel_moments
        if channels is None or not min(channels[1], default=0) > 0:
            found = f"std {channels[1]}" if channels is not None else "none in the statistics of the store"
            advice = "Use Normalize(mean, std)" + (", or convert again" if channels is None else "")
            raise OptionError(f"split {split.name!r}: expected mean and std of each channel, found {found}. {advice}.")
        mean, std, scale = channels
        zoom = 1.0 if bits is None or scale == 1 else scale / (2**bits - 1)
        return cls([zoom * each for each in mean], [zoom * each for each in std], dtype=dtype, bits=bits)

    def transform_batch(
        self, batch: Mapping[str, Any], rows: Rows | None, epoch: int | None, pool: BufferPool | None = None
    ) -> dict[str, Any]:
        """Return the batch with normalized images (B, C, H, W) of `dtype`. `rows` and `epoch` are not used."""
        return {**batch, **self._change_pixels(batch, {}, pool)}

    def _change_pixels(self, batch: Mapping[str, Any], params: Params, pool: BufferPool | None) -> dict[str, Any]:
        """Return the normalized images of a batch. `params` is not used."""
        images = check_images(batch, whole=False)
        if images.shape[1] != len(self.mean):
            raise ValueError(f"Normalize: expected images of {len(self.mean)} channels, found {images.shape[1]}.")
        largest = white_of(images.dtype, self.bits)
        if largest > 1 and max(self.mean) > 1:
            mean, std = (", ".join(f"{value / largest:.3g}" for value in values) for values in (self.mean, self.std))
            kind = str(images.dtype).removeprefix("torch.")
            raise ValueError(
                f"Normalize: expected a mean in [0, 1] for {kind} images, whose values are divided by {largest}, found "
                f"{max(self.mean):g}. Divide mean and std by {largest}: Normalize(({mean}), ({std}))."
            )
        if not (self._has_looked or torch.compiler.is_compiling()):
            self._has_looked = True
            self._look(images)
        if torch.compiler.is_compiling():
            scale, shift = (values.to(images.device) for values in _factors.__wrapped__(self.mean, self.std, largest))
            scaled = (images.to(torch.float32) * scale + shift).to(self.dtype)
        elif images.is_cuda:  # one kernel, which converts while it reads and writes
            scale, shift = _factors_on(images.device, self.mean, self.std, largest)
            source = images.to(torch.float32) if images.dtype == torch.uint16 else images
            out = None if source.requires_grad else torch.empty_like(images, dtype=self.dtype)
            scaled = torch.addcmul(shift, source, scale, out=out).to(self.dtype)
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
        bits = "" if self.bits is None else f", bits={self.bits}"
        return f"mean={self.mean}, std={self.std}, dtype={self.dtype}{bits}"


class ToFloat(BatchTransform):
    """Convert integers to float32 in [0, 1], like torchvision's ``ToDtype(torch.float32, scale=True)``.

    uint8 values are divided by 255, and uint16 values by 65535. With `bits`, white is the largest number that fits into
    these bits. Colors can only be changed correctly if white is right, so put it first for images of 10, 12 or 14 bits.
    Floating-point images do not change.

    >>> images = torch.tensor([[[[0, 2047, 4095]]]], dtype=torch.uint16)  # (B, C, H, W), 12 bits
    >>> tsds.transforms.ToFloat(bits=12)({"image": images})["image"].flatten().tolist()
    [0.0, 0.49987789..., 1.0]

    Args:
        bits: number of bits that integers use. None means all bits of their dtype.
    """

    def __init__(self, *, bits: int | None = None) -> None:
        super().__init__()
        self.bits = bits

    def make_params(self, keys: Bits, size: Size) -> Params:
        """Return no parameters."""
        return {}

    def transform_images(self, images: Tensor, params: Params, pool: BufferPool | None) -> Tensor:
        if images.is_floating_point():
            return images
        values = empty_like(images, pool, dtype=torch.float32).copy_(images)
        return unit(values, white_of(images.dtype, self.bits))


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
