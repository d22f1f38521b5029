"""Blocks converted in worker processes.

Workers are processes because decoding holds the GIL more than it should. Rows of fixed fields, which are nearly all of
the bytes, never pass through a pipe: workers write them straight into the shard's files.
"""

from __future__ import annotations

import contextlib
import io
import multiprocessing
import multiprocessing.spawn
import os
import pickle
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait as wait_for
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import FunctionType
from typing import Any, cast

from tensorstore_ds.conversion.blocks import BlockResult, Job, convert_block
from tensorstore_ds.conversion.plan import Block
from tensorstore_ds.conversion.worker import Shared, forked
from tensorstore_ds.errors import ConversionError
from tensorstore_ds.imaging.codecs import quiet_pillow
from tensorstore_ds.machine import memory_limit, uninterrupted

#: Seconds at one sample after which a worker's silence is reported.
SILENCE = 60.0
#: Blocks that a worker has at a time, so that the next one is ready when it has finished one.
_AHEAD = 2
#: A larger block is not sent ahead: its worker may not read it yet, and this process would wait.
#: A pipe of Linux holds more than this; the ones of macOS and Windows hold 8 KiB.
_SENT_AHEAD_NBYTES = (64 if sys.platform == "linux" else 4) * 1024

_DIED = (
    "a worker process died: it was killed, or memory ran out. "
    "Run the same command again to continue; fewer workers need less memory."
)
_ENDED = "the source ended its worker process with status {}. Convert with 0 workers to see where."
#: Not ``-m``: the current folder must not decide what is imported, and `PYTHONPATH` is the user's.
_PROGRAM = (
    "import sys; sys.path[:] = sys.argv[2:]; from tensorstore_ds.conversion.worker import program as p; p(sys.argv[1])"
)

Results = Generator[BlockResult, None, None]


def run_blocks(job: Job, blocks: Iterable[Block], workers: int, note: Callable[[str], None]) -> Results:
    """Convert blocks in `workers` processes, or in this one if 0; yields results in the order of the blocks.

    Only a few blocks are in progress at a time. Close the generator to end the processes, even one that hangs. `note`
    is called with a line for the user if a worker is silent, or workers cannot be used.
    """
    try:
        if workers:
            with _Workers(job, workers) as processes:
                yield from processes.run(blocks, note)
            return
    except _NoWorkers as error:
        note(f"{job.source.path}: converted in this process alone: {error}.")
    with quiet_pillow():
        for block in blocks:
            yield convert_block(job, block)


def start_method() -> str:
    """``fork`` where it is safe: it starts in milliseconds and passes on any source. Else ``program``, see `worker`.

    A forked process has only the thread that forked. Locks of other threads stay locked, and the pool of an OpenMP
    runtime, such as torch's, is waited for forever. OpenBLAS, at most a thread a core, handles a fork itself.
    """
    if sys.platform != "linux" or threading.active_count() > 1:
        return "program"
    libraries = Path("/proc/self/maps").read_text("utf-8", "replace")
    openmp = any(name in libraries for name in ("libgomp", "libomp", "libiomp"))
    threads = len(os.listdir("/proc/self/task"))
    return "program" if openmp or threads > len(os.sched_getaffinity(0)) else "fork"


# --- in the parent ----------------------------------------------------------------------------------------------


class _NoWorkers(Exception):
    """This source cannot use worker processes; the message gives the reason."""


@dataclass(slots=True)
class _Worker:
    """A worker process, as seen by its parent."""

    connection: Connection
    process: BaseProcess | subprocess.Popen[bytes] | None  #: None if a program has forked it
    blocks: deque[tuple[int, Block]] = field(default_factory=deque)  #: those that it has, with their numbers


