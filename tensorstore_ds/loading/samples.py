"""What one sample looks like to a training script: a dict of fields, or torchvision's tuples."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import torch
from torchvision import tv_tensors

from tensorstore_ds.format.schema import Field

ReturnAs = Literal["dict", "tuple"]


def as_sample(sample: Mapping[str, Any], fields: Mapping[str, Field], return_as: ReturnAs, *, wrap: bool) -> Any:
    """A sample as it is returned.

    Args:
        sample: field to value: image (C, H, W), label (), objects a dict of (m, ...).
        fields: of the store.
        return_as: ``dict``: the fields; ``tuple``: (image, label), or where there are objects (image, target).
        wrap: image, boxes and landmarks become torchvision's tv_tensors, so that ``torchvision.transforms.v2`` moves
            boxes and landmarks along with the image.
    """
    result = dict(sample)
    objects = next((name for name in result if fields[name].kind == "objects"), None)
    if objects is not None and (wrap or return_as == "tuple"):
        height, width = result["image"].shape[-2:] if "image" in result else (0, 0)
        result[objects] = _wrap_objects(result[objects], (height, width))
    if wrap and "image" in result:
        result["image"] = tv_tensors.Image(result["image"])
    if return_as == "dict":
        return result
    image = result.pop("image", None)
    if objects is not None:
        target = {**result.pop(objects), **result}
        return image, target
    rest = tuple(result.values())
    return (image, *rest) if image is not None else rest


def _wrap_objects(objects: Mapping[str, torch.Tensor], canvas: tuple[int, int]) -> dict[str, torch.Tensor]:
    wrapped = dict(objects)
    if "boxes" in wrapped:
        wrapped["boxes"] = tv_tensors.BoundingBoxes(wrapped["boxes"], format="XYXY", canvas_size=canvas)
    if "keypoints" in wrapped and hasattr(tv_tensors, "KeyPoints"):
        wrapped["keypoints"] = tv_tensors.KeyPoints(wrapped["keypoints"], canvas_size=canvas)
    return wrapped
