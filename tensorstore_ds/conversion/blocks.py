"""Convert a block of samples into rows: read, encode, write the fixed rows into place, return the rest."""

from __future__ import annotations

import contextlib
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from tensorstore_ds.conversion.encode import check_pixels, encode_sample, read_sample
from tensorstore_ds.conversion.options import ImageOptions, OnError
from tensorstore_ds.conversion.plan import Block
from tensorstore_ds.durable import write_at
from tensorstore_ds.errors import OptionError, Problem, SourceError
from tensorstore_ds.format.kinds import ImageField, KeyField, MaskField, ObjectsField, SizeField
from tensorstore_ds.format.kinds.base import ArrayField, Field, TableField, of_kind
from tensorstore_ds.format.schema import EncodedSample
from tensorstore_ds.format.statistics import ImageSums, ObjectSums, Statistics
from tensorstore_ds.imaging.codecs import OnDecode
from tensorstore_ds.imaging.objects import BOX_CROPPED, doubtful_boxes
from tensorstore_ds.imaging.picture import Picture, PlacedPicture
from tensorstore_ds.regular_files import status_of
from tensorstore_ds.sources.base import Sample, Source

#: Fields that every store has, besides those of its source.
OWN_FIELDS = ("image", "size", "key")
#: The note about the numbers of gray and of color images.
ALL_AS_RGB = (
    '{:,} gray and {:,} color images: all are stored as RGB, which needs no action. `color="gray"` stores all as gray.'
)
#: Message if all samples are bad, and left out.
NOTHING_LEFT = "No sample is left to be stored."
#: Advice about a bad sample.
SKIP = 'Correct the sample. With `on_error="skip"` such samples are left out.'
_COPY_NBYTES = 8 * 1024**2


class ShapesDiffer(SourceError):
    """An image has another shape than the first one. It is not skipped, because most images may differ."""


@dataclass(frozen=True)
class RowFormat:
    """The common format of all rows; `channels` are those of the first image, and all others must have the same.

    The encoding ``auto`` means pixels of one size, until a survey has found that sizes differ.
    """

    fields: Mapping[str, Field]
    image: ImageOptions
    on_error: OnError
    channels: int
    dtype: str | None = None  #: of the pixels in files that are kept; None: not known

    @classmethod
    def of(
        cls,
        source_fields: Mapping[str, Field],
        first: EncodedSample,
        image: ImageOptions,
        on_error: OnError,
        *,
        is_ragged: bool = False,
    ) -> RowFormat:
        """The format of a source's fields and its first sample; `is_ragged` means pixels of differing sizes."""
        own: Field = image.encoding.field(first, image.max_pixels, is_ragged=is_ragged)
        others = {name: field.fitted(first) for name, field in source_fields.items()}
        fields = {"image": own, **others, "size": SizeField(), "key": KeyField()}
        return cls(fields, image, on_error, first.shape[2], first.dtype.name)

    @property
    def own(self) -> ImageField:
        """The field of the images."""
        return cast(ImageField, self.fields["image"])

    def check(self, row: EncodedSample) -> None:
        """Raise `ShapesDiffer` for an image with another shape than the first one."""
        own, (shared, unit) = self.own, self.image.encoding.shared
        if row.shape == own.one_shape and row.dtype == own.dtype:
            return
        if own.encoding == "raw" and own.one_shape is None:
            check_pixels(row.key, row.shape, self.image)

        def told(shape: tuple[int, ...], dtype: Any) -> str:
            shown = f"{shape[-1]} x" if own.one_shape is None else "x".join(map(str, shape))
            return shared.format(shape=shown, channels=shape[-1], dtype=dtype)

        expected = told(own.one_shape or (self.channels,), own.dtype or self.dtype or row.dtype)
        if (found := told(row.shape, row.dtype)) != expected:
            message = f"expected an image of {expected}{unit} like the first one, found {found}."
            raise ShapesDiffer(Problem(row.key, "shapes-differ", message))

    @cached_property
    def fixed_nbytes(self) -> int:
        """Bytes of a row in the largest field of fixed shape."""
        return max(field.spec.row_nbytes for field in of_kind(self.fields, ArrayField).values())


@dataclass(frozen=True, slots=True)
class Spool:
    """Values of a table in a file of their own, whose bytes are appended to the values of a shard."""

    path: Path

    def __len__(self) -> int:
        """Its bytes."""
        return self.path.stat().st_size

    def pieces(self) -> Iterator[bytes]:
        """Yield the bytes in pieces, then remove the file."""
        with self.path.open("rb", buffering=0) as file:
            while data := file.read(_COPY_NBYTES):
                yield data
        self.path.unlink()


#: Values of a table: as one array, or in several pieces.
Values = NDArray[Any] | Sequence[NDArray[Any] | bytes | Spool]


