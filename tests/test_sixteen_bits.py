"""Images of 16 bits, from files to a batch: each step against NumPy, or torchvision on floating-point numbers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor
from torchvision.transforms import v2
from torchvision.transforms.v2 import functional

import tensorstore_ds as tsds
from image_batches import params_of, same_format
from stores import store_of
from tensorstore_ds import transforms as ts
from tensorstore_ds.annex.augment import color, erasing, mixing, mosaic, tones, warp
from tensorstore_ds.annex.training.data import image_shape
from tensorstore_ds.loading.augment import pixels
from test_augment_color import blurred, chosen, colors

WHITE = 65535
LAYOUTS = pytest.mark.parametrize("memory", [torch.contiguous_format, torch.channels_last])


def images(size: tuple[int, int] = (40, 60), memory: Any = torch.channels_last, channels: int = 3) -> Tensor:
    """Six images with values of all 16 bits, of which no byte repeats the other."""
    values = np.random.default_rng(size[0]).integers(0, WHITE + 1, (6, channels, *size))
    return torch.from_numpy(values.astype(np.uint16)).contiguous(memory_format=memory)


def wide(found: Tensor) -> Tensor:
    assert found.dtype == torch.uint16
    return found.to(torch.int64)


# --- transforms that move pixels ------------------------------------------------------------------------------------


def cropped(image: Tensor, params: Any, i: int) -> Tensor:
    padded = functional.pad(image, [4], fill=40_000)
    return functional.crop(padded, int(params["top"][i]), int(params["left"][i]), 32, 48)


def cut_and_resized(image: Tensor, params: Any, i: int) -> Tensor:
    return functional.resized_crop(image, *params["boxes"][i].tolist(), [24, 30], antialias=True)


def erased(image: Tensor, params: Any, i: int) -> Tensor:
    top, left, height, width = params["boxes"][i].tolist()
    return functional.erase(image, top, left, height, width, torch.full((1, 1, 1), 50_000.0))


def turned(image: Tensor, params: Any, i: int) -> Tensor:
    move, center = params["translate"][i].tolist(), [30.0, 20.0]
    return functional.affine(image, float(params["angle"][i]), move, 1.0, [0.0], fill=None, center=center)


#: A transform, the same by torchvision on float64, and by how many of 65,535 levels they may differ.
MOVES: list[tuple[Any, Any, int]] = [
    (tsds.RandomCrop((32, 48), 4, fill=40_000), cropped, 0),
    (tsds.RandomHorizontalFlip(), lambda image, params, i: image.flip(2) if params["flip"][i] else image, 0),
    (tsds.CenterCrop(30), lambda image, params, i: functional.center_crop(image, [30]), 0),
    (ts.Pad((1, 2), fill=65_000), lambda image, params, i: functional.pad(image, [1, 2], fill=65_000), 0),
    (tsds.Resize((23, 31)), lambda image, params, i: functional.resize(image, [23, 31], antialias=True), 1),
    (tsds.Resize((80, 90)), lambda image, params, i: functional.resize(image, [80, 90], antialias=True), 1),
    (tsds.RandomResizedCrop((24, 30)), cut_and_resized, 1),
    (ts.RandomErasing(1, value=50_000), erased, 0),
    (ts.GaussianBlur(5, (0.2, 3), p=0.7), blurred([5, 5]), 1),
    (ts.RandomAffine((90, 90), (0.2, 0.2)), turned, 0),
]


@LAYOUTS
@pytest.mark.parametrize(("transform", "same", "levels"), MOVES, ids=lambda each: getattr(each, "_get_name", str)())
def test_pixels_are_moved_as_torchvision_does(transform: Any, same: Any, levels: int, memory: Any) -> None:
    batch = {"image": images(memory=memory)}
    before = batch["image"].clone()
    rows, params = params_of(transform, batch)
    found = transform(batch, rows, 0)["image"]
    assert same_format(found, batch["image"]) and torch.equal(batch["image"], before)
    for i in range(6):
        expected = same(before[i].to(torch.float64).contiguous(), params, i).round().long()
        assert (wide(found[i]) - expected).abs().max() <= levels


# --- transforms that change values ----------------------------------------------------------------------------------


def quantized(image: Tensor, params: Any, i: int) -> Tensor:
    return (image * WHITE).round().long().bitwise_right_shift(13).bitwise_left_shift(13) / WHITE


#: A transform, the same by torchvision on floats in [0, 1], and by how many of 65,535 levels they may differ.
#: Each turn of the colors truncates, and a contrast of up to 1.8 enlarges the difference.
VALUES: list[tuple[Any, Any, int]] = [
    (ts.ColorJitter(0.8), colors, 1),
    (ts.ColorJitter(0, 0.8), colors, 2),
    (ts.ColorJitter(0.4, 0.4, 0.4, seed=1), colors, 6),
    (ts.ColorJitter(hue=0.5), colors, 6),
    (ts.RandomGrayscale(0.5), chosen(functional.rgb_to_grayscale, 3), 1),
    (ts.Solarize(30_000, p=1), lambda image, params, i: functional.solarize(image, 30_000 / WHITE), 0),
    (ts.Posterize(3, p=1), quantized, 0),
    (ts.AutoContrast(p=1), lambda image, params, i: functional.autocontrast(image), 1),
]


@LAYOUTS
@pytest.mark.parametrize(("transform", "same", "levels"), VALUES, ids=lambda each: getattr(each, "_get_name", str)())
def test_values_are_changed_as_torchvision_does(transform: Any, same: Any, levels: int, memory: Any) -> None:
    for image in (images(memory=memory), (images(memory=memory).long() // 3 + 9000).to(torch.uint16)):
        batch = {"image": image}
        rows, params = params_of(transform, batch)
        found = transform(batch, rows, 0)["image"]
        assert same_format(found, image)
        for i in range(6):
            expected = same((image[i].to(torch.float64) / WHITE).contiguous(), params, i) * WHITE
            assert (wide(found[i]) - expected).abs().max() <= levels + 0.6, i
    assert wide(found).unique().numel() > 256 or isinstance(transform, ts.Posterize)


@pytest.mark.drawn(5)
@pytest.mark.parametrize(
    "transform", [each for each, _, _ in (*MOVES, *VALUES)] + [ts.RandomErasing(1, value="random")]
)
def test_a_device_computes_the_same_in_one_operation(transform: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A device gets int32, and changes whole batches at once."""
    batch = {"image": images()}
    rows, params = params_of(transform, batch)
    found = transform(batch, rows, 0)["image"]
    torch._dynamo.reset()
    compiled, one = (tsds.Compose([transform], compile=how)(batch, rows, 0)["image"] for how in ("eager", False))
    assert (wide(compiled) - wide(one)).abs().max() <= 1
    for module in (pixels, tones, warp, color, erasing):
        monkeypatch.setattr(module, "in_one_operation", lambda _: True)
    at_once = transform.transform_images(batch["image"].to(torch.int32), params, None)
    assert at_once.dtype == torch.int32
    assert (at_once - wide(found)).abs().max() <= 1


