"""Images of differing sizes in one tensor; NumPy and torch's own functions say what is right."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import Tensor
from torch.utils import data
from torchvision.transforms import v2

import tensorstore_ds as tsds
from stores import detections, store_of
from tensorstore_ds.errors import OptionError
from tensorstore_ds.format.kinds import MaskField
from tensorstore_ds.loading.buffers import BufferPool
from tensorstore_ds.loading.collate import map_tensors
from tensorstore_ds.loading.padding import pad_columns

SIZES = [(30, 41), (17, 52), (64, 8), (33, 33), (9, 70), (48, 20), (21, 22)]
sizes = st.lists(st.tuples(st.integers(1, 20), st.integers(1, 20)), min_size=1, max_size=5)
quick = settings(max_examples=50, deadline=None)


def drawn(size: tuple[int, int], seed: int = 0, channels: int = 3) -> np.ndarray[Any, Any]:
    """Random pixels (H, W, C), none of them 0."""
    return np.random.default_rng((seed, *size)).integers(1, 256, (*size, channels), np.uint8)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Images of differing sizes, with objects and labels of their row."""
    samples = [
        {**sample, "image": drawn(size), "label": row % 2}
        for row, (size, sample) in enumerate(zip(SIZES, detections(len(SIZES)), strict=True))
    ]
    for (height, width), sample in zip(SIZES, samples, strict=True):
        sample["boxes"] = np.minimum(sample["boxes"], [width - 1, height - 1, width, height])
    root = tmp_path_factory.mktemp("padding")
    return store_of(root / "s.tsds", samples, ["ant", "bee"], encoding="jpeg").path


def images_of(path: Path) -> list[Tensor]:
    return [torch.from_numpy(sample["image"].copy()).permute(2, 0, 1) for sample in tsds.open(path)["train"]]


