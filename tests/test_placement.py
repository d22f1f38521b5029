"""Where images come to lie when they are fitted to a size, and boxes at the edges of images."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, strategies as st

from tensorstore_ds.imaging.placement import Placement, box_faults, clip, fit_box, shrink

SIDES = st.integers(1, 300)


@given(st.tuples(SIDES, SIDES), st.tuples(SIDES, SIDES))
def test_stretching_takes_all_and_fills_all(source: tuple[int, int], size: tuple[int, int]) -> None:
    assert fit_box(source, size, "stretch") == Placement((0, 0, source[1], source[0]), size, size, (0, 0))


@given(st.tuples(SIDES, SIDES), st.tuples(SIDES, SIDES))
def test_padding_takes_all_and_is_in_the_middle(source: tuple[int, int], size: tuple[int, int]) -> None:
    found = fit_box(source, size, "pad")
    assert found.box == (0, 0, source[1], source[0])
    assert found.size == size
    factor = min(size[0] / source[0], size[1] / source[1])
    for resized, old, new, before in zip(found.resized, source, size, found.offset, strict=True):
        assert 1 <= resized <= new
        assert abs(resized - old * factor) <= 0.5 + 1e-9 or (resized == 1 and old * factor < 0.5)
        assert new - resized - before - before in (0, 1)
    assert any(resized == new for resized, new in zip(found.resized, size, strict=True))


@given(st.tuples(SIDES, SIDES), st.tuples(SIDES, SIDES))
def test_cropping_fills_all_with_the_middle(source: tuple[int, int], size: tuple[int, int]) -> None:
    found = fit_box(source, size, "crop")
    assert (found.resized, found.size, found.offset) == (size, size, (0, 0))
    left, top, right, bottom = found.box
    (height, width), (to_height, to_width) = source, size
    np.testing.assert_allclose([left + right, top + bottom], [width, height])
    np.testing.assert_allclose((right - left) * to_height, (bottom - top) * to_width)
    assert np.isclose(right - left, width) or np.isclose(bottom - top, height)
    assert min(left, top) >= 0


@given(st.tuples(SIDES, SIDES), st.integers(1, 300))
def test_shrinking_keeps_the_ratio_of_what_is_too_large(source: tuple[int, int], most: int) -> None:
    found = shrink(source, most)
    if max(source) <= most:
        assert found is None
        return
    assert found is not None
    assert found.box == (0, 0, source[1], source[0])
    assert found.resized == found.size
    assert max(found.size) == most
    for new, old in zip(found.size, source, strict=True):
        assert abs(new - old * most / max(source)) <= 0.5 + 1e-9 or new == 1
    assert found.offset == (0, 0)


def test_points_move_with_the_part_that_holds_them() -> None:
    placement = Placement((10, 20, 30, 60), resized=(80, 10), size=(100, 50), offset=(7, 5))
    points = np.array([[[10, 20], [30, 60]], [[20, 30], [10, 60]]], np.float64)
    expected = [[[5, 7], [15, 87]], [[10, 27], [5, 87]]]
    np.testing.assert_array_equal(placement.move(points), expected)


@pytest.mark.parametrize(
    ("box", "fault"),
    [
        ((0, 0, 1, 1), ""),
        ((39.5, 19.5, 41, 21), ""),
        ((-5, -5, 0.5, 0.5), ""),
        ((-5, -5, 50, 50), ""),
        ((40, 5, 41, 6), "box-outside"),
        ((5, 20, 6, 21), "box-outside"),
        ((-1, 5, 0, 6), "box-outside"),
        ((5, -1, 6, 0), "box-outside"),
        ((5, 5, 5, 9), "box-empty"),
        ((5, 5, 9, 5), "box-empty"),
        ((50, 5, 50, 9), "box-empty"),
        ((9, 5, 5, 9), "box-reversed"),
        ((5, 9, 9, 5), "box-reversed"),
        ((5, 9, 5, 5), "box-reversed"),
        ((5, np.nan, 9, 9), "box-nan"),
        ((5, 5, np.inf, 9), "box-nan"),
    ],
)
def test_faults_of_boxes(box: tuple[float, ...], fault: str) -> None:
    boxes = np.array([(1, 1, 2, 2), box], np.float64)
    assert box_faults(boxes, (20, 40)).tolist() == ["", fault]


def test_boxes_are_cut_off_at_the_edges() -> None:
    boxes = np.array([(-5, -6, 50, 60), (1, 2, 3, 4), (39, 19, 41, 21)], np.float64)
    expected = [[0, 0, 40, 20], [1, 2, 3, 4], [39, 19, 40, 20]]
    np.testing.assert_array_equal(clip(boxes, (20, 40)), expected)
