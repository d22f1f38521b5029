"""Train on a store."""

from __future__ import annotations

import math
import os
from pathlib import Path

from tensorstore_ds.errors import TrainingError
from tensorstore_ds.loading.dataset import StoreDataset
from tensorstore_ds.reading.store import Store, open as open_store
from tensorstore_ds.training.augmentation import train_transform
from tensorstore_ds.training.batch_fit import fitting_batch_size, is_out_of_memory
from tensorstore_ds.training.data import image_shape, split_of
from tensorstore_ds.training.learner import Learner, computing_threads, matrix_precision
from tensorstore_ds.training.listeners import Listeners
from tensorstore_ds.training.options import TrainOptions
from tensorstore_ds.training.random_state import random_state_kept
from tensorstore_ds.training.ranks import Ranks, ranks
from tensorstore_ds.training.report import TrainReport
from tensorstore_ds.training.run import Run
from tensorstore_ds.training.stopping import StopSignals
from tensorstore_ds.training.tasks import task_of


@random_state_kept()
def train(
    store: str | os.PathLike[str],
    options: TrainOptions | None = None,
    *,
    out: str | os.PathLike[str],
    resume: bool = False,
    listeners: Listeners | None = None,
) -> TrainReport | None:
    """Train a vision transformer on a store.

    Under torchrun each process is a rank: samples are divided among them, gradients averaged, and the first rank
    writes. In the folder `out`: `last.pt`, all that a run goes on with, and `best.pt`, the best epoch's model;
    `history.jsonl`, `report.json`, and with matplotlib `curves.png` and `confusion.png`.

    SIGTERM and Ctrl-C end the run between two steps, with a checkpoint. The run seeds torch's global generators, and
    leaves all random generators as it found them.

    Args:
        store: its path.
        options: what to do.
        out: the run's folder; made if it is not there.
        resume: go on with the run in `out`, at the very next batch; begin one if there is none.
        listeners: who is told how it goes.

    Returns:
        What it came to, which is also in `report.json`; None on other ranks than the first.

    Raises:
        OptionError: options contradict each other, the store or the machine.
        FormatError: the store is damaged.
        TrainingError: the run cannot go on: the loss is no number, memory or disk is full, the checkpoint is not of
            this run.
        TrainingStopped: a signal asked for it.
    """
    options = options or TrainOptions()
    opened = open_store(store)
    with ranks(options.device) as here, StopSignals() as stop:
        told = (listeners or Listeners()) if here.first else Listeners()
        try:
            run = Run(opened, options, here, Path(out), stop, told)
            with matrix_precision(run.learner.precision), computing_threads(options.torch_threads):
                return run(resume=resume)
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
        run = None  # type: ignore[assignment]  # what it held has to be free before others are tried
        raise TrainingError(_advice(opened, options, here))


def _advice(store: Store, options: TrainOptions, here: Ranks) -> str:
    """What to do about a full memory, found by trying."""
    split = split_of(store, options.train_split, "--train-split")
    task = task_of(split, options.task)
    height, width, channels = image_shape(store, split)
    vit = options.vit((height, width), channels)
    found = 0
    if here.size == 1:  # ranks would wait for each other
        found = fitting_batch_size(
            lambda: Learner(vit, task, options, device=here.device, steps=2),
            StoreDataset(store.path, split.name, fields=task.fields),
            train_transform(split, options, vit),
            here.device,
            too_large=options.batch_size,
        )
    accumulate = options.accumulate * math.ceil(options.batch_size / found) if found else 0
    way = f"--batch-size {found} --accumulate {accumulate} fits" if found else "Use a smaller --batch-size or --model"
    return (
        f"{here.device}: expected memory for batches of {options.batch_size:,}, found too little. {way}; "
        "--grad-checkpointing needs less."
    )
