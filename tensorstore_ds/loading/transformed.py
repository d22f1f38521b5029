"""Apply a batch transform in the threads that gather the batches of a data set.

Steps that move and normalize small images are part of the gathering: see `moving`.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from tensorstore_ds.loading.augment.base import OfBatches
from tensorstore_ds.loading.augment.compose import PIXELS, Compose
from tensorstore_ds.loading.augment.geometry import Geometry
from tensorstore_ds.loading.augment.placements import Placements
from tensorstore_ds.loading.buffers import BufferPool
from tensorstore_ds.loading.dataset import StoreDataset
from tensorstore_ds.loading.decoding import Plan, place_on
from tensorstore_ds.loading.feed import Source
from tensorstore_ds.loading.moving import can_move, can_normalize, is_move, move, only_moves
from tensorstore_ds.loading.samples import Batch, Samples
from tensorstore_ds.plugins import Plugin

#: Functions that return a `Decoder`, by the loader's `decode`. Each is called with the data set, the device, and the
#: loader's options that must be false.
DECODERS = {"device": Plugin("tensorstore_ds.annex.device_decoding", "device_decoder", "JPEG files, by an NVIDIA GPU")}


class Decoder(Source, Protocol):
    """Gathers a batch in a thread, with images that it decodes in the script's thread once the batch is collated."""

    def decode(self, batch: Any) -> Any:
        """A collated batch with its images."""


#: Members of a batch that are transformed with the images.
_MOVING = {*PIXELS, "objects"} - {"image"}


class Transformed:
    """A data set with a transform of batches that has no state."""

    def __init__(self, dataset: Samples, transform: OfBatches) -> None:
        self._dataset, self._transform = dataset, transform
        steps = list(transform.transforms) if isinstance(transform, Compose) else [transform]
        moves = list(takewhile(is_move, steps))
        after = steps[len(moves) : len(moves) + 1]
        self._normalize = next(filter(can_normalize, after), None)
        self._done = len(moves) + (self._normalize is not None)  # steps that are done while gathering
        self._plan: Plan | None = transform if isinstance(transform, Geometry) and moves else None
        if isinstance(transform, Compose) and moves:
            self._plan = Compose(moves, seed=transform.seed)

    def gather(self, indices: NDArray[np.int64], pool: BufferPool, draw: tuple[int, int]) -> Batch:
        """Gather a batch like `Samples.gather`, and transform it."""
        batch = self._moved(indices, pool, draw)
        if batch is not None:
            return batch
        whole = self._dataset.gather(indices, pool, draw)
        return whole.with_columns(self._transform.transform_batch(whole.columns, whole.rows, draw[1], pool))

    def _moved(self, indices: NDArray[np.int64], pool: BufferPool, draw: tuple[int, int]) -> Batch | None:
        """Gather and transform a batch in one pass, or return None if that is not possible."""
        dataset = self._dataset
        if not self._done or not isinstance(dataset, StoreDataset) or isinstance(dataset.decode, Sequence):
            return None
        if not dataset.whole_images or not only_moves(dataset.decode, self._plan) or not can_move(dataset.split):
            return None
        if "image" not in dataset.fields or any(n in _MOVING or dataset.schema[n].moves for n in dataset.fields):
            return None
        split, rows = dataset.split, dataset._store_rows(indices)
        split.fetch(dataset.fields, rows)
        size = split.column("image").spec.shape[:2]
        placements = Placements.whole(np.broadcast_to(size, (len(rows), 2)))
        for plan in (dataset.decode, self._plan):
            placements = place_on(placements, plan, rows, draw[1])
        image = move(split, rows, placements, pool, self._normalize)
        if image is None:
            return None
        batch = dataset.gather(indices, pool, draw, fields=[name for name in dataset.fields if name != "image"])
        columns = {name: image if name == "image" else batch.columns[name] for name in dataset.fields}
        if isinstance(self._transform, Compose):
            columns = self._transform._transform_from(self._done, columns, rows, draw[1], pool)
        return batch.with_columns(columns)
