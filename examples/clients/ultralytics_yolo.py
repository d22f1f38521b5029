"""Train a YOLO of Ultralytics (tried with 8.4.190) on a store, with its own augmentations and trainer.

tsds demo
python examples/clients/ultralytics_yolo.py demo/scenes.tsds
"""

from __future__ import annotations

import argparse
from pathlib import Path

from ultralytics import YOLO

from tensorstore_ds.annex.adapters.ultralytics import StoreTrainer, StoreValidator  # tsds


def main() -> None:
    """Train on the split `train`, validate on `val`, or on the last split if there is no `val`."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("store")
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--out", type=Path, default=Path("runs/detect"))
    options = parser.parse_args()
    quiet = {"plots": False, "verbose": False, "project": str(options.out.resolve()), "exist_ok": True}
    settings = {"epochs": options.epochs, "imgsz": 160, "batch": 4, "pretrained": False, "amp": False}
    model = YOLO("yolov8n.yaml")
    model.train(trainer=StoreTrainer, data=options.store, **settings, **quiet)  # tsds
    metrics = model.val(validator=StoreValidator, data=options.store, **quiet)  # tsds
    print(f"mAP {metrics.box.map:.3f} after {options.epochs} epochs")


if __name__ == "__main__":
    main()
