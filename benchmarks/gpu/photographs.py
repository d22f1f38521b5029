"""Photographs: loading, augmenting and training, from stores and from files, beside one batch that stays on the GPU."""

from __future__ import annotations

import itertools
import shutil
import statistics
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torchvision
from torch import Tensor, nn
from torch.utils import data
from torchvision.transforms import v2

import tensorstore_ds as tsds
from benchmarks.gpu.data import CLASSES, Found, Row, Settings, gpu_seconds, jpegs
from benchmarks.gpu.run import jpegs_in
from benchmarks.measure import alternate
from tensorstore_ds.loading import LoaderStats
from tensorstore_ds.machine import usable_cores

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
#: Conversions of the same files: as they are, and as FFCV's example keeps them.
ENCODINGS: dict[str, dict[str, Any]] = {"source": {}, "jpeg": {"fit": tsds.conversion.Shrink(500)}}

Pair = tuple[Tensor, Tensor]


@dataclass(frozen=True, slots=True)
class Way:
    """A way to batches: a loader, and from its batch to normalized images and labels on the GPU."""

    name: str
    loader: Iterable[Any]
    prepared: Callable[[Any], Pair]

    def batches(self) -> Iterator[Pair]:
        """Batches of one epoch after the other."""
        while True:
            yield from map(self.prepared, self.loader)

    def stats(self) -> LoaderStats:
        """Statistics of the loader, if it has some."""
        return self.loader.stats() if isinstance(self.loader, tsds.DataLoader) else LoaderStats()


# --- data ---------------------------------------------------------------------------------------------------------


def files(settings: Settings) -> Path:
    """JPEG files in class folders, some 3,900: copies of the user's photographs, or synthetic images."""
    if settings.photographs is None:
        jpegs(settings, "files", settings.pick(3900, 64), settings.pick((375, 500), (40, 56)))
        return settings.scratch / "files"
    folder = settings.scratch / "photographs"
    found = sorted(jpegs_in(settings.photographs))
    if not folder.exists():
        for number in range(settings.pick(3900, 64)):
            target = folder / CLASSES[number % len(CLASSES)] / f"{number:06}.jpg"
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(found[number % len(found)], target)
    return folder


def stored(settings: Settings, encoding: str) -> tsds.StoreDataset:
    """The files as a store."""
    source, path = files(settings), settings.scratch / f"photographs-{encoding}.tsds"
    if not path.exists():
        tsds.convert(source, path, encoding=encoding, **ENCODINGS[encoding])  # type: ignore[arg-type]
    return tsds.StoreDataset(path, fields=("image", "label"))


# --- ways ---------------------------------------------------------------------------------------------------------


def of_store(settings: Settings, encoding: str, recipe: tuple[Any, ...] = (), **options: Any) -> Way:
    """Random crops of a store's files; the rest of the recipe runs on the GPU."""
    side, batch_size = sizes(settings)
    steps = tsds.Compose([*recipe, tsds.Normalize(MEAN, STD)])
    loader = tsds.DataLoader(
        stored(settings, encoding),
        batch_size,
        shuffle=True,
        drop_last=True,
        device="cuda",
        decode=tsds.RandomResizedCrop(side),
        batch_transform=steps,
        **options,
    )
    return Way(f"store, {encoding}", loader, lambda batch: (batch["image"], batch["label"]))


def of_files(settings: Settings, recipe: tuple[Any, ...] = (), mix: Callable[..., Any] | None = None) -> Way:
    """torchvision's `ImageFolder` in as many worker processes as there are cores; only whole batches go to the GPU."""
    side, batch_size = sizes(settings)
    steps = v2.Compose([v2.RandomResizedCrop(side, antialias=True), *recipe, v2.PILToTensor()])
    workers = settings.pick(usable_cores(), 0)
    loader = data.DataLoader(
        torchvision.datasets.ImageFolder(files(settings), steps),
        batch_size,
        shuffle=True,
        drop_last=True,
        num_workers=workers,
        pin_memory=True,
        persistent_workers=workers > 0,
    )
    mean, std = (torch.tensor(values, device="cuda").view(3, 1, 1) * 255 for values in (MEAN, STD))

    def prepared(batch: list[Tensor]) -> Pair:
        image = batch[0].to("cuda", non_blocking=True, memory_format=torch.channels_last)
        image, label = (image.float() - mean) / std, batch[1].to("cuda", non_blocking=True)
        return (image, label) if mix is None else mix(image, label)

    return Way(f"ImageFolder, {workers} workers", loader, prepared)


