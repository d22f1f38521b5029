"""Write, sync and lock a file: with what POSIX has, or on Windows with what there is instead."""

from __future__ import annotations

import errno
import os
from pathlib import Path

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

try:
    import msvcrt
except ImportError:  # anywhere else
    msvcrt = None  # type: ignore[assignment]

#: What a lock is refused with when somebody else has it; Windows says EACCES or EDEADLOCK.
_HELD = (errno.EWOULDBLOCK, errno.EAGAIN, errno.EACCES)
#: Given to `os.open` wherever they exist: bytes as they are, and not for children.
_FLAGS = getattr(os, "O_BINARY", 0) | getattr(os, "O_CLOEXEC", 0)


def sync(path: Path) -> None:
    """Wait until a file or a folder is on disk. Windows syncs files alone, and keeps the names in its own journal."""
    folder = path.is_dir()
    if folder and not hasattr(os, "O_DIRECTORY"):
        return
    # Windows flushes what is open for writing.
    descriptor = os.open(path, (os.O_RDONLY if hasattr(os, "O_DIRECTORY") else os.O_RDWR) | _FLAGS)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_at(path: Path, data: memoryview, offset: int) -> None:
    """Write bytes at a place of a file that exists, past any buffer: a full disk is an `OSError`, in this call."""
    descriptor = os.open(path, os.O_WRONLY | _FLAGS)
    try:
        while data:
            if hasattr(os, "pwrite"):
                written = os.pwrite(descriptor, data, offset)
            else:
                os.lseek(descriptor, offset, os.SEEK_SET)
                written = os.write(descriptor, data)
            data, offset = data[written:], offset + written
    finally:
        os.close(descriptor)


def lock(descriptor: int) -> bool:
    """Lock an open file for this process alone, until the descriptor is closed.

    Returns:
        False: another process has it.

    Raises:
        OSError: there are no locks here: a file system without them, or a server that does not answer.
    """
    try:
        if fcntl is not None:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        elif msvcrt is not None:
            os.lseek(descriptor, 0, os.SEEK_SET)
            msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
        else:
            raise OSError(errno.ENOSYS, "this system has no file locks")
    except OSError as error:
        if error.errno in _HELD:
            return False
        raise
    return True
