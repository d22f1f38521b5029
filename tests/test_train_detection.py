"""Whole runs of detectors, on small stores of circles and squares, and what they find in stores and files."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision.models.detection import ssdlite320_mobilenet_v3_large
from torchvision.models.detection.transform import GeneralizedRCNNTransform
from torchvision.ops import box_iou

import tensorstore_ds as tsds
from detection_stores import CLASSES, shape_store, shapes
from small_stores import tsds as command
from stores import Samples
from tensorstore_ds.annex.training import tasks
from tensorstore_ds.annex.training.coco_map import Precision, coco_map
from tensorstore_ds.annex.training.detections import IGNORED, MISSED, RIGHT, WRONG, StoreDetections, matched
from tensorstore_ds.annex.training.history import plain
from tensorstore_ds.annex.training.learner import Learner
from tensorstore_ds.annex.training.options import DetectorOptions, TrainOptions
from tensorstore_ds.annex.training.tasks import Detection
from tensorstore_ds.errors import OptionError, TrainingStopped
from training_stores import finished, load_history, one_line, torchrun, trained as run_of

pytest.importorskip("pycocotools")

#: A step of a few tenths of a second.
FAST: dict[str, Any] = {"image_size": 64, "epochs": 2, "batch_size": 4, "device": "cpu", "num_threads": 1}


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return shape_store(tmp_path_factory.mktemp("shapes") / "shapes.tsds", train=10, val=5, size=48)


@pytest.fixture(autouse=True)
def undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without matplotlib's pictures, which take long."""
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)


def trained(store: Path, out: Path, *, resume: bool = False, **changes: Any) -> tsds.training.TrainReport:
    return run_of(store, out, TrainOptions(**{**FAST, **changes}), resume=resume)[0]


def weights(folder: Path) -> dict[str, torch.Tensor]:
    found: dict[str, torch.Tensor] = torch.load(folder / "last.pt", weights_only=True)["weights"]
    return found


def same(a: Path, b: Path) -> bool:
    first, second = weights(a), weights(b)
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


# --- learning ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def learned(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, tsds.training.TrainReport]:
    folder = tmp_path_factory.mktemp("learned")
    store = shape_store(folder / "shapes.tsds", train=160, val=16)
    options = {"image_size": 96, "epochs": 12, "batch_size": 8, "augment": "none", "learning_rate": 2e-3}
    return store, folder / "run", trained(store, folder / "run", **options)


@pytest.mark.slow
@pytest.mark.drawn(0)
def test_shapes_are_found(learned: tuple[Path, Path, tsds.training.TrainReport]) -> None:
    _, out, report = learned
    assert report.task == "detection" and report.metric == "map"
    assert report.best["map"] > 0.5 and report.best["map50"] > 0.85
    assert [each["class"] for each in report.classes] == list(CLASSES)
    assert np.mean([each["ap"] for each in report.classes]) == pytest.approx(report.best["map"])
    history = load_history(out)
    assert max((r.eval or {})["map"] for r in history) == report.best["map"]
    assert {"loss", "classification", "bbox_regression"} == set(history[-1].train)
    assert history[-1].train["loss"] == pytest.approx(
        history[-1].train["classification"] + history[-1].train["bbox_regression"], rel=1e-5
    )
    assert report.pictures == ["curves.png"] and (out / "curves.png").exists()
    written = json.loads((out / "report.json").read_text("utf-8"))
    assert written["classes"][0]["objects"] == sum((s["labels"] == 0).sum() for s in shapes(16, seed=2))


