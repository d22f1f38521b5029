"""``OUT.partial``: where a store grows until it is whole, and what a later run finds of an interrupted one.

::

    OUT.partial/
      tsds.lock        held while a conversion runs; it also marks the folder as ours
      plan.json        the source and all that decides the bytes of the store
      journal/         train-00000.json: what is known of a finished shard
      store/           becomes OUT, by one rename

The plan and the journal begin with a checksum, and are synced before anything relies on them.

Whoever can create names beside OUT could have put something else there. So a folder without our mark, or of another
user, is refused and left as it is; and what is removed, overwritten or renamed is named relative to the open folder
(``dir_fd``), with no link followed.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import shutil
import stat
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tensorstore_ds.conversion.shard_writer import check_in_file
from tensorstore_ds.durable import lock, sync
from tensorstore_ds.errors import ConversionError, FormatError, OptionError, Problem, StoreExistsError
from tensorstore_ds.format.arrays import GROUP, dump_json
from tensorstore_ds.format.manifest import File, Manifest, Shard, dump_shard, shard_path
from tensorstore_ds.format.manifest_parser import parse_shard
from tensorstore_ds.format.root import dump_root
from tensorstore_ds.format.statistics import Statistics
from tensorstore_ds.reading.store import open as open_store

_MARK = "tsds.lock"
_FOLDER = os.O_RDONLY | os.O_CLOEXEC | getattr(os, "O_DIRECTORY", 0) | getattr(os, "O_NOFOLLOW", 0)
_FILE = os.O_CLOEXEC | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)  # a pipe would be waited for


@dataclass(frozen=True, slots=True)
class FinishedShard:
    """A shard on disk, and what the manifest will need to know of it.

    Attributes:
        references: digest of the references that it was made from.
        files: digest of the identities of the files that it was made from.
    """

    shard: Shard
    statistics: Statistics
    skipped: tuple[Problem, ...]
    references: str
    files: str


class Workspace:
    """The directory beside `out` in which it grows; a context manager that holds a lock on it.

    Attributes:
        notes: what the user should be told, though nothing failed.
    """

    def __init__(self, out: Path) -> None:
        self.out = out
        self.path = out.with_name(out.name + ".partial")
        self.store = self.path / "store"
        self.notes: list[str] = []
        self._folder = self._lock = -1  # descriptors
        self._committed = False

    def __enter__(self) -> Workspace:
        """Make the directory, or find it.

        Raises:
            StoreExistsError: `out` exists.
            OptionError: there is something of that name that is not ours.
            ConversionError: another process has the lock.
        """
        if os.path.lexists(self.out):
            self._remove_leftover()
            raise StoreExistsError(f"{self.out}: this exists already. Choose another name, or remove it first.")
        with contextlib.suppress(FileExistsError):
            self.path.mkdir(0o700)
        try:
            self._open()
            for name in ("journal", "store"):
                self._make_folder(name)
        except BaseException:
            self._close()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        """Release the lock; a directory without a finished shard is of no use and is removed."""
        try:
            if not self._committed and self._is_in_place() and not self._finished_names():
                self._remove()
        except OSError:
            if kind is None:
                raise
            # What stopped the conversion is said; the next run finds this directory and clears it.
        finally:
            self._close()

    def is_mixed(self) -> bool:
        """Whether the run that began here finished shards in RGB because gray and colour images are mixed."""
        begun = self._read("plan.json") if self._finished_names() else None
        return begun is not None and begun.get("mixed") is True

    def begin(self, plan: Mapping[str, Any]) -> None:
        """Note the plan, or compare it with that of the run that began here.

        What cannot be read of an earlier run is removed, and `notes` says so.

        Raises:
            OptionError: finished shards of another plan are here; with what differs.
        """
        plan = json.loads(json.dumps(plan))
        finished = self._finished_names()
        begun = self._read("plan.json") if finished else None
        if finished and begun is None:
            self.notes.append(f"{self.path}: what an interrupted conversion left cannot be read. The work starts anew.")
        if begun is None:
            self.clean(set(), plan=False)
            self._write("plan.json", plan)
            return
        differ = [k for k in sorted({*begun, *plan}) if begun.get(k) != plan.get(k)]
        if differ:
            changes = "; ".join(f"{k} was {_brief(begun.get(k))}, is {_brief(plan.get(k))}" for k in differ)
            raise OptionError(
                f"{self.path}: finished shards of another conversion are kept here: {changes}. "
                f"Repeat that one to go on with it, or remove this directory."
            )

    def finished(self, split: str, index: int) -> FinishedShard | None:
        """What is known of a shard that an earlier run finished here; None where there is none that can be used."""
        data = self._read(_journal_name(split, index))
        if data is None or not (self.store / shard_path(split, index)).is_dir():
            return None
        try:
            return FinishedShard(
                parse_shard(data["shard"]),
                Statistics(data["statistics"]),
                tuple(Problem(**item) for item in data["skipped"]),
                data["references"],
                data["files"],
            )
        except (KeyError, TypeError, FormatError):  # of another version: the shard is made again
            return None

    def finish(self, split: str, index: int, finished: FinishedShard) -> None:
        """Note that a shard is whole."""
        entry = {
            "shard": dump_shard(finished.shard),
            "statistics": finished.statistics.sums,
            "skipped": [dump_problem(p) for p in finished.skipped],
            "references": finished.references,
            "files": finished.files,
        }
        self._write(_journal_name(split, index), entry)

    def clean(self, kept: Iterable[tuple[str, int]], *, plan: bool = True) -> None:
        """Remove all but the shards that are kept: what was half written, and what the source no longer agrees with.

        Args:
            plan: keep the plan.
        """
        names = {_MARK, "journal/", "store/"}  # these two stay, and what is in them goes
        if plan:
            names.add("plan.json")
        for split, index in kept:
            names |= {_journal_name(split, index), f"store/{shard_path(split, index)}"}
        _remove_all_but(names, self._folder)
        for name in ("journal", "store"):
            self._make_folder(name)

    def commit(self, manifest: Manifest, skipped: Sequence[Problem]) -> Manifest:
        """Complete the store and let it appear as `out`; returns the manifest as it was written.

        The root's metadata is written last, and the directory is renamed after that: at no moment is there an `out`
        that is not whole. Before, the store is opened as a reader would.

        Raises:
            StoreExistsError: `out` has appeared meanwhile.
            ConversionError: the finished store does not open; or it is whole, but may not survive a power loss.
        """
        files: dict[str, File] = {}
        for name in manifest.splits:
            (self.store / name).mkdir(exist_ok=True)
            files[f"{name}/zarr.json"] = self._add(f"{name}/zarr.json", dump_json(GROUP))
            sync(self.store / name)
        if skipped:
            lines = [json.dumps(dump_problem(p), ensure_ascii=False) + "\n" for p in skipped]
            files["skipped.jsonl"] = self._add("skipped.jsonl", "".join(lines).encode("utf-8", "backslashreplace"))
        manifest = replace(manifest, files=files)
        self._add("zarr.json", dump_root(manifest))
        sync(self.store)
        self._look_at_result()
        self._rename()
        return manifest

    def _look_at_result(self) -> None:
        try:
            open_store(self.store)
        except FormatError as error:
            self.clean(set())  # none of it can be relied on
            problem = error.problems[0]
            raise ConversionError(
                f"{self.out}: the finished store does not open ({problem}) and was removed. Run the same command again."
            ) from error

    def _rename(self) -> None:
        """Let the store appear. From then on only what threatens it is an error; a folder left behind is a note."""
        parent = os.open(self.out.parent, os.O_RDONLY | os.O_CLOEXEC)
        try:
            if os.path.lexists(self.out):
                raise StoreExistsError(
                    f"{self.out}: this has appeared meanwhile. Remove it and run the same command again."
                )
            os.rename("store", self.out.name, src_dir_fd=self._folder, dst_dir_fd=parent)
            self._committed = True
            try:
                os.fsync(parent)
            except OSError as error:
                raise ConversionError(
                    f"{self.out}: the store is whole, but its folder could not be synced ({error.strerror}): "
                    "a power loss may still undo it. Check the disk."
                ) from error
        finally:
            os.close(parent)
        try:
            self._remove()
        except OSError as error:
            self.notes.append(f"{self.path}: this work folder could not be removed ({error.strerror}). Remove it.")

    # --- the folder ---

    def _open(self) -> None:
        """Open the folder, if it is ours, and take its lock."""
        try:
            self._folder = os.open(self.path, _FOLDER)
        except OSError as error:
            if error.errno in (errno.ENOTDIR, errno.ELOOP):
                raise self._foreign("something else") from error
            raise
        names = os.listdir(self._folder)
        if names and _MARK not in names:  # an empty one is what a run leaves that was killed when it began
            raise self._foreign("a folder that no conversion made")
        try:
            self._lock = os.open(_MARK, os.O_RDWR | os.O_CREAT | _FILE, 0o600, dir_fd=self._folder)
        except OSError as error:
            if error.errno in (errno.ELOOP, errno.EISDIR, errno.ENXIO):
                raise self._foreign("a folder that no conversion made") from error
            raise
        if not stat.S_ISREG(os.fstat(self._lock).st_mode):
            raise self._foreign("a folder that no conversion made")
        if not self._is_ours():
            raise self._foreign("a folder of another user")
        self._take_lock()
        if not names:  # on disk before anything else is in it: without its mark it would be a stranger's
            os.fsync(self._folder)
            sync(self.path.parent)

    def _is_ours(self) -> bool:
        """Whether the folder belongs to the user that new files here belong to: over NFS, root may be nobody."""
        owner = os.fstat(self._folder).st_uid
        if owner == os.geteuid():
            return True
        name = f"{_MARK}.{os.getpid()}"
        descriptor = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _FILE, 0o600, dir_fd=self._folder)
        try:
            return os.fstat(descriptor).st_uid == owner
        finally:
            os.unlink(name, dir_fd=self._folder)
            os.close(descriptor)

    def _take_lock(self) -> None:
        busy = ConversionError(f"{self.path}: another conversion is writing here. Wait for it to end.")
        try:
            if not lock(self._lock):
                raise busy
        except OSError as error:
            self.notes.append(
                f"{self.path}: this file system has no locks ({error.strerror}). "
                "Make sure that no other conversion writes here."
            )
        if not self._is_in_place() or not _is_same(_MARK, self._lock, dir_fd=self._folder):
            raise busy  # which has just ended, and removed the folder that was opened here
        if os.path.lexists(self.out):
            raise StoreExistsError(f"{self.out}: this has appeared meanwhile. Choose another name, or remove it first.")

    def _make_folder(self, name: str) -> None:
        with contextlib.suppress(FileExistsError):
            os.mkdir(name, 0o777, dir_fd=self._folder)
        if not stat.S_ISDIR(os.stat(name, dir_fd=self._folder, follow_symlinks=False).st_mode):
            raise self._foreign(f"something else as its folder {name}")

    def _is_in_place(self) -> bool:
        """Whether the open folder is still the one at `path`."""
        return self._folder >= 0 and _is_same(self.path, self._folder)

    def _remove_leftover(self) -> None:
        """Remove the folder of a run that was killed after it had committed: nothing in it is of use."""
        with contextlib.suppress(OSError, OptionError, ConversionError, StoreExistsError):
            try:
                self._open()
            except StoreExistsError:  # that is why we are here; the lock is held
                if "store" not in os.listdir(self._folder):
                    self._remove()
            finally:
                self._close()

    def _remove(self) -> None:
        """Remove the folder, its mark last."""
        _remove_all_but({_MARK}, self._folder)
        os.unlink(_MARK, dir_fd=self._folder)
        self.path.rmdir()

    def _close(self) -> None:
        for descriptor in (self._lock, self._folder):
            if descriptor >= 0:
                os.close(descriptor)
        self._lock = self._folder = -1

    def _foreign(self, found: str) -> OptionError:
        message = f"{self.path}: expected no such name, or the work folder of a conversion, found {found}."
        return OptionError(f"{message} Move it away, or choose another name for the store.")

    # --- files ---

    def _add(self, name: str, data: bytes) -> File:
        """A new file of the store, synced."""
        with open(self.store / name, "xb") as file:
            file.write(data)
        return check_in_file(self.store / name)

    def _finished_names(self) -> list[str]:
        """Names in the journal of shards that are in the store."""
        try:
            names = os.listdir(self.path / "journal")
        except FileNotFoundError:
            return []
        shards = (name.removesuffix(".json").rpartition("-") for name in names if name.endswith(".json"))
        return [f"{split}/{index}" for split, _, index in shards if (self.store / split / index).is_dir()]

    def _write(self, name: str, value: Mapping[str, Any]) -> None:
        """Write JSON behind its checksum, so that after any crash there is the old file, the new one, or none."""
        data = dump_json(value)
        folder, _, _ = name.rpartition("/")
        descriptor = os.open(f"{name}.new", os.O_WRONLY | os.O_CREAT | os.O_TRUNC | _FILE, 0o600, dir_fd=self._folder)
        with open(descriptor, "wb") as file:
            file.write(f"{hashlib.sha256(data).hexdigest()}\n".encode() + data)
            file.flush()
            os.fsync(descriptor)
        os.rename(f"{name}.new", name, src_dir_fd=self._folder, dst_dir_fd=self._folder)
        sync(self.path / folder)

    def _read(self, name: str) -> dict[str, Any] | None:
        """What `_write` wrote; None where there is nothing, or something else."""
        try:
            descriptor = os.open(name, os.O_RDONLY | _FILE, dir_fd=self._folder)
        except OSError as error:
            if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENXIO):
                return None
            raise
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.close(descriptor)
            return None
        with open(descriptor, "rb") as file:
            checksum, _, data = file.read().partition(b"\n")
        if checksum != hashlib.sha256(data).hexdigest().encode():
            return None
        try:
            value = json.loads(data)
        except (ValueError, RecursionError):
            return None
        return value if isinstance(value, dict) else None


def dump_problem(problem: Problem) -> dict[str, str]:
    """A line of ``skipped.jsonl``."""
    return {"where": problem.where, "reason": problem.reason, "message": problem.message}


def _journal_name(split: str, index: int) -> str:
    return f"journal/{split}-{index:05d}.json"


def _is_same(path: Path | str, descriptor: int, *, dir_fd: int | None = None) -> bool:
    try:
        found = os.stat(path, dir_fd=dir_fd, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return os.path.samestat(found, os.fstat(descriptor))


def _remove_all_but(kept: Set[str], folder: int, prefix: str = "") -> None:
    """Remove everything below an open folder whose path is not kept, nor leads to one that is. No link is followed."""
    for name in os.listdir(folder):
        path = prefix + name
        if path in kept:
            continue
        is_folder = stat.S_ISDIR(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode)
        if not is_folder:
            os.unlink(name, dir_fd=folder)
        elif any(other.startswith(f"{path}/") for other in kept):
            below = os.open(name, _FOLDER, dir_fd=folder)
            try:
                _remove_all_but(kept, below, f"{path}/")
            finally:
                os.close(below)
        else:
            shutil.rmtree(name, dir_fd=folder)


def _brief(value: object) -> str:
    text = json.dumps(value)
    return text if len(text) <= 80 else text[:77] + "..."
