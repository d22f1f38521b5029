"""Mixup and CutMix, which make images from several images of a batch, and mix their labels."""

from __future__ import annotations

import math
from collections.abc import Mapping
from numbers import Integral, Real
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tensorstore_ds.loading.augment.arguments import probability
from tensorstore_ds.loading.augment.base import BatchTransform, Params, Size
from tensorstore_ds.loading.augment.pixels import in_one_operation, parts
from tensorstore_ds.loading.augment.values import floating, rounded
from tensorstore_ds.loading.buffers import BufferPool, on_device
from tensorstore_ds.loading.collate import PackedObjects
from tensorstore_ds.options import refusal
from tensorstore_ds.seeding import Bits, fold, uniforms


class Mixing(BatchTransform):
    """Base class of transforms that make each image from several of the batch, and mix their labels by their shares.

    The batch is sorted into an order that depends on (seed, epoch, rows). Each sample is mixed with the next samples in
    this order, so that all samples of the batch are used equally often.
    """

    #: Number of images that each image is made from.
    COUNT: ClassVar[int] = 2

    def __init__(self, num_classes: int | None, p: float, label: str, seed: int) -> None:
        super().__init__(seed=seed)
        if num_classes is not None and (not isinstance(num_classes, Integral) or num_classes < 1):
            raise refusal("num_classes", "a positive number", num_classes)
        self.num_classes = num_classes
        self.p = probability(p)
        self.label = label

    @property
    def _mixes_samples(self) -> bool:
        return True

    def partners(self, keys: Bits) -> Tensor:
        """(B, COUNT) int64, the samples that each image is made from, itself first."""
        order = keys.argsort(kind="stable")
        place = np.empty_like(order)
        place[order] = np.arange(len(order))
        return torch.from_numpy(order[(place[:, None] + np.arange(self.COUNT)) % max(1, len(order))])

    def _is_chosen(self, keys: Bits) -> NDArray[np.bool_]:
        """(B,) bool, true for images that are mixed."""
        return uniforms(keys, 1)[:, 0] < self.p

    def _change_others(self, batch: Mapping[str, Any], params: Params, size: Size) -> dict[str, Any]:
        """Return the mixed objects and labels. Raises `ValueError` if there are none, or labels of a different form."""
        result = super()._change_others(batch, params, size)
        name = self._labels(batch)
        if name is None and not result and "mask" not in batch:
            raise ValueError(
                f"{type(self).__name__}: expected labels as {self.label!r}, or objects, found {', '.join(batch)}. "
                "Name the labels with `label`."
            )
        if name is not None:
            result[name] = self._mixed_labels(batch[name], params)
        return result

    def _labels(self, batch: Mapping[str, Any]) -> str | None:
        """Return the member with the labels. `labels` has those of samples to which several classes can apply."""
        for name in (self.label, "labels"):
            if name in batch:
                return name
        samples = len(batch["image"])
        for name, value in batch.items():
            of_tuple = name.startswith("value ") and isinstance(value, Tensor) and len(value) == samples
            if of_tuple and value.ndim == (2 if value.is_floating_point() else 1):
                return name
        return None

    def _mixed_labels(self, labels: Any, params: Params) -> Tensor:
        who, classes = type(self).__name__, self.num_classes
        form = (labels.ndim, labels.is_floating_point()) if isinstance(labels, Tensor) else None
        if form not in ((1, False), (2, True)) or len(labels) != len(params["shares"]):
            found = tuple(labels.shape) if isinstance(labels, Tensor) else type(labels).__name__
            raise ValueError(
                f"{who}: expected labels (B,) of integers or (B, classes) floating-point, found {found}. "
                "Name another member with `label`."
            )
        if form == (1, False):
            if classes is None:
                raise ValueError(f"{who}: expected `num_classes` for labels that are numbers, found none. Pass it.")
            if labels.device.type == "cpu" and len(labels) and int(labels.max()) >= classes:
                raise ValueError(f"{who}: expected labels below {classes}, `num_classes`, found {int(labels.max())}.")
            labels = (labels[:, None] == torch.arange(classes, device=labels.device)).float()
        elif classes is not None and labels.shape[1] != classes:
            raise ValueError(f"{who}: expected labels of {classes} classes, `num_classes`, found {labels.shape[1]}.")
        partners, shares = (on_device(params[name], labels.device) for name in ("partners", "shares"))
        shares = shares.to(labels.dtype)[:, :, None]
        # An unknown label, NaN, makes the label of its mixture unknown, if it has a share in it.
        mixed: Tensor = (labels[partners].where(shares > 0, 0.0) * shares).sum(1)
        return mixed


