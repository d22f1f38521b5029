"""CVAT for images 1.1: every shape, groups and skeletons, subsets, and every refusal."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, strategies as st

from labelling_files import Has, blank, case, check, found, write

NAN = [None, None]
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
    got = found(write(tmp_path, {"a.xml": file(image("a.jpg", inside)), "a.jpg": ""}), "cvat")
    assert got.problems == []
    return (got.samples["train"][0].objects or {})["boxes"]


BAD = [
    "<box xtl='1' ytl='1' xbr='2' ybr='2'/>", "<box label='x' xtl='1' ytl='1' xbr='2'/>",
    "<polygon label='x' points='1,1;2,2'/>", "<polygon label='x' points='1,1;2,2;nan,3'/>",
    "<polygon label='x' points='1;2;3'/>", "<box label='x' xtl='inf' ytl='1' xbr='2' ybr='2' rotation='1'/>",
    "<skeleton label='x'><points label='a' points='1,1'/><points label='a' points='1,1'/></skeleton>",
]  # fmt: skip
LISTED = [*(image(f"{i}.jpg", inside) for i, inside in enumerate(BAD)), image("none.jpg"), image("t.jpg"), image("")]
LISTED += [image("ok.jpg"), image("ok.jpg"), image("plain")]
BOX = '<box label="cat" xtl="1" ytl="2" xbr="9" ybr="9"'
SHAPES = f"""{BOX} group_id="3" keyframe="1"/>{BOX} group_id="3"/>{BOX} group_id="4"/>{BOX} group_id="0"/>
  <skeleton label="cat" rotation="5"><attribute name="age">3</attribute>
    <points label="a" points="3,4" occluded="1"><attribute name="Occluded">1</attribute></points>
    <points label="b" points="13,24" occluded="0"/></skeleton>
  <points label="nose" points="1,1" group_id="4" occluded="0"><attribute name="q">1</attribute></points>
  <tag label="night"><attribute name="conf">0.5</attribute></tag>"""
PLAIN = f'{BOX} rotation="5" occluded="1"/><polygon label="cat" points="1,2;9,3;5,8" rotation="0.00"/>'

CASES = {
    "a file as CVAT writes it": case(
        {"annotations.xml": GOLDEN, **blank("images/Train/a.jpg", "images/Validation/x/b.jpg", "images/c.jpg")},
        keys={"train": ["images/Train/a.jpg"], "validation": ["images/Validation/x/b.jpg"]},
        values=["boxes", "oriented_boxes", "labels", "keypoints", "truncated", "occluded", "polygons"],
        classes=["cat", "dog"], keypoints=["ear_1", "ear_2", "nose", "tail"], sizes=[(480, 640), (48, 64)],
        boxes=[[[10.5, 20, 50, 60], [1, 2, 9, 8], [18, 12, 22, 32], [10, 26, 30, 34], [4, 5, 10, 12]], [[3, 1, 7, 4]]],
        names=[["cat", *["dog"] * 4], ["cat"]], occluded=[[1, 0, 0, 0, 0], [0]], truncated=[[1, 0, 0, 0, 0], [0]],
        points=[[[[11, 21], [12, 22], [30, 40], NAN], *[[NAN] * 4] * 4], [[[7, 1], NAN, [3, 4], NAN]]],
        polygons=[[[], [[1, 2], [9, 3], [5, 8]], [], [], []], [[]]],
        oriented_boxes=[
            [
                [[10.5, 20], [50, 20], [50, 60], [10.5, 60]], [NAN] * 4,
                [[22, 12], [22, 32], [18, 32], [18, 12]], [NAN] * 4, [NAN] * 4,
            ],
            [[NAN] * 4],
        ],
        said=[
            "images/c.jpg: not stored: no XML file of this source lists it.",
            Has("not stored: 1 masks of objects; their hulls are stored as boxes."),
            Has("not stored: 1 points that belong to no object."),
            Has("not stored: 1 shapes that are no objects, such as lines."),
            'annotations.xml: images/Train/a.jpg: not read: the attribute "age".',
            "annotations.xml: images/Train/a.jpg: not read: <tag> night.",
            "annotations.xml: images/Validation/x/b.jpg: not read: the attribute occluded of <points>.",
        ],
    ),
    "the subset of the only task, and none": case(
        {
            "a/a.xml": file(image("a.jpg"), meta="<task><id>1</id><subset>Val 2</subset></task>"),
            "b.xml": file(image("b.jpg")), **blank("a/a.jpg", "b.jpg"),
        },
        keys={"val_2": ["a/a.jpg"], "train": ["b.jpg"]}, notes=["the split 'Val 2' is named val_2 in the store."],
    ),
    "problems": case(
        {
            "a.xml": file(*LISTED), "b.xml": file("<track id='0' label='x'/>"), "c.xml": file(image("ok.jpg")),
            "d.xml": file(image("v.jpg")) + "<", "e.xml": file(image("../../v.jpg")),
            **blank(*(f"{i}.jpg" for i in range(len(BAD))), "x/t.jpg", "y/t.jpg", "v.jpg", "ok.jpg"),
        },
        keys={"train": ["ok.jpg", "v.jpg"]},
        problems=[
            *((f"{i}.jpg", "annotation") for i in range(len(BAD))), ("none.jpg", "no-image"),
            ("t.jpg", "ambiguous-image"), ("a.xml line 10", "annotation"), ("ok.jpg", "duplicate-key"),
            ("plain", "no-image"), ("b.xml", "annotation"), ("ok.jpg", "duplicate-key"), ("d.xml", "xml-syntax"),
        ],
        said=[
            *[Has()] * 7, Has("an image named none.jpg or none.*, found none"), *[Has()] * 3,
            Has("an image named plain, found none"), Has("Export it as CVAT for images 1.1"), *[Has()] * 2,
            *[Has("not stored: no XML file of this source lists it.")] * 9,
        ],
    ),
    "nothing is listed": case({"a.xml": file()}, refused="empty-source"),
    "what shapes have besides is named": case(  # attributes and tags, links of objects, and points of a skeleton
        {
            "a.xml": file(image("0.jpg", SHAPES), image("1.jpg", PLAIN + '<tag label="night"/>')),
            **blank("0.jpg", "1.jpg"),
        },
        said=[
            "a.xml: not read: the attribute keyframe of <box>.",
            "a.xml: 0.jpg: not read: the attribute group_id of several objects.",
            'a.xml: 0.jpg: not read: the attribute "age".',
            "a.xml: 0.jpg: not read: the attribute rotation of <skeleton>.",
            "a.xml: 0.jpg: not read: the attribute occluded of <points>.",
            'a.xml: 0.jpg: not read: the attribute "q".',
            "a.xml: 0.jpg: not read: <tag> night, in 2 images.",
        ],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_what_is_read(name: str, tmp_path: Path) -> None:
    check(CASES[name], tmp_path, "cvat")


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
