"""What the valid conformance stores hold. Values are arithmetic patterns, so that every byte is the same anywhere."""

from __future__ import annotations

import base64
import dataclasses
import json
import math
import struct
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from plain_store import Json, Shard, Store, crc32c

Array = NDArray[Any]
NAN = math.nan

#: Two baseline JPEG files, gray, 16 x 8 and 8 x 8 pixels (width x height).
JPEG_16X8 = base64.b64decode(
    "/9j/4AAQSkZJRgABAQAAAQABAAD/2wBDABQODxIPDRQSEBIXFRQYHjIhHhwcHj0sLiQySUBMS0dARkVQWnNiUFVtVkVGZIhlbXd7gYKBTmCNl4x9"
    "lnN+gXz/wAALCAAIABABAREA/8QAFQABAQAAAAAAAAAAAAAAAAAABQb/xAAXEAADAQAAAAAAAAAAAAAAAAAAAwUx/9oACAEBAAA/ACp6sKeerD//2Q=="
)
JPEG_8X8 = base64.b64decode(
    "/9j/4AAQSkZJRgABAQAAAQABAAD/2wBDABQODxIPDRQSEBIXFRQYHjIhHhwcHj0sLiQySUBMS0dARkVQWnNiUFVtVkVGZIhlbXd7gYKBTmCNl4x9"
    "lnN+gXz/wAALCAAIAAgBAREA/8QAFAABAAAAAAAAAAAAAAAAAAAABf/EABcQAAMBAAAAAAAAAAAAAAAAAAADBTH/2gAIAQEAAD8AKnqw/9k="
)

#: As the first, of 16 x 8 pixels, with a restart marker behind the first 8 x 8.
JPEG_RESTART = base64.b64decode(
    "/9j/4AAQSkZJRgABAQAAAQABAAD/2wBDABALDA4MChAODQ4SERATGCgaGBYWGDEjJR0oOjM9PDkzODdASFxOQERXRTc4UG1RV19iZ2hnPk1xeXBk"
    "eFxlZ2P/wAALCAAIABABAREA/8QAFQABAQAAAAAAAAAAAAAAAAAAAAP/xAAeEAADAAIDAAMAAAAAAAAAAAABAgMRIhIhMRNhkf/dAAQAAf/aAAgB"
    "AQAAPwCQQQhwKqsKDAAUyQ9AdKAaONtgcfnn/9BQfEhjSXNDtORXiH2yMTXtl16LEYPv3//Z"
)

#: A baseline JPEG file in color, 72 x 24, chroma halved in both directions: 5 x 2 units. Bytes FF are among its pixels.
JPEG_COLOR = base64.b64decode(
    "/9j/4AAQSkZJRgABAQAAAQABAAD/2wBDABQODxIPDRQSEBIXFRQYHjIhHhwcHj0sLiQySUBMS0dARkVQWnNiUFVtVkVGZIhlbXd7gYKBTmCNl4x9"
    "lnN+gXz/2wBDARUXFx4aHjshITt8U0ZTfHx8fHx8fHx8fHx8fHx8fHx8fHx8fHx8fHx8fHx8fHx8fHx8fHx8fHx8fHx8fHx8fHz/wAARCAAYAEgD"
    "ASIAAhEBAxEB/8QAGQAAAwEBAQAAAAAAAAAAAAAAAAQFAwIG/8QAIhAAAgICAgICAwAAAAAAAAAAAAECBAMRITETQQUycYGh/8QAGAEAAwEBAAAA"
    "AAAAAAAAAAAAAwQFAgH/xAAdEQADAAMBAQEBAAAAAAAAAAAAAQIDBBEhEgUx/9oADAMBAAIRAxEAPwC5HJGERO3bUU+UKZrnD5JVq05b5A+0w71/"
    "mPTazd2+xZZ3J/kScpTkOVsDeuDVcSBa+GfvrNlJyRlkjKWyhjqvS4O3VS7QGfWP7GxOKOIkRrOUuSlTo9bQzhrJPop18SivQw+8IcZ3d+HOCoox"
    "QDGTKoR4YHJxN+jzujymRyaFZ4nJ9AAGWxvdtpcRvWpuTTZaqUtLegAxbbJ+G2PeBQj0LZNLgAGNeExPbtt8ZlKxHFFN7ab9Avk4LqM/4AFBRJR/"
    "P18bxK3/AEwzXvJ9VL9gABF4UHhhn//Z"
)
#: One in gray, 40 x 16: 5 x 2 units.
JPEG_GRAY = base64.b64decode(
    "/9j/4AAQSkZJRgABAQAAAQABAAD/2wBDABsSFBcUERsXFhceHBsgKEIrKCUlKFE6PTBCYFVlZF9VXVtqeJmBanGQc1tdhbWGkJ6jq62rZ4C8ybqm"
    "x5moq6T/wAALCAAQACgBAREA/8QAFwABAQEBAAAAAAAAAAAAAAAABAIDAP/EAB4QAAEEAgMBAAAAAAAAAAAAAAABAgMRITESQVFh/9oACAEBAAA/"
    "AGRRUiYwJY1E7NdEPf8AQ0smzdjVqkK4L6hznUHlkoHNLvJ//9k="
)
#: Where decoding these can begin, before units 0 and 4 of each row: 8 * offset + bit, and three predictions of DC.
ENTRIES_COLOR = [(2488, 0, 0, 0), (3327, 23, -2, -11), (3466, 29, -3, 3), (4092, 9, 12, 3)]
ENTRIES_GRAY = [(1352, 0, 0, 0), (1468, 23, 0, 0), (1492, 14, 0, 0), (1596, 15, 0, 0)]


