"""Data sets with masks: as Pascal VOC keeps them, and in two folders."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image

RNG = np.random.default_rng(0)
#: Colors of a palette, which no class may depend on.
PALETTE = RNG.integers(0, 256, 768, np.uint8).tobytes()


def squares(height: int, width: int, label: int = 1) -> tuple[np.ndarray, np.ndarray]:
    """An image (H, W, 3) of a bright square on a dark ground, and its mask (H, W), with a border of 255 on one side."""
    image = RNG.integers(0, 60, (height, width, 3), np.uint8)
    mask = np.zeros((height, width), np.uint8)
    mask[height // 4 : height // 2, width // 4 : width // 2] = label
    image[mask == label] += 150
    mask[height // 4 - 1, width // 4 : width // 2] = 255
    return image, mask


def write_palette(path: Path, mask: np.ndarray) -> None:
    """A PNG with a palette, whose indices are the mask's values."""
    image = Image.fromarray(mask, "L")
    image.putpalette(PALETTE)
    path.parent.mkdir(parents=True, exist_ok=True)
    image.save(path)


def write_voc(root: Path, sizes: tuple[tuple[int, int], ...] = ((40, 60), (60, 40), (40, 40), (40, 60))) -> Path:
    """A VOCdevkit with the masks of some images, in lists, and an image that has none."""
    base = root / "VOCdevkit" / "VOC2012"
    for folder in ("JPEGImages", "ImageSets/Segmentation"):
        (base / folder).mkdir(parents=True)
    ids = [f"2007_{i:06d}" for i in range(len(sizes))]
    for id, size, label in zip(ids, sizes, (1, 15, 20, 7), strict=True):
        image, mask = squares(*size, label)
        Image.fromarray(image).save(base / f"JPEGImages/{id}.jpg", quality=95)
        write_palette(base / f"SegmentationClass/{id}.png", mask)
    Image.fromarray(image).save(base / "JPEGImages/2008_000000.jpg")
    lists = {"train": ids[:2], "val": ids[2:], "trainval": ids}
    for name, lines in lists.items():
        (base / f"ImageSets/Segmentation/{name}.txt").write_text("".join(f"{line}\n" for line in lines))
    return root / "VOCdevkit"


def write_folders(root: Path, count: int = 4, size: tuple[int, int] = (32, 48), images: str = "images") -> Path:
    """Folders of images and masks with the same names."""
    masks = images.replace("images", "masks")
    for i in range(count):
        image, mask = squares(*size)
        for folder in (images, masks):
            (root / folder).mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(root / images / f"{i}.png")
        Image.fromarray(mask).save(root / masks / f"{i}.png")
    return root
