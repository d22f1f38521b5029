"""What parts are given, yield and read: synthetic stores, models, and work for the GPU."""

from __future__ import annotations

import functools
import io
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from PIL import Image, ImageFilter

import tensorstore_ds as tsds
from benchmarks.measure import Figure
from tensorstore_ds.annex.training.learner import Learner
from tensorstore_ds.annex.training.options import TrainOptions
from tensorstore_ds.annex.training.tasks import Classification

CLASSES = tuple("0123456789")
#: The value of all pixels of an image is its row modulo this; its label is its row modulo 10.
VALUES = 251
_JPEGS = 64  # different files; the others repeat them

_T = TypeVar("_T")


class NotHereError(Exception):
    """This machine lacks something that a part needs."""


@dataclass(frozen=True, slots=True)
class Settings:
    """What every part is given."""

    scratch: Path  #: A folder for stores, which all parts share.
    small: bool = False  #: Sizes with which a CPU is done in seconds, and no delays: to try the scripts.
    photographs: Path | None = None  #: JPEG files; None to make some up.

    def pick(self, usual: _T, small: _T) -> _T:
        """One of two sizes."""
        return small if self.small else usual


Row = dict[str, Any]
Found = Iterator[Row | Figure]


# --- stores -------------------------------------------------------------------------------------------------------


def pixels(settings: Settings, name: str, rows: int, shape: tuple[int, int, int]) -> tsds.StoreDataset:
    """Images of one value each, with labels."""
    path = settings.scratch / f"{name}.tsds"
    if not path.exists():
        with tsds.Writer(path, classes=CLASSES, encoding="raw") as writer:
            for row in range(rows):
                writer.append("train", image=np.full(shape, row % VALUES, np.uint8), label=row % len(CLASSES))
    return tsds.StoreDataset(path)


def digits(settings: Settings) -> tsds.StoreDataset:
    """As many as MNIST has."""
    return pixels(settings, "digits", settings.pick(60_000, 200), (28, 28, 1))


def photographs(settings: Settings) -> tsds.StoreDataset:
    """Pixels of the usual size of training crops: 600 MB."""
    return pixels(settings, "pixels", settings.pick(4000, 160), settings.pick((224, 224, 3), (32, 32, 3)))


def told_apart(settings: Settings) -> tsds.StoreDataset:
    """Small images in which a race shows."""
    return pixels(settings, "told_apart", settings.pick(2000, 200), (64, 64, 3))


def jpegs(settings: Settings, name: str, rows: int, size: tuple[int, int]) -> tsds.StoreDataset:
    """JPEG files of blurred noise, (height, width), as they are."""
    path, folder = settings.scratch / f"{name}.tsds", settings.scratch / name
    if not path.exists():
        rng, files = np.random.default_rng(0), []
        for _ in range(_JPEGS):
            noise, file = rng.integers(0, 256, (*size, 3), np.uint8), io.BytesIO()
            Image.fromarray(noise).filter(ImageFilter.GaussianBlur(3)).save(file, "JPEG", quality=90)
            files.append(file.getvalue())
        for row in range(rows):
            target = folder / CLASSES[row % len(CLASSES)] / f"{row:06}.jpg"
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(files[row % _JPEGS])
        tsds.convert(folder, path, encoding="source")
    return tsds.StoreDataset(path)


# --- work ---------------------------------------------------------------------------------------------------------


def keep_busy(settings: Settings, milliseconds: float) -> None:
    """Let the current stream do something for so long, so that what is queued after it is late."""
    if not settings.small:
        torch.cuda._sleep(int(milliseconds * 1.5e6))  # clock ticks


def gpu_seconds(function: Callable[[], object], times: int = 1) -> float:
    """Wall time of one of several calls, until the GPU has done them."""
    torch.cuda.synchronize()
    began = time.perf_counter()
    for _ in range(times):
        function()
    torch.cuda.synchronize()
    return (time.perf_counter() - began) / times


def exhaust(batches: Iterable[Any]) -> None:
    """Ask for all batches, and do nothing with them."""
    for _ in batches:
        pass


def epochs(loader: tsds.DataLoader[Any], count: int) -> tuple[float, tsds.loading.LoaderStats]:
    """Seconds of each of some epochs after a first one, and what the loader has measured in them."""
    exhaust(loader)
    torch.cuda.synchronize()
    before = loader.stats()
    seconds = gpu_seconds(lambda: exhaust(loader), count)
    return seconds, loader.stats() - before


def training_step(model: str, size: int, channels: int, batch_size: int, **options: Any) -> Callable[[Any], Any]:
    """A step of `tsds train` on a batch of uint8 images with labels: its loss, which was not waited for."""
    given = TrainOptions(model=model, image_size=(size, size), batch_size=batch_size, augment="none", **options)  # type: ignore[arg-type]
    task = Classification(CLASSES, label_field="label")
    learner = Learner(given.vit((size, size), channels), task, given, device="cuda", steps=10**6)
    normalize = tsds.Normalize([0.5] * channels, [0.25] * channels)
    return lambda batch: learner.train_batch(normalize(batch))


def or_why_not(case: Row, measure: Callable[[], Row]) -> Row:
    """A row; with the error instead of numbers if a case fails, such as one that does not fit into the memory."""
    try:
        return {**case, **measure()}
    except (RuntimeError, tsds.TsdsError) as error:
        torch.cuda.empty_cache()
        return {**case, "error": f"{type(error).__name__}: {str(error).splitlines()[0][:120]}"}


def rows_seen(values: Iterable[torch.Tensor], labels: Iterable[torch.Tensor]) -> list[tuple[int, int]]:
    """The samples of an epoch in order, by the value of their pixels and their label."""
    pairs = zip(torch.cat(list(values)).tolist(), torch.cat(list(labels)).tolist(), strict=True)
    return sorted((int(value), int(label)) for value, label in pairs)


@functools.cache
def rows_stored(count: int) -> list[tuple[int, int]]:
    """What `rows_seen` is of an epoch that is right."""
    return sorted((row % VALUES, row % len(CLASSES)) for row in range(count))
