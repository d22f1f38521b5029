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
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(1, 1)
            self.seen: dict[str, list[int]] = {"Lightning, validation": []}

        def training_step(self, batch: Any, index: int) -> torch.Tensor:
            self.seen.setdefault(f"Lightning, epoch {self.current_epoch}", []).extend(rows([batch]))
            return self.layer(torch.ones(1, 1)).mean()

        def validation_step(self, batch: Any, index: int) -> None:
            if self.current_epoch == 0:
                self.seen["Lightning, validation"] += rows([batch])

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), 1e-3)

    module = Module()
    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=2,
        strategy="ddp",
        max_epochs=2,
        num_sanity_val_steps=0,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(module, tsds.DataLoader(dataset, 4, shuffle=True), tsds.DataLoader(dataset, 4))
    return module.seen


def main() -> None:
    """Arguments: the store, then any of torch, accelerate, lightning."""
    warnings.filterwarnings("ignore", message=".*LeafSpec.. is deprecated")
    warnings.filterwarnings("ignore", message=".*does not have many workers")
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
