"""RF-DETR over a store, and over the same data set as a COCO folder: losses, and seconds per epoch.

``python -m benchmarks.adapters_detect SOURCE SCRATCH`` in an environment with RF-DETR. `SOURCE` has objects with boxes
and at least two splits. The model is a small one with random weights, so that nothing is downloaded, and trains on the
CPU. The COCO folder has the image files of `SOURCE`, without encoding them again. Trainings of both are timed in turn.
"""

from __future__ import annotations

import argparse
import logging
import math
import statistics
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import tensorstore_ds as tsds
from benchmarks.measure import alternate, ratio_of_medians, say, seconds_of, spent_on, spread, table


class Round(NamedTuple):
    """What one round has found."""

    loader: float  #: Seconds for the training images, augmented and in batches, without a model.
    loader_cpu: float  #: The same in CPU time, of worker processes too.
    epoch: float  #: Seconds for an epoch of training and its validation.
    loss: float  #: Of the last epoch.
    score: float  #: mAP of the validation.


def as_folder(source: Path, scratch: Path) -> Path:
    """The data set as a COCO folder that is arranged as Roboflow does."""
    with_files, exported, folder = scratch / "files.tsds", scratch / "coco", scratch / "roboflow"
    tsds.convert(source, with_files, encoding="source", on_error="skip")
    tsds.export(with_files, exported, "coco")
    for split, name in zip(splits_of(with_files), ("train", "valid"), strict=True):
        (folder / name).parent.mkdir(exist_ok=True)
        (exported / split).rename(folder / name)
        (exported / "annotations" / f"instances_{split}.json").rename(folder / name / "_annotations.coco.json")
    return folder


def splits_of(store: Path) -> tuple[str, str]:
    """Those that the adapter trains on and validates with."""
    splits = tsds.open(store).splits
    return splits[0], "val" if "val" in splits else splits[-1]


def measure(options: argparse.Namespace, data: Path, module: Callable[..., Any]) -> Round:
    """One training with a data module over `data`."""
    from rfdetr.config import RFDETRNanoConfig, TrainConfig
    from rfdetr.training import RFDETRModelModule, build_trainer, seed_everything

    sizes = {"resolution": options.size, "positional_encoding_size": options.size // 16, "num_queries": 50}
    model = RFDETRNanoConfig(pretrain_weights=None, num_select=50, num_classes=options.classes, **sizes)
    kept = {"dataset_dir": str(data), "output_dir": str(options.scratch / "output"), "dont_save_weights": True}
    loading = {"batch_size": 8, "num_workers": options.workers, "multi_scale": "off", "use_ema": False}
    quiet = {"tensorboard": False, "eval_backend": "faster_coco_eval"}
    settings = TrainConfig(epochs=options.epochs, **kept, **loading, **quiet)
    seed_everything(0, verbose=False)
    alone = module(model, settings)
    alone.setup("fit")
    loader = spent_on(lambda: [None for _ in alone.train_dataloader()])
    if not options.epochs:
        return Round(*loader, *(3 * [math.nan]))
    seed_everything(0, verbose=False)
    trainer = build_trainer(settings, model, accelerator="cpu", enable_model_summary=False)
    learner, own = RFDETRModelModule(model, settings), module(model, settings)
    seconds = seconds_of(lambda: trainer.fit(learner, own))
    found = {name: float(value) for name, value in trainer.callback_metrics.items()}
    return Round(*loader, seconds / options.epochs, found["train/loss"], found["val/mAP_50_95"])


def main() -> None:
    """Convert, export, and train with both in turn."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=Path)
    parser.add_argument("scratch", type=Path, help="a folder that does not exist; it is left there")
    parser.add_argument("--epochs", type=int, default=1, help="0 to measure the loaders alone")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--size", type=int, default=96, help="side of the images for the model, a multiple of 32")
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--encoding", default="raw", help="of the store")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    from rfdetr.training import RFDETRDataModule

    from tensorstore_ds.annex.adapters.rfdetr import StoreData

    for name in ("rf-detr", "pytorch_lightning", "lightning"):
        logging.getLogger(name).setLevel(logging.ERROR)
    options.scratch.mkdir()
    store, folder = options.scratch / "store.tsds", as_folder(options.source, options.scratch)
    tsds.convert(options.source, store, encoding=options.encoding, on_error="skip")
    options.classes = len(tsds.StoreDataset(store).classes)
    ways = {"COCO folder": (folder, RFDETRDataModule), "store": (store, partial(StoreData, store=store))}
    say(f"{len(tsds.open(store)[splits_of(store)[0]])} images for training, {options.rounds} rounds and one before")
    found = alternate([partial(measure, options, *way) for way in ways.values()], options.rounds)
    rows = []
    for name, rounds in zip(ways, found, strict=True):
        *times, losses, scores = zip(*rounds, strict=True)
        same = [f"{statistics.median(each):.5f} ({min(each):.5f} to {max(each):.5f})" for each in (losses, scores)]
        rows.append((name, *map(spread, times), *same))
    print("\n".join(table(("data", "loader, s", "loader, CPU s", "epoch, s", "loss", "mAP"), rows, right=1)))
    for what in ("loader", "loader_cpu", "epoch")[: 3 if options.epochs else 2]:
        theirs, ours = ([getattr(each, what) for each in rounds] for rounds in found)
        print(
            f"{what.replace('_', ', ')}: the store takes {ratio_of_medians(ours, theirs):.2f} of the time of the folder"
        )


if __name__ == "__main__":
    main()
