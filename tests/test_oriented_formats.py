"""Oriented boxes in files of other programs: what sources read, conversions make of them, and exports write."""

from __future__ import annotations

import importlib
import importlib.util
import json
import math
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import tensorstore_ds as tsds
from labelling_files import stored, tar, write
from oriented_boxes import area_at, same, smallest_area, turned
from small_stores import tsds as command
from stores import png_bytes, store_of
from tensorstore_ds.errors import OptionError, SourceError
from tensorstore_ds.imaging.oriented import oriented_faults

CLASSES = ("ship", "large plane")
HEIGHT, WIDTH = 48, 64
PIXELS = np.random.default_rng(0).integers(0, 256, (HEIGHT, WIDTH, 3), np.uint8)
ALONE = ["voc", "yolo", "cvat", "labelme", "webdataset", "parquet"]  # formats with a place for oriented boxes


def around_the_circle(seed: int, count: int = 12) -> np.ndarray:
    """(M, 5): of all angles, also wider than long, and partly outside of the image."""
    rng = np.random.default_rng(seed)
    boxes = rng.uniform((4, 4, 4, 4, 0), (WIDTH - 4, HEIGHT - 4, 28, 28, 0), (count, 5))
    boxes[:, 4] = np.linspace(-math.pi, math.pi, count) + rng.uniform(-0.1, 0.1, count)
    boxes[:, 4] = boxes[:, 4].clip(-math.pi, math.pi)
    return boxes


def samples(*oriented: np.ndarray, **more: Any) -> list[dict[str, Any]]:
    return [
        {
            "image": np.roll(PIXELS, i),
            "objects": {"oriented_boxes": boxes, "labels": np.arange(len(boxes)) % 2, **more},
        }
        for i, boxes in enumerate(oriented)
    ]


def objects(store: tsds.Store | Path, row: int = 0, split: str = "train") -> Any:
    opened = store if isinstance(store, tsds.Store) else tsds.open(store)
    return opened[split]["objects"][row]


def picture(root: Path, name: str, files: dict[str, str | bytes]) -> Path:
    return write(root, {name: png_bytes(PIXELS), **files})


# --- exports and back ---------------------------------------------------------------------------------------------


@pytest.mark.drawn(5)
@pytest.mark.parametrize("format", ALONE)
@pytest.mark.parametrize("seed", range(3))
def test_there_and_back(format: str, seed: int, tmp_path: Path) -> None:
    if format == "parquet":
        pytest.importorskip("pyarrow")
    given = [around_the_circle(10 * seed + i, n) for i, n in enumerate((9, 0, 11))]
    store = store_of(tmp_path / "s.tsds", samples(*given), CLASSES)
    summary = tsds.export(store.path, tmp_path / format, format)
    assert not summary.left_out
    found = stored(tmp_path / format, classes=CLASSES)
    for row, boxes in enumerate(given):
        same(objects(found, row)["oriented_boxes"], boxes)
        np.testing.assert_allclose(objects(found, row)["boxes"], objects(store, row)["boxes"], atol=1e-4)
        assert objects(found, row)["labels"].tolist() == objects(store, row)["labels"].tolist()


def test_coco_there_and_back_by_polygons(tmp_path: Path) -> None:
    boxes = around_the_circle(5)
    store = store_of(tmp_path / "s.tsds", samples(boxes), CLASSES)
    assert not tsds.export(store.path, tmp_path / "coco", "coco").left_out
    written = json.loads((tmp_path / "coco/annotations/instances_train.json").read_text())["annotations"]
    np.testing.assert_allclose([each["area"] for each in written], boxes[:, 2] * boxes[:, 3], rtol=1e-6)
    for each, box in zip(written, boxes, strict=True):
        (polygon,) = each["segmentation"]
        np.testing.assert_allclose(np.reshape(polygon, (4, 2)), turned(box), atol=1e-4)
    same(objects(stored(tmp_path / "coco", oriented_boxes="polygons"))["oriented_boxes"], boxes)


