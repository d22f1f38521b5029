"""The adapters of timm and transformers: batches and losses are those of the frameworks' own loaders over the files."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from packaging.specifiers import SpecifierSet
from PIL import Image
from torchvision import datasets

import tensorstore_ds as tsds
from clients.test_detection import devkit
from mask_sources import write_folders
from small_stores import ROOT

works, limit = pytest.mark.works, pytest.mark.limit
CPU = torch.device("cpu")


def seed() -> None:
    random.seed(0)
    np.random.seed(0)
    torch.manual_seed(0)


def folders_of(store: Path) -> Path:
    return store.with_suffix("")


@pytest.mark.parametrize("name", ["lightning", "timm", "transformers"])
def test_versions_are_those_that_were_tested(name: str) -> None:
    adapter = __import__(f"tensorstore_ds.annex.adapters.{name}", fromlist=["TESTED"])
    assert version(name) in SpecifierSet(adapter.TESTED)


# --- timm ---------------------------------------------------------------------------------------------------------


def assert_same_batches(ours: Any, theirs: Any) -> int:
    """Both with equal seeds, batch for batch; returns the number of samples."""
    loaded = []
    for loader in (ours, theirs):
        seed()
        loaded.append([(images.clone(), targets.clone()) for images, targets in loader])
    for (images, targets), (their_images, their_targets) in zip(*loaded, strict=True):
        assert images.dtype == their_images.dtype and images.device == their_images.device
        assert torch.equal(images, their_images) and torch.equal(targets, their_targets)
    return sum(len(targets) for _, targets in loaded[0])


@works("timm", "`adapters.timm.create_loader` yields the same augmented batches as timm's loader over the files")
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"is_training": True, "auto_augment": "rand-m9", "hflip": 0.5},
        {"is_training": True, "re_prob": 0.0, "use_prefetcher": False, "color_jitter": 0.4},
        {"use_prefetcher": False, "crop_pct": 1.0},
        {"mean": (0.1, 0.2, 0.3), "std": (0.5, 0.6, 0.7), "img_dtype": torch.bfloat16},
    ],
)
def test_timm_batches_are_those_of_the_files(digits: Path, options: dict[str, Any]) -> None:
    from timm.data import ImageDataset, create_loader

    from tensorstore_ds.annex.adapters import timm

    options = {"is_training": False, "device": CPU, **options}
    ours = timm.create_loader(digits, "train", (3, 16, 16), 16, num_threads=1, **options)
    files = ImageDataset(str(folders_of(digits) / "train"))
    theirs = create_loader(files, (3, 16, 16), 16, num_workers=0, **options)
    assert len(ours) == len(theirs)
    count = assert_same_batches(ours, theirs)
    assert count == (400 // 16 * 16 if options["is_training"] else 400)
    assert type(ours.loader if options.get("use_prefetcher", True) else ours) is tsds.DataLoader


@works("timm", "gray images become RGB, or stay gray with `input_img_mode`, as in timm's data set over the files")
@pytest.mark.parametrize("mode", ["RGB", "L"])
def test_timm_gray_images(digits: Path, tmp_path: Path, mode: Any) -> None:
    from timm.data import ImageDataset, create_loader

    from tensorstore_ds.annex.adapters import timm

    tsds.convert(folders_of(digits), tmp_path / "gray.tsds", color="gray", workers=0)
    options = {"device": CPU, **({"mean": (0.5,), "std": (0.5,)} if mode == "L" else {})}
    images = timm.StoreImages(tmp_path / "gray.tsds", input_img_mode=mode)
    size = (len(mode), 16, 16)
    ours = timm.create_loader(images, "train", size, 16, num_threads=1, **options)
    files = ImageDataset(str(folders_of(digits) / "train"), input_img_mode=mode)
    assert assert_same_batches(ours, create_loader(files, size, 16, num_workers=0, **options)) == 400
    with pytest.raises(tsds.OptionError, match=r"`input_img_mode`: expected images of 1 channels for L, found 3\."):
        timm.StoreImages(digits, input_img_mode="L")[0]


@works("timm", "`FastCollateMixup` and random erasing in this loader")
def test_timm_mixes_in_the_collate_function(digits: Path) -> None:
    from timm.data import FastCollateMixup, ImageDataset, create_loader

    from tensorstore_ds.annex.adapters import timm

    def mixing() -> Any:
        return FastCollateMixup(mixup_alpha=0.4, cutmix_alpha=1.0, num_classes=10)

    options = {"is_training": True, "device": CPU}
    ours = timm.create_loader(digits, "train", (3, 16, 16), 16, num_threads=1, collate_fn=mixing(), **options)
    files = ImageDataset(str(folders_of(digits) / "train"))
    theirs = create_loader(files, (3, 16, 16), 16, num_workers=0, collate_fn=mixing(), **options)
    assert_same_batches(ours, theirs)
    assert ours.mixup_enabled is theirs.mixup_enabled is True
    ours.mixup_enabled = theirs.mixup_enabled = False
    assert ours.mixup_enabled is theirs.mixup_enabled is False
    assert_same_batches(ours, theirs)

    erasing = timm.create_loader(digits, "train", (3, 16, 16), 16, re_prob=1.0, scale=(1, 1), hflip=0, **options)
    assert not erasing.mixup_enabled
    images, _ = next(iter(erasing))
    grays = -torch.tensor([0.485, 0.456, 0.406]) / torch.tensor([0.229, 0.224, 0.225])
    erased = (images == 0).all(1)
    assert erased.any((1, 2)).all() and not torch.isclose(images, grays[None, :, None, None]).all()


@works("timm", "resuming this loader with `state_dict`; samplers of this library")
@pytest.mark.parametrize("after", [3, 25, 30])  # within an epoch, at its end, within the next one
def test_timm_goes_on_at_the_very_next_batch(digits: Path, after: int) -> None:
    from tensorstore_ds.annex.adapters import timm

    def loader() -> Any:
        images = timm.StoreImages(digits)
        still = {"scale": (1, 1), "ratio": (1, 1), "hflip": 0, "color_jitter": 0, "device": CPU}
        sampler = tsds.ShuffleSampler(images, seed=3)
        return timm.create_loader(images, "train", (3, 8, 8), 16, is_training=True, sampler=sampler, **still)

    def labels(loader: Any, epochs: int) -> list[list[int]]:
        return [targets.tolist() for _ in range(epochs) for _, targets in loader]

    whole = labels(loader(), 2)
    assert len(whole) == 50
    interrupted, seen = loader(), 0
    for _ in range(2):
        for _ in interrupted:
            seen += 1
            if seen == after:
                break
        if seen == after:
            break
    resumed = loader()
    resumed.load_state_dict(interrupted.state_dict())
    left = 2 - after // 25
    assert labels(resumed, left) == whole[after:]


@limit("timm", "`create_dataset` by a name: timm has no registry, so `StoreImages` replaces the call")
def test_timm_has_no_registry() -> None:
    from timm.data import create_dataset

    with pytest.raises(AssertionError):
        create_dataset("tsds/digits", root="digits.tsds")


def test_timm_options_that_replace_the_data_set_are_refused(digits: Path) -> None:
    from timm.data import AugMixDataset, create_loader

    from tensorstore_ds.annex.adapters import timm

    with pytest.raises(
        tsds.OptionError, match=r"`num_aug_splits`: expected no value, .*use `timm\.data\.create_loader`"
    ):
        timm.create_loader(digits, "train", 16, 16, num_aug_splits=3, device=CPU)
    with pytest.raises(tsds.OptionError, match="`input_size_choices`: "):
        timm.create_loader(digits, "train", 16, 16, is_training=True, input_size_choices=[16, 32], device=CPU)
    split = AugMixDataset(timm.StoreImages(digits), num_splits=2)  # what the message leads to
    options = {"num_workers": 0, "device": CPU, "is_training": True, "auto_augment": "augmix-m5"}
    loader = create_loader(split, (3, 16, 16), 16, num_aug_splits=2, **options)
    images, targets = next(iter(loader))
    assert images.shape == (32, 3, 16, 16) and torch.equal(targets[:16], targets[16:])


# --- transformers -------------------------------------------------------------------------------------------------


def processors(kind: str) -> list[Any]:
    """An image processor in both versions, with Pillow and with torchvision."""
    import transformers

    size = {"vit": {"height": 12, "width": 10}, "segformer": {"height": 24, "width": 32}}
    shortest = {"shortest_edge": 60, "longest_edge": 90}
    names = {"vit": "ViTImageProcessor", "detr": "DetrImageProcessor", "rt_detr": "RTDetrImageProcessor"}
    names |= {"segformer": "SegformerImageProcessor"}
    sizes = {**size, "detr": shortest, "rt_detr": {"height": 64, "width": 64}}
    return [getattr(transformers, names[kind] + which)(size=sizes[kind]) for which in ("", "Pil")]


def assert_same(ours: Any, theirs: Any) -> None:
    """Batches of processors: dicts and lists of tensors."""
    if isinstance(ours, torch.Tensor):
        assert ours.dtype == theirs.dtype and torch.equal(ours, theirs)
    elif isinstance(ours, list):
        for one, other in zip(ours, theirs, strict=True):
            assert_same(one, other)
    else:
        assert ours.keys() == theirs.keys()
        for name in ours:
            assert_same(ours[name], theirs[name])


@works("transformers", "`ImageCollator` yields the same values as a processor over the files, with both backends")
@pytest.mark.parametrize("which", [0, 1])
def test_transformers_classification_values(digits: Path, which: int) -> None:
    from tensorstore_ds.annex.adapters.transformers import ImageCollator

    processor = processors("vit")[which]
    files = datasets.ImageFolder(folders_of(digits) / "train")
    dataset = tsds.StoreDataset(digits)
    loader = tsds.DataLoader(dataset, 16, collate_fn=ImageCollator(processor, dataset))
    for number, batch in enumerate(loader):
        images, labels = zip(*(files[row] for row in range(16 * number, 16 * number + 16)), strict=True)
        expected = {**processor(list(images), return_tensors="pt"), "labels": torch.tensor(labels)}
        assert_same(batch, expected)


@pytest.mark.parametrize("as_pil", [False, True])
def test_transformers_gray_images(digits: Path, tmp_path: Path, as_pil: bool) -> None:
    from tensorstore_ds.annex.adapters.transformers import ImageCollator

    tsds.convert(folders_of(digits), tmp_path / "gray.tsds", color="gray", workers=0)
    processor, files = processors("vit")[0], datasets.ImageFolder(folders_of(digits) / "train")
    dataset = tsds.StoreDataset(tmp_path / "gray.tsds", as_pil=as_pil)
    batch = next(iter(tsds.DataLoader(dataset, 16, collate_fn=ImageCollator(processor, dataset))))
    expected = processor([files[row][0] for row in range(16)], return_tensors="pt")
    assert_same(batch["pixel_values"], expected["pixel_values"])


def test_transformers_several_labels(tmp_path: Path) -> None:
    from tensorstore_ds.annex.adapters.transformers import ImageCollator

    rows = [[1, 0, 1], [0, 0, 0], [0, 1, 1]]
    samples = [{"image": np.full((32, 32, 3), 80 * i, np.uint8), "labels": row} for i, row in enumerate(rows)]
    tsds.convert(samples, tmp_path / "a.tsds", classes=("a", "b", "c"))
    dataset, processor = tsds.StoreDataset(tmp_path / "a.tsds"), processors("vit")[0]
    batch = next(iter(tsds.DataLoader(dataset, 3, collate_fn=ImageCollator(processor, dataset))))
    assert batch["labels"].dtype == torch.float32 and batch["labels"].tolist() == rows
    logits = torch.linspace(-1, 1, 9).view(3, 3)
    loss = torch.nn.BCEWithLogitsLoss()(logits, batch["labels"])  # as transformers computes it
    assert loss.isfinite()


def annotations_of(store: Path) -> list[tuple[Image.Image, dict[str, Any]]]:
    """The images of a Pascal VOC folder, read by torchvision and Pillow, and their objects in COCO's form."""
    found = []
    classes = tsds.open(store)["train"].fields["objects"].classes
    for number, (image, parsed) in enumerate(datasets.VOCDetection(str(devkit(store)), year="2012", image_set="train")):
        objects = []
        for each in parsed["annotation"]["object"]:
            x1, y1, x2, y2 = (float(each["bndbox"][side]) for side in ("xmin", "ymin", "xmax", "ymax"))
            box, category = [x1, y1, x2 - x1, y2 - y1], classes.index(each["name"])
            objects.append({"bbox": box, "category_id": category, "area": box[2] * box[3], "iscrowd": 0})
        found.append((image, {"image_id": number, "annotations": objects}))
    return found


