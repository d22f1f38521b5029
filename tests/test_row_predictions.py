"""Predictions and losses of the samples of a store become its fields: as torch computes them by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional

import tensorstore_ds as tsds
from detection_stores import shape_store
from learners import randomized
from small_stores import tsds as command
from stores import store_of
from tensorstore_ds.annex.training.augmentation import eval_transform
from tensorstore_ds.annex.training.checkpoint import ModelCard, save
from tensorstore_ds.annex.training.data import task_of
from tensorstore_ds.annex.training.options import TrainOptions, ViTOptions
from tensorstore_ds.annex.training.vit import ViT
from tensorstore_ds.errors import FormatError
from training_stores import annotated, labelled, one_line, trained

pytestmark = pytest.mark.usefixtures("one_thread")
OPTIONS = TrainOptions(augment="none")


def model_of(path: Path, task: Any, *, size: int = 12, channels: int = 1) -> tuple[ViT, Path]:
    """A model with random weights and its checkpoint, as a run on the store writes it."""
    split = tsds.open(path)["train"]
    learned = task_of(split, task)
    vit = ViTOptions((size, size), channels, patch_size=4, width=8, depth=1, heads=2, mlp_width=8)
    made: ViT = randomized(ViT(vit, learned.outputs).eval())
    mean, std, _ = split.channel_moments or ([0.0], [1.0], 1)
    card = ModelCard(vit, learned, tuple(mean), tuple(std), tuple(split.image_shapes[0, :2].tolist()), "pad")
    save(path.with_name("best.pt"), card, {"weights": made.state_dict()})
    return made, path.with_name("best.pt")


def outputs_by_hand(made: ViT, split: tsds.Split, train: tsds.Split | None = None) -> torch.Tensor:
    images = torch.from_numpy(np.asarray(split["image"]).copy()).permute(0, 3, 1, 2)
    with torch.no_grad():
        outputs: torch.Tensor = made(eval_transform(train or split, OPTIONS, made.options)({"image": images})["image"])
    return outputs


def test_classes_confidences_and_losses(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    samples = [(rng.integers(0, 256, (12, 12, 1), np.uint8), i % 3) for i in range(70)]
    path = store_of(tmp_path / "s.tsds", samples, ("a", "b", "c"), split_into={"train": 0.8, "val": 0.2}).path
    labels = np.asarray(tsds.open(path)["train"]["label"][:]).copy()
    labels[5] = -1
    tsds.editing.add_fields(path, {"label": {"train": labels}}, classes={"label": ("a", "b", "c")}, replace=True)
    made, checkpoint = model_of(path, "classification")
    done = tsds.training.add_predictions(checkpoint, path, device="cpu")
    assert list(done.fields) == ["prediction", "confidence", "loss"]
    store = tsds.open(path)
    for split in map(store.__getitem__, store):
        outputs = outputs_by_hand(made, split, store["train"])
        target = torch.from_numpy(np.asarray(split["label"][:]).copy())
        known = target >= 0
        expected = functional.cross_entropy(outputs, target.clamp(min=0), reduction="none")
        assert np.array_equal(split["prediction"][:], outputs.argmax(1))
        assert split["confidence"][:] == pytest.approx(outputs.softmax(1).max(1).values.numpy(), abs=1e-5)
        assert split["loss"][:][known] == pytest.approx(expected[known].numpy(), abs=1e-4)
        assert np.isnan(split["loss"][:][~known]).all() and split["loss"].dtype == np.float32
        assert split.fields["prediction"].classes == ("a", "b", "c")
    assert tsds.verify(path) == []
    assert task_of(store["train"]).label_field == "label"  # not the predictions
    wrong = sum(int((split["prediction"][:] != split["label"][:]).sum()) for split in map(store.__getitem__, store))
    summary = tsds.editing.filter_store(path, tmp_path / "wrong.tsds", "prediction != label")
    assert sum(summary.rows.values()) == wrong > 0


def test_one_split_then_another_and_a_prefix(tmp_path: Path) -> None:
    path = labelled(tmp_path, train=20, test=6)
    _, checkpoint = model_of(path, "classification")
    words = ("predict", checkpoint, path, "--add", "--device", "cpu")
    done = command(*words, "--split", "test", "--prefix", "vit_")
    assert done.exit_code == 0, done.stderr
    assert "added: vit_prediction (int64 · 3 classes)\nadded: vit_confidence (float32)\nadded: vit_loss" in done.stdout
    store = tsds.open(path)
    assert np.isnan(store["train"]["vit_loss"][:]).all() and not np.isnan(store["test"]["vit_loss"][:]).any()
    assert (store["train"]["vit_prediction"][:] == -1).all()
    done = command(*words, "--split", "train", "--prefix", "vit_")
    assert done.exit_code == 1 and "Pass --replace to replace it." in done.stderr
    assert command(*words, "--split", "train", "--prefix", "vit_", "--replace").exit_code == 0
    after = tsds.open(path)
    assert np.array_equal(after["test"]["vit_loss"][:], store["test"]["vit_loss"][:])
    assert not np.isnan(after["train"]["vit_loss"][:]).any()


@pytest.mark.parametrize("task", ["keypoints", "multilabel", "classification+keypoints"])
def test_keypoints_and_several_labels(tmp_path: Path, task: str) -> None:
    path = annotated(tmp_path / "s.tsds")
    made, checkpoint = model_of(path, task)
    tsds.training.add_predictions(checkpoint, path, device="cpu")
    split = tsds.open(path)["train"]
    outputs = outputs_by_hand(made, split)
    total = np.zeros(len(split), np.float32)
    if task == "multilabel":
        assert np.asarray(split["probabilities"]) == pytest.approx(outputs.sigmoid().numpy(), abs=1e-5)
        hot = torch.eye(2)[[int(row["labels"][0]) for row in split["objects"][:]]]
        total += functional.binary_cross_entropy_with_logits(outputs, hot, reduction="none").mean(1).numpy()
    if "keypoints" in task:
        places = outputs[:, -4:].view(-1, 2, 2)
        assert np.asarray(split["keypoints"]) == pytest.approx((places.numpy() + 0.5) * 16, abs=1e-3)
        truth = torch.stack([torch.from_numpy(row["keypoints"][0].copy()) for row in split["objects"][:]]) / 16 - 0.5
        total += functional.smooth_l1_loss(places, truth, beta=0.02, reduction="none").mean((1, 2)).numpy()
    if "classification" in task:
        labels = torch.tensor([int(row["labels"][0]) for row in split["objects"][:]])
        total += functional.cross_entropy(outputs[:, :2], labels, reduction="none").numpy()
        assert split["prediction"][:].tolist() == outputs[:, :2].argmax(1).tolist()
        assert split.fields["prediction"].kind == "array"  # or the next run would learn it
    assert split["loss"][:] == pytest.approx(total, abs=1e-3)
    assert tsds.verify(path) == []


def test_the_error_of_keypoints_is_in_pixels_of_the_stored_images(tmp_path: Path) -> None:
    """The model sees squares."""
    rng = np.random.default_rng(0)
    samples = []
    for _ in range(24):
        x, y = rng.integers(0, 10, 2)
        objects = {"boxes": [[x, y, x + 9, y + 4]], "keypoints": [[[x, y], [x + 9, y + 4]]]}
        samples.append({"image": rng.integers(0, 256, (14, 40, 1), np.uint8), "objects": objects})
    path = store_of(tmp_path / "s.tsds", samples, split_into={"train": 0.5, "val": 0.5}).path
    report, _ = trained(path, tmp_path / "run", epochs=1)
    best = tmp_path / "run" / "best.pt"
    tsds.training.add_predictions(best, path, device="cpu")
    split, errors = tsds.open(path)["val"], []
    for found, objects in zip(split["keypoints"][:], map(split["objects"].__getitem__, range(len(split))), strict=True):
        errors.append(np.linalg.norm(found - objects["keypoints"][0], axis=1) / np.sqrt(9 * 4))
    expected = pytest.approx(np.mean(errors), rel=1e-5)
    assert tsds.training.evaluate(best, path, split="val", device="cpu").metrics["nme"] == expected
    assert report.best["nme"] == expected


def test_a_store_with_other_keypoints_or_none(tmp_path: Path) -> None:
    _, checkpoint = model_of(annotated(tmp_path / "s.tsds"), "keypoints")
    other, bare = annotated(tmp_path / "other.tsds", points=3), tmp_path / "bare.tsds"
    with pytest.raises(tsds.OptionError, match="expected the keypoints of the model, 0, 1, found 0, 1, 2"):
        tsds.training.add_predictions(checkpoint, other, device="cpu")
    with tsds.Writer(bare) as writer:
        writer.append("train", image=np.zeros((16, 16, 1), np.uint8), boxes=np.array([[0.0, 0, 4, 4]]))
    with pytest.raises(tsds.OptionError, match="expected objects with keypoints in the field 'objects', found none"):
        tsds.training.evaluate(checkpoint, bare, device="cpu")
    assert list(tsds.training.add_predictions(checkpoint, bare, device="cpu").fields) == ["keypoints"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("task", "value"), [("classification", 9), ("multilabel", -1), ("multilabel", 9), ("classification+keypoints", -1)]
)
def test_damaged_labels_are_one_line(tmp_path: Path, task: str, value: int) -> None:
    """Not the last class, which -1 is to torch."""
    path = labelled(tmp_path, train=6, test=6) if task == "classification" else annotated(tmp_path / "store.tsds")
    _, checkpoint = model_of(path, task, size=12 if task == "classification" else 16)
    of_labels = "label" if task == "classification" else "objects/labels"
    file = next(each for each in (path / "train" / "00000" / of_labels).rglob("*") if each.name == "0")
    file.write_bytes(value.to_bytes(8, "little", signed=True) + file.read_bytes()[8:])
    with pytest.raises(FormatError, match=f"train/{of_labels}: expected labels in .*, found") as error:
        tsds.training.evaluate(checkpoint, path, split="train", device="cpu")
    one_line(error.value)


def test_a_detector(tmp_path: Path) -> None:
    path = shape_store(tmp_path / "s.tsds", train=8, val=3)
    options = TrainOptions(epochs=1, batch_size=8, augment="none", device="cpu", precision="fp32")
    tsds.train(path, options, task="detection", image_size=96, out=tmp_path / "run")
    checkpoint = tmp_path / "run" / "best.pt"
    found = tsds.training.predict_store(checkpoint, path, split="train", device="cpu")
    tsds.training.add_predictions(checkpoint, path, device="cpu")
    split = tsds.open(path)["train"]
    rows = found.detections
    for row in range(len(split)):
        expected, stored = rows[rows[:, 0] == row], split["predictions"][row]
        inside = expected[:, 3:].clip(0, np.float32(96))
        some = (inside[:, 2:] > inside[:, :2]).all(1)
        assert np.array_equal(stored["boxes"], inside[some]) and np.array_equal(stored["scores"], expected[some, 2])
        assert np.array_equal(stored["labels"], expected[some, 1])
    assert sum(len(each["boxes"]) for each in split["predictions"][:]) > 0
    assert split.fields["predictions"].classes == found.classes and tsds.verify(path) == []
    assert task_of(split, "detection").objects_field == "objects"

    score = float(np.median(np.concatenate([each["scores"] for each in split["predictions"][:]])))
    command("predict", checkpoint, path, "--add", "--replace", "--score", score, "--device", "cpu")
    before, likely = split["predictions"], tsds.open(path)["train"]["predictions"]
    for row in range(len(split)):
        some = before[row]["scores"] >= score
        assert {name: each.tolist() for name, each in likely[row].items()} == {
            name: each[some].tolist() for name, each in before[row].items()
        }


def test_what_is_refused(tmp_path: Path) -> None:
    path = labelled(tmp_path, train=6, test=3)
    _, checkpoint = model_of(path, "classification")
    other = store_of(tmp_path / "o.tsds", [(np.zeros((12, 12, 1), np.uint8), i % 2) for i in range(4)], ("q", "r")).path
    pixels = [(np.zeros((12, 12, 1), np.uint8), i % 3) for i in range(6)]
    turned = store_of(tmp_path / "t.tsds", pixels, ("a", "c", "b")).path
    for words, message in (
        (
            (turned,),
            "of the model, b, c, found c, b. Convert the source again with its classes in the order of the model.",
        ),
        ((other, "--add"), "expected the classes of the model, a, b, c, found q, r. Bring them together with"),
        ((path, "--add", "--split", "val"), "expected splits of "),
        ((path, "--add", "--score", "0.5"), "--score: expected none for classification, whose predictions are all"),
        ((path, "--add", "--results", "r.json"), "--results: expected it without --add, found both."),
        ((path, "--prefix", "x"), "expected --add with them"),
        (("a.png", "b.png", "--add"), "--add: expected one store, found images."),
        ((tmp_path / "missing.tsds", "--add"), "there is no such store"),
    ):
        done = command("predict", checkpoint, *words, "--device", "cpu")
        assert done.exit_code == 1 and message in done.stderr and len(done.stderr.splitlines()) == 1, done.stderr
