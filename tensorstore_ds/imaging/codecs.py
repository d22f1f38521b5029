"""Decode image files to upright pixels in the requested colors, and masks."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import io
import logging
import math
import re
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, BinaryIO

import numpy as np
import PIL._imaging
from numpy.typing import NDArray
from PIL import Image, ImageFile, UnidentifiedImageError
from PIL.PngImagePlugin import PngImageFile

from tensorstore_ds.errors import Problem, SourceError
from tensorstore_ds.format.schema import DTYPES, MOST_CHANNELS
from tensorstore_ds.imaging import MAX_PIXELS, Color
from tensorstore_ds.imaging.heif import HEIF_FORMATS, heif_format, open_heif
from tensorstore_ds.imaging.jpeg import DamagedJpegError, JpegHeader, decode_jpeg, read_header
from tensorstore_ds.imaging.png import PNG, PngHeader, decode_png, read_png_header
from tensorstore_ds.imaging.resizing import as_image
from tensorstore_ds.regular_files import check_machine

OnDecode = Callable[[int], None]

#: The formats of `IMAGE_SUFFIXES` except AVIF and HEIC, by Pillow's names: a store can hold files of these. Pillow
#: supports 40 more, and would start Ghostscript for one.
FORMATS = ("JPEG", "PNG", "PPM", "BMP", "GIF", "TIFF", "WEBP", "JPEG2000")

#: Number of pixels of an image that are copied at a time.
_COPIED_PIXELS = 1 << 22
#: Maximum bytes per pixel for decoding an image, including Pillow's intermediate copies: 9.5 were measured.
_PEAK_NBYTES = 10
#: The same for AVIF and HEIC: 19.5 were measured for AVIF with alpha. 10 bits take 4 more.
_PEAK_HEIF_NBYTES = 24
_WITH_FRAMES = frozenset(("GIF", "TIFF", "WEBP", "PNG", *HEIF_FORMATS))  # JPEG files contain previews as further frames
#: Notes about images.
ALPHA = 'stored without its alpha. Keep it with `encoding="raw"` and `color="rgba"`.'
FURTHER_FRAMES = "this file has several frames or pages. The first one is the image of the sample."
_FURTHER_IMAGES = "this file has several images. The primary one is the image of the sample."
_GRAY_MODES = frozenset(("1", "L", "LA", "La"))
_MASK_MODES = frozenset(("1", "L", "P", "I"))
#: Not as names, because creating the name of a dtype takes 2 us.
_DTYPES = frozenset(map(np.dtype, DTYPES))
_MODES: Mapping[Color, str] = {"gray": "L", "rgb": "RGB", "rgba": "RGBA"}
_BITS, _PHOTOMETRIC, _ORIENTATION, _SAMPLES, _SAMPLE_FORMAT = 258, 262, 274, 277, 339
#: Steps that make an image upright, by EXIF's number: transpose, then mirror top to bottom, left to right. Pillow
#: rotates a TIFF file by itself.
TURNS = {
    1: (False, False, False),
    2: (False, False, True),
    3: (False, True, True),
    4: (False, True, False),
    5: (True, False, False),
    6: (True, False, True),
    7: (True, True, True),
    8: (True, True, False),
}
#: First bytes of files of each of the `FORMATS`: spec.md, 6.4.
_MAGIC = re.compile(
    rb"\xff\xd8\xff|\x89PNG\r\n\x1a\n|GIF8[79]a|BM|II[*+]\0|MM\0[*+]|RIFF....WEBP|P[1-6]\s"
    rb"|\0\0\0\x0cjP  \r\n\x87\n|\xff\x4f\xff\x51",
    re.DOTALL,
)


def is_storable(head: bytes) -> bool:
    """Whether bytes begin like an image file that a store can hold: one of the `FORMATS`, not AVIF or HEIC."""
    return _MAGIC.match(head) is not None


def begins_as_image(head: bytes) -> bool:
    """Whether bytes begin like an image file."""
    return is_storable(head) or heif_format(head) is not None


def decode_image(
    source: bytes | NDArray[Any] | Image.Image,
    *,
    color: Color = "auto",
    max_pixels: int = MAX_PIXELS,
    key: str = "image",
    on_decode: OnDecode | None = None,
) -> NDArray[Any]:
    """Decode an image file's bytes, an array (H, W) or (H, W, C), or a PIL image to upright pixels.

    Returns (H, W, C) uint8, or uint16, int32 or float32 if the source has it. It may share memory with a given array.
    Only the first frame of an animation is read. Raises SourceError `not-an-image`, `truncated-image`,
    `too-many-pixels` or `unsupported-depth`, naming `key`, and ConversionError if memory is short.
    """
    if isinstance(source, np.ndarray):
        return from_array(source, color, key)
    header = read_image_header(source, max_pixels=max_pixels, key=key)
    data = source if isinstance(source, bytes) else b""
    return decode_file(data, header, color=color, key=key, on_decode=on_decode)


@dataclass(frozen=True, slots=True)
class ImageHeader:
    """The header of an image file.

    `size` is (height, width) as the image is shown, `channels` 1 or 3 and `dtype` as it is decoded. `jpeg` is the
    header of a JPEG file, `orientation` EXIF's number for its pixels, and `png` the header of a plain PNG file. `image`
    is the undecoded image of all other files, or a PIL image.
    """

    size: tuple[int, int]
    channels: int
    jpeg: JpegHeader | None = None
    image: Image.Image | None = None
    dtype: str = "uint8"
    orientation: int = 1
    png: PngHeader | None = None


def read_image_header(source: bytes | Image.Image, *, max_pixels: int = MAX_PIXELS, key: str = "image") -> ImageHeader:
    """Read the header of an image file, or of a PIL image, without decoding. Raises the errors of `decode_image`."""
    if not isinstance(source, bytes):
        check_pixels((source.height, source.width), max_pixels, key)
        return _header_of(source)
    data = source
    if (png := read_png_header(data)) is not None:
        check_pixels((png.height, png.width), max_pixels, key)
        return ImageHeader((png.height, png.width), png.channels, png=png)
    jpeg = read_header(data)
    if jpeg is not None and jpeg.is_plain:
        check_pixels((jpeg.height, jpeg.width), max_pixels, key)
        return ImageHeader((jpeg.height, jpeg.width), jpeg.components, jpeg)
    header = _header_of(open_image(data, max_pixels=max_pixels, key=key))
    return header if jpeg is None else replace(header, jpeg=jpeg, image=None, dtype="uint8")


def _header_of(image: Image.Image) -> ImageHeader:
    channels, turn = 3 if color_of(image.mode) == "color" else 1, orientation(image)
    size = image.size if turn >= 5 else image.size[::-1]
    return ImageHeader(size, channels, None, image, dtype_of(image.mode), turn)


def decode_file(
    data: bytes,
    header: ImageHeader,
    *,
    color: Color = "auto",
    key: str = "image",
    on_decode: OnDecode | None = None,
    scale: int = 1,
) -> NDArray[Any]:
    """Decode like `decode_image` after the header was read, a JPEG file at 1/`scale` (1, 2, 4 or 8), rounded up."""
    if on_decode is not None:
        on_decode(decoding_nbytes(header))
    if header.jpeg is None:
        image = header.image if header.png is None else decode_png(data, header.png)
        image = image or open_image(data, max_pixels=2**63, key=key)
        try:
            return from_image(_upright(image), color, key)
        except SourceError:
            raise
        except Exception as error:
            raise damaged(key, "this image is damaged", error) from error
    try:
        pixels = decode_jpeg(data, header.jpeg, channels=header.channels, scale=scale)
    except DamagedJpegError as error:
        raise damaged(key, "this image is damaged", error) from error
    transposed, upside_down, mirrored = TURNS[header.orientation]
    pixels = pixels.swapaxes(0, 1) if transposed else pixels
    pixels = np.ascontiguousarray(pixels[:: -1 if upside_down else 1, :: -1 if mirrored else 1])
    if color == "rgba":
        colors = from_array(pixels, "rgb", key)
        return np.concatenate([colors, np.full_like(colors[:, :, :1], 255)], axis=2)
    return from_array(pixels, color, key)


def decoding_nbytes(header: ImageHeader) -> int:
    """Estimated bytes of memory for decoding an image."""
    is_heif = header.image is not None and header.image.format in HEIF_FORMATS
    return math.prod(header.size) * (_PEAK_HEIF_NBYTES if is_heif else _PEAK_NBYTES)


def open_decoded(
    data: bytes, header: ImageHeader, *, color: Color = "auto", key: str = "image"
) -> Image.Image | NDArray[Any]:
    """Return the upright image as Pillow's own, for `from_image`, or the pixels of a JPEG, after the header was read.

    Pillow's image takes no more memory than its pixels. Converting it to an array takes two more copies. Raises the
    errors of `decode_image`.
    """
    if header.jpeg is not None:
        return decode_file(data, header, color=color, key=key)
    image = header.image or open_image(data, max_pixels=2**63, key=key)
    try:
        return _upright(image)
    except Exception as error:
        raise damaged(key, "this image is damaged", error) from error


def decode_mask(source: bytes | NDArray[Any] | Image.Image, *, max_pixels: int = MAX_PIXELS, key: str) -> NDArray[Any]:
    """Return the integers (H, W) of a mask: the indices of a palette, not its colors, or gray values of 8 or 16 bits.

    The gray values may be stored as RGB.

    `source` is an image file's bytes, an array (H, W) of integers, also with one more axis of length 1, or a PIL image.
    Raises SourceError as `decode_image`, `unsupported-depth` for colors, and `array-shape` for an array of a different
    shape.
    """
    if isinstance(source, np.ndarray):
        mask = source.squeeze() if source.ndim == 3 and 1 in source.shape else source
        if mask.ndim != 2 or mask.dtype.kind not in "biu":
            message = f"expected a mask (H, W) of integers, found shape {source.shape} of {source.dtype}."
            raise bad_image(key, "array-shape", message)
        return mask.astype(np.uint8) if mask.dtype == np.bool_ else mask
    image: Image.Image = open_image(source, max_pixels=max_pixels, key=key) if isinstance(source, bytes) else source
    is_gray = image.mode in _MASK_MODES or image.mode.startswith("I;16")
    if is_gray and isinstance(source, bytes) and read_header(source) is not None:
        return decode_file(source, read_image_header(source, max_pixels=max_pixels, key=key), key=key)[:, :, 0]
    try:
        pixels = np.asarray(_upright(image)) if is_gray or image.mode == "RGB" else np.empty(0)
    except Exception as error:
        raise damaged(key, "this mask is damaged", error) from error
    mask = pixels[:, :, 0] if pixels.ndim == 3 and (pixels == pixels[:, :, :1]).all() else pixels
    if mask.ndim != 2:
        message = f"expected a mask with a palette or in gray, found an image of the mode {image.mode}."
        advice = "Write the number of each pixel's class, or list name:red,green,blue of each class in labelmap.txt."
        raise SourceError(Problem(key, "unsupported-depth", message), advice)
    return mask.astype(np.uint8) if mask.dtype == np.bool_ else mask


def _upright(image: Image.Image) -> Image.Image:
    """Return the decoded image in its file's orientation."""
    if image.format == "TIFF":
        _load_tiff(image)
    image.load()
    steps = (Image.Transpose.TRANSPOSE, Image.Transpose.FLIP_TOP_BOTTOM, Image.Transpose.FLIP_LEFT_RIGHT)
    for step, is_needed in zip(steps, TURNS[orientation(image)], strict=True):
        image = image.transpose(step) if is_needed else image
    return image


