"""The source format `masks`: Pascal VOC's SegmentationClass, and folders of images and masks."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import tensorstore_ds as tsds
from labelling_files import Found, converted, found, refused, refusing, write
from mask_sources import squares, write_folders, write_palette, write_voc
from stores import png_bytes
from tensorstore_ds.annex.sources.masks import VOC_CLASSES
from tensorstore_ds.errors import SourceError
from tensorstore_ds.sources import open_source, recognized


def scan(path: Path, **options: Any) -> Found:
    got = found(path, **options)
    assert got.source.name == "masks"
    return got


def counts(got: Found) -> dict[str, int]:
    return {name: len(some) for name, some in got.samples.items()}


def test_pascal_voc(tmp_path):
    got = scan(write_voc(tmp_path))
    field = got.contents.fields["mask"]
    assert (field.classes, field.ignored, field.spec.dtype) == (VOC_CLASSES, 255, "uint8")
    assert (VOC_CLASSES[15], counts(got), got.problems) == ("person", {"train": 2, "val": 2}, [])
    assert got.left_out == [
        ("ImageSets/Segmentation/trainval.txt", "split-union"),
        ("VOC2012/JPEGImages/2008_000000.jpg", "not-listed"),
    ]
    assert got.keys["val"][0] == "VOC2012/JPEGImages/2007_000002.jpg"
    files = got.source.files(got.contents.splits["val"][0])
    assert [Path(path).name for path in files] == ["2007_000002.jpg", "2007_000002.png"]


def test_the_indices_of_a_palette_are_the_classes(tmp_path):
    voc = write_voc(tmp_path, ((40, 60),) * 4)
    expected = np.asarray(Image.open(voc / "VOC2012/SegmentationClass/2007_000001.png"))
    np.testing.assert_array_equal(converted(voc)[0]["train"]["mask"][1], expected)
    assert set(np.unique(expected)) == {0, 15, 255}


def test_voc_with_annotations_is_for_boxes_unless_masks_are_asked_for(tmp_path):
    voc = write_voc(tmp_path)
    write(voc, {"VOC2012/Annotations/2007_000000.xml": "<annotation></annotation>"})
    assert recognized(voc) == ["voc"]
    assert counts(found(voc, "masks")) == {"train": 2, "val": 2}


@pytest.mark.parametrize("folder", ["train/images", "images/train", "data/train/images"])
def test_folders_of_splits(folder, tmp_path):
    write_folders(tmp_path / "city", 3, images=folder)
    write_folders(tmp_path / "city", 2, images=folder.replace("train", "val"))
    got = scan(write(tmp_path / "city", {"classes.txt": "ground\nsquare\n"}))
    assert (counts(got), got.contents.fields["mask"].classes) == ({"train": 3, "val": 2}, ("ground", "square"))


def test_without_names_the_classes_are_the_numbers_that_occur(tmp_path):
    write_folders(tmp_path / "city", 2)
    write_palette(tmp_path / "city/masks/1.png", squares(32, 48, label=4)[1])
    for classes, expected in ((None, tuple("01234")), (("a", "b"), ("a", "b"))):
        assert scan(tmp_path / "city", classes=classes).contents.fields["mask"].classes == expected


def test_palettes_in_which_a_number_has_another_color_are_noted(tmp_path):
    """An image editor gave each mask a palette of its own: 1 is red in one of them, and green in the other."""
    write_folders(tmp_path / "city", 3)
    for name, colors in (
        ("0", (0, 0, 0, 255, 0, 0)),
        ("1", (0, 0, 0, 255, 0, 0, 9, 9, 9)),
        ("2", (0, 0, 0, 0, 255, 0)),
    ):
        mask = Image.fromarray(np.eye(32, 48, dtype=np.uint8), "P")
        mask.putpalette(colors)
        mask.save(tmp_path / f"city/masks/{name}.png")
    message = "the palettes of masks differ: 1 has the color (255, 0, 0) in masks/0.png, and (0, 255, 0) in masks/2.png"
    assert [note[: len(message)] for note in scan(tmp_path / "city").contents.notes] == [message]
    (tmp_path / "city/masks/2.png").write_bytes((tmp_path / "city/masks/1.png").read_bytes())
    assert scan(tmp_path / "city").contents.notes == ()


def test_what_is_alone_is_named(tmp_path):
    write_folders(tmp_path / "city")
    (tmp_path / "city/images/1.png").unlink()
    (tmp_path / "city/masks/3.png").unlink()
    got = scan(tmp_path / "city")
    assert got.problems == [("images/3.png", "no-annotation"), ("masks/1.png", "no-image")]
    assert counts(got) == {"train": 2}


def test_a_line_of_a_list_without_a_mask_is_named(tmp_path):
    voc = write_voc(tmp_path)
    (voc / "VOC2012/SegmentationClass/2007_000001.png").unlink()
    assert set(scan(voc).problems) == {("2007_000001", "no-annotation")}


@pytest.mark.parametrize("classes", [None, ("ground", "square")])
@pytest.mark.parametrize("mode", ["L", "RGB", "1", "P", "I;16"])
def test_masks_of_0_and_255(tmp_path, mode, classes):
    city, expected = write_folders(tmp_path / "city"), []
    for path in sorted((city / "masks").iterdir()):
        expected.append((np.asarray(Image.open(path)) > 0).astype(np.uint8))
        mask = Image.fromarray(255 * expected[-1] if mode != "I;16" else 65535 * expected[-1].astype(np.uint16))
        if mode == "P":
            mask.putpalette([0, 0, 0, 200, 30, 30] * 128)
        (mask if mode in ("P", "I;16") else mask.convert(mode)).save(path)
    store, summary = converted(city, classes=classes)
    assert store["train"].fields["mask"].classes == (classes or ("0", "1"))
    np.testing.assert_array_equal(store["train"]["mask"][:], expected)
    number = "65535" if mode == "I;16" else "255"
    assert any(f"{number} is read as the class 1" in note for note in summary.notes) == (mode != "1")


def test_masks_of_16_bits_ignore_65535(tmp_path):
    city = write_folders(tmp_path / "city")
    mask = np.arange(32 * 48, dtype=np.uint16).reshape(32, 48) % 300
    mask[0] = 65535
    for path in (city / "masks").iterdir():
        Image.fromarray(mask).save(path)
    store, _ = converted(city)
    field = store["train"].fields["mask"]
    assert (len(field.classes), field.ignored) == (300, 65535)
    np.testing.assert_array_equal(store["train"]["mask"][0], mask)
    with pytest.raises(tsds.OptionError, match=r"at most 65,535 classes of masks, found 70,000"):
        converted(city, classes=tuple(map(str, range(70_000))))


def test_masks_of_0_and_255_that_do_not_fit(tmp_path):
    city = write_folders(tmp_path / "city", count=20)
    for path in sorted((city / "masks").iterdir()):
        Image.fromarray(255 * (np.asarray(Image.open(path)) > 0).astype(np.uint8)).save(path)
    assert refused(city, "masks", "Name two classes", classes=("a", "b", "c")) == "mask-range"
    Image.fromarray(np.full((32, 48), 7, np.uint8)).save(path)  # behind those that tell what the numbers are
    with pytest.raises(
        tsds.SourceError, match=r"9\.png: expected 0 and 255, as in the masks before, found 7"
    ) as caught:
        converted(city, classes=("ground", "square"))
    assert caught.value.reason == "mask-range"


def test_a_class_folder_called_images_is_one(tmp_path):
    write_folders(tmp_path / "photos")
    shutil.rmtree(tmp_path / "photos/masks")
    (tmp_path / "photos/others").mkdir()
    shutil.copy(tmp_path / "photos/images/0.png", tmp_path / "photos/others/0.png")
    assert open_source(tmp_path / "photos").name == "folders"


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda path: Image.fromarray(np.zeros((8, 8), np.uint8)).save(path), "size-mismatch"),
        (lambda path: Image.fromarray(np.full((32, 48), 9, np.uint8)).save(path), "mask-range"),
        (lambda path: Image.new("RGB", (48, 32), (0, 0, 1)).save(path), "unsupported-depth"),
        (lambda path: path.write_bytes(path.read_bytes()[:60]), "truncated-image"),
    ],
)
def test_a_bad_mask_is_left_out_and_named(change, reason, tmp_path):
    city = write(write_folders(tmp_path / "city"), {"classes.txt": "ground\nsquare\n"})
    change(city / "masks/2.png")
    with refusing(reason, r"images/2\.png \(mask\)"):
        converted(city)
    summary = converted(city, on_error="skip")[1]
    assert (summary.rows, summary.skipped) == ({"train": 3}, {reason: 1})


def test_a_dry_run_says_why_no_sample_can_be_read(tmp_path):
    options = tsds.ConvertOptions(classes=("ground",), on_error="skip", workers=0)
    write_folders(tmp_path / "in")
    with pytest.raises(tsds.SourceError, match=r"images/0.png \(mask\): expected pixels in \[0, 1\) or 255, found 1"):
        tsds.estimate(tmp_path / "in", options)
    assert tsds.estimate(tmp_path / "in", classes=("ground", "square")).rows == {"train": 4}


@pytest.mark.parametrize("classes", [None, ("ground", "square")])
def test_masks_must_not_be_jpeg(tmp_path, classes):
    source = write_folders(tmp_path / "in")
    for path in (source / "masks").iterdir():
        noise = np.random.default_rng(0).integers(0, 2, (32, 48), np.uint8) * 200
        Image.fromarray(noise).save(path.with_suffix(".jpg"))
        path.unlink()
    with pytest.raises(tsds.SourceError, match=r"JPEG, which changes the numbers.* again as PNG") as caught:
        converted(source, classes=classes)
    assert caught.value.reason == "mask-range"


@pytest.mark.parametrize("classes", [None, ("no", "yes")])
@pytest.mark.parametrize("mode", ["L", "RGB"])
def test_jpeg_masks_of_two_classes(tmp_path, mode, classes):
    y, x = np.mgrid[:120, :160]
    expected = [(x - 60) ** 2 + (y - 30 * i) ** 2 < 1600 for i in range(3)]
    for i, each in enumerate(expected):
        write(tmp_path / "in", {f"images/{i}.png": png(np.zeros((120, 160), np.uint8)), "masks/x/": b""})
        Image.fromarray(each).convert(mode).save(tmp_path / f"in/masks/{i}.jpg", quality=70)
    (tmp_path / "in/masks/x").rmdir()
    store, summary = converted(tmp_path / "in", classes=classes)
    np.testing.assert_array_equal(store["train"]["mask"][:], expected)
    assert summary.notes == ("masks have the numbers 0 and 255 alone: 255 is read as the class 1.",)


def test_images_of_several_sizes_get_advice_that_masks_can_follow(tmp_path):
    message = "images are of differing sizes.*Masks are stored as pixels of one size: pass `size` with `fit="
    with pytest.raises(SourceError, match=message):
        converted(write_voc(tmp_path))


def png(array: Any) -> bytes:
    return png_bytes(np.array(array, np.uint8))


@pytest.mark.parametrize("prefix", ["", "VOC2012/"])
@pytest.mark.parametrize("ignored", ["", "__ignore__\n"])
def test_labelme2voc_names_its_classes(tmp_path, prefix, ignored):
    mask = [[0, 1, 2], [2, 1, 255]]
    files = {"SegmentationClass/0.png": png(mask), "JPEGImages/0.jpg": png(np.zeros((2, 3, 3)))}
    files["class_names.txt"] = f"{ignored}_background_\nscratch\ndent\n"
    store, summary = converted(write(tmp_path / "in", {f"{prefix}{name}": data for name, data in files.items()}))
    assert store["train"].fields["mask"].classes == ("_background_", "scratch", "dent")
    np.testing.assert_array_equal(store["train"]["mask"][0], mask)
    assert summary.left_out == ()


def test_camvid_of_kaggle_has_colors_in_a_csv_file(tmp_path):
    """Other files than Pascal VOC's: `_L` behind the names, and the colors of classes in class_dict.csv."""
    colors, expected = np.array([(64, 128, 64), (192, 0, 128)], np.uint8), np.array([[0, 1, 1], [1, 1, 0]], np.uint8)
    files = {f"{split}/{split}1.png": png(np.zeros((2, 3, 3))) for split in ("train", "val")}
    files |= {f"{split}_labels/{split}1_L.png": png(colors[expected]) for split in ("train", "val")}
    files["class_dict.csv"] = "name, r, g, b\nAnimal, 64, 128, 64\nArchway, 192, 0, 128\n"
    store, summary = converted(write(tmp_path / "in", files))
    assert [*store] == ["train", "val"] and store["val"].fields["mask"].classes == ("Animal", "Archway")
    np.testing.assert_array_equal(store["val"]["mask"][0], expected)
    assert summary.left_out == ()