def detection_set(store: Path, **options: Any) -> tsds.StoreDataset:
    return tsds.StoreDataset(store, return_as="torchvision", as_pil=True, **options)


@works("transformers", "boxes for DETR and RT-DETR and masks for SegFormer are also equal")
@pytest.mark.parametrize("which", [0, 1])
@pytest.mark.parametrize("kind", ["detr", "rt_detr"])
def test_transformers_detection_values(scenes: Path, kind: str, which: int) -> None:
    from tensorstore_ds.annex.adapters.transformers import ImageCollator

    processor = processors(kind)[which]
    dataset = detection_set(scenes)
    (batch,) = tsds.DataLoader(dataset, 8, collate_fn=ImageCollator(processor, dataset))
    images, annotations = zip(*annotations_of(scenes), strict=True)
    expected = processor(list(images), annotations=list(annotations), return_tensors="pt")
    assert sum(len(each["boxes"]) for each in batch["labels"]) == sum(len(each["annotations"]) for each in annotations)
    assert ("pixel_mask" in batch) == (kind == "detr")
    assert_same(batch, dict(expected))


@pytest.mark.parametrize("which", [0, 1])
def test_transformers_mask_values(tmp_path: Path, which: int) -> None:
    from tensorstore_ds.annex.adapters.transformers import ImageCollator

    write_folders(tmp_path / "city", 5, size=(36, 48))
    tsds.convert(tmp_path / "city", tmp_path / "city.tsds", workers=0)
    dataset = tsds.StoreDataset(tmp_path / "city.tsds", tsds.open(tmp_path / "city.tsds").splits[0])
    processor = processors("segformer")[which]
    batch = next(iter(tsds.DataLoader(dataset, 5, collate_fn=ImageCollator(processor, dataset))))
    split = dataset.split
    images, masks = (
        [split["image"][row] for row in range(len(split))],
        [split["mask"][row] for row in range(len(split))],
    )
    expected = processor(images, segmentation_maps=masks, return_tensors="pt")
    labels = expected["labels"] if isinstance(expected["labels"], torch.Tensor) else torch.stack(expected["labels"])
    assert_same(batch, {"pixel_values": expected["pixel_values"], "labels": labels})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"return_as": "tuple"}, "`return_as`: expected dict, or torchvision for objects, found tuple"),
        ({"return_as": "torchvision"}, '`as_pil`: expected True, with `return_as="torchvision"`, found False'),
        ({"return_as": "dict"}, "`return_as`: expected torchvision for objects, found dict, with the field objects: "),
    ],
)
def test_transformers_data_sets_of_another_form_are_refused(scenes: Path, options: Any, message: str) -> None:
    from tensorstore_ds.annex.adapters.transformers import ImageCollator

    with pytest.raises(tsds.OptionError, match=message):
        ImageCollator(processors("detr")[0], tsds.StoreDataset(scenes, **options))