def test_images_are_mixed_as_numpy_does(monkeypatch: pytest.MonkeyPatch) -> None:
    batch = {"image": images(), "label": torch.arange(6)}
    array, rows = batch["image"].numpy().astype(np.float64), torch.arange(6)
    mixup, cutmix, mosaic_ = ts.Mixup(num_classes=6), ts.CutMix(num_classes=6), ts.Mosaic(num_classes=6)
    params = mixup.make_params(mixup.keys(rows, 0), (40, 60))
    shares, other = params["shares"].numpy()[:, :, None, None, None], array[params["partners"][:, 1]]
    expected = np.rint(array * shares[:, 0] + other * shares[:, 1])
    assert np.abs(wide(mixup(batch, rows, 0)["image"]).numpy() - expected).max() <= 1
    found = [each(batch, rows, 0)["image"] for each in (cutmix, mosaic_)]
    for each in found:  # every pixel is one of the four images'
        assert np.isin(wide(each).numpy(), array).all()
    for module in (mixing, mosaic):
        monkeypatch.setattr(module, "in_one_operation", lambda _: True)
    wider = {**batch, "image": batch["image"].to(torch.int32)}
    for each, before in zip((cutmix, mosaic_), found, strict=True):
        params = each.make_params(each.keys(rows, 0), (40, 60))
        assert torch.equal(each.transform_images(wider["image"], params, None), before.to(torch.int32))


def test_noise_has_all_levels() -> None:
    found = wide(ts.RandomErasing(1, (0.9, 0.9), (1, 1), value="random")({"image": images((64, 64))})["image"])
    assert 32_000 < found.double().mean() < 33_500 and found.max() > 65_000


