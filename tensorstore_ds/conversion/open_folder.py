"""A folder that is open, in which names are created and removed without following a link."""

from __future__ import annotations

import errno
import os
import shutil
import stat
from collections.abc import Set
from pathlib import Path
from typing import Self

#: What the system says of a link, a folder or a pipe where a file was expected, or of no folder.
NOT_OF_KIND = (errno.ELOOP, errno.EISDIR, errno.ENXIO, errno.ENOTDIR)
_FOLDER = os.O_RDONLY | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_DIRECTORY", 0) | getattr(os, "O_NOFOLLOW", 0)
#: Bytes as they are, not for children, no link; and a pipe would be waited for.
_FILE = (
    getattr(os, "O_BINARY", 0)
    | getattr(os, "O_CLOEXEC", 0)
    | getattr(os, "O_NOFOLLOW", 0)
    | getattr(os, "O_NONBLOCK", 0)
)
#: Whether an open file can be removed, and a folder opened: on POSIX.
HOLDS_FOLDERS = hasattr(os, "O_DIRECTORY")


class OpenFolder:
    """A folder by its descriptor: what is named is in this folder, even if its path leads somewhere else by now.

    Raises:
        OSError: there is none, or something else, or a link (`NOT_OF_KIND`).
    """

    def __init__(self, path: Path) -> None:
        self.descriptor = os.open(path, _FOLDER)

    def below(self, name: str) -> Self:
        """A folder in this one."""
        made = object.__new__(type(self))
        made.descriptor = os.open(name, _FOLDER, dir_fd=self.descriptor)
        return made

    def open(self, name: str, flags: int) -> int:
        """Open a file as `os.open` does, and return its descriptor. A new file is readable by its owner alone."""
        return os.open(name, flags | _FILE, 0o600, dir_fd=self.descriptor)

    def status(self, name: str | None = None) -> os.stat_result:
        """Of what has a name, or of the folder."""
        if name is None:
            return os.fstat(self.descriptor)
        return os.stat(name, dir_fd=self.descriptor, follow_symlinks=False)

    def names(self) -> list[str]:
        """Of all that is in it."""
        return os.listdir(self.descriptor)

    def make(self, name: str) -> None:
        """Make a folder in it."""
        os.mkdir(name, 0o777, dir_fd=self.descriptor)

    def unlink(self, name: str) -> None:
        """Remove a file."""
        os.unlink(name, dir_fd=self.descriptor)

    def rmtree(self, name: str) -> None:
        """Remove a folder and all that is in it."""
        shutil.rmtree(name, dir_fd=self.descriptor)

    def replace(self, old: str, new: str) -> None:
        """Rename a file; one of the new name is replaced."""
        os.replace(old, new, src_dir_fd=self.descriptor, dst_dir_fd=self.descriptor)

    def move(self, name: str, to: Path) -> None:
        """Rename what is in it to a path, which nothing may have."""
        os.rename(name, to, src_dir_fd=self.descriptor)

    def sync(self) -> None:
        """Wait until the names in it are on disk."""
        os.fsync(self.descriptor)

    def close(self) -> None:
        """Close the folder, once."""
        descriptor, self.descriptor = self.descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    def is_same(self, path: Path) -> bool:
        """Whether a path leads to it, and is no link."""
        try:
            return os.path.samestat(path.lstat(), self.status())
        except FileNotFoundError:
            return False

    def has_open(self, name: str, descriptor: int) -> bool:
        """Whether a file in it is this open one."""
        try:
            return os.path.samestat(self.status(name), os.fstat(descriptor))
        except FileNotFoundError:
            return False

    def remove_all_but(self, names: Set[str], prefix: str = "", *, mark: str = "") -> None:
        """Remove all but the paths `names`, and what leads to them. A folder loses a file called `mark` last."""
        for name in self.names():
            path = prefix + name
            if path in names:
                continue
            if not stat.S_ISDIR(self.status(name).st_mode):
                self.unlink(name)
            elif any(other.startswith(f"{path}/") for other in names):
                below = self.below(name)
                try:
                    below.remove_all_but(names, f"{path}/", mark=mark)
                finally:
                    below.close()
            else:
                below = self.below(name)
                try:
                    if mark in below.names():
                        below.remove_all_but({mark}, mark=mark)
                finally:
                    below.close()
                self.rmtree(name)


class NamedFolder(OpenFolder):
    """The same by its path, where the system opens no folders: on Windows.

    A link that replaces a folder between a check and its use would be followed. Only administrators make links there,
    unless the developer mode is on.
    """

    def __init__(self, path: Path) -> None:
        self._path, self.descriptor = path, -1
        self._status = _status_of(path)
        if not stat.S_ISDIR(self._status.st_mode):
            raise OSError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(path))

    def below(self, name: str) -> Self:
        """See `OpenFolder`."""
        return type(self)(self._path / name)

    def open(self, name: str, flags: int) -> int:
        """See `OpenFolder`."""
        path = self._path / name
        if os.path.lexists(path) and stat.S_ISDIR(_status_of(path).st_mode):
            raise OSError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        return os.open(path, flags | _FILE, 0o600)

    def status(self, name: str | None = None) -> os.stat_result:
        """See `OpenFolder`."""
        return self._status if name is None else os.lstat(self._path / name)

    def names(self) -> list[str]:
        """See `OpenFolder`."""
        return os.listdir(self._path)

    def make(self, name: str) -> None:
        """See `OpenFolder`."""
        (self._path / name).mkdir()

    def unlink(self, name: str) -> None:
        """See `OpenFolder`."""
        (self._path / name).unlink()

    def rmtree(self, name: str) -> None:
        """See `OpenFolder`."""
        shutil.rmtree(self._path / name)

    def replace(self, old: str, new: str) -> None:
        """See `OpenFolder`."""
        (self._path / old).replace(self._path / new)

    def move(self, name: str, to: Path) -> None:
        """See `OpenFolder`."""
        (self._path / name).rename(to)

    def sync(self) -> None:
        """Nothing: Windows keeps names in its own journal."""

    def close(self) -> None:
        """Nothing: it is not open."""


def open_folder(path: Path) -> OpenFolder:
    """A folder, opened as this system can."""
    return (OpenFolder if HOLDS_FOLDERS else NamedFolder)(path)


def _status_of(path: Path) -> os.stat_result:
    """Of what is at a path itself; an `OSError` if it is a link, of any kind that Windows has."""
    status = os.lstat(path)
    reparse = getattr(stat, "FILE_ATTRIBUTE_REPARSE_POINT", 0) & getattr(status, "st_file_attributes", 0)
    if stat.S_ISLNK(status.st_mode) or reparse:
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(path))
    return status
