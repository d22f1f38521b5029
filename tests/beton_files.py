"""Files of FFCV's format, version 2, written from its description."""

from __future__ import annotations

import json
import struct
from collections.abc import Sequence

import numpy as np

from mds_files import image_bytes

PIXELS = np.random.default_rng(3).integers(0, 256, (6, 8, 3), np.uint8)
JPEG = image_bytes(9, "JPEG")
#: Beyond any file: what a row has in the stead of a place.
PLACE = 0xAB5CDE12_00000000
#: Of each field its name, its type in FFCV, and its arguments.
FIELDS = (("image", 2, b""), ("label", 1, b""), ("weight", 0, b""))


def array_arguments(dtype: str, *shape: int) -> bytes:
    """Of NDArrayField: 32 sizes, the length of the type's description, the description."""
    text = json.dumps([["", dtype]]).encode()
    return struct.pack("<32Q", *shape, *[0] * (32 - len(shape))) + struct.pack("<Q", len(text)) + text


def beton(
    rows: Sequence[bytes], data: Sequence[bytes], fields: Sequence[tuple[str, int, bytes]] = FIELDS, version: int = 2
) -> bytes:
    """A file of rows, in which `PLACE` + n stands for the place of `data[n]`; and of its data."""
    each = (bytes([kind]) + name.encode().ljust(16, b"\0") + args.ljust(1024, b"\0") for name, kind, args in fields)
    described = b"".join(each)
    start = 24 + len(described) + sum(map(len, rows))
    places = [start + sum(map(len, data[:i])) for i in range(len(data))]
    table = b"".join(struct.pack("<3Q", 0, place, len(each)) for place, each in zip(places, data, strict=True))
    found = b"".join(rows)
    for i, place in enumerate(places):
        found = found.replace(struct.pack("<Q", PLACE + i), struct.pack("<Q", place))
    end = start + sum(map(len, data))
    head = struct.pack("<HHIQQ", version, len(fields), 1 << 21, len(rows), end)
    return head + described + found + b"".join(data) + table


def row(mode: int, place: int, label: int, weight: float) -> bytes:
    """A row of `FIELDS`: 13 bytes of the image, 3 of padding, the label, the weight."""
    return struct.pack("<BHHQ3xqd", mode, 8, 6, PLACE + place, label, weight)


def two_images() -> bytes:
    """A JPEG file of class 0, and raw pixels of class 1."""
    return beton([row(0, 0, 0, 0.5), row(1, 1, 1, 1.5)], [JPEG, PIXELS.tobytes()])