def stores() -> dict[str, Store]:
    """Every valid store by its name."""
    return {
        "minimal": minimal(),
        "classification": classification(),
        "gray16": gray16(),
        "detection": detection("memmap"),
        "oriented": oriented(),
        "shards": shards(),
        "replaced-shard": replaced_shard(),
        "chunks": chunks("memmap"),
        "encoded-jpeg": encoded_jpeg(),
        "encoded-source": encoded_source(),
        "array-fields": array_fields(),
        "masks": masks(),
        "later-minor": later_minor(),
        "zarr-detection": detection("zarr"),
        "zarr-chunks": chunks("zarr"),
        "zarr-tie": tie(),
        "zarr-encoded": encoded_jpeg(layout="zarr"),
        "chunk-size": odd_chunks(),
        "channels": named_channels(),
        "restarts": restarts(),
        "encoded-smart": encoded_smart(),
        "entries": entries(),
        "raw-sizes": raw_sizes(),
        "zarr-raw-sizes": raw_sizes(layout="zarr"),
        "captions": captions(),
        "outlines": outlines(),
        "two-images": two_images(),
        "unknown-kinds": unknown_kinds(),
        "unlabelled": unlabelled(),
        "multi-label": multi_label(),
        "signed": signed(),
        "many-channels": many_channels(),
        "gray-palettes": gray_palettes(),
        "row-checksums": row_checksums(),
        "ignorable-metadata": detection("memmap"),
        "unreadable-fields": unreadable_fields(),
    }


# --- the stores -------------------------------------------------------------------------------------------------


def minimal() -> Store:
    """Two images and nothing else; optional members are empty."""
    images = pattern((2, 4, 4, 1), "uint8")
    return Store({"image": image(images)}, {"train": [Shard(2, {"image": images})]})


def classification() -> Store:
    """Images with labels, keys and original sizes; every optional member; a list of what was skipped."""
    images, labels = pattern((6, 8, 8, 3), "uint8"), np.array([0, 2, 1, 1, 0, 2])
    keys = ["cat/1.png", "new\nline.png", "kot/żółw 2.png", "猫/三.png", "a/b/c.png", "🐈.png"]
    arrays = {
        "image": images,
        "label": labels,
        "size": np.array([[8, 8], [480, 640], [8, 8], [1080, 1920], [16, 8], [8, 16]], np.int32),
        **text_table("key", keys),
    }
    fields = {"image": image(images), "label": label("bird", "cat", "dög"), "size": SIZE, "key": KEY}
    skipped = {"where": "dog/9.jpg", "reason": "truncated-image", "message": "ends after 12 of 64 rows."}
    statistics = {
        "image": moments(images),
        "label": {"class_counts": [2, 2, 2]},
        "size": {
            "height": {"min": 8, "max": 1080, "mean": 1600 / 6},
            "width": {"min": 8, "max": 1920, "mean": 2600 / 6},
            "distinct": {"8x8": 2, "480x640": 1, "1080x1920": 1, "16x8": 1, "8x16": 1},
        },
    }
    extra = {
        "provenance": {
            "tool": "make_conformance.py",
            "tool_version": "1",
            "source": "pets",
            "source_format": "folders",
            "options": {"size": [8, 8], "fit": "crop"},
            "created": "2025-01-02T03:04:05Z",
            "skipped": {"truncated-image": 1},
        },
        "license": "CC0-1.0",
        "citation": "Conformance stores of the tsds format.",
    }
    top = {"skipped.jsonl": (json.dumps(skipped) + "\n").encode()}
    return Store(fields, {"train": [Shard(6, arrays)]}, statistics={"train": statistics}, extra=extra, top=top)


def gray16() -> Store:
    """Gray images of 16 bits: (H, W, 1) uint16."""
    images = pattern((4, 6, 5, 1), "uint16")
    statistics = {"image": moments(images)}
    return Store({"image": image(images)}, {"train": [Shard(4, {"image": images})]}, statistics={"train": statistics})


