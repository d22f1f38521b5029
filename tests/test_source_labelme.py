"""labelme: shapes of every type, groups, images found and embedded, and every refusal."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from labelling_files import Has, blank, case, check, converted, found, write
from stores import png_bytes
from tensorstore_ds.annex.sources.labelme import read_shapes
from tensorstore_ds.sources.forms import FormError

NAN = float("nan")
GOLDEN = r"""{"version": "5.4.1", "flags": {"blurred": true, "night": false}, "shapes": [
  {"label": "cat", "points": [[50, 60], [10.5, 20]], "group_id": 1, "description": "", "shape_type": "rectangle",
   "flags": {"occluded": true, "wet": true}, "mask": null},
  {"label": "nose", "points": [[30, 40]], "group_id": 1, "shape_type": "point", "flags": {}},
  {"label": "dog", "points": [[1, 2], [9, 3], [5, 8]], "group_id": null, "shape_type": "polygon", "flags": {}},
  {"label": "dog", "points": [[30, 30], [33, 34]], "group_id": null, "shape_type": "circle", "flags": {}},
  {"label": "tail", "points": [[30, 30], [33, 34]], "group_id": null, "shape_type": "line", "flags": {}},
  {"label": "eye", "points": [[3, 4]], "group_id": null, "shape_type": "point", "flags": {}}],
 "imagePath": "..\\images\\a.jpg", "imageData": null, "imageHeight": 480, "imageWidth": 640}"""


def shape(form: str, *points: Any, label: Any = "cat", **more: Any) -> dict[str, Any]:
    return {"label": label, "points": list(points), "shape_type": form, **more}


def file(*shapes: Any, **more: Any) -> str:
    return json.dumps({"version": "5", "shapes": list(shapes), "imagePath": "x.jpg", **more})


def test_the_image_in_the_file_where_there_is_no_other(tmp_path: Path) -> None:
    pixels = np.arange(48, dtype=np.uint8).reshape(4, 4, 3)
    data = base64.b64encode(png_bytes(pixels)).decode()
    box = shape("rectangle", [0, 0], [2, 3])
    write(tmp_path, {"in/a.json": file(box, imageData=data), "in/b.json": file(box, imagePath="b.png", imageData="!")})
    write(tmp_path, {"in/b.png": png_bytes(pixels[::-1])})
    got = found(tmp_path / "in")
    assert got.source.files(got.contents.splits["train"][1]) == (f"{tmp_path}/in/a.json",)
    train = converted(tmp_path / "in")[0]["train"]
    np.testing.assert_array_equal(train["image"], [pixels[::-1], pixels])
    assert list(train["key"]) == ["b.png", "x.jpg"]


def test_polygons_of_a_group_are_one_object() -> None:
    rings = [shape("polygon", [0, 0], [1, 0], [1, 1], group_id=1), shape("polygon", [5, 5], [6, 5], [6, 7], group_id=1)]
    (found,), unstored = read_shapes([*rings, shape("point", [3, 3], label="p", group_id=1)])
    assert (found.box, dict(found.keypoints), +unstored) == ((0, 0, 6, 7), {"p": (3, 3)}, {})
    np.testing.assert_array_equal(found.polygon, [[0, 0], [1, 0], [1, 1], [NAN, NAN], [5, 5], [6, 5], [6, 7]])
    others = [shape("polygon", [0, 0], [1, 0], [1, 1], label=name, group_id=1) for name in "ab"]
    found, unstored = read_shapes([*others, shape("point", [3, 3], group_id=1)])
    assert ([each.label for each in found], unstored["points"]) == (["a", "b"], 1)


def test_points_of_one_name_are_taken_once() -> None:
    box, *points = shape("rectangle", [0, 0], [9, 9], group_id=1), *[shape("point", [i, 1], group_id=1) for i in (1, 2)]
    (found,), unstored = read_shapes([*points, box])
    assert (dict(found.keypoints), unstored["points"]) == ({"cat": (1, 1)}, 1)


@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        ([None], "expected label"),
        ([1], "shape 1: expected a shape, an object, found 1"),
        ([shape("rectangle", [0, 0])], "expected the points of a rectangle, found 1"),
        ([shape("rectangle", [0, 0], [1, 1]), shape("polygon", [0, 0], [1, 1])], "shape 2: .* polygon, found 2"),
        ([shape("point")], "expected the points of a point, found 0"),
        ([shape("circle", [0, 0], [1, True])], "expected y, a number, found True"),
        ([shape("circle", [0, 0], [1])], "expected points of two numbers"),
        ([shape("circle", [0, 0], [1, 2e9])], "within a billion"),
        ([shape("circle", [0, 0], [1, 2], label=" ")], "expected label, a text, found ' '"),
        ([shape("circle", [0, 0], [1, 2], group_id=[])], "expected group_id"),
        ([shape("circle", [0, 0], [1, 2], flags=[1])], "expected flags"),
        ([{"label": "x", "points": 3}], "expected points, a list"),
    ],
)
def test_shapes_that_are_refused(shapes: list[Any], message: str) -> None:
    with pytest.raises(FormError, match=message):
        read_shapes(shapes)


BAD = {
    **{"a": "{", "b": file(shape("circle")), "c": file(imagePath="none.jpg"), "d": file(imagePath="ok.jpg")},
    **{"e": file(imagePath=3), "f": file(), "g": '{"shapes": [], "shapes": []}', "h": file(imagePath="d.jpg")},
    **{"ok": file(), "one/z": "[]"},
}
PAIR = [shape("rectangle", [i, 2], [i + 8, 9], group_id=1) for i in (1, 11)]
ALONE = [shape("rectangle", [1, 2], [9, 9], group_id=1), shape("point", [3, 3], label="p", group_id=1)]
RINGS = [shape("polygon", [0, 0], [1, 0], [i, 1], group_id=1) for i in (1, 5)]
MORE = {
    "description": "wet",
    "score": 0.5,
    "kie_linking": [],
    "attributes": {},
    "locked": False,
    "flags": {"old": True},
}
LARGE = {"imageData": "A" * 100_000, "shapes": [shape("rectangle", [1, 2], [3, 5])]}
FLAGGED = file(shape("rectangle", [1, 2], [3, 5], **MORE), text="", checked=True, flags={"night": True})

CASES = {
    "a file as labelme writes it": case(
        {"json/a.json": GOLDEN, "images/a.jpg": ""}, keys={"train": ["images/a.jpg"]}, sizes=[(480, 640)],
        values=["boxes", "labels", "keypoints", "occluded", "polygons"], classes=["cat", "dog"], keypoints=["nose"],
        boxes=[[[10.5, 20, 50, 60], [1, 2, 9, 8], [25, 25, 35, 35]]], names=[["cat", "dog", "dog"]],
        occluded=[[1, 0, 0]], points=[[[[30, 40]], [[None, None]], [[None, None]]]],
        polygons=[[[], [[1, 2], [9, 3], [5, 8]], []]],
        said=[
            Has("not stored: 1 points that belong to no object"), Has("not stored: 1 shapes that are no objects"),
            'json/a.json: not read: "blurred".', 'json/a.json: not read: "wet".',
        ],
    ),
    "files beside images in split folders": case(
        {
            "train/a.json": file(), "val/b.json": file(), "val/other.json": "{}",
            **blank("train/a.png", "val/b.jpg", "val/c.jpg"),
        },
        keys={"train": ["train/a.png"], "val": ["val/b.jpg"]},
        left_out=[("val/other.json", "not-listed"), ("val/c.jpg", "not-listed")],
    ),
    "problems": case(
        {**{f"{name}.json": text for name, text in BAD.items()}, **blank("ok.jpg", "x/f.jpg", "y/f.jpg", "d.jpg")},
        keys={"train": ["d.jpg", "ok.jpg"]},
        problems=[
            ("a.json", "json"), ("b.json", "annotation"), ("c.json", "no-image"), ("e.json", "annotation"),
            ("f.json", "ambiguous-image"), ("g.json", "json"), ("ok.json", "duplicate-key"), ("one/z.json", "json"),
        ],
    ),
    "no file at all": case({}, refused="empty-source"),
    "shapes after a large image": case(
        {"x.json": json.dumps(LARGE), "x.jpg": ""}, boxes=[[[1, 2, 3, 5]]], said=[]
    ),
    **{
        f"a file that cannot be parsed: {text!r}": case(  # and its image is not said to have none
            {"x.json": file(), "y.json": text.encode("latin-1"), **blank("x.jpg", "y.jpg")},
            problems=[("y.json", "json")], left_out=[],
        )
        for text in ("", "[", file()[:30], "caf\xe9")
    },
    "members that are not read": case(
        {"x.json": FLAGGED, "x.jpg": ""},
        said=[f'x.json: not read: "{name}".' for name in ("description", "score", "old", "checked", "night")],
    ),
    "the longest end of a path": case(
        {"json/1.json": file(imagePath=r"..\cam2\x.jpg"), **blank("cam1/x.jpg", "cam2/x.jpg")},
        keys={"train": ["cam2/x.jpg"]},
    ),
    "files that were renamed": case(
        {
            **{f"{i}.json": file(imagePath=f"{i % 3}.jpg") for i in range(1, 4)},
            **blank(*(f"{i}.jpg" for i in range(4))),
        },
        notes=["JSON files whose imagePath is not the image of their own name: 1, such as 3.json: 0.jpg."],
    ),
    "groups of several objects": case(  # one object with its points is stored as such, and so are its polygons
        {
            **{f"{i}.json": file(*some, imagePath=f"{i}.jpg") for i, some in enumerate((PAIR, ALONE, RINGS))},
            **blank("0.jpg", "1.jpg", "2.jpg"),
        },
        said=['0.json: not read: "group_id" of several objects.'],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_what_is_read(name: str, tmp_path: Path) -> None:
    check(CASES[name], tmp_path, "labelme")
