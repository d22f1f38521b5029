"""One training step: gradients, schedule, targets, weights, against torch's own functions and sums by hand."""

from __future__ import annotations

import io
from typing import Any

import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import Tensor, nn

from learners import RATE, TASK, VIT, batch, expected_loss, gradients, learner, weights_of
from tensorstore_ds.annex.augment.mixing import CutMix, Mixup
from tensorstore_ds.annex.training.learner import (
    MIX_ALPHA,
    Learner,
    check_cuda_graphs,
    image_dtype,
    precision_of,
    schedule,
)
from tensorstore_ds.annex.training.options import TrainOptions
from tensorstore_ds.annex.training.process import Tally
from tensorstore_ds.annex.training.tasks import ClassificationKeypoints, Keypoints, MultiLabel
from tensorstore_ds.errors import OptionError
from training_stores import one_line

pytestmark = pytest.mark.usefixtures("one_thread")


# --- gradients ---------------------------------------------------------------------------------------------------


@settings(max_examples=20, deadline=None)
@given(st.lists(st.integers(1, 5), min_size=1, max_size=4), st.integers(0, 2**20), st.booleans())
def test_shares_of_a_step_add_up_to_one_large_batch(sizes: list[int], unlabelled: int, several: bool) -> None:
    """Whatever batches the samples with a label are in."""
    rows = sum(sizes)
    large = batch(rows)
    large["label"][[bool(unlabelled >> row & 1) for row in range(rows)]] = -1
    if several:
        hot = (large["label"][:, None] == torch.arange(3)).float()
        large["label"] = hot.where((large["label"] >= 0)[:, None], torch.nan)
        large["label"][0, 1] = torch.nan
    task = MultiLabel(TASK.classes, label_field="label") if several else TASK
    steps: list[dict[str, Tensor]] = []
    for parts in ([rows], sizes):
        found, first = learner(), 0
        found.task = task
        found.optimizer.register_step_pre_hook(lambda *_, found=found: steps.append(gradients(found, some=False)))
        for n in parts:
            part = {name: value[first : first + n] for name, value in large.items()}
            loss, _ = found.backward(part, share=n / rows, last=first + n == rows)
            assert not loss.requires_grad
            first += n
        found.update()
    torch.testing.assert_close(steps[1], steps[0], rtol=1e-4, atol=1e-7)


def test_a_step_without_any_label_changes_nothing() -> None:
    """However many ranks it has, whose shares are added."""
    found = learner()
    before, unlabelled = weights_of(found.module), {**batch(), "label": torch.full((7,), -1)}
    for _ in range(9):
        found.backward(unlabelled, share=0.9)
    found.update()
    torch.testing.assert_close(weights_of(found.module), before, rtol=0, atol=0)


@pytest.mark.parametrize("clip", [0.0, 0.01, 1e6])
def test_gradients_are_clipped(clip: float) -> None:
    found = learner(clip=clip)
    seen: list[dict[str, Tensor]] = []
    found.optimizer.register_step_pre_hook(lambda *_: seen.append(gradients(found)))
    found.backward(batch())
    before = gradients(found)
    norm = torch.stack([grad.norm() for grad in before.values()]).norm()
    assert norm > 0.01
    found.update()
    share = 0.01 / (norm + 1e-6) if clip == 0.01 else 1.0
    torch.testing.assert_close(seen[0], {name: grad * share for name, grad in before.items()})
    assert all(weights.grad is None for weights in found.module.parameters())


def test_grad_checkpointing_reaches_the_model() -> None:
    assert [learner(grad_checkpointing=on).module.grad_checkpointing for on in (False, True)] == [False, True]


# --- the optimizer -----------------------------------------------------------------------------------------------


def test_only_matrices_decay() -> None:
    found = learner(weight_decay=0.5)
    before = weights_of(found.module)
    found.backward(batch(), share=0.0)  # gradients of 0: what changes is the decay's
    found.update()
    for name, value in found.module.state_dict().items():
        kept = value.ndim < 2 or name in ("class_token", "encoder.pos_embedding")
        torch.testing.assert_close(value, before[name] * (1 if kept else 1 - RATE * 0.5))
    assert {group["weight_decay"] for group in found.optimizer.param_groups} == {0.0, 0.5}


@settings(max_examples=50, deadline=None)
@given(st.integers(1, 300), st.floats(0, 0.99))
def test_the_schedule_is_torchs(steps: int, warmup: float) -> None:
    rising = round(steps * warmup)
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(()))], 1.0)
    cosine = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, max(1, steps - rising))
    found = [schedule(step, steps, warmup=warmup) for step in range(steps)]
    assert found[:rising] == pytest.approx([(step + 1) / rising for step in range(rising)])
    for rate in found[rising:]:
        assert rate == pytest.approx(cosine.get_last_lr()[0], abs=1e-9)
        optimizer.step()
        cosine.step()
    if rising < steps:
        assert schedule(steps, steps, warmup=warmup) == pytest.approx(0, abs=1e-12)


