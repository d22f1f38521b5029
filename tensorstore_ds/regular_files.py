"""Open a source's files: regular files only, with a size limit."""

from __future__ import annotations

import codecs
import contextlib
import errno
import io
import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

from tensorstore_ds import archives
from tensorstore_ds.archives import Archive
from tensorstore_ds.errors import ConversionError, OptionError, Problem, SourceError
from tensorstore_ds.options import user_path

#: Bytes of an image file, which is read whole.
FILE_LIMIT = 1 << 30
#: Bytes of a text file that is read whole: a list of ids, of classes or of keypoints.
TEXT_LIMIT = 64 << 20

# Do not wait for a pipe, and do not make a terminal the controlling one.
_FLAGS = os.O_RDONLY
for _name in ("O_BINARY", "O_CLOEXEC", "O_NONBLOCK", "O_NOCTTY"):
    _FLAGS |= getattr(os, _name, 0)  # Windows has the first alone, and POSIX the others
_PIECE = 4 << 20
#: Byte order marks; UTF-32's begins as UTF-16's does.
_MARKS = {
    codecs.BOM_UTF8: "utf-8-sig",
    codecs.BOM_UTF32_LE: "utf-32",
    codecs.BOM_UTF32_BE: "utf-32",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}
#: Encodings without a mark by the zeros in the first bytes, whose characters are of Latin-1, as in all JSON.
_ZEROS = {
    (False, True, True, True): "utf-32-le",
    (True, True, True, False): "utf-32-be",
    (False, True): "utf-16-le",
    (True, False): "utf-16-be",
}
_KINDS = {stat.S_IFDIR: "a folder", stat.S_IFIFO: "a pipe", stat.S_IFSOCK: "a socket"}
#: Errors that concern one file. All others, such as EIO, ENOMEM, EMFILE and ESTALE, concern the machine.
_OF_THE_FILE = frozenset(
    {
        *(errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ELOOP, errno.ENAMETOOLONG, errno.EILSEQ, errno.EINVAL),
        *(errno.EACCES, errno.EPERM, errno.ENXIO, errno.ENODEV, errno.EFBIG, errno.EOVERFLOW),
    }
)
_NO_MEMORY = ("out of memory", "can't allocate memory")  # Pillow's words, and torch's


def open_file(path: str | Path, where: str, buffering: int = -1, limit: int | None = None) -> BinaryIO:
    """Open a regular file for reading; links are followed, and errors call it `where`.

    Raises `SourceError` (`unreadable-file`), also above `limit` bytes, or as `check_machine`.
    """
    try:
        descriptor, size = _descriptor(path, where)
    except SourceError:
        if (data := _member(path, where, limit or FILE_LIMIT)) is None:
            raise
        return io.BytesIO(data)
    if limit is not None and size > limit:
        os.close(descriptor)
        raise _too_large(where, limit, size)
    return open(descriptor, "rb", buffering)


def read_file(path: str | Path, where: str, limit: int = FILE_LIMIT) -> bytes:
    """The bytes of a regular file of at most `limit` bytes; raises as `open_file`."""
    # Without Python's file objects and context managers, which cost 1/10 of the conversion of a small image.
    try:
        descriptor, size = _descriptor(path, where)
    except SourceError:
        if (member := _member(path, where, limit)) is None:
            raise
        return member
    try:
        pieces = [os.read(descriptor, size + 1)] if size <= limit else []
        if pieces and len(pieces[0]) == size:  # one byte more was asked for: this is the end
            return pieces[0]
        length = max(size, sum(map(len, pieces)))
        while length <= limit and (data := os.read(descriptor, _PIECE)):
            pieces.append(data)
            length = sum(map(len, pieces))
    except OSError as error:
        raise SourceError(unreadable(where, error)) from error
    finally:
        os.close(descriptor)
    if length > limit:
        raise _too_large(where, limit, length)
    return b"".join(pieces)


