"""Batch transforms that move pixels: crops and mirroring, with boxes, keypoints and masks.

Coordinates are those of the store: (0, 0) is the outer corner of the upper left pixel, (W, H) that of the lower right.
Boxes are clipped to the crop, and an object whose box is left without area is dropped, with all of its values;
keypoints are moved, never clipped, and absent ones stay NaN. To drop objects on a GPU is to wait for it: only the GPU
knows how many are left.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import get_args

import numpy as np
import torch
from torch import Tensor

from tensorstore_ds.errors import OptionError
from tensorstore_ds.format.kinds import ObjectsField
from tensorstore_ds.loading.augment.base import BatchTransform, Params, Size, on_device
from tensorstore_ds.loading.augment.pixels import (
    PaddingMode,
    can_shift,
    crop,
    crop_padded,
    is_large,
    mirror,
    pad,
    resized_crop,
    resized_crop_nearest,
    shift,
)
from tensorstore_ds.loading.buffers import BufferPool
from tensorstore_ds.loading.collate import PackedObjects
from tensorstore_ds.options import refusal
from tensorstore_ds.reading.store import Split
from tensorstore_ds.seeding import Bits, uniforms

#: How often a resized crop is drawn until it fits into the image, as in torchvision.
ATTEMPTS = 10


class RandomCrop(BatchTransform):
    """Cut a part of fixed size from each image, at a random place: torchvision's `RandomCrop`.

    Args:
        size: of the part, one number or (height, width).
        padding: pixels added to the image beforehand: for all sides, (left and right, top and bottom), or
            (left, top, right, bottom).
        fill: what is added in the mode `constant`.
        padding_mode: ``constant``, ``edge``, ``reflect`` or ``symmetric``.
        mask_fill: what is added to masks in the mode `constant`; by default the value that stores ignore, 255, or 65535
            in masks of uint16.
    """

    def __init__(
        self,
        size: int | Sequence[int],
        padding: int | Sequence[int] = 0,
        *,
        fill: float = 0,
        padding_mode: PaddingMode = "constant",
        mask_fill: int | None = None,
        seed: int = 0,
    ) -> None:
        super().__init__(seed=seed)
        self.size = _size(size)
        self.padding = _sides(padding)
        self.fill = fill
        self.padding_mode = padding_mode
        self.mask_fill = mask_fill
        if padding_mode not in get_args(PaddingMode):
            modes = ", ".join(get_args(PaddingMode))
            raise refusal("padding_mode", f"one of {modes}", repr(padding_mode))

    def make_params(self, keys: Bits, size: Size) -> Params:
        """`top` and `left` (B,) int64: the part's corner in the padded image; `ValueError` if it has no room."""
        left, top, right, bottom = self.padding
        room = np.array([size[0] + top + bottom - self.size[0], size[1] + left + right - self.size[1]])
        if room.min() < 0:
            raise ValueError(
                f"RandomCrop: expected images of at least {self.size[0]}x{self.size[1]} with their padding, found "
                f"{size[0]}x{size[1]} and padding {self.padding}. Make `size` smaller or `padding` larger."
            )
        corner = torch.from_numpy((uniforms(keys, 2) * (room + 1)).astype(np.int64))
        return {"top": corner[:, 0], "left": corner[:, 1]}

    def transform_images(self, images: Tensor, params: Params, pool: BufferPool | None) -> Tensor:
        return self._cut(images, params, self.fill, pool)

    def transform_objects(self, objects: PackedObjects, params: Params, size: Size) -> PackedObjects:
        origin = torch.stack([params["left"] - self.padding[0], params["top"] - self.padding[1]], 1)
        return move_objects(objects, origin, torch.ones(len(origin), 2), self.size)

    def transform_masks(self, masks: Tensor, params: Params, pool: BufferPool | None) -> Tensor:
        ignored = -1 if masks.dtype == torch.int16 else 255  # uint16 comes as int16, in which 65535 is -1
        fill = ignored if self.mask_fill is None else self.mask_fill
        fill = fill - 2**16 if masks.dtype == torch.int16 and fill >= 2**15 else fill
        return self._cut(masks, params, fill, pool)

    def _cut(self, images: Tensor, params: Params, fill: float, pool: BufferPool | None) -> Tensor:
        top, left = params["top"], params["left"]
        if self.padding_mode == "constant" and can_shift(images, self.size, self.padding):
            return shift(images, top, left, self.padding, fill, pool)
        if self.padding_mode == "constant" and is_large(images):
            return crop_padded(images, top - self.padding[1], left - self.padding[0], self.size, fill, pool)
        if any(self.padding):
            images = pad(images, self.padding, self.padding_mode, fill)
        return crop(images, top, left, self.size, pool)


