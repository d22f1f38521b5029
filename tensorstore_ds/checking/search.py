"""Pairs of hashes that differ in few bits, all of them; and the groups that pairs make."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

_BITS = 64
#: In a band's bucket of more hashes, each is compared with so many that come after it.
MOST = 4096
#: Of equal hashes so many are paired with each other; more only with the first one.
_EQUAL = 32

Pairs = NDArray[np.int64]


@dataclass(frozen=True)
class Found:
    """Pairs of hashes.

    Attributes:
        pairs: (m, 2) numbers of hashes, the smaller one first, each pair once, in order.
        crowded: how many hashes lie in buckets so large that not all of them were compared with each other.
    """

    pairs: Pairs
    crowded: int = 0


def near_pairs(hashes: NDArray[np.uint64], distance: int, *, most: int = MOST) -> Found:
    """All pairs of hashes (n,) that differ in at most so many bits.

    By the pigeonhole principle two such hashes agree in one of `distance` + 1 bands of bits: only those that agree in a
    band are compared. Of more than 32 equal hashes each is paired with the first one alone.

    Args:
        most: see `MOST`.
    """
    order = np.argsort(hashes, kind="stable")
    unique, starts, counts = np.unique(hashes[order], return_index=True, return_counts=True)
    found = [np.repeat(np.flatnonzero(counts > 1), 2).reshape(-1, 2)]  # those that are equal
    crowded = 0
    edges = np.linspace(0, _BITS, distance + 2).round().astype(int).tolist()
    for low, high in pairwise(edges):
        band = (unique >> np.uint64(low)) & np.uint64((1 << (high - low)) - 1)
        by_band = np.argsort(band, kind="stable")
        values, sorted_band = unique[by_band], band[by_band]
        alive = np.arange(len(values))
        for step in range(1, len(values)):
            alive = alive[alive + step < len(values)]
            alive = alive[sorted_band[alive] == sorted_band[alive + step]]
            if not len(alive):
                break
            if step > most:
                crowded = max(crowded, len(alive) + most)
                break
            near = alive[np.bitwise_count(values[alive] ^ values[alive + step]) <= distance]
            if len(near):
                found.append(np.stack([by_band[near], by_band[near + step]], axis=1))
    of_unique = np.unique(np.sort(np.concatenate(found), axis=1), axis=0)
    members = [order[a : a + n] for a, n in zip(starts.tolist(), counts.tolist(), strict=True)]
    return Found(_expanded(of_unique, members, counts, order[starts]), crowded)


def _expanded(
    pairs: Pairs, members: list[NDArray[np.int64]], counts: NDArray[np.int64], firsts: NDArray[np.int64]
) -> Pairs:
    """Pairs of hashes, from those of unique hashes."""
    single = (counts[pairs] == 1).all(axis=1)
    expanded = [firsts[pairs[single]]]
    for u, v in pairs[~single].tolist():
        a, b = (members[each] if counts[each] <= _EQUAL else members[each][:1] for each in (u, v))
        if u == v and counts[u] > _EQUAL:
            b = members[u][1:]
        expanded.append(np.stack(np.meshgrid(a, b), axis=-1).reshape(-1, 2))
    every = np.sort(np.concatenate(expanded), axis=1)
    return np.unique(every[every[:, 0] != every[:, 1]], axis=0).reshape(-1, 2)


def mirrored_pairs(
    hashes: NDArray[np.uint64], mirrored: NDArray[np.uint64], distance: int, *, most: int = MOST
) -> Found:
    """All pairs of a hash (n,) and another's mirror image (n,) that differ in at most so many bits."""
    n = len(hashes)
    found = near_pairs(np.concatenate([hashes, mirrored]), distance, most=most)
    first, second = found.pairs.T
    across = (first < n) & (second >= n) & (first != second - n)
    pairs = np.sort(np.stack([first[across], second[across] - n], axis=1), axis=1)
    return Found(np.unique(pairs, axis=0).reshape(-1, 2), found.crowded)


def components(n: int, pairs: Pairs) -> NDArray[np.int64]:
    """(n,) for each of n numbers the smallest one that a chain of pairs (m, 2) connects it with."""
    smallest = np.arange(n)
    while len(pairs):
        roots = smallest[pairs]
        pairs = pairs[roots[:, 0] != roots[:, 1]]
        roots = np.sort(smallest[pairs], axis=1)
        np.minimum.at(smallest, roots[:, 1], roots[:, 0])
        while not np.array_equal(further := smallest[smallest], smallest):  # until each points to its root
            smallest = further
    return smallest