def test_coco_keeps_polygons_and_runs(tmp_path: Path) -> None:
    boxes = around_the_circle(6, 3)
    triangle, runs = np.array([[1.0, 1], [9, 1], [1, 7]]), np.array([100, 20, WIDTH * HEIGHT - 120], np.uint32)
    nothing, none = np.empty((0, 2)), np.empty(0, np.uint32)
    values = {"polygons": [triangle, nothing, nothing], "rle": [none, runs, none]}
    store = store_of(tmp_path / "s.tsds", samples(boxes, **values), CLASSES)
    tsds.export(store.path, tmp_path / "coco", "coco")
    written = json.loads((tmp_path / "coco/annotations/instances_train.json").read_text())["annotations"]
    forms = [each["segmentation"] for each in written]
    assert forms[0] == [[1, 1, 9, 1, 1, 7]]
    assert forms[1]["size"] == [HEIGHT, WIDTH]
    np.testing.assert_allclose(np.reshape(forms[2][0], (4, 2)), turned(boxes[2]), atol=1e-4)
    assert written[2]["area"] == pytest.approx(boxes[2, 2] * boxes[2, 3], rel=1e-5)
    assert [each["area"] for each in written[:2]] == [24, 20]  # of the triangle, and of the second run


@pytest.mark.parametrize("format", ["voc", "webdataset", "parquet"])
def test_an_object_without_one_has_none_again(format: str, tmp_path: Path) -> None:
    if format == "parquet":
        pytest.importorskip("pyarrow")
    boxes = around_the_circle(7, 4)
    boxes[[1, 2]] = np.nan
    plain = np.tile(np.array([[3.0, 4, 30, 20]]), (4, 1))
    store = store_of(tmp_path / "s.tsds", samples(boxes, boxes=plain), CLASSES)
    tsds.export(store.path, tmp_path / format, format)
    found = objects(stored(tmp_path / format, classes=CLASSES))
    expected = boxes.copy()
    if format == "voc":  # whose boxes are rectangles
        expected[[1, 2]] = (16.5, 12, 27, 16, 0)
    same(found["oriented_boxes"], expected)
    np.testing.assert_array_equal(found["boxes"], plain)


def test_yolo_rows_are_as_ultralytics_reads_them(tmp_path: Path) -> None:
    store = store_of(tmp_path / "s.tsds", samples(around_the_circle(8)), CLASSES)
    tsds.export(store.path, tmp_path / "yolo", "yolo")
    rows = [line.split() for line in next((tmp_path / "yolo/labels/train").iterdir()).read_text().splitlines()]
    assert {len(row) for row in rows} == {9}
    corners = np.array(rows, np.float64)[:, 1:].reshape(-1, 4, 2) * (WIDTH, HEIGHT)
    np.testing.assert_allclose(corners, [turned(box) for box in around_the_circle(8)], atol=1e-4)
    assert "task: obb\n" in (tmp_path / "yolo/data.yaml").read_text()


def test_yolo_cuts_what_ultralytics_refuses(tmp_path: Path) -> None:
    """The center of the second box is outside; the third one is larger than the image."""
    boxes = np.array([[30, 20, 20, 10, 0.5], [-1, 20, 30, 6, 0.3], [32, 24, 200, 8, 0.1]])
    store = store_of(tmp_path / "s.tsds", samples(boxes), CLASSES)
    summary = tsds.export(store.path, tmp_path / "yolo", "yolo")
    assert summary.left_out == {"parts of oriented boxes outside of the image": 2}
    found = objects(stored(tmp_path / "yolo"))["oriented_boxes"]
    same(found[:1], boxes[:1])
    assert len(found) == 3


