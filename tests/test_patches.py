"""Images near their own size, and cut into patches: against the formula of another library, and torch's `unfold`."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st
from torchvision.transforms.v2 import functional as TF  # noqa: N812

import tensorstore_ds as tsds
from image_batches import images, quick
from jpeg_files import drawn
from stores import png_bytes, store_of
from tensorstore_ds.errors import OptionError
from tensorstore_ds.loading.augment.placements import Placements
from tensorstore_ds.transforms import ResizeToPatches

SIZES = [(90, 131), (211, 160), (64, 64), (33, 200), (256, 300), (70, 90), (17, 15)]
PLAN = ResizeToPatches(16, 40, min_patches=4)


def smart_resize(height: int, width: int, factor: int, least: int, most: int) -> tuple[int, int]:
    """Qwen2-VL's processor (transformers, Apache 2.0), in numbers of pixels."""
    h, w = max(factor, round(height / factor) * factor), max(factor, round(width / factor) * factor)
    if h * w > most:
        beta = math.sqrt(height * width / most)
        h, w = (max(factor, math.floor(each / beta / factor) * factor) for each in (height, width))
    elif h * w < least:
        beta = math.sqrt(least / (height * width))
        h, w = (math.ceil(each * beta / factor) * factor for each in (height, width))
    return h, w


