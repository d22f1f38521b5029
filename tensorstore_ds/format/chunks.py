"""Convert an array's bytes to a data file and back: chunks back to back, a checksum for each, and their index."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO

import numpy as np
from numpy.typing import NDArray

from tensorstore_ds.format.arrays import CRC_NBYTES, ZSTD_LEVEL, ArrayGeometry, encode_index
from tensorstore_ds.machine import map_in_threads, threads_within

#: Bytes that are checksummed at a time.
_READ_NBYTES = 8 * 1024**2
_MAGIC = b"\x28\xb5\x2f\xfd"
_SINGLE_SEGMENT, _RESERVED, _CHECKSUM, _DICTIONARY = 0x20, 0x08, 0x04, 0x03
_RAW, _RLE, _COMPRESSED = range(3)


def seal_array(path: Path, geometry: ArrayGeometry) -> bytes:
    """Append padding and the index to a file of an array's bytes (layout `memmap`), and return the appended bytes."""
    with path.open("r+b") as file:
        file.truncate(geometry.chunks * geometry.chunk_nbytes)  # pads the last chunk with zeros
        tail = chunk_crcs(file, itertools.repeat(geometry.chunk_nbytes, geometry.chunks)) + geometry.index()
        file.seek(0, os.SEEK_END)
        file.write(tail)
    return bytes(geometry.chunks * geometry.chunk_nbytes - geometry.nbytes) + tail


def chunk_crcs(file: IO[bytes], sizes: Iterable[int]) -> bytes:
    """Return the CRC-32C of each of the consecutive chunks from the file's position on, 4 bytes each."""
    import google_crc32c  # imported here, because reading a store never needs it

    crcs = bytearray()
    for size in sizes:
        crc = 0
        for left in range(size, 0, -_READ_NBYTES):
            crc = google_crc32c.extend(crc, file.read(min(left, _READ_NBYTES)))
        crcs += crc.to_bytes(CRC_NBYTES, "little")
    return bytes(crcs)


def compress_array(source: Path, target: Path, geometry: ArrayGeometry) -> None:
    """Compress an array's bytes, at the beginning of `source`, into a data file of the layout `zarr`."""
    import google_crc32c
    from numcodecs.zstd import Zstd  # imported here, because most readers never need it

    codec = Zstd(level=ZSTD_LEVEL)
    entries = np.empty((geometry.chunks, 2), "<u8")
    crcs = bytearray()
    offset = 0
    with source.open("rb") as file, target.open("wb") as out:

        def chunks() -> Iterator[bytes]:
            left = geometry.nbytes
            while left > 0:
                data = file.read(min(left, geometry.chunk_nbytes))
                if not data:
                    raise EOFError(f"{source.name} is shorter than {geometry.nbytes} bytes")
                left -= len(data)
                yield data.ljust(geometry.chunk_nbytes, b"\0")

        width = threads_within(4 * geometry.chunk_nbytes)  # with those that wait
        for i, compressed in enumerate(map_in_threads(codec.encode, chunks(), width)):
            entries[i] = offset, len(compressed)
            crcs += int(google_crc32c.value(compressed)).to_bytes(CRC_NBYTES, "little")
            offset += out.write(compressed)
        out.write(bytes(crcs) + encode_index(entries))


#: Decoders reject a larger window of a frame, or should.
WINDOW_MAX_NBYTES = 2**27


def decompress_chunk(data: bytes, out: NDArray[np.uint8]) -> None:
    """Unpack one Zstandard frame whose content size equals the size of `out`. Raises ValueError for any other frame.

    The content size is checked first, and no more memory is used than `out` has: a frame of 98 kB can hold 3 GB.
    """
    from numcodecs import zstd

    problem = frame_problem(data, out.nbytes)
    if problem is not None:
        raise ValueError(problem)
    try:
        zstd.decompress(data, out)
    except RuntimeError as error:
        raise ValueError(str(error)) from error


def frame_problem(data: bytes, nbytes: int) -> str | None:
    """Return why `data` is not exactly one Zstandard frame with content size `nbytes` (RFC 8878, 3.1.1)."""
    if data[:4] != _MAGIC or len(data) < 6:
        return "expected a Zstandard frame, found other bytes"
    flags = data[4]
    if flags & (_RESERVED | _DICTIONARY):
        return "expected a frame without dictionary or reserved bits, found one with them"
    single = bool(flags & _SINGLE_SEGMENT)
    width = (1 if single else 0, 2, 4, 8)[flags >> 6]
    at = 5 if single else 6  # else a byte encodes the window: an exponent, and eighths to add
    if not single and (1 << 10 + (data[5] >> 3)) // 8 * (8 + (data[5] & 7)) > WINDOW_MAX_NBYTES:
        return f"expected a window of at most {WINDOW_MAX_NBYTES} bytes, found a larger one"
    size = int.from_bytes(data[at : at + width], "little") + (256 if width == 2 else 0)
    if not width or size != nbytes:
        return f"expected a frame of {nbytes} bytes, found one that says {size if width else 'no number'}"
    at += width
    last = False
    while not last:
        header = int.from_bytes(data[at : at + 3], "little")
        last, kind, length = bool(header & 1), header >> 1 & 3, header >> 3
        if kind > _COMPRESSED or at + 3 > len(data):
            return "expected the next block of a frame, found its end or other bytes"
        at += 3 + (1 if kind == _RLE else length)
    at += 4 if flags & _CHECKSUM else 0
    return None if at == len(data) else f"expected a frame of {len(data)} bytes compressed, found one of {at}"
