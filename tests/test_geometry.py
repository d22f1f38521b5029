"""Boxes and landmarks move with the pixels."""

import numpy as np
import pytest
from hypothesis import given, strategies as st
from PIL import Image

from tensorstore_ds.conversion.encode import place_objects
from tensorstore_ds.conversion.options import ConvertOptions
from tensorstore_ds.imaging.placement import FITS, box_faults, fit_box
from tensorstore_ds.imaging.resizing import resize

SIZES = st.tuples(st.integers(1, 60), st.integers(1, 60))


@given(SIZES, SIZES, st.sampled_from(FITS))
def test_corners_of_the_box_land_on_corners_of_what_is_resized(source, size, fit):
    placement = fit_box(source, size, fit)
    left, top, right, bottom = placement.box
    corners = placement.move(np.array([[left, top], [right, bottom]]))
    y, x = placement.offset
    height, width = placement.resized
    np.testing.assert_allclose(corners, [[x, y], [x + width, y + height]], atol=1e-9)
    assert 0 <= left < right <= source[1] + 1e-9
    assert 0 <= top < bottom <= source[0] + 1e-9
    assert y + height <= size[0]
    assert x + width <= size[1]


@given(SIZES, SIZES)
def test_pad_keeps_the_whole_image_and_crop_leaves_no_border(source, size):
    assert fit_box(source, size, "pad").box == (0, 0, source[1], source[0])
    assert fit_box(source, size, "crop").resized == size


@pytest.mark.parametrize("fit", FITS)
def test_a_bright_rectangle_stays_inside_its_box(fit):
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


@pytest.mark.parametrize(
    ("box", "reason"),
    [
        ([np.nan, 0, 1, 1], "box-nan"),
        ([0, 0, np.inf, 1], "box-nan"),
        ([5, 0, 2, 1], "box-reversed"),
        ([5, 3, 8, 1], "box-reversed"),
        ([5, 3, 5, 8], "box-empty"),
        ([10, 0, 12, 4], "box-outside"),
        ([-4, 0, 0, 4], "box-outside"),
        ([0, 20, 5, 22], "box-outside"),
        ([0, 0, 10, 20], ""),
        ([-5, -5, 1, 1], ""),
    ],
)
def test_faults_of_boxes(box, reason):
    assert box_faults(np.array([box], float), (20, 10)).tolist() == [reason]


def test_a_bad_box_takes_its_object_along_and_is_named():
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


def test_a_box_that_the_crop_cuts_off_is_dropped_and_a_landmark_keeps_its_place():
    placement = fit_box((10, 30), (10, 10), "crop")  # keeps columns 10 to 20
    objects = {"boxes": np.array([[0.0, 0, 9, 9], [12, 1, 40, 9]]), "keypoints": np.array([[[1.0, 1]], [[25, 5]]])}
    kept, problems = place_objects("k", objects, (10, 30), placement)
    assert kept["boxes"].tolist() == [[2, 1, 10, 9]]
    assert kept["keypoints"].tolist() == [[[15, 5]]]
    assert [p.reason for p in problems] == ["box-cropped"]


def test_a_box_of_which_the_crop_leaves_too_little_is_dropped_if_that_is_wanted():
    placement = ConvertOptions(size=(10, 10), fit="crop", min_visibility=0.5).placement((10, 30))  # columns 10 to 20
    boxes = np.array([[5.0, 0, 15, 9], [4, 0, 15, 9], [12, 1, 14, 9], [19, 1, 90, 9], [np.nan, 0, 1, 1]])
    kept, problems = place_objects("k", {"boxes": boxes}, (10, 30), placement)
    assert kept["boxes"].tolist() == [[0, 0, 5, 9], [2, 1, 4, 9]]  # half of a box is enough
    assert [p.reason for p in problems] == ["box-cropped", "box-cropped", "box-nan"]
    clipped, _ = place_objects(
        "k", {"boxes": np.array([[18.0, 0, 90, 5]])}, (10, 20), fit_box((10, 20), (10, 20), "crop")
    )
    assert clipped["boxes"].tolist() == [[18, 0, 20, 5]]
    whole = ConvertOptions(size=(10, 20), fit="crop", min_visibility=1).placement((10, 20))
    clipped, problems = place_objects("k", {"boxes": np.array([[18.0, 0, 90, 5]])}, (10, 20), whole)
    assert clipped["boxes"].tolist() == [[18, 0, 20, 5]] and not problems  # the rest was never in the image


def test_absent_landmarks_stay_absent():
    objects = {"keypoints": np.array([[[np.nan, np.nan], [2, 2]]])}
    kept, _ = place_objects("k", objects, (4, 4), fit_box((4, 4), (8, 8), "stretch"))
    np.testing.assert_array_equal(kept["keypoints"], [[[np.nan, np.nan], [4, 4]]])


@pytest.mark.parametrize("channels", [1, 3, 4])
def test_resize_is_pillows(channels):
    rng = np.random.default_rng(0)
    pixels = rng.integers(0, 256, (31, 47, channels), np.uint8)
    expected = np.asarray(Image.fromarray(pixels.squeeze()).resize((16, 9), Image.Resampling.BILINEAR))
    found = resize(pixels, fit_box((31, 47), (9, 16), "stretch"))
    np.testing.assert_array_equal(found, expected.reshape(9, 16, channels))


def test_resize_of_16_bits_keeps_them():
    ramp = np.linspace(0, 65535, 64, dtype=np.uint16).reshape(1, 64, 1).repeat(8, axis=0)
    found = resize(ramp, fit_box((8, 64), (4, 32), "stretch"))
    assert found.dtype == np.uint16
    expected = ramp[::2, :, 0].reshape(4, 32, 2).mean(axis=2)
    np.testing.assert_allclose(found[:, 1:-1, 0], expected[:, 1:-1], atol=2)


def test_pad_fills_up_with_zeros():
    stored = resize(np.full((10, 20, 1), 200, np.uint8), fit_box((10, 20), (20, 20), "pad"))[:, :, 0]
    assert (stored[5:15] == 200).all()
    assert (stored[:5] == 0).all()
    assert (stored[15:] == 0).all()
