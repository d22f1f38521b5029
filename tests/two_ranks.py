"""Run by torchrun on two ranks: which rows of a store each framework shows to this rank, as JSON beside the store."""

from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DistributedSampler

import tensorstore_ds as tsds


def rows(batches: Iterable[Any]) -> list[int]:
    """Every image of the store is filled with its row."""
    return [row for batch in batches for row in batch["image"][:, 0, 0, 0].tolist()]


def with_torch(dataset: tsds.StoreDataset) -> dict[str, list[int]]:
    """Loaders in a process that knows its rank."""
    loader = tsds.DataLoader(dataset, 4, shuffle=True)
    seen = {"shuffle, epoch 0": rows(loader), "shuffle, epoch 1": rows(loader)}
    assert len(loader) == 3, len(loader)
    seen["in order"] = rows(tsds.DataLoader(dataset, 4))
    seen["in order, workers"] = rows(tsds.DataLoader(dataset, 4, num_workers=1))
    seen["uneven"] = rows(tsds.DataLoader(dataset, 4, even_batches=False))
    seen["uneven, shuffle"] = rows(tsds.DataLoader(dataset, 4, shuffle=True, even_batches=False))
    seen["workers"] = rows(tsds.DataLoader(dataset, 4, shuffle=True, num_workers=1))
    weighted = tsds.WeightedSampler([1.0] * len(dataset), len(dataset), replacement=False)
    seen["weighted"] = rows(tsds.DataLoader(dataset, 4, sampler=weighted))
    seen["DistributedSampler"] = rows(tsds.DataLoader(dataset, 4, sampler=DistributedSampler(dataset)))
    return seen


def with_accelerate(dataset: tsds.StoreDataset) -> dict[str, list[int]]:
    """Loaders that went through `prepare`."""
    from accelerate import Accelerator
    from accelerate.utils import DataLoaderConfiguration

    seen = {}
    for name, options in (
        ("prepared", DataLoaderConfiguration()),
        ("prepared, split batches", DataLoaderConfiguration(split_batches=True)),
        ("prepared, dispatched", DataLoaderConfiguration(dispatch_batches=True)),
    ):
        accelerator = Accelerator(cpu=True, dataloader_config=options)
        loader = accelerator.prepare(tsds.DataLoader(dataset, 4, shuffle=True))
        seen[f"{name}, epoch 0"] = rows(loader)
        seen[f"{name}, epoch 1"] = rows(loader)
        weighted = tsds.WeightedSampler([1.0] * len(dataset), len(dataset), replacement=False)
        seen[f"{name}, weighted"] = rows(accelerator.prepare(tsds.DataLoader(dataset, 4, sampler=weighted)))
        seen[f"{name}, in order"] = rows(accelerator.prepare(tsds.DataLoader(dataset, 4)))
    return seen


def with_lightning(dataset: tsds.StoreDataset) -> dict[str, list[int]]:
    """Loaders that the Trainer iterated."""
    import lightning

    class Module(lightning.LightningModule):
        def __init__(self, name: str) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(1, 1)
            self.name = name
            self.seen: dict[str, list[int]] = {f"{name}, validation": []}

        def training_step(self, batch: Any, index: int) -> torch.Tensor:
            self.seen.setdefault(f"{self.name}, epoch {self.current_epoch}", []).extend(rows([batch]))
            return self.layer(torch.ones(1, 1)).mean()

        def validation_step(self, batch: Any, index: int) -> None:
            if self.current_epoch == 0:
                self.seen[f"{self.name}, validation"] += rows([batch])

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), 1e-3)

    def fitted(name: str, *data: Any, ckpt_path: Path | None = None, **options: Any) -> dict[str, list[int]]:
        module = Module(name)
        quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
        options = {"enable_checkpointing": False, "max_epochs": 2, "num_sanity_val_steps": 0, **quiet, **options}
        trainer = lightning.Trainer(accelerator="cpu", devices=2, strategy="ddp", **options)
        trainer.fit(module, *data, ckpt_path=ckpt_path, weights_only=False)
        return module.seen

    seen = fitted("Lightning", tsds.DataLoader(dataset, 4, shuffle=True), tsds.DataLoader(dataset, 4))

    from lightning.pytorch.callbacks import ModelCheckpoint

    from tensorstore_ds.annex.adapters.lightning import StoreDataModule

    folder = dataset.path.with_name("checkpoints")
    saving = ModelCheckpoint(folder, filename="{step}", save_top_k=-1, every_n_train_steps=1)
    module = StoreDataModule(dataset.path, 4, val_split="train")
    seen |= fitted("StoreDataModule", module, enable_checkpointing=True, callbacks=[saving])
    for step in (1, 4):  # within both epochs of three steps
        module = StoreDataModule(dataset.path, 4)
        seen |= fitted(f"StoreDataModule after {step}", module, ckpt_path=folder / f"step={step}.ckpt")
    return seen


def main() -> None:
    """Arguments: the store, then any of torch, accelerate, lightning."""
    warnings.filterwarnings("ignore", message=".*LeafSpec.. is deprecated")
    warnings.filterwarnings("ignore", message=".*does not have many workers")
    warnings.filterwarnings("ignore", message="You defined a `validation_step` but have no `val_dataloader`")
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo")
    path = Path(sys.argv[1])
    dataset = tsds.StoreDataset(path)
    runs = {"torch": with_torch, "accelerate": with_accelerate, "lightning": with_lightning}
    seen: dict[str, list[int]] = {}
    for name in sys.argv[2:]:
        seen |= runs[name](dataset)
    rank = torch.distributed.get_rank()
    path.with_name(f"rank{rank}.json").write_text(json.dumps(seen), "utf-8")
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
