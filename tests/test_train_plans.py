"""Runs on images that differ in size, or are encoded: a decode plan places them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import tensorstore_ds as tsds
from stores import store_of
from tensorstore_ds.annex.training.augmentation import eval_plan, normalize, train_plan
from tensorstore_ds.annex.training.data import image_shape, task_of
from tensorstore_ds.loading.augment.fitting import Resize
from training_stores import small, trained

pytestmark = pytest.mark.usefixtures("one_thread")

SIZES = [(24, 32), (40, 30), (64, 48), (33, 33)]


def bands(row: int, seed: int) -> np.ndarray:
    """An image of one of several sizes: bright at the top, in the middle, or at the bottom, which is its class."""
    rng = np.random.default_rng((seed, row))
    height, width = SIZES[row // 3 % len(SIZES)]
    pixels = rng.integers(30, 60, (height, width, 3), np.uint8)
    third = height // 3
    pixels[row % 3 * third : (row % 3 + 1) * third] += 140
    return pixels


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Class folders of JPEG files of several sizes."""
    folder = tmp_path_factory.mktemp("photographs")
    for split, rows, seed in (("train", 72, 0), ("test", 24, 1)):
        for row in range(rows):
            path = folder / split / "abc"[row % 3] / f"{row:03}.jpg"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(bands(row, seed)).save(path, quality=95)
    return folder