def vit(dropout: float = 0.0) -> Any:
    from transformers import ViTConfig, ViTForImageClassification

    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    seed()
    config = ViTConfig(image_size=8, patch_size=4, num_labels=10, hidden_dropout_prob=dropout, **sizes)
    return ViTForImageClassification(config)


def arguments_of(out: Path, **options: Any) -> Any:
    from transformers import TrainingArguments

    quiet = {"report_to": "none", "disable_tqdm": True, "logging_steps": 1, "remove_unused_columns": False}
    return TrainingArguments(out, **{"per_device_train_batch_size": 32, "save_strategy": "no", **quiet, **options})


def losses_of(trainer: Any) -> list[float]:
    trainer.train()
    return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]


@works("transformers", "`StoreTrainer` has the same losses as the Trainer's own loader over the files")
@pytest.mark.parametrize("dropout", [0.0, 0.1])
def test_transformers_losses_are_those_of_the_files(digits: Path, tmp_path: Path, dropout: float) -> None:
    import transformers
    from transformers import Trainer

    from tensorstore_ds.annex.adapters.transformers import ImageCollator, StoreTrainer

    processor = transformers.ViTImageProcessor(size={"height": 8, "width": 8})

    def collate(samples: list[tuple[Image.Image, int]]) -> dict[str, Any]:
        images, labels = zip(*samples, strict=True)
        return {**processor(list(images), return_tensors="pt"), "labels": torch.tensor(labels)}

    dataset, files = tsds.StoreDataset(digits), datasets.ImageFolder(folders_of(digits) / "train")
    arguments = arguments_of(tmp_path, max_steps=30)
    ours = losses_of(StoreTrainer(vit(dropout), arguments, ImageCollator(processor, dataset), dataset))
    theirs = losses_of(Trainer(vit(dropout), arguments, collate, files))
    assert ours == theirs and len(ours) == 30


