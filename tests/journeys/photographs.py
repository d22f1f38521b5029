"""Pictures that look to a program as photographs do: smooth colors, shapes with edges, and the noise of a sensor."""

from __future__ import annotations

import functools
import io
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageDraw

ORIENTATION = 0x0112
#: What brings the pixels of an upright picture to those that a file with this orientation has.
TURNED = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_90,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_270,
}


def photograph(seed: int, height: int, width: int) -> Image.Image:
    """An RGB picture. Pictures of different seeds differ at a glance."""
    rng = np.random.default_rng(seed)
    coarse = Image.fromarray(rng.integers(0, 256, (5, 6, 3), np.uint8))
    picture = coarse.resize((width, height), Image.Resampling.BICUBIC)
    draw = ImageDraw.Draw(picture)
    for _ in range(6):
        (x, y), (w, h) = rng.random(2) * (width, height), (0.1 + 0.3 * rng.random(2)) * (width, height)
        place = (x - w / 2, y - h / 2, x + w / 2, y + h / 2)
        color = tuple(rng.integers(0, 256, 3).tolist())
        draw.ellipse(place, color) if rng.random() < 0.5 else draw.rectangle(place, color)
    noise = rng.normal(0, 3, (height, width, 1))
    return Image.fromarray((np.asarray(picture) + noise).clip(0, 255).astype(np.uint8))


def encoded(picture: Image.Image, how: str, orientation: int = 1) -> bytes:
    """The bytes of an image file.

    Args:
        picture: upright.
        how: ``jpeg``, ``progressive``, ``gray``, ``cmyk``, ``444`` (all JPEG), ``png``, ``palette``, ``alpha``,
            ``gray-png``, ``webp``, ``lossless`` (WebP) or ``bmp``.
        orientation: of EXIF, in JPEG files.
    """
    options: dict[str, Any] = {}
    if orientation != 1:
        options["exif"] = exif = Image.Exif()
        exif[ORIENTATION] = orientation
        picture = picture.transpose(TURNED[orientation])
    mode = {"gray": "L", "gray-png": "L", "cmyk": "CMYK", "palette": "P", "alpha": "RGBA"}.get(how)
    if mode is not None:
        picture = picture.convert(mode)
    if how == "alpha":
        picture.putalpha(Image.linear_gradient("L").resize(picture.size))
    format = {"png": "PNG", "palette": "PNG", "alpha": "PNG", "gray-png": "PNG", "bmp": "BMP"}.get(how, "JPEG")
    if how in ("webp", "lossless"):
        format = "WEBP"
    if format == "JPEG":
        options |= {"quality": 90, "progressive": how == "progressive", "subsampling": 0 if how == "444" else 2}
    elif format == "WEBP":
        options |= {"lossless": how == "lossless", "quality": 85}
    buffer = io.BytesIO()
    picture.save(buffer, format, **options)
    return buffer.getvalue()


def write(path: Path, data: bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


def cut_short(data: bytes) -> bytes:
    """A file of which a copy was interrupted."""
    return data[: len(data) * 6 // 10]


def upright(path: Path, mode: str = "RGB") -> np.ndarray:
    """(H, W, C) uint8, as Pillow decodes the file and EXIF turns it; raises as Pillow does if it is damaged."""
    stat = path.stat()
    return _upright(path, mode, stat.st_mtime_ns, stat.st_size)


@functools.lru_cache(maxsize=256)  # each step decodes the files of its data set
def _upright(path: Path, mode: str, *_version: int) -> np.ndarray:
    with Image.open(path) as image:
        image.load()
        orientation = image.getexif().get(ORIENTATION, 1)
        turn = {6: Image.Transpose.ROTATE_270, 8: Image.Transpose.ROTATE_90}.get(orientation, TURNED.get(orientation))
        shown = image.convert("RGB") if image.mode == "P" else image
        shown = shown.convert(mode)
        pixels = np.asarray(shown if turn is None else shown.transpose(turn))
    return pixels[:, :, None] if pixels.ndim == 2 else pixels
