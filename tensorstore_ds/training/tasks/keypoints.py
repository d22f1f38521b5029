"""K keypoints of an image's largest object."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn import functional

from tensorstore_ds.loading.augment.base import on_device
from tensorstore_ds.training.tasks.base import Batch, Sums, Task, largest, objects_of, pick, ratio

#: Where the loss of a keypoint turns from a square to a line, in sides of the image.
SMOOTH = 0.02


@dataclass(frozen=True)
class Keypoints(Task):
    """K keypoints of an image's largest object: smooth L1 of their places, normalised mean error.

    The normalised mean error is the mean distance of predicted and true keypoints, relative to ``sqrt(w * h)`` of the
    object's box (Bulat and Tzimiropoulos, How far are we from solving the 2D & 3D face alignment problem, ICCV 2017);
    of the image where objects have no boxes. Absent keypoints (NaN) count nowhere.
    """

    name: ClassVar[str] = "keypoints"
    metric: ClassVar[str] = "nme"
    higher_is_better: ClassVar[bool] = False

    def targets(self, batch: Batch) -> dict[str, Tensor]:
        """`keypoints` (B, K, 2) float32, x y in sides of the image from its middle, NaN where absent; `side` (B, 2).

        `side` is the image's width and height in units of the error, such as the square root of the box's area.
        """
        objects = objects_of(batch, self.objects_field)
        height, width = batch["image"].shape[-2:]
        chosen = largest(objects)
        keypoints = pick(objects.values["keypoints"], chosen, math.nan)
        sides = on_device(torch.tensor([width, height], dtype=keypoints.dtype), keypoints.device)
        unit = keypoints.new_full((len(keypoints),), math.sqrt(width * height))
        if "boxes" in objects.values:
            box = pick(objects.values["boxes"], chosen, math.nan)
            unit = ((box[:, 2] - box[:, 0]) * (box[:, 3] - box[:, 1])).sqrt()
        return {"keypoints": keypoints / sides - 0.5, "side": sides / unit[:, None]}

    def loss(self, outputs: Tensor, targets: Mapping[str, Tensor], *, label_smoothing: float = 0.0) -> Tensor:
        """Smooth L1 (Girshick, Fast R-CNN, ICCV 2015), the mean over the coordinates of keypoints that are there."""
        keypoints = targets["keypoints"]
        present = keypoints.isfinite()
        losses = functional.smooth_l1_loss(
            outputs.float().view_as(keypoints), keypoints.nan_to_num(0.0), beta=SMOOTH, reduction="none"
        )
        return (losses * present).sum() / present.sum().clamp(min=1)

    def sums(self, outputs: Tensor, targets: Mapping[str, Tensor], *, detailed: bool = False) -> Sums:
        """By keypoint, (K,): `distances` in units of the box, and `present`, how many there are."""
        keypoints = targets["keypoints"]
        error = (outputs.float().view_as(keypoints) - keypoints) * targets["side"][:, None]
        distances = error.norm(dim=2)
        present = distances.isfinite()
        return {"distances": distances.where(present, 0.0).double().sum(0), "present": present.sum(0)}

    def metrics(self, sums: Mapping[str, Tensor]) -> dict[str, float]:
        """`nme`: the normalised mean error over all keypoints."""
        return {"nme": ratio(sums["distances"].sum(), sums["present"].sum())}

    def predictions(self, outputs: Tensor, image_size: tuple[int, int]) -> list[dict[str, Any]]:
        """`keypoints`: x and y by name, in pixels."""
        height, width = image_size
        places = (outputs.float().view(len(outputs), -1, 2) + 0.5) * outputs.new_tensor([width, height]).float()
        return [{"keypoints": dict(zip(self.keypoints, rows, strict=True))} for rows in places.tolist()]
