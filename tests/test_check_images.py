"""Images that a check names: blurred, dark, overexposed and of an odd aspect ratio, each planted; and no others."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageEnhance, ImageFilter

import tensorstore_ds as tsds
from small_stores import tsds as command
from stores import store_of
from tensorstore_ds.annex.checking.quality import qualities, reduced

ODD = [("aspect", "tall"), ("aspect", "wide"), ("blurred", "soft"), ("bright", "white"), ("dark", "night")]


def scene(seed: int, size: tuple[int, int] = (120, 90)) -> Image.Image:
    """Sharp rectangles and circles of many colors; `size` is width and height."""
    rng = np.random.default_rng(seed)
    image = Image.new("RGB", size, tuple(rng.integers(60, 200, 3).tolist()))
    draw = ImageDraw.Draw(image)
    for i in range(12):
        x, y, side = (int(rng.integers(0, each)) for each in (size[0], size[1], 30))
        shape = draw.ellipse if i % 2 else draw.rectangle
        shape((x, y, x + 10 + side, y + 10 + side), fill=tuple(rng.integers(0, 256, 3).tolist()))
    return image


def washed(image: Image.Image) -> Image.Image:
    """Nearly white, with the contrast of a tenth."""
    return Image.fromarray((255 - (255 - np.asarray(image, np.float32)) * 0.05).astype(np.uint8))


def folder(root: Path, ending: str, *, count: int = 12) -> Path:
    """Ordinary images, and five that are odd."""
    images = {f"plain{i}": scene(i) for i in range(count)}
    images["soft"] = scene(50).filter(ImageFilter.GaussianBlur(4))
    images["night"] = ImageEnhance.Brightness(scene(51)).enhance(0.1)
    images["white"] = washed(scene(52))
    images["wide"], images["tall"] = scene(53, (300, 60)), scene(54, (40, 120))
    images["blank"] = Image.new("RGB", (120, 90), (3, 3, 3))
    (root / "a").mkdir(parents=True)
    for name, image in images.items():
        image.save(root / "a" / f"{name}.{ending}", quality=95)
    return root


def named(found: tsds.checking.CheckFindings) -> list[tuple[str, str]]:
    return sorted((each.why, Path(each.sample.key).stem) for each in found.images)


def checked(path: Path, **options: Any) -> tsds.checking.CheckFindings:
    return tsds.check_store(path, near=False, min_class=0, **options)


@pytest.mark.parametrize("ending", ["png", "jpg"])
@pytest.mark.parametrize(
    "convert",
    [{"encoding": "source"}, {"fit": tsds.Fit((64, 64), "stretch")}, {"size": (96, 160)}],
    ids=str,
)
def test_planted_images_are_named_and_no_others(tmp_path: Path, ending: str, convert: dict[str, Any]) -> None:
    """Also if they are padded, and if all were stretched to a square: the aspect ratio is that of the source."""
    tsds.convert(folder(tmp_path / "src", ending), tmp_path / "s.tsds", workers=0, **convert)
    found = checked(tmp_path / "s.tsds")
    assert named(found) == ODD
    assert not found.is_clean
    assert [Path(each.key).stem for each in found.constant] == ["blank"]
    assert found.drop == {"train": (found.constant[0].row,)}  # odd images are named, and stay
    values = {Path(each.sample.key).stem: each.value for each in found.images}
    assert (values["wide"], values["tall"]) == (5, round(40 / 120, 3))


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"odd_images": False}, []),
        ({"min_sharpness": 0}, ["aspect", "aspect", "bright", "dark"]),
        ({"min_lights": 0}, ["aspect", "aspect", "blurred", "bright"]),
        ({"max_shadows": 255}, ["aspect", "aspect", "blurred", "dark"]),
        ({"max_image_aspect": 3.9}, ["aspect", "blurred", "bright", "dark"]),
        ({"max_image_aspect": 100}, ["blurred", "bright", "dark"]),
    ],
)
def test_thresholds(tmp_path: Path, options: dict[str, Any], expected: list[str]) -> None:
    """The tall image has a quarter of the median's aspect ratio, the wide one 3.75 times."""
    tsds.convert(folder(tmp_path / "src", "png"), tmp_path / "s.tsds", workers=0)
    assert [why for why, _ in named(checked(tmp_path / "s.tsds", **options))] == expected


