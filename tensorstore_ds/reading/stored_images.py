"""Images that a store keeps as files: their pixels and sizes.

What is in a store was allowed by its writer, whatever `max_pixels` was then; what a stranger's store can make a reader
take is bounded by the memory that there is.
"""

from __future__ import annotations

import math
import re
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tensorstore_ds.errors import Problem, SourceError
from tensorstore_ds.format.schema import Encoding
from tensorstore_ds.imaging import MAX_PIXELS
from tensorstore_ds.imaging.codecs import bad_image, color_of, decode_image, open_image, oriented_size, own_pixel_limit
from tensorstore_ds.machine import memory_limit

#: Memory that decoding takes for each pixel, at most about: Pillow's own 4 bytes, the array, and the image turned.
_PIXEL_NBYTES = 16
_ANY_NUMBER = 2**63
#: All that comes before the pixels of a PGM or PPM file of the encoding ``smart``: width, height, the largest number.
_NETPBM = re.compile(rb"P([56])\n([1-9][0-9]{0,9}) ([1-9][0-9]{0,9})\n255\n")


def decode_stored(data: bytes, *, key: str) -> NDArray[Any]:
    """(H, W, C) pixels of a stored image file, orientation applied; of a plain PGM or PPM file a view of `data`.

    Raises:
        SourceError: it is damaged; or it has more than `MAX_PIXELS` and would take more than half of the memory that
            may be used, `too-many-pixels`.
    """
    pixels = _netpbm_pixels(data)
    if pixels is not None:
        return pixels
    with own_pixel_limit():
        try:
            return decode_image(data, max_pixels=MAX_PIXELS, key=key)
        except SourceError as error:
            if error.reason != "too-many-pixels":
                raise
        limit = max(MAX_PIXELS, memory_limit() // 2 // _PIXEL_NBYTES)
        height, width = stored_size(data, key=key)
        if height * width > limit:
            message = f"this image has {width}x{height} pixels, of which memory has room for {limit}."
            raise SourceError(Problem(key, "too-many-pixels", message), "Read it where there is more memory.")
        return decode_image(data, max_pixels=limit, key=key)


def stored_size(data: bytes, *, key: str) -> tuple[int, int]:
    """(height, width) of a stored image file as it is shown, from its header; raises `SourceError`."""
    height, width, _ = stored_shape(data, key=key)
    return height, width


def stored_shape(data: bytes, *, key: str) -> tuple[int, int, int]:
    """(height, width, channels) of a stored image file as it is decoded, from its header; raises `SourceError`."""
    with own_pixel_limit(), open_image(data, max_pixels=_ANY_NUMBER, key=key) as image:
        return (*oriented_size(image, key), 3 if color_of(image.mode) == "color" else 1)


def check_file(data: bytes, encoding: Encoding, *, key: str) -> None:
    """Raise `SourceError` for a file that this encoding may not hold."""
    if encoding == "source" or (encoding == "smart" and _netpbm_pixels(data) is not None):
        return
    with own_pixel_limit(), open_image(data, max_pixels=_ANY_NUMBER, key=key) as image:
        if image.format != "JPEG":
            expected = "a JPEG file" if encoding == "jpeg" else "a JPEG file, or a plain PGM or PPM file of 8 bits"
            raise bad_image(key, "not-an-image", f"expected {expected}, found {image.format}.")
        orientation = image.getexif().get(0x0112, 1)
        if orientation != 1:
            raise bad_image(key, "image-shape", f"expected a JPEG file without orientation, found {orientation}.")


def _netpbm_pixels(data: bytes) -> NDArray[np.uint8] | None:
    """(H, W, C), a view, of a PGM or PPM file as the encoding ``smart`` has it; None for all else."""
    header = _NETPBM.match(data)
    if header is None:
        return None
    shape = int(header[3]), int(header[2]), 3 if header[1] == b"6" else 1
    if len(data) - header.end() != math.prod(shape):
        return None
    return np.frombuffer(data, np.uint8, offset=header.end()).reshape(shape)
