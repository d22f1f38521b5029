"""Blur images, each with a different kernel width."""

from __future__ import annotations

import math
from collections.abc import Sequence
from numbers import Real

import torch
from torch import Tensor
from torch.nn import functional

from tensorstore_ds.annex.augment.chosen import change_some
from tensorstore_ds.loading.augment.arguments import Range, limits, probability
from tensorstore_ds.loading.augment.base import BatchTransform, Params, Size
from tensorstore_ds.loading.augment.values import floating, rounded
from tensorstore_ds.loading.buffers import BufferPool
from tensorstore_ds.options import refusal
from tensorstore_ds.seeding import Bits, uniforms

#: Limit of the kernel size, because time and memory grow with it.
_MOST_KERNEL = 2**10


class GaussianBlur(BatchTransform):
    """Blur each image with a Gaussian kernel of random width, like torchvision's `GaussianBlur`.

    Edges are extended by reflection. The kernel is separated into rows and columns, so uint8 may differ from
    torchvision by 1 because of rounding.

    Args:
        kernel_size: size of the kernel in pixels, one odd number or (width, height), as in torchvision.
        sigma: standard deviation in pixels, a number or a range (low, high).
        p: probability that an image is blurred. torchvision blurs all.

    >>> import tensorstore_ds as tsds
    >>> images = torch.zeros(1, 1, 5, 5)
    >>> images[0, 0, 2, 2] = 1
    >>> blurred = tsds.transforms.GaussianBlur(3, sigma=1.0)({"image": images})["image"]
    >>> [f"{value:.3f}" for value in blurred[0, 0, 2].tolist()]
    ['0.000', '0.124', '0.204', '0.124', '0.000']
    """

    def __init__(
        self, kernel_size: int | Sequence[int], sigma: float | Range = (0.1, 2.0), *, p: float = 1.0, seed: int = 0
    ) -> None:
        super().__init__(seed=seed)
        sizes = (kernel_size,) * 2 if isinstance(kernel_size, int) else tuple(kernel_size)
        if len(sizes) != 2 or not all(isinstance(n, int) and 0 < n < _MOST_KERNEL and n % 2 for n in sizes):
            raise refusal("kernel_size", f"an odd number below {_MOST_KERNEL}, or (width, height)", kernel_size)
        self.kernel_size = sizes
        given = (sigma, sigma) if isinstance(sigma, Real) else sigma
        expected = "a positive number, or two, the smaller first"
        self.sigma = limits("sigma", given, least=math.ulp(0.0), expected=expected)
        self.p = probability(p)

    def make_params(self, keys: Bits, size: Size) -> Params:
        """`chosen` (B,) bool, true for images that are blurred, and `sigma` (B,) float64."""
        drawn = uniforms(keys, 2)
        low, high = self.sigma
        chosen, sigma = drawn[:, 0] < self.p, low + drawn[:, 1] * (high - low)
        return {"chosen": torch.from_numpy(chosen), "sigma": torch.from_numpy(sigma)}

    def transform_images(self, images: Tensor, params: Params, pool: BufferPool | None) -> Tensor:
        """Blur images and keep their dtype. Raises `ValueError` if they are not larger than half of the kernel."""
        width, height = self.kernel_size
        if images.shape[2] <= height // 2 or images.shape[3] <= width // 2:
            raise ValueError(
                f"GaussianBlur: expected images larger than {height // 2}x{width // 2}, half of the kernel, found "
                f"{images.shape[2]}x{images.shape[3]}. Make `kernel_size` smaller."
            )
        return change_some(images, params["chosen"], self._blurred, params["sigma"], in_place=pool is not None)

    def _blurred(self, images: Tensor, sigma: Tensor) -> Tensor:
        x, y = (size // 2 for size in self.kernel_size)
        values = functional.pad(floating(images), (x, x, y, y), mode="reflect")
        for axis, reach in ((2, y), (3, x)):
            weights = _weights(sigma, reach).to(values.dtype)
            length = values.shape[axis] - 2 * reach
            first, *others = (
                values.narrow(axis, place, length) * weights[:, place, None, None, None]
                for place in range(2 * reach + 1)
            )
            values = first
            for each in others:
                values += each
        return rounded(values, images.dtype)


def _weights(sigma: Tensor, reach: int) -> Tensor:
    """Return a Gaussian at integer positions, normalized to a sum of 1, (n, 2 * reach + 1)."""
    places = torch.arange(-reach, reach + 1, device=sigma.device)
    return (-((places / sigma[:, None]) ** 2) / 2).softmax(1)