@pytest.mark.parametrize("mode", ["L", "P", "RGB"])
def test_cvat_names_its_classes_and_their_colors(tmp_path, mode):
    """Masks of colors, with a palette of them, or of numbers; the colors are not those of Pascal VOC."""
    colors = [(0, 0, 0), (250, 50, 83), (52, 209, 183)]
    rows = [f"{n}:{','.join(map(str, c))}::" for n, c in zip(("background", "scratch", "dent"), colors, strict=True)]
    expected = np.array([[0, 1, 2], [2, 1, 0]], np.uint8)
    mask = Image.fromarray(expected)
    if mode == "P":
        mask.putpalette([*sum(colors, ()), *bytes(3 * 253)])
    elif mode == "RGB":
        mask = Image.fromarray(np.array(colors, np.uint8)[expected])
    names = "# label:color_rgb:parts:actions\n" + "\n".join(rows)
    root = write(
        tmp_path / "in", {"SegmentationClass/": "", "JPEGImages/0.jpg": png(np.zeros((2, 3, 3))), "labelmap.txt": names}
    )
    mask.save(root / "SegmentationClass/0.png")
    split = converted(root, workers=1)[0]["train"]
    assert split.fields["mask"].classes == ("background", "scratch", "dent")
    np.testing.assert_array_equal(split["mask"][0], expected)
    if mode == "RGB":
        write(root, {"labelmap.txt": "\n".join(rows[:2])})
        with pytest.raises(tsds.SourceError, match="the colors of the class list in the mask, found 52,209,183"):
            converted(root)


