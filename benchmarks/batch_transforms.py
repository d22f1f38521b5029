"""What each batch transform costs, on the CPU, in the threads that gather."""

from __future__ import annotations

import shutil
import statistics
from functools import partial
from typing import Any

import tensorstore_ds as tsds
from benchmarks.measure import Figure, Settings, alternate, as_result, median_ratio, seconds_of
from benchmarks.samples import STORE, make_digits, make_noise

THREADS = 2
LIMIT = 0.5
_AT_LEAST = 8_000  # samples of a timing: whole epochs


def transforms_of(side: int, channels: int) -> dict[str, Any]:
    """By name, as a user has them for images of that size; the last one is what the target is of."""
    flip, normalize = tsds.RandomHorizontalFlip(), tsds.Normalize([0.5] * channels, [0.25] * channels)
    shift = tsds.RandomCrop(side, padding=side // 8)
    return {
        "none": None,
        "RandomHorizontalFlip": flip,
        "RandomCrop, padded": shift,
        "RandomCrop": tsds.RandomCrop(side * 7 // 8),
        "RandomResizedCrop": tsds.RandomResizedCrop(side * 7 // 8),
        "ColorJitter": tsds.ColorJitter(0.4, 0.4, 0.4),
        "Normalize": normalize,
        "flip, padded crop and normalize": tsds.Compose([flip, shift, normalize]),
    }


def measure(settings: Settings) -> dict[str, Any]:
    """Images per second of the loader with each transform, in turn, and relative to the loader without one."""
    rows: list[dict[str, Any]] = []
    figures = []
    for title, side, channels, batch in (
        (settings.digits_name, 28, 1, 1000),
        ("50,000 images of 32x32x3, as CIFAR-10 has", 32, 3, 1000),
        ("5,000 images of 256x256x3", 256, 3, 256),
    ):
        folder = settings.scratch / f"{side}"
        if channels == 1:
            make_digits(folder, settings.digits / "train")
        else:
            make_noise(folder, 50_000 if side == 32 else 5_000, (side, side, channels))
        dataset = tsds.StoreDataset(folder / STORE)
        transforms = transforms_of(side, channels)
        loaders = [
            tsds.DataLoader(dataset, batch, shuffle=True, num_threads=THREADS, batch_transform=transform)
            for transform in transforms.values()
        ]
        timings = [partial(timed, loader, len(dataset)) for loader in loaders]
        seconds = alternate(timings, settings.repeat)
        for name, own in zip(transforms, seconds, strict=True):
            share = median_ratio(seconds[0], own)
            rows.append({"data": title, "transform": name, "rate": 1 / statistics.median(own), "share": share})
        if side < 256:
            what = f"{title}, batch {batch}: rate with flip, padded crop and normalize, relative to the bare loader"
            figures.append(Figure(what, rows[-1]["share"], LIMIT, "x", at_least=True, note=f"{THREADS} threads"))
        shutil.rmtree(folder)
    return as_result(figures, transforms=rows)


def timed(loader: tsds.DataLoader[Any], samples: int) -> float:
    """Seconds per sample."""
    epochs = -(-_AT_LEAST // samples)
    return seconds_of(lambda: [len(batch) for _ in range(epochs) for batch in loader]) / (epochs * samples)
