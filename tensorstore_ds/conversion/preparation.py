"""Before anything is written: scan the source, divide it into splits, and learn what a row will be."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from tensorstore_ds.conversion.blocks import SKIP, RowFormat, check_fields
from tensorstore_ds.conversion.encode import encode_sample
from tensorstore_ds.conversion.options import ConvertOptions, ImageOptions, OnError
from tensorstore_ds.conversion.plan import PlannedSplit, plan_splits
from tensorstore_ds.errors import ConversionError, Problem, SourceError
from tensorstore_ds.format.kinds import MaskField
from tensorstore_ds.format.schema import EncodedSample, of_kind
from tensorstore_ds.imaging.codecs import own_pixel_limit
from tensorstore_ds.sources import open_source
from tensorstore_ds.sources.base import Contents, Source
from tensorstore_ds.sources.sequence import Indexable, SequenceSource

#: What can be converted: a path, a sequence of samples, or for each split a sequence.
AnySource = str | os.PathLike[str] | Indexable | Mapping[str, Indexable]

#: How many samples tell the size of a row, where images keep their encoding.
PROBED = 32


def open_any(source: AnySource, options: ConvertOptions) -> Source:
    """The source at a path, or around a sequence."""
    if isinstance(source, str | os.PathLike):
        return open_source(Path(source).absolute(), options.format, options)
    return SequenceSource(source, options)


@dataclass(frozen=True)
class Prepared:
    """A source that was scanned, and what will be made of it.

    Attributes:
        splits: of the store.
        format: of its rows.
        row_nbytes: bytes of a sample in its largest field, about.
    """

    source: Source
    contents: Contents
    splits: Mapping[str, PlannedSplit]
    format: RowFormat
    row_nbytes: int

    @property
    def samples(self) -> int:
        """Samples of all splits."""
        return sum(len(split.references) for split in self.splits.values())

    def in_rgb(self) -> Prepared:
        """The same, with all images as RGB."""
        image = replace(self.format.image, color="rgb")
        return _prepare(self.source, self.contents, self.splits, image, self.format.on_error)


def prepare(source: Source, options: ConvertOptions, *, room: int | None = None) -> Prepared:
    """Scan a source, and look at its first samples to learn what the rows will be.

    Args:
        room: bytes that are free where the store is to lie; what cannot fit is refused before an image is decoded.

    Raises:
        SourceError: nothing there can be converted, or something is bad and bad samples are not to be skipped.
        ConversionError: there is not enough room.
    """
    contents = source.scan()
    if contents.problems and options.on_error == "fail":
        raise SourceError(contents.problems, SKIP)
    check_fields(contents.fields, options.image, str(source.path))
    splits = plan_splits(contents, options.split, options.seed, source.key)
    if room is not None and options.size is not None and options.encoding == "raw" and options.layout == "memmap":
        check_room(sum(len(split.references) for split in splits.values()) * math.prod(options.size), room)
    return _prepare(source, contents, splits, options.image, options.on_error)


def _prepare(
    source: Source, contents: Contents, splits: Mapping[str, PlannedSplit], image: ImageOptions, on_error: OnError
) -> Prepared:
    first, mean_nbytes = _probe(source, contents, splits, image, on_error)
    if first is None:
        raise SourceError(
            contents.problems or Problem(str(source.path), "empty-source", "no sample can be read here."),
            "Name the files to be converted, or another `format`.",
        )
    format = RowFormat.of(contents.fields, first, image, on_error)
    return Prepared(source, contents, splits, format, max(format.fixed_nbytes, mean_nbytes))


def check_room(needed: int, free: int) -> None:
    """Refuse, with a `ConversionError`, what needs more bytes than are free on the disk."""
    if needed > free:
        raise ConversionError(
            f"at least {needed:,} bytes are needed, {free:,} are free on this disk. "
            "Make room, choose another disk, or a smaller `size`."
        )


def _probe(
    source: Source, contents: Contents, splits: Mapping[str, PlannedSplit], image: ImageOptions, on_error: OnError
) -> tuple[EncodedSample | None, int]:
    """The first good sample, and the mean size of some samples' files, where these are kept.

    What is bad is passed over if it is to be skipped: the conversion will come to it again, and name it.
    """
    first: EncodedSample | None = None
    nbytes: list[int] = []
    wanted = 1 if image.encoding == "raw" else PROBED
    masks = of_kind(contents.fields, MaskField)
    with own_pixel_limit():
        for split in splits.values():
            step = 1 if image.encoding == "raw" else max(1, len(split.references) // PROBED)
            for i in range(0, len(split.references), step):
                try:
                    sample = source.read(split.source_split, split.references[i])
                    encoded = encode_sample(sample, image, masks=masks)
                except SourceError as error:
                    if on_error == "fail":
                        raise SourceError(error.problems, error.advice or SKIP) from error
                    continue
                first = first or encoded
                nbytes.append(len(encoded.image or b""))
                if len(nbytes) == wanted:
                    return first, sum(nbytes) // wanted
    return first, sum(nbytes) // max(1, len(nbytes))
