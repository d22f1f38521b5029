"""DOTA's text files: corners, flags, headers, splits, folders of both kinds of boxes, and every refusal."""

from __future__ import annotations

from pathlib import Path

import pytest

from labelling_files import Has, blank, case, check, found, write

HEADERS = b"imagesource:GoogleEarth\r\ngsd:0.146343590398\r\n"
GOLDEN = HEADERS + (
    b"2753 2408 2861 2385 2888 2468 2805 2502 plane 0\r\n"
    b"3445.5, 3391\t3484 3409 3478 3422 3437 3402 large-vehicle 1\r\n"
)
ONE, UPRIGHT = b"1 2 9 4 8 8 0 6 ship 2\n", b"0 0 9 0 9 9 0 9 ship 0\n"

CASES = {
    "a data set as it is downloaded": case(  # a difficulty of 2 is harder yet
        {
            **blank(*(f"train/images/P000{i}.png" for i in (0, 1, 9)), "val/images/P0001.png"),
            "train/labelTxt/P0000.txt": GOLDEN, "val/labelTxt/P0001.txt": ONE,
            "train/labelTxt/P0001.txt": b"acquisition dates:2018\nimagesource:GoogleEarth\ngsd:null\n",
        },
        keys={"train": ["train/images/P0000.png", "train/images/P0001.png"], "val": ["val/images/P0001.png"]},
        classes=["large-vehicle", "plane", "ship"], values=["boxes", "oriented_boxes", "labels", "difficult"],
        boxes=[[[2753, 2385, 2888, 2502], [3437, 3391, 3484, 3422]], [], [[0, 2, 9, 8]]],
        oriented_boxes=[
            [
                [[2753, 2408], [2861, 2385], [2888, 2468], [2805, 2502]],
                [[3445.5, 3391], [3484, 3409], [3478, 3422], [3437, 3402]],
            ],
            [], [[[1, 2], [9, 4], [8, 8], [0, 6]]],
        ],
        names=[["plane", "large-vehicle"], [], ["ship"]], difficult=[[0, 1], [], [1]],
        left_out=[("train/images/P0009.png", "not-listed")],
    ),
    **{
        f"folders: {image}": case({image: "", text: ONE}, keys={"train": [image]})
        for image, text in (
            ("images/train/a.png", "labelTxt/train/a.txt"),
            ("images/part1/a.png", "labelTxt-v1.5/DOTA-v1.5_train/a.txt"),
            ("train/a.png", "train/a.txt"),
            ("train/images/a.png", "train/annfiles/a.txt"),
            ("train/images/a.JPG", "train/labels/a.txt"),
        )
    },
    "upright boxes beside the oriented ones": case(
        {"train/images/a.png": "", "train/labelTxt/a.txt": ONE, "train/labelTxt-hbb/a.txt": UPRIGHT},
        boxes=[[[0, 2, 9, 8]]], notes=[Has("upright boxes are not read")],
    ),
    "upright boxes alone": case(
        {"train/images/a.png": "", "train/labelTxt-hbb/a.txt": UPRIGHT}, boxes=[[[0, 0, 9, 9]]]
    ),
    "files that do not fit the others": case(
        {"a.txt": ONE, "a.png": "", "b.txt": ONE, "notes.txt": "Downloaded in May.", "deep/a.txt": ONE},
        problems=[("b.txt", "no-image"), ("deep/a.txt", "duplicate-key")], left_out=[("notes.txt", "not-listed")],
    ),
    "no images": case({"a.txt": ONE}, refused=("no-image", "expected an image named a")),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_what_is_read(name: str, tmp_path: Path) -> None:
    check(CASES[name], tmp_path, "dota")


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
    files = {**blank("images/a.png", "images/b.png"), "labelTxt/a.txt": ONE + line, "labelTxt/b.txt": ONE}
    got = found(write(tmp_path, files), "dota")
    assert (got.keys, got.problems) == ({"train": ["images/b.png"]}, [("labelTxt/a.txt", "annotation")])
    assert "line 2" in got.said[0] and words in got.said[0]


@pytest.mark.parametrize(("name", "line"), [("yolo", "0 0.1 0.1 0.9 0.1 0.5 0.9 0.2 0.7"), ("list", "a.png cat")])
def test_labels_of_yolo_and_lists_stay_what_they_are(tmp_path: Path, name: str, line: str) -> None:
    assert found(write(tmp_path, {"a.png": "", "a.txt": line})).source.name == name
