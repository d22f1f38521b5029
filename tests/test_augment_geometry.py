"""Crops and mirroring, checked against torchvision sample by sample."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import example, given, strategies as st
from torch import Tensor
from torchvision.transforms import v2
from torchvision.transforms.v2 import functional
from torchvision.tv_tensors import BoundingBoxes, KeyPoints

from image_batches import dtypes, formats, images, objects, params_of, quick, same_format, seeds, sizes
from tensorstore_ds.annex.augment.affine import RandomAffine, RandomPerspective
from tensorstore_ds.loading.augment import pixels as augment_pixels
from tensorstore_ds.loading.augment.base import BatchTransform
from tensorstore_ds.loading.augment.fitting import CenterCrop, Letterbox, Resize
from tensorstore_ds.loading.augment.geometry import RandomCrop, RandomHorizontalFlip, RandomResizedCrop
from tensorstore_ds.loading.collate import PackedObjects

#: torchvision 0.23 moves keypoints outside of an image onto its edge, and torch 2.8 rounds one row differently.
IS_OLD = bool((functional.crop(KeyPoints(torch.tensor([[-9.0, 0.0]]), canvas_size=(4, 4)), 0, 0, 4, 4) >= 0).all())


def check_objects(found: PackedObjects, expected: list[tuple[Tensor, Tensor, Tensor]], size: tuple[int, int]) -> None:
    """Compare with torchvision's boxes, keypoints and labels of each sample, boxes not yet clipped or dropped."""
    assert len(found) == len(expected)
    for got, (boxes, points, labels) in zip(found, expected, strict=True):
        clipped = functional.clamp_bounding_boxes(BoundingBoxes(boxes, format="XYXY", canvas_size=size)).as_subclass(
            Tensor
        )
        area = (clipped[:, 2:] - clipped[:, :2]).min(1).values
        kept = torch.isin(labels, got["labels"])
        assert (kept == (area > 0))[area.abs() > 1e-3].all(), "an object is dropped if it has no area, and only then"
        assert torch.equal(got["labels"], labels[kept])
        torch.testing.assert_close(got["boxes"], clipped[kept], atol=1e-3, rtol=0)
        if not IS_OLD:
            torch.testing.assert_close(got["keypoints"], points[kept], atol=2e-3, rtol=1e-5, equal_nan=True)


# --- crops ------------------------------------------------------------------------------------------------------


@quick
@given(seeds, sizes, st.data(), dtypes, formats, st.sampled_from(["constant", "edge", "reflect", "symmetric"]))
def test_random_crop_equals_torchvision(
    seed: int, size: tuple[int, int], data: st.DataObject, dtype: torch.dtype, memory: Any, mode: Any
) -> None:
    left, top, right, bottom = padding = data.draw(st.tuples(*[st.integers(0, min(size) - 1)] * 4))
    height = data.draw(st.integers(1, size[0] + top + bottom))
    width = data.draw(st.integers(1, size[1] + left + right))
    fill = 3 if dtype == torch.uint8 else 0.25
    crop = RandomCrop((height, width), padding, fill=fill, padding_mode=mode, seed=seed)
    batch = {"image": images(seed, size, dtype, memory), "objects": objects(seed, size)}
    rows, params = params_of(crop, batch)
    found = crop(batch, rows, 0)
    expected = []
    for i, (y, x) in enumerate(zip(params["top"].tolist(), params["left"].tolist(), strict=True)):
        padded = functional.pad(batch["image"][i], [left, top, right, bottom], fill=fill, padding_mode=mode)
        assert torch.equal(found["image"][i], functional.crop(padded, y, x, height, width))
        before = batch["objects"][i]
        canvas = (size[0] + top + bottom, size[1] + left + right)
        boxes = before["boxes"] + torch.tensor([left, top, left, top])
        boxes = functional.crop(
            BoundingBoxes(boxes, format="XYXY", canvas_size=canvas, clamping_mode=None), y, x, height, width
        )
        points = KeyPoints(before["keypoints"] + torch.tensor([left, top]), canvas_size=canvas)
        points = functional.crop(points, y, x, height, width)
        expected.append((boxes.as_subclass(Tensor), points.as_subclass(Tensor), before["labels"]))
    assert found["image"].dtype == dtype and same_format(found["image"], batch["image"])
    check_objects(found["objects"], expected, (height, width))


