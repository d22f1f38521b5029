"""RF-DETR over a store: samples, losses and evaluation are those of the COCO folder that it was converted from."""

from __future__ import annotations

import csv
import json
import pickle
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from packaging.specifiers import SpecifierSet
from PIL import Image, ImageDraw
from pycocotools import mask as coco_mask
from rfdetr import RFDETRKeypointPreview, RFDETRNano, RFDETRSegNano, training
from rfdetr.config import RFDETRNanoConfig, RFDETRSegNanoConfig, SegmentationTrainConfig, TrainConfig
from rfdetr.datasets.coco import crowd_regions_from_coco
from rfdetr.datasets.transforms import AlbumentationsWrapper
from rfdetr.training import RFDETRDataModule, seed_everything

import tensorstore_ds as tsds
from clients.conftest import Example
from clients.test_detection import losses
from tensorstore_ds.annex.adapters import rfdetr

works, limit = pytest.mark.works, pytest.mark.limit
pytestmark = pytest.mark.filterwarnings("ignore:RF-DETR has changed the default training augmentation")
CLASSES = ["circle", "square", "star"]
SIZES = {"train": [(120, 160), (90, 130), (1300, 1250), (100, 100)] * 2, "valid": [(80, 140), (120, 120), (96, 96)] * 2}
MODEL = {"pretrain_weights": None, "resolution": 96, "positional_encoding_size": 6, "num_queries": 20, "num_select": 20}
SETTINGS = {"multi_scale": "off", "num_workers": 0, "batch_size": 4, "augmentation_backend": "torchvision"}
SETTINGS |= {"tensorboard": False, "eval_backend": "faster_coco_eval"}


