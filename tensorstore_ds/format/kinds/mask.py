"""Masks: one class index per pixel, or a value to be ignored."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from tensorstore_ds.errors import OptionError
from tensorstore_ds.format.kinds.base import (
    APART,
    ArrayField,
    Field,
    FieldsDifferError,
    Finding,
    ImageSizes,
    StoredRows,
    pieces,
)
from tensorstore_ds.format.manifest_values import ManifestValues
from tensorstore_ds.format.schema import ArraySpec, EncodedSample
from tensorstore_ds.format.statistics import MaskSums, Sums

_DTYPES = ("uint8", "uint16")


@dataclass(frozen=True)
class MaskField(ArrayField):
    """One mask per sample, uint8 or uint16 (H, W) as the stored image.

    A pixel is an index into `classes`, or `ignored`. `image` is the field of images of the mask; None means `image`.
    """

    kind: ClassVar[str] = "mask"
    moves: ClassVar[bool] = True
    is_large: ClassVar[bool] = True
    classes: tuple[str, ...] = ()
    ignored: int | None = None
    image: str | None = None

    @classmethod
    def of(cls, classes: tuple[str, ...]) -> MaskField:
        """Create the field with the dtype for the classes, its largest value ignored. The first image sets the shape.

        >>> MaskField.of(("background", "cat")).ignored
        255
        """
        dtype = "uint8" if len(classes) < 256 else "uint16"
        if len(classes) > np.iinfo(dtype).max:
            raise OptionError(f"`classes`: expected at most 65,535 classes of masks, found {len(classes):,}.")
        return cls(ArraySpec(dtype, (0, 0)), classes, int(np.iinfo(dtype).max))

    @property
    def unknown(self) -> int | None:
        return self.ignored

    @property
    def absent_as(self) -> str:
        return f"unknown, stored as {self.ignored}"

    def advice_to_join(self, other: Field) -> str:
        if isinstance(other, MaskField) and self.classes != other.classes:
            return f"Classes differ: {', '.join(self.classes)}; {', '.join(other.classes)}. Name them with `classes`."
        return APART

    def joined(self, name: str, own: Sequence[Self | None], class_map: Mapping[str, str]) -> Self:
        """Return the field, with a value for unknown if a side lacks it."""
        if self.ignored is not None or None not in own:
            return self
        limit = int(np.iinfo(self.spec.dtype).max)
        if len(self.classes) > limit:
            message = f"expected {name}, which others have, found none, and all of its numbers are classes."
            raise FieldsDifferError(own.index(None), message, APART)
        return replace(self, ignored=limit)

    def dump(self) -> dict[str, Any]:
        data = {**super().dump(), "classes": list(self.classes)}
        data |= {} if self.ignored is None else {"ignored": self.ignored}
        return data if self.image is None else {**data, "image": self.image}

    @classmethod
    def parse(cls, values: ManifestValues, where: str, data: dict[str, Any]) -> Field:
        spec = values.spec(where, data)
        classes = values.names(f"{where}.classes", data.get("classes"))
        ignored = values.integer(f"{where}.ignored", data["ignored"]) if "ignored" in data else None
        image = values.image(where, data)
        if spec.dtype not in _DTYPES or len(spec.shape) != 2:
            found = f"{spec.dtype} and {list(spec.shape)}"
            values.wrong(where, f"expected uint8 or uint16 and the shape [H, W] of a mask, found {found}.")
            return cls(spec, classes, ignored, image)
        limit = int(np.iinfo(spec.dtype).max) + 1
        if len(classes) > limit:
            values.wrong(f"{where}.classes", f"expected at most {limit} classes of {spec.dtype}, found {len(classes)}.")
        elif ignored is not None and not len(classes) <= ignored < limit:
            message = f"expected a value in [{len(classes)}, {limit}), which is no class, found {ignored}."
            values.wrong(f"{where}.ignored", message)
        return cls(spec, classes, ignored, image)

    def describe(self) -> str:
        ignored = "" if self.ignored is None else f" · {self.ignored} is ignored"
        return super().describe() + ignored

    def fitted(self, first: EncodedSample) -> Self:
        height, width = first.shape[:2]
        return replace(self, spec=ArraySpec(self.spec.dtype, (height, width)))

    def row(self, name: str, sample: EncodedSample) -> Any:
        return sample.masks[name]

    def sums(self, rows: NDArray[Any]) -> Sums:
        return MaskSums.of_masks(rows, len(self.classes), self.ignored)

    def renumbered(self, rows: NDArray[Any], numbers: NDArray[np.int64]) -> NDArray[Any]:
        raise OptionError("expected classes of labels or objects, found classes of masks. Keep them.")

    def wrong(self, mask: NDArray[Any]) -> NDArray[np.bool_]:
        """Return where values are neither a class index nor the ignored value."""
        outside = (mask < 0) | (mask >= len(self.classes))
        return outside if self.ignored is None else outside & (mask != self.ignored)

    def expected(self) -> str:
        """The allowed values of pixels, for messages."""
        return f"[0, {len(self.classes)})" + ("" if self.ignored is None else f" or {self.ignored}")

    def check(self, column: StoredRows, image_sizes: ImageSizes) -> Iterator[Finding]:
        for start, rows in pieces(column):
            sizes = image_sizes(np.arange(start, start + len(rows)))
            other = np.flatnonzero(np.isfinite(sizes[:, 0]) & (sizes != self.spec.shape).any(axis=1))
            if other.size:
                row, (height, width) = start + int(other[0]), sizes[other[0]]
                found = f"an image of {height:.0f}x{width:.0f} in row {row}"
                yield (
                    "mask-shape",
                    f"expected images of the masks' {self.spec.shape[0]}x{self.spec.shape[1]}, found {found}.",
                )
                return
            wrong = self.wrong(rows)
            if wrong.any():
                row, y, x = np.argwhere(wrong)[0].tolist()
                found = f"{int(rows[row, y, x])} in row {start + row} at ({x}, {y})"
                yield "mask-range", f"expected pixels in {self.expected()}, found {found}."
                return
