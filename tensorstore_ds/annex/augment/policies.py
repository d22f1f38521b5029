"""RandAugment and TrivialAugment, which apply a few of 14 random operations to each image."""

from __future__ import annotations

from abc import abstractmethod
from numbers import Integral
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tensorstore_ds.annex.augment.affine import Warp, affine_inverse
from tensorstore_ds.annex.augment.chosen import change_some
from tensorstore_ds.annex.augment.color import check_colors, check_levels
from tensorstore_ds.annex.augment.tones import (
    BRIGHTNESS,
    CONTRAST,
    SATURATION,
    autocontrast,
    blend,
    equalize,
    posterize,
    sharpen,
    solarize,
)
from tensorstore_ds.annex.augment.warp import Interpolation, warp, warp_objects
from tensorstore_ds.loading.augment.base import Params, Size
from tensorstore_ds.loading.augment.pixels import mask_fill_of
from tensorstore_ds.loading.buffers import BufferPool
from tensorstore_ds.loading.collate import PackedObjects
from tensorstore_ds.options import refusal
from tensorstore_ds.seeding import Bits, uniforms

#: Operations by torchvision's names, in its order.
OPERATIONS = (
    "Identity",
    "ShearX",
    "ShearY",
    "TranslateX",
    "TranslateY",
    "Rotate",
    "Brightness",
    "Color",
    "Contrast",
    "Sharpness",
    "Posterize",
    "Solarize",
    "AutoContrast",
    "Equalize",
)
#: Numbers of 3 operations in `blend`.
BLENDS = {"Brightness": BRIGHTNESS, "Color": SATURATION, "Contrast": CONTRAST}
#: Operations whose amount is negative with probability 1/2.
SIGNED = range(OPERATIONS.index("ShearX"), OPERATIONS.index("Sharpness") + 1)


