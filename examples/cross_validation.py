"""Cross validation: train a small network on each choice of k - 1 folds, and evaluate it on the fold that is left.

tsds demo
python examples/cross_validation.py demo/digits.tsds
"""

from __future__ import annotations

import argparse
from statistics import mean, stdev

import torch
from torch import nn
from torch.nn.functional import cross_entropy

import tensorstore_ds as tsds


def accuracy(dataset: tsds.StoreDataset, fold: tsds.editing.Fold, epochs: int) -> float:
    """Train on the rows `train` of a fold; the accuracy on its rows `val`."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(0)
    normalize = tsds.Normalize.from_split(dataset.split)
    model = nn.Sequential(nn.Flatten(), nn.LazyLinear(64), nn.ReLU(), nn.Linear(64, len(dataset.classes))).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for _ in range(epochs):
        for batch in tsds.DataLoader(dataset.subset(fold.train), batch_size=32, shuffle=True, device=device):
            loss = cross_entropy(model(normalize(batch)["image"]), batch["label"])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    with torch.inference_mode():
        batches = tsds.DataLoader(dataset.subset(fold.val), batch_size=256, device=device)
        right = sum((model(normalize(b)["image"]).argmax(1) == b["label"]).sum() for b in batches)
    return float(right) / len(fold.val)


def main() -> None:
    """The mean and the standard deviation of the accuracy in k folds."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("store")
    parser.add_argument("-k", type=int, default=5)
    parser.add_argument("--epochs", type=int, default=10)
    options = parser.parse_args()
    dataset = tsds.StoreDataset(options.store, "train")
    folds = tsds.folds(dataset, options.k, stratify="label")
    found = [accuracy(dataset, fold, options.epochs) for fold in folds]
    print(f"accuracy {mean(found):.3f} ± {stdev(found):.3f} in {len(found)} folds of {len(dataset)} images")


if __name__ == "__main__":
    main()
