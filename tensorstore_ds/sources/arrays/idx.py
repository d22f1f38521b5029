"""IDX files, the format of MNIST: formats/sources/idx.md."""

from __future__ import annotations

import gzip
import math
import os
import re
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import ClassVar

import numpy as np

from tensorstore_ds.errors import Problem, SourceError
from tensorstore_ds.regular_files import open_file, unreadable
from tensorstore_ds.sources.arrays.files import ArrayFile, Scratch, Stream, bad_shape
from tensorstore_ds.sources.arrays.source import ArraySource

#: The third byte of a file: its type, big-endian. http://yann.lecun.com/exdb/mnist/, "the IDX file format".
TYPES = {0x08: "u1", 0x09: "i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}

#: ``train-images-idx3-ubyte``, ``t10k-labels.idx1-ubyte.gz``, ``emnist-letters-test-images-idx3-ubyte.gz``
_NAME = re.compile(
    r"(?:(?P<prefix>.+)[-._])?(?P<split>train|val|valid|validation|test|t10k)[-._](?P<what>images|labels)"
    r"[-._]idx[1-4](?:[-._][a-z]+)?(?P<gz>\.gz)?",
    re.IGNORECASE,
)
_MAX_DIMENSIONS = 4
#: No deflate stream expands further: 258 bytes from 2 bits. Headers that claim more are not believed.
_GZIP_RATIO = 1032


class IdxSource(ArraySource):
    """Images and labels of MNIST and its kin, compressed or not."""

    name: ClassVar[str] = "idx"

    @classmethod
    def detect(cls, path: Path) -> bool:
        """Whether the folder, or its folder ``raw``, has files with the names of MNIST's."""
        return path.is_dir() and any(
            match["what"].lower() == "images" for folder in (path, path / "raw") for match, _ in _named(folder)
        )

    def find(self) -> dict[str, dict[str, ArrayFile]]:
        """The images of each split and, unless there are none at all, their labels."""
        folder = self.path if _named(self.path) else self.path / "raw"
        chosen: dict[tuple[str, str], Path] = {}
        prefixes: set[str] = set()
        for match, file in _named(folder):  # files that are not compressed come first
            split = match["split"].lower()
            prefixes.add(match["prefix"] or "")
            first = chosen.setdefault(("test" if split == "t10k" else split, match["what"].lower()), file)
            if first != file:
                self._left_out.append(Problem(file.name, "not-listed", f"not read: {first.name} stands for the same."))
        if len(prefixes) > 1:
            message = f"expected the files of one data set, found {' and '.join(sorted(prefixes))}."
            raise SourceError(Problem(str(folder), "ambiguous-format", message), "Give each a folder of its own.")
        if not chosen:
            message = "expected files such as train-images-idx3-ubyte, found none."
            raise SourceError(Problem(str(self.path), "unknown-format", message), "Name the folder that holds them.")
        self._check_pairs(chosen)
        self._files = tuple(chosen.values())
        splits: dict[str, dict[str, ArrayFile]] = {}
        for (split, what), file in chosen.items():
            splits.setdefault(split, {})["image" if what == "images" else "label"] = open_idx(file, self.scratch)
        for arrays in splits.values():
            if "label" in arrays:
                _check_labels(arrays["label"])
        return splits

    def _check_pairs(self, chosen: Mapping[tuple[str, str], Path]) -> None:
        labelled = any(what == "labels" for _, what in chosen)
        for split, what in chosen:
            if what == "labels" and (split, "images") not in chosen:
                message = "expected a file of images with these labels, found none."
                raise SourceError(Problem(chosen[split, what].name, "no-image", message))
            if what == "images" and labelled and (split, "labels") not in chosen:
                message = "expected a file of labels with these images, as another split has, found none."
                raise SourceError(Problem(chosen[split, what].name, "no-annotation", message))


def open_idx(file: Path, scratch: Callable[[], Scratch]) -> ArrayFile:
    """The array in an IDX file, from its header; what is compressed is decompressed into `scratch`.

    Raises:
        SourceError: `array-file` when it is no IDX file, or not of the size that its header says; `unreadable-file`.
    """
    where = file.name
    compressed = file.suffix.lower() == ".gz"
    try:
        with open_file(file, where) as raw, gzip.open(raw) if compressed else raw as stream:
            length = os.fstat(raw.fileno()).st_size
            dtype, shape = _read_header(stream, where)
            nbytes = math.prod(shape) * np.dtype(dtype).itemsize
            offset = 4 + 4 * len(shape)
            if not compressed:
                _check_size(where, nbytes, length - offset)
                return ArrayFile(where, file, dtype, shape, offset)
            _check_size(where, nbytes, min(nbytes, length * _GZIP_RATIO))
            path = scratch().keep(stream, nbytes)
            _check_size(where, nbytes, path.stat().st_size + len(stream.read(1)))
            return ArrayFile(where, path, dtype, shape)
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise _bad_file(where, f"cannot be decompressed: {error}.") from error
    except OSError as error:
        raise SourceError(unreadable(where, error)) from error


def _read_header(stream: Stream, where: str) -> tuple[str, tuple[int, ...]]:
    """dtype and shape: two zero bytes, a type, the number of dimensions, and each of them as a big-endian uint32."""
    magic = stream.read(4)
    if len(magic) < 4 or magic[:2] != b"\0\0" or magic[2] not in TYPES or not 1 <= magic[3] <= _MAX_DIMENSIONS:
        raise _bad_file(where, f"expected an IDX file of 1 to {_MAX_DIMENSIONS} dimensions, found {magic.hex()}.")
    sizes = stream.read(4 * magic[3])
    if len(sizes) < 4 * magic[3]:
        raise _bad_file(where, f"expected {magic[3]} dimensions, found the end of the file.")
    return TYPES[magic[2]], tuple(int.from_bytes(sizes[i : i + 4], "big") for i in range(0, len(sizes), 4))


def _check_size(where: str, expected: int, found: int) -> None:
    if expected != found:
        raise _bad_file(where, f"expected {expected:,} bytes after the header, found {found:,}.")


def _check_labels(labels: ArrayFile) -> None:
    if len(labels.shape) != 1 or labels.native.kind not in "iu":
        message = f"expected whole numbers in one dimension, found {labels.native} {labels.shape}."
        raise bad_shape(labels.where, message)


def _named(folder: Path) -> list[tuple[re.Match[str], Path]]:
    """The files of a folder that are named like MNIST's, those that are not compressed first."""
    try:
        files = sorted(folder.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise SourceError(unreadable(str(folder), error)) from error
    found = [(match, file) for file in files if (match := _NAME.fullmatch(file.name)) and file.is_file()]
    return sorted(found, key=lambda item: item[0]["gz"] is not None)


def _bad_file(where: str, message: str) -> SourceError:
    return SourceError(Problem(where, "array-file", message), "Download it again.")


SOURCE = IdxSource
