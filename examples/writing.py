"""Write a store of simulated images, each with the boxes of its discs, from several processes.

python examples/writing.py discs.tsds
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from multiprocessing import Pool
from typing import Any

import numpy as np

import tensorstore_ds as tsds

SHARDS, SAMPLES = 4, 50
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


def samples(shard: int) -> Iterator[dict[str, Any]]:
    """The samples of a shard; after an interruption, those of finished shards are known by their keys."""
    for seed in range(shard * SAMPLES, (shard + 1) * SAMPLES):
        yield {"key": f"seed-{seed:06d}", **simulate(seed)}


def write(job: tsds.ShardJob) -> int:
    """What a process does for a shard."""
    return job.write(samples(job.index))


def main() -> None:
    """Give a shard to each process, one after another; the store appears at the end."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("store")
    parser.add_argument("--processes", type=int, default=2)
    options = parser.parse_args()

    with tsds.Writer(options.store, classes=CLASSES) as writer, Pool(options.processes) as pool:
        pool.map(write, [writer.shard("train", index) for index in range(SHARDS)])
        writer.extend("test", samples(SHARDS))  # in this process
    split = tsds.open(options.store)["train"]
    print(f"{len(split)} images with {len(split['objects']['boxes'])} discs")


if __name__ == "__main__":
    main()
