"""Random numbers that follow from words: the published generators, and what they promise."""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np
import pytest

from tensorstore_ds import native
from tensorstore_ds.seeding import IndexShuffle, fold, generator, shuffled, splitmix64, torch_seeds, uniforms


def test_splitmix64_is_the_published_one() -> None:
    # The first outputs of the reference implementation (Vigna, splitmix64.c) from the seed 1234567.
    states = np.uint64(1234567) + np.arange(1, 6, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    expected = [
        6457827717110365317,
        3203168211198807973,
        9817491932198370423,
        4593380528125082431,
        16408922859458223821,
    ]
    assert splitmix64(states).tolist() == expected


def test_uniforms_are_uniform_and_independent() -> None:
    # 4 epochs of 2,000 rows, 3 draws: chi-square of 64 cells, and correlations; fixed numbers, so no flakes.
    keys = np.stack([fold(1, epoch, np.arange(2000, dtype=np.uint64)) for epoch in range(4)])
    drawn = uniforms(keys.ravel(), 3)
    assert drawn.min() >= 0 and drawn.max() < 1
    counts = np.histogram(drawn, 64, (0, 1))[0]
    assert ((counts - drawn.size / 64) ** 2 / (drawn.size / 64)).sum() < 103  # the 0.1 % point of 63 degrees of freedom
    columns = np.concatenate([drawn.reshape(4, 2000, 3).transpose(0, 2, 1).reshape(12, 2000), drawn[1:2001, :1].T])
    correlations = np.corrcoef(columns) - np.eye(13)
    assert np.abs(correlations).max() < 4 / math.sqrt(2000)


def test_words_are_integers_or_arrays_and_count_modulo_2_64() -> None:
    rows = np.arange(5, dtype=np.uint64)
    assert fold(3, rows).tolist() == [int(fold(3, row)[0]) for row in range(5)]
    assert fold(-1, 2**64 + 7).tolist() == fold(2**64 - 1, 7).tolist()
    assert len({int(fold(*words)[0]) for words in ((), (0,), (0, 0), (0, 1), (1, 0))}) == 5


def test_seeds_for_torch_are_63_bits_and_do_not_change() -> None:
    # Runs that are resumed draw by these.
    assert torch_seeds(0) == [8147104208329303767]
    assert torch_seeds(1, 2, 3) == [3851293329796251419]
    assert all(0 <= seed < 2**63 for seed in torch_seeds(5, np.arange(1000, dtype=np.uint64)))


def test_a_generator_is_that_of_numpy_with_the_words_as_spawn_key() -> None:
    expected = np.random.default_rng(np.random.SeedSequence(7, spawn_key=(2, 5)))
    assert generator(7, 2, 5).random(4).tolist() == expected.random(4).tolist()


#: Around the powers of two, at which the mask of the numbers changes, and around the kernel's blocks of 256.
_LENGTHS = sorted({max(0, 2**power + more) for power in range(18) for more in (-1, 0, 1)} | {511, 513, 60_000})


@pytest.mark.parametrize("is_compiled", [False, True])
def test_an_order_is_shuffled_as_numpy_shuffles(is_compiled: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not is_compiled:
        monkeypatch.setattr(native, "core", None)
    elif not hasattr(native.core, "shuffle"):
        pytest.skip("no compiled kernel")
    words = [(seed, epoch, *stream) for seed in (0, 2**70) for epoch in (0, 100) for stream in ((), (3,))]
    for length, each in [*((length, each) for length in _LENGTHS for each in words), (1_281_167, (7, 2))]:
        seed, *key = each
        numbers = np.random.Generator(np.random.PCG64(np.random.SeedSequence(seed, spawn_key=key)))
        found = shuffled(length, *each)
        assert found.dtype == np.int64 and np.array_equal(found, numbers.permutation(length)), (length, each)


@pytest.mark.skipif(not hasattr(native.core, "shuffle"), reason="no compiled kernel")
def test_the_kernel_shuffles_no_other_buffers() -> None:
    buffer = np.zeros(33, np.uint8)
    for wrong in (buffer[:31], buffer[:33], buffer[1:] if buffer.ctypes.data % 8 == 0 else buffer[:32]):
        with pytest.raises(ValueError, match="shuffle: expected"):
            native.core.shuffle(wrong, 1, 2, 3, 5)
    for wrong in (np.zeros(8, np.int64)[::2], np.frombuffer(bytes(64), np.int64)):
        with pytest.raises((ValueError, BufferError, TypeError)):
            native.core.shuffle(wrong, 1, 2, 3, 5)
    assert not buffer.any()
    huge = np.lib.stride_tricks.as_strided(np.zeros(1, np.int64), (2**32 + 1,))  # never touched: it is too long
    with pytest.raises(ValueError, match="shuffle: expected"):
        native.core.shuffle(huge, 1, 2, 3, 5)


@pytest.mark.parametrize("sizes", [range(1, 300), [65_535, 65_536, 65_537, 999_983, 1_281_167]])
def test_an_index_shuffle_is_a_permutation(sizes: Iterable[int]) -> None:
    for size in sizes:
        images = IndexShuffle(size, generator(1, size))(np.arange(size))
        assert np.array_equal(np.bincount(images, minlength=size), np.ones(size))


@pytest.mark.parametrize("size", [2**31 + 11, 10**12])
def test_an_index_shuffle_of_very_many_needs_only_those_that_are_asked_for(size: int) -> None:
    shuffle = IndexShuffle(size, generator(0, 0))
    asked = np.unique(np.random.default_rng(0).integers(0, size, 50_000))
    images = shuffle(asked)
    assert len(np.unique(images)) == len(asked) and images.min() >= 0 and images.max() < size
    assert np.array_equal(shuffle(asked[::-7]), images[::-7])
    assert np.abs(np.bincount(images * 16 // size, minlength=16) / len(asked) - 1 / 16).max() < 0.006


@pytest.mark.parametrize("size", [4, 10, 1000, 20_000])
def test_an_index_shuffle_is_as_random_as_that_of_numpy(size: int) -> None:
    """Where a row goes, how far, and how far from the next one: chi-square of what is expected to be even."""
    repeats, cells = 300 if size < 20_000 else 60, min(size, 40)
    images = np.stack([IndexShuffle(size, generator(0, epoch))(np.arange(size)) for epoch in range(repeats)])
    moved, steps = (images - np.arange(size)) % size, np.diff(images, axis=1) % size
    for numbers, first in ((images[:, 0], 0), (images[:, -1], 0), (moved.ravel(), 0), (steps.ravel(), 1)):
        counts = np.bincount((numbers - first) * cells // (size - first), minlength=cells)
        expected = np.bincount(np.arange(size - first) * cells // (size - first), minlength=cells)
        expected = expected[: len(counts)] * (counts.sum() / expected.sum())
        used = expected > 0
        chi = ((counts[used] - expected[used]) ** 2 / expected[used]).sum()
        degrees = used.sum() - 1
        assert abs(chi - degrees) < 4.5 * math.sqrt(2 * degrees)
    below, above = images[:, :-1].ravel(), images[:, 1:].ravel()
    assert abs(np.corrcoef(below, above)[0, 1] + 1 / size) < 4.5 / math.sqrt(below.size)
