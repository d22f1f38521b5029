"""Transforms in a loader: what a sample gets does not depend on threads, processes, batches and ranks."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import tensorstore_ds as tsds
from stores import store_of
from tensorstore_ds.loading import PackedObjects
from tensorstore_ds.loading.collate import pack_objects

ROWS = 24


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store of noise, whose label is the row."""
    rng = np.random.default_rng(0)
    samples = [{"image": rng.integers(0, 256, (24, 20, 3), np.uint8), "label": row} for row in range(ROWS)]
    path = tmp_path_factory.mktemp("loading") / "s.tsds"
    store_of(path, samples, tuple(map(str, range(ROWS))))
    return path


def alone() -> tsds.Compose:
    """Of what each sample gets alone."""
    steps = [
        tsds.transforms.RandomAffine(20, (0.1, 0.1), (0.8, 1.2), 5),
        tsds.transforms.RandomPerspective(),
        tsds.transforms.RandAugment(),
        tsds.transforms.TrivialAugment(),
        tsds.transforms.GaussianBlur(3),
        tsds.transforms.Equalize(),
        tsds.transforms.RandomErasing(value="random"),
    ]
    return tsds.Compose(steps, seed=3)


def by_row(path: Path, **options: Any) -> list[dict[int, Tensor]]:
    """The images of two epochs by their row."""
    loader = tsds.DataLoader(tsds.StoreDataset(path), batch_transform=alone(), **options)
    epochs = []
    for _ in range(2):
        seen = {}
        for batch in loader:
            seen |= dict(zip(batch["label"].tolist(), batch["image"].clone(), strict=True))
        epochs.append(seen)
    return epochs


WAYS: list[dict[str, Any]] = [
    {"batch_size": 6, "num_threads": 3},
    {"batch_size": 5, "shuffle": False},
    {"batch_size": 1},
    {"batch_size": 6, "num_workers": 1, "persistent_workers": True},
    {"batch_size": 6, "device": "cpu"},
]


@pytest.mark.parametrize("way", WAYS, ids=str)
def test_a_sample_gets_the_same_in_every_way(path: Path, way: dict[str, Any]) -> None:
    expected = by_row(path, batch_size=8, shuffle=True, num_threads=1)
    found = by_row(path, **{"shuffle": True, **way})
    assert any(not torch.equal(expected[0][row], expected[1][row]) for row in range(ROWS))
    for first, second in zip(expected, found, strict=True):
        assert sorted(first) == sorted(second) == list(range(ROWS))
        for row in range(ROWS):
            # The mean of contrast may be summed in another order.
            assert ((first[row].int() - second[row].int()).abs() <= 1).float().mean() > 0.99


@pytest.mark.parametrize("mix", [tsds.transforms.Mixup, tsds.transforms.CutMix, tsds.transforms.Mosaic])
def test_mixing_is_the_same_in_threads_and_processes(path: Path, mix: Any) -> None:
    results = []
    for options in ({"num_threads": 1}, {"num_threads": 3}, {"num_workers": 1}):
        transform = tsds.Compose([mix(num_classes=ROWS)], seed=2)
        loader = tsds.DataLoader(tsds.StoreDataset(path), 6, shuffle=True, seed=4, batch_transform=transform, **options)
        results.append([(batch["image"].clone(), batch["label"].clone()) for batch in loader])
    for found in results[1:]:
        for (image, label), (expected_image, expected_label) in zip(found, results[0], strict=True):
            assert torch.equal(image, expected_image) and torch.equal(label, expected_label)
    shares = torch.cat([label for _, label in results[0]]).sum(0)
    torch.testing.assert_close(shares.sum(), torch.tensor(float(ROWS)))
    dataset = tsds.StoreDataset(path, return_as="tuple")
    image, label = next(iter(tsds.DataLoader(dataset, 6, batch_transform=mix(num_classes=ROWS))))
    assert image.shape == (6, 3, 24, 20) and label.shape == (6, ROWS)


# --- wrong orders and values --------------------------------------------------------------------------------------

COLORS = [
    tsds.transforms.ColorJitter(0.4),
    tsds.transforms.Solarize(0.5, p=1),
    tsds.transforms.Posterize(4, p=1),
    tsds.transforms.Equalize(p=1),
    tsds.transforms.AutoContrast(p=1),
    tsds.transforms.RandAugment(),
    tsds.transforms.TrivialAugment(),
]
NORMALIZE = tsds.Normalize([0.5] * 3, [0.25] * 3)
FLIP = tsds.RandomHorizontalFlip()


