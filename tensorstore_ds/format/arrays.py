"""Positions of bytes: the arrays of a shard, their chunks, their metadata and their index. No input or output.

``formats/v1/spec.md`` sections 3 and 5 describe what is computed here. An array is one file: inner chunks of
whole rows back to back from byte 0, so that the file begins with the C-order array, then a checksum of each, then the
index of Zarr's ``sharding_indexed`` codec.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tensorstore_ds.format.kinds.base import Field
from tensorstore_ds.format.schema import ArraySpec, Layout

#: Default size of an inner chunk: small enough to fetch a few rows remotely, large enough to compress.
CHUNK_SIZE = 512 * 1024
#: Bytes of a CRC-32C. Each chunk has one, and the index ends with one of its other bytes.
CRC_NBYTES = 4
ZSTD_LEVEL = 3
#: Largest number of members on one line of JSON.
_LINE = 8
#: Larger than any number in metadata.
BEYOND = 10**18
#: Minimum bytes of a Zstandard frame, and again for each block of 128 KiB that it unpacks to.
_FRAME_NBYTES, _BLOCK_NBYTES, _BLOCK = 6, 4, 128 * 1024

GROUP: Mapping[str, Any] = {"zarr_format": 3, "node_type": "group", "attributes": {}}


@dataclass(frozen=True, slots=True)
class ArrayGeometry:
    """One array of a shard, with `rows` along axis 0, in chunks of about `chunk_size` bytes."""

    spec: ArraySpec
    rows: int
    layout: Layout
    chunk_size: int = CHUNK_SIZE

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the whole array."""
        return (self.rows, *self.spec.shape)

    @property
    def nbytes(self) -> int:
        """Bytes of the array itself, which are the mapped part of the file."""
        return self.rows * self.spec.row_nbytes

    @property
    def chunk_rows(self) -> int:
        """Rows of an inner chunk, as even a division as whole rows allow.

        >>> ArrayGeometry(ArraySpec("uint8", (256, 256, 3)), 5000, "memmap").chunk_rows
        3
        >>> ArrayGeometry(ArraySpec("int64"), 70, "memmap").chunk_rows
        70
        """
        if self.rows == 0:
            return 1
        chunks = max(1, (self.nbytes + self.chunk_size // 2) // self.chunk_size)
        return -(-self.rows // min(chunks, self.rows))

    @property
    def chunks(self) -> int:
        """Number of inner chunks."""
        return -(-self.rows // self.chunk_rows)

    @property
    def chunk_nbytes(self) -> int:
        """Bytes of an inner chunk before compression. The last one is padded with zeros."""
        return self.chunk_rows * self.spec.row_nbytes

    @property
    def index_nbytes(self) -> int:
        """Bytes of the index at the end of the file."""
        return self.chunks * 16 + CRC_NBYTES

    @property
    def tail_nbytes(self) -> int:
        """Bytes behind the chunks: the checksums of the chunks, and the index."""
        return self.chunks * CRC_NBYTES + self.index_nbytes

    @property
    def stored_nbytes(self) -> tuple[int, int]:
        """Smallest and largest number of bytes of an inner chunk in the file.

        The smallest follows from Zstandard's limit of 32,768 to 1. A smaller file cannot hold what it claims.
        """
        if self.layout == "memmap":
            return self.chunk_nbytes, self.chunk_nbytes
        least = _FRAME_NBYTES + _BLOCK_NBYTES * -(-self.chunk_nbytes // _BLOCK)
        return least, self.chunk_nbytes + self.chunk_nbytes // 128 + 1024

    @property
    def file_nbytes(self) -> tuple[int, int]:
        """Smallest and largest size of the data file in bytes, equal in the layout `memmap`, and 0 without a file."""
        if self.rows == 0:
            return 0, 0
        least, most = self.stored_nbytes
        return self.chunks * least + self.tail_nbytes, self.chunks * most + self.tail_nbytes

    @property
    def data_path(self) -> str:
        """Path of the array's data file, relative to the array's directory: the one chunk of the outer grid."""
        return "/".join(["c"] + ["0"] * len(self.shape))

    def index(self) -> bytes:
        """Return the index of the layout `memmap`: chunk i is at ``i * chunk_nbytes``."""
        entries = np.empty((self.chunks, 2), "<u8")
        entries[:, 0] = np.arange(self.chunks, dtype=np.uint64) * np.uint64(self.chunk_nbytes)
        entries[:, 1] = self.chunk_nbytes
        return encode_index(entries)

    def metadata(self) -> dict[str, Any]:
        """The array's ``zarr.json``."""
        return _metadata(self.spec, self.layout, *self._written_rows)

    def metadata_bytes(self) -> bytes:
        """The array's ``zarr.json`` as the bytes of a file.

        >>> geometry = ArrayGeometry(ArraySpec("uint8", (256, 256, 3)), 5000, "memmap")
        >>> geometry.metadata_bytes() == dump_json(geometry.metadata())
        True
        """
        return _metadata_template(self.spec, self.layout) % self._written_rows

    @property
    def _written_rows(self) -> tuple[int, int, int]:
        """Rows of the array, of its outer chunk and of an inner chunk."""
        chunk_rows = self.chunk_rows
        return self.rows, max(1, -(-self.rows // chunk_rows)) * chunk_rows, chunk_rows


def _metadata(spec: ArraySpec, layout: Layout, rows: int, outer_rows: int, chunk_rows: int) -> dict[str, Any]:
    item = np.dtype(spec.dtype).itemsize
    codecs: list[dict[str, Any]] = [
        {"name": "bytes", "configuration": {"endian": "little"}} if item > 1 else {"name": "bytes"}
    ]
    if layout == "zarr":
        codecs.append({"name": "zstd", "configuration": {"level": ZSTD_LEVEL, "checksum": False}})
    index_codecs = [{"name": "bytes", "configuration": {"endian": "little"}}, {"name": "crc32c"}]
    return {
        "zarr_format": 3,
        "node_type": "array",
        "shape": [rows, *spec.shape],
        "data_type": spec.dtype,
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [outer_rows, *spec.shape]}},
        "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
        "fill_value": 0.0 if spec.dtype.startswith("float") else 0,
        "codecs": [
            {
                "name": "sharding_indexed",
                "configuration": {
                    "chunk_shape": [chunk_rows, *spec.shape],
                    "codecs": codecs,
                    "index_codecs": index_codecs,
                    "index_location": "end",
                },
            }
        ],
        "attributes": {},
    }


@functools.lru_cache(1024)
def _metadata_template(spec: ArraySpec, layout: Layout) -> bytes:
    """Format string of metadata for arrays that differ only in these three numbers of rows."""
    marks = BEYOND, BEYOND + 1, BEYOND + 2
    text = dump_json(_metadata(spec, layout, *marks))
    for mark in marks:
        text = text.replace(str(mark).encode(), b"%d")
    return text


def array_paths(name: str, field: Field) -> dict[str, ArraySpec]:
    """Return the arrays that hold a field, by their path relative to the shard.

    >>> from tensorstore_ds.format.kinds import KeyField, SizeField
    >>> list(array_paths("key", KeyField())), list(array_paths("size", SizeField()))
    (['key/offsets', 'key/bytes'], ['size'])
    """
    return {f"{name}/{value}" if value else name: spec for value, spec in field.arrays.items()}


def shard_arrays(
    fields: Mapping[str, Field], rows: int, lengths: Mapping[str, int], layout: Layout, chunk_size: int
) -> dict[str, ArrayGeometry]:
    """Return all arrays of a shard with `rows` samples and tables of these `lengths`, by path relative to the shard."""
    return {
        f"{name}/{path}" if path else name: ArrayGeometry(
            spec, field.array_rows(name, path, rows, lengths), spec.layout or layout, chunk_size
        )
        for name, field in fields.items()
        for path, spec in field.arrays.items()
    }


def shard_files(fields: Mapping[str, Field], arrays: Mapping[str, ArrayGeometry]) -> dict[str, ArrayGeometry | None]:
    """Return the files that a shard lists, by path relative to it: data files with their arrays, metadata with None."""
    files: dict[str, ArrayGeometry | None] = {
        f"{group}/zarr.json": None for name, field in fields.items() for group in field.groups(name)
    }
    for path, geometry in arrays.items():
        files[f"{path}/zarr.json"] = None
        if geometry.rows:
            files[f"{path}/{geometry.data_path}"] = geometry
    return files


def encode_index(entries: NDArray[np.uint64]) -> bytes:
    """Encode an index of (offset, nbytes) pairs, shape (chunks, 2), with its checksum."""
    import google_crc32c  # imported here, because reading a store never needs it

    data = np.ascontiguousarray(entries, "<u8").tobytes()
    return data + int(google_crc32c.value(data)).to_bytes(CRC_NBYTES, "little")


def decode_index(data: bytes) -> NDArray[np.uint64] | None:
    """Return the (offset, nbytes) pairs of an index, shape (chunks, 2), or None for a wrong checksum or length."""
    import google_crc32c

    body, crc = data[:-CRC_NBYTES], data[-CRC_NBYTES:]
    if len(body) % 16 or int(google_crc32c.value(body)).to_bytes(CRC_NBYTES, "little") != crc:
        return None
    return np.frombuffer(body, "<u8").reshape(-1, 2)


def dump_json(value: Mapping[str, Any]) -> bytes:
    """Encode metadata as UTF-8 with indentation and a final newline. Short values stay on one line."""
    return (_lines(value, "\n") + "\n").encode()


def _lines(value: Any, newline: str) -> str:
    if not isinstance(value, Mapping | list | tuple) or not value or _is_short(value):
        return json.dumps(value, ensure_ascii=False, allow_nan=False)
    deeper = newline + " "
    if isinstance(value, Mapping):
        members = (f"{json.dumps(name, ensure_ascii=False)}: {_lines(each, deeper)}" for name, each in value.items())
        return "{" + deeper + f",{deeper}".join(members) + newline + "}"
    return "[" + deeper + f",{deeper}".join(_lines(each, deeper) for each in value) + newline + "]"


def _is_short(value: Any) -> bool:
    """Whether a value has few members without children: a shape, a file, or a shard with its lengths."""
    members = list(value.values()) if isinstance(value, Mapping) else value
    inner = [each for each in members if isinstance(each, Mapping | list | tuple)]
    return len(members) <= _LINE and all(len(each) <= _LINE and _is_flat(each) for each in inner)


def _is_flat(value: Any) -> bool:
    members = value.values() if isinstance(value, Mapping) else value
    return not any(isinstance(each, Mapping | list | tuple) for each in members)