def test_yolo_has_boxes_where_some_object_has_no_oriented_one(tmp_path: Path) -> None:
    boxes = around_the_circle(9, 3)
    boxes[1] = np.nan
    plain = np.tile(np.array([[3.0, 4, 30, 20]]), (3, 1))
    store = store_of(tmp_path / "s.tsds", samples(boxes, boxes=plain), CLASSES)
    assert tsds.export(store.path, tmp_path / "yolo", "yolo").left_out == {"oriented_boxes": 1}
    assert "oriented_boxes" not in objects(stored(tmp_path / "yolo"))


def test_dota(tmp_path: Path) -> None:
    boxes = around_the_circle(11, 4)
    boxes[2] = np.nan
    plain = np.tile(np.array([[3.0, 4, 30, 20]]), (4, 1))
    store = store_of(tmp_path / "s.tsds", samples(boxes, boxes=plain, difficult=[0, 1, 0, 0]), CLASSES)
    summary = tsds.export(store.path, tmp_path / "dota", "dota")
    assert [note.split()[0] for note in summary.notes] == ["white", "1"]
    rows = [line.split() for line in next((tmp_path / "dota/train/labelTxt").iterdir()).read_text().splitlines()]
    assert [row[8:] for row in rows] == [["ship", "0"], ["large-plane", "1"], ["ship", "0"], ["large-plane", "0"]]
    corners = np.array([row[:8] for row in rows], np.float64).reshape(-1, 4, 2)
    np.testing.assert_allclose(corners[[0, 1, 3]], [turned(boxes[i]) for i in (0, 1, 3)], atol=1e-4)
    assert corners[2].tolist() == [[3, 4], [30, 4], [30, 20], [3, 20]]
    (image,) = (tmp_path / "dota/train/images").iterdir()
    np.testing.assert_array_equal(np.asarray(Image.open(image)), PIXELS)


def test_dota_has_no_commas_in_names(tmp_path: Path) -> None:
    """Some files of DOTA have commas between numbers and names."""
    store = store_of(tmp_path / "s.tsds", samples(around_the_circle(1, 2)), ("ship, large", "a"))
    tsds.export(store.path, tmp_path / "dota", "dota")
    assert stored(tmp_path / "dota").manifest.fields["objects"].classes == ("a", "ship-large")


def test_dota_needs_names_that_differ(tmp_path: Path) -> None:
    store = store_of(tmp_path / "s.tsds", samples(around_the_circle(1, 2)), ("a b", "a-b"))
    with pytest.raises(OptionError, match=r"expected classes that differ without white space.* tsds relabel"):
        tsds.export(store.path, tmp_path / "dota", "dota")


def test_cvat_has_degrees_clockwise_around_the_center(tmp_path: Path) -> None:
    store = store_of(tmp_path / "s.tsds", samples(np.array([[30, 20, 20, 10, -math.pi / 2]])), CLASSES)
    tsds.export(store.path, tmp_path / "cvat", "cvat")
    (image,) = ET.parse(tmp_path / "cvat/annotations.xml").getroot().iter("image")  # noqa: S314  written here
    assert (image.get("subset"), image.get("width"), image.get("height")) == ("train", str(WIDTH), str(HEIGHT))
    (box,) = image
    found = [float(box.get(name, "")) for name in ("xtl", "ytl", "xbr", "ybr", "rotation")]
    assert found == pytest.approx([20, 15, 40, 25, 270], abs=1e-4)


@pytest.mark.parametrize("to", ["cvat", "dota", "labelme", "yolo", "voc"])
def test_boxes_that_are_no_hulls_of_oriented_ones_are_counted(tmp_path: Path, to: str) -> None:
    boxes = np.array([[30.0, 20, 20, 10, 0.5]])
    store = store_of(tmp_path / "s.tsds", samples(boxes, boxes=np.array([[1.0, 1, 5, 5]])), CLASSES)
    counted = tsds.export(store.path, tmp_path / "out", to).left_out
    assert counted == ({} if to == "voc" else {"boxes that are not the hulls of their oriented boxes": 1})
    store = store_of(tmp_path / "t.tsds", samples(boxes), CLASSES)
    assert not tsds.export(store.path, tmp_path / "same", to).left_out


