"""Train RF-DETR (tried with 1.11.2) on a store, with its own trainer.

`RFDETR.train` takes folders alone. This does what it does: its model, its transforms, its callbacks.

tsds demo
python examples/clients/rfdetr_train.py demo/scenes.tsds
"""

from __future__ import annotations

import argparse
import functools
import tempfile
from collections.abc import Callable
from typing import Any

import torch
from rfdetr.config import RFDETRNanoConfig, TrainConfig
from rfdetr.datasets.coco import make_coco_transforms_square_div_64
from rfdetr.training import RFDETRDataModule, RFDETRModelModule, build_trainer

import tensorstore_ds as tsds  # tsds


def to_target(sample: tuple[Any, dict[str, Any]], *, steps: Callable[..., Any]) -> Any:  # tsds
    """A sample through RF-DETR's own transforms; its labels begin at 0."""
    image, target = sample
    size = torch.tensor([image.height, image.width])
    values = {name: target[name].as_subclass(torch.Tensor) for name in ("boxes", "labels", "area", "iscrowd")}
    values.update(labels=values["labels"] - 1, image_id=torch.tensor([target["image_id"]]), orig_size=size, size=size)
    return steps(image, values)


class StoreData(RFDETRDataModule):  # tsds
    """RF-DETR's loaders over a store, whose path is `dataset_dir`."""

    def setup(self, stage: str) -> None:
        """Open the first and the last split."""
        path = self.train_config.dataset_dir
        splits = tsds.open(path).splits
        self._dataset_train, self._dataset_val = (
            tsds.StoreDataset(path, split, return_as="torchvision", as_pil=True, transform=steps)
            for split, steps in ((splits[0], self.steps("train")), (splits[-1], self.steps("val")))
        )

    def steps(self, image_set: str) -> Callable[..., Any]:
        """RF-DETR's transforms for training or validation."""
        config = self.model_config
        sizes = {"patch_size": config.patch_size, "num_windows": config.num_windows}
        found = make_coco_transforms_square_div_64(image_set, config.resolution, **sizes)
        return functools.partial(to_target, steps=found)


def main() -> None:
    """Train on the first split, validate on the last."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("store")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--size", type=int, default=384, help="a multiple of 32")
    options = parser.parse_args()
    torch.manual_seed(0)
    classes = tsds.StoreDataset(options.store).classes  # tsds
    model = RFDETRNanoConfig(
        **{"pretrain_weights": None, "num_classes": len(classes), "resolution": options.size, "num_queries": 50},
        **{"num_select": 50, "positional_encoding_size": options.size // 16},
    )
    with tempfile.TemporaryDirectory() as folder:
        settings = TrainConfig(
            **{"dataset_dir": options.store, "output_dir": folder, "epochs": options.epochs, "batch_size": 4},
            **{"num_workers": 0, "use_ema": False, "multi_scale": "off", "eval_backend": "faster_coco_eval"},
            **{"tensorboard": False, "dont_save_weights": True},
        )
        trainer = build_trainer(settings, model)
        trainer.fit(RFDETRModelModule(model, settings), StoreData(model, settings))  # tsds
    found = trainer.callback_metrics
    print(f"loss {found['train/loss']:.3f}, mAP {found['val/mAP_50_95']:.3f} after {options.epochs} epochs")


if __name__ == "__main__":
    main()
