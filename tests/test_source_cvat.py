"""CVAT for images 1.1: every shape, groups and skeletons, subsets, and every refusal."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, strategies as st

from labelling_files import field, keys, objects, reasons, refused, scan, write

NAN = float("nan")
GOLDEN = """<?xml version="1.0" encoding="utf-8"?>
<annotations>
  <version>1.1</version>
  <meta><project><id>3</id><tasks>
    <task><id>5</id><name>one</name><subset>Train</subset></task>
    <task><id>6</id><name>two</name><subset>Validation</subset></task></tasks></project></meta>
  <image id="0" name="a.jpg" subset="Train" task_id="5" width="640" height="480">
    <box label="cat" source="manual" occluded="1" xtl="10.50" ytl="20.00" xbr="50.00" ybr="60.00" group_id="7">
      <attribute name="age">3</attribute><attribute name="Truncated">true</attribute></box>
    <points label="nose" source="manual" occluded="0" points="30.00,40.00" group_id="7"/>
    <points label="ear" source="manual" occluded="0" points="11,21;12,22" group_id="7"/>
    <polygon label="dog" source="manual" occluded="0" points="1,2;9,3;5,8"/>
    <box label="dog" occluded="0" xtl="10" ytl="20" xbr="30" ybr="24" rotation="90.0"/>
    <ellipse label="dog" occluded="0" cx="20" cy="30" rx="10" ry="4"/>
    <mask label="dog" occluded="0" rle="3, 5, 4" left="4" top="5" width="6" height="7"/>
    <polyline label="dog" occluded="0" points="1,1;2,2"/>
    <points label="nose" points="1,1"/>
    <tag label="night" source="manual"/>
  </image>
  <image id="1" name="x/b.jpg" task_id="6" width="64" height="48">
    <skeleton label="cat" source="manual" z_order="0">
      <points label="nose" source="manual" outside="0" occluded="1" points="3,4"/>
      <points label="tail" source="manual" outside="1" occluded="0" points="9,9"/>
      <points label="ear_1" source="manual" outside="0" occluded="0" points="7,1"/></skeleton>
  </image>
