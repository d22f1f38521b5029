"""Measure loading: a loader at work for a second or so, alone or with a model, and what its threads do for a batch."""

from __future__ import annotations

import contextlib
import copy
import itertools
import statistics
import threading
import time
from collections.abc import Callable, Generator, Iterable, Sequence
from typing import Any

import numpy as np
import torch

from tensorstore_ds.annex.measuring.diagnosis_results import Decoding, Memory, Run, Settings, TransformRun
from tensorstore_ds.annex.measuring.measure import finish, in_turns, measure
from tensorstore_ds.annex.measuring.measure_machine import hashed
from tensorstore_ds.loading.block_shuffle import BlockShuffleSampler
from tensorstore_ds.loading.dataset import StoreDataset
from tensorstore_ds.loading.loader import DataLoader
from tensorstore_ds.machine import threads_for_loading
from tensorstore_ds.page_cache.warming import warm_in_background
from tensorstore_ds.reading.store import Store
from tensorstore_ds.reading.stored_images import decode_stored

#: Bytes that are brought into memory to measure with, at most.
WARM_NBYTES = 4 * 1024**3
#: Samples are taken to be there up to this part of what was read: two threads read at once, and not at the same pace.
SURELY = 0.9
#: Samples by which the time of a batch is estimated, and images that are decoded at a time.
PILOT = 4
#: Threads that a transform is tried in, at most: more do not tell more; and turns in which it is measured.
MOST_THREADS, TRANSFORM_ROUNDS = 4, 3
#: Small operations that are timed together, longer than a thread keeps the GIL (5 ms); and turns to measure them in.
LAUNCHES, DISTURBED_ROUNDS = 10_000, 3
_NAP = 0.001

Step = Callable[[Any], Any]


# --- rows in memory ---------------------------------------------------------------------------------------------


def remade(dataset: StoreDataset, fields: Sequence[str], transform: Callable[[Any], Any] | None) -> StoreDataset:
    """The same samples with different fields and transform."""
    other = copy.copy(dataset)
    other.fields, other.transform = tuple(fields), transform
    other.as_pil = dataset.as_pil and transform is not None  # batches of PIL images are for transforms alone
    return other


