from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tensorstore_ds.durable import replacing
from tensorstore_ds.errors import OutputError

#: Runs in a process of its own: files may have 1000 bytes, as if the disk were full.
FULL = """
import resource, sys
from tensorstore_ds.errors import OutputError
from tensorstore_ds.durable import replacing
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, resource.RLIM_INFINITY))
try:
    with replacing(sys.argv[1]) as file:
        {}
except OutputError as error:
    print(error)
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    (tmp_path / "kept").write_bytes(b"old")
    return tmp_path / "kept"


def only(path: Path) -> bool:
    return [*path.parent.iterdir()] == [path]


def test_the_new_file_takes_the_place_of_the_old_one(path: Path) -> None:
    with replacing(path) as file:
        file.write(b"new")
        assert path.read_bytes() == b"old"
    assert path.read_bytes() == b"new"
    assert only(path)


@pytest.mark.parametrize("error", [KeyError("x"), RuntimeError("x"), KeyboardInterrupt(), OSError(5, "x", "/other")])
def test_an_error_in_the_block_leaves_the_old_one(path: Path, error: BaseException) -> None:
    with pytest.raises(type(error)) as raised, replacing(path) as file:
        file.write(b"new")
        raise error
    assert raised.value is error
    assert path.read_bytes() == b"old"
    assert only(path)


def test_an_error_that_is_being_handled_is_not_taken_for_the_disks(path: Path) -> None:
    try:
        raise OSError(28, "No space left on device")
    except OSError:
        with pytest.raises(RuntimeError, match="a defect") as raised, replacing(path):
            raise RuntimeError("a defect")  # noqa: B904
    assert not isinstance(raised.value, OutputError)


@pytest.mark.slow
@pytest.mark.parametrize(
    "line",
    [
        "file.write(bytes(5000))",
        "import torch; torch.save({'weights': torch.zeros(5000)}, file)",  # which raises an error of its own instead
    ],
)
def test_a_full_disk_is_one_line_and_leaves_the_old_one(path: Path, line: str) -> None:
    run = subprocess.run([sys.executable, "-c", FULL.format(line), path], capture_output=True, text=True, check=True)
    assert run.stdout == f"{path}: expected to write it, found: File too large. Make room or choose another folder.\n"
    assert path.read_bytes() == b"old"
    assert only(path)


def test_a_folder_that_is_missing_is_one_line(tmp_path: Path) -> None:
    path = tmp_path / "missing" / "file"
    with pytest.raises(OutputError, match=r"missing/file: expected to write it, found: No such file or directory\."):
        replacing(path).__enter__()