def shape_of(kind: str, box: list[float], size: tuple[int, int]) -> Any:
    """An outline in a box: a polygon, or runs as COCO has them."""
    x, y, w, h = box
    if kind == "polygon":
        return [[x, y, x + w, y, x + w / 2, y + h]]
    mask = np.zeros(size, np.uint8, order="F")
    mask[int(y) : int(y + h), int(x) : int(x + w)] = 1
    counts = [0] if mask[0, 0] else []
    flat = mask.reshape(-1, order="F")
    edges = np.flatnonzero(np.diff(flat)) + 1
    return {"counts": counts + np.diff([0, *edges, len(flat)]).tolist(), "size": list(size)}


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A COCO folder as Roboflow writes it: images of differing sizes, gray ones, crowds, one image without objects."""
    root, rng = tmp_path_factory.mktemp("rfdetr") / "folder", np.random.default_rng(0)
    for split, sizes in SIZES.items():
        (root / split).mkdir(parents=True)
        images, found = list[dict[str, Any]](), list[dict[str, Any]]()
        for number, (height, width) in enumerate(sizes):
            picture = Image.fromarray(rng.integers(0, 255, (height // 10, width // 10, 3), np.uint8))
            picture = picture.resize((width, height), Image.Resampling.BICUBIC)
            for kind in ["polygon", "rle", "polygon"][: number % 4]:  # the first has no objects
                label = int(rng.integers(3))
                x, y, w, h = (float(v) for v in rng.integers(5, 40, 4))
                ImageDraw.Draw(picture).rectangle([x, y, x + w, y + h], fill=(80 * label, 200, 50))
                is_crowd = int(kind == "rle" and number % 2 == 0)
                each = {"bbox": [x, y, w, h], "area": w * h / 2, "iscrowd": is_crowd, "category_id": label + 1}
                outline = shape_of(kind, each["bbox"], (height, width))
                found.append({"id": len(found) + 1, "image_id": number, "segmentation": outline, **each})
            gray = number % 4 == 1
            name = f"{number:03d}.{'png' if gray else 'jpg'}"
            (picture.convert("L") if gray else picture).save(root / split / name, quality=95)
            images.append({"id": number, "file_name": name, "height": height, "width": width})
        categories = [{"id": i, "name": name, "supercategory": "none"} for i, name in enumerate(CLASSES, 1)]
        text = json.dumps({"images": images, "annotations": found, "categories": categories})
        (root / split / "_annotations.coco.json").write_text(text)
    return root


@pytest.fixture(scope="session")
def store(folder: Path) -> Path:
    """The folder as a store that keeps its files."""
    return converted(folder, "source")


def converted(folder: Path, encoding: Any) -> Path:
    out = folder.parent / f"{encoding}.tsds"
    if not out.exists():
        tsds.convert(folder, out, encoding=encoding, workers=0)
    return out


def configs(data: Path, out: Path, masks: bool = False, **settings: Any) -> tuple[Any, Any]:
    model, train = (RFDETRSegNanoConfig, SegmentationTrainConfig) if masks else (RFDETRNanoConfig, TrainConfig)
    sizes = {**MODEL, "resolution": 96, "positional_encoding_size": 96 // (12 if masks else 16), "num_classes": 3}
    return model(**sizes), train(dataset_dir=str(data), output_dir=str(out), **{**SETTINGS, **settings})


def samples_of(module: Any, split: str) -> list[Any]:
    module.setup("fit")
    dataset = getattr(module, f"_dataset_{split}")
    for step in dataset._transforms.transforms:
        if isinstance(step, AlbumentationsWrapper):  # draws from a generator of its own
            step.transform.set_random_seed(0)
    seed_everything(0)
    return [dataset[row] for row in range(len(dataset))]


def assert_equal(ours: list[Any], theirs: list[Any], atol: float = 0.0) -> None:
    for (image, target), (expected, its_target) in zip(ours, theirs, strict=True):
        torch.testing.assert_close(image, expected, rtol=0, atol=atol)
        assert target.keys() == its_target.keys()
        for name, value in its_target.items():
            assert target[name].dtype == value.dtype, name
            torch.testing.assert_close(target[name], value, rtol=0, atol=1e-5 if name != "area" else 1e-2)


# --- samples --------------------------------------------------------------------------------------------------------


@works("RF-DETR", "the data module yields the same augmented samples as with a COCO folder, with masks")
@pytest.mark.parametrize("masks", [False, True])
@pytest.mark.parametrize("split", ["train", "val"])
@pytest.mark.parametrize("backend", ["torchvision", "albumentations"])
def test_samples(store: Path, folder: Path, tmp_path: Path, split: str, masks: bool, backend: str) -> None:
    settings = {"augmentation_backend": backend, "multi_scale": "per-sample"}
    ours = samples_of(rfdetr.StoreData(*configs(store, tmp_path, masks, **settings), store), split)
    theirs = samples_of(RFDETRDataModule(*configs(folder, tmp_path, masks, **settings)), split)
    assert_equal(ours, theirs)
    assert len({image.shape for image, _ in ours}) > 1 or split == "val"


@works("RF-DETR", "all encodings, images of differing sizes and gray ones, crowds, images without objects")
@pytest.mark.parametrize("encoding", ["raw", "jpeg"])
def test_encodings(folder: Path, tmp_path: Path, encoding: str) -> None:
    ours = rfdetr.StoreData(*configs(folder, tmp_path), converted(folder, encoding))
    theirs = RFDETRDataModule(*configs(folder, tmp_path))
    of_ours, of_theirs = (samples_of(module, "val") for module in (ours, theirs))
    if encoding == "jpeg":  # files are encoded again
        assert all((a[0] - b[0]).abs().mean() < 0.05 for a, b in zip(of_ours, of_theirs, strict=True))
        of_ours = [(image, target) for (_, target), (image, _) in zip(of_ours, of_theirs, strict=True)]
    assert_equal(of_ours, of_theirs, atol=1e-6)


@pytest.mark.parametrize("split", ["train", "val"])
def test_crowds_are_those_of_the_files(store: Path, folder: Path, tmp_path: Path, split: str) -> None:
    found = []
    for module in (
        rfdetr.StoreData(*configs(store, tmp_path), store),
        RFDETRDataModule(*configs(folder, tmp_path)),
    ):
        module.setup("fit")
        found.append(crowd_regions_from_coco(getattr(module, f"_dataset_{split}").coco))
    ours, theirs = found
    assert ours.keys() == theirs.keys() and theirs
    for row, regions in theirs.items():
        for mine, other in zip(ours[row], regions, strict=True):
            assert mine[:2] == other[:2]
            masks = [coco_mask.decode(region.segmentation) for region in (mine, other)]
            np.testing.assert_array_equal(*masks)


def test_a_large_jpeg_file_is_decoded_at_half_its_size(store: Path, tmp_path: Path) -> None:
    module = rfdetr.StoreData(*configs(store, tmp_path), store)
    module.setup("fit")
    image, scales = module._dataset_train._decode_image(2)
    assert image.size == (625, 650) and scales == (0.5, 0.5)
    assert module._dataset_val._decode_image(0)[0].size == (140, 80)


@works("RF-DETR", "`num_workers`, forked or spawned")
def test_workers(store: Path, tmp_path: Path) -> None:
    loaded = []
    for workers in (0, 2):
        module = rfdetr.StoreData(*configs(store, tmp_path, num_workers=workers, batch_size=2), store)
        module.setup("fit")
        loaded.append(list(module.val_dataloader()))
    for (images, targets), (expected, its_targets) in zip(*loaded, strict=True):
        assert torch.equal(images.tensors, expected.tensors)
        for mine, other in zip(targets.to_list("cpu"), its_targets.to_list("cpu"), strict=True):
            assert all(torch.equal(mine[name], other[name]) for name in other)
    again = pickle.loads(pickle.dumps(module._dataset_val))  # noqa: S301
    assert torch.equal(again[1][0], module._dataset_val[1][0])


def test_splits(store: Path, tmp_path: Path) -> None:
    module = rfdetr.StoreData(*configs(store, tmp_path), store)
    module.setup("fit")
    module.setup("test")
    assert [len(each) for each in (module._dataset_train, module._dataset_val, module._dataset_test)] == [8, 6, 6]
    splits = tsds.open(store).splits
    module = rfdetr.StoreData(*configs(store, tmp_path), tsds.open(store), train_split=splits[1], val_split=splits[0])
    module.setup("fit")
    assert [len(each) for each in (module._dataset_train, module._dataset_val)] == [6, 8]
    with pytest.raises(tsds.errors.UnknownNameError, match="expected one of the splits"):
        rfdetr.StoreData(*configs(store, tmp_path), store, val_split="nosuch")


# --- training -------------------------------------------------------------------------------------------------------


def small(**more: Any) -> RFDETRNano:
    return RFDETRNano(**MODEL, device="cpu", **more)


def metrics_of(out: Path) -> dict[str, float]:
    """The last value of everything that a training wrote into its `metrics.csv`."""
    with (out / "metrics.csv").open() as file:
        return {name: float(value) for row in csv.DictReader(file) for name, value in row.items() if value}


@works("RF-DETR", "`train` has the same losses and COCO evaluation as `RFDETR.train` over the files")
def test_trains_as_from_files(store: Path, folder: Path, tmp_path: Path) -> None:
    settings = {**SETTINGS, "epochs": 1, "device": "cpu"}
    ours, theirs = small(), small()
    seed_everything(0)  # the model of a training is a new one
    rfdetr.train(ours, store, output_dir=str(tmp_path / "ours"), **settings)
    seed_everything(0)
    theirs.train(dataset_dir=str(folder), output_dir=str(tmp_path / "theirs"), **settings)
    found, expected = metrics_of(tmp_path / "ours"), metrics_of(tmp_path / "theirs")
    assert expected["train/loss"] > 0 and found.keys() == expected.keys()
    ours_, theirs_ = ([each[name] for name in expected if "time" not in name] for each in (found, expected))
    assert ours_ == pytest.approx(theirs_, rel=1e-4, nan_ok=True)
    for name, value in theirs.model.model.state_dict().items():
        torch.testing.assert_close(ours.model.model.state_dict()[name], value, rtol=1e-3, atol=1e-5)
    written = [{path.name for path in (tmp_path / each).iterdir()} for each in ("ours", "theirs")]
    assert written[0] == written[1] and "checkpoint_best_total.pth" in written[0]
    assert training.RFDETRDataModule is RFDETRDataModule

    assert ours.class_names == theirs.class_names == CLASSES and ours.model_config.num_classes == 3
    saved = json.loads((tmp_path / "ours" / "training_config.json").read_text())
    assert saved["class_names"] == CLASSES and saved["train_config"]["dataset_dir"] == str(store)
    again = RFDETRNano.from_checkpoint(str(tmp_path / "ours" / "checkpoint_best_total.pth"), device="cpu")
    assert again.class_names == CLASSES
    detections = ours.predict(Image.open(folder / "valid" / "000.jpg"), threshold=0.0)
    named = dict(enumerate([*CLASSES, "__background__"]))  # RF-DETR has an output more than classes
    assert len(detections) and detections.data["class_name"].tolist() == [named[i] for i in detections.class_id]


@works("RF-DETR", "segmentation models, if objects have polygons, RLE or oriented boxes")
def test_trains_masks(store: Path, tmp_path: Path) -> None:
    model = RFDETRSegNano(**{**MODEL, "positional_encoding_size": 8}, device="cpu")
    rfdetr.train(model, store, output_dir=str(tmp_path), epochs=1, device="cpu", run_test=False, **SETTINGS)
    assert metrics_of(tmp_path)["train/loss_mask_ce"] > 0


@works("RF-DETR", "RF-DETR's model and trainer, with its own COCO evaluation")
def test_example(scenes: Path, example: Example, tmp_path: Path) -> None:
    line = example("clients/rfdetr_train.py", scenes, "--epochs", 1, "--size", 96, "--out", tmp_path)
    loss, _ = losses(line)
    assert 0 < loss < 100


# --- errors ---------------------------------------------------------------------------------------------------------


def test_a_store_without_objects(digits: Path) -> None:
    with pytest.raises(tsds.OptionError, match=r"train: expected images, and objects with boxes, found image, label"):
        rfdetr.train(small(), digits)


def test_a_store_without_masks(scenes: Path, tmp_path: Path) -> None:
    with pytest.raises(tsds.OptionError, match=r"train: expected objects with polygons or rle, found boxes"):
        rfdetr.StoreData(*configs(scenes, tmp_path, masks=True), scenes)


def test_more_classes_than_the_model_has(store: Path) -> None:
    with pytest.raises(tsds.OptionError, match=r"source.tsds: expected at most 2 classes, found 3. Make the model"):
        rfdetr.train(small(num_classes=2), store)


def test_images_of_16_bits(tmp_path: Path) -> None:
    with tsds.Writer(tmp_path / "deep.tsds", classes=["a"]) as writer:
        writer.append("train", image=np.zeros((40, 50, 1), np.uint16), boxes=[[1, 2, 20, 30]], labels=[0])
    module = rfdetr.StoreData(*configs(tmp_path, tmp_path), tmp_path / "deep.tsds")
    module.setup("fit")
    with pytest.raises(tsds.OptionError, match=r"`image`: expected 8 bits per channel, found uint16"):
        module._dataset_train[0]


@limit("RF-DETR", "models that detect keypoints")
def test_keypoints(store: Path) -> None:
    model = RFDETRKeypointPreview(pretrain_weights=None, device="cpu")
    with pytest.raises(tsds.OptionError, match=r"`model`: expected one that detects boxes or masks"):
        rfdetr.train(model, store)


def test_the_version_is_one_that_was_tested() -> None:
    assert version("rfdetr") in SpecifierSet(rfdetr.TESTED)
