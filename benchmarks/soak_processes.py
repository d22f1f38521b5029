"""What the soak does in processes of its own, and how such a process counts what it holds."""

from __future__ import annotations

import contextlib
import gc
import itertools
import json
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil

import tensorstore_ds as tsds
from tensorstore_ds.annex.measuring.system import own_nbytes

BATCH = 32
SETTLE = 2.0  # seconds: a thread that was joined, or a process that was waited for, is listed a little longer


# --- epochs -----------------------------------------------------------------------------------------------------


def held() -> dict[str, int]:
    """Memory in kB, and threads, open files and maps of this process."""
    process = psutil.Process()
    return {
        "rss": process.memory_info().rss // 1000,
        "own": (own_nbytes(os.getpid()) or 0) // 1000,
        "threads": process.num_threads(),
        "files": process.num_fds(),
        "maps": len(process.memory_maps(grouped=False)),
    }


def run_epochs(store: Path, epochs: int) -> list[dict[str, int]]:
    """One loader, again and again; what is held after 10, 100, 1,000, ... epochs and at the end."""
    loader = tsds.DataLoader(tsds.StoreDataset(store), BATCH, shuffle=True, num_threads=2)
    rows, seen = len(loader.dataset), []  # type: ignore[arg-type]
    begun = time.perf_counter()
    for epoch in range(1, epochs + 1):
        if sum(len(batch["label"]) for batch in loader) != rows:
            raise RuntimeError(f"epoch {epoch}: expected {rows} samples")
        if epoch == epochs or (epoch >= 10 and str(epoch).strip("0") == "1"):
            settled(lambda: held()["threads"] == (seen[0]["threads"] if seen else 1))
            seen.append({"epoch": epoch, **held(), "seconds": round(time.perf_counter() - begun)})
    return seen


def run_sizes(store: Path, epochs: int) -> list[dict[str, int]]:
    """Images of differing sizes, as lists, padded and cropped in turn; what is held after 10 epochs and at the end."""
    dataset, crops = tsds.StoreDataset(store), tsds.RandomResizedCrop(96)
    loaders = [
        tsds.DataLoader(dataset, BATCH, shuffle=True, num_threads=2),
        tsds.DataLoader(dataset, BATCH, shuffle=True, num_threads=2, collate_images="padded"),
        tsds.DataLoader(dataset, BATCH, shuffle=True, num_threads=2, decode=crops),
    ]
    seen = []
    for epoch in range(1, epochs + 1):
        for loader in loaders:
            if sum(len(batch["label"]) for batch in loader) != len(dataset):
                raise RuntimeError(f"epoch {epoch}: expected {len(dataset)} samples")
        if epoch in (min(10, epochs), epochs):
            seen.append({"epoch": epoch, **held()})
    return seen


def settled(done: Callable[[], bool]) -> None:
    """Look again until it is so, for a while."""
    end = time.monotonic() + SETTLE
    while not done() and time.monotonic() < end:
        time.sleep(0.01)


# --- readers ----------------------------------------------------------------------------------------------------


def _read(store: Path, loading: bool, ready: Any, stop: Any) -> None:
    """Touch every page of every image, or load an epoch; and wait."""
    loader = tsds.DataLoader(tsds.StoreDataset(store), BATCH, shuffle=True, num_threads=2) if loading else ()
    for _ in loader:
        pass
    opened = tsds.open(store)
    for name in opened if not loading else ():
        images = opened[name].column("image")
        for shard in range(images.shards):
            images.part(shard)[:].reshape(-1)[::4096].sum(dtype=np.int64)
    ready.release()
    stop.wait()


def run_readers(store: Path, method: str, count: int, loading: bool) -> list[int]:
    """Start so many readers; write their ids, wait for a line, and end them. Their exit codes."""
    context = multiprocessing.get_context(method)
    ready, stop = context.Semaphore(0), context.Event()
    readers = [context.Process(target=_read, args=(store, loading, ready, stop), daemon=True) for _ in range(count)]
    for reader in readers:
        reader.start()  # type: ignore[attr-defined]
    for _ in readers:
        while not ready.acquire(timeout=1):
            if any(reader.exitcode is not None for reader in readers):  # type: ignore[attr-defined]
                raise RuntimeError("expected all readers to be ready, found one that ended")
    print(json.dumps([reader.pid for reader in readers]), flush=True)  # type: ignore[attr-defined]
    sys.stdin.readline()
    stop.set()
    for reader in readers:
        reader.join()  # type: ignore[attr-defined]
    return [reader.exitcode for reader in readers]  # type: ignore[attr-defined]


# --- loaders that are dropped -----------------------------------------------------------------------------------


