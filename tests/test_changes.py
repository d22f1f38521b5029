"""What every operation that changes a store in place promises: one contract for all of them."""

from __future__ import annotations

import os
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import tensorstore_ds as tsds
from small_stores import class_folders
from stores import files_of, no_room
from tensorstore_ds.annex.editing import in_place
from tensorstore_ds.annex.editing.rows import ShardRows
from tensorstore_ds.durable import lock
from tensorstore_ds.errors import ConversionError, FormatError, OptionError, TsdsError
from tensorstore_ds.format.manifest import shard_path

#: Each operation with the store and its changed source.
CHANGES: dict[str, Callable[[Any, Path], Any]] = {
    "append": lambda store, source: tsds.append(store, source, update=True, workers=0, on_error="skip"),
    "update": lambda store, source: tsds.update(store, source, workers=0, on_error="skip"),
    "erase": lambda store, _: tsds.erase(store, rows={"train": [1]}),
    "add": lambda store, _: tsds.editing.add_fields(store, {"x": np.zeros(6)}),
    "drop": lambda store, _: tsds.editing.drop_fields(store, ["label"]),
}
READING = {"append": "append", "update": "update", "add": "add"}  # readers go on; the others remove what they read
WHAT = {name: f"{name} the {'fields' if name in ('add', 'drop') else 'samples'}" for name in CHANGES}


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return class_folders(tmp_path / "photos", "cat", "dog")


@pytest.fixture
def store(source: Path, tmp_path: Path) -> Path:
    """Two shards of three samples each, and a bad one. Then one image changes, one is new, and one more is bad."""
    (source / "cat/bad.png").write_bytes(b"none")
    tsds.convert(source, tmp_path / "s.tsds", workers=0, shard_nbytes=1700, on_error="skip")
    assert [shard.rows for shard in tsds.open(tmp_path / "s.tsds").manifest.splits["train"].shards] == [3, 3]
    for name in ("cat/1.png", "dog/9.png"):
        Image.fromarray(np.full((12, 10, 3), 9, np.uint8)).save(source / name)
    (source / "dog/worse.png").write_bytes(b"none")
    return tmp_path / "s.tsds"


def values(store: tsds.Store) -> str:
    return repr({split: [store[split][row] for row in range(len(store[split]))] for split in store})


@pytest.mark.parametrize("name", CHANGES)
def test_the_step_is_recorded_and_what_was_left_is_removed(store: Path, source: Path, name: str) -> None:
    """Shards and splits that are not listed, as an interrupted call leaves them."""
    shutil.copytree(store / "train/00000", store / "train/00099")
    shutil.copytree(store / "train/00000", store / "train/00098.partial")
    shutil.copytree(store / "train", store / "val")
    (store / "zarr.json.partial").write_text("{")
    before = tsds.open(store)
    done = CHANGES[name](store, source)
    after = tsds.open(store)
    step = after.manifest.provenance["history"][-1]
    assert (step["command"], step["before"]) == (name, [before.sha256]) and after.sha256 != before.sha256
    assert (done.rows, done.nbytes) == ({"train": len(after["train"])}, after.nbytes)
    assert tsds.verify(store) == []
    assert sorted(os.listdir(store)) == ["skipped.jsonl", "train", "zarr.json"] and "00098.partial" not in os.listdir(
        store / "train"
    )
    assert sorted(os.listdir(store.parent)) == ["photos", "s.tsds"]


@pytest.mark.parametrize("name", READING)
def test_readers_see_what_they_opened(store: Path, source: Path, name: str) -> None:
    """Also files that they had not opened yet, and stores and data sets that were pickled before."""
    lazy, pickled = tsds.open(store), pickle.dumps(tsds.open(store))
    loader = tsds.DataLoader(tsds.StoreDataset(store, "train", fields=("image", "label")), 4, num_threads=1)
    expected = values(tsds.open(store))
    batches = [batch["image"].sum().item() for batch in loader]
    CHANGES[name](store, source)
    assert values(tsds.open(store)) != expected
    assert values(lazy) == values(pickle.loads(pickled)) == expected  # noqa: S301  # of this process
    assert [batch["image"].sum().item() for batch in loader] == batches


