"""Antialiased bilinear resizing of parts that need not begin or end at a pixel.

At whole pixels, this is torch's ``interpolate(mode="bilinear", antialias=True)``, bit-identical for uint8: weights of
16 bits, first across into 8 bits, then down (ATen's UpSampleKernel.cpp, from Pillow-SIMD). The compiled kernels compute
the same.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

#: Number of values to sum at a time. They fit into a cache.
_PIECE = 65536


class Axis(NamedTuple):
    """One axis: `extent` pixels from `origin` on are resized to `resized`, of which [first, last) is returned.

    The image ends before pixel `end`. Pixels that affect other results only may be missing.
    """

    origin: float
    extent: float
    resized: int
    first: int
    last: int
    end: int


def resize_part(pixels: NDArray[Any], y: Axis, x: Axis) -> NDArray[Any]:
    """Resize pixels (H, W, C) to (y.last - y.first, x.last - x.first, C) of the same dtype.

    Floating-point pixels have float64 weights. Integers other than uint8 are rounded.
    """
    dtype = pixels.dtype if pixels.dtype == np.uint8 else np.dtype(np.float64)
    height, _, channels = pixels.shape
    across: NDArray[Any] = np.empty((height, x.last - x.first, channels), dtype)
    _along(pixels.swapaxes(0, 1), x, across.swapaxes(0, 1))
    resized = np.empty((y.last - y.first, *across.shape[1:]), dtype)
    _along(across, y, resized)
    return resized if dtype == pixels.dtype else rounded(resized, pixels.dtype)


def _along(pixels: NDArray[Any], axis: Axis, out: NDArray[Any]) -> None:
    """Resize along axis 0 into `out`: uint8 to uint8, else float64."""
    base = math.floor(axis.origin)
    offset = axis.origin - base
    begin, weights = _weights(offset, axis, min(math.ceil(offset + axis.extent), axis.end - base))
    wanted = slice(axis.first, axis.last)
    begin = begin[wanted] + base
    if pixels.dtype != np.uint8:
        for part, total in _sums(pixels, begin, weights[wanted], out):
            part[...] = total
        return
    bits = 0
    while bits < 22 and int(0.5 + weights.max() * (1 << (bits + 1))) < 1 << 15:
        bits += 1
    for part, total in _sums(pixels, begin, (0.5 + weights[wanted] * (1 << bits)).astype(np.int32), out):
        total += (1 << bits) >> 1
        total >>= bits
        part[...] = total.clip(0, 255, out=total)


def _weights(offset: float, axis: Axis, limit: int) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Return the first pixel of each result (resized,), counted from the base, and its weights (resized, taps).

    The order of operations is that of ATen and the compiled kernels, so that results are bit-identical.
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
    for k in range(taps):  # one after the other, because a different order rounds differently
        total += weights[:, k]
    return low, np.divide(weights, total[:, None], out=np.zeros_like(weights), where=total[:, None] != 0)


def _sums(
    pixels: NDArray[Any], begin: NDArray[np.int64], weights: NDArray[Any], out: NDArray[Any]
) -> Iterator[tuple[NDArray[Any], NDArray[Any]]]:
    """Yield parts of `out` and their weighted sums of pixels, with as many columns at a time as fit into a cache."""
    length, width, channels = pixels.shape
    taps = [
        ((begin + k).clip(0, length - 1), weights[:, k : k + 1]) for k in range(weights.shape[1]) if weights[:, k].any()
    ]
    step = max(1, _PIECE // (length * channels))
    for start in range(0, width, step):
        part = out[:, start : start + step]
        lines = pixels[:, start : start + step].astype(weights.dtype, order="C").reshape(length, -1)
        total = np.zeros((len(begin), lines.shape[1]), weights.dtype)
        for places, weight in taps:
            taken = lines.take(places, 0)
            taken *= weight
            total += taken
        yield part, total.reshape(part.shape)


def rounded(values: NDArray[Any], dtype: np.dtype[Any]) -> NDArray[Any]:
    """Return floating-point values in a data type. Integers are rounded and clipped to its range."""
    if dtype.kind in "iu":
        limits = np.iinfo(dtype)
        values = np.rint(values.astype(np.float64, copy=False)).clip(limits.min, limits.max)
    return values.astype(dtype)
