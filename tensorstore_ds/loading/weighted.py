"""Sampling by weight over any number of ranks, and weights that are computed from labels and tables without images."""

from __future__ import annotations

import warnings
import zlib
from typing import Any, Literal, Unpack

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tensorstore_ds.errors import FormatError, OptionError, Problem
from tensorstore_ds.format.kinds import LabelField, LabelsField, ObjectsField
from tensorstore_ds.format.kinds.base import Field, of_kind
from tensorstore_ds.format.kinds.label import UNLABELLED
from tensorstore_ds.loading.samplers import Order, RowSampler, at_least
from tensorstore_ds.options import refusal
from tensorstore_ds.reading.columns import Column, checked_rows, spans
from tensorstore_ds.reading.store import Split
from tensorstore_ds.seeding import generator

#: Rows of several labels that are weighted at a time: as floating-point numbers, all would take 8 times the memory.
_PIECE = 4096
ADVICE = "Any array of one weight a row can be given to WeightedSampler."


class WeightedSampler(RowSampler):
    """Sample rows with a probability proportional to their weight, like torch's WeightedRandomSampler.

    In contrast to torch's, the draws are divided among ranks, and the limit of 2^24 weights does not apply. The draws
    do not depend on the number of ranks, which take them in turn::

        WeightedSampler([3, 1, 0, 6], 6)

        1 rank                   2 ranks            4 ranks
        rank 0   3 3 3 0 1 3     rank 0   3 3 1     rank 0   3 1
                                 rank 1   3 0 3     rank 1   3 3
                                                    rank 2   3(3)
                                                    rank 3   0(3)

    With replacement, each draw is independent. It looks up a uniform number in the cumulated weights (float64). Without
    replacement, the result is the same as drawing one by one from the remaining rows. The key of each row is an
    exponential variate divided by its weight, and the rows with the smallest keys are taken, smallest first (Efraimidis
    and Spirakis, Weighted random sampling with a reservoir, Inf. Process. Lett. 97, 2006, whose u ** (1 / w) is this
    key's exp(-key)).

    >>> WeightedSampler([3, 1, 0, 6], 6, rank=1, num_replicas=2).rows().tolist()
    [3, 0, 3]

    Args:
        weights: (n,) numbers, of any sum. An array is not copied, so do not change it. A row of weight 0 is never
            drawn.
        num_samples: number of draws in an epoch, all ranks together. The default is n, or the number of positive
            weights without replacement. (The attribute `num_samples` is this rank's share, as in DistributedSampler.)
        replacement: whether a row can be drawn more than once in an epoch.
        order: `seed`, `rank`, `num_replicas`, `drop_last` and `even_batches`, see `Order`. If the number of ranks does
            not divide the draws, the first draws are repeated, also without replacement.

    Raises:
        ValueError: a weight is negative or not finite, or none is positive, or `num_samples` is larger than the number
            of positive weights without replacement.
    """

    def __init__(
        self, weights: ArrayLike, num_samples: int | None = None, *, replacement: bool = True, **order: Unpack[Order]
    ) -> None:
        self.weights = checked_weights(weights)
        self.replacement = replacement
        possible = len(self.weights) if replacement else int(np.count_nonzero(self.weights))
        size = possible if num_samples is None else at_least(1, num_samples, "num_samples")
        if not replacement and size > possible:
            expected = f"expected at most {possible}, the number of positive weights"
            raise OptionError(f"`num_samples`: {expected}, found {size}. Ask for fewer, or for `replacement=True`.")
        super().__init__(size, **order)

    def _own(self) -> list[Any] | None:
        return [bool(self.replacement), zlib.crc32(np.ascontiguousarray(self.weights).view(np.uint8).data)]

    def _order(self) -> NDArray[np.int64]:
        random = generator(self.seed, self.epoch)
        if self.replacement:
            cumulated = np.cumsum(self.weights, dtype=np.float64)
            cumulated /= cumulated[-1]  # ends at 1 exactly, above every point
            # Sorted points are looked up 7 times as fast as random ones. The draws are then put into random order,
            # which makes them independent again.
            points = np.sort(random.random(self.size))
            rows = cumulated.searchsorted(points, "right").astype(np.int64, copy=False)
            random.shuffle(rows)
            return rows
        rows = np.flatnonzero(self.weights)
        keys = random.standard_exponential(len(rows))
        with np.errstate(over="ignore"):  # a weight of 1e-310 is as good as the last
            keys /= self.weights[rows]
        if self.size < len(rows):
            smallest = np.argpartition(keys, self.size - 1)[: self.size]
            rows, keys = rows[smallest], keys[smallest]
        return rows[np.argsort(keys)].astype(np.int64, copy=False)


