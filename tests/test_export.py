"""Stores as files of other formats: what other libraries read there, and stores that are made of them again."""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import tarfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from PIL import Image

import tensorstore_ds as tsds
from small_stores import VALID, tsds as command
from stores import class_folders, files_of, png_bytes, store_of
from tensorstore_ds.annex.exporting import EXPORT_FORMATS as FORMATS
from tensorstore_ds.annex.exporting.samples import Names, extent, short

CLASSES = ("cat", "dög", "ant lion")
NAMED = tsds.Keypoints(("nose", "left_eye", "right_eye"), ((1, 2),))
RING, NO_RING = np.array([[5.0, 6], [20, 6], [12, 22]]), np.empty((0, 2))
PIXELS = np.arange(30 * 40 * 3, dtype=np.uint8).reshape(30, 40, 3)


def objects(rng: np.random.Generator, count: int, *, keypoints: int = 0, outlines: bool = False) -> dict[str, Any]:
    """Of an image of 30 x 40 (height x width)."""
    corner = rng.uniform([0, 0], [30, 20], (count, 2)).astype(np.float32)
    boxes = np.concatenate([corner, corner + rng.uniform(0.5, 9, (count, 2)).astype(np.float32)], axis=1)
    values: dict[str, Any] = {"boxes": boxes, "labels": rng.integers(0, len(CLASSES), count)}
    if keypoints:
        points = rng.uniform(0, 30, (count, keypoints, 2))
        points[rng.random((count, keypoints)) < 0.3] = np.nan
        values["keypoints"] = points
        values["visibility"] = np.where(np.isnan(points[..., 0]), 0, rng.integers(1, 3, (count, keypoints)))
    if outlines:
        ring = rng.uniform(0, 30, (count, 4, 2))
        values["polygons"] = [each if i % 2 == 0 else np.empty((0, 2)) for i, each in enumerate(ring)]
        runs = np.array([40, 7, 1200 - 47], np.uint32)
        values["rle"] = [np.empty(0, np.uint32) if i % 2 == 0 else runs for i in range(count)]
        values["area"] = rng.uniform(1, 90, count).astype(np.float32)
        values["iscrowd"] = np.arange(count) % 2
    return values


def detection(path: Path, counts: Sequence[int] = (2, 0, 3), seed: int = 0, **how: Any) -> tsds.Store:
    rng = np.random.default_rng(seed)
    samples = [{"image": np.roll(PIXELS, i), "objects": objects(rng, n, **how)} for i, n in enumerate(counts)]
    keypoints = NAMED if how.get("keypoints") else None
    return store_of(path, samples, CLASSES, keypoints=keypoints)


def again(source: Path, **options: Any) -> tsds.Store:
    """The store of exported files."""
    out = source.with_name(f"{source.name}-again.tsds")
    tsds.convert(source, out, tsds.ConvertOptions(**{"workers": 0, "classes": CLASSES, **options}))
    assert tsds.verify(out) == []
    return tsds.open(out)


def assert_same(one: tsds.Store, other: tsds.Store, *values: str, atol: float = 0) -> None:
    """Images, labels and objects, sample by sample."""
    assert list(one) == list(other)
    for split in one:
        assert len(one[split]) == len(other[split])
        for row in range(len(one[split])):
            np.testing.assert_array_equal(one[split]["image"][row], other[split]["image"][row])
            if "label" in one[split].fields:
                assert one[split]["label"][row] == other[split]["label"][row]
            for value in values:
                first, second = (store[split]["objects"][row][value] for store in (one, other))
                if isinstance(first, list):
                    assert len(first) == len(second)
                for a, b in zip(first, second, strict=True) if isinstance(first, list) else [(first, second)]:
                    np.testing.assert_allclose(a, b, rtol=0, atol=atol)


COUNTS = st.lists(st.integers(0, 4), min_size=1, max_size=4).filter(any)
SEEDS = st.integers(0, 2**32 - 1)


ALL = "boxes", "labels", "keypoints", "visibility", "area", "iscrowd", "polygons", "rle"


@pytest.mark.slow
@pytest.mark.drawn(2)
@pytest.mark.parametrize(
    ("to", "values", "atol"),
    [
        ("voc", ALL[:2], 0),
        ("yolo", ALL[:2], 1e-4),
        ("coco", ALL, 0),
        *((to, ALL, 0) for to in ("parquet", "huggingface", "webdataset")),
    ],
)
@settings(max_examples=10, deadline=None)
@given(COUNTS, SEEDS, st.booleans(), st.booleans())
def test_objects_there_and_back(
    tmp_path_factory: pytest.TempPathFactory,
    to: str,
    values: tuple[str, ...],
    atol: float,
    counts: list[int],
    seed: int,
    named: bool,
    outlines: bool,
) -> None:
    """Packed formats keep the names of classes that no sample has, and those of keypoints, with their pairs."""
    folder = tmp_path_factory.mktemp(to)
    is_coco, is_small = to == "coco", to in ("voc", "yolo")
    how = {"keypoints": 0 if is_small else 3 * (named or is_coco), "outlines": not is_small and (outlines or is_coco)}
    store = detection(folder / "s.tsds", counts, seed, **how)
    assert tsds.export(store.path, folder / "out", to).left_out == {}
    packed = to in ("parquet", "huggingface", "webdataset")
    found = again(folder / "out", **({"classes": None, "workers": 2 if seed % 5 == 0 else 0} if packed else {}))
    one, other = (each["train"].fields["objects"] for each in (store, found))
    if packed:
        assert other == one
    kept = [name for name in values if name in one.values and name in other.values]  # type: ignore[attr-defined]
    assert is_small or {"boxes", "labels", *(["keypoints"] if how["keypoints"] else [])} <= set(kept)
    assert not is_coco or ("polygons" in kept and other.keypoints == NAMED.names)  # type: ignore[attr-defined]
    assert_same(store, found, *kept, atol=atol)


