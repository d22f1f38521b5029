"""Losses are torch's, metrics are scikit-learn's, whatever the batches."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings, strategies as st
from sklearn import metrics as sklearn_metrics
from torch import Tensor
from torch.nn import functional

from tensorstore_ds.annex.training import tasks
from tensorstore_ds.annex.training.process import Ranks, Tally
from tensorstore_ds.annex.training.tasks import (
    ABSENT,
    ROWS,
    SMOOTH,
    Classification,
    ClassificationKeypoints,
    Keypoints,
    MultiLabel,
    Task,
    largest,
    pick,
    task_from_data,
)
from tensorstore_ds.loading.collate import PackedObjects, pack_objects

pytestmark = pytest.mark.usefixtures("one_thread")

quick = settings(max_examples=40, deadline=None)
seeds = st.integers(0, 2**32)
SIZE = (12, 20)  # height, width
CLASSES = ("ant", "bee", "cat")
POINTS = ("left", "right", "tip", "tail")
LABELS = Classification(CLASSES, label_field="label")
SEVERAL = MultiLabel(CLASSES, objects_field="objects")
PLACES = Keypoints(keypoints=POINTS, objects_field="objects")
BOTH = ClassificationKeypoints(CLASSES, POINTS, "", "objects")
ALL = pytest.mark.parametrize("task", [LABELS, SEVERAL, PLACES, BOTH], ids=lambda task: str(task.name))


def objects(rng: np.random.Generator, lengths: list[int], *, boxes: bool = True) -> list[dict[str, Tensor]]:
    """Objects of each image, with whole-numbered boxes, so that some have areas alike, and absent points."""
    samples = []
    for n in lengths:
        corner = rng.integers(0, 5, (n, 2))
        points = rng.uniform(-3, 25, (n, len(POINTS), 2)).astype(np.float32)
        points[rng.random((n, len(POINTS))) < 0.3] = np.nan
        sample = {"labels": torch.from_numpy(rng.integers(0, 3, n)), "keypoints": torch.from_numpy(points)}
        if boxes:
            sample["boxes"] = torch.from_numpy(np.hstack([corner, corner + rng.integers(1, 4, (n, 2))])).float()
        samples.append(sample)
    return samples


def batch_of(samples: list[dict[str, Tensor]], labels: Tensor | None = None) -> dict[str, Any]:
    packed = pack_objects(samples)
    images = torch.zeros(len(samples), 1, *SIZE)
    labels = torch.zeros(len(samples), dtype=torch.int64) if labels is None else labels
    return {"image": images, "label": labels, "objects": {"offsets": packed.offsets, **packed.values}}


def summed(task: Task, outputs: Tensor, samples: list[dict[str, Tensor]], labels: Tensor, cuts: list[int]) -> Any:
    """Metrics of sums over the batches between the cuts."""
    total: dict[str, Tensor] = {}
    for start, stop in zip([0, *cuts], [*cuts, len(samples)], strict=True):
        if start == stop:
            continue
        targets = task.targets(batch_of(samples[start:stop], labels[start:stop]))
        found = task.sums(outputs[start:stop], targets, detailed=True)
        rows = {name: torch.cat([total.get(name, value[:0]), value]) for name, value in found.items() if name in ROWS}
        total = {name: value + total.get(name, 0) for name, value in found.items() if name not in ROWS} | rows
    return task.metrics(total)


@st.composite
def batches(draw: st.DrawFn, *, boxes: bool = True) -> tuple[np.random.Generator, Any, Tensor, list[int]]:
    """Objects of some images, a label each, and where to cut them into batches."""
    rng = np.random.default_rng(draw(seeds))
    lengths = draw(st.lists(st.integers(0, 4), min_size=1, max_size=12))
    cuts = sorted(draw(st.lists(st.integers(0, len(lengths)), max_size=3)))
    labels = torch.from_numpy(rng.integers(0, 3, len(lengths)))
    labels[torch.from_numpy(rng.random(len(labels)) < 0.2)] = ABSENT
    return rng, objects(rng, lengths, boxes=boxes), labels, cuts


def same(found: Mapping[str, float], expected: Mapping[str, float]) -> None:
    assert dict(found) == pytest.approx(dict(expected), rel=1e-5, nan_ok=True)


# --- which object ------------------------------------------------------------------------------------------------


@quick
@given(batches(), st.booleans())
def test_largest_and_pick_equal_a_loop(drawn: Any, boxes: bool) -> None:
    _, samples, _, _ = drawn
    packed = pack_objects(samples)
    if not boxes:
        packed = PackedObjects(packed.offsets, {k: v for k, v in packed.values.items() if k != "boxes"})
    chosen = largest(packed)
    picked = pick(packed.values["keypoints"], chosen, math.nan)
    first = 0
    for i, sample in enumerate(samples):
        n = len(sample["labels"])
        areas = [float((x2 - x1) * (y2 - y1)) if boxes else 1.0 for x1, y1, x2, y2 in sample["boxes"].tolist()]
        best = areas.index(max(areas)) if n else None
        assert int(chosen[i]) == (packed.total if best is None else first + best)
        expected = torch.full((len(POINTS), 2), math.nan) if best is None else sample["keypoints"][best]
        torch.testing.assert_close(picked[i], expected, rtol=0, atol=0, equal_nan=True)
        first += n


@quick
@given(seeds, st.integers(1, 9))
def test_the_largest_is_the_first_of_equal_boxes_wherever_they_are_moved(seed: int, count: int) -> None:
    """Detectors such as dlib's find boxes of few sizes."""
    rng = np.random.default_rng(seed)
    corner = rng.uniform(0, 400, (count, 2))
    boxes = np.hstack([corner, corner + np.array([62, 41])]) * rng.uniform(0.1, 3, (1, 1)) + np.tile(
        rng.uniform(-9, 9, 2), 2
    )
    smaller = np.array([[0, 0, 1, 1]])
    packed = pack_objects([{"boxes": torch.from_numpy(np.concatenate([smaller, boxes])).float()}])
    assert largest(packed).tolist() == [1]


