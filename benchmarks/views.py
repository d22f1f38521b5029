"""DINO's 2 global and 8 local crops, against torchvision's transforms of files: CPU time of one thread."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torchvision import transforms

import tensorstore_ds as tsds
from benchmarks.measure import Figure, Settings, alternate, as_result, rates, ratio_of_medians, spent_on
from tensorstore_ds.annex.training.process import torch_settings

_IMAGES, _LIMIT = 64, 3.0
_MEAN, _STD = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]
#: Side and share of the area of each crop.
_CROPS = [(224, (0.4, 1.0))] * 2 + [(96, (0.05, 0.4))] * 8


def measure(settings: Settings) -> dict[str, Any]:
    """Whole batches of crops, and of crops whose colors are changed; without a folder of VOC, nothing."""
    if settings.voc is None:
        return {}
    files = sorted((settings.voc / "JPEGImages").glob("*.jpg"))[:_IMAGES]
    store = settings.scratch / "views.tsds"
    samples = [{"image": file.read_bytes()} for file in files]
    tsds.convert(samples, store, tsds.ConvertOptions(encoding="source", workers=0))
    dataset = tsds.StoreDataset(store, decode=[tsds.RandomResizedCrop(*each) for each in _CROPS])
    flip, normalize = tsds.RandomHorizontalFlip(), tsds.Normalize(_MEAN, _STD)
    jitter = tsds.transforms.ColorJitter(0.4, 0.4, 0.2, 0.1)
    ours = {"crops": [flip, normalize], "crops and colors": [flip, jitter, normalize]}
    figures = []
    for name, steps in ours.items():
        change = tsds.Compose(steps)
        loader = tsds.DataLoader(dataset, len(files), num_threads=1, batch_transform=[change] * len(_CROPS))
        works = [partial(list, loader), partial(_by_file, files, name)]
        with torch_settings("fp32", threads=1):
            rounds = alternate([partial(spent_on, work) for work in works], settings.repeat)
            own, theirs = ([one.cpu for one in each] for each in rounds)
            shown = (f"{rates(len(files), each, 1)} images/s" for each in (own, theirs))
            figures.append(
                Figure(
                    f"2 crops of 224 and 8 of 96 pixels of each image of {settings.voc.name}: {name}",
                    ratio_of_medians(theirs, own),
                    _LIMIT,
                    "x",
                    at_least=True,
                    note="CPU time of one thread: " + " and ".join(shown) + " by torchvision and Pillow from the files",
                )
            )
    return as_result(figures)


def _by_file(files: Iterable[Path], name: str) -> None:
    """All crops of each file, as DINO's `DataAugmentationDINO` makes them, stacked."""
    jitter = [transforms.ColorJitter(0.4, 0.4, 0.2, 0.1)] if "colors" in name else []
    last = [transforms.RandomHorizontalFlip(), *jitter, transforms.ToTensor(), transforms.Normalize(_MEAN, _STD)]
    each = [transforms.Compose([transforms.RandomResizedCrop(side, share), *last]) for side, share in _CROPS]
    made = []
    for file in files:
        image = Image.open(file).convert("RGB")
        made.append([crop(image) for crop in each])
    for views in zip(*made, strict=True):
        torch.stack(views)
