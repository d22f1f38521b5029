"""From stored images to what a model takes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision.transforms.v2 import functional

import tensorstore_ds as tsds
from small_stores import image_field, write_store
from stores import store_of
from tensorstore_ds.annex.training.augmentation import (
    PHOTOGRAPHS,
    RandomStretchedCrop,
    eval_transform,
    normalize,
    train_transform,
)
from tensorstore_ds.annex.training.options import Augment, DetectorOptions, TrainOptions, ViTOptions
from tensorstore_ds.errors import OptionError
from tensorstore_ds.format.schema import Keypoints
from tensorstore_ds.reading.store import Split
from training_stores import one_line

pytestmark = pytest.mark.usefixtures("one_thread")

STORED = (18, 30)  # height, width
AUGMENTS: list[Augment] = ["none", "light", "strong"]


def vit(size: tuple[int, int], channels: int) -> ViTOptions:
    return ViTOptions(size, channels, patch_size=4, width=8, depth=1, heads=1, mlp_width=8)


@pytest.fixture(scope="module")
def splits(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Split]:
    """Stores of smooth images by their number of channels."""
    rng = np.random.default_rng(0)
    found = {}
    for channels in (1, 3, 4):
        coarse = rng.integers(0, 256, (12, 6, 10, channels)).repeat(3, 1).repeat(3, 2)
        levels = coarse * np.linspace(0.4, 1, channels)
        samples = [{"image": image.astype(np.uint8), "label": row % 2} for row, image in enumerate(levels)]
        path = tmp_path_factory.mktemp("augmented") / "s.tsds"
        found[channels] = store_of(path, samples, ("ant", "bee"))["train"]
    return found


def stored(split: Split) -> dict[str, Any]:
    return {"image": torch.from_numpy(np.asarray(split["image"]).copy()).permute(0, 3, 1, 2)}


# --- images ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("channels", [1, 3, 4])
@pytest.mark.parametrize("augment", AUGMENTS)
@pytest.mark.parametrize("size", [STORED, (20, 12)])
@pytest.mark.parametrize("flip", [False, True])
def test_what_comes_out(
    splits: dict[int, Split], channels: int, augment: Augment, size: tuple[int, int], flip: bool
) -> None:
    split, rows = splits[channels], np.arange(12)
    batch = stored(split)
    transform = train_transform(split, TrainOptions(augment=augment, flip=flip), vit(size, channels))
    found = transform(batch, rows, 0)["image"]
    assert found.shape == (12, channels, *size) and found.dtype == torch.float32
    assert torch.equal(found, transform(batch, rows, 0)["image"])
    some = transform({"image": batch["image"][3:5]}, rows[3:5], 0)["image"]
    assert torch.equal(found[3:5], some), "a sample's augmentation does not depend on its batch"
    plain = eval_transform(split, TrainOptions(augment=augment, flip=flip), vit(size, channels))(batch)["image"]
    changed = augment != "none" or flip
    assert torch.equal(found, plain) is not changed
    assert torch.equal(found, transform(batch, rows, 1)["image"]) is not changed
    other = train_transform(split, TrainOptions(augment=augment, flip=flip, seed=1), vit(size, channels))
    assert torch.equal(found, other(batch, rows, 0)["image"]) is not changed
    means, deviations = found.mean((0, 2, 3)), found.std((0, 2, 3))
    if augment == "none" and size == STORED:
        torch.testing.assert_close(means, torch.zeros(channels), rtol=0, atol=1e-5)
        torch.testing.assert_close(deviations, torch.ones(channels), rtol=0, atol=1e-3)
    else:
        assert means.abs().max() < 0.6 and deviations.min() > 0.6 and deviations.max() < 1.4


def test_an_evaluation_is_resized_and_normalized_as_torchvision_does(splits: dict[int, Split]) -> None:
    split = splits[3]
    batch = stored(split)
    found = eval_transform(split, TrainOptions(), vit((9, 21), 3))(batch)["image"]
    resized = functional.to_dtype(functional.resize(batch["image"], [9, 21], antialias=True), scale=True)
    channels = split.statistics["image"]
    torch.testing.assert_close(found, functional.normalize(resized, channels["mean"], channels["std"]))
    assert normalize(split).mean == tuple(channels["mean"])
    halves = eval_transform(split, TrainOptions(), vit((9, 21), 3), dtype=torch.bfloat16)(batch)["image"]
    assert torch.equal(halves, found.to(torch.bfloat16))
    assert (
        train_transform(split, TrainOptions(), vit((9, 21), 3), dtype=torch.bfloat16).transforms[-1].dtype
        == torch.bfloat16
    )


@pytest.mark.parametrize("size", [(180, 300), (300, 180), (250, 250)])
def test_strong_shows_a_third_or_more_stretched_about_as_in_an_evaluation(
    splits: dict[int, Split], size: tuple[int, int]
) -> None:
    crop = train_transform(splits[3], TrainOptions(augment="strong"), vit((24, 24), 3)).transforms[0]
    assert isinstance(crop, RandomStretchedCrop)
    boxes = crop.make_params(crop.keys(torch.arange(500), 0), size)["boxes"].double()
    height, width = boxes[:, 2] / size[0], boxes[:, 3] / size[1]  # relative to the image, which becomes a square
    assert (height * width).min() > 0.34 and (height * width).min() < 0.4 and (height * width).max() > 0.9
    assert 0.74 < (width / height).min() < 0.8 and 1.25 < (width / height).max() < 1.35


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("augment", AUGMENTS)
def test_floating_point_images(tmp_path: Path, dtype: Any, augment: Augment) -> None:
    rng = np.random.default_rng(0)
    samples = [{"image": rng.random((8, 10, 1)).astype(dtype), "label": row % 2} for row in range(4)]
    split = store_of(tmp_path / "s.tsds", samples, ("ant", "bee"))["train"]
    for size in ((8, 10), (6, 12)):
        transform = train_transform(split, TrainOptions(augment=augment), vit(size, 1))
        found = transform(stored(split), np.arange(4), 0)["image"]
        assert found.shape == (4, 1, *size) and found.dtype == torch.float32 and found.isfinite().all()
        assert augment != "none" or found.mean().abs() < 0.1


@pytest.mark.parametrize("augment", AUGMENTS)
def test_floating_point_images_of_any_range_keep_their_values(tmp_path: Path, augment: Augment) -> None:
    """Colors are those of values in [0, 1], to which others would be clipped, in training alone."""
    rng = np.random.default_rng(0)
    samples = [{"image": rng.normal(40, 300, (8, 10, 1)).astype(np.float32), "label": row % 2} for row in range(32)]
    split = store_of(tmp_path / "s.tsds", samples, ("ant", "bee"))["train"]
    transform = train_transform(split, TrainOptions(augment=augment), vit((8, 10), 1))
    found = transform(stored(split), np.arange(32), 0)["image"]
    assert found.mean().abs() < 0.1 and abs(found.std() - 1) < 0.3 and found.max() > 2


@pytest.mark.parametrize("augment", AUGMENTS)
def test_around_floating_point_images_of_a_detector_is_their_mean(tmp_path: Path, augment: Augment) -> None:
    """114 would be 400 standard deviations away from images in [0, 1]."""
    pixels = np.random.default_rng(0).random((8, 20, 40, 1), np.float32)
    objects = {"boxes": [[2.0, 2, 9, 9]], "labels": [0]}
    split = store_of(tmp_path / "s.tsds", [{"image": each, "objects": objects} for each in pixels], ("a",))["train"]
    options, detector = TrainOptions(augment=augment), DetectorOptions("ssdlite", (32, 32), 1)
    dataset = tsds.StoreDataset(tmp_path / "s.tsds", "train")
    for transform in (train_transform(split, options, detector), eval_transform(split, options, detector)):
        batch = next(iter(tsds.DataLoader(dataset, 8, collate="packed", batch_transform=transform)))
        assert batch["image"].shape == (8, 1, 32, 32) and batch["image"].abs().max() < 3


def test_a_channel_that_is_constant(tmp_path: Path) -> None:
    samples = [{"image": np.full((4, 4, 3), (0, 51, 3 * row), np.uint8), "label": row % 2} for row in range(4)]
    split = store_of(tmp_path / "s.tsds", samples, ("ant", "bee"))["train"]
    found = eval_transform(split, TrainOptions(), vit((4, 4), 3))(stored(split))["image"]
    torch.testing.assert_close(found[:, :2], torch.zeros(4, 2, 4, 4), rtol=0, atol=1e-6)
    torch.testing.assert_close(found[:, 2].std(correction=0), torch.tensor(1.0))


@pytest.mark.parametrize(
    ("modes", "check", "expected"),
    [
        (("L", "RGB"), "full", ((0.0,) * 3, (1.0,) * 3)),  # all is black
        (("L",), "headers", tuple(values[1:2] for values in PHOTOGRAPHS)),
    ],
)
def test_gray_files_among_others_and_not_decoded(tmp_path: Path, modes: Any, check: Any, expected: Any) -> None:
    for name, mode in zip(("ant", "bee"), modes, strict=False):  # kept as they are: else all would be RGB
        (tmp_path / "src" / name).mkdir(parents=True)
        Image.new(mode, (4, 4)).save(tmp_path / "src" / name / "0.png")
    tsds.convert(tmp_path / "src", tmp_path / "s.tsds", encoding=tsds.conversion.SourceFiles(check=check), workers=0)
    found = normalize(tsds.open(tmp_path / "s.tsds")["train"])
    assert (found.mean, found.std) == expected


def test_statistics_of_a_stranger(tmp_path: Path) -> None:
    images = np.zeros((2, 4, 4, 3), np.uint8)
    channels = {"image": {"mean": ["a", "b", "c"], "std": 1}}
    arrays = {"image": images}
    path = write_store(tmp_path / "s.tsds", {"image": image_field(images)}, ("train", 2, arrays), statistics=channels)
    with pytest.raises(OptionError) as error:
        eval_transform(tsds.open(path)["train"], TrainOptions(), vit((4, 4), 3))
    assert 'Convert with `color="gray"` or `color="rgb"`.' in one_line(error.value)


# --- boxes and keypoints -----------------------------------------------------------------------------------------


def squares(path: Path, *, flip_pairs: tuple[tuple[int, int], ...] = ((0, 1),), rows: int = 40) -> tsds.Store:
    """A bright square an image: its box, and the middle of its left and right side as keypoints."""
    rng = np.random.default_rng(0)
    samples = []
    for _ in range(rows):
        y, x = rng.integers(1, STORED[0] - 6), rng.integers(1, STORED[1] - 6)  # not at the edge, which is continued
        pixels = np.zeros((*STORED, 1), np.uint8)
        pixels[y : y + 6, x : x + 6] = 200
        points = np.array([[[x, y + 3], [x + 6, y + 3]]], float)
        box = np.array([[x, y, x + 6, y + 6]], float)
        samples.append({"image": pixels, "boxes": box, "labels": np.array([0]), "keypoints": points})
    return store_of(path, samples, ("square",), keypoints=Keypoints(("left", "right"), flip_pairs))


@pytest.mark.parametrize("augment", AUGMENTS)
@pytest.mark.parametrize("size", [STORED, (24, 24), (30, 24)])
def test_objects_stay_where_they_are_seen(tmp_path: Path, augment: Augment, size: tuple[int, int]) -> None:
    store = squares(tmp_path / "s.tsds")
    transform = train_transform(store["train"], TrainOptions(augment=augment, flip=True), vit(size, 1))
    loader = tsds.DataLoader(tsds.StoreDataset(store.path), 40, collate="packed", batch_transform=transform)
    (batch,) = loader
    packed = batch["objects"]
    seen = flipped = 0
    for i in range(40):
        start, stop = packed["offsets"][i : i + 2].tolist()
        if start == stop:
            continue  # the square was cut off
        left, right = packed["keypoints"][start].tolist()
        assert left[0] < right[0], "left stays left"
        lit = batch["image"][i, 0] > (batch["image"][i, 0].max() + batch["image"][i, 0].min()) / 2
        y, x = (lit.nonzero() + 0.5).float().unbind(1)
        x1, y1, x2, y2 = packed["boxes"][start].tolist()
        inside = min(x1, y1) > 0 and x2 < size[1] and y2 < size[0]
        if not inside:
            continue
        seen += 1
        assert (x.min() - x1 - 0.5).abs() < 1 and (x.max() - x2 + 0.5).abs() < 1
        assert (y.min() - y1 - 0.5).abs() < 1 and (y.max() - y2 + 0.5).abs() < 1
        assert left == pytest.approx([x1, (y1 + y2) / 2], abs=1e-3)
        assert right == pytest.approx([x2, (y1 + y2) / 2], abs=1e-3)
        original = store["train"]["objects"][i]["boxes"][0, [0, 2]].mean() / STORED[1]
        flipped += abs((x1 + x2) / 2 / size[1] - original) > 1e-3
    assert seen > 10
    assert (0 < flipped < seen) if augment == "none" else True


def test_light_brings_no_black_borders(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    samples = [{"image": rng.integers(180, 200, (*STORED, 4), np.uint8), "label": row % 2} for row in range(8)]
    split = store_of(tmp_path / "s.tsds", samples, ("ant", "bee"))["train"]
    transform = train_transform(split, TrainOptions(augment="light"), vit(STORED, 4))
    found = transform(stored(split), np.arange(8), 0)["image"]
    assert found.abs().max() < 3 and found.std() == pytest.approx(1, abs=0.05)


def test_light_shifts_by_an_eighth(tmp_path: Path) -> None:
    """A point moves by no more than an eighth of the side, and up to it."""
    store = squares(tmp_path / "s.tsds", rows=40)
    transform = train_transform(store["train"], TrainOptions(augment="light"), vit(STORED, 1))
    moved = []
    for epoch in range(5):
        batch = next(iter(tsds.DataLoader(tsds.StoreDataset(store.path), 40, collate="packed")))
        batch["objects"] = {name: batch["objects"][name] for name in ("offsets", "keypoints")}
        before = batch["objects"]["keypoints"]
        moved.append(transform(batch, np.arange(40), epoch)["objects"]["keypoints"] - before)
    away = torch.cat(moved)
    assert torch.equal(away[:, 0], away[:, 1]) and torch.equal(away, away.round())
    assert away[..., 0].abs().max() == STORED[1] // 8 and away[..., 1].abs().max() == STORED[0] // 8
    assert len(away[:, 0].unique(dim=0)) == (2 * (STORED[1] // 8) + 1) * (2 * (STORED[0] // 8) + 1)
