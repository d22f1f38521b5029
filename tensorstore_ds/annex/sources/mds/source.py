"""Splits of MDS shards: formats/sources/mds.md."""

from __future__ import annotations

import bz2
import gzip
import io
import os
import re
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, ClassVar

import numpy as np
from numpy.typing import NDArray

from tensorstore_ds.annex.sources.arrays.numpy_files import IMAGE_NAMES, LABEL_COLUMNS
from tensorstore_ds.annex.sources.arrays.source import bad_file, bad_shape
from tensorstore_ds.annex.sources.mds.columns import IMAGES, Column, divide, image_of
from tensorstore_ds.annex.sources.mds.index import INDEX, Data, Shard, read_index
from tensorstore_ds.annex.sources.packed import PackedSource
from tensorstore_ds.annex.sources.scratch import Scratch
from tensorstore_ds.errors import FormatError, Problem, SourceError
from tensorstore_ds.format.chunks import decompress_chunk
from tensorstore_ds.format.kinds import LabelField
from tensorstore_ds.format.kinds.base import ArrayField, Field
from tensorstore_ds.format.schema import NAME, ArraySpec
from tensorstore_ds.machine import check_fits
from tensorstore_ds.regular_files import entries, is_file, open_file, os_errors, read_head, unreadable
from tensorstore_ds.sources.base import Contents, Reference, Sample, SourceOptions
from tensorstore_ds.sources.names import RESERVED, field_name, number_classes
from tensorstore_ds.sources.paths import inside
from tensorstore_ds.sources.splits import SPLIT_NAMES, no_samples, notes_of_renamed, split_names

_IS_MDS = re.compile(rb'"format"\s*:\s*"mds"')
_HEAD = 1 << 16
_ROWS = 1 << 14  # whose labels are looked up at once
_TOOLS = {"lz4": "lz4 -d", "snappy": "the package python-snappy", "br": "brotli -d"}


@dataclass(frozen=True, slots=True)
class _File:
    """A shard: its decompressed file, its bytes, and its samples."""

    path: Path
    where: str
    nbytes: int
    rows: int


def _unzstd(stream: BinaryIO, nbytes: int) -> BinaryIO:
    """Decompress one frame with a size, as MosaicML's writer makes it, in memory: a shard takes some 64 MB."""
    check_fits("a shard", nbytes + os.fstat(stream.fileno()).st_size)
    out = np.empty(nbytes, np.uint8)
    decompress_chunk(stream.read(), out)
    return io.BytesIO(out.data)


#: How compressed shards of so many bytes are read, and the most bytes that one byte can become.
_OPENERS: Mapping[str, tuple[Callable[[BinaryIO, int], Any], int]] = {
    "gz": (lambda stream, nbytes: gzip.GzipFile(fileobj=stream), 1032),
    "bz2": (lambda stream, nbytes: bz2.BZ2File(stream), 45_000_000),
    "zstd": (_unzstd, 32_768),
}