@quick
@given(st.integers(1, 3000), st.integers(1, 3000), st.sampled_from([1, 7, 14, 16, 32]), st.data())
def test_sizes_are_those_of_the_formula(height: int, width: int, patch: int, data: st.DataObject) -> None:
    most = data.draw(st.integers(1, 2000))
    least = data.draw(st.integers(1, most))
    plan = ResizeToPatches(patch, most, min_patches=least)
    found = plan._place(Placements.whole([(height, width)]), np.zeros(1, np.uint64)).size[0].tolist()
    expected = smart_resize(height, width, patch, least * patch**2, most * patch**2)
    rows, columns = (side // patch for side in found)
    assert [side % patch for side in found] == [0, 0] and 1 <= rows * columns <= most
    if math.prod(expected) <= most * patch**2:
        assert found == list(expected) or _is_near(height, width, patch, least, most)


def _is_near(height: int, width: int, patch: int, least: int, most: int) -> bool:
    """Whether a number that is rounded is whole up to the last bits, where the order of operations decides."""
    sides = [
        side / patch * math.sqrt(n * patch**2 / (height * width)) for side in (height, width) for n in (least, most)
    ]
    return any(abs(side - round(side)) < 1e-9 for side in sides)


@pytest.mark.parametrize("encoding", ["raw", "source"])
def test_patches_are_torchs(tmp_path: Path, encoding: Any) -> None:
    pixels = [drawn(*size, seed=i) for i, size in enumerate(SIZES)]
    given = pixels if encoding == "raw" else map(png_bytes, pixels)
    samples = [{"image": image, "label": i % 2} for i, image in enumerate(given)]
    store_of(tmp_path / "s.tsds", samples, ["a", "b"], encoding=encoding)
    dataset = tsds.StoreDataset(tmp_path / "s.tsds", decode=PLAN)
    whole = [sample["image"] for sample in tsds.StoreDataset(tmp_path / "s.tsds")]
    (batch,) = tsds.DataLoader(dataset, 7, collate_images="patches", size_divisor=16)
    assert list(batch) == ["image", "image_position", "image_offsets", "label"]
    assert batch["image"].is_contiguous(memory_format=torch.channels_last)
    bounds = batch["image_offsets"].tolist()
    assert len(bounds) == 8
    assert bounds[-1] == len(batch["image"]) == len(batch["image_position"])
    weights = torch.randn(5, 3, 16, 16)
    for i, image in enumerate(whole):
        height, width = smart_resize(*image.shape[1:], 16, 4 * 256, 40 * 256)
        resized = TF.resize(image, [height, width], antialias=True)
        own = slice(bounds[i], bounds[i + 1])
        columns = torch.nn.functional.unfold(resized[None].float(), 16, stride=16)[0].T.to(torch.uint8)
        assert torch.equal(batch["image"][own].flatten(1), columns)
        places = [[y, x] for y in range(height // 16) for x in range(width // 16)]
        assert batch["image_position"][own].tolist() == places
        embedded = batch["image"][own].flatten(1).float() @ weights.flatten(1).T
        by_torch = torch.nn.functional.conv2d(resized[None].float(), weights, stride=16)[0].flatten(1).T
        torch.testing.assert_close(embedded, by_torch, rtol=1e-4, atol=1e-1)


def test_other_ways_to_the_same_patches(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    samples = [
        {"image": drawn(70, 90, seed=i), "mask": rng.integers(0, 3, (70, 90)).astype(np.uint8)} for i in range(6)
    ]
    store_of(tmp_path / "s.tsds", samples, ["a", "b", "c"])
    dataset = tsds.StoreDataset(tmp_path / "s.tsds", decode=PLAN)
    options: dict[str, Any] = {"collate_images": "patches", "size_divisor": 16}
    (batch,) = tsds.DataLoader(dataset, 6, **options)
    for loader in (
        tsds.DataLoader(dataset, 6, **options, num_workers=1, multiprocessing_context="fork"),
        tsds.DataLoader(tsds.StoreDataset(tmp_path / "s.tsds", decode=PLAN, transform=dict), 6, **options),
    ):
        (other,) = loader
        assert all(torch.equal(other[name], batch[name]) for name in batch)
    image = ResizeToPatches(16, 40, min_patches=4)(
        {"image": torch.stack([s["image"] for s in tsds.StoreDataset(tmp_path / "s.tsds")])}
    )["image"]
    packed = tsds.loading.pack_patches(image, 16)
    assert torch.equal(packed.image, batch["image"])
    placed = next(iter(tsds.DataLoader(dataset, 6)))["mask"]
    rows, columns = (side // 16 for side in placed.shape[1:])
    assert torch.equal(
        batch["mask"], placed.unflatten(1, (rows, 16)).unflatten(3, (columns, 16)).transpose(2, 3).flatten(0, 2)
    )
    normalize = tsds.Normalize.from_split(dataset.split)
    (normal,) = tsds.DataLoader(dataset, 6, **options, batch_transform=normalize)
    assert torch.equal(normal["image"], normalize({"image": batch["image"]})["image"])
    as_tuple = tsds.StoreDataset(tmp_path / "s.tsds", decode=PLAN, return_as="tuple", fields=["image"])
    ((first, position, offsets),) = next(iter(tsds.DataLoader(as_tuple, 6, **options, batch_transform=normalize)))
    assert torch.equal(first, normal["image"])
    assert torch.equal(position, batch["image_position"])
    assert torch.equal(offsets, batch["image_offsets"])
    (views,) = tsds.DataLoader(dataset.with_decode([PLAN, ResizeToPatches(16, 9)]), 6, **options)
    assert torch.equal(views["image_0"], batch["image"]) and int(views["image_1_offsets"][-1]) <= 6 * 9
    assert len(views["mask_1"]) == len(views["image_1"])


def test_buckets_know_the_sizes_of_a_plan(tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    sizes = rng.integers(20, 300, (60, 2))
    store_of(tmp_path / "s.tsds", [{"image": np.zeros((*size, 1), np.uint8)} for size in sizes.tolist()])
    dataset = tsds.StoreDataset(tmp_path / "s.tsds", decode=PLAN)
    placed = [smart_resize(*size, 16, 4 * 256, 40 * 256) for size in sizes.tolist()]
    found, expected = (tsds.SizeBucketSampler(each, pixels=100 * 256, seed=2) for each in (dataset, np.array(placed)))
    assert list(found) == list(expected)
    mixed = tsds.MixedDataset([dataset, dataset])
    assert tsds.SizeBucketSampler(mixed, 4).num_images == 120
    seen = 0
    for batch in tsds.DataLoader(dataset, batch_sampler=found, collate_images="patches", size_divisor=16):
        assert len(batch["image"]) <= 100
        seen += len(batch["image_offsets"]) - 1
    assert seen == 60
    subset = dataset.subset([3, 5])
    assert tsds.SizeBucketSampler(subset, 1, shuffle=False)._sizes.tolist() == [list(placed[3]), list(placed[5])]


def test_what_cannot_be_cut_is_refused(tmp_path: Path) -> None:
    store_of(tmp_path / "s.tsds", [{"image": drawn(40, 50, seed=0)}] * 2)
    dataset = tsds.StoreDataset(tmp_path / "s.tsds")
    with pytest.raises(ValueError, match=r"multiples of 16, found 40x50\. Use ResizeToPatches\(16, \.\.\.\) as"):
        next(iter(tsds.DataLoader(dataset, 2, collate_images="patches", size_divisor=16)))
    loader = tsds.DataLoader(
        dataset, 2, collate_images="patches", size_divisor=10, batch_transform=tsds.transforms.ColorJitter(0.4)
    )
    with pytest.raises(ValueError, match=r"expected whole images, found patches, which a Normalize alone can change"):
        next(iter(loader))
    with pytest.raises(OptionError, match=r"`collate_images=patches`: expected batches that this loader makes"):
        tsds.DataLoader(dataset, None, collate_images="patches", size_divisor=10)
    for numbers in ((0, 1), (5, 6), (10**9, 1)):
        with pytest.raises(OptionError, match="`max_patches`: expected 1 or more, and at least the smallest"):
            ResizeToPatches(16, numbers[0], min_patches=numbers[1])
    with pytest.raises(OptionError, match="`size`"):
        ResizeToPatches(0, 1)
    assert images(0, (16, 16)).shape == tsds.loading.pack_patches(images(0, (16, 16)), 16).image.shape
