"""Parts of images: of files that an opener reads by parts, and of all other images, which are decoded once."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from tensorstore_ds.errors import Problem, SourceError
from tensorstore_ds.imaging import Color
from tensorstore_ds.imaging.codecs import (
    check_pixels,
    color_of,
    dtype_of,
    from_array,
    from_image,
    further_frames,
    lost_alpha,
    open_decoded,
    open_image,
    oriented_size,
    read_image_header,
)
from tensorstore_ds.plugins import Plugin
from tensorstore_ds.regular_files import open_file, read_file

#: Images with at least this many bytes of pixels are read by parts.
LARGE_NBYTES = 64 * 1024**2
#: Functions that open files by parts, by the suffix of their names. Called with an open file, `color` and `key`, they
#: return an `OpenedImage`, or None if Pillow reads the file as well.
OPENERS = dict.fromkeys((".tif", ".tiff"), Plugin("tensorstore_ds.annex.openers.tiff", "open_tiff", "TIFF and BigTIFF"))

_BAND_NBYTES = 8 << 20  # pixels of a decoded image that are copied at a time
_CHANNELS = {"gray": 1, "rgb": 3, "rgba": 4}


class Readable(Protocol):
    """An image of which parts can be read: (H, W, C) in `shape`, and `dtype`."""

    shape: tuple[int, int, int]
    dtype: np.dtype[Any]

    def read(self, top: int, left: int, bottom: int, right: int) -> NDArray[Any]:
        """Return the pixels of a part inside of the image, (bottom - top, right - left, C)."""


class OpenedImage(Readable, Protocol):
    """An image file that is open, of which parts are read.

    Attributes:
        is_large: whether it should be read by parts.
        is_for_pillow: whether Pillow could read it whole, too.
        file_nbytes: of the file.
        left_out: what the file has and is not read.
    """

    is_large: bool
    is_for_pillow: bool
    file_nbytes: int
    left_out: tuple[Problem, ...]

    @property
    def nbytes(self) -> int:
        """Of all pixels."""

    @property
    def band_nbytes(self) -> int:
        """Estimated memory of `bands`."""

    def bands(self) -> Iterator[NDArray[Any]]:
        """The image from top to bottom, in bands (h, W, C) of all columns."""

    def close(self) -> None:
        """Close the file."""


@dataclass(frozen=True, slots=True)
class TiffPart:
    """Part at `corner` (y, x) of `size` (height, width), read on request, black beyond the right and lower edges."""

    image: Readable
    corner: tuple[int, int]
    size: tuple[int, int]

    @property
    def shape(self) -> tuple[int, int, int]:
        """(H, W, C)."""
        return (*self.size, self.image.shape[2])

    @property
    def dtype(self) -> np.dtype[Any]:
        """Dtype of the pixels."""
        return self.image.dtype

    def pixels(self) -> NDArray[Any]:
        """Return (H, W, C) pixels, a copy. Raises `SourceError` as decoding the image does."""
        (top, left), (height, width, _) = self.corner, self.image.shape
        bottom, right = min(top + self.size[0], height), min(left + self.size[1], width)
        inside = self.image.read(top, left, bottom, right)
        if inside.shape[:2] == self.size:
            return np.ascontiguousarray(inside)
        result = np.zeros((*self.size, inside.shape[2]), inside.dtype)
        result[: bottom - top, : right - left] = inside
        return result


class WholeImage:
    """An image that is decoded as a whole at the first request. Only its parts become arrays.

    `shape` is (height, width, channels) as shown, in the requested colors, from its header. `left_out` lists what the
    file contains and is not read, after `bands` also lost alpha.
    """

    def __init__(self, image: Any, color: Color, max_pixels: int, key: str) -> None:
        self._image, self._color, self._max_pixels, self._key = image, color, max_pixels, key
        self._decoded: Any = None
        self.left_out: tuple[Problem, ...] = ()
        if isinstance(image, np.ndarray):
            self._decoded = from_array(image, color, key)
            self.shape: tuple[int, int, int] = self._decoded.shape
            self.dtype = self._decoded.dtype
            return
        if isinstance(image, bytes):
            header = read_image_header(image, max_pixels=max_pixels, key=key)
            size, channels, dtype, opened = header.size, header.channels, header.dtype, header.image
        else:
            check_pixels((image.height, image.width), max_pixels, key)
            size, channels = oriented_size(image), 3 if color_of(image.mode) == "color" else 1
            dtype, opened = dtype_of(image.mode), image
        self.left_out = () if opened is None else further_frames(opened, key)
        self.shape, self.dtype = (*size, _CHANNELS.get(color, channels)), np.dtype(dtype)

    def read(self, top: int, left: int, bottom: int, right: int) -> NDArray[Any]:
        """Return the pixels of a part inside of the image."""
        return self._pixels(self._part(top, left, bottom, right))

    def bands(self) -> Iterator[NDArray[Any]]:
        """Yield the image from top to bottom, in bands (h, W, C) of all columns. Raises the errors of `read`."""
        height, width, channels = self.shape
        lines = max(1, _BAND_NBYTES // (width * channels * self.dtype.itemsize))
        for top in range(0, height, lines):
            part = self._part(top, 0, min(top + lines, height), width)
            if self._color != "rgba" and not isinstance(part, np.ndarray):
                self.left_out = tuple(dict.fromkeys((*self.left_out, *lost_alpha(part, self._key))))
            yield self._pixels(part)

    def close(self) -> None:
        """Release the image."""
        self._image = self._decoded = None

    def _part(self, top: int, left: int, bottom: int, right: int) -> Any:
        if self._decoded is None:
            self._decoded = open_decoded(self._image, color=self._color, key=self._key, max_pixels=self._max_pixels)
            self._image = None
        if isinstance(self._decoded, np.ndarray):
            return self._decoded[top:bottom, left:right]
        return self._decoded.crop((left, top, right, bottom))

    def _pixels(self, part: Any) -> NDArray[Any]:
        return part if isinstance(part, np.ndarray) else from_image(part, self._color, self._key)


def open_parts(image: Any, *, color: Color, max_pixels: int, key: str) -> tuple[Readable, tuple[Problem, ...]]:
    """Return an image of which parts can be read, and notes about what else its file contains.

    `image` is that of a `Sample`, and `max_pixels` limits images that are decoded as a whole. Raises SourceError for a
    damaged header, impossible sizes, or too many pixels.
    """
    if (opened := open_by_parts(image, color, key)) is not None:
        return opened, opened.left_out
    whole = WholeImage(read_file(image, key) if isinstance(image, str | Path) else image, color, max_pixels, key)
    return whole, whole.left_out


def size_of(image: Any, *, color: Color, max_pixels: int, key: str) -> tuple[int, int]:
    """Return (height, width) of an image as shown, from its header alone. Raises the errors of `open_parts`."""
    if (opened := open_by_parts(image, color, key)) is not None:
        opened.close()
        return opened.shape[:2]
    if isinstance(image, str | Path):
        # If the header is wrong, the bytes of the file tell what it is.
        with open_file(image, key) as file, contextlib.suppress(SourceError):
            return oriented_size(open_image(file, max_pixels=max_pixels, key=key))
        image = read_file(image, key)
    return WholeImage(image, color, max_pixels, key).shape[:2]


def open_by_parts(image: Any, color: Color, key: str) -> OpenedImage | None:
    """Return the image of a file that an opener reads by parts, or None for others."""
    if not isinstance(image, str | Path) or (suffix := Path(image).suffix.lower()) not in OPENERS:
        return None
    opened: OpenedImage | None = OPENERS[suffix].load()(open_file(image, key), color=color, key=key)
    return opened
