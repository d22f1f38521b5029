"""Folders in which stores and exports grow, and the one refusal of all that make a path of their own."""

from __future__ import annotations

import itertools
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import tensorstore_ds as tsds
from small_stores import VALID
from tensorstore_ds.conversion.partial import Partial

STORE = VALID / "classification.tsds"

#: What makes something new at a path of the store ``s.tsds``, or of that as the file ``s.zip``.
MAKES: dict[str, Callable[[Path, Path], object]] = {
    "convert": lambda root, out: tsds.convert(root / "images", out),
    "filter": lambda root, out: tsds.editing.filter_store(root / "s.tsds", out, "width > 0"),
    "repack": lambda root, out: tsds.repack(root / "s.tsds", out, layout="zarr"),
    "export": lambda root, out: tsds.export(root / "s.tsds", out, "folders"),
    "pack": lambda root, out: tsds.pack(root / "s.tsds", out),
    "unpack": lambda root, out: tsds.unpack(root / "s.zip", out),
}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    shutil.copytree(STORE, tmp_path / "s.tsds")
    tsds.pack(tmp_path / "s.tsds", tmp_path / "s.zip")
    tsds.export(tmp_path / "s.tsds", tmp_path / "images", "folders")
    return tmp_path


@pytest.mark.parametrize("make", MAKES.values(), ids=MAKES)
def test_one_refusal_of_a_path_that_is_there(make: Callable[[Path, Path], object], root: Path) -> None:
    shutil.copytree(STORE, root / "store")
    (root / "folder").mkdir()
    (root / "file").touch()
    (root / "link").symlink_to("nowhere")
    before = sorted(path.name for path in root.iterdir())
    for what in ("store", "folder", "file", "link"):
        with pytest.raises(tsds.errors.StoreExistsError) as error:
            make(root, root / what)
        found = f"expected a new path, found a {what}. Choose another path, or remove this one first."
        assert str(error.value) == f"{root / what}: {found}"
    with pytest.raises(tsds.OptionError, match=r"out: the folder .*/none does not exist\. Make it first"):
        make(root, root / "none" / "out")
    assert sorted(path.name for path in root.iterdir()) == before


def work(root: Path, *, keeps: bool = False, error: type[BaseException] | None = None) -> Partial:
    """A folder that was open for a block, with a file in it."""
    folder = Partial(root / "out.partial", keeps=lambda: keeps)
    try:
        with folder:
            (folder.new_store() / "file").touch()
            if error is not None:
                raise error
    except BaseException as found:
        if error is None or not isinstance(found, error):
            raise
    return folder


@pytest.mark.parametrize("error", [None, ValueError, KeyboardInterrupt])
def test_a_folder_is_removed_after_its_block_unless_it_is_kept(error: Any, tmp_path: Path) -> None:
    assert work(tmp_path, error=error)._folder is None
    assert list(tmp_path.iterdir()) == []
    work(tmp_path, keeps=True, error=error)
    assert sorted(path.name for path in (tmp_path / "out.partial").iterdir()) == ["store", "tsds.lock"]
    work(tmp_path)  # the lock is free, and the folder was not removed as ours is
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_removed_hides_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(_: object) -> None:
        raise PermissionError(13, "Permission denied")

    with monkeypatch.context() as patch:
        patch.setattr(Partial, "remove", refused)
        work(tmp_path, error=KeyboardInterrupt)
        with pytest.raises(PermissionError):
            work(tmp_path)
        with Partial(tmp_path / "out.partial") as folder:
            folder.new_store()
            assert folder.put_store(tmp_path / "out") == (
                f"{folder.path}: this work folder could not be removed (Permission denied). Remove it."
            )
    assert (tmp_path / "out").is_dir()
    with (
        Partial(tmp_path / "out.partial") as folder,
        pytest.raises(tsds.errors.StoreExistsError, match="appeared meanwhile"),
    ):
        folder.new_store()
        folder.put_store(tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_a_removal_that_ends_anywhere_leaves_no_folder_of_a_stranger(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    outer, inner = tmp_path / "s.tsds.append", tmp_path / "s.tsds.append" / "known.partial"
    for end in itertools.count():
        with Partial(outer, keeps=lambda: True), Partial(inner, keeps=lambda: True) as work:
            for name in ("a", "zz"):
                work.make_folder(name)
                (inner / name / "data").write_bytes(b"0")
                (inner / f"{name}.json").write_bytes(b"0")
        with monkeypatch.context() as patched:
            steps = itertools.count()
            for name in ("unlink", "rmdir"):
                patched.setattr(os, name, ended(getattr(os, name), steps, end))
            work = Partial(outer).open()
            try:
                work.remove()
            except InterruptedError:
                continue
            finally:
                work.close()
        break
    assert end > 8 and not outer.exists()


def ended(function: Callable[..., None], steps: Iterator[int], end: int) -> Callable[..., None]:
    """A function of which no call works from the step `end` on."""

    def call(*arguments: Any, **options: Any) -> None:
        if next(steps) >= end:
            raise InterruptedError
        function(*arguments, **options)

    return call
