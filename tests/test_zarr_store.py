"""`Store.zarr` against plain zarr-python on the same folder, the split's columns, and the files themselves."""

from __future__ import annotations

import asyncio
import math
import os
import pickle
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from hypothesis import given, settings, strategies as st
from zarr.abc.store import OffsetByteRequest, RangeByteRequest, SuffixByteRequest
from zarr.core.buffer import default_buffer_prototype

import tensorstore_ds as tsds
from small_stores import VALID
from stores import class_folders, contents, detections, store_of

ROWS, SHAPE = 130, (96, 96, 3)
REPLACED = "train/00001"  # in the conformance store of this name
WAYS = ("memmap", "zarr", "memmap packed", "zarr packed")


def arrays_of(group: zarr.Group) -> dict[str, zarr.Array[Any]]:
    return {name: node for name, node in group.members(max_depth=None) if isinstance(node, zarr.Array)}


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tsds.Store]:
    """The same samples in several shards of several chunks, by the names of `WAYS`."""
    root, found = tmp_path_factory.mktemp("stores"), {}
    for layout in ("memmap", "zarr"):
        options = {"layout": layout, "shard_nbytes": 1_300_000}
        found[layout] = store_of(root / f"{layout}.tsds", detections(ROWS, shape=SHAPE), ["a", "b"], **options)
        tsds.pack(root / f"{layout}.tsds", root / f"{layout}.tsds.zip")
        found[f"{layout} packed"] = tsds.open(root / f"{layout}.tsds.zip")
    return found


@pytest.fixture(params=WAYS)
def store(request: pytest.FixtureRequest, stores: dict[str, tsds.Store]) -> tsds.Store:
    return stores[request.param]