def class_balanced_weights(
    split: Split,
    *,
    field: str = "label",
    method: Literal["inverse", "effective"] = "inverse",
    beta: float = 0.999,
    rows: ArrayLike | None = None,
) -> NDArray[np.float64]:
    """Compute a weight for every sample from the frequency of its class.

    The method ``inverse`` uses 1 / n, where n is the number of samples of the class, so that all classes are drawn
    equally often. The method ``effective`` uses (1 - beta) / (1 - beta ** n), the inverse of the effective number of
    samples (Cui et al., Class-Balanced Loss Based on Effective Number of Samples, CVPR 2019, proposition 1). If `beta`
    is 0, all samples have the same weight. If it is near 1, the method is like ``inverse``.

    The samples are counted from the labels, because a store may contain no statistics. A sample without a label has
    weight 0, so that it is never drawn.

    If several classes can apply to a sample, its weight is the sum over its classes. With ``inverse``, this is
    class-aware sampling, which draws a class and then one of its samples (Wu et al., Distribution-Balanced Loss for
    Multi-Label Classification in Long-Tailed Datasets, ECCV 2020, section 3.1). Samples to which no class applies count
    as one more class. A sample has weight 0 if no class is known to apply and one is unknown.

    >>> split = tsds.open("photos.tsds")["train"]
    >>> weights = tsds.class_balanced_weights(split, rows=range(6))  # 4 cats and 2 dogs
    >>> weights.tolist()
    [0.25, 0.25, 0.25, 0.25, 0.5, 0.5]
    >>> sampler = tsds.WeightedSampler(tsds.class_balanced_weights(split))
    >>> loader = tsds.DataLoader(tsds.StoreDataset("photos.tsds"), batch_size=4, sampler=sampler)

    Args:
        split: split with a field of labels.
        field: name of that field, such as ``labels`` if several classes can apply.
        method, beta: method and its parameter, as described above.
        rows: (n,) int64, rows of the split, such as a fold's. Only these samples are counted and get a weight. None
            takes all.

    Returns:
        (n,) float64, 0 or more.

    Raises:
        OptionError: the split has no such field of kind ``label`` or ``labels``, or `beta` is not in [0, 1).
        FormatError: a label is not the index of a class.
    """
    if method not in ("inverse", "effective"):
        raise refusal("method", "inverse or effective", repr(method))
    if not 0 <= beta < 1:
        raise refusal("beta", "in [0, 1)", beta)
    _check_field(split, field, LabelField, LabelsField)
    classes = len(split.fields[field].classes)
    if isinstance(split.fields[field], LabelsField):
        numbers = checked_numbers(split, field, rows)
        pieces = [numbers[first : first + _PIECE] for first in range(0, len(numbers), _PIECE)]
        counts = sum((_applying(piece).sum(axis=0) for piece in pieces), np.zeros(classes + 1, np.int64))
        weights = _weights(counts, method, beta)
        return np.concatenate([np.empty(0), *(_applying(piece) @ weights for piece in pieces)])
    labels = checked_labels(split.column(field), classes, f"{split.name}/{field}", least=UNLABELLED)
    labels = labels if rows is None else labels[checked_rows(rows, len(split), split.name)]
    known = labels != UNLABELLED
    weights = _weights(np.bincount(labels[known], minlength=1), method, beta)
    return np.where(known, weights[labels], 0.0)


def _applying(numbers: NDArray[np.int8]) -> NDArray[np.bool_]:
    """Return which classes apply, and whether none does, (n, C + 1), from the numbers (n, C) of a field `labels`."""
    applies = numbers > 0
    none = ~applies.any(axis=1) & (numbers == 0).all(axis=1)
    return np.concatenate([applies, none[:, None]], axis=1)


