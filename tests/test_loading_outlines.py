"""Masks of objects as they are drawn in batches: compared with pycocotools, and with masks that were stored as such."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st
from numpy.typing import NDArray

import tensorstore_ds as tsds
from stores import store_of
from tensorstore_ds.errors import OptionError
from tensorstore_ds.imaging.outlines import runs_of_mask

coco: Any = pytest.importorskip("pycocotools.mask")
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of pycocotools

HEIGHT, WIDTH = 24, 32
CLASSES = ("cat", "dog")
NAN = [np.nan, np.nan]


def drawn(rings: list[NDArray[Any]], size: tuple[int, int]) -> NDArray[np.bool_]:
    """As COCO's annToMask does."""
    mask = coco.decode(coco.merge(coco.frPyObjects([ring.reshape(-1).tolist() for ring in rings], *size)))
    return np.asarray(mask, np.bool_)


def outlined(path: Path, samples: int = 4, seed: int = 0, **options: Any) -> tsds.Store:
    """Images of one gray, with an object in a corner that has no outline, one with two polygons, one with runs, and a
    crowd; the mask of the runs is stored as a field, too.
    """
    rng = np.random.default_rng(seed)
    made = []
    for _ in range(samples):
        runs = rng.random((HEIGHT, WIDTH)) < 0.4
        crowd = np.zeros((HEIGHT, WIDTH), np.bool_)
        crowd[:, 20:] = True
        rings = rng.uniform([0, 0], [WIDTH, HEIGHT], (2, 5, 2)).astype(np.float32)
        none = np.empty((0, 2))
        values = {
            "boxes": [[0, 0, 2, 2], *[[0, 0, WIDTH, HEIGHT]] * 3],
            "labels": [0, 1, 0, 1],
            "iscrowd": [0, 0, 0, 1],
            "polygons": [none, np.concatenate([rings[0], [NAN], rings[1]]), none, none],
            "rle": [*[np.empty(0, np.uint32)] * 2, runs_of_mask(runs), runs_of_mask(crowd)],
        }
        image = np.full((HEIGHT, WIDTH, 3), 7, np.uint8)
        made.append({"image": image, "objects": values, "mask": runs.astype(np.uint8)})
    return store_of(path, made, CLASSES, **options)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> tsds.Store:
    return outlined(tmp_path_factory.mktemp("outlines") / "s.tsds")


def batches(dataset: tsds.StoreDataset, size: tuple[int, int], **options: Any) -> Any:
    """For each sample its objects, their drawn masks, and the stored mask, which has moved with them."""
    for batch in tsds.DataLoader(dataset, batch_size=3, collate="packed", **options):
        assert tuple(batch["image"].shape[-2:]) == size
        values = {name: value for name, value in batch["objects"].items() if name != "offsets"}
        masks = tsds.loading.draw_instance_masks(dataset.split, batch["objects"], size)
        yield from zip(
            tsds.loading.PackedObjects(batch["objects"]["offsets"], values), masks, batch["mask"], strict=True
        )


def test_as_pycocotools_draws_them(store: tsds.Store) -> None:
    dataset = tsds.StoreDataset(store.path, "train", outlines=True)
    row = 0
    for row, (_, masks, stored) in enumerate(batches(dataset, (HEIGHT, WIDTH))):
        assert (masks.dtype, tuple(masks.shape)) == (torch.bool, (4, HEIGHT, WIDTH))
        corners = store["train"]["objects"][row]["polygons"][1]
        np.testing.assert_array_equal(masks[1], drawn([corners[:5], corners[6:]], (HEIGHT, WIDTH)))
        np.testing.assert_array_equal(masks[2], stored)
        np.testing.assert_array_equal(
            masks.numpy(), tsds.loading.draw_masks(store["train"]["objects"][row], (HEIGHT, WIDTH))
        )
        assert not masks[0].any()
    assert row == 3


