"""The base of the sources whose samples are rows of arrays."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tensorstore_ds.errors import Problem, SourceError
from tensorstore_ds.format.kinds import LabelField
from tensorstore_ds.format.schema import ArrayField, ArraySpec, Field
from tensorstore_ds.sources.arrays.files import ArrayFile, Scratch, bad_shape
from tensorstore_ds.sources.base import Contents, Reference, Sample, Source, SourceOptions
from tensorstore_ds.sources.classes import number_classes

if TYPE_CHECKING:
    from _typeshed import SupportsRead


class ArraySource(Source):
    """Samples are rows of arrays, one array a field; a reference is a row's number.

    A format derives from this, and its `find` says which arrays there are. `image` and `label` have a meaning;
    whatever else a split has is a field of its own.
    """

    def __init__(self, path: Path, options: SourceOptions) -> None:
        super().__init__(path, options)
        self._splits: dict[str, dict[str, ArrayFile]] = {}
        self._left_out: list[Problem] = []
        self._maps: dict[str, dict[str, NDArray[Any]]] = {}
        self._files: tuple[Path, ...] = ()
        self._scratch: Scratch | None = None

    def find(self) -> dict[str, dict[str, ArrayFile]]:
        """For each split its arrays by field: `image` with (N, H, W) or (N, H, W, C) or (N, C, H, W), and others."""
        raise NotImplementedError

    def scan(self) -> Contents:
        """Read headers and labels."""
        self._splits = {split: arrays for split, arrays in self.find().items() if arrays["image"].shape[:1] != (0,)}
        if not self._splits:
            raise SourceError(Problem(str(self.path), "empty-source", "expected arrays with rows, found none."))
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
            classes = number_classes(every, self.options.classes, first["label"].where)
            fields = {"label": LabelField(classes=classes), **fields}
        splits = {split: range(arrays["image"].shape[0]) for split, arrays in self._splits.items()}
        return Contents(fields, splits, labels, left_out=tuple(self._left_out))

    def read(self, split: str, reference: Reference) -> Sample:
        """A row of each array; the image is a view of the file."""
        maps = self._maps.get(split) or self._map(split)
        row = int(reference)
        label = int(maps["label"][row].item()) if "label" in maps else None
        others = _others(self._splits[split])
        arrays = {name: np.asarray(maps[name][row], array.native, order="C") for name, array in others}
        return Sample(self.key(split, row), maps["image"][row], label, arrays=arrays)

    def common_files(self) -> tuple[Path, ...]:
        return self._files

    def unpack(self, stream: SupportsRead[bytes], array: ArrayFile) -> ArrayFile:
        """`Scratch.unpack`, in a folder that is made for the first array."""
        self._scratch = self._scratch or Scratch()
        return self._scratch.unpack(stream, array)

    def leave_out(self, where: str, why: str) -> None:
        """Report something that is not read."""
        self._left_out.append(Problem(where, "not-listed", f"not read: {why}."))

    def _map(self, split: str) -> dict[str, NDArray[Any]]:
        maps = {name: array.map() for name, array in self._splits[split].items()}
        shape = maps["image"].shape
        if len(shape) == 4 and shape[3] not in (1, 2, 3, 4):
            maps["image"] = maps["image"].transpose(0, 2, 3, 1)
        self._maps[split] = maps
        return maps

    def __getstate__(self) -> Mapping[str, Any]:
        # maps would be pickled with all their data, and the temporary folder belongs to the process that made it
        return {**self.__dict__, "_maps": {}, "_scratch": None}


def _others(arrays: Mapping[str, ArrayFile]) -> list[tuple[str, ArrayFile]]:
    """The arrays that are neither the images nor the labels."""
    return [(name, array) for name, array in arrays.items() if name not in ("image", "label")]


def _read_labels(array: ArrayFile) -> NDArray[np.int64]:
    values = array.map().reshape(-1)
    if array.native == np.uint64 and values.max() > np.iinfo(np.int64).max:
        raise bad_shape(array.where, f"expected labels below 2^63, found {values.max()}.")
    return values.astype(np.int64)


def _check_images(array: ArrayFile) -> None:
    """Refuse what is not (N, H, W), (N, H, W, C) with 1 to 4 channels, or (N, C, H, W) with 1, 3 or 4."""
    shape = array.shape
    if len(shape) not in (3, 4) or 0 in shape[1:]:
        message = f"expected images (N, H, W) or (N, H, W, C), found {shape}."
        raise bad_shape(array.where, message, "Reshape the array.")
    if len(shape) == 3:
        return
    last, second = shape[3] in (1, 2, 3, 4), shape[1] in (1, 3, 4)
    if last and second:
        message = f"expected it to be clear which axis holds the channels, found {shape}."
        advice = "Pass the images to tensorstore_ds.convert as a sequence of arrays (H, W, C)."
        raise bad_shape(array.where, message, advice)
    if not last and not second:
        message = f"expected 1 to 4 channels in the last axis, or 1, 3 or 4 in the second, found {shape}."
        raise bad_shape(array.where, message)


def _check(arrays: Mapping[str, ArrayFile], first: Mapping[str, ArrayFile]) -> None:
    """Refuse fields whose rows are not as many as the images, or not as in the first split."""
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
