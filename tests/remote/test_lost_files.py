"""Files of the cache that are lost, cut, overwritten or copied: what is read afterwards is right, or an error."""

from __future__ import annotations

import contextlib
import gc
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tensorstore_ds as tsds
from remote.servers_mirror import FaultyServer
from stores import contents, detections, store_of
from tensorstore_ds.reading import mirror_file
from tensorstore_ds.reading.mirror_file import MirroredFile

pytestmark = pytest.mark.usefixtures("cache", "in_chunks")

ROWS = 200
DATA = "store.tsds/train/00000/image/c/0/0/0/0"
LAYOUTS = ("memmap", "zarr")
#: Rows of several chunks, but not of all.
SOME = np.array([0, 1, 100])


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("stores")
    for layout in LAYOUTS:
        store_of(root / f"{layout}.tsds", detections(ROWS, shape=(64, 64, 3)), ["a", "b"], layout=layout)
    return root


@pytest.fixture(params=LAYOUTS)
def layout(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def images(place: Path | str, rows: object = SOME) -> np.ndarray:
    return tsds.open(place)["train"].column("image").take(rows)


def kept(cache: Path) -> Path:
    """The folder of the one store that is kept."""
    (folder,) = [path for path in cache.iterdir() if len(path.name) == 64]
    return folder


def cut(nbytes: int) -> Callable[[Path], None]:
    return lambda folder: os.truncate(folder / DATA, min(nbytes, (folder / DATA).stat().st_size))


def emptied_and_stretched(folder: Path) -> None:
    size = (folder / DATA).stat().st_size
    os.truncate(folder / DATA, 0)
    os.truncate(folder / DATA, size)


def made_again_by_another(folder: Path) -> None:
    """Another file with the same name and size, all zeros."""
    size = (folder / DATA).stat().st_size
    (folder / "zeros").write_bytes(bytes(size))
    (folder / "zeros").replace(folder / DATA)


def without_marks(folder: Path) -> None:
    for path in (folder / "marks").rglob("*"):
        if path.is_file():
            path.unlink()


def longer(folder: Path) -> None:
    with (folder / DATA).open("ab") as file:
        file.write(bytes(1000))


DAMAGE: dict[str, Callable[[Path], None]] = {
    "removed": lambda folder: (folder / DATA).unlink(),
    "emptied": cut(0),
    "cut in the middle": cut(300_000),
    "cut in its end": lambda folder: os.truncate(folder / DATA, (folder / DATA).stat().st_size - 3),
    "emptied and stretched": emptied_and_stretched,
    "made again": made_again_by_another,
    "longer": longer,
    "without marks": without_marks,
    "without its folder": lambda folder: shutil.rmtree(folder / "store.tsds"),
    "without root": lambda folder: (folder / "zarr.json").unlink(),
    "without lock": lambda folder: (folder / "lock").unlink(),
}


@pytest.mark.drawn(14)
@pytest.mark.parametrize("damage", DAMAGE)
@pytest.mark.parametrize("how_much", ["some", "one file", "all"])
def test_what_is_lost_is_fetched_again(
    server: FaultyServer, stores: Path, cache: Path, layout: str, damage: str, how_much: str
) -> None:
    url, local = f"{server.url}/{layout}.tsds", stores / f"{layout}.tsds"
    store = tsds.open(url)
    column = store["train"].column("image")
    column.take(SOME if how_much == "some" else range(ROWS))
    if how_much == "all":
        store.fetch()
    elif how_much == "one file":
        column.fetch(np.array([0]), np.array([ROWS]))
        store["train"]._files.open("train/00000/image/c/0/0/0/0").close()  # type: ignore[attr-defined]
    del store, column
    gc.collect()
    DAMAGE[damage](kept(cache))
    for _ in range(3):
        assert np.array_equal(images(url), images(local))
        path = kept(cache) / "store.tsds"
        assert not (path / "zarr.json").exists() or tsds.verify(path) == []
    store = tsds.open(url)
    store.fetch()
    assert tsds.verify(url) == []
    assert contents(store.path) == contents(local)
    assert np.array_equal(images(url, range(ROWS)), images(local, range(ROWS)))


@pytest.mark.parametrize("damage", ["emptied and stretched", "made again"])
@pytest.mark.parametrize("how_much", ["some", "all"])
def test_a_small_file_that_is_overwritten_is_fetched_again(
    server: FaultyServer, stores: Path, cache: Path, damage: str, how_much: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tensorstore_ds.reading.mirror.SMALL_NBYTES", 4 * 1024**2)
    url, expected = f"{server.url}/memmap.tsds", images(stores / "memmap.tsds")
    images(url)
    if how_much == "all":
        tsds.open(url).fetch()
    DAMAGE[damage](kept(cache))
    for _ in range(2):
        assert np.array_equal(images(url), expected)
        assert len(server.of("image/c")) == 2
    assert tsds.verify(url) == []


@pytest.mark.parametrize("damage", ["removed", "emptied and stretched", "without marks"])
def test_training_reads_no_holes_of_a_complete_cache(
    server: FaultyServer, stores: Path, cache: Path, layout: str, damage: str
) -> None:
    """Batches that are normalized while they are gathered are read past the columns, from the maps themselves."""
    url, local = f"{server.url}/{layout}.tsds", stores / f"{layout}.tsds"
    tsds.open(url).fetch()
    gc.collect()
    DAMAGE[damage](kept(cache))

    def batches(place: Path | str) -> np.ndarray:
        dataset = tsds.StoreDataset(tsds.open(place), "train", fields=["image"])
        transform = tsds.Compose([tsds.RandomHorizontalFlip(), tsds.Normalize([0.5] * 3, [0.25] * 3)])
        loader = tsds.DataLoader(dataset, batch_size=32, batch_transform=transform, seed=3)
        return np.concatenate([batch["image"].numpy() for batch in loader])

    assert not tsds.open(url).is_remote  # as far as is known
    assert np.array_equal(batches(url), batches(local))


def test_a_complete_cache_is_not_asked_for_rows_again(
    server: FaultyServer, layout: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"{server.url}/{layout}.tsds"
    tsds.open(url).fetch()
    split = tsds.open(url)["train"]
    split.fetch(split.fields, SOME)
    monkeypatch.setattr("tensorstore_ds.reading.store.pool", None)
    split.fetch(split.fields, SOME)


def test_the_residency_of_a_complete_cache_downloads_nothing(server: FaultyServer, cache: Path) -> None:
    url = f"{server.url}/memmap.tsds"
    tsds.open(url).fetch()
    gc.collect()
    (kept(cache) / DATA).unlink()
    before, store = len(server.of("image/c")), tsds.open(url)
    found = tsds.residency(store, fields="image")["train/image"]
    assert found.nbytes == store.listing("train", 0)["image/c/0/0/0/0"].size
    assert not found.resident  # unknown on other systems than Linux
    assert len(server.of("image/c")) == before


@pytest.mark.parametrize("damage", ["removed", "emptied and stretched", "made again", "cut in its end"])
def test_one_process_has_it_open_and_another_opens_it(
    server: FaultyServer, stores: Path, cache: Path, layout: str, damage: str
) -> None:
    url, local = f"{server.url}/{layout}.tsds", stores / f"{layout}.tsds"
    first = tsds.open(url)["train"].column("image")
    first.take(SOME)
    DAMAGE[damage](kept(cache))
    second = tsds.open(url)["train"].column("image")
    expected = images(local, range(ROWS))
    for rows in (SOME, np.arange(ROWS)):
        assert np.array_equal(second.take(rows), expected[rows])
        try:
            found = first.take(rows)
        except tsds.errors.OutputError as error:
            assert "Open the store again" in str(error)
        else:
            assert np.array_equal(found, expected[rows])
    assert np.array_equal(images(url, range(ROWS)), expected)


def test_the_root_is_not_written_over_a_file_that_another_process_began_anew(
    server: FaultyServer, stores: Path, cache: Path, layout: str
) -> None:
    url, local = f"{server.url}/{layout}.tsds", stores / f"{layout}.tsds"
    first = tsds.open(url)
    first.fetch()
    DAMAGE["removed"](kept(cache))
    images(url)  # another opening, which leaves a file with holes
    with pytest.raises(tsds.errors.OutputError, match=r"image/c/0/0/0/0: .* found it removed or replaced"):
        first.fetch()
    assert not (first.path / "zarr.json").exists()
    first.fetch()
    assert contents(first.path) == contents(local)


def copy_if_there(source: str, target: str) -> None:
    """As rsync does: a background thread may just replace the marks of a file that has become whole."""
    with contextlib.suppress(FileNotFoundError):
        shutil.copy2(source, target)


@pytest.mark.parametrize("copy", ["whole", "some"])
def test_a_copied_cache_is_checked_and_not_fetched_again(
    server: FaultyServer, stores: Path, cache: Path, layout: str, copy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    url, local = f"{server.url}/{layout}.tsds", stores / f"{layout}.tsds"
    images(url, SOME if copy == "some" else range(ROWS))
    other = cache.with_name("copied")
    shutil.copytree(cache, other, copy_function=copy_if_there)  # as cp and rsync do, holes become zeros
    monkeypatch.setenv("TSDS_CACHE_DIR", str(other))
    before = len(server.of("image/c"))
    assert np.array_equal(images(url), images(local))
    found = [(each.start, each.stop) for each in server.of("image/c")[before:]]
    end = (local / "train/00000/image/c/0/0/0/0").stat().st_size
    assert [stop for _, stop in found] in ([], [end])  # at most the checksums
    with (kept(other) / DATA).open("r+b") as file:
        file.write(bytes(1000))
    shutil.copytree(other, cache.with_name("copied again"), copy_function=copy_if_there)
    monkeypatch.setenv("TSDS_CACHE_DIR", str(cache.with_name("copied again")))
    assert np.array_equal(images(url), images(local))


def test_bytes_that_the_disk_has_lost_are_no_fault_of_the_server(
    server: FaultyServer, stores: Path, cache: Path
) -> None:
    url = f"{server.url}/memmap.tsds"
    store = tsds.open(url)
    store["train"].column("image").take(SOME)
    with (kept(cache) / DATA).open("r+b") as file:
        file.write(bytes(1000))
    store.fetch()
    assert tsds.verify(store.path) == []


@pytest.mark.parametrize("damage", ["overwritten", "a hole"])
def test_bytes_that_another_process_has_mended_meanwhile(
    server: FaultyServer, stores: Path, cache: Path, damage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = tsds.open(f"{server.url}/memmap.tsds")
    column = store["train"].column("image")
    column.take(SOME)
    part: Any = column.part(0)
    path, first = kept(cache) / DATA, int(part._file._edges[1])
    data = (stores / "memmap.tsds/train/00000/image/c/0/0/0/0").read_bytes()
    if damage == "a hole":  # the first chunk
        emptied_and_stretched(kept(cache))
    with path.open("r+b") as file:
        file.seek(first if damage == "a hole" else 0)
        file.write(data[first:] if damage == "a hole" else bytes(1000))
    compare, lost = MirroredFile._lost, list[Any]()

    def compare_and_mend(file: MirroredFile, chunks: Any) -> Any:
        found = compare(file, chunks)
        if file.path == path and len(chunks) == len(file._marks):  # at the end of the file
            lost.append(found.tolist())
            with path.open("r+b") as opened:
                opened.write(data)
            file._marks[:] = 1
        return found

    monkeypatch.setattr(MirroredFile, "_lost", compare_and_mend)
    store.fetch()
    assert lost == [[0]]
    assert tsds.verify(store.path) == []


@pytest.mark.parametrize("times", [1, 2])
def test_bytes_that_a_reader_mends_while_the_file_is_hashed(
    server: FaultyServer, stores: Path, cache: Path, times: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = tsds.open(f"{server.url}/memmap.tsds")
    store["train"].column("image").take(SOME)
    data = (stores / "memmap.tsds/train/00000/image/c/0/0/0/0").read_bytes()
    wrong, sha256 = [bytes([i]) * 1000 for i in range(times)], mirror_file.sha256_of

    def hash_and_mend(file: Any) -> str:
        with (kept(cache) / DATA).open("r+b") as opened:
            opened.write(wrong.pop() if wrong else data[:1000])
            opened.flush()
            found = sha256(file)
            opened.seek(0)
            opened.write(data[:1000])
        return found

    monkeypatch.setattr(mirror_file, "sha256_of", hash_and_mend)
    before = len(server.of("image/c"))
    store.fetch()
    assert wrong == []
    assert sum(request.stop - request.start for request in server.of("image/c")[before:]) < len(data)  # none twice
    assert tsds.verify(store.path) == []
