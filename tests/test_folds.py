"""Folds for cross validation, compared with scikit-learn's."""

from __future__ import annotations

import csv
import json
import warnings
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import tensorstore_ds as tsds
from small_stores import image_field, label_field, write_store
from stores import store_of
from tensorstore_ds.annex.editing.fold_numbers import SLACK
from tensorstore_ds.errors import OptionError, UnknownNameError

selection = pytest.importorskip("sklearn.model_selection")

Ints = NDArray[np.int64]


def made(path: Path, labels: Sequence[int], **columns: Any) -> tsds.Store:
    """A store of tiny images with labels, and columns of integers."""
    classes = [f"c{i:02}" for i in range(max(labels, default=0) + 1)]
    rows = len(labels)
    arrays = {"image": np.zeros((rows, 1, 1, 1), np.uint8), "label": np.array(labels, np.int64)}
    fields = {"image": image_field(arrays["image"][:1]), "label": label_field(*classes)}
    for name, values in columns.items():
        arrays[name] = np.array(values)
        fields[name] = {"kind": "array", "dtype": str(arrays[name].dtype), "shape": []}
    return tsds.open(write_store(path, fields, ("train", rows, arrays)))


def converted(path: Path, samples: Sequence[Any]) -> tsds.Store:
    with tsds.Writer(path, classes=["c0", "c1", "c2"], workers=0) as writer:
        for key, label in samples:
            writer.append("train", image=np.zeros((2, 2), np.uint8), label=label, key=key)
    return tsds.open(path)


def spread(counts: Any) -> int:
    return int(np.ptp(np.asarray(counts)))


def table(numbers: Any, labels: Any, k: int) -> Ints:
    """(classes, k): samples of each class in each fold, from 1, by counting."""
    return np.array([[np.sum((numbers == i + 1) & (labels == c)) for i in range(k)] for c in np.unique(labels)])


def numbers_of(splitter: Any, labels: Ints, groups: Ints | None = None) -> Ints:
    """scikit-learn's folds, from 1."""
    found = np.zeros(len(labels), np.int64)
    with warnings.catch_warnings(action="ignore"):
        for i, (_, val) in enumerate(splitter.split(np.zeros(len(labels)), labels, groups)):
            found[val] = i + 1
    return found


def check_rows(folds: tsds.editing.Folds, rows: int) -> None:
    """Every row is in `val` once in each repeat, and in `train` of the other folds."""
    assert len(folds) == folds.k * folds.repeats
    for repeat in range(1, folds.repeats + 1):
        mine = [fold for fold in folds if fold.repeat == repeat]
        assert [fold.number for fold in mine] == list(range(1, folds.k + 1))
        assert np.array_equal(np.sort(np.concatenate([fold.val for fold in mine])), np.arange(rows))
        for fold in mine:
            assert fold.train.dtype == fold.val.dtype == np.int64
            assert len(fold.val) and np.array_equal(np.union1d(fold.train, fold.val), np.arange(rows))
            assert len(fold.train) + len(fold.val) == rows
            assert (np.diff(fold.train) > 0).all() and (np.diff(fold.val) > 0).all()


# --- as even as scikit-learn's -----------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(8))
def test_rows_are_as_even_as_kfold(seed: int, tmp_path: Path) -> None:
    rng = np.random.default_rng(seed)
    rows = int(rng.integers(2, 300))
    k = int(rng.integers(2, min(rows, 12) + 1))
    found = tsds.folds(made(tmp_path / "s.tsds", [0] * rows)["train"], k, seed=seed)
    check_rows(found, rows)
    oracle = np.bincount(numbers_of(selection.KFold(k), np.zeros(rows, np.int64)))[1:]
    assert sorted(found.rows().tolist()) == sorted(oracle.tolist())


@pytest.mark.parametrize("seed", range(12))
def test_classes_are_as_even_as_stratified_kfold(seed: int, tmp_path: Path) -> None:
    rng = np.random.default_rng(seed)
    k, classes = int(rng.integers(2, 9)), int(rng.integers(1, 12))
    labels = np.repeat(np.arange(classes), rng.integers(k, 60, classes))
    rng.shuffle(labels)
    found = tsds.folds(made(tmp_path / "s.tsds", labels.tolist())["train"], k, stratify="label", seed=seed)
    check_rows(found, len(labels))
    ours, oracle = (table(n, labels, k) for n in (found.numbers[0], numbers_of(selection.StratifiedKFold(k), labels)))
    assert np.array_equal(found.class_counts(), ours)
    for mine, theirs in zip(ours, oracle, strict=True):
        assert sorted(mine.tolist()) == sorted(theirs.tolist())  # class by class, to the sample
    assert spread(ours.sum(0)) <= spread(oracle.sum(0))
    assert spread(ours.sum(0)) <= 1


