"""Caffe's Datum, a message of Protocol Buffers: https://github.com/BVLC/caffe/blob/master/src/caffe/proto/caffe.proto."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tensorstore_ds.sources.forms import FormError

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_CHANNELS, _HEIGHT, _WIDTH, _DATA, _LABEL, _FLOATS, _ENCODED = range(1, 8)
_FIELDS_LIMIT = 32  # of one message, but for numbers that are not packed
_AXIS_LIMIT = 1 << 31


@dataclass(frozen=True, slots=True)
class Datum:
    """An image with its label: pixels (channels, height, width), or the bytes of a file."""

    shape: tuple[int, int, int]
    data: memoryview
    floats: NDArray[np.float32]
    label: int | None
    encoded: bool

    def image(self) -> bytes | NDArray[np.uint8] | NDArray[np.float32]:
        """Bytes of an image file, or pixels (H, W, C) in native byte order, with 3 channels as RGB.

        Raises `FormError` if the number of pixels differs from the shape.
        """
        channels, height, width = self.shape
        if self.encoded:
            return bytes(self.data)
        pixels = np.frombuffer(self.data, np.uint8) if len(self.data) else self.floats
        if pixels.size != channels * height * width or not pixels.size:
            message = f"expected {channels} x {height} x {width} pixels, found {pixels.size:,}"
            raise FormError(message)
        found = pixels.reshape(self.shape).transpose(1, 2, 0)
        return found[:, :, ::-1] if channels == 3 else found


def read_datum(data: memoryview) -> Datum:
    """Parse a Datum, without its pixels; raises `FormError`.

    >>> datum = read_datum(memoryview(bytes([8, 1, 16, 1, 24, 2, 34, 2, 7, 9, 40, 3])))
    >>> datum.label, datum.shape, datum.image().tolist()
    (3, (1, 1, 2), [[[7], [9]]])
    """
    numbers = dict.fromkeys((_CHANNELS, _HEIGHT, _WIDTH, _ENCODED), 0)
    label: int | None = None
    pixels = memoryview(b"")
    packed: list[memoryview] = []
    place = fields = 0
    while place < len(data):
        tag, place = _varint(data, place)
        field, wire = tag >> 3, tag & 7
        fields += wire != _FIXED32
        if fields > _FIELDS_LIMIT or not 1 <= field <= _ENCODED:
            raise FormError(f"expected the fields of a Datum, found field {field}")
        if wire == _VARINT and field in (*numbers, _LABEL):
            value, place = _varint(data, place)
            if field == _LABEL:
                label = value - (1 << 64) if value >> 63 else value
            else:
                numbers[field] = value
        elif wire == _BYTES and field in (_DATA, _FLOATS):
            nbytes, place = _varint(data, place)
            if nbytes > len(data) - place or (field == _FLOATS and nbytes % 4):
                raise FormError(f"expected {nbytes:,} bytes, found {len(data) - place:,}")
            value_of = data[place : place + nbytes]
            place += nbytes
            if field == _DATA:
                pixels = value_of
            else:
                packed.append(value_of)
        elif wire == _FIXED32 and field == _FLOATS and data[place - 1] == tag and place + 4 <= len(data):
            # not packed, as Caffe writes them: a tag of one byte before each
            start = place - 1
            rows = np.frombuffer(data[start : start + (len(data) - start) // 5 * 5], np.uint8).reshape(-1, 5)
            others = np.flatnonzero(rows[:, 0] != rows[0, 0])
            count = int(others[0]) if len(others) else len(rows)
            packed.append(memoryview(rows[:count, 1:].tobytes()))
            place = start + 5 * count
        else:
            raise FormError(f"expected the fields of a Datum, found field {field} of the type {wire}")
    shape = numbers[_CHANNELS], numbers[_HEIGHT], numbers[_WIDTH]
    if not all(size < _AXIS_LIMIT for size in shape) or numbers[_ENCODED] > 1:
        raise FormError(f"expected the shape of an image, found {shape}")
    if not len(pixels) and not packed:
        raise FormError("expected pixels, found none")
    floats = np.frombuffer(b"".join(packed), "<f4").astype(np.float32, copy=False)
    return Datum(shape, pixels, floats, label, bool(numbers[_ENCODED]))


def _varint(data: memoryview, place: int) -> tuple[int, int]:
    """A number of 7 bits a byte, at most 64 bits, and the position after it."""
    value = 0
    for i, byte in enumerate(data[place : place + 10]):
        value |= (byte & 0x7F) << 7 * i
        if byte < 0x80:
            if value >> 64:
                break
            return value, place + i + 1
    raise FormError("expected a number of at most 64 bits, found more, or the end")