STEPS: dict[str, tuple[tuple[int, int], Any]] = {
    "flip": ((HEIGHT, WIDTH), lambda: [tsds.RandomHorizontalFlip(0.5)]),
    "crop": ((17, 23), lambda: [tsds.RandomCrop((17, 23), padding=3), tsds.RandomHorizontalFlip(0.5)]),
    "center": ((11, 40), lambda: [tsds.CenterCrop((11, 40))]),
    "double": ((20, 20), lambda: [tsds.Resize((2 * HEIGHT, 2 * WIDTH)), tsds.RandomCrop(20)]),
    "part": ((16, 16), lambda: [tsds.RandomResizedCrop(16, scale=(0.2, 0.6)), tsds.RandomHorizontalFlip(0.5)]),
    "cut": ((20, 22), lambda: [tsds.CenterCrop((10, 12)), tsds.transforms.Pad(5)]),
    "letterbox": ((40, 40), lambda: [tsds.transforms.Letterbox((40, 40))]),
}


@pytest.mark.parametrize("crop", [None, (11, 20)])
def test_each_object_of_a_mosaic_is_of_its_own_image(store: tsds.Store, crop: tuple[int, int] | None) -> None:
    """And is seen in the part of the image that its tile shows."""
    plan = tsds.CenterCrop(crop) if crop else None
    dataset = tsds.StoreDataset(store.path, "train", outlines=True, decode=plan)
    height, width = crop or (HEIGHT, WIDTH)
    mosaic = tsds.transforms.Mosaic((2 * height, 2 * width))
    (batch,) = tsds.DataLoader(dataset, batch_size=4, collate="packed", batch_transform=mosaic)
    size = tuple(batch["image"].shape[-2:])
    drawn = tsds.loading.draw_instance_masks(dataset.split, batch["objects"], size)
    outlines = batch["objects"]["outline"].split([len(masks) for masks in drawn])
    for masks, outline, moved in zip(drawn, outlines, batch["mask"], strict=True):
        assert len(outline[:, 0].unique()) == 4
        np.testing.assert_array_equal(masks[outline[:, 1] == 2].any(0), moved == 1)


@pytest.mark.parametrize("how", ["batch", "decode"])
@pytest.mark.parametrize("name", STEPS)
def test_they_are_where_the_image_is(store: tsds.Store, how: str, name: str) -> None:
    """Runs are where the same mask is that was stored as a field and moved by the transforms themselves."""
    size, steps = STEPS[name]
    plan = tsds.Compose(steps())
    dataset = tsds.StoreDataset(store.path, "train", outlines=True, decode=plan if how == "decode" else None)
    left = []
    for objects, masks, moved in batches(dataset, size, batch_transform=plan if how == "batch" else None):
        left.append(objects["outline"][:, 1].tolist())
        np.testing.assert_array_equal(masks[left[-1].index(2)], moved == 1)
    assert len(left) == 4 and ([1, 2, 3] in left) == (name not in ("flip", "letterbox"))


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2**32 - 1))
def test_polygons_are_drawn_where_their_corners_are(store: tsds.Store, seed: int) -> None:
    """Not drawn and then resized: they are as sharp as the image that they are drawn for."""
    transform = tsds.Compose([tsds.RandomResizedCrop((64, 80), seed=seed), tsds.RandomHorizontalFlip(0.5, seed=seed)])
    dataset = tsds.StoreDataset(store.path, "train", outlines=True)
    for objects, masks, _ in batches(dataset, (64, 80), batch_transform=transform):
        place = objects["outline"][:, 1].tolist().index(1)
        (x1, y1), (x2, y2) = objects["frame"][place, :2].double().numpy()
        row = int(objects["outline"][0, 0])
        stored = store["train"]["objects"][row]["polygons"][1].astype(np.float64)
        corners = stored * [(x2 - x1) / WIDTH, (y2 - y1) / HEIGHT] + [x1, y1]
        np.testing.assert_array_equal(masks[place], drawn([corners[:5], corners[6:]], (64, 80)))
        box = [max(0, min(x1, x2)), max(0, y1), min(80, max(x1, x2)), min(64, y2)]  # that of the whole image
        np.testing.assert_allclose(objects["boxes"][place], box, rtol=0, atol=1e-3)


