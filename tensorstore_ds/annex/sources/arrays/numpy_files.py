"""NumPy's files, .npy and .npz: formats/sources/arrays.md."""

from __future__ import annotations

import contextlib
import lzma
import os
import re
import struct
import zipfile
import zlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import IO, ClassVar

from tensorstore_ds.annex.sources.arrays.source import (
    NPY_HEAD,
    ArrayFile,
    ArraySource,
    NotNumbersError,
    bad_file,
    read_npy_header,
)
from tensorstore_ds.annex.sources.packed import files_at
from tensorstore_ds.errors import Problem, SourceError, TsdsError
from tensorstore_ds.regular_files import check_machine, is_file, open_file, os_errors
from tensorstore_ds.sources.base import IMAGE_SUFFIXES
from tensorstore_ds.sources.files import glance
from tensorstore_ds.sources.names import RESERVED, field_name, read_classes
from tensorstore_ds.sources.splits import SPLIT_NAMES, split_name

#: Names of arrays, in lower case, that are read as the images and as the labels.
IMAGE_NAMES = frozenset({"image", "images", "img", "imgs", "x", "data"})
LABEL_NAMES = frozenset({"label", "labels", "y", "target", "targets"})
#: Names of columns, in lower case, that are read as labels if they are whole numbers.
LABEL_COLUMNS = LABEL_NAMES | {"class", "cls"}

_SUFFIXES = (".npy", ".npz")
_CLASSES = "classes.txt"
_SPLITS = "|".join(sorted(SPLIT_NAMES, key=len, reverse=True))
_NAME = re.compile(rf"(?P<before>{_SPLITS})[-_. ](?P<rest>.+)|(?P<first>.+)[-_. ](?P<after>{_SPLITS})", re.IGNORECASE)
#: Exceptions of zipfile for files that are damaged, encrypted or compressed with an unknown method.
_BAD_ZIP = (zipfile.BadZipFile, zlib.error, lzma.LZMAError, EOFError, RuntimeError, struct.error, ValueError)


class ArraysSource(ArraySource):
    """A .npy file, a .npz file, or a folder of them, perhaps with split folders."""

    name: ClassVar[str] = "arrays"

    @classmethod
    def detect(cls, path: Path) -> bool:
        """Whether this is a .npy or .npz file, or a folder of them without a file that is an image."""
        if path.is_file():
            return path.suffix.lower() in _SUFFIXES
        files = [file.lower() for file in glance(path)] if path.is_dir() else []
        arrays = any(file.endswith(_SUFFIXES) for file in files)
        return arrays and not any(file.endswith((*IMAGE_SUFFIXES, ".xml")) for file in files)

    def find(self) -> dict[str, dict[str, ArrayFile]]:
        """The arrays of each split. Arrays of no split or with a different number of rows are reported, not read."""
        named = list(self._named())
        if not named:
            raise SourceError(Problem(str(self.path), "unknown-format", "expected .npy or .npz files, found none."))
        splits = self.divided(named, "an array")
        if self.options.classes is None and is_file(names := self.path / _CLASSES):
            self.classes = read_classes(names)
            self.ledger.use(names)
        return {split: {name: self._unpack(a) for name, a in arrays.items()} for split, arrays in splits.items()}

    def _named(self) -> Iterator[tuple[str | None, str, ArrayFile]]:
        """Every array, with the split and field from its name and folder."""
        self._files = files_at(self.path, _SUFFIXES, alone=("",))
        for i, file in enumerate(self._files):
            *folders, _ = (name := self._where(i)).split("/")
            if len(folders) > 1 or (folders and folders[0].lower() not in SPLIT_NAMES):
                self.leave_out(name, "its folder is not named after a split")
                continue
            hint = folders[0] if folders else file.stem if file.suffix.lower() == ".npz" else ""
            split = split_name(hint) if hint.lower() in SPLIT_NAMES else None
            if file.suffix.lower() == ".npz":
                for member, array in self._members(file, name):
                    yield *meaning(array, member, split), array
            elif file.suffix.lower() == ".npy":
                alone = self.path.is_file()  # whatever its name, it can only be the images
                with os_errors(name), open_file(file, name) as stream:
                    found = self._header(stream, name, file, "image" if alone else file.stem)
                    if found is None:
                        continue
                    found.check_nbytes(os.fstat(stream.fileno()).st_size)
                own_split, field = meaning(found, file.stem, split)
                yield own_split, "image" if alone else field, found
            else:
                raise bad_file(name, "expected a .npy or .npz file, found another suffix.")

    def _members(self, file: Path, where: str) -> Iterator[tuple[str, ArrayFile]]:
        """The arrays in a .npz file, by name; their data are not read."""
        with _archive(file, where) as archive:
            for info in archive.infolist():
                place = f"{where}:{info.filename}"
                if not info.filename.endswith(".npy"):
                    self.leave_out(place, "it is no array")
                    continue
                name = info.filename.removesuffix(".npy")
                with archive.open(info) as stream:
                    array = self._header(stream, place, file, name)
                if array is not None:
                    array.check_nbytes(info.file_size)
                    yield name, replace(array, member=info)

    def _header(self, stream: IO[bytes], where: str, file: Path, name: str) -> ArrayFile | None:
        """The array in a stream; None, and reported, if it is not numeric and its name is not for images or labels."""
        try:
            return read_npy_header(stream.read(NPY_HEAD), where, file)
        except NotNumbersError as error:
            if _parts(name)[1].lower() in IMAGE_NAMES | LABEL_NAMES:
                raise
            self.leave_out(where, error.problems[0].message.rstrip("."))
            return None

    def _unpack(self, array: ArrayFile) -> ArrayFile:
        """Unpack an array to its own file if it is compressed."""
        if array.member is None:
            return array
        with _archive(array.path, array.where) as archive, archive.open(array.member) as stream:
            stream.read(array.offset)
            return self.unpack(stream, array)  # at the end zipfile compares the checksum


def _parts(name: str) -> tuple[str, str]:
    """Split a name into the name of a split, or nothing, and the rest."""
    if name.lower() in SPLIT_NAMES:
        return name, "images"
    match = _NAME.fullmatch(name)
    return (match["before"] or match["after"], match["rest"] or match["first"]) if match else ("", name)


def meaning(array: ArrayFile, name: str, split: str | None) -> tuple[str | None, str]:
    """The split and the field of a name such as ``train_images``, ``x_test`` or ``val``; the folder's `split` wins."""
    own, rest = _parts(name)
    if own and split not in (None, split_name(own)):
        message = f"expected one split, found {split} in the path and {own} in the name."
        raise SourceError(Problem(array.where, "split-name", message), "Rename one.")
    split = split or (split_name(own) if own else None)
    rest = rest.lower()
    if rest in IMAGE_NAMES:
        return split, "image"
    if rest in LABEL_NAMES and array.native.kind in "iu" and set(array.shape[1:]) <= {1}:
        return split, "label"
    field = field_name(rest)
    if field in RESERVED:
        raise bad_file(array.where, f"expected a name that a store does not use itself, found {field}.")
    return split, field


@contextlib.contextmanager
def _archive(file: Path, where: str) -> Iterator[zipfile.ZipFile]:
    """Open a .npz file; all errors while it is read become `SourceError`."""
    try:
        with os_errors(where), open_file(file, where) as packed, zipfile.ZipFile(packed) as archive:
            yield archive
    except TsdsError:
        raise  # some of these are also a ValueError or RuntimeError
    except _BAD_ZIP as error:
        check_machine(where, error.__context__ or error)  # zipfile hides the system's error
        raise bad_file(where, f"cannot be read as a .npz file: {error}.") from error
