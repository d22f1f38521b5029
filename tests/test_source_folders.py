"""Class folders, split folders and flat folders."""

from __future__ import annotations

import os
import pickle
from pathlib import Path

import numpy as np
import pytest

import tensorstore_ds
from labelling_files import classes
from tensorstore_ds.errors import OptionError, SourceError
from tensorstore_ds.sources import open_source
from tensorstore_ds.sources.base import Contents, Match, Source, SourceOptions
from tensorstore_ds.sources.folders import FolderSource


def make(root: Path, *names: str) -> Path:
    for name in names:
        file = root / name
        if name.endswith("/"):
            file.mkdir(parents=True)
        else:
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(b"")
    return root


def scan(root: Path, **options: object) -> tuple[FolderSource, Contents]:
    source = FolderSource(root, SourceOptions(**options))  # type: ignore[arg-type]
    return source, source.contents()


def reasons(contents: Contents) -> dict[str, str]:
    return {problem.where: problem.reason for problem in contents.problems}


def test_class_folders(tmp_path: Path) -> None:
    make(tmp_path, "dog/2.png", "dog/10.JPG", "cat/a b.jpeg", "cat/line\nbreak.png", "狗/图.webp")
    source, contents = scan(tmp_path)
    assert isinstance(source, Source)
    assert classes(contents) == ("cat", "dog", "狗")
    paths = ["cat/a b.jpeg", "cat/line\nbreak.png", "dog/10.JPG", "dog/2.png", "狗/图.webp"]
    assert {split: list(refs) for split, refs in contents.splits.items()} == {"train": paths}
    assert contents.labels is not None
    np.testing.assert_array_equal(contents.labels["train"], [0, 0, 1, 1, 2], strict=True)
    source = pickle.loads(pickle.dumps(source))  # noqa: S301  our own bytes
    samples = [source.read("train", path) for path in paths]
    assert [sample.label for sample in samples] == [0, 0, 1, 1, 2]
    assert [Path(sample.image) for sample in samples] == [tmp_path / path for path in paths]
    assert [sample.key for sample in samples] == paths
    assert source.files(paths[0]) == (f"{tmp_path}/{paths[0]}",)


def test_split_folders_share_their_classes(tmp_path: Path) -> None:
    make(tmp_path, "Train/cat/1.png", "Train/dog/2.png", "val/cat/3.png", "valid/ant/4.png", "test/bee/")
    source, contents = scan(tmp_path)
    assert classes(contents) == ("ant", "cat", "dog")
    assert {split: list(refs) for split, refs in contents.splits.items()} == {
        "train": ["Train/cat/1.png", "Train/dog/2.png"],
        "val": ["val/cat/3.png"],
        "valid": ["valid/ant/4.png"],
    }
    assert source.read("valid", "valid/ant/4.png").label == 0
    assert contents.labels is not None
    assert contents.labels["train"].tolist() == [1, 2]


def test_an_empty_class_folder_keeps_its_class(tmp_path: Path) -> None:
    make(tmp_path, "train/cat/1.png", "train/eel/", "test/cat/2.png", "test/owl/", "test/.cache/")
    assert classes(scan(tmp_path)[1]) == ("cat", "eel", "owl")


def test_a_folder_of_other_files_is_no_class(tmp_path: Path) -> None:
    make(tmp_path, "cat/1.png", "scripts/run.py", "README.md", "Licence.txt", "LICENSE", "cat/Thumbs.db")
    _, contents = scan(tmp_path)
    assert classes(contents) == ("cat",)
    assert [(p.where, p.reason) for p in contents.left_out] == [("scripts/run.py", "not-read")]


def test_flat_folders_have_no_label(tmp_path: Path) -> None:
    source, contents = scan(make(tmp_path / "a", "2.png", "1.png", "empty/"))
    assert contents.fields == {}
    assert contents.labels is None
    assert list(contents.splits["train"]) == ["1.png", "2.png"]
    assert source.read("train", "1.png").label is None
    _, contents = scan(make(tmp_path / "b", "train/1.png", "test/2.png"))
    assert contents.fields == {}
    assert {split: list(refs) for split, refs in contents.splits.items()} == {
        "test": ["test/2.png"],
        "train": ["train/1.png"],
    }


