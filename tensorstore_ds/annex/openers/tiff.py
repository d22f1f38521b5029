"""TIFF and BigTIFF files read by parts, so that a large image never has to fit into memory.

The header is read here, and every size that it states is checked before memory is taken. tifffile and imagecodecs (the
extra ``tiff``) decode the tiles and strips. Without them, Pillow reads TIFF files whole.
"""

from __future__ import annotations

import contextlib
import functools
import io
import logging
import math
import struct
import weakref
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, BinaryIO, cast

import numpy as np
from numpy.typing import NDArray

from tensorstore_ds.errors import ConversionError, Problem, SourceError
from tensorstore_ds.format.schema import MOST_CHANNELS
from tensorstore_ds.imaging import MAX_PIXELS, Color
from tensorstore_ds.imaging.codecs import ALPHA, FURTHER_FRAMES, OnDecode, bad_image, damaged, from_array
from tensorstore_ds.imaging.jpeg import read_header
from tensorstore_ds.imaging.picture import LARGE_NBYTES, Picture
from tensorstore_ds.machine import memory_limit

#: Approximate bytes of pixels decoded at a time.
BAND_NBYTES = 64 * 1024**2
#: Maximum bytes of pixels in a compressed tile or strip.
SEGMENT_NBYTES = 256 * 1024**2
#: Decoded tiles that are cached for the next part.
_KEPT_NBYTES = 128 * 1024**2
#: Limits: bytes of all tags together, number of tags, and number of pages that are checked.
_TAG_NBYTES, _MOST_TAGS, _MOST_PAGES = 64 * 1024**2, 4096, 10_000

_TYPES = {1: 1, 2: 1, 3: 2, 4: 4, 5: 8, 6: 1, 7: 1, 8: 2, 9: 4, 10: 8, 11: 4, 12: 8, 13: 4, 16: 8, 17: 8, 18: 8}
_NUMBERS = {1: "u1", 3: "u2", 4: "u4", 13: "u4", 16: "u8", 18: "u8"}
_SUBFILE, _WIDTH, _HEIGHT, _BITS, _COMPRESSION, _PHOTOMETRIC = 254, 256, 257, 258, 259, 262
_STRIPS, _ORIENTATION, _SAMPLES, _ROWS, _STRIP_NBYTES, _PLANAR = 273, 274, 277, 278, 279, 284
_COLORMAP, _TILE_WIDTH, _TILE_HEIGHT, _TILES, _TILE_NBYTES = 320, 322, 323, 324, 325
_EXTRA, _FORMAT, _DEPTH = 338, 339, 32997
_UNCOMPRESSED, _OLD_JPEG, _JPEG = 1, 6, 7
#: Their decoders return at most the requested bytes; JPEG's header is read before.
_COMPRESSIONS = {1, 5, _JPEG, 8, 32773, 32946, 34925, 50000}
#: (sample format, bits) of gray pixels of more than 8 bits that Pillow reads as they are.
_PILLOW_NUMBERS = {(1, 12), (1, 16), (2, 16), (2, 32), (3, 32)}
_WHITE_IS_ZERO, _BLACK_IS_ZERO, _RGB, _PALETTE, _YCBCR = 0, 1, 2, 3, 6
#: An image that is resized or encoded as a whole takes about this many times its pixels.
_COPIES = 3
_BY_PARTS = 'Use `encoding="raw"` or `encoding="jpeg"` without a size, which read it by parts, or `tiles`.'
_INSTALL = "Install it with: pip install '.[tiff]' in a clone of tensorstore-ds."


class _Odd(Exception):
    """Damaged header of a file; the message describes the damage."""


