"""Positions of the tiles of an image. Stored tiles and tiles cut while loading follow the same rule."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from numbers import Real

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tensorstore_ds.options import refusal

#: Largest side of a tile or crop, because its memory is allocated before anything else is checked.
MOST_SIDE = 2**15


def size_of(size: int | Sequence[int]) -> tuple[int, int]:
    """(height, width) from one number or two. Raises `OptionError`."""
    try:
        height, width = map(operator.index, (size, size) if hasattr(size, "__index__") else size)
    except (TypeError, ValueError):
        height = width = 0
    if min(height, width) < 1 or max(height, width) > MOST_SIDE:
        raise refusal("size", f"a positive number up to {MOST_SIDE}, or (height, width)", repr(size))
    return height, width


def tile_overlap(overlap: float | Sequence[float]) -> tuple[float, float]:
    """The overlap of neighboring tiles as shares (down, across), from one number or two. Raises `OptionError`.

    >>> tile_overlap(0.2), tile_overlap((0, 0.5))
    ((0.2, 0.2), (0.0, 0.5))
    """
    pair = overlap if isinstance(overlap, Sequence) and not isinstance(overlap, str) else (overlap, overlap)
    if len(pair) != 2 or not all(isinstance(each, Real) and 0 <= each < 1 for each in pair):
        raise refusal("overlap", "a share in [0, 1), such as 0.2, or two: (down, across)", overlap)
    return float(pair[0]), float(pair[1])


def count_tiles(
    sizes: ArrayLike, size: tuple[int, int], overlap: tuple[float, float] = (0.2, 0.2)
) -> NDArray[np.int64]:
    """(n, 2) number of tiles down and across, for images of (n, 2) heights and widths.

    >>> count_tiles([[500, 900], [10, 10]], (500, 500), (0, 0.2)).tolist()
    [[1, 2], [1, 1]]
    """
    beyond = np.asarray(sizes, np.int64).reshape(-1, 2) - size
    return 1 + -(-beyond.clip(0) // _strides(size, overlap))


def tile_corners(
    sizes: ArrayLike, size: tuple[int, int], overlap: tuple[float, float] = (0.2, 0.2)
) -> NDArray[np.int64]:
    """(m, 3) image number, y and x of the upper left corner of every tile, image by image and row by row.

    Along an axis, tiles begin at 0 and are ``round(size * (1 - overlap))`` pixels apart, at least 1. The last tile is
    moved inwards so that it ends with the image, as in SAHI. If the image is not longer than a tile, there is one tile,
    which may extend beyond the image.

    Args:
        sizes: (n, 2) heights and widths of the images, or (height, width) of one image.
        size: (height, width) of the tiles.
        overlap: overlap with the next tile as a share of a tile, in [0, 1), (down, across).

    >>> tile_corners((500, 900), (500, 500), (0, 0.2)).tolist()
    [[0, 0, 0], [0, 0, 400]]
    >>> tile_corners((300, 1001), (400, 400), (0.25, 0.25))[:, 2].tolist()
    [0, 300, 600, 601]
    """
    sizes = np.asarray(sizes, np.int64).reshape(-1, 2)
    grids = count_tiles(sizes, size, overlap)
    counts = grids.prod(axis=1)
    image = np.repeat(np.arange(len(sizes)), counts)
    number = np.arange(len(image)) - np.repeat(counts.cumsum() - counts, counts)
    place = np.stack(np.divmod(number, grids[image, 1]), axis=1)
    corners = np.minimum(place * _strides(size, overlap), (sizes[image] - size).clip(0))
    return np.column_stack([image, corners])


def _strides(size: tuple[int, int], overlap: tuple[float, float]) -> NDArray[np.int64]:
    return np.array([max(1, round(length * (1 - share))) for length, share in zip(size, overlap, strict=True)])
