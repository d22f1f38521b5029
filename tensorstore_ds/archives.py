"""Read files in ZIP and tar archives by a path such as ``a.zip/cats/1.jpg``.

Nothing is unpacked. The list of members is read once, and members are read by their position. Each process has its own
list, or that of the process that forked it; no descriptor is kept. A compressed tar archive, which has no positions, is
decompressed once into a temporary file, which child processes read as well.
"""

from __future__ import annotations

import atexit
import hashlib
import importlib
import os
import posixpath
import re
import shutil
import stat
import tempfile
import threading
import zlib
from array import array
from bisect import bisect_left
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from tensorstore_ds.errors import ConversionError, Problem, SourceError
from tensorstore_ds.packed_strings import PackedStrings, place_of

#: Suffixes of compressed tar archives, and Python's module that decompresses them.
_COMPRESSED = {
    **dict.fromkeys((".tar.gz", ".tgz"), "gzip"),
    **dict.fromkeys((".tar.bz2", ".tbz2"), "bz2"),
    **dict.fromkeys((".tar.xz", ".txz"), "lzma"),
}
SUFFIXES = (".zip", ".tar", *_COMPRESSED)
#: Archives that are not read.
UNREAD = (".tar.zst", ".7z", ".rar")
_IN_PATH = re.compile(f"(?:{'|'.join(map(re.escape, SUFFIXES))})(?=/|$)", re.IGNORECASE)
#: Environment variable: where a process that started this one has decompressed archives.
_PLACE = "TSDS_DECOMPRESSED"
#: Bytes that are decompressed at a time, that stay free on the disk, and between two checks of the disk.
_PIECE, _FREE, _ASK = 1 << 20, 1 << 28, 1 << 26
#: No deflate stream expands further: 258 bytes from 2 bits.
_DEFLATE_RATIO = 1032
_HEADER = 30  # bytes of a ZIP file's local header without its names
_STORED, _DEFLATED = 0, 8
_UTF8 = 1 << 11  # the flag of a ZIP file's member whose name is UTF-8; the names of others are read as code page 437
_BEHIND_FOLDER = "0"  # the character behind "/"

Identity = tuple[int, int, int, int]


@dataclass(frozen=True)
class Archive:
    """The members of an archive, in string order.

    `identity` of the file shows changes. `data` is the file that is read: the archive, or its decompressed copy.
    `places` has five numbers for each member: its position, stored bytes, bytes, method of compression and CRC. The
    position in ZIP files is that of the local header. `undeclared` has the number of names in a ZIP file that are not
    ASCII and not declared as UTF-8, and the first of them.
    """

    path: Path
    identity: Identity
    names: PackedStrings
    places: array[int]
    data: Path
    undeclared: tuple[int, str] = (0, "")

    @property
    def is_zip(self) -> bool:
        """Whether it is a ZIP archive."""
        return self.path.suffix.lower() == ".zip"

    def find(self, name: str) -> int:
        """The number of a file; -1 if there is none of this name."""
        return place_of(self.names, name)

    def is_folder(self, name: str) -> bool:
        """Whether there are files below a name; the archive itself is the name ``""``."""
        return next(self.below(name), None) is not None

    def below(self, name: str) -> Iterator[str]:
        """The files below a folder, relative to it, in string order."""
        prefix = f"{name}/" if name else ""
        for i in range(bisect_left(self.names, prefix), len(self.names)):
            path = self.names[i]
            if not path.startswith(prefix):
                return
            yield path[len(prefix) :]

    def entries(self, name: str) -> Iterator[tuple[str, bool]]:
        """Names in a folder, and whether each is a folder."""
        prefix = f"{name}/" if name else ""
        i = bisect_left(self.names, prefix)
        while i < len(self.names) and self.names[i].startswith(prefix):
            entry, slash, _ = self.names[i][len(prefix) :].partition("/")
            yield entry, bool(slash)
            i = bisect_left(self.names, f"{prefix}{entry}{_BEHIND_FOLDER}", i) if slash else i + 1

    def read(self, number: int, where: str, limit: int) -> bytes:
        """The bytes of a file; raises `SourceError` if it is damaged or above `limit`, or the archive has changed."""
        start, stored, nbytes, method, crc = self.places[5 * number : 5 * number + 5]
        if nbytes > limit:
            message = f"expected a file of at most {limit:,} bytes, found {nbytes:,}."
            raise SourceError(Problem(where, "unreadable-file", message))
        descriptor = os.open(self.data, os.O_RDONLY | getattr(os, "O_BINARY", 0) | getattr(os, "O_CLOEXEC", 0))
        try:
            status = os.fstat(descriptor)
            if identity_of(status if self.data == self.path else self.path.stat()) != self.identity:
                message = "expected the archive as it was listed, found it changed. Do not change it meanwhile."
                raise SourceError(Problem(str(self.path), "archive", message))
            if self.is_zip:
                header = read_at(descriptor, _HEADER, max(0, start))
                if header[:4] != b"PK\x03\x04":
                    raise _damaged(where, "no local header where the archive's list says")
                start += _HEADER + int.from_bytes(header[26:28], "little") + int.from_bytes(header[28:30], "little")
            if not 0 <= start <= start + stored <= status.st_size:  # before memory is taken for it
                raise _damaged(where, "it would end behind the archive")
            data = read_at(descriptor, stored, start)
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
    """The archive that a path leads into, and the name in it, or None; raises `SourceError` (`archive`)."""
    text = os.fspath(path)
    for found in _IN_PATH.finditer(text):
        end = found.end()
        try:
            status = os.stat(text[:end])  # noqa: PTH116  # quicker than a Path's
        except OSError:
            return None
        if stat.S_ISREG(status.st_mode):
            return _archive(text[:end], identity_of(status)), _normal(text[end + 1 :])
    return None


