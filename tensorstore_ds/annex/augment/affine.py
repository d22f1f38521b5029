"""Transforms by a matrix, which are rotation, translation, scale, shear and perspective."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Sequence
from numbers import Real
from typing import get_args

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from tensorstore_ds.annex.augment.warp import Interpolation, warp, warp_objects
from tensorstore_ds.loading.augment.arguments import Range, around, limits, number, probability, visibility
from tensorstore_ds.loading.augment.base import BatchTransform, Params, Size
from tensorstore_ds.loading.augment.pixels import mask_fill_of
from tensorstore_ds.loading.buffers import BufferPool
from tensorstore_ds.loading.collate import PackedObjects
from tensorstore_ds.options import check_choice, refusal
from tensorstore_ds.seeding import Bits, uniforms


class Warp(BatchTransform):
    """A transform by one matrix per image: `chosen` (B,) bool, `inverse` (B, 3, 3) float64 from result to image."""

    def __init__(
        self, interpolation: Interpolation, fill: float, mask_fill: int | None, min_visibility: float, seed: int
    ) -> None:
        super().__init__(seed=seed)
        self.interpolation = interpolation
        self.fill = fill
        self.mask_fill = mask_fill
        self.min_visibility = visibility(min_visibility)
        check_choice("interpolation", interpolation, get_args(Interpolation))
        if not isinstance(fill, Real):
            raise refusal("fill", "a number", repr(fill))

    @abstractmethod
    def make_params(self, keys: Bits, size: Size) -> Params: ...

    def transform_images(self, images: Tensor, params: Params, pool: BufferPool | None) -> Tensor:
        chosen, inverse, in_place = params["chosen"], params["inverse"], pool is not None
        return warp(images, chosen, inverse, fill=self.fill, interpolation=self.interpolation, in_place=in_place)

    def transform_masks(self, masks: Tensor, params: Params, pool: BufferPool | None) -> Tensor:
        fill = mask_fill_of(masks, self.mask_fill)
        return warp(masks, params["chosen"], params["inverse"], fill=fill, interpolation="nearest")

    def transform_objects(self, objects: PackedObjects, params: Params, size: Size) -> PackedObjects:
        return warp_objects(objects, params["inverse"], size, self.min_visibility, type(self).__name__)


class RandomAffine(Warp):
    """Rotate, translate, scale and shear each image, like torchvision's `RandomAffine`.

    Keypoints are transformed with the image, and masks to the nearest pixel. A box becomes the smallest box around its
    four transformed corners, clipped to the image. Objects whose box has no area left are dropped. At the edges,
    ``bilinear`` blends the image with `fill` once, whereas torchvision blends twice.

    Args:
        degrees: largest angle of a clockwise rotation from [-degrees, degrees], or its range (low, high).
        translate: largest translation in both directions, as shares of (width, height). It is a whole number of pixels.
        scale: range (low, high) of the factor.
        shear: degrees along x, a number or (low, high). Four numbers add (low, high) along y.
        interpolation: ``nearest`` or ``bilinear``.
        fill: value outside of the image, in all channels.
        center: fixed point (x, y) of the rotation, by default the center of the image.
        mask_fill: value outside of masks. None takes 255, or 65535 in uint16 masks, which stores define as ignored.
        min_visibility: smallest share of a transformed box's area, in [0, 1], that must be visible. Objects with less
            are dropped.

    >>> turn = tsds.transforms.RandomAffine(degrees=(90, 90))
    >>> turn({"image": torch.arange(9.0).view(1, 1, 3, 3)})["image"][0, 0].tolist()
    [[6.0, 3.0, 0.0], [7.0, 4.0, 1.0], [8.0, 5.0, 2.0]]
    """

    def __init__(
        self,
        degrees: float | Range,
        translate: tuple[float, float] | None = None,
        scale: Range | None = None,
        shear: float | Sequence[float] | None = None,
        interpolation: Interpolation = "nearest",
        fill: float = 0,
        center: tuple[float, float] | None = None,
        *,
        mask_fill: int | None = None,
        min_visibility: float = 0.0,
        seed: int = 0,
    ) -> None:
        super().__init__(interpolation, fill, mask_fill, min_visibility, seed)
        self.degrees = around("degrees", degrees)
        self.translate = _shares(translate or (0.0, 0.0))
        expected = "two positive numbers, the smaller first"
        self.scale = limits("scale", scale or (1.0, 1.0), least=math.ulp(0.0), expected=expected)
        self.shear = _shears(shear)
        self.center = None if center is None else _point(center)

    def make_params(self, keys: Bits, size: Size) -> Params:
        """Random parameters, and the matrix.

        `angle` (B,) and `shear` (B, 2) are in degrees, `translate` (B, 2) in pixels. These, `scale` (B,) and `inverse`
        (B, 3, 3) are float64. `chosen` (B,) bool is true.
        """
        drawn = uniforms(keys, 6)
        low, high = np.array([self.degrees, self.scale, *self.shear]).T
        angle, scale, *shears = (low + drawn[:, :4] * (high - low)).T
        reach = np.array(self.translate) * (size[1], size[0])
        translate = np.rint(reach * (2 * drawn[:, 4:] - 1))
        shear = np.stack(shears, 1)
        center = self.center or (size[1] / 2, size[0] / 2)
        inverse = affine_inverse(angle, translate, scale, shear, center)
        drawn_by_name = {"angle": angle, "translate": translate, "scale": scale, "shear": shear, "inverse": inverse}
        params = {name: torch.from_numpy(np.ascontiguousarray(value)) for name, value in drawn_by_name.items()}
        return {**params, "chosen": torch.ones(len(keys), dtype=torch.bool)}


def affine_inverse(
    angle: NDArray[np.float64],
    translate: NDArray[np.float64],
    scale: NDArray[np.float64],
    shear: NDArray[np.float64],
    center: ArrayLike,
) -> NDArray[np.float64]:
    """Return matrices from positions in the result to positions in the image, (B, 3, 3).

    The inverse of ``T * C * R(angle) * S(scale) * shear_y * shear_x * C^-1`` as in torchvision
    (`_get_inverse_affine_matrix`), where C moves the origin to `center`, (2,) or (B, 2). Angles are in degrees,
    translations in pixels x, y.
    """
    turn, sx, sy = np.radians(angle), np.radians(shear[:, 0]), np.radians(shear[:, 1])
    a, c = np.cos(turn - sy) / np.cos(sy), np.sin(turn - sy) / np.cos(sy)
    b, d = -(a * np.tan(sx) + np.sin(turn)), np.cos(turn) - c * np.tan(sx)
    inverse = np.zeros((len(angle), 3, 3))
    inverse[:, :2, :2] = np.stack([np.stack([d, -b], 1), np.stack([-c, a], 1)], 1) / scale[:, None, None]
    moved = np.asarray(center) + translate
    inverse[:, :2, 2] = np.asarray(center) - (inverse[:, :2, :2] @ moved[:, :, None])[:, :, 0]
    inverse[:, 2, 2] = 1
    return inverse


class RandomPerspective(Warp):
    """Apply a random perspective to some images, like torchvision's `RandomPerspective`.

    The four corners of the image move inwards, each by a random number of pixels. Objects and masks are transformed as
    in `RandomAffine`.

    >>> images = torch.zeros(2, 3, 32, 32, dtype=torch.uint8)
    >>> tsds.transforms.RandomPerspective(p=1)({"image": images})["image"].shape
    torch.Size([2, 3, 32, 32])

    Args:
        distortion_scale: largest move of a corner, in [0, 1], as a share of half the height and width.
        p: probability that an image is changed.
        interpolation, fill, mask_fill, min_visibility: as in `RandomAffine`.
    """

    def __init__(
        self,
        distortion_scale: float = 0.5,
        p: float = 0.5,
        interpolation: Interpolation = "bilinear",
        fill: float = 0,
        *,
        mask_fill: int | None = None,
        min_visibility: float = 0.0,
        seed: int = 0,
    ) -> None:
        super().__init__(interpolation, fill, mask_fill, min_visibility, seed)
        self.distortion_scale = number("distortion_scale", distortion_scale, most=1, expected="a number in [0, 1]")
        self.p = probability(p)

    def make_params(self, keys: Bits, size: Size) -> Params:
        """`chosen` (B,) bool, `inverse` (B, 3, 3) float64, and `corners` (B, 4, 2) float64.

        Corners are x and y of the moved corners, clockwise. An image is not chosen if its corners would not form a
        convex quadrilateral.
        """
        drawn = uniforms(keys, 9)
        sides = np.array([size[1], size[0]])  # x, y
        bounds = (self.distortion_scale * (sides // 2)).astype(np.int64) + 1
        moves = np.floor(drawn[:, 1:].reshape(-1, 4, 2) * bounds)
        right_or_bottom = np.array([[0, 0], [1, 0], [1, 1], [0, 1]])
        corners: NDArray[np.float64] = moves + right_or_bottom * (sides - bounds)
        edges = np.roll(corners, -1, 1) - corners
        after = np.roll(edges, -1, 1)
        convex = (edges[:, :, 0] * after[:, :, 1] - edges[:, :, 1] * after[:, :, 0] > 0).all(1)
        chosen = (drawn[:, 0] < self.p) & convex & (min(size) > 1)
        inverse = np.tile(np.eye(3), (len(keys), 1, 1))
        inverse[chosen] = perspective_inverse(corners[chosen], right_or_bottom * (sides - 1))
        params = {"chosen": chosen, "inverse": inverse, "corners": corners}
        return {name: torch.from_numpy(value) for name, value in params.items()}


def perspective_inverse(corners: NDArray[np.float64], start: ArrayLike) -> NDArray[np.float64]:
    """Return (B, 3, 3) matrices that map `corners` (B, 4, 2) of the results to the image's corners `start` (4, 2).

    They solve the 8 equations of torchvision's `_get_perspective_coeffs`, 2 for each corner. The origin is the center
    of the corners, where the third coordinate is 1, because at torchvision's origin it may be 0.
    """
    middle = corners.mean(1, keepdims=True)
    x, y = (corners - middle).transpose(2, 0, 1)
    u, v = np.broadcast_to(start, corners.shape).transpose(2, 0, 1)
    zero, one = np.zeros_like(x), np.ones_like(x)
    above = np.stack([x, y, one, zero, zero, zero, -u * x, -u * y], 2)
    below = np.stack([zero, zero, zero, x, y, one, -v * x, -v * y], 2)
    matrix, right = np.concatenate([above, below], 1), np.concatenate([u, v], 1)
    solved = np.linalg.solve(matrix, right[..., None])[..., 0]
    found = np.concatenate([solved, np.ones((len(solved), 1))], 1).reshape(-1, 3, 3)
    found[:, :, 2:] -= found[:, :, :2] @ middle.transpose(0, 2, 1)
    return found


def _shares(translate: Sequence[float]) -> tuple[float, float]:
    low = high = math.nan
    if isinstance(translate, Sequence) and len(translate) == 2:
        low, high = (float(each) if isinstance(each, Real) else math.nan for each in translate)
    if not (0 <= low <= 1 and 0 <= high <= 1):
        raise refusal("translate", "two shares in [0, 1], of the width and the height", translate)
    return low, high


def _shears(shear: float | Sequence[float] | None) -> tuple[Range, Range]:
    if isinstance(shear, Sequence) and len(shear) == 4:
        return around("shear", shear[:2]), around("shear", shear[2:])
    return around("shear", 0.0 if shear is None else shear), (0.0, 0.0)


def _point(center: Sequence[float]) -> tuple[float, float]:
    if not isinstance(center, Sequence) or len(center) != 2 or not all(isinstance(each, Real) for each in center):
        raise refusal("center", "x and y in pixels", center)
    return float(center[0]), float(center[1])
