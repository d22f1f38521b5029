"""Transforms that move pixels: crops, resizing, padding and mirroring, with boxes, keypoints and masks.

They transform batches, and they are the steps of decode plans: what a step places is not decoded in vain.

Coordinates are those of the store: (0, 0) is the outer corner of the upper left pixel, (W, H) that of the lower right.
Boxes are clipped to the crop, and an object whose box is left without area, or with less of it than `min_visibility`
asks for, is dropped, with all of its values;
keypoints are moved, never clipped, and absent ones stay NaN. To drop objects on a GPU is to wait for it: only the GPU
knows how many are left.
"""

from __future__ import annotations

import operator
from abc import abstractmethod
from collections.abc import Sequence
from numbers import Real
from typing import ClassVar, get_args

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor
from torch.nn import functional

from tensorstore_ds.errors import OptionError
from tensorstore_ds.format.kinds import ObjectsField
from tensorstore_ds.loading.augment.base import BatchTransform, Params, Size, Sizes, on_device
from tensorstore_ds.loading.augment.pixels import (
    PaddingMode,
    can_shift,
    crop,
    crop_padded,
    is_large,
    memory_format_of,
    mirror,
    pad,
    resized_crop,
    resized_crop_nearest,
    shift,
)
from tensorstore_ds.loading.augment.placements import Placements
from tensorstore_ds.loading.buffers import BufferPool
from tensorstore_ds.loading.collate import PackedObjects
from tensorstore_ds.loading.outlines import FRAME
from tensorstore_ds.options import refusal
from tensorstore_ds.reading.store import Split
from tensorstore_ds.seeding import Bits, uniforms

#: How often a resized crop is drawn until it fits into the image, as in torchvision.
ATTEMPTS = 10
#: The largest side of a result: memory for it is taken before anything else can be known.
_MOST_SIDE = 2**15
#: float32 makes shares of a box's area wrong by less than this.
_ROUNDING = 1e-4


class Geometry(BatchTransform):
    """What moves pixels: a transform of batches, and a step of a decode plan."""

    #: Whether all images have one size after it, whatever they had before; None: if they had one before.
    fixes_size: ClassVar[bool | None] = True

    @abstractmethod
    def place(self, placements: Placements, keys: Bits) -> Placements:
        """Placements of B images after it, with what it draws by `keys`."""


class RandomCrop(Geometry):
    """Cut a part of fixed size from each image, at a random place: torchvision's `RandomCrop`.

    Args:
        size: of the part, one number or (height, width).
        padding: pixels added to the image beforehand: for all sides, (left and right, top and bottom), or
            (left, top, right, bottom).
        fill: what is added in the mode `constant`.
        padding_mode: ``constant``, ``edge``, ``reflect`` or ``symmetric``.
        mask_fill: what is added to masks in the mode `constant`; by default the value that stores ignore, 255, or 65535
            in masks of uint16.
        min_visibility: the smallest share of a box's area, in [0, 1], that must be visible in the result. Objects with
            less are dropped. In a decode plan it applies to the stored box and to the result of all steps.
    """

    def __init__(
        self,
        size: int | Sequence[int],
        padding: int | Sequence[int] = 0,
        *,
        fill: float = 0,
        padding_mode: PaddingMode = "constant",
        mask_fill: int | None = None,
        min_visibility: float = 0.0,
        seed: int = 0,
    ) -> None:
        super().__init__(seed=seed)
        self.size = _size(size)
        self.padding = _sides(padding)
        self.fill = fill
        self.padding_mode = padding_mode
        self.mask_fill = mask_fill
        self.min_visibility = _visibility(min_visibility)
        if padding_mode not in get_args(PaddingMode):
            modes = ", ".join(get_args(PaddingMode))
            raise refusal("padding_mode", f"one of {modes}", repr(padding_mode))

    def make_params(self, keys: Bits, size: Sizes) -> Params:
        """`top` and `left` (B,) int64: the part's corner in the padded image; `ValueError` if it has no room."""
        left, top, right, bottom = self.padding
        room = np.asarray(size, np.int64) + np.array([top + bottom, left + right]) - self.size
        if room.min() < 0:
            height, width = np.asarray(size).reshape(-1, 2)[room.reshape(-1, 2).min(axis=1).argmin()]
            raise ValueError(
                f"RandomCrop: expected images of at least {self.size[0]}x{self.size[1]} with their padding, found "
                f"{height}x{width} and padding {self.padding}. Make `size` smaller or `padding` larger."
            )
        corner = torch.from_numpy((uniforms(keys, 2) * (room + 1)).astype(np.int64))
        return {"top": corner[:, 0], "left": corner[:, 1]}

    def place(self, placements: Placements, keys: Bits) -> Placements:
        if any(self.padding) and self.padding_mode != "constant":
            raise refusal("padding_mode", "constant in a decode plan", self.padding_mode)
        return self._placed(placements, self.make_params(keys, placements.size))

    def _placed(self, placements: Placements, params: Params) -> Placements:
        left, top, right, bottom = self.padding
        corner = torch.stack([params["top"], params["left"]], 1).numpy()
        padded = placements.pad((top, left), (bottom, right), self.fill)
        return padded.crop(corner, self.size, self.min_visibility)

    def transform_images(self, images: Tensor, params: Params, pool: BufferPool | None) -> Tensor:
        return self._cut(images, params, self.fill, pool)

    def transform_objects(self, objects: PackedObjects, params: Params, size: Size) -> PackedObjects:
        return place_objects(objects, self._placed(Placements.whole([size] * len(objects)), params))

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


