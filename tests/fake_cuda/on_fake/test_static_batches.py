"""Batches in the same tensors, read by steps that the GPU computes late: right values, and no memory for others."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch

import tensorstore_ds as tsds
from fake_cuda.runtime import counted
from stores import numbered
from tensorstore_ds.loading.static_batch import StaticBatch

ROWS, BATCH = 64, 16
WAYS: dict[str, dict[str, Any]] = {
    "threads": {},
    "workers": {"num_workers": 1},
    "on the device": {"residency": "device"},
    "transformed": {"batch_transform": tsds.Compose([tsds.RandomHorizontalFlip()])},
}


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Labelled images, each of one value."""
    return numbered(tmp_path_factory.mktemp("labelled") / "s.tsds", ROWS, (64, 64, 3)).path


def values_of(loader: tsds.DataLoader[Any]) -> tuple[list[int], set[int]]:
    """A pixel of each image of an epoch, as a step reads it that is late, and the addresses of batches."""
    seen, addresses = [], set()
    for batch in loader:
        seen.append({name: tensor.clone() for name, tensor in batch.items()})  # a copy on the model's stream
        addresses.add(batch["image"].data_ptr())
        del batch
    torch.cuda.synchronize()
    images, labels = (torch.cat([each[name].cpu() for each in seen]) for name in ("image", "label"))
    assert (images == images[:, :1, :1, :1]).all() and (images[:, 0, 0, 0] % 2 == labels).all()
    return images[:, 0, 0, 0].tolist(), addresses


@pytest.mark.parametrize("way", WAYS)
def test_each_step_reads_its_own_batch(path: Path, way: str) -> None:
    loader = tsds.DataLoader(tsds.StoreDataset(path), BATCH, shuffle=True, device="cuda", into="first", **WAYS[way])
    found = [values_of(loader) for _ in range(3)]
    assert all(sorted(values) == list(range(ROWS)) for values, _ in found)
    assert len(set.union(*(addresses for _, addresses in found))) == 1


def test_later_epochs_take_no_memory_of_the_gpu(path: Path) -> None:
    mine = {
        "image": torch.zeros(BATCH, 3, 64, 64, dtype=torch.uint8, device="cuda"),
        "label": torch.zeros(BATCH, dtype=torch.int64, device="cuda"),
    }
    loader = tsds.DataLoader(tsds.StoreDataset(path), BATCH, shuffle=True, device="cuda", into=mine)
    values_of(loader)
    reserved = torch.cuda.memory_reserved()
    with counted("device_allocs", "streams_used") as grown:
        for _ in range(5):
            values, addresses = values_of(loader)
            assert sorted(values) == list(range(ROWS)) and addresses == {mine["image"].data_ptr()}
    assert torch.cuda.memory_reserved() == reserved
    assert not grown["device_allocs"] and not grown["streams_used"]


def test_the_host_waits_for_nothing(path: Path) -> None:
    loader = tsds.DataLoader(tsds.StoreDataset(path), BATCH, device="cuda", into="first")
    for batch in loader:
        batch["image"].clone()
    with counted("stream_syncs", "event_syncs", "device_syncs") as grown:
        for batch in loader:
            batch["image"].clone()
    assert not any(grown.values())


@pytest.mark.skipif(os.environ["FAKE_CUDA_SCHEDULE"] != "main-late", reason="the schedule that shows it")
def test_a_copy_on_another_stream_would_show(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    side, fill = torch.cuda.Stream(), StaticBatch.fill

    def too_early(static: StaticBatch, batch: Any) -> Any:
        with torch.cuda.stream(side):
            return fill(static, batch)

    monkeypatch.setattr(StaticBatch, "fill", too_early)
    loader = tsds.DataLoader(tsds.StoreDataset(path), BATCH, device="cuda", into="first")
    seen = [batch["image"].clone() for batch in loader]
    torch.cuda.synchronize()
    values = [int(value) for image in seen for value in image.cpu()[:, 0, 0, 0]]
    assert values != list(range(ROWS))
