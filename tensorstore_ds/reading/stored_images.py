"""Pixels and sizes of images that a store keeps as files.

The writer of a store chose its own `max_pixels`. The memory that an untrusted store can make a reader allocate is
limited by the available memory instead.
"""

from __future__ import annotations

import contextlib
import hashlib
import math
import re
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from tensorstore_ds.errors import OptionError, Problem, SourceError
from tensorstore_ds.format.kinds import EncodedImageField, RaggedImageField, RawImageField
from tensorstore_ds.format.kinds.base import Field
from tensorstore_ds.format.schema import Encoding
from tensorstore_ds.imaging import MAX_PIXELS
from tensorstore_ds.imaging.codecs import (
    TURNS,
    bad_image,
    color_of,
    decode_image,
    is_storable,
    no_image,
    open_image,
    orientation,
    oriented_size,
    quiet_pillow,
)
from tensorstore_ds.imaging.jpeg import DamagedJpegError, JpegSegment, cut, decode_jpeg, read_header
from tensorstore_ds.imaging.picture import read_header as read_picture
from tensorstore_ds.machine import memory_limit
from tensorstore_ds.reading.columns import Column, RaggedColumn

#: Memory that decoding takes for each pixel, at most about: Pillow's own 4 bytes, the array, and the image turned.
_PIXEL_NBYTES = 16
_ANY_NUMBER = 2**63
#: Header of a PGM or PPM file of the encoding ``smart``: width, height, the largest number.
_NETPBM = re.compile(rb"P([56])\n([1-9][0-9]{0,9}) ([1-9][0-9]{0,9})\n255\n")
#: A larger share is decoded as the whole image, because cutting also takes time.
_WHOLE = 0.8


class Pixels(NamedTuple):
    """Pixels of a part of an image.

    `array` is (h, w, C). `top` and `left` are its position in pixels of the image, outside it where a scaled pixel
    extends beyond its border. One pixel stands for `scale` pixels of the image in both directions.
    """

    array: NDArray[Any]
    top: int
    left: int
    scale: int = 1


def check_depths(splits: Iterable[tuple[str, Field, Column | RaggedColumn]]) -> None:
    """Raise `OptionError` if images of splits, each with the name of its store and the field, differ in dtype.

    No batch can hold both. A damaged file is no reason to refuse the others.
    """
    known = of = ""
    for name, field, images in splits:
        depth = ""
        if isinstance(field, EncodedImageField):
            with contextlib.suppress(SourceError):
                depth = read_picture(images[0], max_pixels=field.max_pixels, key=name, as_files=True).dtype.name
        else:
            depth = cast("RawImageField | RaggedImageField", field).dtype
        if not known:
            known, of = depth, name
        elif depth not in ("", known):
            message = f"{name}: expected {known} pixels in its images, as in {of}, found {depth}."
            raise OptionError(f"{message} Save all images with one bit depth.")


def image_digest(stored: bytes | NDArray[Any]) -> bytes:
    """16 bytes that are equal for images that are stored as equal files, or as equal pixels of one shape and dtype.

    >>> image_digest(np.zeros((2, 3, 1), np.uint8)) == image_digest(np.zeros((3, 2, 1), np.uint8))
    False
    """
    data: Any = stored if isinstance(stored, bytes) else np.ascontiguousarray(stored).data
    shape = b"" if isinstance(stored, bytes) else repr((stored.shape, stored.dtype.str)).encode()
    return hashlib.blake2b(data, digest_size=16, person=hashlib.blake2b(shape, digest_size=16).digest()).digest()


def decode_stored(data: bytes, *, key: str) -> NDArray[Any]:
    """(H, W, C) pixels of a stored image file, orientation applied; of a plain PGM or PPM file a view of `data`.

    Raises `SourceError`, also above `MAX_PIXELS` and half of the usable memory (`too-many-pixels`).
    """
    pixels = netpbm_pixels(data)
    if pixels is not None:
        return pixels
    _check_format(data, key)
    with quiet_pillow():
        try:
            return decode_image(data, max_pixels=MAX_PIXELS, key=key)
        except SourceError as error:
            if error.reason != "too-many-pixels":
                raise
        size = stored_shape(data, key=key)[:2]
        _check_memory(*size, key)
        return decode_image(data, max_pixels=math.prod(size), key=key)


