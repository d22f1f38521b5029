"""The files of a store that is packed into one ZIP file, read and mapped in place.

``formats/v1/spec.md`` section 12 describes packed stores. Members are not compressed, and each begins at a multiple of
4096 bytes, so that a member can be mapped like a separate file.
"""

from __future__ import annotations

import io
import os
import stat
import struct
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, NamedTuple

from tensorstore_ds.archives import Identity, identity_of
from tensorstore_ds.errors import FormatError, Problem
from tensorstore_ds.machine import check_resource
from tensorstore_ds.reading.store_files import MANIFEST_MAX_NBYTES, StoreFiles

#: The bytes of each member begin at a multiple of this.
ALIGNMENT = 4096
#: Refuse a list of members larger than this before reading it.
DIRECTORY_MAX_NBYTES = 64 * 1024**2

_ENCRYPTED = 1
#: Attempts to open a file that is replaced meanwhile.
_OPENINGS = 4
_LOCAL_HEADER = struct.Struct("<4s4xH16xHH")  # signature, method, lengths of the name and of the extra field
#: Exceptions of zipfile for bytes that are not a ZIP file.
_NO_ZIP = (zipfile.BadZipFile, NotImplementedError, ValueError, OverflowError, EOFError, struct.error)


class Member(NamedTuple):
    """A file in a ZIP file: position of its local header, its bytes, and the latest position of its end."""

    header: int
    size: int
    end: int


def find_files(path: Path, sha256: str | None = None, root: bytes = b"") -> StoreFiles:
    """The files of the store at a path, a folder or a packed store."""
    return PackedFiles(path, sha256) if path.is_file() else StoreFiles(path, sha256, root)


class PackedFiles(StoreFiles):
    """The files of a packed store. Symlinks to the ZIP file at `path` are followed, and it contains none."""

    def __init__(self, path: Path, sha256: str | None = None) -> None:
        self._members: dict[Identity, dict[str, Member]] = {}
        super().__init__(path, sha256)

    def open(self, name: str) -> IO[bytes]:
        """Open one of the files for reading: a part of the ZIP file, which its descriptor belongs to.

        Raises `FormatError` if it is missing, its local header is damaged, or another store has replaced this one.
        """
        for _ in range(_OPENINGS):
            archive = _open_archive(self.path)
            try:
                self._check_identity(name)
                identity = identity_of(os.fstat(archive.fileno()))
                if identity == self._identity:
                    return _open_member(archive, name, self._member(name, identity))
            except BaseException:
                archive.close()
                raise
            archive.close()  # a copy of the same store took its place just now
        problem = Problem(str(self.path), "replaced", "this file is being replaced again and again.")
        raise FormatError(problem, "Open it again later.")

    def size(self, name: str) -> int:
        """Bytes of one of the files; raises `FormatError` if it is missing."""
        return self._member(name, self._identity).size

    def is_link(self, directory: str) -> bool:
        """Return False, because a packed store contains no symlinks."""
        return False

    def names(self) -> Iterator[str]:
        """All members, listed or not."""
        yield from self._members[self._identity]

    def _member(self, name: str, identity: Identity) -> Member:
        try:
            return self._members[identity][name]
        except KeyError:
            raise FormatError(Problem(name, "missing-file", f"this file is not in {self.path.name}.")) from None

    def _identity_at_path(self) -> Identity:
        return identity_of(self.path.stat())

    def _read_root(self) -> tuple[bytes, Identity]:
        with _open_archive(self.path) as archive:
            identity = identity_of(os.fstat(archive.fileno()))
            members = _read_members(archive, self.path)
            root = members.get("zarr.json")
            if root is None:
                message = "this is not a store (it is a ZIP file without a zarr.json at its root)."
                raise FormatError(Problem(str(self.path), "not-a-store", message), "Make one with: tsds pack")
            if root.size > MANIFEST_MAX_NBYTES:
                message = f"expected at most {MANIFEST_MAX_NBYTES} bytes, found {root.size}."
                raise FormatError(Problem("zarr.json", "manifest-json", message))
            # At most two: the opened file, and a possible copy of it, whose digest is compared later.
            opened = {known: found for known, found in self._members.items() if known == self._identity}
            self._members = {**opened, identity: members}
            return _open_member(archive, "zarr.json", root).read(), identity


