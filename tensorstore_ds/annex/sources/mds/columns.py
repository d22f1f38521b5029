"""The columns of a sample of MDS: where each one lies in its bytes, and what the bytes of an encoding mean."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tensorstore_ds.annex.sources.arrays.source import bad_file
from tensorstore_ds.errors import Problem, SourceError

#: Encodings of one number, with NumPy's types.
NUMBERS = {
    **{"int": "<i8", "uint8": "<u1", "uint16": "<u2", "uint32": "<u4", "uint64": "<u8", "int8": "<i1"},
    **{"int16": "<i2", "int32": "<i4", "int64": "<i8", "float16": "<f2", "float32": "<f4", "float64": "<f8"},
}
#: Encodings of an image.
IMAGES = frozenset({"jpeg", "png", "pil", "jpeg_array", "jpegarray"})

_ARRAY_TYPES = {8: "u1", 9: "i1", 16: "u2", 17: "i2", 18: "f2", 32: "u4", 33: "i4", 34: "f4", 64: "u8", 65: "i8"}
_ARRAY_TYPES[66] = "f8"
#: Modes of Pillow whose bytes are pixels, with the type and the number of channels.
_MODES = {"L": ("|u1", 1), "LA": ("|u1", 2), "RGB": ("|u1", 3), "RGBA": ("|u1", 4), "I;16": ("<u2", 1), "F": ("<f4", 1)}
_AXIS_LIMIT = 1 << 32


@dataclass(frozen=True, slots=True)
class Column:
    """Name and encoding of a column, and its bytes per sample, None if they vary."""

    name: str
    encoding: str
    nbytes: int | None

    @property
    def kind(self) -> str:
        """Encoding without the part after a colon."""
        return self.encoding.partition(":")[0]

    @property
    def array(self) -> tuple[str, tuple[int, ...]] | None:
        """NumPy dtype and shape of a number, or of an ``ndarray`` that gives both; None for others."""
        if self.encoding in NUMBERS:
            return NUMBERS[self.encoding], ()
        _, dtype, shape = [*self.encoding.split(":"), "", ""][:3]
        sizes = shape.split(",")
        if self.kind != "ndarray" or dtype not in NUMBERS or dtype == "int" or len(sizes) > 32:
            return None
        if not all(size.isascii() and size.isdigit() and 0 < len(size) < 10 and int(size) for size in sizes):
            return None
        return NUMBERS[dtype], tuple(map(int, sizes))

    def check(self, where: str) -> None:
        """Raise `array-file` if the size does not match the encoding."""
        array = self.array
        expected = None if array is None else math.prod(array[1]) * np.dtype(array[0]).itemsize
        if self.nbytes != expected and self.kind in (*NUMBERS, *IMAGES, "ndarray"):
            message = f"expected {expected} bytes for the column {self.name} of {self.encoding}, found {self.nbytes}."
            raise bad_file(where, message)


def divide(data: bytes, columns: Sequence[Column], where: str) -> dict[str, bytes]:
    """Bytes of each column: first the lengths of columns without a fixed size, as uint32, then all values."""
    place = 4 * sum(column.nbytes is None for column in columns)
    lengths = iter(np.frombuffer(data[: min(place, len(data)) // 4 * 4], "<u4").tolist())
    found: dict[str, bytes] = {}
    for column in columns:
        nbytes = next(lengths, 0) if column.nbytes is None else column.nbytes
        found[column.name] = data[place : place + nbytes]
        place += nbytes
    if place != len(data):
        raise bad_file(where, f"expected a sample of {place:,} bytes, found {len(data):,}.")
    return found


def image_of(data: bytes, kind: str, encoding: str, where: str) -> bytes | NDArray[Any]:
    """Bytes of an image file, or pixels (H, W) or (H, W, C), a view of `data`."""
    if kind in ("jpeg_array", "jpegarray"):
        count = int.from_bytes(data[:4], "little")
        if count != 1 or len(data) != 8 + int.from_bytes(data[4:8], "little"):
            raise bad_file(where, f"expected a list of one image of {len(data):,} bytes, found {count:,} images.")
        return data[8:]
    if kind == "pil":
        return _pixels(data, where)
    if kind == "ndarray":
        return _array(data, encoding, where)
    return data


def _pixels(data: bytes, where: str) -> NDArray[Any]:
    """Parse width, height and length of the mode's name, uint32 each; the mode; the pixels."""
    width, height, length = (int.from_bytes(data[i : i + 4], "little") for i in (0, 4, 8))
    mode = data[12 : 12 + min(length, 16)].decode("latin-1")
    if len(data) < 12 or mode not in _MODES:
        message = f"expected an image of Pillow of mode {', '.join(_MODES)}, found {mode!r}."
        raise SourceError(Problem(where, "unsupported-depth", message), "Convert it to one of these.")
    dtype, channels = _MODES[mode]
    shape = (height, width, channels) if channels > 1 else (height, width)
    return _reshaped(data[12 + length :], dtype, shape, where)


def _array(data: bytes, encoding: str, where: str) -> NDArray[Any]:
    """Parse an ``ndarray``, which begins with its dtype and shape unless the encoding gives them."""
    _, named, shape = [*encoding.split(":"), "", ""][:3]
    dtype = NUMBERS.get(named, "")
    place = 0
    if not named:
        dtype = _ARRAY_TYPES.get(data[0] if data else 0, "")
        place = 1
    if not dtype:
        raise bad_file(where, "expected an array of a known type, found another.")
    if shape:
        sizes = tuple(int(size) for size in shape.split(",") if size.isdigit() and len(size) < 10)
    else:
        code = data[place] if len(data) > place else 0
        width, axes = 1 << code % 4, code >> 2
        place += 1
        ends = range(place, place + axes * width, width)
        sizes = tuple(int.from_bytes(data[i : i + width], "little") for i in ends)
        place += axes * width
    return _reshaped(data[place:], dtype, sizes, where)


def _reshaped(data: bytes, dtype: str, shape: tuple[int, ...], where: str) -> NDArray[Any]:
    """Bytes as an array; raises unless their number matches the shape."""
    nbytes = math.prod(shape) * np.dtype(dtype).itemsize
    if len(shape) not in (2, 3) or not all(0 < n < _AXIS_LIMIT for n in shape) or nbytes != len(data):
        message = f"expected an image of {nbytes:,} bytes for the shape {str(shape)[:80]}, found {len(data):,}."
        raise bad_file(where, message)
    array = np.frombuffer(data, dtype).reshape(shape)
    return array.astype(array.dtype.newbyteorder("="), copy=False)
