"""Maps of files, which hold no descriptor."""

from __future__ import annotations

import gc
import re
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch

import tensorstore_ds as tsds
from stores import Samples, numbered, store_of
from tensorstore_ds.reading.mapping import Maps, map_array

pytestmark = pytest.mark.slow

SHARDS = 24
#: Reads all of a store in a process that may have 32 files open.
FEW_FILES = """
import resource, sys
import tensorstore_ds as tsds
resource.setrlimit(resource.RLIMIT_NOFILE, (32, 32))
split = tsds.open(sys.argv[1])["train"]
print([int(split["image"][row].mean()) for row in range(len(split))], split["label"][:].tolist())
assert all(len(column) == len(split) for column in map(split.__getitem__, split.fields))
assert tsds.verify(sys.argv[1], threads=2) == []
"""


@pytest.mark.parametrize("offset", [0, 128, 4096, 4096 + 24])
def test_an_array_has_the_bytes_of_its_file(tmp_path: Path, offset: int) -> None:
    expected = np.random.default_rng(0).integers(-(2**40), 2**40, (50, 3, 7))
    path = tmp_path / "f"
    path.write_bytes(bytes(offset) + expected.tobytes())
    with open(path, "rb") as file:
        found = map_array(file, np.int64, expected.shape, offset)
        with pytest.raises(ValueError, match="fewer"):
            map_array(file, np.int64, (51, 3, 7), offset)
    assert np.array_equal(found, expected)
    with pytest.raises(ValueError, match="WRITEABLE"):
        found.flags.writeable = True


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
def test_a_map_keeps_no_descriptor_and_ends_with_its_array(tmp_path: Path) -> None:
    path = tmp_path / "mapped"
    path.write_bytes(bytes(100_000))
    files, maps = Path("/proc/self/fd"), Path("/proc/self/maps")
    before = len(list(files.iterdir()))
    with open(path, "rb") as file:
        array = map_array(file, np.uint8, (100_000,))
    view = array[10:20]
    assert len(list(files.iterdir())) == before
    del array
    assert str(path) in maps.read_text()
    with open(path, "r+b") as file:  # it is shared with whoever writes the file
        file.seek(10)
        file.write(b"\x07")
    assert view[0] == 7
    del view
    gc.collect()
    assert str(path) not in maps.read_text()


@pytest.mark.skipif(sys.platform not in ("linux", "darwin"), reason="limits open files")
def test_a_store_may_have_more_arrays_than_files_can_be_open(tmp_path: Path) -> None:
    store = numbered(tmp_path / "s.tsds", SHARDS, (4, 4, 3), shard_nbytes=1)
    assert len(list((store.path / "train").glob("0*"))) == SHARDS
    words = [sys.executable, "-c", FEW_FILES, store.path]
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=110)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.split("] [") == [f"[{', '.join(map(str, range(SHARDS)))}", f"{', '.join(['0', '1'] * 12)}]\n"]


# --- few maps -------------------------------------------------------------------------------------------------------

#: Reads a store in a process that may make few maps more: the others are taken by maps of no file.
FEW_MAPS = """
import mmap, sys
import numpy as np
import tensorstore_ds as tsds
from pathlib import Path
split = tsds.open(sys.argv[1])["train"]
split[0]
limit = int(Path("/proc/sys/vm/max_map_count").read_text())
taken = []
for i in range(limit - len(Path("/proc/self/maps").read_bytes().splitlines()) - 30):
    taken.append(mmap.mmap(-1, 4096, prot=(mmap.PROT_READ, mmap.PROT_READ | mmap.PROT_WRITE)[i % 2]))
for _ in range(2):
    assert [int(split["image"][row].mean()) for row in range(len(split))] == list(range(len(split)))
    assert [split.key(row) for row in range(len(split))] == [f"train/{row:05d}" for row in range(len(split))]
kept = []
try:
    for row in range(len(split)):
        kept.append(split["image"][row])
        kept.append(split["size"][row])
except tsds.errors.ResourceError as error:
    print(error)
assert all((image == i).all() for i, image in enumerate(kept[::2]))
"""
#: Opens one more file than a process may have open.
NO_FILES = """
import os, resource, sys
import tensorstore_ds as tsds
split = tsds.open(sys.argv[1])["train"]
resource.setrlimit(resource.RLIMIT_NOFILE, (32, 32))
files = []
try:
    while True:
        files.append(os.open("/dev/null", os.O_RDONLY))
except OSError:
    pass
for path in sys.argv[1:]:
    try:
        split["image"][0] if path == sys.argv[1] else tsds.open(path)
    except tsds.errors.ResourceError as error:
        print(error)
"""