def test_folders_below_a_class_belong_to_it(tmp_path: Path) -> None:
    source, contents = scan(make(tmp_path, "cat/1.png", "cat/young/2.png", "cat/young/tiny/3.png", "dog/4.png"))
    assert classes(contents) == ("cat", "dog")
    assert [source.read("train", ref).label for ref in contents.splits["train"]] == [0, 0, 0, 1]


def test_a_class_may_be_named_like_a_split(tmp_path: Path) -> None:
    _, contents = scan(make(tmp_path, "train/1.png", "bus/2.png"))
    assert classes(contents) == ("bus", "train")


def test_class_order_as_wanted(tmp_path: Path) -> None:
    make(tmp_path, "cat/1.png", "dog/2.png")
    source, contents = scan(tmp_path, classes=("dog", "emu", "cat"))
    assert classes(contents) == ("dog", "emu", "cat")
    assert source.read("train", "cat/1.png").label == 2


def test_images_beside_class_folders_are_problems(tmp_path: Path) -> None:
    make(tmp_path, "cat/1.png", "montage.png", "dog/2.png")
    _, contents = scan(tmp_path)
    assert reasons(contents) == {"montage.png": "no-annotation"}
    assert list(contents.splits["train"]) == ["cat/1.png", "dog/2.png"]


def test_a_split_without_class_folders_has_no_labels(tmp_path: Path) -> None:
    source, contents = scan(make(tmp_path, "train/cat/1.png", "train/dog/5.png", "test/2.png", "test/3.png", "4.png"))
    assert classes(contents) == ("cat", "dog")
    assert reasons(contents) == {"4.png": "no-annotation"}
    assert list(contents.splits["test"]) == ["test/2.png", "test/3.png"]
    assert contents.labels is not None
    assert {name: labels.tolist() for name, labels in contents.labels.items()} == {"train": [0, 1], "test": [-1, -1]}
    assert [source.read("test", path).label for path in contents.splits["test"]] == [-1, -1]
    assert source.read("train", "train/dog/5.png").label == 1


def test_images_beside_the_class_folders_of_a_split_are_problems(tmp_path: Path) -> None:
    _, contents = scan(make(tmp_path, "train/cat/1.png", "train/2.png", "test/cat/3.png", "test/4.png"))
    assert reasons(contents) == dict.fromkeys(["train/2.png", "test/4.png"], "no-annotation")
    assert {split: list(paths) for split, paths in contents.splits.items()} == {
        "train": ["train/cat/1.png"],
        "test": ["test/cat/3.png"],
    }


def test_splits_without_any_class_folder_have_no_field_of_labels(tmp_path: Path) -> None:
    source, contents = scan(make(tmp_path, "train/1.png", "test/2.png"))
    assert not contents.fields and contents.labels is None
    assert source.read("test", "test/2.png").label is None


def test_names_that_are_not_utf8_are_problems(tmp_path: Path) -> None:
    make(tmp_path, "cat/1.png")
    folder = os.fsencode(tmp_path)
    Path(os.fsdecode(folder + b"/d\xf6g")).mkdir()
    for name in (b"/cat/\xff.png", b"/d\xf6g/2.png"):
        Path(os.fsdecode(folder + name)).write_bytes(b"")
    _, contents = scan(tmp_path)
    assert classes(contents) == ("cat",)
    assert list(contents.splits["train"]) == ["cat/1.png"]
    assert contents.labels is not None
    assert contents.labels["train"].tolist() == [0]
    assert sorted(problem.reason for problem in contents.problems) == ["name-encoding"] * 2
    assert all(str(problem).isascii() for problem in contents.problems)


