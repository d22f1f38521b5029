"""What opening a store looks at: folders that are links, and the sizes of files."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import tensorstore_ds as tsds
from small_stores import VALID
from tensorstore_ds.reading.checks import check_sizes
from tensorstore_ds.reading.store_files import StoreFiles


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
