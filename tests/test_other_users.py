"""Stores and folders that another user owns: a command says in one line what it may not read or write."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

import tensorstore_ds
from small_stores import VALID, tsds

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="a folder is closed by its mode")
NOBODY = 65534


@pytest.fixture
def place() -> Iterator[Path]:
    """A folder that everybody may write to, unlike that of pytest."""
    folder = Path(tempfile.mkdtemp(prefix="tsds-users-"))
    folder.chmod(0o777)
    yield folder
    for path in folder.rglob("*"):
        path.chmod(0o755)
    shutil.rmtree(folder)


@contextlib.contextmanager
def ordinary_user() -> Iterator[None]:
    """A user for whom modes count: root becomes nobody."""
    if os.geteuid():
        yield
        return
    group = os.getegid()
    os.setegid(NOBODY)
    os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)
        os.setegid(group)


def refused(*words: object) -> str:
    """What a command says that may not do this."""
    with ordinary_user():
        done = tsds(*words)
    lines = done.output.splitlines()
    assert (done.exit_code, len(lines)) == (1, 1), done.output
    assert lines[0].startswith("tsds: ") and "Permission denied" in lines[0]
    return str(lines[0])


@pytest.mark.parametrize("closed", [".", "zarr.json", "train/00000/image", "train/00000/image/c/0/0/0/0"])
@pytest.mark.parametrize("command", ["info", "copy", "check"])
def test_a_store_that_may_not_be_read(place: Path, command: str, closed: str) -> None:
    store = shutil.copytree(VALID / "classification.tsds", place / "s.tsds")
    out = [place / "o.tsds"] if command == "copy" else []
    tsds(command, store, *([place / "first"] if out else []))  # imports what nobody may not read on some machines
    (store / closed).chmod(0)
    said = refused(command, store, *out)
    assert str(store if closed in (".", "zarr.json") else "train/00000/image") in said
    assert "who may read" in said or command == "copy"
    assert not (place / "o.tsds").exists()


@pytest.mark.parametrize("command", ["check", "export", "compare", "filter", "repack"])
def test_a_file_that_may_not_be_read_is_not_called_damaged(place: Path, command: str) -> None:
    store = shutil.copytree(VALID / "classification.tsds", place / "s.tsds")
    out, other = place / "out", VALID / "classification.tsds"
    others: dict[str, list[object]] = {
        "check": [],
        "export": ["--to", "npy", out],
        "compare": [other],
        "filter": [out, "--where", "label != 'x'"],
        "repack": [out, "--layout", "zarr"],
    }
    words = (command, store, *others[command])
    tsds(*words)
    shutil.rmtree(place / "out", ignore_errors=True)
    for closed, advice in (("c/0/0/0/0", "Check who may read it."), ("c/0/0", "Check who may read its folder.")):
        path = store / "train/00000/image" / closed
        mode = path.stat().st_mode
        path.chmod(0)
        assert refused(*words).endswith(advice)
        path.chmod(mode)


@pytest.mark.parametrize("command", ["annotate", "filter", "pack", "copy", "check"])
def test_a_folder_that_may_not_be_written(place: Path, command: str) -> None:
    store = shutil.copytree(VALID / "classification.tsds", place / "s.tsds")
    before = {path: path.read_bytes() for path in store.rglob("*") if path.is_file()}

    def words(folder: str) -> list[object]:
        (place / folder).mkdir()
        target = shutil.copytree(store, place / folder / "s.tsds") if command == "annotate" else store
        out = place / folder / ("o.zip" if command == "pack" else "o.tsds")
        options = {
            "annotate": [target, "--citation", "Us, 2026"],
            "filter": [target, out, "--where", "key != ''"],
            "check": [target, "--out", out],
        }
        return [command, *options.get(command, [target, out])]

    assert tsds(*words("open")).exit_code == (command == "check")
    closed = words("closed")
    there = sorted((place / "closed").rglob("*"))
    for path in (place / "closed", *there):
        path.chmod(0o555 if path.is_dir() else 0o444)
    said = refused(*closed)
    assert str(place / "closed") in said and "same command" not in said
    assert sorted((place / "closed").rglob("*")) == there
    assert {path: path.read_bytes() for path in before} == before


def test_a_class_folder_that_may_not_be_read(place: Path) -> None:
    for name in ("cat", "dog"):
        (place / "photos" / name).mkdir(parents=True)
        (place / "photos" / name / "1.png").write_bytes(b"never read")
    (place / "photos/dog").chmod(0)
    advice = "cannot be read: Permission denied. Make it readable, or move it away."
    assert refused("convert", place / "photos", place / "o.tsds") == f"tsds: {place / 'photos/dog'}: {advice}"


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root can be another user")
@pytest.mark.parametrize("mode", [0o700, 0o755])
@pytest.mark.parametrize("is_filled", [False, True])
def test_the_cache_of_another_user(place: Path, mode: int, is_filled: bool) -> None:
    """One typed error that says what to do, and works with a folder of one's own."""
    cache, own = place / "cache", place / "own"
    store = shutil.copytree(VALID / "classification.tsds", place / "s.tsds")
    with tensorstore_ds.serve(store) as url:
        if is_filled:
            tensorstore_ds.open(url, cache_dir=cache).fetch()
        cache.mkdir(exist_ok=True)
        cache.chmod(mode)
        program = f"""
import os, sys
import tensorstore_ds as tsds, tensorstore_ds.reading.store
for limit in (None, 1):
    try:
        tsds.open({url!r}, cache_dir={str(cache)!r}, cache_limit=limit)
    except tsds.TsdsError:  # all that may be imported is, before the user changes
        pass
os.setgid({NOBODY}); os.setuid({NOBODY})
for limit in (None, 1):
    try:
        tsds.open({url!r}, cache_dir={str(cache)!r}, cache_limit=limit)
    except tsds.TsdsError as error:
        print(type(error).__name__, error)
print(len(tsds.open({url!r}, cache_dir={str(own)!r})["train"]))
"""
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    *refusals, rows = done.stdout.splitlines()
    assert rows == str(len(tensorstore_ds.open(store)["train"])) and len(refusals) == 2
    for line in refusals:
        assert line.startswith(f"OutputError {cache}") and "Permission denied" in line
        assert "another folder: `cache_dir`, or TSDS_CACHE_DIR." in line
