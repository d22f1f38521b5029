"""What a store would give: a folder before it is converted, measured by real processes."""

from __future__ import annotations

import os
import tarfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import tensorstore_ds as tsds
from small_stores import tsds as run_tsds
from stores import class_folders, files_of
from tensorstore_ds.annex.measuring import forecast as module
from tensorstore_ds.sources.base import Reference, Source, SourceOptions

pytestmark = [pytest.mark.slow, pytest.mark.drawn(1, of="forecasts")]


def test_a_folder_of_images(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = class_folders(tmp_path / "pets", per_class=6)
    before = files_of(folder)
    monkeypatch.setattr(module, "MOST", 5)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    found = tsds.forecast(folder, seconds=4, batch_size=4, device="cpu")
    assert (found.samples, found.split, found.measured) == (12, "train", 4)  # a third of the images
    for phase in ("load", "train"):
        files, store = (found.best(phase, group) for group in ("files", "store"))  # type: ignore[arg-type]
        assert files is not None and store is not None and files.rate and store.rate
        assert found.gain(phase) == store.rate / files.rate  # type: ignore[arg-type]
    assert found.wait is not None and 0 <= found.wait < 1
    ways = [way for way in found.comparison.ways if not way.reason]
    assert all(way.correct for way in ways) and {way.reader for way in ways} == {"ImageFolder", ""}
    assert files_of(folder) == before and not list(tmp_path.glob("tsds-*"))  # torch leaves a folder of its own there


def test_bad_images_are_not_counted(tmp_path: Path) -> None:
    folder = class_folders(tmp_path / "pets", per_class=3)
    next((folder / "train").rglob("*.png")).write_bytes(b"no image")
    found = tsds.forecast(folder, seconds=1, batch_size=4, model="none", device="cpu")
    assert (found.samples, found.measured, found.not_measured) == (5, 5, "")
    files = found.best("load", "files")
    assert files is not None and files.rate and all(way.correct for way in found.comparison.ways if not way.reason)


def test_a_format_without_image_files(tmp_path: Path) -> None:
    np.savez(tmp_path / "digits.npz", image=np.zeros((40, 8, 8), np.uint8), label=np.arange(40) % 4)
    done = run_tsds("doctor", tmp_path / "digits.npz", "--seconds", 2, "--batch-size", 8, "--device", "cpu")
    assert done.exit_code == 0, done.output
    assert "files: expected image files in the folder of the source, found none (arrays)" in done.stdout
    assert done.stdout.splitlines()[-1].endswith(f"tsds convert {tmp_path}/digits.npz digits.tsds")
    assert os.listdir(tmp_path) == ["digits.npz"]


def test_a_store_is_recommended_where_it_is_faster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Measured rates of files and of the store, as if the store came to `factor` times the files' rate."""
    monkeypatch.chdir(tmp_path)
    class_folders(tmp_path / "pets", per_class=4)
    found = tsds.forecast("pets", seconds=2, batch_size=4, model="none", device="cpu")
    stores = {way.name for way in found.comparison.ways if way.group == "store"}
    for factor, ending in ((0.1, "Is the machine busy? Then measure again later"), (10.0, "/pets pets.tsds")):
        cells = [replace(each, rate=factor if each.way in stores else 1.0) for each in found.comparison.cells]
        cells = [new for new, each in zip(cells, found.comparison.cells, strict=True) if each.rate]
        changed = replace(found, comparison=replace(found.comparison, cells=cells))
        monkeypatch.setattr(tsds, "forecast", lambda *_, changed=changed, **__: changed)
        lines = run_tsds("doctor", "pets").stdout.splitlines()
        assert lines[0].endswith("pets, train: 8 samples of the format folders") and lines[-1].endswith(ending)
        assert any(line.startswith("    an epoch") and "  8.0 s  " in line for line in lines)
        assert not any("measured with" in line for line in lines)


def test_links_stay_in_their_folder(tmp_path: Path) -> None:
    (tmp_path / "list").mkdir()
    (tmp_path / "a").mkdir()
    for path in (tmp_path / "list" / "in.png", tmp_path / "out.png"):
        Image.new("L", (4, 4)).save(path)

    class Listed(Source):
        def files(self, reference: Reference) -> tuple[str, ...]:
            return (f"{self.path}/{reference}",)

    source = Listed(tmp_path / "list", SourceOptions())
    assert module._linked(source, ["in.png", "../out.png"], tmp_path / "a" / "links") is None
    assert sorted(path.name for path in (tmp_path / "a").iterdir()) == ["links"]
    linked = module._linked(source, ["in.png"], tmp_path / "a" / "more")
    assert linked is not None and [path.name for path in linked.iterdir()] == ["in.png"]


def test_a_list_and_a_compressed_archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    (tmp_path / "images").mkdir()
    for i in range(8):
        Image.new("L", (5, 4), i).save(tmp_path / "images" / f"{i}.png")
    (tmp_path / "all.csv").write_text("path,label\n" + "".join(f"images/{i}.png,{i % 2}\n" for i in range(8)))
    listed = tsds.forecast(tmp_path / "all.csv", seconds=2, batch_size=4, model="none", device="cpu")
    assert not listed.not_measured and listed.gain("load")
    with tarfile.open(tmp_path / "all.tar.gz", "w:gz") as archive:
        archive.add(tmp_path / "images", "cat")
    packed = tsds.forecast(tmp_path / "all.tar.gz", seconds=2, batch_size=4, model="none", device="cpu")
    assert packed.measured == 8 and packed.not_measured and packed.best("load", "store")
    assert not list(tmp_path.glob("tsds-*"))  # nor what was decompressed


def test_damaged_images_are_counted(tmp_path: Path) -> None:
    folder = class_folders(tmp_path / "pets", per_class=4)
    first = next(folder.rglob("*.png"))
    first.write_bytes(first.read_bytes()[:40])
    Image.new("RGB", (9, 9)).save(first.with_name("odd.png"))
    done = run_tsds("doctor", folder, "--seconds", 2, "--batch-size", 4, "--model", "none", "--device", "cpu")
    assert done.exit_code == 0, done.output
    assert "problem in the source: tsds convert --dry-run names them" in done.stdout
    assert "training" not in done.stdout.splitlines()[2]


def test_what_is_refused(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("nothing")
    done = run_tsds("doctor", tmp_path)
    assert done.exit_code == 1 and "expected images, found none in this folder" in done.stderr
    folder = class_folders(tmp_path / "pets", per_class=2)
    with pytest.raises(tsds.OptionError, match="`split`: expected one of test, train, found valid"):
        tsds.forecast(folder, split="valid")
    for flag, value in (("--memory", "1GB"), ("--threads", "2"), ("--prefetch", "2"), ("--model", "small")):
        done = run_tsds("doctor", folder, flag, value)
        assert (done.exit_code, done.stderr.split(":")[1]) == (1, f" {flag}"), done.output
