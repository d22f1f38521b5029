"""Describe the arrays and samples of a store: dtypes, shapes, names, and one encoded sample. No input or output.

The module `tensorstore_ds.format.kinds` builds the kinds of fields on these.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from tensorstore_ds.errors import Problem

Encoding = Literal["raw", "jpeg", "smart", "source"]
Layout = Literal["memmap", "zarr"]
ENCODINGS: tuple[Encoding, ...] = get_args(Encoding)
LAYOUTS: tuple[Layout, ...] = get_args(Layout)

#: Limit of integers in metadata and of bytes of an array: parsers with float64 only read smaller ones exactly.
LIMIT = 2**53
#: Names of fields, table values and splits. None of them can leave the store's directory, or equals an option of a
#: command or a device of Windows.
NAME = re.compile(r"(?!(?:con|prn|aux|nul|com[0-9]|lpt[0-9])\Z)[a-z0-9_][a-z0-9_-]{0,63}")
#: Largest number of channels of an image stored as pixels.
MOST_CHANNELS = 64
#: Names of files in the root directory, such as ``README.md``.
ROOT_NAME = re.compile(
    r"(?!(?:con|prn|aux|nul|com[0-9]|lpt[0-9])(?:\.|\Z))[a-z0-9_](?:[a-z0-9._-]{0,62}[a-z0-9_-])?",
    re.IGNORECASE | re.ASCII,
)
#: A file of the root directory that is never listed, so that adding it does not change the digests.
SIGNATURE = "zarr.json.sig"
#: Zarr v3 data types of columns. NumPy has the same names.
DTYPES = (*(f"{t}{b}" for t in ("uint", "int") for b in (8, 16, 32, 64)), "float16", "float32", "float64")


@dataclass(frozen=True, slots=True)
class ArraySpec:
    """One row of an array.

    `layout` is that of this array, if it differs from the store's. With `is_ragged`, each row is a list of elements of
    this dtype and shape, divided by `offsets`.
    """

    dtype: str
    shape: tuple[int, ...] = ()
    layout: Layout | None = None
    is_ragged: bool = False

    @property
    def row_nbytes(self) -> int:
        """Bytes of one row, or of one element of a list."""
        return math.prod(self.shape) * np.dtype(self.dtype).itemsize

    def dump(self) -> dict[str, Any]:
        """Return a JSON object."""
        data: dict[str, Any] = {"dtype": self.dtype, "shape": list(self.shape)}
        if self.layout is not None:
            data["layout"] = self.layout
        return {**data, "ragged": True} if self.is_ragged else data

    def __str__(self) -> str:
        return f"{self.dtype} {' x '.join(map(str, self.shape))}".strip()


@dataclass(slots=True)  # not frozen, which would triple the time to create one
class EncodedSample:
    """One sample as a store keeps it; each kind of field takes what is its own.

    Attributes:
        key: what the sample is called in its source.
        pixels: (H, W, C) of the stored image; empty once they are no longer needed.
        shape: (H, W, C) of the stored image.
        image: the stored bytes, or None where the pixels themselves are stored.
        restarts: where the byte behind each restart marker lies in these bytes, (m,) uint32; None: there is none.
        entries: where decoding can begin in these bytes, (m, 3) uint32, as `find_entries` has it; None: nowhere.
        size: (height, width) of the image before it was resized.
        label: class index.
        objects: each (M, ...) in the dtype stored, or a list of M arrays; empty without objects.
        masks: each (H, W), by the name of the field.
        arrays: further fields, by name.
        texts: any number of texts for each field of kind `text`, by its name.
        problems: boxes that were dropped, and why.
        file_nbytes: size of the image's file in the source; 0 if it was none.
        parts: a large image that is yet to be encoded, by parts; `pixels` is empty, and `image` is None then.
    """

    key: str
    pixels: NDArray[Any]
    image: bytes | None
    size: tuple[int, int]
    shape: tuple[int, ...]
    restarts: NDArray[np.uint32] | None = None
    entries: NDArray[np.uint32] | None = None
    label: int | None = None
    objects: Mapping[str, Any] = field(default_factory=dict)
    masks: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    arrays: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    texts: Mapping[str, Sequence[str]] = field(default_factory=dict)
    problems: tuple[Problem, ...] = ()
    file_nbytes: int = 0
    parts: Any = None


@dataclass(frozen=True, slots=True)
class Keypoints:
    """Names of keypoints in their stored order, and the pairs of indices that a left-right flip swaps.

    >>> keypoints = tsds.Keypoints(("left eye", "right eye", "nose"), flip_pairs=((0, 1),))
    >>> keypoints.names[keypoints.flip_pairs[0][1]]
    'right eye'
    """

    names: tuple[str, ...]
    flip_pairs: tuple[tuple[int, int], ...] = ()