@pytest.mark.slow
@pytest.mark.drawn(0)
def test_what_a_store_is_predicted_to_have(
    learned: tuple[Path, Path, tsds.training.TrainReport], tmp_path: Path
) -> None:
    """It is what the evaluation saw, and pycocotools comes to the same mAP from the files of results and an export."""
    from pycocotools.coco import COCO
    from pycocotools.cocoeval import COCOeval

    store, out, report = learned
    found = tsds.training.predict_store(out / "best.pt", store, split="val")
    assert found.precision().metrics == pytest.approx(dict(report.best), abs=1e-4)
    found.write_results(tmp_path / "results.json")
    tsds.export(store, tmp_path / "coco", to="coco")
    truth = COCO(tmp_path / "coco" / "annotations" / "instances_val.json")
    evaluation = COCOeval(truth, truth.loadRes(str(tmp_path / "results.json")), "bbox")
    evaluation.evaluate()
    evaluation.accumulate()
    evaluation.summarize()
    assert evaluation.stats[0] == pytest.approx(found.precision().metrics["map"], abs=1e-12)
    found.write_store(tmp_path / "found.tsds")
    copy = tsds.open(tmp_path / "found.tsds")["val"]
    kept = found.detections[found.detections[:, 2] >= found.best_score()]
    assert [copy.key(row) for row in range(16)] == [found.split.key(row) for row in range(16)]
    for row in range(16):
        np.testing.assert_array_equal(copy["image"][row], found.split["image"][row])
        np.testing.assert_allclose(copy["objects"][row]["boxes"], kept[kept[:, 0] == row, 3:])

    # Files say the same as the store.
    paths = []
    for row in range(3):
        paths.append(tmp_path / f"{row}.png")
        Image.fromarray(found.split["image"][row]).save(paths[-1])
    for row, prediction in enumerate(tsds.predict(out / "best.pt", paths)):
        rows = found.detections[found.detections[:, 0] == row]
        objects = prediction.says["objects"]
        assert len(objects) == len(rows)
        np.testing.assert_allclose([o["box"] for o in objects], rows[:, 3:], atol=0.05)
        np.testing.assert_allclose([o["score"] for o in objects], rows[:, 2], atol=1e-4)
        assert [o["class"] for o in objects] == [CLASSES[int(label)] for label in rows[:, 1]]


@pytest.mark.slow
@pytest.mark.drawn(0)
def test_the_command_for_a_store(learned: tuple[Path, Path, tsds.training.TrainReport], tmp_path: Path) -> None:
    store, out, report = learned
    flags = ("--results", tmp_path / "r.json", "--picture", tmp_path / "p.png", "--out", tmp_path / "s.tsds")
    done = command("predict", out / "best.pt", store, *flags)
    assert done.exit_code == 0, done.stderr
    assert "val: 16 samples" in done.stdout and f"map {report.best['map']:.3f}" in done.stdout
    assert len(json.loads((tmp_path / "r.json").read_text("utf-8"))) > 16
    with Image.open(tmp_path / "p.png") as picture:
        assert picture.size[0] > 300
    assert len(tsds.open(tmp_path / "s.tsds")["val"]) == 16
    as_json = json.loads(command("predict", out / "best.pt", store, "--json").stdout)
    assert as_json["map"] == pytest.approx(report.best["map"], abs=1e-4) and set(as_json["classes"]) == set(CLASSES)
    refused = command("predict", out / "best.pt", tmp_path / "p.png", "--results", tmp_path / "r2.json")
    assert refused.exit_code == 1 and "--results: expected one store, found images" in refused.stderr
    assert command("predict", out / "best.pt", tmp_path / "p.png").exit_code == 0


# --- going on ----------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_stopped_run_goes_on_to_the_same_bits(store: Path, tmp_path: Path) -> None:
    """Batch norm has statistics, so a step is finished before a run ends."""
    changes: dict[str, Any] = {"augment": "strong", "flip": True, "ema": 0.9, "accumulate": 2}
    trained(store, tmp_path / "whole", **changes, optimizer="sgd", precision="bf16")
    stop = tsds.training.Listeners(progress=lambda event: os.kill(os.getpid(), 15) if event.batch == 3 else None)
    options = TrainOptions(**{**FAST, **changes}, optimizer="sgd", precision="bf16")
    with pytest.raises(TrainingStopped):
        tsds.train(store, options, out=tmp_path / "run", listeners=stop)
    run_of(store, tmp_path / "run", options, resume=True)
    assert same(tmp_path / "whole", tmp_path / "run")
    got, expected = (load_history(tmp_path / name) for name in ("run", "whole"))
    assert [(r.train, r.eval) for r in got] == [(r.train, r.eval) for r in expected]


def test_measuring_threads_changes_no_statistics() -> None:
    learner = Learner(
        DetectorOptions("ssdlite", (64, 64)),
        Detection(CLASSES, objects_field="objects"),
        TrainOptions(),
        device="cpu",
        steps=2,
    )
    before = {name: value.clone() for name, value in learner.module.state_dict().items()}
    boxes = tsds.loading.PackedObjects(
        torch.tensor([0, 1, 1]), {"boxes": torch.tensor([[3.0, 3, 40, 40]]), "labels": torch.tensor([1])}
    )
    batch = {"image": torch.randn(2, 3, 64, 64), "objects": {"offsets": boxes.offsets, **boxes.values}}
    learner.rehearse(batch, 1.0)
    assert all(torch.equal(value, before[name]) for name, value in learner.module.state_dict().items())
    learner.train_batch(batch)
    assert not all(torch.equal(value, before[name]) for name, value in learner.module.state_dict().items())


