"""The base of the sources whose samples are rows of arrays, and the files that the arrays lie in.

Headers are read, data are mapped, and decompressed first where needed.
"""

from __future__ import annotations

import io
import math
import os
import warnings
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from tensorstore_ds.annex.sources.packed import PackedSource
from tensorstore_ds.annex.sources.scratch import Scratch
from tensorstore_ds.errors import Problem, SourceError
from tensorstore_ds.format.kinds import LabelField
from tensorstore_ds.format.kinds.base import ArrayField, Field
from tensorstore_ds.format.schema import MOST_CHANNELS, ArraySpec
from tensorstore_ds.regular_files import open_file, os_errors
from tensorstore_ds.sources.base import Contents, Reference, Sample, SourceOptions
from tensorstore_ds.sources.names import number_classes
from tensorstore_ds.sources.splits import no_samples

if TYPE_CHECKING:
    from _typeshed import SupportsRead

#: Bytes at the beginning of a .npy file that hold its header: NumPy writes 128 for all but the oddest arrays.
NPY_HEAD = 4096

_AXES_LIMIT = 32
_AXIS_LIMIT = 10**18


class ArraySource(PackedSource):
    """Samples are rows of arrays, one array per field; a reference is a row's number.

    Formats derive from this and implement `find`. `image` and `label` have a meaning; other arrays are further fields.
    """

    def __init__(self, path: Path, options: SourceOptions) -> None:
        super().__init__(path, options)
        self._splits: dict[str, dict[str, ArrayFile]] = {}
        self._left_out: list[Problem] = []
        self._maps: dict[str, dict[str, NDArray[Any]]] = {}
        self._scratch = Scratch()
        self.classes: tuple[str, ...] | None = None  # as `find` has them

    def find(self) -> dict[str, dict[str, ArrayFile]]:
        """The arrays of each split, by field: `image` with (N, H, W) or (N, H, W, C) or (N, C, H, W), and others."""
        raise NotImplementedError

    def scan(self) -> Contents:
        """Read headers and labels."""
        found = self.find()
        self._splits = {split: arrays for split, arrays in found.items() if arrays["image"].shape[:1] != (0,)}
        self._left_out += [no_samples(found[split]["image"].where) for split in found.keys() - self._splits.keys()]
        if not self._splits:
            message = " ".join(["expected arrays with rows, found none.", *map(str, self._left_out[:1])])
            raise SourceError(Problem(str(self.path), "empty-source", message))
        first = next(iter(self._splits.values()))
        for arrays in self._splits.values():
            _check(arrays, first)
        fields: dict[str, Field] = {
            name: ArrayField(ArraySpec(array.native.name, array.shape[1:])) for name, array in _others(first)
        }
        labels = None
        if "label" in first:
            labels = {split: _read_labels(arrays["label"]) for split, arrays in self._splits.items()}
            every = np.concatenate([*labels.values()])
            classes = number_classes(every, self.options.classes or self.classes, first["label"].where)
            fields = {"label": LabelField(classes=classes), **fields}
        splits = {split: range(arrays["image"].shape[0]) for split, arrays in self._splits.items()}
        return Contents(fields, splits, labels, left_out=tuple(self._left_out))

    def read(self, split: str, reference: Reference) -> Sample:
        """Read a row of each array; the image is a view of the file."""
        maps = self._maps.get(split) or self._map(split)
        row = int(reference)
        label = int(maps["label"][row].item()) if "label" in maps else None
        others = _others(self._splits[split])
        arrays = {name: np.asarray(maps[name][row], array.native, order="C") for name, array in others}
        file = self._splits[split]["image"]
        image: Any = bytes(maps["image"][row]) if file.is_encoded else maps["image"][row]
        if _axes_of_channels(file.shape) == [1]:
            image = image.transpose(1, 2, 0)
        return Sample(self.key(split, row), image, label, arrays=arrays)

    def unpack(self, stream: SupportsRead[bytes], array: ArrayFile) -> ArrayFile:
        """Copy the array to a temporary file from `stream`, which must end with it.

        This object deletes the file, in the process that created it only.
        """
        path, found = self._scratch.copy(stream, array.nbytes, "an array")
        array.check_nbytes(array.offset + found)
        return replace(array, path=path, offset=0, member=None)

    def leave_out(self, where: str, why: str) -> None:
        """Report data that is not read."""
        self._left_out.append(Problem(where, "not-listed", f"not read: {why}."))

    def divided(self, named: Sequence[tuple[str | None, str, ArrayFile]], what: str) -> dict[str, dict[str, ArrayFile]]:
        """Group by split and field. Errors call one `what`: an array, or a dataset.

        Arrays without a split are left out if others have one, and those with other rows than the images.
        """
        noun, has_splits = what.rpartition(" ")[2], any(split is not None for split, _, _ in named)
        splits: dict[str, dict[str, ArrayFile]] = {}
        for split, field, array in named:
            if has_splits and split is None:
                self.leave_out(array.where, "its name says no split, as others do")
                continue
            first = splits.setdefault(split or "train", {}).setdefault(field, array)
            if first is not array:
                message = f"expected one {noun} for {field}, found {first.where} too."
                raise SourceError(Problem(array.where, "array-file", message), "Rename or remove one.")
        for arrays in splits.values():
            if (image := arrays.get("image")) is None:
                names = ", ".join(f"{array.where} {array.shape}" for array in arrays.values())[:300]
                message = f"expected {what} of images (named images, x or data), found {names}."
                advice = f"Rename the {noun} that holds the images."
                raise SourceError(Problem(str(self.path), "no-image", message), advice)
            for name, array in list(arrays.items()):
                if name not in ("image", "label") and array.shape[:1] != image.shape[:1]:
                    self.leave_out(array.where, f"its shape is {array.shape}, the images' shape is {image.shape}")
                    del arrays[name]
        return splits

    def _map(self, split: str) -> dict[str, NDArray[Any]]:
        self._maps[split] = {name: array.map() for name, array in self._splits[split].items()}
        return self._maps[split]

    def __getstate__(self) -> Mapping[str, Any]:
        return {**self.__dict__, "_maps": {}}  # maps would be pickled with all their data