class _OfTwo(Mixing):
    """Base class of transforms that make each image from two, with shares from a beta distribution."""

    def __init__(
        self, *, alpha: float = 1.0, num_classes: int | None = None, p: float = 1.0, label: str = "label", seed: int = 0
    ) -> None:
        super().__init__(num_classes, p, label, seed)
        self.alpha = _alpha(alpha)

    def _own_shares(self, keys: Bits) -> NDArray[np.float64]:
        """(B,) float64, the share of each image itself, from Beta(alpha, alpha), or 1 if it is not mixed."""
        return np.where(self._is_chosen(keys), betas(fold(keys, 1), self.alpha), 1)


class Mixup(_OfTwo):
    """Blend each image with another image of the batch, and their labels by the same share, like torchvision's `MixUp`.

    Zhang et al., mixup: Beyond Empirical Risk Minimization, 2017 (arXiv 1710.09412). Each sample has its own share,
    whereas torchvision uses one for the batch. Objects of both images are kept, as in detectors of the YOLO family.
    Integers are rounded.

    Args:
        alpha: parameter of the distribution Beta(alpha, alpha) of the share of the image itself. Detectors use 32,
            which makes both shares about one half.
        num_classes, p, label: as in `CutMix`.

    >>> import tensorstore_ds as tsds
    >>> batch = {"image": torch.rand(4, 3, 8, 8), "label": torch.tensor([0, 1, 2, 1])}
    >>> mixed = tsds.transforms.Mixup(alpha=0.2, num_classes=3)(batch)
    >>> mixed["label"].shape, float(mixed["label"].sum().round())
    (torch.Size([4, 3]), 4.0)
    """

    def make_params(self, keys: Bits, size: Size) -> Params:
        """`partners` (B, 2) int64, itself and the other image, and `shares` (B, 2) float64, which add up to 1."""
        share = self._own_shares(keys)
        return {"partners": self.partners(keys), "shares": torch.from_numpy(np.stack([share, 1 - share], 1))}

    def _change_others(self, batch: Mapping[str, Any], params: Params, size: Size) -> dict[str, Any]:
        if "mask" in batch:
            raise ValueError("Mixup: expected no masks, which cannot be blended, found 'mask'. Use CutMix or Mosaic.")
        return super()._change_others(batch, params, size)

    def transform_images(self, images: Tensor, params: Params, pool: BufferPool | None) -> Tensor:
        work = torch.float64 if images.dtype == torch.float64 else torch.float32
        partner = on_device(params["partners"][:, 1], images.device)
        shares = on_device(params["shares"].to(work), images.device)[:, :, None, None, None]

        def blended(part: slice) -> Tensor:
            own, other = floating(images[part]), floating(images[partner[part]])
            return rounded(own * shares[part, 0] + other * shares[part, 1], images.dtype)

        if images.device.type != "cpu" or torch.compiler.is_compiling():
            return blended(slice(None))
        out = torch.empty_like(images)
        for part in parts(images):
            out[part] = blended(part)
        return out

    def transform_masks(self, masks: Tensor, params: Params, pool: BufferPool | None) -> Tensor:
        """Combine the masks of padding. A pixel is outside if it is outside in both images."""
        seen = on_device(params["shares"][:, 1] > 0, masks.device)[:, None, None, None]
        others = masks[on_device(params["partners"][:, 1], masks.device)]
        return torch.where(seen, torch.minimum(masks, others), masks)

    def transform_objects(self, objects: PackedObjects, params: Params, size: Size) -> PackedObjects:
        found = gather_objects(objects, params["partners"])
        is_seen = (params["shares"] > 0).flatten()
        if not is_seen.all():
            found = found.select(on_device(is_seen, found.offsets.device)[found.image_index])
        return PackedObjects(found.offsets[::2], found.values)