def detection(layout: str) -> Store:
    """Objects with every value, in rows of 2, 0, 1 and 0 objects; keypoints that are absent."""
    images = pattern((4, 16, 20, 3), "uint8")
    values = {
        "boxes": np.array([[0, 0, 20, 16], [2.5, 3, 7.25, 9], [19, 15, 20, 16]], np.float32),
        "labels": np.array([1, 0, 1]),
        "keypoints": np.array(
            [[[3, 4], [12.5, 4], [8, 8]], [[NAN, NAN], [5, 5], [NAN, NAN]], [[NAN, NAN]] * 3], np.float32
        ),
        "difficult": np.array([0, 1, 0], np.uint8),
        "truncated": np.array([1, 0, 1], np.uint8),
        "occluded": np.array([0, 0, 1], np.uint8),
    }
    arrays = {
        "image": images,
        **table("objects", [2, 0, 1, 0], values),
        **text_table("key", ["a.jpg", "b.jpg", "c.jpg", "d.jpg"]),
    }
    fields = {
        "image": image(images),
        "objects": objects(values, ["face", "cat"], ["left_eye", "right_eye", "nose"], [[0, 1]]),
        "key": KEY,
    }
    statistics = {
        "image": moments(images),
        "objects": {"class_counts": [1, 2], "total": 3, "min": 0, "max": 2, "mean": 0.75},
    }
    return Store(fields, {"train": [Shard(4, arrays)]}, layout, statistics={"train": statistics})


def oriented() -> Store:
    """Oriented boxes: turned either way, by the largest angles, outside of the image, and absent."""
    images = pattern((2, 12, 16, 1), "uint8")
    pi = np.float32(np.pi)
    values = {
        "boxes": np.array([[2, 1, 14, 11], [0, 0, 5, 12], [3, 4, 9, 8], [6, 6, 7, 7]], np.float32),
        "oriented_boxes": np.array(
            [[8, 6, 11.5, 4, 0.75], [-1.5, 6, 2, 20, -pi], [NAN] * 5, [6.5, 6.5, 1, 1, pi]], np.float32
        ),
        "labels": np.array([0, 1, 0, 1]),
    }
    arrays = {"image": images, **table("objects", [3, 1], values)}
    fields = {"image": image(images), "objects": objects(values, ["ship", "plane"])}
    statistics = {
        "image": moments(images),
        "objects": {"class_counts": [2, 2], "total": 4, "min": 1, "max": 3, "mean": 2.0},
    }
    return Store(fields, {"train": [Shard(2, arrays)]}, statistics={"train": statistics})


def shards() -> Store:
    """Two shards, the second with an empty table; a split without shards; a split whose shard has no rows."""

    def shard(rows: int, counts: Sequence[int], start: int) -> Shard:
        m = sum(counts)
        values: dict[str, Array] = {
            "boxes": np.array([[0, 0, 1 + i, 2] for i in range(m)], np.float32).reshape(m, 4),
            "labels": np.arange(m, dtype=np.int64) % 2,
        }
        keys = [f"{start + i}.png" for i in range(rows)]
        arrays = {
            "image": pattern((rows, 3, 4, 1), "uint8", start),
            "label": np.arange(rows, dtype=np.int64) % 2,
            **table("objects", counts, values),
            **text_table("key", keys),
        }
        return Shard(rows, arrays)

    splits = {"train": [shard(3, [1, 0, 2], 0), shard(2, [0, 0], 3)], "val": [], "test-0": [shard(0, [], 5)]}
    first = splits["train"][0].arrays
    fields = {
        "image": image(first["image"]),
        "label": label("no", "yes"),
        "objects": objects({"boxes": first["objects/boxes"], "labels": first["objects/labels"]}, ["a", "b"]),
        "key": KEY,
    }
    return Store(fields, splits)


def replaced_shard() -> Store:
    """Three shards, the second of which took the place of another one that is still there; its digest is not listed."""
    first, before, after, last = (
        Shard(rows, {"label": np.array([number] * rows)}) for rows, number in ((2, 0), (3, 1), (3, 2), (1, 1))
    )
    shards = [first, dataclasses.replace(after, number=3), last]
    return Store({"label": label("a", "b", "c")}, {"train": shards}, replaced={"train": {1: before}})


def chunks(layout: str) -> Store:
    """13 rows of 64 KiB: 2 chunks of 7 rows, the last of which is filled up with a row of zeros.

    All pixels of an image are alike, and those of rows 7 to 12 are 0: such chunks are written all the same.
    """
    values = np.array([1, 2, 3, 4, 5, 6, 7] + [0] * 6, np.uint8)
    images = np.ascontiguousarray(np.broadcast_to(values[:, None, None, None], (13, 256, 256, 1)))
    return Store({"image": image(images)}, {"train": [Shard(13, {"image": images})]}, layout, zstd_level=19)


def tie() -> Store:
    """5 rows of 256 KiB: two and a half times a chunk, a half is rounded up to 3, so that a chunk has 2 rows."""
    values = np.arange(1, 6, dtype=np.uint8)
    array = np.ascontiguousarray(np.broadcast_to(values[:, None], (5, 262144)))
    fields = {"constant": {"kind": "array", "dtype": "uint8", "shape": [262144]}}
    return Store(fields, {"train": [Shard(5, {"constant": array})]}, "zarr")


