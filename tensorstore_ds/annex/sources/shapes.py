"""Shapes of labelling tools: ellipses as boxes, and points that belong to an object by their group."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from tensorstore_ds.sources.annotations import AnnotatedObject, Box
from tensorstore_ds.sources.xml import Place


def ellipse_box(center: Place, radii: Place, degrees: float) -> Box:
    """Smallest box around an ellipse that is rotated around its center."""
    (x, y), (rx, ry) = center, radii
    turn = math.radians(math.fmod(degrees, 360))
    width = math.hypot(rx * math.cos(turn), ry * math.sin(turn))
    height = math.hypot(rx * math.sin(turn), ry * math.cos(turn))
    return x - width, y - height, x + width, y + height


def attach_points(
    points: Sequence[tuple[object, str, Place]], objects: list[AnnotatedObject], groups: Mapping[object, Sequence[int]]
) -> int:
    """Add points to the one object of their group; returns how many have none, or a repeated name."""
    alone = 0
    for group, name, place in points:
        owners = groups.get(group, ()) if group is not None else ()
        if len(owners) == 1 and name not in objects[owners[0]].keypoints:
            owner = objects[owners[0]]
            objects[owners[0]] = replace(owner, keypoints={**owner.keypoints, name: place})
        else:
            alone += 1
    return alone
