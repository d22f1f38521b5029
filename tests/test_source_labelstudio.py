"""Label Studio's JSON: every type of result, images of every storage, and every refusal."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from labelling_files import Case, Has, agrees, blank, case, check, found, refused, write
from tensorstore_ds.annex.sources.labelstudio import read_results
from tensorstore_ds.sources.forms import FormError

GOLDEN = """[{"id": 1, "annotations": [
  {"id": 8, "completed_by": 1, "was_cancelled": true, "result": []},
  {"id": 9, "completed_by": 1, "was_cancelled": false, "ground_truth": false, "result": [
   {"original_width": 200, "original_height": 100, "image_rotation": 0, "id": "r1", "from_name": "label",
    "to_name": "image", "type": "rectanglelabels", "origin": "manual",
    "value": {"x": 10, "y": 20, "width": 30, "height": 40, "rotation": 0, "rectanglelabels": ["cat"]}},
   {"original_width": 200, "original_height": 100, "image_rotation": 0, "id": "k1", "parentID": "r1",
    "type": "keypointlabels", "value": {"x": 12.5, "y": 25, "width": 0.3, "keypointlabels": ["nose"]}},
   {"original_width": 200, "original_height": 100, "image_rotation": 0, "id": "k2",
    "type": "keypointlabels", "value": {"x": 12.5, "y": 25, "width": 0.3, "keypointlabels": ["nose"]}},
   {"original_width": 200, "original_height": 100, "image_rotation": 0, "id": "p1",
    "type": "polygonlabels", "value": {"points": [[1, 2], [9, 3], [5, 8]], "polygonlabels": ["dog"], "closed": true}},
   {"original_width": 200, "original_height": 100, "image_rotation": 0, "id": "e1",
    "type": "ellipselabels", "value": {"x": 50, "y": 50, "radiusX": 5, "radiusY": 20, "ellipselabels": ["dog"]}},
   {"original_width": 200, "original_height": 100, "id": "s1", "type": "rectangle",
    "value": {"x": 0, "y": 0, "width": 50, "height": 50, "rotation": 0}},
   {"original_width": 200, "original_height": 100, "id": "s1", "type": "labels",
    "value": {"x": 0, "y": 0, "width": 50, "height": 50, "rotation": 0, "labels": ["cat"]}},
   {"original_width": 200, "original_height": 100, "id": "b1", "type": "brushlabels",
    "value": {"format": "rle", "rle": [0, 1], "brushlabels": ["dog"]}},
   {"id": "c1", "type": "choices", "value": {"choices": ["indoors"]}},
   {"type": "relation", "from_id": "r1", "to_id": "p1", "direction": "right"}]},
  {"id": 10, "completed_by": 2, "was_cancelled": false, "result": []}],
 "file_upload": "0a1b2c3d-a.jpg", "predictions": [], "data": {"image": "/data/upload/1/0a1b2c3d-a.jpg"}},
 {"id": 2, "annotations": [{"id": 11, "result": []}], "data": {"photo": "/data/local-files/?d=x%20y/train/b.jpg"}},
 {"id": 3, "annotations": [], "data": {"image": "c.jpg"}}]"""


def region(type: str = "rectangle", id: Any = "r", **value: Any) -> dict[str, Any]:
    sizes = {"original_width": 200, "original_height": 100}
    return {**sizes, "id": id, "type": f"{type}labels", "value": {f"{type}labels": ["cat"], **value}}


BOX = region(x=10, y=20, width=30, height=40)


def task(image: str, *results: Any) -> dict[str, Any]:
    return {"annotations": [{"completed_by": 1, "result": list(results)}], "data": {"image": image}}


def choice(*names: Any) -> dict[str, Any]:
    return {"id": "c", "type": "choices", "value": {"choices": list(names)}}


def test_an_export_as_label_studio_writes_it(tmp_path: Path) -> None:
    images = blank("images/a.jpg", "images/train/b.jpg", "images/c.jpg", "images/d.jpg")
    refused(write(tmp_path, {"export.json": GOLDEN, **images}), "labelstudio", "beside train")
    (tmp_path / "images/train/b.jpg").rename(tmp_path / "images/b.jpg")
    got = found(tmp_path)
    objects, label = got.contents.fields["objects"], got.contents.fields["label"]
    assert (objects.classes, label.classes) == (("cat", "dog"), ("indoors",))
    expected = {
        "keys": {"train": ["images/a.jpg", "images/b.jpg"]}, "keypoints": ["nose"], "labels": {"train": [0, -1]},
        "boxes": [[[20, 20, 80, 60], [2, 2, 18, 8], [90, 30, 110, 70], [0, 0, 100, 50]], []],
        "points": [[[[25, 25]], *[[[None, None]]] * 3], []], "sizes": [(100, 200), None],
        "polygons": [[[], [[2, 2], [18, 3], [10, 8]], [], []], []],
        "said": [
            Has("images/c.jpg: not stored: it"), Has("images/d.jpg: not stored: no"),
            Has("not stored: 1 points"), Has("not stored: 1 "), Has("not stored: 1 shapes"),
            Has("export.json: task 1: not read: results"),
        ],
    }  # fmt: skip
    agrees(got, expected)
    assert got.samples["train"][0].objects["labels"].tolist() == [0, 1, 1, 0]  # type: ignore[index]


def test_choices_alone_are_labels(tmp_path: Path) -> None:
    tasks = [task("a.jpg", choice("x")), task("b.jpg", choice("y")), task("c.jpg")]
    write(tmp_path, {"t.json": json.dumps(tasks), **blank("a.jpg", "b.jpg", "c.jpg")})
    got = found(tmp_path / "t.json", classes=("y", "x"))
    assert (got.fields, got.labels) == (["label"], {"train": [1, 0, -1]})
    assert all(each.objects is None for each in got.samples["train"])


@pytest.mark.parametrize("beside", [False, True])
def test_several_choices_are_several_labels(tmp_path: Path, beside: bool) -> None:
    """Of one control or of several; an image without any has no known labels."""
    tasks = [task("a.jpg", choice("y", "x")), task("b.jpg", choice("y"), choice("z")), task("c.jpg")]
    tasks[2]["annotations"][0]["result"] = [BOX] if beside else []
    write(tmp_path, {"t.json": json.dumps(tasks), **blank("a.jpg", "b.jpg", "c.jpg")})
    got = found(tmp_path / "t.json")
    assert (set(got.fields), got.classes) == ({"labels", *(["objects"] * beside)}, ["x", "y", "z"])
    assert got.contents.labels is None and got.multi == [[1, 1, 0], [0, 1, 1], [-1, -1, -1]]


@pytest.mark.parametrize(
    ("written", "files", "expected"),
    [
        ("/data/upload/3/0a1b2c3d-a.jpg", ["x/0a1b2c3d-a.jpg", "a.jpg"], "x/0a1b2c3d-a.jpg"),
        ("/data/upload/0a1b2c3d-a%20b.jpg", ["x/a b.jpg"], "x/a b.jpg"),
        ("http://localhost:8080/data/upload/3/0a1b2c3d-a.jpg", ["a.jpg"], "a.jpg"),
        ("/data/local-files/?d=one/two/a.jpg", ["two/a.jpg", "one/a.jpg"], "two/a.jpg"),
        ("C:\\photos\\two\\a.jpg", ["two/a.jpg", "one/a.jpg"], "two/a.jpg"),
        ("../../a.jpg", ["a.jpg"], "a.jpg"),
        ("/data/upload/1/0a1b2c3d-a.jpg", ["b.jpg"], None),
        ("https://example.org/a.jpg", ["a.jpg"], None),
        ("s3://bucket/a.jpg", ["a.jpg"], None),
    ],
)
def test_images_are_found_below_the_folder(
    written: str, files: list[str], expected: str | None, tmp_path: Path
) -> None:
    write(tmp_path, {"t.json": json.dumps([task(written, BOX), task("ok.png", BOX)]), "i/ok.png": ""})
    write(tmp_path / "i", blank(*files))
    got = found(tmp_path / "t.json", images=tmp_path / "i")
    assert got.keys["train"] == sorted([*([expected] if expected else []), "ok.png"])
    assert got.problems == ([] if expected else [("t.json: task 1", "no-image")])


@pytest.mark.parametrize("degrees", [30, 90, 300.5])
def test_a_box_turns_around_its_upper_left_corner(degrees: float) -> None:
    (read,) = read_results([region(x=50, y=40, width=10, height=30, rotation=degrees)]).objects
    turn = np.deg2rad(degrees)
    matrix = np.array([[np.cos(turn), -np.sin(turn)], [np.sin(turn), np.cos(turn)]])
    corners = np.array([[0, 0], [20, 0], [20, 30], [0, 30]]) @ matrix.T + (100, 40)
    np.testing.assert_allclose(read.oriented, corners)
    np.testing.assert_allclose(read.box, [*corners.min(axis=0), *corners.max(axis=0)])


@pytest.mark.parametrize(
    ("result", "message"),
    [
        (1, "expected result 1, an object, found 1"),
        ({**BOX, "value": []}, "value, an object"),
        ({**BOX, "original_width": None}, "expected original_width and original_height"),
        ({**BOX, "image_rotation": 90}, "expected an image that was not turned"),
        (region(x=1, y="2", width=3, height=4), "region r: expected y or height, a number, found '2'"),
        (region(x=1, y=2, width=3, height=1e7), "expected percent of the image"),
        (region(x=1, y=2, width=3, height=4, rectanglelabels=[]), "expected a label, a text, found none"),
        (region("polygon", points=[[1, 2], [3, 4]]), "expected three points"),
        (region("polygon", points=[[1, 2], [3, 4], [5]]), "expected two numbers"),
        (choice(3), "expected a choice, a text"),
    ],
)
def test_results_that_are_refused(result: Any, message: str) -> None:
    with pytest.raises(FormError, match=message):
        read_results([result])


def test_an_image_of_two_sizes() -> None:
    with pytest.raises(FormError, match="expected an image of one size"):
        read_results([BOX, {**BOX, "id": "other", "original_width": 201}])


TEXT = [{"id": str(i), "type": "textarea", "value": {"text": ["a"]}} for i in range(2)]
UNREAD = task("a.jpg", {**BOX, "meta": {"text": ["wet"]}, "readonly": False}, *TEXT)
UNREAD["data"]["station"] = "north"
BAD = [task("a.jpg", BOX), task("a.jpg"), task("none.jpg"), {"image": "a.jpg"}, 3, task("", BOX), task("b.jpg", BOX)]


def tasks(*given: Any, **expected: Any) -> Case:
    return case({"a.json": json.dumps(given), **blank("a.jpg", "b.jpg")}, **expected)


CASES = {
    "problems": case(
        {
            "a.json": json.dumps(BAD), "b.json": '[{"annotations": [{"completed_by": 1}], ', "c.json": "{}",
            "d.json": "", **blank("a.jpg", "b.jpg"),
        },
        problems=[
            ("d.json", "json"), ("a.jpg", "duplicate-key"), ("a.json: task 3", "no-image"),
            *((f"a.json: task {i}", "annotation") for i in (4, 5, 6)), ("b.json", "json"),
        ],
        keys={"train": ["b.jpg"]}, left_out=[("c.json", "not-read")],  # for a.jpg has two tasks
    ),
    "tasks that begin with much else": tasks(
        {"predictions": [{"text": "x" * 100_000}], **task("a.jpg", BOX)}, task("b.jpg"),
        said=['a.json: task 1: not read: "predictions".'],
    ),
    **{
        f"no object becomes background: {bad}": tasks(  # nor is its image said to be one without a task
            task("a.jpg", BOX, region(**{"x": 10, "y": 20, "width": 30, "height": 40, **bad}, id="other")),
            task("b.jpg", BOX), problems=[("a.json: task 1", "annotation")], left_out=[], keys={"train": ["b.jpg"]},
        )
        for bad in ({"x": "1"}, {"width": None}, {"rectanglelabels": [3]})
    },
    "members that are not read": tasks(
        UNREAD, task("b.jpg"),
        said=[
            "a.json: task 1: not read: results of type 'textarea'.",
            'a.json: task 1: not read: "station".',
            'a.json: task 1: not read: "meta".',
        ],
    ),
    **{
        f"nothing to read: {text}": case(
            {"a.json": text}, "a.json", refused="empty-source" if text == "[]" else "json"
        )
        for text in ("{}", "[]", '[], "list": []', "[] ] [")
    },
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_what_is_read(name: str, tmp_path: Path) -> None:
    check(CASES[name], tmp_path, "labelstudio")
