"""Train a YOLO of Ultralytics (tried with 8.4.190) on a store, with its own augmentations and trainer.

tsds demo
python examples/clients/ultralytics_yolo.py demo/scenes.tsds
"""

from __future__ import annotations

import argparse
import math
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from ultralytics.data import YOLODataset
from ultralytics.models.yolo.detect import DetectionTrainer

import tensorstore_ds as tsds  # tsds


class StoreYOLODataset(YOLODataset):  # tsds
    """The images, kept as pixels, and the boxes of a split, in place of files; `img_path` is ``store::split``."""

    def get_img_files(self, img_path: str) -> list[str]:
        """Names of the images, to be shown."""
        path, name = img_path.split("::")
        self.split = tsds.open(path)[name]
        return [f"{img_path}/{row}" for row in range(len(self.split))]

    def get_labels(self) -> list[dict[str, Any]]:
        """Of every image its classes, and its boxes: center and size, relative to the image."""
        height, width, _ = self.split.fields["image"].spec.shape
        labels = []
        for row, name in enumerate(self.im_files):
            objects = self.split["objects"][row]
            corners = objects["boxes"] / np.array([width, height, width, height], np.float32)
            boxes = np.concatenate([(corners[:, :2] + corners[:, 2:]) / 2, corners[:, 2:] - corners[:, :2]], axis=1)
            values = {"cls": objects["labels"][:, None].astype(np.float32), "bboxes": boxes, "segments": []}
            form = {"keypoints": None, "normalized": True, "bbox_format": "xywh"}
            labels.append({"im_file": name, "shape": (height, width), **values, **form})
        return labels

    def load_image(self, i: int, *_: Any, **__: Any) -> tuple[np.ndarray, tuple[int, int], tuple[int, int]]:
        """An image (H, W, 3) in BGR, of which the longer side is `imgsz`; its size in the store, and now."""
        image = np.ascontiguousarray(self.split["image"][i][:, :, ::-1])
        height, width, _ = image.shape
        scale = self.imgsz / max(height, width)
        if scale != 1:
            size = (min(math.ceil(width * scale), self.imgsz), min(math.ceil(height * scale), self.imgsz))
            image = cv2.resize(image, size, interpolation=cv2.INTER_LINEAR)
        return image, (height, width), image.shape[:2]

    def build_transforms(self, hyp: Any) -> Any:
        """Mosaics are made of any images of the split, as of those that Ultralytics has cached."""
        self.cache = "ram"
        return super().build_transforms(hyp)


class StoreTrainer(DetectionTrainer):  # tsds
    """A trainer whose `data` is the path of a store."""

    def get_dataset(self) -> dict[str, Any]:
        """What a data.yaml says."""
        store = tsds.open(self.args.data)
        names = dict(enumerate(store[store.splits[0]].fields["objects"].classes))
        ends = {"train": f"{store.path}::{store.splits[0]}", "val": f"{store.path}::{store.splits[-1]}"}
        return {**ends, "names": names, "nc": len(names), "channels": 3}

    def build_dataset(self, img_path: str, mode: str = "train", batch: int | None = None) -> StoreYOLODataset:
        """The data set of a split."""
        arguments = {"imgsz": self.args.imgsz, "augment": mode == "train", "hyp": self.args, "batch_size": batch}
        return StoreYOLODataset(img_path, data=self.data, task=self.args.task, **arguments)

    def final_eval(self) -> None:
        """The best weights are not validated once more: that would need a data.yaml."""


def main() -> None:
    """Train on the first split, validate on the last."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("store")
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--out", type=Path, default=Path("runs/detect"))
    options = parser.parse_args()
    settings = {"model": "yolov8n.yaml", "pretrained": False, "imgsz": 160, "batch": 4, "workers": 0, "amp": False}
    quiet = {"plots": False, "verbose": False, "project": str(options.out.resolve()), "exist_ok": True}
    trainer = StoreTrainer(overrides={"data": options.store, "epochs": options.epochs, **settings, **quiet})
    trainer.train()
    loss = float(sum(trainer.tloss.values()))
    print(f"loss {loss:.3f}, mAP {trainer.metrics['metrics/mAP50-95(B)']:.3f} after {options.epochs} epochs")


if __name__ == "__main__":
    main()
