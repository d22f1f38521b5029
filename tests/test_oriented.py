"""Oriented boxes, compared with complex numbers, searched angles, torchvision's rotated boxes and drawn rectangles."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image, ImageDraw
from torchvision import tv_tensors
from torchvision.transforms import v2
from torchvision.transforms.v2.functional import convert_bounding_box_format

import tensorstore_ds as tsds
from oriented_boxes import area_at, same, smallest_area, turned
from tensorstore_ds.imaging.oriented import corners_to_oriented, oriented_to_corners, smallest_rectangle
from tensorstore_ds.loading.augment.objects import mirror_objects

ANGLES = np.linspace(-math.pi, math.pi, 49)


def random_boxes(count: int, seed: int = 0) -> np.ndarray:
    """(M, 5) boxes of an image of 100 x 120 pixels, turned by any angle."""
    rng = np.random.default_rng(seed)
    low, high = (10, 10, 4, 4, -math.pi), (110, 90, 40, 40, math.pi)
    return rng.uniform(low, high, (count, 5))


def test_corners_are_those_of_a_rotation():
    for box in random_boxes(50):
        np.testing.assert_allclose(oriented_to_corners(box[None])[0], turned(box), atol=1e-12)


@pytest.mark.parametrize("angle", ANGLES)
@pytest.mark.parametrize("sides", [(30, 4), (4, 30), (7, 7)])
def test_a_rectangle_is_found_again(angle: float, sides: tuple[float, float]):
    box = np.array([[50, 40, *sides, angle]])
    same(corners_to_oriented(oriented_to_corners(box)), box, 1e-9)
    single = torch.from_numpy(box).float()
    same(corners_to_oriented(oriented_to_corners(single)).numpy(), box, 1e-4)


def test_torchvisions_corners_are_equal():
    boxes = torch.from_numpy(random_boxes(64)).float()
    theirs = boxes.clone()
    theirs[:, 4] = -torch.rad2deg(theirs[:, 4])
    corners = convert_bounding_box_format(theirs, old_format="CXCYWHR", new_format="XYXYXYXY").view(-1, 4, 2)
    torch.testing.assert_close(oriented_to_corners(boxes), corners, atol=1e-4, rtol=0)


def test_of_a_sheared_rectangle_it_is_the_smallest_along_an_edge():
    rng = np.random.default_rng(1)
    for box in random_boxes(40, seed=2):
        corners = turned(box) @ (np.eye(2) + rng.uniform(-0.6, 0.6, (2, 2)))
        found = corners_to_oriented(corners[None])[0]
        assert found[2] * found[3] == pytest.approx(smallest_area(corners), rel=2e-4)
        assert _holds(found, corners)
        along = np.array([math.cos(found[4]), math.sin(found[4])])
        assert along @ (corners[1] - corners[0]) >= 0


def _holds(box: np.ndarray, points: np.ndarray) -> bool:
    back = (points[:, 0] - box[0] + 1j * (points[:, 1] - box[1])) * np.exp(-1j * box[4])
    return bool((np.abs(back.real) <= box[2] / 2 + 1e-6).all() and (np.abs(back.imag) <= box[3] / 2 + 1e-6).all())


def test_the_smallest_rectangle_around_points_is_found_by_no_searched_angle():
    rng = np.random.default_rng(3)
    for _ in range(60):
        points = rng.uniform(-20, 90, (rng.integers(3, 14), 2))
        corners = smallest_rectangle(points)
        box = corners_to_oriented(corners[None])[0]
        assert _holds(box, points)
        assert box[2] >= box[3] - 1e-9
        searched = min(area_at(points, angle) for angle in np.linspace(0, math.pi / 2, 1000))
        assert box[2] * box[3] <= searched + 1e-6


@pytest.mark.parametrize("points", [np.empty((0, 2)), np.full((3, 2), np.nan)])
def test_no_points_have_no_rectangle(points: np.ndarray):
    assert np.isnan(smallest_rectangle(points)).all()


def test_points_on_a_line_have_one_without_height():
    box = corners_to_oriented(smallest_rectangle(np.array([[0, 0], [3, 4], [6, 8.0]]))[None])[0]
    np.testing.assert_allclose(box[:4], [3, 4, 10, 0], atol=1e-9)


def test_absent_boxes_stay_absent():
    boxes = np.stack([np.full(5, np.nan), random_boxes(1)[0]])
    found = corners_to_oriented(oriented_to_corners(boxes))
    assert np.isnan(found[0]).all()
    same(found[1:], boxes[1:], 1e-9)


# --- through a store ------------------------------------------------------------------------------------------------


def scene(box: np.ndarray, size: tuple[int, int] = (100, 120)) -> Image.Image:
    """A white rectangle on black."""
    picture = Image.new("RGB", (size[1], size[0]))
    ImageDraw.Draw(picture).polygon([(float(x), float(y)) for x, y in turned(box)], fill="white")
    return picture


def store_of(path: Path, boxes: np.ndarray, **options: object) -> tsds.Store:
    """One image for each box."""
    with tsds.Writer(path, classes=("ship",), **options) as writer:
        for i, box in enumerate(boxes):
            objects = {"oriented_boxes": box[None].astype(np.float32), "labels": np.array([0])}
            writer.append("train", {"image": scene(box), "objects": objects}, key=f"{i:03}")
    return tsds.open(path)


def white_share(image: torch.Tensor, box: np.ndarray) -> tuple[float, float]:
    """The share of a box's pixels that are white, and the share of the white pixels that are in the box."""
    mask = Image.new("1", (image.shape[2], image.shape[1]))
    ImageDraw.Draw(mask).polygon([(float(x), float(y)) for x, y in turned(box)], fill=1)
    inside, white = np.asarray(mask), image[0].float().numpy() > (127 if image.dtype == torch.uint8 else 0.5)
    return float((inside & white).sum() / inside.sum()), float((inside & white).sum() / white.sum())


