"""Objects that a crop hides too much of: what is kept, compared with areas that are computed as fractions."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

import tensorstore_ds as tsds
from stores import store_of
from tensorstore_ds.errors import OptionError
from tensorstore_ds.loading.augment.objects import place_objects
from tensorstore_ds.loading.augment.placements import Placements
from tensorstore_ds.loading.collate import COLLATES, Collate, PackedObjects, collate_objects

HEIGHT, WIDTH = 36, 48
SAMPLES, OBJECTS = 6, 8


@pytest.fixture(scope="module")
def made() -> list[dict[str, Any]]:
    """Images whose pixels are their own x and y; boxes of whole pixels, at most 30 high and wide; flags; polygons."""
    rng = np.random.default_rng(5)
    y, x = np.mgrid[:HEIGHT, :WIDTH].astype(np.uint8)
    samples = []
    for number in range(SAMPLES):
        count = (OBJECTS, 3, 0)[number % 3]
        corner = rng.integers(0, (WIDTH - 4, HEIGHT - 4), (count, 2))
        far = np.minimum(corner + rng.integers(1, 31, (count, 2)), (WIDTH, HEIGHT))
        boxes = np.concatenate([corner, far], axis=1).astype(np.float32)
        values = {
            "boxes": boxes,
            "labels": np.arange(count),
            "keypoints": rng.integers(0, (WIDTH, HEIGHT), (count, 2, 2)).astype(np.float32),
            "difficult": rng.integers(0, 2, count).astype(np.uint8),
            "polygons": [box[[0, 1, 2, 1, 2, 3]].reshape(3, 2) for box in boxes],
        }
        samples.append({"image": np.stack([x, y, 0 * x], axis=2), "objects": values})
    return samples


@pytest.fixture(scope="module")
def store(made: list[dict[str, Any]], tmp_path_factory: pytest.TempPathFactory) -> tsds.Store:
    path = tmp_path_factory.mktemp("visibility") / "s.tsds"
    return store_of(path, made, [f"c{i}" for i in range(OBJECTS)])


def seen_at_first_pixel(plan: Any, row: int, image: NDArray[np.uint8]) -> tuple[int, ...]:
    left, top = image[:2, 0, 0].tolist()
    return left, top, left + image.shape[2], top + image.shape[1]


def seen_by_params(plan: Any, row: int, image: NDArray[np.uint8]) -> tuple[int, ...]:
    params = plan.make_params(plan.keys(torch.tensor([row]), 0), (HEIGHT, WIDTH))
    top, left, height, width = params["boxes"][0].tolist()
    return left, top, left + width, top + height


def seen_in_the_middle(plan: Any, row: int, image: NDArray[np.uint8]) -> tuple[int, ...]:
    return 14, 8, 34, 28


Window = Callable[[Any, int, NDArray[np.uint8]], tuple[int, ...]]
#: A plan with a share, the part of the image that is seen, and whether it is mirrored.
PLANS: dict[str, tuple[Callable[[float], Any], Window, bool]] = {
    "random": (lambda share: tsds.RandomCrop((20, 26), min_visibility=share), seen_at_first_pixel, False),
    "resized": (
        lambda share: tsds.RandomResizedCrop((32, 24), (0.2, 0.6), min_visibility=share),
        seen_by_params,
        False,
    ),
    "composed": (
        lambda share: tsds.Compose(
            [
                tsds.Resize((2 * HEIGHT, 2 * WIDTH)),
                tsds.CenterCrop(40, min_visibility=share),
                tsds.RandomHorizontalFlip(1.0, flip_pairs=()),
            ]
        ),
        seen_in_the_middle,
        True,
    ),
}


def expected_objects(
    values: dict[str, Any], window: tuple[int, ...], size: tuple[int, int], share: float, *, mirrored: bool
) -> dict[str, NDArray[Any]]:
    """What is left of a sample's objects, one by one."""
    left, top, right, bottom = window
    kept, boxes = [], []
    for number, (x1, y1, x2, y2) in enumerate(values["boxes"].astype(int).tolist()):
        a, b, c, d = max(x1, left), max(y1, top), min(x2, right), min(y2, bottom)
        seen = max(0, c - a) * max(0, d - b)
        if seen and Fraction(seen, (x2 - x1) * (y2 - y1)) >= Fraction(str(share)):
            kept.append(number)
            boxes.append([a, b, c, d])
    zoom = np.array([size[1] / (right - left), size[0] / (bottom - top)])
    corners = (np.array(boxes, float).reshape(-1, 2, 2) - [left, top]) * zoom
    points = (values["keypoints"][kept] - [left, top]) * zoom
    if mirrored:
        corners[..., 0], points[..., 0] = size[1] - corners[:, ::-1, 0], size[1] - points[..., 0]
    return {
        "boxes": corners.reshape(-1, 4),
        "labels": np.array(kept, int),
        "keypoints": points,
        "difficult": values["difficult"][kept],
        "outline": np.array(kept, int),
    }