class RandomResizedCrop(BatchTransform):
    """Cut a part of random area and aspect ratio from each image and resize it: torchvision's `RandomResizedCrop`.

    Bilinear and antialiased. On a CPU the pixels are torchvision's to the bit; elsewhere they are rounded once instead
    of twice, which makes uint8 differ by at most one level.

    Args:
        size: of the results, one number or (height, width).
        scale: smallest and largest share of the image's area.
        ratio: smallest and largest width divided by height.
    """

    def __init__(
        self,
        size: int | Sequence[int],
        scale: tuple[float, float] = (0.08, 1.0),
        ratio: tuple[float, float] = (3 / 4, 4 / 3),
        *,
        seed: int = 0,
    ) -> None:
        super().__init__(seed=seed)
        self.size = _size(size)
        self.scale = scale
        self.ratio = ratio
        for name, (low, high) in {"scale": scale, "ratio": ratio}.items():
            if not 0 < low <= high:
                raise refusal(name, "two positive numbers, the smaller first", (low, high))

    def make_params(self, keys: Bits, size: Size) -> Params:
        """`boxes` (B, 4) int64: top, left, height and width of the part.

        Drawn as torchvision does: the first of ten draws that fits into the image, else the largest part in the middle
        with an allowed aspect ratio.
        """
        height, width = size
        share, shape, y, x = uniforms(keys, 4 * ATTEMPTS).reshape(-1, 4, ATTEMPTS).swapaxes(0, 1)
        area = height * width * (self.scale[0] + share * (self.scale[1] - self.scale[0]))
        low, high = math.log(self.ratio[0]), math.log(self.ratio[1])
        shape = np.exp(low + shape * (high - low))
        part_w, part_h = np.rint(np.sqrt(area * shape)), np.rint(np.sqrt(area / shape))
        top, left = np.floor(y * (height - part_h + 1)), np.floor(x * (width - part_w + 1))
        fits = (part_w > 0) & (part_w <= width) & (part_h > 0) & (part_h <= height)
        drawn = np.stack([top, left, part_h, part_w], 1)  # (B, 4, attempts)
        first = np.take_along_axis(drawn, fits.argmax(1)[:, None, None], 2)[:, :, 0]
        largest = min(height, max(1, round(width / self.ratio[0]))), min(width, max(1, round(height * self.ratio[1])))
        middle = (height - largest[0]) // 2, (width - largest[1]) // 2, *largest
        boxes = np.where(fits.any(axis=1, keepdims=True), first, middle).astype(np.int64)
        return {"boxes": torch.from_numpy(boxes)}

    def transform_images(self, images: Tensor, params: Params, pool: BufferPool | None) -> Tensor:
        return resized_crop(images, params["boxes"], self.size, pool)

    def transform_objects(self, objects: PackedObjects, params: Params, size: Size) -> PackedObjects:
        zoom = torch.tensor(self.size, dtype=torch.float64) / params["boxes"][:, 2:]
        return move_objects(objects, params["boxes"][:, :2].flip(1), zoom.flip(1), self.size)

    def transform_masks(self, masks: Tensor, params: Params, pool: BufferPool | None) -> Tensor:
        return resized_crop_nearest(masks, params["boxes"], self.size)


