"""A worker process: forked, or a program of this library that another process starts.

As a program it imports what its source needs, and never the script that started the conversion.
"""

from __future__ import annotations

import mmap
import os
import pickle
import signal
import sys
import tempfile
import threading
import traceback
import warnings
from multiprocessing import connection as connections
from multiprocessing.connection import Connection

from PIL import Image

from tensorstore_ds.conversion.blocks import BlockResult, Job, convert_block
from tensorstore_ds.errors import TsdsError
from tensorstore_ds.machine import MemoryGate

#: The class of a connection's end that was inherited: on Windows connections are named pipes, elsewhere sockets.
_CONNECTION = getattr(connections, "PipeConnection", Connection)


class Shared:
    """What a conversion shares with all its workers, by descriptors that they inherit.

    Attributes:
        positions: the sample that each worker is at, in its block.
        gate: where workers wait for memory.
        descriptors: of all this, for `program`.

    Args:
        workers: their number.
        nbytes: of memory, as of `MemoryGate`.
        descriptors: inherited from the process that made the first one. None makes a new one.
    """

    def __init__(self, workers: int, nbytes: int, descriptors: tuple[int, ...] | None = None) -> None:
        size = 8 * workers
        self._living: int | None = None  # open in the parent alone: its end is the end of `_life`
        if descriptors is None:
            self._life, self._living = os.pipe()
            self._file = _memory(size)
            self.gate = MemoryGate(nbytes)
        else:
            self._life, self._file = descriptors[:2]
            self.gate = MemoryGate(nbytes, descriptors=descriptors[2:])
        self._map = mmap.mmap(self._file, size)
        self.positions = memoryview(self._map).cast("q")
        self.descriptors = (self._life, self._file, *self.gate.descriptors)

    def close(self) -> None:
        """End the workers that still live, and give back all that is open."""
        self.end_with_parent_alone()
        self.positions.release()
        self._map.close()
        self.gate.close()
        os.close(self._file)
        os.close(self._life)

    def end_with_parent_alone(self) -> None:
        """Let go, in this process, of what shows the workers that their parent lives."""
        if self._living is not None:
            os.close(self._living)
            self._living = None

    def wait_for_the_end(self) -> None:
        """End this process when the parent has gone without a word (SIGKILL); it would wait for ever."""
        os.read(self._life, 1)
        os._exit(1)


def _memory(size: int) -> int:
    """A descriptor of memory that other processes can map."""
    if hasattr(os, "memfd_create"):
        file = os.memfd_create("tsds-positions")
    else:
        with tempfile.TemporaryFile() as temporary:
            file = os.dup(temporary.fileno())
    os.write(file, bytes(size))  # not only made longer: where a disk is full, this fails
    return file


def program(numbers: str) -> None:
    """Be the worker that `_Workers` has started as a program; `numbers` are its connection and descriptors."""
    connection, *descriptors = (int(number) for number in numbers.split(","))
    if sys.platform == "win32":
        import msvcrt

        descriptors = [msvcrt.open_osfhandle(handle, os.O_BINARY) for handle in descriptors]
    ours = _CONNECTION(connection)
    try:
        workers, nbytes, slot = ours.recv()
        job = ours.recv_bytes()
    except (EOFError, OSError):  # the other process has gone
        return
    work(job, ours, Shared(workers, nbytes, tuple(descriptors)), slot)


def forked(job: Job, connection: Connection, shared: Shared, slot: int) -> None:
    """Be a worker that was forked."""
    shared.end_with_parent_alone()
    work(job, connection, shared, slot)


def work(payload: Job | bytes, connection: Connection, shared: Shared, slot: int) -> None:
    """What a worker process does: say that it is ready, or why not; then blocks, until there are no more."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the parent decides
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    if hasattr(signal, "pthread_sigmask"):  # not on Windows
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
    threading.Thread(target=shared.wait_for_the_end, daemon=True).start()
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
    positions, gate = shared.positions, shared.gate

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
