"""Overlap of boxes."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray


def box_ious(first: ArrayLike, second: ArrayLike) -> NDArray[np.float64]:
    """Return the intersection over union (n, m) of boxes (n, 4) and (m, 4), x1 y1 x2 y2."""
    a, b = (np.asarray(boxes, float).reshape(-1, 4) for boxes in (first, second))
    inner = box_intersections(a, b)
    areas = [(boxes[:, 2:] - boxes[:, :2]).prod(1) for boxes in (a, b)]
    union = areas[0][:, None] + areas[1] - inner
    ious: NDArray[np.float64] = np.divide(inner, union, out=np.zeros_like(inner), where=union > 0)
    return ious


def box_intersections(first: NDArray[np.float64], second: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the common area (n, m) of boxes (n, 4) and (m, 4)."""
    corners = np.minimum(first[:, None, 2:], second[:, 2:]) - np.maximum(first[:, None, :2], second[:, :2])
    areas: NDArray[np.float64] = corners.clip(0).prod(2)
    return areas
