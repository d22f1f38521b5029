"""Pairs of hashes that differ in few bits, all of them; and the groups that pairs make."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import combinations, pairwise

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
    """Pairs of hashes, (m, 2) numbers, the smaller one first, each pair once and in order.

    `crowded` is the number of hashes in buckets too large to compare all of them with each other.
    """

    pairs: Pairs
    crowded: int = 0


def near_pairs(hashes: NDArray[np.uint64], distance: int, *, most: int = MOST) -> Found:
    """All pairs of hashes (n,) that differ in at most `distance` bits.

    By the pigeonhole principle, two such hashes differ in at most `distance` bands of bits: only those that agree in
    all the others are compared. If more than 32 hashes are equal, each is paired with the first one only.
    """
    order = np.argsort(hashes, kind="stable")
    unique, starts, counts = np.unique(hashes[order], return_index=True, return_counts=True)
    count, crowded = len(unique), 0
    found = [np.flatnonzero(counts > 1) * (count + 1)]  # those that are equal; a pair is first * count + second
    for mask in _masks(distance, count):
        by_band = np.argsort(unique & mask, kind="stable")
        values = unique[by_band]
        alive = np.arange(count - 1)
        for step in range(1, count):
            differing = values[alive] ^ values[alive + step]
            in_bucket = differing & mask == 0
            alive, differing = alive[in_bucket], differing[in_bucket]
            if step > most and len(alive):
                crowded = max(crowded, len(alive) + most)
                break
            near = alive[np.bitwise_count(differing) <= distance]
            first, second = by_band[near], by_band[near + step]
            found.append(np.minimum(first, second) * count + np.maximum(first, second))
            alive = alive[: alive.searchsorted(count - 1 - step)]
            if not len(alive):
                break
    of_unique = np.stack(np.divmod(np.unique(np.concatenate(found)), count), axis=1)
    return Found(_expanded(of_unique, order, starts, counts), crowded)


def _masks(distance: int, count: int) -> list[np.uint64]:
    """Masks of bits, such that two hashes within `distance` bits agree in all bits of one of the masks.

    More bands make more masks, each of more bits. Their number minimizes the time to search `count` hashes: a sort for
    each mask, and a comparison with half of the hashes of a bucket, which takes as long as 3 of the sort's steps.
    """

    def cost(bands: int) -> float:
        bits = _BITS * (bands - distance) / bands
        return math.comb(bands, distance) * (math.log2(count + 1) + 1.5 * count / 2**bits)

    bands = min(range(distance + 1, distance + 6), key=cost)
    edges = np.linspace(0, _BITS, bands + 1).round().astype(int).tolist()
    of_bands = [(1 << high) - (1 << low) for low, high in pairwise(edges)]
    return [np.uint64(sum(some)) for some in combinations(of_bands, bands - distance)]


def _expanded(pairs: Pairs, order: NDArray[np.int64], starts: NDArray[np.int64], counts: NDArray[np.int64]) -> Pairs:
    """Expand pairs of unique hashes to samples: hash i has `counts[i]` of them, in `order` from `starts[i]`."""
    single = (counts[pairs] == 1).all(axis=1)
    expanded = [order[starts[pairs[single]]]]
    for u, v in pairs[~single].tolist():
        a, b = (order[starts[i] :][: counts[i] if counts[i] <= _EQUAL else 1] for i in (u, v))
        if u == v and counts[u] > _EQUAL:
            b = order[starts[u] + 1 :][: counts[u] - 1]
        expanded.append(np.stack(np.meshgrid(a, b), axis=-1).reshape(-1, 2))
    every = np.sort(np.concatenate(expanded), axis=1)
    return np.unique(every[every[:, 0] != every[:, 1]], axis=0).reshape(-1, 2)


def mirrored_pairs(hashes: NDArray[np.uint64], mirrored: NDArray[np.uint64], distance: int) -> Found:
    """All pairs of a hash (n,) and the hash of another mirror image (n,) that differ in at most `distance` bits."""
    n = len(hashes)
    found = near_pairs(np.concatenate([hashes, mirrored]), distance)
    first, second = found.pairs.T
    across = (first < n) & (second >= n) & (first != second - n)
    pairs = np.sort(np.stack([first[across], second[across] - n], axis=1), axis=1)
    return Found(np.unique(pairs, axis=0).reshape(-1, 2), found.crowded)


def components(n: int, pairs: Pairs) -> NDArray[np.int64]:
    """(n,) the smallest of n numbers that a chain of pairs (m, 2) connects each number with."""
    smallest = np.arange(n)
    while len(pairs):
        roots = smallest[pairs]
        pairs = pairs[roots[:, 0] != roots[:, 1]]
        roots = np.sort(smallest[pairs], axis=1)
        np.minimum.at(smallest, roots[:, 1], roots[:, 0])
        while not np.array_equal(further := smallest[smallest], smallest):  # until each points to its root
            smallest = further
    return smallest
