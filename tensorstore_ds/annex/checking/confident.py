"""Confident learning: labels that predictions of a model contradict."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

#: Probabilities that are judged at a time: 32 MB.
_BLOCK = 1 << 22
#: Probabilities of 16 or 32 bits that differ by less are equal.
_EPSILON = 1e-6


class LabelIssues(NamedTuple):
    """Samples whose label is probably wrong, those with the smallest margin first."""

    rows: NDArray[np.int64]  #: (m,) of the samples.
    suggested: NDArray[np.int64]  #: (m,) the class that the sample probably has.
    self_confidence: NDArray[np.float64]  #: (m,) probability of the label.
    margins: NDArray[np.float64]  #: (m,) probability of the label, less the largest one of other classes; -1 to 1.


def label_issues(labels: NDArray[np.int64], probabilities: NDArray[Any]) -> LabelIssues:
    """Find labels that are probably wrong, by the confident joint.

    The threshold of a class is the mean of its probability over the samples that have its label. A sample is counted
    for the most probable one of the classes whose probability is at least their threshold. The label is probably wrong
    if this class is not the label, and the label is not the most probable class.
    Source: C. G. Northcutt, L. Jiang, I. L. Chuang, Confident Learning: Estimating Uncertainty in Dataset Labels,
    Journal of Artificial Intelligence Research 70, 2021, equations 1 and 2.

    Args:
        labels: (n,) classes from 0; samples with others, and samples with NaN among their probabilities, are left out.
        probabilities: (n, K), out of sample: predicted by a model that was not trained on the sample. It may be a map:
            it is read twice, in blocks of 32 MB.
    """
    classes = probabilities.shape[1]
    sums, counts = np.zeros(classes), np.zeros(classes, np.int64)
    for rows, given, block in _blocks(labels, probabilities):
        np.add.at(sums, given, block[np.arange(len(rows)), given])
        counts += np.bincount(given, minlength=classes)
    thresholds = np.divide(sums, counts, out=np.full(classes, np.inf), where=counts > 0)
    none = np.empty(0, np.int64)
    found: list[tuple[NDArray[Any], ...]] = [(none, none, np.empty(0), np.empty(0))]
    for rows, given, block in _blocks(labels, probabilities):
        confident = np.where(block >= thresholds - _EPSILON, block, -1)
        suggested = confident.argmax(axis=1)
        at = np.flatnonzero(
            (confident.max(axis=1, initial=-1) >= 0) & (suggested != given) & (block.argmax(axis=1) != given)
        )
        at = at[block[at, given[at]] < block[at].max(axis=1, initial=-1) - _EPSILON]  # a tie contradicts no label
        own = block[at, given[at]]
        block[at, given[at]] = -1
        found.append((rows[at], suggested[at], own, own - block[at].max(axis=1, initial=-1)))
    rows, suggested, own, margins = (np.concatenate(each) for each in zip(*found, strict=True))
    order = np.lexsort((rows, margins))
    return LabelIssues(rows[order], suggested[order], own[order], margins[order])


def _blocks(
    labels: NDArray[np.int64], probabilities: NDArray[Any]
) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float64]]]:
    """Rows that count, their labels and their probabilities, block by block."""
    classes = probabilities.shape[1]
    step = max(1, _BLOCK // max(1, classes))
    for start in range(0, len(labels), step):
        given = labels[start : start + step]
        block = np.array(probabilities[start : start + step], np.float64)
        known = np.flatnonzero((given >= 0) & (given < classes) & ~np.isnan(block).any(axis=1))
        yield start + known, given[known], block[known]
