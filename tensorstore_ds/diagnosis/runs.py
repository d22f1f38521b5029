"""A loader at work for a second or so, alone or with a model: samples a second, and what they waited for."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Generator, Hashable, Mapping, Sequence
from typing import Any, TypeVar

import torch

from tensorstore_ds.diagnosis.findings import Run
from tensorstore_ds.diagnosis.settings import Settings
from tensorstore_ds.loading.block_shuffle import BlockShuffleSampler
from tensorstore_ds.loading.collate import Collate
from tensorstore_ds.loading.dataset import StoreDataset
from tensorstore_ds.loading.loader import DataLoader
from tensorstore_ds.machine import usable_cores

Step = Callable[[Any], Any]
Key = TypeVar("Key", bound=Hashable)


def loader_of(
    dataset: StoreDataset,
    settings: Settings,
    *,
    batch_size: int,
    device: torch.device | None = None,
    collate: Collate = "packed",
    batch_transform: Callable[..., Any] | None = None,
) -> DataLoader:
    """A loader with these settings."""
    sampler = None
    if settings.block_rows:
        sampler = BlockShuffleSampler(
            dataset, block_rows=settings.block_rows, window_blocks=settings.window_blocks, rank=0, num_replicas=1
        )
    return DataLoader(
        dataset,
        batch_size,
        sampler=sampler,
        shuffle=sampler is None,
        device=device,
        collate=collate,
        batch_transform=batch_transform,
        **settings.arguments(),
    )


def run(
    loader: DataLoader, settings: Settings, *, seconds: float, step: Step | None = None, first_epoch: bool = False
) -> Run:
    """Take batches for some seconds, over as many epochs as it takes.

    Args:
        loader: with `settings`.
        settings: for the record.
        seconds: to go on for; a batch that is under way is waited for.
        step: called with each batch; None: they are dropped.
        first_epoch: count from before the first batch to the end of the epoch at most; otherwise the first batch, which
            threads, processes and kernels have to be started for, does not count.
    """
    device = loader.device or torch.device("cpu")
    width = settings.num_workers or loader.num_threads or min(8, usable_cores())
    with contextlib.closing(_batches(loader, once=first_epoch)) as batches:
        if not first_epoch:
            _do(step, next(batches)[0])
        finish(device)
        before, faults, busy, began = loader.stats(), major_faults(), time.process_time(), time.perf_counter()
        begun, samples = _tasks(loader), 0
        for batch, count in batches:
            samples += count
            _do(step, batch)
            del batch
            # Threads that began together are ready together: a wave of tasks is counted wholly or not at all.
            if time.perf_counter() - began >= seconds and (first_epoch or (_tasks(loader) - begun) % width == 0):
                break
        finish(device)
        spent, busy = time.perf_counter() - began, time.process_time() - busy
        after = major_faults()
        stats = loader.stats() - before
    return Run(
        settings,
        loader.batch_size or 1,
        samples / spent,
        stats.batches,
        min(1.0, stats.wait / spent),
        stats.gather / stats.batches,
        stats.copy / stats.batches,
        stats.depth,
        busy / spent,
        None if after is None or faults is None else after - faults,
    )


def in_turns(measure: Mapping[Key, Callable[[float], Run]], *, seconds: float, rounds: int) -> dict[Key, list[Run]]:
    """Measure several things in turns, so that what else the machine does disturbs all.

    Each is measured once; after that, turns end with the time.
    """
    found: dict[Key, list[Run]] = {name: [] for name in measure}
    end = time.perf_counter() + seconds
    for number in range(rounds):
        if number and time.perf_counter() >= end:
            break
        for name, one in measure.items():
            found[name].append(one(seconds / rounds / len(measure)))
    return found


def median(runs: Sequence[Run]) -> Run:
    """The one in the middle by its rate; of two the quicker one, which was disturbed less."""
    return sorted(runs, key=lambda run: run.rate)[len(runs) // 2]


def gain_of(used: Sequence[Run], wanted: Sequence[Run]) -> float:
    """How many times as quick the second is, the median over turns; 1 if it was not quicker in each of them.

    What is quicker in two turns and slower in the third was quicker by chance.
    """
    gains = sorted(b.rate / a.rate for a, b in zip(used, wanted, strict=True))
    return gains[len(gains) // 2] if gains[0] > 1 else 1.0


def finish(device: torch.device) -> None:
    """Wait for what was begun on a device."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    elif device.type == "mps":
        torch.mps.synchronize()


def major_faults() -> int | None:
    """Pages that this process had to wait for while they were read from storage; None on Windows."""
    try:
        import resource
    except ModuleNotFoundError:
        return None
    return resource.getrusage(resource.RUSAGE_SELF).ru_majflt


def _tasks(loader: DataLoader) -> int:
    """Tasks of threads that were handed out so far, or batches where no threads are at work."""
    stats = loader.stats()
    return stats.requests or stats.batches


def _do(step: Step | None, batch: Any) -> None:
    if step is not None:
        step(batch)


def _batches(loader: DataLoader, *, once: bool) -> Generator[tuple[Any, int], None, None]:
    """Batches with the number of their samples, epoch after epoch."""
    size, total = loader.batch_size or 1, len(loader.sampler)  # type: ignore[arg-type]
    while True:
        for number, batch in enumerate(loader):
            yield batch, min(size, total - number * size)
        if once:
            return
