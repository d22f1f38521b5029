"""Position of an image that is fitted to a size, and of its annotations."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

Fit = Literal["pad", "crop", "stretch"]
FITS: tuple[Fit, ...] = get_args(Fit)
#: A larger image is decoded at least this many times larger than it becomes.
_RESERVE = 2


@dataclass(frozen=True, slots=True)
class Placement:
    """A part of an image, resized and put into the stored image.

    `box` is (left, top, right, bottom) of that part, in source pixels. `resized` and `size` are (height, width) of the
    part and of the stored image, and `offset` is (top, left) of the part in it. An object is dropped if a smaller share
    of its box than `min_visibility` is in the stored image. With a `reserve`, the image may be reduced while it is
    decoded, if it stays this many times larger than the stored one.
    """

    box: tuple[float, float, float, float]
    resized: tuple[int, int]
    size: tuple[int, int]
    offset: tuple[int, int] = (0, 0)
    min_visibility: float = 0.0
    reserve: int = 0

    def move(self, points: NDArray[np.float64]) -> NDArray[np.float64]:
        """Move points (..., 2) x y of the source to pixels of the stored image. Pixel edges map to pixel edges."""
        left, top, right, bottom = self.box
        scale = np.array([self.resized[1] / (right - left), self.resized[0] / (bottom - top)])
        moved: NDArray[np.float64] = (points - (left, top)) * scale + (self.offset[1], self.offset[0])
        return moved


def fit_box(source: tuple[int, int], size: tuple[int, int], fit: Fit) -> Placement:
    """Fit an image of (height, width) `source` to `size`.

    >>> fit_box((100, 200), (50, 50), "pad").resized, fit_box((100, 200), (50, 50), "pad").offset
    ((25, 50), (12, 0))
    >>> fit_box((100, 200), (50, 50), "crop").box
    (50.0, 0.0, 150.0, 100.0)
    """
    (height, width), (to_height, to_width) = source, size
    if fit == "stretch":
        return Placement((0, 0, width, height), size, size)
    if fit == "crop":
        scale = max(to_height / height, to_width / width)
        keep_h, keep_w = min(height, to_height / scale), min(width, to_width / scale)
        left, top = (width - keep_w) / 2, (height - keep_h) / 2
        return Placement((left, top, left + keep_w, top + keep_h), size, size)
    scale = min(to_height / height, to_width / width)
    resized = (min(to_height, max(1, round(height * scale))), min(to_width, max(1, round(width * scale))))
    offset = ((to_height - resized[0]) // 2, (to_width - resized[1]) // 2)
    return Placement((0, 0, width, height), resized, size, offset)


def shrink(source: tuple[int, int], max_side: int) -> Placement | None:
    """Reduce an image of (height, width) `source` so that no side exceeds `max_side`, or return None if none does.

    >>> shrink((500, 1000), 250).size, shrink((250, 200), 250)
    ((125, 250), None)
    """
    height, width = source
    scale = max_side / max(source)
    if scale >= 1:
        return None
    size = max(1, round(height * scale)), max(1, round(width * scale))
    return Placement((0, 0, width, height), size, size, reserve=_RESERVE)


def box_faults(boxes: NDArray[np.float64], size: tuple[int, int]) -> NDArray[np.str_]:
    """Return reason codes (M,), empty if a box (M, 4) has an area inside an image of `size` (height, width)."""
    x1, y1, x2, y2 = boxes.T
    height, width = size
    faults = np.full(len(boxes), "", "U16")
    faults[(x1 >= width) | (y1 >= height) | (x2 <= 0) | (y2 <= 0)] = "box-outside"
    faults[(x1 == x2) | (y1 == y2)] = "box-empty"
    faults[(x1 > x2) | (y1 > y2)] = "box-reversed"
    faults[~np.isfinite(boxes).all(axis=1)] = "box-nan"
    return faults


def clip(boxes: NDArray[np.float64], size: tuple[int, int]) -> NDArray[np.float64]:
    """Clip boxes (M, 4) at the edges of an image of `size` (height, width)."""
    height, width = size
    return np.clip(boxes, 0, np.array([width, height, width, height], np.float64))
