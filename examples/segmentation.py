"""Train a small network that tells the class of every pixel, and test it: docs/keypoints.md#masks.

tsds convert city city.tsds --size 256
python examples/segmentation.py city.tsds
"""

from __future__ import annotations

import argparse

import torch
from torch import nn
from torch.nn.functional import cross_entropy

import tensorstore_ds as tsds


def make_model(channels: int, classes: int) -> nn.Module:
    """A network for images of any size: (B, channels, H, W) to logits (B, classes, H, W)."""
    layers: list[nn.Module] = []
    for dilation in (1, 2, 4):
        layers += [nn.Conv2d(channels, 32, 3, padding=dilation, dilation=dilation), nn.BatchNorm2d(32), nn.ReLU()]
        channels = 32
    return nn.Sequential(*layers, nn.Conv2d(32, classes, 1))


def main() -> None:
    """Train on the first split, test on the last."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("store")
    parser.add_argument("--epochs", type=int, default=10)
    options = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(0)

    splits = tsds.open(options.store).splits
    train, test = (tsds.StoreDataset(options.store, split) for split in (splits[0], splits[-1]))
    image, mask = train.split.fields["image"], train.split.fields["mask"]
    ignored = -100 if mask.ignored is None else mask.ignored
    normalize = tsds.Normalize.from_split(train.split)
    augment = tsds.Compose([tsds.RandomHorizontalFlip(), normalize])  # masks are mirrored with their images

    model = make_model(image.spec.shape[2], len(mask.classes)).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for _ in range(options.epochs):
        for batch in tsds.DataLoader(train, batch_size=8, shuffle=True, device=device, batch_transform=augment):
            loss = cross_entropy(model(batch["image"]), batch["mask"].long(), ignore_index=ignored)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    model.eval()
    both = torch.zeros(len(mask.classes), device=device)  # pixels of each class in the intersection, and in the union
    either = torch.zeros_like(both)
    with torch.inference_mode():
        for batch in tsds.DataLoader(test, batch_size=8, device=device, batch_transform=normalize):
            said, true = model(batch["image"]).argmax(1), batch["mask"].long()
            for label in range(len(mask.classes)):
                a, b = (said == label) & (true != ignored), true == label
                both[label] += (a & b).sum()
                either[label] += (a | b).sum()
    iou = float((both / either)[either > 0].mean())
    print(f"mean IoU {iou:.3f} on {len(test)} images after {options.epochs} epochs")


if __name__ == "__main__":
    main()
