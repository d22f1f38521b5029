"""Mixup, CutMix and Mosaic, checked against torchvision sample by sample, and against canvases in NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st
from torch import Tensor
from torchvision.transforms import v2

from image_batches import dtypes, formats, images, objects, params_of, quick, same_format, seeds, sizes
from tensorstore_ds.annex.augment.mixing import CutMix, Mixup, betas
from tensorstore_ds.annex.augment.mosaic import Mosaic
from tensorstore_ds.loading.augment.base import BatchTransform
from tensorstore_ds.loading.augment.compose import Compose
from tensorstore_ds.loading.collate import PackedObjects, pack_objects
from tensorstore_ds.seeding import fold

LABELS = torch.tensor([0, 2, 1, 2, 0, 1])
EVERY: list[BatchTransform] = [Mixup(num_classes=3), CutMix(num_classes=3), Mosaic(num_classes=3)]
each = pytest.mark.parametrize("transform", EVERY, ids=lambda t: type(t).__name__)


# --- what is drawn -----------------------------------------------------------------------------------------------


@each
def test_results_do_not_depend_on_the_order_of_the_batch(transform: BatchTransform) -> None:
    batch = {"image": images(0, (9, 8), count=6), "label": LABELS}
    rows, order = torch.tensor([8, 3, 10**12, 0, 5, 4]), [3, 5, 0, 1, 4, 2]
    whole = transform(batch, rows, 2)
    found = transform({name: value[order] for name, value in batch.items()}, rows[order], 2)
    assert torch.equal(found["image"], whole["image"][order])
    torch.testing.assert_close(found["label"], whole["label"][order])


@each
def test_each_sample_has_its_own_share_and_is_used_equally_often(transform: BatchTransform) -> None:
    params = transform.make_params(transform.keys(torch.arange(50), 0), (40, 40))
    partners, shares = params["partners"], params["shares"]
    assert torch.equal(partners[:, 0], torch.arange(50))
    for column in partners.T:
        assert column.sort().values.tolist() == list(range(50))
    assert all(len(set(row)) == len(row) for row in partners.tolist())
    torch.testing.assert_close(shares.sum(1), torch.ones(50, dtype=torch.float64))
    assert len(shares[:, 0].unique()) > 40 and (shares >= 0).all()


@each
def test_probability(transform: BatchTransform) -> None:
    never, half = type(transform)(num_classes=3, p=0), type(transform)(num_classes=3, p=0.5)  # type: ignore[call-arg]
    batch = {
        "image": images(0, (12, 12), count=6),
        "label": LABELS,
        "objects": objects(0, (12, 12), (1, 0, 2, 3, 1, 1)),
    }
    if isinstance(transform, CutMix):
        del batch["objects"]
    found = never(batch, torch.arange(6), 0)
    assert torch.equal(found["image"], batch["image"]) and torch.equal(found["label"].argmax(1), LABELS)
    for got, given_objects in zip(found.get("objects", []), batch.get("objects", []), strict=True):
        torch.testing.assert_close(got, given_objects, equal_nan=True)
    shares = half.make_params(half.keys(torch.arange(2000), 0), (40, 40))["shares"]
    assert (shares[:, 0] == 1).double().mean() == pytest.approx(0.5, abs=0.1)


@pytest.mark.parametrize("alpha", [0.2, 0.5, 1.0, 3.0])
def test_one_sample_is_mixed_with_itself_and_none_is_no_error(alpha: float) -> None:
    for transform in (Mixup(alpha=alpha, num_classes=3), CutMix(alpha=alpha, num_classes=3), Mosaic(num_classes=3)):
        one = {"image": images(0, (8, 8), count=1), "label": LABELS[:1]}
        assert transform(one)["label"].tolist() == [[1, 0, 0]]
        none = {"image": images(0, (8, 8), count=0), "label": LABELS[:0], "objects": pack_objects([])}
        del none["objects"]
        assert transform(none)["image"].shape == (0, 3, 8, 8)


# --- pixels and labels -------------------------------------------------------------------------------------------


def beside(value: Tensor, i: int, other: int) -> Tensor:
    """A batch of two, of which torchvision mixes the second with the first."""
    return torch.stack([value[other], value[i]])


@quick
@given(seeds, sizes, formats, st.sampled_from([1, 3]), st.sampled_from([0.2, 1.0, 4.0]))
def test_mixup_equals_torchvision(seed: int, size: tuple[int, int], memory: Any, channels: int, alpha: float) -> None:
    mix, theirs = Mixup(alpha=alpha, num_classes=3, seed=seed), v2.MixUp(num_classes=3)
    batch = {"image": images(seed, size, torch.float32, memory, channels=channels, count=6), "label": LABELS}
    rows, params = params_of(mix, batch)
    found = mix(batch, rows, 0)
    assert same_format(found["image"], batch["image"])
    levels = mix({**batch, "image": images(seed, size, channels=channels, count=6)}, rows, 0)["image"]
    assert (levels / 255 - found["image"]).abs().max() <= 0.502 / 255 + 1e-6
    for i, other in enumerate(params["partners"][:, 1].tolist()):
        labels = beside(LABELS, i, other)
        given_params = {"lam": float(params["shares"][i, 0]), "labels": labels, "batch_size": 2}
        image = theirs.transform(beside(batch["image"], i, other), given_params)[1]
        torch.testing.assert_close(found["image"][i], image, rtol=0, atol=1e-6)
        torch.testing.assert_close(found["label"][i], theirs.transform(labels, given_params)[1])


@pytest.mark.parametrize("size", [(1, 1), (28, 28), (224, 224), (480, 640)])
@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
def test_cutmix_equals_torchvision(size: tuple[int, int], channels: int, dtype: torch.dtype) -> None:
    mix, theirs = CutMix(num_classes=3, seed=1), v2.CutMix(num_classes=3)
    batch = {
        "image": images(0, size, dtype, channels=channels, count=6),
        "label": LABELS,
        "mask": torch.zeros(6, *size),
    }
    batch["mask"] = batch["image"][:, 0].mul(255).long()
    rows, params = params_of(mix, batch)
    found = mix(batch, rows, 0)
    assert found["image"].dtype == dtype and same_format(found["image"], batch["image"])
    assert torch.equal(found["mask"], found["image"][:, 0].mul(255).long())
    for i, other in enumerate(params["partners"][:, 1].tolist()):
        (top, left), (bottom, right) = params["boxes"][i].tolist()
        labels = beside(LABELS, i, other)
        given_params = {"box": (left, top, right, bottom), "lam_adjusted": float(params["shares"][i, 0])}
        given_params |= {"labels": labels, "batch_size": 2}
        assert torch.equal(found["image"][i], theirs.transform(beside(batch["image"], i, other), given_params)[1])
        torch.testing.assert_close(found["label"][i], theirs.transform(labels, given_params)[1])


def test_rectangles_are_distributed_as_torchvisions() -> None:
    mix, theirs = CutMix(num_classes=3), v2.CutMix(num_classes=3)
    ours = mix.make_params(mix.keys(torch.arange(4000), 0), (60, 80))["shares"][:, 0]
    torch.manual_seed(0)
    reference = torch.tensor([theirs.make_params([torch.empty(3, 60, 80)])["lam_adjusted"] for _ in range(4000)])
    points = torch.linspace(0.05, 0.95, 19)
    torch.testing.assert_close(ours.quantile(points.double()).float(), reference.quantile(points), rtol=0, atol=0.03)


def test_labels_as_they_may_be() -> None:
    image = images(0, (8, 8), count=6)
    mix, rows = Mixup(num_classes=3), torch.arange(6)
    expected = mix({"image": image, "label": LABELS}, rows, 0)["label"]
    hot = torch.nn.functional.one_hot(LABELS, 3).double()
    soft = Mixup()({"image": image, "label": hot}, rows, 0)["label"]
    torch.testing.assert_close(soft, expected.double(), rtol=0, atol=1e-6)
    assert soft.dtype == torch.float64
    named = Mixup(num_classes=3, label="breed")({"image": image, "breed": LABELS, "label": LABELS}, rows, 0)
    assert torch.equal(named["breed"], expected) and named["label"] is LABELS
    assert torch.equal(mix((image, LABELS), rows, 0)[1], expected)
    assert torch.equal(mix((image, {"label": LABELS}), rows, 0)[1]["label"], expected)
    unknown = torch.tensor([0, -1, 1, 2, 0, 1])
    params = mix.make_params(mix.keys(rows, 0), (8, 8))
    sums = mix({"image": image, "label": unknown}, rows, 0)["label"].sum(1)
    known = (unknown >= 0).double()
    torch.testing.assert_close(sums.double(), (known[params["partners"]] * params["shares"]).sum(1))


# --- mosaic ------------------------------------------------------------------------------------------------------


@quick
@given(seeds, sizes, dtypes, formats, st.sampled_from([1, 3]), st.data())
def test_mosaic_is_a_window_of_four(
    seed: int, size: tuple[int, int], dtype: torch.dtype, memory: Any, channels: int, data: st.DataObject
) -> None:
    window = tuple(data.draw(st.integers(1, 2 * n)) for n in size)
    start = tuple(sorted(data.draw(st.tuples(*[st.floats(0, 1)] * 2))))
    mosaic = Mosaic(window, start=start, num_classes=3, seed=seed)  # type: ignore[arg-type]
    image = images(seed, size, dtype, memory, channels=channels, count=6)
    packed = objects(seed, size, (3, 0, 1, 5, 2, 1))
    batch = {"image": image, "mask": (image[:, 0] * 255).long(), "label": LABELS, "objects": packed}
    rows, params = params_of(mosaic, batch)
    found = mosaic(batch, rows, 0)
    assert found["image"].dtype == dtype and same_format(found["image"], image)
    for i, partners in enumerate(params["partners"].tolist()):
        top, left = params["corners"][i].tolist()
        for n, first, length, share in zip((top, left), (0, 0), size, window, strict=True):
            assert first <= n <= 2 * length - share
        a, b, c, d = (image[other].numpy() for other in partners)
        canvas = np.concatenate([np.concatenate([a, b], 2), np.concatenate([c, d], 2)], 1)
        shown = canvas[:, top : top + window[0], left : left + window[1]]
        np.testing.assert_array_equal(found["image"][i].numpy(), shown)
        numbers = np.arange(4).repeat(2).reshape(2, 2, 2)[..., 0].repeat(size[0], 0).repeat(size[1], 1)
        tiles = numbers[top : top + window[0], left : left + window[1]]
        shares = np.bincount(tiles.ravel(), minlength=4) / tiles.size
        np.testing.assert_allclose(params["shares"][i], shares)
        expected = np.zeros(3)
        np.add.at(expected, LABELS[partners].numpy(), shares)
        np.testing.assert_allclose(found["label"][i], expected, rtol=1e-5, atol=1e-6)
        seen: list[dict[str, np.ndarray]] = []
        for tile, other in enumerate(partners):
            move = np.array([(tile % 2) * size[1] - left, (tile // 2) * size[0] - top])
            before = {name: value.double().numpy() for name, value in packed[other].items()}
            boxes = (before["boxes"].reshape(-1, 2, 2) + move).clip(0, [window[1], window[0]])
            kept = (boxes[:, 1] - boxes[:, 0] > 1e-3).all(1)
            seen.append(
                {
                    "boxes": boxes[kept],
                    "labels": before["labels"][kept],
                    "keypoints": (before["keypoints"] + move)[kept],
                }
            )
        got = found["objects"][i]
        clear = (got["boxes"][:, 2:] - got["boxes"][:, :2] > 1e-3).all(1)
        for name, width, atol in (("labels", 1, 0), ("boxes", 4, 1e-3), ("keypoints", 6, 1e-3)):
            value = np.concatenate([one[name].reshape(len(one["labels"]), width) for one in seen])
            np.testing.assert_allclose(got[name][clear].double().numpy().reshape(value.shape), value, atol=atol)
    assert torch.equal(found["mask"], (found["image"][:, 0] * 255).long())


@pytest.mark.parametrize("transform", [Mosaic((10, 7), seed=2), CutMix(num_classes=5)], ids=["Mosaic", "CutMix"])
def test_all_in_one_operation_is_the_same(transform: BatchTransform) -> None:
    """As on a GPU."""
    batch = {"image": images(0, (8, 6), torch.float32, count=5), "label": torch.arange(5)}
    transform.num_classes = 5  # type: ignore[assignment]
    slow = transform(batch, torch.arange(5), 0)["image"]
    fast = transform({**batch, "image": batch["image"].requires_grad_()}, torch.arange(5), 0)["image"]
    assert torch.equal(slow, fast) and same_format(fast, slow)
    fast.sum().backward()
    assert float(batch["image"].grad.sum()) == slow.numel()  # type: ignore[union-attr]


def test_little_of_a_box_is_not_enough() -> None:
    boxes = torch.tensor([[0.0, 0, 8, 8]]).repeat(4, 1)
    packed = PackedObjects(torch.arange(5), {"boxes": boxes})
    batch = {"image": torch.zeros(4, 1, 8, 8), "objects": packed}
    many, few = (Mosaic(min_visibility=least)(batch, torch.arange(4), 0)["objects"] for least in (0, 0.5))
    assert many.total > few.total and few.total < 9
    areas = [(b[:, 2:] - b[:, :2]).prod(1) for b in (many.values["boxes"], few.values["boxes"])]
    assert areas[0].min() < 32 <= areas[1].min()


# --- objects of mixup --------------------------------------------------------------------------------------------


def test_mixup_keeps_the_objects_of_both() -> None:
    packed = objects(0, (9, 8), (2, 0, 3, 1, 2, 4))
    batch = {"image": images(0, (9, 8), count=6), "objects": {"offsets": packed.offsets, **packed.values}}
    mix = Mixup(alpha=32)
    rows, params = params_of(mix, batch)
    found = mix(batch, rows, 0)["objects"]
    both = PackedObjects(found.pop("offsets"), found)
    assert both.total == 2 * packed.total
    for i, pair in enumerate(params["partners"].tolist()):
        for name in packed.values:
            expected = torch.cat([packed[each][name] for each in pair])
            torch.testing.assert_close(both[i][name], expected, equal_nan=True)
    assert (params["shares"] - 0.5).abs().max() < 0.25


def test_padding_that_is_blended() -> None:
    inside = torch.zeros(2, 4, 4, dtype=torch.bool)
    inside[0, :2, :4] = inside[1, :4, :1] = True
    sizes_of = torch.tensor([[2, 4], [4, 1]])
    batch = {"image": torch.rand(2, 3, 4, 4), "image_mask": inside, "image_size": sizes_of, "label": LABELS[:2]}
    found = Mixup(num_classes=3)(batch)
    assert torch.equal(found["image_mask"], inside.any(0).expand(2, 4, 4))


# --- what does not go together -----------------------------------------------------------------------------------

IMAGE = {"image": torch.zeros(2, 3, 8, 8)}
OBJECTS = PackedObjects(torch.tensor([0, 1, 1]), {"keypoints": torch.ones(1, 2, 2)})


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Mixup(alpha=0), "`alpha`: expected a positive number"),
        (lambda: CutMix(num_classes=0), "`num_classes`: expected a positive number"),
        (lambda: Mixup(p=2), "`p`: expected a probability"),
        (
            lambda: Mixup()(IMAGE),
            "Mixup: expected labels as 'label', or objects, found image. Name the labels with `label`",
        ),
        (
            lambda: Mixup()({**IMAGE, "label": torch.zeros(2).long()}),
            "expected `num_classes` for labels that are numbers",
        ),
        (lambda: Mixup()({**IMAGE, "label": torch.zeros(2)}), r"expected labels \(B,\) of integers or .* found \(2,\)"),
        (lambda: Mixup()({**IMAGE, "label": torch.zeros(3, 2)}), r"found \(3, 2\)"),
        (lambda: Mixup()({**IMAGE, "label": ["a", "b"]}), "found list"),
        (lambda: Mixup(num_classes=3)({**IMAGE, "label": torch.zeros(2, 4)}), "labels of 3 classes, .* found 4"),
        (lambda: Mixup(num_classes=3)({**IMAGE, "label": torch.tensor([0, 3])}), "expected labels below 3, .* found 3"),
        (lambda: Mixup()({**IMAGE, "mask": torch.zeros(2, 8, 8).long()}), "Mixup: expected no masks.* Use CutMix"),
        (lambda: CutMix()({**IMAGE, "objects": OBJECTS}), "CutMix: expected no objects.* Use Mosaic or Mixup"),
        (lambda: Mosaic()({**IMAGE, "objects": OBJECTS}), "Mosaic: expected objects with boxes"),
        (lambda: Mosaic(17)({**IMAGE, "label": torch.zeros(2, 2)}), "Mosaic: .* of at most 16x16, found 17x17"),
        (
            lambda: Mosaic(9, p=0.5)({**IMAGE, "label": torch.zeros(2, 2)}),
            "equal to the images' size, as `p` is below 1, found 9x9",
        ),
        (lambda: Mosaic(start=(0.5, 0.1)), "`start`: expected two shares"),
    ],
)
def test_what_is_refused(make: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


# --- on a GPU ----------------------------------------------------------------------------------------------------


@pytest.mark.gpu
@each
@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype")
def test_a_gpu_gives_the_same_and_is_not_waited_for(transform: BatchTransform) -> None:
    batch = {"image": images(0, (20, 18), count=6), "label": LABELS}
    there = {name: value.cuda() for name, value in batch.items()}
    expected = transform(batch, torch.arange(6), 1)
    Compose([transform])(there, torch.arange(6), 0)
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        found = transform(there, torch.arange(6), 1)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    torch.testing.assert_close(found["image"].cpu(), expected["image"], rtol=0, atol=1)
    torch.testing.assert_close(found["label"].cpu(), expected["label"])


@pytest.mark.parametrize("alpha", [0.05, 0.2, 0.5, 1.0, 2.5, 32.0])
def test_betas_are_distributed_as_beta(alpha: float) -> None:
    found = betas(fold(7, np.arange(20_000, dtype=np.uint64)), alpha)
    assert found.min() >= 0 and found.max() <= 1 and np.isfinite(found).all()
    # Mean, variance and fourth moment of Beta(alpha, alpha), from the moments' recurrence.
    moments = np.cumprod([(alpha + k) / (2 * alpha + k) for k in range(4)])
    for power, expected in enumerate(moments, 1):
        error = np.sqrt((found ** (2 * power)).mean() / len(found))
        assert abs((found**power).mean() - expected) < 4 * error
    if alpha == 1.0:  # uniform
        counts = np.histogram(found, 20, (0, 1))[0]
        assert ((counts - 1000) ** 2 / 1000).sum() < 43.9  # chi-square, the 0.1 % point of 19 degrees of freedom
    if alpha == 0.5:  # arcsine
        counts = np.histogram(np.arcsin(np.sqrt(found)) * 2 / np.pi, 20, (0, 1))[0]
        assert ((counts - 1000) ** 2 / 1000).sum() < 43.9
    assert np.array_equal(found[5:9], betas(fold(7, np.arange(5, 9, dtype=np.uint64)), alpha))