@pytest.mark.parametrize(
    ("names", "reason"),
    [
        (["cat/"], "empty-source"),
        (["cat/note.txt"], "empty-source"),
        (["Dog/1.png", "dog/2.png"], "class-case"),
        (["train/cat/1.png", "Train/cat/2.png"], "split-name"),
        (["train/cat/1.png", "test/cat/2.png", "extra/cat/3.png"], "split-name"),
        (["mnist/train/1/1.png", "mnist/test/1/2.png"], "unknown-format"),
    ],
)
def test_what_is_refused(tmp_path: Path, names: list[str], reason: str) -> None:
    make(tmp_path, *names)
    with pytest.raises(SourceError) as error:
        scan(tmp_path)
    assert error.value.reason == reason
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ([], r"found none in this folder or below \(0 other files\). Name a folder that holds images"),
        (["cat/", "dog/a.docx"], r"found none in this folder or below \(1 other files\)"),
        (["a/b/c/train/cat/1.png", "docs/a.docx"], "found the first ones in a/b/c/train/cat. Convert {root}/a/b/c."),
        (["test/images/cat/1.png"], "found the first ones in test/images/cat. Convert {root}/test/images."),
        (["a/b/c/cat/1.png", "docs/a.docx"], "found the first ones in a/b/c/cat. Convert {root}/a/b/c."),
    ],
)
def test_where_no_format_is_recognized_the_user_learns_where_images_are(
    tmp_path: Path, names: list[str], message: str
) -> None:
    make(tmp_path, *names)
    with pytest.raises(SourceError, match=message.format(root=tmp_path)):
        open_source(tmp_path)
    if advised := message.format(root=tmp_path).partition("Convert ")[2]:
        assert open_source(Path(advised.partition(". ")[0].removesuffix("."))).name == "folders"


@pytest.mark.parametrize("names", [["a/b/c/train/cat/1.png"], ["a/b/c/cat/1.png", "a/b/c/dog/1.png"]])
def test_folders_around_a_data_set_are_no_part_of_it(tmp_path: Path, names: list[str]) -> None:
    assert open_source(make(tmp_path, *names)).path == tmp_path / "a/b/c"


def test_a_class_that_is_not_in_the_list_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SourceError) as error:
        scan(make(tmp_path, "cat/1.png", "dog/2.png"), classes=("cat",))
    assert error.value.reason == "unknown-class"


def test_a_link_that_leads_back_is_refused(tmp_path: Path) -> None:
    make(tmp_path, "cat/1.png")
    (tmp_path / "cat/all").symlink_to(tmp_path)
    with pytest.raises(SourceError) as error:
        scan(tmp_path)
    assert error.value.reason == "symlink-loop"
    assert "cat/all/: expected folders without a loop" in str(error.value)
    (tmp_path / "cat/all").unlink()  # as the message advises
    assert not scan(tmp_path)[1].problems


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["cat/1.png"], True),
        (["1.png"], True),
        (["train/cat/1.png", "README.txt"], True),
        (["cat/1.txt"], False),
        ([], False),
        (["1.png", "1.xml"], False),
        (["Annotations/1.xml", "JPEGImages/1.jpg"], False),
    ],
)
def test_detect(tmp_path: Path, names: list[str], expected: bool) -> None:
    assert FolderSource.detect(make(tmp_path, *names)) is (Match.MAYBE if expected else Match.NO)
    assert not FolderSource.detect(tmp_path / "none")


def test_labels_from_the_names_of_files(tmp_path: Path) -> None:
    make(tmp_path, "train/a/cat_1.png", "train/dog_2.png", "test/dog_3.png", "test/x.png", "top_1.png")
    pattern = r"([a-z]+)_\d+\.png$"
    source, contents = scan(tmp_path, label_from=pattern)
    assert classes(contents) == ("cat", "dog")
    assert reasons(contents) == {"test/x.png": "no-label", "top_1.png": "no-annotation"}
    assert {split: list(paths) for split, paths in contents.splits.items()} == {
        "test": ["test/dog_3.png"],
        "train": ["train/a/cat_1.png", "train/dog_2.png"],
    }
    assert contents.labels is not None
    assert {split: labels.tolist() for split, labels in contents.labels.items()} == {"test": [1], "train": [0, 1]}
    source = pickle.loads(pickle.dumps(source))  # noqa: S301  our own bytes
    assert source.read("train", "train/dog_2.png").label == 1