def _load_tiff(image: Any) -> None:
    """Decode a TIFF file, whose numbers Pillow may get wrong."""
    for i, tile in enumerate(image.tile):
        if tile.codec_name == "libtiff":  # it gives numbers of 32 bits in the machine's order
            image.tile[i] = tile._replace(args=(tile.args[0].replace(";32B", ";32N"), *tile.args[1:]))
    image.load()
    kind = (image.mode, image.tag_v2.get(_SAMPLE_FORMAT))
    if kind[0] == "I" and kind[1] in (None, (1,)) and image.getextrema()[0] < 0:
        raise ValueError("it has numbers from 2**31, which Pillow takes for negative ones")
    if kind == ("L", (2,)) and image.getextrema()[1] > 127:
        raise ValueError("it has negative numbers of 8 bits, which Pillow cannot read")


def open_image(data: bytes | BinaryIO, *, max_pixels: int = MAX_PIXELS, key: str = "image") -> ImageFile.ImageFile:
    """Open an image file without decoding pixels. Raises the errors of `decode_image`."""
    try:
        if isinstance(data, bytes) and data.startswith(PNG):
            # Image.open without its search, which takes 1/10 of the whole conversion of small images.
            image: ImageFile.ImageFile = PngImageFile(io.BytesIO(data))
        else:
            file = io.BytesIO(data) if isinstance(data, bytes) else data
            image = open_heif(file, key) or Image.open(file, formats=FORMATS)
    except SourceError:
        raise
    except Image.DecompressionBombError as error:
        raise bad_image(key, "too-many-pixels", str(error)) from error
    except UnidentifiedImageError as error:
        if isinstance(data, bytes) and _MAGIC.match(data):
            message = "this image's header is damaged, or of a kind that Pillow does not read."
            raise bad_image(key, "truncated-image", message) from error
        raise no_image(data, key) from error
    except Exception as error:
        raise damaged(key, "this image's header is damaged", error) from error
    check_pixels((image.height, image.width), max_pixels, key)
    if image.format == "TIFF":
        _silence_libtiff()
        tags: Any = getattr(image, "tag_v2", {})
        bits, samples = max(tags.get(_BITS, (1,))), tags.get(_SAMPLES, 1)
        is_inverted = image.mode == "I;16" and tags.get(_PHOTOMETRIC, 0) == 0
        if is_inverted or samples > len(image.getbands()) or (samples > 1 and bits > 8):
            found = "16 bits with 0 for white" if is_inverted else f"{samples} channels of {bits} bits"
            message = f"this is a TIFF file of {found}, which Pillow does not read as they are."
            raise SourceError(Problem(key, "unsupported-depth", message), "Convert it to an array (.npy).")
    raw = str(image.tile[0][3]) if image.tile else ""
    if ";16" in raw and "BGR;16" not in raw and image.mode != "I" and image.mode[:2] != "I;":  # BMP has 16 bits a pixel
        message = "this is a 16-bit color image, and Pillow would keep only 8 bits."
        raise SourceError(Problem(key, "unsupported-depth", message), "Convert it to an array (.npy) to keep 16 bits.")
    return image


