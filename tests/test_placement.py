"""Where images and their objects are after they were fitted to a size, and boxes at the edges of images."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, strategies as st

import tensorstore_ds as tsds
from tensorstore_ds.conversion.options import ConvertOptions
from tensorstore_ds.imaging.objects import place_objects
from tensorstore_ds.imaging.placement import FITS, Fit, Placement, box_faults, clip, fit_box, shrink
from tensorstore_ds.imaging.resizing import resize

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


# --- objects of a sample


@pytest.mark.parametrize("fit", FITS)
def test_a_bright_rectangle_stays_inside_its_box(fit: Fit) -> None:
    """The oracle is the picture itself: resize a rectangle, and find it where its box says."""
    pixels = np.zeros((80, 120, 1), np.uint8)
    pixels[24:56, 48:72] = 255
    placement = fit_box((80, 120), (40, 40), fit)
    stored = resize(pixels, placement)[:, :, 0]
    objects, problems = place_objects("k", {"boxes": np.array([[48.0, 24, 72, 56]])}, (80, 120), placement)
    assert not problems
    rows, columns = np.nonzero(stored > 127)
    found = [columns.min(), rows.min(), columns.max() + 1, rows.max() + 1]
    np.testing.assert_allclose(objects["boxes"][0], found, atol=0.51)


def test_a_bad_box_takes_its_object_along_and_is_named() -> None:
    objects = {
        "boxes": np.array([[0.0, 0, 4, 4], [3, 3, 3, 9], [2, 2, 30, 5]]),
        "labels": np.array([7, 8, 9]),
        "keypoints": np.arange(12, dtype=float).reshape(3, 2, 2),
    }
    kept, problems = place_objects("a.jpg", objects, (10, 10), None)
    assert kept["labels"].tolist() == [7, 9]
    assert kept["boxes"].tolist() == [[0, 0, 4, 4], [2, 2, 10, 5]]  # clipped to the image
    assert kept["keypoints"][:, 0, 0].tolist() == [0, 8]
    assert [(p.where, p.reason) for p in problems] == [("a.jpg", "box-empty")]
    assert "object 2 of 3:" in problems[0].message
    assert "(3, 3, 3, 9)" in problems[0].message


def test_a_box_that_the_crop_cuts_off_is_dropped_and_a_landmark_keeps_its_place() -> None:
    placement = fit_box((10, 30), (10, 10), "crop")  # keeps columns 10 to 20
    objects = {"boxes": np.array([[0.0, 0, 9, 9], [12, 1, 40, 9]]), "keypoints": np.array([[[1.0, 1]], [[25, 5]]])}
    kept, problems = place_objects("k", objects, (10, 30), placement)
    assert kept["boxes"].tolist() == [[2, 1, 10, 9]]
    assert kept["keypoints"].tolist() == [[[15, 5]]]
    assert [p.reason for p in problems] == ["box-cropped"]


def test_a_box_of_which_the_crop_leaves_too_little_is_dropped_if_that_is_wanted() -> None:
    placement = ConvertOptions(fit=tsds.Fit((10, 10), "crop", min_visibility=0.5)).placement(
        (10, 30)
    )  # columns 10 to 20
    boxes = np.array([[5.0, 0, 15, 9], [4, 0, 15, 9], [12, 1, 14, 9], [19, 1, 90, 9], [np.nan, 0, 1, 1]])
    kept, problems = place_objects("k", {"boxes": boxes}, (10, 30), placement)
    assert kept["boxes"].tolist() == [[0, 0, 5, 9], [2, 1, 4, 9]]  # half of a box is enough
    assert [p.reason for p in problems] == ["box-cropped", "box-cropped", "box-nan"]
    clipped, _ = place_objects(
        "k", {"boxes": np.array([[18.0, 0, 90, 5]])}, (10, 20), fit_box((10, 20), (10, 20), "crop")
    )
    assert clipped["boxes"].tolist() == [[18, 0, 20, 5]]
    whole = ConvertOptions(fit=tsds.Fit((10, 20), "crop", min_visibility=1)).placement((10, 20))
    clipped, problems = place_objects("k", {"boxes": np.array([[18.0, 0, 90, 5]])}, (10, 20), whole)
    assert clipped["boxes"].tolist() == [[18, 0, 20, 5]] and not problems  # the rest was never in the image


@pytest.mark.parametrize("labels", [1, 3])
@pytest.mark.parametrize("placement", [None, fit_box((4, 4), (8, 8), "stretch")])
def test_values_of_differing_lengths_are_refused(labels: int, placement: Placement | None) -> None:
    objects = {"boxes": np.array([[1.0, 1, 3, 3], [0, 0, 2, 2]]), "labels": np.zeros(labels, np.int64)}
    with pytest.raises(tsds.SourceError, match=f"a.jpg: expected as many of each .*, found 2 boxes, {labels} labels"):
        place_objects("a.jpg", objects, (4, 4), placement)


def test_absent_landmarks_stay_absent() -> None:
    objects = {"keypoints": np.array([[[np.nan, np.nan], [2, 2]]])}
    kept, _ = place_objects("k", objects, (4, 4), fit_box((4, 4), (8, 8), "stretch"))
    np.testing.assert_array_equal(kept["keypoints"], [[[np.nan, np.nan], [4, 4]]])