class Policy(Warp):
    """Base class of transforms that apply a few operations to each image, and move its objects and masks."""

    #: Largest shear, largest rotation in degrees, largest change of brightness, color, contrast and sharpness, and
    #: largest number of the 8 bits that `Posterize` drops.
    SHEAR: ClassVar[float]
    ANGLE: ClassVar[float]
    CHANGE: ClassVar[float]
    BITS: ClassVar[int]

    num_ops: int = 1
    num_magnitude_bins: int

    _of_unit_images = True

    def __init__(
        self,
        num_magnitude_bins: int = 31,
        interpolation: Interpolation = "nearest",
        fill: float = 0,
        *,
        mask_fill: int | None = None,
        min_visibility: float = 0.0,
        seed: int = 0,
    ) -> None:
        super().__init__(interpolation, fill, mask_fill, min_visibility, seed)
        if not isinstance(num_magnitude_bins, Integral) or num_magnitude_bins < 2:
            raise refusal("num_magnitude_bins", "a whole number of at least 2", num_magnitude_bins)
        self.num_magnitude_bins = int(num_magnitude_bins)

    @abstractmethod
    def _moves(self, size: Size) -> tuple[float, float]:
        """Return the largest translations in pixels, along x and along y."""

    @abstractmethod
    def _levels(self, drawn: NDArray[np.float64]) -> NDArray[np.int64]:
        """Return the bin of magnitudes for random numbers in [0, 1) of any shape."""

    def make_params(self, keys: Bits, size: Size) -> Params:
        """Return the operations of each sample, in their order.

        `operations` (B, n) int64 are indices into `OPERATIONS`, and `amounts` (B, n) float64 are torchvision's
        magnitudes. `inverse` (B, n, 3, 3) float64 is for operations that move pixels, and `blends` (B, n) int64 for
        operations that `blend` computes.
        """
        drawn = uniforms(keys, 3 * self.num_ops).reshape(len(keys), self.num_ops, 3)
        operations = (drawn[..., 0] * len(OPERATIONS)).astype(np.int64)
        amounts = self._amounts(size)[operations, self._levels(drawn[..., 1])]
        negative = np.isin(operations, SIGNED) & (drawn[..., 2] < 0.5)
        amounts = np.where(negative, -amounts, amounts)
        blends = np.array([BLENDS.get(name, BRIGHTNESS) for name in OPERATIONS])[operations]
        inverse = _matrices(operations.ravel(), amounts.ravel(), size).reshape(len(keys), self.num_ops, 3, 3)
        params = {"operations": operations, "amounts": amounts, "inverse": inverse, "blends": blends}
        return {name: torch.from_numpy(value) for name, value in params.items()}

    def _amounts(self, size: Size) -> NDArray[np.float64]:
        """Return the amount of each operation at each level, (operations, bins)."""
        levels = np.linspace(0, 1, self.num_magnitude_bins)
        along_x, along_y = self._moves(size)
        largest = {"ShearX": self.SHEAR, "ShearY": self.SHEAR, "TranslateX": along_x, "TranslateY": along_y}
        largest |= {"Rotate": self.ANGLE, **dict.fromkeys((*BLENDS, "Sharpness"), self.CHANGE)}
        rows = {name: largest.get(name, 0) * levels for name in OPERATIONS}
        rows["Posterize"], rows["Solarize"] = np.round(8 - self.BITS * levels), 1 - levels
        return np.stack(list(rows.values()))

    def transform_images(self, images: Tensor, params: Params, pool: BufferPool | None) -> Tensor:
        """Change images and keep their dtype. Raises `ValueError` if they do not have 1 or 3 channels."""
        check_colors(images, type(self).__name__)
        check_levels(images, type(self).__name__)
        out = images if pool is not None else images.clone()
        for turn in range(self.num_ops):
            out = self._changed(out, {name: value[:, turn] for name, value in params.items()})
        return out

    def _changed(self, images: Tensor, params: Params) -> Tensor:
        """Apply one operation to each image, in place. At most one of these lines changes an image."""
        amounts, whole = params["amounts"], images.dtype == torch.uint8

        def chosen(*names: str) -> Tensor:
            return _is_among(params["operations"], *names)

        def change(images: Tensor, names: tuple[str, ...], function: object, *each: Tensor) -> Tensor:
            return change_some(images, chosen(*names), function, *each, in_place=True)  # type: ignore[arg-type]

        images = warp(
            images,
            chosen(*OPERATIONS[1:6]),
            params["inverse"],
            fill=self.fill,
            interpolation=self.interpolation,
            in_place=True,
        )
        blends = tuple(name for name in BLENDS if name != "Color" or images.shape[1] == 3)
        images = change(images, blends, blend, params["blends"][:, None], 1 + amounts[:, None])
        images = change(images, ("Sharpness",), sharpen, 1 + amounts)
        images = change(images, ("Posterize",), posterize, amounts.long().clamp(0, 8))
        images = change(images, ("Solarize",), solarize, amounts * (255 if whole else 1))
        images = change(images, ("AutoContrast",), autocontrast)
        return change(images, ("Equalize",), equalize)

    def transform_masks(self, masks: Tensor, params: Params, pool: BufferPool | None) -> Tensor:
        fill = mask_fill_of(masks, self.mask_fill)
        for turn in range(self.num_ops):
            chosen = _is_among(params["operations"][:, turn], *OPERATIONS[1:6])
            masks = warp(masks, chosen, params["inverse"][:, turn], fill=fill, interpolation="nearest")
        return masks

    def transform_objects(self, objects: PackedObjects, params: Params, size: Size) -> PackedObjects:
        for turn in range(self.num_ops):
            inverse = params["inverse"][:, turn]
            objects = warp_objects(objects, inverse, size, self.min_visibility, type(self).__name__)
        return objects