@pytest.mark.slow
def test_steps_are_those_of_torchvisions_reference_script() -> None:
    """Its `train_one_epoch`: the sum of the losses, SGD with momentum, a scheduler; on the same batches."""
    rate, steps = 0.01, 6
    options = TrainOptions(
        optimizer="sgd", learning_rate=rate, warmup=0.5, clip=0.0, weight_decay=0.0, batch_size=2, seed=5
    )
    task = Detection(CLASSES, objects_field="objects")
    learner = Learner(DetectorOptions("ssdlite", (64, 64)), task, options, device="cpu", steps=steps)
    torch.manual_seed(5)
    model = ssdlite320_mobilenet_v3_large(weights=None, weights_backbone=None, num_classes=3).train()
    model.transform = GeneralizedRCNNTransform(1, 1, [0.0] * 3, [1.0] * 3, size_divisible=1, _skip_resize=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=rate, momentum=0.9)
    factors = [1 / 3, 2 / 3, 1.0, 1.0, 0.75, 0.25, 0.0]  # half of the steps up, then half a cosine
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, factors.__getitem__)
    generator = torch.Generator().manual_seed(1)
    first = None
    for _ in range(steps):
        images = torch.randn(2, 3, 64, 64, generator=generator)
        corner = torch.rand(2, 2, generator=generator) * 30
        boxes, labels = torch.cat([corner, corner + 25], 1), torch.tensor([0, 1])
        objects = {"offsets": torch.tensor([0, 1, 2]), "boxes": boxes, "labels": labels}
        loss = learner.train_batch({"image": images, "objects": objects})
        targets = [{"boxes": boxes[i : i + 1], "labels": labels[i : i + 1] + 1} for i in range(2)]
        expected = sum(model(list(images), targets).values())
        optimizer.zero_grad()
        expected.backward()
        optimizer.step()
        scheduler.step()
        torch.testing.assert_close(loss, expected.detach(), rtol=1e-4, atol=1e-5)
        first = loss if first is None else first
    assert first is not None and not torch.isclose(first, loss, rtol=0.05)
    for name, value in learner.module.state_dict().items():
        torch.testing.assert_close(value, model.state_dict()[name], rtol=1e-3, atol=1e-5)


@pytest.mark.slow
@pytest.mark.drawn(3, of="ranks")
def test_two_ranks_do_what_one_does_with_a_batch_of_twice_the_size(tmp_path: Path) -> None:
    """All images are alike here: the statistics of batch norm and the means of the losses are then those of a half."""
    one = shapes(1, size=48, seed=4)[0]
    splits = {"train": Samples([one] * 16, CLASSES), "val": Samples(shapes(5, size=48, seed=2), CLASSES)}
    tsds.convert(splits, tmp_path / "s.tsds", tsds.ConvertOptions(workers=0))
    changes = {"augment": "none", "learning_rate": 1e-3, "optimizer": "sgd", "torch_threads": 1}
    trained(tmp_path / "s.tsds", tmp_path / "one", batch_size=8, **changes)
    flags = ["--image-size", "64", "--epochs", "2", "--batch-size", "4", "--device", "cpu", "--augment", "none"]
    flags += ["--lr", "1e-3", "--optimizer", "sgd", "--torch-threads", "1"]
    finished(torchrun("-m", "tsds_cli", "train", tmp_path / "s.tsds", "--out", tmp_path / "two", *flags))
    first, second = weights(tmp_path / "one"), weights(tmp_path / "two")
    for name in first:
        if "running_var" not in name and "num_batches" not in name:  # a variance is that of a sample of another size
            torch.testing.assert_close(first[name], second[name], rtol=1e-3, atol=5e-4)
    for a, b in zip(load_history(tmp_path / "one"), load_history(tmp_path / "two"), strict=True):
        # SSD learns from the hardest negatives, and rounding decides among equal ones: 0.1 %. Twice the rate is 0.9 %.
        assert b.train == pytest.approx(a.train, rel=4e-3)
    found = torch.load(tmp_path / "two" / "best.pt", weights_only=True)["sums"]
    assert found["objects"].shape == (sum(len(s["labels"]) for s in shapes(5, size=48, seed=2)), 7)
    rows = found["objects"][:, 0]
    assert torch.equal(rows, rows.sort().values) and set(rows.tolist()) == {0.0, 1.0, 2.0, 3.0, 4.0}


