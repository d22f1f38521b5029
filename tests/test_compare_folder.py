"""A folder as torchvision's own ImageFolder reads it, compared with its store."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from torchvision.datasets import ImageFolder

import tensorstore_ds as tsds
from jpeg_files import drawn, jpeg, oriented
from small_stores import tsds as command


def folder(root: Path) -> Path:
    for split in ("train", "val"):
        for label in ("cat", "dog"):
            (root / split / label).mkdir(parents=True)
            for i in range(3):
                (root / split / label / f"{i}.jpg").write_bytes(jpeg(drawn(20 + i, 30)))
    (root / "train/cat/turned.jpg").write_bytes(oriented(drawn(20, 30), 6))
    Image.fromarray(drawn(20, 30)).save(root / "train/dog/moving.gif")
    (root / "val/cat/broken.jpg").write_bytes(b"\xff\xd8\xff")
    return root


def test_what_differs_is_what_image_folder_reads(tmp_path: Path) -> None:
    source = folder(tmp_path / "photos")
    tsds.convert(source, tmp_path / "s.tsds", workers=0, on_error="skip")
    found = tsds.editing.compare_folder(source, tmp_path / "s.tsds")
    train, val = found["train"], found["val"]
    for name, each in found.items():
        listed = ImageFolder(str(source / name), allow_empty=True)
        keys = {Path(path).relative_to(source).as_posix() for path, _ in listed.samples}
        stored = tsds.open(tmp_path / "s.tsds")[name]
        assert each.both == len(keys & {stored.key(row) for row in range(len(stored))})
        assert each.only_folder.count == len(keys - {stored.key(row) for row in range(len(stored))})
        assert each.compared == each.both - each.turned.count and not each.pixels.count and not each.classes
    assert train.only_store[".gif"].keys == ["train/dog/moving.gif"] and list(train.only_store) == [".gif"]
    assert train.turned.keys == ["train/cat/turned.jpg"] and not train.only_folder.count
    assert val.only_folder.keys == ["val/cat/broken.jpg"] and not val.only_store and not val.turned.count
    one = tsds.editing.compare_folder(source / "train", tmp_path / "s.tsds")
    assert list(one) == ["train"] and one["train"].both == train.both


def test_changed_files_and_labels_are_found(tmp_path: Path) -> None:
    source = folder(tmp_path / "photos")
    for gone in ("train/cat/turned.jpg", "train/dog/moving.gif", "val/cat/broken.jpg"):
        (source / gone).unlink()
    tsds.convert(source, tmp_path / "s.tsds", workers=0)
    assert all(each.is_empty for each in tsds.editing.compare_folder(source, tmp_path / "s.tsds").values())
    assert command("compare", str(source), str(tmp_path / "s.tsds")).exit_code == 0
    (source / "train/cat/1.jpg").write_bytes(jpeg(255 - drawn(21, 30)))
    tsds.editing.relabel_store(tmp_path / "s.tsds", tmp_path / "t.tsds", {"cat": "zebra"})
    found = tsds.editing.compare_folder(source, tmp_path / "t.tsds")["train"]
    assert found.pixels.keys == ["train/cat/1.jpg"] and found.labels.count == 3
    tsds.convert(source, tmp_path / "o.tsds", workers=0, classes=("dog", "cat"))
    assert (
        tsds.editing.compare_folder(source, tmp_path / "o.tsds")["train"].classes == "cat, dog; the store has dog, cat"
    )
    tsds.convert(source, tmp_path / "small.tsds", workers=0, size=(8, 8))
    small = tsds.editing.compare_folder(source, tmp_path / "small.tsds")["train"]
    assert small.resized and not small.compared and small.is_empty


def test_the_command_and_another_folder(tmp_path: Path) -> None:
    source = folder(tmp_path / "photos")
    tsds.convert(source, tmp_path / "s.tsds", workers=0, on_error="skip")
    done = command("compare", str(source), str(tmp_path / "s.tsds"))
    assert done.exit_code == 1
    assert "train  turned by EXIF, as ImageFolder does not: 1 sample: train/cat/turned.jpg" in done.output
    assert "train  only in the store, .gif: 1 sample: train/dog/moving.gif" in done.output
    said = json.loads(command("compare", str(source), str(tmp_path / "s.tsds"), "--json").output)
    assert said["equal"] is False and said["splits"]["val"]["only_folder"]["count"] == 1
    shutil.rmtree(source)
    (source / "a").mkdir(parents=True)
    np.save(source / "a" / "x.npy", np.zeros(3))
    with pytest.raises(tsds.OptionError, match=r"photos: expected the folder of .*, found no train/cat/0.jpg in it"):
        tsds.editing.compare_folder(source, tmp_path / "s.tsds")
