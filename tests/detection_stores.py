"""Small stores of circles and squares, which a detector learns in seconds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageDraw

import tensorstore_ds as tsds
from stores import Samples

CLASSES = ("circle", "square")


def shapes(rows: int, *, size: int = 96, seed: int = 0, **more: Any) -> list[dict[str, Any]]:
    """Images with one or two shapes that do not overlap, in the left and the right half."""
    rng = np.random.default_rng(seed)
    samples = []
    for _ in range(rows):
        picture = Image.fromarray(rng.integers(90, 130, (size, size, 3), np.uint8))
        draw, boxes, labels = ImageDraw.Draw(picture), [], []
        halves = [half for half in (0, 1) if rng.random() < 0.7] or [0]
        for half in halves:
            side = int(rng.integers(size // 4, size // 2 - 4))
            x = half * (size // 2) + int(rng.integers(0, size // 2 - side))
            y, label = int(rng.integers(0, size - side)), int(rng.integers(2))
            shape = (x, y, x + side - 1, y + side - 1)
            if label:
                draw.rectangle(shape, fill=(240, 220, 40))
            else:
                draw.ellipse(shape, fill=(30, 60, 200))
            boxes.append([x, y, x + side, y + side])
            labels.append(label)
        flags = {name: np.full(len(labels), value, np.uint8) for name, value in more.items()}
        samples.append({"image": np.asarray(picture), "boxes": boxes, "labels": np.array(labels), **flags})
    return samples


def shape_store(path: Path, *, train: int = 32, val: int = 12, size: int = 96, **options: Any) -> Path:
    """A store with the splits train and val."""
    splits = {"train": shapes(train, size=size, seed=1), "val": shapes(val, size=size, seed=2)}
    samples = {name: Samples(rows, CLASSES) for name, rows in splits.items()}
    tsds.convert(samples, path, tsds.ConvertOptions(workers=0, **options))
    return path
