"""Find rows by their keys, in 16 bytes per row: sorted 8-byte hashes, and the row of each.

Hashes only narrow the search. Keys are equal if their bytes are.
"""

from __future__ import annotations

import functools
import hashlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol, Self

import numpy as np
from numpy.typing import NDArray

from tensorstore_ds.machine import memory_limit

#: Keys and their bytes that are read at a time.
_ROWS, _NBYTES = 8192, 256 * 1024
#: Longer keys are hashed one by one.
_LONG = 4096
#: Bytes per row of an index: its hash and its number.
_ROW_NBYTES = 16
#: Smaller indices are never divided.
_LEAST_ROWS = 1_000_000


class KeyTable(Protocol):
    """Stored keys, back to back."""

    @property
    def offsets(self) -> NDArray[np.int64]:
        """Offsets (n + 1,): key i has the bytes ``[offsets[i], offsets[i + 1])``."""

    def __len__(self) -> int: ...
    def __getitem__(self, name: str, /) -> KeyBytes: ...


class KeyBytes(Protocol):
    """The bytes of stored keys."""

    def __getitem__(self, part: slice, /) -> NDArray[np.uint8]: ...
    def take(self, places: NDArray[np.int64], /) -> NDArray[np.uint8]:
        """Return the bytes at these positions."""


@dataclass(frozen=True)
class Keys:
    """Some keys: their bytes back to back, and offsets (n + 1,) int64 that begin with 0."""

    data: NDArray[np.uint8]
    offsets: NDArray[np.int64]

    @classmethod
    def of(cls, keys: list[bytes]) -> Self:
        """Create keys from a list."""
        offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum([len(key) for key in keys], dtype=np.int64)])
        return cls(np.frombuffer(b"".join(keys), np.uint8), offsets)

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, i: int) -> bytes:
        return self.data[self.offsets[i] : self.offsets[i + 1]].tobytes()


def key_pieces(table: KeyTable) -> Iterator[tuple[int, Keys]]:
    """Yield all keys in pieces, each with the row of the first."""
    offsets, start, count = table.offsets, 0, len(table)
    while start < count:
        ends = offsets[start : start + _ROWS + 1]
        stop = start + max(1, int(np.searchsorted(ends, ends[0] + _NBYTES, "right")) - 1)
        ends = offsets[start : stop + 1] - offsets[start]
        yield start, Keys(table["bytes"][int(offsets[start]) : int(offsets[stop])], ends)
        start = stop


def hashed(keys: Keys) -> NDArray[np.uint64]:
    """Return a hash of each key, (n,). Hashes differ in each process, so that nobody can construct collisions."""
    lengths = np.diff(keys.offsets)
    sums = np.zeros(len(keys), np.uint64)
    long = np.flatnonzero(lengths > _LONG).tolist()
    if len(long) < len(keys):
        places = np.arange(len(keys.data)) - np.repeat(keys.offsets[:-1], lengths)
        products = _factors().take(places, mode="clip")
        products *= keys.data + np.uint64(1)  # so that no key equals another one with zeros at its end
        ends = np.concatenate([np.zeros(1, np.uint64), np.cumsum(products, dtype=np.uint64)])
        sums = np.diff(ends[keys.offsets])
        sums ^= sums >> np.uint64(32)
        sums *= np.uint64(0x9E3779B97F4A7C15)
        sums ^= sums >> np.uint64(29)
    for i in long:
        digest = hashlib.blake2b(keys[i], digest_size=8, key=_factors()[:8].tobytes()).digest()
        sums[i] = int.from_bytes(digest, "little")
    return sums


@functools.cache
def _factors() -> NDArray[np.uint64]:
    """Return a random number per position in a key. Any two keys have the same hash with probability 2^-57."""
    return np.frombuffer(os.urandom(8 * _LONG), np.uint64)


