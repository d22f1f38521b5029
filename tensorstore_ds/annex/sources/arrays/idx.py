"""IDX files, the format of MNIST: formats/sources/idx.md."""

from __future__ import annotations

import gzip
import os
import re
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from tensorstore_ds.annex.sources.arrays.source import ArrayFile, ArraySource, bad_file, bad_shape
from tensorstore_ds.errors import Problem, SourceError
from tensorstore_ds.regular_files import open_file, os_errors, unreadable

if TYPE_CHECKING:
    from _typeshed import SupportsRead

#: The third byte of a file: its type, big-endian. http://yann.lecun.com/exdb/mnist/, "the IDX file format".
TYPES = {0x08: "u1", 0x09: "i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}

#: ``train-images-idx3-ubyte``, ``t10k-labels.idx1-ubyte.gz``, ``emnist-letters-test-images-idx3-ubyte.gz``
_NAME = re.compile(
    r"(?:(?P<prefix>.+)[-._])?(?P<split>train|val|valid|validation|test|t10k)[-._](?P<what>images|labels)"
    r"[-._]idx[1-4](?:[-._][a-z]+)?(?P<gz>\.gz)?",
    re.IGNORECASE,
)
_MAX_DIMENSIONS = 4
#: Maximum expansion of a deflate stream: 258 bytes from 2 bits. Headers that claim more are rejected.
_GZIP_RATIO = 1032


class IdxSource(ArraySource):
    """Images and labels of MNIST and its kin, compressed or not."""

    name: ClassVar[str] = "idx"

    @classmethod
    def detect(cls, path: Path) -> bool:
        """Whether the folder, or its folder ``raw``, has files named like MNIST's."""
        return path.is_dir() and any(
            match["what"].lower() == "images" for folder in (path, path / "raw") for match, _ in _named(folder)
        )

    def find(self) -> dict[str, dict[str, ArrayFile]]:
        """Images and labels of each split; without labels if no split has any."""
        folder = self.path if _named(self.path) else self.path / "raw"
        splits: dict[str, dict[str, Path]] = {}
        prefixes: set[str] = set()
        for match, file in _named(folder):  # files that are not compressed come first
            split = match["split"].lower()
            prefixes.add(match["prefix"] or "")
            field = "image" if match["what"].lower() == "images" else "label"
            first = splits.setdefault("test" if split == "t10k" else split, {}).setdefault(field, file)
            if first != file:
                self.ledger.use(file)
                self.leave_out(file.name, f"{first.name} stands for the same")
        if len(prefixes) > 1:
            message = f"expected the files of one data set, found {' and '.join(sorted(prefixes))}."
            raise SourceError(Problem(str(folder), "ambiguous-format", message), "Give each a separate folder.")
        if not splits:
            message = "expected files such as train-images-idx3-ubyte, found none."
            raise SourceError(Problem(str(self.path), "unknown-format", message), "Name the folder that holds them.")
        is_labelled = any("label" in fields for fields in splits.values())
        for fields in splits.values():
            if "image" not in fields:
                message = "expected a file of images with these labels, found none."
                raise SourceError(Problem(fields["label"].name, "no-image", message))
            if is_labelled and "label" not in fields:
                message = "expected a file of labels with these images, as another split has, found none."
                raise SourceError(Problem(fields["image"].name, "no-annotation", message))
        self._files = [file for fields in splits.values() for file in fields.values()]
        arrays = {split: {name: self._open(file) for name, file in fields.items()} for split, fields in splits.items()}
        for labels in (fields["label"] for fields in arrays.values() if is_labelled):
            if len(labels.shape) != 1 or labels.native.kind not in "iu":
                message = f"expected whole numbers in one dimension, found {labels.native} {labels.shape}."
                raise bad_shape(labels.where, message)
        return arrays

    def _open(self, file: Path) -> ArrayFile:
        """The array in an IDX file, from its header; compressed files are decompressed."""
        compressed = file.suffix.lower() == ".gz"
        try:
            with open_file(file, file.name) as raw, gzip.open(raw) if compressed else raw as stream:
                nbytes = os.fstat(raw.fileno()).st_size
                array = _read_header(stream, file)
                if not compressed:
                    array.check_nbytes(nbytes)
                    return array
                if array.nbytes > nbytes * _GZIP_RATIO:
                    array.check_nbytes(nbytes * _GZIP_RATIO)
                return self.unpack(stream, array)
        except (gzip.BadGzipFile, EOFError, zlib.error) as error:
            raise bad_file(file.name, f"cannot be decompressed: {error}.") from error
        except OSError as error:
            raise SourceError(unreadable(file.name, error)) from error


def _read_header(stream: SupportsRead[bytes], file: Path) -> ArrayFile:
    """Parse dtype and shape: 2 zero bytes, a type, the number of dimensions, and each as a big-endian uint32."""
    magic = stream.read(4)
    if len(magic) < 4 or magic[:2] != b"\0\0" or magic[2] not in TYPES or not 1 <= magic[3] <= _MAX_DIMENSIONS:
        raise bad_file(file.name, f"expected an IDX file of 1 to {_MAX_DIMENSIONS} dimensions, found {magic.hex()}.")
    sizes = stream.read(4 * magic[3])
    if len(sizes) < 4 * magic[3]:
        raise bad_file(file.name, f"expected {magic[3]} dimensions, found the end of the file.")
    shape = tuple(int.from_bytes(sizes[i : i + 4], "big") for i in range(0, len(sizes), 4))
    return ArrayFile(file.name, file, TYPES[magic[2]], shape, 4 + len(sizes))


def _named(folder: Path) -> list[tuple[re.Match[str], Path]]:
    """The files of a folder that are named like MNIST's, those that are not compressed first."""
    with os_errors(str(folder)):
        files = folder.iterdir() if folder.is_dir() else []
        named = [(match, file) for file in files if (match := _NAME.fullmatch(file.name)) and file.is_file()]
    return sorted(named, key=lambda item: (item[0]["gz"] is not None, item[1]))
