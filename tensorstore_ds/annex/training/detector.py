"""torchvision's detectors for batches of one size, their weights from files, and where a letterbox puts an image."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from torch import Tensor, nn
from torchvision.models.detection import fasterrcnn_mobilenet_v3_large_fpn, ssdlite320_mobilenet_v3_large
from torchvision.models.detection.image_list import ImageList
from torchvision.ops.misc import FrozenBatchNorm2d

from tensorstore_ds.annex.training.options import DetectorOptions
from tensorstore_ds.loading.augment.fitting import Letterbox
from tensorstore_ds.loading.augment.placements import Placements
from tensorstore_ds.loading.collate import map_tensors

#: Images up to this many pixels get as few proposals as torchvision's `fasterrcnn_mobilenet_v3_large_320_fpn` has.
SMALL_IMAGE = 320 * 640
PROPOSALS = {"rpn_pre_nms_top_n_test": 150, "rpn_post_nms_top_n_test": 150}
#: Regions per image that a Faster R-CNN learns from.
REGIONS = 512


class WholeBatch(nn.Module):
    """Replaces torchvision's transform: the images of a batch have one size and are already normalized.

    A training batch of fewer than `least` images is repeated: the last layers of `ssdlite` see one pixel of each image,
    and batch norm needs two.
    """

    def __init__(self, least: int) -> None:
        super().__init__()
        self.least = least

    def forward(self, images: Tensor, targets: list[dict[str, Tensor]] | None = None) -> tuple[ImageList, Any]:
        """Wrap (B, 1 or 3, H, W) images in the internal form of torchvision's detectors."""
        if self.training and targets is not None and len(images) < self.least:
            images, targets = images.expand(self.least, -1, -1, -1), targets * self.least
        if images.shape[1] == 1:
            images = images.expand(-1, 3, -1, -1)
        return ImageList(images, [(images.shape[2], images.shape[3])] * len(images)), targets

    def postprocess(self, result: list[dict[str, Tensor]], *sizes: object) -> list[dict[str, Tensor]]:
        """Return detections unchanged, in pixels of the batch."""
        return result


def detector(options: DetectorOptions, outputs: int) -> nn.Module:
    """torchvision's `ssdlite320_mobilenet_v3_large` or `fasterrcnn_mobilenet_v3_large_fpn` with random weights.

    SSDlite: Sandler et al., MobileNetV2, CVPR 2018, and Liu et al., SSD, ECCV 2016; Faster R-CNN: Ren et al., NeurIPS
    2015; the backbone: Howard et al., Searching for MobileNetV3, ICCV 2019. The weights have torchvision's names and
    shapes. In training, it is called with images (B, C, H, W) and a list of targets, and returns losses by name; in
    evaluation with images alone, and returns a dict of `boxes`, `scores` and `labels` for each. `outputs` counts the
    classes and the background.
    """
    common = {"weights": None, "weights_backbone": None, "num_classes": outputs}
    if options.model == "ssdlite":
        model = ssdlite320_mobilenet_v3_large(**common)
        heads = [model.backbone, model.head]
    else:
        few = PROPOSALS if math.prod(options.image_size) <= SMALL_IMAGE else {}
        model = fasterrcnn_mobilenet_v3_large_fpn(**common, **few, box_batch_size_per_image=REGIONS)
        heads = [model.backbone, model.rpn.head, model.roi_heads.box_predictor]
    model.transform = WholeBatch(2 if options.model == "ssdlite" else 1)
    for part in heads:  # coordinates are computed in float32, whatever the convolutions are computed in
        part.register_forward_hook(_widened)
    if options.frozen_norm:
        _freeze_norms(model)
    return model  # type: ignore[no-any-return]  # torchvision has no types


def _widened(module: nn.Module, inputs: Any, outputs: Any) -> Any:
    return map_tensors(outputs, Tensor.float)


def _freeze_norms(model: nn.Module) -> None:
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if isinstance(child, nn.BatchNorm2d):
                frozen = FrozenBatchNorm2d(child.num_features, child.eps)
                setattr(module, name, frozen.to(child.running_mean.device))  # type: ignore[union-attr]


# --- where images lie -------------------------------------------------------------------------------------------


def letterboxed_back(boxes: NDArray[np.float64], sizes: ArrayLike, canvas: tuple[int, int]) -> NDArray[np.float64]:
    """Boxes (n, 4) of a `Letterbox` in pixels of their images, clipped; `sizes` are (height, width) or (n, 2)."""
    size = np.reshape(sizes, (-1, 2))
    placed = Letterbox(canvas)._placed(Placements.whole(size), {})
    zoom, offset = placed.zoom[:, None, ::-1], placed.offset[:, None, ::-1]
    moved = (boxes.reshape(-1, 2, 2) - offset) / zoom
    return moved.clip(0, size[:, None, ::-1].astype(float)).reshape(-1, 4)
