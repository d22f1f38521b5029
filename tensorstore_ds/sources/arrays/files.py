"""Arrays that lie in files: their headers are parsed, their data mapped, and decompressed first where needed."""

from __future__ import annotations

import math
import os
import re
import shutil
import tempfile
import weakref
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from tensorstore_ds.errors import ConversionError, Problem, SourceError
from tensorstore_ds.regular_files import open_file, unreadable

#: Enough for the header of a .npy file: NumPy itself writes 128 bytes for all but the oddest arrays.
NPY_HEAD = 16384

_COPY = 1 << 20
_ENTRY = re.compile(
    r"""['"](descr|fortran_order|shape)['"]\s*:\s*('[^']*'|"[^"]*"|True|False|\([0-9,\sL]*\))""", re.ASCII
)
_DTYPE = re.compile(r"[<>=|]?(b1|[iu][1248]|f[248])")
_SHAPE = re.compile(r"\((?:\s*[0-9]{1,18}L?\s*,)*\s*(?:[0-9]{1,18}L?\s*)?\)", re.ASCII)


@dataclass(frozen=True, slots=True)
class ArrayFile:
    """An array in a file, of which only the header has been read.

    Attributes:
        where: how messages name it.
        path: the file that is mapped.
        dtype: NumPy's name with the byte order, such as ``>i4``.
        offset: where its bytes begin.
        fortran: the first index varies fastest.
    """

    where: str
    path: Path
    dtype: str
    shape: tuple[int, ...]
    offset: int = 0
    fortran: bool = False

    @property
    def nbytes(self) -> int:
        """Bytes of the array, without the header."""
        return math.prod(self.shape) * np.dtype(self.dtype).itemsize

    @property
    def native(self) -> np.dtype[Any]:
        """The type as it is stored: in this machine's byte order, and `uint8` for booleans."""
        dtype = np.dtype(self.dtype).newbyteorder("=")
        return np.dtype(np.uint8) if dtype == np.bool_ else dtype

    def map(self) -> NDArray[Any]:
        """The array, mapped read-only.

        Raises:
            SourceError: `array-file` when the file is no longer as long as it was; `unreadable-file`.
        """
        try:
            with open_file(self.path, self.where) as file:
                size = os.fstat(file.fileno()).st_size
                if size < self.offset + self.nbytes:
                    raise bad_file(self.where, f"expected {self.offset + self.nbytes:,} bytes, found {size:,}.")
                if not self.nbytes:
                    return np.empty(self.shape, self.dtype)
                order: Literal["C", "F"] = "F" if self.fortran else "C"
                return np.asarray(np.memmap(file, self.dtype, "r", self.offset, self.shape, order))
        except OSError as error:
            raise SourceError(unreadable(self.where, error)) from error


class Stream(Protocol):
    """What bytes are read from."""

    def read(self, size: int, /) -> bytes:
        """At most `size` bytes; none at the end."""


class Scratch:
    """A temporary folder that is removed with this object, by the process that made it and no other."""

    def __init__(self) -> None:
        try:
            self._folder = Path(tempfile.mkdtemp(prefix="tsds-"))
        except OSError as error:
            raise ConversionError(
                f"{tempfile.gettempdir()}: {error.strerror}. Set TMPDIR to another folder."
            ) from error
        self._files = 0
        weakref.finalize(self, _remove, self._folder, os.getpid())

    def keep(self, stream: Stream, nbytes: int) -> Path:
        """Copy exactly `nbytes` from `stream`, or as many as it has, into a file of its own.

        Raises:
            ConversionError: the disk is full.
        """
        free = shutil.disk_usage(self._folder).free
        if nbytes > free:
            message = f"{nbytes:,} bytes are needed to decompress an array, {free:,} are free."
            raise ConversionError(f"{self._folder}: {message} Make room, or set TMPDIR to a larger disk.")
        path = self._folder / str(self._files)
        self._files += 1
        with path.open("xb") as file:
            while nbytes and (data := stream.read(min(_COPY, nbytes))):
                nbytes -= len(data)
                try:
                    file.write(data)
                    file.flush()
                except OSError as error:  # it is not the source that fails here
                    raise ConversionError(f"{path}: {error.strerror}. Set TMPDIR to a larger disk.") from error
        return path


def _remove(folder: Path, owner: int) -> None:
    if os.getpid() == owner:  # a forked worker has a copy of the object, but must leave the folder
        shutil.rmtree(folder, ignore_errors=True)


def parse_npy(head: bytes, where: str) -> tuple[str, tuple[int, ...], bool, int]:
    """The header of a .npy file: dtype, shape, whether in Fortran order, and where the data begin.

    Nothing is evaluated, and no pickled object is read. The format:
    https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html

    Args:
        head: the first `NPY_HEAD` bytes of the file.
        where: how messages name it.

    Raises:
        SourceError: `array-file`.
    """
    if head[:6] != b"\x93NUMPY" or len(head) < 12 or head[6] not in (1, 2, 3):
        raise bad_file(where, "expected a .npy file of version 1, 2 or 3, found something else.")
    width = 2 if head[6] == 1 else 4
    start = 8 + width
    offset = start + int.from_bytes(head[8:start], "little")
    if offset > len(head):
        raise bad_file(where, f"expected a header of {offset:,} bytes, found {len(head):,}.")
    text = head[start:offset].decode("latin-1")
    found: dict[str, str] = dict(_ENTRY.findall(text))
    descr = found.get("descr", "").strip("'\"")
    if "O" in descr:
        raise bad_file(where, "expected numbers, found Python objects, which are pickled and so never read.")
    shape = _SHAPE.fullmatch(found.get("shape", ""))
    if not _DTYPE.fullmatch(descr) or shape is None or found.get("fortran_order") not in ("True", "False"):
        raise bad_file(where, f"expected an array of numbers, found the header {text.strip()[:80]}.")
    sizes = tuple(map(int, re.findall("[0-9]+", shape[0])))
    return descr, sizes, found["fortran_order"] == "True", offset


def bad_file(where: str, message: str) -> SourceError:
    """The error `array-file`."""
    return SourceError(Problem(where, "array-file", message), "Save it again with numpy.save or numpy.savez.")


def bad_shape(where: str, message: str, advice: str = "") -> SourceError:
    """The error `array-shape`."""
    return SourceError(Problem(where, "array-shape", message), advice)