def test_labelme_counts_what_has_no_place_beside_polygons(tmp_path: Path) -> None:
    ring = np.array([[5.0, 6], [20, 6], [12, 22]])
    store = store_of(tmp_path / "s.tsds", samples(around_the_circle(2, 1), polygons=[ring]), CLASSES)
    assert "oriented boxes beside polygons" in tsds.export(store.path, tmp_path / "labelme", "labelme").left_out


# --- sources ------------------------------------------------------------------------------------------------------

OBB = "0 .25 .25 .5 .25 .5 .75 .25 .75\n"


def yolo(root: Path, rows: str, config: str = "") -> Path:
    files: dict[str, str | bytes] = {
        "data.yaml": f"train: images\nnames: [ship, plane]\n{config}",
        "labels/a.txt": rows,
    }
    return picture(root / "yolo", "images/a.png", files)


@pytest.mark.parametrize(
    ("rows", "config", "form"),
    [
        (OBB, "", "oriented_boxes"),
        (OBB, "task: obb\n", "oriented_boxes"),
        (OBB, "task: segment\n", "polygons"),
        (OBB + "1 .1 .1 .2 .1 .2 .2\n", "", "polygons"),
    ],
)
def test_rows_of_four_corners_in_yolo(rows: str, config: str, form: str, tmp_path: Path) -> None:
    source = yolo(tmp_path, rows, config)
    found = objects(stored(source))
    assert {"oriented_boxes", "polygons"} & set(found) == {form}
    np.testing.assert_allclose(found["boxes"][0], [16, 12, 32, 36])
    if form == "oriented_boxes":
        same(found[form], [[24, 24, 16, 24, 0]])


def test_yolo_tells_how_four_corners_are_read(tmp_path: Path) -> None:
    summary = tsds.convert(yolo(tmp_path, OBB), tmp_path / "s.tsds", workers=0)
    assert "all rows have 9 numbers, and are read as oriented boxes" in summary.notes[0]
    assert not tsds.convert(yolo(tmp_path, OBB, "task: obb\n"), tmp_path / "t.tsds", workers=0).notes


def test_a_turned_box_of_yolo_may_reach_over_the_edge(tmp_path: Path) -> None:
    box = np.array([4, 24, 30, 6, 0.4])
    row = " ".join(f"{value:.10f}" for value in (turned(box) / (WIDTH, HEIGHT)).reshape(-1))
    same(objects(stored(yolo(tmp_path, f"0 {row}\n")))["oriented_boxes"], [box])


def voc(root: Path, inside: str) -> Path:
    xml = f"<annotation><filename>a.png</filename><object><name>ship</name>{inside}</object></annotation>"
    return picture(root / "voc", "a.png", {"a.xml": xml})


def robndbox(cx: Any = 30, cy: Any = 20, w: Any = 20, h: Any = 10, angle: Any = 0.5) -> str:
    inside = f"<cx>{cx}</cx><cy>{cy}</cy><w>{w}</w><h>{h}</h><angle>{angle}</angle>"
    return f"<type>robndbox</type><robndbox>{inside}</robndbox>"


def test_robndbox_of_rolabelimg(tmp_path: Path) -> None:
    found = objects(stored(voc(tmp_path, robndbox(angle=2.5))))
    same(found["oriented_boxes"], [[30, 20, 20, 10, 2.5]])
    corners = turned((30, 20, 20, 10, 2.5))
    np.testing.assert_allclose(found["boxes"], [[*corners.min(0), *corners.max(0)]], rtol=1e-6)


def labelme(root: Path, *shapes: dict[str, Any]) -> Path:
    data = {"version": "5", "shapes": [{"label": "a", **shape} for shape in shapes], "imagePath": "a.png"}
    return picture(root / "labelme", "a.png", {"a.json": json.dumps(data)})


