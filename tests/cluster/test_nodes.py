"""Nodes that are not as they should be: with a full disk, or a clock that is wrong."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import tensorstore_ds as tsds
from cluster.conftest import OPTIONS
from stores import contents

TSDS = (sys.executable, "-m", "tsds_cli")


@contextlib.contextmanager
def small_disk(folder: Path, nbytes: int) -> Iterator[Path]:
    """A disk of so many bytes; skips the test where none can be mounted."""
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={nbytes}", "none", str(folder)], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip("a small disk cannot be mounted: that needs root")
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def test_a_disk_that_is_full_on_one_node(source: Path, tmp_path: Path, expected: dict[str, bytes]) -> None:
    out = tmp_path / "o.tsds"
    tsds.clusters.plan(source, out, OPTIONS, tasks=3)
    with small_disk(tmp_path / "scratch", 400_000) as scratch:
        with pytest.raises(tsds.errors.ConversionError, match="the disk is full"):
            tsds.clusters.convert_task(out, 1, scratch=scratch)
        assert not list(scratch.iterdir())
    for task in (0, 2):
        tsds.clusters.convert_task(out, task)
    with pytest.raises(tsds.errors.UnfinishedError) as error:
        tsds.clusters.commit(out)
    assert error.value.tasks == "1"
    tsds.clusters.convert_task(out, 1)
    tsds.clusters.commit(out)
    assert contents(out) == expected


@pytest.mark.parametrize("shift", ["-1h", "+1h"])
def test_a_clock_that_is_an_hour_off(source: Path, tmp_path: Path, expected: dict[str, bytes], shift: str) -> None:
    if shutil.which("faketime") is None:
        pytest.skip("faketime is not here: apt-get install faketime")
    out = tmp_path / "o.tsds"
    tsds.clusters.plan(source, out, OPTIONS, tasks=2)
    tsds.clusters.convert_task(out, 1)
    wrong = ["faketime", "-f", shift, *TSDS, "convert", str(out), "--task", "0/2"]
    done = subprocess.run(wrong, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    tsds.clusters.commit(out)
    assert contents(out) == expected