@quick
@given(seeds, sizes, sizes, dtypes, formats)
def test_random_resized_crop_equals_torchvision(
    seed: int, size: tuple[int, int], target: tuple[int, int], dtype: torch.dtype, memory: Any
) -> None:
    crop = RandomResizedCrop(target, seed=seed)
    batch = {"image": images(seed, size, dtype, memory), "objects": objects(seed, size)}
    rows, params = params_of(crop, batch)
    found = crop(batch, rows, 0)
    # What runs on a GPU, here in the same arithmetic.
    batched = augment_pixels.resized_crop_batched(batch["image"], params["boxes"], target)
    expected = []
    for i, (y, x, height, width) in enumerate(params["boxes"].tolist()):
        image = batch["image"][i]
        if target[1] > 1:
            image = functional.resized_crop(image, y, x, height, width, list(target))
            assert IS_OLD or torch.equal(found["image"][i], image)
        else:  # torch's own result has every row like the first: turned over, it is right
            image = functional.resized_crop(image.mT, x, y, width, height, [1, target[0]]).mT
        for result in (found["image"][i], batched[i]):
            torch.testing.assert_close(result, image, rtol=0, atol=1 if dtype == torch.uint8 else 1e-5)
        before = batch["objects"][i]
        boxes = BoundingBoxes(before["boxes"], format="XYXY", canvas_size=size, clamping_mode=None)
        boxes = functional.resized_crop(boxes, y, x, height, width, list(target))
        points = functional.resized_crop(
            KeyPoints(before["keypoints"], canvas_size=size), y, x, height, width, list(target)
        )
        expected.append((boxes.as_subclass(Tensor), points.as_subclass(Tensor), before["labels"]))
    for result in (found["image"], batched):
        assert result.dtype == dtype and same_format(result, batch["image"])
    check_objects(found["objects"], expected, target)


@quick
@given(seeds, sizes, st.floats(0.01, 1), st.floats(0.2, 5))
@example(0, (20, 4), 1.0, 3.0)  # nothing that large fits: the middle
@example(0, (4, 20), 1.0, 0.4)
def test_resized_crops_lie_inside_with_the_area_asked_for(
    seed: int, size: tuple[int, int], scale: float, ratio: float
) -> None:
    crop = RandomResizedCrop(4, scale=(scale, scale), ratio=(ratio, ratio), seed=seed)
    boxes = crop.make_params(crop.keys(torch.arange(50), 0), size)["boxes"]
    top, left, height, width = boxes.unbind(1)
    assert (boxes[:, 2:] >= 1).all() and (boxes[:, :2] >= 0).all()
    assert (top + height <= size[0]).all() and (left + width <= size[1]).all()
    wanted = torch.tensor([math.sqrt(size[0] * size[1] * scale / ratio), math.sqrt(size[0] * size[1] * scale * ratio)])
    if (wanted < torch.tensor(size) - 1).all() and (wanted > 1).all():
        assert ((boxes[:, 2:] - wanted).abs() <= 0.51).all()
    else:  # torchvision's own answer where no draw fits
        reference = v2.RandomResizedCrop(4, scale=(scale, scale), ratio=(ratio, ratio))
        answer = reference.make_params([torch.empty(1, *size)])
        assert boxes[0, 2:].tolist() == [max(1, answer["height"]), max(1, answer["width"])]


@quick
@given(seeds, sizes, st.data(), st.sampled_from([1, 3]), formats)
def test_a_crop_of_the_images_own_size_is_a_shift(
    seed: int, size: tuple[int, int], data: st.DataObject, channels: int, memory: Any
) -> None:
    dtype = data.draw(st.sampled_from([torch.uint8, torch.float32, torch.bfloat16, torch.float64]))
    padding = data.draw(st.tuples(*[st.integers(0, 30)] * 4))  # larger than the image, too
    fill = data.draw(st.sampled_from([0.0, 1.0]))
    batch = images(seed, size, dtype, memory, count=3, channels=channels)
    left, top, right, bottom = padding
    y = torch.tensor(data.draw(st.lists(st.integers(0, top + bottom), min_size=3, max_size=3)))
    x = torch.tensor(data.draw(st.lists(st.integers(0, left + right), min_size=3, max_size=3)))
    before = batch.clone()
    found = augment_pixels.shift(batch, y, x, padding, fill, None)
    padded = augment_pixels.pad(batch, padding, "constant", fill)
    assert torch.equal(found, augment_pixels.crop_batched(padded, y, x, size))
    assert same_format(found, batch) and torch.equal(batch, before)