@pytest.mark.parametrize("seed", range(15))
@pytest.mark.parametrize("stratified", [False, True])
def test_groups_are_as_even_as_scikit_learns_up_to_a_group(seed: int, stratified: bool, tmp_path: Path) -> None:
    rng = np.random.default_rng(seed)
    k, classes = int(rng.integers(2, 8)), int(rng.integers(2, 6))
    count = int(rng.integers(3 * k, 80))
    rows = int(rng.integers(4 * count, 12 * count))
    groups = rng.choice(count, rows, p=rng.dirichlet(np.full(count, rng.choice([2.0, 50.0]))))
    labels = rng.choice(classes, rows, p=rng.dirichlet(np.full(classes, 5.0)))
    labels[: classes * k] = np.tile(np.arange(classes), k)  # scikit-learn refuses rare classes
    store = made(tmp_path / "s.tsds", labels.tolist(), patient=groups)
    with warnings.catch_warnings(action="ignore"):
        found = tsds.folds(store, k, stratify="label" if stratified else None, groups="patient", seed=seed)
    check_rows(found, rows)
    for group in np.unique(groups):
        assert len(set(found.numbers[0][groups == group])) == 1
    assert found.group_counts() is not None
    assert int(np.sum(found.group_counts())) == len(np.unique(groups))
    oracle = numbers_of(selection.StratifiedGroupKFold(k) if stratified else selection.GroupKFold(k), labels, groups)
    largest = int(np.bincount(groups).max())
    bound = largest + 2 * SLACK * rows / k
    assert spread(found.rows()) <= spread(np.bincount(oracle)[1:]) + bound
    if stratified:
        shares, theirs = (t / np.maximum(1, t.sum(0)) for t in (found.class_counts(), table(oracle, labels, k)))
        whole = np.bincount(labels, minlength=classes)[:, None] / rows
        worst, other = np.abs(shares - whole).max(), np.abs(theirs - whole).max()
        assert worst <= other + bound / (rows / k)
        assert found.as_data()["repeat"][0]["largest_deviation"] == pytest.approx(worst)


def test_one_group_for_each_fold_fills_all_folds(tmp_path: Path) -> None:
    for sizes in ([10, 1, 1, 1], [1, 1, 1, 1], [5, 5, 1, 1]):
        groups = np.repeat(np.arange(4), sizes)
        store = made(tmp_path / f"{sizes}.tsds", [0] * len(groups), patient=groups)
        for seed in range(10):
            assert sorted(tsds.folds(store, 4, groups="patient", seed=seed).rows()) == sorted(sizes)


def test_objects_are_divided_by_class(tmp_path: Path) -> None:
    """A random division is no match: each class is at least as even as in most random divisions."""
    rng, rows, k = np.random.default_rng(1), 200, 5
    samples = []
    for _ in range(rows):
        labels = rng.choice(4, int(rng.integers(0, 5)), p=[0.6, 0.25, 0.1, 0.05])
        boxes = np.tile([1, 1, 5, 5], (len(labels), 1)).astype(float)
        samples.append({"image": np.zeros((8, 8, 1), np.uint8), "boxes": boxes, "labels": labels})
    store = store_of(tmp_path / "s.tsds", samples, classes=["a", "b", "c", "d"])
    found = tsds.folds(store, k, stratify="objects")
    check_rows(found, rows)
    offsets, labels = store["train"].table("objects").offsets, np.asarray(store["train"].table("objects")["labels"])
    owner = np.repeat(np.arange(rows), np.diff(offsets))
    ours = table(found.numbers[0][owner], labels, k)
    assert np.array_equal(ours, found.class_counts())
    for c, counts in enumerate(ours):
        random = [spread(table(rng.permutation(np.arange(rows) % k + 1)[owner], labels, k)[c]) for _ in range(40)]
        assert spread(counts) < np.quantile(random, 0.25) or spread(counts) <= 1, c
    assert spread(found.rows()) <= 2 + 2 * SLACK * rows / k