@pytest.mark.parametrize(
    ("expression", "expected"),
    [("^[a-z]+", ("cat", "dog")), (r"([a-z]+)(\d)", ("cat", "dog")), (r"(?P<n>[a-z]+)(?P<label>\d)", ("1", "2"))],
)
def test_the_group_that_is_the_label(tmp_path: Path, expression: str, expected: tuple[str, ...]) -> None:
    _, contents = scan(make(tmp_path, "cat1.png", "dog2.png"), label_from=expression)
    assert classes(contents) == expected


def test_no_regular_expression(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=r"`label_from`: expected a regular expression, found '\('"):
        scan(make(tmp_path, "a.png"), label_from="(")
    with pytest.raises(SourceError) as caught:
        scan(tmp_path, label_from="x_")
    assert caught.value.reason == "no-label"


def test_images_without_labels_are_told(tmp_path: Path) -> None:
    make(tmp_path, "set/JPEGImages/a.png", "set/JPEGImages/b.png")
    _, contents = scan(tmp_path / "set" / "JPEGImages")
    assert contents.notes == (
        "no labels: 2 images without class folders or annotations. For training, put the images of each class into a "
        "separate folder, or pass `label_from`.",
    )
    make(tmp_path, "set/Annotations/")
    _, contents = scan(tmp_path / "set" / "JPEGImages")
    whole = tmp_path / "set"
    assert contents.notes == (
        f"no labels: 2 images without class folders or annotations. {whole / 'Annotations'} may have the annotations: "
        f"convert {whole} for images and annotations.",
    )
    _, contents = scan(make(tmp_path / "classes", "cat/a.png"))
    assert contents.notes == ()


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
def test_classes_beside_annotations_are_told(tmp_path: Path) -> None:
    """Such as the folder of images of a VOC data set, which is no class."""
    _, contents = scan(make(tmp_path / "voc", "JPEGImages/1.jpg", "Annotations/1.xml"))
    assert classes(contents) == ("JPEGImages",)
    assert contents.notes == (
        "the classes are the names of folders: JPEGImages. Annotations beside them may have annotations, which are not "
        "read. Name their `format` to read them.",
    )
    assert scan(make(tmp_path / "photos", "cat/1.jpg", "labels/2.jpg", "notes/1.txt"))[1].notes == ()
    assert scan(make(tmp_path / "split", "train/cat/1.jpg", "test/cat/1.jpg"))[1].notes == ()


@pytest.mark.parametrize(
    ("names", "said"),
    [
        (["jpg/1.jpg", "labels.mat"], "jpg. If jpg is no class, convert that folder alone"),
        (["training/image_2/1.png", "testing/image_2/2.png"], "image_2. If image_2 is no class"),
        (["cars_train/1.jpg", "cars_test/1.jpg", "query/2.jpg"], "cars_test, cars_train, query. If these are splits"),
        (["001/1.jpg", "002/1.jpg"], ""),
        (["animal/cat/1.jpg", "animal/dog/2.jpg", "car/3.jpg"], "in 2 folders, such as cat: names of folders are not"),
        (["train/cat/images/1.jpg", "train/dog/images/2.jpg", "val/cat/1.jpg"], ""),
        (["cat/2020/1.jpg", "cat/2021/2.jpg", "dog/train/3.jpg"], ""),
        (["train/1.jpg", "bus/1.jpg"], ""),
        (["cat/1.jpg", "images/1.jpg"], ""),
    ],
)
def test_folders_that_may_be_no_classes_are_told(tmp_path: Path, names: list[str], said: str) -> None:
    notes = " ".join(scan(make(tmp_path, *names))[1].notes)
    assert said in notes if said else notes == ""
    if "alone" in said:
        assert scan(tmp_path / "jpg")[1].fields == {}


@pytest.mark.parametrize(
    ("names", "inner", "beside"),
    [
        (["images/cat/1.jpg", "images/dog/2.jpg", "meta/train.txt", "README.txt"], "images", "meta/train.txt"),
        (["images/cat/1.jpg", "images/dog/2.jpg", "README.txt", "LICENSE"], "images", ""),
        (["a/b/c/cat/1.png", "labels/x.mat"], "a/b/c", "labels/x.mat"),
    ],
)
def test_what_is_beside_the_folder_to_convert_is_told(
    tmp_path: Path, names: list[str], inner: str, beside: str
) -> None:
    """Food-101 has the lists of its splits there."""
    with pytest.raises(SourceError) as error:
        open_source(make(tmp_path, *names)).contents()
    advice = f"Convert {tmp_path / inner}."
    assert str(error.value).endswith(
        f"{advice} That does not read the files beside it, such as {beside}." if beside else advice
    )
    assert open_source(tmp_path / inner).contents().splits


