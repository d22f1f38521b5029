"""Warp each image and its objects by its own matrix, for affine and perspective transforms."""

from __future__ import annotations

from typing import Literal

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from tensorstore_ds.annex.augment.chosen import change_some
from tensorstore_ds.imaging.oriented import corners_to_oriented, oriented_to_corners
from tensorstore_ds.loading.augment.base import Size
from tensorstore_ds.loading.augment.objects import ORIENTED, clip_objects
from tensorstore_ds.loading.augment.pixels import (
    as_array,
    as_images,
    axis_of_width,
    bits_of,
    in_one_operation,
    memory_format_of,
)
from tensorstore_ds.loading.augment.values import floating, rounded
from tensorstore_ds.loading.buffers import on_device
from tensorstore_ds.loading.collate import PackedObjects
from tensorstore_ds.loading.outlines import FRAME

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
    """Warp images (B, C, H, W) of any dtype where `chosen` (B,) bool is true.

    `inverse` (B, 3, 3) float64 maps positions of the result to positions of the image, in homogeneous coordinates.
    (0, 0) is the outer corner of the upper left pixel. `fill` is the value outside of an image, in all channels.
    `in_place` writes to the memory of `images`.
    """

    batched = in_one_operation(images)
    coefficients = _coefficients(inverse, images.shape[2], images.shape[3])
    if not batched and (inverse[:, 2] == inverse.new_tensor([0, 0, 1])).all():
        coefficients = coefficients[:, :, :2]  # affine: no division, and no horizon

    def seen(some: Tensor, coefficients: Tensor) -> Tensor:
        places = _places(coefficients, some.shape[2], some.shape[3], batched)
        if interpolation == "nearest":
            return _nearest_batched(some, places, fill) if batched else _nearest(some, places, fill)
        values = floating(some)
        grid = places.permute(0, 2, 3, 1).to(values.dtype)
        if fill:  # outside is 0, which is added to the pixels at the edges
            values = values - fill
        values = functional.grid_sample(values, grid, mode="bilinear", padding_mode="zeros", align_corners=False)
        if fill:
            values += fill
        return rounded(values, some.dtype)

    return change_some(images, chosen, seen, coefficients, in_place=in_place)


def _coefficients(inverse: Tensor, height: int, width: int) -> Tensor:
    """Return factors of x, y and 1 for each homogeneous coordinate of a position, (n, 3, 3) float32.

    Coordinates are relative to the center of the image, where float32 is most exact, from -1 at one edge to 1 at the
    other.
    """
    last = inverse[:, 2]
    rows = torch.stack([inverse[:, 0] * (2 / width) - last, inverse[:, 1] * (2 / height) - last, last], 1)
    middle = rows[:, :, 0] * (width / 2) + rows[:, :, 1] * (height / 2) + rows[:, :, 2]
    return torch.stack([rows[:, :, 0], rows[:, :, 1], middle], 1).to(torch.float32)


def _places(coefficients: Tensor, height: int, width: int, batched: bool) -> Tensor:
    """Return x and y of the source of each pixel, (n, 2, H, W) float32. Outside of [-1, 1] is outside of the image."""
    a, b, c = coefficients[..., None, None].unbind(1)
    y, x = (torch.arange(n, device=coefficients.device) - (n - 1) / 2 for n in (height, width))
    found = (a * x + b * y[:, None]).add_(c)
    if found.shape[1] == 2:
        return found
    found, w = found[:, :2], found[:, 2:]
    least = torch.finfo(w.dtype).eps
    if not batched and w.amin() > least:
        return found / w
    behind = w <= least  # beyond the horizon: outside
    return torch.where(behind, 2, found / torch.where(behind, 1, w))


