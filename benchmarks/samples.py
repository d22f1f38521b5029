"""The data that loaders are compared on, in one folder per data set, for every one of them to convert.

Images with labels: ``images.npy`` (N, H, W, C) uint8 and ``labels.npy`` (N,) int64. A store of the same beside them,
``store.tsds``, or of images with objects alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

import tensorstore_ds as tsds

STORE = "store.tsds"
CLASSES = tuple("0123456789")
_WORKERS = 2


class Arrays(Sequence[tuple[NDArray[np.uint8], int]]):
    """The samples of a folder, one by one: image (H, W, C), a view of the map, and label."""

    classes = CLASSES

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.images, self.labels = open_arrays(folder)

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: Any) -> Any:
        return np.asarray(self.images[index]), int(self.labels[index])

    def __reduce__(self) -> Any:  # a map that is pickled is copied
        return Arrays, (self.folder,)


def open_arrays(folder: Path) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Images, mapped and read-only, and labels."""
    return np.load(folder / "images.npy", mmap_mode="r"), np.load(folder / "labels.npy")


def make_noise(folder: Path, rows: int, shape: tuple[int, int, int]) -> None:
    """Noise of that shape, and labels that count from 0 to 9 again and again."""
    folder.mkdir()
    images = np.lib.format.open_memmap(folder / "images.npy", "w+", np.uint8, (rows, *shape))
    for row in range(rows):
        images[row] = np.random.default_rng(row).integers(0, 256, shape, np.uint8)
    images.flush()
    np.save(folder / "labels.npy", np.arange(rows, dtype=np.int64) % len(CLASSES))
    tsds.convert(Arrays(folder), folder / STORE, tsds.ConvertOptions(workers=_WORKERS))


def make_digits(folder: Path, files: Path) -> None:
    """The PNG files of class folders, such as MNIST's ``train``, grey."""
    folder.mkdir()
    paths = sorted(files.glob("*/*.png"))
    names = sorted({path.parent.name for path in paths})
    first = np.asarray(Image.open(paths[0]))
    images = np.lib.format.open_memmap(folder / "images.npy", "w+", np.uint8, (len(paths), *first.shape, 1))
    for image, path in zip(images, paths, strict=True):
        with Image.open(path) as opened:
            image[..., 0] = np.asarray(opened)
    images.flush()
    np.save(folder / "labels.npy", np.array([names.index(path.parent.name) for path in paths], np.int64))
    tsds.convert(files, folder / STORE, tsds.ConvertOptions(workers=_WORKERS))


def make_objects(folder: Path, voc: Path) -> None:
    """Images with boxes from a VOC folder; boxes without area are left out."""
    folder.mkdir()
    tsds.convert(voc, folder / STORE, tsds.ConvertOptions(workers=_WORKERS, on_error="skip"))
