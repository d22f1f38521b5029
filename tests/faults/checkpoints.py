"""A checkpoint to be written and read: its weights are all of one value."""

from __future__ import annotations

from pathlib import Path

from tensorstore_ds.annex.training.checkpoint import ModelCard, load
from tensorstore_ds.annex.training.options import ViTOptions
from tensorstore_ds.annex.training.tasks import Classification

CARD = ModelCard(
    ViTOptions((8, 8), channels=1, patch_size=4, width=8, depth=1, heads=2, mlp_width=8),
    Classification(("ant", "bee"), label_field="label"),
    mean=(0.5,),
    std=(0.25,),
    stored=(8, 8),
)


def value_of(path: Path) -> float:
    """The value of a checkpoint that is whole; else a `TrainingError` is raised."""
    _, content = load(path)
    values = {float(value) for tensor in content["weights"].values() for value in tensor.unique()}
    assert len(values) == 1, f"{path} is of several: {values}"
    return values.pop()
