"""What `estimate` says is what `convert` does: rows, fields, what is left out, and the notes."""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import tensorstore_ds as tsds
import test_source_contract as contract
from tensorstore_ds.imaging.picture import WholePicture

SKIP = {"on_error": "skip"}
TILES = tsds.conversion.ImageTiles(16)
OPTIONS: list[dict[str, Any]] = [
    {},
    SKIP,
    {"size": (24, 24)},
    {"fit": tsds.Fit((24, 24), "crop", min_visibility=0.5), **SKIP},
    {"encoding": "jpeg", "on_error": "skip-image"},
    {"encoding": "jpeg", "fit": tsds.conversion.Shrink(30), **SKIP},
    {"encoding": "source"},
    {"encoding": "source", **SKIP},
    {"encoding": tsds.conversion.SourceFiles(check="headers")},
    {"color": "rgb", **SKIP},
    {"cut": tsds.conversion.ObjectCrops(), **SKIP},
    {"cut": TILES, "color": "rgb", **SKIP},
    {"cut": TILES},
    {"encoding": tsds.conversion.Auto(quality=95), **SKIP},
]
NAMES = [" ".join(map(str, options.values())) or "none" for options in OPTIONS]


def foreseen(source: Path, options: Mapping[str, Any]) -> dict[str, Any]:
    try:
        found = tsds.estimate(source, **options)
    except tsds.OptionError as error:
        return {"refused": str(error)}
    except tsds.SourceError as error:
        return {"reason": error.reason}
    return {
        "rows": found.rows,
        "classes": found.classes,
        "fields": {name: field.dump() for name, field in found.fields.items()},
        "left out": sorted(map(str, found.left_out)),
        "notes": sorted(found.notes),
    }


def done(source: Path, out: Path, options: Mapping[str, Any]) -> dict[str, Any]:
    try:
        summary = tsds.convert(source, out, workers=0, **options)
    except tsds.OptionError as error:
        return {"refused": str(error)}
    except tsds.SourceError as error:
        return {"reason": error.reason}
    fields = tsds.open(out).manifest.fields
    return {
        "rows": summary.rows,
        "classes": next((field.classes for field in fields.values() if field.classes), ()),
        "fields": {name: field.dump() for name, field in fields.items()},
        "left out": sorted(map(str, summary.left_out)),
        "notes": sorted(summary.notes),
    }


@pytest.mark.slow
@pytest.mark.drawn(2)
@pytest.mark.parametrize("options", OPTIONS, ids=NAMES)
def test_of_every_source(options: dict[str, Any], tmp_path: Path) -> None:
    for number, name in enumerate(contract.ALL):
        root = contract.make(name, tmp_path / f"{number}")
        assert foreseen(root, options) == done(root, tmp_path / f"{number}.tsds", options), name


def _put(path: Path, size: tuple[int, int] = (40, 60), mode: str = "RGB") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng(size[0]).integers(0, 256, (*size, 3), np.uint8)
    Image.fromarray(pixels).convert(mode).save(path)


def _damaged(path: Path) -> None:
    _put(path)
    path.write_bytes(path.read_bytes()[:-60])


def _deep(path: Path) -> None:
    Image.fromarray(np.full((40, 60), 40_000, np.uint16)).save(path)


FOLDERS = {
    "one size": lambda path, i: _put(path / f"{i}.jpg"),
    "sizes": lambda path, i: _put(path / f"{i}.jpg", (40 + i, 60)),
    "gray and color": lambda path, i: _put(path / f"{i}.jpg", mode="L" if i % 2 else "RGB"),
    "gray and color of sizes": lambda path, i: _put(path / f"{i}.png", (40 + i, 60), "L" if i % 2 else "RGB"),
    "alpha": lambda path, i: _put(path / f"{i}.png", mode="RGBA"),
    "formats": lambda path, i: _put(path / f"{i}.{('jpg', 'png', 'avif', 'webp')[i % 4]}", (40 + i, 60)),
    "damaged": lambda path, i: (_damaged if i == 2 else _put)(path / f"{i}.jpg"),
    "no image": lambda path, i: _put(path / f"{i}.jpg") if i != 2 else (path / "2.jpg").write_text("text"),
    "16 bits": lambda path, i: (_put if i != 2 else _deep)(path / f"{i}.png"),
}


@pytest.mark.slow
@pytest.mark.drawn(12)
@pytest.mark.parametrize("options", OPTIONS, ids=NAMES)
@pytest.mark.parametrize("kind", FOLDERS)
def test_of_photographs(kind: str, options: dict[str, Any], tmp_path: Path) -> None:
    """A dry run decodes some samples, here all of them, but not all tiles."""
    if kind == "damaged" and options.get("cut") == TILES:
        options = {**options, "cut": None}
    for name in ("cat", "dog"):
        for i in range(5):
            FOLDERS[kind](tmp_path / "in" / name, i)
    assert foreseen(tmp_path / "in", options) == done(tmp_path / "in", tmp_path / "out.tsds", options)


def _voc(root: Path, images: list[tuple[str, str]]) -> Path:
    """Images of these modes with a box that is good or bad."""
    root.mkdir()
    for i, (mode, which) in enumerate(images):
        _put(root / f"{i}.png", mode=mode)
        box = "<xmin>1</xmin><ymin>2</ymin><xmax>9</xmax><ymax>9</ymax>"
        box = box if which == "good" else box.replace("<xmax>9", "<xmax>1")
        found = f"<object><name>cat</name><bndbox>{box}</bndbox></object>"
        (root / f"{i}.xml").write_text(f"<annotation>{found}</annotation>")
    return root


@pytest.mark.parametrize("encoding", ["auto", "raw", "jpeg", "source"])
@pytest.mark.parametrize("bad", [0, 1, 2])
def test_an_image_that_is_skipped_is_no_model_for_others(bad: int, encoding: str, tmp_path: Path) -> None:
    images = [("L", "bad") if i == bad else ("RGB", "good") for i in range(3)]
    source, options = _voc(tmp_path / "in", images), {"encoding": encoding, "on_error": "skip-image"}
    made = done(source, tmp_path / "out.tsds", options)
    assert made["rows"] == {"train": 2} and foreseen(source, options) == made


def test_no_image_is_left(tmp_path: Path) -> None:
    source, options = _voc(tmp_path / "in", [("RGB", "bad")]), {"on_error": "skip-image"}
    assert foreseen(source, options) == done(source, tmp_path / "out.tsds", options) == {"reason": "box-empty"}


def test_images_are_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    alive, most = weakref.WeakSet[WholePicture](), 0
    made = WholePicture.__init__

    def counted(picture: WholePicture, *args: Any) -> None:
        nonlocal most
        made(picture, *args)
        alive.add(picture)
        most = max(most, len(alive))

    monkeypatch.setattr(WholePicture, "__init__", counted)
    tsds.estimate([np.full((30 + i % 2, 20), i, np.uint8) for i in range(40)])
    assert 1 <= most < 20  # some are compared in other encodings