def test_repeats_differ_and_are_as_even_as_scikit_learns(tmp_path: Path) -> None:
    labels = np.random.default_rng(0).integers(0, 3, 101)
    found = tsds.folds(made(tmp_path / "s.tsds", labels.tolist()), 4, stratify="label", repeats=5)
    check_rows(found, 101)
    oracle = selection.RepeatedStratifiedKFold(n_splits=4, n_repeats=5, random_state=0)
    sizes = [len(val) for _, val in oracle.split(labels, labels)]
    assert len(sizes) == len(found)
    assert sorted(sizes) == sorted(len(fold.val) for fold in found)
    for one, other in pairwise(found.numbers):
        assert 0.1 < np.mean(one == other) < 0.45  # 1/4 of independent divisions
    assert found.fold(2, repeat=3).repeat == 3
    assert np.array_equal(found.fold(2, repeat=3).val, found[9].val)
    assert [fold.number for fold in found[-2:]] == [3, 4]
    # More repeats do not change the first ones; a different seed changes all.
    assert np.array_equal(tsds.folds(tmp_path / "s.tsds", 4, stratify="label").numbers[0], found.numbers[0])
    assert np.mean(tsds.folds(tmp_path / "s.tsds", 4, stratify="label", seed=1).numbers[0] == found.numbers[0]) < 0.45


# --- where a row is ----------------------------------------------------------------------------------------------

WAYS: list[dict[str, Any]] = [{}, {"stratify": "label"}, {"groups": "folder"}]
WAYS.append({"stratify": "label", "groups": "folder"})


def test_folds_follow_from_keys_and_not_from_the_order_of_rows(tmp_path: Path) -> None:
    samples = [(f"p{i % 17}/{i}", i % 3) for i in range(120)]
    shuffled = [samples[i] for i in np.random.default_rng(0).permutation(120)]
    stores = [converted(tmp_path / f"{i}.tsds", order) for i, order in enumerate((samples, shuffled))]
    for options in WAYS:
        one, other = (tsds.folds(store, 4, **options).numbers[0].tolist() for store in stores)
        assert dict(zip(samples, one, strict=True)) == dict(zip(shuffled, other, strict=True))


def test_most_rows_keep_their_fold_when_a_store_grows_by_a_tenth(tmp_path: Path) -> None:
    """1,000 rows of 3 classes in 250 groups; 100 rows in 25 groups more."""
    labels = np.random.default_rng(5).integers(0, 3, 1100)
    samples = [(f"p{i // 4}/{i}", int(labels[i])) for i in range(1100)]
    stores = [converted(tmp_path / f"{rows}.tsds", samples[:rows]) for rows in (1000, 1100)]
    for options, kept in zip(WAYS, (0.95, 0.95, 0.95, 0.8), strict=True):
        before, after = (tsds.folds(store, 5, **options).numbers[0] for store in stores)
        assert np.mean(before == after[:1000]) > kept


def test_fold_numbers_stay_those_of_earlier_versions(tmp_path: Path) -> None:
    """Later processes make the same folds, so that results stay comparable."""
    rng = np.random.default_rng(1)
    store = made(tmp_path / "s.tsds", rng.integers(0, 3, 30).tolist(), patient=rng.integers(0, 11, 30))
    assert found_of(store) == "223441414334421223114312231332"
    assert found_of(store, stratify="label") == "443441414313222123114312231332"
    assert found_of(store, groups="patient") == "342344411131341132123241242342"
    assert found_of(store, stratify="label", groups="patient") == "332333411114141132423241242342"


def found_of(store: tsds.Store, **options: Any) -> str:
    """The folds of all rows, as digits."""
    return "".join(map(str, tsds.folds(store, 4, **options).numbers[0].tolist()))


# --- what can be divided, and by what ----------------------------------------------------------------------------


def test_a_data_set_is_divided_by_the_index_of_its_samples(tmp_path: Path) -> None:
    store = made(tmp_path / "s.tsds", (np.arange(60) % 3).tolist())
    whole = tsds.folds(tsds.StoreDataset(store), 4, stratify="label")
    assert np.array_equal(whole.numbers, tsds.folds(store, 4, stratify="label").numbers)
    assert np.array_equal(whole.numbers, tsds.folds(store["train"], 4, stratify="label").numbers)
    some = tsds.StoreDataset(store).subset(np.arange(59, 19, -1))
    found = tsds.folds(some, 4, stratify="label")
    check_rows(found, 40)
    assert (table(found.numbers[0], np.array(some.targets), 4) >= 3).all()
    assert some.subset(found[0].val).rows is not None
    # The order of the samples does not matter.
    turned = tsds.folds(tsds.StoreDataset(store).subset(np.arange(20, 60)), 4, stratify="label")
    assert np.array_equal(turned.numbers[0], found.numbers[0][::-1])