class Failure(Exception):
    """Raised on purpose."""


def _raise(sample: Any) -> Any:
    raise Failure


class _Interrupt:
    """A transform during which Ctrl-C comes, once."""

    def __init__(self) -> None:
        self._once = threading.Lock()

    def __call__(self, sample: Any) -> Any:
        if self._once.acquire(blocking=False):
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
        time.sleep(0.01)
        return sample


class _Drops:
    """Ways to leave a loader before its end."""

    def __init__(self, store: Path) -> None:
        self.store = store
        self.workers = {os.getpid()}

    def loader(self, transform: Callable[[Any], Any] | None = None, **options: Any) -> tsds.DataLoader:
        dataset = tsds.StoreDataset(self.store, transform=transform)
        return tsds.DataLoader(dataset, 2, shuffle=True, num_threads=2, **options)

    def break_in_the_middle_twice(self) -> None:
        loader = self.loader()
        for _ in range(2):
            list(itertools.islice(loader, 3))

    def transform_that_raises_in_a_thread(self) -> None:
        with _expected(Failure):
            list(self.loader(_raise))

    def deleted_loader_first(self) -> None:  # its iterator lives on, in a cycle with a batch of its own
        loader = self.loader()
        batches = iter(loader)
        cycle: list[Any] = [next(batches), batches]
        cycle.append(cycle)
        del loader, batches
        next(cycle[1])

    def two_at_once(self) -> None:  # the first one is left, and the second one later
        loader = self.loader()
        first, second = iter(loader), iter(loader)
        for _, _ in zip(range(3), zip(first, second, strict=True), strict=False):
            pass
        del first
        next(second)

    def closed_twice_and_asked_again(self) -> None:
        batches = iter(self.loader())
        next(batches)
        batches.close()
        batches.close()
        if next(batches, None) is not None:
            raise RuntimeError("expected nothing from an iterator that was closed")

    def interrupted_in_the_loop(self) -> None:
        with _expected(KeyboardInterrupt):
            for _ in self.loader():
                signal.raise_signal(signal.SIGINT)

    def interrupted_while_waiting(self) -> None:
        with _expected(KeyboardInterrupt):
            list(self.loader(_Interrupt()))

    def forked(self) -> None:  # a child leaves an iterator of its parent
        batches = iter(self.loader())
        next(batches)
        child = os.fork()
        if not child:
            del batches
            os._exit(0)
        if os.waitpid(child, 0)[1]:
            raise RuntimeError("expected a child that ends")
        next(batches)

    def worker_process(self, loader: tsds.DataLoader | None = None) -> None:  # torch's
        batches = iter(loader or self.loader(num_workers=1))
        next(batches)
        self.workers |= {worker.pid or 0 for worker in multiprocessing.active_children()}

    def persistent_worker(self) -> None:  # used in one whole epoch, and left in the next
        loader = self.loader(num_workers=1, persistent_workers=True)
        for _ in loader:
            pass
        self.worker_process(loader)

    def ways(self) -> Iterator[Callable[[], None]]:
        """All of them, again and again; processes, which take longest, less often."""
        threads = [
            *(self.break_in_the_middle_twice, self.transform_that_raises_in_a_thread, self.deleted_loader_first),
            *(self.two_at_once, self.closed_twice_and_asked_again, self.interrupted_in_the_loop),
            *(self.interrupted_while_waiting, self.forked),
        ]
        return itertools.cycle([*threads, self.worker_process, *threads, self.persistent_worker])

    def left(self) -> dict[str, int]:
        """Threads, open files, child processes and shared memory of this process and of its workers."""
        shared = [entry.name.split("_") for entry in Path("/dev/shm").iterdir()]  # noqa: S108
        own = sum(name[0] == "torch" and name[1] in map(str, self.workers) for name in shared)
        children = len(multiprocessing.active_children())
        return {"threads": held()["threads"], "files": held()["files"], "children": children, "shared": own}


@contextlib.contextmanager
def _expected(kind: type[BaseException]) -> Iterator[None]:
    """Swallow this one exception, and insist on it."""
    try:
        yield
    except kind:
        return
    raise RuntimeError(f"expected {kind.__name__}")


def run_drops(store: Path, count: int) -> tuple[dict[str, int], dict[str, int]]:
    """Leave so many loaders; what is there before and after."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    drops = _Drops(store)
    ways = drops.ways()
    for _ in range(18):  # each way once: what is imported and begun with the first one stays
        next(ways)()
    gc.collect()
    before = drops.left()
    for _ in range(count):
        next(ways)()
    gc.collect()
    settled(lambda: drops.left() == before)
    return before, drops.left()
