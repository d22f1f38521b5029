"""Samples one by one to a batch: stacked, or listed where two of them differ."""

from __future__ import annotations

import pytest
import torch

from tensorstore_ds.loading.batches import collate_samples


def test_tensors_of_one_shape_are_stacked() -> None:
    samples = [torch.full((3, 4, 5), float(i)) for i in range(3)]
    found = collate_samples(samples, "list")
    assert torch.equal(found, torch.stack(samples))


@pytest.mark.parametrize(
    "shapes", [[(3, 4, 5), (3, 4, 6)], [(3, 4, 5), (3, 5, 5), (3, 4, 5)], [(2,), (3,)], [(4, 5), (4, 6)]]
)
def test_tensors_of_two_shapes_are_listed(shapes: list[tuple[int, ...]]) -> None:
    samples = [torch.rand(shape) for shape in shapes]
    found = collate_samples([{"x": sample} for sample in samples], "list")["x"]
    assert isinstance(found, list)
    assert all(a is b for a, b in zip(found, samples, strict=True))


def test_images_that_differ_only_in_their_channels_are_refused() -> None:
    samples = [torch.rand(1, 4, 5), torch.rand(3, 4, 5)]
    with pytest.raises(ValueError, match="expected as many channels in all of a batch, found 1, 3"):
        collate_samples(samples, "list")
