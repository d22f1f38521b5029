"""Which batch size fits in memory: reckoned before a run on the CPU, found by trying where a step has failed."""

from __future__ import annotations

import contextlib
import gc
import math
import os
from collections.abc import Callable
from functools import partial

import numpy as np
import torch

from tensorstore_ds import words
from tensorstore_ds.annex.training.augmentation import train_plan, train_transform
from tensorstore_ds.annex.training.data import image_shape, split_of, task_of
from tensorstore_ds.annex.training.footprint import Footprint
from tensorstore_ds.annex.training.learner import Learner, precision_of
from tensorstore_ds.annex.training.models import model_options
from tensorstore_ds.annex.training.options import ModelOptions, Residency, TrainOptions
from tensorstore_ds.annex.training.process import Ranks
from tensorstore_ds.annex.training.recipe import completed, usual_batch_size
from tensorstore_ds.annex.training.tasks import Task
from tensorstore_ds.errors import ResidencyError, TrainingError, TsdsError
from tensorstore_ds.loading.augment.compose import Compose
from tensorstore_ds.loading.batches import StoreCollate
from tensorstore_ds.loading.dataset import StoreDataset
from tensorstore_ds.loading.decoding import Plan
from tensorstore_ds.loading.device import move
from tensorstore_ds.loading.loader import PREFETCH_FACTOR
from tensorstore_ds.loading.resident import AUTO_SHARE, DeviceSplit, free_nbytes
from tensorstore_ds.machine import address_limits, memory_limits, return_freed_memory, threads_for_loading
from tensorstore_ds.reading.store import Split, Store

#: Of the memory that may be used on a CPU, the share that is planned with.
PLANNED = 0.9
#: From this share on, memory that is free is not kept by the C library, which may keep twice as much as is used.
TIGHT = 0.25
#: The batch of a step, and those that are copied ahead of it.
BATCHES_ON_GPU = 4

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


