"""`tsds train` for detection beside a script as torchvision's references/detection has it: the same losses and mAP.

    python -m benchmarks.detection_reference VOC_DIR SCRATCH --epochs 3

The script reads the XML and JPEG files itself, and has its own letterbox, loop and evaluation. Both begin with the same
weights and see the same images in the same order: SGD with momentum, linear warm-up, and a cosine. Rounding of pixels
grows from step to step, so the script also runs with pixels that differ by 1e-6, which says how much.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import shutil
import time
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import torch
from PIL import Image
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval
from torchvision.models.detection import ssdlite320_mobilenet_v3_large
from torchvision.models.detection.transform import GeneralizedRCNNTransform
from torchvision.transforms.v2 import functional

import tensorstore_ds as tsds

SIZE, BATCH, RATE, WARMUP = 320, 8, 0.01, 0.1


def read(folder: Path, name: str, classes: list[str]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Pixels (3, H, W), boxes (m, 4) and labels (m,) from 1 of a VOC image."""
    image = torch.from_numpy(np.array(Image.open(folder / "JPEGImages" / f"{name}.jpg").convert("RGB"))).permute(
        2, 0, 1
    )
    boxes, labels = [], []
    for each in ElementTree.parse(folder / "Annotations" / f"{name}.xml").iter("object"):  # noqa: S314  # our own files
        low_x, low_y, high_x, high_y = (
            float(each.findtext(f"bndbox/{n}") or 0) for n in ("xmin", "ymin", "xmax", "ymax")
        )
        box = [max(0.0, low_x), max(0.0, low_y), min(high_x, image.shape[2]), min(high_y, image.shape[1])]
        if low_x < high_x and low_y < high_y:
            boxes.append(box)
            labels.append(classes.index(each.findtext("name") or "") + 1)
    return image, torch.tensor(boxes).reshape(-1, 4), torch.tensor(labels, dtype=torch.int64)


def letterbox(image: torch.Tensor, boxes: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """A square of SIZE with gray borders, its boxes, and (zoom x, zoom y, left, top)."""
    height, width = image.shape[1:]
    zoom = SIZE / max(height, width)
    new = round(height * zoom), round(width * zoom)
    top, left = (SIZE - new[0]) // 2, (SIZE - new[1]) // 2
    resized = functional.resize(image, list(new), antialias=True)
    canvas = functional.pad(resized, [left, top, SIZE - new[1] - left, SIZE - new[0] - top], fill=114)
    place = torch.tensor([new[1] / width, new[0] / height, left, top])
    return canvas, boxes * place[:2].repeat(2) + place[2:].repeat(2), place


def rate(step: int, steps: int) -> float:
    """Linear warm-up, then half a cosine."""
    rising = round(steps * WARMUP)
    return (step + 1) / rising if step < rising else (1 + math.cos(math.pi * (step - rising) / (steps - rising))) / 2


def reference(
    folder: Path, store: Path, epochs: int, *, noise: float = 0.0
) -> tuple[list[float], list[dict[str, float]], float]:
    """The script: its loss by step, and mAP by epoch; seconds of training. `noise` is added to pixels in [0, 1]."""
    opened = tsds.open(store)
    train, val = opened["train"], opened["val"]
    classes = list(train.fields["objects"].classes)
    names = {s.name: [Path(s.key(row)).stem for row in range(len(s))] for s in (train, val)}
    samples = {name: read(folder, name, classes) for split in names.values() for name in split}
    fitted = {name: (*letterbox(image, boxes), labels) for name, (image, boxes, labels) in samples.items()}
    pixels = torch.cat([samples[name][0].flatten(1).double() for name in names["train"]], 1) / 255
    mean, std = pixels.mean(1).float(), pixels.std(1, correction=0).float()
    del pixels
    torch.manual_seed(0)
    model = ssdlite320_mobilenet_v3_large(weights=None, weights_backbone=None, num_classes=len(classes) + 1)
    model.transform = GeneralizedRCNNTransform(SIZE, SIZE, mean.tolist(), std.tolist(), fixed_size=(SIZE, SIZE))
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE, momentum=0.9, weight_decay=0)
    order = tsds.ShuffleSampler(tsds.StoreDataset(store, "train"), seed=0)
    steps = math.ceil(len(train) / BATCH) * epochs
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: rate(min(step, steps - 1), steps))
    losses, precisions, seconds = list[float](), list[dict[str, float]](), 0.0
    for epoch in range(epochs):
        model.train()
        order.set_epoch(epoch)
        rows = list(order)
        began = time.perf_counter()
        for first in range(0, len(rows), BATCH):  # train_one_epoch
            batch = [fitted[names["train"][row]] for row in rows[first : first + BATCH]]
            images = [canvas.float() / 255 + noise for canvas, *_ in batch]
            loss = sum(model(images, [{"boxes": b, "labels": labels} for _, b, _, labels in batch]).values())
            optimizer.zero_grad()
            loss.backward()  # type: ignore[union-attr]
            optimizer.step()
            scheduler.step()
            losses.append(float(loss.detach()))
        seconds += time.perf_counter() - began
        precisions.append(evaluate(model, [(*samples[n][:0], *samples[n], *fitted[n]) for n in names["val"]]))
    return losses, precisions, seconds


