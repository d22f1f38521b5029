"""Objects of an image: in pixels, checked, moved with the image, and in their stored dtypes."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tensorstore_ds.errors import Problem, SourceError
from tensorstore_ds.format.kinds import OBJECT_VALUES
from tensorstore_ds.format.kinds.objects import FLAGS, LISTS, PI
from tensorstore_ds.imaging.oriented import as_corners, corners_to_oriented, oriented_faults, smallest_rectangle
from tensorstore_ds.imaging.outlines import check_runs, mask_of_runs, runs_of_mask
from tensorstore_ds.imaging.placement import Placement, box_faults, clip
from tensorstore_ds.imaging.resizing import resize_nearest

#: Values of the objects of an image: arrays (M, ...), and lists of M arrays.
Objects = Mapping[str, Any]

#: Reasons caused by resizing, not by the source.
BOX_CROPPED = "box-cropped"
#: Kinds of doubt of `doubtful_boxes`.
FRACTIONS, CUT = "fractions", "cut"
#: Tolerance for shares of an area.
_ROUNDING = 1e-9


def in_pixels(objects: Objects, size: tuple[int, int]) -> Objects:
    """Convert coordinates from fractions of an image of this (height, width) to pixels."""
    scale = np.array(size[::-1], np.float64)  # of x and y
    scales = {"boxes": np.tile(scale, 2), "keypoints": scale}
    moved = {name: objects[name] * scales[name] for name in scales if name in objects}
    if "polygons" in objects:
        moved["polygons"] = [corners * scale for corners in objects["polygons"]]
    if "oriented_boxes" in objects:
        moved["oriented_boxes"] = as_corners(objects["oriented_boxes"]) * scale
    return {**objects, **moved}


def _with_rectangles(objects: Objects) -> NDArray[np.float64]:
    """(M, 4, 2) corners of oriented boxes; if missing, of the smallest rectangle around the polygons."""
    polygons = objects["polygons"]
    corners = np.full((len(polygons), 4, 2), np.nan)
    if "oriented_boxes" in objects:
        corners[:] = as_corners(objects["oriented_boxes"])
    for i in np.flatnonzero(np.isnan(corners).any(axis=(1, 2))):
        around = smallest_rectangle(polygons[i])
        if not oriented_faults(around[None])[0]:  # a polygon without an area has no oriented box
            corners[i] = around
    return corners


def stored_objects(key: str, objects: Objects, *, with_rectangles: bool) -> dict[str, Any]:
    """The given values in their stored dtypes; a keypoint that lacks one coordinate is absent.

    `with_rectangles` gives objects with polygons the smallest rectangle around them, unless they have an oriented box.
    """
    if with_rectangles and "polygons" in objects:
        objects = {**objects, "oriented_boxes": _with_rectangles(objects)}
    values: dict[str, Any] = {}
    for name, (dtype, _) in OBJECT_VALUES.items():
        if name in objects:
            value = objects[name] != 0 if name in FLAGS else objects[name]
            if name == "oriented_boxes":
                value = corners_to_oriented(as_corners(value))
                value[:, 4] = np.clip(value[:, 4], -PI, PI)
            with np.errstate(over="ignore"):  # infinity is refused below
                if name in LISTS:
                    values[name] = [np.ascontiguousarray(each, dtype) for each in value]
                else:
                    values[name] = np.ascontiguousarray(value, dtype)
    if "keypoints" in values:
        keypoints = values["keypoints"]
        if np.isinf(keypoints).any():
            raise SourceError(Problem(key, "annotation", "expected finite coordinates of keypoints, found infinity."))
        values["keypoints"] = np.where(np.isnan(keypoints).any(axis=2, keepdims=True), np.float32(np.nan), keypoints)
    if any(np.isinf(corners).any() for corners in values.get("polygons", ())):
        raise SourceError(Problem(key, "annotation", "expected finite coordinates of polygons, found infinity."))
    if any((np.isnan(corners[:, 0]) != np.isnan(corners[:, 1])).any() for corners in values.get("polygons", ())):
        raise SourceError(
            Problem(key, "annotation", "expected corners with two coordinates in polygons, found one that is NaN.")
        )
    return values


def place_objects(
    key: str,
    objects: Objects,
    source: tuple[int, int],
    placement: Placement | None,
    annotation: str = "",
    *,
    is_tile: bool = False,
) -> tuple[Objects, tuple[Problem, ...]]:
    """Check boxes against their image, move boxes and keypoints with it, and clip boxes to the stored image.

    `objects` are in pixels of the source image, whose (height, width) is `source`. The result is in pixels of the
    stored image, with the problems. A box that is not finite, is reversed, has no area or lies outside its image is
    dropped with its object; an oriented box likewise, also if its corners are not in order around it. So is a box with
    nothing left by the crop, or less than the placement's `min_visibility` (reason `box-cropped`); with `is_tile` this
    is no problem, because other tiles have the box. Keypoints are moved, never clipped, and keep their coordinates
    outside the image. Raises `SourceError` for values of differing lengths, and for runs that are not of the source
    image.
    """
    if len({*map(len, objects.values())}) > 1:
        found = ", ".join(f"{len(value)} {name}" for name, value in objects.items())
        raise SourceError(Problem(key, "annotation", f"expected as many of each for its objects, found {found}."))
    for runs in filter(len, objects.get("rle", ())):
        check_runs(runs, source, key)
    moved = dict(objects) if placement is None else _moved(key, objects, source, placement)
    if "boxes" not in moved:
        return moved, ()
    boxes = moved["boxes"]
    faults = box_faults(boxes, source)
    oriented = oriented_faults(objects["oriented_boxes"]) if "oriented_boxes" in objects else np.full(len(faults), "")
    is_oriented = (faults == "") & (oriented != "")
    faults = np.where(is_oriented, oriented, faults)
    height, width = source if placement is None else placement.size
    with np.errstate(invalid="ignore"):  # infinite or NaN boxes are faults already
        clipped = clip(boxes, source)
        if placement is not None:
            whole = placement.move(clipped.reshape(-1, 2, 2)).reshape(-1, 4)
            clipped = clip(whole, (height, width))
        stored = clipped.astype(np.float32)
        lost = ~((stored[:, 0] < stored[:, 2]) & (stored[:, 1] < stored[:, 3]))
        if placement is not None and placement.min_visibility:
            seen, area = ((box[:, 2] - box[:, 0]) * (box[:, 3] - box[:, 1]) for box in (clipped, whole))
            lost |= seen < (placement.min_visibility - _ROUNDING) * area
    problems = []
    for i in np.flatnonzero((lost & (not is_tile)) | (faults != "")):
        reason = str(faults[i]) or (BOX_CROPPED if placement is not None else "box-empty")
        what, means, shown = "box", _FAULTS, boxes[i]
        if is_oriented[i]:
            what, means, shown = "oriented box", _ORIENTED_FAULTS, np.asarray(objects["oriented_boxes"][i]).reshape(-1)
        numbers = ", ".join(f"{v:g}" for v in shown)
        which = f"object {i + 1} of {len(boxes)}{f' in {annotation}' if annotation else ''}"
        message = f"{which}: the {what} ({numbers}) {means[reason]}, in an image of {source[0]}x{source[1]}."
        problems.append(Problem(key, reason, message))
    remains = ~lost & (faults == "")
    moved["boxes"] = clipped
    if not remains.all():
        moved = {name: _selected(values, remains) for name, values in moved.items()}
    return moved, tuple(problems)


def _moved(key: str, objects: Objects, source: tuple[int, int], placement: Placement) -> dict[str, Any]:
    """All values except the boxes, in pixels of the stored image."""
    moved = dict(objects)
    if "keypoints" in moved:
        moved["keypoints"] = placement.move(moved["keypoints"])
    if "area" in moved:
        left, top, right, bottom = placement.box
        moved["area"] = moved["area"] * (math.prod(placement.resized) / ((right - left) * (bottom - top)))
    if "polygons" in moved:
        moved["polygons"] = [placement.move(corners) for corners in moved["polygons"]]
    if "oriented_boxes" in moved:
        moved["oriented_boxes"] = placement.move(as_corners(moved["oriented_boxes"]))
    if "rle" in moved:
        masks = [mask_of_runs(runs, source, key) if len(runs) else None for runs in moved["rle"]]
        none = np.empty(0, np.uint32)
        moved["rle"] = [none if mask is None else runs_of_mask(resize_nearest(mask, placement, 0)) for mask in masks]
    return moved


def _selected(values: Any, remains: NDArray[np.bool_]) -> Any:
    return list(itertools.compress(values, remains)) if isinstance(values, list) else values[remains]


_FAULTS = {
    "box-nan": "is not finite",
    "box-reversed": "ends before it begins",
    "box-empty": "has no area",
    "box-outside": "lies outside",
    BOX_CROPPED: "is cut off by the crop",
}
_ORIENTED_FAULTS = {**_FAULTS, "box-reversed": "has sides below 0, or corners that are not in order around it"}


def doubtful_boxes(key: str, objects: Objects | None, size: tuple[int, int], *, relative: bool) -> dict[str, list[Any]]:
    """Number of probably wrong boxes of an image, and an example, by the kind of doubt.

    `FRACTIONS`: all coordinates of all boxes, or of all keypoints without boxes, are within 0 and 1 in an image of this
    (height, width). `CUT`: less than half of the box's area is inside the image.
    """
    values = None if objects is None else objects.get("boxes", objects.get("keypoints"))
    if values is None or not len(values):
        return {}
    values = np.asarray(values, np.float64)
    if not relative:
        with np.errstate(invalid="ignore"):
            finite = values[np.isfinite(values)]
        if len(finite) and min(size) > 1 and finite.min() >= 0 and finite.max() <= 1:
            return {FRACTIONS: [len(values), _example(key, values[0].reshape(-1)[:4], size)]}
    if values.ndim == 3:  # keypoints
        return {}
    height, width = (1, 1) if relative else size
    x1, y1, x2, y2 = values.T
    if x1.min() >= 0 and y1.min() >= 0 and x2.max() <= width and y2.max() <= height:
        return {}
    with np.errstate(invalid="ignore"):
        inside = clip(values, (height, width))
        areas, seen = ((box[:, 2] - box[:, 0]) * (box[:, 3] - box[:, 1]) for box in (values, inside))
        is_cut = (box_faults(values, (height, width)) == "") & (2 * seen < areas)
    first = int(is_cut.argmax())
    return {CUT: [int(is_cut.sum()), _example(key, values[first], size)]} if is_cut.any() else {}


def _example(key: str, values: NDArray[np.float64], size: tuple[int, int]) -> str:
    return f"({', '.join(f'{value:g}' for value in values)}) in {key}, an image of {size[0]}x{size[1]}"