class _Workers:
    """Worker processes, each with its own pipe; a context manager that ends them, even if they hang.

    `concurrent.futures` would wait forever for the rest of a result whose writer was killed, because its workers share
    a pipe. `multiprocessing` would run the user's script again where it cannot fork, also in its fork server. Making or
    entering it raises `_NoWorkers` if workers cannot be used.
    """

    def __init__(self, job: Job, count: int) -> None:
        self._job, self._count, self._nbytes = job, count, memory_limit() // 2
        self._forks = start_method() == "fork"
        self._payload = b"" if self._forks else _pickled(job, memory_limit() // (2 * count + 2))
        self._workers: list[_Worker] = []
        self._forking: tuple[subprocess.Popen[bytes], Connection] | None = None  # the program that has forked all
        self._next: tuple[int, Block, bytes] | None = None  # a block that is to be sent, with its number
        self._results: dict[int, BlockResult] = {}

    def __enter__(self) -> _Workers:
        try:
            self._shared = Shared(self._count, self._nbytes)
            try:
                if self._forks:
                    self._fork()
                elif not (sys.platform == "linux" and self._count > 1 and self._start_one_that_forks()):
                    self._start_programs()
            except BaseException:
                self.__exit__()
                raise
        except (EOFError, OSError) as error:  # such as a limit on processes or descriptors
            raise _NoWorkers(f"worker processes cannot be started ({str(error) or 'they end at once'})") from error
        return self

    def __exit__(self, *error: object) -> None:
        for worker in self._workers:
            worker.connection.close()
            if worker.process is not None:
                worker.process.kill()  # without work they have nothing to finish
        for worker in self._workers:
            if worker.process is not None:
                _status(worker.process)
        self._end_the_one_that_forks()
        self._shared.close()

    def _fork(self) -> None:
        with uninterrupted():  # processes that are started now do not get a signal before they are ready
            for slot in range(self._count):
                ours, theirs = multiprocessing.Pipe()
                with theirs:  # closed, so that the worker alone has it, and its death is the end of the pipe
                    arguments = (self._job, theirs, self._shared, slot)
                    process = multiprocessing.get_context("fork").Process(target=forked, args=arguments, daemon=True)
                    process.start()
                self._workers.append(_Worker(ours, process))

    def _start_programs(self) -> None:
        """Start a program for each worker."""
        with uninterrupted():
            for _ in range(self._count):
                ours, theirs = multiprocessing.Pipe()
                with theirs:
                    self._workers.append(_Worker(ours, self._program(theirs)))
        for slot, worker in enumerate(self._workers):
            self._introduce(worker.connection, slot)
        for worker in self._workers:
            if failure := worker.connection.recv():
                raise _NoWorkers(failure)

    def _start_one_that_forks(self) -> bool:
        """Start a program that imports what the source needs, once, and forks the workers; False if it cannot fork."""
        with uninterrupted(), contextlib.ExitStack() as theirs:
            pipes = [multiprocessing.Pipe() for _ in range(1 + self._count)]
            ends = [theirs.enter_context(end) for _, end in pipes]
            control, *connections = (ours for ours, _ in pipes)
            self._forking = self._program(*ends), control
        self._introduce(control, 0)
        answer = control.recv()
        if answer is None:
            self._end_the_one_that_forks()
            return False
        if answer:
            raise _NoWorkers(answer)
        self._workers = [_Worker(ours, None) for ours in connections]
        return True

    def _end_the_one_that_forks(self) -> None:
        if self._forking is not None:
            program, control = self._forking
            self._forking = None
            with contextlib.suppress(OSError):
                control.send(None)
            control.close()
            if _status(program, SILENCE) is None:  # it only ends its workers
                program.kill()
                program.wait()

    def _program(self, *theirs: Connection) -> subprocess.Popen[bytes]:
        """Start a program that knows only what it inherits and is sent, with the module search path of this process."""
        python = multiprocessing.spawn.get_executable()
        if not python or getattr(sys, "frozen", False):
            raise _NoWorkers("there is no Python that could be started for worker processes")
        numbers, options = _inheriting(theirs, self._shared.descriptors)
        path = [entry for entry in sys.path if isinstance(entry, str)]
        flags = vars(subprocess)["_args_from_interpreter_flags"]()  # as `multiprocessing` starts processes
        return subprocess.Popen[bytes](
            [os.fsdecode(python), *flags, "-P", "-c", _PROGRAM, numbers, *path],
            stdin=subprocess.DEVNULL,
            # The workers together have all cores already; and a process without other threads can be forked.
            env={**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
            **options,
        )

    def _introduce(self, connection: Connection, slot: int) -> None:
        """Send the job to a program, which answers why it cannot begin, or an empty text."""
        connection.send((self._count, self._nbytes, slot))
        connection.send_bytes(self._payload)

    def run(self, blocks: Iterable[Block], note: Callable[[str], None]) -> Results:
        """Convert blocks, and yield results in order."""
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
        """Send the next block to a worker; False if there is none, or if the worker would not read it at once."""
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
        """Wait for a message of any worker, and process it."""
        positions = self._shared.positions
        before = positions.tolist()
        ready = wait_for([worker.connection for worker in self._workers], SILENCE)
        for worker, earlier, position in zip(self._workers, before, positions, strict=True):
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
            status = self._status_of(worker)
            said = _DIED if status is None or status < 0 else _ENDED.format(status)  # below 0: by a signal
            raise ConversionError(said) from error
        if isinstance(message, BaseException):
            raise message
        self._results[worker.blocks.popleft()[0]] = message

    def _status_of(self, worker: _Worker) -> int | None:
        """Wait for a worker that has ended or is about to; returns as `_status`."""
        if worker.process is not None:
            return _status(worker.process, 1)
        try:
            _, control = cast(tuple[Any, Connection], self._forking)
            control.send(self._workers.index(worker))
            return cast(int | None, control.recv()) if control.poll(5) else None  # that program may be stopped
        except (EOFError, OSError):  # it was killed as well
            return None


def _status(process: BaseProcess | subprocess.Popen[bytes], timeout: float | None = None) -> int | None:
    """Wait for the end of a process: exit status, below 0 for a signal, or None if it still runs."""
    if isinstance(process, BaseProcess):
        process.join(timeout)
        return process.exitcode
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(timeout)
    return process.returncode


def _inheriting(connections: Sequence[Connection], descriptors: Sequence[int]) -> tuple[str, dict[str, Any]]:
    """Argument that tells a program its inherited descriptors, and the arguments of `subprocess` for it."""
    if sys.platform != "win32":
        numbers = [*(connection.fileno() for connection in connections), *descriptors]
        return ",".join(map(str, numbers)), {"pass_fds": numbers}
    import msvcrt

    handles = [*(connection.fileno() for connection in connections), *map(msvcrt.get_osfhandle, descriptors)]
    for handle in handles:
        os.set_handle_inheritable(handle, True)
    start = subprocess.STARTUPINFO(lpAttributeList={"handle_list": handles})
    flags = subprocess.CREATE_NEW_PROCESS_GROUP  # Ctrl-C is for the parent alone
    return ",".join(map(str, handles)), {"startupinfo": start, "creationflags": flags}


def _pickled(job: Job, limit: int) -> bytes:
    """A job as bytes, for processes that do not inherit it; raises `_NoWorkers` above `limit` bytes."""

    class Sink(io.BytesIO):
        def write(self, data: Any, /) -> int:
            if self.tell() + memoryview(data).nbytes > limit:
                raise _NoWorkers(f"the source holds more than {limit:,} bytes, and each worker would have a copy")
            return super().write(data)

    class Pickler(pickle.Pickler):
        def reducer_override(self, given: Any, /) -> Any:
            if isinstance(given, type | FunctionType) and _is_of_the_script(given.__module__):
                what = f"{given.__qualname__} is defined in the script that runs now, which they do not run again"
                raise _NoWorkers(f"the source cannot be sent to worker processes ({what}: define it in a module)")
            return NotImplemented

    sink = Sink()
    try:
        Pickler(sink, protocol=pickle.HIGHEST_PROTOCOL).dump(job)
    except _NoWorkers:
        raise
    except Exception as error:  # whatever a stranger's objects raise that were not made to be pickled
        raise _NoWorkers(f"the source cannot be sent to worker processes ({error})") from error
    return sink.getvalue()


def _is_of_the_script(module: str | None) -> bool:
    """Whether importing a module in another process would run the current script."""
    spec = getattr(sys.modules.get(module or ""), "__spec__", None)
    return module == "__main__" or bool(getattr(spec, "_initializing", False))
