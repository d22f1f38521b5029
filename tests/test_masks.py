"""The kind `mask`, from samples to batches: resizing, statistics, check, loading, batch transforms and pictures."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision import tv_tensors
from torchvision.transforms import v2

import tensorstore_ds as tsds
from jpeg_files import exif_of
from mask_sources import squares, write_folders
from small_stores import VALID, tsds as run
from tensorstore_ds.annex.pictures.contact_sheet import preview
from tensorstore_ds.conversion.encode import ImageOptions, encode_sample
from tensorstore_ds.conversion.options import ConvertOptions
from tensorstore_ds.errors import FormatError, OptionError, SourceError
from tensorstore_ds.format.kinds import MaskField
from tensorstore_ds.format.schema import ArraySpec
from tensorstore_ds.sources.base import Sample
from training_stores import one_line

RNG = np.random.default_rng(0)
CLASSES = ("background", "square")
IN_PROCESS = ConvertOptions(workers=0, classes=CLASSES)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Eight images of 32 x 48 with a square each."""
    root = tmp_path_factory.mktemp("masks")
    write_folders(root / "city", 8)
    tsds.convert(root / "city", root / "city.tsds", IN_PROCESS)
    return root / "city.tsds"


# --- samples ----------------------------------------------------------------------------------------------------


def encoded(mask, image=None, options=None, field=None, **sample):
    """The stored mask of a sample with an image of 4 x 6 pixels."""
    field = field or MaskField.of(CLASSES)
    made = Sample("k", np.zeros((4, 6, 3), np.uint8) if image is None else image, masks={"mask": mask}, **sample)
    return encode_sample(made, options or ImageOptions(), masks={"mask": field}).masks["mask"]


def test_what_a_mask_may_be():
    expected = RNG.integers(0, 2, (4, 6), np.uint8)
    for mask in (expected, expected[None], expected[:, :, None], expected.astype(np.int64), expected.astype(bool)):
        found = encoded(mask)
        assert found.dtype == np.uint8
        np.testing.assert_array_equal(found, expected)
    np.testing.assert_array_equal(encoded(Image.fromarray(expected).convert("1", dither=0)), expected * 0)
    np.testing.assert_array_equal(encoded(Image.fromarray(expected * 255).convert("1")), expected)


def test_many_classes_are_kept_with_16_bits():
    field = MaskField.of(tuple(map(str, range(300))))
    assert (field.spec.dtype, field.ignored) == ("uint16", 65535)
    values = np.arange(24, dtype=np.uint16).reshape(4, 6) + 270
    np.testing.assert_array_equal(encoded(Image.fromarray(values), field=field), values)


@pytest.mark.parametrize(
    ("mask", "reason"),
    [
        (np.zeros((6, 4), np.uint8), "size-mismatch"),
        (np.full((4, 6), 2, np.uint8), "mask-range"),
        (np.full((4, 6), -1), "mask-range"),
        (np.full((4, 6), 256), "mask-range"),
        (np.zeros((4, 6), np.float32), "array-shape"),
        (np.zeros((4, 6, 3), np.uint8), "array-shape"),
        (Image.new("RGB", (6, 4), (0, 0, 1)), "unsupported-depth"),
    ],
)
def test_what_a_mask_may_not_be(mask, reason):
    with pytest.raises(SourceError) as caught:
        encoded(mask)
    assert caught.value.reason == reason
    assert str(caught.value).startswith("k (mask): ")


def test_a_mask_has_the_size_of_the_image_as_it_is_shown(tmp_path):
    exif = exif_of(6)  # to be shown turned
    Image.new("RGB", (6, 4)).save(tmp_path / "a.jpg", exif=exif)
    mask = np.tri(6, 4, dtype=np.uint8)
    np.testing.assert_array_equal(encoded(mask, tmp_path / "a.jpg"), mask)
    with pytest.raises(SourceError, match="the image is 6x4 as it is shown"):
        encoded(mask.T, tmp_path / "a.jpg")
    Image.fromarray(np.ascontiguousarray(np.rot90(mask))).save(tmp_path / "a.png", exif=exif)  # and so is its mask
    np.testing.assert_array_equal(encoded(tmp_path / "a.png", tmp_path / "a.jpg"), mask)


def test_what_pad_adds_is_ignored_or_0():
    mask = np.ones((4, 6), np.uint8)
    options = ImageOptions(size=(6, 6))
    assert encoded(mask, options=options)[0].tolist() == [255] * 6
    field = MaskField(ArraySpec("uint8", (0, 0)), CLASSES)
    assert encoded(mask, options=options, field=field)[0].tolist() == [0] * 6


