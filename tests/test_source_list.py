"""Lists in text and CSV files."""

from __future__ import annotations

import csv
import io
import json
import pickle
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given, strategies as st
from PIL import Image

from labelling_files import classes
from tensorstore_ds.errors import SourceError
from tensorstore_ds.format.kinds import LabelsField
from tensorstore_ds.format.schema import Keypoints
from tensorstore_ds.sources import open_source
from tensorstore_ds.sources.base import Contents, Match, Sample, Source, SourceOptions
from tensorstore_ds.sources.list.source import ListSource


def write(root: Path, name: str, text: str | bytes) -> Path:
    file = root / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    return file


def scan(path: Path, **options: object) -> tuple[ListSource, Contents]:
    source = ListSource(path, SourceOptions(**options))  # type: ignore[arg-type]
    contents = source.contents()
    return pickle.loads(pickle.dumps(source)), contents  # noqa: S301  our own bytes


def samples(source: ListSource, contents: Contents, split: str = "train") -> list[Sample]:
    return [source.read(split, reference) for reference in contents.splits[split]]


def found(contents: Contents) -> list[tuple[str, str]]:
    return [(problem.where, problem.reason) for problem in contents.problems]


# --- lines --------------------------------------------------------------------------------------------------------

EXPECTED = [("a b.png", 1), ("sub/图.jpg", 0), ("c.png", 1)]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("list.txt", "a b.png dog\nsub/图.jpg   cat\n\n  c.png dog"),
        ("list.txt", "a b.png\tdog\r\nsub/图.jpg\tcat\r\nc.png\tdog\r\n"),
        ("list.txt", "a b.png, dog\n./sub//图.jpg,cat\nc.png,dog\n"),
        ("list.txt", "path\tlabel\na b.png\tdog\nsub\\图.jpg\tcat\nc.png\tdog\n"),
        ("list.txt", "path,label\na b.png,dog\nsub/图.jpg,cat\nc.png,dog\n"),
        ("list.txt", "path label\na b.png dog\nsub/图.jpg cat\nc.png dog\n"),
        ("list.csv", "a b.png,dog\nsub/图.jpg,cat\nc.png,dog\n"),
        ("list.csv", '\ufeffFile Name,Class\n"a b.png","dog"\nsub/图.jpg,cat\nc.png, dog\n'),
        ("list.csv", "label;path\ndog;a b.png\ncat;sub/图.jpg\ndog;c.png\n"),
        ("list.tsv", "path\tlabel\na b.png\tdog\nsub/图.jpg\tcat\nc.png\tdog\n"),
    ],
)
def test_separators_and_headers(tmp_path: Path, name: str, text: str) -> None:
    source, contents = scan(write(tmp_path, name, text))
    assert isinstance(source, Source)
    assert classes(contents) == ("cat", "dog")
    assert contents.problems == ()
    assert contents.labels is not None
    np.testing.assert_array_equal(contents.labels["train"], [1, 0, 1], strict=True)
    read = samples(source, contents)
    assert [(sample.key, sample.label) for sample in read] == EXPECTED
    assert [Path(sample.image) for sample in read] == [tmp_path / key for key, _ in EXPECTED]
    assert source.files(contents.splits["train"][1]) == (f"{tmp_path}/sub/图.jpg",)
    assert all(sample.objects is None for sample in read)


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-16-le", "utf-16-be", "utf-32", "utf-32-be"])
@pytest.mark.parametrize("name", ["list.csv", "list.txt"])
def test_encodings(tmp_path: Path, encoding: str, name: str) -> None:
    """As Excel and PowerShell save lists: with and without a byte order mark."""
    file = write(tmp_path, name, "path,label\na b.png,dog\nsub/图.jpg,cat\nc.png,dog\n".encode(encoding))
    assert ListSource.detect(file) is Match.MAYBE
    source, contents = scan(file)
    assert [(sample.key, sample.label) for sample in samples(source, contents)] == EXPECTED
    assert classes(contents) == ("cat", "dog")


def test_paths_alone_have_no_label(tmp_path: Path) -> None:
    source, contents = scan(write(tmp_path, "list.txt", "my photo 1.png\nb.JPG\n"))
    assert contents.fields == {}
    assert contents.labels is None
    assert [(s.key, s.label) for s in samples(source, contents)] == [("my photo 1.png", None), ("b.JPG", None)]


def test_a_newline_in_a_quoted_name(tmp_path: Path) -> None:
    source, contents = scan(write(tmp_path, "l.csv", 'path,label\n"line\nbreak.png",x\nb.png\n'))
    assert [s.key for s in samples(source, contents)] == ["line\nbreak.png"]
    assert found(contents) == [("l.csv:4", "list-line")]  # the line number counts the line break


def test_numbers_are_labels(tmp_path: Path) -> None:
    lines = "".join(f"{i}.png {i % 11}\n" for i in range(22))
    source, contents = scan(write(tmp_path, "l.txt", lines))
    assert classes(contents) == tuple(map(str, range(11)))
    assert [s.label for s in samples(source, contents)] == [i % 11 for i in range(22)]
    source, contents = scan(write(tmp_path, "m.txt", "a.png 02\nb.png 0\n"), classes=("x", "y", "z"))
    assert [s.label for s in samples(source, contents)] == [2, 0]
    assert classes(contents) == ("x", "y", "z")
    source, contents = scan(write(tmp_path, "n.txt", "a.png 7\nb.png 3\n"), classes=("7", "3"))
    assert [s.label for s in samples(source, contents)] == [0, 1]


@pytest.mark.parametrize("lines", ["a.png 1\nb.png 2\n", "a.png 0\nb.png 99999999999999999\n"])
def test_numbers_with_gaps_are_refused(tmp_path: Path, lines: str) -> None:
    with pytest.raises(SourceError) as error:
        scan(write(tmp_path, "l.txt", lines))
    assert error.value.reason == "unknown-class"


# --- boxes and keypoints ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        "path,label,x1,y1,x2,y2\na.png,dog,1,2,31.5,42\nb.png,cat,,,,\n",
        "ymax,XMAX,ymin,xmin,image,class\n42,31.5,2,1,a.png,dog\n,,,,b.png,cat\n",
        "path,label,x,y,width,height\na.png,dog,1,2,30.5,40\nb.png,cat,,,,\n",
        "path,label,x,y,w,h\na.png,dog,1,2,30.5,40\nb.png,cat,,,,\n",
    ],
)
def test_boxes(tmp_path: Path, text: str) -> None:
    source, contents = scan(write(tmp_path, "l.csv", text))
    assert list(contents.fields["objects"].arrays) == ["offsets", "boxes"]
    first, second = samples(source, contents)
    assert first.objects is not None
    assert second.objects is not None
    np.testing.assert_array_equal(first.objects["boxes"], [[1.0, 2.0, 31.5, 42.0]], strict=True)
    np.testing.assert_array_equal(second.objects["boxes"], np.empty((0, 4)), strict=True)
    assert "keypoints" not in first.objects
    assert (first.label, second.label) == (1, 0)


