"""Whole runs of training and of a diagnosis on the fake GPU."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import tensorstore_ds as tsds
from stores import store_of
from tensorstore_ds.annex.measuring.diagnose_options import DiagnoseOptions
from tensorstore_ds.annex.measuring.diagnosis import diagnose
from tensorstore_ds.annex.training.options import TrainOptions
from training_stores import load_history


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Images of two classes, dark and bright ones."""
    rng = np.random.default_rng(0)
    samples = [
        {"image": rng.normal(60 + 120 * (row % 2), 30, (28, 28, 1)).clip(0, 255).astype(np.uint8), "label": row % 2}
        for row in range(96)
    ]
    return store_of(tmp_path_factory.mktemp("training") / "s.tsds", samples, ["dark", "bright"]).path


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"residency": "page-cache", "precision": "fp16", "ema": 0.9, "mix": "mixup"},
        {"cuda_graphs": True, "batch_size": 20},
    ],
)
def test_a_model_learns(store: Path, tmp_path: Path, changes: dict[str, Any]) -> None:
    options = TrainOptions(**{"model": "seed", "patch_size": 7, "epochs": 3, "batch_size": 16, "seed": 1, **changes})
    with torch.compiler.set_stance("force_eager"):  # the fake GPU has neither compiled kernels nor graphs
        report = tsds.train(store, options, out=tmp_path / "run")
    assert report is not None and report.facts["device"] == "Fake H100 (no GPU)"
    history = load_history(tmp_path / "run")
    assert all(record.device_memory for record in history)
    assert history[-1].train["loss"] < history[0].train["loss"]


def test_a_diagnosis_ends_with_a_verdict(store: Path) -> None:
    found = diagnose(store, DiagnoseOptions(model="seed", batch_size=16, seconds=4))
    assert found.device.startswith("cuda") and found.verdicts