def _others(arrays: Mapping[str, ArrayFile]) -> list[tuple[str, ArrayFile]]:
    """Arrays that are neither images nor labels."""
    return [(name, array) for name, array in arrays.items() if name not in ("image", "label")]


def _read_labels(array: ArrayFile) -> NDArray[np.int64]:
    values = array.map().reshape(-1)
    if array.native == np.uint64 and values.max() > np.iinfo(np.int64).max:
        raise bad_shape(array.where, f"expected labels below 2^63, found {values.max()}.")
    return values.astype(np.int64)


def _check_images(array: ArrayFile) -> None:
    """Raise unless the shape is (N, H, W), or clearly (N, H, W, C) or (N, C, H, W)."""
    shape = array.shape
    if array.is_encoded and len(shape) == 1:
        return
    if array.is_encoded or len(shape) not in (3, 4) or 0 in shape[1:]:
        message = f"expected images (N, H, W) or (N, H, W, C), found {shape}."
        raise bad_shape(array.where, message, "Reshape the array.")
    if len(shape) == 3:
        return
    axes = _axes_of_channels(shape)
    if len(axes) > 1:
        message = f"expected it to be clear which axis holds the channels, found {shape}."
        advice = "Pass the images to tensorstore_ds.convert as a sequence of arrays (H, W, C)."
        raise bad_shape(array.where, message, advice)
    if not axes:
        message = f"expected 1 to {MOST_CHANNELS} channels in the last or second axis, found {shape}."
        advice = "With more than 4 channels, these must be fewer than the rows and the columns of an image."
        raise bad_shape(array.where, message, advice)


def _axes_of_channels(shape: tuple[int, ...]) -> list[int]:
    """Axes that may hold channels: those of size 4 or less, else one that is smaller than all other sides."""
    if len(shape) != 4:
        return []
    usual = [axis for axis, counts in ((3, (1, 2, 3, 4)), (1, (1, 3, 4))) if shape[axis] in counts]
    least = min(shape[1:])
    is_one = least <= MOST_CHANNELS and shape[1:].count(least) == 1
    return usual or [axis for axis in (3, 1) if is_one and shape[axis] == least]


