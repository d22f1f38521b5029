"""Train with Lightning: a store is its data module, on any number of devices.

tsds demo
python examples/lightning_module.py demo/digits.tsds
"""

from __future__ import annotations

import argparse
from typing import Any

import lightning
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from tensorstore_ds.annex.adapters.lightning import StoreDataModule  # tsds


class Classifier(lightning.LightningModule):
    """A network with one hidden layer, for images (B, C, H, W) of one size."""

    def __init__(self, pixels: int, classes: int) -> None:
        super().__init__()
        self.model = nn.Sequential(nn.Flatten(), nn.Linear(pixels, 64), nn.ReLU(), nn.Linear(64, classes))

    def training_step(self, batch: dict[str, Any], index: int) -> torch.Tensor:
        """The loss of a batch."""
        return cross_entropy(self.model(batch["image"] / 255), batch["label"])

    def validation_step(self, batch: dict[str, Any], index: int) -> None:
        """Counts what is right."""
        right = self.model(batch["image"] / 255).argmax(1) == batch["label"]
        self.log("accuracy", right.float().mean(), batch_size=len(right), sync_dist=True)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Adam for all weights."""
        return torch.optim.Adam(self.parameters(), lr=3e-3)


def main() -> None:
    """Train on the split `train`, validate on the split `test`."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("store")
    parser.add_argument("--epochs", type=int, default=10)
    options = parser.parse_args()
    lightning.seed_everything(0)

    data = StoreDataModule(options.store, batch_size=32, val_split="test")  # tsds
    height, width, channels = data.store["train"].fields["image"].spec.shape  # tsds
    trainer = lightning.Trainer(
        max_epochs=options.epochs,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Classifier(height * width * channels, len(data.classes)), data)
    print(f"accuracy {float(trainer.callback_metrics['accuracy']):.3f} after {options.epochs} epochs")


if __name__ == "__main__":
    main()
