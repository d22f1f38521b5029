"""Blocks converted in worker processes.

Workers are processes because decoding holds the GIL more than it should. Rows of fixed fields, which are nearly all of
the bytes, never pass through a pipe: workers write them straight into the shard's files.
"""

from __future__ import annotations

import io
import multiprocessing
import os
import pickle
import signal
import sys
import threading
import traceback
import warnings
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait as wait_for
from pathlib import Path
from typing import Any

from PIL import Image

from tensorstore_ds.conversion.blocks import BlockResult, Job, convert_block
from tensorstore_ds.conversion.plan import Block
from tensorstore_ds.errors import ConversionError, TsdsError
from tensorstore_ds.imaging.codecs import own_pixel_limit
from tensorstore_ds.machine import MemoryGate, memory_limit, uninterrupted

#: After so many seconds at the same sample a worker's silence is told.
SILENCE = 60.0
#: What the names of worker processes begin with.
WORKER_NAME = "tsds-worker-"
#: Blocks that a worker has at a time: the next one lies ready when it has finished one.
_AHEAD = 2
#: A larger block is not sent ahead: its worker may not read it yet, and this process would wait.
_SENT_AHEAD_NBYTES = 64 * 1024

_DIED = (
    "a worker process died: it was killed, or memory ran out. "
    "Run the same command again to continue; fewer workers need less memory."
)
_ENDED = "the source ended its worker process with status {}. Convert with 0 workers to see where."
_UNGUARDED = "worker processes do not start (a script needs its calls under: if __name__ == '__main__')"

Results = Generator[BlockResult, None, None]


def run_blocks(job: Job, blocks: Iterable[Block], workers: int, note: Callable[[str], None]) -> Results:
    """Convert blocks in `workers` processes, or in this one if 0; results come in the order of the blocks.

    Only a few blocks are under way at a time. Close the generator to end the processes, even one that hangs.

    Args:
        note: called with a line that the user should see: a worker is silent, or there can be none.

    Raises:
        SourceError: as `convert_block`.
        ConversionError: a worker process died.
    """
    try:
        if workers:
            with _Workers(job, workers) as processes:
                yield from processes.run(blocks, note)
            return
    except _NoWorkers as error:
        note(f"{job.source.path}: converted in this process alone: {error}.")
    with own_pixel_limit():
        for block in blocks:
            yield convert_block(job, block)


def end_if_inheriting() -> None:
    """End a worker that runs the user's script again, to find what is defined there; its parent goes on alone."""
    process = multiprocessing.current_process()
    if process.name.startswith(WORKER_NAME) and getattr(process, "_inheriting", False):
        raise SystemExit(1)


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


@dataclass(slots=True)
class _Worker:
    """A worker process, as its parent sees it."""

    process: Any
    connection: Connection
    blocks: deque[tuple[int, Block]] = field(default_factory=deque)  #: those that it has, with their numbers