@pytest.fixture(scope="module", params=["auto", "jpeg", "raw"])
def store(request: pytest.FixtureRequest, source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("stores") / f"{request.param}.tsds"
    tsds.convert(source, path, tsds.ConvertOptions(encoding=request.param, workers=0))
    return path


OPTIONS: dict[str, Any] = {"image_size": (24, 24), "learning_rate": 5e-3}


@pytest.mark.slow
@pytest.mark.drawn(1)
def test_a_model_learns_and_predicts_files_as_it_was_evaluated(store: Path, source: Path, tmp_path: Path) -> None:
    keeps_files = store.name == "auto.tsds"
    report, notes = trained(store, tmp_path / "run", **OPTIONS, epochs=20 if keeps_files else 2, augment="light")
    assert report.best["accuracy"] > (0.9 if keeps_files else 0.0)
    line = "images of 24x30 to 64x48 are decoded to 24x24 by Resize and RandomCrop; those that are evaluated by Resize"
    assert [note for note in notes if "decoded" in note] == [f"{line}; choose a size with `image_size`"]
    model, card = tsds.training.load_model(tmp_path / "run" / "best.pt")
    assert card.stored is None and card.vit.image_size == (24, 24)
    split = tsds.open(store)["test"]
    dataset = tsds.StoreDataset(store, "test", decode=eval_plan(split, card.vit))
    batch = next(iter(tsds.DataLoader(dataset, len(dataset), batch_transform=tsds.Normalize(card.mean, card.std))))
    with torch.inference_mode():
        expected = model(batch["image"]).softmax(1)
    assert float((expected.argmax(1) == batch["label"]).float().mean()) == pytest.approx(report.best["accuracy"])
    files = [source / "test" / str(split["key"][row]).removeprefix("test/") for row in range(len(split))]
    predictions = tsds.predict(tmp_path / "run" / "best.pt", files)
    for said, probabilities in zip(predictions, expected, strict=True):
        found = {one["class"]: one["probability"] for one in said.says["best"]}
        tolerance = 1e-5 if keeps_files else 0.05  # others are encoded again, or are decoded without a scale
        assert [found[name] for name in "abc"] == pytest.approx(probabilities.tolist(), abs=tolerance)


def test_plans_and_the_size_of_the_model(source: Path, tmp_path: Path) -> None:
    tsds.convert(source, tmp_path / "s.tsds", tsds.ConvertOptions(workers=0))
    split = tsds.open(tmp_path / "s.tsds")["train"]
    assert image_shape(split) == (16, 16, 3)  # the median of the shorter sides is 30
    vit = small(image_size=(24, 40)).vit((16, 16), 3)
    for augment, names in (
        ("none", ["Resize"]),
        ("light", ["Resize", "RandomCrop"]),
        ("strong", ["RandomStretchedCrop"]),
    ):
        plan = train_plan(split, small(augment=augment), vit)
        assert plan is not None and [type(step).__name__ for step in plan.transforms] == names
        images = (
            tsds.StoreDataset(tmp_path / "s.tsds", fields=["image"], decode=plan).gather([0, 4, 8]).columns["image"]
        )
        assert images.shape == (3, 3, 24, 40)  # type: ignore[union-attr]
    pixels = store_of(tmp_path / "p.tsds", [{"image": bands(0, 0), "label": 0}] * 2, "ab")["train"]
    assert train_plan(pixels, small(augment="strong"), vit) is None and eval_plan(pixels, vit) is None


def test_gray_files_among_those_in_color(tmp_path: Path) -> None:
    for row in range(12):
        path = tmp_path / "source" / "ab"[row % 2] / f"{row}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(bands(row, 0)).convert("L" if row % 5 == 0 else "RGB").save(path)
    tsds.convert(tmp_path / "source", tmp_path / "s.tsds", tsds.ConvertOptions(workers=0))
    found = normalize(tsds.open(tmp_path / "s.tsds")["train"])
    pixels = []
    for path in sorted((tmp_path / "source").rglob("*.jpg")):
        with Image.open(path) as image:
            pixels.append(np.asarray(image.convert("RGB")).reshape(-1, 3) / 255)
    every = np.concatenate(pixels)
    np.testing.assert_allclose((found.mean, found.std), (every.mean(0), every.std(0)), atol=1e-9)
    trained(tmp_path / "s.tsds", tmp_path / "run", **OPTIONS, epochs=1, batch_size=4)
    said = list(tsds.predict(tmp_path / "run" / "best.pt", sorted((tmp_path / "source").rglob("*.jpg"))))
    assert len(said) == 12


def test_keypoints_follow_the_plan_and_are_predicted_in_pixels_of_the_image(tmp_path: Path) -> None:
    samples = []
    for row in range(6):
        height, width = SIZES[row % len(SIZES)]
        pixels = np.zeros((height, width, 1), np.uint8)
        pixels[height // 4, width // 2] = 255
        points = np.array([[[width / 2, height / 4]]])
        samples.append({"image": pixels, "boxes": [[1, 1, width - 1, height - 1]], "keypoints": points})
    store = store_of(tmp_path / "s.tsds", samples)
    split = store["train"]
    task, vit = task_of(split), small().vit((16, 16), 1)
    for augment in ("none", "light", "strong"):
        plan = train_plan(split, small(augment=augment), vit)
        dataset = tsds.StoreDataset(store.path, fields=task.fields, decode=plan)
        batch: Any = next(iter(tsds.DataLoader(dataset, 6, collate="packed")))
        places = task.targets(batch)["keypoints"][:, 0] + 0.5  # in sides of the image
        if augment == "none":
            torch.testing.assert_close(places, torch.tensor([[0.5, 0.25]]).expand(6, 2))
        else:
            assert len(places.unique(dim=0)) > 1, "each image has a part of its own"
    trained(store.path, tmp_path / "run", **OPTIONS, epochs=1, batch_size=3)
    paths = []
    for row, sample in enumerate(samples):
        paths.append(tmp_path / f"{row}.png")
        Image.fromarray(sample["image"][:, :, 0]).save(paths[-1])
    model, card = tsds.training.load_model(tmp_path / "run" / "best.pt")
    batch = next(
        iter(tsds.DataLoader(tsds.StoreDataset(store, decode=Resize(card.vit.image_size)), 6, collate="packed"))
    )
    with torch.inference_mode():
        shares = model(tsds.Normalize(card.mean, card.std)(batch)["image"]) + 0.5
    for said, share, sample in zip(tsds.predict(tmp_path / "run" / "best.pt", paths), shares, samples, strict=True):
        height, width, _ = sample["image"].shape
        (point,) = said.says["keypoints"].values()
        assert point == pytest.approx([float(share[0]) * width, float(share[1]) * height], abs=1e-3)
