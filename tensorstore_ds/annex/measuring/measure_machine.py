"""Measure the machine: the cores and the memory that this process gets, and the storage under a store."""

from __future__ import annotations

import errno
import hashlib
import mmap
import os
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import IO

from tensorstore_ds.annex.measuring.diagnosis_results import Cores, Memory, Storage
from tensorstore_ds.machine import core_limits
from tensorstore_ds.page_cache.residency import data_files, requirement, residency_of, total_residency
from tensorstore_ds.reading.store import Store
from tensorstore_ds.reading.store_files import start_of

#: Hashed at a time, without the interpreter's lock: half a millisecond or more.
_BLOCK = bytes(1024**2)
_TURNS = 3
#: Bytes of storage that are read at most, and at a time.
MOST_NBYTES, STEP_NBYTES = 512 * 1024**2, 8 * 1024**2
#: Files that are smaller are left out, and a store of less than this much: a single request takes a time of its own.
LEAST_NBYTES, LEAST_TOTAL = 1024**2, 8 * 1024**2


def measure_cores(limit: int | None, *, seconds: float) -> Cores:
    """Number of cores, and the work that they do, by hashing; `limit` replaces the system's limit."""
    machine = os.cpu_count() or 1
    limits = core_limits() if limit is None else {"the option cores": float(limit)}
    limited_by = min(limits, key=limits.__getitem__)
    allowed = limits[limited_by]
    cores = Cores(machine, allowed, limited_by if allowed < machine else "", 1.0)
    if cores.threads == 1:
        return cores
    alone = together = 0.0
    for _ in range(_TURNS):  # in turns, so that what else the machine does disturbs both
        alone += hashed(1, seconds=seconds / _TURNS / 2)
        together += hashed(cores.threads, seconds=seconds / _TURNS / 2)
    return replace(cores, measured=together / alone)


def hashed(threads: int, *, seconds: float) -> float:
    """Blocks per second that threads hash together."""
    with ThreadPoolExecutor(threads, thread_name_prefix="tsds-doctor") as pool:
        return sum(pool.map(_hash, [seconds] * threads))


def _hash(seconds: float) -> float:
    began, blocks = time.perf_counter(), 0
    while not blocks or time.perf_counter() < began + seconds:
        hashlib.sha256(_BLOCK)
        blocks += 1
    return blocks / (time.perf_counter() - began)


def measure_memory(store: Store, columns: Sequence[tuple[str, str]], limit: int | None) -> Memory:
    """Memory that these (split, field) need and may use, and their resident part; `limit` replaces the system's."""
    nbytes, limits = requirement(store, columns)
    if limit is not None:
        limits = {"the option memory": limit}
    limited_by = min(limits, key=limits.__getitem__)
    total = total_residency(residency_of(store, columns))
    return Memory(nbytes, limits[limited_by], limited_by, total.share, total.reason)


def measure_storage(store: Store, columns: Sequence[tuple[str, str]], *, seconds: float) -> Storage:
    """Read the files of these (split, field) for some seconds, the largest first.

    With ``O_DIRECT`` the system copies from the disk into this process's memory, and leaves the page cache unchanged,
    which others may be using.
    """
    if sys.platform != "linux":
        return Storage(None, reason=f"reading past the page cache is not available on {sys.platform}")
    if store.is_remote:
        return Storage(None, reason="a part of the store is not on this disk yet")
    files = [file for column in columns for file in data_files(store, *column) if file.nbytes >= LEAST_NBYTES]
    if sum(file.nbytes for file in files) < LEAST_TOTAL:
        return Storage(None, reason="the store is too small to tell how fast its storage is")
    total, spent = 0, 0.0
    with mmap.mmap(-1, STEP_NBYTES) as buffer:  # whose address is that of a page, as O_DIRECT wants it
        for file in sorted(files, key=lambda file: file.nbytes, reverse=True):
            if total >= MOST_NBYTES or spent >= seconds:
                break
            with store.open_file(file.path) as opened:
                try:
                    nbytes, took = _read_directly(opened, buffer, MOST_NBYTES - total, seconds - spent)
                except OSError as error:
                    if error.errno not in (errno.EINVAL, errno.EOPNOTSUPP):
                        raise
                    return Storage(None, reason="this file system does not read past the page cache")
            total, spent = total + nbytes, spent + took
    return Storage(total / spent, total)


def _read_directly(file: IO[bytes], buffer: mmap.mmap, most: int, seconds: float) -> tuple[int, float]:
    """Bytes read from the beginning of a file, and the seconds that this took."""
    import fcntl  # not on Windows

    descriptor, start = file.fileno(), start_of(file)
    fcntl.fcntl(descriptor, fcntl.F_SETFL, fcntl.fcntl(descriptor, fcntl.F_GETFL) | os.O_DIRECT)
    began, done = time.perf_counter(), 0
    while not done or (done < most and time.perf_counter() - began < seconds):
        count = os.preadv(descriptor, [buffer], start + done)
        done += count
        if count < len(buffer):
            break
    return done, time.perf_counter() - began
