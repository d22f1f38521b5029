"""A temporary folder for what must be decompressed before it can be read."""

from __future__ import annotations

import os
import shutil
import tempfile
import weakref
from pathlib import Path
from typing import TYPE_CHECKING

from tensorstore_ds.durable import check_room
from tensorstore_ds.errors import ConversionError

if TYPE_CHECKING:
    from _typeshed import SupportsRead

_COPY = 1 << 20


class Scratch:
    """Temporary files, deleted with this object in the process that created it only; copies only know their paths."""

    def __init__(self) -> None:
        self._folder: Path | None = None  # made for the first file

    def copy(self, stream: SupportsRead[bytes], nbytes: int, what: str, suffix: str = "") -> tuple[Path, int]:
        """Copy the next `nbytes` of a stream to a file; returns its path and size, one more if the stream has more.

        Raises `ConversionError` if there is no space for `what`, or a file cannot be created.
        """
        if self._folder is None:
            try:
                self._folder = Path(tempfile.mkdtemp(prefix="tsds-"))
            except OSError as error:
                message = f"{tempfile.gettempdir()}: {error.strerror}. Set TMPDIR to another folder."
                raise ConversionError(message) from error
            weakref.finalize(self, _remove, self._folder, os.getpid())
        advice = f"Make room to decompress {what}, or set TMPDIR to a larger disk."
        check_room(self._folder, nbytes, ConversionError, advice)
        path = self._folder / f"{len(os.listdir(self._folder))}{suffix}"
        remaining = nbytes
        with path.open("xb") as file:
            while remaining and (data := stream.read(min(_COPY, remaining))):
                remaining -= len(data)
                try:
                    file.write(data)
                    file.flush()
                except OSError as error:  # it is not the source that fails here
                    raise ConversionError(f"{path}: {error.strerror}. Set TMPDIR to a larger disk.") from error
        return path, nbytes - remaining + len(stream.read(1))

    def __reduce__(self) -> tuple[type[Scratch], tuple[()]]:
        return Scratch, ()  # the folder belongs to the process that made it


def _remove(folder: Path, owner: int) -> None:
    if os.getpid() == owner:  # a forked worker has a copy of the object, but must leave the folder
        shutil.rmtree(folder, ignore_errors=True)
