"""Small learners with given weights, and batches for them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from tensorstore_ds.annex.training.learner import Learner
from tensorstore_ds.annex.training.options import TrainOptions, ViTOptions
from tensorstore_ds.annex.training.tasks import Classification

VIT = ViTOptions((8, 8), channels=1, patch_size=4, width=8, depth=2, heads=2, mlp_width=16)
TASK = Classification(("ant", "bee", "cat"), label_field="label")
RATE = 0.01


def randomized(model: Any, scale: float = 0.3) -> Any:
    """A model with random weights in all places; a new one's last layer is 0."""
    generator = torch.Generator().manual_seed(0)
    for weights in model.parameters():
        weights.data.copy_(torch.randn(weights.shape, generator=generator) * scale)
    return model


def learner(*, steps: int = 10, vit: ViTOptions = VIT, device: str = "cpu", **options: Any) -> Learner:
    """One of a model with random weights."""
    options = {"learning_rate": RATE, "warmup": 0.0, "clip": 0.0, "weight_decay": 0.0, "precision": "fp32", **options}
    made = Learner(vit, TASK, TrainOptions(**options), device=device, steps=steps)
    randomized(made.module)
    if made.average is not None:
        made.average.load_state_dict(made.module.state_dict())
    return made


def batch(rows: int = 7, seed: int = 1, device: str = "cpu") -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    images = torch.randn(rows, 1, 8, 8, generator=generator)
    return {"image": images.to(device), "label": torch.arange(rows, device=device) % 3}


def gradients(found: Learner, *, some: bool = True) -> dict[str, Tensor]:
    """The gradients by name; `some` are expected not to be 0."""
    grads = {name: weights.grad for name, weights in found.module.named_parameters()}
    assert all(grad is not None and (grad.any() or not some) for grad in grads.values())
    return {name: grad.clone() for name, grad in grads.items() if grad is not None}


def weights_of(model: nn.Module) -> dict[str, Tensor]:
    return {name: value.detach().clone() for name, value in model.state_dict().items()}


def expected_loss(model: nn.Module, images: Tensor, targets: Tensor, smoothing: float = 0.0) -> Tensor:
    with torch.no_grad():
        return functional.cross_entropy(model(images), targets, label_smoothing=smoothing)
