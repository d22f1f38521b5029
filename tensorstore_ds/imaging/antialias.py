"""Antialiased bilinear resizing of parts that need not begin or end at a pixel.

Where they do, this is torch's ``interpolate(mode="bilinear", antialias=True)``, of uint8 to the bit: weights of 16
bits, first across into 8 bits, then down (ATen's UpSampleKernel.cpp, which is Pillow-SIMD's). The compiled kernels do
the same.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray


class Axis(NamedTuple):
    """Along one axis: `extent` pixels from `origin` on are resized to `resized`; [first, last) of that is wanted.

    The image ends before pixel `end`. Pixels on which only other results depend need not be there.
    """

    origin: float
    extent: float
    resized: int
    first: int
    last: int
    end: int


def resize_part(pixels: NDArray[Any], y: Axis, x: Axis) -> NDArray[Any]:
    """(y.last - y.first, x.last - x.first, C) of pixels (H, W, C), of the same dtype.

    Of floating-point numbers, weights are float64; other integers than uint8 are rounded.
    """
    across = _along(pixels.swapaxes(0, 1), x).swapaxes(0, 1)
    resized = _along(across, y)
    return resized if resized.dtype == pixels.dtype else _rounded(resized, pixels.dtype)


def _along(pixels: NDArray[Any], axis: Axis) -> NDArray[Any]:
    """Resized along axis 0: uint8 of uint8, else float64."""
    base = math.floor(axis.origin)
    offset = axis.origin - base
    begin, weights = _weights(offset, axis, min(math.ceil(offset + axis.extent), axis.end - base))
    wanted = slice(axis.first, axis.last)
    if pixels.dtype == np.uint8:
        bits = 0
        while bits < 22 and int(0.5 + weights.max() * (1 << (bits + 1))) < 1 << 15:
            bits += 1
        whole = (0.5 + weights[wanted] * (1 << bits)).astype(np.int32)
        total = _sums(pixels, begin[wanted] + base, whole)
        return ((total + ((1 << bits) >> 1)) >> bits).clip(0, 255).astype(np.uint8)
    return _sums(pixels, begin[wanted] + base, weights[wanted])


def _weights(offset: float, axis: Axis, limit: int) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Of each result the first pixel, (resized,), counted from the base, and the weights (resized, taps) from there on.

    The order of the operations is that of ATen and of the compiled kernels: so results are the same to the bit.
    """
    step = axis.extent / axis.resized
    support, inverse = max(step, 1.0), 1 / step if step >= 1 else 1.0
    taps = math.ceil(support) * 2 + 1
    center = offset + step * (np.arange(axis.resized) + 0.5)
    low = (center - support + 0.5).astype(np.int64).clip(0)
    high = (center + support + 0.5).astype(np.int64).clip(None, limit)
    places = low[:, None] + np.arange(taps)
    weights = (1 - np.abs((places - center[:, None] + 0.5) * inverse)).clip(0)
    weights[places >= high[:, None]] = 0
    total = np.zeros(axis.resized)
    for k in range(taps):  # one after the other: other orders round otherwise
        total += weights[:, k]
    return low, np.divide(weights, total[:, None], out=np.zeros_like(weights), where=total[:, None] != 0)


def _sums(pixels: NDArray[Any], begin: NDArray[np.int64], weights: NDArray[Any]) -> NDArray[Any]:
    total = np.zeros((len(begin), *pixels.shape[1:]), weights.dtype)
    for k in range(weights.shape[1]):
        taken = pixels[(begin + k).clip(0, len(pixels) - 1)]
        total += taken * weights[:, k].reshape(-1, *[1] * (pixels.ndim - 1))
    return total


def _rounded(values: NDArray[np.float64], dtype: np.dtype[Any]) -> NDArray[Any]:
    if dtype.kind in "iu":
        limits = np.iinfo(dtype)
        values = np.rint(values).clip(limits.min, limits.max)
    return values.astype(dtype)
