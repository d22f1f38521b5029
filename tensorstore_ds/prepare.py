"""Before anything is written: scan the source, divide it into splits, and learn what a row will be."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tensorstore_ds.encode import EncodedSample, encode_sample, own_pixel_limit
from tensorstore_ds.errors import Problem, SourceError
from tensorstore_ds.options import ConvertOptions
from tensorstore_ds.plan import PlannedSplit, plan_splits
from tensorstore_ds.schema import KEY, SIZE, ArrayField, Field, encoded_image_field, image_field
from tensorstore_ds.sources import open_source
from tensorstore_ds.sources.base import Contents, Source
from tensorstore_ds.sources.sequence import SequenceSource

#: Fields that every store has, besides those of its source.
OWN_FIELDS = ("image", "size", "key")
#: How many samples tell the size of a row, where images keep their encoding.
PROBED = 32


def open_any(source: str | os.PathLike[str] | Sequence[Any] | Mapping[str, Any], options: ConvertOptions) -> Source:
    """The source at a path, or around a sequence."""
    if isinstance(source, str | os.PathLike):
        return open_source(Path(source).absolute(), options.format, options.source)
    return SequenceSource(source, options.source)


@dataclass(frozen=True)
class Prepared:
    """A source that was scanned, and what will be made of it.

    Attributes:
        fields: of the store.
        splits: of the store.
        row_nbytes: bytes of a sample in its largest field, about.
    """

    source: Source
    contents: Contents
    fields: Mapping[str, Field]
    splits: Mapping[str, PlannedSplit]
    row_nbytes: int

    @property
    def rows(self) -> int:
        """Samples of all splits."""
        return sum(len(split.references) for split in self.splits.values())


def prepare(source: Source, options: ConvertOptions) -> Prepared:
    """Scan a source, and look at its first samples to learn what the rows will be.

    Raises:
        SourceError: nothing there can be converted, or something is bad and bad samples are not to be skipped.
    """
    contents = source.scan()
    if contents.problems and options.on_error == "fail":
        raise SourceError(contents.problems, "Mend it, or leave such samples out with --on-error skip.")
    taken = [name for name in OWN_FIELDS if name in contents.fields]
    if taken:
        raise SourceError(
            Problem(str(source.path), "array-shape", f"a field of its own is named {taken[0]}. Rename it.")
        )
    splits = plan_splits(contents, options.split, options.seed)
    probed = list(_probe(source, splits, options))
    if not probed:
        raise SourceError(
            contents.problems or Problem(str(source.path), "empty-source", "no sample can be read here."),
            "Name the files to be converted, or another --format.",
        )
    if options.encoding == "raw":
        height, width, channels = probed[0].pixels.shape
        image: Field = image_field((height, width, channels), probed[0].pixels.dtype.name)
    else:
        image = encoded_image_field(options.encoding)
    fields = {"image": image, **contents.fields, "size": SIZE, "key": KEY}
    fixed = [f.spec.row_nbytes for f in fields.values() if isinstance(f, ArrayField)]
    encoded = [len(sample.image or b"") for sample in probed]
    return Prepared(source, contents, fields, splits, max(*fixed, sum(encoded) // len(encoded)))


def _probe(source: Source, splits: Mapping[str, PlannedSplit], options: ConvertOptions) -> Iterator[EncodedSample]:
    """The first sample that is good; where images keep their encoding some more from all over, for their size."""
    wanted = 1 if options.encoding == "raw" else PROBED
    with own_pixel_limit():
        for split in splits.values():
            step = 1 if options.encoding == "raw" else max(1, len(split.references) // PROBED)
            for i in range(0, len(split.references), step):
                try:
                    yield encode_sample(source.read(split.source_split, split.references[i]), options.image)
                except SourceError:
                    if options.on_error == "fail":
                        raise
                    continue  # the conversion will come to it again, and name it
                wanted -= 1
                if not wanted:
                    return