@pytest.mark.parametrize(
    ("to", "more"),
    [
        ("voc", {"difficult": [0, 1, 0], "truncated": [1, 0, 0]}),
        ("cvat", {"occluded": [1, 0, 0], "difficult": [0, 1, 0], "polygons": [NO_RING, RING, NO_RING]}),
    ],
)
def test_keypoints_and_flags_there_and_back(tmp_path: Path, to: str, more: dict[str, Any]) -> None:
    values = objects(np.random.default_rng(0), 3, keypoints=3) | more
    values["boxes"][1] = *RING.min(0), *RING.max(0)
    del values["visibility"]
    store = store_of(tmp_path / "s.tsds", [{"image": PIXELS, "objects": values}], CLASSES, keypoints=NAMED)
    assert not tsds.export(store.path, tmp_path / to, to).left_out
    assert_same(store, again(tmp_path / to, keypoints=NAMED), "boxes", "labels", "keypoints", *more)


@pytest.mark.parametrize("is_labelled", [True, False])
def test_folders_there_and_back(tmp_path: Path, is_labelled: bool) -> None:
    """To the byte, and keys also; a test set without labels, such as an unpublished one, is a folder of images."""
    source = class_folders(tmp_path / "src")
    for path in [] if is_labelled else list(source.glob("test/*/*.png")):
        path.rename(source / "test" / f"{path.parent.name}_{path.name}")
    for name in () if is_labelled else ("ant", "bee"):
        (source / "test" / name).rmdir()
    tsds.convert(source, tmp_path / "a.tsds", tsds.ConvertOptions(workers=0, encoding="source"))
    assert (set(tsds.open(tmp_path / "a.tsds")["test"]["label"][:]) == {-1}) is not is_labelled
    summary = tsds.export(tmp_path / "a.tsds", tmp_path / "folders", "folders")
    assert (summary.samples, summary.files) == ({"test": 8, "train": 8}, 16)
    assert (summary.left_out, summary.notes) == ({}, ())
    files = {path.relative_to(source): path.read_bytes() for path in source.rglob("*.png")}
    assert files == {p.relative_to(summary.path): p.read_bytes() for p in summary.path.rglob("*") if p.is_file()}


def test_npy_there_and_back(tmp_path: Path) -> None:
    store = tsds.open(tsds.convert(class_folders(tmp_path / "src"), tmp_path / "a.tsds", workers=0).path)
    tsds.export(store.path, tmp_path / "npy", "npy")
    np.testing.assert_array_equal(np.load(tmp_path / "npy/train/images.npy"), store["train"]["image"][:])
    assert_same(store, again(tmp_path / "npy"))


