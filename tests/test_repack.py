"""From one layout to the other and back, exactly."""

import json

import numpy as np
import pytest

import tensorstore_ds as tsds
from small_stores import VALID
from stores import detections, files_of, store_of


@pytest.fixture
def store(tmp_path):
    samples = detections(9)
    samples[1]["boxes"] = samples[1]["boxes"] * 0
    options = {"shard_nbytes": 1500, "on_error": "skip", "license": "CC0-1.0", "citation": "someone 2026"}
    return store_of(tmp_path / "s.tsds", samples, ["a", "b"], **options)


def test_there_and_back_is_the_same_to_the_byte(store, tmp_path):
    there = tsds.repack(store.path, tmp_path / "z.tsds", layout="zarr")
    assert tsds.verify(there.path) == []
    compressed = tsds.open(there.path)
    assert compressed.layout == "zarr"
    for name in ("image", "size"):
        np.testing.assert_array_equal(np.asarray(compressed["train"][name]), np.asarray(store["train"][name]))
    back = tsds.repack(there.path, tmp_path / "m.tsds", layout="memmap")
    ours, theirs = files_of(back.path), files_of(store.path)
    manifests = [json.loads(each.pop("zarr.json"))["attributes"]["tsds"] for each in (ours, theirs)]
    history = manifests[0]["provenance"].pop("history")
    assert ours == theirs and manifests[0] == manifests[1]
    assert [(step["command"], step["sha256"], step["options"]) for step in history] == [
        ("repack", store.sha256, {"layout": "zarr"}),
        ("repack", compressed.sha256, {"layout": "memmap"}),
    ]
    assert not list(tmp_path.glob("*.partial"))


def test_a_conversion_straight_to_zarr_is_the_repacked_one(store, tmp_path):
    samples = detections(9)
    direct = store_of(tmp_path / "d.tsds", samples, ["a", "b"], layout="zarr", shard_nbytes=1500)
    store_of(tmp_path / "m.tsds", samples, ["a", "b"], shard_nbytes=1500)
    tsds.repack(tmp_path / "m.tsds", tmp_path / "z.tsds", layout="zarr")
    ours, theirs = files_of(direct.path), files_of(tmp_path / "z.tsds")
    assert ours.keys() == theirs.keys()
    assert {k for k in ours if ours[k] != theirs[k]} == {"zarr.json"}  # when and how it was made


def test_a_damaged_store_is_not_given_fresh_checksums(store, tmp_path):
    file = store.path / "train/00000/image/c/0/0/0/0"
    data = bytearray(file.read_bytes())
    data[5] ^= 1
    file.write_bytes(data)
    with pytest.raises(tsds.FormatError, match=r"image/c/0/0/0/0: expected SHA-256.*not repacked"):
        tsds.repack(store.path, tmp_path / "z.tsds", layout="zarr")
    assert not (tmp_path / "z.tsds").exists()


def test_what_repack_refuses(store, tmp_path):
    with pytest.raises(tsds.OptionError, match="has the layout memmap already"):
        tsds.repack(store.path, tmp_path / "z.tsds", layout="memmap")
    with pytest.raises(tsds.errors.StoreExistsError):
        tsds.repack(store.path, store.path, layout="zarr")


def test_a_damaged_chunk_is_a_format_error_when_it_is_read(store, tmp_path):
    path = tsds.repack(store.path, tmp_path / "z.tsds", layout="zarr").path
    file = path / "train/00000/image/c/0/0/0/0"
    data = bytearray(file.read_bytes())
    data[0:8] = b"damaged!"
    file.write_bytes(data)
    column = tsds.open(path)["train"]["image"]
    for read in (lambda: column[0], lambda: column[0:2], lambda: column.take([0])):
        with pytest.raises(tsds.FormatError) as caught:
            read()
        assert caught.value.reason == "checksum"


def test_a_store_of_other_chunks_can_be_changed_after_it(tmp_path):
    path = tsds.repack(VALID / "chunk-size.tsds", tmp_path / "z.tsds", layout="zarr").path
    assert tsds.editing.add_fields(path, {"x": np.zeros(7)}).rows == {"train": 7}
    assert tsds.verify(path) == []
