"""Lists in text and CSV files."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pytest

from labelling_files import Case, Found, Has, blank, case, check, found, refused, refusing, write
from tensorstore_ds.errors import OptionError
from tensorstore_ds.format.schema import Keypoints
from tensorstore_ds.sources.base import Match, SourceOptions
from tensorstore_ds.sources.list.source import ListSource


def lines(text: str | bytes, /, name: str = "l.csv", **expected: object) -> Case:
    """One list, without its images."""
    return case({name: text}, name, **expected)


def scan(path: Path, text: str | bytes = "", **options: object) -> Found:
    if text:
        write(path.parent, {path.name: text})
    return found(path, "list", **options)


KEYS, LABELS = ["a b.png", "sub/图.jpg", "c.png"], [1, 0, 1]


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
    root = write(tmp_path, {name: text})
    assert ListSource.detect(root / name) is Match.MAYBE
    got = scan(root / name)
    assert (got.classes, got.keys, got.labels) == (["cat", "dog"], {"train": KEYS}, {"train": LABELS})
    assert (got.said, got.images) == ([], [f"{tmp_path}/{key}" for key in KEYS])
    assert got.source.files(got.contents.splits["train"][1]) == (f"{tmp_path}/sub/图.jpg",)
    assert all(each.objects is None for each in got.samples["train"])


NAN = [None, None]
OPEN_IMAGES = "ImageID,Source,LabelName,XMin,XMax,YMin,YMax\n" + "a,x,/m/01,1,9,2,8\na,x,/m/02,2,5,3,9\n"
SEVERAL = "images have several rows: each row is an object"
EYES = "path,left_eye_x,left_eye_y,right_eye_x,right_eye_y,Nose_X,Nose_Y\na.png,1,2,3,4,5,6\nb.png,1,2,,,5,6\n"
EYES += "c.png,,,,,,\n"
TEXT_OBJECTS = {"objects": {"bbox": [[1, 2, 3, 4], [5, 6, 7, 8]], "category": [0, 1], "id": [1, 2]}, "width": 64}

CASES = {
    "paths alone": lines(
        "my photo 1.png\nb.JPG\n", "l.txt", fields=[], keys={"train": ["my photo 1.png", "b.JPG"]},
        labels={"train": [None, None]},
    ),
    "a newline in a quoted name": lines(  # the line number counts the line break
        'path,label\n"line\nbreak.png",x\nb.png\n', keys={"train": ["line\nbreak.png"]},
        problems=[("l.csv:4", "list-line")],
    ),
    "numbers": lines(
        "".join(f"{i}.png {i % 11}\n" for i in range(22)), "l.txt", classes=[str(i) for i in range(11)],
        labels={"train": [i % 11 for i in range(22)]},
    ),
    "numbers that are names": lines(
        "a.png 7\nb.png 3\n", "l.txt", options={"classes": ("7", "3")}, labels={"train": [0, 1]}
    ),
    "numbers from 1": lines("a.png 1\nb.png 2\n", "l.txt", refused="unknown-class"),
    "numbers with gaps": lines("a.png 0\nb.png 99999999999999999\n", "l.txt", refused="unknown-class"),
    "negative numbers": lines("path,label\na.png,-2\nb.png,0\nc.png,1\n", classes=["-2", "0", "1"]),
    "a line without a label": lines(
        "path,label\na.png,dog\nb.png,\nc.png,cat\n", classes=["cat", "dog"], problems=[], labels={"train": [1, -1, 0]}
    ),
    "a number for no label": lines(
        "path,label\na.png,1\nb.png,-1\nc.png,0\nd.png,\n", classes=["0", "1"], labels={"train": [1, -1, 0, -1]}
    ),
    "numbers with the decimals of pandas": lines(
        "".join(f"{i}.png,{i % 11}.0\n" for i in range(22)).join(("path,label\n", "none.png,\nnot.png,-1.0\n")),
        classes=[str(i) for i in range(11)], labels={"train": [*(i % 11 for i in range(22)), -1, -1]},
    ),
    "one text is no number": lines(
        "path,label\na.png,-1\nb.png,dog\n", classes=["-1", "dog"], problems=[], labels={"train": [0, 1]}
    ),
    "no label at all": lines(
        "path,label\na.png,\nb.png,\n", refused=("unknown-class", "expected a label in some line, found none")
    ),
    "no label, but classes": lines(
        "path,label\na.png,\nb.png,\n", options={"classes": ("cat", "dog")}, classes=["cat", "dog"],
        labels={"train": [-1, -1]},
    ),
    # boxes and keypoints
    "keypoints": lines(
        EYES, keypoints=["left_eye", "right_eye", "Nose"], flip_pairs=[(0, 1)],
        points=[[[[1, 2], [3, 4], [5, 6]]], [[[1, 2], NAN, [5, 6]]], []],
    ),
    "keypoints in another order": lines(
        EYES, options={"keypoints": Keypoints(("Nose", "right_eye", "left_eye"), ((1, 2),))},
        keypoints=["Nose", "right_eye", "left_eye"], flip_pairs=[(1, 2)],
        points=[[[[5, 6], [3, 4], [1, 2]]], [[[5, 6], NAN, [1, 2]]], []],
    ),
    "other keypoints": lines(EYES, options={"keypoints": Keypoints(("Nose",))}, refused="keypoint-count"),
    "a box and keypoints": lines(  # a box of NaN is stored as such: the check of boxes names it
        "path,x1,y1,x2,y2,n_x,n_y\na.png,0,0,9,9,,\nb.png,0,0,9,9,4,5\nc.png,,,,,4,5\nd.png,nan,nan,nan,nan,,\n",
        boxes=[[[0, 0, 9, 9]], [[0, 0, 9, 9]], [[None] * 4]], points=[[[NAN]], [[[4, 5]]], [[NAN]]],
        problems=[("l.csv:4", "list-line")],
    ),
    "rows of TensorFlow's tools": lines(  # rows of an image need not follow one another
        "filename,width,height,class,xmin,ymin,xmax,ymax\na.png,9,9,dog,1,2,3,4\nb.png,9,9,cat,0,0,5,5\n"
        "a.png,9,9,cat,2,2,6,7\nc.png,9,9,,,,,",
        fields=["objects"], classes=["cat", "dog"], values=["boxes", "labels"], problems=[],
        notes=[f"{SEVERAL} with its label."], keys={"train": ["a.png", "b.png", "c.png"]},
        boxes=[[[1, 2, 3, 4], [2, 2, 6, 7]], [[0, 0, 5, 5]], []], names=[["dog", "cat"], ["cat"], []],
    ),
    "rows with numbers and keypoints": lines(
        "path,label,x1,y1,x2,y2,eye_x,eye_y\na.png,1,1,2,3,4,5,6\na.png,0,2,2,3,3,,\n",
        labels={"train": [None]}, names=[["1", "0"]], points=[[[[5, 6]], [NAN]]],
    ),
    "rows of Open Images": case(
        {"train/a.jpg": "", "train-annotations-bbox.csv": OPEN_IMAGES}, "train-annotations-bbox.csv",
        classes=["/m/01", "/m/02"], boxes=[[[1, 2, 9, 8], [2, 3, 5, 9]]], notes=[Has(f"{SEVERAL} with its label.")],
    ),
    "rows that cannot be used": lines(
        "path,label,split,x1,y1,x2,y2\na.png,cat,train,1,2,3,4\na.png,cat,val,1,2,3,4\na.png,,train,5,5,6,6\n"
        "b.png,,val,,,,\n",
        problems=[("l.csv:3", "duplicate-key"), ("l.csv:4", "list-line")], boxes=[[[1, 2, 3, 4]], []],
        said=[Has("expected a.png in one split, found another in l.csv:2."), Has("l.csv:4")],
    ),
    "chest X-rays": lines(
        "Image Index,Finding Labels,Patient ID\n1.png,Edema,1\n2.png,Edema|Mass,1\n",
        names=[["Edema"], ["Edema", "Mass"]],
    ),
    "GTSRB": lines(
        "Filename;Width;Height;Roi.X1;Roi.Y1;Roi.X2;Roi.Y2;ClassId\na.ppm;64;48;5;6;50;40;0\nb.ppm;64;48;1;2;30;40;0\n",
        boxes=[[[5, 6, 50, 40]], [[1, 2, 30, 40]]], labels={"train": [0, 0]},
    ),
    "numbered keypoints with names": lines(
        "path,x1,y1,x2,y2,x3,y3\na.png,1,2,3,4,5,6\n",
        options={"keypoints": Keypoints(("left_eye", "right_eye", "nose"), ((0, 1),))},
        keypoints=["left_eye", "right_eye", "nose"], flip_pairs=[(0, 1)], points=[[[[1, 2], [3, 4], [5, 6]]]],
        notes=["l.csv: x1 to y3 are read as 3 keypoints."],
    ),
    "half a numbered pair": lines(
        "path,x1,y1,x2,y2,x3\na.png,1,2,3,4,5\n", refused=("list-line", "expected x3 and y3, found only one of them")
    ),
    "half a keypoint": lines("path,n_x,n_y\na.png,1,2\nb.png,1,\n", problems=[("l.csv:3", "list-line")]),
    "corners in a cell": lines(  # as sizes, they would reach beyond the image
        'path,width,height,bbox\na.png,50,50,"[30, 20, 45, 50]"\na.png,50,50,"[1, 2, 3, 4]"\n',
        boxes=[[[30, 20, 45, 50], [1, 2, 3, 4]]], notes=[Has("l.csv: bbox is read as two corners"), Has(SEVERAL)],
    ),
    "bad boxes in a cell": lines(
        'path,bbox\na.png,"[1,2,3,4]"\nb.png,"[1,2,3]"\nc.png,"[1,2,3,x]"\n',
        problems=[("l.csv:3", "list-line"), ("l.csv:4", "list-line")],
    ),
    **{
        f"a bad box: {cells}": lines(
            f"path,x1,y1,x2,y2\na.png,1,2,3,4\nb.png,{cells}\n", problems=[("l.csv:3", "list-line")]
        )
        for cells in ("1,2,3,", "1,2,3,x", "1,2,3,1_0", ",,,1", "1,2,3")
    },
    # splits
    "a split in a column": lines(
        "path,split\na.png,Train\nb.png,test\nc.png,Train\n", keys={"train": ["a.png", "c.png"], "test": ["b.png"]}
    ),
    "a column of splits by its cells": lines(
        "image,species,dataset\na.jpg,cat,train\nb.jpg,dog,Val\nc.jpg,cat,test\n",
        labels={"train": [0], "val": [1], "test": [0]},
        notes=[Has("species"), "l.csv: the column dataset is read as the split of each image."],
    ),
    "a column of other cells": lines(
        "image,species,dataset\na.jpg,cat,train\nb.jpg,dog,Val\nc.jpg,cat,all\n", splits=["train"],
        said=[Has("species"), Has("dataset")],
    ),
    "lists named after splits": case(
        {
            "Train.txt": "a.png 0\nb.png 1\n", "val.txt": "c.png 0\n", "labels.txt": "cat\ndog\n",
            "trainval.txt": "a.png 0\nb.png 1\nc.png 0\n",
        },
        keys={"train": ["a.png", "b.png"], "val": ["c.png"]}, labels={"train": [0, 1], "val": [0]},
        left_out=[("trainval", "split-union"), ("labels.txt", "not-read")],
    ),
    "one list named after a split": lines("a.png\n", "test.txt", splits=["test"]),
    "images that no line names, and columns that are not read": case(
        {"l.csv": "path,label,photographer\na.png,x,Ann\n", **blank("a.png", "b.png", "sub/c.png")},
        left_out=[("l.csv: photographer", "not-read"), ("b.png", "not-listed"), ("sub/c.png", "not-listed")],
    ),
    "columns that are not read": lines(
        "path,label,camera,empty,score\na.png,x,Leica,,\nb.png,y,Canon,,0.5\n",
        said=[
            "l.csv: camera: not read: a column of 2 values, such as Leica.",
            "l.csv: score: not read: a column of 1 values, such as 0.5.",
        ],
    ),
    "a column of pandas' index": lines(
        ",path,label\n5,a.png,x\n6,b.png,y\n",
        said=["l.csv: column 1 (without a name): not read: a column of 2 values, such as 5."],
    ),
    "members of lines": lines(  # one counts once for all its objects
        "\n".join(json.dumps({"file_name": f"{name}.png", **TEXT_OBJECTS}) for name in "ab"), "metadata.jsonl",
        said=[
            "metadata.jsonl: width: not read: a column of 2 values, such as 64.",
            "metadata.jsonl: objects.id: not read: a column of 4 values, such as 1.",
        ],
    ),
    "a split whose objects are all empty lists": case(
        {
            "train/metadata.jsonl": json.dumps({"file_name": "a.png", **TEXT_OBJECTS}),
            "test/metadata.jsonl": '{"file_name": "b.png", "objects": {"bbox": [], "category": []}}',
            **blank("train/a.png", "test/b.png"),
        },
        keys={"test": ["test/b.png"], "train": ["train/a.png"]}, boxes=[[], [[1, 2, 4, 6], [5, 6, 12, 14]]],
    ),
    "an image twice in lists": case(
        {"train.txt": "a.png 0\nb.png 0\n", "test.txt": "c.png 0\nb.png 0\nc.png 0\n"},
        said=[
            "test.txt:3: expected each image once, found c.png in test.txt:1 already.",
            "train.txt:2: expected each image once, found b.png in test.txt:2 already.",
        ],
    ),
    "a list without labels beside others": case(  # as the test list of a competition
        {"train.csv": "id,label\na.png,cat\n", "test.csv": "id,extra\nb.png,\n"},
        labels={"test": [-1], "train": [0]}, notes=["test.csv: no column of labels, which other lists have."],
    ),
    "names that are not found or not unique": case(
        {"l.csv": "id,breed\na,pug\nb,pug\nc,corgi\n", **blank("a.png", "a.jpg", "b.png")}, "l.csv",
        problems=[("l.csv:2", "ambiguous-image"), ("l.csv:4", "no-image")], said=[Has("a.jpg, a.png"), Has("l.csv:4")],
    ),
    "lists with splits in their names, of images without suffixes": case(
        {
            "fair_label_train.csv": "id_code,level\na1,3\na2,4\n", "fair_label_val.csv": "id_code,level\nb1,4\n",
            "test.csv": "id_code\nc1\n", "sampleSubmission.csv": "id_code,level\nc1,0\n",
            **blank("train_images/a1.png", "train_images/a2.png", "train_images/b1.png", "test_images/c1.png"),
        },
        options={"label_from": "Level", "classes": tuple("01234")}, labels={"train": [3, 4], "val": [4], "test": [-1]},
        notes=[Has("test.csv: no column of labels")], left_out=[("sampleSubmission.csv", "not-read")],
    ),
    "a column of labels beside one named so": lines(
        "path,label,kind\na.png,pug,dog\n", options={"label_from": "kind"}, classes=["dog"],
        left_out=[("l.csv: label", "not-read")],
    ),
    **{
        f"a text file of names without suffixes, {what}": case(
            {"train.txt": text, **blank("x1.jpg", "y/x2.jpg")}, names=names,
            keys={"train": ["x1.jpg", "y/x2.jpg"]},
        )
        for what, text, names in (
            ("alone", "x1\nx2\n", [None, None]), ("spaces", "x1 cat\nx2  dog\n", ["cat", "dog"]),
            ("commas", "x1,cat\ny/x2, big dog\n", ["cat", "big dog"]),
        )
    },
    "columns of equal numbers, as of VIA's regions, are no classes": lines(
        "filename,region_count,region_id\na.jpg,1,0\nb.jpg,1,0\n", fields=[],
        left_out=[("l.csv: region_count", "not-read"), ("l.csv: region_id", "not-read")],
    ),
    "split folders in the paths of one list": case(
        {"l.csv": "path,label\nx/Train/a.png,1\nx/val2017/b.png,0\n"}, "l.csv",
        keys={"train": ["x/Train/a.png"], "val": ["x/val2017/b.png"]}, labels={"train": [1], "val": [0]}, notes=[],
    ),
    "split folders in the paths of one list: one": case(
        {"l.csv": "path,label\nval/a.png,0\n"}, "l.csv", splits=["val"],
    ),
    "split folders in the paths of one list: a named list": case(
        {"val.csv": "path,label\ntrain/a.png,1\nval/b.png,0\n"}, "val.csv", splits=["val"],
    ),
    "split folders in the paths of one list: for some": case(
        {"l.csv": "path,label\ntrain/a.png,1\nb.png,0\n"}, "l.csv", refused=("split-name", "b.png beside train")
    ),
    "boxes without labels beside another column": lines(
        "Filename;Annotation tag;x1;y1;x2;y2\na.png;stop;1;2;3;4\n",
        notes=["no labels: l.csv has no column of them. If Annotation tag is the label, pass it as `label_from`."],
    ),
    "their labels": lines(
        "Filename;Annotation tag;x1;y1;x2;y2\na.png;stop;1;2;3;4\na.png;go;1;2;3;4\n",
        options={"label_from": "annotation tag"}, classes=["go", "stop"],
    ),
    "equal names in the folders of splits": case(
        {
            "trainLabels.csv": "id,label\n1,x\n2,y\n", "a_test.csv": "id,label\n1,y\n",
            **blank("train/1.png", "train/2.png", "test_images/1.png", "extra/1.png"),
        },
        keys={"train": ["train/1.png", "train/2.png"], "test": ["test_images/1.png"]}, problems=[],
        labels={"train": [0, 1], "test": [1]}, left_out=[("extra/1.png", "not-listed")],
    ),
    **{
        f"RetinaNet's columns, {what}": lines(
            f"a.jpg,1,2,30,40,cat{more}\na.jpg,5,6,7,8,dog{more}\nb.jpg,,,,,{more}\n", names=[["cat", "dog"], []],
            boxes=[[[1, 2, 30, 40], [5, 6, 7, 8]], []], classes=["cat", "dog"],
            notes=[f"l.csv: the columns are read as path, x1, y1, x2, y2, class{names}.", Has("several rows")],
        )
        for what, more, names in (("without sizes", "", ""), ("with sizes", ",64,48", ", width, height"))
    },
    **{
        f"CelebA's {name}": lines(f"2\n{text}", name, keys={"train": ["a.jpg", "b.jpg"]}, problems=[], **expected)
        for name, text, expected in (
            ("attr.txt", "Bald Big_Nose Male\na.jpg -1  1  1\nb.jpg 1 -1 1\n", {"multi": [[0, 1, 1], [1, 0, 1]]}),
            ("bbox.txt", "image_id x_1 y_1 width height\na.jpg 1 2 3 4\nb.jpg 5 6 7 8\n",
             {"boxes": [[[1, 2, 4, 6]], [[5, 6, 12, 14]]]}),
            ("points.txt", "eye_x eye_y nose_x nose_y\na.jpg 1 2 3 4\nb.jpg 5 6 7 8\n", {"keypoints": ["eye", "nose"]}),
        )
    },
    "two names that are numbers": case(
        {"train.txt": "1\n2\n", "test.txt": "3\n4\n", **blank(*(f"images/{i}.png" for i in range(1, 5)))},
        keys={"test": ["images/3.png", "images/4.png"], "train": ["images/1.png", "images/2.png"]},
    ),
    "faces of WIDER FACE": lines(
        "0--P/a b.jpg\n2\n1 2 3 4 0 0 0 0 0 0 \n5 6 7 8 2 0 0 0 1 0\n0--P/c.jpg\n0\n0 0 0 0 0 0 0 0 0 0\n"
        "1--H/d.jpg\n1\n1 2 3 4 0 0 0 0 0 0\n", "wider_face_train_bbx_gt.txt", values=["boxes"], problems=[],
        keys={"train": ["0--P/a b.jpg", "0--P/c.jpg", "1--H/d.jpg"]},
        boxes=[[[1, 2, 4, 6], [5, 6, 12, 14]], [], [[1, 2, 4, 6]]],
        notes=[Has("read as path, x, y, w, h"), Has("each row is an object"), Has("no labels")],
    ),
    "a face of WIDER FACE that lacks numbers": lines(
        "a.jpg\n1\n1 2 3\nb.jpg\n1\n1 2 3 4 0 0 0 0 0 0\n", "gt.txt", keys={"train": ["b.jpg"]},
        problems=[("gt.txt:3", "list-line")],
    ),
    "more faces of WIDER FACE than lines": lines(
        "a.jpg\n3\n1 2 3 4 0 0 0 0 0 0\n", "gt.txt", refused=("list-line", "expected 2 more faces of a.jpg")
    ),
    "a number of faces that nobody reads": lines(
        f"a.jpg\n{'9' * 6000}\n1 2 3 4 0 0 0 0 0 0\n", "gt.txt", refused=("list-line", "found 6,000 digits")
    ),
    "lines of boxes, as of YOLO for Keras": lines(
        "no boxes.jpg\na b.jpg 1,2,30,40,1 5,6,7.5,8,0\nc.jpg 1,2,3,4,1\n", "_annotations.txt",
        boxes=[[], [[1, 2, 30, 40], [5, 6, 7.5, 8]], [[1, 2, 3, 4]]], names=[[], ["1", "0"], ["1"]],
        keys={"train": ["no boxes.jpg", "a b.jpg", "c.jpg"]}, problems=[],
    ),
    "a box on each line": lines("a.jpg 1,2,3,4,0\n", "l.txt", boxes=[[[1, 2, 3, 4]]], names=[["0"]]),
    "corners of LISA": lines(
        "Filename;Annotation tag;Upper left corner X;Upper left corner Y;Lower right corner X;Lower right corner Y\n"
        "a.png;stop;1;2;3;4\n", values=["boxes"], boxes=[[[1, 2, 3, 4]]],
    ),
    **{
        f"two corners: {names}": lines(
            f"path,{names}\na.png,1,2,3,4\n", values=["boxes"], boxes=[[[1, 2, 3, 4]]], left_out=[]
        )
        for names in (
            "topX,topY,bottomX,bottomY", "tl_x,tl_y,br_x,br_y", "x_start,y_start,x_end,y_end", "minX,minY,maxX,maxY",
            "bbox_min_x,bbox_min_y,bbox_max_x,bbox_max_y", "left_x,top_y,right_x,bottom_y", "x_tl,y_tl,x_br,y_br",
            "top_left_x,top_left_y,bottom_right_x,bottom_right_y",
        )
    },
    "two corners, the second one first": lines(
        "path,br_x,br_y,tl_x,tl_y\na.png,3,4,1,2\n", boxes=[[[1, 2, 3, 4]]],
        notes=["l.csv: tl_x, tl_y, br_x, br_y are read as the corners of a box."],
    ),
    "two corners that are keypoints": lines(
        "path,start_x,start_y,end_x,end_y\na.png,1,2,3,4\n", options={"keypoints": Keypoints(("start", "end"))},
        values=["keypoints"],
    ),
    "the box of a face": lines("path,face_x,face_y,face_w,face_h\na.png,1,2,3,4\n", boxes=[[[1, 2, 4, 6]]]),
    "two keypoints": lines("path,left_x,left_y,right_x,right_y\na.png,1,2,3,4\n", keypoints=["left", "right"]),
    "numbers of a regression": lines(
        "path,label\na.png,0.5\nb.png,1.5\n", classes=["0.5", "1.5"], notes=[Has("0.5 are numbers, and each is a")]
    ),
    "clicks of Open Images": case(
        {"a.jpg": "", "l.csv": "ImageID,LabelName,XMin,XMax,YMin,YMax,XClick1X,XClick1Y\na,/m/01,1,9,2,8,3,4\n"},
        "l.csv", values=["boxes"],
    ),
    "texts of boxes are no labels": lines(
        "ImageId,PredictionString\na.png,n01 4 6 20 30\nb.png,n02 1 2 3 4 n03 5 6 7 8\n", fields=[],
        left_out=[("l.csv: PredictionString", "not-read")],
    ),
    "runs (RLE) are no labels": lines(
        "ImageId,EncodedPixels\na.png,100 5 200 5\nb.png,3 4\n", fields=[], notes=[Has("no labels")],
        left_out=[("l.csv: EncodedPixels", "not-read")],
    ),
    **{
        f"one label each, as several: {what}": lines(
            text, options={"multi_label": True}, fields=["labels"], names=[["cat"], ["big dog"], []]
        )
        for what, text in {
            "a column": "path,label\na.png,cat\nb.png,big dog\nc.png,\n",
            "flags": "path,big dog,cat\na.png,0,1\nb.png,1,0\nc.png,0,0\n",
        }.items()
    },
    "one label each in all rows, as several": lines(
        "path,big dog,cat\na.png,0,1\nb.png,1,0\n", options={"multi_label": True}, multi=[[0, 1], [1, 0]]
    ),
    # no labels, and what to do
    **{
        f"no labels: {text}": lines(text, notes=[f"no labels: l.csv has no column of them. {advice}".strip()])
        for text, advice in {
            "path,breed,age\na.png,pug,3\n": "If one of breed, age is the label, pass it as `label_from`.",
            "path,age\na.png,3\n": "If age is the label, pass it as `label_from`.",
            "path\ncat/1.png\ndog/1.png\n": "The images are in 2 folders, such as cat: "
            "the `format` folders reads these as classes.",
            "path\na.png\n": "",
        }.items()
    },
    "spaces between labels": lines(
        "path,labels\n0.png,sky\n1.png,sea sky\n2.png,sea",
        notes=[Has("'sea sky' are one class each", "write ; between them")],
    ),
    "the same with semicolons": lines("path,labels\n0.png,sky\n1.png,sea;sky\n2.png,sea", classes=["sea", "sky"]),
    # several labels
    "several numbers": lines(
        "path,labels\na.png,0 2\nb.png,1\nc.png,2 1 0\nd.png,1 0\n", fields=["labels"],
        names=[["0", "2"], ["1"], ["0", "1", "2"], ["0", "1"]],
    ),
    "what is not known of a class": lines(
        "path,cat,dog,age\na.png,1,-1,3\nb.png,0,1,4\nc.png,,0,5\n", multi=[[1, -1], [0, 1], [-1, 0]],
        left_out=[("l.csv: age", "not-read")],
    ),
    "columns of classes in some lists": case(
        {
            "train.csv": "path,cat,dog\na.png,1,-1\nb.png,0,1\nc.png,,0\n", "val.csv": "dog,cat,path\n1,0,d.png\n",
            "test.csv": "path\ne.png\n",
        },
        splits=["test", "train", "val"], multi=[[-1, -1], [1, -1], [0, 1], [-1, 0], [0, 1]],
    ),
    **{
        f"columns of classes: {yes} and {no}": lines(
            f"image,sky,night sea\na.png,{yes},{no}\nb.png,{yes},{yes}\n", classes=["sky", "night sea"],
            multi=[[1, 0], [1, 1]], notes=[Has("the columns sky to night sea show which of 2 classes apply")],
        )
        for yes, no in (("1", "0"), ("1.0", "0.0"), ("True", "False"), ("1", "-1"), ("yes", "no"), ("1", ""))
    },
    **{
        f"one label with a separator: {texts[0]}": lines(
            "\n".join([f"path,{column}", *(f'{i}.png,"{text}"' for i, text in enumerate(texts))]),
            options={"classes": texts if "|" in texts[0] else None}, fields=["label"], names=texts,
        )
        for column, texts in (
            ("labels", ("golden retriever", "tabby cat", "poodle")),
            ("label", ("black cat", "white cat", "black dog", "white dog")),
            ("label", ("Paris, France", "London", "Rome")),
            ("labels", ("red|blue", "red")),
        )
    },
    "one column of each row": lines(
        "path,dog,cat,bird\na.png,0,1,0\nb.png,1,0,0\n", classes=["dog", "cat", "bird"], labels={"train": [1, 0]},
        notes=["l.csv: one of the columns dog to bird is 1 in each row: it is the label."],
    ),
    "flags beside a label": lines(
        "path,label,blurred,dark\na.png,x,0,1\n", fields=["label"],
        left_out=[("l.csv: blurred", "not-read"), ("l.csv: dark", "not-read")],
    ),
    "boxes and labels with one row for each image": lines(
        "path,x1,y1,x2,y2,class\na.png,1,2,3,4,cat\nb.png,1,2,3,4,dog\n", fields=["label", "objects"],
        values=["boxes"], names=["cat", "dog"], notes=[
            "l.csv: no image has several rows: labels are of images, and boxes have none. If they are of the boxes, "
            "name the column objects.category."
        ],
    ),
    "boxes with their labels, as that note says": lines(
        "path,x1,y1,x2,y2,objects.category\na.png,1,2,3,4,cat\nb.png,1,2,3,4,dog\n", fields=["objects"],
        values=["boxes", "labels"], names=[["cat"], ["dog"]], notes=[],
    ),
    # captions, JSON Lines
    "captions of Flickr30k": lines(
        "image_name| comment_number| comment\na.png| 0| Two men , one in green .\na.png| 1| Men outside .\n",
        "results.csv",
        fields=["comment"], texts=[{"comment": ["Two men , one in green .", "Men outside ."]}],
    ),
    "captions of Flickr8k": lines(
        'image,caption\na.png,A cat .\nb.png,\na.png,"A dog, and a cat."\n', "captions.txt", fields=["caption"],
        keys={"train": ["a.png", "b.png"]}, texts=[{"caption": ["A cat .", "A dog, and a cat."]}, {"caption": []}],
    ),
    # refused
    **{
        f"refused: {name} {content[:40]!r}": lines(content, name, refused=reason)
        for name, content, reason in (
            ("l.txt", b"", "empty-source"),
            ("l.csv", b"\n , \n", "empty-source"),
            ("l.csv", b"path,label\n", "empty-source"),
            ("l.csv", b"path,label\n../a.png,x\n", "unsafe-path"),
            ("l.txt", b"000001 1\n000002 2\n", "no-image"),
            ("l.txt", b"000001 1 2\n000002 2 1\n", "list-line"),
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
            ("l.csv", b"path,label\na.png,\"[{\"\"x\"\": 1}]\"\n", ("list-line", "expected labels, found JSON")),
            ("l.csv", b"cat,1,2,3,4,a.png,6,5\n", ("list-line", "such as path,x1,y1,x2,y2,label")),
            ("gt.txt", b"a.png;1;2;3;4;11\n", ("list-line", "found 6 columns.* such as path;x1;y1;x2;y2;label")),
            ("l.csv", b"path,class_id,class_name\na.png,1,x\n", ("list-line", "Pass one of them as `label_from`")),
            ("l.json", b"a.png x\n", "unknown-format"),
            ("metadata.jsonl", b"{", "json"),
            ("metadata.jsonl", b'{"a": 1}', "list-line"),
            ("metadata.jsonl", b'{"file_name": "a.png", "objects": {"bbox": 1}}', "list-line"),
        )
    },
    "refused: a cell without the name of a split": lines(
        "path,label,split\na.png,x,train\n\nb.png,x,\n", refused=("split-name", 'l.csv:4: "": expected a split')
    ),
    "refused: no list": case({"a.md": "a.png 0\n"}, refused="unknown-format"),
    "refused: several lists": case({"a.txt": "a.png 0\n", "b.txt": "a.png 0\n"}, refused="ambiguous-format"),
    "refused: lists of other columns": case(
        {"train.csv": "path,x1,y1,x2,y2\na.png,0,0,1,1\n", "val.csv": "path\nb.png\n"}, refused="list-line"
    ),
}  # fmt: skip


def test_a_column_of_labels_that_no_list_has(tmp_path: Path) -> None:
    expected = r"`label_from`: expected a column of l.csv, found 'ages': path, age are there. Did you mean age\?"
    with pytest.raises(OptionError, match=expected):
        scan(tmp_path / "l.csv", "path,age\na.png,3\n", label_from="ages")


@pytest.mark.parametrize("name", CASES)
def test_what_is_read(name: str, tmp_path: Path) -> None:
    check(CASES[name], tmp_path, "list")


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        *((line, "list-line") for line in ("b.png", "b.png,x,y", ",x", "./,x", "b\0.png,x")),
        *((f"{path},x", "unsafe-path") for path in ("/etc/b.png", "C:\\b.png", "\\\\server\\b.png", "../b.png")),
        ("a/..\\../b.png,x", "unsafe-path"),
        ("sub/../a.png,y", "unsafe-path"),
        ("a.png,y", "duplicate-key"),
        (".//a.png,y", "duplicate-key"),
    ],
)
def test_bad_lines_are_problems(tmp_path: Path, line: str, reason: str) -> None:
    got = scan(tmp_path / "l.csv", f"path,label\na.png,x\n{line}\nc.png,x\n")
    assert (got.problems, got.keys, got.labels) == (
        [("l.csv:3", reason)],
        {"train": ["a.png", "c.png"]},
        {"train": [0, 0]},
    )


@pytest.mark.parametrize("name", ["val.csv", "Test.csv"])
@pytest.mark.parametrize("content", [b"", b"\n\n", b"\x89PNG\0\xff", "图,类\n".encode("gbk"), b"a,b,c\n1,2,3\n"])
def test_a_split_that_cannot_be_read_is_an_error(tmp_path: Path, name: str, content: bytes) -> None:
    write(tmp_path, {"train.csv": "path,label\na.png,cat\n", name: content})
    assert refused(tmp_path, "list", name) in ("list-line", "empty-source", "no-image")


@pytest.mark.parametrize(
    ("header", "names"),
    [
        ("file,X1,Y1,X2,Y2,X3,Y3", ["1", "2", "3"]),
        ("id,x1,x2,x3,y1,y2,y3", ["1", "2", "3"]),
        ("path,x_0,y_0,x_1,y_1,x_2,y_2", ["0", "1", "2"]),
        ("image,p0_x,p0_y,p1_x,p1_y,P2_X,P2_Y", ["p0", "p1", "P2"]),
        ("image,p0x,p0y,p1x,p1y,p2x,p2y", ["p0", "p1", "p2"]),
        ("image,x_nose,y_nose,x_eye,y_eye,x_ear,y_ear", ["nose", "eye", "ear"]),
        ("image,noseX,noseY,eyeX,eyeY,earX,earY", ["nose", "eye", "ear"]),
        ("image,nose.x,nose.y,eye.x,eye.y,ear x,ear y", ["nose", "eye", "ear"]),
        ("image,x-7,y-7,x-8,y-8,x-9,y-9", ["7", "8", "9"]),
    ],
)
def test_spellings_of_keypoints(tmp_path: Path, header: str, names: list[str]) -> None:
    write(tmp_path, {"a.png": ""})
    line = "a,5,20,40,6,30,10" if header.startswith("id") else "a.png,5,6,20,30,40,10"
    got = scan(tmp_path / "l.csv", f"{header}\n{line}\n")
    assert (got.keypoints, got.values, got.left_out) == (names, ["keypoints"], [])
    assert got.points == [[[[5, 6], [20, 30], [40, 10]]]]


@pytest.mark.parametrize(
    ("header", "cells"),
    [
        ("x1,y1,x2,y2", "1,2,31.5,42"),
        ("x,y,width,height", "1,2,30.5,40"),
        ("x,y,w,h", "1,2,30.5,40"),
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
        ("ymax,XMAX,ymin,xmin", "42,31.5,2,1"),
        ("bbox", '"[1, 2, 30.5, 40]"'),
        ("bbox", "1 2 30.5 40"),
        ("BBox", '"(1.0, 2.0, 30.5, 40)"'),
    ],
)
def test_spellings_of_boxes(tmp_path: Path, header: str, cells: str) -> None:
    empty = "," * cells.count(",") if '"' not in cells else ""
    got = scan(tmp_path / "l.csv", f"path,label_name,{header}\na.png,dog,{cells}\nb.png,cat,{empty}\n")
    assert (got.values, got.left_out, got.labels) == (["boxes"], [], {"train": [1, 0]})
    assert got.boxes == [[[1, 2, 31.5, 42]], []]


@pytest.mark.parametrize(
    "columns", ["x,y,w,h", "cx,cy,w,h", "bbox_x,bbox_y,bbox_width,bbox_height", "bbox_x1,bbox_y1,bbox_x2,bbox_y2"]
)
@pytest.mark.parametrize("is_first", [True, False])
def test_sizes_of_boxes_are_not_those_of_images(tmp_path: Path, columns: str, is_first: bool) -> None:
    numbers = "16.25,22,30.5,40" if "cx" in columns else "1,2,31.5,42" if "x2" in columns else "1,2,30.5,40"
    header, cells = (
        ",".join(each[:: 1 if is_first else -1]) for each in (("width,height", columns), ("640,480", numbers))
    )
    got = scan(tmp_path / "l.csv", f"path,{header}\na.png,{cells}\n")
    assert (got.boxes, got.left_out) == (
        [[[1, 2, 31.5, 42]]],
        [("l.csv: width", "not-read"), ("l.csv: height", "not-read")],
    )


TAGS = {"a.png": "sky animal", "b.png": "animal night", "c.png": "sky", "d.png": "", "e.png": "vehicle sky night"}
NAMES = [sorted(text.split()) for text in TAGS.values()]


@pytest.mark.parametrize(("name", "column"), [("l.csv", "labels"), ("l.tsv", "tags"), ("l.jsonl", "Categories")])
@pytest.mark.parametrize("separator", [" ", "|", ";", ",", ", ", "[]"])
def test_cells_with_several_labels(tmp_path: Path, column: str, separator: str, name: str) -> None:
    is_list = separator == "[]"
    cells = {key: str(text.split()) if is_list else separator.join(text.split()) for key, text in TAGS.items()}
    stream = io.StringIO(newline="")
    if name.endswith(".jsonl"):
        values = {key: text.split() if is_list else cells[key] for key, text in TAGS.items()}
        stream.write("\n".join(json.dumps({"file_name": key, column: value}) for key, value in values.items()))
    else:
        writer = csv.writer(stream, delimiter="\t" if name.endswith("tsv") else ",")
        writer.writerows([["image", column], *cells.items()])
    got = scan(tmp_path / name, stream.getvalue())
    assert (got.fields, got.classes, got.names) == (["labels"], ["animal", "night", "sky", "vehicle"], NAMES)
    assert got.keys == {"train": list(TAGS)} and {value for row in got.multi for value in row} == {0, 1}
    assert "several labels each" in got.notes[0] and not got.left_out
    note = f"{name}: images without a text as labels, to which no class applies: 1."
    assert (note in got.notes) is not is_list


@pytest.mark.parametrize(
    "header", ["id,breed", "ID,Breed", "file,label", "image;label", "filename\tclass", "image_id|Class"]
)
@pytest.mark.parametrize("where", ["", "train/"])
def test_names_without_suffixes(tmp_path: Path, header: str, where: str) -> None:
    """As of competitions: the images are below the list, or where `images` says."""
    separator = next(each for each in ",;\t|" if each in header)
    rows = "".join(f"{name}{separator}{label}\n" for name, label in (("b2", "pug"), ("a.1", "corgi"), ("c", "pug")))
    images = blank(*(f"{where}{name}" for name in ("a.1.png", "b2.JPG", "c.webp", "d.png")))
    write(tmp_path, {"labels.csv": f"{header}\n{rows}", "lists/labels.csv": f"{header}\n{rows}", **images})
    elsewhere = tmp_path / "lists/labels.csv"
    for path, options in ((tmp_path / "labels.csv", {}), (elsewhere, {"images": tmp_path}), (tmp_path, {})):
        if path == tmp_path:
            elsewhere.unlink()
        assert ListSource.detect(path) is Match.MAYBE
        got = scan(path, **options)
        assert (got.classes, got.labels) == (["corgi", "pug"], {"train": [1, 0, 1]})
        assert got.keys == {"train": [f"{where}{name}" for name in ("b2.JPG", "a.1.png", "c.webp")]}


def test_an_image_elsewhere_is_noted_once_however_many_objects_it_has(tmp_path: Path) -> None:
    rows = "".join(f"old/{name}.png,cat,{i},2,3{i},4\n" for name in "aab" for i in range(2))
    write(tmp_path, {"l.csv": f"filename,class,xmin,ymin,xmax,ymax\n{rows}", **blank("new/a.png", "new/b.png")})
    (note,) = (each for each in ListSource(tmp_path, SourceOptions()).scan().notes if "where the list says" in each)
    assert note == "2 images are not where the list says, but found by the end of the path: old/a.png at new/a.png."


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
def test_metadata_of_an_image_folder(tmp_path: Path, encoding: str) -> None:
    rows = (
        '{"file_name": "0001.png", "text": "two cats", '
        '"objects": {"bbox": [[1, 2, 3, 4], [5, 6, 7, 8]], "categories": [1, 0]}}',
        '{"file_name": "sub/2.png", "text": "nothing", "objects": {"bbox": [], "categories": []}, "camera": "x"}',
    )
    files = {
        "train/metadata.jsonl": "\n".join(rows).encode(encoding),
        "val/metadata.jsonl": rows[0].encode(encoding),
        **blank("train/0001.png", "train/sub/2.png", "val/0001.png", "val/other.png"),
    }
    assert ListSource.detect(write(tmp_path, files)) is Match.MAYBE
    got, boxes = scan(tmp_path), [[1, 2, 4, 6], [5, 6, 12, 14]]
    assert got.keys == {"train": ["train/0001.png", "train/sub/2.png"], "val": ["val/0001.png"]}
    assert (got.classes, got.boxes, got.names) == (["0", "1"], [boxes, [], boxes], [["1", "0"], [], ["1", "0"]])
    assert got.texts == [{"text": ["two cats"]}, {"text": ["nothing"]}, {"text": ["two cats"]}]
    assert [where for where, _ in got.left_out] == ["train/metadata.jsonl: camera", "val/other.png"]


@pytest.mark.parametrize("name", ["metadata.csv", "_annotations.csv", "metadata.jsonl"])
def test_lists_in_split_folders(tmp_path: Path, name: str) -> None:
    for split, label in (("train", "cat"), ("valid", "dog")):
        text = f"file_name,label\n1.png,{label}\n"
        if name.endswith("jsonl"):
            text = f'{{"file_name": "1.png", "label": "{label}"}}\n'
        write(tmp_path, {f"{split}/{name}": text, f"{split}/1.png": ""})
    got = scan(tmp_path)
    assert [list(each.values()) for each in (got.keys, got.labels)] == [[["train/1.png"], ["valid/1.png"]], [[0], [1]]]
    write(tmp_path, {f"valid/{name}": b""})
    refused(tmp_path, "list", f"valid/{name}")


def test_a_missing_list_is_refused(tmp_path: Path) -> None:
    with refusing("unreadable-file"):
        ListSource(tmp_path / "none.csv", SourceOptions()).contents()
