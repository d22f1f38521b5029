"""The data set in torch's own loader, and the loader in Lightning's and Accelerate's hands, alone and on two ranks."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import default_collate

import tensorstore_ds as tsds
from small_stores import ROOT
from stores import detections, store_of

pytestmark = pytest.mark.usefixtures("one_thread")

ROWS = 23
FRAMEWORKS = [name for name in ("accelerate", "lightning") if importlib.util.find_spec(name)]
needs_lightning = pytest.mark.skipif("lightning" not in FRAMEWORKS, reason="needs lightning")
needs_accelerate = pytest.mark.skipif("accelerate" not in FRAMEWORKS, reason="needs accelerate")
#: Said by Lightning of its own lines, of any loader without worker processes, and of what these tests ask for.
quiet_lightning = pytest.mark.filterwarnings(
    "ignore:.*LeafSpec.. is deprecated:FutureWarning",
    "ignore:.*does not have many workers",
    "ignore:The dirpath has changed from",
    "ignore:You requested to overfit but enabled train dataloader shuffling",
)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store whose images are filled with their row, so that every batch tells what it is of."""
    path = tmp_path_factory.mktemp("frameworks") / "rows.tsds"
    samples = [{"image": np.full((4, 5, 3), row, np.uint8), "label": row % 3} for row in range(ROWS)]
    store_of(path, samples, classes=["a", "b", "c"])
    return path


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


def labels_and_images(samples: list[Any]) -> tuple[list[int], torch.Tensor]:
    """A collate_fn of one's own."""
    return [int(sample["label"]) for sample in samples], torch.stack([sample["image"] for sample in samples])


@pytest.mark.parametrize(
    ("workers", "method", "collate"),
    [
        (0, None, default_collate),
        (0, None, labels_and_images),
        (2, "fork", default_collate),
        (2, "fork", labels_and_images),
        pytest.param(2, "spawn", labels_and_images, marks=pytest.mark.slow),
    ],
)
def test_plain_torch_loader(dataset: tsds.StoreDataset, workers: int, method: str | None, collate: Any) -> None:
    loader = torch.utils.data.DataLoader(
        dataset, 5, num_workers=workers, multiprocessing_context=method, collate_fn=collate
    )
    batches = list(loader)
    assert len(batches) == len(loader) == 5
    images = [batch["image"] if collate is default_collate else batch[1] for batch in batches]
    labels = [batch["label"].tolist() if collate is default_collate else batch[0] for batch in batches]
    expected = np.broadcast_to(np.arange(ROWS, dtype=np.uint8)[:, None, None, None], (ROWS, 3, 4, 5))
    np.testing.assert_array_equal(torch.cat(images).numpy(), expected)
    assert [label for some in labels for label in some] == [row % 3 for row in range(ROWS)]


@pytest.mark.slow
@pytest.mark.parametrize(("workers", "method"), [(2, "fork"), (1, "spawn")])
def test_our_loader_with_worker_processes(dataset: tsds.StoreDataset, workers: int, method: str) -> None:
    loader = tsds.DataLoader(dataset, 5, shuffle=True, seed=4, num_workers=workers, multiprocessing_context=method)
    assert [rows(batch) for batch in loader] == cut(order(0, seed=4), 5)


def test_plain_torch_loader_of_detections(tmp_path: Path) -> None:
    samples = detections(9)
    store_of(tmp_path / "objects.tsds", samples, classes=["a", "b"])
    dataset = tsds.StoreDataset(tmp_path / "objects.tsds", return_as="tuple")
    loader = torch.utils.data.DataLoader(dataset, 4, num_workers=2, collate_fn=list)
    found = [sample for batch in loader for sample in batch]
    assert len(found) == 9
    for (image, target), sample in zip(found, samples, strict=True):
        np.testing.assert_array_equal(image.permute(1, 2, 0).numpy(), sample["image"])
        np.testing.assert_array_equal(target["boxes"].numpy(), sample["boxes"].astype(np.float32).reshape(-1, 4))
        np.testing.assert_array_equal(target["labels"].numpy(), sample["labels"])


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


def test_loader_is_made_again_from_its_attributes(dataset: tsds.StoreDataset) -> None:
    """As Lightning does to exchange a sampler."""
    options = {"collate": "padded", "num_threads": 3, "seed": 7, "drop_last": True}
    loader = tsds.DataLoader(dataset, 8, shuffle=True, **options)
    assert {name: getattr(loader, name) for name in options} == options


# --- Lightning --------------------------------------------------------------------------------------------------


def module() -> Any:
    """A LightningModule that notes the rows it was given, by epoch."""
    import lightning

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(1, 1)
            self.seen: list[tuple[int, list[int]]] = []

        def training_step(self, batch: Any, index: int) -> torch.Tensor:
            self.seen.append((self.current_epoch, rows(batch)))
            return self.layer(batch["image"][:, 0, 0, :1] / 255).mean()

        def predict_step(self, batch: Any, index: int) -> list[int]:
            return rows(batch)

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), 1e-3)

    return Module()