def decode_part(
    data: bytes | memoryview,
    part: JpegSegment,
    *,
    shape: Sequence[int],
    restarts: NDArray[np.uint32] | None = None,
    scale: int = 1,
    channels: int | None = None,
    key: str = "",
    buffer: NDArray[np.uint8] | None = None,
) -> Pixels:
    """At least `part` of a stored image file, orientation applied; as little more as possible of a JPEG file.

    The file must have `shape`, (height, width, channels). `restarts` are a JPEG file's restart positions in the store,
    if any. `scale` is 1, 2, 4 or 8, and 1 for other formats. With `channels` 3, gray becomes RGB. The result may use
    the memory of `buffer`. Raises `SourceError` if the file is damaged, has another shape, or needs too much memory.
    """
    header = read_header(data)
    if header is None:
        array = decode_stored(bytes(data), key=key)
        _check_shape(array.shape, shape, key)
        return Pixels(np.repeat(array, 3, axis=2) if channels == 3 and array.shape[2] == 1 else array, 0, 0)
    orientation = orientation_of(bytes(data), key) if header.has_metadata else 1
    turned, *mirrored = TURNS[orientation]
    size = header.height, header.width
    found_channels = 1 if header.components == 1 else 3
    _check_shape((*(size[::-1] if turned else size), found_channels), shape, key)
    lines, columns = (
        (length - stop, length - start) if mirror else (start, stop)
        for length, start, stop, mirror in zip(shape, part[:2], part[2:], mirrored, strict=False)
    )
    if turned:
        lines, columns = columns, lines
    wanted, covered = JpegSegment(lines[0], columns[0], lines[1], columns[1]), JpegSegment(0, 0, *size)
    file: bytes | bytearray | memoryview = data
    if restarts is not None and wanted.height * wanted.width < _WHOLE * math.prod(size):
        found = cut(data, header, restarts, wanted, scale=scale)
        if found is not None:
            file, covered = found
            header = header._replace(height=covered.height, width=covered.width, scan=None)
    if covered.height * covered.width > MAX_PIXELS * scale**2:
        _check_memory(-(-covered.height // scale), -(-covered.width // scale), key)
    try:
        array = decode_jpeg(file, header, channels=channels or found_channels, scale=scale, buffer=buffer)
    except DamagedJpegError as error:
        raise bad_image(key, "truncated-image", f"this image is damaged ({error}).") from error
    top, left = covered.top, covered.left
    if turned:
        array, top, left = array.swapaxes(0, 1), left, top
    if mirrored[0]:
        array, top = array[::-1], shape[0] - top - scale * array.shape[0]
    if mirrored[1]:
        array, left = array[:, ::-1], shape[1] - left - scale * array.shape[1]
    return Pixels(array, top, left, scale)


def _check_shape(found: Sequence[int], expected: Sequence[int], key: str) -> None:
    if tuple(found) != tuple(expected):
        of_file, of_store = (" x ".join(map(str, each)) for each in (found, expected))
        raise bad_image(key, "image-shape", f"expected {of_store}, as the store says, found {of_file}.")


def _check_memory(height: int, width: int, key: str) -> None:
    """Raise `SourceError` for more pixels than usual that also need more memory than may be used."""
    limit = max(MAX_PIXELS, memory_limit() // 2 // _PIXEL_NBYTES)
    if height * width > limit:
        message = f"this image has {width}x{height} pixels, and memory has room for {limit}."
        raise SourceError(Problem(key, "too-many-pixels", message), "Read it where there is more memory.")


def _check_format(data: bytes, key: str) -> None:
    """Raise `SourceError` for a file of a format that no store may hold, such as AVIF."""
    if not is_storable(data):
        raise no_image(data, key)


def stored_shape(data: bytes, *, key: str) -> tuple[int, int, int]:
    """(height, width, channels) of a stored image file as it is decoded, from its header; raises `SourceError`."""
    _check_format(data, key)
    with quiet_pillow(), open_image(data, max_pixels=_ANY_NUMBER, key=key) as image:
        return (*oriented_size(image), 3 if color_of(image.mode) == "color" else 1)


def orientation_of(data: bytes, key: str) -> int:
    """EXIF orientation of a stored image file, 1 for upright; raises `SourceError`."""
    with quiet_pillow(), open_image(data, max_pixels=_ANY_NUMBER, key=key) as image:
        return orientation(image)


def check_file(data: bytes, encoding: Encoding, *, key: str) -> None:
    """Raise `SourceError` for a file that this encoding may not hold."""
    if encoding == "source" or (encoding == "smart" and netpbm_pixels(data) is not None):
        return
    if encoding == "smart" and data.startswith((b"P5\n", b"P6\n")):
        message = "expected a plain PGM or PPM file of 8 bits and of the size that it says, found another."
        raise bad_image(key, "truncated-image", message)
    with quiet_pillow(), open_image(data, max_pixels=_ANY_NUMBER, key=key) as image:
        if image.format != "JPEG":
            expected = "a JPEG file" if encoding == "jpeg" else "a JPEG file, or a plain PGM or PPM file of 8 bits"
            raise bad_image(key, "not-an-image", f"expected {expected}, found {image.format}.")
        found = orientation(image)
        if found != 1:
            raise bad_image(key, "image-shape", f"expected a JPEG file without orientation, found {found}.")


def netpbm_pixels(data: bytes | NDArray[np.uint8]) -> NDArray[np.uint8] | None:
    """(H, W, C) view of a PGM or PPM file as the encoding ``smart`` stores it; None for other data."""
    header = _NETPBM.match(data)  # type: ignore[arg-type]  # any buffer will do
    if header is None:
        return None
    shape = int(header[3]), int(header[2]), 3 if header[1] == b"6" else 1
    if len(data) - header.end() != math.prod(shape):
        return None
    return np.frombuffer(data, np.uint8, offset=header.end()).reshape(shape)
