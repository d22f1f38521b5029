"""Weights for sampling, made from a store's labels and tables without touching an image."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tensorstore_ds.errors import FormatError, OptionError, Problem
from tensorstore_ds.reading.columns import Column, RaggedColumn
from tensorstore_ds.reading.store import Split

ADVICE = "Any array of one weight a row can be given to WeightedSampler."


def class_balanced_weights(
    split: Split, *, field: str = "label", method: Literal["inverse", "effective"] = "inverse", beta: float = 0.999
) -> NDArray[np.float64]:
    """A weight for every sample, by how rare its class is; all of a class have the same.

    ``inverse`` is 1 / n, where n is the number of samples of the class: all classes are then drawn equally often.
    ``effective`` is (1 - beta) / (1 - beta ** n), the inverse of the effective number of samples (Cui et al., Class-
    Balanced Loss Based on Effective Number of Samples, CVPR 2019, proposition 1): beta = 0 weighs all samples alike,
    beta near 1 does as ``inverse`` does.

    Classes are counted in the labels, which are read in any case: statistics are optional in a store.

    Args:
        split: with a field of kind ``label``.
        field: its name.
        method: ``inverse`` or ``effective``.
        beta: in [0, 1), for ``effective``.

    Returns:
        (n,) float64, in (0, 1]; they do not add up to anything in particular.

    Raises:
        OptionError: the split has no such field, or an argument is out of its range.
        FormatError: a label is not the index of a class.
    """
    if method not in ("inverse", "effective"):
        raise OptionError(f"method: expected inverse or effective, found {method!r}.")
    if not 0 <= beta < 1:
        raise OptionError(f"beta: expected in [0, 1), found {beta}.")
    _check_field(split, field, "label")
    classes = len(split.fields[field].classes)
    labels = _labels(split[field], classes, f"{split.name}/{field}")
    counts = np.bincount(labels, minlength=classes)
    of_class = np.zeros(classes)
    some = counts > 0  # a class without samples has a weight that nobody asks for
    of_class[some] = 1 / counts[some] if method == "inverse" else (1 - beta) / (1 - beta ** counts[some])
    return of_class[labels]


def repeat_factors(split: Split, *, threshold: float, field: str = "objects") -> NDArray[np.float64]:
    """How often to show every sample, by the rarest class among its objects.

    A class c that is in a share f_c of the samples has r_c = max(1, sqrt(threshold / f_c)); a sample has the greatest
    r_c of its objects, and 1 if it has none (Gupta et al., LVIS, CVPR 2019). So samples with a class that fewer than
    `threshold` of all have are shown more often; LVIS has 0.001.

    ``WeightedSampler(factors, round(factors.sum()))`` shows each sample so often in the mean of epochs.

    Args:
        split: with a field of kind ``objects`` whose objects have labels.
        threshold: a share of the samples, in (0, 1].
        field: the field's name.

    Returns:
        (n,) float64, 1 or more.

    Raises:
        OptionError: the split has no such field, or `threshold` is out of its range.
        FormatError: a label is not the index of a class, or the table's offsets are damaged.
    """
    if not 0 < threshold <= 1:
        raise OptionError(f"threshold: expected in (0, 1], found {threshold}.")
    _check_field(split, field, "objects")
    table: RaggedColumn = split[field]
    if "labels" not in table.values:
        raise OptionError(
            f"split {split.name!r}: expected objects with labels, found {', '.join(table.values)}. {ADVICE}"
        )
    rows, classes = len(split), len(table.field.classes)
    labels = _labels(table["labels"], classes, f"{split.name}/{field}/labels")
    owners = np.repeat(np.arange(rows), np.diff(table.offsets))
    present = np.unique(owners * classes + labels)  # each class of a sample once
    share = np.bincount(present % max(1, classes), minlength=classes) / max(1, rows)
    of_class = np.ones(classes)
    rare = (share > 0) & (share < threshold)
    of_class[rare] = np.sqrt(threshold / share[rare])
    factors = np.ones(rows)
    np.maximum.at(factors, owners, of_class[labels])
    return factors


def weights_from_column(split: Split, name: str) -> NDArray[np.float64]:
    """A column of the split as weights.

    Args:
        split: with a field `name` of one number a row.
        name: the field's name.

    Returns:
        (n,) float64, a copy.

    Raises:
        OptionError: there is no such field, or it holds more than a number a row.
        ValueError: a weight is negative or not finite, or none is positive.
    """
    if name not in split.fields:
        raise OptionError(_missing(split, f"a field {name!r}"))
    column = split[name]
    if not isinstance(column, Column) or column.spec.shape:
        found = f"rows of shape {column.spec.shape}" if isinstance(column, Column) else "a table"
        raise OptionError(f"{split.name}/{name}: expected one number a row, found {found}. {ADVICE}")
    return checked_weights(column, f"{split.name}/{name}").astype(np.float64)


def checked_weights(weights: ArrayLike, where: str = "weights") -> NDArray[Any]:
    """`weights` as an array of its own dtype, not copied if it is one.

    Raises:
        ValueError: they are not (n,) numbers, one is negative or not finite, or none is positive.
    """
    array = np.asarray(weights)
    if array.ndim != 1 or array.dtype.kind not in "buif":
        raise ValueError(f"{where}: expected numbers of shape (n,), found {array.dtype} of shape {array.shape}.")
    with np.errstate(over="ignore"):
        total = array.sum(dtype=np.float64)  # NaN and infinity stay what they are in a sum
    if array.size and not (array.min() >= 0 and np.isfinite(total)):
        bad = np.flatnonzero(~((array >= 0) & np.isfinite(array)))
        found = f"{array[bad[0]]} in row {bad[0]}" if bad.size else "a sum that is not"
        raise ValueError(f"{where}: expected numbers that are finite and not negative, found {found}.")
    if not total > 0:
        raise ValueError(f"{where}: expected one positive number or more, found none in {array.size}.")
    return array


def _check_field(split: Split, name: str, kind: str) -> None:
    if name not in split.fields or split.fields[name].kind != kind:
        raise OptionError(_missing(split, f"a field {name!r} of kind {kind}"))


def _missing(split: Split, expected: str) -> str:
    found = ", ".join(f"{name} ({field.kind})" for name, field in split.fields.items())
    return f"split {split.name!r}: expected {expected}, found {found or 'none'}. {ADVICE}"


def _labels(column: Column, classes: int, where: str) -> NDArray[np.int64]:
    """All labels of a column, each the index of a class: `open` does not look at them, and indexing would wrap."""
    labels = np.asarray(column)
    if labels.size and not 0 <= labels.min() <= labels.max() < classes:
        message = f"expected labels in [0, {classes}), found {labels.min()} to {labels.max()}."
        raise FormatError(Problem(where, "label-range", message), "Convert again.")
    return labels