@pytest.mark.parametrize(
    "change",
    [
        lambda image: image.filter(ImageFilter.GaussianBlur(4)),
        lambda image: ImageEnhance.Brightness(image).enhance(0.1),
        washed,
        lambda image: image.resize((600, 40)),
    ],
    ids=["blurred", "dark", "bright", "wide"],
)
def test_a_store_whose_images_are_all_alike_is_clean(
    tmp_path: Path, change: Callable[[Image.Image], Image.Image]
) -> None:
    images = [np.asarray(change(scene(i))) for i in range(8)]
    assert checked(store_of(tmp_path / "s.tsds", [{"image": image} for image in images]).path).is_clean


@pytest.mark.parametrize("dtype", [np.uint16, np.float32])
def test_numbers_without_a_known_white_are_not_called_dark(tmp_path: Path, dtype: Any) -> None:
    """Blur is found."""
    scenes = [*(scene(i) for i in range(8)), scene(9).filter(ImageFilter.GaussianBlur(4))]
    images = [np.asarray(image.convert("L"))[:, :, None].astype(dtype) * dtype(200) for image in scenes]
    store = store_of(tmp_path / "s.tsds", [{"image": image} for image in [*images, images[0] // 20]])
    assert [(each.why, each.sample.row) for each in checked(store.path).images] == [("blurred", 8)]


def oracle(image: NDArray[np.uint8]) -> tuple[float, float, float]:
    """The measures from their definition, pixel by pixel."""
    values = image.astype(float)
    edges = [
        abs(values[y - 1, x] + values[y + 1, x] + values[y, x - 1] + values[y, x + 1] - 4 * values[y, x])
        for y in range(1, len(values) - 1)
        for x in range(1, values.shape[1] - 1)
    ]
    low, shadow, light = (float(np.percentile(values, p, method="inverted_cdf")) for p in (1, 5, 99))
    edge = np.percentile(edges, 99, method="inverted_cdf") if edges else np.nan
    return (edge / (light - low) if light > low else np.nan), light, shadow


@pytest.mark.parametrize("size", [(64, 64), (17, 64), (3, 3), (2, 9), (1, 1)])
def test_measures_are_those_of_the_definition(size: tuple[int, int]) -> None:
    rng = np.random.default_rng(4)
    images = rng.integers(0, 256, (6, *size)).astype(np.uint8)
    images[4], images[5] = 7, 200
    images[5, 0, 0] = 0
    np.testing.assert_allclose(qualities(images), [oracle(image) for image in images], rtol=1e-6)


@pytest.mark.parametrize(("size", "shape"), [((640, 480), (64, 64)), ((28, 28), (28, 28)), ((1000, 20), (20, 64))])
def test_images_are_reduced_and_not_enlarged(size: tuple[int, int], shape: tuple[int, int]) -> None:
    gray = scene(3, size).convert("L")
    small = reduced(gray)
    assert small.shape == shape
    exact = np.asarray(gray.resize(shape[::-1], Image.Resampling.BILINEAR), int)
    assert np.abs(small.astype(int) - exact).mean() < 3


def test_sharpness_does_not_depend_on_contrast() -> None:
    gray = np.asarray(scene(1).convert("L").resize((64, 64)), np.float64)
    sharp = [qualities((100 + (gray - 100) * factor).clip(0, 255).astype(np.uint8)[None])[0, 0] for factor in (1, 0.4)]
    assert sharp[0] == pytest.approx(sharp[1], rel=0.1)


def test_what_the_command_prints(tmp_path: Path) -> None:
    tsds.convert(folder(tmp_path / "src", "png"), tmp_path / "s.tsds", workers=0)
    words = ("check", tmp_path / "s.tsds", "--no-near", "--min-class", 0)
    shown = command(*words)
    lines = [line.strip() for line in shown.stdout.splitlines()]
    titles = ("blurred images: 1", "dark images: 1", "overexposed images: 1", "images of an odd aspect ratio: 2")
    assert shown.exit_code == 1 and {*titles} <= {*lines}
    assert any(line.endswith("wide.png: width / height 5") for line in lines)
    data = json.loads(command(*words, "--json").stdout)
    assert sorted((each["why"], Path(each["sample"]["key"]).stem) for each in data["images"]) == ODD
    left = command(*words, "--no-odd-images")
    assert "blurred" not in left.stdout and "images of one color: 1" in left.stdout
