"""Batches that always arrive in the same tensors: the values of other loaders' batches, and what cannot be static."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import tensorstore_ds as tsds
from stores import detections, numbered, store_of
from tensorstore_ds.loading.static_batch import StaticBatch

ROWS, BATCH = 12, 4
HOW: dict[str, dict[str, Any]] = {
    "threads": {},
    "one worker": {"num_workers": 1},
    "on the device": {"device": "cpu", "residency": "device"},
    "transformed": {"batch_transform": lambda batch, rows, epoch: {**batch, "image": batch["image"].float() + epoch}},
    "a collate_fn": {"collate_fn": lambda samples: [torch.stack([s["image"] for s in samples]), "words"]},
}


@pytest.fixture(scope="module")
def labelled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return numbered(tmp_path_factory.mktemp("labelled") / "s.tsds", ROWS, (6, 5, 3), classes=3).path


@pytest.fixture(scope="module")
def objects(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return store_of(tmp_path_factory.mktemp("objects") / "s.tsds", detections(ROWS), ["ant", "bee"]).path


def tensors_of(batch: Any) -> list[torch.Tensor]:
    return [each for each in (batch.values() if isinstance(batch, dict) else batch) if isinstance(each, torch.Tensor)]


@pytest.mark.parametrize("how", HOW)
def test_batches_have_the_values_and_layouts_of_others_and_one_address(labelled: Path, how: str) -> None:
    plain, static = (
        tsds.DataLoader(tsds.StoreDataset(labelled), BATCH, shuffle=True, seed=2, **HOW[how], into=into)
        for into in (None, "first")
    )
    addresses = set()
    for _ in range(2):
        for expected, found in zip(plain, static, strict=True):
            assert type(found) is type(expected) and len(found) == len(expected)
            pairs = list(zip(tensors_of(expected), tensors_of(found), strict=True))
            assert pairs and all(torch.equal(a, b) and a.stride() == b.stride() for a, b in pairs)
            addresses.add(tuple(tensor.data_ptr() for _, tensor in pairs))
    assert len(addresses) == 1


def test_tensors_of_yours_are_filled_by_name(labelled: Path) -> None:
    mine = {"label": torch.zeros(BATCH, dtype=torch.int64), "image": torch.zeros(BATCH, 3, 6, 5, dtype=torch.uint8)}
    for batch in tsds.DataLoader(tsds.StoreDataset(labelled), BATCH, into=mine):
        assert all(batch[name] is mine[name] for name in mine)
        assert (mine["image"][:, 0, 0, 0] % 3 == mine["label"]).all()
    assert mine["image"].max() == ROWS - 1


def test_what_is_no_tensor_is_that_of_the_batch(objects: Path) -> None:
    static = StaticBatch("first")
    first, second = (static.fill({"keys": [key], "deep": ({"x": torch.ones(2) * i},)}) for i, key in enumerate("ab"))
    assert (first["keys"], second["keys"]) == (["a"], ["b"])
    assert first["deep"][0]["x"] is second["deep"][0]["x"] and second["deep"][0]["x"].tolist() == [1, 1]


def test_objects_of_a_fixed_number_are_static(objects: Path) -> None:
    static, offsets = StaticBatch("first"), torch.arange(3)
    made = [static.fill(tsds.loading.PackedObjects(offsets * i, {"boxes": torch.ones(2, 4) * i})) for i in (1, 0)]
    assert made[0].values["boxes"] is made[1].values["boxes"] and made[0].offsets.tolist() == [0, 0, 0]


def test_a_batch_made_in_inference_mode_is_written_to_outside_of_it() -> None:
    static = StaticBatch("first")
    with torch.inference_mode():
        static.fill(torch.zeros(2))
    leaf = torch.ones(2, requires_grad=True)
    found = static.fill(leaf * 3)
    assert found.tolist() == [3, 3] and not found.requires_grad


# --- what cannot be static

ADVICE = (
    r"\. Every batch needs the same shapes: pass `drop_last=True`, and leave out objects and images of differing "
    r"sizes, or give them a fixed shape in `batch_transform`\.$"
)


def test_a_short_last_batch_is_refused_at_once(labelled: Path) -> None:
    dataset = tsds.StoreDataset(labelled)
    expected = (
        r"^`into`: expected 5 samples in every batch, found 2 in the last one of 12 samples: use `drop_last=True`\.$"
    )
    with pytest.raises(tsds.OptionError, match=expected):
        tsds.DataLoader(dataset, 5, into="first")
    assert len(list(tsds.DataLoader(dataset, 5, into="first", drop_last=True))) == 2


def test_a_short_batch_of_a_sampler_is_refused_when_it_comes(labelled: Path) -> None:
    dataset = tsds.StoreDataset(labelled)
    batches = iter(tsds.DataLoader(dataset, batch_sampler=[[0, 1], [2]], into="first"))
    next(batches)
    expected = r"^`into`: expected image of \(2, 3, 6, 5\) uint8 on cpu, found \(1, 3, 6, 5\) uint8 on cpu"
    with pytest.raises(tsds.OptionError, match=expected + ADVICE):
        next(batches)


@pytest.mark.parametrize(
    ("collate", "expected"),
    [
        ("list", r"`into`: expected objects.0.boxes of \(\d, 4\) float32 on cpu, found \(\d, 4\) float32 on cpu"),
        ("padded", r"`into`: expected objects.mask of \(3, \d\) bool on cpu, found \(3, \d\) bool on cpu"),
        ("packed", r"`into`: expected objects.boxes of \(\d+, 4\) float32 on cpu, found \(\d+, 4\) float32 on cpu"),
    ],
)
def test_objects_change_their_number(objects: Path, collate: Any, expected: str) -> None:
    loader = tsds.DataLoader(tsds.StoreDataset(objects), 3, collate=collate, into="first")
    with pytest.raises(tsds.OptionError, match="^" + expected + ADVICE):
        list(loader)
    images = tsds.DataLoader(tsds.StoreDataset(objects, fields=["image"]), 3, into="first")
    assert len(list(images)) == ROWS // 3


def test_other_names_types_and_values(labelled: Path) -> None:
    dataset = tsds.StoreDataset(labelled)
    image = torch.zeros(BATCH, 3, 6, 5)
    for into, expected in [
        ({"image": image}, r"expected the tensors image, found image, label"),
        (
            {"image": image, "label": torch.zeros(BATCH)},
            r"expected image of \(4, 3, 6, 5\) float32 .*found .* uint8 on",
        ),
    ]:
        with pytest.raises(tsds.OptionError, match=expected):
            next(iter(tsds.DataLoader(dataset, BATCH, into=into)))
    for shared in (
        torch.zeros(1, 3, 6, 5).expand(BATCH, 3, 6, 5),
        torch.zeros(400).as_strided((BATCH, 3, 6, 5), (9, 9, 5, 1)),
    ):
        with pytest.raises(
            tsds.OptionError, match=r"`into`: expected tensors .* found image of .*: `tensor.clone\(\)`"
        ):
            tsds.DataLoader(dataset, BATCH, into={"image": shared, "label": torch.zeros(BATCH, dtype=torch.int64)})
    for wrong in ("last", True, {}, {"image": 3}):
        with pytest.raises(tsds.OptionError, match="`into`: expected `first`, or tensors as a batch has them, found"):
            tsds.DataLoader(dataset, BATCH, into=wrong)