TRANSFORMS = {
    "flip": lambda: [tsds.RandomHorizontalFlip(p=1.0)],
    "affine": lambda: [tsds.transforms.RandomAffine(degrees=40, translate=(0.05, 0.05), scale=(0.8, 1.1), seed=1)],
    "both": lambda: [tsds.RandomHorizontalFlip(p=0.5), tsds.transforms.RandomAffine(degrees=180, seed=3)],
    "resize": lambda: [tsds.Resize((50, 60))],
    "letterbox": lambda: [tsds.transforms.Letterbox((80, 80))],
}


@pytest.mark.parametrize("name", TRANSFORMS)
def test_a_moved_box_is_where_its_pixels_are(tmp_path: Path, name: str):
    boxes = random_boxes(16, seed=5) * (1, 1, 0.6, 0.6, 1) + (0, 0, 6, 6, 0)
    store_of(tmp_path / "s.tsds", boxes)
    dataset = tsds.StoreDataset(tmp_path / "s.tsds", "train")
    transform = tsds.Compose(TRANSFORMS[name]())
    batch = next(iter(tsds.DataLoader(dataset, batch_size=16, collate="packed", batch_transform=transform)))
    objects, found = batch["objects"], 0
    rows = np.repeat(np.arange(16), np.diff(objects["offsets"].numpy()))
    for row, box, hull in zip(rows, objects["oriented_boxes"].numpy(), objects["boxes"].numpy(), strict=True):
        image = batch["image"][row]
        corners = turned(box)
        own = turned(boxes[row])
        if (
            (corners < 1).any()
            or (corners > np.array(image.shape[:0:-1]) - 1).any()
            or (own != own.clip(0, (120, 100))).any()
        ):
            continue  # only a part of it is seen
        found += 1
        full, all_of_it = white_share(image, box)
        assert min(full, all_of_it) > 0.75, box
        np.testing.assert_allclose(hull, [*corners.min(0), *corners.max(0)], atol=0.05)
    assert found >= 5