def plain(path: Path) -> Path:
    """A file, or the decompressed copy of a tar archive; raises `SourceError` or `ConversionError`."""
    return _decompressed(path, identity_of(path.stat())) if _module(path) else path


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
    data = _decompressed(path, identity) if _module(path) else path
    try:
        # for equal names the last one, as unpackers do
        undeclared: list[str] = []
        found = dict(_zip_members(path, undeclared) if is_zip else _tar_members(path, data))
    except (SourceError, OSError, MemoryError):
        raise
    except Exception as error:  # whatever these libraries raise for a damaged one
        raise _no_archive(path, "ZIP" if is_zip else "tar", error) from error
    ordered = sorted(found)
    places = array("q", (number for name in ordered for number in found[name]))
    example = (len(undeclared), undeclared[0] if undeclared else "")
    return Archive(path, identity, PackedStrings(ordered), places, data, example)


def _no_archive(path: Path, kind: str, error: Exception) -> SourceError:
    message = f"expected a {kind} archive, found another file or a damaged one ({error})."
    return SourceError(Problem(str(path), "archive", message), "Download or pack it again.")


# --- compressed ones ------------------------------------------------------------------------------------------------


def _module(path: Path) -> str:
    """Python's module that decompresses a file; empty if it is not compressed."""
    return next((module for suffix, module in _COMPRESSED.items() if path.name.lower().endswith(suffix)), "")


def _decompressed(path: Path, identity: Identity) -> Path:
    """The decompressed copy of a tar archive, in a temporary folder."""
    folder = _folder()
    target = folder / f"{hashlib.sha256(repr((path.absolute(), identity)).encode()).hexdigest()[:32]}.tar"
    if target.exists():
        return target
    made, written = target.with_suffix(f".{os.urandom(8).hex()}"), 0  # another process may do the same
    try:
        with importlib.import_module(_module(path)).open(path) as stream, made.open("xb", buffering=0) as file:
            while data := _next(stream, path):
                if written % _ASK < len(data) and (free := shutil.disk_usage(folder).free) < _FREE:
                    message = f"{path} does not fit decompressed: {written:,} bytes are written, {free:,} are free."
                    raise ConversionError(f"{folder}: {message} Make room, or set TMPDIR to a larger disk.")
                try:
                    written += file.write(data)
                except OSError as error:  # it is not the source that fails here
                    raise ConversionError(f"{made}: {error.strerror}. Set TMPDIR to a larger disk.") from error
        made.rename(target)
    finally:
        made.unlink(missing_ok=True)
    return target


