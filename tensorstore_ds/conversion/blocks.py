"""A block of samples becomes rows: read, encode, write the fixed rows into place, hand back the rest."""

from __future__ import annotations

import os
from array import array
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tensorstore_ds.conversion.encode import BOX_CROPPED, EncodedSample, encode_sample
from tensorstore_ds.conversion.options import ImageOptions, OnError
from tensorstore_ds.conversion.plan import Block
from tensorstore_ds.conversion.shard_writer import write_rows
from tensorstore_ds.conversion.survey import SHAPES_DIFFER
from tensorstore_ds.errors import Problem, SourceError
from tensorstore_ds.format.schema import ArrayField, Field, TableField
from tensorstore_ds.format.statistics import Statistics
from tensorstore_ds.sources.base import Sample, Source

_NO_PIXELS = np.empty((0, 0, 0), np.uint8)


@dataclass(frozen=True, slots=True)
class Job:
    """What every worker needs to know, once; `channels` are those of the first image, which no other may differ in."""

    source: Source
    fields: Mapping[str, Field]
    options: ImageOptions
    on_error: OnError
    channels: int


@dataclass(frozen=True, slots=True)
class BlockResult:
    """What comes back of a block.

    Attributes:
        rows: samples kept; their fixed rows stand at the block's place, back to back.
        tables: for each table the number of values of each sample, (rows,), and the values.
        statistics: sums over the block.
        skipped: samples left out and boxes dropped.
        files: `identities` of the files of its samples, as they were before they were read.
    """

    rows: int
    tables: Mapping[str, tuple[NDArray[np.int64], Mapping[str, NDArray[Any]]]]
    statistics: Statistics
    skipped: tuple[Problem, ...]
    files: bytes


# --- a block ----------------------------------------------------------------------------------------------------


def convert_block(
    job: Job,
    block: Block,
    paths: Mapping[str, Path],
    on_sample: Callable[[int], None] = lambda i: None,
    on_decode: Callable[[int], None] | None = None,
) -> BlockResult:
    """Convert one block, and write its fixed rows into the files of `paths`.

    Args:
        on_sample: called with the number in the block of each sample, before it is read.
        on_decode: as `encode_sample` calls it.

    Raises:
        SourceError: a sample is bad, and bad samples are not to be skipped.
        OSError: the rows could not be written.
    """
    statistics = Statistics()
    kept: list[tuple[Sample, EncodedSample]] = []
    skipped: list[Problem] = []
    files = bytearray()
    for i, reference in enumerate(block.references):
        on_sample(i)
        files += identities(job.source.files(reference))
        try:
            sample = job.source.read(block.source_split, reference)
            encoded = encode_sample(sample, job.options, on_decode)
            _check_shapes(job, sample, encoded)
        except SourceError as error:
            if job.on_error == "fail" or error.reason == SHAPES_DIFFER:
                raise
            skipped += error.problems
            continue
        bad = faults(encoded.problems)
        if bad and job.on_error == "fail":
            raise SourceError(bad, "Mend the annotation, or leave out such boxes with --on-error skip.")
        skipped += encoded.problems
        if encoded.image is not None:  # only the bytes are stored: a block of them can hold very many pixels
            statistics.add_pixels(encoded.pixels)
            encoded.pixels = _NO_PIXELS
        kept.append((sample, encoded))
    tables = {}
    for name, field in job.fields.items():
        if isinstance(field, ArrayField):
            rows = _fixed_rows(name, field, kept)
            write_rows(paths[name], block.first_row, rows)
            _count_rows(statistics, field, rows)
        else:
            tables[name] = _table_values(field, kept)
            if field.kind == "objects":
                lengths, values = tables[name]
                statistics.add_objects(lengths, values.get("labels"), len(field.classes))
    return BlockResult(len(kept), tables, statistics, tuple(skipped), bytes(files))


def identities(paths: Iterable[str | Path]) -> bytes:
    """What tells that a file is still the same: its inode, size, and times of change in nanoseconds; zeros if gone."""
    numbers = array("q")
    for path in paths:
        try:
            status = os.stat(path)  # noqa: PTH116  # most paths are strings
            inode = status.st_ino & 0x7FFF_FFFF_FFFF_FFFF  # some file systems use all 64 bits
            numbers.extend((inode, status.st_size, status.st_mtime_ns, status.st_ctime_ns))
        except OSError:  # reading it will say why
            numbers.extend((0, 0, 0, 0))
    return numbers.tobytes()


def faults(problems: Iterable[Problem]) -> list[Problem]:
    """Those of the problems that are faults of the source, not the doing of a crop that was asked for."""
    return [problem for problem in problems if problem.reason != BOX_CROPPED]


def _check_shapes(job: Job, sample: Sample, encoded: EncodedSample) -> None:
    image, pixels = job.fields["image"], encoded.pixels
    if job.options.encoding == "jpeg" and pixels.shape[2] != job.channels:
        message = f"expected an image of {job.channels} channels like the first one, found {pixels.shape[2]}."
        raise SourceError(Problem(sample.key, SHAPES_DIFFER, message))
    if isinstance(image, ArrayField) and (image.spec.shape != pixels.shape or image.spec.dtype != pixels.dtype):
        expected = f"{'x'.join(map(str, image.spec.shape))} {image.spec.dtype}"
        found = f"{'x'.join(map(str, pixels.shape))} {pixels.dtype}"
        message = f"expected an image of {expected} like the first one, found {found}."
        raise SourceError(Problem(sample.key, SHAPES_DIFFER, message))


def _fixed_rows(name: str, field: ArrayField, kept: list[tuple[Sample, EncodedSample]]) -> NDArray[Any]:
    values: list[Any]
    if field.kind == "image":
        values = [encoded.pixels for _, encoded in kept]
    elif field.kind == "size":
        values = [encoded.size for _, encoded in kept]
    elif field.kind == "label":
        values = [sample.label for sample, _ in kept]
    else:
        values = [sample.arrays[name] for sample, _ in kept]
    return np.array(values, field.spec.dtype).reshape(len(kept), *field.spec.shape)


def _count_rows(statistics: Statistics, field: ArrayField, rows: NDArray[Any]) -> None:
    if not len(rows):
        return
    if field.kind == "image":
        statistics.add_pixels(rows)
    elif field.kind == "label":
        statistics.add_labels(rows, len(field.classes))
    elif field.kind == "size":
        statistics.add_sizes(rows)


def _table_values(
    field: TableField, kept: list[tuple[Sample, EncodedSample]]
) -> tuple[NDArray[np.int64], dict[str, NDArray[Any]]]:
    """Number of values of each sample, and the values of all, of each value array."""
    if field.kind == "objects":
        counts = [len(next(iter(encoded.objects.values()))) for _, encoded in kept]
        values = {}
        for name, spec in field.values.items():
            empty = np.empty((0, *spec.shape), spec.dtype)
            values[name] = np.concatenate([empty, *(encoded.objects[name] for _, encoded in kept)])
        return np.array(counts, np.int64), values
    texts = [s.key.encode() if field.kind == "key" else e.image or b"" for s, e in kept]
    data = np.frombuffer(b"".join(texts), np.uint8)
    return np.array([len(t) for t in texts], np.int64), {"bytes": data}