class KeyIndex:
    """Find the rows of a table of keys, only those whose hashes are in part number `part` of `parts`."""

    def __init__(self, table: KeyTable, part: int = 0, parts: int = 1) -> None:
        self._table = table
        if parts == 1:
            self._hashes = np.empty(len(table), np.uint64)
            for start, keys in key_pieces(table):
                self._hashes[start : start + len(keys)] = hashed(keys)
            self._rows = self._hashes.argsort()
        else:
            hashes, rows = [np.empty(0, np.uint64)], [np.empty(0, np.int64)]
            for start, keys in key_pieces(table):
                found = hashed(keys)
                chosen = np.flatnonzero(found % np.uint64(parts) == part)
                hashes.append(found[chosen])
                rows.append(start + chosen)
            self._hashes, self._rows = np.concatenate(hashes), np.concatenate(rows)
            self._rows = self._rows[self._hashes.argsort()]
        self._hashes.sort()

    def find(self, keys: Keys) -> NDArray[np.int64]:
        """Return the row of each key, (m,), or -1."""
        wanted, found = hashed(keys), np.full(len(keys), -1, np.int64)
        left, places = np.arange(len(keys)), np.searchsorted(self._hashes, wanted)
        while len(left):  # once, except for keys that share a hash
            same = self._hashes.take(places, mode="clip") == wanted[left] if len(self._hashes) else places < 0
            same &= places < len(self._hashes)
            left, places = left[same], places[same]
            rows = self._rows[places]
            equal = self._equal(rows, keys, left)
            found[left[equal]] = rows[equal]
            left, places = left[~equal], places[~equal] + 1
        return found

    def _equal(self, rows: NDArray[np.int64], keys: Keys, places: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return whether rows have the bytes of the keys at these positions."""
        starts, lengths = self._table.offsets[rows], np.diff(keys.offsets)[places]
        equal: NDArray[np.bool_] = self._table.offsets[rows + 1] - starts == lengths
        starts, lengths, own = starts[equal], lengths[equal], keys.offsets[places][equal]
        if not len(starts):
            return equal
        ends = np.cumsum(lengths)
        if _are_runs(starts, lengths) and _are_runs(own, lengths):
            theirs = self._table["bytes"][int(starts[0]) : int(starts[0] + ends[-1])]
            ours = keys.data[own[0] : own[0] + ends[-1]]
        else:
            shift = np.arange(ends[-1]) - np.repeat(ends - lengths, lengths)
            theirs = self._table["bytes"].take(shift + np.repeat(starts, lengths))
            ours = keys.data[shift + np.repeat(own, lengths)]
        wrong = np.concatenate([np.zeros(1, np.int64), np.cumsum(theirs != ours)])
        equal[equal] = wrong[ends] == wrong[ends - lengths]
        return equal

    def first_repeated(self) -> tuple[int, int] | None:
        """Return the row of the first repeated key, after the row of its first occurrence, or None if all differ."""
        found: tuple[int, int] | None = None
        for start, stop in self._runs():
            rows = np.sort(self._rows[start:stop]).tolist()
            seen: dict[bytes, int] = {}
            for row in rows:
                if found is not None and row > found[1]:
                    break
                begin, end = self._table.offsets[row : row + 2].tolist()
                first = seen.setdefault(self._table["bytes"][begin:end].tobytes(), row)
                if first != row:
                    found = first, row
                    break
        return found

    def _runs(self) -> Iterator[tuple[int, int]]:
        """Yield the ranges of hashes that several rows share."""
        stop = 0
        for start in range(0, len(self._hashes), _ROWS):
            piece = self._hashes[start : start + _ROWS + 1]
            for place in (start + np.flatnonzero(piece[1:] == piece[:-1])).tolist():
                if place >= stop:
                    stop = int(np.searchsorted(self._hashes, self._hashes[place], "right"))
                    yield place, stop


def _are_runs(starts: NDArray[np.int64], lengths: NDArray[np.int64]) -> bool:
    """Whether the keys are consecutive."""
    return bool((starts[:-1] + lengths[:-1] == starts[1:]).all())


def repeated_key(table: KeyTable) -> tuple[int, int] | None:
    """Find a repeated key like `KeyIndex.first_repeated`, in parts that fit into memory."""
    nbytes = 2 * _ROW_NBYTES * len(table)
    parts = 1 if len(table) <= _LEAST_ROWS or nbytes <= memory_limit() else -(-nbytes // max(1, memory_limit() // 2))
    parts = min(parts, -(-len(table) // _LEAST_ROWS))
    found = (KeyIndex(table, part, parts).first_repeated() for part in range(parts))
    return min((each for each in found if each is not None), key=lambda each: each[1], default=None)