def no_image(data: bytes | BinaryIO, key: str) -> SourceError:
    """Return the error `not-an-image`."""
    found = "an empty file" if data == b"" else "something else"
    return bad_image(key, "not-an-image", f"expected an image file, found {found}.")


def check_pixels(size: tuple[int, int], max_pixels: int, key: str) -> None:
    """Raise an error for an image whose header gives a (height, width) with too many pixels."""
    height, width = size
    if width * height > max_pixels:
        message = f"this image's header has {width}x{height} pixels, the limit is {max_pixels}."
        raise SourceError(
            Problem(key, "too-many-pixels", message), "Raise the limit with `max_pixels`, if you trust it."
        )


def orientation(image: Image.Image) -> int:
    """Return EXIF's orientation number of an opened image, or 1 without one, or if its EXIF is damaged."""
    try:
        block = image.info.get("exif")  # not from `getexif`, which also reads XMP
        if not block:
            return 1
        exif = Image.Exif()
        exif.load(block)
        found = int(exif.get(_ORIENTATION, 1))
        return found if found in TURNS else 1
    except MemoryError:
        raise
    except Exception:
        return 1


def oriented_size(image: Image.Image) -> tuple[int, int]:
    """Return (height, width) of an opened image as shown, from its header."""
    width, height = image.size
    return (width, height) if orientation(image) >= 5 else (height, width)


