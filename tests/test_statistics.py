"""Statistics against NumPy, however the samples are divided."""

import itertools
import json
import math

import numpy as np
import pytest
from hypothesis import given, strategies as st

from tensorstore_ds import native
from tensorstore_ds.format.statistics import MAX_DISTINCT_SIZES, Statistics, channel_moments, join_summaries


def summary_in_blocks(pixels, sizes, labels, objects, cuts):
    total = Statistics()
    for block in np.split(np.arange(len(pixels)), cuts):
        if len(block):
            one = Statistics()
            one.add_pixels(pixels[block])
            one.add_sizes(sizes[block])
            one.add_labels(labels[block], 4)
            one.add_objects(objects[block], None, 0)
            total.add(Statistics(json.loads(json.dumps(one.sums))))  # as a finished shard's sums come back from disk
    return total.summary()


@given(st.lists(st.integers(0, 12), max_size=3), st.sampled_from(["uint8", "uint16", "float32"]), st.integers(1, 3))
def test_mean_and_deviation_are_numpys_and_do_not_depend_on_the_division(cuts, dtype, channels):
    rng = np.random.default_rng(1)
    pixels = (rng.random((12, 5, 4, channels)) * (1 if dtype == "float32" else np.iinfo(dtype).max)).astype(dtype)
    scale = {"uint8": 255, "uint16": 65535, "float32": 1}[dtype]
    sizes = np.tile(np.array([[5, 4]], np.int32), (12, 1))
    labels = np.arange(12) % 3
    objects = np.arange(12)
    summary = summary_in_blocks(pixels, sizes, labels, objects, sorted(cuts))
    values = pixels.astype(np.float64) / scale
    np.testing.assert_allclose(summary["channels"]["mean"], values.mean((0, 1, 2)), rtol=1e-12)
    np.testing.assert_allclose(summary["channels"]["std"], values.std((0, 1, 2)), rtol=1e-9)
    assert summary["channels"]["scale"] == scale
    assert summary["class_counts"] == [4, 4, 4, 0]
    assert summary["objects"] == {"total": 66, "min": 0, "max": 11, "mean": 5.5}
    if dtype != "float32":
        assert summary == summary_in_blocks(pixels, sizes, labels, objects, [])


def test_a_constant_image_has_exactly_no_deviation():
    statistics = Statistics()
    statistics.add_pixels(np.full((3, 100, 100, 1), 254, np.uint8))
    assert statistics.summary()["channels"] == {"mean": [254 / 255], "std": [0.0], "scale": 255}


def test_sizes_are_listed_one_by_one_while_they_are_few():
    statistics = Statistics()
    statistics.add_sizes(np.array([[4, 6], [8, 6], [4, 6]], np.int32))
    sizes = statistics.summary()["sizes"]
    assert sizes["distinct"] == {"4x6": 2, "8x6": 1}
    assert sizes["height"] == {"min": 4, "max": 8, "mean": pytest.approx(16 / 3)}
    statistics.add_sizes(np.array([[1, n + 1] for n in range(MAX_DISTINCT_SIZES)], np.int32))
    assert statistics.summary()["sizes"]["distinct"] is None


@pytest.mark.parametrize("order", list(itertools.permutations(range(4))))
def test_gray_images_among_color_images_count_as_three_equal_channels(order):
    rng = np.random.default_rng(1)
    shapes = [(5, 4, 1), (3, 7, 3), (2, 2, 1), (6, 3, 3)]
    images = [rng.integers(0, 256, shape, np.uint8) for shape in shapes]
    rgb = np.concatenate([np.broadcast_to(image, (*image.shape[:2], 3)).reshape(-1, 3) for image in images]) / 255
    statistics = Statistics()
    for i in order:
        statistics.add_pixels(images[i])
    channels = statistics.summary()["channels"]
    np.testing.assert_allclose(channels["mean"], rgb.mean(0))
    np.testing.assert_allclose(channels["std"], rgb.std(0))


def test_other_numbers_of_channels_have_none_in_common():
    for shapes in ((1, 4), (3, 4), (1, 3, 4), (4, 3, 1), (2, 1)):
        statistics = Statistics()
        for channels in shapes:
            statistics.add_pixels(np.zeros((2, 2, channels), np.uint8))
        assert "channels" not in statistics.summary()


def test_two_splits_of_gray_and_of_color_images_together():
    rng = np.random.default_rng(2)
    pixels = [rng.integers(0, 256, shape, np.uint8) for shape in ((5, 6, 4, 1), (9, 6, 4, 3))]
    summaries = []
    for images in pixels:
        statistics = Statistics()
        statistics.add_pixels(images)
        summaries.append((statistics.summary(), len(images), len(images) * 24))
    rgb = np.concatenate([np.broadcast_to(each, (*each.shape[:3], 3)).reshape(-1, 3) for each in pixels]) / 255
    for pair in (summaries, summaries[::-1]):
        joined = join_summaries(*pair)["channels"]
        np.testing.assert_allclose(joined["mean"], rgb.mean(0))
        np.testing.assert_allclose(joined["std"], rgb.std(0))


