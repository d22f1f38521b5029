"""Steps without random numbers, which resize, pad and crop according to an image's size."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from tensorstore_ds.loading.augment.arguments import MOST_SIDE, sides_of, size_of, visibility
from tensorstore_ds.loading.augment.base import Params, Size
from tensorstore_ds.loading.augment.geometry import Geometry
from tensorstore_ds.loading.augment.pixels import mask_fill_of, memory_format_of, resized_crop_nearest
from tensorstore_ds.loading.augment.placements import Placements
from tensorstore_ds.loading.augment.values import BITS
from tensorstore_ds.loading.buffers import BufferPool
from tensorstore_ds.options import refusal


class Fitted(NamedTuple):
    """Position of images of one size that are resized onto a canvas. Pairs are y, x."""

    resized: tuple[int, int]
    offset: tuple[int, int]
    size: tuple[int, int]
    fill: float


class Fitting(Geometry):
    """Base class of steps without random numbers. The position of an image depends only on its size."""

    def _size_after(self, size: Size) -> Size:
        fitted: Fitted = self._fitted(*size)
        return fitted.size

    def transform_images(self, images: Tensor, params: Params, pool: BufferPool | None) -> Tensor:
        placed = self._fitted(images.shape[2], images.shape[3])
        size = placed.resized
        if size == tuple(images.shape[2:]):
            return _laid(images, placed, placed.fill)
        native = images.dtype in (torch.float32, torch.float64) or (images.dtype, images.device.type) == (
            torch.uint8,
            "cpu",
        )
        work = images if native else images.to(torch.float32)
        resized = functional.interpolate(work, size, mode="bilinear", antialias=True)
        if images.dtype in BITS and not native:
            resized = resized.round_()
        resized = resized.to(images.dtype, memory_format=memory_format_of(images))
        return _laid(resized, placed, placed.fill)

    def transform_masks(self, masks: Tensor, params: Params, pool: BufferPool | None) -> Tensor:
        placed = self._fitted(masks.shape[2], masks.shape[3])
        if (placed.resized[0], placed.resized[1]) != (masks.shape[2], masks.shape[3]):
            boxes = torch.tensor([[0, 0, *masks.shape[-2:]]]).repeat(len(masks), 1)
            masks = resized_crop_nearest(masks, boxes, placed.resized)
        return _laid(masks, placed, mask_fill_of(masks, None))

    @torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]  # torch.compile takes its numbers as they are
    def _fitted(self, height: int, width: int) -> Fitted:
        """Return the placement of images of this size."""
        placed = self._placed(Placements.whole((height, width)), {})
        resized, offset, canvas = (
            (int(pairs[0, 0]), int(pairs[0, 1])) for pairs in (placed.resized, placed.offset, placed.size)
        )
        return Fitted(resized, offset, canvas, placed.fill or 0)


class Resize(Fitting):
    """Resize images with bilinear interpolation and antialiasing, like torchvision's `Resize`.

    >>> images = torch.zeros(2, 3, 40, 60, dtype=torch.uint8)
    >>> tsds.Resize((32, 48))({"image": images})["image"].shape
    torch.Size([2, 3, 32, 48])
    >>> tsds.Resize(20)({"image": images})["image"].shape
    torch.Size([2, 3, 20, 30])
    >>> voc = tsds.StoreDataset("voc.tsds", "train", decode=tsds.Resize((32, 32)))  # images of differing sizes
    >>> voc[0]["image"].shape, voc[0]["objects"]["boxes"].round().tolist()
    (torch.Size([3, 32, 32]), [[4.0, 6.0, 12.0, 21.0]])

    Args:
        size: (height, width) in pixels, or the length of the shorter side, which keeps the aspect ratio.
        max_size: largest length of the longer side, if `size` is one number.
        exact: in a decode plan, whether JPEG files are decoded at their own size, which gives the bits of torchvision.
            False decodes at 1/2, 1/4 or 1/8 where that has enough pixels, which is faster. None is True, unless the
            plan crops at random.
    """

    def __init__(self, size: int | Sequence[int], max_size: int | None = None, *, exact: bool | None = None) -> None:
        super().__init__()
        self.exact = exact
        height, width = size_of(size)
        keeps_aspect = hasattr(size, "__index__")
        self.size = height if keeps_aspect else (height, width)
        self.max_size = max_size
        self._fixes_size = None if keeps_aspect else True  # type: ignore[misc]  # of the instance
        if max_size is not None and (not keeps_aspect or not height < max_size <= MOST_SIDE):
            raise refusal("max_size", "more than `size`, which is one number", max_size)

    def _placed(self, placements: Placements, params: Params) -> Placements:
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


class ResizeToPatches(Fitting):
    """Resize each image near its own size, so that a vision transformer with patches sees all of it.

    Heights and widths become multiples of `patch_size`, rounded to the nearest. Images with more than `max_patches`
    are reduced, and images with fewer than `min_patches` enlarged. Both keep the aspect ratio, up to a patch. This is
    the formula of Qwen2-VL's processor, for models such as NaViT (arXiv 2307.06304).

    >>> images = torch.zeros(2, 3, 40, 90, dtype=torch.uint8)
    >>> tsds.transforms.ResizeToPatches(16, max_patches=8)({"image": images})["image"].shape
    torch.Size([2, 3, 16, 64])
    >>> plan = tsds.transforms.ResizeToPatches(16, max_patches=12)
    >>> voc = tsds.StoreDataset("voc.tsds", "train", fields=["image"], decode=plan)
    >>> batch = next(iter(tsds.DataLoader(voc, 2, collate_images="patches", size_divisor=16)))
    >>> batch["image"].shape, batch["image_offsets"].tolist(), batch["image_position"][:4].tolist()
    (torch.Size([24, 3, 16, 16]), [0, 12, 24], [[0, 0], [0, 1], [0, 2], [0, 3]])

    Args:
        patch_size: height and width of a patch in pixels.
        max_patches: largest number of patches of an image. For a number of pixels, divide it by ``patch_size ** 2``.
        min_patches: smallest number of patches of an image, unless its shape allows none between the two numbers.
        exact: as in `Resize`.
    """

    _fixes_size = False

    def __init__(self, patch_size: int, max_patches: int, *, min_patches: int = 1, exact: bool | None = None) -> None:
        super().__init__()
        (self.patch_size, _), self.exact = size_of(patch_size), exact
        self.max_patches, self.min_patches = max_patches, min_patches
        if not 1 <= min_patches <= max_patches <= (MOST_SIDE // self.patch_size) ** 2:
            found = f"{min_patches} and {max_patches}"
            raise refusal("max_patches", "1 or more, and at least the smallest number", found)

    def _placed(self, placements: Placements, params: Params) -> Placements:
        sides = placements.size / self.patch_size
        whole, count = np.rint(sides).clip(1), sides.prod(axis=1, keepdims=True)
        fewer = np.floor(sides * np.sqrt(self.max_patches / count)).clip(1, self.max_patches)
        more = np.ceil(sides * np.sqrt(self.min_patches / count))
        grid = np.where(whole.prod(axis=1, keepdims=True) < self.min_patches, more, whole)
        grid = np.where(grid.prod(axis=1, keepdims=True) > self.max_patches, fewer, grid)
        return placements.resize(grid * self.patch_size)


class CenterCrop(Fitting):
    """Crop a part of fixed size from the center of each image, like torchvision's `CenterCrop`.

    >>> images = torch.zeros(2, 3, 40, 60, dtype=torch.uint8)
    >>> tsds.CenterCrop(32)({"image": images})["image"].shape
    torch.Size([2, 3, 32, 32])
    >>> voc = tsds.StoreDataset("voc.tsds", "train", decode=tsds.CenterCrop(32))
    >>> voc[0]["image"].shape
    torch.Size([3, 32, 32])

    Args:
        size: size of the part in pixels, one number or (height, width). Smaller images are padded with `fill`.
        min_visibility: as in `RandomCrop`.
    """

    _moves_only = True

    def __init__(self, size: int | Sequence[int], *, fill: float = 0, min_visibility: float = 0.0) -> None:
        super().__init__()
        self.size = size_of(size)
        self.fill = fill
        self.min_visibility = visibility(min_visibility)

    def _placed(self, placements: Placements, params: Params) -> Placements:
        lacking = (self.size - placements.size).clip(0)
        padded = placements.pad(lacking // 2, (lacking + 1) // 2, self.fill)
        return padded.crop(np.rint((padded.size - self.size) / 2), self.size, self.min_visibility)


class Pad(Fitting):
    """Add borders to each image, like torchvision's `Pad`.

    >>> images = torch.zeros(2, 3, 40, 60, dtype=torch.uint8)
    >>> tsds.transforms.Pad((2, 4))({"image": images})["image"].shape
    torch.Size([2, 3, 48, 64])

    Args:
        padding: pixels to add, for all sides, (left and right, top and bottom), or (left, top, right, bottom).
        fill: value of the borders. In masks, borders are 255, or 65535 in uint16 masks, which stores define as ignored.
    """

    _fixes_size = None
    _moves_only = True

    def __init__(self, padding: int | Sequence[int], *, fill: float = 0) -> None:
        super().__init__()
        self.padding = sides_of(padding)
        self.fill = fill

    def _placed(self, placements: Placements, params: Params) -> Placements:
        left, top, right, bottom = self.padding
        return placements.pad((top, left), (bottom, right), self.fill)


class Letterbox(Fitting):
    """Resize each image to fit into a size, keep its aspect ratio, and pad it so that it is centered.

    Detectors of the YOLO family are trained with it.

    >>> images = torch.zeros(2, 3, 40, 60, dtype=torch.uint8)
    >>> found = tsds.transforms.Letterbox(64)({"image": images})["image"]
    >>> found.shape, int(found[0, 0, 0, 0])
    (torch.Size([2, 3, 64, 64]), 114)
    >>> voc = tsds.StoreDataset("voc.tsds", "train", decode=tsds.transforms.Letterbox(64))
    >>> voc[0]["image"].shape
    torch.Size([3, 64, 64])

    Args:
        size: size of the results in pixels, one number or (height, width).
        fill: value of the borders, by default 114 as in the YOLO family.
        exact: as in `Resize`.
    """

    def __init__(self, size: int | Sequence[int], *, fill: float = 114, exact: bool | None = None) -> None:
        super().__init__()
        self.exact = exact
        self.size = size_of(size)
        self.fill = fill

    def _placed(self, placements: Placements, params: Params) -> Placements:
        zoom = (np.array(self.size) / placements.size).min(axis=1, keepdims=True)
        fitted = placements.resize(np.rint(placements.size * zoom).clip(1, self.size))
        free = self.size - fitted.size
        return fitted.pad(free // 2, free - free // 2, self.fill)


def _laid(images: Tensor, placed: Fitted, fill: float) -> Tensor:
    """Put images of the placement's size onto its canvas, and cut off what is outside."""
    (top, left), (height, width) = placed.offset, placed.size
    bottom, right = height - images.shape[2] - top, width - images.shape[3] - left
    laid = functional.pad(images, (left, right, top, bottom), value=fill)
    return laid.contiguous(memory_format=memory_format_of(images))
