"""Samples of a store for export: an image's bytes, its name, labels and objects."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tensorstore_ds.errors import OptionError
from tensorstore_ds.format.kinds import KeyField, LabelField, LabelsField, ObjectsField, TextField
from tensorstore_ds.format.kinds.base import of_image, of_kind
from tensorstore_ds.imaging.codecs import encode_png
from tensorstore_ds.imaging.outlines import split_polygons
from tensorstore_ds.imaging.placement import clip
from tensorstore_ds.machine import map_in_threads
from tensorstore_ds.reading.store import Split
from tensorstore_ds.reading.stored_images import netpbm_pixels
from tensorstore_ds.sources.base import IMAGE_SUFFIXES

#: What files of these formats begin with, and the suffixes that they may have, the usual one first.
_SIGNATURES: tuple[tuple[bytes, tuple[str, ...]], ...] = (
    (b"\xff\xd8", (".jpg", ".jpeg")),
    (b"\x89PNG", (".png",)),
    (b"RIFF", (".webp",)),
    (b"GIF8", (".gif",)),
    (b"BM", (".bmp",)),
    (b"II", (".tif", ".tiff")),
    (b"MM", (".tif", ".tiff")),
    (b"\0\0\0\x0cjP", (".jp2",)),
    (b"\xff\x4f", (".jp2",)),  # its codestream alone
    (b"P", (".ppm", ".pgm", ".pbm")),
)
#: What names cannot hold on some system, in XML or in a line, and names that mean a device on Windows.
_UNSAFE = re.compile(
    r'[\x00-\x1f\x7f-\x9f\u2028\u2029\ufffe\uffff<>:"|?*/\\]|[.\s]$|^\.|^(?i:con|prn|aux|nul|com\d|lpt\d)(\.|$)'
)
_LONGEST = 200  # bytes of a name
_ROUNDING = 0.01  # pixels
#: Pixels that PNG keeps as they are: dtype and number of channels.
_PNG = {("uint8", 1), ("uint8", 3), ("uint8", 4), ("uint16", 1)}


@dataclass(frozen=True, slots=True)
class ExportedSample:
    """One sample to export."""

    split: str  #: Name of the split.
    row: int  #: Row of the sample in the split.
    name: str  #: Name of the image file, without a folder. It is unique in its folder.
    image: bytes  #: Bytes of the image file.
    size: tuple[int, int]  #: (height, width) of the image after its orientation is applied.
    channels: int  #: Number of channels of the image.
    label: int | None  #: Class index, -1 if it is unknown, or None if the store has no labels.
    objects: Mapping[str, Any] | None  #: The objects as in ``split["objects"][row]``, or None if the store has none.
    texts: Mapping[str, list[str]] = field(default_factory=dict)  #: Texts of each field of kind `text`.
    #: (C,) 1, 0 or -1 for each class, or None if the store has no field of kind `labels`.
    labels: NDArray[np.int8] | None = None

    @property
    def stem(self) -> str:
        """The name without its suffix."""
        return self.name.rpartition(".")[0]

    @property
    def oriented_boxes(self) -> NDArray[np.float64]:
        """(M, 5) the oriented box of each object, NaN for none."""
        values = self.objects or {}
        return np.asarray(values.get("oriented_boxes", np.full((len(values["boxes"]), 5), np.nan)), np.float64)

    @property
    def polygons(self) -> list[list[NDArray[Any]]]:
        """The polygons (k, 2) of each object."""
        values = self.objects or {}
        return [*map(split_polygons, values.get("polygons", [np.empty((0, 2))] * len(values["boxes"])))]


class Names:
    """Assigns unique and safe names to the files of one folder, ignoring case."""

    def __init__(self) -> None:
        self._taken: set[str] = set()

    def new(self, key: str, row: int, suffixes: tuple[str, ...]) -> str:
        """Return a new name: the last part of `key` with one of `suffixes`.

        If it is unsafe, `row` replaces it. If it is taken, `row` is appended. Spaces around it, which readers would
        ignore, are removed.
        """
        last = key.replace("\\", "/").rpartition("/")[2].strip()
        stem, dot, suffix = last.rpartition(".")
        stem = stem if f"{dot}{suffix}".lower() in IMAGE_SUFFIXES else last
        suffix = f".{suffix}" if f"{dot}{suffix}".lower() in suffixes else suffixes[0]
        if not is_safe(stem) or not is_safe(f"{stem}{suffix}"):
            stem = f"{row:06d}"
        while stem.lower() in self._taken:  # of stems, because annotations share them
            stem = f"{stem}_{row:06d}"
        self._taken.add(stem.lower())
        return f"{stem}{suffix}"


def is_safe(name: str) -> bool:
    """Return whether a text, such as a class name, can be the name of a folder on every operating system."""
    return bool(name) and len(name.encode(errors="surrogatepass")) <= _LONGEST and not _UNSAFE.search(name)


def samples_of(split: Split, names: Mapping[int, Names] | Names) -> Iterator[ExportedSample]:
    """Iterate over all samples of a split, in order.

    Args:
        split: an open split.
        names: names of the folder, or of the folder of each label.

    Raises:
        OptionError: the split has pixels that image files cannot store exactly.
    """
    label, labels = split.first(LabelField), split.first(LabelsField)
    objects = next(iter(of_image(split.fields, ObjectsField)), None)
    keys = split.first(KeyField)

    def encoded(row: int) -> bytes:
        return image_file(split["image"][row], f"{split.name} (row {row})")

    for row, image in enumerate(map_in_threads(encoded, range(len(split)))):  # to encode PNG takes most of the time
        shape = split.image_shapes[row]
        number = None if label is None else int(split[label][row])
        folder = names if isinstance(names, Names) else names[-1 if number is None else number]
        name = folder.new(split[keys][row] if keys is not None else "", row, suffixes_of(image))
        size = int(shape[0]), int(shape[1])
        values = None if objects is None else split[objects][row]
        texts = {each: split[each][row] for each in of_kind(split.fields, TextField)}
        several = None if labels is None else split[labels][row]
        yield ExportedSample(split.name, row, name, image, size, int(shape[2]), number, values, texts, several)


def image_file(stored: bytes | NDArray[Any], where: str) -> bytes:
    """The file as stored, or pixels (H, W, C) as a PNG file, which keeps them exactly."""
    pixels = netpbm_pixels(stored) if isinstance(stored, bytes) else stored
    if pixels is None:
        return bytes(stored)
    if (pixels.dtype.name, pixels.shape[2]) not in _PNG:
        expected = "8-bit gray, RGB or RGBA, or 16-bit gray"
        message = f"{where}: expected {expected}, found {pixels.dtype} with {pixels.shape[2]} channels"
        raise OptionError(f"{message}. No image file keeps that: export to npy.")
    return encode_png(pixels)


def suffixes_of(image: bytes) -> tuple[str, ...]:
    """Valid suffixes for the bytes of an image file, the usual one first."""
    return next(suffixes for signature, suffixes in (*_SIGNATURES, (b"", (".img",))) if image.startswith(signature))


def short(value: float) -> float:
    """The shortest decimal number with the same single-precision value: 0.1, not 0.10000000149011612.

    >>> short(float(np.float32(0.1))), short(2.0)
    (0.1, 2.0)
    """
    return float(str(np.float32(value)))


def extent(start: float, stop: float) -> float:
    """Shortest length from `short` of a start to a stop, both in single precision."""
    first, exact = short(start), stop - short(start)
    for decimals in range(8):
        length = round(exact, decimals)
        if np.float32(first + length) == np.float32(stop):
            return length
    return exact


def hull(rings: Sequence[NDArray[Any]], size: tuple[int, int]) -> NDArray[np.float64]:
    """Box (4,) of polygons in an image of (height, width), as a conversion computes it."""
    corners = np.concatenate(rings)
    box: NDArray[np.float64] = np.concatenate([corners.min(0), corners.max(0)]).astype(np.float64)
    return clip(box[None], size).reshape(4)


def is_hull(box: NDArray[Any], rings: Sequence[NDArray[Any]], size: tuple[int, int]) -> bool:
    """Whether a conversion computes this box from the polygons, up to rounding."""
    return np.allclose(hull(rings, size), box, rtol=0, atol=_ROUNDING)