def _check(arrays: Mapping[str, ArrayFile], first: Mapping[str, ArrayFile]) -> None:
    """Raise if a field has a different number of rows than the images, or differs from the first split."""
    image = arrays["image"]
    _check_images(image)
    missing = next((name for name in first if name not in arrays), None)
    if missing is not None:
        message = f"expected an array for {missing} beside it, as {first[missing].where} is in another split."
        raise bad_shape(image.where, message, "Add it, or move the other away.")
    for name, array in arrays.items():
        if array.shape[:1] != image.shape[:1]:
            message = f"expected {image.shape[0]:,} rows, as {image.where} has, found {array.shape[:1]}."
            raise bad_shape(array.where, message)
        if name not in first:
            raise bad_shape(array.where, "expected the same arrays in all splits, found this one only here.")
        if name != "image" and 0 in array.shape[1:]:
            raise bad_shape(array.where, f"expected rows that hold numbers, found the shape {array.shape}.")
    for name, array in _others(arrays):
        expected, row = (f"{each.native} {each.shape[1:]}" for each in (first[name], array))
        if row != expected:
            raise bad_shape(array.where, f"expected rows of {expected}, as in {first[name].where}, found {row}.")


# --- files ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ArrayFile:
    """An array in a file. Only its header has been read."""

    where: str  #: name in messages
    path: Path  #: the file that is mapped
    dtype: str  #: NumPy's name with the byte order, such as ``>i4``
    shape: tuple[int, ...]
    offset: int = 0  #: offset of its first byte
    fortran: bool = False  #: the first index varies fastest
    member: zipfile.ZipInfo | None = None  #: member of the archive `path`, until it is unpacked
    is_encoded: bool = False  #: each row is the bytes of an image file

    @property
    def nbytes(self) -> int:
        """Size in bytes, without the header."""
        return math.prod(self.shape) * np.dtype(self.dtype).itemsize

    @property
    def native(self) -> np.dtype[Any]:
        """Stored dtype, in native byte order; `uint8` for booleans."""
        dtype = np.dtype(self.dtype).newbyteorder("=")
        return np.dtype(np.uint8) if dtype == np.bool_ else dtype

    def check_nbytes(self, file_nbytes: int) -> None:
        """Raise `array-file` if the file's size differs from its header's."""
        nbytes = self.offset + self.nbytes
        if file_nbytes != nbytes:
            raise bad_file(self.where, f"expected {nbytes:,} bytes, found {file_nbytes:,}.")

    def map(self) -> NDArray[Any]:
        """Map the array, read-only."""
        with os_errors(self.where), open_file(self.path, self.where) as file:
            self.check_nbytes(os.fstat(file.fileno()).st_size)
            if not self.nbytes:
                return np.empty(self.shape, self.dtype)
            order: Literal["C", "F"] = "F" if self.fortran else "C"
            return np.asarray(np.memmap(file, self.dtype, "r", self.offset, self.shape, order))


def read_npy_header(head: bytes, where: str, path: Path) -> ArrayFile:
    """Parse the header of a .npy file from its first `NPY_HEAD` bytes with NumPy; pickled objects are never read."""
    stream = io.BytesIO(head)  # not the file: NumPy allocates the length that the header states
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # NumPy warns about files of Python 2
            version, _ = npy.read_magic(stream)
            # 3 differs from 2 in the names of records alone, and records are refused
            readers = {1: npy.read_array_header_1_0, 2: npy.read_array_header_2_0, 3: npy.read_array_header_2_0}
            shape, fortran, dtype = readers[version](stream, max_header_size=NPY_HEAD)
    except Exception as error:  # a header may be any Python literal: a damaged one can raise nearly any exception
        raise bad_file(where, f"expected a .npy file of version 1, 2 or 3, found {head[:60]!r}.") from error
    if dtype.hasobject:
        raise NotNumbersError(where, "expected numbers, found Python objects, which are pickled and so never read.")
    if dtype.kind not in "biuf" or dtype.itemsize > 8:
        raise NotNumbersError(where, f"expected numbers of at most 64 bits, found {str(dtype)[:80]}.")
    if len(shape) > _AXES_LIMIT or not all(0 <= n < _AXIS_LIMIT for n in shape):
        raise bad_file(where, f"expected the shape of an array, found {str(shape)[:80]}.")
    return ArrayFile(where, path, dtype.str, tuple(map(int, shape)), stream.tell(), fortran)


class NotNumbersError(SourceError):
    """Error `array-file` for a valid array that is not numeric."""

    def __init__(self, where: str, message: str) -> None:
        super().__init__(Problem(where, "array-file", message), "Save numbers, or remove the array.")


def bad_file(where: str, message: str) -> SourceError:
    """Error `array-file`."""
    return SourceError(Problem(where, "array-file", message), "Save it again, or download it again.")


def bad_shape(where: str, message: str, advice: str = "") -> SourceError:
    """Error `array-shape`."""
    return SourceError(Problem(where, "array-shape", message), advice)
