"""Before anything is written: scan the source, divide it into splits, and learn what a row will be."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tensorstore_ds.conversion.encode import encode_sample
from tensorstore_ds.conversion.options import ConvertOptions
from tensorstore_ds.conversion.plan import PlannedSplit, plan_splits
from tensorstore_ds.errors import ConversionError, Problem, SourceError
from tensorstore_ds.format.schema import KEY, SIZE, ArrayField, Field, encoded_image_field, image_field
from tensorstore_ds.imaging.codecs import own_pixel_limit
from tensorstore_ds.sources import open_source
from tensorstore_ds.sources.base import Contents, Source
from tensorstore_ds.sources.sequence import Indexable, SequenceSource

#: What can be converted: a path, a sequence of samples, or for each split a sequence.
AnySource = str | os.PathLike[str] | Indexable | Mapping[str, Indexable]

#: Fields that every store has, besides those of its source.
OWN_FIELDS = ("image", "size", "key")
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
        fields: of the store.
        splits: of the store.
        channels: of the first image; all others must have as many, unless they keep the source's bytes.
        row_nbytes: bytes of a sample in its largest field, about.
    """

    source: Source
    contents: Contents
    fields: Mapping[str, Field]
    splits: Mapping[str, PlannedSplit]
    channels: int
    row_nbytes: int

    @property
    def rows(self) -> int:
        """Samples of all splits."""
        return sum(len(split.references) for split in self.splits.values())


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
        raise SourceError(contents.problems, "Mend it, or leave such samples out with --on-error skip.")
    taken = [name for name in OWN_FIELDS if name in contents.fields]
    if taken:
        raise SourceError(
            Problem(str(source.path), "array-shape", f"a field of its own is named {taken[0]}. Rename it.")
        )
    splits = plan_splits(contents, options.split, options.seed, source.key)
    if room is not None and options.size is not None and options.encoding == "raw" and options.layout == "memmap":
        check_room(sum(len(split.references) for split in splits.values()) * math.prod(options.size), room)
    return prepare_again(source, contents, splits, options)


def prepare_again(
    source: Source, contents: Contents, splits: Mapping[str, PlannedSplit], options: ConvertOptions
) -> Prepared:
    """What `prepare` does after the scan; for a source that is converted with other options than it was prepared with.

    Raises:
        SourceError: as `prepare`.
    """
    first, mean_nbytes = _probe(source, splits, options)
    if first is None:
        raise SourceError(
            contents.problems or Problem(str(source.path), "empty-source", "no sample can be read here."),
            "Name the files to be converted, or another --format.",
        )
    if options.encoding == "raw":
        image: Field = image_field(first.shape, first.dtype)
    else:
        image = encoded_image_field(options.encoding)
    fields = {"image": image, **contents.fields, "size": SIZE, "key": KEY}
    fixed = [f.spec.row_nbytes for f in fields.values() if isinstance(f, ArrayField)]
    return Prepared(source, contents, fields, splits, first.shape[2], max(*fixed, mean_nbytes))


def check_room(needed: int, free: int) -> None:
    """Refuse, with a `ConversionError`, what needs more bytes than are free on the disk."""
    if needed > free:
        raise ConversionError(
            f"at least {needed:,} bytes are needed, {free:,} are free on this disk. "
            "Make room, choose another disk, or a smaller --size."
        )


@dataclass(frozen=True, slots=True)
class _Pixels:
    """What the first sample says of all."""

    shape: tuple[int, int, int]
    dtype: str


def _probe(source: Source, splits: Mapping[str, PlannedSplit], options: ConvertOptions) -> tuple[_Pixels | None, int]:
    """The first good sample's pixels, and the mean size of some samples' files, where these are kept.

    What is bad is passed over if it is to be skipped: the conversion will come to it again, and name it.
    """
    pixels: _Pixels | None = None
    nbytes: list[int] = []
    wanted = 1 if options.encoding == "raw" else PROBED
    with own_pixel_limit():
        for split in splits.values():
            step = 1 if options.encoding == "raw" else max(1, len(split.references) // PROBED)
            for i in range(0, len(split.references), step):
                try:
                    encoded = encode_sample(source.read(split.source_split, split.references[i]), options.image)
                except SourceError:
                    if options.on_error == "fail":
                        raise
                    continue
                height, width, channels = encoded.pixels.shape
                pixels = pixels or _Pixels((height, width, channels), encoded.pixels.dtype.name)
                nbytes.append(len(encoded.image or b""))
                if len(nbytes) == wanted:
                    return pixels, sum(nbytes) // wanted
    return pixels, sum(nbytes) // max(1, len(nbytes))
