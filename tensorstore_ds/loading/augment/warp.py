"""Images seen through a matrix each: the engine of affine and perspective transforms."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional

from tensorstore_ds.loading.augment.pixels import change_some, memory_format_of

Interpolation = Literal["nearest", "bilinear"]


def warp(
    images: Tensor,
    chosen: Tensor,
    inverse: Tensor,
    *,
    fill: float,
    interpolation: Interpolation,
    in_place: bool = False,
) -> Tensor:
    """Images (B, C, H, W) of any dtype, where `chosen` (B,), seen through matrices; others as they are.

    Args:
        images: they are continued by `fill`.
        chosen: (B,) bool, as in `change_some`.
        inverse: (B, 3, 3) float64: which place of the image a place of the result shows, in homogeneous coordinates.
            (0, 0) is the outer corner of the upper left pixel.
        fill: what is seen outside of an image, in all channels.
        interpolation: of the image between its pixels.
        in_place: in the memory of `images`.
    """

    def seen(some: Tensor, matrices: Tensor) -> Tensor:
        u, v = _places(matrices, some.shape[2], some.shape[3])
        if interpolation == "nearest":
            return _nearest(some, u, v, fill)
        work = torch.float64 if some.dtype == torch.float64 else torch.float32
        grid = torch.stack([u, v], -1).to(work)
        values = some.to(work) - fill  # outside is 0, which is added to what is seen at the edges
        values = functional.grid_sample(values, grid, mode="bilinear", padding_mode="zeros", align_corners=False) + fill
        return (values.round_() if some.dtype == torch.uint8 else values).to(some.dtype)

    return change_some(images, chosen, seen, inverse, in_place=in_place)


def _places(inverse: Tensor, height: int, width: int) -> tuple[Tensor, Tensor]:
    """(n, H, W) x and y of what is seen at each pixel, from -1 at one edge of the image to 1 at the other.

    Computed from the middle of the image on, where float32 is most exact.
    """
    last = inverse[:, 2]
    rows = torch.stack([inverse[:, 0] * (2 / width) - last, inverse[:, 1] * (2 / height) - last, last], 1)
    middle = rows[:, :, 0] * (width / 2) + rows[:, :, 1] * (height / 2) + rows[:, :, 2]
    a, b, c = (each.to(torch.float32)[:, :, None, None] for each in (rows[:, :, 0], rows[:, :, 1], middle))
    y, x = (torch.arange(n, device=inverse.device) - (n - 1) / 2 for n in (height, width))
    u, v, w = (a * x + b * y[:, None] + c).unbind(1)
    behind = w <= torch.finfo(w.dtype).eps  # beyond the horizon: outside
    w = torch.where(behind, 1, w)
    return torch.where(behind, 2, u / w), torch.where(behind, 2, v / w)


def _nearest(images: Tensor, u: Tensor, v: Tensor, fill: float) -> Tensor:
    """The pixel at each place; images of any dtype, as they are not computed with."""
    height, width = images.shape[2:]
    x, y = ((u + 1) * (width / 2)).floor().long(), ((v + 1) * (height / 2)).floor().long()
    outside = (x < 0) | (x >= width) | (y < 0) | (y >= height)
    samples = torch.arange(len(images), device=images.device)[:, None, None]
    pixels = images.permute(0, 2, 3, 1)[samples, y.clamp(0, height - 1), x.clamp(0, width - 1)]
    pixels = pixels.masked_fill(outside[..., None], fill)
    return pixels.permute(0, 3, 1, 2).contiguous(memory_format=memory_format_of(images))
