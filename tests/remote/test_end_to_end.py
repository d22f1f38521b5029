"""Two people on one machine who share only a server: what one makes, the other trains on."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import tensorstore_ds as tsds

ANSWERS = """description = "Squares that were drawn."
"""


def run(folder: Path, *words: str) -> str:
    """The command, in a folder that has a cache of its own."""
    environment = {**os.environ, "TSDS_CACHE_DIR": str(folder / "cache")}
    command = [sys.executable, "-m", "tsds_cli", *words]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def draw(folder: Path) -> None:
    rng = np.random.default_rng(0)
    for split, count in (("train", 24), ("test", 8)):
        for i in range(count):
            place = folder / split / ("dark", "light")[i % 2]
            place.mkdir(parents=True, exist_ok=True)
            pixels = rng.integers(128 * (i % 2), 128 + 128 * (i % 2), (32, 32, 3), np.uint8)
            Image.fromarray(pixels).save(place / f"{i}.png")


@pytest.mark.slow
def test_a_store_goes_from_one_to_the_other(bucket: str, tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    one.mkdir()
    two.mkdir()
    url = f"{bucket}/shared/squares.tsds"
    draw(one / "squares")
    run(one, "convert", "squares", "squares.tsds", "--license", "CC0-1.0")
    (one / "answers.toml").write_text(ANSWERS)
    run(one, "card", "squares.tsds", "--from", "answers.toml", "--croissant")
    assert "Squares that were drawn." in (one / "squares-card" / "README.md").read_text()
    run(one, "push", "squares.tsds", url)
    store = tsds.open(one / "squares.tsds")

    run(two, "pull", url, "copy.tsds", "--only", "test")
    run(two, "verify", "copy.tsds")
    assert tsds.open(two / "copy.tsds").splits == ("test",)
    assert "CC0-1.0" in run(two, "info", url)
    run(two, "train", url, "--epochs", "1", "--device", "cpu", "--out", "run", "--batch-size", "8")
    assert (two / "run" / "best.pt").exists()

    dataset = tsds.StoreDataset(tsds.open(url, cache_dir=two / "cache"))
    local = sorted(image.tobytes() for image in store["train"]["image"][:])
    for _ in range(2):
        batches = tsds.DataLoader(dataset, 8, shuffle=True)
        images = [image.permute(1, 2, 0).numpy() for batch in batches for image in batch["image"]]
        assert sorted(image.tobytes() for image in images) == local
    run(two, "verify", url)
    kept = tsds.reading.cached_stores(two / "cache")
    assert [(store_kept.sha256, store_kept.is_whole) for store_kept in kept] == [(store.sha256, True)]