def test_rotation_of_x_anylabeling(tmp_path: Path) -> None:
    boxes = [(30, 20, 20, 10, 2.0), (30, 20, 9, 14, -2.0)]
    shapes: list[dict[str, Any]] = [
        {"shape_type": "rotation", "points": turned(box).tolist(), "direction": box[4] % math.tau} for box in boxes
    ]
    shapes.append({"shape_type": "rectangle", "points": [[4, 5], [10, 9]]})
    found = objects(stored(labelme(tmp_path, *shapes)))
    same(found["oriented_boxes"], [*boxes, (7, 7, 6, 4, 0)])


def of_yolo(root: Path, row: str) -> tsds.Store:
    return stored(yolo(root, f"{row}\n", "task: obb\n"))


def of_voc(root: Path, inside: str) -> tsds.Store:
    return stored(voc(root, inside))


def of_labelme(root: Path, count: int) -> tsds.Store:
    points = [[float(i), float(i * i)] for i in range(count)]
    return stored(labelme(root, {"shape_type": "rotation", "points": points}))


def of_samples(root: Path, value: Any) -> tsds.Store:
    values = {"boxes": np.array([[0.0, 0, 20, 20]]), "oriented_boxes": np.array(value, float)}
    return store_of(root / "s.tsds", [{"image": PIXELS, "objects": values}])


@pytest.mark.parametrize(
    ("make", "given", "message"),
    [
        (
            of_yolo,
            "0 .1 .1 .2 .1 .2 .2",
            r"line 1: expected a class and 4 corners, x and y, as task: obb says, found 7 numbers",
        ),
        (of_yolo, "0 .1 .1 .2 .1 .2 .2 .1 nan", r"line 1: expected numbers, found 'nan'"),
        (of_yolo, "0 10 10 20 10 20 20 10 20", r"line 1: expected fractions of the image from 0 to 1"),
        (
            of_yolo,
            "0 .1 .1 .5 .5 .5 .1 .1 .5",
            r"object 1 of 1 in labels/a.txt: the oriented box \(.*\) has sides below 0, or cor",
        ),
        (of_yolo, "0 .1 .1 .2 .2 .4 .4 .3 .3", r"object 1 of 1 in labels/a.txt: the oriented box \(.*\) has no area"),
        (of_voc, robndbox(angle="x"), "object 1: expected angle, a number, found 'x'"),
        (of_voc, robndbox(angle="nan"), "object 1: expected cx, cy, w, h and angle of <robndbox>, finite numbers"),
        (of_voc, robndbox(cx="inf"), "finite numbers.*found inf 20 20 10 0.5"),
        (of_voc, robndbox(h=-3), "w and h not below 0, found 30 20 20 -3 0.5"),
        (of_voc, robndbox() * 2, "expected one <robndbox>, found 2"),
        (of_voc, robndbox(w=0), r"the oriented box \(.*\) has no area"),
        (of_labelme, 3, "shape 1: expected the points of a rotation, found 3"),
        (of_labelme, 5, "shape 1: expected the points of a rotation, found 5"),
        (of_samples, [[1, 2, 3, 4, float("nan")]], r"the oriented box \(1, 2, 3, 4, nan\) is not finite"),
        (of_samples, [[1, 2, -3, 4, 0]], "has sides below 0"),
        (of_samples, [[9, 9, 0, 4, 0.5]], "has no area"),
        (
            of_samples,
            [[[1, 1], [9, 9], [9, 1], [1, 9]]],
            "expected corners in order around each oriented box, found others as object 1",
        ),
        (of_samples, [[1, 2, 3, 4]], r"expected oriented_boxes of shape \(M, 5\) or \(M, 4, 2\), found \(1, 4\)"),
        (of_samples, [[[1, 1], [9, 9], [9, 1]]], r"expected oriented_boxes of shape"),
    ],
)
def test_faults_are_named(make: Any, given: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=message) as raised:
        make(tmp_path, given)
    assert len(raised.value.problems) == 1


