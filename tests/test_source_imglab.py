"""dlib's imglab: boxes, parts, labels, splits of several files, and every refusal."""

from __future__ import annotations

import pickle
import tracemalloc
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from labelling_files import keys, reasons
from tensorstore_ds.errors import SourceError
from tensorstore_ds.format.kinds import ObjectsField
from tensorstore_ds.format.schema import Keypoints
from tensorstore_ds.sources import open_source
from tensorstore_ds.sources.base import Contents, Objects, Source, SourceOptions
from tensorstore_ds.sources.imglab import ImglabSource

FUZZ = settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
NAN = float("nan")


def box(more: str = "", inside: str = "", corners: str = "top='2' left='1' width='30' height='40'") -> str:
    return f"<box {corners} {more}>{inside}</box>"


def image(file: str, *boxes: str, size: str = "") -> str:
    return f"<image file='{file}' {size}>{''.join(boxes)}</image>\n"


def dataset(*images: str) -> str:
    return f"<?xml version='1.0' encoding='UTF-8'?>\n<dataset><images>\n{''.join(images)}</images></dataset>"


def part(name: str, x: object, y: object) -> str:
    return f"<part name='{name}' x='{x}' y='{y}'/>"


def write(root: Path, files: Mapping[str, str | bytes]) -> Path:
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
    return root


def scan(path: Path, **options: object) -> tuple[ImglabSource, Contents]:
    source = ImglabSource(path, SourceOptions(**options))  # type: ignore[arg-type]
    return source, source.contents()


def objects(root: Path, *boxes: str, **options: object) -> Objects:
    source, contents = scan(write(root, {"a.xml": dataset(image("a.jpg", *boxes)), "a.jpg": ""}), **options)
    assert contents.problems == ()
    result = source.read("train", contents.splits["train"][0]).objects
    assert result is not None
    return result


def field(contents: Contents) -> ObjectsField:
    table = contents.fields["objects"]
    assert isinstance(table, ObjectsField)
    return table


# --- objects ----------------------------------------------------------------------------------------------------


def test_boxes_labels_and_parts(tmp_path: Path) -> None:
    files = {
        "faces.xml": dataset(
            image("a.jpg", box(inside=f"<label>face</label>{part('10', 5, 6)}{part('9', 1.5, 2)}"), box("label='eye'")),
            image("x/b.jpg", size="width='500' height='375'"),
            image("x\\c.jpg", box(inside=f"<label> face\n</label>{part('9', 'nan', 3)}")),
        ),
        **dict.fromkeys(("a.jpg", "x/b.jpg", "x/c.jpg"), ""),
    }
    source, contents = scan(write(tmp_path, files))
    table = field(contents)
    assert list(table.values) == ["boxes", "labels", "keypoints"]
    assert (table.classes, table.keypoints) == (("eye", "face"), ("9", "10"))
    assert (contents.labels, contents.problems, contents.left_out) == (None, (), ())
    source = pickle.loads(pickle.dumps(source))  # noqa: S301  as it travels to a worker process
    assert keys(source, contents) == {"train": ["a.jpg", "x/b.jpg", "x/c.jpg"]}
    a, b, c = (source.read("train", reference).objects for reference in contents.splits["train"])
    assert a is not None and b is not None and c is not None
    np.testing.assert_array_equal(a["boxes"], [[1, 2, 31, 42]] * 2)
    np.testing.assert_array_equal(a["labels"], [1, 0])
    np.testing.assert_array_equal(a["keypoints"], [[[1.5, 2], [5, 6]], [[NAN, NAN]] * 2])
    np.testing.assert_array_equal(c["keypoints"], [[[NAN, NAN]] * 2])
    assert {name: array.shape for name, array in b.items()} == {"boxes": (0, 4), "labels": (0,), "keypoints": (0, 2, 2)}
    assert {name: array.dtype for name, array in a.items()} == {
        "boxes": np.float64,
        "labels": np.int64,
        "keypoints": np.float64,
    }
    assert source.read("train", contents.splits["train"][1]).annotated_size == (375, 500)
    assert source.read("train", contents.splits["train"][0]).annotated_size is None
    assert source.files(contents.splits["train"][1]) == (f"{tmp_path}/x/b.jpg",)
    assert source.common_files() == ()  # a reference says all that the XML file says of its image
    assert isinstance(source, Source)


def test_boxes_are_passed_on_unchecked(tmp_path: Path) -> None:
    odd = "top='nan' left='-5' width='-2' height='0'"
    np.testing.assert_array_equal(objects(tmp_path, box(corners=odd))["boxes"], [[-5, NAN, -7, NAN]])


