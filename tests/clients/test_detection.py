"""Frameworks that detect objects: the images and boxes are those of the store, and the losses those of the files."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import albumentations
import numpy as np
import pytest
import torch
from torchvision import datasets

import tensorstore_ds as tsds
from clients.conftest import Example, of_example

works, limit = pytest.mark.works, pytest.mark.limit


def losses(line: str) -> tuple[float, float]:
    """Loss and mAP that an example printed."""
    found = re.search(r"loss (\d+\.\d+), mAP (\d\.\d+)", line)
    assert found, line
    return float(found[1]), float(found[2])


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


@works("torchvision's detection", "`train_one_epoch` of torchvision's references has the same losses as with the files")
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


@works("torchvision's detection", "COCO evaluation with pycocotools: ground truth scores mAP 1.0")
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
