"""On a Python from which all is taken that Windows or macOS lack: import, read, load. No other system is here."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import tensorstore_ds as tsds
from small_stores import ROOT, class_folders
from tensorstore_ds import durable

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="takes from Linux what others lack")

READ = """
import sys
import tensorstore_ds as tsds
from tensorstore_ds.page_cache.residency import residency
store = tsds.open(sys.argv[1])
assert sys.platform == sys.argv[2]
print(int(store["train"]["image"].take([3, 0]).sum()), store["train"]["label"][:].tolist())
assert tsds.verify(sys.argv[1]) == []
assert {found.resident for found in residency(store).values()} == {None}
tsds.warm(store)
for refused in (tsds.evict, tsds.lock):
    try:
        refused(store)
    except tsds.ResidencyError as error:
        print(error)
"""

LOAD = """
import sys
import tensorstore_ds as tsds
loader = tsds.DataLoader(tsds.StoreDataset(sys.argv[1], "train"), batch_size=4, shuffle=True, num_threads=2)
print(sum(len(batch["image"]) for batch in loader), loader.residency)
"""

CONVERT = """
import sys
import tensorstore_ds as tsds
print(tsds.convert(sys.argv[1], sys.argv[2], tsds.ConvertOptions(workers=0)).rows)
print(tsds.repack(sys.argv[2], sys.argv[2] + "-small", layout="zarr").rows)
assert tsds.verify(sys.argv[2]) == tsds.verify(sys.argv[2] + "-small") == []
"""


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return class_folders(tmp_path_factory.mktemp("platforms") / "photos", "cat", "dog", count=5)


@pytest.fixture(scope="module")
def store(source: Path) -> Path:
    tsds.convert(source, source.with_name("photos.tsds"), tsds.ConvertOptions(workers=0))
    return source.with_name("photos.tsds")


def without(system: str, code: str, folder: Path, *arguments: object, before: str = "numpy,hashlib,psutil") -> str:
    """What a script prints on such a Python."""
    script = folder / "script.py"
    script.write_text(code, "utf-8")
    words = [sys.executable, ROOT / "tests" / "without_posix.py", system, script, *arguments]
    environment = {**os.environ, "BEFORE": before}
    done = subprocess.run([*map(str, words)], capture_output=True, text=True, timeout=110, env=environment)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("system", ["win32", "darwin"])
def test_a_store_is_read(system: str, store: Path, tmp_path: Path) -> None:
    images = tsds.open(store)["train"]["image"].take([3, 0])
    printed = without(system, READ, tmp_path, store, system)
    assert printed.startswith(f"{int(images.sum())} [0, 0, 0, 0, 0, 1, 1, 1, 1, 1]\n")
    assert printed.count(f"found {system}.") == 2


@pytest.mark.slow
@pytest.mark.parametrize("system", ["win32", "darwin"])
def test_batches_are_loaded(system: str, store: Path, tmp_path: Path) -> None:
    printed = without(
        system, LOAD, tmp_path, store, before="numpy,psutil,threadpoolctl,torch,torchvision.transforms.v2"
    )
    assert printed == "10 page-cache\n"


@pytest.mark.parametrize("system", ["win32", "darwin"])
def test_a_source_is_converted(system: str, source: Path, tmp_path: Path) -> None:
    printed = without(system, CONVERT, tmp_path, source, tmp_path / "out", before="numpy,hashlib,psutil,PIL.Image,zarr")
    assert printed == 2 * "{'train': 10}\n"
    assert {path.name for path in tmp_path.iterdir()} == {"script.py", "out", "out-small"}


# --- what stands in for what is missing --------------------------------------------------------------------------


@pytest.mark.parametrize("there", [True, False])
def test_bytes_are_written_at_their_place(there: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if not there:
        monkeypatch.delattr(os, "pwrite")
    path = tmp_path / "rows"
    path.write_bytes(bytes(4))
    durable.write_at(path, memoryview(np.arange(1, 4, dtype=np.uint8)), 6)
    durable.write_at(path, memoryview(b"\n\r\x1a"), 0)
    assert path.read_bytes() == b"\n\r\x1a\0\0\0\1\2\3"
    with pytest.raises(FileNotFoundError):
        durable.write_at(tmp_path / "missing", memoryview(b"x"), 0)


@pytest.mark.parametrize("there", [True, False])
def test_files_and_folders_are_synced(there: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[str] = []
    fsync = os.fsync

    def noted(descriptor: int) -> None:
        synced.append(os.fspath(Path(f"/proc/self/fd/{descriptor}").readlink()))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", noted)
    if not there:
        monkeypatch.delattr(os, "O_DIRECTORY")
    (tmp_path / "file").write_bytes(b"x")
    durable.sync(tmp_path / "file")
    durable.sync(tmp_path)
    assert synced == [str(tmp_path / "file"), *([str(tmp_path)] if there else [])]
    with pytest.raises(FileNotFoundError):
        durable.sync(tmp_path / "missing")


LOCK = "import os, sys\nfrom tensorstore_ds.durable import lock\nprint(lock(os.open(sys.argv[1], os.O_RDWR)))"


def test_one_process_has_a_lock(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    path.touch()

    def another() -> str:
        return subprocess.run([sys.executable, "-c", LOCK, path], capture_output=True, text=True, check=True).stdout

    descriptor = os.open(path, os.O_RDWR)
    assert durable.lock(descriptor)
    assert another() == "False\n"
    os.close(descriptor)
    assert another() == "True\n"


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EIO])
def test_a_file_system_without_locks_is_not_a_lock_that_is_held(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(descriptor: int, operation: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr("fcntl.flock", refuse)
    with pytest.raises(OSError, match=os.strerror(number)) as error:
        durable.lock(0)
    assert error.value.errno == number


def test_a_system_without_locks_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(durable, "fcntl", None)
    with pytest.raises(OSError, match="no file locks"):
        durable.lock(0)