def test_flags(tmp_path: Path) -> None:
    found = objects(tmp_path, box("ignore='1'"), box("difficult='1' ignore='0'"), box("occluded='0'"), box())
    assert set(found) == {"boxes", "difficult", "occluded"}
    assert (found["difficult"].tolist(), found["occluded"].tolist()) == ([1, 1, 0, 0], [0] * 4)
    assert found["difficult"].dtype == np.uint8


def test_without_labels_and_parts_there_are_neither(tmp_path: Path) -> None:
    found = objects(tmp_path, box(inside="<label/>"), box())
    assert set(found) == {"boxes"}


def test_options(tmp_path: Path) -> None:
    boxes = (box(inside="<label>b</label>" + part("left", 1, 2)),)
    wanted = Keypoints(("right", "left"), ((0, 1),))
    found = objects(tmp_path, *boxes, keypoints=wanted, classes=("c", "b"))
    assert found["labels"].tolist() == [1]
    np.testing.assert_array_equal(found["keypoints"], [[[NAN, NAN], [1, 2]]])
    for options, reason in (
        ({"classes": ("c",)}, "unknown-class"),
        ({"keypoints": Keypoints(("x",))}, "unknown-keypoint"),
    ):
        with pytest.raises(SourceError) as caught:
            scan(tmp_path, **options)
        assert caught.value.reason == reason


def test_classes_that_differ_in_case(tmp_path: Path) -> None:
    with pytest.raises(SourceError) as caught:
        objects(tmp_path, box("label='Face'"), box("label='face'"))
    assert caught.value.reason == "class-case"


def test_a_box_without_label_among_others_is_a_problem(tmp_path: Path) -> None:
    files = {
        "train.xml": dataset(
            image("a.jpg"), image("b.jpg", box("label='x'"), box(), box()), image("c.jpg", box("label='x'"))
        ),
        "test.xml": dataset(image("d.jpg", box())),
        **dict.fromkeys(("a.jpg", "b.jpg", "c.jpg", "d.jpg"), ""),
    }
    source, contents = scan(write(tmp_path, files))
    assert keys(source, contents) == {"train": ["a.jpg", "c.jpg"]}
    assert reasons(contents.problems) == [("d.jpg", "annotation"), ("b.jpg", "annotation")]
    assert "found box 2 without" in str(contents.problems[1])


@pytest.mark.parametrize(
    ("entry", "where", "reason", "message"),
    [
        (image("x.jpg", box(), box(corners="top='1' left='1' width='2'")), "x.jpg", "annotation", "line 4, box 2"),
        (image("x.jpg", box(corners="top='1' left='a' width='2' height='3'")), "x.jpg", "annotation", "found 'a'"),
        (image("x.jpg", box("ignore='maybe'")), "x.jpg", "annotation", "expected ignore to be 0 or 1"),
        (image("x.jpg", box(inside="<part x='1' y='2'/>")), "x.jpg", "annotation", "attribute name"),
        (image("x.jpg", box(inside="<part name='n' x='1'/>")), "x.jpg", "annotation", "y of keypoint n"),
        (image("x.jpg", box(inside=part("n", "inf", 1))), "x.jpg", "annotation", "within a billion"),
        (image("x.jpg", box(inside=part("n", 1, 1) * 2)), "x.jpg", "annotation", "found n twice"),
        ("<image><box/></image>", "a.xml line 4", "annotation", "attribute file"),
        (image("missing.jpg"), "missing.jpg", "no-image", "a.xml line 4"),
        (image(f"{'x' * 300}.jpg"), f"{'x' * 300}.jpg", "unreadable-file", "cannot be read"),
        (image("./a.jpg"), "a.jpg", "duplicate-key", "again in line 4"),
        (image("../y.jpg"), "a.xml line 4", "unsafe-path", "'../y.jpg'"),
        (image("y/../../z/y.jpg"), "a.xml line 4", "unsafe-path", "inside the source"),
        (image("..\\y.jpg"), "a.xml line 4", "unsafe-path", "inside the source"),
        (image("/etc/y.jpg"), "a.xml line 4", "unsafe-path", "inside the source"),
        (image("C:\\y.jpg"), "a.xml line 4", "unsafe-path", "inside the source"),
        (image("\\\\host\\y.jpg"), "a.xml line 4", "unsafe-path", "inside the source"),
        (image("."), "a.xml line 4", "unsafe-path", "inside the source"),
    ],
)
def test_faults_of_one_image_are_problems(tmp_path: Path, entry: str, where: str, reason: str, message: str) -> None:
    files = {
        "a.xml": dataset(image("a.jpg", box()), entry, image("b.jpg", box())),
        "a.jpg": "",
        "b.jpg": "",
        "x.jpg": "",
    }
    source, contents = scan(write(tmp_path, files))
    assert keys(source, contents) == {"train": ["a.jpg", "b.jpg"]}
    assert reasons(contents.problems) == [(where, reason)]
    assert message in str(contents.problems[0])
    b = source.read("train", contents.splits["train"][1]).objects
    assert b is not None
    assert b["boxes"].tolist() == [[1, 2, 31, 42]]  # what was read of the faulty entry is gone


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (dataset(image("a.jpg", box()))[:-3], "xml-syntax"),
        ("<!DOCTYPE dataset [<!ENTITY a 'b'>]><dataset/>", "xml-doctype"),
        ("<?xml version='1.0' encoding='klingon'?><dataset/>", "xml-encoding"),
        ("<annotation/>", "annotation"),
        ("", "xml-syntax"),
    ],
)
def test_faults_of_a_whole_file(tmp_path: Path, content: str, reason: str) -> None:
    write(tmp_path, {"bad.xml": content, "a.jpg": "", "b.jpg": ""})
    for path in (tmp_path, tmp_path / "bad.xml"):
        with pytest.raises(SourceError) as caught:
            scan(path)
        assert caught.value.reason == reason
    write(tmp_path, {"good.xml": dataset(image("b.jpg"))})
    source, contents = scan(tmp_path)
    assert keys(source, contents) == {"train": ["b.jpg"]}
    assert reasons(contents.problems) == [("bad.xml", reason)]