@pytest.mark.parametrize("color", COLORS, ids=lambda step: type(step).__name__)
def test_normalize_before_a_transform_that_needs_unit_images(color: torch.nn.Module) -> None:
    name = type(color).__name__
    for steps in ([NORMALIZE, color], [FLIP, tsds.Compose([NORMALIZE]), FLIP, tsds.Compose([color])]):
        with pytest.warns(UserWarning, match=f"{name} expects images in .0, 1., found Normalize before it. Put Norm"):
            tsds.Compose(steps)
    tsds.Compose(
        [color, FLIP, tsds.transforms.RandomErasing(), NORMALIZE, FLIP, tsds.transforms.RandomErasing()]
    )  # no warning


def test_normalize_twice() -> None:
    with pytest.warns(UserWarning, match="Normalize is in it twice") as warned:
        tsds.Compose([NORMALIZE, FLIP, tsds.Compose([tsds.Normalize([0.5], [0.5])]), tsds.transforms.ColorJitter(0.1)])
    assert len(warned) == 1


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_values_that_normalize_is_not_meant_for(dtype: torch.dtype) -> None:
    """Floats of 0 to 255, and images that were normalized before: one warning, by the first batch alone."""
    unit = torch.rand(4, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    mean, std = [0.5] * 3, [0.25] * 3
    for images in (unit * 255, (unit - 0.5) / 0.1):
        normalize = tsds.Normalize(mean, std)
        with pytest.warns(UserWarning, match="Normalize: expected images with a std near 0.25, found") as warned:
            for _ in range(2):
                normalize({"image": images.to(dtype)})
        assert len(warned) == 1
    for images in (unit.to(dtype), (unit * 255).to(torch.uint8), torch.zeros(1, 3, 4, 4, dtype=dtype)):
        tsds.Normalize(mean, std)({"image": images})
    # Images of any floating-point numbers, with their own statistics.
    tsds.Normalize([300.0] * 3, [1000.0] * 3)({"image": (unit.to(torch.float32) - 0.2) * 4000})


@pytest.mark.parametrize("color", COLORS, ids=lambda step: type(step).__name__)
def test_values_outside_of_what_a_transform_needs(color: torch.nn.Module) -> None:
    unit = torch.rand(4, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    for images in (unit * 255, NORMALIZE({"image": unit})["image"]):
        step = copy.deepcopy(color)
        with pytest.warns(UserWarning, match=f"{type(color).__name__}: expected floating-point images in") as warned:
            for _ in range(2):
                step({"image": images})
        assert len(warned) == 1
    for images in (unit, (unit * 255).to(torch.uint8), unit[:0]):
        copy.deepcopy(color)({"image": images})


# --- the seed of the order ----------------------------------------------------------------------------------------


def order_of(loader: tsds.DataLoader[Any]) -> list[int]:
    return [label for batch in loader for label in batch["label"].tolist()]


def test_a_seed_from_torchs_generator(path: Path) -> None:
    """With `seed=None`, `torch.manual_seed` decides the order, as with torch's loader; otherwise it does not."""
    orders: dict[Any, list[list[int]]] = {None: [], 0: []}
    for seed, found in orders.items():
        for drawn in (1, 1, 2):
            torch.manual_seed(drawn)
            found.append(order_of(tsds.DataLoader(tsds.StoreDataset(path), 5, shuffle=True, seed=seed)))
    assert orders[None][0] == orders[None][1] != orders[None][2]
    assert orders[0][0] == orders[0][1] == orders[0][2]
    assert all(sorted(order) == list(range(ROWS)) for order in orders[None])


def test_a_loader_with_a_drawn_seed_resumes(path: Path) -> None:
    make = lambda: tsds.DataLoader(tsds.StoreDataset(path), 5, shuffle=True, seed=None)  # noqa: E731
    first, second = make(), make()
    batches = iter(first)
    next(batches)
    state = first.state_dict()
    rest = [label for batch in batches for label in batch["label"].tolist()]
    following = order_of(first)
    second.load_state_dict(state)
    assert (order_of(second), order_of(second)) == (rest, following)
    fixed = tsds.DataLoader(tsds.StoreDataset(path), 5, shuffle=True, seed=3)
    with pytest.raises(tsds.OptionError, match="with seed 3, found"):
        fixed.load_state_dict(state)
    other, seed = make(), first.seed
    before = other.seed
    with pytest.raises(tsds.OptionError, match="batch_size"):
        other.load_state_dict({**state, "batch_size": 4})
    assert other.seed == before != seed


@pytest.mark.parametrize("how", ["batch", "decode", "sample"])
@pytest.mark.parametrize("weighted", [tsds.WeightedSampler, torch.utils.data.WeightedRandomSampler])
def test_each_draw_of_a_row_is_another_one(path: Path, weighted: Any, how: str) -> None:
    """In a batch and in several ones; as in torchvision, and not once an epoch."""
    crop = tsds.RandomResizedCrop(20, scale=(0.2, 0.9))

    def loader(**options: Any) -> tsds.DataLoader[Any]:
        weights, more = [30.0] + [1.0] * (ROWS - 1), {}
        if weighted is not tsds.WeightedSampler:
            more = {"num_samples": ROWS, "generator": torch.Generator().manual_seed(5)}
        dataset = tsds.StoreDataset(
            path, decode=crop if how == "decode" else None, transform=noise if how == "sample" else None
        )
        sampler, transform = weighted(weights, **more), crop if how == "batch" else None
        return tsds.DataLoader(dataset, 6, sampler=sampler, batch_transform=transform, **options)

    found = [batch["image"].clone() for batch in loader(seed=1)]
    drawn = torch.cat(found).flatten(1)
    assert len(drawn) == len(drawn.unique(dim=0)) == ROWS
    for options in ({"num_threads": 3}, {"num_workers": 1}):
        for got, expected in zip(loader(seed=1, **options), found, strict=True):
            assert torch.equal(got["image"], expected)
    if weighted is tsds.WeightedSampler:
        begun, rest = loader(seed=1), loader(seed=1)
        next(iter(begun))
        rest.load_state_dict(begun.state_dict())
        assert all(torch.equal(got["image"], each) for got, each in zip(rest, found[1:], strict=True))


def noise(sample: dict[str, Any], generator: torch.Generator) -> dict[str, Any]:
    return {**sample, "image": sample["image"] + torch.rand(3, 24, 20, generator=generator)}


def test_each_pass_through_a_small_store_of_a_mixture_is_another_one(path: Path) -> None:
    large = tsds.StoreDataset(path)
    mixed = tsds.MixedDataset({large: 0.5, large.subset([0, 1, 2]): 0.5})
    colors = tsds.transforms.ColorJitter(0.5)
    batches = list(tsds.DataLoader(mixed, 8, shuffle=True, seed=1, batch_transform=colors))
    label, image = (torch.cat([batch[name] for batch in batches]) for name in ("label", "image"))
    assert len(label) == 48 and (label == 0).sum() == 9
    assert len(image[label == 0].flatten(1).unique(dim=0)) == 9
    once = tsds.MixedDataset({large: 0.5, tsds.StoreDataset(path): 0.5})
    rows = [batch["image"] for batch in tsds.DataLoader(once, 8, shuffle=True, seed=1, batch_transform=colors)]
    assert len(torch.cat(rows).flatten(1).unique(dim=0)) == 48


@pytest.mark.parametrize("how", ["list", "padded", "packed"])
@pytest.mark.parametrize(
    "way", [{"num_threads": 2}, {"num_workers": 1}, {"return_as": "tuple"}, {"in": "script"}], ids=str
)
def test_objects_move_in_every_form(tmp_path: Path, how: Any, way: dict[str, Any]) -> None:
    rng, counts = np.random.default_rng(3), [2, 0, 3, 1, 0, 1]
    samples = []
    for count in counts:
        corners = rng.uniform(0, 20, (count, 2))
        boxes = np.concatenate([corners, corners + rng.uniform(3, 12, (count, 2))], 1).astype(np.float32)
        labels = rng.integers(0, 2, count)
        samples.append({"image": rng.integers(0, 256, (32, 32, 3), np.uint8), "boxes": boxes, "labels": labels})
    store_of(tmp_path / "s.tsds", samples, ("a", "b"))
    steps = [tsds.RandomCrop((16, 18)), tsds.RandomHorizontalFlip(), tsds.transforms.ColorJitter(0.4)]
    move = tsds.Compose(steps, seed=1)
    dataset = tsds.StoreDataset(tmp_path / "s.tsds", return_as="tuple" if way == "tuples" else "dict")
    called: Any = (lambda *asked: move(*asked)) if way == "script" else move  # a function of the user
    loader = tsds.DataLoader(dataset, 3, num_workers=way == "workers", collate=how, batch_transform=called)
    seen = []
    for batch in loader:
        objects = batch[1] if isinstance(batch, tuple) else batch["objects"]
        if how == "padded":
            seen += [{n: objects[n][i][objects["mask"][i]] for n in ("boxes", "labels")} for i in range(3)]
        else:
            packed = how == "packed"
            seen += list(PackedObjects(objects.pop("offsets"), objects)) if packed else objects
    assert len(seen) == len(samples)
    for row, (sample, found) in enumerate(zip(samples, seen, strict=True)):
        alone = {n: torch.as_tensor(sample[n]).clone() for n in ("boxes", "labels")}
        image = torch.from_numpy(sample["image"]).permute(2, 0, 1)[None]
        (expected,) = move({"image": image, "objects": pack_objects([alone])}, np.array([row]), 0)["objects"]
        assert torch.equal(found["boxes"], expected["boxes"]) and torch.equal(found["labels"], expected["labels"])
    assert 0 < sum(len(each["boxes"]) for each in seen) < sum(counts)  # the crop has left some out
