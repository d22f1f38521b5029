"""Boxes that are read by way of the program panlabel."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tensorstore_ds as tsds
from labelling_files import converted, stored, write
from small_stores import tsds as command
from stores import png_bytes

IMAGE = png_bytes(np.arange(48 * 64 * 3, dtype=np.uint8).reshape(48, 64, 3))
CAT = {"label": "cat", "coordinates": {"x": 20, "y": 20, "width": 10, "height": 12}}
CREATE_ML = json.dumps([{"image": "a.png", "annotations": [CAT]}])
SHAPE = {"name": "rect", "x": 15, "y": 14, "width": 10, "height": 12}
REGION = {"shape_attributes": SHAPE, "region_attributes": {"label": "cat"}}
VIA = json.dumps({"a.png9": {"filename": "a.png", "size": 9, "regions": [REGION], "file_attributes": {}}})
OPEN_IMAGES = "ImageID,Source,LabelName,Confidence,XMin,XMax,YMin,YMax\na.png,x,cat,1,0.25,0.5,0.25,0.5\n"
WHEAT = 'image_id,width,height,bbox,source\na,64,48,"[15, 14, 10, 12]",x\n'


@pytest.fixture
def panlabel() -> None:
    pytest.importorskip("panlabel")


@pytest.mark.parametrize(
    ("via", "files", "path", "box"),
    [
        ("create-ml", {"a.png": IMAGE, "x.json": CREATE_ML}, "x.json", [15, 14, 25, 26]),
        ("via", {"images/a.png": IMAGE, "x.json": VIA}, "x.json", [15, 14, 25, 26]),
        ("openimages", {"a.png": IMAGE, "x.csv": OPEN_IMAGES}, "x.csv", [16, 12, 32, 24]),
        ("auto", {"a.png": IMAGE, "x.json": CREATE_ML}, "x.json", [15, 14, 25, 26]),
        ("kaggle-wheat", {"train/a.png": IMAGE, "x.csv": WHEAT}, "x.csv", [15, 14, 25, 26]),
    ],
)
def test_files_of_annotations(
    via: str, files: dict[str, Any], path: str, box: list[int], tmp_path: Path, panlabel: None
) -> None:
    split = stored(write(tmp_path / "src", files) / path, via=via)["train"]
    assert split["objects"][0]["boxes"].tolist() == [box]
    assert split.fields["objects"].classes == ("wheat_head" if via == "kaggle-wheat" else "cat",)
    assert split["key"][:] == [next(name for name in files if name.endswith(".png"))]
    assert split.image_shapes[0].tolist() == [48, 64, 3]


def test_a_folder_whose_images_lie_elsewhere(tmp_path: Path, panlabel: None) -> None:
    """And what panlabel says that it loses is reported."""
    line = "Car 0.00 0 -1.58 10.0 12.0 30.0 40.0 1.65 1.67 3.64 -0.65 1.71 46.70 -1.59\n"
    files = {"label_2/000001.txt": line, "image_2/000001.png": IMAGE, "image_3/000002.png": IMAGE}
    store = stored(write(tmp_path / "src", files), via="kitti")
    assert store["train"]["key"][:] == ["image_2/000001.png"]
    assert store["train"]["objects"][0]["boxes"].tolist() == [[10, 12, 30, 40]]
    said = [json.loads(line) for line in (store.path / "skipped.jsonl").read_text().splitlines()]
    assert any("says panlabel" in each["message"] for each in said)


def test_sizes_that_panlabel_guesses_from_boxes_are_not_compared(tmp_path: Path, panlabel: None) -> None:
    """BDD100K has none. What panlabel does not read is told."""
    box = {"category": "car", "box2d": {"x1": 4.5, "y1": 6, "x2": 20.25, "y2": 30}}
    files = {"labels/x.json": json.dumps([{"name": "a.png", "labels": [box]}]), "images/a.png": IMAGE}
    root = write(tmp_path / "src", files)
    store, summary = converted(root / "labels/x.json", via="bdd100k", images=root / "images")
    assert store["train"]["objects"][0]["boxes"].tolist() == [[4.5, 6, 20.25, 30]]
    assert any("reads box2d labels only" in note for note in summary.notes)


def test_splits_that_panlabel_drops_are_reported(tmp_path: Path, panlabel: None) -> None:
    """As in the first column of AutoML's lists."""
    rows = "TRAIN,gs://x/a.png,cat,0.1,0.1,,,0.5,0.5,,\nTEST,gs://x/b.png,cat,0.1,0.1,,,0.5,0.5,,\n"
    source = write(tmp_path / "src", {"x.csv": rows, "a.png": IMAGE, "b.png": IMAGE}) / "x.csv"
    left_out = converted(source, via="automl-vision")[1].left_out
    assert any("not read: the split of each row" in str(each) for each in left_out)


