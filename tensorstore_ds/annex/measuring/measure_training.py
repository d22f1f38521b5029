"""Measure training: the model of `tsds train` or a step of the user's."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from tensorstore_ds import words
from tensorstore_ds.annex.measuring.diagnosis_results import ModelRun, Settings
from tensorstore_ds.annex.measuring.measure import finish, measure
from tensorstore_ds.annex.measuring.measure_loading import Step, loader_of
from tensorstore_ds.annex.training.augmentation import train_plan, train_transform
from tensorstore_ds.annex.training.data import image_shape, task_of
from tensorstore_ds.annex.training.learner import Learner, image_dtype
from tensorstore_ds.annex.training.memory import is_out_of_memory, let_go
from tensorstore_ds.annex.training.models import model_options
from tensorstore_ds.annex.training.options import TrainOptions
from tensorstore_ds.annex.training.recipe import completed
from tensorstore_ds.annex.training.torch_threads import halves, time_threads
from tensorstore_ds.loading.collate import Collate
from tensorstore_ds.loading.dataset import StoreDataset
from tensorstore_ds.loading.decoding import Plan
from tensorstore_ds.reading.store import Split

#: A batch is tried so many times as large as the one before, until a step takes too long.
GROWTH = 4
#: The first step of a size starts libraries up, for so many times as long as it may take afterwards.
STARTING = 10
#: A GPU is waited for after so many calls.
_GPU_CALLS = 8


@dataclass(frozen=True)
class Student:
    """A model that learns from batches."""

    name: str  #: of the model
    step: Step  #: one whole training step on a batch that went through `transform`
    fields: tuple[str, ...] | None = None  #: of the store that it needs; None: all
    transform: Callable[..., Any] | None = None  #: called as ``transform(batch, rows, epoch)`` on the device
    collate: Collate = "packed"  #: the shape of objects that it takes
    decode: Plan | None = None  #: how its images are placed before they are decoded
    forget: Callable[[], object] = lambda: None  #: lets go of gradients

    def whole_step(self, batch: Any, batch_size: int, epoch: int) -> None:
        """Transform a batch and learn from it."""
        if self.transform is not None:
            batch = self.transform(batch, torch.arange(batch_size), epoch)
        self.step(batch)

    def let_go(self, device: torch.device) -> None:
        """Free the memory of a step that failed for lack of memory."""
        self.forget()
        let_go(device)

    def batch(self, dataset: StoreDataset, batch_size: int, device: torch.device) -> Any:
        """The first batch of a data set on the device, without transform."""
        return next(iter(loader_of(dataset, Settings(), batch_size, device=device, collate=self.collate)))


def student_of(split: Split, options: TrainOptions, device: torch.device) -> Student:
    """The model that `tsds train` would train on a split; raises its errors."""
    task = task_of(split, model=options.model)
    height, width, channels = image_shape(split)
    vit = model_options(options, task, (height, width), channels)
    options = completed(options, vit)
    transform = train_transform(split, options, vit, dtype=image_dtype(options, device), fields=task.fields)
    learner = Learner(vit, task, options, device=device, steps=10**6)  # the learning rate does not matter here
    plan, forget = train_plan(split, options, vit), learner.optimizer.zero_grad
    return Student(options.model, learner.train_batch, task.fields, transform, decode=plan, forget=forget)


# --- the model alone --------------------------------------------------------------------------------------------


def fitting_batch(
    student: Student, dataset: StoreDataset, wanted: int, device: torch.device, *, seconds: float
) -> tuple[int, str]:
    """The batch size whose steps take less than this time, and why it is not the wanted one; empty if it is."""
    size, larger = 0, 1
    while True:
        try:
            batch = student.batch(dataset, larger, device)
            for number in range(2):
                finish(device)
                began = time.perf_counter()
                student.whole_step(batch, larger, number)
                finish(device)
                spent = time.perf_counter() - began
                if spent > STARTING * seconds:
                    break
            batch = None  # the next one wants its memory
            full = False
        except (RuntimeError, MemoryError) as error:
            if not size or not is_out_of_memory(error):
                raise
            full = True  # the error holds what the step has made
        if full:
            batch = None
            student.let_go(device)
            return size, f"a step of {larger} does not fit into the memory of {device}"
        size = larger
        larger = min(wanted, GROWTH * size, int(size * seconds / spent))
        if size == wanted:
            return size, ""
        if larger <= size:
            return size, f"a step of {size} takes {words.duration(spent)}"


def model_alone(
    student: Student, dataset: StoreDataset, batch_size: int, device: torch.device, *, seconds: float
) -> ModelRun:
    """Measure the model on one batch that stays on the device."""
    batch = student.batch(dataset, batch_size, device)
    step = _seconds_of(lambda number: student.whole_step(batch, batch_size, number), device, seconds=seconds)
    return ModelRun(student.name, batch_size, batch_size / step, threads=torch.get_num_threads())


def threads_alone(
    student: Student, dataset: StoreDataset, batch_size: int, device: torch.device, *, seconds: float
) -> dict[int, float]:
    """Seconds of a step on one batch by number of torch's threads: all current ones, half of them, ..., 1."""
    batch = student.batch(dataset, batch_size, device)
    counts = halves(torch.get_num_threads())
    return time_threads(lambda: student.whole_step(batch, batch_size, 0), counts, seconds=seconds)


def _seconds_of(call: Callable[[int], object], device: torch.device, *, seconds: float) -> float:
    """Mean seconds of a call, which gets its number, without the first one, which starts up."""
    call(0)
    finish(device)

    def counted(number: int) -> int:
        call(number)
        if number % _GPU_CALLS == 0:
            finish(device)
        return 1

    return 1 / measure(itertools.count(1), seconds, counted, device=device).rate