@torch.inference_mode()
def evaluate(model: Any, samples: list[Any]) -> dict[str, float]:
    """COCO's mAP in pixels of the images."""
    model.eval()
    truth, results = COCO(), []
    annotations = list[dict[str, Any]]()
    for number, (image, boxes, labels, canvas, _, place, _) in enumerate(samples):
        for (x1, y1, x2, y2), label in zip(boxes.tolist(), labels.tolist(), strict=True):
            entry = {"id": len(annotations) + 1, "image_id": number, "category_id": label, "iscrowd": 0}
            annotations.append({**entry, "bbox": [x1, y1, x2 - x1, y2 - y1], "area": (x2 - x1) * (y2 - y1)})
        (found,) = model([canvas.float() / 255])
        moved = (found["boxes"] - place[2:].repeat(2)) / place[:2].repeat(2)
        moved[:, 0::2] = moved[:, 0::2].clamp(0, image.shape[2])
        moved[:, 1::2] = moved[:, 1::2].clamp(0, image.shape[1])
        for (x1, y1, x2, y2), label, score in zip(
            moved.tolist(), found["labels"].tolist(), found["scores"].tolist(), strict=True
        ):
            results.append(
                {"image_id": number, "category_id": label, "bbox": [x1, y1, x2 - x1, y2 - y1], "score": score}
            )
    categories = [{"id": label} for label in sorted({each["category_id"] for each in annotations})]
    truth.dataset = {
        "images": [{"id": i} for i in range(len(samples))],
        "annotations": annotations,
        "categories": categories,
    }
    truth.createIndex()
    evaluation = COCOeval(truth, truth.loadRes(results), "bbox")
    evaluation.evaluate()
    evaluation.accumulate()
    evaluation.summarize()
    return {"map": float(evaluation.stats[0]), "map50": float(evaluation.stats[1])}


def ours(store: Path, out: Path, epochs: int) -> tuple[list[float], list[dict[str, float]], float]:
    """`tsds train`: its loss by step, and metrics by epoch; seconds of training."""
    losses, precisions, backward = list[torch.Tensor](), list[dict[str, float]](), tsds.training.Learner.backward

    def recorded(self: tsds.training.Learner, *batch: Any, **options: Any) -> Any:
        result = backward(self, *batch, **options)
        losses.append(result[0])
        return result

    tsds.training.Learner.backward = recorded  # type: ignore[method-assign]
    try:
        options = tsds.training.TrainOptions(
            **{"task": "detection", "model": "ssdlite", "optimizer": "sgd", "learning_rate": RATE, "warmup": WARMUP},
            **{"weight_decay": 0.0, "clip": 0.0, "augment": "none", "batch_size": BATCH, "epochs": epochs},
            **{"device": "cpu", "torch_threads": torch.get_num_threads()},
        )
        listeners = tsds.training.Listeners(epoch=lambda record: precisions.append(dict(record.eval or {})))
        report = tsds.train(store, options, out=out, listeners=listeners)
    finally:
        tsds.training.Learner.backward = backward  # type: ignore[method-assign]
    assert report is not None
    return [float(loss) for loss in losses], precisions, report.seconds


def main() -> None:
    """Print a JSON object with both."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("voc", type=Path)
    parser.add_argument("scratch", type=Path)
    parser.add_argument("--epochs", type=int, default=3)
    given = parser.parse_args()
    store, out = given.scratch / "reference.tsds", given.scratch / "reference.run"
    for folder in (store, out):
        shutil.rmtree(folder, ignore_errors=True)
    tsds.convert(given.voc, store, on_error="skip")
    theirs, found, their_seconds = reference(given.voc, store, given.epochs)
    noisy, _, _ = reference(given.voc, store, given.epochs, noise=1e-6)
    losses, metrics, seconds = ours(store, out, given.epochs)
    relative, control = ([abs(a - b) / b for a, b in zip(each, theirs, strict=True)] for each in (losses, noisy))
    result = {
        "steps": len(losses),
        "largest relative difference of the loss in the first steps": {
            n: {"tsds": max(relative[:n]), "script with noise": max(control[:n])} for n in (1, 5, 10, 20, 50)
        },
        "losses": [{"tsds": losses[i], "script": theirs[i]} for i in range(0, len(losses), 10)],
        "metrics by epoch": [{"tsds": a, "script": b} for a, b in zip(metrics, found, strict=True)],
        "seconds of training": {"tsds": seconds, "script": their_seconds},
        "cores": os.cpu_count(),
    }
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
