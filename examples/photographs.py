"""Train a torchvision model on photographs of differing sizes, as ImageNet is trained on.

python examples/photographs.py photos

The folder has `train` and `test`, each with a folder of JPEG files per class. Without a folder, photographs are drawn.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageDraw
from torch.nn.functional import cross_entropy
from torchvision.models import shufflenet_v2_x0_5

import tensorstore_ds as tsds

COLORS = ("blue", "green", "red")


def draw_photographs(folder: Path, count: int) -> None:
    """JPEG files of differing sizes: a disc on a background of any color, and the color of the disc is the class."""
    rng = np.random.default_rng(0)
    for number in range(count):
        width, height = (int(side) for side in rng.integers(200, 420, 2))
        image = Image.new("RGB", (width, height), tuple(rng.integers(0, 160, 3).tolist()))
        radius = int(min(width, height) * rng.uniform(0.25, 0.4))
        middle = int(rng.integers(radius, width - radius)), int(rng.integers(radius, height - radius))
        name = COLORS[number % 3]
        ImageDraw.Draw(image).circle(middle, radius, fill=name)
        path = folder / ("test" if number % 4 == 3 else "train") / name / f"{number:04}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        image.save(path, quality=90)


def main() -> None:
    """Convert once, train on crops, test on the middle of each photograph."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--size", type=int, default=112, help="pixels a side of what the model sees")
    options = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(0)

    if not options.folder.exists():
        draw_photographs(options.folder, 160)
    store = options.folder.with_suffix(".tsds")
    if not store.exists():  # as JPEG files with restart markers, from which crops are cut before they are decoded
        tsds.convert(options.folder, store, encoding="jpeg", fit=tsds.conversion.Shrink(500))
    train, test = (tsds.StoreDataset(store, split, on_error="replace") for split in ("train", "test"))

    normalize = tsds.Normalize.from_split(train.split)
    size = options.size
    crops = tsds.DataLoader(
        train,
        batch_size=16,
        shuffle=True,
        drop_last=True,
        device=device,
        decode=tsds.RandomResizedCrop(size, scale=(0.35, 1.0)),  # on the CPU, one placement for each image
        batch_transform=tsds.Compose(  # on the device, for whole batches
            [tsds.RandomHorizontalFlip(), tsds.transforms.ColorJitter(0.4, 0.4, 0.4), normalize]
        ),
    )
    middles = tsds.DataLoader(
        test,
        batch_size=32,
        device=device,
        decode=tsds.Compose([tsds.Resize(size * 8 // 7), tsds.CenterCrop(size)]),
        batch_transform=normalize,
    )

    model = shufflenet_v2_x0_5(weights=None, num_classes=len(train.classes)).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for _ in range(options.epochs):
        model.train()
        for batch in crops:
            loss = cross_entropy(model(batch["image"]), batch["label"])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    model.eval()
    with torch.inference_mode():
        right = sum(int((model(batch["image"]).argmax(1) == batch["label"]).sum()) for batch in middles)
    print(f"accuracy {right / len(test):.3f} on {len(test)} photographs after {options.epochs} epochs")


if __name__ == "__main__":
    main()
