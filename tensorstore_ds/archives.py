"""Files in ZIP and tar archives, by the archive's path with the name of the member behind it: ``a.zip/cats/1.jpg``.

Nothing is unpacked. The list of members is read once, members are read by their place. Each process has its own list,
or the one of the process that it was forked from; no descriptor is kept.
"""

from __future__ import annotations

import os
import posixpath
import stat
import zlib
from array import array
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from tensorstore_ds.errors import Problem, SourceError
from tensorstore_ds.packed_strings import PackedStrings

SUFFIXES = (".zip", ".tar")
#: Archives that would have to be decompressed from the beginning for each member.
COMPRESSED = (".tar.gz", ".tgz", ".tar.bz2", ".tar.xz", ".tar.zst", ".7z", ".rar")
#: No deflate stream expands further: 258 bytes from 2 bits.
_DEFLATE_RATIO = 1032
_HEADER = 30  # bytes of a ZIP file's local header without its names
_STORED, _DEFLATED = 0, 8
_BEHIND_FOLDER = "0"  # the character behind "/"

Identity = tuple[int, int, int, int]


@dataclass(frozen=True)
class Archive:
    """The members of an archive, in string order.

    Attributes:
        identity: of the file, by which a change is noticed.
        names: of the files in it, with ``/``.
        places: five numbers for each: where it begins, its bytes there, its bytes, its method of compression, its CRC;
            in ZIP files a member begins at its local header.
    """

    path: Path
    identity: Identity
    names: PackedStrings
    places: array[int]
    is_zip: bool = field(default=False)

    def find(self, name: str) -> int:
        """The number of a file; -1 if there is none of this name."""
        i = bisect_left(self.names, name)
        return i if i < len(self.names) and self.names[i] == name else -1

    def is_folder(self, name: str) -> bool:
        """Whether there are files below a name; the archive itself is the name ``""``."""
        prefix = f"{name}/" if name else ""
        i = bisect_left(self.names, prefix)
        return i < len(self.names) and self.names[i].startswith(prefix)

    def below(self, name: str) -> Iterator[str]:
        """The files below a folder, relative to it, in string order."""
        prefix = f"{name}/" if name else ""
        for i in range(bisect_left(self.names, prefix), len(self.names)):
            path = self.names[i]
            if not path.startswith(prefix):
                return
            yield path[len(prefix) :]

    def entries(self, name: str) -> Iterator[tuple[str, bool]]:
        """What lies in a folder, and whether each is a folder."""
        prefix = f"{name}/" if name else ""
        i = bisect_left(self.names, prefix)
        while i < len(self.names) and self.names[i].startswith(prefix):
            entry, slash, _ = self.names[i][len(prefix) :].partition("/")
            yield entry, bool(slash)
            i = bisect_left(self.names, f"{prefix}{entry}{_BEHIND_FOLDER}", i) if slash else i + 1

    def read(self, number: int, where: str, limit: int) -> bytes:
        """The bytes of a file.

        Raises:
            SourceError: it is damaged, has more than `limit` bytes, or the archive was changed.
        """
        start, stored, nbytes, method, crc = self.places[5 * number : 5 * number + 5]
        if nbytes > limit:
            message = f"expected a file of at most {limit:,} bytes, found {nbytes:,}."
            raise SourceError(Problem(where, "unreadable-file", message))
        descriptor = os.open(self.path, os.O_RDONLY | getattr(os, "O_BINARY", 0) | getattr(os, "O_CLOEXEC", 0))
        try:
            if _identity(os.fstat(descriptor)) != self.identity:
                message = "expected the archive as it was listed, found it changed. Do not change it meanwhile."
                raise SourceError(Problem(str(self.path), "archive", message))
            if self.is_zip:
                header = _pread(descriptor, _HEADER, max(0, start))
                if header[:4] != b"PK\x03\x04":
                    raise _damaged(where, "no local header where the archive's list says")
                start += _HEADER + int.from_bytes(header[26:28], "little") + int.from_bytes(header[28:30], "little")
            if not 0 <= start <= start + stored <= self.identity[2]:  # before memory is taken for it
                raise _damaged(where, "it would end behind the archive")
            data = _pread(descriptor, stored, start)
        finally:
            os.close(descriptor)
        if len(data) != stored:
            raise _damaged(where, f"{len(data):,} bytes of {stored:,}")
        if method == _DEFLATED:
            data = _inflated(data, nbytes, where)
        if len(data) != nbytes or (self.is_zip and zlib.crc32(data) != crc):
            raise _damaged(where, "other bytes than the archive's list says")
        return data


