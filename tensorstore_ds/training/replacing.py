"""A file is written beside the one that it replaces, and renamed: who looks sees the old one or the new one, whole."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from tensorstore_ds.durable import sync
from tensorstore_ds.errors import TrainingError


@contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """A new binary file, which becomes `path` when the block ends well; else `path` stays as it was.

    It is on disk when the block is over: the file is synced before the rename, and its folder after it.

    Raises:
        TrainingError: it could not be written: a full disk, a folder that is missing or may not be written to.
    """
    path = Path(path)
    partial = partial_of(path)
    before = sys.exception()
    try:
        with open(partial, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
        sync(path.parent)
    except BaseException as error:
        _remove(partial)
        system = _system_error(error, before)
        if system is None or system.filename not in (None, str(partial), str(path), str(path.parent)):
            raise  # nothing that the system said of these files
        raise unwritable(path, system) from error


def partial_of(path: Path) -> Path:
    """Where a file is written; a process that is killed leaves it there, and the next writes over it."""
    return path.with_name(f"{path.name}.partial")


def write_all(file: BinaryIO, data: bytes) -> None:
    """Write to a file without a buffer, which may take less than it is given."""
    rest = memoryview(data)
    while rest:
        rest = rest[file.write(rest) :]


def unwritable(path: Path, error: OSError) -> TrainingError:
    """What to raise when the system refuses to write a file."""
    reason = error.strerror or str(error)
    return TrainingError(f"{path}: expected to write it, found: {reason}. Make room or choose another folder.")


def _system_error(error: BaseException, before: BaseException | None) -> OSError | None:
    """The system's error: `error`, or the one in its place that torch.save raises a RuntimeError about."""
    if isinstance(error, RuntimeError) and error.__context__ is not before:
        error = error.__context__ or error
    return error if isinstance(error, OSError) else None


def _remove(partial: Path) -> None:
    try:
        partial.unlink()
    except OSError:
        return  # it was never made, or the error that is being raised says why it cannot be removed
