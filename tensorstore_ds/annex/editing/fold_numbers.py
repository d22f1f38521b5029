"""Divide rows, or groups of rows, into folds of equal size and equal shares of classes.

Each row or group has a home: a fold that follows from its hash alone. It moves to a different fold only if its home is
full. So most rows stay in their fold when a store grows, and their order does not matter.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tensorstore_ds.seeding import Bits, fold

Ints = NDArray[np.int64]
#: Groups are divided to within this fraction of an even division: without it, many more move when a store grows.
SLACK = 0.02
#: Rows that are divided together.
_ROWS = 10_000
#: Passes over all groups in which a group moves to a different fold if that makes the folds more even.
_SWEEPS = 8


def divide_rows(bits: Bits, strata: Ints, k: int) -> Ints:
    """The fold of each row, (n,) in [0, k), from its hash and its stratum, (n,) from 0.

    Two folds differ by at most 1 in their rows of each stratum, and by at most 1 in all rows.
    """
    counts = np.bincount(strata)
    wanted = np.zeros((counts.size, k), np.int64)  # rows whose home is each fold
    step = max(_ROWS, wanted.size)
    for start in range(0, len(bits), step):
        part = slice(start, start + step)
        slots = strata[part] * k + _homes(bits[part], k)
        wanted += np.bincount(slots, minlength=wanted.size).reshape(-1, k)
    room = np.repeat(counts[:, None] // k, k, axis=1)
    more = np.zeros(k, np.int64)  # rows of a fold beyond those that all folds have
    for stratum in np.flatnonzero(counts % k):
        chosen = np.lexsort((-wanted[stratum], more))[: counts[stratum] % k]  # the smallest folds: `more` differs by 1
        room[stratum, chosen] += 1
        more[chosen] += 1
    if counts.size == 1:
        return _filled(bits, strata, room[0], k).astype(np.int64)
    found, order = np.empty(len(bits), np.int64), np.argsort(strata, kind="stable")
    ends = np.cumsum(counts)
    first = 0
    while first < counts.size:  # strata with so many rows together, or one that has more
        start = int(ends[first] - counts[first])
        last = max(first + 1, int(np.searchsorted(ends, start + _ROWS, "right")))
        rows = order[start : ends[last - 1]]
        found[rows] = _filled(bits[rows], strata[rows] - first, room[first:last].ravel(), k)
        first = last
    return found


def _homes(bits: Bits, k: int) -> Ints:
    """The home of each row or group, (n,) in [0, k)."""
    return (bits % np.uint64(k)).astype(np.int64)


def _filled(bits: Bits, strata: Ints, free: Ints, k: int) -> NDArray[np.integer[Any]]:
    """The fold of each row, which is its home or the next one with room for its stratum."""
    small = np.int32 if max(len(bits), free.size) < 2**31 else np.int64
    found, left = np.empty(len(bits), np.min_scalar_type(k)), np.arange(len(bits), dtype=small)
    slots = (strata * k + _homes(bits, k)).astype(small)
    others = np.empty((0, k), np.int64)
    for attempt in range(k + 1):
        order = np.lexsort((bits[left], slots))
        counts = np.bincount(slots, minlength=free.size)
        taken = np.minimum(counts, free)  # the first of each slot
        fits = np.repeat(np.tile([True, False], free.size), np.stack([taken, counts - taken], 1).ravel())
        free -= taken
        kept, order = order[~fits], order[fits]
        found[left[order]] = slots[order] % k
        left = left[kept]
        if not len(left):
            break
        others = _others(bits[left], k) if attempt == 0 else others[kept]
        slots = (strata[left] * k + others[:, attempt]).astype(small)
    return found


def _others(bits: Bits, k: int) -> Ints:
    """All folds in the order in which each row or group tries them after its home, (n, k)."""
    return np.argsort(fold(bits[:, None], np.arange(k, dtype=np.uint64)), axis=1)


@dataclass(frozen=True)
class Members:
    """Samples or objects of each class in each group, as a sparse table.

    The entries of a group begin at `starts`, (groups + 1,). `classes` and `counts` are (entries,).
    """

    starts: Ints
    classes: Ints
    counts: Ints

    @classmethod
    def of(cls, groups: Ints, classes: Ints, number: int) -> Members:
        """Count the classes, (m,), of samples or objects in groups, (m,) in [0, number)."""
        width = int(classes.max(initial=0)) + 1
        entries, counts = np.unique(groups * width + classes, return_counts=True)
        return cls(np.searchsorted(entries, np.arange(number + 1) * width), entries % width, counts)


def divide_groups(bits: Bits, sizes: Ints, members: Members, k: int) -> Ints:
    """The fold of each group, (g,) in [0, k), so that folds are even in rows and in each class.

    A greedy form of iterative stratification (Sechidis, Tsoumakas and Vlahavas, On the stratification of multi-label
    data, ECML PKDD 2011): large groups first, and among equally large ones those with the rarest class. A group takes
    its home if the load there stays within `SLACK` of 1/k of each of its classes and of the rows. Otherwise it takes
    the fold with the least of its classes. At last, groups of classes that are not yet even move as long as the sum
    over classes of squared loads, divided by 1/k of the class, becomes smaller. Empty `members` balance `sizes`, the
    rows of each group, alone.
    """
    rows = int(members.classes.max(initial=-1)) + 1  # one more class: all rows
    number = len(sizes)
    totals = np.append(np.bincount(members.classes, members.counts, rows), sizes.sum()).astype(np.float64)
    rarity = np.full(number, totals[rows])
    np.minimum.at(rarity, np.repeat(np.arange(number), np.diff(members.starts)), totals[members.classes])
    quota = np.maximum(totals / k, 1e-9)
    limit, least = np.maximum(np.ceil(quota), quota * (1 + SLACK)), np.minimum(np.floor(quota), quota * (1 - SLACK))
    load = np.zeros((rows + 1, k))
    homes, others = _homes(bits, k).tolist(), _others(bits, k)
    found = np.empty(number, np.int64)
    has = [np.append(members.classes[a:b], rows) for a, b in zip(members.starts, members.starts[1:], strict=False)]
    of = [np.append(members.counts[a:b], s) for a, b, s in zip(members.starts, members.starts[1:], sizes, strict=False)]
    order = np.lexsort((bits, rarity, -np.floor(np.log2(sizes)))).tolist()
    for place, group in enumerate(order):
        classes, counts, chosen = has[group], of[group], homes[group]
        empty = np.flatnonzero(load[rows] == 0)
        if number - place <= len(empty):  # each of the last groups fills an empty fold
            chosen = int(empty[0])
        elif (load[classes, chosen] + counts > limit[classes]).any():
            filled = (counts / quota[classes]) @ load[classes]
            chosen = others[group][filled[others[group]].argmin()]
        load[classes, chosen] += counts
        found[group] = chosen
    for _ in range(_SWEEPS):
        moved = False
        for group in reversed(order):
            classes, counts, now = has[group], of[group], found[group]
            is_even = (load[classes, now] <= limit[classes]) & (load[classes].min(1) >= least[classes])
            if is_even.all() or load[rows, now] == sizes[group]:  # the fold would become empty
                continue
            change = (counts / quota[classes]) @ (load[classes] - load[classes, now, None] + counts[:, None])
            change[now] = 0
            best = int(change.argmin())
            if change[best] < -1e-9:
                load[classes, now] -= counts
                load[classes, best] += counts
                found[group], moved = best, True
        if not moved:
            break
    return found
