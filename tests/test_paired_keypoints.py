"""Keypoints in torchvision's form: left and right swapped by its flips, and as its Keypoint R-CNN takes them."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torchvision
from torchvision import tv_tensors
from torchvision.transforms import v2

import tensorstore_ds as tsds
from stores import store_of
from tensorstore_ds.format.schema import Keypoints
from tensorstore_ds.loading.paired_keypoints import CAN_SWAP
from tensorstore_ds.sources.names import flip_pairs

NAMES = ("left_eye", "nose", "right_eye")
needs_swap = pytest.mark.skipif(not CAN_SWAP, reason="this torchvision loses the class of a tv_tensor")


def store(path: Path, names: tuple[str, ...] = NAMES) -> Path:
    """Images 20 x 30 with a white pixel at the left eye; the third object lacks its nose."""
    rng = np.random.default_rng(0)
    samples = []
    for _ in range(3):
        pixels = np.zeros((20, 30, 3), np.uint8)
        points = rng.integers(2, 18, (2, len(names), 2)).astype(float)
        x, y = points[0, 0].astype(int)
        pixels[y, x] = 255
        points[1, 1] = np.nan
        visibility = np.array([[2, 1, 1], [1, 0, 2]], np.uint8)[:, : len(names)]
        boxes = [[1, 1, 19, 19], [2, 2, 20, 19]]
        flags = {"difficult": np.array([0, 1], np.uint8)}
        values = {"boxes": boxes, "labels": [0, 0], "keypoints": points, "visibility": visibility, **flags}
        samples.append({"image": pixels, **values})
    store_of(path, samples, ["face"], keypoints=Keypoints(names, flip_pairs(names)))
    return path


STEPS: dict[str, Any] = {
    "flip": (v2.RandomHorizontalFlip(1.0), True),
    "no flip": (v2.RandomHorizontalFlip(0.0), False),
    "upside down": (v2.RandomVerticalFlip(1.0), True),
    "twice": (v2.Compose([v2.RandomHorizontalFlip(1.0), v2.Resize((40, 60)), v2.RandomVerticalFlip(1.0)]), False),
    "after other steps": (
        v2.Compose([v2.RandomPhotometricDistort(p=0), v2.Pad(3), v2.Resize((52, 72)), v2.RandomHorizontalFlip(1.0)]),
        True,
    ),
    "inside others": (v2.RandomApply([v2.RandomChoice([v2.RandomHorizontalFlip(1.0)])], p=1.0), True),
    "in a function": (lambda *sample: v2.Compose([v2.RandomHorizontalFlip(1.0), v2.ToPureTensor()])(*sample), True),
}


@needs_swap
@pytest.mark.parametrize("name", STEPS)
@pytest.mark.parametrize("return_as", ["dict", "tuple", "torchvision"])
def test_flips_of_torchvision_swap_left_and_right(tmp_path: Path, name: str, return_as: Any) -> None:
    """Against the same step on tensors without pairs, whose keypoints are then swapped by hand."""
    step, is_mirrored = STEPS[name]
    path = store(tmp_path / "s.tsds")
    dataset = tsds.StoreDataset(path, return_as=return_as, transform=step)
    split = tsds.open(path)["train"]
    assert split.fields["objects"].flip_pairs == ((0, 2),)  # type: ignore[attr-defined]
    order = [2, 1, 0] if is_mirrored else [0, 1, 2]
    for row in range(3):
        sample = dataset[row]
        target = sample["objects"] if return_as == "dict" else sample[1]
        values = split["objects"][row]
        pixels = tv_tensors.Image(torch.from_numpy(split["image"][row].transpose(2, 0, 1).copy()))
        points = tv_tensors.KeyPoints(torch.from_numpy(values["keypoints"].copy()), canvas_size=(20, 30))
        expected = step(pixels, points)[1].as_subclass(torch.Tensor)[:, order]
        found = target["keypoints"]
        if return_as == "torchvision":
            assert found.shape == (2, 3, 3) and found.dtype == torch.float32
            is_there = ~expected.isnan().any(2)
            assert torch.equal(found[:, :, 2], is_there.float())
            assert (found[~is_there] == 0).all()
            torch.testing.assert_close(found[:, :, :2][is_there], expected[is_there])
        else:
            assert type(found) in (tv_tensors.KeyPoints, torch.Tensor)
            torch.testing.assert_close(found.as_subclass(torch.Tensor), expected, equal_nan=True)
        assert type(target["visibility"]) is torch.Tensor
        assert target["visibility"].tolist() == values["visibility"][:, order].tolist()


@needs_swap
def test_unknown_pairs_are_said_once_there_is_a_flip(tmp_path: Path) -> None:
    path = store(tmp_path / "s.tsds", ("a", "b", "c"))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        tsds.StoreDataset(path, transform=v2.RandomHorizontalFlip(0.0))[0]
    with pytest.warns(UserWarning, match="mirrors 3 keypoints whose pairs of left and right are unknown"):
        tsds.StoreDataset(path, transform=v2.RandomHorizontalFlip(1.0))[0]


@needs_swap
def test_swapped_keypoints_come_from_workers_and_as_batches(tmp_path: Path) -> None:
    path = store(tmp_path / "s.tsds")
    dataset = tsds.StoreDataset(path, return_as="torchvision", transform=v2.RandomHorizontalFlip(1.0))
    for loader in (tsds.DataLoader(dataset, 3), tsds.DataLoader(dataset, 3, num_workers=1)):
        ((_, targets),) = list(loader)
        for row, target in enumerate(targets):
            assert torch.equal(target["keypoints"], dataset[row][1]["keypoints"])


@pytest.mark.slow
def test_keypoint_rcnn_learns_from_samples_and_batches(tmp_path: Path) -> None:
    detection = torchvision.models.detection
    dataset = tsds.StoreDataset(store(tmp_path / "s.tsds"), return_as="torchvision")
    ((images, targets),) = list(tsds.DataLoader(dataset, 3))
    for row, target in enumerate(targets):
        assert torch.equal(target["keypoints"], dataset[row][1]["keypoints"])
    assert targets[0]["keypoints"][1, 1].tolist() == [0, 0, 0]
    torch.manual_seed(0)
    model = detection.keypointrcnn_resnet50_fpn(
        weights=None, weights_backbone=None, num_classes=2, num_keypoints=3, min_size=64, max_size=96
    )
    losses = model([*images][:2], [dict(each) for each in targets[:2]])
    assert "loss_keypoint" in losses and all(torch.isfinite(loss) for loss in losses.values())


def test_ignored_objects_are_crowds_in_the_form_of_torchvision(tmp_path: Path) -> None:
    dataset = tsds.StoreDataset(store(tmp_path / "s.tsds"), return_as="torchvision")
    ((_, targets),) = list(tsds.DataLoader(dataset, 3))
    for target in (dataset[0][1], targets[0]):
        assert target["iscrowd"].dtype == torch.int64 and target["iscrowd"].tolist() == [0, 1]
        assert target["labels"].tolist() == [1, 1]