@pytest.mark.parametrize("name", [*CHANGES, "annotate"])
def test_one_process_at_a_time(store: Path, source: Path, name: str) -> None:
    call = {**CHANGES, "annotate": lambda path, _: tsds.annotate(path, citation="me")}[name]
    before, descriptor = files_of(store), os.open(store, os.O_RDONLY)
    try:
        assert lock(descriptor)
        with pytest.raises(ConversionError, match="another process changes this store now"):
            call(store, source)
    finally:
        os.close(descriptor)
    assert files_of(store) == before
    call(store, source)


@pytest.mark.parametrize("name", CHANGES)
def test_a_full_disk_leaves_the_store_as_it_was(
    store: Path, source: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = files_of(store)
    for place, function in ((ShardRows, "write"), (in_place, "write_file"), (in_place, "change_root")):
        with (
            monkeypatch.context() as patch,
            pytest.raises(ConversionError, match=r"the disk is full\. Nothing was changed"),
        ):
            patch.setattr(place, function, no_room)
            CHANGES[name](store, source)
        assert files_of(store) == before
    CHANGES[name](store, source)
    assert tsds.verify(store) == []


@pytest.mark.parametrize("name", CHANGES)
def test_after_the_change_nobody_is_told_that_nothing_was_changed(
    store: Path, source: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, run = tsds.open(store).sha256, in_place.InPlace.run

    def run_and_fail(*given: Any) -> None:
        run(*given)
        raise MemoryError

    monkeypatch.setattr(in_place.InPlace, "run", run_and_fail)
    with pytest.raises(
        ConversionError, match=r"there is not enough memory\. Use fewer workers, or a machine with more"
    ):
        CHANGES[name](store, source)
    assert tsds.open(store).sha256 != before


@pytest.mark.parametrize("name", ["append", "update", "erase"])
def test_a_damaged_shard_gets_no_new_checksums(store: Path, source: Path, name: str) -> None:
    """Also where the source lacks the damaged sample."""
    (data,) = (each for each in (store / shard_path("train", 0) / "image/c").rglob("*") if each.is_file())
    whole = data.read_bytes()
    data.write_bytes(bytes([whole[0], whole[1] ^ 1]) + whole[2:])
    lost, before = (source / "cat/0.png").read_bytes(), files_of(store)
    (source / "cat/0.png").unlink()
    for _ in range(2):
        with pytest.raises(FormatError, match="Nothing was changed: a damaged shard would get new checksums") as caught:
            CHANGES[name](store, source)
        assert caught.value.reason == "checksum" and files_of(store) == before
        (source / "cat/0.png").write_bytes(lost)  # the stored value differs from the source
    data.write_bytes(whole)
    CHANGES[name](store, source)
    assert tsds.verify(store) == []


@pytest.mark.parametrize("name", CHANGES)
def test_places_that_cannot_be_changed(store: Path, source: Path, tmp_path: Path, name: str) -> None:
    tsds.pack(store, tmp_path / "p.tsds.zip")
    url = f"expected a store on this disk, found a URL. Pull it, {WHAT[name]}, and push it again."
    packed = f"found a packed one. Unpack it with tsds unpack, {WHAT[name]}, and pack it again."
    cases: list[tuple[Any, type[TsdsError], str]] = [
        (tmp_path / "p.tsds.zip", OptionError, packed),
        (tmp_path / "none.tsds", FormatError, "there is no such store"),
        ("https://example.org/s.tsds", OptionError, url),
    ]
    for place, kind, message in cases:
        with pytest.raises(kind) as caught:
            CHANGES[name](place, source)
        assert message in str(caught.value) and "\n" not in str(caught.value)
