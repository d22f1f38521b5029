"""Derive random numbers from a seed and a position.

No generator has a running state. An order depends on (seed, epoch), an augmentation on (seed, epoch, row). A resumed
run therefore draws the same numbers, with any number of threads, processes and batches.

There are two ways. `generator` makes one NumPy generator for a whole sequence, such as the order of an epoch. `fold`
hashes words to 64 bits for many positions at once, such as every row of a batch.
"""

from __future__ import annotations

import math
import zlib

import numpy as np
from numpy.typing import NDArray

from tensorstore_ds import native

Bits = NDArray[np.uint64]

#: The step of SplitMix64: 2^64 divided by the golden ratio, odd.
GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_LOW64 = (1 << 64) - 1
#: With 4 rounds, statistics tell an `IndexShuffle` from a random permutation. With 6, none of ours does.
_ROUNDS = 6
#: Smallest base of an `IndexShuffle`: with smaller ones, a few rows would be mixed badly.
_LEAST_BASE = 8


def generator(seed: int, epoch: int, *stream: int) -> np.random.Generator:
    """A NumPy generator for an epoch.

    `stream` separates generators that must be independent, such as for different ranks. NumPy's SeedSequence mixes the
    words, so that neighboring seeds and epochs have nothing in common (O'Neill, Developing a seed_seq alternative,
    2015; PCG64 is the generator).
    """
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence(seed, spawn_key=(epoch, *stream))))


def shuffled(size: int, seed: int, epoch: int, *stream: int) -> NDArray[np.int64]:
    """Return the numbers below `size` as `generator` shuffles them, (size,) int64. A kernel draws the same numbers."""
    random = generator(seed, epoch, *stream)
    shuffle = getattr(native.core, "shuffle", None)
    if shuffle is None or size > 1 << 32:
        order = np.arange(size, dtype=np.int64)
        random.shuffle(order)
        return order
    order = np.empty(size, np.int64)
    state, step = random.bit_generator.state["state"].values()
    shuffle(order, state >> 64, state, step >> 64, step)
    return order


class IndexShuffle:
    """A random permutation of ``range(size)`` as a function of the index, for any part without the rest.

    The generalized Feistel network of Black and Rogaway (Ciphers with Arbitrary Finite Domains, CT-RSA 2002). An index
    is two digits, of bases whose product is a little more than `size`. Each half of a round adds a random function of
    one digit to the other, modulo its base. An index that leaves the range is mapped again until it is back (cycle
    walking). The functions are tables of about ``sqrt(size)`` numbers, which NumPy's generator draws.

    >>> IndexShuffle(10, generator(0, 0))(np.arange(10)).tolist()
    [0, 2, 1, 5, 8, 4, 9, 3, 7, 6]

    Args:
        size: number of indices, 1 or more.
        random: where the functions are drawn from.
    """

    def __init__(self, size: int, random: np.random.Generator) -> None:
        self.size = size
        left = max(_LEAST_BASE, math.isqrt(max(0, size - 1)) + 1)
        right = max(_LEAST_BASE, -(-size // left))
        self._bases = left, right
        self._functions = [random.integers(base, size=left + right - base) for base in self._bases * (_ROUNDS // 2)]

    def __call__(self, indices: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the images (n,) of indices (n,), int64."""
        images = self._mapped(indices)
        outside = np.flatnonzero(images >= self.size)
        while outside.size:
            images[outside] = again = self._mapped(images[outside])
            outside = outside[again >= self.size]
        return images

    def _mapped(self, indices: NDArray[np.int64]) -> NDArray[np.int64]:
        left = indices // self._bases[1]
        digits = left, indices - left * self._bases[1]
        for i, function in enumerate(self._functions):
            changed, base = digits[i % 2], self._bases[i % 2]
            changed += function.take(digits[1 - i % 2])
            bits = changed.view(np.uint64)  # of which the smaller is the remainder: a difference below 0 is huge
            np.minimum(bits, (changed - base).view(np.uint64), out=bits)
        return digits[0] * self._bases[1] + digits[1]


def fold(*words: int | Bits) -> Bits:
    """64 random bits for each tuple of words. Words are integers, modulo 2^64, or arrays of them that broadcast."""
    state: int | Bits = 0
    for word in words:
        if isinstance(state, int) and isinstance(word, int):  # ten times as quick as an array of one
            state = _splitmix64_of(state + int(GOLDEN) + word)
        else:
            before, word = (
                np.asarray([each & _LOW64] if isinstance(each, int) else each, np.uint64) for each in (state, word)
            )
            state = splitmix64(before + GOLDEN + word)
    return np.atleast_1d(np.asarray(state, np.uint64))


def torch_seeds(*words: int | Bits) -> list[int]:
    """`fold` as seeds for `torch.manual_seed`, of 63 bits and not negative."""
    seeds: list[int] = (fold(*words) >> np.uint64(1)).tolist()
    return seeds


class EachDraw(tuple[int, int]):
    """The (seed, epoch) of a sampler that draws rows several times. Random numbers then follow from `draws_of`."""


def draws_of(rows: NDArray[np.int64]) -> NDArray[np.int64]:
    """A number for each draw of a row in a batch of `rows`: it follows from the row, the batch and the place in it."""
    numbers = rows.view(np.uint64)
    return fold(zlib.crc32(numbers.tobytes()), np.arange(len(rows), dtype=np.uint64), numbers).view(np.int64)


def uniforms(keys: Bits, count: int) -> NDArray[np.float64]:
    """(B, count) numbers in [0, 1), of 53 bits each, from keys (B,) of `fold`."""
    steps = np.arange(1, count + 1, dtype=np.uint64)[:, None] * GOLDEN
    bits: Bits = splitmix64(steps + keys) >> np.uint64(11)
    return (bits.astype(np.float64) * 2.0**-53).T  # each of them in one piece, which is quicker to compute with


def splitmix64(state: Bits) -> Bits:
    """The output function of SplitMix64 (Steele, Lea and Flood, OOPSLA 2014; constants: Stafford's variant 13).

    A one-to-one map of 64 bits, in which every bit depends on every bit. For a seed, the generator's n-th output is
    ``splitmix64(seed + n * GOLDEN)``.
    """
    mixed = state ^ (state >> np.uint64(30))
    mixed *= np.uint64(0xBF58476D1CE4E5B9)
    mixed ^= mixed >> np.uint64(27)
    mixed *= np.uint64(0x94D049BB133111EB)
    mixed ^= mixed >> np.uint64(31)
    return mixed


def _splitmix64_of(state: int) -> int:
    """The same of one number, modulo 2^64."""
    state &= _LOW64
    state = (state ^ (state >> 30)) * 0xBF58476D1CE4E5B9 & _LOW64
    state = (state ^ (state >> 27)) * 0x94D049BB133111EB & _LOW64
    return state ^ (state >> 31)
