"""Train a timm model on a store of RGB images, with timm's transforms, loader and Mixup.

tsds demo
tsds convert demo/digits rgb.tsds --color rgb
python examples/clients/timm_train.py rgb.tsds
"""

from __future__ import annotations

import argparse

import timm
import torch
from timm.data import Mixup, create_loader
from timm.loss import SoftTargetCrossEntropy

import tensorstore_ds as tsds  # tsds


def make_loader(store: str, split: str, **options: object) -> torch.utils.data.DataLoader:
    """timm's loader: it sets the transform of the data set itself."""
    dataset = tsds.StoreDataset(store, split, return_as="tuple", as_pil=True, transform_of="image")  # tsds
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    return create_loader(dataset, input_size=(3, 32, 32), batch_size=32, num_workers=0, device=device, **options)


def main() -> None:
    """Train on the split `train`, test on the split `test`."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("store")
    parser.add_argument("--epochs", type=int, default=10)
    options = parser.parse_args()
    torch.manual_seed(0)

    train = make_loader(options.store, "train", is_training=True, hflip=0, scale=(0.9, 1), color_jitter=0)
    test = make_loader(options.store, "test")
    classes = len(tsds.open(options.store)["train"].fields["label"].classes)  # tsds
    model = timm.create_model("test_resnet", pretrained=False, num_classes=classes)
    model = model.to(train.device)
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
