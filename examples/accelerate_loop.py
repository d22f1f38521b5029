"""Train with Accelerate: `prepare` takes the loader as it is, and divides its batches among the processes.

tsds demo
accelerate launch examples/accelerate_loop.py demo/digits.tsds
"""

from __future__ import annotations

import argparse

import torch
from accelerate import Accelerator
from torch import nn
from torch.nn.functional import cross_entropy

import tensorstore_ds as tsds  # tsds


def main() -> None:
    """Train on the split `train`, test on the split `test`."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("store")
    parser.add_argument("--epochs", type=int, default=10)
    options = parser.parse_args()
    torch.manual_seed(0)

    train, test = tsds.StoreDataset(options.store, "train"), tsds.StoreDataset(options.store, "test")  # tsds
    height, width, channels = train.split.fields["image"].spec.shape  # tsds
    model: nn.Module = nn.Sequential(
        nn.Flatten(), nn.Linear(height * width * channels, 64), nn.ReLU(), nn.Linear(64, len(train.classes))
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    accelerator = Accelerator()
    loaders = tsds.DataLoader(train, batch_size=32, shuffle=True), tsds.DataLoader(test, batch_size=256)  # tsds
    model, optimizer, loader, test_loader = accelerator.prepare(model, optimizer, *loaders)
    for _ in range(options.epochs):
        for batch in loader:
            loss = cross_entropy(model(batch["image"] / 255), batch["label"])
            optimizer.zero_grad()
            accelerator.backward(loss)
            optimizer.step()

    right = total = 0
    with torch.inference_mode():
        for batch in test_loader:
            guess = model(batch["image"] / 255).argmax(1)
            guess, label = accelerator.gather_for_metrics((guess, batch["label"]))  # what was repeated is left out
            right, total = right + int((guess == label).sum()), total + len(label)
    accelerator.print(f"accuracy {right / total:.3f} on {total} images after {options.epochs} epochs")
    accelerator.wait_for_everyone()
    accelerator.end_training()


if __name__ == "__main__":
    main()
