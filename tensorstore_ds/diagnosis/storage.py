"""How fast the storage under a store reads in order, past the page cache: nothing is dropped from it, nothing added."""

from __future__ import annotations

import errno
import mmap
import os
import sys
import time
from collections.abc import Sequence

from tensorstore_ds.diagnosis.findings import Storage
from tensorstore_ds.page_cache.residency import data_files
from tensorstore_ds.reading.store import Store
from tensorstore_ds.reading.store_files import open_file

#: Read at most, and at a time.
MOST_NBYTES, STEP_NBYTES = 512 * 1024**2, 8 * 1024**2
#: Files that are smaller are left out, and a store of less than this much: a single request takes a time of its own.
LEAST_NBYTES, LEAST_TOTAL = 1024**2, 8 * 1024**2


def read_storage(store: Store, columns: Sequence[tuple[str, str]], *, seconds: float) -> Storage:
    """Read the files of these (split, field), the largest first, for some seconds.

    With ``O_DIRECT`` the system copies from the disk into this process's memory, and leaves the page cache as it is,
    which others may be using.
    """
    if sys.platform != "linux":
        return Storage(None, reason=f"reading past the page cache is not available on {sys.platform}")
    files = sorted((f for c in columns for f in data_files(store, *c)), key=lambda f: f.nbytes, reverse=True)
    files = [file for file in files if file.nbytes >= LEAST_NBYTES]
    if sum(file.nbytes for file in files) < LEAST_TOTAL:
        return Storage(None, reason="the store is too small to tell how fast its storage is")
    total, spent = 0, 0.0
    with mmap.mmap(-1, STEP_NBYTES) as buffer:  # whose address is that of a page, as O_DIRECT wants it
        for file in files:
            if total >= MOST_NBYTES or spent >= seconds:
                break
            with open_file(store.path, file.path) as opened:
                try:
                    nbytes, took = _read_directly(opened.fileno(), buffer, MOST_NBYTES - total, seconds - spent)
                except OSError as error:
                    if error.errno not in (errno.EINVAL, errno.EOPNOTSUPP):
                        raise
                    return Storage(None, reason="this file system does not read past the page cache")
            total, spent = total + nbytes, spent + took
    return Storage(total / spent, total)


def _read_directly(descriptor: int, buffer: mmap.mmap, most: int, seconds: float) -> tuple[int, float]:
    """Bytes that were read from the beginning of a file, and the seconds that it took."""
    import fcntl  # not on Windows

    fcntl.fcntl(descriptor, fcntl.F_SETFL, fcntl.fcntl(descriptor, fcntl.F_GETFL) | os.O_DIRECT)
    began, done = time.perf_counter(), 0
    while not done or (done < most and time.perf_counter() - began < seconds):
        found = os.preadv(descriptor, [buffer], done)
        done += found
        if found < len(buffer):
            break
    return done, time.perf_counter() - began
