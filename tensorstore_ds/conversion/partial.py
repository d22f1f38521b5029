"""``OUT.partial``: a folder of ours in a place where other users may create names.

A folder without our mark, or of another user, is refused and left unchanged. Everything that is removed, overwritten or
renamed in it is addressed relative to the open folder, and links are not followed.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import shutil
import stat
import weakref
from collections.abc import Callable, Mapping, Set
from pathlib import Path
from typing import Any, Self

from tensorstore_ds.durable import lock, sync, unsynced
from tensorstore_ds.errors import ConversionError, OptionError, StoreExistsError
from tensorstore_ds.format.arrays import dump_json
from tensorstore_ds.machine import uninterrupted
from tensorstore_ds.reading.store_files import check_outside_stores

_MARK = "tsds.lock"
#: Error numbers for a link, a folder or a pipe in place of a file, or for something else in place of a folder.
_NOT_OF_KIND = (errno.ELOOP, errno.EISDIR, errno.ENXIO, errno.ENOTDIR)
_FOLDER = os.O_RDONLY | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_DIRECTORY", 0) | getattr(os, "O_NOFOLLOW", 0)
#: Binary, not inherited by children, no link, and without waiting for a pipe.
_FILE = (
    getattr(os, "O_BINARY", 0)
    | getattr(os, "O_CLOEXEC", 0)
    | getattr(os, "O_NOFOLLOW", 0)
    | getattr(os, "O_NONBLOCK", 0)
)
#: Whether a folder can be opened, and an open file can be removed, as on POSIX.
HOLDS_FOLDERS = hasattr(os, "O_DIRECTORY")


class _Folder:
    """An open folder by its descriptor: names are in it, even if its path leads somewhere else by now.

    Windows opens no folders, so names are used below the path there. A link that replaces a folder between a check and
    its use would be followed. Only administrators make links there, unless the developer mode is on.
    """

    def __init__(self, path: Path, within: int | None = None) -> None:
        self._path = path
        self.descriptor: int | None = None
        if HOLDS_FOLDERS:
            self.descriptor = os.open(path if within is None else path.name, _FOLDER, dir_fd=within)
        self.status = _status_of(path) if self.descriptor is None else os.fstat(self.descriptor)
        if not stat.S_ISDIR(self.status.st_mode):
            raise OSError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(path))

    def at(self, name: str) -> str | Path:
        """The name as the functions of `os` expect it, together with the descriptor."""
        return self._path / name if self.descriptor is None else name

    def names(self) -> list[str]:
        """Names of all entries."""
        return os.listdir(self._path if self.descriptor is None else self.descriptor)

    def status_of(self, name: str) -> os.stat_result:
        """Status of a name itself, which may be a link."""
        return os.stat(self.at(name), dir_fd=self.descriptor, follow_symlinks=False)

    def open(self, name: str, flags: int) -> int:
        """Open a file as `os.open` does, and return its descriptor. A new file is readable by its owner alone."""
        path = self.at(name)
        if not HOLDS_FOLDERS and os.path.lexists(path) and stat.S_ISDIR(_status_of(path).st_mode):
            raise OSError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        return os.open(path, flags | _FILE, 0o600, dir_fd=self.descriptor)

    def unlink(self, name: str) -> None:
        """Remove a file."""
        os.unlink(self.at(name), dir_fd=self.descriptor)

    def remove_all_but(self, names: Set[str], prefix: str = "") -> None:
        """Remove all but the paths `names` and their parents. The mark of a folder is removed last."""
        for name in self.names():
            path = prefix + name
            if path in names:
                continue
            if not stat.S_ISDIR(self.status_of(name).st_mode):
                self.unlink(name)
                continue
            is_kept = any(other.startswith(f"{path}/") for other in names)
            with contextlib.closing(_Folder(self._path / name, self.descriptor)) as below:
                if is_kept:
                    below.remove_all_but(names, f"{path}/")
                elif _MARK in below.names():
                    below.remove_all_but({_MARK})
            if not is_kept:
                shutil.rmtree(self.at(name), dir_fd=self.descriptor)

    def close(self) -> None:
        """Close the descriptor."""
        if self.descriptor is not None:
            os.close(self.descriptor)


def _status_of(path: str | Path) -> os.stat_result:
    """Status of a path itself; raises `OSError` if it is a link, of any kind that Windows has."""
    status = os.lstat(path)
    reparse = getattr(stat, "FILE_ATTRIBUTE_REPARSE_POINT", 0) & getattr(status, "st_file_attributes", 0)
    if stat.S_ISLNK(status.st_mode) or reparse:
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(path))
    return status


class Partial:
    """A folder that only this process uses while it is open. As a context manager, it is removed after the block.

    Messages call its purpose `work`. `keeps` is called after the block, unless the store has appeared, and returns
    whether the next run continues from this folder.
    """

    def __init__(self, path: Path, work: str = "conversion", *, keeps: Callable[[], bool] = lambda: False) -> None:
        self.path = path
        self.warning = ""  #: what the user should be told of it after it was opened
        self._work, self._keeps = work, keeps
        self._folder: _Folder | None = None  # None while it is closed
        self._is_new = False  # whether nothing was in it when it was opened
        self._is_over = False  # whether its store has appeared
        self._lock: int | None = None  # the descriptor of the mark

    def __enter__(self) -> Self:
        return self.open()

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        """Close the folder, which is removed first unless it is kept."""
        try:
            if self._is_in_place() and (self._is_over or not self._keeps()):
                self.remove()
        except OSError:
            if kind is None and not self._is_over:
                raise
            # The error that stopped the work is more important; the next run removes this folder.
        finally:
            self.close()

    # --- ours or not ---

    def open(self) -> Self:
        """Create or find the folder, and lock it for this process; returns this object.

        Raises `OptionError` if the name is not ours or the folder would be inside a store, and `ConversionError` if
        another process has the lock.
        """
        check_outside_stores(self.path)
        try:
            with uninterrupted():
                self._open()
            return self
        except BaseException:
            self._abandon()  # and so it is not removed as ours
            raise

    def _open(self) -> None:
        with contextlib.suppress(FileExistsError):
            self.path.mkdir(0o700)
        mark, is_new = self._find()
        try:
            if not lock(mark):
                raise self._busy()
        except OSError as error:
            advice = f"Make sure that no other {self._work} writes here."
            self.warning = f"{self.path}: this file system has no locks ({error.strerror}). {advice}"
        if not self._is_in_place(mark):
            raise self._busy()  # it has just ended, and removed the folder opened here
        self._is_new = is_new
        if is_new:  # on disk before anything else is in it: without its mark it would be a stranger's
            sync(self.path)
            sync(self.path.parent)

    def open_beside(self, *, alone: bool = False) -> None:
        """Open the folder together with other processes, also of other machines, where locks may have no effect.

        With `alone`, no other process of this machine may have it locked.
        """
        mark, _ = self._find()
        with contextlib.suppress(OSError):
            if alone and not lock(mark):
                raise self._busy()

    def close_in_children(self) -> None:
        """Keep forked processes from holding the lock, because an idle one, as in a pool, may live long."""
        _folders.add(self)

    def _find(self) -> tuple[int, bool]:
        """Open the folder and its mark, if it is ours; returns the mark, and whether the folder was empty."""
        found = "something else"
        try:
            self._folder = _Folder(self.path)
            found, names = "a folder that was made by something else", self._folder.names()
            if names and _MARK not in names:  # an empty one is what a run leaves that was killed when it began
                raise self._foreign(found)
            if not self._is_ours():
                raise self._foreign("a folder of another user")
            self._lock = mark = self._folder.open(_MARK, os.O_RDWR | os.O_CREAT)
        except OSError as error:
            if error.errno in _NOT_OF_KIND:
                raise self._foreign(found) from error
            raise
        if not stat.S_ISREG(os.fstat(mark).st_mode):
            raise self._foreign(found)
        return mark, not names

    def _is_ours(self) -> bool:
        """Whether the folder belongs to the owner of new files here: over NFS, root may be nobody."""
        owner = self._opened.status.st_uid
        if not hasattr(os, "geteuid") or owner == os.geteuid():  # Windows has lists of who may do what
            return True
        name = f"{_MARK}.{os.getpid()}"
        descriptor = self._opened.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
        try:
            return os.fstat(descriptor).st_uid == owner
        finally:
            self._opened.unlink(name)
            os.close(descriptor)

    def _is_in_place(self, mark: int | None = None) -> bool:
        """Whether the open folder is still the one at `path`, and `mark` still the mark in it."""
        if self._folder is None:
            return False
        try:
            is_marked = mark is None or os.path.samestat(self._folder.status_of(_MARK), os.fstat(mark))
            return is_marked and os.path.samestat(self.path.lstat(), self._folder.status)
        except FileNotFoundError:
            return False

    @property
    def _opened(self) -> _Folder:
        if self._folder is None:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF), str(self.path))
        return self._folder

    def _busy(self) -> ConversionError:
        return ConversionError(f"{self.path}: another {self._work} is writing here. Wait for it to end.")

    def _foreign(self, what: str) -> OptionError:
        message = f"{self.path}: expected no such name, or the work folder of a {self._work}, found {what}."
        return OptionError(f"{message} Move it away, or choose another name for the store.")

    def close(self) -> None:
        """Release the lock."""
        folder, self._folder = self._folder, None
        self._release()
        if folder is not None:
            folder.close()

    def _release(self) -> None:
        descriptor, self._lock = self._lock, None  # first: a process that another thread forks now closes it, too
        if descriptor is not None:
            os.close(descriptor)

    # --- what is in it ---

    def open_file(self, name: str, flags: int) -> int:
        """Open a file in the folder as `os.open` does, and return its descriptor; links are refused."""
        return self._opened.open(name, flags)

    def make_folder(self, name: str) -> None:
        """Make a folder in this one, unless it is there."""
        folder = self._opened
        with contextlib.suppress(FileExistsError):
            os.mkdir(folder.at(name), 0o777, dir_fd=folder.descriptor)
        if not stat.S_ISDIR(folder.status_of(name).st_mode):
            raise self._foreign(f"something else as its folder {name}")

    def write(self, name: str, value: Mapping[str, Any]) -> None:
        """Write JSON behind its checksum, so that after any crash there is the old file, the new one, or none."""
        data, folder = dump_json(value), self._opened
        new = f"{name}.{os.urandom(8).hex()}.new"  # others may write the same
        with open(folder.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL), "wb") as file:
            file.write(f"{hashlib.sha256(data).hexdigest()}\n".encode() + data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(folder.at(new), folder.at(name), src_dir_fd=folder.descriptor, dst_dir_fd=folder.descriptor)
        sync((self.path / name).parent)

    def read(self, name: str) -> dict[str, Any] | None:
        """Read the output of `write`; None for anything else."""
        try:
            descriptor = self._opened.open(name, os.O_RDONLY)
        except OSError as error:
            if error.errno in (errno.ENOENT, *_NOT_OF_KIND):
                return None
            raise
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.close(descriptor)
            return None
        with open(descriptor, "rb") as file:
            checksum, _, data = file.read().partition(b"\n")
        with contextlib.suppress(ValueError, RecursionError):
            value = json.loads(data) if checksum == hashlib.sha256(data).hexdigest().encode() else None
            return value if isinstance(value, dict) else None
        return None

    def remove_file(self, name: str) -> None:
        """Remove a file if it exists."""
        with contextlib.suppress(FileNotFoundError):
            self._opened.unlink(name)
            sync((self.path / name).parent)

    def remove_all_but(self, names: Set[str]) -> None:
        """Remove all but the mark, the paths `names` and their parents. No link is followed.

        A work folder in this one stays ours until it is empty, even if this is interrupted.
        """
        self._opened.remove_all_but({_MARK, *names})

    def new_store(self) -> Path:
        """Create an empty folder ``store``, and remove everything else."""
        self.remove_all_but(set())
        self.make_folder("store")
        return self.path / "store"

    # --- the end ---

    def put_store(self, out: Path) -> str:
        """Let the folder ``store`` appear as `out` in one step, and remove the rest; returns as `end`."""
        if os.path.lexists(out):
            advice = "Remove it and run the same command again."
            raise already_exists(out, found="something that has appeared meanwhile", advice=advice)
        os.rename(self._opened.at("store"), out, src_dir_fd=self._opened.descriptor)
        self._is_over = True
        try:
            sync(out.parent)
        except OSError as error:
            with contextlib.suppress(OSError):
                self.remove()
            raise ConversionError(unsynced(out, error)) from error
        return self.end()

    def end(self) -> str:
        """Remove the folder after its work is done; returns a note for the user, not an error, if this fails."""
        self._is_over = True
        try:
            self.remove()
        except OSError as error:
            return f"{self.path}: this work folder could not be removed ({error.strerror}). Remove it."
        return ""

    def remove_leftover(self) -> None:
        """Remove the folder if its store has appeared, after a run that was killed, or failed, before doing so."""
        if not os.path.lexists(self.path):
            return
        with contextlib.suppress(OSError, OptionError, ConversionError), contextlib.closing(self):
            self.open()
            if "store" not in self._opened.names():
                self.remove()

    def _abandon(self) -> None:
        """Close the folder, and try to remove it if `open` created it, while an error is being raised."""
        if self._is_new:
            with contextlib.suppress(OSError):
                self.remove()
        self.close()

    def remove(self) -> None:
        """Remove the folder, its mark last; an interrupt waits for the end."""
        with uninterrupted():
            if not HOLDS_FOLDERS:  # open files cannot be removed
                self._release()
            self.remove_all_but(set())
            self._opened.unlink(_MARK)
            self.path.rmdir()


def check_new(out: Path, work: Partial | None = None) -> None:
    """Refuse the path of a new store or file early, before a long computation.

    With `work`, the leftover of an earlier run whose store has appeared is removed. Raises `StoreExistsError` if the
    path exists, and `OptionError` if its folder is missing or inside a store.
    """
    if os.path.lexists(out):
        if work is not None:
            work.remove_leftover()
        raise already_exists(out)
    if not out.parent.is_dir():
        raise OptionError(f"{out}: the folder {out.parent} does not exist. Make it first.")
    check_outside_stores(out)


def already_exists(
    out: Path,
    expected: str = "a new path",
    found: str | None = None,
    advice: str = "Choose another path, or remove this one first.",
) -> StoreExistsError:
    """The error for an existing path of a new store or file."""
    if found is None:
        is_store = (out / "zarr.json").exists()
        found = "a link" if out.is_symlink() else "a store" if is_store else "a folder" if out.is_dir() else "a file"
    return StoreExistsError(f"{out}: expected {expected}, found {found}. {advice}")


#: Those that forked children close.
_folders: weakref.WeakSet[Partial] = weakref.WeakSet()


def _close_all() -> None:
    for folder in list(_folders):
        folder.close()


if hasattr(os, "register_at_fork"):  # not on Windows, which does not fork
    os.register_at_fork(after_in_child=_close_all)