def test_files_that_may_be_annotations_are_told(tmp_path: Path) -> None:
    """As of DeepPCB: a text file of boxes for each pair of images."""
    make(tmp_path, *(f"{group}/{i}_{kind}.jpg" for group in "ab" for i in range(3) for kind in ("temp", "test")))
    assert scan(tmp_path)[1].notes == ()
    make(tmp_path, *(f"{group}/not/{i}.txt" for group in "ab" for i in range(3)))
    (note,) = scan(tmp_path)[1].notes
    assert note.startswith("6 .txt files, such as ") and "They may be annotations" in note


def test_a_pipe_is_said_to_be_none(tmp_path: Path) -> None:
    make(tmp_path, "cat/a.png", "cat/note.xyz")
    os.mkfifo(tmp_path / "cat" / "pipe.jpg")
    _, contents = scan(tmp_path)
    assert {problem.where: problem.message for problem in contents.left_out} == {
        "cat/note.xyz": "not read.",
        "cat/pipe.jpg": "not read: no regular file.",
    }


def test_one_image_in_several_class_folders(tmp_path: Path) -> None:
    make(tmp_path, "train/cat/", "train/dog/", "train/emu/", "val/cat/", "val/dog/2.png", "val/emu/")
    for name, content in {
        "train/cat/1.png": b"an image",
        "train/dog/1.png": b"an image",
        "train/emu/1.png": b"another image of that name",
        "train/emu/3.png": b"x",
    }.items():
        (tmp_path / name).write_bytes(content)
    _, contents = scan(tmp_path)
    (note,) = contents.notes
    assert note.startswith("train/cat/1.png and train/dog/1.png are the same image in two class folders")
    source = open_source(tmp_path, options=SourceOptions(multi_label=True))
    contents = source.contents()
    assert (contents.notes, contents.left_out, contents.labels) == ((), (), None)
    assert contents.fields["labels"].classes == ("cat", "dog", "emu")
    found = {
        sample.key: sample.arrays["labels"].tolist()
        for split, listed in contents.splits.items()
        for sample in (source.read(split, each) for each in listed)
    }
    assert found == {
        "train/cat/1.png": [1, 1, 0],
        "train/emu/1.png": [0, 0, 1],
        "train/emu/3.png": [0, 0, 1],
        "val/dog/2.png": [0, 1, 0],
    }


def test_several_labels_are_for_class_folders(tmp_path: Path) -> None:
    make(tmp_path, "a.png")
    (tmp_path / "list.csv").write_text("path,label\na.png,cat\n")
    with pytest.raises(OptionError, match="`multi_label`: expected class folders, found list"):
        tensorstore_ds.convert(tmp_path, tmp_path.with_suffix(".tsds"), multi_label=True)


@pytest.mark.parametrize(
    ("names", "note"),
    [
        (("fotos/1.jpg", "fotos/2.jpg", "mask_png/1.png", "mask_png/2.png"), "mask_png has files of the same names as"),
        (("train/a/1.jpg", "train/gt_of_a/1.png"), "train/gt_of_a has files of the same names as train/a: if they are"),
        (("data/1.jpg", "data/1_mask.png"), "data has images with the names of others and an ending, such as 1_mask"),
        (("1.jpg", "1_mask.png"), "the folder has images with the names of others and an ending, such as 1_mask"),
        (("with_mask/1.jpg", "without_mask/1.jpg"), ""),
        (("cat/1.jpg", "dog/1.jpg", "gt_cars/7.jpg"), ""),
    ],
)
def test_names_of_masks_are_told(tmp_path: Path, names: tuple[str, ...], note: str) -> None:
    _, contents = scan(make(tmp_path, *names))
    found = [each for each in contents.notes if "if they are masks" in each]
    assert [each.startswith(note) for each in found] == ([True] if note else [])


