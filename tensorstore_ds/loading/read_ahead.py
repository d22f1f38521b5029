"""Ask the disk for the rows of coming batches, if the system's own read-ahead cannot know them.

The system reads neighbors of a missing page with it, as many as the read-ahead of the disk, 128 KiB to 8 MiB. If all
samples fit into memory, this fills it quickly. Otherwise, the neighbors are dropped before they are used. Then the maps
of large columns are advised to be read randomly, and the rows of coming batches are asked for, whatever their order.
"""

from __future__ import annotations

import itertools
import logging
import os
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any, NamedTuple, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from tensorstore_ds import words
from tensorstore_ds.format.kinds import EncodedImageField, ImageField
from tensorstore_ds.format.kinds.base import Field
from tensorstore_ds.loading.block_shuffle import BlockShuffleSampler
from tensorstore_ds.loading.dataset import StoreDataset
from tensorstore_ds.loading.mixed import MixedDataset
from tensorstore_ds.loading.samples import Samples
from tensorstore_ds.machine import read_system_file
from tensorstore_ds.page_cache.residency import requirement
from tensorstore_ds.reading.columns import array_columns
from tensorstore_ds.reading.mirror_file import pool
from tensorstore_ds.reading.store import Asked

#: Bytes of rows that are asked for together, and the share of memory for them. Twice as many are under way.
AHEAD_NBYTES, AHEAD_SHARE = 64 * 1024**2, 1 / 8
#: Largest share of memory of a window of `BlockShuffleSampler` that is asked for together. Two are under way.
WINDOW_SHARE = 1 / 4
#: Columns that take less than this share of memory together keep the system's read-ahead, and so get into memory soon.
SMALL_SHARE = 1 / 8
#: Reading ahead of a disk that the system tells nothing about: Linux's own default.
_USUAL_READ_AHEAD = 128 * 1024
#: Groups of batches of a store by URL that are fetched at the same time; and those that may yet be left out.
_FETCHING, _BEGUN = 4, 256
#: Requests of at least this many bytes are about as fast in random order as in order.
_LARGE_REQUEST = 1024**2

#: Number of rows that show what an order costs.
_SEEN = 16

T = TypeVar("T")
log = logging.getLogger("tensorstore_ds")


class Shortage(NamedTuple):
    """Samples that do not fit into memory."""

    nbytes: int  #: bytes that they bring into memory
    limit: int  #: bytes of memory for them


class ReadAhead:
    """Asks for the rows of a data set's batches before they are gathered.

    Args:
        dataset: its large columns are advised to be read randomly, here and in processes that get a copy of it.
        sampler: of the rows, if it is one of this library's.
        speaks: whether to tell the user, which one process of several does.
    """

    def __init__(self, dataset: Samples, sampler: Any, *, speaks: bool) -> None:
        self._dataset, self._speaks = dataset, speaks
        self._is_remote = any(part.split.is_remote for part in parts_of(dataset))
        self._seen, self._asked = 0, Asked(0, 0, 0)
        self.shortage = shortage(dataset)
        if self.shortage is not None:
            _read_randomly(dataset, self.shortage.limit)
        whole = all(part.whole_images for part in parts_of(dataset))
        self._in_blocks = isinstance(sampler, BlockShuffleSampler)
        window = sampler.window_rows if self._in_blocks and whole else 0
        allowed = np.inf if self.shortage is None else self.shortage.limit * WINDOW_SHARE
        self._window = window if window * dataset.row_nbytes <= allowed else 0

    def before(self, items: Iterable[T], rows_of: Callable[[T], NDArray[np.int64]], position: int) -> Iterator[T]:
        """Pass items on, after the rows of later ones have been asked for.

        Args:
            items: batches, or groups of them.
            rows_of: function that returns the indices of an item's samples.
            position: of the first sample in the epoch.
        """
        if self._is_remote:
            return self._ask(items, rows_of, position, most=0)
        if self._window:
            return self._ask(items, rows_of, position, most=self._window)
        if self.shortage is None:
            return iter(items)
        budget = min(AHEAD_NBYTES, int(self.shortage.limit * AHEAD_SHARE))
        return self._ask(items, rows_of, position, most=max(1, int(budget / max(1, self._dataset.row_nbytes))))

    def _ask(
        self, items: Iterable[T], rows_of: Callable[[T], NDArray[np.int64]], position: int, *, most: int
    ) -> Iterator[T]:
        """Ask for the rows of some items together, so that neighbors are read together, and keep `most` rows back.

        Some are at first few, so that the first batch comes soon, and then `most`, or a window.
        """
        every = self.shortage is None
        threads = pool("ahead", _FETCHING) if self._is_remote else pool("asked", 1)
        begun: deque[Future[Asked]] = deque(maxlen=_BEGUN)
        chunk, kept, held = list[T](), deque[tuple[T, int]](), 0
        rows, count, size = list[NDArray[np.int64]](), 0, 1
        try:
            for item in itertools.chain(items, [None]):
                if item is not None:
                    chunk.append(item)
                    rows.append(rows_of(item))
                    count += len(rows[-1])
                    if count < (self._window - position % self._window if self._window else size):
                        continue
                if count:
                    begun.append(threads.submit(self._dataset.will_need, np.concatenate(rows), every=every))
                    self._tell(begun[-1], count)
                kept.extend(zip(chunk, map(len, rows), strict=True))
                held, position, size = held + count, position + count, min(2 * max(size, count), most)
                chunk, rows, count = [], [], 0
                while kept and (held > most or item is None):
                    ready, length = kept.popleft()
                    held -= length
                    yield ready
        finally:
            for future in begun:
                future.cancel()

    def _tell(self, asked: Future[Asked], rows: int) -> None:
        """Tell the user once what is read, by the first rows that are enough to see it."""
        if self.shortage is None or not self._speaks or asked.exception() is not None:  # that their batch raises again
            return
        self._seen, self._asked = self._seen + rows, Asked(*map(sum, zip(self._asked, asked.result(), strict=True)))
        if self._seen < _SEEN:
            return
        self._speaks, rows, found = False, self._seen, self._asked
        need, limit = words.size(self.shortage.nbytes), words.size(self.shortage.limit)
        text = (
            f"{self._dataset.title}: expected samples that fit into memory, found {need} and {limit} of memory. "
            f"Each epoch reads them from the disk: in this order {found.nbytes / max(1, found.used):.1f} bytes per "
            f"byte that is used, in {found.requests / rows:.2g} requests per sample."
        )
        is_scattered = found.requests > rows / 4 and found.nbytes < found.requests * _LARGE_REQUEST
        if is_scattered and not self._in_blocks:
            advice = "BlockShuffleSampler reads many neighbors with one request, which is faster."
            warnings.warn(f"{text} {advice}", stacklevel=2)
        else:
            log.info(text)


