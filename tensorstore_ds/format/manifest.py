"""The manifest: what a store says it holds, as data and as JSON. No input or output.

The manifest is the ``tsds`` attribute of the root group; ``formats/v1/spec.md`` section 4 and
``formats/v1/manifest.schema.json`` describe it; `manifest_parser` reads it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from tensorstore_ds.format.kinds.base import Field
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
        lengths: for each table, the number of its values in this shard (M).
        files: every file of the shard, by its path relative to the shard's directory.
    """

    rows: int
    lengths: Mapping[str, int]
    files: Mapping[str, File]


@dataclass(frozen=True, slots=True)
class SplitEntry:
    """A split: its shards in row order, and the statistics of its samples (`statistics.py` reads them)."""

    shards: tuple[Shard, ...]
    statistics: Mapping[str, Any] = field(default_factory=dict)

    @property
    def rows(self) -> int:
        """Samples in all shards."""
        return sum(shard.rows for shard in self.shards)


@dataclass(frozen=True, slots=True)
class Manifest:
    """All that a store says of itself."""

    layout: Layout
    fields: Mapping[str, Field]
    splits: Mapping[str, SplitEntry]
    files: Mapping[str, File] = field(default_factory=dict)
    provenance: Mapping[str, Any] = field(default_factory=dict)
    license: str | None = None
    citation: str | None = None
    version: str = FORMAT_VERSION

    @property
    def conversion_options(self) -> Mapping[str, Any]:
        """Options that the conversion has recorded; none where a manifest says anything else there."""
        recorded = self.provenance.get("options")
        return recorded if isinstance(recorded, Mapping) else {}

    def all_files(self) -> dict[str, File]:
        """Every file but the root's ``zarr.json``, by its path relative to the store."""
        files = dict(self.files)
        for name, split in self.splits.items():
            for i, shard in enumerate(split.shards):
                files.update({f"{shard_path(name, i)}/{path}": file for path, file in shard.files.items()})
        return files


def shard_path(split: str, index: int) -> str:
    """Directory of a shard, relative to the store.

    >>> shard_path("train", 3)
    'train/00003'
    """
    return f"{split}/{index:05d}"


# --- dump -------------------------------------------------------------------------------------------------------


def dump(manifest: Manifest) -> dict[str, Any]:
    """The manifest as a JSON object: the value of the ``tsds`` attribute."""
    data: dict[str, Any] = {
        "format_version": manifest.version,
        "layout": manifest.layout,
        "fields": {name: field.dump() for name, field in manifest.fields.items()},
        "splits": {
            name: {
                "rows": split.rows,
                "shards": [{"path": shard_path(name, i), **asdict(s)} for i, s in enumerate(split.shards)],
                "statistics": dict(split.statistics),
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