def test_nothing_to_read(tmp_path: Path) -> None:
    for files in ({"a.jpg": ""}, {"a.xml": dataset()}):
        with pytest.raises(SourceError) as caught:
            scan(write(tmp_path, files))
        assert caught.value.reason in ("empty-source", "empty-split")


@pytest.mark.parametrize("name", ["a b.jpg", "图.jpg", "ü.jpg", "a&#10;b.jpg", "a&amp;b.jpg"])
@pytest.mark.parametrize("encoding", ["utf-8", "utf-16", "latin-1"])
def test_names_and_encodings(tmp_path: Path, name: str, encoding: str) -> None:
    plain = name.replace("&#10;", "\n").replace("&amp;", "&")
    if encoding == "latin-1" and "图" in name:
        name = "&#22270;.jpg"
    text = dataset(image(name, box())).replace("UTF-8", encoding)
    source, contents = scan(write(tmp_path, {"a.xml": text.encode(encoding), plain: ""}))
    assert keys(source, contents) == {"train": [plain]}
    assert contents.problems == ()


# --- splits -----------------------------------------------------------------------------------------------------


def test_a_folder_like_dlibs_faces(tmp_path: Path) -> None:
    keypoints = box(inside=part("0", 1, 2))
    files = {
        "training.xml": dataset(image("a.jpg", box(), box()), image("b.jpg")),
        "training_with_face_landmarks.xml": dataset(image("b.jpg"), image("a.jpg", keypoints)),
        "testing.xml": dataset(image("c.jpg", box())),
        "testing_with_face_landmarks.xml": dataset(image("c.jpg", keypoints)),
        **dict.fromkeys(("a.jpg", "b.jpg", "c.jpg", "dogs.jpg", ".hidden.jpg", "style.xsl", "elsewhere/d.jpg"), ""),
    }
    source, contents = scan(write(tmp_path, files))
    assert keys(source, contents) == {"test": ["c.jpg"], "train": ["b.jpg", "a.jpg"]}
    assert [len(references) for references in contents.splits.values()] == [1, 2]
    assert source.files(contents.splits["train"][1]) == (f"{tmp_path}/a.jpg",)
    assert contents.problems == ()
    assert sorted(reasons(contents.left_out)) == [
        ("dogs.jpg", "not-listed"),
        ("elsewhere/d.jpg", "not-read"),
        ("testing.xml", "no-more-annotated"),
        ("training.xml", "no-more-annotated"),
    ]


def test_a_union_of_files_is_left_out_unless_it_says_more(tmp_path: Path) -> None:
    files = {
        "train.xml": dataset(image("a.jpg", box())),
        "test.xml": dataset(image("b.jpg", box())),
        "all.xml": dataset(image("a.jpg", box()), image("b.jpg", box())),
        "a.jpg": "",
        "b.jpg": "",
    }
    source, contents = scan(write(tmp_path, files))
    assert keys(source, contents) == {"test": ["b.jpg"], "train": ["a.jpg"]}
    assert reasons(contents.left_out) == [("all.xml", "split-union")]
    write(tmp_path, {"all.xml": dataset(image("a.jpg", box(), box()), image("b.jpg", box()))})
    assert list(scan(tmp_path)[1].splits) == ["all", "test", "train"]


