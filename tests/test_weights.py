"""Weights from a store's labels, objects and columns, against the formulas written out in plain loops."""

import math
import statistics
from collections import Counter

import numpy as np
import pytest

import tensorstore_ds as tsds
from small_stores import image_field, label_field, write_store
from stores import detections, store_of
from tensorstore_ds.errors import FormatError, OptionError
from tensorstore_ds.loading.weighted import WeightedSampler, class_balanced_weights, repeat_factors, weights_from_column

LABELS = [0, 1, 1, 3, 1, 0, 1, 1]
IMPORTANCE = [0.5, 1, 0, 2, 0.25, 0, 3, 1]


def pixels():
    return np.zeros((4, 4, 3), np.uint8)


@pytest.fixture(scope="module", params=["one shard", "shards"])
def labelled(request, tmp_path_factory):
    samples = [
        {"image": pixels(), "label": label, "importance": np.float32(weight), "embedding": np.zeros(3, np.float32)}
        for label, weight in zip(LABELS, IMPORTANCE, strict=True)
    ]
    path = tmp_path_factory.mktemp("labelled") / "s.tsds"
    shard_nbytes = 2**30 if request.param == "one shard" else 3 * pixels().nbytes
    return store_of(path, samples, ["ant", "bee", "cat", "dog"], shard_nbytes=shard_nbytes)["train"]


@pytest.fixture(scope="module", params=["one shard", "shards"])
def boxed(request, tmp_path_factory):
    samples = detections(30)
    for sample in samples[:25]:
        sample["labels"][:] = 1  # class 0 is in a few of the last samples alone
    path = tmp_path_factory.mktemp("boxed") / "s.tsds"
    shard_nbytes = 2**30 if request.param == "one shard" else 7 * samples[0]["image"].nbytes
    return store_of(path, samples, ["ant", "bee"], shard_nbytes=shard_nbytes)["train"]


def test_inverse_frequency(labelled):
    weights = class_balanced_weights(labelled)
    assert weights.dtype == np.float64
    assert weights.tolist() == [1 / {0: 2, 1: 5, 3: 1}[label] for label in LABELS]
    counts = labelled.statistics["label"]["class_counts"]
    assert counts == [2, 5, 0, 1]
    for label, count in enumerate(counts):  # each class of the store has the same weight in all
        assert sum(weights[np.array(LABELS) == label]) == pytest.approx(1 if count else 0)


@pytest.mark.parametrize("beta", [0, 0.9, 0.999, 0.9999])
def test_effective_number_of_samples(labelled, beta):
    weights = class_balanced_weights(labelled, method="effective", beta=beta)
    counts = Counter(LABELS)
    expected = [1 / sum(beta**i for i in range(counts[label])) for label in LABELS]  # the geometric series itself
    np.testing.assert_allclose(weights, expected, rtol=1e-9)


def test_effective_number_of_a_class_of_thousands(tmp_path):
    labels = np.repeat([0, 1], [20_000, 1])
    images = np.zeros((len(labels), 1, 1, 1), np.uint8)
    fields = {"image": image_field(images), "label": label_field("many", "one")}
    path = write_store(tmp_path / "s.tsds", fields, ("train", len(labels), {"image": images, "label": labels}))
    split = tsds.open(path)["train"]
    assert "label" not in split.statistics  # which a store need not have
    weights = class_balanced_weights(split, method="effective", beta=0.999)
    assert weights[0] == pytest.approx(0.001)  # a thousand effective samples, as 0.999 ** 20_000 is nothing
    assert weights[-1] == 1
    drawn = WeightedSampler(class_balanced_weights(split), 1000).rows()
    assert np.count_nonzero(drawn == 20_000) == pytest.approx(500, abs=60)


