"""Weighted sampling has the distribution of torch's WeightedRandomSampler: chi-square tests, with fixed seeds.

Each compares with the 0.999 quantile for its degrees of freedom, which is written beside it.
"""

import itertools
from collections import Counter

import numpy as np
import pytest
import torch

from tensorstore_ds.loading import weighted
from tensorstore_ds.loading.weighted import WeightedSampler

WEIGHTS = [1.0, 0.0, 2.0, 0.5, 4.0]


def chi_square(found, expected):
    found, expected = np.asarray(found, float), np.asarray(expected, float)
    return float(((found - expected) ** 2 / expected).sum())


def epochs(sampler, number):
    for epoch in range(number):
        sampler.set_epoch(epoch)
        yield sampler.rows()


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.int64])
def test_with_replacement_rows_come_as_often_as_they_weigh(dtype):
    weights = np.array([2, 0, 4, 1, 8], dtype)
    counts = np.bincount(WeightedSampler(weights, 60_000).rows(), minlength=5)
    assert counts[1] == 0
    assert chi_square(counts[[0, 2, 3, 4]], [8000, 16_000, 4000, 32_000]) < 16.27  # 3 degrees of freedom


def test_with_replacement_draws_are_independent_of_each_other():
    """Pairs of neighbors within an epoch, and of the same place in neighboring epochs."""
    chance = np.array([1, 2, 0.5, 4]) / 7.5
    expected = 20_000 * np.outer(chance, chance)
    weights = WEIGHTS[:1] + WEIGHTS[2:]
    sampler = WeightedSampler(weights, 40_000)
    pairs = sampler.rows().reshape(-1, 2)
    draws = np.stack(list(epochs(WeightedSampler(weights, 20_000, seed=3), 2)), axis=1)
    for found in (pairs, draws):
        assert chi_square(np.bincount(found @ [4, 1], minlength=16).reshape(4, 4), expected) < 37.70  # 15 degrees


def test_with_replacement_counts_vary_as_independent_draws_do():
    """Systematic sampling would give every row the same count in every epoch."""
    counts = [np.count_nonzero(rows == 0) for rows in epochs(WeightedSampler([1, 1, 1, 1], 400), 400)]
    assert np.var(counts) == pytest.approx(400 * 0.25 * 0.75, rel=0.25)


def test_without_replacement_rows_are_drawn_one_by_one_from_those_left():
    """The chance of an ordered triple, multiplied out (Efraimidis and Spirakis 2006, definition 1)."""
    number, weights = 6000, np.array([1.0, 2.0, 0.5, 4.0])
    found = Counter(tuple(r.tolist()) for r in epochs(WeightedSampler(weights, 3, replacement=False), number))
    chances = {}
    for triple in itertools.permutations(range(4), 3):
        left, chance = weights.sum(), 1.0
        for row in triple:
            chance *= weights[row] / left
            left -= weights[row]
        chances[triple] = chance
    assert sum(chances.values()) == pytest.approx(1)
    assert chi_square([found[t] for t in chances], [number * c for c in chances.values()]) < 49.73  # 23 degrees


def test_without_replacement_no_row_comes_twice_and_none_of_weight_zero():
    weights = np.arange(1000) % 3
    rows = WeightedSampler(weights, replacement=False).rows()
    assert sorted(rows) == np.flatnonzero(weights).tolist()
    fewer = WeightedSampler(weights, 100, replacement=False).rows()
    assert len(set(fewer.tolist())) == 100
    assert fewer.tolist() == rows[:100].tolist()


def test_more_weights_than_torch_can_take():
    weights = np.zeros(2**24 + 9, np.float32)
    with pytest.raises(RuntimeError, match="2\\^24"):
        torch.multinomial(torch.from_numpy(weights), 1)
    weights[[5, 2**24 + 2, 2**24 + 8]] = 1, 2, 3
    rows = WeightedSampler(weights, 1200).rows()
    found = [np.count_nonzero(rows == row) for row in (5, 2**24 + 2, 2**24 + 8)]
    assert sum(found) == 1200
    assert chi_square(found, [200, 400, 600]) < 13.82  # 2 degrees of freedom
    assert sorted(WeightedSampler(weights, replacement=False).rows()) == [5, 2**24 + 2, 2**24 + 8]


def test_ends_and_extremes_of_the_weights():
    tiny = np.nextafter(0, 1)
    for weights in ([0, 0, tiny, 0], [0, 1e308, 0], [0, 0, 7, 0, 0], [False, True, False]):
        (row,) = np.flatnonzero(weights)
        assert set(WeightedSampler(weights, 500).rows().tolist()) == {row}
        assert WeightedSampler(weights, replacement=False).rows().tolist() == [row]
    rows = WeightedSampler([1, tiny, 1], replacement=False).rows().tolist()
    assert sorted(rows) == [0, 1, 2]
    assert rows[-1] == 1


@pytest.mark.parametrize("point", [0.0, np.nextafter(1, 0)])
def test_the_ends_of_the_random_numbers_draw_no_row_of_weight_zero(monkeypatch, point):
    class Random:
        def random(self, size):
            return np.full(size, point)

        def shuffle(self, rows):
            pass

    monkeypatch.setattr(weighted, "generator", lambda *key: Random())
    assert WeightedSampler([0, 0, 3, 0, 0], 2).rows().tolist() == [2, 2]


def test_a_tensor_of_weights_and_the_default_number():
    sampler = WeightedSampler(torch.tensor([1.0, 0.0, 3.0]))
    assert (sampler.size, len(sampler)) == (3, 3)
    assert WeightedSampler([1, 0, 3], replacement=False).size == 2


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: WeightedSampler([1, -2.5]), "finite and not negative, found -2.5 in row 1"),
        (lambda: WeightedSampler([1, 2, np.nan]), "found nan in row 2"),
        (lambda: WeightedSampler([np.inf, 2]), "found inf in row 0"),
        (lambda: WeightedSampler([1e308, 1e308]), "found a sum that is not"),
        (lambda: WeightedSampler([0, 0]), "one positive number or more, found none in 2"),
        (lambda: WeightedSampler([]), "found none in 0"),
        (lambda: WeightedSampler([[1, 2]]), r"shape \(n,\), found int64 of shape \(1, 2\)"),
        (lambda: WeightedSampler(["a"]), "found <U1"),
        (lambda: WeightedSampler([1, 2], 0), "`num_samples`: expected 1 or more, found 0"),
        (
            lambda: WeightedSampler([1, 0, 1], 3, replacement=False),
            "`num_samples`: expected at most 2, .* found 3. Ask for fewer, or for `replacement=True`",
        ),
    ],
)
def test_what_is_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()