def _too_large(where: str, limit: int, nbytes: int) -> SourceError:
    message = f"expected a file of at most {limit:,} bytes, found {nbytes:,}."
    return SourceError(Problem(where, "unreadable-file", message))


# --- folders and files, in archives too ---------------------------------------------------------------------------


def archive_of(path: str | os.PathLike[str]) -> tuple[Archive, str] | None:
    """The archive that a path leads into, and the name in it, or None; raises `SourceError`, or as `check_machine`."""
    with os_errors(str(path)):
        return archives.split(path)


def is_file(path: str | os.PathLike[str]) -> bool:
    """Whether there is a file, or one in an archive; an archive itself is a folder."""
    if _asked(Path.is_file, path):
        return not os.fspath(path).lower().endswith(archives.SUFFIXES) or archive_of(path) is None
    found = archive_of(path)
    return found is not None and found[0].find(found[1]) >= 0


def is_dir(path: str | os.PathLike[str]) -> bool:
    """Whether there is a folder, an archive, or a folder in one."""
    if _asked(Path.is_dir, path):
        return True
    found = archive_of(path)
    return found is not None and found[0].is_folder(found[1])


def exists(path: str | os.PathLike[str]) -> bool:
    """Whether there is a file or a folder, or one in an archive."""
    return _asked(Path.exists, path) or is_file(path) or is_dir(path)


def _asked(question: Callable[[Path], bool], path: str | os.PathLike[str]) -> bool:
    try:
        return question(Path(path))
    except PermissionError as error:  # the folder around it is closed
        raise SourceError(unreadable(str(Path(path).parent), error), "Make it readable, or move it away.") from error


def entries(path: str | os.PathLike[str]) -> Iterator[tuple[str, bool]]:
    """Names in a folder or archive, and whether each is a folder; a broken link is not. Raises `OSError`."""
    try:
        with os.scandir(path) as found:
            for entry in found:
                yield entry.name, entry.is_dir()
    except NotADirectoryError:
        place = archive_of(path)
        if place is None:
            raise
        yield from place[0].entries(place[1])


def status_of(path: str | os.PathLike[str]) -> os.stat_result:
    """Status of a file, or of the archive that contains it; raises `OSError`."""
    try:
        return os.stat(path)  # noqa: PTH116  # several times as quick as a Path's for one call a sample
    except NotADirectoryError:
        place = archive_of(path)
        if place is None:
            raise
        return place[0].path.stat()


def _member(path: str | os.PathLike[str], where: str, limit: int) -> bytes | None:
    """The bytes of a file in an archive; None if the path leads into none."""
    place = archive_of(path)
    if place is None or not place[1]:
        return None
    number = place[0].find(place[1])
    if number < 0:
        message = f"cannot be read: {os.strerror(errno.ENOENT)}."
        raise SourceError(Problem(where, "unreadable-file", message))
    with os_errors(where):
        return place[0].read(number, where, limit)


def read_lines(path: Path, what: str) -> dict[int, str]:
    """The lines with text of a file that an option names, `what` in errors, by number; raises `OptionError`."""
    try:
        lines = decode_text(read_file(path, str(path), TEXT_LIMIT), str(path)).splitlines()
        return {number: line for number, line in enumerate(lines, 1) if line.strip()}
    except SourceError as error:
        if error.reason == "text-encoding":
            raise OptionError(f"{path}: expected a {what} in UTF-8, found other bytes. Save it as UTF-8.") from error
        found = error.problems[0].message
        raise OptionError(f"{path}: the {what} cannot be used: {found} Name a text file.") from error


def encoding_of(head: bytes) -> str:
    r"""The encoding of a text by its first bytes: a byte order mark, else the zeros in its first characters.

    >>> encoding_of(b"{}"), encoding_of(b"\xef\xbb\xbf{}"), encoding_of(b"\xff\xfe{\0}\0"), encoding_of(b"\0{\0}")
    ('utf-8', 'utf-8-sig', 'utf-16', 'utf-16-be')
    """
    marked = next((name for mark, name in _MARKS.items() if head.startswith(mark)), None)
    zeros = tuple(byte == 0 for byte in head[:4])
    return marked or _ZEROS.get(zeros) or _ZEROS.get(zeros[:2]) or "utf-8"