def trainer(**options: Any) -> Any:
    import lightning

    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False, "accelerator": "cpu"}
    return lightning.Trainer(**quiet, **{"enable_checkpointing": False, **options})


@needs_lightning
@quiet_lightning
class TestLightning:
    def test_fit_sees_every_epoch_whole(self, dataset: tsds.StoreDataset) -> None:
        model = module()
        trainer(max_epochs=3).fit(model, tsds.DataLoader(dataset, 8, shuffle=True))
        assert model.seen == [(epoch, batch) for epoch in range(3) for batch in cut(order(epoch), 8)]

    def test_limited_epochs_differ(self, dataset: tsds.StoreDataset) -> None:
        model = module()
        trainer(max_epochs=3, limit_train_batches=1).fit(model, tsds.DataLoader(dataset, 8, shuffle=True))
        assert model.seen == [(epoch, order(epoch)[:8]) for epoch in range(3)]

    def test_overfitting_turns_shuffling_off(self, dataset: tsds.StoreDataset) -> None:
        model = module()
        trainer(max_epochs=2, overfit_batches=1).fit(model, tsds.DataLoader(dataset, 8, shuffle=True))
        assert model.seen == [(epoch, list(range(8))) for epoch in range(2)]

    @pytest.mark.parametrize("every", [{"every_n_train_steps": 2}, {"every_n_epochs": 1}])
    def test_goes_on_from_a_checkpoint(self, dataset: tsds.StoreDataset, tmp_path: Path, every: dict[str, int]) -> None:
        from lightning.pytorch.callbacks import ModelCheckpoint

        def saving(folder: str) -> Any:
            checkpoint = ModelCheckpoint(tmp_path / folder, filename="{step}", save_top_k=-1, **every)
            return trainer(max_epochs=3, enable_checkpointing=True, callbacks=[checkpoint])

        whole, rest = module(), module()
        saving("whole").fit(whole, tsds.DataLoader(dataset, 8, shuffle=True))
        step = 2 if "every_n_train_steps" in every else 3
        checkpoint = tmp_path / "whole" / f"step={step}.ckpt"
        saving("rest").fit(rest, tsds.DataLoader(dataset, 8, shuffle=True), ckpt_path=checkpoint, weights_only=False)
        assert whole.seen[step:] == rest.seen

    def test_predict_makes_the_loader_again_and_keeps_its_settings(self, dataset: tsds.StoreDataset) -> None:
        given = tsds.DataLoader(dataset, 8, num_threads=3, collate="padded", seed=5, prefetch_factor=4)
        alone = trainer()
        assert alone.predict(module(), given) == cut(list(range(ROWS)), 8)
        made = alone.predict_dataloaders
        assert type(made) is tsds.DataLoader and made is not given
        for name in ("num_threads", "collate", "seed", "prefetch_factor", "collate_fn", "residency", "device"):
            assert getattr(made, name) == getattr(given, name), name

    def test_predict_keeps_the_batch_transform(self, dataset: tsds.StoreDataset) -> None:
        given = tsds.DataLoader(dataset, 8, batch_transform=PlusHundred())
        assert trainer().predict(module(), given) == cut(list(range(100, 100 + ROWS)), 8)


# --- Accelerate -------------------------------------------------------------------------------------------------


@needs_accelerate
class TestAccelerate:
    def test_prepared_loader_sees_every_epoch_whole(self, dataset: tsds.StoreDataset) -> None:
        from accelerate import Accelerator

        loader = Accelerator(cpu=True).prepare(tsds.DataLoader(dataset, 8, shuffle=True, drop_last=False))
        assert isinstance(loader, torch.utils.data.DataLoader) and len(loader) == 3
        for epoch in range(3):
            assert [rows(batch) for batch in loader] == cut(order(epoch), 8)

    def test_all_settings_are_taken(self, dataset: tsds.StoreDataset) -> None:
        from accelerate import Accelerator

        loader = tsds.DataLoader(dataset, 8, prefetch_factor=3, num_threads=2, device="cpu", collate="packed")
        assert [rows(batch) for batch in Accelerator(cpu=True).prepare(loader)] == cut(list(range(ROWS)), 8)

    def test_batch_transform_is_applied(self, dataset: tsds.StoreDataset) -> None:
        from accelerate import Accelerator

        loader = Accelerator(cpu=True).prepare(tsds.DataLoader(dataset, 8, batch_transform=PlusHundred()))
        assert [rows(batch) for batch in loader] == cut(list(range(100, 100 + ROWS)), 8)

    def test_columns_are_the_same(self, tmp_path: Path) -> None:
        from accelerate import Accelerator

        store_of(tmp_path / "objects.tsds", detections(9), classes=["a", "b"])
        loader = tsds.DataLoader(tsds.StoreDataset(tmp_path / "objects.tsds"), 4, collate="padded")
        for ours, theirs in zip(loader, Accelerator(cpu=True).prepare(loader), strict=True):
            torch.testing.assert_close(theirs, ours, rtol=0, atol=0, equal_nan=True)

    def test_skipping_first_batches(self, dataset: tsds.StoreDataset) -> None:
        from accelerate import Accelerator

        accelerator = Accelerator(cpu=True)
        loader = accelerator.prepare(tsds.DataLoader(dataset, 8, shuffle=True))
        assert [rows(batch) for batch in accelerator.skip_first_batches(loader, 2)] == cut(order(0), 8)[2:]


