"""Coordinates that are fractions of the image in a format of pixels, and boxes that are mostly outside of the image."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import tensorstore_ds as tsds
from tensorstore_ds.conversion.values import ImageTiles, ObjectCrops

FRACTIONS = {"a": [(0.1, 0.1, 0.5, 0.75), (0.25, 0.5, 1.0, 1.0)], "b": [(0.0, 0.2, 0.5, 0.4)]}
SIZES = {"a": (60, 80), "b": (40, 20)}


def voc(root: Path, boxes: dict[str, list[tuple[float, ...]]]) -> Path:
    root.mkdir()
    for name, found in boxes.items():
        height, width = SIZES[name]
        Image.new("RGB", (width, height), (9, 99, 199)).save(root / f"{name}.png")
        objects = "".join(
            f"<object><name>cat</name><bndbox><xmin>{x1}</xmin><ymin>{y1}</ymin><xmax>{x2}</xmax><ymax>{y2}</ymax>"
            f"</bndbox><point name='nose' x='{x1}' y='{y1}'/></object>"
            for x1, y1, x2, y2 in found
        )
        (root / f"{name}.xml").write_text(f"<annotation><filename>{name}.png</filename>{objects}</annotation>")
    return root


def stored(store: Path) -> dict[str, np.ndarray]:
    split = tsds.open(store)["train"]
    return {split.key(row): split["objects"][row]["boxes"] for row in range(len(split))}


def test_fractions_are_told_and_converted(tmp_path: Path) -> None:
    root = voc(tmp_path / "voc", FRACTIONS)
    plain = tsds.convert(root, tmp_path / "plain.tsds", encoding="source", workers=0)
    (note,) = [note for note in plain.notes if "within 0 and 1" in note]
    assert note.startswith("3 objects are within 0 and 1 pixel, such as (0.1, 0.1, 0.5, 0.75) in a.png, an image of 60")
    assert 'boxes="fraction"' in note
    assert note in tsds.estimate(root, encoding="source").notes
    summary = tsds.convert(root, tmp_path / "out.tsds", encoding="source", boxes="fraction", workers=0)
    assert not any("within 0 and 1" in note for note in summary.notes)
    for name, found in stored(tmp_path / "out.tsds").items():
        height, width = SIZES[name[0]]
        expected = np.array(FRACTIONS[name[0]]) * [width, height, width, height]
        np.testing.assert_allclose(found, expected, rtol=1e-6)
    points = tsds.open(tmp_path / "out.tsds")["train"]["objects"][0]["keypoints"]
    np.testing.assert_allclose(points[:, 0], np.array([[0.1 * 80, 0.1 * 60], [0.25 * 80, 0.5 * 60]]), rtol=1e-6)
    silent = tsds.convert(root, tmp_path / "pixels.tsds", encoding="source", boxes="pixels", workers=0)
    assert not any("within 0 and 1" in note for note in silent.notes)


HOW = [{"cut": ObjectCrops()}, {"cut": ImageTiles(32)}, {"key_prefix": "x/"}, {"size": (30, 40)}]


@pytest.mark.parametrize("how", HOW)
def test_fractions_become_pixels_before_all_else(tmp_path: Path, how: dict[str, object]) -> None:
    pixels = {
        name: [tuple(np.array(box) * (SIZES[name][::-1] * 2)) for box in found] for name, found in FRACTIONS.items()
    }
    one = tsds.convert(voc(tmp_path / "a", FRACTIONS), tmp_path / "1.tsds", boxes="fraction", workers=0, **how)  # type: ignore[arg-type]
    two = tsds.convert(voc(tmp_path / "b", pixels), tmp_path / "2.tsds", workers=0, **how)  # type: ignore[arg-type]
    assert one.rows == two.rows
    one_boxes, two_boxes = stored(tmp_path / "1.tsds"), stored(tmp_path / "2.tsds")
    assert one_boxes.keys() == two_boxes.keys()
    for key, found in one_boxes.items():
        np.testing.assert_allclose(found, two_boxes[key], atol=1e-4)


def test_boxes_mostly_outside_are_told(tmp_path: Path) -> None:
    boxes: dict[str, list[tuple[float, ...]]] = {"a": [(-10, -5, 200, 300), (1, 1, 20, 20), (-1, -1, 50, 50)], "b": []}
    root = voc(tmp_path / "voc", boxes)
    summary = tsds.convert(root, tmp_path / "out.tsds", encoding="source", workers=0)
    expected = "1 box is cut at the edge of the image to less than half of the area, such as (-10, -5, 200, 300)"
    (note,) = [note for note in summary.notes if "cut at the edge" in note]
    assert note == f"{expected} in a.png, an image of 60x80."
    assert note in tsds.estimate(root, encoding="source").notes
