"""Affine and perspective transforms, checked against torchvision sample by sample, and against matrices in NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st
from torch import Tensor
from torchvision.transforms.v2 import functional

from image_batches import dtypes, formats, images, objects, params_of, quick, same_format, seeds, sizes
from tensorstore_ds.annex.augment import color, tones, warp
from tensorstore_ds.annex.augment.affine import RandomAffine, RandomPerspective, Warp
from tensorstore_ds.annex.augment.color import (
    AutoContrast,
    ColorJitter,
    Equalize,
    Posterize,
    RandomGrayscale,
    Solarize,
)
from tensorstore_ds.loading.augment import pixels
from tensorstore_ds.loading.augment.base import BatchTransform
from tensorstore_ds.loading.collate import PackedObjects
from tensorstore_ds.loading.outlines import FRAME

#: The share of pixels at which "nearest" may round otherwise: places in the middle between two pixels.
TIES = 0.005

USUAL = [(28, 28), (224, 224), (480, 640)]


def affine(value: Tensor, params: dict[str, Tensor], i: int, size: tuple[int, int], **more: Any) -> Tensor:
    return functional.affine(
        value,
        angle=float(params["angle"][i]),
        translate=params["translate"][i].tolist(),
        scale=float(params["scale"][i]),
        shear=params["shear"][i].tolist(),
        **more,
    )


def perspective(value: Tensor, params: dict[str, Tensor], i: int, size: tuple[int, int], **more: Any) -> Tensor:
    if not params["chosen"][i]:
        return value
    coefficients = params["inverse"][i].flatten() / params["inverse"][i, 2, 2]
    return functional.perspective(value, None, None, coefficients=coefficients[:8].tolist(), **more)


def in_front(inverse: Tensor, size: tuple[int, int]) -> Tensor:
    """(H, W) bool: well before the horizon, beyond which torchvision sees the image upside down."""
    y, x = (torch.arange(n) + 0.5 for n in size)
    return inverse[2, 0] * x + inverse[2, 1] * y[:, None] + inverse[2, 2] > 0.2


def transforms(interpolation: Any, fill: float, seed: int) -> list[tuple[Warp, Any]]:
    return [
        (RandomAffine(40, (0.2, 0.1), (0.7, 1.4), (-10, 15, -5, 5), interpolation, fill, seed=seed), affine),
        (RandomPerspective(0.6, 0.8, interpolation, fill, seed=seed), perspective),
    ]


def check_images(transform: Warp, same: Any, batch: dict[str, Tensor]) -> None:
    """Compare with torchvision, which sees images continued by 0: so `fill` is subtracted before, and added after."""
    image = batch["image"]
    rows, params = params_of(transform, batch)
    found = transform(batch, rows, 0)["image"]
    assert found.dtype == image.dtype and found.shape == image.shape and same_format(found, image)
    for i in range(len(image)):
        if not params["inverse"][i, 2, 2]:  # the horizon is at the corner, which torchvision's coefficients cannot say
            continue
        shifted = image[i].to(torch.float32) - transform.fill
        more = {"interpolation": functional.InterpolationMode(transform.interpolation), "fill": None}
        expected = same(shifted, params, i, tuple(image.shape[2:]), **more) + transform.fill
        difference = (found[i].float() - expected).abs()[:, in_front(params["inverse"][i], tuple(image.shape[2:]))]
        if transform.interpolation == "nearest":
            assert (difference > 1e-4).float().mean() <= TIES
        else:  # uint8: rounded to the nearest
            assert difference.max() <= (0.52 if image.dtype == torch.uint8 else 2e-3)


@quick
@given(
    seeds, st.tuples(st.integers(2, 24), st.integers(2, 24)), dtypes, formats, st.sampled_from([1, 3]), st.booleans()
)
def test_bilinear_equals_torchvision(
    seed: int, size: tuple[int, int], dtype: torch.dtype, memory: Any, channels: int, filled: bool
) -> None:
    fill = (100 if dtype == torch.uint8 else 0.4) if filled else 0
    for transform, same in transforms("bilinear", fill, seed):
        check_images(transform, same, {"image": images(seed, size, dtype, memory, channels=channels)})


@pytest.mark.parametrize("size", USUAL)
@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
@pytest.mark.parametrize("interpolation", ["nearest", "bilinear"])
def test_usual_sizes_equal_torchvision(
    size: tuple[int, int], channels: int, dtype: torch.dtype, interpolation: Any
) -> None:
    # Smooth images: torchvision's places are float32, and 640 pixels from the edge they are a little off.
    coarse = images(3, (6, 7), torch.float32, channels=channels, count=2)
    smooth = torch.nn.functional.interpolate(coarse, size, mode="bilinear").contiguous(
        memory_format=torch.channels_last
    )
    batch = {"image": (smooth * 255).to(torch.uint8) if dtype == torch.uint8 else smooth}
    for transform, same in transforms(interpolation, 0, 2):
        check_images(transform, same, batch)


@pytest.mark.parametrize("size", [(20, 30), (100, 90)])
@pytest.mark.parametrize("memory", [torch.contiguous_format, torch.channels_last])
def test_what_a_cpu_does_image_by_image_equals_one_operation(
    size: tuple[int, int], memory: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    every: list[BatchTransform] = [
        *(transform for how in ("nearest", "bilinear") for transform, _ in transforms(how, 3, 0)),
        RandomPerspective(1, 1, "nearest"),  # with a horizon in the image
        *(Posterize(3), Solarize(100), Solarize(0), Equalize(), AutoContrast(), RandomGrayscale(0.5)),
        *(ColorJitter(brightness=0.5, saturation=0.5, hue=0.3), ColorJitter(saturation=0.5)),
    ]
    image = images(4, size, memory=memory, count=6)
    before = image.clone()
    found = [each({"image": image}, torch.arange(6), 0)["image"] for each in every]
    assert torch.equal(image, before)
    for module in (pixels, tones, warp, color):
        monkeypatch.setattr(module, "in_one_operation", lambda _: True)
    for each, pixels_of_each in zip(every, found, strict=True):
        expected = each({"image": image}, torch.arange(6), 0)["image"]
        assert torch.equal(pixels_of_each, expected), each
        assert same_format(pixels_of_each, image)


def test_masks_move_with_images_and_keep_their_classes() -> None:
    for transform in (RandomAffine(30, (0.3, 0.3), seed=1), RandomPerspective(p=1, interpolation="nearest", seed=1)):
        image = images(0, (30, 40), count=6, channels=1) | 1
        for dtype, ignored in ((torch.uint8, 255), (torch.uint16, 65535), (torch.int64, 255)):
            batch = {"image": image, "mask": image[:, 0].to(dtype)}
            found = transform(batch, torch.arange(6), 0)
            outside = found["image"][:, 0] == 0
            assert found["mask"].dtype == dtype and 0.02 < outside.float().mean() < 0.9
            assert (found["mask"].long()[outside] == ignored).all()
            assert torch.equal(found["mask"].long()[~outside], found["image"][:, 0].long()[~outside])
    shown = RandomAffine((45, 45), mask_fill=7)({"image": image, "mask": torch.zeros(6, 30, 40, dtype=torch.uint8)})
    assert shown["mask"].unique().tolist() == [0, 7]


def test_padding_stays_outside() -> None:
    image = torch.full((2, 3, 12, 16), 9, dtype=torch.uint8)
    inside = torch.zeros(2, 12, 16, dtype=torch.bool)
    inside[0, :8, :10] = inside[1, :12, :4] = True
    batch = {"image": image * inside[:, None], "image_mask": inside, "image_size": torch.tensor([[8, 10], [12, 4]])}
    found = RandomAffine((180, 180), fill=50)(batch)
    assert torch.equal(found["image_mask"], inside.rot90(2, (1, 2)))
    assert torch.equal(found["image"], batch["image"].rot90(2, (2, 3)))
    assert torch.equal(found["image_size"], batch["image_size"])


# --- objects -----------------------------------------------------------------------------------------------------


def moved(points: np.ndarray, forward: np.ndarray) -> np.ndarray:
    """Points (..., 2) by a matrix, in NumPy."""
    homogeneous = np.concatenate([points, np.ones((*points.shape[:-1], 1))], -1) @ forward.T
    return homogeneous[..., :2] / homogeneous[..., 2:]


@quick
@given(seeds, st.tuples(st.integers(8, 40), st.integers(8, 40)), st.sampled_from([0.0, 0.3]))
def test_objects_move_by_the_matrix(seed: int, size: tuple[int, int], least: float) -> None:
    given_objects = objects(seed, size)
    for transform in (
        RandomAffine(40, (0.2, 0.1), (0.7, 1.4), (-10, 15, -5, 5), min_visibility=least, seed=seed),
        RandomPerspective(0.6, 0.8, min_visibility=least, seed=seed),
    ):
        batch = {"image": images(seed, size), "objects": given_objects}
        rows, params = params_of(transform, batch)
        found = transform(batch, rows, 0)["objects"]
        for i, after in enumerate(found):
            before = {name: value.double().numpy() for name, value in given_objects[i].items()}
            forward = np.linalg.inv(params["inverse"][i].numpy())
            x1, y1, x2, y2 = before["boxes"].T
            corners = moved(np.stack([[x1, y1], [x2, y1], [x2, y2], [x1, y2]]).transpose(2, 0, 1), forward)
            hulls = np.concatenate([corners.min(1), corners.max(1)], 1)
            clipped = hulls.clip(0, [size[1], size[0]] * 2)
            sides, whole = clipped[:, 2:] - clipped[:, :2], hulls[:, 2:] - hulls[:, :2]
            seen = np.where((sides > 0).all(1), sides.prod(1) / np.maximum(whole.prod(1), 1e-12), 0)
            kept = np.isin(before["labels"], after["labels"].double().numpy())
            is_clear = (np.abs(seen - least) > 1e-3) & (np.abs(sides) > 1e-3).all(1) & (whole > 1e-3).all(1)
            assert ((seen > least) == kept)[is_clear].all()
            np.testing.assert_allclose(after["boxes"].numpy(), clipped[kept], atol=5e-3)
            points = moved(before["keypoints"], forward)[kept]
            middle = forward[2] @ [size[1] / 2, size[0] / 2, 1]
            third = (before["keypoints"] @ forward[2, :2] + forward[2, 2])[kept] / middle
            assert np.isnan(after["keypoints"].numpy()[third < 0]).all()
            points[third < 0.01] = after["keypoints"].numpy()[third < 0.01]  # at the horizon, or beyond it
            np.testing.assert_allclose(after["keypoints"].numpy(), points, rtol=1e-3, atol=5e-3)


def test_outlines_cannot_be_turned() -> None:
    packed = PackedObjects(torch.tensor([0, 1]), {"boxes": torch.ones(1, 4), FRAME: torch.ones(1, 2, 2)})
    with pytest.raises(ValueError, match=r"RandomAffine: expected objects without outlines.* Use StoreDataset"):
        RandomAffine(10)({"image": torch.zeros(1, 3, 8, 8), "objects": packed})


# --- what is drawn -----------------------------------------------------------------------------------------------


@quick
@given(seeds, sizes)
def test_parameters_are_in_their_ranges(seed: int, size: tuple[int, int]) -> None:
    affine_transform = RandomAffine((-10, 30), (0.2, 0.5), (0.5, 2), (1, 2, 3, 4), seed=seed)
    params = affine_transform.make_params(affine_transform.keys(torch.arange(200), 0), size)
    assert params["angle"].min() >= -10 and params["angle"].max() <= 30 and params["angle"].std() > 5
    assert (params["translate"].abs() <= torch.tensor([0.2 * size[1], 0.5 * size[0]]) + 0.5).all()
    assert torch.equal(params["translate"], params["translate"].round())
    assert params["scale"].min() >= 0.5 and params["scale"].max() <= 2
    assert (params["shear"] >= torch.tensor([1, 3])).all() and (params["shear"] <= torch.tensor([2, 4])).all()
    seen = RandomPerspective(1.0, 0.5, seed=seed)
    params = seen.make_params(seen.keys(torch.arange(200), 0), size)
    corners = params["corners"]
    assert (corners >= 0).all() and (corners <= torch.tensor([size[1] - 1, size[0] - 1])).all()
    assert params["inverse"].isfinite().all()
    assert params["chosen"].sum() < 150


def test_every_way_to_give_a_range() -> None:
    assert RandomAffine(5).degrees == (-5, 5) and RandomAffine((1, 5)).degrees == (1, 5)
    assert RandomAffine(0, shear=3).shear == ((-3, 3), (0, 0)) and RandomAffine(0).shear == ((0, 0), (0, 0))
    still = {"image": images(0, (8, 9))}
    assert torch.equal(RandomAffine(0)(still)["image"], still["image"])
    center = RandomAffine((180, 180), center=(0, 0))(still)["image"]
    assert not center.any()  # turned out of the image
