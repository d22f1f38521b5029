"""Regress keypoints of which some are absent: their error does not count.

tsds convert faces.xml faces.tsds --size 96 --objects crops
python examples/keypoints.py faces.tsds
"""

from __future__ import annotations

import argparse

import torch
from torch import nn

import tensorstore_ds as tsds


def one_object(objects: tsds.reading.Ragged) -> object:
    """(n,) bool: samples with exactly one object."""
    return objects.offsets[1:] - objects.offsets[:-1] == 1


def main() -> None:
    """Train on the samples of the split `train` that show one object."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("store")
    parser.add_argument("--epochs", type=int, default=20)
    options = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(0)

    dataset = tsds.StoreDataset(options.store, "train").filter(one_object, "objects")
    loader = tsds.DataLoader(dataset, batch_size=16, shuffle=True, collate="packed", device=device)
    split = dataset.split
    height, width, channels = split.fields["image"].spec.shape
    count = split.fields["objects"].values["keypoints"].shape[0]
    size = torch.tensor([width, height], device=device)
    # Flipped images have their keypoints flipped, the left and the right ones exchanged as the store says.
    augment = tsds.Compose([tsds.RandomHorizontalFlip.from_split(split), tsds.Normalize.from_split(split)])

    model = nn.Sequential(
        *(nn.Conv2d(channels, 32, 3, stride=2, padding=1), nn.ReLU(), nn.Conv2d(32, 64, 3, padding=1), nn.ReLU()),
        *(nn.AdaptiveAvgPool2d(8), nn.Flatten(), nn.Linear(64 * 64, count * 2), nn.Unflatten(1, (count, 2))),
    ).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for _ in range(options.epochs):
        distance = torch.zeros((), device=device)  # in pixels, summed over the keypoints of an epoch
        present_keypoints = torch.zeros((), device=device)
        for batch in loader:
            batch = augment(batch)
            keypoints = batch["objects"]["keypoints"] / size  # (B, K, 2): one object per sample; NaN where absent
            present = ~keypoints.isnan().any(2)
            error = model(batch["image"]) - keypoints.nan_to_num()
            loss = error[present].square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            distance += (error.detach() * size)[present].norm(dim=1).sum()
            present_keypoints += present.sum()
    mean, number = float(distance / present_keypoints), int(present_keypoints)
    print(f"mean distance {mean:.2f} pixels, {number} keypoints after {options.epochs} epochs")


if __name__ == "__main__":
    main()
