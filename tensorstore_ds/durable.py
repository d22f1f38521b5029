"""Write, replace, sync and lock files, on POSIX and Windows."""

from __future__ import annotations

import errno
import io
import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, BinaryIO

from tensorstore_ds import words
from tensorstore_ds.errors import OutputError, TsdsError
from tensorstore_ds.options import user_path

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

try:
    import msvcrt
except ImportError:  # anywhere else
    msvcrt = None  # type: ignore[assignment]

#: Errors for a lock that another process holds; Windows reports EACCES or EDEADLOCK.
_HELD = (errno.EWOULDBLOCK, errno.EAGAIN, errno.EACCES)
#: Errors for a lock on a file system without locks.
_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)
#: Errors for a place that a user may not write to.
NOT_ALLOWED = (errno.EROFS, errno.EACCES, errno.EPERM)
#: The byte that Windows locks, behind all content, because others could not read a locked byte.
_LOCKED_BYTE = 1 << 30
#: Errors for a hard link: too many links, another disk, another user's file, not supported.
_NO_LINKS = (errno.EMLINK, errno.EXDEV, errno.EPERM, errno.EACCES, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL)
#: Flags for `os.open` where they exist: binary, and not inherited by children.
_FLAGS = getattr(os, "O_BINARY", 0) | getattr(os, "O_CLOEXEC", 0)

#: Bytes that are copied at a time, by the system and here.
_BY_SYSTEM, _BY_US = 64 * 1024**2, 8 * 1024**2


def sync(path: Path) -> None:
    """Wait until a file or a folder is on disk. Windows syncs files alone, and keeps the names in its own journal."""
    folder = path.is_dir()
    if folder and not hasattr(os, "O_DIRECTORY"):
        return
    # Windows flushes only files that are open for writing.
    descriptor = os.open(path, (os.O_RDONLY if hasattr(os, "O_DIRECTORY") else os.O_RDWR) | _FLAGS)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_at(path: Path, data: memoryview, offset: int) -> None:
    """Write bytes at a position of an existing file without a buffer, so that a full disk raises `OSError` here."""
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


