"""Folders of boxes as tools export them and people download them.

Each has cats and dogs, in images of 64 x 48 pixels (width x height).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

IMAGE = b""  # in the place of an image
WIDTH, HEIGHT = 64, 48
CLASSES = ("cat", "dog")
#: x1 y1 x2 y2 and the class of each object.
BOXES: Sequence[tuple[int, int, int, int, str]] = ((4, 6, 20, 30, "dog"), (8, 12, 40, 36, "cat"))

_README = "Export of pets, provided by a user of the tool.\n"


def xml(name: str, folder: str = "VOC2007") -> str:
    """Pascal VOC's XML of an image."""
    objects = "".join(
        f"<object><name>{label}</name><pose>Unspecified</pose><truncated>0</truncated><difficult>0</difficult>"
        f"<bndbox><xmin>{x1}</xmin><ymin>{y1}</ymin><xmax>{x2}</xmax><ymax>{y2}</ymax></bndbox></object>"
        for x1, y1, x2, y2, label in BOXES
    )
    size = f"<size><width>{WIDTH}</width><height>{HEIGHT}</height><depth>3</depth></size>"
    return f"<annotation><folder>{folder}</folder><filename>{name}</filename>{size}{objects}</annotation>"


def coco(*names: str, first: int = 1, extra: Sequence[str] = ()) -> str:
    """COCO's JSON of images: categories from `first` on, after those of `extra`."""
    categories = [{"id": i, "name": name} for i, name in enumerate([*extra, *CLASSES], first - len(extra))]
    ids = {each["name"]: each["id"] for each in categories}
    images = [{"id": i, "file_name": name, "width": WIDTH, "height": HEIGHT} for i, name in enumerate(names)]
    rows = [(i, box) for i in range(len(names)) for box in BOXES]
    annotations = [
        {"id": n, "image_id": i, "category_id": ids[label], "bbox": [x1, y1, x2 - x1, y2 - y1], "iscrowd": 0, "area": 1}
        for n, (i, (x1, y1, x2, y2, label)) in enumerate(rows)
    ]
    content = {"info": {"description": "pets"}, "licenses": [], "categories": categories}
    return json.dumps({**content, "images": images, "annotations": annotations})


#: YOLO's rows of an image.
ROWS = "".join(
    f"{CLASSES.index(label)} {(a + c) / 2 / WIDTH} {(b + d) / 2 / HEIGHT} {(c - a) / WIDTH} {(d - b) / HEIGHT}\n"
    for a, b, c, d, label in BOXES
)

#: Files by their path, and the keys of each split that are expected of them.
Layout = tuple[Mapping[str, str | bytes], Mapping[str, Sequence[str]]]

_SPLITS = ("train", "val", "test")
_FOLDERS = ("train", "valid", "test")
_HASH = "_jpg.rf.0123456789abcdef0123456789abcdef"

_VOC = {
    **{f"Annotations/00000{i}.xml": xml(f"00000{i}.jpg") for i in range(3)},
    **{f"JPEGImages/00000{i}.jpg": IMAGE for i in range(3)},
    "ImageSets/Main/train.txt": "000000\n",
    "ImageSets/Main/val.txt": "000001\n",
    "ImageSets/Main/trainval.txt": "000000\n000001\n",
    "ImageSets/Main/test.txt": "000002\n",
    "ImageSets/Main/cat_train.txt": "000000  1\n",
    "ImageSets/Layout/train.txt": "000000\n",
    "ImageSets/Segmentation/train.txt": "",
    "SegmentationClass/.keep": "",
}