def check(batch: dict[str, Any], images: list[Tensor], divisor: int = 1) -> None:
    """Whether a batch has these images, and nothing but zeros beside them."""
    height, width = (-(-max(each.shape[i] for each in images) // divisor) * divisor for i in (1, 2))
    expected = torch.zeros(len(images), len(images[0]), height, width, dtype=images[0].dtype)
    mask = torch.zeros(len(images), height, width, dtype=torch.bool)
    for i, image in enumerate(images):
        expected[i, :, : image.shape[1], : image.shape[2]] = image
        mask[i, : image.shape[1], : image.shape[2]] = True
    assert torch.equal(batch["image"], expected) and batch["image"].dtype == expected.dtype
    assert batch["image"].is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(batch["image_mask"], mask)
    assert torch.equal(batch["image_size"], torch.tensor([each.shape[1:] for each in images]))


@quick
@given(sizes, st.integers(1, 4), st.integers(1, 9), st.sampled_from(["uint8", "float32", "uint16", "bfloat16"]))
def test_images_lie_in_the_corner(sizes: list[tuple[int, int]], channels: int, divisor: int, dtype: str) -> None:
    images = [torch.from_numpy(drawn(size, i, channels)).permute(2, 0, 1) for i, size in enumerate(sizes)]
    images = [image.to(getattr(torch, dtype)) for image in images]
    check(tsds.loading.pad_images(images, divisor)._asdict(), images, divisor)
    check(tsds.loading.pad_images([image.contiguous() for image in images], divisor)._asdict(), images, divisor)


def test_images_of_one_size_are_not_copied() -> None:
    images = torch.from_numpy(np.stack([drawn((8, 12), i) for i in range(3)])).permute(0, 3, 1, 2)
    padded = tsds.loading.pad_images(images, 4)
    assert padded.image is images
    check(padded._asdict(), list(images))
    check(tsds.loading.pad_images(images, 16)._asdict(), list(images), 16)


def test_memory_is_used_again_and_its_padding_is_zero() -> None:
    pool = BufferPool()
    large = [torch.full((3, 200, 200), 255, dtype=torch.uint8)] * 2
    first = tsds.loading.pad_images(large, pool=pool)
    places = {first.image.data_ptr(), first.image_mask.data_ptr()}
    del first
    images = [torch.from_numpy(drawn(size)).permute(2, 0, 1) for size in ((190, 150), (120, 200))]
    second = tsds.loading.pad_images(images, pool=pool)
    assert {second.image.data_ptr(), second.image_mask.data_ptr()} == places
    check(second._asdict(), images)


@pytest.mark.parametrize(
    "images",
    [
        [],
        [torch.zeros(3, 4, 4), torch.zeros(1, 4, 4)],
        [torch.zeros(3, 4, 4), torch.zeros(3, 4, 4, dtype=torch.uint8)],
        [torch.zeros(4, 4)],
        ["no image"],
    ],
)
def test_what_cannot_be_padded_is_refused(images: Any) -> None:
    with pytest.raises(ValueError, match=r"^images: expected tensors \(C, H, W\), of one C and one dtype in all of"):
        tsds.loading.pad_images(images)
    with pytest.raises(ValueError, match="size_divisor"):
        tsds.loading.pad_images([torch.zeros(3, 4, 4)], 0)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("divisor", [1, 32])
def test_batches_are_padded(path: Path, workers: int, divisor: int) -> None:
    loader = tsds.DataLoader(
        tsds.StoreDataset(path), 3, num_workers=workers, collate_images="padded", size_divisor=divisor
    )
    images, listed = images_of(path), list(tsds.DataLoader(tsds.StoreDataset(path), 3))
    for number, (batch, as_list) in enumerate(zip(loader, listed, strict=True)):
        check(batch, images[3 * number : 3 * number + 3], divisor)
        assert list(batch)[:3] == ["image", "image_mask", "image_size"]
        assert torch.equal(batch["label"], as_list["label"])
        for found, expected in zip(batch["objects"], as_list["objects"], strict=True):
            assert torch.equal(found["boxes"], expected["boxes"])
            assert torch.equal(found["keypoints"], expected["keypoints"])
        assert all(map(torch.equal, as_list["image"], images[3 * number : 3 * number + 3]))


def test_a_held_batch_does_not_change(path: Path) -> None:
    loader = tsds.DataLoader(tsds.StoreDataset(path), 2, shuffle=True, collate_images="padded", size_divisor=128)
    held = [(batch, map_tensors(batch, Tensor.clone)) for _ in range(4) for batch in loader]
    for batch, copy in held:
        assert all(torch.equal(batch[name], copy[name]) for name in ("image", "image_mask", "image_size"))


def test_images_of_one_size_have_the_same_members(tmp_path: Path) -> None:
    store = store_of(tmp_path / "s.tsds", detections(5), ["ant", "bee"])
    (batch,) = tsds.DataLoader(tsds.StoreDataset(store), 5, collate_images="padded", size_divisor=8)
    check(batch, images_of(store.path), 8)
    on_device = {"residency": "device", "device": "cpu"}
    (batch,) = tsds.DataLoader(tsds.StoreDataset(store), 5, collate_images="padded", size_divisor=8, **on_device)
    check(batch, images_of(store.path), 8)


def test_images_of_one_size_that_were_stored_in_several_are_a_list(tmp_path: Path) -> None:
    for size in (16, 24):
        samples = [{"image": drawn((40, 50), row), "key": f"{size}-{row}"} for row in range(2)]
        tsds.convert(samples, tmp_path / f"{size}.tsds", fit=tsds.Fit((size, size)), encoding=tsds.Jpeg(), workers=0)
    tsds.editing.merge_stores([tmp_path / "16.tsds", tmp_path / "24.tsds"], tmp_path / "s.tsds")
    assert tsds.open(tmp_path / "16.tsds")["train"].has_one_size
    (batch,) = tsds.DataLoader(tsds.StoreDataset(tmp_path / "s.tsds"), 4)
    assert [image.shape[-2:] for image in batch["image"]] == [(16, 16)] * 2 + [(24, 24)] * 2


def test_any_loader_pads_by_the_collate_of_ours(path: Path) -> None:
    dataset = tsds.StoreDataset(path)
    collate = tsds.DataLoader(dataset, 3, collate_images="padded", size_divisor=16).collate_fn
    for workers in (0, 1):
        first = next(iter(data.DataLoader(dataset, 3, collate_fn=collate, num_workers=workers)))
        check(first, images_of(path)[:3], 16)
    check(pickle.loads(pickle.dumps(collate))([dataset[i] for i in range(3)]), images_of(path)[:3], 16)  # noqa: S301


@pytest.mark.parametrize("workers", [0, 1])
def test_samples_of_a_transform_are_padded(path: Path, workers: int) -> None:
    def shrink(sample: dict[str, Any]) -> dict[str, Any]:
        return {**sample, "image": v2.functional.to_dtype(sample["image"][:, ::2], torch.float32, scale=True)}

    dataset = tsds.StoreDataset(path, transform=shrink)
    (batch,) = tsds.DataLoader(dataset, 7, num_workers=workers, collate_images="padded", size_divisor=4)
    check(batch, [v2.functional.to_dtype(image[:, ::2], torch.float32, scale=True) for image in images_of(path)], 4)
    assert type(batch["image"]) is Tensor
    assert [len(objects["boxes"]) for objects in batch["objects"]] == [0, 1, 2, 3, 0, 1, 2]
    dataset = tsds.StoreDataset(path, transform=lambda sample: sample["image"])
    with pytest.raises(ValueError, match=r'collate_images="padded": expected samples with the member image, found a'):
        next(iter(tsds.DataLoader(dataset, 2, collate_images="padded")))
    dataset = tsds.StoreDataset(path, transform=lambda sample: {**sample, "image_size": 0})
    with pytest.raises(ValueError, match=r'collate_images="padded": expected no member image_size, which is added'):
        next(iter(tsds.DataLoader(dataset, 2, collate_images="padded")))
    dataset = tsds.StoreDataset(path, as_pil=True)
    with pytest.raises(ValueError, match=r"images: expected tensors .*, found Image, Image"):
        next(iter(tsds.DataLoader(dataset, 2, collate_images="padded")))


@pytest.mark.parametrize("transform", [None, v2.Identity()])
def test_tuples_begin_with_padded_images(path: Path, transform: Any) -> None:
    images = images_of(path)[:4]
    dataset = tsds.StoreDataset(path, return_as="tuple", fields=["image", "label"], transform=transform)
    padded, labels = next(iter(tsds.DataLoader(dataset, 4, collate_images="padded")))
    assert isinstance(padded, tsds.loading.PaddedImages)
    check(padded._asdict(), images)
    assert labels.tolist() == [0, 1, 0, 1]
    dataset = tsds.StoreDataset(path, return_as="tuple", fields=["image", "objects"], transform=transform)
    padded, targets = next(iter(tsds.DataLoader(dataset, 4, collate_images="padded")))
    check(padded._asdict(), images)
    assert [len(target["boxes"]) for target in targets] == [0, 1, 2, 3]


def test_torchvisions_targets_come_with_padded_images(path: Path) -> None:
    dataset = tsds.StoreDataset(path, return_as="torchvision")
    padded, targets = next(iter(tsds.DataLoader(dataset, 4, collate_images="padded", size_divisor=32)))
    check(padded._asdict(), [image / 255 for image in images_of(path)[:4]], 32)
    assert [target["image_id"] for target in targets] == [0, 1, 2, 3]
    images, _ = next(iter(tsds.DataLoader(dataset, 4)))
    assert all(map(torch.equal, images, [image / 255 for image in images_of(path)[:4]]))


@pytest.mark.parametrize(("ignored", "fill"), [(9, 9), (None, 255)])
def test_masks_are_padded_with_what_is_ignored(ignored: int | None, fill: int) -> None:
    images = [torch.from_numpy(drawn(size)).permute(2, 0, 1) for size in SIZES]
    masks = [image[0] % 2 for image in images]
    field = MaskField.of(("ground", "square"))
    field = MaskField(field.spec, field.classes, ignored)
    padded = pad_columns({"image": images, "mask": masks}, {"mask": field}, ["image"], 16, BufferPool())
    inside = padded["image"].image_mask
    assert padded["mask"].shape == inside.shape
    assert (padded["mask"][~inside] == fill).all()
    assert all(map(torch.equal, [m[:h, :w] for m, (h, w) in zip(padded["mask"], SIZES, strict=True)], masks))
    with pytest.raises(ValueError, match=r"^mask: expected masks of the sizes of their images, \[\[30, 41\], "):
        pad_columns({"image": images, "mask": masks[::-1]}, {"mask": field}, ["image"], 1, BufferPool())


def test_masks_follow_transforms_that_change_sizes(tmp_path: Path) -> None:
    images = [drawn((12, 16), seed) for seed in range(4)]
    samples = [{"image": image, "mask": image[:, :, 0] % 2} for image in images]
    store = store_of(tmp_path / "s.tsds", samples, ["ground", "square"])
    for return_as in ("dict", "tuple"):
        sizes = iter([(12, 16), (5, 9), (8, 3), (7, 16)])

        def cut(image: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
            height, width = next(sizes)  # noqa: B023
            return image[:, :height, :width], mask[:height, :width]

        def transform(sample: Any) -> Any:
            if isinstance(sample, tuple):
                return cut(*sample)
            return dict(zip(("image", "mask"), cut(sample["image"], sample["mask"]), strict=True))

        dataset = tsds.StoreDataset(store, transform=transform, return_as=return_as)
        (batch,) = tsds.DataLoader(dataset, 4, collate_images="padded", num_threads=1)
        batch = batch if return_as == "dict" else {**batch[0]._asdict(), "mask": batch[1]}
        assert batch["image_size"].tolist() == [[12, 16], [5, 9], [8, 3], [7, 16]]
        assert torch.equal(batch["mask"][batch["image_mask"]], (batch["image"][:, 0] % 2)[batch["image_mask"]])
        assert (batch["mask"][~batch["image_mask"]] == 255).all()


def test_batch_transforms_move_what_is_padded(path: Path) -> None:
    """A flip puts the padding on the left; the mask and the sizes follow, and padding stays zero."""
    images = images_of(path)
    flip = tsds.Compose([tsds.RandomHorizontalFlip(1.0, flip_pairs=()), tsds.Normalize([0.5] * 3, [0.25] * 3)])
    settings = {"collate": "packed", "collate_images": "padded"}
    (batch,) = tsds.DataLoader(tsds.StoreDataset(path), 7, batch_transform=flip, **settings)
    expected = tsds.loading.pad_images([(image / 255 - 0.5) / 0.25 for image in images])
    torch.testing.assert_close(batch["image"].flip(3), expected.image)
    assert torch.equal(batch["image_mask"].flip(2), expected.image_mask)
    assert torch.equal(batch["image_size"], expected.image_size)
    dataset = tsds.StoreDataset(path, return_as="tuple", fields=["image", "label"])
    ((padded, labels),) = tsds.DataLoader(dataset, 7, batch_transform=flip, **settings)
    assert torch.equal(padded.image, batch["image"]) and labels.tolist() == [0, 1] * 3 + [0]
    crop = tsds.RandomCrop(64, padding=4)
    (batch,) = tsds.DataLoader(tsds.StoreDataset(path), 7, batch_transform=crop, **settings)
    assert not batch["image"].permute(0, 2, 3, 1)[~batch["image_mask"]].any()
    assert torch.equal(batch["image_mask"].sum((1, 2)), batch["image_size"].prod(1))


def test_arguments_that_contradict_are_refused(path: Path, tmp_path: Path) -> None:
    dataset = tsds.StoreDataset(path)
    named = store_of(tmp_path / "s.tsds", [{"image": drawn((4, 4)), "image_mask": np.zeros((4, 4), np.uint8)}], ["a"])
    cases: list[tuple[dict[str, Any], str]] = [
        (
            {"dataset": dataset, "collate_images": "stacked"},
            "`collate_images`: expected one of list, padded, patches, found",
        ),
        ({"dataset": dataset, "size_divisor": 0}, "`size_divisor`: expected an integer, at least 1, found 0"),
        ({"dataset": dataset, "size_divisor": 32, "collate_images": "list"}, "expected 1 without"),
        ({"dataset": dataset, "collate_fn": list}, "expected batches that this loader makes, found a `collate_fn`"),
        ({"dataset": dataset, "batch_size": None}, "expected batches that this loader makes, found `batch_size=None`"),
        ({"dataset": tsds.StoreDataset(path, fields=["label"])}, "expected a StoreDataset with the field image"),
        ({"dataset": [1, 2]}, "expected a StoreDataset with the field image, found a list"),
        ({"dataset": tsds.StoreDataset(named)}, "expected no field image_mask, which is added"),
    ]
    for arguments, message in cases:
        with pytest.raises(OptionError, match=message):
            tsds.DataLoader(**{"collate_images": "padded", **arguments})
