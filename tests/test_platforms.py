"""On a Python from which all is taken that Windows or macOS lack: import, read, load. No other system is here."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest

import tensorstore_ds as tsds
from small_stores import ROOT, class_folders
from tensorstore_ds import durable

pytestmark = [pytest.mark.slow, pytest.mark.skipif(sys.platform != "linux", reason="takes from Linux what others lack")]

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
try:
    tsds.evict(store)
except tsds.errors.ResidencyError as error:
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
from pathlib import Path
import numpy as np
import tensorstore_ds as tsds
source, out = sys.argv[1], Path(sys.argv[2])
out.mkdir()
options = tsds.ConvertOptions(workers=0, size=16, shard_nbytes=3000)
print(tsds.convert(source, out / "s", options).rows)
def stop(progress):
    if progress.done > 5:
        raise KeyboardInterrupt
try:
    tsds.convert(source, out / "resumed", options, progress=stop)
except KeyboardInterrupt:
    pass
tsds.convert(source, out / "resumed", options)
tsds.clusters.plan(source, out / "planned", tasks=2, size=16)
for task in range(2):
    tsds.clusters.convert_task(out / "planned", task, workers=0)
tsds.clusters.commit(out / "planned")
with tsds.Writer(out / "written") as writer:
    for i in range(3):
        writer.append("train", image=np.full((8, 8, 3), i, np.uint8), key=str(i))
tsds.repack(out / "s", out / "small", layout="zarr")
tsds.editing.filter_store(out / "s", out / "cats", where="label == 'cat'")
tsds.pack(out / "s", out / "packed.zip")
tsds.unpack(out / "packed.zip", out / "unpacked")
tsds.copy(out / "s", out / "copied")
tsds.export(out / "s", out / "exported", "folders")
tsds.append(out / "s", source, key_prefix="more/", workers=0)
tsds.annotate(out / "s", license="CC0-1.0")
stores = [path for path in sorted(out.iterdir()) if (path / "zarr.json").is_file()]
assert all(tsds.verify(path) == [] for path in stores)
print(*(path.name for path in stores))
assert len(tsds.open(out / "s")["train"]) == 20
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
    assert printed.count(f"found {system}.") == 1


@pytest.mark.parametrize("system", ["win32", "darwin"])
def test_batches_are_loaded(system: str, store: Path, tmp_path: Path) -> None:
    printed = without(
        system, LOAD, tmp_path, store, before="numpy,psutil,threadpoolctl,torch,torchvision.transforms.v2"
    )
    assert printed == "10 page-cache\n"


@pytest.mark.parametrize("system", ["win32", "darwin"])
def test_a_source_is_converted(system: str, source: Path, tmp_path: Path) -> None:
    """In one process: worker processes are spawned by Windows alone."""
    before = "numpy,hashlib,psutil,PIL.Image,zarr,yaml"
    printed = without(system, CONVERT, tmp_path, source, tmp_path / "out", before=before)
    assert printed == "{'train': 10}\ncats copied planned resumed s small unpacked written\n"
    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert names - {"s.append"} == {*printed.splitlines()[1].split(), "packed.zip", "exported"}


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
def test_a_file_system_without_locks_is_not_a_lock_that_is_held(
    number: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def refuse(descriptor: int, operation: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr("fcntl.flock", refuse)
    with pytest.raises(OSError, match=os.strerror(number)) as error:
        durable.lock(0)
    assert error.value.errno == number
    fails = pytest.raises(OSError, match="error") if number == errno.EIO else nullcontext()
    with fails, durable.locked_folder(tmp_path) as is_ours:
        assert is_ours


def test_a_system_without_locks_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(durable, "fcntl", None)
    with pytest.raises(OSError, match="no file locks"):
        durable.lock(0)
