"""CIFAR-10 and CIFAR-100, the binary and the Python version: formats/sources/cifar.md."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from tensorstore_ds.errors import Problem, SourceError
from tensorstore_ds.format.kinds import LabelField
from tensorstore_ds.format.kinds.base import Field
from tensorstore_ds.regular_files import FILE_LIMIT, TEXT_LIMIT, open_file, os_errors, read_file, read_head
from tensorstore_ds.sources.base import Contents, Reference, Sample, Source, SourceOptions
from tensorstore_ds.sources.cifar_pickle import PickledBatch, read_batch
from tensorstore_ds.sources.files import PackedStrings
from tensorstore_ds.sources.names import number_classes

SIDE, CHANNELS = 32, 3
_NBYTES = SIDE * SIDE * CHANNELS
#: The folders that the downloads unpack to.
_FOLDERS = ("cifar-10-batches-bin", "cifar-10-batches-py", "cifar-100-binary", "cifar-100-python")
_BATCH = re.compile(r"(?P<split>data|test)_batch(?:_[0-9]{1,3})?(?P<binary>\.bin)?")
_WHOLE = re.compile(r"(?P<split>train|test)(?P<binary>\.bin)?")
_NAMES = {"label": ("batches.meta.txt", "fine_label_names.txt"), "coarse": ("coarse_label_names.txt",)}
_PICKLED_NAMES = {"label": (b"label_names", b"fine_label_names"), "coarse": (b"coarse_label_names",)}


@dataclass(frozen=True)
class _Batch:
    """A file of images.

    Attributes:
        split: of the store.
        offset: where the first image begins.
        stride: bytes from one image to the next.
        labels: for each field of labels one a row.
        keys: of the images; none where the file does not name them.
    """

    path: Path
    split: str
    offset: int
    stride: int
    labels: Mapping[str, NDArray[np.int64]]
    keys: Sequence[str] = ()

    def __len__(self) -> int:
        return len(self.labels["label"])


class CifarSource(Source):
    """A reference is a key, and after a NUL the numbers of its file and of its row."""

    name: ClassVar[str] = "cifar"

    def __init__(self, path: Path, options: SourceOptions) -> None:
        super().__init__(path, options)
        self._batches: list[_Batch] = []
        self._listed: list[Path] = []  # files with class names

    @classmethod
    def detect(cls, path: Path) -> bool:
        """Whether the folder, or one in it, has files with the names of CIFAR's, of a fitting beginning."""
        folder = _folder(path) if path.is_dir() else None
        return folder is not None and any(_looks_right(folder / name) for name in _named(folder))

    def scan(self) -> Contents:
        """Read the labels of all batches."""
        folder = _folder(self.path)
        named = {} if folder is None else _named(folder)
        if folder is None or not named:
            message = "expected files such as data_batch_1 or train.bin, found none."
            raise SourceError(Problem(str(self.path), "empty-source", message), "Name the folder that holds them.")
        self._batches = [self._read(folder / name, split) for name, split in named.items()]
        fields_of = {tuple(sorted(batch.labels)) for batch in self._batches}
        if len(fields_of) > 1:
            message = "expected files of CIFAR-10 or of CIFAR-100, found both."
            raise SourceError(Problem(str(self.path), "array-shape", message), "Move them into separate folders.")
        names = self._class_names(folder)
        fields: dict[str, Field] = {}
        for field in next(iter(fields_of))[::-1]:  # the label first
            every = np.concatenate([batch.labels[field] for batch in self._batches])
            wanted = self.options.classes if field == "label" else None
            listed, found = names.get(field, ("", ()))
            classes = wanted or found
            if classes and len(every) and int(every.max()) >= len(classes):
                message = f"expected labels below {len(classes)}, the number of class names, found {every.max()}."
                where = str(self.path) if wanted else listed
                raise SourceError(Problem(where, "unknown-class", message), "Name all with `classes`.")
            fields[field] = LabelField(classes=tuple(classes) or number_classes(every, None, str(self.path)))
        splits: dict[str, PackedStrings] = {}
        labels: dict[str, list[NDArray[np.int64]]] = {}
        is_unique = self._keys_are_unique()
        for i, batch in enumerate(self._batches):
            stem = batch.path.name.removesuffix(".bin")
            keys = batch.keys if is_unique else [f"{stem}/{row:05d}" for row in range(len(batch))]
            references = (f"{key}\0{i} {row}" for row, key in enumerate(keys))
            splits.setdefault(batch.split, PackedStrings()).extend(references)
            labels.setdefault(batch.split, []).append(batch.labels["label"])
        if not any(map(len, splits.values())):
            raise SourceError(Problem(str(self.path), "empty-source", "expected images in these files, found none."))
        return Contents(fields, splits, {name: np.concatenate(each) for name, each in labels.items()})

    def read(self, split: str, reference: Reference) -> Sample:
        key, _, numbers = str(reference).partition("\0")
        number, row = map(int, numbers.split())
        batch = self._batches[number]
        start = batch.offset + row * batch.stride
        with os_errors(batch.path.name):
            data = _mapped(batch.path, _identity(batch.path))[start : start + _NBYTES]
        if len(data) != _NBYTES:
            message = "expected what the scan found, found a shorter file. Do not change a source while it is read."
            raise SourceError(Problem(key, "array-file", message))
        pixels = np.ascontiguousarray(data.reshape(CHANNELS, SIDE, SIDE).transpose(1, 2, 0))
        arrays = {name: values[row] for name, values in batch.labels.items() if name != "label"}
        return Sample(key, pixels, int(batch.labels["label"][row]), arrays=arrays)

    def files(self, reference: Reference) -> tuple[str, ...]:
        return ()

    def common_files(self) -> tuple[Path, ...]:
        return (*(batch.path for batch in self._batches), *self._listed)

    def _read(self, path: Path, split: str) -> _Batch:
        if path.suffix != ".bin":
            batch = self._pickled(path, _NBYTES)
            return _Batch(path, split, batch.offset, _NBYTES, batch.labels, batch.keys)
        fields = ("coarse", "label") if _WHOLE.fullmatch(path.name) else ("label",)
        stride = len(fields) + _NBYTES
        with os_errors(path.name), open_file(path, path.name) as file:
            size = os.fstat(file.fileno()).st_size
        if size % stride or not size:
            message = f"expected images of {stride:,} bytes with their labels, found a file of {size:,} bytes."
            raise SourceError(Problem(path.name, "array-file", message), "Download it again.")
        with os_errors(path.name):
            rows = np.memmap(path, np.uint8, "r").reshape(-1, stride)
        labels = {field: rows[:, i].astype(np.int64) for i, field in enumerate(fields)}
        return _Batch(path, split, len(fields), stride, labels)

    def _pickled(self, path: Path, row_nbytes: int) -> PickledBatch:
        limit = FILE_LIMIT if row_nbytes else TEXT_LIMIT
        batch = read_batch(read_file(path, path.name, limit), path.name, row_nbytes)
        for name in batch.others:
            self.ledger.unread(f'"{name}"', path.name)
        return batch

    def _class_names(self, folder: Path) -> dict[str, tuple[str, tuple[str, ...]]]:
        """The class names of each field of labels, where a file has them, with that file."""
        found: dict[str, tuple[str, tuple[str, ...]]] = {}
        for field, files in _NAMES.items():
            for name in files:
                if (folder / name).is_file():
                    text = read_file(folder / name, name, TEXT_LIMIT).decode("utf-8-sig", "replace")
                    found[field] = name, tuple(line.strip() for line in text.splitlines() if line.strip())
                    self._listed.append(folder / name)
        for name in ("batches.meta", "meta"):
            if (folder / name).is_file():
                texts = self._pickled(folder / name, 0).texts
                self._listed.append(folder / name)
                for field, keys in _PICKLED_NAMES.items():
                    for key in keys:
                        if key in texts:
                            found[field] = name, tuple(each.decode("utf-8", "replace") for each in texts[key])
        for field, (name, names) in found.items():
            if len(set(names)) < len(names):
                message = f"expected names of the field {field} that differ, found {', '.join(names)[:200]}."
                raise SourceError(Problem(name, "unknown-class", message), "Correct them, or remove the file.")
        return found

    def _keys_are_unique(self) -> bool:
        keys = Counter(key for batch in self._batches for key in batch.keys)
        return all(len(batch.keys) == len(batch) for batch in self._batches) and max(keys.values(), default=2) == 1