def to_inputs(sample: dict[str, Any]) -> dict[str, Any]:
    return {"pixel_values": sample["image"].float().as_subclass(torch.Tensor) / 255, "labels": sample["label"]}


def resumed(kind: type, dataset: tsds.StoreDataset, out: Path, step: int) -> tuple[list[Any], list[Any]]:
    """What a Trainer sees in 30 steps, more than two epochs, and what one sees that resumes after some of them."""
    seen: list[list[float]] = []

    class Recording(kind):  # type: ignore[misc]
        def training_step(self, model: Any, inputs: Any, *rest: Any) -> Any:
            seen.append(inputs["pixel_values"].sum((1, 2, 3)).tolist())
            return super().training_step(model, inputs, *rest)

    runs = []
    for checkpoint in (None, str(out / f"checkpoint-{step}")):
        seen.clear()
        arguments = arguments_of(out, max_steps=30, save_strategy="steps", save_steps=step, seed=6)
        Recording(vit(), arguments, train_dataset=dataset).train(resume_from_checkpoint=checkpoint)
        runs.append(list(seen))
    assert [len(run) for run in runs] == [30, 30 - step]
    return runs[0], runs[1]


@works("transformers", "`StoreTrainer` resumes at the next batch, with the same random crops")
@pytest.mark.parametrize("step", [5, 13, 17])
def test_transformers_resumes_at_the_very_next_batch(digits: Path, tmp_path: Path, step: int) -> None:
    from tensorstore_ds.annex.adapters.transformers import StoreTrainer

    plan = tsds.RandomResizedCrop(8, scale=(0.3, 1), seed=2)
    dataset = tsds.StoreDataset(digits, transform=to_inputs, decode=plan)
    whole, rest = resumed(StoreTrainer, dataset, tmp_path, step)
    assert rest == whole[step:]
    first, second = ({value for batch in whole[start : start + 13] for value in batch} for start in (0, 13))
    assert len(first & second) < 100  # other crops in the second epoch


