"""Epochs of training with an adapter, and with the framework's own loader over the same samples as files, on the CPU.

Run it alone, in an environment with the framework (the extra `clients`)::

    python -m benchmarks.adapters timm SOURCE SCRATCH

SOURCE has class folders of images for timm and transformers; for ultralytics and rfdetr it has objects with boxes, and
at least two splits. Models begin with random weights, so nothing is downloaded. `tests/clients` compares the losses.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from PIL import Image
from torch import nn
from torchvision.datasets import ImageFolder

import tensorstore_ds as tsds
from benchmarks.measure import Spent, alternate, ratio_of_medians, spent_on, spread, table

CPU = torch.device("cpu")
#: An epoch of each way by its name; the last one is the adapter.
Epochs = Mapping[str, Callable[[], Spent]]


class Given(NamedTuple):
    """What a framework is given."""

    source: Path
    store: Path  #: Of the source.
    scratch: Path  #: A folder for exported files and runs.
    side: int  #: Of the images for the model.
    batch: int


def of_timm(given: Given) -> Epochs:
    """timm's loader without workers and with two, and the adapter; with random crops, flips and colors."""
    import timm
    from timm.data import ImageDataset, create_loader

    from tensorstore_ds.annex.adapters.timm import create_loader as of_store

    classes, shape = len(tsds.StoreDataset(given.store).classes), (3, given.side, given.side)
    options: dict[str, Any] = {"is_training": True, "device": CPU}
    files = partial(create_loader, ImageDataset(str(given.source)), shape, given.batch, **options)
    loaders = {f"files, {n} workers": files(num_workers=n) for n in (0, 2)}
    loaders["adapter"] = of_store(given.store, "train", shape, given.batch, **options)

    def epoch(loader: Any) -> None:
        model = timm.create_model("test_resnet", num_classes=classes)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        for images, labels in loader:
            loss = nn.functional.cross_entropy(model(images), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    return {way: partial(spent_on, partial(epoch, loader)) for way, loader in loaders.items()}


def of_transformers(given: Given) -> Epochs:
    """The Trainer with its own loader, and with the adapter; the processor resizes and normalizes."""
    from transformers import Trainer, TrainingArguments, ViTConfig, ViTForImageClassification, ViTImageProcessor

    from tensorstore_ds.annex.adapters.transformers import ImageCollator, StoreTrainer

    side = given.side
    processor = ViTImageProcessor(size={"height": side, "width": side})
    files, dataset = ImageFolder(str(given.source)), tsds.StoreDataset(given.store, fields=["image", "label"])
    sizes = {"hidden_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 96}
    config = ViTConfig(image_size=side, patch_size=side // 4, num_labels=len(dataset.classes), **sizes)

    def collate(samples: Sequence[tuple[Image.Image, int]]) -> dict[str, torch.Tensor]:
        images, labels = zip(*samples, strict=True)
        return {**processor(list(images), return_tensors="pt"), "labels": torch.tensor(labels)}

    def epoch(kind: Any, collator: Any, data: Any, workers: int) -> Spent:
        quiet = {"report_to": "none", "save_strategy": "no", "logging_strategy": "no", "disable_tqdm": True}
        with tempfile.TemporaryDirectory() as out:
            arguments = TrainingArguments(
                out,
                per_device_train_batch_size=given.batch,
                num_train_epochs=1,
                dataloader_num_workers=workers,
                remove_unused_columns=False,
                use_cpu=True,
                **quiet,
            )
            return spent_on(kind(ViTForImageClassification(config), arguments, collator, data).train)

    ways = {f"files, {n} workers": partial(epoch, Trainer, collate, files, n) for n in (0, 2)}
    return {**ways, "adapter": partial(epoch, StoreTrainer, ImageCollator(processor, dataset), dataset, 0)}


def of_ultralytics(given: Given) -> Epochs:
    """A YOLO that detects, with the exported files in memory, and with the adapter; without workers, as on a CPU."""
    from ultralytics.models.yolo.detect import DetectionTrainer

    from tensorstore_ds.annex.adapters.ultralytics import StoreTrainer

    files = given.scratch / "yolo"
    tsds.export(given.store, files, "yolo")
    settings = {"model": "yolov8n.yaml", "imgsz": given.side, "batch": given.batch, "epochs": 1, "cache": "ram"}
    settings |= {"pretrained": False, "amp": False, "val": False, "plots": False, "verbose": False, "exist_ok": True}

    def epoch(trainer: Any, data: Path) -> Spent:
        run, clocks = trainer(overrides={**settings, "data": str(data), "project": str(given.scratch / "runs")}), []
        for event in ("start", "end"):  # without the scan of the data set
            run.add_callback(
                f"on_train_epoch_{event}", lambda _: clocks.append((time.perf_counter(), time.process_time()))
            )
        run.train()
        return Spent(*(after - before for before, after in zip(*clocks, strict=True)))

    ways = {"files": (DetectionTrainer, files / "data.yaml"), "adapter": (StoreTrainer, given.store)}
    return {way: partial(epoch, *trained) for way, trained in ways.items()}


def of_rfdetr(given: Given) -> Epochs:
    """A small RF-DETR with its validation, over a COCO folder with the files of the source, and over the store."""
    from rfdetr.config import RFDETRNanoConfig, TrainConfig
    from rfdetr.training import RFDETRDataModule, RFDETRModelModule, build_trainer, seed_everything

    from tensorstore_ds.annex.adapters.rfdetr import StoreData

    with_files, exported, folder = (given.scratch / name for name in ("files.tsds", "coco", "roboflow"))
    tsds.convert(given.source, with_files, encoding="source", on_error="skip")
    tsds.export(with_files, exported, "coco")
    splits = tsds.open(with_files).splits
    for split, name in ((splits[0], "train"), ("val" if "val" in splits else splits[-1], "valid")):
        (folder / name).parent.mkdir(exist_ok=True)
        (exported / split).rename(folder / name)
        (exported / "annotations" / f"instances_{split}.json").rename(folder / name / "_annotations.coco.json")
    sizes = {"resolution": given.side, "positional_encoding_size": given.side // 16, "num_queries": 50}
    classes = len(tsds.StoreDataset(given.store).classes)
    quiet = {"tensorboard": False, "eval_backend": "faster_coco_eval", "multi_scale": "off", "use_ema": False}

    def epoch(module: Callable[..., Any], data: Path) -> Spent:
        model = RFDETRNanoConfig(pretrain_weights=None, num_select=50, num_classes=classes, **sizes)
        kept = {"dataset_dir": str(data), "output_dir": str(given.scratch / "output"), "dont_save_weights": True}
        settings = TrainConfig(epochs=1, batch_size=given.batch, num_workers=0, **kept, **quiet)
        seed_everything(0, verbose=False)
        trainer = build_trainer(settings, model, accelerator="cpu", enable_model_summary=False)
        return spent_on(lambda: trainer.fit(RFDETRModelModule(model, settings), module(model, settings)))

    adapter = partial(StoreData, store=given.store)
    return {"files": partial(epoch, RFDETRDataModule, folder), "adapter": partial(epoch, adapter, given.store)}


FRAMEWORKS = {
    "timm": of_timm,
    "transformers": of_transformers,
    "ultralytics": of_ultralytics,
    "rfdetr": of_rfdetr,
}


def main() -> None:
    """Convert, train with all ways in turn, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("framework", choices=FRAMEWORKS)
    parser.add_argument("source", type=Path)
    parser.add_argument("scratch", type=Path, help="a folder that does not exist; it is left there")
    parser.add_argument("--side", type=int, default=96, help="of the images for the model, a multiple of 32")
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=7, help="of all ways in turn, after one that is not counted")
    options = parser.parse_args()
    options.scratch.mkdir()
    store = options.scratch / "store.tsds"
    tsds.convert(options.source, store, color="rgb", on_error="skip")
    torch.set_num_threads(1)
    given = Given(options.source, store, options.scratch, options.side, options.batch)
    ways = FRAMEWORKS[options.framework](given)
    rounds = alternate(list(ways.values()), options.rounds)
    walls, cpus = ([[one[kind] for one in spent] for spent in rounds] for kind in (0, 1))
    rows = [
        (way, spread(wall), spread(cpu), f"{ratio_of_medians(wall, walls[-1]):.2f}x")
        for way, wall, cpu in zip(ways, walls, cpus, strict=True)
    ]
    print("\n".join(table(("way", "s per epoch", "CPU s", "time relative to the adapter"), rows, right=1)))


if __name__ == "__main__":
    main()