# --- two ranks ---------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def ranks(path: Path) -> list[dict[str, list[int]]]:
    """What two processes that torchrun started saw: by name, the rows of each."""
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    search = os.pathsep.join([str(ROOT), str(ROOT / "cli")])
    run = subprocess.run(
        [*torchrun, str(ROOT / "tests" / "two_ranks.py"), str(path), "torch", *FRAMEWORKS],
        env={**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", "PYTHONPATH": search},
        capture_output=True,
        text=True,
        timeout=110,
    )
    assert run.returncode == 0, run.stderr
    return [json.loads(path.with_name(f"rank{rank}.json").read_text("utf-8")) for rank in range(2)]


def of_both(ranks: list[dict[str, list[int]]], name: str) -> list[int]:
    """What both saw; the ranks have equally many rows, or would wait for one another for ever."""
    assert len(ranks[0][name]) == len(ranks[1][name])
    return ranks[0][name] + ranks[1][name]


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        "shuffle, epoch 0",
        "shuffle, epoch 1",
        "workers",
        "weighted",
        "DistributedSampler",
        "in order",
        "in order, workers",
    ],
)
def test_ranks_share_the_rows(ranks: list[dict[str, list[int]]], name: str) -> None:
    both = of_both(ranks, name)
    assert len(both) == 24 and sorted(set(both)) == list(range(ROWS))  # one is repeated


@pytest.mark.slow
@pytest.mark.parametrize("name", ["uneven", "uneven, shuffle"])
def test_ranks_see_every_row_exactly_once(ranks: list[dict[str, list[int]]], name: str) -> None:
    first, second = (each[name] for each in ranks)
    assert (len(first), len(second)) == (12, 11)
    if name == "uneven":
        assert (first, second) == (list(range(0, ROWS, 2)), list(range(1, ROWS, 2)))
    assert sorted(first + second) == list(range(ROWS))


@pytest.mark.slow
def test_ranks_see_another_order_in_every_epoch(ranks: list[dict[str, list[int]]]) -> None:
    first, second = of_both(ranks, "shuffle, epoch 0"), of_both(ranks, "shuffle, epoch 1")
    assert first != second
    assert [row for pair in zip(first[:12], first[12:], strict=True) for row in pair] == [*order(0), order(0)[0]]


@pytest.mark.slow
@needs_lightning
@pytest.mark.parametrize("how", ["Lightning", "StoreDataModule"])
@pytest.mark.parametrize("name", ["epoch 0", "epoch 1", "validation"])
def test_lightning_ranks_share_the_rows(ranks: list[dict[str, list[int]]], how: str, name: str) -> None:
    both = of_both(ranks, f"{how}, {name}")
    assert len(both) == 24 and sorted(set(both)) == list(range(ROWS))
    if name != "validation":
        assert both == of_both(ranks, f"shuffle, {name}")


@pytest.mark.slow
@needs_lightning
def test_lightning_ranks_go_on_at_the_very_next_batch(ranks: list[dict[str, list[int]]]) -> None:
    for seen in ranks:
        whole = [seen[f"StoreDataModule, epoch {epoch}"] for epoch in range(2)]
        assert seen["StoreDataModule after 1, epoch 0"] == whole[0][4:]
        assert seen["StoreDataModule after 1, epoch 1"] == whole[1]
        assert seen["StoreDataModule after 4, epoch 1"] == whole[1][4:]


@pytest.mark.slow
@needs_accelerate
@pytest.mark.parametrize("how", ["prepared", "prepared, split batches", "prepared, dispatched"])
@pytest.mark.parametrize("name", ["epoch 0", "epoch 1", "weighted", "in order"])
def test_accelerate_ranks_share_the_rows(ranks: list[dict[str, list[int]]], how: str, name: str) -> None:
    both = of_both(ranks, f"{how}, {name}")
    assert len(both) <= 24 and sorted(set(both)) == list(range(ROWS))


@pytest.mark.slow
@needs_accelerate
@pytest.mark.parametrize("how", ["prepared", "prepared, split batches", "prepared, dispatched"])
def test_accelerate_epochs_differ(ranks: list[dict[str, list[int]]], how: str) -> None:
    assert of_both(ranks, f"{how}, epoch 0") != of_both(ranks, f"{how}, epoch 1")
