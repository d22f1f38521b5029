"""Read JPEG files whole, at 1/2, 1/4 or 1/8, or only a part, and write files from which parts can be cut.

A scan with restart markers is a sequence of intervals that can each be decoded separately. The intervals around a part,
after the file's header with a different height and width, and with renumbered markers, are a JPEG file of that part.
Any decoder reads it to the same bits, so cutting is lossless. Slide readers do this (OpenSlide, Bio-Formats).

A scan without restart markers can be decoded from any position with known bit and DC predictions: `entries`.

The format is ITU-T T.81. Parts are cut from its sequential mode, Huffman-coded, with 8 bits and one scan.
"""

from __future__ import annotations

import functools
import io
import math
import re
from collections.abc import Iterable, Iterator
from typing import BinaryIO, Literal, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from tensorstore_ds import native
from tensorstore_ds.imaging.resizing import as_image

try:
    import simplejpeg
except ImportError:  # no wheel for musl and free-threaded Python: Pillow is slower, and copies the pixels twice
    simplejpeg = None

#: First bytes of a JPEG file.
JPEG = b"\xff\xd8"
#: A file in memory.
Bytes = bytes | bytearray | memoryview
Subsampling = Literal["4:2:0", "4:4:4"]
#: Number of pixels that libjpeg writes in a row, and number of rows.
MOST_SIDE = 65_500
#: Number of image pixels per chroma pixel, in both directions.
_SUBSAMPLING: dict[Subsampling, int] = {"4:2:0": 2, "4:4:4": 1}
#: Target number of pixels between restart markers: more cost less space (here 2 %), and fewer decode less in vain.
_INTERVAL_PIXELS = 64
#: Number of units of a row from one entry to the next.
_ENTRY_UNITS = 4
#: Maximum bytes of a file with entries: the position of a bit is a uint32.
_ENTRY_NBYTES = 2**29 - 1
#: Sampling factors of the first of 3 components, with 0x11 for the others, in files that can have entries.
_ENTRY_FACTORS = (0x11, 0x12, 0x21, 0x22)

SCALES = (8, 4, 2)  #: for which decoders have fast code; others, such as 7/8, take twice as long as the whole image
_SOI, _EOI, _SOS, _DRI = 0xD8, 0xD9, 0xDA, 0xDD
_SEQUENTIAL = (0xC0, 0xC1)  # baseline, extended: Huffman-coded
_FRAMES = frozenset((*range(0xC0, 0xD0),)) - {0xC4, 0xC8, 0xCC}
_TABLES = (0xC4, 0xDB, _DRI)
_BLOCK = 8
#: Files that simplejpeg rejects and Pillow reads. Every libjpeg warning means damage, on which Pillow is silent,
_UNSUPPORTED = ("subsampling", "color conversion")
_BEHIND = "before marker 0xd9"  #: except this one about bytes behind the pixels, and those of `_with_plain_header`.
#: Begin of a marker. Decoders skip everything before it.
_MARKER = re.compile(rb"\xff[^\x00\xff]")
#: The transforms of Adobe's segment by the number of components: for others, libjpeg uses the last one, and warns.
_ADOBE_TRANSFORMS = {3: (0, 1), 4: (0, 2)}


class DamagedJpegError(ValueError):
    """A JPEG file whose pixels cannot be decoded. Callers add the name of the sample."""


class JpegSegment(NamedTuple):
    """A part of an image, in pixels."""

    top: int
    left: int
    bottom: int
    right: int

    @property
    def height(self) -> int:
        """Number of lines."""
        return self.bottom - self.top

    @property
    def width(self) -> int:
        """Number of columns."""
        return self.right - self.left


class JpegHeader(NamedTuple):
    """The header of a JPEG file.

    `height` and `width` are as stored, before any orientation. `components` is 1 (gray), 3 (color) or 4 (CMYK).
    `has_metadata` if there may be an EXIF orientation. `head` has the segments that decoding needs, from SOI to SOS.
    Pixels begin at `start`. `interval` is the number of units between restart markers, or 0. `frame` is the segment
    with size and components, for one sequential Huffman-coded scan only, and `scan` the layout of pixels that can be
    cut.
    """

    height: int
    width: int
    components: int
    has_metadata: bool
    head: bytes
    start: int
    interval: int
    frame: bytes
    scan: Scan | None

    @property
    def is_plain(self) -> bool:
        """Whether the file is gray or color, and shown as it is stored, so that `decode_jpeg` suffices."""
        return self.components != 4 and not self.has_metadata


