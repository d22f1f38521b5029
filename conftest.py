"""Where the examples in docstrings run: an empty folder with the stores and folders that they mention.

An example that mentions ``photos.tsds`` finds a copy of it in its working directory. Each thing of `MAKERS` is made
once in a session, when the first example mentions it. Examples use `tsds`, `np`, `torch` and `Path` without an import.
"""

from __future__ import annotations

import importlib.util
import json
import operator
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from pytest import DoctestItem

import tensorstore_ds as tsds

HAS_TORCH = importlib.util.find_spec("torch") is not None


def pytest_configure(config: pytest.Config) -> None:
    """Without torch, collect the examples of all modules that do not import it."""
    if not HAS_TORCH:  # a module that imports it is skipped
        config.option.doctest_ignore_import_errors = True


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Examples that measure or train for seconds are slow tests."""
    for item in items:
        examples = item.dtest.examples if isinstance(item, DoctestItem) and item.dtest is not None else ()
        if any(re.search(r"\btsds\.(bench|forecast|train)\(", example.source) for example in examples):
            item.add_marker("slow")


def picture(height: int, width: int, seed: int) -> Image.Image:
    """A noisy image, of which no two are alike."""
    rng = np.random.default_rng(seed)
    coarse = Image.fromarray(rng.integers(0, 256, (4, 4, 3), np.uint8)).resize((width, height))
    return Image.fromarray((np.asarray(coarse) // 2 + rng.integers(0, 128, (height, width, 3))).astype(np.uint8))


def photos(path: Path) -> None:
    """8 + 4 PNG images of 32 x 32 pixels, in folders of splits and classes."""
    for split, count in (("train", 4), ("val", 2)):
        for label, name in enumerate(("cat", "dog")):
            folder = path / split / name
            folder.mkdir(parents=True)
            for i in range(count):
                picture(32, 32, 100 * label + 10 * count + i).save(folder / f"{i}.png")


def voc(path: Path) -> None:
    """4 + 2 images of differing sizes in the layout of Pascal VOC, with one or two boxes each."""
    for folder in ("Annotations", "JPEGImages", "ImageSets/Main"):
        (path / folder).mkdir(parents=True)
    for split, rows in (("train", range(4)), ("val", range(4, 6))):
        for row in rows:
            height, width = ((60, 80), (80, 60))[row % 2]
            picture(height, width, row).save(path / f"JPEGImages/{row}.jpg", quality=95)
            boxes = [("cat", 10, 10, 30, 40), ("dog", 20, 20, 50, 50)][: 1 + row % 2]
            objects = "".join(
                f"<object><name>{name}</name><bndbox><xmin>{x1 + 1}</xmin><ymin>{y1 + 1}</ymin><xmax>{x2}</xmax>"
                f"<ymax>{y2}</ymax></bndbox></object>"
                for name, x1, y1, x2, y2 in boxes
            )
            text = f"<annotation><filename>{row}.jpg</filename>{objects}</annotation>"
            (path / f"Annotations/{row}.xml").write_text(text, "utf-8")
        (path / f"ImageSets/Main/{split}.txt").write_text("".join(f"{row}\n" for row in rows), "utf-8")


def coco(path: Path) -> None:
    """2 images with a polygon each, and their annotations as JSON of COCO."""
    path.mkdir()
    images, annotations = [], []
    for row in range(2):
        picture(32, 48, row).save(path / f"{row}.png")
        images.append({"id": row, "file_name": f"{row}.png", "height": 32, "width": 48})
        corners = [8, 8, 24, 8, 24, 24 - 8 * row, 8, 24 - 8 * row]
        box = [8, 8, 16, 16 - 8 * row]
        objects = {"id": row, "image_id": row, "category_id": 1, "bbox": box, "area": box[2] * box[3], "iscrowd": 0}
        annotations.append({**objects, "segmentation": [corners]})
    data = {"images": images, "annotations": annotations, "categories": [{"id": 1, "name": "cat"}]}
    (path / "annotations.json").write_text(json.dumps(data), "utf-8")


def store(source: Callable[[Path], None], **options: Any) -> Callable[[Path], None]:
    """What makes the store of a source."""

    def make(path: Path) -> None:
        source(path.with_suffix(".source"))
        tsds.convert(path.with_suffix(".source"), path, workers=0, progress=lambda event: None, **options)

    return make


def run(path: Path) -> None:
    """The folder of a short training run on photos.tsds."""
    MAKERS["photos.tsds"](path.with_suffix(".tsds"))
    tsds.train(path.with_suffix(".tsds"), out=path, epochs=1, model="seed", device="cpu", batch_size=4, torch_threads=1)


#: What examples find by its name, and how it is made at a path.
MAKERS: dict[str, Callable[[Path], None]] = {
    "photos": photos,
    "photos.tsds": store(photos),
    "voc": voc,
    "voc.tsds": store(voc),
    "coco": coco,
    "coco.tsds": store(coco),
    "photos.run": run,
}


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The path of one of `MAKERS` by its name, which is made when it is first asked for."""
    found = dict[str, Path]()

    def make(name: str) -> Path:
        if name not in found:
            found[name] = tmp_path_factory.mktemp("examples") / name
            MAKERS[name](found[name])
        return found[name]

    return make


@pytest.fixture
def place(
    made: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[[str], dict[str, Any]]:
    """What makes the working directory of an example, and returns the names that it uses without an import."""

    def prepare(source: str) -> dict[str, Any]:
        skip_without_torch(source)
        names: dict[str, Any] = {"tsds": tsds, "np": np, "Path": Path}
        if re.search(r"\btorch\b", source):
            names["torch"] = pytest.importorskip("torch")
        for name in MAKERS:
            if re.search(rf"""["'/]{re.escape(name)}["'/]""", source):
                shutil.copytree(made(name), tmp_path / name)
        monkeypatch.chdir(tmp_path)
        return names

    return prepare


@pytest.fixture(autouse=True)
def place_of_example(request: pytest.FixtureRequest) -> None:
    """Prepare the examples of a docstring, and no other test."""
    if isinstance(request.node, DoctestItem) and request.node.dtest is not None:
        source = "".join(example.source for example in request.node.dtest.examples)
        for name, value in request.getfixturevalue("place")(source).items():
            request.node.dtest.globs.setdefault(name, value)


def skip_without_torch(source: str) -> None:
    """Without torch, skip an example that uses a name of `tsds` that needs it."""
    if not HAS_TORCH:
        for name in re.findall(r"\btsds\.((?:[a-z_]+\.)?\w+)", source):
            try:
                operator.attrgetter(name)(tsds)
            except (ModuleNotFoundError, AttributeError):  # the latter where pytest tried to import the module before
                pytest.skip(f"tsds.{name} needs torch")