def _next(stream: IO[bytes], path: Path) -> bytes:
    try:
        return stream.read(_PIECE)
    except Exception as error:  # whatever these libraries raise for a damaged one
        raise _no_archive(path, "compressed tar", error) from error


def _folder() -> Path:
    """Folder for decompressed archives of this process, or of the process that started it."""
    given = os.environ.get(_PLACE)
    if given:
        try:
            status = os.lstat(given)
        except OSError:
            given = None
        else:
            if stat.S_ISDIR(status.st_mode) and (not hasattr(os, "geteuid") or status.st_uid == os.geteuid()):
                return Path(given)
    try:
        folder = tempfile.mkdtemp(prefix="tsds-")
    except OSError as error:
        message = f"{tempfile.gettempdir()}: {error.strerror}. Set TMPDIR to another folder."
        raise ConversionError(message) from error
    os.environ[_PLACE], _own["folder"] = folder, (folder, os.getpid())
    atexit.register(_remove, folder, os.getpid())
    return Path(folder)


#: Number of open blocks, and the folder that this process has created with its process number.
_users, _own = [0], dict[str, tuple[str, int]]()
_lock = threading.Lock()


@contextmanager
def decompressing() -> Iterator[None]:
    """Remove this process's decompressed archives when the outermost block ends, not only when the process ends."""
    with _lock:
        _users[0] += 1
    try:
        yield
    finally:
        with _lock:
            _users[0] -= 1
            if not _users[0] and (folder := _own.pop("folder", None)):
                _remove(*folder)


def _remove(folder: str, owner: int) -> None:
    if os.getpid() != owner:  # a forked process
        return
    for key in [key for key, archive in _archives.items() if archive.data != archive.path]:
        del _archives[key]
    if os.environ.get(_PLACE) == folder:
        del os.environ[_PLACE]
    shutil.rmtree(folder, ignore_errors=True)


_Members = Iterator[tuple[str, tuple[int, int, int, int, int]]]


def _zip_members(path: Path, undeclared: list[str]) -> _Members:
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
            if not each.filename.isascii() and not each.flag_bits & _UTF8:
                undeclared.append(each.filename)
            place = (each.header_offset, each.compress_size, each.file_size, each.compress_type, each.CRC)
            yield _name(path, each.filename), place


def _tar_members(path: Path, data: Path) -> _Members:
    from tensorstore_ds.tar_members import FOLDER, TarMembers  # tarfile takes a while, and most sources are folders

    with data.open("rb") as file:
        for each in TarMembers(file):
            if each.kind == FOLDER:
                continue
            if each.kind:
                raise _refused(path, each.name, "a link, a device or a sparse file")
            yield _name(path, each.name), (each.start, each.nbytes, each.nbytes, _STORED, 0)


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


def read_at(descriptor: int, nbytes: int, offset: int) -> bytes:
    """Bytes at a position of an open file; fewer at its end."""
    if hasattr(os, "pread"):
        return os.pread(descriptor, nbytes, offset)
    os.lseek(descriptor, offset, os.SEEK_SET)
    return os.read(descriptor, nbytes)


def identity_of(status: os.stat_result) -> Identity:
    """Values that differ between a file and its replacement."""
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


def _refused(path: Path, name: str, found: str) -> SourceError:
    shown = name if len(name) <= 200 else f"{name[:200]}..."
    message = f"expected files and folders in it, found {found}: {shown}."
    return SourceError(
        Problem(str(path), "archive", message), "Pack it again without, or unpack it where that is safe."
    )


def _damaged(where: str, found: str) -> SourceError:
    return SourceError(Problem(where, "unreadable-file", f"this file in the archive is damaged: {found}."))