def _weights(counts: NDArray[np.int64], method: str, beta: float) -> NDArray[np.float64]:
    """Return the weight of each class. The weight of a class without samples is never used."""
    counts = counts.clip(1)
    return np.asarray(1 / counts if method == "inverse" else (1 - beta) / (1 - beta**counts), np.float64)


def repeat_factors(
    split: Split,
    *,
    threshold: float | None = None,
    method: Literal["image", "instance"] = "image",
    field: str = "objects",
    rows: ArrayLike | None = None,
) -> NDArray[np.float64]:
    """Compute how often to repeat every sample, from the rarest class among its objects or labels.

    A class c of frequency f_c has the factor r_c = max(1, sqrt(threshold / f_c)). A sample has the largest factor of
    its objects or labels, or 1 if it has none. ``WeightedSampler(factors, round(factors.sum()))`` shows each sample
    that often on average over epochs.

    >>> split = tsds.open("voc.tsds")["train"]  # all images have a cat, two have a dog
    >>> tsds.loading.repeat_factors(split, threshold=1.0).round(2).tolist()
    [1.0, 1.41, 1.0, 1.41]

    Args:
        split: split with objects that have labels, or with samples to which several classes can apply.
        threshold: frequency below which classes are repeated. LVIS uses 0.001. None takes the median of the
            frequencies, so that half of the classes are repeated.
        method: definition of f_c. With ``image``, it is the share of the samples that contain the class, as in repeat
            factor sampling (Gupta et al., LVIS, CVPR 2019). With ``instance``, it is the geometric mean of this share
            and the class's share of all objects or labels, as in instance-aware repeat factor sampling (Yaman et al.,
            arXiv:2305.08069, 2023). Choose ``instance`` if most samples contain most classes, but few objects are of
            the rare ones.
        field: name of the field of kind ``objects`` or ``labels``.
        rows: (n,) int64, rows of the split, such as a fold's. Only these samples are counted and get a factor. None
            takes all.

    Returns:
        (n,) float64, 1 or more.

    Raises:
        OptionError: the split has no such field whose objects have labels, or `threshold` is not in (0, 1].
        FormatError: a label is not the index of a class, or the table's offsets are damaged.

    Warns:
        UserWarning: all factors are 1, so that sampling by them changes nothing.
    """
    if method not in ("image", "instance"):
        raise refusal("method", "image or instance", repr(method))
    if threshold is not None and not 0 < threshold <= 1:
        raise refusal("threshold", "in (0, 1]", threshold)
    _check_field(split, field, ObjectsField, LabelsField)
    if isinstance(split.fields[field], LabelsField):
        owners, labels = np.nonzero((numbers := checked_numbers(split, field, rows)) > 0)
        samples, classes = numbers.shape
        return _factors(split.name, samples, owners, labels, classes, method, threshold)
    table = split.table(field)
    if "labels" not in table.values:
        found = ", ".join(table.values)
        raise OptionError(f"split {split.name!r}: expected objects with labels, found {found}. {ADVICE}")
    classes = len(table.field.classes)
    labels = checked_labels(table["labels"], classes, f"{split.name}/{field}/labels")
    starts, stops = table.offsets[:-1], table.offsets[1:]
    if rows is not None:
        chosen = checked_rows(rows, len(split), split.name)
        starts, stops = starts[chosen], stops[chosen]
        labels = labels[spans(starts, stops)]
    samples = len(starts)
    owners = np.repeat(np.arange(samples), stops - starts)
    return _factors(split.name, samples, owners, labels, classes, method, threshold)


def _factors(
    name: str,
    samples: int,
    owners: NDArray[np.int64],
    labels: NDArray[np.int64],
    classes: int,
    method: str,
    threshold: float | None,
) -> NDArray[np.float64]:
    """Compute `repeat_factors` from labels (m,) that belong to the samples `owners` (m,)."""
    present = np.unique(owners * classes + labels)  # each class of a sample once
    share = np.bincount(present % max(1, classes), minlength=classes) / max(1, samples)
    if method == "instance":
        share = np.sqrt(share * np.bincount(labels, minlength=classes) / max(1, len(labels)))
    if threshold is None:
        threshold = float(np.median(share[share > 0])) if share.any() else 1.0
    of_class = np.sqrt(np.maximum(1, threshold / np.where(share > 0, share, 1)))
    factors = np.ones(samples)
    np.maximum.at(factors, owners, of_class[labels])
    if len(labels) and factors.max() == 1:
        line = f"split {name!r}: all repeat factors are 1, because no class is rarer than {threshold:g}. "
        other = 'method="instance" or a larger ' if method == "image" else "a larger "
        warnings.warn(f"{line}Sampling by them changes nothing: use {other}`threshold`.", stacklevel=3)
    return factors


