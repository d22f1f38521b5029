"""Augment with Albumentations, which takes NumPy arrays (H, W, C) and moves boxes with them.

tsds demo
python examples/clients/albumentations_crops.py demo/scenes.tsds
"""

from __future__ import annotations

import argparse
from typing import Any

import albumentations
import numpy as np
import torch

import tensorstore_ds as tsds  # tsds

STEPS = albumentations.Compose(
    [albumentations.HorizontalFlip(p=0.5), albumentations.RandomSizedBBoxSafeCrop(96, 128)],
    bbox_params=albumentations.BboxParams("pascal_voc", label_fields=["labels"], min_area=1),
)


def augment(sample: dict[str, Any]) -> dict[str, Any]:
    """An image as (3, H, W) uint8, and its objects."""
    image, objects = sample["image"].permute(1, 2, 0).numpy(), sample["objects"]  # tsds
    found = STEPS(image=image, bboxes=objects["boxes"].numpy(), labels=objects["labels"].numpy())
    boxes = torch.as_tensor(np.asarray(found["bboxes"]), dtype=torch.float32).reshape(-1, 4)
    labels = torch.as_tensor(np.asarray(found["labels"]), dtype=torch.int64)
    return {
        "image": torch.from_numpy(found["image"]).permute(2, 0, 1),
        "objects": {"boxes": boxes, "labels": labels},  # tsds
    }


def main() -> None:
    """Make the batches of an epoch."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("store")
    options = parser.parse_args()
    dataset = tsds.StoreDataset(options.store, "train", transform=augment)  # tsds
    loader = tsds.DataLoader(dataset, batch_size=16, shuffle=True, collate="packed")  # tsds
    images = boxes = 0
    for batch in loader:
        images += len(batch["image"])
        boxes += len(batch["objects"]["boxes"])
    print(f"{images} images with {boxes} boxes")


if __name__ == "__main__":
    main()
