"""Parts of images, at fractions of pixels and of few of them, are resized as the whole is, and as torch does."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch.nn.functional import interpolate

import antialiased
import tensorstore_ds as tsds
from tensorstore_ds.imaging.antialias import Axis, resize_part
from tensorstore_ds.loading.augment.placements import Placements
from tensorstore_ds.loading.decoding import lay, place_on, windows_of
from tensorstore_ds.reading.stored_images import Pixels

#: What images of 320 x 256 become, and of those the part that is seen.
PLANS: dict[str, Any] = {
    "crop": tsds.RandomResizedCrop((20, 28), scale=(0.02, 1.0)),
    "validate": tsds.Compose([tsds.Resize(36), tsds.RandomCrop(30)]),
    "enlarge": tsds.Compose([tsds.RandomCrop(12), tsds.Resize(40), tsds.RandomCrop(30)]),
    "twice": tsds.Compose([tsds.RandomResizedCrop(77), tsds.Resize(33), tsds.RandomCrop(20)]),
    "letterbox": tsds.transforms.Letterbox((31, 24)),
    "pad": tsds.Compose(
        [tsds.Resize(21), tsds.transforms.Pad(5, fill=3), tsds.RandomCrop(18), tsds.RandomHorizontalFlip()]
    ),
    "thrice": tsds.Compose([tsds.CenterCrop(301), tsds.Resize(100), tsds.CenterCrop(77), tsds.Resize(41)]),
}


def noise(*shape: int, seed: int = 0) -> NDArray[np.uint8]:
    return np.random.default_rng(seed).integers(0, 256, shape, np.uint8)


def drawn_line(rng: np.random.Generator, length: int) -> antialiased.Line:
    """Any part of a line of pixels, often at its edges."""
    origin = float(rng.choice([0.0, rng.random(), rng.random() * (length - 1), rng.integers(length)]))
    extent = min(length - origin, float(rng.choice([length - origin, rng.random() * length + 1e-3])))
    return origin, extent, int(rng.integers(1, 40)), length


@pytest.mark.parametrize("channels", [1, 3])
def test_fractions_of_pixels_are_as_defined(channels: int) -> None:
    rng = np.random.default_rng(channels)
    for number in range(60):
        height, width = (int(n) for n in rng.integers(1, 50, 2))
        pixels = noise(height, width, channels, seed=number)
        y, x = (drawn_line(rng, length) for length in (height, width))
        expected = antialiased.resized(pixels, y, x)
        for low, high in (((0, 0), (y[2], x[2])), ((y[2] // 3, x[2] // 2), (y[2], x[2] // 2 + 1))):
            axes = [Axis(*line[:3], a, b, line[3]) for line, a, b in zip((y, x), low, high, strict=True)]
            found = resize_part(pixels, *axes)
            np.testing.assert_array_equal(
                found, expected[low[0] : high[0], low[1] : high[1]], str((pixels.shape, y, x))
            )


@pytest.mark.parametrize("size", [(28, 28), (224, 224), (500, 375), (257, 511), (1024, 768), (1, 60), (60, 1)], ids=str)
def test_whole_pixels_are_torchs(size: tuple[int, int]) -> None:
    pixels = noise(*size, 3)
    for to in ((224, 224), (256, 341), (32, 28), (1, 1), (37, 1100)):
        expected = interpolate(torch.from_numpy(pixels).permute(2, 0, 1)[None], to, mode="bilinear", antialias=True)
        first, last = (to[0] // 3, to[1] // 5), (to[0] // 3 + to[0] // 2 + 1, to[1])
        axes = [Axis(0, n, r, a, b, n) for n, r, a, b in zip(size, to, first, last, strict=True)]
        wanted = expected[0, :, first[0] : last[0], first[1] : last[1]].permute(1, 2, 0)
        np.testing.assert_array_equal(resize_part(pixels, *axes), wanted)


@pytest.mark.parametrize("dtype", ["uint16", "int16", "float16", "float32", "float64"])
def test_other_types_have_the_same_weights(dtype: str) -> None:
    pixels = (np.random.default_rng(0).random((19, 23, 2)) * 1000).astype(dtype)
    y, x = (1.25, 15.5, 7, 19), (0.3, 20.1, 31, 23)
    weights = []
    for line in (y, x):
        matrix = np.zeros((line[2], line[3]))
        for i, (first, own) in enumerate(antialiased.filters(line)):
            matrix[i, first : first + len(own)] = own
        weights.append(matrix)
    expected = np.einsum("iy,yxc,jx->ijc", weights[0], pixels.astype(float), weights[1])
    found = resize_part(pixels, Axis(*y[:3], 0, 7, 19), Axis(*x[:3], 0, 31, 23))
    assert found.dtype == dtype
    wanted = np.rint(expected) if found.dtype.kind in "iu" else expected.astype(dtype)
    np.testing.assert_allclose(found, wanted, rtol=2e-3 if dtype == "float16" else 1e-6)


@pytest.mark.slow
@pytest.mark.drawn(4)
@pytest.mark.parametrize("is_decoded_smaller", [True, False])
@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS)
def test_a_window_has_all_pixels_that_count(plan: Any, *, is_decoded_smaller: bool) -> None:
    """Others may have any value or be missing: at each scale, and of files that cannot be decoded smaller."""
    size, rows = (320, 256), np.arange(12)
    placements = place_on(Placements.whole([size] * len(rows)), plan, rows, 0)
    windows = windows_of(placements, np.array([size] * len(rows)))
    for row, (window, canvas_size) in enumerate(zip(windows, placements.size.tolist(), strict=True)):
        scale = window.scale if is_decoded_smaller else 1
        pixels = noise(-(-size[0] // scale), -(-size[1] // scale), 3)
        low, high = [n // scale for n in window.low], [-(-n // scale) for n in window.high]
        part = np.s_[low[0] : high[0], low[1] : high[1]]
        other = noise(*pixels.shape, seed=1)
        other[part] = pixels[part]
        canvases = np.zeros((3, *canvas_size, 3), np.uint8)
        lay(canvases[0], Pixels(pixels, 0, 0, scale), window, 7)
        lay(canvases[1], Pixels(other, 0, 0, scale), window, 7)
        lay(canvases[2], Pixels(pixels[part], low[0] * scale, low[1] * scale, scale), window, 7)
        np.testing.assert_array_equal(canvases[1], canvases[0])
        np.testing.assert_array_equal(canvases[2], canvases[0])
        if row % 6:  # the rest takes long
            continue
        y, x = (
            (o / scale, e / scale, r, -(-n // scale))
            for o, e, r, n in zip(window.origin, window.extent, window.resized, size, strict=True)
        )
        seen = [slice(a, b) for a, b in zip(window.first, window.last, strict=True)]
        expected = antialiased.resized(pixels, y, x)[seen[0], seen[1]]
        top, left = window.at
        assert (canvases[0][top : top + len(expected), left : left + expected.shape[1]] == expected).all()
