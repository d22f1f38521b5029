"""Random tiles of a huge photograph, against tiles of photographs of 1,000 x 1,000 pixels, and the memory they take.

``python -m benchmarks.tiles VOC`` draws the picture of docs/large-images.md, of an image of a VOC folder.
"""

from __future__ import annotations

import io
import os
import statistics
import sys
import tempfile
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw

import tensorstore_ds as tsds
from benchmarks.measure import Figure, Settings, alternate, as_result, ratio_of_medians, seconds_of, spread
from benchmarks.photographs.drawing import write_class_folders
from tensorstore_ds.annex.measuring.system import own_nbytes
from tensorstore_ds.annex.tiles import Tiles
from tensorstore_ds.imaging.jpeg import encode_jpeg

SIDE, SMALL_SIDE, TILE = 20_000, 1_000, 640
#: Of the huge photograph, by encoding; fewer pixels where they are not encoded, for small disks.
SIDES = {"jpeg": SIDE, "source": SIDE, "raw": 8_000}
ENCODINGS = tuple(SIDES)
#: Number of photographs of the small side, cut out of the huge one.
SMALL = 100
_TILES, _QUALITY = 256, 90  # tiles of a timing
LIMIT, MEMORY_LIMIT = 1.5, 64.0


def measure(settings: Settings) -> dict[str, Any]:
    """Time of random tiles for each encoding, relative to equal tiles of small photographs; and memory afterwards."""
    pixels = mosaic(photographs(settings), SIDE)
    for encoding in ENCODINGS:
        side = SIDES[encoding]
        write(settings.scratch / f"{encoding}-huge.tsds", [pixels[:side, :side]], encoding)
        write(settings.scratch / f"{encoding}-small.tsds", parts_of(pixels), encoding)
    del pixels
    found = [measure_encoding(settings, encoding) for encoding in ENCODINGS]
    return as_result([figure for figures, _ in found for figure in figures], tiles=[row for _, row in found])


def measure_encoding(settings: Settings, encoding: str) -> tuple[list[Figure], dict[str, Any]]:
    """Figures of time and memory; and seconds for a tile."""
    stores = [tsds.StoreDataset(settings.scratch / f"{encoding}-{size}.tsds") for size in ("huge", "small")]
    large, usual = (Tiles(store, TILE) for store in stores)
    timings = [partial(timed, tiles, np.random.default_rng(0)) for tiles in (large, usual)]
    huge, small = alternate(timings, settings.repeat)
    before = own_nbytes(os.getpid()) or 0
    for seed in range(4):
        timed(large, np.random.default_rng(seed))
    grown = (own_nbytes(os.getpid()) or 0) - before
    sizes = [f"{side:,} x {side:,}" for side in (SIDES[encoding], SMALL_SIDE)]
    what = f"random tile of {TILE} x {TILE}, {encoding}: of {sizes[0]} relative to {sizes[1]}"
    note = f"{spread(huge, 1000 / _TILES)} ms against {spread(small, 1000 / _TILES)} ms"
    memory = f"{4 * _TILES:,} more tiles of {sizes[0]}, {encoding}: private memory"
    figures = [
        Figure(what, ratio_of_medians(huge, small), LIMIT, "x", note=note),
        Figure(memory, max(0, grown) / 1e6, MEMORY_LIMIT, "MB more", decimals=1),
    ]
    seconds = {name: statistics.median(each) / _TILES for name, each in (("huge", huge), ("small", small))}
    return figures, {"encoding": encoding, "side": SIDES[encoding], **seconds}


def photographs(settings: Settings) -> Iterator[NDArray[np.uint8]]:
    """Real ones where there are some, else drawn ones; again and again."""
    folder = settings.photographs
    if folder is None:
        folder = settings.scratch / "drawn"
        write_class_folders(folder, 64)
    files = sorted(folder.glob("*/*.[jJ][pP]*[gG]"))
    while True:
        for file in files:
            with Image.open(file) as image:
                yield np.asarray(image.convert("RGB"))


def mosaic(photographs: Iterator[NDArray[np.uint8]], side: int) -> NDArray[np.uint8]:
    """A square of photographs, side by side, each cut to the height of its line."""
    pixels: NDArray[np.uint8] = np.empty((side, side, 3), np.uint8)
    top, height = 0, 320
    for top in range(0, side, height):
        left = 0
        while left < side:
            part = next(photographs)[: min(height, side - top), : side - left]
            if part.shape[0] == min(height, side - top):
                pixels[top : top + height, left : left + part.shape[1]] = part
                left += part.shape[1]
    return pixels