def lock(descriptor: int, *, shared: bool = False) -> bool:
    """Lock an open file for this process until the descriptor is closed; False if another process holds the lock.

    A `shared` lock can have several holders; on Windows, which has none, it does nothing. Raises `OSError` on file
    systems without locks, or if their server does not answer.
    """
    try:
        if fcntl is not None:
            fcntl.flock(descriptor, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
        elif msvcrt is not None:
            if shared:
                return True
            os.lseek(descriptor, _LOCKED_BYTE, os.SEEK_SET)
            msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
            os.lseek(descriptor, 0, os.SEEK_SET)
        else:
            raise OSError(errno.ENOSYS, "this system has no file locks")
    except OSError as error:
        if error.errno in _HELD:
            return False
        raise
    return True


@contextmanager
def locked_folder(path: Path) -> Iterator[bool]:
    """Hold the lock of a folder during the block; yields False if another process has it.

    Windows opens no folder, and some file systems have no locks: other processes are not noticed there.
    """
    if not hasattr(os, "O_DIRECTORY"):
        yield True
        return
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        try:
            is_ours = lock(descriptor)
        except OSError as error:
            if error.errno not in _NO_LOCKS:
                raise
            is_ours = True
        yield is_ours
    finally:
        os.close(descriptor)


@contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """A new binary file, which becomes `path` when the block ends without an exception; otherwise `path` is unchanged.

    It is on disk at the end of the block: the file is synced before the rename, and its folder after it. Raises
    `OutputError` if it cannot be written.
    """
    path = user_path(path)
    partial = partial_of(path)
    before = sys.exception()
    try:
        with open(partial, "wb", opener=_without_links) as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    except BaseException as error:
        with suppress(OSError):  # it was never made, or the error that is being raised says why it stays
            partial.unlink()
        system: BaseException = error
        if isinstance(error, RuntimeError) and error.__context__ is not before:  # torch.save raises it in its place
            system = error.__context__ or error
        if not isinstance(system, OSError) or system.filename not in (None, *map(str, (partial, path, path.parent))):
            raise  # nothing that the system said of these files
        raise unwritable(path, system) from error
    try:
        sync(path.parent)
    except OSError as error:
        raise OutputError(unsynced(path, error)) from error


def exchange(path: Path, other: Path) -> None:
    """Let two folders change places: in one step on Linux, elsewhere in three."""
    if sys.platform == "linux":
        import ctypes

        libc = ctypes.CDLL(None, use_errno=True)  # renameat2 with AT_FDCWD and RENAME_EXCHANGE
        if hasattr(libc, "renameat2"):
            if libc.renameat2(-100, os.fsencode(path), -100, os.fsencode(other), 2) == 0:
                return
            if (number := ctypes.get_errno()) not in (errno.ENOSYS, errno.EINVAL):  # of old kernels, of network drives
                raise OSError(number, os.strerror(number), str(path))
    third = path.with_name(f"{path.name}.old")
    other.rename(third)
    try:
        path.rename(other)
    except BaseException:
        third.rename(other)
        raise
    third.rename(path)


def write_file(path: str | os.PathLike[str], data: bytes) -> None:
    """Write or replace a file with these bytes, atomically and synced."""
    with replacing(path) as file:
        file.write(data)


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn errors of the system while writing `path` into `OutputError`."""
    try:
        yield
    except TsdsError:  # some are system errors to Python, too
        raise
    except OSError as error:
        raise unwritable(path, error) from error


def check_room(
    path: Path, needed: int, raised: type[TsdsError] = OutputError, advice: str = "Make room, or choose another folder."
) -> None:
    """Raise unless `needed` bytes are free on the disk of a path, which may not exist yet."""
    free = shutil.disk_usage(next(each for each in (path, *path.parents) if each.exists())).free
    if needed > free:
        found = f"expected at least {words.size(needed)} free on this disk, found {words.size(free)}"
        raise raised(f"{path}: {found}. {advice}")


def unsynced(path: Path, error: OSError) -> str:
    """A message about a file or folder that exists, but may not survive a power loss."""
    reason = error.strerror or str(error)
    return (
        f"{path}: it is whole, but its folder could not be synced ({reason}): a power loss may undo it. Check the disk."
    )


def _without_links(path: str, flags: int) -> int:
    """Open a file for writing, but not through a link, which another user may have left in a shared folder."""
    return os.open(path, flags | getattr(os, "O_NOFOLLOW", 0) | _FLAGS, 0o666)


def partial_of(path: Path) -> Path:
    """Path of a file while it is written; a killed process leaves it there, and the next one overwrites it."""
    return path.with_name(f"{path.name}.partial")


def write_all(file: BinaryIO, data: bytes | memoryview) -> None:
    """Write all bytes to an unbuffered file, which may accept fewer at a time."""
    rest = memoryview(data)
    while rest:
        rest = rest[file.write(rest) :]


def copied(source: IO[bytes], target: BinaryIO) -> Iterator[int]:
    """Copy a file into an unbuffered one, inside the kernel if possible. Yields numbers of copied bytes."""
    is_plain = type(getattr(source, "raw", source)) is io.FileIO and hasattr(os, "copy_file_range")
    if is_plain:
        try:
            while nbytes := os.copy_file_range(source.fileno(), target.fileno(), _BY_SYSTEM):
                yield nbytes
            return
        except OSError as error:
            if target.tell() or error.errno not in (errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP):
                raise
    while data := source.read(_BY_US):
        write_all(target, data)
        yield len(data)


def linked(source: Path, target: Path, status: os.stat_result) -> bool:
    """Give a file a hard link, which takes no space. `status` is that of the intended file, which is open.

    Returns False if the file system or its rules do not allow that; `target` does not exist then. Raises `OSError`.
    """
    try:
        if os.link in os.supports_follow_symlinks:
            os.link(source, target, follow_symlinks=False)
        else:
            os.link(source, target)
    except OSError as error:
        if error.errno in _NO_LINKS:
            return False
        raise
    if os.path.samestat(os.lstat(target), status):
        return True
    target.unlink()  # another file, or a link to one, was put there just now
    return False


def own_nbytes(folder: Path, but: str = "") -> int:
    """Bytes of the files below a folder without a second name, except `but`. Removing the folder frees these."""
    found = [path.lstat() for path in folder.rglob("*") if path.name != but and not path.is_dir()]
    return sum(status.st_size for status in found if status.st_nlink < 2)


def unwritable(path: Path, error: OSError) -> OutputError:
    """The error for a file that the system refuses to write."""
    reason = error.strerror or str(error)
    closed = {errno.ENOENT: "Make its folder, or choose", **dict.fromkeys(NOT_ALLOWED, "Choose")}
    room = closed.get(error.errno or 0, "Make room or choose")
    return OutputError(f"{path}: expected to write it, found: {reason}. {room} another folder.")
