"""Pascal VOC: layouts, images, splits, objects, keypoints, and every refusal."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from labelling_files import Case, Files, Found, Has, blank, case, check, found, refused, refusing, write
from tensorstore_ds.format.schema import Keypoints
from tensorstore_ds.sources import open_source
from tensorstore_ds.sources.base import SourceOptions


def obj(name: str = "cat", box: str = "1 2 30 40", more: str = "") -> str:
    corners = "".join(f"<{k}>{v}</{k}>" for k, v in zip(("xmin", "ymin", "xmax", "ymax"), box.split(), strict=True))
    return f"<object><name>{name}</name><bndbox>{corners}</bndbox>{more}</object>"


def annotation(filename: str = "", *objects: str, size: str = "") -> str:
    return f"<annotation><filename>{filename}</filename>{size}{''.join(objects)}</annotation>"


def one(*objects: str, **expected: object) -> Case:
    """A data set that is one image with these objects."""
    return case({"a.xml": annotation("a.jpg", *objects), "a.jpg": ""}, **{"problems": [], **expected})


def scan(root: Path, files: Files | None = None, **options: object) -> Found:
    return found(write(root, files or {}), "voc", **options)


DEVKIT = {
    **{f"Annotations/{i}.xml": annotation(f"{i}.jpg", obj()) for i in "abcd"},
    **{f"JPEGImages/{i}.jpg": "" for i in "abcd"},
}
NAN = [None, None]
POINT = "<point name='left' x='1' y='2'/>"
HEAD = "<part><name>head</name><bndbox><xmin>1</xmin><ymin>1</ymin><xmax>2</xmax><ymax>2</ymax></bndbox></part>"
ABSENT = "<keypoints><point name='b' visible='0'/><point name='a' x='nan' y='1'/></keypoints>"
LM = "<lm><x1>10</x1><y1>11</y1><x2>-1</x2><y2>-1</y2><x10>5</x10><y10>6</y10><visible>1</visible></lm>"
SIZE = "<size><width>640</width><height>480</height><depth>3</depth></size>"
CLASSES = {"a.xml": annotation("a.jpg", obj("zebra"), obj("Ant"), obj(" 狗\n")), "a.jpg": ""}
FAIR1M = """<annotation><source><filename>0.tif</filename><origin>GF2</origin></source>
<research><version>1.0</version></research><size><width>40</width><height>30</height><depth>3</depth></size>
<objects><object><coordinate>pixel</coordinate><type>rectangle</type>
<possibleresult><name>Boeing</name><probability>0.9</probability></possibleresult>
<points><point>5,6</point><point>25,6</point><point>25,30.5</point><point>5,30.5</point><point>5,6</point></points>
</object></objects></annotation>"""
FLAGS = ("truncated", "difficult", "occluded")


def flagged(*values: str) -> str:
    return obj(more="".join(f"<{name}>{value}</{name}>" for name, value in zip(FLAGS, values, strict=True)))


SPELLINGS = {
    "<keypoints>10,12,2,15,18,2</keypoints>": {"1": [10, 12], "2": [15, 18]},
    "<keypoints>10 12 2 15 18 0</keypoints>": {"1": [10, 12], "2": NAN},
    "<keypoints>10 12 15 18</keypoints>": {"1": [10, 12], "2": [15, 18]},
    "<landmark><point name='a' x='1' y='2'/></landmark>": {"a": [1, 2]},
    "<pts><p><name>a</name><x>1</x><y>2</y></p></pts>": {"a": [1, 2]},
    "<points><point name='b' x='1' y='2'/><point name='a' x='3' y='4'/></points>": {"a": [3, 4], "b": [1, 2]},
}

OBJECTS = {
    "boxes as written": one(
        obj("dog", "1 2 30.5 40"), obj("cat", "nan 9 3 -4"), obj("dog", "5 5 5 5"),
        boxes=[[[1, 2, 30.5, 40], [None, 9, 3, -4], [5, 5, 5, 5]]], names=[["dog", "cat", "dog"]],
        values=["boxes", "labels"],
    ),
    "flags": one(
        *(obj(more=f"<truncated>{x}</truncated>") for x in ("0", "1", "", "Unspecified", "true", "False", "2")), obj(),
        truncated=[[0, 1, 0, 0, 1, 0, 1, 0]],
    ),
    "flags that are other numbers": one(  # stored as 1, and said
        flagged("0.3", "2", "1.0"), flagged("0.7", "0", "3"), flagged("1", "yes", ""),
        said=[
            "a.xml: 0.3: not read: a number in <truncated>, stored as 1, in 2 values.",
            "a.xml: 2: not read: a number in <difficult>, stored as 1.",
            "a.xml: 3: not read: a number in <occluded>, stored as 1.",
        ],
    ),
    **{
        f"named keypoints {number}": one(
            obj(more=points), obj(more=ABSENT), obj(), points=[[[[3.5, 4], [1, 2]], [NAN] * 2, [NAN] * 2]]
        )
        for number, points in enumerate((
            "<keypoints><keypoint name='b' x='1' y='2'/><keypoint name='a' x='3.5' y='4' visible='2'/></keypoints>",
            "<landmarks><point><name>b</name><x>1</x><y>2</y></point><a><x>3.5</x><y>4</y></a></landmarks>",
            "<part name='b' x='1' y='2'/><point name='a'><x>3.5</x><y>4</y></point>",
            "<part><name>b</name><x>1</x><y>2</y></part><point><name>a</name><x>3.5</x><y>4</y></point>",
        ))
    },
    "keypoints of WIDER FACE": one(
        obj("face", more=f"{LM}<has_lm>1</has_lm>"), obj("face", more=f"{LM}<has_lm>0</has_lm>"),
        keypoints=["1", "2", "10"], points=[[[[10, 11], NAN, [5, 6]], [NAN] * 3]],
    ),
    "boxes of parts and points without names": one(
        obj("person", more=HEAD + "<point><x>1</x><y>2</y></point>"), values=["boxes", "labels"]
    ),
    "keypoints in another order": one(
        obj(more=POINT), options={"keypoints": Keypoints(("right", "left"), ((0, 1),))}, points=[[[NAN, [1, 2]]]]
    ),
    "other keypoints": one(
        obj(more=POINT), options={"keypoints": Keypoints(("right",))}, refused="unknown-keypoint"
    ),
    **{
        f"keypoints of another form inside: {points}": one(
            obj(more=points), keypoints=list(expected), points=[[list(expected.values())]], left_out=[]
        )
        for points, expected in SPELLINGS.items()
    },
    **{
        f"keypoints of another form beside: {points}": one(
            obj() + points, keypoints=list(expected), points=[[list(expected.values())]], left_out=[]
        )
        if "pts" not in points
        else one(obj() + points, said=["a.xml: not read: <pts>."])
        for points, expected in SPELLINGS.items()
    },
    "classes": case(CLASSES, classes=["Ant", "zebra", "狗"]),
    "FAIR1M": case(
        {"labelXml/0.xml": FAIR1M, "images/0.tif": ""}, classes=["Boeing"], boxes=[[[5, 6, 25, 30.5]]],
        values=["boxes", "oriented_boxes", "labels"], keys={"train": ["images/0.tif"]},
        oriented_boxes=[[[[5, 6], [25, 6], [25, 30.5], [5, 30.5]]]],
        said=[Has("not read: <research>."), Has("not read: <probability>.")],
    ),
    "FAIR1M, without the first point again": case(
        {"labelXml/0.xml": FAIR1M.replace("<point>5,6</point></points>", "</points>"), "images/0.tif": ""},
        oriented_boxes=[[[[5, 6], [25, 6], [25, 30.5], [5, 30.5]]]],
    ),
    "no objects": one(
        "<item><name>cat</name></item>", said=["a.xml: not read: <item>."],
        notes=["no annotation has an <object>: all images are stored without objects."],
    ),
    "no annotations": case({"a.jpg": ""}, refused="empty-source"),
    "no good annotation": case({"a.xml": "<annotation>"}, refused="xml-syntax"),
}  # fmt: skip


@pytest.mark.parametrize("name", OBJECTS)
def test_objects(name: str, tmp_path: Path) -> None:
    check(OBJECTS[name], tmp_path, "voc")


def test_fields_sizes_and_files(tmp_path: Path) -> None:
    files = {
        "a.xml": annotation("a.jpg", obj("dog", more="<difficult>1</difficult><Occluded>0</Occluded>"), size=SIZE),
        "b.xml": annotation("b.jpg", size=SIZE.replace("640", "0")),
    }
    got = scan(tmp_path, {**files, **blank("a.jpg", "b.jpg")})
    assert (got.values, got.classes, got.said) == (["boxes", "labels", "difficult", "occluded"], ["dog"], [])
    assert (got.contents.labels, got.occluded, got.boxes[1]) == (None, [[0], []], [])
    assert got.sizes == [(480, 640), None]
    assert got.images == ["a.jpg", "b.jpg"]
    assert got.source.files(got.contents.splits["train"][0]) == (f"{tmp_path}/a.jpg", f"{tmp_path}/a.xml")


@pytest.mark.parametrize(
    ("content", "reason", "message"),
    [
        *((annotation("x.jpg", text), "annotation", message) for text, message in (
            ("<object><name>a</name></object>", "object 1: expected <bndbox>"),
            (obj() + obj(""), "object 2: expected <name>"),
            (obj(box="1 2 3 4,5"), "expected ymax, a number, found '4,5'"),
            (obj().replace("ymin", "y"), "expected ymin, a number, found none"),
            (obj(more="<difficult>maybe</difficult>"), "expected difficult to be 0 or 1"),
            (obj(more="<part name='n' x='1'/>"), "y of keypoint n"),
            (obj(more="<part x='1' y='1'/>"), "a keypoint's name"),
            (obj(more="<part name='n' x='inf' y='1'/>"), "within a billion"),
            (obj(more="<part name='n' x='1' y='1'/>" * 2), "found n twice"),
            (obj(more="<name>dog</name>"), "expected one <name>, found 'cat' and 'dog'"),
            (obj(more="<bndbox><xmin>1</xmin></bndbox>"), "one <bndbox>, found 2"),
            (obj(box="1 2 30 40</ymax><ymax>50"), "one <ymax>, found '40' and"),
            (obj(more="<lm><x1>1</x1></lm>"), "expected y of keypoint 1"),
        )),
        (annotation("x.jpg</filename><filename>y.jpg", obj()), "annotation", "one <filename>, found 'x.jpg' and"),
        ("<annotations/>", "annotation", "expected the root element <annotation>, found <annotations>"),
        ("<annotation>", "xml-syntax", "line 1"),  # and all that `read_tree` refuses: test_source_xml
    ],
)  # fmt: skip
def test_faults_of_one_file_are_problems(tmp_path: Path, content: str | bytes, reason: str, message: str) -> None:
    got = scan(tmp_path, {"a.xml": annotation("a.jpg", obj()), "x.xml": content, **blank("a.jpg", "x.jpg")})
    assert got.keys == {"train": ["a.jpg"]}
    assert got.problems == [("x.xml", reason)]  # and x.jpg is not reported once more
    assert message in got.said[0]


def test_a_file_that_changes_after_the_scan(tmp_path: Path) -> None:
    """Its objects are read again, whatever its time and place are."""
    got = scan(tmp_path, {"a.xml": annotation("a.jpg", obj()), "a.jpg": ""})
    reference = got.contents.splits["train"][0]
    write(tmp_path, {"a.xml": annotation("a.jpg", obj(box="5 6 7 8"))})
    assert got.source.read("train", reference).objects["boxes"].tolist() == [[5, 6, 7, 8]]  # type: ignore[index]
    assert got.source.files(reference) == (f"{tmp_path}/a.jpg", f"{tmp_path}/a.xml")
    write(tmp_path, {"a.xml": annotation("a.jpg", obj("new"))})
    for match, reason in (("Do not change a source", "annotation"), ("", "unreadable-file")):
        with refusing(reason, match or None):
            got.source.read("train", reference)
        (tmp_path / "a.xml").unlink(missing_ok=True)


@pytest.mark.parametrize(
    "change",
    [
        lambda text: text.replace("<object>", "<objects><object>", 1).replace("</anno", "</objects></anno"),
        lambda text: text.replace("<object>", "<a><b><object>", 1).replace("</annotation>", "</b></a></annotation>"),
        lambda text: text.replace("<object>", "<Object>").replace("</object>", "</Object>"),
        lambda text: text.replace("xmin", "XMin").replace("<name>", "<Name>").replace("</name>", "</Name>"),
        lambda text: text.replace("annotation>", "Annotation>"),
        lambda text: text.upper().replace("CAT", "cat").replace("DOG", "dog").replace("A.JPG", "a.jpg"),
    ],
)
def test_objects_in_other_elements_and_tags_in_other_cases(tmp_path: Path, change: Callable[[str], str]) -> None:
    text = change(annotation("a.jpg", obj("cat"), obj("dog", "3 4 9 9")))
    got = found(write(tmp_path, {"a.xml": text, "a.jpg": ""}))
    assert (got.source.name, got.said, got.notes) == ("voc", [], [])
    assert got.boxes == [[[1, 2, 30, 40], [3, 4, 9, 9]]]


def test_images_of_other_names_are_noted(tmp_path: Path) -> None:
    files = {f"{i}.xml": annotation(f"{i % 3 + 1}.jpg", obj(f"of_{i}")) for i in (1, 2, 3)}
    (note,) = scan(tmp_path, {**files, **blank("1.jpg", "2.jpg", "3.jpg")}).notes
    assert note.startswith("3 XML files name another image than the one of their own name, such as 1.xml: 2.jpg. ")
    for i in (1, 2, 3):
        (tmp_path / f"{i}.xml").rename(tmp_path / f"x{i}.xml")  # there is no image x1.jpg
    assert scan(tmp_path).notes == []


@pytest.mark.parametrize(
    ("text", "unread"),
    [
        (obj(more="<points><point><x>3</x><y>4</y></point></points>"), "<points>"),
        (obj() * 2 + "<keypoints>10,12,2</keypoints>", "<keypoints>"),
        (obj(more="<part><name>head</name><bndbox><xmin>1</xmin></bndbox></part>"), "<part>"),
        (obj(more="<point><x>3</x><y>4</y></point>"), "<point>"),
        (obj(more="<part name='a' x='1' y='2' score='0.5'/>"), "the attribute score of <part>"),
        (obj(more="<score>0.5</score>"), "<score>"),
        (obj(more="<polygon><x1>3</x1></polygon>"), "<polygon>"),
        (obj(more="<object><name>part</name></object>"), "<object>"),
        (obj().replace("<bndbox>", "<bndbox><z>1</z>"), "<z>"),
        (obj().replace("<object>", "<object id='3'>"), "the attribute id of <object>"),
        (obj() + "<tags><tag>night</tag></tags>", "<tags>"),
    ],
)
def test_elements_that_are_not_read_are_reported(tmp_path: Path, text: str, unread: str) -> None:
    silent = "<pose>Left</pose><truncated>0</truncated>"
    beside = "<folder>x</folder><path>/x</path><source><database>VOC</database></source><segmented>0</segmented>"
    files = {"a.xml": annotation("a.jpg", obj(more=silent), beside), "b.xml": annotation("b.jpg", text)}
    got = scan(tmp_path, {**files, "c.xml": annotation("c.jpg", text), **blank("a.jpg", "b.jpg", "c.jpg")})
    assert got.said == [f"b.xml: not read: {unread}, in 2 files."]


@pytest.mark.parametrize(
    ("xml", "filename", "image"),
    [
        ("a.xml", "other.png", "other.png"),
        ("a.xml", "/home/x/other.png", "other.png"),
        ("a.xml", "C:\\photos\\other.png", "other.png"),
        ("a.xml", "../../../etc/other.png", "other.png"),
        ("a.xml", "..", "a.JPG"),
        ("a.xml", "a", "a.JPG"),
        ("a.xml", "wrong.jpg", "a.JPG"),
        ("Annotations/a.xml", "a.jpg", "JPEGImages/a.jpg"),
        ("Annotations/deep/a.xml", "a.jpg", "JPEGImages/deep/a.jpg"),
        ("train/Annotations/a.xml", "a.jpg", "train/JPEGImages/a.jpg"),
        ("xml/a.xml", "b.jpg", "photos/deep/b.jpg"),
        ("xml/a.xml", "", "photos/deep/a.webp"),
        ("a b.xml", " a b.jpg ", "a b.jpg"),
        ("图.xml", "图.jpg", "图.jpg"),
        ("a\nb.xml", "", "a\nb.jpg"),
        ("a.b.xml", "x", "a.b.png"),
        ("\u00fcber.xml", "\u00fcber.png", "u\u0308ber.png"),  # as another file system writes the same name
    ],
)
def test_where_an_image_is_found(tmp_path: Path, xml: str, filename: str, image: str) -> None:
    got = scan(tmp_path, {xml: annotation(filename, obj()), image: ""})
    assert (list(got.keys.values()), got.problems) == ([[image]], [])


def test_the_foreign_path_is_never_used(tmp_path: Path) -> None:
    foreign = write(tmp_path / "elsewhere", {"b.jpg": ""}) / "b.jpg"
    write(tmp_path / "voc", {"a.xml": f"<annotation><path>{foreign}</path></annotation>"})
    assert refused(tmp_path / "voc", "voc") == "no-image"


def test_names_that_are_not_utf_8(tmp_path: Path) -> None:
    write(tmp_path, {"a.xml": annotation("", obj()), "a.jpg": ""})
    for suffix in (b".xml", b".jpg"):
        Path(os.fsdecode(bytes(tmp_path) + b"/\xff" + suffix)).write_text(annotation("", obj()))
    got = scan(tmp_path)
    assert (got.keys, [reason for _, reason in got.problems]) == ({"train": ["a.jpg"]}, ["name-encoding"])


def devkit(more: Files, **expected: object) -> Case:
    return case({**DEVKIT, **more}, **expected)


def lists(more: Files, **texts: str) -> Files:
    return {**{f"ImageSets/Main/{name}.txt": text for name, text in texts.items()}, **more}


CLASS_LISTS = lists(
    {"ImageSets/Main/traffic light_train.txt": "a -1\nb 1\n", "ImageSets/Main/traffic light_val.txt": "c 0\nd 1\n"},
    cat_train="b 1\na -1\n",
    cat_val="c 0\n",
)
START = "is read from 2 lists of one class each, such as ImageSets/Main"
AB, CD = ([f"JPEGImages/{i}.jpg" for i in some] for some in ("ab", "cd"))
TOO_MANY = {
    **{f"xml/{i}.xml": annotation(f"{name}.jpg", obj()) for i, name in zip("acde", "acdd", strict=True)},
    "xml/b.xml": annotation("", obj()),
    **blank("1/a.jpg", "2/a.jpg", "xml/b.png", "xml/b.jpg", "xml/d.jpg", "alone.jpg"),
}

LAYOUTS = {
    "stems": case(
        {**{f"{i}.xml": annotation() for i in ("a", "a.b")}, **blank("a.jpg", "a.b.jpg")},
        keys={"train": ["a.b.jpg", "a.jpg"]},
    ),
    "images that cannot be told": case(
        TOO_MANY, keys={"train": ["xml/d.jpg"]},
        said=[
            Has("xml/a.xml", "1/a.jpg, 2/a.jpg"), Has("xml/b.xml"), Has("xml/c.xml"), Has("xml/e.xml"),
            *(Has(name) for name in ("1/a.jpg", "2/a.jpg", "alone.jpg", "xml/b.jpg", "xml/b.png")),
        ],
        problems=[
            ("xml/a.xml", "ambiguous-image"), ("xml/b.xml", "ambiguous-image"), ("xml/c.xml", "no-image"),
            ("xml/e.xml", "duplicate-key"),
            *((name, "no-annotation") for name in ("1/a.jpg", "2/a.jpg", "alone.jpg", "xml/b.jpg", "xml/b.png")),
        ],
    ),
    "lists": devkit(
        lists(
            blank("SegmentationClass/a.png", "SegmentationObject/a.png"), train="c\r\na\r\n\r\n", val="\ufeffb.jpg\n",
            trainval="a\nb\nc\n", cat_train="c -1\na  1\n", dog_val="b\n", empty="\n",
        ),
        keys={"train": [f"JPEGImages/{i}.jpg" for i in "ca"], "val": ["JPEGImages/b.jpg"]}, problems=[],
        left_out=[
            ("ImageSets/Main/empty.txt", "empty-split"), ("ImageSets/Main/cat_train.txt", "class-list"),
            ("ImageSets/Main/trainval.txt", "split-union"), ("Annotations/d.xml", "not-listed"),
            ("JPEGImages/d.jpg", "not-read"), ("SegmentationClass/a.png", "not-read"),
            ("SegmentationObject/a.png", "not-read"),
        ],
    ),
    "lists of classes alone": devkit(
        CLASS_LISTS, keys={"train": AB[::-1], "val": CD}, said=[],
        notes=[f"the split train {START}/cat_train.txt.", f"the split val {START}/cat_val.txt."],
    ),
    "lists of classes beside one of all": devkit(  # a list of one class counts where there is no other
        {**CLASS_LISTS, "ImageSets/Main/train.txt": "a\n"}, keys={"val": CD, "train": AB[:1]},
        said=[
            Has("ImageSets/Main/cat_train.txt", "nor is 1 more list of one class"), Has("Annotations/b.xml"),
            Has("JPEGImages/b.jpg"),
        ],
    ),
    "lists that are no ids": devkit(
        {"train.txt": "other/1.jpg 1,2,3,4,0\n", "ImageSets/notes.md": ""}, splits=["train"],
        left_out=[("train.txt", "not-listed"), ("ImageSets/notes.md", "not-read")],
    ),
    "a list of bytes": devkit({"ImageSets/Main/train.txt": b"\x89PNG\0\0\n"}, refused="no-annotation"),
    "what no list names": devkit(
        lists({}, train="a\nb\nc\n"),
        said=[
            "Annotations/d.xml: not stored: it is not listed in ImageSets/Main/train.txt.", Has("JPEGImages/d.jpg: ")
        ],
    ),
    "faults of lists": devkit(
        {
            **lists({}, train="a\nb\na\nmissing\n", val="b\nmissing\n../a\n"), "Annotations/c.xml": "<annotation>",
            **blank("JPEGImages/missing.jpg", "JPEGImages/free.jpg"),
        },
        keys={"train": AB, "val": ["JPEGImages/b.jpg"]},  # overlap is the source's own affair
        problems=[
            ("Annotations/a.xml", "duplicate-key"), ("Annotations/missing.xml", "no-annotation"),
            ("Annotations/../a.xml", "no-annotation"),
        ],
        left_out=[
            *((each, "not-listed") for each in ("Annotations/c.xml", "Annotations/d.xml", "JPEGImages/free.jpg")),
            ("JPEGImages/c.jpg", "not-read"),
        ],
    ),
    "lists without Main, spaces and folders": case(
        {
            "Annotations/my photo 1.xml": annotation("", obj()), "Annotations/x/b.xml": annotation("", obj()),
            "ImageSets/Train 2012.txt": "my photo 1\nx/b\n",
            **blank("JPEGImages/my photo 1.jpg", "JPEGImages/x/b.jpg"),
        },
        keys={"train_2012": ["JPEGImages/my photo 1.jpg", "JPEGImages/x/b.jpg"]},
    ),
    "a devkit without lists": case(
        {f"VOCdevkit/VOC2007/{name}": text for name, text in DEVKIT.items()}, "VOCdevkit",
        keys={"train": [f"VOC2007/{name}" for name in (*AB, *CD)]}, problems=[],
    ),
    "an image without annotation": case(
        {f"VOC2007/{name}": text for name, text in DEVKIT.items() if name != "Annotations/b.xml"},
        problems=[("VOC2007/JPEGImages/b.jpg", "no-annotation")],
    ),
    "two data sets": case(
        {f"{year}/{name}": text for year in ("VOC2012", "VOC2007") for name, text in DEVKIT.items()},
        refused=("several-datasets", "found VOC2007, VOC2012"),
    ),
    "split folders beside others": case(
        {"train/a.xml": annotation("", obj()), "more/b.xml": annotation("", obj())},
        refused=("split-name", r"found more/b\.xml beside train"),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", LAYOUTS)
def test_layouts(name: str, tmp_path: Path) -> None:
    check(LAYOUTS[name], tmp_path, "voc")


@pytest.mark.parametrize(
    ("folder", "encoding"),
    [
        ("ImageSets/Main", "utf-8"), ("ImageSets", "utf-8-sig"), ("ImageSets/Segmentation", "utf-16"),
        ("ImageSets/Layout", "utf-16-le"), (".", "utf-8"),
    ],
)  # fmt: skip
@pytest.mark.parametrize(
    ("train", "val"),
    [
        ("a -1\nb  1\n", "c 1\nd 0\n"),  # as of a class
        ("a\nb\n", "c 1\nd -1\n"),
        ("a 1\nb 1\nb 2\n", "c 1\nd 1\nd 2\nd 3\n"),  # as of ImageSets/Layout
        ("JPEGImages/a.jpg Annotations/a.xml\nJPEGImages/b.jpg Annotations/b.xml", "c\nd\n"),
        ("/home/me/voc/JPEGImages/a.jpg\nD:\\voc\\JPEGImages\\b.jpg\n", "./JPEGImages/c.jpg\nd.xml"),
    ],
)
def test_lists_of_splits_in_all_forms(tmp_path: Path, encoding: str, folder: str, train: str, val: str) -> None:
    texts = {f"{folder}/{name}.txt": text.encode(encoding) for name, text in (("train", train), ("val", val))}
    got = scan(tmp_path, {**DEVKIT, **texts})
    assert (got.keys, got.said) == ({"train": AB, "val": CD}, [])


@pytest.mark.parametrize(
    "layout",
    [
        ("{0}/annotations/{1}.xml", "{0}/images/{1}.jpg"),
        ("annotations/{0}/{1}.xml", "images/{0}/{1}.jpg"),
        ("xml/{0}2017/{1}.xml", "{0}2017/{1}.jpg"),
        ("labels/x/{0}/{1}.xml", "photos/{0}/x/{1}.jpg"),
    ],
)
def test_equal_names_are_paired_by_their_folders(tmp_path: Path, layout: tuple[str, str]) -> None:
    xml, jpg = layout
    places = [(split, i) for split in ("train", "val") for i in "ab"]
    files = {xml.format(*place): annotation(f"{place[1]}.jpg", obj(place[0])) for place in places}
    got = scan(tmp_path, {**files, **blank(*(jpg.format(*place) for place in places))})
    assert got.problems == [] and [split.rstrip("2017") for split in got.splits] == ["train", "val"]
    assert [key for some in got.keys.values() for key in some] == [jpg.format(*place) for place in places]
    assert got.names == [[split] for split, _ in places]


DATASET = "<dataset><images/></dataset>"


def test_what_lies_beside_the_data_set_is_left_out(tmp_path: Path) -> None:
    files = {f"BCCD/{name}": text for name, text in DEVKIT.items()}
    beside = blank("BCCD/SegmentationClass/a.png", "BCCD/extra/a.jpg", "mnist/train/0/1.png", "README.txt")
    root = write(tmp_path, {**files, **beside, "BCCD/old.xml": annotation()})
    got = found(root)
    assert (got.source.name, len(got.keys["train"]), got.problems) == ("voc", 4, [])
    outside = ("BCCD/extra/a.jpg", "BCCD/old.xml", "mnist/train/0/1.png")
    assert got.left_out == [*((path, "not-listed") for path in outside), ("BCCD/SegmentationClass/a.png", "not-read")]
    (root / "mnist" / "loop").symlink_to(root)
    assert ("mnist/loop/", "symlink-loop") in found(root).left_out


def test_two_data_sets_in_xml_are_ambiguous(tmp_path: Path) -> None:
    files = {f"BCCD/{name}": text for name, text in DEVKIT.items()}
    files |= {f"BCCD/Annotations/{i}.xml": annotation(f"{i}.jpg") for i in range(20)}
    root = write(tmp_path, {**files, "faces/train.xml": DATASET, "mnist/0/1.png": ""})
    assert refused(root, match=r"could be imglab or voc.*, or convert one data set") == "ambiguous-format"
    assert open_source(root / "BCCD", "auto", SourceOptions()).name == "voc"
