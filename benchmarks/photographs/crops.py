"""Draw `docs/crops.jpg`, what a decode plan does with one photograph.

python -m benchmarks.photographs.crops
"""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw

from benchmarks.photographs.drawing import draw_photograph
from tensorstore_ds.imaging.jpeg import JpegSegment, cut, encode_jpeg, find_restarts, read_header
from tensorstore_ds.loading.augment.placements import Placements
from tensorstore_ds.loading.decoding import lay, windows_of
from tensorstore_ds.reading.stored_images import decode_part

PICTURE = Path(__file__).parents[2] / "docs/crops.jpg"
#: Of the picture: the photograph, the part that is seen, and what it becomes.
HEIGHT, WIDTH = 375, 500
CROP, OUTPUT = JpegSegment(100, 170, 260, 370), 224
_ORANGE, _WHITE, _GAP = (255, 140, 0), (255, 255, 255), 24


def draw() -> Image.Image:
    """The file with its intervals; the intervals that are cut out of it; and the result."""
    pixels, _, _ = draw_photograph(np.random.default_rng(4), HEIGHT, WIDTH)
    data = encode_jpeg(pixels, 90)
    header, restarts = read_header(data), find_restarts(data)
    if header is None or header.scan is None:
        raise RuntimeError("expected a JPEG file with restart markers")
    found = cut(data, header, restarts, CROP)
    if found is None:
        raise RuntimeError("expected a file that can be cut")
    file, covered = found
    whole = Image.open(io.BytesIO(data)).convert("RGB")
    dimmed = Image.blend(whole, Image.new("RGB", whole.size, _WHITE), 0.55)
    box = covered.left, covered.top, covered.right, covered.bottom
    dimmed.paste(whole.crop(box), box[:2])
    lines = ImageDraw.Draw(dimmed)
    step_y, step_x = header.scan.step
    for x in range(step_x, WIDTH, step_x):
        lines.line((x, 0, x, HEIGHT), _WHITE)
    for y in range(step_y, HEIGHT, step_y):
        lines.line((0, y, WIDTH, y), _WHITE)
    lines.rectangle((CROP.left, CROP.top, CROP.right - 1, CROP.bottom - 1), outline=_ORANGE, width=3)
    decoded = Image.open(io.BytesIO(bytes(file)))
    corner = CROP.left - covered.left, CROP.top - covered.top
    part = ImageDraw.Draw(decoded)
    part.rectangle((*corner, corner[0] + CROP.width - 1, corner[1] + CROP.height - 1), outline=_ORANGE, width=3)
    result = Image.fromarray(placed(data, (header.height, header.width, 3)))
    panels = [dimmed, decoded, result]
    sheet = Image.new("RGB", (sum(p.width for p in panels) + 2 * _GAP, HEIGHT), _WHITE)
    left = 0
    for panel in panels:
        sheet.paste(panel, (left, (HEIGHT - panel.height) // 2))
        left += panel.width + _GAP
    share = len(file) / len(data)
    print(f"{len(file):,} of {len(data):,} bytes ({share:.0%}), {covered.height}x{covered.width} pixels decoded")
    return sheet


def placed(data: bytes, shape: tuple[int, int, int]) -> NDArray[np.uint8]:
    """(H, W, 3): the crop, decoded and resized, as a plan does it."""
    whole, size = Placements.whole(shape[:2]), (OUTPUT, OUTPUT)
    placements = replace(whole.crop((CROP.top, CROP.left), (CROP.height, CROP.width)).resize(size), is_exact=False)
    (window,) = windows_of(placements, whole.size)
    part = JpegSegment(*window.low, *window.high)
    pixels = decode_part(data, part, shape=shape, restarts=find_restarts(data), scale=1)
    canvas = np.empty((*size, 3), np.uint8)
    lay(canvas, pixels, window, 0)
    return canvas


if __name__ == "__main__":
    draw().save(PICTURE, quality=88)
