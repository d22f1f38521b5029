"""The data set in torch's own loader, and the loader in Lightning's and Accelerate's hands, alone and on two ranks."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest
import torch

import tensorstore_ds as tsds
from small_stores import ROOT
from stores import detections, numbered, store_of
from training_stores import finished, torchrun

pytestmark = pytest.mark.usefixtures("one_thread")

ROWS = 23
FRAMEWORKS = [name for name in ("accelerate", "lightning") if importlib.util.find_spec(name)]
needs_lightning = pytest.mark.skipif("lightning" not in FRAMEWORKS, reason="needs lightning")
needs_accelerate = pytest.mark.skipif("accelerate" not in FRAMEWORKS, reason="needs accelerate")
EPOCHS = "epoch 0", "epoch 1"
PREPARED = "prepared", "prepared, split batches", "prepared, dispatched"


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store whose images are filled with their row, so that every batch tells what it is of."""
    return numbered(tmp_path_factory.mktemp("frameworks") / "rows.tsds", ROWS, (4, 5, 3), classes=3).path


@pytest.fixture
def dataset(path: Path) -> tsds.StoreDataset:
    return tsds.StoreDataset(path)


def rows(batch: dict[str, Any]) -> list[int]:
    return batch["image"][:, 0, 0, 0].tolist()


def order(epoch: int, seed: int = 0) -> list[int]:
    """The rows of an epoch, in one process."""
    sampler = tsds.ShuffleSampler(ROWS, seed=seed)
    sampler.set_epoch(epoch)
    return list(sampler)


def cut(rows: list[int], size: int) -> list[list[int]]:
    return [rows[i : i + size] for i in range(0, len(rows), size)]


# --- torch's own loader -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("workers", "method"), [(0, None), (2, "fork"), pytest.param(1, "spawn", marks=pytest.mark.slow)]
)
def test_loaders_with_worker_processes(dataset: tsds.StoreDataset, workers: int, method: str | None) -> None:
    options: dict[str, Any] = {"num_workers": workers, "multiprocessing_context": method}
    loader = torch.utils.data.DataLoader(dataset, 5, **options)
    batches = list(loader)
    assert len(batches) == len(loader) == 5 and [*map(rows, batches)] == cut(list(range(ROWS)), 5)
    assert torch.cat([batch["label"] for batch in batches]).tolist() == [row % 3 for row in range(ROWS)]
    own_lists = torch.utils.data.DataLoader(dataset, 5, collate_fn=list, **options)
    samples = [sample for batch in own_lists for sample in batch]
    assert [int(sample["image"][0, 0, 0]) for sample in samples] == list(range(ROWS))
    ours = tsds.DataLoader(dataset, 5, shuffle=True, seed=4, **options)
    assert [*map(rows, ours)] == cut(order(0, seed=4), 5)


class PlusHundred(torch.nn.Module):
    """A batch transform whose result tells how often it was applied."""

    def forward(self, batch: dict[str, Any], rows: Any = None, epoch: int | None = None) -> dict[str, Any]:
        return {**batch, "image": batch["image"] + 100}


# --- settings that others read or write --------------------------------------------------------------------------


def test_epoch_may_be_set_on_the_sampler(dataset: tsds.StoreDataset) -> None:
    """As every DistributedDataParallel script does, and Lightning when it goes on from a checkpoint."""
    loader = tsds.DataLoader(dataset, 8, shuffle=True)
    loader.sampler.set_epoch(5)
    assert [rows(batch) for batch in loader] == cut(order(5), 8)
    assert [rows(batch) for batch in loader] == cut(order(6), 8)


# --- Accelerate -------------------------------------------------------------------------------------------------