# --- classification ----------------------------------------------------------------------------------------------


@quick
@given(batches(), st.sampled_from([0.0, 0.1, 0.4]))
def test_classification_is_torchs_cross_entropy(drawn: Any, smoothing: float) -> None:
    rng, samples, labels, _ = drawn
    outputs = torch.from_numpy(rng.normal(0, 3, (len(labels), 3))).float().requires_grad_()
    targets = LABELS.targets(batch_of(samples, labels))
    loss = LABELS.loss(outputs, targets, label_smoothing=smoothing)
    loss.backward()
    assert outputs.grad is not None and outputs.grad.isfinite().all()
    assert not outputs.grad[labels == ABSENT].any()
    if (labels == ABSENT).all():
        assert loss == 0
    else:
        torch.testing.assert_close(loss, functional.cross_entropy(outputs, labels, label_smoothing=smoothing))


def test_labels_of_minus_one_are_absent() -> None:
    labels = torch.tensor([2, -1, 0])
    targets = LABELS.targets({"label": labels})
    assert targets.tolist() == [2, ABSENT, 0] and labels.tolist() == [2, -1, 0]
    sums = LABELS.sums(torch.eye(3)[[2, 2, 1]], targets, detailed=True)
    assert LABELS.metrics(sums) == {"accuracy": 0.5, "balanced_accuracy": 0.5}
    assert sums["confusion"].sum() == 2


