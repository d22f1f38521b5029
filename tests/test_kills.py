"""Commands that make a store of a store, or change one, are ended by a signal at random moments."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import tensorstore_ds as tsds
from small_stores import ROOT
from stores import contents
from tensorstore_ds.format.manifest import shard_path

pytestmark = [pytest.mark.slow, pytest.mark.skipif(os.name == "nt", reason="signals of POSIX")]

#: Commands that make the store OUT of the store a.tsds.
MAKING: dict[str, tuple[str, ...]] = {
    "filter": ("filter", "a.tsds", "OUT", "--split", "train"),
    "split": ("split", "a.tsds", "OUT", "train=0.5,val=0.5"),
    "relabel": ("relabel", "a.tsds", "OUT", "--class-map", "names.txt"),
    "sample": ("sample", "a.tsds", "OUT", "--per-class", "1"),
    "repack": ("repack", "a.tsds", "OUT", "--layout", "zarr"),
}
#: Commands that change a.tsds.
CHANGING: dict[str, tuple[str, ...]] = {
    "annotate": ("annotate", "a.tsds", "--license", "MIT"),
    "append": ("append", "a.tsds", "more", "--workers", "0"),
    "update": ("update", "a.tsds", "changed", "--workers", "0"),
    "erase": ("erase", "a.tsds", "--where", "'a/' in key"),
}
SIGNALS = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT) if os.name != "nt" else ()


def photos(folder: Path, names: str, *, seed: int) -> None:
    rng = np.random.default_rng(seed)
    for name in names:
        for split in ("train", "val"):
            (folder / split / name).mkdir(parents=True, exist_ok=True)
            for i in range(4):
                pixels = rng.integers(0, 256, (40, 50, 3), np.uint8)
                Image.fromarray(pixels).save(folder / split / name / f"{seed}-{i}.png")


def started(folder: Path, command: tuple[str, ...]) -> subprocess.Popen[bytes]:
    search = os.pathsep.join([str(ROOT), str(ROOT / "cli")])
    program = [sys.executable, "-c", "from tsds_cli.main import main; main()", *command]
    return subprocess.Popen(program, cwd=folder, env={**os.environ, "PYTHONPATH": search}, stderr=subprocess.DEVNULL)


def run(folder: Path, command: tuple[str, ...], statuses: tuple[int, ...] = (0,)) -> float:
    """Seconds that the command takes."""
    began = time.monotonic()
    process = started(folder, command)
    assert process.wait(timeout=100) in statuses
    return time.monotonic() - began


def state(store: Path) -> dict[str, bytes]:
    """What is in a store's files, but for shards that were replaced, which stay until the next change."""
    splits = tsds.open(store).manifest.splits
    gone = tuple(f"{shard_path(name, each)}/" for name, split in splits.items() for each in split.replaced)
    found = contents(store, "sha256", "version")
    return {name: data for name, data in found.items() if not name.startswith(gone)}


@pytest.mark.drawn(2)
@pytest.mark.parametrize("name", [*MAKING, *CHANGING])
def test_at_any_moment(tmp_path: Path, name: str) -> None:
    """The old store is as it was, or as it is to be; a new one is whole or absent; and the same command succeeds."""
    command = tuple("out.tsds" if each == "OUT" else each for each in (MAKING | CHANGING)[name])
    first, folder = tmp_path / "first", tmp_path / "work"
    photos(first / "photos", "ab", seed=1)
    tsds.convert(first / "photos", first / "a.tsds", tsds.ConvertOptions(workers=0, size=(32, 32)))
    photos(first / "more", "ab", seed=2)
    shutil.copytree(first / "photos", first / "changed")
    other = (first / "more" / "train" / "a" / "2-0.png").read_bytes()
    (first / "changed" / "train" / "a" / "1-0.png").write_bytes(other)
    (first / "names.txt").write_text("a = c\n")
    shutil.copytree(first, folder)
    made = folder / ("out.tsds" if name in MAKING else "a.tsds")
    lasts, old = run(folder, command), state(first / "a.tsds")
    new = state(made)
    assert new != old
    moments = random.Random(name)
    for i in range(int(os.environ.get("TSDS_KILLS", "6"))):
        shutil.rmtree(folder)
        shutil.copytree(first, folder)
        process = started(folder, command)
        time.sleep(moments.uniform(0.2, 1.0) * lasts)
        process.send_signal(SIGNALS[i % len(SIGNALS)])
        process.wait(timeout=100)
        listed, left = state(folder / "a.tsds"), tsds.verify(folder / "a.tsds")
        # What SIGKILL left is not listed; the same command removes it.
        assert {each.reason for each in left} <= ({"unlisted-file"} if process.returncode == -signal.SIGKILL else set())
        for each in left:
            del listed[each.where]
        assert listed in ((old,) if name in MAKING else (old, new))
        if name in MAKING and made.exists():
            assert tsds.verify(made) == [] and state(made) == new
            shutil.rmtree(made)
        run(folder, command, (0, 1) if name == "erase" and listed == new else (0,))  # nothing may be left to erase
        assert tsds.verify(made) == [] and state(made) == new
        assert sorted(os.listdir(folder)) == sorted({*os.listdir(first), made.name})
