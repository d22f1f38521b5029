"""HDF5 files with images: formats/sources/hdf5.md."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, cast

import numpy as np
from numpy.typing import NDArray

from tensorstore_ds.annex.sources.arrays.numpy_files import LABEL_NAMES, meaning
from tensorstore_ds.annex.sources.arrays.source import ArrayFile, ArraySource, bad_file
from tensorstore_ds.annex.sources.packed import damage, files_at
from tensorstore_ds.errors import OptionError, Problem, SourceError
from tensorstore_ds.machine import memory_limit
from tensorstore_ds.regular_files import open_file, read_head
from tensorstore_ds.sources.base import IMAGE_SUFFIXES
from tensorstore_ds.sources.files import glance
from tensorstore_ds.sources.names import RESERVED, field_name, order_classes
from tensorstore_ds.sources.splits import SPLIT_NAMES, split_name, word_split

SUFFIXES = (".h5", ".hdf5", ".hdf", ".he5")
_MAGIC = b"\x89HDF\r\n\x1a\n"
_ADVICE = "Write the file again, or download it again."
_CLASS_NAMES = ("class_names", "classes", "label_names", "list_classes", "names")
#: What libraries begin the names of attributes with that are about their own files; others are written in capitals.
_WRITERS = ("_", "MATLAB")
_IMAGE_WORDS = {"features": "images"}
_CACHE_NBYTES = 1 << 20  # HDF5's own, of the chunks of a dataset
_CACHE_SLOTS = 521
_CLASSES_LIMIT = 1 << 20
_CHUNK_HEAD = 1 << 16  # bytes that a filter may add to a chunk
_SAMPLED = 1 << 16  # labels that are texts, read at once


@dataclass(frozen=True, slots=True)
class Hdf5Array(ArrayFile):
    """A dataset in an HDF5 file."""

    name: str = ""  #: its path in the file
    cache_nbytes: int = _CACHE_NBYTES  #: that hold one of its chunks
    classes: tuple[str, ...] = ()  #: of labels that are texts

    def map(self) -> NDArray[Any]:
        """Map the rows, which are read on access."""
        rows = _Rows(self)
        return cast("NDArray[Any]", rows.labels() if self.classes else rows)


class _Rows:
    """Rows of a dataset. Each process opens the file anew, since HDF5 does not survive a fork."""

    def __init__(self, array: Hdf5Array) -> None:
        self._array = array
        self._opened: tuple[int, Any] | None = None  # the process and the dataset, which keeps its file open

    def __getitem__(self, row: int) -> Any:
        where = f"{self._array.where} (row {row})"
        with damage(where, "an HDF5 file", _ADVICE):
            return self._dataset()[row]

    def reshape(self, *shape: int) -> NDArray[Any]:
        """All rows in a different shape."""
        _check_fits(self._array.where, self._array.nbytes)
        with damage(self._array.where, "an HDF5 file", _ADVICE):
            return np.asarray(self._dataset()[()]).reshape(*shape)

    def labels(self) -> NDArray[np.int64]:
        """(n,) class indices of labels that are texts."""
        index = {name: i for i, name in enumerate(self._array.classes)}
        with damage(self._array.where, "an HDF5 file", _ADVICE):
            texts = _texts(self._dataset(), self._array.where)
        unknown = next((text for text in texts if text not in index), None)
        if unknown is not None:
            message = f"expected the labels of the scan, found {unknown[:60]!r}."
            advice = "Do not change a source while it is read."
            raise SourceError(Problem(self._array.where, "packed-file", message), advice)
        return np.array([index[text] for text in texts], np.int64)

    def _dataset(self) -> Any:
        import h5py

        array = self._array
        if self._opened is None or self._opened[0] != os.getpid():
            file = open_hdf5(array.path, array.where)
            access = h5py.h5p.create(h5py.h5p.DATASET_ACCESS)
            access.set_chunk_cache(_CACHE_SLOTS, array.cache_nbytes, 1.0)
            self._opened = os.getpid(), h5py.Dataset(h5py.h5d.open(file.id, array.name.encode(), access))
        found = self._opened[1]
        if found.shape != array.shape:
            message = f"expected the shape {array.shape} of the scan, found {found.shape}."
            raise SourceError(Problem(array.where, "packed-file", message), "Do not change a source while it is read.")
        return found


class Hdf5Source(ArraySource):
    """An HDF5 file, or a folder of some, with splits as groups, parts of names, or files."""

    name: ClassVar[str] = "hdf5"
    _found_classes = "", ""  # by which name, and where

    @classmethod
    def detect(cls, path: Path) -> bool:
        """Whether this is an HDF5 file, or a folder of some without an image."""
        if path.is_file():
            return path.suffix.lower() in SUFFIXES and read_head(path, 8) == _MAGIC
        files = glance(path) if path.is_dir() else []
        if any(file.lower().endswith((*IMAGE_SUFFIXES, ".xml")) for file in files):
            return False
        return any(read_head(path / file, 8) == _MAGIC for file in files if file.lower().endswith(SUFFIXES))

    def find(self) -> dict[str, dict[str, ArrayFile]]:
        """Datasets of each split. Those of no split, or with a different number of rows, are reported and left out."""
        self._files = files_at(self.path, SUFFIXES, alone=("",))
        named: list[tuple[str | None, str, ArrayFile]] = []
        texts: dict[str, list[str]] = {}  # labels that are no numbers, by where they are
        for i, file in enumerate(self._files):
            name = self._where(i)
            word = word_split(name.rpartition(".")[0], len(self._files))
            is_split = word.lower() in SPLIT_NAMES and word.lower() != "train"  # a single file may hold others too
            hint = split_name(word) if len(self._files) > 1 or is_split else None
            with opened(file, name) as root:
                named += self._datasets(root, file, name, hint, texts)
        splits = self.divided(named, "a dataset")
        if texts:
            every = {text for each in texts.values() for text in each}
            wanted = self.options.classes or self.classes
            self.classes = order_classes(every, wanted, str(self.path), self.options.class_map)
        for arrays in splits.values():
            for field, array in arrays.items():
                if isinstance(array, Hdf5Array) and array.classes:
                    arrays[field] = replace(array, classes=self.classes or ())
        return splits

    def _datasets(
        self, root: Any, file: Path, where: str, hint: str | None, texts: dict[str, list[str]]
    ) -> Iterator[tuple[str | None, str, ArrayFile]]:
        """Datasets at the top of a file and in its groups of splits, with split and field."""
        import h5py

        self._note_classes(root, where)
        pending = [("", root, hint)]
        while pending:
            prefix, group, split = pending.pop()
            for name in group:
                place, member = f"{where}:{prefix}{name}", None
                if isinstance(group.get(name, getlink=True), h5py.HardLink):
                    member = group.get(name)
                if isinstance(member, h5py.Group) and not prefix and name.lower() in SPLIT_NAMES:
                    self._note_classes(member, place)
                    pending.append((f"{name}/", member, split_name(name)))
                elif isinstance(member, h5py.Dataset):
                    if name.lower() in _CLASS_NAMES:
                        self._take_classes(member, name, place)
                    else:
                        yield from self._dataset(member, name, f"{prefix}{name}", file, place, split, texts)
                else:
                    why = "a group that means no split" if isinstance(member, h5py.Group) else "a link"
                    self.leave_out(place, f"it is {why}")

    def _dataset(
        self, dataset: Any, name: str, path: str, file: Path, where: str, split: str | None, texts: dict[str, list[str]]
    ) -> Iterator[tuple[str | None, str, ArrayFile]]:
        import h5py

        self._note_classes(dataset, where)
        own = name.lower().replace("_set_", "_")  # train_set_x
        own = _IMAGE_WORDS.get(own, own)
        shape, dtype = dataset.shape, dataset.dtype
        is_text = h5py.check_string_dtype(dtype) is not None
        is_encoded = h5py.check_vlen_dtype(dtype) == np.uint8
        if shape is None or not shape or (is_text and len(shape) > 1):
            self.leave_out(where, f"it has the shape {shape}")
            return
        if not (is_text or is_encoded) and (dtype.kind not in "biuf" or dtype.itemsize > 8):
            self.leave_out(where, f"{str(dtype)[:60]} has no place in a store")
            return
        stored = np.dtype(np.int64 if is_text else np.uint8 if is_encoded else dtype)
        array = Hdf5Array(where, file, stored.str, tuple(map(int, shape)), is_encoded=is_encoded, name=path)
        found, field = (split, field_name(own)) if field_name(own) in RESERVED else meaning(array, own, split)
        if is_text and field != "label" and field_name(own) not in LABEL_NAMES:
            self.leave_out(where, "texts have no fixed shape")
            return
        if is_encoded and field != "image":
            self.leave_out(where, "lists have no fixed shape")
            return
        _check_readable(dataset, where)
        if is_text:
            texts[where] = _texts(dataset, where)
        nbytes = math.prod(dataset.chunks or ()) * stored.itemsize if dataset.chunks else 0
        _check_fits(where, max(nbytes, math.prod(shape[1:]) * stored.itemsize))
        cache = max(_CACHE_NBYTES, nbytes + nbytes // 2)
        yield found, field, replace(array, cache_nbytes=cache, classes=("",) if is_text else ())

    def _note_classes(self, node: Any, where: str) -> None:
        """Take class names from the attributes of a file, group or dataset; note other attributes."""
        for name in node.attrs:
            if name in _CLASS_NAMES:
                self._take_classes(node.attrs[name], name, f"{where}: {name}")
            elif not name.startswith(_WRITERS) and not name.isupper():
                self.ledger.unread(f"the attribute {name}", where, "places")

    def _take_classes(self, values: Any, name: str, where: str) -> None:
        """Take class names, unless others were found before."""
        found, (first, known) = _names(values, where), self._found_classes
        if self.classes is None and found is not None:
            self.classes, self._found_classes = found, (name, where)
        elif self.options.classes is None and name == first and found is not None and found != self.classes:
            message = f"expected the class names of {known}, found {', '.join(found)[:200]}."
            raise SourceError(
                Problem(where, "unknown-class", message), "Convert each alone, or name all with `classes`."
            )
        elif found != self.classes or found is None:
            self.leave_out(where, f"it is no list of texts, or {known or 'another place'} has the class names")


def _names(values: Any, where: str) -> tuple[str, ...] | None:
    """Texts in an attribute or dataset; None for other types."""
    if getattr(values, "shape", None) is not None and math.prod(values.shape) > _CLASSES_LIMIT:
        return None
    found = np.asarray(values).reshape(-1).tolist()
    if not found or not all(isinstance(each, str | bytes) for each in found):
        return None
    try:
        return tuple(each if isinstance(each, str) else each.decode() for each in found)
    except UnicodeDecodeError as error:
        raise bad_file(where, "expected names of classes in UTF-8, found other bytes.") from error


def _texts(dataset: Any, where: str) -> list[str]:
    """Labels that are texts."""
    _check_fits(where, dataset.shape[0] * 64)
    texts: list[str] = []
    for start in range(0, dataset.shape[0], _SAMPLED):
        for each in dataset[start : start + _SAMPLED].tolist():
            try:
                texts.append(each if isinstance(each, str) else each.decode())
            except UnicodeDecodeError as error:
                raise bad_file(where, "expected labels in UTF-8, found other bytes.") from error
    return texts


def _check_readable(dataset: Any, where: str) -> None:
    """Raise for a dataset whose data are in other files, or need a filter that is not installed."""
    import h5py

    if dataset.is_virtual or dataset.external:
        message = "expected data in this file, found a dataset whose data are in other files."
        raise SourceError(Problem(where, "array-file", message), "Copy them into one file with h5repack.")
    created = dataset.id.get_create_plist()
    for i in range(created.get_nfilters()):
        number, _, _, name = created.get_filter(i)
        if not h5py.h5z.filter_avail(number):
            shown = f"{name.decode('latin-1')[:40] or 'no name'} (number {number})"
            message = f"expected a compression that HDF5 has, found the filter {shown}, which is not installed."
            advice = "Where the filter is installed, write the file again: h5repack -f GZIP=4 old.h5 new.h5"
            raise SourceError(Problem(where, "array-file", message), advice)
    _check_stored(dataset, where)


def _check_stored(dataset: Any, where: str) -> None:
    """Raise for chunks that are larger than their data: HDF5 unpacks everything in them before it cuts."""
    if not dataset.chunks or not hasattr(dataset.id, "chunk_iter"):
        return
    nbytes = math.prod(dataset.chunks) * dataset.dtype.itemsize
    limit, largest = nbytes + nbytes // 8 + _CHUNK_HEAD, 0

    def note(chunk: Any) -> None:
        nonlocal largest
        largest = max(largest, chunk.size)

    dataset.id.chunk_iter(note)
    if largest > limit:
        message = f"expected chunks of at most {limit:,} bytes in the file, found one of {largest:,}."
        raise SourceError(Problem(where, "array-file", message), "Write the file again: h5repack old.h5 new.h5")


def _check_fits(where: str, nbytes: int) -> None:
    if not 0 <= nbytes <= memory_limit() // 2:
        message = f"expected a row, a chunk or labels of at most {memory_limit() // 2:,} bytes, found {nbytes:,}."
        raise SourceError(Problem(where, "array-file", message), "Write the file with smaller chunks.")


@contextmanager
def opened(path: Path, where: str) -> Iterator[Any]:
    """`open_hdf5` as a context; errors of HDF5 in it are raised for this file."""
    with damage(where, "an HDF5 file", _ADVICE), open_hdf5(path, where) as file:
        yield file


def open_hdf5(path: Path, where: str) -> Any:
    """Open a file for reading as h5py.File; raises `OptionError` without h5py."""
    try:
        import h5py
    except ModuleNotFoundError:
        raise OptionError(
            "to read HDF5 files, h5py is needed: pip install '.[hdf5]' in a clone of tensorstore-ds"
        ) from None
    with open_file(path, where):  # a regular file
        return h5py.File(path, "r", locking=False)
