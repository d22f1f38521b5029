"""Pixels to another size, compared with what Pillow makes of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from tensorstore_ds.imaging.placement import Placement
from tensorstore_ds.imaging.resizing import as_image, resize, resize_nearest

PLACEMENTS = {
    "all": Placement((0, 0, 23, 17), (9, 30), (9, 30)),
    "a part": Placement((2.5, 1, 20, 16.25), (31, 8), (31, 8)),
    "with an edge": Placement((0, 0, 23, 17), (9, 12), (20, 15), (4, 2)),
}


def by_pillow(pixels: NDArray[Any], placement: Placement) -> NDArray[Any]:
    """RGBA as a whole, since Pillow weighs its colors by alpha; else each channel, as bytes or as float32."""
    size = placement.resized[::-1]
    (top, left), (height, width), channels = placement.offset, placement.resized, pixels.shape[2]
    part = np.s_[top : top + height, left : left + width]
    expected = np.zeros((*placement.size, channels), pixels.dtype)
    if pixels.dtype == np.uint8 and channels == 4:
        expected[part] = Image.fromarray(pixels).resize(size, Image.Resampling.BILINEAR, placement.box)
        return expected
    as_bytes = pixels.dtype == np.uint8 and channels in (1, 3)
    for i in range(channels):
        image = Image.fromarray(pixels[:, :, i].astype(np.uint8 if as_bytes else np.float32))
        values = np.asarray(image.resize(size, Image.Resampling.BILINEAR, placement.box))
        expected[(*part, i)] = np.rint(values) if pixels.dtype.kind in "iu" else values
    return expected


@pytest.mark.parametrize("dtype", ["u1", "i1", "u2", "i2", "i4", "f4", "f8"])
@pytest.mark.parametrize("channels", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("placement", PLACEMENTS.values(), ids=PLACEMENTS)
def test_pixels_are_resized_as_pillow_does(placement: Placement, channels: int, dtype: str) -> None:
    pixels = np.random.default_rng(channels).integers(-100 if dtype[0] != "u" else 0, 127, (17, 23, channels))
    found = resize(pixels.astype(dtype), placement)
    assert (found.dtype, found.shape) == (np.dtype(dtype), (*placement.size, channels))
    np.testing.assert_array_equal(found, by_pillow(pixels.astype(dtype), placement))


@pytest.mark.parametrize("value", [0, 255, 65535])
def test_the_ends_of_a_type_stay(value: int) -> None:
    pixels = np.full((7, 5, 1), value, np.uint16)
    assert (resize(pixels, Placement((0, 0, 5, 7), (11, 3), (11, 3))) == value).all()


def test_the_largest_number_does_not_become_the_smallest() -> None:
    pixels = np.full((4, 4, 1), 2**31 - 1, np.int32)  # float32 rounds it up to 2**31
    assert (resize(pixels, Placement((0, 0, 4, 4), (2, 2), (2, 2))) == 2**31 - 1).all()


@pytest.mark.parametrize("placement", PLACEMENTS.values(), ids=PLACEMENTS)
def test_a_mask_has_the_value_at_the_center_of_each_pixel(placement: Placement) -> None:
    mask = np.random.default_rng(0).integers(0, 200, (17, 23)).astype(np.int32)
    left, top, right, bottom = placement.box
    height, width = placement.resized
    expected = np.full(placement.size, 255)
    for y in range(height):
        for x in range(width):
            row = int(top + (2 * y + 1) * (bottom - top) / (2 * height))
            column = int(left + (2 * x + 1) * (right - left) / (2 * width))
            expected[placement.offset[0] + y, placement.offset[1] + x] = mask[row, column]
    found = resize_nearest(mask, placement, 255)
    assert found.dtype == np.int32
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("channels", [1, 3, 4])
def test_an_image_has_the_pixels(channels: int) -> None:
    pixels = np.arange(5 * 4 * channels, dtype=np.uint8).reshape(5, 4, channels)
    image = as_image(pixels)
    assert (image.mode, image.size) == ({1: "L", 3: "RGB", 4: "RGBA"}[channels], (4, 5))
    assert image.tobytes() == pixels.tobytes()
    assert as_image(pixels[:, ::-1]).tobytes() == pixels[:, ::-1].tobytes()


def test_colors_have_the_bits_of_pillow_whatever_the_sizes() -> None:
    rng = np.random.default_rng(0)
    for i in range(120):
        height, width, *to = (int(n) for n in rng.integers(1, 150, 4))
        pixels = rng.integers(0, 256 if i % 3 else 1, (height, width, 3), np.uint8) - np.uint8(1)  # or all white
        (top, bottom), (left, right) = (sorted(rng.uniform(0, n, 2)) for n in (height, width))
        if i % 4:  # a margin, of which a float has not all digits
            left, top = (0, 0) if i % 4 == 1 else (left, top)
            right, bottom = width, height
        box = float(left), float(top), float(right), float(bottom)
        expected = Image.fromarray(pixels).resize((to[1], to[0]), Image.Resampling.BILINEAR, box)
        found = resize(pixels, Placement(box, (to[0], to[1]), (to[0], to[1])))
        np.testing.assert_array_equal(found, np.asarray(expected), f"{pixels.shape} {box} {to}")
    tall = np.zeros((2**24 + 2, 1, 3), np.uint8)
    assert resize(tall, Placement((0, 0, 1, len(tall)), (2, 1), (2, 1))).shape == (2, 1, 3)  # too many for a float
