"""What trains in a diagnosis: the model of `tsds train` on the store's own task, or a step of the user's."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from tensorstore_ds.diagnosis import words
from tensorstore_ds.diagnosis.findings import ModelRun
from tensorstore_ds.diagnosis.runs import Step, finish, loader_of
from tensorstore_ds.diagnosis.settings import Settings
from tensorstore_ds.loading.collate import Collate
from tensorstore_ds.loading.dataset import StoreDataset
from tensorstore_ds.reading.store import Split, Store
from tensorstore_ds.training.augmentation import train_transform
from tensorstore_ds.training.data import image_shape
from tensorstore_ds.training.learner import Learner
from tensorstore_ds.training.options import Preset, TrainOptions
from tensorstore_ds.training.tasks import task_of

#: A batch is tried so many times as large as the one before, until a step takes too long.
GROWTH = 4
#: Steps between two looks at the clock on a GPU, which is waited for at each.
_GPU_STEPS = 8


@dataclass(frozen=True)
class Student:
    """Something that learns from batches.

    Attributes:
        name: of the model.
        step: one whole training step on a batch that went through `transform`.
        fields: of the store that it needs; None: all.
        transform: called as ``transform(batch, rows, epoch)`` on the device.
        collate: the shape of objects that it takes.
    """

    name: str
    step: Step
    fields: tuple[str, ...] | None = None
    transform: Callable[..., Any] | None = None
    collate: Collate = "packed"

    def whole_step(self, batch: Any, rows: torch.Tensor, epoch: int) -> None:
        """Transform a batch and learn from it."""
        self.step(batch if self.transform is None else self.transform(batch, rows, epoch))


def student_of(store: Store, split: Split, model: Preset, device: torch.device, *, batch_size: int) -> Student:
    """The model that `tsds train` would train on a store.

    Raises:
        OptionError: the store has nothing to learn from, or images that a model cannot take as they are.
        FormatError: a label is not the index of a class.
    """
    task = task_of(split)
    height, width, channels = image_shape(store, split)
    options = TrainOptions(model=model, batch_size=batch_size, train_split=split.name)
    vit = options.vit((height, width), channels)
    transform = train_transform(split, options, vit)
    learner = Learner(vit, task, options, device=device, steps=10**6)  # the learning rate does not matter here
    return Student(model, learner.train_batch, task.fields, transform)


def fitting_batch(
    student: Student, dataset: StoreDataset, wanted: int, device: torch.device, *, seconds: float
) -> tuple[int, str]:
    """The batch size to measure steps with, and why it is not the one that is wanted; empty if it is.

    Args:
        student: that learns.
        dataset: to take batches from.
        wanted: the largest batch.
        device: where.
        seconds: that a step may take, at most.
    """
    size, largest = 0, 1
    while True:
        try:
            spent = _step_seconds(student, dataset, largest, device, limit=seconds)
        except torch.OutOfMemoryError:
            if not size:
                raise
            return size, f"a step of {largest} does not fit into the memory of {device}"
        size = largest
        largest = min(wanted, GROWTH * size, int(size * seconds / spent))
        if size == wanted:
            return size, ""
        if largest <= size:
            return size, f"the model takes {words.duration(spent)} for that many"


def _step_seconds(
    student: Student, dataset: StoreDataset, batch_size: int, device: torch.device, *, limit: float
) -> float:
    """Seconds of the second step, or of the first, which starts up, where that takes longer than `limit`."""
    batch, rows = first_batch(student, dataset, batch_size, device), torch.arange(batch_size)
    spent = 0.0
    for number in range(2):
        finish(device)
        began = time.perf_counter()
        student.whole_step(batch, rows, number)
        finish(device)
        spent = time.perf_counter() - began
        if spent > limit:
            break
    return spent


def model_alone(
    student: Student, dataset: StoreDataset, batch_size: int, device: torch.device, *, seconds: float
) -> ModelRun:
    """The model on one batch that stays on the device."""
    batch = first_batch(student, dataset, batch_size, device)
    rows = torch.arange(batch_size)
    student.whole_step(batch, rows, 0)
    finish(device)
    steps, began = 0, time.perf_counter()
    while True:
        for _ in range(1 if device.type == "cpu" else _GPU_STEPS):
            steps += 1
            student.whole_step(batch, rows, steps)
        finish(device)
        spent = time.perf_counter() - began
        if spent >= seconds:
            return ModelRun(student.name, batch_size, steps * batch_size / spent, threads=torch.get_num_threads())


@contextlib.contextmanager
def torch_threads(number: int) -> Iterator[None]:
    """So many threads for torch on the CPU, for the time being."""
    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def first_batch(student: Student, dataset: StoreDataset, batch_size: int, device: torch.device) -> Any:
    """A batch on the device, not transformed."""
    loader = loader_of(dataset, Settings(), batch_size=batch_size, device=device, collate=student.collate)
    return next(iter(loader))