def test_without_boxes_their_hulls_are_the_boxes(tmp_path: Path) -> None:
    """As Python objects, in JSON of WebDataset and in Parquet."""
    boxes = around_the_circle(40, 5)
    hulls = np.array([[*turned(box).min(0).clip(0), *np.minimum(turned(box).max(0), (WIDTH, HEIGHT))] for box in boxes])
    flat = store_of(tmp_path / "s.tsds", [{"image": PIXELS, "oriented_boxes": boxes}])
    described = json.dumps({"oriented_boxes": boxes.tolist()}).encode()
    write(tmp_path / "w", {"train-0.tar": tar(("a.png", png_bytes(PIXELS)), ("a.json", described))})
    found = [flat, stored(tmp_path / "w")]
    if importlib.util.find_spec("pyarrow"):
        pa, pq = importlib.import_module("pyarrow"), importlib.import_module("pyarrow.parquet")
        (tmp_path / "p").mkdir()
        row = {"image": {"bytes": png_bytes(PIXELS), "path": "a.png"}, "objects": {"oriented_boxes": boxes.tolist()}}
        pq.write_table(pa.Table.from_pylist([row]), tmp_path / "p/train-0.parquet")
        found.append(stored(tmp_path / "p"))
    for store in found:
        same(objects(store)["oriented_boxes"], boxes)
        np.testing.assert_allclose(objects(store)["boxes"], hulls, atol=1e-4)


def test_skip_leaves_out_the_object_alone(tmp_path: Path) -> None:
    rows = OBB + "0 .1 .1 .5 .5 .5 .1 .1 .5\n"
    summary = tsds.convert(yolo(tmp_path, rows), tmp_path / "s.tsds", workers=0, on_error="skip")
    assert summary.skipped == {"box-reversed": 1}
    same(objects(tmp_path / "s.tsds")["oriented_boxes"], [[24, 24, 16, 24, 0]])


def test_faults_by_their_kind() -> None:
    boxes = np.array([[1, 2, 3, 4, 5], [np.nan] * 5, [1, 2, 3, np.inf, 0], [1, 2, 0, 4, 0], [1, 2, 3, -4, 0]])
    assert oriented_faults(boxes).tolist() == ["", "", "box-nan", "box-empty", "box-reversed"]
    assert oriented_faults(np.array([[1e300, 2, 3, 4, 0], [1, 2, 1e300, 4, 0]])).tolist() == ["box-nan"] * 2
    assert oriented_faults(np.array([[1e300, 2, 3, 4], [np.nan, 2, 3, 4]]).reshape(1, 4, 2)).tolist() == ["box-nan"]
    assert oriented_faults(np.empty((0, 5))).tolist() == oriented_faults(np.empty((0, 4, 2))).tolist() == []
    square = np.array([[0.0, 0], [4, 0], [4, 4], [0, 4]])
    for i in range(4):  # wherever the corners begin, and in both directions
        for corners in (np.roll(square, i, 0), np.roll(square, i, 0)[::-1]):
            crossed = corners[[0, 2, 1, 3]]
            assert oriented_faults(np.stack([corners, crossed])).tolist() == ["", "box-reversed"]


# --- smallest rectangles ------------------------------------------------------------------------------------------


def polygons(root: Path) -> Path:
    ring, rectangle = [[5, 6], [25, 10], [20, 30], [8, 22], [4, 15]], turned((40, 24, 9, 20, 0.7)).tolist()
    shapes: list[dict[str, Any]] = [{"shape_type": "polygon", "points": each} for each in (ring, rectangle)]
    return labelme(root, *shapes, {"shape_type": "polygon", "points": [[1, 1], [5, 5], [9, 9]]})