def test_shapes_that_panlabel_skips_are_reported(tmp_path: Path, panlabel: None) -> None:
    polygon = {"shape_attributes": {"name": "polygon", "all_points_x": [1, 9, 9], "all_points_y": [1, 1, 9]}}
    regions = [REGION, *[polygon | {"region_attributes": {"label": "cat"}}] * 2]
    some = {f"{i}.png9": {"filename": f"{i}.png", "size": 9, "regions": regions} for i in range(3)}
    source = write(tmp_path / "src", {"x.json": json.dumps(some), **{f"{i}.png": IMAGE for i in range(3)}}) / "x.json"
    said = [str(each) for each in converted(source, via="via")[1].left_out]
    assert len([each for each in said if "skipping non-rect shape 'polygon' in '" in each and "3 in all" in each]) == 1


@pytest.mark.parametrize("workers", [0, 2])
def test_by_command_and_shared_out(workers: int, tmp_path: Path, panlabel: None) -> None:
    source = write(tmp_path / "src", {"a.png": IMAGE, "x.json": CREATE_ML}) / "x.json"
    done = command("convert", source, tmp_path / "o.tsds", "--via", "create-ml", "--workers", workers)
    assert done.exit_code == 0, done.output
    planned = tmp_path / "p.tsds"
    assert command("plan", source, planned, "--via", "create-ml").exit_code == 0
    assert command("convert", planned, "--task", "0/1").exit_code == 0
    assert command("commit", planned).exit_code == 0
    assert tsds.editing.compare_stores(planned, tmp_path / "o.tsds").is_empty


@pytest.mark.parametrize(
    ("text", "via", "message"),
    [
        ("[{", "create-ml", "panlabel cannot read it: .* Name the file of the annotations, or correct it"),
        ("nothing", "auto", "panlabel cannot read it: .* Name the format with `via`"),
        (CREATE_ML.replace("a.png", "gone.png"), "create-ml", r"panlabel cannot read it: .*gone\.png"),
    ],
)
def test_what_is_refused(text: str, via: str, message: str, tmp_path: Path, panlabel: None) -> None:
    source = write(tmp_path / "src", {"a.png": IMAGE, "-x.json": text}) / "-x.json"
    with pytest.raises(tsds.SourceError, match=message) as caught:
        stored(source, via=via)
    assert "\n" not in str(caught.value)
    assert caught.value.reason == "annotation"


def test_options_that_do_not_go_together(tmp_path: Path, panlabel: None, monkeypatch: pytest.MonkeyPatch) -> None:
    source = write(tmp_path / "src", {"a.png": IMAGE, "x.json": CREATE_ML}) / "x.json"
    with pytest.raises(tsds.OptionError, match=r"`via`: expected one of auto, .*kitti.*, found 'nothing'"):
        stored(source, via="nothing")
    with pytest.raises(tsds.OptionError, match="`via`: expected no other format beside it, found coco"):
        stored(source, via="kitti", format="coco")
    monkeypatch.setitem(sys.modules, "panlabel", None)
    with pytest.raises(tsds.OptionError, match=r"panlabel is not installed: pip install '\.\[formats\]'"):
        stored(source, via="kitti")