@pytest.mark.parametrize("method", ["image", "instance"])
@pytest.mark.parametrize("threshold", [0.3, 1.0, None])
def test_repeat_factors(boxed, threshold, method):
    of_rows = [boxed["objects"][row]["labels"].tolist() for row in range(30)]
    every = [label for labels in of_rows for label in labels]
    share = {label: sum(label in labels for labels in of_rows) / 30 for label in (0, 1)}
    if method == "instance":
        share = {label: math.sqrt(f * every.count(label) / len(every)) for label, f in share.items()}
    limit = statistics.median(share.values()) if threshold is None else threshold
    expected = [max([1.0, *(max(1.0, math.sqrt(limit / share[label])) for label in labels)]) for labels in of_rows]
    assert len(set(expected)) > 1
    factors = repeat_factors(boxed, threshold=threshold, method=method)
    assert factors.dtype == np.float64
    np.testing.assert_allclose(factors, expected)
    assert factors[0] == 1  # no objects


@pytest.mark.parametrize("rows", [[7, 2, 5], [0, 1, 1, 3], list(range(8)), []])
@pytest.mark.parametrize("method", ["inverse", "effective"])
def test_labels_of_some_rows_alone_are_counted(labelled, rows, method):
    weights = class_balanced_weights(labelled, method=method, beta=0.9, rows=rows)
    counts = Counter(LABELS[row] for row in rows)
    of = {"inverse": lambda n: 1 / n, "effective": lambda n: 1 / sum(0.9**i for i in range(n))}[method]
    np.testing.assert_allclose(weights, [of(counts[LABELS[row]]) for row in rows], rtol=1e-9)


@pytest.mark.parametrize("method", ["image", "instance"])
def test_objects_of_some_rows_alone_are_counted(boxed, tmp_path, method):
    rows = [29, 3, 26, 0, 3, 27, 14]
    alone = store_of(
        tmp_path / "s.tsds", [{name: boxed[row][name] for name in ("image", "objects")} for row in rows], ["ant", "bee"]
    )["train"]
    expected = repeat_factors(alone, threshold=1.0, method=method)
    assert expected.max() > 1
    np.testing.assert_array_equal(repeat_factors(boxed, threshold=1.0, method=method, rows=rows), expected)
    assert repeat_factors(boxed, threshold=1.0, method=method, rows=[]).tolist() == []


@pytest.mark.parametrize("weigh", [class_balanced_weights, repeat_factors])
def test_rows_to_count_are_in_the_split(labelled, boxed, weigh):
    with pytest.raises(IndexError, match="row 30 is outside"):
        weigh(labelled if weigh is class_balanced_weights else boxed, rows=[1, 30])


@pytest.mark.parametrize("method", ["image", "instance"])
@pytest.mark.parametrize("threshold", [1.0, None])
def test_a_class_without_objects_changes_no_factor(tmp_path, threshold, method):
    samples = detections(12, seed=1)
    samples[3]["labels"][:], samples[2]["labels"][:] = 0, 1
    factors = [
        repeat_factors(
            store_of(tmp_path / f"{len(classes)}.tsds", samples, classes)["train"], threshold=threshold, method=method
        )
        for classes in (["ant", "bee"], ["ant", "bee", "cat"])
    ]
    assert factors[0].max() > 1
    np.testing.assert_array_equal(*factors)


def test_repeat_factors_that_change_nothing(boxed):
    with pytest.warns(
        UserWarning, match=r"all repeat factors are 1, because no class is rarer than 0\.01\. .*instance"
    ) as caught:
        assert repeat_factors(boxed, threshold=0.01).tolist() == [1.0] * 30
    assert caught[0].filename == __file__


def test_a_column_of_ones_own(labelled):
    weights = weights_from_column(labelled, "importance")
    assert weights.dtype == np.float64
    assert weights.tolist() == IMPORTANCE
    weights[0] = 9  # a copy: the store's map is read-only
    assert weights_from_column(labelled, "label").tolist() == LABELS


