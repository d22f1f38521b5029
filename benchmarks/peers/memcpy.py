"""The limit: `numpy.copyto` of pieces of one array into one buffer, as long as a batch, in random order.

The array is a copy of all images in anonymous memory, which NumPy keeps in huge pages where it may. Modes:
``1 thread``, as the figure of `take` has it; ``2 threads``, each of which copies half of every batch.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.samples import open_arrays


def load(source: Path, target: Path, batch: int, mode: str) -> Iterable[Any]:
    return _Copies(source, batch, int(mode.split()[0]))


class _Copies:
    def __init__(self, source: Path, batch: int, threads: int) -> None:
        images, self.labels = open_arrays(source)
        self.images = np.empty(images.shape, np.uint8)
        self.images[...] = images
        self.buffer = np.empty((batch, *images.shape[1:]), np.uint8)
        self.batch = batch
        self.threads = ThreadPoolExecutor(threads) if threads > 1 else None

    def __iter__(self) -> Iterator[tuple[NDArray[np.uint8], NDArray[np.int64]]]:
        starts = np.arange(0, len(self.images), self.batch)
        np.random.default_rng().shuffle(starts)
        for start in starts.tolist():
            piece = self.images[start : start + self.batch]
            self.copy(piece)
            yield self.buffer[: len(piece)], self.labels[start : start + self.batch]

    def copy(self, piece: NDArray[np.uint8]) -> None:
        if self.threads is None:
            np.copyto(self.buffer[: len(piece)], piece)
            return
        half = len(piece) // 2
        targets = self.buffer[:half], self.buffer[half : len(piece)]
        list(self.threads.map(np.copyto, targets, (piece[:half], piece[half:])))