def test_the_learning_rate_is_that_of_the_schedule() -> None:
    found = learner(steps=4, warmup=0.5)
    rates: list[list[float]] = []
    found.optimizer.register_step_pre_hook(lambda o, *_: rates.append([group["lr"] for group in o.param_groups]))
    for _ in range(4):
        before = weights_of(found.module)["heads.head.bias"]
        found.train_batch(batch())
        if found.step == 1:  # AdamW's first step is of the learning rate's length, whatever the gradient
            moved = (weights_of(found.module)["heads.head.bias"] - before).abs()
            torch.testing.assert_close(moved, torch.full_like(moved, RATE / 2), rtol=1e-3, atol=0)
    assert rates == [pytest.approx([RATE * share] * 2) for share in (0.5, 1, 1, 0.5)]
    assert found.step == 4


@pytest.mark.parametrize("ema", [0.3, 0.99])
def test_the_moving_average(ema: float) -> None:
    found = learner(ema=ema)
    assert found.average is not None
    expected: dict[str, Tensor] = {}
    for step in range(6):
        found.train_batch(batch())
        decay = 0.0 if step == 0 else min(ema, (1 + step) / (10 + step))
        weights = weights_of(found.module)
        expected = {name: decay * expected.get(name, value) + (1 - decay) * value for name, value in weights.items()}
        torch.testing.assert_close(weights_of(found.average), expected)
    assert found.best_weights is found.average and learner().average is None
    assert all((w != expected[n]).any() for n, w in found.module.state_dict().items())


def test_what_is_evaluated() -> None:
    for found in (learner(ema=0.9), learner()):
        for _ in range(3):
            found.train_batch(batch())
        with pytest.raises(KeyError), found.evaluating() as model:
            assert model is found.best_weights and not model.training
            outputs = model(batch()["image"])
            assert not outputs.requires_grad
            raise KeyError
        assert model.training and found.module.training
        with torch.no_grad():
            torch.testing.assert_close(outputs.clone(), found.best_weights(batch()["image"]))


# --- targets -----------------------------------------------------------------------------------------------------


def test_label_smoothing() -> None:
    plain, smooth = learner(), learner(label_smoothing=0.3)
    given_batch = batch()
    losses = [found.train_batch(given_batch) for found in (plain, smooth)]
    for loss, smoothing in zip(losses, (0.0, 0.3), strict=True):
        expected = expected_loss(learner().module, given_batch["image"], given_batch["label"], smoothing)
        torch.testing.assert_close(loss, expected)
    assert losses[0] != losses[1]


@pytest.mark.parametrize(("mix", "transform"), [("mixup", Mixup), ("cutmix", CutMix)])
def test_mixing_is_that_of_the_transform(mix: Any, transform: Any) -> None:
    blend = transform(alpha=MIX_ALPHA[mix], num_classes=3)
    found, given_batch = learner(mix=mix, label_smoothing=0.1), batch()
    losses = []
    for seed in range(4):
        torch.manual_seed(seed)
        images, targets = blend((given_batch["image"], given_batch["label"]))
        torch.manual_seed(seed)
        loss, sums = found.backward(given_batch)
        torch.testing.assert_close(loss, expected_loss(learner().module, images, targets, 0.1))
        with torch.no_grad():
            right = learner().module(images).argmax(1) == targets.argmax(1)
        assert sums["correct"] == right.sum()
        losses.append(float(loss))
    assert len(set(losses)) == 4
    torch.testing.assert_close(given_batch, batch(), rtol=0, atol=0)


def test_keypoints_are_not_mixed() -> None:
    task = Keypoints(keypoints=("a",))
    with pytest.raises(OptionError) as error:
        Learner(VIT, task, TrainOptions(mix="mixup"), device="cpu", steps=1)
    assert f"`mix`: expected none for {task.name}, found mixup" in one_line(error.value)


# --- state -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options", [{}, {"precision": "bf16", "ema": 0.9}, {"precision": "fp16", "clip": 1.0}], ids=str
)
def test_going_on_from_a_state_is_the_same_bit_for_bit(options: dict[str, Any]) -> None:
    first, second = learner(**options), learner(seed=9, **options)
    if options.get("precision") == "fp16":
        first.scaler.load_state_dict({**first.scaler.state_dict(), "scale": 2.0**12})
    for seed in range(3):
        first.train_batch(batch(seed=seed))
    buffer = io.BytesIO()
    torch.save(first.state_dict(), buffer)
    buffer.seek(0)
    second.load_state_dict(torch.load(buffer, weights_only=True))
    for seed in (3, 4):
        assert first.train_batch(batch(seed=seed)) == second.train_batch(batch(seed=seed))
    torch.testing.assert_close(first.state_dict(), second.state_dict(), rtol=0, atol=0)
    assert second.step == 5
    if "ema" in options:
        assert weights_of(first.best_weights)["heads.head.bias"].ne(first.module.heads.head.bias).any()
    if options.get("precision") == "fp16":
        assert second.scaler.get_scale() == 2.0**12


