"""What a copy has received, in a file that each change is written to, so that a killed process leaves all of it.

For each file of the copy, it has the first bytes of its SHA-256 if it was compared and synced, then a byte for each
`UNIT_NBYTES`, which is set after they were written. After a power loss they may still be missing, as the SHA-256 shows.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from itertools import accumulate, pairwise
from threading import Lock

import numpy as np

from tensorstore_ds.format.manifest import File

UNIT_NBYTES = 128 * 1024
_STAMP = 8  # bytes of a SHA-256


class Received:
    """The record of one copy of these files, in a file that is open for reading and writing."""

    def __init__(self, descriptor: int, files: Mapping[str, File]) -> None:
        self._descriptor, self._files, self._lock = descriptor, files, Lock()
        counts = [_STAMP + -(-file.size // UNIT_NBYTES) for file in files.values()]
        ends = list(accumulate(counts, initial=0))
        with open(descriptor, "rb", closefd=False) as file:
            found = np.frombuffer(bytearray(file.read(ends[-1]).ljust(ends[-1], b"\0")), np.uint8)
        self._begins = dict(zip(files, ends, strict=False))
        self._of = {name: found[start:stop] for name, (start, stop) in zip(files, pairwise(ends), strict=True)}

    def is_whole(self, name: str) -> bool:
        """Whether an earlier run has checked and synced a file."""
        return self._of[name][:_STAMP].tobytes() == self._stamp(name)

    def missing(self, name: str) -> list[tuple[int, int]]:
        """The parts ``[start, stop)`` of a file that no run has received, in order."""
        edges = np.flatnonzero(np.diff(self._of[name][_STAMP:] == 0, prepend=False, append=False)) * UNIT_NBYTES
        return [(start, stop) for start, stop in edges.clip(max=self._files[name].size).reshape(-1, 2).tolist()]

    def add(self, name: str, start: int, stop: int) -> None:
        """Record that these bytes are in place."""
        last = stop + UNIT_NBYTES - 1 if stop == self._files[name].size else stop
        first, last = _STAMP - -start // UNIT_NBYTES, _STAMP + last // UNIT_NBYTES
        self._write(name, first, b"\1" * (last - first))

    def add_whole(self, name: str) -> None:
        """Record that a file is checked and synced."""
        self._write(name, 0, self._stamp(name))

    def forget(self, name: str) -> None:
        """Record that no byte of a file is valid."""
        self._write(name, 0, bytes(len(self._of[name])))

    def close(self) -> None:
        """Close the file; a late thread then fails, and writes into no other file."""
        with self._lock:
            os.close(self._descriptor)
            self._descriptor = -1

    def _write(self, name: str, first: int, data: bytes) -> None:
        self._of[name][first : first + len(data)] = np.frombuffer(data, np.uint8)
        with self._lock:
            os.lseek(self._descriptor, self._begins[name] + first, os.SEEK_SET)
            os.write(self._descriptor, data)

    def _stamp(self, name: str) -> bytes:
        return bytes.fromhex(self._files[name].sha256)[:_STAMP]