class RandomHorizontalFlip(BatchTransform):
    """Mirror images left to right, each with probability `p`: torchvision's `RandomHorizontalFlip`.

    Keypoints of the left and the right side change places, which torchvision leaves to the user; and x becomes W - x,
    since coordinates are those of pixel edges, where torchvision's `KeyPoints` counts pixels, W - 1 - x.

    Args:
        p: probability.
        flip_pairs: pairs of keypoints that change places; empty if none do. Needed if objects have several keypoints.
    """

    def __init__(self, p: float = 0.5, flip_pairs: Sequence[tuple[int, int]] | None = None, *, seed: int = 0) -> None:
        super().__init__(seed=seed)
        self.p = p
        self.flip_pairs = None if flip_pairs is None else tuple((int(a), int(b)) for a, b in flip_pairs)
        if not 0 <= p <= 1:
            raise refusal("p", "a probability in [0, 1]", p)

    @classmethod
    def from_split(cls, split: Split, p: float = 0.5, *, seed: int = 0) -> RandomHorizontalFlip:
        """With the pairs that the store keeps; raises `OptionError` if the split has no objects."""
        field = split.fields.get("objects")
        if not isinstance(field, ObjectsField):
            expected = "expected a field objects"
            raise OptionError(f"split {split.name!r}: {expected}, found none. Use RandomHorizontalFlip(p).")
        return cls(p, field.flip_pairs, seed=seed)

    def make_params(self, keys: Bits, size: Size) -> Params:
        """`flip` (B,) bool."""
        return {"flip": torch.from_numpy(uniforms(keys, 1)[:, 0] < self.p)}

    def transform_images(self, images: Tensor, params: Params, pool: BufferPool | None) -> Tensor:
        return mirror(images, params["flip"], pool)

    def transform_objects(self, objects: PackedObjects, params: Params, size: Size) -> PackedObjects:
        width, values = size[1], dict(objects.values)
        flip = on_device(params["flip"], objects.offsets.device)[objects.image_index][:, None]
        if "boxes" in values:
            x1, y1, x2, y2 = values["boxes"].unbind(1)
            values["boxes"] = torch.where(flip, torch.stack([width - x2, y1, width - x1, y2], 1), values["boxes"])
        if "keypoints" in values:
            x, y = values["keypoints"].unbind(2)
            mirrored = torch.stack([width - x, y], 2)[:, on_device(self._order(x.shape[1]), x.device)]
            values["keypoints"] = torch.where(flip[..., None], mirrored, values["keypoints"])
        return PackedObjects(objects.offsets, values)

    def transform_masks(self, masks: Tensor, params: Params, pool: BufferPool | None) -> Tensor:
        return mirror(masks, params["flip"], pool)

    def _order(self, keypoints: int) -> Tensor:
        """(K,) int64: which keypoint comes to each place."""
        if self.flip_pairs is None and keypoints > 1:
            raise ValueError(
                "RandomHorizontalFlip: expected `flip_pairs` for objects with keypoints, found none. Use "
                "RandomHorizontalFlip.from_split(split), or `flip_pairs=()` if no keypoints change places."
            )
        order = list(range(keypoints))
        for a, b in self.flip_pairs or ():
            if not (0 <= a < keypoints and 0 <= b < keypoints):
                raise refusal("flip_pairs", f"pairs of numbers in [0, {keypoints})", (a, b))
            order[a], order[b] = order[b], order[a]
        return torch.tensor(order)


def move_objects(objects: PackedObjects, origin: Tensor, zoom: Tensor, size: tuple[int, int]) -> PackedObjects:
    """Move objects into a part of their image: a copy, without objects whose box has no area there.

    The part begins at `origin` and is then enlarged by `zoom`, both (B, 2) x y on the CPU, to (height, width) `size`.
    """
    device, sample = objects.offsets.device, objects.image_index
    origin, zoom = (on_device(t.to(torch.float32), device)[sample][:, None] for t in (origin, zoom))  # (M, 1, 2)
    moved = dict(objects.values)
    if "keypoints" in moved:
        moved["keypoints"] = (moved["keypoints"] - origin) * zoom
    if "boxes" not in moved:
        return PackedObjects(objects.offsets, moved)
    corners = (moved["boxes"].view(-1, 2, 2) - origin) * zoom
    x, y = corners[..., 0].clamp(0, size[1]), corners[..., 1].clamp(0, size[0])
    moved["boxes"] = torch.stack([x, y], 2).view(-1, 4)
    return PackedObjects(objects.offsets, moved).select((x[:, 0] < x[:, 1]) & (y[:, 0] < y[:, 1]))


def _size(size: int | Sequence[int]) -> tuple[int, int]:
    """(height, width) of one number or two."""
    height_width = (size, size) if isinstance(size, int) else tuple(size)
    if len(height_width) != 2 or min(height_width) < 1:
        raise refusal("size", "a positive number or (height, width)", size)
    return height_width


def _sides(padding: int | Sequence[int]) -> tuple[int, int, int, int]:
    """(left, top, right, bottom) of one number, two or four."""
    sides = (padding,) if isinstance(padding, int) else tuple(padding)
    if len(sides) not in (1, 2, 4) or min(sides) < 0:
        raise refusal("padding", "one, two or four numbers of at least 0", padding)
    left, top, right, bottom = sides * (4 // len(sides))
    return left, top, right, bottom
