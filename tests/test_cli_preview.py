from __future__ import annotations

import resource
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from small_stores import image_field, tsds, write_store


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Row r of train is all of gray value 10 * r, of val 200 + r."""
    train = np.broadcast_to((np.arange(20, dtype=np.uint8) * 10)[:, None, None, None], (20, 8, 8, 1)).copy()
    val = np.broadcast_to((np.arange(3, dtype=np.uint8) + 200)[:, None, None, None], (3, 8, 8, 1)).copy()
    fields = {"image": image_field(train)}
    folder = tmp_path_factory.mktemp("preview")
    return write_store(folder / "s", fields, ("val", 3, {"image": val}), ("train", 20, {"image": train}))


def drawn(path: Path, values: Any) -> list[int]:
    """Which of the gray values fill a whole picture of the sheet, 112 x 112 pixels."""
    pixels = np.asarray(Image.open(path))
    return [v for v in values if (pixels == v).all(axis=2).sum() >= 112 * 112]


def preview(store: Path, out: Path, *arguments: object) -> str:
    done = tsds("preview", store, "--out", out, *arguments)
    assert done.exit_code == 0
    return done.stdout


def test_chosen_rows(store: Path, tmp_path: Path) -> None:
    out = tmp_path / "p.png"
    said = preview(store, out, "--rows", "1,5,7")
    assert drawn(out, range(10, 200, 10)) == [10, 50, 70]
    with Image.open(out) as image:
        assert said == f"{out}: 3 samples of train, {image.width} x {image.height} pixels\n"
        assert image.format == "PNG"


def test_a_draw_of_some(store: Path, tmp_path: Path) -> None:
    draws = []
    for i, seed in enumerate((0, 1, 0)):
        preview(store, tmp_path / f"{i}.png", "--count", 6, "--seed", seed)
        draws.append(drawn(tmp_path / f"{i}.png", range(10, 200, 10)))
        assert 5 <= len(draws[-1]) <= 6  # row 0 is black, as the letters may be
    assert draws[0] == draws[2] != draws[1]
    preview(store, tmp_path / "all.png", "--count", 99)
    assert drawn(tmp_path / "all.png", range(10, 200, 10)) == [*range(10, 200, 10)]


def test_the_split_and_the_name_of_the_file(store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "p.png"
    assert "3 samples of val" in preview(store, out, "--split", "val")
    assert drawn(out, range(200, 203)) == [200, 201, 202]
    monkeypatch.chdir(tmp_path)
    assert tsds("preview", store).stdout.startswith("preview.png: 20 samples of train, ")
    assert (tmp_path / "preview.png").exists()


def test_a_picture_that_cannot_be_written_leaves_the_one_before(store: Path, tmp_path: Path) -> None:
    out = tmp_path / "p.png"
    preview(store, out)
    before, limits = out.read_bytes(), resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20, limits[1]))
    try:
        done = tsds("preview", store, "--out", out)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert done.exit_code == 1
    assert done.stderr.startswith(f"tsds: {out}: expected to write it, found: File too large.")
    assert [path.name for path in tmp_path.iterdir()] == ["p.png"] and out.read_bytes() == before
