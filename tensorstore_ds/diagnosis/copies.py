"""Copies of a batch to a GPU: from page-locked and from ordinary memory, waited for and not, and ahead of the model."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import torch

from tensorstore_ds.diagnosis.findings import Copies
from tensorstore_ds.diagnosis.learning import Student
from tensorstore_ds.diagnosis.runs import finish, loader_of
from tensorstore_ds.diagnosis.settings import Settings
from tensorstore_ds.loading.collate import PackedObjects
from tensorstore_ds.loading.dataset import StoreDataset
from tensorstore_ds.loading.device import DevicePrefetcher, move

#: Batches of a measurement at least and at most.
_LEAST, _MOST = 3, 200


def copy_times(
    dataset: StoreDataset, student: Student | None, batch_size: int, device: torch.device, *, seconds: float
) -> Copies:
    """How long the copy of a batch takes in four ways, and steps with copies ahead and in turn.

    Args:
        dataset: to take a batch from.
        student: that learns from it; None: copies alone.
        batch_size: samples of the batch.
        device: a GPU.
        seconds: that this may take, about.
    """
    batches = {pinned: _on_host(dataset, batch_size, student, pinned=pinned) for pinned in (True, False)}
    share = seconds / (4 if student is None else 6)
    took = {
        (pinned, waits): _copies(batches[pinned], device, waits=waits, seconds=share)
        for pinned in (True, False)
        for waits in (False, True)
    }
    nbytes = sum(tensor.nbytes for tensor in tensors(batches[True]))
    found = Copies(nbytes, took[True, False], took[True, True], took[False, False], took[False, True])
    if student is None:
        return found
    in_turn = _steps(student, batches[False], batch_size, device, ahead=False, seconds=share)
    ahead = _steps(student, batches[True], batch_size, device, ahead=True, seconds=share)
    return replace(found, ahead=ahead, in_turn=in_turn)


def tensors(batch: Any) -> Iterator[torch.Tensor]:
    """All tensors of a batch.

    >>> [t.shape for t in tensors({"image": torch.zeros(2, 3), "more": [torch.zeros(4), "a"]})]
    [torch.Size([2, 3]), torch.Size([4])]
    """
    if isinstance(batch, torch.Tensor):
        yield batch
    elif isinstance(batch, PackedObjects):
        yield from (batch.offsets, *batch.values.values())
    elif isinstance(batch, Mapping):
        yield from itertools.chain.from_iterable(map(tensors, batch.values()))
    elif isinstance(batch, list | tuple):
        yield from itertools.chain.from_iterable(map(tensors, batch))


def _on_host(dataset: StoreDataset, batch_size: int, student: Student | None, *, pinned: bool) -> Any:
    collate = "packed" if student is None else student.collate
    host = torch.device("cpu")
    settings = Settings(pin_memory=pinned)
    return next(iter(loader_of(dataset, settings, batch_size=batch_size, device=host, collate=collate)))


def _copies(batch: Any, device: torch.device, *, waits: bool, seconds: float) -> float:
    """Seconds of a copy."""
    for tensor in tensors(batch):
        tensor.to(device)
    finish(device)
    done, began = 0, time.perf_counter()
    while done < _LEAST or (done < _MOST and time.perf_counter() - began < seconds):
        for tensor in tensors(batch):
            tensor.to(device, non_blocking=not waits)
        done += 1
    finish(device)
    return (time.perf_counter() - began) / done


def _steps(
    student: Student, batch: Any, batch_size: int, device: torch.device, *, ahead: bool, seconds: float
) -> float:
    """Samples a second of copy and step."""
    rows = torch.arange(batch_size)
    student.whole_step(move(batch, device), rows, 0)
    finish(device)
    steps, began = 0, time.perf_counter()
    source = itertools.takewhile(
        lambda _: steps < _LEAST or (steps < _MOST and time.perf_counter() - began < seconds), itertools.repeat(batch)
    )
    for moved in DevicePrefetcher(source, device) if ahead else _in_turn(source, device):
        steps += 1
        student.whole_step(moved, rows, steps)
    finish(device)
    return steps * batch_size / (time.perf_counter() - began)


def _in_turn(batches: Iterator[Any], device: torch.device) -> Iterator[Any]:
    for batch in batches:
        moved = move(batch, device)
        finish(device)
        yield moved