class _Part(io.RawIOBase):
    """Bytes ``[start, start + size)`` of an open file, as a file; it owns that file."""

    def __init__(self, file: io.FileIO, start: int, size: int) -> None:
        self.start = start
        self._file = file
        self._size = size
        self._position = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._file.fileno()

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self._size}[whence]
        self._position = max(0, base + offset)
        return self._position

    def readinto(self, buffer: Any) -> int:
        view = memoryview(buffer)[: max(0, self._size - self._position)]
        self._file.seek(self.start + self._position)
        count = self._file.readinto(view)
        self._position += count
        return count

    def close(self) -> None:
        self._file.close()
        super().close()


class _Archive(io.FileIO):
    """A ZIP file for zipfile, which reads at most as much at once as a list of members may have."""

    def read(self, size: int | None = -1, /) -> bytes:
        if size is not None and size > DIRECTORY_MAX_NBYTES:
            raise zipfile.BadZipFile(f"its list of members is larger than {DIRECTORY_MAX_NBYTES} bytes")
        return super().read(size) or b""


def _open_archive(path: Path) -> _Archive:
    # Without O_NONBLOCK this would wait for a pipe; it has no effect on files.
    flags = os.O_RDONLY | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0) | getattr(os, "O_NONBLOCK", 0)
    try:
        file = _Archive(os.open(path, flags), "rb")
    except OSError as error:
        check_resource(str(path), error)
        message = f"this file cannot be opened ({error.strerror})."
        raise FormatError(Problem(str(path), "missing-file", message)) from error
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise FormatError(Problem(str(path), "not-a-store", "this is not a store: it is neither a folder nor a file."))
    return file


def _read_members(archive: _Archive, path: Path) -> dict[str, Member]:
    """The members of a ZIP file, by name; raises unless they are uncompressed, disjoint and inside the file."""
    try:
        with zipfile.ZipFile(archive) as opened:
            infos, end = opened.infolist(), opened.start_dir
    except _NO_ZIP as error:
        message = f"this is not a store: it is a file, but no ZIP file of a store ({error})."
        raise FormatError(Problem(str(path), "not-a-store", message), "Copy it again if it was one.") from error
    except OSError as error:
        check_resource(str(path), error)
        message = f"this file cannot be read ({error.strerror})."
        raise FormatError(Problem(str(path), "missing-file", message)) from error
    infos.sort(key=lambda info: info.header_offset)
    ends = [*(info.header_offset for info in infos[1:]), end]
    members: dict[str, Member] = {}
    for info, end in zip(infos, ends, strict=False):  # of no members there is an end, too
        name = info.orig_filename
        if stat.S_ISLNK(info.external_attr >> 16):
            raise FormatError(Problem(name, "symlink", "expected a file, found a symbolic link."))
        is_stored = info.compress_type == zipfile.ZIP_STORED and info.compress_size == info.file_size
        if not is_stored or info.flag_bits & _ENCRYPTED:
            what = "an encrypted" if info.flag_bits & _ENCRYPTED else "a compressed"
            raise _refused(name, f"expected a member that is stored as it is, found {what} one.")
        if name in members:
            raise _refused(name, "expected each name once, found it twice.")
        member = Member(info.header_offset, info.file_size, end)
        if member.header < 0 or member.header + _LOCAL_HEADER.size + member.size > end:
            raise _refused(name, "expected its bytes inside of the file and apart from others, found them elsewhere.")
        members[name] = member
    return members


def _open_member(archive: _Archive, name: str, member: Member) -> IO[bytes]:
    """A member as a file, from the position in its local header; raises `FormatError` if that is damaged."""
    archive.seek(member.header)
    header = archive.read(_LOCAL_HEADER.size + len(name.encode()))
    if len(header) < _LOCAL_HEADER.size:
        raise _refused(name, "expected a local header, found the end of the file.")
    signature, method, name_nbytes, extra_nbytes = _LOCAL_HEADER.unpack_from(header)
    is_ours = signature == b"PK\3\4" and method == 0 and header[_LOCAL_HEADER.size :] == name.encode()
    if not is_ours or name_nbytes != len(name.encode()):
        raise _refused(name, "expected its local header, found other bytes.")
    start = member.header + _LOCAL_HEADER.size + name_nbytes + extra_nbytes
    if start + member.size > member.end:
        raise _refused(name, "expected its bytes inside of the file and apart from others, found them elsewhere.")
    if start % ALIGNMENT:
        raise _refused(name, f"expected its bytes at a multiple of {ALIGNMENT}, found them at {start}.")
    return io.BufferedReader(_Part(archive, start, member.size))


def _refused(name: str, message: str) -> FormatError:
    return FormatError(
        Problem(name, "packed", message), "Unpack this file with unzip, and pack that store with tsds pack."
    )