def test_keypoints(tmp_path: Path) -> None:
    header = "path,left_eye_x,left_eye_y,right_eye_x,right_eye_y,Nose_X,Nose_Y"
    text = f"{header}\na.png,1,2,3,4,5,6\nb.png,1,2,,,5,6\nc.png,,,,,,\n"
    source, contents = scan(write(tmp_path, "l.csv", text))
    field = contents.fields["objects"]
    assert field.keypoints == ("left_eye", "right_eye", "Nose")  # type: ignore[union-attr]
    assert field.flip_pairs == ((0, 1),)  # type: ignore[union-attr]
    a, b, c = (sample.objects for sample in samples(source, contents))
    np.testing.assert_array_equal(a["keypoints"], [[[1.0, 2], [3, 4], [5, 6]]], strict=True)  # type: ignore[union-attr]
    np.testing.assert_array_equal(b["keypoints"], [[[1, 2], [np.nan, np.nan], [5, 6]]], strict=True)  # type: ignore[union-attr]
    assert c["keypoints"].shape == (0, 3, 2)  # type: ignore[union-attr]
    wanted = Keypoints(("Nose", "right_eye", "left_eye"), ((1, 2),))
    source, contents = scan(tmp_path / "l.csv", keypoints=wanted)
    assert contents.fields["objects"].keypoints == wanted.names  # type: ignore[union-attr]
    assert contents.fields["objects"].flip_pairs == ((1, 2),)  # type: ignore[union-attr]
    a = samples(source, contents)[0].objects
    np.testing.assert_array_equal(a["keypoints"], [[[5.0, 6], [3, 4], [1, 2]]], strict=True)  # type: ignore[union-attr]
    with pytest.raises(SourceError) as error:
        scan(tmp_path / "l.csv", keypoints=Keypoints(("Nose",)))
    assert error.value.reason == "keypoint-count"


def test_box_and_keypoints_together(tmp_path: Path) -> None:
    text = "path,x1,y1,x2,y2,n_x,n_y\na.png,0,0,9,9,,\nb.png,0,0,9,9,4,5\nc.png,,,,,4,5\nd.png,nan,nan,nan,nan,,\n"
    source, contents = scan(write(tmp_path, "l.csv", text))
    a, b, d = (sample.objects for sample in samples(source, contents))
    assert np.isnan(a["keypoints"]).all()  # type: ignore[arg-type,union-attr]
    assert b["keypoints"].tolist() == [[[4, 5]]]  # type: ignore[union-attr]
    assert d["boxes"].shape == (1, 4)  # type: ignore[union-attr]  # written as NaN: the check of boxes names it
    assert found(contents) == [("l.csv:4", "list-line")]


# --- splits -------------------------------------------------------------------------------------------------------


HEADER = "filename,width,height,class,xmin,ymin,xmax,ymax\n"


def test_lines_of_objects(tmp_path: Path) -> None:
    """As TensorFlow's tools write them; lines of an image need not follow one another."""
    lines = ("a.png,9,9,dog,1,2,3,4", "b.png,9,9,cat,0,0,5,5", "a.png,9,9,cat,2,2,6,7", "c.png,9,9,,,,,")
    source, contents = scan(write(tmp_path, "list.csv", HEADER + "\n".join(lines)))
    field = contents.fields["objects"]
    assert list(contents.fields) == ["objects"] and contents.labels is None and found(contents) == []
    assert field.classes == ("cat", "dog") and set(field.values) == {"boxes", "labels"}  # type: ignore[union-attr]
    assert contents.notes == ("images have several rows: each row is an object with its label.",)
    got = {
        s.key: (np.asarray(s.objects["boxes"]).tolist(), s.objects["labels"].tolist())
        for s in samples(source, contents)
    }  # type: ignore[index]
    assert list(got) == ["a.png", "b.png", "c.png"]
    assert got["a.png"] == ([[1, 2, 3, 4], [2, 2, 6, 7]], [1, 0])
    assert got["b.png"] == ([[0, 0, 5, 5]], [0]) and got["c.png"] == ([], [])


def test_lines_of_objects_with_numbers_and_keypoints(tmp_path: Path) -> None:
    text = "path,label,x1,y1,x2,y2,eye_x,eye_y\na.png,1,1,2,3,4,5,6\na.png,0,2,2,3,3,,\n"
    source, contents = scan(write(tmp_path, "list.csv", text))
    (sample,) = samples(source, contents)
    assert sample.label is None and sample.objects is not None
    assert sample.objects["labels"].tolist() == [1, 0]
    np.testing.assert_array_equal(sample.objects["keypoints"], [[[5, 6]], [[np.nan, np.nan]]])


OPEN_IMAGES = "ImageID,Source,LabelName,XMin,XMax,YMin,YMax\n" + "a,x,/m/01,1,9,2,8\na,x,/m/02,2,5,3,9\n"


@pytest.mark.parametrize(
    ("text", "note", "names"),
    [
        (OPEN_IMAGES, "an object with its label", ("/m/01", "/m/02")),
        (OPEN_IMAGES.replace("LabelName", "Confidence"), "an object, and no column has its label", ()),
    ],
)
def test_rows_of_open_images(tmp_path: Path, text: str, note: str, names: tuple[str, ...]) -> None:
    write(tmp_path, "train/a.jpg", "")
    source, contents = scan(write(tmp_path, "train-annotations-bbox.csv", text))
    assert f"images have several rows: each row is {note}." in contents.notes
    assert contents.fields["objects"].classes == names  # type: ignore[attr-defined]
    assert samples(source, contents)[0].objects["boxes"].tolist() == [[1, 2, 9, 8], [2, 3, 5, 9]]  # type: ignore[index]


