"""Images: as pixels, or as the bytes of a file each; and the size that they had in their source."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, cast

import numpy as np
from numpy.typing import NDArray

from tensorstore_ds.format.kinds.base import ArrayField, BytesField, Field, Finding, ImageSizes, StoredTable
from tensorstore_ds.format.manifest_values import ManifestValues
from tensorstore_ds.format.schema import ENCODINGS, ArraySpec, EncodedSample, Encoding
from tensorstore_ds.format.statistics import Statistics

_JPEG = b"\xff\xd8\xff"
_SIZE = ArraySpec("int32", (2,))


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
        encoding = cast(Encoding, values.choice(f"{where}.encoding", data.get("encoding"), ENCODINGS))
        if encoding != "raw":
            encoded = EncodedImageField(encoding=encoding)
            encoded.check_values(values, where, data)
            return encoded
        spec = values.spec(where, data)
        if len(spec.shape) != 3:
            values.wrong(where, f"expected the shape [H, W, C] of an image, found {list(spec.shape)}.")
        return RawImageField(spec)


@dataclass(frozen=True)
class RawImageField(ImageField, ArrayField):
    """Images kept as pixels: `spec` has the shape (H, W, C)."""

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
    """

    encoding: Encoding = "source"

    def describe(self) -> str:
        return f"{self.encoding} files"

    def data(self, sample: EncodedSample) -> bytes:
        return sample.image or b""

    def check(self, table: StoredTable, image_sizes: ImageSizes) -> Iterator[Finding]:
        if self.encoding != "jpeg":
            return
        data = table["bytes"]
        for row, (start, stop) in enumerate(zip(table.offsets[:-1], table.offsets[1:], strict=True)):
            if data[int(start) : min(int(stop), int(start) + len(_JPEG))].tobytes() != _JPEG:
                yield "not-an-image", f"expected a JPEG file, found other bytes in row {row}."
                return


@dataclass(frozen=True)
class SizeField(ArrayField):
    """Height and width that an image had in its source, after its EXIF orientation."""

    kind: ClassVar[str] = "size"
    spec: ArraySpec = _SIZE

    @classmethod
    def parse(cls, values: ManifestValues, where: str, data: dict[str, Any]) -> Field:
        values.expect_spec(where, data, _SIZE, "size")
        return cls()

    def row(self, name: str, sample: EncodedSample) -> Any:
        return sample.size

    def add_statistics(self, statistics: Statistics, name: str, rows: NDArray[np.int32]) -> None:
        statistics.add_sizes(rows)