@pytest.mark.parametrize(
    ("image", "mask", "split"),
    [
        ("images/{}.png", "labels/{}.png", "train"),
        ("images/{}.png", "gt/{}.png", "train"),
        ("img_dir/{}.png", "ann_dir/{}.png", "train"),
        ("images/{}.png", "label/{}.png", "train"),
        ("images/{}.png", "ground_truth/{}.png", "train"),
        ("Images/{}.png", "Masks/{}.png", "train"),
        ("image/{}.png", "mask/{}.png", "train"),
        ("imgs/{}.png", "masks/{}_mask.png", "train"),
        ("Original/{}.png", "Ground Truth/{}.png", "train"),
        ("train/{}.png", "train_masks/{}_mask.png", "train"),
        ("train/{}.png", "train_labels/{}.png", "train"),
        ("val/images/{}.png", "val/labels/{}.png", "val"),
        ("val/{}.png", "valannot/{}.png", "val"),
        ("{}.png", "{}_mask.png", "train"),
        ("valid/{}.png", "valid/{}_seg.png", "valid"),
        ("test_images/{}.png", "test_labels/{}.png", "test"),
        ("images/test/{}.png", "labels/test/{}.png", "test"),
        ("seg/images/train/{}.png", "seg/labels/train/{}_train_id.png", "train"),
        ("training/image_2/{}.png", "training/semantic/{}.png", "training"),
        ("leftImg8bit/train/x/{}_leftImg8bit.png", "gtFine/train/x/{}_gtFine_labelIds.png", "train"),
    ],
)
def test_usual_names_of_folders(tmp_path, image, mask, split):
    pairs = [squares(32, 48, label=i) for i in range(3)]
    for i, pair in enumerate(pairs):
        write(tmp_path / "in", {name.format(i): png(each) for name, each in zip((image, mask), pair, strict=True)})
    stored = converted(tmp_path / "in")[0][split]
    for i, (pixels, numbers) in enumerate(pairs):
        np.testing.assert_array_equal(stored["mask"][i], numbers)
        np.testing.assert_array_equal(stored["image"][i], pixels)


