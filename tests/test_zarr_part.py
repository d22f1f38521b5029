"""Frames against numcodecs as the writer and NumPy as the oracle; what a chunk claims is never taken for granted."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from numcodecs import zstd

import tensorstore_ds as tsds
from small_stores import INVALID
from tensorstore_ds import machine
from tensorstore_ds.format import chunks
from tensorstore_ds.format.arrays import ArrayGeometry
from tensorstore_ds.format.chunks import compress_array, decompress_chunk, frame_problem
from tensorstore_ds.format.schema import ArraySpec
from tensorstore_ds.machine import map_in_threads
from tensorstore_ds.reading import verification
from tensorstore_ds.reading.columns import Column
from tensorstore_ds.reading.mirror_file import MirroredPart
from tensorstore_ds.reading.zarr_part import ZarrPart

CONTENTS = st.binary(min_size=1, max_size=400) | st.builds(
    lambda piece, n: piece * n, st.binary(min_size=1, max_size=9), st.integers(1, 100_000)
)


@settings(deadline=None)
@given(CONTENTS, st.integers(1, 19), st.booleans())
def test_a_frame_of_any_level_is_unpacked(content: bytes, level: int, checksum: bool) -> None:
    frame = zstd.compress(content, level, checksum)
    out = np.empty(len(content), np.uint8)
    assert frame_problem(frame, len(content)) is None
    decompress_chunk(frame, out)
    assert out.tobytes() == content


@settings(deadline=None)
@given(CONTENTS, st.data())
def test_a_frame_that_is_cut_longer_or_of_another_size_is_refused(content: bytes, data: st.DataObject) -> None:
    frame = zstd.compress(content, 3)
    cut = data.draw(st.integers(0, len(frame) - 1))
    assert frame_problem(frame[:cut], len(content)) is not None
    assert frame_problem(frame + data.draw(st.binary(min_size=1, max_size=9)), len(content)) is not None
    assert frame_problem(frame, len(content) + data.draw(st.integers(1, 9))) is not None
    assert frame_problem(frame + frame, 2 * len(content)) is not None


@settings(deadline=None)
@given(CONTENTS, st.data())
def test_any_bytes_are_unpacked_or_a_value_error(content: bytes, data: st.DataObject) -> None:
    frame = bytearray(zstd.compress(content, 3))
    for _ in range(data.draw(st.integers(1, 3))):
        frame[data.draw(st.integers(0, len(frame) - 1))] ^= data.draw(st.integers(1, 255))
    out = np.empty(len(content), np.uint8)
    try:
        decompress_chunk(bytes(frame), out)
    except ValueError as error:
        assert str(error)


@pytest.fixture(scope="module")
def part(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A part of 40 rows in chunks of 3, and the array that it holds."""
    folder = tmp_path_factory.mktemp("part")
    array = np.arange(40 * 4, dtype=np.int16).reshape(40, 2, 2)
    geometry = ArrayGeometry(ArraySpec("int16", (2, 2)), 40, "zarr", chunk_size=20)
    assert (geometry.chunk_rows, geometry.chunks) == (3, 14)
    (folder / "raw").write_bytes(array.tobytes())
    compress_array(folder / "raw", folder / "data", geometry)
    return ZarrPart("data", geometry, lambda: (folder / "data").open("rb")), array