def test_what_is_absent_adds_nothing_to_a_blend() -> None:
    outputs = torch.randn(4, 3, requires_grad=True)
    shares = LABELS.blendable(torch.tensor([2, ABSENT, 0, ABSENT]))
    assert shares.tolist() == [[0, 0, 1], [0, 0, 0], [1, 0, 0], [0, 0, 0]]
    blended = 0.75 * shares + 0.25 * shares.roll(1, 0)
    loss = LABELS.loss(outputs, torch.cat([shares[:3], shares[3:]]), label_smoothing=0.2)
    known = torch.tensor([2, 0])
    torch.testing.assert_close(loss, functional.cross_entropy(outputs[[0, 2]], known, label_smoothing=0.2))
    loss.backward()
    assert outputs.grad is not None and not outputs.grad[[1, 3]].any() and outputs.grad[[0, 2]].all()
    each = functional.cross_entropy(outputs, torch.tensor([2, 2, 0, 0]), reduction="none", label_smoothing=0.2)
    torch.testing.assert_close(
        LABELS.loss(outputs, blended, label_smoothing=0.2), (each * torch.tensor([0.75, 0.25, 0.75, 0.25])).sum() / 2
    )
    sums = LABELS.sums(outputs, shares)
    assert sums["labelled"] == 2 and LABELS.loss(outputs, torch.zeros(4, 3)) == 0


@quick
@given(batches())
def test_accuracies_equal_scikit_learns_whatever_the_batches(drawn: Any) -> None:
    rng, samples, labels, cuts = drawn
    outputs = torch.from_numpy(rng.normal(0, 1, (len(labels), 3)))
    found = summed(LABELS, outputs, samples, labels, cuts)
    known = labels != ABSENT
    true, predicted = labels[known].numpy(), outputs.argmax(1)[known].numpy()
    if not len(true):
        assert all(map(math.isnan, found.values()))
        return
    recall = sklearn_metrics.recall_score(true, predicted, labels=np.unique(true), average="macro")
    same(found, {"accuracy": sklearn_metrics.accuracy_score(true, predicted), "balanced_accuracy": recall})
    confusion = LABELS.sums(outputs, labels, detailed=True)["confusion"]
    assert np.array_equal(confusion, sklearn_metrics.confusion_matrix(true, predicted, labels=range(3)))


