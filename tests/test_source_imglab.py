"""dlib's imglab: boxes, parts, labels, splits of several files, and every refusal."""

from __future__ import annotations

from pathlib import Path

import pytest

from labelling_files import Case, Files, Found, Has, blank, case, check, found, refused, write
from tensorstore_ds.format.schema import Keypoints

NAN = [None, None]


def box(more: str = "", inside: str = "", corners: str = "top='2' left='1' width='30' height='40'") -> str:
    return f"<box {corners} {more}>{inside}</box>"


def image(file: str, *boxes: str, size: str = "") -> str:
    return f"<image file='{file}' {size}>{''.join(boxes)}</image>\n"


def dataset(*images: str) -> str:
    return f"<?xml version='1.0' encoding='UTF-8'?>\n<dataset><images>\n{''.join(images)}</images></dataset>"


def part(name: str, x: object, y: object) -> str:
    return f"<part name='{name}' x='{x}' y='{y}'/>"


def parts(*names: str) -> str:
    return box(inside="".join(part(name, i, 2 * i) for i, name in enumerate(names)))


def one(*boxes: str, **expected: object) -> Case:
    """A data set that is one image with these boxes."""
    return case({"a.xml": dataset(image("a.jpg", *boxes)), "a.jpg": ""}, **expected)


def splits(*images: str, **texts: str) -> Files:
    """Files of these texts, and images a.jpg and so on."""
    return {**{f"{name}.xml": text for name, text in texts.items()}, **blank(*(f"{each}.jpg" for each in images))}


def scan(root: Path, files: Files | None = None, **options: object) -> Found:
    return found(write(root, files or {}), "imglab", **options)


