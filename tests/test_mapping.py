"""Maps of files, which hold no descriptor."""

from __future__ import annotations

import gc
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from stores import store_of
from tensorstore_ds.reading.mapping import map_array

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
    samples = [{"image": np.full((4, 4, 3), i, np.uint8), "label": i % 2} for i in range(SHARDS)]
    store = store_of(tmp_path / "s.tsds", samples, ["a", "b"], shard_nbytes=1)
    assert len(list((store.path / "train").glob("0*"))) == SHARDS
    words = [sys.executable, "-c", FEW_FILES, store.path]
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=110)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.split("] [") == [f"[{', '.join(map(str, range(SHARDS)))}", f"{', '.join(['0', '1'] * 12)}]\n"]
