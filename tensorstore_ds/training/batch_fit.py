"""When a step does not fit in memory: which batch size does, found by trying."""

from __future__ import annotations

import gc
import math
from collections.abc import Callable

import numpy as np
import torch

from tensorstore_ds.errors import TsdsError
from tensorstore_ds.loading.augment.base import Compose
from tensorstore_ds.loading.batches import StoreCollate
from tensorstore_ds.loading.dataset import StoreDataset
from tensorstore_ds.loading.device import move
from tensorstore_ds.reading.store import Store
from tensorstore_ds.training.augmentation import train_transform
from tensorstore_ds.training.data import image_shape, split_of, task_of
from tensorstore_ds.training.learner import Learner
from tensorstore_ds.training.options import TrainOptions
from tensorstore_ds.training.process import Ranks

#: What errors of torch on a CPU, of C++, of oneDNN and of CUDA's libraries say.
_FULL = (
    *("can't allocate memory", "std::bad_alloc", "out of memory"),
    *("could not create a primitive", "CUBLAS_STATUS_ALLOC_FAILED"),
)


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an exception says that a device's memory is full: torch has a type for GPUs alone."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):  # NumPy's, where a batch is gathered, is the latter
        return True
    foreign = isinstance(error, RuntimeError) and not isinstance(error, TsdsError)
    return foreign and any(text in str(error) for text in _FULL)


def memory_advice(store: Store, options: TrainOptions, ranks: Ranks) -> str:
    """What to say about a full memory, with a batch size that fits, if one does."""
    way = "Use a smaller `batch_size` or `model`"
    if ranks.size == 1:  # ranks would wait for each other
        split = split_of(store, options.train_split, "train_split")
        task = task_of(split, options.task)
        height, width, channels = image_shape(store, split)
        vit = options.vit((height, width), channels)
        fitting = fitting_batch_size(
            lambda: Learner(vit, task, options, device=ranks.device, steps=2),
            StoreDataset(store.path, split.name, fields=task.fields),
            train_transform(split, options, vit),
            ranks.device,
            too_large=options.batch_size,
        )
        if fitting:
            accumulate = options.accumulate * math.ceil(options.batch_size / fitting)
            way = f"`batch_size={fitting}` with `accumulate={accumulate}` fits"
    return (
        f"{ranks.device}: expected memory for batches of {options.batch_size:,}, found too little. {way}; "
        "`grad_checkpointing` needs less."
    )


def fitting_batch_size(
    learner: Callable[[], Learner], dataset: StoreDataset, transform: Compose, device: torch.device, *, too_large: int
) -> int:
    """The largest half, quarter, ... of a batch size with which a step fits; 0 if none does.

    Each is tried, with a new model and two steps: the second has the optimizer's memory, too. What the failed run held
    must have been let go.
    """
    size = too_large // 2
    while size:
        gc.collect()
        if device.type == "cuda":
            torch.cuda.empty_cache()
        try:
            _try(learner(), dataset, transform, device, size)
            return size
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
        size //= 2
    return 0


def _try(learner: Learner, dataset: StoreDataset, transform: Compose, device: torch.device, size: int) -> None:
    rows = np.arange(size) % len(dataset)
    for _ in range(2):
        batch = move(StoreCollate("packed", dataset)(dataset.gather(rows)), device)
        learner.train_batch(transform(batch, rows, 0))
    if device.type == "cuda":
        torch.cuda.synchronize(device)