def warmed(store: Store, dataset: StoreDataset, memory: Memory, *, seconds: float) -> StoreDataset:
    """The samples in memory: all, or the first ones that can be read in that time.

    The system may evict pages of others in turn, so this reads at most half of the memory that this process may use,
    and not more than is needed to measure.
    """
    if memory.resident == 1:
        return dataset
    budget = min(WARM_NBYTES, memory.limit // 2, memory.nbytes)
    with warm_in_background(store, splits=dataset.split_name, fields=dataset.fields, budget=budget) as warming:
        warming.wait(seconds)
        done = warming.nbytes_done
    if done >= memory.nbytes:
        return dataset
    rows = dataset._store_rows(np.arange(len(dataset)))
    resident = np.flatnonzero(rows < SURELY * len(dataset.split) * done / memory.nbytes)
    return dataset.subset(resident if len(resident) else [0])


def loadable_batch(dataset: StoreDataset, wanted: int, *, seconds: float) -> int:
    """The batch size that loads in some seconds; smaller than wanted if a transform or an image takes very long."""
    pilot = np.arange(min(PILOT, wanted))
    for _ in range(2):  # the first one may come from storage
        began = time.perf_counter()
        list(dataset.__getitems__(pilot))
        spent = time.perf_counter() - began
    return max(1, min(wanted, int(seconds * len(pilot) / spent)))


# --- a loader at work -------------------------------------------------------------------------------------------


def loader_of(dataset: StoreDataset, settings: Settings, batch_size: int, **arguments: Any) -> DataLoader[Any]:
    """A loader with these settings and other arguments of `DataLoader`."""
    sampler = None
    if settings.block_rows:
        rows, blocks = settings.block_rows, settings.window_blocks
        sampler = BlockShuffleSampler(dataset, block_rows=rows, window_blocks=blocks, rank=0, num_replicas=1)
    arguments = {"collate": "packed", **arguments, **settings.arguments()}
    return DataLoader(dataset, batch_size, sampler=sampler, shuffle=sampler is None, **arguments)


def run(
    loader: DataLoader[Any], settings: Settings, *, seconds: float, step: Step | None = None, first_epoch: bool = False
) -> Run:
    """Take batches of a loader for some seconds, over as many epochs as needed; the last batch is waited for.

    `settings` are recorded. `step` is called with each batch. With `first_epoch`, time starts before the first batch
    and ends with the epoch at the latest; otherwise the first batch, which starts threads, processes and kernels, does
    not count.
    """
    device = loader.device
    width = settings.num_workers or loader.num_threads or threads_for_loading()

    def counted(found: tuple[Any, int]) -> int:
        if step is not None:
            step(found[0])
        return found[1]

    with contextlib.closing(_batches(loader, once=first_epoch)) as batches:
        if not first_epoch:
            counted(next(batches))
        finish(device)
        before, faults = loader.stats(), major_faults()
        timing = measure(batches, seconds, counted, wave=1 if first_epoch else width, device=device)
        after, stats = major_faults(), loader.stats() - before
    return Run(
        settings,
        loader.batch_size or 1,
        rate=timing.rate,
        batches=stats.batches,
        wait=min(1.0, loader.starved(stats) / timing.seconds),
        gather=stats.gather / stats.batches,
        copy=stats.copy / stats.batches,
        depth=stats.depth,
        busy=timing.cpu / timing.seconds,
        major_faults=None if after is None or faults is None else after - faults,
        cause=stats.cause,
    )


def _batches(loader: DataLoader[Any], *, once: bool) -> Generator[tuple[Any, int], None, None]:
    """Batches with their numbers of samples, epoch after epoch."""
    size, total = loader.batch_size or 1, len(loader.sampler)  # type: ignore[arg-type]
    for _ in range(1) if once else itertools.count():
        for number, batch in enumerate(loader):
            yield batch, min(size, total - number * size)


def median(runs: Sequence[Run]) -> Run:
    """The median run by rate; the faster one of two, which was disturbed less."""
    return sorted(runs, key=lambda run: run.rate)[len(runs) // 2]


def gain_of(used: Sequence[Run], wanted: Sequence[Run]) -> float:
    """Speed-up of the second, the median over turns; 1 unless it was faster in every turn.

    A result that is faster in two turns and slower in the third was faster by chance.
    """
    gains = sorted(b.rate / a.rate for a, b in zip(used, wanted, strict=True))
    return gains[len(gains) // 2] if gains[0] > 1 else 1.0


def disturbance(make: Callable[[], DataLoader[Any]], *, seconds: float) -> float:
    """Time of small operations of torch in this thread while a new loader works, relative to their time without it.

    Launches of kernels wait in the same way for the GIL and for a core.
    """
    small, share = torch.zeros(64), seconds / DISTURBED_ROUNDS / 2

    def launches(batches: Iterable[Any]) -> float:
        """Mean seconds of the operations, once after each batch."""
        times: list[float] = []
        end = time.perf_counter() + share
        for _ in batches:
            began = time.perf_counter()
            for _ in range(LAUNCHES):
                small.add_(1)
            times.append(time.perf_counter() - began)
            if began >= end:
                break
        return statistics.fmean(times)

    def beside() -> float:
        with contextlib.closing(_batches(make(), once=False)) as batches:
            next(batches)  # starts the threads, which end with the loader
            return launches(batches)

    found = in_turns({"alone": lambda: launches(itertools.repeat(None)), "beside": beside}, DISTURBED_ROUNDS)
    return statistics.median(a / b for a, b in zip(found["beside"], found["alone"], strict=True))


def major_faults() -> int | None:
    """Major page faults of this process, which wait for storage; None on Windows."""
    try:
        import resource
    except ModuleNotFoundError:
        return None
    return resource.getrusage(resource.RUSAGE_SELF).ru_majflt


# --- what threads do besides copying rows -----------------------------------------------------------------------


def encoding_of(dataset: StoreDataset) -> str:
    """Encoding of the images; empty if none are read."""
    image = dataset.split.fields.get("image") if "image" in dataset.fields else None
    return "" if image is None else image.encoding


def measure_decoding(dataset: StoreDataset, *, seconds: float) -> Decoding | None:
    """Time of decoding in one thread; None if images are pixels."""
    if encoding_of(dataset) in ("", "raw"):
        return None
    column = dataset.split["image"]
    rows = dataset._store_rows(np.arange(len(dataset)))
    read = decode = 0.0
    images = 0
    while not images or read + decode < seconds:
        chosen = [int(rows[(images + i) % len(rows)]) for i in range(PILOT)]
        began = time.perf_counter()
        files = [column[row] for row in chosen]
        between = time.perf_counter()
        for file, row in zip(files, chosen, strict=True):
            decode_stored(file, key=dataset.key(row))
        read, decode = read + between - began, decode + time.perf_counter() - between
        images += PILOT
    return Decoding(read / images, decode / images, dataset.decode is not None)


def measure_transform(dataset: StoreDataset, batch_size: int, cores: int, *, seconds: float) -> TransformRun | None:
    """Effect of the transform on the loader with one thread, several, and without it; None if it has none."""
    if dataset.transform is None:
        return None
    threads = max(2, min(MOST_THREADS, cores))
    plain = remade(dataset, dataset.fields, None)
    share = seconds / TRANSFORM_ROUNDS / 4

    def rate(loaded: StoreDataset, threads: int) -> float:
        settings = Settings(num_threads=threads)
        return run(loader_of(loaded, settings, batch_size), settings, seconds=share).rate

    def turn() -> tuple[float, ...]:
        without, one = rate(plain, threads), rate(dataset, 1)
        several, wait = waiting_for_gil(lambda: rate(dataset, threads))
        # As many threads, which do not hold it: what is left is the system's own delay.
        _, idle = waiting_for_gil(lambda: hashed(threads, seconds=share))
        return without, one, several, max(0.0, wait - idle)

    without, one, several, wait = np.median(in_turns({"": turn}, TRANSFORM_ROUNDS)[""], axis=0).tolist()
    return TransformRun(without, one, several, threads, gil_wait=wait)


def waiting_for_gil(work: Callable[[], float]) -> tuple[float, float]:
    """Result of some work, and the median delay in seconds of another thread that sleeps and wakes meanwhile.

    After it has woken it needs the GIL to continue: other threads that need the GIL, such as the training loop between
    two calls of torch, wait as long. 0 if there was no time to sleep.
    """
    late: list[float] = []
    stopping = threading.Event()

    def nap() -> None:
        while not stopping.is_set():
            began = time.perf_counter()
            time.sleep(_NAP)
            late.append(time.perf_counter() - began - _NAP)

    thread = threading.Thread(target=nap, name="tsds-doctor-gil", daemon=True)
    thread.start()
    try:
        return work(), statistics.median(late or [0.0])
    finally:
        stopping.set()
        thread.join()