class MdsSource(PackedSource):
    """A reference is the number of a sample in its split. Samples are read on access; the scan reads labels."""

    name: ClassVar[str] = "mds"

    def __init__(self, path: Path, options: SourceOptions) -> None:
        super().__init__(path, options)
        self._columns: list[Column] = []
        self._image = self._label = Column("", "", None)
        self._fields: dict[str, Column] = {}  # those that are fields of their own
        self._shards: dict[str, list[_File]] = {}
        self._ends: dict[str, NDArray[np.int64]] = {}  # of each shard, in samples of the split
        self._scratch = Scratch()

    @classmethod
    def detect(cls, path: Path) -> bool:
        """Whether the folder, or one in it, has an ``index.json`` for MDS."""
        return path.is_dir() and any(_IS_MDS.search(read_head(folder / INDEX, _HEAD)) for folder in _folders(path))

    def scan(self) -> Contents:
        """Read the indexes, the header of each shard, and the labels."""
        folders = _folders(self.path)
        if not folders:
            message = f"expected {INDEX} in this folder or in folders of splits, found none."
            raise SourceError(Problem(str(self.path), "unknown-format", message), "Name the folder that holds it.")
        names = split_names(_split_of(folder, self.path) for folder in folders)
        empty: list[Problem] = []
        for folder in folders:
            where = f"{folder.name}/{INDEX}"
            self._files.append(folder / INDEX)
            listed = read_index(folder, where, self.ledger)
            self.ledger.use(*(folder / data.basename for each in listed for data in each.data))
            shards = [shard for shard in listed if shard.samples]
            if shards:
                self._take_columns([Column(*column) for column in shards[0].columns], where)
                files = [self._open(folder, shard, where) for shard in shards]
                split = names[_split_of(folder, self.path)]
                self._shards[split], self._ends[split] = files, np.cumsum([file.rows for file in files])
            else:
                empty.append(no_samples(where))
        if not self._shards:
            raise SourceError(Problem(str(self.path), "empty-source", "expected shards with samples, found none."))
        left_out = (*empty, *self._choose())
        fields: dict[str, Field] = {}
        labels = None
        if self._label.name:
            labels = {name: np.concatenate(list(map(self._labels_of, files))) for name, files in self._shards.items()}
            every = np.concatenate([*labels.values()])
            where = f"{self.path.name}: {self._label.name}"
            fields["label"] = LabelField(classes=number_classes(every, self.options.classes, where))
        for name, column in self._fields.items():
            dtype, shape = column.array or ("", ())
            fields[name] = ArrayField(ArraySpec(np.dtype(dtype).name, shape))
        splits = {split: range(int(ends[-1])) for split, ends in self._ends.items()}
        return Contents(fields, splits, labels, left_out=left_out, notes=notes_of_renamed(names))

    def read(self, split: str, reference: Reference) -> Sample:
        row = int(reference)
        key = self.key(split, reference)
        number = int(np.searchsorted(self._ends[split], row, "right"))
        file = self._shards[split][number]
        found = divide(_sample(file, row - int(self._ends[split][number]) + file.rows), self._columns, key)
        image = image_of(found[self._image.name], self._image.kind, self._image.encoding, key)
        label = int(_number(found[self._label.name], self._label).item()) if self._label.name else None
        arrays = {name: _number(found[column.name], column) for name, column in self._fields.items()}
        return Sample(key, image, label, arrays=arrays)

    def _take_columns(self, columns: list[Column], where: str) -> None:
        for column in columns:
            column.check(where)
        if self._columns and columns != self._columns:
            raise bad_shape(where, "expected the columns of the other splits, found others.", "Convert each alone.")
        self._columns = columns

    def _choose(self) -> tuple[Problem, ...]:
        """Choose the columns of images, labels and fields; returns problems for the others."""
        images = [column for column in self._columns if column.kind in IMAGES]
        called = [column for column in self._columns if column.name.lower() in IMAGE_NAMES]
        images = images or [column for column in called if column.kind in ("bytes", "ndarray")]
        named = [column for column in images if column in called]
        chosen = named if len(images) > 1 else images
        if len(chosen) != 1:
            shown = ", ".join(f"{column.name} ({column.encoding})" for column in self._columns)[:300]
            message = f"expected one column of images, of the encodings {', '.join(sorted(IMAGES))}, found {shown}."
            raise SourceError(Problem(str(self.path), "no-image", message), "Name the column of the images image.")
        self._image = chosen[0]
        labels = [c for c in self._columns if _is_whole(c) and c.name.lower() in LABEL_COLUMNS]
        if len(labels) > 1:
            shown = " and ".join(column.name for column in labels)
            raise bad_shape(str(self.path), f"expected one column of labels, found {shown}.", "Rename one.")
        self._label = labels[0] if labels else self._label
        left_out = []
        for column in self._columns:
            field = field_name(column.name)
            is_free = NAME.fullmatch(field) and field not in RESERVED | self._fields.keys()
            if column in (self._image, self._label):
                continue
            if column.array is not None and is_free:
                self._fields[field] = column
            else:
                why = f"{column.encoding[:60]} has no fixed shape" if is_free else "a store cannot have the name"
                left_out.append(Problem(column.name, "not-listed", f"not read: {why}."))
        return tuple(left_out)

    def _open(self, folder: Path, shard: Shard, where: str) -> _File:
        """Open a shard, decompressed unless it already is; compares its header with the index."""
        path, place = _place(folder, shard.raw_data, where)
        with os_errors(place):  # such as a name that is too long
            is_there = path.is_file()
        if not is_there and shard.zip_data is not None:
            path, place = self._decompress(folder, shard, shard.zip_data, where)
        else:
            self._files.append(path)
        with os_errors(place), open_file(path, place) as stream:
            nbytes = os.fstat(stream.fileno()).st_size
            if nbytes != shard.raw_data.nbytes:
                raise bad_file(place, f"expected {shard.raw_data.nbytes:,} bytes, as {where} says, found {nbytes:,}.")
            samples = int.from_bytes(stream.read(4), "little")
        if samples != shard.samples or 4 * (samples + 2) > nbytes:
            raise bad_file(place, f"expected {shard.samples:,} samples, as {where} says, found {samples:,}.")
        return _File(path, place, nbytes, samples)

    def _decompress(self, folder: Path, shard: Shard, data: Data, where: str) -> tuple[Path, str]:
        path, place = _place(folder, data, where)
        algorithm = (shard.compression or "").partition(":")[0]
        if algorithm not in _OPENERS:
            message = f"expected an uncompressed shard, or one of gz, bz2 or zstd, found {algorithm[:40] or 'no name'}."
            tool = _TOOLS.get(algorithm, "the program that compressed it")
            advice = f"Decompress the shards with {tool} beside these; {INDEX} can stay as it is."
            raise SourceError(Problem(place, "array-file", message), advice)
        self._files.append(path)
        opener, ratio = _OPENERS[algorithm]
        expected, found, made = shard.raw_data.nbytes, 0, path
        try:
            with open_file(path, place) as raw:
                if expected <= os.fstat(raw.fileno()).st_size * ratio:  # else it is not believed
                    with opener(raw, expected) as stream:
                        made, found = self._scratch.copy(stream, expected, "a shard")
        except (EOFError, FormatError, ValueError, zlib.error) as error:
            raise bad_file(place, f"cannot be decompressed: {error}.") from error
        except OSError as error:
            if error.errno is None:  # what gzip and bz2 raise for other bytes
                raise bad_file(place, f"cannot be decompressed: {error}.") from error
            raise SourceError(unreadable(place, error)) from error
        if found != expected:
            raise bad_file(place, f"expected {expected:,} bytes in it, found {found:,} or more.")
        return made, place

    def _labels_of(self, file: _File) -> NDArray[np.int64]:
        """(n,) labels of a shard; reads only the pages with labels."""
        before = self._columns[: self._columns.index(self._label)]
        lengths = [column.nbytes for column in self._columns].count(None)
        dtype, _ = self._label.array or ("", ())
        with os_errors(file.where), open_file(file.path, file.where) as stream:
            data = np.memmap(stream, np.uint8, "r", 0, (file.nbytes,))
        offsets = np.array(data[4 : 4 * (file.rows + 2)]).view("<u4").astype(np.int64)
        found = np.empty(file.rows, np.int64)
        for start in range(0, file.rows, _ROWS):
            heads, ends = offsets[:-1][start : start + _ROWS], offsets[1:][start : start + _ROWS]
            places = heads + 4 * lengths + sum(column.nbytes or 0 for column in before)
            for i in range([column.nbytes for column in before].count(None)):
                places += _gather(data, heads + 4 * i, ends, "<u4", file)
            found[start : start + _ROWS] = _gather(data, places, ends, dtype, file)
        return found


