"""Transforms in a loader: what a sample gets does not depend on threads, processes, batches and ranks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import tensorstore_ds as tsds
from stores import store_of

ROWS = 24


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store of noise, whose label is the row."""
    rng = np.random.default_rng(0)
    samples = [{"image": rng.integers(0, 256, (24, 20, 3), np.uint8), "label": row} for row in range(ROWS)]
    path = tmp_path_factory.mktemp("loading") / "s.tsds"
    store_of(path, samples, tuple(map(str, range(ROWS))))
    return path


def alone() -> tsds.Compose:
    """Of what each sample gets alone."""
    steps = [
        tsds.RandomAffine(20, (0.1, 0.1), (0.8, 1.2), 5),
        tsds.RandomPerspective(),
        tsds.RandAugment(),
        tsds.TrivialAugment(),
        tsds.GaussianBlur(3),
        tsds.Equalize(),
        tsds.RandomErasing(value="random"),
    ]
    return tsds.Compose(steps, seed=3)


def by_row(path: Path, **options: Any) -> list[dict[int, Tensor]]:
    """The images of two epochs by their row."""
    loader = tsds.DataLoader(tsds.StoreDataset(path), batch_transform=alone(), **options)
    epochs = []
    for _ in range(2):
        seen = {}
        for batch in loader:
            seen |= dict(zip(batch["label"].tolist(), batch["image"].clone(), strict=True))
        epochs.append(seen)
    return epochs


WAYS: list[dict[str, Any]] = [
    {"batch_size": 6, "num_threads": 3},
    {"batch_size": 5, "shuffle": False},
    {"batch_size": 1},
    {"batch_size": 6, "num_workers": 1, "persistent_workers": True},
    {"batch_size": 6, "device": "cpu"},
]


@pytest.mark.parametrize("way", WAYS, ids=str)
def test_a_sample_gets_the_same_in_every_way(path: Path, way: dict[str, Any]) -> None:
    expected = by_row(path, batch_size=8, shuffle=True, num_threads=1)
    found = by_row(path, **{"shuffle": True, **way})
    assert any(not torch.equal(expected[0][row], expected[1][row]) for row in range(ROWS))
    for first, second in zip(expected, found, strict=True):
        assert sorted(first) == sorted(second) == list(range(ROWS))
        for row in range(ROWS):
            # The mean of contrast may be summed in another order.
            assert ((first[row].int() - second[row].int()).abs() <= 1).float().mean() > 0.99


def test_a_sample_gets_the_same_on_every_rank(path: Path) -> None:
    expected = by_row(path, batch_size=8, shuffle=True)[0]
    found = {}
    for rank in range(2):
        dataset = tsds.StoreDataset(path)
        sampler = tsds.ShuffleSampler(dataset, seed=9, rank=rank, num_replicas=2)
        for batch in tsds.DataLoader(dataset, 5, sampler=sampler, batch_transform=alone()):
            found |= dict(zip(batch["label"].tolist(), batch["image"].clone(), strict=True))
    assert sorted(found) == list(range(ROWS))
    for row in range(ROWS):
        assert ((expected[row].int() - found[row].int()).abs() <= 1).float().mean() > 0.99


@pytest.mark.parametrize("mix", [tsds.Mixup, tsds.CutMix, tsds.Mosaic])
def test_mixing_is_the_same_in_threads_and_processes(path: Path, mix: Any) -> None:
    results = []
    for options in ({"num_threads": 1}, {"num_threads": 3}, {"num_workers": 1}):
        transform = tsds.Compose([mix(num_classes=ROWS)], seed=2)
        loader = tsds.DataLoader(tsds.StoreDataset(path), 6, shuffle=True, seed=4, batch_transform=transform, **options)
        results.append([(batch["image"].clone(), batch["label"].clone()) for batch in loader])
    for found in results[1:]:
        for (image, label), (expected_image, expected_label) in zip(found, results[0], strict=True):
            assert torch.equal(image, expected_image) and torch.equal(label, expected_label)
    shares = torch.cat([label for _, label in results[0]]).sum(0)
    torch.testing.assert_close(shares.sum(), torch.tensor(float(ROWS)))
    dataset = tsds.StoreDataset(path, return_as="tuple")
    image, label = next(iter(tsds.DataLoader(dataset, 6, batch_transform=mix(num_classes=ROWS))))
    assert image.shape == (6, 3, 24, 20) and label.shape == (6, ROWS)