@pytest.mark.parametrize("make", [ts.Equalize, ts.RandAugment, ts.TrivialAugment])
def test_equalizing_is_refused(make: Any) -> None:
    transform, batch = make(p=1) if make is ts.Equalize else make(), {"image": images()}
    with pytest.raises(ValueError, match=r"256 levels, found uint16\. Use ColorJitter"):
        transform(batch)
    scaled = tsds.Compose([ts.ToFloat(), transform])(batch)["image"]
    assert scaled.dtype == torch.float32 and scaled.min() >= 0 and scaled.max() <= 1


def test_thresholds_of_other_images() -> None:
    with pytest.raises(ValueError, match=r"in \[0, 255\] for torch.uint8 images, found 256. Divide it by 257."):
        ts.Solarize(256, p=1)({"image": torch.zeros(1, 1, 2, 2, dtype=torch.uint8)})
    with pytest.raises(ValueError, match=r"in \[0, 1\] for floating-point images, found 256."):
        ts.Solarize(256, p=1)({"image": torch.zeros(1, 1, 2, 2)})


# --- scales ---------------------------------------------------------------------------------------------------------


@LAYOUTS
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_normalizing(memory: Any, dtype: torch.dtype) -> None:
    image, mean, std = images(memory=memory), (0.4, 0.5, 0.3), (0.2, 0.1, 0.3)
    twelve = (image.long() >> 4).to(torch.uint16)
    for each, bits, white in ((image, None, WHITE), (twelve, 12, 4095)):
        expected = functional.normalize(each.double() / white, mean, std)
        for found in (
            tsds.Normalize(mean, std, dtype=dtype, bits=bits)({"image": each})["image"],
            tsds.Compose([ts.ToFloat(bits=bits), tsds.Normalize(mean, std, dtype=dtype, bits=bits)])({"image": each})[
                "image"
            ],
        ):
            assert found.dtype == dtype and same_format(found, image)
            tolerance = 1e-5 if dtype == torch.float32 else 4e-2
            torch.testing.assert_close(found.double(), expected, rtol=0, atol=tolerance)
    scaled = ts.ToFloat()({"image": image})["image"]
    torch.testing.assert_close(scaled, v2.ToDtype(torch.float32, scale=True)(image), rtol=0, atol=1e-7)
    torch.testing.assert_close(ts.ToFloat(bits=12)({"image": twelve})["image"], twelve.float() / 4095)
    assert ts.ToFloat()({"image": scaled})["image"] is scaled


def test_scales_that_cannot_be() -> None:
    for each in (ts.ToFloat(bits=12), tsds.Normalize([0.5], [0.1], bits=12)):
        with pytest.raises(ValueError, match=r"`bits`: expected 1 to 8 for torch\.uint8 images, found 12"):
            each({"image": torch.zeros(1, 1, 2, 2, dtype=torch.uint8)})
    with pytest.raises(
        ValueError, match=r"for uint16 images, whose values are divided by 65535, found 900. Divide mean"
    ):
        tsds.Normalize([900.0], [300.0])({"image": torch.zeros(1, 1, 2, 2, dtype=torch.uint16)})


# --- from files -----------------------------------------------------------------------------------------------------


def radiographs(root: Path, suffix: str, sizes: list[tuple[int, int]]) -> list[np.ndarray[Any, Any]]:
    """Gray files of 16 bits whose values use 12, in two classes; class b is brighter."""
    rng, arrays = np.random.default_rng(4), []
    for i, size in enumerate(sizes):
        arrays.append((rng.integers(0, 2000, size) + 2000 * (i % 2)).astype(np.uint16))
        path = root / "train" / "ab"[i % 2] / f"{i:02}.{suffix}"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(arrays[-1]).save(path)
    return [arrays[i] for i in (*range(0, len(sizes), 2), *range(1, len(sizes), 2))]


