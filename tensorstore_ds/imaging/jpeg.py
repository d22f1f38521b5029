"""JPEG files: read whole, at 1/2, 1/4 or 1/8, or only the part that is wanted; written so that parts can be cut out.

A scan with restart markers is a row of intervals that can each be decoded alone. The intervals around a part, behind
the file's own header with another height and width, and with their markers numbered anew, are a JPEG file of that part.
Any decoder reads it, to the same bits: cutting is lossless. Slide readers do this (OpenSlide, Bio-Formats).

A scan without restart markers can be decoded from any place whose bit and whose predictions of DC are known: `entries`.

The format is ITU-T T.81; what is cut is its sequential mode, Huffman-coded, with 8 bits and one scan.
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

#: How a JPEG file begins.
JPEG = b"\xff\xd8"
#: A file in memory.
Bytes = bytes | bytearray | memoryview
Subsampling = Literal["4:2:0", "4:4:4"]
#: Pixels that libjpeg writes in a row, and rows.
MOST_SIDE = 65_500
#: One pixel of chroma stands for so many of the image, in both directions.
_SUBSAMPLING: dict[Subsampling, int] = {"4:2:0": 2, "4:4:4": 1}
#: Pixels between restart markers that are aimed at: more cost less space (here 2 %), and less is decoded in vain.
_INTERVAL_PIXELS = 64
#: Units of a row from one entry to the next.
_ENTRY_UNITS = 4
#: Entries are of files with so many bytes at most: the place of a bit is a uint32.
_ENTRY_NBYTES = 2**29 - 1
#: Sampling factors of the first component, of three of which the others have 0x11, in files that can have entries.
_ENTRY_FACTORS = (0x11, 0x12, 0x21, 0x22)

SCALES = (8, 4, 2)  #: for which decoders have short ways; others, such as 7/8, take twice as long as the whole
_SOI, _EOI, _SOS, _DRI = 0xD8, 0xD9, 0xDA, 0xDD
_SEQUENTIAL = (0xC0, 0xC1)  # baseline, extended: Huffman-coded
_FRAMES = frozenset((*range(0xC0, 0xD0),)) - {0xC4, 0xC8, 0xCC}
_TABLES = (0xC4, 0xDB, _DRI)
_BLOCK = 8
#: What simplejpeg refuses, and Pillow reads. Every warning of libjpeg means damage, about which Pillow is silent,
_UNSUPPORTED = ("subsampling", "color conversion")
_BEHIND = "before marker 0xd9"  #: except this one about bytes behind the pixels, and those of `_with_plain_header`.
#: Where a marker begins. Decoders skip everything before it.
_MARKER = re.compile(rb"\xff[^\x00\xff]")
#: The transforms of Adobe's segment by the number of components: of others, libjpeg takes the last one, and warns.
_ADOBE_TRANSFORMS = {3: (0, 1), 4: (0, 2)}


class DamagedJpegError(ValueError):
    """A JPEG file whose pixels cannot be had. Callers add the name of the sample."""


class JpegSegment(NamedTuple):
    """A part of an image, in pixels."""

    top: int
    left: int
    bottom: int
    right: int

    @property
    def height(self) -> int:
        """Lines."""
        return self.bottom - self.top

    @property
    def width(self) -> int:
        """Columns."""
        return self.right - self.left


class JpegHeader(NamedTuple):
    """What stands before the pixels of a JPEG file.

    Attributes:
        height, width: as stored, before any orientation.
        components: 1 (gray), 3 (color) or 4 (CMYK).
        has_metadata: whether there may be an orientation, in EXIF.
        head: the segments that decoding needs, from SOI to SOS.
        start: where the pixels begin in the file.
        interval: units between restart markers; 0 if there are none.
        frame: the segment with the size and the components, if there is one scan, sequential and Huffman-coded.
        scan: how the pixels are laid out, if they can be cut.
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
        """Whether it is gray or color, and shown as it is stored: `decode_jpeg` is all that it takes."""
        return self.components != 4 and not self.has_metadata


class Scan(NamedTuple):
    """The pixels of a JPEG file, as intervals between restart markers: a grid of `rows` x `columns`.

    Attributes:
        size_at: where height and width stand in the header's `head`.
        step: (height, width) of an interval, in pixels.
        margin: pixels around a part on which it depends: chroma is interpolated.
    """

    size_at: int
    rows: int
    columns: int
    step: tuple[int, int]
    margin: int


def read_header(data: Bytes) -> JpegHeader | None:
    """The header of a JPEG file with 8 bits a sample; None of anything else, or where it is damaged."""
    if data[:3] != b"\xff\xd8\xff":
        return None
    kept, at, size_at, interval, has_metadata = [data[:2]], 2, 0, 0, False
    frame: Bytes = b""
    kept_nbytes, marker_of_frame, is_plain = 2, 0, True
    while True:
        head = data[at : at + 4]
        if len(head) < 4:
            return None
        if head[0] != 0xFF or head[1] in (0, 0xFF):  # bytes that fill up
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
    if not height or not width or components not in (1, 3, 4):  # the height may come behind the scan
        return None
    complete = len(segment) == 8 + 2 * components and segment[4] == components and segment[-3:] == b"\0\x3f\0"
    own = bytes(frame) if is_plain and complete and marker_of_frame in _SEQUENTIAL else b""
    scan = _scan(own, size_at, interval) if own and interval else None
    return JpegHeader(height, width, components, has_metadata, b"".join(kept), at, interval, own, scan)


