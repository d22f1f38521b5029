"""What each batch transform costs, on the CPU, in the threads that gather."""

from __future__ import annotations

import itertools
import shutil
import statistics
import time
from collections.abc import Iterable
from functools import partial
from typing import Any

import numpy as np
import torch

import tensorstore_ds as tsds
from benchmarks.measure import Figure, Settings, alternate, as_result, ratio_of_medians, seconds_of, spread
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
    kernels: list[dict[str, Any]] = []
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
                found = kernels_of(dataset, title, settings.repeat)
                kernels += found
                figures.append(kernel_figure(title, found, KERNEL_LIMITS[side]))
        shutil.rmtree(folder)
    return as_result(figures, transforms=rows, kernels=kernels)


def kernels_of(dataset: tsds.StoreDataset, title: str, repeat: int) -> list[dict[str, Any]]:
    """CPU seconds of epochs with the compiled kernels and without, in turn with `memcpy` of the same images, in order.

    All threads of the process count, so that what else the machine does counts little.
    """
    images = np.asarray(dataset.split["image"])
    side, channels = images.shape[1], images.shape[3]
    moves = [tsds.RandomHorizontalFlip(), tsds.RandomCrop(side, padding=side // 8)]
    types = {"float32": torch.float32, "bfloat16": torch.bfloat16}
    means = [0.5] * channels, [0.25] * channels
    named = {name: tsds.Compose([*moves, tsds.Normalize(*means, dtype=dtype)]) for name, dtype in types.items()}
    transforms = {"none": None, "flip, padded crop": tsds.Compose(moves)}
    transforms |= {f"flip, padded crop, normalize to {name}": each for name, each in named.items()}
    rows = []
    for threads, batch in itertools.product((1, THREADS), (1000, 100)):
        target = np.empty((batch, *images.shape[1:]), np.uint8)
        copies = [partial(np.copyto, target, images[i : i + batch]) for i in range(0, len(images) - batch + 1, batch)]
        timings = [partial(cpu_of_calls, copies)]
        for transform in transforms.values():
            loader = tsds.DataLoader(dataset, batch, shuffle=True, num_threads=threads, batch_transform=transform)
            timings += [partial(cpu_of, loader, core) for core in (None, native.core)]
        copied, *others = alternate(timings, repeat)
        for name, without, compiled in zip(transforms, others[::2], others[1::2], strict=True):
            nanoseconds = [spread(each, 1e9 / len(images)) for each in (copied, without, compiled)]
            rows.append(
                {
                    "data": title,
                    "batch": batch,
                    "threads": threads,
                    "transform": name,
                    **dict(zip(("memcpy", "without", "with"), nanoseconds, strict=True)),
                    "of_memcpy": ratio_of_medians(copied, compiled),
                    "of_without": ratio_of_medians(without, compiled),
                }
            )
    return rows


def kernel_figure(title: str, rows: list[dict[str, Any]], limit: float) -> Figure:
    """How many times as fast the loader with kernels is, with all of it, in CPU time of one thread that gathers."""
    found = next(row for row in rows if row["transform"].endswith("float32"))
    what = f"{title}, batch {found['batch']}: flip, padded crop and normalize with kernels, relative to without"
    return Figure(what, found["of_without"], limit, "x", at_least=True, note=f"CPU time, {found['threads']} thread")


def cpu_of(loader: Iterable[Any], core: Any) -> float:
    """CPU seconds of the process for an epoch, with these kernels."""
    kept, native.core = native.core, core
    try:
        begun = time.process_time()
        for _ in loader:
            pass
        return time.process_time() - begun
    finally:
        native.core = kept


def cpu_of_calls(calls: Iterable[Any]) -> float:
    """CPU seconds of the process for some calls."""
    begun = time.process_time()
    for call in calls:
        call()
    return time.process_time() - begun


def timed(loader: tsds.DataLoader[Any], samples: int) -> float:
    """Seconds per sample."""
    epochs = -(-_AT_LEAST // samples)
    return seconds_of(lambda: [len(batch) for _ in range(epochs) for batch in loader]) / (epochs * samples)
