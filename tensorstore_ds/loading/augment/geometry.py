"""Transforms that move pixels by cropping, resizing, padding and mirroring, with boxes, keypoints and masks.

They transform batches. They are also the steps of decode plans, which decode only the pixels that a step keeps.

Coordinates are the same as in the store. (0, 0) is the outer corner of the upper left pixel, and (W, H) the outer
corner of the lower right pixel. Boxes are clipped to the crop. An object is dropped with all of its values if its box
has no area left, or a smaller share of it than `min_visibility`. Keypoints are moved, but not clipped, and absent ones
stay NaN. Dropping objects on a GPU synchronizes, because only the GPU knows how many are left.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import ClassVar, get_args

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from tensorstore_ds.errors import OptionError
from tensorstore_ds.format.kinds import ObjectsField
from tensorstore_ds.format.kinds.base import named
from tensorstore_ds.loading.augment.arguments import probability, sides_of, size_of, visibility
from tensorstore_ds.loading.augment.base import BatchTransform, Params, Size, Sizes
from tensorstore_ds.loading.augment.objects import mirror_objects, place_objects, stored_pairs
from tensorstore_ds.loading.augment.pixels import (
    PaddingMode,
    can_shift,
    crop,
    crop_padded,
    is_large,
    mask_fill_of,
    mirror,
    pad,
    resized_crop,
    resized_crop_nearest,
    shift,
)
from tensorstore_ds.loading.augment.placements import Placements
from tensorstore_ds.loading.buffers import BufferPool
from tensorstore_ds.loading.collate import PackedObjects
from tensorstore_ds.options import check_choice, refusal
from tensorstore_ds.reading.store import Split
from tensorstore_ds.seeding import Bits, uniforms

#: Number of random parts that are tried until one fits into the image, as in torchvision.
ATTEMPTS = 10


class Geometry(BatchTransform):
    """Base class of transforms that move pixels, which are also steps of decode plans."""

    #: Whether results always have one size. None means only if the images had one size before.
    _fixes_size: ClassVar[bool | None] = True
    #: In a decode plan, whether JPEG files are decoded at their own size. None means unless a step crops at random.
    exact: bool | None = None

    @property
    def _moves_only(self) -> bool:
        """Whether results are copies of whole pixels, with `fill` outside of the image."""
        return False

    def make_params(self, keys: Bits, size: Sizes) -> Params:
        """Return no parameters."""
        return {}

    @abstractmethod
    def _placed(self, placements: Placements, params: Params) -> Placements:
        """Return the placements of B images after this step."""

    def _place(self, placements: Placements, keys: Bits) -> Placements:
        """Return the placements of B images after this step of a plan, with random numbers from `keys`."""
        return self._placed(placements, self.make_params(keys, placements.size))

    def transform_objects(self, objects: PackedObjects, params: Params, size: Size) -> PackedObjects:
        return place_objects(objects, self._placed(Placements.whole([size] * len(objects)), params))


class Cropping(Geometry):
    """Base class of transforms that give all images one size."""

    size: tuple[int, int]

    def _size_after(self, size: Size) -> Size:
        return self.size


class RandomCrop(Cropping):
    """Crop a part of fixed size at a random position from each image, like torchvision's `RandomCrop`.

    >>> images = torch.zeros(2, 3, 32, 32, dtype=torch.uint8)
    >>> tsds.RandomCrop(32, padding=4)({"image": images})["image"].shape
    torch.Size([2, 3, 32, 32])
    >>> tsds.RandomCrop((24, 28))({"image": images})["image"].shape
    torch.Size([2, 3, 24, 28])

    Args:
        size: size of the part in pixels, one number or (height, width).
        padding: pixels added to the image beforehand, for all sides, (left and right, top and bottom), or (left, top,
            right, bottom).
        fill: value of the added pixels in the mode ``constant``.
        padding_mode: ``constant``, ``edge``, ``reflect`` or ``symmetric``.
        mask_fill: value added to masks in the mode ``constant``. None takes 255, or 65535 in uint16 masks, which stores
            define as ignored.
        min_visibility: smallest share of a box's area, in [0, 1], that must be visible in the result. Objects with less
            are dropped. In a decode plan, it compares the stored box with the result of all steps.
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
        self.size = size_of(size)
        self.padding = sides_of(padding)
        self.fill = fill
        self.padding_mode = padding_mode
        self.mask_fill = mask_fill
        self.min_visibility = visibility(min_visibility)
        check_choice("padding_mode", padding_mode, get_args(PaddingMode))

    @property
    def _moves_only(self) -> bool:
        """Whether the padding, if any, has a constant value."""
        return self.padding_mode == "constant" or not any(self.padding)

    def make_params(self, keys: Bits, size: Sizes) -> Params:
        """`top` and `left` (B,) int64, the corner of the part in the padded image.

        Raises `ValueError` if the part is larger than the padded image.
        """
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

    def _place(self, placements: Placements, keys: Bits) -> Placements:
        if any(self.padding) and self.padding_mode != "constant":
            raise refusal("padding_mode", "constant in a decode plan", self.padding_mode)
        return super()._place(placements, keys)

    def _placed(self, placements: Placements, params: Params) -> Placements:
        left, top, right, bottom = self.padding
        corner = torch.stack([params["top"], params["left"]]).numpy().T
        padded = placements.pad((top, left), (bottom, right), self.fill)
        return padded.crop(corner, self.size, self.min_visibility)

    def transform_images(self, images: Tensor, params: Params, pool: BufferPool | None) -> Tensor:
        return self._cut(images, params, self.fill, pool)

    def transform_masks(self, masks: Tensor, params: Params, pool: BufferPool | None) -> Tensor:
        return self._cut(masks, params, mask_fill_of(masks, self.mask_fill), pool)

    def _cut(self, images: Tensor, params: Params, fill: float, pool: BufferPool | None) -> Tensor:
        top, left = params["top"], params["left"]
        if self.padding_mode == "constant" and can_shift(images, self.size, self.padding):
            return shift(images, top, left, self.padding, fill, pool)
        if self.padding_mode == "constant" and is_large(images):
            return crop_padded(images, top - self.padding[1], left - self.padding[0], self.size, fill, pool)
        if any(self.padding):
            images = pad(images, self.padding, self.padding_mode, fill)
        return crop(images, top, left, self.size, pool)