class RandomResizedCrop(Geometry):
    """Cut a part of random area and aspect ratio from each image and resize it: torchvision's `RandomResizedCrop`.

    Bilinear and antialiased. On a CPU the pixels are torchvision's to the bit; elsewhere they are rounded once instead
    of twice, which makes uint8 differ by at most one level.

    Args:
        size: of the results, one number or (height, width).
        scale: smallest and largest share of the image's area.
        ratio: smallest and largest width divided by height.
        min_visibility: the smallest share of a box's area, in [0, 1], that must be visible in the result. Objects with
            less are dropped. In a decode plan it applies to the stored box and to the result of all steps.
    """

    def __init__(
        self,
        size: int | Sequence[int],
        scale: tuple[float, float] = (0.08, 1.0),
        ratio: tuple[float, float] = (3 / 4, 4 / 3),
        *,
        min_visibility: float = 0.0,
        seed: int = 0,
    ) -> None:
        super().__init__(seed=seed)
        self.size = _size(size)
        self.scale = scale
        self.ratio = ratio
        self.min_visibility = _visibility(min_visibility)
        for name, limits in {"scale": scale, "ratio": ratio}.items():
            numbers = np.asarray(limits, float)
            if numbers.shape != (2,) or not 0 < numbers[0] <= numbers[1] < np.inf:
                raise refusal(name, "two positive numbers, the smaller first", limits)

    def make_params(self, keys: Bits, size: Sizes) -> Params:
        """`boxes` (B, 4) int64: top, left, height and width of the part.

        Drawn as torchvision does: the first of ten draws that fits into the image, else the largest part in the middle
        with an allowed aspect ratio.
        """
        height, width = np.broadcast_to(np.asarray(size, np.int64), (len(keys), 2)).T[:, :, None]
        share, shape, y, x = uniforms(keys, 4 * ATTEMPTS).reshape(-1, 4, ATTEMPTS).swapaxes(0, 1)
        area = height * width * (self.scale[0] + share * (self.scale[1] - self.scale[0]))
        least, most = self._ratios(width / height)
        low, high = np.log(least), np.log(most)
        shape = np.exp(low + shape * (high - low))
        part_w, part_h = np.rint(np.sqrt(area * shape)), np.rint(np.sqrt(area / shape))
        top, left = np.floor(y * (height - part_h + 1)), np.floor(x * (width - part_w + 1))
        fits = (part_w > 0) & (part_w <= width) & (part_h > 0) & (part_h <= height)
        drawn = np.stack([top, left, part_h, part_w], 1)  # (B, 4, attempts)
        first = np.take_along_axis(drawn, fits.argmax(1)[:, None, None], 2)[:, :, 0]
        largest_h = np.minimum(height, np.rint(width / least).clip(1))
        largest_w = np.minimum(width, np.rint(height * most).clip(1))
        middle = np.hstack([(height - largest_h) // 2, (width - largest_w) // 2, largest_h, largest_w])
        boxes = np.where(fits.any(axis=1, keepdims=True), first, middle).astype(np.int64)
        return {"boxes": torch.from_numpy(boxes)}

    def _ratios(self, aspects: NDArray[np.float64]) -> tuple[ArrayLike, ArrayLike]:
        """Smallest and largest ratio, of images whose width divided by height is `aspects`."""
        return self.ratio

    def place(self, placements: Placements, keys: Bits) -> Placements:
        return self._placed(placements, self.make_params(keys, placements.size))

    def _placed(self, placements: Placements, params: Params) -> Placements:
        corner, part = np.split(params["boxes"].numpy(), 2, axis=1)
        return placements.crop(corner, part, self.min_visibility).resize(self.size)

    def transform_images(self, images: Tensor, params: Params, pool: BufferPool | None) -> Tensor:
        return resized_crop(images, params["boxes"], self.size, pool)

    def transform_objects(self, objects: PackedObjects, params: Params, size: Size) -> PackedObjects:
        return place_objects(objects, self._placed(Placements.whole([size] * len(objects)), params))

    def transform_masks(self, masks: Tensor, params: Params, pool: BufferPool | None) -> Tensor:
        return resized_crop_nearest(masks, params["boxes"], self.size)


class RandomHorizontalFlip(Geometry):
    """Mirror images left to right, each with probability `p`: torchvision's `RandomHorizontalFlip`.

    Keypoints of the left and the right side change places, which torchvision leaves to the user; and x becomes W - x,
    since coordinates are those of pixel edges, where torchvision's `KeyPoints` counts pixels, W - 1 - x.

    Args:
        p: probability.
        flip_pairs: pairs of keypoints that change places; empty if none do. Needed if objects have several keypoints,
            but not in a decode plan of a store that has pairs, where None means those of the store.
    """

    fixes_size = None

    def __init__(self, p: float = 0.5, flip_pairs: Sequence[tuple[int, int]] | None = None, *, seed: int = 0) -> None:
        super().__init__(seed=seed)
        self.p = p
        self.flip_pairs = None if flip_pairs is None else tuple((int(a), int(b)) for a, b in flip_pairs)
        if not 0 <= p <= 1:
            raise refusal("p", "a probability in [0, 1]", p)

    @classmethod
    def from_split(cls, split: Split, p: float = 0.5, *, seed: int = 0) -> RandomHorizontalFlip:
        """With the pairs that the store keeps.

        Raises:
            OptionError: the split has no objects, or the store keeps no pairs for their several keypoints.
        """
        field = split.fields.get("objects")
        if not isinstance(field, ObjectsField):
            expected = "expected a field objects"
            raise OptionError(f"split {split.name!r}: {expected}, found none. Use RandomHorizontalFlip(p).")
        return cls(p, stored_pairs(field, f"split {split.name!r}"), seed=seed)

    def make_params(self, keys: Bits, size: Sizes) -> Params:
        """`flip` (B,) bool."""
        return {"flip": torch.from_numpy(uniforms(keys, 1)[:, 0] < self.p)}

    def place(self, placements: Placements, keys: Bits) -> Placements:
        return placements.mirror(uniforms(keys, 1)[:, 0] < self.p)

    def transform_images(self, images: Tensor, params: Params, pool: BufferPool | None) -> Tensor:
        return mirror(images, params["flip"], pool)

    def transform_objects(self, objects: PackedObjects, params: Params, size: Size) -> PackedObjects:
        widths = torch.full((len(objects),), float(size[1]))
        return mirror_objects(objects, params["flip"], widths, self.flip_pairs)

    def transform_masks(self, masks: Tensor, params: Params, pool: BufferPool | None) -> Tensor:
        return mirror(masks, params["flip"], pool)


class Fitting(Geometry):
    """A step that draws nothing: where an image comes to lie follows from its size."""

    def make_params(self, keys: Bits, size: Size) -> Params:
        """Nothing."""
        return {}

    def transform_images(self, images: Tensor, params: Params, pool: BufferPool | None) -> Tensor:
        placed = self._placed(images.shape[-2:])
        if (placed.resized == placed.extent).all():
            return self._laid(images, placed, placed.fill or 0)
        size = tuple(placed.resized[0].tolist())
        native = images.dtype in (torch.float32, torch.float64) or (images.dtype, images.device.type) == (
            torch.uint8,
            "cpu",
        )
        work = images if native else images.to(torch.float32)
        resized = functional.interpolate(work, size, mode="bilinear", antialias=True)
        if images.dtype == torch.uint8 and not native:
            resized = resized.round_()
        resized = resized.to(images.dtype, memory_format=memory_format_of(images))
        return self._laid(resized, placed, placed.fill or 0)

    def transform_masks(self, masks: Tensor, params: Params, pool: BufferPool | None) -> Tensor:
        placed = self._placed(masks.shape[-2:])
        if (placed.resized != placed.extent).any():
            boxes = torch.tensor([0, 0, *masks.shape[-2:]]).expand(len(masks), 4)
            masks = resized_crop_nearest(masks, boxes, tuple(placed.resized[0].tolist()))
        return self._laid(masks, placed, -1 if masks.dtype == torch.int16 else 255)

    def transform_objects(self, objects: PackedObjects, params: Params, size: Size) -> PackedObjects:
        return place_objects(objects, self._placed(size, len(objects)))

    def _placed(self, size: Size, samples: int = 1) -> Placements:
        return self.place(Placements.whole([size] * samples), np.empty(samples, np.uint64))

    def _laid(self, images: Tensor, placed: Placements, fill: float) -> Tensor:
        """Images of the placement's size on its canvas; what lies outside is cut off."""
        (top, left), (height, width) = placed.offset[0].tolist(), placed.size[0].tolist()
        bottom, right = height - images.shape[-2] - top, width - images.shape[-1] - left
        laid = functional.pad(images, (left, right, top, bottom), value=fill)
        return laid.contiguous(memory_format=memory_format_of(images))


class Resize(Fitting):
    """Resize images: torchvision's `Resize`, bilinear and antialiased.

    Args:
        size: (height, width); or the length of the shorter side, which keeps the aspect ratio.
        max_size: the longer side has at most this length; only with one number.
    """

    def __init__(self, size: int | Sequence[int], max_size: int | None = None) -> None:
        super().__init__()
        height, width = _size(size)
        keeps_aspect = hasattr(size, "__index__")
        self.size = height if keeps_aspect else (height, width)
        self.max_size = max_size
        self.fixes_size = None if keeps_aspect else True  # type: ignore[misc]  # of the instance
        if max_size is not None and (not keeps_aspect or not height < max_size <= _MOST_SIDE):
            raise refusal("max_size", "more than `size`, which is one number", max_size)

    def place(self, placements: Placements, keys: Bits) -> Placements:
        if not isinstance(self.size, int):
            return placements.resize(self.size)
        old = placements.size
        short, long = old.min(axis=1), old.max(axis=1)
        new_short = np.full(len(old), self.size)
        new_long = self.size * long // short
        if self.max_size is not None:
            over = new_long > self.max_size
            new_short = np.where(over, self.max_size * new_short // new_long, new_short).clip(1)
            new_long = new_long.clip(max=self.max_size)
        upright = (old[:, 0] >= old[:, 1])[:, None]
        return placements.resize(
            np.where(upright, np.stack([new_long, new_short], 1), np.stack([new_short, new_long], 1))
        )


class CenterCrop(Fitting):
    """Cut a part of fixed size from the middle of each image: torchvision's `CenterCrop`.

    Args:
        size: of the part, one number or (height, width). Smaller images are padded with `fill`.
        min_visibility: the smallest share of a box's area, in [0, 1], that must be visible in the result. Objects with
            less are dropped. In a decode plan it applies to the stored box and to the result of all steps.
    """

    def __init__(self, size: int | Sequence[int], *, fill: float = 0, min_visibility: float = 0.0) -> None:
        super().__init__()
        self.size = _size(size)
        self.fill = fill
        self.min_visibility = _visibility(min_visibility)

    def place(self, placements: Placements, keys: Bits) -> Placements:
        lacking = (self.size - placements.size).clip(0)
        padded = placements.pad(lacking // 2, (lacking + 1) // 2, self.fill)
        return padded.crop(np.rint((padded.size - self.size) / 2), self.size, self.min_visibility)


class Pad(Fitting):
    """Add borders to each image: torchvision's `Pad`.

    Args:
        padding: pixels for all sides, (left and right, top and bottom), or (left, top, right, bottom).
        fill: what is added. Masks get the value that stores ignore.
    """

    fixes_size = None

    def __init__(self, padding: int | Sequence[int], *, fill: float = 0) -> None:
        super().__init__()
        self.padding = _sides(padding)
        self.fill = fill

    def place(self, placements: Placements, keys: Bits) -> Placements:
        left, top, right, bottom = self.padding
        return placements.pad((top, left), (bottom, right), self.fill)


class Letterbox(Fitting):
    """Resize each image until it just fits into a size, keeping its aspect ratio, and pad it in the middle.

    What detectors of the YOLO family are trained with.

    Args:
        size: of the results, one number or (height, width).
        fill: what is added; 114 is theirs.
    """

    def __init__(self, size: int | Sequence[int], *, fill: float = 114) -> None:
        super().__init__()
        self.size = _size(size)
        self.fill = fill

    def place(self, placements: Placements, keys: Bits) -> Placements:
        zoom = (np.array(self.size) / placements.size).min(axis=1, keepdims=True)
        fitted = placements.resize(np.rint(placements.size * zoom).clip(1, self.size))
        free = self.size - fitted.size
        return fitted.pad(free // 2, free - free // 2, self.fill)


def place_objects(
    objects: PackedObjects, placements: Placements, flip_pairs: Sequence[tuple[int, int]] | None = None
) -> PackedObjects:
    """Move objects with their images: a copy, without objects of whose box too little is seen, or no area at all."""
    device, sample, moved = objects.offsets.device, objects.image_index, dict(objects.values)
    low, high = placements.window
    zoom = np.where(placements.resized > 0, placements.zoom, 1)
    pairs = np.stack([placements.origin - placements.offset / zoom, zoom, low, high])[..., ::-1].astype(np.float32)
    origin, zooms, least, most = on_device(torch.from_numpy(pairs), device)[:, sample][:, :, None].unbind(
        0
    )  # (M, 1, 2)
    for name in moved.keys() & {"keypoints", FRAME}:
        moved[name] = (moved[name] - origin) * zooms
    result = PackedObjects(objects.offsets, moved)
    if "boxes" in moved:
        whole = (moved["boxes"].view(-1, 2, 2) - origin) * zooms
        corners = whole.clamp(least, most)
        moved["boxes"] = corners.reshape(-1, 4)
        keep = (corners[:, 0] < corners[:, 1]).all(1)
        if placements.min_visibility > 0:
            seen, area = ((box[:, 1] - box[:, 0]).prod(1) for box in (corners, whole))
            keep &= seen >= (placements.min_visibility - _ROUNDING) * area
        result = result.select(keep)
    if not placements.flip.any():
        return result
    widths = torch.from_numpy(placements.size[:, 1].astype(np.float32))
    return mirror_objects(result, torch.from_numpy(placements.flip), widths, flip_pairs)


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
    if "keypoints" in values:
        x, y = values["keypoints"].unbind(2)
        order = on_device(_flipped_order(x.shape[1], flip_pairs), device)
        mirrored = torch.stack([width[:, None] - x, y], 2)[:, order]
        values["keypoints"] = torch.where(flipped[..., None], mirrored, values["keypoints"])
    if FRAME in values:
        x, y = values[FRAME].unbind(2)
        mirrored = torch.stack([width[:, None] - x, y], 2)
        values[FRAME] = torch.where(flipped[..., None], mirrored, values[FRAME])
    return PackedObjects(objects.offsets, values)


def stored_pairs(field: ObjectsField, where: str) -> tuple[tuple[int, int], ...]:
    """The pairs of keypoints that a store keeps; raises `OptionError` if it has none for several keypoints."""
    if len(field.keypoints) > 1 and not field.flip_pairs:
        raise OptionError(
            f"{where}: expected pairs of keypoints that change places in a mirrored image, found none for "
            f"{len(field.keypoints)} keypoints. Use RandomHorizontalFlip(flip_pairs=[(left, right), ...]), "
            "`flip_pairs=()` if none change places, or no flip."
        )
    return field.flip_pairs


def _flipped_order(keypoints: int, flip_pairs: Sequence[tuple[int, int]] | None) -> Tensor:
    """(K,) int64: which keypoint comes to each place."""
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


def _size(size: int | Sequence[int]) -> tuple[int, int]:
    """(height, width) of one number or two."""
    try:
        height, width = map(operator.index, (size, size) if hasattr(size, "__index__") else size)
    except (TypeError, ValueError):
        height = width = 0
    if min(height, width) < 1 or max(height, width) > _MOST_SIDE:
        raise refusal("size", f"a positive number up to {_MOST_SIDE}, or (height, width)", size)
    return height, width


def _visibility(share: float) -> float:
    if not isinstance(share, Real) or not 0 <= share <= 1:
        raise refusal("min_visibility", "a share in [0, 1]", share)
    return float(share)


def _sides(padding: int | Sequence[int]) -> tuple[int, int, int, int]:
    """(left, top, right, bottom) of one number, two or four."""
    sides = (padding,) if isinstance(padding, int) else tuple(padding)
    if len(sides) not in (1, 2, 4) or min(sides) < 0:
        raise refusal("padding", "one, two or four numbers of at least 0", padding)
    left, top, right, bottom = sides * (4 // len(sides))
    return left, top, right, bottom
