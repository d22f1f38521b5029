"""COCO's mean average precision of detections, computed by pycocotools."""

from __future__ import annotations

import contextlib
import io
import math
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tensorstore_ds.errors import OptionError

METRICS = ("map", "map50", "map75", "mar")


@dataclass(frozen=True)
class Precision:
    """Result of `StoreDetections.precision`: average precisions in [0, 1], NaN for classes without objects."""

    #: `map` over IoU 0.5 to 0.95, `map50`, `map75`, and `mar`, the mean recall with 100 detections per image.
    metrics: dict[str, float]
    ap: NDArray[np.float64]  #: (classes,) mean over IoU 0.5 to 0.95.
    ap50: NDArray[np.float64]  #: (classes,) average precision at IoU 0.5.
    objects: NDArray[np.int64]  #: (classes,) number of objects that are not ignored.

    def as_sums(self) -> dict[str, Tensor]:
        """Tensors that `of_sums` reads, for a checkpoint."""
        by_class = torch.from_numpy(np.stack([self.ap, self.ap50, self.objects]))
        return {"precision": torch.tensor(list(self.metrics.values()), dtype=torch.float64), "by class": by_class}

    @classmethod
    def of_sums(cls, sums: Mapping[str, Tensor]) -> Self:
        """The inverse of `as_sums`."""
        ap, ap50, objects = sums["by class"].numpy()
        return cls(dict(zip(METRICS, sums["precision"].tolist(), strict=True)), ap, ap50, objects.astype(np.int64))


def need_pycocotools() -> None:
    """Raise `OptionError` if pycocotools is not installed."""
    try:
        import pycocotools.cocoeval  # noqa: F401
    except ImportError:
        raise OptionError(
            "detection: expected pycocotools for the mAP, found none. pip install '.[coco]' in a clone of "
            'tensorstore-ds, or use `task="multilabel"`.'
        ) from None


def coco_map(detections: NDArray[np.floating], objects: NDArray[np.floating], classes: int) -> Precision:
    """Mean average precision of COCO (Lin et al., Microsoft COCO, ECCV 2014), by the evaluation of its authors.

    `detections` are (M, 7): image, class, score, x1, y1, x2, y2. `objects` are (N, 7): image, class, 1 if ignored else
    0, x1, y1, x2, y2. An ignored object is a crowd of COCO: detections in it count neither as right nor as wrong, and
    it need not be found.
    """
    counted = np.bincount(objects[objects[:, 2] == 0, 1].astype(np.int64), minlength=classes)
    nothing = np.where(counted > 0, 0.0, np.nan)
    if not len(detections) or not counted.any():
        value = 0.0 if counted.any() else math.nan
        return Precision(dict.fromkeys(METRICS, value), nothing, nothing, counted)
    need_pycocotools()
    with warnings.catch_warnings(action="ignore"), contextlib.redirect_stdout(io.StringIO()):
        from pycocotools.coco import COCO
        from pycocotools.cocoeval import COCOeval

        truth = COCO()
        boxes = coco_boxes(objects)
        truth.dataset = {
            "images": [{"id": int(image)} for image in np.unique(np.concatenate([objects[:, 0], detections[:, 0]]))],
            "categories": [{"id": number} for number in range(classes)],
            "annotations": [
                {"id": i, "image_id": int(row[0]), "category_id": int(row[1]), "iscrowd": int(row[2])}
                | {"bbox": box, "area": box[2] * box[3]}
                for i, (row, box) in enumerate(zip(objects, boxes.tolist(), strict=True), 1)
            ],
        }
        truth.createIndex()
        order = detections[:, [0, 3, 4, 5, 6, 2, 1]].astype(np.float64)
        order[:, 1:5] = coco_boxes(detections)
        found = COCOeval(truth, truth.loadRes(order), "bbox")
        # Objects of all sizes and 100 detections alone: the other combinations would take 4x the time.
        params = found.params
        params.areaRng, params.areaRngLbl, params.maxDets = params.areaRng[:1], params.areaRngLbl[:1], [100]
        found.evaluate()
        found.accumulate()
    precision, recall = (found.eval[name] for name in ("precision", "recall"))  # -1 where a class has no object
    curves = np.where(precision[..., 0, -1] < 0, np.nan, precision[..., 0, -1])  # (IoUs, recalls, classes)
    ap = curves.mean(axis=(0, 1))
    some = counted > 0
    ap50 = curves[0].mean(axis=0)
    means = ap[some].mean(), ap50[some].mean(), curves[5].mean(axis=0)[some].mean(), recall[:, some, 0, -1].mean()
    return Precision(dict(zip(METRICS, map(float, means), strict=True)), ap, ap50, counted)


def coco_boxes(rows: NDArray[np.floating]) -> NDArray[np.float64]:
    """(n, 4) x, y, width and height."""
    corners = rows[:, 3:].astype(np.float64)
    return np.hstack([corners[:, :2], corners[:, 2:] - corners[:, :2]])
