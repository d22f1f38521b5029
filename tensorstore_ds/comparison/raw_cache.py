"""Drop the files of a folder from the page cache, for a first epoch from the disk."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from tensorstore_ds.errors import ResidencyError
from tensorstore_ds.page_cache.residency import resident_nbytes

#: Seconds; with more files than are dropped in that time a first epoch is not measured.
PATIENCE = 30.0


def drop_files(folder: Path) -> int:
    """Ask the system to drop the bytes of all files below a folder; nothing is lost.

    Their names and sizes stay in memory: only the administrator can drop these.

    Returns:
        Bytes that stay.

    Raises:
        ResidencyError: this is not Linux; or there are so many files that it takes more than `PATIENCE` seconds.
        OSError: the system does not tell.
    """
    if sys.platform != "linux":
        raise ResidencyError(f"{folder}: expected Linux to drop a file's pages, found {sys.platform}.")
    begun, left = time.monotonic(), 0
    for path in _files(str(folder)):
        if time.monotonic() - begun > PATIENCE:
            raise ResidencyError(f"{folder}: dropping its files takes more than {PATIENCE:.0f} s")
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            nbytes = os.fstat(descriptor).st_size
            left += resident_nbytes(descriptor, nbytes)
        finally:
            os.close(descriptor)
    return left


def _files(folder: str) -> Iterator[str]:
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_dir():
                yield from _files(entry.path)
            elif entry.is_file():
                yield entry.path