class _Workers:
    """Worker processes, each at a pipe of its own; a context manager that ends them, also those that hang.

    `concurrent.futures` would wait for ever for the rest of a result whose writer was killed: its workers share a pipe.

    Raises:
        _NoWorkers: there can be none, when it is made or entered.
    """

    def __init__(self, job: Job, count: int) -> None:
        method = start_method()
        file = getattr(sys.modules["__main__"], "__file__", None)
        if method == "spawn" and file is not None and not Path(file).exists():  # they run the script again
            raise _NoWorkers(f"worker processes cannot run a script without a file ({file})")
        self._job, self._count = job, count
        self._payload = job if method == "fork" else _pickled(job, memory_limit() // (2 * count + 2))
        self._context: Any = multiprocessing.get_context(method)
        self._positions = self._context.RawArray("q", count)  # the sample that each worker is at
        self._gate = MemoryGate(self._context, memory_limit() // 2)  # kept: workers find it by its name
        self._workers: list[_Worker] = []
        self._next: tuple[int, Block, bytes] | None = None  # a block that is to be sent, with its number
        self._results: dict[int, BlockResult] = {}

    def __enter__(self) -> _Workers:
        try:
            with uninterrupted():  # processes that are started now do not get a signal before they are ready
                for slot in range(self._count):
                    ours, theirs = self._context.Pipe()
                    arguments = (self._payload, theirs, self._positions, slot, self._gate)
                    name = f"{WORKER_NAME}{slot}"
                    process = self._context.Process(target=_work, args=arguments, name=name, daemon=True)
                    process.start()
                    theirs.close()  # so that the worker alone has it, and its death is the end of the pipe
                    self._workers.append(_Worker(process, ours))
            if self._payload is not self._job:  # where the first one cannot begin, none can
                try:
                    failure = self._workers[0].connection.recv()
                except (EOFError, OSError) as error:
                    raise _NoWorkers(_UNGUARDED) from error
                if failure:
                    raise _NoWorkers(failure)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        for worker in self._workers:
            worker.connection.close()
            worker.process.kill()  # without work they have nothing to finish
        for worker in self._workers:
            worker.process.join()

    def run(self, blocks: Iterable[Block], note: Callable[[str], None]) -> Results:
        """As `run_blocks`."""
        remaining = enumerate(blocks)
        handed = yielded = 0
        while True:
            for worker in self._workers * _AHEAD:
                room = handed - yielded < (_AHEAD + 1) * len(self._workers)
                if room and len(worker.blocks) < _AHEAD and self._hand_out(worker, remaining):
                    handed += 1
            if handed == yielded:
                return
            self._receive(note)
            while yielded in self._results:
                yield self._results.pop(yielded)
                yielded += 1

    def _hand_out(self, worker: _Worker, remaining: Iterator[tuple[int, Block]]) -> bool:
        """Send the next block to a worker; false if there is none, or if the worker would not read it at once."""
        if self._next is None:
            item = next(remaining, None)
            if item is None:
                return False
            self._next = (*item, pickle.dumps(item[1]))
        number, block, data = self._next
        if worker.blocks and len(data) > _SENT_AHEAD_NBYTES:
            return False
        try:
            worker.connection.send_bytes(data)
        except OSError as error:
            raise ConversionError(_DIED) from error
        worker.blocks.append((number, block))
        self._next = None
        return True

    def _receive(self, note: Callable[[str], None]) -> None:
        """Wait for what some worker has to say, and take it in."""
        before = list(self._positions)
        ready = wait_for([worker.connection for worker in self._workers], SILENCE)
        for worker, earlier, position in zip(self._workers, before, self._positions, strict=True):
            if worker.connection in ready:
                self._take_in(worker)
            elif not ready and worker.blocks and earlier == position:
                block = worker.blocks[0][1]
                key = self._job.source.key(block.source_split, block.references[max(0, position)])
                note(f"{key}: nothing was heard for {SILENCE:g} s of the worker that has this sample.")

    def _take_in(self, worker: _Worker) -> None:
        try:
            message = worker.connection.recv()
        except (EOFError, OSError) as error:
            worker.process.join(1)
            status = worker.process.exitcode
            said = _DIED if status is None or status < 0 else _ENDED.format(status)  # below 0: by a signal
            raise ConversionError(said) from error
        if isinstance(message, BaseException):
            raise message
        if isinstance(message, BlockResult):
            self._results[worker.blocks.popleft()[0]] = message
        elif message:
            raise ConversionError(f"{message}.")


def _pickled(job: Job, limit: int) -> bytes:
    """A job as bytes, for processes that do not inherit it; raises `_NoWorkers` where they are more than `limit`."""

    class Sink(io.BytesIO):
        def write(self, data: Any, /) -> int:
            if self.tell() + memoryview(data).nbytes > limit:
                raise _NoWorkers(f"the source holds more than {limit:,} bytes, and each worker would have a copy")
            return super().write(data)

    sink = Sink()
    try:
        pickle.dump(job, sink, protocol=pickle.HIGHEST_PROTOCOL)
    except _NoWorkers:
        raise
    except Exception as error:  # whatever a stranger's objects raise that were not made to be pickled
        raise _NoWorkers(f"the source cannot be sent to worker processes ({error})") from error
    return sink.getvalue()


# --- in a worker ------------------------------------------------------------------------------------------------


def _work(payload: Job | bytes, connection: Connection, positions: Any, slot: int, gate: MemoryGate) -> None:
    """What a worker process does: say that it is ready, or why not; then blocks, until there are no more."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the parent decides
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    if hasattr(signal, "pthread_sigmask"):  # not on Windows
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
    threading.Thread(target=_end_with_parent, daemon=True).start()
    # A damaged EXIF block and the like: the pixels are still checked, and stderr belongs to the progress bar.
    warnings.filterwarnings("ignore", module=r"PIL\.")
    Image.MAX_IMAGE_PIXELS = None  # `max_pixels` is the limit here
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # the workers together have all cores already
    try:
        job = pickle.loads(payload) if isinstance(payload, bytes) else payload  # noqa: S301  # from our own parent
    except Exception as error:  # whatever a stranger's module raises when it is imported here
        connection.send(f"the source cannot be rebuilt in a worker process ({error})")
        return
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(1)
    connection.send("")

    def begin_sample(i: int) -> None:
        gate.release()
        positions[slot] = i

    while True:
        try:
            block = connection.recv()
        except EOFError:
            return
        positions[slot] = -1
        try:
            _answer(connection, convert_block(job, block, begin_sample, gate.take))
        except Exception as error:
            if not isinstance(error, TsdsError):
                error.add_note(traceback.format_exc())  # where a defect is, the parent could not say
            _answer(connection, error)
        finally:
            gate.release()


def _answer(connection: Connection, answer: BlockResult | Exception) -> None:
    try:
        data = pickle.dumps(answer)
    except Exception as error:  # a stranger's exception that was not made to be pickled
        data = pickle.dumps(RuntimeError(f"{answer!r} ({error})"))
    connection.send_bytes(data)


def _end_with_parent() -> None:
    """End this process when the parent has gone without a word (SIGKILL); it would wait for ever."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait_for([parent.sentinel])
        os._exit(1)
