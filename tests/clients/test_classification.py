"""Frameworks that classify images: they get the samples of the store, and learn what they learn from the files."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torchvision import datasets
from torchvision.transforms import v2

import tensorstore_ds as tsds
from clients.conftest import Example
from clients.test_adapters import arguments_of, losses_of, resumed, seed, to_inputs, vit

works, limit = pytest.mark.works, pytest.mark.limit


def accuracy(line: str) -> float:
    found = re.search(r"accuracy (\d\.\d+)", line)
    assert found, line
    return float(found[1])


def samples_of(batches: Iterable[Any]) -> list[tuple[int, bytes]]:
    """The samples of batches (images, labels), in an order of their own."""
    pairs = (pair for images, labels in batches for pair in zip(images, labels, strict=True))
    return sorted((int(label), np.asarray(image).tobytes()) for image, label in pairs)


def expected(store: Path, change: Any = np.asarray) -> list[tuple[int, bytes]]:
    """All samples of the split `train`, as `samples_of` has them."""
    split = tsds.open(store)["train"]
    return sorted((int(split["label"][i]), change(split["image"][i]).tobytes()) for i in range(len(split)))


def channels_first(image: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(image.transpose(2, 0, 1))


# --- timm ---------------------------------------------------------------------------------------------------------


@works("timm", "`StoreImages` in timm's `create_loader` yields the same augmented batches as timm's `ImageDataset`")
@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("is_training", [False, True])
def test_timm_loader(digits: Path, is_training: bool, workers: int) -> None:
    from timm.data import ImageDataset, create_loader

    from tensorstore_ds.annex.adapters.timm import StoreImages

    options = {"batch_size": 16, "is_training": is_training, "num_workers": workers, "device": torch.device("cpu")}
    loaded = []
    for dataset in (StoreImages(digits), ImageDataset(str(digits.with_suffix("") / "train"))):
        seed()
        loaded.append(list(create_loader(dataset, (3, 16, 16), hflip=0.5, auto_augment="rand-m9", **options)))
    for (images, labels), (their_images, their_labels) in zip(*loaded, strict=True):
        assert torch.equal(images, their_images) and torch.equal(labels, their_labels)
    assert sum(len(labels) for _, labels in loaded[0]) == (400 // 16 * 16 if is_training else 400)


@works("timm", "`create_transform` in this library's loader")
def test_timm_transform(digits: Path) -> None:
    from timm.data import ImageDataset, create_transform

    transform = create_transform((3, 16, 16), is_training=False)
    arguments = {"return_as": "tuple", "as_pil": True, "transform": transform, "transform_of": "image"}
    loader = tsds.DataLoader(tsds.StoreDataset(digits, **arguments), 32, shuffle=True)
    theirs = ImageDataset(str(digits.with_suffix("") / "train"), transform=transform)
    assert samples_of(loader) == samples_of(([image], [label]) for image, label in theirs)


@works("timm", "`Mixup` and training")
def test_timm_learns(digits: Path, example: Example) -> None:
    assert accuracy(example("clients/timm_train.py", digits, "--epochs", 6)) > 0.7


# --- transformers -------------------------------------------------------------------------------------------------


@works("transformers", "Trainer with its own loader has the same losses as with the files")
def test_transformers_learns_the_same_as_from_files(digits: Path, tmp_path: Path) -> None:
    from transformers import Trainer

    pixels = v2.Compose([v2.PILToTensor(), v2.ToDtype(torch.float32)])
    samples = datasets.ImageFolder(digits.with_suffix("") / "train", transform=pixels)
    files = [{"pixel_values": image / 255, "labels": torch.tensor(label)} for image, label in samples]
    ours, theirs = (
        losses_of(Trainer(vit(), arguments_of(tmp_path, max_steps=15), train_dataset=dataset))
        for dataset in (tsds.StoreDataset(digits, transform=to_inputs), files)
    )
    assert ours == theirs and len(ours) == 15


@works("transformers", "training and evaluation with `StoreTrainer` of `adapters.transformers`")
@pytest.mark.parametrize("arguments", [(), ("--own-loader",)])
def test_transformers_learns(digits: Path, example: Example, arguments: tuple[str, ...]) -> None:
    assert accuracy(example("clients/transformers_trainer.py", digits, "--epochs", 12, *arguments)) > 0.5


@works("transformers", "`resume_from_checkpoint` continues at the next batch, with both")
@pytest.mark.parametrize("own_loader", [True, False])
def test_transformers_goes_on(digits: Path, tmp_path: Path, own_loader: bool) -> None:
    from transformers import Trainer

    from tensorstore_ds.annex.adapters.transformers import StoreTrainer

    kind = Trainer if own_loader else StoreTrainer
    whole, rest = resumed(kind, tsds.StoreDataset(digits, transform=to_inputs), tmp_path, 17)
    assert rest == whole[17:]


@limit("transformers", "resuming within an epoch, if `get_train_dataloader` does not call `accelerator.prepare`")
def test_transformers_wants_a_prepared_loader(digits: Path, tmp_path: Path) -> None:
    from transformers import Trainer

    class Unprepared(Trainer):
        def get_train_dataloader(self) -> Any:
            return tsds.DataLoader(self.train_dataset, 32, shuffle=True)

    whole, rest = resumed(Unprepared, tsds.StoreDataset(digits, transform=to_inputs), tmp_path, 17)
    assert rest[:9] != whole[17:26] and rest[9:] == whole[26:]


# --- Lightning, Accelerate ----------------------------------------------------------------------------------------


@works(
    "Lightning",
    "`StoreDataModule` of `adapters.lightning`; `make test` covers several ranks, resuming and `predict`",
)
def test_lightning_learns(digits: Path, example: Example) -> None:
    assert accuracy(example("lightning_module.py", digits, "--epochs", 6)) > 0.8


@works("Accelerate", "`prepare`; `make test` covers several ranks and `skip_first_batches`")
def test_accelerate_learns(digits: Path, example: Example) -> None:
    assert accuracy(example("accelerate_loop.py", digits, "--epochs", 6)) > 0.8


# --- Ignite -------------------------------------------------------------------------------------------------------


@works("Ignite", "trainer and evaluator")
def test_ignite_learns(digits: Path, example: Example) -> None:
    assert accuracy(example("clients/ignite_engine.py", digits, "--epochs", 6)) > 0.8


def ignite_engine(seen: list[list[int]]) -> Any:
    from ignite.engine import Engine

    return Engine(lambda engine, batch: seen.append(batch["image"].float().mean((1, 2, 3)).tolist()))


@works("Ignite", "resuming at the next batch: save `state_dict()` of the engine and of this library's loader")
@pytest.mark.parametrize("iteration", [13, 17, 26])  # the end of an epoch, and the middle of two
def test_ignite_goes_on(digits: Path, iteration: int) -> None:
    from ignite.engine import Events

    whole: list[Any] = []
    rest: list[Any] = []
    states = []
    engine, loader = ignite_engine(whole), tsds.DataLoader(tsds.StoreDataset(digits), 32, shuffle=True)
    here = Events.ITERATION_COMPLETED(once=iteration)
    engine.add_event_handler(here, lambda: states.append((engine.state_dict(), loader.state_dict())))
    engine.run(loader, max_epochs=3)

    later, again = ignite_engine(rest), tsds.DataLoader(tsds.StoreDataset(digits), 32, shuffle=True)
    later.load_state_dict(states[0][0])
    again.load_state_dict(states[0][1])
    later.run(again, max_epochs=3)
    assert rest == whole[iteration:] and len(rest) == 3 * 13 - iteration


# --- fastai -------------------------------------------------------------------------------------------------------


def image_of(dataset: tsds.StoreDataset) -> tsds.StoreDataset:
    dataset.transform = lambda image: image / 255
    return dataset


@works("fastai", "fastai's own loaders, `DataLoaders.from_dsets`")
def test_fastai_loader(digits: Path) -> None:
    from fastai.data.core import DataLoaders

    train = image_of(tsds.StoreDataset(digits, return_as="tuple", transform_of="image"))
    loaders = DataLoaders.from_dsets(train, train, bs=32, num_workers=0, drop_last=False)
    assert samples_of(loaders.valid) == expected(digits, lambda image: channels_first(image) / np.float32(255))


@works("fastai", "`Learner`, with fastai's or this library's loaders")
@pytest.mark.parametrize("arguments", [(), ("--own-loader",)])
def test_fastai_learns(digits: Path, example: Example, arguments: tuple[str, ...]) -> None:
    assert accuracy(example("clients/fastai_learner.py", digits, "--epochs", 6, *arguments)) > 0.7


@limit("fastai", "`show_batch` with this library's loaders: only fastai's own loaders have this method")
def test_fastai_shows_no_batch(digits: Path) -> None:
    from fastai.data.core import DataLoaders

    loader = tsds.DataLoader(tsds.StoreDataset(digits, return_as="tuple"), 32)
    with pytest.raises(AttributeError):
        DataLoaders(loader, loader).show_batch()
