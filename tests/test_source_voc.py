"""Pascal VOC: layouts, images, splits, objects, keypoints, and every refusal."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings, strategies as st
from PIL import Image

from labelling_files import keys, reasons
from tensorstore_ds.errors import SourceError
from tensorstore_ds.format.kinds import ObjectsField
from tensorstore_ds.format.schema import Keypoints
from tensorstore_ds.sources import open_source
from tensorstore_ds.sources.base import Contents, Objects, Source, SourceOptions
from tensorstore_ds.sources.imglab import ImglabSource
from tensorstore_ds.sources.voc.source import VocSource

FUZZ = settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def obj(name: str = "cat", box: str = "1 2 30 40", more: str = "") -> str:
    corners = "".join(f"<{k}>{v}</{k}>" for k, v in zip(("xmin", "ymin", "xmax", "ymax"), box.split(), strict=True))
    return f"<object><name>{name}</name><bndbox>{corners}</bndbox>{more}</object>"


def annotation(filename: str = "", *objects: str, size: str = "") -> str:
    return f"<annotation><filename>{filename}</filename>{size}{''.join(objects)}</annotation>"


def write(root: Path, files: Mapping[str, str | bytes]) -> Path:
    """A folder with these files; the content of images does not matter to a source."""
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
    return root


def scan(root: Path, **options: object) -> tuple[VocSource, Contents]:
    source = VocSource(root, SourceOptions(**options))  # type: ignore[arg-type]
    return source, source.contents()


def objects(root: Path, *found: str, **options: object) -> Objects:
    """The objects of a data set that is one image with these objects."""
    source, contents = scan(write(root, {"a.xml": annotation("a.jpg", *found), "a.jpg": ""}), **options)
    assert contents.problems == ()
    result = source.read("train", contents.splits["train"][0]).objects
    assert result is not None
    return result


def field(contents: Contents) -> ObjectsField:
    table = contents.fields["objects"]
    assert isinstance(table, ObjectsField)
    return table


DEVKIT = {
    **{f"Annotations/{i}.xml": annotation(f"{i}.jpg", obj()) for i in "abcd"},
    **{f"JPEGImages/{i}.jpg": "" for i in "abcd"},
}


# --- objects ----------------------------------------------------------------------------------------------------


def test_boxes_are_stored_as_written(tmp_path: Path) -> None:
    found = objects(tmp_path, obj("dog", "1 2 30.5 40"), obj("cat", "nan 9 3 -4"), obj("dog", "5 5 5 5"))
    assert found["boxes"].dtype == np.float64
    np.testing.assert_array_equal(found["boxes"], [[1, 2, 30.5, 40], [np.nan, 9, 3, -4], [5, 5, 5, 5]])
    assert found["labels"].tolist() == [1, 0, 1]
    assert set(found) == {"boxes", "labels"}


def test_fields_sizes_and_files(tmp_path: Path) -> None:
    size = "<size><width>640</width><height>480</height><depth>3</depth></size>"
    files = {
        "a.xml": annotation("a.jpg", obj("dog", more="<difficult>1</difficult><Occluded>0</Occluded>"), size=size),
        "b.xml": annotation("b.jpg", size=size.replace("640", "0")),
        **dict.fromkeys(("a.jpg", "b.jpg"), ""),
    }
    source, contents = scan(write(tmp_path, files))
    table = field(contents)
    assert (list(table.values), table.classes) == (["boxes", "labels", "difficult", "occluded"], ("dog",))
    assert (contents.labels, contents.problems, contents.left_out) == (None, (), ())
    source = pickle.loads(pickle.dumps(source))  # noqa: S301  as it travels to a worker process
    a, b = (source.read("train", reference) for reference in contents.splits["train"])
    assert (a.annotated_size, b.annotated_size, a.image) == ((480, 640), None, f"{tmp_path}/a.jpg")
    assert a.objects is not None and b.objects is not None
    assert a.objects["difficult"].dtype == np.uint8
    assert b.objects["boxes"].shape == (0, 4)  # an image that shows no object
    assert b.objects["occluded"].shape == (0,)
    assert source.files(contents.splits["train"][0]) == (f"{tmp_path}/a.xml", f"{tmp_path}/a.jpg")
    assert isinstance(source, Source)


def test_flags(tmp_path: Path) -> None:
    words = ["0", "1", "", "Unspecified", "true", "False", "2"]
    found = objects(tmp_path, *(obj(more=f"<truncated>{word}</truncated>") for word in words), obj())
    assert found["truncated"].tolist() == [0, 1, 0, 0, 1, 0, 1, 0]


@pytest.mark.parametrize(
    "points",
    [
        "<keypoints><keypoint name='b' x='1' y='2'/><keypoint name='a' x='3.5' y='4' visible='2'/></keypoints>",
        "<landmarks><point><name>b</name><x>1</x><y>2</y></point><a><x>3.5</x><y>4</y></a></landmarks>",
        "<part name='b' x='1' y='2'/><point name='a'><x>3.5</x><y>4</y></point>",
        "<part><name>b</name><x>1</x><y>2</y></part><point><name>a</name><x>3.5</x><y>4</y></point>",
    ],
)
def test_named_keypoints(tmp_path: Path, points: str) -> None:
    absent = "<keypoints><point name='b' visible='0'/><point name='a' x='nan' y='1'/></keypoints>"
    found = objects(tmp_path, obj(more=points), obj(more=absent), obj())
    expected = np.full((3, 2, 2), np.nan)
    expected[0] = [[3.5, 4], [1, 2]]
    np.testing.assert_array_equal(found["keypoints"], expected)


def test_wider_faces_keypoints(tmp_path: Path) -> None:
    lm = "<lm><x1>10</x1><y1>11</y1><x2>-1</x2><y2>-1</y2><x10>5</x10><y10>6</y10><visible>1</visible></lm>"
    faces = [obj("face", more=f"{lm}<has_lm>{has}</has_lm>") for has in (1, 0)]
    source, contents = scan(write(tmp_path, {"a.xml": annotation("a.jpg", *faces), "a.jpg": ""}))
    assert field(contents).keypoints == ("1", "2", "10")
    result = source.read("train", contents.splits["train"][0]).objects
    assert result is not None
    nan = [np.nan, np.nan]
    np.testing.assert_array_equal(result["keypoints"], [[[10, 11], nan, [5, 6]], [nan] * 3])


def test_parts_with_boxes_and_points_without_name_are_no_keypoints(tmp_path: Path) -> None:
    part = "<part><name>head</name><bndbox><xmin>1</xmin><ymin>1</ymin><xmax>2</xmax><ymax>2</ymax></bndbox></part>"
    assert "keypoints" not in objects(tmp_path, obj("person", more=part + "<point><x>1</x><y>2</y></point>"))


def test_keypoint_options(tmp_path: Path) -> None:
    point = "<point name='left' x='1' y='2'/>"
    wanted = Keypoints(("right", "left"), ((0, 1),))
    found = objects(tmp_path, obj(more=point), keypoints=wanted)
    np.testing.assert_array_equal(found["keypoints"], [[[np.nan, np.nan], [1, 2]]])
    with pytest.raises(SourceError) as caught:
        scan(tmp_path, keypoints=Keypoints(("right",)))
    assert caught.value.reason == "unknown-keypoint"


def test_class_order_and_options(tmp_path: Path) -> None:
    files = {"a.xml": annotation("a.jpg", obj("zebra"), obj("Ant"), obj(" 狗\n")), "a.jpg": ""}
    root = write(tmp_path, files)
    assert field(scan(root)[1]).classes == ("Ant", "zebra", "狗")
    assert field(scan(root, classes=("狗", "zebra", "Ant", "x"))[1]).classes == ("狗", "zebra", "Ant", "x")
    with pytest.raises(SourceError) as caught:
        scan(root, classes=("zebra",))
    assert caught.value.reason == "unknown-class"
    write(root, {"b.xml": annotation("b.jpg", obj("ANT")), "b.jpg": ""})
    with pytest.raises(SourceError) as caught:
        scan(root)
    assert caught.value.reason == "class-case"


@pytest.mark.parametrize(
    ("content", "reason", "message"),
    [
        (annotation("x.jpg", "<object><name>a</name></object>"), "annotation", "object 1: expected <bndbox>"),
        (annotation("x.jpg", obj(), obj("")), "annotation", "object 2: expected <name>"),
        (annotation("x.jpg", obj(box="1 2 3 4,5")), "annotation", "expected ymax, a number, found '4,5'"),
        (annotation("x.jpg", obj().replace("ymin", "y")), "annotation", "expected ymin, a number, found none"),
        (
            annotation("x.jpg", obj(more="<difficult>maybe</difficult>")),
            "annotation",
            "expected difficult to be 0 or 1",
        ),
        (annotation("x.jpg", obj(more="<part name='n' x='1'/>")), "annotation", "y of keypoint n"),
        (annotation("x.jpg", obj(more="<part x='1' y='1'/>")), "annotation", "a keypoint's name"),
        (annotation("x.jpg", obj(more="<part name='n' x='inf' y='1'/>")), "annotation", "within a billion"),
        (annotation("x.jpg", obj(more="<part name='n' x='1' y='1'/>" * 2)), "annotation", "found n twice"),
        (annotation("x.jpg", obj(more="<name>dog</name>")), "annotation", "expected one <name>, found 'cat' and 'dog'"),
        (
            annotation("x.jpg</filename><filename>y.jpg", obj()),
            "annotation",
            "one <filename>, found 'x.jpg' and",
        ),
        (
            annotation("x.jpg", obj(more="<bndbox><xmin>1</xmin></bndbox>")),
            "annotation",
            "one <bndbox>, found 2",
        ),
        (annotation("x.jpg", obj(box="1 2 30 40</ymax><ymax>50")), "annotation", "one <ymax>, found '40' and"),
        (annotation("x.jpg", obj(more="<lm><x1>1</x1></lm>")), "annotation", "expected y of keypoint 1"),
        ("<annotations/>", "annotation", "expected the root element <annotation>, found <annotations>"),
        ("<annotation>", "xml-syntax", "line 1"),
        ("", "xml-syntax", "line 1"),
        ("<!DOCTYPE annotation><annotation/>", "xml-doctype", "DOCTYPE"),
        ("<?xml version='1.0' encoding='klingon'?><annotation/>", "xml-encoding", "UTF-8"),
        (b"<annotation><filename>\xe4.jpg</filename></annotation>", "xml-encoding", "UTF-8"),
        ("<annotation>" + " " * (17 << 20), "xml-size", "16 MiB"),
    ],
)
def test_faults_of_one_file_are_problems(tmp_path: Path, content: str | bytes, reason: str, message: str) -> None:
    files = {"a.xml": annotation("a.jpg", obj()), "x.xml": content, "a.jpg": "", "x.jpg": ""}
    source, contents = scan(write(tmp_path, files))
    assert keys(source, contents) == {"train": ["a.jpg"]}
    assert reasons(contents.problems) == [("x.xml", reason)]  # and x.jpg is not reported once more
    assert message in str(contents.problems[0])
    with pytest.raises(SourceError) as caught:
        source.read("train", "x.jpg\0x.xml")
    assert caught.value.reason == reason


def test_a_file_that_changes_after_the_scan(tmp_path: Path) -> None:
    source, contents = scan(write(tmp_path, {"a.xml": annotation("a.jpg", obj()), "a.jpg": ""}))
    write(tmp_path, {"a.xml": annotation("a.jpg", obj("new"))})
    with pytest.raises(SourceError, match="Do not change a source") as caught:
        source.read("train", contents.splits["train"][0])
    assert caught.value.reason == "annotation"
    (tmp_path / "a.xml").unlink()
    with pytest.raises(SourceError) as caught:
        source.read("train", contents.splits["train"][0])
    assert caught.value.reason == "unreadable-file"


def test_nothing_that_can_be_used_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(SourceError) as caught:
        scan(write(tmp_path, {"a.jpg": ""}))
    assert caught.value.reason == "empty-source"
    with pytest.raises(SourceError) as caught:
        scan(write(tmp_path, {"a.xml": "<annotation>"}))
    assert caught.value.reason == "xml-syntax"


FAIR1M = """<annotation><source><filename>0.tif</filename><origin>GF2</origin></source>
<research><version>1.0</version></research><size><width>40</width><height>30</height><depth>3</depth></size>
<objects><object><coordinate>pixel</coordinate><type>rectangle</type>
<possibleresult><name>Boeing</name><probability>0.9</probability></possibleresult>
<points><point>5,6</point><point>25,6</point><point>25,30.5</point><point>5,30.5</point><point>5,6</point></points>
</object></objects></annotation>"""


def test_fair1m(tmp_path: Path) -> None:
    source, contents = scan(write(tmp_path, {"labelXml/0.xml": FAIR1M, "images/0.tif": ""}))
    assert (field(contents).classes, list(field(contents).values)) == (
        ("Boeing",),
        ["boxes", "oriented_boxes", "labels"],
    )
    sample = source.read("train", contents.splits["train"][0])
    assert (sample.annotated_size, sample.key) == ((30, 40), "images/0.tif")
    assert sample.objects is not None
    np.testing.assert_array_equal(sample.objects["boxes"], [[5, 6, 25, 30.5]])
    corners = [[[5, 6], [25, 6], [25, 30.5], [5, 30.5]]]
    np.testing.assert_array_equal(sample.objects["oriented_boxes"], corners)
    found = sorted(problem.message for problem in contents.left_out)
    assert found == ["not read: <probability>.", "not read: <research>."]


@pytest.mark.parametrize(
    "change",
    [
        lambda text: text.replace("<object>", "<objects><object>", 1).replace(
            "</annotation>", "</objects></annotation>"
        ),
        lambda text: text.replace("<object>", "<a><b><object>", 1).replace("</annotation>", "</b></a></annotation>"),
        lambda text: text.replace("<object>", "<Object>").replace("</object>", "</Object>"),
        lambda text: text.replace("xmin", "XMin").replace("<name>", "<Name>").replace("</name>", "</Name>"),
        lambda text: text.replace("annotation>", "Annotation>"),
        lambda text: text.upper().replace("CAT", "cat").replace("DOG", "dog").replace("A.JPG", "a.jpg"),
    ],
)
def test_objects_in_other_elements_and_tags_in_other_cases(tmp_path: Path, change: Callable[[str], str]) -> None:
    text = change(annotation("a.jpg", obj("cat"), obj("dog", "3 4 9 9")))
    root = write(tmp_path, {"a.xml": text, "a.jpg": ""})
    assert type(open_source(root, "auto", SourceOptions())) is VocSource
    source, contents = scan(root)
    assert (contents.problems, contents.left_out, contents.notes) == ((), (), ())
    result = source.read("train", contents.splits["train"][0]).objects
    assert result is not None
    np.testing.assert_array_equal(result["boxes"], [[1, 2, 30, 40], [3, 4, 9, 9]])


def test_a_source_without_objects_has_a_note(tmp_path: Path) -> None:
    root = write(
        tmp_path, {"a.xml": annotation("a.jpg").replace("</a", "<item><name>cat</name></item></a"), "a.jpg": ""}
    )
    _, contents = scan(root)
    assert contents.notes == ("no annotation has an <object>: all images are stored without objects.",)
    assert [str(each) for each in contents.left_out] == ["a.xml: not read: <item>."]


def test_images_of_other_names_are_noted(tmp_path: Path) -> None:
    files = {f"{i}.xml": annotation(f"{i % 3 + 1}.jpg", obj(f"of_{i}")) for i in (1, 2, 3)}
    _, contents = scan(write(tmp_path, {**files, **{f"{i}.jpg": "" for i in (1, 2, 3)}}))
    (note,) = contents.notes
    assert note.startswith("3 XML files name another image than the one of their own name, such as 1.xml: 2.jpg. ")
    for i in (1, 2, 3):
        (tmp_path / f"{i}.xml").rename(tmp_path / f"x{i}.xml")  # there is no image x1.jpg
    assert scan(tmp_path)[1].notes == ()


@pytest.mark.parametrize(
    ("points", "expected"),
    [
        ("<keypoints>10,12,2,15,18,2</keypoints>", {"1": [10, 12], "2": [15, 18]}),
        ("<keypoints>10 12 2 15 18 0</keypoints>", {"1": [10, 12], "2": [np.nan, np.nan]}),
        ("<keypoints>10 12 15 18</keypoints>", {"1": [10, 12], "2": [15, 18]}),
        ("<landmark><point name='a' x='1' y='2'/></landmark>", {"a": [1, 2]}),
        ("<pts><p><name>a</name><x>1</x><y>2</y></p></pts>", {"a": [1, 2]}),
        ("<points><point name='b' x='1' y='2'/><point name='a' x='3' y='4'/></points>", {"a": [3, 4], "b": [1, 2]}),
    ],
)
def test_keypoints_in_other_spellings(tmp_path: Path, points: str, expected: dict[str, list[float]]) -> None:
    for name, text in (("inside", obj(more=points)), ("beside", obj() + points)):
        root = write(tmp_path / name, {"a.xml": annotation("a.jpg", text), "a.jpg": ""})
        source, contents = scan(root)
        if name == "beside" and "pts" in points:
            assert [each.message for each in contents.left_out] == ["not read: <pts>."]
            continue
        assert field(contents).keypoints == tuple(expected)
        result = source.read("train", contents.splits["train"][0]).objects
        assert result is not None
        np.testing.assert_array_equal(result["keypoints"], [list(expected.values())])
        assert contents.left_out == ()


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
    plain = "<folder>x</folder><path>/x</path><source><database>VOC</database></source><segmented>0</segmented>"
    files = {"a.xml": annotation("a.jpg", obj(more=silent), plain), "b.xml": annotation("b.jpg", text)}
    _, contents = scan(
        write(tmp_path, {**files, "c.xml": annotation("c.jpg", text), **{f"{i}.jpg": "" for i in "abc"}})
    )
    assert [str(each) for each in contents.left_out] == [f"b.xml: not read: {unread}, in 2 files."]


# --- images -----------------------------------------------------------------------------------------------------


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
    ],
)
def test_where_an_image_is_found(tmp_path: Path, xml: str, filename: str, image: str) -> None:
    source, contents = scan(write(tmp_path, {xml: annotation(filename, obj()), image: ""}))
    assert list(keys(source, contents).values()) == [[image]]
    assert contents.problems == ()


def test_a_stem_is_the_whole_name_without_suffix(tmp_path: Path) -> None:
    files = {f"{name}.{suffix}": text for name in ("a", "a.b") for suffix, text in (("xml", annotation()), ("jpg", ""))}
    source, contents = scan(write(tmp_path, files))
    assert keys(source, contents) == {"train": ["a.b.jpg", "a.jpg"]}


def test_the_foreign_path_is_never_used(tmp_path: Path) -> None:
    foreign = write(tmp_path / "elsewhere", {"b.jpg": ""}) / "b.jpg"
    content = f"<annotation><path>{foreign}</path></annotation>"
    with pytest.raises(SourceError) as caught:
        scan(write(tmp_path / "voc", {"a.xml": content}))
    assert caught.value.reason == "no-image"


def test_images_in_a_folder_apart(tmp_path: Path) -> None:
    files = {
        "voc/x/a.xml": annotation("a.jpg", obj()),
        "voc/b.xml": annotation("b.jpg", obj()),
        "photos/x/a.jpg": "",
        "photos/y/a.jpg": "",
        "photos/deep/b.jpg": "",
    }
    write(tmp_path, files)
    source, contents = scan(tmp_path / "voc", images=tmp_path / "photos")
    assert keys(source, contents) == {"train": ["deep/b.jpg", "x/a.jpg"]}
    assert reasons(contents.problems) == [("y/a.jpg", "no-annotation")]
    assert source.files(contents.splits["train"][0])[1] == f"{tmp_path}/photos/deep/b.jpg"


def test_images_that_cannot_be_told(tmp_path: Path) -> None:
    files = {
        "xml/a.xml": annotation("a.jpg", obj()),
        "1/a.jpg": "",
        "2/a.jpg": "",
        "xml/b.xml": annotation("", obj()),
        "xml/b.png": "",
        "xml/b.jpg": "",
        "xml/c.xml": annotation("c.jpg", obj()),
        "xml/d.xml": annotation("d.jpg", obj()),
        "xml/e.xml": annotation("d.jpg", obj()),
        "xml/d.jpg": "",
        "alone.jpg": "",
    }
    source, contents = scan(write(tmp_path, files))
    assert keys(source, contents) == {"train": ["xml/d.jpg"]}
    found = dict(reasons(contents.problems))
    assert (
        found.items()
        >= {
            "xml/a.xml": "ambiguous-image",
            "xml/b.xml": "ambiguous-image",
            "xml/c.xml": "no-image",
            "xml/e.xml": "duplicate-key",
            "alone.jpg": "no-annotation",
        }.items()
    )
    assert "1/a.jpg, 2/a.jpg" in str(contents.problems[0])


def test_names_that_are_not_utf_8(tmp_path: Path) -> None:
    write(tmp_path, {"a.xml": annotation("", obj()), "a.jpg": ""})
    for suffix in (b".xml", b".jpg"):
        Path(os.fsdecode(bytes(tmp_path) + b"/\xff" + suffix)).write_text(annotation("", obj()))
    source, contents = scan(tmp_path)
    assert keys(source, contents) == {"train": ["a.jpg"]}
    assert [reason for _, reason in reasons(contents.problems)] == ["name-encoding"]


def test_symlink_loops_are_refused(tmp_path: Path) -> None:
    write(tmp_path, {"a.xml": annotation("", obj()), "a.jpg": ""})
    (tmp_path / "loop").symlink_to(tmp_path)
    with pytest.raises(SourceError) as caught:
        scan(tmp_path)
    assert caught.value.reason == "symlink-loop"


# --- layouts and splits -----------------------------------------------------------------------------------------


def test_devkit_with_lists(tmp_path: Path) -> None:
    lists = {
        "train.txt": "c\r\na\r\n\r\n",
        "val.txt": "\ufeffb.jpg\n",
        "trainval.txt": "a\nb\nc\n",
        "cat_train.txt": "c -1\na  1\n",
        "dog_val.txt": "b\n",
        "empty.txt": "\n",
    }
    masks = {"SegmentationClass/a.png": "", "SegmentationObject/a.png": ""}
    files = {**DEVKIT, **masks, **{f"ImageSets/Main/{name}": text for name, text in lists.items()}}
    source, contents = scan(write(tmp_path, files))
    assert keys(source, contents) == {"train": [f"JPEGImages/{i}.jpg" for i in "ca"], "val": ["JPEGImages/b.jpg"]}
    assert contents.problems == ()
    assert sorted(reasons(contents.left_out)) == [
        ("Annotations/d.xml", "not-listed"),
        ("ImageSets/Main/cat_train.txt", "class-list"),
        ("ImageSets/Main/empty.txt", "empty-split"),
        ("ImageSets/Main/trainval.txt", "split-union"),
        ("JPEGImages/d.jpg", "not-read"),
        ("SegmentationClass/a.png", "not-read"),
        ("SegmentationObject/a.png", "not-read"),
    ]


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-16-le"])
@pytest.mark.parametrize("folder", ["ImageSets/Main", "ImageSets", "ImageSets/Segmentation", "ImageSets/Layout", "."])
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
    lists = {f"{folder}/{name}.txt": text.encode(encoding) for name, text in (("train", train), ("val", val))}
    source, contents = scan(write(tmp_path, {**DEVKIT, **lists}))
    expected = {"train": [f"JPEGImages/{i}.jpg" for i in "ab"], "val": [f"JPEGImages/{i}.jpg" for i in "cd"]}
    assert keys(source, contents) == expected
    assert (contents.problems, contents.left_out) == ((), ())


def test_lists_of_classes_alone_are_the_splits(tmp_path: Path) -> None:
    lists = {
        "cat_train.txt": "b 1\na -1\n",
        "traffic light_train.txt": "a -1\nb 1\n",
        "cat_val.txt": "c 0\n",
        "traffic light_val.txt": "c 0\nd 1\n",
    }
    files = {**DEVKIT, **{f"ImageSets/Main/{name}": text for name, text in lists.items()}}
    source, contents = scan(write(tmp_path, files))
    expected = {"train": ["JPEGImages/b.jpg", "JPEGImages/a.jpg"], "val": [f"JPEGImages/{i}.jpg" for i in "cd"]}
    assert keys(source, contents) == expected
    assert (contents.problems, contents.left_out) == ((), ())
    start = "is read from 2 lists of one class each, such as ImageSets/Main"
    assert contents.notes == (f"the split train {start}/cat_train.txt.", f"the split val {start}/cat_val.txt.")
    write(tmp_path, {"ImageSets/Main/train.txt": "a\n"})
    source, contents = scan(tmp_path)  # the list of one class counts where there is no other
    assert keys(source, contents) == {"val": expected["val"], "train": ["JPEGImages/a.jpg"]}
    assert reasons(contents.left_out)[0] == ("ImageSets/Main/cat_train.txt", "class-list")
    assert "nor is 1 more list of one class" in contents.left_out[0].message


def test_lists_that_are_no_ids(tmp_path: Path) -> None:
    write(tmp_path, {**DEVKIT, "train.txt": "other/1.jpg 1,2,3,4,0\n", "ImageSets/notes.md": ""})
    source, contents = scan(tmp_path)
    assert list(keys(source, contents)) == ["train"]
    assert reasons(contents.left_out) == [("train.txt", "not-listed"), ("ImageSets/notes.md", "not-read")]
    write(tmp_path, {"ImageSets/Main/train.txt": b"\x89PNG\0\0\n"})
    with pytest.raises(SourceError) as caught:
        scan(tmp_path)
    assert caught.value.reason == "no-annotation"


def test_what_no_list_names_is_reported_with_the_lists(tmp_path: Path) -> None:
    _, contents = scan(write(tmp_path, {**DEVKIT, "ImageSets/Main/train.txt": "a\nb\nc\n"}))
    found, image = contents.left_out
    assert image.where == "JPEGImages/d.jpg"
    assert str(found) == "Annotations/d.xml: not stored: it is not listed in ImageSets/Main/train.txt."


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
    source, contents = scan(write(tmp_path, {**files, **{jpg.format(*place): "" for place in places}}))
    assert contents.problems == ()
    classes = field(contents).classes
    for (split, listed), wanted in zip(contents.splits.items(), ("train", "val"), strict=True):
        assert split.startswith(wanted)
        for reference, i in zip(listed, "ab", strict=True):
            sample = source.read(split, reference)
            assert sample.key == jpg.format(wanted, i)
            assert sample.objects is not None
            assert classes[sample.objects["labels"][0]] == wanted


def test_faults_of_lists(tmp_path: Path) -> None:
    lists = {"ImageSets/Main/train.txt": "a\nb\na\nmissing\n", "ImageSets/Main/val.txt": "b\nmissing\n../a\n"}
    extra = {"JPEGImages/missing.jpg": "", "JPEGImages/free.jpg": "", "Annotations/c.xml": "<annotation>"}
    source, contents = scan(write(tmp_path, {**DEVKIT, **lists, **extra}))
    assert keys(source, contents) == {
        "train": ["JPEGImages/a.jpg", "JPEGImages/b.jpg"],
        "val": ["JPEGImages/b.jpg"],  # overlap is the source's own affair
    }
    assert reasons(contents.problems) == [
        ("Annotations/a.xml", "duplicate-key"),
        ("Annotations/missing.xml", "no-annotation"),
        ("Annotations/../a.xml", "no-annotation"),
    ]
    where = ["Annotations/c.xml", "Annotations/d.xml", "JPEGImages/free.jpg"]
    assert reasons(contents.left_out) == [
        *((each, "not-listed") for each in where),
        ("JPEGImages/c.jpg", "not-read"),
    ]


def test_lists_without_main_and_with_spaces_and_folders(tmp_path: Path) -> None:
    files = {
        "Annotations/my photo 1.xml": annotation("", obj()),
        "JPEGImages/my photo 1.jpg": "",
        "Annotations/x/b.xml": annotation("", obj()),
        "JPEGImages/x/b.jpg": "",
        "ImageSets/Train 2012.txt": "my photo 1\nx/b\n",
    }
    source, contents = scan(write(tmp_path, files))
    assert keys(source, contents) == {"train_2012": ["JPEGImages/my photo 1.jpg", "JPEGImages/x/b.jpg"]}


def test_devkit_without_lists(tmp_path: Path) -> None:
    source, contents = scan(write(tmp_path / "VOCdevkit", {f"VOC2012/{name}": text for name, text in DEVKIT.items()}))
    assert keys(source, contents) == {"train": [f"VOC2012/JPEGImages/{i}.jpg" for i in "abcd"]}
    (tmp_path / "VOCdevkit/VOC2012/Annotations/b.xml").unlink()
    assert reasons(source.contents().problems) == [("VOC2012/JPEGImages/b.jpg", "no-annotation")]


def test_a_devkit_with_two_data_sets_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=r"found VOC2007, VOC2012") as caught:
        scan(
            write(
                tmp_path, {f"{year}/{name}": text for year in ("VOC2012", "VOC2007") for name, text in DEVKIT.items()}
            )
        )
    assert caught.value.reason == "several-datasets"


@pytest.mark.parametrize("layout", ["{}/{}", "{}/Annotations/{}", "Annotations/{}/{}", "{}/deep/{}"])
def test_split_folders(tmp_path: Path, layout: str) -> None:
    files = {layout.format(split, f"{split}.xml"): annotation("", obj()) for split in ("train", "valid", "test")}
    images = {name.replace("Annotations", "JPEGImages").replace(".xml", ".jpg"): "" for name in files}
    source, contents = scan(write(tmp_path, {**files, **images}))
    assert keys(source, contents) == dict(zip(("test", "train", "valid"), ([i] for i in sorted(images)), strict=True))


def test_split_folders_beside_others_are_refused(tmp_path: Path) -> None:
    files = {"train/a.xml": annotation("", obj()), "more/b.xml": annotation("", obj())}
    with pytest.raises(SourceError, match=r"found more/b\.xml beside train") as caught:
        scan(write(tmp_path, files))
    assert caught.value.reason == "split-name"


def test_detection(tmp_path: Path) -> None:
    dataset = "<dataset><images/></dataset>"
    cases: dict[str, tuple[Mapping[str, str | bytes], type | None]] = {
        "devkit": (DEVKIT, VocSource),
        "kit": ({f"VOC2012/{name}": text for name, text in DEVKIT.items()}, VocSource),
        "beside": ({"x/a.xml": annotation("", obj()).encode("utf-16")}, VocSource),
        "doctype": ({"a.xml": "<!DOCTYPE annotation><annotation/>"}, VocSource),
        "dlib": ({"a.xml": dataset}, ImglabSource),
        "both": ({"a.xml": dataset, "b.xml": annotation("", obj())}, ImglabSource),
        "others": ({"a.xml": "<svg/>", "b.jpg": ""}, None),
        "images": ({"cat/b.jpg": ""}, None),
    }
    for name, (files, expected) in cases.items():
        root = write(tmp_path / name, files)
        assert [source for source in (VocSource, ImglabSource) if source.detect(root)] == (
            [expected] if expected else []
        )
    file = tmp_path / "dlib" / "a.xml"
    assert (VocSource.detect(file), ImglabSource.detect(file)) == (False, True)


def test_what_lies_beside_the_data_set_is_left_out(tmp_path: Path) -> None:
    files = {f"BCCD/{name}": text for name, text in DEVKIT.items()}
    masks = {"BCCD/SegmentationClass/a.png": ""}
    beside = {"BCCD/extra/a.jpg": "", "mnist/train/0/1.png": "", "BCCD/old.xml": annotation(), "README.txt": ""}
    root = write(tmp_path, {**files, **masks, **beside})
    source = open_source(root)
    contents = source.contents()
    assert source.name == "voc" and len(contents.splits["train"]) == 4 and contents.problems == ()
    outside = ("BCCD/extra/a.jpg", "BCCD/old.xml", "mnist/train/0/1.png")
    assert reasons(contents.left_out) == [
        *((path, "not-listed") for path in outside),
        ("BCCD/SegmentationClass/a.png", "not-read"),
    ]
    (root / "mnist" / "loop").symlink_to(root)
    assert ("mnist/loop/", "symlink-loop") in reasons(open_source(root).contents().left_out)


def test_two_data_sets_in_xml_are_ambiguous(tmp_path: Path) -> None:
    files = {f"BCCD/{name}": text for name, text in DEVKIT.items()}
    files |= {f"BCCD/Annotations/{i}.xml": annotation(f"{i}.jpg") for i in range(20)}
    root = write(tmp_path, {**files, "faces/train.xml": "<dataset><images/></dataset>", "mnist/0/1.png": ""})
    with pytest.raises(SourceError, match=r"could be imglab or voc.*, or convert one data set") as caught:
        open_source(root)
    assert caught.value.reason == "ambiguous-format"
    assert open_source(root / "BCCD").name == "voc"


# --- fuzz -------------------------------------------------------------------------------------------------------

VALID = annotation(
    "a.jpg",
    obj("cat", more="<difficult>0</difficult><part name='n' x='1' y='2'/>"),
    obj("dog", more="<lm><x1>1</x1><y1>2</y1></lm><has_lm>1</has_lm><keypoints><a x='1' y='1'/></keypoints>"),
    size="<size><width>10</width><height>10</height></size>",
).encode()


def scan_or_refuse(root: Path, data: bytes) -> None:
    source = VocSource(write(root, {"a.xml": data, "a.jpg": ""}), SourceOptions())
    try:
        contents = source.contents()
        for reference in contents.splits["train"]:
            found = source.read("train", reference).objects
            assert found is not None
            assert found["boxes"].shape == (len(found["labels"]), 4)
    except SourceError as error:
        assert "\n" not in str(error)


@FUZZ
@given(st.binary(max_size=200))
def test_any_bytes(tmp_path: Path, data: bytes) -> None:
    scan_or_refuse(tmp_path, data)


@FUZZ
@given(st.integers(0, len(VALID)), st.integers(0, 40), st.binary(max_size=4) | st.sampled_from([b"<x/>", b"-", b"e9"]))
def test_any_change_of_a_valid_file(tmp_path: Path, start: int, length: int, new: bytes) -> None:
    scan_or_refuse(tmp_path, VALID[:start] + new + VALID[start + length :])


def test_flags_that_are_other_numbers_are_reported(tmp_path: Path) -> None:
    """Flags are 0 or 1: what else is written is stored as 1, and said."""
    flags = [("0.3", "2", "1.0"), ("0.7", "0", "3"), ("1", "yes", "")]
    names = "truncated", "difficult", "occluded"
    objects = "".join(
        f"<object><name>c</name>{''.join(f'<{n}>{v}</{n}>' for n, v in zip(names, values, strict=True))}<bndbox>"
        "<xmin>1</xmin><ymin>2</ymin><xmax>9</xmax><ymax>9</ymax></bndbox></object>"
        for values in flags
    )
    (tmp_path / "a.xml").write_text(f"<annotation><filename>a.png</filename>{objects}</annotation>")
    Image.new("RGB", (30, 20)).save(tmp_path / "a.png")
    found = [str(each) for each in open_source(tmp_path, "voc").contents().left_out]
    assert sorted(found) == [
        "a.xml: 0.3: not read: a number in <truncated>, stored as 1, in 2 values.",
        "a.xml: 2: not read: a number in <difficult>, stored as 1.",
        "a.xml: 3: not read: a number in <occluded>, stored as 1.",
    ]
