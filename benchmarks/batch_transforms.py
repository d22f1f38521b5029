"""What each batch transform costs, on the CPU, in the threads that gather."""

from __future__ import annotations

import shutil
import statistics
from functools import partial
from typing import Any

import tensorstore_ds as tsds
from benchmarks.measure import Figure, Settings, alternate, as_result, ratio_of_medians, seconds_of, spent_with
from benchmarks.samples import STORE, make_digits, make_noise
from tensorstore_ds import native

THREADS = 2
LIMIT = 0.5
#: With the compiled kernels, relative to the loader without them; by the side of an image.
KERNEL_LIMITS = {28: 2.5, 32: 1.2}
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
        "ColorJitter": tsds.transforms.ColorJitter(0.4, 0.4, 0.4),
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
            share = ratio_of_medians(seconds[0], own)
            rows.append({"data": title, "transform": name, "rate": 1 / statistics.median(own), "share": share})
        if side < 256:
            what = f"{title}, batch {batch}: rate with flip, padded crop and normalize, relative to the bare loader"
            figures.append(Figure(what, rows[-1]["share"], LIMIT, "x", at_least=True, note=f"{THREADS} threads"))
            if native.core is not None:
                last = transforms["flip, padded crop and normalize"]
                figures.append(kernel_figure(dataset, title, last, KERNEL_LIMITS[side], settings.repeat))
        shutil.rmtree(folder)
    return as_result(figures, transforms=rows)


def kernel_figure(dataset: tsds.StoreDataset, title: str, transform: Any, limit: float, repeat: int) -> Figure:
    """How many times as fast the loader with kernels is, with all of it, in CPU time of one thread that gathers."""
    loader = tsds.DataLoader(dataset, 1000, shuffle=True, num_threads=1, batch_transform=transform)
    rounds = alternate(
        [partial(spent_with, core, lambda: [None for _ in loader]) for core in (None, native.core)], repeat
    )
    without, compiled = ([one.cpu for one in each] for each in rounds)
    what = f"{title}, batch 1000: flip, padded crop and normalize with kernels, relative to without"
    ratio = ratio_of_medians(without, compiled)
    return Figure(what, ratio, limit, "x", at_least=True, note="CPU time, 1 thread")


def timed(loader: tsds.DataLoader[Any], samples: int) -> float:
    """Seconds per sample."""
    epochs = -(-_AT_LEAST // samples)
    return seconds_of(lambda: [len(batch) for _ in range(epochs) for batch in loader]) / (epochs * samples)