@pytest.mark.parametrize(
    ("names", "splits", "expected"),
    [
        (("train_set/{}/1.jpg", "test_set/{}/1.jpg"), ("test", "train"), ("cat", "dog")),
        (("training_set/training_set/{}/1.jpg", "test_set/test_set/{}/1.jpg"), ("test", "training"), ("cat", "dog")),
        (("seg_train/seg_train/{}/1.jpg", "seg_test/seg_test/{}/1.jpg"), ("test", "train"), ("cat", "dog")),
        (("animals_train/{}/1.jpg", "animals_test/{}/1.jpg"), ("test", "train"), ("cat", "dog")),
        (("train/train/{}/1.jpg", "test/test/{}/1.jpg"), ("test", "train"), ("cat", "dog")),
        (("train/{}.jpg", "test1/{}.jpg"), ("test", "train"), ()),
        (("train_station/{}/1.jpg", "bus_stop/{}/1.jpg"), ("train",), ("bus_stop", "train_station")),
        (("train_station/{}.jpg", "test_tube/{}.jpg"), ("train",), ("test_tube", "train_station")),
    ],
)
def test_folders_with_splits_in_their_names(
    tmp_path: Path, names: tuple[str, ...], splits: tuple[str, ...], expected: tuple[str, ...]
) -> None:
    make(tmp_path, *(name.format(kind) for name in names for kind in ("cat", "dog")))
    source = open_source(tmp_path)
    contents = source.contents()
    assert tuple(sorted(contents.splits)) == splits
    assert (classes(contents) if "label" in contents.fields else ()) == expected
    is_told = any("are read as the splits" in note for note in contents.notes)
    assert is_told == ((len(splits) == 2 and names[0][:6] != "train/") or names[1].startswith("test1"))
    for split, listed in contents.splits.items():
        for i, path in enumerate(map(str, listed)):
            if expected == ("cat", "dog"):
                assert contents.labels is not None
                assert contents.labels[split][i] == ["cat", "dog"].index(path.split("/")[-2])
                assert source.read(split, path).label == contents.labels[split][i]


def test_a_split_without_classes_within_a_folder_of_its_name(tmp_path: Path) -> None:
    make(tmp_path, "train/train/cat/1.jpg", "train/train/dog/1.jpg", "test/test/1.jpg")
    source, contents = scan(tmp_path)
    assert contents.labels is not None
    assert {split: labels.tolist() for split, labels in contents.labels.items()} == {"train": [0, 1], "test": [-1]}
    assert source.read("test", "test/test/1.jpg").label == -1


def test_splits_beside_another_folder(tmp_path: Path) -> None:
    make(tmp_path, "seg_train/seg_train/sea/1.jpg", "seg_test/seg_test/sea/1.jpg", "seg_pred/seg_pred/1.jpg")
    with pytest.raises(SourceError, match=r"found seg_test beside seg_pred\. Move seg_pred away") as caught:
        open_source(tmp_path).contents()
    assert caught.value.reason == "split-name"


def test_splits_below_class_folders_are_told(tmp_path: Path) -> None:
    _, contents = scan(make(tmp_path, "cat/train/1.jpg", "cat/test/2.jpg", "dog/train/1.jpg"))
    assert contents.notes[0].startswith("test, train in the class folders are not read as splits")


@pytest.mark.parametrize("text", ["file,caption\n{0},a\n{1},b\n", "file,x1,y1,x2,y2\n{0},1,2,3,4\n{1},1,2,3,4\n", ""])
def test_class_folders_that_are_not_read_beside_other_annotations(tmp_path: Path, text: str) -> None:
    names = ("cat/1.jpg", "dog/2.jpg")
    make(tmp_path, *names)
    if text:
        (tmp_path / "list.csv").write_text(text.format(*names))
    for name in names if not text else ():
        box = "<bndbox><xmin>1</xmin><ymin>1</ymin><xmax>3</xmax><ymax>3</ymax></bndbox>"
        xml = f"<annotation><object><name>head</name>{box}</object></annotation>"
        (tmp_path / name).with_suffix(".xml").write_text(xml)
    contents = open_source(tmp_path).contents()
    assert "the images are in 2 folders, such as cat: names of folders are not read as labels." in contents.notes