def test_a_column_of_splits_by_its_cells(tmp_path: Path) -> None:
    text = "image,species,dataset\na.jpg,cat,train\nb.jpg,dog,Val\nc.jpg,cat,test\n"
    source, contents = scan(write(tmp_path, "data.csv", text))
    assert {split: len(some) for split, some in contents.splits.items()} == {"train": 1, "val": 1, "test": 1}
    assert [samples(source, contents, split)[0].label for split in ("train", "val", "test")] == [0, 1, 0]
    assert "data.csv: the column dataset is read as the split of each image." in contents.notes
    source, contents = scan(write(tmp_path, "data.csv", text.replace("test", "all")))
    assert list(contents.splits) == ["train"] and "dataset" in str(contents.left_out)


def test_labels_of_chest_x_rays(tmp_path: Path) -> None:
    text = "Image Index,Finding Labels,Patient ID\n1.png,Edema,1\n2.png,Edema|Mass,1\n"
    source, contents = scan(write(tmp_path, "data.csv", text))
    assert [each.arrays["labels"].tolist() for each in samples(source, contents)] == [[1, 0], [1, 1]]


def test_boxes_of_gtsrb(tmp_path: Path) -> None:
    head = "Filename;Width;Height;Roi.X1;Roi.Y1;Roi.X2;Roi.Y2;ClassId\n"
    rows = "a.ppm;64;48;5;6;50;40;0\nb.ppm;64;48;1;2;30;40;0\n"
    source, contents = scan(write(tmp_path, "GT-00000.csv", head + rows))
    second = samples(source, contents)[1]
    assert second.objects is not None and second.objects["boxes"].tolist() == [[1, 2, 30, 40]]
    assert second.label == 0


def test_lines_of_objects_without_labels(tmp_path: Path) -> None:
    source, contents = scan(write(tmp_path, "list.csv", "path,x1,y1,x2,y2\na.png,1,2,3,4\na.png,2,2,3,3\n"))
    (sample,) = samples(source, contents)
    assert sample.objects is not None and list(sample.objects) == ["boxes"] and len(sample.objects["boxes"]) == 2


def test_lines_of_objects_that_cannot_be_used(tmp_path: Path) -> None:
    text = "path,label,split,x1,y1,x2,y2\na.png,cat,train,1,2,3,4\na.png,cat,val,1,2,3,4\na.png,,train,5,5,6,6\n"
    source, contents = scan(write(tmp_path, "list.csv", text + "b.png,,val,,,,\n"))
    assert found(contents) == [("list.csv:3", "duplicate-key"), ("list.csv:4", "list-line")]
    assert contents.problems[0].message == "expected a.png in one split, found another in list.csv:2."
    (sample,) = samples(source, contents)
    assert sample.objects is not None and len(sample.objects["boxes"]) == 1
    (empty,) = samples(source, contents, "val")
    assert empty.objects is not None and len(empty.objects["boxes"]) == 0


@given(st.lists(st.tuples(st.integers(0, 5), st.sampled_from(["cat", "dog"]), st.integers(0, 9)), min_size=2))
def test_any_lines_of_objects(tmp_path_factory: pytest.TempPathFactory, lines: list[tuple[int, str, int]]) -> None:
    folder = tmp_path_factory.mktemp("objects")
    text = "".join(f"{i}.png,{label},{x},0,{x + 1},1\n" for i, label, x in lines)
    source, contents = scan(write(folder, "list.csv", f"path,label,x1,y1,x2,y2\n{text}"))
    images = dict.fromkeys(i for i, _, _ in lines)
    got = samples(source, contents)
    assert [s.key for s in got] == [f"{i}.png" for i in images]
    if len(images) == len(lines):
        assert "label" in contents.fields
        return
    for sample, image in zip(got, images, strict=True):
        names = contents.fields["objects"].classes  # type: ignore[union-attr]
        assert sample.objects is not None
        objects = zip(sample.objects["labels"], sample.objects["boxes"][:, 0], strict=True)
        assert [(names[label], x) for label, x in objects] == [(label, x) for i, label, x in lines if i == image]


def test_lists_named_after_splits(tmp_path: Path) -> None:
    write(tmp_path, "Train.txt", "a.png 0\nb.png 1\n")
    write(tmp_path, "val.txt", "c.png 0\n")
    write(tmp_path, "labels.txt", "cat\ndog\n")
    write(tmp_path, "trainval.txt", "a.png 0\nb.png 1\nc.png 0\n")
    source, contents = scan(tmp_path)
    assert {split: [s.key for s in samples(source, contents, split)] for split in contents.splits} == {
        "train": ["a.png", "b.png"],
        "val": ["c.png"],
    }
    assert [(p.where, p.reason) for p in contents.left_out] == [
        ("trainval", "split-union"),
        ("labels.txt", "not-read"),
    ]
    assert contents.labels is not None
    assert contents.labels["val"].tolist() == [0]


def test_a_split_column(tmp_path: Path) -> None:
    source, contents = scan(write(tmp_path, "l.csv", "path,split\na.png,Train\nb.png,test\nc.png,Train\n"))
    assert {split: [s.key for s in samples(source, contents, split)] for split in contents.splits} == {
        "train": ["a.png", "c.png"],
        "test": ["b.png"],
    }


def test_one_list_named_after_a_split(tmp_path: Path) -> None:
    assert list(scan(write(tmp_path, "test.txt", "a.png\n"))[1].splits) == ["test"]


def test_images_that_no_line_names_and_columns_not_read(tmp_path: Path) -> None:
    write(tmp_path, "l.csv", "path,label,photographer\na.png,x,Ann\n")
    for name in ("a.png", "b.png", "sub/c.png"):
        write(tmp_path, name, b"")
    _, contents = scan(tmp_path)
    assert [(p.where, p.reason) for p in contents.left_out] == [
        ("l.csv: photographer", "not-read"),
        ("b.png", "not-listed"),
        ("sub/c.png", "not-listed"),
    ]


def test_images_in_another_folder(tmp_path: Path) -> None:
    source, contents = scan(write(tmp_path, "lists/l.txt", "a.png 0\n"), images=tmp_path / "photos")
    assert Path(samples(source, contents)[0].image) == tmp_path / "photos/a.png"


