"""torch's own machinery, with worker processes: the indices that it sends, the rows that come back, and forks."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, TypedDict

import numpy as np
import torch
from numpy.typing import NDArray

from tensorstore_ds.loading.dataset import Batch


class TorchOptions(TypedDict, total=False):
    """Arguments of torch's `DataLoader` that `tensorstore_ds.DataLoader` passes on."""

    num_workers: int
    drop_last: bool
    timeout: float
    worker_init_fn: Callable[[int], None] | None
    multiprocessing_context: Any
    generator: torch.Generator | None
    persistent_workers: bool


class IndexBatch(list[int]):
    """Indices of a batch on their way to a worker, with the (seed, epoch) that random transforms draw by."""

    draw: tuple[int, int] = (0, 0)


class IndexBatches:
    """Batches of indices for torch's own machinery, from one batch on.

    Args:
        batches: torch's batch sampler, or its sampler where there is no automatic batching.
        place: called when an iteration begins, for its (seed, epoch) and the number of batches to leave out.
    """

    def __init__(self, batches: Iterable[Any], place: Callable[[], tuple[tuple[int, int], int]]) -> None:
        self._batches = batches
        self._place = place

    def __len__(self) -> int:
        return len(self._batches)  # type: ignore[arg-type]

    def __iter__(self) -> Iterator[Any]:
        draw, start = self._place()
        for number, batch in enumerate(self._batches):
            if number < start:
                continue
            if isinstance(batch, list):
                batch = IndexBatch(batch)
                batch.draw = draw
            yield batch


@dataclass(frozen=True)
class WithRows:
    """A batch and its samples' rows, by which batch transforms draw."""

    collate: Callable[[Any], Any]

    def __call__(self, batch: Batch) -> tuple[Any, NDArray[np.int64]]:
        """Collate, and keep the rows."""
        return self.collate(batch), batch.rows


#: torch's iterators with worker processes. A forked child has copies of them, whose end, or whose next epoch, would end
#: or confuse the workers of the parent.
with_workers: weakref.WeakSet[Any] = weakref.WeakSet()


def is_of_parent(iterator: Any) -> bool:
    """Whether the workers of one of torch's iterators are another process's, or have ended; not so for None."""
    return bool(getattr(iterator, "_shutdown", False))


def _leave_to_parent() -> None:
    for iterator in list(with_workers):
        iterator._shutdown = True  # torch's own mark of one whose workers have ended


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_leave_to_parent)
