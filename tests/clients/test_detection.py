"""Frameworks that detect objects: the images and boxes are those of the store, and the losses those of the files."""

from __future__ import annotations

import json
import random
import re
from pathlib import Path
from typing import Any

import albumentations
import numpy as np
import pytest
import torch
import yaml
from PIL import Image
from torchvision import datasets

import tensorstore_ds as tsds
from clients.conftest import Example, of_example

works, limit = pytest.mark.works, pytest.mark.limit


def losses(line: str) -> tuple[float, float]:
    """Loss and mAP that an example printed."""
    found = re.search(r"loss (\d+\.\d+), mAP (\d\.\d+)", line)
    assert found, line
    return float(found[1]), float(found[2])


def objects_of(sample: dict[str, Any]) -> list[tuple[int, list[float]]]:
    """The label and the box of each object."""
    objects = sample["objects"]
    return list(zip(objects["labels"].tolist(), objects["boxes"].tolist(), strict=True))


# --- torchvision --------------------------------------------------------------------------------------------------


class Files(torch.utils.data.Dataset[Any]):
    """The images of a VOCdevkit, with targets as torchvision's references have them."""

    def __init__(self, root: Path, image_set: str, classes: tuple[str, ...]) -> None:
        self.voc = datasets.VOCDetection(str(root), year="2012", image_set=image_set)
        self.classes = classes

    def __len__(self) -> int:
        return len(self.voc)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, dict[str, Any]]:
        image, annotation = self.voc[index]
        objects = annotation["annotation"]["object"]
        names = ("xmin", "ymin", "xmax", "ymax")
        boxes = torch.tensor([[float(each["bndbox"][name]) for name in names] for each in objects])
        labels = torch.tensor([self.classes.index(each["name"]) + 1 for each in objects])
        area = (boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1])
        target = {"boxes": boxes, "labels": labels, "area": area, "iscrowd": torch.zeros_like(labels)}
        return torch.from_numpy(np.array(image)).permute(2, 0, 1) / 255, {**target, "image_id": index}


def devkit(scenes: Path) -> Path:
    """The folder that has a VOCdevkit, as torchvision wants it."""
    root = scenes.parent / "voc"
    if not root.exists():
        root.mkdir()
        (root / "VOCdevkit").symlink_to(scenes.with_suffix(""))
    return root


def both(scenes: Path) -> list[torch.utils.data.Dataset[Any]]:
    """The split `train` of the store, and the same images as files."""
    ours = tsds.StoreDataset(scenes, return_as="torchvision")
    return [ours, Files(devkit(scenes), "train", ours.classes)]


@works("torchvision's detection", "`train_one_epoch` as its references do: the losses are those of the files")
def test_torchvision_trains_as_from_files(scenes: Path) -> None:
    from torchvision.models.detection import fasterrcnn_mobilenet_v3_large_320_fpn

    train_one_epoch = of_example("torchvision_coco.py")["train_one_epoch"]
    found = []
    for dataset in both(scenes):
        torch.manual_seed(0)
        sizes = {"num_classes": 11, "min_size": 60, "max_size": 80}
        model = fasterrcnn_mobilenet_v3_large_320_fpn(weights=None, weights_backbone=None, **sizes)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        collate = {} if isinstance(dataset, tsds.StoreDataset) else {"collate_fn": lambda batch: tuple(zip(*batch))}  # noqa: B905
        kind = tsds.DataLoader if not collate else torch.utils.data.DataLoader
        found.append([train_one_epoch(model, optimizer, kind(dataset, 4, **collate)) for _ in range(2)])
    assert found[0] == found[1]


class Oracle(torch.nn.Module):
    """A model that knows the boxes, moved by so many pixels."""

    def __init__(self, dataset: tsds.StoreDataset, moved: float) -> None:
        super().__init__()
        self.targets = iter([dataset[row][1] for row in range(len(dataset))])
        self.moved = moved

    def forward(self, images: list[torch.Tensor]) -> list[dict[str, torch.Tensor]]:
        targets = [next(self.targets) for _ in images]
        return [
            {"boxes": t["boxes"] + self.moved, "labels": t["labels"], "scores": torch.ones(len(t["labels"]))}
            for t in targets
        ]


@works("torchvision's detection", "COCO evaluation by pycocotools: the truth has mAP 1")
@pytest.mark.parametrize(("moved", "figure"), [(0.0, 1.0), (300.0, 0.0)])
def test_coco_evaluation(scenes: Path, moved: float, figure: float) -> None:
    dataset = tsds.StoreDataset(scenes, "val", return_as="torchvision")
    evaluate = of_example("torchvision_coco.py")["evaluate"]
    assert evaluate(Oracle(dataset, moved), tsds.DataLoader(dataset, 3))[0] == pytest.approx(figure)


@works("torchvision's detection", "`fasterrcnn_mobilenet_v3_large_320_fpn` trains")
def test_torchvision_trains(scenes: Path, example: Example) -> None:
    loss, _ = losses(example("clients/torchvision_coco.py", scenes, "--epochs", 2))
    assert 0 < loss < 3.2


