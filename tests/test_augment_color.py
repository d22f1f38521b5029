"""Color jitter and normalization, checked against torchvision sample by sample."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st
from torchvision.transforms.v2 import functional

import tensorstore_ds as tsds
from image_batches import dtypes, formats, images, params_of, quick, same_format, seeds, sizes
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
from tensorstore_ds.loading.augment.geometry import RandomHorizontalFlip
from tensorstore_ds.loading.augment.normalize import Normalize

_ADJUST = (
    functional.adjust_brightness,
    functional.adjust_contrast,
    functional.adjust_saturation,
    functional.adjust_hue,
)


@quick
@given(seeds, sizes, dtypes, formats, st.sampled_from([1, 3]), st.sets(st.sampled_from(range(3)), min_size=1))
def test_color_jitter_equals_torchvision(
    seed: int, size: tuple[int, int], dtype: torch.dtype, memory: Any, channels: int, used: set[int]
) -> None:
    jitter = ColorJitter(*(0.8 if which in used else 0 for which in range(3)), seed=seed)
    batch = {"image": images(seed, size, dtype, memory, channels=channels)}
    rows, params = params_of(jitter, batch)
    found = jitter(batch, rows, 0)["image"]
    assert found.dtype == dtype and same_format(found, batch["image"])
    assert params["order"].shape == (4, len(used)) and set(params["order"].flatten().tolist()) == used
    for i in range(4):
        image = batch["image"][i]
        for which, factor in zip(params["order"][i].tolist(), params["factors"][i].tolist(), strict=True):
            assert 0.2 <= factor <= 1.8
            image = _ADJUST[which](image, factor)
        # A last bit that rounds otherwise is one level of 255, which later blends, of factors up to 1.8, enlarge.
        levels = (1, 3, 7)[len(used) - 1]
        torch.testing.assert_close(found[i], image, rtol=0, atol=levels if dtype == torch.uint8 else 1e-5)


def test_color_jitter_mostly_matches_to_the_level() -> None:
    jitter = ColorJitter(0.4, 0.4, 0.4)
    batch = {"image": images(1, (32, 32), count=16)}
    rows, params = params_of(jitter, batch)
    found, different = jitter(batch, rows, 0)["image"], 0
    for i in range(16):
        image = batch["image"][i]
        for which, factor in zip(params["order"][i].tolist(), params["factors"][i].tolist(), strict=True):
            image = _ADJUST[which](image, factor)
        different += int((found[i] != image).sum())
    assert different < 0.001 * found.numel()


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


# --- hue ---------------------------------------------------------------------------------------------------------


@quick
@given(seeds, sizes, dtypes, formats, st.sampled_from([1, 3]))
def test_hue_equals_torchvision(
    seed: int, size: tuple[int, int], dtype: torch.dtype, memory: Any, channels: int
) -> None:
    jitter = ColorJitter(hue=0.5, seed=seed)
    batch = {"image": images(seed, size, dtype, memory, channels=channels)}
    rows, params = params_of(jitter, batch)
    found = jitter(batch, rows, 0)["image"]
    assert found.dtype == dtype and same_format(found, batch["image"])
    for i, shift in enumerate(params["factors"][:, 0].tolist()):
        assert -0.5 <= shift <= 0.5
        expected = functional.adjust_hue(batch["image"][i], shift)
        torch.testing.assert_close(found[i], expected, rtol=0, atol=1 if dtype == torch.uint8 else 1e-5)


def test_hue_has_its_place_among_the_others() -> None:
    jitter = ColorJitter(0.3, 0.3, 0.3, 0.2, seed=1)
    batch = {"image": images(1, (16, 16), torch.float32, count=12)}
    rows, params = params_of(jitter, batch)
    assert len({tuple(order) for order in params["order"].tolist()}) > 6
    found = jitter(batch, rows, 0)["image"]
    for i in range(12):
        image = batch["image"][i]
        for which, factor in zip(params["order"][i].tolist(), params["factors"][i].tolist(), strict=True):
            image = _ADJUST[which](image, factor)
        torch.testing.assert_close(found[i], image, rtol=0, atol=1e-4)


# --- colors of some images ---------------------------------------------------------------------------------------

SOME: list[tuple[Sometimes, Any]] = [
    (RandomGrayscale(0.5), lambda image: functional.rgb_to_grayscale(image, len(image))),
    (Solarize(0.6), lambda image: functional.solarize(image, 0.6)),
    (Solarize(100), lambda image: functional.solarize(image, 100)),
    (Posterize(0), lambda image: functional.posterize(image, 0)),
    (Posterize(3), lambda image: functional.posterize(image, 3)),
    (Posterize(8), lambda image: functional.posterize(image, 8)),
    (Equalize(), functional.equalize),
    (AutoContrast(), functional.autocontrast),
]


@pytest.mark.parametrize(("transform", "same"), SOME, ids=lambda each: type(each).__name__)
@pytest.mark.parametrize("size", [(1, 1), (3, 5), (28, 28), (224, 224), (480, 640)])
@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
def test_colors_of_some_equal_torchvision(
    transform: Sometimes, same: Any, size: tuple[int, int], channels: int, dtype: torch.dtype
) -> None:
    if dtype != torch.uint8 and getattr(transform, "threshold", 0) > 1:
        pytest.skip("a threshold of 8-bit images")
    image = images(5, size, dtype, channels=channels, count=6 if size[0] < 200 else 3)
    dark = image // 3 + 40 if dtype == torch.uint8 else image / 3 + 0.2  # not all levels
    for batch in ({"image": image}, {"image": dark}, {"image": dark.contiguous()}):
        rows, params = params_of(transform, batch)
        found = transform(batch, rows, 0)["image"]
        assert found.dtype == dtype and same_format(found, batch["image"])
        for i, chosen in enumerate(params["chosen"].tolist()):
            expected = same(batch["image"][i].contiguous()) if chosen else batch["image"][i]
            # To the bit in uint8; a gray may round otherwise, which is one level.
            gray = isinstance(transform, RandomGrayscale)
            atol = (1 if gray else 0) if dtype == torch.uint8 else 1e-6
            torch.testing.assert_close(found[i], expected, rtol=0, atol=atol)


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


# --- blur --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [(9, 12), (28, 28), (224, 224), (480, 640)])
@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
@pytest.mark.parametrize("kernel", [1, 5, (3, 9)])
def test_blur_equals_torchvision(size: tuple[int, int], channels: int, dtype: torch.dtype, kernel: Any) -> None:
    blur = GaussianBlur(kernel, (0.2, 3), p=0.7, seed=1)
    batch = {"image": images(0, size, dtype, channels=channels, count=6 if size[0] < 100 else 2)}
    rows, params = params_of(blur, batch)
    found = blur(batch, rows, 0)["image"]
    assert found.dtype == dtype and same_format(found, batch["image"])
    for i, (chosen, sigma) in enumerate(zip(params["chosen"].tolist(), params["sigma"].tolist(), strict=True)):
        assert 0.2 <= sigma <= 3
        sizes_of_kernel = [kernel] * 2 if isinstance(kernel, int) else list(kernel)
        image = batch["image"][i]
        expected = functional.gaussian_blur(image, sizes_of_kernel, [sigma, sigma]) if chosen else image
        torch.testing.assert_close(found[i], expected, rtol=0, atol=1 if dtype == torch.uint8 else 1e-5)


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
