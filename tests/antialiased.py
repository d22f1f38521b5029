"""Antialiased bilinear resizing, one number after the other: what `tensorstore_ds.imaging.antialias` must give."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

#: Along one axis: where the part begins and how long it is, in pixels; what it is resized to; where the image ends.
Line = tuple[float, float, int, int]


def filters(line: Line) -> list[tuple[int, list[float]]]:
    """Of each result, the first pixel that it is made of, and the weights of that pixel and those behind it."""
    origin, extent, resized, end = line
    base = math.floor(origin)
    offset, limit = origin - base, min(math.ceil(origin - base + extent), end - base)
    step = extent / resized
    support, inverse = (step, 1 / step) if step >= 1 else (1.0, 1.0)
    found = []
    for i in range(resized):
        center, total = offset + step * (i + 0.5), 0.0
        low, high = max(0, int(center - support + 0.5)), min(limit, int(center + support + 0.5))
        weights = [max(0.0, 1 - abs((k - center + 0.5) * inverse)) for k in range(low, high)]
        for weight in weights:
            total += weight
        found.append((base + low, [weight / total for weight in weights]))
    return found


def whole_filters(line: Line) -> tuple[list[tuple[int, list[int]]], int]:
    """Weights as integers, and of how many bits their fractions are."""
    exact = filters(line)
    largest = max(max(weights) for _, weights in exact)
    bits = max(n for n in range(23) if n == 0 or int(0.5 + largest * 2**n) < 2**15)
    return [(first, [int(0.5 + weight * 2**bits) for weight in weights]) for first, weights in exact], bits


def resized(pixels: NDArray[np.uint8], y: Line, x: Line) -> NDArray[np.uint8]:
    """(y[2], x[2], C) of (H, W, C)."""
    across = np.stack([_along(line, x) for line in pixels])
    return np.stack([_along(column, y) for column in across.swapaxes(0, 1)], axis=1)


def _along(line: NDArray[np.uint8], axis: Line) -> NDArray[np.uint8]:
    whole, bits = whole_filters(axis)
    values, results = line.tolist(), []
    for first, weights in whole:
        sums = [2**bits >> 1] * line.shape[1]
        for k, weight in enumerate(weights):
            sums = [total + weight * value for total, value in zip(sums, values[first + k], strict=True)]
        results.append([min(255, total >> bits) for total in sums])
    return np.array(results, np.uint8)