def decode_text(data: bytes, where: str, reason: str = "text-encoding", errors: str = "strict") -> str:
    """The text of a file in UTF-8, UTF-16 or UTF-32, without byte order mark; raises `SourceError` with `reason`."""
    try:
        return data.decode(encoding_of(data), errors)
    except UnicodeDecodeError as error:
        message = f"expected text in UTF-8, found other bytes at {error.start:,} ({encoding_of(data)})."
        raise SourceError(Problem(where, reason, message), "Save the file as UTF-8.") from error


def as_utf8(data: bytes, where: str, reason: str = "text-encoding") -> bytes:
    """The text of a file as UTF-8 without a byte order mark. Bytes that are UTF-8 are neither checked nor copied."""
    return data if encoding_of(data) == "utf-8" else decode_text(data, where, reason).encode()


def read_head(path: Path, nbytes: int) -> bytes:
    """The first bytes of a file, to detect its format; empty if unreadable. Raises as `check_machine`."""
    with contextlib.suppress(SourceError), os_errors(path.name), open_file(path, path.name, 0) as file:
        return file.read(nbytes)
    return b""


def tidied(path: str | os.PathLike[str]) -> Path:
    """The absolute path, ``~`` expanded, and without ``..``, except behind a symlink, where it leads elsewhere."""
    absolute = user_path(path).absolute()
    plain = Path(os.path.abspath(absolute))  # noqa: PTH100  # resolve() follows links
    return plain if os.path.realpath(absolute) == os.path.realpath(plain) else absolute


@contextlib.contextmanager
def os_errors(where: str) -> Iterator[None]:
    """Turn errors of the system about `where` into `SourceError`, or raise as `check_machine`."""
    try:
        yield
    except OSError as error:
        raise SourceError(unreadable(where, error)) from error


def unreadable(where: str, error: OSError) -> Problem:
    """The problem `unreadable-file`, with the message of the system; raises as `check_machine`."""
    check_machine(where, error)
    return Problem(where, "unreadable-file", f"cannot be read: {error.strerror or error}.")


def check_machine(where: str, error: BaseException) -> None:
    """Raise `ConversionError` unless an error is the fault of the file `where`.

    Memory or descriptors are short, or a disk or a network fails: the same file may be read well the next time, and
    must not be left out.
    """
    short = isinstance(error, MemoryError | RecursionError) or any(words in str(error) for words in _NO_MEMORY)
    if short:
        what = "too deep a recursion" if isinstance(error, RecursionError) else "memory ran out"
        advice = "Run the same command again to go on, with fewer `workers`; remove this file if it is always the one."
        raise ConversionError(f"{where}: {what} while this was read. {advice}") from error
    if isinstance(error, OSError) and error.errno is not None and error.errno not in _OF_THE_FILE:
        message = f"{error.strerror or error} while this was read, which is not the file's fault."
        raise ConversionError(f"{where}: {message} Correct that and run the same command again to go on.") from error


def _descriptor(path: str | Path, where: str) -> tuple[int, int]:
    """A descriptor of a regular file, and its size."""
    descriptor = -1
    try:
        descriptor = os.open(path, _FLAGS)
        status = os.fstat(descriptor)
    except OSError as error:
        if descriptor >= 0:
            os.close(descriptor)
        raise SourceError(unreadable(where, error)) from error
    if not stat.S_ISREG(status.st_mode):
        os.close(descriptor)
        kind = _KINDS.get(stat.S_IFMT(status.st_mode), "a device")
        raise SourceError(Problem(where, "unreadable-file", f"expected a file, found {kind}."))
    return descriptor, status.st_size