def test_a_sample_may_be_a_dict_or_an_image_and_a_mask(tmp_path):
    image, mask = squares(32, 48)
    pil = Image.fromarray(mask)
    Image.fromarray(mask).save(tmp_path / "mask.png")
    samples = [(image, pil), {"image": image, "mask": mask}, {"image": image, "mask": tmp_path / "mask.png"}]
    tsds.convert([*samples, {"image": image, "mask": torch.from_numpy(mask)}], tmp_path / "s.tsds", IN_PROCESS)
    split = tsds.open(tmp_path / "s.tsds")["train"]
    assert split.fields["mask"] == MaskField(ArraySpec("uint8", (32, 48)), CLASSES, 255)
    np.testing.assert_array_equal(np.asarray(split["mask"]), np.stack([mask] * 4))


def test_numbers_that_are_no_mask_are_an_array(tmp_path):
    image = np.zeros((4, 6, 3), np.uint8)
    samples = [{"image": image, "mask": np.zeros((4, 6), np.float32)}]
    tsds.convert(samples, tmp_path / "s.tsds", ConvertOptions(workers=0))
    assert tsds.open(tmp_path / "s.tsds")["train"].fields["mask"].kind == "array"


@pytest.mark.parametrize("encoding", ["jpeg", "source"])
def test_images_of_their_own_size_cannot_have_masks(encoding, tmp_path):
    write_folders(tmp_path / "city")
    with pytest.raises(OptionError, match="give `size`"):
        tsds.convert(tmp_path / "city", tmp_path / "s.tsds", ConvertOptions(workers=0, encoding=encoding))


# --- stores -----------------------------------------------------------------------------------------------------


def test_statistics_count_pixels(store):
    split = tsds.open(store)["train"]
    masks = np.asarray(split["mask"])
    counts = {"class_counts": [int((masks == i).sum()) for i in range(2)], "ignored": int((masks == 255).sum())}
    assert split.statistics["mask"] == counts
    assert sum(counts["class_counts"]) + counts["ignored"] == masks.size
    assert counts["ignored"] > 0


def test_the_statistics_do_not_depend_on_the_division_of_the_work(store, tmp_path):
    source = store.with_name("city")
    tsds.convert(source, tmp_path / "s.tsds", ConvertOptions(workers=0, classes=CLASSES, shard_nbytes=10_000))
    assert tsds.open(tmp_path / "s.tsds")["train"].statistics == tsds.open(store)["train"].statistics


def test_info_stats_and_preview(store, tmp_path):
    assert "uint8 32 x 48 · 2 classes · 255 is ignored" in run("info", store).stdout
    shown = run("stats", store).stdout
    assert "classes of mask, by pixels" in shown
    assert f"{tsds.open(store)['train'].statistics['mask']['ignored']:,} pixels are ignored" in shown
    run("preview", store, "--out", tmp_path / "sheet.png")
    with Image.open(tmp_path / "sheet.png") as sheet:
        assert sheet.width > 300


def test_a_picture_shows_classes_and_leaves_the_background_clear(tmp_path):
    mask = np.zeros((40, 40), np.uint8)
    mask[:, 20:] = 1
    samples = [{"image": np.full((40, 40, 3), 100, np.uint8), "mask": mask}]
    tsds.convert(samples, tmp_path / "s.tsds", IN_PROCESS)
    pixels = np.asarray(preview(tsds.open(tmp_path / "s.tsds")["train"], [0]))
    gray = (pixels == 100).all(axis=2)
    assert gray.sum() == 320 * 160  # the left half, eight times as large


def test_zarr_and_repack_keep_masks(store, tmp_path):
    tsds.repack(store, tmp_path / "z.tsds", layout="zarr")
    expected = tsds.open(store)["train"]["mask"]
    np.testing.assert_array_equal(tsds.open(tmp_path / "z.tsds")["train"]["mask"], expected)


def test_a_mask_without_an_ignored_value_opens():
    fields = tsds.open(VALID / "masks.tsds")["train"].fields
    assert (fields["mask"].ignored, fields["parts"].ignored) == (255, None)
    assert fields["parts"].describe() == "uint16 4 x 6 · 300 classes"


def test_masks_of_any_name_are_mirrored_by_a_plan_before_a_transform_of_batches():
    dataset = tsds.StoreDataset(VALID / "masks.tsds", decode=tsds.RandomHorizontalFlip(1), fields=["image", "parts"])
    batch = next(iter(tsds.DataLoader(dataset, 2, batch_transform=tsds.Normalize([0.5] * 3, [0.25] * 3))))
    np.testing.assert_array_equal(batch["parts"], np.asarray(dataset.split["parts"])[:2, :, ::-1])