def parts_of(pixels: NDArray[np.uint8]) -> list[NDArray[np.uint8]]:
    """Some squares of the small side."""
    corners = np.random.default_rng(2).integers(0, len(pixels) - SMALL_SIDE + 1, (SMALL, 2)).tolist()
    return [pixels[y : y + SMALL_SIDE, x : x + SMALL_SIDE] for y, x in corners]


def write(path: Path, images: Sequence[NDArray[np.uint8]], encoding: str) -> None:
    """Store images as pixels; or as JPEG files, with restart markers (`jpeg`), or without (`source`)."""
    kept = tsds.conversion.Raw() if encoding == "raw" else tsds.conversion.SourceFiles(check="headers")
    with tsds.Writer(path, max_pixels=SIDE * SIDE, encoding=kept) as writer:
        for image in images:
            writer.append("train", image=image if encoding == "raw" else encoded(image, encoding))


def encoded(pixels: NDArray[np.uint8], encoding: str) -> bytes:
    """A JPEG file, as the encoding `jpeg` writes it, or as cameras do."""
    pixels = np.ascontiguousarray(pixels)
    if encoding == "jpeg":
        return encode_jpeg(pixels, _QUALITY)
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "JPEG", quality=_QUALITY)
    return buffer.getvalue()


def timed(tiles: Tiles, rng: np.random.Generator) -> float:
    """Seconds for random tiles, in batches of 16, in this thread."""
    batches = rng.integers(0, len(tiles), (_TILES // 16, 16))
    return seconds_of(lambda: [tiles.gather(batch) for batch in batches])


# --- the picture of docs/large-images.md ----------------------------------------------------------------------------

PICTURE = Path(__file__).parent.parent / "docs/tiles.jpg"
_GAP, _ZOOM = 12, 2  # pixels of the picture


def draw(voc: Path, out: Path = PICTURE, row: int = 3, size: int = 272) -> None:
    """An image of a VOC folder, its tiles' overlaps shaded, and beside it the tiles with their boxes."""
    with tempfile.TemporaryDirectory() as folder:
        tsds.convert(voc, Path(folder) / "s.tsds", on_error="skip", encoding="source")
        dataset = tsds.StoreDataset(Path(folder) / "s.tsds").subset([row])
        tiles = Tiles(dataset, size)
        image = _drawn(dataset[0])
        rows, columns = (len(np.unique(tiles.positions[:, axis])) for axis in (1, 2))
        covered = np.zeros((image.height, image.width), np.uint8)
        for _, y, x in (_ZOOM * tiles.positions).tolist():
            covered[y : y + _ZOOM * size, x : x + _ZOOM * size] += 1
        image.paste("#1971c2", mask=Image.fromarray(np.where(covered > 1, 90, 0).astype(np.uint8)))
        side = (image.height - _GAP * (rows - 1)) // rows
        canvas = Image.new("RGB", (image.width + (side + _GAP) * columns + _GAP, image.height), "white")
        canvas.paste(image)
        for number in range(len(tiles)):
            tile = _drawn(tiles[number]).resize((side, side), Image.Resampling.LANCZOS)
            at = number % columns * (side + _GAP), number // columns * (side + _GAP)
            canvas.paste(tile, (image.width + 2 * _GAP + at[0], at[1]))
        canvas.resize((canvas.width * 2 // 3, canvas.height * 2 // 3), Image.Resampling.LANCZOS).save(out, quality=88)


def _drawn(sample: dict[str, Any]) -> Image.Image:
    """A sample with its boxes."""
    image = Image.fromarray(sample["image"].permute(1, 2, 0).numpy())
    image = image.resize((image.width * _ZOOM, image.height * _ZOOM))
    pen = ImageDraw.Draw(image)
    for box in sample["objects"]["boxes"].tolist():
        x1, y1, x2, y2 = (_ZOOM * each for each in box)
        pen.rectangle([x1, y1, x2 - 1, y2 - 1], outline="#e8590c", width=4)
    return image


if __name__ == "__main__":
    draw(Path(sys.argv[1]))
