"""Blocks of samples, converted in worker processes: read, encode, write the rows into place, send back the rest.

Workers are processes because decoding holds the GIL more than it should. Rows of fixed fields, which are nearly all of
the bytes, never pass through a pipe: workers write them straight into the shard's files.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
import warnings
from collections import deque
from collections.abc import Generator, Iterable, Mapping
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from tensorstore_ds.encode import EncodedSample, ImageOptions, encode_sample, own_pixel_limit
from tensorstore_ds.errors import ConversionError, Problem, SourceError
from tensorstore_ds.geometry import BOX_CROPPED
from tensorstore_ds.options import OnError
from tensorstore_ds.plan import Block
from tensorstore_ds.schema import ArrayField, Field, TableField
from tensorstore_ds.sources.base import Sample, Source
from tensorstore_ds.statistics import Statistics
from tensorstore_ds.survey import SHAPES_DIFFER
from tensorstore_ds.writer import write_rows


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
    """

    rows: int
    tables: Mapping[str, tuple[NDArray[np.int64], Mapping[str, NDArray[Any]]]]
    statistics: Statistics
    skipped: tuple[Problem, ...]


# --- a block ----------------------------------------------------------------------------------------------------


def convert_block(job: Job, block: Block, paths: Mapping[str, Path]) -> BlockResult:
    """Convert one block, and write its fixed rows into the files of `paths`.

    Raises:
        SourceError: a sample is bad, and bad samples are not to be skipped.
        OSError: the rows could not be written.
    """
    kept: list[tuple[Sample, EncodedSample]] = []
    skipped: list[Problem] = []
    for reference in block.references:
        try:
            sample = job.source.read(block.source_split, reference)
            encoded = encode_sample(sample, job.options)
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
        kept.append((sample, encoded))
    statistics = Statistics()
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
    if isinstance(job.fields.get("image"), TableField):
        for _, encoded in kept:
            statistics.add_pixels(encoded.pixels)
    return BlockResult(len(kept), tables, statistics, tuple(skipped))


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


# --- processes --------------------------------------------------------------------------------------------------

_job: Job | None = None


def run_blocks(
    job: Job, tasks: Iterable[tuple[Block, Mapping[str, Path]]], workers: int
) -> Generator[tuple[Block, BlockResult], None, None]:
    """Convert blocks in `workers` processes, or in this one if 0; results come in the order of the blocks.

    Only a few blocks are under way at a time. Close the generator to end the processes.

    Raises:
        SourceError: as `convert_block`.
        ConversionError: a worker process died.
    """
    if workers == 0:
        with own_pixel_limit():
            for block, paths in tasks:
                yield block, convert_block(job, block, paths)
        return
    context = multiprocessing.get_context(_start_method())
    pool = ProcessPoolExecutor(workers, context, _start_worker, (job,))
    waiting: deque[tuple[Block, Future[BlockResult]]] = deque()
    try:
        for block, paths in tasks:
            waiting.append((block, pool.submit(_convert_in_worker, block, paths)))
            if len(waiting) > 3 * workers:
                yield _result(*waiting.popleft())
        while waiting:
            yield _result(*waiting.popleft())
    except BrokenProcessPool as error:
        raise ConversionError(
            "a worker process died, killed by the system or for want of memory. "
            "Run the same command again to go on; fewer --workers need less memory."
        ) from error
    finally:
        pool.shutdown(cancel_futures=True)


def _result(block: Block, future: Future[BlockResult]) -> tuple[Block, BlockResult]:
    return block, future.result()


def _start_method() -> str:
    """Fork where it is safe: it starts in milliseconds and hands over any source. Threads make it unsafe."""
    return "fork" if sys.platform == "linux" and threading.active_count() == 1 else "spawn"


def _start_worker(job: Job) -> None:
    global _job
    _job = job
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the parent decides
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    # A damaged EXIF block and the like: the pixels are still checked, and stderr belongs to the progress bar.
    warnings.filterwarnings("ignore", module=r"PIL\.")
    Image.MAX_IMAGE_PIXELS = None  # `max_pixels` is the limit here
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """End this process when the parent has gone without saying so (SIGKILL); it would wait for ever."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(1)


def _convert_in_worker(block: Block, paths: Mapping[str, Path]) -> BlockResult:
    if _job is None:
        raise RuntimeError("this process was not started by run_blocks")
    return convert_block(_job, block, paths)
