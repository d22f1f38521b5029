"""One iteration of a loader: hands out an epoch's batches, and knows how far it has come."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tensorstore_ds.loading.dataset import StoreDataset

if TYPE_CHECKING:
    from tensorstore_ds.loading.loader import DataLoader

_NO_MORE = object()


@dataclass(slots=True)
class Place:
    """Where an iteration is.

    Attributes:
        epoch: counted from 0.
        batch: batches of it that were handed out, or left out because a resumed iteration begins after them.
        begun: whether an iterator has it; another one then begins with the next epoch.
        ended: whether there are no more batches.
    """

    epoch: int = 0
    batch: int = 0
    begun: bool = False
    ended: bool = False


class Epoch(Iterator[Any]):
    """Hands out the batches of one epoch, to one thread at a time, in the process that made it.

    It begins, and learns which epoch it is of, when it is first asked for a batch. Once it has ended, has raised or was
    closed, every further `next` raises StopIteration and changes nothing.
    """

    def __init__(self, loader: DataLoader) -> None:
        self._loader = loader
        self._process = os.getpid()
        self._busy = threading.Lock()
        self._place = Place()
        self._batches: Iterator[Any] | None = None
        self._over = False

    def __next__(self) -> Any:
        if os.getpid() != self._process:
            raise RuntimeError(
                f"loader: expected next() in process {self._process}, which made this iterator and has its threads or "
                f"workers, found process {os.getpid()}. Make an iterator here: iter(loader)."
            )
        if not self._busy.acquire(blocking=False):
            raise RuntimeError("two threads are asking one loader for batches; give each thread a loader of its own")
        try:
            if self._over:
                raise StopIteration
            return self._next()
        except BaseException:
            self.close()
            raise
        finally:
            self._busy.release()

    def close(self) -> None:
        """End its threads and processes now; without it they end with the last reference to the iterator."""
        self._over, self._batches = True, None

    def _next(self) -> Any:
        loader, began = self._loader, time.perf_counter()
        if self._batches is None:
            self._place, self._batches = loader._begin()
        batch: Any = next(self._batches, _NO_MORE)
        if batch is _NO_MORE:
            self._place.ended = True
            raise StopIteration
        loader._stats.wait += time.perf_counter() - began
        loader._stats.batches += 1
        if loader.batch_transform is not None and isinstance(loader.dataset, StoreDataset):
            made, rows = batch
            batch = loader.batch_transform(made, rows, self._place.epoch)
        self._place.batch += 1
        return batch