class Scan(NamedTuple):
    """The pixels of a JPEG file, as intervals between restart markers in a grid of `rows` x `columns`.

    `size_at` is the position of height and width in `head`. `step` is the (height, width) of an interval in pixels. A
    part depends on `margin` pixels around it, because chroma is interpolated.
    """

    size_at: int
    rows: int
    columns: int
    step: tuple[int, int]
    margin: int


def read_header(data: Bytes) -> JpegHeader | None:
    """Return the header of a JPEG file with 8 bits per sample, or None for other and damaged files."""
    if data[:3] != b"\xff\xd8\xff":
        return None
    kept, at, size_at, interval, has_metadata = [data[:2]], 2, 0, 0, False
    frame: Bytes = b""
    kept_nbytes, marker_of_frame, is_plain = 2, 0, True
    while True:
        head = data[at : at + 4]
        if len(head) < 4:
            return None
        if head[0] != 0xFF or head[1] in (0, 0xFF):  # fill bytes
            found = _MARKER.search(data, at)
            if found is None:
                return None
            at, is_plain = found.start(), False
            continue
        marker, end = head[1], at + 2 + (head[2] << 8 | head[3])
        segment = data[at:end]
        if marker < 0xC0 or 0xD0 <= marker <= _EOI or end < at + 4 or len(segment) != end - at:
            return None
        if marker in _FRAMES:
            is_plain &= not frame
            frame, marker_of_frame, size_at = segment, marker, kept_nbytes + 5
        elif marker == _DRI:
            if len(segment) != 6:
                return None
            interval = segment[4] << 8 | segment[5]
        elif marker == 0xE1:
            has_metadata = True
        needed = marker in _TABLES or marker in _FRAMES or marker == _SOS
        if needed or segment[4:9] == b"JFIF\0" or (marker == 0xEE and segment[4:9] == b"Adobe"):
            kept.append(segment)
            kept_nbytes += len(segment)
        at = end
        if marker == _SOS:
            break
    if len(frame) < 10 or frame[4] != 8 or len(frame) != 10 + 3 * frame[9]:
        return None
    height, width, components = frame[5] << 8 | frame[6], frame[7] << 8 | frame[8], frame[9]
    if not height or not width or components not in (1, 3, 4):  # the height may follow after the scan
        return None
    complete = len(segment) == 8 + 2 * components and segment[4] == components and segment[-3:] == b"\0\x3f\0"
    own = bytes(frame) if is_plain and complete and marker_of_frame in _SEQUENTIAL else b""
    scan = _scan(own, size_at, interval) if own and interval else None
    return JpegHeader(height, width, components, has_metadata, b"".join(kept), at, interval, own, scan)