class RandomResizedCrop(Cropping):
    """Crop a part of random area and aspect ratio from each image and resize it, as torchvision's `RandomResizedCrop`.

    Resizing is bilinear and antialiased. On a CPU, pixels are bit-identical to torchvision's. On other devices, they
    are rounded once instead of twice, so uint8 differs by at most 1.

    As a decode plan, it decodes only the part of each image that the crop needs:

    >>> voc = tsds.StoreDataset("voc.tsds", "train")
    >>> loader = tsds.DataLoader(voc, batch_size=4, decode=tsds.RandomResizedCrop(32))
    >>> next(iter(loader))["image"].shape
    torch.Size([4, 3, 32, 32])

    As a batch transform, it crops images that are already decoded:

    >>> images = torch.zeros(2, 3, 40, 60, dtype=torch.uint8)
    >>> tsds.RandomResizedCrop((24, 32))({"image": images})["image"].shape
    torch.Size([2, 3, 24, 32])

    Args:
        size: size of the results in pixels, one number or (height, width).
        scale: smallest and largest share of the image's area.
        ratio: smallest and largest width divided by height.
        min_visibility: as in `RandomCrop`.
        exact: in a decode plan, whether JPEG files are decoded at their own size, which gives the bits of torchvision.
            None and False decode at 1/2, 1/4 or 1/8 where that has enough pixels, which is faster.
    """

    def __init__(
        self,
        size: int | Sequence[int],
        scale: tuple[float, float] = (0.08, 1.0),
        ratio: tuple[float, float] = (3 / 4, 4 / 3),
        *,
        min_visibility: float = 0.0,
        exact: bool | None = None,
        seed: int = 0,
    ) -> None:
        super().__init__(seed=seed)
        self.size = size_of(size)
        self.exact = exact
        self.scale = scale
        self.ratio = ratio
        self.min_visibility = visibility(min_visibility)
        for name, limits in {"scale": scale, "ratio": ratio}.items():
            numbers = np.asarray(limits, float)
            if numbers.shape != (2,) or not 0 < numbers[0] <= numbers[1] < np.inf:
                raise refusal(name, "two positive numbers, the smaller first", limits)

    def make_params(self, keys: Bits, size: Sizes) -> Params:
        """`boxes` (B, 4) int64, top, left, height and width of the part.

        As in torchvision, this is the first of 10 random parts that fits into the image, or else the largest central
        part with an allowed aspect ratio.
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
        """Return the smallest and largest ratio for images whose width divided by height is `aspects`."""
        return self.ratio

    def _placed(self, placements: Placements, params: Params) -> Placements:
        corner, part = np.split(params["boxes"].numpy(), 2, axis=1)
        return placements.crop(corner, part, self.min_visibility).resize(self.size)

    def transform_images(self, images: Tensor, params: Params, pool: BufferPool | None) -> Tensor:
        return resized_crop(images, params["boxes"], self.size, pool)

    def transform_masks(self, masks: Tensor, params: Params, pool: BufferPool | None) -> Tensor:
        return resized_crop_nearest(masks, params["boxes"], self.size)


class RandomHorizontalFlip(Geometry):
    """Mirror images left to right, each with probability `p`, like torchvision's `RandomHorizontalFlip`.

    In contrast to torchvision's, it also swaps the keypoints of the left and the right side. Coordinates refer to pixel
    edges, so x becomes W - x, whereas torchvision's `KeyPoints` refer to pixels, and x becomes W - 1 - x.

    >>> images = torch.tensor([[[[1, 2, 3]]]], dtype=torch.uint8)  # (B, C, H, W)
    >>> tsds.RandomHorizontalFlip(p=1)({"image": images})["image"].tolist()
    [[[[3, 2, 1]]]]

    Args:
        p: probability that an image is mirrored.
        flip_pairs: pairs of keypoints that are swapped, or an empty list for none. Needed if objects have several
            keypoints. In a decode plan, None takes the pairs of the store, if it has any.
    """

    _fixes_size = None
    _moves_only = True

    def __init__(self, p: float = 0.5, flip_pairs: Sequence[tuple[int, int]] | None = None, *, seed: int = 0) -> None:
        super().__init__(seed=seed)
        self.p = probability(p)
        self.flip_pairs = None if flip_pairs is None else tuple((int(a), int(b)) for a, b in flip_pairs)

    @classmethod
    def from_split(cls, split: Split, p: float = 0.5, *, seed: int = 0) -> RandomHorizontalFlip:
        """Create the transform with the pairs of keypoints in the store.

        Raises:
            OptionError: the split has no objects, or objects have several keypoints and the store contains no pairs.
        """
        field = named(split.fields, "objects", ObjectsField)
        if field is None:
            expected = "expected a field objects"
            raise OptionError(f"split {split.name!r}: {expected}, found none. Use RandomHorizontalFlip(p).")
        return cls(p, stored_pairs(field, f"split {split.name!r}"), seed=seed)

    def make_params(self, keys: Bits, size: Sizes) -> Params:
        """`flip` (B,) bool, true for images that are mirrored."""
        return {"flip": torch.from_numpy(uniforms(keys, 1)[:, 0] < self.p)}

    def _placed(self, placements: Placements, params: Params) -> Placements:
        return placements.mirror(params["flip"].numpy())

    def transform_images(self, images: Tensor, params: Params, pool: BufferPool | None) -> Tensor:
        return mirror(images, params["flip"], pool)

    def transform_objects(self, objects: PackedObjects, params: Params, size: Size) -> PackedObjects:
        widths = torch.full((len(objects),), float(size[1]))
        return mirror_objects(objects, params["flip"], widths, self.flip_pairs)

    def transform_masks(self, masks: Tensor, params: Params, pool: BufferPool | None) -> Tensor:
        return mirror(masks, params["flip"], pool)