def masks(values: Sequence[int] = (0, 1, 2, 255)) -> Store:
    """Images with masks of three classes; one field ignores 255, the other, of 16 bits, nothing."""
    images = pattern((2, 4, 6, 3), "uint8")
    small = np.array(values, np.uint8)[np.arange(48) % len(values)].reshape(2, 4, 6)
    wide = (np.arange(48) % 300).astype(np.uint16).reshape(2, 4, 6)
    fields = {
        "image": image(images),
        "mask": {"kind": "mask", "dtype": "uint8", "shape": [4, 6], "classes": ["back", "cat", "dog"], "ignored": 255},
        "parts": {"kind": "mask", "dtype": "uint16", "shape": [4, 6], "classes": [f"part {i}" for i in range(300)]},
    }
    statistics = {
        "image": moments(images),
        "mask": {"class_counts": [int((small == i).sum()) for i in range(3)], "ignored": int((small == 255).sum())},
        "parts": {"class_counts": [int((wide == i).sum()) for i in range(300)], "ignored": 0},
    }
    shard = Shard(2, {"image": images, "mask": small, "parts": wide})
    return Store(fields, {"train": [shard]}, statistics={"train": statistics})


def encoded_jpeg(
    files: Sequence[bytes] = (JPEG_16X8, JPEG_8X8, JPEG_16X8),
    shapes: Sequence[tuple[int, int, int]] = ((8, 16, 1), (8, 8, 1), (8, 16, 1)),
    max_pixels: int = 1024,
    layout: str = "memmap",
) -> Store:
    """Images kept as JPEG files, with labels."""
    arrays = {"label": np.array([1, 0, 0])[: len(files)], **image_table(files, shapes)}
    fields = {"image": encoded_image("jpeg", max_pixels), "label": label("off", "on")}
    return Store(fields, {"train": [Shard(len(files), arrays)]}, layout)


def encoded_source(
    first_box: Sequence[float] = (0, 0, 8, 16),
    files: Sequence[bytes] = (),
    shapes: Sequence[tuple[int, int, int]] = ((16, 8, 1), (3, 5, 1)),
) -> Store:
    """Source files unchanged: a JPEG that is to be turned (8 x 16 pixels once it is), a PNG of 5 x 3 pixels."""
    values: dict[str, Array] = {"boxes": np.array([first_box, [1, 1, 5, 3]], np.float32), "labels": np.array([0, 0])}
    arrays = image_table(files or [turned(JPEG_16X8), png(pattern((3, 5), "uint8"))], shapes)
    arrays |= table("objects", [1, 1], values)
    fields = {"image": encoded_image("source", 1024), "objects": objects(values, ["thing"])}
    return Store(fields, {"train": [Shard(2, arrays)]})


def restarts(positions: Sequence[int] | None = None, first: bytes = JPEG_RESTART) -> Store:
    """Two JPEG files, one with a restart marker behind its first 8 x 8 pixels; the places of the markers are stored."""
    places = [first.index(b"\xff\xd0") + 2] if positions is None else positions
    arrays = image_table([first, JPEG_8X8], [(8, 16, 1), (8, 8, 1)]) | lists("restarts", [len(places), 0], places)
    return Store({"image": encoded_image("jpeg", 1024, "restarts")}, {"train": [Shard(2, arrays)]})


def entries(of_first: Sequence[tuple[int, ...]] = ENTRIES_COLOR) -> Store:
    """Source files: two JPEG files with entries, one with restart markers, which has none, and a PNG file."""
    files = [JPEG_COLOR, JPEG_GRAY, JPEG_RESTART, png(pattern((3, 5), "uint8"))]
    every = [packed(*each) for each in (*of_first, *ENTRIES_GRAY)]
    arrays = image_table(files, [(24, 72, 3), (16, 40, 1), (8, 16, 1), (3, 5, 1)])
    arrays |= lists("restarts", [0, 0, 1, 0], [JPEG_RESTART.index(b"\xff\xd0") + 2])
    arrays |= lists("entries", [len(of_first), len(ENTRIES_GRAY), 0, 0], every)
    return Store({"image": encoded_image("source", 2048, "restarts", "entries")}, {"train": [Shard(4, arrays)]})


def packed(position: int, first: int, second: int, third: int, unused: int = 0) -> tuple[int, int, int]:
    """An entry as it is stored."""
    return position, first % 65536 | second % 65536 << 16, third % 65536 | unused << 16


def gray_palettes(channels: tuple[int, int] = (1, 3)) -> Store:
    """BMP files of 3 x 2 pixels: one whose palette is the numbers from 0, which is gray, and one in another order."""
    ramp = [bytes([value] * 3 + [0]) for value in range(256)]
    files = [bmp(ramp), bmp(ramp[::-1])]
    shapes = [(2, 3, each) for each in channels]
    return Store({"image": encoded_image("source", 64)}, {"train": [Shard(2, image_table(files, shapes))]})


def bmp(palette: Sequence[bytes]) -> bytes:
    """A BMP file of 3 x 2 pixels (width x height), 8 bits each."""
    colors = b"".join(palette)
    pixels = bytes([1, 2, 3, 0, 4, 5, 6, 0])
    start = 14 + 40 + len(colors)
    header = b"BM" + struct.pack("<IHHI", start + len(pixels), 0, 0, start)
    return header + struct.pack("<IiiHHIIiiII", 40, 3, 2, 1, 8, 0, len(pixels), 0, 0, len(palette), 0) + colors + pixels