def data_of(values: Values) -> Iterator[bytes | memoryview]:
    """Yield the bytes of values in order, and remove the files that contain some."""
    for piece in [values] if isinstance(values, np.ndarray) else values:
        if isinstance(piece, Spool):
            yield from piece.pieces()
        elif isinstance(piece, bytes):
            yield piece
        else:
            yield np.ascontiguousarray(piece).reshape(-1).view(np.uint8).data


@dataclass(frozen=True, slots=True)
class Job:
    """What a worker receives once."""

    source: Source
    format: RowFormat


@dataclass(frozen=True, slots=True)
class BlockResult:
    """The result of a block."""

    first_row: int  #: the block's place in the shard
    rows: int  #: samples stored; their fixed rows stand there, back to back
    #: For each table the number of values of each sample, (rows,), and the values. Ragged values count as tables.
    tables: Mapping[str, tuple[NDArray[np.int64], Mapping[str, Values]]]
    statistics: Statistics
    skipped: tuple[Problem, ...]  #: samples left out and boxes dropped
    left_out: tuple[Problem, ...]  #: what the samples have that is not stored, each once
    files: bytes  #: `identities` of the files of its samples, as they were before they were read


def check_fields(fields: Mapping[str, Field], image: ImageOptions, where: str) -> None:
    """Raise `OptionError` for fields of a source that conflict with the store's own fields or these options."""
    taken = [name for name in OWN_FIELDS if name in fields]
    if taken:
        raise SourceError(
            Problem(where, "array-shape", f"one of its fields has the reserved name {taken[0]}. Rename it.")
        )
    if image.encoding.name != "raw" and image.size is None and of_kind(fields, MaskField):
        raise OptionError(
            'masks are stored as pixels of one size: give `size`, with `encoding="raw"` or `encoding="jpeg"`, '
            f'found `encoding="{image.encoding.name}"` without it.'
        )


def convert_block(
    job: Job, block: Block, on_sample: Callable[[int], None] = lambda i: None, on_decode: OnDecode | None = None
) -> BlockResult:
    """Convert one block, and write its fixed rows; `on_sample` gets the number of each sample before it is read."""
    rows = BlockRows(job.format, [], (block.folder, block.first_row))
    # Before they are read, so that a resumed run notices later changes.
    files = identities(path for reference in block.references for path in job.source.files(reference))
    for i, reference in enumerate(block.references):
        on_sample(i)
        with or_skipped(job.format.on_error, rows.skipped):
            rows.add(job.source.read(block.source_split, reference), on_decode)
    return rows.write(block.folder, block.first_row, files)


@contextlib.contextmanager
def or_skipped(on_error: OnError, skipped: list[Problem]) -> Iterator[None]:
    """Record the problems of a bad sample if bad samples are skipped, otherwise let the error pass."""
    try:
        yield
    except ShapesDiffer:
        raise
    except SourceError as error:
        if on_error == "fail":
            raise SourceError(error.problems, error.advice or SKIP) from error
        skipped += error.problems


def check_objects(encoded: EncodedSample, on_error: OnError) -> None:
    """Raise `SourceError` for a sample with bad objects, unless these are dropped."""
    if on_error != "skip" and (bad := faults(encoded.problems)):
        raise SourceError(bad, 'Correct the annotation, or leave out such boxes with `on_error="skip"`.')


