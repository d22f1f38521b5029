"""The files of one store and no other, opened without following symlinks, waiting for pipes, or trusting the path."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import io
import os
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from tensorstore_ds import words
from tensorstore_ds.archives import Identity, identity_of
from tensorstore_ds.errors import FormatError, OptionError, Problem
from tensorstore_ds.format.arrays import ArrayGeometry
from tensorstore_ds.format.manifest import File, Manifest, Shard, shard_path
from tensorstore_ds.format.root import OtherStoreError, check_meant, is_root, parse_listing, parse_root
from tensorstore_ds.machine import check_resource
from tensorstore_ds.options import meant_path

#: Skipped samples. `append` adds lines at the end before it replaces the manifest; until then they do not count.
SKIPPED = "skipped.jsonl"
#: Advice if the system denies permission.
_MAY_READ = "Check who may read"
#: Advice if another store has replaced an open one.
AGAIN = "Open it again."
#: Refuse a root ``zarr.json`` larger than this before reading it.
MANIFEST_MAX_NBYTES = 64 * 1024**2


@dataclass(frozen=True, slots=True)
class Origin:
    """What a store by URL was opened with, to open it again."""

    url: str = field(repr=False)  # it may hold a password
    cache_dir: str | os.PathLike[str] | None = None
    cache_limit: int | None = None


class StoreFiles:
    """The files of the store that was at a path when this object was made.

    `sha256` is the digest of `root`, the bytes of the root's ``zarr.json``, which lists the digests of all other files.
    `meant` is the requested digest, if any.
    """

    meant: str | None = None
    origin: Origin | None = None

    def __init__(self, path: Path, sha256: str | None = None, root: bytes = b"") -> None:
        """Read the manifest. Raises `FormatError` if there is no store, or a different one than `sha256`.

        With `root`, the bytes of an earlier root, the store is read in that state, although it may have grown since.
        """
        self.path = path
        self.root, self._identity = self._read_root()
        if not is_root(self.root) and (store := _store_around(path)):
            message = f"this is a part of the store {store}. Open that one; its splits are store['NAME']."
            raise FormatError(Problem(str(path), "not-a-store", message))
        self.manifest: Manifest
        self.manifest, self.sha256 = parse_root(self.root)
        if root and self.sha256 != sha256:
            manifest, digest = parse_root(root)
            if digest == sha256 and (_begins_so(self.manifest, manifest) or self._has_shards_of(manifest)):
                self.root, self.manifest, self.sha256 = root, manifest, digest
        try:
            check_meant(self.root, self.sha256, sha256)
        except OtherStoreError as error:
            if root:  # it was open, and samples of it may have been erased since
                raise FormatError(Problem("zarr.json", "replaced", error.problems[0].message), AGAIN) from error
            raise

    def open(self, name: str) -> IO[bytes]:
        """Open one of the files for reading.

        Raises `FormatError` if it is missing, a symlink or not a regular file, or if another store has replaced this
        one.
        """
        try:
            file = open_file(self.path, name)
        except FormatError:
            self._check_identity(name)  # of a shard that was removed when samples were erased
            raise
        try:
            self._check_identity(name)
            if name == SKIPPED and os.fstat(file.fileno()).st_size > (most := self._most(name)):
                with file:
                    return io.BytesIO(file.read(most))
        except BaseException:
            file.close()
            raise
        return file

    def _most(self, name: str) -> int:
        """The largest allowed number of bytes of a file above the shards."""
        return self.manifest.files[name].size if name in self.manifest.files else 2**63

    def read_part(self, name: str, part: slice) -> bytes:
        """Read a slice without step of a file's bytes; raises as `open`."""
        with self.open(name) as file:
            return read_slice(file, part)

    def size(self, name: str) -> int:
        """Bytes of one of the files, which is not opened; raises as `open`."""
        try:
            status = os.lstat(f"{self.path}/{name}")
        except OSError as error:
            check_resource(name, error)
            self._check_identity(name)  # as when it is opened
            advice = f" {_MAY_READ} its folder." if isinstance(error, PermissionError) else ""
            message = f"this file cannot be found ({error.strerror}).{advice}"
            raise FormatError(Problem(name, "missing-file", message)) from error
        if stat.S_ISLNK(status.st_mode):
            raise FormatError(Problem(name, "symlink", "expected a file, found a symbolic link."))
        if not stat.S_ISREG(status.st_mode):
            raise FormatError(Problem(name, "missing-file", "expected a file, found something else."))
        return min(status.st_size, self._most(name)) if name == SKIPPED else status.st_size

    def is_link(self, directory: str) -> bool:
        """Whether a directory of the store is a symlink."""
        return os.path.islink(f"{self.path}/{directory}")  # noqa: PTH114  # a Path would take longer than the system

    def names(self) -> Iterator[str]:
        """Iterate over all existing files and links, listed or not."""
        for directory, folders, names in os.walk(self.path):
            place = "" if directory == str(self.path) else Path(directory).relative_to(self.path).as_posix() + "/"
            links = [name for name in folders if os.path.islink(f"{directory}/{name}")]  # noqa: PTH114
            yield from (place + name for name in [*names, *links])

    def listing(self, split: str, index: int) -> dict[str, File]:
        """The files of a shard, by path relative to it; raises `FormatError` if the list is missing or wrong."""
        name = f"{self.manifest.shard_path(split, index)}/zarr.json"
        return parse_listing(self.listing_bytes(split, index), name, self.manifest.splits[split].shards[index])

    def listing_bytes(self, split: str, index: int) -> bytes:
        """The bytes of a shard's ``zarr.json``; raises `FormatError` if it is missing."""
        with self.open(f"{self.manifest.shard_path(split, index)}/zarr.json") as file:
            return file.read(MANIFEST_MAX_NBYTES + 1)

    def _check_identity(self, name: str) -> None:
        """Raise `FormatError` if the store was replaced; called after a file was opened, which is then this store's."""
        try:
            if self._identity_at_path() == self._identity:
                return
            data, identity = self._read_root()
            found, sha256 = parse_root(data)
            # the same one, touched or copied into its place; or one with more shards, or different notes
            if sha256 == self.sha256 or _begins_so(found, self.manifest):
                self._identity = identity
                return
            # one of which some shards were replaced: this file above them is the same one
            if name in self.manifest.files and self._is_as_listed(name):
                return
            # or this shard is still there, and no file of a shard is ever changed
            if self._has_shard(self.manifest, *self.manifest.shard_at("/".join(name.split("/")[:2]))):
                return
        except KeyError:
            pass
        except (OSError, FormatError):
            pass  # gone or damaged: told below
        problem = Problem(
            str(self.path), "replaced", "the store that was opened here is gone, or another is in its place."
        )
        raise FormatError(problem, AGAIN)

    def replaced(self) -> list[str]:
        """Folders of replaced shards that still exist."""
        numbers = ((name, number) for name, split in self.manifest.splits.items() for number in split.replaced)
        folders = (shard_path(name, number) for name, number in numbers)
        return [folder for folder in folders if (self.path / folder).is_dir()]

    def _is_as_listed(self, name: str) -> bool:
        with open_file(self.path, name) as file:
            data = file.read(self._most(name))
        return hashlib.sha256(data).hexdigest() == self.manifest.files[name].sha256

    def _has_shard(self, manifest: Manifest, split: str, index: int) -> bool:
        with open_file(self.path, f"{manifest.shard_path(split, index)}/zarr.json") as file:
            data = file.read(MANIFEST_MAX_NBYTES + 1)
        return hashlib.sha256(data).hexdigest() == manifest.splits[split].shards[index].sha256

    def _has_shards_of(self, manifest: Manifest) -> bool:
        """Whether all shards of a store still exist, even if they were replaced."""
        try:
            return all(self._has_shard(manifest, split, index) for split, index, _, _ in shards_of(manifest))
        except FormatError:
            return False

    def _identity_at_path(self) -> Identity:
        return identity_of(os.lstat(f"{self.path}/zarr.json"))

    def _read_root(self) -> tuple[bytes, Identity]:
        """The bytes of the root's ``zarr.json``, and the identity of the file."""
        return _read_root(self.path)