def row_checksums(wrong: int = 0) -> Store:
    """Image files with the CRC-32C of each."""
    files = [JPEG_16X8, JPEG_8X8]
    arrays = image_table(files, [(8, 16, 1), (8, 8, 1)])
    arrays["image/crc32c"] = np.array([crc32c(file) ^ wrong for file in files], np.uint32)
    return Store({"image": encoded_image("jpeg", 1024, "crc32c")}, {"train": [Shard(2, arrays)]})


def encoded_smart(third: bytes = b"P6\n2 3\n255\n" + bytes(range(18))) -> Store:
    """A JPEG file, a PGM file of 5 x 3 pixels and a PPM file of 2 x 3, width x height."""
    files = [JPEG_RESTART, b"P5\n5 3\n255\n" + bytes(range(100, 115)), third]
    arrays = image_table(files, [(8, 16, 1), (3, 5, 1), (3, 2, 3)])
    arrays |= lists("restarts", [1, 0, 0], [JPEG_RESTART.index(b"\xff\xd0") + 2])
    return Store({"image": encoded_image("smart", 1024, "restarts")}, {"train": [Shard(3, arrays)]})


def raw_sizes(
    shapes: Sequence[Sequence[int]] = ((2, 3, 1), (4, 1, 1), (3, 3, 1)),
    max_pixels: int = 9,
    layout: str = "memmap",
    channels: Sequence[str] = (),
    lengths: Sequence[int] = (6, 4, 9),
) -> Store:
    """Pixels of 16 bits, 6, 4 and 9 of three images of differing sizes."""
    pixels = pattern((sum(lengths),), "uint16")
    arrays = {
        "image/offsets": np.concatenate([[0], np.cumsum(lengths)]),
        "image/pixels": pixels,
        "image/shape": np.array(shapes, np.int32),
    }
    field: Json = {
        "kind": "image",
        "encoding": "raw",
        "values": {"pixels": {"dtype": "uint16", "shape": [], "layout": "memmap"}},
        "per_row": {"shape": {"dtype": "int32", "shape": [3]}},
        "max_pixels": max_pixels,
    }
    if channels:
        field["channels"] = list(channels)
    return Store({"image": field}, {"train": [Shard(3, arrays)]}, layout)


def odd_chunks() -> Store:
    """Chunks of about 1,000 bytes: 7 rows of 300 bytes are 2.1 of them, so that a chunk has 4 rows."""
    array = pattern((7, 300), "uint8")
    fields = {"numbers": {"kind": "array", "dtype": "uint8", "shape": [300]}}
    return Store(fields, {"train": [Shard(7, {"numbers": array})]}, chunk_size=1000)


def named_channels() -> Store:
    """Images of two channels with names; depth in meters, whose white is 10."""
    pair, depth = pattern((2, 3, 4, 2), "uint8"), pattern((2, 3, 4, 1), "float32")
    fields = {
        "image": {**image(pair), "channels": ["red", "near infrared"]},
        "depth": {**image(depth), "channels": ["depth in m"], "range": [0, 10.5]},
    }
    return Store(fields, {"train": [Shard(2, {"image": pair, "depth": depth})]})


def captions(ends: Sequence[int] = (0, 5, 5, 14), data: bytes = "a catdwa kóty".encode()) -> Store:
    """Any number of texts a sample: two, of which one is empty; none; and one."""
    arrays = {
        "captions/offsets": np.array([0, 2, 2, 3]),
        "captions/text/offsets": np.array(ends),
        "captions/text/items": np.frombuffer(data, np.uint8),
    }
    fields = {"captions": {"kind": "text", "values": {"text": {**BYTES["bytes"], "ragged": True}}}}
    return Store(fields, {"train": [Shard(3, arrays)]})


def unknown_kinds() -> Store:
    """Fields of kinds and of an encoding that 1.0 does not know, beside one that it knows: their files follow all the
    same. Polygons are a list of points for each, and there is an array with a row a sample."""
    points = pattern((5, 2), "float32")
    arrays: dict[str, Array] = {
        "label": np.array([1, 0]),
        "pose": pattern((2, 4, 4), "float64"),
        "polygons/offsets": np.array([0, 2, 3]),
        "polygons/object": np.array([0, 0, 1]),
        "polygons/points/offsets": np.array([0, 3, 3, 5]),
        "polygons/points/items": points,
        "polygons/area": np.array([2.5, 1], np.float32),
        "pair": np.array([[1, 2], [3, 4]], np.uint8),
        **bytes_table("image", [b"not a JPEG", b"file"]),
    }
    lists = {"dtype": "float32", "shape": [2], "ragged": True}
    fields = {
        "label": label("a", "b"),
        "pose": {"kind": "pose", "dtype": "float64", "shape": [4, 4], "unit": "m"},
        "pair": {"kind": "image\0", "dtype": "uint8", "shape": [2]},
        "polygons": {
            "kind": "polygons",
            "values": {"object": {"dtype": "int64", "shape": []}, "points": lists},
            "per_row": {"area": {"dtype": "float32", "shape": []}},
        },
        "image": {"kind": "image", "encoding": "avif", "values": BYTES},
    }
    return Store(fields, {"train": [Shard(2, arrays)]}, "zarr", extra={"format_version": "1.1"})