def color_of(mode: str) -> str:
    """Return what ``color="auto"`` makes of a Pillow mode: gray, color, or its own name for more than 8 bits."""
    if mode in ("I", "F") or mode.startswith("I;16"):
        return mode
    return "gray" if mode in _GRAY_MODES else "color"


def dtype_of(mode: str) -> str:
    """Return the dtype of decoded pixels of a Pillow mode."""
    color = color_of(mode)
    return "uint8" if color in ("gray", "color") else {"I": "int32", "F": "float32"}.get(color, "uint16")


def further_frames(image: Image.Image, key: str) -> tuple[Problem, ...]:
    """Note that an opened image file has several frames, pages or images. Its pixels are not decoded yet."""
    try:
        is_animated = image.format in _WITH_FRAMES and getattr(image, "is_animated", False)
    except Exception:  # the second frame is damaged, which does not affect the first
        is_animated = True
    message = _FURTHER_IMAGES if image.format == "HEIF" else FURTHER_FRAMES
    return (Problem(key, "further-frames", message),) if is_animated else ()


def lost_alpha(image: Image.Image, key: str) -> tuple[Problem, ...]:
    """Note that a decoded image has transparent pixels, which are stored without their alpha."""
    if image.mode == "P" and "transparency" in image.info:
        image = image.convert("RGBA")
    if image.mode not in ("RGBA", "LA") or image.getchannel("A").getextrema() == (255, 255):
        return ()
    return (Problem(key, "alpha", ALPHA),)