@dataclass(frozen=True, slots=True)
class _Header:
    """Content of the first page of a TIFF file."""

    tags: dict[int, NDArray[np.uint64]]
    is_little: bool
    nbytes: int  #: of the file

    def one(self, tag: int, default: int = 0) -> int:
        values = self.tags.get(tag)
        return default if values is None or not len(values) else int(values[0])

    @property
    def size(self) -> tuple[int, int]:
        """(height, width) as stored."""
        return self.one(_HEIGHT), self.one(_WIDTH)

    @property
    def samples(self) -> int:
        return self.one(_SAMPLES, 1)

    @property
    def bits(self) -> int:
        return self.one(_BITS, 1)

    @property
    def dtype(self) -> np.dtype[Any] | None:
        kind = {1: "u", 2: "i", 3: "f"}.get(self.one(_FORMAT, 1))
        if kind is None or self.bits not in (8, 16, 32, 64) or (kind == "f" and self.bits == 8):
            return None
        return np.dtype(f"{'<' if self.is_little else '>'}{kind}{self.bits // 8}")

    @property
    def pixel_nbytes(self) -> int:
        return self.samples * -(-self.bits // 8)

    @property
    def is_tiled(self) -> bool:
        return _TILES in self.tags

    @property
    def segment(self) -> tuple[int, int]:
        """(height, width) of a tile or strip."""
        height, width = self.size
        if self.is_tiled:
            return self.one(_TILE_HEIGHT), self.one(_TILE_WIDTH)
        return min(height, self.one(_ROWS, height)), width

    @property
    def planes(self) -> int:
        """Number of planes, stored one after the other."""
        return self.samples if self.one(_PLANAR, 1) == 2 else 1

    @property
    def is_large(self) -> bool:
        return math.prod(self.size) * self.pixel_nbytes >= LARGE_NBYTES

    @property
    def alpha(self) -> int:
        """Type of the first channel beyond the colors: 1 and 2 are alpha, 0 is not."""
        return self.one(_EXTRA)

    @property
    def colors(self) -> int:
        """Number of channels of colors."""
        return 3 if self.one(_PHOTOMETRIC) in (_RGB, _PALETTE, _YCBCR) else 1

    @property
    def has_alpha(self) -> bool:
        """Whether the channel behind the colors is alpha."""
        return self.alpha in (1, 2) and self.samples == self.colors + 1

    @property
    def is_for_pillow(self) -> bool:
        """Whether Pillow reads these pixels without loss."""
        if self.one(_COMPRESSION) == _OLD_JPEG:
            return self.bits <= 8  # its files often lack the tags of samples and bits
        photometric, colors = self.one(_PHOTOMETRIC), {_RGB: 3, _YCBCR: 3, 5: 4, 8: 3}
        expected = colors.get(photometric, 1)
        many = {expected, expected + 1} if self.alpha in (1, 2) else {expected}
        numbers = (self.one(_FORMAT, 1), self.bits)
        if self.bits <= 8:
            return self.samples in many and numbers != (2, 8)
        return self.samples == 1 and photometric == _BLACK_IS_ZERO and numbers in _PILLOW_NUMBERS

    def unsupported(self) -> str:
        """Reason why it cannot be read in parts; empty if it can."""
        photometric, compression = self.one(_PHOTOMETRIC), self.one(_COMPRESSION, 1)
        if self.dtype is None:
            return f"pixels of {self.bits} bits"
        if len(set(self.tags.get(_BITS, np.zeros(1)).tolist())) > 1:
            return "channels of differing bits"
        if compression not in _COMPRESSIONS:
            return f"the compression {compression}"
        if photometric == _YCBCR and compression != _JPEG:
            return "YCbCr colors that are not JPEG"
        if photometric not in (_WHITE_IS_ZERO, _BLACK_IS_ZERO, _RGB, _PALETTE, _YCBCR):
            return f"the color space {photometric}"
        if photometric == _PALETTE and (
            self.bits != 8 or self.samples != 1 or len(self.tags.get(_COLORMAP, ())) != 768
        ):
            return "a palette of other than 256 colors"
        if self.alpha == 1 and photometric == _RGB and self.bits == 8:
            return "alpha that the colors are multiplied by"
        if self.one(_DEPTH, 1) != 1:
            return "a volume"
        return ""

    def problem(self) -> str:
        """Error in the sizes that the header states; empty if there is none."""
        (height, width), (tall, wide) = self.size, self.segment
        sides = height, width, tall, wide
        if min(*sides, self.samples) < 1 or max(sides) >= 2**31 or self.segment_nbytes >= 2**63:
            return f"expected an image and tiles with pixels, found {width}x{height} in tiles of {wide}x{tall}."
        if self.samples > MOST_CHANNELS:
            return f"expected at most {MOST_CHANNELS} channels, found {self.samples}."
        kind = "tiles" if self.is_tiled else "strips"
        offsets, counts = self.segments
        expected = -(-height // tall) * -(-width // wide) * self.planes
        if len(offsets) != expected or len(counts) != expected:
            found = f"found {len(offsets):,} places and {len(counts):,} lengths"
            return f"expected {expected:,} {kind} of {wide}x{tall} for {width}x{height} pixels, {found}."
        beyond = np.flatnonzero((offsets > self.nbytes) | (counts > self.nbytes - np.minimum(offsets, self.nbytes)))
        if len(beyond):
            return f"expected {kind} inside of the file of {self.nbytes:,} bytes, found number {beyond[0]:,} beyond it."
        decoded = self.segment_nbytes
        if self.one(_COMPRESSION, 1) == _UNCOMPRESSED:
            least = np.full(expected, decoded, np.uint64)
            if not self.is_tiled:  # the last strip of each plane may be shorter
                last = (height - 1) % tall + 1
                least.reshape(self.planes, -1)[:, -1] = decoded // tall * last
            short = np.flatnonzero((counts < least) & (counts > 0))
            if len(short):
                i = short[0]
                return f"expected {least[i]:,} bytes for number {i:,} of the {kind}, found {counts[i]:,}."
        if not self.by_rows:
            if decoded > SEGMENT_NBYTES:
                limit = SEGMENT_NBYTES // 1024**2
                return f"expected {kind} of at most {limit} MiB, found {wide}x{tall} pixels. Write smaller ones."
            absurd = np.flatnonzero(counts > 2 * decoded + 65536)
            if len(absurd):
                i, most = absurd[0], 2 * decoded + 65536
                return f"expected at most {most:,} bytes for number {i:,} of the {kind}, found {counts[i]:,}."
        return ""

    @property
    def segments(self) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
        """Offset and number of bytes of each tile or strip."""
        none = np.empty(0, np.uint64)
        names = (_TILES, _TILE_NBYTES) if self.is_tiled else (_STRIPS, _STRIP_NBYTES)
        return self.tags.get(names[0], none), self.tags.get(names[1], none)

    @property
    def segment_nbytes(self) -> int:
        """Bytes of the pixels of a tile or strip."""
        return math.prod(self.segment) * (self.pixel_nbytes // self.planes)

    @property
    def by_rows(self) -> bool:
        """Whether single rows can be read: the strips are not compressed."""
        return self.one(_COMPRESSION, 1) == _UNCOMPRESSED and not self.is_tiled and self.one(266, 1) == 1


class TiffImage(Picture):
    """An image in a TIFF file that can be read in parts.

    `is_file` is True if Pillow can also read the file. `left_out` reports other pages, except smaller copies.
    """

    def __init__(self, file: BinaryIO, header: _Header, color: Color, key: str, has_pages: bool) -> None:
        self._file, self._header, self._color, self._key = file, header, color, key
        self.is_file = header.is_for_pillow and math.prod(header.size) <= MAX_PIXELS
        self.file_nbytes, self.is_large, self.is_recolored = header.nbytes, header.is_large, color != "auto"
        self.left_out = (Problem(key, "further-frames", FURTHER_FRAMES),) if has_pages else ()
        self._stored_dtype = cast("np.dtype[Any]", header.dtype)  # checked by `_Header.unsupported`
        self._finalizer = weakref.finalize(self, file.close)
        self._orientation = header.one(_ORIENTATION, 1) if 1 <= header.one(_ORIENTATION, 1) <= 8 else 1
        self._kept: OrderedDict[int, NDArray[Any]] = OrderedDict()
        file.seek(0)
        try:
            self._page: Any = None if header.by_rows else _tifffile().TiffFile(file, name="image.tif").pages.first
        except Exception as error:
            raise damaged(key, "this image's header is damaged", error) from error
        height, width = header.size[::-1] if self._orientation >= 5 else header.size
        pixel = self._finished(np.zeros((1, 1, header.samples), self._stored_dtype.newbyteorder("=")))
        self.shape = (height, width, pixel.shape[2])
        self.dtype = pixel.dtype

    @property
    def is_turned(self) -> bool:
        return self._orientation >= 5

    def close(self) -> None:
        self._kept.clear()
        self._finalizer()

    def pixels(self, scale: int = 1, on_decode: OnDecode | None = None) -> NDArray[Any]:
        needed = _COPIES * self.nbytes
        if needed > (limit := memory_limit()):
            what = f"{needed:,} bytes of memory are needed to resize or encode it as a whole"
            raise ConversionError(f"{self._key}: {what}, {limit:,} may be used. {_BY_PARTS}")
        if on_decode is not None:
            on_decode(needed)
        pixels = self.read(0, 0, *self.size)
        self.close()
        return pixels

    def read(self, top: int, left: int, bottom: int, right: int) -> NDArray[Any]:
        height, width, _ = self.shape
        turned = self._orientation
        if turned in (2, 3, 6, 7):  # the right side is stored first
            left, right = width - right, width - left
        if turned in (3, 4, 7, 8):  # the lower side is stored first
            top, bottom = height - bottom, height - top
        stored = self._stored(left, top, right, bottom) if turned >= 5 else self._stored(top, left, bottom, right)
        pixels = stored.transpose(1, 0, 2) if turned >= 5 else stored
        if turned in (2, 3, 6, 7):
            pixels = pixels[:, ::-1]
        if turned in (3, 4, 7, 8):
            pixels = pixels[::-1]
        is_dropped = self._header.has_alpha and self._color != "rgba" and pixels.dtype.kind == "u"
        if is_dropped and (pixels[:, :, -1] != np.iinfo(pixels.dtype).max).any():
            self.left_out = tuple(dict.fromkeys((*self.left_out, Problem(self._key, "alpha", ALPHA))))
        return self._finished(np.ascontiguousarray(pixels))

    def bands(self, on_decode: OnDecode | None = None) -> Iterator[NDArray[Any]]:
        height, width, _ = self.shape
        header = self._header
        if on_decode is not None:
            on_decode(3 * max(BAND_NBYTES, min(SEGMENT_NBYTES, header.segment[0] * width * 8)))
        row_nbytes = width * header.pixel_nbytes
        aimed = max(1, BAND_NBYTES // row_nbytes)
        step = 1 if header.by_rows and self._orientation < 5 else header.segment[1 if self._orientation >= 5 else 0]
        lines = aimed // step * step if step <= aimed else step if step * row_nbytes <= SEGMENT_NBYTES else aimed
        for top in range(0, height, lines):
            self._kept.clear()
            yield self.read(top, 0, min(top + lines, height), width)

    def _finished(self, pixels: NDArray[Any]) -> NDArray[Any]:
        header = self._header
        photometric = header.one(_PHOTOMETRIC)
        if photometric == _WHITE_IS_ZERO and pixels.dtype.kind == "u":
            pixels = np.iinfo(pixels.dtype).max - pixels
        elif photometric == _PALETTE:
            palette = (header.tags[_COLORMAP].reshape(3, 256).T >> np.uint64(8)).astype(np.uint8)
            pixels = palette[pixels[:, :, 0]]
        colors = header.colors
        shown, alpha = pixels[:, :, :colors], pixels[:, :, colors:]
        if header.has_alpha and self._color != "rgba":
            pixels = shown
        elif self._color == "rgba" and pixels.dtype == np.uint8 and (header.has_alpha or not alpha.shape[2]):
            shown = np.repeat(shown, 3, axis=2) if colors == 1 else shown
            alpha = alpha if header.has_alpha else np.full((*pixels.shape[:2], 1), 255, np.uint8)
            pixels = np.concatenate([shown, alpha], axis=2)
        return from_array(pixels, self._color, self._key)

    def _stored(self, top: int, left: int, bottom: int, right: int) -> NDArray[Any]:
        """A part as stored, before the orientation, in native byte order."""
        header = self._header
        tall, wide = header.segment
        own = self._stored_dtype.newbyteorder("=")
        result = np.zeros((bottom - top, right - left, header.samples), own)
        per_line = -(-header.size[1] // wide)
        per_plane = -(-header.size[0] // tall) * per_line
        for plane in range(header.planes):
            channels = slice(plane, plane + 1) if header.planes > 1 else slice(None)
            for down in range(top // tall, -(-bottom // tall)):
                first, last = max(top, down * tall), min(bottom, (down + 1) * tall)
                for across in range(left // wide, -(-right // wide)):
                    begin, end = max(left, across * wide), min(right, (across + 1) * wide)
                    number = plane * per_plane + down * per_line + across
                    lines = slice(first - down * tall, last - down * tall)
                    pixels = self._rows(number, lines) if header.by_rows else self._segment(number)[lines]
                    part = pixels[:, begin - across * wide : end - across * wide]
                    result[first - top : last - top, begin - left : end - left, channels] = part
        return result

    def _rows(self, number: int, lines: slice) -> NDArray[Any]:
        """Some rows of an uncompressed strip."""
        header = self._header
        offsets, counts = header.segments
        samples, width = header.samples // header.planes, header.size[1]
        line = width * samples * self._stored_dtype.itemsize
        if not counts[number]:
            return np.zeros((lines.stop - lines.start, width, samples), self._stored_dtype)
        data = self._bytes(int(offsets[number]) + lines.start * line, (lines.stop - lines.start) * line)
        return np.frombuffer(data, self._stored_dtype).reshape(-1, width, samples)

    def _segment(self, number: int) -> NDArray[Any]:
        """(h, w, samples) of a tile or strip; the last ones used are cached."""
        if number in self._kept:
            self._kept.move_to_end(number)
            return self._kept[number]
        header = self._header
        offsets, counts = header.segments
        tall, wide = header.segment
        samples = header.samples // header.planes
        if not counts[number]:  # a hole
            return np.zeros((tall, wide, samples), self._stored_dtype)
        data = self._bytes(int(offsets[number]), int(counts[number]))
        compression = header.one(_COMPRESSION, 1)
        if compression == _UNCOMPRESSED:
            data = data[: header.segment_nbytes]
        try:
            if compression == _JPEG:
                found = read_header(data)
                if found is None or found.height > tall or found.width > wide or found.components != samples:
                    raise ValueError("a JPEG image of another size or kind than its tile")
            pixels, _, _ = self._page.decode(data, number, jpegtables=self._page.jpegtables)
            pixels = np.asarray(pixels).reshape(-1, *pixels.shape[-2:])
            height = tall if header.is_tiled else min(tall, header.size[0] - number % -(-header.size[0] // tall) * tall)
            if pixels.shape[2] != samples or pixels.shape[0] < min(height, tall) or pixels.shape[1] < 1:
                raise ValueError(f"{'x'.join(map(str, pixels.shape))} numbers in a tile")
        except Exception as error:
            kind = "tile" if header.is_tiled else "strip"
            raise damaged(self._key, f"{kind} {number:,} of this image is damaged", error) from error
        self._kept[number] = pixels
        while len(self._kept) > 1 and sum(each.nbytes for each in self._kept.values()) > _KEPT_NBYTES:
            self._kept.popitem(last=False)
        return pixels

    def _bytes(self, offset: int, nbytes: int) -> bytes:
        try:
            self._file.seek(offset)
            data = self._file.read(nbytes)
        except OSError as error:
            raise damaged(self._key, "this image cannot be read", error) from error
        if len(data) != nbytes:
            raise bad_image(self._key, "truncated-image", "this image ends before its last tile or strip.")
        return data


def open_tiff(file: BinaryIO, *, color: Color = "auto", key: str = "image") -> TiffImage | None:
    """An image to be read in parts, or whose pixels Pillow cannot read; None for all others.

    Closes `file`, unless the image owns it. Raises `SourceError` if sizes contradict each other or the file, or a
    library is missing.
    """
    with contextlib.ExitStack() as stack:
        stack.callback(file.close)
        try:
            header, following = _read_header(file)
        except _Odd:
            return None  # Pillow says what is wrong
        fits_pillow = header.is_for_pillow and math.prod(header.size) <= MAX_PIXELS
        if header.is_for_pillow and not header.is_large:
            return None
        if unsupported := header.unsupported():
            if header.is_for_pillow and fits_pillow:
                return None
            message = f"TIFF files with {unsupported} are not read by parts."
            advice = "Write it with 8 or 16 bits, gray or RGB, and without compression or with deflate."
            raise SourceError(Problem(key, "unsupported-depth", message), advice)
        if problem := header.problem():
            raise bad_image(key, "truncated-image", f"this image's header is damaged: {problem}")
        if _tifffile() is None:
            if fits_pillow:
                return None
            message = "this TIFF file is read with the libraries tifffile and imagecodecs, which are missing."
            raise SourceError(Problem(key, "unsupported-depth", message), _INSTALL)
        image = TiffImage(file, header, color, key, _has_pages(file, header.is_little, following))
        stack.pop_all()
        return image


@functools.cache
def _tifffile() -> Any:
    """The library; None without the extra."""
    try:
        import imagecodecs  # noqa: F401  # without it, a tile could expand to any size
        import tifffile
    except ImportError:
        return None
    logging.getLogger("tifffile").setLevel(logging.CRITICAL)  # what it warns of is checked here
    return tifffile


def _read_header(file: BinaryIO) -> tuple[_Header, tuple[int, int, bool]]:
    """Tags of the first page; positions of it and the next one, and whether it is a BigTIFF; raises `_Odd`."""
    nbytes = file.seek(0, io.SEEK_END)
    file.seek(0)
    head = file.read(16)
    if head[:4] not in (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+") or len(head) < 8:
        raise _Odd("no TIFF file")
    is_little, is_big = head[:2] == b"II", head[2:4] in (b"+\0", b"\0+")
    order = "<" if is_little else ">"
    if is_big and (len(head) < 16 or struct.unpack(f"{order}HH", head[4:8]) != (8, 0)):
        raise _Odd("no BigTIFF file")
    (at,) = struct.unpack(f"{order}Q", head[8:16]) if is_big else struct.unpack(f"{order}I", head[4:8])
    tags, following = _read_page(file, order, is_big, at, nbytes)
    header = _Header(tags, is_little, nbytes)
    if min(header.size) < 1:
        raise _Odd("no pixels")
    return header, (at, following, is_big)


def _read_page(
    file: BinaryIO, order: str, is_big: bool, at: int, nbytes: int, only: int = 0
) -> tuple[dict[int, NDArray[np.uint64]], int]:
    """Numeric tags of a page, or one of them, and the position of the next page, 0 for none; raises `_Odd`."""
    entry, inline = ("HHQ8s", 8) if is_big else ("HHI4s", 4)
    count_of = "Q" if is_big else "H"
    if at >= nbytes:
        raise _Odd("a page beyond the end")
    file.seek(at)
    head = file.read(struct.calcsize(order + count_of))
    if len(head) != struct.calcsize(order + count_of):
        raise _Odd("a page beyond the end")
    (count,) = struct.unpack(order + count_of, head)
    length = struct.calcsize(order + entry)
    if not 0 < count <= _MOST_TAGS:
        raise _Odd(f"{count} tags")
    data = file.read(count * length + inline)
    if len(data) < count * length:
        raise _Odd("a page beyond the end")
    tags, total = {}, 0
    for i in range(count):
        tag, kind, many, value = struct.unpack_from(order + entry, data, i * length)
        size = _TYPES.get(kind, 1) * many
        total += size
        (place,) = struct.unpack(order + ("Q" if is_big else "I"), value)
        if size > inline and (total > _TAG_NBYTES or place > nbytes or place + size > nbytes):
            raise _Odd(f"the tag {tag} has {size:,} bytes")
        if kind in _NUMBERS and only in (0, tag):
            if size > inline:
                file.seek(place)
                value = file.read(size)
            dtype = np.dtype(order + _NUMBERS[kind])
            tags[tag] = np.frombuffer(value[:size], dtype).astype(np.uint64)
    rest = data[count * length :]
    following = struct.unpack(order + ("Q" if is_big else "I"), rest)[0] if len(rest) == inline else 0
    return tags, following


def _has_pages(file: BinaryIO, is_little: bool, pages: tuple[int, int, bool]) -> bool:
    """Whether a page after the first is not a smaller copy."""
    first, at, is_big = pages
    nbytes, seen = file.seek(0, io.SEEK_END), {first}
    while at and at not in seen and len(seen) < _MOST_PAGES:
        seen.add(at)
        try:
            tags, at = _read_page(file, "<" if is_little else ">", is_big, at, nbytes, _SUBFILE)
        except _Odd:  # the first page does not need it
            return True
        if not tags.get(_SUBFILE, np.zeros(1, np.uint64))[0] & np.uint64(1):
            return True
    return False
