"""Options that follow from others: their values, that given ones stay, and what they reach."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, strategies as st

import tensorstore_ds as tsds
from tensorstore_ds.annex.demo import load_digits
from tensorstore_ds.annex.training.learner import Learner
from tensorstore_ds.annex.training.options import CHOSEN, TrainOptions, ViTOptions
from tensorstore_ds.annex.training.recipe import LARGEST_RATE, completed, learning_rate
from tensorstore_ds.annex.training.tasks import Classification
from training_stores import labelled, small

VIT = ViTOptions((8, 8), channels=1, patch_size=4, width=64, depth=1, heads=2, mlp_width=16)


@pytest.mark.parametrize(
    ("samples", "width", "rate"),
    [
        (100, 64, 0.00177),
        (200, 64, 0.0025),
        (500, 64, 0.00395),
        (1000, 64, 0.00559),
        (2000, 64, 0.00791),
        (5000, 64, 0.01),
        (10_000, 64, 0.01),
        (128, 192, 0.00115),
        (1024, 768, 0.00163),
    ],
)
def test_the_learning_rate(samples: int, width: int, rate: float) -> None:
    assert learning_rate(samples, width) == rate


@given(st.integers(1, 2**20), st.integers(1, 2**20), st.integers(1, 4096))
def test_it_grows_with_the_batch_up_to_a_limit(a: int, b: int, width: int) -> None:
    less, more = sorted((a, b))
    assert 0 < learning_rate(less, width) <= learning_rate(more, width)
    assert learning_rate(more, max(width, 64)) <= LARGEST_RATE
    assert learning_rate(a, width + 1) <= learning_rate(a, width)


def test_what_was_given_stays() -> None:
    given = TrainOptions(batch_size=500, learning_rate=0.123, augment="strong", epochs=2)
    assert completed(given, VIT) == given
    open_ones = completed(TrainOptions(), VIT)
    assert (open_ones.batch_size, open_ones.learning_rate, open_ones.augment) == (128, 0.002, "light")
    assert completed(TrainOptions(epochs=5), VIT).augment == "none"
    assert all(getattr(open_ones, name) is not None for name in CHOSEN)
    together = completed(TrainOptions(batch_size=125, accumulate=2), VIT, ranks=2)
    assert together.learning_rate == learning_rate(500, 64)


def test_a_learner_of_its_own_has_them_too() -> None:
    task = Classification(("a", "b"), label_field="label")
    made = Learner(VIT, task, TrainOptions(batch_size=512), device="cpu", steps=9)
    assert made.optimizer.param_groups[0]["lr"] == 0.004


def test_a_run_goes_on_with_those_that_it_began_with(tmp_path: Path) -> None:
    """Memory, for one, may be less than it was."""
    path = labelled(tmp_path)
    tsds.train(path, small(epochs=1, batch_size=16, learning_rate=0.5, augment="strong"), out=tmp_path / "run")
    given = {**small(epochs=1).as_data(), **dict.fromkeys(CHOSEN)}
    report = tsds.train(path, TrainOptions(**given), out=tmp_path / "run", resume=True)
    assert report is not None
    kept = torch.load(tmp_path / "run" / "last.pt", weights_only=True)["options"]
    assert (kept["batch_size"], kept["learning_rate"], kept["augment"]) == (16, 0.5, "strong")
    with pytest.raises(tsds.errors.TrainingError, match="`batch_size`: expected 16 as in the checkpoint, found 8"):
        tsds.train(path, TrainOptions(**{**given, "batch_size": 8}), out=tmp_path / "run", resume=True)


@pytest.mark.slow
@pytest.mark.usefixtures("one_thread")
def test_real_digits_are_learned_in_few_steps(tmp_path: Path) -> None:
    """Some 100 steps of a small model on 1,440 digits: 0.87."""
    images, labels = load_digits()
    samples = [{"image": image[..., None], "label": int(label)} for image, label in zip(images, labels, strict=True)]
    splits = {"train": 0.8, "test": 0.2}
    how = tsds.ConvertOptions(classes=tuple("0123456789"), workers=0, split_into=splits)
    tsds.convert(samples, tmp_path / "digits.tsds", how)
    shape: Any = {"image_size": 8, "patch_size": 2, "width": 32, "heads": 4, "depth": 3, "mlp_width": 64}
    options = TrainOptions(**shape, epochs=9, device="cpu", num_threads=1)
    report = tsds.train(tmp_path / "digits.tsds", options, out=tmp_path / "run")
    assert report is not None and report.last["accuracy"] > 0.75