def two_images(box: Sequence[float] = (4, 0, 12, 8), height: int = 8, of: str = "photo") -> Store:
    """Two fields of images of different sizes; the objects and the mask lie in the one that is not called `image`."""
    values = {"boxes": np.array([box], np.float32), "labels": np.array([0])}
    arrays = {
        "image": pattern((1, 4, 6, 1), "uint8"),
        "photo": pattern((1, 8, 12, 3), "uint8", 5),
        "mask": (np.arange(height * 12) % 2).astype(np.uint8).reshape(1, height, 12),
        **table("objects", [1], values),
    }
    fields = {
        "image": image(arrays["image"]),
        "photo": image(arrays["photo"]),
        "mask": {"kind": "mask", "dtype": "uint8", "shape": [height, 12], "classes": ["back", "cat"], "image": of},
        "objects": {**objects(values, ["cat"]), "image": of},
    }
    return Store(fields, {"train": [Shard(1, arrays)]})


def outlines(runs: Sequence[int] = (1, 2, 1, 2, 18), visibility: int = 1) -> Store:
    """Objects with outlines: two polygons of one object, runs of a group, neither; keypoints with visibility."""
    values = {
        "boxes": np.array([[1, 1, 5, 4], [0, 0, 2, 3], [2, 0, 3, 1]], np.float32),
        "labels": np.array([0, 1, 0]),
        "keypoints": np.array([[[1, 1], [NAN, NAN]], [[NAN, NAN]] * 2, [[2, 0.5], [3, 1]]], np.float32),
        "visibility": np.array([[2, 0], [0, 0], [visibility, 2]], np.uint8),
        "iscrowd": np.array([0, 1, 0], np.uint8),
        "area": np.array([6.5, 4, 1], np.float32),
    }
    corners = [[1, 1], [5, 1], [5, 4], [NAN, NAN], [2, 2], [3, 2], [3, 4]]
    arrays = {
        "image": pattern((2, 4, 6, 1), "uint8"),
        **table("objects", [2, 1], values),
        "objects/polygons/offsets": np.array([0, 7, 7, 7]),
        "objects/polygons/items": np.array(corners, np.float32),
        "objects/rle/offsets": np.array([0, 0, len(runs), len(runs)]),
        "objects/rle/items": np.array(runs, np.uint32),
    }
    field = objects(values, ["cat", "crowd"], ["head", "tail"])
    field["values"] |= {
        "polygons": {"dtype": "float32", "shape": [2], "ragged": True},
        "rle": {"dtype": "uint32", "shape": [], "ragged": True},
    }
    fields = {"image": image(arrays["image"]), "objects": {**field, "skeleton": [[0, 1]]}}
    return Store(fields, {"train": [Shard(2, arrays)]})


def unlabelled() -> Store:
    """Labels of which some are not known: -1."""
    labels = {"train": np.array([1, -1, 0]), "test": np.array([-1, -1])}
    splits = {name: [Shard(len(values), {"label": values})] for name, values in labels.items()}
    return Store({"label": label("a", "b")}, splits, statistics={"train": {"label": {"class_counts": [1, 1]}}})


def multi_label(first: Sequence[int] = (1, 0, 1)) -> Store:
    """Labels of three classes at once: several, none, and some that are not known; a field of one class."""
    rows = np.array([first, (0, 0, 0), (-1, 1, -1), (-1, -1, -1)], np.int8)
    field = {"kind": "labels", "dtype": "int8", "shape": [3], "classes": ["cat", "dög", "猫"]}
    other = {"kind": "labels", "dtype": "int8", "shape": [1], "classes": ["indoors"]}
    counts = {"class_counts": (rows == 1).sum(axis=0).tolist(), "unknown": (rows == -1).sum(axis=0).tolist()}
    shards = [
        Shard(3, {"labels": rows[:3], "place": rows[:3, 1:2].copy()}),
        Shard(1, {"labels": rows[3:], "place": rows[3:, :1].copy()}),
    ]
    return Store({"labels": field, "place": other}, {"train": shards}, statistics={"train": {"labels": counts}})


def many_channels() -> Store:
    """Images of 6 channels with names, and of 64 without."""
    bands, cube = pattern((2, 8, 9, 6), "uint16"), pattern((2, 2, 2, 64), "uint8")
    names = ["blue", "green", "red", "near infrared", "short-wave infrared 1", "short-wave infrared 2"]
    fields = {"image": {**image(bands), "channels": names}, "cube": image(cube)}
    return Store(fields, {"train": [Shard(2, {"image": bands, "cube": cube})]})


