"""The manifest: what a store says it holds, as data and as JSON. No input or output.

The manifest is the ``tsds`` attribute of the root group; ``formats/v1/spec.md`` section 4 and
``formats/v1/manifest.schema.json`` describe it; `manifest_parser` reads it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any

from tensorstore_ds.format.arrays import ArrayGeometry, shard_arrays
from tensorstore_ds.format.kinds.base import Field, UnreadableField
from tensorstore_ds.format.schema import Layout

FORMAT_VERSION = "1.0"

#: The convention's entry in the root group's ``zarr_conventions`` (the Zarr conventions framework).
CONVENTION = {
    "uuid": "6f0f2d0c-3a55-4a8c-9d55-7a1d4b1f52e6",
    "name": "tsds",
    "description": "tensorstore-ds: image data sets as Zarr arrays that are also memory maps, format version 1",
}


@dataclass(frozen=True, slots=True)
class File:
    """Size in bytes and SHA-256 (lower-case hexadecimal) of one file."""

    size: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Shard:
    """A part of a split.

    Attributes:
        rows: samples in it.
        lengths: for each table, the number of its values in this shard (M); for each ragged value, that of its items.
        nbytes: of all its files.
        sha256: of its ``zarr.json``, which lists the others.
        number: of its folder; None: its place among the shards of the split.
    """

    rows: int
    lengths: Mapping[str, int]
    nbytes: int
    sha256: str
    number: int | None = None

    def dump(self) -> dict[str, Any]:
        """The shard as the manifest has it."""
        return {name: value for name, value in asdict(self).items() if value is not None}


@dataclass(frozen=True)
class SplitEntry:
    """A split.

    Attributes:
        shards: in row order.
        statistics: of its samples; `statistics.py` reads them.
        replaced: numbers of the shards that others took the place of. Readers that have the store open may use them.
    """

    shards: tuple[Shard, ...]
    statistics: Mapping[str, Any] = field(default_factory=dict)
    replaced: tuple[int, ...] = ()

    @property
    def rows(self) -> int:
        """Samples in all shards."""
        return sum(shard.rows for shard in self.shards)

    @property
    def numbers(self) -> list[int]:
        """The number of each shard's folder."""
        return [place if shard.number is None else shard.number for place, shard in enumerate(self.shards)]

    @cached_property
    def places(self) -> Mapping[int, int]:
        """The place of each shard among the others, by its number."""
        return {number: place for place, number in enumerate(self.numbers)}


@dataclass(frozen=True, slots=True)
class Manifest:
    """All that a store says of itself.

    Attributes:
        fields: those that this version can read.
        unreadable: the other ones. Their files are in all shards, too.
    """

    layout: Layout
    chunk_size: int
    fields: Mapping[str, Field]
    splits: Mapping[str, SplitEntry]
    files: Mapping[str, File] = field(default_factory=dict)
    provenance: Mapping[str, Any] = field(default_factory=dict)
    license: str | None = None
    citation: str | None = None
    version: str = FORMAT_VERSION
    unreadable: Mapping[str, UnreadableField] = field(default_factory=dict)

    @property
    def conversion_options(self) -> Mapping[str, Any]:
        """Options that the conversion has recorded; none where a manifest says anything else there."""
        recorded = self.provenance.get("options")
        return recorded if isinstance(recorded, Mapping) else {}

    @property
    def nbytes(self) -> int:
        """Bytes of all files of the store but the root's ``zarr.json``."""
        shards = sum(shard.nbytes for split in self.splits.values() for shard in split.shards)
        return shards + sum(file.size for file in self.files.values())

    def arrays(self, shard: Shard) -> dict[str, ArrayGeometry]:
        """All arrays of a shard, by path relative to it."""
        return shard_arrays(self.fields, shard.rows, shard.lengths, self.layout, self.chunk_size)

    def shard_path(self, split: str, index: int) -> str:
        """Directory of the shard at a place of a split, relative to the store."""
        number = self.splits[split].shards[index].number
        return shard_path(split, index if number is None else number)

    def shard_at(self, path: str) -> tuple[str, int]:
        """The split and the place of the shard in a directory; raises `KeyError` where there is none."""
        split, _, number = path.partition("/")
        if not number.isdecimal():
            raise KeyError(path)
        return split, self.splits[split].places[int(number)]


def shard_path(split: str, number: int) -> str:
    """Directory of a shard, relative to the store.

    >>> shard_path("train", 3)
    'train/00003'
    """
    return f"{split}/{number:05d}"


# --- dump -------------------------------------------------------------------------------------------------------


def dump(manifest: Manifest) -> dict[str, Any]:
    """The manifest as a JSON object: the value of the ``tsds`` attribute."""
    data: dict[str, Any] = {
        "format_version": manifest.version,
        "layout": manifest.layout,
        "chunk_size": manifest.chunk_size,
        "fields": {name: each.dump() for part in (manifest.fields, manifest.unreadable) for name, each in part.items()},
        "splits": {
            name: {
                "rows": split.rows,
                "shards": [shard.dump() for shard in split.shards],
                "statistics": dict(split.statistics),
                **({"replaced": list(split.replaced)} if split.replaced else {}),
            }
            for name, split in manifest.splits.items()
        },
        "files": {path: asdict(file) for path, file in manifest.files.items()},
        "provenance": dict(manifest.provenance),
    }
    if manifest.license is not None:
        data["license"] = manifest.license
    if manifest.citation is not None:
        data["citation"] = manifest.citation
    return data