def test_polygons_get_their_smallest_rectangle(tmp_path: Path) -> None:
    """A rectangle keeps its first edge; a polygon without area has none."""
    source = polygons(tmp_path)
    summary = tsds.convert(source, tmp_path / "s.tsds", workers=0, oriented_boxes="polygons")
    assert any("smallest rectangle" in note for note in summary.notes)
    values = tsds.open(tmp_path / "s.tsds").manifest.fields["objects"].values  # type: ignore[attr-defined]
    assert list(values)[:2] == ["boxes", "oriented_boxes"]
    found = objects(tmp_path / "s.tsds")["oriented_boxes"]
    ring = np.array([[5, 6], [25, 10], [20, 30], [8, 22], [4, 15]], np.float64)
    searched = min(area_at(ring, angle) for angle in np.linspace(0, math.pi / 2, 4000))
    assert found[0, 2] * found[0, 3] == pytest.approx(searched, rel=2e-3)
    assert found[0, 2] >= found[0, 3]
    same(found[1:2], [[40, 24, 9, 20, 0.7]])
    assert np.isnan(found[2]).all()
    assert tsds.verify(tmp_path / "s.tsds") == []


def test_yolo_polygons_get_theirs_in_pixels(tmp_path: Path) -> None:
    corners = turned((30, 24, 30, 8, 0.6))
    row = " ".join(f"{v:.10f}" for v in (np.insert(corners, 1, corners[:2].mean(0), 0) / (WIDTH, HEIGHT)).reshape(-1))
    found = objects(stored(yolo(tmp_path, f"0 {row}\n"), oriented_boxes="polygons"))
    assert found["oriented_boxes"][0, 2] == pytest.approx(30, abs=1e-3)
    assert found["oriented_boxes"][0, 3] == pytest.approx(8, abs=1e-3)


def test_without_polygons_there_is_nothing_to_be_made_of_them(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="`oriented_boxes`: expected objects with polygons, found boxes, labels"):
        stored(
            voc(tmp_path, "<bndbox><xmin>1</xmin><ymin>1</ymin><xmax>9</xmax><ymax>9</ymax></bndbox>"),
            oriented_boxes="polygons",
        )


def test_a_writer_leaves_polygons_alone(tmp_path: Path) -> None:
    image, boxes = PIXELS, np.array([[1.0, 1, 5, 5]])
    writer = tsds.Writer(tmp_path / "s.tsds", oriented_boxes="polygons")
    with pytest.raises(OptionError, match="expected a source, found a stream of samples"), writer:
        writer.append("train", {"image": image, "objects": {"boxes": boxes}})


# --- conversions --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fit", ["pad", "crop", "stretch"])
def test_resized(fit: Any, tmp_path: Path) -> None:
    """Corners move as points do; of a sheared rectangle it is the smallest one around it."""
    boxes = around_the_circle(20, 8)
    store_of(tmp_path / "s.tsds", samples(boxes), CLASSES, fit=tsds.Fit((36, 96), fit))
    found, scale, shift = objects(tmp_path / "s.tsds")["oriented_boxes"], np.ones(2), np.zeros(2)
    if fit == "stretch":
        scale = np.array([96 / WIDTH, 36 / HEIGHT])
    elif fit == "pad":
        scale, shift = np.array([0.75, 0.75]), np.array([24, 0])
    else:
        scale, shift = np.array([1.5, 1.5]), np.array([0, -18])
    assert len(found) == len(objects(tmp_path / "s.tsds")["boxes"])
    kept = [i for i, box in enumerate(boxes) if _overlaps(turned(box) * scale + shift, (36, 96))]
    assert len(kept) == len(found)
    for i, one in zip(kept, found.astype(np.float64), strict=True):
        corners = turned(boxes[i]) * scale + shift
        if fit != "stretch":
            same([one], [[*corners.mean(0), *boxes[i, 2:4] * scale[0], boxes[i, 4]]])
            continue
        assert one[2] * one[3] == pytest.approx(smallest_area(corners), rel=1e-3)
        back = (corners @ (1, 1j) - complex(*one[:2])) * np.exp(-1j * one[4])
        assert (np.abs(back.real) <= one[2] / 2 + 1e-2).all()
        assert (np.abs(back.imag) <= one[3] / 2 + 1e-2).all()