def signed() -> Store:
    """A signature, which no list has, and files of the root directory with dots and capital letters in their names."""
    shard = Shard(2, {"label": np.array([1, 0])})
    top = {"README.md": b"# Labels\n", "LICENSE": b"CC0\n", "thumbs_1-a.v2.Bin": bytes(3)}
    unlisted = {"zarr.json.sig": b"any bytes"}
    return Store({"label": label("a", "b")}, {"train": [shard]}, top=top, unlisted=unlisted)


def array_fields() -> Store:
    """One array for every data type, of several shapes, with every character that a name may have."""
    arrays: dict[str, Array] = {}
    for kind, sizes in {"uint": (8, 16, 32, 64), "int": (8, 16, 32, 64), "float": (16, 32, 64)}.items():
        for i, bits in enumerate(sizes):
            arrays[f"{kind}_{bits}-x"] = pattern(((3,), (3, 2), (3, 1, 2), (3, 2, 1, 2))[i], f"{kind}{bits}", i)
    arrays["float_32-x"][0, 0] = np.inf
    arrays["int_64-x"].reshape(-1)[:2] = -(2**63), 2**63 - 1
    arrays["uint_64-x"].reshape(-1)[0] = 2**64 - 1
    fields = {name: {"kind": "array", "dtype": a.dtype.name, "shape": list(a.shape[1:])} for name, a in arrays.items()}
    return Store(fields, {"train": [Shard(3, arrays)]})


def later_minor() -> Store:
    """A store of version 1.7: members that 1.0 does not know, wherever a later minor version may add some."""
    images, labels = pattern((2, 4, 4, 1), "uint8"), np.array([0, 1])
    values: dict[str, Array] = {
        "boxes": np.array([[0, 0, 2, 2]], np.float32),
        "scores": np.array([[0.5, 0.25]], np.float16),
    }
    arrays = {"image": images, "label": labels, **table("objects", [0, 1], values)}
    fields = {
        "image": {**image(images), "colour_space": "sRGB"},
        "label": {**label("a", "b"), "colours": ["#ff0000", "#00ff00"]},
        "objects": {**objects(values, []), "tracks": None},
    }
    extra = {"format_version": "1.7", "signature": {"algorithm": "none"}, "provenance": {"who": ["x"]}}
    statistics = {"train": {"label": {"class_counts": [1, 1], "histogram": [1, 2, 3]}, "objects": 7, "later": [1]}}
    return Store(fields, {"train": [Shard(2, arrays)]}, statistics=statistics, extra=extra)


def unreadable_fields() -> Store:
    """Version 1.4: fields of a data type, a layout and requirements that 1.0 does not know, and two that it reads."""
    images = pattern((2, 4, 4, 1), "uint8")
    others = {
        "embedding/c/0/0": bytes(range(16)),
        "depth/data": b"any bytes",
        "tracks/base/c/0": b"1",
        "tracks/deltas/c/0": b"2",
        "points/offsets/c/0": bytes(24),
        "points/xyz/c/0/0": bytes(15),
    }
    fields = {
        "image": image(images),
        "embedding": {"kind": "array", "dtype": "bfloat16", "shape": [4]},
        "depth": {**image(images), "layout": "blosc2"},
        "label": label("a", "b"),
        "tracks": {"kind": "tracks", "requires": ["deltas"], "dtype": 8},
        "points": {"kind": "points", "values": {"xyz": {"dtype": "float8_e4m3", "shape": [3]}}},
    }
    shard = Shard(2, {"image": images, "label": np.array([1, 0])}, others=others, lengths={"points": 5})
    return Store(fields, {"train": [shard]}, extra={"format_version": "1.4"})


def add_members(manifest: Json) -> None:
    """Add members that version 1.0 does not know to the parts of a manifest that `Store` cannot describe."""
    for split in manifest["splits"].values():
        split["weight"] = 0.5
        for shard in split["shards"]:
            shard["machine"] = {"name": "m1"}


def add_metadata(metadata: Mapping[str, Json]) -> None:
    """Add what Zarr allows to ignore: names of dimensions, and a member that need not be understood."""
    for value in metadata.values():
        if value["node_type"] == "array":
            value["my_notes"] = {"must_understand": False, "by": ["me"]}
            value["dimension_names"] = ["row", *[None] * (len(value["shape"]) - 1)]


# --- fields, as the manifest has them ---------------------------------------------------------------------------

BYTES: Json = {"bytes": {"dtype": "uint8", "shape": []}}
KEY: Json = {"kind": "key", "values": BYTES}
SIZE: Json = {"kind": "size", "dtype": "int32", "shape": [2]}


PER_ROW: Mapping[str, Json] = {
    "restarts": {"dtype": "uint32", "shape": [], "ragged": True},
    "entries": {"dtype": "uint32", "shape": [3], "ragged": True},
    "crc32c": {"dtype": "uint32", "shape": []},
}