def test_transformers_batches_are_made_by_threads(digits: Path, tmp_path: Path) -> None:
    import threading

    from tensorstore_ds.annex.adapters.transformers import StoreTrainer

    makers: set[str] = set()

    def noted(sample: dict[str, Any]) -> dict[str, Any]:
        makers.add(threading.current_thread().name)
        return to_inputs(sample)

    dataset = tsds.StoreDataset(digits, transform=noted)
    trainer = StoreTrainer(vit(), arguments_of(tmp_path, max_steps=3), train_dataset=dataset, eval_dataset=dataset)
    trainer.train()
    assert makers and "MainThread" not in makers
    makers.clear()
    trainer.evaluate()
    trainer.predict(dataset)
    assert makers and "MainThread" not in makers


@works("transformers", "`StoreTrainer` on two ranks divides the samples and resumes")
def test_transformers_ranks_resume_and_divide_the_samples(digits: Path, tmp_path: Path) -> None:
    store = tmp_path / "digits.tsds"
    store.symlink_to(digits)
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    search = os.pathsep.join([str(ROOT), str(ROOT / "cli")])
    run = subprocess.run(
        [*torchrun, str(Path(__file__).with_name("trainer_ranks.py")), str(store)],
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": search},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert run.returncode == 0, run.stderr
    ranks = [json.loads((tmp_path / f"rank{rank}.json").read_text("utf-8")) for rank in range(2)]
    for seen in ranks:  # epochs of 7 steps, of which the last one is short
        assert len(seen["whole"]) == 20 and seen["rest"] == seen["whole"][9:]
    first, second = ({value for batch in seen["whole"][:6] for value in batch} for seen in ranks)
    assert len(first) > 180 and len(second) > 180 and len(first & second) < 20  # sums of other images may be equal


def detector(classes: int) -> Any:
    from transformers import YolosConfig, YolosForObjectDetection

    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    seed()
    config = YolosConfig(
        image_size=[64, 64], patch_size=16, num_labels=classes, num_detection_tokens=8, qkv_bias=False, **sizes
    )
    return YolosForObjectDetection(config)


@works("transformers", "detection: a YOLOS has the same losses as with the files")
def test_transformers_detection_losses_are_those_of_the_files(scenes: Path, tmp_path: Path) -> None:
    from transformers import RTDetrImageProcessor, Trainer

    from tensorstore_ds.annex.adapters.transformers import ImageCollator, StoreTrainer

    processor = RTDetrImageProcessor(size={"height": 64, "width": 64}, do_normalize=True)

    def collate(samples: list[Any]) -> dict[str, Any]:
        images, annotations = zip(*samples, strict=True)
        return dict(processor(list(images), annotations=list(annotations), return_tensors="pt"))

    dataset = detection_set(scenes)
    arguments = arguments_of(tmp_path, max_steps=30, per_device_train_batch_size=4, learning_rate=1e-3)
    classes = len(dataset.classes)
    ours = losses_of(StoreTrainer(detector(classes), arguments, ImageCollator(processor, dataset), dataset))
    theirs = losses_of(Trainer(detector(classes), arguments, collate, annotations_of(scenes)))
    assert ours == theirs and len(ours) == 30
    assert np.mean(ours[-6:]) < np.mean(ours[:6])
