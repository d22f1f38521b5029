"""How well an order is mixed, as a number."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray


def shuffle_quality(
    rows: ArrayLike, *, batch_size: int = 256, parts: int = 100, labels: ArrayLike | None = None
) -> float:
    """How evenly batches are mixed: 1 as after a full shuffle, 0 where every batch comes from one part of the store.

    The store is cut into `parts` equal stretches, as if it were sorted by that many classes. The quality is the Shannon
    entropy of the parts in a batch, ``-sum(p_k log p_k)`` where p_k is the share of part k, in the mean of all batches,
    over the mean that the same rows in random order would have. (Over the greatest possible entropy it would be
    Pielou's evenness, J. Theor. Biol. 13, 1966; but 256 rows drawn at random from 100 parts do not reach that. What
    they reach is calculated exactly: how many rows of a part are in a batch is then hypergeometric.)

    >>> shuffle_quality(np.arange(25_600))
    0.0
    >>> shuffle_quality(np.random.default_rng(0).permutation(25_600)) > 0.99
    True

    Args:
        rows: (m,) integers, not negative, as a sampler's `rows()`: of one rank or of all.
        batch_size: rows in a batch; a last short batch is left out if there is another.
        parts: of the store, up to the largest row in `rows`.
        labels: (n,) integers, not negative: the class of each row of the store, to be used instead of parts.

    Returns:
        A number from 0 to about 1: a fortunate order may be a little above.

    Raises:
        ValueError: there are no rows, or a number is out of its range.
    """
    rows = np.asarray(rows)
    if rows.ndim != 1 or not rows.size or rows.min() < 0:
        raise ValueError(f"rows: expected 0 or more, of shape (m,), at least one; found shape {rows.shape}.")
    if batch_size < 1 or parts < 1:
        raise ValueError(f"batch_size, parts: expected 1 or more, found {batch_size}, {parts}.")
    part = rows * parts // (int(rows.max()) + 1) if labels is None else np.asarray(labels)[rows]
    batch_size = min(batch_size, len(rows))
    batches = len(rows) // batch_size
    kinds = int(part.max()) + 1
    cells = np.repeat(np.arange(batches) * kinds, batch_size) + part[: batches * batch_size]
    counts = np.bincount(cells, minlength=batches * kinds)
    found = _entropy_terms(batch_size)[counts].sum() / batches
    expected = _expected_entropy(np.bincount(part), batch_size)
    return float(found / expected) if expected else 1.0  # rows of one part can only be mixed in one way


def _entropy_terms(batch_size: int) -> NDArray[np.float64]:
    """-p log p for p = 0, 1/batch_size, ... 1."""
    share = np.arange(batch_size + 1) / batch_size
    logarithm = np.log(share, where=share > 0, out=np.zeros(len(share)))
    return -share * logarithm


def _expected_entropy(sizes: NDArray[np.int64], batch_size: int) -> float:
    """The mean entropy of `batch_size` rows drawn without replacement from parts of these sizes."""
    total = int(sizes.sum())
    log_factorial = np.concatenate([np.zeros(1), np.cumsum(np.log(np.arange(1, total + 1)))])  # of 0, 1, ... total

    def log_choose(n: int, k: NDArray[np.int64]) -> NDArray[np.float64]:
        result: NDArray[np.float64] = log_factorial[n] - log_factorial[k] - log_factorial[n - k]
        return result

    terms = _entropy_terms(batch_size)
    expected = 0.0
    for size, times in zip(*np.unique(sizes, return_counts=True), strict=True):
        count = np.arange(max(0, batch_size - (total - size)), min(batch_size, size) + 1)
        log_chance = log_choose(size, count) + log_choose(total - size, batch_size - count)
        chance = np.exp(log_chance - log_choose(total, np.array(batch_size)))
        expected += times * float((chance * terms[count]).sum())
    return expected