def test_a_row_that_is_there_twice_is_in_one_fold(tmp_path: Path) -> None:
    store = made(tmp_path / "s.tsds", [0] * 20)
    twice = tsds.StoreDataset(store).subset(np.repeat(np.arange(20), 2))
    numbers = tsds.folds(twice, 4).numbers[0]
    assert np.array_equal(numbers[::2], numbers[1::2])


def test_groups_by_fields_keys_and_arrays_are_the_same_groups(tmp_path: Path) -> None:
    patients = np.random.default_rng(2).integers(0, 9, 80)
    store = made(tmp_path / "s.tsds", patients.tolist(), patient=patients)
    by_field = tsds.folds(store, 3, groups="patient").numbers
    for groups in (
        patients,
        patients.tolist(),
        [str(p) for p in patients],
        np.array([str(p) for p in patients], object),
    ):
        assert np.array_equal(tsds.folds(store, 3, groups=groups).numbers, by_field)
    assert np.array_equal(tsds.folds(store, 3, groups="label").numbers, by_field)
    keyed = converted(tmp_path / "k.tsds", [(f"patient{p:02}/{i}", 0) for i, p in enumerate(patients)])
    by_pattern = tsds.folds(keyed, 3, groups=r"patient(\d+)").numbers[0]
    assert all(len(set(by_pattern[patients == p])) == 1 for p in range(9))


def test_equal_images_can_be_kept_together(tmp_path: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 255, (10, 3, 3, 1), np.uint8)
    store = store_of(tmp_path / "s.tsds", [{"image": pixels[i % 10]} for i in range(30)])
    numbers = tsds.folds(store, 5, groups="duplicates").numbers[0].reshape(3, 10)
    assert (numbers == numbers[0]).all()


def test_rows_without_a_label_are_divided_and_are_groups_of_their_own(tmp_path: Path) -> None:
    labels = [0] * 20 + [1] * 20 + [-1] * 20
    store = made(tmp_path / "s.tsds", labels)
    found = tsds.folds(store, 5, stratify="label")
    assert (table(found.numbers[0], np.array(labels), 5) == 4).all()
    assert found.class_counts().tolist() == [[4] * 5, [4] * 5]
    assert np.sum(tsds.folds(store, 3, groups="label").group_counts()) == 22


# --- what is refused ---------------------------------------------------------------------------------------------


def test_bad_input_is_one_clear_line(tmp_path: Path) -> None:
    store = made(tmp_path / "s.tsds", [0, 1, 0, 1, 0, 1], patient=[1, 1, 2, 2, 3, 3], weight=np.arange(6.0))
    split = store["train"]
    cases: list[tuple[dict[str, Any], str]] = [
        ({"k": 1}, r"^`k`: expected 2 or more, found 1\.$"),
        ({"k": 2.5}, "`k`: expected a whole number"),
        ({"k": 7}, "`k`: expected at most 6, the samples of train, found 7"),
        ({"k": 4, "groups": "patient"}, "`k`: expected at most 3, the groups of train, found 4"),
        ({"stratify": "labels"}, "fields image, label, patient, weight, found 'labels'. Did you mean label?"),
        ({"stratify": "patient"}, r"`stratify`: expected a field of labels, .* found patient \(array\). Use label\.$"),
        ({"stratify": 3}, "`stratify`: expected the name of a field, found int"),
        ({"groups": "patiens"}, "image, label, patient, weight, folder, duplicates, found 'patiens'. Did you mean pat"),
        ({"groups": "weight"}, r"`groups`: expected .* integers or texts, found weight .* Use label, patient, or"),
        ({"groups": "x(.)y"}, "`groups`: expected an expression that finds something"),
        ({"groups": [1, 2]}, r"`groups`: expected a field, or integers or texts of shape \(6,\), found int64 of shape"),
        ({"groups": np.arange(6.0)}, "found float64"),
        ({"repeats": 0}, "`repeats`: expected 1 or more"),
        ({"seed": -1}, "`seed`: expected "),
        ({"split": "train"}, "`split`: expected none"),
    ]
    for options, message in cases:
        with pytest.raises(OptionError, match=message) as error:
            tsds.folds(split, **options)
        assert "\n" not in str(error.value)
    with pytest.raises(UnknownNameError, match="its only split train, found 'val'"):
        tsds.folds(store, split="val")
    with pytest.raises(OptionError, match="`data`: expected a Split, a StoreDataset or a store, found a list"):
        tsds.folds([1, 2])
    found = tsds.folds(split, 3)
    for number in (0, 4):
        with pytest.raises(OptionError, match=f"`fold`: expected 1 to 3, found {number}"):
            found.fold(number)
    with pytest.raises(IndexError):
        found[3]
    with pytest.raises(ValueError, match="read-only"):
        found.numbers[0, 0] = 3


