"""A worker process: forked by the conversion's process, or by a program of this library, or such a program itself.

A program imports what its source needs, and never the script that started the conversion. On Linux, one program imports
this for all workers, and forks them. The fork server of `multiprocessing` would run the script.
"""

from __future__ import annotations

import contextlib
import mmap
import multiprocessing
import os
import pickle
import signal
import sys
import tempfile
import threading
import traceback
import warnings
from collections.abc import Sequence
from multiprocessing import connection as connections
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess

from PIL import Image

from tensorstore_ds.conversion.blocks import BlockResult, Job, convert_block
from tensorstore_ds.errors import TsdsError
from tensorstore_ds.machine import MemoryGate

#: The class of a connection's end that was inherited: on Windows connections are named pipes, elsewhere sockets.
_CONNECTION = getattr(connections, "PipeConnection", Connection)


class Shared:
    """What a conversion shares with all its workers, by inherited `descriptors`.

    `positions` has the sample that each worker is at, in its block. Workers wait for memory at the `gate`.
    """

    def __init__(self, workers: int, nbytes: int, descriptors: Sequence[int] | None = None) -> None:
        size = 8 * workers
        self._living: int | None = None  # open in the parent alone: its end is the end of `_life`
        with contextlib.ExitStack() as opened:  # closed at once where the rest fails
            if descriptors is None:
                self._life, self._living = os.pipe()
                opened.callback(os.close, self._life)
                opened.callback(self.end_with_parent_alone)
                file = _memory()
                opened.callback(os.close, file)
                os.write(file, bytes(size))  # not only made longer: where a disk is full, this fails
                self.gate = MemoryGate(nbytes)
                opened.callback(self.gate.close)
            else:
                self._life, file = descriptors[:2]
                self.gate = MemoryGate(nbytes, descriptors=descriptors[2:])
            mapped = opened.enter_context(mmap.mmap(file, size))
            self.positions = opened.enter_context(memoryview(mapped).cast("q"))
            self._opened = opened.pop_all()
        self.descriptors = (self._life, file, *self.gate.descriptors)

    def close(self) -> None:
        """Close all descriptors, which ends the workers that still live."""
        self._opened.close()

    def end_with_parent_alone(self) -> None:
        """Close, in this process, the descriptors that show other workers that the parent lives."""
        if self._living is not None:
            os.close(self._living)
            self._living = None

    def end_without_a_thread(self) -> None:
        """Let the kernel end this process with its parent (signal SIGIO); a thread would make forking unsafe."""
        import fcntl

        fcntl.fcntl(self._life, fcntl.F_SETOWN, os.getpid())
        fcntl.fcntl(self._life, fcntl.F_SETFL, fcntl.fcntl(self._life, fcntl.F_GETFL) | os.O_ASYNC)

    def wait_for_the_end(self) -> None:
        """End this process after its parent was killed (SIGKILL); it would wait forever."""
        os.read(self._life, 1)
        os._exit(1)


def _memory() -> int:
    """A descriptor of a file in memory that other processes can map."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create("tsds-positions")
    with tempfile.TemporaryFile() as temporary:
        return os.dup(temporary.fileno())


def program(numbers: str) -> None:
    """Run a worker, or the program that forks all workers; `numbers` are its pipes and the descriptors of `Shared`."""
    *connections, a, b, c, d, e, f = (int(number) for number in numbers.split(","))
    descriptors = [a, b, c, d, e, f]
    if sys.platform == "win32":
        import msvcrt

        descriptors = [msvcrt.open_osfhandle(handle, os.O_BINARY) for handle in descriptors]
    ours, *theirs = map(_CONNECTION, connections)
    _prepare()
    with contextlib.suppress(EOFError, OSError):  # the other process has gone, or is told by the end of the pipe
        workers, nbytes, slot = ours.recv()
        shared = Shared(workers, nbytes, descriptors)
        if theirs:
            shared.end_without_a_thread()
        try:
            job = pickle.loads(ours.recv_bytes())  # noqa: S301  # from our own parent
        except Exception as error:  # whatever a stranger's module raises when it is imported here
            ours.send(f"the source cannot be rebuilt in a worker process ({error})")
            return
        if not theirs:
            ours.send("")
            work(job, ours, shared, slot)
        elif len(os.listdir("/proc/self/task")) == 1:
            _fork_workers(job, ours, theirs, shared)
        else:  # a module of the source has started threads, and a forked process would not have them
            ours.send(None)


def _fork_workers(job: Job, ours: Connection, theirs: list[Connection], shared: Shared) -> None:
    """Fork the workers and report how one ended, until the parent asks no more or has ended; then end them all."""
    processes = list[BaseProcess]()
    try:
        for slot, connection in enumerate(theirs):
            arguments = (job, connection, shared, slot, [ours, *theirs[slot + 1 :]])
            child = multiprocessing.get_context("fork").Process(target=forked, args=arguments)
            child.start()
            processes.append(child)
            connection.close()
        ours.send("")
        while (asked := ours.recv()) is not None:
            processes[asked].join(1)
            ours.send(processes[asked].exitcode)
    finally:
        for process in processes:
            process.kill()
        for process in processes:
            process.join()


def forked(job: Job, connection: Connection, shared: Shared, slot: int, others: Sequence[Connection] = ()) -> None:
    """Run a forked worker. `others` are connections of other processes, which wait for their ends."""
    shared.end_with_parent_alone()
    for other in others:
        other.close()
    work(job, connection, shared, slot)


def _prepare() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the parent decides
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    if hasattr(signal, "pthread_sigmask"):  # not on Windows
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
    # A damaged EXIF block and the like: the pixels are still checked, and stderr belongs to the progress bar.
    warnings.filterwarnings("ignore", module=r"PIL\.")
    Image.MAX_IMAGE_PIXELS = None  # `max_pixels` is the limit here
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # the workers together have all cores already


def work(job: Job, connection: Connection, shared: Shared, slot: int) -> None:
    """Convert blocks in a worker process until there are no more."""
    _prepare()
    threading.Thread(target=shared.wait_for_the_end, daemon=True).start()
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(1)
    positions, gate = shared.positions, shared.gate

    def begin_sample(i: int) -> None:
        gate.release()
        positions[slot] = i

    while True:
        try:
            block = connection.recv()
        except (EOFError, ConnectionError):  # the parent has closed its end
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
    with contextlib.suppress(ConnectionError):  # the parent has closed its end: the next block is the last
        connection.send_bytes(data)
