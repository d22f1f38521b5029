"""Geometry and metadata against zarr-python, the index against literal bytes and a CRC of its own."""

from __future__ import annotations

import json
import re
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from hypothesis import example, given, settings, strategies as st

from tensorstore_ds.format import arrays as layout
from tensorstore_ds.format.arrays import (
    CHUNK_SIZE,
    ArrayGeometry,
    decode_index,
    encode_index,
    shard_arrays,
    shard_files,
)
from tensorstore_ds.format.chunks import seal_array
from tensorstore_ds.format.kinds import KeyField, ObjectsField, RawImageField, SizeField
from tensorstore_ds.format.kinds.base import Field
from tensorstore_ds.format.schema import DTYPES, ArraySpec, Layout

ARRAYS = st.tuples(
    st.sampled_from(DTYPES), st.integers(1, 40), st.lists(st.integers(1, 4), max_size=3).map(tuple), st.integers(0, 250)
)


def array_of(dtype: str, rows: int, row: tuple[int, ...], seed: int) -> np.ndarray[Any, Any]:
    """Values that begin at `seed`; all zeros for the seed 0."""
    array = np.zeros((rows, *row), dtype)
    if seed:
        array.reshape(-1)[:] = (np.arange(array.size) + seed) % 127
    return array


def geometry_of(array: np.ndarray[Any, Any], how: Layout = "memmap", chunk_size: int = CHUNK_SIZE) -> ArrayGeometry:
    return ArrayGeometry(ArraySpec(array.dtype.name, array.shape[1:]), len(array), how, chunk_size)


# --- against zarr-python ----------------------------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(ARRAYS, st.sampled_from([1, 16, 64, 512 * 1024]))
@example(("uint8", 40, (4,), 0), 16)  # all zeros: zarr leaves such chunks out, unless it is told not to
def test_a_file_has_the_bytes_that_zarr_writes_and_checksums_before_the_index(
    values: tuple[str, int, tuple[int, ...], int], chunk_size: int
) -> None:
    array = array_of(*values)
    with tempfile.TemporaryDirectory() as folder:
        geometry = geometry_of(array, chunk_size=chunk_size)
        written = zarr.create_array(
            folder,
            shape=array.shape,
            dtype=array.dtype,
            chunks=(geometry.chunk_rows, *array.shape[1:]),
            shards=(geometry.chunks * geometry.chunk_rows, *array.shape[1:]),
            compressors=None,
            fill_value=0,
            config={"write_empty_chunks": True},
        )
        written[...] = array
        zarrs = (Path(folder) / geometry.data_path).read_bytes()
        chunks, index = zarrs[: -geometry.index_nbytes], zarrs[-geometry.index_nbytes :]
        ours = Path(folder) / "ours"
        ours.write_bytes(array.tobytes())
        seal_array(ours, geometry)
        crcs = [crc32c(chunks[i : i + geometry.chunk_nbytes]) for i in range(0, len(chunks), geometry.chunk_nbytes)]
        assert ours.read_bytes() == chunks + np.array(crcs, "<u4").tobytes() + index
        assert geometry.file_nbytes == (ours.stat().st_size,) * 2
        theirs = json.loads((Path(folder) / "zarr.json").read_bytes())
        assert {name: theirs[name] for name in geometry.metadata()} == geometry.metadata()


@settings(max_examples=40, deadline=None)
@given(ARRAYS)
def test_zarr_accepts_the_metadata_of_compressed_arrays(values: tuple[str, int, tuple[int, ...], int]) -> None:
    array = array_of(*values)
    geometry = geometry_of(array, "zarr")
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "zarr.json").write_bytes(layout.dump_json(geometry.metadata()))
        opened = zarr.open_array(folder, mode="r+", zarr_format=3)
        assert (opened.shape, opened.dtype) == (array.shape, array.dtype)
        assert opened.chunks == (geometry.chunk_rows, *array.shape[1:])
        opened[...] = array
        assert np.asarray(opened[...]).tobytes() == array.tobytes()