def test_roboflow_writes_images_masks_and_classes_into_one_folder(tmp_path):
    image, mask = squares(32, 48, label=2)
    lists = dict.fromkeys(("train", "valid", "test"), "Pixel Value, Class\n0, background\n1, cat\n2, big dog\n")
    lists["train"] = lists["train"].replace("cat", "cow")
    for split, text in lists.items():
        write(tmp_path, {f"{split}/1_jpg.rf.7.jpg": png(image), f"{split}/1_jpg.rf.7_mask.png": png(mask)})
        write(tmp_path, {f"{split}/_classes.csv": text, "README.roboflow.txt": ""})
    got = scan(tmp_path)
    assert got.contents.fields["mask"].classes == ("background", "cat", "big dog")
    assert (counts(got), got.problems) == ({"test": 1, "train": 1, "valid": 1}, [])
    assert got.left_out == [("train/_classes.csv", "not-read")]
    np.testing.assert_array_equal(converted(tmp_path)[0]["valid"]["mask"][0], mask)


def test_a_list_of_roboflow_that_is_of_images_names_no_classes_of_masks(tmp_path):
    expected = scan(write_folders(tmp_path)).contents.fields
    write(tmp_path, {"_classes.csv": "filename, cat\n0.png, 1\n1.png, 0\n"})
    assert scan(tmp_path).contents.fields == expected


def test_folders_of_those_names_with_other_files_are_classes(tmp_path):
    write_folders(tmp_path)
    (tmp_path / "masks").rename(tmp_path / "labels")
    for path in (tmp_path / "labels").iterdir():
        path.rename(path.with_stem(f"other{path.stem}"))
    assert open_source(tmp_path).name == "folders"
    refused(tmp_path, "masks", "Name the folders images and masks")


def test_masks_below_annotations_are_found_beside_xml(tmp_path):
    write_folders(tmp_path)
    text = "<annotation><filename>{}.png</filename></annotation>"
    write(tmp_path, {f"annotations/xmls/{i}.xml": text.format(i) for i in range(4)})
    (tmp_path / "masks").rename(tmp_path / "annotations/trimaps")
    got = found(tmp_path)
    assert (got.source.name, got.problems) == ("voc", [])
    assert any('convert with `format="masks"`' in note for note in got.notes)
    assert got.left_out == [("annotations/trimaps/0.png", "not-read")]
    assert counts(found(tmp_path, "masks")) == {"train": 4}
