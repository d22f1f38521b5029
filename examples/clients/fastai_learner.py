"""Train with fastai's Learner.

tsds demo
python examples/clients/fastai_learner.py demo/digits.tsds
"""

from __future__ import annotations

import argparse

import torch
from fastai.data.core import DataLoaders
from fastai.learner import Learner
from fastai.metrics import accuracy
from torch import nn

import tensorstore_ds as tsds  # tsds


def main() -> None:
    """Train on the split `train`, validate on the split `test`."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("store")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--own-loader", action="store_true", help="fastai's own loader")
    options = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(0)

    train = tsds.StoreDataset(options.store, "train", return_as="tuple", transform_of="image")  # tsds
    test = tsds.StoreDataset(options.store, "test", return_as="tuple", transform_of="image")  # tsds
    train.transform = test.transform = lambda image: image / 255
    if options.own_loader:
        loaders = DataLoaders.from_dsets(train, test, bs=32, num_workers=0, device=device)
    else:
        loader = tsds.DataLoader(train, batch_size=32, shuffle=True, device=device)  # tsds
        loaders = DataLoaders(loader, tsds.DataLoader(test, batch_size=256, device=device), device=device)  # tsds
    layers = (nn.Flatten(), nn.Linear(train[0][0].numel(), 64), nn.ReLU(), nn.Linear(64, len(train.classes)))
    learner = Learner(loaders, nn.Sequential(*layers), nn.CrossEntropyLoss(), metrics=accuracy)
    with learner.no_logging():
        learner.fit(options.epochs, 3e-3)
    print(f"accuracy {learner.recorder.values[-1][-1]:.3f} after {options.epochs} epochs")


if __name__ == "__main__":
    main()