# --- geometry ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("spec", "rows", "chunk_rows", "chunks", "file_nbytes"),
    [
        (ArraySpec("uint8"), 786431, 786431, 1, 786431 + 24),  # just below one and a half chunks
        (ArraySpec("uint8"), 786432, 393216, 2, 786432 + 44),  # a half is rounded up: two
        (ArraySpec("uint8"), 1310719, 655360, 2, 1310720 + 44),
        (ArraySpec("uint8"), 1310720, 436907, 3, 1310721 + 64),  # two and a half: three
        (ArraySpec("uint8", (256, 256, 1)), 13, 7, 2, 14 * 65536 + 44),  # the last chunk is filled up
        (ArraySpec("uint8", (1024, 1024, 3)), 2, 1, 2, 2 * 3 * 1024**2 + 44),  # never less than a row
        (ArraySpec("float64"), 1, 1, 1, 8 + 24),
        (ArraySpec("float64", (2,)), 0, 1, 0, 0),  # no rows, no file
        (ArraySpec("uint8", (256, 256, 3)), 2**38, 3, -(-(2**38) // 3), None),  # 54 PB: nothing is narrowed
    ],
)
def test_chunks_are_those_of_the_specification(
    spec: ArraySpec, rows: int, chunk_rows: int, chunks: int, file_nbytes: int | None
) -> None:
    geometry = ArrayGeometry(spec, rows, "memmap")
    assert (geometry.chunk_rows, geometry.chunks) == (chunk_rows, chunks)
    if file_nbytes is not None:
        assert geometry.file_nbytes == (file_nbytes, file_nbytes)


@given(st.integers(1, 2**44), st.integers(1, 2**20), st.integers(1, 2**22))
def test_chunks_hold_all_rows_and_none_is_empty(rows: int, row_nbytes: int, chunk_size: int) -> None:
    geometry = ArrayGeometry(ArraySpec("uint8", (row_nbytes,)), rows, "memmap", chunk_size)
    assert (geometry.chunks - 1) * geometry.chunk_rows < rows <= geometry.chunks * geometry.chunk_rows
    assert geometry.chunk_rows == 1 or geometry.chunk_nbytes < 1.6 * chunk_size + row_nbytes


def test_the_numbers_of_the_specification() -> None:
    """The table of worked examples."""
    text = (Path(__file__).parents[1] / "formats/v1/spec.md").read_text("utf-8")
    rows = re.findall(r"^\| (\d+) \| \(([\d, ]*)\) (u?int\d+|float64) \| (.*) \|$", text, re.MULTILINE)
    assert len(rows) == 6
    for n, shape, dtype, numbers in rows:
        found = [cell.split(" ")[0].rstrip(",").replace(",", "") for cell in numbers.split(" | ")]
        spec = ArraySpec(dtype, tuple(int(side) for side in shape.split(",") if side))
        geometry = ArrayGeometry(spec, int(n), "memmap")
        own = [geometry.nbytes, geometry.chunk_rows, geometry.chunks, geometry.chunk_nbytes]
        assert [found[0], *found[2:5]] == list(map(str, own))
        assert found[5] == (str(geometry.file_nbytes[0]) if geometry.rows else "no")


def test_the_files_of_a_shard() -> None:
    fields: dict[str, Field] = {
        "image": RawImageField(ArraySpec("uint8", (2, 3, 1))),
        "size": SizeField(),
        "objects": ObjectsField.of("boxes"),
        "key": KeyField(),
    }
    files = shard_files(fields, shard_arrays(fields, 2, {"objects": 0, "key": 9}, "memmap", CHUNK_SIZE))
    assert {path: None if array is None else array.file_nbytes[0] for path, array in files.items()} == {
        "image/zarr.json": None,
        "image/c/0/0/0/0": 2 * 6 + 24,
        "size/zarr.json": None,
        "size/c/0/0": 2 * 8 + 24,
        "objects/zarr.json": None,
        "objects/offsets/zarr.json": None,
        "objects/offsets/c/0": 3 * 8 + 24,
        "objects/boxes/zarr.json": None,  # no objects: no data file
        "key/zarr.json": None,
        "key/offsets/zarr.json": None,
        "key/offsets/c/0": 3 * 8 + 24,
        "key/bytes/zarr.json": None,
        "key/bytes/c/0": 9 + 24,
    }


def test_a_shard_without_rows_has_only_offsets() -> None:
    fields: dict[str, Field] = {"image": RawImageField(ArraySpec("uint8", (2, 3, 1))), "key": KeyField()}
    arrays = shard_arrays(fields, 0, {"key": 0}, "memmap", CHUNK_SIZE)
    assert {path: geometry.rows for path, geometry in arrays.items()} == {"image": 0, "key/offsets": 1, "key/bytes": 0}


# --- index ------------------------------------------------------------------------------------------------------


def crc32c(data: bytes) -> int:
    """Bit by bit, as in RFC 3720."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


ENTRIES = st.lists(st.tuples(*[st.integers(0, 2**64 - 1)] * 2), max_size=8).map(
    lambda pairs: np.array(pairs, np.uint64).reshape(-1, 2)
)


def test_an_index_byte_by_byte() -> None:
    assert crc32c(b"123456789") == 0xE3069283  # the check value of CRC-32C
    expected = bytes(8) + (393216).to_bytes(8, "little") + (393216).to_bytes(8, "little") * 2
    assert ArrayGeometry(ArraySpec("uint8"), 786432, "memmap").index() == expected + crc32c(expected).to_bytes(
        4, "little"
    )
    assert (
        ArrayGeometry(ArraySpec("int64"), 3, "memmap").index().hex() == "00000000000000001800000000000000" + "84973d84"
    )


@given(ENTRIES)
def test_an_index_is_read_as_it_was_written(entries: np.ndarray[Any, np.dtype[np.uint64]]) -> None:
    data = encode_index(entries)
    assert data == entries.astype("<u8").tobytes() + crc32c(entries.astype("<u8").tobytes()).to_bytes(4, "little")
    decoded = decode_index(data)
    assert decoded is not None
    np.testing.assert_array_equal(decoded, entries)


@given(ENTRIES, st.integers(0), st.integers(1, 255))
def test_an_index_with_a_byte_changed_is_refused(
    entries: np.ndarray[Any, np.dtype[np.uint64]], position: int, change: int
) -> None:
    data = bytearray(encode_index(entries))
    data[position % len(data)] ^= change
    assert decode_index(bytes(data)) is None


@given(st.binary(max_size=100))
def test_any_bytes_are_an_index_or_none(data: bytes) -> None:
    decoded = decode_index(data)
    assert decoded is None or encode_index(decoded) == data