def test_no_confusion_matrix_of_very_many_classes(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "confusion" in LABELS.sums(torch.zeros(2, 3), torch.tensor([0, 1]), detailed=True)
    assert "confusion" not in LABELS.sums(torch.zeros(2, 3), torch.tensor([0, 1]))
    monkeypatch.setattr(tasks, "MAX_CONFUSION", 2)
    sums = LABELS.sums(torch.zeros(2, 3), torch.tensor([0, 1]), detailed=True)
    assert LABELS.metrics(sums) == {"accuracy": 0.5}


def test_the_class_of_the_largest_object() -> None:
    task = Classification(CLASSES, objects_field="objects")
    samples = objects(np.random.default_rng(0), [2, 0, 1])
    samples[0]["boxes"] = torch.tensor([[0.0, 0, 1, 1], [0, 0, 2, 2]])
    assert task.targets(batch_of(samples)).tolist() == [int(samples[0]["labels"][1]), ABSENT, int(samples[2]["labels"])]


# --- several labels ----------------------------------------------------------------------------------------------


@quick
@given(batches(), st.sampled_from([0.0, 0.2]))
def test_multilabel_is_torchs_binary_cross_entropy(drawn: Any, smoothing: float) -> None:
    rng, samples, labels, _ = drawn
    outputs = torch.from_numpy(rng.normal(0, 3, (len(samples), 3))).float()
    targets = SEVERAL.targets(batch_of(samples, labels))
    expected = torch.tensor([[float(c in s["labels"].tolist()) for c in range(3)] for s in samples])
    assert torch.equal(targets, expected)
    probabilities = outputs.double().sigmoid()
    soft = expected * (1 - smoothing) + smoothing * 0.5
    by_hand = -(soft * probabilities.log() + (1 - soft) * (1 - probabilities).log()).mean()
    torch.testing.assert_close(SEVERAL.loss(outputs, targets, label_smoothing=smoothing), by_hand.float())


@quick
@given(batches())
def test_f1_equals_scikit_learns_whatever_the_batches(drawn: Any) -> None:
    rng, samples, labels, cuts = drawn
    outputs = torch.from_numpy(rng.normal(-0.3, 1, (len(samples), 3)))
    found = summed(SEVERAL, outputs, samples, labels, cuts)
    true = SEVERAL.targets(batch_of(samples)).numpy().astype(int)
    predicted = (outputs > 0).numpy().astype(int)
    expected = {"exact": sklearn_metrics.accuracy_score(true, predicted)}
    for name, average in (("f1", "micro"), ("macro_f1", "macro")):
        expected[name] = sklearn_metrics.f1_score(true, predicted, average=average, zero_division=np.nan)
    same({name: found[name] for name in expected}, expected)


@quick
@given(st.integers(0, 2**32 - 1), st.integers(1, 40), st.integers(1, 5), st.lists(st.integers(0, 40), max_size=3))
@example(0, 1, 3, [])  # two labels of three are known: less than one image
def test_map_equals_scikit_learns_whatever_the_batches(seed: int, samples: int, classes: int, cuts: list[int]) -> None:
    """With equal scores, classes that apply nowhere, and labels that are not known, which scikit-learn gets none of."""
    rng = np.random.default_rng(seed)
    task = MultiLabel(tuple(map(str, range(classes))), label_field="labels")
    outputs = torch.from_numpy(rng.integers(-4, 5, (samples, classes)) / 4).float()
    targets = torch.from_numpy(rng.choice([0.0, 1.0, np.nan], (samples, classes), p=[0.5, 0.3, 0.2])).float()
    tally = Tally()
    edges = sorted({0, samples, *(cut for cut in cuts if cut < samples)})
    for first, last in itertools.pairwise(edges):
        part = slice(first, last)
        sums = task.sums(outputs[part], task.targets({"labels": targets[part]}), detailed=True)
        tally.add(last - first, sums | task.terms(outputs[part], targets[part]))
    joined = tally.over_ranks(Ranks(0, 1, torch.device("cpu")))
    found = joined.metrics(task)
    expected = []
    for output, target, precision in zip(outputs.T, targets.T, task.average_precisions(joined.sums), strict=True):
        known = ~target.isnan()
        if not (target == 1).any():
            assert math.isnan(precision)
            continue
        expected.append(sklearn_metrics.average_precision_score(target[known].numpy(), output[known].numpy()))
        assert precision == pytest.approx(expected[-1], abs=1e-9)
    assert found["map"] == pytest.approx(np.mean(expected) if expected else math.nan, abs=1e-9, nan_ok=True)
    known = ~targets.isnan()
    by_hand = functional.binary_cross_entropy_with_logits(outputs[known], targets[known]) if known.any() else math.nan
    assert found["loss"] == pytest.approx(float(by_hand), abs=1e-5, nan_ok=True)
    true, predicted = targets[known].numpy(), (outputs > 0)[known].numpy()
    f1 = sklearn_metrics.f1_score(true, predicted, zero_division=np.nan) if known.any() else math.nan
    assert found["f1"] == pytest.approx(f1, nan_ok=True)


# --- keypoints ---------------------------------------------------------------------------------------------------


@quick
@given(batches(), st.booleans())
def test_keypoints_are_torchs_smooth_l1_and_the_error_that_of_the_formula(drawn: Any, boxes: bool) -> None:
    rng, samples, labels, cuts = drawn
    if not boxes:
        samples = [{k: v for k, v in sample.items() if k != "boxes"} for sample in samples]
    outputs = torch.from_numpy(rng.normal(0, 0.4, (len(samples), 8))).float().requires_grad_()
    batch = batch_of(samples, labels)
    chosen = largest(pack_objects(samples)).tolist()
    sides, errors, pairs = torch.tensor([SIZE[1], SIZE[0]]), [], []
    for image, which in enumerate(chosen):
        if which == len(batch["objects"]["keypoints"]):
            continue
        unit = math.sqrt(SIZE[0] * SIZE[1])
        if boxes:
            x1, y1, x2, y2 = batch["objects"]["boxes"][which].tolist()
            unit = math.sqrt((x2 - x1) * (y2 - y1))
        for k, point in enumerate(batch["objects"]["keypoints"][which]):
            if point.isfinite().all():
                said = outputs[image].view(4, 2)[k]
                pairs.append((said, point / sides - 0.5))
                errors.append(math.dist(((said.detach() + 0.5) * sides).tolist(), point.tolist()) / unit)
    same(
        summed(PLACES, outputs.detach(), samples, labels, cuts), {"nme": np.mean(errors).item() if errors else math.nan}
    )
    loss = PLACES.loss(outputs, PLACES.targets(batch))
    loss.backward()
    assert outputs.grad is not None and outputs.grad.isfinite().all()
    if pairs:
        said, true = (torch.stack(side) for side in zip(*pairs, strict=True))
        torch.testing.assert_close(loss, functional.smooth_l1_loss(said, true, beta=SMOOTH))
    else:
        assert loss == 0 and not outputs.grad.any()


def test_predicted_points_are_the_targets_in_pixels() -> None:
    samples = objects(np.random.default_rng(0), [1, 1, 1])
    for sample in samples:
        sample["keypoints"] = sample["keypoints"].nan_to_num(3.0)
    targets = PLACES.targets(batch_of(samples))
    said = PLACES.predictions(targets["keypoints"].flatten(1), SIZE)
    assert PLACES.metrics(PLACES.sums(targets["keypoints"].flatten(1), targets)) == {"nme": 0}
    for one, sample in zip(said, samples, strict=True):
        assert tuple(one["keypoints"]) == POINTS
        np.testing.assert_allclose(list(one["keypoints"].values()), sample["keypoints"][0], atol=1e-5)
    (doubled,) = PLACES.predictions(targets["keypoints"][:1].flatten(1), (2 * SIZE[0], SIZE[1]))
    np.testing.assert_allclose(
        list(doubled["keypoints"].values()), samples[0]["keypoints"][0] * torch.tensor([1, 2]), atol=1e-5
    )


# --- all tasks ---------------------------------------------------------------------------------------------------


@quick
@given(batches())
def test_both_are_the_sum_of_the_losses_and_all_of_the_metrics(drawn: Any) -> None:
    rng, samples, labels, cuts = drawn
    classes = Classification(CLASSES, objects_field="objects")
    outputs = torch.from_numpy(rng.normal(0, 1, (len(samples), 11))).float()
    batch = batch_of(samples, labels)
    expected = classes.loss(outputs[:, :3], classes.targets(batch), label_smoothing=0.1)
    expected = expected + PLACES.loss(outputs[:, 3:], PLACES.targets(batch))
    torch.testing.assert_close(BOTH.loss(outputs, BOTH.targets(batch), label_smoothing=0.1), expected)
    found = summed(BOTH, outputs, samples, labels, cuts)
    parts = (summed(t, o, samples, labels, []) for t, o in ((classes, outputs[:, :3]), (PLACES, outputs[:, 3:])))
    same(found, {name: value for part in parts for name, value in part.items()})


def test_the_loss_of_an_image_is_of_the_targets_that_it_has() -> None:
    outputs = torch.rand(4, 11, generator=torch.Generator().manual_seed(0))
    places = torch.zeros(4, 4, 2)
    places[[1, 3]] = math.nan
    targets = (torch.tensor([0, 1, ABSENT, ABSENT]), {"keypoints": places, "side": torch.ones(4, 2)})
    label = functional.cross_entropy(outputs[:, :3], torch.tensor([0, 1, 0, 0]), reduction="none")
    point = functional.smooth_l1_loss(outputs[:, 3:], torch.zeros(4, 8), beta=SMOOTH, reduction="none").mean(1)
    expected = torch.stack([label[0] + point[0], label[1], point[2], torch.tensor(math.nan)])
    torch.testing.assert_close(BOTH.losses(outputs, targets), expected, equal_nan=True)


@ALL
def test_batches_without_any_object(task: Task) -> None:
    batch = batch_of(objects(np.random.default_rng(0), [0, 0]), torch.tensor([ABSENT, ABSENT]))
    outputs = torch.randn(2, task.outputs, requires_grad=True)
    targets = task.targets(batch)
    task.loss(outputs, targets, label_smoothing=0.1).backward()
    assert outputs.grad is not None and outputs.grad.isfinite().all()
    found = task.metrics(task.sums(outputs.detach(), targets, detailed=True))
    assert task.metric in found
    assert all(math.isnan(value) for name, value in found.items() if not name.endswith(("f1", "exact")))


@ALL
def test_in_16_bits_a_loss_is_computed_in_32(task: Task) -> None:
    batch = batch_of(objects(np.random.default_rng(0), [2, 1, 3]), torch.tensor([0, 1, 2]))
    outputs = torch.randn(3, task.outputs).to(torch.bfloat16)
    loss = task.loss(outputs, task.targets(batch))
    assert loss.dtype == torch.float32
    torch.testing.assert_close(loss, task.loss(outputs.float(), task.targets(batch)))


@ALL
def test_a_task_is_plain_values_and_back(task: Task) -> None:
    assert task_from_data(json.loads(json.dumps(task.as_data()))) == task


def test_what_predictions_say() -> None:
    outputs = torch.tensor([[0.0, 2, 1, 0.5, 0.5, 0, 0, 0, 0, 0, 0]])
    (said,) = BOTH.predictions(outputs, SIZE)
    chances = outputs[0, :3].softmax(0).tolist()
    assert said["class"] == "bee" and said["probability"] == pytest.approx(chances[1])
    assert [one["class"] for one in said["best"]] == ["bee", "cat", "ant"]
    assert said["keypoints"]["left"] == pytest.approx((20, 12)) and said["keypoints"]["tip"] == pytest.approx((10, 6))
    (said,) = SEVERAL.predictions(torch.tensor([[1.0, -1, 2]]), SIZE)
    assert said["classes"] == ["ant", "cat"] and tuple(said["probabilities"]) == CLASSES
    assert said["probabilities"]["bee"] == pytest.approx(1 / (1 + math.e))
    (said,) = Classification(tuple("abcdefg"), label_field="label").predictions(torch.arange(7.0)[None], SIZE)
    assert [one["class"] for one in said["best"]] == list("gfedc")


@ALL
def test_the_mean_loss_does_not_depend_on_the_batches(task: Task) -> None:
    """What is unknown counts nowhere: by images, as each term of the whole has them."""
    generator = torch.Generator().manual_seed(0)
    places, several = torch.rand(6, 4, 2, generator=generator) - 0.5, torch.tensor([[0, 1, math.nan]]).repeat(6, 1)
    places[:3], places[4, :2], several[1] = math.nan, math.nan, math.nan
    labels = torch.tensor([0, ABSENT, 2, ABSENT, ABSENT, 1])
    outputs = torch.randn(6, task.outputs, generator=generator)

    def targets(part: slice) -> Any:
        points = {"keypoints": places[part], "side": torch.ones(6, 2)[part]}
        return {LABELS: labels[part], SEVERAL: several[part], PLACES: points, BOTH: (labels[part], points)}[task]

    losses = []
    for size in (1, 4, 6):
        tally = Tally()
        for part in (slice(first, first + size) for first in range(0, 6, size)):
            sums = task.terms(outputs[part], targets(part)) | task.sums(outputs[part], targets(part))
            tally.add(len(outputs[part]), sums)
        losses.append(tally.metrics(task)["loss"])
    assert losses == pytest.approx([float(task.loss(outputs, targets(slice(6))))] * 3)


def test_sums_have_the_widest_type_of_their_device() -> None:
    targets = {"keypoints": torch.zeros(3, 4, 2), "side": torch.ones(3, 2)}
    sums = Keypoints(keypoints=POINTS, objects_field="objects").sums(torch.zeros(3, 8), targets)
    assert sums["distances"].dtype == torch.float64
    assert tasks._widest(torch.device("mps")) == torch.float32  # has no float64
