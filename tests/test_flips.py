"""A bit flipped anywhere in a store is found.

Three small stores hold every kind of file. `verify` is asked after a flip of one bit, drawn at random, in each byte of
all their metadata files, 9,866 in all, and in 500 bytes of data of each: it finds every one. After each flip in the
root's ``zarr.json``, `open` raises FormatError. The doors of tests/fuzz forge digests as well.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import tensorstore_ds as tsds
from small_stores import (
    VALID,
    Shard,
    Store,
    encoded_image,
    image_field,
    image_table,
    write_plain,
)

pytestmark = pytest.mark.slow

JPEG = np.array(tsds.open(VALID / "encoded-jpeg.tsds")["train"]["image"]["bytes"]).tobytes()  # three, as if one
DATA_FLIPS = 500
SKIPPED = {"skipped.jsonl": b'{"where": "b.png", "reason": "not-an-image", "message": "expected an image."}\n'}
#: Bytes of metadata of each store: one is flipped at a time. Their sum is what the documents say.
METADATA_NBYTES = {"raw-memmap": 2445, "raw-zarr": 2557, "jpeg-memmap": 4864}


def store_of(name: str) -> Store:
    encoding, layout = name.split("-")
    if encoding == "raw":
        images = np.random.default_rng(0).integers(0, 256, (3, 8, 6, 1), np.uint8)
        return Store({"image": image_field(images)}, {"train": [Shard(3, {"image": images})]}, layout, top=SKIPPED)
    shard = Shard(1, image_table([JPEG], [(8, 16, 1)]))
    return Store({"image": encoded_image("jpeg", 1024)}, {"train": [shard]}, layout, top=SKIPPED)


@pytest.fixture(scope="module", params=METADATA_NBYTES)
def store(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = Path(tmp_path_factory.mktemp("flips"), f"{request.param}.tsds")
    write_plain(path, store_of(request.param))
    assert tsds.verify(path) == []
    return path


def files_of(store: Path, *, metadata: bool) -> list[Path]:
    return sorted(p for p in store.rglob("*") if p.is_file() and (p.suffix != "") == metadata)


def flips(path: Path, positions: Iterator[int] | range, seed: int) -> Iterator[bytes]:
    """The file's bytes with a bit of one byte flipped, for each position; the file is as it was afterwards."""
    data, draw = path.read_bytes(), random.Random(seed)
    try:
        for position in positions:
            yield data[:position] + bytes([data[position] ^ 1 << draw.randrange(8)]) + data[position + 1 :]
    finally:
        path.write_bytes(data)


@pytest.mark.drawn(1)
def test_verify_finds_a_flip_in_every_byte_of_metadata(store: Path) -> None:
    tried, missed = 0, []
    for path in files_of(store, metadata=True):
        for flipped in flips(path, range(path.stat().st_size), seed=1):
            path.write_bytes(flipped)
            tried += 1
            if not tsds.verify(store, threads=1):
                missed.append((path, tried))
    assert missed == []
    assert tried == METADATA_NBYTES[store.stem]


def test_verify_finds_flips_in_data(store: Path) -> None:
    paths, draw, missed = files_of(store, metadata=False), random.Random(2), []
    for i in range(DATA_FLIPS):
        path = draw.choice(paths)
        for flipped in flips(path, range(at := draw.randrange(path.stat().st_size), at + 1), seed=i):
            path.write_bytes(flipped)
            if [(p.where, p.reason) for p in tsds.verify(store, threads=1)] != [
                (str(path.relative_to(store)), "checksum")
            ]:
                missed.append((path, i))
    assert missed == []


def test_open_refuses_every_flip_in_the_root(store: Path) -> None:
    path = store / "zarr.json"
    for flipped in flips(path, range(path.stat().st_size), seed=3):
        path.write_bytes(flipped)
        with pytest.raises(tsds.FormatError):
            tsds.open(store)
