"""Where an image comes to lie when it is fitted to a size, and its boxes and landmarks with it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from tensorstore_ds.errors import Problem
from tensorstore_ds.sources.base import Objects

Fit = Literal["pad", "crop", "stretch"]
FITS: tuple[Fit, ...] = get_args(Fit)

#: Reasons that are the resizing's doing, not a fault of the source.
BOX_CROPPED = "box-cropped"


@dataclass(frozen=True, slots=True)
class Placement:
    """A part of an image, resized and laid into the stored image.

    Attributes:
        box: (left, top, right, bottom) of that part, in source pixels.
        resized: (height, width) that it is resized to.
        size: (height, width) of the stored image.
        offset: (top, left) where it lies in the stored image.
    """

    box: tuple[float, float, float, float]
    resized: tuple[int, int]
    size: tuple[int, int]
    offset: tuple[int, int] = (0, 0)

    def move(self, points: NDArray[np.float64]) -> NDArray[np.float64]:
        """Points (..., 2) x y of the source, in pixels of the stored image. Pixel edges map to pixel edges."""
        left, top, right, bottom = self.box
        scale = np.array([self.resized[1] / (right - left), self.resized[0] / (bottom - top)])
        moved: NDArray[np.float64] = (points - (left, top)) * scale + (self.offset[1], self.offset[0])
        return moved


def place(source: tuple[int, int], size: tuple[int, int], fit: Fit) -> Placement:
    """Fit an image of (height, width) `source` to `size`.

    >>> place((100, 200), (50, 50), "pad").resized, place((100, 200), (50, 50), "pad").offset
    ((25, 50), (12, 0))
    >>> place((100, 200), (50, 50), "crop").box
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


def place_objects(
    key: str, objects: Objects, source: tuple[int, int], placement: Placement | None
) -> tuple[Objects, tuple[Problem, ...]]:
    """Check boxes against their image, move boxes and landmarks with it, and clip boxes to what is stored.

    A box that is not finite, is reversed, has no area or lies outside of its image is dropped with its object and
    named; so is one that the crop leaves without area (reason `box-cropped`). Landmarks are moved, never clipped: one
    that lies outside of the stored image keeps its coordinates there.

    Args:
        key: names the sample in problems.
        objects: in pixels of the source image.
        source: (height, width) of that image.
        placement: how it was fitted; None if it was not.

    Returns:
        The objects that remain, in pixels of the stored image, and the problems.
    """
    keypoints = objects.keypoints
    if keypoints is not None and placement is not None:
        keypoints = placement.move(keypoints)
    if objects.boxes is None:
        return replace(objects, keypoints=keypoints), ()
    boxes = objects.boxes
    faults = box_faults(boxes, source)
    height, width = source if placement is None else placement.size
    with np.errstate(invalid="ignore"):  # infinite or NaN boxes are faults already
        clipped = clip(boxes, source)
        if placement is not None:
            clipped = clip(placement.move(clipped.reshape(-1, 2, 2)).reshape(-1, 4), (height, width))
        stored = clipped.astype(np.float32)
        lost = ~((stored[:, 0] < stored[:, 2]) & (stored[:, 1] < stored[:, 3]))
    problems = []
    for i in np.flatnonzero(lost | (faults != "")):
        reason = str(faults[i]) or (BOX_CROPPED if placement is not None else "box-empty")
        numbers = ", ".join(f"{v:g}" for v in boxes[i])
        message = f"object {i}: the box ({numbers}) {_FAULTS[reason]}, in an image of {source[0]}x{source[1]}."
        problems.append(Problem(key, reason, message))
    keep = ~lost & (faults == "")
    moved = replace(objects, boxes=clipped, keypoints=keypoints)
    if keep.all():
        return moved, ()
    arrays = {name: getattr(moved, name) for name in Objects.__dataclass_fields__}
    return Objects(**{name: None if a is None else a[keep] for name, a in arrays.items()}), tuple(problems)


_FAULTS = {
    "box-nan": "is not finite",
    "box-reversed": "ends before it begins",
    "box-empty": "has no area",
    "box-outside": "lies outside",
    BOX_CROPPED: "is cut off by the crop",
}


def box_faults(boxes: NDArray[np.float64], size: tuple[int, int]) -> NDArray[np.str_]:
    """(M,) reason codes, empty where a box (M, 4) has an area inside an image of `size` (height, width)."""
    x1, y1, x2, y2 = boxes.T
    height, width = size
    faults = np.full(len(boxes), "", "U16")
    faults[(x1 >= width) | (y1 >= height) | (x2 <= 0) | (y2 <= 0)] = "box-outside"
    faults[(x1 == x2) | (y1 == y2)] = "box-empty"
    faults[(x1 > x2) | (y1 > y2)] = "box-reversed"
    faults[~np.isfinite(boxes).all(axis=1)] = "box-nan"
    return faults


def clip(boxes: NDArray[np.float64], size: tuple[int, int]) -> NDArray[np.float64]:
    """Boxes (M, 4) cut off at the edges of an image of `size` (height, width)."""
    height, width = size
    return np.clip(boxes, 0, np.array([width, height, width, height], np.float64))
