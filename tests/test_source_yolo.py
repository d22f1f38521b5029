"""Ultralytics and Darknet: data.yaml, layouts of folders, rows of every kind, and every refusal."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import tensorstore_ds as tsds
from jpeg_files import exif_of
from labelling_files import Case, Files, Found, Has, blank, case, check, found, stored, write
from tensorstore_ds.annex.sources.yolo.config import Config
from tensorstore_ds.annex.sources.yolo.labels import parse_labels
from tensorstore_ds.errors import SourceError
from tensorstore_ds.format.schema import Keypoints

NAN = [None, None]
NAMES = "names: [cat, dog]\n"
ROW = "0 0.5 0.5 0.25 0.5\n"
BOX = [0.375, 0.25, 0.625, 0.75]


def rows(text: str, config: str = NAMES, **expected: object) -> Case:
    """A data set that is one image with these rows."""
    files = {"data.yaml": f"train: images\n{config}", "images/a.jpg": "", "labels/a.txt": text}
    return case(files, **{"problems": [], **expected})


def layout(files: Files, *images: str, **expected: object) -> Case:
    """Several images, of which one has the box of `ROW`."""
    return case({**files, **blank(*images)}, **{"classes": ["cat", "dog"], "said": [], **expected})


def invalid(text: str) -> Case:
    return rows(ROW, text, refused="data-yaml")


def read(root: Path, files: Files | None = None, **options: object) -> Found:
    got = found(write(root, files or {}), "yolo", **options)
    assert all(each.relative for some in got.samples.values() for each in some)
    return got


LAYOUTS = {
    "Ultralytics": layout(
        {
            "data.yaml": f"path: ../datasets/x\ntrain: images/train\nval: images/val\ntest:\n{NAMES}",
            "labels/train/a.txt": ROW, "labels/val/b.txt": "",
        },
        "images/train/a.jpg", "images/val/b.jpg",
        keys={"train": ["images/train/a.jpg"], "val": ["images/val/b.jpg"]}, boxes=[[BOX], []],
    ),
    "absolute paths": layout(
        {
            "x.yml": f"train: /content/cells/images/one\nval: C:\\cells\\images\\two\n{NAMES}", "labels/one/a.txt": ROW,
        },
        "images/one/a.jpg", "images/two/b.jpg",
        keys={"train": ["images/one/a.jpg"], "val": ["images/two/b.jpg"]}, boxes=[[BOX], []],
    ),
    "lists": layout(
        {
            "cfg/data.yaml": f"path: ..\ntrain: [train.txt, images/more]\nval: lists/val.txt\n{NAMES}",
            "train.txt": "./images/b.jpg\n/data/x/images/a.jpg\n\n./images/b.jpg\n",
            "lists/val.txt": "../images/c.jpg\n", "labels/a.txt": ROW,
        },
        "images/a.jpg", "images/b.jpg", "images/c.jpg", "images/more/d.jpg",
        keys={"train": ["images/b.jpg", "images/a.jpg", "images/more/d.jpg"], "val": ["images/c.jpg"]},
        boxes=[[], [BOX], [], []],
    ),
    "images/train": layout(
        {"labels/train2017/a.txt": ROW}, "images/train2017/a.jpg", "images/val2017/b.jpg", classes=["0"],
        keys={"train": ["images/train2017/a.jpg"], "val": ["images/val2017/b.jpg"]}, boxes=[[BOX], []],
    ),
    "no splits": layout(
        {"labels/b.txt": ROW, "classes.txt": "cat\ndog\n", "labels/classes.txt": "x"}, "images/a.jpg", "images/b.jpg",
        keys={"train": ["images/a.jpg", "images/b.jpg"]}, boxes=[[], [BOX]], said=["labels/classes.txt: not read."],
    ),
    "suffixes in any case, and the names of Roboflow's Darknet": layout(
        {"train/A.TXT": ROW, "train/b.txt": ROW, "train/_darknet.labels": "cat\ndog\n"}, "train/A.JPG", "train/b.jpg",
        notes=[], boxes=[[BOX], [BOX]],
    ),
    "a suffix in upper case": layout(
        {"labels/A.TXT": ROW}, "images/A.JPG", classes=["0"], notes=[], boxes=[[BOX]]
    ),
    "names in the form of macOS": layout(
        {"labels/u\u0308.txt": ROW, "labels/o\u0308.txt": ROW, "labels/\xf6.txt": ""},
        "images/\xfc.jpg", "images/\xf6.jpg",
        classes=["0"], boxes=[[], [BOX]], said=[Has("labels/o\u0308.txt: not stored: no image")],
    ),
    "a folder of images apart": case(
        {"here/labels/a.txt": ROW, "here/labels/b.txt": ROW, **blank("there/a.jpg", "there/b.jpg")}, "here",
        {"images": "there"}, keys={"train": ["a.jpg", "b.jpg"]}, boxes=[[BOX], [BOX]],
    ),
    "what is left out": layout(
        {
            "data.yaml": f"train: images/train\nval: images/train\ntest: images/test\n{NAMES}",
            "labels/train/a.txt": f"{ROW}1 0 0 0 0\n{ROW}", "labels/train/lost.txt": ROW,
        },
        "images/train/a.jpg", "images/other/b.jpg", keys={"train": ["images/train/a.jpg"]}, names=[["cat", "dog"]],
        left_out=[
            ("test", "empty-split"), ("val", "split-union"), ("images/other/b.jpg", "not-listed"),
            ("labels/train/a.txt", "duplicate-object"), ("labels/train/lost.txt", "no-image"),
        ],
        said=[Has(""), Has(""), Has(""), Has("1 rows that repeat others, in lines 3"), Has("")],
    ),
    "problems name file and line": layout(
        {
            "data.yaml": f"train: train.txt\n{NAMES}", "train.txt": "".join(f"images/{x}.jpg\n" for x in "abcdef"),
            "labels/a.txt": f"{ROW}\n0 0.5\n", "labels/b.txt": "7 0.5 0.5 0.5 0.5", "labels/c.txt": ROW,
            "labels/e.txt": "0 .5 .5 nan .5",
        },
        *(f"images/{name}.jpg" for name in "abcef"), keys={"train": ["images/c.jpg", "images/f.jpg"]},
        problems=[
            ("images/d.jpg", "no-image"), ("labels/a.txt", "annotation"), ("labels/b.txt", "unknown-class"),
            ("labels/e.txt", "annotation"),
        ],
        said=[
            Has("train.txt line 4"), Has("line 3: expected a class and 4 numbers"), Has("b.txt"), Has("e.txt"),
            Has("a.jpg"),
        ],
        notes=["1 images have no label file: they are stored as images without objects."],
    ),
    # names
    "another number of classes": rows(
        "1 .5 .5 .1 .1\n", "nc: 3\nnames: [a, b]\n",
        notes=["data.yaml: nc is 3, but names has 2. The names are read."],
    ),
    "the number of classes": rows("1 .5 .5 .1 .1\n", "nc: 2\nnames: [a, b]\n", notes=[]),
    "names by their numbers": rows(
        "3 .5 .5 .1 .1\n1 .5 .5 .1 .1\n", "names:\n  3: no\n  1: 'on'\n  2: 0.50\n", classes=["on", "0.50", "no"],
        names=[["no", "on"]],
    ),
    "numbers without names": rows("2.0 .5 .5 .1 .1\n", "nc: 4\n", classes=["0", "1", "2", "3"], names=[["2"]]),
    "given names": rows(
        "2.0 .5 .5 .1 .1\n", "names:\n", options={"classes": ("a", "b", "c")}, classes=["a", "b", "c"], names=[["c"]]
    ),
    "names in another order": rows(ROW, options={"classes": ("dog", "cat")}, classes=["dog", "cat"], names=[["cat"]]),
    "a name of two classes": rows(
        ROW, "names: [a, b, a]\n", refused=("data-yaml", "expected each name once, found 'a' for the classes 0 and 2")
    ),
    # rows
    "polygons have hulls": rows(
        "0 .1 .2 .3 .2 .3 .4 .1 .4\n1 0.5 0.1 0.9 0.6 0.2 0.7\n0 .1 .2 .3 .2 .3 .4 .1 .4 .05 .3\n",
        boxes=[[[0.1, 0.2, 0.3, 0.4], [0.2, 0.1, 0.9, 0.7], [0.05, 0.2, 0.3, 0.4]]], left_out=[],
        names=[["cat", "dog", "cat"]],
        polygons=[[
            [[0.1, 0.2], [0.3, 0.2], [0.3, 0.4], [0.1, 0.4]], [[0.5, 0.1], [0.9, 0.6], [0.2, 0.7]],
            [[0.1, 0.2], [0.3, 0.2], [0.3, 0.4], [0.1, 0.4], [0.05, 0.3]],
        ]],
    ),
    **{
        f"keypoints of {dimensions} numbers{' with names' if names else ''}": rows(
            text, f"{NAMES}kpt_shape: [3, {dimensions}]\nflip_idx: [1, 0, 2]\n",
            options={"keypoints": Keypoints(names, ((0, 1),))} if names else {}, keypoints=names or ("0", "1", "2"),
            points=[[[[0.4, 0.6], NAN, NAN]]], flip_pairs=[(0, 1)],
        )
        for dimensions, text in (
            (2, "0 .5 .5 .2 .2 .4 .6 0 0 -1 .5\n"), (3, "0 .5 .5 .2 .2 .4 .6 1 .9 .9 0 0 0 2\n")
        )
        for names in ((), ("l", "r", "m"))
    },
    "keypoints of another number": rows(
        "0 .5 .5 .2 .2 .4 .6 0 0 -1 .5\n", f"{NAMES}kpt_shape: [3, 2]\n", options={"keypoints": Keypoints(("l", "r"))},
        refused=("unknown-keypoint", "expected 3 names of keypoints"),
    ),
    "names of keypoints": rows(
        "", f"{NAMES}kpt_shape: [2, 2]\nkpt_names:\n  0: [left_eye, right_eye]\n",
        keypoints=["left_eye", "right_eye"], flip_pairs=[(0, 1)],
    ),
    "keypoints without their shape": rows(
        f"0 .5 .5 .2 .2{' .4 .6' * 4}\n", notes=[Has("all rows have 13 numbers")],
        values=["boxes", "labels", "polygons"],
    ),
    # refused
    "no images": case({"data.yaml": f"train: images\n{NAMES}"}, refused="empty-source"),
    "no labels": case({"data.yaml": f"train: images\n{NAMES}", "images/a.jpg": ""}, refused="no-annotation"),
    "two configurations": case(
        {"a.yaml": f"train: x\n{NAMES}", "b.yaml": f"train: y\n{NAMES}"}, refused="several-datasets"
    ),
    "images beside splits": case(
        {"labels/train/a.txt": ROW, **blank("images/train/a.jpg", "images/b.jpg")}, refused="split-name"
    ),
    "an empty name": case(
        {"images/a.jpg": "", "labels/a.txt": ROW, "classes.txt": "a\n\nb\n"}, refused="data-yaml"
    ),
    **{
        f"configuration: {text}": invalid(text)
        for text in (
            "names: [a, a]\n", "names: {x: a}\n", "names: a\n", "names: ['']\n", "names: [[a]]\n",
            'names: ["\\ud800"]\n', "nc: -1\n", "nc: 99999999\n", "names: [a\n", "names: [a]\nval: {a: b}\n",
            "names: [a]\npath: [a]\n", "nc: 1\nkpt_shape: 3\n", "nc: 1\nkpt_shape: [3, 4]\n",
            "nc: 1\nkpt_shape: [2, 2]\nflip_idx: [1, 1]\n", "names: *a\n",
            "names: !!python/object/apply:os.system [x, x]\n", "names: &a [*a]\n", "nc: 1\n? [a]\n: b\n",
            "names: [a]\nnames: [b]\n", "names:\n  0: a\n  0: b\n",
        )
    },
}  # fmt: skip


@pytest.mark.parametrize("name", LAYOUTS)
def test_what_is_read(name: str, tmp_path: Path) -> None:
    check(LAYOUTS[name], tmp_path, "yolo")


def test_a_data_yaml_is_a_source(tmp_path: Path) -> None:
    got = found(write(tmp_path, LAYOUTS["Ultralytics"].files) / "data.yaml")
    assert (got.source.name, got.keys) == ("yolo", LAYOUTS["Ultralytics"].expected["keys"])
    files = got.source.files(got.contents.splits["train"][0])
    assert files == (f"{tmp_path}/images/train/a.jpg", f"{tmp_path}/labels/train/a.txt")
    assert got.source.common_files() == (tmp_path / "data.yaml",)


def test_paths_that_were_read_are_never_opened(tmp_path: Path) -> None:
    write(tmp_path, {"secret/images/x.jpg": "", "secret/x.txt": "images/a.jpg\n"})
    config = f"path: {tmp_path}/secret\ntrain: {tmp_path}/secret/images\nval: ../secret/x.txt\n{NAMES}"
    got = read(tmp_path / "in", {"data.yaml": config, "images/a.jpg": "", "labels/a.txt": ROW})
    assert (got.keys, got.left_out) == ({"train": ["images/a.jpg"]}, [("val", "empty-split")])


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("0 .5 .5 .5", "found 4 numbers"),
        ("0 .5 .5 .5 .5 .9", r"\(a sixth number is the confidence"),
        (f"0{' .5' * 55}", r"found 56 numbers in all \(keypoints need kpt_shape"),
        ("0 .5 .5 .5 1.02", "found 1.02"),
        ("0 .5 .5 -.02 .5", "found -0.02"),
        ("0 .5 .5 1e999 .5", "found inf"),
        ("0 .5 .5 nan .5", "found 'nan'"),
        ("0 .5 .5 1_0 .5", "found '1_0'"),
        ("0 .5 .5 . .5", "found '.'"),
        ("cat .5 .5 .5 .5", "found 'cat'"),
        ("-1 .5 .5 .5 .5", "found '-1'"),
        ("0.5 .5 .5 .5 .5", "found '0.5'"),
        ("\u0660 .5 .5 .5 .5", "expected the number of a class"),
        ("70000 .5 .5 .5 .5", "expected a class from 0 to 65535"),
    ],
)
def test_rows_that_are_refused(row: str, message: str) -> None:
    with pytest.raises(SourceError, match=f"line 2: .*{message}"):
        parse_labels(f"\n{row}\n".encode(), "a.txt", Config())


def test_rounding_beyond_the_edge_is_taken() -> None:
    (row,) = parse_labels(b"\xef\xbb\xbf0 1.0000001 0.5 0.2 -0.0001\r\n", "a.txt", Config()).objects
    np.testing.assert_allclose(row.box, [0.9, 0.50005, 1.1, 0.49995], atol=1e-6)


@pytest.mark.parametrize("orientation", [1, 6])
def test_fractions_are_of_the_image_as_it_is_shown(orientation: int, tmp_path: Path) -> None:
    write(tmp_path, {"in/labels/a.txt": "0 0.5 0.5 1 1\n0 0.25 0.125 0.5 0.25\n", "in/images/b.txt": ""})
    Image.new("RGB", (60, 40)).save(tmp_path / "in/images/a.jpg", exif=exif_of(orientation))
    width, height = (60, 40) if orientation == 1 else (40, 60)
    expected = [[0, 0, width, height], [0, 0, width / 2, height / 4]]
    np.testing.assert_allclose(stored(tmp_path / "in")["train"]["objects"][0]["boxes"], expected)


def test_keypoints_become_pixels_of_the_stored_image(tmp_path: Path) -> None:
    config = "train: images\nnames: [x]\nkpt_shape: [2, 3]\n"
    write(tmp_path, {"in/data.yaml": config, "in/labels/a.txt": "0 .5 .5 1 1 .5 .25 2 0 0 0\n", "in/images/": ""})
    Image.new("L", (60, 40)).save(tmp_path / "in/images/a.png")
    objects = stored(tmp_path / "in", fit=tsds.Fit((80, 120), "stretch"))["train"]["objects"][0]
    np.testing.assert_allclose(objects["keypoints"], [[[60, 20], [np.nan, np.nan]]])
    np.testing.assert_allclose(objects["boxes"], [[0, 0, 120, 80]])
