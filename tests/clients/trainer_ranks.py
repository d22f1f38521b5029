"""Run by torchrun on two ranks: the batches of a StoreTrainer, whole and resumed, as JSON beside the store."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import torch
from transformers import TrainingArguments

import tensorstore_ds as tsds
from tensorstore_ds.annex.adapters.transformers import StoreTrainer


class Constant(torch.nn.Module):
    """A model of one number."""

    def __init__(self) -> None:
        super().__init__()
        self.number = torch.nn.Parameter(torch.zeros(()))

    def forward(self, pixel_values: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"loss": pixel_values.mean() * self.number, "logits": labels}


def seen_by(store: Path, checkpoint: Path | None) -> list[list[float]]:
    """The sums of the pixels of each image, batch by batch, of 20 steps."""
    seen: list[list[float]] = []

    class Recording(StoreTrainer):
        def training_step(self, model: Any, inputs: Any, *rest: Any) -> Any:
            seen.append(inputs["pixel_values"].sum((1, 2, 3)).tolist())
            return super().training_step(model, inputs, *rest)

    def to_inputs(sample: dict[str, Any]) -> dict[str, Any]:
        return {"pixel_values": sample["image"].float().as_subclass(torch.Tensor), "labels": sample["label"]}

    arguments = TrainingArguments(
        store.with_name("out"),
        per_device_train_batch_size=32,
        max_steps=20,
        save_steps=9,
        report_to="none",
        disable_tqdm=True,
        logging_strategy="no",
        remove_unused_columns=False,
    )
    crops = tsds.RandomResizedCrop(8, scale=(0.3, 1), seed=2)
    dataset = tsds.StoreDataset(store, transform=to_inputs, decode=crops)
    Recording(Constant(), arguments, train_dataset=dataset).train(resume_from_checkpoint=checkpoint and str(checkpoint))
    return seen


def main() -> None:
    """Argument: the store."""
    store = Path(sys.argv[1])
    torch.set_num_threads(1)
    found = {"whole": seen_by(store, None), "rest": seen_by(store, store.with_name("out") / "checkpoint-9")}
    store.with_name(f"rank{os.environ['RANK']}.json").write_text(json.dumps(found), "utf-8")
    torch.distributed.destroy_process_group()  # gloo's threads may abort a process that ends with a group


if __name__ == "__main__":
    main()
