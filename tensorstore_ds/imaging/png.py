"""Read plain PNG files with Pillow's decoder alone: its reader takes longer than decoding a small image.

Plain files are gray or RGB with 8 bits, not interlaced, and without chunks that say more than the pixels. Pillow reads
all others, and tells what is wrong with damaged ones. The format is https://www.w3.org/TR/png-3/.
"""

from __future__ import annotations

import contextlib
import struct
import zlib
from typing import NamedTuple

from PIL import Image

#: First bytes of a PNG file.
PNG = b"\x89PNG\r\n\x1a\n"
_CHUNK = struct.Struct(">I4s")
_HEADER = struct.Struct(">IIBBBBB")
#: Channels and Pillow's mode by (bits, color type, compression, filter, interlace) of IHDR.
_PLAIN = {(8, 0, 0, 0, 0): (1, "L"), (8, 2, 0, 0, 0): (3, "RGB")}
#: Chunks that change no pixel, with their lengths. Pillow refuses other lengths.
_HARMLESS = {b"gAMA": 4, b"cHRM": 32, b"sRGB": 1, b"pHYs": 9, b"tIME": 7}
#: Bytes of compressed pixels that a file may have, beyond twice as many as pixels.
_SPARE_NBYTES = 1 << 16
#: Maximum bytes of a text that is passed over.
_TEXT_NBYTES = 1000


class PngHeader(NamedTuple):
    """The header of a plain PNG file. The first chunk with pixels begins at `start`."""

    height: int
    width: int
    channels: int
    mode: str
    start: int


def read_png_header(data: bytes) -> PngHeader | None:
    """Return the header of a plain PNG file, or None for other and damaged files."""
    if len(data) < 33 or data[:16] != PNG + b"\0\0\0\rIHDR" or not _is_whole(data, 8, 13):
        return None
    width, height, *how = _HEADER.unpack_from(data, 16)
    plain, start = _PLAIN.get(tuple(how)), _passed(data, 33)
    if plain is None or not width or not height or data[start + 4 : start + 8] != b"IDAT":
        return None
    return PngHeader(height, width, *plain, start)


def decode_png(data: bytes, header: PngHeader) -> Image.Image | None:
    """Return the decoded image, or None if the rest of the file is not plain or is damaged."""
    pieces, at, left = [], header.start, 2 * header.height * (header.width * header.channels + 1) + _SPARE_NBYTES
    while data[at + 4 : at + 8] == b"IDAT":
        nbytes = int.from_bytes(data[at : at + 4], "big")
        pieces.append(data[at + 8 : at + 8 + nbytes])
        at, left = at + nbytes + 12, left - nbytes
        if left < 0:  # the whole of it would be copied for few pixels
            return None
    at = _passed(data, at)
    if data[at : at + 8] != b"\0\0\0\0IEND" or not _is_whole(data, at, 0):
        return None
    with contextlib.suppress(ValueError, OSError):
        return Image.frombytes(header.mode, (header.width, header.height), b"".join(pieces), "zip", header.mode, 0)
    return None


def _passed(data: bytes, at: int) -> int:
    """The position after chunks that change no pixel."""
    while at + 12 <= len(data):
        nbytes, kind = _CHUNK.unpack_from(data, at)
        is_text = kind == b"tEXt" and nbytes <= _TEXT_NBYTES
        if not (is_text or _HARMLESS.get(kind) == nbytes) or not _is_whole(data, at, nbytes):
            break
        at += nbytes + 12
    return at


def _is_whole(data: bytes, at: int, nbytes: int) -> bool:
    """Whether the checksum of a chunk of `nbytes` is right."""
    end = at + 8 + nbytes
    return len(data) >= end + 4 and zlib.crc32(data[at + 4 : end]) == int.from_bytes(data[end : end + 4], "big")
