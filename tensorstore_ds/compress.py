"""From an array's bytes to the compressed layout and back: Zstandard chunks, back to back, and their index."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

import numpy as np
from numcodecs.zstd import Zstd

from tensorstore_ds.layout import ZSTD_LEVEL, ArrayGeometry, encode_index

T = TypeVar("T")
R = TypeVar("R")


def compress_array(source: Path, target: Path, geometry: ArrayGeometry) -> None:
    """Compress an array's bytes, at the beginning of `source`, into a data file of the layout `zarr`."""
    codec = Zstd(level=ZSTD_LEVEL)
    entries = np.empty((geometry.chunks, 2), "<u8")
    offset = 0
    with source.open("rb") as file, target.open("wb") as out:

        def chunks() -> Iterator[bytes]:
            left = geometry.nbytes
            while left > 0:
                data = file.read(min(left, geometry.chunk_nbytes))
                if not data:
                    raise EOFError(f"{source.name} is shorter than {geometry.nbytes} bytes")
                left -= len(data)
                yield data.ljust(geometry.chunk_nbytes, b"\0")

        for i, compressed in enumerate(_map_in_threads(codec.encode, chunks())):
            entries[i] = offset, len(compressed)
            offset += out.write(compressed)
        out.write(encode_index(entries))


def _map_in_threads(function: Callable[[T], R], items: Iterable[T]) -> Iterator[R]:
    """``map`` in as many threads as there are cores, in order, with few items in memory at a time."""
    width = os.cpu_count() or 1
    waiting: deque[Future[R]] = deque()
    with ThreadPoolExecutor(width) as threads:
        for item in items:
            waiting.append(threads.submit(function, item))
            if len(waiting) > 2 * width:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
