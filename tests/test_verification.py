"""Chunks of data files: bytes that fill up the last one, and the progress over all of them."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import google_crc32c
import numpy as np
import pytest

from small_stores import VALID
from tensorstore_ds.format.arrays import ArrayGeometry
from tensorstore_ds.format.schema import ArraySpec
from tensorstore_ds.reading.store_files import StoreFiles
from tensorstore_ds.reading.verification import _check_chunks, _chunk_problem


def crc(data: bytes) -> bytes:
    return int(google_crc32c.value(data)).to_bytes(4, "little")


@pytest.mark.parametrize(("rows", "place"), [(5, 5), (10, 10), (10, 11)])
@pytest.mark.parametrize("value", [0, 1])
def test_every_byte_that_fills_up_the_last_chunk_is_zero(tmp_path: Path, rows: int, place: int, value: int) -> None:
    size = {5: 2, 10: 4}[rows]  # three chunks of 2 bytes, or of 4: one byte more than rows, or two
    data = bytearray(b"x" * rows + bytes(3 * size - rows))
    data[place] = value
    chunks = [bytes(data[i : i + size]) for i in range(0, 3 * size, size)]
    index = np.array([(i * size, size) for i in range(3)], "<u8").tobytes()
    (tmp_path / "0").write_bytes(b"".join((data, *map(crc, chunks), index, crc(index))))
    geometry = ArrayGeometry(ArraySpec("uint8"), rows, "memmap", chunk_size=size)
    assert (geometry.chunks, geometry.chunk_nbytes) == (3, size)
    problem = _chunk_problem(SimpleNamespace(open=lambda name: (tmp_path / name).open("rb")), "0", geometry)
    assert (problem is not None) == (value != 0)
    if problem is not None:
        assert (problem.where, problem.reason) == ("0", "shard-index")


def test_progress_rises_to_all_bytes() -> None:
    seen: list[tuple[int, int]] = []
    files = StoreFiles(VALID / "shards.tsds")
    assert _check_chunks(files, 1, lambda done, total: seen.append((done, total))) == []
    total = sum(
        array.rows * array.spec.row_nbytes
        for split in files.manifest.splits.values()
        for shard in split.shards
        for array in files.manifest.arrays(shard).values()
    )
    steps = np.diff([0, *(done for done, _ in seen)])
    assert (steps > 0).all()
    assert seen[-1] == (total, total)
