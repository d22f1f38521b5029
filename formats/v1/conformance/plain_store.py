"""The bytes of a store, written from spec.md alone: standard library and NumPy, nothing of tensorstore_ds.

It is the second implementation that the conformance stores need, and an example of a writer. It keeps whole stores in
memory, as a dictionary of files, and is meant for small ones.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

Json = dict[str, Any]
#: The files of a store by path; a `Link` stands for a symbolic link.
Files = dict[str, "bytes | Link"]

CHUNK_SIZE = 512 * 1024
CONVENTION = {
    "uuid": "6f0f2d0c-3a55-4a8c-9d55-7a1d4b1f52e6",
    "name": "tsds",
    "description": "tensorstore-ds: image data sets as Zarr arrays that are also memory maps, format version 1",
}


#: What stands in the place of the root's digest while the digest is made.
ZEROS = "0" * 64


@dataclass(frozen=True)
class Link:
    """A symbolic link."""

    target: str


@dataclass(frozen=True)
class Shard:
    """The arrays of a shard, by path relative to it (``image``, ``objects/offsets``), and its number of samples.

    Lists of lists are two arrays: ``captions/text/offsets`` and ``captions/text/items``.
    """

    rows: int
    arrays: Mapping[str, NDArray[Any]]
    number: int | None = None  #: of its folder, where that is not its place in the list
    others: Mapping[str, bytes] = field(default_factory=dict)  #: files of fields that version 1.0 cannot read, by path
    lengths: Mapping[str, int] = field(default_factory=dict)  #: of tables among these fields


@dataclass(frozen=True)
class Store:
    """What a store holds.

    Attributes:
        fields: the fields, as the manifest has them.
        splits: the shards of each split.
        layout: ``memmap`` or ``zarr``.
        statistics: of each split, as the manifest has them.
        extra: further members of the manifest; they replace members of the same name.
        top: further files in the root directory, listed in the manifest.
        unlisted: further files in the root directory, not listed: a signature.
        replaced: of each split, shards that are in its folder and not in its list.
        zstd_level: what the arrays' metadata says of the compression, in the layout ``zarr``.
        chunk_size: about as many bytes a chunk is to have.
    """

    fields: Mapping[str, Json]
    splits: Mapping[str, Sequence[Shard]]
    layout: str = "memmap"
    statistics: Mapping[str, Json] = field(default_factory=dict)
    extra: Mapping[str, Any] = field(default_factory=dict)
    top: Mapping[str, bytes] = field(default_factory=dict)
    unlisted: Mapping[str, bytes] = field(default_factory=dict)
    replaced: Mapping[str, Mapping[int, Shard]] = field(default_factory=dict)
    zstd_level: int = 3
    chunk_size: int = CHUNK_SIZE

    def layout_of(self, path: str) -> str:
        """The layout of an array of a shard: its own, if the manifest says one, or the store's."""
        name, _, rest = path.partition("/")
        entry = self.fields[name]
        value = rest.removesuffix("/items")
        own = {"": entry, **entry.get("values", {}), **entry.get("per_row", {})}.get(value, {})
        return str(own.get("layout", self.layout))


# --- arrays (spec.md, section 5) --------------------------------------------------------------------------------