def test_npy_of_fields_with_the_names_of_others(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    values = {name: rng.integers(0, 9, (3, 2)) for name in ("images", "labels")}
    values |= {"image": rng.integers(0, 256, (3, 4, 4, 3), np.uint8), "label": np.array([0, 1, 0])}
    samples = [{name: each[i] for name, each in values.items()} for i in range(3)]
    tsds.export(store_of(tmp_path / "a.tsds", samples, ["a", "b"]).path, tmp_path / "npy", "npy")
    written = {path.stem: np.load(path) for path in (tmp_path / "npy/train").iterdir()}
    assert written.keys() == values.keys()
    for name, expected in values.items():
        np.testing.assert_array_equal(written[name], expected)


def test_npy_of_files_after_a_repack(tmp_path: Path) -> None:
    tsds.convert(class_folders(tmp_path / "src"), tmp_path / "a.tsds", workers=0, encoding="source")
    with pytest.raises(tsds.OptionError, match=r"tsds repack with an `encoding` of raw and a `size`"):
        tsds.export(tmp_path / "a.tsds", tmp_path / "npy", "npy")
    tsds.repack(tmp_path / "a.tsds", tmp_path / "b.tsds", encoding="raw", size=(4, 4), workers=0)
    tsds.export(tmp_path / "b.tsds", tmp_path / "npy", "npy")
    assert np.load(tmp_path / "npy/train/images.npy").shape[1:3] == (4, 4)


def test_yolo_without_val_keeps_test(tmp_path: Path) -> None:
    """Ultralytics wants a val in data.yaml, which is test there: it comes back as test."""
    samples = [{"image": PIXELS, "objects": {"boxes": [[1, 2, 9, 9]], "labels": [0]}}]
    options = tsds.ConvertOptions(workers=0, classes=CLASSES)
    tsds.convert({"train": samples, "test": samples}, tmp_path / "s.tsds", options)
    store = tsds.open(tmp_path / "s.tsds")
    (note,) = tsds.export(store.path, tmp_path / "yolo", "yolo").notes
    assert "data.yaml names test for it" in note
    assert "val: images/test" in (tmp_path / "yolo" / "data.yaml").read_text()
    assert_same(store, again(tmp_path / "yolo"), "boxes", "labels")


def test_yolo_takes_valid_for_val_and_names_what_is_not_read(tmp_path: Path) -> None:
    values = {"boxes": [[2, 2, 9, 9]], "labels": [0]}
    with tsds.Writer(tmp_path / "s.tsds", classes=("cat",)) as writer:
        for split in ("train", "valid", "test", "extra"):
            writer.append(split, image=PIXELS, objects=values)
    valid, unread = tsds.export(tmp_path / "s.tsds", tmp_path / "out", "yolo").notes
    assert "data.yaml names valid for it" in valid and unread.endswith(": extra will not be read.")
    found = tsds.convert(tmp_path / "out", tmp_path / "again.tsds", workers=0)
    assert found.rows == {"train": 1, "val": 1, "test": 1}


def test_yolo_rows(tmp_path: Path) -> None:
    """Worked out by hand: 40 wide, 30 high."""
    values = {"boxes": [[10, 6, 30, 12]], "labels": [2]}
    store = store_of(tmp_path / "s.tsds", [{"image": PIXELS, "objects": values}], CLASSES)
    tsds.export(store.path, tmp_path / "yolo", "yolo")
    assert (tmp_path / "yolo" / "labels" / "train" / "00000.txt").read_text() == "2 0.5 0.3 0.5 0.2\n"
    assert (tmp_path / "yolo/data.yaml").read_text("utf-8") == (
        'train: images/train\nval: images/train\nnames:\n  0: "cat"\n  1: "dög"\n  2: "ant lion"\n'
    )
    np.testing.assert_array_equal(Image.open(tmp_path / "yolo" / "images" / "train" / "00000.png"), PIXELS)


def test_yolo_poses_and_segments(tmp_path: Path) -> None:
    values = {"boxes": [[0, 0, 40, 30]], "labels": [0], "keypoints": [[[4, 3], [np.nan, np.nan], [50, 3]]]}
    none = {"boxes": np.empty((0, 4)), "labels": np.empty(0, int), "keypoints": np.empty((0, 3, 2))}
    samples = [{"image": PIXELS, "objects": each} for each in (values, none)]
    store = store_of(tmp_path / "p.tsds", samples, CLASSES, keypoints=NAMED)
    tsds.export(store.path, tmp_path / "pose", "yolo")
    assert (tmp_path / "pose" / "labels" / "train" / "00001.txt").read_text() == ""
    row = (tmp_path / "pose" / "labels" / "train" / "00000.txt").read_text()
    assert row == "0 0.5 0.5 1 1 0.1 0.1 2 0 0 0 0 0 0\n"  # the last one lies outside
    assert "kpt_shape: [3, 3]\nflip_idx: [0, 2, 1]\n" in (tmp_path / "pose/data.yaml").read_text()
    ring = [[4, 3], [8, 3], [8, 6]]
    values = {"boxes": [[4, 3, 8, 6]], "labels": [1], "polygons": [ring]}
    store = store_of(tmp_path / "q.tsds", [{"image": PIXELS, "objects": values}], CLASSES)
    tsds.export(store.path, tmp_path / "segments", "yolo")
    assert (tmp_path / "segments" / "labels" / "train" / "00000.txt").read_text() == "1 0.1 0.1 0.2 0.1 0.2 0.2\n"


def test_a_polygon_of_two_corners_is_no_row_of_yolo(tmp_path: Path) -> None:
    """Its 4 numbers would be read as a box."""
    values = {"boxes": [[4, 3, 8, 6]], "labels": [1], "polygons": [[[20, 15], [30, 20]]]}
    store = store_of(tmp_path / "s.tsds", [{"image": PIXELS, "objects": values}], CLASSES)
    assert tsds.export(store.path, tmp_path / "out", "yolo").left_out == {"polygons": 1}
    assert (tmp_path / "out" / "labels" / "train" / "00000.txt").read_text() == "1 0.15 0.15 0.1 0.1\n"


def test_absent_keypoints_are_not_visible_in_coco(tmp_path: Path) -> None:
    nan = [np.nan, np.nan]
    values = {"boxes": [[4, 3, 8, 6]], "labels": [1], "keypoints": [[[4, 3], nan, [5, 5]]], "visibility": [[1, 2, 0]]}
    store = store_of(tmp_path / "s.tsds", [{"image": PIXELS, "objects": values}], CLASSES, keypoints=NAMED)
    tsds.export(store.path, tmp_path / "out", "coco")
    content = json.loads((tmp_path / "out" / "annotations" / "instances_train.json").read_text())
    assert content["annotations"][0]["keypoints"] == [4, 3, 1, 0, 0, 0, 5, 5, 0]
    assert content["annotations"][0]["num_keypoints"] == 1  # of visibility 1 or 2


def test_labelme_files(tmp_path: Path) -> None:
    """As labelme writes them; images are the files that the store keeps."""
    square, triangle = [[1, 2], [9, 2], [9, 6.1], [1, 6.1]], [[20, 20], [30, 20], [30, 29.5]]
    values = {
        "boxes": [[0.1, 3, 40, 30], [1, 2, 30, 29.5], [4, 5, 6, 7]],
        "labels": [2, 1, 0],
        "keypoints": [[[3, 4], [np.nan, np.nan], [50, -2.5]], *[[[np.nan, np.nan]] * 3] * 2],
        "polygons": [np.empty((0, 2)), [*square, [np.nan, np.nan], *triangle], [[4, 5], [6, 7]]],
        "difficult": [0, 1, 0],
    }
    file = png_bytes(PIXELS)
    some = [{"image": file, "key": "a/x.png", "objects": values}]
    empty = {**{name: each[:0] for name, each in values.items()}, "keypoints": np.empty((0, 3, 2))}
    streams = {"train": iter(some), "val": iter([{"image": file, "key": "b/x.png", "objects": empty}])}
    options = tsds.ConvertOptions(workers=0, encoding="source", classes=CLASSES, keypoints=NAMED)
    tsds.convert(streams, tmp_path / "s.tsds", options)
    summary = tsds.export(tmp_path / "s.tsds", tmp_path / "out", "labelme")
    assert summary.left_out == {"polygons without an area": 1} and summary.files == 5
    files = {path.relative_to(summary.path).as_posix(): path.read_bytes() for path in summary.path.rglob("*.*")}
    assert files["train/x.png"] == files["val/x.png"] == file
    common = {"imagePath": "x.png", "imageData": None, "imageHeight": 30, "imageWidth": 40}
    assert json.loads(files["val/x.json"]) == {"version": "5.4.1", "flags": {}, "shapes": [], **common}
    shapes = [
        ("ant lion", [[0.1, 3], [40, 30]], 1, "rectangle", {"difficult": False}),
        ("nose", [[3, 4]], 1, "point", {}),
        ("right_eye", [[50, -2.5]], 1, "point", {}),
        ("dög", square, 2, "polygon", {"difficult": True}),
        ("dög", triangle, 2, "polygon", {"difficult": True}),
        ("cat", [[4, 5], [6, 7]], None, "rectangle", {"difficult": False}),
    ]
    names = ("label", "points", "group_id", "shape_type", "flags")
    assert json.loads(files["train/x.json"])["shapes"] == [dict(zip(names, each, strict=True)) for each in shapes]
    assert files["labels.txt"].decode() == "cat\ndög\nant lion\n"
    found = again(summary.path, keypoints=NAMED, encoding="source")
    store = tsds.open(tmp_path / "s.tsds")
    assert list(found["val"]["key"]) == ["val/x.png"]
    assert_same(store, found, "boxes", "labels", "keypoints", "difficult")
    outlines = found["train"]["objects"][0]["polygons"]
    np.testing.assert_array_equal(outlines[1], store["train"]["objects"][0]["polygons"][1])
    assert [len(each) for each in outlines] == [0, 8, 0]


@pytest.mark.parametrize("name", [" cat", "a\nb", "", "\t"])
def test_names_that_labelme_would_change(tmp_path: Path, name: str) -> None:
    values = {"boxes": [[0, 0, 4, 4]], "labels": [0]}
    store = store_of(tmp_path / "s.tsds", [{"image": PIXELS, "objects": values}], (name, "dog"))
    with pytest.raises(tsds.OptionError, match=r"expected names of one line.*Export to parquet"):
        tsds.export(store.path, tmp_path / "out", "labelme")
    assert not (tmp_path / "out.partial").exists()


@pytest.mark.parametrize("to", ["cvat", "labelme", "yolo"])
def test_boxes_that_are_no_hulls_are_counted(tmp_path: Path, to: str) -> None:
    triangle = np.array([[2, 2], [9.004, 2], [2, 9]], np.float32)
    found = []
    for name, edge in (("hull", 9), ("else", 12)):
        values = {"boxes": [[2, 2, edge, 9]], "labels": [0], "polygons": [triangle]}
        store = store_of(tmp_path / f"{name}.tsds", [{"image": PIXELS, "objects": values}], ("cat",))
        found.append(dict(tsds.export(store.path, tmp_path / name, to).left_out))
    assert found == [{}, {"boxes that are not the hulls of their polygons": 1}]


def test_polygons_that_yolo_cuts_are_counted(tmp_path: Path) -> None:
    ring = np.array([[-5, -5], [50, 10], [20, 40]], np.float32)
    values = {"boxes": [[0, 0, 40, 30]], "labels": [0], "polygons": [ring]}
    store = store_of(tmp_path / "s.tsds", [{"image": PIXELS, "objects": values}], ("cat",))
    assert tsds.export(store.path, tmp_path / "out", "yolo").left_out == {"parts of polygons outside of the image": 1}


def test_coco_counts_a_second_outline(tmp_path: Path) -> None:
    """An annotation has one segmentation: RLE, else polygons, else the corners of the oriented box."""
    runs, turned = np.array([40, 7, 1200 - 47], np.uint32), [20.0, 15, 6, 4, 0.5]
    empty, absent = np.empty(0, np.uint32), [np.nan] * 5
    found = []
    for ring, rle, box in ((RING, empty, absent), (RING, runs, absent), (RING, empty, turned), (NO_RING, runs, turned)):
        values = {"boxes": [[5, 6, 20, 22]], "labels": [0], "polygons": [ring], "rle": [rle], "oriented_boxes": [box]}
        store = store_of(tmp_path / f"{len(found)}.tsds", [{"image": PIXELS, "objects": values}], ("cat",))
        found.append(dict(tsds.export(store.path, tmp_path / str(len(found)), "coco").left_out))
    beside = {"oriented boxes beside outlines": 1}
    assert found == [{}, {"polygons beside RLE": 1}, beside, beside]


def test_keypoints_that_yolo_cannot_hold_are_counted(tmp_path: Path) -> None:
    values = {"boxes": [[2, 2, 9, 9]], "labels": [0], "keypoints": [[[3, 4], [np.nan, np.nan], [-1, 5]]]}
    store = store_of(tmp_path / "s.tsds", [{"image": PIXELS, "objects": values}], ("cat",))
    summary = tsds.export(store.path, tmp_path / "out", "yolo")
    assert summary.left_out == {"keypoints outside of the image": 1}


def test_what_labelme_cannot_hold(tmp_path: Path) -> None:
    store = detection(tmp_path / "s.tsds", (2, 0), keypoints=3, outlines=True)
    summary = tsds.export(store.path, tmp_path / "out", "labelme")
    unlike = "boxes that are not the hulls of their polygons"
    assert summary.left_out == {"visibility": 1, "rle": 1, "area": 1, unlike: 1}
    found = again(tmp_path / "out", keypoints=NAMED)
    values = found["train"]["objects"][0]
    np.testing.assert_array_equal(values["boxes"][1], store["train"]["objects"][0]["boxes"][1])  # it has runs
    corners = store["train"]["objects"][0]["polygons"][0]
    np.testing.assert_array_equal(values["boxes"][0], [*corners.min(0), *corners.max(0)])


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of pycocotools
def test_what_pycocotools_reads(tmp_path: Path) -> None:
    """Its evaluation finds each box where it is."""
    coco = pytest.importorskip("pycocotools.coco")
    cocoeval = pytest.importorskip("pycocotools.cocoeval")
    store = detection(tmp_path / "s.tsds", (3, 2, 0, 4), outlines=True)
    tsds.export(store.path, tmp_path / "coco", "coco")
    with contextlib.redirect_stdout(io.StringIO()):
        truth = coco.COCO(str(tmp_path / "coco" / "annotations" / "instances_train.json"))
        found = [{**each, "score": 1.0} for each in truth.dataset["annotations"] if not each["iscrowd"]]
        boxes = [{name: each[name] for name in ("image_id", "category_id", "bbox", "score")} for each in found]
        evaluation = cocoeval.COCOeval(truth, truth.loadRes(boxes), "bbox")
        evaluation.evaluate()
        evaluation.accumulate()
        evaluation.summarize()
    assert evaluation.stats[0] == 1.0
    expected = store["train"]["objects"][0]
    masks = tsds.loading.draw_masks(expected, (30, 40))
    theirs = [truth.annToMask(each) for each in truth.dataset["annotations"] if each["image_id"] == 1]
    np.testing.assert_array_equal(masks, theirs)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of pycocotools
def test_what_torchvision_reads(tmp_path: Path) -> None:
    pytest.importorskip("pycocotools.coco")
    from torchvision.datasets import CocoDetection, VOCDetection

    store = detection(tmp_path / "s.tsds")
    tsds.export(store.path, tmp_path / "coco", "coco")
    with contextlib.redirect_stdout(io.StringIO()):
        data = CocoDetection(tmp_path / "coco" / "train", tmp_path / "coco" / "annotations" / "instances_train.json")
    image, target = data[2]
    np.testing.assert_array_equal(image, store["train"]["image"][2])
    boxes = store["train"]["objects"][2]["boxes"]
    np.testing.assert_allclose([each["bbox"][:2] for each in target], boxes[:, :2], rtol=1e-6)
    (tmp_path / "VOCdevkit").mkdir()
    tsds.export(store.path, tmp_path / "VOCdevkit" / "VOC2012", "voc")
    (tmp_path / "VOCdevkit" / "VOC2012" / "JPEGImages" / "00002.jpg").symlink_to("00002.png")
    split = tmp_path / "VOCdevkit" / "VOC2012" / "ImageSets" / "Main" / "train.txt"
    split.write_text("00002\n")
    _, target = VOCDetection(tmp_path, "2012", "train")[0]
    assert len(target["annotation"]["object"]) == len(boxes)


def test_webdataset(tmp_path: Path) -> None:
    store = detection(tmp_path / "s.tsds", keypoints=3)
    tsds.export(store.path, tmp_path / "web", "webdataset")
    with tarfile.open(tmp_path / "web" / "train-000000.tar") as archive:
        members = {each.name: archive.extractfile(each) for each in archive}
        assert list(members) == [f"{i:05d}.{suffix}" for i in range(3) for suffix in ("png", "json")]
        file = members["00002.json"]
        assert file is not None
        found = json.load(file)
    expected = store["train"]["objects"][2]
    np.testing.assert_allclose(found["boxes"], expected["boxes"], rtol=1e-6)
    assert found["classes"] == [CLASSES[i] for i in expected["labels"]]
    points = np.array(found["keypoints"], np.float64)  # null is NaN
    np.testing.assert_allclose(points, expected["keypoints"], rtol=1e-6)


def test_images_alone_in_webdataset(tmp_path: Path) -> None:
    """Their archives are recognized by FIELDS beside them."""
    store = store_of(tmp_path / "s.tsds", [{"image": np.roll(PIXELS, i)} for i in range(3)])
    tsds.export(store.path, tmp_path / "web", "webdataset")
    assert_same(store, again(tmp_path / "web", classes=None))


@pytest.mark.parametrize(
    "key",
    [
        "../../evil.png",
        "/etc/passwd",
        "..",
        "",
        "a/.hidden.png",
        "con.png",
        "x" * 300,
        "猫" * 99,
        "a\0b.png",
        "C:\\a?.png",
    ],
)
def test_keys_that_are_no_names(key: str) -> None:
    name = Names().new(key, 7, (".png",))
    assert name in ("000007.png", "evil.png", "passwd.png", "a?.png") and "/" not in name
    assert name != "a?.png"


def test_names_are_unique_whatever_their_case() -> None:
    names = Names()
    made = [names.new(key, i, (".jpg", ".jpeg")) for i, key in enumerate(["a/x.jpg", "b/X.JPEG", "c/x.png", "x"])]
    assert made == ["x.jpg", "X_000001.JPEG", "x_000002.jpg", "x_000003.jpg"]
    assert names.new("d/x.jpg", 2, (".jpg",)) == "x_000002_000002.jpg"  # row 2 of another split
    assert [names.new(f"at {time}", 0, (".jpg",)) for time in (1.5, 1.25)] == ["at 1.5.jpg", "at 1.25.jpg"]
    assert names.new("e/\u00a0 x.jpg", 4, (".jpg",)) == "x_000004.jpg"  # readers of lists and XML strip names


@pytest.mark.parametrize("to", ["voc", "cvat", "labelme"])
def test_names_are_no_lines_and_are_in_xml(tmp_path: Path, to: str) -> None:
    keys = ["a\u2028b.png", "\x85.png", "\ufffe.png", "a\xa0.png", "\x7f.png", "猫.png"]
    values = {"boxes": [[2, 2, 9, 9]], "labels": [0]}
    samples = [{"image": np.roll(PIXELS, i), "objects": values, "key": key} for i, key in enumerate(keys)]
    store = store_of(tmp_path / "s.tsds", samples, CLASSES)
    tsds.export(store.path, tmp_path / "out", to)
    stored = again(tmp_path / "out")["train"]["image"]
    assert {stored[i].tobytes() for i in range(len(keys))} == {each["image"].tobytes() for each in samples}


@pytest.mark.parametrize("to", ["folders", "labelme", "dota", "coco"])
def test_splits_that_readers_take_for_classes(tmp_path: Path, to: str) -> None:
    values = {"boxes": [[2, 2, 9, 9]], "labels": [0]}
    with tsds.Writer(tmp_path / "s.tsds", classes=("cat",)) as writer:
        for split in ("train", "spring", "fall"):
            writer.append(split, image=PIXELS, objects=values)
    usual = tsds.export(tmp_path / "s.tsds", tmp_path / "usual", to, splits=["train"]).notes
    notes = set(tsds.export(tmp_path / "s.tsds", tmp_path / "out", to).notes) - set(usual)
    assert any(note.startswith("spring, fall are no usual names of splits") for note in notes) is (to != "coco")


@given(st.text(max_size=300), st.integers(0, 10**6))
def test_every_key_becomes_a_name(key: str, row: int) -> None:
    name = Names().new(key, row, (".png",))
    assert name.lower().endswith(".png") and Path(name).name == name and not name.startswith(".")
    assert len(name.encode()) < 230 and "\0" not in name


@given(st.floats(0, 5000, width=32), st.floats(0, 5000, width=32))
def test_numbers_are_short_and_exact(one: float, other: float) -> None:
    start, stop = sorted((one, other))
    assert np.float32(short(start)) == np.float32(start)
    assert np.float32(short(start) + extent(start, stop)) == np.float32(stop)


def test_texts_whose_name_webdataset_takes_for_the_class(tmp_path: Path) -> None:
    class_folders(tmp_path / "src")
    path = tsds.convert(tmp_path / "src", tmp_path / "a.tsds", workers=0).path
    store = tsds.open(path)
    texts = {name: [[f"{name} {row}"] for row in range(len(store[name]))] for name in store}
    tsds.editing.add_fields(path, {"class": texts})
    with pytest.raises(tsds.OptionError, match=r"found 'class'\. Export to parquet"):
        tsds.export(path, tmp_path / "out", "webdataset")
    assert not tsds.export(path, tmp_path / "out", "parquet").left_out


def test_a_split_that_is_named_twice_or_alone(tmp_path: Path) -> None:
    class_folders(tmp_path / "src")
    tsds.convert(tmp_path / "src", tmp_path / "a.tsds", workers=0)
    expected = tsds.export(tmp_path / "a.tsds", tmp_path / "one", "csv", splits=["train"])
    for i, splits in enumerate((["train", "train"], "train")):
        again = tsds.export(tmp_path / "a.tsds", tmp_path / f"{i}", "csv", splits=splits)
        assert (again.samples, again.files) == (expected.samples, expected.files)
        assert files_of(tmp_path / f"{i}") == files_of(tmp_path / "one")


def test_what_a_store_lacks(tmp_path: Path) -> None:
    class_folders(tmp_path / "src")
    tsds.convert(tmp_path / "src", tmp_path / "a.tsds", tsds.ConvertOptions(workers=0))
    for to in ("voc", "coco", "yolo"):
        with pytest.raises(tsds.OptionError, match="expected objects with boxes"):
            tsds.export(tmp_path / "a.tsds", tmp_path / "out", to)
    tsds.pull(tmp_path / "a.tsds", tmp_path / "labels.tsds", fields=["label"])
    for to in set(tsds.exporting.EXPORT_FORMATS):
        with pytest.raises(tsds.OptionError, match=r"expected images, found none\. tsds table writes"):
            tsds.export(tmp_path / "labels.tsds", tmp_path / "out", to)
        with pytest.raises(tsds.OptionError, match="expected images, found none"):  # of a kind that it can read
            tsds.export(VALID / "unknown-kinds.tsds", tmp_path / "out", to)
    with pytest.raises(tsds.OptionError, match=r"expected images to find duplicates of"):
        tsds.editing.split_store(tmp_path / "labels.tsds", tmp_path / "s", {"a": 0.5, "b": 0.5}, group_by="duplicates")
    with pytest.raises(tsds.OptionError, match=r"`to`: expected one of folders.*Did you mean coco"):
        tsds.export(tmp_path / "a.tsds", tmp_path / "out", "coc")
    with pytest.raises(tsds.OptionError, match=r"expected splits of .*, found 'val'"):
        tsds.export(tmp_path / "a.tsds", tmp_path / "out", "folders", splits=["val"])
    with pytest.raises(tsds.OptionError, match=r"does not exist\. Make it first"):
        tsds.export(tmp_path / "a.tsds", tmp_path / "none" / "out", "folders")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.tsds", "labels.tsds", "src"]
    (tmp_path / "out").mkdir()
    with pytest.raises(tsds.errors.StoreExistsError, match="expected a new path, found a folder"):
        tsds.export(tmp_path / "a.tsds", tmp_path / "out", "folders")


def test_pixels_that_no_image_file_keeps(tmp_path: Path) -> None:
    store = store_of(tmp_path / "s.tsds", [np.zeros((4, 4, 3), np.float32)])
    with pytest.raises(
        tsds.OptionError, match=r"found float32 with 3 channels\. No image file keeps that: export to npy"
    ):
        tsds.export(store.path, tmp_path / "out", "folders")
    assert not (tmp_path / "out.partial").exists()
    tsds.export(store.path, tmp_path / "npy", "npy")
    assert np.load(tmp_path / "npy" / "train" / "images.npy").dtype == np.float32


def test_what_is_left_out_is_counted(tmp_path: Path) -> None:
    samples = [
        {"image": PIXELS, "label": i % 2, "age": i, "objects": objects(np.random.default_rng(i), 1)} for i in (0, 1)
    ]
    store = store_of(tmp_path / "s.tsds", samples, CLASSES)
    assert tsds.export(store.path, tmp_path / "f", "folders").left_out == {"age": 2, "objects": 2}
    assert tsds.export(store.path, tmp_path / "c", "coco").left_out == {"age": 2, "label": 2}
    outlined = detection(tmp_path / "o.tsds", (2, 0), outlines=True)
    left_out = tsds.export(outlined.path, tmp_path / "v", "voc").left_out
    assert left_out == dict.fromkeys(("area", "polygons", "rle", "iscrowd"), 1)


@pytest.mark.parametrize("suffix", [".jp2", ".j2k"])
def test_jpeg_2000_keeps_its_suffix(tmp_path: Path, suffix: str) -> None:
    """Files and codestreams, which readers find as .jp2 alone."""
    for name in "ab":
        (tmp_path / "src" / name).mkdir(parents=True)
        Image.fromarray(PIXELS).save((tmp_path / "src" / name / "x").with_suffix(suffix), quality_layers=[4])
        (tmp_path / "src" / name / "x").with_suffix(suffix).rename(tmp_path / "src" / name / "x.jp2")
    tsds.convert(tmp_path / "src", tmp_path / "s.tsds", encoding="source", workers=0)
    tsds.export(tmp_path / "s.tsds", tmp_path / "out", "folders")
    assert files_of(tmp_path / "out") == {f"train/{each}": data for each, data in files_of(tmp_path / "src").items()}


def test_a_part_of_the_splits(tmp_path: Path) -> None:
    class_folders(tmp_path / "src")
    tsds.convert(tmp_path / "src", tmp_path / "a.tsds", tsds.ConvertOptions(workers=0))
    seen = list[tuple[int, int]]()
    summary = tsds.export(
        tmp_path / "a.tsds", tmp_path / "o", "folders", splits=["test"], progress=lambda *two: seen.append(two)
    )
    assert summary.samples == {"test": 8} and seen[-1] == (8, 8)
    assert [path.name for path in (tmp_path / "o").iterdir()] == ["test"]


@pytest.mark.parametrize("to", ["webdataset", "parquet", "huggingface"])
def test_samples_without_a_label_beside_others(tmp_path: Path, to: str) -> None:
    """Class folders have no place for them: the summary counts them, and the formats that its note names keep them."""
    store = store_of(tmp_path / "s.tsds", [(PIXELS, 0), (PIXELS + 1, None), (PIXELS + 2, 2)], CLASSES)
    meant = command("export", store.path, tmp_path / "o", "--to", "folder")
    assert meant.exit_code == 2 and "Did you mean folders?" in meant.output
    done = command("export", store.path, tmp_path / "o", "--to", "folders")
    assert "2 samples in 2 files" in done.stdout and "samples without a label (1 sample)" in done.stdout
    assert done.stderr.startswith("note: to keep samples without a label") and "to parquet or webdataset" in done.stderr
    assert sorted(path.name for path in (tmp_path / "o" / "train").iterdir()) == sorted(CLASSES)
    tsds.export(store.path, tmp_path / "all", to)
    found = again(tmp_path / "all", classes=None)
    assert_same(store, found)
    assert found["train"].fields["label"] == store["train"].fields["label"]  # "dög" also, which no sample has
    assert (tmp_path / "all" / "README.md").exists() == (to == "huggingface")


@pytest.mark.parametrize("name", ["../up", ""])
def test_classes_that_are_no_folders(name: str, tmp_path: Path) -> None:
    store = store_of(tmp_path / "s.tsds", [(PIXELS, 0)], [name, "b"])
    with pytest.raises(tsds.OptionError, match=rf"found '{name}'"):
        tsds.export(store.path, tmp_path / "o", "folders")
    assert not (tmp_path.parent / "up").exists()


def test_a_work_folder_that_stays_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store, out = detection(tmp_path / "s.tsds"), tmp_path / "out"
    real = os.unlink

    def failing(*arguments: Any, **others: Any) -> None:
        if out.exists():
            raise OSError(5, "Input/output error")
        real(*arguments, **others)

    monkeypatch.setattr(os, "unlink", failing)
    done = command("export", store.path, out, "--to", "voc")
    message = f"{out}.partial: this work folder could not be removed (Input/output error). Remove it."
    assert (done.exit_code, done.stderr) == (0, f"note: {message}\n")


def test_the_command(tmp_path: Path) -> None:
    store = detection(tmp_path / "s.tsds")
    done = command("export", store.path, tmp_path / "out", "--to", "coco")
    assert (done.exit_code, done.stderr) == (0, "")
    first, last = done.stdout.splitlines()
    assert first.startswith(f"{tmp_path / 'out'}  3 samples in 4 files, ")
    assert last.endswith(f"convert {tmp_path / 'out'} again.tsds")
    found = json.loads(command("export", store.path, tmp_path / "b", "--to", "yolo", "--json").stdout)
    assert (found["samples"], found["files"]) == ({"train": 3}, 7)
    done = command("export", store.path, tmp_path / "out", "--to", "coco")
    assert done.exit_code == 1 and done.stderr.startswith("tsds: ") and done.stderr.count("\n") == 1
    assert command("export", store.path, tmp_path / "x", "--to", "pascal").exit_code == 2
    assert set(FORMATS) == set(json.loads(json.dumps(list(FORMATS))))


def test_png_files_keep_the_pixels(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    for dtype, channels in (("uint8", 1), ("uint8", 4), ("uint16", 1)):
        pixels = rng.integers(0, np.iinfo(dtype).max, (5, 6, channels)).astype(dtype)
        store = store_of(tmp_path / f"{dtype}{channels}.tsds", [pixels])
        tsds.export(store.path, tmp_path / f"{dtype}{channels}", "folders")
        found = np.asarray(Image.open(tmp_path / f"{dtype}{channels}" / "train" / "00000.png"))
        np.testing.assert_array_equal(found.reshape(pixels.shape), pixels)
    assert png_bytes(PIXELS)[:4] == b"\x89PNG"


def test_images_that_exif_turns_are_counted(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    for orientation in (1, 3, 6):
        exif = Image.Exif()
        exif[0x0112] = orientation
        Image.new("RGB", (9, 7)).save(tmp_path / f"a/{orientation}.jpg", exif=exif)
    tsds.convert(tmp_path / "a", tmp_path / "a.tsds", encoding=tsds.conversion.SourceFiles(), workers=0)
    (note,) = tsds.export(tmp_path / "a.tsds", tmp_path / "out", "folders").notes
    assert note.startswith("2 images are turned by their EXIF orientation")


@pytest.mark.parametrize("to", ["voc", "cvat"])
def test_names_that_no_xml_can_contain(to: str, tmp_path: Path) -> None:
    with tsds.Writer(tmp_path / "s.tsds", classes=["a\x01b"]) as writer:
        image, boxes = np.zeros((9, 9, 1), np.uint8), np.array([[1.0, 1, 5, 5]])
        writer.append("train", image=image, boxes=boxes, labels=np.array([0]))
    with pytest.raises(tsds.OptionError, match=r"expected names without control characters, .* found 'a\\x01b'"):
        tsds.export(tmp_path / "s.tsds", tmp_path / "out", to)


def test_a_hub_folder_lists_splits_with_files(tmp_path: Path) -> None:
    with tsds.Writer(tmp_path / "s.tsds") as writer:
        for split in ("train", "val"):
            writer.append(split, image=np.zeros((4, 4, 1), np.uint8), key=split)
    tsds.editing.filter_store(tmp_path / "s.tsds", tmp_path / "t.tsds", "key == 'train'")
    tsds.export(tmp_path / "t.tsds", tmp_path / "hub", "huggingface")
    text = (tmp_path / "hub" / "README.md").read_text("utf-8")
    assert re.findall(r"split: (.*)", text) == ["train"]
