"""Train torchvision's Faster R-CNN as its detection references do, and evaluate it as COCO does.

The loops are those of `engine.py` in torchvision's references/detection: with a copy of that file, call its
`train_one_epoch` and `evaluate` with the same loaders.

tsds demo
python examples/clients/torchvision_coco.py demo/scenes.tsds
"""

from __future__ import annotations

import argparse
import contextlib
import io

import torch
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval
from torchvision.models.detection import fasterrcnn_mobilenet_v3_large_320_fpn

import tensorstore_ds as tsds  # tsds


def train_one_epoch(model: torch.nn.Module, optimizer: torch.optim.Optimizer, loader: tsds.DataLoader) -> float:
    """The mean loss of an epoch."""
    model.train()
    losses = []
    for images, targets in loader:
        loss = sum(model(list(images), targets).values())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    return sum(losses) / len(losses)


def as_coco(dataset: torch.utils.data.Dataset) -> COCO:
    """The truth in COCO's form, from the targets of a data set."""
    truth = {"images": [], "annotations": [], "categories": [{"id": i + 1} for i in range(len(dataset.classes))]}
    for image, target in (dataset[row] for row in range(len(dataset))):
        height, width = image.shape[-2:]
        truth["images"].append({"id": target["image_id"], "height": height, "width": width})
        for i, (x1, y1, x2, y2) in enumerate(target["boxes"].tolist()):
            box = {"bbox": [x1, y1, x2 - x1, y2 - y1], "image_id": target["image_id"]}
            values = {"category_id": "labels", "area": "area", "iscrowd": "iscrowd"}
            annotation = {name: target[value][i].item() for name, value in values.items()}
            truth["annotations"].append({"id": len(truth["annotations"]) + 1, **box, **annotation})
    coco = COCO()
    coco.dataset = truth
    coco.createIndex()
    return coco


@torch.inference_mode()
def evaluate(model: torch.nn.Module, loader: tsds.DataLoader) -> list[float]:
    """COCO's twelve figures; the first is the mean average precision at IoU 0.5 to 0.95."""
    model.eval()
    found = []
    for images, targets in loader:
        for target, output in zip(targets, model(list(images)), strict=True):
            boxes = output["boxes"].clone()
            boxes[:, 2:] -= boxes[:, :2]
            values = zip(boxes.tolist(), output["labels"].tolist(), output["scores"].tolist(), strict=True)
            found += [[target["image_id"], *box, score, label] for box, label, score in values]
    truth = as_coco(loader.dataset)
    evaluation = COCOeval(truth, truth.loadRes(torch.tensor(found).reshape(-1, 7).numpy()), "bbox")
    evaluation.evaluate()
    evaluation.accumulate()
    evaluation.summarize()
    return list(evaluation.stats)


def main() -> None:
    """Train on the first split, evaluate on the last."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("store")
    parser.add_argument("--epochs", type=int, default=10)
    options = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(0)

    splits = tsds.open(options.store).splits  # tsds
    train = tsds.StoreDataset(options.store, splits[0], return_as="torchvision")  # tsds
    test = tsds.StoreDataset(options.store, splits[-1], return_as="torchvision")  # tsds
    sizes = {"min_size": 120, "max_size": 160, "num_classes": len(train.classes) + 1}
    model = fasterrcnn_mobilenet_v3_large_320_fpn(weights=None, weights_backbone=None, **sizes).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.005, momentum=0.9)
    loader = tsds.DataLoader(train, batch_size=4, shuffle=True, device=device)  # tsds
    for _ in range(options.epochs):
        loss = train_one_epoch(model, optimizer, loader)
    with contextlib.redirect_stdout(io.StringIO()):
        figures = evaluate(model, tsds.DataLoader(test, batch_size=4, device=device))  # tsds
    print(f"loss {loss:.3f}, mAP {figures[0]:.3f} on {len(test)} images after {options.epochs} epochs")


if __name__ == "__main__":
    main()
