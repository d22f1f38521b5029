"""A shard that takes samples one at a time, and determines their format from the first."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from tensorstore_ds.conversion.blocks import (
    NOTHING_LEFT,
    OWN_FIELDS,
    BlockRows,
    RowFormat,
    ShapesDiffer,
    check_fields,
    or_skipped,
)
from tensorstore_ds.conversion.build import Build, one_line_for_failures
from tensorstore_ds.conversion.encode import encode_sample
from tensorstore_ds.conversion.options import ConvertOptions
from tensorstore_ds.conversion.plan import BLOCK_NBYTES, block_rows
from tensorstore_ds.conversion.shard_writer import FinishedShard, ShardWriter
from tensorstore_ds.errors import ConversionError, OptionError, Problem, SourceError
from tensorstore_ds.format.kinds import MaskField
from tensorstore_ds.format.kinds.base import Field, of_kind
from tensorstore_ds.format.manifest import shard_path
from tensorstore_ds.format.statistics import ImageSums
from tensorstore_ds.imaging.codecs import quiet_pillow
from tensorstore_ds.options import refusal
from tensorstore_ds.sources.files import encoding_problem
from tensorstore_ds.sources.samples import SampleReader, parts_of

#: Origin of the samples, in errors and in the store.
WHERE = "<samples>"
_SHAPES_ADVICE = (
    'Pass `size` and `color` for images of one shape. `encoding="jpeg"` takes 8-bit images of any, `encoding="source"` '
    "files; a list of all samples, to `convert`, is stored as pixels of each size."
)


class SampleFormat:
    """The common format of all samples of a store, from the first one, a finished shard, or as requested."""

    def __init__(self, options: ConvertOptions, fields: Mapping[str, Field] | None) -> None:
        self.options = options
        self.reader = SampleReader(options, WHERE)
        self.rows: RowFormat | None = None  #: None until it is known
        self._asked = fields
        if fields is not None and "image" not in fields:
            raise refusal("fields", "the fields of a split, image among them", f"only {', '.join(fields) or 'none'}")

    def learn(self, key: str, sample: Any) -> RowFormat:
        """Take the format from the first sample; raises `SourceError` if it is bad."""
        image = self.options.image
        if image.oriented_boxes == "polygons":
            advice = "Convert a folder or a list, or give each sample its `oriented_boxes`."
            raise OptionError(f'`oriented_boxes="polygons"`: expected a source, found a stream of samples. {advice}')
        if self._asked is None:
            self.reader.learn(parts_of(key, sample))
            check_fields(self.reader.fields, image, WHERE)
        else:
            self.reader.use(_without_own(self._asked))
        masks = of_kind(self.reader.fields, MaskField)
        first = encode_sample(self.reader.read(key, sample), image, masks=masks)
        rows = RowFormat.of(self.reader.fields, first, image, self.options.on_error)
        if self._asked is not None and rows.fields != dict(self._asked):
            expected, found = (f["image"].describe() for f in (self._asked, rows.fields))
            raise ShapesDiffer(Problem(key, "shapes-differ", f"expected images {expected}, found {found}."))
        self.rows = rows
        return rows

    def adopt(self, shard: FinishedShard) -> bool:
        """Take the format from a shard of an interrupted run; returns False if this run has a different one."""
        if self.rows is not None:
            return self.rows.fields == dict(shard.fields)
        image = shard.statistics.get("image")
        known = image if isinstance(image, ImageSums) else ImageSums()
        self.reader.use(_without_own(shard.fields))
        of_images = len(known.sum), known.dtype or None
        self.rows = RowFormat(shard.fields, self.options.image, self.options.on_error, *of_images)
        return True


class SampleShard:
    """A shard that grows by samples; those that an interrupted run stored in it are skipped.

    `keys` are digests of the split's keys so far, to which this shard adds its own.
    """

    def __init__(
        self, build: Build, name: tuple[str, int], format: SampleFormat, keys: set[bytes], first: int = 0
    ) -> None:
        self.samples = 0  #: number that came, with those that were skipped or passed over
        self._build, self._name, self._format, self._first = build, name, format, first
        earlier = build.finished(*name)
        #: The same shard, if an interrupted run has finished it; not if one before it ends elsewhere now, because a
        #: sample was mended that had been skipped.
        is_same = earlier is not None and earlier.origin and earlier.first == first and format.adopt(earlier)
        self.earlier = earlier if is_same else None
        self._split_keys = keys
        self._keys = hashlib.sha256()
        self._has_keys = True
        self._writer: ShardWriter | None = None
        self._block: BlockRows | None = None
        self._skipped: list[Problem] = []  # since the last block that was written; the next one has the same list
        self._rows = self._nbytes = 0  # written
        self.is_broken = False  #: whether something of it could not be written; it takes no more samples then

    @property
    def is_full(self) -> bool:
        """Whether the next sample belongs to the next shard."""
        if self.earlier is not None:
            return self.samples == self.earlier.samples
        if self._block is None:
            return False
        rows, limit = self._rows + len(self._block), self._format.options.shard_nbytes
        too_many = (rows + 1) * self._block.format.fixed_nbytes > limit
        return rows > 0 and (too_many or self._nbytes + self._block.nbytes >= limit)

    def append(self, sample: Any, key: str | None, default_key: str) -> None:
        """Add a sample, or the result of a function that is called only if it is needed.

        Raises `SourceError`, with the shard unchanged, or `ConversionError` if the disk or the memory is full.
        """
        digests = [] if key is None else [self._new_key(key)]
        if self.is_broken:
            raise self._broken()
        if self.earlier is None:
            with or_skipped(self._format.options.on_error, self._skipped):
                stored_key = key
                if callable(sample):
                    sample, stored_key = with_key(sample(), key)
                if key is None and stored_key is not None:
                    digests.append(self._new_key(stored_key))
                with one_line_for_failures(self._build.out), quiet_pillow():
                    self._add(default_key if stored_key is None else stored_key, sample)
            with one_line_for_failures(self._build.out):
                if self._block is not None and self._is_block_full(self._block):
                    self._write_block(self._block)
        self.samples += 1
        self._has_keys &= key is not None
        self._split_keys.update(digests)
        self._keys.update(f"{len(key or '')} {key}".encode())

    def _new_key(self, key: str) -> bytes:
        """The digest of a key; raises `SourceError` if it is not text, or already used."""
        if encoding_problem(key) is not None:
            raise SourceError(Problem(repr(key), "annotation", "expected a key in UTF-8, found other characters."))
        digest = hashlib.blake2b(key.encode(), digest_size=16).digest()
        if digest in self._split_keys:
            message = f"expected keys that differ, found this one twice in {self._name[0]}."
            raise SourceError(Problem(key, "key-text", message), "Give each sample a different key.")
        return digest

    def _add(self, key: str, sample: Any) -> None:
        try:
            rows = self._format.rows or self._format.learn(key, sample)
            if self._block is None:
                self._block = BlockRows(rows, self._skipped)
            self._block.add(self._format.reader.read(key, sample))
        except ShapesDiffer as error:
            raise ShapesDiffer(error.problems, _SHAPES_ADVICE) from error

    def _is_block_full(self, block: BlockRows) -> bool:
        is_large = block.nbytes + block.object_nbytes >= BLOCK_NBYTES
        return is_large or len(block) >= block_rows(block.format.fixed_nbytes) or self.is_full

    def _write_block(self, block: BlockRows) -> ShardWriter:
        self.is_broken = True  # unless all of it is written
        if self._writer is None:
            self._build.forget(*self._name)
            self._writer = ShardWriter(self._build.store / shard_path(*self._name), block.format.fields).__enter__()
        result = block.write(self._writer.partial, self._rows)
        self._writer.append(result)
        self._rows += result.rows
        self._nbytes += block.nbytes
        self._skipped = []
        self._block = BlockRows(block.format, self._skipped)
        self.is_broken = False
        return self._writer

    def finish(self) -> None:
        """Complete the shard, or check that its samples were those of the finished one."""
        path, origin = shard_path(*self._name), self._keys.hexdigest() if self._has_keys else ""
        if self.earlier is not None:
            if (self.earlier.samples, self.earlier.origin) != (self.samples, origin):
                message = "expected the same keys in the same order, found others."
                raise OptionError(
                    f"{self._build.path}: the shard {path} of an interrupted run: {message} "
                    "Give the same samples, or remove this directory."
                )
            self._build.resumed += 1
            return
        if self.is_broken:
            raise self._broken()
        rows, options = self._format.rows, self._format.options
        if rows is None:
            nothing = Problem(path, "empty-source", "expected samples, found none.")
            raise SourceError(self._skipped or nothing, NOTHING_LEFT)
        with one_line_for_failures(self._build.out):
            writer = self._write_block(self._block or BlockRows(rows, self._skipped))
            self.is_broken = True  # its files are closed, and it cannot be taken up again
            finished = writer.finish(options.layout, self.samples, origin)
            self._build.finish(*self._name, replace(finished, first=self._first))

    def _broken(self) -> ConversionError:
        path = shard_path(*self._name)
        return ConversionError(f"{self._build.out}: the shard {path} could not be written. Run it again.")

    def close(self) -> None:
        """Close its files."""
        if self._writer is not None:
            self._writer.__exit__()


def with_key(sample: Any, key: object = None) -> tuple[Any, str | None]:
    """A sample, and its key, which may be its entry ``key``."""
    own = sample.get("key") if isinstance(sample, Mapping) else None
    if isinstance(own, str | int | np.integer) and (key is None or str(key) == str(own)):
        key = own
        sample = {name: value for name, value in sample.items() if name != "key"}
    return sample, None if key is None else str(key)


def _without_own(fields: Mapping[str, Field]) -> dict[str, Field]:
    return {name: field for name, field in fields.items() if name not in OWN_FIELDS}