def one_kept(way: Way) -> Way:
    """One batch of a way that stays on the GPU: the limit of any loader."""
    kept = next(way.batches())
    return Way("one kept batch", itertools.repeat(kept), lambda pair: pair)


def sizes(settings: Settings) -> tuple[int, int]:
    """Side of the crops, and the batch size: an epoch has 30 batches."""
    return settings.pick((224, 128), (32, 16))


# --- measuring ----------------------------------------------------------------------------------------------------


def step_of(settings: Settings, model: str) -> Callable[[Tensor, Tensor], None]:
    """A step of a model of torchvision in bf16 and channels last. ``linear`` is one that a CPU computes at once."""
    network: nn.Module
    if settings.small:
        network = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(3, len(CLASSES)))
    else:
        network = torchvision.models.get_model(model, num_classes=len(CLASSES))
    network = network.to("cuda", memory_format=torch.channels_last)  # type: ignore[call-overload]
    optimizer = torch.optim.SGD(network.parameters(), 0.01)

    def step(image: Tensor, label: Tensor) -> None:
        with torch.autocast("cuda", torch.bfloat16, enabled=not settings.small):
            loss = nn.functional.cross_entropy(network(image), label)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()

    return step


def nothing(image: Tensor, label: Tensor) -> None:
    """Load only."""


def in_turns(
    settings: Settings, ways: list[Way], step: Callable[[Tensor, Tensor], None], rounds: int = 3, **names: Any
) -> list[Row]:
    """Images per second of some ways, an epoch of each in turns after a first one, beside the first way."""
    batch_size = sizes(settings)[1]
    steps = settings.pick(30, 2)

    def timing(way: Way) -> Callable[[], tuple[float, LoaderStats]]:
        batches = way.batches()  # goes on in each turn, as training does

        def epoch() -> tuple[float, LoaderStats]:
            before = way.stats()
            seconds = gpu_seconds(lambda: [step(*batch) for batch in itertools.islice(batches, steps)])
            return seconds, way.stats() - before

        return epoch

    measured = alternate([timing(way) for way in ways], settings.pick(rounds, 1))
    rates = [steps * batch_size / statistics.median(seconds for seconds, _ in own) for own in measured]
    rows = list[Row]()
    for way, rate, own in zip(ways, rates, measured, strict=True):
        spent = sum(seconds for seconds, _ in own)
        row = {**names, "way": way.name, "images/s": round(rate), f"of {ways[0].name}": round(rate / rates[0], 3)}
        if isinstance(way.loader, tsds.DataLoader):
            row["GPU idle"] = round(sum(stats.idle for _, stats in own) / spent, 3)
            row["script waits"] = round(sum(stats.wait for _, stats in own) / spent, 3)
        rows.append(row)
    return rows


def loading(settings: Settings) -> Found:
    """The loader alone, by its threads, and `ImageFolder` by its workers."""
    for encoding in ENCODINGS:
        for threads in sorted({1, 2, 4, 8, 16} & set(range(usable_cores() + 1))):
            way = of_store(settings, encoding, num_threads=threads)
            (row,) = in_turns(settings, [way], nothing, rounds=1, threads=threads)
            yield {name: value for name, value in row.items() if not name.startswith("of ")}
    (row,) = in_turns(settings, [of_files(settings)], nothing, rounds=1)
    yield {"threads": "", "way": row["way"], "images/s": row["images/s"]}


def training(settings: Settings) -> Found:
    """ResNets over short epochs, from stores and from files, relative to one kept batch."""
    stores = [of_store(settings, encoding) for encoding in ENCODINGS]
    for model in ("resnet18", "resnet50"):
        ways = [one_kept(stores[0]), *stores]
        if model == "resnet18":  # the faster one shows more of a loader
            ways.append(of_files(settings))
        yield from in_turns(settings, ways, step_of(settings, model), model=model)


def augmenting(settings: Settings) -> Found:
    """The usual recipe, loaded alone and to train: on the GPU after the crop, and by torchvision in its workers."""
    mix = tsds.transforms.Mixup(num_classes=len(CLASSES))
    ours = (tsds.RandomHorizontalFlip(), tsds.transforms.RandAugment(), mix)
    theirs = (v2.RandomHorizontalFlip(), v2.RandAugment())
    ways = [
        of_store(settings, "source", ours),
        of_store(settings, "jpeg", ours),
        of_files(settings, theirs, v2.MixUp(num_classes=len(CLASSES))),
    ]
    yield from in_turns(settings, ways, nothing, model="none")
    yield from in_turns(settings, [one_kept(ways[0]), *ways], step_of(settings, "resnet18"), model="resnet18")
