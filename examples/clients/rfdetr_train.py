"""Train RF-DETR (tried with 1.11.2) on a store, with its own trainer and COCO evaluation.

Without `pretrain_weights=None`, training begins with RF-DETR's weights, which it downloads.

tsds demo
python examples/clients/rfdetr_train.py demo/scenes.tsds
"""

from __future__ import annotations

import argparse
import csv
from pathlib import Path

from rfdetr import RFDETRNano

from tensorstore_ds.annex.adapters.rfdetr import train  # tsds


def main() -> None:
    """Train on the first split, validate on `val`."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("store")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--size", type=int, default=384, help="a multiple of 32")
    parser.add_argument("--out", default="output", help="folder of the weights and of metrics.csv")
    options = parser.parse_args()
    sizes = {"resolution": options.size, "positional_encoding_size": options.size // 16}
    model = RFDETRNano(pretrain_weights=None, num_queries=50, num_select=50, **sizes)
    settings = {"epochs": options.epochs, "output_dir": options.out, "eval_backend": "faster_coco_eval"}
    train(model, options.store, batch_size=4, num_workers=0, multi_scale="off", tensorboard=False, **settings)  # tsds
    with (Path(options.out) / "metrics.csv").open() as file:
        found = {name: float(value) for row in csv.DictReader(file) for name, value in row.items() if value}
    print(f"loss {found['train/loss']:.3f}, mAP {found['val/mAP_50_95']:.3f} after {options.epochs} epochs")


if __name__ == "__main__":
    main()