def weights_from_column(split: Split, name: str) -> NDArray[np.float64]:
    """Return the field `name`, which has one number for each row, as weights, (n,) float64. They are a copy.

    >>> _ = tsds.editing.add_fields("photos.tsds", {"loss": np.arange(12.0)})
    >>> tsds.loading.weights_from_column(tsds.open("photos.tsds")["train"], "loss").tolist()
    [0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0]

    Raises:
        OptionError: there is no such field, or it has more than one number for each row.
        ValueError: a weight is negative or not finite, or none is positive.
    """
    _check_field(split, name, Field)
    column = split[name]
    if not isinstance(column, Column) or column.spec.shape:
        found = f"rows of shape {column.spec.shape}" if isinstance(column, Column) else "a table"
        raise OptionError(f"{split.name}/{name}: expected one number a row, found {found}. {ADVICE}")
    return checked_weights(column, f"{split.name}/{name}").astype(np.float64)


def checked_weights(weights: ArrayLike, where: str = "weights") -> NDArray[Any]:
    """Return `weights` as an array, without a copy if possible. Raises ValueError if rows cannot be drawn by them."""
    array = np.asarray(weights)
    if array.ndim != 1 or array.dtype.kind not in "buif":
        raise ValueError(f"{where}: expected numbers of shape (n,), found {array.dtype} of shape {array.shape}.")
    with np.errstate(over="ignore"):
        total = array.sum(dtype=np.float64)  # NaN and infinity remain in a sum
    if array.size and not (array.min() >= 0 and np.isfinite(total)):
        bad = np.flatnonzero(~((array >= 0) & np.isfinite(array)))
        found = f"{array[bad[0]]} in row {bad[0]}" if bad.size else "a sum that is not"
        raise ValueError(f"{where}: expected numbers that are finite and not negative, found {found}.")
    if not total > 0:
        raise ValueError(f"{where}: expected one positive number or more, found none in {array.size}.")
    return array


def _check_field(split: Split, name: str, *kinds: type[Field]) -> None:
    if not isinstance(split.fields.get(name), kinds):
        named = " or ".join(kind.kind for kind in kinds if kind is not Field)
        expected = f"a field {name!r}" + (f" of kind {named}" if named else "")
        found = ", ".join(f"{other} ({field.kind})" for other, field in split.fields.items())
        advice = ADVICE
        if several := of_kind(split.fields, LabelsField):
            advice = f"Use `field={next(iter(several))!r}`."
        elif LabelField in kinds and of_kind(split.fields, ObjectsField):
            advice = "Use repeat_factors to weight samples by their objects."
        raise OptionError(f"split {split.name!r}: expected {expected}, found {found or 'none'}. {advice}")


def checked_numbers(split: Split, name: str, rows: ArrayLike | None = None) -> NDArray[np.int8]:
    """Return the checked numbers (n, C) of a field `labels`, each 1, 0 or -1, because `open` does not check them."""
    column = split.column(name)
    numbers = np.asarray(column) if rows is None else column.take(checked_rows(rows, len(split), split.name))
    if numbers.size and not -1 <= numbers.min() <= numbers.max() <= 1:
        message = f"expected 1, 0 or -1 for each class, found {numbers.min()} to {numbers.max()}."
        raise FormatError(Problem(f"{split.name}/{name}", "label-range", message), "Convert again.")
    return numbers


def checked_labels(column: Column, classes: int, where: str, *, least: int = 0) -> NDArray[np.int64]:
    """Return all labels of a column, each in [least, classes). `open` does not check them, and indexing would wrap."""
    labels = np.asarray(column)
    if labels.size and not least <= labels.min() <= labels.max() < classes:
        message = f"expected labels in [{least}, {classes}), found {labels.min()} to {labels.max()}."
        raise FormatError(Problem(where, "label-range", message), "Convert again.")
    return labels
