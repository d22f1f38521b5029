"""Objects moved along with the images of their batch: placed, clipped, dropped, mirrored."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from tensorstore_ds.errors import OptionError
from tensorstore_ds.format.kinds import ObjectsField
from tensorstore_ds.imaging.oriented import corners_to_oriented, oriented_to_corners
from tensorstore_ds.loading.augment.base import Size, on_device
from tensorstore_ds.loading.augment.placements import Placements
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


def warp_objects(objects: PackedObjects, inverse: Tensor, size: Size, min_visibility: float, who: str) -> PackedObjects:
    """Move objects by the matrices of `warp`, (B, 3, 3) on the CPU, in images of (height, width) `size`: a copy.

    A box becomes the smallest one around its 4 moved corners (those of its oriented box, if it has one), clipped to the
    image. An oriented box becomes the smallest one around its own moved corners. Keypoints outside of the image and
    beyond the horizon of a perspective become absent. Raises ValueError for outlines, which support upright images
    only.
    """
    if FRAME in objects.values:
        raise ValueError(
            f"{who}: expected objects without outlines, which cannot be turned, found some. Use "
            "StoreDataset(outlines=False), or crops and mirroring only."
        )
    height, width = size
    forward = torch.linalg.inv(inverse.to(torch.float64))
    middle = torch.tensor([width / 2, height / 2, 1.0], dtype=torch.float64)
    forward = forward / (forward[:, 2] @ middle)[:, None, None]  # visible points have a positive third coordinate
    matrix = on_device(forward.to(torch.float32), objects.offsets.device)[objects.image_index][..., None]

    def moved(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Return the moved points of M objects, (M, n)."""
        u, v, w = (matrix[:, i, 0] * x + matrix[:, i, 1] * y + matrix[:, i, 2] for i in range(3))
        w = torch.where(w > torch.finfo(w.dtype).eps, w, torch.nan)
        return u / w, v / w

    values = dict(objects.values)
    if "keypoints" in values:
        values["keypoints"] = torch.stack(moved(*values["keypoints"].unbind(2)), 2)
    if ORIENTED in values:
        turned = torch.stack(moved(*oriented_to_corners(values[ORIENTED]).unbind(2)), 2)
        values[ORIENTED] = corners_to_oriented(turned)
    result = PackedObjects(objects.offsets, values)
    if "boxes" not in values:
        return result
    x1, y1, x2, y2 = values["boxes"].unbind(1)
    corners = torch.stack(moved(torch.stack([x1, x2, x2, x1], 1), torch.stack([y1, y1, y2, y2], 1)), 2)
    if ORIENTED in values:
        corners = torch.where(turned.isfinite(), turned, corners)
    whole = torch.stack([corners.amin(1), corners.amax(1)], 1).nan_to_num()  # NaN: a box from outside of the image
    most = on_device(torch.tensor([[width, height]], dtype=torch.float32), whole.device)
    return clip_objects(result, whole, torch.zeros_like(most), most, min_visibility)


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
        if name == "keypoints":
            mirrored = mirrored[:, on_device(_flipped_order(x.shape[1], flip_pairs), device)]
        values[name] = torch.where(flipped[..., None], mirrored, values[name])
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