def test_large_chunks_take_turns_where_memory_is_short(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    widths: list[int | None] = []

    def noted(function: Any, items: Any, width: int | None = None) -> Iterator[Any]:
        widths.append(width)
        return map_in_threads(function, items, width)

    for module in (chunks, verification):
        monkeypatch.setattr(module, "map_in_threads", noted)
    monkeypatch.setattr(machine, "usable_cores", lambda: 8)
    store = tsds.convert([np.zeros((30, 80), np.uint8)], tmp_path / "s.tsds", layout="zarr", workers=0).path
    assert {*widths} == {8}
    monkeypatch.setattr(machine, "_UNASKED_NBYTES", 0)
    monkeypatch.setattr(machine, "memory_limit", lambda: 5_000)
    for rows, width in ((9, 8), (2400, 1)):
        (tmp_path / "raw").write_bytes(bytes(rows))
        compress_array(tmp_path / "raw", tmp_path / "c", ArrayGeometry(ArraySpec("uint8"), rows, "zarr"))
        assert widths[-1] == width
    assert tsds.verify(store) == []
    assert widths[-1] == 1


@settings(deadline=None)
@given(st.data())
def test_rows_and_slices_are_numpys(part: Any, data: st.DataObject) -> None:
    found, array = part
    row = data.draw(st.integers(0, 39))
    start, stop = data.draw(st.tuples(st.integers(0, 45), st.integers(0, 45)))
    rows = np.array(data.draw(st.lists(st.integers(0, 39), min_size=1, max_size=20)))
    np.testing.assert_array_equal(found[row], array[row])
    np.testing.assert_array_equal(found[start:stop], array[start:stop])
    out = np.empty((len(rows), 2, 2), np.int16)
    found.take(rows, out)
    np.testing.assert_array_equal(out, array[rows])
    assert not found[0:2].flags.writeable


def test_a_bomb_takes_no_memory() -> None:
    """A chunk that holds 1 GiB instead of 448 KiB: neither reading nor verifying unpacks it."""
    code = (
        "import resource, sys, numpy as np, tensorstore_ds as t\n"
        "path = sys.argv[1]\n"
        "column = t.open(path)['train']['image']\n"
        "column[0]\n"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "try:\n"
        "    np.asarray(column)\n"
        "except t.FormatError as error:\n"
        "    print(error.reason)\n"
        "print([p.reason for p in t.verify(path)])\n"
        "print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024)\n"
    )
    path = INVALID / "checksum--chunk-bomb.tsds"
    command = [sys.executable, "-c", code, str(path)]
    reason, found, grown = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    assert (reason, found) == ("checksum", "['checksum']")
    assert int(grown) < 100
    assert Path(path, "train/00000/image/c/0/0/0/0").stat().st_size < 40_000


def test_the_least_that_a_chunk_can_take_is_what_zstandard_reaches() -> None:
    for nbytes in (1, 24, 458_752):
        least, most = ArrayGeometry(ArraySpec("uint8", (nbytes,)), 1, "zarr").stored_nbytes
        assert least <= len(zstd.compress(bytes(nbytes), 19)) <= most
        noise = np.random.default_rng(0).bytes(nbytes)
        assert least <= len(zstd.compress(noise, 19, True)) <= most


def blocks_of_one_byte(nbytes: int) -> list[bytes]:
    """Blocks of a Zstandard frame (RFC 8878, 3.1.1.2): each says which byte it repeats, and how often."""
    sizes = [131072] * (nbytes // 131072) + [nbytes % 131072] * (nbytes % 131072 > 0)
    return [(size << 3 | 1 << 1 | (i == len(sizes) - 1)).to_bytes(3, "little") + b"x" for i, size in enumerate(sizes)]


@pytest.mark.parametrize("nbytes", [1, 255, 256, 131072, 131073, 262144, 458_752])
def test_the_least_that_a_chunk_can_take_is_a_frame_of_repeated_bytes(nbytes: int) -> None:
    descriptor = b"\x20" + nbytes.to_bytes(1) if nbytes < 256 else b"\xa0" + nbytes.to_bytes(4, "little")
    frame = b"\x28\xb5\x2f\xfd" + descriptor + b"".join(blocks_of_one_byte(nbytes))
    out = np.empty(nbytes, np.uint8)
    decompress_chunk(frame, out)
    assert out.tobytes() == b"x" * nbytes
    least, most = ArrayGeometry(ArraySpec("uint8", (nbytes,)), 1, "zarr").stored_nbytes
    assert least == len(frame) - (0 if nbytes < 256 else 3)  # as if the number had one byte
    assert most == nbytes + nbytes // 128 + 1024


def test_the_last_block_of_a_frame_may_be_empty() -> None:
    block = (5 << 3 | 1 << 1).to_bytes(3, "little") + b"x"
    frame = b"\x28\xb5\x2f\xfd\x20\x05" + block + b"\x01\0\0"
    assert frame_problem(frame, 5) is None
    out = np.empty(5, np.uint8)
    decompress_chunk(frame, out)
    assert out.tobytes() == b"xxxxx"
    assert frame_problem(frame[:-1], 5) is not None


def test_a_thread_may_let_go_of_a_part_while_another_one_fetches() -> None:
    fetched: list[Any] = []

    class Fetches:
        @property
        def is_whole(self) -> bool:
            if len(fetched) == 2:
                column._parts.pop(0, None)
            return len(fetched) == 2

        def fetch_rows(self, starts: Any, stops: Any) -> None:
            fetched.append((starts, stops))

    file: Any = Fetches()
    column = Column("rows", ArraySpec("uint8"), [2, 2], lambda _: MirroredPart(file, np.zeros(2)), is_remote=True)
    column.fetch(np.array([0, 2]), np.array([2, 4]))
    assert len(fetched) == 2


def test_a_row_fetches_no_more_than_its_own(tmp_path: Path) -> None:
    values = np.arange(10, dtype=np.uint8)
    (tmp_path / "raw").write_bytes(values.tobytes())
    geometry = ArrayGeometry(ArraySpec("uint8"), 10, "zarr", chunk_size=4)
    compress_array(tmp_path / "raw", tmp_path / "0", geometry)
    fetched: list[tuple[list[int], list[int]]] = []

    class Fetches:
        rows = 10

        def fetch_rows(self, starts: Any, stops: Any) -> None:
            fetched.append((starts.tolist(), stops.tolist()))

    file: Any = Fetches()
    found = MirroredPart(file, ZarrPart("0", geometry, lambda: (tmp_path / "0").open("rb")))
    assert found[9] == 9
    assert fetched == [([9], [10])]
    assert found[3:7].tolist() == [3, 4, 5, 6]
    assert fetched[1:] == [([3], [7])]
