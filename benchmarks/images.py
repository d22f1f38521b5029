"""Images for the figures that convert a folder: 70,000 as MNIST has them, a million that take no room, large ones."""

from __future__ import annotations

import io
import os
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFont

#: Images of each split, as MNIST has them.
SPLITS = {"train": 60_000, "test": 10_000}
SIDE = 28
_DRAWINGS = 100  # of each digit


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
    """Write `count` JPEG files of that size in one folder, soft noise of all colours."""
    folder.mkdir()
    for i in range(4):
        noise = np.random.default_rng(i).integers(0, 256, (height // 50, width // 50, 3), np.uint8)
        file = io.BytesIO()
        Image.fromarray(noise).resize((width, height), Image.Resampling.BICUBIC).save(file, "JPEG", quality=90)
        for j in range(i, count, 4):
            (folder / f"{j:05d}.jpg").write_bytes(file.getvalue())


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
