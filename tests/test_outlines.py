"""Runs and polygons, compared with what pycocotools makes of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st
from hypothesis.extra import numpy as arrays
from numpy.typing import NDArray

import tensorstore_ds as tsds
from tensorstore_ds.imaging.outlines import (
    dump_counts,
    fill_polygons,
    joined_polygons,
    mask_of_runs,
    parse_counts,
    runs_of_mask,
    split_polygons,
)

coco: Any = pytest.importorskip("pycocotools.mask")
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of pycocotools

MASKS = arrays.arrays(np.bool_, st.tuples(st.integers(1, 40), st.integers(1, 40)))


@given(MASKS)
def test_a_mask_and_its_runs(mask: NDArray[np.bool_]) -> None:
    runs = runs_of_mask(mask)
    np.testing.assert_array_equal(mask_of_runs(runs, mask.shape, "a"), mask)
    theirs = coco.encode(np.asfortranarray(mask, np.uint8))["counts"].decode()
    assert dump_counts(runs) == theirs
    np.testing.assert_array_equal(parse_counts(theirs), runs)


@given(st.lists(st.integers(0, 2**32 - 1), max_size=30))
def test_counts_of_any_length(counts: list[int]) -> None:
    runs = np.array(counts, np.uint32)
    np.testing.assert_array_equal(parse_counts(dump_counts(runs)), runs)


@given(st.text(max_size=30))
def test_whatever_text_is_runs_or_is_refused(text: str) -> None:
    try:
        runs = parse_counts(text)
    except ValueError:
        return
    np.testing.assert_array_equal(parse_counts(dump_counts(runs)), runs)


@pytest.mark.parametrize("text", ["P", "z" * 3, "oooooooooo0", "/", "é", "O"])
def test_counts_that_are_none(text: str) -> None:
    with pytest.raises(ValueError, match="expected"):
        parse_counts(text)


@pytest.mark.parametrize(
    "corners",
    [[[0, 0], [4e6, 0], [0, 4e6]], [[1e9, 1e9], [1e9, 1e9 + 64], [1e9 + 64, 1e9]], [[0, 0], [3, np.nan], [3, 3]]],
)
def test_polygons_that_would_take_all_memory(corners: list[list[float]]) -> None:
    objects = {"polygons": [np.array(corners, np.float32)]}
    with pytest.raises(
        tsds.SourceError, match=r"polygons: expected polygons of less than 10,000,000 pixels in all, found"
    ):
        tsds.loading.draw_masks(objects, (30, 40))


def test_runs_of_another_image() -> None:
    with pytest.raises(tsds.SourceError, match="a: expected runs of 6 pixels in all, found 7"):
        mask_of_runs(np.array([3, 4], np.uint32), (2, 3), "a")


@given(st.lists(arrays.arrays(np.float64, st.tuples(st.integers(1, 5), st.just(2)), elements=st.floats(-9, 9))))
def test_polygons_back_to_back(polygons: list[NDArray[np.float64]]) -> None:
    found = split_polygons(joined_polygons(polygons))
    assert len(found) == len(polygons)
    for one, other in zip(found, polygons, strict=True):
        np.testing.assert_array_equal(one, other)


def test_masks_are_drawn_as_pycocotools_draws_them() -> None:
    rings = [[1.5, 2, 20.2, 3, 14, 17.7], [4, 20, 9, 20, 9, 24.5, 4, 24.5]]
    runs = np.array([30, 5, 30 * 40 - 35], np.uint32)
    corners = joined_polygons([np.array(ring).reshape(-1, 2) for ring in rings])
    empty = np.empty((0, 2))
    objects = {
        "boxes": np.zeros((3, 4)),
        "polygons": [corners, empty, empty],
        "rle": [np.empty(0, np.uint32), runs, np.empty(0, np.uint32)],
    }
    masks = tsds.loading.draw_masks(objects, (30, 40))
    expected = coco.decode(coco.merge(coco.frPyObjects(rings, 30, 40)))
    np.testing.assert_array_equal(masks[0], expected)
    assert masks[1].sum() == 5 and masks[1][:5, 1].all()
    assert masks.shape == (3, 30, 40) and not masks[2].any()


def test_the_length_of_polygons_is_that_of_their_edges() -> None:
    """The longer side of each edge's rectangle, around each polygon and back to its first corner."""
    zigzag = np.array([[0, 0], [10**6, 5], [0, 10], [10**6, 15], [0, 20], [10**6, 25]], np.float64)
    corners = joined_polygons([zigzag, zigzag[:, ::-1]])
    with pytest.raises(tsds.errors.SourceError, match="found 12,000,000"):
        fill_polygons(corners, (4, 4))
    with pytest.raises(tsds.errors.SourceError, match="expected polygons of less than 10,000,000 pixels in all"):
        fill_polygons(np.array([[0, 0], [5 * 10**6, 1], [5 * 10**6, 0]], np.float64), (4, 4))
    assert fill_polygons(np.array([[0, 0], [10**5, 0], [10**5, 10**5], [0, 10**5]], np.float64), (4, 4)).all()


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("far", [10**8, -(10**8)])
def test_polygons_far_from_the_image_are_refused(far: int, axis: int) -> None:
    corners = np.array([[0, 0], [2, 0], [2, 1], [0, 1]], np.float64)
    corners[:, axis] += far
    with pytest.raises(tsds.errors.SourceError, match="expected polygons"):
        fill_polygons(corners, (4, 4))
    near = corners.copy()
    near[:, axis] -= far - 2
    assert fill_polygons(near, (4, 4)).any()
