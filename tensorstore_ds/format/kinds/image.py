"""Images, as pixels or as files, and their original sizes."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Self, cast

import numpy as np
from numpy.typing import NDArray

from tensorstore_ds.errors import FormatError, Problem
from tensorstore_ds.format.kinds.base import (
    BYTES,
    ArrayField,
    BytesField,
    Field,
    Finding,
    ImageSizes,
    StoredRows,
    StoredTable,
    TableField,
    UnknownField,
    pieces,
)
from tensorstore_ds.format.manifest_values import ManifestValues, brief
from tensorstore_ds.format.schema import ENCODINGS, LIMIT, MOST_CHANNELS, ArraySpec, EncodedSample, Encoding
from tensorstore_ds.format.statistics import ImageSums, SizeSums, Sums

_SIZE = ArraySpec("int32", (2,))
_SHAPE = ArraySpec("int32", (3,))
#: Optional array `per_row` with the CRC-32C of each file, for readers that fetch single files.
CRC = "crc32c"
_MARKER = re.compile(rb"\xff[^\x00]", re.DOTALL)
_EOI = 0xD9
#: Optional lists `per_row` of image files: where intervals of JPEG files begin, or where decoding can begin.
FILE_LISTS = {"restarts": ArraySpec("uint32", is_ragged=True), "entries": ArraySpec("uint32", (3,), is_ragged=True)}


class ImageField(Field):
    """One image per sample."""

    kind: ClassVar[str] = "image"
    is_large: ClassVar[bool] = True

    @property
    def encoding(self) -> Encoding:
        """The encoding of images: ``raw``, ``jpeg``, ``smart`` or ``source``."""
        raise NotImplementedError

    def dump(self) -> dict[str, Any]:
        return {**super().dump(), "encoding": self.encoding}

    def advice_to_join(self, other: Field) -> str:
        if self.dtype != other.dtype and self.dtype and other.dtype:
            return "Save all images with one bit depth, and convert them again."
        return "Write one of them again with tsds repack, by the options `encoding`, `size` and `color`."

    @classmethod
    def parse(cls, values: ManifestValues, where: str, data: dict[str, Any]) -> Field:
        encoding = values.text(f"{where}.encoding", data.get("encoding"))
        if encoding not in ENCODINGS:
            return UnknownField.parse(values, where, data)
        if encoding != "raw":
            return EncodedImageField.parse_encoded(cast(Encoding, encoding), values, where, data)
        channels = values.names(f"{where}.channels", data["channels"]) if "channels" in data else None
        if "values" in data:
            return RaggedImageField.parse_ragged(channels, values, where, data)
        spec = values.spec(where, data)
        if len(spec.shape) != 3:
            values.wrong(where, f"expected the shape [H, W, C] of an image, found {list(spec.shape)}.")
            return RawImageField(spec)
        if spec.shape[2] > MOST_CHANNELS:
            values.wrong(where, f"expected at most {MOST_CHANNELS} channels, found {spec.shape[2]}.")
        if channels is not None and len(channels) != spec.shape[2]:
            values.wrong(f"{where}.channels", f"expected {spec.shape[2]} names, found {len(channels)}.")
        return RawImageField(spec, channels=channels, range=_range(values, where, data))


@dataclass(frozen=True)
class PixelField(ImageField):
    """Images stored as pixels.

    `channels` None means gray for 1, sRGB for 3, sRGB and alpha for 4, and unknown for other numbers. `range` is black
    and white; None means 0 and the largest integer, and unknown for floating-point numbers.
    """

    channels: tuple[str, ...] | None = field(default=None, kw_only=True)
    range: tuple[float, float] | None = field(default=None, kw_only=True)

    def dump(self) -> dict[str, Any]:
        channels = {} if self.channels is None else {"channels": list(self.channels)}
        return {**super().dump(), **channels, **({} if self.range is None else {"range": list(self.range)})}

    @property
    def encoding(self) -> Encoding:
        """Pixels are ``raw``."""
        return "raw"


@dataclass(frozen=True)
class RawImageField(PixelField, ArrayField):
    """Pixels of images of one size. `spec` has the shape (H, W, C)."""

    @property
    def one_shape(self) -> tuple[int, ...]:
        """(height, width, channels)."""
        return self.spec.shape

    @property
    def dtype(self) -> str:
        """Data type of the pixels."""
        return self.spec.dtype

    def row(self, name: str, sample: EncodedSample) -> Any:
        return sample.image

    def sums(self, rows: NDArray[Any]) -> Sums:
        return ImageSums.of_pixels(rows)


@dataclass(frozen=True)
class RaggedImageField(PixelField, TableField):
    """Pixels of images of different sizes with at most `max_pixels` each, back to back in C order."""

    per_row: Mapping[str, ArraySpec] = field(default_factory=lambda: {"shape": _SHAPE}, kw_only=True)
    max_pixels: int = field(default=LIMIT - 1, kw_only=True)

    @classmethod
    def of(cls, dtype: str, max_pixels: int) -> RaggedImageField:
        """Create the field for images of a data type."""
        return cls({"pixels": ArraySpec(dtype, layout="memmap")}, max_pixels=max_pixels)

    @classmethod
    def parse_ragged(
        cls, channels: tuple[str, ...] | None, values: ManifestValues, where: str, data: dict[str, Any]
    ) -> Field:
        """Parse images of different sizes."""
        specs, per_row = values.table(where, data)
        pixels = specs.get("pixels")
        if pixels is None or len(specs) > 1 or pixels.shape or pixels.is_ragged:
            found = ", ".join(f"{name} ({spec})" for name, spec in specs.items())
            values.wrong(where, f"expected the one value pixels (of shape []), found {found or 'none'}.")
            specs = {"pixels": ArraySpec("uint8", layout="memmap")}
        elif pixels.layout != "memmap":
            values.wrong(f"{where}.values.pixels", "expected the layout memmap for the pixels of images, found none.")
        _expect_per_row(values, where, per_row, {"shape": _SHAPE})
        max_pixels = values.integer(f"{where}.max_pixels", data.get("max_pixels"))
        return cls(specs, per_row=per_row, channels=channels, range=_range(values, where, data), max_pixels=max_pixels)

    @property
    def dtype(self) -> str:
        """Data type of the pixels."""
        return self.values["pixels"].dtype

    def dump(self) -> dict[str, Any]:
        return {**super().dump(), "max_pixels": self.max_pixels}

    def joined(self, name: str, own: Sequence[Self | None], class_map: Mapping[str, str]) -> Self:
        return replace(self, max_pixels=max(each.max_pixels for each in own if each is not None))

    def describe(self) -> str:
        return f"{self.dtype} pixels of differing sizes"

    def rows(self, name: str, samples: Sequence[EncodedSample]) -> tuple[NDArray[np.int64], dict[str, Any]]:
        shapes = np.array([sample.shape for sample in samples], np.int32).reshape(-1, 3)
        return shapes.astype(np.int64).prod(axis=1), {"pixels": [each.image for each in samples], "shape": shapes}

    def value(self, values: Mapping[str, Any], per_row: Callable[[str], Any], where: str) -> Any:
        """Return (H, W, C) pixels, a view. Raises `FormatError` if their number differs from the shape."""
        pixels, shape = values["pixels"], per_row("shape").tolist()
        if min(shape) < 1 or math.prod(shape) != len(pixels):
            raise FormatError(Problem(where, "image-shape", _wrong_shape(shape, len(pixels))))
        return pixels.reshape(shape)

    def check(self, table: StoredTable, image_sizes: ImageSizes) -> Iterator[Finding]:
        """Yield images whose numbers differ from their shape, or with more pixels or other channels than allowed."""
        for start, shapes in pieces(table.per_row["shape"]):
            lengths = np.diff(table.offsets[start : start + len(shapes) + 1]).tolist()
            for row, (shape, length) in enumerate(zip(shapes.tolist(), lengths, strict=True), start):
                if min(shape) < 1 or math.prod(shape) != length:
                    yield "image-shape", f"row {row}: {_wrong_shape(shape, length)}"
                elif shape[0] * shape[1] > self.max_pixels:
                    yield "image-shape", f"expected at most {self.max_pixels} pixels, found {shape} in row {row}."
                elif shape[2] > MOST_CHANNELS:
                    yield "image-shape", f"expected at most {MOST_CHANNELS} channels, found {shape} in row {row}."
                elif self.channels is not None and shape[2] != len(self.channels):
                    yield "image-shape", f"expected {len(self.channels)} channels, found {shape} in row {row}."
                else:
                    continue
                return


@dataclass(frozen=True)
class EncodedImageField(ImageField, BytesField):
    """Images of different sizes with at most `max_pixels` each, stored as files."""

    values: Mapping[str, ArraySpec] = field(default_factory=lambda: {"bytes": replace(BYTES, layout="memmap")})
    per_row: Mapping[str, ArraySpec] = field(default_factory=lambda: {"shape": _SHAPE, **FILE_LISTS}, kw_only=True)
    encoding: Encoding = "source"
    max_pixels: int = LIMIT - 1

    @classmethod
    def of(cls, encoding: Encoding, max_pixels: int) -> EncodedImageField:
        """Create the field for this library's files: only ``source`` files may lack restart markers or have entries."""
        lists = {name: spec for name, spec in FILE_LISTS.items() if encoding == "source" or name != "entries"}
        return cls(encoding=encoding, max_pixels=max_pixels, per_row={"shape": _SHAPE, **lists})

    @classmethod
    def parse_encoded(cls, encoding: Encoding, values: ManifestValues, where: str, data: dict[str, Any]) -> Field:
        """Parse a known encoding."""
        specs, per_row = cls.parse_arrays(values, where, data)
        if specs["bytes"].layout != "memmap":  # images are fetched singly, and files do not get smaller
            values.wrong(f"{where}.values.bytes", "expected the layout memmap for the bytes of images, found none.")
        _expect_per_row(values, where, per_row, {"shape": _SHAPE, **FILE_LISTS, CRC: ArraySpec("uint32")})
        max_pixels = values.integer(f"{where}.max_pixels", data.get("max_pixels"))
        return cls(specs, encoding, max_pixels, per_row=per_row)

    def dump(self) -> dict[str, Any]:
        return {**super().dump(), "max_pixels": self.max_pixels}

    def likeness(self) -> dict[str, Any]:
        data = super().likeness()  # samples of a side that lacks these lists have empty ones
        return {**data, "per_row": {n: spec for n, spec in data["per_row"].items() if n not in (*FILE_LISTS, CRC)}}

    def joined(self, name: str, own: Sequence[Self | None], class_map: Mapping[str, str]) -> Self:
        sides = [each for each in own if each is not None]
        has_crcs = all(CRC in each.per_row for each in sides)
        per_row = {name: spec for name, spec in self.per_row.items() if name != CRC or has_crcs}
        return replace(self, per_row=per_row, max_pixels=max(each.max_pixels for each in sides))

    def describe(self) -> str:
        return f"{self.encoding} files"

    def rows(self, name: str, samples: Sequence[EncodedSample]) -> tuple[NDArray[np.int64], dict[str, Any]]:
        files = [sample.image for sample in samples]
        shapes = np.array([sample.shape for sample in samples], np.int32).reshape(-1, 3)
        return np.array(list(map(len, files)), np.int64), {"bytes": files, "shape": shapes}

    def lists(
        self, name: str, samples: Sequence[EncodedSample]
    ) -> dict[str, tuple[NDArray[np.int64], dict[str, NDArray[Any]]]]:
        found = {}
        for value, spec in FILE_LISTS.items():
            if value in self.per_row:
                none = np.empty((0, *spec.shape), spec.dtype)
                lists = [none if (own := getattr(sample, value)) is None else own for sample in samples]
                lengths = np.array([len(each) for each in lists], np.int64)
                found[value] = lengths, {"items": np.concatenate([none, *lists])}
        return found

    def check(self, table: StoredTable, image_sizes: ImageSizes) -> Iterator[Finding]:
        """Yield files whose restart markers are not all listed. Nothing else about the files is checked."""
        if CRC in self.per_row:
            yield from _check_crcs(table)
        if "restarts" not in self.per_row:
            return
        restarts = table.per_row["restarts"]
        for row in range(len(table)):
            data = table["bytes"][int(table.offsets[row]) : int(table.offsets[row + 1])].tobytes()
            positions = restarts[row].tolist()
            if positions and positions != _restarts(data):
                yield "image-restarts", f"expected the places of all restart markers of the one scan in row {row}."
                return