def _overlaps(corners: np.ndarray, size: tuple[int, int]) -> bool:
    low, high = corners.min(0).clip(0), np.minimum(corners.max(0), size[::-1])
    return bool((low < high).all())


@pytest.mark.parametrize("made", ["source", "polygons"])
def test_crops(made: Any, tmp_path: Path) -> None:
    if made == "source":
        boxes = around_the_circle(22, 6)
        store_of(tmp_path / "s.tsds", samples(boxes), CLASSES, cut=tsds.conversion.ObjectCrops(margin=0.25))
    else:
        boxes = np.array([[40, 24, 9, 20, 0.7]])
        source = labelme(tmp_path, {"shape_type": "polygon", "points": turned(boxes[0]).tolist()})
        tsds.convert(
            source,
            tmp_path / "s.tsds",
            workers=0,
            cut=tsds.conversion.ObjectCrops(margin=0.25),
            oriented_boxes="polygons",
        )
    split = tsds.open(tmp_path / "s.tsds")["train"]
    for row, box in enumerate(boxes):
        x1, y1, x2, y2 = split["source_box"][row]
        left, top = (math.floor((a + b) / 2 - 0.75 * (b - a)) for a, b in ((x1, x2), (y1, y2)))
        same(objects(tmp_path / "s.tsds", row)["oriented_boxes"], [box - (left, top, 0, 0, 0)], 1e-3)


def test_several_sources_and_merged_stores(tmp_path: Path) -> None:
    with_one = voc(tmp_path / "one", robndbox())
    bare = voc(tmp_path / "two", "<bndbox><xmin>1</xmin><ymin>1</ymin><xmax>9</xmax><ymax>9</ymax></bndbox>")
    expected = [[30, 20, 20, 10, 0.5], [np.nan] * 5]
    one, two = (path.rename(path.with_name(name)) for path, name in ((with_one, "first"), (bare, "second")))
    tsds.convert(tsds.Sources(one, two), tmp_path / "both.tsds", workers=0)
    same([objects(tmp_path / "both.tsds", row)["oriented_boxes"][0] for row in (0, 1)], expected)
    for name in (one, two):
        tsds.convert(name, name.with_suffix(".tsds"), workers=0, key_prefix=f"{name.name}/")
    tsds.editing.merge_stores([one.with_suffix(".tsds"), two.with_suffix(".tsds")], tmp_path / "merged.tsds")
    same([objects(tmp_path / "merged.tsds", row)["oriented_boxes"][0] for row in (0, 1)], expected)
    assert tsds.verify(tmp_path / "merged.tsds") == []
    tsds.append(two.with_suffix(".tsds"), one, key_prefix="first/", workers=0)
    same([objects(two.with_suffix(".tsds"), row)["oriented_boxes"][0] for row in (0, 1)], expected[::-1])
    assert tsds.verify(two.with_suffix(".tsds")) == []


# --- checks -------------------------------------------------------------------------------------------------------


def test_check_finds_boxes_apart_from_their_oriented_ones(tmp_path: Path) -> None:
    oriented = np.array([[30, 20, 30, 6, 0.0], [30, 20, 30, 6, math.pi / 2], [30, 20, 30, 1, 0.8], [np.nan] * 5])
    plain = np.array([[15.0, 17, 45, 23], [15, 17, 45, 23], [19, 9, 41, 31], [1, 1, 20, 20]])
    store = store_of(tmp_path / "s.tsds", samples(oriented, boxes=plain), CLASSES)
    found = tsds.check_store(store.path, min_class=0).boxes
    assert [(each.object, each.why) for each in found] == [(1, "apart"), (2, "small")]
    assert [each.object for each in tsds.check_store(store.path, min_class=0, min_overlap=0, min_box=0).boxes] == [2]
    done = command("check", store.path, "--min-class", "0")
    assert "object 2 is apart from its oriented box: (15, 17, 45, 23)" in done.output
