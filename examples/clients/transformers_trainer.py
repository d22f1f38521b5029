"""Train a vision transformer of transformers with its Trainer.

tsds demo
python examples/clients/transformers_trainer.py demo/digits.tsds
"""

from __future__ import annotations

import argparse
import tempfile
from typing import Any

import torch
from transformers import EvalPrediction, Trainer, TrainingArguments, ViTConfig, ViTForImageClassification

import tensorstore_ds as tsds  # tsds
from tensorstore_ds.annex.adapters.transformers import StoreTrainer  # tsds


def to_inputs(sample: dict[str, Any]) -> dict[str, torch.Tensor]:  # tsds
    """A sample with the names that the model has for its inputs."""
    return {"pixel_values": sample["image"] / 255, "labels": sample["label"]}


def accuracy(prediction: EvalPrediction) -> dict[str, float]:
    """How many are right."""
    return {"accuracy": float((prediction.predictions.argmax(1) == prediction.label_ids).mean())}


def main() -> None:
    """Train on the split `train`, test on the split `test`."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("store")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--own-loader", action="store_true", help="the Trainer's own loader")
    options = parser.parse_args()

    train = tsds.StoreDataset(options.store, "train", transform=to_inputs)  # tsds
    test = tsds.StoreDataset(options.store, "test", transform=to_inputs)  # tsds
    channels, size, _ = train[0]["pixel_values"].shape
    config = ViTConfig(
        **{"image_size": size, "patch_size": 2, "num_channels": channels, "num_labels": len(train.classes)},
        **{"hidden_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 96},
    )
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            **{"output_dir": folder, "num_train_epochs": options.epochs, "per_device_train_batch_size": 32},
            **{"learning_rate": 3e-3, "report_to": "none", "save_strategy": "no", "disable_tqdm": True},
            **{"logging_strategy": "no", "remove_unused_columns": False},
        )
        kind = Trainer if options.own_loader else StoreTrainer
        trainer = kind(ViTForImageClassification(config), arguments, None, train, test, compute_metrics=accuracy)
        trainer.train()
        found = trainer.evaluate()
    print(f"accuracy {found['eval_accuracy']:.3f} after {options.epochs} epochs")


if __name__ == "__main__":
    main()