</annotations>"""


def file(*images: str, meta: str = "") -> str:
    return f"<annotations><meta>{meta}</meta>{''.join(images)}</annotations>"


def image(name: str, inside: str = "", more: str = "") -> str:
    return f"<image id='0' name='{name}' {more}>{inside}</image>\n"


def boxes(tmp_path: Path, inside: str) -> np.ndarray:
    source, contents = scan(write(tmp_path, {"a.xml": file(image("a.jpg", inside)), "a.jpg": ""}), "cvat")
    assert contents.problems == ()
    return objects(source, contents)["boxes"]


def test_a_file_as_cvat_writes_it(tmp_path: Path) -> None:
    files = {"annotations.xml": GOLDEN, "images/Train/a.jpg": "", "images/Validation/x/b.jpg": "", "images/c.jpg": ""}
    source, contents = scan(write(tmp_path, files), "cvat")
    assert keys(source, contents) == {"train": ["images/Train/a.jpg"], "validation": ["images/Validation/x/b.jpg"]}
    table = field(contents)
    assert list(table.values) == ["boxes", "oriented_boxes", "labels", "keypoints", "truncated", "occluded", "polygons"]
    assert (table.classes, table.keypoints) == (("cat", "dog"), ("ear_1", "ear_2", "nose", "tail"))
    found = objects(source, contents)
    expected = [[10.5, 20, 50, 60], [1, 2, 9, 8], [18, 12, 22, 32], [10, 26, 30, 34], [4, 5, 10, 12]]
    np.testing.assert_allclose(found["boxes"], expected)
    np.testing.assert_array_equal(found["keypoints"][0], [[11, 21], [12, 22], [30, 40], [NAN, NAN]])
    assert np.isnan(found["keypoints"][1:]).all()
    assert found["labels"].tolist() == [0, 1, 1, 1, 1]
    assert (found["occluded"].tolist(), found["truncated"].tolist()) == ([1, 0, 0, 0, 0], [1, 0, 0, 0, 0])
    assert [len(corners) for corners in found["polygons"]] == [0, 3, 0, 0, 0]
    upright, turned = [[10.5, 20], [50, 20], [50, 60], [10.5, 60]], [[22, 12], [22, 32], [18, 32], [18, 12]]
    np.testing.assert_allclose(found["oriented_boxes"][[0, 2]], [upright, turned], rtol=1e-12)
    assert np.isnan(found["oriented_boxes"][[1, 3, 4]]).all()
    skeleton = objects(source, contents, "validation")
    np.testing.assert_array_equal(skeleton["boxes"], [[3, 1, 7, 4]])
    np.testing.assert_array_equal(skeleton["keypoints"], [[[7, 1], [NAN, NAN], [3, 4], [NAN, NAN]]])
    assert [(p.where, p.reason, p.message.split()[2]) for p in contents.left_out] == [
        ("images/c.jpg", "not-listed", "no"),
        *((str(tmp_path), reason, n) for reason, n in (("masks", "1"), ("points", "1"))),
        (str(tmp_path), "shapes", "1"),
        *[("annotations.xml: images/Train/a.jpg", "not-read", found) for found in ("the", "<tag>")],
        ("annotations.xml: images/Validation/x/b.jpg", "not-read", "the"),
    ]
    assert source.read("train", contents.splits["train"][0]).annotated_size == (480, 640)


def test_the_subset_of_the_only_task_and_none(tmp_path: Path) -> None:
    files = {"a/a.xml": file(image("a.jpg"), meta="<task><id>1</id><subset>Val 2</subset></task>"), "a/a.jpg": ""}
    files |= {"b.xml": file(image("b.jpg")), "b.jpg": ""}
    source, contents = scan(write(tmp_path, files), "cvat")
    assert keys(source, contents) == {"val_2": ["a/a.jpg"], "train": ["b.jpg"]}
    assert contents.notes == ("the split 'Val 2' is named val_2 in the store.",)


@pytest.mark.parametrize("degrees", [0.0, 30, 90, 180, 275.5, -45])
def test_a_turned_box_has_the_hull_of_its_corners(degrees: float, tmp_path: Path) -> None:
    turn = np.deg2rad(degrees)
    matrix = np.array([[np.cos(turn), -np.sin(turn)], [np.sin(turn), np.cos(turn)]])
    corners = np.array([[-10, -2], [10, -2], [10, 2], [-10, 2]]) @ matrix.T + (20, 22)
    expected = [*corners.min(axis=0), *corners.max(axis=0)]
    box = f"<box label='x' xtl='10' ytl='20' xbr='30' ybr='24' rotation='{degrees}'/>"
    np.testing.assert_allclose(boxes(tmp_path, box), [expected])


@given(st.floats(-360, 360), st.floats(0.5, 50), st.floats(0.5, 50))
def test_the_box_of_an_ellipse_touches_it(tmp_path_factory, degrees: float, rx: float, ry: float) -> None:
    found = boxes(
        tmp_path_factory.mktemp("e"), f"<ellipse label='x' cx='0' cy='0' rx='{rx}' ry='{ry}' rotation='{degrees}'/>"
    )
    t, turn = np.linspace(0, 2 * np.pi, 3000), np.deg2rad(degrees)
    x = rx * np.cos(t) * np.cos(turn) - ry * np.sin(t) * np.sin(turn)
    y = rx * np.cos(t) * np.sin(turn) + ry * np.sin(t) * np.cos(turn)
    np.testing.assert_allclose(found, [[x.min(), y.min(), x.max(), y.max()]], atol=1e-3)


def test_problems(tmp_path: Path) -> None:
    bad = ["<box xtl='1' ytl='1' xbr='2' ybr='2'/>", "<box label='x' xtl='1' ytl='1' xbr='2'/>"]
    bad += ["<polygon label='x' points='1,1;2,2'/>", "<polygon label='x' points='1,1;2,2;nan,3'/>"]
    bad += ["<polygon label='x' points='1;2;3'/>", "<box label='x' xtl='inf' ytl='1' xbr='2' ybr='2' rotation='1'/>"]
    bad += ["<skeleton label='x'><points label='a' points='1,1'/><points label='a' points='1,1'/></skeleton>"]
    files = {f"{i}.jpg": "" for i in range(len(bad))} | {"x/t.jpg": "", "y/t.jpg": "", "v.jpg": "", "ok.jpg": ""}
    listed = [image(f"{i}.jpg", inside) for i, inside in enumerate(bad)]
    listed += [image("none.jpg"), image("t.jpg"), image(""), image("ok.jpg"), image("ok.jpg"), image("plain")]
    files |= {"a.xml": file(*listed), "b.xml": file("<track id='0' label='x'/>"), "c.xml": file(image("ok.jpg"))}
    files |= {"d.xml": file(image("v.jpg")) + "<", "e.xml": file(image("../../v.jpg"))}
    source, contents = scan(write(tmp_path, files), "cvat")
    assert reasons(contents.problems) == [
        *((f"{i}.jpg", "annotation") for i in range(len(bad))),
        *(("none.jpg", "no-image"), ("t.jpg", "ambiguous-image"), ("a.xml line 10", "annotation")),
        *(("ok.jpg", "duplicate-key"), ("plain", "no-image"), ("b.xml", "annotation")),
        *(("ok.jpg", "duplicate-key"), ("d.xml", "xml-syntax")),
    ]
    assert keys(source, contents) == {"train": ["ok.jpg", "v.jpg"]}
    assert "an image named none.jpg or none.*, found none" in contents.problems[7].message
    assert "an image named plain, found none" in contents.problems[11].message
    assert "Export it as CVAT for images 1.1" in contents.problems[12].message


def test_nothing_is_listed(tmp_path: Path) -> None:
    assert refused(write(tmp_path, {"a.xml": file()})) == "empty-source"


def test_what_shapes_have_besides_is_named(tmp_path: Path) -> None:
    """Attributes and tags by name, links of objects, and what the points of a skeleton say."""
    box = '<box label="cat" xtl="1" ytl="2" xbr="9" ybr="9"'
    shapes = f"""{box} group_id="3" keyframe="1"/>{box} group_id="3"/>{box} group_id="4"/>{box} group_id="0"/>
      <skeleton label="cat" rotation="5"><attribute name="age">3</attribute>
        <points label="a" points="3,4" occluded="1"><attribute name="Occluded">1</attribute></points>
        <points label="b" points="13,24" occluded="0"/></skeleton>
      <points label="nose" points="1,1" group_id="4" occluded="0"><attribute name="q">1</attribute></points>
      <tag label="night"><attribute name="conf">0.5</attribute></tag>"""
    plain = f'{box} rotation="5" occluded="1"/><polygon label="cat" points="1,2;9,3;5,8" rotation="0.00"/>'
    files = {"a.xml": file(image("0.jpg", shapes), image("1.jpg", plain + '<tag label="night"/>'))}
    _, contents = scan(write(tmp_path, {**files, "0.jpg": "", "1.jpg": ""}), "cvat")
    found = [str(each) for each in contents.left_out]
    assert sorted(found) == [
        "a.xml: 0.jpg: not read: <tag> night, in 2 images.",
        'a.xml: 0.jpg: not read: the attribute "age".',
        'a.xml: 0.jpg: not read: the attribute "q".',
        "a.xml: 0.jpg: not read: the attribute group_id of several objects.",
        "a.xml: 0.jpg: not read: the attribute occluded of <points>.",
        "a.xml: 0.jpg: not read: the attribute rotation of <skeleton>.",
        "a.xml: not read: the attribute keyframe of <box>.",
    ]
