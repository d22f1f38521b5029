"""Folders as Roboflow, Kaggle, CVAT, Label Studio, labelImg and Ultralytics write them, without any option."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tensorstore_ds as tsds
from labelling_files import write
from stores import png_bytes

IMAGE = png_bytes(np.arange(48 * 64 * 3, dtype=np.uint8).reshape(48, 64, 3))
Files = dict[str, str | bytes]
YOLO_LINE = "1 0.5 0.5 0.2 0.2\n"


def named(names: Iterable[str], content: str | bytes) -> Files:
    return dict.fromkeys(names, content)


def xml(name: str) -> str:
    """As Roboflow writes it: the order of the coordinates is not that of Pascal VOC."""
    box = "<bndbox><xmin>3</xmin><xmax>30</xmax><ymin>4</ymin><ymax>40</ymax></bndbox>"
    size = "<size><width>64</width><height>48</height><depth>3</depth></size>"
    parts = f"<pose>Unspecified</pose><truncated>0</truncated><difficult>0</difficult><occluded>0</occluded>{box}"
    return f"<annotation><filename>{name}</filename>{size}<object><name>cat</name>{parts}</object></annotation>"


def coco(names: Iterable[str], **more: Any) -> str:
    images = [{"id": i, "license": 1, "file_name": name, "height": 48, "width": 64} for i, name in enumerate(names)]
    box = {"id": 0, "image_id": 0, "category_id": 1, "bbox": [1, 2, 20, 20], "area": 400, "segmentation": []}
    categories = [{"id": 1, "name": "cat", "supercategory": "animals"}]
    return json.dumps(
        {"info": {}, "licenses": [], "categories": categories, "images": images, "annotations": [box], **more}
    )


def roboflow_coco() -> Files:
    files: Files = {"README.roboflow.txt": "x"}
    for split in ("train", "valid"):
        names = [f"{split}{i}_png.rf.0123abcd.png" for i in range(2)]
        files |= named((f"{split}/{name}" for name in names), IMAGE)
        files[f"{split}/_annotations.coco.json"] = coco(names)
    return files


def roboflow_voc() -> Files:
    files: Files = {"README.dataset.txt": "x"}
    for path in ("train/a.rf.01.png", "valid/b.rf.23.png", "valid/c.rf.45.png"):
        files |= {path: IMAGE, path.replace(".png", ".xml"): xml(path.partition("/")[2])}
    return files


def roboflow_yolo() -> Files:
    files: Files = {"data.yaml": "train: ../train/images\nval: ../valid/images\n\nnc: 2\nnames: ['cat', 'dog']\n"}
    for split in ("train", "valid"):
        files |= {f"{split}/images/a.rf.01.png": IMAGE, f"{split}/labels/a.rf.01.txt": YOLO_LINE}
        files |= {f"{split}/images/b.rf.01.png": IMAGE, f"{split}/labels/b.rf.01.txt": ""}
    return files


def kaggle_voc() -> Files:
    return {
        "images/a.png": IMAGE,
        "annotations/a.xml": xml("a.png"),
        "images/b.png": IMAGE,
        "annotations/b.xml": xml("b.png"),
    }


def pets() -> Files:
    return {"images/a.png": IMAGE, "annotations/xmls/a.xml": xml("a.png"), "annotations/list.txt": "a 1 1 1\n"}


def devkit() -> Files:
    root = "VOC2007"
    files = named((f"{root}/JPEGImages/{i}.png" for i in range(3)), IMAGE)
    files |= {f"{root}/Annotations/{i}.xml": xml(f"{i}.png") for i in range(3)}
    lists = {"train": "0\n1\n", "val": "2\n", "trainval": "0\n1\n2\n", "cat_train": "0 -1\n1  1\n"}
    return files | {f"{root}/ImageSets/Main/{name}.txt": text for name, text in lists.items()}


def coco_2017() -> Files:
    files: Files = {}
    for split in ("train2017", "val2017"):
        files |= named((f"{split}/{i:012d}.png" for i in range(2)), IMAGE)
        names = [f"{i:012d}.png" for i in range(2)]
        files[f"annotations/instances_{split}.json"] = coco(names)
        files[f"annotations/person_keypoints_{split}.json"] = coco(names, annotations=[])
        files[f"annotations/captions_{split}.json"] = coco(
            names, annotations=[{"id": 1, "image_id": 1, "caption": "A"}]
        )
    return files


def label_studio_coco() -> Files:
    return {"images/a.png": IMAGE, "result.json": coco(["images/a.png"])}


def cvat_coco() -> Files:
    return {"images/default/a.png": IMAGE, "annotations/instances_default.json": coco(["a.png"])}


def label_studio_yolo() -> Files:
    notes = json.dumps({"categories": [{"id": 0, "name": "cat"}, {"id": 1, "name": "dog"}], "info": {"year": 2024}})
    return {"images/a.png": IMAGE, "labels/a.txt": YOLO_LINE, "classes.txt": "cat\ndog\n", "notes.json": notes}


def cvat_yolo() -> Files:
    lists = {"obj.names": "cat\ndog\n", "obj.data": "classes = 2\ntrain = data/train.txt\nnames = data/obj.names\n"}
    images = {"obj_train_data/a.png": IMAGE, "obj_train_data/a.txt": YOLO_LINE}
    return {**images, **lists, "train.txt": "data/obj_train_data/a.png\n"}


def labelimg_yolo() -> Files:
    return {"a.png": IMAGE, "a.txt": YOLO_LINE, "classes.txt": "cat\ndog\n"}


def ultralytics() -> Files:
    """The configuration lies beside the folder that it names."""
    files: Files = {"two.yaml": "path: two\ntrain: images/train\nval: images/val\ntest:\nnames:\n  0: cat\n  1: dog\n"}
    for split in ("train", "val"):
        files |= {f"two/images/{split}/a.png": IMAGE, f"two/labels/{split}/a.txt": YOLO_LINE}
    return files


def ultralytics_lists() -> Files:
    files: Files = {"data.yaml": "path: .\ntrain: train.txt\nval: val.txt\nnames: {0: cat, 1: dog}\n"}
    for name in "ab":
        files |= {f"images/{name}.png": IMAGE, f"labels/{name}.txt": YOLO_LINE}
    return {**files, "train.txt": "./images/a.png\n", "val.txt": "./images/b.png\n"}


@pytest.mark.parametrize(
    ("make", "format", "splits", "objects", "classes"),
    [
        (roboflow_coco, "coco", {"train": 2, "valid": 2}, 2, ("cat",)),
        (roboflow_voc, "voc", {"train": 1, "valid": 2}, 3, ("cat",)),
        (roboflow_yolo, "yolo", {"train": 2, "val": 2}, 2, ("cat", "dog")),
        (kaggle_voc, "voc", {"train": 2}, 2, ("cat",)),
        (pets, "voc", {"train": 1}, 1, ("cat",)),
        (devkit, "voc", {"train": 2, "val": 1}, 3, ("cat",)),
        (coco_2017, "coco", {"train": 2, "val": 2}, 2, ("cat",)),
        (label_studio_coco, "coco", {"train": 1}, 1, ("cat",)),
        (cvat_coco, "coco", {"train": 1}, 1, ("cat",)),
        (label_studio_yolo, "yolo", {"train": 1}, 1, ("cat", "dog")),
        (cvat_yolo, "yolo", {"train": 1}, 1, ("cat", "dog")),
        (labelimg_yolo, "yolo", {"train": 1}, 1, ("cat", "dog")),
        (ultralytics, "yolo", {"train": 1, "val": 1}, 2, ("cat", "dog")),
        (ultralytics_lists, "yolo", {"train": 1, "val": 1}, 2, ("cat", "dog")),
    ],
)
def test_without_an_option(
    make: Callable[[], Files],
    format: str,
    splits: dict[str, int],
    objects: int,
    classes: tuple[str, ...],
    tmp_path: Path,
) -> None:
    summary = tsds.convert(write(tmp_path / "src", make()), tmp_path / "o.tsds", tsds.ConvertOptions(workers=0))
    assert summary.rows == splits and not summary.skipped
    store = tsds.open(tmp_path / "o.tsds")
    assert store.manifest.provenance["source_format"] == format
    assert store.manifest.fields["objects"].classes == classes
    assert sum(len(each["boxes"]) for split in store for each in store[split]["objects"][:]) == objects
    assert tsds.verify(store.path) == []


def test_annotations_in_xml_are_no_masks(tmp_path: Path) -> None:
    """`annotations` beside `images` is a folder of masks elsewhere: no note speaks of masks that are not there."""
    assert not tsds.convert(
        write(tmp_path / "src", kaggle_voc()), tmp_path / "o.tsds", tsds.ConvertOptions(workers=0)
    ).notes
