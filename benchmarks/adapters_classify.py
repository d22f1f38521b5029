"""The adapters of timm and transformers against the frameworks' own loaders over the same files, on the CPU.

Run it alone, in an environment with the frameworks (the extra `clients`)::

    python -m benchmarks.adapters_classify FOLDER --images 2000

FOLDER has class folders of images, such as MNIST as PNG files. For each framework, one epoch runs in turn with its own
loader over the files (without workers and with two) and with the adapter over a store of them: with a model of one
number, which shows loading alone, and with a small model. The losses of the three ways must be equal, except where
transforms draw random numbers in several threads or processes.
"""

from __future__ import annotations

import argparse
import random
import statistics
import tempfile
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import nn
from torchvision.datasets import ImageFolder

import tensorstore_ds as tsds
from benchmarks.measure import Spent, alternate, as_result, say, spent_on, spread, table, write_result

CPU = torch.device("cpu")
#: The ways, as results name them; the last one is the adapter.
WAYS = ("files, 0 workers", "files, 2 workers", "adapter")
#: An epoch of each way, which returns its losses.
Epochs = Mapping[str, Callable[[], list[float]]]


class Constant(nn.Module):
    """A model of one number, for either framework: it reads a batch, and computes next to nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.number = nn.Parameter(torch.zeros(()))

    def forward(self, pixel_values: torch.Tensor, labels: torch.Tensor | None = None) -> Any:
        """Something that depends on the images: a loss if there are labels, else scores (B, 1)."""
        value = pixel_values[:, 0, 0, 0].float().mean() * self.number
        return value.expand(len(pixel_values), 1) if labels is None else {"loss": value, "logits": labels[:, None]}


def seed() -> None:
    """All generators that transforms and models draw from."""
    random.seed(0)
    np.random.seed(0)
    torch.manual_seed(0)


# --- timm ---------------------------------------------------------------------------------------------------------


def of_timm(folder: Path, store: Path, side: int, batch: int, trivial: bool, augments: bool) -> Epochs:
    """An epoch of training with timm's loader and with the adapter; with random crops, flips and colors, or none."""
    import timm
    from timm.data import ImageDataset, create_loader

    from tensorstore_ds.annex.adapters.timm import create_loader as of_store

    classes = len(tsds.open(store)["train"].fields["label"].classes)
    options: dict[str, Any] = {"is_training": augments, "device": CPU}
    loaders = [
        *(create_loader(ImageDataset(str(folder)), (3, side, side), batch, num_workers=n, **options) for n in (0, 2)),
        of_store(store, "train", (3, side, side), batch, **options),
    ]

    def epoch(loader: Any) -> list[float]:
        seed()
        model = Constant() if trivial else timm.create_model("test_resnet", num_classes=classes)
        optimizer, losses = torch.optim.SGD(model.parameters(), lr=0.01), []
        for images, labels in loader:
            scores = model(images)
            loss = scores.mean() if trivial else nn.functional.cross_entropy(scores, labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        return losses

    return dict(zip(WAYS, (partial(epoch, loader) for loader in loaders), strict=True))


# --- transformers -------------------------------------------------------------------------------------------------


def of_transformers(folder: Path, store: Path, side: int, batch: int, trivial: bool) -> Epochs:
    """An epoch of the Trainer, with its own loader and with the adapter; the processor resizes and normalizes."""
    from transformers import Trainer, TrainingArguments, ViTConfig, ViTForImageClassification, ViTImageProcessor

    from tensorstore_ds.annex.adapters.transformers import ImageCollator, StoreTrainer

    processor = ViTImageProcessor(size={"height": side, "width": side})
    files, dataset = Files(folder), tsds.StoreDataset(store, fields=["image", "label"])
    sizes = {"hidden_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 96}

    def collate(samples: Sequence[tuple[Image.Image, int]]) -> dict[str, torch.Tensor]:
        images, labels = zip(*samples, strict=True)
        return {**processor(list(images), return_tensors="pt"), "labels": torch.tensor(labels)}

    def epoch(kind: Any, collator: Any, data: Any, workers: int) -> list[float]:
        seed()
        config = ViTConfig(image_size=side, patch_size=side // 4, num_labels=len(dataset.classes), **sizes)
        quiet = {"report_to": "none", "save_strategy": "no", "disable_tqdm": True, "logging_steps": 1}
        with tempfile.TemporaryDirectory() as out:
            arguments = TrainingArguments(
                out,
                per_device_train_batch_size=batch,
                num_train_epochs=1,
                dataloader_num_workers=workers,
                remove_unused_columns=False,
                use_cpu=True,
                **quiet,
            )
            trainer = kind(Constant() if trivial else ViTForImageClassification(config), arguments, collator, data)
            trainer.remove_callback(
                next(c for c in trainer.callback_handler.callbacks if "Printer" in type(c).__name__)
            )
            trainer.train()
        return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]

    ways = [partial(epoch, Trainer, collate, files, workers) for workers in (0, 2)]
    adapter = partial(epoch, StoreTrainer, ImageCollator(processor, dataset), dataset, 0)
    return dict(zip(WAYS, (*ways, adapter), strict=True))


class Files(torch.utils.data.Dataset[Any]):
    """Class folders, read by Pillow: pairs of an RGB image and a class index."""

    def __init__(self, folder: Path) -> None:
        self.samples = ImageFolder(str(folder))

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> tuple[Image.Image, int]:
        return self.samples[index]


# --- figures ------------------------------------------------------------------------------------------------------


def part_of(source: Path, out: Path, images: int) -> int:
    """Links to equally many images of every class, as class folders; returns their number.

    The names have leading zeros: timm sorts 2.png before 10.png, a store sorts by characters.
    """
    folders = sorted(path for path in source.iterdir() if path.is_dir())
    for folder in folders:
        (out / folder.name).mkdir(parents=True)
        for i, file in enumerate(sorted(folder.iterdir())[: images // len(folders)]):
            (out / folder.name / f"{i:06}{file.suffix}").symlink_to(file.resolve())
    return sum(1 for _ in out.rglob("*.*"))


def compare(name: str, epochs: Epochs, repeat: int, samples: int, *, equal: bool) -> list[dict[str, Any]]:
    """Rows of results, a way each; ValueError if losses differ that should be equal."""
    if equal:
        reference, *others = (epoch() for epoch in epochs.values())
        if not reference or any(losses != reference for losses in others):
            raise ValueError(f"{name}: expected equal losses of all ways, found others.")
    rounds: list[list[Spent]] = alternate([partial(spent_on, epoch) for epoch in epochs.values()], repeat)
    ours = rounds[-1]
    rows = []
    for way, spent in zip(epochs, rounds, strict=True):
        ratios = [theirs.wall / own.wall for theirs, own in zip(spent, ours, strict=True)]
        walls, cpus = ([each[i] for each in spent] for i in (0, 1))
        middle = statistics.median(walls)
        row = {"what": name, "way": way, "seconds": walls, "cpu_seconds": cpus, "equal_losses": equal}
        row |= {"rate": samples / middle, "quotient": middle / statistics.median(own.wall for own in ours)}
        rows.append({**row, "ratios": ratios})
        say(f"{name}, {way}: {spread(walls)} s, {statistics.median(cpus):.2f} s CPU, {spread(ratios)}x")
    return rows


def measure(source: Path, images: int, side: int, batch: int, repeat: int) -> list[dict[str, Any]]:
    """Both frameworks on one folder."""
    with tempfile.TemporaryDirectory() as scratch:
        files, store = Path(scratch) / "files", Path(scratch) / "images.tsds"
        samples = part_of(source, files / "train", images)
        tsds.convert(files, store, color="rgb")
        rows, folder = [], files / "train"
        for trivial, model in ((True, "loading alone"), (False, "small model")):
            for augments in (False, True):
                what = f"timm, {'augmented' if augments else 'center crop'}, {model}"
                epochs = of_timm(folder, store, side, batch, trivial, augments)
                rows += compare(what, epochs, repeat, samples, equal=not augments)
            epochs = of_transformers(folder, store, side, batch, trivial)
            rows += compare(f"transformers, {model}", epochs, repeat, samples, equal=True)
    return [{"images": samples, "side": side, "batch": batch, **row} for row in rows]


def main() -> None:
    """Print a table, and write JSON if asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="class folders of small images")
    parser.add_argument("--photographs", type=Path, help="class folders of photographs, at 224 x 224 pixels")
    parser.add_argument("--images", type=int, default=2000, help="of each folder")
    parser.add_argument("--repeat", type=int, default=7, help="rounds that count")
    parser.add_argument("--threads", type=int, default=1, help="of torch")
    parser.add_argument("--json", type=Path, help="write the results there")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    rows = measure(options.folder, options.images, 32, 64, options.repeat)
    if options.photographs:
        rows += measure(options.photographs, options.images, 224, 32, options.repeat)
    head = ("what", "way", "s per epoch", "CPU s", "images/s", "time relative to the adapter")
    cells = [
        (
            f"{row['what']}, {row['images']:,} images",
            row["way"],
            spread(row["seconds"]),
            f"{statistics.median(row['cpu_seconds']):.2f}",
            f"{row['rate']:,.0f}",
            f"{row['quotient']:.2f}x ({min(row['ratios']):.2f} to {max(row['ratios']):.2f})",
        )
        for row in rows
    ]
    print("\n".join(table(head, cells, right=2)))
    if options.json:
        write_result(options.json, as_result([], rows=rows))


if __name__ == "__main__":
    main()
