"""Oriented boxes, as center, sides and angle or as four corners, in NumPy or in torch."""

from __future__ import annotations

import math
import sys
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

#: A rectangle along another edge is chosen only if its area is smaller by this factor. For a rectangle that was moved,
#: rotated, mirrored or scaled, all areas are equal except for rounding, and `w` must stay the same side.
_SMALLER = 1 - 1e-4
#: Rounding error of a side of length 0, in double precision, as a share of the coordinates.
_ROUNDING = 1e-9


def oriented_to_corners(boxes: Any) -> Any:
    """Compute the corners of oriented boxes.

    The edge from corner 0 to corner 1 has the length w and the direction of the angle. The corners are in clockwise
    order on the screen. For a box with angle 0 they are upper left, upper right, lower right and lower left.

    Args:
        boxes: (M, 5) of cx, cy, w, h in pixels and the angle in radians, an array or a tensor of floats.

    Returns:
        (M, 4, 2) of x and y, a new array or tensor of the same type. NaN where a box is absent.

    >>> oriented_to_corners(np.array([[10.0, 10, 4, 2, 0]])).tolist()
    [[[8.0, 9.0], [12.0, 9.0], [12.0, 11.0], [8.0, 11.0]]]
    """
    xp = _module_of(boxes)
    center, sides, angle = boxes[:, :2], boxes[:, 2:4] / 2, boxes[:, 4]
    along = xp.stack([xp.cos(angle), xp.sin(angle)], 1) * sides[:, :1]
    across = xp.stack([-xp.sin(angle), xp.cos(angle)], 1) * sides[:, 1:]
    corners = [center - along - across, center + along - across, center + along + across, center - along + across]
    return xp.stack(corners, 1)


def corners_to_oriented(corners: Any) -> Any:
    """Compute the smallest oriented box around each group of four corners.

    If the corners form a rectangle, rotated or mirrored in any way, the result is this rectangle, and w is the length
    of the edge from corner 0 to corner 1. If they form another quadrilateral, such as a sheared rectangle, the result
    is the smallest rectangle with a side along one of the edges, and w is the side whose direction is closer to the
    first edge. (The smallest rectangle around a convex polygon has a side along one of its edges: Freeman and Shapira,
    Determining the minimum-area encasing rectangle for an arbitrary closed curve, Communications of the ACM 18(7),
    1975.)

    Args:
        corners: (M, 4, 2) of x and y in pixels, in order around each box, an array or a tensor of floats.

    Returns:
        (M, 5) of cx, cy, w, h in pixels and the angle in radians in [-pi, pi], a new array or tensor of the same type.
        NaN where a corner is NaN.

    >>> tsds.loading.corners_to_oriented(np.array([[[8.0, 9], [12, 9], [12, 11], [8, 11]]])).tolist()
    [[10.0, 10.0, 4.0, 2.0, 0.0]]
    """
    xp = _module_of(corners)
    first = corners[:, 1] - corners[:, 0]
    best: Any = None
    best_area: Any = None
    for i in range(4):
        edge = corners[:, (i + 1) % 4] - corners[:, i]
        if i % 2:
            edge = xp.stack([-edge[:, 1], edge[:, 0]], 1)
        length = xp.hypot(edge[:, 0], edge[:, 1])[:, None]
        x_axis = xp.stack([xp.ones_like(length[:, 0]), xp.zeros_like(length[:, 0])], 1)
        along = xp.where(length > 0, edge / xp.where(length > 0, length, xp.ones_like(length)), x_axis)
        along = xp.where(((along * first).sum(1) < 0)[:, None], -along, along)
        across = xp.stack([-along[:, 1], along[:, 0]], 1)
        places = [(corners * axis[:, None]).sum(2) for axis in (along, across)]
        low, high = ([getattr(xp, which)(place, 1) for place in places] for which in ("amin", "amax"))
        sides = [b - a for a, b in zip(low, high, strict=True)]
        middles = [(a + b) / 2 for a, b in zip(low, high, strict=True)]
        center = along * middles[0][:, None] + across * middles[1][:, None]
        angle = xp.arctan2(along[:, 1], along[:, 0])
        found = xp.stack([center[:, 0], center[:, 1], *sides, angle], 1)
        area = sides[0] * sides[1]
        if best is None:
            best, best_area = found, area
        else:
            smaller = area < best_area * _SMALLER
            best, best_area = xp.where(smaller[:, None], found, best), xp.where(smaller, area, best_area)
    return xp.where(xp.isnan(corners.sum(2).sum(1))[:, None], xp.full_like(best, xp.nan), best)


def as_corners(boxes: NDArray[Any]) -> NDArray[np.float64]:
    """Return corners (M, 4, 2) of oriented boxes, which may already be corners."""
    boxes = np.asarray(boxes, np.float64)
    corners: NDArray[np.float64] = boxes if boxes.ndim == 3 else oriented_to_corners(boxes.reshape(-1, 5))
    return corners


