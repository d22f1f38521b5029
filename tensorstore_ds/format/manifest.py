"""The manifest, which describes the content of a store, as data and as JSON. No input or output.

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

    `lengths` are the number of values (M) of each table in this shard, and the number of items of each ragged value.
    `nbytes` is the size of all files, `sha256` the digest of its ``zarr.json``, which lists the others. `number` names
    its folder; None means its position among the shards of the split.
    """

    rows: int
    lengths: Mapping[str, int]
    nbytes: int
    sha256: str
    number: int | None = None

    def dump(self) -> dict[str, Any]:
        """Return the shard's entry in the manifest."""
        return {name: value for name, value in asdict(self).items() if value is not None}


@dataclass(frozen=True)
class SplitEntry:
    """A split with its shards in row order. Readers that have the store open may still use the `replaced` ones."""

    shards: tuple[Shard, ...]
    statistics: Mapping[str, Any] = field(default_factory=dict)
    replaced: tuple[int, ...] = ()

    @property
    def rows(self) -> int:
        """Number of samples in all shards."""
        return sum(shard.rows for shard in self.shards)

    @property
    def numbers(self) -> list[int]:
        """Number of each shard's folder."""
        return [place if shard.number is None else shard.number for place, shard in enumerate(self.shards)]

    @cached_property
    def places(self) -> Mapping[int, int]:
        """Position of each shard by its number."""
        return {number: place for place, number in enumerate(self.numbers)}


@dataclass(frozen=True, slots=True)
class Manifest:
    """The description of a store. Files of `unreadable` fields, unknown to this version, are also in all shards."""

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
        """Options recorded by the conversion, or none if the manifest contains something else."""
        recorded = self.provenance.get("options")
        return recorded if isinstance(recorded, Mapping) else {}

    @property
    def nbytes(self) -> int:
        """Bytes of all files of the store except the root's ``zarr.json``."""
        shards = sum(shard.nbytes for split in self.splits.values() for shard in split.shards)
        return shards + sum(file.size for file in self.files.values())

    def arrays(self, shard: Shard) -> dict[str, ArrayGeometry]:
        """Return all arrays of a shard, by path relative to it."""
        return shard_arrays(self.fields, shard.rows, shard.lengths, self.layout, self.chunk_size)

    def shard_path(self, split: str, index: int) -> str:
        """Return the directory of the shard at a position of a split, relative to the store."""
        number = self.splits[split].shards[index].number
        return shard_path(split, index if number is None else number)

    def shard_at(self, path: str) -> tuple[str, int]:
        """Return the split and position of the shard in a directory. Raises `KeyError` if there is none."""
        split, _, number = path.partition("/")
        if not number.isdecimal():
            raise KeyError(path)
        return split, self.splits[split].places[int(number)]


def shard_path(split: str, number: int) -> str:
    """Return the directory of a shard, relative to the store.

    >>> shard_path("train", 3)
    'train/00003'
    """
    return f"{split}/{number:05d}"


# --- dump -------------------------------------------------------------------------------------------------------


def dump(manifest: Manifest) -> dict[str, Any]:
    """Return the manifest as a JSON object, the value of the ``tsds`` attribute."""
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
