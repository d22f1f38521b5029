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

#: Limit of integers in metadata and of bytes of an array: parsers that only have float64 keep them exact.
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

    `layout` is this array's, if it differs from the store's. With `is_ragged`, each row is a list of elements of
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
    """One sample in its stored form. Each kind of field uses its own members.

    `image` contains pixels (H, W, C), the bytes of a file, or a large image as `PlacedPicture`, then None or a `Spool`.
    `shape` is the stored (H, W, C), `size` the (height, width) before resizing. `sums` reads the pixels of a file for
    the statistics. `restarts` (m,) uint32 are positions after restart markers, and `entries` (m, 3) uint32 as in
    `find_entries`. `objects` are (M, ...) each, or lists of M arrays. `masks` (H, W), `arrays` and `texts` are by
    field. `problems` are dropped boxes. `channels` and `file_nbytes` are those of the source's image.
    """

    key: str
    image: Any
    size: tuple[int, int]
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    sums: Any = None
    restarts: NDArray[np.uint32] | None = None
    entries: NDArray[np.uint32] | None = None
    label: int | None = None
    objects: Mapping[str, Any] = field(default_factory=dict)
    masks: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    arrays: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    texts: Mapping[str, Sequence[str]] = field(default_factory=dict)
    problems: tuple[Problem, ...] = ()
    left_out: tuple[Problem, ...] = ()
    channels: int = 0
    file_nbytes: int = 0


@dataclass(frozen=True, slots=True)
class Keypoints:
    """Names of keypoints in their stored order, and the pairs of indices that a left-right flip swaps.

    >>> keypoints = tsds.Keypoints(("left eye", "right eye", "nose"), flip_pairs=((0, 1),))
    >>> keypoints.names[keypoints.flip_pairs[0][1]]
    'right eye'
    """

    names: tuple[str, ...]
    flip_pairs: tuple[tuple[int, int], ...] = ()