def shards_of(manifest: Manifest) -> Iterator[tuple[str, int, str, Shard]]:
    """Yield the split, the position in it, the directory and the entry of each shard."""
    for split, entry in manifest.splits.items():
        for index, shard in enumerate(entry.shards):
            yield split, index, manifest.shard_path(split, index), shard


def data_files_of(manifest: Manifest, shard: Shard) -> dict[str, ArrayGeometry]:
    """The files with values of a shard, by path relative to it."""
    return {f"{path}/{array.data_path}": array for path, array in manifest.arrays(shard).items() if array.rows}


def _begins_so(grown: Manifest, manifest: Manifest) -> bool:
    """Whether the grown store begins with all shards of the other one, with the same files."""
    return (grown.layout, grown.chunk_size) == (manifest.layout, manifest.chunk_size) and all(
        name in grown.splits
        and grown.splits[name].shards[: len(split.shards)] == split.shards
        and grown.splits[name].numbers[: len(split.shards)] == split.numbers
        for name, split in manifest.splits.items()
    )


def damage(problems: Sequence[Problem], advice: str) -> FormatError:
    """The error for these problems, with the advice if the first problem has none of its own."""
    if replaced := [problem for problem in problems if problem.reason == "replaced"]:  # while it was opened
        return FormatError(replaced[0], AGAIN)
    is_advised = problems[0].reason == "unlisted-file" or _MAY_READ in problems[0].message
    return FormatError(problems, "" if is_advised else advice)