def test_shards_in_row_order_are_the_columns(store: tsds.Store) -> None:
    group, split = store.zarr(), store["train"]
    images = [group[f"{path}/image"] for path in split.shard_paths]
    assert len(images) > 2 and max(-(-image.shape[0] // image.chunks[0]) for image in images) > 1
    samples = detections(ROWS, shape=SHAPE)
    assert np.array_equal(np.concatenate([image[:] for image in images]), [sample["image"] for sample in samples])
    rows = np.random.default_rng(0).permutation(images[0].shape[0])[:5]
    assert np.array_equal(images[0].oindex[rows], split.column("image").take(rows))
    table = split.table("objects").take(range(ROWS))
    for name in ("boxes", "labels", "keypoints"):
        joined = np.concatenate([group[f"{path}/objects/{name}"][:] for path in split.shard_paths])
        assert joined.size and np.array_equal(joined, table[name], equal_nan=joined.dtype.kind == "f")
    lengths = [np.diff(group[f"{path}/objects/offsets"][:]) for path in split.shard_paths]
    assert np.array_equal(np.concatenate(lengths), np.diff(table.offsets))


@pytest.mark.drawn(18)
@pytest.mark.parametrize("is_packed", [False, True])
@pytest.mark.parametrize("name", sorted(path.name for path in VALID.glob("*.tsds")))
def test_every_valid_store_is_what_plain_zarr_finds(name: str, is_packed: bool, tmp_path: Path) -> None:
    path = VALID / name
    try:
        plain = zarr.open_group(str(path), mode="r")
    except TypeError:
        assert name == "ignorable-metadata.tsds" and zarr.__version__ == "3.1.0"
        pytest.skip("this zarr refuses members of metadata that may be ignored")
    if is_packed:
        path = tmp_path / "store.tsds.zip"
        tsds.pack(VALID / name, path)
    group = tsds.open(path).zarr()
    assert group.attrs.asdict() == plain.attrs.asdict()
    found = dict(group.members(max_depth=None))
    nodes = {each.parent.relative_to(VALID / name).as_posix() for each in (VALID / name).glob("*/**/zarr.json")}
    if name == "replaced-shard.tsds":
        nodes = {node for node in nodes if not node.startswith(REPLACED)}
    assert nodes and sorted(found) == sorted(nodes)
    for place, array in arrays_of(group).items():
        assert array.metadata == plain[place].metadata
        assert array[:].tobytes() == plain[place][:].tobytes(), place


def test_only_one_chunk_is_read_of_a_row(store: tsds.Store, monkeypatch: pytest.MonkeyPatch) -> None:
    image = store.zarr()[f"{store['train'].shard_paths[0]}/image"]
    assert image.shards is not None and image.shards[0] >= image.shape[0] > image.chunks[0]
    read = type(store._files).read_part
    sizes = []

    def counted(self: Any, name: str, part: slice) -> bytes:
        data = read(self, name, part)
        sizes.append(len(data))
        return data

    monkeypatch.setattr(type(store._files), "read_part", counted)
    assert np.array_equal(image[5], store["train"].column("image")[5])
    assert 0 < sum(sizes) < 2 * image.chunks[0] * math.prod(SHAPE)


def test_it_is_read_only(store: tsds.Store) -> None:
    before = store.path.read_bytes() if store.path.is_file() else contents(store.path)
    group = store.zarr()
    assert group.read_only
    image = group[f"{store['train'].shard_paths[0]}/image"]
    for write in (
        lambda: group.create_group("more"),
        lambda: group.create_array("more", shape=(1,), dtype="u1"),
        lambda: group.attrs.update(a=1),
        lambda: image.__setitem__(0, 0),
        lambda: image.resize((1, *image.shape[1:])),
        lambda: group.__delitem__("train"),
        lambda: group.store.with_read_only(False),
        lambda: zarr.open_group(group.store, mode="a"),
        lambda: zarr.open_group(group.store, mode="w"),
    ):
        with pytest.raises(ValueError, match="read-only"):
            write()
    assert before == (store.path.read_bytes() if store.path.is_file() else contents(store.path))
    assert zarr.open_group(group.store, mode="r")["train"].read_only
    assert group.store.with_read_only(True).read_only


def test_unknown_names(store: tsds.Store) -> None:
    group = store.zarr()
    for name in ("val", "train/99999", "train/00000/nothing", "train/00000/image/c", "train/abc", "skipped.jsonl"):
        assert name not in group
        with pytest.raises(KeyError):
            group[name]


def test_listing_is_that_of_the_folder(stores: dict[str, tsds.Store]) -> None:
    root = stores["memmap"].path
    files = {path.relative_to(root).as_posix() for path in root.rglob("*") if path.is_file()}
    for way in ("memmap", "memmap packed"):
        found: Any = stores[way].zarr().store
        assert sorted(listed(found.list())) == sorted(files)
        for prefix in ("train/0000", "train/00001/image/", "train/00001/im", "tr", "other"):
            assert set(listed(found.list_prefix(prefix))) == {name for name in files if name.startswith(prefix)}
        for folder in ("", "train", "train/", "train/00001/objects", "train/00001/objects/boxes", "train/7", "other"):
            expected = sorted(os.listdir(root / folder)) if (root / folder).is_dir() else []
            assert sorted(listed(found.list_dir(folder))) == expected
        assert all(asyncio.run(found.exists(name)) for name in files)
        assert not any(asyncio.run(found.exists(name)) for name in ("train", "train/00001", "x/zarr.json", "a/b/c/d"))
    image = stores["memmap"].zarr()["train/00001/image"]
    folder = root / "train/00001/image"
    assert image.nbytes_stored() == sum(each.stat().st_size for each in folder.rglob("*") if each.is_file())


def listed(names: AsyncIterator[str]) -> list[str]:
    async def collected() -> list[str]:
        return [name async for name in names]

    return asyncio.run(collected())


@settings(max_examples=60, deadline=None)
@given(start=st.integers(0, 1 << 20), stop=st.integers(0, 1 << 20), way=st.sampled_from(WAYS))
def test_ranges_are_those_of_the_file(stores: dict[str, tsds.Store], start: int, stop: int, way: str) -> None:
    name = "train/00000/image/c/0/0/0/0"
    data = (stores[way.split()[0]].path / name).read_bytes()
    start, stop = sorted((start % (len(data) + 9), stop % (len(data) + 9)))
    expected = [data, data[start:stop], data[start:], data[max(0, len(data) - stop) :]]
    requests = (None, RangeByteRequest(start, stop), OffsetByteRequest(start), SuffixByteRequest(stop))
    zarr_store = stores[way].zarr().store
    found = zarr_store.get_partial_values(default_buffer_prototype(), [(name, request) for request in requests])
    assert [None if each is None else each.to_bytes() for each in asyncio.run(found)] == expected


def test_pickled_and_equal(store: tsds.Store, stores: dict[str, tsds.Store]) -> None:
    image = store.zarr()["train/00001/image"]
    again = pickle.loads(pickle.dumps(image))  # noqa: S301
    assert np.array_equal(again[:], image[:])
    assert again.store == image.store and hash(again.store) == hash(image.store)
    assert sum(image.store == other.zarr().store for other in stores.values()) == 1
    if store.path != stores["zarr packed"].path:  # one process is enough
        return
    code = "import pickle, sys; print(pickle.load(sys.stdin.buffer)[3].sum())"
    done = subprocess.run([sys.executable, "-c", code], input=pickle.dumps(image), capture_output=True, check=True)
    assert int(done.stdout) == image[3].sum()


@pytest.fixture
def grown(tmp_path: Path) -> tuple[Path, tsds.Store]:
    """A store with `skipped.jsonl` and replaced shards, and the same store as it was opened before."""
    source = class_folders(tmp_path / "images", per_class=6)
    (source / "train/ant/bad.png").write_bytes(b"no image")
    options: dict[str, Any] = {"workers": 0, "shard_nbytes": 90, "on_error": "skip"}
    tsds.convert(source, tmp_path / "s.tsds", **options)
    before = tsds.open(tmp_path / "s.tsds")
    before.zarr()
    shutil.copy(source / "train/bee/1.png", source / "train/ant/1.png")
    tsds.update(tmp_path / "s.tsds", source, workers=0)
    return tmp_path / "s.tsds", before


def test_replaced_shards_and_skipped_samples_are_not_shown(grown: tuple[Path, tsds.Store]) -> None:
    path, before = grown
    store = tsds.open(path)
    replaced = store.manifest.splits["train"].replaced
    assert replaced and (path / "skipped.jsonl").is_file()
    with pytest.warns(match=r"skipped\.jsonl is not recognized"):
        list(zarr.open_group(str(path), mode="r"))
    for each in (store, before):  # a warning would be an error
        group = each.zarr()
        assert sorted(group) == ["test", "train"]
        assert sorted(group["train"]) == sorted(name.partition("/")[2] for name in each["train"].shard_paths)
        joined = np.concatenate([group[f"{name}/image"][:] for name in each["train"].shard_paths])
        assert np.array_equal(joined, each["train"].column("image")[:])
        assert group.attrs["tsds"]["splits"]["train"]["rows"] == len(each["train"])
    assert store["train"].shard_paths != before["train"].shard_paths
    assert store["train"].shard_paths[0] == f"train/{store.manifest.splits['train'].numbers[0]:05d}"
    assert not np.array_equal(store["train"].column("image")[:], before["train"].column("image")[:])


def test_a_removed_file_is_not_read_as_zeros(grown: tuple[Path, tsds.Store]) -> None:
    path, before = grown
    number = tsds.open(path).manifest.splits["train"].replaced[0]
    image, plain = (group[f"train/{number:05d}/image"] for group in (before.zarr(), zarr.open_group(path, mode="r")))
    assert image[0].any()
    shutil.rmtree(path / f"train/{number:05d}")
    assert not plain[0].any()  # what the reader is there to prevent
    with pytest.raises(tsds.FormatError):
        image[0]


def test_another_store_in_the_place(tmp_path: Path) -> None:
    store = store_of(tmp_path / "s.tsds", detections(4), ["a", "b"])
    image = store.zarr()["train/00000/image"]
    (tmp_path / "s.tsds").rename(tmp_path / "old.tsds")
    store_of(tmp_path / "s.tsds", detections(4, seed=1), ["a", "b"])
    with pytest.raises(tsds.FormatError, match="another is in its place"):
        image[0]
    with pytest.raises(tsds.FormatError, match="another is in its place"):
        store.zarr()["train/00000/image"]


def test_empty_tables_and_a_damaged_index(tmp_path: Path) -> None:
    samples = [{"image": np.full((9, 9, 3), i, np.uint8), "boxes": [], "labels": []} for i in range(3)]
    group = store_of(tmp_path / "s.tsds", samples, ["a"]).zarr()
    assert group["train/00000/objects/boxes"][:].shape == (0, 4)
    assert group["train/00000/objects/offsets"][:].tolist() == [0, 0, 0, 0]
    file = tmp_path / "s.tsds/train/00000/image/c/0/0/0/0"
    file.write_bytes(file.read_bytes()[:-5] + bytes(5))
    with pytest.raises(ValueError, match="checksum"):
        group["train/00000/image"][0]


@pytest.mark.parametrize("layout", ["memmap", "zarr"])
def test_reading_a_column_does_not_import_zarr(stores: dict[str, tsds.Store], layout: str) -> None:
    code = """
import sys, tensorstore_ds as tsds
store = tsds.open(sys.argv[1])
store["train"][3], store["train"]["image"].take([1, 2])
assert "zarr" not in sys.modules
store.zarr()
assert "zarr" in sys.modules
"""
    subprocess.run([sys.executable, "-c", code, stores[layout].path], check=True)
