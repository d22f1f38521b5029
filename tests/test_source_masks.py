"""The source format `masks`: Pascal VOC's SegmentationClass, and folders of images and masks."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import tensorstore_ds as tsds
from labelling_files import reasons, refused
from mask_sources import squares, write_folders, write_palette, write_voc
from tensorstore_ds.conversion.options import ConvertOptions
from tensorstore_ds.errors import SourceError
from tensorstore_ds.sources import FORMATS, open_source
from tensorstore_ds.sources.base import SourceOptions
from tensorstore_ds.sources.masks import VOC_CLASSES

IN_PROCESS = ConvertOptions(workers=0)


def scan(path: Path, **options):
    source = open_source(path, options=SourceOptions(**options))
    assert source.name == "masks"
    return source, source.contents()


def test_pascal_voc(tmp_path):
    source, contents = scan(write_voc(tmp_path))
    assert {name: len(found) for name, found in contents.splits.items()} == {"train": 2, "val": 2}
    field = contents.fields["mask"]
    assert (field.classes, field.ignored, field.spec.dtype) == (VOC_CLASSES, 255, "uint8")
    assert VOC_CLASSES[15] == "person"
    assert contents.problems == ()
    assert reasons(contents.left_out) == [
        ("ImageSets/Segmentation/trainval.txt", "split-union"),
        ("VOC2012/JPEGImages/2008_000000.jpg", "not-listed"),
    ]
    reference = contents.splits["val"][0]
    assert source.key("val", reference) == "VOC2012/JPEGImages/2007_000002.jpg"
    assert [Path(path).name for path in source.files(reference)] == ["2007_000002.jpg", "2007_000002.png"]


def test_the_indices_of_a_palette_are_the_classes(tmp_path):
    out = tmp_path / "voc.tsds"
    voc = write_voc(tmp_path, ((40, 60),) * 4)
    tsds.convert(voc, out, IN_PROCESS)
    expected = np.asarray(Image.open(voc / "VOC2012/SegmentationClass/2007_000001.png"))
    np.testing.assert_array_equal(tsds.open(out)["train"]["mask"][1], expected)
    assert set(np.unique(expected)) == {0, 15, 255}
    assert tsds.verify(out) == []


def test_voc_with_annotations_is_for_boxes_unless_masks_are_asked_for(tmp_path):
    voc = write_voc(tmp_path)
    (voc / "VOC2012/Annotations").mkdir()
    (voc / "VOC2012/Annotations/2007_000000.xml").write_text("<annotation></annotation>")
    assert [name for name, each in FORMATS.items() if each.load().detect(voc)] == ["voc"]
    assert len(open_source(voc, "masks").contents().splits["train"]) == 2


@pytest.mark.parametrize("folder", ["train/images", "images/train"])
def test_folders_of_splits(folder, tmp_path):
    write_folders(tmp_path / "city", 3, images=folder)
    write_folders(tmp_path / "city", 2, images=folder.replace("train", "val"))
    (tmp_path / "city/classes.txt").write_text("ground\nsquare\n")
    _, contents = scan(tmp_path / "city")
    assert {name: len(found) for name, found in contents.splits.items()} == {"train": 3, "val": 2}
    assert contents.fields["mask"].classes == ("ground", "square")


def test_other_names_of_the_folders_and_of_masks(tmp_path):
    write_folders(tmp_path / "city")
    (tmp_path / "city/images").rename(tmp_path / "city/img_dir")
    (tmp_path / "city/masks").rename(tmp_path / "city/ann_dir")
    (tmp_path / "city/ann_dir/2.png").rename(tmp_path / "city/ann_dir/2_mask.png")
    _, contents = scan(tmp_path / "city")
    assert [len(found) for found in contents.splits.values()] == [4]


def test_without_names_the_classes_are_the_numbers_that_occur(tmp_path):
    write_folders(tmp_path / "city", 2)
    write_palette(tmp_path / "city/masks/1.png", squares(32, 48, label=4)[1])
    assert scan(tmp_path / "city")[1].fields["mask"].classes == ("0", "1", "2", "3", "4")
    assert scan(tmp_path / "city", classes=("a", "b"))[1].fields["mask"].classes == ("a", "b")


def test_what_is_alone_is_named(tmp_path):
    write_folders(tmp_path / "city")
    (tmp_path / "city/images/1.png").unlink()
    (tmp_path / "city/masks/3.png").unlink()
    _, contents = scan(tmp_path / "city")
    assert reasons(contents.problems) == [("images/3.png", "no-annotation"), ("masks/1.png", "no-image")]
    assert [len(found) for found in contents.splits.values()] == [2]


def test_a_line_of_a_list_without_a_mask_is_named(tmp_path):
    voc = write_voc(tmp_path)
    (voc / "VOC2012/SegmentationClass/2007_000001.png").unlink()
    _, contents = scan(voc)
    assert set(reasons(contents.problems)) == {("2007_000001", "no-annotation")}


def test_masks_of_0_and_255_are_refused(tmp_path):
    write_folders(tmp_path / "city")
    for path in (tmp_path / "city/masks").iterdir():
        mask = np.asarray(Image.open(path))
        Image.fromarray(np.where(mask > 0, 255, 0).astype(np.uint8)).save(path)
    assert refused(tmp_path / "city", "masks", "Write 1 for the object", classes=("ground", "square")) == "mask-range"


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
        (lambda path: Image.fromarray(np.zeros((32, 48, 3), np.uint8)).save(path), "unsupported-depth"),
        (lambda path: path.write_bytes(path.read_bytes()[:60]), "truncated-image"),
    ],
)
def test_a_bad_mask_is_left_out_and_named(change, reason, tmp_path):
    write_folders(tmp_path / "city")
    (tmp_path / "city/classes.txt").write_text("ground\nsquare\n")
    change(tmp_path / "city/masks/2.png")
    with pytest.raises(SourceError) as caught:
        tsds.convert(tmp_path / "city", tmp_path / "out.tsds", IN_PROCESS)
    assert caught.value.reason == reason
    assert "images/2.png (mask)" in str(caught.value)
    summary = tsds.convert(tmp_path / "city", tmp_path / "out.tsds", ConvertOptions(workers=0, on_error="skip"))
    assert (summary.rows, summary.skipped) == ({"train": 3}, {reason: 1})


def test_a_dry_run_says_why_no_sample_can_be_read(tmp_path):
    write_folders(tmp_path / "in")
    options = tsds.ConvertOptions(classes=("ground",), on_error="skip", workers=0)
    with pytest.raises(tsds.SourceError, match=r"images/0.png \(mask\): expected pixels in \[0, 1\) or 255, found 1"):
        tsds.estimate(tmp_path / "in", options)


@pytest.mark.parametrize("classes", [None, ("ground", "square")])
def test_masks_must_not_be_jpeg(tmp_path, classes):
    source = write_folders(tmp_path / "in")
    for path in (source / "masks").iterdir():
        noise = np.random.default_rng(0).integers(0, 2, (32, 48), np.uint8) * 200
        Image.fromarray(noise).save(path.with_suffix(".jpg"))
        path.unlink()
    options = tsds.ConvertOptions(classes=classes, workers=0)
    with pytest.raises(tsds.SourceError, match=r"JPEG, which changes the numbers.* again as PNG") as caught:
        tsds.convert(source, tmp_path / "out.tsds", options)
    assert caught.value.reason == "mask-range"


def test_images_of_several_sizes_get_advice_that_masks_can_follow(tmp_path):
    with pytest.raises(SourceError, match="images are of differing sizes") as caught:
        tsds.convert(write_voc(tmp_path), tmp_path / "o.tsds", ConvertOptions(workers=0))
    assert "Masks are stored as pixels of one size: pass `size` with `fit=" in str(caught.value)


@pytest.mark.parametrize("prefix", ["", "VOC2012"])
@pytest.mark.parametrize("ignored", ["", "__ignore__\n"])
def test_labelme2voc_names_its_classes(tmp_path, prefix, ignored):
    masks = tmp_path / prefix / "SegmentationClass"
    masks.mkdir(parents=True)
    (tmp_path / prefix / "JPEGImages").mkdir()
    mask = np.array([[0, 1, 2], [2, 1, 255]], np.uint8)
    Image.fromarray(mask).save(masks / "0.png")
    Image.new("RGB", (3, 2)).save(tmp_path / prefix / "JPEGImages/0.jpg")
    (tmp_path / prefix / "class_names.txt").write_text(f"{ignored}_background_\nscratch\ndent\n")
    summary = tsds.convert(tmp_path, tmp_path.with_suffix(".tsds"), IN_PROCESS)
    split = tsds.open(tmp_path.with_suffix(".tsds"))["train"]
    assert split.fields["mask"].classes == ("_background_", "scratch", "dent")
    np.testing.assert_array_equal(split["mask"][0], mask)
    assert summary.left_out == ()


@pytest.mark.parametrize("mode", ["L", "P", "RGB"])
def test_cvat_names_its_classes_and_their_colors(tmp_path, mode):
    """Masks of colors, with a palette of them, or of numbers; the colors are not those of Pascal VOC."""
    colors = [(0, 0, 0), (250, 50, 83), (52, 209, 183)]
    rows = [f"{n}:{','.join(map(str, c))}::" for n, c in zip(("background", "scratch", "dent"), colors, strict=True)]
    for folder in ("SegmentationClass", "JPEGImages"):
        (tmp_path / folder).mkdir()
    expected = np.array([[0, 1, 2], [2, 1, 0]], np.uint8)
    mask = Image.fromarray(expected)
    if mode == "P":
        mask.putpalette([*sum(colors, ()), *bytes(3 * 253)])
    elif mode == "RGB":
        mask = Image.fromarray(np.array(colors, np.uint8)[expected])
    mask.save(tmp_path / "SegmentationClass/0.png")
    Image.new("RGB", (3, 2)).save(tmp_path / "JPEGImages/0.jpg")
    (tmp_path / "labelmap.txt").write_text("# label:color_rgb:parts:actions\n" + "\n".join(rows) + "\n")
    tsds.convert(tmp_path, tmp_path.with_suffix(".tsds"), workers=1)
    split = tsds.open(tmp_path.with_suffix(".tsds"))["train"]
    assert split.fields["mask"].classes == ("background", "scratch", "dent")
    np.testing.assert_array_equal(split["mask"][0], expected)
    if mode == "RGB":
        (tmp_path / "labelmap.txt").write_text("\n".join(rows[:2]))
        with pytest.raises(tsds.SourceError, match=r"the colors of labelmap\.txt in the mask, found 52,209,183"):
            tsds.convert(tmp_path, tmp_path.with_name("other.tsds"), IN_PROCESS)


@pytest.mark.parametrize(
    ("image", "mask", "split"),
    [
        ("images/{}.png", "labels/{}.png", "train"),
        ("images/{}.png", "gt/{}.png", "train"),
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
        ("test_images/{}.png", "test_labels/{}.png", "test"),
        ("images/test/{}.png", "labels/test/{}.png", "test"),
        ("leftImg8bit/train/x/{}_leftImg8bit.png", "gtFine/train/x/{}_gtFine_labelIds.png", "train"),
    ],
)
def test_usual_names_of_folders(tmp_path, image, mask, split):
    for i in range(3):
        pixels, numbers = squares(32, 48, label=i)
        for name, array in ((image, pixels), (mask, numbers)):
            path = tmp_path / "in" / name.format(i)
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(array).save(path)
    tsds.convert(tmp_path / "in", tmp_path / "out.tsds", IN_PROCESS)
    stored = tsds.open(tmp_path / "out.tsds")[split]
    for i in range(3):
        expected = np.asarray(Image.open(tmp_path / "in" / mask.format(i)))
        np.testing.assert_array_equal(stored["mask"][i], expected)
        np.testing.assert_array_equal(stored["image"][i], np.asarray(Image.open(tmp_path / "in" / image.format(i))))


def test_folders_of_those_names_with_other_files_are_classes(tmp_path):
    write_folders(tmp_path)
    (tmp_path / "masks").rename(tmp_path / "labels")
    for path in (tmp_path / "labels").iterdir():
        path.rename(path.with_stem(f"other{path.stem}"))
    assert open_source(tmp_path).name == "folders"
    refused(tmp_path, "masks", "Name the folders images and masks")


def test_masks_below_annotations_are_found_beside_xml(tmp_path):
    write_folders(tmp_path)
    (tmp_path / "masks").rename(tmp_path / "trimaps")
    (tmp_path / "annotations/xmls").mkdir(parents=True)
    (tmp_path / "trimaps").rename(tmp_path / "annotations/trimaps")
    for i in range(4):
        (tmp_path / f"annotations/xmls/{i}.xml").write_text(f"<annotation><filename>{i}.png</filename></annotation>")
    source = open_source(tmp_path)
    contents = source.contents()
    assert (source.name, contents.problems) == ("voc", ())
    assert any('convert with `format="masks"`' in note for note in contents.notes)
    assert [(p.where, p.reason) for p in contents.left_out] == [("annotations/trimaps/0.png", "not-read")]
    assert len(open_source(tmp_path, "masks").contents().splits["train"]) == 4
