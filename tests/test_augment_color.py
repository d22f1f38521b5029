"""Colors, blur, erasing and normalization, checked against torchvision sample by sample."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st
from torch import Tensor
from torchvision.transforms import v2
from torchvision.transforms.v2 import functional

import tensorstore_ds as tsds
from image_batches import dtypes, formats, images, objects, params_of, quick, same_format, seeds
from small_stores import image_field, write_store
from tensorstore_ds.annex.augment.blur import GaussianBlur
from tensorstore_ds.annex.augment.color import (
    AutoContrast,
    ColorJitter,
    Equalize,
    Posterize,
    RandomGrayscale,
    Solarize,
    Sometimes,
)
from tensorstore_ds.annex.augment.erasing import RandomErasing
from tensorstore_ds.loading.augment.base import Params
from tensorstore_ds.loading.augment.geometry import RandomHorizontalFlip
from tensorstore_ds.loading.augment.normalize import Normalize

_ADJUST = (
    functional.adjust_brightness,
    functional.adjust_contrast,
    functional.adjust_saturation,
    functional.adjust_hue,
)


def colors(image: Tensor, params: Params, i: int) -> Tensor:
    for which, factor in zip(params["order"][i].tolist(), params["factors"][i].tolist(), strict=True):
        assert -0.5 <= factor <= 0.5 if which == 3 else 0.2 <= factor <= 1.8
        image = _ADJUST[which](image, factor)
    return image


def chosen(function: Any, *arguments: Any) -> Any:
    return lambda image, params, i: function(image, *arguments) if params["chosen"][i] else image


def blurred(size: list[int]) -> Any:
    def blur(image: Tensor, params: Params, i: int) -> Tensor:
        sigma = float(params["sigma"][i])
        assert 0.2 <= sigma <= 3
        return functional.gaussian_blur(image, size, [sigma, sigma]) if params["chosen"][i] else image

    return blur


def erased(value: list[float]) -> Any:
    def erase(image: Tensor, params: Params, i: int) -> Tensor:
        top, left, height, width = params["boxes"][i].tolist()
        assert height < image.shape[1] and width < image.shape[2] and (height > 0) == (width > 0)
        return functional.erase(image, top, left, height, width, torch.tensor(value).to(image.dtype)[:, None, None])

    return erase


SOME: list[tuple[Sometimes, Any]] = [
    (RandomGrayscale(0.5), chosen(lambda image: functional.rgb_to_grayscale(image, len(image)))),
    (Solarize(0.6), chosen(functional.solarize, 0.6)),
    (Solarize(100), chosen(functional.solarize, 100)),
    (Posterize(0), chosen(functional.posterize, 0)),
    (Posterize(3), chosen(functional.posterize, 3)),
    (Posterize(8), chosen(functional.posterize, 8)),
    (Equalize(), chosen(functional.equalize)),
    (AutoContrast(), chosen(functional.autocontrast)),
]
#: A transform, torchvision's, and by how many of 255 levels results of uint8 may differ. A last bit that rounds
#: otherwise is one level, which later blends, of factors up to 1.8, enlarge; in usual jitter, few pixels have it.
TABLE: list[tuple[Any, Any, int]] = [
    *((ColorJitter(*(0.8 * (i == which) for i in range(3))), colors, 1) for which in range(3)),
    (ColorJitter(0.8, 0.8), colors, 3),
    (ColorJitter(0.8, 0.8, 0.8, seed=1), colors, 7),
    (ColorJitter(hue=0.5), colors, 1),
    (ColorJitter(0.3, 0.3, 0.3, 0.2, seed=1), colors, 9),
    *((each, same, isinstance(each, RandomGrayscale)) for each, same in SOME),
    *((GaussianBlur(n, (0.2, 3), p=0.7, seed=1), blurred([n, n]), 1) for n in (1, 5)),
    (GaussianBlur((3, 9), (0.2, 3), p=0.7, seed=1), blurred([3, 9]), 1),
    *((RandomErasing(0.7, value=value, seed=1), erased([value]), 0) for value in (0, 0.5)),
    (RandomErasing(0.7, value=(1, 2, 3), seed=1), erased([1, 2, 3]), 0),
]


@pytest.mark.drawn(84)
@pytest.mark.parametrize(("transform", "same", "levels"), TABLE, ids=lambda each: getattr(each, "_get_name", str)())
@pytest.mark.parametrize("size", [(1, 1), (5, 9), (9, 12), (224, 224)])
@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
def test_images_are_changed_as_torchvision_does(
    transform: Any, same: Any, levels: int, size: tuple[int, int], channels: int, dtype: torch.dtype
) -> None:
    if dtype != torch.uint8 and getattr(transform, "threshold", 0) > 1:
        pytest.skip("a threshold of 8-bit images")
    small = isinstance(transform, GaussianBlur) and size[0] < 9
    if small or (channels == 1 and getattr(transform, "value", 0) == (1, 2, 3)):
        pytest.skip("a kernel of larger images, or three values of one channel")
    image = images(5, size, dtype, channels=channels, count=6 if size[0] < 200 else 3)
    dark = image // 3 + 40 if dtype == torch.uint8 else image / 3 + 0.2  # not all levels
    for batch in ({"image": image}, {"image": dark}, {"image": dark.contiguous()}):
        rows, params = params_of(transform, batch)
        found = transform(batch, rows, 0)["image"]
        assert found.dtype == dtype and same_format(found, batch["image"])
        for got, i in zip(found, range(len(image)), strict=True):
            expected = same(batch["image"][i].contiguous(), params, i)
            torch.testing.assert_close(
                got, expected, rtol=0, atol=levels if dtype == torch.uint8 else 1e-5 * max(1, levels)
            )
            if levels > 1 and size == (224, 224) and dtype == torch.uint8:
                assert (got != expected).float().mean() < 0.01


def test_steps_of_jitter_come_in_every_order() -> None:
    params = TABLE[6][0].make_params(TABLE[6][0].keys(torch.arange(400), 0), (4, 4))
    assert len({tuple(order) for order in params["order"].tolist()}) == 24


@pytest.mark.parametrize("memory", [torch.contiguous_format, torch.channels_last])
def test_an_empty_batch_keeps_its_memory_format(memory: Any) -> None:
    empty = torch.empty(0, 3, 8, 8, dtype=torch.uint8, memory_format=memory)
    for transform in (ColorJitter(0.4), ColorJitter(hue=0.2), Posterize(4), Equalize(1), GaussianBlur(3)):
        found = transform({"image": empty})["image"]
        assert found.shape == empty.shape and found.stride() == empty.stride()


def test_color_jitter_of_one_leaves_pixels_alone() -> None:
    batch = {"image": images(0, (5, 6))}
    for jitter in (ColorJitter(), ColorJitter(0, 0, 0), ColorJitter((1, 1))):
        assert torch.equal(jitter(batch)["image"], batch["image"])
    gray = {"image": torch.arange(256, dtype=torch.uint8).expand(200, 1, 1, 256)}
    assert torch.equal(ColorJitter(saturation=0.9)(gray)["image"], gray["image"])


# --- what is drawn ---------------------------------------------------------------------------------------


def test_a_flat_channel_stays() -> None:
    flat = torch.full((1, 3, 20, 20), 77, dtype=torch.uint8)
    for transform in (Equalize(1), AutoContrast(1)):
        assert torch.equal(transform({"image": flat})["image"], flat)


@pytest.mark.parametrize("transform", [each for each, _ in SOME], ids=lambda each: type(each).__name__)
def test_some_are_as_many_as_asked_for(transform: Sometimes) -> None:
    chosen = transform.make_params(transform.keys(torch.arange(4000), 0), (4, 4))["chosen"]
    assert chosen.float().mean() == pytest.approx(transform.p, abs=0.04)


def test_half_precision_is_computed_in_single() -> None:
    image = images(0, (20, 20), torch.bfloat16)
    for transform in (ColorJitter(0.3, hue=0.2), RandomGrayscale(1), AutoContrast(1), Equalize(1), GaussianBlur(5)):
        rows = torch.arange(4)
        found = transform({"image": image}, rows, 0)["image"]
        exact = transform({"image": image.float()}, rows, 0)["image"]
        assert found.dtype == torch.bfloat16
        torch.testing.assert_close(found, exact.to(torch.bfloat16), rtol=2**-7, atol=2**-8)


# --- erasing


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


# --- normalization -----------------------------------------------------------------------------------------------


@quick
@given(seeds, dtypes, formats, st.sampled_from([torch.float32, torch.float16, torch.bfloat16]))
def test_normalize_equals_torchvision(seed: int, dtype: torch.dtype, memory: Any, out: torch.dtype) -> None:
    mean, std = [0.4, 0.5, 0.6], [0.2, 0.25, 0.3]
    image = images(seed, (6, 5), dtype, memory)
    found = Normalize(mean, std, dtype=out)({"image": image})["image"]
    exact = functional.normalize(functional.to_dtype(image, torch.float64, scale=True), mean, std)
    # As good as the dtype allows: float32 arithmetic, rounded once.
    torch.testing.assert_close(found.double(), exact, rtol=torch.finfo(out).eps / 2, atol=1e-6)
    assert found.dtype == out and found.stride() == image.stride()


def test_a_mean_of_255_levels_is_refused_for_images_of_8_bits() -> None:
    of_levels = Normalize((123, 116, 103), (58, 57, 57))
    images = torch.randint(0, 256, (2, 3, 4, 5), dtype=torch.uint8)
    with pytest.raises(
        ValueError, match=r"expected a mean in \[0, 1\] .* Divide mean and std by 255: (.*)\.$"
    ) as raised:
        of_levels({"image": images})
    advice = re.search(r"Normalize\(\((.*)\), \((.*)\)\)\.$", str(raised.value))
    assert advice is not None
    mean, std = ([float(value) for value in each.split(", ")] for each in advice.groups())
    expected = of_levels({"image": images.float()})["image"]  # floating-point images are taken as they are
    torch.testing.assert_close(Normalize(mean, std)({"image": images})["image"], expected, rtol=0, atol=0.02)


def test_normalize_leaves_its_input_alone() -> None:
    image = images(0, (4, 4), torch.float32)
    before = image.clone()
    Normalize([0.5] * 3, [0.5] * 3)({"image": image})
    assert torch.equal(image, before)


def small_store(path: Path, pixels: np.ndarray[Any, Any], statistics: dict[str, Any]) -> tsds.Split:
    pairs = {"keypoints": ["left", "right", "nose"], "flip_pairs": [[0, 1]]}
    values = {"keypoints": {"dtype": "float32", "shape": [3, 2]}}
    fields = {"image": image_field(pixels), "objects": {"kind": "objects", "values": values, "classes": [], **pairs}}
    arrays = {
        "image": pixels,
        "objects/offsets": np.zeros(len(pixels) + 1, np.int64),
        "objects/keypoints": np.zeros((0, 3, 2), np.float32),
    }
    return tsds.open(write_store(path, fields, ("train", len(pixels), arrays), statistics=statistics))["train"]


def test_normalize_and_flip_pairs_from_a_split(tmp_path: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (5, 8, 6, 3), np.uint8)
    scaled = pixels.reshape(-1, 3) / 255
    moments = {"mean": scaled.mean(0).tolist(), "std": scaled.std(0).tolist(), "scale": 255}
    split = small_store(tmp_path / "a.tsds", pixels, {"image": moments})
    image = Normalize.from_split(split)({"image": torch.from_numpy(pixels).permute(0, 3, 1, 2)})["image"]
    torch.testing.assert_close(image.mean((0, 2, 3)), torch.zeros(3), rtol=0, atol=1e-5)
    torch.testing.assert_close(image.std((0, 2, 3), correction=0), torch.ones(3), rtol=0, atol=1e-5)
    assert image.is_contiguous(memory_format=torch.channels_last)
    assert RandomHorizontalFlip.from_split(split).flip_pairs == ((0, 1),)


@pytest.mark.parametrize("statistics", [{}, {"image": {"mean": [0, 1, 0], "std": [1, 0, 1], "scale": 255}}])
def test_normalize_needs_statistics(tmp_path: Path, statistics: dict[str, Any]) -> None:
    split = small_store(tmp_path / "a.tsds", np.zeros((1, 2, 2, 3), np.uint8), statistics)
    with pytest.raises(tsds.OptionError, match=r"expected mean and std of each channel, found .* Use Normalize\(mean"):
        Normalize.from_split(split)