class CutMix(_OfTwo):
    """Put a rectangle of another image of the batch into each image, and mix the labels by area.

    This is torchvision's `CutMix` (Yun et al., CutMix: Regularization Strategy to Train Strong Classifiers with
    Localizable Features, 2019, arXiv 1905.04899). Each sample has its own rectangle, whereas torchvision uses one for
    the batch. Masks are cut like the images.

    Args:
        alpha: parameter of the distribution Beta(alpha, alpha) of the share of the image itself, before the rectangle
            is clipped at the edges.
        num_classes: number of classes, needed if labels are class indices. Labels become (B, num_classes) float32.
            Labels below 0, which are unknown, become zeros.
        p: probability that an image is mixed.
        label: member of the batch that contains the labels, (B,) integers or (B, classes) floating-point, else
            `labels`. In a tuple, it is the first of these members. Labels of several classes at once are mixed as they
            are. One that is unknown (NaN) makes the label of its mixture unknown.

    >>> import tensorstore_ds as tsds
    >>> batch = {"image": torch.rand(4, 3, 8, 8), "label": torch.tensor([0, 1, 2, 1])}
    >>> tsds.transforms.CutMix(num_classes=3)(batch)["label"].dtype
    torch.float32
    """

    def make_params(self, keys: Bits, size: Size) -> Params:
        """`partners` (B, 2) int64, `boxes` (B, 2, 2) int64 and `shares` (B, 2) float64.

        Partners are the image itself and the other one. Boxes are y and x of the rectangle's corners. Shares of the
        area add up to 1.
        """
        sides = np.array(size)
        share = self._own_shares(keys)
        middle = (uniforms(fold(keys, 2), 2) * sides).astype(np.int64)
        half = (0.5 * np.sqrt(1 - share)[:, None] * sides).astype(np.int64)
        boxes = np.stack([middle - half, middle + half], 1).clip(0, sides)
        other = (boxes[:, 1] - boxes[:, 0]).prod(1) / sides.prod()
        shares = np.stack([1 - other, other], 1)
        params = {"boxes": torch.from_numpy(boxes), "shares": torch.from_numpy(shares)}
        return {"partners": self.partners(keys), **params}

    def transform_images(self, images: Tensor, params: Params, pool: BufferPool | None) -> Tensor:
        if not in_one_operation(images):
            out = images.clone()
            for i, ((top, left), (bottom, right)) in enumerate(params["boxes"].tolist()):
                box = (slice(None), slice(top, bottom), slice(left, right))
                out[i][box] = images[params["partners"][i, 1]][box]
            return out
        (top, left), (bottom, right) = (
            corner.unbind(1) for corner in on_device(params["boxes"], images.device)[..., None].unbind(1)
        )
        y, x = (torch.arange(n, device=images.device) for n in images.shape[2:])
        inside = ((y >= top) & (y < bottom))[:, :, None] & ((x >= left) & (x < right))[:, None]
        partner = on_device(params["partners"][:, 1], images.device)
        return torch.where(inside[:, None], images[partner], images)

    def transform_masks(self, masks: Tensor, params: Params, pool: BufferPool | None) -> Tensor:
        return self.transform_images(masks, params, pool)

    def transform_objects(self, objects: PackedObjects, params: Params, size: Size) -> PackedObjects:
        raise ValueError("CutMix: expected no objects, which would be partly covered, found some. Use Mosaic or Mixup.")


def gather_objects(objects: PackedObjects, partners: Tensor) -> PackedObjects:
    """Gather the objects of B * K samples, those in `partners`, (B, K) on the CPU, where each sample occurs K times."""
    flat = on_device(partners.flatten(), objects.offsets.device)
    return objects.take(flat, partners.shape[1] * objects.total)


def _alpha(alpha: float) -> float:
    if not isinstance(alpha, Real) or not 0 < alpha < math.inf:
        raise refusal("alpha", "a positive number", alpha)
    return float(alpha)


def betas(keys: Bits, alpha: float) -> NDArray[np.float64]:
    """(B,) numbers in [0, 1] with the distribution Beta(alpha, alpha), from keys (B,) of `fold`.

    x / (x + y) of two gamma variables, computed from their logarithms, because a small `alpha` makes them underflow.
    """
    x, y = (_log_gammas(fold(keys, side), alpha) for side in (1, 2))
    share: NDArray[np.float64] = 1 / (1 + np.exp((y - x).clip(-700, 700)))
    return share


def _log_gammas(keys: Bits, alpha: float) -> NDArray[np.float64]:
    """(B,) logarithms of gamma variables.

    Marsaglia and Tsang, A Simple Method for Generating Gamma Variables, 2000: a draw is accepted in more than 19 of 20
    cases, so that 16 are enough. Normal numbers by Box and Muller, 1958.
    """
    attempts, shape = 16, alpha if alpha >= 1 else alpha + 1
    d = shape - 1 / 3
    drawn = 1 - uniforms(keys, 3 * attempts + 1)  # in (0, 1]
    radius, angle, share = drawn[:, :-1].reshape(-1, 3, attempts).swapaxes(0, 1)
    normal = np.sqrt(-2 * np.log(radius)) * np.cos(2 * np.pi * angle)
    v = (1 + normal / np.sqrt(9 * d)) ** 3
    log_v = np.log(np.maximum(v, np.finfo(float).tiny))
    accepted = (v > 0) & (np.log(share) < normal**2 / 2 + d - d * v + d * log_v)
    found: NDArray[np.float64] = np.log(d) + np.take_along_axis(log_v, accepted.argmax(1)[:, None], 1)[:, 0]
    return found if alpha >= 1 else found + np.log(drawn[:, -1]) / alpha
