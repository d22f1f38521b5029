"""Drawn photographs, for whoever has no real ones at hand: as large as ImageNet's, as many bytes, as hard to decode.

Photographs have edges at all scales, and a spectrum that falls with the frequency. The dead leaves model has both:
leaves of many sizes cover each other, and each has a color and a texture of its own. The colors of a texture vary
together, as those of photographs do. JPEG files of quality 90 and 4:2:0 have 0.27 bytes for a pixel, 50 kB at 500x375.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

LONG_SIDE = 500
#: What a photograph is saved with.
SAVED: dict[str, Any] = {"quality": 90, "subsampling": "4:2:0"}
_WORKERS = 2
#: Of the objects, and of nothing else: the class of a whole photograph says nothing.
CLASSES = tuple(f"class_{label}" for label in range(10))
_TEXTURE_SIDE = 1024  # and the largest side of a photograph
#: Brightness, red against blue, and green against both, to red, green and blue: the axes of colors in photographs.
_COLOR_AXES = np.array([[1, 1, 1], [0.3, 0, -0.3], [0.12, -0.24, 0.12]], np.float32)
_LEAVES = 200
_OBJECTS = 4  # at most, in front
_SMALLEST_OBJECT = 24  # pixels a side, of its visible box


def draw_shape(rng: np.random.Generator, long_side: int = LONG_SIDE) -> tuple[int, int]:
    """Height and width, at most `long_side`: usual aspect ratios and others, some upright, some smaller."""
    long = long_side if rng.random() < 0.75 else int(rng.integers(long_side * 3 // 5, long_side))
    ratio = rng.choice([4 / 3, 3 / 2, 16 / 9, 1.0, rng.uniform(1, 2)], p=[0.5, 0.25, 0.05, 0.05, 0.15])
    sides = round(long / float(ratio)), long
    return sides if rng.random() < 0.75 else sides[::-1]


def draw_photograph(
    rng: np.random.Generator, height: int, width: int
) -> tuple[NDArray[np.uint8], NDArray[np.int64], NDArray[np.int64]]:
    """A photograph, and the objects in it.

    Returns:
        Pixels (height, width, 3); boxes (n, 4) int64, x1 y1 x2 y2 in pixels, of the n objects in front, from 0 to 4;
        and their classes (n,) int64 from 0 to 9, which decide their colors.
    """
    scale = max(height, width) / LONG_SIDE
    canvas = np.empty((height, width, 3), np.float32)
    detail = float(np.exp(rng.normal(0, 0.45)))  # some photographs are smooth, some full of grass
    canvas[:] = _color(rng) + detail * 26 * _texture(rng, height, width)
    radii = 4 * scale / (1 - rng.uniform(0, 0.9996, _LEAVES)) ** 0.7  # a power law, from 4 pixels on
    for radius in np.minimum(radii, 160 * scale):
        _paint_leaf(rng, canvas, radius, _color(rng), detail)
    boxes, classes = [], []
    for _ in range(int(rng.integers(1, _OBJECTS + 1))):
        label = int(rng.integers(len(CLASSES)))
        box = _paint_leaf(rng, canvas, rng.uniform(18, 90) * scale, _color(np.random.default_rng(label)), detail)
        if min(box[2] - box[0], box[3] - box[1]) >= _SMALLEST_OBJECT:
            boxes.append(box)
            classes.append(label)
    canvas += rng.normal(0, 1.0, (height, width, 1)).astype(np.float32)  # the sensor's noise
    pixels = np.clip(np.rint(canvas), 0, 255).astype(np.uint8)
    return pixels, np.array(boxes, np.int64).reshape(-1, 4), np.array(classes, np.int64)


def _paint_leaf(
    rng: np.random.Generator, canvas: NDArray[np.float32], radius: float, color: NDArray[np.float32], detail: float
) -> tuple[int, int, int, int]:
    """Paint an ellipse with soft edges anywhere: its box x1 y1 x2 y2, inside of the canvas."""
    height, width = canvas.shape[:2]
    axes = radius * np.exp(rng.normal(0, 0.35, 2))
    x, y, angle = rng.uniform(0, width), rng.uniform(0, height), rng.uniform(0, np.pi)
    turned = np.array([[np.cos(angle), np.sin(angle)], [-np.sin(angle), np.cos(angle)]]) / axes[:, None]
    reach_x, reach_y = np.sqrt((np.linalg.inv(turned) ** 2).sum(axis=1))
    x1, x2 = max(0, int(x - reach_x)), min(width, int(x + reach_x) + 2)
    y1, y2 = max(0, int(y - reach_y)), min(height, int(y + reach_y) + 2)
    dx, dy = np.arange(x1, x2, dtype=np.float32) - x, (np.arange(y1, y2, dtype=np.float32) - y)[:, None]
    u, v = (row[0] * dx + row[1] * dy for row in turned.astype(np.float32))
    sharpness = float(axes.min() / np.exp(rng.uniform(0, 1.4)))  # edges are 1 to 4 pixels wide: not all is in focus
    ink = np.clip(0.5 + sharpness * (1 - np.sqrt(u * u + v * v)), 0, 1)[..., None]
    shade = 1 + 0.25 * (u * rng.uniform(-1, 1) + v * rng.uniform(-1, 1))[..., None]
    strength = detail * float(np.exp(rng.normal(2.5, 0.6)))
    surface = color * shade + strength * _texture(rng, y2 - y1, x2 - x1)
    patch = canvas[y1:y2, x1:x2]
    patch += ink * (surface - patch)
    return x1, y1, x2, y2


def _color(rng: np.random.Generator) -> NDArray[np.float32]:
    """Red, green and blue."""
    return np.asarray([rng.uniform(15, 235), *rng.normal(0, (60, 50))] @ _COLOR_AXES, np.float32)


def _texture(rng: np.random.Generator, height: int, width: int) -> NDArray[np.float32]:
    """A piece of a texture, (height, width, 3), of mean 0 and deviation 1: a view."""
    whole = _whole_texture(int(rng.integers(4)))
    top, left = (int(rng.integers(_TEXTURE_SIDE - n + 1)) for n in (height, width))
    return whole[top : top + height, left : left + width]


@cache
def _whole_texture(seed: int) -> NDArray[np.float32]:
    """Noise whose amplitudes fall with the frequency, the same in all directions."""
    rng = np.random.default_rng(seed)
    frequencies = np.hypot(*np.meshgrid(*2 * [np.fft.fftfreq(_TEXTURE_SIDE)]))
    frequencies[0, 0] = np.inf
    noise = np.fft.fft2(rng.normal(size=(3, _TEXTURE_SIDE, _TEXTURE_SIDE))) / frequencies**1.3
    fields = np.fft.ifft2(noise).real
    fields /= fields.std(axis=(1, 2), keepdims=True)
    return np.asarray(np.moveaxis(fields, 0, -1) @ _COLOR_AXES, np.float32)


# --- files ----------------------------------------------------------------------------------------------------------


def write_class_folders(folder: Path, count: int, long_side: int = LONG_SIDE) -> None:
    """Write ``class_0/00000.jpg`` and so on, `count` in all, always the same, drawn by two processes."""
    for label in CLASSES:
        (folder / label).mkdir(parents=True)
    _in_processes(partial(_write_photograph, folder, long_side), range(count))


def _write_photograph(folder: Path, long_side: int, number: int) -> None:
    rng = np.random.default_rng(number)
    pixels, _, _ = draw_photograph(rng, *draw_shape(rng, long_side))
    Image.fromarray(pixels).save(folder / CLASSES[number % len(CLASSES)] / f"{number:05d}.jpg", **SAVED)


def write_voc(folder: Path, count: int, long_side: int = LONG_SIDE) -> None:
    """Write ``VOCdevkit/VOC2007``, a VOC folder of photographs with boxes, all in the split ``train``."""
    folder = folder / "VOCdevkit" / "VOC2007"
    for name in ("JPEGImages", "Annotations", "ImageSets/Main"):
        (folder / name).mkdir(parents=True)
    _in_processes(partial(_write_annotated, folder, long_side), range(count))
    (folder / "ImageSets/Main/train.txt").write_text("".join(f"{number:05d}\n" for number in range(count)))


def _write_annotated(folder: Path, long_side: int, number: int) -> None:
    rng = np.random.default_rng(number)
    pixels, boxes, classes = draw_photograph(rng, *draw_shape(rng, long_side))
    Image.fromarray(pixels).save(folder / "JPEGImages" / f"{number:05d}.jpg", **SAVED)
    height, width = pixels.shape[:2]
    lines = [f"<filename>{number:05d}.jpg</filename>"]
    lines += [f"<size><width>{width}</width><height>{height}</height><depth>3</depth></size>"]
    for label, (x1, y1, x2, y2) in zip(classes.tolist(), boxes.tolist(), strict=True):
        box = f"<xmin>{x1}</xmin><ymin>{y1}</ymin><xmax>{x2}</xmax><ymax>{y2}</ymax>"
        flags = "<truncated>0</truncated><difficult>0</difficult>"
        lines += [f"<object><name>{CLASSES[label]}</name>{flags}<bndbox>{box}</bndbox></object>"]
    (folder / "Annotations" / f"{number:05d}.xml").write_text("\n".join(["<annotation>", *lines, "</annotation>\n"]))


def _in_processes(draw: Any, numbers: Sequence[int]) -> None:
    with multiprocessing.get_context("fork").Pool(_WORKERS) as pool:
        for _ in pool.imap_unordered(draw, numbers, chunksize=8):
            pass