# --- GPUs --------------------------------------------------------------------------------------------------------


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype")
@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
@pytest.mark.parametrize("name", ["classification", "multilabel", "classification+keypoints"])
def test_no_step_waits_for_the_gpu(precision: str, name: str) -> None:
    tasks = {
        "classification": TASK,
        "multilabel": MultiLabel(TASK.classes, objects_field="objects"),
        "classification+keypoints": ClassificationKeypoints(TASK.classes, ("a",), "", "objects"),
    }
    objects = {
        "offsets": torch.tensor([0, 1, 1, 3]),
        "boxes": torch.tensor([[0.0, 0, 2, 2]] * 3),
        "labels": torch.arange(3),
        "keypoints": torch.ones(3, 1, 2),
    }
    options = TrainOptions(precision=precision, ema=0.9, clip=1.0)  # type: ignore[arg-type]
    found = Learner(VIT, tasks[name], options, device="cuda", steps=10)
    given_batch = {**batch(3, device="cuda"), "objects": {name: value.cuda() for name, value in objects.items()}}
    tally = Tally()
    found.train_batch(given_batch)  # what is made in the first step may wait
    try:
        torch.cuda.set_sync_debug_mode("error")
        for _ in range(2):
            _, sums = found.backward(given_batch)
            found.update()
            tally.add(3, sums)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert tally.sums["samples"] == 6


@pytest.mark.gpu
def test_a_gpu_computes_what_the_cpu_does() -> None:
    there, here = learner(device="cuda"), learner()
    assert precision_of("auto", torch.device("cuda")) in ("bf16", "fp32")
    losses = [float(found.backward(batch(device=d))[0]) for found, d in ((there, "cuda"), (here, "cpu"))]
    assert losses[0] == pytest.approx(losses[1], rel=1e-3)
    for name, grad in gradients(there).items():
        torch.testing.assert_close(grad.cpu(), gradients(here)[name], rtol=0.02, atol=1e-3)


def test_a_short_last_batch_is_not_compiled(monkeypatch):
    compiled = []

    def compile(model):
        return lambda images: compiled.append(len(images)) or model(images)

    monkeypatch.setattr(torch, "compile", compile)
    made, plain = learner(compile=True, batch_size=7), learner()
    for rows in (7, 7, 3):
        assert torch.equal(made.train_batch(batch(rows)), plain.train_batch(batch(rows)))
    assert compiled == [7, 7]


@pytest.mark.gpu
def test_cuda_graphs_are_those_of_torch_compile(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled: list[Any] = []

    def compile(model: nn.Module, *, mode: str) -> Any:
        compiled.append(mode)
        return lambda images: compiled.append(len(images)) or model(images)

    monkeypatch.setattr(torch, "compile", compile)
    made, plain = (learner(cuda_graphs=on, compile=on, batch_size=7, device="cuda") for on in (True, False))
    for rows in (7, 7, 3):
        assert torch.equal(*(one.train_batch(batch(rows, device="cuda")) for one in (made, plain)))
        assert all(weights.grad is None for weights in made.module.parameters())
    assert compiled == ["reduce-overhead", 7, 7]


@pytest.mark.parametrize(
    ("device", "options", "distributed", "expected"),
    [
        ("cpu", {}, False, "a GPU with CUDA, found cpu. Use `compile` instead."),
        ("mps", {}, False, "a GPU with CUDA, found mps. Use `compile` instead."),
        (
            *("cuda", {"accumulate": 4}, False),
            "steps of one batch, found `accumulate=4`. Use a larger `batch_size`, or `compile` instead.",
        ),
        ("cuda", {}, True, "one rank, found several. Use `compile` instead."),
    ],
)
def test_where_there_are_no_cuda_graphs(device: str, options: dict[str, Any], distributed: bool, expected: str) -> None:
    with pytest.raises(OptionError) as error:
        check_cuda_graphs(TrainOptions(**options), torch.device(device), distributed=distributed)
    assert one_line(error.value) == f"`cuda_graphs`: expected {expected}"


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"precision": "bf16"}, torch.bfloat16),
        ({"precision": "bf16", "mix": "mixup"}, torch.float32),
        ({"precision": "fp16"}, torch.float32),
        ({}, torch.float32),
    ],
)
def test_images_have_the_type_of_the_first_layer(options, expected):
    assert image_dtype(TrainOptions(**options), torch.device("cpu")) == expected


def test_images_in_bfloat16_train_as_those_that_the_model_converts():
    made, other = learner(precision="bf16"), learner(precision="bf16")
    given = batch()
    halves = {**given, "image": given["image"].to(torch.bfloat16)}
    for _ in range(3):
        assert torch.equal(made.train_batch(given), other.train_batch(halves))
    assert all(torch.equal(a, b) for a, b in zip(made.module.parameters(), other.module.parameters(), strict=True))