def test_training_says_that_it_does_not_know_masks(store):
    with pytest.raises(OptionError) as error:
        tsds.training.task_of(tsds.open(store)["train"])
    assert one_line(error.value).endswith(
        "tsds train cannot train on masks yet; docs/keypoints.md#masks leads to a script that does."
    )


# --- torch ------------------------------------------------------------------------------------------------------


def test_batches_and_samples(store):
    dataset = tsds.StoreDataset(store)
    expected = np.asarray(dataset.split["mask"])
    batch = next(iter(tsds.DataLoader(dataset, batch_size=8)))
    assert batch["mask"].dtype == torch.uint8
    np.testing.assert_array_equal(batch["mask"], expected)
    np.testing.assert_array_equal(dataset[5]["mask"], expected[5])
    resident = next(iter(tsds.DataLoader(dataset, batch_size=8, residency="device", device="cpu")))
    np.testing.assert_array_equal(resident["mask"], expected)
    image, mask = tsds.StoreDataset(store, return_as="tuple")[2]
    assert (image.shape, mask.shape) == ((3, 32, 48), (32, 48))


def test_transforms_of_samples_move_masks_along(store):
    dataset = tsds.StoreDataset(store, transform=v2.RandomHorizontalFlip(p=1))
    sample = dataset[3]
    assert isinstance(sample["mask"], tv_tensors.Mask)
    np.testing.assert_array_equal(sample["mask"], dataset.split["mask"][3][:, ::-1])
    batch = next(iter(tsds.DataLoader(dataset, batch_size=4)))
    assert batch["mask"].shape == (4, 32, 48)


def batch_of(dtype=torch.uint8, size=(20, 24)):
    masks = torch.from_numpy(RNG.integers(0, 200, (4, *size)).astype(np.int32)).to(dtype)
    return {"image": masks[:, None].to(torch.float32).repeat(1, 3, 1, 1) / 255, "mask": masks}


@pytest.mark.parametrize("dtype", [torch.uint8, torch.uint16, torch.int64])
@pytest.mark.parametrize("padding_mode", ["constant", "reflect"])
def test_crops_and_flips_move_masks_as_their_images(dtype, padding_mode):
    crop = tsds.RandomCrop(18, padding=3, padding_mode=padding_mode, fill=1, mask_fill=255, seed=1)
    transform = tsds.Compose([crop, tsds.RandomHorizontalFlip(flip_pairs=()), tsds.transforms.ColorJitter(0)])
    batch = batch_of(dtype)
    found = transform(batch, torch.arange(4), 0)
    assert found["mask"].dtype == dtype
    np.testing.assert_array_equal(found["mask"].to(torch.int64), (found["image"][:, 0] * 255).round().to(torch.int64))
    assert not torch.equal(found["mask"].to(torch.int64), batch["mask"][:, :18, :18].to(torch.int64))


@pytest.mark.parametrize(("dtype", "ignored"), [(torch.uint8, 255), (torch.uint16, 65535), (torch.int64, 255)])
@pytest.mark.parametrize("mask_fill", [None, 201])
def test_what_a_crop_adds_is_ignored(dtype, ignored, mask_fill):
    """255 is a class, where there are more."""
    crop = tsds.RandomCrop(40, padding=10, mask_fill=mask_fill)
    found = crop({**batch_of(dtype)}, torch.arange(4), 0)["mask"].to(torch.int64)
    assert found.shape == (4, 40, 40)
    assert (found == (ignored if mask_fill is None else mask_fill)).sum() == 4 * (40 * 40 - 20 * 24)


def test_a_fill_beyond_the_numbers_of_int16():
    found = tsds.RandomCrop(26, padding=3, mask_fill=40_000)(batch_of(torch.uint16), torch.arange(4), 0)["mask"]
    assert (found.to(torch.int64) == 40_000).any()


def test_masks_of_another_size_are_refused():
    with pytest.raises(ValueError, match="a mask for each image"):
        tsds.RandomHorizontalFlip()({**batch_of(), "mask": torch.zeros(4, 5, 5, dtype=torch.uint8)})


def test_a_mask_with_a_wrong_pixel_is_found_by_verify():
    problems = tsds.verify(VALID.with_name("invalid") / "mask-range--above.tsds")
    assert [(problem.where, problem.reason) for problem in problems] == [("train/mask", "mask-range")]
    assert "found 3 in row 0 at (1, 0)" in problems[0].message
    with pytest.raises(FormatError, match="which is no class"):
        tsds.open(VALID.with_name("invalid") / "manifest--ignored.tsds")