def start_of(file: IO[bytes]) -> int:
    """Position of an open file's bytes in the file of its descriptor: 0, except in a packed store."""
    return int(getattr(getattr(file, "raw", None), "start", 0))


def size_of(file: IO[bytes]) -> int:
    """Bytes of an open file, whose position is at its end afterwards."""
    return file.seek(0, os.SEEK_END)


def read_slice(file: IO[bytes], part: slice) -> bytes:
    """Bytes of an open file in a slice without step."""
    start, stop, _ = part.indices(size_of(file))
    file.seek(start)
    return file.read(max(0, stop - start))


def open_file(root: Path, name: str) -> IO[bytes]:
    """Open a regular file below `root` for reading; raises for a symlink or a pipe."""
    # Without O_NONBLOCK this would wait for a pipe; it has no effect on files.
    flags = os.O_RDONLY | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
    try:
        descriptor = os.open(f"{root}/{name}", flags)
    except OSError as error:
        check_resource(name, error)
        reason = "symlink" if (root / name).is_symlink() else "missing-file"
        advice = f" {_MAY_READ} it." if isinstance(error, PermissionError) else ""
        message = f"this file cannot be opened ({error.strerror}).{advice}"
        raise FormatError(Problem(name, reason, message)) from error
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise FormatError(Problem(name, "missing-file", "expected a file, found something else."))
    return os.fdopen(descriptor, "rb")


def check_outside_stores(path: Path) -> None:
    """Raise `OptionError` if a new file or folder at `path` would be inside a store, which it would damage.

    >>> tsds.reading.check_outside_stores(Path("sheet.png"))
    >>> try:
    ...     tsds.reading.check_outside_stores(Path("photos.tsds/sheet.png"))
    ... except tsds.OptionError:
    ...     print("inside of a store")
    inside of a store
    """
    if store := _store_around(path):
        message = f"this lies inside the store {store}, to which no file may be added. Choose a place outside of it."
        raise OptionError(f"{path}: {message}")


def _store_around(path: Path) -> Path | None:
    folder = path.parent.resolve()
    for each in (folder, *folder.parents):
        with contextlib.suppress(FormatError):  # there is no zarr.json, or none that can be read
            if is_root(_read_root(each)[0]):
                return each
    return None


def _check_disk(path: Path) -> None:
    """Raise `FormatError` if the system cannot examine a path: to report it as missing would be wrong."""
    try:
        os.lstat(path / "zarr.json")
    except (OSError, ValueError) as error:
        if isinstance(error, OSError):
            check_resource(str(path), error)
        if isinstance(error, OSError) and error.errno in (errno.EIO, errno.EACCES, errno.ESTALE):
            message = f"zarr.json cannot be looked at ({error.strerror}). Check the disk, and who may read it."
            raise FormatError(Problem(str(path), "not-a-store", message)) from error


def _read_root(path: Path) -> tuple[bytes, Identity]:
    if not os.path.lexists(path / "zarr.json"):
        _check_disk(path)
        what = "this is not a store (it has no zarr.json)" if path.exists() else "there is no such store"
        advice = f"Correct the path, or run tsds convert.{'' if path.exists() else meant_path(path)}"
        work = path.parent / (path.name if path.suffix == ".partial" else f"{path.name}.partial")
        if work.is_dir():
            advice = f"{work.name} has an interrupted conversion: run its command again, and it is completed."
        raise FormatError(Problem(words.missing_path(path), "not-a-store", f"{what}. {advice}"))
    try:
        with open_file(path, "zarr.json") as file:
            status = os.fstat(file.fileno())
            if status.st_size > MANIFEST_MAX_NBYTES:
                message = f"expected at most {MANIFEST_MAX_NBYTES} bytes, found {status.st_size}."
                raise FormatError(Problem("zarr.json", "manifest-json", message))
            return file.read(MANIFEST_MAX_NBYTES + 1), identity_of(status)
    except FormatError as error:
        if error.reason == "missing-file":  # there, and no file that can be read
            problem = Problem(str(path), "not-a-store", f"this is not a store. zarr.json: {error.problems[0].message}")
            raise FormatError(problem) from error
        raise