# --- problems -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("b.png", "list-line"),
        ("b.png,x,y", "list-line"),
        (",x", "list-line"),
        ("./,x", "list-line"),
        ("b\0.png,x", "list-line"),
        ("/etc/b.png,x", "unsafe-path"),
        ("C:\\b.png,x", "unsafe-path"),
        ("\\\\server\\b.png,x", "unsafe-path"),
        ("../b.png,x", "unsafe-path"),
        ("a/..\\../b.png,x", "unsafe-path"),
        ("a.png,y", "duplicate-key"),
        ("sub/../a.png,y", "unsafe-path"),
        (".//a.png,y", "duplicate-key"),
    ],
)
def test_bad_lines_are_problems(tmp_path: Path, line: str, reason: str) -> None:
    source, contents = scan(write(tmp_path, "l.csv", f"path,label\na.png,x\n{line}\nc.png,x\n"))
    assert found(contents) == [("l.csv:3", reason)]
    assert [s.key for s in samples(source, contents)] == ["a.png", "c.png"]
    assert contents.labels is not None
    assert len(contents.labels["train"]) == 2
    assert "\n" not in str(contents.problems[0])


@pytest.mark.parametrize(
    ("text", "names", "labels"),
    [
        ("a.png,dog\nb.png,\nc.png,cat\n", ("cat", "dog"), [1, -1, 0]),
        ("a.png,1\nb.png,-1\nc.png,0\nd.png,\n", ("0", "1"), [1, -1, 0, -1]),
        ("a.png,-1\nb.png,dog\n", ("-1", "dog"), [0, 1]),  # one text is no number, so all are names
    ],
)
def test_lines_without_a_label(tmp_path: Path, text: str, names: tuple[str, ...], labels: list[int]) -> None:
    source, contents = scan(write(tmp_path, "l.csv", f"path,label\n{text}"))
    assert classes(contents) == names and not contents.problems
    assert contents.labels is not None
    np.testing.assert_array_equal(contents.labels["train"], np.array(labels), strict=True)
    assert [sample.label for sample in samples(source, contents)] == labels


def test_a_list_without_any_label(tmp_path: Path) -> None:
    file = write(tmp_path, "l.csv", "path,label\na.png,\nb.png,\n")
    with pytest.raises(SourceError, match="expected a label in some line, found none") as error:
        scan(file)
    assert error.value.reason == "unknown-class"
    source, contents = scan(file, classes=("cat", "dog"))
    assert classes(contents) == ("cat", "dog")
    assert [sample.label for sample in samples(source, contents)] == [-1, -1]


@pytest.mark.parametrize("text", ["a.png,-2\nb.png,0\nc.png,1\n", "a.png,-2\nb.png,0\n"])
def test_negative_numbers_in_a_list_are_names(tmp_path: Path, text: str) -> None:
    """As any text that is no class index; -1 alone has a meaning."""
    _, contents = scan(write(tmp_path, "l.csv", f"path,label\n{text}"))
    assert classes(contents)[0] == "-2"


@pytest.mark.parametrize("cells", ["1,2,3,", "1,2,3,x", "1,2,3,1_0", ",,,1", "1,2,3"])
def test_bad_boxes_are_problems(tmp_path: Path, cells: str) -> None:
    _, contents = scan(write(tmp_path, "l.csv", f"path,x1,y1,x2,y2\na.png,1,2,3,4\nb.png,{cells}\n"))
    assert found(contents) == [("l.csv:3", "list-line")]


def test_half_a_keypoint_is_a_problem(tmp_path: Path) -> None:
    _, contents = scan(write(tmp_path, "l.csv", "path,n_x,n_y\na.png,1,2\nb.png,1,\n"))
    assert found(contents) == [("l.csv:3", "list-line")]


def test_a_duplicate_names_both_lines_over_lists(tmp_path: Path) -> None:
    write(tmp_path, "train.txt", "a.png 0\nb.png 0\n")
    write(tmp_path, "test.txt", "c.png 0\nb.png 0\nc.png 0\n")
    _, contents = scan(tmp_path)
    assert [str(problem) for problem in contents.problems] == [
        "test.txt:3: expected each image once, found c.png in test.txt:1 already.",
        "train.txt:2: expected each image once, found b.png in test.txt:2 already.",
    ]


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("l.txt", b"", "empty-source"),
        ("l.csv", b"\n , \n", "empty-source"),
        ("l.csv", b"path,label\n", "empty-source"),
        ("l.csv", b"path,label\n../a.png,x\n", "unsafe-path"),
        ("l.txt", b"000001 1\n000002 2\n", "list-line"),
        ("l.csv", b"a.png,x,1,2,3,4\n", "list-line"),
        ("l.csv", b"path,label\na.png,x\n\xff\xfe.png,x\n", "list-line"),
        ("l.csv", "path,label\na.png,x\n".encode("utf-16")[:-1], "list-line"),
        ("l.csv", b"path,label\na.png,\xc4\xe3\n", "list-line"),
        ("l.csv", b'path,label\n"a.png,x\n', "list-line"),
        ("l.csv", b'path,label\n"a"b.png,x\n', "list-line"),
        ("l.csv", b"path,file,label\na.png,b.png,x\n", "list-line"),
        ("l.csv", b"path,label,class\na.png,x,y\n", "list-line"),
        ("l.csv", b"path,eye_x\na.png,1\n", "list-line"),
        ("l.csv", b"path,eye_x,eye_y,eye_x\na.png,1,2,3\n", "list-line"),
        ("l.txt", b"label path\nx a.png\n", "list-line"),
        ("l.txt", b"a.png x\n" + b"y" * (1 << 20) + b"z\n", "list-line"),
        ("l.csv", b"path,label\na.png,Dog\nb.png,dog\n", "class-case"),
        ("l.csv", b"path,split\na.png,train\nb.png,Train\n", "split-name"),
        ("l.csv", b"path,split\na.png,\n", "split-name"),
        ("l.json", b"a.png x\n", "unknown-format"),
    ],
)
def test_lists_that_are_refused(tmp_path: Path, name: str, content: bytes, reason: str) -> None:
    with pytest.raises(SourceError) as error:
        scan(write(tmp_path, name, content))
    assert error.value.reason == reason
    assert "\n" not in str(error.value)


def test_folders_that_are_refused(tmp_path: Path) -> None:
    for names, reason in ((["a.md"], "unknown-format"), (["a.txt", "b.txt"], "ambiguous-format")):
        for name in names:
            write(tmp_path, name, "a.png 0\n")
        with pytest.raises(SourceError) as error:
            scan(tmp_path)
        assert error.value.reason == reason
    write(tmp_path / "c", "train.csv", "path,x1,y1,x2,y2\na.png,0,0,1,1\n")
    write(tmp_path / "c", "val.csv", "path\nb.png\n")
    with pytest.raises(SourceError) as error:
        scan(tmp_path / "c")
    assert error.value.reason == "list-line"