def _gather(
    data: NDArray[np.uint8], places: NDArray[np.int64], ends: NDArray[np.int64], dtype: str, file: _File
) -> NDArray[Any]:
    """(n,) numbers at some positions in a shard; raises if one is not in its own sample."""
    width = np.dtype(dtype).itemsize
    if (places < 4 * (file.rows + 2)).any() or (places + width > ends).any() or (ends > file.nbytes).any():
        raise bad_file(file.where, "expected samples that lie in the file, found one that does not.")
    found: NDArray[Any] = data[places[:, None] + np.arange(width)].view(dtype)[:, 0]
    return found


def _sample(file: _File, row: int) -> bytes:
    """Bytes of a sample, at the position in the header of its shard."""
    with os_errors(file.where), open_file(file.path, file.where, 0) as stream:
        stream.seek(4 * (row + 1))
        begin, end = np.frombuffer(stream.read(8).ljust(8, b"\0"), "<u4").tolist()
        if not 4 * (file.rows + 2) <= begin < end <= file.nbytes:
            message = f"expected a sample that lies in the file, found {begin:,} to {end:,} of {file.nbytes:,} bytes."
            raise bad_file(f"{file.where}: {row}", message)
        stream.seek(begin)
        data = stream.read(end - begin)
    if len(data) < end - begin:
        raise bad_file(file.where, f"expected {file.nbytes:,} bytes as before, found fewer.")
    return data


def _number(data: bytes, column: Column) -> NDArray[Any]:
    """A number, or an array with dtype and shape from the encoding, in native byte order."""
    dtype, shape = column.array or ("", ())
    values = np.frombuffer(data, dtype).reshape(shape)
    return values.astype(values.dtype.newbyteorder("="))


def _is_whole(column: Column) -> bool:
    dtype, shape = column.array or ("f", ())
    return shape == () and np.dtype(dtype).kind in "iu"


def _folders(path: Path) -> list[Path]:
    """The folder itself if it has an index, else its subfolders with one."""
    with os_errors(str(path)):
        if is_file(path / INDEX) or not path.is_dir():
            return [path] if path.is_dir() else []
        folders = (path / name for name, is_folder in entries(path) if is_folder and name[0] != ".")
        return sorted(folder for folder in folders if is_file(folder / INDEX))


def _split_of(folder: Path, top: Path) -> str:
    """Name of a folder relative to the source; for the source itself only if it is a split."""
    return folder.name if folder != top or folder.name.lower() in SPLIT_NAMES else "train"


def _place(folder: Path, data: Data, where: str) -> tuple[Path, str]:
    """A file from an index, which must be inside the folder of the index, and its name there."""
    name = inside(data.basename)
    if name is None:
        message = f"expected the name of a file in this folder, found {data.basename[:80]!r}."
        raise SourceError(Problem(where, "unsafe-path", message), "Write the data set again.")
    return folder / name, f"{folder.name}/{name}"