@needs_accelerate
def test_accelerate_iterates_a_loader_as_it_is(dataset: tsds.StoreDataset, tmp_path: Path) -> None:
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True)
    loader = accelerator.prepare(tsds.DataLoader(dataset, 8, shuffle=True, drop_last=False))
    assert isinstance(loader, torch.utils.data.DataLoader) and len(loader) == 3
    for epoch in range(3):
        assert [*map(rows, loader)] == cut(order(epoch), 8)
    skipping = accelerator.prepare(tsds.DataLoader(dataset, 8, shuffle=True))
    assert [*map(rows, accelerator.skip_first_batches(skipping, 2))] == cut(order(0), 8)[2:]
    given: dict[str, Any] = {"prefetch_factor": 3, "num_threads": 2, "device": "cpu", "collate": "packed"}
    for options, more in ((given, 0), ({"batch_transform": PlusHundred()}, 100)):
        prepared = accelerator.prepare(tsds.DataLoader(dataset, 8, **options))
        assert [*map(rows, prepared)] == cut(list(range(more, more + ROWS)), 8)
    objects = tsds.StoreDataset(store_of(tmp_path / "objects.tsds", detections(9), classes=["a", "b"]))
    plain = tsds.DataLoader(objects, 4, collate="padded")
    for ours, theirs in zip(plain, accelerator.prepare(plain), strict=True):
        torch.testing.assert_close(theirs, ours, rtol=0, atol=0, equal_nan=True)


# --- two ranks ---------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def ranks(path: Path) -> list[dict[str, list[int]]]:
    """What two processes that torchrun started saw: by name, the rows of each."""
    finished(torchrun(ROOT / "tests" / "two_ranks.py", path, "torch", *FRAMEWORKS))
    return [json.loads(path.with_name(f"rank{rank}.json").read_text("utf-8")) for rank in range(2)]


def of_both(ranks: list[dict[str, list[int]]], name: str) -> list[int]:
    """What both saw; the ranks have equally many rows, or would wait for one another for ever."""
    assert len(ranks[0][name]) == len(ranks[1][name])
    return ranks[0][name] + ranks[1][name]


def seen_by_ranks() -> list[Any]:
    """Names in the record of each rank, with the framework that each needs."""
    names = ["shuffle, epoch 0", "shuffle, epoch 1", "workers", "weighted", "DistributedSampler", "in order"]
    ours = [*names, "in order, workers"]
    fitted = [f"{how}, {what}" for how in ("Lightning", "StoreDataModule") for what in (*EPOCHS, "validation")]
    prepared = [f"{how}, {what}" for how in PREPARED for what in (*EPOCHS, "weighted", "in order")]
    marked = [*((name, needs_lightning) for name in fitted), *((name, needs_accelerate) for name in prepared)]
    return [*ours, *(pytest.param(name, marks=mark) for name, mark in marked)]


@pytest.mark.slow
@pytest.mark.parametrize("name", seen_by_ranks())
def test_ranks_share_the_rows(ranks: list[dict[str, list[int]]], name: str) -> None:
    both = of_both(ranks, name)
    assert sorted(set(both)) == list(range(ROWS))
    assert len(both) <= 24 if name.startswith("prepared") else len(both) == 24  # one is repeated
    how, _, what = name.partition(", ")
    if how in ("Lightning", "StoreDataModule") and what in EPOCHS:
        assert both == of_both(ranks, f"shuffle, {what}")


@pytest.mark.slow
def test_ranks_see_every_row_once_and_another_order_in_every_epoch(ranks: list[dict[str, list[int]]]) -> None:
    for name in ("uneven", "uneven, shuffle"):
        first, second = (each[name] for each in ranks)
        assert (len(first), len(second)) == (12, 11) and sorted(first + second) == list(range(ROWS))
    assert [each["uneven"] for each in ranks] == [list(range(0, ROWS, 2)), list(range(1, ROWS, 2))]
    first, second = of_both(ranks, "shuffle, epoch 0"), of_both(ranks, "shuffle, epoch 1")
    assert first != second
    assert [row for pair in zip(first[:12], first[12:], strict=True) for row in pair] == [*order(0), order(0)[0]]
    for how in PREPARED if "accelerate" in FRAMEWORKS else ():
        assert of_both(ranks, f"{how}, epoch 0") != of_both(ranks, f"{how}, epoch 1")


@pytest.mark.slow
@needs_lightning
def test_lightning_ranks_go_on_at_the_very_next_batch(ranks: list[dict[str, list[int]]]) -> None:
    for seen in ranks:
        whole = [seen[f"StoreDataModule, epoch {epoch}"] for epoch in range(2)]
        assert seen["StoreDataModule after 1, epoch 0"] == whole[0][4:]
        assert seen["StoreDataModule after 1, epoch 1"] == whole[1]
        assert seen["StoreDataModule after 4, epoch 1"] == whole[1][4:]