logging.getLogger("PIL").addHandler(logging.NullHandler())  # keeps Pillow's log from being printed
_limits: list[int | None] = []  # Pillow's own, once for each thread or block that has replaced it
_limits_lock = threading.Lock()
#: As `warnings.filterwarnings` adds it. `warnings.catch_warnings` would not do: its threads overwrite each other's.
_NO_WARNINGS: Any = ("ignore", None, Warning, re.compile(r"PIL\."), 0)


@contextlib.contextmanager
def quiet_pillow() -> Iterator[None]:
    """Disable Pillow's limit on pixels, because `max_pixels` replaces it, and its warnings about damaged metadata.

    Pillow's own limit would warn below `max_pixels`, or reject what the user allowed. Pillow has one limit for all
    threads, and Python one list of filters. The last thread to leave restores both.
    """
    with _limits_lock:
        _limits.append(_limits[0] if _limits else Image.MAX_IMAGE_PIXELS)
        Image.MAX_IMAGE_PIXELS = None
        if _NO_WARNINGS not in warnings.filters:
            warnings.filters.insert(0, _NO_WARNINGS)  # type: ignore[attr-defined]
    try:
        yield
    finally:
        with _limits_lock:
            limit = _limits.pop()
            if not _limits:
                Image.MAX_IMAGE_PIXELS = limit
                with contextlib.suppress(ValueError):  # the user has restored all filters
                    warnings.filters.remove(_NO_WARNINGS)  # type: ignore[attr-defined]


@functools.cache
def _silence_libtiff() -> None:
    """Silence libtiff's messages on stderr: Pillow raises an error if pixels are missing."""
    with contextlib.suppress(OSError, AttributeError):  # on Windows, it is a part of Pillow without symbols
        library = ctypes.CDLL(PIL._imaging.__file__)
        for name in ("TIFFSetErrorHandler", "TIFFSetErrorHandlerExt", "TIFFSetWarningHandler"):
            handler = getattr(library, name)
            handler.argtypes, handler.restype = [ctypes.c_void_p], ctypes.c_void_p
            handler(None)


