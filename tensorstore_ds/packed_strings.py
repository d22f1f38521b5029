"""Keep millions of strings in little memory."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, islice, pairwise
from typing import Any, overload

_PACK = 1 << 12  # strings that are packed at a time


def place_of(texts: Sequence[str], text: str) -> int:
    """The index of a text in a sorted sequence; -1 if it is missing.

    >>> place_of(["a", "b"], "b"), place_of(["a", "b"], "c")
    (1, -1)
    """
    i = bisect_left(texts, text)
    return i if i < len(texts) and texts[i] == text else -1


class PackedStrings(Sequence[str]):
    """Append-only strings, back to back in one buffer: a million paths take about 50 MB.

    >>> PackedStrings(["a", "bc", "d"])[1:]
    ['bc', 'd']
    """

    __slots__ = ("_bytes", "_offsets")

    def __init__(self, strings: Iterable[str] = ()) -> None:
        self._bytes = bytearray()
        self._offsets = array("q", [0])
        self.extend(strings)

    @classmethod
    def of(cls, data: Any, offsets: Any) -> PackedStrings:
        """Read-only strings in two buffers: UTF-8 back to back, and int64 offsets of each and of the end."""
        made = cls()
        made._bytes, made._offsets = data, offsets
        return made

    @property
    def buffers(self) -> tuple[bytearray, array[int]]:
        """Views of the two buffers that `of` takes."""
        return self._bytes, self._offsets

    def extend(self, strings: Iterable[str]) -> None:
        """Add strings at the end."""
        remaining = iter(strings)
        # surrogates stand for the bytes of file names that are not UTF-8
        while batch := [text.encode("utf-8", "surrogateescape") for text in islice(remaining, _PACK)]:
            self._offsets.extend(islice(accumulate(map(len, batch), initial=len(self._bytes)), 1, None))
            self._bytes += b"".join(batch)

    def append(self, text: bytes) -> None:
        """Add a string at the end, given as its bytes."""
        self._bytes += text
        self._offsets.append(len(self._bytes))

    def __len__(self) -> int:
        return len(self._offsets) - 1

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> list[str]: ...
    def __getitem__(self, index: int | slice) -> str | list[str]:
        if isinstance(index, slice):
            start, stop, step = index.indices(len(self))
            return self._between(start, stop) if step == 1 else [self[i] for i in range(start, stop, step)]
        i = index + len(self) if index < 0 else index
        if not 0 <= i < len(self):
            raise IndexError(f"expected an index in [0, {len(self)}), found {index}")
        return self._bytes[self._offsets[i] : self._offsets[i + 1]].decode("utf-8", "surrogateescape")

    def __iter__(self) -> Iterator[str]:
        for start in range(0, len(self), _PACK):
            yield from self._between(start, min(start + _PACK, len(self)))

    def _between(self, start: int, stop: int) -> list[str]:
        ends = pairwise(self._offsets[start : stop + 1])
        return [self._bytes[a:b].decode("utf-8", "surrogateescape") for a, b in ends]
