"""Splits that hold nothing of their own: ``trainval`` beside ``train`` and ``val``."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray


def find_unions(splits: Mapping[str, NDArray[np.int64]]) -> dict[str, tuple[str, ...]]:
    """The splits that are exactly what smaller splits hold together, each with the names of those.

    Two equal splits are no unions of each other: both stay.

    >>> rows = {"trainval": [1, 2, 3], "train": [1, 2], "val": [3], "test": [4]}
    >>> find_unions({name: np.array(n) for name, n in rows.items()})
    {'trainval': ('train', 'val')}

    Args:
        splits: the sample numbers of each split, (n,) int64, in any order.
    """
    sets = {name: np.unique(rows) for name, rows in splits.items()}
    unions: dict[str, tuple[str, ...]] = {}
    for name in sorted(sets, key=lambda n: (-len(sets[n]), n)):
        whole = sets[name]
        parts = tuple(n for n, part in sets.items() if n not in unions and _is_part(part, whole))
        if parts and np.array_equal(np.unique(np.concatenate([sets[n] for n in parts])), whole):
            unions[name] = parts
    return unions


def _is_part(part: NDArray[np.int64], whole: NDArray[np.int64]) -> bool:
    return 0 < len(part) < len(whole) and bool(np.isin(part, whole, assume_unique=True).all())
