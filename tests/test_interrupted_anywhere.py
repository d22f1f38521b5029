"""Ctrl-C at the lines of what makes a store, a file or an export: nothing half done is left.

The signal is a real one, which waits where signals are kept waiting. Each run is of a few rows, in one process.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import interrupt_lines
import tensorstore_ds as tsds

pytestmark = [pytest.mark.slow, pytest.mark.skipif(os.name != "posix", reason="signals of POSIX")]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A store, with the same as one file beside it, and arrays to append to it."""
    folder = tmp_path_factory.mktemp("sweep")
    for name, count in (("first", 6), ("more", 9)):
        (folder / name).mkdir()
        images = np.random.default_rng(0).integers(0, 256, (count, 5, 4, 3), np.uint8)
        np.save(folder / name / "images.npy", images)
        np.save(folder / name / "labels.npy", np.arange(count) % 3)
    options = tsds.ConvertOptions(workers=0, split_into={"train": 0.5, "val": 0.5})
    tsds.convert(folder / "first", folder / "store.tsds", options)
    tsds.pack(folder / "store.tsds", folder / "packed.tsds")
    return folder / "store.tsds", folder / "more"


@pytest.mark.drawn(3)
@pytest.mark.timeout(3600)  # all lines of an append take a quarter of an hour beside others
@pytest.mark.parametrize("name", interrupt_lines.CALLS)
def test_an_interrupt_at_a_line_leaves_nothing_half_done(
    name: str, made: tuple[Path, Path], tmp_path: Path, eighth: slice
) -> None:
    cases = slice(None, None, 5) if name in ("export", "pack") else eighth
    words = [name, *made, tmp_path, cases.start or 0, cases.step or 1]
    command = [sys.executable, interrupt_lines.__file__, *map(str, words)]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    *found, total = run.stdout.splitlines()
    assert found == []
    assert int(total) > 100