def _nearest(images: Tensor, places: Tensor, fill: float) -> Tensor:
    """Return the pixel at each position, for any dtype. NumPy copies whole pixels, torch copies single bytes."""
    samples, channels, height, width = images.shape
    axis = axis_of_width(images)
    pixels = as_array(images, axis)
    if axis == 2:
        pixels = pixels.view((np.void, channels * pixels.itemsize))
    pixels = pixels.reshape(samples, -1, height * width)
    filling = bits_of(torch.empty(channels if axis == 2 else 1, dtype=images.dtype).fill_(fill)).view(pixels.dtype)
    x, y = ((places[:, i] + 1).mul_(n / 2).floor_().flatten(1).numpy() for i, n in enumerate((width, height)))
    outside = (x < 0) | (x >= width) | (y < 0) | (y >= height)
    index = y.astype(np.intp) * width + x.astype(np.intp)
    out = np.empty_like(pixels)
    for i in range(samples):
        np.take(pixels[i], index[i], axis=1, out=out[i], mode="clip")
        np.copyto(out[i], filling if axis == 2 else filling[0], where=outside[i])
    kept = out.view(bits_of(images).dtype).reshape(as_array(images, axis).shape)
    return as_images(kept, axis, images.dtype)


def _nearest_batched(images: Tensor, places: Tensor, fill: float) -> Tensor:
    """Return the pixel at each position in one gather. Both tensors are on one device."""
    height, width = images.shape[2:]
    x, y = (((places[:, i] + 1) * (n / 2)).floor().long() for i, n in enumerate((width, height)))
    outside = (x < 0) | (x >= width) | (y < 0) | (y >= height)
    samples = torch.arange(len(images), device=images.device)[:, None, None]
    pixels = images.permute(0, 2, 3, 1)[samples, y.clamp(0, height - 1), x.clamp(0, width - 1)]
    pixels = pixels.masked_fill(outside[..., None], fill)
    return pixels.permute(0, 3, 1, 2).contiguous(memory_format=memory_format_of(images))


def warp_objects(objects: PackedObjects, inverse: Tensor, size: Size, min_visibility: float, who: str) -> PackedObjects:
    """Move objects by the matrices of `warp`, (B, 3, 3) on the CPU, in images of (height, width) `size`: a copy.

    A box becomes the smallest one around its 4 moved corners (those of its oriented box, if it has one), clipped to the
    image. An oriented box becomes the smallest one around its own moved corners. Keypoints outside of the image and
    beyond the horizon of a perspective become absent. Raises ValueError for outlines, which support upright images
    only.
    """
    if FRAME in objects.values:
        raise ValueError(
            f"{who}: expected objects without outlines, which cannot be turned, found some. Use "
            "StoreDataset(outlines=False), or crops and mirroring only."
        )
    height, width = size
    forward = torch.linalg.inv(inverse.to(torch.float64))
    middle = forward.new_tensor([width / 2, height / 2, 1.0])
    forward = forward / (forward[:, 2] @ middle)[:, None, None]  # visible points have a positive third coordinate
    matrix = on_device(forward.to(torch.float32), objects.offsets.device)[objects.image_index][..., None]

    def moved(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Return the moved points of M objects, (M, n)."""
        u, v, w = (matrix[:, i, 0] * x + matrix[:, i, 1] * y + matrix[:, i, 2] for i in range(3))
        w = torch.where(w > torch.finfo(w.dtype).eps, w, torch.nan)
        return u / w, v / w

    values = dict(objects.values)
    if "keypoints" in values:
        values["keypoints"] = torch.stack(moved(*values["keypoints"].unbind(2)), 2)
    if "area" in values:  # an affine transform changes all areas alike, a perspective does not
        zoom = torch.linalg.det(forward).abs().where((inverse[:, 2, :2] == 0).all(1), torch.nan).to(torch.float32)
        values["area"] = values["area"] * on_device(zoom, matrix.device)[objects.image_index]
    if ORIENTED in values:
        turned = torch.stack(moved(*oriented_to_corners(values[ORIENTED]).unbind(2)), 2)
        values[ORIENTED] = corners_to_oriented(turned)
    result = PackedObjects(objects.offsets, values)
    if "boxes" not in values:
        return result
    x1, y1, x2, y2 = values["boxes"].unbind(1)
    corners = torch.stack(moved(torch.stack([x1, x2, x2, x1], 1), torch.stack([y1, y1, y2, y2], 1)), 2)
    if ORIENTED in values:
        corners = torch.where(turned.isfinite(), turned, corners)
    whole = torch.stack([corners.amin(1), corners.amax(1)], 1).nan_to_num()  # NaN: a box from outside of the image
    most = on_device(torch.tensor([[width, height]], dtype=torch.float32), whole.device)
    return clip_objects(result, whole, torch.zeros_like(most), most, min_visibility)