# --- Albumentations -----------------------------------------------------------------------------------------------


@works("Albumentations", "images and boxes, `transform=` of samples")
def test_albumentations_moves_boxes(scenes: Path) -> None:
    names = of_example("albumentations_crops.py")
    flip = albumentations.Compose([albumentations.HorizontalFlip(p=1)], names["STEPS"].processors["bboxes"].params)
    names["augment"].__globals__["STEPS"] = flip
    dataset = tsds.StoreDataset(scenes, transform=names["augment"])
    for row in range(len(dataset)):
        sample, stored = dataset[row], dataset.split[row]
        np.testing.assert_array_equal(sample["image"].permute(1, 2, 0), stored["image"][:, ::-1])
        expected = stored["objects"]["boxes"][:, [2, 1, 0, 3]] * [-1, 1, -1, 1] + [160, 0, 160, 0]
        np.testing.assert_allclose(sample["objects"]["boxes"], expected, atol=1e-4)
        np.testing.assert_array_equal(sample["objects"]["labels"], stored["objects"]["labels"])


@works("Albumentations", 'images alone, `transform_of="image"` and `as_pil=True`')
def test_albumentations_of_images(digits: Path) -> None:
    flip = albumentations.Compose([albumentations.VerticalFlip(p=1), albumentations.ToTensorV2()])
    arguments = {"return_as": "tuple", "as_pil": True, "transform_of": "image"}
    dataset = tsds.StoreDataset(digits, transform=lambda image: flip(image=np.asarray(image))["image"], **arguments)
    images = torch.cat([images for images, _ in tsds.DataLoader(dataset, 64)])
    expected = dataset.split["image"][:][:, ::-1].transpose(0, 3, 1, 2)
    np.testing.assert_array_equal(images, expected)


@works("Albumentations", "random crops in this library's loader")
def test_albumentations_crops(scenes: Path, example: Example) -> None:
    line = example("clients/albumentations_crops.py", scenes)
    assert line.startswith("8 images with ") and int(line.split()[3]) > 8


# --- Ultralytics --------------------------------------------------------------------------------------------------

SETTINGS = {"model": "yolov8n.yaml", "pretrained": False, "imgsz": 96, "batch": 4, "workers": 0, "amp": False}
QUIET = {"plots": False, "verbose": False, "save": False, "val": False, "exist_ok": True}


@pytest.fixture(scope="session")
def yolo(scenes: Path) -> Path:
    """The store as `tsds export` writes it for YOLO: its data.yaml."""
    tsds.export(scenes, scenes.parent / "yolo", "yolo")
    return scenes.parent / "yolo" / "data.yaml"


@works("Ultralytics", "`YOLODataset`: sample for sample what it gives of files")
@pytest.mark.parametrize("split", ["train", "val"])
@pytest.mark.parametrize("size", [160, 96])
def test_yolo_samples(scenes: Path, yolo: Path, split: str, size: int) -> None:
    from ultralytics.data import YOLODataset

    arguments = {"data": {"names": yaml.safe_load(yolo.read_text())["names"]}, "imgsz": size, "augment": False}
    theirs = YOLODataset(str(yolo.parent / "images" / split), **arguments)
    ours = of_example("ultralytics_yolo.py")["StoreYOLODataset"](f"{scenes}::{split}", **arguments)
    assert len(ours) == len(theirs) > 0
    for mine, other in ((ours[row], theirs[row]) for row in range(len(ours))):
        assert torch.equal(mine["img"], other["img"]) and torch.equal(mine["cls"], other["cls"])
        torch.testing.assert_close(mine["bboxes"], other["bboxes"], rtol=0, atol=1e-6)
        assert mine["ori_shape"] == other["ori_shape"] and mine["resized_shape"] == other["resized_shape"]


@works("Ultralytics", "`DetectionTrainer` with mosaics: the losses are those of the files")
def test_yolo_trains_as_from_files(scenes: Path, yolo: Path, tmp_path: Path) -> None:
    from ultralytics.models.yolo.detect import DetectionTrainer

    found = []
    for kind, data in ((of_example("ultralytics_yolo.py")["StoreTrainer"], scenes), (DetectionTrainer, yolo)):
        settings = {"data": str(data), "epochs": 2, "close_mosaic": 0, "cache": "ram", "project": str(tmp_path)}
        trainer = kind(overrides={**SETTINGS, **QUIET, **settings})
        # Until here it has drawn files to measure the speed of the disk.
        trainer.add_callback("on_train_start", lambda _: (random.seed(0), np.random.seed(0), torch.manual_seed(0)))
        trainer.train()
        found.append([float(value) for value in trainer.tloss.values()])
    assert found[0] == pytest.approx(found[1], rel=1e-4) and min(found[0]) > 0


@works("Ultralytics", "training a YOLO of a yaml, validation after every epoch")
def test_yolo_example(scenes: Path, example: Example, tmp_path: Path) -> None:
    loss, _ = losses(example("clients/ultralytics_yolo.py", scenes, "--epochs", 2, "--out", tmp_path))
    assert 0 < loss < 200