@pytest.mark.parametrize(
    ("names", "splits"),
    [
        (["faces.xml"], ["train"]),
        (["Testing.xml"], ["test"]),
        (["valid.xml"], ["val"]),
        (["a.xml", "train.xml"], ["a", "train"]),
        (["train_a.xml", "train_b.xml", "test.xml"], ["train_a", "train_b", "test"]),
        (["My Faces.xml", "x/My Faces.xml"], ["my_faces", "x_my_faces"]),
    ],
)
def test_split_names(tmp_path: Path, names: list[str], splits: list[str]) -> None:
    files = {name: dataset(image(f"{i}.jpg")) for i, name in enumerate(names)}
    images = {f"{Path(name).parent}/{i}.jpg": "" for i, name in enumerate(names)}
    assert sorted(scan(write(tmp_path, {**files, **images}))[1].splits) == sorted(splits)


def test_one_file_alone(tmp_path: Path) -> None:
    write(tmp_path, {"x/test.xml": dataset(image("a.jpg")), "x/train.xml": dataset(image("b.jpg")), "x/a.jpg": ""})
    source, contents = scan(tmp_path / "x" / "test.xml")
    assert keys(source, contents) == {"test": ["a.jpg"]}
    assert source.files(contents.splits["test"][0]) == (f"{tmp_path}/x/a.jpg",)


@pytest.mark.parametrize(
    "path",
    [
        "../../../photos/{}.jpg",
        "..\\..\\..\\photos\\{}.jpg",
        "/home/me/{}.jpg",
        "C:\\me\\photos\\{}.jpg",
        "photos/{}.jpg",
    ],
)
def test_paths_of_other_places_are_found_by_their_ends(tmp_path: Path, path: str) -> None:
    listed = dataset(*(image(path.format(i), box()) for i in "ab"))
    root = write(tmp_path / "set", {"xml/deep/train.xml": listed, "photos/a.jpg": "", "photos/b.jpg": ""})
    for source_path, options in ((root, {}), (root / "xml", {"images": root / "photos"})):
        if path == "photos/{}.jpg" and not options:
            continue  # of this source, and not there
        source, contents = scan(source_path, **options)
        folder = "" if options else "photos/"
        assert keys(source, contents) == {"train": [f"{folder}a.jpg", f"{folder}b.jpg"]}
        assert contents.problems == ()
        (note,) = contents.notes
        assert note.startswith("2 images are found by the end of the path, such as")
    if path != "photos/{}.jpg":
        with pytest.raises(SourceError) as caught:
            scan(root / "xml")
        assert caught.value.reason == "unsafe-path"
        assert "Convert the folder that contains both, or name the folder of the images with `images`." in str(
            caught.value
        )


def test_a_root_of_images(tmp_path: Path) -> None:
    text = dataset(image("a.jpg", box("label='x'"))).replace("<dataset>", "").replace("</dataset>", "")
    root = write(tmp_path, {"train.xml": text, "a.jpg": ""})
    assert type(open_source(root)) is ImglabSource
    source, contents = scan(root)
    assert keys(source, contents) == {"train": ["a.jpg"]}
    assert contents.problems == ()


def test_numbers_of_keypoints_with_and_without_zeros(tmp_path: Path) -> None:
    def parts(*names: str) -> str:
        return box(inside="".join(part(name, i, 2 * i) for i, name in enumerate(names)))

    files = {
        "train.xml": dataset(image("a.jpg", parts("00", "01"))),
        "test.xml": dataset(image("b.jpg", parts("0", "1"))),
    }
    source, contents = scan(write(tmp_path, {**files, "a.jpg": "", "b.jpg": ""}))
    assert field(contents).keypoints == ("0", "1")
    assert contents.notes == ("keypoints whose numbers have zeros before them are stored without: 00 as 0.",)
    for split in ("train", "test"):
        found = source.read(split, contents.splits[split][0]).objects
        assert found is not None
        np.testing.assert_array_equal(found["keypoints"], [[[0, 0], [1, 2]]])
    write(tmp_path, {"test.xml": dataset(image("b.jpg", parts("0", "00")))})
    source, contents = scan(tmp_path)  # they are two in one object
    assert field(contents).keypoints == ("0", "00", "01")
    write(tmp_path, {"test.xml": dataset(image("b.jpg", parts("00", "02")))})
    assert field(scan(tmp_path)[1]).keypoints == ("00", "01", "02")


