"""Train torchvision's Faster R-CNN on images with boxes, of one size or of many.

tsds demo
python examples/detection.py demo/scenes.tsds
python examples/detection.py VOCdevkit  # is converted to VOCdevkit.tsds first
"""

from __future__ import annotations

import argparse
from itertools import chain, islice, repeat
from pathlib import Path

import numpy as np
import torch
from torchvision.models.detection import fasterrcnn_mobilenet_v3_large_320_fpn

import tensorstore_ds as tsds


def main() -> None:
    """Train for some steps on the split `train`."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("store", type=Path, help="or a folder with Pascal VOC")
    parser.add_argument("--steps", type=int, default=100)
    options = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(0)

    store = options.store.with_suffix(".tsds")
    if not store.exists():  # files stay as they are, each of its size; boxes without area are left out
        tsds.convert(options.store, store, on_error="skip")

    # Images as float32 and lists of targets, any number of boxes each: what torchvision's detection models take. They
    # pad the images of a batch, so these are of similar size.
    dataset = tsds.StoreDataset(store, "train", return_as="torchvision")
    sampler = tsds.SizeBucketSampler(dataset, batch_size=4)
    loader = tsds.DataLoader(dataset, batch_sampler=sampler, collate="list", collate_images="list", device=device)
    height, width = np.median(dataset.split.image_shapes[:, :2], axis=0).astype(int).tolist()
    model = fasterrcnn_mobilenet_v3_large_320_fpn(
        weights=None,
        weights_backbone=None,
        num_classes=len(dataset.classes) + 1,
        min_size=min(height, width, 320),
        max_size=min(2 * max(height, width), 640),
    ).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.005, momentum=0.9)

    for images, targets in islice(chain.from_iterable(repeat(loader)), options.steps):
        losses = model(list(images), targets)
        loss = sum(losses.values())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"loss {loss.item():.3f} after {options.steps} steps, of " + ", ".join(sorted(losses)))


if __name__ == "__main__":
    main()