def split(path: str | os.PathLike[str]) -> tuple[Archive, str] | None:
    """The archive that a path leads into, and the name in it, ``""`` for the archive; None if there is none.

    Raises:
        SourceError: `archive`: its list cannot be read, or has a member that cannot be a file's.
    """
    text = os.fspath(path)
    lower = text.lower()
    for suffix in SUFFIXES:
        end = lower.find(suffix)
        while end >= 0:
            end += len(suffix)
            if text[end : end + 1] in ("", "/"):
                try:
                    status = os.stat(text[:end])  # noqa: PTH116  # quicker than a Path's
                except OSError:
                    return None
                if stat.S_ISREG(status.st_mode):
                    return _archive(text[:end], _identity(status)), _normal(text[end + 1 :])
            end = lower.find(suffix, end)
    return None


def _normal(name: str) -> str:
    """A name without ``.`` and ``..``, which no member has."""
    normal = posixpath.normpath(name.strip("/"))
    return "" if normal == "." else normal


_archives: dict[tuple[str, Identity], Archive] = {}


def _archive(path: str, identity: Identity) -> Archive:
    if (path, identity) not in _archives:
        _archives[path, identity] = _listed(Path(path), identity)
    return _archives[path, identity]


def _listed(path: Path, identity: Identity) -> Archive:
    is_zip = path.suffix.lower() == ".zip"
    try:
        # of two of a name the last one, as unpackers do
        found = dict(_zip_members(path) if is_zip else _tar_members(path))
    except (SourceError, OSError, MemoryError):
        raise
    except Exception as error:  # whatever these libraries raise for a damaged one
        message = f"expected a {'ZIP' if is_zip else 'tar'} archive, found another file or a damaged one ({error})."
        raise SourceError(Problem(str(path), "archive", message), "Download or pack it again.") from error
    ordered = sorted(found)
    places = array("q", (number for name in ordered for number in found[name]))
    return Archive(path, identity, PackedStrings(ordered), places, is_zip)


_Members = Iterator[tuple[str, tuple[int, int, int, int, int]]]


def _zip_members(path: Path) -> _Members:
    import zipfile  # it takes a while, and most sources are folders

    with zipfile.ZipFile(path) as archive:
        for each in archive.infolist():
            if each.is_dir():
                continue
            kind = stat.S_IFMT(each.external_attr >> 16) if each.create_system == 3 else 0
            if kind not in (0, stat.S_IFREG):
                raise _refused(path, each.filename, "a link or a device")
            if each.flag_bits & 1:
                raise _refused(path, each.filename, "an encrypted file")
            if each.compress_type not in (_STORED, _DEFLATED):
                raise _refused(path, each.filename, f"the compression {each.compress_type}, which is not deflate")
            if each.file_size > _DEFLATE_RATIO * max(1, each.compress_size):
                raise _refused(path, each.filename, f"{each.file_size:,} bytes said to be in {each.compress_size:,}")
            place = (each.header_offset, each.compress_size, each.file_size, each.compress_type, each.CRC)
            yield _name(path, each.filename), place


def _tar_members(path: Path) -> _Members:
    import tarfile

    with tarfile.open(path, "r:") as archive:
        while (each := archive.next()) is not None:
            archive.members = []  # type: ignore[attr-defined]  # it would keep all of them
            if each.isdir():
                continue
            if not each.isreg() or each.sparse is not None:
                raise _refused(path, each.name, "a link, a device or a sparse file")
            yield _name(path, each.name), (each.offset_data, each.size, each.size, _STORED, 0)


def _name(path: Path, name: str) -> str:
    parts = [part for part in name.replace("\\", "/").split("/") if part not in ("", ".")]
    if ".." in parts or name.startswith("/") or not parts or "\0" in name:
        raise _refused(path, name, "a name that leads out of the archive")
    return "/".join(parts)


def _inflated(data: bytes, nbytes: int, where: str) -> bytes:
    inflater = zlib.decompressobj(-zlib.MAX_WBITS)
    try:
        return inflater.decompress(data, nbytes + 1)
    except zlib.error as error:
        raise _damaged(where, str(error)) from error


def _pread(descriptor: int, nbytes: int, offset: int) -> bytes:
    if hasattr(os, "pread"):
        return os.pread(descriptor, nbytes, offset)
    os.lseek(descriptor, offset, os.SEEK_SET)
    return os.read(descriptor, nbytes)


def _identity(status: os.stat_result) -> Identity:
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


def _refused(path: Path, name: str, found: str) -> SourceError:
    shown = name if len(name) <= 200 else f"{name[:200]}..."
    message = f"expected files and folders in it, found {found}: {shown}."
    return SourceError(
        Problem(str(path), "archive", message), "Pack it again without, or unpack it where that is safe."
    )


def _damaged(where: str, found: str) -> SourceError:
    return SourceError(Problem(where, "unreadable-file", f"this file in the archive is damaged: {found}."))