def _check_crcs(table: StoredTable) -> Iterator[Finding]:
    import google_crc32c  # imported here, because reading a store never needs it

    for start, crcs in pieces(table.per_row[CRC]):
        for row, crc in enumerate(crcs.tolist(), start):
            data = table["bytes"][int(table.offsets[row]) : int(table.offsets[row + 1])].tobytes()
            if (found := int(google_crc32c.value(data))) != crc:
                yield "checksum", f"expected the CRC-32C {crc:08x} of the file in row {row}, found {found:08x}."
                return


def _restarts(data: bytes) -> list[int] | None:
    """Return the position after each restart marker of a JPEG file of one scan, or None for other files."""
    found = list[int]()
    for match in _MARKER.finditer(data, _scan_start(data)):
        code = data[match.end() - 1]
        if code == _EOI:
            return found
        if code != 0xD0 + len(found) % 8:
            return None
        found.append(match.end())
    return None


def _scan_start(data: bytes) -> int:
    """Return where the pixels of a JPEG file begin, after its header, which may contain a camera's preview."""
    at = 2
    while data[at : at + 1] == b"\xff" and len(data) >= at + 4:
        is_scan = data[at + 1] == 0xDA
        at += 2 + int.from_bytes(data[at + 2 : at + 4])
        if is_scan:
            break
    return at


