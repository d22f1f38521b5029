"""The table of docs/sources.md: its commands, on folders that look as these data sets do when they are downloaded."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tensorstore_ds as tsds
from labelling_files import Files, write
from small_stores import tsds as command
from stores import png_bytes

ROOT = Path(__file__).parents[1]
COMMANDS = re.findall(r"^\| .+ \| `(tsds convert [^`]+)` \|", (ROOT / "docs/sources.md").read_text("utf-8"), re.M)
PIXELS = png_bytes(np.random.default_rng(0).integers(0, 256, (12, 16, 3), np.uint8))
MASK = png_bytes(np.arange(12 * 16, dtype=np.uint8).reshape(12, 16) % 3)
BOX = "<bndbox><xmin>3</xmin><ymin>4</ymin><xmax>9</xmax><ymax>10</ymax></bndbox>"


def images(*names: str) -> dict[str, str | bytes]:
    return dict.fromkeys(names, PIXELS)


def xml(name: str) -> str:
    return f"<annotation><object><name>{name}</name>{BOX}</object></annotation>"


def lines(header: str, *rows: str) -> str:
    return "\n".join([header, *rows, ""])


def coco(*names: str) -> str:
    described = [{"id": i, "file_name": name, "width": 16, "height": 12} for i, name in enumerate(names)]
    boxes = [{"id": 5, "image_id": 0, "category_id": 3, "bbox": [1, 2, 3, 4], "area": 12, "iscrowd": 0}]
    return json.dumps({"images": described, "annotations": boxes, "categories": [{"id": 3, "name": "car"}]})


def ibug(*names: str) -> str:
    part = "".join(f"<part name='{i:02d}' x='{i % 9}' y='5'/>" for i in range(68))
    some = "".join(
        f"<image file='{name}'><box top='1' left='1' width='9' height='9'>{part}</box></image>" for name in names
    )
    return f"<dataset><images>{some}</images></dataset>"


#: By the first argument of a command: files, and what is expected of the store: rows, and classes of a field.
DATA_SETS: dict[str, tuple[Files, dict[str, int], str, Sequence[str]]] = {
    "ILSVRC/Data/CLS-LOC": (
        images("train/n01/n01_1.JPEG", "train/n02/n02_1.JPEG", "val/val_1.JPEG", "test/test_1.JPEG"),
        {"train": 2, "val": 1, "test": 1}, "label", ["n01", "n02"],
    ),
    "tiny-imagenet-200": (
        {
            **images("train/n01/images/n01_0.JPEG", "train/n02/images/n02_0.JPEG", "val/images/val_0.JPEG"),
            **images("test/images/test_0.JPEG"), "train/n01/n01_boxes.txt": "n01_0.JPEG\t0\t1\t6\t4\n",
            "val/val_annotations.txt": "val_0.JPEG\tn01\t0\t3\t4\t6\n", "wnids.txt": "n01\nn02\n",
        },
        {"train": 2, "val": 1, "test": 1}, "label", ["n01", "n02"],
    ),
    "places365": (
        {
            **images("data_256/a/airfield/01.jpg", "data_256/b/bar/01.jpg", "val_256/Places365_val_01.jpg"),
            "places365_train_standard.txt": "/a/airfield/01.jpg 0\n/b/bar/01.jpg 1\n",
            "places365_val.txt": "Places365_val_01.jpg 0\n", "categories_places365.txt": "/a/airfield 0\n/b/bar 1\n",
        },
        {"train": 2, "val": 1}, "label", ["0", "1"],
    ),
    "stanford-dogs/images/Images": (
        images("n02085620-Chihuahua/n02085620_1.jpg", "n02085782-Japanese_spaniel/n02085782_1.jpg"),
        {"train": 2}, "label", ["n02085620-Chihuahua", "n02085782-Japanese_spaniel"],
    ),
    "GTSRB": (
        {
            **images("Final_Training/Images/00000/0.ppm", "Final_Training/Images/00001/0.ppm"),
            **images("Final_Test/Images/0.ppm"), "Final_Test/Images/GT-final_test.csv": "Filename;Width\n0.ppm;16\n",
        },
        {"training": 2, "test": 1}, "label", ["00000", "00001"],
    ),
    "cifar-10": (
        {
            **images("train/1.png", "train/2.png", "test/1.png", "test/2.png"),
            "trainLabels.csv": lines("id,label", "1,frog", "2,cat"),
            "sampleSubmission.csv": lines("id,label", "1,cat", "2,cat"),
        },
        {"train": 2}, "label", ["cat", "frog"],
    ),
    "dogs-vs-cats/train": (
        images("cat.0.jpg", "dog.0.jpg"), {"train": 2}, "label", ["cat", "dog"]
    ),
    "aptos2019": (
        {
            **images("train_images/0a.png", "train_images/0b.png", "train_images/0c.png", "test_images/1a.png"),
            "train.csv": lines("id_code,diagnosis", "0a,2", "0b,1", "0c,0"), "test.csv": lines("id_code", "1a"),
            "sample_submission.csv": lines("id_code,diagnosis", "1a,0"),
        },
        {"train": 3, "test": 1}, "label", ["0", "1", "2"],
    ),
    "ham10000": (
        {
            **images("HAM10000_images_part_1/ISIC_1.jpg", "HAM10000_images_part_2/ISIC_2.jpg"),
            "HAM10000_metadata.csv": lines("lesion_id,image_id,dx,sex", "H_1,ISIC_1,nv,male", "H_2,ISIC_2,bkl,male"),
        },
        {"train": 2}, "label", ["bkl", "nv"],
    ),
    "celeba/list_attr_celeba.txt": (
        {
            **images("img_align_celeba/000001.jpg", "img_align_celeba/000002.jpg"),
            "list_attr_celeba.txt": lines("2", "Bald Big_Nose Male", "000001.jpg -1 -1  1", "000002.jpg  1  1  1"),
            "list_eval_partition.txt": "000001.jpg 0\n000002.jpg 1\n",
        },
        {"train": 2}, "labels", ["Bald", "Big_Nose", "Male"],
    ),
    "fairface": (
        {
            **images("train/1.jpg", "train/2.jpg", "val/1.jpg"),
            "fairface_label_train.csv": lines("file,age,race", "train/1.jpg,20-29,Black", "train/2.jpg,0-2,Indian"),
            "fairface_label_val.csv": lines("file,age,race", "val/1.jpg,3-9,Black"),
        },
        {"train": 2, "val": 1}, "label", ["Black", "Indian"],
    ),
    "isic2019/ISIC_2019_Training_GroundTruth.csv": (
        {
            **images("ISIC_2019_Training_Input/ISIC_1.jpg", "ISIC_2019_Training_Input/ISIC_2.jpg"),
            "ISIC_2019_Training_GroundTruth.csv": lines("image,MEL,NV,BCC", "ISIC_1,0.0,1.0,0.0", "ISIC_2,1.0,0.0,0.0"),
            "ISIC_2019_Training_Metadata.csv": lines("image,age_approx,sex", "ISIC_1,55.0,female", "ISIC_2,1,male"),
        },
        {"train": 2}, "label", ["MEL", "NV", "BCC"],
    ),
    "nih/Data_Entry_2017.csv": (
        {
            **images("images_001/images/1_000.png", "images_002/images/2_000.png"), "test_list.txt": "2_000.png\n",
            "Data_Entry_2017.csv": lines(
                "Image Index,Finding Labels,Patient ID,", "1_000.png,Edema|Mass,1,", "2_000.png,Mass,2,"
            ),
        },
        {"train": 2}, "labels", ["Edema", "Mass"],
    ),
    "CheXpert-v1.0-small": (
        {
            **images("train/patient1/view1.jpg", "train/patient2/view1.jpg", "valid/patient3/view1.jpg"),
            "train.csv": lines(
                "Path,Sex,No Finding,Edema", "CheXpert-v1.0-small/train/patient1/view1.jpg,Male,1.0,",
                "CheXpert-v1.0-small/train/patient2/view1.jpg,Female,,-1.0",
            ),
            "valid.csv": lines(
                "Path,Sex,No Finding,Edema", "CheXpert-v1.0-small/valid/patient3/view1.jpg,Male,0.0,1.0"
            ),
        },
        {"train": 2, "valid": 1}, "labels", ["No Finding", "Edema"],
    ),
    "coco": (
        {
            **images("train2017/1.jpg", "val2017/2.jpg"), "annotations/instances_train2017.json": coco("1.jpg"),
            "annotations/instances_val2017.json": coco("2.jpg"),
        },
        {"train": 1, "val": 1}, "objects", ["car"],
    ),
    "VOCdevkit": (
        {
            **images(*(f"VOC2012/JPEGImages/2007_0{i}.jpg" for i in range(3))),
            **{f"VOC2012/Annotations/2007_0{i}.xml": xml("sofa") for i in range(3)},
            "VOC2012/ImageSets/Main/train.txt": "2007_00\n", "VOC2012/ImageSets/Main/val.txt": "2007_01\n2007_02\n",
            "VOC2012/ImageSets/Main/trainval.txt": "2007_00\n2007_01\n2007_02\n",
        },
        {"train": 1, "val": 2}, "objects", ["sofa"],
    ),
    "open-images": (
        {
            **images("train/0a.jpg", "validation/0b.jpg"),
            "oidv6-train-annotations-bbox.csv": lines(
                "ImageID,Source,LabelName,Confidence,XMin,XMax,YMin,YMax,XClick1X,XClick1Y",
                "0a,xclick,/m/0c,1,0.1,0.5,0.2,0.6,0.3,0.2", "0a,xclick,/m/0k,1,0.1,0.5,0.2,0.6,0.3,0.2",
            ),
            "validation-annotations-bbox.csv": lines(
                "ImageID,Source,LabelName,Confidence,XMin,XMax,YMin,YMax", "0b,xclick,/m/0k,1,0.1,0.5,0.2,0.6"
            ),
        },
        {"train": 1, "validation": 1}, "objects", ["/m/0c", "/m/0k"],
    ),
    "wider/wider_face_split/wider_face_train_bbx_gt.txt": (
        {
            **images("../WIDER_train/images/0--Parade/0_Parade_1.jpg", "../WIDER_train/images/1--Riot/1_Riot_2.jpg"),
            "wider_face_train_bbx_gt.txt": "0--Parade/0_Parade_1.jpg\n1\n3 4 5 6 0 0 0 0 0 0 \n"
            "1--Riot/1_Riot_2.jpg\n2\n3 4 5 6 0 0 0 0 0 0 \n1 1 5 6 2 0 0 0 1 0 \n",
        },
        {"train": 2}, "objects", [],
    ),
    "sku110k/annotations": (
        {
            "annotations_train.csv": "train_0.jpg,1,2,9,10,object,16,12\ntrain_0.jpg,3,4,9,10,object,16,12\n",
            "annotations_val.csv": "val_0.jpg,1,2,9,10,object,16,12\nval_0.jpg,3,4,9,10,object,16,12\n",
            **images("../images/train_0.jpg", "../images/val_0.jpg"),
        },
        {"train": 1, "val": 1}, "objects", ["object"],
    ),
    "oxford-pets/images": (
        {
            **images("Abyssinian_1.jpg", "great_pyrenees_1.jpg"), "Abyssinian_100.mat": "x",
            "../annotations/list.txt": "Abyssinian_1 1 1 1\n", "../annotations/xmls/Abyssinian_1.xml": xml("cat"),
            "../annotations/trimaps/Abyssinian_1.png": MASK,
        },
        {"train": 2}, "label", ["Abyssinian", "great_pyrenees"],
    ),
    "ibug_300W_large_face_landmark_dataset": (
        {
            **images("helen/trainset/1.jpg", "lfpw/testset/2.jpg"),
            "labels_ibug_300W_train.xml": ibug("helen/trainset/1.jpg"),
            "labels_ibug_300W_test.xml": ibug("lfpw/testset/2.jpg"),
            "labels_ibug_300W.xml": ibug("helen/trainset/1.jpg", "lfpw/testset/2.jpg"),
        },
        {"train": 1, "test": 1}, "objects", [],
    ),
    "ADEChallengeData2016": (
        {
            **images("images/training/ADE_train_1.jpg", "images/validation/ADE_val_1.jpg"),
            "annotations/training/ADE_train_1.png": MASK, "annotations/validation/ADE_val_1.png": MASK,
        },
        {"training": 1, "validation": 1}, "mask", ["0", "1", "2"],
    ),
    "carvana": (
        {**images("train/a1.jpg", "train/a2.jpg"), "train_masks/a1_mask.gif": MASK, "train_masks/a2_mask.gif": MASK},
        {"train": 2}, "mask", ["0", "1", "2"],
    ),
}  # fmt: skip


def test_every_data_set_of_the_page_is_tried() -> None:
    assert [shlex.split(line)[2] for line in COMMANDS] == list(DATA_SETS)


@pytest.mark.parametrize("line", COMMANDS)
def test_the_command_for(line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    _, _, source, out, *options = shlex.split(line)
    files, rows, field, classes = DATA_SETS[source]
    (folder := Path(source).parent if source.endswith((".csv", ".txt")) else Path(source)).mkdir(parents=True)
    write(folder, files)
    done: Any = command("convert", source, out, "--workers", 0, "--size", 8, *options)
    assert done.exit_code == 0, done.output
    store = tsds.open(out)
    assert {name: len(store[name]) for name in store} == rows
    assert list(store[next(iter(rows))].fields[field].classes) == classes  # type: ignore[attr-defined]
    assert tsds.verify(store.path) == []
