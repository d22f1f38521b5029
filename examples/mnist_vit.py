"""Train a small vision transformer on MNIST, with mixed precision and gradient checkpointing.

tsds convert mnist mnist.tsds
python examples/mnist_vit.py mnist.tsds
"""

from __future__ import annotations

import argparse
import time

import torch
from torch.nn.functional import cross_entropy

import tensorstore_ds as tsds


def main() -> None:
    """Train on the split `train`, test on the split `test`."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("store")
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--batch-size", type=int, default=500)
    options = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(0)

    train, test = (tsds.StoreDataset(options.store, split, return_as="tuple") for split in ("train", "test"))
    batch_size = min(options.batch_size, len(train))
    loader = tsds.DataLoader(train, batch_size, shuffle=True, drop_last=True, device=device)
    normalize = tsds.Normalize.from_split(train.split)
    height, width, channels = train.split.fields["image"].spec.shape
    shape = tsds.training.ViTOptions(
        (height, width), channels=channels, patch_size=7, width=128, depth=4, heads=4, mlp_width=256
    )
    model = tsds.training.ViT(shape, len(train.classes), grad_checkpointing=True).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3, weight_decay=0.05)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1e-3, options.epochs * len(loader))
    began = time.perf_counter()
    for _ in range(options.epochs):
        for images, labels in loader:
            with torch.autocast(device, torch.bfloat16):
                loss = cross_entropy(model(normalize(images)), labels, label_smoothing=0.1)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
    speed = options.epochs * len(loader) * batch_size / (time.perf_counter() - began)

    model.eval()
    with torch.inference_mode():
        batches = tsds.DataLoader(test, options.batch_size, device=device)
        right = sum(int((model(normalize(images)).argmax(1) == labels).sum()) for images, labels in batches)
    print(f"accuracy {right / len(test):.3f} of {len(test)} after {options.epochs} epochs, {speed:,.0f} images/s")


if __name__ == "__main__":
    main()