def test_mirroring_twice_changes_nothing():
    boxes = torch.from_numpy(np.concatenate([random_boxes(20), [[5, 5, 2, 1, angle] for angle in ANGLES]])).float()
    objects = tsds.loading.PackedObjects(torch.tensor([0, len(boxes)]), {"oriented_boxes": boxes})
    once = mirror_objects(objects, torch.tensor([True]), torch.tensor([120.0]), None)
    mirrored = oriented_to_corners(boxes)[:, [3, 2, 1, 0]]  # the corners go around clockwise again
    mirrored = torch.stack([120 - mirrored[..., 0], mirrored[..., 1]], 2)
    torch.testing.assert_close(oriented_to_corners(once.values["oriented_boxes"]), mirrored, atol=1e-3, rtol=0)
    assert once.values["oriented_boxes"][:, 4].abs().max() <= np.float32(math.pi)
    twice = mirror_objects(once, torch.tensor([True]), torch.tensor([120.0]), None)
    same(twice.values["oriented_boxes"].numpy(), boxes.numpy(), 1e-4)


def test_return_as_gives_torchvisions_rotated_boxes(tmp_path: Path):
    boxes = random_boxes(3)
    store_of(tmp_path / "s.tsds", boxes)
    for i, box in enumerate(boxes):
        _, target = tsds.StoreDataset(tmp_path / "s.tsds", "train", return_as="torchvision")[i]
        rotated = target["oriented_boxes"]
        assert isinstance(rotated, tv_tensors.BoundingBoxes)
        assert rotated.format.value == "CXCYWHR"
        corners = convert_bounding_box_format(rotated, new_format="XYXYXYXY").view(4, 2)
        np.testing.assert_allclose(np.asarray(corners), turned(box), atol=1e-3)


def test_batches_have_the_angles_of_samples_with_and_without_a_transform(tmp_path: Path):
    boxes = random_boxes(4)
    store_of(tmp_path / "s.tsds", boxes)
    degrees = boxes * [1, 1, 1, 1, -180 / math.pi]
    for transform in (None, v2.Identity(), v2.RandomHorizontalFlip(0)):
        dataset = tsds.StoreDataset(tmp_path / "s.tsds", return_as="torchvision", transform=transform)
        _, targets = next(iter(tsds.DataLoader(dataset, 4)))
        same(torch.cat([each["oriented_boxes"] for each in targets]).numpy(), degrees, 1e-3)
        dataset = tsds.StoreDataset(tmp_path / "s.tsds", return_as="tuple", transform=transform)
        _, target = next(iter(tsds.DataLoader(dataset, 4, collate="packed")))
        same(target["oriented_boxes"].numpy(), boxes, 1e-4)
        same(torch.cat([dataset[i][1]["oriented_boxes"] for i in range(4)]).numpy(), boxes, 1e-4)
    dataset = tsds.StoreDataset(tmp_path / "s.tsds", transform=v2.RandomHorizontalFlip(1))
    moved = next(iter(tsds.DataLoader(dataset, 4, collate="packed")))
    for found, expected in zip(oriented_to_corners(moved["objects"]["oriented_boxes"]), boxes, strict=True):
        mirrored = [[120 - x, y] for x, y in turned(expected)]
        assert np.abs(np.sort(found, axis=0) - np.sort(mirrored, axis=0)).max() < 1e-2


@pytest.mark.parametrize("collate", ["list", "padded", "packed"])
def test_every_collate_has_them(tmp_path: Path, collate: str):
    boxes = random_boxes(4)
    store_of(tmp_path / "s.tsds", boxes)
    batch = next(iter(tsds.DataLoader(tsds.StoreDataset(tmp_path / "s.tsds", "train"), batch_size=4, collate=collate)))
    objects = batch["objects"]
    found = {
        "list": lambda: torch.cat([each["oriented_boxes"] for each in objects]),
        "padded": lambda: objects["oriented_boxes"][objects["mask"]],
        "packed": lambda: objects["oriented_boxes"],
    }[collate]()
    same(found.numpy(), boxes, 1e-4)