class RandAugment(Policy):
    """Apply `num_ops` random operations of 14 to each image, all with one magnitude, like torchvision's `RandAugment`.

    Cubuk et al., RandAugment: Practical automated data augmentation with a reduced search space, 2019 (arXiv
    1909.13719). Boxes, keypoints and masks are transformed as in `RandomAffine`.

    Args:
        num_ops: number of operations, drawn with replacement.
        magnitude: bin of magnitudes that is used, from 0.
        num_magnitude_bins: number of bins of magnitudes.
        interpolation, fill, mask_fill, min_visibility: as in `RandomAffine`.

    >>> import tensorstore_ds as tsds
    >>> images = torch.zeros(2, 3, 32, 32, dtype=torch.uint8)
    >>> tsds.transforms.RandAugment()({"image": images})["image"].shape
    torch.Size([2, 3, 32, 32])
    """

    SHEAR, ANGLE, CHANGE, BITS = 0.3, 30.0, 0.9, 4
    magnitude: int

    def __init__(
        self,
        num_ops: int = 2,
        magnitude: int = 9,
        num_magnitude_bins: int = 31,
        interpolation: Interpolation = "nearest",
        fill: float = 0,
        *,
        mask_fill: int | None = None,
        min_visibility: float = 0.0,
        seed: int = 0,
    ) -> None:
        super().__init__(
            num_magnitude_bins, interpolation, fill, mask_fill=mask_fill, min_visibility=min_visibility, seed=seed
        )
        if not isinstance(num_ops, Integral) or num_ops < 0:
            raise refusal("num_ops", "a whole number of at least 0", num_ops)
        if not isinstance(magnitude, Integral) or not 0 <= magnitude < num_magnitude_bins:
            raise refusal("magnitude", f"a whole number in [0, {num_magnitude_bins})", magnitude)
        self.num_ops = int(num_ops)
        self.magnitude = int(magnitude)

    def _moves(self, size: Size) -> tuple[float, float]:
        return 150 / 331 * size[1], 150 / 331 * size[0]  # the paper uses 150 pixels for ImageNet's 331

    def _levels(self, drawn: NDArray[np.float64]) -> NDArray[np.int64]:
        return np.full(drawn.shape, self.magnitude)


class TrivialAugment(Policy):
    """Apply one random operation of 14 to each image, at a random magnitude, like torchvision's `TrivialAugmentWide`.

    Müller and Hutter, TrivialAugment: Tuning-free Yet State-of-the-Art Data Augmentation, 2021 (arXiv 2103.10158).
    Boxes, keypoints and masks are transformed as in `RandomAffine`.

    >>> images = torch.zeros(2, 3, 32, 32, dtype=torch.uint8)
    >>> tsds.transforms.TrivialAugment()({"image": images})["image"].shape
    torch.Size([2, 3, 32, 32])

    Args:
        num_magnitude_bins: number of magnitudes.
        interpolation, fill, mask_fill, min_visibility: as in `RandomAffine`.
    """

    SHEAR, ANGLE, CHANGE, BITS = 0.99, 135.0, 0.99, 6

    def _moves(self, size: Size) -> tuple[float, float]:
        return 32.0, 32.0

    def _levels(self, drawn: NDArray[np.float64]) -> NDArray[np.int64]:
        bins: NDArray[np.int64] = (drawn * self.num_magnitude_bins).astype(np.int64)
        return bins


def _is_among(operations: Tensor, *names: str) -> Tensor:
    """Return where an operation has one of these names, (B,) bool."""
    among = torch.zeros_like(operations, dtype=torch.bool)
    for name in names:
        among = among | (operations == OPERATIONS.index(name))
    return among


def _matrices(operations: NDArray[np.int64], amounts: NDArray[np.float64], size: Size) -> NDArray[np.float64]:
    """Return the inverse matrices of operations (N,), (N, 3, 3) float64, or the identity if nothing moves."""

    def of(name: str, values: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.where(operations == OPERATIONS.index(name), values, 0)

    slant, whole = np.degrees(np.arctan(amounts)), np.trunc(amounts)
    shear = np.stack([of("ShearX", slant), of("ShearY", slant)], 1)
    translate = np.stack([of("TranslateX", whole), of("TranslateY", whole)], 1)
    turned = of("Rotate", -amounts)
    center = np.where(turned[:, None] != 0, [size[1] / 2, size[0] / 2], 0)  # a shear leaves the corner in place
    return affine_inverse(turned, translate, np.ones(len(amounts)), shear, center)