def by_sample(objects: Any, how: Collate) -> list[dict[str, NDArray[Any]]]:
    """Collated objects as a list of dicts of arrays."""
    if how == "list":
        return [{name: value.numpy() for name, value in each.items()} for each in objects]
    if how == "padded":
        mask = objects["mask"].numpy()
        return [{name: value.numpy()[i][row] for name, value in objects.items()} for i, row in enumerate(mask)]
    at = objects["offsets"].tolist()[1:-1]
    split = {name: np.split(value.numpy(), at) for name, value in objects.items() if name != "offsets"}
    return [{name: each[i] for name, each in split.items()} for i in range(SAMPLES)]


@pytest.mark.parametrize("share", [0.0, 0.25, 0.5, 0.9, 1.0])
@pytest.mark.parametrize("name", PLANS)
@pytest.mark.parametrize("way", ["decode", "batch"])
def test_objects_below_the_share_are_dropped(
    store: tsds.Store, made: list[dict[str, Any]], way: str, name: str, share: float
) -> None:
    make, window_of, mirrored = PLANS[name]
    plan = make(share)
    for how in COLLATES:
        dataset = tsds.StoreDataset(store.path, "train", outlines=True)
        if way == "decode":
            (batch,) = tsds.DataLoader(dataset, batch_size=SAMPLES, collate=how, decode=plan)
            objects = batch["objects"]
        else:
            (batch,) = tsds.DataLoader(dataset, batch_size=SAMPLES, collate="packed", batch_transform=plan)
            packed = dict(batch["objects"])
            objects = collate_objects(PackedObjects(packed.pop("offsets"), packed), how)
        images, found, dropped = batch["image"].numpy(), by_sample(objects, how), []
        for row, sample in enumerate(made):
            window = window_of(plan, row, images[row])
            size = (images.shape[2], images.shape[3])
            expected = expected_objects(sample["objects"], window, size, share, mirrored=mirrored)
            dropped.append(len(sample["objects"]["labels"]) - len(expected["labels"]))
            np.testing.assert_array_equal(found[row]["labels"], expected["labels"])
            np.testing.assert_array_equal(found[row]["difficult"], expected["difficult"])
            np.testing.assert_array_equal(found[row]["outline"].reshape(-1, 2)[:, 1], expected["outline"])
            np.testing.assert_allclose(found[row]["boxes"].reshape(-1, 4), expected["boxes"], atol=1e-3)
            np.testing.assert_allclose(found[row]["keypoints"].reshape(-1, 2, 2), expected["keypoints"], atol=1e-3)
        assert 0 < sum(dropped) < sum(len(sample["objects"]["labels"]) for sample in made)
        if way == "decode":
            assert batch["objects_dropped"].tolist() == dropped


def test_a_box_that_just_fits_is_fully_visible() -> None:
    """A box with the edges of the crop, for enlargements that float32 has to round; and one that is a pixel wider."""
    for part in range(1, 60):
        values = {"boxes": torch.tensor([[70.0, 70.0, 70 + part, 70 + part], [70.0, 70.0, 71 + part, 70 + part]])}
        values["labels"] = torch.tensor([7, 8])
        objects = PackedObjects(torch.tensor([0, 2]), values)
        middle = Placements.whole((140 + part, 140 + part)).crop((70, 70), (part, part), 1.0).resize((97, 97))
        assert place_objects(objects, middle)[0]["labels"].tolist() == [7]


def test_a_plan_keeps_its_largest_share(store: tsds.Store) -> None:
    """Two crops in a plan: the smaller share does not undo the larger one, in either order."""
    labels = []
    for first, second in ((0.75, 0.1), (0.1, 0.75), (0.75, 0.75), (0.1, 0.1)):
        steps = [tsds.CenterCrop(30, min_visibility=first), tsds.CenterCrop(20, min_visibility=second)]
        dataset = tsds.StoreDataset(store.path, "train", decode=tsds.Compose(steps))
        (batch,) = tsds.DataLoader(dataset, batch_size=SAMPLES, collate="packed")
        labels.append(batch["objects"]["labels"].tolist())
    assert labels[0] == labels[1] == labels[2] and len(labels[2]) < len(labels[3])


@pytest.mark.parametrize("share", [-0.1, 1.1, float("nan"), "0.5", None])
def test_what_is_no_share_is_refused(share: Any) -> None:
    for make in (tsds.RandomCrop, tsds.RandomResizedCrop, tsds.CenterCrop):
        with pytest.raises(OptionError, match=r"`min_visibility`: expected a share in \[0, 1\], found"):
            make(8, min_visibility=share)
