"""The samples of .beton files: formats/sources/beton.md."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from tensorstore_ds.errors import Problem, SourceError
from tensorstore_ds.format.kinds import LabelField
from tensorstore_ds.format.kinds.base import ArrayField, Field
from tensorstore_ds.format.schema import NAME, ArraySpec
from tensorstore_ds.regular_files import os_errors
from tensorstore_ds.sources.arrays.numpy_files import IMAGE_NAMES, LABEL_COLUMNS
from tensorstore_ds.sources.arrays.source import bad_file, bad_shape
from tensorstore_ds.sources.base import Contents, Reference, Sample, Source, SourceOptions
from tensorstore_ds.sources.beton.layout import Beton, BetonField, Mapped, read_beton
from tensorstore_ds.sources.names import RESERVED, field_name, number_classes
from tensorstore_ds.sources.splits import no_samples, notes_of_renamed, split_names, word_split

SUFFIX = ".beton"
_JPEG, _RAW = 0, 1  # FFCV's modes of an image


class BetonSource(Source):
    """A reference is the number of a sample in its split, which is a file. Files are mapped."""

    name: ClassVar[str] = "beton"

    def __init__(self, path: Path, options: SourceOptions) -> None:
        super().__init__(path, options)
        self._files: dict[str, Beton] = {}
        self._maps: dict[str, Mapped] = {}
        self._image = 0  # the number of its field
        self._label = -1
        self._others: dict[str, int] = {}

    @classmethod
    def detect(cls, path: Path) -> bool:
        """Whether this is a .beton file, or a folder that holds some."""
        return bool(_beton_files(path))

    def scan(self) -> Contents:
        """Read headers and labels."""
        paths = _beton_files(self.path)
        if not paths:
            message = f"expected a {SUFFIX} file or a folder of them, found none."
            raise SourceError(Problem(str(self.path), "unknown-format", message))
        names = split_names(word_split(path.stem, len(paths)) for path in paths)
        empty: list[Problem] = []
        for path in paths:
            found = read_beton(path, path.name)
            first = next(iter(self._files.values()), found)
            if found.fields != first.fields:
                raise bad_shape(
                    path.name, f"expected the fields of {first.where}, found others.", "Convert each alone."
                )
            split = names[word_split(path.stem, len(paths))]
            if split in self._files:
                message = f"expected one file for the split {split}, found {self._files[split].where} too."
                raise SourceError(Problem(path.name, "split-name", message), "Rename one, or convert each alone.")
            if found.samples:
                self._files[split] = found
            else:
                empty.append(no_samples(path.name))
        if not self._files:
            raise SourceError(Problem(str(self.path), "empty-source", "expected samples, found none."))
        described = next(iter(self._files.values())).fields
        left_out = (*empty, *self._choose(described))
        fields: dict[str, Field] = {}
        labels: dict[str, NDArray[np.int64]] | None = None
        if self._label >= 0:
            labels = {split: self._open(split).rows[f"f{self._label}"].astype(np.int64) for split in self._files}
            where = f"{self.path.name}: {described[self._label].name}"
            every = np.concatenate([*labels.values()])
            fields["label"] = LabelField(classes=number_classes(every, self.options.classes, where))
        for name, number in self._others.items():
            each = described[number]
            stored = {"int": "int64", "float": "float64"}.get(each.what) or _native(each).name
            fields[name] = ArrayField(ArraySpec(stored, each.shape))
        splits = {split: range(file.samples) for split, file in self._files.items()}
        return Contents(fields, splits, labels, left_out=left_out, notes=notes_of_renamed(names))

    def read(self, split: str, reference: Reference) -> Sample:
        row, mapped, fields = int(reference), self._open(split), self._files[split].fields
        values = mapped.rows[row]
        image = _image(mapped, fields[self._image], values[f"f{self._image}"], row, self._files[split].where)
        label = int(values[f"f{self._label}"]) if self._label >= 0 else None
        arrays = {name: _array(mapped, fields[i], values[f"f{i}"], row) for name, i in self._others.items()}
        return Sample(self.key(split, row), image, label, arrays=arrays)

    def common_files(self) -> tuple[Path, ...]:
        return tuple(file.path for file in self._files.values())

    def _open(self, split: str) -> Mapped:
        if split not in self._maps:
            self._maps[split] = self._files[split].open()
        return self._maps[split]

    def _choose(self, fields: tuple[BetonField, ...]) -> tuple[Problem, ...]:
        """Choose the fields of images and labels, and those that are kept as they are; say which are left out."""
        images = [i for i, field in enumerate(fields) if field.what == "image"]
        named = [i for i, field in enumerate(fields) if field.name.lower() in IMAGE_NAMES]
        named = [i for i in named if fields[i].what in ("image", "bytes", "array")]
        chosen = images if len(images) == 1 else [i for i in named if i in images] if images else named
        if len(chosen) != 1:
            shown = ", ".join(f"{field.name} ({field.what})" for field in fields)[:300]
            message = f"expected one field of images, found {shown}."
            raise SourceError(Problem(str(self.path), "no-image", message), "Name the field of the images image.")
        (self._image,) = chosen
        labels = [i for i, field in enumerate(fields) if field.what == "int" and field.name.lower() in LABEL_COLUMNS]
        if len(labels) > 1:
            shown = " and ".join(fields[i].name for i in labels)
            raise bad_shape(str(self.path), f"expected one field of labels, found {shown}.", "Rename one.")
        self._label = labels[0] if labels else -1
        left_out = []
        for i, field in enumerate(fields):
            name = field_name(field.name)
            if i in (self._image, self._label):
                continue
            has_shape = field.what in ("int", "float", "array")
            if has_shape and NAME.fullmatch(name) and name not in RESERVED | self._others.keys():
                self._others[name] = i
            else:
                why = "a store cannot have the name" if has_shape else f"{field.what} has no fixed shape"
                left_out.append(Problem(field.name or '""', "not-listed", f"not read: {why}."))
        return tuple(left_out)

    def __getstate__(self) -> Mapping[str, Any]:
        return {**self.__dict__, "_maps": {}}  # they would be pickled with all their data


def _image(mapped: Mapped, field: BetonField, value: Any, row: int, where: str) -> bytes | NDArray[Any]:
    """The bytes of a JPEG file, or pixels (H, W, 3), a view; of other fields the bytes, or the array."""
    if field.what == "array":
        return _array(mapped, field, value, row)
    if field.what == "bytes":
        return mapped.bytes_at(int(value["start"]), int(value["nbytes"]), row).tobytes()
    mode, width, height, start = value.item()
    if mode == _JPEG:
        return mapped.allocated(start, row).tobytes()
    if mode != _RAW or not width or not height:
        message = f"expected an image of mode {_JPEG} or {_RAW}, found mode {mode} and {height} x {width} pixels."
        raise bad_file(f"{where}: {row}", message)
    return mapped.bytes_at(start, height * width * 3, row).reshape(height, width, 3)


def _array(mapped: Mapped, field: BetonField, value: Any, row: int) -> NDArray[Any]:
    """A number, or an array of the shape that the field says, in this machine's byte order."""
    if field.what != "array":
        return np.asarray(value, "f8" if field.what == "float" else "i8")
    data = mapped.bytes_at(int(value), field.nbytes, row)
    values = np.frombuffer(data.tobytes(), field.dtype).reshape(field.shape)
    return values.astype(_native(field), copy=False)


def _native(field: BetonField) -> np.dtype[Any]:
    dtype = np.dtype(field.dtype).newbyteorder("=")
    return np.dtype(np.uint8) if dtype == np.bool_ else dtype


def _beton_files(path: Path) -> list[Path]:
    with os_errors(str(path)):
        files = path.iterdir() if path.is_dir() else [path]
        return sorted(file for file in files if file.suffix.lower() == SUFFIX and file.is_file())