def test_a_list_without_labels_beside_others(tmp_path: Path) -> None:
    """As the test list of a competition."""
    write(tmp_path, "train.csv", "id,label\na.png,cat\n")
    write(tmp_path, "test.csv", "id,extra\nb.png,\n")
    source, contents = scan(tmp_path)
    assert [s.label for split in ("train", "test") for s in samples(source, contents, split)] == [0, -1]
    assert contents.notes == ("test.csv: no column of labels, which other lists have.",)


@pytest.mark.parametrize("name", ["val.csv", "Test.csv"])
@pytest.mark.parametrize("content", [b"", b"\n\n", b"\x89PNG\0\xff", "图,类\n".encode("gbk"), b"a,b,c\n1,2,3\n"])
def test_a_split_that_cannot_be_read_is_an_error(tmp_path: Path, name: str, content: bytes) -> None:
    write(tmp_path, "train.csv", "path,label\na.png,cat\n")
    write(tmp_path, name, content)
    with pytest.raises(SourceError, match=name) as error:
        scan(tmp_path)
    assert error.value.reason in ("list-line", "empty-source", "no-image")


@pytest.mark.parametrize(
    ("header", "names"),
    [
        ("file,X1,Y1,X2,Y2,X3,Y3", ("1", "2", "3")),
        ("id,x1,x2,x3,y1,y2,y3", ("1", "2", "3")),
        ("path,x_0,y_0,x_1,y_1,x_2,y_2", ("0", "1", "2")),
        ("image,p0_x,p0_y,p1_x,p1_y,P2_X,P2_Y", ("p0", "p1", "P2")),
        ("image,p0x,p0y,p1x,p1y,p2x,p2y", ("p0", "p1", "p2")),
        ("image,x_nose,y_nose,x_eye,y_eye,x_ear,y_ear", ("nose", "eye", "ear")),
        ("image,noseX,noseY,eyeX,eyeY,earX,earY", ("nose", "eye", "ear")),
        ("image,nose.x,nose.y,eye.x,eye.y,ear x,ear y", ("nose", "eye", "ear")),
        ("image,x-7,y-7,x-8,y-8,x-9,y-9", ("7", "8", "9")),
    ],
)
def test_spellings_of_keypoints(tmp_path: Path, header: str, names: tuple[str, ...]) -> None:
    by_axis = header.startswith("id")
    write(tmp_path, "a.png", b"")
    name = "a" if by_axis else "a.png"
    cells = "5,20,40,6,30,10" if by_axis else "5,6,20,30,40,10"
    source, contents = scan(write(tmp_path, "l.csv", f"{header}\n{name},{cells}\n"))
    assert contents.fields["objects"].keypoints == names  # type: ignore[union-attr]
    (sample,) = samples(source, contents)
    assert sample.objects is not None and list(sample.objects) == ["keypoints"]
    np.testing.assert_array_equal(sample.objects["keypoints"], [[[5.0, 6], [20, 30], [40, 10]]], strict=True)
    assert not contents.left_out


def test_numbered_keypoints_get_names(tmp_path: Path) -> None:
    file = write(tmp_path, "l.csv", "path,x1,y1,x2,y2,x3,y3\na.png,1,2,3,4,5,6\n")
    source, contents = scan(file, keypoints=Keypoints(("left_eye", "right_eye", "nose"), ((0, 1),)))
    field = contents.fields["objects"]
    assert field.keypoints == ("left_eye", "right_eye", "nose") and field.flip_pairs == ((0, 1),)  # type: ignore[union-attr]
    assert contents.notes == ("l.csv: x1 to y3 are read as 3 keypoints.",)
    assert samples(source, contents)[0].objects["keypoints"].tolist() == [[[1, 2], [3, 4], [5, 6]]]  # type: ignore[index]


def test_half_a_numbered_pair_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="expected x3 and y3, found only one of them"):
        scan(write(tmp_path, "l.csv", "path,x1,y1,x2,y2,x3\na.png,1,2,3,4,5\n"))


@pytest.mark.parametrize(
    ("header", "cells"),
    [
        ("X1,Y1,X2,Y2", "1,2,31.5,42"),
        ("x_1,y_1,x_2,y_2", "1,2,31.5,42"),
        ("x0,y0,x1,y1", "1,2,31.5,42"),
        ("x_min,x_max,y_min,y_max", "1,31.5,2,42"),
        ("bbox_x1,bbox_y1,bbox_x2,bbox_y2", "1,2,31.5,42"),
        ("left,top,right,bottom", "1,2,31.5,42"),
        ("min_x,min_y,max_x,max_y", "1,2,31.5,42"),
        ("x_1,y_1,width,height", "1,2,30.5,40"),
        ("bbox_x,bbox_y,bbox_width,bbox_height", "1,2,30.5,40"),
        ("left,top,width,height", "1,2,30.5,40"),
        ("x_center,y_center,width,height", "16.25,22,30.5,40"),
        ("cx,cy,w,h", "16.25,22,30.5,40"),
        ("bbox", '"[1, 2, 30.5, 40]"'),
        ("bbox", "1 2 30.5 40"),
        ("BBox", '"(1.0, 2.0, 30.5, 40)"'),
    ],
)
def test_spellings_of_boxes(tmp_path: Path, header: str, cells: str) -> None:
    empty = "," * cells.count(",") if '"' not in cells else ""
    text = f"path,label_name,{header}\na.png,dog,{cells}\nb.png,cat,{empty}\n"
    source, contents = scan(write(tmp_path, "l.csv", text))
    assert list(contents.fields["objects"].arrays) == ["offsets", "boxes"] and not contents.left_out
    a, b = samples(source, contents)
    np.testing.assert_array_equal(a.objects["boxes"], [[1.0, 2.0, 31.5, 42.0]], strict=True)  # type: ignore[index]
    assert b.objects["boxes"].shape == (0, 4) and (a.label, b.label) == (1, 0)  # type: ignore[index]


def test_boxes_in_a_cell_that_are_corners(tmp_path: Path) -> None:
    """As sizes, they would reach beyond the image."""
    text = 'path,width,height,bbox\na.png,50,50,"[30, 20, 45, 50]"\na.png,50,50,"[1, 2, 3, 4]"\n'
    source, contents = scan(write(tmp_path, "l.csv", text))
    (sample,) = samples(source, contents)
    assert sample.objects["boxes"].tolist() == [[30, 20, 45, 50], [1, 2, 3, 4]]  # type: ignore[index]
    assert "l.csv: bbox is read as two corners" in contents.notes[1 - ("bbox" in contents.notes[0])]