@pytest.mark.parametrize("blocks", [1, 2, 5])
def test_moments_of_large_numbers(blocks):
    """1e150 squared is 1e300, of which ten thousand still have a sum; a million times as many pixels would not."""
    pixels = np.random.default_rng(2).random((10, 4, 5, 2)) * 1e150
    total = Statistics()
    for block in np.split(pixels, blocks):
        one = Statistics()
        one.add_pixels(block)
        total.add(Statistics(json.loads(json.dumps(one.sums, allow_nan=False))))
    channels = total.summary()["channels"]
    np.testing.assert_allclose(channels["mean"], pixels.mean((0, 1, 2)))
    np.testing.assert_allclose(channels["std"], pixels.std((0, 1, 2)))


@pytest.mark.parametrize("value", [1e200, 1e154, np.nan, np.inf])
def test_sums_that_are_no_numbers_are_left_out(value):
    statistics = Statistics()
    for image in (1.0, value, value, 2.0):
        statistics.add_pixels(np.full((1, 1, 1), image))
        json.dumps(statistics.sums, allow_nan=False)
    assert "channels" not in statistics.summary()


GOOD_CHANNELS = {"mean": [0.5, 0.25], "std": [0.1, 0.0], "scale": 255}


@pytest.mark.parametrize(
    "changes",
    [
        *({name: value} for name in GOOD_CHANNELS for value in (None, "x", {}, [None], [1.0, "x"], [True, False])),
        *({name: [1.0, value]} for name in ("mean", "std") for value in (math.nan, math.inf, 10**400)),
        {"mean": [0.5]},
        {"std": [0.1, -0.1]},
        {"scale": math.nan},
    ],
)
def test_moments_of_a_strangers_manifest(changes):
    assert channel_moments({"channels": GOOD_CHANNELS}) == ([0.5, 0.25], [0.1, 0.0], 255)
    assert channel_moments({"channels": GOOD_CHANNELS | changes}) is None
    assert channel_moments({"channels": "x"}) is channel_moments({}) is None


def test_samples_without_a_label_are_not_counted():
    statistics = Statistics()
    statistics.add_labels(np.array([1, -1, 0, 1, -1]), 3)
    statistics.add_labels(np.array([-1, -1]), 3)
    assert statistics.summary()["class_counts"] == [1, 2, 0]


@pytest.mark.parametrize("shape", [(700, 300, 3), (700, 3, 1), (2, 300, 300, 3)])
def test_sums_of_the_largest_values_are_exact(shape):
    statistics = Statistics()
    statistics.add_pixels(np.full(shape, 255, np.uint8))
    sums, pixels = statistics.sums["channels"], math.prod(shape[:-1])
    assert (sums["count"], sums["sum"], sums["squares"]) == (
        pixels,
        [255 * pixels] * shape[-1],
        [255**2 * pixels] * shape[-1],
    )


@pytest.mark.skipif(native.core is None, reason=f"no compiled kernels: {native.why_not}")
@pytest.mark.parametrize("is_plain", [False, True])
def test_the_kernel_adds_up_as_numpy_does(is_plain, monkeypatch):
    rng = np.random.default_rng(0)
    images = [np.full((300, 100, 3), 255, np.uint8)]
    for channels in range(1, 6):
        images += [rng.integers(0, 256, (*rng.integers(1, 99, 2), channels), np.uint8) for _ in range(9)]
        images += [images[-1][:, ::2], images[-1][::-1], np.stack([images[-1]] * 3)]
    native.core.use_plain(is_plain)
    found = [Statistics() for _ in images]
    for each, image in zip(found, images, strict=True):
        each.add_pixels(image, 2)
    native.core.use_plain(False)
    monkeypatch.setattr(native, "core", None)
    for each, image in zip(found, images, strict=True):
        other = Statistics()
        other.add_pixels(image, 2)
        assert each.sums == other.sums
        channels = [image[..., c].astype(int) for c in range(image.shape[-1])]
        assert each.sums["channels"]["squares"] == [4 * int((values**2).sum()) for values in channels]


@pytest.mark.skipif(native.core is None, reason=f"no compiled kernels: {native.why_not}")
def test_the_kernel_refuses_what_are_no_pixels():
    assert native.core.sums(b"", 2) == (0, 0, 0, 0)
    for pixels, channels in ((bytes(10), 3), (bytes(10), 0), (bytes(10), 5), (bytes(10), -1)):
        with pytest.raises(ValueError, match="sums: expected pixels of 1 to 4 channels"):
            native.core.sums(pixels, channels)


