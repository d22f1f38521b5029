"""Ultralytics and Darknet: data.yaml, layouts of folders, rows of every kind, and every refusal."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st
from PIL import Image

import labelling_files
import tensorstore_ds as tsds
from labelling_files import field, keys, reasons, write
from tensorstore_ds.errors import SourceError
from tensorstore_ds.format.schema import Keypoints
from tensorstore_ds.sources import open_source
from tensorstore_ds.sources.base import Contents, Objects, Source, SourceOptions
from tensorstore_ds.sources.yolo.config import Config
from tensorstore_ds.sources.yolo.labels import parse_labels
from tensorstore_ds.sources.yolo.layout import candidates

NAN = float("nan")
NAMES = "names: [cat, dog]\n"
ROW = "0 0.5 0.5 0.25 0.5\n"
BOX = [0.375, 0.25, 0.625, 0.75]


def scan(path: Path, **options: Any) -> tuple[Source, Contents]:
    return labelling_files.scan(path, "yolo", **options)


def objects(source: Source, contents: Contents, split: str = "train", row: int = 0) -> Objects:
    assert source.read(split, contents.splits[split][row]).relative
    return labelling_files.objects(source, contents, split, row)


def of_rows(rows: str, tmp_path: Path, config: str = NAMES) -> tuple[Objects, Contents]:
    files = {"data.yaml": f"train: images\n{config}", "images/a.jpg": "", "labels/a.txt": rows}
    source, contents = scan(write(tmp_path, files))
    assert contents.problems == ()
    return objects(source, contents), contents


# --- layouts ------------------------------------------------------------------------------------------------------

LAYOUTS: dict[str, tuple[dict[str, str], dict[str, list[str]]]] = {
    "Ultralytics": (
        {
            "data.yaml": f"path: ../datasets/x\ntrain: images/train\nval: images/val\ntest:\n{NAMES}",
            **{"images/train/a.jpg": "", "images/val/b.jpg": "", "labels/train/a.txt": ROW, "labels/val/b.txt": ""},
        },
        {"train": ["images/train/a.jpg"], "val": ["images/val/b.jpg"]},
    ),
    "Roboflow": (
        {
            "data.yaml": f"train: ../train/images\nval: ../valid/images\nnc: 2\n{NAMES}",
            **{"train/images/a.jpg": "", "valid/images/b.jpg": "", "train/labels/a.txt": ROW, "README.txt": "Hello."},
        },
        {"train": ["train/images/a.jpg"], "val": ["valid/images/b.jpg"]},
    ),
    "absolute paths": (
        {
            "x.yml": f"train: /content/cells/images/one\nval: C:\\cells\\images\\two\n{NAMES}",
            **{"images/one/a.jpg": "", "images/two/b.jpg": "", "labels/one/a.txt": ROW},
        },
        {"train": ["images/one/a.jpg"], "val": ["images/two/b.jpg"]},
    ),
    "lists": (
        {
            "cfg/data.yaml": f"path: ..\ntrain: [train.txt, images/more]\nval: lists/val.txt\n{NAMES}",
            "train.txt": "./images/b.jpg\n/data/x/images/a.jpg\n\n./images/b.jpg\n",
            "lists/val.txt": "../images/c.jpg\n",
            **dict.fromkeys(("images/a.jpg", "images/b.jpg", "images/c.jpg", "images/more/d.jpg"), ""),
            "labels/a.txt": ROW,
        },
        {"train": ["images/b.jpg", "images/a.jpg", "images/more/d.jpg"], "val": ["images/c.jpg"]},
    ),
    "images/train": (
        {"images/train2017/a.jpg": "", "images/val2017/b.jpg": "", "labels/train2017/a.txt": ROW},
        {"train2017": ["images/train2017/a.jpg"], "val2017": ["images/val2017/b.jpg"]},
    ),
    "train/images": (
        {"train/images/a.jpg": "", "valid/images/b.jpg": "", "train/labels/a.txt": ROW},
        {"train": ["train/images/a.jpg"], "valid": ["valid/images/b.jpg"]},
    ),
    "no splits": (
        {
            "images/a.jpg": "",
            "images/b.jpg": "",
            "labels/b.txt": ROW,
            "classes.txt": "cat\ndog\n",
            "labels/classes.txt": "x",
        },
        {"train": ["images/a.jpg", "images/b.jpg"]},
    ),
    "LabelImg": (
        {"a.jpg": "", "a.txt": ROW, "b.jpg": "", "classes.txt": "cat\ndog\n"},
        {"train": ["a.jpg", "b.jpg"]},
    ),
    "Darknet, as CVAT writes it": (
        {
            **{"obj.data": "classes = 2\n", "obj.names": "cat\ndog\n", "train.txt": "data/obj_train_data/a.jpg\n"},
            **{"obj_train_data/a.jpg": "", "obj_train_data/a.txt": ROW},
        },
        {"train": ["obj_train_data/a.jpg"]},
    ),
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_layouts(name: str, tmp_path: Path) -> None:
    files, expected = LAYOUTS[name]
    source, contents = scan(write(tmp_path, files))
    assert keys(source, contents) == expected
    unread = {"no splits": ["labels/classes.txt"], "Darknet, as CVAT writes it": ["obj.data"]}.get(name, [])
    assert (contents.problems, [(p.where, p.reason) for p in contents.left_out]) == (
        (),
        [(each, "not-read") for each in unread],
    )
    found = [
        objects(source, contents, split, row)["boxes"]
        for split, references in contents.splits.items()
        for row in range(len(references))
    ]
    np.testing.assert_allclose(np.concatenate(found), [BOX])
    assert field(contents).classes == (("0",) if name in ("images/train", "train/images") else ("cat", "dog"))


def test_a_data_yaml_is_a_source_too(tmp_path: Path) -> None:
    files, expected = LAYOUTS["Ultralytics"]
    source, contents = scan(write(tmp_path, files) / "data.yaml")
    assert keys(source, contents) == expected
    assert source.files(contents.splits["train"][0]) == (
        f"{tmp_path}/images/train/a.jpg",
        f"{tmp_path}/labels/train/a.txt",
    )
    assert source.common_files() == (tmp_path / "data.yaml",)


def test_a_folder_of_images_apart(tmp_path: Path) -> None:
    write(tmp_path, {"here/labels/a.txt": ROW, "here/labels/b.txt": ROW, "there/a.jpg": "", "there/b.jpg": ""})
    source = open_source(tmp_path / "here", "yolo", SourceOptions(images=tmp_path / "there"))
    contents = source.contents()
    assert keys(source, contents) == {"train": ["a.jpg", "b.jpg"]}
    assert source.files(contents.splits["train"][0]) == (f"{tmp_path}/there/a.jpg", f"{tmp_path}/here/labels/a.txt")


def test_what_is_left_out(tmp_path: Path) -> None:
    files = {
        "data.yaml": f"train: images/train\nval: images/train\ntest: images/test\n{NAMES}",
        **{"images/train/a.jpg": "", "images/other/b.jpg": "", "labels/train/a.txt": f"{ROW}1 0 0 0 0\n{ROW}"},
        "labels/train/lost.txt": ROW,
    }
    source, contents = scan(write(tmp_path, files))
    assert keys(source, contents) == {"train": ["images/train/a.jpg"]}
    assert sorted(reasons(contents.left_out)) == [
        ("images/other/b.jpg", "not-listed"),
        ("labels/train/a.txt", "duplicate-object"),
        ("labels/train/lost.txt", "no-image"),
        ("test", "empty-split"),
        ("val", "split-union"),
    ]
    (repeated,) = (p for p in contents.left_out if p.reason == "duplicate-object")
    assert "1 rows that repeat others, in lines 3" in repeated.message
    assert objects(source, contents)["labels"].tolist() == [0, 1]


def test_problems_name_file_and_line(tmp_path: Path) -> None:
    rows = {"a": f"{ROW}\n0 0.5\n", "b": "7 0.5 0.5 0.5 0.5", "c": ROW, "e": "0 .5 .5 nan .5"}
    files = {"data.yaml": f"train: train.txt\n{NAMES}", "train.txt": "".join(f"images/{x}.jpg\n" for x in "abcdef")}
    files |= {f"labels/{name}.txt": content for name, content in rows.items()}
    files |= {f"images/{name}.jpg": "" for name in "abcef"}
    source, contents = scan(write(tmp_path, files))
    assert reasons(contents.problems) == [
        ("images/d.jpg", "no-image"),
        ("labels/a.txt", "annotation"),
        ("labels/b.txt", "unknown-class"),
        ("labels/e.txt", "annotation"),
    ]
    assert "train.txt line 4" in contents.problems[0].message
    assert contents.problems[1].message.startswith("line 3: expected a class and 4 numbers")
    assert keys(source, contents) == {"train": ["images/c.jpg", "images/f.jpg"]}
    assert contents.notes == ("1 images have no label file: they are stored as images without objects.",)


@pytest.mark.parametrize(
    ("files", "reason"),
    [
        ({"data.yaml": f"train: images\n{NAMES}"}, "empty-source"),
        ({"data.yaml": f"train: images\n{NAMES}", "images/a.jpg": ""}, "no-annotation"),
        ({"a.yaml": f"train: x\n{NAMES}", "b.yaml": f"train: y\n{NAMES}"}, "several-datasets"),
        ({"images/train/a.jpg": "", "labels/train/a.txt": ROW, "images/b.jpg": ""}, "split-name"),
        *(
            ({"data.yaml": f"train: images\n{text}", "images/a.jpg": "", "labels/a.txt": ROW}, "data-yaml")
            for text in (
                *(
                    "names: [a, a]\n",
                    "names: {x: a}\n",
                    "names: a\n",
                    "names: ['']\n",
                    "names: [[a]]\n",
                    'names: ["\\ud800"]\n',
                ),
                *("nc: -1\n", "nc: 99999999\n", "names: [a\n", "names: [a]\nval: {a: b}\n", "names: [a]\npath: [a]\n"),
                *(
                    "nc: 1\nkpt_shape: 3\n",
                    "nc: 1\nkpt_shape: [3, 4]\n",
                    "nc: 1\nkpt_shape: [2, 2]\nflip_idx: [1, 1]\n",
                ),
                *(
                    "names: *a\n",
                    "names: !!python/object/apply:os.system [x, x]\n",
                    "names: &a [*a]\n",
                    "nc: 1\n? [a]\n: b\n",
                ),
            )
        ),
        ({"images/a.jpg": "", "labels/a.txt": ROW, "classes.txt": "a\n\nb\n"}, "data-yaml"),
    ],
)
def test_what_refuses_the_whole_source(files: dict[str, str], reason: str, tmp_path: Path) -> None:
    with pytest.raises(SourceError) as caught:
        open_source(write(tmp_path, files), "yolo").contents()
    assert caught.value.reason == reason
    assert "\n" not in str(caught.value)


def test_paths_that_were_read_are_never_opened(tmp_path: Path) -> None:
    write(tmp_path, {"secret/images/x.jpg": "", "secret/x.txt": "images/a.jpg\n"})
    config = f"path: {tmp_path}/secret\ntrain: {tmp_path}/secret/images\nval: ../secret/x.txt\n{NAMES}"
    source, contents = scan(write(tmp_path / "in", {"data.yaml": config, "images/a.jpg": "", "labels/a.txt": ROW}))
    assert keys(source, contents) == {"train": ["images/a.jpg"]}
    assert reasons(contents.left_out) == [("val", "empty-split")]


@given(st.text("ab./\\:", max_size=20), st.sampled_from(["", "x/", "x/y/"]))
def test_candidates_never_leave_the_root(path: str, folder: str) -> None:
    for candidate in candidates(path, folder):
        assert not candidate.startswith("/") and ".." not in candidate.split("/")


# --- names --------------------------------------------------------------------------------------------------------


def test_a_name_of_two_classes_and_another_number_of_classes_are_said(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="expected each name once, found 'a' for the classes 0 and 2"):
        of_rows(ROW, tmp_path / "a", "names: [a, b, a]\n")
    _, contents = of_rows("1 .5 .5 .1 .1\n", tmp_path / "b", "nc: 3\nnames: [a, b]\n")
    assert contents.notes[0] == "data.yaml: nc is 3, but names has 2. The names are read."
    _, contents = of_rows("1 .5 .5 .1 .1\n", tmp_path / "c", "nc: 2\nnames: [a, b]\n")
    assert not any("nc" in note for note in contents.notes)


def test_names_are_texts_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    found, contents = of_rows("3 .5 .5 .1 .1\n1 .5 .5 .1 .1\n", tmp_path, "names:\n  3: no\n  1: 'on'\n  2: 0.50\n")
    assert field(contents).classes == ("on", "0.50", "no")
    assert found["labels"].tolist() == [2, 0]


def test_numbers_without_names(tmp_path: Path) -> None:
    found, contents = of_rows("2.0 .5 .5 .1 .1\n", tmp_path, "nc: 4\n")
    assert (field(contents).classes, found["labels"].tolist()) == (("0", "1", "2", "3"), [2])
    _, contents = scan(write(tmp_path, {"data.yaml": "train: images\nnames:\n"}), classes=("a", "b", "c"))
    assert field(contents).classes == ("a", "b", "c")


def test_the_list_of_classes_orders_names(tmp_path: Path) -> None:
    files = {"data.yaml": f"train: images\n{NAMES}", "images/a.jpg": "", "labels/a.txt": ROW}
    source, contents = scan(write(tmp_path, files), classes=("dog", "cat"))
    assert objects(source, contents)["labels"].tolist() == [1]


# --- rows ---------------------------------------------------------------------------------------------------------


def test_polygons_and_rotated_boxes_have_their_hulls(tmp_path: Path) -> None:
    rows = "0 .1 .2 .3 .2 .3 .4 .1 .4\n1 0.5 0.1 0.9 0.6 0.2 0.7\n0 .1 .2 .3 .2 .3 .4 .1 .4 .05 .3\n"
    found, contents = of_rows(rows, tmp_path)
    np.testing.assert_allclose(found["boxes"], [[0.1, 0.2, 0.3, 0.4], [0.2, 0.1, 0.9, 0.7], [0.05, 0.2, 0.3, 0.4]])
    assert found["labels"].tolist() == [0, 1, 0]
    assert contents.left_out == ()
    np.testing.assert_allclose(found["polygons"][1], [[0.5, 0.1], [0.9, 0.6], [0.2, 0.7]])
    assert [len(corners) for corners in found["polygons"]] == [4, 3, 5]


@pytest.mark.parametrize("dimensions", [2, 3])
def test_keypoints(dimensions: int, tmp_path: Path) -> None:
    rows = {2: "0 .5 .5 .2 .2 .4 .6 0 0 -1 .5\n", 3: "0 .5 .5 .2 .2 .4 .6 1 .9 .9 0 0 0 2\n"}[dimensions]
    config = f"{NAMES}kpt_shape: [3, {dimensions}]\nflip_idx: [1, 0, 2]\n"
    found, contents = of_rows(rows, tmp_path, config)
    np.testing.assert_array_equal(found["keypoints"], [[[0.4, 0.6], [NAN, NAN], [NAN, NAN]]])
    assert (field(contents).keypoints, field(contents).flip_pairs) == (("0", "1", "2"), ((0, 1),))
    wanted = Keypoints(("l", "r", "m"), ((0, 1),))
    source, contents = scan(tmp_path, keypoints=wanted)
    assert field(contents).keypoints == wanted.names
    assert objects(source, contents)["keypoints"].shape == (1, 3, 2)
    with pytest.raises(SourceError, match="expected 3 names of keypoints"):
        scan(tmp_path, keypoints=Keypoints(("l", "r"), ()))


def test_names_of_keypoints(tmp_path: Path) -> None:
    config = f"{NAMES}kpt_shape: [2, 2]\nkpt_names:\n  0: [left_eye, right_eye]\n"
    _, contents = of_rows("", tmp_path, config)
    assert (field(contents).keypoints, field(contents).flip_pairs) == (("left_eye", "right_eye"), ((0, 1),))


def test_keypoints_without_their_shape_are_told(tmp_path: Path) -> None:
    _, contents = of_rows(f"0 .5 .5 .2 .2{' .4 .6' * 4}\n", tmp_path)
    assert "all rows have 13 numbers" in contents.notes[0]
    with pytest.raises(SourceError, match=r"line 1: .*found 56 numbers in all \(keypoints need kpt_shape"):
        parse_labels(b"0" + b" .5" * 55, "x", Config())


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("0 .5 .5 .5", "found 4 numbers"),
        ("0 .5 .5 .5 .5 .9", r"\(a sixth number is the confidence"),
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
    (found,) = parse_labels(b"\xef\xbb\xbf0 1.0000001 0.5 0.2 -0.0001\r\n", "a.txt", Config()).objects
    np.testing.assert_allclose(found.box, [0.9, 0.50005, 1.1, 0.49995], atol=1e-6)


@given(st.lists(st.tuples(st.integers(0, 9), *[st.floats(0, 1)] * 4), max_size=5, unique=True))
def test_boxes_are_their_centers_and_sizes(rows: list[tuple[float, ...]]) -> None:
    text = "\n".join(" ".join(map(repr, row)) for row in rows)
    found = parse_labels(text.encode(), "a.txt", Config()).objects
    for row, each in zip(rows, found, strict=True):
        x1, y1, x2, y2 = each.box
        np.testing.assert_allclose(((x1 + x2) / 2, (y1 + y2) / 2, x2 - x1, y2 - y1), row[1:], atol=1e-12)
        assert each.label == str(row[0])


@given(st.binary(max_size=60) | st.text("01. -e\nna", max_size=60).map(str.encode))
def test_any_bytes_give_rows_or_one_line(data: bytes) -> None:
    try:
        parse_labels(data, "a.txt", Config())
    except SourceError as error:
        assert "\n" not in str(error)


# --- conversion ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("orientation", [1, 6])
def test_fractions_are_of_the_image_as_it_is_shown(orientation: int, tmp_path: Path) -> None:
    write(tmp_path, {"in/labels/a.txt": "0 0.5 0.5 1 1\n0 0.25 0.125 0.5 0.25\n", "in/images/b.txt": ""})
    (tmp_path / "in/images").mkdir(exist_ok=True)
    exif = Image.Exif()
    exif[0x0112] = orientation
    Image.new("RGB", (60, 40)).save(tmp_path / "in/images/a.jpg", exif=exif)
    tsds.convert(tmp_path / "in", tmp_path / "out.tsds", tsds.ConvertOptions(workers=0))
    width, height = (60, 40) if orientation == 1 else (40, 60)
    expected = [[0, 0, width, height], [0, 0, width / 2, height / 4]]
    np.testing.assert_allclose(tsds.open(tmp_path / "out.tsds")["train"]["objects"][0]["boxes"], expected)


def test_keypoints_become_pixels_of_the_stored_image(tmp_path: Path) -> None:
    config = "train: images\nnames: [x]\nkpt_shape: [2, 3]\n"
    write(tmp_path, {"in/data.yaml": config, "in/labels/a.txt": "0 .5 .5 1 1 .5 .25 2 0 0 0\n"})
    (tmp_path / "in/images").mkdir()
    Image.new("L", (60, 40)).save(tmp_path / "in/images/a.png")
    options = tsds.ConvertOptions(workers=0, size=(80, 120), fit="stretch")
    tsds.convert(tmp_path / "in", tmp_path / "out.tsds", options)
    found = tsds.open(tmp_path / "out.tsds")["train"]["objects"][0]
    np.testing.assert_allclose(found["keypoints"], [[[60, 20], [NAN, NAN]]])
    np.testing.assert_allclose(found["boxes"], [[0, 0, 120, 80]])


def test_suffixes_in_any_case_and_the_names_of_roboflow_darknet(tmp_path: Path) -> None:
    files = {"train/A.JPG": "", "train/A.TXT": ROW, "train/b.jpg": "", "train/b.txt": ROW}
    files["train/_darknet.labels"] = "cat\ndog\n"
    source, contents = scan(write(tmp_path, files))
    assert (contents.notes, contents.left_out, contents.problems) == ((), (), ())
    assert field(contents).classes == ("cat", "dog")
    for row in range(2):
        assert objects(source, contents, row=row)["boxes"].tolist() == [BOX]
    other = write(tmp_path / "two", {"images/A.JPG": "", "labels/A.TXT": ROW})
    source, contents = scan(other)
    assert (contents.notes, contents.left_out) == ((), ())
    assert objects(source, contents)["boxes"].tolist() == [BOX]