@pytest.mark.parametrize("suffix", ["png", "tiff"])
@pytest.mark.parametrize("encoding", ["raw", "source"])
@pytest.mark.parametrize("sizes", [[(40, 50)] * 6, [(40, 50), (60, 44), (33, 70)] * 2], ids=["one size", "sizes"])
def test_files_become_batches(tmp_path: Path, suffix: str, encoding: Any, sizes: list[tuple[int, int]]) -> None:
    arrays = radiographs(tmp_path / "source", suffix, sizes)
    tsds.convert(tmp_path / "source", tmp_path / "s.tsds", encoding=encoding, workers=0)
    dataset = tsds.StoreDataset(tmp_path / "s.tsds")
    for row, array in enumerate(arrays):
        assert torch.equal(wide(dataset[row]["image"]), torch.from_numpy(array.astype(np.int64))[None])
    plan = tsds.Compose([tsds.Resize((36, 36)), tsds.RandomCrop(32), tsds.RandomHorizontalFlip()])
    every = tsds.DataLoader(dataset, 6, decode=plan)
    scale = (dataset.split.channel_moments or (0, 0, 0))[2]
    moments = np.concatenate([array.ravel() for array in arrays]) / 4095
    normalize = tsds.Normalize.from_split(dataset.split, bits=12)
    assert scale == WHITE and normalize.mean == pytest.approx([moments.mean()])
    assert normalize.std == pytest.approx([moments.std()])
    found = next(iter(tsds.DataLoader(dataset, 6, decode=plan, batch_transform=normalize)))["image"]
    pixels = next(iter(every))["image"]
    torch.testing.assert_close(
        found.double(), (pixels.double() / 4095 - moments.mean()) / moments.std(), rtol=0, atol=1e-5
    )
    resized = next(iter(tsds.DataLoader(dataset, 6, decode=tsds.Resize((36, 36)))))["image"]
    for got, array in zip(resized, arrays, strict=True):
        expected = functional.resize(torch.from_numpy(array.astype(np.float64))[None], [36, 36], antialias=True)
        assert (wide(got) - expected.round()).abs().max() <= 1


def test_a_detection_model_gets_numbers_up_to_1(tmp_path: Path) -> None:
    pixels = np.full((8, 8, 1), 13_107, np.uint16)
    sample = {"image": pixels, "objects": {"boxes": [[1.0, 1, 4, 4]], "labels": [0]}}
    store_of(tmp_path / "s.tsds", [sample] * 2, ["a"])
    image, _ = tsds.StoreDataset(tmp_path / "s.tsds", return_as="torchvision")[0]
    assert image.dtype == torch.float32 and image.unique().tolist() == pytest.approx([0.2])
    (batch, _), *_ = tsds.DataLoader(tsds.StoreDataset(tmp_path / "s.tsds", return_as="torchvision"), 2)
    assert torch.equal(batch, torch.stack([image, image]))


def test_pil_has_gray_alone(tmp_path: Path) -> None:
    for channels in (1, 3):
        store_of(tmp_path / f"{channels}.tsds", [{"image": np.full((4, 5, channels), 40_000, np.uint16)}])
    gray = tsds.StoreDataset(tmp_path / "1.tsds", as_pil=True)[0]["image"]
    assert gray.mode == "I;16" and np.asarray(gray).max() == 40_000
    with pytest.raises(
        tsds.OptionError, match=r"`as_pil`: expected colors of 8 bits, .*found 3 channels of torch.uint16"
    ):
        tsds.StoreDataset(tmp_path / "3.tsds", as_pil=True)[0]


@pytest.mark.slow
@pytest.mark.parametrize("encoding", ["raw", "source"])
def test_training_and_predicting(tmp_path: Path, encoding: Any) -> None:
    radiographs(tmp_path / "source", "png", [(32, 32)] * 16)
    tsds.convert(tmp_path / "source", tmp_path / "s.tsds", encoding=encoding, workers=0)
    assert image_shape(tsds.open(tmp_path / "s.tsds")["train"]) == (32, 32, 1)
    options = {"epochs": 12, "batch_size": 4, "device": "cpu", "patch_size": 8, "width": 24, "depth": 1, "heads": 2}
    tsds.train(tmp_path / "s.tsds", out=tmp_path / "run", **options)
    files = sorted((tmp_path / "source").rglob("*.png"))
    said = list(tsds.predict(tmp_path / "run" / "last.pt", files, device="cpu"))
    assert [each.says["class"] for each in said] == [file.parent.name for file in files]
    Image.new("L", (32, 32)).save(tmp_path / "eight.png")
    with pytest.raises(tsds.SourceError, match="expected uint16 with 1 channels, found uint8 with 1"):
        list(tsds.predict(tmp_path / "run" / "last.pt", [tmp_path / "eight.png"], device="cpu"))
