"""Objects of a batch: packed, and brought into the shapes that models want."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader

from tensorstore_ds.loading.collate import PADDED_LABEL, PackedObjects, collate_objects, pack_objects

NAMES = ("boxes", "labels", "keypoints", "difficult", "truncated", "occluded")
quick = settings(max_examples=50, deadline=None)


def sample(count: int, first: int, names: tuple[str, ...] = NAMES) -> dict[str, Tensor]:
    """`count` objects with values that no other object has."""
    numbers = torch.arange(first, first + count)
    points = numbers[:, None, None].float().expand(-1, 3, 2).clone()
    points[::2, 1] = torch.nan
    values = {
        "boxes": numbers[:, None].float() + torch.tensor([0.0, 0.25, 0.5, 0.75]),
        "labels": numbers,
        "keypoints": points,
        "difficult": (numbers % 2).to(torch.uint8),
        "truncated": (numbers % 3).to(torch.uint8),
        "occluded": (numbers % 5).to(torch.uint8),
    }
    return {name: values[name] for name in names}


def batch(lengths: list[int], names: tuple[str, ...] = NAMES) -> list[dict[str, Tensor]]:
    return [sample(n, 1 + sum(lengths[:i]), names) for i, n in enumerate(lengths)]


def same(a: Tensor, b: Tensor) -> bool:
    return a.dtype == b.dtype and a.shape == b.shape and torch.equal(a.nan_to_num(-7.0), b.nan_to_num(-7.0))


lengths = st.lists(st.integers(0, 4), min_size=1, max_size=6)
some_names = st.sets(st.sampled_from(NAMES), min_size=1).map(lambda s: tuple(sorted(s)))


@quick
@given(lengths, some_names)
def test_packing_puts_values_back_to_back(lengths: list[int], names: tuple[str, ...]) -> None:
    samples = batch(lengths, names)
    packed = pack_objects(samples)
    assert packed.offsets.tolist() == [sum(lengths[:i]) for i in range(len(lengths) + 1)]
    assert (len(packed), packed.total) == (len(lengths), sum(lengths))
    assert packed.lengths.tolist() == lengths
    assert packed.image_index.tolist() == [i for i, n in enumerate(lengths) for _ in range(n)]


@quick
@given(lengths, some_names)
def test_list_is_the_samples_again_as_views(lengths: list[int], names: tuple[str, ...]) -> None:
    samples = batch(lengths, names)
    packed = pack_objects(samples)
    for found in (collate_objects(packed, "list"), list(packed)):
        assert len(found) == len(samples)
        for got, expected in zip(found, samples, strict=True):
            assert set(got) == set(names)
            for name in names:
                assert same(got[name], expected[name])
                memory = packed.values[name].untyped_storage().data_ptr()
                assert got[name].untyped_storage().data_ptr() == memory


@quick
@given(lengths)
def test_padded_equals_pad_sequence(lengths: list[int]) -> None:
    samples = batch(lengths)
    padded = collate_objects(pack_objects(samples), "padded")
    assert padded["mask"].tolist() == [[place < n for place in range(max(lengths))] for n in lengths]
    for name in NAMES:
        fill = -100.0 if name == "labels" else 0.0
        expected = pad_sequence([s[name] for s in samples], batch_first=True, padding_value=fill)
        assert same(padded[name], expected)
        assert same(padded[name][padded["mask"]], torch.cat([s[name] for s in samples]))


def test_cross_entropy_ignores_padded_labels() -> None:
    packed = pack_objects(batch([2, 0, 1], ("labels",)))
    padded = collate_objects(packed, "padded")
    scores = torch.randn(3, 2, 9, generator=torch.Generator().manual_seed(0))
    loss = torch.nn.functional.cross_entropy(scores.view(-1, 9), padded["labels"].view(-1))
    expected = torch.nn.functional.cross_entropy(scores[padded["mask"]], packed.values["labels"])
    assert torch.equal(loss, expected)
    assert torch.nn.CrossEntropyLoss().ignore_index == PADDED_LABEL


def test_packed_is_the_tensors_themselves() -> None:
    packed = pack_objects(batch([2, 1]))
    found = collate_objects(packed, "packed")
    assert list(found) == ["offsets", *NAMES]
    assert found["offsets"] is packed.offsets
    assert all(found[name] is packed.values[name] for name in NAMES)


@pytest.mark.parametrize("samples", [0, 1, 3])
def test_batches_without_objects(samples: int) -> None:
    offsets = torch.zeros(samples + 1, dtype=torch.int64)
    packed = PackedObjects(offsets, {"boxes": torch.empty(0, 4), "labels": torch.empty(0, dtype=torch.int64)})
    assert [x["boxes"].shape for x in collate_objects(packed, "list")] == [(0, 4)] * samples
    padded = collate_objects(packed, "padded")
    assert (padded["boxes"].shape, padded["labels"].shape) == ((samples, 0, 4), (samples, 0))
    assert padded["mask"].shape == (samples, 0) and padded["mask"].dtype == torch.bool
    assert len(packed.image_index) == 0
    assert packed.select(torch.empty(0, dtype=torch.bool)).offsets.tolist() == [0] * (samples + 1)


def test_no_samples_and_no_values() -> None:
    empty = pack_objects([])
    assert (len(empty), empty.total, collate_objects(empty, "list")) == (0, 0, [])
    unnamed = PackedObjects(torch.tensor([0, 2, 3]), {})
    assert unnamed.total == 3 and unnamed.image_index.tolist() == [0, 0, 1]
    assert collate_objects(unnamed, "list") == [{}, {}]
    assert collate_objects(unnamed, "padded")["mask"].tolist() == [[True, True], [True, False]]


@quick
@given(lengths, st.data())
def test_selected_objects_stay_with_their_samples(lengths: list[int], data: st.DataObject) -> None:
    samples = batch(lengths)
    keep = data.draw(st.lists(st.booleans(), min_size=sum(lengths), max_size=sum(lengths)))
    packed = pack_objects(samples)
    selected = packed.select(torch.tensor(keep, dtype=torch.bool))
    parts = torch.tensor(keep, dtype=torch.bool).split(lengths)
    for got, expected, part in zip(selected, samples, parts, strict=True):
        assert all(same(got[name], expected[name][part]) for name in NAMES)


def test_one_sample_by_index() -> None:
    packed = pack_objects(batch([2, 0, 1]))
    assert packed[-1]["labels"].tolist() == [3]
    for outside in (3, -4):
        with pytest.raises(IndexError, match=r"outside of a batch of 3"):
            packed[outside]


def test_moving_and_pickling() -> None:
    packed = pack_objects(batch([2, 0, 1]))
    moved = packed.to("meta")
    assert moved.offsets.is_meta and all(v.is_meta for v in moved.values.values())
    again = packed.to("cpu", non_blocking=True)
    assert again.offsets is packed.offsets and again.values["boxes"] is packed.values["boxes"]
    loaded = pickle.loads(pickle.dumps(packed))  # noqa: S301 -- our own bytes
    assert torch.equal(loaded.offsets, packed.offsets) and same(loaded.values["keypoints"], packed.values["keypoints"])


ONE = torch.zeros(1)


def of(offsets: Any, dtype: Any = torch.int64, **values: Tensor) -> PackedObjects:
    return PackedObjects(torch.tensor(offsets, dtype=dtype), values)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: of([0.0], torch.float32), r"offsets: expected \(samples \+ 1,\)"),
        (lambda: of([]), r"offsets: expected \(samples \+ 1,\)"),
        (lambda: of([[0]]), r"offsets: expected \(samples \+ 1,\)"),
        (lambda: of([0], torch.int32), r"offsets: expected \(samples \+ 1,\)"),
        (lambda: of([0, 2], a=torch.zeros(2), b=torch.zeros(3)), "equally many rows"),
        (lambda: of([0, 2], a=torch.tensor(1.0)), "equally many rows"),
        (lambda: pack_objects([{"a": ONE}, {"b": ONE}]), r"sample 1: expected objects with \['a'\], found \['b'\]"),
        (lambda: pack_objects([{"a": ONE, "b": torch.zeros(2)}]), "sample 0: expected values of equally many objects"),
    ],
)
def test_what_does_not_fit_together_is_refused(make: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


def test_unknown_ways_and_taken_names_are_refused() -> None:
    packed = PackedObjects(torch.tensor([0, 1]), {"mask": torch.zeros(1), "offsets": torch.zeros(1)})
    with pytest.raises(ValueError, match="`collate`: expected one of list, padded, packed, found 'tuple'"):
        collate_objects(packed, "tuple")  # type: ignore[arg-type]
    for how, name in (("padded", "mask"), ("packed", "offsets")):
        with pytest.raises(ValueError, match=f"{how}: expected no value called {name}"):
            collate_objects(packed, how)  # type: ignore[arg-type]


@pytest.mark.gpu
@pytest.mark.parametrize("how", ["list", "padded", "packed"])
def test_collating_on_a_gpu_is_the_same(how: Any) -> None:
    packed = pack_objects(batch([2, 0, 1]))
    found = collate_objects(packed.pin_memory().to("cuda", non_blocking=True), how)
    expected = collate_objects(packed, how)
    for got, want in zip(found, expected, strict=True) if how == "list" else [(found, expected)]:
        for name in want:
            assert got[name].is_cuda and same(got[name].cpu(), want[name])


@pytest.mark.gpu
def test_torch_pins_packed_objects() -> None:
    loader = DataLoader([pack_objects(batch([2, 1]))], batch_size=None, pin_memory=True)
    (pinned,) = loader
    assert pinned.offsets.is_pinned() and pinned.values["boxes"].is_pinned()
