"""The memory that is reckoned for a run, against what torch allocates in real steps."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import tensorstore_ds as tsds
from tensorstore_ds.annex.training import batch_fit
from tensorstore_ds.annex.training.augmentation import train_transform
from tensorstore_ds.annex.training.batch_fit import batch_size_of
from tensorstore_ds.annex.training.data import task_of
from tensorstore_ds.annex.training.footprint import AllocatedBytes, Footprint
from tensorstore_ds.annex.training.learner import Learner
from tensorstore_ds.annex.training.options import TrainOptions
from tensorstore_ds.annex.training.process import Ranks
from tensorstore_ds.errors import TrainingError
from tensorstore_ds.loading.batches import StoreCollate
from training_stores import labelled, one_line, small

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> tsds.Store:
    return tsds.open(labelled(tmp_path_factory.mktemp("footprint")))


def test_bytes_count_once_and_until_they_are_freed() -> None:
    with AllocatedBytes() as allocated:
        kept = torch.zeros(1000, dtype=torch.uint8)
        for _ in range(3):
            torch.zeros(500, dtype=torch.uint8)
        views = [kept[:10], kept.view(10, 100)]
        other = kept + 1
    assert allocated.peak == 2000 and len(views) == 2 and len(other) == 1000


@pytest.mark.parametrize(
    "changes",
    [{}, {"grad_checkpointing": True}, {"precision": "bf16"}, {"ema": 0.9, "augment": "strong"}, {"depth": 5}],
)
def test_what_is_reckoned_is_what_a_run_allocates(store: tsds.Store, changes: dict[str, Any]) -> None:
    """Of a batch that is transformed while the one before is there, and then learned from, twice."""
    options = small(width=32, **{"augment": "none", **changes})
    split = store["train"]
    task, vit = task_of(split), options.vit((12, 12), 1)
    dataset = tsds.StoreDataset(store.path, "train", fields=task.fields)
    transform = train_transform(split, options, vit)
    precision = options.precision if options.precision == "bf16" else "fp32"
    rows = np.arange(48)
    batch: Any = None
    with AllocatedBytes() as allocated:
        learner = Learner(vit, task, options, device=CPU, steps=3)
        for _ in range(3):
            batch = transform(StoreCollate("packed", dataset)(dataset.gather(rows)), rows, 0)
            learner.train_batch(batch)
    footprint = Footprint(vit, task.outputs, options, precision, waiting=1, dataset=dataset, transform=transform)
    assert footprint.nbytes(48) == pytest.approx(allocated.peak, rel=0.1)
    assert footprint.nbytes(96) > 1.6 * footprint.nbytes(48)


def chosen(store: tsds.Store, room: int, monkeypatch: pytest.MonkeyPatch, **changes: Any) -> tuple[int, str]:
    """With so much memory, of which all is planned with."""
    monkeypatch.setattr(batch_fit, "memory_limits", lambda: {"machine": room})
    monkeypatch.setattr(batch_fit, "PLANNED", 1.0)
    monkeypatch.setattr(batch_fit, "return_freed_memory", lambda: None)  # it would last
    options = TrainOptions(**{"model": "seed", "device": "cpu", "num_threads": 1, **changes})
    split = store["train"]
    return batch_size_of(store, split, task_of(split), options.vit((12, 12), 1), options, Ranks(0, 1, CPU))


def test_what_nobody_asked_for_is_lowered(store: tsds.Store, monkeypatch: pytest.MonkeyPatch) -> None:
    assert chosen(store, 2**40, monkeypatch) == (60, "")  # all samples of the split
    size, note = chosen(store, 10_000_000, monkeypatch)
    assert size in (30, 15, 7) and note.startswith(f"batches of {size}: 60 would take ")
    assert note.endswith("there are 10.0 MB (100% of what the limit of machine leaves)")
    assert chosen(store, 10_000_000, monkeypatch, grad_checkpointing=True)[0] > size


def test_what_was_asked_for_is_refused(store: tsds.Store, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(TrainingError) as error:
        chosen(store, 10_000_000, monkeypatch, batch_size=60, accumulate=2)
    found = one_line(error.value)
    assert found.startswith("cpu: expected memory for batches of 60, ") and "`grad_checkpointing` needs less." in found
    size = chosen(store, 10_000_000, monkeypatch)[0]
    assert f"`batch_size={size}` with `accumulate={2 * -(-60 // size)}` fits" in found
    assert chosen(store, 10_000_000, monkeypatch, batch_size=size) == (size, "")
    with pytest.raises(TrainingError, match=r"Use a smaller `image_size` or `model`\."):
        chosen(store, 100_000, monkeypatch, grad_checkpointing=True)
