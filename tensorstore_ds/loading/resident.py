"""Where a loader reads from: the page cache, or a copy of the split on the device."""

from __future__ import annotations

import logging
from typing import Any, Literal, get_args

import numpy as np
import torch
from numpy.typing import NDArray

from tensorstore_ds.errors import OptionError, ResidencyError
from tensorstore_ds.loading.buffers import on_device, torch_dtype
from tensorstore_ds.loading.collate import PackedObjects
from tensorstore_ds.loading.dataset import StoreDataset
from tensorstore_ds.loading.device import record_stream
from tensorstore_ds.loading.fields import Value, gatherer_of
from tensorstore_ds.loading.samples import Batch
from tensorstore_ds.machine import memory_limit
from tensorstore_ds.options import refusal
from tensorstore_ds.reading.columns import Column, RaggedColumn

ResidencyChoice = Literal["auto", "page-cache", "device"]
CHOICES: tuple[ResidencyChoice, ...] = get_args(ResidencyChoice)

#: `auto` keeps a split on a GPU if it takes at most this share of the free memory.
AUTO_SHARE = 0.5
#: Bytes of rows per copy to the device.
_PIECE_NBYTES = 64 * 1024**2

log = logging.getLogger("tensorstore_ds")


def choose(
    wanted: ResidencyChoice,
    dataset: StoreDataset,
    device: torch.device | None,
    *,
    workers: int = 0,
    in_batches: bool = True,
) -> ResidencyChoice:
    """Resolve `auto`, with its reason in the log, and check any other choice. `workers` read the store themselves."""
    if wanted not in CHOICES:
        expected = f"one of {', '.join(CHOICES)}; `page-cache` is RAM that all processes share"
        raise refusal("residency", expected, repr(wanted))
    obstacle = _obstacle(dataset, device, workers, in_batches)
    if wanted == "device" and obstacle is not None:
        raise OptionError(f'`residency="device"`: {obstacle}')
    if wanted != "auto":
        return wanted
    needed = dataset.nbytes
    if device is not None and device.type == "cuda" and obstacle is None:
        free = free_nbytes(device)
        if needed <= AUTO_SHARE * free:
            log.info("residency: device, because %s bytes are at most half of the %s free on %s", needed, free, device)
            return "device"
    log.info("residency: page-cache; the split has %s bytes, this process may use %s", needed, memory_limit())
    return "page-cache"


def _obstacle(dataset: StoreDataset, device: torch.device | None, workers: int, in_batches: bool) -> str | None:
    if device is None:
        return "expected a device to keep the split on. Pass `device`."
    if workers:
        return "worker processes read the store themselves. Use `num_workers=0`, or another `residency`."
    if not in_batches:
        return "only whole batches are gathered there. Pass a `batch_size`, or choose another `residency`."
    if dataset.transform is not None:
        return "a transform gets samples on the CPU. Leave it out, and transform batches on the device."
    if not all(gatherer_of(dataset.split.fields[name]).on_device for name in dataset.fields):
        what = "keys, encoded images and images of differing sizes"
        return f"{what} cannot be kept there. Choose other fields, or another `residency`."
    if dataset.outlines:
        return "outlines of objects are drawn on the CPU. Leave them out, or choose another `residency`."
    if not dataset.whole_images:
        return "tiles are cut on the CPU. Choose another `residency`."
    if dataset.decode is not None:
        return "a decode plan works on the CPU. Leave it out, and transform batches on the device."
    return None


def free_nbytes(device: torch.device) -> int:
    """Bytes of free memory on a device."""
    return torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else memory_limit()


class DeviceSplit:
    """All fields of a data set on a device, where batches are gathered. Raises ResidencyError if they do not fit."""

    def __init__(self, dataset: StoreDataset, device: torch.device) -> None:
        needed, free = dataset.nbytes, free_nbytes(device)
        if needed > free:
            raise ResidencyError(
                f"{dataset.store_name}, {dataset.split_name}: expected {needed:,} bytes free on {device}, "
                f'found {free:,}. Choose fewer fields, or `residency="page-cache"`.'
            )
        self._dataset = dataset
        self._device = device
        columns = {name: dataset.split[name] for name in dataset.fields}
        self._columns = {name: self._moved(column) for name, column in columns.items()}
        # The host counts objects by these: asking the device would wait for it.
        self._offsets = {name: column.offsets for name, column in columns.items() if isinstance(column, RaggedColumn)}

    def _moved(self, column: Column | RaggedColumn) -> Any:
        if isinstance(column, RaggedColumn):
            values = {name: self._moved(array) for name, array in column.values.items()}
            return PackedObjects(torch.tensor(column.offsets, device=self._device), values)
        step = max(1, _PIECE_NBYTES // max(1, column.spec.row_nbytes))
        whole = torch.empty(column.shape, dtype=torch_dtype(column.spec.dtype), device=self._device)
        for start in range(0, len(column), step):
            piece = torch.from_numpy(column[start : start + step].copy())
            whole[start : start + len(piece)].copy_(piece)
        return whole

    def gather(self, indices: NDArray[np.int64]) -> Batch:
        """Gather a batch on the device."""
        rows = self._dataset._store_rows(indices)
        numbers = on_device(torch.from_numpy(rows), self._device)
        columns: dict[str, Value] = {}
        if self._device.type == "cuda":  # the split was copied on the stream of its first batch
            record_stream(self._columns, torch.cuda.current_stream(self._device))
        for name, column in self._columns.items():
            if isinstance(column, PackedObjects):
                offsets = self._offsets[name]
                columns[name] = column.take(numbers, int((offsets[rows + 1] - offsets[rows]).sum()))
            else:
                columns[name] = gatherer_of(self._dataset.split.fields[name]).loaded(column[numbers])
        return Batch(columns, rows, self._dataset, (0, 0))
