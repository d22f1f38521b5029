"""Pictures: images whose headers are read. Their pixels are read when they are needed, whole, in bands or in parts."""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tensorstore_ds import native
from tensorstore_ds.errors import Problem, SourceError
from tensorstore_ds.format.schema import EncodedSample
from tensorstore_ds.format.statistics import ImageSums
from tensorstore_ds.imaging import Color
from tensorstore_ds.imaging.codecs import (
    ImageHeader,
    OnDecode,
    bad_image,
    check_pixels,
    decode_file,
    decoding_nbytes,
    from_array,
    from_image,
    further_frames,
    is_storable,
    lost_alpha,
    open_decoded,
    open_image,
    read_image_header,
)
from tensorstore_ds.imaging.jpeg import JPEG, scale_for
from tensorstore_ds.imaging.placement import Placement
from tensorstore_ds.imaging.resizing import resize
from tensorstore_ds.plugins import Plugin
from tensorstore_ds.regular_files import archive_of, open_file, read_file

#: Images with at least this many bytes of pixels are read in bands.
LARGE_NBYTES = 64 * 1024**2
#: Functions that open files by parts, by the suffix of their names. Called with an open file, `color` and `key`, they
#: return a `Picture`, or None if Pillow reads the file as well.
OPENERS = dict.fromkeys((".tif", ".tiff"), Plugin("tensorstore_ds.annex.openers.tiff", "open_tiff", "TIFF and BigTIFF"))

_BAND_NBYTES = 8 << 20  # pixels of a decoded image that are copied at a time
_HEAD_NBYTES = 16
_SHOWN = 100  # characters of a path in an error
_CHANNELS = {"gray": 1, "rgb": 3, "rgba": 4}


class Picture:
    """An image whose header has been read.

    Attributes:
        shape: (H, W, C) as shown, in the requested colors.
        dtype: data type of the pixels.
        file: bytes of its file, if they have been read.
        file_nbytes: size of its file, or 0.
        is_file: whether the image is a file that Pillow can read.
        is_storable: whether a store can contain this file.
        is_recolored: whether its file has other colors than requested.
        format: Pillow's name of the format of its file.
        can_scale: whether `pixels` can reduce the image while it is decoded.
        is_large: whether its pixels should be read in bands.
        left_out: parts of the file that are not read. Alpha that is dropped is reported after the pixels are read.
    """

    shape: tuple[int, int, int]
    dtype: np.dtype[Any]
    file: bytes | None = None
    file_nbytes = 0
    is_file = False
    is_storable = False
    is_recolored = False
    format = ""
    can_scale = False
    is_large = False
    left_out: tuple[Problem, ...] = ()

    @property
    def is_turned(self) -> bool:
        """Whether the image is shown turned by a quarter."""
        return False

    @property
    def size(self) -> tuple[int, int]:
        """(height, width) as shown."""
        return self.shape[:2]

    @property
    def nbytes(self) -> int:
        """Bytes of all pixels."""
        return math.prod(self.shape) * self.dtype.itemsize

    def pixels(self, scale: int = 1, on_decode: OnDecode | None = None) -> NDArray[Any]:
        """Return all pixels, (H, W, C), reduced to 1/`scale` (1, 2, 4 or 8), rounded up.

        `on_decode` is called before with the bytes of memory that this may take. Raises `SourceError` for damage.
        """
        raise NotImplementedError

    def walk(self, on_decode: OnDecode | None = None) -> tuple[NDArray[np.uint32], ImageSums] | None:
        """Return the entries of a sound JPEG file (M, 3), and the sums of its pixels, of which it makes no array.

        None if only `pixels` can tell what is in the file, or what is wrong with it. `on_decode` as there.
        """
        return None

    def pixels_in(self, placement: Placement | None, on_decode: OnDecode | None = None) -> NDArray[Any]:
        """Return all pixels, (H', W', C), resized and placed if there is a placement. Raises as `pixels`."""
        if placement is None:
            return self.pixels(on_decode=on_decode)
        scale = 1
        if self.can_scale and placement.reserve:
            height, width = placement.size
            scale = scale_for(self.size, (placement.reserve * height, placement.reserve * width))
        left, top, right, bottom = (edge / scale for edge in placement.box)
        return resize(self.pixels(scale, on_decode), replace(placement, box=(left, top, right, bottom)))

    def read(self, top: int, left: int, bottom: int, right: int) -> NDArray[Any]:
        """Return the pixels of a part inside of the image, (bottom - top, right - left, C). Raises as `pixels`."""
        raise NotImplementedError

    def bands(self, on_decode: OnDecode | None = None) -> Iterator[NDArray[Any]]:
        """Yield the image from top to bottom, in bands (h, W, C) of all columns. Raises as `pixels`."""
        yield self.pixels(on_decode=on_decode)

    def close(self) -> None:
        """Release the image and its file."""