def test_classes_of_pixels(tmp_path: Path) -> None:
    """Worked out by hand: the smaller object is seen, a crowd only where nothing else is."""

    def square(x1: int, y1: int, x2: int, y2: int) -> NDArray[np.float64]:
        return np.array([[x1, y1], [x2, y1], [x2, y2], [x1, y2]], np.float64)

    boxes = [[1, 1, 3, 3], [0, 0, 4, 4], [2, 0, 6, 2]]
    values = {"boxes": boxes, "labels": [1, 0, 1], "iscrowd": [0, 0, 1], "polygons": [square(*box) for box in boxes]}
    store = store_of(tmp_path / "s.tsds", [{"image": np.zeros((4, 6, 3), np.uint8), "objects": values}], CLASSES)
    dataset = tsds.StoreDataset(store.path, "train", outlines=True)
    objects = [dataset[0]["objects"]]
    found = tsds.loading.draw_class_masks(dataset.split, objects, (4, 6))
    expected = [[1, 1, 1, 1, 255, 255], [1, 2, 2, 1, 255, 255], [1, 2, 2, 1, 0, 0], [1, 1, 1, 1, 0, 0]]
    assert found.dtype == torch.int64 and found.tolist() == [expected]
    other = tsds.loading.draw_class_masks(dataset.split, objects, (4, 6), background=9, first=0, ignored=-100)
    names = {0: 9, 1: 0, 2: 1, 255: -100}
    assert other.tolist() == [[[names[each] for each in line] for line in expected]]
    nothing = [{name: value[:0] for name, value in objects[0].items()}]
    assert tsds.loading.draw_class_masks(dataset.split, nothing, (4, 6)).unique().tolist() == [0]
    assert [tuple(each.shape) for each in tsds.loading.draw_instance_masks(dataset.split, nothing, (4, 6))] == [
        (0, 4, 6)
    ]
    assert tuple(tsds.loading.draw_class_masks(dataset.split, [], (4, 6)).shape) == (0, 4, 6)
    packed = next(iter(tsds.DataLoader(dataset, batch_size=1, collate="packed")))["objects"]
    values = {name: value for name, value in packed.items() if name != "offsets"}
    for same in (packed, tsds.loading.PackedObjects(packed["offsets"], values)):
        assert torch.equal(tsds.loading.draw_class_masks(dataset.split, same, (4, 6)), found)


def test_any_number_of_workers_and_subsets(store: tsds.Store) -> None:
    """Rows are those of the split, whatever the order and whoever makes the batch."""
    dataset = tsds.StoreDataset(store.path, "train", outlines=True).subset([3, 1])
    for workers in (0, 1):
        (batch,) = tsds.DataLoader(dataset, batch_size=2, collate="packed", num_workers=workers)
        assert batch["objects"]["outline"].tolist() == [[row, i] for row in (3, 1) for i in range(4)]
        assert batch["objects"]["frame"][5].tolist() == [[0, 0], [WIDTH, HEIGHT]] * 2


def test_what_has_no_outlines(store: tsds.Store, tmp_path: Path) -> None:
    plain = tsds.StoreDataset(store.path, "train")
    assert not {"outline", "frame"} & plain[0]["objects"].keys()
    with pytest.raises(
        OptionError, match=r"`outlines`: expected objects of a StoreDataset\(outlines=True\), found boxes"
    ):
        tsds.loading.draw_class_masks(plain.split, [plain[0]["objects"]], (4, 4))
    wrong: Any = tsds.StoreDataset(store.path, "train", outlines=True)
    with pytest.raises(OptionError, match=r"`split`: expected the data set's split, .* found a StoreDataset"):
        tsds.loading.draw_class_masks(wrong, [wrong[0]["objects"]], (4, 4))
    with pytest.raises(OptionError, match="`objects`: expected objects of a batch"):
        tsds.loading.draw_class_masks(plain.split, plain[0]["objects"], (4, 4))
    boxes = {"image": np.zeros((4, 4, 3), np.uint8), "objects": {"boxes": [[0, 0, 1, 1]], "labels": [0]}}
    other = store_of(tmp_path / "b.tsds", [boxes], CLASSES)
    with pytest.raises(OptionError, match="`outlines`: expected images, and objects with polygons or rle"):
        tsds.StoreDataset(other.path, "train", outlines=True)
    with pytest.raises(OptionError, match="no `transform` of samples"):
        tsds.StoreDataset(store.path, "train", outlines=True, transform=dict)
    dataset = tsds.StoreDataset(store.path, "train", outlines=True)
    with pytest.raises(OptionError, match="no `transform` of samples"):
        dataset.transform = dict
    dataset.transform = None
    with pytest.raises(OptionError, match="`outlines`: expected data sets without"):
        tsds.MixedDataset([dataset, plain])
    with pytest.raises(OptionError, match="drawn on the CPU"):
        tsds.DataLoader(dataset, batch_size=1, device="cpu", residency="device")
