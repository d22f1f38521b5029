"""Objects moved along with the images of their batch: placed, clipped, dropped, mirrored."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from tensorstore_ds.errors import OptionError
from tensorstore_ds.format.kinds import ObjectsField
from tensorstore_ds.imaging.oriented import corners_to_oriented, oriented_to_corners
from tensorstore_ds.loading.augment.placements import Placements
from tensorstore_ds.loading.buffers import on_device
from tensorstore_ds.loading.collate import PackedObjects
from tensorstore_ds.loading.outlines import FRAME
from tensorstore_ds.options import refusal

ORIENTED = "oriented_boxes"
#: Rounding error of float32 in shares of a box's area.
_ROUNDING = 1e-4


def place_objects(
    objects: PackedObjects, placements: Placements, flip_pairs: Sequence[tuple[int, int]] | None = None
) -> PackedObjects:
    """Move objects with their images: a copy without objects that have too little visible area, or none."""
    device, sample, moved = objects.offsets.device, objects.image_index, dict(objects.values)
    low, high = placements.window
    zoom = np.where(placements.resized > 0, placements.zoom, 1)
    pairs = np.stack([placements.origin - placements.offset / zoom, zoom, low, high])[..., ::-1].astype(np.float32)
    origin, zooms, least, most = on_device(torch.from_numpy(pairs), device)[:, sample][:, :, None].unbind(
        0
    )  # (M, 1, 2)
    for name in moved.keys() & {"keypoints", FRAME}:
        moved[name] = (moved[name] - origin) * zooms
    if FRAME in moved:
        moved[FRAME] = torch.cat([moved[FRAME][:, :2], moved[FRAME][:, 2:].clamp(least, most)], 1)
    if "area" in moved:
        moved["area"] = moved["area"] * zooms[:, 0].prod(1)
    if ORIENTED in moved:
        moved[ORIENTED] = corners_to_oriented((oriented_to_corners(moved[ORIENTED]) - origin) * zooms)
    result = PackedObjects(objects.offsets, moved)
    if "boxes" in moved:
        whole = (moved["boxes"].view(-1, 2, 2) - origin) * zooms
        result = clip_objects(result, whole, least, most, placements.min_visibility)
    if not placements.flip.any():
        return result
    widths = torch.from_numpy(placements.size[:, 1].astype(np.float32))
    return mirror_objects(result, torch.from_numpy(placements.flip), widths, flip_pairs)


def clip_objects(
    objects: PackedObjects, whole: Tensor, least: Tensor, most: Tensor, min_visibility: float
) -> PackedObjects:
    """Clip boxes `whole`, (M, 2, 2) x, y, to [least, most]: a copy without objects of no or too little area."""
    corners = whole.clamp(least, most)
    keep = (corners[:, 0] < corners[:, 1]).all(1)
    if min_visibility > 0:
        seen, area = ((box[:, 1] - box[:, 0]).prod(1) for box in (corners, whole))
        keep &= seen >= (min_visibility - _ROUNDING) * area
    return PackedObjects(objects.offsets, {**objects.values, "boxes": corners.reshape(-1, 4)}).select(keep)


def mirror_objects(
    objects: PackedObjects, flip: Tensor, widths: Tensor, flip_pairs: Sequence[tuple[int, int]] | None
) -> PackedObjects:
    """Mirror objects left to right where `flip`, (B,) bool, in images of these (B,) widths: a copy."""
    values, device, sample = dict(objects.values), objects.offsets.device, objects.image_index
    flipped = on_device(flip, device)[sample][:, None]
    width = on_device(widths, device)[sample]
    if "boxes" in values:
        x1, y1, x2, y2 = values["boxes"].unbind(1)
        values["boxes"] = torch.where(flipped, torch.stack([width - x2, y1, width - x1, y2], 1), values["boxes"])
    if ORIENTED in values:
        cx, cy, w, h, angle = values[ORIENTED].unbind(1)
        half = torch.copysign(torch.full_like(angle, torch.pi), angle)
        mirrored = torch.stack([width - cx, cy, w, h, half - angle], 1)
        values[ORIENTED] = torch.where(flipped, mirrored, values[ORIENTED])
    for name in values.keys() & {"keypoints", FRAME}:
        x, y = values[name].unbind(2)
        mirrored = torch.stack([width[:, None] - x, y], 2)
        values[name] = torch.where(flipped[..., None], mirrored, values[name])
    for name in values.keys() & {"keypoints", "visibility"}:
        each = values[name]
        swapped = each[:, on_device(_flipped_order(each.shape[1], flip_pairs), device)]
        values[name] = torch.where(flipped.view(-1, *[1] * (each.ndim - 1)), swapped, each)
    return PackedObjects(objects.offsets, values)


def stored_pairs(field: ObjectsField, where: str) -> tuple[tuple[int, int], ...]:
    """Return the store's pairs of keypoints. Raises `OptionError` if there are none for several keypoints."""
    if len(field.keypoints) > 1 and not field.flip_pairs:
        raise OptionError(
            f"{where}: expected pairs of keypoints that change places in a mirrored image, found none for "
            f"{len(field.keypoints)} keypoints. Use RandomHorizontalFlip(flip_pairs=[(left, right), ...]), "
            "`flip_pairs=()` if none change places, or no flip."
        )
    return field.flip_pairs


def _flipped_order(keypoints: int, flip_pairs: Sequence[tuple[int, int]] | None) -> Tensor:
    """Return the keypoint that moves to each position, (K,) int64."""
    if flip_pairs is None and keypoints > 1:
        raise ValueError(
            "RandomHorizontalFlip: expected `flip_pairs` for objects with keypoints, found none. Use "
            "RandomHorizontalFlip.from_split(split), or `flip_pairs=()` if no keypoints change places."
        )
    order = list(range(keypoints))
    for a, b in flip_pairs or ():
        if not (0 <= a < keypoints and 0 <= b < keypoints):
            raise refusal("flip_pairs", f"pairs of numbers in [0, {keypoints})", (a, b))
        order[a], order[b] = order[b], order[a]
    return torch.tensor(order)
