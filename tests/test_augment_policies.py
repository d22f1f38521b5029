"""RandAugment and TrivialAugment, checked against torchvision's operations sample by sample."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torchvision.transforms import v2

from image_batches import images, objects, params_of, same_format
from tensorstore_ds.annex.augment.affine import RandomAffine
from tensorstore_ds.annex.augment.policies import OPERATIONS, Policy, RandAugment, TrivialAugment

REFERENCES = [(RandAugment, v2.RandAugment), (TrivialAugment, v2.TrivialAugmentWide)]
both = pytest.mark.parametrize(("make", "reference"), REFERENCES, ids=["RandAugment", "TrivialAugment"])


@pytest.mark.drawn(8)
@both
@pytest.mark.parametrize("size", [(28, 28), (224, 224), (480, 640)])
@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
def test_operations_equal_torchvisions(
    make: Any, reference: Any, size: tuple[int, int], channels: int, dtype: torch.dtype
) -> None:
    count = 120 if size[0] < 100 else 12
    policy, theirs = make(seed=size[0]), reference()
    batch = {"image": images(0, size, dtype, channels=channels, count=count)}
    rows, params = params_of(policy, batch)
    found = policy(batch, rows, 0)["image"]
    assert found.dtype == dtype and same_format(found, batch["image"])
    for i in range(count):
        image, moved = batch["image"][i].contiguous(), False
        for which, amount in zip(params["operations"][i].tolist(), params["amounts"][i].tolist(), strict=True):
            how = v2.InterpolationMode.NEAREST
            image = theirs._apply_image_or_video_transform(image, OPERATIONS[which], amount, how, theirs._fill)
            moved |= 1 <= which <= 5
        difference = (found[i].double() - image.double()).abs()
        # A level where a product rounds otherwise, which a second operation may stretch; and places between two pixels.
        near = difference <= (1 if dtype == torch.uint8 else 2e-3)
        assert near.double().mean() > (0.985 if moved else 0.999)


@both
@pytest.mark.parametrize("size", [(20, 33), (224, 224)])
def test_amounts_are_torchvisions(make: Any, reference: Any, size: tuple[int, int]) -> None:
    policy = make(num_magnitude_bins=31)
    table = policy._amounts(size)
    for name, row in zip(OPERATIONS, table, strict=True):
        values, signed = reference._AUGMENTATION_SPACE[name]
        expected = values(31, *size)
        if expected is not None:
            np.testing.assert_allclose(row, expected.double().numpy(), rtol=1e-6, atol=1e-6)
        keys = policy.keys(torch.arange(4000), 0)
        params = policy.make_params(keys, size)
        chosen = params["operations"] == OPERATIONS.index(name)
        assert chosen.double().mean() == pytest.approx(1 / 14, abs=0.02)
        negative = (params["amounts"][chosen] < 0).double().mean()
        assert negative == pytest.approx(0.5 if signed else 0, abs=0.1)
    assert list(reference._AUGMENTATION_SPACE) == list(OPERATIONS)
    levels = len(params["amounts"][params["operations"] == OPERATIONS.index("Rotate")].abs().unique())
    assert levels == (1 if make is RandAugment else 31)


@both
def test_objects_and_masks_move_as_by_the_affine_transform(make: Any, reference: Any) -> None:
    size, count = (40, 50), 60
    policy: Policy = make(seed=1)
    packed = objects(0, size, (2,) * count)
    image = images(0, size, channels=1, count=count) | 1
    batch = {"image": image, "objects": packed, "mask": image[:, 0].long()}
    rows, params = params_of(policy, batch)
    found = policy(batch, rows, 0)
    still = RandomAffine(0)
    expected = packed
    for turn in range(policy.num_ops):
        expected = still.transform_objects(expected, {"inverse": params["inverse"][:, turn]}, size)
    for name, value in expected.values.items():
        torch.testing.assert_close(found["objects"].values[name], value, equal_nan=True)
    moved = ((params["operations"] >= 1) & (params["operations"] <= 5)).any(1)
    assert 5 < moved.sum() < count
    only = moved & ((params["operations"] <= 5).all(1))
    outside = found["image"][only, 0] == 0
    assert torch.equal(found["mask"][only] == 255, outside | (found["image"][only, 0] == 255))
    assert torch.equal(found["mask"][only][~outside], found["image"][only, 0].long()[~outside])
    assert torch.equal(found["mask"][~moved], batch["mask"][~moved])
    boxes = [(each["boxes"], before["boxes"]) for each, before in zip(found["objects"], packed, strict=True)]
    assert all(torch.equal(a, b) for (a, b), is_moved in zip(boxes, moved.tolist(), strict=True) if not is_moved)


def test_defaults_are_those_of_torchvision() -> None:
    ours, theirs = RandAugment(), v2.RandAugment()
    for name in ("num_ops", "magnitude", "num_magnitude_bins"):
        assert getattr(ours, name) == getattr(theirs, name)
    assert TrivialAugment().num_magnitude_bins == v2.TrivialAugmentWide().num_magnitude_bins
    image = {"image": images(0, (8, 8))}
    assert torch.equal(RandAugment(0)(image)["image"], image["image"])