@pytest.mark.slow
@pytest.mark.drawn(3, of="ranks")
def test_both_ranks_evaluate_the_model_that_is_saved(tmp_path: Path) -> None:
    """Batch norm has statistics of the images that a rank has seen last. Detections end where images do."""
    splits = {"train": shapes(16, size=48, seed=1), "val": shapes(5, size=48, seed=2)}
    for sample in splits["val"]:
        sample["image"] = np.pad(sample["image"], ((0, 0), (0, 24), (0, 0)))
    tsds.convert({n: Samples(s, CLASSES) for n, s in splits.items()}, tmp_path / "s.tsds", workers=0)
    flags = ["--image-size", "64", "--epochs", "1", "--batch-size", "4", "--device", "cpu", "--lr", "1e-3"]
    finished(torchrun("-m", "tsds_cli", "train", tmp_path / "s.tsds", "--out", tmp_path / "run", *flags))
    best = tmp_path / "run" / "best.pt"
    sums = torch.load(best, weights_only=True)["sums"]
    alone = tsds.training.predict_store(best, tmp_path / "s.tsds", split="val", device="cpu")
    found, rows_and_scores = sums["detections"], [0, 2]  # other columns change places if scores are nearly equal
    np.testing.assert_allclose(found[:, rows_and_scores], alone.detections[:, rows_and_scores], rtol=0, atol=2e-6)
    np.testing.assert_allclose(found[:, 3:].mean(0), alone.detections[:, 3:].mean(0), rtol=1e-4)
    assert found[:, 6].max() == 48
    assert alone.objects is not None
    np.testing.assert_allclose(sums["objects"], alone.objects, rtol=0, atol=1e-4)


def test_the_best_score_is_the_best_of_all_thresholds(tmp_path: Path) -> None:
    """With many equal scores, as a model has them that has learned little."""
    split = tsds.open(shape_store(tmp_path / "s.tsds", train=1, val=1))["val"]
    for seed in range(20):
        rng = np.random.default_rng(seed)
        boxes = rng.integers(0, 3, (12, 1)) * 8 + np.array([0, 0, 6, 6])
        objects = np.hstack([np.zeros((4, 3)), boxes[:4]]).astype(np.float32)
        found = np.hstack([np.zeros((12, 2)), rng.integers(1, 5, (12, 1)) / 4, boxes]).astype(np.float32)
        detections = StoreDetections(split, CLASSES, found, objects)

        def f1(score: float, found: Any = found, objects: Any = objects) -> float:
            colors = matched(found, objects).from_score(score)
            right = len(colors[RIGHT])
            return 2 * right / (right + len(colors[WRONG]) + len(objects)) if right else 0.0

        best = max(map(f1, (0.25, 0.5, 0.75, 1.0)))
        assert f1(detections.best_score()) == pytest.approx(best)


# --- what is learned ---------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_ignored_objects_are_not_learned(tmp_path: Path) -> None:
    """A run with them is one without them, and they are told of: half are difficult, half are crowds."""
    paths = []
    for name in ("with", "without"):
        rows = []
        for i, sample in enumerate(shapes(8, size=48, seed=3)):
            boxes, labels = [*sample["boxes"]], [*sample["labels"].tolist()]
            marks = {"difficult": [0] * len(labels), "iscrowd": [0] * len(labels)}
            if name == "with":
                boxes, labels = [*boxes, [1, 1, 30, 30]], [*labels, 0]
                marks = {flag: [*values, int((flag == "iscrowd") == i % 2)] for flag, values in marks.items()}
            flags = {flag: np.array(values, np.uint8) for flag, values in marks.items()}
            rows.append({**sample, "boxes": boxes, "labels": np.array(labels), **flags})
        paths.append(tmp_path / f"{name}.tsds")
        tsds.convert(
            {"train": Samples(rows, CLASSES), "val": Samples(rows, CLASSES)}, paths[-1], tsds.ConvertOptions(workers=0)
        )
    _, notes = run_of(paths[0], tmp_path / "a", TrainOptions(**{**FAST, "epochs": 1}))
    trained(paths[1], tmp_path / "b", epochs=1)
    assert same(tmp_path / "a", tmp_path / "b")
    assert "8 objects of train that are difficult or iscrowd are not learned" in notes
    assert "8 objects of val that are difficult or iscrowd are ignored, as COCO ignores crowds" in notes


