"""The data of the figures: folders to convert, and the data that loaders are compared on.

The latter are one folder per data set, for every loader to convert: images with labels, ``images.npy`` (N, H, W, C)
uint8 and ``labels.npy`` (N,) int64, and a store of the same beside them, ``store.tsds``; or a store of images with
objects alone.
"""

from __future__ import annotations

import io
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

import tensorstore_ds as tsds

#: Images of each split, as MNIST has them.
SPLITS = {"train": 60_000, "test": 10_000}
SIDE = 28
_DRAWINGS = 100  # of each digit
STORE = "store.tsds"
CLASSES = tuple("0123456789")
_WORKERS = 2


# --- folders to convert -----------------------------------------------------------------------------------------


def write_digits(folder: Path) -> None:
    """Write ``train/0/00000.png`` to ``test/9/00999.png``: drawn digits, about as large as MNIST's as PNG files."""
    drawings = [[_drawing(digit, i) for i in range(_DRAWINGS)] for digit in range(10)]
    for split, count in SPLITS.items():
        for digit, files in enumerate(drawings):
            target = folder / split / str(digit)
            target.mkdir(parents=True)
            for i in range(count // 10):
                (target / f"{i:05d}.png").write_bytes(files[i % _DRAWINGS])


def link_digits(folder: Path, count: int, classes: int = 100) -> None:
    """Write `count` names of a few PNG files, divided among class folders: hard links, which take no room on disk.

    A file may have 65,000 names on ext4, so that there is a file for each class.
    """
    for label in range(classes):
        target = folder / f"class_{label:03d}"
        target.mkdir(parents=True)
        first = target / "000000.png"
        first.write_bytes(_drawing(label % 10, label))
        for i in range(1, count // classes):
            os.link(first, f"{target}/{i:06d}.png")


def write_photos(folder: Path, count: int, height: int, width: int) -> None:
    """Write `count` JPEG files of that size in one folder, soft noise of all colors."""
    folder.mkdir()
    for i in range(4):
        noise = np.random.default_rng(i).integers(0, 256, (height // 50, width // 50, 3), np.uint8)
        file = io.BytesIO()
        Image.fromarray(noise).resize((width, height), Image.Resampling.BICUBIC).save(file, "JPEG", quality=90)
        for j in range(i, count, 4):
            (folder / f"{j:05d}.jpg").write_bytes(file.getvalue())


def write_colors(folder: Path, side: int = 32) -> None:
    """Write ``train/0/00000.jpg`` to ``test/9/00999.jpg``, as many as CIFAR-10 has: soft noise, a color for a class."""
    for split, count in {"train": 50_000, "test": 10_000}.items():
        for label in range(10):
            target = folder / split / str(label)
            target.mkdir(parents=True)
            for i in range(count // 10):
                rng = np.random.default_rng([label, i])
                noise = rng.integers(0, 160, (8, 8, 3)) + np.array([label * 5, 90 - label * 9, label % 3 * 40])
                image = Image.fromarray(noise.astype(np.uint8)).resize((side, side), Image.Resampling.BICUBIC)
                image.save(target / f"{i:05d}.jpg", quality=90)


def _drawing(digit: int, seed: int) -> bytes:
    """A PNG file of a digit, white on black, turned and moved a little, with soft edges."""
    rng = np.random.default_rng([digit, seed])
    large = Image.new("L", (4 * SIDE, 4 * SIDE))
    x, y = (float(v) for v in 2 * SIDE + rng.uniform(-8, 8, 2))
    font = ImageFont.load_default(size=float(rng.uniform(70, 95)))
    ImageDraw.Draw(large).text((x, y), str(digit), 255, font, anchor="mm", stroke_width=int(rng.integers(1, 4)))
    small = large.rotate(float(rng.uniform(-15, 15))).resize((SIDE, SIDE), Image.Resampling.BOX)
    file = io.BytesIO()
    small.save(file, "PNG")
    return file.getvalue()


# --- data to load -----------------------------------------------------------------------------------------------


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


def with_objects(images: Any, objects: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Columns of a batch, given the labels and boxes of each image."""
    values = {name: np.concatenate([np.asarray(one[name]) for one in objects]) for name in ("labels", "boxes")}
    return {"image": images, "offsets": np.cumsum([0, *(len(one["labels"]) for one in objects)]), **values}


def make_noise(folder: Path, rows: int, shape: tuple[int, int, int]) -> None:
    """Noise of that shape, and labels that count from 0 to 9 again and again."""
    folder.mkdir()
    images = np.lib.format.open_memmap(folder / "images.npy", "w+", np.uint8, (rows, *shape))
    for row in range(rows):
        images[row] = np.random.default_rng(row).integers(0, 256, shape, np.uint8)
    images.flush()
    np.save(folder / "labels.npy", np.arange(rows, dtype=np.int64) % len(CLASSES))
    tsds.convert(Arrays(folder), folder / STORE, workers=_WORKERS)


def make_digits(folder: Path, files: Path) -> None:
    """The PNG files of class folders, such as MNIST's ``train``, gray."""
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
    tsds.convert(files, folder / STORE, workers=_WORKERS)


def make_objects(folder: Path, voc: Path) -> None:
    """Images with boxes from a VOC folder; boxes without area are left out."""
    folder.mkdir()
    tsds.convert(voc, folder / STORE, workers=_WORKERS, on_error="skip")
