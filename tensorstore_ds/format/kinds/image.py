"""Images: as pixels, or as the bytes of a file each; and the size that they had in their source."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, cast

import numpy as np
from numpy.typing import NDArray

from tensorstore_ds.format.kinds.base import (
    BYTES,
    ArrayField,
    BytesField,
    Field,
    Finding,
    ImageSizes,
    StoredTable,
    UnknownField,
)
from tensorstore_ds.format.manifest_values import ManifestValues, brief
from tensorstore_ds.format.schema import ENCODINGS, LIMIT, ArraySpec, EncodedSample, Encoding
from tensorstore_ds.format.statistics import Statistics

_SIZE = ArraySpec("int32", (2,))
_SHAPE = ArraySpec("int32", (3,))
_RESTARTS = ArraySpec("uint32", is_ragged=True)


class ImageField(Field):
    """An image a sample."""

    kind: ClassVar[str] = "image"

    @property
    def encoding(self) -> Encoding:
        """How images are kept: ``raw``, ``jpeg`` or ``source``."""
        raise NotImplementedError

    def dump(self) -> dict[str, Any]:
        return {**super().dump(), "encoding": self.encoding}

    @classmethod
    def parse(cls, values: ManifestValues, where: str, data: dict[str, Any]) -> Field:
        encoding = values.text(f"{where}.encoding", data.get("encoding"))
        if encoding not in ENCODINGS:
            return UnknownField.parse(values, where, data)
        if encoding != "raw":
            return EncodedImageField.parse_encoded(cast(Encoding, encoding), values, where, data)
        spec = values.spec(where, data)
        if len(spec.shape) != 3:
            values.wrong(where, f"expected the shape [H, W, C] of an image, found {list(spec.shape)}.")
            return RawImageField(spec)
        channels = values.names(f"{where}.channels", data["channels"]) if "channels" in data else None
        if channels is not None and len(channels) != spec.shape[2]:
            values.wrong(f"{where}.channels", f"expected {spec.shape[2]} names, found {len(channels)}.")
        return RawImageField(spec, channels, _range(values, where, data))


@dataclass(frozen=True)
class RawImageField(ImageField, ArrayField):
    """Images kept as pixels: `spec` has the shape (H, W, C).

    Attributes:
        channels: what they mean; None: gray for one, sRGB for three, sRGB and alpha for four, not known for others.
        range: black and white; None: 0 and the largest number of integers, not known of floating-point numbers.
    """

    channels: tuple[str, ...] | None = None
    range: tuple[float, float] | None = None

    def dump(self) -> dict[str, Any]:
        channels = {} if self.channels is None else {"channels": list(self.channels)}
        return {**super().dump(), **channels, **({} if self.range is None else {"range": list(self.range)})}

    @property
    def encoding(self) -> Encoding:
        """Pixels are ``raw``."""
        return "raw"

    def row(self, name: str, sample: EncodedSample) -> Any:
        return sample.pixels

    def add_statistics(self, statistics: Statistics, name: str, rows: NDArray[Any]) -> None:
        statistics.add_pixels(rows)


@dataclass(frozen=True)
class EncodedImageField(ImageField, BytesField):
    """Images kept as the bytes of a file, each of its own size.

    Attributes:
        encoding: what the bytes are, ``jpeg`` or ``source``.
        max_pixels: no image has more.
    """

    values: Mapping[str, ArraySpec] = field(default_factory=lambda: {"bytes": replace(BYTES, layout="memmap")})
    per_row: Mapping[str, ArraySpec] = field(default_factory=lambda: {"shape": _SHAPE}, kw_only=True)
    encoding: Encoding = "source"
    max_pixels: int = LIMIT - 1

    @classmethod
    def parse_encoded(cls, encoding: Encoding, values: ManifestValues, where: str, data: dict[str, Any]) -> Field:
        """As `parse`, of an encoding that is known."""
        specs, per_row = cls.parse_arrays(values, where, data)
        if specs["bytes"].layout != "memmap":  # one image is to be fetched alone, and files do not get any smaller
            values.wrong(f"{where}.values.bytes", "expected the layout memmap for the bytes of images, found none.")
        for name, expected in (("shape", _SHAPE), ("restarts", _RESTARTS)):
            spec = per_row.get(name)
            if replace(spec, layout=None) != expected if spec is not None else name == "shape":
                found = "none" if spec is None else f"{'lists of ' if spec.is_ragged else ''}{spec}"
                what = f"{'lists of ' if expected.is_ragged else ''}{expected}"
                values.wrong(f"{where}.per_row.{name}", f"expected {what} per row, found {found}.")
        max_pixels = values.integer(f"{where}.max_pixels", data.get("max_pixels"))
        return cls(specs, encoding, max_pixels, per_row=per_row)

    def dump(self) -> dict[str, Any]:
        return {**super().dump(), "max_pixels": self.max_pixels}

    def describe(self) -> str:
        return f"{self.encoding} files"

    def data(self, sample: EncodedSample) -> bytes:
        return sample.image or b""

    def rows(self, name: str, samples: Sequence[EncodedSample]) -> tuple[NDArray[np.int64], dict[str, NDArray[Any]]]:
        lengths, values = super().rows(name, samples)
        shapes = np.array([sample.shape for sample in samples], np.int32).reshape(-1, 3)
        return lengths, {**values, "shape": shapes}

    def check(self, table: StoredTable, image_sizes: ImageSizes) -> Iterator[Finding]:
        """Whether restart markers are where they are said to be; what the files are is not looked at."""
        if "restarts" not in self.per_row:
            return
        restarts = table.per_row["restarts"]
        for row in range(len(table)):
            data = table["bytes"][int(table.offsets[row]) : int(table.offsets[row + 1])].tobytes()
            for number, position in enumerate(restarts[row].tolist()):
                if data[max(0, position - 2) : position] != bytes((0xFF, 0xD0 + number % 8)):
                    yield "image-restarts", f"expected restart marker {number} before byte {position} of row {row}."
                    return


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
    """Height and width that an image had in its source, after its EXIF orientation."""

    kind: ClassVar[str] = "size"
    spec: ArraySpec = _SIZE

    @classmethod
    def parse(cls, values: ManifestValues, where: str, data: dict[str, Any]) -> Field:
        return cls(values.expect_spec(where, data, _SIZE, "size"))

    def row(self, name: str, sample: EncodedSample) -> Any:
        return sample.size

    def add_statistics(self, statistics: Statistics, name: str, rows: NDArray[np.int32]) -> None:
        statistics.add_sizes(rows)
