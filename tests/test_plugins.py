"""The example package is installed with pip, and adds a source format, an export format and a command."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from small_stores import ROOT

pytestmark = pytest.mark.slow

PLUGIN = ROOT / "examples" / "plugin"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the installed package."""
    site, copy = tmp_path_factory.mktemp("site"), tmp_path_factory.mktemp("copy")
    for file in PLUGIN.iterdir():
        if file.is_file():
            (copy / file.name).write_bytes(file.read_bytes())
    options = ["--no-deps", "--no-build-isolation", "--no-index", "--quiet", "--target", str(site)]
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", *options, str(copy)]
    made = subprocess.run(command, capture_output=True, text=True, check=False, cwd=copy)
    assert made.returncode == 0, made.stdout + made.stderr
    return site


def tsds(site: Path, *arguments: object, status: int = 0) -> str:
    search = os.pathsep.join([str(site), str(ROOT), str(ROOT / "cli")])
    program = [sys.executable, "-c", "from tsds_cli.main import main; main()", *map(str, arguments)]
    environment = {**os.environ, "PYTHONPATH": search}
    ended = subprocess.run(program, capture_output=True, text=True, check=False, env=environment)
    assert ended.returncode == status, ended.stdout + ended.stderr
    return ended.stdout if status == 0 else ended.stderr


def write(folder: Path, names: dict[str, str]) -> dict[str, np.ndarray[Any, Any]]:
    """Images with their classes, and the pixels."""
    folder.mkdir()
    pixels = {}
    for i, (name, label) in enumerate(names.items()):
        pixels[name] = np.random.default_rng(i).integers(0, 256, (5, 7, 3), np.uint8)
        Image.fromarray(pixels[name]).save(folder / name)
        (folder / name).with_suffix(".cls").write_text(f"{label}\n")
    return pixels


def test_there_and_back(site: Path, tmp_path: Path) -> None:
    names = {"a.png": "cat", "b.png": "dog", "c.png": "cat"}
    pixels = write(tmp_path / "pets", names)
    tsds(site, "convert", tmp_path / "pets", tmp_path / "pets.tsds", "--workers", 2)
    assert tsds(site, "classes", tmp_path / "pets.tsds").split() == ["train", "cat", "2", "train", "dog", "1"]
    tsds(site, "export", tmp_path / "pets.tsds", tmp_path / "again", "--to", "cls")
    for name, label in names.items():
        file = tmp_path / "again" / "train" / name
        np.testing.assert_array_equal(np.asarray(Image.open(file)), pixels[name])
        assert file.with_suffix(".cls").read_text() == f"{label}\n"


def test_a_class_that_changes_after_an_interruption(site: Path, tmp_path: Path) -> None:
    source, image = tmp_path / "pets", tmp_path / "pets/c.png"
    write(source, {"a.png": "cat", "b.png": "dog", "c.png": "cat"})
    data = image.read_bytes()
    image.write_bytes(data[:60])
    command = ("convert", source, tmp_path / "pets.tsds", "--workers", 0, "--shard-size", "105B")
    tsds(site, *command, status=1)
    image.write_bytes(data)
    (source / "a.cls").write_text("dog\n")
    tsds(site, *command)
    assert tsds(site, "classes", tmp_path / "pets.tsds").split() == ["train", "cat", "1", "train", "dog", "2"]


def test_a_planned_conversion(site: Path, tmp_path: Path) -> None:
    write(tmp_path / "pets", {"a.png": "cat", "b.png": "dog"})
    tsds(site, "plan", tmp_path / "pets", tmp_path / "pets.tsds")
    tsds(site, "convert", tmp_path / "pets.tsds", "--task", "0/1", "--workers", 0)
    tsds(site, "commit", tmp_path / "pets.tsds")
    assert "dog 1" in tsds(site, "classes", tmp_path / "pets.tsds")


def test_they_are_listed(site: Path) -> None:
    assert "from tsds-cls" in tsds(site, "--help")
    assert "cls" in tsds(site, "export", "--help") and "cls" in tsds(site, "convert", "--help")
    assert "Did you mean classes?" in tsds(site, "clases", status=2)


def test_an_image_without_a_label_is_a_bad_sample(site: Path, tmp_path: Path) -> None:
    write(tmp_path / "pets", {"a.png": "cat", "b.png": "dog"})
    (tmp_path / "pets" / "b.cls").unlink()
    assert "b.png: expected a .cls file" in tsds(site, "convert", tmp_path / "pets", tmp_path / "o.tsds", status=1)


def test_a_package_that_cannot_be_imported_is_named(tmp_path: Path) -> None:
    about = tmp_path / "site" / "tsds_broken-2.0.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: tsds-broken\nVersion: 2.0\n")
    (about / "entry_points.txt").write_text("[tsds.sources]\nbroken = no_such_module:Source\n")
    write(tmp_path / "pets", {"a.png": "cat"})
    error = tsds(about.parent, "convert", tmp_path / "pets", tmp_path / "o.tsds", status=1)
    assert error.count("\n") == 1 and "tsds-broken 2.0: no_such_module:Source cannot be imported" in error
    tsds(about.parent, "convert", tmp_path / "pets", tmp_path / "o.tsds", "--format", "folders")
