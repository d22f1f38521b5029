"""DOTA's text files: corners, flags, headers, splits, folders of both kinds of boxes, and every refusal."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, strategies as st

from labelling_files import field, keys, objects, reasons, refused, scan, write
from tensorstore_ds.annex.sources.dota import read_labels
from tensorstore_ds.errors import SourceError
from tensorstore_ds.sources import open_source

HEADERS = b"imagesource:GoogleEarth\r\ngsd:0.146343590398\r\n"
GOLDEN = HEADERS + (
    b"2753 2408 2861 2385 2888 2468 2805 2502 plane 0\r\n3445.5 3391 3484 3409 3478 3422 3437 3402 large-vehicle 1\r\n"
)
ONE = b"1 2 9 4 8 8 0 6 ship 2\n"


def test_a_data_set_as_it_is_downloaded(tmp_path: Path) -> None:
    files = {
        "train/images/P0000.png": "",
        "train/images/P0001.png": "",
        "train/images/P0009.png": "",
        "train/labelTxt/P0000.txt": GOLDEN,
        "train/labelTxt/P0001.txt": b"acquisition dates:2018\nimagesource:GoogleEarth\ngsd:null\n",
        "val/images/P0001.png": "",
        "val/labelTxt/P0001.txt": ONE,
    }
    source, contents = scan(write(tmp_path, files), "dota")
    train = ["train/images/P0000.png", "train/images/P0001.png"]
    assert keys(source, contents) == {"train": train, "val": ["val/images/P0001.png"]}
    assert field(contents).classes == ("large-vehicle", "plane", "ship")
    assert set(field(contents).values) == {"boxes", "labels", "oriented_boxes", "difficult"}
    found = objects(source, contents)
    np.testing.assert_array_equal(found["boxes"], [[2753, 2385, 2888, 2502], [3437, 3391, 3484, 3422]])
    np.testing.assert_array_equal(found["oriented_boxes"][0], [[2753, 2408], [2861, 2385], [2888, 2468], [2805, 2502]])
    assert (found["labels"].tolist(), found["difficult"].tolist()) == ([1, 0], [0, 1])
    assert len(objects(source, contents, "train", 1)["boxes"]) == 0
    assert objects(source, contents, "val")["difficult"].tolist() == [1]  # 2 is harder yet
    assert reasons(contents.left_out) == [("train/images/P0009.png", "not-listed")]


@pytest.mark.parametrize(
    ("image", "text"),
    [
        ("images/train/a.png", "labelTxt/train/a.txt"),
        ("images/part1/a.png", "labelTxt-v1.5/DOTA-v1.5_train/a.txt"),
        ("train/a.png", "train/a.txt"),
        ("train/images/a.png", "train/annfiles/a.txt"),
        ("train/images/a.JPG", "train/labels/a.txt"),
    ],
)
def test_folders(tmp_path: Path, image: str, text: str) -> None:
    source, contents = scan(write(tmp_path, {image: "", text: ONE}), "dota")
    assert keys(source, contents) == {"train": [image]}


def test_upright_boxes_beside_the_oriented_ones(tmp_path: Path) -> None:
    upright = b"0 0 9 0 9 9 0 9 ship 0\n"
    files = {"train/images/a.png": "", "train/labelTxt/a.txt": ONE, "train/labelTxt-hbb/a.txt": upright}
    source, contents = scan(write(tmp_path / "both", files), "dota")
    np.testing.assert_array_equal(objects(source, contents)["boxes"], [[0, 2, 9, 8]])
    assert len(contents.notes) == 1
    del files["train/labelTxt/a.txt"]
    source, contents = scan(write(tmp_path / "alone", files), "dota")
    np.testing.assert_array_equal(objects(source, contents)["boxes"], [[0, 0, 9, 9]])


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (b"1 2 3 4 5 6 7 plane 0", "expected x1 y1"),
        (b"1 2 3 4 5 6 7 8", "expected x1 y1"),
        (b"1 2 3 4 5 6 7 x plane 0", "expected x1 y1"),
        (b"1 2 3 4 5 6 7 nan plane 0", "expected x1 y1"),
        (b"1 2 3 4 5 6 7 8 plane 0 0", "expected x1 y1"),
        (b"1 2 3 4 5 6 7 1e10 plane 0", "within a billion"),
        (b"1 2 3 4 5 6 7 1e999 plane 0", "within a billion"),
        (b"1 2 3 4 5 6 7 8 plane 3", "difficulty of 0, 1 or 2"),
        (b"1 2 3 4 5 6 7 8 \xff 0", "in UTF-8"),
        (b"gsd:0.1", "expected x1 y1"),
    ],
)
def test_bad_lines_make_their_image_bad(tmp_path: Path, line: bytes, words: str) -> None:
    with pytest.raises(SourceError, match=words):
        read_labels(ONE + line, "a.txt")
    files = {"images/a.png": "", "images/b.png": "", "labelTxt/a.txt": ONE + line, "labelTxt/b.txt": ONE}
    source, contents = scan(write(tmp_path, files), "dota")
    assert keys(source, contents) == {"train": ["images/b.png"]}
    assert reasons(contents.problems) == [("labelTxt/a.txt", "annotation")]
    assert "line 2" in contents.problems[0].message


def test_files_that_do_not_fit_the_others(tmp_path: Path) -> None:
    files = {"a.txt": ONE, "a.png": "", "b.txt": ONE, "notes.txt": "Downloaded in May.", "deep/a.txt": ONE}
    _, contents = scan(write(tmp_path, files), "dota")
    assert reasons(contents.problems) == [("b.txt", "no-image"), ("deep/a.txt", "duplicate-key")]
    assert reasons(contents.left_out) == [("notes.txt", "not-listed")]
    assert refused(write(tmp_path / "none", {"a.txt": ONE}), "dota", "expected an image named a") == "no-image"


def test_labels_of_yolo_and_lists_stay_what_they_are(tmp_path: Path) -> None:
    for name, line in {"yolo": "0 0.1 0.1 0.9 0.1 0.5 0.9 0.2 0.7", "list": "a.png cat"}.items():
        write(tmp_path / name, {"a.png": "", "a.txt": line})
        assert open_source(tmp_path / name).name == name


@given(st.lists(st.floats(-1e6, 1e6), min_size=8, max_size=8), st.sampled_from((" ", ", ", "\t")))
def test_any_corners_are_read(values: list[float], separator: str) -> None:
    line = separator.join([*map(repr, values), "ship", "1"])
    (found,) = read_labels(line.encode(), "a.txt")
    assert [value for corner in found.oriented for value in corner] == values
    assert found.box == (min(values[::2]), min(values[1::2]), max(values[::2]), max(values[1::2]))
    assert all(map(math.isfinite, found.box)) and found.flags == {"difficult": 1}