def test_bad_boxes_in_a_cell(tmp_path: Path) -> None:
    _, contents = scan(write(tmp_path, "l.csv", 'path,bbox\na.png,"[1,2,3,4]"\nb.png,"[1,2,3]"\nc.png,"[1,2,3,x]"\n'))
    assert found(contents) == [("l.csv:3", "list-line"), ("l.csv:4", "list-line")]


def test_all_columns_that_are_not_read_are_named(tmp_path: Path) -> None:
    _, contents = scan(write(tmp_path, "l.csv", "path,label,camera,empty,score\na.png,x,Leica,,\nb.png,y,Canon,,0.5\n"))
    assert [str(problem) for problem in contents.left_out] == [
        "l.csv: camera: not read: a column of 2 values, such as Leica.",
        "l.csv: score: not read: a column of 1 values, such as 0.5.",
    ]


def test_lists_without_labels_are_told(tmp_path: Path) -> None:
    cases = {
        "path,breed,age\na.png,pug,3\n": "If one of breed, age is the label, name it label.",
        "path,age\na.png,3\n": "If age is the label, name it label.",
        "path\ncat/1.png\ndog/1.png\n": "The images are in 2 folders, such as cat: "
        "the `format` folders reads these as classes.",
        "path\na.png\n": "",
    }
    for number, (text, advice) in enumerate(cases.items()):
        _, contents = scan(write(tmp_path, f"{number}.csv", text))
        assert contents.notes == (f"no labels: {number}.csv has no column of them. {advice}".strip(),)


# --- images that are found ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "header", ["id,breed", "ID,Breed", "file,label", "image;label", "filename\tclass", "image_id|Class"]
)
@pytest.mark.parametrize("where", ["", "train/"])
def test_names_without_suffixes(tmp_path: Path, header: str, where: str) -> None:
    """As of competitions: the images are below the list, or where `images` says."""
    separator = next(each for each in ",;\t|" if each in header)
    lines = "".join(f"{name}{separator}{label}\n" for name, label in (("b2", "pug"), ("a.1", "corgi"), ("c", "pug")))
    for name in ("a.1.png", "b2.JPG", "c.webp", "d.png"):
        write(tmp_path, f"{where}{name}", b"")
    file = write(tmp_path, "labels.csv", f"{header}\n{lines}")
    expected = [(f"{where}b2.JPG", 1), (f"{where}a.1.png", 0), (f"{where}c.webp", 1)]
    for path in (tmp_path, file):
        assert ListSource.detect(path) is Match.MAYBE
        source, contents = scan(path)
        assert classes(contents) == ("corgi", "pug")
        assert [(s.key, s.label) for s in samples(source, contents)] == expected
    elsewhere = write(tmp_path / "lists", "labels.csv", f"{header}\n{lines}")
    assert ListSource.detect(elsewhere) is Match.MAYBE
    source, contents = scan(elsewhere, images=tmp_path)
    assert [(s.key, s.label) for s in samples(source, contents)] == expected


def test_names_that_are_not_found_or_not_unique(tmp_path: Path) -> None:
    for name in ("a.png", "a.jpg", "b.png"):
        write(tmp_path, name, b"")
    _, contents = scan(write(tmp_path, "l.csv", "id,breed\na,pug\nb,pug\nc,corgi\n"))
    assert found(contents) == [("l.csv:2", "ambiguous-image"), ("l.csv:4", "no-image")]
    assert "a.jpg, a.png" in contents.problems[0].message


@pytest.mark.parametrize(
    "line",
    ["C:\\data\\train\\a.png", "/content/drive/train/a.png", "../imgs/train/a.png", "imgs/train/a.png", "train/a.png"],
)
def test_paths_of_another_machine(tmp_path: Path, line: str) -> None:
    for name in ("photos/train/a.png", "photos/val/a.png"):
        write(tmp_path, name, b"")
    source, contents = scan(write(tmp_path, "l.csv", f"path,label\n{line},x\n"))
    assert [s.key for s in samples(source, contents)] == ["photos/train/a.png"]
    assert f"such as {line} at photos/train/a.png" in contents.notes[-1]


def test_a_folder_of_classes_with_a_list_of_something_else(tmp_path: Path) -> None:
    for name in ("cat/1.png", "dog/2.png"):
        write(tmp_path, name, b"")
    write(tmp_path, "labels.txt", "cat\ndog\n")
    write(tmp_path, "prices.csv", "id,price\nfood,3\n")
    assert not ListSource.detect(tmp_path)


# --- several labels -------------------------------------------------------------------------------------------------


def multi_hot(source: ListSource, contents: Contents, split: str = "train") -> dict[str, set[str]]:
    """The names of the classes that apply to each image."""
    field = contents.fields["labels"]
    assert isinstance(field, LabelsField) and contents.fields.keys() == {"labels"}
    found: dict[str, set[str]] = {}
    for sample in samples(source, contents, split):
        row = sample.arrays["labels"]
        assert row.dtype == np.int8 and row.shape == (len(field.classes),) and sample.label is None
        assert set(row.tolist()) <= {0, 1}
        found[sample.key] = {name for name, applies in zip(field.classes, row.tolist(), strict=True) if applies}
    return found


TAGS = {"a.png": "sky animal", "b.png": "animal night", "c.png": "sky", "d.png": "", "e.png": "vehicle sky night"}


@pytest.mark.parametrize("column", ["labels", "tags", "Categories"])
@pytest.mark.parametrize("separator", [" ", "|", ";", ",", ", ", "[]"])
@pytest.mark.parametrize("name", ["l.csv", "l.tsv", "l.jsonl"])
def test_cells_with_several_labels(tmp_path: Path, column: str, separator: str, name: str) -> None:
    cells = {key: separator.join(text.split()) for key, text in TAGS.items()}
    if separator == "[]":
        cells = {key: str(text.split()) for key, text in TAGS.items()}
    stream = io.StringIO(newline="")
    if name.endswith(".jsonl"):
        values = {key: text.split() if separator == "[]" else cells[key] for key, text in TAGS.items()}
        stream.write("\n".join(json.dumps({"file_name": key, column: value}) for key, value in values.items()))
    else:
        writer = csv.writer(stream, delimiter="\t" if name.endswith("tsv") else ",")
        writer.writerows([["image", column], *cells.items()])
    source, contents = scan(write(tmp_path, name, stream.getvalue()))
    assert contents.fields["labels"].classes == ("animal", "night", "sky", "vehicle")
    assert multi_hot(source, contents) == {key: set(text.split()) for key, text in TAGS.items()}
    assert "several labels each" in contents.notes[0] and not contents.left_out
    has_empty = separator != "[]"
    assert (f"{name}: images without a text as labels, to which no class applies: 1." in contents.notes) is has_empty


