"""Stores larger than memory: what is read of them, and that batches are the same."""

from __future__ import annotations

import gc
import mmap
import pickle
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st

import tensorstore_ds as tsds
from cold_stores import linux, make_cold
from stores import numbered, store_of
from tensorstore_ds.loading.loader import DataLoader
from tensorstore_ds.page_cache import residency, shortage
from tensorstore_ds.page_cache.residency import data_files
from tensorstore_ds.page_cache.system_calls import mincore_nbytes
from tensorstore_ds.reading import mapping
from tensorstore_ds.reading.mapping import ask
from waiting import wait_for

pytestmark = [
    pytest.mark.slow,
    linux,
    pytest.mark.filterwarnings("ignore:.*expected samples that fit into memory:UserWarning"),
]
MIB = 1024**2
ROWS, ROW = 60, 256 * 256 * 3


@pytest.fixture(scope="module")
def _store(disk: Path) -> tsds.Store:
    return numbered(disk / "rows.tsds", ROWS, (256, 256, 3))


@pytest.fixture
def store(_store: tsds.Store) -> tsds.Store:
    """A split of 11.8 MB, of which nothing is in memory."""
    return make_cold(tsds.open(_store.path))


@pytest.fixture
def memory(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    def limit(nbytes: int) -> None:
        monkeypatch.setattr(residency, "memory_limits", lambda: {"machine": 10**12, "/group": nbytes})

    return limit


def is_random(store: Path, field: str) -> set[bool]:
    """For each map of a field's files in this process, whether the system was advised that it is read randomly."""
    found, inside = set(), False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if "-" in line.split(" ")[0]:
            inside = f"{store}/train" in line and f"/{field}/" in line
        elif inside and line.startswith("VmFlags:"):
            found.add("rr" in line.split())
    return found


def resident(store: tsds.Store, nbytes: int = ROW) -> list[int]:
    """Rows of the images that are in memory, as a whole."""
    (file,) = data_files(store, "train", "image")
    with (store.path / file.path).open("rb") as opened:
        pages = [mincore_nbytes(opened.fileno(), nbytes, row * nbytes) for row in range(file.nbytes // nbytes)]
    return [row for row, found in enumerate(pages) if found >= nbytes]


# --- advice -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fits", [True, False])
def test_maps_are_advised_where_samples_do_not_fit(store: tsds.Store, memory: Any, fits: bool) -> None:
    memory(12 * MIB if fits else 8 * MIB)
    loader = DataLoader(tsds.StoreDataset(store, fields=["image", "label"]), 4, shuffle=True)
    batches = iter(loader)
    next(batches)
    assert is_random(store.path, "image") == {not fits}
    assert is_random(store.path, "label") == {False}  # small: it soon is in memory as a whole


def test_a_store_in_memory_fits(_store: tsds.Store, memory: Any) -> None:
    gc.collect()
    store = tsds.open(_store.path)
    tsds.warm(store)
    memory(8 * MIB)
    batches = iter(DataLoader(tsds.StoreDataset(store), 4, shuffle=True))
    next(batches)
    assert is_random(store.path, "image") == {False}


def test_in_other_processes(store: tsds.Store, memory: Any) -> None:
    memory(8 * MIB)
    dataset = tsds.StoreDataset(store, fields=["image"])
    batches = iter(DataLoader(dataset, 10, shuffle=True))
    next(batches)
    copied = pickle.loads(pickle.dumps(dataset))  # noqa: S301  as it travels to a worker process
    del dataset, batches
    assert wait_for(lambda: gc.collect() >= 0 and not is_random(store.path, "image"))  # a thread may be at a batch
    copied.gather([0])
    assert is_random(store.path, "image") == {True}


@pytest.mark.drawn(2)
@pytest.mark.parametrize(
    ("way", "rows", "reads_around", "expected"),
    [
        ("data set", range(20), MIB, False),  # neighbors
        ("data set", range(0, 60, 3), MIB, True),  # all that lies between is read as well
        ("data set", range(0, 60, 3), 1, False),
        ("sampler", range(20), MIB, False),
        ("sampler", range(50), MIB, True),
    ],
)
def test_a_subset_counts_with_what_is_read_around_it(
    store: tsds.Store,
    memory: Any,
    monkeypatch: pytest.MonkeyPatch,
    rows: range,
    reads_around: int,
    expected: bool,
    way: str,
) -> None:
    memory(8 * MIB)
    monkeypatch.setattr(shortage, "read_ahead_nbytes", lambda path: reads_around)
    dataset = tsds.StoreDataset(store)
    if way == "sampler":
        loader = DataLoader(dataset, 4, sampler=tsds.loading.SubsetSampler(rows))
    else:
        loader = DataLoader(dataset.subset(rows), 4, shuffle=True)
    batches = iter(loader)
    next(batches)
    assert is_random(store.path, "image") == {expected}


def test_the_disk_tells_its_read_ahead(tmp_path: Path) -> None:
    nbytes = shortage.read_ahead_nbytes(tmp_path)
    assert nbytes % 1024 == 0
    assert 0 <= nbytes <= 2**30


# --- what is asked for ------------------------------------------------------------------------------------------

ORDERS: dict[str, Callable[[Any], dict[str, Any]]] = {
    "sequential": lambda _: {},
    "shuffle": lambda _: {"shuffle": True},
    "weighted": lambda n: {"sampler": tsds.WeightedSampler(np.arange(1.0, len(n) + 1), replacement=False)},
    "blocks": lambda n: {"sampler": tsds.BlockShuffleSampler(n, block_rows=2, window_blocks=2)},
    "given": lambda _: {"sampler": [41, 3, 30, 7, 19, 55, 12, 26, 47, 1, 36, 22, 9, 58]},
    "buckets": lambda n: {"batch_sampler": tsds.SizeBucketSampler(n, batch_size=1)},
    "torch": lambda n: {"shuffle": True, "generator": torch.Generator().manual_seed(3)},
}


def rows_of(dataset: tsds.StoreDataset, options: dict[str, Any]) -> list[int]:
    """Rows in the order of a loader with these options."""
    rows: list[int] = []
    list(DataLoader(dataset, **options, batch_transform=lambda _batch, taken, _epoch: rows.extend(taken.tolist())))
    return rows


def options_of(order: str, dataset: tsds.StoreDataset) -> dict[str, Any]:
    options = ORDERS[order](dataset)
    return options if "batch_sampler" in options else {"batch_size": 1, **options}


@pytest.mark.drawn(4)
@pytest.mark.parametrize(("order", "workers"), [*((order, 0) for order in ORDERS), ("shuffle", 1), ("buckets", 1)])
def test_rows_of_coming_batches_are_read(store: tsds.Store, memory: Any, order: str, workers: int) -> None:
    labels = tsds.StoreDataset(store, fields=["label"])
    rows = rows_of(labels, options_of(order, labels))
    memory(10 * MIB)
    # A batch with a transform is a task of its own, and one of them is under way.
    dataset = tsds.StoreDataset(store, fields=["image"], transform=dict)
    processes = {"num_workers": workers} if workers else {"num_threads": 1}
    loader = DataLoader(dataset, prefetch_factor=1, **processes, **options_of(order, dataset))
    batches = iter(loader)
    next(batches)
    assert wait_for(lambda: set(rows[:6]) <= set(resident(store)))
    assert set(resident(store)) <= set(rows[:20])  # none beside them
    assert sum(1 for _ in batches) == len(rows) - 1


def test_rows_of_files_and_of_chunks_are_read(disk_path: Path) -> None:
    """Files of images through their offsets; chunks of a compressed store; and pixels of images of several sizes."""
    noise = np.random.default_rng(0).integers(0, 256, (40, 160, 160, 3), np.uint8)
    large = np.tile(noise[:12], (1, 3, 3, 1))  # a chunk of a compressed store has about 1 MiB
    several = [{"image": image[: 120 + i], "label": 0} for i, image in enumerate(noise)]
    for options, samples in (
        ({"encoding": "jpeg"}, [{"image": image, "label": 0} for image in noise]),
        ({"layout": "zarr", "encoding": "raw"}, [{"image": image, "label": 0} for image in large]),
        ({"encoding": "raw"}, several),
    ):
        path = disk_path / "_".join(options.values())
        store = make_cold(tsds.open(store_of(path, samples, ["a"], **options).path))
        dataset = tsds.StoreDataset(store, fields=["image"])
        chosen = [len(dataset) - 1, 3]
        asked = dataset._will_need(chosen, every=True)
        least = min(asked.nbytes, asked.used)  # chunks are smaller than their rows, and arrays than pages
        assert asked.used >= store["train"]["image"].nbytes // len(dataset)
        assert wait_for(lambda store=store, least=least: resident_nbytes(store) >= least)
        assert resident_nbytes(store) <= asked.nbytes + MIB // 4  # and small arrays, which are read as usual
        for row, image in zip(chosen, dataset.gather(chosen).columns["image"], strict=True):
            if "jpeg" not in options.values():
                assert np.array_equal(image.permute(1, 2, 0), samples[row]["image"])


def resident_nbytes(store: tsds.Store) -> int:
    return tsds.residency(store, fields="image")["train/image"].resident or 0


def test_of_a_mixture(store: tsds.Store, memory: Any, disk_path: Path) -> None:
    other = make_cold(numbered(disk_path / "other.tsds", ROWS, (256, 256, 3)))
    memory(20 * MIB)  # each of them fits alone
    mixed = tsds.MixedDataset([tsds.StoreDataset(store), tsds.StoreDataset(other)], fields=["image"])
    rows: list[int] = []
    loader = DataLoader(
        mixed, 4, shuffle=True, num_threads=1, batch_transform=lambda _batch, taken, _epoch: rows.extend(taken.tolist())
    )
    batches = iter(loader)
    next(batches)
    assert is_random(store.path, "image") == is_random(other.path, "image") == {True}
    assert resident(store)
    assert resident(other)
    list(batches)
    assert sorted(rows) == list(range(2 * ROWS))


def test_of_other_loaders(store: tsds.Store, memory: Any) -> None:
    memory(8 * MIB)
    dataset = tsds.StoreDataset(store, fields=["image"])
    rows = [50, 2, 31, 17]
    batches = iter(torch.utils.data.DataLoader(dataset, batch_size=2, sampler=rows))
    next(batches)
    assert is_random(store.path, "image") == {True}
    assert sorted(resident(store)) == [2, 50]
    assert next(batches)["image"][:, 0, 0, 0].tolist() == [31, 17]


def test_tiles_of_pixels(store: tsds.Store, memory: Any) -> None:
    """A tile takes parts of lines, so that what the system reads around them is of use."""
    memory(8 * MIB)
    tiles = tsds.Tiles(tsds.StoreDataset(store, fields=["image"]), 128)
    assert next(iter(DataLoader(tiles, 8, shuffle=True)))["image"].shape == (8, 3, 128, 128)
    assert is_random(store.path, "image") == {False}


@given(st.lists(st.tuples(st.integers(0, 99), st.integers(1, 40)), max_size=20), st.integers(0, mmap.PAGESIZE))
def test_ranges_are_whole_pages_and_do_not_touch(ranges: list[tuple[int, int]], offset: int) -> None:
    unit = 1000
    pages = {
        page
        for begin, length in ranges
        for page in range(
            (begin * unit + offset) // mmap.PAGESIZE, -(-((begin + length) * unit + offset) // mmap.PAGESIZE)
        )
    }
    begins = np.array(sorted(begin for begin, _ in ranges), np.int64) * unit + offset
    lengths = np.array([length for _, length in sorted(ranges)], np.int64) * unit
    asked: list[tuple[int, int]] = []
    nbytes, count = ask(begins, begins + lengths, lambda begin, size: asked.append((begin, size)))
    assert all(size <= mapping.STEP_NBYTES and not begin % mmap.PAGESIZE for begin, size in asked)
    named = [begin // mmap.PAGESIZE + i for begin, size in asked for i in range(size // mmap.PAGESIZE)]
    assert named == sorted(pages)
    assert nbytes == len(pages) * mmap.PAGESIZE
    assert count == sum(page - 1 not in pages for page in pages)


def test_rows_over_several_shards(tmp_path: Path) -> None:
    samples = [{"image": np.full((64, 64, 3), row, np.uint8), "label": 0} for row in range(50)]
    column = store_of(tmp_path / "s.tsds", samples, ["a"], shard_nbytes=200_000)["train"]["image"]
    assert isinstance(column, tsds.Column)
    assert column.shards > 2
    rows = np.array([49, 3, 3, 0, 20])
    nbytes, requests = column._will_need(rows, rows + 1)
    assert requests == 4
    assert 4 * 64 * 64 * 3 <= nbytes <= 4 * (64 * 64 * 3 + 2 * mmap.PAGESIZE)
    assert column._will_need(np.zeros(0, np.int64), np.zeros(0, np.int64)) == (0, 0)


# --- batches ----------------------------------------------------------------------------------------------------


def test_leaving_an_epoch_early_ends_its_threads(store: tsds.Store, memory: Any) -> None:
    memory(8 * MIB)
    before = set(threading.enumerate())

    def begun(*names: str) -> bool:
        return any(each.name.startswith(names) for each in set(threading.enumerate()) - before)

    loader = DataLoader(tsds.StoreDataset(store), 2, shuffle=True)
    for _ in range(3):
        for _batch in loader:
            break
    assert wait_for(lambda: not begun("tsds-ask"))
    assert len(list(loader)) == ROWS // 2 and begun("tsds-loader")
    del loader
    assert wait_for(lambda: not begun("tsds-ask", "tsds-loader"))


def test_a_damaged_file_is_told_by_the_batch_that_needs_it(store: tsds.Store, memory: Any, tmp_path: Path) -> None:
    path = tmp_path / "damaged.tsds"
    shutil.copytree(store.path, path)
    memory(8 * MIB)
    dataset = tsds.StoreDataset(path)
    (file,) = data_files(tsds.open(path), "train", "image")
    (path / file.path).unlink()
    with pytest.raises(tsds.FormatError):
        list(DataLoader(dataset, 2, shuffle=True))


# --- what is told -----------------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("error")
def test_the_user_is_told_once(store: tsds.Store, memory: Any, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "tensorstore_ds")
    memory(8 * MIB)
    loader = DataLoader(tsds.StoreDataset(store), 4, shuffle=True)
    expected = (
        r"s\.tsds, train: expected samples that fit into memory, found 1[12]\.\d MB and 8\.\d MB of memory\. Each "
        r"epoch reads them from the disk: in this order 1\.0 bytes per byte that is used, in [01](\.\d+)? requests per "
        r"sample\. BlockShuffleSampler reads"
    )
    with pytest.warns(UserWarning, match=expected) as told:
        list(loader)
        list(loader)
    assert len(told) == 1
    blocks = tsds.BlockShuffleSampler(ROWS, block_rows=4, window_blocks=2)
    for options in ({}, {"sampler": blocks}):
        caplog.clear()
        list(DataLoader(tsds.StoreDataset(store), 4, **options))
        assert "expected samples that fit into memory" in caplog.text
    caplog.clear()
    memory(12 * MIB)
    list(DataLoader(tsds.StoreDataset(store), 4, shuffle=True))
    assert "expected samples that fit" not in caplog.text
