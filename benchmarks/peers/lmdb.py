"""LMDB: raw pixels under the sample's number, read with ``buffers=True``, in torch's `DataLoader`.

The environment is opened in each worker, ``readonly, lock=False, readahead=False, meminit=False``, and one transaction
is kept open, as py-lmdb's documentation and the data sets that are built on it do.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import lmdb
import torch
from torch.utils.data import DataLoader, Dataset

from benchmarks.peers import workers
from benchmarks.samples import Arrays, open_arrays

_LABEL_NBYTES = 8


def write(source: Path, target: Path, mode: str) -> None:
    """One value a sample: the label, eight bytes, and the pixels as (C, H, W)."""
    arrays = Arrays(source)
    size = sum(array.nbytes for array in open_arrays(source))
    with lmdb.open(str(target), map_size=2 * size + 2**30) as environment:
        for first in range(0, len(arrays), 1000):
            with environment.begin(write=True) as transaction:
                for i in range(first, min(first + 1000, len(arrays))):
                    image, label = arrays[i]
                    value = label.to_bytes(_LABEL_NBYTES, "little") + image.transpose(2, 0, 1).tobytes()
                    transaction.put(i.to_bytes(8, "big"), value, append=True)


def load(source: Path, target: Path, batch: int, mode: str) -> Iterable[Any]:
    n, h, w, c = open_arrays(source)[0].shape
    count = workers(mode)
    return DataLoader(_Records(target, n, (c, h, w)), batch, True, num_workers=count, persistent_workers=count > 0)


class _Records(Dataset[Any]):
    def __init__(self, path: Path, count: int, shape: tuple[int, ...]) -> None:
        self.path, self.count, self.shape = str(path), count, shape
        self.transaction: Any = None

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        if self.transaction is None:
            environment = lmdb.open(self.path, readonly=True, lock=False, readahead=False, meminit=False)
            self.transaction = environment.begin(buffers=True)
        value = self.transaction.get(index.to_bytes(8, "big"))
        pixels = torch.frombuffer(value, dtype=torch.uint8, offset=_LABEL_NBYTES).view(self.shape)
        return pixels, int.from_bytes(value[:_LABEL_NBYTES], "little")  # not copied: collating does that