def test_several_numbers_are_class_indices(tmp_path: Path) -> None:
    source, contents = scan(write(tmp_path, "l.csv", "path,labels\na.png,0 2\nb.png,1\nc.png,2 1 0\nd.png,1 0\n"))
    expected = {"a.png": {"0", "2"}, "b.png": {"1"}, "c.png": {"0", "1", "2"}, "d.png": {"0", "1"}}
    assert multi_hot(source, contents) == expected
    source, contents = scan(tmp_path / "l.csv", classes=("sky", "sea", "sun"))
    assert multi_hot(source, contents)["a.png"] == {"sky", "sun"}


@pytest.mark.parametrize(
    ("column", "texts", "classes"),
    [
        ("labels", ("golden retriever", "tabby cat", "poodle"), None),
        ("label", ("black cat", "white cat", "black dog", "white dog"), None),
        ("label", ("Paris, France", "London", "Rome"), None),
        ("labels", ("red|blue", "red"), ("red|blue", "red")),
    ],
)
def test_a_label_with_a_separator_is_one(
    tmp_path: Path, column: str, texts: tuple[str, ...], classes: tuple[str, ...] | None
) -> None:
    stream = io.StringIO(newline="")
    csv.writer(stream).writerows([["path", column], *((f"{i}.png", text) for i, text in enumerate(texts))])
    source, contents = scan(write(tmp_path, "l.csv", stream.getvalue()), classes=classes)
    names = contents.fields["label"].classes
    assert [names[s.label or 0] for s in samples(source, contents)] == list(texts)


@pytest.mark.parametrize(
    ("yes", "no"), [("1", "0"), ("1.0", "0.0"), ("True", "False"), ("1", "-1"), ("yes", "no"), ("1", "")]
)
def test_a_column_for_each_class(tmp_path: Path, yes: str, no: str) -> None:
    names = ("sky", "animal", "vehicle", "night")
    lines = [",".join([key, *(yes if name in text else no for name in names)]) for key, text in TAGS.items()]
    for name in TAGS:
        write(tmp_path, name, b"")
    source, contents = scan(write(tmp_path, "l.csv", "\n".join([",".join(["image", *names]), *lines])))
    assert contents.fields["labels"].classes == names
    assert multi_hot(source, contents) == {key: set(text.split()) for key, text in TAGS.items()}
    assert "the columns sky to night show which of 4 classes apply" in contents.notes[0]
    source, contents = scan(tmp_path, classes=(*reversed(names), "more"))
    assert contents.fields["labels"].classes == (*reversed(names), "more")
    rows = [sample.arrays["labels"].tolist() for sample in samples(source, contents)]
    assert rows[0] == [0, 0, 1, 1, -1]


def test_what_is_not_known_of_a_class(tmp_path: Path) -> None:
    text = "path,cat,dog,age\na.png,1,-1,3\nb.png,0,1,4\nc.png,,0,5\n"
    source, contents = scan(write(tmp_path, "train.csv", text))
    assert [s.arrays["labels"].tolist() for s in samples(source, contents)] == [[1, -1], [0, 1], [-1, 0]]
    assert [problem.where for problem in contents.left_out] == ["train.csv: age"]
    write(tmp_path, "val.csv", "dog,cat,path\n1,0,d.png\n")
    write(tmp_path, "test.csv", "path\ne.png\n")
    source, contents = scan(tmp_path)
    rows = {s: [each.arrays["labels"].tolist() for each in samples(source, contents, s)] for s in ("val", "test")}
    assert rows == {"val": [[0, 1]], "test": [[-1, -1]]}


def test_one_column_of_each_row_is_its_label(tmp_path: Path) -> None:
    source, contents = scan(write(tmp_path, "l.csv", "path,dog,cat,bird\na.png,0,1,0\nb.png,1,0,0\n"))
    assert classes(contents) == ("dog", "cat", "bird")
    assert [s.label for s in samples(source, contents)] == [1, 0]
    assert contents.notes == ("l.csv: one of the columns dog to bird is 1 in each row: it is the label.",)


def test_flags_beside_a_label_are_not_read(tmp_path: Path) -> None:
    _, contents = scan(write(tmp_path, "l.csv", "path,label,blurred,dark\na.png,x,0,1\n"))
    assert list(contents.fields) == ["label"]
    assert [problem.where for problem in contents.left_out] == ["l.csv: blurred", "l.csv: dark"]


# --- captions, JSON Lines, lists in split folders -------------------------------------------------------------------


def test_captions(tmp_path: Path) -> None:
    """As of Flickr8k: five lines an image."""
    text = 'image,caption\na.png,A cat .\nb.png,\na.png,"A dog, and a cat."\n'
    source, contents = scan(write(tmp_path, "captions.txt", text))
    assert list(contents.fields) == ["caption"]
    assert [(s.key, s.texts) for s in samples(source, contents)] == [
        ("a.png", {"caption": ["A cat .", "A dog, and a cat."]}),
        ("b.png", {"caption": []}),
    ]


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
def test_metadata_of_an_image_folder(tmp_path: Path, encoding: str) -> None:
    lines = (
        '{"file_name": "0001.png", "text": "two cats", '
        '"objects": {"bbox": [[1, 2, 3, 4], [5, 6, 7, 8]], "categories": [1, 0]}}',
        '{"file_name": "sub/2.png", "text": "nothing", "objects": {"bbox": [], "categories": []}, "camera": "x"}',
    )
    write(tmp_path, "train/metadata.jsonl", "\n".join(lines).encode(encoding))
    write(tmp_path, "val/metadata.jsonl", lines[0].encode(encoding))
    for name in ("train/0001.png", "train/sub/2.png", "val/0001.png", "val/other.png"):
        write(tmp_path, name, b"")
    assert ListSource.detect(tmp_path) is Match.MAYBE
    source, contents = scan(tmp_path)
    assert contents.fields["objects"].classes == ("0", "1")  # type: ignore[union-attr]
    first, second = samples(source, contents)
    assert (first.key, first.texts) == ("train/0001.png", {"text": ["two cats"]})
    assert first.objects["boxes"].tolist() == [[1, 2, 4, 6], [5, 6, 12, 14]]  # type: ignore[index]
    assert first.objects["labels"].tolist() == [1, 0]  # type: ignore[index]
    assert second.key == "train/sub/2.png" and second.objects["boxes"].shape == (0, 4)  # type: ignore[index]
    assert [s.key for s in samples(source, contents, "val")] == ["val/0001.png"]
    assert [problem.where for problem in contents.left_out] == ["train/metadata.jsonl: camera", "val/other.png"]


