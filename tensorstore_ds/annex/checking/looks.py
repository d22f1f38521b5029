"""One pass over the images of a split: what each looks like, and which bytes it is of."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from tensorstore_ds.annex.checking.hashes import SIDE, as_gray, is_constant, thumbnail
from tensorstore_ds.annex.checking.quality import MEASURES, qualities, reduced
from tensorstore_ds.errors import Problem, SourceError
from tensorstore_ds.format.kinds import ImageField, SizeField
from tensorstore_ds.format.kinds.base import of_kind
from tensorstore_ds.imaging.jpeg import JpegSegment, scale_for
from tensorstore_ds.imaging.placement import fit_box
from tensorstore_ds.machine import map_in_threads
from tensorstore_ds.reading.columns import Column, RaggedColumn
from tensorstore_ds.reading.store import Split
from tensorstore_ds.reading.stored_images import decode_part, image_digest

_BLOCK_NBYTES = 4 << 20  # of the images of a block, which a thread reads
_BLOCK_ROWS = 512
#: Thumbnails whose pixels differ in at most so many levels of 256 get a second look: all pixels are compared.
_EVEN = 4


class Looks(NamedTuple):
    """Measurements of the images of a block of rows."""

    start: int  #: The first of the rows.
    thumbnails: NDArray[np.uint8]  #: (n, 32, 32).
    digests: NDArray[np.uint64]  #: (n, 2).
    constant: NDArray[np.bool_]  #: (n,) whether all pixels are equal.
    qualities: NDArray[np.float32]  #: (n, 3), see `qualities`; NaN for images without a measure.
    problems: list[tuple[int, Problem]]  #: Rows that cannot be decoded, and why.


def look(split: Split, *, is_padded: bool = False) -> Iterator[Looks]:
    """Look at all images of a split in order, in blocks of rows, with a thread for each core.

    JPEG files are decoded at a scale that leaves enough pixels for a thumbnail. An image that cannot be decoded is a
    problem, and its thumbnail is black. With `is_padded`, padding around pixels does not count.
    """
    name = next(iter(of_kind(split.fields, ImageField)))
    column = split[name]
    row_nbytes = max(1, column.nbytes // max(1, len(split)))
    rows = max(1, min(_BLOCK_ROWS, _BLOCK_NBYTES // row_nbytes))
    yield from map_in_threads(partial(_look, split, column, is_padded, rows), range(0, len(split), rows))


def _look(split: Split, column: Column | RaggedColumn, is_padded: bool, rows: int, start: int) -> Looks:
    stop = min(start + rows, len(split))
    count = stop - start
    thumbnails = np.zeros((count, SIDE, SIDE), np.uint8)
    digests, constant = np.zeros((count, 2), np.uint64), np.zeros(count, np.bool_)
    measured, problems = np.full((count, len(MEASURES)), np.nan, np.float32), []
    of_shape: dict[tuple[int, ...], list[tuple[int, NDArray[np.uint8]]]] = {}
    stored = column[start:stop]
    shapes = column.per_row["shape"][start:stop] if isinstance(column, RaggedColumn) else None
    sizes = split.first(SizeField) if is_padded else None
    before = None if sizes is None else np.asarray(split[sizes][start:stop])
    for i, image in enumerate(stored):
        digests[i] = np.frombuffer(image_digest(image), np.uint64)
        try:
            pixels = image
            if isinstance(image, bytes):
                stored_shape = tuple(np.asarray(shapes)[i].tolist())
                pixels = _decoded(image, stored_shape, split.key(start + i))
            gray = as_gray(pixels)
            thumbnails[i] = small = thumbnail(gray)
            if before is not None and not isinstance(image, bytes):
                small, pixels = (_without_padding(each, before[i]) for each in (small, pixels))
                small = small[1:-1, 1:-1] if min(small.shape) > 2 else small[:0]  # without what is part of both
                gray = Image.fromarray(_without_padding(np.asarray(gray), before[i]))
            if small.size and int(small.max()) - int(small.min()) > _EVEN:  # most images
                shown = reduced(gray)
                of_shape.setdefault((*shown.shape, pixels.dtype == np.uint8), []).append((i, shown))
                continue
            if isinstance(image, bytes):  # a JPEG file at a scale may hide thin lines
                pixels = _decoded(image, stored_shape, split.key(start + i), scale=1)
            constant[i] = is_constant(pixels)
        except SourceError as error:
            problems.append((start + i, error.problems[0]))
    for (*_, is_light), images in of_shape.items():
        rows_of = [row for row, _ in images]
        measured[rows_of] = qualities(np.stack([shown for _, shown in images]))
        if not is_light:
            measured[rows_of, 1:] = np.nan  # the largest number that counts as white is not known
    return Looks(start, thumbnails, digests, constant, measured, problems)


def _without_padding(pixels: NDArray[Any], size: NDArray[Any]) -> NDArray[Any]:
    """The part (h, w, ...) of an image (H, W, ...) that is not padding, if it had (height, width) `size` before."""
    source = int(size[0]), int(size[1])
    if min(source) < 1:
        return pixels
    placement = fit_box(source, (pixels.shape[0], pixels.shape[1]), "pad")
    (top, left), (height, width) = placement.offset, placement.resized
    return pixels[top : top + height, left : left + width]


def _decoded(data: bytes, shape: tuple[int, ...], key: str, scale: int = 0) -> NDArray[Any]:
    """An image decoded at a scale; 0 chooses one that leaves enough pixels for a thumbnail."""
    scale = scale or scale_for((shape[0], shape[1]), (2 * SIDE, 2 * SIDE))
    return decode_part(data, JpegSegment(0, 0, shape[0], shape[1]), shape=shape, scale=scale, key=key).array
