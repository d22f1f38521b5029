"""Batch transforms against `torchvision.transforms.v2`: image by image, and one call for the whole batch. CPU only."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torchvision.transforms import v2

import tensorstore_ds as tsds
from benchmarks.measure import Figure, Settings, alternate, as_result
from benchmarks.photographs.drawing import draw_photograph
from tensorstore_ds.annex.measuring.measure import measure as measure_calls
from tensorstore_ds.annex.training.process import torch_settings

#: Height and width of the images, how many a batch has, and the target: how many times as fast as image by image.
SIZES = ((32, 256, 2.0), (224, 32, 1.0))
CLASSES = 10
#: What is compared, as results name it.
OURS, BY_IMAGE, WHOLE = "ours", "image by image", "whole batch"
#: Each timing repeats its work until so many seconds are over.
_LEAST_SECONDS = 0.03
_DRAWN = 8  # photographs, where no folder is given
_MEAN, _STD = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]


@dataclass(frozen=True, slots=True)
class Pair:
    """A transform of this project, and what torchvision has for the same."""

    ours: Any
    theirs: Callable[..., Any] | None  #: None if torchvision has none.
    alone: bool = True  #: Whether torchvision's takes a single image.


def pairs_of(side: int, dtype: torch.dtype) -> dict[str, Pair]:
    """By name. Transforms with a probability change every image, so that both sides do the same work."""
    threshold = 128 if dtype == torch.uint8 else 0.5
    nearest, bilinear = v2.InterpolationMode.NEAREST, v2.InterpolationMode.BILINEAR
    moves: tuple[Any, ...] = (15, (0.1, 0.1), (0.8, 1.2), 10)
    colors = (0.4, 0.4, 0.4)
    steps = [tsds.RandomResizedCrop(side), tsds.RandomHorizontalFlip(), tsds.transforms.ColorJitter(*colors)]
    their_steps = [v2.RandomResizedCrop(side), v2.RandomHorizontalFlip(), v2.ColorJitter(*colors)]
    theirs_last = [v2.ToDtype(torch.float32, scale=True), v2.Normalize(_MEAN, _STD), v2.RandomErasing()]
    their_mixup = v2.MixUp(num_classes=CLASSES) if dtype.is_floating_point else None  # raises an error for uint8
    last = [tsds.Normalize(_MEAN, _STD), tsds.transforms.RandomErasing()]
    return {
        "RandomAffine, nearest": Pair(
            tsds.transforms.RandomAffine(*moves), v2.RandomAffine(*moves, interpolation=nearest)
        ),
        "RandomAffine, bilinear": Pair(
            tsds.transforms.RandomAffine(*moves, interpolation="bilinear"),
            v2.RandomAffine(*moves, interpolation=bilinear),
        ),
        "RandomPerspective": Pair(tsds.transforms.RandomPerspective(0.5, 1), v2.RandomPerspective(0.5, 1)),
        "RandomErasing": Pair(tsds.transforms.RandomErasing(1), v2.RandomErasing(1)),
        "GaussianBlur(5)": Pair(tsds.transforms.GaussianBlur(5), v2.GaussianBlur(5)),
        "ColorJitter": Pair(tsds.transforms.ColorJitter(*colors), v2.ColorJitter(*colors)),
        "ColorJitter, with hue": Pair(tsds.transforms.ColorJitter(*colors, 0.1), v2.ColorJitter(*colors, 0.1)),
        "RandomGrayscale": Pair(tsds.transforms.RandomGrayscale(1), v2.RandomGrayscale(1)),
        "Solarize": Pair(tsds.transforms.Solarize(threshold, 1), v2.RandomSolarize(threshold, 1)),
        "Posterize(4)": Pair(tsds.transforms.Posterize(4, 1), v2.RandomPosterize(4, 1)),
        "Equalize": Pair(tsds.transforms.Equalize(1), v2.RandomEqualize(1)),
        "AutoContrast": Pair(tsds.transforms.AutoContrast(1), v2.RandomAutocontrast(1)),
        "RandAugment": Pair(tsds.transforms.RandAugment(), v2.RandAugment()),
        "TrivialAugment": Pair(tsds.transforms.TrivialAugment(), v2.TrivialAugmentWide()),
        "Mixup": Pair(tsds.transforms.Mixup(num_classes=CLASSES), their_mixup, alone=False),
        "CutMix": Pair(tsds.transforms.CutMix(num_classes=CLASSES), v2.CutMix(num_classes=CLASSES), alone=False),
        "Mosaic": Pair(tsds.transforms.Mosaic(num_classes=CLASSES), None),
        "Compose of 5": Pair(tsds.Compose([*steps, *last]), v2.Compose([*their_steps, *theirs_last])),
    }


def measure(settings: Settings) -> dict[str, Any]:
    """Each transform of each batch, this project's and torchvision's in turn, in one thread."""
    photographs, name = photographs_of(settings.photographs)
    rows, figures = list[dict[str, Any]](), []
    with torch_settings("fp32", threads=1):
        for side, count, target in SIZES:
            for dtype in (torch.uint8, torch.float32):
                title = f"{side}x{side}x3, batch {count}, {str(dtype).removeprefix('torch.')}"
                pixels = crops_of(photographs, side, count)
                images = pixels if dtype == torch.uint8 else pixels / 255
                pairs = pairs_of(side, dtype)
                found = [measure_pair(images, each, settings.repeat) for each in pairs.values()]
                rows += [{"data": title, "transform": each, **row} for each, row in zip(pairs, found, strict=True)]
                compared = [
                    (row[BY_IMAGE]["cpu_ratio"], each)
                    for each, row in zip(pairs, found, strict=True)
                    if row[BY_IMAGE] is not None
                ]
                ratio, slowest = min(compared)
                below = sum(ratio < target for ratio, _ in compared)
                note = f"{slowest}; {below} of {len(compared)} transforms are below the target"
                what = f"{title}: the slowest batch transform, relative to torchvision image by image"
                figures.append(Figure(what, ratio, target, "x", at_least=True, note=note))
    return as_result(figures, images=name, transforms=rows)


def photographs_of(folder: Path | None) -> tuple[list[Image.Image], str]:
    """Photographs of class folders, and what they are; drawn ones if there is no folder."""
    if folder is None:
        rng = np.random.default_rng(0)
        return [Image.fromarray(draw_photograph(rng, 375, 500)[0]) for _ in range(_DRAWN)], "synthetic photographs"
    files = sorted(folder.glob("*/*.[jJ][pP]*[gG]"))
    files = files[:: -(-len(files) // 64)]
    return [Image.open(file).convert("RGB") for file in files], f"crops of {len(files)} photographs"


def crops_of(photographs: Sequence[Image.Image], side: int, count: int) -> Tensor:
    """(count, 3, side, side) uint8 in channels-last memory, as the loader delivers them: half of the shorter side."""
    rng = np.random.default_rng(1)
    crops = []
    for i in range(count):
        photograph = photographs[i % len(photographs)]
        extent = min(photograph.size) // 2
        left, top = (int(rng.integers(0, length - extent + 1)) for length in photograph.size)
        crop = photograph.resize((side, side), box=(left, top, left + extent, top + extent))
        crops.append(np.asarray(crop))
    return torch.from_numpy(np.stack(crops)).permute(0, 3, 1, 2)


def measure_pair(images: Tensor, pair: Pair, repeat: int) -> dict[str, Any]:
    """For each way of torchvision, its seconds by the clock and of CPU time relative to this project; or None.

    This project gets images in channels-last memory, as its loader delivers them; torchvision gets contiguous images,
    as it decodes them. Both make new memory, and all results of a batch are kept until its end.
    """
    labels = torch.arange(len(images)) % CLASSES
    contiguous, theirs = images.contiguous(), pair.theirs
    works: dict[str, Callable[[], object]] = {OURS: lambda: pair.ours({"image": images, "label": labels})}
    if theirs is not None and pair.alone:
        works[BY_IMAGE] = lambda: [theirs(image) for image in contiguous]
    if theirs is not None:
        works[WHOLE] = lambda: theirs(contiguous) if pair.alone else theirs(contiguous, labels)
    rounds = alternate([partial(timed, work) for work in works.values()], repeat)
    wall, cpu = (
        {name: statistics.median(each[i] for each in own) for name, own in zip(works, rounds, strict=True)}
        for i in (0, 1)
    )
    ratios = {
        name: {"ratio": wall[name] / wall[OURS], "cpu_ratio": cpu[name] / cpu[OURS]} for name in works if name != OURS
    }
    return {BY_IMAGE: None, WHOLE: None, **ratios}


def timed(work: Callable[[], object]) -> tuple[float, float]:
    """Seconds of a call, by the clock and of CPU time."""
    timing = measure_calls(itertools.repeat(None), _LEAST_SECONDS, lambda _: bool([work()]))
    return timing.seconds / timing.batches, timing.cpu / timing.batches
