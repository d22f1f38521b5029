"""Train on class folders, converted to a store. migrating_before.py reads the folders themselves."""

import argparse

import torch
import tensorstore_ds as tsds
from torch.nn.functional import cross_entropy
from torchvision.transforms import v2


def make_loader(path: str) -> torch.utils.data.DataLoader:
    """Batches (images, labels), shuffled: (B, 3, H, W) float32 in [0, 1] and (B,) int64."""
    transform = v2.Compose([v2.ToImage(), v2.ToDtype(torch.float32, scale=True)])
    dataset = tsds.StoreDataset(path, "train", transform=transform, return_as="tuple")
    return tsds.DataLoader(dataset, batch_size=32, shuffle=True)


def main() -> None:
    """Train a linear model."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("path")
    parser.add_argument("--epochs", type=int, default=10)
    options = parser.parse_args()
    torch.manual_seed(0)
    loader = make_loader(options.path)
    pixels = loader.dataset[0][0].numel()
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(pixels, len(loader.dataset.classes)))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    right = 0
    for _ in range(options.epochs):
        right = 0
        for images, labels in loader:
            scores = model(images)
            right += int((scores.argmax(1) == labels).sum())
            optimizer.zero_grad()
            cross_entropy(scores, labels).backward()
            optimizer.step()
    print(f"accuracy {right / len(loader.dataset):.3f} on {len(loader.dataset)} images after {options.epochs} epochs")


if __name__ == "__main__":
    main()