@pytest.fixture
def few_maps(monkeypatch: pytest.MonkeyPatch) -> Maps:
    """A limit that this process has reached already, so that maps are let go again and again."""
    maps = Maps(100)
    monkeypatch.setattr("tensorstore_ds.reading.mapping.MAPS", maps)
    monkeypatch.setattr("tensorstore_ds.reading.columns.MAPS", maps)
    return maps


def sharded(path: Path, rows: int = 2 * SHARDS) -> tsds.Store:
    """A store of one shard for each sample, whose images have the value of the row."""
    return numbered(path, rows, (4, 4, 3), classes=3, shard_nbytes=1)


def maps_of(path: Path) -> int:
    """Number of this process's maps of files in a folder, or of a file."""
    lines = Path("/proc/self/maps").read_text().splitlines()
    return sum(f"{path}/" in line or line.endswith(str(path)) for line in lines)


on_linux = pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
expects_a_note = pytest.mark.filterwarnings("ignore:.*vm.max_map_count:UserWarning")


@on_linux
@expects_a_note
def test_epochs_are_right_while_maps_are_let_go(tmp_path: Path, few_maps: Maps) -> None:
    store = sharded(tmp_path / "s.tsds", 96)
    split = store["train"]
    kept = [split["image"][row] for row in (0, 50, 95)]
    loader = tsds.DataLoader(
        tsds.StoreDataset(store, "train", fields=["image", "label", "key"]), 32, shuffle=True, num_threads=4
    )
    for epoch in range(4):
        loader.set_epoch(epoch)
        loader.last_epoch = epoch  # so that no thread reads when the maps are counted
        seen = []
        for batch in loader:
            rows = batch["image"][:, 0, 0, 0].long()
            assert (batch["image"] == rows[:, None, None, None]).all()
            assert torch.equal(batch["label"], rows % 3)
            assert batch["key"] == [f"train/{row:05d}" for row in rows.tolist()]
            seen += rows.tolist()
        assert sorted(seen) == list(range(96))
        assert maps_of(store.path) < 96  # of 96 shards with 5 arrays
    assert [(view == row).all() for view, row in zip(kept, (0, 50, 95), strict=True)] == [True] * 3
    assert np.array_equal(split["image"].take(np.arange(95, -1, -1))[:, 0, 0, 0], np.arange(95, -1, -1))
    assert np.array_equal(np.asarray(split["label"]), np.arange(96) % 3)


@on_linux
def test_threads_may_read_while_others_let_go(tmp_path: Path, few_maps: Maps) -> None:
    split = sharded(tmp_path / "s.tsds")["train"]

    def read(seed: int) -> bool:
        rows = np.random.default_rng(seed).integers(0, len(split), (60, 3))
        return all(np.array_equal(split["image"].take(some)[:, 1, 1, 1], some) for some in rows)

    with ThreadPoolExecutor(4) as threads:
        done = [threads.submit(read, seed) for seed in range(8)]
        while not all(each.done() for each in done):
            few_maps.let_go()
    assert all(each.result() for each in done)


@on_linux
@expects_a_note
def test_worker_processes_let_go_of_maps(tmp_path: Path, few_maps: Maps) -> None:
    store = sharded(tmp_path / "s.tsds")
    dataset = tsds.StoreDataset(store, "train", fields=["image", "label"])
    assert len(dataset[3]["image"]) == 3
    loader = torch.utils.data.DataLoader(dataset, 8, shuffle=True, num_workers=2, multiprocessing_context="fork")
    rows = torch.cat([batch["image"][:, 0, 0, 0] for batch in loader]).tolist()
    assert sorted(rows) == list(range(2 * SHARDS))


