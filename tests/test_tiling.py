"""Where tiles lie, compared with a loop that follows the rule in words."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tensorstore_ds.errors import OptionError
from tensorstore_ds.tiling import count_tiles, size_of, tile_corners, tile_overlap


def starts_in_words(length: int, size: int, overlap: float) -> list[int]:
    """A stride at a time, until a tile reaches the end; that one is moved inwards."""
    starts, at = [], 0
    while at + size < length:
        starts.append(at)
        at += max(1, round(size * (1 - overlap)))
    return [*starts, max(0, length - size)]


@pytest.mark.parametrize("overlap", [(0.0, 0.0), (0.2, 0.5), (0.25, 0.1), (0.99, 0.9)])
@pytest.mark.parametrize("size", [(1, 1), (7, 5), (16, 16), (40, 64)])
def test_corners_are_those_of_the_rule(size: tuple[int, int], overlap: tuple[float, float]) -> None:
    sizes = [(1, 1), (7, 5), (8, 6), (40, 40), (41, 100), (64, 3), (16, 32)]
    want = [
        (image, y, x)
        for image, (height, width) in enumerate(sizes)
        for y in starts_in_words(height, size[0], overlap[0])
        for x in starts_in_words(width, size[1], overlap[1])
    ]
    found = tile_corners(sizes, size, overlap)
    assert found.dtype == np.int64
    assert found.tolist() == [list(each) for each in want]
    assert count_tiles(sizes, size, overlap).prod(axis=1).tolist() == np.bincount(found[:, 0]).tolist()


@pytest.mark.parametrize("overlap", [0, 0.3, 0.75])
def test_tiles_cover_every_pixel_and_end_with_the_image(overlap: float) -> None:
    size = (13, 17)
    for height, width in [(13, 17), (50, 61), (14, 99)]:
        seen = np.zeros((height, width), int)
        for _, y, x in tile_corners((height, width), size, tile_overlap(overlap)).tolist():
            assert y + 13 <= height
            assert x + 17 <= width
            seen[y : y + 13, x : x + 17] += 1
        assert seen.min() == 1 if height == 13 else seen.min() >= 1


def test_no_images_have_no_tiles() -> None:
    assert tile_corners(np.empty((0, 2)), (3, 3)).shape == (0, 3)


@pytest.mark.parametrize(
    "overlap", [1, 1.5, -0.1, float("nan"), float("inf"), "0.2", None, (0.1,), (0.1, 1), [0, 0, 0]]
)
def test_overlaps_that_are_none_are_refused(overlap: Any) -> None:
    with pytest.raises(OptionError, match=r"overlap.*\[0, 1\)"):
        tile_overlap(overlap)


@pytest.mark.parametrize("size", [0, -1, 2.5, "640", None, (3,), (3, 0), (1, 2, 3), 2**15 + 1])
def test_sizes_that_are_none_are_refused(size: Any) -> None:
    with pytest.raises(OptionError, match="size"):
        size_of(size)
