"""Image files to pixels: limits, and the memory that is announced before it is taken."""

from __future__ import annotations

import io

import numpy as np
import pytest
from PIL import Image

from jpeg_files import drawn, oriented
from tensorstore_ds.imaging import MAX_PIXELS
from tensorstore_ds.imaging.codecs import decode_image


def test_the_limit_is_that_of_pillow() -> None:
    assert MAX_PIXELS == 89_478_485


@pytest.mark.parametrize("suffix", ["png", "bmp", "jpeg"])
def test_the_memory_that_decoding_takes_is_announced(suffix: str) -> None:
    file = io.BytesIO()
    Image.fromarray(drawn(30, 70)).save(file, suffix)
    announced: list[int] = []
    decode_image(file.getvalue(), on_decode=announced.append)
    assert announced == [30 * 70 * 10]


def test_the_memory_of_a_turned_image_is_announced() -> None:
    announced: list[int] = []
    pixels = decode_image(oriented(drawn(30, 70), 6), on_decode=announced.append)
    assert pixels.shape == (70, 30, 3)
    assert announced == [30 * 70 * 10]


def test_a_pil_image_is_announced() -> None:
    announced: list[int] = []
    decode_image(Image.fromarray(np.zeros((7, 9, 3), np.uint8)), on_decode=announced.append)
    assert announced == [7 * 9 * 10]
