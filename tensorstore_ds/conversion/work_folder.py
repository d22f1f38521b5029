"""A folder of ours in a place where others may create names, too.

A folder without our mark, or of another user, is refused and left as it is; and what is removed, overwritten or renamed
in it is named relative to the open folder, with no link followed.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import stat
import weakref
from collections.abc import Callable, Mapping, Set
from pathlib import Path
from typing import Any, Self

from tensorstore_ds.archives import read_at
from tensorstore_ds.conversion.open_folder import HOLDS_FOLDERS, NOT_OF_KIND, OpenFolder, open_folder
from tensorstore_ds.durable import lock, sync, unsynced, write_all
from tensorstore_ds.errors import ConversionError, OptionError, StoreExistsError
from tensorstore_ds.format.arrays import dump_json
from tensorstore_ds.machine import uninterrupted
from tensorstore_ds.reading.store_files import check_outside_stores

_MARK = "tsds.lock"
_STRANGE = "a folder that was made by something else"


class WorkFolder:
    """A folder that is ours alone while it is open. As a context manager, it is open in the block and removed after it.

    Args:
        path: of the folder.
        work: that is done in it, as messages call it.
        run: text that no other run has, which processes that this one lets write here know; None for a new one.
        keeps: called after the block, unless the store has appeared: whether the next run goes on from this folder.
    """

    def __init__(
        self,
        path: Path,
        work: str = "conversion",
        *,
        run: str | None = None,
        keeps: Callable[[], bool] = lambda: False,
    ) -> None:
        self.path = path
        self.run = run or os.urandom(8).hex()
        self._work, self._keeps = work, keeps
        self.folder: OpenFolder | None = None  #: None while it is closed
        self.note = ""  #: what the user should be told of it after it was opened
        self.is_new = False  #: whether nothing was in it when it was opened
        self.is_over = False  #: whether its store has appeared
        self._locks: list[int] = []  # descriptors; the first is that of the mark

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        """Close the folder, which is removed first unless it is kept."""
        try:
            if self.is_in_place() and (self.is_over or not self._keeps()):
                self.remove()
        except OSError:
            if kind is None and not self.is_over:
                raise
            # What stopped the work is the error that matters; the next run finds this folder and removes it.
        finally:
            self.close()

    # --- ours or not ---

    def open(self) -> Self:
        """Make the folder, or find it, and lock it for this process; returns this object.

        Raises:
            OptionError: there is something of that name that is not ours, or it would lie inside a store.
            ConversionError: another process has the lock.
        """
        check_outside_stores(self.path)
        try:
            with uninterrupted():
                self._open()
            return self
        except BaseException:
            self.remove_if_new()
            self.close()  # and so it is not removed as ours
            raise

    __enter__ = open

    def _open(self) -> None:
        with contextlib.suppress(FileExistsError):
            self.path.mkdir(0o700)
        is_new = self._find()
        busy = ConversionError(f"{self.path}: another {self._work} is writing here. Wait for it to end.")
        try:
            if not lock(self._locks[0]):
                raise busy
        except OSError as error:
            advice = f"Make sure that no other {self._work} writes here."
            self.note = f"{self.path}: this file system has no locks ({error.strerror}). {advice}"
        if not self.is_in_place() or not self._opened.has_open(_MARK, self._locks[0]):
            raise busy  # it has just ended, and removed the folder opened here
        self.is_new = is_new
        if is_new:  # on disk before anything else is in it: without its mark it would be a stranger's
            self._opened.sync()
            sync(self.path.parent)
        with open(self._locks[0], "wb", buffering=0, closefd=False) as mark:
            write_all(mark, self.run.encode())

    def visit(self, *, alone: bool = False) -> None:
        """Open the folder beside other processes, of other machines too, where locks may mean nothing.

        Args:
            alone: no other process of this machine may have it locked.

        Raises:
            FileNotFoundError: there is none.
            OptionError: there is something of that name that is not ours.
            ConversionError: another process has the lock.
        """
        self._find()
        with contextlib.suppress(OSError):
            if alone and not lock(self._locks[0]):
                raise ConversionError(f"{self.path}: another {self._work} is writing here. Wait for it to end.")

    def join(self) -> None:
        """Open the folder beside the process that has locked it, of the same `run`.

        Raises:
            OptionError: there is something of that name that is not ours.
            ConversionError: that process has ended.
        """
        try:
            self._find()
        except FileNotFoundError as error:
            raise self._gone() from error
        with contextlib.suppress(OSError):  # without locks, what is written in the mark has to do
            if lock(self._locks[0]):
                raise self._gone()
        self.check_run()

    def check_run(self) -> None:
        """Raise `ConversionError` if the process that locked the folder is not of this run any more."""
        if read_at(self._locks[0], 100, 0).decode("ascii", "replace") != self.run:
            raise self._gone()

    def close_in_children(self) -> None:
        """Let no process that is forked from now on hold the locks: an idle one, as of a pool, may stay for long."""
        _folders.add(self)

    def end_run(self) -> None:
        """Let no other process join from now on."""
        os.ftruncate(self._locks[0], 0)

    def _gone(self) -> ConversionError:
        return ConversionError(f"{self.path}: expected the Writer that this shard is for, found that it has ended.")

    def _find(self) -> bool:
        """Open the folder and its mark, if it is ours; returns whether it was empty."""
        try:
            self.folder = open_folder(self.path)
        except OSError as error:
            if error.errno in NOT_OF_KIND:
                raise self._foreign("something else") from error
            raise
        names = self.folder.names()
        if names and _MARK not in names:  # an empty one is what a run leaves that was killed when it began
            raise self._foreign(_STRANGE)
        self._open_lock(_MARK, _STRANGE)
        if not stat.S_ISREG(os.fstat(self._locks[0]).st_mode):
            raise self._foreign(_STRANGE)
        if not self._is_ours():
            raise self._foreign("a folder of another user")
        return not names

    def _is_ours(self) -> bool:
        """Whether the folder belongs to the user that new files here belong to: over NFS, root may be nobody."""
        owner = self._opened.status().st_uid
        if not hasattr(os, "geteuid") or owner == os.geteuid():  # Windows has lists of who may do what
            return True
        name = f"{_MARK}.{os.getpid()}"
        descriptor = self._opened.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
        try:
            return os.fstat(descriptor).st_uid == owner
        finally:
            self._opened.unlink(name)
            os.close(descriptor)

    def is_in_place(self) -> bool:
        """Whether the open folder is still the one at `path`."""
        return self.folder is not None and self.folder.is_same(self.path)

    @property
    def _opened(self) -> OpenFolder:
        if self.folder is None:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF), str(self.path))
        return self.folder

    def close(self) -> None:
        """Release the locks."""
        folder, self.folder = self.folder, None
        self._release()
        if folder is not None:
            folder.close()

    def _release(self) -> None:
        descriptors, self._locks = self._locks, []  # first: a process that another thread forks now closes them, too
        for descriptor in descriptors:
            os.close(descriptor)

    def _foreign(self, what: str) -> OptionError:
        message = f"{self.path}: expected no such name, or the work folder of a {self._work}, found {what}."
        return OptionError(f"{message} Move it away, or choose another name for the store.")

    # --- what is in it ---

    def lock_file(self, name: str) -> bool:
        """Lock a file in the folder, which is made; false if another process has it. `close` releases it."""
        descriptor = self._open_lock(name, f"something else as its file {name}")
        try:
            return lock(descriptor)
        except OSError:  # a file system without locks
            return True

    def is_locked(self, name: str) -> bool:
        """Whether a process holds the lock of a file in the folder."""
        is_free = self.lock_file(name)
        os.close(self._locks.pop())
        return not is_free

    def _open_lock(self, name: str, otherwise: str) -> int:
        try:
            self._locks.append(self._opened.open(name, os.O_RDWR | os.O_CREAT))
        except OSError as error:
            if error.errno in NOT_OF_KIND:
                raise self._foreign(otherwise) from error
            raise
        return self._locks[-1]

    def open_file(self, name: str, flags: int) -> int:
        """Open a file in the folder as `os.open` does, and return its descriptor; links are refused."""
        return self._opened.open(name, flags)

    def make_folder(self, name: str) -> None:
        """Make a folder in this one, unless it is there."""
        with contextlib.suppress(FileExistsError):
            self._opened.make(name)
        if not stat.S_ISDIR(self._opened.status(name).st_mode):
            raise self._foreign(f"something else as its folder {name}")

    def write(self, name: str, value: Mapping[str, Any]) -> None:
        """Write JSON behind its checksum, so that after any crash there is the old file, the new one, or none."""
        data = dump_json(value)
        new = f"{name}.{os.urandom(8).hex()}.new"  # others may write the same
        descriptor = self._opened.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
        with open(descriptor, "wb") as file:
            file.write(f"{hashlib.sha256(data).hexdigest()}\n".encode() + data)
            file.flush()
            os.fsync(descriptor)
        self._opened.replace(new, name)
        sync((self.path / name).parent)

    def read(self, name: str) -> dict[str, Any] | None:
        """What `write` wrote; None where there is nothing, or something else."""
        signed = self.read_signed(name)
        return None if signed is None else signed[0]

    def read_signed(self, name: str) -> tuple[dict[str, Any], str] | None:
        """As `read`, and the SHA-256 of the JSON."""
        try:
            descriptor = self._opened.open(name, os.O_RDONLY)
        except OSError as error:
            if error.errno in (errno.ENOENT, *NOT_OF_KIND):
                return None
            raise
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.close(descriptor)
            return None
        with open(descriptor, "rb") as file:
            checksum, _, data = file.read().partition(b"\n")
        if checksum != hashlib.sha256(data).hexdigest().encode():
            return None
        with contextlib.suppress(ValueError, RecursionError):
            value = json.loads(data)
            return (value, checksum.decode()) if isinstance(value, dict) else None
        return None

    def remove_file(self, name: str) -> None:
        """Remove a file, if there is one."""
        with contextlib.suppress(FileNotFoundError):
            self._opened.unlink(name)
            sync((self.path / name).parent)

    def remove_all_but(self, names: Set[str]) -> None:
        """Remove all but the mark, the paths `names`, and what leads to them. No link is followed.

        A work folder in this one stays ours until it is empty, wherever this ends.
        """
        self._opened.remove_all_but({_MARK, *names}, mark=_MARK)

    def new_store(self) -> Path:
        """An empty folder ``store`` in this one, of which nothing else stays."""
        self.remove_all_but(set())
        self.make_folder("store")
        return self.path / "store"

    def put_store(self, out: Path) -> str:
        """Let the folder ``store`` in it appear as `out`, in one step, and remove the rest; returns as `finish`.

        Raises:
            StoreExistsError: it has.
            ConversionError: the store is whole, but may not survive a power loss.
        """
        if os.path.lexists(out):
            advice = "Remove it and run the same command again."
            raise taken(out, found="something that has appeared meanwhile", advice=advice)
        self._opened.move("store", out)
        self.is_over = True
        try:
            sync(out.parent)
        except OSError as error:
            with contextlib.suppress(OSError):
                self.remove()
            raise ConversionError(unsynced(out, error)) from error
        return self.finish()

    def finish(self) -> str:
        """Remove the folder after its work is done; returns a note for the user if it stays, which is no error then."""
        self.is_over = True
        try:
            self.remove()
        except OSError as error:
            return f"{self.path}: this work folder could not be removed ({error.strerror}). Remove it."
        return ""

    def remove_leftover(self) -> None:
        """Remove the folder if its store has appeared: a run was killed, or failed, before it could do so."""
        if not os.path.lexists(self.path):
            return
        with contextlib.suppress(OSError, OptionError, ConversionError), contextlib.closing(self):
            self.open()
            if "store" not in self._opened.names():
                self.remove()

    def remove_if_new(self) -> None:
        """Remove the folder if `open` made it, as far as that can be done: for errors that are being raised."""
        if self.is_new:
            with contextlib.suppress(OSError):
                self.remove()

    def remove(self) -> None:
        """Remove the folder, its mark last; an interrupt waits for the end."""
        with uninterrupted():
            if not HOLDS_FOLDERS:  # open files cannot be removed
                self._release()
            self.remove_all_but(set())
            self._opened.unlink(_MARK)
            self.path.rmdir()


def check_new(out: Path, work: WorkFolder | None = None) -> None:
    """Refuse the path of a store or file that is to be made: before something else takes long.

    Args:
        work: where it would grow; what an earlier run has left there is removed if its store has appeared.

    Raises:
        StoreExistsError: something is there.
        OptionError: there is no folder for it, or a store around it.
    """
    if os.path.lexists(out):
        if work is not None:
            work.remove_leftover()
        raise taken(out)
    if not out.parent.is_dir():
        raise OptionError(f"{out}: the folder {out.parent} does not exist. Make it first.")
    check_outside_stores(out)


def taken(
    out: Path,
    expected: str = "a new path",
    found: str | None = None,
    advice: str = "Choose another path, or remove this one first.",
) -> StoreExistsError:
    """The error where something is at the path of what is to be made."""
    if found is None:
        is_store = (out / "zarr.json").exists()
        found = "a link" if out.is_symlink() else "a store" if is_store else "a folder" if out.is_dir() else "a file"
    return StoreExistsError(f"{out}: expected {expected}, found {found}. {advice}")


#: Those that forked children close.
_folders: weakref.WeakSet[WorkFolder] = weakref.WeakSet()


def _close_all() -> None:
    for folder in list(_folders):
        folder.close()


if hasattr(os, "register_at_fork"):  # not on Windows, which does not fork
    os.register_at_fork(after_in_child=_close_all)