LEFT = box(inside="<label>b</label>" + part("left", 1, 2))
NOSES = box(inside=part("Nose", 1, 2)), box(inside=part("nose", 1, 2))
MORE = box("pose='1' detection_score='2' angle='0.5'", inside="<part name='a' x='1' y='2' z='3'/><mask>4</mask>")
UNION = {
    "train": dataset(image("a.jpg", box())),
    "test": dataset(image("b.jpg", box())),
    "all": dataset(image("a.jpg", box()), image("b.jpg", box())),
}
CASES = {
    "boxes are passed on unchecked": one(
        box(corners="top='nan' left='-5' width='-2' height='0'"), boxes=[[[-5, None, -7, None]]]
    ),
    "flags": one(
        box("ignore='1'"), box("difficult='1' ignore='0'"), box("occluded='0'"), box(), problems=[],
        values=["boxes", "difficult", "occluded"], difficult=[[1, 1, 0, 0]], occluded=[[0] * 4],
    ),
    "no labels and parts": one(box(inside="<label/>"), box(), values=["boxes"]),
    "given classes and keypoints": one(
        LEFT, options={"keypoints": Keypoints(("right", "left"), ((0, 1),)), "classes": ("c", "b")}, names=[["b"]],
        classes=["c", "b"], points=[[[NAN, [1, 2]]]],
    ),
    "another class": one(LEFT, options={"classes": ("c", "d")}, refused="unknown-class"),
    "other keypoints": one(LEFT, options={"keypoints": Keypoints(("x",))}, refused="unknown-keypoint"),
    "one class without labels": one(
        box(), box(), options={"classes": ("face",)}, classes=["face"], names=[["face", "face"]]
    ),
    "two classes without labels": one(box(), options={"classes": ("face", "dog")}, values=["boxes"]),
    "two labels of a box": one(
        box(inside="<label>cat</label><label>dog</label>"), refused=("annotation", "expected one label, found 'cat'")
    ),
    "classes that differ in case": one(box("label='Face'"), box("label='face'"), refused="class-case"),
    "keypoints that differ in case": one(*NOSES, refused=("class-case", "found Nose and nose")),
    "given keypoints that differ in case": one(
        *NOSES, options={"keypoints": Keypoints(("nose", "Nose"))}, points=[[[NAN, [1, 2]], [[1, 2], NAN]]]
    ),
    "a box without label among others": case(
        splits(
            *"abcd", test=dataset(image("d.jpg", box())),
            train=dataset(
                image("a.jpg"), image("b.jpg", box("label='x'"), box(), box()), image("c.jpg", box("label='x'"))
            ),
        ),
        keys={"train": ["a.jpg", "c.jpg"]}, problems=[("d.jpg", "annotation"), ("b.jpg", "annotation")],
        said=[Has("d.jpg"), Has("found box 2 without"), "test.xml: not read."],
    ),
    "no files": case({"a.jpg": ""}, refused="empty-source"),
    "no images": case({"a.xml": dataset()}, refused="empty-split"),
    "unread": case(
        {"a.xml": dataset(image("a.jpg", MORE)).replace("<images>", "<license>CC</license><images>"), "a.jpg": ""},
        said=[
            f"a.xml: not read: {each}."
            for each in ("the attribute angle of <box>", "the attribute z of <part>", "<mask>", "<license>")
        ],
    ),
    # splits
    "dlib's faces": case(
        {
            **splits(
                "a", "b", "c", "dogs", ".hidden", "elsewhere/d",
                training=dataset(image("a.jpg", box(), box()), image("b.jpg")),
                training_with_face_landmarks=dataset(image("b.jpg"), image("a.jpg", parts("0"))),
                testing=dataset(image("c.jpg", box())), testing_with_face_landmarks=dataset(image("c.jpg", parts("0"))),
            ),
            "style.xsl": "",
        },
        keys={"test": ["c.jpg"], "train": ["b.jpg", "a.jpg"]}, problems=[],
        left_out=[
            ("training.xml", "no-more-annotated"), ("testing.xml", "no-more-annotated"), ("dogs.jpg", "not-listed"),
            ("elsewhere/d.jpg", "not-read"),
        ],
    ),
    "iBUG's faces": case(
        splits(*"ab", **{f"labels_ibug_300W{name[3:]}": text for name, text in {
            "all": UNION["all"], "all_train": UNION["train"], "all_test": UNION["test"]}.items()}),
        keys={"test": ["b.jpg"], "train": ["a.jpg"]}, left_out=[("labels_ibug_300W.xml", "split-union")],
    ),
    "a union of files": case(
        splits(*"ab", **UNION), keys={"test": ["b.jpg"], "train": ["a.jpg"]}, left_out=[("all.xml", "split-union")]
    ),
    "a union that says more": case(
        splits(*"ab", **{**UNION, "all": dataset(image("a.jpg", box(), box()), image("b.jpg", box()))}),
        splits=["all", "test", "train"],
    ),
    **{
        f"the split of {names}": case(
            {
                **{name: dataset(image(f"{i}.jpg")) for i, name in enumerate(names)},
                **blank(*(f"{Path(name).parent}/{i}.jpg" for i, name in enumerate(names))),
            },
            splits=expected,
        )
        for names, expected in (
            (("faces.xml",), ["train"]),
            (("Testing.xml",), ["test"]),
            (("valid.xml",), ["val"]),
            (("a.xml", "train.xml"), ["a", "train"]),
            (("train_a.xml", "train_b.xml", "test.xml"), ["test", "train_a", "train_b"]),
            (("My Faces.xml", "x/My Faces.xml"), ["my_faces", "x_my_faces"]),
        )
    },
    "one file": case(
        {"test.xml": dataset(image("a.jpg")), "train.xml": dataset(image("b.jpg")), "a.jpg": ""}, "test.xml",
        keys={"test": ["a.jpg"]},
    ),
    "a path that leads out of the source": case(
        {"xml/train.xml": dataset(image("../../photos/a.jpg", box())), "photos/a.jpg": ""}, "xml",
        refused=("unsafe-path", "Convert the folder that contains both, or name the folder of the images with "),
    ),
    "a root of images": case(
        splits("a", train=f"<images>{image('a.jpg', box())}</images>"), keys={"train": ["a.jpg"]}, problems=[]
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_what_is_read(name: str, tmp_path: Path) -> None:
    check(CASES[name], tmp_path, "imglab")


def test_boxes_labels_and_parts(tmp_path: Path) -> None:
    text = dataset(
        image("a.jpg", box(inside=f"<label>face</label>{part('10', 5, 6)}{part('9', 1.5, 2)}"), box("label='eye'")),
        image("x/b.jpg", size="width='500' height='375'"),
        image("x\\c.jpg", box(inside=f"<label> face\n</label>{part('9', 'nan', 3)}")),
    )
    got = scan(tmp_path, splits("a", "x/b", "x/c", faces=text))
    assert (got.values, got.classes, got.keypoints) == (
        ["boxes", "labels", "keypoints"],
        ["eye", "face"],
        ["9", "10"],
    )
    assert (got.contents.labels, got.said, got.keys) == (None, [], {"train": ["a.jpg", "x/b.jpg", "x/c.jpg"]})
    assert (got.boxes, got.names) == ([[[1, 2, 31, 42]] * 2, [], [[1, 2, 31, 42]]], [["face", "eye"], [], ["face"]])
    assert got.points == [[[[1.5, 2], [5, 6]], [NAN] * 2], [], [[NAN] * 2]]
    assert got.sizes == [None, (375, 500), None]
    assert got.source.files(got.contents.splits["train"][1]) == (f"{tmp_path}/x/b.jpg",)
    assert got.source.common_files() == ()  # a reference says all that the XML file says of its image


@pytest.mark.parametrize(
    ("entry", "where", "reason", "message"),
    [
        *((image("x.jpg", *boxes), "x.jpg", "annotation", message) for boxes, message in (
            ([box(), box(corners="top='1' left='1' width='2'")], "line 4, box 2"),
            ([box(corners="top='1' left='a' width='2' height='3'")], "found 'a'"),
            ([box("ignore='maybe'")], "expected ignore to be 0 or 1"),
            ([box(inside="<part x='1' y='2'/>")], "attribute name"),
            ([box(inside="<part name='n' x='1'/>")], "y of keypoint n"),
            ([box(inside=part("n", "inf", 1))], "within a billion"),
            ([box(inside=part("n", 1, 1) * 2)], "found n twice"),
        )),
        ("<image><box/></image>", "a.xml line 4", "annotation", "attribute file"),
        (image("missing.jpg"), "missing.jpg", "no-image", "a.xml line 4"),
        (image(f"{'x' * 300}.jpg"), f"{'x' * 300}.jpg", "unreadable-file", "cannot be read"),
        (image("./a.jpg"), "a.jpg", "duplicate-key", "again in line 4"),
        (image("../y.jpg"), "a.xml line 4", "unsafe-path", "'../y.jpg'"),
        *(
            (image(path), "a.xml line 4", "unsafe-path", "inside the source")
            for path in ("y/../../z/y.jpg", "..\\y.jpg", "/etc/y.jpg", "C:\\y.jpg", "\\\\host\\y.jpg", ".")
        ),
    ],
)  # fmt: skip
def test_faults_of_one_image_are_problems(tmp_path: Path, entry: str, where: str, reason: str, message: str) -> None:
    got = scan(tmp_path, splits(*"abx", a=dataset(image("a.jpg", box()), entry, image("b.jpg", box()))))
    assert (got.keys, got.problems) == ({"train": ["a.jpg", "b.jpg"]}, [(where, reason)])
    assert message in got.said[0]
    assert got.boxes[1] == [[1, 2, 31, 42]]  # what was read of the faulty entry is gone


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (dataset(image("a.jpg", box()))[:-3], "xml-syntax"),  # and all that a stream refuses: test_source_xml
        ("<annotation/>", "annotation"),
    ],
)
def test_faults_of_a_whole_file(tmp_path: Path, content: str, reason: str) -> None:
    write(tmp_path, splits(*"ab", bad=content))
    for path in (tmp_path, tmp_path / "bad.xml"):
        assert refused(path, "imglab") == reason
    got = scan(tmp_path, {"good.xml": dataset(image("b.jpg"))})
    assert (got.keys, got.problems) == ({"train": ["b.jpg"]}, [("bad.xml", reason)])


@pytest.mark.parametrize(
    ("name", "written", "encoding"),
    [
        ("a b.jpg", "a b.jpg", "utf-8"),
        ("图.jpg", "图.jpg", "utf-16"),
        ("图.jpg", "&#22270;.jpg", "latin-1"),
        ("ü.jpg", "ü.jpg", "latin-1"),
        ("a\nb.jpg", "a&#10;b.jpg", "utf-8"),
        ("a&b.jpg", "a&amp;b.jpg", "utf-8"),
    ],
)
def test_names_and_encodings(tmp_path: Path, name: str, written: str, encoding: str) -> None:
    text = dataset(image(written, box())).replace("UTF-8", encoding)
    got = scan(tmp_path, {"a.xml": text.encode(encoding), name: ""})
    assert (got.keys, got.problems) == ({"train": [name]}, [])
