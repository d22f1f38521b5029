"""Statistics against NumPy, however the samples are divided."""

import functools
import itertools
import json
import math
import operator

import numpy as np
import pytest
from hypothesis import given, strategies as st

from tensorstore_ds import native
from tensorstore_ds.format.statistics import (
    MAX_DISTINCT_SIZES,
    ImageSums,
    LabelSums,
    MaskSums,
    ObjectSums,
    SizeSums,
    Statistics,
    join_summaries,
    parse_summary,
)


def through_json(sums):
    """As a finished shard's sums come back from disk."""
    data = json.loads(json.dumps(Statistics({"field": sums}).dump(), allow_nan=False))
    return Statistics.parse(data)["field"]


def total(*sums):
    return functools.reduce(operator.add, map(through_json, sums))


def summary_in_blocks(pixels, sizes, labels, objects, cuts):
    whole = Statistics()
    for block in np.split(np.arange(len(pixels)), cuts):
        if len(block):
            one = Statistics(
                image=ImageSums.of_pixels(pixels[block]),
                label=LabelSums.of_labels(labels[block], 4),
                coarse=LabelSums.of_labels(labels[block] // 2, 2),
                objects=ObjectSums.of_objects(objects[block], None, 0),
                size=SizeSums.of_sizes(sizes[block]),
            )
            whole.add(Statistics.parse(json.loads(json.dumps(one.dump()))))
    return whole.summary()


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
    np.testing.assert_allclose(summary["image"]["mean"], values.mean((0, 1, 2)), rtol=1e-12)
    np.testing.assert_allclose(summary["image"]["std"], values.std((0, 1, 2)), rtol=1e-9)
    assert summary["image"]["scale"] == scale
    assert summary["label"] == {"class_counts": [4, 4, 4, 0]} and summary["coarse"] == {"class_counts": [8, 4]}
    assert summary["objects"] == {"total": 66, "min": 0, "max": 11, "mean": 5.5}
    if dtype != "float32":
        assert summary == summary_in_blocks(pixels, sizes, labels, objects, [])


def test_a_constant_image_has_exactly_no_deviation():
    expected = {"mean": [254 / 255], "std": [0.0], "scale": 255}
    assert ImageSums.of_pixels(np.full((3, 100, 100, 1), 254, np.uint8)).summary() == expected
    assert join_summaries("image", [(expected, 30000), (expected, 10000), (expected, 77)]) == expected


def test_sizes_are_listed_one_by_one_while_they_are_few():
    sums = SizeSums.of_sizes(np.array([[4, 6], [8, 6], [4, 6]], np.int32))
    sizes = sums.summary()
    assert sizes["distinct"] == {"4x6": 2, "8x6": 1}
    assert sizes["height"] == {"min": 4, "max": 8, "mean": pytest.approx(16 / 3)}
    more = SizeSums.of_sizes(np.array([[1, n + 1] for n in range(MAX_DISTINCT_SIZES)], np.int32))
    assert total(sums, more).summary()["distinct"] is None


@pytest.mark.parametrize("order", list(itertools.permutations(range(4))))
def test_gray_images_among_color_images_count_as_three_equal_channels(order):
    rng = np.random.default_rng(1)
    shapes = [(5, 4, 1), (3, 7, 3), (2, 2, 1), (6, 3, 3)]
    images = [rng.integers(0, 256, shape, np.uint8) for shape in shapes]
    rgb = np.concatenate([np.broadcast_to(image, (*image.shape[:2], 3)).reshape(-1, 3) for image in images]) / 255
    channels = total(*(ImageSums.of_pixels(images[i]) for i in order)).summary()
    np.testing.assert_allclose(channels["mean"], rgb.mean(0))
    np.testing.assert_allclose(channels["std"], rgb.std(0))


def test_other_numbers_of_channels_have_none_in_common():
    for shapes in ((1, 4), (3, 4), (1, 3, 4), (4, 3, 1), (2, 1)):
        sums = total(*(ImageSums.of_pixels(np.zeros((2, 2, channels), np.uint8)) for channels in shapes))
        assert Statistics(image=sums).summary() == {}


def test_two_splits_of_gray_and_of_color_images_together():
    rng = np.random.default_rng(2)
    pixels = [rng.integers(0, 256, shape, np.uint8) for shape in ((5, 6, 4, 1), (9, 6, 4, 3))]
    summaries = [(ImageSums.of_pixels(images).summary(), len(images) * 24) for images in pixels]
    rgb = np.concatenate([np.broadcast_to(each, (*each.shape[:3], 3)).reshape(-1, 3) for each in pixels]) / 255
    for pair in (summaries, summaries[::-1]):
        joined = join_summaries("image", pair)
        np.testing.assert_allclose(joined["mean"], rgb.mean(0))
        np.testing.assert_allclose(joined["std"], rgb.std(0))


@pytest.mark.parametrize("blocks", [1, 2, 5])
def test_moments_of_large_numbers(blocks):
    """1e150 squared is 1e300, of which ten thousand still have a sum; a million times as many pixels would not."""
    pixels = np.random.default_rng(2).random((10, 4, 5, 2)) * 1e150
    channels = total(*map(ImageSums.of_pixels, np.split(pixels, blocks))).summary()
    np.testing.assert_allclose(channels["mean"], pixels.mean((0, 1, 2)))
    np.testing.assert_allclose(channels["std"], pixels.std((0, 1, 2)))


@pytest.mark.parametrize("value", [1e200, 1e154, np.nan, np.inf])
def test_sums_that_are_no_numbers_are_left_out(value):
    images = [ImageSums.of_pixels(np.full((1, 1, 1), image)) for image in (1.0, value, value, 2.0)]
    assert total(*images).summary() == total(total(*images[:3]), images[3]).summary() == {}


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
    assert parse_summary("image", GOOD_CHANNELS, 9).summary() == GOOD_CHANNELS
    assert parse_summary("image", GOOD_CHANNELS | changes, 9) is None
    assert parse_summary("image", "x", 9) is parse_summary("image", {}, 9) is parse_summary("later", {}, 9) is None


RANGE = {"min": 0, "max": 2, "mean": 0.75}


@pytest.mark.parametrize("value", [None, "x", [], {}, True, math.nan, math.inf, 10**400, -(10**400)])
def test_what_is_of_another_type_in_a_strangers_manifest_is_not_known(value):
    objects, size = {"class_counts": [1, 2], "total": 3, **RANGE}, {"height": RANGE, "width": RANGE}
    assert parse_summary("objects", objects, 4).summary() == objects
    for name in ("total", *RANGE):
        if type(value) is not int or name != "total":
            assert parse_summary("objects", objects | {name: value}, 4).summary() == {"class_counts": [1, 2]}
    without = {name: each for name, each in objects.items() if name != "class_counts"}
    for kind in ("label", "objects", "mask"):
        for counts in (value, [value], [0.5]):
            found = parse_summary(kind, without | {"class_counts": counts}, 4)
            is_list = counts == [] or (type(value) is int and counts == [value])
            assert is_list or (found.summary() == without if kind == "objects" else found is None)
    assert "height" not in parse_summary("size", size | {"height": RANGE | {"mean": value}}, 4).summary()
    assert parse_summary("size", size | {"distinct": {"4x6": value}}, 4).summary()["distinct"] in (None, {"4x6": value})


def test_samples_without_a_label_are_not_counted():
    sums = [LabelSums.of_labels(np.array(labels), 3) for labels in ([1, -1, 0, 1, -1], [-1, -1])]
    assert total(*sums).summary() == {"class_counts": [1, 2, 0]}


def test_what_one_of_two_parts_does_not_tell_is_not_known_of_both():
    """But for what was only noted, without samples."""
    known, bare = {"class_counts": [1, 2], "total": 3, **RANGE}, {"total": 3, **RANGE}
    for pair in ((known, bare), (bare, known)):
        assert join_summaries("objects", [(each, 4) for each in pair]) == {"total": 6, **RANGE}
    assert join_summaries("objects", [(known, 4), (None, 4)]) == join_summaries("later", [(known, 4)]) == {}
    assert join_summaries("objects", [(known, 4), ({"class_counts": [1, 2]}, 4)]) == {"class_counts": [2, 4]}
    sums, emptied = ObjectSums.of_objects(np.array([2, 0]), np.array([1, 0]), 2), ObjectSums(emptied=1)
    for pair in ((sums, emptied), (emptied, sums)):
        assert total(*pair).summary() == sums.summary() and total(*pair, emptied).emptied == 2


@pytest.mark.skipif(native.core is None, reason=f"no compiled kernels: {native.why_not}")
@pytest.mark.parametrize("is_plain", [False, True])
def test_the_kernel_adds_up_as_numpy_does(is_plain, monkeypatch):
    rng = np.random.default_rng(0)
    images = [np.full((300, 100, 3), 255, np.uint8)]
    for channels in range(1, 6):
        images += [rng.integers(0, 256, (*rng.integers(1, 99, 2), channels), np.uint8) for _ in range(9)]
        images += [images[-1][:, ::2], images[-1][::-1], np.stack([images[-1]] * 3)]
    native.core.use_plain(is_plain)
    found = [ImageSums.of_pixels(image) for image in images]
    native.core.use_plain(False)
    monkeypatch.setattr(native, "core", None)
    for each, image in zip(found, images, strict=True):
        assert each == ImageSums.of_pixels(image)
        channels = [image[..., c].astype(int) for c in range(image.shape[-1])]
        assert each.squares == [int((values**2).sum()) for values in channels]


@pytest.mark.skipif(native.core is None, reason=f"no compiled kernels: {native.why_not}")
def test_the_kernel_refuses_what_are_no_pixels():
    assert native.core.sums(b"", 2) == (0, 0, 0, 0)
    for pixels, channels in ((bytes(10), 3), (bytes(10), 0), (bytes(10), 5), (bytes(10), -1)):
        with pytest.raises(ValueError, match="sums: expected pixels of 1 to 4 channels"):
            native.core.sums(pixels, channels)


def parts_of_a_split(dtype, seed):
    """Two parts, (3 samples) and (5 samples), as sums; their images have 5 x 4 pixels of two channels."""
    rng = np.random.default_rng(seed)
    for rows in (3, 5):
        scale = 1 if dtype == "float32" else np.iinfo(dtype).max
        yield Statistics(
            image=ImageSums.of_pixels((rng.random((rows, 5, 4, 2)) * rng.random() * scale).astype(dtype)),
            label=LabelSums.of_labels(rng.integers(0, 3, rows), 3),
            mask=MaskSums.of_masks(rng.integers(0, 4, (rows, 5, 4), np.uint8), 3, 3),
            objects=ObjectSums.of_objects(rng.integers(0, 9, rows), rng.integers(0, 3, 12), 3),
            size=SizeSums.of_sizes(rng.integers(1, 4, (rows, 2)).astype(np.int32)),
        )


@pytest.mark.parametrize("dtype", ["uint8", "uint16", "float32"])
@pytest.mark.parametrize("seed", range(3))
def test_joined_statistics_are_those_of_all_samples(dtype, seed):
    parts = [*parts_of_a_split(dtype, seed)]
    whole = Statistics(parts[0])
    whole.add(parts[1])
    expected = whole.summary()
    assert list(expected) == ["image", "label", "mask", "objects", "size"]
    for kind, exact in expected.items():
        weights = (60, 100) if kind == "image" else (3, 5)
        joined = join_summaries(kind, [(part[kind].summary(), n) for part, n in zip(parts, weights, strict=True)])
        assert joined.keys() == exact.keys()
        if kind == "image":
            for moment in joined:
                np.testing.assert_allclose(joined[moment], exact[moment], rtol=1e-9)
        else:
            assert joined == exact


@pytest.mark.parametrize("dtype", ["uint8", "uint16", "float32"])
@pytest.mark.parametrize("seed", range(3))
def test_statistics_without_some_samples_are_those_of_the_others(dtype, seed):
    rest, part = parts_of_a_split(dtype, seed)
    whole = Statistics(rest)
    whole.add(part)
    for kind, summary in whole.summary().items():
        sums = parse_summary(kind, summary, 160 if kind == "image" else 8)
        left = sums.less(part[kind])
        if kind in ("label", "mask", "size") or (kind == "image" and dtype != "float32"):
            assert left.summary() == rest[kind].summary()
        else:  # the least or largest number may be gone with the samples
            assert left is None or (kind != "image" and left.summary() == rest[kind].summary())
        assert part[kind].less(sums) is None  # fewer samples than are taken away


@pytest.mark.parametrize("side", [100, 600])
def test_sums_of_squares_that_a_float_does_not_hold_are_not_subtracted(side):
    """600 x 600 x 2 of the largest values of 16 bits have more than 2^50; those of 100 x 100 are Python's numbers."""
    rng = np.random.default_rng(side)
    kept, gone = (rng.integers(64_000, 65_536, (1, side, side, 1), np.uint16) for _ in range(2))
    both = np.concatenate([kept, gone])
    summary = Statistics(image=ImageSums.of_pixels(both)).summary()["image"]
    left = parse_summary("image", summary, both.size).less(ImageSums.of_pixels(gone))
    numbers = kept.reshape(-1).tolist()
    known = None if left is None else (left.count, left.sum, left.squares)
    assert known == (None if side == 600 else (len(numbers), [sum(numbers)], [sum(n * n for n in numbers)]))


def test_the_range_of_numbers_stays_if_both_ends_are_in_other_samples():
    many, few = (ObjectSums.of_objects(np.array(numbers), None, 0) for numbers in ([0, 2, 9, 1], [2, 1]))
    assert many.less(few).summary() == ObjectSums.of_objects(np.array([0, 9]), None, 0).summary()
    assert many.less(ObjectSums.of_objects(np.array([9]), None, 0)) is None


@pytest.mark.parametrize("kind", ["label", "objects", "mask"])
def test_classes_of_the_second_come_after_those_of_the_first(kind):
    one, other = (({"class_counts": counts}, 1) for counts in ([1, 2], [10, 20, 30]))
    assert join_summaries(kind, [one, other]) == join_summaries(kind, [other, one]) == {"class_counts": [11, 22, 30]}


def channels(mean, std=0.5, scale=255, **more):
    return {"mean": [mean], "std": [std], "scale": scale, **more}


def test_moments_that_do_not_go_together_are_left_out():
    wide = {"mean": [0.5, 0.5], "std": [0.1, 0.1], "scale": 255}
    for other in (channels(0.5, scale=1), wide, {}, None):
        for pair in ((channels(0.5), other), (other, channels(0.5)), (channels(0.5), other, channels(0.5))):
            assert join_summaries("image", [(each, 9) for each in pair]) == {}


def test_joined_moments_have_the_larger_reduction():
    for first, second, expected in ((1, 1, None), (1, 8, 8), (8, 1, 8), (4, 8, 8), (2, 2, 2)):
        parts = [(channels(0.5, **({"reduction": n} if n > 1 else {})), 9) for n in (first, second)]
        assert join_summaries("image", parts).get("reduction") == expected


@pytest.mark.parametrize("dtype", ["uint8", "uint16"])
def test_sums_of_the_largest_numbers_do_not_overflow(dtype):
    """More lines than are summed up together, of few and of many numbers."""
    largest = np.iinfo(dtype).max
    for width in (3, 100, 255, 256, 257):
        one = ImageSums.of_pixels(np.full((2, 600, width, 1), largest, dtype))
        assert one.count == 1200 * width
        assert one.sum == [1200 * width * largest]
        assert one.squares == [1200 * width * largest**2]


def test_images_of_each_number_of_channels_are_added_up():
    sums = total(ImageSums(images_of={"1": 2, "3": 5}), ImageSums(images_of={"3": 1, "4": 7}))
    assert sums.images_of == {"1": 2, "3": 6, "4": 7} and Statistics(image=sums).summary() == {}