@limit("Ultralytics", "its validation of the best weights at the end, and `yolo val`, which read a data.yaml")
def test_yolo_validates_files_alone(scenes: Path) -> None:
    from ultralytics.data.utils import check_det_dataset

    with pytest.raises(AssertionError, match="No YAML file found"):
        check_det_dataset(str(scenes))


@limit("Ultralytics", "`tsds.DataLoader`: its trainer calls `reset()` of its own loader when mosaics end")
def test_yolo_wants_its_own_loader(scenes: Path, tmp_path: Path) -> None:
    class WithOurLoader(of_example("ultralytics_yolo.py")["StoreTrainer"]):
        def get_dataloader(self, dataset_path: str, batch_size: int = 16, rank: int = 0, mode: str = "train") -> Any:
            dataset = self.build_dataset(dataset_path, mode, batch_size)
            return tsds.DataLoader(dataset, batch_size, collate_fn=dataset.collate_fn)

    trainer = WithOurLoader(overrides={**SETTINGS, **QUIET, "data": str(scenes), "epochs": 1, "project": str(tmp_path)})
    with pytest.raises(AttributeError, match="'DataLoader' object has no attribute 'reset'"):
        trainer.train()


# --- RF-DETR ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def roboflow(scenes: Path) -> Path:
    """The store as Roboflow exports data sets for COCO."""
    root = scenes.parent / "roboflow"
    store = tsds.open(scenes)
    for split, folder in (("train", "train"), ("val", "valid")):
        (root / folder).mkdir(parents=True)
        images: list[dict[str, Any]] = []
        annotations: list[dict[str, Any]] = []
        for row in range(len(store[split])):
            sample = store[split][row]
            Image.fromarray(sample["image"]).save(root / folder / f"{row:03d}.png")
            height, width, _ = sample["image"].shape
            images.append({"id": row, "file_name": f"{row:03d}.png", "height": height, "width": width})
            for label, (x1, y1, x2, y2) in objects_of(sample):
                box = {"bbox": [x1, y1, x2 - x1, y2 - y1], "area": (x2 - x1) * (y2 - y1), "iscrowd": 0}
                annotations.append({"id": len(annotations), "image_id": row, "category_id": label, **box})
        classes = store["train"].fields["objects"].classes
        categories = [{"id": i, "name": name, "supercategory": "none"} for i, name in enumerate(classes)]
        text = json.dumps({"images": images, "annotations": annotations, "categories": categories})
        (root / folder / "_annotations.coco.json").write_text(text)
    return root


def rfdetr_configs(data: Path, out: Path) -> tuple[Any, Any]:
    from rfdetr.config import RFDETRNanoConfig, TrainConfig

    sizes = {"pretrain_weights": None, "num_classes": 10, "resolution": 96, "positional_encoding_size": 6}
    settings = {"multi_scale": "off", "num_workers": 0, "batch_size": 4, "augmentation_backend": "torchvision"}
    return RFDETRNanoConfig(**sizes), TrainConfig(dataset_dir=str(data), output_dir=str(out), **settings)


@works("RF-DETR", "its data module: sample for sample what it gives of a COCO folder, augmented")
@pytest.mark.parametrize("split", ["_dataset_train", "_dataset_val"])
def test_rfdetr_samples(scenes: Path, roboflow: Path, tmp_path: Path, split: str) -> None:
    from rfdetr.training import RFDETRDataModule

    loaded = []
    for kind, data in ((of_example("rfdetr_train.py")["StoreData"], scenes), (RFDETRDataModule, roboflow)):
        module = kind(*rfdetr_configs(data, tmp_path))
        module.setup("fit")
        random.seed(0)
        torch.manual_seed(0)
        dataset = getattr(module, split)
        loaded.append([dataset[row] for row in range(len(dataset))])
    for (image, target), (expected, its_target) in zip(*loaded, strict=True):
        torch.testing.assert_close(image, expected)
        assert target.keys() == its_target.keys()
        for name, value in its_target.items():
            torch.testing.assert_close(target[name], value, rtol=0, atol=1e-5)


@works("RF-DETR", "its model and trainer, with its own COCO evaluation")
def test_rfdetr_trains(scenes: Path, example: Example) -> None:
    loss, _ = losses(example("clients/rfdetr_train.py", scenes, "--epochs", 1, "--size", 96))
    assert 0 < loss < 100


@limit("RF-DETR", "`RFDETR.train`, which takes a folder of COCO or YOLO alone: use its `build_trainer`")
def test_rfdetr_train_takes_folders(scenes: Path, tmp_path: Path) -> None:
    from rfdetr import RFDETRNano

    with pytest.raises(ValueError, match="Could not detect dataset format"):
        RFDETRNano(pretrain_weights=None, device="cpu").train(
            dataset_dir=str(scenes), output_dir=str(tmp_path), epochs=1, tensorboard=False
        )
