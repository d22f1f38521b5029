"""Train a timm model on a store of RGB images, with timm's transforms, loader and Mixup.

tsds demo
tsds convert demo/digits rgb.tsds --color rgb
python examples/clients/timm_train.py rgb.tsds
"""

from __future__ import annotations

import argparse

import timm
import torch
from timm.data import Mixup
from timm.loss import SoftTargetCrossEntropy

from tensorstore_ds.annex.adapters.timm import create_loader  # tsds


def main() -> None:
    """Train on the split `train`, test on the split `test`."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("store")
    parser.add_argument("--epochs", type=int, default=10)
    options = parser.parse_args()
    torch.manual_seed(0)

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    augmentation = {"is_training": True, "hflip": 0, "scale": (0.9, 1), "color_jitter": 0}
    train = create_loader(options.store, "train", (3, 32, 32), 32, device=device, **augmentation)  # tsds
    test = create_loader(options.store, "test", (3, 32, 32), 32, device=device)  # tsds
    classes = len(train.dataset.classes)
    model = timm.create_model("test_resnet", pretrained=False, num_classes=classes)
    model = model.to(device)
    mixup = Mixup(mixup_alpha=0.1, num_classes=classes)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    for _ in range(options.epochs):
        for images, labels in train:
            images, targets = mixup(images, labels)
            loss = SoftTargetCrossEntropy()(model(images), targets)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    model.eval()
    with torch.inference_mode():
        right = [(model(images).argmax(1) == labels).float() for images, labels in test]
    print(f"accuracy {float(torch.cat(right).mean()):.3f} after {options.epochs} epochs")


if __name__ == "__main__":
    main()