@pytest.mark.slow
def test_images_of_differing_sizes_keep_their_shape(tmp_path: Path) -> None:
    """They are decoded into a letterbox, and so are files."""
    for split, rows in (("train", 6), ("val", 4)):
        (tmp_path / "source" / split / "images").mkdir(parents=True)
        (tmp_path / "source" / split / "labels").mkdir()
        for row in range(rows):
            Image.new("RGB", (60 + 10 * row, 40), (9 * row, 80, 40)).save(
                tmp_path / "source" / split / "images" / f"{row}.png"
            )
            (tmp_path / "source" / split / "labels" / f"{row}.txt").write_text("0 0.5 0.5 0.4 0.6\n", "utf-8")
    lines = "train: train/images\nval: val/images\nnames: [thing]\n"
    (tmp_path / "source" / "data.yaml").write_text(lines, "utf-8")
    tsds.convert(tmp_path / "source", tmp_path / "s.tsds", tsds.ConvertOptions(workers=0, encoding="source"))
    _, notes = run_of(tmp_path / "s.tsds", tmp_path / "run", TrainOptions(**FAST))
    assert any("are decoded to 64x64 by Letterbox" in note for note in notes)
    found = tsds.training.predict_store(tmp_path / "run" / "last.pt", tmp_path / "s.tsds", split="val")
    assert found.objects is not None
    expected = [[0.3 * w, 8, 0.7 * w, 32] for w in (60, 70, 80, 90)]
    np.testing.assert_allclose(found.objects[:, 3:], expected, atol=0.02)
    path = tmp_path / "source" / "val" / "images" / "3.png"
    (prediction,) = tsds.predict(tmp_path / "run" / "last.pt", [path])
    rows = found.detections[found.detections[:, 0] == 3]
    np.testing.assert_allclose([o["box"] for o in prediction.says["objects"]], rows[:, 3:], atol=0.05)


@pytest.mark.slow
def test_fasterrcnn_and_gray_images_with_weights(tmp_path: Path) -> None:
    rows = [{**s, "image": s["image"][:, :, :1]} for s in shapes(4, size=48)]
    splits = {name: Samples(rows, CLASSES) for name in ("train", "val")}
    tsds.convert(splits, tmp_path / "s.tsds", tsds.ConvertOptions(workers=0))
    changes = {"model": "fasterrcnn_mobilenet", "batch_size": 2, "epochs": 1}
    trained(tmp_path / "s.tsds", tmp_path / "first", **changes)
    trained(tmp_path / "s.tsds", tmp_path / "second", **changes, weights=tmp_path / "first" / "best.pt")
    _, card = tsds.training.load_model(tmp_path / "second" / "best.pt")
    assert card.vit == DetectorOptions("fasterrcnn_mobilenet", (64, 64), 1, frozen_norm=True)
    first, second = weights(tmp_path / "first"), weights(tmp_path / "second")
    name = "backbone.body.0.1.running_mean"
    assert torch.equal(first[name], second[name])  # frozen
    assert not torch.equal(first["rpn.head.cls_logits.weight"], second["rpn.head.cls_logits.weight"])


def test_a_broken_file_of_weights_is_one_line(store: Path, tmp_path: Path) -> None:
    (tmp_path / "w.pth").write_text("no weights", "utf-8")
    done = command("train", store, "--out", tmp_path / "run", "--weights", tmp_path / "w.pth")
    assert done.exit_code == 1 and len(done.stderr.splitlines()) == 1
    assert "--weights: expected a state dict of torch or safetensors" in done.stderr


# --- right, wrong and missed -------------------------------------------------------------------------------------


def plainly_judged(found: Any, truth: Any) -> list[Any]:
    """As the definition says, one detection after the other."""
    free, right, counts = truth[:, 2] == 0, np.zeros(len(found), bool), np.ones(len(found), bool)
    ious = box_iou(torch.from_numpy(found[:, 3:]), torch.from_numpy(truth[:, 3:])).numpy()
    for i in sorted(range(len(found)), key=lambda i: -found[i, 2]):
        same_class = truth[:, 1] == found[i, 1]
        fits = [int(j) for j in np.flatnonzero(same_class & free) if ious[i, j] >= 0.5]
        if fits:
            right[i], free[max(fits, key=lambda j: ious[i, j])] = True, False
            continue
        for crowd in truth[same_class & (truth[:, 2] != 0), 3:]:
            width, height = np.minimum(found[i, 5:], crowd[2:]) - np.maximum(found[i, 3:5], crowd[:2])
            area = (found[i, 5] - found[i, 3]) * (found[i, 6] - found[i, 4])
            counts[i] &= not (width > 0 and height > 0 and width * height >= 0.5 * area)
    return [found[right], found[counts & ~right], truth[free], truth[truth[:, 2] != 0]]


