"""Class folders, split folders and flat folders."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import pytest

import tensorstore_ds
from labelling_files import Case, Found, Has, blank, case, check, found, refused, write
from tensorstore_ds.errors import OptionError
from tensorstore_ds.sources import open_source


def make(root: Path, *names: str) -> Path:
    return write(root, blank(*names))


def scan(root: Path, *names: str, **options: object) -> Found:
    return found(make(root, *names), "folders", **options)


def images(*names: str, at: str = "", options: dict[str, object] | None = None, **expected: object) -> Case:
    return case(blank(*names), at, options, **expected)


NO_LABELS = "no labels: 2 images without class folders or annotations. "
JPEGS = ("set/JPEGImages/a.png", "set/JPEGImages/b.png")
PATTERN = r"([a-z]+)_\d+\.png$"

CASES = {
    "class folders": images(
        "dog/2.png", "dog/10.JPG", "cat/a b.jpeg", "cat/line\nbreak.png", "狗/图.webp", classes=["cat", "dog", "狗"],
        keys={"train": ["cat/a b.jpeg", "cat/line\nbreak.png", "dog/10.JPG", "dog/2.png", "狗/图.webp"]},
        labels={"train": [0, 0, 1, 1, 2]},
        images=["cat/a b.jpeg", "cat/line\nbreak.png", "dog/10.JPG", "dog/2.png", "狗/图.webp"],
    ),
    "split folders share their classes": images(
        "Train/cat/1.png", "Train/dog/2.png", "val/cat/3.png", "valid/ant/4.png", "test/bee/",
        classes=["ant", "cat", "dog"], labels={"train": [1, 2], "val": [1], "valid": [0]},
        keys={"train": ["Train/cat/1.png", "Train/dog/2.png"], "val": ["val/cat/3.png"], "valid": ["valid/ant/4.png"]},
    ),
    "empty class folders keep their class": images(
        "train/cat/1.png", "train/eel/", "test/cat/2.png", "test/owl/", "test/.cache/", classes=["cat", "eel", "owl"]
    ),
    "a folder of other files is no class": images(
        "cat/1.png", "scripts/run.py", "README.md", "Licence.txt", "LICENSE", "cat/Thumbs.db", classes=["cat"],
        left_out=[("scripts/run.py", "not-read")],
    ),
    "JPEG files of browsers": images("cat/1.jfif", "dog/2.jpg", labels={"train": [0, 1]}, left_out=[]),
    "flat": images(
        "2.png", "1.png", "empty/", fields=[], keys={"train": ["1.png", "2.png"]}, labels={"train": [None] * 2}
    ),
    "flat splits": images(
        "train/1.png", "test/2.png", fields=[], keys={"test": ["test/2.png"], "train": ["train/1.png"]},
        labels={"test": [None], "train": [None]},
    ),
    "folders below a class": images(
        "cat/1.png", "cat/young/2.png", "cat/young/tiny/3.png", "dog/4.png", classes=["cat", "dog"],
        labels={"train": [0, 0, 0, 1]},
    ),
    "a class named like a split": images("train/1.png", "bus/2.png", classes=["bus", "train"], notes=[]),
    "images beside class folders": images(
        "cat/1.png", "montage.png", "dog/2.png", problems=[("montage.png", "no-annotation")],
        keys={"train": ["cat/1.png", "dog/2.png"]},
    ),
    "a split without class folders": images(
        "train/cat/1.png", "train/dog/5.png", "test/2.png", "test/3.png", "4.png", classes=["cat", "dog"],
        problems=[("4.png", "no-annotation")], labels={"train": [0, 1], "test": [-1, -1]},
        keys={"train": ["train/cat/1.png", "train/dog/5.png"], "test": ["test/2.png", "test/3.png"]},
    ),
    "the same within a folder of its name": images(
        "train/train/cat/1.jpg", "train/train/dog/1.jpg", "test/test/1.jpg", labels={"train": [0, 1], "test": [-1]}
    ),
    "images beside the class folders of a split": images(
        "train/cat/1.png", "train/2.png", "test/cat/3.png", "test/4.png",
        problems=[("test/4.png", "no-annotation"), ("train/2.png", "no-annotation")],
        keys={"train": ["train/cat/1.png"], "test": ["test/cat/3.png"]},
    ),
    "labels from the names of files": images(
        "train/a/cat_1.png", "train/dog_2.png", "test/dog_3.png", "test/x.png", "top_1.png",
        options={"label_from": PATTERN}, classes=["cat", "dog"], labels={"test": [1], "train": [0, 1]},
        keys={"test": ["test/dog_3.png"], "train": ["train/a/cat_1.png", "train/dog_2.png"]},
        problems=[("test/x.png", "no-label"), ("top_1.png", "no-annotation")],
    ),
    **{
        f"the group of {expression}": images(
            "cat1.png", "dog2.png", options={"label_from": expression}, classes=expected
        )
        for expression, expected in (
            ("^[a-z]+", ["cat", "dog"]), (r"([a-z]+)(\d)", ["cat", "dog"]), (r"(?P<n>[a-z]+)(?P<label>\d)", ["1", "2"])
        )
    },
    "no match": images("a.png", options={"label_from": "x_"}, refused="no-label"),
    # notes
    "no labels": images(
        *JPEGS, at="set/JPEGImages",
        notes=[
            f"{NO_LABELS}For training, put the images of each class into a separate folder, or pass `label_from`."
        ],
    ),
    "no labels, but annotations beside": images(
        *JPEGS, "set/Annotations/", at="set/JPEGImages",
        notes=[
            Has(NO_LABELS, "/set/Annotations may have the annotations: convert ", "/set for images and annotations.")
        ],
    ),
    "annotations beside a class": images(  # such as the folder of images of a VOC data set, which is no class
        "JPEGImages/1.jpg", "Annotations/1.xml", fields=[],
        notes=[Has("/Annotations may have the annotations: name their `format`"), Has("JPEGImages is not read as")],
    ),
    "folders around class folders, or all images, of a split": images(
        "Final_Training/Images/00000/1.png", "Final_Training/Images/00001/1.png", "Final_Training/Images/empty/",
        "Final_Test/Images/1.png", classes=["00000", "00001", "empty"], labels={"test": [-1], "training": [0, 1]},
        notes=[
            "Final_Test/Images is not read as a class, because it is the only folder there.",
            "the folders Final_Test, Final_Training are read as the splits test, training.",
        ],
    ),
    "splits whose names differ by this word alone": images(
        "asl_train/asl_train/A/1.jpg", "asl_train/asl_train/B/1.jpg", "asl_test/asl_test/A.jpg", classes=["A", "B"],
        labels={"train": [0, 1], "test": [-1]}, notes=[Has("asl_test, asl_train are read as the splits test, train")],
    ),
    "splits in several folders, as of CrowdHuman": images(
        "Crowd_train01/Images/1.jpg", "Crowd_train02/Images/2.jpg", "Crowd_val/Images/3.jpg", fields=[],
        keys={"train": ["Crowd_train01/Images/1.jpg", "Crowd_train02/Images/2.jpg"], "val": ["Crowd_val/Images/3.jpg"]},
        notes=[
            Has(NO_LABELS.replace("2", "3")), Has("Crowd_train01/Images is not read as a class"),
            Has("Crowd_train01, Crowd_train02, Crowd_val are read as the splits train, train, val"),
        ],
    ),
    "folders of splits that share classes": images(
        "a_train/cat/1.jpg", "b_train/cat/2.jpg", "c_val/cat/3.jpg", labels={"train": [0, 0], "val": [0]}
    ),
    "a folder of all images of a split": images("train_images/1.jpg", "train_images/2.jpg", fields=[]),
    "a plain name that is a class of another split": images(
        "train/photos/1.png", "val/photos/2.png", "val/drawings/3.png", classes=["drawings", "photos"],
        labels={"train": [1], "val": [0, 1]},
    ),
    "images above and in folders of a folder with a plain name": images(
        "images/1.png", "images/cat/2.png", classes=["images"], labels={"train": [0, 0]}
    ),
    "a list of a split beside class folders": images(
        "train/n01/images/1.png", "train/n01/n01_boxes.txt", "train/n02/images/2.png", "train/n02/n02_boxes.txt",
        "val/images/3.png", "val/val.txt", classes=["n01", "n02"], labels={"train": [0, 1], "val": [-1]},
    ),
    **{
        f"no notes: {', '.join(names)}": images(*names, notes=[])
        for names in (
            ["cat/a.png"],
            ["cat/1.jpg", "labels/2.jpg", "notes/1.txt"],
            ["train/cat/1.jpg", "test/cat/1.jpg"],
            ["001/1.jpg", "002/1.jpg"],
            ["train/cat/images/1.jpg", "train/dog/images/2.jpg", "val/cat/1.jpg"],
            ["cat/2020/1.jpg", "cat/2021/2.jpg", "dog/train/3.jpg"],
            ["train/1.jpg", "bus/1.jpg"],
            ["cat/1.jpg", "images/1.jpg"],
            ["with_mask/1.jpg", "without_mask/1.jpg"],
        )
    },
    **{
        f"a note: {', '.join(names)}": images(*names, notes=[Has(said)])
        for said, names in {
            "UTKFace. If UTKFace is no class, convert that folder alone": ["UTKFace/1.jpg", "labels.md"],
            "jpg, png. If jpg is no class": ["jpg/1.jpg", "png/2.jpg"],
            "all/no: in the class folder all is one with the name of another class. If all is no class": [
                "yes/1.jpg", "no/1.jpg", "all/yes/1.jpg", "all/no/1.jpg"
            ],
            "cars_test, cars_train, query. If these are splits": [
                "cars_train/1.jpg", "cars_test/1.jpg", "query/2.jpg"
            ],
            "eval, train. If these are splits": ["train/1.jpg", "eval/2.jpg"],
            "depth has files of the same names as rgb": ["rgb/1.png", "rgb/2.png", "depth/1.png", "depth/2.png"],
            "Approved has files of the same names as Stills: if they are masks": [
                "Stills/1.png", "Stills/2.png", "Approved/1_L.png", "Approved/2_L.png"
            ],
            "in 2 folders, such as cat: names of folders are not": [
                "animal/cat/1.jpg", "animal/dog/2.jpg", "car/3.jpg"
            ],
            "test, train in the class folders are not read as splits": [
                "cat/train/1.jpg", "cat/test/2.jpg", "dog/train/1.jpg"
            ],
        }.items()
    },
    "a table beside images": images("1.jpg", "t.xlsx", notes=[Has("no labels"), Has("t.xlsx is not read. It may be")]),
    "a table beside one class": images(
        "photos7x/1.jpg", "table.csv", notes=[Has("the classes are"), Has("table.csv is not read. It may be")]
    ),
    "masks below class folders, as of DUTS": images(
        "TR/TR-Image/1.png", "TR/TR-Mask/1.png", "TE/TE-Image/2.png", "TE/TE-Mask/2.png",
        notes=[Has("in 4 folders"), Has("TE/TE-Mask has files of the same names as TE/TE-Image: if they are masks")],
    ),
    "that folder alone": images("UTKFace/1.jpg", "labels.mat", at="UTKFace", fields=[]),
    "a folder of all images": images(
        "jpg/1.jpg", "labels.mat", fields=[],
        notes=[
            Has("no labels: 1 images"), "jpg is not read as a class, because it is the only folder there.",
            Has("labels.mat is not read. It may be annotations"),
        ],
    ),
    "a folder of all images of each split": images(
        "training/image_2/1.png", "testing/image_2/2.png", fields=[],
        notes=[Has("no labels: 2 images"), Has("testing/image_2 is not read as a class")],
    ),
    # refused
    **{
        f"refused: {', '.join(names)}": images(*names, refused=reason)
        for names, reason in (
            (["cat/"], "empty-source"),
            (["cat/note.txt"], "empty-source"),
            (["cat/1.txt", "cat/head.nii.gz"], ("empty-source", "cat/head.nii.gz is a volume.* with nnU-Net or MONAI")),
            (["Dog/1.png", "dog/2.png"], "class-case"),
            (["train/cat/1.png", "Train/cat/2.png"], "split-name"),
            (["train/cat/1.png", "test/cat/2.png", "extra/cat/3.png"], "split-name"),
            (["seg_train/seg_train/sea/1.jpg", "seg_test/seg_test/sea/1.jpg", "seg_pred/seg_pred/1.jpg"],
             ("split-name", r"found seg_test beside seg_pred\. Move seg_pred away")),
            (["mnist/train/1/1.png", "mnist/test/1/2.png"], "unknown-format"),
        )
    },
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_what_is_read(name: str, tmp_path: Path) -> None:
    check(CASES[name], tmp_path, "folders")


def test_names_that_are_not_utf8_are_problems(tmp_path: Path) -> None:
    make(tmp_path, "cat/1.png")
    folder = os.fsencode(tmp_path)
    Path(os.fsdecode(folder + b"/d\xf6g")).mkdir()
    for name in (b"/cat/\xff.png", b"/d\xf6g/2.png"):
        Path(os.fsdecode(folder + name)).write_bytes(b"")
    got = scan(tmp_path)
    assert (got.classes, got.keys, got.labels) == (["cat"], {"train": ["cat/1.png"]}, {"train": [0]})
    assert [reason for _, reason in got.problems] == ["name-encoding"] * 2
    assert all(each.isascii() for each in got.said)


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ([], r"found none in this folder or below \(0 other files\). Name a folder that holds images"),
        (["cat/", "dog/a.docx"], r"found none in this folder or below \(1 other files\)"),
        (["batches/data_batch_1"], "pass its data set to tensorstore_ds.convert"),
        (["train.zip", "annotations.zip"], "Unpack the archives in {root}"),
        (["b/train.zip", "a.txt"], r"\(2 other files\). Name the archive {root}/b/train.zip, or unpack it.$"),
        (["a/b/c/train/cat/1.png", "docs/a.docx"], "found the first ones in a/b/c/train/cat. Convert {root}/a/b/c."),
        (["test/images/cat/1.png"], "found the first ones in test/images/cat. Convert {root}/test/images."),
        (["a/b/c/cat/1.png", "docs/a.docx"], "found the first ones in a/b/c/cat. Convert {root}/a/b/c."),
        (  # WIDER FACE
            [f"WIDER_{split}/images/0--Parade/{split}.jpg" for split in ("train", "val")],
            "There are more, such as WIDER_.*jpg: the `format` folders reads all. Or ",
        ),
        (
            ["SUN397/a/abbey/1.jpg", "SUN397/b/bar/2.jpg", "l/1.txt"],
            "There are more, such as .*: convert {root}/SUN397. Or",
        ),
        (
            ["images/10k/train/1.jpg", "labels/sem_seg/m/train/1.png"],
            "Convert {root}/images/10k. That does not read the files beside it, such as labels/sem_seg/m/train/1.png",
        ),
        *(  # Food-101 has the lists of its splits beside the folder
            (names, f"Convert {{root}}/{inner}. That does not read the files beside it, such as {beside}.$")
            for names, inner, beside in (
                (["images/cat/1.jpg", "images/dog/2.jpg", "meta/train.txt", "README.txt"], "images", "meta/train.txt"),
                (["a/b/c/cat/1.png", "labels/x.mat"], "a/b/c", "labels/x.mat"),
            )
        ),
        (["images/cat/1.jpg", "images/dog/2.jpg", "README.txt", "LICENSE"], "Convert {root}/images.$"),
    ],
)
def test_where_no_format_is_recognized_the_user_learns_where_images_are(
    tmp_path: Path, names: list[str], message: str
) -> None:
    refused(make(tmp_path, *names), match=message.format(root=tmp_path))
    if advised := message.format(root=tmp_path).partition("Convert ")[2]:
        inner = open_source(Path(advised.partition(". ")[0].removesuffix("$").removesuffix(".")))
        assert inner.name == "folders" and inner.contents().splits


@pytest.mark.parametrize("names", [["a/b/c/train/cat/1.png"], ["a/b/c/cat/1.png", "a/b/c/dog/1.png"]])
def test_folders_around_a_data_set_are_no_part_of_it(tmp_path: Path, names: list[str]) -> None:
    assert open_source(make(tmp_path, *names)).path == tmp_path / "a/b/c"


def test_options_that_do_not_go_together(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=r"`label_from`: expected a regular expression, found '\('"):
        scan(tmp_path, "a.png", label_from="(")
    write(tmp_path, {"a.png": b"", "a.xml": "<annotation></annotation>"})
    with pytest.raises(OptionError, match="`multi_label`: expected class folders or a list, found voc"):
        tensorstore_ds.convert(tmp_path, tmp_path.with_suffix(".tsds"), multi_label=True)


def test_files_that_may_be_annotations_are_told(tmp_path: Path) -> None:
    """As of DeepPCB: a text file of boxes for each pair of images."""
    names = [f"{group}/{i}_{kind}.jpg" for group in "ab" for i in range(3) for kind in ("temp", "test")]
    assert scan(tmp_path, *names).notes == []
    got = scan(tmp_path, *(f"{group}/not/{i}.txt" for group in "ab" for i in range(3)))
    assert got.notes == [Has("6 .txt files, such as ", "They may be annotations")]
    write(tmp_path / "export", blank("cat/1.jpg", "dog/2.jpg", "README.dataset.txt", "README.roboflow.txt"))
    assert found(tmp_path / "export").notes == []


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
def test_a_pipe_is_said_to_be_none(tmp_path: Path) -> None:
    os.mkfifo(make(tmp_path, "cat/a.png", "cat/note.xyz") / "cat" / "pipe.jpg")
    assert scan(tmp_path).said == ["cat/note.xyz: not read.", "cat/pipe.jpg: not read: no regular file."]


def test_one_image_in_several_class_folders(tmp_path: Path) -> None:
    files = {"train/cat/1.png": b"an image", "train/dog/1.png": b"an image", "train/emu/1.png": b"another of that name"}
    write(tmp_path, {**files, "train/emu/3.png": b"x", **blank("val/cat/", "val/dog/2.png", "val/emu/")})
    assert scan(tmp_path).notes == [Has("train/cat/1.png and train/dog/1.png are the same image in two class folders")]
    got = found(tmp_path, multi_label=True)
    assert (got.notes, got.left_out, got.contents.labels) == ([], [], None)
    assert got.keys == {"train": ["train/cat/1.png", "train/emu/1.png", "train/emu/3.png"], "val": ["val/dog/2.png"]}
    assert (got.classes, got.multi) == (["cat", "dog", "emu"], [[1, 1, 0], [0, 0, 1], [0, 0, 1], [0, 1, 0]])


@pytest.mark.parametrize(
    ("names", "note"),
    [
        (("fotos/1.jpg", "fotos/2.jpg", "mask_png/1.png", "mask_png/2.png"), "mask_png has files of the same names as"),
        (("A_Input/1.jpg", "A_GroundTruth/1_segmentation.png"), "A_GroundTruth has files of the same names as A_Input"),
        (("PNGImages/1.png", "PedMasks/1_mask.png"), "PedMasks has files of the same names as PNGImages: if they are"),
        (("train/a/1.jpg", "train/gt_of_a/1.png"), "train/gt_of_a has files of the same names as train/a: if they are"),
        (("data/1.jpg", "data/1_mask.png"), "data has images with the names of others and an ending, such as 1_mask"),
        (("1.jpg", "1_mask.png"), "the folder has images with the names of others and an ending, such as 1_mask"),
        (("cat/1.jpg", "dog/1.jpg", "gt_cars/7.jpg"), ""),
    ],
)
def test_names_of_masks_are_told(tmp_path: Path, names: tuple[str, ...], note: str) -> None:
    told = [each for each in scan(tmp_path, *names).notes if "if they are masks" in each]
    assert [each.startswith(note) for each in told] == [True] * bool(note)


PETS = ["cat", "dog"]


@pytest.mark.parametrize(
    ("names", "splits", "expected", "is_told"),
    [
        (("train_set/{}/1.jpg", "test_set/{}/1.jpg"), ["test", "train"], PETS, True),
        (("training_set/training_set/{}/1.jpg", "test_set/test_set/{}/1.jpg"), ["test", "training"], PETS, True),
        (("seg_train/seg_train/{}/1.jpg", "seg_test/seg_test/{}/1.jpg"), ["test", "train"], PETS, True),
        (("animals_train/{}/1.jpg", "animals_test/{}/1.jpg"), ["test", "train"], PETS, True),
        (("train/train/{}/1.jpg", "test/test/{}/1.jpg"), ["test", "train"], PETS, False),
        (("train/{}.jpg", "test1/{}.jpg"), ["test", "train"], [], True),
        (("train_station/{}/1.jpg", "bus_stop/{}/1.jpg"), ["train"], ["bus_stop", "train_station"], False),
        (("train_station/{}.jpg", "test_tube/{}.jpg"), ["train"], ["test_tube", "train_station"], False),
    ],
)
def test_folders_with_splits_in_their_names(
    tmp_path: Path, names: Sequence[str], splits: list[str], expected: list[str], is_told: bool
) -> None:
    got = found(make(tmp_path, *(name.format(kind) for name in names for kind in PETS)))
    assert (sorted(got.splits), got.classes if got.fields else []) == (splits, expected)
    assert any("are read as the splits" in note for note in got.notes) == is_told
    if expected == PETS:
        assert got.names == [key.split("/")[-2] for some in got.keys.values() for key in some]


@pytest.mark.parametrize("text", ["file,caption\n{0},a\n{1},b\n", "file,x1,y1,x2,y2\n{0},1,2,3,4\n{1},1,2,3,4\n", ""])
def test_class_folders_that_are_not_read_beside_other_annotations(tmp_path: Path, text: str) -> None:
    names = ("cat/1.jpg", "dog/2.jpg")
    make(tmp_path, *names)
    box = "<bndbox><xmin>1</xmin><ymin>1</ymin><xmax>3</xmax><ymax>3</ymax></bndbox>"
    xml = f"<annotation><object><name>head</name>{box}</object></annotation>"
    write(tmp_path, {"list.csv": text.format(*names)} if text else {f"{name[:-4]}.xml": xml for name in names})
    assert "the images are in 2 folders, such as cat: names of folders are not read as labels." in found(tmp_path).notes