def upright_corners(boxes: NDArray[Any]) -> NDArray[Any]:
    """Return the corners (M, 4, 2) of upright boxes (M, 4) x1 y1 x2 y2."""
    x1, y1, x2, y2 = boxes.T
    return np.stack([x1, y1, x2, y1, x2, y2, x1, y2], 1).reshape(-1, 4, 2)


def oriented_faults(boxes: NDArray[Any]) -> NDArray[np.str_]:
    """Return the reason codes (M,) of `box_faults` for oriented boxes (M, 5), or their corners (M, 4, 2).

    "" means sound or absent, ``box-nan``, ``box-empty`` without area, and ``box-reversed`` with corners that are not in
    order around it.
    """
    values = np.asarray(boxes, np.float64)
    flat = values.reshape(len(values), math.prod(values.shape[1:]))
    with np.errstate(invalid="ignore", over="ignore"):
        stored = (corners_to_oriented(values) if values.ndim == 3 else values).astype(np.float32)
        rounding = _ROUNDING * np.abs(flat).max(axis=1, initial=0, keepdims=True) * (values.ndim == 3)
        is_reversed = _is_crossed(values) if values.ndim == 3 else (flat[:, 2:4] < 0).any(axis=1)
        is_empty = (stored[:, 2:4] <= rounding).any(axis=1)
    is_nan = ~(np.isfinite(flat).all(axis=1) & np.isfinite(stored).all(axis=1))
    found = np.select([is_nan, is_reversed, is_empty], ["box-nan", "box-reversed", "box-empty"], "")
    faults: NDArray[np.str_] = np.where(np.isnan(flat).all(axis=1), "", found)
    return faults


def _is_crossed(corners: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Return whether opposite edges cross, (M,)."""

    def apart(a: int, b: int, c: int, d: int) -> NDArray[np.bool_]:
        """Whether corners c and d are on different sides of the line through a and b."""
        start = corners[:, a]
        edge, one, other = (corners[:, i] - start for i in (b, c, d))
        sides = [edge[:, 0] * way[:, 1] - edge[:, 1] * way[:, 0] for way in (one, other)]
        is_apart: NDArray[np.bool_] = sides[0] * sides[1] < 0
        return is_apart

    return (apart(0, 1, 2, 3) & apart(2, 3, 0, 1)) | (apart(1, 2, 3, 0) & apart(3, 0, 1, 2))


def smallest_rectangle(points: NDArray[Any]) -> NDArray[np.float64]:
    """Return the corners (4, 2) of the smallest rectangle around points (n, 2), all NaN if all points are NaN.

    Its first edge is along the first edge of 4 points in order around a rectangle, else it is the longer one. It has a
    side along an edge of the convex hull, see `corners_to_oriented`.
    """
    points = np.asarray(points, np.float64).reshape(-1, 2)
    hull = _hull(points[np.isfinite(points).all(1)])
    if not len(hull):
        return np.full((4, 2), np.nan)
    edges = np.roll(hull, -1, axis=0) - hull
    lengths = np.hypot(*edges.T)
    along = edges[lengths > 0] / lengths[lengths > 0, None] if (lengths > 0).any() else np.array([[1.0, 0.0]])
    across = np.stack([-along[:, 1], along[:, 0]], 1)
    x, y = along @ hull.T, across @ hull.T
    i = int(np.argmin(np.ptp(x, axis=1) * np.ptp(y, axis=1)))
    left, right, top, bottom = x[i].min(), x[i].max(), y[i].min(), y[i].max()
    corners: NDArray[np.float64] = np.array([[left, top], [right, top], [right, bottom], [left, bottom]])
    corners = corners @ np.stack([along[i], across[i]])
    if len(points) == 4 and len(hull) == 4 and not _is_crossed(points[None])[0]:
        own = corners_to_oriented(points[None])
        if own[0, 2:4].prod() * _SMALLER <= (right - left) * (bottom - top):
            return np.asarray(as_corners(own)[0])
    return corners if right - left >= bottom - top else np.roll(corners, -1, axis=0)


def _hull(points: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the convex hull (m, 2), counterclockwise with y up (Andrew's monotone chain, 1979)."""
    ordered = np.unique(points, axis=0)
    if len(ordered) < 3:
        return ordered
    chains = []
    for sequence in (ordered, ordered[::-1]):
        chain: list[Any] = []
        for point in sequence.tolist():
            while len(chain) > 1 and _turn(chain[-2], chain[-1], point) <= 0:
                chain.pop()
            chain.append(point)
        chains.append(chain[:-1])
    return np.array(chains[0] + chains[1])


def _turn(a: list[float], b: list[float], c: list[float]) -> float:
    """Return a positive number if the path a, b, c turns to the side of y."""
    return (b[0] - a[0]) * (c[1] - a[1]) - (b[1] - a[1]) * (c[0] - a[0])


def _module_of(values: Any) -> ModuleType | Any:
    return np if isinstance(values, np.ndarray) else sys.modules["torch"]  # the caller's tensors have imported torch
