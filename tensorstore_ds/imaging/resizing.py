"""Resize pixels and masks as a `Placement` says."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from tensorstore_ds import native
from tensorstore_ds.imaging.antialias import rounded
from tensorstore_ds.imaging.placement import Placement


def resize(pixels: NDArray[Any], placement: Placement) -> NDArray[Any]:
    """Resize pixels (H, W, C) to (H', W', C) of the same dtype with Pillow's antialiased bilinear filter.

    Its support grows with the reduction. Pixels outside of `placement` are zero. All but uint8 with 1, 3 or 4 channels
    is resized as float32, and integers are rounded.
    """
    channels = pixels.shape[2]
    height, width = placement.resized
    if pixels.dtype == np.uint8 and channels in (1, 3, 4):
        resized = np.empty((height, width, channels), np.uint8)
        if not native.resize(pixels, placement.box, resized):
            resized = np.asarray(_resize(as_image(pixels), placement)).reshape(height, width, channels)
    else:
        planes = [
            np.asarray(_resize(Image.fromarray(_as_float32(pixels[:, :, c])), placement)) for c in range(channels)
        ]
        resized = rounded(np.stack(planes, axis=2), pixels.dtype)
    if placement.resized == placement.size:
        return resized
    canvas = np.zeros((*placement.size, channels), pixels.dtype)
    top, left = placement.offset
    canvas[top : top + height, left : left + width] = resized
    return canvas


def _resize(image: Image.Image, placement: Placement) -> Image.Image:
    height, width = placement.resized
    return image.resize((width, height), Image.Resampling.BILINEAR, box=placement.box)


def _as_float32(plane: NDArray[Any]) -> NDArray[np.float32]:
    with np.errstate(over="ignore"):  # infinity is rejected later, with the sample's name
        return plane.astype(np.float32)


def resize_nearest(mask: NDArray[Any], placement: Placement, fill: int) -> NDArray[Any]:
    """Resize a mask (H, W) to (H', W') by the value at each pixel's center (Pillow's NEAREST), with `fill` outside."""
    left, top, right, bottom = placement.box
    height, width = placement.resized
    y = np.floor(top + (np.arange(height) + 0.5) * ((bottom - top) / height)).astype(np.intp)
    x = np.floor(left + (np.arange(width) + 0.5) * ((right - left) / width)).astype(np.intp)
    canvas = np.full(placement.size, fill, mask.dtype)
    first_row, first_column = placement.offset
    canvas[first_row : first_row + height, first_column : first_column + width] = mask[np.ix_(y, x)]
    return canvas


def as_image(pixels: NDArray[Any]) -> Image.Image:
    """Return a PIL image of pixels (H, W, C), gray, RGB or RGBA."""
    return Image.fromarray(np.ascontiguousarray(pixels[:, :, 0] if pixels.shape[2] == 1 else pixels))