def test_large_images_are_cut_one_by_one() -> None:
    for memory in (torch.channels_last, torch.contiguous_format):
        batch = images(0, (200, 210), memory=memory)
        top, left = torch.tensor([0, 5, 20, 7]), torch.tensor([0, 30, 2, 9])
        found = augment_pixels.crop(batch, top, left, (180, 180))
        assert torch.equal(found, augment_pixels.crop_batched(batch, top, left, (180, 180)))
        assert torch.equal(augment_pixels.mirror(batch, top > 5), augment_pixels.mirror_batched(batch, top > 5))


def test_gradients_go_through_crops_and_mirroring() -> None:
    batch = images(0, (4, 4), torch.float32).requires_grad_()
    crop, flip = RandomCrop(4, 1), RandomHorizontalFlip(1.0)
    flip(crop({"image": batch}))["image"].sum().backward()
    assert batch.grad is not None and batch.grad.sum() > 0


def test_batched_resizing_rounds_to_the_nearest() -> None:
    batch = images(0, (19, 18))
    boxes = torch.tensor([[1, 2, 15, 16], [0, 0, 19, 18], [5, 5, 3, 4], [18, 0, 1, 9]])
    exact = augment_pixels.resized_crop(batch.double(), boxes, (7, 6))
    found = augment_pixels.resized_crop_batched(batch, boxes, (7, 6))
    torch.testing.assert_close(found.double(), exact, rtol=0, atol=0.5001)


def test_crops_are_equally_often_everywhere() -> None:
    crop = RandomCrop((4, 8), padding=1)
    params = crop.make_params(crop.keys(torch.arange(6000), 0), (6, 8))
    counts = torch.bincount(params["top"] * 3 + params["left"], minlength=15)
    assert counts.shape == (15,)  # 5 x 3 places
    assert ((counts - 400) ** 2 / 400).sum() < 36.1  # chi-square, the 0.1 % point of 14 degrees of freedom


def test_half_precision_is_resized_in_single() -> None:
    batch = images(0, (9, 8), torch.bfloat16)
    boxes = torch.tensor([[1, 2, 5, 6]] * 4)
    exact = augment_pixels.resized_crop(batch.double(), boxes, (7, 3))
    for found in (augment_pixels.resized_crop, augment_pixels.resized_crop_batched):
        assert found(batch, boxes, (7, 3)).dtype == torch.bfloat16
        torch.testing.assert_close(found(batch, boxes, (7, 3)), exact.to(torch.bfloat16), rtol=2**-8, atol=0)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = augment_pixels.resized_crop_batched(batch.float(), boxes, (7, 3))
    torch.testing.assert_close(found.double(), exact, rtol=0, atol=1e-5)


# --- mirroring --------------------------------------------------------------------------------------------------


@quick
@given(seeds, sizes, dtypes, formats, st.sampled_from([(), ((0, 1),), ((2, 0),)]))
def test_mirroring_equals_torchvision_and_swaps_keypoints(
    seed: int, size: tuple[int, int], dtype: torch.dtype, memory: Any, pairs: tuple[tuple[int, int], ...]
) -> None:
    flip = RandomHorizontalFlip(0.5, pairs, seed=seed)
    batch = {"image": images(seed, size, dtype, memory), "objects": objects(seed, size)}
    rows, params = params_of(flip, batch)
    found = flip(batch, rows, 0)
    assert found["image"].dtype == dtype and found["image"].stride() == batch["image"].stride()
    for i, flipped in enumerate(params["flip"].tolist()):
        before, after = batch["objects"][i], found["objects"][i]
        image, boxes, points = batch["image"][i], before["boxes"], before["keypoints"]
        if flipped:
            image = functional.horizontal_flip(image)
            boxes = functional.horizontal_flip(BoundingBoxes(boxes, format="XYXY", canvas_size=size)).as_subclass(
                Tensor
            )
            # torchvision mirrors keypoints as numbers of pixels; half a pixel makes edges of them and back.
            points = functional.horizontal_flip(KeyPoints(points - 0.5, canvas_size=size)).as_subclass(Tensor) + 0.5
            for a, b in pairs:
                points[:, [a, b]] = points[:, [b, a]]
        assert torch.equal(found["image"][i], image)
        torch.testing.assert_close(after["boxes"], boxes, rtol=0, atol=1e-5)
        if not (flipped and IS_OLD):
            torch.testing.assert_close(after["keypoints"], points, rtol=0, atol=1e-5, equal_nan=True)
        assert torch.equal(after["labels"], before["labels"])