def encoded_image(encoding: str, max_pixels: int, *more: str) -> Json:
    """A field of images kept as files of at most so many pixels, with more arrays per row."""
    values = {"bytes": {**BYTES["bytes"], "layout": "memmap"}}
    per_row = {"shape": {"dtype": "int32", "shape": [3]}, **{name: dict(PER_ROW[name]) for name in more}}
    return {"kind": "image", "encoding": encoding, "values": values, "per_row": per_row, "max_pixels": max_pixels}


def image(images: Array) -> Json:
    """A field of images kept as pixels."""
    return {"kind": "image", "encoding": "raw", "dtype": images.dtype.name, "shape": list(images.shape[1:])}


def label(*classes: str) -> Json:
    """A field of class indices."""
    return {"kind": "label", "dtype": "int64", "shape": [], "classes": list(classes)}


def objects(
    values: Mapping[str, Array], classes: Sequence[str], keypoints: Sequence[str] = (), pairs: Sequence[Any] = ()
) -> Json:
    """A table of objects."""
    specs = {name: {"dtype": array.dtype.name, "shape": list(array.shape[1:])} for name, array in values.items()}
    names = {"classes": list(classes), "keypoints": list(keypoints), "flip_pairs": list(pairs)}
    return {"kind": "objects", "values": specs, **names}


# --- arrays -----------------------------------------------------------------------------------------------------


def pattern(shape: tuple[int, ...], dtype: str, start: int = 0) -> Array:
    """Values in [0, 251), no two neighbours alike; above a byte also in the higher bytes."""
    steps = np.arange(math.prod(shape), dtype=np.int64) * 37 + start * 11
    values = steps % 251 * (257 if np.dtype(dtype).kind in "ui" and np.dtype(dtype).itemsize > 1 else 1)
    if dtype.startswith("int"):
        values = values // 4 - 20
    return (values / 8 if dtype.startswith("float") else values).astype(dtype).reshape(shape)


def table(name: str, counts: Sequence[int], values: Mapping[str, Array]) -> dict[str, Array]:
    """The arrays of a table whose row i has ``counts[i]`` values."""
    offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
    return {f"{name}/offsets": offsets, **{f"{name}/{value}": array for value, array in values.items()}}


def bytes_table(name: str, items: Sequence[bytes]) -> dict[str, Array]:
    """The arrays of a table of bytes."""
    data = np.frombuffer(b"".join(items), np.uint8)
    return table(name, [len(item) for item in items], {"bytes": data})


def image_table(files: Sequence[bytes], shapes: Sequence[tuple[int, int, int]]) -> dict[str, Array]:
    """The arrays of images that are kept as files."""
    return {**bytes_table("image", files), "image/shape": np.array(shapes, np.int32).reshape(-1, 3)}


def lists(name: str, counts: Sequence[int], items: Sequence[Any]) -> dict[str, Array]:
    """The arrays of a list of numbers for each image file."""
    offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
    return {f"image/{name}/offsets": offsets, f"image/{name}/items": np.array(items, np.uint32)}


def text_table(name: str, items: Sequence[str]) -> dict[str, Array]:
    """The arrays of a table of texts in UTF-8."""
    return bytes_table(name, [item.encode() for item in items])


def moments(images: Array) -> Json:
    """Mean and standard deviation of each channel, from exact sums of integers."""
    scale = {"uint8": 255, "uint16": 65535}[images.dtype.name]
    flat = images.reshape(-1, images.shape[-1]).astype(np.int64)
    n = len(flat)
    sums, squares = ([int(s) for s in total] for total in (flat.sum(0), (flat * flat).sum(0)))
    return {
        "mean": [s / (n * scale) for s in sums],
        "std": [math.sqrt((n * q - s * s) / (n * n)) / scale for s, q in zip(sums, squares, strict=True)],
        "scale": scale,
    }


# --- image files ------------------------------------------------------------------------------------------------


def turned(jpeg: bytes) -> bytes:
    """A JPEG file with an EXIF block that says orientation 6: to be shown turned by 90 degrees clockwise."""
    tiff = b"II*\0\x08\0\0\0" + b"\x01\0" + b"\x12\x01\x03\0\x01\0\0\0\x06\0\0\0" + b"\0\0\0\0"
    segment = b"Exif\0\0" + tiff
    return jpeg[:2] + b"\xff\xe1" + (len(segment) + 2).to_bytes(2, "big") + segment + jpeg[2:]


def png(pixels: Array) -> bytes:
    """A gray PNG file of 8 bits; its deflate stream is one stored block, the same with any zlib."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return len(data).to_bytes(4, "big") + kind + data + zlib.crc32(kind + data).to_bytes(4, "big")

    height, width = pixels.shape
    raw = b"".join(b"\0" + row.tobytes() for row in pixels)
    size = len(raw).to_bytes(2, "little")
    stored = b"\x01" + size + bytes(255 - b for b in size) + raw
    stream = b"\x78\x01" + stored + zlib.adler32(raw).to_bytes(4, "big")
    header = width.to_bytes(4, "big") + height.to_bytes(4, "big") + b"\x08\0\0\0\0"
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", stream) + chunk(b"IEND", b"")