def test_keypoints_that_differ_in_case(tmp_path: Path) -> None:
    boxes = box(inside=part("Nose", 1, 2)), box(inside=part("nose", 1, 2))
    with pytest.raises(SourceError, match="found Nose and nose") as caught:
        objects(tmp_path, *boxes)
    assert caught.value.reason == "class-case"
    found = objects(tmp_path, *boxes, keypoints=Keypoints(("nose", "Nose")))
    np.testing.assert_array_equal(found["keypoints"], [[[NAN, NAN], [1, 2]], [[1, 2], [NAN, NAN]]])


def test_what_is_not_read_is_reported(tmp_path: Path) -> None:
    more = box("pose='1' detection_score='2' angle='0.5'", inside="<part name='a' x='1' y='2' z='3'/><mask>4</mask>")
    text = dataset(image("a.jpg", more)).replace("<images>", "<license>CC</license><images>")
    _, contents = scan(write(tmp_path, {"a.xml": text, "a.jpg": ""}))
    found = ["the attribute angle of <box>", "the attribute z of <part>", "<mask>", "<license>"]
    assert [str(each) for each in contents.left_out] == [f"a.xml: not read: {each}." for each in found]


def test_images_in_a_folder_apart(tmp_path: Path) -> None:
    write(tmp_path, {"xml/deep/a.xml": dataset(image("x/a.jpg")), "photos/x/a.jpg": "", "photos/x/b.jpg": ""})
    source, contents = scan(tmp_path / "xml", images=tmp_path / "photos")
    assert source.read("train", contents.splits["train"][0]).image == f"{tmp_path}/photos/x/a.jpg"
    assert reasons(contents.left_out) == [("x/b.jpg", "not-listed")]


def test_annotations_are_kept_in_little_memory(tmp_path: Path) -> None:
    face = box(inside="".join(part(str(i), i, i) for i in range(68)))
    files = {f"{i}.jpg": "" for i in range(100)}
    write(tmp_path, {"a.xml": dataset(*(image(name, *[face] * 5) for name in files)), **files})
    source = ImglabSource(tmp_path, SourceOptions())
    tracemalloc.start()
    try:
        contents = source.contents()
        kept, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(contents.splits["train"]) == 100
    assert kept < 500 * 68 * 12 + 200_000  # as Python objects: 500 * 68 * 200
    assert peak < kept + 3_000_000  # the file has 1.2 MB; its tree would take 6 MB


# --- fuzz -------------------------------------------------------------------------------------------------------

VALID = dataset(
    image("a.jpg", box("ignore='1'", "<label>x</label>" + part("0", 1, 2) + part("1", 3, 4)), box("label='y'")),
    image("b.jpg", box("truncated='0'", "<label>x</label>"), size="width='5' height='6'"),
).encode()


def scan_or_refuse(root: Path, data: bytes) -> None:
    source = ImglabSource(write(root, {"a.xml": data, "a.jpg": "", "b.jpg": ""}), SourceOptions())
    try:
        contents = source.contents()
    except SourceError as error:
        assert "\n" not in str(error)
        return
    for reference in contents.splits["train"]:
        found = source.read("train", reference).objects
        assert found is not None
        assert found["boxes"].shape[1] == 4
        for name, spec in field(contents).values.items():
            assert found[name].shape == (len(found["boxes"]), *spec.shape)


@FUZZ
@given(st.binary(max_size=200))
def test_any_bytes(tmp_path: Path, data: bytes) -> None:
    scan_or_refuse(tmp_path, data)


@FUZZ
@given(st.integers(0, len(VALID)), st.integers(0, 40), st.binary(max_size=4) | st.sampled_from([b"<x/>", b"-", b"e9"]))
def test_any_change_of_a_valid_file(tmp_path: Path, start: int, length: int, new: bytes) -> None:
    scan_or_refuse(tmp_path, VALID[:start] + new + VALID[start + length :])


def test_one_class_is_that_of_all_objects_without_labels(tmp_path: Path) -> None:
    found = objects(tmp_path, box(), box(), classes=("face",))
    assert found["labels"].tolist() == [0, 0]
    _, contents = scan(tmp_path, classes=("face",))
    assert contents.fields["objects"].classes == ("face",)  # type: ignore[union-attr]
    assert "labels" not in objects(tmp_path, box(), classes=("face", "dog"))
