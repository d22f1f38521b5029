"""What a store holds: fields, their kinds, dtypes and shapes. No input or output."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, get_args

import numpy as np

Kind = Literal["image", "label", "objects", "size", "key", "array"]
Encoding = Literal["raw", "jpeg", "source"]
Layout = Literal["memmap", "zarr"]

KINDS: tuple[Kind, ...] = get_args(Kind)
ENCODINGS: tuple[Encoding, ...] = get_args(Encoding)
LAYOUTS: tuple[Layout, ...] = get_args(Layout)

#: Names of fields, table values and splits. None of them can leave the store's directory.
NAME = re.compile(r"[a-z0-9_-]{1,64}")
#: The data types of Zarr v3 that a column may have; the names are NumPy's too.
DTYPES = (*(f"{t}{b}" for t in ("uint", "int") for b in (8, 16, 32, 64)), "float16", "float32", "float64")
#: The value arrays of an `objects` table and their type for one object; K is the number of keypoints.
OBJECT_VALUES: Mapping[str, tuple[str, tuple[int | str, ...]]] = {
    "boxes": ("float32", (4,)),
    "labels": ("int64", ()),
    "keypoints": ("float32", ("K", 2)),
    "difficult": ("uint8", ()),
    "truncated": ("uint8", ()),
    "occluded": ("uint8", ()),
}


@dataclass(frozen=True, slots=True)
class ArraySpec:
    """One row of an array: its dtype and shape."""

    dtype: str
    shape: tuple[int, ...] = ()

    @property
    def row_nbytes(self) -> int:
        """Bytes of one row."""
        return math.prod(self.shape) * np.dtype(self.dtype).itemsize


@dataclass(frozen=True, slots=True)
class ArrayField:
    """A field of fixed shape: one array, a row a sample.

    Attributes:
        kind: ``image`` (H, W, C), ``label`` (), ``size`` (2,) or ``array`` (any shape).
        spec: dtype and shape of one row.
        classes: of a ``label``: the class names; a label is an index into them.
    """

    kind: Kind
    spec: ArraySpec
    classes: tuple[str, ...] = ()

    @property
    def arrays(self) -> dict[str, ArraySpec]:
        """The arrays that hold the field: here one, under the field's own name."""
        return {"": self.spec}


@dataclass(frozen=True, slots=True)
class TableField:
    """A field of varying length: `offsets` and value arrays, any number of values a sample.

    Attributes:
        kind: ``objects``, ``key`` or, with an encoding, ``image``.
        values: dtype and shape of one element of each value array.
        encoding: of an ``image``: what its bytes are, ``jpeg`` or ``source``.
        classes: of ``objects``: the class names; `labels` are indices into them.
        keypoints: of ``objects``: the names of the K keypoints, in the order of `keypoints`.
        flip_pairs: pairs of keypoint indices that change places when an image is mirrored left to right.
    """

    kind: Kind
    values: Mapping[str, ArraySpec]
    encoding: Encoding | None = None
    classes: tuple[str, ...] = ()
    keypoints: tuple[str, ...] = ()
    flip_pairs: tuple[tuple[int, int], ...] = ()

    @property
    def arrays(self) -> dict[str, ArraySpec]:
        """The arrays that hold the field: `offsets`, then each value array."""
        return {"offsets": ArraySpec("int64"), **self.values}


Field = ArrayField | TableField

BYTES: Mapping[str, ArraySpec] = {"bytes": ArraySpec("uint8")}
KEY = TableField("key", BYTES)
SIZE = ArrayField("size", ArraySpec("int32", (2,)))


def image_field(shape: tuple[int, int, int], dtype: str = "uint8") -> ArrayField:
    """Images kept as pixels: (H, W, C)."""
    return ArrayField("image", ArraySpec(dtype, shape))


def encoded_image_field(encoding: Encoding) -> TableField:
    """Images kept as the bytes of a file, each of its own size."""
    return TableField("image", BYTES, encoding=encoding)


def label_field(classes: tuple[str, ...]) -> ArrayField:
    """A class index a sample."""
    return ArrayField("label", ArraySpec("int64"), classes=classes)


def objects_field(
    *values: str,
    classes: tuple[str, ...] = (),
    keypoints: tuple[str, ...] = (),
    flip_pairs: tuple[tuple[int, int], ...] = (),
) -> TableField:
    """A table of objects with the named value arrays of `OBJECT_VALUES`.

    >>> objects_field("boxes", "keypoints", keypoints=("left", "right")).values["keypoints"].shape
    (2, 2)
    """
    specs = {name: object_value(name, len(keypoints)) for name in values}
    return TableField("objects", specs, classes=classes, keypoints=keypoints, flip_pairs=flip_pairs)


def object_value(name: str, keypoints: int) -> ArraySpec:
    """dtype and shape of one object's `name`, a member of `OBJECT_VALUES`, for a number of keypoints."""
    dtype, shape = OBJECT_VALUES[name]
    return ArraySpec(dtype, tuple(keypoints if n == "K" else int(n) for n in shape))


@dataclass(frozen=True, slots=True)
class Keypoints:
    """Names of landmarks in their stored order, and the pairs that a left-right flip swaps (indices)."""

    names: tuple[str, ...]
    flip_pairs: tuple[tuple[int, int], ...] = field(default=())
