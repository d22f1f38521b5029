"""Train a small network on labelled images, and test it.

tsds demo
python examples/classification.py demo/digits.tsds
"""

from __future__ import annotations

import argparse

import torch
from torch import nn
from torch.nn.functional import cross_entropy

import tensorstore_ds as tsds


def make_model(channels: int, classes: int) -> nn.Module:
    """A network for images of any size: (B, channels, H, W) to logits (B, classes)."""
    return nn.Sequential(
        *(nn.Conv2d(channels, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU()),
        *(nn.Conv2d(32, 64, 3, stride=2, padding=1), nn.BatchNorm2d(64), nn.ReLU()),
        *(nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(64 * 16, classes)),
    )


def main() -> None:
    """Train on the split `train`, test on the split `test`."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("store")
    parser.add_argument("--epochs", type=int, default=10)
    options = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(0)

    train, test = tsds.StoreDataset(options.store, "train"), tsds.StoreDataset(options.store, "test")
    loader = tsds.DataLoader(train, batch_size=32, shuffle=True, device=device)
    height, width, channels = train.split.fields["image"].spec.shape
    normalize = tsds.Normalize.from_split(train.split)  # with the mean and std that the store keeps
    # On the device, for every image another place.
    augment = tsds.Compose([tsds.RandomCrop((height, width), padding=1), normalize])

    model = make_model(channels, len(train.classes)).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for _ in range(options.epochs):
        for batch in loader:
            loss = cross_entropy(model(augment(batch)["image"]), batch["label"])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    model.eval()
    with torch.inference_mode():
        batches = tsds.DataLoader(test, batch_size=256, device=device)
        right = sum((model(normalize(b)["image"]).argmax(1) == b["label"]).sum() for b in batches)
    print(f"accuracy {float(right) / len(test):.3f} on {len(test)} images after {options.epochs} epochs")


if __name__ == "__main__":
    main()
