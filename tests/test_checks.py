"""What opening a store looks at: folders that are links, and the sizes of files."""

from __future__ import annotations

import hashlib
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import tensorstore_ds as tsds
from small_stores import VALID
from stores import store_of
from tensorstore_ds.reading.checks import BEYOND, Listings, check_metadata, check_sizes
from tensorstore_ds.reading.store_files import Origin, StoreFiles


@pytest.mark.parametrize(
    "folder", ["train", "train/00000", "train/00000/image", "train/00000/image/c", "train/00000/image/c/0"]
)
def test_a_folder_on_the_way_to_a_file_is_no_link(tmp_path: Path, folder: str) -> None:
    path = tmp_path / "s.tsds"
    shutil.copytree(VALID / "classification.tsds", path)
    sizes = {file.relative_to(path).as_posix(): file.stat().st_size for file in path.rglob("*") if file.is_file()}
    files = StoreFiles(path)
    assert check_sizes(files, sizes) == []
    (path / folder).rename(tmp_path / "elsewhere")
    (path / folder).symlink_to(tmp_path / "elsewhere", target_is_directory=True)
    problems = [(problem.where, problem.reason) for problem in check_sizes(files, sizes)]
    assert (folder, "symlink") in problems
    assert (folder, "symlink") in [(problem.where, problem.reason) for problem in tsds.verify(path)]


@pytest.mark.parametrize("name", sorted(path.name for path in VALID.iterdir() if path.is_dir()))
def test_sizes_of_a_shard_are_the_sizes_of_its_files(name: str) -> None:
    files = StoreFiles(VALID / name)
    for split, entry in files.manifest.splits.items():
        for index in range(len(entry.shards)):
            folder = VALID / name / files.manifest.shard_path(split, index)
            found = {p.relative_to(folder).as_posix(): p.stat().st_size for p in folder.rglob("*") if p.is_file()}
            found.pop("zarr.json")
            assert Listings(files, split).sizes(index) == found


def test_a_list_of_files_that_this_library_wrote_is_not_parsed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = store_of(tmp_path / "s.tsds", [{"image": np.zeros((4, 4, 3), np.uint8), "label": 0}], ["a"])
    files = StoreFiles(store.path)
    shard = files.manifest.splits["train"].shards[0]
    listings, data = Listings(files, "train"), files.listing_bytes("train", 0)
    changed = [
        data.replace(b'"image/zarr.json"', b'"imagf/zarr.json"'),
        data.replace(b'"size": ', b'"size":  ', 1),
        data.replace(b'"files"', b'"filet"'),
        data + b" ",
    ]
    for text in changed:
        assert text != data
        assert listings.expected(text, replace(shard, sha256=hashlib.sha256(text).hexdigest())) is None
    assert listings.expected(data, replace(shard, nbytes=shard.nbytes + 1)) is None
    assert listings.expected(data, replace(shard, sha256="0" * 64)) is None
    monkeypatch.setattr(StoreFiles, "listing", lambda *_: pytest.fail("it was parsed"))
    assert len(listings.sizes(0)) == data.count(b"sha256")


def test_a_field_may_be_called_like_the_number_that_stands_for_sizes(tmp_path: Path) -> None:
    with tsds.Writer(tmp_path / "s.tsds") as writer:
        writer.append("train", image=np.zeros((4, 4, 3), np.uint8), **{f"a{BEYOND}": np.float32(2)})
    assert tsds.open(tmp_path / "s.tsds")["train"][0][f"a{BEYOND}"] == 2


@pytest.mark.parametrize("more", [-1, 1])
def test_a_file_has_its_size(tmp_path: Path, more: int) -> None:
    path = tmp_path / "s.tsds"
    shutil.copytree(VALID / "classification.tsds", path)
    size = (path / "zarr.json").stat().st_size
    files = StoreFiles(path)
    assert check_sizes(files, {"zarr.json": size}) == []
    (problem,) = check_sizes(files, {"zarr.json": size + more})
    assert (problem.where, problem.reason) == ("zarr.json", "file-size")
    assert problem.message == f"expected {size + more} bytes, found {size}."
    (problem,) = check_sizes(files, {"missing": 0})
    assert (problem.where, problem.reason) == ("missing", "missing-file")


def test_the_fill_value_of_numbers_with_a_point_may_be_an_integer(tmp_path: Path) -> None:
    """Zarr writers differ in how they write it."""
    files = {path.relative_to(VALID) for path in VALID.rglob("zarr.json") if b'"fill_value": 0.0' in path.read_bytes()}
    array = min(files)
    store, directory = Path(*array.parts[:1]), Path(*array.parts[1:-1])
    shutil.copytree(VALID / store, tmp_path / store)
    found = StoreFiles(tmp_path / store)
    split, number, *name = directory.parts
    geometry = found.manifest.arrays(found.manifest.splits[split].shards[int(number)])["/".join(name)]
    metadata = tmp_path / array
    for value in (b"0.0", b"0"):
        text = (VALID / array).read_bytes().replace(b'"fill_value": 0.0', b'"fill_value": ' + value)
        metadata.write_bytes(text)
        check_metadata(found, directory.as_posix(), geometry)
    for value in (b"-1", b"1", b"null", b"false", b'"0"'):
        metadata.write_bytes((VALID / array).read_bytes().replace(b'"fill_value": 0.0', b'"fill_value": ' + value))
        with pytest.raises(tsds.FormatError):
            check_metadata(found, directory.as_posix(), geometry)


def test_the_address_of_a_store_is_not_shown() -> None:
    """It may hold a password."""
    assert "secret" not in repr(Origin("https://me:secret@host/s.tsds", None, None))