LAYOUTS: Mapping[str, Layout] = {
    "Roboflow, COCO": (
        {
            "README.dataset.txt": _README,
            "README.roboflow.txt": _README,
            **{f"{split}/a{_HASH}.jpg": IMAGE for split in _FOLDERS},
            **{f"{split}/_annotations.coco.json": coco(f"a{_HASH}.jpg", extra=["pets"]) for split in _FOLDERS},
        },
        {split: [f"{split}/a{_HASH}.jpg"] for split in _FOLDERS},
    ),
    "Roboflow, VOC": (
        {
            "README.dataset.txt": _README,
            "README.roboflow.txt": _README,
            **{f"{split}/a{_HASH}.jpg": IMAGE for split in _FOLDERS},
            **{f"{split}/a{_HASH}.xml": xml(f"a{_HASH}.jpg", "") for split in _FOLDERS},
        },
        {split: [f"{split}/a{_HASH}.jpg"] for split in _FOLDERS},
    ),
    "Roboflow, YOLO": (
        {
            "README.dataset.txt": _README,
            "README.roboflow.txt": _README,
            "data.yaml": "train: ../train/images\nval: ../valid/images\ntest: ../test/images\n\nnc: 2\n"
            "names: ['cat', 'dog']\n\nroboflow:\n  workspace: w\n  project: pets\n  version: 1\n  license: MIT\n",
            **{f"{split}/images/a{_HASH}.jpg": IMAGE for split in _FOLDERS},
            **{f"{split}/labels/a{_HASH}.txt": ROWS for split in _FOLDERS},
        },
        {
            split: [f"{folder}/images/a{_HASH}.jpg"]
            for split, folder in (("train",) * 2, ("val", "valid"), ("test",) * 2)
        },
    ),
    "Kaggle, VOC": (
        {
            "annotations/pets0.xml": xml("pets0.png", "images"),
            "annotations/pets1.xml": xml("pets1.png", "images"),
            "images/pets0.png": IMAGE,
            "images/pets1.png": IMAGE,
        },
        {"train": ["images/pets0.png", "images/pets1.png"]},
    ),
    "VOCdevkit": (
        {f"VOC2007/{path}": content for path, content in _VOC.items()},
        {split: [f"VOC2007/JPEGImages/00000{i}.jpg"] for i, split in enumerate(_SPLITS)},
    ),
    "a folder around VOCdevkit": (
        {f"VOCdevkit/VOC2007/{path}": content for path, content in _VOC.items()},
        {split: [f"JPEGImages/00000{i}.jpg"] for i, split in enumerate(_SPLITS)},
    ),
    "COCO2017": (
        {
            "annotations/instances_train2017.json": coco("000000000009.jpg"),
            "annotations/instances_val2017.json": coco("000000000139.jpg"),
            "annotations/captions_train2017.json": '{"info": {}, "images": [], "annotations": []}',
            "annotations/captions_val2017.json": '{"info": {}, "images": [], "annotations": []}',
            "annotations/person_keypoints_train2017.json": coco("000000000009.jpg"),
            "annotations/person_keypoints_val2017.json": coco("000000000139.jpg"),
            "train2017/000000000009.jpg": IMAGE,
            "val2017/000000000139.jpg": IMAGE,
        },
        {"train": ["train2017/000000000009.jpg"], "val": ["val2017/000000000139.jpg"]},
    ),
    "Ultralytics, coco8": (
        {
            "README.md": "# COCO8\n",
            "LICENSE": "AGPL\n",
            "images/train/000000000009.jpg": IMAGE,
            "images/val/000000000036.jpg": IMAGE,
            "labels/train/000000000009.txt": ROWS,
            "labels/val/000000000036.txt": ROWS,
            "coco8.yaml": "# COCO8\npath: coco8 # dataset root dir\ntrain: images/train # 4 images\nval: images/val\n"
            "test: # test images (optional)\n\nnames:\n  0: cat\n  1: dog\n\ndownload: https://example.com/coco8.zip\n",
        },
        {"train": ["images/train/000000000009.jpg"], "val": ["images/val/000000000036.jpg"]},
    ),
    "labelImg, YOLO": (
        {"a.jpg": IMAGE, "a.txt": ROWS, "b.jpg": IMAGE, "b.txt": ROWS, "classes.txt": "cat\ndog\n"},
        {"train": ["a.jpg", "b.jpg"]},
    ),
    "labelImg, YOLO apart": (
        {"images/a.jpg": IMAGE, "labels/a.txt": ROWS, "labels/classes.txt": "cat\ndog\n"},
        {"train": ["images/a.jpg"]},
    ),
    "Label Studio, YOLO": (
        {
            "classes.txt": "cat\ndog\n",
            "notes.json": json.dumps(
                {
                    "categories": [{"id": i, "name": name} for i, name in enumerate(CLASSES)],
                    "info": {"year": 2024, "version": "1.0", "contributor": "Label Studio"},
                }
            ),
            "images/0a1b2c3d-a.jpg": IMAGE,
            "labels/0a1b2c3d-a.txt": ROWS,
        },
        {"train": ["images/0a1b2c3d-a.jpg"]},
    ),
    "Label Studio, COCO": (
        {"result.json": coco("images/0a1b2c3d-a.jpg", first=0), "images/0a1b2c3d-a.jpg": IMAGE},
        {"train": ["images/0a1b2c3d-a.jpg"]},
    ),
    "Label Studio, VOC": (
        {"Annotations/0a1b2c3d-a.xml": xml("0a1b2c3d-a"), "images/0a1b2c3d-a.jpg": IMAGE},
        {"train": ["images/0a1b2c3d-a.jpg"]},
    ),
    "CVAT, YOLO 1.1": (
        {
            "obj.data": "classes = 2\ntrain = data/train.txt\nnames = data/obj.names\nbackup = backup/\n",
            "obj.names": "cat\ndog\n",
            "train.txt": "data/obj_train_data/a.jpg\ndata/obj_train_data/b.jpg\n",
            "obj_train_data/a.jpg": IMAGE,
            "obj_train_data/a.txt": ROWS,
            "obj_train_data/b.jpg": IMAGE,
            "obj_train_data/b.txt": ROWS,
        },
        {"train": ["obj_train_data/a.jpg", "obj_train_data/b.jpg"]},
    ),
    "CVAT, COCO": (
        {"annotations/instances_default.json": coco("a.jpg"), "images/default/a.jpg": IMAGE},
        {"train": ["images/default/a.jpg"]},
    ),
    "CVAT, VOC": (
        {
            "labelmap.txt": "# label:color_rgb:parts:actions\nbackground:0,0,0::\ncat:1,1,1::\ndog:2,2,2::\n",
            "ImageSets/Main/default.txt": "a\n",
            "Annotations/a.xml": xml("a.jpg"),
            "JPEGImages/a.jpg": IMAGE,
        },
        {"default": ["JPEGImages/a.jpg"]},
    ),
    "Darknet": (
        {
            "obj.data": "classes= 2\ntrain  = data/train.txt\nvalid  = data/test.txt\nnames = data/obj.names\n",
            "data/obj.names": "cat\ndog\n",
            "data/train.txt": "data/obj/a.jpg\n",
            "data/test.txt": "data/obj/b.jpg\n",
            "data/obj/a.jpg": IMAGE,
            "data/obj/a.txt": ROWS,
            "data/obj/b.jpg": IMAGE,
            "data/obj/b.txt": ROWS,
        },
        {"train": ["data/obj/a.jpg"], "val": ["data/obj/b.jpg"]},
    ),
    "YOLOv5, folders of splits": (
        {
            "train/images/a.jpg": IMAGE,
            "train/labels/a.txt": ROWS,
            "val/images/b.jpg": IMAGE,
            "val/labels/b.txt": ROWS,
            "classes.txt": "cat\ndog\n",
        },
        {"train": ["train/images/a.jpg"], "val": ["val/images/b.jpg"]},
    ),
    "the pets of Oxford": (
        {
            "images/a.jpg": IMAGE,
            "annotations/xmls/a.xml": xml("a.jpg"),
            "annotations/list.txt": "a 1 1 1\n",
        },
        {"train": ["images/a.jpg"]},
    ),
    "Ultralytics, a configuration beside its folder": (
        {
            "two.yaml": "path: two\ntrain: images/train\nval: images/val\ntest:\nnames:\n  0: cat\n  1: dog\n",
            **{f"two/images/{split}/a.jpg": IMAGE for split in ("train", "val")},
            **{f"two/labels/{split}/a.txt": ROWS for split in ("train", "val")},
        },
        {split: [f"two/images/{split}/a.jpg"] for split in ("train", "val")},
    ),
    "Ultralytics, lists": (
        {
            "data.yaml": "path: .\ntrain: train.txt\nval: val.txt\nnames: {0: cat, 1: dog}\n",
            **{f"images/{name}.jpg": IMAGE for name in "ab"},
            **{f"labels/{name}.txt": ROWS for name in "ab"},
            "train.txt": "./images/a.jpg\n",
            "val.txt": "./images/b.jpg\n",
        },
        {"train": ["images/a.jpg"], "val": ["images/b.jpg"]},
    ),
    "VOC, folders of splits": (
        {
            "train/annotations/a.xml": xml("a.jpg"),
            "train/images/a.jpg": IMAGE,
            "test/annotations/b.xml": xml("b.jpg"),
            "test/images/b.jpg": IMAGE,
        },
        {"train": ["train/images/a.jpg"], "test": ["test/images/b.jpg"]},
    ),
    "MMDetection, COCO": (
        {
            "annotations/train.json": coco("a.jpg"),
            "annotations/val.json": coco("b.jpg"),
            "train/a.jpg": IMAGE,
            "val/b.jpg": IMAGE,
        },
        {"train": ["train/a.jpg"], "val": ["val/b.jpg"]},
    ),
}
