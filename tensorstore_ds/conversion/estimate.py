"""What a conversion would make of a source, before it is run: from headers, and a few samples for the time."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numcodecs.zstd import Zstd

from tensorstore_ds.conversion.encode import encode_sample
from tensorstore_ds.conversion.options import ConvertOptions
from tensorstore_ds.conversion.preparation import AnySource, Prepared, open_any, prepare
from tensorstore_ds.conversion.survey import mixed_colors, shapes_problem, survey
from tensorstore_ds.errors import Problem, SourceError
from tensorstore_ds.format.arrays import ZSTD_LEVEL
from tensorstore_ds.format.kinds import MaskField
from tensorstore_ds.format.schema import Field, of_kind
from tensorstore_ds.imaging.codecs import own_pixel_limit
from tensorstore_ds.machine import memory_limit, usable_cores

#: Time beyond that of the samples themselves: starting, listing, syncing, checksums.
_OVERHEAD = 1.3
#: So many samples, spread over the source, are converted to learn the time and how they compress.
_TRIED = 64
_TRIED_SECONDS = 1.0
_TRIED_NBYTES = 64 * 1024**2


@dataclass(frozen=True, slots=True)
class Estimate:
    """What a conversion would make.

    Attributes:
        format: of the source.
        rows: samples of each split.
        classes: class names of the labels, or of the objects.
        fields: of the store.
        nbytes: size of the store in each layout; that of ``zarr`` is projected from a few samples.
        seconds: how long it will take, about.
        memory: bytes that this process may use.
        fits: whether the uncompressed store fits that memory.
        problems: what is bad; the conversion would stop at it, or leave it out.
        left_out: what the source itself does not take in.
        sizes: how many images there are of each size, "480x640" (height x width).
        notes: what the conversion decides by itself: gray images among others that become RGB.
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


def estimate(source: AnySource, options: ConvertOptions | None = None) -> Estimate:
    """Look at a source without converting it: annotations, image headers, and some samples for the time.

    Raises:
        SourceError: nothing there can be converted, or with ``on_error="fail"`` something is bad.
        OptionError: options contradict each other or the source.
    """
    options = options or ConvertOptions()
    prepared = prepare(open_any(source, options), options)
    surveyed = survey(prepared)
    problems = [*prepared.contents.problems, *surveyed.problems]
    note = mixed_colors(surveyed, prepared.format.image)
    differing = shapes_problem(prepared, surveyed)
    if differing is not None:
        problems.append(differing)
    if problems and options.on_error == "fail":
        raise SourceError(problems, "Mend it, or leave such samples out with `on_error=skip`.")
    if note is not None:
        prepared = prepared.in_rgb()
    tried = _try(prepared)
    nbytes = prepared.samples * tried.row_nbytes
    memory = memory_limit()
    return Estimate(
        format=prepared.source.name,
        rows={name: len(split.references) for name, split in prepared.splits.items()},
        classes=next((f.classes for f in prepared.format.fields.values() if f.classes), ()),
        fields=prepared.format.fields,
        nbytes={"memmap": nbytes, "zarr": round(nbytes * tried.compressed)},
        seconds=_OVERHEAD * prepared.samples * tried.seconds / max(1, options.workers or usable_cores()),
        memory=memory,
        fits=nbytes <= memory,
        problems=tuple(problems),
        left_out=prepared.contents.left_out,
        sizes=dict(surveyed.sizes.most_common()),
        notes=() if note is None else (note,),
    )


@dataclass(frozen=True, slots=True)
class _Tried:
    """Of the samples that were converted: bytes and seconds a sample, and the ratio of compression."""

    row_nbytes: int
    seconds: float
    compressed: float


def _try(prepared: Prepared) -> _Tried:
    step = max(1, prepared.samples // _TRIED)
    chosen = (
        (split.source_split, split.references[i])
        for split in prepared.splits.values()
        for i in range(0, len(split.references), step)
    )
    stored: list[bytes] = []
    began = time.perf_counter()
    with own_pixel_limit():
        for source_split, reference in chosen:
            try:
                encoded = encode_sample(prepared.source.read(source_split, reference), prepared.format.image)
            except SourceError:
                continue  # already among the problems, or found when it is converted
            stored.append(np.ascontiguousarray(encoded.pixels).tobytes() if encoded.image is None else encoded.image)
            if time.perf_counter() - began > _TRIED_SECONDS or sum(map(len, stored)) > _TRIED_NBYTES:
                break
    seconds = (time.perf_counter() - began) / max(1, len(stored))
    data = b"".join(stored)
    # Besides the image a row has a size, a key with its offset, and often a label: about a hundred bytes.
    small = 100 + sum(field.spec.row_nbytes for field in of_kind(prepared.format.fields, MaskField).values())
    compressed = len(Zstd(level=ZSTD_LEVEL).encode(data)) / len(data) if data else 1.0
    return _Tried(len(data) // max(1, len(stored)) + small, seconds, compressed)
