"""Whether rows that are loaded repeatedly fit into memory, and which of their arrays to read without neighbors.

The system reads neighbors of a missing page with it, as many as the read-ahead of the disk, 128 KiB to 8 MiB. If all
rows fit into memory, this fills it quickly. Otherwise, the neighbors are dropped before they are used.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tensorstore_ds.machine import read_system_file
from tensorstore_ds.page_cache.residency import fit_surely, requirement
from tensorstore_ds.reading.columns import array_columns
from tensorstore_ds.reading.store import Split

#: Arrays that take less than this share of memory together keep the system's read-ahead, and so get into memory soon.
SMALL_SHARE = 1 / 8
#: Read-ahead of a disk that the system does not report: Linux's default.
_USUAL_READ_AHEAD = 128 * 1024


class Shortage(NamedTuple):
    """Rows that do not fit into memory."""

    nbytes: int  #: bytes that they bring into memory
    limit: int  #: bytes of memory for them


class Loaded(NamedTuple):
    """Some rows of a split that are loaded repeatedly."""

    split: Split
    fields: Sequence[str]
    rows: NDArray[np.int64] | None = None  #: (n,) in any order; None for all
    partly: Collection[str] = ()  #: fields of which a row is read only in part


def shortage(parts: Sequence[Loaded]) -> Shortage | None:
    """Return by how much rows do not fit into memory, with the neighbors that are read ahead, or None if they fit."""
    if fit_surely(part.split for part in parts):
        return None
    found = [requirement(part.split.store, [(part.split.name, name) for name in part.fields]) for part in parts]
    limit = min(max(limits[who] for _, limits in found) for who in found[0][1])
    if sum(nbytes for nbytes, _ in found) > limit:
        nbytes = sum(int(nbytes * _share(part, nbytes)) for part, (nbytes, _) in zip(parts, found, strict=True))
        if nbytes > limit:
            return Shortage(nbytes, limit)
    return None


def large_arrays(parts: Sequence[Loaded], limit: int) -> list[set[str]]:
    """Paths of each part's arrays that should be read without neighbors if the parts do not fit into memory.

    Offsets are not among them, because they are read from end to end.
    """
    arrays = [
        (column.nbytes, number, path)
        for number, part in enumerate(parts)
        for name in part.fields
        if name not in part.partly
        for path, column in array_columns(name, part.split[name]).items()
        if not path.endswith("/offsets")
    ]
    held, large = 0, [set[str]() for _ in parts]
    for nbytes, number, path in sorted(arrays):
        held += nbytes
        if held > limit * SMALL_SHARE:
            large[number].add(path)
    return large


def read_ahead_nbytes(path: Path) -> int:
    """Bytes that the system reads around a missing page of a file on the disk of `path`."""
    device = path.stat().st_dev
    text = read_system_file(f"/sys/class/bdi/{os.major(device)}:{os.minor(device)}/read_ahead_kb").strip()
    return int(text) * 1024 if text.isdecimal() else _USUAL_READ_AHEAD


def _share(part: Loaded, nbytes: int) -> float:
    """Share of a split that is read with some of its rows, if the system reads ahead."""
    if part.rows is None or not len(part.split):
        return 1.0
    neighbors = max(1, read_ahead_nbytes(part.split.store.path) * len(part.split) // max(1, nbytes))
    read = np.zeros((len(part.split) - 1) // neighbors + 1, bool)
    read[part.rows // neighbors] = True
    return float(read.mean())
