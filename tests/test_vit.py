from __future__ import annotations

import dataclasses
import math
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torchvision.models.vision_transformer import VisionTransformer

from learners import randomized
from tensorstore_ds.annex.training.checkpoint import ModelCard, save
from tensorstore_ds.annex.training.options import TrainOptions, ViTOptions
from tensorstore_ds.annex.training.tasks import Classification
from tensorstore_ds.annex.training.vit import ViT
from tensorstore_ds.annex.training.weights import load_weights
from tensorstore_ds.errors import OptionError

pytestmark = pytest.mark.usefixtures("one_thread")

SMALL = ViTOptions((16, 16), channels=3, patch_size=4, width=24, depth=2, heads=3, mlp_width=32)


def shape(**changes: Any) -> ViTOptions:
    return dataclasses.replace(SMALL, **changes)


def made(options: ViTOptions, outputs: int = 5, **more: Any) -> ViT:
    model: ViT = randomized(ViT(options, outputs, **more), scale=0.2)
    return model


def images(options: ViTOptions, count: int = 3, seed: int = 1) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(count, options.channels, *options.image_size, generator=generator)


def torchvisions(options: ViTOptions, outputs: int) -> VisionTransformer:
    """torchvision's own model, of a square size that the patch divides."""
    model = VisionTransformer(
        image_size=options.image_size[0],
        patch_size=options.patch_size,
        num_layers=options.depth,
        num_heads=options.heads,
        hidden_dim=options.width,
        mlp_dim=options.mlp_width,
        dropout=options.dropout,
        num_classes=outputs,
    )
    if options.channels != 3:
        model.conv_proj = nn.Conv2d(options.channels, options.width, options.patch_size, options.patch_size)
    return model


# --- against torchvision


@pytest.mark.parametrize(
    "options",
    [
        SMALL,
        shape(image_size=(28, 28), patch_size=7, width=64, heads=8, mlp_width=128),
        shape(image_size=(8, 8), patch_size=8, depth=1),
        shape(channels=5),
    ],
    ids=str,
)
def test_it_computes_what_torchvisions_model_computes(options: ViTOptions) -> None:
    ours, theirs = made(options), torchvisions(options, 5)
    assert {n: w.shape for n, w in ours.state_dict().items()} == {n: w.shape for n, w in theirs.state_dict().items()}
    theirs.load_state_dict(ours.state_dict())
    batch = images(options)
    for mode in (True, False):
        found, expected = ours.train(mode)(batch), theirs.train(mode)(batch)
        assert found.shape == (3, 5)
        assert found.std() > 0.1
        torch.testing.assert_close(found, expected)
    ours(batch).square().sum().backward()
    theirs(batch).square().sum().backward()
    for (name, mine), other in zip(ours.named_parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, other.grad, msg=name)


def test_it_begins_as_torchvisions_does() -> None:
    options = TrainOptions(model="tiny", depth=1).vit((112, 80), 5)
    model = ViT(options, 10)
    assert not model(images(options)).any()  # every class is as likely as the others
    assert model.conv_proj.weight.std().item() == pytest.approx(1 / math.sqrt(5 * 16**2), rel=0.02)
    assert not model.conv_proj.bias.any()
    assert model.encoder.pos_embedding.std().item() == pytest.approx(0.5, rel=0.05)


# --- shapes of images


@pytest.mark.parametrize(("channels", "size"), [(3, (16, 16)), (1, (8, 20)), (5, (20, 8)), (3, (13, 18)), (1, (3, 2))])
def test_images_of_any_shape(channels: int, size: tuple[int, int]) -> None:
    options = shape(channels=channels, image_size=size)
    model = made(options)
    assert model.conv_proj.weight.shape == (24, channels, 4, 4)
    patches = math.ceil(size[0] / 4) * math.ceil(size[1] / 4)
    assert options.grid == (math.ceil(size[0] / 4), math.ceil(size[1] / 4))
    assert model.encoder.pos_embedding.shape == (1, patches + 1, 24) and model.seq_length == patches + 1
    batch = images(options).requires_grad_()
    found = model(batch)
    assert found.shape == (3, 5)
    found.sum().backward()
    assert batch.grad is not None
    assert batch.grad.all()  # every pixel counts


