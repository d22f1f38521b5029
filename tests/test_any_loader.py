"""A loader of any library and a step: what is measured, and what is refused."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

import tensorstore_ds as tsds
from stores import store_of
from tensorstore_ds.annex.measuring.any_loader import _samples_of, _verdict
from tensorstore_ds.loading import epoch

IMAGES = torch.zeros(64, 3, 4, 4)


class Counting:
    """A loader that counts its batches, each of which takes a while."""

    def __init__(self, seconds: float = 0.0) -> None:
        self.given, self.epochs, self._seconds = 0, 0, seconds

    def __iter__(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        self.epochs += 1
        for start in range(0, 64, 16):
            time.sleep(self._seconds)
            self.given += 1
            yield IMAGES[start : start + 16], torch.zeros(16)


def test_the_loader_and_the_step_take_turns() -> None:
    loader, seen = Counting(), list[int]()
    found = tsds.diagnose(loader=loader, step=lambda batch: seen.append(len(batch[0])), seconds=1, device="cpu")
    assert isinstance(found, tsds.measuring.LoaderDiagnosis) and found.batch_size == 16
    assert loader.epochs > 1 and loader.given >= 6 and set(seen) == {16}
    assert found.step_rate is not None and found.together_rate is not None and found.wait is not None
    assert 0 <= found.wait < 1 and found.load_rate > 0 and found.seconds >= 0.9


def test_batches_may_be_arrays() -> None:
    batches, seen = [np.zeros((4, 3))] * 8, list[int]()
    found = tsds.diagnose(loader=batches, step=lambda batch: seen.append(len(batch)), seconds=1, device="cpu")
    assert isinstance(found, tsds.measuring.LoaderDiagnosis) and found.batch_size == 4 and set(seen) == {4}


def test_a_loader_alone() -> None:
    loader = DataLoader(TensorDataset(IMAGES, torch.zeros(64)), 8)
    found = tsds.diagnose(loader=loader, seconds=1, device="cpu")
    assert (found.batch_size, found.step_rate, found.wait) == (8, None, None)
    assert [verdict.code for verdict in found.verdicts] == ["loading-alone"]


@pytest.mark.parametrize(
    ("load", "alone", "together", "cause", "code", "words"),
    [
        (100.0, None, None, "loading", "loading-alone", ""),
        (100.0, 50.0, 45.0, "", "model-bound", ""),
        (100.0, 50.0, 45.0, "script", "launch-bound", "The GPU waits for the script"),
        (100.0, 50.0, 44.9, "", "loader-bound", ""),
        (100.0, 50.0, 44.9, "loading", "loader-bound", "threads do not finish batches in time"),
        (100.0, 50.0, 44.9, "handover", "loader-bound", "takes long to hand them over"),
        (100.0, 50.0, 44.9, "training", "loader-bound", "threads slow the step down"),
        (100.0, 50.0, 44.9, "script", "loader-bound", "threads slow the step down"),
    ],
)
def test_verdicts(load: float, alone: float | None, together: float | None, cause: str, code: str, words: str) -> None:
    found = _verdict(load, alone, together, 8, cause)
    assert found.code == code and words in found.line


@pytest.mark.slow
def test_the_cause_by_a_loader_of_this_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By a clock that batch transforms and steps move on."""
    now, spent = [0.0], {"transform": 1.0, "step": 9.0}
    monkeypatch.setattr(epoch, "time", SimpleNamespace(perf_counter=lambda: now[0]))

    def spend(on: str) -> None:
        now[0] += spent[on]

    def transform(batch: Any, rows: Any, epoch: int) -> Any:
        spend("transform")
        return batch

    samples = [{"image": np.zeros((4, 4, 3), np.uint8), "label": 0} for _ in range(6)]
    dataset = tsds.StoreDataset(store_of(tmp_path / "s.tsds", samples, ["a"]).path)
    loader = tsds.DataLoader(dataset, 2, batch_transform=transform)
    for steps, cause in ((9.0, "handover"), (99.0, "training")):
        spent["step"] = steps
        found = tsds.diagnose(loader=loader, step=lambda batch: spend("step"), seconds=1, device="cpu")
        assert found.cause == cause
    assert tsds.diagnose(loader=loader, seconds=1, device="cpu").cause == ""
    assert tsds.diagnose(loader=Counting(), step=lambda batch: None, seconds=1, device="cpu").cause == ""


@pytest.mark.parametrize(
    ("batch", "samples"),
    [
        (torch.zeros(5, 2), 5),
        ((torch.zeros(4, 2), torch.zeros(4)), 4),
        ([torch.zeros(3, 2), torch.zeros(3)], 3),
        ({"image": torch.zeros(6, 2), "more": 1}, 6),
        ([{"boxes": 1}, {"boxes": 2}], 2),
        (([torch.zeros(3, 2, 2)] * 5, [{"boxes": 1}] * 5), 5),
        ({"name": "a", "image": [torch.zeros(3, 2, 2)] * 7}, 7),
        ({"objects": {"offsets": torch.tensor([0, 3, 4]), "boxes": torch.zeros(4, 4)}, "image": torch.zeros(2, 1)}, 2),
        ({"objects": {"offsets": torch.tensor([0, 3, 4]), "boxes": torch.zeros(4, 4)}}, 2),
    ],
)
def test_samples_of_a_batch(batch: Any, samples: int) -> None:
    assert _samples_of(batch) == samples


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"loader": iter([])}, "`loader`: expected a loader that gives batches each time it is iterated, found none"),
        ({"loader": [1, 2]}, "`loader`: expected batches of tensors, found int"),
        ({"loader": ["text"]}, "`loader`: expected batches of tensors, found str"),
        ({"loader": [{}]}, "`loader`: expected batches of tensors, found dict"),
        ({"loader": [1], "transform": dict}, "`transform`: expected none with a `loader`"),
        ({}, "expected a `store` or a `loader`, found both or none"),
        ({"store": "a.tsds", "loader": [1]}, "expected a `store` or a `loader`, found both or none"),
    ],
)
def test_what_is_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(tsds.OptionError, match=message):
        tsds.diagnose(**arguments, device="cpu", seconds=1)
