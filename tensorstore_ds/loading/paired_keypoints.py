"""Keypoints and their visibility as tv_tensors in which torchvision's flips swap left and right.

torchvision moves its own `KeyPoints`, but a mirrored left eye remains the left eye. This module imports torchvision.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import torch
from torch import Tensor
from torch.utils import _pytree
from torchvision import tv_tensors
from torchvision.transforms.v2 import functional as F  # noqa: N812

from tensorstore_ds.format.kinds import ObjectsField

_ADVICE = (
    "Name the pairs with `keypoints` when you convert, or mirror with tsds.RandomHorizontalFlip and its `flip_pairs`."
)
#: Earlier versions of torchvision lose the class of a tv_tensor in every step.
CAN_SWAP = hasattr(tv_tensors.KeyPoints, "wrap")


class _Paired(tv_tensors.TVTensor):  # type: ignore[misc]  # torchvision has no types
    """A tensor (M, K, ...) of keypoints, with their pairs, or None if unknown."""

    flip_pairs: tuple[tuple[int, int], ...] | None

    @classmethod
    def of(cls, values: Tensor, pairs: tuple[tuple[int, int], ...] | None) -> _Paired:
        """Return the same values as this class."""
        paired = values.as_subclass(cls)
        paired.flip_pairs = pairs
        return paired

    @classmethod
    def wrap(cls, tensor: Tensor, like: Any, **changes: Any) -> Any:
        """Wrap the result of a step, as torchvision requires."""
        wrapped = super().wrap(tensor, like, **changes)
        wrapped.flip_pairs = like.flip_pairs
        return wrapped

    @classmethod
    def _wrap_output(cls, output: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None) -> Any:
        like = next(each for each in _pytree.tree_leaves((args, kwargs)) if isinstance(each, cls))
        return cls.wrap(output, like) if isinstance(output, Tensor) else output

    def swapped(self, values: Tensor) -> Any:
        """Return moved values with left and right swapped."""
        pairs, order = self.flip_pairs, list(range(self.shape[1]))
        if pairs is None:
            text = f"torchvision's flip mirrors {len(order)} keypoints whose pairs of left and right are unknown."
            warnings.warn(f"{text} {_ADVICE}", UserWarning, stacklevel=2)
        for a, b in pairs or ():
            order[a], order[b] = order[b], order[a]
        return tv_tensors.wrap(values[:, order], like=self)


class PairedKeyPoints(_Paired, tv_tensors.KeyPoints):  # type: ignore[misc]
    """`KeyPoints` (M, K, 2)."""


class PairedVisibility(_Paired):
    """(M, K), as COCO has it."""


def _register(flip: Callable[..., Any], points: Callable[..., Tensor]) -> None:
    @F.register_kernel(flip, PairedKeyPoints)  # type: ignore[untyped-decorator]
    def flip_points(image: PairedKeyPoints) -> Any:
        return image.swapped(points(image.as_subclass(Tensor), canvas_size=image.canvas_size))

    @F.register_kernel(flip, PairedVisibility)  # type: ignore[untyped-decorator]
    def flip_visibility(image: PairedVisibility) -> Any:
        return image.swapped(image.as_subclass(Tensor))


if CAN_SWAP:
    _register(F.horizontal_flip, F.horizontal_flip_keypoints)
    _register(F.vertical_flip, F.vertical_flip_keypoints)


def paired(values: dict[str, Any], field: ObjectsField, canvas: tuple[int, int]) -> dict[str, Any]:
    """Return objects whose keypoints (M, K, 2) and visibility torchvision's flips swap."""
    if not CAN_SWAP:
        if len(field.keypoints) > 1:
            text = "torchvision's flips do not swap left and right keypoints before torchvision 0.29."
            warnings.warn(f"{text} Update it, or mirror with tsds.RandomHorizontalFlip.", UserWarning, stacklevel=2)
        return {**values, "keypoints": tv_tensors.KeyPoints(values["keypoints"], canvas_size=canvas)}
    pairs = field.flip_pairs if field.flip_pairs or len(field.keypoints) < 2 else None
    points = cast(PairedKeyPoints, PairedKeyPoints.of(values["keypoints"], pairs))
    points.canvas_size = canvas
    changed: dict[str, Any] = {"keypoints": points}
    if "visibility" in values:
        changed["visibility"] = PairedVisibility.of(values["visibility"], pairs)
    return {**values, **changed}


def unpaired(result: Any, *, in_degrees: bool) -> Any:
    """Return a transform's result with the usual classes: `KeyPoints`, and tensors.

    Unless they stay `in_degrees`, oriented boxes are in radians, clockwise, as in samples without a transform.
    """
    parts = [result, *(result if isinstance(result, tuple | list) else ())]
    parts += [each for part in parts if isinstance(part, dict) for each in part.values()]
    for part in parts:
        for name, value in list(part.items()) if isinstance(part, dict) else ():
            if isinstance(value, PairedKeyPoints):
                part[name] = tv_tensors.KeyPoints(value.as_subclass(Tensor), canvas_size=value.canvas_size)
            elif isinstance(value, PairedVisibility):
                part[name] = value.as_subclass(torch.Tensor)
            elif not in_degrees and getattr(value, "format", None) == tv_tensors.BoundingBoxFormat.CXCYWHR:
                boxes = value.as_subclass(torch.Tensor)
                part[name] = torch.cat([boxes[:, :4], -torch.deg2rad(boxes[:, 4:])], dim=1)
    return result