def _scan(frame: Bytes, size_at: int, interval: int) -> Scan | None:
    """Return the grid of the intervals, or None if they form none, or the chroma has an unusual size."""
    height, width, components = frame[5] << 8 | frame[6], frame[7] << 8 | frame[8], frame[9]
    factors = [(each >> 4, each & 15) for each in frame[11::3]]
    most = max(h for h, _ in factors), max(v for _, v in factors)
    if any(h not in (1, most[0]) or v not in (1, most[1]) for h, v in factors) or max(most) > 4 or min(most) < 1:
        return None
    if components == 1:  # with a single component, each block is a unit, whatever its factors are
        most = (1, 1)
    unit_height, unit_width = _BLOCK * most[1], _BLOCK * most[0]
    units = -(-width // unit_width)
    if units % interval and interval % units:
        return None
    lines = max(1, interval // units)  # an interval is a part of a line, or several lines
    step = unit_height * lines, unit_width * min(interval, units)
    return Scan(size_at, -(-height // step[0]), -(-units // interval) or 1, step, max(most))


def find_restarts(data: bytes) -> NDArray[np.uint32]:
    """Return the position after each restart marker in order, (markers,), or none if the file cannot be cut.

    Such a file has no markers, too few or too many for its size, or wrongly numbered ones; or it is progressive,
    arithmetic-coded, of more than 8 bits, of several scans, or no JPEG file at all.
    """
    none = np.empty(0, np.uint32)
    header = read_header(data)
    if header is None or header.scan is None:
        return none
    places, codes = _markers_behind(data, header.start)
    end = np.flatnonzero(codes & 0xF8 != 0xD0)  # the first other marker: the image must end there
    if not len(end) or codes[end[0]] != _EOI:
        return none
    restarts = (places[: end[0]] + 2).astype(np.uint32)
    return none if _bounds(data, header.start, header.scan, restarts) is None else restarts


def _markers_behind(data: Bytes, start: int) -> tuple[NDArray[np.int64], NDArray[np.uint8]]:
    """Return the position of each marker (n,), and its second byte (n,). FF 00 is a byte FF of the pixels."""
    array = np.frombuffer(data, np.uint8)
    places = np.flatnonzero(array[start:-1] == 0xFF) + start
    codes = array[places + 1]
    return places[codes != 0], codes[codes != 0]


def find_entries(data: bytes) -> NDArray[np.uint32]:
    """Return where decoding can begin (M, 3), none if impossible or without `native.core`: formats/v1/spec.md, 6.7."""
    return np.frombuffer(native.index(data), np.uint32).reshape(-1, 3)


def wrong_entries(data: bytes, entries: NDArray[np.uint32]) -> str:
    """Return what is wrong with the entries of a file, (M, 3) and at least one, or an empty string.

    Without `native.core`, only properties that need no walk through the pixels are checked.
    """
    header = read_header(data)
    units = None if header is None else _entry_units(header)
    if header is None or units is None or len(data) > _ENTRY_NBYTES:
        return f"expected no entries for a file that cannot have any, found {len(entries)}"
    expected = units[0] * -(-units[1] // _ENTRY_UNITS)
    if len(entries) != expected:
        return f"expected {expected} entries, found {len(entries)}"
    ends, codes = _markers_behind(data, header.start)
    if not len(ends) or codes[0] != _EOI:
        return f"expected no entries for a file that does not end behind its first scan, found {len(entries)}"
    positions, start, end = entries[:, 0].astype(np.int64), 8 * header.start, 8 * int(ends[0])
    wrong = (np.diff(positions, prepend=start - 1) <= 0) | (positions >= end)
    wrong[0] |= positions[0] != start
    for i in np.flatnonzero(wrong):
        return f"expected entries that rise from bit {start} to before bit {end}, found bit {positions[i]} in entry {i}"
    places, array = positions >> 3, np.frombuffer(data, np.uint8)
    for i in np.flatnonzero((array[places] == 0) & (array[places - 1] == 0xFF)):
        return f"expected no entry at a zero that is stuffed behind FF, found entry {i} there"
    unused = entries[:, 2] >> 16 if header.components == 3 else entries[:, 1] >> 16 | entries[:, 2]
    unused[0] |= entries[0, 1] | entries[0, 2]
    for i in np.flatnonzero(unused):
        return f"expected zeros in the first entry and in unused bits, found {entries[i].tolist()} in entry {i}"
    own = find_entries(data)
    for i in np.flatnonzero((own != entries).any(axis=1)) if len(own) else ():
        return f"expected {own[i].tolist()}, found {entries[i].tolist()} in entry {i}"
    return ""


def _entry_units(header: JpegHeader) -> tuple[int, int] | None:
    """Return rows and columns of units if the header allows entries, else None."""
    factors = header.frame[11::3]
    if header.interval or not factors:
        return None
    if header.components == 1:  # each block is a unit, whatever its factors are
        across = down = 1
    elif header.components == 3 and factors[0] in _ENTRY_FACTORS and factors[1:] == b"\x11\x11":
        across, down = factors[0] >> 4, factors[0] & 15
    else:
        return None
    return -(-header.height // (_BLOCK * down)), -(-header.width // (_BLOCK * across))


def _bounds(data: Bytes, start: int, scan: Scan, restarts: NDArray[np.uint32]) -> NDArray[np.int64] | None:
    """Return the begin of each interval, and the end of the file, (intervals + 1,).

    None unless a correctly numbered restart marker is before each of `restarts`, and there is one for each interval.
    """
    count = len(restarts)
    if count != scan.rows * scan.columns - 1:
        return None
    bounds = np.empty(count + 2, np.int64)
    bounds[0], bounds[1:-1], bounds[-1] = start, restarts, len(data)
    if count and (bounds[1:] - bounds[:-1]).min() < 0:
        return None
    if count and not (_pairs(data)[bounds[1:-1] - 2] == _markers(count)).all():
        return None
    return bounds


def _pairs(data: Bytes) -> NDArray[np.uint16]:
    """View each byte with the following one, (bytes - 1,)."""
    return np.ndarray((len(data) - 1,), "<u2", data, 0, (1,))


@functools.lru_cache(maxsize=64)
def _markers(count: int) -> NDArray[np.uint16]:
    """Return `count` restart markers, FF D0 to FF D7 in turn, in the form of `_pairs`."""
    return ((np.arange(count) & 7) << 8 | 0xD0FF).astype(np.uint16)


def cut(
    data: Bytes, header: JpegHeader, restarts: NDArray[np.uint32], part: JpegSegment, *, scale: int = 1
) -> tuple[bytearray, JpegSegment] | None:
    """Return a JPEG file of the intervals that contain a part, and the area they cover, or None if it cannot be cut.

    `restarts` are from `find_restarts` or from a store, and not trusted. `part` is inside of the image, at least 1 x 1.
    Within the area, `part` has the same bits as decoding everything at `scale`, also at the edges of the image.
    """
    scan = header.scan
    bounds = None if scan is None or not len(restarts) else _bounds(data, header.start, scan, restarts)
    if scan is None or bounds is None:
        return None
    if bytes(data[header.start : int(bounds[-2])]).find(b"\xff\xd9") >= 0:  # markers of a second image after this one
        return None
    (height, width), margin = scan.step, scan.margin * scale
    top, left = max(0, part.top - margin) // height, max(0, part.left - margin) // width
    bottom = min(scan.rows, -(-(part.bottom + margin) // height))
    right = min(scan.columns, -(-(part.right + margin) // width))
    while min(right * width, header.width) - left * width <= 2 * margin and right - left < scan.columns:
        # libjpeg does not interpolate chroma of one or two columns
        left, right = (left - 1, right) if left else (left, right + 1)
    if bottom == scan.rows and right == scan.columns:
        end = bytes(data[int(bounds[-2]) :]).find(b"\xff\xd9")  # more may follow, such as a camera's preview
        if end < 0:
            return None
        bounds[-1] = bounds[-2] + end + 2
    grid = scan.rows, scan.columns
    starts, ends = (each.reshape(grid)[top:bottom, left:right] for each in (bounds[:-1], bounds[1:]))
    covered = JpegSegment(
        top * height, left * width, min(bottom * height, header.height), min(right * width, header.width)
    )
    head = bytearray(header.head)
    head[scan.size_at : scan.size_at + 4] = covered.height.to_bytes(2) + covered.width.to_bytes(2)
    lines = zip(starts[:, 0].tolist(), ends[:, -1].tolist(), strict=True)
    view = memoryview(data)
    result = bytearray().join([head, *[view[start:stop] for start, stop in lines]])
    # Each interval ends with two bytes of a marker.
    _pairs(result)[(ends - starts).cumsum() + (len(head) - 2)] = _markers(starts.size)
    result[-1] = _EOI
    return result, covered


def decode_jpeg(
    data: Bytes, header: JpegHeader, *, channels: int, scale: int = 1, buffer: NDArray[np.uint8] | None = None
) -> NDArray[np.uint8]:
    """Decode to (H, W, C) pixels as stored, before any orientation. C is 1 for gray files, or 3 on request.

    The caller must have checked the size in `header`, because this allocates memory for it. `scale` is 1, 2, 4 or 8:
    one pixel for this many in both directions, rounded up. The image needs at least that many lines and columns,
    because decoders choose other scales for smaller ones. The result may use the memory of `buffer`, except for CMYK.
    Raises DamagedJpegError if pixels are wrong or missing.
    """
    height, width = -(-header.height // scale), -(-header.width // scale)
    is_cmyk = header.components == 4
    if native.core is not None and scale == 1 and header.frame and channels == header.components:
        size = height * width * channels
        own = np.empty(size, np.uint8) if buffer is None or buffer.nbytes < size else buffer.reshape(-1)[:size]
        if native.decode(data, own):
            return own.reshape(height, width, channels)
    if simplejpeg is not None:
        if buffer is not None and (is_cmyk or buffer.nbytes < height * width * channels):
            buffer = None
        try:
            pixels: NDArray[np.uint8] = simplejpeg.decode_jpeg(
                data,
                "cmyk" if is_cmyk else "rgb" if channels == 3 else "gray",
                min_height=height,
                min_width=width,
                min_factor=scale,
                buffer=buffer,
            )
        except ValueError as error:
            what = str(error)
            plain = _with_plain_header(data)  # libjpeg reports only the first warning
            if plain != data:
                return decode_jpeg(plain, header, channels=channels, scale=scale, buffer=buffer)
            if not any(each in what for each in _UNSUPPORTED) and not (_BEHIND in what and _has_all_restarts(data)):
                raise DamagedJpegError(what) from error
        else:
            if is_cmyk:  # converted as Pillow does; files contain inverted values, as written by Adobe
                pixels = np.asarray(Image.fromarray(255 - pixels, "CMYK").convert("RGB" if channels == 3 else "L"))
            return pixels.reshape(height, width, channels)
    return _decode_by_pillow(data, (height, width), channels, scale)


def _with_plain_header(data: Bytes) -> Bytes:
    """Return the same image without header segments that libjpeg warns about and then ignores.

    These are bytes between the segments, damaged metadata, an unknown revision of JFIF, an unknown transform of Adobe,
    and progressive parameters of a sequential scan.
    """
    header = read_header(data)
    if header is None:
        return data
    head, at, is_sequential = bytearray(header.head), 2, False
    while at < len(head):
        marker, nbytes = head[at + 1], int.from_bytes(head[at + 2 : at + 4]) + 2
        transforms = _ADOBE_TRANSFORMS.get(header.components, ())
        if marker == 0xE0 and nbytes > 11:
            head[at + 9] = 1
        elif marker == 0xEE and nbytes > 15 and transforms and head[at + 15] not in transforms:
            head[at + 15] = transforms[-1]
        elif marker in _FRAMES:
            is_sequential = marker in (*_SEQUENTIAL, 0xC9)
        elif marker == _SOS and is_sequential:
            head[-3:] = b"\0\x3f\0"
        at += nbytes
    return bytes(head) + bytes(data[header.start :])


def _has_all_restarts(data: Bytes) -> bool:
    """Whether all expected restart markers are before the end. If one is missing, pixels are wrong."""
    header = read_header(data)
    if header is None or not header.interval:
        return header is not None
    is_single = header.scan is not None and header.scan.rows * header.scan.columns == 1
    return is_single or len(find_restarts(bytes(data))) > 0


def _decode_by_pillow(data: Bytes, size: tuple[int, int], channels: int, scale: int) -> NDArray[np.uint8]:
    """Decode with Pillow what simplejpeg cannot read (unusual sampling), or rejects for harmless reasons."""
    try:
        image: Image.Image = Image.open(io.BytesIO(data), formats=("JPEG",))
        if scale > 1:
            image.draft(None, (max(1, image.width // scale), max(1, image.height // scale)))
        image.load()
        image = image.convert("RGB" if channels == 3 else "L")
    except MemoryError:
        raise
    except Exception as error:
        raise DamagedJpegError(str(error)) from error
    if image.size != size[::-1]:
        raise DamagedJpegError(f"expected {size[1]}x{size[0]} pixels at 1/{scale}, found {image.width}x{image.height}")
    return np.frombuffer(image.tobytes(), np.uint8).reshape(*size, channels)


def write_jpeg(
    file: BinaryIO,
    bands: Iterable[NDArray[np.uint8]],
    size: tuple[int, int],
    quality: int,
    subsampling: Subsampling = "4:2:0",
) -> NDArray[np.uint32]:
    """Write an image to an empty file, to the same bytes as `encode_jpeg`, without all pixels in memory.

    `bands` are (h, W, C) pixels from top to bottom, of any heights. `size` is (height, width), each at most
    `MOST_SIDE`. Returns the positions of `find_restarts`, (markers,). Raises DamagedJpegError if the file would be too
    large for them.
    """
    restarts: list[NDArray[np.int64]] = []
    count = done = 0
    for strip in _strips(bands, subsampling):
        data = encode_jpeg(strip, quality, subsampling)
        header = cast(JpegHeader, read_header(data))
        if not done:
            head = bytearray(data[: header.start])
            at = head.index(header.frame) + 5
            head[at : at + 2] = size[0].to_bytes(2)
            file.write(head)
        places, _ = _markers_behind(data, header.start)  # including the end marker, which the next strip follows
        body = np.frombuffer(data, np.uint8).copy()
        body[places + 1] = 0xD0 + (np.arange(count, count + len(places)) & 7)
        done += len(strip)
        if done == size[0]:
            body[-1] = _EOI
            places = places[:-1]
        restarts.append(places + (file.tell() + 2 - header.start))
        count += len(places)
        file.write(body[header.start :].data)
    if file.tell() >= 2**32:
        raise DamagedJpegError(f"as a JPEG file it would have {file.tell():,} bytes, the limit is {2**32 - 1:,}")
    return np.concatenate(restarts).astype(np.uint32)


def _strips(bands: Iterable[NDArray[np.uint8]], subsampling: Subsampling) -> Iterator[NDArray[np.uint8]]:
    """Yield the same rows in strips of whole units, except the last one."""
    rest: NDArray[np.uint8] | None = None
    for band in bands:
        rows = band if rest is None else np.concatenate([rest, band])
        whole = len(rows) - len(rows) % _unit(rows.shape[2], subsampling)
        if whole:
            yield rows[:whole]
        rest = rows[whole:] if whole < len(rows) else None
    if rest is not None:
        yield rest


def _unit(channels: int, subsampling: Subsampling) -> int:
    return _BLOCK * (_SUBSAMPLING[subsampling] if channels == 3 else 1)


def encode_jpeg(pixels: NDArray[np.uint8], quality: int, subsampling: Subsampling = "4:2:0") -> bytes:
    """Encode pixels (H, W, C), gray or RGB, as a baseline JPEG file with restart markers for cutting out parts."""
    return encode_with_restarts(pixels, quality, subsampling)[0]


def encode_with_restarts(
    pixels: NDArray[np.uint8], quality: int, subsampling: Subsampling = "4:2:0"
) -> tuple[bytes, NDArray[np.uint32]]:
    """Return the file of `encode_jpeg`, and the positions of `find_restarts`, (markers,)."""
    (height, width, channels), unit = pixels.shape, _unit(pixels.shape[2], subsampling)
    units = -(-width // unit)
    aimed = max(1, _INTERVAL_PIXELS // unit)
    interval = next(n for n in range(min(aimed, units), 0, -1) if units % n == 0)  # it must divide the units of a line
    if max(height, width) <= MOST_SIDE:
        before, behind = _head_of_pillow(channels, quality, subsampling, interval)
        head = before + height.to_bytes(2) + width.to_bytes(2) + behind
        if (found := native.encode(head, np.ascontiguousarray(pixels))) is not None:
            return found[0], np.frombuffer(found[1], np.uint32)
    data = _encode_by_pillow(pixels, quality, subsampling, interval)
    return data, find_restarts(data)


def _encode_by_pillow(pixels: NDArray[np.uint8], quality: int, subsampling: Subsampling, interval: int) -> bytes:
    buffer = io.BytesIO()
    # Optimized Huffman tables (`optimize`) would save 2 % of the bytes, and take more than twice the time.
    as_image(pixels).save(buffer, "JPEG", quality=quality, subsampling=subsampling, restart_marker_blocks=interval)
    return buffer.getvalue()


@functools.lru_cache(maxsize=64)
def _head_of_pillow(channels: int, quality: int, subsampling: Subsampling, interval: int) -> tuple[bytes, bytes]:
    """Return Pillow's header, up to the codes, before and behind (height, width)."""
    data = _encode_by_pillow(np.zeros((1, 1, channels), np.uint8), quality, subsampling, interval)
    header = cast(JpegHeader, read_header(data))
    at = data.index(header.frame) + 5
    return data[:at], data[at + 4 : header.start]


def scale_for(part: tuple[float, float], size: tuple[int, int]) -> int:
    """Return the largest scale at which a (height, width) has at least the pixels of `size`."""
    most = min(math.floor(part[0] / max(1, size[0])), math.floor(part[1] / max(1, size[1])))
    return next((scale for scale in SCALES if scale <= most), 1)