def batch_size_of(
    store: Store,
    split: Split,
    task: Task,
    vit: ModelOptions,
    options: TrainOptions,
    ranks: Ranks,
    *,
    samples: int | None = None,
) -> tuple[int, str]:
    """The batch size of a run: the one that was asked for, else the usual one, or what the split or the memory holds.

    On a CPU, the system ends a process that takes too much memory, and torch gets no chance to say so: there it is
    reckoned. All ranks take the smallest of their sizes.

    Args:
        samples: of an epoch, of all ranks; None: all of the split.

    Returns:
        The size, and a note where memory made it smaller.

    Raises:
        TrainingError: the size that was asked for does not fit into the memory of this machine, or not even 1 does.
    """
    wanted = options.batch_size or max(
        1, min(usual_batch_size(vit), (len(split) if samples is None else samples) // ranks.size)
    )
    if ranks.device.type != "cpu":
        return wanted, ""
    complete = completed(options, vit)
    plan = train_plan(split, complete, vit)
    dataset = StoreDataset(store, split.name, fields=task.fields, decode=plan)
    footprint = Footprint(
        vit,
        task.outputs,
        options,
        precision_of(options.precision, ranks.device),
        waiting=PREFETCH_FACTOR * (options.num_threads or threads_for_loading()) + 1,
        dataset=dataset,
        transform=train_transform(split, complete, vit),
    )
    needed = footprint.nbytes(wanted)
    who, left = min((memory_limits() | address_limits()).items(), key=lambda limit: limit[1])
    room = int(PLANNED * left / int(os.environ.get("LOCAL_WORLD_SIZE", "1")))
    most = wanted
    if needed > room:
        least = footprint.nbytes(1)
        most = 1 + (room - least) * (wanted - 1) // max(1, needed - least)
    size = -ranks.any(-_halved(wanted, most))
    if needed > TIGHT * room:
        return_freed_memory()
    if size == wanted:
        return wanted, ""
    found = f"{words.size(room)} ({PLANNED:.0%} of what the limit of {who} leaves)"
    if size and options.batch_size is None:
        return size, f"batches of {size}: {wanted} would take {words.size(needed)} of memory, and there are {found}"
    raise TrainingError(_advice(ranks.device, options, wanted, size, f", {words.size(needed)}, found {found}"))


def _halved(size: int, most: int) -> int:
    """The largest half, quarter, ... of a size that is at most that; 0 if there is none.

    >>> _halved(128, 128), _halved(128, 100), _halved(100, 13), _halved(100, 0)
    (128, 64, 12, 0)
    """
    while size > max(most, 0):
        size //= 2
    return size


def _advice(
    device: torch.device, options: TrainOptions, wanted: int, fitting: int, found: str, *, move: bool = False
) -> str:
    """What to say about a batch size that does not fit, with one that does; `move`: if the split is not on the GPU."""
    changes = []
    if 0 < fitting < wanted:
        accumulate = options.accumulate * math.ceil(wanted / fitting)
        changes.append(f"`batch_size={fitting}` with `accumulate={accumulate}`")
    if fitting and move:
        changes.append('`residency="page-cache"`')
    way = f"{' and '.join(changes)} fits" if changes else "Use a smaller `image_size` or `model`"
    less = "" if options.grad_checkpointing else "; `grad_checkpointing` needs less"
    return f"{device}: expected memory for batches of {wanted:,}{found}. {way}{less}."


def residency_beside_model(
    store: Store,
    task: Task,
    vit: ModelOptions,
    options: TrainOptions,
    ranks: Ranks,
    transform: Compose,
    plan: Plan | None,
) -> Residency:
    """The residency of the options; `page-cache` in place of `auto` where a GPU has to have room for the model, too.

    The loader chooses for `auto` before the model is there, and takes a half of all that is free.
    """
    if options.residency != "auto" or ranks.device.type != "cuda" or plan is not None:
        return options.residency
    dataset, free = StoreDataset(store, options.train_split, fields=task.fields), free_nbytes(ranks.device)
    if dataset.nbytes > AUTO_SHARE * free:
        return options.residency
    precision = precision_of(options.precision, ranks.device)
    footprint = Footprint(
        vit, task.outputs, options, precision, waiting=BATCHES_ON_GPU, dataset=dataset, transform=transform
    )
    fits = dataset.nbytes <= AUTO_SHARE * (free - footprint.nbytes(options.batch_size))
    return "auto" if fits else "page-cache"


def memory_advice(store: Store, options: TrainOptions, ranks: Ranks, *, resident: bool) -> str:
    """What to say about a full memory, with options that fit, if some do.

    Args:
        resident: whether the split was on the device as well.
    """
    split = split_of(store, options.train_split, "train_split")
    task = task_of(split, options.task, options.model)
    height, width, channels = image_shape(split)
    vit = model_options(options, task, (height, width), channels)
    wanted = options.batch_size or usual_batch_size(vit)
    if ranks.size > 1:  # they would wait for each other
        return _advice(ranks.device, options, wanted, 0, ", found too little")
    dataset = StoreDataset(store, split.name, fields=task.fields, decode=train_plan(split, options, vit))

    def fitting(too_large: int) -> int:
        transform = train_transform(split, options, vit)
        make = partial(Learner, vit, task, options, device=ranks.device, steps=2)
        return fitting_batch_size(make, dataset, transform, ranks.device, too_large=too_large)

    alone = fitting(2 * wanted if resident else wanted)
    if not resident or alone == wanted:
        return _advice(ranks.device, options, wanted, alone, ", found too little", move=resident)
    with contextlib.suppress(ResidencyError, torch.OutOfMemoryError):
        held = DeviceSplit(dataset, ranks.device)
        beside = fitting(2 * alone)
        del held
        if beside:
            return _advice(ranks.device, options, wanted, beside, ", found too little")
    return _advice(ranks.device, options, wanted, alone, ", found too little", move=True)


def let_go(device: torch.device) -> None:
    """Give back memory that nobody holds: of cycles of objects, and what torch keeps of a GPU's."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()


def fitting_batch_size(
    learner: Callable[[], Learner], dataset: StoreDataset, transform: Compose, device: torch.device, *, too_large: int
) -> int:
    """The largest half, quarter, ... of a batch size with which a step fits; 0 if none does.

    Each is tried, with a new model and two steps: the second has the optimizer's memory, too. What the failed run held
    must have been let go.
    """
    size = too_large // 2
    while size:
        let_go(device)
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