def parts_of(dataset: Samples) -> tuple[StoreDataset, ...]:
    """The data sets of single stores that a data set consists of."""
    return dataset.parts if isinstance(dataset, MixedDataset) else (cast(StoreDataset, dataset),)


def shortage(dataset: Samples) -> Shortage | None:
    """Return by how much the samples of a data set do not fit into memory, or None if they fit.

    Samples of a subset count with their neighbors, as far as the system reads ahead.
    """
    parts = parts_of(dataset)
    found = [requirement(part.split.store, [(part.split_name, name) for name in dataset.fields]) for part in parts]
    limit = min(max(limits[who] for _, limits in found) for who in found[0][1])
    if sum(nbytes for nbytes, _ in found) > limit:
        nbytes = sum(int(nbytes * _share(part)) for part, (nbytes, _) in zip(parts, found, strict=True))
        if nbytes > limit:
            return Shortage(nbytes, limit)
    return None


def _share(dataset: StoreDataset) -> float:
    """Share of a split that is read with the rows of a subset, if the system reads ahead."""
    if dataset.rows is None:
        return 1.0
    neighbors = max(1, int(read_ahead_nbytes(dataset.split.store.path) * len(dataset.split) / max(1, dataset.nbytes)))
    read = np.zeros((len(dataset.split) - 1) // neighbors + 1, bool)
    read[dataset.rows_of_images(dataset.rows) // neighbors] = True
    return float(read.mean())


def read_ahead_nbytes(path: Path) -> int:
    """Bytes that the system reads around a missing page of a file on the disk of `path`."""
    device = path.stat().st_dev
    text = read_system_file(f"/sys/class/bdi/{os.major(device)}:{os.minor(device)}/read_ahead_kb").strip()
    return int(text) * 1024 if text.isdecimal() else _USUAL_READ_AHEAD


def _is_pixels(field: Field) -> bool:
    return isinstance(field, ImageField) and not isinstance(field, EncodedImageField)


def _read_randomly(dataset: Samples, limit: int) -> None:
    """Advise that the large columns of a data set are read randomly.

    Offsets are read from end to end, and of pixels, a tile takes only a part of each line.
    """
    arrays = [
        (column.nbytes, number, path)
        for number, part in enumerate(parts_of(dataset))
        for name in dataset.fields
        for path, column in array_columns(name, part.split[name]).items()
        if not path.endswith("/offsets") and (part.whole_images or not _is_pixels(part.split.fields[name]))
    ]
    held, large = 0, [set[str]() for _ in parts_of(dataset)]
    for nbytes, number, path in sorted(arrays):
        held += nbytes
        if held > limit * SMALL_SHARE:
            large[number].add(path)
    for part, paths in zip(parts_of(dataset), large, strict=True):
        part.read_randomly(paths)
