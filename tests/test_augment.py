"""Batch transforms: what they draw, and what they take and return; the same on a GPU."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from image_batches import images, objects
from tensorstore_ds.annex.augment.affine import RandomAffine, RandomPerspective
from tensorstore_ds.annex.augment.blur import GaussianBlur
from tensorstore_ds.annex.augment.color import (
    AutoContrast,
    ColorJitter,
    Equalize,
    Posterize,
    RandomGrayscale,
    Solarize,
)
from tensorstore_ds.annex.augment.erasing import RandomErasing
from tensorstore_ds.annex.augment.policies import RandAugment, TrivialAugment
from tensorstore_ds.loading.augment.compose import Compose
from tensorstore_ds.loading.augment.fitting import Letterbox
from tensorstore_ds.loading.augment.geometry import RandomCrop, RandomHorizontalFlip, RandomResizedCrop
from tensorstore_ds.loading.augment.normalize import Normalize
from tensorstore_ds.loading.buffers import on_device
from tensorstore_ds.loading.collate import PackedObjects, collate_objects, map_tensors, pack_objects

# --- random numbers ---------------------------------------------------------------------------------------------

EVERY = [
    RandomCrop(6, padding=2, seed=5),
    RandomResizedCrop(6, seed=5),
    RandomHorizontalFlip(0.5, (), seed=5),
    ColorJitter(0.4, 0.4, 0.4, 0.2, seed=5),
    RandomGrayscale(0.5, seed=5),
    Solarize(0.4, seed=5),
    Posterize(2, seed=5),
    Equalize(seed=5),
    AutoContrast(seed=5),
    GaussianBlur(3, seed=5),
    RandomErasing(seed=5),
    RandomErasing(1, value="random", seed=5),
    RandomAffine(30, (0.2, 0.2), (0.8, 1.2), 10, "bilinear", seed=5),
    RandomPerspective(seed=5),
    RandAugment(seed=5),
    TrivialAugment(seed=5),
    Compose([RandomResizedCrop(7), RandomCrop(6), RandomHorizontalFlip(flip_pairs=()), ColorJitter(0.4)], seed=5),
]
each = pytest.mark.parametrize("transform", EVERY, ids=lambda t: type(t).__name__)


@each
def test_a_sample_does_not_depend_on_its_batch(transform: torch.nn.Module) -> None:
    batch = {"image": images(0, (20, 18), count=6), "objects": objects(0, (20, 18), (2, 0, 3, 1, 2, 4))}
    rows = torch.tensor([8, 3, 10**12, 0, 5, 4])
    whole = transform(batch, rows, 2)
    for part in ([3], [5, 0, 2], [4, 3, 2, 1]):
        some = {"image": batch["image"][part], "objects": pack_objects([batch["objects"][i] for i in part])}
        found = transform(some, rows[part].numpy(), 2)
        # The mean of contrast is summed in another order in a batch of another size.
        torch.testing.assert_close(found["image"], whole["image"][part], rtol=0, atol=1)
        for i, j in enumerate(part):
            torch.testing.assert_close(found["objects"][i], whole["objects"][j], equal_nan=True)


@each
@pytest.mark.parametrize("other", ["epoch", "rows", "seed"])
def test_epochs_rows_and_seeds_differ(transform: Any, other: str) -> None:
    batch = {"image": images(0, (20, 18), count=1).expand(20, -1, -1, -1)}
    rows = torch.arange(20)
    first = transform(batch, rows, 0)["image"]
    assert torch.equal(first, transform(batch, rows, 0)["image"])
    if other == "seed":
        transform.seed += 1
    second = transform(batch, rows + 20 if other == "rows" else rows, int(other == "epoch"))["image"]
    if other == "seed":
        transform.seed -= 1
    assert (first != second).flatten(1).any(1).sum() > 4


def test_transforms_of_one_kind_draw_different_numbers_in_a_compose() -> None:
    class Recorder(RandomHorizontalFlip):
        def make_params(self, keys: Any, size: Any) -> Any:
            self.keys_seen = keys
            return super().make_params(keys, size)

    flips = [Recorder(), Recorder()]
    Compose(flips)({"image": images(0, (3, 3))}, torch.arange(4), 0)
    assert not set(flips[0].keys_seen.tolist()) & set(flips[1].keys_seen.tolist())
    kinds = [t.keys(torch.arange(4), 0) for t in (RandomCrop(3), RandomResizedCrop(3))]
    assert not set(kinds[0].tolist()) & set(kinds[1].tolist())


@each
def test_without_rows_torch_decides(transform: torch.nn.Module) -> None:
    batch = {"image": images(0, (20, 18), count=20)}
    torch.manual_seed(3)
    first, second = transform(batch)["image"], transform(batch)["image"]
    assert not torch.equal(first, second)
    torch.manual_seed(3)
    assert torch.equal(transform(batch)["image"], first)


# --- batches in and out -----------------------------------------------------------------------------------------


@each
def test_batches_are_not_written_to_and_keep_what_is_not_theirs(transform: torch.nn.Module) -> None:
    packed = objects(0, (20, 18))
    batch = {"image": images(0, (20, 18)), "label": torch.arange(4), "key": ["a", "b", "c", "d"], "objects": packed}
    before = {"image": batch["image"].clone(), **{name: value.clone() for name, value in packed.values.items()}}
    found = transform(batch, torch.arange(4), 0)
    assert list(found) == list(batch) and found["label"] is batch["label"] and found["key"] is batch["key"]
    assert found["image"].dtype == torch.uint8 and found["image"].is_contiguous(memory_format=torch.channels_last)
    assert batch["objects"] is packed and torch.equal(batch["image"], before.pop("image"))
    torch.testing.assert_close(packed.values, before, equal_nan=True)
    as_dict = transform({**batch, "objects": collate_objects(packed, "packed")}, torch.arange(4), 0)["objects"]
    torch.testing.assert_close(as_dict, collate_objects(found["objects"], "packed"), equal_nan=True)


@each
def test_one_operation_gives_the_same(transform: torch.nn.Module) -> None:
    """As on a GPU, and where there are gradients."""
    batch = {"image": images(0, (20, 18), torch.float32)}
    expected = transform(batch, torch.arange(4), 0)["image"]
    assert torch.equal(transform(batch["image"], torch.arange(4), 0), expected)  # without a dict
    found = transform({"image": batch["image"].clone().requires_grad_()}, torch.arange(4), 0)["image"]
    assert ((found - expected).abs() <= 1e-4).float().mean() > 0.99


@each
def test_empty_batches(transform: torch.nn.Module) -> None:
    found = transform({"image": images(0, (20, 18), count=0), "objects": pack_objects([])}, torch.arange(0), 0)
    assert len(found["image"]) == len(found["objects"]) == 0


GOOD = {"image": torch.zeros(2, 3, 8, 8, dtype=torch.uint8)}


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        ({}, r"batch\['image'\]: expected a tensor \(B, C, H, W\), found NoneType"),
        ({"image": torch.zeros(3, 8, 8)}, r"expected a tensor \(B, C, H, W\), found \(3, 8, 8\)"),
        ({"image": [torch.zeros(3, 8, 8)]}, r"found list\. Bring images to one size: pass a crop .* as `decode`"),
        (
            {"image": torch.zeros(2, 3, 8, 8, dtype=torch.int32)},
            r"expected uint8, uint16 or floating-point, found torch.int32",
        ),
        (
            {**GOOD, "objects": [{"image_id": 1}] * 2},
            "expected tensors, .* found others in a list. Load with `return_as",
        ),
        ({**GOOD, "objects": 7}, "found others in a int"),
        ({**GOOD, "objects": pack_objects([{}])}, "expected objects of 2 samples, as of images, found 1"),
    ],
)
def test_other_batches_are_refused(batch: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        RandomCrop(4)(batch)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"rows": torch.arange(2)}, "expected both, or neither"),
        ({"epoch": 1}, "expected both, or neither"),
        ({"rows": torch.arange(3), "epoch": 1}, r"rows: expected \(2,\) integers, found \(3,\) int64"),
        ({"rows": torch.zeros(2), "epoch": 1}, r"rows: expected \(2,\) integers, found \(2,\) float32"),
    ],
)
@pytest.mark.parametrize("transform", [RandomCrop(4), Compose([RandomCrop(4)])])
def test_other_rows_are_refused(transform: torch.nn.Module, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        transform(GOOD, **arguments)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: RandomCrop(0), "`size`: expected a positive number"),
        (lambda: RandomCrop((1, 2, 3)), "`size`: expected a positive number"),
        (lambda: RandomCrop(4, (1, 2, 3)), "`padding`: expected one, two or four"),
        (lambda: RandomCrop(4, -1), "`padding`: expected one, two or four"),
        (lambda: RandomCrop(4, padding_mode="wrap"), "`padding_mode`: expected one of constant"),  # type: ignore[arg-type]
        (lambda: RandomCrop(9)(GOOD), "expected images of at least 9x9 .* Make `size` smaller or `padding` larger"),
        (lambda: RandomResizedCrop(4, scale=(0, 1)), "`scale`: expected two positive numbers"),
        (lambda: RandomResizedCrop(4, ratio=(2, 1)), "`ratio`: expected two positive numbers"),
        (lambda: RandomHorizontalFlip(1.5), "`p`: expected a probability"),
        (lambda: RandomHorizontalFlip("0.5"), "`p`: expected a probability .*, found '0.5'"),  # type: ignore[arg-type]
        (lambda: RandomResizedCrop("224"), "`size`: expected a positive number .*, found '224'"),  # type: ignore[arg-type]
        (lambda: ColorJitter(brightness=-0.1), "`brightness`: expected a number of at least 0"),
        (lambda: ColorJitter(contrast=(2, 1)), "`contrast`: expected a number of at least 0"),
        (lambda: ColorJitter(1)({"image": torch.zeros(1, 2, 4, 4)}), "expected images of 1 or 3 channels, found 2"),
        (lambda: ColorJitter(hue=0.6), r"`hue`: expected a number in \[0, 0.5\], or two in"),
        (lambda: RandomGrayscale(2), "`p`: expected a probability"),
        (lambda: RandomGrayscale(1)({"image": torch.zeros(1, 2, 4, 4)}), "expected images of 1 or 3 channels, found 2"),
        (lambda: Solarize(65536), r"`threshold`: expected a number in \[0, 65535\], found 65536"),
        (lambda: Solarize(128, 1)({"image": torch.zeros(1, 3, 4, 4)}), "Solarize: .* Divide it by 255"),
        (lambda: Posterize(9), r"`bits`: expected a whole number in \[0, 8\], found 9"),
        (lambda: GaussianBlur(4), "`kernel_size`: expected an odd number"),
        (lambda: GaussianBlur(3, sigma=0), "`sigma`: expected a positive number"),
        (
            lambda: GaussianBlur(17)(GOOD),
            "expected images larger than 8x8.*found 8x8. Make `kernel_size`",
        ),
        (lambda: RandomErasing(scale=(0, 2)), "`scale`: expected two numbers in"),
        (lambda: RandomErasing(ratio=(0, 2)), "`ratio`: expected two positive numbers"),
        (lambda: RandomErasing(value="noise"), "`value`: expected a number, one for each channel"),  # type: ignore[arg-type]
        (lambda: RandomErasing(value=(1, 2))(GOOD), "one for each of 3 channels, found 2"),
        (lambda: RandomAffine((5, 1)), "`degrees`: expected a number, or two, the smaller first"),
        (lambda: RandomAffine(1, (0.5, 2)), "`translate`: expected two shares"),
        (lambda: RandomAffine(1, scale=(0, 1)), "`scale`: expected two positive numbers"),
        (lambda: RandomAffine(1, shear=(1, 2, 3)), "`shear`: expected a number, or two"),
        (lambda: RandomAffine(1, interpolation="cubic"), "`interpolation`: expected one of nearest, bilinear"),  # type: ignore[arg-type]
        (lambda: RandomAffine(1, fill=(1, 2, 3)), "`fill`: expected a number"),  # type: ignore[arg-type]
        (lambda: RandomAffine(1, center=(1,)), "`center`: expected x and y"),  # type: ignore[arg-type]
        (lambda: RandomAffine(1, min_visibility=2), "`min_visibility`: expected a share"),
        (lambda: RandomPerspective(2), r"`distortion_scale`: expected a number in \[0, 1\]"),
        (lambda: RandAugment(-1), "`num_ops`: expected a whole number of at least 0"),
        (lambda: RandAugment(magnitude=31), r"`magnitude`: expected a whole number in \[0, 31\), found 31"),
        (lambda: TrivialAugment(1), "`num_magnitude_bins`: expected a whole number of at least 2"),
        (lambda: TrivialAugment()({"image": torch.zeros(1, 2, 4, 4)}), "TrivialAugment: expected images of 1 or 3"),
        (lambda: Normalize([0.5], [0.0]), "expected a mean and a positive std for each channel"),
        (lambda: Normalize([0.5], [0.5])(GOOD), "expected images of 1 channels, found 3"),
    ],
)
def test_other_options_are_refused(make: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


def test_transforms_say_what_they_are() -> None:
    assert (
        repr(RandomCrop(4, (1, 2))) == "RandomCrop(seed=0, size=(4, 4), padding=(1, 2, 1, 2), fill=0, "
        "padding_mode='constant', mask_fill=None, min_visibility=0.0)"
    )
    assert "(0): RandomHorizontalFlip(seed=0, p=0.5" in repr(Compose([RandomHorizontalFlip()]))


# --- on a GPU ---------------------------------------------------------------------------------------------------


@pytest.mark.gpu
@pytest.mark.parametrize("transform", [*EVERY, Letterbox(12)], ids=lambda t: type(t).__name__)
@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
def test_a_gpu_gives_the_same(transform: torch.nn.Module, dtype: torch.dtype) -> None:
    batch = {"image": images(0, (20, 18), dtype), "objects": objects(0, (20, 18)), "mask": images(1, (20, 18))[:, 0]}
    there = map_tensors(batch, Tensor.cuda)
    expected, found = transform(batch, torch.arange(4), 1), transform(there, torch.arange(4), 1)
    assert found["image"].is_cuda and found["image"].is_contiguous(memory_format=torch.channels_last)
    torch.testing.assert_close(
        found["image"].cpu(), expected["image"], rtol=0, atol=5 if dtype == torch.uint8 else 1e-4
    )
    assert (found["mask"].cpu() == expected["mask"]).float().mean() > 0.99  # a GPU rounds places differently
    for got, want in zip(found["objects"].to("cpu"), expected["objects"], strict=True):
        torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-3, equal_nan=True)


@pytest.mark.gpu
@pytest.mark.parametrize("out", [torch.float32, torch.float16, torch.bfloat16])
def test_a_gpu_normalizes_the_same(out: torch.dtype) -> None:
    normalize = Normalize([0.4, 0.5, 0.6], [0.2, 0.25, 0.3], dtype=out)
    image = images(0, (20, 18))
    found = normalize({"image": image.cuda()})["image"]
    assert found.dtype == out and found.is_contiguous(memory_format=torch.channels_last)
    expected = normalize({"image": image})["image"]
    torch.testing.assert_close(found.cpu(), expected, rtol=torch.finfo(out).eps, atol=1e-6)


@pytest.mark.gpu
@each
def test_torch_may_make_tensors_on_a_gpu_by_default(transform: torch.nn.Module) -> None:
    batch = map_tensors({"image": images(0, (20, 18)), "objects": objects(0, (20, 18))}, Tensor.cuda)
    rows = torch.arange(4)
    expected = transform(batch, rows, 1)
    with torch.device("cuda"):
        torch.testing.assert_close(
            list(transform(batch, rows, 1)["objects"]), list(expected["objects"]), equal_nan=True
        )


@pytest.mark.gpu
def test_gradients_pass_a_normalization_on_a_gpu() -> None:
    image = images(0, (20, 18), torch.float32).cuda().requires_grad_()
    Normalize([0.5] * 3, [0.25] * 3)({"image": image})["image"].sum().backward()
    assert image.grad is not None and (image.grad == 4).all()


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype")
def test_a_gpu_is_not_waited_for() -> None:
    # Objects without boxes: dropping some is a wait.
    packed = PackedObjects(torch.tensor([0, 1, 1, 3, 3]), {"keypoints": torch.rand(3, 2, 2)}).to("cuda")
    batch = {"image": images(0, (20, 18)).cuda(), "objects": packed}
    everything = Compose([*EVERY[:-1], Normalize([0.5] * 3, [0.5] * 3, dtype=torch.bfloat16)])
    everything(batch, torch.arange(4), 0)  # what is set up once may wait
    torch.cuda.synchronize()
    try:
        torch.cuda.set_sync_debug_mode("error")
        done = everything(batch, torch.arange(4), 1)  # raises where it waits
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert done["image"].is_cuda and len(done["image"]) == 4


# --- forms of a batch -------------------------------------------------------------------------------------------


def test_a_tuple_of_images_and_a_dict_stays_one() -> None:
    flip = RandomHorizontalFlip(1.0, ())
    image, mask, labels = images(0, (9, 8), count=3), torch.arange(3 * 9 * 8).reshape(3, 9, 8), torch.arange(3)
    rows = torch.arange(3)
    flipped, others = flip((image, {"mask": mask, "label": labels}), rows, 0)
    assert torch.equal(flipped, image.flip(3))
    assert list(others) == ["mask", "label"]
    assert torch.equal(others["mask"], mask.flip(2))
    assert torch.equal(others["label"], labels)
    for found in (flip((image, mask, labels), rows, 0), flip((image, labels, mask), rows, 0)):
        assert len(found) == 3
        assert torch.equal(found[0], image.flip(3))
        moved, stays = found[1:] if found[1].ndim == 3 else found[:0:-1]
        assert torch.equal(moved, mask.flip(2))
        assert torch.equal(stays, labels)


def test_two_dicts_are_no_single_one() -> None:
    image = images(0, (9, 8), count=3)
    _, first, second = RandomHorizontalFlip(1.0, ())((image, {"a": 1}, {"b": 2}), torch.arange(3), 0)
    assert (first, second) == ({"a": 1}, {"b": 2})


@pytest.mark.parametrize(
    ("rows", "epoch", "expected"), [(torch.arange(3), 0, 0), (torch.arange(3), 5, 5), (None, None, 0)]
)
def test_modules_of_others_get_the_epoch(rows: Any, epoch: int | None, expected: int) -> None:
    class Recorder(torch.nn.Module):
        def forward(self, batch: Any, rows: Any, epoch: int) -> Any:
            self.seen = (len(rows), epoch)
            return batch

    recorder = Recorder()
    Compose([recorder])({"image": images(0, (9, 8), count=3)}, rows, epoch)
    assert recorder.seen == (3, expected)


@pytest.mark.parametrize(
    "make", [lambda **seed: RandomCrop(6, **seed), lambda **seed: Compose([RandomCrop(6)], **seed)]
)
def test_a_seed_that_is_not_chosen_is_zero(make: Any) -> None:
    batch, rows = {"image": images(0, (9, 8), count=20)}, torch.arange(20)
    assert torch.equal(make()(batch, rows, 0)["image"], make(seed=0)(batch, rows, 0)["image"])


@pytest.mark.gpu
def test_parameters_do_not_wait_for_their_turn(monkeypatch):
    sizes = []
    monkeypatch.setattr("tensorstore_ds.loading.buffers.pinned", lambda t: sizes.append(len(t)) or t.pin_memory())
    for size in (2**14, 2**14 + 1):
        values = torch.rand(size)
        assert torch.equal(on_device(values, torch.device("cuda", 0)).cpu(), values)
    assert sizes == [2**14, 2**14 + 1]
