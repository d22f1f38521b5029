"""Train torchvision's Faster R-CNN on images with boxes.

tsds demo
python examples/detection.py demo/scenes.tsds
"""

from __future__ import annotations

import argparse
from itertools import chain, islice, repeat

import torch
from torchvision.models.detection import fasterrcnn_mobilenet_v3_large_320_fpn

import tensorstore_ds as tsds


def main() -> None:
    """Train for some steps on the split `train`."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("store")
    parser.add_argument("--steps", type=int, default=100)
    options = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(0)

    # Images as float32 and lists of targets, any number of boxes each: what torchvision's detection models take.
    dataset = tsds.StoreDataset(options.store, "train", return_as="torchvision")
    loader = tsds.DataLoader(dataset, batch_size=4, shuffle=True, collate="list", device=device)
    height, width, _ = dataset.split.fields["image"].spec.shape
    model = fasterrcnn_mobilenet_v3_large_320_fpn(
        weights=None,
        weights_backbone=None,
        num_classes=len(dataset.classes) + 1,
        min_size=min(height, width),
        max_size=max(height, width),
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