class PicturePart(Picture):
    """Part at `corner` (y, x) of `size` (height, width), read on request, black beyond the right and lower edges."""

    def __init__(
        self, image: Picture, corner: tuple[int, int], size: tuple[int, int], color: Color = "auto", key: str = ""
    ) -> None:
        self.shape, self.dtype = (*size, _CHANNELS.get(color, image.shape[2])), image.dtype
        self._image, self._corner, self._color, self._key = image, corner, color, key

    def in_color(self, color: Color, key: str) -> PicturePart:
        """Return this part in other colors."""
        return PicturePart(self._image, self._corner, self.size, color, key)

    def pixels(self, scale: int = 1, on_decode: OnDecode | None = None) -> NDArray[Any]:
        (top, left), (height, width) = self._corner, self._image.size
        bottom, right = min(top + self.size[0], height), min(left + self.size[1], width)
        result = self._image.read(top, left, bottom, right)
        if result.shape[:2] != self.size:
            inside, result = result, np.zeros((*self.size, result.shape[2]), result.dtype)
            result[: bottom - top, : right - left] = inside
        return np.ascontiguousarray(from_array(result, self._color, self._key))


class WholePicture(Picture):
    """An array, an image of Pillow, or the bytes of a file, which are decoded as a whole when pixels are first read."""

    def __init__(self, image: Any, color: Color, max_pixels: int, key: str) -> None:
        self._color, self._key = color, key
        self._decoded: Any = None
        self._header: ImageHeader | None = None
        if isinstance(image, np.ndarray):
            self._decoded = from_array(image, color, key)
            self.shape, self.dtype = self._decoded.shape, self._decoded.dtype
            return
        self._header = header = read_image_header(image, max_pixels=max_pixels, key=key)
        if isinstance(image, bytes):
            self.file, self.file_nbytes = image, len(image)
            self.is_file, self.is_storable = True, is_storable(image)
        opened, self.can_scale = header.image, header.jpeg is not None and header.orientation == 1
        self.format = (opened.format or "") if opened is not None else "JPEG" if header.png is None else "PNG"
        self.left_out = () if opened is None else further_frames(opened, key)
        self.shape, self.dtype = (*header.size, _CHANNELS.get(color, header.channels)), np.dtype(header.dtype)
        self.is_recolored = self.shape[2] != header.channels
        self.is_large = self.file is not None and self.nbytes >= LARGE_NBYTES

    @property
    def is_turned(self) -> bool:
        return self._header is not None and self._header.orientation >= 5

    def pixels(self, scale: int = 1, on_decode: OnDecode | None = None) -> NDArray[Any]:
        if self._header is None:
            return np.asarray(self._decoded)
        how: Any = {"color": self._color, "key": self._key, "on_decode": on_decode, "scale": scale}
        pixels = decode_file(self.file or b"", self._header, **how)
        if self.file is None:
            return pixels
        if scale == 1 and pixels.shape[:2] != self.size:  # of a PNG with its EXIF behind its pixels
            message = f"expected an image of {self.size[0]}x{self.size[1]} (height x width), as its header says"
            raise bad_image(self._key, "size-mismatch", f"{message}, found {pixels.shape[0]}x{pixels.shape[1]}.")
        self._note_alpha(self._header.image)
        return pixels

    def walk(self, on_decode: OnDecode | None = None) -> tuple[NDArray[np.uint32], ImageSums] | None:
        if self._header is None or self._header.jpeg is None or native.core is None:
            return None
        if on_decode is not None:
            on_decode(decoding_nbytes(self._header))
        entries, sums = native.walk(self.file)
        channels = self.shape[2]
        if len(sums) != 2 * channels:
            return None
        found = ImageSums("uint8", math.prod(self.size), list(sums[:channels]), list(sums[channels:]))
        return np.frombuffer(entries, np.uint32).reshape(-1, 3), found

    def read(self, top: int, left: int, bottom: int, right: int) -> NDArray[Any]:
        return self._as_pixels(self._part(top, left, bottom, right))

    def bands(self, on_decode: OnDecode | None = None) -> Iterator[NDArray[Any]]:
        height, width, channels = self.shape
        lines = max(1, _BAND_NBYTES // (width * channels * self.dtype.itemsize))
        if on_decode is not None and self._header is not None:
            on_decode(decoding_nbytes(self._header))
        for top in range(0, height, lines):
            part = self._part(top, 0, min(top + lines, height), width)
            self._note_alpha(part)
            yield self._as_pixels(part)

    def close(self) -> None:
        self._decoded = self._header = self.file = None

    def _note_alpha(self, decoded: Any) -> None:
        if self._color != "rgba" and decoded is not None and not isinstance(decoded, np.ndarray):
            self.left_out = tuple(dict.fromkeys((*self.left_out, *lost_alpha(decoded, self._key))))

    def _part(self, top: int, left: int, bottom: int, right: int) -> Any:
        if self._decoded is None and self._header is not None:
            self._decoded = open_decoded(self.file or b"", self._header, color=self._color, key=self._key)
        if isinstance(self._decoded, np.ndarray):
            return self._decoded[top:bottom, left:right]
        return self._decoded.crop((left, top, right, bottom))

    def _as_pixels(self, part: Any) -> NDArray[Any]:
        return part if isinstance(part, np.ndarray) else from_image(part, self._color, self._key)


@dataclass(slots=True, repr=False)
class PlacedPicture:
    """A sample's picture as a store has its pixels: placed, finite, and if `is_widened`, gray as RGB."""

    picture: Picture
    _placement: Placement | None
    _is_widened: bool
    _key: str
    _source: Any
    _on_decode: OnDecode | None

    @property
    def is_large(self) -> bool:
        """Whether it should be read in bands, which cannot be placed."""
        return self.picture.is_large and self._placement is None

    def whole(self, row: EncodedSample) -> NDArray[Any]:
        """Return all pixels, (H, W, C), and note in their row what they tell of it. Raises `SourceError` for damage."""
        with PathInErrors(self._key, self._source):
            pixels = self.picture.pixels_in(self._placement, self._on_decode)
        pixels = self._checked(pixels)
        row.shape, row.dtype, row.left_out = pixels.shape, pixels.dtype, row.left_out + self.picture.left_out
        return pixels

    def walk(self) -> tuple[NDArray[np.uint32], Callable[[], ImageSums]] | None:
        """Return the entries and the sums of a sound JPEG file, or None if only its pixels can tell."""
        with PathInErrors(self._key, self._source):
            found = self.picture.walk(self._on_decode)
        return None if found is None else (found[0], lambda: found[1])

    def bands(self, sums: list[ImageSums]) -> Iterator[NDArray[Any]]:
        """Yield the pixels from top to bottom, (h, W, C), and add the sums of each band to `sums`."""
        for band in self.picture.bands(self._on_decode):
            checked = self._checked(band)
            sums.append(ImageSums.of_pixels(checked))
            yield checked

    def sums(self) -> ImageSums:
        """Return the sums of all pixels."""
        sums: list[ImageSums] = []
        for _ in self.bands(sums):
            pass
        return sum(sums, ImageSums())

    def _checked(self, pixels: NDArray[Any]) -> NDArray[Any]:
        if pixels.dtype.kind == "f" and not np.isfinite(pixels).all():
            resized = ", or numbers too large to be resized" if self._placement is not None else ""
            message = f"expected finite numbers as pixels, found NaN or infinity{resized}."
            raise SourceError(Problem(self._key, "pixel-nan", message))
        return np.repeat(pixels, 3, axis=2) if self._is_widened else pixels


class PathInErrors:
    """Adds the path of a sample's image to errors, unless the key contains it."""

    def __init__(self, key: str, image: Any) -> None:
        self._key, self._image = key, image

    def __enter__(self) -> None:
        pass

    def __exit__(self, _: type[BaseException] | None, error: BaseException | None, __: object) -> None:
        if not isinstance(error, SourceError) or not isinstance(self._image, str | Path):
            return
        path, advice = str(self._image), error.advice
        is_missing = error.reason == "unreadable-file" and not os.path.lexists(path) and archive_of(path) is None
        if path.endswith(self._key) and not is_missing:
            return
        if is_missing:
            advice = "If the images are in another folder, name it with `images`."
        shown = path if len(path) <= _SHOWN else f"...{path[-_SHOWN:]}"
        problems = [replace(problem, message=f"{shown}: {problem.message}") for problem in error.problems]
        raise SourceError(problems, advice) from error


def open_picture(
    image: Any, *, color: Color = "auto", max_pixels: int, key: str, whole: bool = True, as_files: bool = False
) -> Picture:
    """Read the header of an image, and return a `Picture` that reads its pixels later.

    `image` is the image of a `Sample`. `max_pixels` limits images that are decoded as a whole. If `whole` is True, it
    also limits files that can be read by parts. If `as_files` is True, files are never opened by parts. Raises
    `SourceError` for a damaged header, impossible sizes, or too many pixels.
    """
    if isinstance(image, PicturePart):
        return image.in_color(color, key)
    if isinstance(image, str | Path):
        if not as_files and (opened := _opened_by_parts(image, color, key, max_pixels if whole else None)) is not None:
            return opened
        image = read_file(image, key)
    return WholePicture(image, color, max_pixels, key)


def read_header(
    image: Any, *, color: Color = "auto", max_pixels: int, key: str, whole: bool = True, as_files: bool = False
) -> Picture:
    """Return a closed `Picture`, of which only the header of the file was read. Raises the errors of `open_picture`."""
    if isinstance(image, str | Path):
        if not as_files and (opened := _opened_by_parts(image, color, key, max_pixels if whole else None)) is not None:
            opened.close()
            return opened
        # If the header is wrong, the bytes of the file tell what it is.
        with open_file(image, key) as file, contextlib.suppress(SourceError):
            found = open_image(file, max_pixels=max_pixels, key=key)
            picture = WholePicture(found, color, max_pixels, key)
            picture.is_file, picture.file_nbytes = True, file.seek(0, os.SEEK_END)
            file.seek(0)
            picture.is_storable = is_storable(file.read(_HEAD_NBYTES))
            return picture
    return open_picture(image, color=color, max_pixels=max_pixels, key=key, as_files=True)


def is_jpeg(image: Any, key: str) -> bool:
    """Whether the image of a `Sample` is a JPEG file."""
    if isinstance(image, str | Path):
        with open_file(image, key) as file:
            return bool(file.read(2) == JPEG)
    return bool(image[:2] == JPEG) if isinstance(image, bytes) else getattr(image, "format", None) == "JPEG"


def _opened_by_parts(image: str | Path, color: Color, key: str, max_pixels: int | None) -> Picture | None:
    if (suffix := os.path.splitext(image)[1].lower()) not in OPENERS:  # noqa: PTH122  # a `Path` takes 10 us
        return None
    opened: Picture | None = OPENERS[suffix].load()(open_file(image, key), color=color, key=key)
    if opened is not None and max_pixels is not None:
        check_pixels(opened.size, max_pixels, key)
    return opened