@pytest.mark.parametrize("name", ["metadata.csv", "_annotations.csv", "metadata.jsonl"])
def test_lists_in_split_folders(tmp_path: Path, name: str) -> None:
    for split, label in (("train", "cat"), ("valid", "dog")):
        text = f"file_name,label\n1.png,{label}\n"
        if name.endswith("jsonl"):
            text = f'{{"file_name": "1.png", "label": "{label}"}}\n'
        write(tmp_path, f"{split}/{name}", text)
        write(tmp_path, f"{split}/1.png", b"")
    source, contents = scan(tmp_path)
    assert [(s.key, s.label) for split in contents.splits for s in samples(source, contents, split)] == [
        ("train/1.png", 0),
        ("valid/1.png", 1),
    ]
    write(tmp_path, f"valid/{name}", b"")
    with pytest.raises(SourceError, match=f"valid/{name}"):
        scan(tmp_path)


def test_json_lines_that_are_refused(tmp_path: Path) -> None:
    for text, reason in (
        ("{", "json"),
        ('{"a": 1}', "list-line"),
        ('{"file_name": "a.png", "objects": {"bbox": 1}}', "list-line"),
    ):
        with pytest.raises(SourceError) as error:
            scan(write(tmp_path, "metadata.jsonl", text))
        assert error.value.reason == reason


def test_a_missing_list_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SourceError) as error:
        scan(tmp_path / "none.csv")
    assert error.value.reason == "unreadable-file"


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("l.txt", "a.png 1\nb.png 2\n", True),
        ("l.csv", "id,label\n'a.png',1\n", True),
        ("l.csv", "a.png,1", True),
        ("l.txt", "Photographs of cats.\nSee a.png for one.\nBy Ann.\nLicence: CC0.\n", False),
        ("l.txt", "cat\ndog\n", False),
        ("l.md", "a.png 1\n", False),
        ("l.txt", "", False),
    ],
)
def test_detect(tmp_path: Path, name: str, text: str, expected: bool) -> None:
    file = write(tmp_path, name, text)
    match = Match.MAYBE if expected else Match.NO
    assert ListSource.detect(file) is match
    assert ListSource.detect(tmp_path) is match
    write(tmp_path, "sub/x.xml", "<annotation/>")
    assert not ListSource.detect(tmp_path)


# --- anything at all ----------------------------------------------------------------------------------------------

PATHS = ["a.png", "b c.png", "..", "/x.png", "\\", "é"]
NAMES = ["path", "label", "x1", "y1", "x2", "y2", "n_x", "n_y", "split"]
VALUES = ["1", "-2.5", "nan", "1e999", "9" * 30, "", " ", '"', "\0", "\r"]
CELLS = st.sampled_from(PATHS + NAMES + VALUES)
LINES = st.lists(
    st.tuples(st.lists(CELLS | st.text(max_size=3), max_size=7), st.sampled_from([",", "\t", " ", ";"])).map(
        lambda item: item[1].join(item[0])
    ),
    max_size=6,
).map(lambda lines: "\n".join(lines).encode("utf-8", "surrogatepass"))


@given(LINES | st.binary(max_size=60), st.sampled_from([".txt", ".csv", ".tsv"]))
@example(b"a.png,\na.png,a.png", ".txt")
@example(b"path,label,x1,y1,x2,y2,n_x,n_y\na.png,1,2,2,3,3,,\n", ".csv")
def test_any_list_gives_samples_or_a_source_error(
    tmp_path_factory: pytest.TempPathFactory, data: bytes, suffix: str
) -> None:
    file = write(tmp_path_factory.getbasetemp(), f"fuzz{suffix}", data)
    ListSource.detect(file)
    try:
        source, contents = scan(file)
    except SourceError:
        return
    for split in contents.splits:
        for sample in samples(source, contents, split):
            assert not sample.key.startswith(("/", "../"))
            assert ".." not in sample.key.split("/")
            assert str(sample.image).startswith(str(file.parent))
            assert sample.label is None or -1 <= sample.label < len(classes(contents))  # -1: not known


def test_columns_without_a_name_and_members_of_lines(tmp_path: Path) -> None:
    """A column of pandas' index has its number for a name; a member of a line counts once for all its objects."""
    for name in "ab":
        Image.new("RGB", (30, 20)).save(tmp_path / f"{name}.png")
    (tmp_path / "labels.csv").write_text(",path,label\n5,a.png,x\n6,b.png,y\n")
    found = [str(each) for each in open_source(tmp_path, "list").contents().left_out]
    assert found == ["labels.csv: column 1 (without a name): not read: a column of 2 values, such as 5."]
    (tmp_path / "labels.csv").unlink()
    line = {"objects": {"bbox": [[1, 2, 3, 4], [5, 6, 7, 8]], "category": [0, 1], "id": [1, 2]}, "width": 64}
    lines = [json.dumps({"file_name": f"{name}.png", **line}) for name in "ab"]
    (tmp_path / "metadata.jsonl").write_text("\n".join(lines))
    found = [str(each) for each in open_source(tmp_path, "list").contents().left_out]
    assert found == [
        "metadata.jsonl: width: not read: a column of 2 values, such as 64.",
        "metadata.jsonl: objects.id: not read: a column of 4 values, such as 1.",
    ]


def test_advice_for_labels_that_spaces_divide(tmp_path: Path) -> None:
    """The note says what to write between labels, and that makes them several."""
    cells = ["sky", "sea sky", "sea"]
    for i in range(3):
        Image.new("RGB", (30, 20)).save(tmp_path / f"{i}.png")

    def contents(separator: str) -> Contents:
        rows = [f"{i}.png,{cell.replace(' ', separator)}" for i, cell in enumerate(cells)]
        (tmp_path / "labels.csv").write_text("\n".join(["path,labels", *rows]))
        return open_source(tmp_path, "list").contents()

    (note,) = contents(" ").notes
    assert "'sea sky' are one class each" in note and "write ; between them" in note
    found = contents(";").fields["labels"]
    assert getattr(found, "classes", ()) == ("sea", "sky")
