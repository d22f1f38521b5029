"""Folders as tools export them: each is converted without any option, to the right samples, splits and boxes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import tensorstore_ds as tsds
from labelling_files import write
from layouts import BOXES, CLASSES, HEIGHT, IMAGE, LAYOUTS, WIDTH
from stores import image_file


def image_bytes(name: str) -> bytes:
    return image_file(Image.new("RGB", (WIDTH, HEIGHT)), "PNG" if name.endswith(".png") else "JPEG")


def write_layout(root: Path, name: str) -> Path:
    files = LAYOUTS[name][0].items()
    return write(root, {path: image_bytes(path) if content == IMAGE else content for path, content in files})


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_layout_is_converted_without_options(tmp_path: Path, name: str) -> None:
    summary = tsds.convert(write_layout(tmp_path / "pets", name), tmp_path / "s.tsds", tsds.ConvertOptions(workers=0))
    assert (summary.skipped, tsds.verify(summary.path)) == ({}, [])
    assert not any("mask" in note for note in summary.notes)  # annotations in XML are none
    store = tsds.open(tmp_path / "s.tsds")
    found = {split: [str(key) for key in store[split]["key"]] for split in store.splits}
    assert found == LAYOUTS[name][1]
    classes = store["train" if "train" in store.splits else "default"].fields["objects"].classes
    assert [each for each in classes if each in CLASSES] == list(CLASSES)
    for split, keys in found.items():
        for row in range(len(keys)):
            objects = store[split]["objects"][row]
            assert [classes[label] for label in objects["labels"]] == [label for *_, label in BOXES]
            np.testing.assert_allclose(objects["boxes"], [box for *box, _ in BOXES], atol=1e-4)