def _scan(frame: Bytes, size_at: int, interval: int) -> Scan | None:
    """The grid of the intervals; None if they do not make one, or the chroma is of an unusual size."""
    height, width, components = frame[5] << 8 | frame[6], frame[7] << 8 | frame[8], frame[9]
    factors = [(each >> 4, each & 15) for each in frame[11::3]]
    most = max(h for h, _ in factors), max(v for _, v in factors)
    if any(h not in (1, most[0]) or v not in (1, most[1]) for h, v in factors) or max(most) > 4 or min(most) < 1:
        return None
    if components == 1:  # of a single component, each block is a unit, whatever its factors say
        most = (1, 1)
    unit_height, unit_width = _BLOCK * most[1], _BLOCK * most[0]
    units = -(-width // unit_width)
    if units % interval and interval % units:
        return None
    lines = max(1, interval // units)  # an interval is a part of a line, or some lines
    step = unit_height * lines, unit_width * min(interval, units)
    return Scan(size_at, -(-height // step[0]), -(-units // interval) or 1, step, max(most))


def find_restarts(data: bytes) -> NDArray[np.uint32]:
    """(markers,) where the byte behind each restart marker lies, in order; none if the file cannot be cut.

    That is: it has no markers, not as many as its size asks for, or wrongly numbered ones; it is progressive,
    arithmetic-coded, of more than 8 bits, of several scans, or no JPEG file at all.
    """
    none = np.empty(0, np.uint32)
    header = read_header(data)
    if header is None or header.scan is None:
        return none
    places, codes = _markers_behind(data, header.start)
    end = np.flatnonzero(codes & 0xF8 != 0xD0)  # the first that is no restart marker: the image must end there
    if not len(end) or codes[end[0]] != _EOI:
        return none
    restarts = (places[: end[0]] + 2).astype(np.uint32)
    return none if _bounds(data, header.start, header.scan, restarts) is None else restarts


def _markers_behind(data: Bytes, start: int) -> tuple[NDArray[np.int64], NDArray[np.uint8]]:
    """(n,) where each marker lies, and (n,) its second byte; FF 00 is a byte FF of the pixels."""
    array = np.frombuffer(data, np.uint8)
    places = np.flatnonzero(array[start:-1] == 0xFF) + start
    codes = array[places + 1]
    return places[codes != 0], codes[codes != 0]


def find_entries(data: bytes) -> NDArray[np.uint32]:
    """(M, 3) where decoding can begin in a JPEG file without restart markers: formats/v1/spec.md, 6.7.

    There are none of a file that cannot have any, nor where `native.core` is missing.
    """
    return np.frombuffer(native.index(data), np.uint32).reshape(-1, 3)


def wrong_entries(data: bytes, entries: NDArray[np.uint32]) -> str:
    """What is wrong with the entries of a file, (M, 3) and at least one; empty if nothing is.

    Where `native.core` is missing, only what needs no walk through the pixels is looked at.
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
    """Rows and columns of the units of a file that can have entries, as its header says; None of others."""
    factors = header.frame[11::3]
    if header.interval or not factors:
        return None
    if header.components == 1:  # each block is a unit, whatever its factors say
        across = down = 1
    elif header.components == 3 and factors[0] in _ENTRY_FACTORS and factors[1:] == b"\x11\x11":
        across, down = factors[0] >> 4, factors[0] & 15
    else:
        return None
    return -(-header.height // (_BLOCK * down)), -(-header.width // (_BLOCK * across))


def _bounds(data: Bytes, start: int, scan: Scan, restarts: NDArray[np.uint32]) -> NDArray[np.int64] | None:
    """(intervals + 1,) where each interval begins, and the end of the file.

    None if there is not a restart marker, rightly numbered, before each of `restarts`, or not one for each interval.
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
    """(bytes - 1,) each byte and the one behind it: a view."""
    return np.ndarray((len(data) - 1,), "<u2", data, 0, (1,))


@functools.lru_cache(maxsize=64)
def _markers(count: int) -> NDArray[np.uint16]:
    """So many restart markers, as `_pairs`: FF D0 to FF D7, and again."""
    return ((np.arange(count) & 7) << 8 | 0xD0FF).astype(np.uint16)


def cut(
    data: Bytes, header: JpegHeader, restarts: NDArray[np.uint32], part: JpegSegment, *, scale: int = 1
) -> tuple[bytearray, JpegSegment] | None:
    """A JPEG file of the intervals that hold a part of an image, and what they cover of it.

    Of what they cover, `part` itself has the bits that decoding everything gives, and its edges where the image ends.

    Args:
        restarts: where its restart markers end, from `find_restarts` or from a store; not trusted.
        part: inside of the image, at least 1 x 1.
        scale: at which it will be decoded.

    Returns:
        None if the file cannot be cut: it must be decoded whole.
    """
    scan = header.scan
    bounds = None if scan is None or not len(restarts) else _bounds(data, header.start, scan, restarts)
    if scan is None or bounds is None:
        return None
    if bytes(data[header.start : int(bounds[-2])]).find(b"\xff\xd9") >= 0:  # markers of another image behind this one
        return None
    (height, width), margin = scan.step, scan.margin * scale
    top, left = max(0, part.top - margin) // height, max(0, part.left - margin) // width
    bottom = min(scan.rows, -(-(part.bottom + margin) // height))
    right = min(scan.columns, -(-(part.right + margin) // width))
    while min(right * width, header.width) - left * width <= 2 * margin and right - left < scan.columns:
        # libjpeg does not interpolate chroma of one or two columns
        left, right = (left - 1, right) if left else (left, right + 1)
    if bottom == scan.rows and right == scan.columns:
        end = bytes(data[int(bounds[-2]) :]).find(b"\xff\xd9")  # more may follow, such as the preview of a camera
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
    data: Bytes,
    header: JpegHeader,
    *,
    channels: int,
    scale: int = 1,
    buffer: NDArray[np.uint8] | None = None,
) -> NDArray[np.uint8]:
    """(H, W, C) pixels as they are stored, before any orientation; C is 1 of gray files, 3 where asked for.

    Args:
        header: of `data`; its size must have been judged before: this takes the memory.
        channels: 1, of a gray file, or 3.
        scale: 1, 2, 4 or 8: one pixel for so many in both directions, rounded up. The image has at least as many lines
            and columns: of smaller ones, decoders choose other scales.
        buffer: memory that may be used for the pixels, and is then part of the result; CMYK does not use it.

    Raises:
        DamagedJpegError: pixels are wrong or missing.
    """
    height, width = -(-header.height // scale), -(-header.width // scale)
    is_cmyk = header.components == 4
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
            plain = _with_plain_header(data)  # libjpeg says only the first warning
            if plain != data:
                return decode_jpeg(plain, header, channels=channels, scale=scale, buffer=buffer)
            if not any(each in what for each in _UNSUPPORTED) and not (_BEHIND in what and _has_all_restarts(data)):
                raise DamagedJpegError(what) from error
        else:
            return _from_cmyk(pixels, channels) if is_cmyk else pixels.reshape(height, width, channels)
    return _decode_by_pillow(data, (height, width), channels, scale)


def _with_plain_header(data: Bytes) -> Bytes:
    """The same image behind the segments that decoding needs, without what libjpeg warns of there and then ignores.

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


def _from_cmyk(pixels: NDArray[np.uint8], channels: int) -> NDArray[np.uint8]:
    """Colors as Pillow makes them: files have the inverse, as Adobe writes it."""
    image = Image.fromarray(255 - pixels, "CMYK").convert("RGB" if channels == 3 else "L")
    return np.asarray(image).reshape(*pixels.shape[:2], channels)


def _has_all_restarts(data: Bytes) -> bool:
    """Whether all restart markers that there should be come before the end; where one is missing, pixels are wrong."""
    header = read_header(data)
    if header is None or not header.interval:
        return header is not None
    is_single = header.scan is not None and header.scan.rows * header.scan.columns == 1
    return is_single or len(find_restarts(bytes(data))) > 0


def _decode_by_pillow(data: Bytes, size: tuple[int, int], channels: int, scale: int) -> NDArray[np.uint8]:
    """What simplejpeg does not read (unusual sampling), or has doubts about that do not matter."""
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
    """Write an image to an empty file as `encode_jpeg` does, to the same bytes, without all pixels in memory.

    Args:
        bands: (h, W, C) pixels from top to bottom; their heights may differ.
        size: (height, width) of the image, each at most `MOST_SIDE`.

    Returns:
        (markers,) as of `find_restarts`.

    Raises:
        DamagedJpegError: the file would be too large for its list of restart markers.
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
        places, _ = _markers_behind(data, header.start)  # with that of the end, which the next strip follows
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
    """The same rows in strips of whole units, except the last one."""
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
    """A baseline JPEG file of pixels (H, W, C), gray or RGB, with restart markers by which parts can be cut out."""
    unit = _unit(pixels.shape[2], subsampling)
    units = -(-pixels.shape[1] // unit)
    aimed = max(1, _INTERVAL_PIXELS // unit)
    interval = next(n for n in range(min(aimed, units), 0, -1) if units % n == 0)  # it must divide the units of a line
    buffer = io.BytesIO()
    # Tables of its own for each file (`optimize`) would save 2 % of the bytes, and take more than twice the time.
    as_image(pixels).save(buffer, "JPEG", quality=quality, subsampling=subsampling, restart_marker_blocks=interval)
    return buffer.getvalue()


def scale_for(part: tuple[float, float], size: tuple[int, int]) -> int:
    """The largest scale at which a (height, width) still has at least the pixels of `size`."""
    most = min(math.floor(part[0] / max(1, size[0])), math.floor(part[1] / max(1, size[1])))
    return next((scale for scale in SCALES if scale <= most), 1)
