"""Write a store of simulated images, each with the boxes of its discs, from several processes.

python examples/writing.py discs.tsds
"""

from __future__ import annotations

import argparse
import shutil
from multiprocessing import Pool
from pathlib import Path
from typing import Any

import numpy as np

import tensorstore_ds as tsds

PARTS, SAMPLES = 4, 50
CLASSES = ["small", "large"]


def simulate(seed: int) -> dict[str, Any]:
    """An image (64, 64) uint8 with some discs, their boxes (M, 4) and classes (M,)."""
    rng = np.random.default_rng(seed)
    image = rng.normal(40, 8, (64, 64))
    boxes, labels = [], []
    for _ in range(rng.integers(1, 4)):
        radius = int(rng.integers(3, 10))
        x, y = rng.integers(radius, 64 - radius, 2)
        rows, columns = np.ogrid[:64, :64]
        image[(columns - x) ** 2 + (rows - y) ** 2 <= radius**2] += 90
        boxes.append([x - radius, y - radius, x + radius + 1, y + radius + 1])
        labels.append(int(radius > 6))
    return {"image": image.clip(0, 255).astype(np.uint8), "boxes": boxes, "labels": labels}


def write(part: Path) -> None:
    """What a process does: a store of some samples, unless an interrupted run has finished it."""
    first = int(part.stem) * SAMPLES
    if not part.exists():
        with tsds.Writer(part, classes=CLASSES) as writer:
            samples = ({"key": f"seed-{seed:06d}", **simulate(seed)} for seed in range(first, first + SAMPLES))
            writer.extend("train", samples)


def main() -> None:
    """Let processes write stores beside the one that is wanted, merge these, and remove them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("store", type=Path)
    parser.add_argument("--processes", type=int, default=2)
    options = parser.parse_args()

    folder = options.store.with_suffix(".parts")
    folder.mkdir(exist_ok=True)
    parts = [folder / f"{part}.tsds" for part in range(PARTS)]
    with Pool(options.processes) as pool:
        pool.map(write, parts)
    tsds.editing.merge_stores(parts, options.store)
    shutil.rmtree(folder)
    split = tsds.open(options.store)["train"]
    print(f"{len(split)} images with {len(split['objects']['boxes'])} discs")


if __name__ == "__main__":
    main()
