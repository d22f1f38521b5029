"""Random erasing, checked against torchvision sample by sample."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torchvision.transforms import v2
from torchvision.transforms.v2 import functional

from image_batches import images, objects, params_of, same_format
from tensorstore_ds.annex.augment.erasing import RandomErasing


@pytest.mark.parametrize("size", [(1, 1), (5, 9), (28, 28), (224, 224), (480, 640)])
@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
@pytest.mark.parametrize("value", [0, 0.5, "each"])
def test_erasing_equals_torchvision(size: tuple[int, int], channels: int, dtype: torch.dtype, value: Any) -> None:
    values = tuple(range(1, channels + 1)) if value == "each" else value
    erase = RandomErasing(0.7, value=values, seed=1)
    batch = {"image": images(0, size, dtype, channels=channels, count=8 if size[0] < 100 else 3)}
    rows, params = params_of(erase, batch)
    found = erase(batch, rows, 0)["image"]
    assert found.dtype == dtype and same_format(found, batch["image"])
    for i, (top, left, height, width) in enumerate(params["boxes"].tolist()):
        assert (height < size[0] and width < size[1]) and (height > 0) == (width > 0)
        shown = torch.tensor(values if value == "each" else [values]).to(dtype)[:, None, None]
        expected = functional.erase(batch["image"][i], top, left, height, width, shown)
        assert torch.equal(found[i], expected)


def test_parts_are_distributed_as_torchvisions() -> None:
    erase, reference = RandomErasing(1.0), v2.RandomErasing(1.0)
    assert (erase.scale, erase.ratio) == (tuple(reference.scale), tuple(reference.ratio))
    boxes = erase.make_params(erase.keys(torch.arange(3000), 0), (60, 80))["boxes"].double()
    top, left, height, width = boxes.unbind(1)
    share, ratio = height * width / 4800, height / width
    assert (boxes[:, :2] >= 0).all() and (top + height <= 60).all() and (left + width <= 80).all()
    assert share.min() > 0.015 and share.max() < 0.34 and share.mean() == pytest.approx(0.17, abs=0.01)
    assert ratio.min() > 0.28 and ratio.max() < 3.6 and ratio.log().mean().abs() < 0.1
    torch.manual_seed(0)
    theirs = torch.tensor([reference.make_params([torch.empty(3, 60, 80)])["h"] for _ in range(3000)]).double()
    assert height.mean() == pytest.approx(float(theirs.mean()), rel=0.04)
    assert height.std() == pytest.approx(float(theirs.std()), rel=0.06)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.uint8])
def test_noise_differs_by_pixel_channel_sample_and_epoch(dtype: torch.dtype) -> None:
    erase = RandomErasing(1.0, (0.5, 0.9), (1, 1), "random")
    batch = {"image": torch.full((3, 3, 64, 64), 7, dtype=dtype)}
    rows, params = params_of(erase, batch)
    first, second = (erase(batch, rows, epoch)["image"] for epoch in (0, 1))
    assert torch.equal(first, erase(batch, rows, 0)["image"])
    noise = []
    for image, (top, left, height, width) in zip(first, params["boxes"].tolist(), strict=True):
        inside = torch.zeros(64, 64, dtype=torch.bool)
        inside[top : top + height, left : left + width] = True
        assert (image[:, ~inside] == 7).all()
        noise.append(image[:, inside].double())
    for each in noise:
        assert each.unique().numel() > (150 if dtype == torch.uint8 else 300)
        mean, deviation = (127.5, 73.9) if dtype == torch.uint8 else (0.0, 1.0)
        assert each.mean() == pytest.approx(mean, abs=deviation * 0.05)
        assert each.std() == pytest.approx(deviation, rel=0.05)
        assert torch.corrcoef(each)[0, 1].abs() < 0.1
    count = min(each.shape[1] for each in noise)
    assert torch.corrcoef(torch.stack([each[0, :count] for each in noise]))[0, 1].abs() < 0.1
    assert not torch.equal(first, second)


def test_objects_and_masks_stay() -> None:
    batch = {
        "image": images(0, (12, 12)),
        "objects": objects(0, (12, 12)),
        "mask": torch.zeros(4, 12, 12, dtype=torch.int64),
    }
    found = RandomErasing(1)(batch)
    assert found["objects"] is batch["objects"] and torch.equal(found["mask"], batch["mask"])