@on_linux
def test_maps_in_use_stay_and_others_go(tmp_path: Path) -> None:
    store = sharded(tmp_path / "s.tsds")
    column = store["train"].column("image")
    assert [int(column[row].mean()) for row in range(len(column))] == list(range(len(column)))
    column._let_go()
    used = column[5]
    assert maps_of(store.path) == len(column)  # not used since then, but kept until the next call
    column._let_go()
    assert maps_of(store.path) == 1
    column._let_go()
    column._let_go()
    assert maps_of(store.path) == 1
    assert (used == 5).all()
    del used
    gc.collect()
    assert maps_of(store.path) == 0


@on_linux
def test_a_packed_store_is_one_map(tmp_path: Path) -> None:
    sharded(tmp_path / "s.tsds")
    packed = tmp_path / "s.tsds.zip"
    tsds.pack(tmp_path / "s.tsds", packed)
    split = tsds.open(packed)["train"]
    assert [int(split["image"][row].mean()) for row in range(len(split))] == list(range(len(split)))
    assert [split.key(row) for row in range(len(split))] == [f"train/{row:05d}" for row in range(len(split))]
    assert maps_of(packed) == 1


@on_linux
def test_at_the_limit_of_maps_unused_ones_go_and_an_error_says_what_to_do(tmp_path: Path) -> None:
    store = sharded(tmp_path / "s.tsds")
    words = [sys.executable, "-c", FEW_MAPS, store.path]
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=110)
    assert (done.returncode, done.stderr) == (0, "")
    (line,) = done.stdout.splitlines()
    assert "vm.max_map_count" in line and line.startswith("this process: expected to map one more file of ")


@pytest.mark.skipif(sys.platform not in ("linux", "darwin"), reason="limits open files")
def test_too_few_descriptors_are_no_damage(tmp_path: Path) -> None:
    store = sharded(tmp_path / "s.tsds", 2)
    packed = tmp_path / "s.tsds.zip"
    tsds.pack(store.path, packed)
    words = [sys.executable, "-c", NO_FILES, store.path, packed]
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=110)
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert [line.partition(":")[0] for line in lines] == ["train/00000/zarr.json", str(packed)]
    assert all("found that the system has no more (Too many open files). Free some, or raise" in line for line in lines)


def test_reading_some_rows_opens_only_their_shards(tmp_path: Path) -> None:
    split = sharded(tmp_path / "s.tsds")["train"]
    shutil.rmtree(tmp_path / "s.tsds" / "train" / "00007")
    assert [split.key(row) for row in (3, 5, 47)] == ["train/00003", "train/00005", "train/00047"]
    assert split.table("key").take([8, 6])["bytes"].tobytes() == b"train/00008train/00006"
    with pytest.raises(tsds.FormatError, match="train/00007/"):
        split.key(7)
    with pytest.raises(tsds.FormatError, match="train/00007/"):
        _ = split.table("key").offsets


def test_a_note_tells_where_a_split_has_more_files_than_can_be_mapped(
    tmp_path: Path, few_maps: Maps, monkeypatch: pytest.MonkeyPatch
) -> None:
    samples = [{"image": np.full((4, 4, 3), i, np.uint8), "label": 0} for i in range(16)]
    options = tsds.ConvertOptions(workers=0, shard_nbytes=1)
    expected = "train has 80 files of arrays, and this system lets a process map 100 (vm.max_map_count). "
    planned = tsds.estimate(Samples(samples, ["a"]), options)
    assert any(note.startswith(expected) and "`shard_nbytes`" in note for note in planned.notes)
    store = store_of(tmp_path / "many.tsds", samples, ["a"], shard_nbytes=1)
    with pytest.warns(UserWarning, match=re.escape(expected)):
        tsds.StoreDataset(store, "train", fields=list(store["train"].fields))
    tsds.StoreDataset(store, "train")  # image and label: 32 files
    tsds.pack(store.path, tmp_path / "many.tsds.zip")
    tsds.StoreDataset(tmp_path / "many.tsds.zip", "train", fields=list(store["train"].fields))