def test_visibility_is_swapped_with_its_keypoints() -> None:
    points = torch.tensor([[[1.0, 2.0], [5.0, 3.0], [4.0, 4.0]]] * 2)
    values = {"keypoints": points, "visibility": torch.tensor([[2, 1, 0]] * 2, dtype=torch.uint8)}
    objects = PackedObjects(torch.tensor([0, 1, 2]), values)
    flip = RandomHorizontalFlip(0.5, [(0, 1)], seed=2)
    batch = {"image": torch.zeros(2, 3, 8, 8), "objects": objects}
    rows, params = params_of(flip, batch)
    expected = [[1, 2, 0] if flipped else [2, 1, 0] for flipped in params["flip"].tolist()]
    assert expected[0] != expected[1]
    assert flip(batch, rows, 0)["objects"].values["visibility"].tolist() == expected


@pytest.mark.parametrize(
    ("change", "area"),
    [
        (Resize((20, 15)), 24),
        (Letterbox(20), 32),
        (RandomAffine((30, 30), scale=(0.5, 0.5), shear=(10, 10)), 2),
        (RandomPerspective(p=1), math.nan),
        (CenterCrop(4), 8),  # where a part of the object is seen, it is still the whole object's
    ],
)
def test_the_area_of_an_object_is_scaled(change: BatchTransform, area: float) -> None:
    values = {"boxes": torch.tensor([[4.0, 4.0, 8.0, 6.0]]), "area": torch.tensor([8.0])}
    batch = {"image": torch.zeros(1, 3, 10, 10), "objects": PackedObjects(torch.tensor([0, 1]), values)}
    moved = change(batch, torch.tensor([0]), 0)[
        "objects"
    ]  # some perspectives of other rows are affine, and scale areas
    assert moved.values["area"].tolist() == pytest.approx([area], nan_ok=True)


def test_keypoints_are_not_mirrored_without_pairs() -> None:
    batch = {"image": images(0, (8, 5)), "objects": objects(0, (8, 5))}
    with pytest.raises(ValueError, match="expected `flip_pairs` for objects with keypoints"):
        RandomHorizontalFlip()(batch)
    with pytest.raises(ValueError, match=r"`flip_pairs`: expected pairs of numbers in \[0, 3\), found \(1, 3\)"):
        RandomHorizontalFlip(flip_pairs=[(1, 3)])(batch)
    boxes = PackedObjects(batch["objects"].offsets, {"boxes": batch["objects"].values["boxes"]})
    assert list(RandomHorizontalFlip()({**batch, "objects": boxes})["objects"].values) == ["boxes"]


# --- objects ----------------------------------------------------------------------------------------------------


def test_objects_are_dropped_with_all_of_their_values() -> None:
    boxes = torch.tensor([[0, 0, 2, 2], [2, 2, 6, 6], [7.5, 0, 8, 8], [3, 3, 4, 4]], dtype=torch.float32)
    packed = PackedObjects(
        torch.tensor([0, 3, 4]), {"boxes": boxes, "labels": torch.arange(4), "difficult": torch.ones(4)}
    )
    crop = RandomCrop(4)
    params = {"top": torch.tensor([2, 4]), "left": torch.tensor([2, 4])}
    found = crop.transform_objects(packed, params, (8, 8))
    assert found.offsets.tolist() == [0, 1, 1]
    assert found.values["boxes"].tolist() == [[0, 0, 4, 4]]
    assert found.values["labels"].tolist() == [1] and found.values["difficult"].tolist() == [1]


def test_keypoints_without_boxes_are_all_kept() -> None:
    packed = PackedObjects(torch.tensor([0, 1]), {"keypoints": torch.tensor([[[100.0, -3], [torch.nan, torch.nan]]])})
    params = {"top": torch.tensor([1]), "left": torch.tensor([2])}
    found = RandomCrop(4).transform_objects(packed, params, (8, 8))
    assert found.values["keypoints"][0, 0].tolist() == [98, -4]
    assert found.values["keypoints"][0, 1].isnan().all()


def test_a_crop_of_the_whole_width_may_lie_anywhere() -> None:
    """Half of the area, twice as wide as high: 10 of 20 lines, from 0 to 10 above them."""
    lines = torch.arange(20.0)[None, None, :, None].expand(60, 1, 20, 20).contiguous()
    crop = RandomResizedCrop((10, 20), scale=(0.5, 0.5), ratio=(2, 2))
    tops = crop({"image": lines}, torch.arange(60), 0)["image"][:, 0, 0, 0].round()
    assert len(tops.unique()) > 5
