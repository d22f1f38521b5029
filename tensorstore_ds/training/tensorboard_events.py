"""Scalars for TensorBoard, in its own file format.

Not by torch's SummaryWriter: that writes in a thread, which on a full disk prints a traceback and dies, and files that
it makes within a second are read in the order of their process numbers.
"""

from __future__ import annotations

import io
import os
import socket
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO, Self

from tensorstore_ds.durable import unwritable, write_all


def tensorboard_available() -> bool:
    """Whether the package tensorboard can be imported."""
    try:
        import tensorboard  # noqa: F401
    except ImportError:
        return False
    return True


class EventFile:
    """A new file of scalars in a folder, for which the package tensorboard is needed. A context manager.

    Args:
        folder: is made; each run of each process has a file of its own there.
        first_step: of this file: TensorBoard hides it and those after it in earlier files of the folder.

    Raises:
        TrainingError: it cannot be written.
    """

    def __init__(self, folder: Path, *, first_step: int) -> None:
        self.folder, self.first_step = folder, first_step
        self._file: BinaryIO | None = None

    def __enter__(self) -> Self:
        from tensorboard.compat.proto.event_pb2 import Event, SessionLog

        # TensorBoard reads files in the order of their names, and takes those with "tfevents" in it.
        name = f"events.out.tfevents.{time.time():017.6f}.{socket.gethostname()}.{os.getpid()}"
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._file = open(self.folder / name, "xb", buffering=0)
        except OSError as error:
            raise unwritable(self.folder, error) from error
        try:
            self._write(Event(file_version="brain.Event:2"))
            self._write(Event(step=self.first_step, session_log=SessionLog(status=SessionLog.START)))
        except BaseException:
            self._file.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        if self._file is not None:
            self._file.close()
        self._file = None

    def add(self, scalars: Mapping[str, float], step: int) -> None:
        """Add numbers by name; they are in the file when this returns."""
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary

        for name, value in scalars.items():
            summary = Summary(value=[Summary.Value(tag=name, simple_value=float(value))])
            self._write(Event(step=step, summary=summary))

    def _write(self, event: Any) -> None:
        from tensorboard.summary.writer.record_writer import RecordWriter

        if self._file is None:
            raise ValueError("EventFile: expected to add inside of its `with` block, found it closed.")
        event.wall_time = time.time()
        record = io.BytesIO()
        RecordWriter(record).write(event.SerializeToString())
        try:
            write_all(self._file, record.getvalue())
        except OSError as error:
            raise unwritable(self.folder, error) from error