def test_a_column_that_cannot_be_weights(tmp_path):
    samples = [{"image": pixels(), "score": np.float32(score)} for score in (1, -2)]
    split = store_of(tmp_path / "s.tsds", samples)["train"]
    with pytest.raises(ValueError, match=r"train/score: expected numbers that are .* found -2.0 in row 1"):
        weights_from_column(split, "score")


COUNTS, REPEATS, COLUMN = class_balanced_weights, repeat_factors, weights_from_column
OTHER_SHAPE = r"train/embedding: expected one number a row, found rows of shape \(3,\)"
OTHER_KIND = r"split 'train': expected a field 'label' of kind label or labels, found image \(image\)"


@pytest.mark.parametrize(
    ("weigh", "of", "options", "message"),
    [
        (COUNTS, "boxed", {}, OTHER_KIND),
        (COUNTS, "boxed", {}, r"Use repeat_factors to weight samples by their objects\.$"),
        (COUNTS, "labelled", {"field": "size"}, "expected a field 'size' of kind label"),
        (COUNTS, "labelled", {"method": "root"}, "inverse or effective, found 'root'"),
        (COUNTS, "labelled", {"beta": 1}, r"`beta`: expected in \[0, 1\), found 1"),
        (COUNTS, "labelled", {"beta": -0.1}, "found -0.1"),
        (REPEATS, "labelled", {"threshold": 0.1}, "a field .objects. of kind objects or labels, .*WeightedSampler"),
        (REPEATS, "boxed", {"method": "box"}, "`method`: expected image or instance, found 'box'"),
        *((REPEATS, "boxed", {"threshold": wrong}, r"`threshold`: expected in \(0, 1\]") for wrong in (0, 1.5, -1)),
        (COLUMN, "labelled", {"name": "weight"}, "expected a field 'weight', found"),
        (COLUMN, "labelled", {"name": "embedding"}, OTHER_SHAPE),
        (COLUMN, "labelled", {"name": "key"}, "train/key: expected one number a row, found a table"),
    ],
)
def test_what_is_refused(labelled, boxed, weigh, of, options, message):
    with pytest.raises(OptionError, match=message):
        weigh(labelled if of == "labelled" else boxed, **options)


def test_objects_without_labels_are_refused(tmp_path):
    unlabelled = [{name: sample[name] for name in ("image", "boxes")} for sample in detections(3)]
    split = store_of(tmp_path / "s.tsds", unlabelled)["train"]
    with pytest.raises(OptionError, match="expected objects with labels, found boxes"):
        repeat_factors(split, threshold=0.1)


@pytest.mark.parametrize("bad", [-2, 2])
def test_a_label_that_is_no_class(tmp_path, bad):
    images = np.zeros((2, 1, 1, 1), np.uint8)
    fields = {"image": image_field(images), "label": label_field("ant", "bee")}
    arrays = {"image": images, "label": np.array([0, bad])}
    split = tsds.open(write_store(tmp_path / "s.tsds", fields, ("train", 2, arrays)))["train"]
    with pytest.raises(FormatError, match=r"train/label: expected labels in \[-1, 2\), found"):
        class_balanced_weights(split)


@pytest.mark.parametrize("method", ["inverse", "effective"])
def test_a_sample_without_a_label_is_never_drawn(tmp_path, method):
    def split_of(name, labels):
        return store_of(tmp_path / name, [(np.zeros((4, 4), np.uint8), label) for label in labels], "ab")["train"]

    weights = class_balanced_weights(split_of("some.tsds", [0, -1, 1, 0, -1]), method=method)
    all_labelled = class_balanced_weights(split_of("all.tsds", [0, 1, 0]), method=method)
    np.testing.assert_array_equal(weights, [all_labelled[0], 0, all_labelled[1], all_labelled[2], 0])
    assert set(WeightedSampler(weights, 200).rows().tolist()) == {0, 2, 3}
    with pytest.raises(ValueError, match="expected one positive number or more, found none"):
        WeightedSampler(class_balanced_weights(split_of("none.tsds", [-1, -1]), method=method))