def test_pixels_of_smaller_images_count_for_what_they_stand_for():
    statistics, pixels = Statistics(), np.arange(16, dtype=np.uint8).reshape(2, 8, 1)
    statistics.add_pixels(pixels, 8)
    assert statistics.summary()["channels"]["reduction"] == 8
    statistics.add_pixels(np.zeros((8, 8, 1), np.uint8))
    channels = statistics.summary()["channels"]
    values = np.concatenate([np.repeat(pixels.ravel(), 64), np.zeros(64)]) / 255
    assert channels["reduction"] == 8
    assert channels["mean"] == pytest.approx([values.mean()])
    assert channels["std"] == pytest.approx([values.std()])


def parts_of_a_split(dtype, seed):
    """Two parts, (3 samples) and (5 samples), as sums; their images have 5 x 4 pixels of two channels."""
    rng = np.random.default_rng(seed)
    for rows in (3, 5):
        one = Statistics()
        scale = 1 if dtype == "float32" else np.iinfo(dtype).max
        one.add_pixels((rng.random((rows, 5, 4, 2)) * rng.random() * scale).astype(dtype))
        one.add_sizes(rng.integers(1, 4, (rows, 2)).astype(np.int32))
        one.add_labels(rng.integers(0, 3, rows), 3)
        one.add_objects(rng.integers(0, 9, rows), rng.integers(0, 3, 12), 3)
        ignored = int(rng.integers(0, 9))
        one.add({"masks": {"mask": {"pixels": rng.integers(0, 99, 2).tolist(), "ignored": ignored}}})
        yield one


@pytest.mark.parametrize("dtype", ["uint8", "uint16", "float32"])
@pytest.mark.parametrize("seed", range(3))
def test_joined_statistics_are_those_of_all_samples(dtype, seed):
    first, second = parts_of_a_split(dtype, seed)
    summaries = [(each.summary(), rows, rows * 20) for each, rows in ((first, 3), (second, 5))]
    joined = join_summaries(*summaries)
    first.add(second)
    expected = first.summary()
    assert joined.keys() == expected.keys()
    moments, exact = joined.pop("channels"), expected.pop("channels")
    assert moments.keys() == exact.keys() == {"mean", "std", "scale"}
    for name in moments:
        np.testing.assert_allclose(moments[name], exact[name], rtol=1e-9)
    assert json.loads(json.dumps(joined), parse_float=lambda n: round(float(n), 9)) == json.loads(
        json.dumps(expected), parse_float=lambda n: round(float(n), 9)
    )


def test_classes_of_the_second_come_after_those_of_the_first():
    counts = [{"class_counts": [1, 2], "object_counts": [5]}, {"class_counts": [10, 20, 30], "object_counts": [7, 8]}]
    one, other = ((each, 1, 1) for each in counts)
    assert join_summaries(one, other) == {"class_counts": [11, 22, 30], "object_counts": [12, 8]}
    assert join_summaries(other, one) == {"class_counts": [11, 22, 30], "object_counts": [12, 8]}


def channels(mean, std=0.5, scale=255, **more):
    return {"channels": {"mean": [mean], "std": [std], "scale": scale, **more}}


def test_moments_that_do_not_go_together_are_left_out():
    one = channels(0.5)
    wide = {"channels": {"mean": [0.5, 0.5], "std": [0.1, 0.1], "scale": 255}}
    for other in (channels(0.5, scale=1), wide, {}, {"channels": None}):
        assert join_summaries((one, 1, 9), (other, 1, 9)) == {}
        assert join_summaries((other, 1, 9), (one, 1, 9)) == {}


def test_joined_moments_have_the_larger_reduction():
    for first, second, expected in ((1, 1, None), (1, 8, 8), (8, 1, 8), (4, 8, 8), (2, 2, 2)):
        one, other = (channels(0.5, **({"reduction": n} if n > 1 else {})) for n in (first, second))
        assert join_summaries((one, 1, 9), (other, 1, 9))["channels"].get("reduction") == expected


def test_each_part_counts_by_its_pixels():
    joined = join_summaries((channels(0.0, 0.0), 1, 10), (channels(1.0, 0.0), 1, 30))
    assert joined["channels"]["mean"] == [0.75]
    np.testing.assert_allclose(joined["channels"]["std"], [math.sqrt(0.1875)])


@pytest.mark.parametrize("dtype", ["uint8", "uint16"])
def test_sums_of_the_largest_numbers_do_not_overflow(dtype):
    """More lines than are summed up together, of few and of many numbers."""
    largest = np.iinfo(dtype).max
    for width in (3, 100, 255, 256, 257):
        one = Statistics()
        one.add_pixels(np.full((2, 600, width, 1), largest, dtype))
        assert one.sums["channels"]["count"] == 1200 * width
        assert one.sums["channels"]["sum"] == [1200 * width * largest]
        assert one.sums["channels"]["squares"] == [1200 * width * largest**2]


def test_images_of_each_number_of_channels_are_added_up():
    one = Statistics({"images_of": {"1": 2, "3": 5}})
    one.add({"images_of": {"3": 1, "4": 7}})
    assert one.sums["images_of"] == {"1": 2, "3": 6, "4": 7}