def from_image(image: Image.Image, color: Color, key: str) -> NDArray[Any]:
    """Convert a decoded image to (H, W, C) pixels like `decode_image`, some rows at a time for large images."""
    width, height = image.size
    lines = max(1, _COPIED_PIXELS // width)
    if height <= lines:
        return _from_small(image, color, key)
    pixels: NDArray[Any] = np.empty(0)
    for top in range(0, height, lines):
        band = _from_small(image.crop((0, top, width, min(height, top + lines))), color, key)
        pixels = pixels if top else np.empty((height, *band.shape[1:]), band.dtype)
        pixels[top : top + lines] = band
    return pixels


def _from_small(image: Image.Image, color: Color, key: str) -> NDArray[Any]:
    mode = image.mode
    if color_of(mode) == mode:
        array = np.asarray(image)
        return from_array(array.astype(array.dtype.newbyteorder("=")), color, key)
    wanted = _MODES.get(color) or ("L" if color_of(mode) == "gray" else "RGB")
    if mode != wanted:
        if mode == "P" and "transparency" in image.info:
            image = image.convert("RGBA")  # the only conversion for a palette with several transparent entries
        image = image.convert(wanted)
    width, height = image.size
    # np.asarray(image) does the same in more steps, which is slower for small images.
    return np.frombuffer(image.tobytes(), np.uint8).reshape(height, width, -1)


def from_array(array: NDArray[Any], color: Color, key: str) -> NDArray[Any]:
    """Convert an array to (H, W, C) pixels like `decode_image`."""
    if array.ndim == 2:
        array = array[:, :, None]
    if array.ndim != 3 or 0 in array.shape:
        raise bad_image(key, "array-shape", f"expected an image (H, W) or (H, W, C), found shape {array.shape}.")
    if array.dtype == np.bool_:
        array = array.astype(np.uint8) * np.uint8(255)
    dtype = array.dtype.newbyteorder("=")
    if dtype not in _DTYPES:
        raise bad_image(key, "unsupported-depth", f"expected numbers of at most 64 bits, found {array.dtype}.")
    array = array.astype(dtype, copy=False)
    channels = array.shape[2]
    if channels > MOST_CHANNELS:
        message = f"expected an image (H, W, C) of at most {MOST_CHANNELS} channels, found shape {array.shape}."
        raise bad_image(key, "array-shape", message)
    if color == "gray" and channels in (3, 4) and array.dtype == np.uint8:
        return np.asarray(as_image(array[:, :, :3]).convert("L"))[:, :, None]
    if color == "rgb" and channels in (1, 2):
        return np.repeat(array[:, :, :1], 3, axis=2)
    if color == "rgb" and channels == 4:
        return array[:, :, :3]
    if color in ("gray", "rgb", "rgba") and channels != {"gray": 1, "rgb": 3, "rgba": 4}[color]:
        raise bad_image(key, "unsupported-depth", f"{array.dtype} with {channels} channels cannot become {color}.")
    return array


def encode_png(pixels: NDArray[Any]) -> bytes:
    """Encode pixels (H, W, C), uint8 gray, RGB or RGBA, or uint16 gray, as a PNG file."""
    buffer = io.BytesIO()
    as_image(pixels).save(buffer, "PNG", compress_level=1)
    return buffer.getvalue()


def damaged(key: str, what: str, error: Exception) -> SourceError:
    """Return the error `truncated-image`. Pillow raises many kinds of exceptions for damaged files."""
    check_machine(key, error)
    return bad_image(key, "truncated-image", f"{what} ({error}).")


def bad_image(key: str, reason: str, message: str) -> SourceError:
    """Return the error for the image `key`."""
    return SourceError(Problem(key, reason, message))
