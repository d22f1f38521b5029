"""Estimate a conversion before it runs, from headers, and from a few samples for the time."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Unpack, cast

import numpy as np
from numcodecs.zstd import Zstd

from tensorstore_ds.conversion.blocks import NOTHING_LEFT, SKIP, or_skipped
from tensorstore_ds.conversion.convert import check_all_apart
from tensorstore_ds.conversion.encode import about, encode_sample
from tensorstore_ds.conversion.encodings import Auto, Jpeg, Raw, SourceFiles
from tensorstore_ds.conversion.keywords import ConvertKeywords
from tensorstore_ds.conversion.options import ConvertOptions
from tensorstore_ds.conversion.preparation import AnySource, Place, Prepared, check_fits_disk, open_any, prepare, survey
from tensorstore_ds.conversion.result import notes_of_store
from tensorstore_ds.conversion.values import Shrink
from tensorstore_ds.errors import OptionError, Problem, SourceError
from tensorstore_ds.format.arrays import ZSTD_LEVEL
from tensorstore_ds.format.kinds import ImageField
from tensorstore_ds.format.kinds.base import ArrayField, Field, TableField
from tensorstore_ds.format.schema import EncodedSample
from tensorstore_ds.imaging.codecs import quiet_pillow
from tensorstore_ds.machine import memory_limit, usable_cores
from tensorstore_ds.options import chosen, takes_options
from tensorstore_ds.reading.stored_images import decode_stored
from tensorstore_ds.regular_files import tidied

#: Seconds that a conversion takes however few samples there are: to start processes, and to write and sync metadata.
_BEGINNING = 0.1
#: Time beyond that of the samples themselves: starting, listing, syncing, checksums.
_OVERHEAD = 1.3
#: Number of samples, spread over the source, that are converted to measure time and compression.
_TRIED = 64
_TRIED_SECONDS = 1.0
_TRIED_NBYTES = 64 * 1024**2
#: Bytes of a row for a file's shape, and for the offsets of its bytes and of two lists.
_FILE_NBYTES = 12 + 3 * 8
#: Number of images that are tried in other encodings, and the longest side in one of these.
_COMPARED, _MAX_SIDE = 16, 512


@dataclass(frozen=True, slots=True)
class EncodingEstimate:
    """Estimate of the same store with a different encoding of the images.

    Attributes:
        options: options of `ConvertOptions` that select the encoding.
        nbytes: size of the store in bytes, projected from a few images.
        rate: images per second that all cores together decode, or copy if they are pixels. It is measured on this
            machine.
    """

    options: Mapping[str, str | int]
    nbytes: int
    rate: float


@dataclass(frozen=True, slots=True)
class Estimate:
    """Result of `estimate`: the store that a conversion would make.

    Attributes:
        format: format of the source.
        rows: number of samples of each split, without those that would be skipped.
        classes: class names of the labels, or of the objects.
        fields: fields of the store.
        nbytes: size of the store in bytes for each layout. For ``zarr``, it is projected from a few samples.
        seconds: estimated time of the conversion.
        memory: number of bytes that this process may use.
        fits: whether the uncompressed store fits into `memory`.
        problems: bad samples and files. The conversion would stop at them, or skip them, depending on ``on_error``.
        left_out: parts that are not stored, such as a split that only repeats others.
        sizes: number of images of each size, such as "480x640" (height x width).
        notes: automatic decisions of the conversion, such as gray images that become RGB, or a renamed split.
        encodings: estimates for other encodings of the images. It is empty if `size` is given.
    """

    format: str
    rows: Mapping[str, int]
    classes: tuple[str, ...]
    fields: Mapping[str, Field]
    nbytes: Mapping[str, int]
    seconds: float
    memory: int
    fits: bool
    problems: tuple[Problem, ...]
    left_out: tuple[Problem, ...]
    sizes: Mapping[str, int]
    notes: tuple[str, ...] = ()
    encodings: tuple[EncodingEstimate, ...] = ()


@takes_options(ConvertOptions)
def estimate(
    source: AnySource,
    options: ConvertOptions | None = None,
    *,
    out: str | os.PathLike[str] | None = None,
    **keywords: Unpack[ConvertKeywords],
) -> Estimate:
    """Estimate the store and the time of a conversion, without converting the source.

    >>> found = tsds.estimate("photos", size=24)
    >>> found.format, found.rows, found.classes
    ('folders', {'train': 8, 'val': 4}, ('cat', 'dog'))
    >>> found.nbytes["memmap"] >= 12 * 24 * 24 * 3, found.problems
    (True, ())

    Annotations and the headers of all images are read. Pixels are decoded for a few samples only, so damaged images may
    not be found.

    Args:
        source: as for `convert`, but not an iterator.
        options: as for `convert`.
        out: path of the future store. If it cannot fit on that disk, a `ConversionError` is raised, and if it lies
            inside the source, an `OptionError`. None skips these checks.
        keywords: as for `convert`.

    Raises:
        SourceError: the source contains nothing to convert, or with ``on_error="fail"`` something bad.
        OptionError: options contradict each other or the source.
        ConversionError: there is not enough room on the disk, or not enough memory for one image.
    """
    options = chosen(options, ConvertOptions, keywords)
    target = None if out is None else tidied(out)
    opened = open_any(source, options)
    if target is not None:
        check_all_apart(source, target)
    all_of_them = replace(options, on_error="skip") if options.on_error == "fail" else options
    prepared = prepare(opened, all_of_them, out=target)
    if target is not None and options.layout == "memmap":
        check_fits_disk(target, prepared.samples * prepared.row_nbytes)
    surveyed = survey(replace(prepared, format=replace(prepared.format, on_error=options.on_error)))
    problems = [*prepared.contents.problems, *surveyed.problems, *surveyed.odd.values()]
    bad, lost = list(prepared.bad), set(surveyed.lost | prepared.lost)
    if not surveyed.images:
        raise SourceError(problems, NOTHING_LEFT)
    if surveyed.differing is not None:
        advice = SKIP if problems and options.on_error == "fail" else ""
        raise SourceError([*(problems if advice else ()), surveyed.differing], advice)
    prepared = prepared.as_surveyed(surveyed)
    row_nbytes, seconds, compressed = _try(prepared, bad, lost)
    encodings = () if options.size is not None else tuple(_compare(prepared))
    known = {problem.where for problem in problems}
    problems += [problem for problem in dict.fromkeys(bad) if problem.where not in known]
    if problems and options.on_error == "fail":
        raise SourceError(problems, SKIP)
    rows = {
        name: sum((split.source_split, each) not in lost for each in split) if lost else len(split)
        for name, split in prepared.splits.items()
    }
    fields = prepared.format.fields
    not_kept = surveyed.not_kept if cast(ImageField, fields["image"]).encoding == "source" else ()
    left_out = dict.fromkeys((*prepared.contents.left_out, *surveyed.left_out, *not_kept))
    nbytes = sum(rows.values()) * row_nbytes
    kept_nbytes = nbytes if options.layout == "memmap" else 0
    notes = notes_of_store(options, fields, surveyed.splits, left_out, kept_nbytes)
    memory = memory_limit()
    return Estimate(
        format=prepared.source.name,
        rows=rows,
        classes=next((f.classes for f in fields.values() if f.classes), ()),
        fields=fields,
        nbytes={"memmap": nbytes, "zarr": round(nbytes * compressed)},
        seconds=_BEGINNING + _OVERHEAD * prepared.samples * seconds / max(1, options.workers or usable_cores()),
        memory=memory,
        fits=nbytes <= memory,
        problems=tuple(problems),
        left_out=tuple(left_out),
        sizes=dict(surveyed.sizes.most_common()),
        notes=tuple(dict.fromkeys((*prepared.contents.notes, *prepared.notes, *notes))),
        encodings=encodings,
    )


def _compare(prepared: Prepared) -> Iterator[EncodingEstimate]:
    """Measure bytes and decoding time of some good images in each encoding."""
    source, image = prepared.source, prepared.format.image
    step = max(1, prepared.samples // _COMPARED)
    some = []
    places = ((each.source_split, one) for each in prepared.splits.values() for one in each[::step])
    for split, reference in places:
        with contextlib.suppress(SourceError), quiet_pillow():
            as_pixels = replace(image, encoding=Raw())
            if isinstance(encode_sample(source.read(split, reference), as_pixels, by_parts=True).image, np.ndarray):
                some.append((split, reference))  # else it is too large to be tried in each encoding
        if len(some) == _COMPARED:
            break
    held = image.encoding.chosen(Jpeg) if isinstance(image.encoding, Auto) else image.encoding
    jpeg: dict[str, Any] = {"encoding": held if isinstance(held, Jpeg) else Jpeg()}
    kept = {"encoding": SourceFiles("headers"), "color": "auto", "fit": None}
    ways: list[tuple[dict[str, str | int], dict[str, Any]]] = [
        ({"encoding": "raw"}, {"encoding": Raw()}),
        ({"encoding": "jpeg"}, jpeg),
        ({"encoding": "source"}, kept),
    ]
    if image.fit is None:
        ways.insert(2, ({"encoding": "jpeg", "max_side": _MAX_SIDE}, {**jpeg, "fit": Shrink(_MAX_SIDE)}))
    for way, changes in ways:
        stored = []
        try:
            options = replace(image, **changes)
        except OptionError:  # no JPEG can have these channels
            continue
        for split, reference in some:
            with contextlib.suppress(SourceError, OptionError), quiet_pillow():
                stored.append(encode_sample(source.read(split, reference), options))
        if not stored or ("max_side" in way and all(max(each.size) <= _MAX_SIDE for each in stored)):
            continue
        began = time.perf_counter()
        for each in stored:
            if isinstance(each.image, bytes):
                decode_stored(each.image, key=each.key)
            else:
                each.image.copy()
        seconds = (time.perf_counter() - began) / len(stored)
        nbytes = sum(memoryview(each.image).nbytes for each in stored) // len(stored)
        nbytes += _nbytes_beside(stored, prepared.format.fields)
        yield EncodingEstimate(way, prepared.samples * nbytes, usable_cores() / seconds)


def _nbytes_beside(rows: Sequence[EncodedSample], fields: Mapping[str, Field]) -> int:
    """Bytes of a row besides the pixels or the file of its image, from some samples."""
    found = 0
    for name, field in fields.items():
        if name != "image" and isinstance(field, ArrayField):
            found += len(rows) * field.spec.row_nbytes
        elif name != "image" and isinstance(field, TableField):
            for lengths, values in (field.rows(name, rows), *field.lists(name, rows).values()):
                found += lengths.nbytes + sum(each.nbytes for each in values.values())
    for row in rows:
        if isinstance(row.image, bytes):
            lists = [each for each in (row.restarts, row.entries) if each is not None]
            found += _FILE_NBYTES + sum(each.nbytes for each in lists)
    return found // max(1, len(rows))


def _try(prepared: Prepared, bad: list[Problem], lost: set[Place]) -> tuple[int, float, float]:
    """Convert some samples. Returns bytes and seconds per sample, and the compression ratio.

    `bad` gets problems, and `lost` their samples.
    """
    stored: list[bytes] = []
    large: list[float] = []  # by how much each image is larger than what was encoded of it
    rows: list[EncodedSample] = []
    began = time.perf_counter()
    for encoded in prepared.encoded(max(1, prepared.samples // _TRIED), bad, lost):
        with or_skipped("skip", bad):
            data, times = about(encoded, prepared.format.image)
            stored.append(data)
            large.append(times)
            rows.append(replace(encoded, image=b"" if isinstance(encoded.image, bytes) else None))
        if time.perf_counter() - began > _TRIED_SECONDS or sum(map(len, stored)) > _TRIED_NBYTES:
            break
    seconds = (time.perf_counter() - began) * sum(large) / max(1, len(stored)) ** 2
    nbytes = sum(round(len(each) * times) for each, times in zip(stored, large, strict=True)) // max(1, len(stored))
    data = b"".join(stored)
    nbytes += _nbytes_beside(rows, prepared.format.fields)
    is_compressed = data and prepared.format.fields["image"].one_shape
    compressed = len(Zstd(level=ZSTD_LEVEL).encode(data)) / len(data) if is_compressed else 1.0
    return nbytes, seconds, compressed
