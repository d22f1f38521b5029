"""Blocks converted in worker processes.

Workers are processes because decoding holds the GIL more than it should. Rows of fixed fields, which are nearly all of
the bytes, never pass through a pipe: workers write them straight into the shard's files.
"""

from __future__ import annotations

import contextlib
import io
import multiprocessing
import os
import pickle
import signal
import sys
import threading
import warnings
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures import wait as wait_for
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.connection import wait as wait_for_objects
from pathlib import Path
from typing import Any

from PIL import Image

from tensorstore_ds.blocks import BlockResult, Job, convert_block
from tensorstore_ds.encode import own_pixel_limit
from tensorstore_ds.errors import ConversionError
from tensorstore_ds.memory import MemoryGate, memory_limit
from tensorstore_ds.plan import Block

#: After so many seconds at the same sample a worker's silence is told.
SILENCE = 60.0

_UNGUARDED = "worker processes do not start (a script needs its calls under: if __name__ == '__main__')"

Tasks = Iterable[tuple[Block, Mapping[str, Path]]]
Results = Generator[tuple[Block, BlockResult], None, None]


def run_blocks(job: Job, tasks: Tasks, workers: int, note: Callable[[str], None]) -> Results:
    """Convert blocks in `workers` processes, or in this one if 0; results come in the order of the blocks.

    Only a few blocks are under way at a time. Close the generator to end the processes, even one that hangs.

    Args:
        note: called with a line that the user should see: a worker is silent, or there can be none.

    Raises:
        SourceError: as `convert_block`.
        ConversionError: a worker process died.
    """
    method = start_method()
    try:
        if workers:
            payload = job if method == "fork" else _pickled(job, memory_limit() // (2 * workers + 2))
            with _Workers(payload, workers, method) as processes:
                if method == "spawn":
                    processes.check()
                yield from processes.run(job, tasks, note)
            return
    except _NoWorkers as error:
        note(f"{job.source.path}: converted in this process alone: {error}.")
    with own_pixel_limit():
        for block, paths in tasks:
            yield block, convert_block(job, block, paths)


def start_method() -> str:
    """``fork`` where it is safe: it starts in milliseconds and hands over any source. Else ``spawn``.

    A forked process has only the thread that forked. What others held stays locked; and the pool of an OpenMP runtime,
    such as torch's, is waited for without end. OpenBLAS, at most a thread a core, takes care of that itself.
    """
    if sys.platform != "linux" or threading.active_count() > 1:
        return "spawn"
    libraries = Path("/proc/self/maps").read_text("utf-8", "replace")
    openmp = any(name in libraries for name in ("libgomp", "libomp", "libiomp"))
    threads = len(os.listdir("/proc/self/task"))
    return "spawn" if openmp or threads > len(os.sched_getaffinity(0)) else "fork"


# --- in the parent ----------------------------------------------------------------------------------------------


class _NoWorkers(Exception):
    """There can be no worker processes for this source; the message says why."""


@dataclass(frozen=True, slots=True)
class _UnderWay:
    """A block that was handed to the workers; `slot` is where its worker notes the sample that it is at."""

    block: Block
    slot: int
    future: Future[BlockResult]


class _Workers:
    """Worker processes; a context manager that ends them, also those that hang."""

    def __init__(self, payload: Job | bytes, workers: int, method: str) -> None:
        context: Any = multiprocessing.get_context(method)
        self._method = method
        self._positions = context.RawArray("q", 3 * workers + 1)
        self._receiver, self._sender = context.Pipe(duplex=False)
        gate = MemoryGate(context, memory_limit() // 2)
        start = (payload, self._positions, gate, self._receiver)
        self._pool = ProcessPoolExecutor(workers, context, _start_worker, start)

    def __enter__(self) -> _Workers:
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        if kind is not None:
            self._sender.send_bytes(b"end")  # read by none, so that every worker sees it
        self._pool.shutdown(cancel_futures=True)
        self._sender.close()
        self._receiver.close()

    def check(self) -> None:
        """Wait for the first worker; raises `_NoWorkers` where it cannot begin."""
        try:
            with _no_interrupt():
                failure_known = self._pool.submit(_failure)
            failure = failure_known.result()
        except BrokenProcessPool as error:
            raise _NoWorkers(_UNGUARDED) from error
        if failure:
            raise _NoWorkers(failure)

    def run(self, job: Job, tasks: Tasks, note: Callable[[str], None]) -> Results:
        """As `run_blocks`."""
        under_way: deque[_UnderWay] = deque()
        try:
            for number, (block, paths) in enumerate(tasks):
                slot = number % len(self._positions)
                self._positions[slot] = -1
                with _no_interrupt():
                    future = self._pool.submit(_convert_in_worker, slot, block, paths)
                under_way.append(_UnderWay(block, slot, future))
                if len(under_way) == len(self._positions):
                    yield self._result(job, under_way.popleft(), note)
            while under_way:
                yield self._result(job, under_way.popleft(), note)
        except BrokenProcessPool as error:
            raise ConversionError(
                "a worker process died, killed by the system or for want of memory. "
                "Run the same command again to go on; fewer workers need less memory."
            ) from error

    def _result(self, job: Job, item: _UnderWay, note: Callable[[str], None]) -> tuple[Block, BlockResult]:
        before = self._positions[item.slot]
        while not wait_for([item.future], SILENCE).done:
            at = self._positions[item.slot]
            if at == before:
                reference = item.block.references[max(0, at)]
                key = job.source.key(item.block.source_split, reference)
                note(f"{key}: nothing was heard for {SILENCE:g} s of the worker that has this sample.")
            before = at
        return item.block, item.future.result()


class _Sink(io.BytesIO):
    """Memory for a limited number of bytes."""

    def __init__(self, limit: int) -> None:
        super().__init__()
        self._limit = limit

    def write(self, data: Any, /) -> int:
        if self.tell() + memoryview(data).nbytes > self._limit:
            raise _NoWorkers(f"the source holds more than {self._limit:,} bytes, and each worker would have a copy")
        return super().write(data)


def _pickled(job: Job, limit: int) -> bytes:
    """A job as bytes, for processes that do not inherit it; raises `_NoWorkers`."""
    sink = _Sink(limit)
    try:
        pickle.dump(job, sink, protocol=pickle.HIGHEST_PROTOCOL)
    except _NoWorkers:
        raise
    except Exception as error:  # whatever a stranger's objects raise that were not made to be pickled
        raise _NoWorkers(f"the source cannot be sent to worker processes ({error})") from error
    return sink.getvalue()


@contextlib.contextmanager
def _no_interrupt() -> Iterator[None]:
    """Keep Ctrl-C waiting: processes that are started now never get it, not even before they are ready to ignore it."""
    if not hasattr(signal, "pthread_sigmask"):  # Windows
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


# --- in a worker ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Worker:
    """What a worker process knows: its job, or why it has none.

    Attributes:
        positions: where it notes the sample that it is at, for each block under way.
        gate: where it waits before it decodes a large image.
    """

    job: Job | None
    positions: Any
    gate: MemoryGate
    failure: str = ""


_worker: _Worker | None = None


def _start_worker(payload: Job | bytes, positions: Any, gate: MemoryGate, end: Connection) -> None:
    global _worker
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the parent decides
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    threading.Thread(target=_end_when_told, args=(end,), daemon=True).start()
    # A damaged EXIF block and the like: the pixels are still checked, and stderr belongs to the progress bar.
    warnings.filterwarnings("ignore", module=r"PIL\.")
    Image.MAX_IMAGE_PIXELS = None  # `max_pixels` is the limit here
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # the workers together have all cores already
    try:
        job = pickle.loads(payload) if isinstance(payload, bytes) else payload  # noqa: S301  # from our own parent
        _worker = _Worker(job, positions, gate)
    except Exception as error:  # whatever a stranger's module raises when it is imported here
        _worker = _Worker(None, positions, gate, f"the source cannot be rebuilt in a worker process ({error})")
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(1)


def _end_when_told(end: Connection) -> None:
    """End this process when the parent says so, or has gone without a word (SIGKILL); it would wait for ever."""
    parent = multiprocessing.parent_process()
    wait_for_objects([end] if parent is None else [end, parent.sentinel])
    os._exit(1)


def _failure() -> str:
    return _worker.failure if _worker else "a worker process began without its job"


def _convert_in_worker(slot: int, block: Block, paths: Mapping[str, Path]) -> BlockResult:
    if _worker is None or _worker.job is None:
        raise ConversionError(f"{_failure()}.")
    positions, gate = _worker.positions, _worker.gate

    def begin_sample(i: int) -> None:
        gate.release()
        positions[slot] = i

    try:
        return convert_block(_worker.job, block, paths, begin_sample, gate.take)
    finally:
        gate.release()