def test_a_class_with_fewer_samples_than_folds_is_named(tmp_path: Path) -> None:
    store = made(tmp_path / "s.tsds", [0] * 10 + [1] * 3, patient=[0] * 2 + [1] * 2 + [2] * 6 + [0, 1, 1])
    with pytest.warns(UserWarning, match=r"^label: expected classes with 5 samples or more, found c01 \(3\)\. "):
        found = tsds.folds(store, 5, stratify="label")
    assert found.warnings and found.class_counts()[1].tolist().count(0) == 2
    with pytest.warns(UserWarning, match=r"classes with 3 groups or more, found c01 \(2\)"):
        tsds.folds(store, 3, stratify="label", groups="patient")
    with warnings.catch_warnings(action="error"):
        assert not tsds.folds(store, 3, stratify="label").warnings


# --- what is shown and written -----------------------------------------------------------------------------------


def test_the_table_shows_the_counts(tmp_path: Path) -> None:
    store = made(tmp_path / "s.tsds", [0] * 12 + [1] * 4, patient=[i // 2 for i in range(16)])
    found = tsds.folds(store, 2, stratify="label", groups="patient")
    title, _, *lines = str(found).splitlines()
    assert title == "s.tsds, train: 16 rows, 2 folds, stratified by label, grouped by patient, seed 0"
    cells = {line.split()[0]: line.split()[1:] for line in lines}
    assert cells["fold"] == ["1", "2", "all", "deviation"]
    assert cells["rows"][:3] == [*map(str, found.rows()), "16"]
    assert cells["groups"] == [*map(str, np.asarray(found.group_counts())), "8"]
    shares = found.class_counts() / found.class_counts().sum(0)
    assert cells["c00"][:3] == [*(f"{share:.1%}" for share in shares[0]), "75.0%"]
    assert repr(found) == f"<Folds of {title.replace(': ', ': ')}>"


def test_many_classes_are_cut(tmp_path: Path) -> None:
    found = tsds.folds(made(tmp_path / "s.tsds", [i % 40 for i in range(200)]), 2, stratify="label")
    lines = str(found).splitlines()
    assert len(lines) == 2 + 2 + 30 + 1
    assert lines[-1] == "... and 10 more classes, which deviate by less"


def test_files_hold_the_fold_of_each_key(tmp_path: Path) -> None:
    keys = [f'a,{i}"' for i in range(12)]
    store = converted(tmp_path / "s.tsds", [(key, i % 3) for i, key in enumerate(keys)])
    one, two = tsds.folds(store, 3), tsds.folds(store, 3, repeats=2, stratify="label")
    one.save(tmp_path / "f.csv")
    with (tmp_path / "f.csv").open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [row["key"] for row in rows] == keys
    assert [int(row["fold"]) for row in rows] == one.numbers[0].tolist()
    two.save(tmp_path / "f.csv")
    with (tmp_path / "f.csv").open(newline="", encoding="utf-8") as file:
        assert [[int(r["fold_1"]), int(r["fold_2"])] for r in csv.DictReader(file)] == two.numbers.T.tolist()
    two.save(tmp_path / "f.json")
    data = json.loads((tmp_path / "f.json").read_text("utf-8"))
    assert data["folds"] == dict(zip(keys, two.numbers.T.tolist(), strict=True))
    assert data["repeat"][1]["classes"] == {f"c{i}": two.class_counts(2)[i].tolist() for i in range(3)}
    with pytest.raises(OptionError, match=r"`out`: expected a file name that ends with \.csv or \.json, found f\.txt"):
        one.save(tmp_path / "f.txt")
    with pytest.raises(OptionError, match="lies inside the store"):
        one.save(tmp_path / "s.tsds" / "f.csv")
    with pytest.raises(tsds.errors.OutputError):
        one.save(tmp_path / "none" / "f.csv")