@given(st.integers(1, 19), st.integers(1, 19), st.integers(1, 5))
@settings(max_examples=40, deadline=None)
def test_padding_is_zero_at_the_right_and_the_bottom(height: int, width: int, patch: int) -> None:
    options = shape(image_size=(height, width), patch_size=patch, depth=1)
    down, across = options.grid
    whole = dataclasses.replace(options, image_size=(down * patch, across * patch))
    padded = torch.zeros(2, 3, down * patch, across * patch)
    batch = images(options, 2)
    padded[:, :, :height, :width] = batch
    assert torch.equal(made(options)(batch), made(whole)(padded))


def test_patches_are_read_row_by_row() -> None:
    options = shape(image_size=(8, 12), width=3, heads=1)
    model = made(options)
    seen: list[Tensor] = []
    model.encoder.layers[0].register_forward_pre_hook(lambda _, given: seen.append(given[0]))
    batch = images(options, 1)
    model(batch)
    tokens = seen[0] - model.encoder.pos_embedding
    assert torch.allclose(tokens[0, 0], model.class_token[0, 0], atol=1e-6)
    for number, (row, column) in enumerate([(0, 0), (0, 4), (0, 8), (4, 0), (4, 4), (4, 8)], 1):
        patch = batch[0, :, row : row + 4, column : column + 4]
        expected = (model.conv_proj.weight * patch).sum((1, 2, 3)) + model.conv_proj.bias
        torch.testing.assert_close(tokens[0, number], expected)


# --- presets


@pytest.mark.parametrize(
    ("preset", "size", "channels", "parameters"),
    # The published 5.7M, 22M and 86M, and to the last one the numbers of the models that DeiT's authors released.
    [
        ("tiny", 224, 3, 5_717_416),
        ("small", 224, 3, 22_050_664),
        ("base", 224, 3, 86_567_656),
        ("seed", 500, 1, 270_312),
    ],
)
def test_presets(preset: Any, size: int, channels: int, parameters: int) -> None:
    with torch.device("meta"):
        model = ViT(TrainOptions(model=preset).vit((size, size), channels), 1000)
    assert sum(weights.numel() for weights in model.parameters()) == parameters


def test_presets_follow_from_the_images_and_can_be_changed() -> None:
    for size, preset in (((8, 8), "seed"), ((64, 64), "seed"), ((64, 65), "tiny"), ((224, 224), "tiny")):
        assert TrainOptions().vit(size, 3) == TrainOptions(model=preset).vit(size, 3)  # type: ignore[arg-type]
    options = TrainOptions(model="seed").vit((500, 500), 1)
    assert options == ViTOptions((28, 28), 1, patch_size=7, width=64, depth=6, heads=8, mlp_width=128)
    options = TrainOptions(model="tiny", patch_size=8, depth=3, dropout=0.1).vit((40, 30), 1)
    assert (options.image_size, options.channels, options.width) == ((40, 30), 1, 192)
    assert (options.patch_size, options.depth, options.dropout) == (8, 3, 0.1)
    assert TrainOptions(model="seed", image_size=(14, 21)).vit((500, 500), 3).image_size == (14, 21)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"channels": 0}, "`channels`: expected 1 to 65,536, found 0."),
        ({"depth": -1}, "`depth`: expected 1 to 65,536, found -1."),
        ({"image_size": (0, 16)}, "`image_size`: expected 1 to 65,536, found 0x16."),
        ({"dropout": 1.0}, "`dropout`: expected in [0, 1), found 1.0."),
        ({"dropout": -0.1}, "`dropout`: expected in [0, 1), found -0.1."),
        ({"dropout": math.nan}, "`dropout`: expected in [0, 1), found nan."),
        ({"heads": 5}, "`heads`: expected a divisor of the width 24, such as 4, found 5."),
        ({"width": 20}, "`heads`: expected a divisor of the width 20, such as 2, found 3."),
    ],
)
def test_a_shape_that_cannot_be_is_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError) as raised:
        shape(**change)
    assert str(raised.value) == message
    expected = "`model`: expected one of auto, seed, tiny, small, base, ssdlite, fasterrcnn_mobilenet, found huge."
    with pytest.raises(OptionError, match=re.escape(expected)):
        TrainOptions(model="huge")  # type: ignore[arg-type]


# --- weights of files