@pytest.mark.parametrize("seed", range(6))
def test_matches_are_those_of_the_definition_from_any_score_on(seed: int) -> None:
    rng = np.random.default_rng(seed)

    def rows(count: int, marks: Any) -> Any:
        corner = rng.integers(0, 20, (count, 2))
        boxes = np.hstack([corner, corner + rng.integers(4, 16, (count, 2))])
        return np.column_stack([np.zeros(count), rng.integers(0, 2, count), marks, boxes]).astype(np.float32)

    found = rows(60, rng.integers(0, 20, 60) / 20)  # some scores are equal
    count = int(rng.integers(0, 12))
    truth = rows(count, rng.random(count) < 0.2)
    matches = matched(found, truth)
    for score in (0, 0.3, 0.75, 2):
        expected = plainly_judged(found[found[:, 2] >= score], truth)
        judged = matches.from_score(score)
        for color, definition in zip((RIGHT, WRONG, MISSED, IGNORED), expected, strict=True):
            np.testing.assert_array_equal(judged[color], definition)


def test_an_evaluation_computes_the_precision_once(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    computed = []

    def counted(*given: Any) -> Precision:
        computed.append(coco_map(*given))
        return computed[-1]

    monkeypatch.setattr(tasks, "coco_map", counted)
    report = trained(store, tmp_path / "run", epochs=2)
    assert len(computed) == 2
    best = computed[(report.best_epoch or 1) - 1]
    assert dict(report.best) == best.metrics and [each["objects"] for each in report.classes] == best.objects.tolist()
    assert [each["ap"] for each in report.classes] == plain(best.ap)


def test_detections_beside_the_image_are_not_written(tmp_path: Path) -> None:
    with tsds.Writer(tmp_path / "s.tsds") as writer:
        writer.append("val", image=np.zeros((16, 16, 3), np.uint8))
    found = np.array([[0, 0, 0.9, 3, 16, 8, 16], [0, 0, 0.8, 1, 1, 9, 9]], np.float32)  # the first in the border
    StoreDetections(tsds.open(tmp_path / "s.tsds")["val"], ("a",), found, None).write_store(tmp_path / "found.tsds")
    assert tsds.open(tmp_path / "found.tsds")["val"]["objects"][0]["boxes"].tolist() == [[1, 1, 9, 9]]


def test_the_worst_images_and_their_colors(store: Path) -> None:
    """All objects of the first image are found, none of the second, and the third has one that is not there."""
    split = tsds.open(store)["val"]
    objects = np.concatenate(
        [
            np.column_stack([np.full(len(o["labels"]), row), o["labels"], np.zeros(len(o["labels"])), o["boxes"]])
            for row, o in enumerate(split["objects"][i] for i in range(len(split)))
        ]
    ).astype(np.float32)
    found = objects[objects[:, 0] != 1].copy()
    found[:, 2] = 0.9
    found = np.concatenate([found, np.array([[2, 0, 0.8, 1, 1, 5, 5]], np.float32)])
    found = found[np.argsort(found[:, 0], kind="stable")]
    detections = StoreDetections(split, CLASSES, found, objects)
    assert detections.best_score() == pytest.approx(0.9)
    colors = {}
    for row in range(3):
        alone = StoreDetections(split, CLASSES, found[found[:, 0] == row], objects[objects[:, 0] == row])
        pixels = np.asarray(alone.draw(count=1, score=0.5))
        pixels = pixels[80:]  # without the legend
        colors[row] = {c for c in (RIGHT, WRONG, MISSED) if (pixels == tuple(bytes.fromhex(c[1:]))).all(-1).any()}
    assert colors == {0: {RIGHT}, 1: {MISSED}, 2: {RIGHT, WRONG}}
    with pytest.raises(OptionError) as error:
        StoreDetections(split, CLASSES, found, None).draw()
    assert "expected objects with boxes to compare with" in one_line(error.value)
