"""Arrays that lie in files: their headers are read, their data mapped, and decompressed first where needed."""

from __future__ import annotations

import io
import math
import os
import shutil
import tempfile
import warnings
import weakref
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from tensorstore_ds.errors import ConversionError, Problem, SourceError
from tensorstore_ds.regular_files import open_file, os_errors

if TYPE_CHECKING:
    from _typeshed import SupportsRead

#: Bytes at the beginning of a .npy file that hold its header: NumPy writes 128 for all but the oddest arrays.
NPY_HEAD = 4096

_COPY = 1 << 20
_AXES_LIMIT = 32
_AXIS_LIMIT = 10**18


@dataclass(frozen=True, slots=True)
class ArrayFile:
    """An array in a file, of which only the header has been read."""

    where: str  #: how messages name it
    path: Path  #: the file that is mapped
    dtype: str  #: NumPy's name with the byte order, such as ``>i4``
    shape: tuple[int, ...]
    offset: int = 0  #: where its bytes begin
    fortran: bool = False  #: the first index varies fastest

    @property
    def nbytes(self) -> int:
        """Bytes of the array, without the header."""
        return math.prod(self.shape) * np.dtype(self.dtype).itemsize

    @property
    def native(self) -> np.dtype[Any]:
        """The type as it is stored: in this machine's byte order, and `uint8` for booleans."""
        dtype = np.dtype(self.dtype).newbyteorder("=")
        return np.dtype(np.uint8) if dtype == np.bool_ else dtype

    def check_nbytes(self, file_nbytes: int) -> None:
        """Refuse, with `array-file`, a file that is longer or shorter than its header says."""
        nbytes = self.offset + self.nbytes
        if file_nbytes != nbytes:
            raise bad_file(self.where, f"expected {nbytes:,} bytes, found {file_nbytes:,}.")

    def map(self) -> NDArray[Any]:
        """The array, mapped read-only.

        Raises:
            SourceError: `array-file` when the file is no longer as long as it was; `unreadable-file`.
        """
        with os_errors(self.where), open_file(self.path, self.where) as file:
            self.check_nbytes(os.fstat(file.fileno()).st_size)
            if not self.nbytes:
                return np.empty(self.shape, self.dtype)
            order: Literal["C", "F"] = "F" if self.fortran else "C"
            return np.asarray(np.memmap(file, self.dtype, "r", self.offset, self.shape, order))


class Scratch:
    """A temporary folder that is removed with this object, by the process that made it and no other."""

    def __init__(self) -> None:
        try:
            self._folder = Path(tempfile.mkdtemp(prefix="tsds-"))
        except OSError as error:
            message = f"{tempfile.gettempdir()}: {error.strerror}. Set TMPDIR to another folder."
            raise ConversionError(message) from error
        self._files = 0
        weakref.finalize(self, _remove, self._folder, os.getpid())

    def unpack(self, stream: SupportsRead[bytes], array: ArrayFile) -> ArrayFile:
        """The array in a file of its own, copied from `stream`, which must hold nothing else from here on.

        Raises:
            SourceError: `array-file` when the stream is longer or shorter than the array.
            ConversionError: the disk is full.
        """
        free = shutil.disk_usage(self._folder).free
        if array.nbytes > free:
            message = f"{array.nbytes:,} bytes are needed to decompress an array, {free:,} are free."
            raise ConversionError(f"{self._folder}: {message} Make room, or set TMPDIR to a larger disk.")
        path = self._folder / str(self._files)
        self._files += 1
        remaining = array.nbytes
        with path.open("xb") as file:
            while remaining and (data := stream.read(min(_COPY, remaining))):
                remaining -= len(data)
                try:
                    file.write(data)
                    file.flush()
                except OSError as error:  # it is not the source that fails here
                    raise ConversionError(f"{path}: {error.strerror}. Set TMPDIR to a larger disk.") from error
        array.check_nbytes(array.offset + array.nbytes - remaining + len(stream.read(1)))
        return replace(array, path=path, offset=0)


def _remove(folder: Path, owner: int) -> None:
    if os.getpid() == owner:  # a forked worker has a copy of the object, but must leave the folder
        shutil.rmtree(folder, ignore_errors=True)


def read_npy_header(head: bytes, where: str, path: Path) -> ArrayFile:
    """The array in a .npy file, from its first `NPY_HEAD` bytes, which NumPy parses; no pickled object is read.

    Raises:
        SourceError: `array-file`.
    """
    stream = io.BytesIO(head)  # not the file: NumPy takes as much memory as a header says that it is long
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what NumPy says of files of Python 2
            version, _ = npy.read_magic(stream)
            # 3 differs from 2 in the names of records alone, and records are refused
            readers = {1: npy.read_array_header_1_0, 2: npy.read_array_header_2_0, 3: npy.read_array_header_2_0}
            shape, fortran, dtype = readers[version](stream, max_header_size=NPY_HEAD)
    except Exception as error:  # a header may be any Python literal: nearly anything is raised for a damaged one
        raise bad_file(where, f"expected a .npy file of version 1, 2 or 3, found {head[:60]!r}.") from error
    if dtype.hasobject:
        raise bad_file(where, "expected numbers, found Python objects, which are pickled and so never read.")
    if dtype.kind not in "biuf" or dtype.itemsize > 8:
        raise bad_file(where, f"expected numbers of at most 64 bits, found {str(dtype)[:80]}.")
    if len(shape) > _AXES_LIMIT or not all(0 <= n < _AXIS_LIMIT for n in shape):
        raise bad_file(where, f"expected the shape of an array, found {str(shape)[:80]}.")
    return ArrayFile(where, path, dtype.str, tuple(map(int, shape)), stream.tell(), fortran)


def bad_file(where: str, message: str) -> SourceError:
    """The error `array-file`."""
    return SourceError(Problem(where, "array-file", message), "Save it again, or download it again.")


def bad_shape(where: str, message: str, advice: str = "") -> SourceError:
    """The error `array-shape`."""
    return SourceError(Problem(where, "array-shape", message), advice)
