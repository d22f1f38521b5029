"""``index.json`` of a split: its shards and their columns."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from tensorstore_ds.annex.sources.arrays.source import bad_file
from tensorstore_ds.annex.sources.json_files import read_object
from tensorstore_ds.errors import Problem, SourceError
from tensorstore_ds.sources.ledger import USED, Known, Ledger

#: The name of the file.
INDEX = "index.json"
_LIMIT = 64 << 20  # bytes of it: some hundred thousand shards
_Count = Annotated[int, Meta(ge=0, lt=1 << 32)]


#: The members of an index that are read, or that only say how the shards were written.
_KNOWN: Known = {
    "version": USED,
    "shards": {
        **dict.fromkeys(("column_names", "column_encodings", "column_sizes", "format", "version", "samples"), USED),
        **dict.fromkeys(("compression", "hashes", "size_limit"), USED),
        **dict.fromkeys(("raw_data", "zip_data"), dict.fromkeys(("basename", "bytes", "hashes"), USED)),
    },
}


class Data(msgspec.Struct, frozen=True):
    """A file of a shard."""

    basename: str
    nbytes: Annotated[int, Meta(ge=0, lt=1 << 62)] = msgspec.field(name="bytes")


class Shard(msgspec.Struct, frozen=True):
    """One shard in the index. `zip_data` is the compressed file, `column_sizes` has None for varying sizes."""

    column_names: list[str]
    column_encodings: list[str]
    column_sizes: list[Annotated[int, Meta(gt=0)] | None]
    format: str
    version: int
    samples: _Count
    raw_data: Data
    zip_data: Data | None = None
    compression: str | None = None

    @property
    def data(self) -> tuple[Data, ...]:
        """The uncompressed and the compressed file, if listed."""
        return (self.raw_data,) if self.zip_data is None else (self.raw_data, self.zip_data)

    @property
    def columns(self) -> list[tuple[str, str, int | None]]:
        """Name, encoding and size of each column."""
        return list(zip(self.column_names, self.column_encodings, self.column_sizes, strict=True))


class _Index(msgspec.Struct, frozen=True):
    version: int
    shards: list[Shard]


def read_index(folder: Path, where: str, ledger: Ledger) -> list[Shard]:
    """Shards of a split, which must have equal columns. `ledger` receives members that are not read.

    Raises `SourceError` `json`, `array-file`, `array-shape` or `unreadable-file`.
    """
    try:
        found = read_object(folder / INDEX, where, _LIMIT)
        index = msgspec.convert(found, _Index)
    except msgspec.ValidationError as error:
        raise bad_file(where, f"expected an index of MDS: {' '.join(str(error).split())[:200]}.") from error
    ledger.members(found, _KNOWN, where)
    for shard in index.shards:
        if (index.version, shard.version, shard.format) != (2, 2, "mds"):
            raise bad_file(where, f"expected MDS of version 2, found {shard.format[:40]} of {shard.version}.")
        lengths = {len(shard.column_names), len(shard.column_encodings), len(shard.column_sizes)}
        if len(lengths) > 1 or len(set(shard.column_names)) < len(shard.column_names):
            raise bad_file(where, "expected a name, an encoding and a size for each column, found others.")
        if shard.columns != index.shards[0].columns:
            message = f"expected the same columns in all shards, found others in {shard.raw_data.basename[:80]}."
            raise SourceError(Problem(where, "array-shape", message), "Write the data set again.")
    return index.shards