class BlockRows:
    """The rows of a block, encoded one by one until they are written."""

    def __init__(self, format: RowFormat, skipped: list[Problem], place: tuple[Path, int] | None = None) -> None:
        self.format = format
        self._place = place  # the folder of the shard and the first row, where large images are written at once
        self.skipped = skipped  #: problems of samples and boxes that are left out
        self.nbytes = 0  #: of the images, where they differ in size
        self.left_out: dict[Problem, None] = {}  #: what the samples have that is not stored
        self.object_nbytes = 0  #: of boxes, keypoints and all else that objects have
        self._masks = of_kind(format.fields, MaskField)
        self._rows: list[EncodedSample] = []
        self._statistics = Statistics()
        self._file_nbytes, self._images_of = 0, list[str]()  # of the rows, not yet in the statistics

    def __len__(self) -> int:
        return len(self._rows)

    def add(self, sample: Sample, on_decode: OnDecode | None = None) -> None:
        """Encode a sample. If it is bad, this raises `SourceError` and the block is unchanged."""
        format, by_parts = self.format, self._place is not None
        row = encode_sample(sample, format.image, on_decode, self._masks, by_parts=by_parts, channels=format.channels)
        check_objects(row, format.on_error)
        format.check(row)
        sums = ImageSums()
        if isinstance(row.image, PlacedPicture):
            sums = self._write(row, row.image)
        elif format.own.one_shape is None:
            sums = cast(ImageSums, row.sums())
            self.nbytes += memoryview(row.image).nbytes
        self._take(sample, row, sums, is_file=format.own.encoding != "raw")

    def add_header(self, sample: Sample) -> tuple[EncodedSample, Picture]:
        """Take what the header and the annotations of a sample tell, for `statistics`; raises as `add`."""
        row, picture = read_sample(sample, self.format.image)
        check_objects(row, self.format.on_error)
        self._take(sample, row, ImageSums(), is_file=True)
        return row, picture

    def _take(self, sample: Sample, row: EncodedSample, sums: ImageSums, *, is_file: bool) -> None:
        row.sums = None  # which hold the pixels of a file: a block of files can have very many
        self._file_nbytes += row.file_nbytes
        self._images_of += [str(row.channels)] * is_file
        if sums.count:
            self._statistics.add({"image": sums})
        if doubtful := doubtful_boxes(sample.key, sample.objects, row.size, relative=sample.relative):
            self._statistics.add({n: ObjectSums(doubtful=doubtful) for n in of_kind(self.format.fields, ObjectsField)})
        if faults(row.problems) and not len(row.objects["boxes"]):
            self._statistics.add({name: ObjectSums(emptied=1) for name in of_kind(self.format.fields, ObjectsField)})
        self.skipped += row.problems
        self.left_out.update(dict.fromkeys(row.left_out))
        self.object_nbytes += sum(
            sum(each.nbytes for each in values) if isinstance(values, list) else values.nbytes
            for values in row.objects.values()
        )
        self._rows.append(row)

    def _write(self, row: EncodedSample, placed: PlacedPicture) -> ImageSums:
        """Write a large image at once: in its place, or in a separate file until its shard is completed."""
        (folder, first_row), sums = cast("tuple[Path, int]", self._place), list[ImageSums]()
        encoding, number = self.format.image.encoding, first_row + len(self._rows)
        if self.format.own.one_shape is not None:
            offset = number * self.format.own.arrays[""].row_nbytes
            encoding.write(row, placed.bands(sums), raw_path(folder, "image"), offset)
            row.image = None
        else:
            path = folder / "image" / f"large-{number}"
            try:
                path.touch()
                encoding.write(row, placed.bands(sums), path, 0)
            except BaseException:
                path.unlink(missing_ok=True)
                raise
            row.image = Spool(path)
        row.left_out += placed.picture.left_out
        placed.picture.close()
        return sum(sums, ImageSums())

    def _count_files(self) -> None:
        if self._rows:
            counted = ImageSums(file_nbytes=self._file_nbytes, images_of=dict(Counter(self._images_of)))
            self._statistics.add({"image": counted})
        self._file_nbytes, self._images_of = 0, []

    def statistics(self) -> Statistics:
        """Return the statistics of all rows that `add_header` added, except pixels and masks, and forget the rows."""
        self._count_files()
        for name, field in self.format.fields.items() if self._rows else ():
            if not field.is_large:
                rows = field.rows(name, self._rows)
                self._statistics.add({name: field.sums(*rows) if isinstance(rows, tuple) else field.sums(rows)})
        self._rows = []
        return self._statistics

    def write(self, folder: Path, first_row: int, files: bytes = b"") -> BlockResult:
        """Write the fixed rows into place in a shard's folder, and return the rest."""
        tables: dict[str, tuple[NDArray[np.int64], Mapping[str, Values]]] = {}
        self._count_files()
        for name, field in self.format.fields.items():
            if isinstance(field, ArrayField):
                is_between = name == "image" and any(
                    each.image is None for each in self._rows
                )  # large ones are written
                for row, some in enumerate([[each] for each in self._rows] if is_between else [self._rows]):
                    if not some or (is_between and some[0].image is None):
                        continue
                    rows = field.rows(name, some)  # not through a map: there a full disk would kill the process
                    data = np.ascontiguousarray(rows).reshape(-1).view(np.uint8).data
                    write_at(raw_path(folder, name), data, (first_row + row) * rows[:1].nbytes)
                    self._statistics.add({name: field.sums(rows)})
            elif isinstance(field, TableField):
                tables[name] = found = field.rows(name, self._rows)
                if self._rows:
                    self._statistics.add({name: field.sums(*found)})
                tables |= {f"{name}/{value}": each for value, each in field.lists(name, self._rows).items()}
        skipped, left_out = tuple(self.skipped), tuple(self.left_out)
        return BlockResult(first_row, len(self._rows), tables, self._statistics, skipped, left_out, files)


def raw_path(folder: Path, array: str) -> Path:
    """Path where the bytes of an array are collected until its shard is completed."""
    return folder / array / "raw"


def identities(paths: Iterable[str | Path]) -> bytes:
    """Inode, size, and times of change in nanoseconds of each file, to detect changes; zeros if it is missing.

    Of numbers that need more than 63 bits, as some file systems have them, these are the lowest ones.
    """
    numbers = array("q")
    for path in paths:
        try:
            status = status_of(path)
            found = status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns
            numbers.extend(number & 0x7FFF_FFFF_FFFF_FFFF for number in found)
        except OSError:  # reading it will say why
            numbers.extend((0, 0, 0, 0))
    return numbers.tobytes()


def faults(problems: Iterable[Problem]) -> list[Problem]:
    """Problems of the source itself, without those caused by a requested crop."""
    return [problem for problem in problems if problem.reason != BOX_CROPPED]