def _folder(path: Path) -> Path | None:
    found = [folder for folder in (path, *(path / name for name in _FOLDERS)) if _named(folder)]
    if len(found) > 1:
        message = f"expected one of CIFAR's data sets, found {', '.join(each.name for each in found)}."
        raise SourceError(Problem(str(path), "several-datasets", message), f"Convert one: {found[0]}.")
    return found[0] if found else None


def _named(folder: Path) -> dict[str, str]:
    """The files of a folder that are named like CIFAR's, each with its split."""
    with os_errors(str(folder)):
        names = sorted(entry.name for entry in os.scandir(folder) if entry.is_file()) if folder.is_dir() else []
    batches = {name: match for name in names if (match := _BATCH.fullmatch(name))}
    if not batches and any(name in names for name in ("meta", "fine_label_names.txt")):
        batches = {name: match for name in names if (match := _WHOLE.fullmatch(name))}
    return {name: "test" if match["split"] == "test" else "train" for name, match in batches.items()}


def _looks_right(path: Path) -> bool:
    return path.suffix == ".bin" or read_head(path, 2)[:1] == b"\x80"


def _identity(path: Path) -> tuple[int, int, int]:
    status = path.stat()
    return status.st_ino, status.st_size, status.st_mtime_ns


@lru_cache(maxsize=16)
def _mapped(path: Path, identity: tuple[int, int, int]) -> NDArray[np.uint8]:
    """The bytes of a file, mapped; of another one in its place another map."""
    return np.asarray(np.memmap(path, np.uint8, "r"))