def chunking(rows: int, row_nbytes: int, chunk_size: int) -> tuple[int, int]:
    """(rows of a chunk, number of chunks)."""
    if rows == 0:
        return 1, 0
    wanted = max(1, (rows * row_nbytes + chunk_size // 2) // chunk_size)
    chunk_rows = -(-rows // min(wanted, rows))
    return chunk_rows, -(-rows // chunk_rows)


def array_metadata(path: str, array: NDArray[Any], store: Store) -> Json:
    """The ``zarr.json`` of an array of the store."""
    dtype = array.dtype
    row = list(array.shape[1:])
    chunk_rows, chunks = chunking(len(array), math.prod(row) * dtype.itemsize, store.chunk_size)
    little: Json = {"name": "bytes", "configuration": {"endian": "little"}}
    codecs: list[Json] = [little if dtype.itemsize > 1 else {"name": "bytes"}]
    if store.layout_of(path) == "zarr":
        codecs.append({"name": "zstd", "configuration": {"level": store.zstd_level, "checksum": False}})
    sharding = {
        "chunk_shape": [chunk_rows, *row],
        "codecs": codecs,
        "index_codecs": [little, {"name": "crc32c"}],
        "index_location": "end",
    }
    return {
        "zarr_format": 3,
        "node_type": "array",
        "shape": list(array.shape),
        "data_type": dtype.name,
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [max(1, chunks) * chunk_rows, *row]}},
        "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
        "fill_value": 0.0 if dtype.kind == "f" else 0,
        "codecs": [{"name": "sharding_indexed", "configuration": sharding}],
        "attributes": {},
    }


def array_data(array: NDArray[Any], layout: str, chunk_size: int = CHUNK_SIZE) -> bytes:
    """The data file of an array that has rows: its chunks back to back, their checksums, and their index."""
    raw = np.ascontiguousarray(array, array.dtype.newbyteorder("<")).tobytes()
    row_nbytes = len(raw) // len(array)
    chunk_rows, chunks = chunking(len(array), row_nbytes, chunk_size)
    nbytes = chunk_rows * row_nbytes
    parts = [raw[i * nbytes : (i + 1) * nbytes].ljust(nbytes, b"\0") for i in range(chunks)]
    if layout == "zarr":
        parts = [zstd_frame(part) for part in parts]
    return data_file(parts)


def data_file(chunks: Sequence[bytes]) -> bytes:
    """The data file of these chunks, as they are to lie in it."""
    crcs = b"".join(crc32c(chunk).to_bytes(4, "little") for chunk in chunks)
    return b"".join(chunks) + crcs + index([len(chunk) for chunk in chunks])


def index(sizes: Sequence[int]) -> bytes:
    """The index of chunks of the given sizes that lie back to back."""
    starts = np.concatenate([[0], np.cumsum(sizes)[:-1]])
    return index_of(np.stack([starts, sizes], axis=1))


def index_of(entries: NDArray[Any]) -> bytes:
    """The index of (offset, nbytes) pairs, with its checksum."""
    data = entries.astype("<u8").tobytes()
    return data + crc32c(data).to_bytes(4, "little")


def _crc_table() -> list[int]:
    table = []
    for value in range(256):
        for _ in range(8):
            value = value >> 1 ^ (0x82F63B78 if value & 1 else 0)
        table.append(value)
    return table


_CRC = _crc_table()


def crc32c(data: bytes) -> int:
    """CRC-32C (RFC 3720, appendix B.4): polynomial 0x1EDC6F41, reflected."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc = crc >> 8 ^ _CRC[(crc ^ byte) & 0xFF]
    return crc ^ 0xFFFFFFFF


def zstd_frame(data: bytes) -> bytes:
    """A Zstandard frame (RFC 8878) of `data`: 64 KiB blocks, stored raw, or as one byte repeated."""
    # Descriptor 0xA0: single segment, a content size of 4 bytes, no checksum, no dictionary.
    frame = bytearray(b"\x28\xb5\x2f\xfd\xa0" + len(data).to_bytes(4, "little"))
    blocks = [data[i : i + 65536] for i in range(0, len(data), 65536)]
    for i, block in enumerate(blocks):
        repeated = block.count(block[0]) == len(block)
        header = (i == len(blocks) - 1) | (1 if repeated else 0) << 1 | len(block) << 3
        frame += header.to_bytes(3, "little") + (block[:1] if repeated else block)
    return bytes(frame)


# --- the hierarchy (spec.md, sections 3 and 4) ------------------------------------------------------------------


def dump_json(value: Json) -> bytes:
    """JSON as it is written here; the format asks for UTF-8 only."""
    return (json.dumps(value, indent=1, ensure_ascii=False) + "\n").encode()


def data_path(array: NDArray[Any]) -> str:
    """The data file of an array, relative to the array's directory."""
    return "/".join(["c"] + ["0"] * array.ndim)


def group() -> bytes:
    """The ``zarr.json`` of a group."""
    return dump_json({"zarr_format": 3, "node_type": "group", "attributes": {}})


def shard_files(shard: Shard, store: Store) -> dict[str, bytes]:
    """The files of a shard, by path relative to it."""
    files = {}
    for path, array in shard.arrays.items():
        parts = path.split("/")
        files |= {"/".join([*parts[:n], "zarr.json"]): group() for n in range(1, len(parts))}
        files[f"{path}/zarr.json"] = dump_json(array_metadata(path, array, store))
        if len(array):
            files[f"{path}/{data_path(array)}"] = array_data(array, store.layout_of(path), store.chunk_size)
    return {**files, **shard.others}


def shard_group(files: Mapping[str, bytes]) -> bytes:
    """The ``zarr.json`` of a shard whose other files are `files`, by path relative to it."""
    return dump_json({"zarr_format": 3, "node_type": "group", "attributes": {"tsds": {"files": listed(files)}}})


def listed(files: Mapping[str, bytes]) -> Json:
    """Files with their sizes and hashes, as the manifest lists them."""
    return {
        path: {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()} for path, data in sorted(files.items())
    }


def lengths(shard: Shard, fields: Mapping[str, Json]) -> Json:
    """The number of values of each table of a shard, and of items of each ragged value."""
    found = dict(shard.lengths)
    for name, entry in fields.items():
        if name in found or not any(path.split("/")[0] == name for path in shard.arrays):
            continue
        for value in entry.get("values", {}):
            path = f"{name}/{value}"
            found[name] = len(shard.arrays[path] if path in shard.arrays else shard.arrays[f"{path}/offsets"][1:])
        for value in {**entry.get("values", {}), **entry.get("per_row", {})}:
            if f"{name}/{value}/items" in shard.arrays:
                found[f"{name}/{value}"] = len(shard.arrays[f"{name}/{value}/items"])
    return found


def contents(store: Store) -> dict[str, bytes]:
    """All files of a store but the ``zarr.json`` of the root and of the shards, which list the others."""
    files = dict(store.top)
    for name, shards in store.splits.items():
        files[f"{name}/zarr.json"] = group()
        for folder, shard in shard_folders(store, name, shards):
            files |= {f"{folder}/{path}": data for path, data in shard_files(shard, store).items()}
    return files


def shard_folders(store: Store, split: str, shards: Sequence[Shard]) -> list[tuple[str, Shard]]:
    """The shards of a split with their folders; those that were replaced come last."""
    numbered = {i if shard.number is None else shard.number: shard for i, shard in enumerate(shards)}
    return [(f"{split}/{i:05d}", shard) for i, shard in {**numbered, **store.replaced.get(split, {})}.items()]


def shard_groups(store: Store, files: Mapping[str, bytes]) -> dict[str, bytes]:
    """The ``zarr.json`` of each shard of a store whose other files are `files`."""
    groups = {}
    for name, shards in store.splits.items():
        for path in (f"{folder}/" for folder, _ in shard_folders(store, name, shards)):
            own = {p.removeprefix(path): data for p, data in files.items() if p.startswith(path)}
            groups[f"{path}zarr.json"] = shard_group(own)
    return groups


def manifest(store: Store, files: Mapping[str, bytes]) -> Json:
    """The manifest of a store whose files, apart from the root's ``zarr.json``, are `files`."""
    splits: Json = {}
    for name, shards in store.splits.items():
        entries = []
        for folder, shard in shard_folders(store, name, shards)[: len(shards)]:
            path = f"{folder}/"
            nbytes = sum(len(data) for p, data in files.items() if p.startswith(path))
            digest = hashlib.sha256(files[f"{path}zarr.json"]).hexdigest()
            entries.append(
                {"rows": shard.rows, "lengths": lengths(shard, store.fields), "nbytes": nbytes, "sha256": digest}
                | ({} if shard.number is None else {"number": shard.number})
            )
        rows = sum(shard.rows for shard in shards)
        splits[name] = {"rows": rows, "shards": entries, "statistics": dict(store.statistics.get(name, {}))}
        if name in store.replaced:
            splits[name]["replaced"] = list(store.replaced[name])
    top = {path: data for path, data in files.items() if path.count("/") < 2}
    return {
        "format_version": "1.0",
        "layout": store.layout,
        "chunk_size": store.chunk_size,
        "fields": dict(store.fields),
        "splits": splits,
        "files": listed(top),
        "provenance": {},
        **store.extra,
    }


def canonical(value: Any) -> str:
    """The canonical form of a JSON value (RFC 8785), if its numbers are neither huge nor tiny."""
    return json.dumps(value, ensure_ascii=False, sort_keys=True, separators=(",", ":"))


def content_digest(listing: Json) -> str:
    """The digest of what a store with this manifest holds."""
    shards = {name: [shard["sha256"] for shard in split["shards"]] for name, split in listing["splits"].items()}
    return hashlib.sha256(canonical({"fields": listing["fields"], "splits": shards}).encode()).hexdigest()


def root(data: object) -> Json:
    """The root's ``zarr.json`` around a manifest, with zeros for its digest."""
    attributes = {"zarr_conventions": [CONVENTION], "tsds_sha256": ZEROS, "tsds": data}
    return {"zarr_format": 3, "node_type": "group", "attributes": attributes}


def sealed(data: bytes) -> bytes:
    """The bytes of a root's ``zarr.json`` with its digest in place of the zeros."""
    return data.replace(ZEROS.encode(), hashlib.sha256(data).hexdigest().encode(), 1)