def _wrong_shape(shape: list[int], found: int) -> str:
    return f"expected {math.prod(shape)} numbers for an image of {' x '.join(map(str, shape))}, found {found}."


def _expect_per_row(
    values: ManifestValues, where: str, found: Mapping[str, ArraySpec], expected: Mapping[str, ArraySpec]
) -> None:
    """Note arrays `per_row` that differ from the expected ones. Only `shape` is required."""
    for name, wanted in expected.items():
        spec = found.get(name)
        if replace(spec, layout=None) != wanted if spec is not None else name == "shape":
            shown = "none" if spec is None else f"{'lists of ' if spec.is_ragged else ''}{spec}"
            what = f"{'lists of ' if wanted.is_ragged else ''}{wanted}"
            values.wrong(f"{where}.per_row.{name}", f"expected {what} per row, found {shown}.")


def _range(values: ManifestValues, where: str, data: dict[str, Any]) -> tuple[float, float] | None:
    if "range" not in data:
        return None
    found = data["range"]
    numbers = found if isinstance(found, list) and all(type(n) in (int, float) for n in found) else []
    if len(numbers) == 2 and math.isfinite(numbers[1] - numbers[0]) and numbers[0] < numbers[1]:
        return numbers[0], numbers[1]
    values.wrong(f"{where}.range", f"expected two finite numbers, black and white, found {brief(found)}.")
    return None


@dataclass(frozen=True)
class SizeField(ArrayField):
    """Height and width of an image in its source, after its EXIF orientation."""

    kind: ClassVar[str] = "size"
    spec: ArraySpec = _SIZE

    @classmethod
    def parse(cls, values: ManifestValues, where: str, data: dict[str, Any]) -> Field:
        return cls(values.expect_spec(where, data, _SIZE, "size"))

    def row(self, name: str, sample: EncodedSample) -> Any:
        return sample.size

    def sums(self, rows: NDArray[np.int32]) -> Sums:
        return SizeSums.of_sizes(rows)

    def check(self, column: StoredRows, image_sizes: ImageSizes) -> Iterator[Finding]:
        for start, rows in pieces(column):
            wrong = np.flatnonzero((rows < 1).any(axis=1))
            if wrong.size:
                found = " x ".join(map(str, rows[wrong[0]].tolist()))
                yield "size-range", f"expected height and width of at least 1, found {found} in row {start + wrong[0]}."
                return
