"""Train RF-DETR (tried with 1.11.2) on a store, with its own trainer. `RFDETR.train` takes folders alone: it is not used.

tsds demo
python examples/clients/rfdetr_train.py demo/scenes.tsds
"""

from __future__ import annotations

import argparse
import tempfile
from typing import Any

import torch
from rfdetr.config import RFDETRNanoConfig, TrainConfig
from rfdetr.training import RFDETRDataModule, RFDETRModelModule, build_trainer
from torchvision.ops import box_convert
from torchvision.transforms.v2 import functional

import tensorstore_ds as tsds

MEAN, STD = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]
SIZE = 192  # a multiple of 32


def to_target(sample: tuple[Any, dict[str, Any]]) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:  # tsds
    """An image as float32, normalized, and boxes relative to it, as RF-DETR has them."""
    image, target = sample
    height, width = image.shape[-2:]
    boxes = box_convert(target["boxes"], "xyxy", "cxcywh") / torch.tensor([width, height, width, height])
    values = {"boxes": boxes.as_subclass(torch.Tensor), "labels": target["labels"] - 1}
    sizes = {"orig_size": torch.tensor([height, width]), "size": torch.tensor([SIZE, SIZE])}
    others = {"image_id": torch.tensor([target["image_id"]]), "area": target["area"], "iscrowd": target["iscrowd"]}
    pixels = functional.to_dtype(functional.resize(image, [SIZE, SIZE]), torch.float32, scale=True)
    return functional.normalize(pixels, MEAN, STD).as_subclass(torch.Tensor), {**values, **sizes, **others}


class StoreData(RFDETRDataModule):  # tsds
    """RF-DETR's loaders over a store, whose path is `dataset_dir`."""

    def setup(self, stage: str) -> None:
        """Open the first and the last split."""
        path = self.train_config.dataset_dir
        splits = tsds.open(path).splits
        self._dataset_train, self._dataset_val = (
            tsds.StoreDataset(path, split, return_as="torchvision", transform=to_target)
            for split in (splits[0], splits[-1])
        )


def main() -> None:
    """Train on the first split, validate on the last."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("store")
    parser.add_argument("--epochs", type=int, default=10)
    options = parser.parse_args()
    torch.manual_seed(0)
    classes = tsds.StoreDataset(options.store).classes  # tsds
    model = RFDETRNanoConfig(
        **{"pretrain_weights": None, "num_classes": len(classes), "resolution": SIZE, "num_queries": 50},
        **{"num_select": 50, "positional_encoding_size": SIZE // 16},
    )
    with tempfile.TemporaryDirectory() as folder:
        settings = TrainConfig(
            **{"dataset_dir": options.store, "output_dir": folder, "epochs": options.epochs, "batch_size": 4},
            **{"num_workers": 0, "use_ema": False, "multi_scale": "off", "eval_backend": "faster_coco_eval"},
            **{"tensorboard": False, "dont_save_weights": True},
        )
        trainer = build_trainer(settings, model)
        trainer.fit(RFDETRModelModule(model, settings), StoreData(model, settings))
    found = trainer.callback_metrics
    print(f"loss {found['train/loss']:.3f}, mAP {found['val/mAP_50_95']:.3f} after {options.epochs} epochs")


if __name__ == "__main__":
    main()