@pytest.mark.parametrize("classes", [5, 7])
def test_weights_of_torchvision(tmp_path: Path, classes: int) -> None:
    theirs, options = randomized(torchvisions(SMALL, 5).eval(), scale=0.2), SMALL
    torch.save(theirs.state_dict(), tmp_path / "w.pth")
    model = made(options, classes).eval()
    head = {name: value.clone() for name, value in model.heads.state_dict().items()}
    note = load_weights(model, tmp_path / "w.pth")
    if classes == 5:
        assert note == ""
        torch.testing.assert_close(model(images(options)), theirs(images(options)))
    else:
        assert "another number of classes: 2 tensors" in note
        assert all(torch.equal(value, head[name]) for name, value in model.heads.state_dict().items())
        model.heads = theirs.heads
        torch.testing.assert_close(model(images(options)), theirs(images(options)))
    with pytest.raises(OptionError, match=r"pos_embedding .* Choose its `model` and `image_size`"):
        load_weights(made(shape(image_size=(32, 32))), tmp_path / "w.pth")


@pytest.mark.parametrize("classes", [("a", "b"), ("b", "a"), ("a", "c")])
def test_weights_of_a_run_with_other_classes_of_the_same_number(tmp_path: Path, classes: tuple[str, str]) -> None:
    learned, before = Classification(("a", "b"), label_field="label"), made(SMALL, 2)
    card = ModelCard(SMALL, learned, (0.5,) * SMALL.channels, (0.2,) * SMALL.channels, None)
    save(tmp_path / "best.pt", card, {"weights": before.state_dict()})
    model = made(SMALL, 2)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 1
    head = {name: value.clone() for name, value in model.heads.state_dict().items()}
    note = load_weights(model, tmp_path / "best.pt", Classification(classes, label_field="kind"))
    is_kept = classes == ("a", "b")
    assert ("another order of them: 2 tensors" in note) is not is_kept
    expected = before.heads.state_dict() if is_kept else head
    assert all(torch.equal(value, expected[name]) for name, value in model.heads.state_dict().items())
    assert torch.equal(model.class_token, before.class_token)


# --- checkpointing of gradients


class Saved:
    """Counts what is kept for the backward pass: tensors, and their bytes."""

    def __init__(self) -> None:
        self.count = self.nbytes = 0

    def pack(self, tensor: Tensor) -> Tensor:
        self.count += 1
        self.nbytes += tensor.nbytes
        return tensor


def step(options: ViTOptions, **more: Any) -> tuple[Tensor, list[Tensor], Saved]:
    """The output, all gradients, and what was kept between the two passes."""
    model = made(options, **more).train()
    saved = Saved()
    torch.manual_seed(3)  # of the dropout
    with saved_tensors_hooks(saved.pack, lambda tensor: tensor):
        found = model(images(options))
    nn.functional.cross_entropy(found, torch.tensor([0, 4, 2])).backward()
    return found, [weights.grad for weights in model.parameters() if weights.grad is not None], saved


@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_checkpointing_keeps_less_and_changes_no_gradient(dropout: float) -> None:
    options = shape(depth=6, dropout=dropout)
    plain, gradients, kept = step(options)
    found, others, kept_less = step(options, grad_checkpointing=True)
    assert torch.equal(found, plain)
    assert len(others) == len(gradients) == len(list(ViT(options, 5).parameters()))
    assert all(torch.equal(mine, other) for mine, other in zip(others, gradients, strict=True))
    assert all(gradient.any() for gradient in gradients)
    assert kept_less.count < kept.count / 3
    assert kept_less.nbytes < kept.nbytes / 3


def test_blocks_are_computed_again_in_training_only() -> None:
    model = made(shape(depth=3), grad_checkpointing=True)
    calls: list[int] = []
    for number, block in enumerate(model.encoder.layers):
        block.register_forward_pre_hook(lambda *_, number=number: calls.append(number))
    model.train()(images(SMALL)).sum().backward()
    assert calls == [0, 1, 2, 2, 1, 0]
    calls.clear()
    model.eval()(images(SMALL)).sum().backward()
    assert calls == [0, 1, 2]


def test_dropout_is_for_training_only() -> None:
    model, batch = made(shape(dropout=0.5)), images(SMALL)
    assert not torch.equal(model.train()(batch), model(batch))
    assert torch.equal(model.eval()(batch), model(batch))


@pytest.mark.parametrize("shape", [(2, 1, 27, 28), (2, 1, 28, 40), (2, 3, 28, 28)])
def test_images_of_another_shape_are_refused(shape: tuple[int, ...]) -> None:
    model = ViT(TrainOptions(model="seed").vit((28, 28), 1), 3)
    with pytest.raises(OptionError, match=r"images: expected \(B, C, H, W\) with \(1, 28, 28\), found"):
        model(torch.zeros(shape))
